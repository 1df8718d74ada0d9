"""Frames of a copy: what was sent is what arrives, and everything else is rejected."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from coord.errors import RemoteProtocolError
from coord.raft.messages import Entry
from regionserver.tablets.copying import wire

ENTRIES = [Entry(3, 41, 0, b"a"), Entry(4, 42, 1, b""), Entry(4, 43, 0, bytes(1000))]


@pytest.mark.parametrize("asked", [wire.BeginCopy("t", 1, 2), wire.FetchRows(), wire.FetchLog(40, 3), wire.EndCopy()])
def test_requests(asked: wire.Ask) -> None:
    assert wire.decode_ask(wire.encode(asked)) == asked


@pytest.mark.parametrize(
    "answer",
    [
        wire.CopyBegun(5, 1, 2, b"c", 1 << 40, "t", "a", "", 3),
        wire.CopyRefused("busy", may_wait=True),
        wire.RowsSent(7, 3),
        wire.LogBegins(5, 1, 2, b"c"),
        wire.LogSent(43, 4),
    ],
)
def test_answers(answer: wire.Answer) -> None:
    assert wire.decode_answer(wire.encode(answer)) == answer


def test_a_chunk_that_has_changed_is_rejected() -> None:
    data = b"rows " * 100
    sent = bytearray(wire.seal_of(data) + data)
    assert wire.open_chunk(memoryview(sent)) == (data, crc32c(data))
    for at in (0, 3, 4, len(sent) - 1):
        changed = bytearray(sent)
        changed[at] ^= 1
        with pytest.raises(RemoteProtocolError, match="checksum"):
            wire.open_chunk(memoryview(changed))
    with pytest.raises(RemoteProtocolError, match="checksum"):
        wire.open_chunk(memoryview(b"abc"))


def test_entries_follow_each_other() -> None:
    data = memoryview(wire.encode_entries(ENTRIES))
    assert [(one.term, one.index, one.kind, one.data) for one in wire.decode_entries(data, 40)] == [
        (one.term, one.index, one.kind, one.data) for one in ENTRIES
    ]
    for after in (39, 41):
        with pytest.raises(RemoteProtocolError, match="do not follow"):
            wire.decode_entries(data, after)
    with pytest.raises(RemoteProtocolError, match="do not follow"):
        wire.decode_entries(memoryview(wire.encode_entries([ENTRIES[0], ENTRIES[2]])), 40)
    with pytest.raises(RemoteProtocolError, match="do not follow"):
        wire.decode_entries(memoryview(wire.encode_entries([])), 40)


def test_foreign_bytes_are_rejected() -> None:
    for decode in (wire.decode_ask, wire.decode_answer, lambda data: wire.decode_entries(memoryview(data), 0)):
        for data in (b"", b"\xff\xff", wire.encode(wire.FetchRows())[:-1]):
            with pytest.raises(RemoteProtocolError):
                decode(data)
    with pytest.raises(RemoteProtocolError):
        wire.decode_ask(wire.encode(wire.LogSent(1, 1)))
