"""Frames between tablet hosts: encoded frames are decoded again, and all other bytes are rejected."""

from __future__ import annotations

import pytest

from coord.errors import RemoteProtocolError
from coord.raft.bounds import NUMBER_MAX
from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    CONFIG,
    HEARTBEAT,
    HEARTBEAT_RESP,
    LEVEL,
    NORMAL,
    PRE_VOTE,
    READ_INDEX_RESP,
    SNAPSHOT,
    VOTE,
    VOTE_RESP,
    Entry,
    Message,
)
from regionserver.tablets.host import envelope
from regionserver.tablets.host.envelope import (
    BeatFrame,
    Envelope,
    Header,
    Item,
    Refusal,
    TurnFrame,
    Word,
    decode_frame,
    encode_beat,
    encode_turn,
)
from simulation.engine.chance import SeededRandom

HEADER = Header("cluster", "server-1", 17, "server-2")
ENTRIES = [Entry(3, 8, NORMAL, b"rows"), Entry(4, 9, CONFIG, b"members"), Entry(4, 10, NORMAL, b"")]
MESSAGES = [
    Message(PRE_VOTE, 1, 2, 5, prev_index=7, prev_term=4),
    Message(VOTE, 1, 2, 5, prev_index=7, prev_term=4, granted=True),
    Message(VOTE_RESP, 1, 2, 5, granted=True, memory=9),
    Message(APPEND, 1, 2, 4, prev_index=7, prev_term=3, commit=6, entries=ENTRIES),
    Message(APPEND_RESP, 2, 1, 4, match_index=10, granted=True),
    Message(HEARTBEAT, 1, 2, 4, commit=6, prev_term=3, context=12),
    Message(READ_INDEX_RESP, 1, 2, NUMBER_MAX - 1, context=NUMBER_MAX - 1, match_index=NUMBER_MAX - 1),
]
ITEMS: list[Item] = [
    *(Envelope(f"tablet-{number}", message) for number, message in enumerate(MESSAGES)),
    Refusal("tablet-ä", Word.COPYING, 3, 1, 5, 10, 4, 1 << 40),
    Refusal("t", Word.DOES_NOT_EXIST, 0, 1),
]
BEATS = [
    Envelope("t", Message(HEARTBEAT, 1, 2, 4, commit=6, prev_term=3, context=12)),
    Envelope("u", Message(HEARTBEAT_RESP, 2, 1, 4, match_index=9, context=12, memory=77)),
]


def fields(item: Item | Header) -> object:
    """Return the fields of an item for a comparison: items have no equality, and no __dict__ if compiled."""
    if isinstance(item, Header):
        return (item.cluster, item.sender, item.start_code, item.recipient)
    if isinstance(item, Refusal):
        names = ["tablet", "word", "src", "dst", "term", "last_index", "last_term", "progress"]
        return {name: getattr(item, name) for name in names}
    names = ["kind", "src", "dst", "term", "prev_index", "prev_term", "commit", "match_index", "granted", "context"]
    message = {name: getattr(item.message, name) for name in [*names, "memory"]}
    return (item.tablet, {**message, "entries": item.message.entries or []})


def test_a_turn_comes_back_as_it_was() -> None:
    (data,) = encode_turn(HEADER, ITEMS)
    frame = decode_frame(data)
    assert isinstance(frame, TurnFrame)
    assert fields(frame.header) == fields(HEADER)
    assert [fields(item) for item in frame.items] == [fields(item) for item in ITEMS]


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("disk_answers", [True, False])
def test_a_beat_comes_back_as_it_was(disk_answers: bool, is_full: bool) -> None:
    (data,) = encode_beat(HEADER, 3, disk_answers=disk_answers, heartbeats=BEATS, is_full=is_full)
    frame = decode_frame(data)
    assert isinstance(frame, BeatFrame)
    assert fields(frame.header) == fields(HEADER)
    assert (frame.number, frame.disk_answers, frame.is_full) == (3, disk_answers, is_full)
    assert [fields(row) for row in frame.heartbeats] == [fields(row) for row in BEATS]


