"""A store for one client, in memory: the test releases the replies, in order, as in a real session."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from coord.client.ops import Check, Create, Delete, GetChildren, GetData, SetData
from coord.client.session import SessionState
from coord.errors import BadVersion, MultiFailed, NodeExists, NoNode, NotEmpty, OperationError
from coord.wire.records import Stat
from coord.wire.values import OPEN_ACL, Acl


def stat_of(version: int, owner: int = 0) -> Stat:
    """Return a Stat in which only these two fields matter."""
    return Stat(0, 0, 0, 0, version, 0, 0, owner, 0, 0, 0)


class FakeStore:
    """The methods of ZkClient that masters use."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int, int]] = {"/": (b"", 0, 0)}
        self.session_id = 7
        self.state = SessionState.CONNECTED
        self.default_acl: list[Acl] = OPEN_ACL
        self.waiting: deque[tuple[Deferred[Any], Callable[[], Any]]] = deque()
        self.multis: list[list[Any]] = []
        self.watches: list[tuple[str, Callable[..., object]]] = []
        #: Watches that `get` has set.
        self.of_data: list[tuple[str, Callable[..., object]]] = []

    def put(self, path: str, data: bytes = b"", version: int = 0, owner: int = 0) -> None:
        self.nodes[path] = (data, version, owner)

    def answer(self, count: int = -1) -> None:
        """Answer so many waiting requests; by default all of them, and the requests that follow from them."""
        while self.waiting and count != 0:
            deferred, act = self.waiting.popleft()
            count -= 1
            try:
                result = act()
            except OperationError as error:
                deferred.errback(error)
            else:
                deferred.callback(result)

    def _later(self, act: Callable[[], Any]) -> Deferred[Any]:
        deferred: Deferred[Any] = Deferred()
        self.waiting.append((deferred, act))
        return deferred

    # --- requests ---------------------------------------------------------------------------------------------------

    def multi(self, operations: list[Any]) -> Deferred[Any]:
        return self._later(lambda: self._multi(operations))

    def multi_read(self, operations: list[Any]) -> Deferred[Any]:
        return self._later(lambda: [self._read(op) for op in operations])

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Deferred[Any]:
        owner = self.session_id if ephemeral else 0
        return self._later(lambda: self._do(Create(path, data), owner))

    def get(self, path: str, watch: Callable[..., object] | None = None) -> Deferred[Any]:
        def act() -> tuple[bytes, Stat]:
            found = self._get(path)
            if watch is not None:
                self.of_data.append((path, watch))
            return found

        return self._later(act)

    def set(self, path: str, data: bytes, version: int = -1) -> Deferred[Any]:
        return self._later(lambda: self._do(SetData(path, data, version)))

    def delete(self, path: str, version: int = -1) -> Deferred[Any]:
        return self._later(lambda: self._do(Delete(path, version)))

    def exists(self, path: str, watch: Callable[..., object] | None = None) -> Deferred[Any]:
        def act() -> Stat | None:
            if watch is not None:
                self.watches.append((path, watch))
            found = self.nodes.get(path)
            if found is None:
                return None
            stat = stat_of(found[1], found[2])
            stat.num_children = len(self._children(path))
            return stat

        return self._later(act)

    def sync(self, path: str) -> Deferred[Any]:
        return self._later(lambda: None)

    def children(self, path: str) -> Deferred[Any]:
        return self._later(lambda: self._children(path))

    # --- the tree -----------------------------------------------------------------------------------------------------

    def _multi(self, operations: list[Any]) -> list[Any]:
        self.multis.append(operations)
        saved = dict(self.nodes)
        results: list[Any] = []
        for number, op in enumerate(operations):
            try:
                results.append(self._do(op))
            except OperationError as error:
                self.nodes = saved
                raise MultiFailed(number, error, [None] * len(operations)) from error
        return results

    def _do(self, op: Any, owner: int = 0) -> Any:
        found = self.nodes.get(op.path)
        if isinstance(op, Create):
            if found is not None:
                raise NodeExists(op.path)
            if op.path.rpartition("/")[0] not in ("", *self.nodes):
                raise NoNode(op.path)
            self.nodes[op.path] = (op.data, 0, owner)
            return op.path
        if found is None:
            raise NoNode(op.path)
        if op.version not in (-1, found[1]):
            raise BadVersion(op.path)
        if isinstance(op, Delete):
            if self._children(op.path):
                raise NotEmpty(op.path)
            del self.nodes[op.path]
            fired = [watch for path, watch in self.watches if path == op.path]
            self.watches = [(path, watch) for path, watch in self.watches if path != op.path]
            for watch in fired:
                watch(2, op.path, 0)
        elif isinstance(op, SetData):
            self.nodes[op.path] = (op.data, found[1] + 1, found[2])
            fired = [watch for path, watch in self.of_data if path == op.path]
            self.of_data = [(path, watch) for path, watch in self.of_data if path != op.path]
            for watch in fired:
                watch(3, op.path, 0)
            return stat_of(found[1] + 1, found[2])
        else:
            assert isinstance(op, Check), op
        return None

    def _get(self, path: str) -> tuple[bytes, Stat]:
        if path not in self.nodes:
            raise NoNode(path)
        data, version, owner = self.nodes[path]
        return data, stat_of(version, owner)

    def _children(self, path: str) -> list[str]:
        if path not in self.nodes:
            raise NoNode(path)
        prefix = path.rstrip("/") + "/"
        return [
            one[len(prefix) :]
            for one in self.nodes
            if one.startswith(prefix) and "/" not in one[len(prefix) :] and one != "/"
        ]

    def _read(self, op: GetData | GetChildren) -> Any:
        try:
            return self._get(op.path) if isinstance(op, GetData) else self._children(op.path)
        except OperationError as error:
            return error


