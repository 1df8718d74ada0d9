"""Regions that kill their servers, and regions with damaged rows: parked, with the reason, also after failovers."""

from __future__ import annotations

import msgspec

from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.diagnose.explain import explain
from regions.messages import NextActor
from regions.messages.heartbeat import OPEN, ReplicaReport
from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.transitions.hazards import DEATHS_MAX, deaths_after
from regions.transitions.states import Actor, Cause
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition

SERVERS = [server(name) for name in "abcd"]


def opening_on(cluster: ModelCluster, name: str = "r1") -> str:
    """Let the silent server with the order begin to open a region, and do no more. Return its uuid."""
    record, version = cluster.unassigned[f"{name}-0"]
    assert record.state is RegionState.OFFLINE
    assert record.destination is not None
    begun = msgspec.structs.replace(record, state=RegionState.OPENING)
    cluster.step(Actor.SERVER, begun, version, Cause.OPEN_ORDER)
    cluster.see(name)
    cluster.run()
    return record.destination.uuid


def killing(*names: str) -> ModelCluster:
    """Return regions to open, on servers that only begin to open them."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000))
    cluster.put(*(region(name) for name in names))
    cluster.silent = {one.uuid for one in SERVERS}
    cluster.start(*SERVERS)
    return cluster


def found(cluster: ModelCluster, name: str = "r1") -> TransitionRecord:
    return cluster.unassigned[f"{name}-0"][0]


def test_a_region_whose_openings_end_in_deaths_is_parked() -> None:
    """The second server's death is the last; the names in the reason survive a change of the master in between."""
    for takes_over in (False, True):
        cluster = killing("r1")
        cluster.kill(opening_on(cluster))
        assert (found(cluster).deaths, found(cluster).parked) == (1, False)
        if takes_over:
            cluster.successor()
        last = opening_on(cluster)
        cluster.kill(last)
        record = found(cluster)
        assert (record.state, record.deaths, record.parked) == (RegionState.OFFLINE, DEATHS_MAX, True)
        assert record.last_error == f"2 servers died one after the other while they opened it, the last was {last}@1"
        sent = len(cluster.sent)
        cluster.successor()
        cluster.pass_time(60_000, 5_000)
        assert len(cluster.sent) == sent, "nobody gets it"
        assert "2 servers died" in cluster.problems()[0]
        cluster.handle(ev.RetryRequested("r1-0"))
        assert (found(cluster).deaths, found(cluster).parked) == (0, False)


def test_a_death_before_it_began_accuses_nobody() -> None:
    """In OFFLINE no destination has begun; and a server that stopped cleanly was not killed."""
    cluster = killing("r1")
    for _ in range(2):
        destination = found(cluster).destination
        assert destination is not None
        cluster.kill(destination.uuid)
    assert found(cluster).deaths == 0
    uuid = opening_on(cluster)
    leaving = msgspec.structs.replace(cluster.servers[uuid], leaving=True)
    cluster.join(leaving)
    cluster.kill(uuid)
    assert found(cluster).deaths == 0


def test_a_death_that_no_opening_followed_is_forgotten() -> None:
    """Opened after one death: the transition is deleted, and with it the count."""
    cluster = killing("r1")
    cluster.kill(opening_on(cluster))
    cluster.silent.clear()
    cluster.successor()
    assert cluster.where() is not None
    assert cluster.unassigned == {}


def test_the_second_death_accuses_one_region() -> None:
    """A server dies during ten opens: from then on a server gets only one of these regions at a time."""
    names = [f"r{number}" for number in range(10)]
    cluster = killing(*names)
    victim = found(cluster, "r0").destination
    assert victim is not None
    theirs = [name for name in names if found(cluster, name).destination == victim]
    assert len(theirs) > 1
    for name in theirs:
        opening_on(cluster, name)
    sent = len(cluster.sent)
    cluster.kill(victim.uuid)
    ordered: dict[str, list[str]] = {}
    for effect in cluster.sent[sent:]:
        assert isinstance(effect, fx.SendOpen)
        for order in effect.orders:
            ordered.setdefault(effect.server.uuid, []).append(order.transition.region_id)
    assert all(len(asked) == 1 for asked in ordered.values()), ordered
    assert {name for name in theirs if found(cluster, name).deaths != 1} == set()
    killer = next(iter(ordered.values()))[0]
    cluster.kill(opening_on(cluster, killer))
    assert [name for name in names if found(cluster, name).parked] == [killer]
    cluster.silent.clear()
    cluster.successor()
    assert [name for name in names if cluster.where(name) is None] == [killer]


def test_deaths_count_openings_alone() -> None:
    """Only in OPENING, only because of a death, and not for a server that left cleanly."""
    opening = transition(RegionState.OPENING, destination=at("a"))
    nobody: set[Incarnation | None] = set()
    assert deaths_after(opening, Cause.SERVER_DEATH, nobody) == 1
    assert deaths_after(opening, Cause.DEADLINE, nobody) == 0
    assert deaths_after(opening, Cause.SERVER_DEATH, {at("a")}) == 0
    assert deaths_after(msgspec.structs.replace(opening, deaths=1), Cause.SERVER_DEATH, nobody) == 2
    assert deaths_after(transition(RegionState.OPENED, destination=at("a")), Cause.SERVER_DEATH, nobody) == 0
    assert deaths_after(None, Cause.SERVER_DEATH, nobody) == 0


# --- damage -----------------------------------------------------------------------------------------------------------


def reported(cluster: ModelCluster, why: str = "row 'b' is damaged", uuid: str = "a") -> None:
    report = ReplicaReport("r1", "t1", 0, OPEN, damage=why)
    cluster.handle(ev.ReplicasReported(at(uuid), [report]))


def closing() -> ModelCluster:
    """Return a region that is open on a, which has read a damaged row."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000))
    cluster.put(region(on=at("a")))
    cluster.damage = {"r1-0": "row 'b' is damaged"}
    cluster.start(*SERVERS)
    reported(cluster)
    return cluster


def test_a_damaged_region_is_closed_and_parked() -> None:
    """The server closes it; it is opened nowhere else; `rk why` names the fault, and who must act."""
    cluster = closing()
    record = found(cluster)
    assert (record.state, record.parked, record.last_error) == (RegionState.OFFLINE, True, "row 'b' is damaged")
    assert record.damage == record.last_error
    assert cluster.open == {}
    replica = cluster.assigner.world.replicas["r1-0"]
    said = explain(replica, cluster.assigner.world, cluster.config, cluster.now)
    assert said.actor is NextActor.OPERATOR
    assert "because its rows are damaged: row 'b' is damaged" in said.headline
    cluster.successor()
    cluster.pass_time(30_000, 5_000)
    assert found(cluster).parked
    cluster.damage = {}
    cluster.handle(ev.RetryRequested("r1-0"))
    cluster.pass_time(5_000)
    assert cluster.where() is not None


def test_a_master_that_takes_over_at_closed_parks_it() -> None:
    """The reason is in the record, not in the master's memory."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000))
    cluster.put(region())
    closed = transition(RegionState.CLOSED, source=at("a"), damage="row 'b' is damaged", epoch=1)
    cluster.put_transition(closed)
    cluster.start(*SERVERS)
    assert (found(cluster).parked, found(cluster).last_error) == (True, "row 'b' is damaged")


def test_damage_told_by_a_former_owner_means_nothing() -> None:
    """The report of a server that no longer has the region."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000))
    cluster.put(region(on=at("a")))
    cluster.start(*SERVERS)
    reported(cluster, uuid="b")
    assert cluster.where() == "a"
