"""Splits and merges of key-value regions: how daughters get the rows of their parents (X11, docs/splits.md).

    <first parent's directory>/
      heir-<daughter>.mdb       rows of the daughter, copied while the parents are served
      heir-<daughter>.points    for each parent: its file, and the last transaction whose rows are in heir-*.mdb

**A daughter takes over rows when it is opened first** (`inherit`): the rows of its parents within its bounds are copied
into a file of the daughter's own, which is then like the file of any region. The parents' files are not changed, so
this may be repeated, on any server, until the daughters' files are durable.

**Copying takes time, so the parents' server does it before the parents are closed** (`Heirs`). The server copies all
rows while they are served, and notes the keys that are written meanwhile. It copies the rows of these keys again, the
last ones when the parents close. A daughter's open then finds a file that only needs a new name. This file is used only
if its points name exactly the last transactions of the parents' files. A server that dies before, or opens a parent
again, makes the points differ, and the rows are copied at the open.

A row keeps its checksum, which is checked when it is copied.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import lmdb
import msgspec
from twisted.logger import Logger

from coord import kill_points
from coord.rpc.wire import RpcError
from regions.records.model import RegionRecord
from regionserver.errors import RegionError
from regionserver.kv.layout import ROWS_FILE, is_marked, newest_file, open_file, remove_file, room_for
from regionserver.kv.messages import RowsPoint
from regionserver.kv.pages import Damaged, check_whole
from regionserver.kv.rows import is_whole, seal_all, shown
from regionserver.kv.snapshot import DAMAGE

log = Logger()

#: Rows of one transaction when rows are copied.
COPY_ROWS: Final = 5_000
#: Keys that may be left for the parents' close: some milliseconds of work.
LEFT_MAX: Final = 500
#: Limit of rounds in which keys that were written meanwhile are copied. If writes are too many for these rounds, the
#: close takes longer.
ROUNDS_MAX: Final = 8
#: Noted keys beyond which the prepared files are given up: nobody seems to close the parents.
NOTED_MAX: Final = 200_000
#: Keys that `middle_of` remembers.
SAMPLES_MAX: Final = 4096

Rows = list[tuple[bytes, bytes]]


class StoredRows(Protocol):
    """The rows of an open region."""

    def stored_batch(self, after: bytes | None, count: int) -> Rows:
        """Return up to `count` rows in their stored form, those after a key."""
        ...


class OpenParent(StoredRows, Protocol):
    """An open region (`regionserver.kv.files.RegionFile`). The methods raise RpcError if it is closed."""

    def stored_rows(self, keys: Sequence[bytes]) -> Sequence[tuple[bytes, bytes | None]]:
        """Return rows in their stored form, None for a row that does not exist."""
        ...


class Heirs:
    """The daughters' files while the parents are open; thread-safe."""

    def __init__(
        self, folder: str, parents: Sequence[OpenParent], ids: Sequence[str], daughters: Sequence[RegionRecord]
    ) -> None:
        """Create empty files in `folder`; `ids` are those of the parents. Raise OSError, lmdb.Error."""
        self._folder = folder
        #: Held while a file is written; always taken before `_lock`.
        self._writing = threading.Lock()
        #: Guards the fields below.
        self._lock = threading.Lock()
        self._noted: dict[OpenParent, set[bytes]] = {one: set() for one in parents}
        self._ids = dict(zip(parents, ids, strict=True))
        self._points: dict[str, RowsPoint] = {}
        self._is_complete = False
        self._is_over = False
        self._is_lost = False
        remove_heirs(folder)
        self._files = [_HeirFile(f"{folder}/heir-{one.region_id}", one) for one in daughters]

    def note(self, parent: OpenParent, keys: Iterable[bytes]) -> None:
        """Note keys that a commit has changed, or may have changed."""
        with self._lock:
            noted = self._noted.get(parent)
            if noted is None or self._is_over or self._is_lost:
                return
            noted.update(keys)
            if len(noted) > NOTED_MAX:
                # The next use of the files finds that too much is missing.
                self._is_lost = True
                noted.clear()

    def copy(self) -> None:
        """Copy all rows, then the rows written meanwhile, until few are left. Raise RegionError, OSError."""
        for parent in self._noted:
            for rows in batches_of(parent):
                self._put(rows)
        for _ in range(ROUNDS_MAX):
            if sum(self._catch_up(parent) for parent in self._noted) <= LEFT_MAX:
                break
        with self._writing:
            self._check()
            for file in self._files:
                file.sync()
            self._is_complete = True
        kill_points.reached("rows prepared")

    def _check(self) -> None:
        if self._is_over or self._is_lost:
            raise RegionError("the rows are not copied any more: the region was closed, or changed too much")

    def parent_closes(self, parent: OpenParent, point: Callable[[], RowsPoint]) -> None:
        """Copy the last changes of a parent that serves no request any more. Never fails: after an error the prepared
        files are given up."""
        with self._lock:
            is_usable = self._is_complete and not self._is_over
        if not is_usable:
            self.discard("")
            return
        try:
            self._catch_up(parent)
            with self._lock:
                self._points[self._ids[parent]] = point()
                is_last = len(self._points) == len(self._noted)
            if is_last:
                self._finish()
        except (OSError, lmdb.Error, RpcError, RegionError) as error:
            self.discard(str(error))

    def _finish(self) -> None:
        """Make the files durable and complete."""
        with self._writing:
            self._check()
            for file in self._files:
                file.finish(self._points)
            self._is_over = True
        kill_points.reached("prepared rows complete")

    def discard(self, why: str) -> None:
        """Give the prepared files up: the daughters copy the rows when they are opened."""
        with self._writing, self._lock:
            if self._is_over:
                return
            self._is_over = True
            self._noted = {one: set() for one in self._noted}
            for file in self._files:
                file.close()
        if why:
            log.warn("prepared files of a split or merge are given up: {why}", why=why)
        remove_heirs(self._folder)

    def _catch_up(self, parent: OpenParent) -> int:
        """Copy the noted rows of a parent; return their number."""
        with self._lock:
            keys = sorted(self._noted[parent])
            self._noted[parent] = set()
        for at in range(0, len(keys), COPY_ROWS):
            self._put(parent.stored_rows(keys[at : at + COPY_ROWS]))
        return len(keys)

    def _put(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        with self._writing:
            self._check()
            for file in self._files:
                file.put(rows)


class _HeirFile:
    """The file of one daughter."""

    def __init__(self, path: str, daughter: RegionRecord) -> None:
        self._path = path
        self._start, self._end = daughter.start_key.encode(), daughter.end_key.encode()
        self._env: Any = open_file(f"{path}.mdb", is_synced=False)

    def put(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put and delete the rows within the daughter's bounds."""
        mine = [one for one in rows if self._start <= one[0] and (not self._end or one[0] < self._end)]
        while mine and not self._try(mine):
            self._env.set_mapsize(2 * self._env.info()["map_size"])

    def _try(self, rows: Sequence[tuple[bytes, bytes | None]]) -> bool:
        try:
            with self._env.begin(write=True) as writing:
                for key, stored in rows:
                    if stored is None:
                        writing.delete(key)
                    else:
                        writing.put(key, stored)
        except lmdb.MapFullError:
            return False
        return True

    def sync(self) -> None:
        """Make the rows durable."""
        self._env.sync(True)

    def finish(self, points: dict[str, RowsPoint]) -> None:
        """Make the file durable, and write its points."""
        self.sync()
        self.close()
        temporary = f"{self._path}.new"
        Path(temporary).write_bytes(msgspec.json.encode(points))
        os.rename(temporary, f"{self._path}.points")

    def close(self) -> None:
        """Close the file."""
        self._env.close()


def remove_heirs(folder: str) -> None:
    """Remove prepared files that nobody has taken over. Raise OSError."""
    for name in os.listdir(folder):
        if name.startswith("heir-"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{name}")


# --- a daughter's first open ------------------------------------------------------------------------------------------


def inherit(region: RegionRecord, folder: str, token: int, parents: Sequence[str], progress: Callable[[], None]) -> str:
    """Make a file of rows for a daughter that has none; return its temporary path, or "" if there is nothing to do.

    `parents` are the directories of the parents, whose former owners cannot write any more. The file is durable.

    Raises:
        RegionError: a parent's rows are lost or damaged.
        OSError: the rows cannot be copied.
    """
    if is_marked(folder) or newest_file(folder)[1]:
        return ""
    sources = [_source(one) for one in parents]
    if not any(sources):
        return ""
    temporary = f"{folder}/copy-{token}"
    remove_file(temporary)
    prepared = f"{parents[0]}/heir-{region.region_id}"
    if _is_current(f"{prepared}.points", region, sources):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{prepared}.mdb", temporary)
            check_whole(temporary)
            return temporary
    _copy(region, temporary, [one for one in sources if one], progress)
    return temporary


def _source(folder: str) -> str:
    """Return the path of a parent's rows, "" if it has none. Raise Damaged."""
    name = newest_file(folder)[1]
    if not name:
        if is_marked(folder):
            raise Damaged(f"the file of rows in {folder} is missing; restore rows-<token>.mdb from a backup")
        return ""
    return f"{folder}/{name}"


def _is_current(path: str, region: RegionRecord, sources: Sequence[str]) -> bool:
    """Return True if a prepared file has all rows of the parents: its points are their last transactions."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, RowsPoint])
    except (FileNotFoundError, ValueError):
        return False
    return found == {parent.region_id: point_of(source) for parent, source in zip(region.parents, sources, strict=True)}


def point_of(path: str) -> RowsPoint:
    """Return the point of a file of rows. If `path` is "", return the point of an empty region. Raise Damaged,
    OSError."""
    return RowsPoint(os.path.basename(path), check_whole(path).transaction) if path else RowsPoint("", 0)


def _copy(region: RegionRecord, temporary: str, sources: Sequence[str], progress: Callable[[], None]) -> None:
    """Copy the rows within the region's bounds. The sources are in the order of their keys."""
    room = room_for(sum(os.stat(one).st_size for one in sources))
    start, end = region.start_key.encode(), region.end_key.encode()
    with contextlib.closing(open_file(temporary, room, is_synced=False)) as target:
        for path in sources:
            is_checked = ROWS_FILE.fullmatch(os.path.basename(path))[1] == "rows"  # type: ignore[index]
            check_whole(path)
            # Without LMDB's locks: the old owner may have been stopped while it held them.
            with contextlib.closing(open_file(path, room, foreign=True)) as source:
                try:
                    copy_rows(source, target, progress, is_checked=is_checked, start=start, end=end)
                except DAMAGE as error:
                    raise Damaged(f"{path} is damaged: {error}") from error
        target.sync(True)


def copy_rows(
    source: Any,
    target: Any,
    progress: Callable[[], None],
    *,
    is_checked: bool,
    start: bytes = b"",
    end: bytes = b"",
) -> None:
    """Copy the rows from `start` to before `end` (b"": no bound); check existing checksums and add missing ones.

    Raise Damaged for a row whose checksum does not match, lmdb.Error.
    """
    with source.begin() as reading, reading.cursor() as cursor:
        if not (cursor.set_range(start) if start else cursor.first()):
            return
        rows = iter(cursor)
        if end:
            rows = itertools.takewhile(lambda row: row[0] < end, rows)
        while batch := list(itertools.islice(rows, COPY_ROWS)):
            if not is_checked:
                batch = seal_all(batch)
            else:
                for key, stored in batch:
                    if not is_whole(key, stored):
                        raise Damaged(f"row {shown(key)} is damaged: its checksum does not match")
            with target.begin(write=True) as writing, writing.cursor() as into:
                into.putmulti(batch, append=True)
            progress()


# --- reading an open parent -------------------------------------------------------------------------------------------


def batches_of(parent: StoredRows) -> Iterable[Rows]:
    """Yield all rows of an open region in their stored form, in batches, each of its own snapshot.

    So the region can be closed between two batches. Rows that are written meanwhile may be missing or old.
    """
    after: bytes | None = None
    while True:
        batch = parent.stored_batch(after, COPY_ROWS)
        if not batch:
            return
        yield batch
        after = batch[-1][0]


def middle_of(parent: StoredRows) -> str:
    """Return the key of the row at which the second half of an open region's bytes begins, up to 0.1 %.

    Raise RegionError for a region with fewer than two rows.
    """
    samples: list[tuple[bytes, int]] = []
    step, total, rows = 1, 0, 0
    for batch in batches_of(parent):
        for key, stored in batch:
            if rows and rows % step == 0:
                samples.append((key, total))
                if len(samples) > SAMPLES_MAX:
                    samples, step = samples[1::2], 2 * step
            rows += 1
            total += len(key) + len(stored)
    if not samples:
        raise RegionError(f"the region has {rows} row{'' if rows == 1 else 's'}: a split needs two")
    key = min(samples, key=lambda one: abs(2 * one[1] - total))[0]
    return key.decode()
