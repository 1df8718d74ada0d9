"""`rk up`: starts a cluster, starts it again, also after a crash of all processes; and rejected starts."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from cli.common.local import HOST
from tests.e2e.clusters import LocalUp, free_base_port, local_up, processes_of, run_rk
from tests.support.helpers import eventually
from tests.support.zookeeper import zookeeper

pytestmark = pytest.mark.e2e

SHAPE = ("--store-nodes", "3", "--masters", "2", "--servers", "3", "--regions", "40", "--plan-engine", "greedy")
#: A table of shared regions, which return to their former servers.
SHARED = ("--replicas", "1")
ACKNOWLEDGED = 50


def cluster_id(up: LocalUp) -> str:
    """Return the cluster's id."""
    with_store = up.event("up")["cluster"]["store"]
    client = KazooClient(hosts=with_store, auth_data=[("digest", up.store_auth())])
    client.start(60)
    try:
        found: str = json.loads(client.get("/regionkeeper/cluster")[0])["cluster_id"]
    finally:
        client.stop()
        client.close()
    return found


def detail(started: dict[str, Any], phase: str) -> str:
    """Return the details that a start printed at the end of a phase."""
    return next(str(one["detail"]) for one in started["phases"] if one["name"] == phase)


def places(data_dir: Path) -> dict[str, str]:
    """Return the server of each region, from `rk region list`."""
    done = run_rk("region", "list", "--json", "--data-dir", str(data_dir))
    assert done.returncode == 0, done.stderr
    return {one["region"]["region_id"]: one["replicas"][0]["server"]["uuid"] for one in json.loads(done.stdout)}


def test_cluster_lives_through_stop_and_through_kill_of_everything(tmp_path: Path) -> None:
    """The first start creates the table; later ones find data, id and places; acknowledged writes survive kill -9 of
    all. The table has one copy, like those of earlier versions, and later starts keep it. A table of another name in a
    later start has three replicas, which stay on their servers."""
    data_dir = tmp_path / "rk-data"
    base = str(free_base_port())

    with local_up(data_dir, "--base-port", base, *SHAPE, *SHARED) as up:
        first = up.event("up")
        assert (first["regions"], first["open"], first["parked"], first["kept"]) == (40, 40, 0, None)
        assert [phase["name"] for phase in first["phases"]] == ["store", "master", "servers", "table", "plan", "open"]
        assert "rows in the shared directory" in detail(first, "table")
        name = cluster_id(up)
        before = places(data_dir)
        assert len(set(before.values())) == 3
        second = run_rk("up", "--data-dir", str(data_dir))
        assert second.returncode == 1
        assert "in use by the `rk up` with pid" in second.stderr
        assert (data_dir / "store-auth").stat().st_mode & 0o777 == 0o600
        local_members = run_rk("coord", "transfer-leader", "2", "--data-dir", str(data_dir))
        assert local_members.returncode == 0, local_members.stderr
        described = run_rk("table", "describe", "packages", "--data-dir", str(data_dir))
        assert described.returncode == 0, described.stderr
        assert described.stdout.count(" open ") >= 40
        assert up.stop() == 0, up.said()
        assert processes_of(data_dir) == []

    with local_up(data_dir) as up:  # the shape is remembered
        again = up.event("up")
        assert (again["open"], again["kept"]) == (40, 40), up.said()
        assert any(one.get("cluster_start") for one in up.events), up.said()
        assert cluster_id(up) == name
        assert places(data_dir) == before
        assert "table" not in [phase["name"] for phase in again["phases"]]
        client = KazooClient(hosts=again["cluster"]["store"], auth_data=[("digest", up.store_auth())])
        client.start(60)
        for number in range(ACKNOWLEDGED):
            client.create(f"/acknowledged-{number:03d}", b"kept")
        client.stop()
        client.close()
        up.kill_everything()

    with local_up(data_dir, "--table", "orders", "--regions", "8") as up:
        third = up.event("up")
        assert "tablets, 3 replicas each" in detail(third, "table")
        assert (third["open"], third["kept"]) == (40 + 8 * 3, 40), up.said()
        client = KazooClient(hosts=third["cluster"]["store"], auth_data=[("digest", up.store_auth())])
        client.start(60)
        client.sync("/")
        kept = [name for name in client.get_children("/") if name.startswith("acknowledged-")]
        client.stop()
        client.close()
        assert len(kept) == ACKNOWLEDGED
        assert up.stop(signal.SIGTERM) == 0, up.said()
        assert processes_of(data_dir) == []


