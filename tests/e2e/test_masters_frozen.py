"""The active master stands still, and its session lives on: no standby may take over, but standbys notice (N5)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from regions import messages as ms
from regions.diagnose.invariants import Rule
from regions.records.alarms import Alarm
from regions.records.znodes import decode_alarm
from tests.e2e.masters import Cluster, cluster_on, own_store
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

SPLITS = [f"k{number:04d}" for number in range(1, 30)]


def test_a_standby_rings_for_the_regions_of_a_dead_server(tmp_path: Path) -> None:
    """N5: a server is killed while the active master is frozen; then the master continues and moves the regions.

    Fails if `ShortfallCheck.due` leaves the dead servers out: no alarm is raised before the master continues.
    """
    patient = ["--session-timeout-ms", "40000"]
    with (
        own_store(tmp_path / "store", 1, "--tick-ms", "3000") as hosts,  # up to 60 s
        cluster_on(hosts, tmp_path / "cluster", options=patient) as cluster,
    ):
        active = cluster.wait_active()
        cluster.wait_servers(3)
        cluster.wait_masters(2)
        cluster.ask_active(ms.CreateTable("orders", SPLITS, wait_ms=60_000), ms.Tables)
        held = cluster.check_owners()
        victim = cluster.servers[0]
        uuid = cluster.uuid_of(victim)
        its_regions = sorted(f"{one}-0" for one, owner in held.items() if owner == uuid)
        master = cluster.ask(active, ms.GetMasterStatus(), ms.MasterStatus).uuid
        active.signal(signal.SIGSTOP)
        victim.kill()
        eventually(lambda: uuid not in cluster.zk.get_children(cluster.layout.servers), what="the store has noticed")
        alarm = eventually(lambda: first_alarm(cluster), what="a standby has raised an alarm")
        assert cluster.transitions() == [], "nobody has begun to move the regions"
        active.signal(signal.SIGCONT)
        assert (alarm.rule, alarm.key) == (Rule.NO_OWNER, its_regions[0])
        assert f"nor the {len(its_regions) - 1} other regions of this server" in alarm.text
        assert alarm.raised_by != master
        cluster.wait_settled()
        assert set(cluster.check_owners().values()) == set(held.values()) - {uuid}


def first_alarm(cluster: Cluster) -> Alarm | None:
    """Return an alarm of the store, None without one."""
    folder = cluster.layout.alarms
    found = cluster.zk.get_children(folder)
    return decode_alarm(cluster.zk.get(f"{folder}/{found[0]}")[0]) if found else None
