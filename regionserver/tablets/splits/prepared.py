"""The rows of tablets' daughters, copied while the tablets are served, so that few rows are left for the seal.

    data/.heir-<daughter>.mdb    rows of a daughter that is being prepared

All rows are copied in batches, each from a snapshot of its own. Keys that are written meanwhile are noted
(`regionserver/tablets/rows/sealed/notes.py`), and their rows are copied again, until few are left. At the seal the last
of these rows are copied, and the file becomes the daughter's. The parents of a merge are copied one after the other.

Nothing depends on a prepared file. Its count of rows, their bytes and their digest are kept in memory while the file is
written. At the seal the sums over all daughters must equal the sums over all sealed parents. Otherwise the files are
given up, and the daughters are made from the sealed rows (`heirs.py`). So the files of a dead process are useless, and
the next start removes them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from coord import kill_points
from regions.records.model import RegionRecord
from regionserver.kv.heirs import Rows
from regionserver.kv.rows import unseal
from regionserver.tablets.disk.layout import DATABASE, ROWS
from regionserver.tablets.rows import environment
from regionserver.tablets.rows.digest import add_to_digest, row_hash
from regionserver.tablets.rows.environment import RowsFile, translated
from regionserver.tablets.rows.errors import RowsError, RowsFull
from regionserver.tablets.rows.sealed import sealing
from regionserver.tablets.rows.state import Identity, RowsState
from regionserver.tablets.rows.tablet_rows import TabletRows
from regionserver.tablets.splits.heirs import (
    Daughter,
    SealedState,
    heir_state,
    make_steady,
    mark,
    position_of,
    remove_rows,
)
from regionserver.tablets.upkeep.space import DiskSpace
from regionserver.tablets.values.seals import Seal

#: Rows, and bytes of rows, of one batch. The thread rests after each.
BATCH_ROWS: Final = 500
BATCH_BYTES: Final = 1 << 20
#: Bytes after which the files are synced, and the room on the disk is looked at.
SYNC_BYTES: Final = 32 << 20
#: Keys that may be left when the copy is complete: some milliseconds of work.
LEFT_MAX: Final = 200
#: Limit of rounds in which keys that were written meanwhile are copied. If writes are too many for these rounds, the
#: seal takes longer.
ROUNDS_MAX: Final = 8
_PREFIX: Final = ".heir-"


class NotPrepared(RowsError):  # noqa: N818 - says what has happened
    """Prepared files cannot be used. The daughters are made after the seal."""


class HeirFile(Protocol):
    """The file of one daughter, with the figures of its rows."""

    count: int
    size: int
    total: int

    def append(self, batch: Rows) -> None:
        """Put rows behind all that the file has."""
        ...

    def change(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write the present rows; None for a row that does not exist."""
        ...

    def sync(self) -> None:
        """Make the rows durable."""
        ...

    def finish(self, daughter: Daughter, boot: str, sealed: SealedState) -> None:
        """Make the file the daughter's."""
        ...

    def discard(self) -> None:
        """Remove the file, once. Raise OSError."""
        ...


