"""A store with nodes of two builds, and clients that send requests that no valid client would send."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from coord.wire import records as r
from tests.compat.frames import Session
from tests.compat.requests import CUT, ROOT, SESSIONS, Request, Requests
from tests.support.helpers import PATIENCE_S, daemon, eventually, free_ports
from tests.upgrade.builds import rk_of

NODES = (1, 2, 3)
#: One in this many random steps is preceded by a request that the builds answer differently.
DIFFERING_EVERY = 10


class MixedStore:
    """Three nodes. Each start of a node names its build."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(9)
        self._clients = dict(zip(NODES, ports, strict=False))
        self._peers = dict(zip(NODES, ports[3:], strict=False))
        self._admins = dict(zip(NODES, ports[6:], strict=False))
        self._stacks = {node: contextlib.ExitStack() for node in NODES}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def hosts(self) -> str:
        """Return all addresses in the form that clients accept."""
        return ",".join(f"127.0.0.1:{port}" for port in self._clients.values())

    def address(self, node: int) -> str:
        """Return the client address of a node."""
        return f"127.0.0.1:{self._clients[node]}"

    def data_dir(self, node: int) -> Path:
        """Return the data directory of a node."""
        return self.folder / f"n{node}"

    def log(self, node: int) -> str:
        """Return all output of the processes of a node."""
        return (self.folder / f"{node}.log").read_text(errors="replace")

    def start(self, node: int, root: Path) -> None:
        """Start a node with the build in `root`. Do not wait."""
        peers = ",".join(f"{i}=127.0.0.1:{port}" for i, port in self._peers.items())
        command, environment, cwd = rk_of(
            root, "coord", "run", "--id", str(node), "--data-dir", str(self.data_dir(node)),
            "--client-address", self.address(node), "--peer-address", f"127.0.0.1:{self._peers[node]}",
            "--peers", peers, "--admin-address", f"127.0.0.1:{self._admins[node]}", "--tick-ms", "500",
        )  # fmt: skip
        running = daemon(command, log=self.folder / f"{node}.log", env=environment, cwd=cwd)
        self.processes[node] = self._stacks[node].enter_context(running)

    def stop(self, node: int) -> None:
        """Stop a node as an operator does: it hands over its leadership first."""
        process = self.processes.pop(node)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, self.log(node)[-2000:]
        self._stacks[node].close()

    def replace(self, node: int, root: Path) -> None:
        """Stop a node and start it on its data with another build. Wait until it serves."""
        self.stop(node)
        self.start(node, root)
        self.wait_ready()

    def page(self, node: int, name: str = "status") -> dict[str, Any]:
        """Return a page of a node's admin port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._admins[node]}/{name}", timeout=10) as answer:
            page: dict[str, Any] = json.load(answer)
            return page

    def wait_ready(self) -> None:
        """Wait until every node that runs serves and all are linked."""

        def serves() -> bool:
            others = len(self.processes) - 1
            pages = [self.page(node) for node in self.processes]
            return all(page["serving"] and len(page["peers_connected"]) == others for page in pages)

        eventually(serves, what="all nodes serve")

    def leader(self) -> int:
        """Return the leading node."""
        return int(eventually(lambda: self.page(next(iter(self.processes)))["leader"], what="a leader"))

    def check_alike(self) -> None:
        """Wait until all nodes have one state. Fail if a process has ended."""

        def alike() -> bool:
            pages = [self.page(node) for node in self.processes]
            return len({(page["zxid"], page["digest"], page["applied_index"]) for page in pages}) == 1

        for node, process in self.processes.items():
            assert process.poll() is None, f"node {node} has ended: {self.log(node)[-2000:]}"
        eventually(alike, what="one state on all nodes")
        for node in self.processes:
            assert "differs from the others" not in self.log(node), self.log(node)[-2000:]

    def level(self, node: int) -> int:
        """Return the level in force, as the node reports it. A build without levels reports none."""
        return int(self.page(node).get("level", 0))

    def close(self) -> None:
        """Kill all running processes."""
        for stack in self._stacks.values():
            stack.close()


@contextlib.contextmanager
def connected(hosts: str) -> Iterator[KazooClient]:
    """Yield a client with a session."""
    client = KazooClient(hosts, timeout=20)
    client.start(PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def differing(root: bytes, number: int) -> Request:
    """Return a request that each level answers differently from the level before; random requests seldom do. Level 1: a
    createTTL without a TTL in a multi."""
    path = root + b"/differs-%d" % number
    create = r.CreateRequest(r.OP_CREATE_TTL, path, b"", r.OPEN_ACL, number % 5, 3_600_000)
    return Request(r.OP_MULTI, r.encode_multi([r.MultiOp(r.OP_CREATE_TTL, path, create=create)]))


def play(store: MixedStore, seed: int, requests: int = 300) -> None:
    """Send the random requests of a seed, each session to its own node."""
    root = b"/u%05d" % seed
    nodes = sorted(store.processes)
    with connected(store.address(nodes[0])) as client:
        client.create(root.decode())
    sessions = [Session(store.address(nodes[i % len(nodes)])) for i in range(SESSIONS)]
    try:
        sessions[1].send([Request(r.OP_AUTH, r.encode_auth(b"digest", b"bob:pw"))])
        sessions[1].collect({0: ""})
        for number, step in enumerate(Requests(seed).run(requests)):
            acting = sessions[step.session]
            if number % DIFFERING_EVERY == 0:
                acting.send([differing(root, number // DIFFERING_EVERY)])
                acting.collect({0: ""})
            if step.kind == CUT or not step.requests:
                acting.reconnect()
                continue
            acting.send([each._replace(body=each.body.replace(ROOT[1:], root[1:])) for each in step.requests])
            got = acting.collect({0: ""})
            if got and got[-1].shown == ("closed",):
                if any(request.opcode == r.OP_CLOSE_SESSION for request in step.requests):
                    acting.begin_anew()
                else:
                    acting.reconnect()
    finally:
        for session in sessions:
            session.raw.close()


class Writer:
    """A client that writes all the time and remembers the acknowledged writes."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self.acknowledged: list[str] = []
        self._goes_on = threading.Event()
        self._is_over = False
        self._is_idle = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with connected(self._hosts) as client:
            client.ensure_path("/acknowledged")
            self._write(client)

    def _write(self, client: KazooClient) -> None:
        number = 0
        while not self._is_over:
            if not self._goes_on.is_set():
                self._is_idle.set()
                self._goes_on.wait()
                continue
            number += 1
            with contextlib.suppress(KazooException, KazooTimeoutError):
                self.acknowledged.append(client.create_async(f"/acknowledged/{number:06}").get(timeout=20))

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write during the block. Afterwards no request of this client is in progress."""
        self._is_idle.clear()
        self._goes_on.set()
        try:
            yield
        finally:
            self._goes_on.clear()
            assert self._is_idle.wait(PATIENCE_S), "the writing client hangs"

    @contextlib.contextmanager
    def running(self) -> Iterator[Writer]:
        """Run the client with its connection."""
        self._thread.start()
        assert self._is_idle.wait(PATIENCE_S), "the writing client does not get a session"
        try:
            yield self
        finally:
            self._is_over = True
            self._goes_on.set()
            self._thread.join(PATIENCE_S)

    def check(self, store: MixedStore) -> None:
        """Check that every node has all acknowledged writes."""
        assert self.acknowledged
        for node in store.processes:
            with connected(store.address(node)) as client:
                client.sync("/")
                there = set(client.get_children("/acknowledged"))
            missing = [path for path in self.acknowledged if path.rpartition("/")[2] not in there]
            assert not missing, f"node {node} has lost {missing[:10]}, {len(missing)} in all"
