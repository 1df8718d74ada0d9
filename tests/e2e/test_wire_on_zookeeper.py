"""The handling of bytes that proper clients do not send: recorded on ZooKeeper, required of our store.

ZooKeeper is not sent malformed writes, which stop it for good, nor operations between servers, which it accepts from
clients.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from coord.errors import (
    AUTH_FAILED,
    BAD_ARGUMENTS,
    INVALID_ACL,
    MARSHALLING_ERROR,
    NO_NODE,
    NO_WATCHER,
    OK,
    UNIMPLEMENTED,
)
from coord.wire import records as r
from coord.wire.jute import NULL, strings
from tests.support.rawclient import RawClient
from tests.support.stores import STORE, Store, open_store, store_is_built, store_kinds

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=store_kinds())
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Yield a running store."""
    with open_store(request.param, tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def raw(store: Store) -> Iterator[RawClient]:
    """Yield a bare connection."""
    client = RawClient(store.addresses[0])
    yield client
    client.close()


@pytest.fixture
def session(raw: RawClient) -> RawClient:
    """Return a connection after the handshake."""
    answer = raw.hello(r.ConnectRequest(timeout_ms=5000))
    assert answer is not None
    assert answer.session_id != 0
    return raw


def alive(client: RawClient) -> bool:
    """Return True if the session still answers."""
    answer = client.ask(r.OP_EXISTS, r.encode_path_watch(b"/", False))
    return answer is not None and answer[0] == OK


# --- handshake ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_read_only", [True, False])
def test_reply_has_the_read_only_byte_iff_the_request_had(raw: RawClient, has_read_only: bool) -> None:
    """Old clients could not parse the extra byte."""
    answer = raw.hello(r.ConnectRequest(timeout_ms=5000, has_read_only=has_read_only))
    assert answer is not None
    assert answer.has_read_only == has_read_only
    assert len(answer.passwd) == 16


@pytest.mark.parametrize(("asked_ms", "granted_ms"), [(1, 1000), (5000, 5000), (1 << 30, 10000), (-1, 1000)])
def test_timeout_is_bounded_to_2_and_20_ticks(raw: RawClient, asked_ms: int, granted_ms: int) -> None:
    """The tick is 500 ms here."""
    answer = raw.hello(r.ConnectRequest(timeout_ms=asked_ms))
    assert answer is not None
    assert answer.timeout_ms == granted_ms


@pytest.mark.parametrize("size", [0, 1, 16, 100])
def test_password_of_any_length_begins_a_session(raw: RawClient, size: int) -> None:
    """With session 0 the password is ignored."""
    answer = raw.hello(r.ConnectRequest(timeout_ms=5000, passwd=bytes(size)))
    assert answer is not None
    assert answer.session_id != 0


@pytest.mark.parametrize("passwd", [bytes(16), b"x" * 16, b""])
def test_unknown_session_or_wrong_password_is_told_gone(store: Store, raw: RawClient, passwd: bytes) -> None:
    """The answer has timeout 0, session 0 and sixteen zero bytes, then the connection ends; the session itself
    lives."""
    owner = RawClient(store.addresses[-1])
    mine = owner.hello(r.ConnectRequest(timeout_ms=5000))
    assert mine is not None
    for session_id in (0x1234567, mine.session_id):
        thief = RawClient(store.addresses[0])
        answer = thief.hello(r.ConnectRequest(timeout_ms=5000, session_id=session_id, passwd=passwd))
        assert answer is not None
        assert (answer.timeout_ms, answer.session_id, answer.passwd) == (0, 0, bytes(16))
        assert thief.is_closed()
        thief.close()
    owner.close()
    again = raw.hello(r.ConnectRequest(timeout_ms=5000, session_id=mine.session_id, passwd=mine.passwd))
    assert again is not None
    assert again.session_id == mine.session_id


def test_client_from_the_future_is_dropped_without_an_answer(raw: RawClient) -> None:
    """The client has seen a later zxid than this server: it must try another server."""
    assert raw.hello(r.ConnectRequest(timeout_ms=5000, last_zxid_seen=1 << 60)) is None


def test_requests_may_follow_the_connect_request_at_once(raw: RawClient) -> None:
    """The requests are in the same TCP segment as the connect request, before any answer."""
    hello = r.encode_connect_request(r.ConnectRequest(timeout_ms=5000))
    ping = r.encode_request_frame(99, r.OP_PING, b"")
    read = r.encode_request_frame(1, r.OP_EXISTS, r.encode_path_watch(b"/", False))
    raw.sock.sendall(struct.pack("!i", len(hello)) + hello + ping + read)
    assert raw.frame() is not None
    xids = set()
    for _ in range(2):
        frame = raw.frame()
        assert frame is not None
        xids.add(r.decode_reply_header(frame, 0, len(frame))[0])
    assert xids == {r.XID_PING, 1}, "a ping is answered with a ping's id"


# --- frames ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first", [bytes(4), b"\xff" * 4, b"GET / HTTP/1.1\r\n\r\n", b"RUOK", b"nope", b"\x16\x03\x01\2"]
)
def test_garbage_is_closed_without_an_answer(raw: RawClient, first: bytes) -> None:
    """Zero and negative lengths, HTTP, TLS, unknown words."""
    raw.sock.sendall(first)
    assert raw.is_closed()