class PreparedHeirs:
    """The files of all daughters of one split or merge. `copy` is called first and once; then each method on any
    thread.

    The simulation of tablets replaces the access to files and threads: `_make_files`, `_remove`, `_batch`, `_rows_at`,
    `_sealed_state`, `_at_once`.
    """

    def __init__(
        self,
        parents: Sequence[TabletRows],
        directory: Path,
        daughters: Sequence[RegionRecord],
        space: DiskSpace | None = None,
    ) -> None:
        """`parents` are in the order of their keys."""
        self._parents = parents
        #: The parents whose keys are noted, each with the number of the notes' reader; the rows of the last parent may
        #: be copied only in part.
        self._begun: list[tuple[TabletRows, int]] = []
        self._space = space
        self._writing = threading.Lock()
        self._is_over = False
        self._unsynced = 0
        self._folder = directory / ROWS
        self._daughters = daughters
        self._files: Sequence[HeirFile] = ()

    def behind(self) -> int:
        """Return how many keys were written since their rows were copied."""
        return sum(one.notes.count() for one, _ in self._begun)

    def copy(self, rest: Callable[[], None]) -> None:
        """Copy all rows, and call `rest` after each batch. Raise RowsError, OSError; then no file is left."""
        try:
            with translated(self._path):
                for _ in self._batches():
                    rest()
        except BaseException:
            self.discard()
            raise
        kill_points.reached("heirs prepared")

    @property
    def _path(self) -> str:
        """The files of the parents, for messages."""
        return " and ".join(one.path for one in self._parents)

    def _batches(self) -> Iterator[None]:
        """Copy all rows, and yield after each batch."""
        self._check_room(sum(one.state.size for one in self._parents))
        with self._writing:
            self._check()
            self._files = self._make_files()
        for parent in self._parents:
            yield from self._batches_of(parent)
        kill_points.reached("heirs copied")
        for _ in range(ROUNDS_MAX):
            if self.catch_up() <= LEFT_MAX:
                break

    def _batches_of(self, parent: TabletRows) -> Iterator[None]:
        """Copy the rows of one parent, and the rows of earlier parents that are written meanwhile."""
        with self._writing:
            self._check()
            self._begun.append((parent, parent.notes.begin()))
        last: bytes | None = None
        while batch := self._batch(parent, last):
            last = batch[-1][0]
            with self._writing:
                self._check()
                for file in self._files:
                    file.append(batch)
                self._catch_up(last)
                self._sync_some(sum(len(key) + len(stored) for key, stored in batch))
            yield

    def catch_up(self) -> int:
        """Copy the rows of noted keys again, and make the files durable. Return the number of keys.

        Raise RowsError, OSError.
        """
        with translated(self._path), self._writing:
            self._check()
            count = self._catch_up(None)
            self._sync()
        return count

    def finish(self, seals: Sequence[Seal], daughters: Sequence[Daughter], boot: str) -> None:
        """Make the files those of the daughters, in their order. The parents' rows have the seals, in their order.

        Raise RowsError, OSError; then none of the files is left.
        """
        try:
            with translated(self._path), self._writing:
                self._check()
                self._catch_up(None)
                sealed = self._checked(seals)
                self._end_notes()
                self._is_over = True
                self._at_once(
                    [
                        partial(file.finish, daughter, boot, sealed)
                        for file, daughter in zip(self._files, daughters, strict=True)
                    ]
                )
        except BaseException:
            self.discard()
            for daughter in daughters:
                self._remove(daughter)
            raise

    def discard(self) -> None:
        """Give the files up. Raise OSError."""
        with self._writing:
            if not self._is_over:
                self._end_notes()
            self._is_over = True
            for file in self._files:
                file.discard()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._is_over:
            raise NotPrepared(f"the daughters of {self._path} are not prepared any more")

    def _end_notes(self) -> None:
        for one, reader in self._begun:
            one.notes.lose(reader)

    def _make_files(self) -> Sequence[HeirFile]:
        """Return an empty file for each daughter."""
        return [_PreparedFile(os.fspath(self._folder / _PREFIX) + one.region_id, one) for one in self._daughters]

    def _batch(self, parent: TabletRows, last: bytes | None) -> Rows:
        """Return the rows of a parent behind a key in their stored form."""
        batch: Rows = []
        size = 0
        with parent.using_file() as file, file.env.begin(db=file.rows) as reading, reading.cursor() as cursor:
            found = cursor.first() if last is None else cursor.set_range(last + b"\0")
            while found and len(batch) < BATCH_ROWS and size < BATCH_BYTES:
                key, stored = cursor.item()
                batch.append((key, stored))
                size += len(key) + len(stored)
                found = cursor.next()
        return batch

    def _catch_up(self, last: bytes | None) -> int:
        """Copy the rows of noted keys again. Return the number of keys.

        `last`: the last copied key of the last parent; later batches have the keys after it. None if all were copied.
        """
        newest = len(self._begun) - 1
        return sum(
            self._catch_up_with(parent, reader, last if at == newest else None)
            for at, (parent, reader) in enumerate(self._begun)
        )

    def _catch_up_with(self, parent: TabletRows, reader: int, last: bytes | None) -> int:
        noted = parent.notes.take(reader)
        if noted is None:
            raise NotPrepared(f"the keys that are written in {parent.path} are not noted any more")
        keys = noted if last is None else [key for key in noted if key <= last]
        for at in range(0, len(keys), BATCH_ROWS):
            rows = self._rows_at(parent, keys[at : at + BATCH_ROWS])
            for heir in self._files:
                heir.change(rows)
        return len(keys)

    @staticmethod
    def _at_once(finishes: Sequence[Callable[[], None]]) -> None:
        """Finish all files, on threads, because most of the time is spent on syncs. On return no thread works on a
        file."""
        with ThreadPoolExecutor(len(finishes), "heirs") as threads:
            made = [threads.submit(finish) for finish in finishes]
        for one in made:
            one.result()

    def _remove(self, daughter: Daughter) -> None:
        """Remove the finished file of a daughter."""
        remove_rows(daughter.path)

    def _rows_at(self, parent: TabletRows, keys: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        """Return rows of a parent in their stored form; None for a row that does not exist."""
        with parent.using_file() as file, file.env.begin(db=file.rows) as reading:
            return [(key, reading.get(key)) for key in keys]

    def _sealed_state(self, parent: TabletRows) -> tuple[Seal, RowsState]:
        """Return a parent's seal, and the state of its rows."""
        with parent.using_file() as file, file.env.begin(db=file.rows) as reading:
            return sealing.seal_in(reading, file), environment.stored_state(reading, file.meta)

    def _checked(self, seals: Sequence[Seal]) -> SealedState:
        """Return position and clock of the sealed parents. Raise NotPrepared if the files together do not have their
        rows."""
        found, states = zip(*map(self._sealed_state, self._parents), strict=True)
        wanted = sum(one.rows for one in states), sum(one.size for one in states), digest_of_all(states)
        count, size = sum(one.count for one in self._files), sum(one.size for one in self._files)
        digest = add_to_digest(RowsState().digest, sum(one.total for one in self._files))
        if found != tuple(seals) or (count, size, digest) != wanted:
            raise NotPrepared(
                f"the daughters of {self._path} have {count} rows of {size} bytes with digest {digest.hex()}, and the"
                f" parents have {wanted[0]} rows of {wanted[1]} bytes with digest {wanted[2].hex()} and seals {found}"
            )
        return SealedState(*position_of(seals), max(one.clock_ms for one in states))

    def _sync_some(self, written: int) -> None:
        self._unsynced += written
        if self._unsynced >= SYNC_BYTES:
            self._sync()
            self._check_room(SYNC_BYTES)

    def _sync(self) -> None:
        self._unsynced = 0
        for file in self._files:
            file.sync()

    def _check_room(self, size: int) -> None:
        why = "" if self._space is None else self._space.objection(size)
        if why:
            raise RowsFull(why)


def digest_of_all(states: Sequence[RowsState]) -> bytes:
    """Return the digest of the rows of several tablets together."""
    return add_to_digest(RowsState().digest, sum(int.from_bytes(one.digest, "little") for one in states))


class _PreparedFile:
    """The file of one daughter, with the figures of its rows."""

    def __init__(self, path: str, daughter: RegionRecord) -> None:
        self._path = f"{path}{DATABASE}"
        self._start, self._end = daughter.start_key.encode(), daughter.end_key.encode()
        remove_rows(self._path)
        self._file, _ = environment.create(self._path, Identity(daughter.region_id, 1))
        self.count = self.size = self.total = 0
        self._is_gone = False

    def _has(self, key: bytes) -> bool:
        return self._start <= key and (not self._end or key < self._end)

    def append(self, batch: Rows) -> None:
        """Put rows behind all that the file has."""
        mine = [one for one in batch if self._has(one[0])]
        if not mine:
            return
        file = self._file
        with file.env.begin(write=True, db=file.rows) as writing, writing.cursor() as cursor:
            cursor.putmulti(mine, append=True)
        for key, stored in mine:
            self._add(1, key, unseal(key, stored))

    def change(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write the present rows; None for a row that does not exist."""
        mine = [one for one in rows if self._has(one[0])]
        if not mine:
            return
        file = self._file
        with file.env.begin(write=True, db=file.rows) as writing:
            for key, stored in mine:
                self._replace(writing, key, stored)

    def _replace(self, writing: Any, key: bytes, stored: bytes | None) -> None:
        """A failure of the commit makes the figures wrong: then the files are given up."""
        former = writing.get(key)
        if former is not None:
            self._add(-1, key, unseal(key, former))
        if stored is not None:
            self._add(1, key, unseal(key, stored))
            writing.put(key, stored)
        elif former is not None:
            writing.delete(key)

    def _add(self, sign: int, key: bytes, value: bytes) -> None:
        self.count += sign
        self.size += sign * (len(key) + len(value))
        self.total += sign * row_hash(key, value)

    def sync(self) -> None:
        """Make the rows durable."""
        if self._file.is_made:
            self._file.env.sync(True)

    def finish(self, daughter: Daughter, boot: str, sealed: SealedState) -> None:
        """Make the file the daughter's."""
        file: RowsFile = self._file
        state = heir_state(sealed, self.count, self.size, self.total)
        remove_rows(daughter.path)
        with file.env.begin(write=True, db=file.meta) as writing:
            writing.put(environment.IDENTITY_KEY, environment.sealed_identity(daughter.identity))
            sealing.put_state(writing, file, state)
        file.close()
        mark(daughter.path)
        os.rename(self._path, daughter.path)
        environment.remove_database(self._path)  # the remaining file is LMDB's lock file
        kill_points.reached("heir renamed")
        opened, state = environment.open_checked(daughter.path, daughter.identity)
        make_steady(daughter, boot, opened, state)
        kill_points.reached("heir made")

    def discard(self) -> None:
        """Remove the file, once: the next attempt's has the same name. Raise OSError."""
        if self._is_gone:
            return
        self._is_gone = True
        self._file.close()
        remove_rows(self._path)


def remove_prepared(directory: Path) -> None:
    """Remove the files that an earlier process has prepared. Raise OSError."""
    folder = directory / ROWS
    for name in os.listdir(folder) if folder.is_dir() else ():
        if name.startswith(_PREFIX):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(folder / name)
