"""The rows of a daughter's replica, made from the parent's replica on the same server.

The parent is sealed, so its rows are the same for ever, and equal in all its replicas. The daughter's replicas are made
from them without a message between servers: each begins at the position of the seal, with the parent's rows within its
bounds. A replica that does not hold the seal yet makes no daughter.

The results of the parent's writes stay with the parent, which answers late copies as long as it is there. A daughter
begins without results; its horizon is the parent's clock at the seal. So a write that began before the split is too old
for a daughter, and no copy of it can be carried out twice.

The file becomes durable before the superblock names it. A crash before that leaves a file without a superblock, which
the next start moves to the quarantine, and the daughter is made again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from coord import kill_points
from regionserver.kv.heirs import COPY_ROWS, Rows, middle_of
from regionserver.kv.rows import unseal
from regionserver.tablets.rows import environment
from regionserver.tablets.rows.digest import add_to_digest, row_hash
from regionserver.tablets.rows.environment import RowsDisk, RowsFile, translated
from regionserver.tablets.rows.errors import RowsError
from regionserver.tablets.rows.sealed import sealing
from regionserver.tablets.rows.state import Identity, RowsState
from regionserver.tablets.rows.tablet_rows import TabletRows
from regionserver.tablets.values.seals import Seal

#: Bytes of rows that one transaction copies, besides COPY_ROWS: LMDB keeps the pages of a transaction in memory.
_COPY_BYTES: Final = 8 << 20


class Daughter(NamedTuple):
    """What is made: the file, and the keys that it gets."""

    path: str
    identity: Identity
    start_key: str
    end_key: str


def make_heir(parent: TabletRows, seal: Seal, daughter: Daughter, boot: str) -> None:
    """Make the durable rows file of a daughter from the sealed rows of its parent, in place of an unfinished one.

    Raise RowsError, OSError; then no file is left.
    """
    remove_rows(daughter.path)
    try:
        with translated(daughter.path):
            _make(parent, seal, daughter, boot)
    except BaseException:
        remove_rows(daughter.path)
        raise
    kill_points.reached("heir made")


def remove_rows(path: str) -> None:
    """Remove the files of rows that no superblock names. Raise OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(environment.steady_path(path))
    environment.remove_database(path)


def _make(parent: TabletRows, seal: Seal, daughter: Daughter, boot: str) -> None:
    file, _ = environment.create(daughter.path, daughter.identity)
    try:
        with parent.using_file() as source, source.env.begin(db=source.rows) as transaction:
            assert sealing.seal_in(transaction, source) == seal, f"{parent.path} has another seal than {seal}"
            clock_ms = environment.stored_state(transaction, source.meta).clock_ms
            count = size = total = 0
            for batch in _batches(transaction, daughter):
                with file.env.begin(write=True, db=file.rows) as writing, writing.cursor() as cursor:
                    cursor.putmulti(batch, append=True)
                for key, stored in batch:
                    value = unseal(key, stored)
                    count += 1
                    size += len(key) + len(value)
                    total += row_hash(key, value)
        state = heir_state(seal, clock_ms, count, size, total)
        with file.env.begin(write=True, db=file.meta) as writing:
            sealing.put_state(writing, file, state)
    except BaseException:
        file.close()
        raise
    make_steady(daughter, boot, file, state)


def heir_state(seal: Seal, clock_ms: int, count: int, size: int, total: int) -> RowsState:
    """Return the state of a daughter's rows: so many rows, their bytes, and the sum of their hashes.

    `clock_ms` is the parent's clock at the seal.
    """
    state = RowsState(seal.index, seal.term, count, size, clock_ms + 1, clock_ms)
    return msgspec.structs.replace(state, digest=add_to_digest(state.digest, total))


def make_steady(daughter: Daughter, boot: str, file: RowsFile, state: RowsState) -> None:
    """Make the steady point of a daughter's rows and close their file. Raise RowsError."""
    rows = TabletRows(daughter.path, daughter.identity, boot, RowsDisk(), file, state, None)
    try:
        rows.steady()
    finally:
        with contextlib.suppress(RowsError):
            rows.abandon()


def _batches(transaction: Any, daughter: Daughter) -> Iterable[Rows]:
    """Yield the rows within the daughter's bounds in their stored form."""
    start, end = daughter.start_key.encode(), daughter.end_key.encode()
    batch: Rows = []
    size = 0
    with transaction.cursor() as cursor:
        found = cursor.set_range(start) if start else cursor.first()
        while found:
            key, stored = cursor.item()
            if end and key >= end:
                break
            batch.append((key, stored))
            size += len(key) + len(stored)
            if len(batch) >= COPY_ROWS or size >= _COPY_BYTES:
                yield batch
                batch, size = [], 0
            found = cursor.next()
    if batch:
        yield batch


class _Batches:
    """The rows of a tablet, for `middle_of`."""

    def __init__(self, rows: TabletRows) -> None:
        self._rows = rows

    def stored_batch(self, after: bytes | None, count: int) -> Rows:
        """Return up to `count` rows in their stored form, those after a key."""
        batch: Rows = []
        with (
            self._rows.using_file() as file,
            file.env.begin(db=file.rows) as transaction,
            transaction.cursor() as cursor,
        ):
            found = cursor.first() if after is None else cursor.set_range(after + b"\0")
            while found and len(batch) < count:
                batch.append(cursor.item())
                found = cursor.next()
        return batch


def split_key(rows: TabletRows) -> str:
    """Return the key in the middle of a tablet's bytes. Raise RegionError for fewer than two rows, RowsError."""
    with translated(rows.path):
        return middle_of(_Batches(rows))
