"""Foreign bytes at the peer port: they cost their connection and one log line."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable

import pytest

from coord.peers import accepting, framing
from coord.peers.guard import NONCE_BYTES, Handshake, PeerNames
from regionserver.tablets.host.envelope import FRAME_BYTES_MAX
from regionserver.tablets.links.hello import PAYLOAD, ServerHello, encode_hello
from tests.unit.regionserver.tablets.links.servers import CLUSTER, SECRET, Machine, Server

HERE = ("127.0.0.1", 9)


def hello(**more: object) -> bytes:
    """Return the hello of server b to server a, changed by `more`."""
    fields = {"cluster": CLUSTER, "src": "b", "dst": "a", "start_code": 1, "address": HERE, **more}
    return encode_hello(ServerHello(**fields))  # type: ignore[arg-type]


def frame(kind: int, body: bytes) -> bytes:
    return framing.frame(kind, body)


FOREIGN = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "zeros": bytes(4096),
    "a TLS hello": bytes.fromhex("1603010200010001fc0303") + bytes(64),
    "an impossible length": struct.pack(">IB", 0xFFFFFFFF, 1),
    "a length of zero": struct.pack(">IB", 0, 1),
    "a hello that is too long": struct.pack(">IB", framing.HELLO_BYTES_MAX + 1, 1) + bytes(framing.HELLO_BYTES_MAX),
    "a hello of a store node": frame(framing.HELLO, b"RKPR" + bytes(80)),
    "an empty hello": frame(framing.HELLO, b""),
    "a hello cut short": frame(framing.HELLO, hello()[5:-3]),
    "bytes behind a hello": frame(framing.HELLO, hello()[5:] + b"\0"),
    "a frame before the hello": frame(PAYLOAD, b"x"),
    "an unknown kind": frame(99, b"x"),
    "a proof out of turn": frame(framing.PROOF, bytes(32)),
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("secret", [SECRET, None], ids=["secret", "open"])
def test_foreign_bytes_cost_their_connection(
    machine: Machine, warnings: list[str], what: str, secret: bytes | None
) -> None:
    a = machine.server("a", secret=secret)
    for _ in range(3):
        sock = machine.stranger(a)
        sock.sendall(FOREIGN[what])
        machine.until(lambda sock=sock: machine.is_closed(sock), "the end of the connection")
    assert len(warnings) == 1, warnings
    works(machine, a, secret)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"cluster": "d" * 32}, "belongs to another cluster"),
        ({"dst": "x"}, "looks for server x, this is server a"),
        ({"src": "a"}, "is a copy of its data directory in use?"),
        ({"version": 2}, "speaks version 2, this server 1"),
    ],
)
def test_hello_that_does_not_fit_is_rejected_with_the_reason(
    machine: Machine, warnings: list[str], changed: dict[str, object], why: str
) -> None:
    a = machine.server("a", secret=None)
    sock = machine.stranger(a)
    sock.sendall(hello(**changed))
    reply = received(machine, sock)
    ((kind, block, at, end),) = framing.PeerFrames().feed(reply)
    assert kind == framing.REFUSED
    assert why in block[at:end].decode()
    assert len(warnings) == 1
    assert why in warnings[0]
    assert a.events == []
    works(machine, a, None)


def test_servers_of_two_clusters_have_no_link(machine: Machine, warnings: list[str]) -> None:
    a, b = machine.server("a"), machine.server("b", cluster="d" * 32)
    a.knows(b)
    b.knows(a)
    machine.until(lambda: any("refused: belongs to another cluster" in line for line in warnings), "a rejection")
    machine.turns()
    assert a.events == b.events == []


@pytest.mark.parametrize("secret", [b"another secret !", None], ids=["wrong", "none"])
def test_without_the_secret_nothing_is_read(machine: Machine, warnings: list[str], secret: bytes | None) -> None:
    a, b = machine.server("a"), machine.server("b", secret=secret)
    a.knows(b)
    b.knows(a)
    machine.until(lambda: sum("secret" in line for line in warnings) >= 2, "rejections on both sides")
    machine.turns(100)
    assert a.events == b.events == []
    assert len(warnings) == len(set(warnings))
    assert not a.links._accepted
    assert not b.links._accepted


def test_proof_replayed_on_another_connection_is_rejected(machine: Machine, warnings: list[str]) -> None:
    """The listener's nonce belongs to one connection."""
    a = machine.server("a")
    ours = Handshake(SECRET, b"n" * NONCE_BYTES, PeerNames(CLUSTER, "b", "a"))
    first = machine.stranger(a)
    first.sendall(ours.challenge())
    ((kind, block, at, end),) = framing.PeerFrames().feed(received(machine, first, 69))
    proof = ours.prove(kind, block[at:end])
    again = machine.stranger(a)
    again.sendall(ours.challenge() + proof + hello())
    machine.until(lambda: machine.is_closed(again), "the end of the replay")
    first.sendall(proof + hello())
    machine.until(lambda: a.events, "the genuine connection")
    assert a.events == [("introduced", "b", 1)]


