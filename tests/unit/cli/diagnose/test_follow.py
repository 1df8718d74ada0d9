"""A follower whose connection breaks: nothing hangs, nothing is invented, every failure is reported."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogLevel, globalLogPublisher

from cli.common.names import Names
from cli.diagnose.follow import RETRY_S, Follower
from coord.client.session import SessionState
from coord.wire.records import EVENT_CREATED, EVENT_DELETED
from regions.records.model import Incarnation, RegionRecord, RegionState, ServerRecord, TableRecord, TransitionRecord
from regions.records.znodes import encode
from regions.transitions.observed import NONE, Change
from tests.unit.master.active_fixture import LossyStore

CLOSING = TransitionRecord("t.0", "t", 0, RegionState.CLOSING, source=Incarnation("s1", 7), epoch=1)


class AnyStore(LossyStore):
    """Accepts watches of every kind, and connects when asked to."""

    def add_watch(self, path: str, callback: Any, *, recursive: bool) -> Any:
        return super().add_watch(path, callback, recursive=True)

    def connect(self) -> Deferred[None]:
        self.state = SessionState.CONNECTED
        return self._later(lambda: None)


class Followed:
    """A cluster with two servers, one table of one region, and a follower that has begun."""

    def __init__(self) -> None:
        self.clock = MemoryReactorClock()
        self.follower = Follower(self.clock, "x:1", "/rk")
        self.store = AnyStore()
        self.follower.client = self.store  # type: ignore[assignment]
        layout = self.layout = self.follower.layout
        for path in ("/rk", *layout.parents()):
            self.store.put(path)
        for number in (1, 2):
            self.store.put(layout.server(f"s{number}"), encode(ServerRecord(f"s{number}", "h", number, 7)))
        self.store.put(layout.table("t"), encode(TableRecord("t", "orders")))
        self.store.put(layout.table_regions("t"))
        self.store.put(layout.region("t", "t.0"), encode(RegionRecord("t", "t.0", "a", "b")))
        self.changes: list[Change] = []
        self.follower.on_change = self.changes.append
        self.run(self.follower.start())

    def run(self, work: Any) -> list[Any]:
        """Begin the work and let the store answer. Return the results, if the work has ended."""
        results: list[Any] = []
        ensureDeferred(work).addBoth(results.append)
        self.store.answer()
        return results

    def begin(self) -> None:
        """Create a transition and deliver its event."""
        path = self.layout.transition("t.0", 0)
        self.store.put(path, encode(CLOSING))
        self.follower._transition_event(EVENT_CREATED, path, 0)


@pytest.fixture
def complaints() -> Any:
    """Return everything logged as an error meanwhile, also unhandled failures of Deferreds."""
    found: list[Any] = []

    def observer(event: Any) -> None:
        if event.get("log_level") in (LogLevel.error, LogLevel.critical):
            found.append(event)

    globalLogPublisher.addObserver(observer)
    yield found
    globalLogPublisher.removeObserver(observer)


@pytest.mark.parametrize("answered", range(4))
def test_a_line_whose_reads_are_cut_off_is_told_without_what_was_to_be_read(
    answered: int, complaints: list[Any]
) -> None:
    """A store node dies while the region of a change is read: the line is printed without the region, the next one is
    complete."""
    followed = Followed()
    followed.begin()
    followed.store.answer(answered)
    followed.store.cut()
    followed.store.mend()
    followed.store.answer()
    assert [change.after for change in followed.changes] == ["CLOSING"], "read again after the gap, and told once"
    for _ in range(2):
        [line] = followed.run(followed.follower.line(followed.changes[0], Names([], None)))
        assert (line.region, line.after) == ("t.0", "CLOSING")
    assert (line.table, line.start_key, line.end_key) == ("orders", "a", "b")
    gc.collect()
    assert complaints == []


def test_servers_are_not_down_because_they_could_not_be_read(complaints: list[Any]) -> None:
    """Two reads fail at once: no server counts as dead, and both failures are handled."""
    followed = Followed()
    assert sorted(followed.follower.servers) == ["s1", "s2"]
    followed.follower._servers_event(EVENT_CREATED, followed.layout.server("s2"), 0)
    followed.store.answer(1)
    followed.store.cut()
    gc.collect()
    assert sorted(followed.follower.servers) == ["s1", "s2"]
    assert (followed.follower.memberships, complaints) == ([], [])


def test_what_makes_no_sense_hides_nothing_else() -> None:
    """Invalid data is in the znodes of a server and a transition; the rest is followed."""
    followed = Followed()
    followed.store.put(followed.layout.server("s1"), b"{")
    followed.store.put(followed.layout.transition("t.1", 0), b"?")
    again = Follower(followed.clock, "x:1", "/rk")
    again.client = followed.store  # type: ignore[assignment]
    assert followed.run(again.start()) == [None]
    assert list(again.servers) == ["s2"]


def test_a_session_that_ends_while_another_is_begun_is_begun_again() -> None:
    """Otherwise the follower would miss all later changes: `rk watch` shows nothing, a drill waits forever."""
    followed = Followed()
    store = followed.store
    store.persistent.clear()
    store.become(SessionState.EXPIRED)
    store.answer(3)
    store.cut()
    store.become(SessionState.CONNECTED)
    store.answer()
    assert followed.layout.servers not in [path for path, _ in store.persistent]
    followed.clock.advance(RETRY_S)
    store.answer()
    assert followed.layout.servers in [path for path, _ in store.persistent]
    followed.begin()
    store.answer()
    followed.follower._transition_event(EVENT_DELETED, followed.layout.transition("t.0", 0), 0)
    assert [change.after for change in followed.changes] == ["CLOSING", NONE]


def test_versions_of_an_ended_session_are_forgotten() -> None:
    """The replica's transition ended unseen between two sessions and began anew: its steps are counted from the new
    one."""
    followed = Followed()
    store, path = followed.store, followed.layout.transition("t.0", 0)
    store.put(path, encode(CLOSING), version=5)
    followed.follower._transition_event(EVENT_CREATED, path, 0)
    store.answer()
    assert followed.follower._versions == {"t.0-0": 5}
    store.persistent.clear()
    store.become(SessionState.EXPIRED)
    store.put(path, encode(CLOSING), version=0)
    store.answer()
    assert followed.follower._versions == {"t.0-0": 0}
