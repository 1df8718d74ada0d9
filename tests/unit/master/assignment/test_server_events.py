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
        self.events = ServerEvents(ignored, assigner, ignored, ignored, lambda: 1, lambda: None, lambda act: act())

    def known(self, uuid: str, regions: int, start_code: int = 1) -> Any:
        record = ServerRecord(uuid, "h", 1, start_code)
        at = Incarnation(uuid, start_code)
        return SimpleNamespace(record=record, incarnation=at, fenced_until_ms=None, load=regions)

    def handle(self, event: ev.Event, *_: object) -> None:
        self.handled.append(event)
        if isinstance(event, ev.ServerDown):
            del self.world.servers[event.uuid]
        if isinstance(event, ev.ServerUp):
            self.world.servers[event.record.uuid] = self.known(event.record.uuid, 0, event.record.start_code)

    def changed(self, *alive: str, start_code: int = 1) -> bool:
        return self.events.changed([ServerRecord(uuid, "h", 1, start_code) for uuid in alive], [], [], [])

    @property
    def ended(self) -> list[list[str]]:
        return [[start.uuid for start in one.starts] for one in self.handled if isinstance(one, ev.ServersEnded)]

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


# Fails without `_mark_ended`: regions of the first ended servers were placed on the others.
def test_the_assigner_knows_of_all_ends_before_it_decides_about_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_events, "REGIONS_AT_ONCE", 1)
    servers = Servers(a=2, b=2, c=9)
    assert servers.changed("c")
    assert isinstance(servers.handled[1], ev.ServersEnded)
    assert servers.ended == [["a", "b"]]
    assert servers.downs == ["a"]


# Fails without `_came`: the regions of all former starts were decided about in one turn.
def test_servers_that_start_again_together_are_handled_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_events, "REGIONS_AT_ONCE", 3)
    servers = Servers(a=2, b=2, c=9)
    turns = [servers.changed("a", "b", "c", "new", start_code=2) for _ in range(2)]
    assert turns == [True, False]
    assert servers.ended[0] == ["a", "b", "c"]
    kinds = [one for one in servers.handled if isinstance(one, ev.ServerUp | ev.DrainingSeen)]
    assert [one.record.uuid for one in kinds[:-1] if isinstance(one, ev.ServerUp)] == ["a", "b", "c", "new"]
    assert isinstance(kinds[-1], ev.DrainingSeen), "drains come after all starts"
