"""Half requests at the admin ports of a store node, a master and a region server, beside an honest probe."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.http import CONNECTIONS_MAX
from tests.e2e.masters import cluster_on
from tests.support.helpers import daemon, eventually, free_ports, rk

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """Yield the admin ports of one daemon of each kind."""
    folder: Path = tmp_path_factory.mktemp("admin")
    client, peer, *admin = free_ports(5)
    node = ["coord", "run", "--id", "1", "--data-dir", str(folder / "store"), "--peers", f"1=127.0.0.1:{peer}"]
    node += ["--client-address", f"127.0.0.1:{client}", "--peer-address", f"127.0.0.1:{peer}"]
    addresses = [("--admin-address", f"127.0.0.1:{port}", "--admin-name", "metrics.example") for port in admin]
    with contextlib.ExitStack() as running:
        running.enter_context(daemon(rk(*node, *addresses[0]), log=folder / "store.log"))
        cluster = running.enter_context(
            cluster_on(
                f"127.0.0.1:{client}", folder, masters=1, servers=1, options=[*addresses[1]],
                server_options=addresses[2],
            )
        )  # fmt: skip
        cluster.wait_servers(1)
        yield admin


def probe(port: int) -> int:
    """Return the status of /health, as a supervisor asks for it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
        return int(answer.status)


def status_for(port: int, host: str) -> int:
    """Return the status of /metrics for a request with this Host header."""
    caller = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(caller):
        caller.request("GET", "/metrics", headers={"Host": host})
        return caller.getresponse().status


def test_foreign_host_names_are_refused_everywhere(ports: list[int]) -> None:
    """Against DNS rebinding: a page in an operator's browser must not read the pages of an open daemon.

    Fails if the daemons give `AdminHttp` no names.
    """
    for port in ports:
        hosts = ("evil.example", f"evil.example:{port}", "metrics.example", f"localhost:{port}", f"127.0.0.1:{port}")
        assert [status_for(port, host) for host in hosts] == [403, 403, 200, 200, 200]


def is_closed(caller: socket.socket) -> bool:
    caller.setblocking(False)
    try:
        return caller.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_half_requests_do_not_keep_probes_out(ports: list[int]) -> None:
    """More half requests than the port takes connections: probes are answered, and the requests end by themselves."""
    with contextlib.ExitStack() as stack:
        held: list[socket.socket] = []
        for port in ports:
            for _ in range(CONNECTIONS_MAX + 6):
                held.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)))
                held[-1].sendall(b"GET /health HTTP/1.1\r\n")
        assert [probe(port) for port in ports] == [200, 200, 200]
        assert not is_closed(held[-1]), "a probe takes one connection, not the last"
        checks = itertools.count(1)

        def closed() -> bool:
            if next(checks) % 50 == 0:
                # One more line, as from a caller that wants to keep its connection.
                for one in held:
                    with contextlib.suppress(ConnectionError):
                        one.sendall(b"a: b\r\n")
            return all(map(is_closed, held))

        eventually(closed, what="all half requests are closed")
        assert [probe(port) for port in ports] == [200, 200, 200]
