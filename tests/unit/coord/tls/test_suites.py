"""Versions and cipher suites of TLS, by the names that zoo.cfg uses, in handshakes in memory."""

from __future__ import annotations

import ssl

import pytest

from coord.errors import ConfigError
from coord.tls.context import Engine, TlsError, TlsFiles, server_context
from coord.tls.suites import parse_suites, parse_versions
from tests.support.certificates import Authority

ECDSA_256 = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
ALL_OF_1_3 = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return an authority with a certificate for the server."""
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.issue("server")
    return made


def negotiated(authority: Authority, versions: str, suites: str, client: ssl.SSLContext) -> tuple[str, str]:
    """Return version and cipher suite of a handshake. Raise TlsError if there is none."""
    folder = authority.folder
    files = TlsFiles(
        folder / "server.pem",
        folder / "server.key",
        versions=parse_versions(versions) if versions else (),
        suites=parse_suites(suites) if suites else (),
    )
    server = Engine(server_context(files), is_server=True)
    dialing = Engine(client, is_server=False)
    to_server = dialing.seal([])
    while not (server.is_established and dialing.is_established):
        server.unseal(to_server)
        dialing.unseal(server.take())
        to_server = dialing.take()
    cipher = dialing._ssl.cipher()
    assert cipher is not None
    return str(dialing._ssl.version()), str(cipher[0])


def caller(maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, ciphers: str = "") -> ssl.SSLContext:
    """Return a client's context that trusts everybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = maximum
    if ciphers:
        context.set_ciphers(ciphers)
    return context


def test_only_allowed_versions_are_spoken(authority: Authority) -> None:
    """TLS 1.3 alone refuses a client of 1.2; 1.2 alone answers a client of both."""
    assert negotiated(authority, "", "", caller(ssl.TLSVersion.TLSv1_2))[0] == "TLSv1.2"
    with pytest.raises(TlsError):
        negotiated(authority, "TLSv1.3", "", caller(ssl.TLSVersion.TLSv1_2))
    assert negotiated(authority, "TLSv1.3", "", caller())[0] == "TLSv1.3"
    assert negotiated(authority, "TLSv1,TLSv1.2", "", caller())[0] == "TLSv1.2"


def test_only_allowed_suites_are_spoken(authority: Authority) -> None:
    """Suites of one version leave out the other version, as in Java."""
    assert negotiated(authority, "", ECDSA_256, caller()) == ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")
    assert negotiated(authority, "", ALL_OF_1_3, caller())[0] == "TLSv1.3"
    older = caller(ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-GCM-SHA256")
    assert negotiated(authority, "", "", older)[0] == "TLSv1.2"
    with pytest.raises(TlsError):
        negotiated(authority, "", ECDSA_256, older)


@pytest.mark.parametrize(
    ("versions", "suites", "wanted"),
    [
        ("TLSv1.1", "", "allows none of the versions"),
        ("TLSv2", "", "'TLSv2' is not a version of TLS"),
        ("", "TLS_RSA_WITH_NULL_MD5", "is not a cipher suite"),
        ("", "TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384.* cannot be left out"),
        ("TLSv1.3", ECDSA_256, "no allowed cipher suite belongs to an allowed version"),
    ],
)
def test_choices_that_cannot_be_kept_are_refused(authority: Authority, versions: str, suites: str, wanted: str) -> None:
    """Instead of allowing more than was asked for."""
    with pytest.raises(ConfigError, match=wanted):
        negotiated(authority, versions, suites, caller())
