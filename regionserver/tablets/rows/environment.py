"""A tablet's LMDB file: making, opening, resetting to its steady point, checking.

    <tablet>.<generation>.mdb           databases "rows", "writers", "meta"; each value has a CRC
    <tablet>.<generation>.mdb.steady    the latest steady point (steady.py)
    <tablet>.<generation>.mdb.used      number of processes in a row that died with the file open; a clean close removes
                                        the file. Or "damaged": every row is read at the next open
    <tablet>.<generation>.mdb-lock      LMDB's own

The map has its full size from the start, so it never has to be resized under a reader. The file itself is only as long
as needed.

A file without a steady point contains nothing that the log lacks, as long as the log begins at its first entry. Such a
file is created again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import lmdb
import msgspec

from coord.durable import sync_folder
from coord.rpc.wire import RpcError
from regionserver.kv.files import DEATHS_MAX
from regionserver.kv.layout import READERS_MAX, reserve_lock
from regionserver.kv.messages import DAMAGED
from regionserver.kv.pages import Damaged, check_tree, check_whole
from regionserver.kv.rows import seal, unseal
from regionserver.kv.snapshot import DAMAGE
from regionserver.tablets.disk.layout import DATABASE, STEADY, TEMPORARY
from regionserver.tablets.rows import state as states
from regionserver.tablets.rows import steady
from regionserver.tablets.rows.errors import RowsFailed, RowsFull, RowsTooNew
from regionserver.tablets.rows.state import Identity, RowsState
from regionserver.tablets.rows.steady import SteadyPoint

#: Address space of each open file; 47 bits of it are enough for 2,000 files.
MAP_BYTES: Final = 64 * 1024 * 1024 * 1024
ROWS: Final = b"rows"
DATABASES: Final = (ROWS, b"writers", b"meta")
IDENTITY_KEY: Final = b"identity"
STATE_KEY: Final = b"state"
#: A longer `.used` file is invalid.
_USED_BYTES_MAX: Final = 20
#: Content of a `.used` file in place of the count, once damage was found in the rows.
_SUSPECT: Final = b"damaged"
#: Temporary errors: the same step can succeed later.
_TRANSIENT: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_TRANSIENT_TEXTS: Final = tuple(os.strerror(number) for number in _TRANSIENT)
_TRANSIENT_LMDB: Final = (lmdb.MapFullError, lmdb.DiskError, lmdb.MemoryError, lmdb.ReadersFullError)


def steady_path(path: str) -> str:
    """Return the path of the steady point of the rows at `path`."""
    return f"{path.removesuffix(DATABASE)}{STEADY}"


class RowsDisk:
    """The interface to the disk for everything that LMDB does not write itself, and for the syncs. Methods raise
    OSError."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file, or None if there is no such file."""
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read(steady.POINT_BYTES_MAX + 1)
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        """Replace the file's content, atomically and durably.

        The next start removes the remains of an unfinished replacement (`disk/files.py`).
        """
        folder, name = os.path.split(path)
        temporary = f"{folder}/{TEMPORARY}{name}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            try:
                _write_all(fd, data)
                os.fdatasync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, path)
        except OSError:
            # These rows may never be used again, and the next start may be far away.
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise
        sync_folder(folder)

    def sync_name(self, path: str) -> None:
        """Make the file's name durable."""
        sync_folder(os.path.dirname(path))

    def read_metas(self, path: str, page_bytes: int) -> bytes:
        """Return the file's two meta pages."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, steady.META_PAGES * page_bytes, 0)
        finally:
            os.close(fd)

    def write_metas(self, path: str, metas: bytes) -> None:
        """Write the file's two meta pages, durably."""
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write_all(fd, metas)
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def sync(self, env: Any) -> None:
        """Make everything that was committed durable. Raises lmdb.Error."""
        env.sync(True)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class RowsFile:
    """The file of a tablet's rows. The first use of the environment creates the file, on the thread of that use.

    A table of a thousand regions begins without rows. Creating the files of all regions would cost each server a second
    of CPU and three descriptors a file. Each start would cost the same again, because a server discards a file without
    a steady point.
    """

    env: Any
    rows: Any
    writers: Any
    meta: Any
    page_bytes: int

    def __init__(self, open_env: Callable[[], Any]) -> None:
        """`open_env` opens the environment, or makes it."""
        self._open_env = open_env
        self._opening = threading.Lock()

    @property
    def is_made(self) -> bool:
        """Return True if the environment is open."""
        return "env" in self.__dict__

    def open(self) -> None:
        """Open or make the environment, unless it is open. Raise the errors of LMDB, the system and the checks."""
        with self._opening:
            if self.is_made:
                return
            env = self._open_env()
            try:
                self.rows, self.writers, self.meta = (env.open_db(name, create=False) for name in DATABASES)
                self.page_bytes = env.stat()["psize"]
            except BaseException:
                env.close()
                raise
            self.env = env

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for attributes that `open` has not set yet.
        if name not in RowsFile.__annotations__:
            raise AttributeError(name)
        self.open()
        return self.__dict__[name]

    def close(self) -> None:
        """Close the environment if it is open; its transactions end."""
        if self.is_made:
            self.env.close()


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Convert exceptions as `translation` does."""
    try:
        yield
    except Exception as error:
        found = translation(path, error)
        if found is error:
            raise
        raise found from error


def translation(path: str, error: Exception) -> Exception:
    """Return RowsFailed or RowsFull for exceptions of LMDB, the system and the checksums, other exceptions as they
    are."""
    if isinstance(error, RpcError):
        return RowsFailed(f"{path} is damaged: {error.message}") if error.code == DAMAGED else error
    if isinstance(error, (*DAMAGE, msgspec.MsgspecError, UnicodeDecodeError)):
        return RowsFailed(f"{path} is damaged: {error}".splitlines()[0])
    if isinstance(error, Damaged):
        return RowsFailed(str(error))
    if isinstance(error, (lmdb.Error, OSError)):
        reason = f"{path}: {error}".splitlines()[0]
        if is_transient(error):
            return RowsFull(f"{reason}; free some space, and the tablet continues")
        return RowsFailed(reason)
    return error


def is_transient(error: Exception) -> bool:
    """Return True for a temporary error: the disk is full, or the process has too many files open."""
    if isinstance(error, OSError):
        return error.errno in _TRANSIENT
    return isinstance(error, _TRANSIENT_LMDB) or any(text in str(error) for text in _TRANSIENT_TEXTS)


# --- steps of an open -------------------------------------------------------------------------------------------------


def read_point(disk: RowsDisk, path: str, identity: Identity) -> SteadyPoint | None:
    """Return the file's steady point, or None if it never had one. Raise RowsFailed, RowsTooNew."""
    with translated(path):
        data = disk.read(steady_path(path))
    if data is None:
        return None
    point = steady.decode(data, steady_path(path))
    if (point.tablet, point.generation) != (identity.tablet, identity.generation):
        raise RowsFailed(
            f"{steady_path(path)} belongs to tablet {point.tablet} generation {point.generation}, not to tablet"
            f" {identity.tablet} generation {identity.generation}"
        )
    if not os.path.exists(path):
        raise RowsFailed(f"{path} is missing although its steady point exists: the rows are lost")
    return point


