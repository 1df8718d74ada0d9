"""Cause ids: the events that begin one, and all work that carries the id."""

from __future__ import annotations

import msgspec
import pytest

from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.causes import SORTS, Causes, describe
from regions.cluster.limits import AssignerConfig
from regions.messages import CloseOrder, OrderOutcome, OrderResult
from regions.messages.heartbeat import ReplicaReport
from regions.records.model import FenceRecord, RegionState, TableIntent, TableState, WorkOrigin
from regions.records.znodes import decode_transition, encode
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition

A, B, C = server("a"), server("b"), server("c")
MOVE = WorkOrigin("e1-99", "request: MoveRegion r1 from 127.0.0.1:4711")


def ids(cluster: ModelCluster) -> list[str]:
    """Return the cause ids of the master's writes and of the orders to servers, each once, in order."""
    found = [one for effect in [*cluster.writes, *cluster.sent] for one in fx.cause_ids(effect)]
    return list(dict.fromkeys(found))


def begun(cluster: ModelCluster) -> list[str]:
    """Return the descriptions of causes that began since the last call."""
    causes = cluster.assigner.causes
    found, causes.begun = causes.begun, []
    return [one.text for one in found]


def two_servers(*names: str) -> ModelCluster:
    cluster = ModelCluster()
    cluster.put(*(region(name, on=at("a")) for name in names))
    cluster.start(A, B)
    assert begun(cluster) == [], "what is at rest needs no work"
    return cluster


def test_ids_count_the_beginnings_of_an_epoch() -> None:
    causes = Causes(12)
    found = [causes.begin("timer: tick").cause_id for _ in range(17)]
    assert (found[0], found[-1]) == ("e12-1", "e12-11")
    assert [one.cause_id for one in causes.begun] == found


def test_what_begins_nothing_uses_no_id() -> None:
    """A heartbeat without changes, a tick without a due deadline: there are a thousand a second."""
    cluster = two_servers("r1")
    for _ in range(20):
        cluster.pass_time(500)
        cluster.handle(ev.ReplicasReported(A.incarnation, [ReplicaReport("r1", "t1", 0, "OPEN", 0)]))
    assert begun(cluster) == []
    cluster.kill("a")
    assert ids(cluster) == ["e1-1"]


def test_a_move_is_one_cause_from_the_request_to_the_end() -> None:
    """CLOSE, the server's CLOSING and CLOSED, OFFLINE, OPEN, OPENING, OPENED, the deletion."""
    cluster = two_servers("r1", "r2")
    cluster.assigner.handle(ev.MoveRequested("r1-0", "b"), cluster.now, MOVE)
    cluster.run()
    assert cluster.where() == "b"
    assert ids(cluster) == [MOVE.cause_id]
    [close] = [effect.orders[0] for effect in cluster.sent if isinstance(effect, fx.SendClose)]
    assert isinstance(close, CloseOrder)
    assert close.origin == MOVE, "with its words: the server's first step takes them into the history"
    assert {step.cause_id for step in cluster.assigner.history} == {MOVE.cause_id}


def test_a_new_master_goes_on_under_the_cause_of_the_former() -> None:
    """MF-04: the work that it finds was begun by an event that it has not seen."""
    cluster = ModelCluster()
    cluster.put(region())
    cluster.put_transition(transition(RegionState.OFFLINE, None, at("b"), origin=WorkOrigin("e4-2a")))
    cluster.assigner.epoch = 5
    cluster.start(A, B)
    assert cluster.where() == "b"
    assert ids(cluster) == ["e4-2a"]


@pytest.mark.parametrize("state", [RegionState.OFFLINE, RegionState.OPENING, RegionState.CLOSED])
def test_the_death_of_a_server_begins_something_new(state: RegionState) -> None:
    """The transition continues, and its history has the reason in the words of the log."""
    cluster = ModelCluster()
    cluster.put(region())
    record = transition(state, at("gone"), at("b"), origin=WorkOrigin("e0-7", "request: MoveRegion r1"))
    cluster.put_transition(record)
    cluster.silent = {"b"}
    cluster.start(A, B)
    cluster.kill("b")
    assert cluster.where() == "a"
    [after] = [one for one in cluster.writes if isinstance(one, fx.WriteOffline) and one.record.destination == at("a")]
    assert after.origin is not None
    assert after.origin.text == "znode: the registration of server b is gone"
    assert after.record.origin == WorkOrigin(after.origin.cause_id), "the words are in the history, not in the znode"
    assert after.origin.cause_id != "e0-7"


def test_a_region_that_waits_for_a_server_keeps_its_cause() -> None:
    """The arrival of a server is not the reason why the region is opened."""
    cluster = ModelCluster()
    cluster.put(region())
    cluster.start()
    [first] = begun(cluster)
    assert first == "takeover: epoch 1 begins, failover"
    cluster.join(A)
    assert cluster.where() == "a"
    assert ids(cluster) == ["e1-1"]


