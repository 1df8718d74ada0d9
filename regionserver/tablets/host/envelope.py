"""Frames between the tablet hosts of two servers: bytes in, values out. Pure.

    frame      := version:u8 kind:u8 cluster:text sender:text start_code:u64 recipient:text body
    TURN body  := count:u32 item*                       messages of one turn of the sender for the recipient
    item       := ENVELOPE tablet:text message  |  REFUSAL tablet:text refusal  |  QUIET tablet:text quiet
    BEAT body  := number:u64 disk:u8 count:u32 row*     disk: 1 it answers, 2 it is full (FULL_BEATS)
    row        := tablet:text kind:u8 7 x u64           a heartbeat, or the answer to one
    message    := kind:u8 flags:u8 8 x u64 count:u32 entry*
    entry      := term:u64 kind:u8 length:u32 data      indexes follow from prev_index
    refusal    := word:u8 from:u64 to:u64 term:u64 last_index:u64 last_term:u64 progress:u64
    quiet      := word:u8 from:u64 to:u64 term:u64 commit:u64          (QUIET_TABLETS)
    text       := length:u8 UTF-8

All numbers are big-endian and below NUMBER_MAX. The frame names cluster, sender and recipient once for all its items.
An item names the tablet and the member numbers of both replicas: `src` and `dst` of the Raft message. The decoder
accepts exactly what the encoder writes. Anything else raises RemoteProtocolError: the caller closes the link, and
nothing has changed.

SNAPSHOT messages are not encoded: a replica that needs a snapshot is copied by other means.

Compiled builds read and write numbers natively; the interpreted form uses `struct`. Both give the same bytes.
"""

from __future__ import annotations

import enum
import functools
import struct
from typing import Final

from coord.errors import RemoteProtocolError
from coord.raft.bounds import NUMBER_MAX
from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    HEARTBEAT,
    HEARTBEAT_RESP,
    LEVEL,
    PRE_VOTE,
    PRE_VOTE_RESP,
    READ_INDEX_RESP,
    SNAPSHOT,
    VOTE_RESP,
    Entry,
    Message,
)
from coord.wire.jute import IS_COMPILED, NATIVE_BYTES_MAX

if IS_COMPILED:
    from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be

FRAME_VERSION: Final = 1
#: Kinds of frames.
TURN: Final = 1
BEAT: Final = 2
#: Kinds of items in a TURN frame.
ENVELOPE: Final = 1
REFUSAL: Final = 2
#: Builds without QUIET_TABLETS (`links/hello.py`) close a link that brings this item.
QUIET: Final = 3

#: Bits of the disk in a BEAT. Builds without FULL_BEATS (`links/hello.py`) close a link that brings the second one.
_DISK_ANSWERS: Final = 1
_DISK_IS_FULL: Final = 2

#: A frame is closed at this size. An append carries up to 1 MiB of entries, or one entry of PAYLOAD_BYTES_MAX.
FRAME_BYTES: Final = 4 << 20
#: The largest payload of one client request: 16 MiB may be in flight per tablet, and one request must leave room.
PAYLOAD_BYTES_MAX: Final = 8 << 20
#: Limit of a frame: FRAME_BYTES, one more append at its limit, and the headers. A longer frame is rejected before it is
#: read.
FRAME_BYTES_MAX: Final = FRAME_BYTES + PAYLOAD_BYTES_MAX + (1 << 20)
#: Heartbeats in one BEAT frame; a server with more awake tablets sends several frames.
ROWS_MAX: Final = 10_000
#: Cluster ids, uuids and tablet ids are short names.
TEXT_BYTES_MAX: Final = 255
#: Number of names whose encoded form is kept, because the same names are sent ten times a second.
TEXTS_KEPT: Final = 20_000

_HEAD: Final = struct.Struct(">BB")
_U64: Final = struct.Struct(">Q")
_COUNT: Final = struct.Struct(">I")
_BEAT: Final = struct.Struct(">QBI")
#: Numbers are read signed, as compiled builds read them: valid ones are never negative.
_MESSAGE: Final = struct.Struct(">BBqqqqqqqqi")
_MESSAGE_BYTES: Final = 70
_ENTRY: Final = struct.Struct(">qBi")
_ENTRY_BYTES: Final = 13
_ROW: Final = struct.Struct(">Bqqqqqqq")
_ROW_BYTES: Final = 57
_REFUSAL: Final = struct.Struct(">BQQQQQQ")
_QUIET: Final = struct.Struct(">BQQQQ")
_GRANTED: Final = 1
#: Replies carry the voter's memory in place of the commit index, as in the store's frames.
_ANSWERS: Final = (PRE_VOTE_RESP, VOTE_RESP, APPEND_RESP, HEARTBEAT_RESP)


