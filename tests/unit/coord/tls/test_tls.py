"""TLS in memory: handshakes, identities, key stores of both kinds, and invalid settings."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord.errors import ConfigError
from coord.server.config.settings import StoreSettings
from coord.server.config.zoo_cfg import read_zoo_cfg
from coord.tls.context import Engine, TlsError, TlsFiles, _is_for, client_context, server_context
from coord.tls.der import oid, subject_of
from coord.tls.keystore import read_store
from tests.support.certificates import Authority, openssl


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority that the server trusts."""
    authority = Authority(tmp_path_factory.mktemp("ours"))
    authority.issue("server")
    authority.issue("client", "/C=DE/O=Example, Inc./CN=bob")
    return authority


def files(authority: Authority, name: str, client_auth: str = "none", *, trusts: Authority | None = None) -> TlsFiles:
    """Return the files that the authority issued under a name."""
    ca = (trusts or authority).cert
    return TlsFiles(authority.folder / f"{name}.pem", authority.folder / f"{name}.key", ca, client_auth)


def exchange(server: Engine, client: Engine) -> tuple[bytes, bytes]:
    """Exchange bytes until neither side has more to send. Return the data that arrived at (server, client)."""
    heard = b""
    answered = b""
    to_server = client.seal([b"question"])
    for _ in range(10):
        heard += server.unseal(to_server)
        if heard and not answered and server.is_established:
            to_client = server.take() + server.seal([b"answer"])
        else:
            to_client = server.take()
        answered += client.unseal(to_client)
        to_server = client.take()
        if not to_server and answered:
            break
    return heard, answered


