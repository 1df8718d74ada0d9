"""Our client against real servers: Apache ZooKeeper and our own store.

Masters and region servers may rely on everything that passes on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import gatherResults

from coord.client import (
    EVENT_GAP,
    Check,
    Create,
    Delete,
    GetChildren,
    GetData,
    SessionState,
    SetData,
    ZkClient,
    digest_acl,
)
from coord.errors import (
    AuthFailed,
    BadArguments,
    BadVersion,
    ConnectionLoss,
    InvalidAcl,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    NoWatcher,
    RuntimeInconsistency,
    SessionExpired,
)
from coord.wire import records as r
from tests.support.reactors import in_reactor, refusal, until
from tests.support.stores import Store, open_store, store_kinds

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=store_kinds())
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Yield a running store. Each test uses its own znode."""
    with open_store(request.param, tmp_path_factory.mktemp("store")) as running:
        yield running


def with_client(store: Store, body: Callable[..., Any], *, clients: int = 1, timeout_ms: int = 10_000) -> None:
    """Run `body(reactor, client, ...)` with connected clients whose chroot is a fresh znode. Close the clients
    afterwards."""

    async def main(reactor: Any) -> None:
        root = ZkClient(reactor, store.hosts, timeout_ms, name="root")
        await root.connect()
        chroot = await root.create("/t-", sequence=True)
        sessions = [ZkClient(reactor, store.hosts + chroot, timeout_ms, name=f"c{i}") for i in range(clients)]
        try:
            for session in sessions:
                await session.connect()
            await body(reactor, *sessions)
        finally:
            await gatherResults([session.close() for session in (*sessions, root)])

    in_reactor(main)


def test_znodes_are_created_read_changed_and_deleted(store: Store) -> None:
    """create, exists, get, set, children and delete return the Stats of ZooKeeper."""

    async def body(reactor: Any, zk: ZkClient) -> None:
        assert await zk.create("/a", b"one") == "/a"
        data, stat = await zk.get("/a")
        assert data == b"one"
        assert (stat.version, stat.data_length, stat.num_children, stat.ephemeral_owner) == (0, 3, 0, 0)
        assert stat.czxid == stat.mzxid == stat.pzxid
        changed = await zk.set("/a", b"two!", 0)
        assert (changed.version, changed.data_length, changed.czxid) == (1, 4, stat.czxid)
        assert changed.mzxid > stat.mzxid
        assert await zk.exists("/a") == changed
        assert await zk.exists("/b") is None
        path, created = await zk.create2("/a/ü", b"")
        assert path == "/a/ü"
        assert created.version == 0
        names, parent = await zk.children2("/a")
        assert names == ["ü"]
        assert (parent.cversion, parent.num_children, parent.pzxid) == (1, 1, created.czxid)
        assert await zk.children("/") == ["a"]
        await zk.delete("/a/ü", 0)
        await zk.delete("/a")
        assert await zk.children("/") == []

    with_client(store, body)


def test_each_rejection_has_its_own_class(store: Store) -> None:
    """Each rejection is a class of its own and names the path."""

    async def body(reactor: Any, zk: ZkClient) -> None:
        await zk.create("/a")
        error = await refusal(zk.get("/none"), NoNode)
        assert error.path == "/none"
        await refusal(zk.create("/a"), NodeExists)
        await refusal(zk.create("/none/b"), NoNode)
        await refusal(zk.set("/a", b"", 7), BadVersion)
        await refusal(zk.delete("/a", 7), BadVersion)
        await zk.create("/a/e", ephemeral=True)
        await refusal(zk.create("/a/e/child"), NoChildrenForEphemerals)
        await refusal(zk.delete("/a"), NotEmpty)
        await refusal(zk.create("/.."), BadArguments)
        await refusal(zk.create("relative"), BadArguments)
        await refusal(zk.get("relative"), BadArguments)
        await refusal(zk.create("/noacl", acl=[]), InvalidAcl)
        await refusal(zk.create("/long", bytes(0x100000)), BadArguments)
        await refusal(zk.create("/c", container=True, ephemeral=True), BadArguments)
        assert await zk.children("/a") == ["e"], "refusals leave the session as it was"

    with_client(store, body)


