"""What store nodes say to each other. Pure: bytes in, values out.

Each node dials every other; what A has to say to B goes over the connection that A dialled, so one stream carries all
of it in order. All numbers big-endian:

    stream   := hello frame*            (dialler to listener)
    answer   := hello | refused         (listener to dialler, once)
    frame    := length:u32  kind:u8  body
    hello    := frame kind 1: magic "RKPR" version:u16 cluster:16 bytes src:u64 dst:u64 incarnation:u64 has_log:u8
                config:u64                the index of the sender's newest configuration
                version 3: address        where the sender is in that configuration, as UTF-8, to the end
                version 4: address_length:u16 address field*
    field    := tag:u16 length:u16 value  unknown tags are ignored; 1 and 2 have a u32
                1 supported               the highest feature level of the sender's build; 0 if missing
                2 required                the highest feature level in the sender's log; 0 if missing
    refused  := frame kind 2: reason as UTF-8
    raft     := frame kind 3: fixed fields, flags, [snapshot: index term name config], entries
    forward  := frame kind 4: term:u64 first:u64 command*             commands carry their own length
    touch    := frame kind 5: session_id:i64*                         sessions heard from (`contact`)
    due      := frame kind 17: term:i64 number:i64 session_id:i64*    the leader wants to end these sessions (`endings`)
    agreed   := frame kind 18: term:i64 number:i64 session_id:i64*    this node answers none of these any more
    chunk    := frame kind 6: total:u64 offset:u64 crc:u32 name_length:u16 name data     part of a snapshot file
    received := frame kind 7: ok:u8 name                              how the transfer of that snapshot ended
    ask      := frame kind 8: token:u64 JSON                          a wish for the leader
    (`coord.server.membership.reconfig`)
    answer   := frame kind 9: token:u64 JSON                          what became of it
    removed  := frame kind 10: config:u64                             instead of a hello: no member since that index
    who      := frame kind 11: magic version:u16                      instead of a hello: which cluster is this?
    cluster  := frame kind 12: cluster:16 bytes config:u64 configuration              the answer to that
    digest   := frame kind 16: index:u64 zxid:u64 digest:u64 asks:u8  the state behind an entry (`divergence`)
    challenge, counter, proof := frame kinds 13, 14, 15: before the hello, where there is a secret (`peer_guard`)

A listener answers a hello in the hello's own version. Builds from before version 4 refuse its hello with the sentence
that `refused_version` reads; the dialler then dials again with theirs.

A frame that cannot be read is a RemoteProtocolError and costs the connection: between peers of one version and one
cluster there are no bad frames, only bugs and strangers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, TypeVar

from crc32c import crc32c

from coord.errors import RemoteProtocolError
from coord.raft.bounds import NUMBER_MAX
from coord.raft.membership import MEMBER_ID_MAX, Configuration
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
from coord.server.config.addresses import check_configuration, parse_host_port
from coord.tree.command import COMMAND_HEADER_BYTES
from coord.tree.levels import decode_level
from coord.wire.jute import IS_COMPILED, NATIVE_BYTES_MAX

T = TypeVar("T")

if IS_COMPILED:
    from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be

MAGIC: Final = b"RKPR"
VERSION: Final = 4
#: The version of builds from before there were feature levels; its hello has no fields.
VERSION_BEFORE: Final = 3
#: WHO has no fields that could differ, so that builds of both versions find their store by each other.
WHO_VERSION: Final = 3
#: The longest frame taken from a peer: one append or forward with the largest single command, and room for headers.
FRAME_BYTES_MAX: Final = 64 << 20
#: Of an unknown stranger only a hello is taken.
HELLO_BYTES_MAX: Final = 512
#: Piece of a snapshot file in one frame.
CHUNK_BYTES: Final = 256 << 10
#: A forwarded command that is longer would make an entry that fits into no append: a group of commands is closed at
#: 1 MiB, headers need less than another.
COMMAND_BYTES_MAX: Final = FRAME_BYTES_MAX - (2 << 20)
#: A wish for the leader, or its answer: the lines of a thousand members fit in. JSON of this size is read in some ms.
WISH_BYTES_MAX: Final = 256 << 10

HELLO: Final = 1
REFUSED: Final = 2
RAFT: Final = 3
FORWARD: Final = 4
TOUCH: Final = 5
CHUNK: Final = 6
RECEIVED: Final = 7
ASK: Final = 8
ANSWER: Final = 9
REMOVED: Final = 10
WHO: Final = 11
CLUSTER: Final = 12
CHALLENGE: Final = 13
COUNTER: Final = 14
PROOF: Final = 15
DIGEST: Final = 16
DUE: Final = 17
AGREED: Final = 18

_FRAME: Final = struct.Struct(">IB")
_HELLO: Final = struct.Struct(">4sH16sQQQ?Q")
_FIELD: Final = struct.Struct(">HH")
_TAG_SUPPORTED: Final = 1
_TAG_REQUIRED: Final = 2
_LEVEL_BYTES: Final = 4
_WHO: Final = struct.Struct(">4sH")
_CLUSTER: Final = struct.Struct(">16sQ")
_NUMBER: Final = struct.Struct(">Q")
#: Numbers of Raft messages and forwards are read signed, as they are kept natively; none of them is ever negative.
_RAFT: Final = struct.Struct(">BBqqqqqqqqqi")
_RAFT_BYTES: Final = 78
_ENTRY: Final = struct.Struct(">qqBi")
_ENTRY_BYTES: Final = 21
_SNAPSHOT: Final = struct.Struct(">QQHI")
_FORWARD: Final = struct.Struct(">qq")
_FORWARD_BYTES: Final = 16
_CHUNK: Final = struct.Struct(">QQIH")
_LENGTH: Final = struct.Struct(">I")
_DIGEST: Final = struct.Struct(">QQQ?")
_SILENT: Final = struct.Struct(">qq")
#: Answers, which have their memory where other messages have the commit index: older builds send 0 there, and do not
#: look at it.
_ANSWERS: Final = (PRE_VOTE_RESP, VOTE_RESP, APPEND_RESP, HEARTBEAT_RESP)
_FLAG_GRANTED: Final = 1
_FLAG_SNAPSHOT: Final = 2


class Hello:
    """Who is at the other end."""

    def __init__(
        self,
        cluster: bytes,
        src: int,
        dst: int,
        incarnation: int,
        has_log: bool,
        version: int = VERSION,
        config: int = 0,
        address: str = "",
        supported: int = 0,
        required: int = 0,
    ) -> None:
        #: 16 bytes, alike on all nodes of one cluster.
        self.cluster = cluster
        self.src = src
        self.dst = dst
        #: A number no other process of this node ever had.
        self.incarnation = incarnation
        #: Whether that node has anything in its log (`coord.server.membership.joining`).
        self.has_log = has_log
        self.version = version
        #: Index of the configuration in force at that node, and its own peer address in it ("": it has none).
        self.config = config
        self.address = address
        #: The highest feature level of that node's build, and the highest one in its log
        #: (`coord.server.membership.levels`).
        self.supported = supported
        self.required = required


class Chunk:
    """Part of a snapshot file."""

    def __init__(self, name: str, total: int, offset: int, data: bytes) -> None:
        self.name = name
        self.total = total
        self.offset = offset
        self.data = data


def frame(kind: int, body: bytes) -> bytes:
    """One frame."""
    return _FRAME.pack(len(body) + 1, kind) + body


def encode_hello(hello: Hello) -> bytes:
    """The first frame of either direction."""
    fixed = _HELLO.pack(
        MAGIC,
        hello.version,
        hello.cluster,
        hello.src,
        hello.dst,
        hello.incarnation,
        hello.has_log,
        hello.config,
    )
    address = hello.address.encode()
    if hello.version == VERSION_BEFORE:
        return frame(HELLO, fixed + address)
    parts = [fixed, len(address).to_bytes(2, "big"), address]
    for tag, level in ((_TAG_SUPPORTED, hello.supported), (_TAG_REQUIRED, hello.required)):
        parts.append(_FIELD.pack(tag, _LEVEL_BYTES) + level.to_bytes(_LEVEL_BYTES, "big"))
    return frame(HELLO, b"".join(parts))


def decode_hello(body: bytes) -> Hello:
    """Raises RemoteProtocolError for anything but a hello; a foreign version is the caller's to refuse."""
    if len(body) < 6 or body[:4] != MAGIC:
        raise RemoteProtocolError("not a node of a store")
    version = int.from_bytes(body[4:6], "big")
    if version not in (VERSION_BEFORE, VERSION):
        return Hello(bytes(16), 0, 0, 0, False, version)
    if len(body) < _HELLO.size:
        raise RemoteProtocolError(f"hello of {len(body)} bytes")
    _, version, cluster, src, dst, incarnation, has_log, config = _HELLO.unpack_from(body)
    hello = Hello(cluster, src, dst, incarnation, has_log, version, config)
    at = _HELLO.size
    if version == VERSION_BEFORE:
        hello.address = body[at:].decode(errors="replace")
        _check_hello(src, config, hello.address)
        return hello
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    if at + 2 > len(body) or end > len(body):
        raise RemoteProtocolError(f"hello of {len(body)} bytes")
    hello.address = body[at + 2 : end].decode(errors="replace")
    _check_hello(src, config, hello.address)
    _read_fields(hello, body, end)
    return hello


