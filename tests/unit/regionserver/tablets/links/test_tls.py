"""Links under TLS: certificates of the cluster's authority, and for the right host if required."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from coord.peers.guard import PeerGuard
from coord.security import revocation
from coord.security.revocation import RevocationList, Revoked
from coord.tls.context import NEED, TlsFiles
from regionserver.tablets.links.channel import Channel, ChannelLost
from regionserver.tablets.links.own_server import CopyConnection
from tests.support.certificates import Authority
from tests.support.store_nodes import SeededRng
from tests.unit.regionserver.tablets.links.servers import DEADLINE_S, Machine, Server


def certified(
    machine: Machine,
    name: str,
    authority: Authority,
    hosts: str,
    *,
    trusts: Authority | None = None,
    secret: bytes = b"",
    checks_host: bool = True,
) -> Server:
    cert, key = authority.issue(name, hosts=hosts)
    files = TlsFiles(cert, key, (trusts or authority).cert, client_auth=NEED, verify_host=checks_host)
    return machine.server(name, guarded=PeerGuard(SeededRng(3).token, tls=files, secret=secret))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize("secret", [b"", b"0123456789abcdef"], ids=["certificates", "and a secret"])
def test_frames_go_both_ways(machine: Machine, authority: Authority, secret: bytes) -> None:
    a, b = (certified(machine, name, authority, "IP:127.0.0.1", secret=secret) for name in "ab")
    a.knows(b)
    machine.until(lambda: a.links.is_connected("b") and b.links.is_connected("a"), "links both ways")
    for number in range(1, 4):
        assert a.beat("b", number)
        assert b.beat("a", number)
    machine.until(lambda: a.numbers("b") == b.numbers("a") == [1, 2, 3], "frames in order")


def test_certificate_of_another_authority_gets_nothing(
    machine: Machine, authority: Authority, tmp_path: Path, warnings: list[str]
) -> None:
    a = certified(machine, "a", authority, "IP:127.0.0.1")
    other = Authority(tmp_path / "other", "other")
    b = certified(machine, "b", other, "IP:127.0.0.1", trusts=authority)
    b.knows(a)
    machine.until(lambda: any(line.startswith("rejected a connection") for line in warnings), "a rejection")
    machine.turns()
    assert a.events == b.events == []


def test_certificate_of_another_host_gets_nothing(machine: Machine, authority: Authority, warnings: list[str]) -> None:
    a = certified(machine, "a", authority, "IP:127.0.0.1")
    b = certified(machine, "b", authority, "IP:127.0.0.9")
    b.knows(a)
    machine.until(lambda: any("a certificate that is not for 127.0.0.1" in line for line in warnings), "a rejection")
    a.knows(b)
    machine.until(lambda: any(line.startswith("no link to server b") for line in warnings), "nor is it dialed")
    machine.turns()
    assert a.events == b.events == []


@pytest.mark.parametrize("dialer", ["a", "b"])
def test_certificate_of_another_kind_gets_nothing(
    machine: Machine, authority: Authority, warnings: list[str], dialer: str
) -> None:
    """A user's certificate of the same authority is not a server's, at either end.

    Fails without the questions to `PeerGuard.misnamed`.
    """
    a = certified(machine, "a", authority, "URI:regionkeeper://c/server/a,IP:127.0.0.1")
    b = certified(machine, "b", authority, "URI:regionkeeper://c/user/bob,IP:127.0.0.1")
    (a.knows(b) if dialer == "a" else b.knows(a))
    machine.until(lambda: any("shows the certificate of user:bob" in line for line in warnings), "a rejection")
    machine.turns()
    assert a.events == []


@pytest.mark.parametrize("checks_host", [True, False])
def test_revoked_certificate_gets_nothing(
    machine: Machine, authority: Authority, warnings: list[str], checks_host: bool
) -> None:
    """At either end, also where names are not checked. Fails without the question to `revoked_peer` in
    `PeerGuard.revoked`, or if `TabletLinks.objection` asks only for names."""
    a = certified(machine, "a", authority, "URI:regionkeeper://c/server/a,IP:127.0.0.1", checks_host=checks_host)
    b = certified(machine, "b", authority, "URI:regionkeeper://c/server/b,IP:127.0.0.1", checks_host=checks_host)
    revocation.learn(msgspec.json.encode(RevocationList((Revoked("server:b", at_s=2**33),))))
    try:
        b.knows(a)
        machine.until(lambda: any("shows a revoked certificate" in line for line in warnings), "a rejection")
        machine.turns()
        assert a.events == []
    finally:
        revocation.learn(b"")


@pytest.mark.parametrize("checks_host", [True, False])
def test_links_end_with_the_certificate(machine: Machine, authority: Authority, checks_host: bool) -> None:
    """A revocation closes the links of both directions. Fails if `TabletLinks` does not watch the list."""
    a = certified(machine, "a", authority, "URI:regionkeeper://c/server/a,IP:127.0.0.1", checks_host=checks_host)
    b = certified(machine, "b", authority, "URI:regionkeeper://c/server/b,IP:127.0.0.1", checks_host=checks_host)
    a.knows(b)
    machine.until(lambda: a.links.is_connected("b") and b.links.is_connected("a"), "links both ways")
    revocation.learn(msgspec.json.encode(RevocationList((Revoked("server:b", at_s=2**33),))))
    try:
        machine.until(lambda: not a.links.is_connected("b") and not b.links.is_connected("a"), "no links")
    finally:
        revocation.learn(b"")
    machine.until(lambda: a.links.is_connected("b") and b.links.is_connected("a"), "links again")


def test_plain_connection_to_a_tls_port_gets_nothing(
    machine: Machine, authority: Authority, warnings: list[str]
) -> None:
    a = certified(machine, "a", authority, "IP:127.0.0.1")
    b = machine.server("b", secret=None)
    b.knows(a)
    machine.until(lambda: any("TLS" in line for line in warnings), "a rejection")
    machine.turns()
    assert a.events == b.events == []


@pytest.mark.parametrize("revoked", ["a", "b"])
def test_copies_end_with_the_certificate(machine: Machine, authority: Authority, revoked: str) -> None:
    """A revocation cuts a copy at the end that dialed and at the end that was dialed.

    Fails if `TabletLinks.revocations_changed` leaves out what was dialed, or `established` notes no certificate.
    """
    a = certified(machine, "a", authority, "URI:regionkeeper://c/server/a,IP:127.0.0.1")
    b = certified(machine, "b", authority, "URI:regionkeeper://c/server/b,IP:127.0.0.1")
    served: list[CopyConnection] = []
    a.links.serve_copies(served.append)
    with ThreadPoolExecutor(1) as pool:
        dialing = pool.submit(b.links.dial_copy, "a", a.address)
        machine.until(lambda: served, "a connection for a copy")
        (connection,) = served
        connection.sock.settimeout(DEADLINE_S)
        assert connection.tls is not None
        connection.sock.sendall(connection.tls.seal([connection.answer]))
        dialed = dialing.result(DEADLINE_S)
        source = Channel(connection.sock, connection.tls, "server b")
        source.established()
        reading = pool.submit(dialed.receive)
        revocation.learn(msgspec.json.encode(RevocationList((Revoked(f"server:{revoked}", at_s=2**33),))))
        try:
            source.end_if_revoked()
            with pytest.raises(ChannelLost):
                reading.result(DEADLINE_S)
            with pytest.raises(ChannelLost):
                source.receive()
        finally:
            revocation.learn(b"")
            dialed.close()
            source.close()
