"""Three real nodes: deaths, restarts, lag, full stops."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from tests.support.helpers import Process, eventually, finished, free_ports, launch

pytestmark = pytest.mark.e2e


class Cluster:
    """Nodes of one store, started and stopped as processes."""

    def __init__(self, folder: Path, count: int = 3, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.options = options
        ports = free_ports(3 * count)
        self.ids = list(range(1, count + 1))
        self.client_ports = dict(zip(self.ids, ports, strict=False))
        self.peer_ports = dict(zip(self.ids, ports[count:], strict=False))
        self.admin_ports = dict(zip(self.ids, ports[2 * count :], strict=False))
        self.processes: dict[int, Process] = {}

    def arguments(self, node: int) -> list[str]:
        """Return the command line of one node."""
        peers = ",".join(f"{i}=127.0.0.1:{port}" for i, port in self.peer_ports.items())
        many = ["--peer-address", f"127.0.0.1:{self.peer_ports[node]}", "--peers", peers] if len(self.ids) > 1 else []
        return [
            sys.executable, "-m", "cli", "coord", "run", "--id", str(node), "--data-dir", str(self.folder / f"n{node}"),
            "--client-address", f"127.0.0.1:{self.client_ports[node]}",
            "--admin-address", f"127.0.0.1:{self.admin_ports[node]}", *many, *self.options,
        ]  # fmt: skip

    def start(self, *nodes: int) -> None:
        """Start nodes (all by default)."""
        for node in nodes or self.ids:
            self.processes[node] = launch(self.arguments(node), self.folder / f"{node}.log")

    def kill(self, *nodes: int) -> None:
        """Kill nodes with kill -9."""
        for node in nodes or list(self.processes):
            process = self.processes.pop(node)
            process.kill()
            process.wait()

    def stop(self, *nodes: int) -> list[int]:
        """Stop nodes with SIGTERM. Return the exit statuses."""
        chosen = nodes or tuple(self.processes)
        for node in chosen:
            self.processes[node].send_signal(signal.SIGTERM)
        return [self.processes.pop(node).wait(timeout=60) for node in chosen]

    def status(self, node: int) -> dict[str, Any]:
        """Return the status page of one node."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_ports[node]}/status", timeout=10) as answer:
            status: dict[str, Any] = json.load(answer)
            return status

    def leader(self) -> int:
        """Return the node that leads and is followed by all running nodes, each with its full vote."""

        def found() -> int:
            states = {node: self.status(node) for node in self.processes}
            leaders = {state["leader"] for state in states.values()}
            assert len(leaders) == 1, states
            joining = {i for state in states.values() for i in state["joining_members"]}
            assert not joining & states.keys(), states
            assert not any(state["joining"] for state in states.values()), states
            return int(leaders.pop())

        return eventually(found, what="one leader")

    def word(self, node: int, word: bytes) -> str:
        """Return the answer to a four-letter word."""
        with socket.create_connection(("127.0.0.1", self.client_ports[node]), timeout=30) as sock:
            sock.sendall(word)
            return b"".join(iter(lambda: sock.recv(65536), b"")).decode()

    def hosts(self, *nodes: int) -> str:
        """Return the client addresses of these nodes, or of all."""
        return ",".join(f"127.0.0.1:{self.client_ports[node]}" for node in nodes or self.ids)

    @contextlib.contextmanager
    def client(self, *nodes: int) -> Iterator[KazooClient]:
        """Return a kazoo client of these nodes, or of all."""
        client = KazooClient(hosts=self.hosts(*nodes), timeout=10.0)

        def started() -> bool:
            try:
                client.start(timeout=5)
            except KazooTimeoutError as error:
                raise AssertionError("not connected") from error
            return True

        eventually(started, what="a session")
        try:
            yield client
        finally:
            with contextlib.suppress(Exception):
                client.stop()
            client.close()

    def digests(self) -> set[tuple[int, str]]:
        """Return (zxid, digest) of all nodes."""
        return {(s["zxid"], s["digest"]) for s in map(self.status, self.processes)}

    def assert_agreed(self) -> None:
        """Wait until all replicas hold the same state."""
        eventually(lambda: len(self.digests()) == 1, what="equal digests")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield three running nodes. Kill them afterwards."""
    made = Cluster(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.kill()


def run_once(arguments: list[str]) -> tuple[int, str]:
    """Run a command that should end by itself. Return status and stderr."""
    done = finished(arguments, 120)
    return done.returncode, done.stderr


def write_until_refused(client: KazooClient, prefix: str, count: int) -> list[str]:
    """Create znodes one after another until a write fails. Return the acknowledged ones."""
    made: list[str] = []
    for number in range(count):
        path = f"{prefix}{number}"
        try:
            client.create(path, b"x" * 100)
        except KazooException:
            break
        made.append(path)
    return made


def test_writes_through_each_node_are_seen_on_all(cluster: Cluster) -> None:
    """Any node accepts writes; after a sync they are visible everywhere."""
    cluster.leader()
    for node in cluster.ids:
        with cluster.client(node) as client:
            client.create(f"/from-{node}", b"data", ephemeral=False)
    for node in cluster.ids:
        with cluster.client(node) as client:
            client.sync("/")
            assert {f"from-{i}" for i in cluster.ids} <= set(client.get_children("/"))
    cluster.assert_agreed()


def test_clients_survive_the_death_of_the_leader(cluster: Cluster) -> None:
    """Clients of the other nodes keep their connection; the dead node comes back and catches up."""
    leader = cluster.leader()
    follower = next(i for i in cluster.ids if i != leader)
    with cluster.client(follower) as client:
        client.create("/ephemeral", ephemeral=True)
        session_id = client.client_id[0]
        pending = [client.create_async("/before-", sequence=True) for _ in range(50)]
        cluster.kill(leader)
        pending += [client.create_async("/after-", sequence=True) for _ in range(50)]
        made = [p.get(timeout=60) for p in pending]
        assert len(set(made)) == 100
        assert client.client_id[0] == session_id
        assert client.exists("/ephemeral")
        cluster.start(leader)
        cluster.leader()
        cluster.assert_agreed()


def test_lagging_node_catches_up_by_snapshot(tmp_path: Path) -> None:
    """A node was away for longer than the log is kept."""
    cluster = Cluster(tmp_path, options=("--snapshot-entries", "50", "--keep-entries", "10"))
    cluster.start()
    try:
        leader = cluster.leader()
        away = next(i for i in cluster.ids if i != leader)
        cluster.kill(away)
        with cluster.client(leader) as client:
            for number in range(300):
                client.create(f"/k{number}", b"x" * 500)
        eventually(lambda: cluster.status(leader)["snapshot_index"] > 100, what="a snapshot")
        cluster.start(away)
        eventually(lambda: cluster.status(away)["snapshot_index"] > 0, what="the snapshot's arrival")
        cluster.assert_agreed()
    finally:
        cluster.kill()


def test_kill_9_of_all_keeps_every_acknowledged_write(cluster: Cluster) -> None:
    """Rounds of writing, a kill of all processes, and a restart."""
    expected: list[str] = []
    for round_ in range(3):
        cluster.leader()
        with cluster.client() as client:
            flying = [(f"/r{round_}-{n}", client.create_async(f"/r{round_}-{n}", b"x")) for n in range(400)]
            for _, request in flying[:200]:
                request.wait(60)
            cluster.kill()
            expected += [path for path, request in flying if request.successful()]
        cluster.start()
    cluster.leader()
    with cluster.client() as client:
        client.sync("/")
        present = set(client.get_children("/"))
    assert len(expected) >= 600
    assert not [path for path in expected if path[1:] not in present]
    cluster.assert_agreed()


def test_stop_and_start_of_all(cluster: Cluster) -> None:
    """SIGTERM ends every node with status 0; sessions and data survive."""
    cluster.leader()
    with cluster.client() as client:
        client.create("/kept", b"1")
    assert cluster.stop() == [0, 0, 0]
    cluster.start()
    cluster.leader()
    with cluster.client() as client:
        assert client.get("/kept")[0] == b"1"


def test_stopping_leader_hands_over(cluster: Cluster) -> None:
    """Clients of other nodes see neither an error nor a noticeable gap."""
    leader = cluster.leader()
    follower = next(i for i in cluster.ids if i != leader)
    with cluster.client(follower) as client:
        client.create("/a")
        assert cluster.stop(leader) == [0]
        client.set("/a", b"still")
    assert "transfers leadership" in (cluster.folder / f"{leader}.log").read_text()


def test_a_minority_serves_no_client(cluster: Cluster) -> None:
    """A node without a majority closes its client connections instead of serving stale data."""
    cluster.leader()
    with cluster.client(1) as client:
        client.create("/a")
    cluster.kill(2, 3)
    eventually(lambda: not cluster.status(1)["serving"], what="the end of service")
    assert cluster.word(1, b"isro") == "ro"
    assert "not currently serving" in cluster.word(1, b"srvr")
    cluster.start(2, 3)
    cluster.leader()
    with cluster.client(1) as client:
        assert client.exists("/a")


def test_monitors_read_words_and_admin_pages(cluster: Cluster) -> None:
    """The pages and words that monitors read."""
    leader = cluster.leader()
    modes = [next(ln for ln in cluster.word(i, b"srvr").splitlines() if ln.startswith("Mode")) for i in cluster.ids]
    assert sorted(modes) == ["Mode: follower", "Mode: follower", "Mode: leader"]
    assert cluster.word(1, b"ruok") == "imok"
    assert "zk_server_state\tleader" in cluster.word(leader, b"mntr")
    assert "not in the whitelist" in cluster.word(1, b"dump")
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.admin_ports[1]}/metrics", timeout=30) as page:
        assert b"regionkeeper_store_applied_index" in page.read()
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.admin_ports[1]}/ready", timeout=30) as page:
        assert page.status == 200


def test_a_node_that_cannot_start_prints_one_clear_line(tmp_path: Path) -> None:
    """Port taken, directory in use, directory of another node, contradictory options: never a traceback."""
    cluster = Cluster(tmp_path, count=1)
    cluster.start()
    try:
        cluster.leader()
        other = Cluster(tmp_path, count=1)
        other.folder = tmp_path / "other"
        other.client_ports[1] = cluster.client_ports[1]
        for arguments, wanted in (
            (other.arguments(1), "Address already in use"),
            (Cluster(tmp_path, count=1).arguments(1), "in use by another process"),
            ([*other.arguments(1), "--tick-ms", "1"], "1 is not in the range 50<=x<=60000"),
            ([*other.arguments(1), "--words", "nope"], "four-letter word"),
        ):
            status, text = run_once(arguments)
            assert status in (1, 2), text
            assert wanted in text
            assert "Traceback" not in text
        cluster.kill()
        foreign = cluster.arguments(1)
        foreign[foreign.index("--id") + 1] = "2"
        status, text = run_once(foreign)
        assert (status, "belongs to node 1" in text, "Traceback" in text) == (2, True, False), text
    finally:
        cluster.kill()


def test_damaged_log_is_refused_with_file_and_offset(tmp_path: Path) -> None:
    """A flipped bit in the middle of the log: the node names the place, and does not start."""
    cluster = Cluster(tmp_path, count=1)
    cluster.start()
    try:
        cluster.leader()
        with cluster.client() as client:
            for number in range(20):
                client.create(f"/k{number}")
        cluster.kill()
        [segment] = (tmp_path / "n1" / "wal").iterdir()
        with segment.open("r+b") as file:
            file.seek(300)
            byte = file.read(1)
            file.seek(300)
            file.write(bytes([byte[0] ^ 0x40]))
        status, text = run_once(cluster.arguments(1))
        assert status == 1
        assert str(segment) in text
        assert "damaged" in text
        assert "Traceback" not in text
    finally:
        cluster.kill()


def test_damaged_owner_file_is_refused_and_the_advice_works(tmp_path: Path) -> None:
    """One digit made this node a member of another cluster, or gave it other voters, without a word."""
    cluster = Cluster(tmp_path)
    cluster.start()
    try:
        cluster.leader()
        with cluster.client() as client:
            client.create("/before", b"x")
        cluster.kill(3)
        meta = tmp_path / "n3" / "meta.json"
        whole = meta.read_text()
        meta.write_text(whole.replace("  1,\n", "  5,\n"))
        assert meta.read_text() != whole
        status, text = run_once(cluster.arguments(3))
        assert status == 1
        assert f"{meta} is damaged: its checksum does not match. If a majority of the nodes runs, move" in text
        (tmp_path / "n3").rename(tmp_path / "aside")
        cluster.start(3)
        cluster.leader()
        cluster.assert_agreed()
        with cluster.client(3) as client:
            assert client.get("/before")[0] == b"x"
    finally:
        cluster.kill()


def test_zoo_cfg_starts_a_single_node(tmp_path: Path) -> None:
    """An existing file works unchanged; unknown keys are named in a warning. Its port is open to other machines."""
    [port] = free_ports(1)
    config = tmp_path / "zoo.cfg"
    config.write_text(f"tickTime=2000\ndataDir={tmp_path}/data\nclientPort={port}\nfancy.key=1\n")
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "cli", "coord", "run", "--insecure", "--config", str(config)], stderr=out, stdout=out
        )
    client = KazooClient(hosts=f"127.0.0.1:{port}", timeout=10.0)
    try:
        client.start(timeout=60)
        client.create("/a", b"1")
        with pytest.raises(NoNodeError):
            client.get("/b")
        client.stop()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert "zoo.cfg:4: ignored unknown key fancy.key" in log.read_text()
    finally:
        client.close()
        process.kill()
        process.wait()


def test_data_directory_is_private(cluster: Cluster) -> None:
    """Mode 0700, files 0600, because they contain passwords of sessions."""
    cluster.leader()
    folder = cluster.folder / "n1"
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or os.path.isdir(path), path


@pytest.mark.parametrize("door", ["127.0.0.1", "0.0.0.0"])
def test_a_node_of_this_machine_alone_interrupts_nobody_on_it(tmp_path: Path, door: str) -> None:
    """A node with only loopback addresses runs as SCHED_BATCH; one with other addresses is scheduled like any
    server."""
    cluster = Cluster(tmp_path, 1)
    cluster.options = ("--insecure", "--client-address", f"{door}:{cluster.client_ports[1]}")
    cluster.start()
    try:
        cluster.leader()
        threads = [int(name) for name in os.listdir(f"/proc/{cluster.processes[1].pid}/task")]
        wanted = os.SCHED_BATCH if door == "127.0.0.1" else os.SCHED_OTHER
        assert len(threads) > 1
        assert {os.sched_getscheduler(thread) for thread in threads} == {wanted}
    finally:
        cluster.kill()
