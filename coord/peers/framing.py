"""Frames on a link between two peers: nodes of a store, or region servers. Pure.

    stream   := hello frame*            dialer to listener
    answer   := hello | refused         listener to dialer, once
    frame    := length:u32  kind:u8  body

All numbers are big-endian. Kinds 1, 2, 13, 14 and 15 begin a connection and mean the same on every link. The other
kinds, and the body of a hello, belong to the protocol of the link.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from coord.errors import RemoteProtocolError
from coord.wire.jute import IS_COMPILED

T = TypeVar("T")

if IS_COMPILED:
    from librt.strings import read_i32_be

#: Longest frame accepted before the hello, which limits the memory that an unidentified connection uses.
HELLO_BYTES_MAX: Final = 512
#: A connection whose hello is not accepted within this time is closed.
HELLO_TIMEOUT_S: Final = 3.0

HELLO: Final = 1
#: Sent instead of a hello, with the reason as UTF-8.
REFUSED: Final = 2
#: Authentication by a shared secret (`coord.peers.guard`).
CHALLENGE: Final = 13
COUNTER: Final = 14
PROOF: Final = 15

#: length and kind
HEAD_BYTES: Final = 5
HEAD: Final = struct.Struct(">IB")
_LENGTH: Final = struct.Struct(">I")


def frame(kind: int, body: bytes) -> bytes:
    """Encode one frame."""
    return HEAD.pack(len(body) + 1, kind) + body


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
        self._need = HEAD_BYTES

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
        need = HEAD_BYTES
        while size - at >= HEAD_BYTES:
            length: int = read_i32_be(block, at) if IS_COMPILED else _LENGTH.unpack_from(block, at)[0]
            if length < 1 or length > self.limit:
                raise RemoteProtocolError(f"a frame has {length} bytes; allowed are 1 to {self.limit}")
            stop = at + 4 + length
            if stop > size:
                need = 4 + length
                break
            frames.append((block[at + 4], block, at + HEAD_BYTES, stop))
            at = stop
            if self.limit == HELLO_BYTES_MAX:
                break
        self._parts.clear()
        if at < size:
            self._parts.append(block[at:])
        self._have = size - at
        self._need = need if self._have else HEAD_BYTES
        return frames
