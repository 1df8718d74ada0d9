"""Two clusters on one store, below different roots: a server of one cluster is rejected by the other (FN-04)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from cli.common.local import Shape, design, write_cluster
from coord.rpc.wire import RpcError
from regions import messages as ms
from regions.messages.heartbeat import Heartbeat
from regions.records.znodes import Layout, decode_cluster
from tests.e2e.clusters import run_rk
from tests.e2e.masters import Cluster, Process, cluster_on, own_store
from tests.support.helpers import eventually, free_ports

pytestmark = pytest.mark.e2e
OTHER = Layout("/other")


def test_a_server_that_comes_to_the_wrong_cluster_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    """FN-04, FN-08, HB-12: the other cluster's master rejects the server's heartbeats, the server rejects that master's
    orders, and the server does not start below the wrong root. Afterwards it continues in its own cluster."""
    with own_store(tmp_path, 1) as hosts, cluster_on(hosts, tmp_path / "mine", masters=1, servers=1) as cluster:
        [port] = free_ports(1)
        options = ["--store", hosts, "--root", "/other", "--address", f"127.0.0.1:{port}"]
        arguments = ["master", "run", *options, "--data-dir", str(tmp_path / "foreign")]
        foreign = Process(arguments, ("127.0.0.1", port), tmp_path / "foreign.log")
        try:
            foreign.start()
            [server] = cluster.servers
            server.kill()
            server.arguments += ["--masters", f"127.0.0.1:{port}"]
            server.start()
            cluster.ask_active(ms.CreateTable("orders", splits=["5"], wait_ms=60_000), ms.Tables)
            before = cluster.check_owners()
            _refused_by_master_and_server(cluster, foreign, server)
            _refused_by_itself(cluster, server)
            server.start()
            cluster.wait_settled()
            assert cluster.check_owners() == before
        finally:
            foreign.kill()


def _refused_by_master_and_server(cluster: Cluster, foreign: Process, server: Process) -> None:
    """Check that heartbeats of our server are rejected there, and orders from there are rejected here."""

    def reach() -> dict[str, str]:
        status = cluster.ask(server, ms.GetServerStatus(), ms.ServerStatus)
        return {one.role: one.trouble for one in status.masters}

    eventually(
        lambda: "leader" in reach() and ms.WRONG_CLUSTER in reach().get("unknown", ""), what="both have answered"
    )
    assert cluster.ask(foreign, ms.ListContacts(), ms.Contacts).contacts == []
    mine = cluster.ask(server, ms.GetServerStatus(), ms.ServerStatus)
    theirs = decode_cluster(cluster.zk.get(OTHER.cluster)[0]).cluster_id
    assert mine.cluster_id not in ("", theirs)
    order = ms.CloseRegions(99, mine.server.uuid, mine.server.start_code, [], cluster=theirs)
    with pytest.raises(RpcError, match="belongs to cluster") as caught:
        cluster.ask(server, order, ms.OrderResults)
    assert caught.value.code == ms.WRONG_CLUSTER
    assert cluster.ask(server, ms.GetServerStatus(), ms.ServerStatus).epoch < 99, "not even its epoch is believed"
    beat = Heartbeat(theirs, mine.server.incarnation, 1)
    with pytest.raises(RpcError) as caught:
        cluster.ask(cluster.masters[0], beat, ms.HeartbeatReply)
    assert caught.value.code == ms.WRONG_CLUSTER


def _refused_by_itself(cluster: Cluster, server: Process) -> None:
    """Check that a server started below the wrong root ends with one clear line, and changes neither that root nor its
    directory."""
    identity = cluster.folder / "server0" / "instance.json"
    assert server.terminate() == 0
    before = json.loads(identity.read_bytes())
    lost = Process([*server.arguments, "--root", "/other"], server.address, cluster.folder / "lost.log")
    lost.start()
    assert lost.popen is not None
    assert lost.popen.wait(60) == 1
    lost.kill()
    said = lost.log.read_text()
    assert "belongs to a server of cluster" in said
    assert "Traceback" not in said
    assert cluster.zk.get_children(OTHER.servers) == []
    after = json.loads(identity.read_bytes())
    assert [after[name] for name in ("uuid", "cluster_id")] == [before[name] for name in ("uuid", "cluster_id")]


def test_a_command_for_one_cluster_is_not_obeyed_by_another(tmp_path: Path) -> None:
    """FN-08: if a request names its cluster, the masters of the other cluster reject it and name both; nothing is done
    there. If it names none, the question and the result name the cluster."""
    with contextlib.ExitStack() as running:
        hosts, elsewhere = (running.enter_context(own_store(tmp_path / name, 1)) for name in ("mine", "foreign"))
        cluster = running.enter_context(cluster_on(hosts, tmp_path / "mine", masters=1, servers=1))
        foreign = running.enter_context(cluster_on(elsewhere, tmp_path / "foreign", masters=1, servers=1))
        for one in (cluster, foreign):
            one.ask_active(ms.CreateTable("orders"), ms.Tables)
        my_id, their_id = (one.status().cluster for one in (cluster, foreign))
        assert "" not in (my_id, their_id)
        ours, theirs = (f"127.0.0.1:{one.masters[0].address[1]}" for one in (cluster, foreign))
        _refuses_what_is_meant_for_another(tmp_path, hosts, ours, theirs, my_id, their_id)
        tables = foreign.ask_active(ms.ListTables(), ms.Tables).tables
        assert [(one.table.name, one.table.intent.value) for one in tables] == [("orders", "enabled")]
        asked = run_rk("table", "delete", "orders", "--masters", theirs, *EMPTY)
        assert f"of cluster {their_id}?" in asked.stdout + asked.stderr
        done = run_rk("table", "delete", "orders", "--no-wait", "--yes", "--masters", theirs, *EMPTY)
        assert (done.returncode, f"of cluster {their_id} is deleted" in done.stdout) == (0, True), done


#: A data directory without a local cluster.
EMPTY = ["--data-dir", "/nonexistent/rk-data"]


def _refuses_what_is_meant_for_another(
    folder: Path, hosts: str, ours: str, theirs: str, my_id: str, their_id: str
) -> None:
    local = folder / "local"
    (local / "server-1").mkdir(parents=True)
    write_cluster(design(Shape(1, 1, 1, 1, 21800, None, "/regionkeeper", "greedy"), local), local)
    (local / "server-1" / "instance.json").write_text(json.dumps({"cluster_id": my_id, "uuid": "u"}))
    delete = ["table", "delete", "orders", "--yes"]
    for words in (
        ["--store", hosts, "--masters", theirs],
        ["--masters", theirs, "--cluster-id", my_id, *EMPTY],
        ["--masters", theirs, "--data-dir", str(local)],
    ):
        refused = run_rk(*delete, *words)
        assert refused.returncode == 1, (words, refused)
        said = f"this master belongs to cluster {their_id}, the request is meant for cluster {my_id}"
        assert said in refused.stderr, (words, refused)
    # Two masters of different clusters in one list: the first that answers decides.
    mixed = run_rk("table", "disable", "nothing", "--masters", f"{theirs},{ours}", *EMPTY)
    assert mixed.returncode == 4, mixed
    named = run_rk(*delete, "--store", hosts, "--cluster-id", their_id)
    assert f"belongs to cluster {my_id}, but --cluster-id names {their_id}" in named.stderr, named