def test_all_kinds_of_znodes_are_created(store: Store) -> None:
    """Sequential, ephemeral, container, ttl."""

    async def body(reactor: Any, zk: ZkClient, other: ZkClient) -> None:
        assert await zk.create("/s-", sequence=True) == "/s-0000000000"
        assert await zk.create("/s-", sequence=True, ephemeral=True) == "/s-0000000001"
        stat = await zk.exists("/s-0000000001")
        assert stat is not None
        assert stat.ephemeral_owner == zk.session_id
        assert await zk.create("/c", container=True) == "/c"
        path, stat = await zk.create2("/t-", b"x", sequence=True, ttl_ms=3_600_000)
        assert path == "/t-0000000003"
        assert stat.ephemeral_owner == 0
        assert await zk.ephemerals("/") == ["/s-0000000001"]
        assert await zk.ephemerals("/zzz") == []
        assert await zk.all_children_number("/") == 4
        await zk.close()
        # The other session may be on another server, which may be behind.
        await other.sync()
        assert sorted(await other.children("/")) == ["c", "s-0000000000", "t-0000000003"]

    with_client(store, body, clients=2)


def test_null_data_reads_as_empty(store: Store) -> None:
    """Other clients can write null; our client returns it as empty bytes."""

    async def body(reactor: Any, zk: ZkClient) -> None:
        assert zk._connection is not None
        request = r.CreateRequest(r.OP_CREATE, zk._full("/n"), None, r.OPEN_ACL, 0)
        await zk._connection.ask(r.OP_CREATE, r.encode_create(request), None, "/n")
        data, stat = await zk.get("/n")
        assert (data, stat.data_length) == (b"", 0)

    with_client(store, body)


def test_multi_is_all_or_nothing(store: Store) -> None:
    """The results are per operation. A failure names the failed operation and the reason."""

    async def body(reactor: Any, zk: ZkClient) -> None:
        results = await zk.multi(
            [
                Create("/a", b"1"),
                Create("/a/b-", sequence=True, ephemeral=True),
                SetData("/a", b"2"),
                Check("/a", 1),
                Create("/gone"),
                Delete("/gone", 0),
                Create("/box", container=True),
            ]
        )
        assert results[:2] == ["/a", "/a/b-0000000000"]
        assert isinstance(results[2], r.Stat)
        assert results[2].version == 1
        assert results[3:] == [None, "/gone", None, "/box"]
        assert await zk.multi([]) == []
        failed = await refusal(zk.multi([SetData("/a", b"3"), Delete("/nope"), Check("/a", 9)]), MultiFailed)
        assert (failed.index, type(failed.error), failed.error.path) == (1, NoNode, "/nope")
        assert failed.errors[0] is None
        assert isinstance(failed.errors[2], RuntimeInconsistency)
        assert (await zk.get("/a"))[0] == b"2"
        reads = await zk.multi_read([GetData("/a"), GetChildren("/a"), GetData("/nope")])
        assert reads[0][0] == b"2"
        assert reads[1] == ["b-0000000000"]
        assert isinstance(reads[2], NoNode)

    with_client(store, body)


def test_access_lists_and_identities(store: Store) -> None:
    """A digest identity has exactly the rights that access lists give it."""

    async def body(reactor: Any, zk: ZkClient, other: ZkClient) -> None:
        await zk.add_auth("digest", b"bob:secret")
        identities = await zk.who_am_i()
        assert ("digest", "bob") in [(scheme, user.split(":")[0]) for scheme, user in identities]
        acl = [digest_acl("bob", "secret"), r.Acl(r.PERM_READ, b"world", b"anyone")]
        await zk.create("/a", b"x", acl=acl)
        got, stat = await zk.get_acl("/a")
        assert {line.scheme: line.perms for line in got} == {b"digest": r.PERM_ALL, b"world": r.PERM_READ}
        assert stat.aversion == 0
        await other.sync()
        assert (await other.get("/a"))[0] == b"x"
        await refusal(other.set("/a", b"y"), NoAuth)
        await refusal(other.create("/a/b"), NoAuth)
        changed = await zk.set_acl("/a", [digest_acl("bob", "secret")], 0)
        assert changed.aversion == 1
        await other.sync()
        await refusal(other.get("/a"), NoAuth)
        await refusal(zk.set_acl("/a", acl, 0), BadVersion)

    with_client(store, body, clients=2)


