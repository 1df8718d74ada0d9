"""What the daemons use: processor, memory, and the turns of their main loops, from outside of the processes."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.assign.heartbeats import run_s
from benchmarks.assign.lab import Daemon

#: Name of a group of daemons -> the daemons.
Roles = Mapping[str, Iterable[Daemon]]
_TURNS: Final = "reactor_turn_seconds_bucket"
_LONG: Final = "reactor_long_turns_total"
_LONGEST: Final = "reactor_longest_turn_seconds"
_LONGEST_WORK: Final = "reactor_longest_turn_processor_seconds"
_SCRAPE_S: Final = 60.0
#: Culprits that are kept of each group, the most frequent first.
CULPRITS_SHOWN: Final = 6


class Turns(msgspec.Struct, frozen=True, omit_defaults=True):
    """Turns of one process since its start, or of a group in some time."""

    #: The longest turn. If an earlier turn was longer, it is known by the upper bound of its bucket alone.
    longest_ms: float = 0.0
    #: Turns of more than 20 ms.
    long: int = 0
    #: The same by the function that ran.
    culprits: dict[str, int] = {}
    #: Number of turns by the upper bound of their duration in seconds.
    buckets: dict[float, int] = {}
    #: The most processor time of a turn over 20 ms; 0 if an earlier turn had as much.
    work_ms: float = 0.0

    def since(self, before: Turns) -> Turns:
        """Return the turns after `before`."""
        longest_ms = self.longest_ms
        grown = {bound: self.buckets[bound] - before.buckets.get(bound, 0) for bound in self.buckets}
        if longest_ms <= before.longest_ms:
            longest_ms = max((bound for bound, count in grown.items() if count), default=0.0) * 1e3
        culprits = {name: count - before.culprits.get(name, 0) for name, count in self.culprits.items()}
        work_ms = self.work_ms if self.work_ms > before.work_ms else 0.0
        named = {name: count for name, count in culprits.items() if count}
        return Turns(longest_ms, self.long - before.long, named, work_ms=work_ms)

    def joined(self, other: Turns) -> Turns:
        """Return the turns of both processes."""
        culprits = dict(self.culprits)
        for name, count in other.culprits.items():
            culprits[name] = culprits.get(name, 0) + count
        most = sorted(culprits, key=lambda name: (-culprits[name], name))[:CULPRITS_SHOWN]
        longest_ms = max(self.longest_ms, other.longest_ms)
        named = {name: culprits[name] for name in most}
        return Turns(longest_ms, self.long + other.long, named, work_ms=max(self.work_ms, other.work_ms))


def longest(turns: Sequence[Turns]) -> str:
    """Return the longest turn in milliseconds, and in parentheses the most processor time of one, if it is known."""
    work_ms = max(one.work_ms for one in turns)
    return f"{max(one.longest_ms for one in turns):,.0f}" + (f" ({work_ms:,.0f})" if work_ms else "")


class Usage(msgspec.Struct, frozen=True):
    """Seconds of processor and turns: of one process since its start, or of a group in some time."""

    cpu_s: float
    turns: Turns


def parse_turns(text: str) -> Turns:
    """Return the turns in the metrics of a daemon."""
    longest_s, work_s, culprits, cumulated = 0.0, 0.0, {}, {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name.endswith(_TURNS):
                cumulated[float(one.labels["le"])] = int(one.value)
            elif one.name.endswith(_LONG):
                culprits[one.labels["culprit"]] = int(one.value)
            elif one.name.endswith(_LONGEST):
                longest_s = one.value
            elif one.name.endswith(_LONGEST_WORK):
                work_s = one.value
    buckets, below = {}, 0
    for bound in sorted(cumulated):
        buckets[bound] = cumulated[bound] - below
        below = cumulated[bound]
    return Turns(longest_s * 1e3, sum(culprits.values()), culprits, buckets, work_s * 1e3)


def used(daemon: Daemon) -> Usage:
    """Return what a process has used so far; its turns only if it has admin pages."""
    host, port = daemon.admin
    turns = Turns()
    if port:
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=_SCRAPE_S) as reply:
            turns = parse_turns(reply.read().decode())
    return Usage(run_s(daemon.pid), turns)


class Watch:
    """What groups of daemons use from now on. Daemons that end meanwhile are left out."""

    def __init__(self, roles: Roles) -> None:
        self._roles = {role: [one for one in daemons if one.is_running] for role, daemons in roles.items()}
        self._before = {one.name: (one.pid, used(one)) for daemons in self._roles.values() for one in daemons}

    def read(self) -> dict[str, Usage]:
        """Return what each group has used so far."""
        return {role: self._group(daemons) for role, daemons in self._roles.items()}

    def _group(self, daemons: Iterable[Daemon]) -> Usage:
        cpu_s, turns = 0.0, Turns()
        for one in daemons:
            pid, before = self._before[one.name]
            if one.is_running and one.pid == pid:
                now = used(one)
                cpu_s += now.cpu_s - before.cpu_s
                turns = turns.joined(now.turns.since(before.turns))
        return Usage(cpu_s, turns)
