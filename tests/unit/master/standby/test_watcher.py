"""A standby's mirror: read in batches, current when handed over, and never older than it claims (FW-01, MF-11)."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from coord.client.session import EVENT_GAP, SessionState
from coord.client.watches import KIND_RECEIVER, Event, WatchBook
from coord.errors import ConnectionLoss, QuotaExceeded
from coord.wire.codec import encode_event_frame
from coord.wire.records import EVENT_DATA_CHANGED, EVENT_DELETED, Stat
from master.standby import watcher as module
from master.standby.watcher import StoreWatcher
from regions.messages.staleness import AsOf, Bound
from regions.records.model import (
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)
from regions.records.znodes import Layout, encode
from tests.unit.master.fake_store import WatchedStore

LAYOUT = Layout("/rk")
REGION = LAYOUT.region("t", "t.0")


class Heard:
    """Stands for the auditor: records what it receives."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str]] = []
        self.read: list[str] = []
        self.gaps = 0

    def transition_events(self, events: list[Event]) -> None:
        self.events += [(event_type, path) for event_type, path, _ in events]

    def transition_read(self, path: str, data: bytes, stat: Stat) -> None:
        self.read.append(path)

    def gap(self) -> None:
        self.gaps += 1


class Bench:
    """One watcher of a standby, over a store with one table; the test controls the time."""

    def __init__(self) -> None:
        store = self.store = WatchedStore()
        for path in ("/rk", *LAYOUT.parents()):
            store.put(path)
        store.put(LAYOUT.server("s1"), encode(ServerRecord("s1", "h", 2, 7)))
        store.put(LAYOUT.table("t"), encode(TableRecord("t", "orders")))
        store.put(LAYOUT.table_regions("t"))
        store.put(REGION, encode(RegionRecord("t", "t.0")))
        self.clock = Clock()
        self.heard = Heard()
        client: Any = store
        self.watcher = StoreWatcher(self.clock, client, LAYOUT, lambda: int(self.clock.seconds() * 1000), self.heard)
        self.watcher.start()
        self.watcher.follow()

    def go_on(self, seconds: float = 0.0) -> None:
        """Let time pass, and let the store answer all requests."""
        for _ in range(max(1, round(seconds / 0.05))):
            self.clock.advance(0.05 if seconds else 0)
            for _ in range(4):
                self.store.answer()
                self.clock.advance(0)

    def next_session(self) -> None:
        """Let the session expire with its watches, and connect the client with another one."""
        store = self.store
        store.become(SessionState.SUSPENDED)
        for deferred, _ in [store.waiting.popleft() for _ in range(len(store.waiting))]:
            deferred.errback(ConnectionLoss(""))
        store.persistent.clear()
        store.become(SessionState.EXPIRED)
        store.become(SessionState.SUSPENDED)
        store.session_id += 1
        store.become(SessionState.CONNECTED)

    def opened(self) -> None:
        """End an open as a server does: both records in one write."""
        location = ReplicaLocation(0, "s1", 7, 1)
        self.store.change(REGION, encode(RegionRecord("t", "t.0", replicas=(location,))))

    def home(self) -> object:
        mirror = self.watcher.mirror
        assert mirror is not None
        return mirror.world.replicas["t.0-0"].home


@pytest.fixture
def bench() -> Bench:
    found = Bench()
    found.go_on(1.0)
    assert found.watcher.mirror is not None
    assert found.watcher.mirror.is_complete
    return found


def result_of(waiting: Any) -> Any:
    """Return the result of a coroutine; None if it waits."""
    results: list[Any] = []
    ensureDeferred(waiting).addBoth(results.append)
    return results


def test_a_standby_reads_everything_once_and_then_only_changes(bench: Bench) -> None:
    """FW-01: a hundred changes of one znode are one read; without changes the store gets no request."""
    before = bench.store.asked["multi_read"]
    bench.go_on(5.0)
    assert bench.store.asked["multi_read"] == before
    for _ in range(100):
        bench.opened()
    bench.go_on(0.5)
    assert bench.store.asked["multi_read"] == before + 1
    assert str(bench.home()) == "s1@7"


