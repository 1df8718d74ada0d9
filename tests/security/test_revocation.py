"""A revocation closes the open connections of the revoked principal, and its later connections are refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState

from coord.security.channel import address_of
from coord.security.credentials import FOR_STORE, Credentials, read_user
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.support.helpers import eventually

_SHAPE = ("--store-nodes", "1", "--masters", "1", "--servers", "1", "--regions", "2", "--plan-engine", "greedy")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    folder = tmp_path_factory.mktemp("revoking") / "data"
    with local_up(folder, "--secure", "--base-port", str(free_base_port()), *_SHAPE) as up:
        up.event("up")
        yield up


def proved(where: str, credentials: Credentials) -> socket.socket:
    """Return a connection to an RPC port whose proof is done."""
    host, _, port = where.rpartition(":")
    sock = socket.create_connection((host, int(port)), 30)
    channel = credentials.dialer(host=host)
    channel.start(address_of(*sock.getsockname()[:2]), address_of(host, port))
    while not channel.is_done:
        sock.sendall(channel.take())
        channel.receive(sock.recv(4096))
    sock.sendall(channel.take())
    return sock


def rest_of(sock: socket.socket) -> bytes:
    """Return what the other end sends before it closes the connection."""
    sock.settimeout(30)
    found = b""
    with sock:
        while part := sock.recv(4096):
            found += part
    return found


def is_drained(sock: socket.socket) -> bool:
    """Read what is there; return True if there is nothing more, although the connection is open."""
    try:
        assert sock.recv(4096), "the connection is closed"
    except BlockingIOError:
        return True
    return False


@contextmanager
def zookeeper(hosts: str, token: str) -> Iterator[KazooClient]:
    """Yield a session that has proved a token."""
    client = KazooClient(hosts, auth_data=[("digest", token)], timeout=10)
    client.start(30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_a_revoked_user_loses_what_is_open(cluster: LocalUp, tmp_path: Path) -> None:
    """RPC with a sentence, the session at the store for good; another user's connections stay.

    Fails if `RpcServer` does not watch the list, or if the leader ends no sessions.
    """
    data = ("--data-dir", str(cluster.data_dir))
    for name in ("mallory", "honest"):
        assert run_rk("certs", "issue", "--user", name, "--to", str(tmp_path / name), *data).returncode == 0
    mallory, honest = (read_user(tmp_path / name) for name in ("mallory", "honest"))
    known = json.loads((cluster.data_dir / "cluster.json").read_text())
    places = [known["masters"][0]["address"], known["servers"][0]["address"]]
    with ExitStack() as stack:
        opened = [proved(where, mallory) for where in places]
        kept = [stack.enter_context(proved(where, honest)) for where in places]
        lost: list[str] = []
        session = stack.enter_context(zookeeper(known["store"], mallory.token(FOR_STORE)))
        other = stack.enter_context(zookeeper(known["store"], honest.token(FOR_STORE)))
        assert session.get_children("/")
        session.add_listener(lost.append)
        assert run_rk("certs", "revoke", "--user", "mallory", *data).returncode == 0
        for sock in opened:
            assert b"the key of user:mallory was revoked on" in rest_of(sock)
        eventually(lambda: KazooState.LOST in lost, what="the end of the session")
        with pytest.raises(KazooException):
            session.get_children("/")
        assert other.get_children("/")
        for sock in kept:
            sock.settimeout(0)
            eventually(lambda sock=sock: is_drained(sock), what="an open connection")
