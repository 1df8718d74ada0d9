"""Watches: which sessions get an event when a znode changes. Local to one server, not replicated.

A watch belongs to a connection of a session, and is set on a path, whether or not the znode exists:

    data        one-shot; set by getData and by exists, by exists also for a missing znode
    child       one-shot; set by getChildren
    persistent  stays; fires for data and for the list of children
    recursive   stays; fires for the path and everything below it, but not for changed lists of children, because it
                fires for the children themselves

A session gets at most one event per path for one change, even if several of its watches match.
"""

from __future__ import annotations

from typing import Final

from coord.tree.node import ROOT
from coord.wire.opcodes import (
    EVENT_CHILDREN_CHANGED,
    EVENT_DELETED,
    WATCHER_ANY,
    WATCHER_CHILDREN,
    WATCHER_DATA,
    WATCHER_PERSISTENT,
    WATCHER_PERSISTENT_RECURSIVE,
)

_NO_SESSIONS: Final[list[int]] = []
#: Watches of closed connections that are removed in one turn. A session may have a million: a second's work.
REMOVED_PER_TURN: Final = 500
#: Each new watch removes this many, so those that wait become fewer, however fast clients set watches and disconnect.
_REMOVED_PER_WATCH: Final = 2

#: Path -> numbers of the watchers.
Table = dict[bytes, dict[int, None]]


class Watcher:
    """The paths that one connection of a session watches, by kind.

    After the connection has closed, its watches fire no more. They are removed from the tables a part at a time. The
    session's next connection has another number, so both can be in the tables at the same time.
    """

    def __init__(self, number: int, session_id: int) -> None:
        self.number = number
        self.session_id = session_id
        self.is_gone = False
        self.data: dict[bytes, None] = {}
        self.child: dict[bytes, None] = {}
        self.persistent: dict[bytes, None] = {}
        self.recursive: dict[bytes, None] = {}

    def kinds(self) -> tuple[dict[bytes, None], dict[bytes, None], dict[bytes, None], dict[bytes, None]]:
        """Return the paths by kind, in the order of the tables."""
        return self.data, self.child, self.persistent, self.recursive

    def count(self) -> int:
        """Return the number of watches."""
        return len(self.data) + len(self.child) + len(self.persistent) + len(self.recursive)


