"""The digest of a tablet's rows: the sum, modulo 2**128, of one hash per row. Pure.

A sum does not depend on the order of changes, and a changed row costs two hashes. Replicas with equal digests at one
index have equal rows.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 16
_MODULUS: Final = 1 << (8 * DIGEST_BYTES)
#: A copy of an empty hash costs half as much as a new hash with a length.
_EMPTY: Final = blake2b(digest_size=DIGEST_BYTES)


def row_hash(key: bytes, value: bytes) -> int:
    """Return a row's contribution to the digest."""
    found = _EMPTY.copy()
    found.update(len(key).to_bytes(2, "little") + key + value)
    return int.from_bytes(found.digest(), "little")


def row_hashes(data: bytes, begins: list[int], ends: list[int]) -> bytes:
    """Return the contributions of rows to the digest, one after the other, little-endian.

    Row n is in `data` from `begins[n]` to `ends[n]`: the length of its key in 2 bytes, little-endian, key and value.
    """
    found: list[bytes] = []
    for begin, end in zip(begins, ends, strict=True):
        one = _EMPTY.copy()
        one.update(data[begin:end])
        found.append(one.digest())
    return b"".join(found)


def add_to_digest(digest: bytes, difference: int) -> bytes:
    """Return the digest after a change; `difference` is the sum of added minus removed hashes and may be negative."""
    return ((int.from_bytes(digest, "little") + difference) % _MODULUS).to_bytes(DIGEST_BYTES, "little")
