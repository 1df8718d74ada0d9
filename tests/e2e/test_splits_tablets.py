"""Splits of tablets under writers, with a process that dies at each point of them (docs/splits.md)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.compiled import is_switched_on
from coord.rpc.server import RpcError
from regions import messages as ms
from regionserver.client import RegionClient, connect
from tests.e2e.armed import Armed, Case, Who, armed_on
from tests.e2e.masters import Cluster, own_store
from tests.e2e.test_splits import SLOW_S, TABLE, Writers, regions_of, said
from tests.support.helpers import PATIENCE_S, eventually

pytestmark = pytest.mark.e2e

#: Points in the order in which a split passes them, and the process that dies there, by the key at which a tablet is
#: split.
POINTS = {
    "a-1": Case("Create reshardings", Who.ITSELF),
    "e-3": Case("heirs copied", Who.ITSELF),
    "r-3": Case("heirs prepared", Who.MASTER),
    "t-3": Case("heirs prepared", Who.LEADER),
    "x-3": Case("heir renamed", Who.ITSELF),
    "c-1": Case("SetData reshardings", Who.ITSELF),
    "e-1": Case("SetData reshardings", Who.LEADER),
    "p-1": Case("SetData regions", Who.ITSELF),
    "r-1": Case("wrote OPENING", Who.ITSELF),
    "t-1": Case("wrote OPENING", Who.MASTER),
    "x-1": Case("WriteBlock READY", Who.LEADER),
    "a-3": Case("seal applied", Who.ITSELF),
    "c-3": Case("heir made", Who.ITSELF),
    "p-3": Case("BeginSlot", Who.ITSELF),
}
#: With RK_ALL_POINTS every point (`make kill-points`). Otherwise every second one; processes die at the others during
#: merges (`test_merges_tablets.py`).
CASES = POINTS if is_switched_on("RK_ALL_POINTS") else dict(list(POINTS.items())[::2])
#: Each case has a tablet of its own.
SPLITS = ["a-2", "b", "c-2", "d", "e-2", "f", "n", "p-2", "q", "r-2", "s", "t-2", "u", "x-2"]


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Armed]:
    """Return two masters and three servers, and a table of tablets with three replicas."""
    with armed_table(tmp_path_factory.mktemp("data"), SPLITS, servers=3) as running:
        yield running


@pytest.fixture
def client(armed: Armed) -> Iterator[RegionClient]:
    """Return a client that keeps its locations of tablets during a test."""
    with client_of(armed) as made:
        yield made


@contextlib.contextmanager
def armed_table(folder: Path, splits: list[str], servers: int) -> Iterator[Armed]:
    """Yield two masters and some servers with a table of tablets with three replicas."""
    with (
        own_store(folder / "store", 1) as hosts,
        armed_on(hosts, folder / "cluster", masters=2, servers=servers) as running,
    ):
        running.cluster.ask_active(ms.CreateTable(TABLE, splits, replication=3, wait_ms=60_000), ms.Tables)
        yield running


def client_of(armed: Armed) -> contextlib.AbstractContextManager[RegionClient]:
    """Return a client of the cluster, for a `with` statement."""
    return connect(armed.cluster.hosts, connect_timeout_s=PATIENCE_S, timeout_s=SLOW_S)


def wait_at_rest(cluster: Cluster, *, with_parents: bool) -> None:
    """Wait until no member is in transition and every tablet is healthy, and the parents of splits are gone, too."""

    def at_rest() -> bool:
        assert not with_parents or cluster.zk.get_children(cluster.layout.reshardings) == []
        assert cluster.transitions() == []
        listed = cluster.ask_active(ms.ListTablets(), ms.TabletList).tablets
        unhealthy = [(one.region_id, one.health, one.reason) for one in listed if one.health != ms.TabletHealth.HEALTHY]
        assert not unhealthy, unhealthy
        return True

    eventually(at_rest, SLOW_S, "all tablets are healthy")


def check_at_rest(armed: Armed) -> None:
    """Check that nothing of the parents is left, in the store and on disks."""
    wait_at_rest(armed.cluster, with_parents=True)
    armed.check_files()
    assert said(armed.cluster, "fsck").endswith("nothing is wrong\n")


def test_a_tablet_is_split_under_writers(armed: Armed, client: RegionClient) -> None:
    """No row is lost or doubled, clients find the daughters, and no file of the parent remains."""
    cluster = armed.cluster
    wait_at_rest(cluster, with_parents=True)
    with Writers(client) as writers:
        answer = json.loads(said(cluster, "region", "split", f"{TABLE}:m", "--at", "m-2", "--json"))
        assert answer["is_done"]
        assert said(cluster, "fsck").endswith("nothing is wrong\n")
        before = writers.writes
        eventually(lambda: writers.writes > before + 50, what="rows are written to the daughters")
    writers.check()
    assert len(regions_of(cluster)) == len(SPLITS) + 2
    check_at_rest(armed)


def test_a_daughter_is_split_when_the_first_split_has_ended(armed: Armed, client: RegionClient) -> None:
    """The command waits for the end of the first split, and no longer. A request that waiting cannot help is refused at
    once."""
    cluster = armed.cluster
    wait_at_rest(cluster, with_parents=True)
    count = len(regions_of(cluster))
    with Writers(client, 4) as writers:
        low, _ = json.loads(said(cluster, "region", "split", f"{TABLE}:g", "--at", "h", "--json"))["daughters"]
        refused = said(cluster, "region", "split", low["region_id"], "--at", "z", status=1)
        assert f"'z' is not in region {low['region_id']}" in refused
        assert cluster.zk.get_children(cluster.layout.reshardings), "the key was refused when the split had ended"
        assert json.loads(said(cluster, "region", "split", low["region_id"], "--at", "g", "--json"))["is_done"]
    writers.check()
    assert len(regions_of(cluster)) == count + 2
    check_at_rest(armed)


def test_a_death_between_two_steps_ends_before_or_after(armed: Armed, client: RegionClient) -> None:
    """For any process that dies at any point: the key space is whole, no row is lost, and the work is done."""
    cluster = armed.cluster
    for key, case in CASES.items():
        wait_at_rest(cluster, with_parents=False)
        before = regions_of(cluster)
        parent = next(one for one in before if one.contains(key))
        request = ms.SplitRegion(parent.region_id, key)
        with Writers(client, 4) as writers:
            armed.take(case, lambda: parent.region_id, lambda: _ask(cluster, request))  # noqa: B023
            cluster.wait_servers(3)
            eventually(lambda: len(regions_of(cluster)) > len(before), SLOW_S, f"a split: {case}")  # noqa: B023
            wait_at_rest(cluster, with_parents=False)
            writes = writers.writes
            eventually(lambda: writers.writes > writes + 50 or writers.errors, SLOW_S, "rows are written")  # noqa: B023
        writers.check()
    check_at_rest(armed)


def _ask(cluster: Cluster, request: ms.SplitRegion) -> None:
    """Ask until a master has taken the request; the master may die before it answers."""

    def is_taken() -> bool:
        try:
            cluster.ask(cluster.wait_active(), request, ms.Resharded)
        except RpcError as error:
            return error.code != ms.BUSY
        except OSError:
            pass
        return True

    eventually(is_taken, SLOW_S, f"a master takes the split of {request}")
