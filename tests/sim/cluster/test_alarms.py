"""Alarms about owners (N5): one beside a frozen master whose session lives on, none about a region that is closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regions.messages import ListOpen
from regions.messages.heartbeat import CLOSING
from regions.records.model import TableIntent
from simulation.cluster.cluster import SimulatedCluster
from simulation.drills import come_up
from simulation.engine.timeline import SECOND
from simulation.run import Options, run

FROZEN_S = 30.0
#: The store stands still for this long: less than a session lasts, more than the patience of the auditors.
PAUSED_S = 6.0


def frozen_master_and_dead_server(cluster: SimulatedCluster) -> None:
    """Freeze the active master for less than its session timeout, then kill a server that has regions."""
    cluster.setting.master_timeout_ms = int(2_000 * FROZEN_S)
    come_up(cluster)
    cluster.run_for(15.0)
    shadow = cluster.observer.shadow
    victim = next(one for one in cluster.servers if one.uuid in {r.location(0).uuid for r in shadow.regions.values()})
    active = cluster.faults.active()
    assert active is not None
    assert active.process is not None
    assert victim.process is not None
    active.process.freeze(int(FROZEN_S * 1_000_000))
    victim.process.kill()
    while victim.uuid in shadow.servers:
        cluster.run_for(0.05)
    cluster.run_for(3.0)
    assert active.process.is_frozen
    if not cluster.observer.counts.get("alarm: open nowhere"):
        cluster.observer.violated("N5: regions of a dead server are open nowhere, and no standby has raised an alarm")


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_standby_rings_for_a_dead_server_beside_a_frozen_master(seed: int) -> None:
    """Within three seconds of the end of the server's session. Fails if `ShortfallCheck.due` leaves the dead out."""
    verdict = run(Options(seed, masters=2, servers=3), script=frozen_master_and_dead_server)
    assert verdict.ok, f"seed {seed}: {verdict.violation}"


def _close_in(way: str) -> Callable[[SimulatedCluster], None]:
    """Close regions in one way, while the store stands still between the order and the transition."""

    def script(cluster: SimulatedCluster) -> None:
        cluster.setting.session_timeout_ms = cluster.setting.master_timeout_ms = 12_000
        come_up(cluster)
        cluster.operator.create(8)
        cluster.run_for(10.0)
        shadow = cluster.observer.shadow
        table = next(iter(shadow.tables.values()))
        if way == "disable":
            cluster.operator.set_intent(table.name, TableIntent.DISABLED)
        else:
            for _ in range(8):
                {"move": cluster.operator.move, "split": cluster.operator.split}[way]()
        for _ in range(5_000):
            cluster.timeline.run_until(cluster.timeline.now + 200)
            servers = [one.service.dispatch(ListOpen("", 0)) for one in cluster.servers if one.is_up]
            if any(one.state == CLOSING for found in servers for one in found.replicas) and not shadow.transitions:
                break
        else:
            cluster.observer.violated(f"no server was seen between the order and the transition of a {way}")
        cluster.store.pause(int(PAUSED_S * SECOND))
        cluster.run_for(2 * PAUSED_S)

    return script


@pytest.mark.parametrize("way", ["disable", "move", "split"])
def test_a_region_that_waits_for_the_store_to_close_rings_no_alarm(way: str) -> None:
    """Its server reports that it closes the region, and serves it until the store has the transition.

    Fails if `MasterService._home_of` names the server of such a region.
    """
    verdict = run(Options(1, masters=2, servers=3), script=_close_in(way))
    assert verdict.ok, f"{way}: {verdict.violation}"
