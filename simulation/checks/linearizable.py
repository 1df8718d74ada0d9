"""Linearizability of one key's history: reads, writes and compare-and-sets of several clients. Pure.

A history is linearizable if each operation can be assigned one moment between its invocation and its answer, so that
the operations, carried out one after the other at these moments, give the clients' answers. An operation without an
answer may have happened at any moment after its invocation, or never.

The search is that of Wing and Gong: try each operation that may come next. A configuration (the set of completed
operations, and the value) is tried only once (Lowe). Two shortcuts keep it small. A read, or a refused compare-and-set,
that agrees with the present value comes next without an alternative, because it changes nothing. And each key is
searched separately, because linearizability is local (Herlihy and Wing).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

#: Configurations that the search tries before it gives up. A history of some hundred operations by a handful of clients
#: needs a few per operation.
CONFIGURATIONS_MAX: Final = 200_000


class Access(enum.Enum):
    """Effect of an operation on a key. The value None stands for no row."""

    READ = enum.auto()  #: `value` is the answer to the client
    WRITE = enum.auto()  #: `value` is stored; None deletes the row
    CAS = enum.auto()  #: `value` is stored if the row was `expected`; `succeeded` is the answer to the client


@dataclass(frozen=True, slots=True)
class KeyOperation:
    """One operation on one key, as its client saw it. Times are of one clock, in any unit."""

    client: str
    access: Access
    invoked: int
    #: None without an answer; then it is unknown whether the operation happened.
    answered: int | None
    value: bytes | None = None
    expected: bytes | None = None
    #: Of a CAS with an answer.
    succeeded: bool = True

    def __str__(self) -> str:
        end = "?" if self.answered is None else str(self.answered)
        what = {
            Access.READ: f"read {self.value!r}",
            Access.WRITE: f"wrote {self.value!r}",
            Access.CAS: f"{'set' if self.succeeded else 'could not set'} {self.expected!r} to {self.value!r}",
        }[self.access]
        return f"[{self.invoked}, {end}] {self.client} {what}"


class TooHard(Exception):  # noqa: N818 - it is not an error of the history
    """The search gave up: the history has too much concurrency to decide."""


def objection(operations: Iterable[KeyOperation], first: bytes | None = None) -> str:
    """Return why the history of one key is not linearizable, "" if it is. `first`: the value before all operations.

    Raise TooHard.
    """
    operations = list(operations)
    known = sorted((each for each in operations if each.answered is not None), key=lambda each: each.invoked)
    # A read without an answer gives no information, and a compare-and-set without an answer matters only if it
    # succeeded.
    open_ones = [
        replace(each, succeeded=True) for each in operations if each.answered is None and each.access is not Access.READ
    ]
    return _Search(known, open_ones).run(first)


@dataclass(frozen=True, slots=True)
class _Configuration:
    """The completed operations (all of `known` below `start`, those in `later`, the unanswered ones in `opened`), and
    the resulting value."""

    start: int
    later: frozenset[int]
    opened: frozenset[int]
    value: bytes | None


class _Search:
    def __init__(self, known: list[KeyOperation], open_ones: list[KeyOperation]) -> None:
        self.known = known
        self.open_ones = open_ones
        self.tried: set[_Configuration] = set()
        self.furthest = _Configuration(0, frozenset(), frozenset(), None)

    def run(self, first: bytes | None) -> str:
        waiting = [_Configuration(0, frozenset(), frozenset(), first)]
        while waiting:
            present = waiting.pop()
            if present in self.tried:
                continue
            if len(self.tried) >= CONFIGURATIONS_MAX:
                raise TooHard(f"more than {CONFIGURATIONS_MAX} configurations of {len(self.known)} operations")
            self.tried.add(present)
            if present.start == len(self.known):
                return ""
            if self._size(present) >= self._size(self.furthest):
                self.furthest = present
            waiting += self._next(present)
        return self._describe()

    @staticmethod
    def _size(configuration: _Configuration) -> int:
        return configuration.start + len(configuration.later)

    def _candidates(self, present: _Configuration) -> list[int]:
        """Return the operations of `known` that may come next: those invoked before the first answer of the others that
        remain."""
        candidates: list[int] = []
        earliest = -1
        for position in range(present.start, len(self.known)):
            if position in present.later:
                continue
            each = self.known[position]
            if 0 <= earliest < each.invoked:
                break
            candidates.append(position)
            assert each.answered is not None
            earliest = each.answered if earliest < 0 else min(earliest, each.answered)
        return [position for position in candidates if self.known[position].invoked <= earliest]

    def _next(self, present: _Configuration) -> list[_Configuration]:
        candidates = self._candidates(present)
        for position in candidates:
            if _changes_nothing(self.known[position], present.value):
                return [self._after(present, position, present.value)]
        following = [
            self._after(present, position, self.known[position].value)
            for position in candidates
            if _may_change(self.known[position], present.value)
        ]
        latest = min((self.known[position].answered or 0 for position in candidates), default=0)
        for position, each in enumerate(self.open_ones):
            if position not in present.opened and each.invoked <= latest and _may_change(each, present.value):
                opened = present.opened | {position}
                following.append(_Configuration(present.start, present.later, opened, each.value))
        return following

    def _after(self, present: _Configuration, position: int, value: bytes | None) -> _Configuration:
        start = present.start
        later = present.later | {position}
        while start in later:
            later = later - {start}
            start += 1
        return _Configuration(start, later, present.opened, value)

    def _describe(self) -> str:
        stuck = self.furthest
        lines = [
            f"not linearizable: {self._size(stuck)} of {len(self.known)} answered operations have an order, after which"
            f" the value is {stuck.value!r}; none of these can come next:"
        ]
        lines += [f"  {self.known[position]}" for position in self._candidates(stuck)]
        lines.append("the last ones before:")
        lines += [f"  {each}" for each in self.known[max(0, stuck.start - 5) : stuck.start]]
        return "\n".join(lines)


def _changes_nothing(each: KeyOperation, value: bytes | None) -> bool:
    """Return True if the operation agrees with `value` and leaves the value as it is."""
    if each.access is Access.READ:
        return each.value == value
    return each.access is Access.CAS and not each.succeeded and each.expected != value


def _may_change(each: KeyOperation, value: bytes | None) -> bool:
    """Return True if the operation can happen at `value` and stores its own."""
    if each.access is Access.WRITE:
        return True
    return each.access is Access.CAS and each.succeeded and each.expected == value
