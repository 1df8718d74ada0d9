"""RPC with a proof of identity: who is served, what a handler knows of its caller, and what strangers are told."""

from __future__ import annotations

import datetime
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher

from coord.rpc.blocking import call_blocking
from coord.rpc.client import RpcClient
from coord.rpc.server import PROOF_WITHIN_S, REJECTED_S, RpcServer
from coord.rpc.wire import (
    PREAMBLE,
    Code,
    Payload,
    Reply,
    Request,
    RpcError,
    RpcFrameReader,
    StreamError,
    encode_body,
    encode_frame,
)
from coord.security import process, revocation
from coord.security.certificate_facts import facts_of
from coord.security.certificates import making as certificates
from coord.security.channel import IS_OPEN, IS_SECURED
from coord.security.credentials import CLUSTER_FILE, Credentials, key_file, read_daemon, read_user
from coord.security.keys import ClusterSecrets, encode_file, issue
from coord.security.making import PEERS_FILE, write_private
from coord.security.principal import NOBODY, Principal
from coord.security.revocation import RevocationList, Revoked
from coord.security.tls_channel import explained
from regionserver.client.connections import Connections
from regionserver.client.tablets.exchange import Exchange, NonblockingConnection, Pool

ALICE, SERVER = Principal("user", "alice"), Principal("server", "one")


class Ask(msgspec.Struct, tag=True):
    n: int


class Answer(msgspec.Struct, tag=True):
    n: int


class Wire(StringTransport):
    """A transport whose ends have the addresses of a real connection."""

    disconnecting_write = False
    aborted = False

    def loseWriteConnection(self) -> None:
        """Note the end of writing."""
        self.disconnecting_write = True

    def abortConnection(self) -> None:
        """Note the end."""
        self.aborted = True

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        self.producer = None


NOW = datetime.datetime.now(datetime.UTC)


def with_certificates(folder: Path, hosts: tuple[str, ...] = ("127.0.0.1",)) -> tuple[Credentials, Credentials]:
    """Make an authority. Return the credentials of alice and of a server, each with a directory of its own."""
    made(folder, "11")
    certificates.init_authority(folder, NOW)
    certificates.issue(folder, ALICE, [], folder / "alice", NOW)
    certificates.issue(folder, SERVER, hosts, folder / "one", NOW)
    return read_user(folder / "alice"), read_daemon(folder / "one", Principal("server", "a uuid"))


def made(folder: Path, secret: str) -> tuple[Credentials, Credentials]:
    """Make a directory of credentials. Return those of alice and of a server."""
    folder.mkdir(mode=0o700)
    secrets = ClusterSecrets("c", {1: secret * 32})
    for path, content in ((folder / CLUSTER_FILE, secrets), (key_file(folder, ALICE), issue(secrets, ALICE))):
        write_private(path, encode_file(content))
    write_private(folder / PEERS_FILE, b"0123456789abcdef")
    return read_user(folder), read_daemon(folder, SERVER)


