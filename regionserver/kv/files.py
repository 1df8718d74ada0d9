"""One region's LMDB file, and how it stays one owner's. All of this runs on worker threads.

    <region's directory>/
      owner-<token>           regionserver/storage/ownership.py
      rows-<token>.mdb        the rows, each with a checksum (rows.py); the file with the highest token counts
      rows-<token>.mdb-lock   LMDB's own, of this file's processes
      used-<token>            the opening has, or had, the file mapped; removed when it lets go of it in order
      data-18446744073709551615.mdb    a mark without content: there is a file of rows
      data-<token>.mdb        rows without checksums, as earlier builds wrote them

**The mark** has two readers. An earlier build takes it for a file of a later opening and refuses to open the region,
where it would find no file and serve an empty one. This build knows by it that a missing file of rows is lost.

**Damaged pages** can lead LMDB out of its map, which ends the process. Two marks of use that nobody removed are two
deaths in a row: the next open reads the file page by page, without a map, and fails if it finds damage.

**Files of earlier builds** are copied into a file with checksums at open, up to MIGRATED_BYTES_MAX. A larger one would
keep its region closed for long: it is served as it is, unchecked, until an eviction copies it.

A region that changes hands in an orderly way, or whose owner's process is dead, goes on with the same file: LMDB's
pages are copied on write and its last page of meta data decides, so what was committed is there and what was not is
not. Only when a former owner's process still *exists* (its mark is locked: it is frozen, or slow to notice that its
session is over) does the new owner copy the rows into a file of its own, named by its token, and durable before the
region is announced. Whatever the old owner still does to its own file, nobody will read it.

Nothing acknowledged can be missing from the copy. The old owner acknowledges only what `DirectoryLock.is_newest` was
true for
*after* the commit; our mark was placed after that, and the copy was begun after our mark. And the copy is sound
although the old owner might commit meanwhile: it asks `is_newest` before each commit as well, so at most one can be
under way, and one commit never touches a page that the state before it needs.

An LMDB environment costs descriptors and address space, so it is opened on first use, and of many regions only the
latest used ones are kept open (`Environments`).
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

from coord.rpc.wire import RpcError
from regionserver.kv.messages import DAMAGED, REGION_FULL, STORAGE
from regionserver.kv.pages import Damaged, check_tree, check_whole
from regionserver.kv.rows import is_whole, seal, seal_all, shown
from regionserver.kv.snapshot import DAMAGE, RowSnapshot
from regionserver.opener import RegionError
from regionserver.request_gate import FENCED, NOT_SERVING
from regionserver.storage.directory import sync_folder
from regionserver.storage.ownership import DirectoryLock

log = Logger()

#: Rows with checksums ("rows"), or an earlier build's without ("data").
_FILE: Final = re.compile(r"(rows|data)-([0-9]{1,20})\.mdb")
#: Somebody has the file's environment open, or had it open when his process died.
_USED: Final = re.compile(r"used-([0-9]{1,20})")
#: Deaths in a row after which a file is read page by page before it is mapped again.
DEATHS_MAX: Final = 2
#: See the module. Its token is the highest that an earlier build can read.
_MARK: Final = f"data-{2**64 - 1}.mdb"
_MARK_TEXT: Final = (
    b"The rows of this region are in rows-<token>.mdb. Builds that look for data-<token>.mdb must not open it.\n"
)
#: Files of earlier builds that are copied at open: about a second of copying.
MIGRATED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Address space of a file at first; it doubles whenever it is full. The file itself is only as long as it must be.
MAP_BYTES: Final = 64 * 1024 * 1024
REGION_BYTES_MAX: Final = 64 * 1024 * 1024 * 1024
#: Environments kept open per server: three descriptors each.
ENVIRONMENTS_MAX: Final = 512
#: Rows per transaction when a file is copied.
COPY_ROWS: Final = 10_000
#: How long a close waits for requests that are being answered.
CLOSE_WITHIN_S: Final = 30.0
_READERS_MAX: Final = 64
#: LMDB's lock file for _READERS_MAX readers needs less. It is mapped: all of it must be on the disk before, or a full
#: disk ends the process by SIGBUS.
_LOCK_BYTES: Final = 16 * 1024
#: What is put (value) or deleted (None), in order.
Changes = Sequence[tuple[bytes, bytes | None]]


class RegionFile:
    """The rows of one open region. Any number of threads may read, one at a time writes; `close` waits for them."""

    def __init__(
        self,
        hold: DirectoryLock,
        environments: Environments,
        *,
        map_bytes: int = MAP_BYTES,
        damaged: Callable[[str], None] = lambda _why: None,
    ) -> None:
        """Nothing is opened yet; `prove` first. `damaged` is called on the thread that finds the first damage."""
        self.hold = hold
        #: Why nothing of the file is served any more; "" while it is whole as far as anybody has read.
        self.damage = ""
        self._damaged = damaged
        self._environments = environments
        self._map_bytes = map_bytes
        self._name = ""
        self._env: Any = None
        self._users = 0
        self._is_exclusive = False
        self._is_closed = False
        self._changed = threading.Condition()

    # --- opening and closing ---

    def prove(self, progress: Callable[[], None]) -> None:
        """Find the region's file and see that it is whole; after an eviction, copy it.

        Raises:
            RegionError: the file is lost, damaged or of a later opening.
            OSError: it cannot be read, or not be copied.
        """
        folder, token = self.hold.folder, self.hold.token
        names = os.listdir(folder)
        found = {int(match[2]): match[0] for match in map(_FILE.fullmatch, names) if match and match[0] != _MARK}
        newest = max(found, default=-1)
        if newest > token:
            raise RegionError(f"{folder}/{found[newest]} is of a later opening than this one, zxid {token:#x}")
        if newest >= 0:
            self._name = found[newest]
            if not self.is_checked and os.stat(f"{folder}/{self._name}").st_size == 0:
                # An earlier build's creator came no further; nothing was ever acknowledged.
                _remove(f"{folder}/{self._name}")
                self._name = ""
            else:
                check_whole(f"{folder}/{self._name}")
        if _MARK in names and not self.is_checked:
            raise Damaged(f"{folder} has no file of rows any more; restore rows-<token>.mdb from a backup")
        self._check_after_deaths(names, progress)
        if self.hold.has_evicted:
            self._copy(progress)
        elif self._name and not self.is_checked:
            self._migrate(progress)
        elif self._name and _MARK not in names:
            _place_mark(folder)
        for name in found.values():
            if name != self._name:
                _remove(f"{folder}/{name}")

    def _check_after_deaths(self, names: Sequence[str], progress: Callable[[], None]) -> None:
        """Read every page of a file whose servers died while they used it, DEATHS_MAX times in a row.

        Raises:
            Damaged: the file leads LMDB out of its map: whoever serves it dies.
        """
        deaths = sum(_USED.fullmatch(name) is not None for name in names)
        if deaths < DEATHS_MAX or not self._name:
            return
        path = f"{self.hold.folder}/{self._name}"
        log.warn("{path}: {deaths} servers died while they had it in use; checking it", path=path, deaths=deaths)
        check_tree(path, progress)
        self._forget_use()

    def _forget_use(self) -> None:
        """The file is whole, or closed in order: remove the marks of this use and of earlier ones."""
        for name in os.listdir(self.hold.folder):
            found = _USED.fullmatch(name)
            if found and int(found[1]) <= self.hold.token:
                _remove(f"{self.hold.folder}/{name}")

    @property
    def is_checked(self) -> bool:
        """Return whether the file's rows have checksums."""
        return self._name.startswith("rows-")

    def close(self) -> None:
        """Turn requests away, wait for those under way, let go of the file. Raises RegionError when they take long."""
        with self._changed:
            self._is_closed = True
            if not self._changed.wait_for(lambda: self._users == 0, CLOSE_WITHIN_S):
                raise RegionError(f"a request is still being answered after {CLOSE_WITHIN_S:g} s")
            self._close_environment()
        self._environments.forget(self)

    def close_if_idle(self) -> bool:
        """Close the environment unless a request uses it. The next request opens it again."""
        with self._changed:
            if self._users == 0:
                self._close_environment()
            return self._env is None

    def _close_environment(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()
            with contextlib.suppress(OSError):  # at worst the next open reads the file page by page
                self._forget_use()

    def _migrate(self, progress: Callable[[], None]) -> None:
        """Give rows of an earlier build their checksums, unless that takes long or is not possible now."""
        path = f"{self.hold.folder}/{self._name}"
        size = os.stat(path).st_size
        if size > MIGRATED_BYTES_MAX:
            log.info("{path} has {size} bytes: it stays without checksums", path=path, size=size)
            return
        try:
            self._copy(progress)
        except (OSError, lmdb.Error, RegionError) as error:
            log.warn("{path} stays without checksums: {error}", path=path, error=error)
            _remove(f"{self.hold.folder}/copy-{self.hold.token}")

    def _copy(self, progress: Callable[[], None]) -> None:
        """Give the region a file of this opening's own, with the rows of the present one, durable on return.

        Raises:
            RegionError: a row of the present file is damaged.
            OSError: the file cannot be written.
        """
        folder, former = self.hold.folder, self._name
        temporary = f"{folder}/copy-{self.hold.token}"
        _remove(temporary)
        size = os.stat(f"{folder}/{former}").st_size if former else 0
        room = _grown(size, self._map_bytes)
        with contextlib.closing(_open(temporary, room)) as target:
            if size:
                # Without locks: the old owner may have been stopped while it held them.
                with contextlib.closing(_open(f"{folder}/{former}", room, foreign=True)) as source:
                    try:
                        _copy_rows(source, target, progress, is_checked=self.is_checked)
                    except DAMAGE as error:
                        raise Damaged(f"{folder}/{former} is damaged: {error}") from error
            target.sync(True)
        self._install(temporary)

    def _install(self, temporary: str) -> None:
        """Make a new file, durable and whole, the region's file of rows."""
        folder = self.hold.folder
        name = f"rows-{self.hold.token}.mdb"
        _remove_lock(temporary)
        os.rename(temporary, f"{folder}/{name}")
        _place_mark(folder)
        self._name = name

    # --- requests ---

    @contextlib.contextmanager
    def reading(self) -> Iterator[RowSnapshot]:
        """The rows as of now. Raises RpcError."""
        with self._using(create=False) as env:
            if env is None:
                yield RowSnapshot(None)
                return
            try:
                with _storage_errors("read"), env.begin() as transaction:
                    yield RowSnapshot(transaction, is_checked=self.is_checked)
            except RpcError as error:
                self._note_damage(error)
                raise

    def write(self, changes: Changes, may_commit: Callable[[], None]) -> None:
        """Make `changes` in one durable commit. After the return they may be acknowledged.

        `may_commit` is asked with the transaction open, and raises when the lease is over.

        Raises:
            RpcError: FENCED and STORAGE leave the outcome open, after all others nothing was done.
        """
        try:
            with self._using(create=True) as env:
                stored = self._stored(changes)
                while not self._commit(env, stored, may_commit):
                    self._grow(env)
        except RpcError as error:
            self._note_damage(error)
            if error.code == STORAGE and self.close_if_idle():
                self._environments.forget(self)  # LMDB refuses an environment whose disk has failed it once
            raise
        if not self._is_newest():
            raise RpcError(FENCED, "the region was opened elsewhere while it was being written")

    def _stored(self, changes: Changes) -> Changes:
        if not self.is_checked:
            return changes
        return [(key, None if value is None else seal(key, value)) for key, value in changes]

    def _note_damage(self, error: RpcError) -> None:
        """Serve nothing of a damaged file any more, and report the first finding."""
        if error.code != DAMAGED:
            return
        with self._changed:
            is_first, self.damage = not self.damage, self.damage or error.message
        if is_first:
            self._damaged(error.message)

    def _commit(self, env: Any, changes: Changes, may_commit: Callable[[], None]) -> bool:
        """False when the map is full: nothing was done."""
        with _storage_errors("write"):
            transaction = env.begin(write=True)
            try:
                may_commit()
                if not self._is_newest():
                    raise RpcError(NOT_SERVING, "the region has been opened elsewhere")
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
            return self.hold.is_newest()
        except OSError:
            return False

    def _grow(self, env: Any) -> None:
        """Double the map once no request uses it. Raises RpcError(REGION_FULL) at the limit."""
        with self._changed:
            size = env.info()["map_size"]
            if 2 * size > REGION_BYTES_MAX:
                raise RpcError(REGION_FULL, f"the region has reached {size} bytes, the most that one may have")
            self._is_exclusive = True
            try:
                self._changed.wait_for(lambda: self._users == 1)
                env.set_mapsize(2 * size)
                self._map_bytes = 2 * size
            finally:
                self._is_exclusive = False
                self._changed.notify_all()

    @contextlib.contextmanager
    def _using(self, *, create: bool) -> Iterator[Any]:
        """The environment, opened if need be; None for a region without a file, unless one is to be created."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_exclusive)
            if self._is_closed:
                raise RpcError(NOT_SERVING, "the region is being closed")
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
        folder = self.hold.folder
        if not self._name:
            self._create_file()
        path = f"{folder}/{self._name}"
        self._map_bytes = _grown(os.stat(path).st_size, self._map_bytes)
        # Not synced: a power cut is no death of the file's making.
        os.close(os.open(f"{folder}/used-{self.hold.token}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._env = _open(path, self._map_bytes, create=False)

    def _create_file(self) -> None:
        """Make an empty file under another name first: a file of rows is whole from its first moment."""
        temporary = f"{self.hold.folder}/new-{self.hold.token}"
        try:
            _remove(temporary)
            with contextlib.closing(_open(temporary, self._map_bytes)) as made:
                made.sync(True)
            self._install(temporary)
        except BaseException:
            with contextlib.suppress(OSError):
                _remove(temporary)
            raise


class Environments:
    """Which regions have their LMDB environment open; beyond `most`, those that were not used for longest close it."""

    def __init__(self, most: int = ENVIRONMENTS_MAX) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._order: OrderedDict[RegionFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def used(self, region: RegionFile) -> None:
        """`region` has its environment open and uses it now."""
        with self._lock:
            self._order[region] = None
            self._order.move_to_end(region)
            surplus = list(self._order)[: max(0, len(self._order) - self._most)]
        for one in surplus:
            if one is not region and one.close_if_idle():
                self.forget(one)

    def forget(self, region: RegionFile) -> None:
        """`region` has closed its environment."""
        with self._lock:
            self._order.pop(region, None)


def _open(path: str, map_bytes: int, *, create: bool = True, foreign: bool = False) -> Any:
    """An environment on the file at `path`; `foreign`: to read a file that another process may be writing."""
    if not foreign:
        _reserve_lock(path)
    return lmdb.open(
        path,
        subdir=False,
        map_size=map_bytes,
        max_readers=_READERS_MAX,
        mode=0o600,
        readonly=foreign,
        create=create and not foreign,
        lock=not foreign,
        readahead=False,
    )


def _reserve_lock(path: str) -> None:
    """Have the whole lock file on the disk before LMDB maps it. Raises OSError on a full disk."""
    fd = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _LOCK_BYTES)
    finally:
        os.close(fd)


def _copy_rows(source: Any, target: Any, progress: Callable[[], None], *, is_checked: bool) -> None:
    """Copy all rows; those with a checksum are checked, the others get one. Raises Damaged."""
    with source.begin() as reading, reading.cursor() as cursor:
        rows = iter(cursor)
        while batch := list(itertools.islice(rows, COPY_ROWS)):
            if not is_checked:
                batch = seal_all(batch)
            else:
                for key, stored in batch:
                    if not is_whole(key, stored):
                        raise Damaged(f"row {shown(key)} is damaged: its checksum does not fit")
            with target.begin(write=True) as writing, writing.cursor() as into:
                into.putmulti(batch, append=True)
            progress()


def _place_mark(folder: str) -> None:
    """Durably mark that the region has a file of rows. Raises OSError."""
    fd = os.open(f"{folder}/{_MARK}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, _MARK_TEXT)
    finally:
        os.close(fd)
    sync_folder(folder)


def _grown(size: int, map_bytes: int) -> int:
    """`map_bytes`, doubled until `size` and as much again fit, so that the next write need not grow it."""
    while map_bytes < 2 * size and 2 * map_bytes <= REGION_BYTES_MAX:
        map_bytes *= 2
    return map_bytes


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    _remove_lock(path)


def _remove_lock(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}-lock")


@contextlib.contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    """Turn what LMDB and the system raise into an error that a client understands."""
    try:
        yield
    except DAMAGE as error:
        raise RpcError(DAMAGED, f"the region's file is damaged: {error}".splitlines()[0]) from error
    except (lmdb.Error, OSError) as error:
        raise RpcError(STORAGE, f"the region's file could not be {what}: {error}".splitlines()[0]) from error
