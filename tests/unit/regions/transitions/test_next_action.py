"""Matrices C (server death) and D (master failover) of the source notes, cell by cell, and startup recognition."""

from __future__ import annotations

import pytest

from regions.cluster import effects as fx
from regions.records.model import Incarnation, RegionState
from regions.transitions.next_action import Action, Party, is_cluster_startup, next_action
from regions.transitions.states import Actor, Cause, is_legal
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition

A, B, C = server("a"), server("b"), server("c")
OFFLINE, OPENING, OPENED, CLOSING, CLOSED = (
    RegionState.OFFLINE,
    RegionState.OPENING,
    RegionState.OPENED,
    RegionState.CLOSING,
    RegionState.CLOSED,
)


def _cluster(state: RegionState, source: Incarnation | None, destination: Incarnation | None) -> ModelCluster:
    """Return one region in transition on servers that never answer, so that only the master's own steps show."""
    cluster = ModelCluster()
    cluster.silent = {"a", "b", "c"}
    holder = {OPENED: destination, CLOSING: source}.get(state)
    cluster.put(region(on=holder))
    cluster.put_transition(transition(state, source, destination))
    return cluster


# row, state, which of source a and destination b dies -> (state after, destination after; "any" = a live one)
DEATHS = [
    pytest.param(OFFLINE, "a", OFFLINE, "b", id="RF-04-source"),
    pytest.param(OFFLINE, "b", OFFLINE, "any", id="RF-04-destination"),
    pytest.param(CLOSING, "a", OFFLINE, "b", id="RF-05-source-X1"),
    pytest.param(CLOSING, "b", CLOSING, "b", id="RF-05-destination-X1"),
    pytest.param(CLOSED, "a", OFFLINE, "b", id="RF-06-source"),
    pytest.param(CLOSED, "b", OFFLINE, "any", id="RF-06-destination"),
    pytest.param(OPENING, "a", OPENING, "b", id="RF-07-source"),
    pytest.param(OPENING, "b", OFFLINE, "any", id="RF-07-destination"),
    pytest.param(OPENED, "a", None, "b", id="RF-08-source"),
    pytest.param(OPENED, "b", OFFLINE, "any", id="RF-08-destination-X5"),
]


@pytest.mark.parametrize("loaded", [False, True], ids=["watched", "after-failover"])
@pytest.mark.parametrize(("state", "dead", "after", "destination"), DEATHS)
def test_server_death(state: RegionState, dead: str, after: RegionState | None, destination: str, loaded: bool) -> None:
    """C: an observed death and a death found by a new master end alike."""
    cluster = _cluster(state, at("a"), at("b"))
    servers = [A, B, C]
    if loaded:
        cluster.start(*(one for one in servers if one.uuid != dead))
    else:
        cluster.start(*servers, run=False)
        cluster.kill(dead)
    assert cluster.state() is after
    if after is None:
        assert cluster.where() == destination
        return
    chosen = cluster.unassigned["r1-0"][0].destination
    assert chosen is not None
    if destination == "any":
        assert chosen.uuid in {"a", "b", "c"} - {dead}
        assert [one.server.uuid for one in cluster.sent if isinstance(one, fx.SendOpen)][-1:] == [chosen.uuid]
    else:
        assert chosen.uuid == destination


def test_closing_with_dead_source_and_no_plan_gets_a_new_one() -> None:
    """RF-05: "if for some reason we don't have an existing plan, generate a new assignment"."""
    cluster = _cluster(CLOSING, at("a"), None)
    cluster.start(B, C)
    assert cluster.state() is OFFLINE
    assert cluster.unassigned["r1-0"][0].destination in (at("b"), at("c"))


def test_closing_whose_destination_died_finds_a_new_one_at_closed() -> None:
    """X1: the second half of the decision."""
    cluster = _cluster(CLOSING, at("a"), at("b"))
    cluster.start(A, B, C)
    cluster.kill("b")
    assert cluster.state() is CLOSING
    closed = transition(CLOSED, at("a"), at("b"))
    cluster.step(Actor.SERVER, closed, 3, Cause.CLOSE_DONE)
    cluster.see()
    cluster.run()
    assert cluster.state() is OFFLINE
    assert cluster.unassigned["r1-0"][0].destination in (at("a"), at("c"))


FAILOVERS = [
    pytest.param(OFFLINE, OFFLINE, True, id="MF-04"),
    pytest.param(CLOSING, CLOSING, False, id="MF-05"),
    pytest.param(CLOSED, OFFLINE, True, id="MF-06"),
    pytest.param(OPENING, OPENING, False, id="MF-07"),
    pytest.param(OPENED, None, False, id="MF-08"),
]


@pytest.mark.parametrize(("state", "after", "order"), FAILOVERS)
def test_failover(state: RegionState, after: RegionState | None, order: bool) -> None:
    """D: the immediate step of a new master for a transition whose servers live."""
    cluster = _cluster(state, at("a"), at("b"))
    cluster.start(A, B, C)
    assert cluster.state() is after
    opens = [one for one in cluster.sent if isinstance(one, fx.SendOpen)]
    assert [one.server.uuid for one in opens] == (["b"] if order else [])


@pytest.mark.parametrize("state", [OPENING, CLOSING], ids=["MF-07", "MF-05"])
def test_failover_leaves_servers_alone_but_asks_later(state: RegionState) -> None:
    """The source says "normal handlers take care of timeouts": the new master asks for the outcome."""
    cluster = _cluster(state, at("a"), at("b"))
    cluster.start(A, B)
    assert cluster.sent == []
    cluster.pass_time(cluster.config.resend_ms + 500)
    assert [type(one) for one in cluster.sent] == [fx.SendOpen if state is OPENING else fx.SendClose]


def test_every_verdict_that_writes_is_legal() -> None:
    """The two tables agree: the transition table allows what recovery orders, for all 60 combinations."""
    for reopen in (True, False):
        for state in RegionState:
            for source in Party:
                for destination in Party:
                    verdict = next_action(state, source, destination, reopen=reopen)
                    if verdict.action in (Action.REASSIGN, Action.KEEP_PLAN, Action.PUT_DOWN):
                        assert is_legal(Actor.MASTER, state, OFFLINE, verdict.cause), (state, verdict)
                    elif verdict.action in (Action.DELETE, Action.ACKNOWLEDGE):
                        assert is_legal(Actor.MASTER, state, None, verdict.cause), (state, verdict)


def test_closing_is_never_forced_while_the_source_lives() -> None:
    """X1, for every combination."""
    for reopen in (True, False):
        for destination in Party:
            assert next_action(CLOSING, Party.ALIVE, destination, reopen=reopen).action is Action.WAIT


def test_startup_is_recognised_by_incarnations_not_by_counting() -> None:
    """X7, RT-02: servers that registered before the master do not make it a failover."""
    opened = {at("a", 1)}
    moving = [transition(OPENING, None, at("b", 1))]
    assert is_cluster_startup(opened, moving, [])
    assert is_cluster_startup(opened, moving, [at("a", 2), at("b", 2)])
    assert is_cluster_startup(set(), [], [at("a")])
    assert not is_cluster_startup(opened, [], [at("a", 1)])
    assert not is_cluster_startup(set(), moving, [at("b", 1)])
