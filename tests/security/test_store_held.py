"""Attacks on the store's client port that have always failed: seeded garbage, impossible lengths, forbidden requests.

The honest client is served after each of them, and keeps its session.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator

import pytest

from coord.errors import BAD_ARGUMENTS, NO_AUTH, OK
from coord.wire import opcodes as op
from coord.wire import records as r
from tests.security.store_node import Honest, Store, create, honest_client, running_store
from tests.support.helpers import eventually
from tests.support.rawclient import RawClient

pytestmark = pytest.mark.e2e

#: Znodes of another user: with data, and with a child.
SECRET = b"/secret"
OWNERS = [r.Acl(op.PERM_ALL, b"digest", b"owner:D/InIHSb7yEEbrWz8b9l71RjZJU=")]
LENGTHS = (-(2**31), -(2**31) + 1, -65536, -1, 0, 1, 7, 2**20 + 1, 2**24, 2**30, 2**31 - 2, 2**31 - 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Yield a serving node that has znodes with owners."""
    with running_store(tmp_path_factory.mktemp("held"), "--words", "*") as made:
        with contextlib.closing(made.stranger()) as owner:
            for path in (SECRET, SECRET + b"/child"):
                assert owner.ask(op.OP_CREATE, create(path, b"hunter2"))[0] == OK  # type: ignore[index]
            for path in (SECRET + b"/child", SECRET):
                assert owner.ask(op.OP_SET_ACL, r.encode_set_acl(path, OWNERS, -1))[0] == OK  # type: ignore[index]
        yield made


@pytest.fixture
def honest(store: Store) -> Iterator[Honest]:
    """Yield an honest client, which is served when the test has ended."""
    with honest_client(store) as made:
        yield made
        made.is_served()
        assert "Traceback" not in store.log()


def test_impossible_lengths_end_the_connection(store: Store, honest: Honest) -> None:
    """Before and after the session is open."""
    for length in LENGTHS:
        for has_session in (False, True):
            with contextlib.closing(store.stranger() if has_session else RawClient(store.address)) as client:
                client.sock.sendall(struct.pack("!i", length) + b"\xff" * 32)
                assert client.is_closed(), (length, has_session)


def test_garbage_ends_connections_only(store: Store, honest: Honest) -> None:
    """Random requests with a known opcode, and random bytes; the seed is fixed."""
    rng = random.Random(20)
    opcodes = [*op.WRITE_OPCODES, op.OP_GET_DATA, op.OP_MULTI_READ, op.OP_SET_WATCHES2, op.OP_AUTH, op.OP_SASL, 1001]
    for _ in range(60):
        with contextlib.closing(store.stranger()) as client:
            sent = []
            for number in range(rng.randrange(1, 20)):
                body = rng.randbytes(rng.randrange(60))
                sent.append(r.encode_request_frame(number, rng.choice(sorted(opcodes)), body))
            client.sock.sendall(b"".join(sent))
        with contextlib.closing(RawClient(store.address)) as client:
            client.sock.sendall(rng.randbytes(rng.randrange(1, 400)))


def test_no_password_but_its_own_opens_a_session(store: Store, honest: Honest) -> None:
    """Random ones, and those of another length; the session is unharmed."""
    session_id, passwd = honest.client.client_id
    rng = random.Random(7)
    guesses = [rng.randbytes(16) for _ in range(40)]
    guesses += [b"", passwd[:15], passwd + b"\0", bytes(16), passwd[:15] + bytes([passwd[15] ^ 1])]
    for guess in guesses:
        with contextlib.closing(RawClient(store.address)) as client:
            answer = client.hello(r.ConnectRequest(0, 4000, session_id, guess))
            assert answer is None or answer.session_id == 0, guess


def forbidden() -> list[tuple[str, int, bytes]]:
    """Return requests that only the owner of SECRET may make."""
    child = SECRET + b"/new"
    sets = r.MultiOp(op.OP_SET_DATA, SECRET, b"x", -1)
    creates = r.CreateRequest(op.OP_CREATE, child, b"", r.OPEN_ACL, 0)
    ttl = r.CreateRequest(op.OP_CREATE_TTL, child, b"", r.OPEN_ACL, op.CREATE_TTL, 1000)
    container = r.CreateRequest(op.OP_CREATE_CONTAINER, child, b"", r.OPEN_ACL, op.CREATE_CONTAINER)
    return [
        ("getData", op.OP_GET_DATA, r.encode_path_watch(SECRET, True)),
        ("exists", op.OP_EXISTS, r.encode_path_watch(SECRET, True)),
        ("getChildren", op.OP_GET_CHILDREN, r.encode_path_watch(SECRET, True)),
        ("getChildren2", op.OP_GET_CHILDREN2, r.encode_path_watch(SECRET, True)),
        ("getACL", op.OP_GET_ACL, r.encode_path(SECRET)),
        ("getAllChildrenNumber", op.OP_GET_ALL_CHILDREN_NUMBER, r.encode_path(SECRET)),
        ("setData", op.OP_SET_DATA, r.encode_set_data(SECRET, b"x", -1)),
        ("setACL", op.OP_SET_ACL, r.encode_set_acl(SECRET, r.OPEN_ACL, -1)),
        ("create", op.OP_CREATE, r.encode_create(creates)),
        ("createTTL", op.OP_CREATE_TTL, r.encode_create(ttl)),
        ("createContainer", op.OP_CREATE_CONTAINER, r.encode_create(container)),
        ("delete", op.OP_DELETE, r.encode_path_version(SECRET + b"/child", -1)),
        ("config", op.OP_SET_DATA, r.encode_set_data(b"/zookeeper/config", b"x", -1)),
        ("multi", op.OP_MULTI, r.encode_multi([sets])),
        ("multiRead", op.OP_MULTI_READ, r.encode_multi([r.MultiOp(op.OP_GET_DATA, SECRET)])),
    ]


