"""The lock table (OC-03), as scripts: the requests, and the holders at each moment."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from master.catalog.locks import Lock, LockTable, Rank


class Actors:
    """Operations by name; each holds its locks until the script ends the operation."""

    def __init__(self) -> None:
        self.table = LockTable()
        self.inside: list[str] = []
        self.failed: dict[str, Exception] = {}
        self._ends: dict[str, Deferred[None]] = {}

    async def _act(self, name: str, locks: list[Lock]) -> None:
        async with self.table.hold(*locks):
            self.inside.append(name)
            await self._ends[name]
            self.inside.remove(name)

    def begin(self, name: str, *locks: Lock) -> None:
        self._ends[name] = Deferred()
        ensureDeferred(self._act(name, list(locks))).addErrback(self._failed, name)

    def _failed(self, failure: Any, name: str) -> None:
        self.failed[name] = failure.value
        if name in self.inside:
            self.inside.remove(name)

    def end(self, name: str) -> None:
        self._ends[name].callback(None)


def lock_of(text: str) -> Lock:
    """`rt`: table t to read; `wt`: to write; upper case is a region."""
    return Lock(Rank.REGION if text[1].isupper() else Rank.TABLE, text[1], text[0] == "w")


@pytest.mark.parametrize(
    "script",
    [
        # +name:locks begins, -name ends; after the colon of each step: who is inside.
        "+a:wt>a +b:wt>a -a>b -b>",
        "+a:rt>a +b:rt>ab -a>b -b>",
        "+a:rt>a +b:wt>a +c:rt>a -a>b -b>c -c>",  # a writer that waits is not overtaken by later readers
        "+a:wt>a +b:rt>a +c:rt>a -a>bc -b>c -c>",
        "+a:wt>a +b:wu>ab -b>a -a>",
        "+a:rt,wA>a +b:rt,wB>ab +c:rt,wA>ab -a>bc -b>c -c>",  # one table, several regions at a time
        "+a:rt,wA>a +b:wt>a +c:rt,wB>a -a>b -b>c -c>",  # an operation on the table waits for those on its regions
    ],
)
def test_locks_are_granted_in_order(script: str) -> None:
    """First come, first served; readers together, writers alone."""
    actors = Actors()
    for step in script.split():
        act, _, inside = step.partition(">")
        name, _, locks = act[1:].partition(":")
        if act[0] == "+":
            actors.begin(name, *map(lock_of, locks.split(",")))
        else:
            actors.end(name)
        assert "".join(sorted(actors.inside)) == inside, step
    assert len(actors.table) == 0, "nothing stays locked"
    assert not actors.failed


@pytest.mark.parametrize("texts", [("wA", "wt"), ("wu", "wt"), ("wt", "wt")])
def test_a_tablets_lock_without_its_tables_lock_is_rejected(texts: tuple[str, str]) -> None:
    """OC-03: with any other order two operations could wait for each other."""
    actors = Actors()
    actors.begin("a", *map(lock_of, texts))
    assert isinstance(actors.failed["a"], AssertionError)
    assert len(actors.table) == 0


def test_the_end_of_the_tenure_ends_every_wait() -> None:
    """KUDU-495: no operation waits forever, and none gets a lock of an ended tenure."""
    actors = Actors()
    actors.begin("a", lock_of("wt"))
    actors.begin("b", lock_of("wt"))
    over = RuntimeError("over")
    actors.table.fail(over)
    assert actors.failed == {"b": over}
    actors.begin("c", lock_of("wu"))
    assert actors.failed["c"] is over
    actors.end("a")
    assert actors.inside == []


def test_a_failed_operation_releases_its_locks() -> None:
    """OC-05: discard, unlock, fail."""
    actors = Actors()
    actors.begin("a", lock_of("wt"), lock_of("wA"))
    actors.begin("b", lock_of("wt"))
    actors._ends["a"].errback(ValueError("refused"))
    assert actors.inside == ["b"]
    assert isinstance(actors.failed["a"], ValueError)


def test_locks_taken_before_a_failed_wait_are_released() -> None:
    """What was taken before the wait is given back when the wait ends badly."""
    actors = Actors()
    actors.begin("a", lock_of("wA"))
    actors.begin("b", lock_of("rt"), lock_of("wA"))
    actors.table.fail(RuntimeError("over"))
    assert not actors.table.is_locked(Rank.TABLE, "t")
