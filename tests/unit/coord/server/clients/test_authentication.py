"""The identities of clients, on whole nodes in memory: digest and super, SASL, certificates, and the audit log."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.logger import LogEvent, formatEvent, globalLogPublisher

from coord.errors import AUTH_FAILED, NO_AUTH, OK, SESSION_CLOSED_REQUIRE_SASL_AUTH
from coord.security.principal import Principal
from coord.security.revocation import ShownCredential
from coord.server.clients.authentication import USER_BYTES_MAX, Authenticator
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.sasl import SaslClient
from coord.wire.values import Acl, CreateRequest
from tests.support.store_nodes import Client, SeededRng, StoreNodes

#: The digest of super:test, as `generate_digest("super:test")` of ZooKeeper prints it.
SUPER_DIGEST = "super:D/InIHSb7yEEbrWz8b9l71RjZJU="

ALICE = ShownCredential(Principal("user", "alice"), 1)


class Audit:
    """The audit log's lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, event: LogEvent) -> None:
        if event.get("log_namespace") == "audit":
            self.lines.append(formatEvent(event))


@pytest.fixture
def audit() -> Iterator[Audit]:
    """Yield the lines that are logged during the test."""
    found = Audit()
    globalLogPublisher.addObserver(found)  # type: ignore[arg-type]
    yield found
    globalLogPublisher.removeObserver(found)  # type: ignore[arg-type]


@pytest.fixture
def nodes() -> StoreNodes:
    """Return three nodes with a superuser and a SASL user."""
    made = StoreNodes(3)
    for node in made.nodes.values():
        users = {"bob": "builder"}
        token = SeededRng(7).token
        node.pipeline.handshake.authenticator = Authenticator(token, super_digest=SUPER_DIGEST, sasl_users=users)
    made.leader()
    return made


class Asker:
    """A client that sends one request at a time."""

    def __init__(self, nodes: StoreNodes, client: Client | None = None) -> None:
        self.nodes = nodes
        self.client = client or nodes.client(nodes.nodes[1])
        self.xid = 0

    def ask(self, opcode: int, body: bytes, xid: int = 0) -> tuple[int, bytes]:
        """Return (err, reply body)."""
        self.xid += 1
        self.client.request(xid or self.xid, opcode, body)
        self.nodes.settle()
        got, _, err, reply = self.client.replies()[-1]
        assert got == (xid or self.xid)
        return err, reply

    def auth(self, scheme: bytes, credential: bytes) -> int:
        """Return the answer to an auth packet."""
        return self.ask(op.OP_AUTH, records.encode_auth(scheme, credential), op.XID_AUTH)[0]

    def sasl(self, token: bytes) -> tuple[int, bytes | None]:
        """Return (err, token) of a step of SASL."""
        err, body = self.ask(op.OP_SASL, records.encode_sasl(token))
        # The Java client also reads a token after a rejection; without one it considers the connection broken.
        return err, records.decode_sasl(body, 0, len(body))

    def identities(self) -> list[tuple[bytes, bytes]]:
        """Return the session's identities in every node's table, without the address."""
        session_id = self.client.connection.session_id
        found = [node.machine.sessions.sessions[session_id].identities for node in self.nodes.nodes.values()]
        assert all(one[1:] == found[0][1:] for one in found)
        return found[0][1:]


def created(path: bytes, scheme: bytes, name: bytes) -> bytes:
    """Return the body of a create for one identity only."""
    return records.encode_create(CreateRequest(op.OP_CREATE, path, b"", [Acl(31, scheme, name)], 0))


def test_superuser_may_do_everything(nodes: StoreNodes, audit: Audit) -> None:
    """A client that proves the super digest; another password of that name is an ordinary digest identity."""
    owner, boss, fake = Asker(nodes), Asker(nodes), Asker(nodes)
    assert owner.ask(op.OP_CREATE, created(b"/mine", b"digest", b"x:y"))[0] == OK
    get = records.encode_path_watch(b"/mine", False)
    assert boss.ask(op.OP_GET_DATA, get)[0] == NO_AUTH
    assert (boss.auth(b"digest", b"super:test"), fake.auth(b"digest", b"super:tset")) == (OK, OK)
    assert boss.identities() == [(b"digest", SUPER_DIGEST.encode()), (b"super", b"")]
    assert boss.ask(op.OP_GET_DATA, get)[0] == OK
    assert fake.ask(op.OP_GET_DATA, get)[0] == NO_AUTH
    assert [line.split(" session")[0] for line in audit.lines] == [
        "authentication scheme=super id='super'",
        "authentication scheme=digest id='super'",
    ]


