"""`rk up --tls`: no port serves without TLS, certificates are rotated by two commands, revoked ones are refused.

The cluster listens on an address of this machine that other machines reach, if there is one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.tls.reloading import CallerContext
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.security.stranger import listening
from tests.support.helpers import eventually

_SHAPE = ("--store-nodes", "3", "--masters", "1", "--servers", "3", "--regions", "1", "--plan-engine", "greedy")


def own_address() -> str:
    """Return the address from which this machine would send to TEST-NET-2, 127.0.0.1 without a route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.connect(("198.51.100.1", 9))
        return str(sock.getsockname()[0])
    return "127.0.0.1"


#: A program that uses the asyncio client. It names the store and nothing else.
_PROGRAM = """
import asyncio, sys
from regionserver.client import connect_asyncio

async def main() -> None:
    async with connect_asyncio(sys.argv[1], connect_timeout_s=float(sys.argv[2])) as client:
        await asyncio.gather(*[client.put("packages", f"asyncio-{number}", b"a") for number in range(20)])
        assert await client.compare_and_set("packages", "asyncio-7", b"a", b"b")
        print([value async for key, value in client.scan("packages", "asyncio-", "asyncio-~")].count(b"a"))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    folder = tmp_path_factory.mktemp("tls") / "data"
    with local_up(folder, "--tls", "--address", own_address(), "--base-port", str(free_base_port()), *_SHAPE) as up:
        up.event("up")
        yield up


def addresses(up: LocalUp) -> list[str]:
    """Return every port of the cluster whose number does not change."""
    known = json.loads((up.data_dir / "cluster.json").read_text())
    daemons = [*known["coord"], *known["masters"], *known["servers"]]
    return [one[port] for one in daemons for port in ("address", "peer", "admin") if one.get(port)]


def connected(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Return a connection."""
    host, _, port = address.rpartition(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), 30), server_hostname=host)


def is_served(address: str, context: ssl.SSLContext) -> bool:
    """Return True if a store node answers a four-letter word."""
    try:
        with connected(address, context) as sock:
            sock.sendall(b"srvr")
            return b"Mode" in sock.recv(4096)
    except OSError:
        return False


def status(address: str, context: ssl.SSLContext) -> int:
    """Return the HTTP status of the page of metrics. Raise OSError."""
    try:
        with urllib.request.urlopen(f"https://{address}/metrics", timeout=30, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_every_port_speaks_tls(cluster: LocalUp) -> None:
    """A stranger without the authority's certificate gets alerts, and pages for probes at admin ports.

    Fails if `_with_tls` leaves a port of the store out, or `AdminHttp.site` returns the plain factory.
    """
    certs = cluster.data_dir / "certs"
    bare = CallerContext(certs / "ca.crt", None, None, verify_host=True).now()
    admins = []
    for address in addresses(cluster):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 30) as sock:
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert sock.recv(4096)[:1] != b"H", address
        with contextlib.suppress(OSError):
            if status(address, bare) == 401:
                admins.append(address)
    assert len(admins) == 7
    own = CallerContext(certs / "ca.crt", certs / "user.admin.crt", certs / "user.admin.key", verify_host=True).now()
    for address in admins:
        assert status(address, own) == 200