class Secured:
    """A secured server and the connections to it, in memory."""

    def __init__(self, credentials: Credentials | None) -> None:
        self.reactor = MemoryReactorClock()
        self.seen: list[tuple[Principal, int]] = []
        self.forbidden: set[int] = set()
        self.server = RpcServer(self.dispatch, requests=Ask, authorize=self.authorize, credentials=credentials)
        self.connection, self.transport = self.connect()

    def dispatch(self, request: Ask) -> Answer:
        self.seen.append((self.server.caller_principal(), request.n))
        return Answer(request.n)

    def authorize(self, who: Principal, request: Ask) -> None:
        if request.n in self.forbidden:
            raise RpcError("forbidden", f"{who} may not ask {request.n}")

    def connect(self) -> tuple[Any, Wire]:
        transport = Wire(IPv4Address("TCP", "127.0.0.1", 5), IPv4Address("TCP", "127.0.0.1", 6))
        transport.hostAddr = IPv4Address("TCP", "127.0.0.1", 6)
        connection: Any = self.server.factory(self.reactor).buildProtocol(None)
        connection.makeConnection(transport)
        return connection, transport

    def sent(self) -> bytes:
        self.reactor.advance(0)
        data: bytes = self.transport.value()
        self.transport.clear()
        return data

    def call(self, credentials: Credentials | None, *numbers: int) -> list[Any]:
        """Ask by a client of these credentials; return replies or errors."""
        client = RpcClient(self.reactor, "127.0.0.1", 6, replies=Answer, credentials=credentials)
        results: list[Any] = []
        for number in numbers:
            call: Deferred[Any] = client.call(Ask(number))
            call.addBoth(lambda found: results.append(getattr(found, "value", found)))
        self._exchange()
        if not results:  # the client has found an open daemon, and connects once more
            self.connection, self.transport = self.connect()
            self._exchange()
        client.close()
        return results

    def _exchange(self) -> None:
        """Let a client's latest connection and the server talk until one of them ends it."""
        factory = self.reactor.tcpClients[-1][2]
        own: Any = factory.buildProtocol(None)
        wire = Wire(IPv4Address("TCP", "127.0.0.1", 6), IPv4Address("TCP", "127.0.0.1", 6))
        wire.hostAddr = IPv4Address("TCP", "127.0.0.1", 5)
        own.makeConnection(wire)
        for _ in range(6):
            self.reactor.advance(0)
            data, back = wire.value(), self.transport.value()
            wire.clear()
            self.transport.clear()
            if data:
                self.connection.dataReceived(data)
            if back:
                own.dataReceived(back)
            if wire.aborted:
                own.connectionLost()
                break


@pytest.fixture(params=["keys", "certificates"])
def own(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Credentials, Credentials]:
    return made(tmp_path / "own", "11") if request.param == "keys" else with_certificates(tmp_path / "own")


def test_a_handler_knows_its_caller(own: tuple[Credentials, Credentials]) -> None:
    """The identity comes from the proof, for every request of the connection."""
    alice, server = own
    world = Secured(server)
    assert world.call(alice, 1, 2) == [Answer(1), Answer(2)]
    assert world.seen == [(ALICE, 1), (ALICE, 2)]


def test_at_level_debug_the_log_names_each_caller(own: tuple[Credentials, Credentials]) -> None:
    """`rk log-level` shows who connects, and as whom."""
    alice, server = own
    said: list[tuple[LogLevel, str]] = []

    def keep(event: LogEvent) -> None:
        said.append((event["log_level"], formatEvent(event)))

    globalLogPublisher.addObserver(keep)
    try:
        world = Secured(server)
        world.call(alice, 1)
        world.connection.connectionLost()
    finally:
        globalLogPublisher.removeObserver(keep)
    texts = ["127.0.0.1:6 has connected", "127.0.0.1:6 is user:alice", "the connection with 127.0.0.1:6 has ended"]
    assert said == [(LogLevel.debug, text) for text in texts]


def test_what_is_not_allowed_is_not_dispatched(own: tuple[Credentials, Credentials]) -> None:
    """`authorize` sees identity and request, and its error reaches the caller; the next request is served."""
    alice, server = own
    world = Secured(server)
    world.forbidden = {1}
    first, second = world.call(alice, 1, 2)
    assert (first.code, first.message) == ("forbidden", "user:alice may not ask 1")
    assert second == Answer(2)
    assert world.seen == [(ALICE, 2)]


def test_on_an_open_server_every_caller_is_nobody() -> None:
    """Without credentials there is no proof, and clients work as before."""
    world = Secured(None)
    assert world.call(None, 1) == [Answer(1)]
    assert world.seen == [(NOBODY, 1)]


def test_a_caller_without_proof_gets_one_sentence(own: tuple[Credentials, Credentials]) -> None:
    """The stranger's calls fail with what to do; nothing is dispatched, not even a later request."""
    world = Secured(own[1])
    errors = world.call(None, 1, 2)
    assert [one.code for one in errors] == [Code.UNAUTHENTICATED] * 2
    assert IS_SECURED in errors[0].message
    world.connection.dataReceived(encode_frame(Request(3, encode_body(Ask(3)))))
    assert world.seen == []
    assert world.transport.disconnecting_write