def test_nobody_is_superuser_unless_set(nodes: StoreNodes) -> None:
    """Without the setting the credential proves only a digest identity."""
    nodes.nodes[1].pipeline.handshake.authenticator = Authenticator(SeededRng(1).token)
    asker = Asker(nodes)
    assert asker.auth(b"digest", b"super:test") == OK
    assert asker.identities() == [(b"digest", SUPER_DIGEST.encode())]


def test_sasl_proves_a_user(nodes: StoreNodes, audit: Audit) -> None:
    """The last answer comes when every node has the identity; access lists of scheme sasl apply to it."""
    asker, other = Asker(nodes), Asker(nodes)
    client = SaslClient("bob", "builder", b"cnonce")
    assert asker.sasl(b"")[1] is not None
    err, challenge = asker.sasl(b"")
    assert err == AUTH_FAILED, "the first token is empty, the second is not"
    asker = Asker(nodes)
    _, challenge = asker.sasl(client.evaluate(None))
    err, proof = asker.sasl(client.evaluate(challenge))
    assert client.evaluate(proof) == b""
    assert (err, client.is_complete, asker.identities()) == (OK, True, [(b"sasl", b"bob")])
    assert asker.ask(op.OP_CREATE, created(b"/bobs", b"sasl", b"bob"))[0] == OK
    assert other.ask(op.OP_GET_DATA, records.encode_path_watch(b"/bobs", False))[0] == NO_AUTH
    assert "scheme=sasl id='bob'" in audit.lines[-1]
    assert "builder" not in "".join(audit.lines)


def test_wrong_secret_ends_the_connection(nodes: StoreNodes, audit: Audit) -> None:
    """AuthFailed, then closed, as in ZooKeeper; the audit log has the attempt."""
    asker = Asker(nodes)
    client = SaslClient("bob", "wrong", b"cnonce")
    _, challenge = asker.sasl(client.evaluate(None))
    assert asker.sasl(client.evaluate(challenge)) == (AUTH_FAILED, None)
    assert not asker.client.is_open
    assert "refused: unknown user or wrong password for 'bob'" in audit.lines[-1]


def test_without_users_the_answer_is_null(nodes: StoreNodes) -> None:
    """A ZooKeeper without SASL answers like this; clients treat it as a failure."""
    nodes.nodes[1].pipeline.handshake.authenticator = Authenticator(SeededRng(1).token)
    asker = Asker(nodes)
    assert asker.sasl(b"") == (OK, None)
    assert asker.identities() == []


def test_a_huge_user_name_is_no_identity(nodes: StoreNodes, audit: Audit) -> None:
    """Every node would keep it, and a stranger may give hundreds of a megabyte each. Passwords are only hashed."""
    asker = Asker(nodes)
    assert asker.auth(b"digest", b"u" * USER_BYTES_MAX + b":" + b"p" * 100_000) == OK
    assert len(asker.identities()) == 1
    assert asker.auth(b"digest", b"v" * (USER_BYTES_MAX + 1) + b":p") == AUTH_FAILED
    assert not asker.client.is_open
    assert "refused: the user name has more than 1024 bytes" in audit.lines[-1]


def test_a_huge_name_of_sasl_ends_the_exchange(nodes: StoreNodes, audit: Audit) -> None:
    """No line of the log has it. Fails if `parse_directives` reads a response of any length."""
    asker = Asker(nodes)
    client = SaslClient("u" * 1_000_000, "builder", b"cnonce")
    _, challenge = asker.sasl(client.evaluate(None))
    assert asker.sasl(client.evaluate(challenge)) == (AUTH_FAILED, None)
    assert len(audit.lines[-1]) < 1000


@pytest.mark.parametrize("scheme", [b"sasl", b"x509", b"super", b"world", b"nonsense"])
def test_other_schemes_prove_nothing(nodes: StoreNodes, audit: Audit, scheme: bytes) -> None:
    """In particular not the superuser's identity."""
    asker = Asker(nodes)
    assert asker.auth(scheme, b"bob") == AUTH_FAILED
    assert not asker.client.is_open
    assert "refused" in audit.lines[-1]


def test_certificate_comes_with_the_session(nodes: StoreNodes) -> None:
    """From its first request on, and again after a move to another node under another certificate."""
    client = Client(nodes.nodes[1], nodes.clock)
    client.connection.certificate = b"CN=bob"
    client.connect()
    nodes.settle()
    asker = Asker(nodes, client)
    assert asker.identities() == [(b"x509", b"CN=bob")]
    assert asker.auth(b"x509", b"") == OK
    moved = Client(nodes.nodes[2], nodes.clock)
    moved.connection.certificate = b"CN=eve"
    client.drain()
    reply: Any = client.connect_reply
    moved.connect(session_id=reply.session_id, passwd=reply.passwd)
    nodes.settle()
    assert Asker(nodes, moved).identities() == [(b"x509", b"CN=eve")]