def test_a_program_finds_its_certificate_by_the_environment(cluster: LocalUp, tmp_path: Path) -> None:
    """The asyncio client with RK_CERTS_DIR, for a user with a grant; without it the error names RK_CERTS_DIR.

    Fails if `_proof` of the store's reader gives no files for TLS, or if the error does not say what to do.
    """
    data, home = ("--data-dir", str(cluster.data_dir)), tmp_path / "home"
    assert run_rk("certs", "issue", "--user", "alice", "--to", str(home), *data).returncode == 0
    assert run_rk("grant", "alice", "write", "--table", "packages", *data).returncode == 0
    store = json.loads((cluster.data_dir / "cluster.json").read_text())["store"]
    words = [sys.executable, "-c", _PROGRAM, store]
    settings = {**os.environ, "RK_CERTS_DIR": str(home)}

    def written() -> bool:
        done = subprocess.run([*words, "60"], env=settings, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout == "19\n", done.stderr
        return True

    # A region server may read a new grant up to 2 s after the masters have acknowledged it.
    eventually(written)
    del settings["RK_CERTS_DIR"]
    done = subprocess.run([*words, "1"], env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "RK_CERTS_DIR" in done.stderr


def test_rotation_is_two_commands(cluster: LocalUp) -> None:
    """Authority, certificates and keys of all daemons; rows are served in between, a restarted node finds its peers.

    Fails if `rotate` hands out nothing, or if peers' ports keep their first authority.
    """
    data = ("--data-dir", str(cluster.data_dir))
    before = (cluster.data_dir / "certs" / "store-1" / "node.1.crt").read_bytes()
    for value, words in (("begun", ()), ("finished", ("--finish",))):
        assert run_rk("certs", "rotate", *words, *data).returncode == 0
        assert run_rk("put", "packages", "k", value, *data).returncode == 0
        assert value in run_rk("get", "packages", "k", *data).stdout
    assert (cluster.data_dir / "certs" / "store-1" / "node.1.crt").read_bytes() != before
    node = json.loads((cluster.data_dir / "cluster.json").read_text())["coord"][0]
    os.kill(node["pid"], signal.SIGKILL)

    def is_back() -> bool:
        found = json.loads((cluster.data_dir / "cluster.json").read_text())["coord"][0]
        return found["pid"] != node["pid"] and run_rk("health", *data).returncode == 0

    eventually(is_back, what="a healthy cluster")


@pytest.mark.parametrize("by_serial", [True, False])
def test_a_revoked_certificate_loses_the_stores_port(cluster: LocalUp, tmp_path: Path, by_serial: bool) -> None:
    """A connection that stands is closed, and a new one is not served. Fails without `ClientListener.close_revoked`."""
    name = "serial" if by_serial else "user"
    data, home = ("--data-dir", str(cluster.data_dir)), tmp_path / "home"
    assert run_rk("certs", "issue", "--user", name, "--to", str(home), *data).returncode == 0
    context = CallerContext(home / "ca.crt", home / f"user.{name}.crt", home / f"user.{name}.key", verify_host=True)
    where = json.loads((cluster.data_dir / "cluster.json").read_text())["coord"][0]["address"]
    assert is_served(where, context.now())
    (facts,) = json.loads(run_rk("--json", "certs", "show", str(home / f"user.{name}.crt")).stdout)
    with connected(where, context.now()) as sock:
        # Half a connect request: the connection stands, and its certificate has been verified.
        sock.sendall(bytes(3))
        what = ("--serial", facts["serial"]) if by_serial else ("--user", name)
        assert run_rk("certs", "revoke", *what, *data).returncode == 0
        sock.settimeout(5)
        assert sock.recv(4096) == b""
    assert not is_served(where, context.now())


def peers_of_the_first_node(cluster: LocalUp) -> list[int]:
    """Return the numbers of the nodes that node 1 has links with."""
    certs = cluster.data_dir / "certs"
    own = CallerContext(certs / "ca.crt", certs / "user.admin.crt", certs / "user.admin.key", verify_host=True).now()
    where = json.loads((cluster.data_dir / "cluster.json").read_text())["coord"][0]["admin"]
    with urllib.request.urlopen(f"https://{where}/status", timeout=30, context=own) as answer:
        return list(json.load(answer)["peers_connected"])


def test_a_revoked_certificate_loses_the_stores_peers(cluster: LocalUp) -> None:
    """The node is out, the others serve; with a new certificate the node is back without a restart.

    Fails without `PeerLinks.close_revoked`, and if `PeerGuard` reads its files only once.
    """
    data = ("--data-dir", str(cluster.data_dir))
    certs = cluster.data_dir / "certs"
    eventually(lambda: peers_of_the_first_node(cluster) == [2, 3], what="links with both peers")
    (facts,) = json.loads(run_rk("--json", "certs", "show", str(certs / "store-3" / "node.3.crt")).stdout)
    assert run_rk("certs", "revoke", "--serial", facts["serial"], *data).returncode == 0
    eventually(lambda: peers_of_the_first_node(cluster) == [2], what="the end of the links with node 3")
    assert run_rk("put", "packages", "k", "without node 3", *data).returncode == 0
    issue = ("certs", "issue", "--daemon", "node:3", "--host", own_address(), "--to", str(certs / "store-3"))
    assert run_rk(*issue, *data).returncode == 0
    eventually(lambda: peers_of_the_first_node(cluster) == [2, 3], what="links with both peers")
    eventually(lambda: run_rk("health", *data).returncode == 0, what="a healthy cluster")


def test_handshakes_that_do_not_end_are_closed_at_every_port(cluster: LocalUp) -> None:
    """Connections that send nothing, a part of the first record, or a whole record and no more: the daemon ends each of
    them.

    Fails if `PeerListener` plans no end of unidentified connections.
    """
    known = json.loads((cluster.data_dir / "cluster.json").read_text())
    ports = {int(one.rpartition(":")[2]) for one in addresses(cluster)}
    ports |= listening([one["pid"] for one in known["servers"]])
    hello = _first_record()
    with contextlib.ExitStack() as stack:
        callers: list[socket.socket] = []
        for port in sorted(ports):
            for sent in (b"", hello[:3], hello[:-1], hello):
                callers.append(stack.enter_context(socket.create_connection((own_address(), port), 30)))
                callers[-1].sendall(sent)
        eventually(lambda: all(map(_is_closed, callers)), what="every handshake has been ended")
    assert run_rk("get", "packages", "k", "--data-dir", str(cluster.data_dir)).returncode in (0, 4)


def _first_record() -> bytes:
    """Return what a client of TLS sends first."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(received, sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def _is_closed(caller: socket.socket) -> bool:
    """Return True if the daemon has closed this connection; read what it has sent."""
    caller.setblocking(False)
    try:
        while caller.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True