# Fails if `unread` looks at the transitions alone.
def test_a_change_is_unread_from_its_event_to_the_reply(bench: Bench) -> None:
    """The auditor does not compare such a znode: the mirror may be behind for minutes."""
    other = LAYOUT.region("t", "t.1")
    assert bench.watcher.unread([REGION, other]) == set()
    bench.opened()
    assert bench.watcher.unread([REGION, other]) == {REGION}
    bench.go_on(0.5)
    assert bench.watcher.unread([REGION, other]) == set()


def test_a_handover_waits_for_pending_reads(bench: Bench) -> None:
    """MF-11: the event of a change is not the change itself."""
    bench.opened()
    results = result_of(bench.watcher.hand_over())
    assert results == [], "it has not been read yet"
    bench.go_on()
    [warm] = results
    assert str(warm.world.replicas["t.0-0"].home) == "s1@7"
    assert bench.watcher.mirror is None
    watched = [path for path, _ in bench.store.persistent]
    assert watched == [LAYOUT.unassigned], "an active master keeps no mirror"


def test_changes_during_the_handover_are_listed(bench: Bench) -> None:
    """The new active master reads them again; waiting for them might never end."""
    bench.opened()
    results = result_of(bench.watcher.hand_over())
    bench.opened()
    bench.go_on()
    [warm] = results
    assert warm.regions in ([], [REGION])
    assert str(warm.world.replicas["t.0-0"].home) == "s1@7"


def test_a_cold_mirror_is_not_handed_over() -> None:
    """The new active master then loads the store."""
    bench = Bench()
    results = result_of(bench.watcher.hand_over())
    assert results == [None]


def test_a_gap_during_a_handover_cancels_it(bench: Bench) -> None:
    """A master must not decide from a state that may lack changes."""
    bench.opened()
    results = result_of(bench.watcher.hand_over())
    bench.watcher._events([(EVENT_GAP, LAYOUT.unassigned, 0)])
    assert isinstance(results[0], Failure)
    assert isinstance(results[0].value, ConnectionLoss)


def test_a_mirror_is_complete_when_its_last_unread_transition_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to read then, and without changes no other event or reply follows.

    Edit that makes this fail: `_see` does not call `finish_batch`.
    """
    monkeypatch.setattr(module, "READS_MAX", 1)
    monkeypatch.setattr(module, "READ_PAUSE_S", 100.0)
    bench = Bench()
    paths = [LAYOUT.transition("t.0", number) for number in (0, 1)]
    bench.store.put(paths[0].rpartition("/")[0])
    for number, path in enumerate(paths):
        bench.store.put(path, encode(TransitionRecord("t.0", "t", number, RegionState.OFFLINE)))
    bench.go_on(1.0)
    mirror = bench.watcher.mirror
    assert mirror is not None
    assert mirror._missing == {paths[1]}
    bench.store.drop(paths[1])
    assert mirror.is_complete


def test_changes_of_transitions_and_regions_come_together(bench: Bench) -> None:
    """Each opening changes a transition and a region: two receivers would get every event by itself.

    Edit that makes this fail: another receiver for the records.
    """
    book = WatchBook()
    for path, receiver in bench.store.persistent:
        book.add(KIND_RECEIVER, path.encode(), receiver.receiver)  # type: ignore[attr-defined]
    transition = LAYOUT.transition("t.0", 0)
    paths = [transition, REGION, transition, REGION]
    block, frames = b"", []
    for path in paths:
        frame = encode_event_frame(EVENT_DATA_CHANGED, 3, path.encode(), 7)
        block += frame
        frames.append((len(block) - len(frame) + 4, len(block)))
    fired = book.take(block, frames, 0, 0)
    assert [path for _, path, _ in fired.events] == paths
    [receiver] = fired.callbacks
    receiver(fired.events)
    assert bench.heard.events == [(EVENT_DATA_CHANGED, transition)] * 2
    assert bench.watcher.unread([transition, REGION]) == {transition, REGION}


def test_a_handover_has_all_events_of_one_call(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a transition ended the wait, and the change of a region behind it was in no list.

    Edit that makes this fail: `_transition_events` calls `_progress`.
    """
    monkeypatch.setattr(module, "URGENT_MAX", 0)  # no read is sent before the events
    transition = LAYOUT.transition("t.0", 0)
    bench.store.change(transition, encode(TransitionRecord("t.0", "t", 0, RegionState.OFFLINE)))
    results = result_of(bench.watcher.hand_over())
    assert results == []
    bench.watcher._events([(EVENT_DELETED, transition, 7), (EVENT_DATA_CHANGED, REGION, 7)])
    [warm] = results
    assert warm.regions == [REGION]


