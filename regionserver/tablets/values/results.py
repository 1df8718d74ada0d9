"""The data of a writer that a tablet stores (`regionserver.tablets.writers`)."""

from __future__ import annotations

import msgspec


class Result(msgspec.Struct, frozen=True, array_like=True):
    """Result of one write, kept for its later copies."""

    stamp_ms: int
    code: int
    term: int
    index: int
    failed: int


class Record(msgspec.Struct, array_like=True):
    """The record of one writer. `stamp_ms` is the highest stamp of all its results so far."""

    below: int
    stamp_ms: int
    indexed_ms: int
    results: dict[int, Result]
