"""Changes of members of a running store by an operator: real processes, `rk coord`, and a client that never stops."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from tests.support.helpers import Process, daemon, eventually, finished, free_ports, rk

pytestmark = pytest.mark.e2e

AUTH = "super:secret"
DIGEST = "super:" + base64.b64encode(hashlib.sha1(AUTH.encode(), usedforsecurity=False).digest()).decode()
NODES = 6


class Nodes:
    """Up to six nodes that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(2 * NODES)
        self.clients = {i + 1: f"127.0.0.1:{port}" for i, port in enumerate(ports[:NODES])}
        self.peers = {i + 1: f"127.0.0.1:{port}" for i, port in enumerate(ports[NODES:])}
        self.running: dict[int, contextlib.ExitStack] = {}
        self.processes: dict[int, Process] = {}

    @property
    def hosts(self) -> str:
        """Return the client addresses of all nodes, running or not."""
        return ",".join(self.clients.values())

    def start(self, node: int, *options: str) -> None:
        """Start a node; `options` say how it finds the others."""
        words = [
            *("coord", "run", "--id", str(node), "--data-dir", str(self.folder / f"n{node}")),
            *("--client-address", self.clients[node], "--peer-address", self.peers[node]),
            *("--super-digest", DIGEST, "--tick-ms", "250", "--snapshot-entries", "200", "--keep-entries", "50"),
        ]
        stack = self.running[node] = contextlib.ExitStack()
        self.processes[node] = stack.enter_context(daemon(rk(*words, *options), log=self.folder / f"{node}.log"))

    def first(self, *ids: int) -> None:
        """Start a new store of these nodes."""
        peers = ",".join(f"{i}={self.peers[i]}" for i in ids)
        for i in ids:
            self.start(i, *(("--peers", peers) if len(ids) > 1 else ()))
        eventually(lambda: len(self.members()) == len(ids), what="the store tells its members")

    def join(self, node: int, member: int) -> None:
        """Start an empty node that knows one member."""
        self.start(node, "--join", self.clients[member] if node % 2 else self.peers[member])

    def kill(self, node: int) -> None:
        """Kill a node with kill -9."""
        self.running.pop(node).close()

    def tool(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `rk coord …` with super's credential."""
        command = rk("coord", *words, "--store", self.hosts, "--auth", AUTH)
        return finished(command, 300)

    def do(self, *words: str) -> str:
        """Run a command that must succeed."""
        found = self.tool(*words)
        assert found.returncode == 0, found.stdout + found.stderr + self.logs()
        return found.stdout

    def add(self, node: int) -> None:
        """Add a node."""
        self.do("add", str(node), "--peer", self.peers[node], "--client", self.clients[node])

    def members(self) -> list[dict[str, Any]]:
        """Return the output of `rk coord list`. Raise AssertionError without an answer."""
        found = self.tool("list", "--json")
        assert found.returncode == 0, found.stderr
        return list(json.loads(found.stdout)["nodes"])

    def ids(self) -> list[int]:
        """Return the ids of the participants."""
        return [node["id"] for node in self.members() if node["role"] == "participant"]

    def leader(self) -> int:
        """Return the leader."""
        return int(eventually(lambda: [n["id"] for n in self.members() if n["is_leader"]], what="a leader")[0])

    def ended(self, node: int) -> int:
        """Wait until a node ends by itself. Return the exit status."""
        status = self.processes[node].wait(60)
        self.kill(node)
        return status

    def logs(self) -> str:
        """Return the last lines of all nodes, for a failing test."""
        return "\n".join(f"--- {p.name}\n{p.read_text()[-2000:]}" for p in sorted(self.folder.glob("*.log")))


class Writer:
    """Creates /w/0, /w/1, … one after the other, over any number of reconnects, and remembers the acknowledged ones."""

    def __init__(self, hosts: str) -> None:
        self.client = KazooClient(hosts=hosts, timeout=4)
        self.client.start(timeout=60)
        self.client.ensure_path("/w")
        self.acknowledged: list[int] = []
        self.failed = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._end.wait(0.002):
            try:
                self.client.create(f"/w/{number}", b"x" * 100)
                self.acknowledged.append(number)
            except (KazooException, KazooTimeoutError):
                self.failed += 1
            number += 1

    def stop(self) -> None:
        """Stop writing."""
        self._end.set()
        self._thread.join()
        self.client.stop()
        self.client.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Yield the nodes. Kill all of them afterwards."""
    found = Nodes(tmp_path)
    yield found
    for stack in found.running.values():
        stack.close()


@contextlib.contextmanager
def writing(nodes: Nodes) -> Iterator[Writer]:
    """Run a writer during the block. Check afterwards that every node has all acknowledged writes."""
    writer = Writer(nodes.hosts)
    try:
        yield writer
    finally:
        writer.stop()
    assert len(writer.acknowledged) > 50
    wanted = {str(number) for number in writer.acknowledged}
    for node in nodes.ids():
        client = KazooClient(hosts=nodes.clients[node], timeout=10)
        client.start(timeout=60)
        client.sync("/w")
        missing = wanted - set(client.get_children("/w"))
        client.stop()
        client.close()
        assert not missing, f"node {node} lost {sorted(missing)[:5]} of {len(wanted)}"


def test_one_to_three_to_five_to_three(nodes: Nodes) -> None:
    """While a client writes: no acknowledged write is lost, and removed nodes end by themselves with status 0."""
    nodes.first(1)
    with writing(nodes) as writer:
        for node in (2, 3, 4, 5):
            nodes.join(node, 1)
            nodes.add(node)
            before = len(writer.acknowledged)
            eventually(lambda at=before: len(writer.acknowledged) > at + 5, what="writes go on")
        assert nodes.ids() == [1, 2, 3, 4, 5]
        for node in (1, 2):
            nodes.do("remove", str(node))
        for node in (1, 2):
            assert nodes.ended(node) == 0
            assert f"node {node} is not a member of this store any more" in (nodes.folder / f"{node}.log").read_text()
        assert nodes.ids() == [3, 4, 5]
        before = len(writer.acknowledged)
        eventually(lambda: len(writer.acknowledged) > before + 20, what="writes go on")
    # All nodes restart: the members are in the log, whatever the command lines name.
    for node in (3, 4, 5):
        nodes.processes[node].send_signal(signal.SIGTERM)
    for node in (3, 4, 5):
        assert nodes.ended(node) == 0
    for node in (3, 4, 5):
        nodes.join(node, 1)
    eventually(lambda: nodes.ids() == [3, 4, 5], what="the three are a store again")


def test_replace_a_dead_node(nodes: Nodes) -> None:
    """A node and its disk are lost: remove it, add another one, under load."""
    nodes.first(1, 2, 3)
    with writing(nodes):
        nodes.kill(2)
        nodes.do("remove", "2")
        nodes.join(4, 3)
        nodes.add(4)
        assert nodes.ids() == [1, 3, 4]
        nodes.kill(3)
        eventually(lambda: 4 in nodes.ids() and nodes.leader() in (1, 4), what="the new node counts")
        nodes.start(3, "--join", nodes.peers[1])
        eventually(lambda: all(node["is_up"] for node in nodes.members()), what="all are up")


def test_remove_and_hand_over_the_leader(nodes: Nodes) -> None:
    """Neither a transfer of leadership nor the removal of the leader is an outage."""
    nodes.first(1, 2, 3)
    with writing(nodes):
        heir = next(i for i in (1, 2, 3) if i != nodes.leader())
        nodes.do("transfer-leader", str(heir))
        assert nodes.leader() == heir
        nodes.do("remove", str(heir))
        assert nodes.ended(heir) == 0
        assert heir not in nodes.ids()
    # The remaining two agree with /zookeeper/config.
    client = KazooClient(hosts=nodes.hosts)
    client.start(timeout=60)
    text = client.get("/zookeeper/config")[0].decode()
    client.stop()
    client.close()
    assert [word.partition("=")[0] for word in text.split()] == [f"server.{i}" for i in nodes.ids()] + ["version"]


def test_a_removed_node_may_be_added_again_at_once(nodes: Nodes) -> None:
    """Its process still runs: it becomes a member again without a restart, and serves."""
    nodes.first(1, 2, 3)
    again = next(i for i in (1, 2, 3) if i != nodes.leader())
    client = KazooClient(hosts=nodes.clients[again], timeout=10)
    client.start(timeout=60)
    client.create("/here")
    nodes.do("remove", str(again))
    eventually(lambda: "closing its clients" in (nodes.folder / f"{again}.log").read_text(), what="it knows")
    nodes.add(again)
    assert nodes.ids() == [1, 2, 3]
    eventually(lambda: client.connected and client.exists("/here"), what="its client is back")
    client.stop()
    client.close()
    eventually(lambda: "is a member again" in (nodes.folder / f"{again}.log").read_text(), what="it stays")
    assert nodes.processes[again].poll() is None


def test_observer_and_linearizable_reads_in_zoo_cfg(nodes: Nodes) -> None:
    """Two participants and an observer from ZooKeeper's files: the observer serves reads and writes, and never
    votes."""
    roles = {1: "participant", 2: "participant", 3: "observer"}
    lines = [f"server.{i}={nodes.peers[i]}:1{i}:{role};{nodes.clients[i]}" for i, role in roles.items()]
    common = ["tickTime=250", "reconfigEnabled=true", "linearizableReads=true"]
    for i in roles:
        data = nodes.folder / f"n{i}"
        data.mkdir()
        (data / "myid").write_text(str(i))
        own = [f"dataDir={data}", f"DigestAuthenticationProvider.superDigest={DIGEST}"]
        own += ["peerType=observer"] if roles[i] == "observer" else []
        (nodes.folder / f"{i}.cfg").write_text("\n".join([*common, *own, *lines]))
        stack = nodes.running[i] = contextlib.ExitStack()
        command = rk("coord", "run", "--insecure", "--config", str(nodes.folder / f"{i}.cfg"))
        nodes.processes[i] = stack.enter_context(daemon(command, log=nodes.folder / f"{i}.log"))
    eventually(lambda: [node["role"] for node in nodes.members()] == list(roles.values()), what="all are there")
    observing = KazooClient(hosts=nodes.clients[3], timeout=10)
    voting = KazooClient(hosts=nodes.clients[1], timeout=10)
    for client in (observing, voting):
        client.start(timeout=60)
    for k in range(50):
        voting.create(f"/n{k}")
        assert observing.exists(f"/n{k}"), "a linearizable read is never stale"
    observing.create("/by-observer")
    assert voting.get("/zookeeper/config")[0].decode().splitlines()[:3] == lines
    assert b"Mode: observer" in observing.command(b"srvr").encode()
    for client in (observing, voting):
        client.stop()
        client.close()


def test_what_is_refused_says_why(nodes: Nodes) -> None:
    """Each rejection is one line, with a remedy."""
    nodes.first(1, 2, 3)
    refused = nodes.tool("remove", "9")
    assert refused.returncode == 4
    assert "node 9 is not a member" in refused.stderr
    nobody = rk("coord", "remove", "1", "--store", nodes.hosts)
    told = finished(nobody, 120)
    assert told.returncode == 1
    assert "--store-auth" in told.stderr
    nodes.do("add", "4", "--peer", nodes.peers[4], "--no-wait")
    assert "node 4 has not caught up" in nodes.tool("add", "5", "--peer", nodes.peers[5]).stderr
    nodes.do("remove", "4")
    gone = next(i for i in (1, 2, 3) if i != nodes.leader())
    nodes.kill(gone)
    other = next(i for i in (1, 2, 3) if i not in (gone, nodes.leader()))

    def loses() -> bool:
        return "lose its majority" in nodes.tool("remove", str(other)).stderr

    eventually(loses, what="the leader notices")
    alone = rk(
        "coord", "run", "--id", "6", "--data-dir", str(nodes.folder / "n6"), "--client-address", nodes.clients[6]
    )
    told = finished([*alone, "--join", "127.0.0.1:1"], 120)
    assert told.returncode == 2
    assert "peer address" in told.stderr
