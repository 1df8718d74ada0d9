"""The turn reactor: turns that bypass Twisted, with Twisted's own events still in time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from coord.peers.reactor import TurnReactor


class Busy:
    """A reactor with a descriptor that is readable at every poll, so its turns never end by themselves."""

    def __init__(self) -> None:
        self.reactor = TurnReactor()
        self.turns = 0
        self.most_turns = 100_000
        self.fd = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.reactor.watch(self.fd, self.on_events)

    def on_events(self, events: int) -> None:
        self.turns += 1
        assert self.turns < self.most_turns, "nobody ended the turns"

    def serve(self, function: Callable[[int], None]) -> None:
        """Handle events; called instead of `on_events`."""
        self.reactor.unwatch(self.fd)
        self.reactor.watch(self.fd, function)

    def run(self) -> None:
        self.reactor.at_fault(self.fail)
        self.reactor.run(installSignalHandlers=False)

    def fail(self, error: Exception) -> None:
        self.reactor.stop()
        raise error


@pytest.fixture
def busy() -> Iterator[Busy]:
    made = Busy()
    yield made
    os.close(made.fd)


def test_a_timer_comes_between_turns_that_never_end(busy: Busy) -> None:
    busy.reactor.callLater(0.01, busy.reactor.stop)
    busy.run()
    assert busy.turns > 0


def test_a_timer_begun_in_a_turn_is_heeded_after_it(busy: Busy) -> None:
    at: list[int] = []

    def begin(events: int) -> None:
        busy.on_events(events)
        if busy.turns == 3:
            busy.reactor.callLater(0, lambda: at.append(busy.turns))
        if at:
            busy.reactor.stop()

    busy.serve(begin)
    busy.run()
    assert at == [3]


def test_a_timer_that_is_moved_forward_is_not_waited_for(busy: Busy) -> None:
    late = busy.reactor.callLater(3600, busy.reactor.stop)

    def sooner(events: int) -> None:
        busy.on_events(events)
        if busy.turns == 3:
            late.reset(0)

    busy.serve(sooner)
    busy.run()
    assert busy.turns < 10


def test_calls_of_other_threads_are_made(busy: Busy) -> None:
    thread = threading.Thread(target=lambda: busy.reactor.callFromThread(busy.reactor.stop))
    busy.reactor.callLater(0, thread.start)
    busy.most_turns = 1_000_000
    busy.run()
    thread.join()


def test_every_turn_has_its_end_and_what_that_leaves_is_not_waited_with() -> None:
    reactor = TurnReactor()
    ends = 0

    def end() -> bool:
        nonlocal ends
        ends += 1
        if ends == 5:
            reactor.stop()
        return True

    reactor.at_turn_end(end)
    reactor.callLater(3600, reactor.crash)
    reactor.run(installSignalHandlers=False)
    assert ends >= 5


def test_a_call_planned_by_the_end_of_a_turn_does_not_wait_for_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies that a host of tablets gave at the end of a turn left with the next tick, up to 50 ms later."""
    reactor = TurnReactor()
    waits: list[float] = []

    def poll(timeout: float, events: int) -> list[tuple[int, int]]:
        waits.append(timeout)
        return []

    def end() -> bool:
        if not waits:
            reactor.callLater(0, reactor.crash)
        return False

    monkeypatch.setattr(reactor._loop, "_poll", poll)
    reactor.at_turn_end(end)
    reactor.callLater(3600, reactor.crash)
    reactor.run(installSignalHandlers=False)
    assert waits[0] == 0


def test_a_fault_costs_its_descriptor_and_is_told() -> None:
    reactor = TurnReactor()
    told: list[Exception] = []
    ours, theirs = socket.socketpair()

    def fault(error: Exception) -> None:
        told.append(error)
        reactor.stop()

    def served(events: int) -> None:
        raise ValueError(f"events {events}")

    reactor.at_fault(fault)
    reactor.watch(ours.fileno(), served)
    theirs.send(b"x")
    reactor.run(installSignalHandlers=False)
    assert [type(error) for error in told] == [ValueError]
    ours.close()
    theirs.close()


def test_peers_are_served_in_a_turn_that_takes_few_events() -> None:
    """After long turns a poll returns few events; those of the peers must not wait behind a thousand clients.

    Edit that makes this fail: `turn` does not call `_with_preferred`, or `rewatch` leaves `_preferred_poller` alone.
    """
    reactor = TurnReactor()
    fds = [os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(20)]
    served: list[int] = []
    for fd in fds:
        reactor.watch(fd, lambda _, fd=fd: served.append(fd))
    peer = fds[-1]
    reactor.prefer(peer)

    def turn() -> list[int]:
        reactor.turns.busy_since = 0.0  # so that nothing is adapted to the last turn
        reactor._loop.events_max = 4
        served.clear()
        reactor._loop.turn(0)
        return served

    assert turn() == [peer, *fds[:4]]
    reactor.rewatch(peer, readable=False, writable=False)
    assert peer not in turn()
    reactor.rewatch(peer, readable=True, writable=False)
    assert turn()[0] == peer
    reactor.unwatch(peer)
    assert peer not in turn()
    for fd in fds:
        os.close(fd)


def test_peers_are_served_before_the_others_of_a_turn() -> None:
    """In any order of the kernel's events the data of peers is applied before a client is served."""
    reactor = TurnReactor()
    fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(4)]
    peers = (fds[1], fds[3])
    served: list[object] = []

    def watch(fd: int) -> None:
        reactor.watch(fd, lambda _: (served.append("peer" if fd in peers else "client"), os.eventfd_read(fd)))

    for fd in fds:
        watch(fd)
    for fd in peers:
        reactor.prefer(fd)
    reactor.at_peers_served(lambda: served.append("applied"))
    turns = (
        (fds, ["peer", "peer", "applied", "client", "client"]),
        ([fds[0], fds[2]], ["client", "client"]),
        (peers, ["peer", "peer"]),  # the end of the turn does it
    )
    for ready, expected in turns:
        for fd in ready:
            os.eventfd_write(fd, 1)
        reactor.doPoll(0)
        assert served == expected
        served.clear()
    reactor.unwatch(fds[1])
    reactor.watch(fds[1], lambda _: (served.append("client"), os.eventfd_read(fds[1])))
    for fd in (fds[1], fds[3]):
        os.eventfd_write(fd, 1)
    reactor.doPoll(0)
    assert served == ["peer", "applied", "client"], "a descriptor that is used again is nobody's favorite"
    for fd in fds:
        reactor.unwatch(fd)
        os.close(fd)
