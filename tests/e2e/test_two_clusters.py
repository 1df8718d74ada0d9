"""Two clusters on one store, below different roots: a server of one has no business with the other (FN-04)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coord.rpc_wire import RpcError
from regions import messages as ms
from regions.heartbeat import Heartbeat
from regions.layout import Layout, decode_cluster
from tests.e2e.masters import Cluster, Process, cluster_on, own_store
from tests.helpers import eventually, free_ports

pytestmark = pytest.mark.e2e
OTHER = Layout("/other")


def test_a_server_that_comes_to_the_wrong_cluster_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    """FN-04, FN-08, HB-12: by the master whose address it was given by mistake, by the server whom that cluster's
    master orders about, and by itself when it is started below the wrong root; afterwards it goes on where it was."""
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
    """Heartbeats of ours are not taken there, orders from there are not obeyed here."""

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
    """Started below the wrong root it ends with one clear line, and leaves no trace there or in its directory."""
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
