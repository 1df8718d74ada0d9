"""Raft messages and forwarded commands as frames. Pure: bytes in, values out. On the path of every write.

    raft     := frame kind 3: kind:u8 flags:u8 src dst term prev_index prev_term commit_or_memory match_index context 0
                entries:i32  [snapshot]  entry*       all numbers i64 but the last; flags: 1 granted, 2 snapshot
    snapshot := index:u64 term:u64 name_length:u16 config_length:u32 name configuration
    entry    := term:i64 index:i64 kind:u8 length:i32 data
    forward  := frame kind 4: term:i64 first:i64 command*             each command begins with its own length

Compiled builds read and write numbers natively; the interpreted form uses `struct`. Both give the same bytes.
"""

from __future__ import annotations

import struct
from typing import Final

from coord.errors import RemoteProtocolError
from coord.peers.framing import frame
from coord.raft.bounds import NUMBER_MAX
from coord.raft.messages import (
    APPEND_RESP,
    CONFIG,
    HEARTBEAT_RESP,
    LEVEL,
    PRE_VOTE_RESP,
    VOTE_RESP,
    Entry,
    Message,
    RaftSnapshot,
)
from coord.server.config.addresses import check_configuration
from coord.server.peers.codec import FORWARD, FRAME_BYTES_MAX, RAFT
from coord.tree.command import COMMAND_HEADER_BYTES
from coord.tree.levels import decode_level
from coord.wire.jute import IS_COMPILED, NATIVE_BYTES_MAX

if IS_COMPILED:
    from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be

#: Longest forwarded command. A longer one would make an entry that fits into no append: a batch is closed at 1 MiB,
#: and headers need less than another MiB.
COMMAND_BYTES_MAX: Final = FRAME_BYTES_MAX - (2 << 20)

#: Numbers of Raft messages and forwards are read signed, as compiled builds store them; valid ones are never negative.
_RAFT: Final = struct.Struct(">BBqqqqqqqqqi")
_RAFT_BYTES: Final = 78
_ENTRY: Final = struct.Struct(">qqBi")
_ENTRY_BYTES: Final = 21
_SNAPSHOT: Final = struct.Struct(">QQHI")
_FORWARD: Final = struct.Struct(">qq")
_FORWARD_BYTES: Final = 16
_FRAME: Final = struct.Struct(">IB")
_LENGTH: Final = struct.Struct(">I")
#: Responses have the voter's memory in the place of the commit index. Older builds send 0 there and ignore the field.
_RESPONSES: Final = (PRE_VOTE_RESP, VOTE_RESP, APPEND_RESP, HEARTBEAT_RESP)
_FLAG_GRANTED: Final = 1
_FLAG_SNAPSHOT: Final = 2


def encode_raft(m: Message) -> bytes:
    """Encode a Raft message as a frame."""
    flags = (_FLAG_GRANTED if m.granted else 0) | (_FLAG_SNAPSHOT if m.snapshot is not None else 0)
    entries = m.entries or []
    if IS_COMPILED and m.snapshot is None:
        size = _RAFT_BYTES + sum(_ENTRY_BYTES + len(entry.data) for entry in entries)
        if size <= NATIVE_BYTES_MAX:
            return _encode_short(m, flags, entries, size)
    fixed = _RAFT.pack(
        m.kind,
        flags,
        m.src,
        m.dst,
        m.term,
        m.prev_index,
        m.prev_term,
        m.memory if m.kind in _RESPONSES else m.commit,
        m.match_index,
        m.context,
        0,
        len(entries),
    )
    parts = [b"", fixed]
    if m.snapshot is not None:
        name = m.snapshot.handle.encode()
        config = m.snapshot.config.encode()
        parts += [_SNAPSHOT.pack(m.snapshot.index, m.snapshot.term, len(name), len(config)), name, config]
    for entry in entries:
        parts.append(_ENTRY.pack(entry.term, entry.index, entry.kind, len(entry.data)))
        parts.append(entry.data)
    parts[0] = _FRAME.pack(sum(map(len, parts)) + 1, RAFT)
    return b"".join(parts)


def _encode_short(m: Message, flags: int, entries: list[Entry], size: int) -> bytes:
    """Encode a message of `size` bytes without a snapshot. Compiled builds only."""
    out = BytesWriter()
    write_i32_be(out, size + 1)
    out.append(RAFT)
    out.append(m.kind)
    out.append(flags)
    write_i64_be(out, m.src)
    write_i64_be(out, m.dst)
    write_i64_be(out, m.term)
    write_i64_be(out, m.prev_index)
    write_i64_be(out, m.prev_term)
    write_i64_be(out, m.memory if m.kind in _RESPONSES else m.commit)
    write_i64_be(out, m.match_index)
    write_i64_be(out, m.context)
    write_i64_be(out, 0)
    write_i32_be(out, len(entries))
    for entry in entries:
        write_i64_be(out, entry.term)
        write_i64_be(out, entry.index)
        out.append(entry.kind)
        write_i32_be(out, len(entry.data))
        out.write(entry.data)
    return out.getvalue()


