"""Connections and unfinished frames at the RPC ports of a master and a region server."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coord.daemon import allow_many_files
from coord.rpc.blocking import call_blocking
from coord.rpc.budgets import CONNECTIONS_PER_ADDRESS_MAX, UNFINISHED_BYTES_MAX
from coord.rpc.wire import FRAME_BYTES_MAX, PREAMBLE, Request, encode_body, encode_frame
from regions import messages as ms
from tests.e2e.masters import Cluster, Process, cluster_on, own_store
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

#: The longest frame that may be announced, and nearly all of it: the receiver waits for the last byte.
LENGTH = struct.pack(">I", FRAME_BYTES_MAX)
HALF = b"\x93" + bytes(FRAME_BYTES_MAX - 2)
#: Connections that send HALF: three times the bound of unfinished bytes.
GREEDY = 3 * UNFINISHED_BYTES_MAX // FRAME_BYTES_MAX


class Slow:
    """A caller without a request, one with half a frame, and an idle one whose request was answered."""

    def __init__(self, process: Process) -> None:
        self.silent = connect(process)
        self.unfinished = connect(process)
        self.unfinished.sendall(PREAMBLE + question(process, 1) + LENGTH + b"\x93")
        self.idle = connect(process)
        self.idle.sendall(PREAMBLE + question(process, 1))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield one master and one region server."""
    folder: Path = tmp_path_factory.mktemp("rpc")
    with own_store(folder / "store", 1) as hosts, cluster_on(hosts, folder, masters=1, servers=1) as running:
        running.wait_servers(1)
        yield running


@pytest.fixture(params=["master", "server"])
def process(request: pytest.FixtureRequest, cluster: Cluster) -> Process:
    return daemons(cluster)[request.param]


def daemons(cluster: Cluster) -> dict[str, Process]:
    return {"master": cluster.masters[0], "server": cluster.servers[0]}


def connect(process: Process) -> socket.socket:
    return socket.create_connection(process.address, timeout=60)


def message_of(process: Process) -> tuple[Any, Any]:
    is_master = "master" in process.arguments
    return (ms.GetMasterStatus(), ms.MasterStatus) if is_master else (ms.GetServerStatus(), ms.ServerStatus)


def question(process: Process, number: int) -> bytes:
    return encode_frame(Request(number, encode_body(message_of(process)[0])))


def assert_served(process: Process) -> None:
    """Ask as an honest tool does, by a connection of its own."""
    message, expect = message_of(process)
    assert isinstance(call_blocking(process.address, message, 30.0, expect=expect), expect)


def is_closed(caller: socket.socket) -> bool:
    """Return True if the daemon has closed this connection."""
    caller.setblocking(False)
    try:
        while data := caller.recv(65536):
            assert data
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def kilobytes(process: Process) -> int:
    """Return the resident memory of a daemon."""
    assert process.popen is not None
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_the_oldest_silent_connection_gives_way_to_a_newcomer(process: Process) -> None:
    """A stranger holds more connections than an address may: an honest caller of the same address gets in.

    The stranger's have begun, or they would be closed while they wait to be accepted (`coord.newcomers.accept`).
    """
    allow_many_files()
    count = CONNECTIONS_PER_ADDRESS_MAX + 50
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(connect(process)) for _ in range(count)]
        for stranger in strangers:
            with contextlib.suppress(ConnectionError):
                stranger.sendall(PREAMBLE)
        # The answers come after all that the daemon did about the connections before. Do not wait: later, their
        # silence closes them.
        for _ in range(2):
            assert_served(process)
        assert [is_closed(one) for one in (strangers[0], strangers[49], strangers[-1])] == [True, True, False]


def test_unfinished_frames_hold_a_bounded_memory(process: Process) -> None:
    """When all unfinished frames exceed the bound, the connection whose frame began first is closed; an honest caller
    is served."""
    before = kilobytes(process)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(connect(process)) for _ in range(GREEDY)]
        for stranger in strangers:
            with contextlib.suppress(ConnectionError):
                stranger.sendall(PREAMBLE + LENGTH + HALF)
        for _ in range(2):
            assert_served(process)
        assert sum(map(is_closed, strangers)) >= GREEDY * 2 // 3 - 1
        grown = kilobytes(process) - before
        assert grown < 2 * UNFINISHED_BYTES_MAX >> 10, f"{grown} kB more"


def test_callers_that_do_not_finish_are_closed(cluster: Cluster) -> None:
    """A connection without a request and one with half a frame end by themselves; one that only idles stays."""
    slow = {name: Slow(process) for name, process in daemons(cluster).items()}
    for name, process in daemons(cluster).items():
        callers = slow[name]
        eventually(lambda c=callers: is_closed(c.silent) and is_closed(c.unfinished), what=f"{name} closes them")
        assert not is_closed(callers.idle)
        assert_served(process)
