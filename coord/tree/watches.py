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

from typing import Final, Generic, TypeAlias, TypeVar

from mypy_extensions import i64, mypyc_attr

from coord.tree.node import ROOT, last_slash
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
_NO_PATHS: Final[list[bytes]] = []
#: Watches of closed connections that are removed in one turn. A session may have a million: a second's work.
REMOVED_PER_TURN: Final = 500
#: Number of closed watches that each new watch removes. So the closed watches become fewer, however fast clients set
#: watches and disconnect.
_REMOVED_PER_WATCH: Final = 2

#: Parents for which the recursive watches at and above them are kept. A change looks its parent up instead of climbing.
PARENTS_MAX: Final = 4096

#: Paths in the single dict of a small PathMap. To move them into many dicts takes a millisecond.
WHOLE_MAX: Final = 8192
_SHARDS: Final = 256
#: The bits of the hash that choose the dict. Inside of it the lower bits choose the place.
_HASH_SHIFT: Final = 40

V = TypeVar("V")


class PathMap(Generic[V]):
    """Values by path, in one dict or in many.

    A dict is copied in one step when it grows. For a million paths this takes 130 ms, during which the node serves
    nobody.
    """

    def __init__(self) -> None:
        self._whole: dict[bytes, V] = {}
        #: Used instead of `_whole` once there were more than WHOLE_MAX paths.
        self._shards: list[dict[bytes, V]] | None = None
        #: Number of paths.
        self.count = 0
        #: The shard that `pop_any` looks at first.
        self._next = 0

    def _dict(self, path: bytes) -> dict[bytes, V]:
        shards = self._shards
        if shards is None:
            return self._whole
        number: i64 = hash(path)
        return shards[(number >> _HASH_SHIFT) & (_SHARDS - 1)]

    def _dicts(self) -> list[dict[bytes, V]]:
        return [self._whole] if self._shards is None else self._shards

    def __len__(self) -> int:
        return self.count

    def __contains__(self, path: bytes) -> bool:
        return path in self._dict(path)

    def get(self, path: bytes) -> V | None:
        """Return the value, None if there is none."""
        return self._dict(path).get(path)

    def put(self, path: bytes, value: V) -> None:
        """Set the value."""
        found = self._dict(path)
        before = len(found)
        found[path] = value
        self.count += len(found) - before
        if self._shards is None and self.count > WHOLE_MAX:
            self._split()

    def _split(self) -> None:
        self._shards = [{} for _ in range(_SHARDS)]
        whole, self._whole = self._whole, {}
        for path, value in whole.items():
            self._dict(path)[path] = value

    def pop(self, path: bytes) -> V | None:
        """Remove a path, if it is there, and return its value."""
        found = self._dict(path)
        before = len(found)
        value = found.pop(path, None)
        self.count += len(found) - before
        return value

    def remove(self, path: bytes) -> None:
        """Remove a path. Raise KeyError if it is not there."""
        del self._dict(path)[path]
        self.count -= 1

    def pop_any(self) -> bytes:
        """Remove a path and return it. There must be one."""
        assert self.count, "no path is left"
        dicts = self._dicts()
        while not dicts[self._next]:
            self._next = (self._next + 1) % len(dicts)
        self.count -= 1
        return dicts[self._next].popitem()[0]

    def items(self) -> list[tuple[bytes, V]]:
        """Return all paths and values."""
        return [item for one in self._dicts() for item in one.items()]

    def paths(self) -> list[bytes]:
        """Return all paths."""
        return [path for one in self._dicts() for path in one]


#: Path -> numbers of the watchers.
Table: TypeAlias = "PathMap[dict[int, None]]"


@mypyc_attr(acyclic=True)
class Notification:
    """Events of one command, one after the other, that the same sessions get: types and paths."""

    def __init__(self, sessions: list[int]) -> None:
        self.sessions = sessions
        self.types: list[int] = []
        self.paths: list[bytes] = []