@pytest.mark.parametrize("length", [0, -1, 0x100000])
def test_bad_length_ends_an_open_session_s_connection(session: RawClient, length: int) -> None:
    """The length alone decides."""
    session.sock.sendall(struct.pack("!i", length))
    assert session.is_closed()


def test_longest_frame_is_served(session: RawClient) -> None:
    """1048575 bytes."""
    data = bytes(0xFFFFF - 8 - 4 - 4 - 4 - len(b"/nope"))
    body = r.encode_set_data(b"/nope", data, -1)
    assert len(body) + 8 == 0xFFFFF
    assert session.ask(r.OP_SET_DATA, body) == (NO_NODE, b"")
    assert alive(session)


def test_word_may_drip_in_and_the_connection_ends_after_the_answer(raw: RawClient) -> None:
    """One byte at a time."""
    for byte in b"ruok":
        raw.sock.sendall(bytes([byte]))
    assert raw.sock.recv(10) == b"imok"
    assert raw.is_closed()


# --- records --------------------------------------------------------------------------------------------------------

READS = [r.OP_EXISTS, r.OP_GET_DATA, r.OP_GET_CHILDREN, r.OP_GET_CHILDREN2, r.OP_GET_ACL]


@pytest.mark.parametrize("opcode", READS)
@pytest.mark.parametrize("body", [b"", b"\0", b"\0\0\0\x09/a", b"\x7f\xff\xff\xff", NULL + b"\0", b"\x80\0\0\0\0"])
def test_unreadable_read_is_refused_and_the_session_goes_on(session: RawClient, opcode: int, body: bytes) -> None:
    """Short, too long, negative, null."""
    assert session.ask(opcode, body) == (MARSHALLING_ERROR, b"")
    assert alive(session)


@pytest.mark.parametrize(
    ("opcode", "body", "err"),
    [
        (r.OP_ADD_WATCH, r.encode_path_version(b"/", 7), MARSHALLING_ERROR),
        (r.OP_ADD_WATCH, r.encode_path_version(b"/", -1), MARSHALLING_ERROR),
        (r.OP_REMOVE_WATCHES, r.encode_path_version(b"/", 9), MARSHALLING_ERROR),
        (r.OP_CHECK_WATCHES, r.encode_path_version(b"/", 0), MARSHALLING_ERROR),
        (r.OP_REMOVE_WATCHES, r.encode_path_version(b"/", r.WATCHER_ANY), NO_WATCHER),
        (r.OP_CREATE, r.encode_create(r.CreateRequest(r.OP_CREATE, b"/x", b"", None, 0)), INVALID_ACL),
        (r.OP_CREATE, r.encode_create(r.CreateRequest(r.OP_CREATE, b"/x", b"", r.OPEN_ACL, 99)), BAD_ARGUMENTS),
        (r.OP_CREATE, r.encode_create(r.CreateRequest(r.OP_CREATE, b"x", b"", r.OPEN_ACL, 0)), BAD_ARGUMENTS),
        (r.OP_CREATE, r.encode_create(r.CreateRequest(r.OP_CREATE, b"/x/", b"", r.OPEN_ACL, 0)), NO_NODE),
        (r.OP_DELETE, r.encode_path_version(b"/", -1), BAD_ARGUMENTS),
        (r.OP_DELETE, r.encode_path_version(b"/zookeeper", -1), BAD_ARGUMENTS),
        (r.OP_WHO_AM_I, b"", OK),
        (r.OP_GET_EPHEMERALS, r.encode_path(b"/"), OK),
        (r.OP_MULTI, r.encode_multi([]), OK),
    ],
)
def test_refusal_by_code(session: RawClient, opcode: int, body: bytes, err: int) -> None:
    """The answer has the code, and the session continues."""
    answer = session.ask(opcode, body)
    assert answer is not None
    assert answer[0] == err
    assert alive(session)


@pytest.mark.parametrize("opcode", [r.OP_CHECK, 0, -1, 10, 99, 108, 12345])
def test_unknown_operation_is_unimplemented_and_closes(session: RawClient, opcode: int) -> None:
    """Also `check` outside a multi, and the numbers between servers."""
    answer = session.ask(opcode, b"")
    assert answer is None or answer[0] == UNIMPLEMENTED
    assert session.is_closed()


@pytest.mark.parametrize("opcode", [r.OP_CREATE_SESSION, r.OP_ATTACH, r.OP_EXPIRE])
@pytest.mark.parametrize("size", [0, 28, 60])
def test_operations_between_servers_are_not_for_clients(
    store: Store, session: RawClient, opcode: int, size: int
) -> None:
    """A client cannot end or begin sessions through them."""
    if store.kind != STORE:
        pytest.skip("ZooKeeper begins a second session on the same connection")
    answer = session.ask(opcode, bytes(size))
    assert answer is None or answer[0] in (UNIMPLEMENTED, MARSHALLING_ERROR)


