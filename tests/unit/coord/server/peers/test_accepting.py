"""Unidentified connections of a peers' port: their end, and the memory that they take."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from coord.peers import accepting
from coord.peers.accepting import PeerListener
from coord.peers.framing import HELLO_TIMEOUT_S
from tests.support.interpreted import needs_interpreted


class FakeReactor:
    """A clock, its timers, and the function of the watched socket."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[..., object], tuple[object, ...]]] = []
        self.accept: Callable[[int], None] = lambda _: None

    def seconds(self) -> float:
        """Return the time."""
        return self.now

    def callLater(self, delay: float, function: Callable[..., object], *args: object) -> None:
        """Plan a call."""
        self.timers.append((self.now + delay, function, args))

    def watch(self, _: int, function: Callable[[int], None]) -> None:
        """Note the function that accepts."""
        self.accept = function

    def rewatch(self, fd: int, *, readable: bool, writable: bool) -> None:
        """Do nothing."""

    def advance(self, seconds: float) -> None:
        """Let time pass, and make the calls that are due."""
        self.now += seconds
        due = [one for one in self.timers if one[0] <= self.now]
        self.timers = [one for one in self.timers if one[0] > self.now]
        for _, function, args in due:
            function(*args)


class FakePeer:
    """An accepted connection."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.is_closed = False

    def cost_s(self) -> float:
        """Return the charge of a newcomer."""
        return 0.0

    def close(self) -> None:
        """Close the connection."""
        self.is_closed = True


class FakeSockets:
    """A listening socket to which callers connect."""

    def __init__(self) -> None:
        self.waiting = 0

    def fileno(self) -> int:
        """Return a descriptor."""
        return 7

    def accept(self) -> tuple[Any, Any]:
        """Return the next caller."""
        if not self.waiting:
            raise BlockingIOError
        self.waiting -= 1
        return object(), ("127.0.0.1", 1)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeReactor, FakeSockets, list[weakref.ref[FakePeer]], Any]:
    """Return a listener with its surroundings."""
    monkeypatch.setattr(accepting, "tune", lambda *_, **__: None)
    reactor, sockets, made = FakeReactor(), FakeSockets(), []

    def make(sock: socket.socket) -> Any:
        peer = FakePeer(sock)
        made.append(weakref.ref(peer))
        return peer

    fake: Any = reactor
    listener = PeerListener(fake, make)
    listening: Any = sockets
    listener.start(listening)
    return reactor, sockets, made, listener


@needs_interpreted
def test_a_connection_without_a_hello_is_closed_in_time(bench: Any) -> None:
    """Each has its own time, although one timer serves all."""
    reactor, sockets, made, listener = bench
    peers = []
    for _ in range(2):
        sockets.waiting = 1
        reactor.accept(0)
        peers.append(made[-1]())
        reactor.advance(HELLO_TIMEOUT_S / 2)
    first, second = peers
    assert (first.is_closed, second.is_closed) == (True, False)
    reactor.advance(HELLO_TIMEOUT_S / 2)
    assert second.is_closed
    assert (listener.unidentified, reactor.timers) == ({}, [])


@needs_interpreted
def test_a_closed_connection_takes_no_memory(bench: Any) -> None:
    """Fails if each connection has a timer, which holds it until the time for the hello is over."""
    reactor, sockets, made, listener = bench
    for _ in range(10):
        sockets.waiting = 1
        reactor.accept(0)
        listener.forget(made[-1]())
    gc.collect()
    assert [one() for one in made] == [None] * 10
    assert len(reactor.timers) == 1
