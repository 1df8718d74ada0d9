"""Access lists: valid lists, permissions, and how lists are shown."""

from __future__ import annotations

import pytest

from coord import errors as e
from coord.tree.acl import OPEN, AccessList, resolve, user_of
from coord.wire import records as r
from coord.wire.values import OPEN_ACL, Acl
from tests.unit.coord.tree.tree_store import Client, Store

ALL = r.PERM_ALL
BOB = b"bob:ikIaKsbtGweaHnb/jKn7OHqbunM="


def acl(*lines: tuple[int, bytes, bytes]) -> list[Acl]:
    return [Acl(*line) for line in lines]


@pytest.mark.parametrize(
    ("line", "valid"),
    [
        ((ALL, b"world", b"anyone"), True),
        ((0, b"world", b"anyone"), True),
        ((-1, b"world", b"anyone"), True),
        ((ALL, b"world", b"bob"), False),
        ((ALL, b"auth", b""), False),
        ((ALL, b"digest", b"abc"), False),
        ((ALL, b"digest", b":"), False),
        ((ALL, b"digest", b"a:b:c"), False),
        ((ALL, b"digest", b"a:b:"), True),
        ((ALL, b"digest", b":b::"), True),
        ((ALL, b"digest", b"a::"), False),
        ((ALL, b"digest", b"::"), False),
        ((ALL, b"digest", b"a::b"), False),
        ((ALL, b"digest", BOB), True),
        ((ALL, b"ip", b"1.2.3"), False),
        ((ALL, b"ip", b"127.0.0.0/8"), True),
        ((ALL, b"ip", b"127.0.0.0/33"), False),
        ((ALL, b"ip", b"127.0.0.0/255.0.0.0"), False),
        ((ALL, b"ip", b"127.0.0.1/"), False),
        ((ALL, b"ip", b"01.2.3.4"), True),
        ((ALL, b"ip", b"+1.2.3.-0"), True),
        ((ALL, b"ip", b"1.2.3.-4"), False),
        ((ALL, b"ip", b"1.2.3.256"), False),
        ((ALL, b"ip", b"1.2.3.4."), False),
        ((ALL, b"ip", b"1_0.2.3.4"), False),
        ((ALL, b"ip", b"127.0.0.1/08"), True),
        ((ALL, b"ip", b"127.0.0.1/+8"), True),
        ((ALL, b"ip", b"127.0.0.1/ 8"), False),
        ((ALL, b"ip", b"127.0.0.1/8/8"), False),
        ((ALL, b"ip", b"/8"), False),
        ((ALL, b"ip", b""), False),
        ((ALL, b"ip", b"::1"), True),
        ((ALL, b"ip", b"::"), True),
        ((ALL, b"ip", b"::1/128"), True),
        ((ALL, b"ip", b"::1/129"), False),
        ((ALL, b"ip", b"1:2:3:4:5:6:7:8"), True),
        ((ALL, b"ip", b"1:2:3:4:5:6:7"), False),
        ((ALL, b"ip", b"1:2:3:4::5:6:7:8"), False),
        ((ALL, b"ip", b"1::2::3"), False),
        ((ALL, b"ip", b":::"), False),
        ((ALL, b"ip", b"12345::"), False),
        ((ALL, b"ip", b"::ffff:127.0.0.1"), False),
        ((ALL, b"ip", b"fe80::1%1"), False),
        ((ALL, b"ip", b"\xff"), False),
        ((ALL, b"x509", b"CN=a"), True),
        ((ALL, b"sasl", b"bob"), True),
        ((ALL, b"sasl", b""), True),
        ((ALL, b"sasl", b"a/b/c"), True),
        ((ALL, b"sasl", b"a/b@c"), True),
        ((ALL, b"sasl", b"a/b/c@d"), False),
        ((ALL, b"sasl", b"a@b@c"), False),
        ((ALL, b"x509", b""), False),
        ((ALL, b"super", b""), False),
        ((ALL, b"nonsense", b"x"), False),
    ],
)
def test_which_lines_are_valid(line: tuple[int, bytes, bytes], valid: bool) -> None:
    assert (resolve(acl(line), [(b"ip", b"127.0.0.1")]) is not None) == valid


def test_doubles_are_dropped_and_the_open_list_is_one_object() -> None:
    doubled = resolve(acl((1, b"world", b"anyone"), (1, b"world", b"anyone")), [])
    assert doubled is not None
    assert doubled.lines == acl((1, b"world", b"anyone"))
    assert resolve(acl((ALL, b"world", b"anyone")), []) is OPEN
    assert resolve(OPEN_ACL, []) is OPEN


def test_doubles_are_looked_for_before_auth_is_replaced() -> None:
    """As in ZooKeeper: the replacement of `auth` may duplicate an entry."""
    resolved = resolve(acl((5, b"auth", b""), (5, b"digest", BOB)), [(b"digest", BOB)])
    assert resolved is not None
    assert resolved.lines == acl((5, b"digest", BOB), (5, b"digest", BOB))


def test_auth_becomes_the_proven_identities_of_the_session() -> None:
    identities = [(b"ip", b"1.1.1.1"), (b"super", b""), (b"digest", BOB), (b"x509", b"CN=a")]
    resolved = resolve(acl((5, b"auth", b"ignored")), identities)
    assert resolved is not None
    assert resolved.lines == acl((5, b"digest", BOB), (5, b"x509", b"CN=a"))


