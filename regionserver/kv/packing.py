"""Rows in one piece of bytes, as backups send and store them. Pure.

A packed row is the length of its key (2 bytes), the length of its value (4 bytes), the key, the value; little-endian.
Packed rows follow each other without a gap. Their checksum is the CRC-32C of all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

_LENGTHS: Final = struct.Struct("<HI")


def pack_row(key: bytes, value: bytes) -> bytes:
    """Return one packed row."""
    return _LENGTHS.pack(len(key), len(value)) + key + value


def unpack_rows(packed: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of each packed row. Raise ValueError if the bytes end within a row."""
    at = 0
    while at < len(packed):
        if at + _LENGTHS.size > len(packed):
            raise ValueError("the rows end within the lengths of a row")
        key_bytes, value_bytes = _LENGTHS.unpack_from(packed, at)
        begin = at + _LENGTHS.size
        at = begin + key_bytes + value_bytes
        if at > len(packed):
            raise ValueError("the rows end within a row")
        yield packed[begin : begin + key_bytes], packed[begin + key_bytes : at]


def checksum(packed: bytes) -> int:
    """Return the checksum of packed rows."""
    return crc32c(packed)
