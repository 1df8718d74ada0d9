"""A followed znode is read at its changes, at intervals, and after a sync."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, formatEvent

from coord.client.following.znode import FollowedZnode
from coord.client.session import SessionState
from coord.errors import ConnectionLoss, NoAuth, NoNode
from coord.wire.records import Stat


class Store:
    """A session whose replies the test releases."""

    def __init__(self) -> None:
        self.state = SessionState.CONNECTED
        self.data: bytes | None = b"one"
        self.is_closed = False
        self.version = 0
        self.asked: list[str] = []
        self.waiting: deque[tuple[Deferred[Any], Callable[[], Deferred[Any]]]] = deque()
        self.watch: Callable[..., object] | None = None

    def sync(self, _path: str) -> Deferred[Any]:
        self.asked.append("sync")
        return self._later(lambda: succeed(None))

    def get(self, path: str, watch: Callable[..., object]) -> Deferred[Any]:
        self.asked.append("get")

        def act() -> Deferred[Any]:
            if self.is_closed:
                return fail(NoAuth(path))
            if self.data is None:
                return fail(NoNode(path))
            self.watch = watch
            return succeed((self.data, Stat(0, 0, 0, 0, self.version, 0, 0, 0, 0, 0, 0)))

        return self._later(act)

    def _later(self, act: Callable[[], Deferred[Any]]) -> Deferred[Any]:
        waiting: Deferred[Any] = Deferred()
        self.waiting.append((waiting, act))
        return waiting

    def answer(self) -> None:
        """Answer all waiting requests, and the requests that these answers cause."""
        while self.waiting:
            waiting, act = self.waiting.popleft()
            act().addCallbacks(waiting.callback, waiting.errback)

    def cut(self) -> None:
        """Break the connection."""
        self.state = SessionState.SUSPENDED
        while self.waiting:
            self.waiting.popleft()[0].errback(ConnectionLoss("/g"))


class Bench:
    """One follower, every 2 s."""

    def __init__(self) -> None:
        self.store, self.clock = Store(), MemoryReactorClock()
        self.seen: list[tuple[bytes, int, float]] = []
        self.followed = FollowedZnode(
            self.clock, "/g", lambda *seen: self.seen.append(seen), self.clock.seconds, every_s=2.0
        )
        self.followed.follow(self.store)  # type: ignore[arg-type]


def test_a_read_follows_a_sync_and_tells_when_it_began() -> None:
    """The node that serves the session may lag: its value without a sync can be of any age."""
    bench = Bench()
    bench.clock.advance(1.5)
    bench.store.answer()
    assert bench.store.asked == ["sync", "get"]
    assert bench.seen == [(b"one", 0, 0.0)]


def test_a_change_is_read_at_once() -> None:
    bench = Bench()
    bench.store.answer()
    bench.store.data, bench.store.version = b"two", 1
    assert bench.store.watch is not None
    bench.store.watch(3, "/g", 9)
    bench.store.answer()
    assert bench.seen[-1] == (b"two", 1, 0.0)


def test_a_change_during_a_read_is_read_afterwards() -> None:
    bench = Bench()
    bench.followed.read()
    bench.followed.read()
    assert bench.store.asked == ["sync"]
    bench.store.answer()
    assert bench.store.asked == ["sync", "get"] * 2
    assert len(bench.seen) == 2


def test_the_znode_is_read_at_intervals_without_an_event() -> None:
    bench = Bench()
    bench.store.answer()
    for _ in range(3):
        bench.clock.advance(2.0)
        bench.store.answer()
    assert [began_s for _, _, began_s in bench.seen] == [0.0, 2.0, 4.0, 6.0]


def test_a_missing_znode_is_an_empty_value() -> None:
    bench = Bench()
    bench.store.data = None
    bench.store.answer()
    assert bench.seen == [(b"", -1, 0.0)]


def test_a_denied_read_is_logged_once_until_one_succeeds() -> None:
    """A server that may not read the list of revoked credentials would serve them without anybody's notice."""
    bench = Bench()
    with capturedLogs() as events:
        for is_closed in (True, True, False, True):
            bench.store.is_closed = is_closed
            bench.clock.advance(2.0)
            bench.store.answer()
    assert len(bench.seen) == 1
    said = [formatEvent(event) for event in events]
    assert len(said) == 2
    assert all(text.startswith("this process may not read /g ") for text in said)


def test_a_lost_connection_shows_nothing_and_ends_nothing() -> None:
    """No value is seen without a reply; the next interval after the reconnection reads again."""
    bench = Bench()
    bench.store.cut()
    bench.clock.advance(2.0)
    assert bench.seen == []
    bench.store.state = SessionState.CONNECTED
    bench.clock.advance(2.0)
    bench.store.answer()
    assert bench.seen == [(b"one", 0, 4.0)]


def test_a_reply_to_a_former_session_is_not_seen() -> None:
    """A read that was sent in one session must not count for the next one."""
    bench = Bench()
    former = bench.store
    latter = Store()
    bench.followed.follow(latter)  # type: ignore[arg-type]
    former.answer()
    assert bench.seen == []
    latter.answer()
    assert bench.seen == [(b"one", 0, 0.0)]


def test_after_the_end_nothing_is_read() -> None:
    bench = Bench()
    bench.store.answer()
    bench.followed.stop()
    bench.clock.advance(10.0)
    assert bench.store.asked == ["sync", "get"]
