"""Sends of the client port: an event for many watchers delays no other request (docs/store/operate.md, Limits)."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coord.peers.reactor import READABLE, WRITABLE
from coord.peers.stream import listening_socket
from coord.server.clients.listener import MAKES_WAY_AFTER_MS, ClientLimits, ClientListener, ClientStream
from coord.tree.sessions import Session
from coord.wire import records as r
from tests.support.store_nodes import StoreNodes


class Doors:
    """A reactor that only watches descriptors; the test says when an event happens."""

    def __init__(self) -> None:
        self.functions: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, function: Callable[[int], None]) -> None:
        self.functions[fd] = function

    def callLater(self, delay: float, function: Callable[[], None]) -> None: ...
    def seconds(self) -> float:
        return 0.0

    def rewatch(self, fd: int, *, readable: bool, writable: bool) -> None: ...
    def unwatch(self, fd: int) -> None: ...


def _listener(store: StoreNodes, doors: Any, limits: ClientLimits) -> ClientListener:
    node = store.leader()
    return ClientListener(
        doors, node.pipeline, store.clock, limits, lambda word: word, may_answer=node.liveness.may_answer
    )


class Clients:
    """Connections of one listener, each with its client's end."""

    def __init__(self, sends_per_turn: int) -> None:
        store = StoreNodes(1)
        doors: Any = Doors()
        limits = ClientLimits(sends_per_turn=sends_per_turn)
        self.node = store.leader()
        self.listener = _listener(store, doors, limits)
        self.streams: list[ClientStream] = []
        self.ends: list[socket.socket] = []

    def add(self, count: int) -> None:
        for _ in range(count):
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            self.streams.append(ClientStream(self.listener, ours, ("10.0.0.1", 5000), None))
            self.ends.append(theirs)

    def say(self, who: int, text: bytes) -> None:
        """Queue data of the node for a client."""
        self.streams[who].output.append(text)
        self.streams[who].wake()

    def heard(self) -> list[bytes]:
        """Return the data that each client has received since the last call."""
        return [_received(end) for end in self.ends]

    def close(self) -> None:
        for stream, end in zip(self.streams, self.ends, strict=True):
            stream.sock.close()
            end.close()


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(1000)
    except BlockingIOError:
        return b""


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients(sends_per_turn=2)
    made.add(6)
    yield made
    made.close()


def test_turn_sends_to_so_many_and_the_rest_follow_in_order(clients: Clients) -> None:
    """Each client gets its event once; the loop is told not to wait."""
    for who in range(6):
        clients.say(who, b"event")
    assert clients.listener.send_all()
    assert clients.heard() == [b"event", b"event", b"", b"", b"", b""]
    assert clients.listener.send_all()
    assert clients.heard() == [b"", b"", b"event", b"event", b"", b""]
    assert not clients.listener.send_all()
    assert clients.heard() == [b"", b"", b"", b"", b"event", b"event"]
    assert not clients.listener.send_all()


def test_who_asks_meanwhile_is_answered_beside_the_crowd(clients: Clients) -> None:
    """In the very next turn, although four watchers are still waiting."""
    for who in range(6):
        clients.say(who, b"event")
    clients.listener.send_all()
    clients.heard()
    clients.say(0, b"answer")
    clients.listener.send_all()
    assert clients.heard() == [b"answer", b"", b"event", b"event", b"", b""]


def test_one_of_the_crowd_hears_the_event_before_its_answer(clients: Clients) -> None:
    """Its answer goes after the event that is still queued, in one send."""
    for who in range(6):
        clients.say(who, b"event ")
    clients.listener.send_all()
    clients.say(5, b"answer")
    clients.listener.send_all()
    assert clients.heard()[5] == b""
    assert not clients.listener.send_all()
    assert clients.heard()[5] == b"event answer"


def test_those_who_wait_are_not_overtaken_for_ever(clients: Clients) -> None:
    """Each turn sends to as many waiting clients as to others."""
    for who in range(6):
        clients.say(who, b"event")
    clients.listener.send_all()
    for _ in range(2):
        clients.say(0, b"a")
        clients.say(1, b"b")
        clients.listener.send_all()
    assert clients.heard() == [b"eventaa", b"eventbb", b"event", b"event", b"event", b"event"]


def test_connection_that_ends_while_it_waits_gets_what_it_is_owed(clients: Clients) -> None:
    """The connection is closed from this side, after its last answer."""
    for who in range(6):
        clients.say(who, b"event")
    clients.listener.send_all()
    clients.streams[5].close(flush=True)
    while clients.listener.send_all():
        pass
    assert clients.ends[5].recv(1000) == b"event"
    assert clients.ends[5].recv(1000) == b""


def test_client_that_reads_nothing_is_disconnected(clients: Clients) -> None:
    """Its connection ends if the kernel has accepted none of its output for the whole time.

    Over TCP, the kernel itself ends such a connection at about the same time (TCP_USER_TIMEOUT).

    Fails if `ClientStream.sweep` ends no stalled client.
    """
    stream = clients.streams[0]
    request = r.encode_connect_request(r.ConnectRequest(timeout_ms=10_000))
    clients.ends[0].sendall(struct.pack("!i", len(request)) + request)
    stream.on_events(READABLE)
    clients.say(0, bytes(1 << 20))
    clients.listener.send_all()
    assert stream.backlog() > 0
    stall_ms, now_ms = clients.listener.limits.stall_ms, stream.since_ms + 1
    stream.sweep(now_ms)
    stream.sweep(now_ms + stall_ms)
    assert not stream.is_closed
    clients.ends[0].recv(1 << 20)
    stream.on_events(WRITABLE)
    assert stream.backlog() > 0
    now_ms += stall_ms + 1
    stream.sweep(now_ms)
    stream.sweep(now_ms + stall_ms)
    assert not stream.is_closed
    stream.sweep(now_ms + stall_ms + 1)
    assert stream.is_closed
    assert stream.connection.is_closed


