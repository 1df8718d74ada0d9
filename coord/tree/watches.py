"""Watches: who wants to hear of a znode. Local to one server, not replicated.

A watcher is known by its session id. A watch is left on a path, whether or not there is a znode:

    data        one-shot; by getData, and by exists also where nothing is
    child       one-shot; by getChildren
    persistent  stays; hears of data and of children
    recursive   stays; hears of the path and everything below it, but not of changed lists of children, since it hears
                of the children themselves

One change gives a session at most one event per path, however many of its watches it meets.
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

_NOBODY: Final[list[int]] = []

Table = dict[bytes, dict[int, None]]


class Watcher:
    """The paths that one session watches, by kind: what has to be taken out of the tables when it leaves."""

    def __init__(self) -> None:
        self.data: dict[bytes, None] = {}
        self.child: dict[bytes, None] = {}
        self.persistent: dict[bytes, None] = {}
        self.recursive: dict[bytes, None] = {}

    def kinds(self) -> tuple[dict[bytes, None], dict[bytes, None], dict[bytes, None], dict[bytes, None]]:
        """Return the paths by kind, in the order of the tables."""
        return self.data, self.child, self.persistent, self.recursive

    def count(self) -> int:
        """How many watches that are."""
        return len(self.data) + len(self.child) + len(self.persistent) + len(self.recursive)


class WatchTable:
    """All watches of the sessions connected to one server."""

    def __init__(self, per_session_max: int = 0) -> None:
        """`per_session_max`: how many one session may have; 0: no bound."""
        self._per_session_max = per_session_max
        self._data: Table = {}
        self._child: Table = {}
        self._persistent: Table = {}
        self._recursive: Table = {}
        self._watchers: dict[int, Watcher] = {}

    # --- leaving watches ---------------------------------------------------------------------------------------------

    def watch_data(self, path: bytes, watcher_id: int) -> None:
        """Leave a one-shot watch for the znode: its data, its making, its end."""
        _enter(self._data, path, watcher_id)
        self._watcher(watcher_id).data[path] = None

    def watch_children(self, path: bytes, watcher_id: int) -> None:
        """Leave a one-shot watch for the list of children, and the znode's end."""
        _enter(self._child, path, watcher_id)
        self._watcher(watcher_id).child[path] = None

    def watch_persistent(self, path: bytes, watcher_id: int) -> None:
        """Leave a watch that stays."""
        _enter(self._persistent, path, watcher_id)
        self._watcher(watcher_id).persistent[path] = None

    def watch_recursive(self, path: bytes, watcher_id: int) -> None:
        """Leave a watch that stays for `path` and all below."""
        _enter(self._recursive, path, watcher_id)
        self._watcher(watcher_id).recursive[path] = None

    def _watcher(self, watcher_id: int) -> Watcher:
        watcher = self._watchers.get(watcher_id)
        if watcher is None:
            watcher = self._watchers[watcher_id] = Watcher()
        return watcher

    def has_room(self, watcher_id: int, more: int = 1) -> bool:
        """Whether a session may leave so many more."""
        most = self._per_session_max
        if not most:
            return True
        watcher = self._watchers.get(watcher_id)
        return (watcher.count() if watcher is not None else 0) + more <= most

    def is_empty(self) -> bool:
        """Whether nobody can be waiting for an event."""
        return not (self._data or self._child or self._persistent or self._recursive)

    # --- events ------------------------------------------------------------------------------------------------------

    def triggered(self, event_type: int, path: bytes) -> list[int]:
        """Who is to hear of this event, each once, in the order of their watches; one-shot watches are used up.

        The caller does not change the list.
        """
        if not self._watchers:
            return _NOBODY
        heard: dict[int, None] | None = None
        if event_type == EVENT_CHILDREN_CHANGED:
            heard = self._spend_child(path, None)
        else:
            heard = self._spend_data(path)
            if event_type == EVENT_DELETED:
                heard = self._spend_child(path, heard)
        staying = self._persistent.get(path)
        if staying is not None:
            heard = _merge(heard, staying)
        if self._recursive and event_type != EVENT_CHILDREN_CHANGED:
            heard = self._recursive_above(path, heard)
        return list(heard) if heard else _NOBODY

    def _spend_data(self, path: bytes) -> dict[int, None] | None:
        spent = self._data.pop(path, None)
        if spent is not None:
            for watcher_id in spent:
                del self._watchers[watcher_id].data[path]
        return spent

    def _spend_child(self, path: bytes, heard: dict[int, None] | None) -> dict[int, None] | None:
        spent = self._child.pop(path, None)
        if spent is None:
            return heard
        for watcher_id in spent:
            del self._watchers[watcher_id].child[path]
        return spent if heard is None else _merge(heard, spent)

    def _recursive_above(self, path: bytes, heard: dict[int, None] | None) -> dict[int, None] | None:
        at = path
        while True:
            staying = self._recursive.get(at)
            if staying is not None:
                heard = _merge(heard, staying)
            if at == ROOT or not at:
                return heard
            at = at[: at.rfind(b"/")] or ROOT

    # --- looking and removing ----------------------------------------------------------------------------------------

    def has(self, path: bytes, watcher_id: int, watcher_type: int) -> bool:
        """Whether the session has a watch of this type (WATCHER_...) on `path`."""
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
        """Remove the session's watches of this type from `path`; False if there was none."""
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
        """The session's connection is gone and all its watches with it."""
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
        """Raise AssertionError if tables by path and by watcher are not the same watches. For tests."""
        for kind, table in enumerate((self._data, self._child, self._persistent, self._recursive)):
            for path, watchers in table.items():
                assert watchers, f"{path!r} is watched by no session"
                for watcher_id in watchers:
                    own = self._watchers[watcher_id].kinds()[kind] if watcher_id in self._watchers else {}
                    assert path in own, f"session {watcher_id:#x} does not know its watch {kind} on {path!r}"
            count = sum([len(watcher.kinds()[kind]) for watcher in self._watchers.values()])
            by_path = sum([len(watchers) for watchers in table.values()])
            assert by_path == count, f"{by_path} watches of kind {kind} by path, {count} by session"

    # --- figures -----------------------------------------------------------------------------------------------------

    def watcher_count(self) -> int:
        """How many sessions have watches."""
        return sum([1 for watcher in self._watchers.values() if watcher.count()])

    def watch_count(self) -> int:
        """How many watches there are."""
        return sum([watcher.count() for watcher in self._watchers.values()])

    def path_count(self) -> int:
        """How many paths are watched."""
        return len(self.by_path())

    def by_path(self) -> dict[bytes, list[int]]:
        """Every watched path with its watchers, sorted, for the four-letter words."""
        found: dict[bytes, dict[int, None]] = {}
        for table in (self._data, self._child, self._persistent, self._recursive):
            for path, watchers in table.items():
                found.setdefault(path, {}).update(watchers)
        return {path: sorted(found[path]) for path in sorted(found)}

    def by_watcher(self) -> dict[int, list[bytes]]:
        """Every session that watches with its paths, sorted, for the four-letter words."""
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
    del watchers[watcher_id]
    if not watchers:
        del table[path]


def _remove(table: Table, paths: dict[bytes, None], path: bytes, watcher_id: int) -> None:
    if path in paths:
        del paths[path]
        _leave(table, path, watcher_id)


def _merge(heard: dict[int, None] | None, more: dict[int, None]) -> dict[int, None]:
    """Both together, each once. A `heard` that is not None is the caller's own to change."""
    if heard is None:
        return dict(more)
    heard.update(more)
    return heard