def decode_raft(data: bytes, at: int, end: int) -> Message:
    """Return the message in data[at:end]. Raise RemoteProtocolError."""
    if end - at < _RAFT_BYTES:
        raise RemoteProtocolError(f"a Raft message has {end - at} bytes")
    if IS_COMPILED:
        kind, flags = data[at], data[at + 1]
        src, dst, term = read_i64_be(data, at + 2), read_i64_be(data, at + 10), read_i64_be(data, at + 18)
        prev_index, prev_term = read_i64_be(data, at + 26), read_i64_be(data, at + 34)
        commit, match, context = read_i64_be(data, at + 42), read_i64_be(data, at + 50), read_i64_be(data, at + 58)
        count = read_i32_be(data, at + 74)
    else:
        kind, flags, src, dst, term, prev_index, prev_term, commit, match, context, _, count = _RAFT.unpack_from(
            data, at
        )
    # NUMBER_MAX is a power of two, so one comparison of all bits checks every number.
    numbers = src | dst | term | prev_index | prev_term | commit | match | context
    if numbers < 0 or numbers >= NUMBER_MAX:
        raise RemoteProtocolError("a number of a Raft message is out of range")
    at += _RAFT_BYTES
    snapshot: RaftSnapshot | None = None
    if flags & _FLAG_SNAPSHOT:
        snapshot, at = _decode_snapshot(data, at, end)
    entries = _decode_entries(data, at, end, count)
    granted = bool(flags & _FLAG_GRANTED)
    message = Message(
        kind, src, dst, term, prev_index, prev_term, commit, match, granted, context, entries or None, snapshot
    )
    if kind in _RESPONSES:
        message.memory = commit
        message.commit = 0
    return message


def _decode_snapshot(data: bytes, at: int, end: int) -> tuple[RaftSnapshot, int]:
    """Return the snapshot that a message offers at `at`, and the offset after it. Raise RemoteProtocolError."""
    try:
        index, term, name_length, config_length = _SNAPSHOT.unpack_from(data, at)
        at += _SNAPSHOT.size
        name = data[at : at + name_length].decode()
        at += name_length
        config = check_configuration(data[at : at + config_length])
    except (struct.error, ValueError) as error:
        raise RemoteProtocolError(f"malformed snapshot: {error}") from error
    if at + config_length > end or index >= NUMBER_MAX or term >= NUMBER_MAX:
        raise RemoteProtocolError(f"a snapshot at {index} of term {term} is longer than its message or out of range")
    return RaftSnapshot(index, term, config, name), at + config_length


def _decode_entries(data: bytes, at: int, end: int, count: int) -> list[Entry]:
    """Return the entries in data[at:end], which must fill it. Raise RemoteProtocolError."""
    entries: list[Entry] = []
    for _ in range(count):
        start = at + _ENTRY_BYTES
        if start > end:
            raise RemoteProtocolError("an entry is longer than its message")
        if IS_COMPILED:
            term, index, kind = read_i64_be(data, at), read_i64_be(data, at + 8), data[at + 16]
            length = read_i32_be(data, at + 17)
        else:
            term, index, kind, length = _ENTRY.unpack_from(data, at)
        at = start + length
        if (term | index) < 0 or (term | index) >= NUMBER_MAX or length < 0 or at > end:
            raise RemoteProtocolError("an entry is longer than its message, or its term or index is out of range")
        if kind == CONFIG:
            _check_config(data[start:at], index)
        elif kind == LEVEL:
            _check_level(data[start:at], index)
        entries.append(Entry(term, index, kind, data[start:at]))
    if at != end:
        raise RemoteProtocolError(f"{end - at} bytes follow the entries of a Raft message")
    return entries


def _check_level(data: bytes, index: int) -> None:
    """Raise RemoteProtocolError for a LEVEL entry that cannot be applied."""
    try:
        decode_level(data)
    except ValueError as error:
        raise RemoteProtocolError(f"malformed entry {index}: {error}") from error


def _check_config(data: bytes, index: int) -> None:
    """Raise RemoteProtocolError for a CONFIG entry that cannot be applied."""
    try:
        check_configuration(data)
    except ValueError as error:
        raise RemoteProtocolError(f"malformed configuration in entry {index}: {error}") from error


def encode_forward(term: int, first: int, commands: list[bytes]) -> bytes:
    """Encode commands for the leader of `term`, numbered from `first`."""
    return frame(FORWARD, _FORWARD.pack(term, first) + b"".join(commands))


def decode_forward(data: bytes, at: int, end: int) -> tuple[int, int, list[bytes]]:
    """Return (term, number of the first command, commands). Raise RemoteProtocolError."""
    if end - at < _FORWARD_BYTES:
        raise RemoteProtocolError(f"a forward has {end - at} bytes")
    if IS_COMPILED:
        term, first = read_i64_be(data, at), read_i64_be(data, at + 8)
    else:
        term, first = _FORWARD.unpack_from(data, at)
    if (term | first) < 0 or (term | first) >= NUMBER_MAX:
        raise RemoteProtocolError("a number of a forward is out of range")
    at += _FORWARD_BYTES
    commands: list[bytes] = []
    while at < end:
        length = -1
        if end - at >= COMMAND_HEADER_BYTES:
            length = read_i32_be(data, at) if IS_COMPILED else _LENGTH.unpack_from(data, at)[0]
        stop = at + 4 + length
        if stop > end or stop - at < COMMAND_HEADER_BYTES:
            raise RemoteProtocolError("a forwarded command is longer than its frame or shorter than its header")
        if stop - at > COMMAND_BYTES_MAX:
            raise RemoteProtocolError(f"a forwarded command has {stop - at} bytes; the limit is {COMMAND_BYTES_MAX}")
        commands.append(data[at:stop])
        at = stop
    return term, first, commands
