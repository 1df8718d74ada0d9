"""ALTERING until every region follows (DD-07, HB-15), and the symptoms of KUDU-1353 and KUDU-1374 (DD-08, DD-09)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regions.assign.catalog.schema_rollout import RolloutState, rollout_state
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import OPEN, Order, Replica, Server
from regions.messages.heartbeat import ReplicaReport
from regions.records.model import RegionState, TableState
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition

A, B = server("a"), server("b")


def resting() -> ModelCluster:
    """Return three regions at rest: two on a, one on b."""
    cluster = ModelCluster()
    cluster.put(region("r1", at("a")), region("r2", at("a")), region("r3", at("b")))
    return cluster


def state(cluster: ModelCluster) -> TableState:
    return cluster.tables["t1"][0].state


def test_every_server_is_told_once_and_the_table_runs_again() -> None:
    """DD-07: one order to each server, RUNNING when all have answered."""
    cluster = resting()
    cluster.start(A, B)
    cluster.alter()
    assert [(one.server.uuid, len(one.orders)) for one in cluster.told] == [("a", 2), ("b", 1)]
    assert state(cluster) is TableState.RUNNING
    assert set(cluster.follows.values()) == {1}
    cluster.pass_time(5_000)
    assert len(cluster.told) == 2


def test_a_server_that_does_not_answer_is_told_again_until_it_does() -> None:
    """OC-09: the table waits for the server, and shows the progress."""
    cluster = resting()
    cluster.deaf = {"b"}
    cluster.start(A, B)
    cluster.alter()
    cluster.pass_time(20_000)
    table = cluster.assigner.world.tables["t1"]
    assert (state(cluster), table.altered, list(table.behind)) == (TableState.ALTERING, 2, ["r3-0"])
    asks = sum(one.server.uuid == "b" for one in cluster.told)
    assert 3 < asks < 12, "again and again, with growing pauses"
    cluster.deaf = set()
    cluster.pass_time(31_000)
    assert state(cluster) is TableState.RUNNING


def test_a_refused_end_of_an_alteration_is_written_again() -> None:
    """DD-07: the table's record changed at the same time; the master ends the alteration at the new version."""
    cluster = resting()
    refused: list[fx.FinishAltering] = []
    finish = cluster._finish_altering

    def refuse_once(effect: fx.FinishAltering) -> None:
        if refused:
            finish(effect)
            return
        refused.append(effect)
        record, version = cluster.tables["t1"]
        cluster.tables["t1"] = (record, version + 1)
        cluster.assigner.handle(ev.TableSeen(*cluster.tables["t1"]), cluster.now)

    cluster._finish_altering = refuse_once  # type: ignore[method-assign]
    cluster.start(A, B)
    cluster.alter()
    cluster.pass_time(2_000)
    assert (len(refused), state(cluster)) == (1, TableState.RUNNING)


def test_the_death_of_the_server_that_has_not_answered_ends_the_wait() -> None:
    """Its regions are opened elsewhere, by orders with the new version."""
    cluster = resting()
    cluster.deaf = {"b"}
    cluster.start(A, B)
    cluster.alter()
    assert state(cluster) is TableState.ALTERING
    cluster.kill("b")
    cluster.pass_time(2_000)
    assert state(cluster) is TableState.RUNNING
    assert (cluster.where("r3"), cluster.follows["r3-0"]) == ("a", 1)


def test_a_second_alteration_begins_anew() -> None:
    """Answers about version 1 say nothing about version 2."""
    cluster = resting()
    cluster.deaf = {"b"}
    cluster.start(A, B)
    cluster.alter()
    cluster.alter()
    cluster.pass_time(1_000)
    assert cluster.follows["r1-0"] == 2
    assert list(cluster.assigner.world.tables["t1"].behind) == ["r3-0"]
    cluster.deaf = set()
    cluster.pass_time(10_000)
    assert (state(cluster), cluster.follows["r3-0"]) == (TableState.RUNNING, 2)


def test_the_next_master_goes_on() -> None:
    """OC-11, KUDU-1374 (DD-09): the master dies between the write and its orders; the next one needs only the
    record."""
    cluster = resting()
    cluster.deaf = {"a", "b"}
    cluster.start(A, B)
    cluster.alter()
    cluster.deaf = set()
    cluster.told.clear()
    cluster.successor()
    assert state(cluster) is TableState.RUNNING
    assert set(cluster.follows.values()) == {1}


