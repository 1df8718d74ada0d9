"""kazoo as a client of a three-node store of ours: every node serves, recipes work, sessions survive.

The tests of the first half share one store, and each uses its own znode. The tests of the second half kill and freeze
nodes, each of its own store.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError, NotEmptyError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import KazooState, WatchedEvent
from kazoo.recipe.watchers import ChildrenWatch, DataWatch

from coord.wire import records as r
from tests.support.helpers import PATIENCE_S, eventually
from tests.support.rawclient import RawClient
from tests.support.stores import OurStore, our_store, store_is_built

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not store_is_built(), reason="this tree has no store service yet"),
]

NODES = range(3)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurStore]:
    """Yield a store that no test disturbs."""
    with our_store(tmp_path_factory.mktemp("shared")) as store:
        yield store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OurStore]:
    """Yield a store whose nodes a test may kill."""
    with our_store(tmp_path) as running:
        yield running


@contextlib.contextmanager
def kazoo(hosts: str, *, timeout_s: float = 10) -> Iterator[KazooClient]:
    """Yield a connected kazoo client. Close it afterwards."""
    client = KazooClient(hosts, timeout=timeout_s, connection_retry={"max_tries": -1, "max_delay": 0.5})
    client.start(PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextlib.contextmanager
def on_every_node(store: OurStore) -> Iterator[list[KazooClient]]:
    """Yield one client per node."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(kazoo(address)) for address in store.addresses]


def home(request: pytest.FixtureRequest) -> str:
    """Return a znode for this test only."""
    return "/" + request.node.name.replace("[", "-").replace("]", "")


