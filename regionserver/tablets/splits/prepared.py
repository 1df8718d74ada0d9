"""The rows of a tablet's daughters, copied while the tablet is served: so few rows are left for the seal.

    data/.heir-<daughter>.mdb    rows of a daughter that is being prepared

All rows are copied in batches, each from a snapshot of its own. Keys that are written meanwhile are noted
(`regionserver/tablets/rows/sealed/notes.py`), and their rows are copied again, until few are left. At the seal the last
of them are copied, and the file becomes that of the daughter.

Nothing depends on a prepared file. Its count of rows, their bytes and their digest are kept in memory while the file is
written. At the seal those of all daughters together must be the sealed parent's; otherwise the files are given up, and
the daughters are made from the sealed rows (`heirs.py`). So a process that dies leaves files of no use, which its next
start removes.
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
from regionserver.tablets.splits.heirs import Daughter, heir_state, make_steady, remove_rows
from regionserver.tablets.upkeep.space import DiskSpace
from regionserver.tablets.values.seals import Seal

#: Rows, and bytes of rows, of one batch. The thread rests after each.
BATCH_ROWS: Final = 500
BATCH_BYTES: Final = 1 << 20
#: Bytes after which the files are synced, and the room on the disk is looked at.
SYNC_BYTES: Final = 32 << 20
#: Keys that may be left when the copy is complete: some milliseconds of work.
LEFT_MAX: Final = 200
#: Rounds in which keys that were written meanwhile are copied. With more writes than that the seal takes longer.
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
        """Put rows as they are now; None for one that does not exist."""
        ...

    def sync(self) -> None:
        """Make the rows durable."""
        ...

    def finish(self, daughter: Daughter, boot: str, seal: Seal, clock_ms: int) -> None:
        """Make the file the daughter's."""
        ...

    def discard(self) -> None:
        """Remove the file, once. Raise OSError."""
        ...


