"""Primitives of Jute, ZooKeeper's serialization format. No knowledge of ZooKeeper records.

    int     = 4 bytes, big-endian, signed          long   = 8 bytes, big-endian, signed
    bool    = 1 byte, 0 is false                   buffer = length:int then that many bytes; -1 is null
    ustring = a buffer holding UTF-8               vector = count:int then that many records; -1 is null

A reader takes `(data, at, end)` and returns `(value, next_at)`. No reader accesses bytes at or after `end`, so a record
can be decoded in the middle of a larger block (a batch of frames, a log entry) without a copy. Strings stay bytes:
bytes are the keys of the tree, and only code that displays strings decodes them. A length that passes `end`, a negative
length other than -1, or a count that the remaining bytes cannot hold raises RemoteProtocolError before any allocation.

A record ends where its last field ends. Bytes after a record are ignored, as in ZooKeeper.
"""

from __future__ import annotations

import struct
from typing import Final

from coord.errors import RemoteProtocolError

I32: Final = struct.Struct("!i")
I64: Final = struct.Struct("!q")
_read_i32: Final = I32.unpack_from
_read_i64: Final = I64.unpack_from

#: The encoding of a null buffer, string or vector.
NULL: Final = b"\xff\xff\xff\xff"

#: Fewest bytes of one element of a vector of strings: its length prefix.
STRING_BYTES_MIN: Final = 4


def short(at: int, end: int) -> RemoteProtocolError:
    """Return the error for a record that ends before its last field."""
    return RemoteProtocolError(f"record ends early: a field at byte {at} passes the end at {end}")


#: True in the compiled form (coord.compiled). Reading and writing numbers is fastest with struct when interpreted and
#: with native integers when compiled.
IS_COMPILED: Final[bool] = type(short).__name__ != "function"
if IS_COMPILED:
    from librt.strings import read_i32_be, read_i64_be

#: Records up to this size are encoded natively. For a longer record, joining bytes objects copies less.
NATIVE_BYTES_MAX: Final = 1024


def read_i32(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read an int."""
    if at + 4 > end:
        raise short(at, end)
    if IS_COMPILED:
        return read_i32_be(data, at), at + 4
    value: int = _read_i32(data, at)[0]
    return value, at + 4


def read_i64(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a long."""
    if at + 8 > end:
        raise short(at, end)
    if IS_COMPILED:
        return read_i64_be(data, at), at + 8
    value: int = _read_i64(data, at)[0]
    return value, at + 8


def read_bool(data: bytes, at: int, end: int) -> tuple[bool, int]:
    """Read a bool; any byte except 0 is true, as in Java."""
    if at >= end:
        raise short(at, end)
    return data[at] != 0, at + 1


def read_buffer(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Read a buffer, or the bytes of a string; return None for null."""
    start = at + 4
    if start > end:
        raise short(at, end)
    length: int = read_i32_be(data, at) if IS_COMPILED else _read_i32(data, at)[0]
    if length >= 0:
        stop = start + length
        if stop > end:
            raise short(at, end)
        return data[start:stop], stop
    if length == -1:
        return None, start
    raise RemoteProtocolError(f"negative length {length} at byte {at}")


def read_string(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Read the bytes of a string. Null is read as the empty string, because kazoo sends null for it."""
    value, at = read_buffer(data, at, end)
    return b"" if value is None else value, at


def read_count(data: bytes, at: int, end: int, element_bytes_min: int) -> tuple[int, int]:
    """Read the count of a vector; return -1 for null.

    `element_bytes_min` is the fewest bytes that one element takes. A count that cannot fit is rejected here, so the
    caller's loop is bounded by the received bytes.
    """
    count, start = read_i32(data, at, end)
    if count < -1:
        raise RemoteProtocolError(f"negative count {count} at byte {at}")
    if count * element_bytes_min > end - start:
        raise RemoteProtocolError(f"count {count} at byte {at} does not fit into {end - start} bytes")
    return count, start


def read_strings(data: bytes, at: int, end: int) -> tuple[list[bytes], int]:
    """Read a vector of strings; null is read as empty."""
    count, at = read_count(data, at, end, STRING_BYTES_MIN)
    strings: list[bytes] = []
    for _ in range(count):
        string, at = read_string(data, at, end)
        strings.append(string)
    return strings, at


def i32(value: int) -> bytes:
    """Encode an int."""
    return I32.pack(value)


def i64(value: int) -> bytes:
    """Encode a long."""
    return I64.pack(value)


def boolean(value: bool) -> bytes:
    """Encode a bool."""
    return b"\x01" if value else b"\x00"


def buffer(value: bytes | None) -> bytes:
    """Encode a buffer, or the bytes of a string; None becomes null."""
    return NULL if value is None else I32.pack(len(value)) + value


def strings(values: list[bytes]) -> bytes:
    """Encode a vector of strings."""
    pack = I32.pack
    parts = [pack(len(values))]
    for value in values:
        parts.append(pack(len(value)))
        parts.append(value)
    return b"".join(parts)
