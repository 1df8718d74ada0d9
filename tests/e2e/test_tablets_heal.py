"""A cluster heals its tablets by itself: members of a dead server, and of a lost disk, are replaced on other servers
while clients write. Masters, servers and store are real processes."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from regions import messages as ms
from regions.records.members import Storage
from regions.records.model import RegionRecord
from regionserver.client import DataError, RegionClient, connect
from tests.e2e.masters import Cluster, any_store, cluster_on
from tests.support.helpers import PATIENCE_S, eventually

pytestmark = pytest.mark.e2e

SPLITS = ("g", "n", "t")
KEYS = ("a", "h", "o", "u")
#: A member that is silent for this long is replaced; longer than the pauses of a busy machine.
DEAD_S = 5
#: Time limit of one step, and of one call of a client, on a busy machine.
SLOW_S = 180.0
CALL_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return two masters and four servers, with a table of four tablets."""
    with (
        any_store("one", tmp_path / "store") as hosts,
        cluster_on(hosts, tmp_path / "cluster", servers=4, server_options=("--replica-dead-s", str(DEAD_S))) as running,
    ):
        running.wait_active()
        running.wait_servers(4)
        request = ms.CreateTable("rows", list(SPLITS), replication=3, wait_ms=60_000)
        assert running.ask_active(request, ms.Tables).tables[0].table.storage is Storage.TABLET
        yield running


class Writing:
    """A thread that writes rows to all tablets. `acknowledged` has every row whose write was acknowledged."""

    def __init__(self, client: RegionClient) -> None:
        self._client = client
        self.acknowledged: dict[str, bytes] = {}
        self.errors: list[Exception] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            key, value = f"{KEYS[number % len(KEYS)]}{number:06}", b"%d" % number
            try:
                self._client.put("rows", key, value, timeout_s=CALL_S)
            except DataError as error:
                self.errors.append(error)
                return
            self.acknowledged[key] = value
            number += 1

    def wait_for_more(self) -> None:
        """Wait until every tablet has received more rows."""
        before = len(self.acknowledged)
        eventually(lambda: self.errors or len(self.acknowledged) > before + 20, SLOW_S, "more rows")

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(CALL_S + PATIENCE_S)


@contextlib.contextmanager
def writing(cluster: Cluster) -> Iterator[Writing]:
    """Yield a writer. At the end compare the table with all acknowledged rows."""
    with connect(cluster.hosts, timeout_s=CALL_S) as client:
        with Writing(client) as found:
            found.wait_for_more()
            yield found
            found.wait_for_more()
        assert not found.errors, found.errors
        there = dict(client.scan("rows"))
        missing = {key for key, value in found.acknowledged.items() if there.get(key) != value}
        assert not missing, sorted(missing)


def tablets(cluster: Cluster) -> list[RegionRecord]:
    return [one for one in cluster.regions() if one.is_tablet]


def wait_healthy(cluster: Cluster, *, without: str = "") -> list[RegionRecord]:
    """Wait until each tablet has three members that take part, none of them on a server."""

    def are_healthy() -> list[RegionRecord]:
        found = tablets(cluster)
        for one in found:
            assert len(one.members) == 3, one
            assert without not in {member.uuid for member in one.members}, one
        assert cluster.transitions() == []
        listed = cluster.ask_active(ms.ListTablets(), ms.TabletList)
        assert listed.counts == {ms.TabletHealth.HEALTHY.value: len(found)}, [one.reason for one in listed.tablets]
        return found

    return eventually(are_healthy, SLOW_S, "all tablets HEALTHY")


def members_on(cluster: Cluster, uuid: str) -> int:
    return sum(any(member.uuid == uuid for member in one.members) for one in tablets(cluster))


def test_a_dead_servers_members_are_replaced(cluster: Cluster) -> None:
    """TC-16, TC-17, FW-07, FW-08: kill -9 of a server, and of the active master while members are copied."""
    wait_healthy(cluster)
    victim = max(cluster.servers, key=lambda one: members_on(cluster, cluster.uuid_of(one)))
    uuid = cluster.uuid_of(victim)
    before = {one.region_id: one for one in tablets(cluster)}
    with writing(cluster) as found:
        victim.kill()
        found.wait_for_more()
        eventually(lambda: any(one.next_number > 4 for one in tablets(cluster)), SLOW_S, "a number is given out")
        active = cluster.wait_active()
        active.kill()
        healed = wait_healthy(cluster, without=uuid)
        active.start()
    for one in healed:
        # One new number for each lost member, however many masters decided.
        assert one.next_number == 4 + any(member.uuid == uuid for member in before[one.region_id].members), one
    # The server returns, and its former replicas are removed, because they are not members any more.
    victim.start()
    cluster.wait_servers(4)
    folder = victim.log.with_suffix("") / "data"
    eventually(lambda: not list(folder.glob("*.mdb")), SLOW_S, "no rows of former replicas")


def test_a_lost_disk_is_replaced(cluster: Cluster) -> None:
    """TC-18: a server that has lost its directory gets a new identity. It may get members again, with new numbers."""
    wait_healthy(cluster)
    victim = max(cluster.servers, key=lambda one: members_on(cluster, cluster.uuid_of(one)))
    uuid = cluster.uuid_of(victim)
    with writing(cluster) as found:
        victim.kill()
        shutil.rmtree(victim.log.with_suffix(""))
        victim.start()
        found.wait_for_more()
        wait_healthy(cluster, without=uuid)