class Word(enum.IntEnum):
    """Why a replica does not process a Raft message. Numbers are on the wire and keep their meaning."""

    INVALID_NAME = 1  #: another cluster, another server, or a number that belongs to another server
    #: No superblock: this server has no files of the tablet, and never makes a voter without its promises.
    DOES_NOT_EXIST = 2
    OLD_NUMBER = 3  #: for a former replica on this server
    OLDER = 4  #: for a replica that this server is still to get
    INVALID_TERM = 5  #: the sender's term is over
    DELETED = 6  #: a tombstone
    COPYING = 7  #: a copy is under way
    FAILED = 8  #: The replica's memory is sound. Its rows or its code are not.
    RESTING = 9  #: closed with its files, because the table is disabled


class Header:
    """Sender and recipient of a frame: servers, not replicas."""

    def __init__(self, cluster: str, sender: str, start_code: int, recipient: str) -> None:
        self.cluster: str = cluster
        self.sender: str = sender
        #: Start code of the sender. Another start code is another process, so the former process is gone.
        self.start_code: int = start_code
        self.recipient: str = recipient


class Envelope:
    """A Raft message between two replicas of a tablet. `message.src` and `message.dst` are member numbers.

    Never changed.
    """

    def __init__(self, tablet: str, message: Message) -> None:
        self.tablet: str = tablet
        self.message: Message = message


class Refusal:
    """Reply of a server whose replica cannot process a message (docs/tablets.md, What a server answers)."""

    def __init__(
        self,
        tablet: str,
        word: Word,
        src: int,
        dst: int,
        term: int = 0,
        last_index: int = 0,
        last_term: int = 0,
        progress: int = 0,
    ) -> None:
        self.tablet: str = tablet
        self.word: Word = word
        #: Number of the refusing replica, 0 if there is none; and the number of the message's sender.
        self.src: int = src
        self.dst: int = dst
        self.term: int = term
        self.last_index: int = last_index
        self.last_term: int = last_term
        #: Bytes received so far by a running copy.
        self.progress: int = progress


class QuietWord(enum.IntEnum):
    """Message of one member to another about the rest of their group (`quiet.py`). Numbers are on the wire."""

    QUIET = 1  #: the leader: you have everything, expect no message until there is work
    WAKE = 2  #: the group has work, or the sender lacks entries that the leader expects it to have
    LEFT = 3  #: the leader: I stop, elect another one


class Quiet:
    """A member's word to another one. `commit` is the end of the leader's log, all of it committed."""

    def __init__(self, tablet: str, word: QuietWord, src: int, dst: int, term: int, commit: int = 0) -> None:
        self.tablet: str = tablet
        self.word: QuietWord = word
        self.src: int = src
        self.dst: int = dst
        self.term: int = term
        self.commit: int = commit


Item = Envelope | Refusal | Quiet


class TurnFrame:
    """All items of one turn of the sender for the recipient."""

    def __init__(self, header: Header, items: list[Item]) -> None:
        self.header: Header = header
        self.items: list[Item] = items


class BeatFrame:
    """Proof that the sender's process lives, with the heartbeats of its awake tablets."""

    def __init__(
        self, header: Header, number: int, disk_answers: bool, heartbeats: list[Envelope], is_full: bool = False
    ) -> None:
        self.header: Header = header
        #: Rises with each BEAT of a start, so that a repeated BEAT proves nothing.
        self.number: int = number
        #: False while a write to the sender's log takes too long.
        self.disk_answers: bool = disk_answers
        #: True while the sender's disk has no room for writes.
        self.is_full: bool = is_full
        #: Of kind HEARTBEAT or HEARTBEAT_RESP.
        self.heartbeats: list[Envelope] = heartbeats


