"""Watches: which sessions get an event when a znode changes. Local to one server, not replicated.

A watcher is identified by its session id. A watch is set on a path, whether or not the znode exists:

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

Table = dict[bytes, dict[int, None]]


class Watcher:
    """The paths that one session watches, by kind. They are removed from the tables when its connection closes."""

    def __init__(self) -> None:
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

    Invariant: the tables by path and the Watchers by session have the same watches; no path has an empty entry.
    """

    def __init__(self, per_session_max: int = 0) -> None:
        """`per_session_max` is the limit of watches per session, 0 for none."""
        assert per_session_max >= 0, f"at most {per_session_max} watches per session"
        self._per_session_max = per_session_max
        self._data: Table = {}
        self._child: Table = {}
        self._persistent: Table = {}
        self._recursive: Table = {}
        self._watchers: dict[int, Watcher] = {}

    # --- setting watches ---------------------------------------------------------------------------------------------

    def watch_data(self, path: bytes, watcher_id: int) -> None:
        """Set a one-shot watch for the znode's data, creation and deletion."""
        _enter(self._data, path, watcher_id)
        self._watcher(watcher_id).data[path] = None

    def watch_children(self, path: bytes, watcher_id: int) -> None:
        """Set a one-shot watch for the list of children, and for the znode's deletion."""
        _enter(self._child, path, watcher_id)
        self._watcher(watcher_id).child[path] = None

    def watch_persistent(self, path: bytes, watcher_id: int) -> None:
        """Set a persistent watch."""
        _enter(self._persistent, path, watcher_id)
        self._watcher(watcher_id).persistent[path] = None

    def watch_recursive(self, path: bytes, watcher_id: int) -> None:
        """Set a persistent watch for `path` and everything below it."""
        _enter(self._recursive, path, watcher_id)
        self._watcher(watcher_id).recursive[path] = None

    def _watcher(self, watcher_id: int) -> Watcher:
        watcher = self._watchers.get(watcher_id)
        if watcher is None:
            watcher = self._watchers[watcher_id] = Watcher()
        return watcher

    def has_room(self, watcher_id: int, more: int = 1) -> bool:
        """Return True if a session may set this many more watches."""
        assert more >= 0, more
        most = self._per_session_max
        if not most:
            return True
        watcher = self._watchers.get(watcher_id)
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
        return list(notified) if notified else _NO_SESSIONS

    def _fire_data(self, path: bytes) -> dict[int, None] | None:
        fired = self._data.pop(path, None)
        if fired is not None:
            for watcher_id in fired:
                del self._watchers[watcher_id].data[path]
        return fired

    def _fire_child(self, path: bytes, notified: dict[int, None] | None) -> dict[int, None] | None:
        fired = self._child.pop(path, None)
        if fired is None:
            return notified
        for watcher_id in fired:
            del self._watchers[watcher_id].child[path]
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

    def has(self, path: bytes, watcher_id: int, watcher_type: int) -> bool:
        """Return True if the session has a watch of this type (WATCHER_...) on `path`."""
        watcher = self._watchers.get(watcher_id)
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

    def remove(self, path: bytes, watcher_id: int, watcher_type: int) -> bool:
        """Remove the session's watches of this type from `path`. Return False if there was none."""
        if not self.has(path, watcher_id, watcher_type):
            return False
        watcher = self._watchers[watcher_id]
        if watcher_type in (WATCHER_CHILDREN, WATCHER_ANY):
            _remove(self._child, watcher.child, path, watcher_id)
        if watcher_type in (WATCHER_DATA, WATCHER_ANY):
            _remove(self._data, watcher.data, path, watcher_id)
        if watcher_type in (WATCHER_PERSISTENT, WATCHER_ANY):
            _remove(self._persistent, watcher.persistent, path, watcher_id)
        if watcher_type in (WATCHER_PERSISTENT_RECURSIVE, WATCHER_ANY):
            _remove(self._recursive, watcher.recursive, path, watcher_id)
        return True

    def drop(self, watcher_id: int) -> None:
        """Remove all watches of a session whose connection has closed."""
        watcher = self._watchers.pop(watcher_id, None)
        if watcher is None:
            return
        for path in watcher.data:
            _leave(self._data, path, watcher_id)
        for path in watcher.child:
            _leave(self._child, path, watcher_id)
        for path in watcher.persistent:
            _leave(self._persistent, path, watcher_id)
        for path in watcher.recursive:
            _leave(self._recursive, path, watcher_id)

    # --- invariants --------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise AssertionError if the tables by path and by watcher differ. For tests."""
        for kind, table in enumerate((self._data, self._child, self._persistent, self._recursive)):
            for path, watchers in table.items():
                assert watchers, f"{path!r} is watched by no session"
                for watcher_id in watchers:
                    own = self._watchers[watcher_id].kinds()[kind] if watcher_id in self._watchers else {}
                    assert path in own, f"session {watcher_id:#x} lacks its watch of kind {kind} on {path!r}"
            count = sum([len(watcher.kinds()[kind]) for watcher in self._watchers.values()])
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
        return len(self.by_path())

    def by_path(self) -> dict[bytes, list[int]]:
        """Return watched path -> session ids of its watchers, both sorted. For the four-letter words."""
        found: dict[bytes, dict[int, None]] = {}
        for table in (self._data, self._child, self._persistent, self._recursive):
            for path, watchers in table.items():
                found.setdefault(path, {}).update(watchers)
        return {path: sorted(found[path]) for path in sorted(found)}

    def by_watcher(self) -> dict[int, list[bytes]]:
        """Return session id -> the paths that it watches, both sorted. For the four-letter words."""
        found: dict[int, list[bytes]] = {}
        for watcher_id in sorted(self._watchers):
            watcher = self._watchers[watcher_id]
            if watcher.count():
                paths = {**watcher.data, **watcher.child, **watcher.persistent, **watcher.recursive}
                found[watcher_id] = sorted(paths)
        return found


def _enter(table: Table, path: bytes, watcher_id: int) -> None:
    watchers = table.get(path)
    if watchers is None:
        table[path] = {watcher_id: None}
    else:
        watchers[watcher_id] = None


def _leave(table: Table, path: bytes, watcher_id: int) -> None:
    watchers = table[path]
    assert watcher_id in watchers, f"session {watcher_id:#x} does not watch {path!r}"
    del watchers[watcher_id]
    if not watchers:
        del table[path]


def _remove(table: Table, paths: dict[bytes, None], path: bytes, watcher_id: int) -> None:
    if path in paths:
        del paths[path]
        _leave(table, path, watcher_id)


def _merge(notified: dict[int, None] | None, more: dict[int, None]) -> dict[int, None]:
    """Return the sessions of both, each once. `notified` belongs to the caller and is changed, unless it is None."""
    if notified is None:
        return dict(more)
    notified.update(more)
    return notified
