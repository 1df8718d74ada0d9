"""Services of several kinds in one cluster: each server gets only the tables of its kind (real processes)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from coord.rpc.wire import RpcError
from regions import messages as ms
from regionserver.client import connect
from tests.e2e.clusters import run_rk
from tests.e2e.masters import SESSION_MS, Cluster, cluster_on, own_store
from tests.support.helpers import daemon, eventually, free_ports

pytestmark = pytest.mark.e2e
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "counters.py")


@contextmanager
def counters(cluster: Cluster, number: int) -> Iterator[int]:
    """Start a server of counters. Return its port."""
    [port] = free_ports(1)
    folder = cluster.folder
    words = [sys.executable, EXAMPLE, "serve", "--store", cluster.hosts, "--address", f"127.0.0.1:{port}"]
    words += ["--data-dir", str(folder / f"counters{number}"), "--shared-dir", str(folder / "counts")]
    with daemon([*words, "--session-timeout-ms", str(SESSION_MS)], log=folder / f"counters{number}.log"):
        yield port


def kinds_of(cluster: Cluster, table: str) -> set[str]:
    """Kinds of the servers on which a table's regions are open; "" for a region that is open nowhere."""
    servers = {one.server.uuid: one.server.kind for one in cluster.ask_active(ms.ListServers(), ms.Servers).servers}
    found = cluster.ask_active(ms.DescribeTable(table), ms.Regions).regions
    return {servers.get(one.server.uuid, "") if one.server else "" for region in found for one in region.replicas}


def test_each_kind_of_service_gets_only_its_own_tables(tmp_path: Path) -> None:
    """A server of another kind once got a third of the key-value regions within half a minute."""
    with ExitStack() as running:
        hosts = running.enter_context(own_store(tmp_path / "store", 1))
        cluster = running.enter_context(cluster_on(hosts, tmp_path / "c", masters=1, servers=2))
        rows = ms.CreateTable("rows", splits=["c", "f", "m", "t"], wait_ms=60_000)
        assert cluster.ask_active(rows, ms.Tables).tables[0].table.kind == "kv/1"
        ports = [running.enter_context(counters(cluster, number)) for number in range(2)]
        cluster.wait_servers(4)

        store = ["--store", hosts]
        refused = run_rk("table", "create", "hits", *store)
        assert refused.returncode == 1, refused
        assert (
            "the live servers are of several kinds (counters/1, kv/1): choose the table's kind with --kind"
            in refused.stderr
        )
        made = run_rk("table", "create", "hits", "--split", "k", "--kind", "counters", *store)
        assert made.returncode == 0, made
        assert kinds_of(cluster, "hits") == {"counters/1"}
        assert kinds_of(cluster, "rows") == {"kv/1"}

        _each_answers_its_own(hosts)
        _commands_show_it(hosts)
        _no_way_leads_to_another_kind(cluster, ports[0], hosts)


def _each_answers_its_own(hosts: str) -> None:
    def add(table: str, key: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, EXAMPLE, "add", "--store", hosts, table, key],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    assert add("hits", "a") == (0, "1\n")
    status, said = add("rows", "a")
    assert status == 1
    assert "kind kv/1, does not answer counters.Add requests" in said
    with connect(hosts) as client:
        client.put("rows", "a", b"1")
        assert client.get("rows", "a") == b"1"
    scanned = run_rk("scan", "hits", "--store", hosts)
    assert scanned.returncode == 1, scanned
    assert "kind counters/1, does not answer KvScan requests" in scanned.stderr
    assert "$" not in scanned.stderr


def _commands_show_it(hosts: str) -> None:
    store = ["--store", hosts]
    status = json.loads(run_rk("status", "--json", *store).stdout)
    assert sorted(one["kind"] for one in status["servers"]) == ["counters/1", "counters/1", "kv/1", "kv/1"]
    assert {one["table"]["name"]: one["table"]["kind"] for one in status["tables"]} == {
        "rows": "kv/1",
        "hits": "counters/1",
    }
    assert "kind counters/1" in run_rk("table", "show", "hits", *store).stdout
    for words in (["server", "list"], ["table", "list"], ["status"], ["why", "hits:a"]):
        assert "counters/1" in run_rk(*words, *store).stdout, words


def _no_way_leads_to_another_kind(cluster: Cluster, port: int, hosts: str) -> None:
    store = ["--store", hosts]
    moved = run_rk("region", "move", "rows:a", "--to", f"127.0.0.1:{port}", *store)
    assert moved.returncode == 1, moved
    assert "its kind is counters/1, and the table needs kv/1" in moved.stderr
    assert run_rk("balance", "run", *store).returncode == 0
    for server in cluster.servers:
        server.kill()
    # The session of the dead server has to expire first. Then no server may open the rows.
    eventually(lambda: kinds_of(cluster, "rows") == {""}, what="both key-value servers are gone")
    why = eventually(
        lambda: [one for one in cluster.status().problems if "no eligible server" in one], what="a problem"
    )
    assert "its kind is counters/1, and the table needs kv/1" in why[0]
    cluster.servers[0].start()
    eventually(lambda: kinds_of(cluster, "rows") == {"kv/1"}, what="the rows are open again")
    with connect(hosts) as client:
        assert client.get("rows", "a") == b"1"


def test_fsck_fences_only_the_shown_start_and_restores_a_lost_name(tmp_path: Path) -> None:
    """A server that was restarted since is not fenced; `rk fsck --fix` enters the name again if it is free."""
    with own_store(tmp_path / "store", 1) as hosts, cluster_on(hosts, tmp_path / "c", masters=1, servers=1) as cluster:
        cluster.ask_active(ms.CreateTable("orders", wait_ms=60_000), ms.Tables)
        cluster.wait_settled()
        [server] = cluster.ask_active(ms.ListServers(), ms.Servers).servers
        former = ms.FenceServer(server.server.uuid, start_code=server.server.start_code - 1)
        with pytest.raises(RpcError, match="has restarted") as caught:
            cluster.ask(cluster.masters[0], former, ms.Accepted)
        assert caught.value.code == ms.BAD_REQUEST
        assert len(cluster.ask_active(ms.ListServers(), ms.Servers).servers) == 1

        path = cluster.layout.name("orders")
        value = cluster.zk.get(path)[0]
        cluster.zk.delete(path)
        looked = run_rk("fsck", "--json", "--store", hosts)
        assert looked.returncode == 1, looked
        assert [one["problem"] for one in json.loads(looked.stdout)["findings"]] == ["table without its name"]
        mended = run_rk("fsck", "--fix", "--yes", "--store", hosts)
        assert "done  orders" in mended.stdout, mended
        assert cluster.zk.get(path)[0] == value
        assert run_rk("fsck", "--store", hosts).returncode == 0
