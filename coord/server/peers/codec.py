"""The frames of the peer protocol: their kinds, their limits, and the bodies that are not about Raft. Pure.

Each node dials every other node. A sends to B over the connection that A dialed, so one stream carries everything that
A sends to B, in order. All numbers are big-endian:

    stream   := hello frame*            dialer to listener
    answer   := hello | refused         listener to dialer, once
    frame    := length:u32  kind:u8  body

    hello    := frame kind 1            identity of the dialer, see `hello_frames`, also for:
    refused  := frame kind 2: reason as UTF-8
    removed  := frame kind 10           sent instead of a hello: the receiver is no longer a member
    who      := frame kind 11           sent instead of a hello: request for the cluster's id and members
    cluster  := frame kind 12           the reply to who
    challenge, counter, proof := frame kinds 13, 14, 15: before the hello if there is a shared secret, see `guard`

    raft     := frame kind 3            a Raft message, see `raft_frames`, also for:
    forward  := frame kind 4            commands for the leader

    touch    := frame kind 5: session_id:i64*                         active sessions (`sessions.contact`)
    chunk    := frame kind 6: total:u64 offset:u64 crc:u32 name_length:u16 name data     part of a snapshot file
    received := frame kind 7: ok:u8 name                              result of that transfer
    ask      := frame kind 8: token:u64 JSON                          a membership request for the leader
    answer   := frame kind 9: token:u64 JSON                          its outcome (`coord.server.membership.request`)
    digest   := frame kind 16: index:u64 zxid:u64 digest:u64 asks:u8  the state after an entry (`divergence`)
    due      := frame kind 17: term:i64 number:i64 session_id:i64*    the leader wants to expire these (`endings`)
    agreed   := frame kind 18: term:i64 number:i64 session_id:i64*    this node sends them no more replies

A malformed frame raises RemoteProtocolError and costs the connection. Peers of one version and one cluster send no
malformed frames, so the cause is a bug, a foreign process or a damaged stream.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from crc32c import crc32c

from coord.errors import RemoteProtocolError
from coord.raft.bounds import NUMBER_MAX
from coord.wire.jute import IS_COMPILED

T = TypeVar("T")

if IS_COMPILED:
    from librt.strings import read_i32_be

MAGIC: Final = b"RKPR"
VERSION: Final = 4
#: Version of builds without feature levels; its hello has no fields.
VERSION_BEFORE: Final = 3
#: Longest frame accepted from a peer: one append or forward with the largest single command, and room for headers.
FRAME_BYTES_MAX: Final = 64 << 20
#: Longest frame accepted before the hello, which limits the memory that an unidentified connection uses.
HELLO_BYTES_MAX: Final = 512
#: Bytes of a snapshot file in one frame.
CHUNK_BYTES: Final = 256 << 10
#: Limit of a membership request or answer. The lines of a thousand members fit, and parsing such JSON takes some ms.
REQUEST_BYTES_MAX: Final = 256 << 10

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

#: length and kind
_HEAD_BYTES: Final = 5
_FRAME: Final = struct.Struct(">IB")
_LENGTH: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")
_CHUNK: Final = struct.Struct(">QQIH")
_DIGEST: Final = struct.Struct(">QQQ?")
_SILENT: Final = struct.Struct(">qq")


class Chunk:
    """Part of a snapshot file of `total` bytes."""

    def __init__(self, name: str, total: int, offset: int, data: bytes) -> None:
        self.name = name
        self.total = total
        self.offset = offset
        self.data = data


def frame(kind: int, body: bytes) -> bytes:
    """Encode one frame."""
    return _FRAME.pack(len(body) + 1, kind) + body


def encode_numbered(kind: int, token: int, text: bytes) -> bytes:
    """Encode an ASK or ANSWER frame; the answer has the request's token."""
    return frame(kind, _NUMBER.pack(token) + text)


def decode_numbered(data: bytes, at: int, end: int) -> tuple[int, bytes]:
    """Return (token, text) of ASK or ANSWER. Raise RemoteProtocolError."""
    if end - at < _NUMBER.size:
        raise RemoteProtocolError("a membership request has no token")
    if end - at > REQUEST_BYTES_MAX:
        raise RemoteProtocolError(f"a membership request has {end - at} bytes; the limit is {REQUEST_BYTES_MAX}")
    return int.from_bytes(data[at : at + 8], "big"), data[at + 8 : end]


def encode_touch(sessions: list[int]) -> bytes:
    """Encode a TOUCH frame with the sessions that were active at this node."""
    return frame(TOUCH, struct.pack(f">{len(sessions)}q", *sessions))


def decode_touch(data: bytes, at: int, end: int) -> list[int]:
    """Return the session ids. Raise RemoteProtocolError."""
    if (end - at) % 8:
        raise RemoteProtocolError(f"session ids of {end - at} bytes; each takes 8")
    return list(struct.unpack(f">{(end - at) // 8}q", data[at:end]))


