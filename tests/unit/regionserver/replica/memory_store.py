"""A reactor and a store for tests of a server's writes: the test releases multis, and calls from threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from coord.client.ops import Check, Create, GetData, SetData
from coord.errors import BadVersion, ConnectionLoss, MultiFailed, NodeExists, NoNode
from coord.wire.records import Stat
from regions.records import znodes

PATHS = znodes.Layout("/rk")


class FakeReactor(Clock):
    """Twisted's Clock, with calls from threads that the test releases."""

    def __init__(self) -> None:
        super().__init__()
        self.from_threads: list[Callable[[], object]] = []
        self.arrived = threading.Condition()

    def callFromThread(self, f: Callable[..., object], *args: object) -> None:
        with self.arrived:
            self.from_threads.append(lambda: f(*args))
            self.arrived.notify()


class MemoryStore:
    """Znodes as path -> (data, version); multis wait until the test releases them."""

    def __init__(self) -> None:
        self.znodes: dict[str, tuple[bytes, int]] = {PATHS.epoch: (b"", 4)}
        self.waiting: list[tuple[list[Any], Deferred[Any]]] = []
        self.sizes: list[int] = []
        self.is_cut = False

    def multi(self, operations: list[Any]) -> Deferred[Any]:
        deferred: Deferred[Any] = Deferred()
        self.waiting.append((operations, deferred))
        return deferred

    def sync(self, path: str = "/") -> Deferred[None]:
        return self._read(lambda: None)

    def get(self, path: str) -> Deferred[Any]:
        raise AssertionError("not used")

    def multi_read(self, operations: list[GetData]) -> Deferred[Any]:
        return self._read(lambda: [self._look(one.path) for one in operations])

    def _read(self, read: Callable[[], Any]) -> Deferred[Any]:
        deferred: Deferred[Any] = Deferred()
        if self.is_cut:
            deferred.errback(ConnectionLoss(""))
        else:
            deferred.callback(read())
        return deferred

    def _look(self, path: str) -> Any:
        if path not in self.znodes:
            return NoNode(path)
        data, version = self.znodes[path]
        stat = Stat()
        stat.version = version
        return data, stat

    def let_through(self, *, lose_answers: bool = False) -> None:
        """Perform the waiting multis, once."""
        waiting, self.waiting = self.waiting, []
        for operations, deferred in waiting:
            self.sizes.append(len(operations))
            result = self._perform(operations)
            if lose_answers:
                deferred.errback(Failure(ConnectionLoss("")))
            elif isinstance(result, Exception):
                deferred.errback(Failure(result))
            else:
                deferred.callback(result)

    def _perform(self, operations: list[Any]) -> Any:
        after = dict(self.znodes)
        results: list[Any] = []
        for at, one in enumerate(operations):
            there = after.get(one.path)
            if isinstance(one, Create):
                if there is not None:
                    return MultiFailed(at, NodeExists(one.path), [])
                after[one.path] = (one.data, 0)
                results.append(one.path)
                continue
            if there is None or there[1] != one.version:
                return MultiFailed(at, BadVersion(one.path), [])
            if isinstance(one, Check):
                results.append(None)
                continue
            assert isinstance(one, SetData)
            after[one.path] = (one.data, one.version + 1)
            stat = Stat()
            stat.version = one.version + 1
            results.append(stat)
        self.znodes = after
        return results