def test_an_exception_in_an_event_ends_the_use_of_the_mirror(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session only logged it, and the mirror was handed over without the other events of that call."""
    bench.go_on(2.0)
    with monkeypatch.context() as broken:
        broken.setattr(bench.heard, "transition_events", lambda _: 1 // 0)
        bench.watcher._events([(EVENT_DATA_CHANGED, LAYOUT.transition("t.0", 0), 7)])
    bench.opened()
    bench.go_on(1.0)
    mirror = bench.watcher.mirror
    assert mirror is not None
    assert not mirror.is_complete
    assert bench.watcher.as_of(0) is None
    bench.go_on(module.BEGIN_AGAIN_S + 1)
    assert bench.watcher.mirror is not None
    assert bench.watcher.mirror.is_complete
    assert str(bench.home()) == "s1@7"


def test_a_pause_follows_each_reply_of_a_mirror_that_loads() -> None:
    """The lists of directories add paths to read. These wait for the pause as well: a busy store is spared.

    Edit that makes this fail: `_answered` removes the batch before `_put`.
    """
    bench = Bench()
    bench.clock.advance(0)
    bench.store.answer()
    bench.clock.advance(0)
    reads = bench.store.asked["multi_read"]
    assert reads == 1
    bench.store.answer()
    bench.clock.advance(0)
    assert bench.store.asked["multi_read"] == reads
    bench.clock.advance(module.LOADING_PAUSE_S)
    assert bench.store.asked["multi_read"] == reads + 1


def test_a_gap_makes_the_standby_read_everything_again(bench: Bench) -> None:
    """Until it has read everything, the standby is not warm and cannot prove the age of its mirror."""
    bench.go_on(2.0)
    assert bench.watcher.as_of(0) is not None
    del bench.store.nodes[REGION]
    for path, receiver in bench.store.persistent:  # each watch reports the gap
        receiver(EVENT_GAP, path, 0)
    assert bench.heard.gaps == 1
    assert bench.watcher.as_of(0) is None
    mirror = bench.watcher.mirror
    assert mirror is not None
    assert not mirror.is_complete
    bench.go_on(1.0)
    assert mirror.is_complete
    assert not mirror.world.regions


def test_missing_watches_are_set_when_the_connection_returns() -> None:
    """If the connection breaks too early, no gap is reported."""
    bench = Bench()
    waiting = list(bench.store.waiting)
    bench.store.waiting.clear()
    bench.store.persistent.clear()
    bench.store.become(SessionState.SUSPENDED)
    for deferred, _ in waiting:
        deferred.errback(ConnectionLoss(""))
    bench.store.become(SessionState.CONNECTED)
    bench.go_on(1.0)
    assert bench.watcher.mirror is not None
    assert bench.watcher.mirror.is_complete
    assert len(bench.store.persistent) == 7
    assert bench.heard.gaps == 1, "the client tells of no gap of watches that it never had"


def test_a_rejected_watch_is_set_again() -> None:
    """A rejection is not a lost connection: no change of the session's state triggers another attempt."""
    bench = Bench()
    bench.store.waiting.popleft()[0].errback(QuotaExceeded("/rk"))
    bench.store.waiting.popleft()[0].errback(QuotaExceeded("/rk"))
    bench.go_on(module.BEGIN_AGAIN_S + 1)
    assert bench.watcher.mirror is not None
    assert bench.watcher.mirror.is_complete
    assert bench.heard.gaps == 1


def test_the_auditor_gets_all_transitions_in_every_role(bench: Bench) -> None:
    """N5: each event and the read that follows it, also without a mirror."""
    path = LAYOUT.transition("t.0", 0)
    record = encode(TransitionRecord("t.0", "t", 0, RegionState.OFFLINE))
    bench.store.change(path, record)
    bench.go_on(0.2)
    ensureDeferred(bench.watcher.hand_over())
    bench.go_on(0.2)
    bench.store.change(path, record)
    bench.go_on(0.2)
    bench.store.drop(path)
    assert bench.heard.events == [(1, path), (3, path), (2, path)]
    assert bench.heard.read == [path, path]


# --- age ---


def test_an_age_counts_from_the_time_the_sync_was_sent(bench: Bench) -> None:
    """FW-01: a commit between the sending and the reply may be missing."""
    bench.go_on(2.0)
    now = int(bench.clock.seconds() * 1000)
    results = result_of(bench.watcher.prove(Bound(max_ms=0), now))
    bench.clock.advance(0.3)
    bench.store.answer()
    bench.clock.advance(0)
    bench.store.answer()
    assert results == [AsOf(0, bench.store.last_zxid, "standby")]
    assert bench.watcher.as_of(now + 300) == AsOf(300, bench.store.last_zxid, "standby")


def test_an_age_is_proved_only_after_pending_reads(bench: Bench) -> None:
    """FW-01: the reply to sync proves that every event has arrived, not that its znode has been read."""
    bench.go_on(2.0)
    bench.clock.advance(0)
    results = result_of(bench.watcher.prove(Bound(max_ms=0), int(bench.clock.seconds() * 1000)))
    bench.opened()
    bench.store.answer(1)
    assert results == []
    bench.go_on()
    assert len(results) == 1
    assert str(bench.home()) == "s1@7"


def test_a_zxid_of_another_store_is_not_proved(bench: Bench) -> None:
    """Asking again would not help."""
    results = result_of(bench.watcher.prove(Bound(min_zxid=1 << 40), 0))
    bench.go_on(1.0)
    assert results == [None]
    assert bench.store.asked["sync"] <= 5


def test_a_recent_proof_is_used_again(bench: Bench) -> None:
    """The store gets one sync a second, however many callers there are."""
    bench.go_on(2.0)
    asked = bench.store.asked["sync"]
    now = int(bench.clock.seconds() * 1000)
    for _ in range(100):
        assert isinstance(result_of(bench.watcher.prove(Bound(max_ms=1_100), now))[0], AsOf)
    assert bench.store.asked["sync"] == asked
    bench.go_on(10.0)
    assert bench.store.asked["sync"] - asked <= 10 / module.PROVE_S + 1


def test_a_disconnected_standby_proves_nothing_new(bench: Bench) -> None:
    """It reports how old its mirror is, or rejects the read."""
    bench.go_on(2.0)
    bench.store.state = SessionState.SUSPENDED
    bench.clock.advance(60)
    now = int(bench.clock.seconds() * 1000)
    assert result_of(bench.watcher.prove(Bound(max_ms=1_000), now)) == [None]
    [as_of] = result_of(bench.watcher.prove(Bound(max_ms=100_000), now))
    assert as_of.stale_ms >= 60_000


def test_a_mirror_of_an_ended_session_is_not_proved_by_the_next_one(bench: Bench) -> None:
    """FW-01: the reply to `sync` in another session does not cover changes that no watch has reported."""
    bench.go_on(2.0)
    known_ms = bench.watcher.proven_ms
    bench.next_session()
    bench.opened()
    bench.go_on(3.0)
    now = int(bench.clock.seconds() * 1000)
    results = result_of(bench.watcher.prove(Bound(max_ms=1_000), now))
    bench.go_on(1.0)
    assert results == [None]
    assert bench.watcher.as_of(now) == AsOf(now - known_ms, 0, "standby")
    assert bench.store.persistent == [], "watches of this session are the next watcher's business"


def test_a_waiting_proof_fails_when_the_session_ends(bench: Bench) -> None:
    """The reply to `sync` has arrived; the read after it is lost with the session, and no gap will be reported."""
    bench.go_on(2.0)
    bench.clock.advance(0)
    results = result_of(bench.watcher.prove(Bound(max_ms=0), int(bench.clock.seconds() * 1000)))
    bench.opened()
    bench.store.answer(1)
    assert results == []
    bench.next_session()
    assert results == [None]


def test_a_mirror_of_an_ended_session_is_not_handed_over(bench: Bench) -> None:
    """Otherwise the next active master would base its decisions on a stale state."""
    bench.next_session()
    [failure] = result_of(bench.watcher.hand_over())
    assert isinstance(failure, Failure)
    assert isinstance(failure.value, ConnectionLoss)
    bench.watcher.stop()
    assert result_of(bench.watcher.hand_over()) == [None]
