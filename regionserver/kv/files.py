"""One region's LMDB file, and how it stays one owner's. All of this runs on worker threads.

    <region's directory>/
      owner-<token>           regionserver/owner.py
      data-<token>.mdb        the rows; the file with the highest token counts
      data-<token>.mdb-lock   LMDB's own, of this file's processes

A region that changes hands in an orderly way, or whose owner's process is dead, goes on with the same file: LMDB's
pages are copied on write and its last page of meta data decides, so what was committed is there and what was not is
not. Only when a former owner's process still *exists* (its mark is locked: it is frozen, or slow to notice that its
session is over) does the new owner copy the rows into a file of its own, named by its token, and durable before the
region is announced. Whatever the old owner still does to its own file, nobody will read it.

Nothing acknowledged can be missing from the copy. The old owner acknowledges only what `Hold.is_newest` was true for
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
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import lmdb

from coord.rpc_wire import RpcError
from regionserver.directory import sync_folder
from regionserver.kv.messages import PAGE_BYTES_MAX, REGION_FULL, STORAGE, KvRow
from regionserver.opener import RegionError
from regionserver.owner import Hold
from regionserver.serving import FENCED, NOT_SERVING

_DATA: Final = re.compile(r"data-([0-9]{1,20})\.mdb")
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
#: Of the first page of an LMDB file: 16 bytes of page header, then magic and version.
_META: Final = struct.Struct("=II")
_META_AT: Final = 16
_MAGIC_AND_VERSION: Final = (0xBEEFC0DE, 1)

#: What is put (value) or deleted (None), in order.
Changes = Sequence[tuple[bytes, bytes | None]]


class RegionFile:
    """The rows of one open region. Any number of threads may read, one at a time writes; `close` waits for them."""

    def __init__(self, hold: Hold, environments: Environments, *, map_bytes: int = MAP_BYTES) -> None:
        """Nothing is opened yet; `prove` first."""
        self.hold = hold
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
        """Find the region's file and see that it is one; after an eviction, copy it. Raises RegionError, OSError."""
        folder, token = self.hold.folder, self.hold.token
        found = {int(match[1]): match[0] for match in map(_DATA.fullmatch, os.listdir(folder)) if match}
        newest = max(found, default=-1)
        if newest > token:
            raise RegionError(f"{folder}/{found[newest]} is of a later opening than this one, zxid {token:#x}")
        if newest >= 0:
            self._name = found[newest]
            _check_file(f"{folder}/{self._name}")
        if self.hold.has_evicted:
            self._copy(progress)
        for name in found.values():
            if name != self._name:
                _remove(f"{folder}/{name}")

    def close(self) -> None:
        """Turn requests away, wait for those under way, let go of the file. Raises RegionError when they take long."""
        with self._changed:
            self._is_closed = True
            if not self._changed.wait_for(lambda: self._users == 0, CLOSE_WITHIN_S):
                raise RegionError(f"a request is still being answered after {CLOSE_WITHIN_S:g} s")
            self._close_environment()
        self._environments.forget(self)

    def close_if_idle(self) -> bool:
        """Close the environment unless somebody uses it; it is opened again when it is needed."""
        with self._changed:
            if self._users == 0:
                self._close_environment()
            return self._env is None

    def _close_environment(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _copy(self, progress: Callable[[], None]) -> None:
        """Give the region a file of this opening's own, with the rows of the present one, durable on return."""
        folder, former = self.hold.folder, self._name
        name = f"data-{self.hold.token}.mdb"
        temporary = f"{folder}/copy-{self.hold.token}"
        _remove(temporary)
        size = os.stat(f"{folder}/{former}").st_size if former else 0
        room = _grown(size, self._map_bytes)
        with contextlib.closing(_open(temporary, room)) as target:
            if size:
                # Without locks: the old owner may have been stopped while it held them.
                with contextlib.closing(_open(f"{folder}/{former}", room, foreign=True)) as source:
                    _copy_rows(source, target, progress)
            target.sync(True)
        _remove_lock(temporary)
        os.rename(temporary, f"{folder}/{name}")
        sync_folder(folder)
        self._name = name

    # --- requests ---

    @contextlib.contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """The rows as of now. Raises RpcError."""
        with self._using(create=False) as env:
            if env is None:
                yield Snapshot(None)
            else:
                with _storage_errors("read"), env.begin() as transaction:
                    yield Snapshot(transaction)

    def write(self, changes: Changes, may_commit: Callable[[], None]) -> None:
        """Make `changes` in one durable commit; on return this server may say so.

        `may_commit` is asked with the transaction open, and raises when the lease is over.

        Raises:
            RpcError: FENCED and STORAGE leave the outcome open, after all others nothing was done.
        """
        try:
            with self._using(create=True) as env:
                while not self._commit(env, changes, may_commit):
                    self._grow(env)
        except RpcError as error:
            if error.code == STORAGE and self.close_if_idle():
                self._environments.forget(self)  # LMDB refuses an environment whose disk has failed it once
            raise
        if not self._is_newest():
            raise RpcError(FENCED, "the region was opened elsewhere while it was being written")

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
        """Double the map, with nobody else in it. Raises RpcError(REGION_FULL) at the limit."""
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
        is_new = not self._name
        name = self._name or f"data-{self.hold.token}.mdb"
        path = f"{folder}/{name}"
        if not is_new:
            self._map_bytes = _grown(os.stat(path).st_size, self._map_bytes)
        env = _open(path, self._map_bytes, create=is_new)
        if is_new:
            try:
                sync_folder(folder)  # a durable commit in a file whose name is not durable would be none
            except BaseException:
                env.close()
                raise
        self._env, self._name = env, name


class Snapshot:
    """A region's rows as of one moment."""

    def __init__(self, transaction: Any) -> None:
        """None: the region has no file yet, and no rows."""
        self._transaction = transaction

    def values(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Values of `keys`; of the first of them only, once the values fill a page."""
        found: list[bytes | None] = []
        size = 0
        for key in keys:
            if size >= PAGE_BYTES_MAX:
                break
            value = None if self._transaction is None else self._transaction.get(key)
            found.append(value)
            size += len(value or b"")
        return found

    def page(self, start: bytes, end: bytes, rows_max: int) -> tuple[list[KvRow], str]:
        """One page of `[start, end)`, and the key at which the next begins, "" after the last."""
        rows: list[KvRow] = []
        if self._transaction is None:
            return rows, ""
        size = 0
        with self._transaction.cursor() as cursor:
            found = cursor.set_range(start) if start else cursor.first()
            while found:
                key, value = cursor.item()
                if end and key >= end:
                    break
                if len(rows) == rows_max or size >= PAGE_BYTES_MAX:
                    return rows, key.decode()
                rows.append(KvRow(key.decode(), value))
                size += len(key) + len(value)
                found = cursor.next()
        return rows, ""


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


def _copy_rows(source: Any, target: Any, progress: Callable[[], None]) -> None:
    with source.begin() as reading, reading.cursor() as cursor:
        rows = iter(cursor)
        while batch := list(itertools.islice(rows, COPY_ROWS)):
            with target.begin(write=True) as writing, writing.cursor() as into:
                into.putmulti(batch, append=True)
            progress()


def _check_file(path: str) -> None:
    """Raises RegionError for a file that is no LMDB file, OSError for one that cannot be read."""
    with open(path, "rb", buffering=0) as file:
        head = file.read(_META_AT + _META.size)
    if not head:
        return  # its creator came no further; nothing was ever acknowledged
    if len(head) < _META_AT + _META.size or _META.unpack_from(head, _META_AT) != _MAGIC_AND_VERSION:
        raise RegionError(f"{path} is not a region's file")


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
    except (lmdb.Error, OSError) as error:
        raise RpcError(STORAGE, f"the region's file could not be {what}: {error}".splitlines()[0]) from error
