"""Mutated frames to the ports of masters and region servers: no process ends, none keeps memory.

FRAMES per port; RK_FRAMES=20000 for the long form.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from coord.peers import framing
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import PREAMBLE, Request, encode_frame
from regions import messages as ms
from regionserver.tablets.links.hello import ServerHello, encode_hello
from tests.e2e.masters import Cluster, Process, cluster_on, own_store
from tests.fuzz.mutate import mutated
from tests.support.helpers import free_ports

pytestmark = pytest.mark.e2e

FRAMES: Final = int(os.environ.get("RK_FRAMES", "200"))
#: Connections that are open at the same time, each with one mutated stream.
AT_ONCE: Final = 50
#: What a process may keep of any number of frames: caches of its allocator, lines of its log.
KEPT_KB: Final = 48 << 10
#: Requests that end a process or a server's work when they are valid: a mutation may leave them so.
ORDERS: Final = ("Shutdown", "Fence", "Drain", "Retire", "Stop")


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, dict[str, int]]]:
    """Yield a master and a region server with tablets, and their ports by name."""
    folder: Path = tmp_path_factory.mktemp("frames")
    master, server, peer = free_ports(3)
    options = ["--admin-address", f"127.0.0.1:{master}"]
    more = ("--admin-address", f"127.0.0.1:{server}", "--peer-address", f"127.0.0.1:{peer}")
    with (
        own_store(folder / "store", 1) as hosts,
        cluster_on(hosts, folder, masters=1, servers=1, options=options, server_options=more) as running,
    ):
        running.wait_servers(1)
        yield (
            running,
            {
                "master": running.masters[0].address[1],
                "server": running.servers[0].address[1],
                "admin of master": master,
                "admin of server": server,
                "peers of tablets": peer,
            },
        )


def requests(union: Any) -> list[bytes]:
    """Return a stream with one request of each type of the union, without its fields."""
    tags = [str(one.__struct_config__.tag) for one in typing.get_args(union)]
    bodies = [msgspec.msgpack.encode({"type": tag}) for tag in tags if not tag.startswith(ORDERS)]
    return [PREAMBLE + encode_frame(Request(n, msgspec.Raw(body))) for n, body in enumerate(bodies)]


def corpus(name: str) -> list[bytes]:
    if name == "peers of tablets":
        hello = encode_hello(ServerHello("c", "server-1", "server-2", 1, ("127.0.0.1", 1)))
        return [hello, *(framing.frame(kind, bytes(size)) for kind in range(8) for size in (0, 1, 40, 300))]
    if name.startswith("admin"):
        paths = ("/health", "/metrics", "/status", "/nothing")
        heads = ("", "content-length: 9\r\n", "transfer-encoding: chunked\r\n", "connection: keep-alive\r\n")
        return [f"GET {path} HTTP/1.1\r\nhost: x\r\n{head}\r\n0\r\n\r\n".encode() for path in paths for head in heads]
    return requests(ms.MasterRequest if name == "master" else ms.ServerRequest)


def attack(port: int, streams: list[bytes]) -> None:
    """Send each stream by a connection of its own, and end them all."""
    with contextlib.ExitStack() as stack:
        for stream in streams:
            with contextlib.suppress(OSError):
                caller = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
                caller.setblocking(False)
                caller.send(stream)


def kilobytes(process: Process) -> int:
    """Return the resident memory of a daemon."""
    assert process.popen is not None
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_no_process_ends_and_none_keeps_memory(ports: tuple[Cluster, dict[str, int]]) -> None:
    """After each port's frames master and server answer; after all of them their memory is as before."""
    cluster, found = ports
    chance = random.Random(7)
    daemons = {cluster.masters[0]: (ms.GetMasterStatus(), ms.MasterStatus)}
    answers: dict[Process, tuple[Any, Any]] = {**daemons, cluster.servers[0]: (ms.GetServerStatus(), ms.ServerStatus)}
    before: dict[Process, int] = {}
    for is_warm in (False, True):
        for name, port in found.items():
            cases = corpus(name)
            for _ in range((FRAMES if is_warm else 200) // AT_ONCE):
                attack(port, [mutated(chance, cases) for _ in range(AT_ONCE)])
            for process, (message, expect) in answers.items():
                call_blocking(process.address, message, 60.0, expect=expect)
                assert process.popen is not None
                assert process.popen.poll() is None, name
        if not is_warm:
            before = {process: kilobytes(process) for process in answers}
    for process, kept in before.items():
        assert kilobytes(process) - kept < KEPT_KB, process.arguments
