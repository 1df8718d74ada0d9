"""The load on every region during a drill, and what its clients observed.

`cli/drill/load.py` sends and checks the requests: one load per table with rows, with a share of the rate. This module
starts and stops the loads and combines their results. `unavailability` and `rejected_at_rest` are pure.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cli.common.access import open_store
from cli.common.errors import CliError
from cli.drill.load import Load, LoadOperation, Outage
from cli.drill.report import InvariantCheck, RegionOutage, Traffic, Unavailability, check, percentile
from coord.client.access import StoreAccess
from coord.rpc.wire import Code
from regions.records.model import RegionRecord, TableIntent, TableRecord, TableState
from regions.records.schema import Schema
from regions.records.znodes import Layout
from regionserver.client import DataError, Refused, RegionClient, RegionLocator

#: Time limit of one operation with all its attempts.
OPERATION_TIMEOUT_S: Final = 75.0
_PROBE_TIMEOUT_S: Final = 15.0
#: Steps of one band: beyond it neighbours are merged, and the merged step shows their maximum.
STEPS_MAX: Final = 400

#: A move according to the store's history: when the region began to leave, and when it was open again, on any one
#: clock.
Span = tuple[float, float]


class LoadedTables(msgspec.Struct, frozen=True):
    """Tables with rows, with their regions by key."""

    regions: dict[str, list[RegionRecord]]

    def count(self) -> int:
        """Return the number of regions of all tables."""
        return sum(len(found) for found in self.regions.values())


class Running:
    """The running load of a drill; for the main thread only."""

    def __init__(self, hosts: str, root: str, access: StoreAccess) -> None:
        self._stack = contextlib.ExitStack()
        store = self._stack.enter_context(open_store(hosts, access=access))
        self.locator = RegionLocator(store, Layout("" if root == "/" else root))
        self.client = RegionClient(self.locator, timeout_s=_PROBE_TIMEOUT_S)
        self._stack.callback(self.client.close)
        #: Tables that can be read and written; set by `find_tables`.
        self.tables = LoadedTables({})
        #: All operations, with times of `time.monotonic`; set by `stop`.
        self.timings: list[LoadOperation] = []
        self._loads: dict[str, Load] = {}

    def find_tables(self, names: Iterable[str]) -> None:
        """Find the tables that store rows by reading from one region of each. Raise CliError."""
        found: dict[str, list[RegionRecord]] = {}
        for name in names:
            regions = self.locator.regions(name)
            if not regions:
                continue
            try:
                self.client.get(name, regions[0].start_key or "!")
            except Refused as error:
                if error.code != Code.BAD_REQUEST:
                    raise CliError(f"table {name} cannot be read: {error}") from error
                continue
            except DataError as error:
                raise CliError(f"table {name} cannot be read: {error}", "`rk status` shows what is wrong.") from error
            found[name] = regions
        self.tables = LoadedTables(found)

    def start(self, rate: float) -> None:
        """Write every key of the load once, then begin."""
        total = self.tables.count()
        for name, regions in self.tables.regions.items():
            share = rate * len(regions) / total
            self._loads[name] = load = Load(self.client, name, rate_per_s=share, timeout_s=OPERATION_TIMEOUT_S)
            load.start()

    @property
    def is_running(self) -> bool:
        """Return True while a load runs."""
        return bool(self._loads)

    def now_s(self) -> dict[str, float]:
        """Return the clock of each load."""
        return {name: load.now_s() for name, load in self._loads.items()}

    def operations(self) -> dict[str, list[LoadOperation]]:
        """Return the operations so far, by table."""
        return {name: list(load.operations) for name, load in self._loads.items()}

    @property
    def waiting(self) -> int:
        """Return the number of regions that do not answer now."""
        return sum(load.busy for load in self._loads.values())

    def stop(self, struck: Mapping[str, float]) -> tuple[Traffic | None, list[InvariantCheck]]:
        """Stop, check every acknowledged row, delete the load's rows. `struck`: time of the fault."""
        if not self._loads:
            return None, []
        loads = self._loads
        reports = {name: load.stop() for name, load in loads.items()}
        self._loads = {}
        counts: Counter[str] = Counter()
        outages: list[Outage] = []
        spans: list[Span] = []
        violations: list[str] = []
        for name, report in reports.items():
            counts.update(report.counts)
            since_s = struck.get(name, 0.0)
            mine = [one for one in report.outages if one.ended_s >= since_s]
            outages += mine
            spans += [(one.began_s - since_s, one.ended_s - since_s) for one in mine]
            violations += report.violations
        self.timings = [one for load in loads.values() for one in _on_monotonic_clock(load)]
        regions = sum(report.regions for report in reports.values())
        checked = sum(report.keys_checked for report in reports.values())
        acknowledged = sum(report.acknowledged_writes for report in reports.values())
        traffic = Traffic(
            seconds=round(max(report.seconds for report in reports.values()), 3),
            operations=dict(sorted(counts.items())),
            acknowledged_writes=acknowledged,
            unknown_writes=sum(report.unknown_writes for report in reports.values()),
            lost_or_doubled=len(violations),
            latency_p50_ms=round(1000 * max(report.latency_p50_s for report in reports.values()), 2),
            latency_p99_ms=round(1000 * max(report.latency_p99_s for report in reports.values()), 2),
            unavailability=msgspec.structs.replace(
                unavailability(outages, regions, max(report.resolution_s for report in reports.values())),
                band=band(spans),
            ),
        )
        detail = f"{acknowledged} acknowledged, {checked} keys of {regions} regions read again"
        return traffic, [check("no row lost, none written twice", violations, detail)]

    def abandon(self) -> None:
        """End all requests soon: the cluster has gone. Thread-safe."""
        for load in list(self._loads.values()):
            load.abandon()

    def close(self) -> None:
        """Stop the loads that still run, and close the session."""
        with contextlib.suppress(DataError):
            self.stop({})
        self._stack.close()


