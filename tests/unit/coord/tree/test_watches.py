"""Watches: which sessions get an event, once, and which watches remain."""

from __future__ import annotations

import pytest

from coord import errors as e
from coord.tree.command import Command
from coord.tree.watches import PARENTS_MAX, REMOVED_PER_TURN, WHOLE_MAX, WatchTable
from coord.wire import records as r
from coord.wire.values import WatchSets
from tests.unit.coord.tree.tree_store import Client, Store, create_op, delete_op, set_op

CREATED, DELETED, DATA, CHILDREN = (
    r.EVENT_CREATED,
    r.EVENT_DELETED,
    r.EVENT_DATA_CHANGED,
    r.EVENT_CHILDREN_CHANGED,
)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def c(store: Store) -> Client:
    client = store.client(1)
    client.create(b"/w")
    return client


@pytest.fixture
def w(store: Store) -> Client:
    return store.client(2)


def add(client: Client, path: bytes, mode: int) -> tuple[int, bytes]:
    return client.read(r.OP_ADD_WATCH, r.encode_path_version(path, mode))


def ask(client: Client, opcode: int, path: bytes, kind: int) -> int:
    return client.read(opcode, r.encode_path_version(path, kind))[0]


def heard(store: Store) -> list[tuple[int, bytes]]:
    return [(kind, path) for session_id, kind, path in store.events() if session_id == 2]


def test_data_watch_fires_once(c: Client, w: Client, store: Store) -> None:
    w.get(b"/w", watch=True)
    c.set(b"/w", b"1")
    c.set(b"/w", b"2")
    assert heard(store) == [(DATA, b"/w")]


def test_child_watch_hears_of_children_and_not_of_data(c: Client, w: Client, store: Store) -> None:
    w.children(b"/w", watch=True)
    c.set(b"/w", b"1")
    assert heard(store) == []
    c.create(b"/w/a")
    assert heard(store) == [(CHILDREN, b"/w")]
    c.create(b"/w/b")
    assert heard(store) == []


def test_exists_leaves_a_watch_on_nothing(c: Client, w: Client, store: Store) -> None:
    assert w.exists(b"/n", watch=True) == e.NO_NODE
    c.create(b"/n")
    assert heard(store) == [(CREATED, b"/n")]


def test_refused_reads_leave_no_watch(c: Client, w: Client, store: Store) -> None:
    w.get(b"/n", watch=True)
    w.read(r.OP_GET_CHILDREN, r.encode_path_watch(b"/n", True))
    c.create(b"/n")
    c.create(b"/n/x")
    assert heard(store) == []


def test_delete_tells_data_and_child_watchers_once_then_the_parents(c: Client, w: Client, store: Store) -> None:
    c.create(b"/w/a")
    w.get(b"/w/a", watch=True)
    w.exists(b"/w/a", watch=True)
    w.children(b"/w/a", watch=True)
    w.children(b"/w", watch=True)
    c.delete(b"/w/a")
    assert heard(store) == [(DELETED, b"/w/a"), (CHILDREN, b"/w")]
    assert store.watches.watch_count() == 0


def test_persistent_watch_hears_all_of_its_path_and_stays(c: Client, w: Client, store: Store) -> None:
    assert add(w, b"/w", r.WATCH_PERSISTENT) == (0, b"\0\0\0\0")
    c.set(b"/w", b"")
    c.create(b"/w/a")
    c.set(b"/w/a", b"")
    c.delete(b"/w/a")
    c.delete(b"/w")
    c.create(b"/w")
    assert heard(store) == [(DATA, b"/w"), (CHILDREN, b"/w"), (CHILDREN, b"/w"), (DELETED, b"/w"), (CREATED, b"/w")]


def test_recursive_watch_hears_of_all_below_but_not_of_lists_of_children(c: Client, w: Client, store: Store) -> None:
    add(w, b"/w", r.WATCH_PERSISTENT_RECURSIVE)
    c.create(b"/w/a")
    c.create(b"/w/a/b")
    c.set(b"/w/a/b", b"")
    c.delete(b"/w/a/b")
    c.create(b"/wider")
    assert heard(store) == [(CREATED, b"/w/a"), (CREATED, b"/w/a/b"), (DATA, b"/w/a/b"), (DELETED, b"/w/a/b")]


