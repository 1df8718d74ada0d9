"""The expected events of a connection's watches, computed from the history: each change once, in order.

A watch set by a read that is answered at zxid Z fires at the first change after Z. So when the connection receives data
of zxid W, it must have received every event up to W; `_due` are the events of one zxid that are still missing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from coord import errors as e
from coord.wire import records as r
from simulation.engine.history import Violation
from tests.sim.store.model import allows

if TYPE_CHECKING:
    from tests.sim.store.model import Line, Model

Table = dict[bytes, None]


class Watching:
    """The watches of one connection, and the zxid up to which the history has been compared with its events."""

    def __init__(self, session_id: int) -> None:
        self.data: Table = {}
        self.exist: Table = {}
        self.child: Table = {}
        self.persistent: Table = {}
        self.recursive: Table = {}
        #: The owner: access lists decide which events it may receive.
        self.session_id = session_id
        self._cursor = 0
        self._due: deque[tuple[int, bytes]] = deque()
        #: Events of setWatches2 that came before its answer.
        self._missed: list[tuple[int, bytes]] = []

    def is_empty(self) -> bool:
        """Return True if nothing is watched."""
        return not (self.data or self.exist or self.child or self.persistent or self.recursive)

    def as_sets(self, zxid: int) -> r.WatchSets:
        """Return the watches for setWatches2."""
        return r.WatchSets(
            zxid, list(self.data), list(self.exist), list(self.child), list(self.persistent), list(self.recursive)
        )

    # --- leaving watches

    def add(self, path: bytes, mode: int) -> None:
        """Handle the answer to addWatch."""
        (self.recursive if mode == r.WATCH_PERSISTENT_RECURSIVE else self.persistent)[path] = None

    def leave(self, opcode: int, path: bytes, err: int) -> None:
        """Handle the answer to a read that set a watch."""
        if opcode == r.OP_EXISTS:
            if err != e.NO_AUTH:
                (self.data if err == e.OK else self.exist)[path] = None
        elif err == e.OK:
            (self.data if opcode == r.OP_GET_DATA else self.child)[path] = None

    def restored(
        self, model: Model, sets: r.WatchSets, zxid: int, who: str, identities: list[tuple[bytes, bytes]]
    ) -> None:
        """Handle the answer to setWatches2 at `zxid`: missed changes were reported, the other watches are set again.

        Changes of znodes that a client with `identities` may not read are not reported, and their watches are
        removed.
        """
        missed: dict[tuple[int, bytes], None] = {}
        since = sets.relative_zxid
        for path in sets.data:
            view = model.at(path, zxid)
            if view is None:
                missed[r.EVENT_DELETED, path] = None
            elif view[2] <= since:
                self.data[path] = None
            elif allows(view[9], r.PERM_READ, identities):
                missed[r.EVENT_DATA_CHANGED, path] = None
        for path in sets.exist:
            view = model.at(path, zxid)
            if view is None:
                self.exist[path] = None
            elif allows(view[9], r.PERM_READ, identities):
                missed[r.EVENT_CREATED, path] = None
        for path in sets.child:
            view = model.at(path, zxid)
            if view is None:
                missed[r.EVENT_DELETED, path] = None
            elif view[7] <= since:
                self.child[path] = None
            elif allows(view[9], r.PERM_READ, identities):
                missed[r.EVENT_CHILDREN_CHANGED, path] = None
        for path in sets.persistent:
            self.persistent[path] = None
        for path in sets.recursive:
            self.recursive[path] = None
        if sorted(self._missed) != sorted(missed):
            raise Violation(f"{who} is told to have missed {self._missed} up to {zxid}, should be {list(missed)}")
        self._missed.clear()

    # --- events

    def up_to(self, model: Model, zxid: int, who: str) -> None:
        """Handle data of `zxid`: no event up to that zxid may be missing."""
        if self._due:
            raise Violation(f"{who} is told of zxid {zxid} before the event {self._due[0]} of {self._cursor}")
        if self.is_empty():
            self._cursor = max(self._cursor, zxid)
        while self._cursor < zxid:
            self._cursor += 1
            due = self._heard(model, self._cursor)
            if due:
                raise Violation(f"{who} is told of zxid {zxid} and misses the event {due[0]} of {self._cursor}")

    def event(self, model: Model, zxid: int, kind: int, path: bytes, who: str) -> None:
        """Handle an event."""
        if zxid == r.ZXID_UNKNOWN:
            self._missed.append((kind, path))
            return
        if zxid > model.zxid:
            raise Violation(f"{who} hears of zxid {zxid}, which nobody has applied")
        if not self._due:
            self.up_to(model, zxid - 1, who)
            if self._cursor < zxid:
                self._cursor = zxid
                self._due.extend(self._heard(model, zxid))
        if not self._due or zxid != self._cursor or self._due[0] != (kind, path):
            due = f"{list(self._due)} of {self._cursor}"
            raise Violation(f"{who} hears {(kind, path)} of {zxid}, which is not due; due is {due}")
        self._due.popleft()

    def _heard(self, model: Model, zxid: int) -> list[tuple[int, bytes]]:
        heard = []
        for kind, path, acl in model.history[zxid - 1].events:
            # An event that its owner may not receive removes the watch, too.
            if self._hears(kind, path) and self._may_hear(model, zxid, acl):
                heard.append((kind, path))
        return heard

    def _may_hear(self, model: Model, zxid: int, acl: tuple[Line, ...]) -> bool:
        if allows(acl, r.PERM_READ, []):
            return True
        identities = model.identities_at(self.session_id, zxid)
        return identities is not None and allows(acl, r.PERM_READ, identities)

    def _hears(self, kind: int, path: bytes) -> bool:
        heard = path in self.persistent
        if kind == r.EVENT_CHILDREN_CHANGED:
            return self._spend(self.child, path) or heard
        heard = self._spend(self.data, path) or heard
        heard = self._spend(self.exist, path) or heard
        if kind == r.EVENT_DELETED:
            heard = self._spend(self.child, path) or heard
        return heard or any(path == top or path.startswith(top.rstrip(b"/") + b"/") for top in self.recursive)

    @staticmethod
    def _spend(table: Table, path: bytes) -> bool:
        if path in table:
            del table[path]
            return True
        return False