def test_changes_of_access_lists_are_audited(nodes: StoreNodes, audit: Audit) -> None:
    """Path and session are logged, but not the hashes in the list."""
    asker = Asker(nodes)
    lines = [Acl(31, b"digest", b"bob:SECRETHASH=")]
    assert asker.ask(op.OP_SET_ACL, records.encode_set_acl(b"/", lines, -1))[0] == OK
    assert asker.ask(op.OP_SET_ACL, records.encode_set_acl(b"/", lines, -1))[0] == NO_AUTH
    session = f"session={asker.client.connection.session_id & (1 << 64) - 1:#x} address=10.0.0.1"
    assert audit.lines == [
        f"acl path='/' {session} result=ok",
        f"acl path='/' {session} result=refused: {NO_AUTH}",
    ]


def requiring(nodes: StoreNodes, *schemes: str) -> StoreNodes:
    """Make every node require an identity of one of these schemes."""
    for node in nodes.nodes.values():
        node.pipeline.handshake.authenticator = Authenticator(
            SeededRng(7).token, super_digest=SUPER_DIGEST, sasl_users={"bob": "builder"}, required=schemes
        )
    return nodes


@pytest.mark.parametrize(
    ("opcode", "body"),
    [
        (op.OP_GET_DATA, records.encode_path_watch(b"/", False)),
        (op.OP_CREATE, created(b"/x", b"world", b"anyone")),
        (op.OP_PING, b""),
        (op.OP_SYNC, records.encode_path(b"/")),
        (op.OP_CLOSE_SESSION, b""),
        (op.OP_WHO_AM_I, b""),
        (4711, b""),
    ],
)
def test_nothing_is_served_before_the_proof(nodes: StoreNodes, audit: Audit, opcode: int, body: bytes) -> None:
    """Any request is answered SessionClosedRequireSaslAuth and the connection ends; the audit log has a line. Later
    requests in the same bytes are not served either."""
    asker = Asker(requiring(nodes, "digest", "sasl"))
    client = asker.client
    frames = [struct.pack("!ii", xid, code) + rest for xid, code, rest in ((1, opcode, body), (2, op.OP_WHO_AM_I, b""))]
    block = b"".join(frames)
    client.node.pipeline.receive(client.connection, block, [(0, len(frames[0])), (len(frames[0]), len(block))])
    nodes.settle()
    assert [(xid, err) for xid, _, err, _ in client.replies()] == [(1, SESSION_CLOSED_REQUIRE_SASL_AUTH)]
    assert not client.is_open
    assert nodes.nodes[1].machine.tree.find(b"/x") is None
    assert "refused: no identity of a required scheme" in audit.lines[-1]


def test_what_follows_the_proof_is_served(nodes: StoreNodes) -> None:
    """Also in the same bytes; so Java's client sends its credentials before its watches. Another connection of the same
    session must prove its identity again."""
    asker = Asker(requiring(nodes, "digest"))
    client = asker.client
    proof = struct.pack("!ii", op.XID_AUTH, op.OP_AUTH) + records.encode_auth(b"digest", b"ann:a")
    get = struct.pack("!ii", 7, op.OP_GET_DATA) + records.encode_path_watch(b"/", False)
    client.node.pipeline.receive(client.connection, proof + get, [(0, len(proof)), (len(proof), len(proof + get))])
    nodes.settle()
    assert [(xid, err) for xid, _, err, _ in client.replies()] == [(op.XID_AUTH, OK), (7, OK)]
    again = Client(nodes.nodes[2], nodes.clock)
    again.connect(session_id=client.connection.session_id, passwd=client.connection.passwd)
    nodes.settle()
    assert Asker(nodes, again).ask(op.OP_WHO_AM_I, b"")[0] == SESSION_CLOSED_REQUIRE_SASL_AUTH


