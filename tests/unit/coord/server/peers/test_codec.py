"""Frames between nodes: round trips, and only a named error for all other bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coord.errors import RemoteProtocolError
from coord.peers import framing
from coord.raft.bounds import NUMBER_MAX
from coord.raft.membership import Configuration
from coord.raft.messages import APPEND, SNAPSHOT, Entry, Message, RaftSnapshot
from coord.server.peers import codec, hello_frames, raft_frames
from coord.tree.command import encode_command

numbers = st.integers(0, NUMBER_MAX - 1)
entries = st.lists(st.builds(Entry, numbers, numbers, st.integers(0, 1), st.binary(max_size=50)), max_size=5)


def fields(m: Message) -> tuple[object, ...]:
    """Return all fields of a message."""
    meta = m.snapshot
    snapshot = (meta.index, meta.term, meta.config, meta.handle) if meta else None
    return (
        m.kind, m.src, m.dst, m.term, m.prev_index, m.prev_term, m.commit, m.match_index, m.granted, m.context,
        m.entries or [], snapshot,
    )  # fmt: skip


@given(numbers, numbers, numbers, numbers, st.booleans(), entries)
def test_raft_messages_round_trip(term: int, index: int, commit: int, match: int, ok: bool, some: list[Entry]) -> None:
    """All fields, any entries."""
    message = Message(APPEND, 1, 2, term, index, term, commit, match, ok, index, some or None)
    frame = raft_frames.encode_raft(message)
    assert fields(raft_frames.decode_raft(frame, 5, len(frame))) == fields(message)


@pytest.mark.parametrize("size", [0, 900, 1000, 100_000])
def test_raft_messages_of_any_size_round_trip(size: int) -> None:
    """Short messages are encoded in another way than long ones."""
    message = Message(APPEND, 1, 2, 3, 4, 3, 4, entries=[Entry(3, 5, 0, b"x" * size), Entry(3, 6, 1, b"")])
    frame = raft_frames.encode_raft(message)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert fields(raft_frames.decode_raft(frame, 5, len(frame))) == fields(message)


@pytest.mark.parametrize("at", [7, 15, 23, 31, 39, 47, 55, 63, 83, 91, 100])
def test_numbers_of_raft_messages_are_never_negative(at: int) -> None:
    """Neither a node, a term, an index nor a length is negative in a peer's message."""
    frame = bytearray(raft_frames.encode_raft(Message(APPEND, 1, 2, 3, entries=[Entry(1, 2, 0, b"data")])))
    frame[at] = 0xFF
    with pytest.raises(RemoteProtocolError):
        raft_frames.decode_raft(bytes(frame), 5, len(frame))


def test_a_frame_that_ends_early_is_refused() -> None:
    """The bytes after its end belong to another frame."""
    raft = raft_frames.encode_raft(Message(APPEND, 1, 2, 3, entries=[Entry(1, 2, 0, b"data")]))
    forward = raft_frames.encode_forward(1, 1, [encode_command(1, 2, 3, 5, b"body")])
    for end in range(5, len(raft)):
        with pytest.raises(RemoteProtocolError):
            raft_frames.decode_raft(raft + raft, 5, end)
    for end in (5, 20, len(forward) - 1):
        with pytest.raises(RemoteProtocolError):
            raft_frames.decode_forward(forward + forward, 5, end)


def test_snapshot_offer_round_trips() -> None:
    """Position, configuration and file name."""
    meta = RaftSnapshot(10, 2, Configuration([1, 2, 3], [], [4], b"1=a:2888:3888\n"), "name.snap")
    message = Message(SNAPSHOT, 1, 2, 5, snapshot=meta)
    frame = raft_frames.encode_raft(message)
    assert fields(raft_frames.decode_raft(frame, 5, len(frame))) == fields(message)


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 255))
@settings(max_examples=300)
def test_damaged_frames_raise_only_the_named_error(garbage: bytes, position: int, value: int) -> None:
    """Random bytes, and a valid message with one byte changed."""
    message = Message(APPEND, 1, 2, 3, entries=[Entry(1, 2, 0, b"data"), Entry(1, 3, 2, b"more")])
    frame = bytearray(raft_frames.encode_raft(message))
    frame[5 + position % (len(frame) - 5)] = value
    for data in (garbage, bytes(frame[5:])):
        for decode in (raft_frames.decode_raft, raft_frames.decode_forward, codec.decode_touch, codec.decode_chunk):
            with contextlib.suppress(RemoteProtocolError):
                decode(data, 0, len(data))
        with contextlib.suppress(RemoteProtocolError):
            hello_frames.decode_hello(data)