def test_disabling_is_why_a_region_is_closed_also_when_its_open_had_to_end_first() -> None:
    cluster = ModelCluster()
    cluster.put(region())
    cluster.silent = {"a", "b"}
    cluster.start(A, B)
    offline, version = cluster.unassigned["r1-0"]
    assert offline.destination is not None
    opened = msgspec.structs.replace(offline, state=RegionState.OPENED)
    cluster.unassigned["r1-0"] = (opened, version + 2)
    cluster.open["r1-0"] = offline.destination
    record, table_version = cluster.tables["t1"]
    cluster.tables["t1"] = (msgspec.structs.replace(record, intent=TableIntent.DISABLED), table_version + 1)
    asked = WorkOrigin("e1-77", "request: SetTableIntent orders")
    cluster.assigner.handle(ev.TableSeen(*cluster.tables["t1"]), cluster.now, asked)
    cluster.silent = set()
    cluster.see()
    cluster.run()
    assert cluster.unassigned == {}
    assert cluster.open == {}
    closes = [effect.orders[0].origin for effect in cluster.sent if isinstance(effect, fx.SendClose)]
    assert closes == [asked]
    assert cluster.assigner.world.replicas["r1-0"].origin is None, "nothing is being done any more"


def test_servers_are_emptied_because_of_what_marked_them() -> None:
    """RT-12, X10: a drain; then the fence of a server that does not close."""
    cluster = two_servers("r1")
    drain = WorkOrigin("e1-50", "request: DrainServer a")
    cluster.assigner.handle(ev.DrainingSeen(["a"]), cluster.now, drain)
    cluster.run()
    assert cluster.where() == "b"
    assert ids(cluster) == ["e1-50"]
    fence = WorkOrigin("e1-51", "request: FenceServer b")
    cluster.join(C)
    cluster.writes.clear()
    cluster.sent.clear()
    cluster.assigner.handle(ev.FenceRequested("b", "asked for"), cluster.now, fence)
    cluster.run()
    assert cluster.fences["b"].origin == fence, "the next master goes on under it"
    cluster.stop_serving("b")
    cluster.pass_time(60_000)
    assert cluster.where() == "c"
    assert ids(cluster) == ["e1-51"]


def test_a_retry_begins_something_new() -> None:
    """X11: the parked region's own cause has ended with the last attempt."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000, attempts_max=1, create_timeout_ms=10**9))
    cluster.put(region())
    cluster.failing = {"a": "no disk"}
    cluster.start(A)
    assert cluster.unassigned["r1-0"][0].parked
    cluster.failing = {}
    retry = WorkOrigin("e1-60", "request: RetryRegion r1")
    cluster.assigner.handle(ev.RetryRequested("r1-0"), cluster.now, retry)
    cluster.run()
    assert cluster.where() == "a"
    assert cluster.writes[-1].origin == WorkOrigin("e1-60")


def test_a_new_schema_is_told_under_the_cause_of_its_alteration() -> None:
    """DD-07."""
    cluster = two_servers("r1")
    record, version = cluster.tables["t1"]
    altered = msgspec.structs.replace(record, state=TableState.ALTERING, schema_version=1)
    cluster.tables["t1"] = (altered, version + 1)
    asked = WorkOrigin("e1-70", "request: AlterTable orders")
    cluster.assigner.handle(ev.TableSeen(*cluster.tables["t1"]), cluster.now, asked)
    cluster.run()
    assert [fx.cause_ids(effect) for effect in cluster.told] == [["e1-70"]]
    assert cluster.tables["t1"][0].state is TableState.RUNNING


def test_a_close_that_a_server_refuses_and_an_answer_about_nothing_have_a_cause_as_well() -> None:
    cluster = two_servers("r1")
    cluster.open.clear()
    cluster.set_intent(TableIntent.DISABLED)
    cluster.handle(ev.OrdersAnswered(99, [OrderResult("r1", 0, OrderOutcome.DONE)]))
    cluster.pass_time(5_000)
    assert any("repeating the order" in note for note in cluster.notes)


def test_a_transition_of_an_earlier_build_has_no_cause_and_gets_one_with_the_next_step() -> None:
    """docs/compatibility.md: builds that do not know the field drop it, and no decision depends on it."""
    path = "/regionkeeper/unassigned/00/r1-0"
    old = encode(transition(RegionState.OFFLINE, None, at("gone"), origin=None))
    assert b"origin" not in old
    assert decode_transition(old, path).origin is None
    cluster = ModelCluster()
    cluster.put(region())
    cluster.put_transition(decode_transition(old, path))
    cluster.start(A, B)
    assert cluster.where() is not None
    assert next(one.origin.text for one in cluster.writes if one.origin) == "takeover: epoch 1 begins, failover"
    assert len(ids(cluster)) == 1


def test_every_event_has_words_that_begin_with_their_sort() -> None:
    """Without a description, a new event would be shown as the replacement of a region."""
    record = region()
    fence = ev.ServerFenced(FenceRecord(A, 1))
    events: list[ev.Event] = [
        ev.ServerUp(A),
        ev.ServerDown("a"),
        fence,
        ev.DrainingSeen([]),
        ev.BarsSeen([]),
        ev.RegionSeen(record, 1),
        ev.TransitionRead("r1-0", None, -1),
        ev.ReplicasReported(at("a"), []),
        ev.OrdersLost(1, "no answer"),
        ev.MoveRequested("r1-0"),
        ev.FenceRequested("a", "because"),
        ev.MovesWithdrawn("p1"),
        ev.WriteFailed("r1-0"),
        ev.FenceFailed("a"),
        ev.FinishAnswered("t1", True),
        ev.ReplaceFailed("r1"),
    ]
    for event in events:
        assert describe(event).partition(":")[0] in SORTS, event
