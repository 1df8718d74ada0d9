"""A region whose open kills its server, in whole simulated clusters: the region is parked, the others are served."""

from __future__ import annotations

import pytest

from regions.transitions import hazards
from simulation.cluster.cluster import SimulatedCluster
from simulation.drills import come_up
from simulation.engine.timeline import SECOND
from simulation.run import Options, run
from tests.support.interpreted import is_interpreted

#: Long enough for two deaths, each with a session timeout, and a failover in between.
SPAN_S = 60
#: The real bound: tests patch the constant.
DEATHS_MAX = hazards.DEATHS_MAX


def deadly(cluster: SimulatedCluster) -> None:
    """One region kills every server that opens it; every second run also kills masters. Then the region is repaired."""
    come_up(cluster)
    work = cluster.setting.work
    work.until = cluster.timeline.now + SPAN_S * SECOND
    victim = cluster.timeline.chance.pick(sorted(cluster.observer.shadow.regions))
    work.deadly = [victim]
    if cluster.options.seed % 2:
        cluster.faults.choose(["kill-active"])
        cluster.faults.pause_s = 4.0
        cluster.faults.start()
    home = cluster.observer.shadow.regions[victim].location(0).incarnation
    for server in cluster.servers:
        if server.incarnation == home and server.process is not None:
            server.process.kill()
    for _ in range(4 * SPAN_S):
        cluster.run_for(0.25)
        for machine in cluster.machines:
            machine.start()
    record = cluster.observer.shadow.transitions.get(f"{victim}-0")
    if work.deaths != {victim: DEATHS_MAX} or record is None or not record.parked:
        cluster.observer.violated(f"{victim} has ended {work.deaths} servers and is {record}")
    if record is not None and "servers died one after the other" not in record.last_error:
        cluster.observer.violated(f"{victim} is parked because of {record.last_error!r}")


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_region_that_ends_its_servers_is_parked(seed: int) -> None:
    """The region is parked after DEATHS_MAX servers, also when masters change. After its repair and a retry it is
    served."""
    verdict = run(Options(seed, regions=8, servers=4), script=deadly)
    assert verdict.ok, f"seed {seed}: {verdict.violation}"


@pytest.mark.skipif(not is_interpreted(), reason="compiled code has its own copy of the constant")
def test_without_the_count_it_ends_server_after_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: no bound on deaths."""
    monkeypatch.setattr(hazards, "DEATHS_MAX", 1_000)
    verdict = run(Options(1, regions=8, servers=4), script=deadly)
    assert "has ended" in verdict.violation