@pytest.mark.parametrize(
    ("name", "host", "is_for"),
    [
        ("a.example", "A.example.", True),
        ("a.example", "b.example", False),
        ("*.example", "a.example", True),
        ("*.example", "a.b.example", False),
        ("*.example", ".example", False),
        ("*.example", "example", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.10", False),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("10.0.0.1", "a.example", False),
    ],
)
def test_names_in_certificates(name: str, host: str, is_for: bool) -> None:
    """As in RFC 6125, except wildcards within a label."""
    assert _is_for(name, host) is is_for


@pytest.mark.parametrize("auth", ["none", "want", "need"])
def test_what_is_sealed_is_unsealed(ours: Authority, auth: str) -> None:
    """Data queued during the handshake is sent afterwards; with and without a client certificate."""
    server = Engine(server_context(files(ours, "server", auth)), is_server=True)
    client = Engine(client_context(files(ours, "client")), is_server=False)
    assert exchange(server, client) == (b"question", b"answer")
    assert server.peer_subject() == ("" if auth == "none" else "CN=bob,O=Example\\, Inc.,C=DE")
    long = bytes(range(256)) * 1000
    assert client.unseal(server.seal([long])) == long
    client.unseal(server.close_notify())
    assert client.is_ended


def records(sealed: bytes) -> list[bytes]:
    """Split sealed bytes at the TLS records' own lengths."""
    found = []
    while sealed:
        size = 5 + int.from_bytes(sealed[3:5], "big")
        found.append(sealed[:size])
        sealed = sealed[size:]
    return found


def kazoos_context(ours: Authority) -> ssl.SSLContext:
    """Return the context of a client that is not of this program."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(files(ours, "client").ca)
    return context


def test_each_frame_is_a_record_of_its_own(ours: Authority) -> None:
    """A client that selects on its socket would not see the beginning of a second frame in the same record.

    Fails if `Engine` joins frames whatever the other end has offered.
    """
    server = Engine(server_context(files(ours, "server")), is_server=True)
    client = Engine(kazoos_context(ours), is_server=False)
    exchange(server, client)
    assert [client.unseal(record) for record in records(server.seal([b"one", b"two", b"three"]))] == [
        b"one",
        b"two",
        b"three",
    ]
    long = bytes(40_000)
    parts = [client.unseal(record) for record in records(server.seal([long, b"behind"]))]
    assert len(parts) == 4, "16 KiB, 16 KiB, the rest, and the next frame alone"
    assert (b"".join(parts[:3]), parts[3]) == (long, b"behind")


def test_ends_of_this_program_put_frames_together(ours: Authority) -> None:
    """A record costs as much as a hundred small answers. Fails if a context offers no ALPN."""
    server = Engine(server_context(files(ours, "server")), is_server=True)
    client = Engine(client_context(files(ours, "client")), is_server=False)
    exchange(server, client)
    sealed = server.seal([b"one", b"two"])
    assert len(records(sealed)) == 1
    assert client.unseal(sealed) == b"onetwo"
    # Several records in one read, the last one in two parts, and the end of the session behind data.
    sealed = b"".join(server.seal([part]) for part in (b"a", b"b", b"c"))
    assert (client.unseal(sealed[:-3]), client.unseal(sealed[-3:])) == (b"ab", b"c")
    assert (client.unseal(server.seal([b"last"]) + server.close_notify()), client.is_ended) == (b"last", True)


def test_frames_from_before_the_end_of_the_handshake_are_records_of_their_own(ours: Authority) -> None:
    """Queued data is sent in the same records as without the queue."""
    server = Engine(server_context(files(ours, "server")), is_server=True)
    client = Engine(client_context(files(ours, "client")), is_server=False)
    to_server = client.seal([b"hello", b"ping"])
    heard: list[bytes] = []
    for _ in range(5):
        heard += [server.unseal(record) for record in records(to_server)]
        client.unseal(server.take())
        to_server = client.take()
    assert [part for part in heard if part] == [b"hello", b"ping"]


def strangers_client(ours: Authority, *, has_certificate: bool) -> Engine:
    """Return a client that trusts the server, with a foreign certificate or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(ours.cert)
    if has_certificate:
        cert, key = Authority(ours.folder / "foreign", "foreign").issue("eve")
        context.load_cert_chain(cert, key)
    return Engine(context, is_server=False)


@pytest.mark.parametrize("has_certificate", [False, True])
def test_clients_without_a_certificate_of_ours_are_refused(ours: Authority, has_certificate: bool) -> None:
    """With no certificate, or a foreign one."""
    server = Engine(server_context(files(ours, "server", "need")), is_server=True)
    client = strangers_client(ours, has_certificate=has_certificate)
    with pytest.raises(TlsError):
        exchange(server, client)
    assert not server.is_established
    assert server.peer_subject() == ""


def test_a_session_is_resumed_by_the_next_connection(ours: Authority) -> None:
    """This is what a browser does at an admin port: neither end signs again, and the server still knows the
    certificate."""
    accepting = server_context(files(ours, "server", "want"))
    dialing = client_context(files(ours, "client"))

    def connected(session: ssl.SSLSession | None) -> ssl.SSLObject:
        server, arrived, left = Engine(accepting, is_server=True), ssl.MemoryBIO(), ssl.MemoryBIO()
        client = dialing.wrap_bio(arrived, left, server_hostname="127.0.0.1", session=session)
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                client.read(1)  # the session comes after the handshake
            server.unseal(left.read())
            arrived.write(server.take())
        assert server.peer_subject() == "CN=bob,O=Example\\, Inc.,C=DE"
        return client

    first = connected(None)
    assert not first.session_reused
    assert connected(first.session).session_reused


def test_servers_of_a_foreign_authority_are_refused(ours: Authority, tmp_path: Path) -> None:
    """Dialing peers, for example, reject them."""
    foreign = Authority(tmp_path, "foreign")
    foreign.issue("server")
    server = Engine(server_context(files(foreign, "server")), is_server=True)
    client = Engine(client_context(files(ours, "client")), is_server=False)
    with pytest.raises(TlsError, match="certificate"):
        exchange(server, client)


def test_old_versions_are_refused(ours: Authority) -> None:
    """TLS 1.1 is insecure."""
    assert server_context(files(ours, "server")).minimum_version == ssl.TLSVersion.TLSv1_2


@given(st.binary(min_size=1, max_size=300))
def test_strangers_bytes_are_an_error_and_no_more(ours: Authority, data: bytes) -> None:
    """Bytes that are not TLS."""
    server = Engine(server_context(files(ours, "server")), is_server=True)
    with contextlib.suppress(TlsError):
        assert server.unseal(data) == b""
    assert not server.is_established


def test_changed_bytes_are_an_error(ours: Authority) -> None:
    """Bytes changed between the two ends are noticed."""
    server = Engine(server_context(files(ours, "server")), is_server=True)
    client = Engine(client_context(files(ours, "client")), is_server=False)
    exchange(server, client)
    sealed = bytearray(client.seal([b"transfer 100"]))
    sealed[-1] ^= 1
    with pytest.raises(TlsError):
        server.unseal(bytes(sealed))


def test_handshake_that_does_not_end_holds_a_bounded_amount(ours: Authority) -> None:
    """At most a few hellos are queued for it."""
    client = Engine(client_context(files(ours, "client")), is_server=False)
    for _ in range(64):
        client.seal([b"x" * 1024])
    with pytest.raises(TlsError, match="handshake is not complete"):
        client.seal([b"x"])


@pytest.mark.parametrize(
    ("subject", "wanted"),
    [
        ("/CN=alice", "CN=alice"),
        ("/C=DE/ST=Berlin/L=Berlin/O=Ex/OU=Dev/CN=alice", "CN=alice,OU=Dev,O=Ex,L=Berlin,ST=Berlin,C=DE"),
        ("/DC=org/DC=example/UID=a1/CN=Jürgen", "CN=Jürgen,UID=a1,DC=example,DC=org"),
        ('/O=a"b\\+c/CN=<x>;y', 'CN=\\<x\\>\\;y,O=a\\"b\\+c'),
        ("/CN=#x ", "CN=\\#x\\ "),
        ("/emailAddress=a@b.c/CN=e", "CN=e,1.2.840.113549.1.9.1=#1605614062"),
        ("/CN=a=b", "CN=a\\=b"),
        ("/CN=  two  blanks  ", "CN=\\ \\ two  blanks\\ \\ "),
        ("/CN=#1", "CN=\\#1"),
    ],
)
def test_subjects_are_written_as_java_writes_them(ours: Authority, subject: str, wanted: str) -> None:
    """RFC 2253: the identities that access lists name."""
    cert, _ = ours.issue("named", subject)
    got = subject_of(ssl.PEM_cert_to_DER_cert(cert.read_text()))
    assert got.startswith(wanted)
    assert got == wanted or "emailAddress" in subject


@given(st.binary(max_size=100))
def test_any_bytes_are_a_subject_or_refused(data: bytes) -> None:
    """Any bytes give a subject or ValueError."""
    with contextlib.suppress(ValueError):
        subject_of(data)


def test_object_identifiers() -> None:
    """Numbers of several bytes, and the first byte's two."""
    assert oid(bytes.fromhex("2a864886f70d010901")) == "1.2.840.113549.1.9.1"
    assert oid(bytes.fromhex("0992268993f22c640119")) == "0.9.2342.19200300.100.1.25"
    with pytest.raises(ValueError, match="empty"):
        oid(b"")


def java_store(ours: Authority, folder: Path, password: str) -> tuple[Path, Path]:
    """Return (key store, trust store) as keytool writes them."""
    if shutil.which("keytool") is None:
        pytest.skip("no keytool command")
    pkcs12, own, trusted = folder / "own.p12", folder / "own.jks", folder / "trusted.jks"
    cert, key = ours.folder / "server.pem", ours.folder / "server.key"
    openssl("pkcs12", "-export", "-in", cert, "-inkey", key, "-out", pkcs12, "-passout", f"pass:{password}")
    for words in (
        ["-importkeystore", "-srckeystore", pkcs12, "-srcstorepass", password, "-srcstoretype", "PKCS12",
         "-destkeystore", own, "-deststorepass", password, "-destkeypass", password],
        ["-importcert", "-noprompt", "-alias", "ca", "-file", ours.cert, "-keystore", trusted, "-storepass", password],
    ):  # fmt: skip
        done = subprocess.run(["keytool", *map(str, words), "-deststoretype" if words[0] == "-importkeystore" else
                               "-storetype", "JKS"], capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    return own, trusted


def test_java_key_stores_are_read(ours: Authority, tmp_path: Path) -> None:
    """Key and chain, and trusted authorities: a client can connect with them. With a wrong password it cannot."""
    own, trusted = java_store(ours, tmp_path, "changeit")
    settings = TlsFiles(own, None, trusted, "need", "changeit", "changeit")
    server = Engine(server_context(settings), is_server=True)
    client = Engine(client_context(files(ours, "client")), is_server=False)
    assert exchange(server, client) == (b"question", b"answer")
    with pytest.raises(ConfigError, match="wrong password, or damaged"):
        read_store(own, "other")
    damaged = tmp_path / "damaged"
    content = own.read_bytes()
    for size in (4, 30, len(content) // 2):
        damaged.write_bytes(content[:size])
        with pytest.raises(ConfigError):
            read_store(damaged, "changeit")


def keytool(*words: object) -> None:
    """Run the command, which writes PKCS #12 unless another format is named. Fail with its output."""
    if shutil.which("keytool") is None:
        pytest.skip("no keytool command")
    done = subprocess.run(["keytool", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_key_stores_in_the_format_of_keytool_are_read(ours: Authority, tmp_path: Path) -> None:
    """PKCS #12 with a key and its chain, and one with trusted certificates alone, as keytool writes them."""
    own, trusted, made = tmp_path / "own.jks", tmp_path / "trusted.p12", tmp_path / "made.p12"
    cert, key = ours.folder / "server.pem", ours.folder / "server.key"
    openssl("pkcs12", "-export", "-in", cert, "-inkey", key, "-certfile", ours.cert, "-out", made, "-passout",
            "pass:changeit")  # fmt: skip
    keytool("-importkeystore", "-srckeystore", made, "-srcstorepass", "changeit", "-destkeystore", own,
            "-deststorepass", "changeit")  # fmt: skip
    keytool("-importcert", "-noprompt", "-alias", "ca", "-file", ours.cert, "-keystore", trusted, "-storepass",
            "changeit")  # fmt: skip
    assert read_store(own, "changeit").own.count("BEGIN CERTIFICATE") == 2
    assert read_store(own, "changeit").trusted == ""
    settings = TlsFiles(own, None, trusted, "need", "changeit", "changeit")
    server = Engine(server_context(settings), is_server=True)
    client = Engine(client_context(files(ours, "client")), is_server=False)
    assert exchange(server, client) == (b"question", b"answer")
    with pytest.raises(ConfigError, match="wrong password, or damaged file"):
        read_store(trusted, "other")
    damaged = tmp_path / "damaged"
    damaged.write_bytes(own.read_bytes()[:100])
    with pytest.raises(ConfigError, match=f"{damaged}: wrong password, or damaged file"):
        read_store(damaged, "changeit")


def test_stores_that_cannot_work_are_named(ours: Authority, tmp_path: Path) -> None:
    """One line with file and reason."""
    cert, other = ours.folder / "server.pem", ours.folder / "client.key"
    with pytest.raises(ConfigError, match="no usable key"):
        server_context(TlsFiles(cert, other))
    with pytest.raises(ConfigError, match="no usable key"):
        server_context(TlsFiles(cert))
    with pytest.raises(ConfigError, match="No such file"):
        server_context(TlsFiles(tmp_path / "missing"))
    junk = tmp_path / "junk"
    junk.write_text("junk")
    with pytest.raises(ConfigError, match="neither PEM nor PKCS #12 nor JKS"):
        server_context(TlsFiles(junk))
    with pytest.raises(ConfigError, match="no authority is trusted"):
        TlsFiles(cert, client_auth="need")
    with pytest.raises(ConfigError, match="none, want or need"):
        TlsFiles(cert, client_auth="maybe")
    with pytest.raises(ConfigError, match="a certificate need each other"):
        StoreSettings(1, tmp_path, ("h", 1), secure_client_address=("h", 2))


def test_encrypted_keys_need_their_password(ours: Authority, tmp_path: Path) -> None:
    """Without it the start fails, instead of asking the terminal."""
    secret = tmp_path / "secret.key"
    openssl("pkcs8", "-topk8", "-in", ours.folder / "server.key", "-out", secret, "-passout", "pass:sesame")
    server_context(TlsFiles(ours.folder / "server.pem", secret, key_password="sesame"))
    with pytest.raises(ConfigError, match="no usable key"):
        server_context(TlsFiles(ours.folder / "server.pem", secret))


def zoo_cfg(folder: Path, *lines: str) -> StoreSettings:
    """Return the settings of a file with these lines."""
    path = folder / "zoo.cfg"
    path.write_text("\n".join(["dataDir=d", *lines]))
    return read_zoo_cfg(path)


def test_zoo_cfg(tmp_path: Path) -> None:
    """ZooKeeper's keys, its default for client certificates, and a store without a plain port."""
    (tmp_path / "password").write_text("sesame\n")
    stores = ("ssl.keyStore.location=own.pem", "ssl.keyStore.passwordPath=password", "ssl.trustStore.location=ca.pem")
    found = zoo_cfg(tmp_path, "clientPort=1", "secureClientPort=2", *stores)
    assert (found.client_address[1], found.secure_client_address) == (1, ("0.0.0.0", 2))
    assert found.tls == TlsFiles(tmp_path / "own.pem", None, tmp_path / "ca.pem", "need", "sesame")
    assert "sesame" not in repr(found)
    assert found.warnings == ()
    alone = zoo_cfg(tmp_path, "secureClientPort=2", *stores, "ssl.clientAuth=NONE")
    assert alone.client_address == alone.secure_client_address
    assert alone.tls is not None
    assert alone.tls.client_auth == "none"
    with pytest.raises(ConfigError, match=r"ssl.trustStore.location is missing"):
        zoo_cfg(tmp_path, "secureClientPort=2", stores[0])
    with pytest.raises(ConfigError, match=r"ssl.keyStore.location is missing"):
        zoo_cfg(tmp_path, "secureClientPort=2")