def test_a_build_that_knows_no_proof_shows_the_sentence_too(own: tuple[Credentials, Credentials]) -> None:
    """Its first request has id 1: the rejection comes as the answer to this request."""
    world = Secured(own[1])
    world.connection.dataReceived(PREAMBLE + encode_frame(Request(1, encode_body(Ask(1)))))
    frames = world.sent()[len(PREAMBLE) :]
    (length,) = struct.unpack_from(">I", frames)
    (second,) = RpcFrameReader().feed(PREAMBLE + frames[4 + length :])
    assert (second.id, getattr(second, "code", "")) == (1, Code.UNAUTHENTICATED)


def test_a_wrong_secret_serves_nothing(own: tuple[Credentials, Credentials], tmp_path: Path) -> None:
    """Both ends notice; the caller gets the sentence."""
    world = Secured(own[1])
    [error] = world.call(made(tmp_path / "other", "22")[0], 1)
    assert error.code == Code.UNAUTHENTICATED
    assert "another secret" in error.message or "demands a certificate" in error.message
    assert world.seen == []


def test_a_certificate_of_another_authority_serves_nothing(tmp_path: Path) -> None:
    """Neither end accepts the other's."""
    alice, _ = with_certificates(tmp_path / "other")
    world = Secured(with_certificates(tmp_path / "own")[1])
    [error] = world.call(alice, 1)
    assert error.code == Code.UNAUTHENTICATED
    assert "TLS: " in error.message
    assert "of another authority than our ca.crt: take --certs-dir of this cluster" in error.message
    assert world.seen == []


def test_a_certificate_copied_to_another_machine_is_noticed(tmp_path: Path) -> None:
    """The certificate names the hosts of its own machine, and the caller has dialed another host."""
    alice, server = with_certificates(tmp_path / "own", ("s1.example",))
    world = Secured(server)
    [error] = world.call(alice, 1)
    assert error.code == Code.UNAUTHENTICATED
    assert "names another host: dial a name that it has" in error.message
    assert world.seen == []


@pytest.mark.parametrize(
    ("years", "says"), [(-2, "our certificate has expired: `rk certs show`"), (2, "a clock is wrong")]
)
def test_a_certificate_of_another_year_is_explained(tmp_path: Path, years: int, says: str) -> None:
    """The library says no more than `sslv3 alert certificate expired`, or `bad certificate`.

    Tried: without `explained`.
    """
    folder = tmp_path / "own"
    _, server = with_certificates(folder)
    made = NOW + datetime.timedelta(days=366 * years)
    certificates.issue(folder, Principal("user", "alice"), [], folder / "late", made)
    world = Secured(server)
    [error] = world.call(read_user(folder / "late", "alice"), 1)
    assert error.code == Code.UNAUTHENTICATED
    assert says in error.message
    assert world.seen == []


def test_the_words_of_the_library_are_explained_only_if_they_are_known() -> None:
    """OpenSSL also has mismatches of lengths and versions. Before 3.0 it wrote "self signed"."""
    assert explained("length mismatch") == "length mismatch"
    assert "of another authority" in explained("self signed certificate in certificate chain")
    assert "names another host" in explained("ip address mismatch, certificate is not valid for '10.0.0.1'.")


def test_a_user_cannot_answer_as_a_daemon(tmp_path: Path) -> None:
    """A user's certificate is not for servers."""
    folder = tmp_path / "own"
    alice, _ = with_certificates(folder)
    certificates.issue(folder, Principal("user", "eve"), ["127.0.0.1"], folder / "eve", NOW)
    world = Secured(read_user(folder / "eve"))
    [error] = world.call(alice, 1)
    assert error.code == Code.UNAUTHENTICATED
    assert world.seen == []


@pytest.mark.parametrize(
    ("is_of_server", "shift_days", "says"),
    [
        (True, 2, "certificate is not yet valid"),
        (True, -1000, "certificate has expired"),
        (False, 2, "alert bad certificate"),
        (False, -1000, "alert certificate expired"),
    ],
)
def test_a_certificate_of_another_time_serves_nothing(
    tmp_path: Path, is_of_server: bool, shift_days: int, says: str
) -> None:
    """It is an old one, or the clock of the machine that made it is wrong. The caller reads why, as TLS names it.

    Fails if the contexts do not verify the times (`X509_V_FLAG_NO_CHECK_TIME`).
    """
    folder = tmp_path / "own"
    alice, server = with_certificates(folder)
    assert Secured(server).call(alice, 1) == [Answer(1)]
    then = NOW + datetime.timedelta(days=shift_days)
    if is_of_server:
        certificates.issue(folder, SERVER, ("127.0.0.1",), folder / "one", then)
        server = read_daemon(folder / "one", Principal("server", "a uuid"))
    else:
        certificates.issue(folder, ALICE, [], folder / "alice", then)
        alice = read_user(folder / "alice")
    world = Secured(server)
    [error] = world.call(alice, 1)
    assert error.code == Code.UNAUTHENTICATED
    assert says in error.message
    assert world.seen == []


