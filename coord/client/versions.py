"""Every version of a znode, once: as an event, or counted in a gap. Resumes where a program stopped (N7). Pure.

ZooKeeper's watches say that something has changed, not what, and a client that was disconnected misses changes without
a sign. This module compares what a client reads with what it has read before, and accounts for each version:

    FOUND      the first reading of a znode about which nothing was known
    CREATED    the znode was created; `version` is the one that was read
    CHANGED    the data changed; `version` is the one that was read
    DELETED    the znode was deleted
    GAP        `missed` changes were not seen, or an unknown number (None). The event after it has the present state

The counters of the store: `version` counts the changes of the data since the creation (czxid), so skipped versions are
counted. `cversion` counts creations and deletions of children, so a child that was created and deleted between two
readings is a gap of two of its parent. The counters do not show how often a znode changed before its deletion, nor how
often it was deleted and created again. In these cases `missed` is None.

The caller reads again whenever a watch fires, and reads everything after each reconnect (`lost_watches`). The `token`
contains the whole state; a new book continues from a token. A book made from a zxid alone (`since`) has less
information: it reports the znodes that changed after that zxid, and gaps of unknown size.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec


class VersionKind(enum.StrEnum):
    """Kind of an event; see the module docstring."""

    FOUND = "FOUND"
    CREATED = "CREATED"
    CHANGED = "CHANGED"
    DELETED = "DELETED"
    GAP = "GAP"


class VersionEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of one znode.

    `zxid` is that of the change. The store does not say when a znode was deleted: a DELETED or a GAP has the zxid at
    which the client read, and happened at this zxid or before.
    """

    kind: VersionKind
    path: str
    zxid: int
    version: int = -1
    data: bytes = b""
    #: Of a GAP: number of changes that were not seen; None if the number is unknown.
    missed: int | None = 0


class StatLike(Protocol):
    """The fields of a znode's stat, as our client and kazoo have them."""

    @property
    def czxid(self) -> int:
        """Zxid of the creation."""

    @property
    def mzxid(self) -> int:
        """Zxid of the latest change of the data."""

    @property
    def version(self) -> int:
        """Number of changes of the data."""

    @property
    def cversion(self) -> int:
        """Number of creations and deletions of children."""

    @property
    def pzxid(self) -> int:
        """Zxid of the latest creation or deletion of a child."""


class _KnownZnode(msgspec.Struct, array_like=True):
    """A client's knowledge of one path."""

    #: Zxid of the creation; 0 for a missing znode; below 0 for a path that was in a list and has not been read yet.
    czxid: int
    version: int = -1
    #: For a znode whose children are followed: cversion and names of the latest list; cversion -1 before the first
    #: list.
    cversion: int = -1
    children: set[str] = set()
    #: Names that have left the list and whose deletion has not been read yet.
    leaving: set[str] = set()
    #: Changes of the list that are not yet explained by readings of a child. Below 0: the child's change was read
    #: before the list showed it.
    unexplained: int = 0
    #: True if the list changed after `since`, nobody knows how often.
    is_uncounted: bool = False
    #: True from the loss of the watches to the next reading.
    blind: bool = False


class _Saved(msgspec.Struct, array_like=True):
    """Content of a token."""

    zxid: int
    paths: dict[str, _KnownZnode]


class BadToken(ValueError):  # noqa: N818 - a token, not a fault of the program
    """Raised for bytes that are not a token of a VersionBook."""