def test_a_report_is_as_good_as_an_answer() -> None:
    """HB-15: a server's report settles the replica; after a report of an earlier version the master sends the schema
    again."""
    cluster = resting()
    cluster.deaf = {"a", "b"}
    cluster.start(A, B)
    cluster.alter()

    def report(server_id: str, name: str, version: int, state: str = "OPEN") -> None:
        replicas = [ReplicaReport(name, "t1", 0, state, version)]
        cluster.handle(ev.ReplicasReported(at(server_id), replicas))

    report("a", "r1", 1)
    report("a", "r2", 0)
    report("b", "r1", 1)  # not its own report
    report("b", "r3", 1, "CLOSING")
    behind = cluster.assigner.world.tables["t1"].behind
    assert sorted(behind) == ["r2-0", "r3-0"]
    report("a", "r2", 1)
    report("b", "r3", 1)
    cluster.pass_time(1_000)
    assert state(cluster) is TableState.RUNNING
    cluster.deaf = set()
    cluster.told.clear()
    cluster.assigner.world.replicas["r3-0"].schema_version = -1  # opened anew, by an earlier order
    report("b", "r3", 0)
    cluster.pass_time(60_000)
    assert [one.orders[0].region_id for one in cluster.told] == ["r3"]


# --- KUDU-1353 --------------------------------------------------------------------------------------------------------


def taken_over() -> ModelCluster:
    """Return a master that knows only the store: no server has reported to it, and none will.

    KUDU-1353: only reports filled a leader's cache of a tablet's replicas, and they contain only changes. So after an
    election the cache stayed empty for tablets at rest.
    """
    cluster = resting()
    cluster.start(A, B)
    cluster.successor()
    return cluster


def test_kudu_1353_an_alteration_does_not_time_out() -> None:
    """DD-08, first symptom: no server got the schema, so the table was ALTERING forever."""
    cluster = taken_over()
    cluster.alter()
    assert state(cluster) is TableState.RUNNING
    assert set(cluster.follows.values()) == {1}


def test_kudu_1353_a_table_at_rest_has_replicas() -> None:
    """DD-08, second symptom: tables and tablets had no locations. Ours are in the catalog's records (MD-04)."""
    cluster = taken_over()
    assert {name: cluster.where(name) for name in ("r1", "r2", "r3")} == {"r1": "a", "r2": "a", "r3": "b"}
    assert cluster.assigner.world.tables["t1"].open_replicas == 3


def test_kudu_1353_a_deleted_tables_tablets_go() -> None:
    """DD-08, third symptom: the delete succeeded, but no server was ordered to drop the tablets."""
    cluster = taken_over()
    cluster.change_table(state=TableState.REMOVED)
    assert cluster.open == {}
    assert cluster.tables["t1"][0].finished_ms > 0


# --- how a replica stands ---------------------------------------------------------------------------------------------


def replica_of(cluster: ModelCluster) -> Replica:
    return cluster.assigner.world.replicas["r1-0"]


def _awaited(replica: Replica, owner: Server) -> None:
    replica.schema_version = 1


def _fenced(replica: Replica, owner: Server) -> None:
    owner.fencing = "slow"


def _nothing(replica: Replica, owner: Server) -> None:
    pass


def _ordered(version: int) -> Callable[[Replica, Server], None]:
    def order(replica: Replica, owner: Server) -> None:
        replica.order = Order(OPEN, owner, 0, 0)
        replica.order.first_sent_ms = 1
        replica.order.schema_version = version

    return order


@pytest.mark.parametrize(
    ("transition_state", "change", "found"),
    [
        (None, _nothing, RolloutState.BEHIND),
        (None, _awaited, RolloutState.CURRENT),
        (None, _fenced, RolloutState.UNCERTAIN),
        (RegionState.CLOSING, _nothing, RolloutState.CURRENT),
        (RegionState.CLOSED, _nothing, RolloutState.CURRENT),
        (RegionState.OFFLINE, _nothing, RolloutState.CURRENT),
        (RegionState.OFFLINE, _ordered(1), RolloutState.CURRENT),
        (RegionState.OFFLINE, _ordered(0), RolloutState.UNCERTAIN),
        (RegionState.OPENING, _nothing, RolloutState.UNCERTAIN),
        (RegionState.OPENED, _nothing, RolloutState.UNCERTAIN),
    ],
)
def test_standing(
    transition_state: RegionState | None, change: Callable[[Replica, Server], None], found: RolloutState
) -> None:
    """A replica is behind only if a server has it, or may have been ordered to open it, under an earlier version."""
    cluster = resting()
    cluster.deaf = {"a", "b"}
    cluster.start(A, B)
    cluster.alter()
    replica = replica_of(cluster)
    owner = cluster.assigner.world.servers["a"]
    if transition_state is not None:
        replica.transition = transition(transition_state, at("a"), at("b"))
        replica.order = None
    change(replica, owner)
    assert rollout_state(replica) is found
