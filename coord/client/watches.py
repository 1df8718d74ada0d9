"""Client side of watches: which callbacks an event fires. Pure.

Paths are the server's (chroot included, bytes). One-shot watches are removed by the event that fires them; persistent
ones stay until they are removed or the session ends. The table of which event fires which kind is ZooKeeper's
(ZKWatchManager.materialize).

A *receiver* is a callback of a recursive watch that takes many events in one call. Consecutive events that only
receivers get, and all of the same receivers, are delivered together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from coord.wire.codec import read_event
from coord.wire.records import (
    EVENT_CHILDREN_CHANGED,
    EVENT_CREATED,
    EVENT_DATA_CHANGED,
    EVENT_DELETED,
    WatchSets,
)

#: (event type, the caller's path, zxid of the change or -1)
Event = tuple[int, str, int]
#: Takes the fields of an event. The return value is ignored unless awaitable.
WatchCallback = Callable[[int, str, int], object]
#: Takes events in their order, at least one.
WatchReceiver = Callable[[list[Event]], object]
#: A WatchCallback or a WatchReceiver.
_Callback = Callable[..., object]

KIND_DATA: Final = 0  #: one-shot, on a znode that exists
KIND_EXIST: Final = 1  #: one-shot, on a znode that does not exist yet
KIND_CHILD: Final = 2  #: one-shot, on the list of children
KIND_PERSISTENT: Final = 3  #: data, children and existence of one path
KIND_RECURSIVE: Final = 4  #: data and existence of a path and all below it
KIND_RECEIVER: Final = 5  #: like KIND_RECURSIVE, the callback is a receiver; in `add` only

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


class FiredEvents:
    """Events in their order, the callbacks that get each of them, and the index of the frame after the last event."""

    def __init__(self, callbacks: list[_Callback], events: list[Event], end: int) -> None:
        self.callbacks = callbacks
        self.events = events
        self.end = end


class WatchBook:
    """The watches of one session."""

    def __init__(self) -> None:
        #: kind -> path -> callbacks in the order of registration; a dict as an ordered set: the same callback
        #: registered twice fires once, as in the Java client.
        self._kinds: list[dict[bytes, dict[_Callback, None]]] = [{}, {}, {}, {}, {}]
        #: Callbacks that are receivers.
        self._receivers: set[_Callback] = set()
        #: Cache: directory of an event's path -> recursive callbacks. Most events are in a few directories.
        self._above: dict[bytes, dict[_Callback, None]] = {}
        #: Cache: directory -> its recursive callbacks if all of them are receivers; equal lists are one object.
        self._received: dict[bytes, list[_Callback] | None] = {}
        #: Directory -> number of watches on single znodes in it, those of each kind and path counted once.
        self._in_directory: dict[bytes, int] = {}

    def add(self, kind: int, path: bytes, callback: _Callback) -> None:
        """Register `callback`. Call this after the server has confirmed the watch."""
        if kind == KIND_RECEIVER:
            self._receivers.add(callback)
            kind = KIND_RECURSIVE
        paths = self._kinds[kind]
        if path not in paths:
            paths[path] = {}
            directory = _directory(path)
            self._in_directory[directory] = self._in_directory.get(directory, 0) + 1
        paths[path][callback] = None
        if kind == KIND_RECURSIVE:
            self._forget_above()

    def _forget_above(self) -> None:
        self._above.clear()
        self._received.clear()

    def _remove(self, kind: int, path: bytes) -> dict[_Callback, None]:
        """Remove all watches of that kind and path. Return their callbacks."""
        callbacks = self._kinds[kind].pop(path, None)
        if callbacks is None:
            return {}
        directory = _directory(path)
        left = self._in_directory[directory] - 1
        assert left >= 0, f"{left} watches are left in {directory!r}"
        if left:
            self._in_directory[directory] = left
        else:
            del self._in_directory[directory]
        return callbacks

    def discard(self, kind: int, path: bytes, callback: _Callback | None) -> None:
        """Remove `callback`, or with None all callbacks of that kind and path."""
        callbacks = self._kinds[kind].get(path, {})
        if callback is not None:
            callbacks.pop(callback, None)
        if callback is None or not callbacks:
            self._remove(kind, path)
        if kind == KIND_RECURSIVE:
            self._forget_above()
            self._receivers &= {one for callbacks in self._kinds[kind].values() for one in callbacks}

    def is_receiver(self, callback: _Callback) -> bool:
        """Return True if `callback` takes a list of events."""
        return callback in self._receivers

    def others(self, kind: int, path: bytes, callback: _Callback | None) -> bool:
        """Return True if a callback other than `callback` needs the same watch."""
        callbacks = self._kinds[kind].get(path, {})
        return callback is not None and any(other != callback for other in callbacks)

    def take(self, block: bytes, frames: list[tuple[int, int]], at: int, chroot_length: int) -> FiredEvents:
        """Decode the notification in `frames[at]`, and the following ones that fire the same callbacks.

        `chroot_length` bytes are cut off each path. Raise RemoteProtocolError for a malformed notification.
        """
        events: list[Event] = []
        receivers: list[_Callback] = []
        received = self._received
        while at < len(frames):
            begin, end = frames[at]
            event_type, zxid, path = read_event(block, begin, end)
            if event_type == 0:
                break
            directory = _directory(path)
            found = received[directory] if directory in received else self._only_receivers(directory)
            if event_type == EVENT_CHILDREN_CHANGED or (directory in self._in_directory and self._is_watched(path)):
                found = None
            if events and found is not receivers:
                break
            at += 1
            if found is None:
                callbacks = self.fire(event_type, path)
                shown = path[chroot_length:].decode() if callbacks else ""
                return FiredEvents(callbacks, [(event_type, shown or "/", zxid)], at)
            receivers = found
            events.append((event_type, path[chroot_length:].decode() or "/", zxid))
        return FiredEvents(receivers, events, at)

    def _only_receivers(self, directory: bytes) -> list[_Callback] | None:
        """Return the callbacks of events in `directory` if there are some, and all are receivers that watch a znode
        above. Remember the answer."""
        if not self._receivers:
            return None
        above = list(self._recursive_callbacks(directory or b"/"))
        known = above if above and all(one in self._receivers for one in above) else None
        if len(self._received) >= DIRECTORIES_MAX:
            self._received.clear()
        for same in self._received.values():
            if same == known:
                known = same
                break
        self._received[directory] = known
        return known

    def _is_watched(self, path: bytes) -> bool:
        """Return True if a watch is on exactly this path."""
        return any(path in paths for paths in self._kinds)

    def fire(self, event_type: int, path: bytes) -> list[_Callback]:
        """Return the callbacks of an event, each once, and remove the one-shot watches that it fires."""
        found: dict[_Callback, None] = {}
        kinds = self._kinds
        for kind in _FIRES.get(event_type, ()):
            if kinds[kind]:
                found.update(self._remove(kind, path))
        if path in kinds[KIND_PERSISTENT]:
            found.update(kinds[KIND_PERSISTENT][path])
        recursive = kinds[KIND_RECURSIVE]
        if recursive and event_type != EVENT_CHILDREN_CHANGED:
            if path in recursive:
                found.update(recursive[path])
            if len(path) > 1:
                found.update(self._recursive_callbacks(path[: path.rindex(b"/")] or b"/"))
        return list(found)

    def _recursive_callbacks(self, directory: bytes) -> dict[_Callback, None]:
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

    def persistent(self) -> list[tuple[bytes, _Callback]]:
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
        self._receivers.clear()
        self._in_directory.clear()
        self._forget_above()


def _directory(path: bytes) -> bytes:
    """Return the path of the parent, b"" for a child of the root."""
    return path[: max(0, path.rfind(b"/"))]


def _self_and_ancestors(path: bytes) -> Iterator[bytes]:
    """Yield the path and its ancestors: `/a/b`, `/a`, `/`."""
    while len(path) > 1:
        yield path
        path = path[: path.rindex(b"/")]
    yield b"/"
