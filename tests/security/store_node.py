"""A running store node and its honest client, for the attacks of this folder."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState

from coord.wire import opcodes as op
from coord.wire import records as r
from tests.support.helpers import Process, daemon, eventually, free_ports, rk
from tests.support.rawclient import RawClient

#: The honest client's session ends if the store is silent for so long.
HONEST_TIMEOUT_S = 4.0


class Store:
    """One running node."""

    def __init__(self, folder: Path, address: str, process: Process) -> None:
        self.folder = folder
        self.address = address
        self.process = process

    def log(self) -> str:
        """Return what the node has written to its log."""
        return (self.folder / "store.log").read_text()

    def stranger(self, source: str = "") -> RawClient:
        """Return a raw client with a session of one second."""
        client = RawClient(self.address, source=source)
        assert self.opens(client), "no session"
        return client

    @staticmethod
    def opens(client: RawClient) -> bool:
        """Return True if the client gets a session."""
        answer = client.hello(r.ConnectRequest(0, 1000, 0, bytes(16)))
        return answer is not None and answer.session_id != 0

    def memory_mb(self) -> float:
        """Return the largest resident size of the node so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


class Honest:
    """A kazoo client that must never lose its connection."""

    def __init__(self, client: KazooClient) -> None:
        self.client = client
        self.states: list[str] = []
        client.add_listener(self.states.append)

    def is_served(self) -> None:
        """Write and read; check that the connection was never lost."""
        self.client.set("/honest", b"1")
        assert self.client.get("/honest")[0] == b"1"
        assert KazooState.SUSPENDED not in self.states
        assert KazooState.LOST not in self.states


@contextlib.contextmanager
def running_store(folder: Path, *options: str) -> Iterator[Store]:
    """Yield a store of one node that serves clients of every address."""
    (port,) = free_ports(1)
    place = ("--data-dir", str(folder / "data"), "--client-address", f"0.0.0.0:{port}")
    words = ("coord", "run", "--insecure", "--id", "1", *place)
    with daemon(rk(*words, *options), log=folder / "store.log") as process:
        made = Store(folder, f"127.0.0.1:{port}", process)
        eventually(lambda: "serves clients" in made.log() and "is leader" in made.log(), what="the store")
        yield made


@contextlib.contextmanager
def honest_client(store: Store) -> Iterator[Honest]:
    """Yield an honest client with a session."""
    client = KazooClient(store.address, timeout=HONEST_TIMEOUT_S)
    client.start(30)
    try:
        client.ensure_path("/honest")
        yield Honest(client)
    finally:
        client.stop()
        client.close()


def create(path: bytes, data: bytes = b"", acl: list[r.Acl] | None = None) -> bytes:
    """Return the record of a create."""
    return r.encode_create(r.CreateRequest(op.OP_CREATE, path, data, acl or r.OPEN_ACL, 0))
