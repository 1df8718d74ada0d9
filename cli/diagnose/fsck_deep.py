"""`rk fsck --deep`: let the servers check every row of every key-value region, and of every replica of a tablet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from cli.common.asking.servers import ask_server
from cli.common.waiting import limit_each_wait
from cli.tablets.deep import ReplicaToRead, read_replica, replicas_of
from coord.rpc.wire import RpcError
from coord.security.printable import printable, unquoted
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

    #: Shared regions, and replicas of tablets.
    regions: int = 0
    replicas: int = 0
    rows: int = 0
    size_bytes: int = 0
    #: Rows in files of earlier builds, which have no checksums.
    unchecked_rows: int = 0
    damaged_rows: int = 0
    #: Regions and replicas that could not be read completely.
    unread: list[str] = []


def read_rows(view: ClusterView, rate_mb_s: float, show: Callable[[str], None]) -> tuple[Deep, list[Finding]]:
    """Let every row be checked, at most `rate_mb_s` per server; call `show` with progress. Return counts and
    findings."""
    limit_each_wait()
    deep = Deep()
    findings: list[Finding] = []
    alive = {server.incarnation: server for server in view.servers}
    running = {one.table_id for one in view.tables if one.state is not TableState.REMOVED}
    by_server: dict[str, list[tuple[ServerRecord, RegionRecord] | ReplicaToRead]] = {}
    total = 0
    for table_id, regions in view.regions.items():
        for region in regions if table_id in running else ():
            if region.is_replaced:
                continue
            if region.is_tablet:
                replicas, lacking = replicas_of(view, region)
                for replica in replicas:
                    by_server.setdefault(replica.server.uuid, []).append(replica)
                total += len(replicas)
                deep.unread += lacking
                continue
            total += 1
            home = region.location(0).incarnation
            server = None if home is None else alive.get(home)
            if server is None:
                deep.unread.append(f"{region.region_id}: not open")
            else:
                by_server.setdefault(server.uuid, []).append((server, region))

    def read_server(parts: list[tuple[ServerRecord, RegionRecord] | ReplicaToRead]) -> None:
        for one in parts:
            if isinstance(one, ReplicaToRead):
                _read_tablet(one, rate_mb_s, deep, findings)
            else:
                _read_region(*one, rate_mb_s, deep, findings)
            done = deep.regions + deep.replicas
            show(f"{done} of {total} regions and replicas, {deep.rows} rows, {deep.damaged_rows} damaged")

    with ThreadPoolExecutor(_SERVERS_AT_ONCE) as pool:
        list(pool.map(read_server, by_server.values()))
    deep.unread.sort()
    return deep, sorted(findings, key=lambda one: one.subject)


def _read_tablet(replica: ReplicaToRead, rate_mb_s: float, deep: Deep, findings: list[Finding]) -> None:
    found = read_replica(replica, rate_mb_s)
    deep.replicas += 1
    deep.rows += found.rows
    deep.size_bytes += found.size_bytes
    if found.is_failed:
        text = f"{replica.key} on server {replica.server.uuid} cannot be read: {found.trouble}"
        findings.append(Finding(Problem.DAMAGED.value, replica.key, text))
    elif found.trouble:
        deep.unread.append(f"{replica.key}: {found.trouble}")


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
    what = [f"{deep.regions} regions"] if deep.regions or not deep.replicas else []
    what += [f"{deep.replicas} replicas of tablets"] if deep.replicas else []
    lines = [f"read {deep.rows} rows, {deep.size_bytes / 1e6:.1f} MB, of {' and '.join(what)}"]
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
        stream = unquoted(sys.stderr)
        stream.write(f"\r\x1b[K{printable(text)}")
        stream.flush()

    return show
