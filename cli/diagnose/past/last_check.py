"""Keeps the result of the last `rk fsck` in the cluster, where the live page shows it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from cli.common.connect import Cluster
from cli.common.names import who_runs
from regions.diagnose.fsck import Finding
from regions.records.acts.checks import FsckFinding, FsckRecord, shortened
from regions.records.znodes import encode

_TIMEOUT_S: Final = 5.0
_AWAY: Final = (KazooException, KazooTimeoutError, OSError)


def record_of(findings: Sequence[Finding], *, at_ms: int, took_s: float, deep: bool, fixed: int) -> FsckRecord:
    """Return the record of a check. Pure but for the name of the user."""
    kept = [
        FsckFinding(one.problem, one.text, one.is_warning, "" if one.fix is None else one.fix.preview)
        for one in findings
    ]
    warnings = sum(one.is_warning for one in findings)
    errors = len(findings) - warnings
    return FsckRecord(at_ms, who_runs(), round(took_s, 2), deep, errors, warnings, shortened(kept), fixed)


def keep(cluster: Cluster, findings: Sequence[Finding], *, began_s: float, deep: bool, fixed: int) -> str:
    """Write the record. Return why it could not be written, or "". The check itself does not need the record."""
    took_s = time.monotonic() - began_s
    record = record_of(findings, at_ms=int(time.time() * 1000), took_s=took_s, deep=deep, fixed=fixed)
    path = cluster.layout.fsck
    try:
        cluster.client.ensure_path(path)
        cluster.client.set_async(path, encode(record)).get(timeout=_TIMEOUT_S)
    except _AWAY as error:
        return str(error) or type(error).__name__
    return ""
