"""Operations on tables per second: create, alter, delete, of small tables, by one client and by several.

Each request carries an id, so its result is stored with it. Without waiting, an operation ends when it is durable. With
waiting, it ends when all regions are open, all replicas have the schema, or all regions are closed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.lab import Lab, all_open, lab, say
from coord.rpc.blocking import call_blocking
from regions import messages as ms
from regions.messages.ddl import DdlRequest
from regions.records.schema import AddColumn, ColumnSpec, ColumnType

CLIENTS: Final = (1, 8)
TABLES: Final = 200
#: Regions of each table, one on each server.
SPLITS: Final = ["4", "8", "c"]
WAIT_MS: Final = 30_000
KINDS: Final = ("create", "alter", "delete")
_CALL_S: Final = 60.0


class Rate(msgspec.Struct, frozen=True):
    """Operations of one kind: operations per second, and the time of each for its client."""

    kind: str
    per_s: float
    p50_ms: float
    p99_ms: float


class Ddl(msgspec.Struct, frozen=True):
    """One pass with a number of concurrent clients: every table is created, then altered, then deleted."""

    clients: int
    waits: bool
    tables: int
    rates: list[Rate]


def ddl(folder: Path, clients: Sequence[int] = CLIENTS, tables: int = TABLES) -> list[Ddl]:
    """Measure all passes on one cluster. Wait until the cluster is at rest after each kind of operation."""
    with lab(folder) as cluster:
        return [_one_pass(cluster, count, waits, tables) for waits in (False, True) for count in clients]


def _one_pass(cluster: Lab, clients: int, waits: bool, tables: int) -> Ddl:
    rates = []
    for kind in KINDS:
        prefix = f"{clients}-{int(waits)}"
        rate = _measure(cluster, clients, kind, [_request(kind, prefix, number, waits) for number in range(tables)])
        wanted = 0 if kind == "delete" else tables * (len(SPLITS) + 1)
        cluster.follow("at rest", all_open(wanted))
        say(f"{clients} clients{', waiting' if waits else ''}: {kind} {rate.per_s:.0f}/s, median {rate.p50_ms:.1f} ms")
        rates.append(rate)
    return Ddl(clients, waits, tables, rates)


def _request(kind: str, prefix: str, number: int, waits: bool) -> DdlRequest:
    name, request_id, wait_ms = f"t-{prefix}-{number}", f"{kind}-{prefix}-{number}", WAIT_MS if waits else 0
    if kind == "create":
        columns = [ColumnSpec("id", ColumnType.INT64, key=True), ColumnSpec("value", ColumnType.STRING, nullable=True)]
        return ms.CreateTable(name, SPLITS, columns=columns, wait_ms=wait_ms, request_id=request_id)
    if kind == "alter":
        steps = [AddColumn(ColumnSpec("more", ColumnType.STRING, nullable=True))]
        return ms.AlterTable(name, steps=steps, wait_ms=wait_ms, request_id=request_id)
    return ms.DeleteTable(name, wait_ms=wait_ms, request_id=request_id)


def _measure(cluster: Lab, clients: int, kind: str, requests: list[DdlRequest]) -> Rate:
    address = cluster.active().address

    def ask(request: DdlRequest) -> float:
        began = time.monotonic()
        call_blocking(address, request, _CALL_S, expect=ms.Tables)
        return time.monotonic() - began

    began = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        times = sorted(pool.map(ask, requests))
    seconds = time.monotonic() - began
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    return Rate(kind, len(requests) / seconds, 1000 * statistics.median(times), 1000 * p99)


def table(rounds: list[Ddl]) -> list[str]:
    """Return a line per number of clients, with and without waiting; medians over the rounds."""
    if not rounds:
        return []
    heads = [f"{kind}/s | median ms | p99 ms" for kind in KINDS]
    lines = [f"| clients | answer comes | {' | '.join(heads)} |", f"| --: | --- |{' --: |' * 3 * len(KINDS)}"]
    for waits, clients in sorted({(one.waits, one.clients) for one in rounds}):
        same = [one for one in rounds if (one.waits, one.clients) == (waits, clients)]
        cells = [str(clients), "when it is carried out" if waits else "when it is durable"]
        values: list[tuple[Callable[[Rate], float], int]] = [
            (lambda rate: rate.per_s, 0),
            (lambda rate: rate.p50_ms, 1),
            (lambda rate: rate.p99_ms, 1),
        ]
        for at in range(len(KINDS)):
            for value, digits in values:
                cells.append(f"{statistics.median(value(one.rates[at]) for one in same):,.{digits}f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines
