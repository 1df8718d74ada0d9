"""The contents of a certificate, and its expiry in health, metrics and credentials."""

from __future__ import annotations

import contextlib
import datetime
import json
import ssl
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from coord.errors import ConfigError
from coord.http import AdminHttp
from coord.metrics.definitions import add_process
from coord.security import making, process
from coord.security.certificate_facts import EXPIRY_DAYS_MIN, expiring, facts_of
from coord.security.certificates import making as certificates
from coord.security.certificates.authority import Pair, issue_certificate
from coord.security.credentials import Credentials
from coord.security.principal import MASTER, USER, Principal
from regions.diagnose.health import Findings, MasterFinding, ServerFinding, judge

NOW = datetime.datetime.now(datetime.UTC)
M1 = Principal(MASTER, "m1")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with an authority and the certificate of a master that expires in ten days."""
    tmp_path.chmod(0o700)
    made = making.init(tmp_path, Principal(USER, "admin"))
    certificates.init_authority(tmp_path, NOW)
    authority = Pair((tmp_path / "ca.crt").read_bytes(), (tmp_path / "ca.key").read_bytes())
    pair = issue_certificate(authority, made.cluster, M1, ["m1.example", "10.0.0.1"], NOW, days=10)
    making.write_private(tmp_path / "master.m1.crt", pair.certificate)
    making.write_private(tmp_path / "master.m1.key", pair.key)
    return tmp_path


def test_what_a_certificate_says(directory: Path) -> None:
    """The principal, the hosts without the URI, and a serial number that `openssl x509 -serial` prints alike."""
    (found,) = facts_of((directory / "master.m1.crt").read_bytes())
    assert (found.principal, found.names, found.is_authority) == ("master:m1", ["m1.example", "10.0.0.1"], False)
    assert found.subject == "CN=master:m1"
    assert found.days_left(NOW) == 9 or found.days_left(NOW) == 10
    assert int(found.serial, 16) > 0
    (authority,) = facts_of((directory / "ca.crt").read_bytes())
    assert (authority.principal, authority.is_authority) == ("", True)
    assert found.issuer == authority.subject
    with pytest.raises(ConfigError, match="no certificate"):
        facts_of(b"nothing")


@pytest.mark.parametrize(
    ("days", "says"), [(EXPIRY_DAYS_MIN + 1, ""), (EXPIRY_DAYS_MIN - 1, "expires in 13 days"), (-1, "has expired on")]
)
def test_a_certificate_that_soon_expires_is_named(days: int, says: str) -> None:
    """Fails if `expiring` compares with another limit than EXPIRY_DAYS_MIN."""
    found = expiring([("the certificate of master:m1", NOW + datetime.timedelta(days=days, minutes=1))], NOW)
    assert [one for one in found if says in one] == found
    assert bool(found) == bool(says)


def test_health_and_metrics_of_a_daemon_name_the_expiry(directory: Path) -> None:
    """/health stays healthy, as a restart would not help, and says what is degraded; a new certificate ends it.

    Fails without `_with_certificates` in `coord.http`, and without `_Certificates` in the metrics.
    """
    process.use(Credentials(directory, M1))
    try:
        registry = CollectorRegistry()
        add_process(registry, "master")
        pages = AdminHttp(registry=registry, health=lambda: (True, {}), ready=lambda: (True, {}), status=dict)
        status, _, body = pages.page(b"/health")
        assert status == 200
        assert "the certificate of master:m1 expires in" in json.loads(body)["degraded"][0]
        shown = generate_latest(registry).decode()
        (line,) = [one for one in shown.splitlines() if one.startswith("regionkeeper_certificate") and "own" in one]
        assert 9 * 86400 < float(line.split()[1]) < 10 * 86400
        (directory / "master.m1.crt").unlink()
        certificates.issue(directory, M1, ["m1.example"], directory, NOW)
        assert json.loads(pages.page(b"/health")[2]) == {"healthy": True}
        assert process.expiring() == []
    finally:
        process.forget()


def test_the_cluster_is_degraded(directory: Path) -> None:
    """One sentence for an authority that several daemons show. Fails if `judge` leaves `expiring` out."""
    text = "the authority expires in 3 days"
    found = Findings(
        masters=[MasterFinding("m1", "a", True, "active", expiring=[text])],
        servers=[ServerFinding("s1", "b", True, expiring=[text])],
    )
    assert [one.text for one in judge(found).reasons].count(text) == 1


def test_strict_clients_take_our_certificates(directory: Path) -> None:
    """From Python 3.13 on `ssl.create_default_context` checks certificates strictly by RFC 5280.

    Fails if `issue_certificate` leaves the AuthorityKeyIdentifier out.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "master.m1.crt", directory / "master.m1.key")
    client = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="m1.example"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert ends[0].version() == ends[1].version() == "TLSv1.3"