def test_recursive_watch_on_the_root_hears_everything(c: Client, w: Client, store: Store) -> None:
    add(w, b"/", r.WATCH_PERSISTENT_RECURSIVE)
    c.set(b"/", b"")
    c.create(b"/w/a")
    assert heard(store) == [(DATA, b"/"), (CREATED, b"/w/a")]


def test_one_event_per_path_however_many_watches(c: Client, w: Client, store: Store) -> None:
    w.get(b"/w", watch=True)
    add(w, b"/w", r.WATCH_PERSISTENT)
    add(w, b"/w", r.WATCH_PERSISTENT_RECURSIVE)
    add(w, b"/", r.WATCH_PERSISTENT_RECURSIVE)
    c.set(b"/w", b"")
    assert heard(store) == [(DATA, b"/w")]


def test_watchers_hear_in_the_order_of_their_watches(c: Client, store: Store) -> None:
    for session_id in (9, 3, 7):
        store.client(session_id).get(b"/w", watch=True)
    c.set(b"/w", b"")
    assert [session_id for session_id, _, _ in store.events()] == [9, 3, 7]


def test_set_acl_fires_nothing(c: Client, w: Client, store: Store) -> None:
    add(w, b"/w", r.WATCH_PERSISTENT)
    c.set_acl(b"/w", r.OPEN_ACL)
    assert heard(store) == []


def test_multi_fires_in_the_order_of_its_parts(c: Client, w: Client, store: Store) -> None:
    add(w, b"/w", r.WATCH_PERSISTENT_RECURSIVE)
    c.multi(create_op(b"/w/b"), create_op(b"/w/a"), set_op(b"/w/b", b""), delete_op(b"/w/a"))
    assert heard(store) == [(CREATED, b"/w/b"), (CREATED, b"/w/a"), (DATA, b"/w/b"), (DELETED, b"/w/a")]


@pytest.mark.parametrize("mode", [2, -1])
def test_add_watch_with_an_unknown_mode(w: Client, mode: int) -> None:
    assert add(w, b"/w", mode) == (e.MARSHALLING_ERROR, b"")


def test_check_and_remove_look_for_the_type_named(c: Client, w: Client) -> None:
    w.children(b"/w", watch=True)
    add(w, b"/w", r.WATCH_PERSISTENT)
    types = [ask(w, r.OP_CHECK_WATCHES, b"/w", kind) for kind in (1, 2, 3, 4, 5)]
    assert types == [0, e.NO_WATCHER, 0, 0, e.NO_WATCHER]
    assert ask(w, r.OP_REMOVE_WATCHES, b"/w", r.WATCHER_PERSISTENT) == 0
    assert ask(w, r.OP_REMOVE_WATCHES, b"/w", r.WATCHER_PERSISTENT) == e.NO_WATCHER
    assert ask(w, r.OP_REMOVE_WATCHES, b"/w", r.WATCHER_ANY) == 0
    assert ask(w, r.OP_CHECK_WATCHES, b"/w", r.WATCHER_ANY) == e.NO_WATCHER
    assert ask(w, r.OP_CHECK_WATCHES, b"/w", 9) == e.MARSHALLING_ERROR
    assert ask(w, r.OP_REMOVE_WATCHES, b"/w", 0) == e.MARSHALLING_ERROR


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 5])
def test_removed_watch_does_not_fire_and_others_watches_stay(c: Client, w: Client, store: Store, kind: int) -> None:
    for client in (w, store.client(3)):
        client.get(b"/w", watch=True)
        client.children(b"/w", watch=True)
        add(client, b"/w", 0)
        add(client, b"/w", 1)
    assert ask(w, r.OP_REMOVE_WATCHES, b"/w", kind) == 0
    assert ask(w, r.OP_CHECK_WATCHES, b"/w", kind) == e.NO_WATCHER
    assert store.watches.watch_count() == (4 if kind == 3 else 7)
    c.set(b"/w", b"")
    fired = store.events()
    assert (3, DATA, b"/w") in fired
    assert ((2, DATA, b"/w") in fired) == (kind != 3)