def test_auth_with_an_unknown_scheme_closes(session: RawClient) -> None:
    """digest without a colon succeeds."""
    assert session.ask(r.OP_AUTH, r.encode_auth(b"digest", b"nocolon")) == (OK, b"")
    assert session.ask(r.OP_AUTH, r.encode_auth(b"ip", b"")) == (OK, b"")
    assert session.ask(r.OP_AUTH, r.encode_auth(b"nonsense", b"x")) == (AUTH_FAILED, b"")
    assert session.is_closed()


@pytest.mark.parametrize("xid", [r.XID_AUTH, 77])
def test_auth_is_answered_with_the_id_it_came_with(session: RawClient, xid: int) -> None:
    """The ids are any number."""
    for scheme in (b"digest", b"ip", b"nonsense"):
        session.sock.sendall(r.encode_request_frame(xid, r.OP_AUTH, r.encode_auth(scheme, b"bob:pw")))
        frame = session.frame()
        assert frame is not None
        assert r.decode_reply_header(frame, 0, len(frame))[0] == xid


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (r.encode_path(b"/nope"), (OK, r.encode_path(b"/nope"))),
        (r.encode_path(b""), (OK, r.encode_path(b""))),
        (NULL, (OK, NULL)),
        (r.encode_path(b"/") + b"more", (OK, r.encode_path(b"/"))),
        (b"", (MARSHALLING_ERROR, b"")),
        (b"\0\0\0\x09/", (MARSHALLING_ERROR, b"")),
    ],
)
def test_sync_is_answered_with_its_path(session: RawClient, body: bytes, answer: tuple[int, bytes]) -> None:
    """Whether there is such a znode or not; an unreadable one is refused."""
    assert session.ask(r.OP_SYNC, body) == answer
    assert alive(session)


@pytest.mark.parametrize(
    ("prefix", "is_found"), [(b"", True), (b" / ", True), (b"/eph", True), (b" /eph", False), (b"/eph-x ", False)]
)
def test_ephemerals_by_prefix(session: RawClient, prefix: bytes, is_found: bool) -> None:
    """Blanks count, unless the prefix has nothing else."""
    created = r.CreateRequest(r.OP_CREATE, b"/eph-x", b"", r.OPEN_ACL, r.CREATE_EPHEMERAL)
    assert session.ask(r.OP_CREATE, r.encode_create(created)) == (OK, r.encode_path(b"/eph-x"))
    found = strings([b"/eph-x"] if is_found else [])
    assert session.ask(r.OP_GET_EPHEMERALS, r.encode_path(prefix)) == (OK, found)
    assert session.ask(r.OP_CLOSE_SESSION, b"") == (OK, b"")


@pytest.mark.parametrize(
    ("opcode", "body"),
    [
        (r.OP_DELETE, r.encode_path(b"/a")),
        (r.OP_CREATE, r.encode_path(b"/a")),
        (r.OP_CREATE, b"\xff\xff\xff\xfe"),
        (r.OP_SET_DATA, b"\0\0\0\x02/a\x7f\xff\xff\xff"),
        (r.OP_SET_ACL, r.encode_path(b"/a") + b"\x7f\xff\xff\xff"),
        (r.OP_DELETE_CONTAINER, b""),
        (r.OP_MULTI, b""),
        (r.OP_MULTI, b"\0\0\0\x63\0\xff\xff\xff\xff"),
        (r.OP_MULTI, r.encode_multi([r.MultiOp(1, b"/m", create=r.CreateRequest(1, b"/m", b"", None, 0))])),
        (r.OP_CREATE_TTL, r.encode_create(r.CreateRequest(r.OP_CREATE_TTL, b"/t", b"", r.OPEN_ACL, 0, -1))),
        (r.OP_RECONFIG, b"\0\0"),
        (r.OP_SET_WATCHES2, b"\0" * 9),
    ],
)
def test_malformed_writes_are_refused_and_the_store_goes_on(
    store: Store, session: RawClient, opcode: int, body: bytes
) -> None:
    """Writes that stop ZooKeeper cost the sender an error, perhaps the connection, and affect no other client."""
    if store.kind != STORE:
        pytest.skip("ZooKeeper does not survive this")
    answer = session.ask(opcode, body)
    assert answer is None or answer[0] != OK or opcode == r.OP_MULTI
    for address in store.addresses:
        other = RawClient(address)
        assert other.hello(r.ConnectRequest(timeout_ms=5000)) is not None
        created = r.CreateRequest(r.OP_CREATE, b"/alive-", b"", r.OPEN_ACL, r.CREATE_EPHEMERAL_SEQUENTIAL)
        written = other.ask(r.OP_CREATE, r.encode_create(created))
        assert written is not None
        assert written[0] == OK
        other.ask(r.OP_CLOSE_SESSION, b"")
        other.close()


def test_store_is_among_those_tested() -> None:
    """As soon as this tree has a store, all tests above run on it."""
    assert (STORE in store_kinds()) == store_is_built()
