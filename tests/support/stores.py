"""The stores that tests of clients run on: a real ZooKeeper, and our own store as three processes.

with open_store("store", folder) as store: KazooClient(store.hosts)
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.helpers import daemon, eventually, free_ports, rk
from tests.support.zookeeper import zookeeper

ZOOKEEPER = "zookeeper"
STORE = "store"


def store_kinds() -> list[str]:
    """Return the kinds that `open_store` accepts. Our store is one of them as soon as its service can be started."""
    return [ZOOKEEPER, STORE] if store_is_built() else [ZOOKEEPER]


def store_is_built() -> bool:
    """Return True if this tree has a store to run."""
    return importlib.util.find_spec("coord.server.service") is not None


class Store:
    """A running ensemble: one address for ZooKeeper, three for ours."""

    def __init__(self, kind: str, addresses: list[str]) -> None:
        self.kind = kind
        self.addresses = addresses

    @property
    def hosts(self) -> str:
        """Return all addresses in the form that clients accept."""
        return ",".join(self.addresses)


class OurStore(Store):
    """Three nodes of our store, each of which can be killed, frozen and started again on its data."""

    def __init__(self, folder: Path, *, tick_ms: int, nodes: int = 3) -> None:
        ports = free_ports(nodes * 3)
        self._client, self._peer, self._admin = ports[:nodes], ports[nodes : 2 * nodes], ports[2 * nodes :]
        super().__init__(STORE, [f"127.0.0.1:{port}" for port in self._client])
        self.peer_addresses = [f"127.0.0.1:{port}" for port in self._peer]
        self.folder = folder
        self.tick_ms = tick_ms
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * nodes
        self._stacks = [contextlib.ExitStack() for _ in range(nodes)]

    def start(self, node: int) -> None:
        """Start node 0, 1 or 2. Do not wait."""
        peers = ",".join(f"{i + 1}=127.0.0.1:{port}" for i, port in enumerate(self._peer))
        command = rk(
            "coord",
            "run",
            *("--id", str(node + 1)),
            *("--data-dir", str(self.folder / f"node{node + 1}")),
            *("--client-address", self.addresses[node]),
            *("--peer-address", f"127.0.0.1:{self._peer[node]}"),
            *("--peers", peers),
            *("--admin-address", f"127.0.0.1:{self._admin[node]}"),
            *("--tick-ms", str(self.tick_ms)),
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        running = daemon(command, log=self.folder / f"node{node + 1}.log")
        self.processes[node] = self._stacks[node].enter_context(running)

    def kill(self, node: int) -> None:
        """Kill a node. Its data stays."""
        self._stacks[node].close()
        self.processes[node] = None

    def freeze(self, node: int, frozen: bool = True) -> None:
        """Freeze a node's processes, or continue them."""
        process = self.processes[node]
        assert process is not None, f"node {node} is not running"
        os.killpg(process.pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def word(self, node: int, word: bytes) -> bytes:
        """Return a node's answer to a four-letter word."""
        with socket.create_connection(("127.0.0.1", self._client[node]), 10) as sock:
            sock.settimeout(10)
            sock.sendall(word)
            answer = b""
            while chunk := sock.recv(65536):
                answer += chunk
            return answer

    def leader(self) -> int | None:
        """Return the leading node by `srvr`; None without a leader."""
        for node, process in enumerate(self.processes):
            if process is not None:
                with contextlib.suppress(OSError):
                    if b"Mode: leader" in self.word(node, b"srvr"):
                        return node
        return None

    def wait_leader(self) -> int:
        """Wait for a leader and return its node."""

        def leads() -> list[int]:
            leader = self.leader()
            return [] if leader is None else [leader]

        [leader] = eventually(leads, what="a leader")
        return leader

    def wait_ready(self, timeout_s: float = 30) -> None:
        """Wait until every running node serves and one of them leads."""

        def serves() -> bool:
            running = [node for node, process in enumerate(self.processes) if process is not None]
            return all(b"Mode:" in self.word(node, b"srvr") for node in running) and self.leader() is not None

        eventually(serves, timeout_s, "store up")

    def close(self) -> None:
        """Kill all nodes."""
        for stack in self._stacks:
            stack.close()


@contextlib.contextmanager
def our_store(folder: Path, *, tick_ms: int = 500, nodes: int = 3) -> Iterator[OurStore]:
    """Yield a running store of `nodes` processes with its data in `folder`."""
    if not store_is_built():
        pytest.skip("this tree has no store service yet")
    store = OurStore(folder, tick_ms=tick_ms, nodes=nodes)
    try:
        for node in range(nodes):
            store.start(node)
        store.wait_ready()
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def open_store(kind: str, folder: Path, *, tick_ms: int = 500) -> Iterator[Store]:
    """Yield a store of either kind."""
    if kind == ZOOKEEPER:
        with zookeeper(folder, tick_ms=tick_ms) as server:
            yield Store(kind, [server.hosts])
    else:
        with our_store(folder, tick_ms=tick_ms) as store:
            yield store