def restore(disk: RowsDisk, path: str, point: SteadyPoint, boot: str) -> SteadyPoint:
    """Reset the file to its steady point. May be interrupted at any step and repeated. Raise RowsFailed."""
    with translated(path):
        disk.write_metas(path, point.metas)
        # From now on the next open may treat the file's pages as written in this boot.
        point = msgspec.structs.replace(point, boot=boot)
        disk.replace(steady_path(path), steady.encode(point))
        forget_use(path)
        _remove(f"{path}-lock")
    return point


def remove_database(path: str) -> None:
    """Remove a file of rows, its lock and its mark of use, if they exist, and keep its steady point. Raise OSError."""
    for name in (path, f"{path}-lock", f"{path}.used"):
        _remove(name)


def create(path: str, identity: Identity) -> tuple[RowsFile, RowsState]:
    """Begin a file without rows, in place of a file that never had a steady point. The file is made at its first
    use."""
    state = RowsState()

    def make() -> Any:
        remove_database(path)
        env = _opened(path, is_new=True)
        try:
            *_, meta = (env.open_db(name, create=True) for name in DATABASES)
            with env.begin(write=True, db=meta) as transaction:
                transaction.put(IDENTITY_KEY, sealed_identity(identity))
                transaction.put(STATE_KEY, seal(STATE_KEY, states.encode(state)))
        except BaseException:
            env.close()
            raise
        return env

    return RowsFile(make), state


