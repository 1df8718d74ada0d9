"""Changes of the servers reach the assigner a part in each turn."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from master.assignment import server_events
from master.assignment.server_events import ServerEvents
from regions.cluster import events as ev
from regions.records.model import Incarnation, ServerRecord
from tests.unit.master.active_fixture import Bench


class Servers:
    """An assigner that only knows which servers live and how many regions each has."""

    def __init__(self, **regions: int) -> None:
        self.handled: list[ev.Event] = []
        self.world = SimpleNamespace(servers={uuid: self.known(uuid, count) for uuid, count in regions.items()})
        ignored: Any = SimpleNamespace(membership=lambda *_: None, forget=lambda _: None)
        assigner: Any = self
        self.events = ServerEvents(ignored, assigner, ignored, ignored, lambda: 1, lambda: None)

    def known(self, uuid: str, regions: int) -> Any:
        record = ServerRecord(uuid, "h", 1, 1)
        at = Incarnation(uuid, 1)
        return SimpleNamespace(record=record, incarnation=at, fenced_until_ms=None, load=regions)

    def handle(self, event: ev.Event, *_: object) -> None:
        self.handled.append(event)
        if isinstance(event, ev.ServerDown):
            del self.world.servers[event.uuid]

    def changed(self, *alive: str) -> bool:
        return self.events.changed([ServerRecord(uuid, "h", 1, 1) for uuid in alive], [], [], [])

    @property
    def downs(self) -> list[str]:
        return [one.uuid for one in self.handled if isinstance(one, ev.ServerDown)]


# Fails if the active master does not call again.
def test_the_active_master_comes_back_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_events, "REGIONS_AT_ONCE", 1)
    bench = Bench(tmp_path, servers=3)
    assert bench.active_master is not None
    world, registry = bench.active_master.world, bench.active_master.registry
    assert len(world.servers) == 3
    registry.servers = []
    registry.repeat()
    assert len(world.servers) == 2
    bench.go_on(0.1)
    assert not world.servers


# Fails without REGIONS_AT_ONCE: a hundred servers with a thousand regions each took seconds in one turn.
def test_servers_that_end_together_are_handled_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_events, "REGIONS_AT_ONCE", 3)
    servers = Servers(a=2, b=2, c=9, d=0, e=1)
    assert servers.changed("e", "new")
    assert servers.downs == ["a", "b"]
    assert servers.changed("e", "new")
    assert servers.downs == ["a", "b", "c"]
    assert not any(isinstance(one, ev.ServerUp) for one in servers.handled), "new servers come after all ends"
    assert not servers.changed("e", "new")
    assert servers.downs == ["a", "b", "c", "d"]
    assert [one.record.uuid for one in servers.handled if isinstance(one, ev.ServerUp)] == ["new"]
