"""Requests about tables of tablets: disable, enable, delete, undelete; unsupported requests are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from twisted.internet.defer import ensureDeferred

from coord.errors import ConnectionLoss
from master.catalog import store
from regions import messages as ms
from regions.messages.ddl import AlterTable, CreateTable, DeleteTable, SetTableIntent, UndeleteTable
from regions.messages.heartbeat import ReplicaState
from regions.records.model import RegionState, TableIntent, TableState
from regions.records.schema import AddColumn, ColumnSpec, ColumnType, Schema
from regions.records.znodes import decode_table, decode_transition
from tests.unit.master.active_fixture import LAYOUT
from tests.unit.master.tablets.fixture import TabletBench


@pytest.fixture
def world(tmp_path: Path) -> TabletBench:
    """Return three servers with a table of two tablets."""
    made = TabletBench(tmp_path)
    made.create(regions=2)
    made.turn()
    assert made.is_running()
    return made


def on_disk(world: TabletBench) -> set[ReplicaState]:
    """Return the states of all replicas on all disks."""
    return {local.state for server in world.servers.servers.values() for local in server.disk.values()}


def answer_to(world: TabletBench, request: ms.MasterRequest, turns: int = 40) -> object:
    """Return the reply to a request that waits."""
    answers: list[object] = []
    world.bench.ask_into(request, answers)
    world.turn(turns, 0.1)
    return answers[0] if answers else None


def test_replicas_rest_while_a_table_is_disabled_and_wake_afterwards(world: TabletBench) -> None:
    """No replica is made again."""
    closed = answer_to(world, SetTableIntent("x", TableIntent.DISABLED, wait_ms=30_000))
    assert isinstance(closed, ms.Tables)
    assert (on_disk(world), world.transitions(), world.states()) == ({ReplicaState.RESTING}, [], ["RUNNING"] * 2)
    assert closed.tables[0].open == 0
    opened = answer_to(world, SetTableIntent("x", TableIntent.ENABLED, wait_ms=30_000))
    assert isinstance(opened, ms.Tables)
    assert (on_disk(world), world.transitions()) == ({ReplicaState.RUNNING}, [])
    assert set(world.servers.made.values()) == {1}


def test_a_server_that_missed_a_disable_closes_its_replicas_on_return(world: TabletBench) -> None:
    """Its replicas are closed when the server comes back."""
    world.servers.stop("s2")
    answer_to(world, SetTableIntent("x", TableIntent.DISABLED))
    world.servers.start("s2")
    world.turn(20, 0.5)
    assert (on_disk(world), world.transitions()) == ({ReplicaState.RESTING}, [])


def test_an_undelete_opens_the_resting_replicas_again(world: TabletBench) -> None:
    """Also under another master."""
    members = [region.members for region in world.regions()]
    deleted = answer_to(world, DeleteTable("x", wait_ms=30_000))
    assert isinstance(deleted, ms.Tables)
    assert (on_disk(world), world.states()) == ({ReplicaState.RESTING}, ["RUNNING"] * 2)
    world.fail_over()
    world.turn(10, 1.0)
    assert on_disk(world) == {ReplicaState.RESTING}
    assert isinstance(answer_to(world, UndeleteTable("x", wait_ms=30_000)), ms.Tables)
    world.turn(20, 1.0)
    assert (on_disk(world), world.is_running()) == ({ReplicaState.RUNNING}, True)
    assert [region.members for region in world.regions()] == members
    assert set(world.servers.made.values()) == {1}


def test_a_deleted_table_is_finished_once_all_replicas_rest(world: TabletBench) -> None:
    """The table is not finished while a replica takes part."""
    path = LAYOUT.table(world.table_id())
    (first, _) = world.regions()
    world.servers.servers["s2"].broken.add(first.region_id)
    assert answer_to(world, DeleteTable("x", wait_ms=1_000)) == ms.TIMED_OUT
    world.turn(20, 1.0)
    assert decode_table(world.store.nodes[path][0]).finished_ms == 0
    world.servers.servers["s2"].broken.clear()
    world.until(lambda: decode_table(world.store.nodes[path][0]).finished_ms > 0, 5.0)
    assert on_disk(world) == {ReplicaState.RESTING}


@pytest.mark.parametrize("failover", [False, True])
def test_a_purge_deletes_the_replicas_on_every_server(world: TabletBench, failover: bool) -> None:
    """A server that was away deletes its replicas when it returns."""
    table_id = world.table_id()
    world.servers.stop("s3")
    assert isinstance(answer_to(world, DeleteTable("x", wait_ms=30_000)), ms.Tables)
    if failover:
        world.fail_over()
    world.turn(80, 60.0)
    table = decode_table(world.store.nodes[LAYOUT.table(table_id)][0])
    assert table.purged_ms > 0, table
    assert [list(world.servers.servers[uuid].disk) for uuid in ("s1", "s2")] == [[], []]
    assert len(world.servers.servers["s3"].disk) == 2
    world.servers.start("s3")
    world.turn(30, 1.0)
    assert not world.servers.servers["s3"].disk
    assert not world.transitions()


def test_a_purge_deletes_tablets_that_the_new_master_has_not_heard_of(world: TabletBench) -> None:
    """It knows one tablet, because a server has reported a replica; the other one's replicas are purged all the same.

    Tried: without the other regions' records the purge ends, and rows stay."""
    table_id, (first, _) = world.table_id(), world.regions()
    assert isinstance(answer_to(world, DeleteTable("x", wait_ms=30_000)), ms.Tables)
    world.fail_over()
    keeping = world.bench.active_master.keeper
    with mock.patch.object(keeping, "_look_up"):
        keeping.keeper.table_seen(decode_table(world.store.nodes[LAYOUT.table(table_id)][0]), 1)
        keeping.keeper.region_seen(first, 1)
        world.turn(80, 60.0)
    assert decode_table(world.store.nodes[LAYOUT.table(table_id)][0]).purged_ms > 0
    assert [list(one.disk) for one in world.servers.servers.values()] == [[], [], []]