def encode_turn(header: Header, items: list[Item]) -> list[bytes]:
    """Return the frames that carry `items`: one, or several if they exceed FRAME_BYTES."""
    frames: list[bytes] = []
    head = _head(header, TURN)
    parts: list[bytes] = []
    size = count = 0
    for item in items:
        encoded = _encode_item(item)
        if parts and size + len(encoded) > FRAME_BYTES:
            frames.append(head + _COUNT.pack(count) + b"".join(parts))
            parts = []
            size = count = 0
        parts.append(encoded)
        size += len(encoded)
        count += 1
    frames.append(head + _COUNT.pack(count) + b"".join(parts))
    return frames


def encode_beat(
    header: Header, number: int, *, disk_answers: bool, heartbeats: list[Envelope], is_full: bool = False
) -> list[bytes]:
    """Return the frames of one BEAT: one, or several with the same number for more than ROWS_MAX heartbeats."""
    head = _head(header, BEAT)
    disk = (_DISK_ANSWERS if disk_answers else 0) | (_DISK_IS_FULL if is_full else 0)
    frames: list[bytes] = []
    for first in range(0, max(1, len(heartbeats)), ROWS_MAX):
        rows = heartbeats[first : first + ROWS_MAX]
        parts = [head, _BEAT.pack(number, disk, len(rows))]
        for row in rows:
            parts.append(_text(row.tablet))
            parts.append(_encode_row(row.message))
        frames.append(b"".join(parts))
    return frames


def decode_frame(data: bytes) -> TurnFrame | BeatFrame:
    """Return the content of a frame. Raise RemoteProtocolError."""
    if len(data) > FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"frame of {len(data)} bytes between tablet hosts, allowed are {FRAME_BYTES_MAX}")
    try:
        return _decode_frame(data)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise RemoteProtocolError(f"a frame of {len(data)} bytes between tablet hosts is cut short: {error}") from error


def _decode_frame(data: bytes) -> TurnFrame | BeatFrame:
    version, kind = _HEAD.unpack_from(data, 0)
    if version != FRAME_VERSION or kind not in (TURN, BEAT):
        raise RemoteProtocolError(f"frame of version {version} and kind {kind} between tablet hosts")
    cluster, at = _read_text(data, 2)
    sender, at = _read_text(data, at)
    start_code = _number(_U64.unpack_from(data, at)[0])
    recipient, at = _read_text(data, at + 8)
    header = Header(cluster, sender, start_code, recipient)
    frame: TurnFrame | BeatFrame
    if kind == TURN:
        items, at = _decode_items(data, at)
        frame = TurnFrame(header, items)
    else:
        number, disk, count = _BEAT.unpack_from(data, at)
        if disk > _DISK_ANSWERS | _DISK_IS_FULL or count > ROWS_MAX:
            raise RemoteProtocolError(f"a BEAT with {count} heartbeats, and {disk} for the disk")
        rows, at = _decode_rows(data, at + _BEAT.size, count)
        frame = BeatFrame(header, _number(number), disk & _DISK_ANSWERS != 0, rows, disk & _DISK_IS_FULL != 0)
    if at != len(data):
        raise RemoteProtocolError(f"{len(data) - at} bytes follow the last item of a frame")
    return frame


def _decode_items(data: bytes, at: int) -> tuple[list[Item], int]:
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    items: list[Item] = []
    for _ in range(count):
        kind = data[at]
        tablet, at = _read_text(data, at + 1)
        if kind == ENVELOPE:
            message, at = _decode_message(data, at)
            items.append(Envelope(tablet, message))
        elif kind == REFUSAL:
            refusal, at = _decode_refusal(tablet, data, at)
            items.append(refusal)
        elif kind == QUIET:
            quiet, at = _decode_quiet(tablet, data, at)
            items.append(quiet)
        else:
            raise RemoteProtocolError(f"an item of unknown kind {kind}")
    return items, at


def _encode_item(item: Item) -> bytes:
    if isinstance(item, Envelope):
        return _encode_envelope(item)
    if isinstance(item, Quiet):
        quiet = _QUIET.pack(item.word, item.src, item.dst, item.term, item.commit)
        return b"\x03" + _text(item.tablet) + quiet
    return b"".join(
        (
            b"\x02",
            _text(item.tablet),
            _REFUSAL.pack(item.word, item.src, item.dst, item.term, item.last_index, item.last_term, item.progress),
        )
    )


