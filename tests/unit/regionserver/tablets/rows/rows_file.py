"""Rows of one tablet in a file, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from coord.raft.messages import NORMAL, Entry
from regionserver.tablets.commands import (
    KvCommand,
    Operation,
    encode,
)
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.tablet_rows import TabletRows
from tests.support.power_cut import UnsyncedDisk
from tests.support.tablet_model import Log

IDENTITY: Final = Identity("t1", 1)


def opened(path: Path, *, boot: str = "b", floor: tuple[int, int] = (0, 0), **options: Any) -> TabletRows:
    options.setdefault("disk", UnsyncedDisk())
    return TabletRows.open(str(path), IDENTITY, boot, floor, **options)


def entry(index: int, *operations: Operation, writer: str = "w", number: int = -1) -> Entry:
    number = index if number < 0 else number
    return Entry(1, index, NORMAL, encode(KvCommand(writer, number, 0, 1000 + number, 1000 + index, [*operations])))


def content(rows: TabletRows) -> dict[str, bytes]:
    with rows.reading() as snapshot:
        page, next_key = snapshot.page(b"", b"", 1000)
    assert not next_key
    return {row.key: row.value for row in page}


def steady_file(path: Path, log: Log) -> None:
    """Return a closed file with all entries of the log."""
    rows = opened(path)
    rows.apply(log.entries)
    rows.close()
