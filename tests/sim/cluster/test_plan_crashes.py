"""A master dies at each tenth of the execution of a plan, for each kind of plan (X8, FW-03, N4).

Two masters and three servers run in simulated time. The store accepts the plan's writes in small multis, so that there
are tenths. The fault comes at the commit that completes a tenth: the active master is killed; or it is frozen until
another master has raised the epoch, and then continues its work; or it loses its session while it writes. After every
commit the observer checks that no region is open twice or written under an old epoch. At the end no region may be lost
or without an owner, and every plan must be finished.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from regions.cluster.limits import AssignerConfig
from regions.records.model import PlanState
from simulation.cluster.cluster import SimulatedCluster
from simulation.drills import come_up
from simulation.engine.timeline import SECOND
from simulation.run import Options, run

REGIONS = 20
#: The fault at 0 comes when the plan's record has just been written; at 10, when its last replica is open.
TENTHS = range(11)
#: A master's steps that advance a plan, two for each replica.
STEPS = ("master: (none) -> OFFLINE", "master: CLOSED -> OFFLINE", "master: OPENED -> (deleted)")


class Road(NamedTuple):
    """A kind of plan: the state before it, and the event that begins it."""

    name: str
    before: Callable[[SimulatedCluster], None]
    begin: Callable[[SimulatedCluster], None]


def _nothing(_: SimulatedCluster) -> None:
    pass


def _a_table(cluster: SimulatedCluster) -> None:
    cluster.operator.create(REGIONS)
    cluster.run_for(8)


def _die_and_start(cluster: SimulatedCluster) -> None:
    for machine in cluster.machines:
        if machine.process is not None:
            machine.process.kill()
    cluster.run_for(8)  # All sessions end: only then is the next start a startup.
    for machine in cluster.machines:
        cluster.timeline.later(cluster.timeline.chance.below(SECOND), machine.start)


ROADS = (
    # RT-06 to RT-08: a table is created, and a bulk plan places it.
    Road("new table", _nothing, lambda cluster: cluster.operator.create(REGIONS)),
    # X7: all processes have died; the deletion of transitions, the plan and the OFFLINE znodes of a startup.
    Road("cluster start", _a_table, _die_and_start),
    # `rk plan apply` in ten parts: every region moves to the next server.
    Road("operator's plan", _a_table, lambda cluster: cluster.operator.apply("plan-1")),
)


def kill(cluster: SimulatedCluster) -> None:
    """Kill the master with kill -9. It starts again some time later."""
    cluster.faults.kill(cluster.faults.active() or cluster.masters[0])


def freeze(cluster: SimulatedCluster) -> None:
    """Freeze the master until its session is over, then let it continue."""
    active = cluster.faults.active()
    if active is not None and active.process is not None:
        active.process.freeze(int(2.5 * cluster.setting.master_timeout_ms * 1000))


def depose(cluster: SimulatedCluster) -> None:
    """Let the store end the master's session: the epoch is raised while it writes."""
    cluster.store.end_session(cluster.observer.epoch_session)


STRIKES = (kill, freeze, depose)


class Striker:
    """Strikes once, at the commit by which the present plan has come far enough."""

    def __init__(self, cluster: SimulatedCluster, tenth: int, strike: Callable[[SimulatedCluster], None]) -> None:
        self._cluster = cluster
        self._strike = strike
        self._steps_before = self._steps()
        self._plans_before = set(cluster.observer.shadow.plans)
        self._after = 2 * REGIONS * tenth // 10
        self.has_struck = False

    def _steps(self) -> int:
        return sum(self._cluster.observer.counts.get(step, 0) for step in STEPS)

    def changed(self, _path: str) -> None:
        """Handle a commit that has changed the cluster state."""
        if self.has_struck or not set(self._cluster.observer.shadow.plans) - self._plans_before:
            return
        if self._steps() - self._steps_before >= self._after:
            self.has_struck = True
            self._cluster.timeline.later(0, self._strike, self._cluster)


def _struck(road: Road, strike: Callable[[SimulatedCluster], None], tenth: int) -> SimulatedCluster:
    """Run with a fault at that tenth. Any violation that the observer finds fails the test."""
    lived: list[tuple[SimulatedCluster, Striker]] = []

    def script(cluster: SimulatedCluster) -> None:
        cluster.setting.limits = AssignerConfig(bulk_min=REGIONS, open_timeout_ms=8_000, resend_ms=1_500)
        come_up(cluster)
        road.before(cluster)
        striker = Striker(cluster, tenth, strike)
        cluster.observer.changed = striker.changed
        lived.append((cluster, striker))
        road.begin(cluster)
        cluster.run_for(12)

    verdict = run(Options(100 + tenth, regions=1, servers=3, masters=2, store_nodes=1), script=script)
    assert verdict.ok, f"tenth {tenth}: {verdict.violation}"
    cluster, striker = lived[0]
    assert striker.has_struck, f"tenth {tenth}: the plan did not come so far"
    return cluster


@pytest.mark.parametrize("strike", STRIKES, ids=lambda strike: str(strike.__name__))
@pytest.mark.parametrize("road", ROADS, ids=lambda road: str(road.name))
def test_a_plan_survives_its_master(
    road: Road, strike: Callable[[SimulatedCluster], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No region is lost, open twice or without an owner, and an operator's plan reaches its goal."""
    monkeypatch.setattr("master.assignment.transitions.OPS_MAX", 4)
    for tenth in TENTHS:
        cluster = _struck(road, strike, tenth)
        shadow = cluster.observer.shadow
        states = {plan.plan_id: plan.state for plan in shadow.plans.values()}
        assert set(states.values()) == {PlanState.DONE}, (tenth, states)
        assert shadow.epoch > 1, f"tenth {tenth}: nobody took over"
        for plan_id, places in cluster.operator.planned.items():
            assert shadow.plans[plan_id].skipped == {}, (tenth, shadow.plans[plan_id])
            found = {(region, number): shadow.regions[region].location(number).uuid for region, number in places}
            assert found == places, tenth
