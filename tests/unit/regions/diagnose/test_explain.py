"""Why a replica is where it is: one row per situation. N6, and the deadlines of X10, X11, RT-11."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.diagnose.explain import explain
from regions.messages import Explanation, NextActor
from regions.records.model import RegionState, TableIntent, TableRecord
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition

A, B = server("a"), server("b")
CONFIG = AssignerConfig(bulk_min=1000)


class Row(NamedTuple):
    """A situation, and its explanation."""

    name: str
    make: Callable[[], ModelCluster]
    standing: str
    actor: NextActor
    headline: str
    way_out: str = ""
    at_deadline: str = ""


def _cluster(state: RegionState | None = None, on: str | None = None, *servers: str, **more: object) -> ModelCluster:
    """Return one region: open on `on`, or in `state` from a towards b; servers accept orders and do not answer."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region(on=None if on is None else at(on)))
    if state is not None:
        cluster.put_transition(transition(state, at("a"), at("b"), **more))
    cluster.silent = {"a", "b"}
    cluster.start(*(server(uuid) for uuid in servers))
    return cluster


def _moving() -> ModelCluster:
    cluster = _cluster(None, "a", "a", "b")
    cluster.handle(ev.MoveRequested("r1-0", "b"))
    return cluster


def _disabled(state: RegionState | None, on: str | None) -> ModelCluster:
    cluster = _cluster(state, on, "a", "b")
    cluster.set_intent(TableIntent.DISABLED)
    return cluster


def _draining_alone() -> ModelCluster:
    cluster = _cluster(None, "a", "a")
    cluster.handle(ev.DrainingSeen(["a"]))
    return cluster


def _other_group() -> ModelCluster:
    cluster = ModelCluster(CONFIG)
    cluster.tables["t1"] = (TableRecord("t1", "orders", regions=1, group="gold"), 0)
    cluster.put(region())
    cluster.start(A, B)
    return cluster


def _failing() -> ModelCluster:
    cluster = ModelCluster(CONFIG)
    cluster.failing = {"a": "disk full"}
    cluster.put(region())
    cluster.start(A)
    return cluster


ROWS = [
    Row("open", lambda: _cluster(None, "a", "a", "b"), "OPEN", NextActor.NOBODY, "it is open on a"),
    Row("disabled", lambda: _disabled(None, None), "CLOSED", NextActor.NOBODY, "is disabled", "rk table enable orders"),
    Row("move ordered", _moving, "OPEN", NextActor.SERVER, "was ordered to close it", "", "move is canceled"),
    Row("disable ordered", lambda: _disabled(None, "a"), "OPEN", NextActor.SERVER, "(disabled)", "", "fenced"),
    Row("drain, nowhere to go", _draining_alone, "OPEN", NextActor.OPERATOR, "no other server", "rk server undrain a"),
    Row("no server at all", lambda: _cluster(None, None), "NOT OPEN", NextActor.OPERATOR, "no server", "rk server run"),
    Row("no server of the group", _other_group, "NOT OPEN", NextActor.OPERATOR, "no server can take", "--group gold"),
    Row("ordered to open", lambda: _cluster(RegionState.OFFLINE, None, "a", "b"), "OFFLINE", NextActor.SERVER,
        "b was ordered to open it", "", "another server gets it"),
    Row("opening", lambda: _cluster(RegionState.OPENING, None, "a", "b"), "OPENING", NextActor.SERVER,
        "b is opening it", "", "another server gets it"),
    Row("opening, the last time", lambda: _cluster(RegionState.OPENING, None, "a", "b", attempt=7), "OPENING",
        NextActor.SERVER, "b is opening it", "", "parked"),
    Row("opening, not wanted", lambda: _disabled(RegionState.OPENING, None), "OPENING", NextActor.SERVER,
        "closed once it is open"),
    Row("closing", lambda: _cluster(RegionState.CLOSING, "a", "a", "b"), "CLOSING", NextActor.SERVER,
        "a is closing it", "kill the process of a", "fenced"),
    Row("parked", lambda: _cluster(RegionState.OFFLINE, None, "a", "b", parked=True, attempt=8, last_error="bad file"),
        "PARKED", NextActor.OPERATOR, "bad file", "rk region retry r1"),
    Row("failed, pausing", _failing, "OFFLINE", NextActor.MASTER, "failed 1 times, the next attempt", "", "ordered"),
]  # fmt: skip


def test_a_passed_deadline_is_said() -> None:
    cluster = _cluster(RegionState.CLOSING, "a", "a", "b")
    world = cluster.assigner.world
    deadline_ms = said_of(cluster).deadline_ms
    assert explain(world.replicas["r1-0"], world, cluster.config, deadline_ms).overdue_ms == 0
    assert explain(world.replicas["r1-0"], world, cluster.config, deadline_ms + 7).overdue_ms == 7


def said_of(cluster: ModelCluster) -> Explanation:
    world = cluster.assigner.world
    return explain(world.replicas["r1-0"], world, cluster.config, cluster.now)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_standing_is_explained(row: Row) -> None:
    """N6: the state, who must act, what happens at the deadline, and the operator's remedy."""
    said = said_of(row.make())
    assert (said.standing, said.actor) == (row.standing, row.actor), said
    assert row.headline in said.headline
    assert row.way_out in "\n".join(said.way_out)
    assert row.at_deadline in said.at_deadline
    if said.actor is NextActor.SERVER and row.name != "move ordered":
        assert said.deadline_ms > 1_000_000, "nothing waits for ever"
    if said.actor is NextActor.OPERATOR:
        assert said.way_out, "an operator who must act is told how"
    assert (said.actor is NextActor.NOBODY) == (said.step == "")


def test_servers_that_may_not_have_it_are_named_with_the_reason() -> None:
    said = said_of(_other_group())
    assert said.ruled_out == [
        f"{uuid}: it belongs to the default group, and the table to group 'gold'" for uuid in "ab"
    ]