def test_a_purge_ends_the_transitions_that_the_former_master_has_left(world: TabletBench) -> None:
    """It died after the servers had deleted their replicas, before it deleted the transitions. Nobody knew them any
    more, and they stayed in the store for ever."""
    table_id = world.table_id()
    assert isinstance(answer_to(world, DeleteTable("x", wait_ms=30_000)), ms.Tables)
    with mock.patch.object(world.active_master.keeper.keeper, "transition_seen"):
        world.until(lambda: not any(one.disk for one in world.servers.servers.values()), 60.0)
    assert {one.state for one in world.transitions()} == {RegionState.CLOSED}
    world.fail_over()
    world.until(lambda: decode_table(world.store.nodes[LAYOUT.table(table_id)][0]).purged_ms > 0, 1.0)
    assert not world.transitions()


def test_a_purge_does_not_end_before_the_last_steps_of_the_servers(world: TabletBench) -> None:
    """A server deletes the files, reports that the replica is gone, and then writes CLOSED. Tried: without the wait for
    CLOSING the master forgets the table, and nobody deletes the transitions."""
    table_id = world.table_id()
    late: list[tuple[str, bytes]] = []
    change = world.store.change

    def change_late(path: str, data: bytes) -> None:
        is_transition = LAYOUT.parse_transition(path) is not None
        if is_transition and decode_transition(data).state is RegionState.CLOSED:
            late.append((path, data))
        else:
            change(path, data)

    assert isinstance(answer_to(world, DeleteTable("x", wait_ms=30_000)), ms.Tables)
    with mock.patch.object(world.store, "change", change_late):
        world.until(lambda: not any(one.disk for one in world.servers.servers.values()), 60.0)
        world.turn(20, 1.0)
    assert len(late) == 6
    assert decode_table(world.store.nodes[LAYOUT.table(table_id)][0]).purged_ms == 0
    for path, data in late:
        change(path, data)
    world.until(lambda: decode_table(world.store.nodes[LAYOUT.table(table_id)][0]).purged_ms > 0, 1.0)
    assert not world.transitions()


