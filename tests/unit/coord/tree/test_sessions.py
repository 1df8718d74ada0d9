"""Sessions: who owns one, what ends with it, and when the leader expires it."""

from __future__ import annotations

import pytest

from coord import errors as e
from coord.tree.command import Command, encode_create_session
from coord.tree.sessions import IDENTITIES_MAX, ExpiryQueue, Session, SessionTable
from coord.wire import records as r
from tests.unit.coord.tree.tree_store import PASSWD, Client, Store


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def c(store: Store) -> Client:
    return store.client(1)


def expire(store: Store, session_id: int, owner: int) -> int:
    return store.apply(Command(session_id, owner, 0, r.OP_EXPIRE, b"")).err


def test_new_session_is_owned_by_its_zxid_and_the_token_comes_back(c: Client, store: Store) -> None:
    session = store.machine.sessions.find(1)
    assert session is not None
    assert (session.owner, session.timeout_ms, session.passwd) == (c.created.zxid, 10_000, PASSWD)
    assert c.created.owner == 99
    assert session.identities == [(b"ip", b"10.0.0.1")]


def test_session_that_has_ended_is_not_found_again() -> None:
    """Even if it was looked up last; a later session with its id is another one."""
    table = SessionTable()
    first, second = [Session(1, PASSWD, 1000, owner, []) for owner in (1, 2)]
    assert table.find(1) is None
    table.add(first)
    assert table.find(1) is first
    table.remove(first)
    assert table.find(1) is None
    table.add(second)
    assert table.find(1) is second


@pytest.mark.parametrize(("session_id", "timeout_ms"), [(0, 1000), (5, 0), (5, -1)])
def test_session_without_id_or_timeout_is_refused(store: Store, session_id: int, timeout_ms: int) -> None:
    body = encode_create_session(timeout_ms, PASSWD, b"")
    assert store.apply(Command(session_id, 1, 0, r.OP_CREATE_SESSION, body)).err == e.BAD_ARGUMENTS


def test_session_id_in_use_is_refused_and_the_session_unharmed(c: Client, store: Store) -> None:
    body = encode_create_session(1000, bytes(16), b"")
    assert store.apply(Command(1, c.owner, 0, r.OP_CREATE_SESSION, body)).err == e.BAD_ARGUMENTS
    assert c.create(b"/a").err == 0


def test_unknown_session_is_expired(store: Store) -> None:
    assert store.apply(Command(9, 0, 0, r.OP_SET_DATA, b"")).err == e.SESSION_EXPIRED


def test_late_command_of_the_old_connection_is_session_moved(c: Client) -> None:
    old = c.owner
    assert c.attach().err == 0
    assert c.owner != old
    new, c.owner = c.owner, old
    assert c.create(b"/late").err == e.SESSION_MOVED
    assert c.close().err == e.SESSION_MOVED
    c.owner = new
    assert c.create(b"/now").err == 0


def test_attach_keeps_ephemerals_and_resets_identities_and_timeout(c: Client, store: Store) -> None:
    c.create(b"/e", flags=1)
    c.auth(b"digest", b"bob:hash")
    outcome = c.attach(timeout_ms=4000, address=b"10.0.0.2")
    session = store.machine.sessions.find(1)
    assert session is not None
    assert (session.owner, session.timeout_ms) == (outcome.zxid, 4000)
    assert session.identities == [(b"ip", b"10.0.0.2")]
    assert outcome.owner == 77
    assert c.exists(b"/e") == 0


@pytest.mark.parametrize("passwd", [bytes(16), b"", PASSWD[:-1], PASSWD + b"x"])
def test_attach_with_a_wrong_password_is_refused_as_if_unknown(c: Client, store: Store, passwd: bytes) -> None:
    before = store.machine.digest()
    assert c.attach(passwd).err == e.SESSION_EXPIRED
    assert store.machine.digest() == before
    assert c.create(b"/a").err == 0


