"""The frames of the peer protocol: their kinds, their limits, and the bodies that are not about Raft. Pure.

Each node dials every other node. A sends to B over the connection that A dialed, so one stream carries everything that
A sends to B, in order. All numbers are big-endian. A connection begins as on every link (`coord.peers.framing`); the
frames of this protocol are:

    hello    := frame kind 1            identity of the dialer, see `hello_frames`, also for:
    removed  := frame kind 10           sent instead of a hello: the receiver is no longer a member
    who      := frame kind 11           sent instead of a hello: request for the cluster's id and members
    cluster  := frame kind 12           the reply to who

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
from typing import Final

from crc32c import crc32c

from coord.errors import RemoteProtocolError
from coord.peers.framing import frame
from coord.raft.bounds import NUMBER_MAX

MAGIC: Final = b"RKPR"
VERSION: Final = 4
#: Version of builds without feature levels; its hello has no fields.
VERSION_BEFORE: Final = 3
#: Longest frame accepted from a peer: one append or forward with the largest single command, and room for headers.
FRAME_BYTES_MAX: Final = 64 << 20
#: Bytes of a snapshot file in one frame.
CHUNK_BYTES: Final = 256 << 10
#: Limit of a membership request or answer. The lines of a thousand members fit, and parsing such JSON takes some ms.
REQUEST_BYTES_MAX: Final = 256 << 10

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
DIGEST: Final = 16
DUE: Final = 17
AGREED: Final = 18

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