def in_threads(work: list[Callable[[], Any]]) -> list[Any]:
    """Run all functions at once. Return their results, or raise the first error."""
    results: list[Any] = [None] * len(work)
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            results[i] = work[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


# --- a store in order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", NODES)
def test_every_node_serves_reads_and_writes(shared: OurStore, request: pytest.FixtureRequest, node: int) -> None:
    """create, get, set, children, delete, with versions, on leader and followers alike."""
    root = home(request)
    with kazoo(shared.addresses[node]) as zk:
        assert zk.create(root, b"1") == root
        data, stat = zk.get(root)
        assert (data, stat.version, stat.dataLength) == (b"1", 0, 1)
        assert zk.set(root, b"22", 0).version == 1
        with pytest.raises(BadVersionError):
            zk.set(root, b"3", 0)
        zk.ensure_path(f"{root}/a/b/ü")
        assert zk.get_children(f"{root}/a/b") == ["ü"]
        with pytest.raises(NotEmptyError):
            zk.delete(root)
        zk.delete(root, recursive=True)
        assert zk.exists(root) is None
        with pytest.raises(NoNodeError):
            zk.get(root)


def test_what_one_node_acknowledged_all_nodes_show_after_sync(shared: OurStore, request: pytest.FixtureRequest) -> None:
    """Writes at each node are read at each other node: values and Stats are the same."""
    root = home(request)
    with on_every_node(shared) as clients:
        clients[0].create(root)
        for i, writer in enumerate(clients):
            writer.sync(root)
            path = writer.create(f"{root}/n", b"%d" % i, sequence=True)
            for reader in clients:
                reader.sync(path)
                assert reader.get(path) == writer.get(path)
        assert clients[0].get_children(root) != []
        assert len({tuple(sorted(client.get_children(root))) for client in clients}) == 1


def test_sequence_numbers_are_unique_and_dense_across_nodes(shared: OurStore, request: pytest.FixtureRequest) -> None:
    """Three clients at three nodes create at once."""
    root = home(request)
    with on_every_node(shared) as clients:
        clients[0].create(root)
        made = in_threads([lambda c=c: [c.create(f"{root}/s-", sequence=True) for _ in range(40)] for c in clients])
        numbers = sorted(int(path[-10:]) for paths in made for path in paths)
        assert numbers == list(range(120))
        for paths in made:
            assert paths == sorted(paths), "one session's writes are in its order"


def test_lock_is_held_by_one_at_a_time(shared: OurStore, request: pytest.FixtureRequest) -> None:
    """Clients at all nodes want kazoo's lock; the test checks that only one is inside at a time."""
    root = home(request)
    inside: list[int] = []
    most: list[int] = []

    def work(client: KazooClient, who: int) -> None:
        for _ in range(8):
            with client.Lock(root, str(who)):
                inside.append(who)
                most.append(len(inside))
                inside.remove(who)

    with on_every_node(shared) as clients:
        in_threads([lambda c=c, i=i: work(c, i) for i, c in enumerate(clients)])
    assert max(most) == 1
    assert len(most) == 24


def test_counter_loses_no_step(shared: OurStore, request: pytest.FixtureRequest) -> None:
    """kazoo's counter is compare-and-set in a loop."""
    root = home(request)

    def count(client: KazooClient) -> None:
        counter = client.Counter(root)
        for _ in range(15):
            counter += 1

    with on_every_node(shared) as clients:
        in_threads([lambda c=c: count(c) for c in clients])
        clients[2].sync(root)
        assert clients[2].Counter(root).value == 45


def test_party_queue_barrier_and_election(shared: OurStore, request: pytest.FixtureRequest) -> None:
    """Four recipes across nodes."""
    root = home(request)
    with on_every_node(shared) as (one, two, three):
        parties = [client.Party(f"{root}/party", name) for client, name in ((one, "a"), (two, "b"))]
        for party in parties:
            party.join()
        three.sync(root)
        assert sorted(three.Party(f"{root}/party")) == ["a", "b"]

        queue = one.LockingQueue(f"{root}/queue")
        queue.put(b"later", priority=5)
        queue.put(b"first", priority=1)
        three.sync(root)
        taker = three.LockingQueue(f"{root}/queue")
        assert taker.get(PATIENCE_S) == b"first"
        taker.consume()

        barrier = two.Barrier(f"{root}/barrier")
        barrier.create()
        waiting = threading.Thread(target=three.Barrier(f"{root}/barrier").wait, args=(PATIENCE_S,), daemon=True)
        waiting.start()
        barrier.remove()
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()

        ran: list[str] = []
        in_threads(
            [
                lambda c=c, n=n: c.Election(f"{root}/election", n).run(lambda: ran.append(n))
                for c, n in ((one, "a"), (two, "b"), (three, "c"))
            ]
        )
        assert sorted(ran) == ["a", "b", "c"]


def test_transactions_are_all_or_nothing(shared: OurStore, request: pytest.FixtureRequest) -> None:
    """Each part has ZooKeeper's error."""
    root = home(request)
    with on_every_node(shared) as (_, zk, _three):
        good = zk.transaction()
        good.create(root, b"1")
        good.set_data(root, b"2")
        good.check(root, 1)
        good.create(f"{root}/s-", sequence=True)
        path, stat, checked, sequential = good.commit()
        assert (path, stat.version, checked, sequential) == (root, 1, True, f"{root}/s-0000000000")
        bad = zk.transaction()
        bad.set_data(root, b"3")
        bad.delete(f"{root}/missing")
        bad.set_data(root, b"4")
        assert [type(result) for result in bad.commit()] == [RolledBackError, NoNodeError, RuntimeInconsistency]
        assert zk.get(root)[0] == b"2"


def test_watches_fire_once_on_every_node(shared: OurStore, request: pytest.FixtureRequest) -> None:
    """Watches of data, children and existence fire, whichever node got the change."""
    root = home(request)
    with on_every_node(shared) as clients:
        for writer in clients:
            writer.sync(root)
            writer.create(root)
            heard: list[list[tuple[str, str]]] = [[], [], []]

            def note(heard: list[tuple[str, str]]) -> Callable[[WatchedEvent], None]:
                return lambda event: heard.append((event.type, event.path))

            for client, events in zip(clients, heard, strict=True):
                client.sync(root)
                client.get(root, note(events))
                client.get_children(root, note(events))
                assert client.exists(f"{root}/x", note(events)) is None
            writer.set(root, b"1")
            writer.create(f"{root}/x")
            writer.set(root, b"2")
            wanted = [("CHANGED", root), ("CREATED", f"{root}/x"), ("CHILD", root)]
            for events in heard:
                eventually(lambda events=events: len(events) >= 3, what="events")
                assert events[0] == wanted[0]
                assert sorted(events) == sorted(wanted)
            writer.delete(root, recursive=True)


def test_watch_recipes_follow_a_znode(shared: OurStore, request: pytest.FixtureRequest) -> None:
    """DataWatch and ChildrenWatch at one node see the last state of changes made at another."""
    root = home(request)
    with on_every_node(shared) as (writer, _, watcher):
        writer.create(root, b"0")
        watcher.sync(root)
        data: list[bytes | None] = []
        children: list[list[str]] = []
        DataWatch(watcher, root, lambda value, stat: data.append(value))
        ChildrenWatch(watcher, root, lambda names: children.append(sorted(names)))
        for i in range(1, 20):
            writer.set(root, b"%d" % i)
            writer.create(f"{root}/c{i:02}")
        eventually(lambda: data[-1] == b"19" and len(children[-1]) == 19, what="the last state")
        assert [int(value or b"-1") for value in data] == sorted(int(value or b"-1") for value in data)


def test_ephemerals_go_with_their_session(shared: OurStore, request: pytest.FixtureRequest) -> None:
    """The ephemerals go when the session is closed, everywhere; for a silent client after its timeout and not
    before."""
    root = home(request)
    with kazoo(shared.addresses[0]) as watcher:
        watcher.create(root)
        with kazoo(shared.addresses[1]) as owner:
            owner.create(f"{root}/e", ephemeral=True)
            watcher.sync(root)
            stat = watcher.exists(f"{root}/e")
            assert stat is not None
            assert stat.ephemeralOwner == owner.client_id[0]
        watcher.sync(root)
        assert watcher.exists(f"{root}/e") is None

        silent = RawClient(shared.addresses[2])
        connected = silent.hello(r.ConnectRequest(timeout_ms=6000))
        assert connected is not None
        assert connected.timeout_ms == 6000
        create = r.CreateRequest(r.OP_CREATE, f"{root}/silent".encode(), b"", r.OPEN_ACL, r.CREATE_EPHEMERAL)
        assert silent.ask(r.OP_CREATE, r.encode_create(create)) is not None
        watcher.sync(root)
        gone = threading.Event()
        assert watcher.exists(f"{root}/silent", lambda event: gone.set())
        assert not gone.wait(1), "not before its time"
        assert gone.wait(PATIENCE_S), "the session never expired"
        assert silent.is_closed(), "the expired session's connection"


def test_session_ended_elsewhere_is_lost_here(shared: OurStore) -> None:
    """kazoo reports LOST and opens a new session when another client has closed its session."""
    with kazoo(shared.addresses[0]) as victim:
        states: list[str] = []
        victim.add_listener(states.append)
        old = victim.client_id
        thief = KazooClient(shared.addresses[1], client_id=old, timeout=6)
        thief.start(PATIENCE_S)
        assert thief.client_id[0] == old[0]
        thief.stop()
        thief.close()
        eventually(lambda: KazooState.LOST in states, what="LOST")
        eventually(lambda: victim.connected and victim.client_id[0] != old[0], what="a new session")


# --- a store in trouble ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_sessions_outlive_the_death_of_their_node(store: OurStore, who: str) -> None:
    """The client moves to another node with the same session; its ephemerals and all acknowledged writes are there."""
    leader = store.wait_leader()
    victim = leader if who == "leader" else (leader + 1) % 3
    others = [address for node, address in enumerate(store.addresses) if node != victim]
    hosts = ",".join([store.addresses[victim], *others])
    client = KazooClient(hosts, timeout=10, randomize_hosts=False)
    client.start(PATIENCE_S)
    try:
        client.create("/e", ephemeral=True)
        for i in range(50):
            client.create(f"/k{i:02}", b"%d" % i)
        session = client.client_id[0]
        store.kill(victim)
        client.retry(client.create, "/after")
        assert client.client_id[0] == session
        assert client.retry(client.exists, "/e").ephemeralOwner == session
        assert [name for name in sorted(client.retry(client.get_children, "/")) if name.startswith("k")] == [
            f"k{i:02}" for i in range(50)
        ]
        store.start(victim)
        store.wait_ready()
        with kazoo(store.addresses[victim]) as back:
            back.sync("/")
            assert back.exists("/after")
            assert back.get("/k49")[0] == b"49"
            assert back.exists("/e").ephemeralOwner == session
    finally:
        client.stop()
        client.close()


def test_everything_acknowledged_survives_the_death_of_all_nodes(store: OurStore) -> None:
    """All nodes are killed at once and started again: data, Stats and sessions are the same."""
    with kazoo(store.hosts, timeout_s=10) as client:
        client.create("/a", b"x")
        client.set("/a", b"y")
        client.create("/e", ephemeral=True)
        before = client.get("/a")
        session = client.client_id[0]
        for node in NODES:
            store.kill(node)
        for node in NODES:
            store.start(node)
        store.wait_ready()
        eventually(lambda: client.connected, what="kazoo reconnected")
        assert client.retry(client.get, "/a") == before
        assert client.client_id[0] == session
        assert client.retry(client.exists, "/e").ephemeralOwner == session


def test_minority_serves_nobody(store: OurStore) -> None:
    """A node that cannot reach a majority closes its client connections instead of serving old data; later it serves
    again."""
    with kazoo(store.addresses[0], timeout_s=10) as client:
        client.create("/a")
        states: list[str] = []
        client.add_listener(states.append)
        for node in (1, 2):
            store.freeze(node)
        eventually(lambda: KazooState.SUSPENDED in states, what="connection dropped")
        for node in (1, 2):
            store.freeze(node, False)
        eventually(lambda: client.connected, what="served again")
        client.retry(client.set, "/a", b"1")