@pytest.mark.parametrize("by_serial", [True, False])
def test_a_revoked_certificate_serves_nothing(tmp_path: Path, by_serial: bool) -> None:
    """The caller reads why. Another certificate of the user, made later, is served.

    Fails without the question to `revoked` in `TlsChannel._proved`.
    """
    folder = tmp_path / "own"
    alice, server = with_certificates(folder)
    (found,) = facts_of((folder / "alice" / "user.alice.crt").read_bytes())
    at_s = int(NOW.timestamp())
    entry = Revoked(serial=found.serial, at_s=at_s) if by_serial else Revoked(str(ALICE), at_s=at_s)
    revocation.learn(msgspec.json.encode(RevocationList((entry,))))
    try:
        world = Secured(server)
        [error] = world.call(alice, 1)
        assert error.code == Code.UNAUTHENTICATED
        assert f"of {ALICE} was revoked on" in error.message
        assert world.seen == []
        certificates.issue(folder, ALICE, [], folder / "alice", NOW + datetime.timedelta(seconds=2))
        assert Secured(server).call(alice, 1) == [Answer(1)]
    finally:
        revocation.learn(b"")


def test_a_revocation_closes_what_was_proved(own: tuple[Credentials, Credentials]) -> None:
    """The caller reads why; the connection of somebody else stays. Fails if `RpcServer` does not watch the list."""
    alice, server = own
    world = Secured(server)
    assert world.call(alice, 1) == [Answer(1)]
    for who, is_closed in ((Principal("user", "bob"), False), (ALICE, True)):
        entry = Revoked(str(who), 1, at_s=int(NOW.timestamp()))
        revocation.learn(msgspec.json.encode(RevocationList((entry,))))
        assert world.transport.disconnecting_write is is_closed
        assert bool(world.transport.value()) is is_closed
    revocation.learn(b"")


def test_a_revoked_key_serves_nothing(tmp_path: Path) -> None:
    """Nor its tokens; a key by a later secret is served. A damaged list changes nothing."""
    alice, server = made(tmp_path / "own", "11")
    token = alice.token()
    assert server.principal_of(token) == ALICE
    revocation.learn(msgspec.json.encode(RevocationList((Revoked(str(ALICE), 1),))))
    try:
        [error] = Secured(server).call(alice, 1)
        assert f"the key of {ALICE} was revoked on" in error.message
        assert server.principal_of(token) is None
        with pytest.raises(ValueError, match="truncated"):
            revocation.learn(b"{")
        assert server.principal_of(token) is None
        assert revocation.known().key_objection(ALICE, 2) == ""
    finally:
        revocation.learn(b"")


def test_the_authority_is_rotated_without_a_restart(tmp_path: Path) -> None:
    """Both are accepted for a while; afterwards certificates of the old one are worth nothing."""
    folder = tmp_path / "own"
    alice, server = with_certificates(folder)
    old = tmp_path / "old"
    certificates.issue(folder, Principal("user", "bob"), [], old, NOW)
    certificates.rotate_authority(folder, NOW)
    for end in ("alice", "one"):
        (folder / end / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())
    assert Secured(server).call(alice, 1) == [Answer(1)]
    certificates.issue(folder, SERVER, ["127.0.0.1"], folder / "one", NOW)
    assert Secured(server).call(alice, 1) == [Answer(1)]
    certificates.issue(folder, ALICE, [], folder / "alice", NOW)
    certificates.finish_authority(folder)
    for end in ("alice", "one"):
        (folder / end / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())
    assert Secured(server).call(alice, 1) == [Answer(1)]
    [error] = Secured(server).call(read_user(old), 1)
    assert error.code == Code.UNAUTHENTICATED


