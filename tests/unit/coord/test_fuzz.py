"""The short, fixed form of `make fuzz`: the corpus, earlier findings, and seeded mutations of both."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest

from coord.errors import RemoteProtocolError
from coord.peers.framing import HELLO_BYTES_MAX, PeerFrames
from coord.raft.membership import decode_configuration
from coord.rpc.wire import PREAMBLE, RpcFrameReader
from coord.server.peers import codec
from coord.wire.client_conn import MAX_FRAME_BYTES, ClientConnection
from tests.fuzz.corpus import seeds
from tests.fuzz.limits import bounded
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS
from tests.support.store_nodes import StoreNodes

#: Number of mutations per target; slow targets get fewer.
CASES = {"client": 250, "apply": 1500, "node": 300}
CASES_EACH = 1500


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_and_what_was_once_found_break_nothing(name: str) -> None:
    """Valid input and earlier findings raise no undeclared exception, in bounded time and memory."""
    for data in seeds(name):
        bounded(TARGETS[name], data)


@pytest.mark.parametrize("name", TARGETS)
def test_seeded_mutations_break_nothing(name: str) -> None:
    """The same cases in every run; `make fuzz` searches for others."""
    rng = random.Random(f"regionkeeper {name}")
    corpus = seeds(name)
    for _ in range(CASES.get(name, CASES_EACH)):
        data = mutated(rng, corpus)
        try:
            bounded(TARGETS[name], data)
        except Exception as error:
            raise AssertionError(f"{name} breaks on {data[:2000].hex()}") from error


def test_announced_lengths_allocate_nothing() -> None:
    """A length prefix alone, within or beyond the limit, allocates no memory."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for length in (MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 0x7FFFFFFF, 0xFFFFFFFF):
            ClientConnection().receive_data(struct.pack("!I", length) + b"x")
            try:
                PeerFrames().feed(struct.pack("!I", length) + b"\3x")
            except Exception as error:
                assert type(error).__name__ == "RemoteProtocolError"  # noqa: PT017
            try:
                list(RpcFrameReader().feed(PREAMBLE + struct.pack("!I", length) + b"x"))
            except Exception as error:
                assert type(error).__name__ == "StreamError"  # noqa: PT017
        assert tracemalloc.get_traced_memory()[1] - before < 64 << 10
    finally:
        tracemalloc.stop()


def test_stranger_keeps_no_more_than_a_hello() -> None:
    """Before its hello, a peer's stream is bounded by the size of a hello."""
    frames = PeerFrames()
    assert frames.feed(struct.pack("!IB", HELLO_BYTES_MAX, 1) + bytes(HELLO_BYTES_MAX - 2)) == []
    assert frames.limit == HELLO_BYTES_MAX


@pytest.mark.parametrize(
    "text",
    [b"[", b"[" * 100_000, b"{}", b'{"do": "list"}', b'{"do": "remove", "id": 1e400, "applied": 0, "session": 1}'],
)
def test_request_that_no_node_forwards_breaks_the_link(text: bytes) -> None:
    """The leader does not stop."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    peer = nodes.follower().settings.node_id
    frame = codec.encode_numbered(codec.ASK, 7, text)
    with pytest.raises(RemoteProtocolError):
        leader.peer_frame(peer, 1, codec.ASK, frame, 5, len(frame))
    nodes.run(1)
    assert leader.failure is None


@pytest.mark.parametrize("body", [b"\1" + b"\0\1" + bytes(8) + bytes(4), b"\1\0\1" + b"\0" * 7 + b"\5" + b"\0\0\0"])
def test_membership_with_impossible_ids_or_cut_short_is_refused(body: bytes) -> None:
    """ValueError, which readers of the log and of peers expect, instead of a failed assertion."""
    with pytest.raises(ValueError, match="configuration"):
        decode_configuration(body)