def _read_fields(hello: Hello, body: bytes, at: int) -> None:
    """Take the fields of a hello that this build knows. Raises RemoteProtocolError."""
    while at < len(body):
        start = at + _FIELD.size
        if start > len(body):
            raise RemoteProtocolError("half a field in a hello")
        tag, length = _FIELD.unpack_from(body, at)
        at = start + length
        if at > len(body) or (tag in (_TAG_SUPPORTED, _TAG_REQUIRED) and length != _LEVEL_BYTES):
            raise RemoteProtocolError(f"field {tag} of a hello with {length} bytes")
        if tag == _TAG_SUPPORTED:
            hello.supported = int.from_bytes(body[start:at], "big")
        elif tag == _TAG_REQUIRED:
            hello.required = int.from_bytes(body[start:at], "big")


def refused_version(reason: str) -> int:
    """Return the version that a listener speaks which refused ours for `reason`; 0 for another reason."""
    found = re.fullmatch(r"speaks version \d+, this node (\d+)", reason)
    return int(found[1]) if found is not None else 0


def _check_hello(src: int, config: int, address: str) -> None:
    """Raise RemoteProtocolError for an id, an index or an address that no node has: the address would be dialled."""
    if src > MEMBER_ID_MAX or config >= NUMBER_MAX:
        raise RemoteProtocolError(f"hello of node {src} with a configuration at {config}")
    if address:
        try:
            parse_host_port(address)
        except ValueError as error:
            raise RemoteProtocolError(f"hello of node {src} with the peer address {error}") from error


