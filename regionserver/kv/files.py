"""One region's LMDB file, and how it stays with one owner. All of this runs on worker threads.

    <region's directory>/
      owner-<token>           regionserver/storage/ownership.py
      rows-<token>.mdb        the rows, each with a checksum (rows.py); the file with the highest token counts
      rows-<token>.mdb-lock   LMDB's own, of this file's processes
      used-<token>            the opening has, or had, the file mapped; removed after an orderly close
      data-18446744073709551615.mdb    an empty marker: the region has a file of rows
      data-<token>.mdb        rows without checksums, as earlier builds wrote them

**The marker** has two readers. An earlier build takes the marker for the file of a later opening and rejects the open;
without the marker it would find no file and serve an empty region. This build concludes from the marker that a missing
file of rows is lost.

**Damaged pages** can make LMDB read outside of its map, which kills the process. Two remaining `used-` files mean two
deaths in a row. The next open then reads the file page by page, without a map, and fails if a page is damaged.

**Files of earlier builds** are copied into a file with checksums at open, up to MIGRATED_BYTES_MAX. Copying a larger
file would keep its region closed for a long time. Such a file is served without checksums until an eviction copies it.

If a region changes its owner in order, or the owner's process is dead, the next owner continues with the same file.
LMDB copies pages on write, and its latest meta page decides, so exactly the committed data are there.

The former owner's process may still exist: its lock file is locked, because the process is frozen or has not noticed
that its session ended. Only in this case the new owner copies the rows into a file of its own, named after its token.
It syncs the copy before it announces the region. Later writes of the old owner go to a file that no server reads.

No acknowledged write can be missing from the copy. The old owner acknowledges a write only if `DirectoryLock.is_newest`
was true *after* the commit. The new owner placed its lock file after that, and began the copy after its lock file. The
copy is consistent although the old owner might commit meanwhile: the old owner also checks `is_newest` before each
commit, so at most one commit can be in progress, and one commit never changes a page that the previous state uses.

An LMDB environment costs descriptors and address space. It is opened on first use, and only the most recently used
environments stay open (`Environments`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import lmdb
from twisted.logger import Logger

from coord import kill_points
from coord.durable import sync_folder
from coord.rpc.wire import RpcError
from regions.messages.heartbeat import Measure
from regions.records.model import RegionRecord
from regionserver.kv.heirs import Heirs, copy_rows, inherit, remove_heirs
from regionserver.kv.held import HeldRows
from regionserver.kv.layout import (
    MAP_BYTES,
    MARKER,
    REGION_BYTES_MAX,
    open_file,
    remove_file,
    room_for,
    rows_files,
)
from regionserver.kv.messages import DAMAGED, REGION_FULL, STORAGE, RowsPoint
from regionserver.kv.pages import Damaged, check_tree, check_whole
from regionserver.kv.rows import seal, seal_all
from regionserver.kv.snapshot import DAMAGE, RowSnapshot
from regionserver.opener import RegionError
from regionserver.request_gate import FENCED, NOT_SERVING
from regionserver.storage.ownership import DirectoryLock

log = Logger()

#: A process has the file's environment open, or had it open when it died.
_USED: Final = re.compile(r"used-([0-9]{1,20})")
#: Deaths in a row after which a file is read page by page before it is mapped again.
DEATHS_MAX: Final = 2
_MARKER_TEXT: Final = (
    b"The rows of this region are in rows-<token>.mdb. Builds that look for data-<token>.mdb must not open it.\n"
)
#: Files of earlier builds that are copied at open: about a second of copying.
MIGRATED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Environments kept open per server: three descriptors each.
ENVIRONMENTS_MAX: Final = 512
#: Time limit of a close for requests in progress.
CLOSE_WITHIN_S: Final = 30.0
#: Puts (value) and deletes (None), in order.
Changes = Sequence[tuple[bytes, bytes | None]]


class RegionFile:
    """The rows of one open region: many concurrent readers, one writer; `close` waits for them."""

    def __init__(
        self,
        lock: DirectoryLock,
        environments: Environments,
        *,
        map_bytes: int = MAP_BYTES,
        damaged: Callable[[str], None] = lambda _why: None,
        measured: Callable[[Measure], None] = lambda _size: None,
    ) -> None:
        """Store the arguments only; call `recover` first.

        `damaged` is called on the thread that finds the first damage. `measured` is called with the size of the region
        when it is opened and after every commit, on the same thread.
        """
        self.lock = lock
        #: Why no request is served any more; "" while no damage has been found.
        self.damage = ""
        self._damaged = damaged
        self._measured = measured
        self._environments = environments
        self._map_bytes = map_bytes
        self._name = ""
        self._env: Any = None
        self._users = 0
        self._is_exclusive = False
        self._is_closed = False
        self._changed = threading.Condition()
        #: Snapshots that a backup reads. The environment stays open for them; when it closes, they end.
        self._held: set[HeldRows] = set()
        #: The daughters' files, while this region is about to be split or merged.
        self._heirs: Heirs | None = None
        #: Thread that makes the last changes in them, after the last request.
        self._handing_over = 0

    # --- opening and closing ---

    def take_over(self, region: RegionRecord, parents: Sequence[str], progress: Callable[[], None]) -> None:
        """Take over the rows of the parents of a split or merge, unless this was done before; then call `recover`.

        `parents` are their directories, whose former owners cannot write any more. Raise as `recover`.
        """
        made = inherit(region, self.lock.folder, self.lock.token, parents, progress)
        if made:
            self._install(made)
            kill_points.reached("rows taken over")

    def recover(self, progress: Callable[[], None]) -> None:
        """Find the region's file and check that it is complete; after an eviction, copy it.

        Raises:
            RegionError: the file is lost, damaged or of a later opening.
            OSError: the file cannot be read or copied.
        """
        folder, token = self.lock.folder, self.lock.token
        remove_heirs(folder)
        names = os.listdir(folder)
        found = rows_files(folder)
        newest = max(found, default=-1)
        size = Measure(0, 0)
        if newest > token:
            raise RegionError(f"{folder}/{found[newest]} belongs to a later opening than this one, zxid {token:#x}")
        if newest >= 0:
            self._name = found[newest]
            if not self.is_checked and os.stat(f"{folder}/{self._name}").st_size == 0:
                # An earlier build died right after creating the file; it acknowledged no write.
                remove_file(f"{folder}/{self._name}")
                self._name = ""
            else:
                meta = check_whole(f"{folder}/{self._name}")
                size = Measure(meta.entries, meta.used_pages * meta.page_bytes)
        if MARKER in names and not self.is_checked:
            raise Damaged(f"the file of rows in {folder} is missing; restore rows-<token>.mdb from a backup")
        self._check_after_deaths(names, progress)
        if self.lock.has_evicted:
            self._copy(progress)
        elif self._name and not self.is_checked:
            self._migrate(progress)
        elif self._name and MARKER not in names:
            _place_marker(folder)
        for name in found.values():
            if name != self._name:
                remove_file(f"{folder}/{name}")
        self._measured(size)

    def _check_after_deaths(self, names: Sequence[str], progress: Callable[[], None]) -> None:
        """Read every page of a file whose servers died while they used it, DEATHS_MAX times in a row.

        Raises:
            Damaged: the file makes LMDB read outside of its map; it would kill every server.
        """
        deaths = sum(_USED.fullmatch(name) is not None for name in names)
        if deaths < DEATHS_MAX or not self._name:
            return
        path = f"{self.lock.folder}/{self._name}"
        log.warn("{deaths} servers died while they used {path}, checking every page", path=path, deaths=deaths)
        check_tree(path, progress)
        self._remove_use()

    def _remove_use(self) -> None:
        """Remove the `used-` files of this opening and earlier ones: the file is whole, or was closed in order."""
        for name in os.listdir(self.lock.folder):
            found = _USED.fullmatch(name)
            if found and int(found[1]) <= self.lock.token:
                remove_file(f"{self.lock.folder}/{name}")

    @property
    def is_checked(self) -> bool:
        """Return True if the file's rows have checksums."""
        return self._name.startswith("rows-")

    def close(self) -> None:
        """Reject new requests, wait for those in progress, close the file. Raise RegionError if they take too long."""
        with self._changed:
            self._is_closed = True
            if not self._changed.wait_for(lambda: self._users == 0, CLOSE_WITHIN_S):
                raise RegionError(f"a request is still in progress after {CLOSE_WITHIN_S:g} s")
        heirs, self._heirs = self._heirs, None
        if heirs is not None:
            self._handing_over = threading.get_ident()
            heirs.parent_closes(self, self._point)
            self._handing_over = 0
        with self._changed:
            self._close_environment()
        self._environments.forget(self)

    def close_if_idle(self) -> bool:
        """Close the environment unless a request uses it; return True if it is closed. The next request opens it
        again."""
        with self._changed:
            if self._users == 0 and not self._held:
                self._close_environment()
            return self._env is None

    def _end_held(self) -> None:
        """End the snapshots of backups; their readers begin the region anew."""
        for held in list(self._held):
            held.end()

    def _close_environment(self) -> None:
        self._end_held()
        env, self._env = self._env, None
        if env is not None:
            env.close()
            with contextlib.suppress(OSError):  # at worst the next open checks the file page by page
                self._remove_use()

    def _migrate(self, progress: Callable[[], None]) -> None:
        """Copy an earlier build's file into one with checksums, unless this takes long or is impossible now."""
        path = f"{self.lock.folder}/{self._name}"
        size = os.stat(path).st_size
        if size > MIGRATED_BYTES_MAX:
            log.info("{path} stays without checksums: it has {size} bytes", path=path, size=size)
            return
        try:
            self._copy(progress)
        except (OSError, lmdb.Error, RegionError) as error:
            log.warn("{path} stays without checksums: {error}", path=path, error=error)
            remove_file(f"{self.lock.folder}/copy-{self.lock.token}")

    def _copy(self, progress: Callable[[], None]) -> None:
        """Write a file of this opening's own with all rows, durable on return.

        Raises:
            RegionError: a row of the former file is damaged.
            OSError: the new file cannot be written.
        """
        folder, former = self.lock.folder, self._name
        temporary = f"{folder}/copy-{self.lock.token}"
        remove_file(temporary)
        size = os.stat(f"{folder}/{former}").st_size if former else 0
        room = room_for(size, self._map_bytes)
        with contextlib.closing(open_file(temporary, room)) as target:
            if size:
                # Without LMDB's locks: the old owner may have been stopped while it held them.
                with contextlib.closing(open_file(f"{folder}/{former}", room, foreign=True)) as source:
                    try:
                        copy_rows(source, target, progress, is_checked=self.is_checked)
                    except DAMAGE as error:
                        raise Damaged(f"{folder}/{former} is damaged: {error}") from error
            target.sync(True)
        self._install(temporary)

    def _install(self, temporary: str) -> None:
        """Make a new, durable and complete file the region's file of rows."""
        folder = self.lock.folder
        name = f"rows-{self.lock.token}.mdb"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{temporary}-lock")
        os.rename(temporary, f"{folder}/{name}")
        _place_marker(folder)
        self._name = name

    # --- requests ---

    @contextlib.contextmanager
    def reading(self) -> Iterator[RowSnapshot]:
        """Yield a snapshot of the rows. Raise RpcError."""
        with self._using(create=False) as env:
            if env is None:
                yield RowSnapshot(None, hold=lambda: HeldRows(None, RowsPoint()))
                return
            try:
                with _storage_errors("read"), env.begin() as transaction:
                    yield RowSnapshot(transaction, is_checked=self.is_checked, hold=lambda: self._hold(env))
            except RpcError as error:
                self._note_damage(error)
                raise

    def _hold(self, env: Any) -> HeldRows:
        """Begin a snapshot that stays until it ends or the environment closes. Call this while the region is in use."""
        transaction = env.begin()
        point = RowsPoint(self._name, transaction.id())
        held = HeldRows(transaction, point, is_checked=self.is_checked, ended=self._held.discard)
        self._held.add(held)
        return held

    # --- splits and merges ---

    def set_heirs(self, heirs: Heirs) -> None:
        """From now on note every changed key in `heirs`, and make the last changes in them at the close."""
        former, self._heirs = self._heirs, heirs
        if former is not None:
            former.discard("another split or merge was prepared")

    def stored_batch(self, after: bytes | None, count: int) -> list[tuple[bytes, bytes]]:
        """Return up to `count` rows in their stored form with checksums, those after a key. Raise RpcError."""
        with self._using(create=False) as env:
            if env is None:
                return []
            with _storage_errors("read"), env.begin() as transaction, transaction.cursor() as cursor:
                found = cursor.first() if after is None else cursor.set_range(after)
                if found and cursor.key() == after:
                    found = cursor.next()
                rows = list(itertools.islice(cursor, count)) if found else []
        return rows if self.is_checked else seal_all(rows)

    def stored_rows(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        """Return rows in their stored form with checksums, None for a row that does not exist. Raise RpcError."""
        with self._using(create=False) as env:
            if env is None:
                return [(key, None) for key in keys]
            with _storage_errors("read"), env.begin() as transaction:
                rows = [(key, transaction.get(key)) for key in keys]
        if self.is_checked:
            return rows
        return [(key, None if value is None else seal(key, value)) for key, value in rows]

    def _point(self) -> RowsPoint:
        """Return the point of the rows."""
        with self._using(create=False) as env:
            return RowsPoint("", 0) if env is None else RowsPoint(self._name, env.info()["last_txnid"])

    # --- writing ---

    def write(self, changes: Changes, may_commit: Callable[[], None]) -> None:
        """Write `changes` in one durable commit. The caller may acknowledge them after the return.

        `may_commit` is called with the transaction open, and raises if the lease has ended.

        Raises:
            RpcError: FENCED and STORAGE leave the outcome unknown; after all other codes nothing was done.
        """
        try:
            with self._using(create=True) as env:
                stored = self._stored(changes)
                try:
                    while not self._commit(env, stored, may_commit):
                        self._grow(env)
                finally:
                    if self._heirs is not None:
                        self._heirs.note(self, [key for key, _ in changes])
                self._measured(_size_of(env))
        except RpcError as error:
            self._note_damage(error)
            if error.code == STORAGE:
                self._end_held()
                if self.close_if_idle():
                    self._environments.forget(self)  # LMDB rejects an environment after one disk error
            raise
        if not self._is_newest():
            raise RpcError(FENCED, "another server opened the region during the write")

    def _stored(self, changes: Changes) -> Changes:
        if not self.is_checked:
            return changes
        return [(key, None if value is None else seal(key, value)) for key, value in changes]

    def _note_damage(self, error: RpcError) -> None:
        """Stop serving a damaged file, and report the first damage."""
        if error.code != DAMAGED:
            return
        with self._changed:
            is_first, self.damage = not self.damage, self.damage or error.message
        if is_first:
            self._damaged(error.message)

    def _commit(self, env: Any, changes: Changes, may_commit: Callable[[], None]) -> bool:
        """Commit the changes. Return False if the map is full and nothing was done."""
        with _storage_errors("write"):
            transaction = env.begin(write=True)
            try:
                may_commit()
                if not self._is_newest():
                    raise RpcError(NOT_SERVING, "another server has opened the region")
                for key, value in changes:
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)
                transaction.commit()
            except lmdb.MapFullError:
                transaction.abort()
                return False
            except BaseException:
                transaction.abort()
                raise
        return True

    def _is_newest(self) -> bool:
        try:
            return self.lock.is_newest()
        except OSError:
            return False

    def _grow(self, env: Any) -> None:
        """Double the map once no request uses it. Raise RpcError(REGION_FULL) at the limit."""
        with self._changed:
            size = env.info()["map_size"]
            if 2 * size > REGION_BYTES_MAX:
                raise RpcError(REGION_FULL, f"the region has reached its limit of {size} bytes")
            self._is_exclusive = True
            try:
                self._changed.wait_for(lambda: self._users == 1)
                self._end_held()
                env.set_mapsize(2 * size)
                self._map_bytes = 2 * size
            finally:
                self._is_exclusive = False
                self._changed.notify_all()

    @contextlib.contextmanager
    def _using(self, *, create: bool) -> Iterator[Any]:
        """Yield the environment, opened on demand. Yield None for a region without a file, unless `create`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_exclusive)
            if self._is_closed and self._handing_over != threading.get_ident():
                raise RpcError(NOT_SERVING, "the region is closing")
            if self.damage:
                raise RpcError(DAMAGED, self.damage)
            if self._env is None and (self._name or create):
                with _storage_errors("opened"):
                    self._open_environment()
            self._users += 1
            env = self._env
        try:
            if env is not None:
                self._environments.used(self)
            yield env
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _open_environment(self) -> None:
        folder = self.lock.folder
        if not self._name:
            self._create_file()
        path = f"{folder}/{self._name}"
        self._map_bytes = room_for(os.stat(path).st_size, self._map_bytes)
        # Not synced, because the file does not cause power cuts.
        os.close(os.open(f"{folder}/used-{self.lock.token}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._env = open_file(path, self._map_bytes, create=False)

    def _create_file(self) -> None:
        """Create the file under a temporary name first: a file of rows is complete from its first moment."""
        temporary = f"{self.lock.folder}/new-{self.lock.token}"
        try:
            remove_file(temporary)
            with contextlib.closing(open_file(temporary, self._map_bytes)) as made:
                made.sync(True)
            self._install(temporary)
        except BaseException:
            with contextlib.suppress(OSError):
                remove_file(temporary)
            raise


class Environments:
    """The regions with an open LMDB environment; beyond `most`, the least recently used ones are closed."""

    def __init__(self, most: int = ENVIRONMENTS_MAX) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._order: OrderedDict[RegionFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def used(self, region: RegionFile) -> None:
        """Record that `region` uses its environment now; close the least recently used ones."""
        with self._lock:
            self._order[region] = None
            self._order.move_to_end(region)
            surplus = list(self._order)[: max(0, len(self._order) - self._most)]
        for one in surplus:
            if one is not region and one.close_if_idle():
                self.forget(one)

    def forget(self, region: RegionFile) -> None:
        """Record that `region` has closed its environment."""
        with self._lock:
            self._order.pop(region, None)


def _size_of(env: Any) -> Measure:
    """Return the size after the latest commit. Costs microseconds: LMDB has counted."""
    found = env.stat()
    pages = found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
    return Measure(found["entries"], pages * found["psize"])


def _place_marker(folder: str) -> None:
    """Create the marker durably: the region has a file of rows. Raise OSError."""
    fd = os.open(f"{folder}/{MARKER}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, _MARKER_TEXT)
    finally:
        os.close(fd)
    sync_folder(folder)


@contextlib.contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    """Turn exceptions of LMDB and the system into errors for the client."""
    try:
        yield
    except DAMAGE as error:
        raise RpcError(DAMAGED, f"the region's file is damaged: {error}".splitlines()[0]) from error
    except (lmdb.Error, OSError) as error:
        raise RpcError(STORAGE, f"the region's file could not be {what}: {error}".splitlines()[0]) from error
