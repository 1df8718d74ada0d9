"""The record of the last `rk fsck`: its findings, with the steps that would help. Value of `/fsck`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

#: Findings that the record holds, errors first.
FINDINGS_MAX: Final = 100
#: Characters of one text.
TEXT_MAX: Final = 300


class FsckFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding. `step` is the step that `rk fsck --fix` would take, "" if no legal step helps."""

    problem: str
    text: str
    is_warning: bool = False
    step: str = ""


class FsckRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last whole check of a cluster."""

    at_ms: int
    #: User and host that ran the check.
    by: str
    took_s: float
    #: True if the servers read every row, too.
    deep: bool = False
    errors: int = 0
    warnings: int = 0
    #: The first FINDINGS_MAX findings.
    findings: tuple[FsckFinding, ...] = ()
    #: Steps that the same run has taken.
    fixed: int = 0


def shortened(findings: Sequence[FsckFinding]) -> tuple[FsckFinding, ...]:
    """Return the findings that a record holds: errors first, texts cut off."""
    first = sorted(findings, key=lambda one: one.is_warning)[:FINDINGS_MAX]
    return tuple(FsckFinding(one.problem, one.text[:TEXT_MAX], one.is_warning, one.step[:TEXT_MAX]) for one in first)
