"""The envelope: a change of any byte is found, and a newer format is distinguished from damage."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from regionserver.tablets.disk.sealed import FILE_BYTES_MAX, DamagedFile, NewerFormat, seal, unseal

MAGIC = b"TEST"
CONTENT = seal(MAGIC, 2, b'{"a": 1}')


def test_what_was_sealed_comes_back() -> None:
    assert unseal(CONTENT, MAGIC, 2, "f") == b'{"a": 1}'
    assert unseal(seal(MAGIC, 1, b""), MAGIC, 2, "f") == b""


def test_every_flipped_bit_is_damage() -> None:
    """Also in the format field: a flipped bit does not look like a newer build."""
    for position in range(len(CONTENT)):
        for bit in range(8):
            broken = bytearray(CONTENT)
            broken[position] ^= 1 << bit
            with pytest.raises(DamagedFile, match=r"^dir/f is damaged: "):
                unseal(bytes(broken), MAGIC, 2, "dir/f")


def test_every_missing_or_added_byte_is_damage() -> None:
    for length in range(len(CONTENT)):
        with pytest.raises(DamagedFile):
            unseal(CONTENT[:length], MAGIC, 2, "f")
    with pytest.raises(DamagedFile, match="9 bytes after its head, 8 were written"):
        unseal(CONTENT + b"\0", MAGIC, 2, "f")


def test_zeros_are_damage() -> None:
    """A power cut can leave zeros in a file whose size was durable before its content."""
    with pytest.raises(DamagedFile, match="begins with"):
        unseal(bytes(len(CONTENT)), MAGIC, 2, "f")


def test_a_newer_format_is_named() -> None:
    with pytest.raises(NewerFormat, match=r"^dir/f has format 3, this build knows formats up to 2: start a build"):
        unseal(seal(MAGIC, 3, b"anything"), MAGIC, 2, "dir/f")


def test_format_0_is_damage() -> None:
    body = b"{}"
    crc = crc32c(body, crc32c(struct.pack(">4sHI", MAGIC, 0, len(body))))
    with pytest.raises(DamagedFile, match="format 0"):
        unseal(struct.pack(">4sHII", MAGIC, 0, len(body), crc) + body, MAGIC, 2, "f")


def test_the_longest_file() -> None:
    body = bytes(FILE_BYTES_MAX - 14)
    assert unseal(seal(MAGIC, 1, body), MAGIC, 1, "f") == body
    with pytest.raises(AssertionError):
        seal(MAGIC, 1, body + b"\0")