def test_masters_and_servers_run_unchanged_on_apache_zookeeper(tmp_path: Path) -> None:
    """The same cluster on a real ZooKeeper 3.9: regions open, move, and survive their server's death."""
    data_dir = tmp_path / "rk-data"
    shape = ("--masters", "1", "--servers", "2", "--regions", "20", "--plan-engine", "greedy", *SHARED)
    with zookeeper(tmp_path) as store:
        options = ("--store", f"zk://{store.hosts}", "--base-port", str(free_base_port()), *shape)
        with local_up(data_dir, *options) as up:
            first = up.event("up")
            assert (first["open"], first["leader"], first["cluster"]["coord"]) == (20, "", [])
            moved = run_rk("region", "move", "packages:python3", "--data-dir", str(data_dir))
            assert moved.returncode == 0, moved.stderr
            assert " -> server-" in moved.stdout
            drilled = run_rk("drill", "server-crash", "--json", "--data-dir", str(data_dir), timeout_s=300)
            assert drilled.returncode == 0, f"{drilled.stdout}\n{drilled.stderr}"
            assert up.stop() == 0, up.said()


def test_killed_up_takes_its_daemons_with_it(tmp_path: Path) -> None:
    """kill -9 of `rk up` alone leaves no process."""
    data_dir = tmp_path / "rk-data"
    shape = ("--store-nodes", "1", "--masters", "1", "--servers", "1", "--no-table", "--plan-engine", "greedy")
    with local_up(data_dir, "--base-port", str(free_base_port()), *shape) as up:
        up.event("up")
        assert len(up.pids()) == 3
        up.process.kill()  # local_up checks that nothing is left


def test_a_removed_store_node_is_not_started_again(tmp_path: Path) -> None:
    """Neither by the running `rk up`, nor by the next one, nor if `rk up` was killed before the node had ended."""
    data_dir = tmp_path / "rk-data"
    shape = ("--store-nodes", "5", "--masters", "1", "--servers", "1", "--no-table", "--plan-engine", "greedy")
    place = ("--data-dir", str(data_dir))

    def nodes() -> list[str]:
        return [one["name"] for one in json.loads((data_dir / "cluster.json").read_text())["coord"]]

    def remove(number: int) -> None:
        done = run_rk("coord", "remove", str(number), *place)
        assert done.returncode == 0, done.stderr

    with local_up(data_dir, "--base-port", str(free_base_port()), *shape) as up:
        up.event("up")
        remove(5)
        said = eventually(lambda: [one for one in up.events if one.get("removed")], what="rk up takes the node out")
        assert [one["daemon"] for one in said] == ["store-5"]
        eventually(lambda: nodes() == ["store-1", "store-2", "store-3", "store-4"], what="the file is written")
        assert not any("store-5" in line for line in processes_of(data_dir))
        remove(4)
        up.kill_everything()
    with local_up(data_dir) as up:
        up.event("up")
        assert nodes() == ["store-1", "store-2", "store-3"]
        assert run_rk("health", *place).returncode == 0
        assert up.stop() == 0, up.said()


def test_taken_port_is_one_clear_error_and_nothing_starts(tmp_path: Path) -> None:
    """The error names the port, its purpose, and a remedy."""
    base = free_base_port()
    with socket.socket() as taken:
        taken.bind((HOST, base + 31))
        taken.listen()
        done = run_rk("up", "--data-dir", str(tmp_path / "rk-data"), "--base-port", str(base))
    assert done.returncode == 1
    assert f"port {base + 31} is in use" in done.stderr
    assert "master-1 needs it as its RPC port" in done.stderr
    assert "--base-port" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "rk-data" / "logs").exists()


def test_directory_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    """`rk up --data-dir ~` must not scatter a cluster over it."""
    (tmp_path / "letter.txt").write_text("dear")
    done = run_rk("up", "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert "not empty and holds no cluster" in done.stderr
