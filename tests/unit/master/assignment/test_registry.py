"""The registry of servers: after an event it reads what has changed, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from coord.client.ops import GetData
from coord.client.session import EVENT_GAP
from master.assignment.registry import Registry
from regions.records.model import ServerRecord
from regions.records.znodes import Layout, encode
from tests.unit.master.fake_store import FakeStore

LAYOUT = Layout("/r")
#: Event types of ZooKeeper.
CREATED, DELETED, CHANGED = 1, 2, 3


class Cluster(FakeStore):
    """A store that counts the znodes that are read, with a registry."""

    def __init__(self, servers: int) -> None:
        super().__init__()
        self.read: list[str] = []
        self.seen: list[list[ServerRecord]] = []
        self.callbacks: list[Any] = []
        for path in LAYOUT.parents():
            self.put(path)
        for number in range(servers):
            self.register(number)
        client: Any = self
        self.registry = Registry(client, LAYOUT, lambda servers, *_: self.seen.append(servers), lambda failure: None)
        ensureDeferred(self.registry.start())
        self.answer()
        self.read.clear()

    def add_watch(self, path: str, callback: Any, *, recursive: bool) -> Deferred[Any]:
        assert recursive
        self.callbacks.append(callback)
        return self._later(lambda: path)

    def multi_read(self, operations: list[Any]) -> Deferred[Any]:
        self.read += [one.path for one in operations if isinstance(one, GetData)]
        return super().multi_read(operations)

    def register(self, number: int, start_code: int = 1) -> str:
        record = ServerRecord(f"s{number:04}", "h", 1, start_code)
        path = LAYOUT.server(record.uuid)
        self.put(path, encode(record))
        return path

    def event(self, event_type: int, path: str) -> None:
        self.callbacks[0](event_type, path, 1)


def test_a_server_that_registers_costs_one_read_among_a_thousand() -> None:
    """Starting 1,000 servers read a million znodes, in turns of up to a second. Fails if `_records` reads all paths."""
    cluster = Cluster(1_000)
    assert len(cluster.registry.servers) == 1_000
    path = cluster.register(1_000)
    cluster.event(CREATED, path)
    cluster.answer()
    assert cluster.read == [path]
    assert [len(one) for one in cluster.seen] == [1_001]
    del cluster.nodes[LAYOUT.server("s0007")]
    cluster.event(DELETED, LAYOUT.server("s0007"))
    cluster.answer()
    assert cluster.read == [path]
    assert [len(one) for one in cluster.seen] == [1_001, 1_000]


def test_a_server_that_was_started_again_is_read_again() -> None:
    """RF-01: its name is listed as before. Fails if the paths of events are forgotten."""
    cluster = Cluster(3)
    path = cluster.register(1, start_code=2)
    cluster.event(DELETED, path)
    cluster.event(CREATED, path)
    cluster.answer()
    assert [one.start_code for one in cluster.registry.servers] == [1, 2, 1]


@pytest.mark.parametrize("by_gap", [True, False])
def test_a_gap_or_a_change_during_a_read_is_not_missed(by_gap: bool) -> None:
    """OC-05. Fails if a gap leaves `_changed_paths` as it is, or if a read clears the paths when it ends."""
    cluster = Cluster(3)
    path = cluster.register(2, start_code=5)
    cluster.event(CHANGED, LAYOUT.server("s0000"))
    cluster.answer(4)  # the names are listed, and the first znode is being read
    cluster.event(EVENT_GAP if by_gap else CHANGED, "" if by_gap else path)
    cluster.answer()
    assert [one.start_code for one in cluster.registry.servers] == [1, 1, 5]


def test_a_damaged_record_is_kept_and_a_vanished_znode_is_not() -> None:
    cluster = Cluster(3)
    damaged, gone = LAYOUT.server("s0000"), LAYOUT.server("s0001")
    cluster.put(damaged, b"{")
    cluster.event(CHANGED, damaged)
    cluster.event(CHANGED, gone)
    cluster.answer(4)
    del cluster.nodes[gone]  # after the names were listed
    cluster.answer()
    assert [one.uuid for one in cluster.registry.servers] == ["s0000", "s0002"]
    fixed = msgspec.structs.replace(cluster.registry.servers[0], start_code=9)
    cluster.put(damaged, encode(fixed))
    cluster.event(CHANGED, damaged)
    cluster.answer()
    assert [one.start_code for one in cluster.registry.servers] == [9, 1]
