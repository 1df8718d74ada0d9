"""Jute, ZooKeeper's serialisation: the primitives, over bytes, without any knowledge of ZooKeeper.

    int     = 4 bytes, big-endian, signed          long   = 8 bytes, big-endian, signed
    bool    = 1 byte, 0 is false                   buffer = length:int then that many bytes; -1 is null
    ustring = a buffer holding UTF-8               vector = count:int then that many records; -1 is null

A reader takes `(data, at, end)` and returns `(value, next_at)`; it never looks at or behind `end`, so a record may be
read in the middle of a larger block (a batch of frames, a log entry) without a copy. Strings stay bytes: the tree is
keyed by them, and only those who show them to people decode. A length that passes `end`, a negative length other than
-1, or a count that the remaining bytes cannot hold raises RemoteProtocolError before anything is allocated.

Records end where their last field ends: bytes behind it are ignored, as ZooKeeper does.
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

#: The fewest bytes that one element of a vector of strings takes: its length.
STRING_BYTES_MIN: Final = 4


def short(at: int, end: int) -> RemoteProtocolError:
    """The error for a record that ends before its last field."""
    return RemoteProtocolError(f"record ends early: a field at byte {at} passes the end at {end}")


#: Whether this is the compiled form (coord.compiled). The innermost reads and writes of numbers are fast by different
#: means in either: struct where it is interpreted, native integers where it is compiled.
IS_COMPILED: Final[bool] = type(short).__name__ != "function"
if IS_COMPILED:
    from librt.strings import read_i32_be, read_i64_be

#: Up to here a record is put together natively; a longer one is copied less often by joining bytes.
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
    """Read a bool; any byte but 0 is true, as Java has it."""
    if at >= end:
        raise short(at, end)
    return data[at] != 0, at + 1


def read_buffer(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Read a buffer, or a string as its bytes; None for null."""
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
    """Read a string's bytes; null counts as the empty string, because kazoo sends one for the other."""
    value, at = read_buffer(data, at, end)
    return b"" if value is None else value, at


def read_count(data: bytes, at: int, end: int, element_bytes_min: int) -> tuple[int, int]:
    """Read a vector's count; -1 for null.

    `element_bytes_min` is the fewest bytes one element takes: a count that cannot fit is refused here, so a caller's
    loop is bounded by the bytes that really came.
    """
    count, start = read_i32(data, at, end)
    if count < -1:
        raise RemoteProtocolError(f"negative count {count} at byte {at}")
    if count * element_bytes_min > end - start:
        raise RemoteProtocolError(f"count {count} at byte {at} does not fit into {end - start} bytes")
    return count, start


def read_strings(data: bytes, at: int, end: int) -> tuple[list[bytes], int]:
    """Read a vector of strings; null counts as empty."""
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
    """Encode a buffer or a string's bytes; None becomes null."""
    return NULL if value is None else I32.pack(len(value)) + value


def strings(values: list[bytes]) -> bytes:
    """Encode a vector of strings."""
    pack = I32.pack
    parts = [pack(len(values))]
    for value in values:
        parts.append(pack(len(value)))
        parts.append(value)
    return b"".join(parts)