@pytest.mark.parametrize("proof", [b"", b"owner:wrong", b"super:test"])
def test_access_lists_hold_for_every_request(store: Store, honest: Honest, proof: bytes) -> None:
    """Without a proof, and with a proof of another identity, also one that only looks like the superuser's."""
    with contextlib.closing(store.stranger()) as client:
        if proof:
            client.sock.sendall(r.encode_request_frame(op.XID_AUTH, op.OP_AUTH, r.encode_auth(b"digest", proof)))
            assert client.answer() == (OK, b"")
        for name, opcode, body in forbidden():
            answer = client.ask(opcode, body)
            assert answer is not None, name
            err, reply = answer
            assert b"hunter2" not in reply, name
            if name == "multi":
                err = r.decode_multi_reply(reply, 0, len(reply))[0].err if reply else err
            elif name == "multiRead":
                err = r.decode_multi_reply(reply, 0, len(reply))[0].err
            assert err == NO_AUTH, (name, err)


def test_watches_do_not_give_names_away(store: Store, honest: Honest) -> None:
    """CVE-2024-23944: a recursive watch above a closed znode gets no events from below it."""
    with contextlib.closing(store.stranger()) as spy, contextlib.closing(store.stranger()) as owner:
        added = spy.ask(op.OP_ADD_WATCH, r.encode_path_version(b"/", op.WATCH_PERSISTENT_RECURSIVE))
        assert added is not None
        assert added[0] == OK
        owner.sock.sendall(r.encode_request_frame(op.XID_AUTH, op.OP_AUTH, r.encode_auth(b"digest", b"owner:test")))
        owner.answer()
        closed = [r.Acl(op.PERM_ALL, b"auth", b"")]
        assert owner.ask(op.OP_CREATE, create(b"/hidden", b"", closed))[0] == OK  # type: ignore[index]
        assert owner.ask(op.OP_SET_DATA, r.encode_set_data(b"/hidden", b"x", -1))[0] == OK  # type: ignore[index]
        assert owner.ask(op.OP_CREATE, create(b"/public"))[0] == OK  # type: ignore[index]
        heard = b""
        while b"/public" not in heard:
            frame = spy.frame()
            assert frame is not None
            heard += frame
        assert b"/hidden" not in heard


def test_a_session_that_moves_leaves_its_address_behind(store: Store, honest: Honest) -> None:
    """An access list for an address holds for the session's present connection; the old one is closed."""
    home = [r.Acl(op.PERM_ALL, b"ip", b"127.0.0.66")]
    with contextlib.closing(store.stranger(source="127.0.0.67")) as neighbor:
        assert neighbor.ask(op.OP_CREATE, create(b"/home", b"", home))[0] == OK  # type: ignore[index]
    with contextlib.closing(RawClient(store.address, source="127.0.0.66")) as first:
        opened = first.hello(r.ConnectRequest(0, 4000, 0, bytes(16)))
        assert opened is not None
        get = r.encode_path_watch(b"/home", False)
        assert first.ask(op.OP_GET_DATA, get)[0] == OK  # type: ignore[index]
        with contextlib.closing(RawClient(store.address, source="127.0.0.67")) as second:
            moved = second.hello(r.ConnectRequest(0, 4000, opened.session_id, opened.passwd))
            assert moved is not None
            assert moved.session_id == opened.session_id
            assert second.ask(op.OP_GET_DATA, get)[0] == NO_AUTH  # type: ignore[index]
            assert first.is_closed()


def test_odd_paths_are_refused_or_served(store: Store, honest: Honest) -> None:
    """None of them ends the connection or harms the tree."""
    odd = [
        b"",
        b"//",
        b"/a/",
        b"/..",
        b"/./x",
        b"a",
        b"/\0",
        b"/a\0b",
        b"/\xed\xa0\x80",
        b"/\xff\xfe",
        b"/\xf0\x9f\x98\x80",
    ]
    odd += [b"/" + b"x" * 900_000, b"/a" * 200_000, b"/zookeeper", b"/\x1b]0;x\x07"]
    with contextlib.closing(store.stranger()) as client:
        for path in odd:
            answer = client.ask(op.OP_CREATE, create(path))
            assert answer is not None, path[:20]
            assert answer[0] != OK or path.startswith(b"/xxx"), path[:20]
            read = client.ask(op.OP_GET_CHILDREN, r.encode_path_watch(path, True))
            assert read is not None, path[:20]
        assert client.ask(op.OP_CREATE, create(b"/a\0b")) == (BAD_ARGUMENTS, b"")


def test_words_tell_no_secrets(store: Store, honest: Honest) -> None:
    """Neither passwords of sessions nor data, names of closed znodes or credentials."""
    honest.client.add_auth("digest", "ann:a-secret-word")
    passwd = honest.client.client_id[1]
    told = b""
    for word in (b"conf", b"cons", b"dump", b"envi", b"mntr", b"stat", b"srvr", b"wchs", b"wchc", b"wchp", b"dirs"):
        with contextlib.closing(RawClient(store.address)) as client:
            client.sock.sendall(word)
            while part := client.sock.recv(65536):
                told += part
    assert told
    for secret in (passwd, passwd.hex().encode(), b"hunter2", b"a-secret-word"):
        assert secret not in told
    eventually(lambda: "id='ann'" in store.log(), what="the audit line")
    assert "a-secret-word" not in store.log()
