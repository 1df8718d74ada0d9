"""A real region server dies right after each step of a region's move that it has written (RF-04 to RF-08, TS-06)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.kill_points import KILL_VARIABLE
from regions import messages as ms
from regions.records.model import RegionState
from tests.e2e.masters import Cluster, Process, any_store, cluster_on
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

SPLITS = [f"k{number}" for number in range(1, 6)]
#: States that a server writes, and whether it is the one that the region leaves.
WRITTEN = {RegionState.CLOSING: True, RegionState.CLOSED: True, RegionState.OPENING: False, RegionState.OPENED: False}


class Killable:
    """A cluster, and the file with the point at which one of its servers dies."""

    def __init__(self, cluster: Cluster, point: Path) -> None:
        self.cluster = cluster
        self.point = point

    def servers(self) -> dict[str, Process]:
        return {self.cluster.uuid_of(one): one for one in self.cluster.servers}

    def start_of_a_move(self) -> tuple[str, str, str]:
        """Return a region, its server, and the server that it moves to."""
        region, source = sorted(self.cluster.check_owners().items())[0]
        return region, source, next(one for one in sorted(self.servers()) if one != source)

    def move(self, region: str, to: str) -> None:
        self.cluster.ask_active(ms.MoveRegion(region, destination=to), ms.Accepted)

    def died(self, uuid: str) -> bool:
        """Return True if the store has noticed the death of a server."""
        return uuid not in self.cluster.zk.get_children(self.cluster.layout.servers)

    def check(self, region: str, dead: str, process: Process) -> None:
        """Check that the region opens on another server, and start the dead one again."""
        eventually(lambda: self.died(dead), what="the store has noticed the death")
        self.cluster.wait_servers(2)
        self.cluster.wait_settled()
        owners = self.cluster.check_owners()
        assert len(owners) == len(SPLITS) + 1
        assert owners[region] != dead
        assert dead not in owners.values()
        process.kill()
        process.start()
        self.cluster.wait_servers(3)


@pytest.fixture(scope="module")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killable]:
    """Yield three servers with a table of shared regions."""
    folder = tmp_path_factory.mktemp("points")
    point = folder / "point"
    environ = {KILL_VARIABLE: f"@{point}"}
    with any_store("one", folder / "store") as hosts, cluster_on(hosts, folder / "c", environ=environ) as cluster:
        cluster.wait_active()
        cluster.wait_servers(3)
        cluster.ask_active(ms.CreateTable("orders", SPLITS, wait_ms=60_000), ms.Tables)
        yield Killable(cluster, point)


@pytest.mark.parametrize("state", WRITTEN)
def test_a_server_dies_after_its_step(killable: Killable, state: RegionState) -> None:
    """RF-05 to RF-08: the region is opened by a server that lives. Fails for OPENING if the master
    waits for a dead destination."""
    region, source, destination = killable.start_of_a_move()
    victim = source if WRITTEN[state] else destination
    process = killable.servers()[victim]
    killable.point.write_text(f"wrote {state.value}")
    killable.move(region, destination)
    eventually(lambda: not killable.point.exists(), what="the server has come to the point")
    killable.check(region, victim, process)


def test_the_destination_dies_before_its_first_step(killable: Killable) -> None:
    """RF-04: the transition is OFFLINE and names a server that does not get to it."""
    region, _, destination = killable.start_of_a_move()
    process = killable.servers()[destination]
    process.signal(signal.SIGSTOP)
    killable.move(region, destination)

    def is_offline() -> bool:
        found = [one for one in killable.cluster.transitions() if one.region_id == region]
        return any(
            one.state is RegionState.OFFLINE and one.destination is not None and one.destination.uuid == destination
            for one in found
        )

    eventually(is_offline, what="OFFLINE, towards the frozen server")
    process.kill()
    killable.check(region, destination, process)