BAD_FRAMES: dict[str, Callable[[Server], bytes]] = {
    "another kind": lambda b: frame(4, b.frame("a")),
    "garbage": lambda _: frame(PAYLOAD, b"\xff" * 40),
    "cut short": lambda b: frame(PAYLOAD, b.frame("a")[:-1]),
    "another sender": lambda b: frame(PAYLOAD, b.frame("a", sender="x")),
    "another start": lambda b: frame(PAYLOAD, b.frame("a", start_code=2)),
    "another recipient": lambda b: frame(PAYLOAD, b.frame("a", recipient="x")),
    "another cluster": lambda b: frame(PAYLOAD, b.frame("a", cluster="x")),
    "a forged length": lambda _: struct.pack(">IB", FRAME_BYTES_MAX + 2, PAYLOAD),
    "a count of 4 billion": lambda b: frame(PAYLOAD, b"\1\1" + b.frame("a")[2:-5] + b"\xff" * 4),
}


@pytest.mark.parametrize("what", BAD_FRAMES)
def test_bad_frame_costs_the_link_of_its_server(machine: Machine, warnings: list[str], what: str) -> None:
    a, b, c = (machine.server(name) for name in "abc")
    for one in (b, c):
        one.knows(a)
    machine.until(lambda: len(a.events) == 2 and b.links.is_connected("a") and c.links.is_connected("a"), "links")
    for _ in range(2):
        stream = b.links._links["a"].stream
        assert stream is not None
        a.events.clear()
        stream.output.append(BAD_FRAMES[what](b))
        stream.flush()
        machine.until(lambda: ("lost", "b", 1) in a.events, "the loss of the link")
        machine.until(lambda: ("introduced", "b", 1) in a.events and b.links.is_connected("a"), "another link")
    assert a.frames == []
    assert len([line for line in warnings if line.startswith("closing the connection from server b")]) == 1
    assert c.beat("a", 1)
    machine.until(lambda: a.numbers("c") == [1], "other servers are not concerned")


def test_frame_that_the_host_rejects_costs_the_link(machine: Machine) -> None:
    a, b = machine.server("a"), machine.server("b")
    a.knows(b)
    machine.until(lambda: a.links.is_connected("b") and b.links.is_connected("a"), "links")
    a.refuses_frames = True
    a.events.clear()
    assert b.beat("a", 1)
    machine.until(lambda: ("lost", "b", 1) in a.events, "the loss of the link")


def test_frame_of_the_longest_size_is_read(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte more is rejected by its length, before it arrives."""
    from regionserver.tablets.links import accepting as incoming

    a, b = machine.server("a"), machine.server("b")
    limit = len(b.frame("a"))
    monkeypatch.setattr(incoming, "FRAME_BYTES_MAX", limit)
    b.knows(a)
    machine.until(lambda: b.links.is_connected("a"), "a link")
    assert b.beat("a", 1)
    machine.until(lambda: a.numbers("b") == [1], "the longest frame")
    stream = b.links._links["a"].stream
    assert stream is not None
    stream.output.append(struct.pack(">IB", limit + 2, PAYLOAD))
    stream.flush()
    machine.until(lambda: ("lost", "b", 1) in a.events, "the loss of the link")


def test_hello_of_the_longest_size_is_read(machine: Machine) -> None:
    body = hello(src="b" * 250)[5:]
    more = framing.HELLO_BYTES_MAX - 1 - len(body) - 4
    longest = frame(framing.HELLO, body + struct.pack(">HH", 7, more) + bytes(more))
    a = machine.server("a", secret=None)
    machine.stranger(a).sendall(longest)
    machine.until(lambda: a.events, "the hello")
    assert a.events == [("introduced", "b" * 250, 1)]


def test_unidentified_connections_are_bounded(machine: Machine) -> None:
    a = machine.server("a")
    waiting = [machine.stranger(a) for _ in range(accepting.UNIDENTIFIED_MAX)]
    machine.until(lambda: len(a.links._listener.unidentified) == len(waiting), "as many as are allowed")
    late = machine.stranger(a)
    machine.until(lambda: machine.is_closed(waiting[0]), "the end of the oldest")
    assert not machine.is_closed(late), "a peer sends its hello at once, so the newcomer may be one"


def test_connection_that_says_nothing_is_closed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "HELLO_TIMEOUT_S", 0.05)
    a = machine.server("a")
    sock = machine.stranger(a)
    machine.until(lambda: machine.is_closed(sock), "the end of a silent connection")
    assert a.events == []


def received(machine: Machine, sock: socket.socket, size: int = 1) -> bytes:
    """Return at least `size` bytes of a reply."""
    got = bytearray()

    def enough() -> bool:
        with contextlib.suppress(BlockingIOError):
            got.extend(sock.recv(4096))
        return len(got) >= size

    machine.until(enough, "a reply")
    return bytes(got)


def works(machine: Machine, a: Server, secret: bytes | None) -> None:
    """Check that a proper server gets its link."""
    good = machine.server("good", secret=secret)
    good.knows(a)
    machine.until(lambda: good.links.is_connected("a"), "a link of a good server")