def encode_who() -> bytes:
    """Ask a node which cluster it belongs to."""
    return frame(WHO, _WHO.pack(MAGIC, WHO_VERSION))


def is_who(body: bytes) -> bool:
    """Whether a node asks in the version of WHO that this build knows."""
    return body == _WHO.pack(MAGIC, WHO_VERSION)


def encode_cluster(cluster: bytes, index: int, config: Configuration) -> bytes:
    """The answer to WHO."""
    return frame(CLUSTER, _CLUSTER.pack(cluster, index) + config.encode())


def decode_cluster(body: bytes) -> tuple[bytes, int, Configuration]:
    """(cluster, index of the configuration, configuration). Raises RemoteProtocolError."""
    try:
        cluster, index = _CLUSTER.unpack_from(body)
        config = check_configuration(body[_CLUSTER.size :])
    except (struct.error, ValueError) as error:
        raise RemoteProtocolError(f"unreadable answer: {error}") from error
    if index >= NUMBER_MAX:
        raise RemoteProtocolError(f"a configuration at {index}")
    return cluster, index, config


def encode_removed(index: int) -> bytes:
    """Tell a node that the configuration committed at `index` is without it."""
    return frame(REMOVED, _NUMBER.pack(index))


def decode_removed(body: bytes) -> int:
    """The index. Raises RemoteProtocolError."""
    if len(body) != _NUMBER.size:
        raise RemoteProtocolError(f"removal of {len(body)} bytes")
    index = int.from_bytes(body, "big")
    if index >= NUMBER_MAX:
        raise RemoteProtocolError(f"removal by a configuration at {index}")
    return index


def encode_numbered(kind: int, token: int, text: bytes) -> bytes:
    """ASK or ANSWER."""
    return frame(kind, _NUMBER.pack(token) + text)


def decode_numbered(data: bytes, at: int, end: int) -> tuple[int, bytes]:
    """(token, text) of ASK or ANSWER. Raises RemoteProtocolError."""
    if end - at < _NUMBER.size:
        raise RemoteProtocolError("a wish without its number")
    if end - at > WISH_BYTES_MAX:
        raise RemoteProtocolError(f"a wish of {end - at} bytes, allowed are {WISH_BYTES_MAX}")
    return int.from_bytes(data[at : at + 8], "big"), data[at + 8 : end]


