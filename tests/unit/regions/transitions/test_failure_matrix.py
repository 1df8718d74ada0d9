"""S4 §4 and §5, cell by cell: the server-failure matrix and the failover matrix, carried out on a model store.

In each cell the region's transition is in some state when its source or its destination dies. There is a plan (the
other server is named and alive) or none. The deciding master has observed everything, or takes over at that very moment
with only the store. Afterwards the region is open exactly once, on a live server, by legal steps only (`ModelCluster`
asserts that), and the master's first step is that of the matrix. X1, X2, X3, X5 and X6 are cells, too.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from regions.assign.assigner import Assigner
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.records.model import Intent, RegionState, ReplicaLocation, TableIntent
from regions.transitions.states import Actor, Cause
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition

A, B, C = server("a"), server("b"), server("c")
OFFLINE, OPENING, OPENED, CLOSING, CLOSED = (
    RegionState.OFFLINE,
    RegionState.OPENING,
    RegionState.OPENED,
    RegionState.CLOSING,
    RegionState.CLOSED,
)


class Cell(NamedTuple):
    """One cell: region r1 moves from a to b (or to nowhere yet) and is in `state` when `dead` dies."""

    row: str
    state: RegionState
    dead: str
    plan: bool
    #: The master's first write after the death, None for none; and the destination of its OFFLINE, "" for any.
    first: Cause | None
    towards: str = ""
    ends_on: str = ""


DEATH, MOVES, DONE, REPLAN = Cause.SERVER_DEATH, Cause.MOVE_CONTINUES, Cause.DONE, Cause.REPLAN

CELLS = [
    # RF-04 OFFLINE: after any death, OPEN goes to a live destination; a dead destination is replaced.
    Cell("RF-04 source dead", OFFLINE, "a", True, DONE, ends_on="b"),
    Cell("RF-04 source dead, no plan", OFFLINE, "a", False, REPLAN),
    Cell("RF-04 destination dead", OFFLINE, "b", True, DEATH),
    # RF-05 CLOSING and X1: a dead source is forced OFFLINE, to the plan's destination if that lives; a dead
    # destination changes nothing before the live source has closed.
    Cell("RF-05 source dead", CLOSING, "a", True, DEATH, towards="b", ends_on="b"),
    Cell("RF-05 source dead, no plan", CLOSING, "a", False, DEATH),
    Cell("RF-05 destination dead (X1)", CLOSING, "b", True, DEATH),
    # RF-06 CLOSED: a dead source is nothing new; a dead destination is replaced.
    Cell("RF-06 source dead", CLOSED, "a", True, MOVES, towards="b", ends_on="b"),
    Cell("RF-06 source dead, no plan", CLOSED, "a", False, MOVES),
    Cell("RF-06 destination dead", CLOSED, "b", True, DEATH),
    # RF-07 OPENING: a dead source is ignored, a dead destination forced OFFLINE.
    Cell("RF-07 source dead", OPENING, "a", True, DONE, ends_on="b"),
    Cell("RF-07 destination dead", OPENING, "b", True, DEATH),
    # RF-08 OPENED (X5): the same, although the open had succeeded.
    Cell("RF-08 source dead", OPENED, "a", True, DONE, ends_on="b"),
    Cell("RF-08 destination dead", OPENED, "b", True, DEATH),
]
MASTERS = ["same master", "master dies too"]


def moving(state: RegionState, *, plan: bool = True, others: tuple[str, ...] = ("a", "b", "c")) -> ModelCluster:
    """Return region r1 on its way from a to b, in `state`. From now on servers obey orders, and finish what they have
    begun."""
    cluster = ModelCluster()
    destination = at("b") if plan else None
    open_at = {CLOSING: at("a"), OPENED: at("b")}.get(state)
    cluster.put(region(on=open_at))
    if state not in (CLOSING, OPENED):
        cluster.put(msgspec.structs.replace(region(), replicas=(ReplicaLocation(0, "a"),)))
    cluster.put_transition(transition(state, at("a"), destination, intent=Intent.OPEN))
    cluster.assigner.load(
        cluster.tables.values(),
        cluster.regions.values(),
        [one for one in (A, B, C) if one.uuid in others],
        cluster.unassigned.values(),
        [],
        cluster.now,
    )
    cluster.servers = {one.uuid: one for one in (A, B, C) if one.uuid in others}
    return cluster


def finish_what_was_begun(cluster: ModelCluster) -> None:
    """Let live servers in the middle of CLOSING or OPENING continue, as far as the store allows."""
    found = cluster.unassigned.get("r1-0")
    if found is None:
        return
    record, version = found
    alive = {one.incarnation for one in cluster.servers.values()}
    if record.state is CLOSING and record.source in alive:
        closed = msgspec.structs.replace(record, state=CLOSED)
        assert cluster.step(Actor.SERVER, closed, version, Cause.CLOSE_DONE) >= 0
        cluster.open.pop("r1-0")
        cluster.see()
    elif record.state is OPENING and record.destination in alive:
        opened = msgspec.structs.replace(record, state=OPENED)
        cluster.step(Actor.SERVER, opened, version, Cause.OPEN_DONE)
        assert record.destination is not None
        cluster.open["r1-0"] = record.destination
        stored, at_version = cluster.regions["r1"]
        location = ReplicaLocation(0, record.destination.uuid, record.destination.start_code)
        cluster.regions["r1"] = (stored.with_location(location), at_version + 1)
        cluster.see()
    cluster.run()


def is_settled(cluster: ModelCluster) -> bool:
    return cluster.unassigned == {} and len(cluster.open) == 1


@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.row)
def test_region_server_failure(cell: Cell, master: str) -> None:
    """RF-01 to RF-08: every state, the dead server as source and as destination, with and without a plan."""
    cluster = moving(cell.state, plan=cell.plan)
    # The death is noticed before any other decision: by the same master, or by one that only finds the server dead.
    if master == "same master":
        cluster.assigner.begin(cluster.now)
        cluster.assigner.take(cluster.now)  # the pending effects are lost with the server's connection
    dead = cluster.servers.pop(cell.dead)
    cluster.open = {key: owner for key, owner in cluster.open.items() if owner != dead.incarnation}
    if master == "same master":
        cluster = _retold(cluster, cell.dead)
    else:
        cluster.successor()
    finish_what_was_begun(cluster)
    cluster.run()
    assert is_settled(cluster), cluster.unassigned
    owner = cluster.open["r1-0"]
    assert owner in {one.incarnation for one in cluster.servers.values()}
    if cell.ends_on:
        assert owner == at(cell.ends_on)
    first = cluster.writes[0]
    assert first.cause is cell.first, cluster.writes
    if cell.towards:
        assert isinstance(first, fx.WriteOffline)
        assert first.record.destination == at(cell.towards)


def _retold(cluster: ModelCluster, dead: str) -> ModelCluster:
    """Return the same master before its first decision: it loaded, then the server died, then it began."""
    fresh = Assigner(cluster.assigner.epoch, cluster.config)
    alive = [*cluster.servers.values(), next(one for one in (A, B, C) if one.uuid == dead)]
    fresh.load(cluster.tables.values(), cluster.regions.values(), alive, cluster.unassigned.values(), [], cluster.now)
    cluster.assigner = fresh
    fresh.handle(ev.ServerDown(dead), cluster.now)
    fresh.begin(cluster.now)
    cluster.run()
    return cluster


def test_a_live_source_is_never_overruled() -> None:
    """X1: while the source closes and lives, nothing is written, however many destinations die."""
    cluster = moving(CLOSING)
    cluster.silent = {"a"}
    cluster.assigner.begin(cluster.now)
    cluster.run()
    cluster.kill("b")
    cluster.kill("c")
    cluster.pass_time(30_000)
    assert cluster.writes == []
    assert cluster.state() is CLOSING


class Failover(NamedTuple):
    """A region that a new master finds in `state`; both servers live."""

    row: str
    state: RegionState | None
    intent: TableIntent
    #: The new master's first write, before any server has acted, and its order.
    first: Cause | None
    order: type[fx.SendOpen] | type[fx.SendClose] | None = None


ON, OFF = TableIntent.ENABLED, TableIntent.DISABLED
FAILOVERS = [
    Failover("MF-02 nothing in transition", None, ON, None),
    Failover("MF-04 OFFLINE", OFFLINE, ON, None, fx.SendOpen),
    Failover("MF-05 CLOSING", CLOSING, ON, None),
    Failover("MF-06 CLOSED", CLOSED, ON, Cause.MOVE_CONTINUES),
    Failover("MF-07 OPENING", OPENING, ON, None),
    Failover("MF-08 OPENED", OPENED, ON, Cause.DONE),
    Failover("X6 OFFLINE of a disabled table", OFFLINE, OFF, Cause.DO_NOT_REOPEN),
    Failover("X6 CLOSING of a disabled table", CLOSING, OFF, None),
    Failover("X6 CLOSED of a disabled table", CLOSED, OFF, Cause.DO_NOT_REOPEN),
    Failover("X6 OPENING of a disabled table", OPENING, OFF, None),
    Failover("X6 OPENED of a disabled table", OPENED, OFF, Cause.DONE),
    Failover("X6 open region of a disabled table", None, OFF, None, fx.SendClose),
]


@pytest.mark.parametrize("row", FAILOVERS, ids=lambda row: row.row)
def test_master_failover(row: Failover) -> None:
    """MF-01 to MF-08, X6: the new master's first step, and an end that follows the intent."""
    cluster = moving(row.state) if row.state is not None else ModelCluster()
    if row.state is None:
        cluster.put(region(on=at("a")))
        cluster.servers = {one.uuid: one for one in (A, B, C)}
    record, version = cluster.tables["t1"]
    cluster.tables["t1"] = (msgspec.structs.replace(record, intent=row.intent), version + 1)
    cluster.assigner = Assigner(cluster.assigner.epoch + 1, cluster.config)
    cluster.start(A, B, C, run=False)
    effects = cluster.assigner.take(cluster.now)
    written = [one for one in effects if isinstance(one, fx.WriteOffline | fx.DeleteTransition)]
    sent = [one for one in effects if isinstance(one, fx.SendOpen | fx.SendClose)]
    assert [one.cause for one in written] == ([] if row.first is None else [row.first])
    assert [type(one) for one in sent] == ([] if row.order is None else [row.order])
    for effect in effects:
        cluster._carry_out(effect)
    finish_what_was_begun(cluster)
    cluster.run()
    assert cluster.unassigned == {}
    assert len(cluster.open) == (1 if row.intent is ON else 0)