def open_existing(path: str, identity: Identity, progress: Callable[[], None]) -> tuple[RowsFile, RowsState]:
    """Open a file after checking it without a map. Raise RowsFailed, RowsFull, RowsTooNew."""
    with translated(path):
        if count_use(path) >= DEATHS_MAX:
            check_tree(path, progress)
            if not is_suspect(path):
                forget_use(path)
        check_whole(path)
    return open_checked(path, identity)


def open_checked(path: str, identity: Identity) -> tuple[RowsFile, RowsState]:
    """Open a file that has just been checked. Raise RowsFailed, RowsFull, RowsTooNew."""
    with translated(path):
        file = RowsFile(lambda: _opened(path, is_new=False))
        try:
            file.open()
        except lmdb.NotFoundError as error:
            raise Damaged(f"{path} lacks the databases of a tablet's rows") from error
    try:
        with translated(path), file.env.begin(db=file.meta) as transaction:
            found = stored_identity(transaction, path)
            if found != identity:
                raise RowsFailed(
                    f"{path} holds tablet {found.tablet} generation {found.generation}, not tablet {identity.tablet}"
                    f" generation {identity.generation}"
                )
            state = stored_state(transaction, file.meta)
    except BaseException:
        file.close()
        raise
    return file, state


def sealed_identity(identity: Identity) -> bytes:
    """Return an identity as the file stores it."""
    return seal(IDENTITY_KEY, states.encode(identity))


def stored_identity(transaction: Any, path: str) -> Identity:
    """Return the identity of the file at `path`. Raise Damaged, RpcError, msgspec.MsgspecError or RowsTooNew."""
    found = states.decode_identity(_sealed(transaction, IDENTITY_KEY))
    if found.format > states.FORMAT:
        raise RowsTooNew(f"{path} has format {found.format}, this build reads format {states.FORMAT}")
    return found


def stored_state(transaction: Any, meta: Any) -> RowsState:
    """Return the state that a transaction sees. Raise Damaged, RpcError or msgspec.MsgspecError."""
    stored = transaction.get(STATE_KEY, db=meta)
    if stored is None:
        raise Damaged("the file has no state")
    return states.decode_state(unseal(STATE_KEY, stored))


def _sealed(transaction: Any, key: bytes) -> bytes:
    stored = transaction.get(key)
    if stored is None:
        raise Damaged(f"the file has no {key.decode()}")
    return unseal(key, stored)


def _opened(path: str, *, is_new: bool) -> Any:
    reserve_lock(path)
    return lmdb.open(
        path,
        subdir=False,
        map_size=MAP_BYTES,
        max_dbs=len(DATABASES),
        max_readers=READERS_MAX,
        mode=0o600,
        create=is_new,
        readahead=False,
        sync=False,
        metasync=False,
    )


# --- marks of use -----------------------------------------------------------------------------------------------------


def count_use(path: str) -> int:
    """Return how many processes in a row died with the file open, and count this one. Raise OSError.

    Damaged pages can lead LMDB outside its map, which kills the process. After two deaths the file is checked page by
    page.
    """
    try:
        with open(f"{path}.used", "rb", buffering=0) as file:
            content = file.read(_USED_BYTES_MAX)
    except FileNotFoundError:
        content = b"0"
    if content == _SUSPECT:
        return DEATHS_MAX
    deaths = int(content) if content.isdigit() else DEATHS_MAX
    with open(f"{path}.used", "wb", buffering=0) as file:  # not synced, because the file does not cause power cuts
        file.write(b"%d" % (deaths + 1))
    return deaths


def suspect(path: str) -> None:
    """Record that damage was found in the file. The next open reads every row, so a restart finds the damage again."""
    with contextlib.suppress(OSError), open(f"{path}.used", "wb", buffering=0) as file:
        file.write(_SUSPECT)


def is_suspect(path: str) -> bool:
    """Return True if damage was found in the file by a process that used it. Raise OSError."""
    try:
        with open(f"{path}.used", "rb", buffering=0) as file:
            return file.read(_USED_BYTES_MAX) == _SUSPECT
    except FileNotFoundError:
        return False


def forget_use(path: str) -> None:
    """Reset the count of deaths. Raise OSError."""
    _remove(f"{path}.used")


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