def encode_raft(m: Message) -> bytes:
    """A Raft message as a frame."""
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
        m.memory if m.kind in _ANSWERS else m.commit,
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
    """The frame of a message of `size` bytes without a snapshot, put together natively."""
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
    write_i64_be(out, m.memory if m.kind in _ANSWERS else m.commit)
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
    """The message in data[at:end]. Raises RemoteProtocolError."""
    if end - at < _RAFT_BYTES:
        raise RemoteProtocolError(f"Raft message of {end - at} bytes")
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
    # The highest bit of all of them together, so one comparison does.
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
    if kind in _ANSWERS:
        message.memory = commit
        message.commit = 0
    return message


def _decode_snapshot(data: bytes, at: int, end: int) -> tuple[RaftSnapshot, int]:
    """Return the snapshot that is offered at `at`, and where it ends. Raises RemoteProtocolError."""
    try:
        index, term, name_length, config_length = _SNAPSHOT.unpack_from(data, at)
        at += _SNAPSHOT.size
        name = data[at : at + name_length].decode()
        at += name_length
        config = check_configuration(data[at : at + config_length])
    except (struct.error, ValueError) as error:
        raise RemoteProtocolError(f"unreadable snapshot: {error}") from error
    if at + config_length > end or index >= NUMBER_MAX or term >= NUMBER_MAX:
        raise RemoteProtocolError(f"snapshot at {index} of term {term}, or longer than its message")
    return RaftSnapshot(index, term, config, name), at + config_length


def _decode_entries(data: bytes, at: int, end: int, count: int) -> list[Entry]:
    """The entries that are all of data[at:end]. Raises RemoteProtocolError."""
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
            raise RemoteProtocolError("an entry is longer than its message, or its place out of range")
        if kind == CONFIG:
            _check_config(data[start:at], index)
        elif kind == LEVEL:
            _check_level(data[start:at], index)
        entries.append(Entry(term, index, kind, data[start:at]))
    if at != end:
        raise RemoteProtocolError(f"{end - at} bytes behind a Raft message")
    return entries


def _check_level(data: bytes, index: int) -> None:
    """Raise RemoteProtocolError for a LEVEL entry that could not be applied."""
    try:
        decode_level(data)
    except ValueError as error:
        raise RemoteProtocolError(f"unreadable entry {index}: {error}") from error


def _check_config(data: bytes, index: int) -> None:
    """Raise RemoteProtocolError for a CONFIG entry that could not be applied."""
    try:
        check_configuration(data)
    except ValueError as error:
        raise RemoteProtocolError(f"unreadable configuration in entry {index}: {error}") from error


def encode_forward(term: int, first: int, commands: list[bytes]) -> bytes:
    """Commands for the leader of `term`, numbered from `first`."""
    return frame(FORWARD, _FORWARD.pack(term, first) + b"".join(commands))


def decode_forward(data: bytes, at: int, end: int) -> tuple[int, int, list[bytes]]:
    """(term, first, commands). Raises RemoteProtocolError."""
    if end - at < _FORWARD_BYTES:
        raise RemoteProtocolError(f"forward of {end - at} bytes")
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
            raise RemoteProtocolError(f"a forwarded command of {stop - at} bytes, allowed are {COMMAND_BYTES_MAX}")
        commands.append(data[at:stop])
        at = stop
    return term, first, commands


def encode_touch(sessions: list[int]) -> bytes:
    """Session ids that clients of this node were heard from."""
    return frame(TOUCH, struct.pack(f">{len(sessions)}q", *sessions))


def decode_touch(data: bytes, at: int, end: int) -> list[int]:
    """The session ids. Raises RemoteProtocolError."""
    if (end - at) % 8:
        raise RemoteProtocolError("half a session id")
    return list(struct.unpack(f">{(end - at) // 8}q", data[at:end]))


def encode_silent(kind: int, term: int, number: int, sessions: list[int]) -> bytes:
    """Return a DUE or AGREED frame: silent sessions in question `number` of the leader of `term`."""
    return frame(kind, _SILENT.pack(term, number) + struct.pack(f">{len(sessions)}q", *sessions))


def decode_silent(data: bytes, at: int, end: int) -> tuple[int, int, list[int]]:
    """Return (term, number, session ids). Raises RemoteProtocolError."""
    if end - at < _SILENT.size:
        raise RemoteProtocolError("a question about silent sessions without its number")
    term, number = _SILENT.unpack_from(data, at)
    return term, number, decode_touch(data, at + _SILENT.size, end)