@pytest.mark.parametrize("state", list(RegionState))
@pytest.mark.parametrize("dead", [("a",), ("b",), ("a", "b"), ("a", "b", "c")], ids="+".join)
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_masters_and_servers_die_together(state: RegionState, dead: tuple[str, ...], when: str) -> None:
    """RF with MF: servers die before, while or after the next master takes over; X8: without any server the master
    waits."""
    cluster = moving(state)
    cluster.assigner.begin(cluster.now)
    if when == "before":
        cluster.assigner.take(cluster.now)
        _die(cluster, dead)
        cluster.successor()
    elif when == "between":
        cluster.assigner = Assigner(2, cluster.config)
        cluster.start(*cluster.servers.values(), run=False)
        effects = cluster.assigner.take(cluster.now)
        for uuid in dead:
            cluster.kill(uuid, run=False)
        for effect in effects:  # its decision is sent after the death
            cluster._carry_out(effect)
        cluster.run()
    else:
        cluster.successor()
        for uuid in dead:
            cluster.kill(uuid)
    finish_what_was_begun(cluster)
    cluster.pass_time(2_000)
    if set(dead) == {"a", "b", "c"}:
        assert cluster.open == {}
        assert any("no live server" in line for line in cluster.problems())
        cluster.join(server("b", 2))
    cluster.pass_time(70_000)
    assert is_settled(cluster), (cluster.unassigned, cluster.open)


def _die(cluster: ModelCluster, dead: tuple[str, ...]) -> None:
    for uuid in dead:
        gone = cluster.servers.pop(uuid)
        cluster.open = {key: owner for key, owner in cluster.open.items() if owner != gone.incarnation}