def test_a_turn_that_exceeds_a_frame_becomes_several() -> None:
    entry = Entry(3, 8, NORMAL, bytes(envelope.FRAME_BYTES // 2))
    append = Envelope("t", Message(APPEND, 1, 2, 4, prev_index=7, prev_term=3, entries=[entry]))
    items = [*ITEMS, append, *ITEMS, append, append, *ITEMS]
    frames = encode_turn(HEADER, items)
    assert len(frames) == 3
    decoded = [decode_frame(data) for data in frames]
    together = [fields(item) for frame in decoded if isinstance(frame, TurnFrame) for item in frame.items]
    assert together == [fields(item) for item in items]


def test_a_beat_of_many_tablets_becomes_several_frames_of_one_number() -> None:
    rows = [BEATS[0]] * (envelope.ROWS_MAX + 1)
    frames = [decode_frame(data) for data in encode_beat(HEADER, 9, disk_answers=True, heartbeats=rows)]
    assert [(frame.number, len(frame.heartbeats)) for frame in frames if isinstance(frame, BeatFrame)] == [
        (9, envelope.ROWS_MAX),
        (9, 1),
    ]


def test_frames_have_these_bytes() -> None:
    """The format is fixed: servers of two builds must understand each other."""
    (turn,) = encode_turn(Header("c", "a", 1, "b"), [Envelope("t", Message(HEARTBEAT, 1, 2, 3, commit=4, context=5))])
    assert turn.hex() == (
        "0101" "0163" "0161" "0000000000000001" "0162" "00000001"
        "01" "0174" "0700" "0000000000000001" "0000000000000002" "0000000000000003" "0000000000000000"
        "0000000000000000" "0000000000000004" "0000000000000000" "0000000000000005" "00000000"
    )  # fmt: skip
    (beat,) = encode_beat(Header("c", "a", 1, "b"), 7, disk_answers=True, heartbeats=[])
    assert beat.hex() == "0102016301610000000000000001016200000000000000070100000000"


def encoded() -> list[bytes]:
    """Return a frame of each kind."""
    return [*encode_turn(HEADER, ITEMS), *encode_beat(HEADER, 3, disk_answers=True, heartbeats=BEATS)]


@pytest.mark.parametrize("data", encoded(), ids=["turn", "beat"])
def test_a_frame_cut_anywhere_is_refused(data: bytes) -> None:
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_frame(data[:end])
    with pytest.raises(RemoteProtocolError):
        decode_frame(data + b"\x00")


@pytest.mark.parametrize("data", encoded(), ids=["turn", "beat"])
def test_random_damage_is_refused_or_reads_as_what_it_says(data: bytes) -> None:
    """The decoder raises only RemoteProtocolError, and accepts only bytes that the encoder could write."""
    chance = SeededRandom("damage")
    refused = 0
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(1 + chance.below(3)):
            damaged[chance.below(len(damaged))] = chance.below(256)
        try:
            frame = decode_frame(bytes(damaged))
        except RemoteProtocolError:
            refused += 1
            continue
        if isinstance(frame, TurnFrame):
            again = encode_turn(frame.header, frame.items)
        else:
            again = encode_beat(
                frame.header,
                frame.number,
                disk_answers=frame.disk_answers,
                heartbeats=frame.heartbeats,
                is_full=frame.is_full,
            )
        assert again == [bytes(damaged)]
    assert refused > 300


def changed(item: Item, old: bytes, new: bytes) -> bytes:
    """Return the frame of one item with some of its bytes replaced."""
    (data,) = encode_turn(HEADER, [item])
    assert data.count(old) == 1, data.hex()
    return data.replace(old, new)


BIG = Message(APPEND, 1, 2, 0x0A0B0C0D, entries=[Entry(0x01020304, 1, 0, b"payload")])


@pytest.mark.parametrize(
    "data",
    [
        changed(Envelope("t", BIG), b"\x0a\x0b\x0c\x0d", b"\x0a\x0b\x0c\x0d"[:3]),
        changed(Envelope("t", BIG), bytes(4) + b"\x0a\x0b\x0c\x0d", b"\x40" + bytes(3) + b"\x0a\x0b\x0c\x0d"),
        changed(Envelope("t", BIG), b"\x01\x02\x03\x04\x00", b"\x01\x02\x03\x04" + bytes([LEVEL])),
        changed(Envelope("t", BIG), b"\x00\x00\x00\x07payload", b"\x7f\xff\xff\xffpayload"),
        changed(Envelope("tablet", BIG), b"\x06tablet\x05", b"\x06tablet" + bytes([SNAPSHOT])),
        changed(Envelope("tablet", BIG), b"\x06tablet\x05", b"\x06tablet" + bytes([HEARTBEAT])),
        changed(Envelope("tablet", BIG), b"\x06tablet\x05", b"\x06\xff\xffblet\x05"),
        changed(Refusal("tablet", Word.OLDER, 1, 2), b"\x06tablet\x04", b"\x06tablet\x63"),
        b"",
        b"\x02\x01",
        b"\x01\x03",
        bytes(envelope.FRAME_BYTES_MAX + 1),
    ],
    ids=[
        *(
            "short",
            "term of 2^62",
            "kind of entry",
            "length of entry",
            "snapshot",
            "heartbeat with entries",
            "no UTF-8",
        ),
        *("unknown word", "empty", "version", "kind of frame", "too long"),
    ],
)
def test_impossible_frames_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_frame(data)


def test_members_are_two_and_positive() -> None:
    for src, dst in ((0, 1), (1, 0), (1, 1)):
        (data,) = encode_turn(HEADER, [Envelope("t", Message(HEARTBEAT, src, dst, 3))])
        with pytest.raises(RemoteProtocolError, match="from member"):
            decode_frame(data)


def test_the_largest_payload_fits_a_frame() -> None:
    entry = Entry(1, 1, NORMAL, bytes(envelope.PAYLOAD_BYTES_MAX))
    frames = encode_turn(HEADER, [Envelope("t", Message(APPEND, 1, 2, 1, entries=[entry]))])
    frame = decode_frame(frames[0])
    assert isinstance(frame, TurnFrame)
    too_large = Entry(1, 1, NORMAL, bytes(envelope.PAYLOAD_BYTES_MAX + 1))
    (data,) = encode_turn(HEADER, [Envelope("t", Message(APPEND, 1, 2, 1, entries=[too_large]))])
    with pytest.raises(RemoteProtocolError, match="does not fit"):
        decode_frame(data)