def test_dropped_session_leaves_nothing_behind(c: Client, w: Client, store: Store) -> None:
    for path in (b"/w", b"/"):
        w.get(path, watch=True)
        w.children(path, watch=True)
        add(w, path, 0)
        add(w, path, 1)
    assert (store.watches.watch_count(), store.watches.watcher_count(), store.watches.path_count()) == (8, 1, 2)
    assert store.watches.by_path() == {b"/": [2], b"/w": [2]}
    assert store.watches.by_watcher() == {2: [b"/", b"/w"]}
    store.watches.drop(2)
    store.watches.drop(2)
    assert store.watches.by_path() == {}
    assert store.watches.watcher_count() == 0
    c.set(b"/w", b"")
    assert store.events() == []
    assert not store.watches.sweep(REMOVED_PER_TURN)
    assert store.watches.is_empty()


def test_many_watches_of_a_closed_connection_leave_in_parts() -> None:
    """They fire no more at once. The session's next connection may watch the same paths.

    Fails if `drop` removes everything, if `triggered` returns sessions of closed connections, and if a session's
    connections share a number.
    """
    table = WatchTable()
    paths = [b"/%d" % number for number in range(REMOVED_PER_TURN * 2)]
    for path in paths:
        table.watch_data(path, 1)
        table.watch_recursive(path, 1)
    table.watch_data(paths[0], 2)
    table.drop(1)
    assert (table.watch_count(), table.path_count(), table.by_path()) == (1, 1, {paths[0]: [2]})
    table.validate()
    assert table.triggered(CREATED, paths[0]) == [2]
    assert table.triggered(CREATED, paths[1]) == []
    for path in paths[:10]:
        table.watch_children(path, 1)
        table.validate()
    turns = 1
    while table.sweep(REMOVED_PER_TURN):
        turns += 1
        table.validate()
    assert turns == 4
    assert table.by_path() == {path: [1] for path in sorted(paths[:10])}
    assert table.path_count() == table.watch_count() == 10


def test_no_dict_of_watches_is_long() -> None:
    """A dict of a million paths would be copied in one step of 130 ms when it grows. What is found, fired and removed
    is the same with many dicts as with one.

    Edit that makes this fail: `put` does not call `_split`; `_dict` takes the shard of another path; `pop` or `remove`
    does not count.
    """
    table = WatchTable()
    paths = [b"/%d" % number for number in range(4 * WHOLE_MAX)]
    for path in paths:
        table.watch_data(path, 1)
        table.watch_recursive(path, 2)
    tables = (table._data, table._recursive, table._watchers[1].data, table._watchers[2].recursive)
    assert max(len(one) for several in tables for one in several._dicts()) < WHOLE_MAX / 8
    assert [len(one) for one in tables] == [len(paths)] * 4
    assert table.path_count() == len(paths)
    for path in paths[::2]:
        assert table.triggered(DATA, path) == [1, 2]
        assert table.remove(path, 2, r.WATCHER_PERSISTENT_RECURSIVE)
    table.validate()
    assert [len(one) for one in tables] == [len(paths) / 2] * 4
    assert table.by_path() == {path: [1, 2] for path in sorted(paths[1::2])}
    assert table.by_watcher() == dict.fromkeys((1, 2), sorted(paths[1::2]))
    table.drop(1)
    table.drop(2)
    assert not table.sweep(len(paths) + 2)
    assert table.is_empty()
    table.validate()


