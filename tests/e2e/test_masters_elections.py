"""Tests that docs/requirements.md asks for by name: tables over a change of the leader master (TS-01, TS-02, TS-03).

The active master is changed in two ways: it dies, or it stays alive without knowing yet that it was replaced.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import TableState, TabletState
from regions.records.znodes import decode_region
from regionserver.client import Change, connect
from tests.e2e.masters import Cluster, Process, any_store, cluster_on
from tests.support.helpers import PATIENCE_S, eventually

pytestmark = pytest.mark.e2e

SERVERS = 3
SPLITS = [f"k{number}" for number in range(1, 3 * SERVERS)]
ROWS = {f"k{number}x": b"%d" % number for number in range(3 * SERVERS)}
WAYS = ("killed", "deposed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return two masters and three servers, shared by the tests: each test creates its own tables."""
    folder = tmp_path_factory.mktemp("elections")
    with any_store("one", folder / "store") as hosts, cluster_on(hosts, folder / "cluster", servers=SERVERS) as running:
        running.wait_active()
        running.wait_servers(SERVERS)
        yield running


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """Return the way in which the active master is changed; both masters run before and after."""
    eventually(lambda: [role(cluster, one) for one in cluster.masters].count("standby") == 1, what="a standby")
    yield request.param
    for master in cluster.masters:
        if master.popen is None or master.popen.poll() is not None:
            master.start()


def role(cluster: Cluster, master: Process) -> str:
    """Return the role that a master reports, "" without an answer."""
    with contextlib.suppress(RpcError):
        return cluster.ask(master, ms.GetMasterStatus(), ms.MasterStatus).role
    return ""


def change_leader(cluster: Cluster, way: str) -> Process:
    """Change the active master. Return the new one as soon as it reports to be active."""
    before = cluster.status().epoch
    active = cluster.wait_active()
    if way == "killed":
        active.kill()
    else:
        cluster.zk.delete(cluster.layout.active)

    def reports_active() -> Process | None:
        for master in cluster.masters:
            with contextlib.suppress(RpcError):
                found = cluster.ask(master, ms.GetMasterStatus(), ms.MasterStatus)
                if found.role == "active" and found.epoch > before:
                    return master
        return None

    return eventually(reports_active, what="another tenure")  # type: ignore[return-value]


@pytest.mark.parametrize("waits", [True, False], ids=["open", "just made"])
def test_a_table_is_scanned_right_after_the_leader_has_changed(cluster: Cluster, way: str, waits: bool) -> None:
    """TS-01: create a table, change the active master, scan at once; also a table whose regions were not open yet."""
    name = f"scanned-{way}-{waits}"
    create = ms.CreateTable(name, SPLITS, wait_ms=60_000 if waits else 0, request_id=f"create-{name}")
    made = cluster.ask_active(create, ms.Tables).tables[0].table
    with connect(cluster.hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S) as client:
        if waits:
            client.write(name, [Change(key, value) for key, value in ROWS.items()])
        change_leader(cluster, way)
        assert dict(client.scan(name)) == (ROWS if waits else {})
        client.put(name, "k0x", b"later")
        assert client.get(name, "k0x") == b"later"
    # KUDU-1353: the new active master names the servers of the regions, and the schema can be changed under it.
    alter = ms.AlterTable(name, schema="x", wait_ms=60_000, request_id=f"alter-{name}")
    altered = cluster.ask_active(alter, ms.Tables).tables[0].table
    assert (altered.table_id, altered.state, altered.schema_version) == (made.table_id, TableState.RUNNING, 1)
    described = cluster.ask_active(ms.DescribeTable(name), ms.Regions).regions
    assert len(described) == len(SPLITS) + 1
    assert all(one.replicas[0].server is not None for one in described)


