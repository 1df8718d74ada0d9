"""N7 for our client: persistent watches, gaps of the connection, and requests that fail halfway."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed

from coord.client.session import EVENT_GAP
from coord.client.version_watch import VersionWatch
from coord.client.versions import VersionEvent
from coord.errors import ConnectionLoss, NoNode
from coord.wire import records as r
from tests.unit.coord.client.test_versions import Znode, words


class Tree:
    """The requests of ZkClient that a watch uses, answered at once."""

    def __init__(self) -> None:
        self.last_zxid = 0
        self.nodes: dict[str, Znode] = {}
        #: Requests that are answered before the connection breaks; below 0: all.
        self.answers = -1
        self.watch: Any = None
        self.create("/d")

    def create(self, path: str) -> None:
        self.last_zxid += 1
        self.nodes[path] = Znode(self.last_zxid, self.last_zxid, 0)
        self._listed(path)

    def change(self, path: str) -> None:
        self.last_zxid += 1
        self.nodes[path] = self.nodes[path]._replace(mzxid=self.last_zxid, version=self.nodes[path].version + 1)

    def delete(self, path: str) -> None:
        self.last_zxid += 1
        del self.nodes[path]
        self._listed(path)

    def _listed(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent in self.nodes:
            above = self.nodes[parent]
            self.nodes[parent] = above._replace(cversion=above.cversion + 1, pzxid=self.last_zxid)

    def event(self, kind: int, path: str) -> None:
        self.watch(kind, path, self.last_zxid)

    # --- requests -----------------------------------------------------------------------------------------------------

    def add_watch(self, _path: str, callback: Any, recursive: bool = True) -> Deferred[None]:
        assert recursive
        self.watch = callback
        return succeed(None)

    def remove_watch(self, _path: str, _callback: Any) -> Deferred[None]:
        return succeed(None)

    def sync(self, path: str) -> Deferred[Any]:
        return self._answer(path, None)

    def get(self, path: str) -> Deferred[Any]:
        return self._answer(path, (b"", self.nodes.get(path)))

    def children2(self, path: str) -> Deferred[Any]:
        names = [one.rpartition("/")[2] for one in self.nodes if one.rpartition("/")[0] == path]
        return self._answer(path, (names, self.nodes.get(path)))

    def _answer(self, path: str, answer: Any) -> Deferred[Any]:
        if self.answers == 0:
            return fail(ConnectionLoss(path))
        self.answers -= self.answers > 0
        return succeed(answer) if path in self.nodes else fail(NoNode(path))


def follow(tree: Tree, *, token: bytes = b"", since: int = 0) -> tuple[VersionWatch, list[VersionEvent]]:
    events: list[VersionEvent] = []
    watch = VersionWatch(tree, "/d", events.append, children=True, token=token, since=since)  # type: ignore[arg-type]
    ensureDeferred(watch.start())
    return watch, events


def taken(events: list[VersionEvent]) -> list[str]:
    found = words(events)
    events.clear()
    return found


def test_events_and_gaps_of_a_connection() -> None:
    tree = Tree()
    watch, events = follow(tree)
    assert taken(events) == ["FOUND /d v0"]
    tree.create("/d/x")
    tree.event(r.EVENT_CREATED, "/d/x")
    assert taken(events) == ["CREATED /d/x v0"]
    tree.change("/d/x")
    tree.event(r.EVENT_DATA_CHANGED, "/d/x")
    tree.event(r.EVENT_DATA_CHANGED, "/d/x/below")
    assert taken(events) == ["CHANGED /d/x v1"]
    for _ in range(3):
        tree.change("/d/x")
    tree.create("/d/y")
    tree.delete("/d/y")
    tree.event(EVENT_GAP, "/d")
    assert taken(events) == ["GAP /d/x missed 2", "CHANGED /d/x v4", "GAP /d missed 2"]
    tree.delete("/d/x")
    tree.event(r.EVENT_DELETED, "/d/x")
    assert taken(events) == ["DELETED /d/x"]
    assert watch.zxid == tree.last_zxid


def test_a_round_that_fails_loses_nothing() -> None:
    tree = Tree()
    watch, events = follow(tree)
    before = watch.token
    taken(events)
    tree.change("/d")
    tree.answers = 2  # the reading of /d has succeeded, the list fails
    tree.event(EVENT_GAP, "/d")
    assert events == []
    assert watch.token == before
    tree.answers = -1
    tree.event(EVENT_GAP, "/d")
    assert taken(events) == ["CHANGED /d v1"]


def test_another_process_goes_on_from_the_token_or_a_zxid() -> None:
    tree = Tree()
    watch, _ = follow(tree)
    zxid = watch.zxid
    watch.stop()
    tree.change("/d")
    tree.change("/d")
    assert taken(follow(tree, token=watch.token)[1]) == ["GAP /d missed 1", "CHANGED /d v2"]
    assert taken(follow(tree, since=zxid)[1]) == ["GAP /d missed ?", "CHANGED /d v2"]


def test_a_stopped_watch_is_silent() -> None:
    tree = Tree()
    watch, events = follow(tree)
    taken(events)
    watch.stop()
    tree.change("/d")
    tree.event(r.EVENT_DATA_CHANGED, "/d")
    assert events == []
