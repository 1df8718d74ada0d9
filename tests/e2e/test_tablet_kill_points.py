"""kill -9 between every two steps of a deletion and of a copy, in real `rk server run` processes under writes.

An order copies a replica that runs: its server first deletes the replica and then copies it, so one order passes every
point of both. Each point is taken twice. Once the server dies there; once it stops there, the leader is killed, and the
server goes on. Afterwards the tablet is whole by itself: all members run, no acknowledged row is missing, no file is
left over.

    RK_ALL_POINTS=1    every point in both ways (`make kill-points`); otherwise each point once
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from coord.compiled import is_switched_on
from regions.messages import ReplicaState
from regionserver.tablets.copying.messages import CopyOutcome
from tests.e2e.armed import COPY, DELETION
from tests.e2e.test_region_server_tablets import Cluster, Machine, cluster, master, store
from tests.e2e.test_tablet_copies import own, start_copy, writing
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e
__all__ = ["cluster", "master", "store"]

TABLET = "r1"
#: Points in the order in which one copy over a running replica passes them.
POINTS = (*DELETION, *COPY)
ALL = is_switched_on("RK_ALL_POINTS")
#: (point, who dies): the server at its points of no return, the leader at the others; with RK_ALL_POINTS both at each.
CASES = [
    (point, who)
    for at, point in enumerate(POINTS)
    for who in (("server", "leader") if ALL else (("server", "leader")[at % 2],))
]


def is_ended(machine: Machine) -> bool:
    assert machine.process is not None
    return machine.process.poll() is not None


def is_stopped(machine: Machine) -> bool:
    """Return True if the process of the server has stopped itself."""
    assert machine.process is not None
    status = Path(f"/proc/{machine.process.pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "T"


def arm(machine: Machine, variable: str, point: str, patch: pytest.MonkeyPatch) -> None:
    """Start the server anew, with a point."""
    machine.kill()
    patch.setenv(variable, point)
    machine.start()
    patch.delenv(variable)
    machine.registered()
    eventually(lambda: own(machine).report.state is ReplicaState.RUNNING, what="the replica runs")


def leftovers(machine: Machine) -> list[str]:
    """Return the files in the folders of replicas that belong to no replica."""
    found = [path.name for path in (machine.directory / "data").iterdir()]
    databases = [name for name in found if name.endswith(".mdb")]
    assert len(databases) == 1, found
    expected = {databases[0] + suffix for suffix in ("", ".steady", ".used", "-lock")}
    extra = [name for name in found if name not in expected]
    folders = [machine.directory / name for name in ("tablet-meta", "consensus-meta")]
    return extra + [path.name for folder in folders for path in folder.iterdir() if path.name != TABLET]


def all_run(cluster: Cluster) -> bool:
    return all(own(machine).report.state is ReplicaState.RUNNING for machine in cluster.machines)


def die_at(cluster: Cluster, point: str, who: str, patch: pytest.MonkeyPatch) -> None:
    """Have a follower copied, and let the server or the leader die at a point of that."""
    leader = cluster.leader(TABLET)
    victim = next(one for one in cluster.machines if one is not leader)
    arm(victim, "RK_KILL_AT" if who == "server" else "RK_STOP_AT", point, patch)
    leader = cluster.leader(TABLET)

    eventually(lambda: start_copy(cluster, victim).outcome is CopyOutcome.STARTED, what="the copy begins")
    if who == "server":
        eventually(lambda: is_ended(victim), what=f"the server dies at {point}")
        victim.kill()
        victim.start()
        victim.registered()
    else:
        eventually(lambda: is_stopped(victim), what=f"the server stops at {point}")
        assert victim.process is not None
        leader.kill()
        os.killpg(victim.process.pid, signal.SIGCONT)
        leader.start()
        leader.registered()


def test_every_point_of_deletion_and_copy(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create()
    for number in range(20):
        cluster.put(TABLET, **{f"fill{number:04}": "v" * 50_000})
    with writing(cluster) as acknowledged:
        for point, who in CASES:
            die_at(cluster, point, who, monkeypatch)
            eventually(lambda: all_run(cluster), what=f"all members run after {point}")
    latest = dict(acknowledged)
    assert len(latest) > 10
    found = cluster.get(TABLET, *sorted(latest))
    for key, value in zip(sorted(latest), found, strict=True):
        # The write that was under way at the end may have come after the last acknowledged one.
        assert value is not None, key
        assert int(value[5:]) >= int(latest[key][5:]), key
    assert cluster.get(TABLET, "fill0000", "fill0019") == ["v" * 50_000] * 2
    for machine in cluster.machines:
        # A steady point that is being made has a temporary file.
        eventually(lambda one=machine: leftovers(one) == [], what=f"{machine.name} has no file left over")
        assert Path(machine.directory / "quarantine").is_dir()