class VersionBook:
    """The versions of znodes that one client has seen."""

    def __init__(self, token: bytes = b"", *, since: int = 0) -> None:
        """Continue from a token, or report the changes after zxid `since`. Raise BadToken."""
        self._since = since
        self._paths: dict[str, _KnownZnode] = {}
        #: Zxid up to which everything was seen or counted.
        self.zxid = since
        if token:
            try:
                saved = msgspec.json.decode(token, type=_Saved)
            except msgspec.DecodeError as error:
                raise BadToken(f"this is no token of a watch: {error}") from error
            self._paths, self.zxid = saved.paths, saved.zxid
            self.lost_watches()

    def token(self) -> bytes:
        """Return the state that a later book needs to continue. Store the token together with the effects of the
        events."""
        return msgspec.json.encode(_Saved(self.zxid, self._paths))

    def paths(self) -> list[str]:
        """Return the known paths, sorted: those that must be read after a reconnect."""
        return sorted(self._paths)

    def lost_watches(self) -> None:
        """Note that changes may have happened without an event, until each path has been read again."""
        for known in self._paths.values():
            known.blind = True

    # --- readings -----------------------------------------------------------------------------------------------------

    def read(
        self, path: str, stat: StatLike | None, data: bytes, zxid: int, first: VersionKind | None = None
    ) -> list[VersionEvent]:
        """Return the events that follow from a reading of `path` at `zxid`. `stat` is None if the znode does not exist.

        `first` is the kind of the first watch event since the reading before: if that was DELETED, no change preceded
        the deletion.
        """
        self.zxid = max(self.zxid, zxid)
        known = self._paths.get(path)
        if known is None and self._parent_of(path) is not None:
            known = self._paths[path] = _KnownZnode(0)  # a list without it was read
        if known is None or known.czxid < 0:
            return self._first_reading(path, stat, data, zxid)
        blind, known.blind = known.blind, False
        before, version = known.czxid, known.version
        if stat is None:
            if not before:
                self._forget(path, known)
                return []
            gone = [*self._orphans(path, known, zxid), VersionEvent(VersionKind.DELETED, path, zxid)]
            self._explain(path, 1)
            self._forget(path, known)
            is_exact = first is VersionKind.DELETED and not blind
            return gone if is_exact else [VersionEvent(VersionKind.GAP, path, zxid, missed=None), *gone]
        known.version, known.czxid = stat.version, stat.czxid
        if not before:
            self._explain(path, 1)
            known.cversion = 0  # it began without children
            return _after_gap(VersionEvent(VersionKind.CREATED, path, stat.mzxid, stat.version, data), stat.version)
        if stat.czxid != before:
            self._explain(path, 2)
            gone = [*self._orphans(path, known, stat.czxid), VersionEvent(VersionKind.DELETED, path, stat.czxid)]
            known.cversion, known.unexplained, known.is_uncounted = 0, 0, False
            return [*gone, *_after_gap(VersionEvent(VersionKind.CREATED, path, stat.mzxid, stat.version, data), None)]
        if stat.version == version:
            return []
        return _after_gap(
            VersionEvent(VersionKind.CHANGED, path, stat.mzxid, stat.version, data), stat.version - version - 1
        )

    def listed(self, path: str, stat: StatLike, names: Iterable[str]) -> list[str]:
        """Note a list of the children of `path`, which has been read before. Return the paths of new children, which
        the caller must read.

        A child that is gone is read when its own watch fires, or after a reconnect, like any other path.
        """
        known = self._paths[path]
        present = set(names)
        fresh = sorted(present - known.children)
        if known.cversion >= 0:
            known.unexplained += stat.cversion - known.cversion
        else:
            known.is_uncounted = 0 < self._since < stat.pzxid
            for name in fresh:
                self._paths.setdefault(_child(path, name), _KnownZnode(-1))
        known.leaving = {
            name for name in (known.children | known.leaving) - present if _child(path, name) in self._paths
        }
        known.cversion, known.children = stat.cversion, present
        return [_child(path, name) for name in fresh]

    def settled(self, path: str) -> list[VersionEvent]:
        """Return a GAP if the list of children changed more often than the readings of children explain.

        Call when the new children, and after a reconnect all children, have been read.
        """
        known = self._paths[path]
        if known.is_uncounted:
            known.is_uncounted = False
            return [VersionEvent(VersionKind.GAP, path, self.zxid, missed=None)]
        missed = known.unexplained - len(known.leaving)
        if missed <= 0:
            return []
        known.unexplained -= missed
        return [VersionEvent(VersionKind.GAP, path, self.zxid, missed=missed)]

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _first_reading(self, path: str, stat: StatLike | None, data: bytes, zxid: int) -> list[VersionEvent]:
        if stat is None:
            # The child was in a list and deleted before it was read: the counter of the list shows how many changes
            # were missed.
            known = self._paths[path] = _KnownZnode(0)
            self._forget(path, known)
            return [VersionEvent(VersionKind.GAP, path, zxid, missed=None)] if self._since else []
        self._paths[path] = _KnownZnode(stat.czxid, stat.version)
        if not self._since:
            return [VersionEvent(VersionKind.FOUND, path, stat.mzxid, stat.version, data)]
        if stat.czxid > self._since:
            created = VersionEvent(VersionKind.CREATED, path, stat.mzxid, stat.version, data)
            return _after_gap(created, stat.version or 0)
        if stat.mzxid <= self._since:
            return []
        # Of the versions before this one, an unknown number came after `since`; the first change leaves none.
        changed = VersionEvent(VersionKind.CHANGED, path, stat.mzxid, stat.version, data)
        return _after_gap(changed, 0 if stat.version == 1 else None)

    def _parent_of(self, path: str) -> _KnownZnode | None:
        """Return the entry of the parent, if its children are followed."""
        above = self._paths.get(path.rpartition("/")[0] or "/")
        return None if above is None or above.cversion < 0 else above

    def _forget(self, path: str, known: _KnownZnode) -> None:
        """Note that a znode does not exist. Children of followed lists are dropped, so a book does not only grow."""
        known.czxid, known.version = 0, -1
        known.cversion, known.unexplained, known.is_uncounted = -1, 0, False
        above = self._parent_of(path)
        if above is not None:
            name = path.rpartition("/")[2]
            above.children.discard(name)
            above.leaving.discard(name)
            del self._paths[path]

    def _explain(self, path: str, changes: int) -> None:
        """Count the changes of the list of children that are explained by the readings of a child."""
        above = self._parent_of(path)
        if above is not None:
            above.unexplained -= changes

    def _orphans(self, path: str, known: _KnownZnode, zxid: int) -> list[VersionEvent]:
        """Drop the children of a znode that was deleted: they were deleted before. Return their events."""
        gone: list[VersionEvent] = []
        for name in sorted(known.children | known.leaving):
            child = self._paths.pop(_child(path, name), None)
            if child is not None and child.czxid > 0:
                gone += [
                    VersionEvent(VersionKind.GAP, _child(path, name), zxid, missed=None),
                    VersionEvent(VersionKind.DELETED, _child(path, name), zxid),
                ]
        known.children, known.leaving = set(), set()
        return gone


class VersionFollower:
    """State of a watch of versions: the znode, the reaction, the book, and the token of the last handled version."""

    def __init__(
        self,
        path: str,
        handle: Callable[[VersionEvent], object],
        *,
        children: bool = False,
        token: bytes = b"",
        since: int = 0,
    ) -> None:
        """Continue from `token`, or without a token report the changes after zxid `since`. Raise BadToken."""
        self._path = path
        self._handle = handle
        self._with_children = children
        self._since = since
        self._book = VersionBook(token, since=since)
        self._token = self._book.token()
        #: Paths whose watch has fired, with the first event of each.
        self._fired: dict[str, VersionKind | None] = {}

    @property
    def token(self) -> bytes:
        """Return the state after the events that `handle` has processed. Store this token with the effects of the
        events, and pass it to the next watch."""
        return self._token

    @property
    def zxid(self) -> int:
        """Zxid up to which everything was reported."""
        return self._book.zxid


def _child(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _after_gap(event: VersionEvent, missed: int | None) -> list[VersionEvent]:
    """Return `event`, preceded by a gap unless nothing was missed."""
    if missed == 0:
        return [event]
    return [VersionEvent(VersionKind.GAP, event.path, event.zxid, missed=missed), event]