def test_an_identity_of_another_scheme_is_not_enough(nodes: StoreNodes) -> None:
    """Digest where SASL is required, and even super; SASL then opens the door."""
    asker = Asker(requiring(nodes, "sasl"))
    assert asker.auth(b"digest", b"super:test") == OK
    assert asker.ask(op.OP_WHO_AM_I, b"")[0] == SESSION_CLOSED_REQUIRE_SASL_AUTH
    asker = Asker(nodes)
    client = SaslClient("bob", "builder", b"cnonce")
    _, challenge = asker.sasl(client.evaluate(None))
    assert asker.sasl(client.evaluate(challenge))[0] == OK
    assert asker.ask(op.OP_WHO_AM_I, b"")[0] == OK
    asker = Asker(nodes)
    client = SaslClient("bob", "wrong", b"cnonce")
    _, challenge = asker.sasl(client.evaluate(None))
    assert asker.sasl(client.evaluate(challenge))[0] == AUTH_FAILED
    assert not asker.client.is_open


def test_a_certificate_is_proof_where_x509_is_required(nodes: StoreNodes) -> None:
    """The certificate has been checked by the time the session begins."""
    requiring(nodes, "x509")
    for certificate, err in ((b"CN=bob", OK), (b"", SESSION_CLOSED_REQUIRE_SASL_AUTH)):
        client = Client(nodes.nodes[1], nodes.clock)
        client.connection.certificate = certificate
        client.connect()
        nodes.settle()
        assert Asker(nodes, client).ask(op.OP_WHO_AM_I, b"")[0] == err


def test_a_token_of_the_cluster_proves_its_principal(nodes: StoreNodes, audit: Audit) -> None:
    """A node that requires `rk` serves the token of a user and the superuser, and no other digest. A znode may be
    closed to everybody but the cluster's users.

    Fails without `_proved(connection, RK)`: the user's request is answered SessionClosedRequireSaslAuth.
    """
    for node in nodes.nodes.values():
        node.pipeline.handshake.authenticator = Authenticator(
            SeededRng(7).token,
            super_digest=SUPER_DIGEST,
            required=("rk",),
            shown_by=lambda token: ALICE if token == "user:alice:1:mac" else None,
        )
    boss, alice, stranger = Asker(nodes), Asker(nodes), Asker(nodes)
    assert boss.auth(b"digest", b"super:test") == OK
    lines = [Acl(31, b"rk", b"master:m1"), Acl(1, b"rk", b"user")]
    assert boss.ask(op.OP_CREATE, records.encode_create(CreateRequest(op.OP_CREATE, b"/x", b"v", lines, 0)))[0] == OK
    assert alice.auth(b"digest", b"user:alice:1:mac") == OK
    assert alice.ask(op.OP_GET_DATA, records.encode_path_watch(b"/x", False))[0] == OK
    assert alice.ask(op.OP_SET_DATA, records.encode_set_data(b"/x", b"w", -1))[0] == NO_AUTH
    assert stranger.auth(b"digest", b"user:alice:1:guess") == OK
    assert stranger.ask(op.OP_GET_DATA, records.encode_path_watch(b"/x", False))[0] == SESSION_CLOSED_REQUIRE_SASL_AUTH
    assert any("scheme=rk id='user:alice'" in line and "result=ok" in line for line in audit.lines)
    assert not any("mac" in line for line in audit.lines)


def test_a_token_is_proved_without_being_sent(nodes: StoreNodes, audit: Audit) -> None:
    """By SASL, as Java programs do whose code cannot be changed. A wrong token proves nothing, nor does one of
    nobody, nor a user of a file.

    Fails if `sasl` does not call `_proved_principal`: the request is answered SessionClosedRequireSaslAuth.
    """
    for node in nodes.nodes.values():
        node.pipeline.handshake.authenticator = Authenticator(
            SeededRng(7).token,
            sasl_users={"bob": "builder"},
            required=("rk",),
            secret_part_of=lambda who: (ALICE, "mac") if who == "user:alice:1" else None,
        )

    def proved(user: str, password: str) -> tuple[Asker, int]:
        asker, client = Asker(nodes), SaslClient(user, password, b"cnonce")
        _, challenge = asker.sasl(client.evaluate(None))
        return asker, asker.sasl(client.evaluate(challenge))[0]

    alice, err = proved("user:alice:1", "mac")
    assert (err, alice.identities()) == (OK, [(b"rk", b"user:alice"), (b"rk", b"user")])
    assert alice.ask(op.OP_EXISTS, records.encode_path_watch(b"/", False))[0] == OK
    assert proved("user:alice:1", "guess")[1] == AUTH_FAILED
    assert proved("user:nobody:1", "mac")[1] == AUTH_FAILED
    bob, err = proved("bob", "builder")
    assert err == OK
    assert bob.ask(op.OP_EXISTS, records.encode_path_watch(b"/", False))[0] == SESSION_CLOSED_REQUIRE_SASL_AUTH
    assert any("scheme=rk id='user:alice'" in line and "result=ok" in line for line in audit.lines)
