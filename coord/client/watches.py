"""Which callbacks wait for which events: the client's side of watches. Pure.

Paths are as the server knows them (chroot included, bytes). One-shot watches are gone with the event that fires them;
persistent ones stay until they are removed or the session ends. The rules which event fires which kind are ZooKeeper's
(ZK ZKWatchManager.materialize).
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

#: (event type, path as the caller knows it, zxid of the change or -1); what it returns is ignored unless awaitable.
WatchCallback = Callable[[int, str, int], object]

KIND_DATA: Final = 0  #: one-shot, on a znode that exists
KIND_EXIST: Final = 1  #: one-shot, on a znode that does not exist yet
KIND_CHILD: Final = 2  #: one-shot, on the list of children
KIND_PERSISTENT: Final = 3  #: data, children and existence of one path
KIND_RECURSIVE: Final = 4  #: data and existence of a path and all below it

#: Which one-shot kinds an event ends.
_FIRES: Final[dict[int, tuple[int, ...]]] = {
    EVENT_CREATED: (KIND_DATA, KIND_EXIST),
    EVENT_DATA_CHANGED: (KIND_DATA, KIND_EXIST),
    EVENT_CHILDREN_CHANGED: (KIND_CHILD,),
    EVENT_DELETED: (KIND_DATA, KIND_EXIST, KIND_CHILD),
}

#: Paths of one setWatches record, in bytes: well below the frame limit of any server.
SET_WATCHES_BYTES_MAX: Final = 128 * 1024

#: Directories whose watchers are remembered.
DIRECTORIES_MAX: Final = 4_096


class WatchBook:
    """The watches of one session."""

    def __init__(self) -> None:
        #: kind -> path -> callbacks in the order of registration; a dict as an ordered set: the same callback
        #: registered twice fires once, as in the Java client.
        self._kinds: list[dict[bytes, dict[WatchCallback, None]]] = [{}, {}, {}, {}, {}]
        #: Recursive callbacks by the directory of an event's path: most events are of a few directories.
        self._above: dict[bytes, dict[WatchCallback, None]] = {}

    def add(self, kind: int, path: bytes, callback: WatchCallback) -> None:
        """Register `callback`; call when the server has confirmed the watch."""
        self._kinds[kind].setdefault(path, {})[callback] = None
        self._above.clear()

    def discard(self, kind: int, path: bytes, callback: WatchCallback | None) -> None:
        """Forget `callback`, or all callbacks of that kind and path."""
        self._above.clear()
        callbacks = self._kinds[kind].get(path, {})
        if callback is not None:
            callbacks.pop(callback, None)
        if callback is None or not callbacks:
            self._kinds[kind].pop(path, None)

    def others(self, kind: int, path: bytes, callback: WatchCallback | None) -> bool:
        """Whether callbacks besides `callback` need that watch."""
        callbacks = self._kinds[kind].get(path, {})
        return callback is not None and any(other != callback for other in callbacks)

    def fire(self, event_type: int, path: bytes) -> list[WatchCallback]:
        """The callbacks an event is for, each once; its one-shot watches are gone afterwards."""
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
                found.update(self._watching_above(path[: path.rindex(b"/")] or b"/"))
        return list(found)

    def _watching_above(self, directory: bytes) -> dict[WatchCallback, None]:
        """The recursive callbacks of `directory` and of what is above it."""
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
        """Every persistent registration: those to tell of a gap."""
        return [
            (path, callback)
            for kind in (KIND_PERSISTENT, KIND_RECURSIVE)
            for path, callbacks in self._kinds[kind].items()
            for callback in callbacks
        ]

    def batches(self, relative_zxid: int) -> list[WatchSets]:
        """What to ask of a server we have just come back to: setWatches2 records of bounded size; empty for none."""
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
        """Forget everything: the session is gone, and with it the server's watches."""
        for paths in self._kinds:
            paths.clear()
        self._above.clear()


def _self_and_ancestors(path: bytes) -> Iterator[bytes]:
    """`/a/b`, `/a`, `/`."""
    while len(path) > 1:
        yield path
        path = path[: path.rindex(b"/")]
    yield b"/"