class PreparedHeirs:
    """The files of all daughters of one tablet. `copy` is called first and once; then each method on any thread.

    The simulation of tablets replaces the access to files and threads: `_make_files`, `_remove`, `_batch`, `_rows_at`,
    `_sealed_state`, `_at_once`.
    """

    def __init__(
        self, rows: TabletRows, directory: Path, daughters: Sequence[RegionRecord], space: DiskSpace | None = None
    ) -> None:
        self._rows = rows
        self._space = space
        self._writing = threading.Lock()
        self._is_over = False
        self._unsynced = 0
        self._folder = directory / ROWS
        self._daughters = daughters
        self._files: Sequence[HeirFile] = ()

    def behind(self) -> int:
        """Return how many keys were written since their rows were copied."""
        return self._rows.notes.count()

    def copy(self, rest: Callable[[], None]) -> None:
        """Copy all rows, and call `rest` after each batch. Raise RowsError, OSError; then no file is left."""
        try:
            with translated(self._rows.path):
                for _ in self._batches():
                    rest()
        except BaseException:
            self.discard()
            raise
        kill_points.reached("heirs prepared")

    def _batches(self) -> Iterator[None]:
        """Copy all rows, and yield after each batch."""
        self._check_room(self._rows.state.size)
        with self._writing:
            self._check()
            self._files = self._make_files()
            self._rows.notes.begin()
        last: bytes | None = None
        while batch := self._batch(last):
            last = batch[-1][0]
            with self._writing:
                self._check()
                for file in self._files:
                    file.append(batch)
                self._catch_up(last)
                self._sync_some(sum(len(key) + len(stored) for key, stored in batch))
            yield
        kill_points.reached("heirs copied")
        for _ in range(ROUNDS_MAX):
            if self.catch_up() <= LEFT_MAX:
                break

    def catch_up(self) -> int:
        """Copy the rows of noted keys again, and make the files durable. Return the number of keys.

        Raise RowsError, OSError.
        """
        with translated(self._rows.path), self._writing:
            self._check()
            count = self._catch_up(None)
            self._sync()
        return count

    def finish(self, seal: Seal, daughters: Sequence[Daughter], boot: str) -> None:
        """Make the files those of the daughters, in their order. The parent's rows have the seal.

        Raise RowsError, OSError; then none of the files is left.
        """
        try:
            with translated(self._rows.path), self._writing:
                self._check()
                self._catch_up(None)
                clock_ms = self._checked_clock(seal)
                self._rows.notes.lose()
                self._is_over = True
                self._at_once(
                    [
                        partial(file.finish, daughter, boot, seal, clock_ms)
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
                self._rows.notes.lose()
            self._is_over = True
            for file in self._files:
                file.discard()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._is_over:
            raise NotPrepared(f"the daughters of {self._rows.path} are not prepared any more")

    def _make_files(self) -> Sequence[HeirFile]:
        """Return an empty file for each daughter."""
        return [_PreparedFile(os.fspath(self._folder / _PREFIX) + one.region_id, one) for one in self._daughters]

    def _batch(self, last: bytes | None) -> Rows:
        """Return the rows behind a key in their stored form."""
        batch: Rows = []
        size = 0
        with self._rows.using_file() as file, file.env.begin(db=file.rows) as reading, reading.cursor() as cursor:
            found = cursor.first() if last is None else cursor.set_range(last + b"\0")
            while found and len(batch) < BATCH_ROWS and size < BATCH_BYTES:
                key, stored = cursor.item()
                batch.append((key, stored))
                size += len(key) + len(stored)
                found = cursor.next()
        return batch

    def _catch_up(self, last: bytes | None) -> int:
        """Copy the rows of noted keys up to `last`; later batches have those behind it. None: of all noted keys."""
        noted = self._rows.notes.take()
        if noted is None:
            raise NotPrepared(f"the keys that are written in {self._rows.path} are not noted any more")
        keys = noted if last is None else [key for key in noted if key <= last]
        for at in range(0, len(keys), BATCH_ROWS):
            rows = self._rows_at(keys[at : at + BATCH_ROWS])
            for heir in self._files:
                heir.change(rows)
        return len(keys)

    @staticmethod
    def _at_once(finishes: Sequence[Callable[[], None]]) -> None:
        """Finish all files, on threads: most of the time is spent on syncs. No thread works on a file afterwards."""
        with ThreadPoolExecutor(len(finishes), "heirs") as threads:
            made = [threads.submit(finish) for finish in finishes]
        for one in made:
            one.result()

    def _remove(self, daughter: Daughter) -> None:
        """Remove the finished file of a daughter."""
        remove_rows(daughter.path)

    def _rows_at(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        """Return rows in their stored form; None for one that does not exist."""
        with self._rows.using_file() as file, file.env.begin(db=file.rows) as reading:
            return [(key, reading.get(key)) for key in keys]

    def _sealed_state(self) -> tuple[Seal, RowsState]:
        """Return the parent's seal, and the state of its rows."""
        with self._rows.using_file() as file, file.env.begin(db=file.rows) as reading:
            return sealing.seal_in(reading, file), environment.stored_state(reading, file.meta)

    def _checked_clock(self, seal: Seal) -> int:
        """Return the sealed parent's clock. Raise NotPrepared if the files together do not have its rows."""
        found, state = self._sealed_state()
        count, size = sum(one.count for one in self._files), sum(one.size for one in self._files)
        digest = add_to_digest(RowsState().digest, sum(one.total for one in self._files))
        if found != seal or (count, size, digest) != (state.rows, state.size, state.digest):
            raise NotPrepared(
                f"the daughters of {self._rows.path} have {count} rows of {size} bytes with digest {digest.hex()}, it"
                f" has {state.rows} rows of {state.size} bytes with digest {state.digest.hex()} and seal {found}"
            )
        return state.clock_ms

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
        """Put rows as they are now; None for one that does not exist."""
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

    def finish(self, daughter: Daughter, boot: str, seal: Seal, clock_ms: int) -> None:
        """Make the file the daughter's."""
        file: RowsFile = self._file
        state = heir_state(seal, clock_ms, self.count, self.size, self.total)
        remove_rows(daughter.path)
        with file.env.begin(write=True, db=file.meta) as writing:
            writing.put(environment.IDENTITY_KEY, environment.sealed_identity(daughter.identity))
            sealing.put_state(writing, file, state)
        file.close()
        os.rename(self._path, daughter.path)
        environment.remove_database(self._path)  # what is left of it: LMDB's lock file
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