def test_forward_round_trips() -> None:
    """Commands keep their bytes and their order."""
    commands = [encode_command(1, 2, 3, 5, b"body"), encode_command(1, 2, 4, 5, b"")]
    frame = raft_frames.encode_forward(7, 42, commands)
    assert raft_frames.decode_forward(frame, 5, len(frame)) == (7, 42, commands)


def test_chunk_damaged_on_the_way_is_refused() -> None:
    """The checksum covers the bytes that the sender sent."""
    frame = bytearray(codec.encode_chunk(codec.Chunk("name", 100, 0, b"x" * 50)))
    assert codec.decode_chunk(bytes(frame), 5, len(frame)).data == b"x" * 50
    frame[-1] ^= 1
    with pytest.raises(RemoteProtocolError):
        codec.decode_chunk(bytes(frame), 5, len(frame))


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=6), st.integers(1, 9))
def test_frames_are_found_however_they_are_cut(bodies: list[bytes], step: int) -> None:
    """For any segmentation of the stream the frames are the same."""
    stream = b"".join(framing.frame(codec.TOUCH, body) for body in bodies)
    reader = framing.PeerFrames()
    reader.limit = codec.FRAME_BYTES_MAX
    found: list[bytes] = []
    for at in range(0, len(stream), step):
        found += [block[a:b] for _, block, a, b in reader.feed(stream[at : at + step])]
    assert found == bodies


def test_strangers_may_not_send_long_frames() -> None:
    """Before its hello a peer cannot make this node allocate memory."""
    reader = framing.PeerFrames()
    with pytest.raises(RemoteProtocolError):
        reader.feed(b"\x7f\xff\xff\xff\x03")
    with pytest.raises(RemoteProtocolError):
        framing.PeerFrames().feed(b"GET / HTTP/1.1\r\n\r\n")


LEVELS = st.integers(0, (1 << 32) - 1)


@given(LEVELS, LEVELS, st.booleans(), st.sampled_from(["", "h5:1", "[::1]:65535"]))
def test_hellos_round_trip_in_both_versions(supported: int, required: int, has_log: bool, address: str) -> None:
    """The older version has no levels: its sender supports level 0."""
    for version in (codec.VERSION_BEFORE, codec.VERSION):
        hello = hello_frames.Hello(b"c" * 16, 1, 2, 7, has_log, version, 9, address, supported, required)
        got = hello_frames.decode_hello(hello_frames.encode_hello(hello)[5:])
        levels = (supported, required) if version == codec.VERSION else (0, 0)
        assert (got.supported, got.required) == levels
        assert (got.version, got.src, got.dst, got.has_log, got.config) == (version, 1, 2, has_log, 9)
        assert (got.cluster, got.incarnation, got.address) == (b"c" * 16, 7, address)


def test_a_hello_of_the_version_before_is_byte_for_byte_what_older_builds_send() -> None:
    """Older builds take the rest of the frame for the address."""
    hello = hello_frames.Hello(b"c" * 16, 1, 2, 7, True, codec.VERSION_BEFORE, 9, "h:1", 5, 5)
    body = b"RKPR\x00\x03" + b"c" * 16 + b"".join(n.to_bytes(8, "big") for n in (1, 2, 7)) + b"\1" + bytes(7) + b"\x09"
    assert hello_frames.encode_hello(hello)[5:] == body + b"h:1"


def test_fields_of_later_builds_are_passed_over() -> None:
    """Fields of any length are skipped; a truncated field, or a level of another size, makes the hello invalid."""
    body = hello_frames.encode_hello(hello_frames.Hello(b"c" * 16, 1, 2, 7, True, supported=3))[5:]
    assert hello_frames.decode_hello(body + b"\x00\x63\x00\x05later").supported == 3
    for rest in (b"\x00", b"\x00\x63\x00\x05late", b"\x00\x01\x00\x02\x00\x03"):
        with pytest.raises(RemoteProtocolError):
            hello_frames.decode_hello(body + rest)


def test_the_refusal_of_an_older_listener_names_its_version() -> None:
    """No other rejection makes a dialer try an older version."""
    assert hello_frames.refused_version("speaks version 4, this node 3") == 3
    assert hello_frames.refused_version("node 5 is not a member") == 0
    assert hello_frames.refused_version("speaks version 4, this node 3 and more") == 0


def test_a_level_entry_that_cannot_be_read_costs_the_link() -> None:
    """Such an entry would stop the node that applies it."""
    frame = raft_frames.encode_raft(Message(APPEND, 1, 2, 3, entries=[Entry(1, 1, 3, b"\2")]))
    with pytest.raises(RemoteProtocolError, match="feature level"):
        raft_frames.decode_raft(frame, 5, len(frame))
