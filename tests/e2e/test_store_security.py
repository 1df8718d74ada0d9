"""TLS, SASL and the superuser from a client's view: kazoo and raw sockets against real nodes."""

from __future__ import annotations

import contextlib
import json
import ssl
import struct
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, SessionClosedRequireSaslError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_acl

from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.sasl import SaslClient
from coord.wire.values import ConnectRequest
from tests.e2e.clusters import run_rk
from tests.e2e.test_store_cluster import Cluster
from tests.support.certificates import Authority
from tests.support.helpers import PATIENCE_S, eventually, free_ports
from tests.support.rawclient import RawClient

pytestmark = pytest.mark.e2e

SUPER = ("--super-digest", "super:D/InIHSb7yEEbrWz8b9l71RjZJU=")


@contextlib.contextmanager
def running(folder: Path, *options: str, count: int = 1) -> Iterator[Cluster]:
    """Yield a store with these options."""
    cluster = Cluster(folder, count=count, options=options)
    try:
        cluster.start()
        eventually(lambda: cluster.word(1, b"srvr").startswith("Zookeeper"), what="serving")
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return an authority that issues certificates to nodes and clients."""
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.issue("server")
    made.issue("client", "/O=Example/CN=bob")
    return made


def tls_options(authority: Authority, port: int) -> tuple[str, ...]:
    """Return the options of a secure port that asks for certificates."""
    folder = authority.folder
    return (
        "--secure-client-address", f"127.0.0.1:{port}", "--tls-cert", str(folder / "server.pem"),
        "--tls-key", str(folder / "server.key"), "--tls-ca", str(authority.cert),
    )  # fmt: skip


@contextlib.contextmanager
def client(hosts: str, *, wait_s: float = PATIENCE_S, **options: Any) -> Iterator[KazooClient]:
    """Yield a connected kazoo client."""
    found = KazooClient(hosts, timeout=10, **options)
    try:
        found.start(wait_s)
        yield found
    finally:
        found.stop()
        found.close()


def secure(authority: Authority, name: str = "client") -> dict[str, Any]:
    """Return kazoo's options for TLS with that certificate."""
    folder = authority.folder
    pair = {"certfile": str(folder / f"{name}.pem"), "keyfile": str(folder / f"{name}.key")} if name else {}
    return {"use_ssl": True, "ca": str(authority.cert), **pair}


def test_client_certificate_is_an_identity(tmp_path: Path, authority: Authority) -> None:
    """A session over TLS works like any other, also with large answers, and its certificate is an identity for access
    lists."""
    (port,) = free_ports(1)
    with running(tmp_path, *tls_options(authority, port), "--words", "*") as store:
        hosts = f"127.0.0.1:{port}"
        with client(hosts, **secure(authority)) as bob, client(f"127.0.0.1:{store.client_ports[1]}") as nobody:
            bob.create("/bob", b"x", acl=[make_acl("x509", "CN=bob,O=Example", all=True)])
            with pytest.raises(NoAuthError):
                nobody.get("/bob")
            assert bob.get("/bob")[0] == b"x"
            for i in range(5):
                bob.create(f"/big{i}", b"x" * 900_000)
            answers = [bob.get_async(f"/big{i % 5}") for i in range(50)]
            assert all(len(answer.get(60)[0]) == 900_000 for answer in answers)
            seen: list[Any] = []
            bob.get("/big0", watch=seen.append)
            nobody.set("/big0", b"new")
            eventually(lambda: seen, what="the event")
        assert f"secureClientPort={port}\n" in store.word(1, b"conf")


def test_a_client_that_selects_gets_its_answers_at_once(tmp_path: Path, authority: Authority) -> None:
    """kazoo selects on its socket and does not see data that TLS has already decrypted. So when two answers were sent
    in one record, it waited until its next ping, a third of the session timeout."""
    (port,) = free_ports(1)
    timeout_s = 60
    with running(tmp_path, *tls_options(authority, port), "--tick-ms", "3000"):
        found = KazooClient(f"127.0.0.1:{port}", timeout=timeout_s, **secure(authority))
        try:
            found.start(PATIENCE_S)
            found.create("/x", b"x")
            until = time.monotonic() + timeout_s / 4
            for _ in range(3):
                answers = [found.get_async("/x") for _ in range(100)]
                for answer in answers:
                    answer.wait(max(0.0, until - time.monotonic()))
                assert sum(answer.ready() for answer in answers) == 100
        finally:
            found.stop()
            found.close()


def test_certificates_of_options_are_watched(tmp_path: Path, authority: Authority) -> None:
    """The certificates of this test live for two days: `rk health` reports the one that the node presents, and /health
    all files of the node.

    Fails if `judge` leaves store nodes out, and if `admin_site` watches no files.
    """
    port, admin = free_ports(2)
    folder = authority.folder
    with running(tmp_path, *tls_options(authority, port), "--admin-address", f"127.0.0.1:{admin}"):
        with client(f"127.0.0.1:{port}", **secure(authority)):
            pass
        tls = ("ca", authority.cert), ("cert", folder / "client.pem"), ("key", folder / "client.key")
        options = [word for name, path in tls for word in (f"--store-tls-{name}", str(path))]
        asked = run_rk("health", "--store", f"127.0.0.1:{port}", *options, "--store-tls-host-check", "no")
        assert f"the certificate of 127.0.0.1:{port} expires in 1 days" in asked.stdout
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/health", timeout=30) as page:
            degraded = "\n".join(json.load(page)["degraded"])
    for what in ("certificate", "authority"):
        assert f"the {what} at the port for clients expires in 1 days" in degraded