def test_a_purge_reads_the_regions_again_after_a_lost_connection(world: TabletBench) -> None:
    """The next call took them for read. It knew no replica of them, so the purge ended, and the rows stayed."""
    table_id = world.table_id()
    assert isinstance(answer_to(world, DeleteTable("x", wait_ms=30_000)), ms.Tables)
    world.fail_over()
    keeping = world.active_master.keeper
    results: list[Any] = []
    with mock.patch.object(keeping, "_look_up"):
        world.turn(10, 1.0)
        with mock.patch.object(store, "load_regions", side_effect=ConnectionLoss("")):
            ensureDeferred(keeping.purge(table_id)).addErrback(results.append)
            world.turn(2, 0.1)
        ensureDeferred(keeping.purge(table_id)).addCallback(results.append)
        world.turn(2, 0.1)
    lost, left = results
    assert isinstance(lost.value, ConnectionLoss)
    assert left > 0


def test_a_single_tablet_is_unassigned_and_assigned(world: TabletBench) -> None:
    """`rk region unassign` and `assign`."""
    (first, _) = world.regions()
    closed = answer_to(world, ms.SetRegionIntent(first.region_id, False, wait_ms=30_000))
    assert isinstance(closed, ms.Accepted)
    assert closed.detail == f"{first.region_id} is closed: 0 of 3 replicas take part"
    opened = answer_to(world, ms.SetRegionIntent(first.region_id, True, wait_ms=30_000))
    assert isinstance(opened, ms.Accepted)
    assert opened.detail == f"{first.region_id} is open: 3 of 3 replicas take part"


def test_unsupported_requests_are_rejected_with_the_reason(world: TabletBench) -> None:
    """Another schema and a rename are supported."""
    (first, _) = world.regions()
    assert world.bench.ask(ms.MoveRegion(first.region_id, 1, "s2")) == ms.BAD_REQUEST, "it has a member already"
    assert world.bench.ask(ms.RetryRegion(first.region_id, 1)) == ms.BAD_REQUEST
    assert world.bench.ask(ms.RetryRegion(first.region_id)) == ms.BAD_REQUEST, "no member is parked"
    assert world.bench.ask(ms.RetryRegion(first.region_id, 9)) == ms.NOT_FOUND
    assert isinstance(answer_to(world, AlterTable("x", schema="other", wait_ms=30_000)), ms.Tables)
    renamed = answer_to(world, AlterTable("x", name="y", wait_ms=30_000))
    assert isinstance(renamed, ms.Tables)
    assert renamed.tables[0].table.name == "y"


def test_a_drain_keeps_members_that_no_other_server_can_take(world: TabletBench) -> None:
    """The reply says so, and the server gets no new ones."""
    answers: list[object] = []
    world.bench.ask_into(ms.DrainServer("s1", True, wait_ms=10_000), answers)
    world.bench.go_on()
    world.store.change(LAYOUT.draining_mark("s1"))  # this store notifies watchers only of servers' writes
    world.turn(5)
    (drained,) = answers
    assert isinstance(drained, ms.Accepted)
    assert "2 tablets keep a member there: table x has 3 replicas, and without s1 only 2 servers" in drained.detail
    assert world.bench.ask(CreateTable("z", replication=3)) == ms.BAD_REQUEST
    assert len(world.servers.servers["s1"].disk) == 2


def test_columns_of_tablets_are_changed(world: TabletBench) -> None:
    """No replica has to follow: rows carry their version, and leaders learn it from the writes."""
    key = ColumnSpec("k", ColumnType.STRING, key=True)
    request = CreateTable("c", replication=3, columns=[key, ColumnSpec("v", ColumnType.STRING)])
    assert not isinstance(world.bench.ask(request), str)
    world.turn()
    column = ColumnSpec("w", ColumnType.STRING, nullable=True)
    altered = answer_to(world, AlterTable("c", steps=[AddColumn(column)], wait_ms=30_000))
    assert isinstance(altered, ms.Tables)
    table = altered.tables[0].table
    assert (table.schema_version, table.state, table.fully_applied_schema) == (1, TableState.RUNNING, None)
    assert isinstance(table.schema, Schema)
    assert [one.name for one in table.schema.columns] == ["k", "v", "w"]
