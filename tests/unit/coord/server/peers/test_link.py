"""Links between nodes, tested without a real peer."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from coord.errors import RemoteProtocolError
from coord.peers.reactor import TurnReactor
from coord.server.peers.accepting import PROVISIONAL_MAX
from coord.server.peers.dialing import PROVISIONAL_TRIES, DialedStream
from coord.server.peers.hello_frames import Hello, decode_hello, encode_hello
from coord.server.peers.link import PeerLinks
from tests.support.store_nodes import SeededRng


def test_link_for_which_there_is_no_descriptor_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may have taken all descriptors. The node must reach the peer again once some clients have left."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    reactor = TurnReactor()
    node: Any = None
    links = PeerLinks(
        reactor, node_id=1, cluster=bytes(16), incarnation=1, addresses={2: ("127.0.0.1", 9)}, rng=SeededRng(1)
    )
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", refuse)
        links.start(node, None)
    [again] = reactor.getDelayedCalls()
    assert again.getTime() - reactor.seconds() < 1
    again.cancel()
    links.stop()


def test_connection_that_breaks_while_the_links_stop() -> None:
    """The last frames are sent to a peer that is gone."""
    reactor = TurnReactor()
    node: Any = _Node()
    links = PeerLinks(
        reactor, node_id=1, cluster=bytes(16), incarnation=1, addresses={2: ("127.0.0.1", 9)}, rng=SeededRng(1)
    )
    ours, theirs = socket.socketpair()
    theirs.close()
    link = links._links[2]
    link.stream = DialedStream(link, ours)
    links._context.node = node
    link.stream.output.append(b"x")
    links.stop()
    assert ours.fileno() == -1
    assert link.stream is None


class _Members:
    """A membership with only nodes 1 and 2, as of index 7."""

    def config_index(self) -> int:
        return 7

    def own_address(self) -> str:
        return "127.0.0.1:9"

    def may_return(self, peer: int) -> bool:
        return False

    def removed_since(self, peer: int) -> int:
        return 0

    def removed(self, peer: int, index: int) -> None:
        raise AssertionError

    def describe(self) -> bytes:
        raise AssertionError


class _Node:
    """Counts the lost peers."""

    def __init__(self) -> None:
        self.lost: list[int] = []

    def has_log(self) -> bool:
        return True

    def peer_introduced(self, peer: int, has_log: bool) -> None:
        pass

    def peer_connected(self, peer: int) -> None:
        pass

    def peer_lost(self, peer: int) -> None:
        self.lost.append(peer)

    def peer_frame(self, peer: int, incarnation: int, kind: int, block: bytes, at: int, end: int) -> None:
        raise AssertionError


def stranger(src: int, address: str = "127.0.0.1:1") -> Hello:
    """Return the hello of a node that claims to be in a newer configuration."""
    return Hello(bytes(16), src, 1, 1, True, config=8, address=address)


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[PeerLinks]:
    """Yield the links of node 1 in a cluster of two; no connection succeeds."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ECONNREFUSED, "connection refused")

    found = PeerLinks(
        TurnReactor(), node_id=1, cluster=bytes(16), incarnation=1, addresses={2: ("127.0.0.1", 9)}, rng=SeededRng(1)
    )
    found.members = _Members()
    # One monkeypatch for fixture and test: with two, the second to end would restore the first's replacement.
    monkeypatch.setattr(socket, "socket", refuse)
    found.start(_Node(), None)
    yield found
    found.stop()


def fire(call: Any) -> None:
    """Run a delayed call now."""
    function = call.func
    call.cancel()
    function()


def next_dial(links: PeerLinks) -> float:
    """Run the next dial now. Return the pause before it in seconds."""
    reactor: Any = links._context.reactor
    calls = reactor.getDelayedCalls()
    [call] = [one for one in calls if one.func.__self__.peer != 2]
    pause = float(call.getTime() - reactor.seconds())
    fire(call)
    return pause


def test_a_node_that_only_a_hello_knows_is_given_up(links: PeerLinks) -> None:
    """An invented node is not dialed forever, and the pauses grow."""
    assert links.acceptor.objection(stranger(9)) == ""
    links.open_provisional(stranger(9))
    pauses = [next_dial(links) for _ in range(PROVISIONAL_TRIES - 1)]
    assert sorted(links._links) == [2]
    assert pauses[-1] > pauses[0] > 0.5
    [call] = links._context.reactor.getDelayedCalls()  # type: ignore[attr-defined]
    assert call.func.__self__.peer == 2
    links.open_provisional(stranger(9))  # it may try again
    assert sorted(links._links) == [2, 9]


def test_nodes_that_only_hellos_know_are_bounded(links: PeerLinks) -> None:
    """A stranger can invent any number of ids."""
    for src in range(10, 10 + PROVISIONAL_MAX):
        assert links.acceptor.objection(stranger(src)) == ""
        links.open_provisional(stranger(src))
    assert "outside of this node's configuration" in links.acceptor.objection(stranger(99))
    assert links.acceptor.objection(stranger(10)) == ""
    links.follow({2: ("127.0.0.1", 9), 10: ("127.0.0.1", 1)})  # a member by now, and dialed like one
    assert sorted(links._links) == [2, 10]
    links.open_provisional(stranger(11))
    for _ in range(3 * PROVISIONAL_TRIES):
        for call in links._context.reactor.getDelayedCalls():  # type: ignore[attr-defined]
            fire(call)
    assert sorted(links._links) == [2, 10]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:99999",
        "127.0.0.1:0",
        "127.0.0.1:-1",
        "127.0.0.1",
        ":1",
        "a b:1",
        "a\nb:1",
        "a:\u0661",
        "x" * 9 + "\0:1",
    ],
)
def test_a_hello_with_an_address_that_is_none_is_refused(address: str) -> None:
    """Such an address was dialed once, and the OverflowError of connect stopped the node."""
    body = encode_hello(stranger(9, address))[5:]
    with pytest.raises(RemoteProtocolError, match="address"):
        decode_hello(body)


@pytest.mark.parametrize(("src", "config"), [(1 << 63, 8), ((1 << 64) - 1, 8), (9, 1 << 62), (9, (1 << 64) - 1)])
def test_a_hello_with_impossible_numbers_is_refused(src: int, config: int) -> None:
    """Ids and indexes are signed 64-bit numbers with room for additions."""
    hello = stranger(src)
    hello.config = config
    with pytest.raises(RemoteProtocolError):
        decode_hello(encode_hello(hello)[5:])
    hello.src, hello.config = 9, (1 << 62) - 1
    assert decode_hello(encode_hello(hello)[5:]).config == hello.config


def test_an_address_that_cannot_be_connected_to_costs_a_dial(links: PeerLinks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the address came from."""

    class Refusing:
        def setblocking(self, value: bool) -> None: ...
        def setsockopt(self, *arguments: object) -> None: ...
        def close(self) -> None: ...
        def connect_ex(self, address: object) -> int:
            raise OverflowError("connect_ex(): port must be 0-65535.")

    monkeypatch.setattr(socket, "socket", lambda *arguments: Refusing())
    links._open(3, ("127.0.0.1", 99999))
    assert len(links._context.reactor.getDelayedCalls()) == 2  # type: ignore[attr-defined]
