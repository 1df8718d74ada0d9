"""Results of any number of rounds, and the tables made of them: medians, ratios, goals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from benchmarks.tablets.cluster import SHARED, TABLET
from benchmarks.tablets.copying import Copied
from benchmarks.tablets.healing import Healed
from benchmarks.tablets.idle import Idle
from benchmarks.tablets.policy import PolicyCost
from benchmarks.tablets.scenes import Made, Outage, Restarted, Speed
from benchmarks.tablets.splitting import Split

#: Goals. For a rate the ratio of tablets to shared regions is a minimum, for a time a maximum.
GOAL_LOAD_PER_S: Final = 50_000.0
GOAL_LOAD_RATIO: Final = 0.3
GOAL_PUT_RATIO: Final = 1.5
GOAL_GET_RATIO: Final = 2.0
GOAL_CREATE_S: Final = 6.0
GOAL_RESTART_S: Final = 3.0
#: The number of regions for which the two goals above hold.
GOAL_REGIONS: Final = 1_000
GOAL_COPY_MB_PER_S: Final = 200.0
GOAL_HEAL_S: Final = 30.0
GOAL_HEAL_P99_RATIO: Final = 3.0
GOAL_POLICY_CORE: Final = 0.05
#: Of one core, for the server, whatever the number of its quiet tablets.
GOAL_IDLE_CORE: Final = 0.01
GOAL_SPLIT_MS: Final = 100.0
GOAL_OUTAGE_S: Final = {"killed": 0.4, "frozen": 1.5}

T = TypeVar("T")


class Report(msgspec.Struct):
    """All measurements. Each list has one item per round, and per storage if both are measured."""

    store: str
    cores: int
    load: list[Speed] = []
    put: list[Speed] = []
    get: list[Speed] = []
    create: list[Made] = []
    restart: list[Restarted] = []
    outages: list[Outage] = []
    copy: list[Copied] = []
    heal: list[Healed] = []
    policy: list[PolicyCost] = []
    idle: list[Idle] = []
    split: list[Split] = []

    def add(self, other: Report) -> None:
        """Add the rounds of another report."""
        for name in self.__struct_fields__[2:]:
            getattr(self, name).extend(getattr(other, name))


class Row(NamedTuple):
    """One line of the table of goals. `shared` is None if it was not measured. A figure below `least` or above `most`
    misses its goal; `ratio_least` and `ratio_most` are goals for the ratio tablets / shared."""

    what: str
    unit: str
    tablet: float
    shared: float | None = None
    least: float | None = None
    most: float | None = None
    ratio_least: float | None = None
    ratio_most: float | None = None

    @property
    def ratio(self) -> float | None:
        """Return the ratio tablets / shared regions."""
        return self.tablet / self.shared if self.shared else None

    def misses(self) -> bool:
        """Return True if a goal is missed."""
        ratio = self.ratio
        return (
            (self.least is not None and self.tablet < self.least)
            or (self.most is not None and self.tablet > self.most)
            or (ratio is not None and self.ratio_least is not None and ratio < self.ratio_least)
            or (ratio is not None and self.ratio_most is not None and ratio > self.ratio_most)
        )

    def goal(self) -> str:
        """Return the goals in words."""
        parts = [
            f"≥ {_figure(self.least)} {self.unit}" if self.least is not None else "",
            f"≤ {_figure(self.most)} {self.unit}" if self.most is not None else "",
            f"ratio ≥ {self.ratio_least:g}" if self.ratio_least is not None else "",
            f"ratio ≤ {self.ratio_most:g}" if self.ratio_most is not None else "",
        ]
        return ", ".join(part for part in parts if part)


def rows(report: Report) -> list[Row]:
    """Return a row for every measured figure."""
    found: list[Row] = []
    if report.load:
        found.append(
            _pair("bulk load, 1,000 rows of 100 B", "rows/s", report.load, lambda one: one.per_s)._replace(
                least=GOAL_LOAD_PER_S, ratio_least=GOAL_LOAD_RATIO
            )
        )
    if report.put:
        p50 = _pair("put, 16 clients, p50", "ms", report.put, lambda one: one.p50_ms)
        found.append(p50._replace(ratio_most=GOAL_PUT_RATIO))
        found.append(_pair("put, 16 clients, p99", "ms", report.put, lambda one: one.p99_ms))
        found.append(_pair("put, 16 clients", "puts/s", report.put, lambda one: one.per_s))
    if report.get:
        p50 = _pair("get, linearizable, one client, p50", "ms", report.get, lambda one: one.p50_ms)
        found.append(p50._replace(ratio_most=GOAL_GET_RATIO))
        found.append(_pair("get, linearizable, one client, p99", "ms", report.get, lambda one: one.p99_ms))
    for regions in sorted({one.regions for one in report.create}):
        same = [one for one in report.create if one.regions == regions]
        row = _pair(f"create {regions:,} x 3, until all have leaders", "s", same, lambda one: one.seconds)
        found.append(row._replace(most=GOAL_CREATE_S if regions == GOAL_REGIONS else None))
    for tablets in sorted({one.tablets for one in report.restart}):
        again = [one for one in report.restart if one.tablets == tablets]
        most = GOAL_RESTART_S if tablets == GOAL_REGIONS else None
        what = f"restart with {tablets:,} tablets"
        found.append(Row(f"{what}: all run", "s", statistics.median(one.running_s for one in again)))
        caught_up = statistics.median(one.caught_up_s for one in again)
        found.append(Row(f"{what}: all caught up", "s", caught_up, most=most))
    for size in sorted({one.row_bytes for one in report.copy}):
        speed = statistics.median(one.mb_per_s for one in report.copy if one.row_bytes == size)
        found.append(Row(f"copy, rows of {size:,} B", "MB/s", speed, least=GOAL_COPY_MB_PER_S))
    found += _outages(report.outages) + _healing(report.heal) + _splits(report.split)
    return found + _idle(report.idle) + _policy(report.policy)


def _idle(found: list[Idle]) -> list[Row]:
    lines: list[Row] = []
    for tablets in sorted({one.tablets for one in found}):
        same = [one for one in found if one.tablets == tablets]
        what = f"server with {tablets:,} quiet tablets"
        cpu = statistics.median(one.cpu for one in same)
        lines.append(Row(f"{what}: CPU", "% of a core", 100 * cpu, most=100 * GOAL_IDLE_CORE))
        memory = statistics.median(one.kb_per_tablet for one in same)
        lines.append(Row(f"{what}: memory of each", "KB", memory))
    return lines


def _outages(outages: list[Outage]) -> list[Row]:
    found: list[Row] = []
    for how, regions in dict.fromkeys((one.how, one.regions) for one in outages):
        same = [one for one in outages if (one.how, one.regions) == (how, regions)]
        what = f"server {how}, {regions} regions, 8 writers: longest gap"
        found.append(_pair(f"{what}, p50", "s", same, lambda one: one.p50_s))
        found.append(_pair(f"{what}, p99", "s", same, lambda one: one.p99_s))
        found.append(_pair(f"{what}, max", "s", same, lambda one: one.max_s)._replace(most=GOAL_OUTAGE_S.get(how)))
    return found


def _healing(heal: list[Healed]) -> list[Row]:
    found: list[Row] = []
    for tablets in sorted({one.tablets for one in heal}):
        same = [one for one in heal if one.tablets == tablets]
        what = f"server dead for good, {tablets:,} tablets of {same[0].bytes_each / 1e6:g} MB"
        healed = statistics.median(one.healed_s for one in same)
        found.append(Row(f"{what}: all HEALTHY after detection", "s", healed, most=GOAL_HEAL_S))
        worse = statistics.median(one.p99_healing_ms / one.p99_before_ms for one in same)
        found.append(Row(f"{what}: p99 of puts meanwhile", "x", worse, most=GOAL_HEAL_P99_RATIO))
        found.append(Row(f"{what}: active master", "core", statistics.median(one.master_healing for one in same)))
    return found


def _splits(found: list[Split]) -> list[Row]:
    lines: list[Row] = []
    for size in sorted({one.bytes for one in found}):
        same = [one for one in found if one.bytes == size]
        what = f"tablet of {size / 1e6:g} MB split, 16 clients"
        longest = statistics.median(one.longest_ms for one in same)
        lines.append(Row(f"{what}: longest put", "ms", longest, most=GOAL_SPLIT_MS))
        gap = statistics.median(one.gap_ms for one in same)
        lines.append(Row(f"{what}: longest time without a put", "ms", gap, most=GOAL_SPLIT_MS))
        before = statistics.median(one.longest_before_ms for one in same)
        lines.append(Row(f"{what}: longest put before", "ms", before))
        lines.append(Row(f"{what}: until both daughters are open", "s", statistics.median(one.split_s for one in same)))
    return lines


def _policy(costs: list[PolicyCost]) -> list[Row]:
    found: list[Row] = []
    for tablets in sorted({one.tablets for one in costs}):
        same = [one for one in costs if one.tablets == tablets]
        what = f"policy, {tablets:,} tablets"
        at_rest = statistics.median(one.at_rest for one in same)
        found.append(Row(f"{what}: at rest", "core", at_rest, most=GOAL_POLICY_CORE))
        healing = statistics.median(one.healing for one in same)
        most = GOAL_POLICY_CORE
        found.append(Row(f"{what}: {same[0].failed:,} with a dead member", "core", healing, most=most))
        found.append(Row(f"{what}: longest call", "ms", statistics.median(one.longest_ms for one in same)))
    return found


def _pair(what: str, unit: str, measured: Sequence[T], value: Callable[[T], float]) -> Row:
    """Return the medians of both storages as a row."""
    by_storage = {
        storage: [value(one) for one in measured if getattr(one, "storage", TABLET) == storage]
        for storage in (SHARED, TABLET)
    }
    shared = statistics.median(by_storage[SHARED]) if by_storage[SHARED] else None
    tablet = statistics.median(by_storage[TABLET]) if by_storage[TABLET] else 0.0
    return Row(what, unit, tablet, shared)


def goals_table(report: Report) -> list[str]:
    """Return the rows as Markdown; ✗ marks a figure that misses its goal."""
    lines = ["| | one copy, shared | tablet x 3 | ratio | goal |", "| --- | --: | --: | --: | --- |"]
    for row in rows(report):
        shared = "" if row.shared is None else f"{_figure(row.shared)} {row.unit}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        cross = " ✗" if row.misses() else ""
        lines.append(f"| {row.what} | {shared} | {_figure(row.tablet)} {row.unit}{cross} | {ratio} | {row.goal()} |")
    return lines


def costs_table(report: Report) -> list[str]:
    """Return the costs: CPU per request by process, entries and bytes per sync of the shared logs."""
    kinds = (("load, 1,000 rows", report.load), ("put", report.put), ("get", report.get))
    lines = [
        "| CPU us per request | clients | servers | masters | store | entries per sync | bytes per sync |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for what, measured in kinds:
        for storage in (SHARED, TABLET):
            same = [one for one in measured if one.storage == storage]
            if same:
                cells = [
                    statistics.median(getattr(one, name) for one in same)
                    for name in ("clients_us", "servers_us", "masters_us", "store_us", "entries_per_sync")
                ]
                size = statistics.median(one.bytes_per_sync for one in same)
                shown = [_figure(one) for one in cells] + [f"{size:,.0f}"]
                lines.append(f"| {what}, {storage} | {' | '.join(shown)} |")
    return lines if len(lines) > 2 else []


def copies_table(report: Report) -> list[str]:
    """Return the costs of copies beside a plain file that is sent over a socket and synced."""
    lines = [
        "| copy of a tablet | MB | MB/s | source, CPU ms per MB | target, CPU ms per MB | plain file | ratio |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for size in sorted({one.row_bytes for one in report.copy}):
        same = [one for one in report.copy if one.row_bytes == size]
        names = ("mb_per_s", "source_ms", "target_ms", "plain_mb_per_s")
        speed, source, target, plain = (statistics.median(getattr(one, name) for one in same) for name in names)
        cells = (same[0].bytes / 1e6, speed, source, target)
        shown = " | ".join(_figure(one) for one in cells)
        lines.append(f"| rows of {size:,} B | {shown} | {_figure(plain)} MB/s | {speed / plain:.2f} |")
    return lines if report.copy else []


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
