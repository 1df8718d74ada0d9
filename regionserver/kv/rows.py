"""Stored form of a row: the value, then 4 bytes of CRC-32C over key and value.

LMDB does not detect a byte that changed on the disk. The checksum covers the key as well, so it also detects a value
under the wrong key. Files of earlier builds (`data-<token>.mdb`) have no checksums; `regionserver/kv/files.py`
describes when they get checksums.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from coord.rpc.wire import RpcError

#: The region's file is damaged; the message names the damage. The region is closed and parked.
DAMAGED: Final = "damaged"
CRC_BYTES: Final = 4
#: CRC-32C of any data followed by their own CRC-32C: one call checks a stored row.
_RESIDUE: Final = 0x48674BC7
_SHORT: Final = 1024


def seal(key: bytes, value: bytes) -> bytes:
    """Return the value in its stored form."""
    crc = crc32c(key + value) if len(value) < _SHORT else crc32c(value, crc32c(key))
    return value + crc.to_bytes(CRC_BYTES, "little")


def is_whole(key: bytes, stored: bytes) -> bool:
    """Return True if the checksum matches."""
    return crc32c(stored, crc32c(key)) == _RESIDUE and len(stored) >= CRC_BYTES


def unseal(key: bytes, stored: bytes) -> bytes:
    """Return the value of a stored row. Raise RpcError(DAMAGED) if its checksum does not match."""
    size = len(stored)
    # One call and a short copy cost less than two calls.
    crc = crc32c(key + stored) if size < _SHORT else crc32c(stored, crc32c(key))
    if crc != _RESIDUE or size < CRC_BYTES:
        raise RpcError(DAMAGED, f"row {shown(key)} is damaged: its checksum does not match")
    return stored[:-CRC_BYTES]


def seal_all(rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return rows of an earlier build in their stored form."""
    return [(key, seal(key, value)) for key, value in rows]


def shown(key: bytes) -> str:
    """Return a printable form of a key with any bytes."""
    return repr(key[:40].decode(errors="backslashreplace"))