def _decode_refusal(tablet: str, data: bytes, at: int) -> tuple[Refusal, int]:
    word, *numbers = _REFUSAL.unpack_from(data, at)
    for number in numbers:
        _number(number)
    try:
        return Refusal(tablet, Word(word), *numbers), at + _REFUSAL.size
    except ValueError as error:
        raise RemoteProtocolError(f"a refusal with the unknown word {word}") from error


def _decode_quiet(tablet: str, data: bytes, at: int) -> tuple[Quiet, int]:
    word, src, dst, term, commit = _QUIET.unpack_from(data, at)
    _members(src, dst)
    _number(term | commit)
    try:
        return Quiet(tablet, QuietWord(word), src, dst, term, commit), at + _QUIET.size
    except ValueError as error:
        raise RemoteProtocolError(f"a word of rest with the unknown number {word}") from error


# --- Raft messages ----------------------------------------------------------------------------------------------------


def _encode_envelope(item: Envelope) -> bytes:
    m = item.message
    assert m.kind != SNAPSHOT, f"a snapshot at {m.snapshot and m.snapshot.index} for {m.dst} in an envelope"
    entries = m.entries or []
    if IS_COMPILED and sum([_ENTRY_BYTES + len(entry.data) for entry in entries]) <= NATIVE_BYTES_MAX:
        return _encode_short(item.tablet, m, entries)
    parts = [
        b"\x01",
        _text(item.tablet),
        _MESSAGE.pack(
            m.kind,
            _GRANTED if m.granted else 0,
            m.src,
            m.dst,
            m.term,
            m.prev_index,
            m.prev_term,
            m.memory if m.kind in _ANSWERS else m.commit,
            m.match_index,
            m.context,
            len(entries),
        ),
    ]
    for entry in entries:
        parts.append(_ENTRY.pack(entry.term, entry.kind, len(entry.data)))
        parts.append(entry.data)
    return b"".join(parts)


def _encode_short(tablet: str, m: Message, entries: list[Entry]) -> bytes:
    """Encode an envelope with short entries. Compiled builds only."""
    out = BytesWriter()
    out.append(ENVELOPE)
    out.write(_text(tablet))
    out.append(m.kind)
    out.append(_GRANTED if m.granted else 0)
    write_i64_be(out, m.src)
    write_i64_be(out, m.dst)
    write_i64_be(out, m.term)
    write_i64_be(out, m.prev_index)
    write_i64_be(out, m.prev_term)
    write_i64_be(out, m.memory if m.kind in _ANSWERS else m.commit)
    write_i64_be(out, m.match_index)
    write_i64_be(out, m.context)
    write_i32_be(out, len(entries))
    for entry in entries:
        write_i64_be(out, entry.term)
        out.append(entry.kind)
        write_i32_be(out, len(entry.data))
        out.write(entry.data)
    return out.getvalue()


def _decode_message(data: bytes, at: int) -> tuple[Message, int]:
    if len(data) - at < _MESSAGE_BYTES:
        raise RemoteProtocolError(f"a Raft message has {len(data) - at} bytes")
    if IS_COMPILED:
        kind, flags = data[at], data[at + 1]
        src, dst, term = read_i64_be(data, at + 2), read_i64_be(data, at + 10), read_i64_be(data, at + 18)
        prev_index, prev_term = read_i64_be(data, at + 26), read_i64_be(data, at + 34)
        commit, match, context = read_i64_be(data, at + 42), read_i64_be(data, at + 50), read_i64_be(data, at + 58)
        count = read_i32_be(data, at + 66)
    else:
        kind, flags, src, dst, term, prev_index, prev_term, commit, match, context, count = _MESSAGE.unpack_from(
            data, at
        )
    if not PRE_VOTE <= kind <= READ_INDEX_RESP or kind == SNAPSHOT or flags > _GRANTED:
        raise RemoteProtocolError(f"a Raft message of kind {kind} with flags {flags} in an envelope")
    _members(src, dst)
    # NUMBER_MAX is a power of two, so one comparison of all bits checks every number.
    _number(term | prev_index | prev_term | commit | match | context)
    if count and (kind != APPEND or count < 0):
        raise RemoteProtocolError(f"{count} entries in a Raft message of kind {kind}")
    at += _MESSAGE_BYTES
    entries: list[Entry] = []
    index: int = prev_index
    for _ in range(count):
        index += 1
        entry, at = _decode_entry(data, at, index)
        entries.append(entry)
    m = Message(kind, src, dst, term, prev_index, prev_term, 0, match, flags != 0, context, entries or None)
    _set_commit(m, commit)
    return m, at


