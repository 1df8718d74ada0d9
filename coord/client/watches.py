"""Client side of watches: which callbacks an event fires. Pure.

Paths are the server's (chroot included, bytes). One-shot watches are removed by the event that fires them; persistent
ones stay until they are removed or the session ends. The table of which event fires which kind is ZooKeeper's
(ZKWatchManager.materialize).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from coord.wire.records import (
    EVENT_CHILDREN_CHANGED,
    EVENT_CREATED,
    EVENT_DATA_CHANGED,
    EVENT_DELETED,
    WatchSets,
)

#: (event type, the caller's path, zxid of the change or -1). The return value is ignored unless awaitable.
WatchCallback = Callable[[int, str, int], object]

KIND_DATA: Final = 0  #: one-shot, on a znode that exists
KIND_EXIST: Final = 1  #: one-shot, on a znode that does not exist yet
KIND_CHILD: Final = 2  #: one-shot, on the list of children
KIND_PERSISTENT: Final = 3  #: data, children and existence of one path
KIND_RECURSIVE: Final = 4  #: data and existence of a path and all below it

#: The one-shot kinds that an event fires and removes.
_FIRES: Final[dict[int, tuple[int, ...]]] = {
    EVENT_CREATED: (KIND_DATA, KIND_EXIST),
    EVENT_DATA_CHANGED: (KIND_DATA, KIND_EXIST),
    EVENT_CHILDREN_CHANGED: (KIND_CHILD,),
    EVENT_DELETED: (KIND_DATA, KIND_EXIST, KIND_CHILD),
}

#: Bytes of paths in one setWatches record: well below the frame limit of any server.
SET_WATCHES_BYTES_MAX: Final = 128 * 1024

#: Entries of the cache of recursive callbacks by directory.
DIRECTORIES_MAX: Final = 4_096


class WatchBook:
    """The watches of one session."""

    def __init__(self) -> None:
        #: kind -> path -> callbacks in the order of registration; a dict as an ordered set: the same callback
        #: registered twice fires once, as in the Java client.
        self._kinds: list[dict[bytes, dict[WatchCallback, None]]] = [{}, {}, {}, {}, {}]
        #: Cache: directory of an event's path -> recursive callbacks. Most events are in a few directories.
        self._above: dict[bytes, dict[WatchCallback, None]] = {}

    def add(self, kind: int, path: bytes, callback: WatchCallback) -> None:
        """Register `callback`. Call this after the server has confirmed the watch."""
        self._kinds[kind].setdefault(path, {})[callback] = None
        self._above.clear()

    def discard(self, kind: int, path: bytes, callback: WatchCallback | None) -> None:
        """Remove `callback`, or with None all callbacks of that kind and path."""
        self._above.clear()
        callbacks = self._kinds[kind].get(path, {})
        if callback is not None:
            callbacks.pop(callback, None)
        if callback is None or not callbacks:
            self._kinds[kind].pop(path, None)

    def others(self, kind: int, path: bytes, callback: WatchCallback | None) -> bool:
        """Return True if callbacks other than `callback` need the same watch."""
        callbacks = self._kinds[kind].get(path, {})
        return callback is not None and any(other != callback for other in callbacks)

    def fire(self, event_type: int, path: bytes) -> list[WatchCallback]:
        """Return the callbacks of an event, each once, and remove the one-shot watches that it fires."""
        found: dict[WatchCallback, None] = {}
        kinds = self._kinds
        for kind in _FIRES.get(event_type, ()):
            if kinds[kind]:
                found.update(kinds[kind].pop(path, {}))
        if path in kinds[KIND_PERSISTENT]:
            found.update(kinds[KIND_PERSISTENT][path])
        recursive = kinds[KIND_RECURSIVE]
        if recursive and event_type != EVENT_CHILDREN_CHANGED:
            if path in recursive:
                found.update(recursive[path])
            if len(path) > 1:
                found.update(self._recursive_callbacks(path[: path.rindex(b"/")] or b"/"))
        return list(found)

    def _recursive_callbacks(self, directory: bytes) -> dict[WatchCallback, None]:
        """Return the recursive callbacks of `directory` and of its ancestors."""
        known = self._above.get(directory)
        if known is None:
            recursive = self._kinds[KIND_RECURSIVE]
            known = {}
            for ancestor in _self_and_ancestors(directory):
                known.update(recursive.get(ancestor, {}))
            if len(self._above) >= DIRECTORIES_MAX:
                self._above.clear()
            self._above[directory] = known
        return known

    def persistent(self) -> list[tuple[bytes, WatchCallback]]:
        """Return every persistent watch as (path, callback): the receivers of EVENT_GAP."""
        return [
            (path, callback)
            for kind in (KIND_PERSISTENT, KIND_RECURSIVE)
            for path, callbacks in self._kinds[kind].items()
            for callback in callbacks
        ]

    def batches(self, relative_zxid: int) -> list[WatchSets]:
        """Return the setWatches2 records that restore all watches after a reconnect, each of bounded size."""
        batches: list[WatchSets] = []
        room = 0
        for kind, paths in enumerate(self._kinds):
            for path in paths:
                if room < len(path) + 4:
                    batches.append(WatchSets(relative_zxid, [], [], [], [], []))
                    room = SET_WATCHES_BYTES_MAX
                sets = batches[-1]
                room -= len(path) + 4
                (sets.data, sets.exist, sets.child, sets.persistent, sets.recursive)[kind].append(path)
        return batches

    def clear(self) -> None:
        """Remove all watches: the session has ended, and the server's watches with it."""
        for paths in self._kinds:
            paths.clear()
        self._above.clear()


def _self_and_ancestors(path: bytes) -> Iterator[bytes]:
    """Yield the path and its ancestors: `/a/b`, `/a`, `/`."""
    while len(path) > 1:
        yield path
        path = path[: path.rindex(b"/")]
    yield b"/"