def test_a_rejected_credential_ends_the_session(store: Store) -> None:
    """The server rejects an unknown scheme. The client reports AUTH_FAILED and can begin a new session."""

    async def body(reactor: Any, zk: ZkClient) -> None:
        states: list[SessionState] = []
        zk.on_state(states.append)
        await refusal(zk.add_auth("no-such-scheme", b"x"), AuthFailed)
        assert states == [SessionState.AUTH_FAILED]
        await refusal(zk.get("/"), AuthFailed)
        await zk.connect()
        assert await zk.children("/") == []

    with_client(store, body)


def test_one_shot_watches_fire_once(store: Store) -> None:
    """Each watch fires once, with the event of its kind, before the answer to the writer's next read."""

    async def body(reactor: Any, zk: ZkClient, writer: ZkClient) -> None:
        events: list[tuple[int, str]] = []

        def note(event_type: int, path: str, zxid: int) -> None:
            assert zxid > 0
            events.append((event_type, path))

        assert await zk.exists("/a", note) is None
        await zk.create("/a", b"1")
        assert events == [(r.EVENT_CREATED, "/a")], "the event precedes the answer to one's own write"
        await zk.get("/a", note)
        await zk.exists("/a", note)
        await zk.children("/a", note)
        await zk.set("/a", b"2")
        await zk.set("/a", b"3")
        await zk.create("/a/b")
        assert events[1:] == [(r.EVENT_DATA_CHANGED, "/a"), (r.EVENT_CHILDREN_CHANGED, "/a")]
        await zk.delete("/a/b")
        await zk.get("/a", note)
        await zk.children2("/a", note)
        await writer.delete("/a")
        await zk.sync()
        await until(reactor, lambda: len(events) == 4, "deletion seen")
        assert events[3] == (r.EVENT_DELETED, "/a")

    with_client(store, body, clients=2)


def test_persistent_watches_fire_until_removed(store: Store) -> None:
    """Recursive watches cover the whole subtree, plain ones a path and its children, until they are removed."""

    async def body(reactor: Any, zk: ZkClient, writer: ZkClient) -> None:
        deep: list[tuple[int, str]] = []
        flat: list[tuple[int, str]] = []
        await zk.create("/a")
        await zk.create("/b")

        def note_deep(event_type: int, path: str, zxid: int) -> None:
            deep.append((event_type, path))

        def note_flat(event_type: int, path: str, zxid: int) -> None:
            flat.append((event_type, path))

        await zk.add_watch("/a", note_deep)
        await zk.add_watch("/b", note_flat, recursive=False)
        await zk.check_watches("/a", r.WATCHER_PERSISTENT_RECURSIVE)
        await refusal(zk.check_watches("/a", r.WATCHER_CHILDREN), NoWatcher)
        await writer.multi([Create("/a/x"), SetData("/a/x", b"1"), Create("/a/x/y"), Delete("/a/x/y"), Create("/b/z")])
        await writer.set("/b", b"2")
        await writer.set("/b", b"3")
        await until(reactor, lambda: len(flat) == 3 and len(deep) == 4, "events seen")
        assert deep == [
            (r.EVENT_CREATED, "/a/x"),
            (r.EVENT_DATA_CHANGED, "/a/x"),
            (r.EVENT_CREATED, "/a/x/y"),
            (r.EVENT_DELETED, "/a/x/y"),
        ]
        assert flat == [(r.EVENT_CHILDREN_CHANGED, "/b"), (r.EVENT_DATA_CHANGED, "/b"), (r.EVENT_DATA_CHANGED, "/b")]
        await zk.remove_watch("/a", note_deep)
        await zk.set("/a/x", b"unheard")
        assert len(deep) == 4
        await refusal(zk.remove_watch("/a"), NoWatcher)

    with_client(store, body, clients=2)