def test_close_ends_the_session_and_its_ephemerals_under_one_zxid(c: Client, store: Store) -> None:
    other = store.client(2)
    c.create(b"/p")
    c.create(b"/p/e", flags=1)
    c.create(b"/p/f", flags=1)
    other.create(b"/p/g", flags=1)
    outcome = c.close()
    assert other.children(b"/p") == [b"g"]
    assert other.stat(b"/p").pzxid == outcome.zxid
    assert store.machine.tree.ephemerals_of(1) == []
    assert c.create(b"/p/h", flags=1).err == e.SESSION_EXPIRED


def test_expire_names_the_owner_it_saw(c: Client, store: Store) -> None:
    c.create(b"/e", flags=1)
    seen = c.owner
    c.attach()
    assert expire(store, 1, seen) == e.SESSION_MOVED
    assert c.exists(b"/e") == 0
    assert expire(store, 1, c.owner) == 0
    assert expire(store, 1, c.owner) == e.SESSION_EXPIRED
    assert store.machine.tree.find(b"/e") is None


def test_ephemeral_deleted_by_another_session_is_forgotten(c: Client, store: Store) -> None:
    c.create(b"/e", flags=1)
    store.client(2).delete(b"/e")
    store.client(3).create(b"/e")
    c.close()
    assert store.machine.tree.find(b"/e") is not None


def test_auth_adds_known_schemes_once_and_not_without_end(c: Client, store: Store) -> None:
    assert c.auth(b"digest", b"bob:h").err == 0
    assert c.auth(b"digest", b"bob:h").err == 0
    assert c.auth(b"world", b"anyone").err == e.AUTH_FAILED
    assert c.auth(b"nonsense", b"x").err == e.AUTH_FAILED
    session = store.machine.sessions.find(1)
    assert session is not None
    assert session.identities == [(b"ip", b"10.0.0.1"), (b"digest", b"bob:h")]
    for i in range(IDENTITIES_MAX - 2):
        assert c.auth(b"digest", b"%d:h" % i).err == 0
    assert c.auth(b"digest", b"one:more").err == e.AUTH_FAILED


# --- expiry ----------------------------------------------------------------------------------------------------------


def table(*timeouts: int) -> SessionTable:
    sessions = SessionTable()
    for i, timeout_ms in enumerate(timeouts):
        sessions.add(Session(i + 1, PASSWD, timeout_ms, 100 + i, []))
    return sessions


def test_no_session_expires_before_its_timeout_nor_later_than_a_tick_after() -> None:
    for start in range(0, 1000, 37):
        queue = ExpiryQueue(table(2000), 500, start)
        now = start
        while not queue.expired(now):
            now += 1
        assert start + 2000 < now <= start + 2000 + 500


def test_touch_puts_it_off() -> None:
    queue = ExpiryQueue(table(1000, 1000), 100, 0)
    for now in range(100, 3000, 100):
        queue.touch(2, now)
        assert queue.expired(now) == ([(1, 100)] if now in (1100, 2200) else [])


def test_named_again_a_timeout_later_while_it_lives_and_forgotten_when_gone() -> None:
    sessions = table(1000)
    queue = ExpiryQueue(sessions, 100, 0)
    assert queue.expired(1100) == [(1, 100)]
    assert queue.expired(1200) == []
    assert queue.expired(2300) == [(1, 100)]
    session = sessions.find(1)
    assert session is not None
    sessions.remove(session)
    assert queue.expired(10_000) == []
    queue.touch(1, 10_000)
    assert queue.expired(20_000) == []


def test_new_leader_gives_the_whole_timeout_again() -> None:
    sessions = table(1000)
    ExpiryQueue(sessions, 100, 0)
    assert ExpiryQueue(sessions, 100, 900).expired(1850) == []


def test_long_pause_names_all_that_are_due_in_the_order_of_their_deadlines() -> None:
    queue = ExpiryQueue(table(3000, 1000, 2000), 100, 0)
    assert [session_id for session_id, _ in queue.expired(1_000_000)] == [2, 3, 1]


def test_owner_and_timeout_are_those_of_the_moment() -> None:
    sessions = table(1000)
    queue = ExpiryQueue(sessions, 100, 0)
    session = sessions.find(1)
    assert session is not None
    sessions.attach(session, 555, 500, b"", [])
    queue.touch(1, 300)
    assert queue.expired(900) == [(1, 555)]
