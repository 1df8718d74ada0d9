"""Counts of a cluster with tablets: replicas that are open, leaders and members of each server, tables that run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from master.api.reads import ReadView, RecordsAlone, read
from regions import messages as ms
from regions.messages.ddl import SetTableIntent
from regions.records.model import TableIntent
from tests.unit.master.tablets.fixture import TabletBench


@pytest.fixture
def world(tmp_path: Path) -> TabletBench:
    """Return three servers with a table of two tablets."""
    made = TabletBench(tmp_path)
    made.create(regions=2)
    made.turn()
    assert made.is_running()
    return made


def figures(world: TabletBench) -> tuple[int, int, int, int]:
    """Return the master's counts of replicas, open ones, resting ones, and unusable tablets."""
    bench: Any = world.bench
    bench.cluster_id, bench.phases, bench.watcher, bench.uptime_ms = "c", world.active_master.phases, None, lambda: 0
    found = bench.api.status()
    return found.replicas, found.open, found.resting, found.unusable


def ask(world: TabletBench, request: ms.MasterRequest) -> Any:
    answer = world.bench.ask(request)
    assert not isinstance(answer, str), answer
    return answer


def loads(world: TabletBench) -> dict[str, ms.ServerLoad]:
    return {one.server.uuid: one for one in ask(world, ms.ListServers()).servers}


def test_every_replica_counts(world: TabletBench) -> None:
    """In the status, in the list of tables, for each server, and for each region."""
    assert figures(world) == (6, 6, 0, 0)
    [table] = ask(world, ms.ListTables()).tables
    assert (table.regions, table.running, table.replicas, table.open) == (2, 2, 6, 6)
    found = loads(world)
    assert [(one.open, one.tablets_open, one.tablets, one.shared_open) for one in found.values()] == [(2, 2, 2, 0)] * 3
    assert sum(one.leaders or 0 for one in found.values()) == 2
    described = ask(world, ms.DescribeTable("x")).regions
    assert [[one.takes_part for one in region.replicas] for region in described] == [[True] * 3] * 2


def test_sizes_are_those_that_servers_report(world: TabletBench) -> None:
    """A tablet's from its leader, a server's from its own replicas; without reports they are estimates."""
    [table] = ask(world, ms.ListTables()).tables
    assert (table.rows, table.measured) == (None, False)
    keeper = world.active_master.keeper.keeper
    for tablet in keeper.tablets.values():
        for uuid, view in list(tablet.view.replicas.items()):
            grown = msgspec.structs.replace(view.report, rows=10, size_bytes=1000)
            assert view.server.uuid == uuid
            tablet.view.fold(view.server, grown)
    [table] = ask(world, ms.ListTables()).tables
    assert (table.rows, table.size_bytes, table.measured) == (20, 2000, True)
    assert [(one.rows, one.bytes, one.measured) for one in loads(world).values()] == [(20, 2000, True)] * 3
    described = ask(world, ms.DescribeTable("x")).regions
    assert [(one.rows, one.size_bytes, one.measured) for one in described] == [(10, 1000, True)] * 2
    world.fail_over()
    world.bench.go_on()
    assert [(one.rows, one.measured) for one in loads(world).values()] == [(None, False)] * 3


def test_what_does_not_take_part_is_not_open(world: TabletBench) -> None:
    """Replicas of a dead server, and those of a disabled table, whose members stay on their servers."""
    world.servers.stop("s3")
    world.turn(20, 0.5)
    assert figures(world) == (6, 4, 0, 0)
    assert sorted(loads(world)) == ["s1", "s2"]
    [first, _] = ask(world, ms.DescribeTable("x")).regions
    assert sorted(one.takes_part for one in first.replicas) == [False, True, True]
    ask(world, SetTableIntent("x", TableIntent.DISABLED))
    world.turn(40, 0.5)
    assert figures(world) == (6, 0, 6, 0)
    assert [(one.open, one.tablets) for one in loads(world).values()] == [(0, 2), (0, 2)]


def test_a_tablet_without_its_first_leader_is_unusable(tmp_path: Path) -> None:
    """Also before the master has processed any of the table's regions."""
    world = TabletBench(tmp_path)
    world.create(regions=2)
    assert figures(world)[3] == 2
    world.turn()
    assert figures(world)[3] == 0


def test_what_nobody_has_reported_is_unknown(world: TabletBench) -> None:
    """For a new master before the first full report; for a standby always."""
    world.fail_over()
    world.bench.go_on()
    assert {one.tablets_open for one in loads(world).values()} == {None}
    described = ask(world, ms.DescribeTable("x")).regions
    assert {one.takes_part for region in described for one in region.replicas} == {None}
    master = world.active_master
    view = ReadView(master.assigner.world, master.assigner.config, master.assigner.history, 0, RecordsAlone())
    answer = read(view, ms.ListTables())
    assert isinstance(answer, ms.Tables)
    assert [(one.replicas, one.open) for one in answer.tables] == [(6, None)]