@pytest.mark.parametrize("kind", ["none", "foreign"])
def test_clients_without_certificate_are_refused(tmp_path: Path, authority: Authority, kind: str) -> None:
    """On a port that requires certificates; other clients are served."""
    (port,) = free_ports(1)
    options = secure(authority, "")
    if kind == "foreign":
        cert, key = Authority(tmp_path / "foreign", "foreign").issue("eve")
        options |= {"certfile": str(cert), "keyfile": str(key)}
    with running(tmp_path, *tls_options(authority, port)):
        with (
            pytest.raises(KazooTimeoutError),
            client(f"127.0.0.1:{port}", wait_s=10, connection_retry={"max_tries": 2}, **options),
        ):
            pass
        with client(f"127.0.0.1:{port}", **secure(authority)) as good:
            assert good.get_children("/") == ["zookeeper"]


def test_plain_and_secure_ports_do_not_mix(tmp_path: Path, authority: Authority) -> None:
    """Neither port accepts the other's protocol; without a plain address there is no plain port."""
    (port,) = free_ports(1)
    with running(tmp_path, *tls_options(authority, port)) as store:
        plain = RawClient(f"127.0.0.1:{port}")
        record = records.encode_connect_request(ConnectRequest(timeout_ms=5000))
        plain.sock.sendall(struct.pack("!i", len(record)) + record)
        data = plain.sock.recv(100)
        assert data[:1] in (b"", b"\x15"), "nothing, or an alert of TLS"
        context = ssl.create_default_context(cafile=str(authority.cert))
        context.check_hostname = False
        raw = RawClient(f"127.0.0.1:{store.client_ports[1]}")
        with pytest.raises((ssl.SSLError, OSError)):
            context.wrap_socket(raw.sock, server_hostname="x")
        assert store.word(1, b"ruok") == "imok"


def sasl(raw: RawClient, secret: str) -> tuple[int, bool]:
    """Return (err of the last step, whether the server has proved itself)."""
    exchange = SaslClient("bob", secret, b"cnonce")
    token: bytes | None = None
    while not exchange.is_complete:
        answer = raw.ask(op.OP_SASL, records.encode_sasl(exchange.evaluate(token)))
        if answer is None or answer[0]:
            return (answer[0] if answer else -4), False
        token = records.decode_sasl(answer[1], 0, len(answer[1]))
    return 0, True


def test_sasl_users_of_a_file(tmp_path: Path) -> None:
    """The right secret authenticates a user; a wrong one is answered and disconnected; the audit log has both."""
    users = tmp_path / "users"
    users.write_text("bob:builder\n")
    users.chmod(0o600)
    with running(tmp_path, "--sasl-users", str(users)) as store:
        good, bad = RawClient(f"127.0.0.1:{store.client_ports[1]}"), RawClient(f"127.0.0.1:{store.client_ports[1]}")
        for raw in (good, bad):
            assert raw.hello(ConnectRequest(timeout_ms=5000)) is not None
        assert sasl(good, "builder") == (0, True)
        assert sasl(bad, "wrong") == (-115, False)
        assert bad.is_closed()
        answer = good.ask(op.OP_WHO_AM_I, b"")
        assert answer is not None
        assert b"sasl" in answer[1]
        log = store.folder / "1.log"
        lines = ("audit: authentication scheme=sasl id='bob'", "refused: unknown user or wrong password for 'bob'")
        eventually(lambda: all(line in log.read_text() for line in lines), what="both are in the audit log")
        assert "builder" not in log.read_text()


def test_superuser(tmp_path: Path) -> None:
    """A client with the secret of the super digest may do everything, on any node."""
    with running(tmp_path, *SUPER, count=3) as store:
        hosts = ",".join(f"127.0.0.1:{port}" for port in store.client_ports.values())
        with client(hosts) as nobody, client(hosts) as boss:
            nobody.create("/locked", acl=[make_acl("digest", "x:y", all=True)])
            boss.add_auth("digest", "super:test")
            boss.set("/locked", b"x")
            with pytest.raises(NoAuthError):
                nobody.get("/locked")


def test_a_store_that_requires_identities_serves_nobody_else(tmp_path: Path) -> None:
    """kazoo with the user of SASL works. Without this user, or with a digest, the first request fails with the
    reason."""
    users = tmp_path / "users"
    users.write_text("bob:builder\n")
    users.chmod(0o600)
    with running(tmp_path, "--require-auth", "sasl", "--sasl-users", str(users)) as store:
        hosts = f"127.0.0.1:{store.client_ports[1]}"
        sasl = {"mechanism": "DIGEST-MD5", "username": "bob", "password": "builder"}
        with client(hosts, sasl_options=sasl) as bob:
            bob.create("/bob", b"x")
            for options in ({}, {"auth_data": [("digest", "ann:a")]}):
                with client(hosts, **options) as stranger, pytest.raises(SessionClosedRequireSaslError):
                    stranger.get("/bob")
            assert bob.get("/bob")[0] == b"x"
