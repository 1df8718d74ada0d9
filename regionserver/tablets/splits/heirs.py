"""The rows of a daughter's replica, made from the replicas of its parents on the same server.

The parents are sealed, so their rows never change again, and are equal in all their replicas. The daughter's replicas
are made from them without a message between servers: each begins at the position of the seal, with the parent's rows
within its bounds. A replica that has not applied the seal yet makes no daughter. The daughter of a merge has the rows
of both parents; its term and its index are each the higher one of the two seals.

The results of the parents' writes stay with the parents, which answer late copies as long as they exist. A daughter
begins without results; its horizon is the latest of the parents' clocks at their seals. So a write that began before
the split or merge is too old for a daughter, and no copy of it can be carried out twice.

The file becomes durable before the superblock names it. A crash before that leaves a file without a superblock. A mark
beside the file shows that it was made here: the next start removes both, and the daughter is made again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from coord import kill_points
from regionserver.kv.heirs import COPY_ROWS, Rows, middle_of
from regionserver.kv.rows import unseal
from regionserver.tablets.disk.layout import UNFINISHED
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
    """One daughter to make: its file, and its range of keys."""

    path: str
    identity: Identity
    start_key: str
    end_key: str


class SealedRows(NamedTuple):
    """The rows of a parent, and the seal that they have."""

    rows: TabletRows
    seal: Seal


class SealedState(NamedTuple):
    """State that a daughter takes over from its parents in addition to the rows: the position of the seals, and the
    clock."""

    entry_term: int
    entry_index: int
    clock_ms: int


def position_of(seals: Iterable[Seal]) -> tuple[int, int]:
    """Return term and index behind which the log of a daughter begins. All its replicas find the same ones."""
    found = list(seals)
    return max(one.term for one in found), max(one.index for one in found)


def make_heir(parents: Sequence[SealedRows], daughter: Daughter, boot: str) -> None:
    """Make the durable rows file of a daughter from the sealed rows of its parents, in place of an unfinished one.

    The parents are in the order of their keys.

    Raise RowsError, OSError; then no file is left.
    """
    remove_rows(daughter.path)
    try:
        with translated(daughter.path):
            _make(parents, daughter, boot)
    except BaseException:
        remove_rows(daughter.path)
        raise
    kill_points.reached("heir made")


def remove_rows(path: str) -> None:
    """Remove the files of rows that no superblock names, and their mark. Raise OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(environment.steady_path(path))
    environment.remove_database(path)
    unmark(path)


def mark(path: str) -> None:
    """Mark the rows that are made at `path` as unfinished. Raise OSError.

    The mark is not synced. A file system keeps the order of changes in a folder; one that does not would at worst keep
    the rows without the mark, and then the next start moves them to the quarantine.
    """
    os.close(os.open(_mark_path(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def unmark(path: str) -> None:
    """Remove the mark: a superblock names the rows. Raise OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_mark_path(path))


def _mark_path(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, UNFINISHED + name)


def _make(parents: Sequence[SealedRows], daughter: Daughter, boot: str) -> None:
    mark(daughter.path)
    file, _ = environment.create(daughter.path, daughter.identity)
    try:
        clock_ms = count = size = total = 0
        for parent, seal in parents:
            with parent.using_file() as source, source.env.begin(db=source.rows) as transaction:
                assert sealing.seal_in(transaction, source) == seal, f"{parent.path} has another seal than {seal}"
                clock_ms = max(clock_ms, environment.stored_state(transaction, source.meta).clock_ms)
                for batch in _batches(transaction, daughter):
                    with file.env.begin(write=True, db=file.rows) as writing, writing.cursor() as cursor:
                        cursor.putmulti(batch, append=True)
                    for key, stored in batch:
                        value = unseal(key, stored)
                        count += 1
                        size += len(key) + len(value)
                        total += row_hash(key, value)
        sealed = SealedState(*position_of(one.seal for one in parents), clock_ms)
        state = heir_state(sealed, count, size, total)
        with file.env.begin(write=True, db=file.meta) as writing:
            sealing.put_state(writing, file, state)
    except BaseException:
        file.close()
        raise
    make_steady(daughter, boot, file, state)


def heir_state(sealed: SealedState, count: int, size: int, total: int) -> RowsState:
    """Return the state of a daughter's rows, from their number, their bytes, and the sum of their hashes."""
    state = RowsState(sealed.entry_index, sealed.entry_term, count, size, sealed.clock_ms + 1, sealed.clock_ms)
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
