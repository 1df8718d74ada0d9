"""`rk fsck --deep`: let the servers check every row of every open key-value region."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from cli.common.connect import ask_server
from coord.rpc.wire import RpcError
from regions.diagnose.fsck import ClusterView, Finding, Problem
from regions.records.model import RegionRecord, ServerRecord, TableState
from regionserver.kv.messages import KvVerified, KvVerify
from regionserver.request_gate import Place

#: Servers that check at the same time, one region each.
_SERVERS_AT_ONCE: Final = 8
_TIMEOUT_S: Final = 30.0
#: Damaged rows that are listed for one region.
_NAMED_MAX: Final = 10


class Deep(msgspec.Struct):
    """Counts of a deep check."""

    regions: int = 0
    rows: int = 0
    size_bytes: int = 0
    #: Rows in files of earlier builds, which have no checksums.
    unchecked_rows: int = 0
    damaged_rows: int = 0
    #: Regions that could not be read completely.
    unread: list[str] = []


def read_rows(view: ClusterView, rate_mb_s: float, show: Callable[[str], None]) -> tuple[Deep, list[Finding]]:
    """Let every row be checked, at most `rate_mb_s` per server; call `show` with progress. Return counts and
    findings."""
    deep = Deep()
    findings: list[Finding] = []
    alive = {server.incarnation: server for server in view.servers}
    running = {one.table_id for one in view.tables if one.state is not TableState.REMOVED}
    by_server: dict[str, list[tuple[ServerRecord, RegionRecord]]] = {}
    total = 0
    for table_id, regions in view.regions.items():
        for region in regions if table_id in running else ():
            if region.is_replaced:
                continue
            total += 1
            home = region.location(0).incarnation
            server = None if home is None else alive.get(home)
            if server is None:
                deep.unread.append(f"{region.region_id}: not open")
            else:
                by_server.setdefault(server.uuid, []).append((server, region))

    def read_server(regions: list[tuple[ServerRecord, RegionRecord]]) -> None:
        for server, region in regions:
            _read_region(server, region, rate_mb_s, deep, findings)
            show(f"{deep.regions} of {total} regions, {deep.rows} rows, {deep.damaged_rows} damaged")

    with ThreadPoolExecutor(_SERVERS_AT_ONCE) as pool:
        list(pool.map(read_server, by_server.values()))
    deep.unread.sort()
    return deep, sorted(findings, key=lambda one: one.subject)


def _read_region(
    server: ServerRecord, region: RegionRecord, rate_mb_s: float, deep: Deep, findings: list[Finding]
) -> None:
    place = Place.of(region)
    assert place is not None, "an open region has a place"
    key = f"{region.region_id}-0"
    damaged: list[str] = []
    start, trouble = b"", ""
    while True:
        began_s = time.monotonic()
        try:
            page = ask_server(server, KvVerify(place, start), KvVerified, _TIMEOUT_S)
        except RpcError as error:
            deep.unread.append(f"{region.region_id}: {error.message}")
            break
        deep.rows += page.rows
        deep.size_bytes += page.size
        deep.unchecked_rows += 0 if page.is_checked else page.rows
        damaged += page.damaged
        trouble = page.trouble
        start = page.next_key
        if not start or trouble:
            break
        if rate_mb_s:
            time.sleep(max(0.0, page.size / (rate_mb_s * 1e6) - (time.monotonic() - began_s)))
    deep.regions += 1
    deep.damaged_rows += len(damaged)
    if damaged:
        named = ", ".join(damaged[:_NAMED_MAX]) + (" and others" if len(damaged) > _NAMED_MAX else "")
        text = f"{key} has {len(damaged)} damaged rows: {named}; restore the region's file from a backup"
        findings.append(Finding(Problem.DAMAGED.value, key, text))
    if trouble:
        text = f"{key} cannot be read completely: {trouble}; restore the region's file from a backup"
        findings.append(Finding(Problem.DAMAGED.value, key, text))


def summary(deep: Deep) -> list[str]:
    """Return the counts for people."""
    lines = [f"read {deep.rows} rows, {deep.size_bytes / 1e6:.1f} MB, of {deep.regions} regions"]
    if deep.unchecked_rows:
        lines.append(
            f"{deep.unchecked_rows} rows have no checksums: files of an earlier build get checksums when their"
            " region is"
            " opened, up to 64 MiB"
        )
    lines += [f"not read: {one}" for one in deep.unread]
    return lines


def progress() -> Callable[[str], None]:
    """Return a function that shows a line of progress on a terminal, and does nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda _text: None

    def show(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    return show
