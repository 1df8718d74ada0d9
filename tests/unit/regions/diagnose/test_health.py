"""The verdict about a cluster: one row per situation. N6."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from coord.security.principal import OpenDoor
from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.diagnose.health import (
    ATTEMPTS,
    EXIT_STATUS,
    TRANSITION_MS,
    Findings,
    HealthVerdict,
    MasterFinding,
    ServerFinding,
    StoreFinding,
    judge,
    judge_figures,
    unserved,
)
from regions.diagnose.live.work_in_progress import look
from regions.messages import MasterStatus, Unserved
from regions.records.model import RegionState, TableIntent
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition

STATUS = MasterStatus(
    uuid="m", role="active", epoch=3, active="h:1", path="startup", servers=2, masters=2, tables=1, regions=10,
    replicas=10, open=10, rit=0, parked=0, phases=[], plan=None, problems=[], uptime_ms=1, unserved=Unserved(),
)  # fmt: skip


def node(number: int, role: str = "follower", *, answers: bool = True) -> StoreFinding:
    return StoreFinding(f"store-{number}", f"h:{number}", answers, role, "" if role else "refuses connections")


def of_server(name: str, *, answers: bool = True, regions: int | None = 5, state: str = "") -> ServerFinding:
    return ServerFinding(name, "h:9", answers, "" if answers else "refuses connections", regions, 0, state)


ACTIVE = MasterFinding("master-1", "h:5", True, "active")
STANDBY = MasterFinding("master-2", "h:6", True, "standby")
DEAD_MASTER = MasterFinding("master-2", "h:6", False, trouble="refuses connections")
HEALTHY_STORE = [node(1, "leader"), node(2), node(3)]


class Row(NamedTuple):
    """A situation that differs from a healthy cluster, its verdict, and its first reason."""

    name: str
    verdict: HealthVerdict
    reason: str
    store: list[StoreFinding] | None = HEALTHY_STORE
    masters: list[MasterFinding] = [ACTIVE, STANDBY]
    servers: list[ServerFinding] = [of_server("server-1"), of_server("server-2")]
    figures: MasterStatus | None = STATUS


def figures(**changes: object) -> MasterStatus:
    return msgspec.structs.replace(STATUS, **changes)


H, D, U = HealthVerdict.HEALTHY, HealthVerdict.DEGRADED, HealthVerdict.UNAVAILABLE
ROWS = [
    Row("nothing is amiss", H, ""),
    Row("the store was not asked", H, "", store=None),
    Row("no store node answers", U, "no node of the store answers", store=[node(1, "", answers=False)]),
    Row(
        "two nodes are frozen",
        U,
        "the store has no leader: 0 of 3 nodes serve",
        store=[node(1, ""), node(2, "", answers=False), node(3, "", answers=False)],
    ),
    Row("followers alone", U, "the store has no leader: 2 of 3 nodes serve", store=[node(1), node(2), node(3, "")]),
    Row("not all nodes were named", H, "", store=[node(1), node(2)]),
    Row("one node is down", D, "store node store-3 refuses connections", store=[*HEALTHY_STORE[:2], node(3, "")]),
    Row("a single node", H, "", store=[node(1, "standalone")]),
    Row("a standby is dead", D, "master master-2 refuses connections", masters=[ACTIVE, DEAD_MASTER]),
    Row(
        "no master is active",
        D,
        "no master is active: nothing is assigned, tables cannot be changed (1 of 2 masters answer)",
        masters=[STANDBY, DEAD_MASTER],
    ),
    Row(
        "it is being secured",
        D,
        "master-1 serves callers without a proof, too: `rk secure` goes on if it was interrupted, `rk secure --finish`"
        " ends this",
        masters=[msgspec.structs.replace(ACTIVE, open_door=OpenDoor.SECURING)],
    ),
    Row(
        "it is open by request",
        H,
        "master-1 serves everybody who reaches the port (--insecure)",
        masters=[msgspec.structs.replace(ACTIVE, open_door=OpenDoor.EXPOSED)],
    ),
    Row(
        "a store node is being secured",
        D,
        "store-1 serves callers without a proof, too: `rk secure` goes on if it was interrupted, `rk secure --finish`"
        " ends this",
        store=[msgspec.structs.replace(HEALTHY_STORE[0], open_door=OpenDoor.SECURING), *HEALTHY_STORE[1:]],
    ),
    Row("no figures", D, "no active master says which regions and tablets are open", figures=None),
    Row(
        "a server with regions is dead, and its session still lives",
        U,
        "region server server-2 refuses connections: 5 regions are served by nobody",
        servers=[of_server("server-1"), of_server("server-2", answers=False)],
    ),
    Row(
        "a dead server has members of tablets alone",
        D,
        "region server server-2 refuses connections",
        servers=[of_server("server-1"), of_server("server-2", answers=False, regions=0)],
    ),
    Row("all servers are dead", U, "no region server answers", servers=[of_server("s", answers=False, regions=0)]),
    Row("draining", D, "server-1 is draining", servers=[of_server("server-1", state="draining")]),
    Row(
        "drained",
        D,
        "server-1, server-2 are drained",
        servers=[of_server("server-1", state="drained"), of_server("server-2", state="drained")],
    ),
    Row("parked", U, "1 region is parked", figures=figures(unserved=Unserved(1, 1))),
    Row(
        "in transition",
        D,
        "2 regions are not open yet: r-0 OPENING for 5.0 s",
        figures=figures(unserved=Unserved(2, 0, "r-0", "OPENING", TRANSITION_MS)),
    ),
    Row(
        "in transition for too long",
        U,
        "2 regions are not open yet: r-0 OPENING for 5.0 s, last error: no room",
        figures=figures(unserved=Unserved(2, 0, "r-0", "OPENING", TRANSITION_MS + 1, "no room")),
    ),
    Row(
        "opened again after a short failure",
        D,
        "1 region is not open yet: r-0 OFFLINE for 0.1 s, 4 opens have failed, last error: no room",
        figures=figures(unserved=Unserved(1, 0, "r-0", "OFFLINE", 100, "no room", ATTEMPTS)),
    ),
    Row(
        "each try begins anew",
        U,
        "1 region is not open yet: r-0 OFFLINE for 0.1 s, 5 opens have failed, last error: no room",
        figures=figures(unserved=Unserved(1, 0, "r-0", "OFFLINE", 100, "no room", ATTEMPTS + 1)),
    ),
    Row(
        "tablets without a leader",
        U,
        "3 tablets have no leader or no majority, or a seal",
        figures=figures(tablets={"UNAVAILABLE": 3}),
    ),
    Row(
        "a tablet with few voters",
        D,
        "1 tablet with fewer healthy voters than wanted",
        figures=figures(tablets={"UNDER_REPLICATED": 1}),
    ),
    Row("tablets are created", D, "4 tablets are being created", figures=figures(unusable=4)),
    Row("a problem", D, "server x is fenced", figures=figures(problems=["server x is fenced"])),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_verdict(row: Row) -> None:
    found = judge(Findings(row.store, row.masters, row.servers, row.figures))
    assert found.verdict is row.verdict
    assert (found.reasons[0].text if found.reasons else "") == row.reason


def test_the_gravest_reason_comes_first_and_decides() -> None:
    found = judge(Findings(HEALTHY_STORE, [ACTIVE, DEAD_MASTER], [], figures(unserved=Unserved(1, 1), problems=["p"])))
    assert [EXIT_STATUS[one.verdict] for one in found.reasons] == [2, 1, 1]
    assert found.verdict is U


def test_a_problem_that_counts_the_tablets_is_not_counted_twice() -> None:
    text = "3 tablets are UNDER_REPLICATED: a, b, c"
    found = judge_figures(figures(tablets={"UNDER_REPLICATED": 3}, problems=[text]))
    assert [one.text for one in found.reasons] == [text]


def _waiting(state: RegionState | None, **more: object) -> ModelCluster:
    cluster = ModelCluster(AssignerConfig(bulk_min=1000))
    cluster.put(region(on=None))
    if state is not None:
        cluster.put_transition(transition(state, at("a"), at("b"), **more))
    cluster.silent = {"a", "b"}
    cluster.start(server("a"), server("b"))
    return cluster


def test_unserved_names_the_oldest_and_leaves_out_what_is_disabled() -> None:
    """N5: what should be open and is not. A disabled table's closed regions refuse no client by mistake."""
    cluster = _waiting(RegionState.OPENING)
    world, seen_ms = cluster.assigner.world, next(iter(cluster.assigner.world.active.values())).seen_ms
    assert unserved(look(world.active.values(), ()), seen_ms + 700) == Unserved(1, 0, "r1-0", "OPENING", 700)
    cluster.set_intent(TableIntent.DISABLED)
    assert unserved(look(world.active.values(), ()), seen_ms) == Unserved()


def test_unserved_names_the_one_that_fails_to_open_most_often() -> None:
    """Its transition is written again with each try, so the age of its state says nothing."""
    cluster = _waiting(RegionState.OFFLINE, attempt=5, last_error="no room", since_ms=40_000)
    found = unserved(look(cluster.assigner.world.active.values(), ()), 40_700)
    assert (found.attempts, found.age_ms, found.error) == (5, 700, "no room")


def test_unserved_counts_parked_replicas_apart() -> None:
    cluster = _waiting(RegionState.OFFLINE, parked=True)
    assert unserved(look(cluster.assigner.world.active.values(), ()), 0) == Unserved(1, 1)


def test_an_open_region_is_served_while_it_moves_away() -> None:
    """Until the source has written CLOSING it serves the region."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000))
    cluster.put(region(on=at("a")))
    cluster.start(server("a"), server("b"))
    assert unserved(look(cluster.assigner.world.active.values(), ()), 0) == Unserved()
    cluster.silent = {"a", "b"}
    cluster.handle(ev.MoveRequested("r1-0", "b"))
    assert unserved(look(cluster.assigner.world.active.values(), ()), 0) == Unserved()