class EachAlone:
    """Gives a receiver of many events each event alone."""

    def __init__(self, receiver: Callable[..., object]) -> None:
        self.receiver = receiver

    def __call__(self, *event: object) -> object:
        return self.receiver([event])

    def __eq__(self, other: object) -> bool:
        return self.receiver == (other.receiver if isinstance(other, EachAlone) else other)

    def __hash__(self) -> int:
        return hash(self.receiver)


class WatchedStore(FakeStore):
    """A store with persistent watches. Changes made by `change` and `drop` are reported at once, before any reply that
    could show them."""

    def __init__(self) -> None:
        super().__init__()
        self.left_s = 2.0
        self.timeout_ms, self.last_zxid = 3_000, 0
        self.listeners: list[Callable[[SessionState], object]] = []
        self.persistent: list[tuple[str, Callable[..., object]]] = []
        #: Requests by kind.
        self.asked: Counter[str] = Counter()

    def add_watch(self, path: str, callback: Callable[..., object], *, recursive: bool) -> Any:
        assert recursive
        if (path, callback) not in self.persistent:
            self.persistent.append((path, callback))
        return self._later(lambda: None)

    def watch_below(self, path: str, receiver: Callable[..., object]) -> Any:
        return self.add_watch(path, EachAlone(receiver), recursive=True)

    def remove_watch(self, path: str, callback: Callable[..., object]) -> Any:
        if (path, callback) in self.persistent:
            self.persistent.remove((path, callback))
        return self._later(lambda: None)

    def on_state(self, callback: Callable[[SessionState], object]) -> Callable[[], None]:
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    def become(self, state: SessionState) -> None:
        self.state = state
        for listener in list(self.listeners):
            listener(state)

    def sync(self, path: str = "/") -> Deferred[Any]:
        self.asked["sync"] += 1
        return self._later(lambda: None)

    def multi_read(self, operations: list[Any]) -> Deferred[Any]:
        self.asked["multi_read"] += 1
        return super().multi_read(operations)

    def change(self, path: str, data: bytes = b"") -> None:
        """Create or set a znode, as another client."""
        known = self.nodes.get(path)
        self.last_zxid += 1
        self.put(path, data, 0 if known is None else known[1] + 1)
        self._tell(1 if known is None else 3, path)

    def drop(self, path: str) -> None:
        """Delete a znode, as another client."""
        self.last_zxid += 1
        del self.nodes[path]
        self._tell(2, path)

    def _tell(self, event_type: int, path: str) -> None:
        for watched, callback in list(self.persistent):
            if path == watched or path.startswith(f"{watched}/"):
                callback(event_type, path, self.last_zxid)