@pytest.mark.parametrize(
    ("line", "identity", "allowed"),
    [
        ((1, b"digest", BOB), (b"digest", BOB), True),
        ((2, b"digest", BOB), (b"digest", BOB), False),
        ((1, b"digest", BOB), (b"digest", b"bob:other"), False),
        ((1, b"digest", BOB), (b"sasl", BOB), False),
        ((0, b"digest", BOB), (b"super", b""), True),
        ((1, b"ip", b"10.1.2.3"), (b"ip", b"10.1.2.3"), True),
        ((1, b"ip", b"10.1.0.9/16"), (b"ip", b"10.1.200.3"), True),
        ((1, b"ip", b"10.1.0.0/16"), (b"ip", b"10.2.0.1"), False),
        ((1, b"ip", b"10.1.0.0/16"), (b"ip", b"::1"), False),
        ((1, b"ip", b"10.1.0.0/16"), (b"ip", b"not an address"), False),
        ((1, b"ip", b"0.0.0.0/0"), (b"ip", b"8.8.8.8"), True),
        ((1, b"ip", b"010.1.2.3"), (b"ip", b"10.1.2.3"), True),
        ((1, b"ip", b"10.1.0.0/17"), (b"ip", b"10.1.128.1"), False),
        ((1, b"ip", b"FE80::/10"), (b"ip", b"fec0::1"), False),
        ((1, b"ip", b"fe80::/10"), (b"ip", b"fe80::1"), True),
    ],
)
def test_who_may_read(line: tuple[int, bytes, bytes], identity: tuple[bytes, bytes], allowed: bool) -> None:
    assert AccessList(acl(line)).allows(r.PERM_READ, [identity]) == allowed


# --- through the machine ---------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def bob(store: Store) -> Client:
    client = store.client(1)
    client.auth(b"digest", BOB)
    return client


@pytest.fixture
def eve(store: Store) -> Client:
    return store.client(2)


def shown(client: Client, path: bytes) -> tuple[int, list[Acl]]:
    err, body = client.read(r.OP_GET_ACL, r.encode_path(path))
    return err, ([] if err else r.decode_acl_reply(body, 0, len(body))[0])


def test_each_operation_asks_for_its_own_bit(bob: Client, eve: Client) -> None:
    bob.create(b"/a", acl=acl((ALL, b"auth", b"")))
    assert bob.create(b"/a/b").err == 0
    assert eve.get(b"/a")[0] == e.NO_AUTH
    assert eve.exists(b"/a") == e.NO_AUTH
    for opcode in (r.OP_GET_CHILDREN, r.OP_GET_CHILDREN2):
        assert eve.read(opcode, r.encode_path_watch(b"/a", True)) == (e.NO_AUTH, b"")
    assert eve.read(r.OP_GET_ALL_CHILDREN_NUMBER, r.encode_path(b"/a"))[0] == e.NO_AUTH
    assert shown(eve, b"/a")[0] == e.NO_AUTH
    assert eve.set(b"/a", b"").err == e.NO_AUTH
    assert eve.create(b"/a/c").err == e.NO_AUTH
    assert eve.delete(b"/a/b").err == e.NO_AUTH
    assert eve.delete(b"/a/nothing").err == e.NO_AUTH, "the parent is asked before the child is looked for"
    assert eve.set_acl(b"/a", OPEN_ACL).err == e.NO_AUTH
    assert eve.multi(_check(b"/a"))[0].err == e.NO_AUTH
    assert eve.get(b"/a/b")[0] == 0


def _check(path: bytes) -> r.MultiOp:
    return r.MultiOp(r.OP_CHECK, path, None, -1)


def test_get_acl_masks_digests_for_those_who_may_not_administer(bob: Client, eve: Client) -> None:
    lines = acl((1, b"world", b"anyone"), (ALL, b"digest", BOB), (4, b"ip", b"1.2.3.4"))
    bob.create(b"/a", acl=lines)
    assert shown(bob, b"/a") == (0, lines)
    assert shown(eve, b"/a") == (0, acl((1, b"world", b"anyone"), (ALL, b"digest", b"bob:x"), (4, b"ip", b"1.2.3.4")))


def test_lists_are_shared_and_forgotten_with_their_last_znode(bob: Client, store: Store) -> None:
    known = store.machine.tree.acls
    before = len(known)
    private = acl((ALL, b"auth", b""))
    bob.create(b"/a", acl=private)
    bob.create(b"/b", acl=private)
    assert store.machine.tree.nodes[b"/a"].acl is store.machine.tree.nodes[b"/b"].acl
    assert len(known) == before + 1
    bob.delete(b"/a")
    assert len(known) == before + 1
    bob.set_acl(b"/b", OPEN_ACL)
    assert len(known) == before


def test_who_am_i_shows_users_without_their_hashes(bob: Client) -> None:
    err, body = bob.read(r.OP_WHO_AM_I, b"")
    assert err == 0
    assert r.decode_who_am_i_reply(body, 0, len(body)) == [(b"ip", b"10.0.0.1"), (b"digest", b"bob")]
    assert user_of((b"x509", b"CN=a:b")) == b"CN=a:b"


def test_event_is_kept_from_those_who_may_not_read_the_znode(bob: Client, eve: Client, store: Store) -> None:
    bob.create(b"/a")
    eve.get(b"/a", watch=True)
    eve.children(b"/a", watch=True)
    eve.exists(b"/", watch=True)
    bob.set_acl(b"/a", acl((ALL, b"auth", b"")))
    bob.set(b"/a", b"secret")
    bob.create(b"/a/b")
    assert store.events() == []
