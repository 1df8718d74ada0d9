"""The client byte stream: frames in any pieces, the handshake, words, limits."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.protocol.serialization import Connect

from coord.wire import client_conn as c
from coord.wire.records import ConnectRequest, encode_connect_request, encode_request_frame

CONNECT = encode_connect_request(ConnectRequest(timeout_ms=4000))


def frame(payload: bytes) -> bytes:
    """Return a payload with its length."""
    return struct.pack("!i", len(payload)) + payload


def payloads(conn: c.ClientConnection, data: bytes) -> list[bytes]:
    """Return the payloads of one call of receive_data."""
    frames = conn.receive_data(data)
    block = conn.take_block()
    return [block[at:end] for at, end in frames]


def open_connection(max_frame_bytes: int = c.MAX_FRAME_BYTES) -> c.ClientConnection:
    """Return a connection after its handshake."""
    conn = c.ClientConnection(max_frame_bytes)
    assert payloads(conn, frame(CONNECT)) == []
    assert conn.take_connect() is not None
    return conn


def test_connect_request_of_kazoo_opens_the_connection() -> None:
    """The request is returned once; frames after it in the same bytes are returned at once."""
    conn = c.ClientConnection()
    golden = bytes(Connect(0, 77, 4000, 5, b"p" * 16, 0).serialize())
    assert payloads(conn, frame(golden) + encode_request_frame(1, 4, b"body")) == [b"\0\0\0\1\0\0\0\4body"]
    assert conn.phase == c.PHASE_OPEN
    request = conn.take_connect()
    assert request is not None
    assert (request.last_zxid_seen, request.timeout_ms, request.session_id) == (77, 4000, 5)
    assert (request.passwd, request.read_only, request.has_read_only) == (b"p" * 16, False, True)
    assert conn.take_connect() is None


def test_connect_request_without_the_read_only_byte() -> None:
    """Clients before 3.4 send no such byte, and must get none."""
    conn = c.ClientConnection()
    payloads(conn, frame(CONNECT[:-1]))
    request = conn.take_connect()
    assert request is not None
    assert not request.has_read_only


@given(
    bodies=st.lists(st.binary(min_size=8, max_size=200), max_size=8),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
)
@settings(max_examples=200, deadline=None)
def test_frames_are_the_same_in_any_pieces(bodies: list[bytes], cuts: list[int]) -> None:
    """For any split of the stream, the same frames come out in the same order, and no bytes are kept."""
    stream = frame(CONNECT) + b"".join(map(frame, bodies))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    conn = c.ClientConnection()
    got = [payload for a, b in itertools.pairwise(edges) for payload in payloads(conn, stream[a:b])]
    assert got == bodies
    assert conn.take_connect() is not None
    assert (conn.pending_bytes, conn.violation) == (0, "")


def test_bytes_one_at_a_time() -> None:
    """A word, and a handshake with a request."""
    conn = c.ClientConnection()
    for byte in b"mntr":
        assert conn.phase == c.PHASE_START
        conn.receive_data(bytes([byte]))
    assert (conn.phase, conn.word) == (c.PHASE_WORD, b"mntr")
    assert conn.receive_data(b"more") == []
    conn = c.ClientConnection()
    got = [payload for byte in frame(CONNECT) + frame(b"12345678") for payload in payloads(conn, bytes([byte]))]
    assert got == [b"12345678"]


@pytest.mark.parametrize("word", sorted(c.FOUR_LETTER_WORDS))
def test_word_is_recognised_and_what_follows_ignored(word: bytes) -> None:
    """`ruok\\n`, as typed into a terminal."""
    conn = c.ClientConnection()
    assert conn.receive_data(word + b"\r\n") == []
    assert (conn.phase, conn.word) == (c.PHASE_WORD, word)


@pytest.mark.parametrize(
    "first",
    [b"RUOK", b"nope", b"GET / HTTP/1.1\r\n", bytes(4), b"\xff\xff\xff\xff", struct.pack("!i", 7), b"\x16\x03\x01\x02"],
)
def test_garbage_closes(first: bytes) -> None:
    """Upper case, unknown words, HTTP, TLS, zero, negative and tiny lengths: closed, and further bytes ignored."""
    conn = c.ClientConnection()
    assert conn.receive_data(first) == []
    assert conn.phase == c.PHASE_CLOSED
    assert conn.violation
    assert conn.receive_data(frame(CONNECT)) == []
    assert conn.take_connect() is None


def test_word_inside_an_open_connection_is_a_bad_length() -> None:
    """Words count only at the very beginning."""
    conn = open_connection()
    assert conn.receive_data(b"ruok") == []
    assert conn.phase == c.PHASE_CLOSED


def test_short_connect_record_closes() -> None:
    """The first frame is not a connect request."""
    conn = c.ClientConnection()
    assert conn.receive_data(frame(bytes(20)) + frame(b"12345678")) == []
    assert conn.phase == c.PHASE_CLOSED
    assert "ends early" in conn.violation


def test_longest_frame_is_taken_and_one_byte_more_is_refused_on_the_prefix() -> None:
    """1048575 bytes pass as in ZooKeeper; for 1048576 the four bytes of the length suffice to close."""
    conn = open_connection()
    longest = bytes(0xFFFFF)
    stream = frame(longest)
    got = [p for at in range(0, len(stream), 65536) for p in payloads(conn, stream[at : at + 65536])]
    assert got == [longest]
    assert conn.receive_data(struct.pack("!i", 0x100000)) == []
    assert conn.phase == c.PHASE_CLOSED
    assert conn.pending_bytes == 0


def test_requests_in_front_of_a_bad_length_are_still_handed_out() -> None:
    """The fault closes the connection, but the requests before it are returned."""
    conn = open_connection()
    assert payloads(conn, frame(b"12345678") + struct.pack("!i", -5) + frame(b"87654321")) == [b"12345678"]
    assert conn.phase == c.PHASE_CLOSED
    assert "-5" in conn.violation


@pytest.mark.parametrize("length", [0, 1, 7, -1, -(2**31), 2**31 - 1])
def test_length_without_a_header_or_beyond_the_limit_closes(length: int) -> None:
    """Zero, negative, shorter than a request header, far too long."""
    conn = open_connection()
    conn.receive_data(struct.pack("!i", length))
    assert conn.phase == c.PHASE_CLOSED


def test_block_is_not_pinned_once_taken() -> None:
    """An idle connection keeps no bytes of its last read, unless they are an incomplete frame."""
    conn = open_connection()
    payloads(conn, frame(bytes(1000)) + frame(bytes(100))[:50])
    assert conn.take_block() == b""
    assert conn.pending_bytes == 50


@given(noise=st.lists(st.binary(max_size=64), max_size=10), opened=st.booleans())
@settings(max_examples=300, deadline=None)
def test_noise_never_raises_and_never_keeps_more_than_a_frame(noise: list[bytes], opened: bool) -> None:
    """For any bytes the parser returns frames, a word or a violation, and stays within its bound."""
    conn = open_connection(100) if opened else c.ClientConnection(100)
    for data in noise:
        frames = conn.receive_data(data)
        block = conn.take_block()
        for at, end in frames:
            assert 8 <= end - at <= 100
            assert end <= len(block)
        assert conn.pending_bytes <= 104
