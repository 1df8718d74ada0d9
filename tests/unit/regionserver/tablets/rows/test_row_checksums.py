"""Rows of one length are checked together, and one damaged row among many is found."""

from __future__ import annotations

import random

import numpy as np
import pytest
from crc32c import crc32c

from regionserver.kv.rows import seal
from regionserver.tablets.rows import leaf_sums
from regionserver.tablets.rows.leaf_sums import broken_rows


class Chunk:
    """Rows one after the other, with something between them."""

    def __init__(self, seed: int, lengths: list[int]) -> None:
        chance = random.Random(seed)
        self.data = bytearray()
        self.begin: list[int] = []
        self.end: list[int] = []
        for length in lengths:
            key, value = chance.randbytes(5), chance.randbytes(length)
            self.data += chance.randbytes(chance.randrange(9))
            self.begin.append(len(self.data))
            self.data += key + seal(key, value)
            self.end.append(len(self.data))

    def broken(self) -> list[int]:
        return broken_rows(bytes(self.data), np.array(self.begin, np.int64), np.array(self.end, np.int64))


@pytest.mark.parametrize("count", [31, 32, 33, 500])
def test_each_flipped_bit_of_a_row_is_found_among_many(count: int) -> None:
    """Key, value and checksum, in an odd and in an even number of rows.

    Tried: with a `_match` that returns True the larger groups have no broken row.
    """
    chunk = Chunk(count, [20] * count)
    assert chunk.broken() == []
    for row in (0, count // 2, count - 1):
        for at in range(chunk.begin[row], chunk.end[row]):
            chunk.data[at] ^= 1 << at % 8
            assert chunk.broken() == [row], at
            chunk.data[at] ^= 1 << at % 8


def test_what_lies_between_rows_does_not_count() -> None:
    chunk = Chunk(1, [20] * 100)
    rows = [range(begin, end) for begin, end in zip(chunk.begin, chunk.end, strict=True)]
    for at in range(len(chunk.data)):
        if not any(at in row for row in rows):
            chunk.data[at] ^= 255
    assert chunk.broken() == []


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_all_lengths_are_found_in_order(seed: int) -> None:
    chance = random.Random(seed)
    chunk = Chunk(seed, [chance.choice((0, 7, 7, 7, 100, chance.randrange(50))) for _ in range(400)])
    damaged = sorted(chance.sample(range(400), 7))
    for row in damaged:
        chunk.data[chance.randrange(chunk.begin[row], chunk.end[row])] ^= chance.randrange(1, 256)
    assert chunk.broken() == damaged


@pytest.mark.parametrize("count", [500, 501])
def test_whole_rows_of_few_lengths_take_few_checksums(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Tried: without the sort by length in `_groups`, or with _WHOLE as what is always expected, each row takes one."""
    calls: list[int] = []

    def counted(data: bytes) -> int:
        calls.append(len(data))
        return crc32c(data)

    monkeypatch.setattr(leaf_sums, "crc32c", counted)
    assert Chunk(3, [20, 90] * count).broken() == []
    assert len(calls) <= 4


def test_no_rows() -> None:
    assert Chunk(0, []).broken() == []
