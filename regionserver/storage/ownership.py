"""Lock files with fencing tokens: which server may have a region's files open.

    owner-<token>    {"uuid":, "start_code":, "epoch":, "token":}, flock held by the server that has the region open

The token is the zxid of the write that made a server the region's owner (OFFLINE -> OPENING). The store orders all its
writes, so of two openings of a region the later one has the higher token, whenever their processes run. **The lock file
with the highest token is the owner's.** A lock file appears complete and locked in one atomic step. The highest one is
never removed: a close only releases its lock.

**Opening.** Check that there is no later lock file (else the order is out of date) and that no earlier one is locked. A
locked file belongs to a live or frozen server; it may be ignored only after the store has confirmed the end of that
server's session. Place the own lock file, then check again. If two servers do this at the same time, at least one of
them finds the other's file.

**Writing.** A server that was frozen keeps its lock, its descriptors and its state. Therefore it checks `is_newest`
after each commit and *before it acknowledges*. If the result is True, any later owner places its lock file after the
commit, and finds the commit in the file. The server also checks before each commit, so at most one commit can be in
progress when a new lock file appears.

Lock files are not synced: a power cut also kills the frozen processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
from typing import Final

import msgspec

from regions.records.model import Incarnation
from regionserver.errors import OwnerHeld, RegionError

_LOCK_FILE: Final = re.compile(r"owner-([0-9]{1,20})")
_READ_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_LOCK_BYTES_MAX: Final = 4096
#: Numbers the lock files that this process has placed. `next` is atomic, so threads get different numbers.
_placings: Final = itertools.count(1)


class Owner(msgspec.Struct):
    """Content of a lock file."""

    uuid: str
    start_code: int
    epoch: int
    token: int

    @property
    def incarnation(self) -> Incarnation:
        """Return the owner's incarnation."""
        return Incarnation(self.uuid, self.start_code)


_owner_decoder: Final = msgspec.json.Decoder(Owner)


class Superseded(RegionError):  # noqa: N818 - a finding, not a fault
    """Raised if a later open of the region has left its lock file."""


class DirectoryLock:
    """One server's lock on a region's directory; thread-safe."""

    def __init__(self, folder: str, owner: Owner, fd: int) -> None:
        self.folder = folder
        self.owner = owner
        #: True if a dead server's lock was ignored; its process may still have the files open.
        self.has_evicted = False
        self._fd = fd

    @property
    def token(self) -> int:
        """Return the token of this opening."""
        return self.owner.token

    def is_newest(self) -> bool:
        """Return True if this is the latest open and its lock file exists. Raise OSError."""
        return max(_tokens(self.folder), default=-1) == self.token

    def release(self) -> None:
        """Release the lock. The lock file stays, so that no earlier open can become the latest again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def withdraw(self) -> None:
        """Remove the lock file of a failed open."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_name(self.folder, self.token))
        self.release()


def acquire(folder: str, owner: Owner, evict: Incarnation | None) -> DirectoryLock:
    """Make `owner` the owner of the region in `folder`, and remove the lock files of earlier opens.

    `evict`: a holder whose session has certainly ended; its lock is ignored.

    Raises:
        OwnerHeld: another server holds the lock; nothing was changed.
        Superseded: a later opening has left its lock file.
        RegionError: a locked lock file cannot be read.
        OSError: the directory cannot be used.
    """
    _check(folder, owner.token, evict)
    lock = _place(folder, owner)
    try:
        lock.has_evicted = _check(folder, owner.token, evict)
        for token in _tokens(folder):
            if token < owner.token:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(_name(folder, token))
    except BaseException:
        lock.withdraw()
        raise
    return lock


def fence(folder: str, owner: Owner, evict: Incarnation | None, last_token: int) -> None:
    """Make sure that no former owner of a region that is split or merged can write any more.

    The region is never opened again, and `last_token` was its last open. A later lock file belongs to a daughter whose
    open has called this function, too.

    Raises:
        OwnerHeld: another server than `evict` holds the lock.
        RegionError: the region is open in this process, or a locked lock file cannot be read.
        OSError: the directory cannot be used.
    """
    tokens = _tokens(folder)
    if any(token > last_token for token in tokens):
        return
    for token in tokens:
        holder = _holder(_name(folder, token))
        if holder == owner.incarnation:
            raise RegionError(f"{folder} is still open on this server")
        if holder is not None and holder != evict:
            raise OwnerHeld(holder)
    _place(folder, owner).release()


def holder_of(folder: str) -> Incarnation | None:
    """Return the server that has the region in `folder` open, or None. Raise OSError, RegionError."""
    if not os.path.isdir(folder):
        return None
    for token in _tokens(folder):
        holder = _holder(_name(folder, token))
        if holder is not None:
            return holder
    return None


def _name(folder: str, token: int) -> str:
    return f"{folder}/owner-{token}"


def _tokens(folder: str) -> list[int]:
    return [int(found[1]) for found in map(_LOCK_FILE.fullmatch, os.listdir(folder)) if found]


def _check(folder: str, token: int, evict: Incarnation | None) -> bool:
    """Return True if `evict` has an earlier file locked. Raise OwnerHeld for another lock, Superseded for a later
    file."""
    has_evicted = False
    for other in _tokens(folder):
        if other > token:
            raise Superseded(
                f"the region was already opened under zxid {other:#x}, but this order has zxid {token:#x}; if the"
                " store was "
                f"restored from a backup, remove the owner files in {folder} while no server runs"
            )
        if other == token:
            continue
        holder = _holder(_name(folder, other))
        if holder is not None:
            if holder != evict:
                raise OwnerHeld(holder)
            has_evicted = True
    return has_evicted


def _holder(name: str) -> Incarnation | None:
    """Return the owner that holds the lock on a lock file; None if it is not locked."""
    try:
        fd = os.open(name, _READ_FLAGS)
    except FileNotFoundError:
        return None
    try:
        # Shared: two servers that check at the same moment must not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            return _owner_decoder.decode(os.pread(fd, _LOCK_BYTES_MAX, 0)).incarnation
        except ValueError as error:  # not JSON, not UTF-8, or other fields
            # An unknown owner cannot be proved dead.
            raise RegionError(f"{name} is locked, but its content does not name the owner ({error})") from error
    finally:
        os.close(fd)
    return None


def _place(folder: str, owner: Owner) -> DirectoryLock:
    """Create the lock file, complete and locked, under a temporary name, then rename it.

    The name is this call's own: both daughters of a split have one token, and one server may open them at one time.
    """
    temporary = f"{folder}/.owner-{owner.token}.{owner.uuid}.{owner.start_code}.{next(_placings)}"
    fd = os.open(temporary, _READ_FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(fd, msgspec.json.encode(owner), 0)
        os.rename(temporary, _name(folder, owner.token))
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return DirectoryLock(folder, owner, fd)
