"""What a connection's watches must bring, computed from history: each change that they hear of, once, in order.

A watch left by a read answered at zxid Z hears of the first change behind Z. So when the connection is told anything
of zxid W, every event up to W has to have been delivered before; `_due` are the events of one zxid that are still to
come.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from coord import errors as e
from coord.wire import records as r
from tests.sim.history import Violation
from tests.sim.store.model import allows

if TYPE_CHECKING:
    from tests.sim.store.model import Line, Model

Table = dict[bytes, None]


class Watching:
    """The watches of one connection, and how far history has been compared with its events."""

    def __init__(self, session_id: int) -> None:
        self.data: Table = {}
        self.exist: Table = {}
        self.child: Table = {}
        self.persistent: Table = {}
        self.recursive: Table = {}
        #: Whose they are: access lists decide what it may hear of.
        self.session_id = session_id
        self._cursor = 0
        self._due: deque[tuple[int, bytes]] = deque()
        #: Events of setWatches2 that came before its answer.
        self._missed: list[tuple[int, bytes]] = []

    def is_empty(self) -> bool:
        """Whether nothing is watched."""
        return not (self.data or self.exist or self.child or self.persistent or self.recursive)

    def as_sets(self, zxid: int) -> r.WatchSets:
        """For setWatches2."""
        return r.WatchSets(
            zxid, list(self.data), list(self.exist), list(self.child), list(self.persistent), list(self.recursive)
        )

    # --- leaving watches

    def add(self, path: bytes, mode: int) -> None:
        """addWatch was answered."""
        (self.recursive if mode == r.WATCH_PERSISTENT_RECURSIVE else self.persistent)[path] = None

    def leave(self, opcode: int, path: bytes, err: int) -> None:
        """A read that asked for a watch was answered."""
        if opcode == r.OP_EXISTS:
            if err != e.NO_AUTH:
                (self.data if err == e.OK else self.exist)[path] = None
        elif err == e.OK:
            (self.data if opcode == r.OP_GET_DATA else self.child)[path] = None

    def restored(
        self, model: Model, sets: r.WatchSets, zxid: int, who: str, identities: list[tuple[bytes, bytes]]
    ) -> None:
        """setWatches2 was answered at `zxid`: what was missed has been told, the rest is watched again.

        Of what changed and may not be read by somebody with `identities`, nothing is told, and no watch is left.
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
        """Something of `zxid` has been told: no event up to there may be missing."""
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
        """An event has arrived."""
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
            # A watch is used up by what its owner may not hear of, too.
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
