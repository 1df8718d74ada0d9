"""The tables and curves of a million regions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.assign.million.measures import Turns, Usage, longest
from benchmarks.assign.million.phases import Million, Phase
from cli.html.curves import Drawing, Series, curves

ROLES: Final = ("active", "standby", "store", "servers")
_NONE: Final = Usage(0.0, Turns())
#: Phases whose processor is shown as a part of a core, instead of per region.
_IDLE: Final = ("rest",)


def phases_table(rounds: Sequence[Million]) -> list[str]:
    """Return a line for each size and phase: medians of seconds and processor, the longest turns of all rounds."""
    if not rounds:
        return []
    heads = ["regions", "phase", "s", *(f"{role}: us" for role in ROLES), *(f"{role}: longest ms" for role in ROLES)]
    lines = [f"| {' | '.join(heads)} |", f"| --: | --- | {' | '.join(['--:'] * (len(heads) - 2))} |"]
    for size, name, same in _phases(rounds):
        cells = [f"{size:,}", name, f"{statistics.median(one.seconds for one in same):.2f}"]
        cells += [_processor(same, role) for role in ROLES]
        cells += [longest([one.usage.get(role, _NONE).turns for one in same]) for role in ROLES]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _phases(rounds: Sequence[Million]) -> list[tuple[int, str, list[Phase]]]:
    """Return the phases by size and name, in their order."""
    found: dict[tuple[int, str], list[Phase]] = {}
    for one in sorted(rounds, key=lambda one: one.regions):
        for phase in one.phases:
            found.setdefault((one.regions, phase.name), []).append(phase)
    return [(size, name, same) for (size, name), same in found.items()]


def _processor(same: Sequence[Phase], role: str) -> str:
    cpu_s = statistics.median(one.usage.get(role, _NONE).cpu_s for one in same)
    first = same[0]
    if first.name in _IDLE:
        return f"{cpu_s / first.seconds:.1%} of a core"
    return f"{cpu_s / first.regions * 1e6:,.0f}" if first.regions else f"{cpu_s:.1f} s"


def sizes_table(rounds: Sequence[Million]) -> list[str]:
    """Return a line for each size: memory, the parts of the assignment, the failovers, the balancer."""
    if not rounds:
        return []
    columns: list[tuple[str, int, Callable[[Million], float]]] = [
        ("servers", 0, lambda one: one.servers),
        ("bytes per region: store node", 0, lambda one: one.memory.store),
        ("active master", 0, lambda one: one.memory.active),
        ("mirror", 0, lambda one: one.memory.mirror),
        ("servers", 0, lambda one: one.memory.servers),
        ("OFFLINE s", 2, lambda one: one.offline_s),
        ("rest of open s", 2, lambda one: one.open_s),
        ("warm: found", 0, lambda one: one.warm.found),
        ("serving s", 2, lambda one: one.warm.serving_s),
        ("all open s", 2, lambda one: one.warm.settled_s),
        ("cold: found", 0, lambda one: one.cold.found),
        ("serving s", 2, lambda one: one.cold.serving_s),
        ("load s", 2, lambda one: one.cold.load_s),
        ("all open s", 2, lambda one: one.cold.settled_s),
        ("moves", 0, lambda one: one.moves),
        ("rounds", 0, lambda one: one.rounds),
    ]
    lines = [f"| regions | {' | '.join(head for head, _, _ in columns)} | engine |"]
    lines.append(f"| --: | {' | '.join(['--:'] * len(columns))} | --- |")
    for size in _sizes(rounds):
        same = [one for one in rounds if one.regions == size]
        cells = [f"{statistics.median(map(value, same)):,.{digits}f}" for _, digits, value in columns]
        lines.append(f"| {size:,} | {' | '.join(cells)} | {same[0].engine} |")
    return lines


def culprits(rounds: Sequence[Million]) -> list[str]:
    """Return a line for each phase with long turns: which functions ran, and how often."""
    lines = []
    for size, name, same in _phases(rounds):
        for role in ROLES[:3]:
            turns = [one.usage.get(role, _NONE).turns for one in same]
            worst = max(turns, key=lambda one: one.long)
            if worst.long:
                named = ", ".join(f"`{culprit}` {count}" for culprit, count in worst.culprits.items())
                lines.append(f"- {size:,} regions, {name}, {role}: {worst.long} turns over 20 ms in {named}")
    return lines


def drawings(rounds: Sequence[Million]) -> list[Drawing]:
    """Return the curves over the number of regions; none for one size."""
    sizes = _sizes(rounds)
    if len(sizes) < 2:
        return []

    def medians(value: Callable[[Million], float]) -> tuple[tuple[float, float], ...]:
        return tuple((size, statistics.median(value(one) for one in rounds if one.regions == size)) for size in sizes)

    def seconds(name: str) -> tuple[tuple[float, float], ...]:
        return medians(lambda one: sum(phase.seconds for phase in one.phases if phase.name == name))

    def processor(role: str) -> tuple[tuple[float, float], ...]:
        return medians(
            lambda one: sum(
                phase.usage.get(role, _NONE).cpu_s / phase.regions * 1e6
                for phase in one.phases
                if phase.name == "assign"
            )
        )

    found = (
        ("plan and assignment", "s", [Series(name, seconds(name)) for name in ("load", "mirror", "plan", "assign")]),
        ("a server dies, a tenth is switched", "s", [Series(n, seconds(n)) for n in ("death", "disable", "enable")]),
        ("processor of the assignment, per region", "us", [Series(role, processor(role)) for role in ROLES]),
        ("failover, 1 % in transition", "s", [Series(name, seconds(name)) for name in ("warm", "cold")]),
        (
            "memory per region",
            "B",
            [
                Series("store node", medians(lambda one: one.memory.store)),
                Series("active master", medians(lambda one: one.memory.active)),
                Series("mirror", medians(lambda one: one.memory.mirror)),
            ],
        ),
    )
    return [curves(title, unit, tuple(series)) for title, unit, series in found]


def _sizes(rounds: Sequence[Million]) -> list[int]:
    return sorted({one.regions for one in rounds})