def _decode_entry(data: bytes, at: int, index: int) -> tuple[Entry, int]:
    if len(data) - at < _ENTRY_BYTES:
        raise RemoteProtocolError(f"entry {index} is cut short")
    length: int
    if IS_COMPILED:
        term, kind, length = read_i64_be(data, at), data[at + 8], read_i32_be(data, at + 9)
    else:
        term, kind, length = _ENTRY.unpack_from(data, at)
    at += _ENTRY_BYTES
    if kind >= LEVEL or not 0 <= length <= PAYLOAD_BYTES_MAX or at + length > len(data):
        raise RemoteProtocolError(f"entry {index} of kind {kind} and {length} bytes does not fit its frame or limit")
    return Entry(_number(term), _number(index), kind, data[at : at + length]), at + length


def _set_commit(m: Message, value: int) -> None:
    if m.kind in _ANSWERS:
        m.memory = value
    else:
        m.commit = value


def _encode_row(m: Message) -> bytes:
    """Return a heartbeat or its answer.

    A heartbeat has the commit index with its term, and the index that every member has; a reply has the end of the log
    and the memory.
    """
    if m.kind == HEARTBEAT:
        return _ROW.pack(m.kind, m.src, m.dst, m.term, m.commit, m.prev_term, m.context, m.match_index)
    assert m.kind == HEARTBEAT_RESP, f"a message of kind {m.kind} in a BEAT"
    return _ROW.pack(m.kind, m.src, m.dst, m.term, m.match_index, m.memory, m.context, 0)


def _decode_rows(data: bytes, at: int, count: int) -> tuple[list[Envelope], int]:
    """Return the rows of a BEAT. Runs for each tablet that is awake, several times a second."""
    rows: list[Envelope] = []
    size = len(data)
    for _ in range(count):
        end = at + 1 + data[at]
        # A name that is cut short leaves no room for the numbers.
        if size - end < _ROW_BYTES:
            raise RemoteProtocolError("a heartbeat is cut short")
        tablet = data[at + 1 : end].decode()
        at = end + _ROW_BYTES
        if IS_COMPILED:
            kind, src, dst, term = (
                data[end],
                read_i64_be(data, end + 1),
                read_i64_be(data, end + 9),
                read_i64_be(data, end + 17),
            )
            first, second = read_i64_be(data, end + 25), read_i64_be(data, end + 33)
            context, everywhere = read_i64_be(data, end + 41), read_i64_be(data, end + 49)
        else:
            kind, src, dst, term, first, second, context, everywhere = _ROW.unpack_from(data, end)
        _members(src, dst)
        _number(term | first | second | context | everywhere)
        if kind == HEARTBEAT:
            m = Message(HEARTBEAT, src, dst, term, 0, second, first, everywhere, False, context)
        elif kind == HEARTBEAT_RESP and not everywhere:
            m = Message(HEARTBEAT_RESP, src, dst, term, 0, 0, 0, first, False, context)
            m.memory = second
        else:
            raise RemoteProtocolError(f"a Raft message of kind {kind} in a BEAT")
        rows.append(Envelope(tablet, m))
    return rows, at


# --- parts ------------------------------------------------------------------------------------------------------------


def _head(header: Header, kind: int) -> bytes:
    return b"".join(
        (
            _HEAD.pack(FRAME_VERSION, kind),
            _text(header.cluster),
            _text(header.sender),
            _U64.pack(header.start_code),
            _text(header.recipient),
        )
    )


@functools.lru_cache(maxsize=TEXTS_KEPT)
def _text(text: str) -> bytes:
    data = text.encode()
    assert len(data) <= TEXT_BYTES_MAX, f"a name of {len(data)} bytes in a frame: {text[:40]}"
    return len(data).to_bytes(1, "big") + data


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    if end > len(data):
        raise RemoteProtocolError("a name is longer than its frame")
    return data[at + 1 : end].decode(), end


def _number(number: int) -> int:
    if not 0 <= number < NUMBER_MAX:
        raise RemoteProtocolError(f"the number {number} in a frame is out of range")
    return number


def _members(src: int, dst: int) -> None:
    if src == 0 or dst == 0 or src == dst:
        raise RemoteProtocolError(f"a Raft message from member {src} to member {dst}")
    _number(src | dst)
