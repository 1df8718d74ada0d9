"""Which server may have a region's files open: marks in the region's directory, in the order of the store.

    owner-<token>    {"uuid":, "start_code":, "epoch":, "token":}, flock held by the server that has the region open

The token is the zxid of the write that made a server the region's opener (OFFLINE -> OPENING). The store orders all
its writes, so of two openings of a region the later one has the higher token, whatever process wakes up when. **The
mark with the highest token is the owner's.** Marks appear signed and locked in one atomic step, and the highest one is
never removed: closing only gives up its lock.

**Opening.** Look whether a later mark exists (then the order is out of date) or an earlier one is locked (then its
server lives, or is frozen: only when the store says that its session is over may it be passed over). Put the own mark
there; look once more. Of two servers that do this at the same time at least one sees the other's mark.

**Writing.** A server that was frozen keeps its lock, its descriptors and its belief. It therefore asks `is_newest`
after each commit and *before it acknowledges*: if the answer is yes, then whoever comes later puts its mark there
after the commit, and finds the commit in the file. It asks before each commit as well, so at most one commit can be
on its way when a new mark appears.

Marks are not synced: a power cut also ends whoever was frozen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from typing import Final

import msgspec

from regions.records.model import Incarnation
from regionserver.errors import OwnerHeld, RegionError

_MARK: Final = re.compile(r"owner-([0-9]{1,20})")
_READ_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_MARK_BYTES_MAX: Final = 4096


class Owner(msgspec.Struct):
    """Content of a lock file."""

    uuid: str
    start_code: int
    epoch: int
    token: int

    @property
    def incarnation(self) -> Incarnation:
        """The lock on one region."""
        return Incarnation(self.uuid, self.start_code)


_owner_decoder: Final = msgspec.json.Decoder(Owner)


class Superseded(RegionError):  # noqa: N818 - a finding, not a fault
    """Raised when a later open of the region has left its lock file."""


class DirectoryLock:
    """One server's hold of a region's directory. Any thread."""

    def __init__(self, folder: str, owner: Owner, fd: int) -> None:
        self.folder = folder
        self.owner = owner
        #: Whether a hold of a dead server was passed over, which may still have the files open.
        self.has_evicted = False
        self._fd = fd

    @property
    def token(self) -> int:
        """The token of this opening."""
        return self.owner.token

    def is_newest(self) -> bool:
        """Return whether this is still the latest open: no later one, and the lock file exists. Raises OSError."""
        return max(_tokens(self.folder), default=-1) == self.token

    def release(self) -> None:
        """Release the lock. The lock file stays, so that no earlier open can take itself for the latest."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def withdraw(self) -> None:
        """Remove the lock file of an open that failed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_name(self.folder, self.token))
        self.release()


def take(folder: str, owner: Owner, evict: Incarnation | None) -> DirectoryLock:
    """Make `owner` the owner of the region in `folder`, and remove the lock files of earlier opens.

    `evict`: a holder whose session is certainly over; its lock does not count.

    Raises:
        OwnerHeld: somebody else holds it; nothing was changed.
        Superseded: a later opening has left its mark.
        RegionError: a locked mark cannot be read.
        OSError: the directory cannot be used.
    """
    _check(folder, owner.token, evict)
    hold = _place(folder, owner)
    try:
        hold.has_evicted = _check(folder, owner.token, evict)
        for token in _tokens(folder):
            if token < owner.token:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(_name(folder, token))
    except BaseException:
        hold.withdraw()
        raise
    return hold


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
    return [int(found[1]) for found in map(_MARK.fullmatch, os.listdir(folder)) if found]


def _check(folder: str, token: int, evict: Incarnation | None) -> bool:
    """Whether `evict` has an earlier mark locked. Raises OwnerHeld for any other lock, Superseded for a later mark."""
    has_evicted = False
    for other in _tokens(folder):
        if other > token:
            raise Superseded(
                f"it was opened under zxid {other:#x} already, this order is of zxid {token:#x}; if the store was set "
                f"back to a backup, remove the owner files in {folder} while no server runs"
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
        # Shared: two servers that look at the same moment must not take each other for its owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            return _owner_decoder.decode(os.pread(fd, _MARK_BYTES_MAX, 0)).incarnation
        except msgspec.DecodeError as error:
            # Who cannot be named cannot be proved dead.
            raise RegionError(f"{name} is locked and does not say by whom ({error})") from error
    finally:
        os.close(fd)
    return None


def _place(folder: str, owner: Owner) -> DirectoryLock:
    """Signed and locked before it has its name."""
    temporary = f"{folder}/.owner-{owner.token}.{owner.uuid}.{owner.start_code}"
    fd = os.open(temporary, _READ_FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(fd, msgspec.json.encode(owner), 0)
        os.rename(temporary, _name(folder, owner.token))
    except BaseException:
        os.close(fd)
        raise
    return DirectoryLock(folder, owner, fd)