def test_stop_leaves_nobody_out(clients: Clients) -> None:
    """All output is sent before the connections are closed."""
    for who in range(6):
        clients.say(who, b"event")
    clients.listener.stop()
    assert clients.heard() == [b"event"] * 6


def test_ipv4_client_of_a_door_to_both_worlds_keeps_its_address() -> None:
    """Access lists of scheme ip and the bound per address use it."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    store = StoreNodes(1)
    doors: Any = Doors()
    limits = ClientLimits(connections_per_address_max=1)
    listener = _listener(store, doors, limits)
    with contextlib.closing(listening_socket("::", 0)) as door, contextlib.ExitStack() as ends:
        listener.start({door: None})
        for host in ("127.0.0.1", "::1", "127.0.0.1"):
            ends.enter_context(socket.create_connection((host, door.getsockname()[1])))
        doors.functions[door.fileno()](READABLE)
        assert [stream.address for stream in listener.streams] == ["127.0.0.1", "::1"]
        assert listener.refused == 1
        for stream in listener.streams:
            ends.enter_context(stream.sock)


def test_a_stranger_who_holds_all_connections_of_an_address_makes_way() -> None:
    """The oldest connection without a session is closed after a while; connections with a session stay."""
    store = StoreNodes(1)
    doors: Any = Doors()
    listener = _listener(store, doors, ClientLimits(connections_per_address_max=2))
    with contextlib.closing(listening_socket("127.0.0.1", 0)) as door, contextlib.ExitStack() as ends:
        listener.start({door: None})

        def connect() -> None:
            ends.enter_context(socket.create_connection(door.getsockname()))
            doors.functions[door.fileno()](READABLE)

        connect()
        connect()
        old, young = listener.streams
        connect()
        assert list(listener.streams) == [old, young]
        assert listener.refused == 1, "both may be about to open a session"

        store.clock.now_ms += MAKES_WAY_AFTER_MS
        listener.proved(old, 0.0)
        connect()
        assert next(iter(listener.streams)) is old
        assert young.is_closed
        assert len(listener.streams) == 2
        for stream in listener.streams:
            ends.enter_context(stream.sock)


@pytest.mark.parametrize("has_leader", [True, False])
def test_clients_who_try_to_connect_during_an_outage_use_up_no_budget(has_leader: bool) -> None:
    """The node closes them for want of a leader; each tries again, and the port must be open when there is one."""
    store, doors = StoreNodes(1), Doors()
    reactor: Any = doors
    listener = ClientListener(
        reactor, store.leader().pipeline, store.clock, ClientLimits(), lambda word: word, may_answer=lambda: has_leader
    )
    request = r.encode_connect_request(r.ConnectRequest(timeout_ms=10_000))
    with contextlib.ExitStack() as ends:
        for _ in range(50):
            ours, theirs = socket.socketpair()
            ends.enter_context(ours)
            ends.enter_context(theirs).sendall(struct.pack("!i", len(request)) + request)
            ClientStream(listener, ours, ("10.0.0.1", 5000), None).on_events(READABLE)
        assert listener.newcomers.is_used_up is has_leader


class _Sealer:
    """Stands in for TLS: records what is sealed together."""

    def __init__(self) -> None:
        self.sealed: list[list[bytes]] = []

    def seal(self, frames: list[bytes]) -> bytes:
        self.sealed.append(list(frames))
        return b"".join(frames)

    def close_notify(self) -> bytes:
        return b""


def test_over_tls_each_answer_of_a_turn_is_sealed_alone_and_all_leave_in_one_send(clients: Clients) -> None:
    """A record with two answers would stop a client that selects on its socket."""
    tls: Any = _Sealer()
    clients.streams[0].tls = tls
    for text in (b"one", b"two", b"three"):
        clients.say(0, text)
    clients.listener.send_all()
    assert tls.sealed == [[b"one", b"two", b"three"]]
    assert clients.heard()[0] == b"onetwothree"


def test_answers_wait_for_contact_with_the_leader_and_words_do_not(clients: Clients) -> None:
    """Answers keep their order; output that belongs to no session is sent at once."""
    contact = clients.node.liveness.contact
    session = Session(1, bytes(16), 10_000, 1, [])
    for stream in clients.streams[1:]:
        stream.connection.session = session
    held_until, contact.until_ms = contact.until_ms, -1
    clients.say(0, b"word")
    clients.say(1, b"one")
    clients.say(2, b"two")
    assert not clients.listener.send_all(), "nothing is to be done at once"
    clients.say(1, b"-more")
    assert not clients.listener.send_all()
    assert clients.heard() == [b"word", b"", b"", b"", b"", b""]
    contact.until_ms = held_until
    while clients.listener.send_all():
        pass
    assert clients.heard() == [b"", b"one-more", b"two", b"", b"", b""]