def test_reconnect_keeps_session_watches_and_identities(store: Store) -> None:
    """After a lost connection the session, its ephemerals and watches are the same; missed changes and gaps are
    reported."""

    async def body(reactor: Any, zk: ZkClient, writer: ZkClient) -> None:
        states: list[SessionState] = []
        heard: list[tuple[int, str]] = []
        one_shot: list[tuple[int, str]] = []
        zk.on_state(states.append)
        await zk.add_auth("digest", b"bob:secret")
        await zk.create("/a", acl=[digest_acl("bob", "secret"), r.Acl(r.PERM_ALL, b"world", b"anyone")])
        await zk.create("/e", ephemeral=True)
        await zk.add_watch("/a", lambda event_type, path, zxid: heard.append((event_type, path)))
        await zk.get("/a", lambda event_type, path, zxid: one_shot.append((event_type, path)))
        session_id = zk.session_id
        assert zk._connection is not None
        waiting = zk.get("/a")
        zk._connection.drop("cut by the test")
        await refusal(waiting, ConnectionLoss)
        await refusal(zk.get("/a"), ConnectionLoss)
        await writer.set("/a", b"while away")
        await zk.when_connected()
        await until(reactor, lambda: (EVENT_GAP, "/a") in heard and one_shot, "gap and missed change told")
        assert one_shot == [(r.EVENT_DATA_CHANGED, "/a")]
        assert heard[-1] == (EVENT_GAP, "/a")
        assert zk.session_id == session_id
        assert await zk.exists("/e") is not None
        assert "digest" in [scheme for scheme, _ in await zk.who_am_i()]
        await writer.create("/a/b")
        await until(reactor, lambda: (r.EVENT_CREATED, "/a/b") in heard, "persistent watch in force again")
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]

    with_client(store, body, clients=2)


def test_an_expired_session_is_reported_and_a_new_one_can_begin(store: Store) -> None:
    """The session ended on the server: the state is EXPIRED, requests fail with a typed error, connect() begins a new
    one."""

    async def body(reactor: Any, zk: ZkClient) -> None:
        states: list[SessionState] = []
        zk.on_state(states.append)
        await zk.create("/e", ephemeral=True)
        old = zk.session_id
        # A second client with the same id and password closes the session, as an expiry would. The first one does not
        # reconnect meanwhile: the two would take the session from each other.
        assert zk._connection is not None
        zk._connection.drop("cut by the test")
        assert zk._pause is not None
        zk._pause.cancel()
        thief = ZkClient(reactor, store.hosts, 10_000, name="thief")
        thief.session_id, thief._passwd = zk.session_id, zk._passwd
        thief._become(SessionState.SUSPENDED)
        thief._try_next()
        await thief.when_connected()
        await thief.close()
        zk._try_next()
        await until(reactor, lambda: zk.state is SessionState.EXPIRED, "expiry told")
        assert states[-1] is SessionState.EXPIRED
        await refusal(zk.get("/"), SessionExpired)
        await refusal(zk.when_connected(), SessionExpired)
        await zk.connect()
        assert zk.session_id != old
        assert await zk.exists("/e") is None

    with_client(store, body)


def test_the_last_contact_moves_with_replies_and_pings(store: Store) -> None:
    """last_contact_s changes with answers and, on an idle session, with pings."""

    async def body(reactor: Any, zk: ZkClient) -> None:
        first = zk.last_contact_s
        assert first > 0
        await zk.get("/")
        second = zk.last_contact_s
        assert second >= first
        await until(reactor, lambda: zk.last_contact_s > second, "a ping answered")

    with_client(store, body, timeout_ms=3000)


def test_pipelined_requests_get_their_replies_in_order(store: Store) -> None:
    """Every request gets its own answer, in order, with reads and writes mixed."""

    async def body(reactor: Any, zk: ZkClient) -> None:
        order: list[int] = []
        await zk.create("/n", b"")
        sets = [zk.set("/n", b"%d" % i) for i in range(2000)]
        read = zk.get("/n")
        for i, answer in enumerate(sets):
            answer.addCallback(lambda stat, i=i: order.append(i) or stat)
        stats = await gatherResults(sets)
        assert order == list(range(2000))
        assert [stat.version for stat in stats] == list(range(1, 2001))
        assert (await read)[0] == b"1999"

    with_client(store, body)


def test_unreachable_and_wrong_addresses_are_skipped(store: Store, tmp_path: Path) -> None:
    """Dead addresses in the list only cost time. A closed client gives up at once."""

    async def main(reactor: Any) -> None:
        zk = ZkClient(reactor, f"127.0.0.1:1,{store.hosts.split(',')[0]},127.0.0.1:2", 4000)
        await zk.connect()
        assert "zookeeper" in await zk.children("/")
        await zk.close()
        lost = ZkClient(reactor, "127.0.0.1:1", 4000)
        connecting = lost.connect()
        await lost.close()
        await refusal(connecting, ConnectionLoss)

    in_reactor(main)
