"""Mutated frames to the ports of an open store, master and region server: no process ends, none keeps memory.

An open daemon decodes what a secured one refuses unread (test_stranger.py). FRAMES per port; the long form is
`make mutated-frames`.

Fails if `coord.peers.framing.readable` or `RpcServer` does not catch what a decoder raises, and if closed connections
stay in a list.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coord.rpc.blocking import call_blocking
from regions import messages as ms
from tests.e2e.masters import Cluster, cluster_on, own_store
from tests.security import frames
from tests.security.store_node import Store, honest_client, running_store
from tests.support.helpers import free_ports

pytestmark = pytest.mark.e2e


class Open(NamedTuple):
    """Daemons without credentials, and their ports by name: (kind, port). The store of master and server is another
    one than the attacked: a mutated write may still be valid."""

    cluster: Cluster
    store: Store
    ports: dict[str, tuple[str, int]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Yield a master, a region server with tablets, and a store node."""
    folder: Path = tmp_path_factory.mktemp("frames")
    master, server, peer, store_peer, store_admin = free_ports(5)
    options = ["--admin-address", f"127.0.0.1:{master}"]
    more = ("--admin-address", f"127.0.0.1:{server}", "--peer-address", f"127.0.0.1:{peer}")
    of_store = ("--peers", f"1=127.0.0.1:{store_peer}", "--peer-address", f"127.0.0.1:{store_peer}")
    of_store += ("--admin-address", f"127.0.0.1:{store_admin}")
    with (
        frames.all_read(),
        own_store(folder / "store", 1) as hosts,
        cluster_on(hosts, folder, masters=1, servers=1, options=options, server_options=more) as cluster,
        running_store(folder, *of_store) as store,
    ):
        cluster.wait_servers(1)
        ports = {
            "RPC of the master": (frames.MASTER, cluster.masters[0].address[1]),
            "RPC of the server": (frames.SERVER, cluster.servers[0].address[1]),
            "admin of the master": (frames.ADMIN, master),
            "admin of the server": (frames.ADMIN, server),
            "admin of the store": (frames.ADMIN, store_admin),
            "peers of tablets": (frames.TABLET_PEERS, peer),
            "peers of the store": (frames.STORE_PEERS, store_peer),
            "clients of the store": (frames.STORE, int(store.address.rpartition(":")[2])),
        }
        yield Open(cluster, store, ports)


def pids(running: Open) -> dict[str, int]:
    """Return the processes by name."""
    found = {"store": running.store.process.pid}
    for name, one in (("master", running.cluster.masters[0]), ("server", running.cluster.servers[0])):
        assert one.popen is not None
        assert one.popen.poll() is None, name
        found[name] = one.popen.pid
    assert running.store.process.poll() is None, running.store.log()[-3000:]
    return found


def is_served(running: Open) -> None:
    """Check that all three serve an honest caller."""
    asked: list[tuple[Any, Any, Any]] = [
        (running.cluster.masters[0], ms.GetMasterStatus(), ms.MasterStatus),
        (running.cluster.servers[0], ms.GetServerStatus(), ms.ServerStatus),
    ]
    for process, message, expect in asked:
        call_blocking(process.address, message, 60.0, expect=expect)
    with honest_client(running.store) as honest:
        honest.is_served()
    pids(running)


def test_no_process_ends_and_none_keeps_memory(running: Open) -> None:
    """After the frames of each port all daemons answer. After all frames their memory is as before."""
    for name, (kind, port) in running.ports.items():
        frames.attack(name, kind, port, frames.WARMING, lambda: is_served(running))
    before = {name: frames.kilobytes(pid) for name, pid in pids(running).items()}
    for name, (kind, port) in running.ports.items():
        frames.attack(name, kind, port, frames.FRAMES, lambda: is_served(running))
    for name, pid in pids(running).items():
        assert frames.kilobytes(pid) - before[name] < frames.KEPT_KB, name
    assert "Traceback" not in running.store.log()
