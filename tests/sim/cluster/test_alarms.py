"""Regions that nobody serves, while the active master is frozen and its session lives on (N5)."""

from __future__ import annotations

import pytest

from simulation.cluster.cluster import SimulatedCluster
from simulation.drills import come_up
from simulation.run import Options, run

FROZEN_S = 30.0


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