def _on_monotonic_clock(load: Load) -> list[LoadOperation]:
    began_s = time.monotonic() - load.now_s()
    return [
        msgspec.structs.replace(one, began_s=one.began_s + began_s, ended_s=one.ended_s + began_s)
        for one in load.operations
    ]


def unavailability(outages: Sequence[Outage], regions: int, resolution_s: float) -> Unavailability:
    """Combine outages per region: over the affected regions, and over all `regions`, where unaffected ones count as
    0."""
    spans: dict[str, list[float]] = {}
    for one in outages:
        spans.setdefault(one.region_id, []).append(one.seconds)
    found = [
        RegionOutage(region_id, len(mine), round(max(mine), 3), round(sum(mine), 3))
        for region_id, mine in spans.items()
    ]
    found.sort(key=lambda one: (-one.longest_s, one.region))
    affected = [one.longest_s for one in found]
    everybody = affected + [0.0] * (regions - len(affected))
    return Unavailability(
        regions=regions,
        affected=len(affected),
        p50_s=percentile(affected, 0.5),
        p99_s=percentile(affected, 0.99),
        longest_s=max(affected, default=0.0),
        all_p50_s=percentile(everybody, 0.5),
        all_p99_s=percentile(everybody, 0.99),
        resolution_s=round(resolution_s, 3),
        per_region=found,
    )


def band(spans: Sequence[tuple[float, float]]) -> list[tuple[float, int]]:
    """Return how many of the spans (begin, end) cover each moment: steps of (moment, number), from 0 back to 0.

    At most STEPS_MAX steps: of neighbours that are merged the highest number stays.
    """
    events: dict[float, int] = {}
    for began, ended in spans:
        if ended > began:
            events[began] = events.get(began, 0) + 1
            events[ended] = events.get(ended, 0) - 1
    steps, now = [], 0
    for at in sorted(events):
        now += events[at]
        steps.append((round(at, 3), now))
    if len(steps) <= STEPS_MAX:
        return steps
    each = math.ceil(len(steps) / (STEPS_MAX - 1))
    merged = [(steps[at][0], max(number for _, number in steps[at : at + each])) for at in range(0, len(steps), each)]
    return merged if merged[-1][1] == 0 else [*merged, (steps[-1][0], 0)]


def rejected_at_rest(
    operations: Iterable[LoadOperation], moves: Mapping[str, Sequence[Span]], offset_s: float
) -> tuple[list[str], int]:
    """Return operations that a region rejected although it was not moving, and the number of merely slow operations.

    `moves` are by region, on a clock that is `offset_s` ahead of the operations'. A client that has sent nothing
    since a region moved is rejected once, at the old location: so the time since its last successful operation counts.
    """
    rejected: list[str] = []
    slow = 0
    good_s: dict[str, float] = {}
    for one in sorted(operations, key=lambda op: op.began_s):
        since_s = good_s.get(one.region_id, 0.0)
        if one.outcome == "ok":
            good_s[one.region_id] = one.ended_s
        if not one.is_disturbed:
            continue
        began_s, ended_s = since_s + offset_s, one.ended_s + offset_s
        if any(start <= ended_s and began_s <= end for start, end in moves.get(one.region_id, ())):
            continue
        why = [code for code in one.codes if code != Code.TIMEOUT]
        if why or one.outcome == "failed":
            rejected.append(f"{one.region_id}: {one.kind} after {one.began_s:.2f} s: {', '.join(why) or one.error}")
        else:
            slow += 1
    return rejected, slow


def enabled(tables: Iterable[TableRecord]) -> list[TableRecord]:
    """Return the enabled tables among `tables`."""
    return [one for one in tables if one.intent is TableIntent.ENABLED and one.state is not TableState.REMOVED]


def has_columns(table: TableRecord) -> bool:
    """Return True for a table with columns. Such a table takes no plain keys and bytes, and the load writes nothing
    else."""
    return isinstance(table.schema, Schema)