def test_an_open_server_gets_no_request_of_a_secured_caller(own: tuple[Credentials, Credentials]) -> None:
    """A daemon without a proof may be any process, so the caller sends only the hello."""
    world = Secured(None)
    [error] = world.call(own[0], 1)
    assert error.code == Code.UNAUTHENTICATED
    assert IS_OPEN in error.message
    assert world.seen == []


def test_a_silent_caller_is_dropped(own: tuple[Credentials, Credentials]) -> None:
    """The proof has a time limit, and so has the reading of a rejection."""
    world = Secured(own[1])
    world.reactor.advance(PROOF_WITHIN_S)
    assert world.transport.aborted
    world.connection, world.transport = world.connect()
    world.connection.dataReceived(PREAMBLE)
    world.reactor.advance(REJECTED_S - 0.5)
    assert not world.transport.aborted
    world.reactor.advance(0.5)
    assert world.transport.aborted


def test_a_secured_server_says_nothing_before_the_proof(own: tuple[Credentials, Credentials]) -> None:
    """Not even the preamble."""
    world = Secured(own[1])
    assert world.sent() == b""


class _Listening:
    """A secured server by blocking sockets, in a thread, for the blocking clients."""

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self.callers: list[Principal] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            with accepted:
                self._serve(accepted)

    def _serve(self, accepted: socket.socket) -> None:
        channel = None if self._credentials is None else self._credentials.listener()
        reader = RpcFrameReader()
        if channel is None:
            accepted.sendall(PREAMBLE)
        else:
            name = f"127.0.0.1:{self.address[1]}"
            channel.start(name, "")
            channel.send(PREAMBLE)
        while data := accepted.recv(65536):
            payloads: list[Payload] = []
            try:
                plain = data if channel is None else channel.receive(data)
                payloads = list(reader.feed(plain))
            except StreamError:
                return
            if channel is not None:
                accepted.sendall(channel.take())
            for payload in payloads:
                self.callers.append(NOBODY if channel is None else channel.peer)
                frame = encode_frame(Reply(payload.id, encode_body(Answer(7))))
                accepted.sendall(frame if channel is None else channel.send(frame))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listening(own: tuple[Credentials, Credentials]) -> Iterator[_Listening]:
    server = _Listening(own[1])
    yield server
    process.forget()
    server.close()


def test_blocking_calls_prove_the_identity_of_the_process(
    own: tuple[Credentials, Credentials], listening: _Listening
) -> None:
    """Tools, the pool of a region client, and its connections that do not block."""
    process.use(own[0])
    assert call_blocking(listening.address, Ask(1), 5.0, expect=Answer) == Answer(7)
    pool = Connections()
    assert pool.call(listening.address, Ask(1), Answer, 5.0) == Answer(7)
    pool.close()
    idle: Pool[NonblockingConnection] = Pool()
    for _ in range(2):
        exchange = Exchange(idle, "")
        exchange.start("key", listening.address, Ask(1), Answer)
        found = []
        while not found:
            found = exchange.wait(5.0)
        assert [one.reply for one in found] == [Answer(7)]
        exchange.close()
    idle.close()
    assert listening.callers == [ALICE] * 4


def test_blocking_calls_say_that_a_server_is_open(own: tuple[Credentials, Credentials]) -> None:
    """Each of the three clients sends no request to a server without a proof."""
    server = _Listening(None)
    process.use(own[0])
    try:
        with pytest.raises(RpcError) as caught:
            call_blocking(server.address, Ask(1), 5.0, expect=Answer)
        assert caught.value.code == Code.UNAUTHENTICATED
        assert IS_OPEN in caught.value.message
        with pytest.raises(RpcError) as caught:
            Connections().call(server.address, Ask(1), Answer, 5.0)
        assert caught.value.code == Code.UNAUTHENTICATED
        exchange = Exchange(Pool(), "")
        exchange.start("key", server.address, Ask(1), Answer)
        found = []
        while not found:
            found = exchange.wait(5.0)
        assert found[0].error is not None
        assert found[0].error.code == Code.UNAUTHENTICATED
        assert server.callers == []
    finally:
        process.forget()
        server.close()