def encode_chunk(chunk: Chunk) -> bytes:
    """Part of a snapshot file as a frame."""
    name = chunk.name.encode()
    head = _CHUNK.pack(chunk.total, chunk.offset, crc32c(chunk.data), len(name))
    return frame(CHUNK, head + name + chunk.data)


def decode_chunk(data: bytes, at: int, end: int) -> Chunk:
    """Raises RemoteProtocolError, also when the bytes arrived damaged."""
    try:
        total, offset, crc, name_length = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size
        name = data[at : at + name_length].decode()
    except (struct.error, ValueError) as error:
        raise RemoteProtocolError(f"unreadable snapshot chunk: {error}") from error
    if at + name_length > end:
        raise RemoteProtocolError("a snapshot chunk is longer than its frame")
    content = data[at + name_length : end]
    if crc32c(content) != crc:
        raise RemoteProtocolError(f"chunk of {name} at {offset} arrived damaged")
    return Chunk(name, total, offset, content)


def encode_received(name: str, ok: bool) -> bytes:
    """Tell the sender how the transfer of a snapshot ended."""
    return frame(RECEIVED, bytes([ok]) + name.encode())


def decode_received(data: bytes, at: int, end: int) -> tuple[str, bool]:
    """(name, ok). Raises RemoteProtocolError."""
    if at >= end:
        raise RemoteProtocolError("empty transfer result")
    return data[at + 1 : end].decode(errors="replace"), data[at] == 1


def encode_digest(index: int, zxid: int, digest: int, asks: bool) -> bytes:
    """What the sender has behind the entry at `index`; `asks`: it wants to hear what the receiver has."""
    return frame(DIGEST, _DIGEST.pack(index, zxid, digest, asks))


def decode_digest(data: bytes, at: int, end: int) -> tuple[int, int, int, bool]:
    """(index, zxid, digest, asks). Raises RemoteProtocolError."""
    if end - at != _DIGEST.size:
        raise RemoteProtocolError(f"digest of {end - at} bytes")
    index, zxid, digest, asks = _DIGEST.unpack_from(data, at)
    if not 0 < index < NUMBER_MAX:
        raise RemoteProtocolError(f"digest at {index}")
    return index, zxid, digest, asks


def readable(decode: Callable[[bytes, int, int], T], data: bytes, at: int, end: int) -> T:
    """Decode a frame's body, and make whatever goes wrong a RemoteProtocolError.

    A decoder changes no state, so not even a fault of the decoder is a reason to stop the node: it costs the link.
    """
    try:
        return decode(data, at, end)
    except RemoteProtocolError:
        raise
    except Exception as error:
        raise RemoteProtocolError(f"a frame of {end - at} bytes cannot be read: {error!r}") from error


class PeerFrames:
    """Cuts a peer's bytes into frames. `limit` starts at a hello's and is raised once the peer is known."""

    def __init__(self) -> None:
        self.limit = HELLO_BYTES_MAX
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 5

    def feed(self, data: bytes) -> list[tuple[int, bytes, int, int]]:
        """(kind, block, at, end) of each complete frame. Raises RemoteProtocolError for a length out of bounds.

        At most one frame is returned while the limit is a hello's: what follows it is judged by the new limit at the
        next call (`feed(b"")`).
        """
        if data:
            self._parts.append(data)
            self._have += len(data)
        if self._have < self._need:
            return []
        block = b"".join(self._parts) if len(self._parts) > 1 else self._parts[0]
        frames: list[tuple[int, bytes, int, int]] = []
        at = 0
        size = len(block)
        need = 5
        while size - at >= 5:
            length: int = read_i32_be(block, at) if IS_COMPILED else _LENGTH.unpack_from(block, at)[0]
            if length < 1 or length > self.limit:
                raise RemoteProtocolError(f"frame of {length} bytes, allowed are 1 to {self.limit}")
            stop = at + 4 + length
            if stop > size:
                need = 4 + length
                break
            frames.append((block[at + 4], block, at + 5, stop))
            at = stop
            if self.limit == HELLO_BYTES_MAX:
                break
        self._parts.clear()
        if at < size:
            self._parts.append(block[at:])
        self._have = size - at
        self._need = need if self._have else 5
        return frames