class WatchTable:
    """All watches of the sessions connected to one server.

    Invariant: the tables by path and the Watchers by number have the same watches; no path has an empty entry.
    """

    def __init__(self, per_session_max: int = 0) -> None:
        """`per_session_max` is the limit of watches per session, 0 for none."""
        assert per_session_max >= 0, f"at most {per_session_max} watches per session"
        self._per_session_max = per_session_max
        self._data: Table = {}
        self._child: Table = {}
        self._persistent: Table = {}
        self._recursive: Table = {}
        #: Session id -> its watcher.
        self._watchers: dict[int, Watcher] = {}
        #: Number -> watcher, those of closed connections included.
        self._numbered: dict[int, Watcher] = {}
        #: Watchers of closed connections that still have watches in the tables.
        self._leaving: list[Watcher] = []
        self._count = 0

    # --- setting watches ---------------------------------------------------------------------------------------------

    def watch_data(self, path: bytes, session_id: int) -> None:
        """Set a one-shot watch for the znode's data, creation and deletion."""
        watcher = self._watcher(session_id)
        _enter(self._data, path, watcher.number)
        watcher.data[path] = None

    def watch_children(self, path: bytes, session_id: int) -> None:
        """Set a one-shot watch for the list of children, and for the znode's deletion."""
        watcher = self._watcher(session_id)
        _enter(self._child, path, watcher.number)
        watcher.child[path] = None

    def watch_persistent(self, path: bytes, session_id: int) -> None:
        """Set a persistent watch."""
        watcher = self._watcher(session_id)
        _enter(self._persistent, path, watcher.number)
        watcher.persistent[path] = None

    def watch_recursive(self, path: bytes, session_id: int) -> None:
        """Set a persistent watch for `path` and everything below it."""
        watcher = self._watcher(session_id)
        _enter(self._recursive, path, watcher.number)
        watcher.recursive[path] = None

    def _watcher(self, session_id: int) -> Watcher:
        if self._leaving:
            self.sweep(_REMOVED_PER_WATCH)
        watcher = self._watchers.get(session_id)
        if watcher is None:
            self._count += 1
            watcher = self._watchers[session_id] = self._numbered[self._count] = Watcher(self._count, session_id)
        return watcher

    def has_room(self, session_id: int, more: int = 1) -> bool:
        """Return True if a session may set this many more watches."""
        assert more >= 0, more
        most = self._per_session_max
        if not most:
            return True
        watcher = self._watchers.get(session_id)
        return (watcher.count() if watcher is not None else 0) + more <= most

    def is_empty(self) -> bool:
        """Return True if no session has a watch."""
        return not (self._data or self._child or self._persistent or self._recursive)

    # --- events ------------------------------------------------------------------------------------------------------

    def triggered(self, event_type: int, path: bytes) -> list[int]:
        """Return the sessions that get this event, each once, in the order of their watches. Remove one-shot watches.

        The caller must not change the list.
        """
        if not self._watchers:
            return _NO_SESSIONS
        notified: dict[int, None] | None = None
        if event_type == EVENT_CHILDREN_CHANGED:
            notified = self._fire_child(path, None)
        else:
            notified = self._fire_data(path)
            if event_type == EVENT_DELETED:
                notified = self._fire_child(path, notified)
        staying = self._persistent.get(path)
        if staying is not None:
            notified = _merge(notified, staying)
        if self._recursive and event_type != EVENT_CHILDREN_CHANGED:
            notified = self._recursive_above(path, notified)
        if not notified:
            return _NO_SESSIONS
        watchers = [self._numbered[number] for number in notified]
        return [watcher.session_id for watcher in watchers if not watcher.is_gone]

    def _fire_data(self, path: bytes) -> dict[int, None] | None:
        fired = self._data.pop(path, None)
        if fired is not None:
            for number in fired:
                del self._numbered[number].data[path]
        return fired

    def _fire_child(self, path: bytes, notified: dict[int, None] | None) -> dict[int, None] | None:
        fired = self._child.pop(path, None)
        if fired is None:
            return notified
        for number in fired:
            del self._numbered[number].child[path]
        return fired if notified is None else _merge(notified, fired)

    def _recursive_above(self, path: bytes, notified: dict[int, None] | None) -> dict[int, None] | None:
        at = path
        while True:
            staying = self._recursive.get(at)
            if staying is not None:
                notified = _merge(notified, staying)
            if at == ROOT or not at:
                return notified
            at = at[: at.rfind(b"/")] or ROOT

    # --- checking and removing ---------------------------------------------------------------------------------------

    def has(self, path: bytes, session_id: int, watcher_type: int) -> bool:
        """Return True if the session has a watch of this type (WATCHER_...) on `path`."""
        watcher = self._watchers.get(session_id)
        if watcher is None:
            return False
        if watcher_type == WATCHER_CHILDREN:
            return path in watcher.child
        if watcher_type == WATCHER_DATA:
            return path in watcher.data
        if watcher_type == WATCHER_PERSISTENT:
            return path in watcher.persistent
        if watcher_type == WATCHER_PERSISTENT_RECURSIVE:
            return path in watcher.recursive
        return path in watcher.child or path in watcher.data or path in watcher.persistent or path in watcher.recursive

    def remove(self, path: bytes, session_id: int, watcher_type: int) -> bool:
        """Remove the session's watches of this type from `path`. Return False if there was none."""
        if not self.has(path, session_id, watcher_type):
            return False
        watcher = self._watchers[session_id]
        number = watcher.number
        if watcher_type in (WATCHER_CHILDREN, WATCHER_ANY):
            _remove(self._child, watcher.child, path, number)
        if watcher_type in (WATCHER_DATA, WATCHER_ANY):
            _remove(self._data, watcher.data, path, number)
        if watcher_type in (WATCHER_PERSISTENT, WATCHER_ANY):
            _remove(self._persistent, watcher.persistent, path, number)
        if watcher_type in (WATCHER_PERSISTENT_RECURSIVE, WATCHER_ANY):
            _remove(self._recursive, watcher.recursive, path, number)
        return True

    def drop(self, session_id: int) -> None:
        """End all watches of a session whose connection has closed. `sweep` removes them from the tables."""
        watcher = self._watchers.pop(session_id, None)
        if watcher is not None:
            watcher.is_gone = True
            self._leaving.append(watcher)

    def sweep(self, most: int) -> bool:
        """Remove at most this many watches of closed connections. Return True if some are left."""
        while self._leaving and most > 0:
            watcher = self._leaving[-1]
            most -= 1
            if not self._remove_one(watcher):
                del self._leaving[-1]
                del self._numbered[watcher.number]
        return len(self._leaving) > 0

    def _remove_one(self, watcher: Watcher) -> bool:
        """Remove one watch of a closed connection. Return False if it has none."""
        if watcher.data:
            _leave(self._data, watcher.data.popitem()[0], watcher.number)
        elif watcher.child:
            _leave(self._child, watcher.child.popitem()[0], watcher.number)
        elif watcher.persistent:
            _leave(self._persistent, watcher.persistent.popitem()[0], watcher.number)
        elif watcher.recursive:
            _leave(self._recursive, watcher.recursive.popitem()[0], watcher.number)
        else:
            return False
        return True

    # --- invariants --------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise AssertionError if the tables by path and by watcher differ. For tests."""
        for session_id, watcher in self._watchers.items():
            is_known = self._numbered.get(watcher.number) is watcher
            assert is_known, f"session {session_id:#x} has a watcher without a number"
            assert not watcher.is_gone, f"session {session_id:#x} watches by a closed connection"
        known = len(self._watchers) + len(self._leaving)
        assert len(self._numbered) == known, f"{len(self._numbered)} numbers for {known} watchers"
        for kind, table in enumerate((self._data, self._child, self._persistent, self._recursive)):
            for path, watchers in table.items():
                assert watchers, f"{path!r} is watched by no session"
                for number in watchers:
                    own = self._numbered[number].kinds()[kind] if number in self._numbered else {}
                    assert path in own, f"watcher {number} lacks its watch of kind {kind} on {path!r}"
            count = sum([len(watcher.kinds()[kind]) for watcher in self._numbered.values()])
            by_path = sum([len(watchers) for watchers in table.values()])
            assert by_path == count, f"{by_path} watches of kind {kind} by path, {count} by session"

    # --- counters ----------------------------------------------------------------------------------------------------

    def watcher_count(self) -> int:
        """Return the number of sessions with watches."""
        return sum([1 for watcher in self._watchers.values() if watcher.count()])

    def watch_count(self) -> int:
        """Return the number of watches."""
        return sum([watcher.count() for watcher in self._watchers.values()])

    def path_count(self) -> int:
        """Return the number of watched paths."""
        paths: set[bytes] = set()
        for watcher in self._watchers.values():
            for of_kind in watcher.kinds():
                paths.update(of_kind)
        return len(paths)

    def by_path(self) -> dict[bytes, list[int]]:
        """Return watched path -> session ids of its watchers, both sorted. For the four-letter words."""
        found: dict[bytes, dict[int, None]] = {}
        for table in (self._data, self._child, self._persistent, self._recursive):
            for path, watchers in table.items():
                for number in watchers:
                    watcher = self._numbered[number]
                    if not watcher.is_gone:
                        found.setdefault(path, {})[watcher.session_id] = None
        return {path: sorted(found[path]) for path in sorted(found)}

    def by_watcher(self) -> dict[int, list[bytes]]:
        """Return session id -> the paths that it watches, both sorted. For the four-letter words."""
        found: dict[int, list[bytes]] = {}
        for session_id in sorted(self._watchers):
            watcher = self._watchers[session_id]
            if watcher.count():
                paths = {**watcher.data, **watcher.child, **watcher.persistent, **watcher.recursive}
                found[session_id] = sorted(paths)
        return found


def _enter(table: Table, path: bytes, number: int) -> None:
    watchers = table.get(path)
    if watchers is None:
        table[path] = {number: None}
    else:
        watchers[number] = None


def _leave(table: Table, path: bytes, number: int) -> None:
    watchers = table[path]
    assert number in watchers, f"watcher {number} does not watch {path!r}"
    del watchers[number]
    if not watchers:
        del table[path]


def _remove(table: Table, paths: dict[bytes, None], path: bytes, number: int) -> None:
    if path in paths:
        del paths[path]
        _leave(table, path, number)


def _merge(notified: dict[int, None] | None, more: dict[int, None]) -> dict[int, None]:
    """Return the watchers of both, each once. `notified` belongs to the caller and is changed, unless it is None."""
    if notified is None:
        return dict(more)
    notified.update(more)
    return notified