@pytest.mark.parametrize("waits", [True, False], ids=["TS-02", "TS-03"])
def test_a_table_is_deleted_and_another_created_after_the_leader_has_changed(
    cluster: Cluster, way: str, waits: bool
) -> None:
    """TS-02: create A, change the leader, wait for a heartbeat of each server, delete A, create B; TS-03: without the
    wait. No trace of A remains, and B does not crowd onto few servers (KUDU-1353, KUDU-1358)."""
    name = f"{way}-{waits}"
    create = ms.CreateTable(f"a-{name}", SPLITS, wait_ms=60_000, request_id=f"a-{name}")
    former = cluster.ask_active(create, ms.Tables).tables[0].table
    leader = change_leader(cluster, way)
    if waits:
        eventually(all_heard_since(cluster, leader), what="a heartbeat of each server")
    delete = ms.DeleteTable(f"a-{name}", wait_ms=60_000, request_id=f"d-{name}")
    deleted = cluster.ask(leader, delete, ms.Tables).tables[0].table
    create = ms.CreateTable(f"b-{name}", SPLITS, wait_ms=60_000, request_id=f"b-{name}")
    made = cluster.ask(leader, create, ms.Tables).tables[0].table
    assert (deleted.table_id, deleted.state) == (former.table_id, TableState.REMOVED)
    hosted = [(server, one) for server in cluster.servers for one in listed(cluster, server)]
    assert not [one for _, one in hosted if one.table_id == former.table_id]
    spread = Counter(server.address for server, one in hosted if one.table_id == made.table_id)
    assert sum(spread.values()) == len(SPLITS) + 1
    assert len(spread) == SERVERS
    path = cluster.layout.table_regions(former.table_id)

    def ended() -> bool:
        states = [decode_region(cluster.zk.get(f"{path}/{one}")[0]).state for one in cluster.zk.get_children(path)]
        return states == [TabletState.DELETED] * (len(SPLITS) + 1)

    eventually(ended, what="the tablets of A are DELETED, and their records kept (MD-06)")


def all_heard_since(cluster: Cluster, master: Process) -> Callable[[], bool]:
    """Return True if a master has received a heartbeat of every server since the call. It may not know some servers
    yet."""
    before = beats(cluster, master)

    def heard() -> bool:
        now = beats(cluster, master)
        return len(now) == SERVERS and all(count > before.get(uuid, 0) for uuid, count in now.items())

    return heard


def beats(cluster: Cluster, master: Process) -> dict[str, int]:
    """Return the number of heartbeats that a master has received, by the server's uuid."""
    found = cluster.ask(master, ms.ListContacts(), ms.Contacts)
    return {one.server.uuid: one.beats for one in found.contacts}


def listed(cluster: Cluster, server: Process) -> list[ms.HostedReplica]:
    """Return the regions of a server."""
    return cluster.ask(server, ms.ListOpen(), ms.OpenList).replicas


def test_a_tablet_that_no_master_knows_is_reported_and_stays_open(cluster: Cluster) -> None:
    """FN-04: deleting the catalog by mistake loses no row. The server continues to serve its regions, the new active
    master reports the orphan, an auditor raises an alarm, and nothing is closed or deleted."""
    made = cluster.ask_active(ms.CreateTable("orphaned", wait_ms=60_000), ms.Tables).tables[0].table
    with connect(cluster.hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S) as client:
        client.put("orphaned", "k", b"v")
    layout, region_id = cluster.layout, f"{made.table_id}.0000"
    wipe = cluster.zk.transaction()
    for path in (layout.region(made.table_id, region_id), layout.table_regions(made.table_id), layout.name("orphaned")):
        wipe.delete(path)
    wipe.delete(layout.table(made.table_id))
    assert wipe.commit() == [True] * 4
    [home] = [one for one in cluster.servers if region_id in [had.region_id for had in listed(cluster, one)]]
    try:
        leader = change_leader(cluster, "deposed")

        def is_told() -> bool:
            status = cluster.ask(leader, ms.GetMasterStatus(), ms.MasterStatus)
            return any(one.startswith("orphan") and region_id in one for one in status.problems)

        eventually(is_told, what="a problem that names the orphan")
        eventually(lambda: cluster.zk.get_children(layout.alarms), what="an alarm")
        assert [(one.region_id, one.state) for one in listed(cluster, home) if one.table_id == made.table_id] == [
            (region_id, "OPEN")
        ]
        assert list((cluster.folder / "shared").rglob(f"*{region_id}*")), "its rows are on the disk"
    finally:
        home.kill()
        home.start()
        cluster.wait_servers(SERVERS)
    assert list((cluster.folder / "shared").rglob(f"*{region_id}*")), "nor does the server clear it away"