def test_many_connections_that_close_in_one_turn_leave_in_parts() -> None:
    """The bound is one for all of them together.

    Fails if `drop` removes the watches of a connection that has few.
    """
    table = WatchTable()
    for session_id in range(1, 11):
        for number in range(REMOVED_PER_TURN // 2):
            table.watch_data(b"/%d" % number, session_id)
    for session_id in range(1, 11):
        table.drop(session_id)
    table.validate()
    for _ in range(5):
        assert table.sweep(REMOVED_PER_TURN)
        table.validate()
    assert not table.sweep(REMOVED_PER_TURN)
    table.validate()


def test_new_watches_remove_those_of_closed_connections() -> None:
    """So the table does not grow, however fast a client sets watches and disconnects.

    Fails if `_watcher` does not sweep.
    """
    table = WatchTable()
    for turn in range(5):
        for number in range(100):
            table.watch_data(b"/%d/%d" % (turn, number), 1)
        table.drop(1)
        table.validate()
    assert not table.sweep(101)
    assert table.is_empty()


def test_trigger_without_watchers_is_empty() -> None:
    table = WatchTable()
    assert table.triggered(DELETED, b"/a") == []
    table.watch_data(b"/b", 1)
    assert table.triggered(DELETED, b"/a") == []


def test_table_is_empty_before_the_first_watch_and_after_the_last() -> None:
    """A watcher that has received its event waits for no other."""
    table = WatchTable()
    assert table.is_empty()
    for watch in (table.watch_data, table.watch_children, table.watch_persistent, table.watch_recursive):
        watch(b"/a", 1)
        assert not table.is_empty()
        table.drop(1)
        assert not table.sweep(2)
        assert table.is_empty()
    table.watch_data(b"/a", 1)
    table.watch_children(b"/a", 2)
    table.triggered(DELETED, b"/a")
    assert table.is_empty()


# --- setWatches ------------------------------------------------------------------------------------------------------


def set_watches(client: Client, sets: WatchSets, *, second: bool = False, part: int = 100) -> list[tuple[int, bytes]]:
    store = client.store
    session = store.machine.sessions.find(client.id)
    assert session is not None
    opcode = r.OP_SET_WATCHES2 if second else r.OP_SET_WATCHES
    body = r.encode_set_watches(sets, second=second)
    err, restore = store.machine.begin_watches(opcode, body, session, store.watches)
    assert (err, restore is not None) == (0, True)
    events = []
    while restore is not None and restore.left:
        events += store.machine.restore_watches(restore, session, store.watches, part)
    return events


@pytest.mark.parametrize("part", [1, 3, 100])
def test_set_watches_tells_what_was_missed_and_arms_the_rest(c: Client, w: Client, store: Store, part: int) -> None:
    c.create(b"/same")
    c.create(b"/changed")
    since = c.create(b"/parent").zxid
    c.set(b"/changed", b"")
    c.create(b"/parent/x")
    c.create(b"/appeared")
    sets = WatchSets(
        since,
        data=[b"/same", b"/changed", b"/gone"],
        exist=[b"/appeared", b"/still-not"],
        child=[b"/same", b"/parent", b"/gone"],
        persistent=[],
        recursive=[],
    )
    assert set_watches(w, sets, part=part) == [
        (DATA, b"/changed"),
        (DELETED, b"/gone"),
        (CREATED, b"/appeared"),
        (CHILDREN, b"/parent"),
    ]
    c.set(b"/same", b"")
    c.create(b"/same/x")
    c.create(b"/still-not")
    c.set(b"/changed", b"")
    assert heard(store) == [(DATA, b"/same"), (CHILDREN, b"/same"), (CREATED, b"/still-not")]


def test_set_watches2_arms_persistent_watches_and_fires_nothing_for_them(c: Client, w: Client, store: Store) -> None:
    c.set(b"/w", b"")
    sets = WatchSets(0, [], [], [], persistent=[b"/w"], recursive=[b"/r"])
    assert set_watches(w, sets, second=True) == []
    c.create(b"/w/a")
    c.create(b"/r")
    c.create(b"/r/x")
    assert heard(store) == [(CHILDREN, b"/w"), (CREATED, b"/r"), (CREATED, b"/r/x")]


def test_set_watches_keeps_quiet_about_what_the_session_may_not_read(c: Client, w: Client, store: Store) -> None:
    c.create(b"/secret", acl=[r.Acl(r.PERM_ALL, b"ip", b"9.9.9.9")])
    assert set_watches(w, WatchSets(0, [b"/secret"], [b"/secret"], [b"/secret"], [], [])) == []


def test_set_watches_reads_the_empty_path_as_the_root(w: Client) -> None:
    """Like every read: the root exists, so there is no event."""
    later = 1 << 60
    assert set_watches(w, WatchSets(later, [b""], [], [b""], [], [])) == []
    assert set_watches(w, WatchSets(later, [], [b""], [], [], [])) == [(r.EVENT_CREATED, b"")]


def test_unreadable_set_watches(w: Client, store: Store) -> None:
    session = store.machine.sessions.find(2)
    assert session is not None
    assert store.machine.begin_watches(101, b"\0", session, store.watches) == (e.MARSHALLING_ERROR, None)


def test_watches_of_one_session_are_bounded(c: Client, store: Store) -> None:
    """At the bound a read with a watch is rejected, one without is not; other sessions have their own bound."""
    store.watches = WatchTable(3)
    w = store.client(2)
    assert w.get(b"/w", watch=True)[0] == 0
    assert w.exists(b"/nothing", watch=True) == e.NO_NODE
    assert add(w, b"/r", r.WATCH_PERSISTENT_RECURSIVE)[0] == 0
    for refused in (w.get(b"/w", watch=True)[0], w.exists(b"/n", watch=True), add(w, b"/p", r.WATCH_PERSISTENT)[0]):
        assert refused == e.QUOTA_EXCEEDED
    assert w.get(b"/w")[0] == 0
    assert store.client(3).get(b"/w", watch=True)[0] == 0
    c.set(b"/w", b"1")
    assert w.get(b"/w", watch=True)[0] == 0
    session = store.machine.sessions.find(2)
    assert session is not None
    sets = r.encode_set_watches(WatchSets(0, [b"/w", b"/x"], [], [], [], []), second=False)
    assert store.machine.begin_watches(r.OP_SET_WATCHES, sets, session, store.watches) == (e.QUOTA_EXCEEDED, None)


def test_a_change_of_the_recursive_watches_takes_effect_at_once() -> None:
    """The table keeps the watches above a parent, and must not go on with those of before the change."""
    table = WatchTable()
    table.watch_recursive(b"/w", 1)
    path = b"/w/a/b"

    def told() -> list[int]:
        table.validate()
        return table.triggered(DATA, path)

    assert told() == [1]
    table.watch_recursive(b"/w/a", 2)
    assert told() == [2, 1]
    table.watch_recursive(b"/", 3)
    assert told() == [2, 1, 3]
    assert table.remove(b"/w/a", 2, r.WATCHER_PERSISTENT_RECURSIVE)
    assert told() == [1, 3]
    table.drop(1)
    assert table.triggered(DATA, path) == [3]
    assert not table.sweep(REMOVED_PER_TURN)
    assert told() == [3]


def test_the_parents_kept_for_recursive_watches_are_bounded() -> None:
    """Otherwise each directory that has ever changed would stay in memory."""
    table = WatchTable()
    table.watch_recursive(b"/", 1)
    for number in range(2 * PARENTS_MAX + 1):
        assert table.triggered(DATA, b"/%d/leaf" % number) == [1]
    assert len(table._above) <= PARENTS_MAX


def test_the_watchers_of_a_path_are_not_copied_for_each_parent() -> None:
    """A copy of a thousand watchers for each of PARENTS_MAX parents would take 150 MB."""
    table = WatchTable()
    for session in range(3):
        table.watch_recursive(b"/", session)
    told = [table.triggered(DATA, b"/%d/leaf" % number) for number in range(5)]
    assert told[0] == [0, 1, 2]
    assert [one for one in told if one is not told[0]] == []
    assert list(table._above.values()) == [[b"/"]] * 5


def test_the_sessions_of_a_persistent_watch_follow_every_change() -> None:
    """The table keeps the sessions of a path, and must not go on with those of before the change."""
    table = WatchTable()

    def told() -> list[int]:
        table.validate()
        return list(table.triggered(DATA, b"/w"))

    table.watch_persistent(b"/w", 1)
    assert told() == [1]
    table.watch_persistent(b"/w", 2)
    assert told() == [1, 2]
    table.drop(1)
    assert told() == [2]
    assert not table.sweep(REMOVED_PER_TURN)
    assert told() == [2]
    assert table.remove(b"/w", 2, r.WATCHER_PERSISTENT)
    assert told() == []
    table.watch_persistent(b"/w", 3)
    assert told() == [3]


def test_events_of_one_command_for_the_same_sessions_are_one_notification(store: Store, c: Client, w: Client) -> None:
    for path in (b"/w", b"/x"):
        c.create(path)
    store.watches.watch_recursive(b"/w", c.id)
    store.watches.watch_recursive(b"/", w.id)
    body = r.encode_multi([create_op(b"/w/a"), create_op(b"/w/b"), create_op(b"/x/c"), set_op(b"/w", b"")])
    outcome = store.machine.apply(Command(c.id, c.owner, 1, r.OP_MULTI, body), store.now_ms)
    fired = store.machine.notify(outcome, store.watches)
    assert [(sorted(one.sessions), one.types, one.paths) for one in fired] == [
        (sorted([c.id, w.id]), [CREATED, CREATED], [b"/w/a", b"/w/b"]),
        ([w.id], [CREATED], [b"/x/c"]),
        (sorted([c.id, w.id]), [DATA], [b"/w"]),
    ]