def encode_silent(kind: int, term: int, number: int, sessions: list[int]) -> bytes:
    """Encode a DUE or AGREED frame: silent sessions in request `number` of the leader of `term`."""
    return frame(kind, _SILENT.pack(term, number) + struct.pack(f">{len(sessions)}q", *sessions))


def decode_silent(data: bytes, at: int, end: int) -> tuple[int, int, list[int]]:
    """Return (term, number, session ids). Raise RemoteProtocolError."""
    if end - at < _SILENT.size:
        raise RemoteProtocolError("a frame about silent sessions has no number")
    term, number = _SILENT.unpack_from(data, at)
    return term, number, decode_touch(data, at + _SILENT.size, end)


def encode_chunk(chunk: Chunk) -> bytes:
    """Encode a part of a snapshot file as a frame."""
    name = chunk.name.encode()
    head = _CHUNK.pack(chunk.total, chunk.offset, crc32c(chunk.data), len(name))
    return frame(CHUNK, head + name + chunk.data)


def decode_chunk(data: bytes, at: int, end: int) -> Chunk:
    """Return the chunk in data[at:end]. Raise RemoteProtocolError, also for a wrong checksum."""
    try:
        total, offset, crc, name_length = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size
        name = data[at : at + name_length].decode()
    except (struct.error, ValueError) as error:
        raise RemoteProtocolError(f"malformed snapshot chunk: {error}") from error
    if at + name_length > end:
        raise RemoteProtocolError("a snapshot chunk is longer than its frame")
    content = data[at + name_length : end]
    if crc32c(content) != crc:
        raise RemoteProtocolError(f"chunk of {name} at {offset} has a wrong checksum")
    return Chunk(name, total, offset, content)


def encode_received(name: str, ok: bool) -> bytes:
    """Encode the end of the transfer of the snapshot `name`; `ok`: the receiver has a valid copy."""
    return frame(RECEIVED, bytes([ok]) + name.encode())


def decode_received(data: bytes, at: int, end: int) -> tuple[str, bool]:
    """Return (name, ok). Raise RemoteProtocolError."""
    if at >= end:
        raise RemoteProtocolError("empty transfer result")
    return data[at + 1 : end].decode(errors="replace"), data[at] == 1


def encode_digest(index: int, zxid: int, digest: int, asks: bool) -> bytes:
    """Encode the sender's state after entry `index`; `asks`: the receiver must send its own."""
    return frame(DIGEST, _DIGEST.pack(index, zxid, digest, asks))


def decode_digest(data: bytes, at: int, end: int) -> tuple[int, int, int, bool]:
    """Return (index, zxid, digest, asks). Raise RemoteProtocolError."""
    if end - at != _DIGEST.size:
        raise RemoteProtocolError(f"digest of {end - at} bytes")
    index, zxid, digest, asks = _DIGEST.unpack_from(data, at)
    if not 0 < index < NUMBER_MAX:
        raise RemoteProtocolError(f"digest at {index}")
    return index, zxid, digest, asks


def readable(decode: Callable[[bytes, int, int], T], data: bytes, at: int, end: int) -> T:
    """Return `decode(data, at, end)`. Raise RemoteProtocolError for any exception of the decoder.

    A decoder changes no state. So a bug in a decoder costs the link, and the node continues.
    """
    try:
        return decode(data, at, end)
    except RemoteProtocolError:
        raise
    except Exception as error:
        raise RemoteProtocolError(f"malformed frame of {end - at} bytes: {error!r}") from error


class PeerFrames:
    """Splits a peer's bytes into frames. The owner raises `limit` when it has accepted the peer's hello."""

    def __init__(self) -> None:
        self.limit = HELLO_BYTES_MAX
        self._parts: list[bytes] = []
        self._have = 0
        self._need = _HEAD_BYTES

    def feed(self, data: bytes) -> list[tuple[int, bytes, int, int]]:
        """Return (kind, block, at, end) of each complete frame. Raise RemoteProtocolError for an invalid length.

        Return at most one frame while the limit is that of a hello. Call `feed(b"")` after raising the limit to get
        the frames after the hello.
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
        need = _HEAD_BYTES
        while size - at >= _HEAD_BYTES:
            length: int = read_i32_be(block, at) if IS_COMPILED else _LENGTH.unpack_from(block, at)[0]
            if length < 1 or length > self.limit:
                raise RemoteProtocolError(f"a frame has {length} bytes; allowed are 1 to {self.limit}")
            stop = at + 4 + length
            if stop > size:
                need = 4 + length
                break
            frames.append((block[at + 4], block, at + _HEAD_BYTES, stop))
            at = stop
            if self.limit == HELLO_BYTES_MAX:
                break
        self._parts.clear()
        if at < size:
            self._parts.append(block[at:])
        self._have = size - at
        self._need = need if self._have else _HEAD_BYTES
        return frames