class Watcher:
    """The paths that one connection of a session watches, by kind.

    After the connection has closed, its watches fire no more. They are removed from the tables a part at a time. The
    session's next connection has another number, so both can be in the tables at the same time.
    """

    def __init__(self, number: int, session_id: int) -> None:
        self.number = number
        self.session_id = session_id
        self.is_gone = False
        self.data: PathMap[None] = PathMap()
        self.child: PathMap[None] = PathMap()
        self.persistent: PathMap[None] = PathMap()
        self.recursive: PathMap[None] = PathMap()

    def kinds(self) -> tuple[PathMap[None], PathMap[None], PathMap[None], PathMap[None]]:
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
        self._data: Table = PathMap()
        self._child: Table = PathMap()
        self._persistent: Table = PathMap()
        self._recursive: Table = PathMap()
        #: Parent -> the paths of the recursive watches at and above it. A change of recursive watches clears the dict.
        self._above: dict[bytes, list[bytes]] = {}
        #: Path of persistent or recursive watches -> their sessions, once an event has asked for them: a thousand
        #: sessions may watch one path. Cleared when such a watch is set or removed, or a session ends.
        self._at_persistent: dict[bytes, list[int]] = {}
        self._at_recursive: dict[bytes, list[int]] = {}
        #: Session id -> its watcher.
        self._watchers: dict[int, Watcher] = {}
        #: Number -> watcher, those of closed connections included.
        self._numbered: dict[int, Watcher] = {}
        #: Watchers of closed connections that still have watches in the tables.
        self.leaving: list[Watcher] = []
        self._count = 0

    # --- setting watches ---------------------------------------------------------------------------------------------

    def watch_data(self, path: bytes, session_id: int) -> None:
        """Set a one-shot watch for the znode's data, creation and deletion."""
        watcher = self._watcher(session_id)
        _enter(self._data, path, watcher.number)
        watcher.data.put(path, None)

    def watch_children(self, path: bytes, session_id: int) -> None:
        """Set a one-shot watch for the list of children, and for the znode's deletion."""
        watcher = self._watcher(session_id)
        _enter(self._child, path, watcher.number)
        watcher.child.put(path, None)

    def watch_persistent(self, path: bytes, session_id: int) -> None:
        """Set a persistent watch."""
        watcher = self._watcher(session_id)
        _enter(self._persistent, path, watcher.number)
        self._forget_sessions()
        watcher.persistent.put(path, None)

    def watch_recursive(self, path: bytes, session_id: int) -> None:
        """Set a persistent watch for `path` and everything below it."""
        watcher = self._watcher(session_id)
        _enter(self._recursive, path, watcher.number)
        self._above.clear()
        self._forget_sessions()
        watcher.recursive.put(path, None)

    def _forget_sessions(self) -> None:
        self._at_persistent.clear()
        self._at_recursive.clear()

    def _watcher(self, session_id: int) -> Watcher:
        if self.leaving:
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
        return not (self._data.count or self._child.count or self._persistent.count or self._recursive.count)

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
        staying = self._persistent.get(path) if self._persistent.count else None
        is_recursive = self._recursive.count > 0 and event_type != EVENT_CHILDREN_CHANGED
        if notified is None:
            # The usual cases: watches that stay, of one kind and at one path. Their sessions are known.
            if not is_recursive:
                return self._sessions_at(self._at_persistent, path, staying)
            above = self._above_of(path)
            if staying is None and len(above) <= 1 and self._recursive.get(path) is None:
                at = above[0] if above else path
                return self._sessions_at(self._at_recursive, at, self._recursive.get(at))
        if staying is not None:
            notified = _merge(notified, staying)
        if is_recursive:
            notified = self._with_recursive(path, notified)
        return self._sessions_of(notified) if notified else _NO_SESSIONS

    def _sessions_of(self, numbers: dict[int, None]) -> list[int]:
        watchers = [self._numbered[number] for number in numbers]
        return [watcher.session_id for watcher in watchers if not watcher.is_gone]

    def _sessions_at(self, known: dict[bytes, list[int]], path: bytes, staying: dict[int, None] | None) -> list[int]:
        """Return the sessions of the watches `staying` at `path`; `known` has those that were asked for before."""
        if staying is None:
            return _NO_SESSIONS
        sessions = known.get(path)
        if sessions is None:
            sessions = known[path] = self._sessions_of(staying)
        return sessions

    def _fire_data(self, path: bytes) -> dict[int, None] | None:
        if not self._data.count:
            return None
        fired = self._data.pop(path)
        if fired is not None:
            for number in fired:
                self._numbered[number].data.remove(path)
        return fired

    def _fire_child(self, path: bytes, notified: dict[int, None] | None) -> dict[int, None] | None:
        if not self._child.count:
            return notified
        fired = self._child.pop(path)
        if fired is None:
            return notified
        for number in fired:
            self._numbered[number].child.remove(path)
        return fired if notified is None else _merge(notified, fired)

    def _with_recursive(self, path: bytes, notified: dict[int, None] | None) -> dict[int, None] | None:
        """Return `notified` with the recursive watches at `path` and above. The caller must not change the result."""
        staying = self._recursive.get(path)
        if staying is not None:
            notified = _merge(notified, staying)
        for at in self._above_of(path):
            staying = self._recursive.get(at)
            if staying is not None:
                notified = _merge(notified, staying)
        return notified

    def _above_of(self, path: bytes) -> list[bytes]:
        """Return the paths of the recursive watches above `path`. The caller must not change the list."""
        if path == ROOT or not path:
            return _NO_PATHS
        parent = path[: last_slash(path)] or ROOT
        above = self._above.get(parent)
        if above is None:
            if len(self._above) >= PARENTS_MAX:
                self._above.clear()
            above = self._above[parent] = self._at_and_above(parent)
        return above

    def _at_and_above(self, path: bytes) -> list[bytes]:
        found: list[bytes] = []
        at = path
        while True:
            if at in self._recursive:
                found.append(at)
            if at == ROOT or not at:
                return found
            at = at[: last_slash(at)] or ROOT

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
        self._forget_sessions()
        if watcher_type in (WATCHER_CHILDREN, WATCHER_ANY):
            _remove(self._child, watcher.child, path, number)
        if watcher_type in (WATCHER_DATA, WATCHER_ANY):
            _remove(self._data, watcher.data, path, number)
        if watcher_type in (WATCHER_PERSISTENT, WATCHER_ANY):
            _remove(self._persistent, watcher.persistent, path, number)
        if watcher_type in (WATCHER_PERSISTENT_RECURSIVE, WATCHER_ANY):
            _remove(self._recursive, watcher.recursive, path, number)
            self._above.clear()
        return True

    def drop(self, session_id: int) -> None:
        """End all watches of a session whose connection has closed. `sweep` removes them from the tables."""
        watcher = self._watchers.pop(session_id, None)
        if watcher is not None:
            watcher.is_gone = True
            self.leaving.append(watcher)
            self._forget_sessions()

    def sweep(self, most: int) -> bool:
        """Remove at most this many watches of closed connections. Return True if some are left."""
        while self.leaving and most > 0:
            watcher = self.leaving[-1]
            most -= 1
            if not self._remove_one(watcher):
                del self.leaving[-1]
                del self._numbered[watcher.number]
        return len(self.leaving) > 0

    def _remove_one(self, watcher: Watcher) -> bool:
        """Remove one watch of a closed connection. Return False if it has none."""
        if len(watcher.data):
            _leave(self._data, watcher.data.pop_any(), watcher.number)
        elif len(watcher.child):
            _leave(self._child, watcher.child.pop_any(), watcher.number)
        elif len(watcher.persistent):
            _leave(self._persistent, watcher.persistent.pop_any(), watcher.number)
            self._forget_sessions()
        elif len(watcher.recursive):
            _leave(self._recursive, watcher.recursive.pop_any(), watcher.number)
            self._above.clear()
            self._forget_sessions()
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
        known = len(self._watchers) + len(self.leaving)
        assert len(self._numbered) == known, f"{len(self._numbered)} numbers for {known} watchers"
        for kind, table in enumerate((self._data, self._child, self._persistent, self._recursive)):
            for path, watchers in table.items():
                assert watchers, f"{path!r} is watched by no session"
                for number in watchers:
                    is_own = number in self._numbered and path in self._numbered[number].kinds()[kind]
                    assert is_own, f"watcher {number} lacks its watch of kind {kind} on {path!r}"
            count = sum([len(watcher.kinds()[kind]) for watcher in self._numbered.values()])
            by_path = sum([len(watchers) for _, watchers in table.items()])
            assert by_path == count, f"{by_path} watches of kind {kind} by path, {count} by session"
        for parent, kept in self._above.items():
            assert kept == self._at_and_above(parent), f"other watches are kept for {parent!r} than are set above it"
        for table, kept_at in ((self._persistent, self._at_persistent), (self._recursive, self._at_recursive)):
            for path, sessions in kept_at.items():
                assert sessions == self._sessions_of(table.get(path) or {}), f"{sessions} are kept for {path!r}"

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
                paths.update(of_kind.paths())
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
                found[session_id] = sorted({path for of_kind in watcher.kinds() for path in of_kind.paths()})
        return found


def _enter(table: Table, path: bytes, number: int) -> None:
    watchers = table.get(path)
    if watchers is None:
        table.put(path, {number: None})
    else:
        watchers[number] = None


def _leave(table: Table, path: bytes, number: int) -> None:
    watchers = table.get(path)
    assert watchers is not None, f"nobody watches {path!r}"
    assert number in watchers, f"watcher {number} does not watch {path!r}"
    del watchers[number]
    if not watchers:
        table.remove(path)


def _remove(table: Table, paths: PathMap[None], path: bytes, number: int) -> None:
    if path in paths:
        paths.remove(path)
        _leave(table, path, number)


def _merge(notified: dict[int, None] | None, more: dict[int, None]) -> dict[int, None]:
    """Return the watchers of both, each once. `notified` belongs to the caller and is changed, unless it is None."""
    if notified is None:
        return dict(more)
    notified.update(more)
    return notified
