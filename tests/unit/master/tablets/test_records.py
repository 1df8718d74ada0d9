"""The store's records of tables of tablets: existence, schema, configurations with their members and leaders."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from regions import messages as ms
from regions.messages.ddl import CreateTable, DeleteTable
from regions.records.members import ConfigId, Storage
from regions.records.model import RegionRecord, TableRecord, TableState, TabletState
from regions.records.schema import ColumnSpec, ColumnType, Schema
from regions.records.znodes import decode_region, decode_table
from tests.unit.master.active_fixture import LAYOUT
from tests.unit.master.tablets.fixture import TabletBench

#: A change of the leader's name alone is written late (`LEADER_LATE_MS`).
LATE_S = 15.0


@pytest.fixture
def world(tmp_path: Path) -> TabletBench:
    """Return three servers with a table of two tablets."""
    made = TabletBench(tmp_path)
    columns = [ColumnSpec("k", ColumnType.STRING, key=True), ColumnSpec("v", ColumnType.STRING)]
    assert not isinstance(made.bench.ask(CreateTable("x", ["m"], replication=3, columns=columns)), str)
    made.turn()
    assert made.is_running()
    return made


def below(world: TabletBench, folder: str) -> list[str]:
    """Return the names of the znodes below a path."""
    prefix = f"{folder}/"
    return sorted(path[len(prefix) :] for path in world.store.nodes if path.startswith(prefix))


def stored(world: TabletBench, region_id: str) -> RegionRecord:
    return decode_region(world.store.nodes[LAYOUT.region(world.table_id(), region_id)][0])


def report(world: TabletBench, config_id: ConfigId, count: int, term: int) -> str:
    """Report a configuration of the first tablet's first `count` members as its leader. Return the tablet's id."""
    first = world.regions()[0]
    world.servers.configs[first.region_id] = (config_id, first.members[:count], term)
    world.turn(20, 1.0)
    return first.region_id


def test_each_table_and_each_tablet_has_one_record(world: TabletBench) -> None:
    """MD-01: the table's record has its id and schema; a tablet's has ids, range, members and configuration."""
    table_id = world.table_id()
    assert below(world, LAYOUT.tables) == [table_id]
    assert below(world, LAYOUT.regions) == [table_id, f"{table_id}/{table_id}.0000", f"{table_id}/{table_id}.0001"]
    table = decode_table(world.store.nodes[LAYOUT.table(table_id)][0])
    assert (table.table_id, table.name, table.storage, table.replication) == (table_id, "x", Storage.TABLET, 3)
    assert isinstance(table.schema, Schema)
    assert [one.name for one in table.schema.columns] == ["k", "v"]
    first, second = world.regions()
    assert [(one.table_id, one.start_key, one.end_key) for one in (first, second)] == [
        (table_id, "", "m"), (table_id, "m", ""),
    ]  # fmt: skip
    for one in (first, second):
        assert sorted(member.uuid for member in one.members) == ["s1", "s2", "s3"]
        assert sorted(member.number for member in one.members) == [1, 2, 3]
        assert one.next_number == 4


def test_a_configuration_is_replaced_by_a_later_one_alone(world: TabletBench) -> None:
    """MD-01, MD-02: with its id, from a leader's report; a late report of an earlier one changes nothing."""
    members = world.regions()[0].members
    region_id = report(world, ConfigId(2, 7), 2, 3)
    found = stored(world, region_id)
    assert (found.config_id, found.members, found.state) == (ConfigId(2, 7), members[:2], TabletState.RUNNING)
    world.servers.configs[region_id] = (ConfigId(1, 9), members, 4)
    world.turn(20, 1.0)
    assert (stored(world, region_id).config_id, stored(world, region_id).members) == (ConfigId(2, 7), members[:2])


def test_the_next_master_knows_everything_without_a_report(world: TabletBench) -> None:
    """MD-02: existence, schema, configuration and current leader are in the store, whoever reads it."""
    deleted = world.bench.ask(CreateTable("gone", replication=3))
    assert isinstance(deleted, ms.Tables)
    world.turn()
    assert not isinstance(world.bench.ask(DeleteTable("gone")), str)
    region_id = report(world, ConfigId(2, 7), 2, 5)
    world.turn(4, LATE_S)
    before = stored(world, region_id)
    assert (before.leader, before.leader_term) == (before.members[0].number, 5)
    for uuid in world.servers.servers:
        world.servers.stop(uuid)
    world.fail_over()
    world.turn(5, 1.0)
    [table] = world.bench.ask(ms.ListTables()).tables
    assert (table.table.name, table.table.state, table.regions, table.running) == ("x", TableState.RUNNING, 2, 2)
    assert isinstance(table.table, TableRecord)
    assert isinstance(table.table.schema, Schema)
    found = {one.region_id: one for one in world.bench.ask(ms.ListTablets()).tablets}
    assert len(found) == 2
    known = world.active_master.keeper.keeper.tablets[region_id].record
    assert msgspec.structs.asdict(known) == msgspec.structs.asdict(before)
    assert [one.number for one in found[region_id].members] == [one.number for one in before.members]
    assert (found[region_id].record_leader, found[region_id].record_term) == (before.leader, 5)
    assert found[region_id].record_config_id == ConfigId(2, 7)
