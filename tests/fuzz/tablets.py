"""Input of the peer port of a region server.

server     a stream to the accepting side of the links between region servers: hello, TURN and BEAT frames
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

from coord.peers import framing
from coord.raft.messages import APPEND, HEARTBEAT, VOTE, Entry, Message
from regionserver.tablets.host.envelope import (
    BeatFrame,
    Envelope,
    Header,
    Refusal,
    TurnFrame,
    Word,
    encode_beat,
    encode_turn,
)
from regionserver.tablets.links.dialing import ServerLink
from regionserver.tablets.links.hello import PAYLOAD, ServerHello, encode_hello
from regionserver.tablets.links.links import TabletLinks
from tests.support.store_nodes import SeededRng

CLUSTER, OWN, PEER = "c" * 32, "a", "b"
_HEADER = Header(CLUSTER, PEER, 1, OWN)
_HELLO = encode_hello(ServerHello(CLUSTER, PEER, OWN, 1, ("127.0.0.1", 9)))


class _Timer:
    def active(self) -> bool:
        return False


class _Reactor:
    """A reactor without descriptors."""

    seconds = staticmethod(time.monotonic)

    def watch(self, *_: Any, **__: Any) -> None:
        pass

    unwatch = prefer = rewatch = watch

    def callLater(self, *_: Any) -> _Timer:
        return _Timer()


class _Socket:
    """A socket that accepts everything and that no peer closes."""

    def fileno(self) -> int:
        return 9

    def setblocking(self, _: bool) -> None:
        pass

    def send(self, data: bytes) -> int:
        return len(data)

    def recv(self, _: int) -> bytes:
        raise BlockingIOError

    def close(self) -> None:
        pass


class _Host:
    """The host, as the target of the links' reports."""

    def __init__(self) -> None:
        self.frames = 0
        self.present: set[tuple[str, int]] = set()

    def peer_introduced(self, server: str, start_code: int) -> None:
        assert (server, start_code) not in self.present
        self.present.add((server, start_code))

    def peer_lost(self, server: str, start_code: int) -> None:
        self.present.remove((server, start_code))

    def peer_frame(self, server: str, frame: TurnFrame | BeatFrame) -> None:
        assert (server, frame.header.start_code) in self.present
        assert (frame.header.cluster, frame.header.sender, frame.header.recipient) == (CLUSTER, server, OWN)
        self.frames += 1


def fuzz_server(data: bytes) -> None:
    """A stream costs at most its own connection; nothing is reported before an acceptable hello."""
    from tests.fuzz.targets import pieces

    reactor: Any = _Reactor()
    host = _Host()
    links = TabletLinks(
        reactor, cluster=CLUSTER, server=OWN, start_code=1, address=("127.0.0.1", 9), rng=SeededRng(1), guard=None
    )
    links._own.events = host
    with mock.patch.object(ServerLink, "dial", return_value=None):
        _feed(links, pieces(data))
        before = host.frames
        _feed(links, [_HELLO.replace(b"\1b", b"\1g"), _good("g") * 2])
    assert host.frames == before + 2, "another server is not served any more"


def _feed(links: TabletLinks, stream: Iterable[bytes]) -> None:
    sock: Any = _Socket()
    accepted = links._make(sock)
    for piece in stream:
        if accepted.is_closed:
            break
        accepted.received(piece)


def _good(server: str) -> bytes:
    [beat] = encode_beat(Header(CLUSTER, server, 1, OWN), 1, disk_answers=True, heartbeats=[])
    return framing.frame(PAYLOAD, beat)


def seeds(_: str) -> list[bytes]:
    """Return streams of a proper server; the first byte says how each is cut."""
    vote = Message(VOTE, 1, 2, 3, prev_index=4, prev_term=2)
    append = Message(APPEND, 1, 2, 3, prev_index=4, prev_term=2, entries=[Entry(3, 5, 0, b"row"), Entry(3, 6, 0, b"")])
    beat = Envelope("t", Message(HEARTBEAT, 1, 2, 3, commit=4))
    turn = encode_turn(_HEADER, [Envelope("t", vote), Envelope("t", append), Refusal("t", Word.DELETED, 2, 1, 3)])
    frames = [*turn, *encode_beat(_HEADER, 7, disk_answers=True, heartbeats=[beat])]
    stream = _HELLO + b"".join(framing.frame(PAYLOAD, each) for each in frames)
    return [b"\0" + stream, b"\x07" + stream, b"\0" + _HELLO + framing.frame(PAYLOAD, turn[0]), b"\3" + _HELLO]


TARGETS: dict[str, Callable[[bytes], None]] = {"server": fuzz_server}
