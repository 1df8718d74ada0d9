"""The rules of the writes, one test each; the expected answers are those of Apache ZooKeeper 3.9.5."""

from __future__ import annotations

import pytest

from coord import errors as e
from coord.tree.command import Command
from coord.tree.datatree import EMPTY_PLACES_MAX
from coord.tree.node import I32_MAX, next_version, wrap_i32
from coord.wire import records as r
from coord.wire.values import Acl, MultiOp
from tests.unit.coord.tree.tree_store import START_MS, Client, Store, check_op, create_op, delete_op, path_of, set_op

ANYONE_READS = [Acl(r.PERM_READ, b"world", b"anyone")]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def c(store: Store) -> Client:
    return store.client(1)


# --- the new tree ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "cversion", "aversion", "children"),
    [(b"/", -1, 0, 1), (b"/zookeeper", -2, 0, 2), (b"/zookeeper/quota", 0, 0, 0), (b"/zookeeper/config", 0, -1, 0)],
)
def test_new_tree_has_the_roots_of_zookeeper(
    c: Client, path: bytes, cversion: int, aversion: int, children: int
) -> None:
    stat = c.stat(path)
    assert (stat.czxid, stat.version, stat.data_length) == (0, 0, 0)
    assert (stat.cversion, stat.aversion, stat.num_children) == (cversion, aversion, children)
    assert c.get(path) == (0, b"")


def test_config_znode_can_only_be_written_by_super(c: Client) -> None:
    assert c.set(b"/zookeeper/config", b"x").err == e.NO_AUTH
    c.auth(b"super", b"")
    assert c.set(b"/zookeeper/config", b"x").err == 0


def test_zookeeper_itself_is_writable(c: Client) -> None:
    assert c.set(b"/zookeeper", b"x").err == 0


# --- create ----------------------------------------------------------------------------------------------------------


def test_create_gives_the_path_and_a_fresh_stat(c: Client) -> None:
    outcome = c.create(b"/a", b"data")
    assert path_of(outcome) == b"/a"
    stat = c.stat(b"/a")
    assert stat.czxid == stat.mzxid == stat.pzxid == outcome.zxid
    assert stat.ctime == stat.mtime == START_MS
    assert (stat.version, stat.cversion, stat.aversion, stat.data_length, stat.num_children) == (0, 0, 0, 4, 0)
    assert c.get(b"/a") == (0, b"data")


def test_create_of_a_child_moves_cversion_and_pzxid_of_the_parent_only(c: Client) -> None:
    c.create(b"/a")
    before = c.stat(b"/a")
    zxid = c.create(b"/a/b").zxid
    after = c.stat(b"/a")
    assert (after.cversion, after.num_children, after.pzxid) == (1, 1, zxid)
    assert (after.mzxid, after.version, after.mtime) == (before.mzxid, before.version, before.mtime)


def test_create2_answers_with_the_stat(c: Client) -> None:
    outcome = c.create(b"/a", b"xyz", opcode=r.OP_CREATE2)
    path, stat = r.decode_create2_reply(outcome.body, 0, len(outcome.body))
    assert path == b"/a"
    assert stat == c.stat(b"/a")


def test_create_with_null_data_gives_null_back(c: Client) -> None:
    assert c.create(b"/a", None).err == 0
    assert c.get(b"/a") == (0, None)
    assert c.stat(b"/a").data_length == 0


@pytest.mark.parametrize(
    ("path", "err"),
    [
        (b"/", e.NODE_EXISTS),
        (b"/x", e.NODE_EXISTS),
        (b"foo", e.BAD_ARGUMENTS),
        (b"", e.BAD_ARGUMENTS),
        (b"a/b", e.NO_NODE),
        (b"/nope/b", e.NO_NODE),
        (b"/nope//b", e.NO_NODE),
        (b"/x/", e.BAD_ARGUMENTS),
        (b"//b", e.BAD_ARGUMENTS),
        (b"/x/.", e.BAD_ARGUMENTS),
        (b"/x/..", e.BAD_ARGUMENTS),
        (b"/x/...", 0),
        (b"/x/.a", 0),
        (b"/x/\0a", e.BAD_ARGUMENTS),
        (b"/x/\x01", e.BAD_ARGUMENTS),
        (b"/x/\x7f", e.BAD_ARGUMENTS),
        (b"/x/\xff\xfe", e.BAD_ARGUMENTS),
        ("/x/\u0085".encode(), e.BAD_ARGUMENTS),
        ("/x/\ue000".encode(), e.BAD_ARGUMENTS),
        ("/x/\ufff0".encode(), e.BAD_ARGUMENTS),
        ("/x/\U0001f600".encode(), e.BAD_ARGUMENTS),
        (b"/x/\xed\xa0\x80", e.BAD_ARGUMENTS),
        ("/x/caf\u00e9 \u4e2d".encode(), 0),
    ],
)
def test_create_judges_paths_as_zookeeper_does(c: Client, path: bytes, err: int) -> None:
    c.create(b"/x")
    assert c.create(path).err == err


@pytest.mark.parametrize("flags", [5, 6, 7, -1, 1 << 20])
def test_create_with_unknown_or_ttl_flags_is_bad_arguments(c: Client, flags: int) -> None:
    assert c.create(b"/a", flags=flags).err == e.BAD_ARGUMENTS


def test_sequential_appends_the_count_of_creates_with_ten_digits(c: Client) -> None:
    c.create(b"/q")
    assert path_of(c.create(b"/q/n-", flags=r.CREATE_SEQUENTIAL)) == b"/q/n-0000000000"
    c.create(b"/q/plain")
    c.delete(b"/q/plain")
    # An added child counts, a delete does not, whatever cversion is.
    assert c.stat(b"/q").cversion == 3
    assert path_of(c.create(b"/q/n-", flags=r.CREATE_SEQUENTIAL)) == b"/q/n-0000000002"


def test_sequential_at_a_trailing_slash_is_named_by_the_number_alone(c: Client) -> None:
    c.create(b"/q")
    assert path_of(c.create(b"/q/", flags=r.CREATE_SEQUENTIAL)) == b"/q/0000000000"
    assert path_of(c.create(b"/", flags=r.CREATE_SEQUENTIAL)) == b"/0000000001"


def test_sequence_goes_on_beyond_31_bits_and_cversion_wraps(c: Client, store: Store) -> None:
    c.create(b"/q")
    store.machine.tree.nodes[b"/q"].ensure_extra().creates = I32_MAX
    first = path_of(c.create(b"/q/n-", flags=r.CREATE_SEQUENTIAL))
    second = path_of(c.create(b"/q/n-", flags=r.CREATE_SEQUENTIAL))
    assert (first, second) == (b"/q/n-2147483647", b"/q/n-2147483648")
    assert c.stat(b"/q").cversion == wrap_i32(2 * (I32_MAX + 2) - 2)


def test_children_keep_their_order_however_many_go(c: Client, store: Store) -> None:
    """Deleted children leave gaps in their parent's list; closing the gaps keeps the order."""
    c.create(b"/q")
    names = [b"/q/%d" % i for i in range(200)]
    for name in names:
        c.create(name)
    tree = store.machine.tree
    left = list(names)
    for name in names[::3] + names[1:150:3] + names[190:]:
        if name not in left:
            continue
        c.delete(name)
        left.remove(name)
        if name.endswith(b"5"):
            c.create(name + b"x")
            left.append(name + b"x")
        assert tree.nodes[b"/q"].children() == left
        places = tree.nodes[b"/q"].extra.children
        assert [places[tree.nodes[each].slot] for each in left] == left
        assert len(places) <= 2 * len(left) + EMPTY_PLACES_MAX
    for name in left:
        c.delete(name)
    assert tree.nodes[b"/q"].extra.children is None


def test_ephemeral_belongs_to_its_session_and_takes_no_children(c: Client) -> None:
    c.create(b"/e", flags=r.CREATE_EPHEMERAL)
    assert c.stat(b"/e").ephemeral_owner == 1
    assert c.create(b"/e/x").err == e.NO_CHILDREN_FOR_EPHEMERALS
    assert c.create(b"/e/x", flags=r.CREATE_EPHEMERAL_SEQUENTIAL).err == e.NO_CHILDREN_FOR_EPHEMERALS


def test_container_and_ttl_show_no_owner_and_answer_with_a_stat(c: Client) -> None:
    container = c.create(b"/c", flags=r.CREATE_CONTAINER, opcode=r.OP_CREATE_CONTAINER)
    ttl = c.create(b"/t", flags=r.CREATE_TTL, opcode=r.OP_CREATE_TTL, ttl_ms=1000)
    for outcome in (container, ttl):
        path, stat = r.decode_create2_reply(outcome.body, 0, len(outcome.body))
        assert stat.ephemeral_owner == 0
        assert stat == c.stat(path)


def test_ttl_can_be_sequential(c: Client) -> None:
    outcome = c.create(b"/t", flags=r.CREATE_SEQUENTIAL_TTL, opcode=r.OP_CREATE_TTL, ttl_ms=1000)
    assert path_of(outcome) == b"/t0000000000"


@pytest.mark.parametrize(("flags", "ttl_ms"), [(5, 0), (5, -1), (5, 1 << 40), (0, 5), (0, -1), (4, 5)])
def test_ttl_is_refused_where_it_makes_no_sense(c: Client, flags: int, ttl_ms: int) -> None:
    """Flags 0 with ttl -1 is committed by ZooKeeper 3.9.5 and then stops every server."""
    assert c.create(b"/t", flags=flags, opcode=r.OP_CREATE_TTL, ttl_ms=ttl_ms).err == e.BAD_ARGUMENTS


def test_largest_ttl_is_taken(c: Client) -> None:
    assert c.create(b"/t", flags=5, opcode=r.OP_CREATE_TTL, ttl_ms=(1 << 40) - 1).err == 0


def test_create_without_permission_on_the_parent_is_no_auth(c: Client) -> None:
    c.create(b"/a", acl=ANYONE_READS)
    assert c.create(b"/a/b").err == e.NO_AUTH


def test_create_finds_an_invalid_acl_before_a_missing_parent(c: Client) -> None:
    assert c.create(b"/nope/a", acl=[]).err == e.INVALID_ACL
    assert c.create(b"/nope/a", acl=None).err == e.INVALID_ACL


# --- delete ----------------------------------------------------------------------------------------------------------


def test_delete_moves_the_parents_cversion_and_pzxid(c: Client) -> None:
    c.create(b"/a")
    c.create(b"/a/b")
    outcome = c.delete(b"/a/b", 0)
    assert outcome.err == 0
    assert outcome.body == b""
    stat = c.stat(b"/a")
    assert (stat.cversion, stat.num_children, stat.pzxid) == (2, 0, outcome.zxid)
    assert c.exists(b"/a/b") == e.NO_NODE


@pytest.mark.parametrize(
    ("path", "version", "err"),
    [
        (b"/", -1, e.BAD_ARGUMENTS),
        (b"/zookeeper", -1, e.BAD_ARGUMENTS),
        (b"/zookeeper/quota", -1, e.BAD_ARGUMENTS),
        (b"/zookeeper/config", -1, e.BAD_ARGUMENTS),
        (b"foo", -1, e.BAD_ARGUMENTS),
        (b"/a\0", -1, e.BAD_ARGUMENTS),
        (b"/nope", -1, e.NO_NODE),
        (b"/a/", -1, e.NO_NODE),
        (b"/a", 1, e.BAD_VERSION),
        (b"/a", -2, e.BAD_VERSION),
        (b"/a", 0, e.NOT_EMPTY),
    ],
)
def test_delete_is_refused(c: Client, path: bytes, version: int, err: int) -> None:
    c.create(b"/a")
    c.create(b"/a/b")
    assert c.delete(path, version).err == err


def test_delete_asks_the_parent_for_permission(c: Client) -> None:
    c.create(b"/a")
    c.create(b"/a/b", acl=ANYONE_READS)
    c.set_acl(b"/a", ANYONE_READS)
    assert c.delete(b"/a/b").err == e.NO_AUTH


def test_recreated_znode_begins_anew(c: Client) -> None:
    c.create(b"/a", b"1")
    c.set(b"/a", b"2")
    c.delete(b"/a")
    zxid = c.create(b"/a", b"3").zxid
    stat = c.stat(b"/a")
    assert (stat.czxid, stat.version) == (zxid, 0)


# --- setData, setACL -------------------------------------------------------------------------------------------------


def test_set_data_answers_with_the_new_stat(c: Client, store: Store) -> None:
    c.create(b"/a", b"1")
    store.now_ms += 5
    outcome = c.set(b"/a", b"22", 0)
    stat = r.decode_stat(outcome.body, 0, len(outcome.body))
    assert stat == c.stat(b"/a")
    assert (stat.version, stat.mzxid, stat.mtime, stat.data_length) == (1, outcome.zxid, START_MS + 5, 2)
    assert stat.ctime == START_MS


def test_at_most_one_of_two_compare_and_sets_wins(c: Client) -> None:
    c.create(b"/a")
    assert [c.set(b"/a", b"x", 0).err, c.set(b"/a", b"y", 0).err] == [0, e.BAD_VERSION]
    assert c.get(b"/a") == (0, b"x")


@pytest.mark.parametrize(("path", "err"), [(b"a", e.BAD_ARGUMENTS), (b"/a/", e.BAD_ARGUMENTS), (b"/n", e.NO_NODE)])
def test_set_data_of_nothing(c: Client, path: bytes, err: int) -> None:
    c.create(b"/a")
    assert c.set(path, b"").err == err


def test_version_wraps_and_leaves_out_minus_one() -> None:
    """A znode at version -1 would match every compare-and-set."""
    assert next_version(0) == 1
    assert next_version(I32_MAX) == -I32_MAX - 1
    assert next_version(-2) == 0


def test_set_acl_moves_aversion_alone(c: Client) -> None:
    c.create(b"/a")
    before = c.stat(b"/a")
    outcome = c.set_acl(b"/a", [*ANYONE_READS, Acl(r.PERM_ADMIN, b"world", b"anyone")], 0)
    stat = r.decode_stat(outcome.body, 0, len(outcome.body))
    assert (stat.aversion, stat.version, stat.mzxid) == (1, 0, before.mzxid)
    assert outcome.events == []
    assert c.set(b"/a", b"").err == e.NO_AUTH


@pytest.mark.parametrize(
    ("path", "acl", "version", "err"),
    [
        (b"a", [], -1, e.BAD_ARGUMENTS),
        (b"/nope", [], -1, e.INVALID_ACL),
        (b"/nope", ANYONE_READS, -1, e.NO_NODE),
        (b"/a", ANYONE_READS, 5, e.BAD_VERSION),
    ],
)
def test_set_acl_is_refused(c: Client, path: bytes, acl: list[Acl], version: int, err: int) -> None:
    c.create(b"/a")
    assert c.set_acl(path, acl, version).err == err


# --- multi -----------------------------------------------------------------------------------------------------------


def test_multi_is_one_zxid_and_answers_part_by_part(c: Client) -> None:
    c.create(b"/m")
    results = c.multi(
        create_op(b"/m/a", b"1"),
        create_op(b"/m/b", b"22", opcode=r.OP_CREATE2),
        create_op(b"/m/c", flags=r.CREATE_CONTAINER, opcode=r.OP_CREATE_CONTAINER),
        set_op(b"/m/a", b"333", 0),
        check_op(b"/m/a", 1),
        delete_op(b"/m/b"),
    )
    # Any create that answers with a Stat is reported as create2.
    assert [x.opcode for x in results] == [1, 15, 15, 5, 13, 2]
    assert [x.err for x in results] == [0] * 6
    stat = c.stat(b"/m/a")
    assert stat.czxid == stat.mzxid == c.stat(b"/m").pzxid
    assert results[3].stat == stat
    assert c.get(b"/m/a") == (0, b"333")
    assert c.exists(b"/m/b") == e.NO_NODE


def test_failed_multi_says_why_part_by_part_and_changes_nothing(c: Client, store: Store) -> None:
    c.create(b"/m")
    before = store.machine.digest()
    results = c.multi(create_op(b"/m/a"), check_op(b"/m", 9), set_op(b"/m", b"x"))
    assert [x.opcode for x in results] == [-1, -1, -1]
    assert [x.err for x in results] == [0, e.BAD_VERSION, e.RUNTIME_INCONSISTENCY]
    assert store.machine.digest() == before
    assert c.exists(b"/m/a") == e.NO_NODE
    assert store.events() == []


def test_multi_of_parts_that_are_apart_changes_all_or_nothing(c: Client, store: Store) -> None:
    for path in (b"/a", b"/b", b"/c"):
        c.create(path)
    before = store.machine.digest()
    refused = c.multi(set_op(b"/a", b"x", 0), check_op(b"/b", 7), set_op(b"/c", b"x", 0))
    assert [x.err for x in refused] == [0, e.BAD_VERSION, e.RUNTIME_INCONSISTENCY]
    assert store.machine.digest() == before
    done = c.multi(set_op(b"/a", b"x", 0), check_op(b"/b", 0), set_op(b"/c", b"x", 0))
    assert [x.err for x in done] == [0, 0, 0]
    assert [c.multi(check_op(path, 1))[0].err for path in (b"/a", b"/b", b"/c")] == [0, e.BAD_VERSION, 0]


def test_multi_that_creates_and_deletes_apart_changes_all_or_nothing(c: Client, store: Store) -> None:
    for path in (b"/a", b"/a/old", b"/b"):
        c.create(path)
    before = store.machine.digest()
    refused = c.multi(create_op(b"/a/new"), delete_op(b"/a/old"), create_op(b"/a/e", flags=1), check_op(b"/b", 7))
    assert [x.err for x in refused] == [0, 0, 0, e.BAD_VERSION]
    assert store.machine.digest() == before
    done = c.multi(create_op(b"/a/new", b"1"), delete_op(b"/a/old", 0), create_op(b"/a/e", flags=1), check_op(b"/b", 0))
    assert [x.err for x in done] == [0, 0, 0, 0]
    assert sorted(store.machine.tree.nodes[b"/a"].children()) == [b"/a/e", b"/a/new"]
    assert [c.exists(path) for path in (b"/a/old", b"/a/new", b"/a/e")] == [e.NO_NODE, e.OK, e.OK]


def test_multi_sees_its_own_earlier_parts(c: Client) -> None:
    results = c.multi(
        create_op(b"/a"),
        create_op(b"/a/s-", flags=r.CREATE_SEQUENTIAL),
        create_op(b"/a/s-", flags=r.CREATE_SEQUENTIAL),
        delete_op(b"/a/s-0000000000"),
        create_op(b"/a/s-0000000000"),
        set_op(b"/a", b"x", 0),
        check_op(b"/a", 1),
    )
    assert [x.err for x in results] == [0] * 7
    assert [x.path for x in results[1:3]] == [b"/a/s-0000000000", b"/a/s-0000000001"]


def test_multi_may_empty_a_znode_and_then_delete_it(c: Client) -> None:
    c.create(b"/m")
    c.create(b"/m/a")
    results = c.multi(create_op(b"/m/b"), delete_op(b"/m/a"), delete_op(b"/m/b"), delete_op(b"/m"))
    assert [x.err for x in results] == [0] * 4
    assert c.exists(b"/m") == e.NO_NODE


@pytest.mark.parametrize(
    ("ops", "failed", "err"),
    [
        ([delete_op(b"/m"), create_op(b"/m/x")], 1, e.NO_NODE),
        ([create_op(b"/m/e", flags=1), create_op(b"/m/e/x")], 1, e.NO_CHILDREN_FOR_EPHEMERALS),
        ([create_op(b"/m/x"), delete_op(b"/m")], 1, e.NOT_EMPTY),
        ([create_op(b"/m/x"), create_op(b"/m/x")], 1, e.NODE_EXISTS),
        ([set_op(b"/m", b""), set_op(b"/m", b"", 0)], 1, e.BAD_VERSION),
        ([set_op(b"/m", b""), check_op(b"/m", 0)], 1, e.BAD_VERSION),
        ([check_op(b"m")], 0, e.BAD_ARGUMENTS),
        ([delete_op(b"/")], 0, e.BAD_ARGUMENTS),
    ],
)
def test_multi_fails_on_what_its_earlier_parts_made(c: Client, ops: list[MultiOp], failed: int, err: int) -> None:
    c.create(b"/m")
    assert c.multi(*ops)[failed].err == err


def test_empty_multi_answers_empty(c: Client) -> None:
    assert c.multi() == []


def test_multi_with_a_read_in_it_is_unreadable(c: Client) -> None:
    body = r.encode_multi([MultiOp(r.OP_GET_DATA, b"/")])
    assert c.write(r.OP_MULTI, body).err == e.MARSHALLING_ERROR


@pytest.mark.parametrize("flags", [-1, 5, 6, 7])
@pytest.mark.parametrize("opcode", [r.OP_CREATE, r.OP_CREATE2, r.OP_CREATE_CONTAINER])
def test_multi_with_senseless_flags_in_it_is_unreadable(c: Client, opcode: int, flags: int) -> None:
    """In any position: there are no answers for single parts."""
    body = r.encode_multi([check_op(b"/nothing"), create_op(b"/m", flags=flags, opcode=opcode)])
    assert c.write(r.OP_MULTI, body).err == e.MARSHALLING_ERROR


def test_container_that_a_multi_makes_is_answered_with_its_stat(c: Client) -> None:
    """Also if the request was a plain create with a container's flags."""
    [made] = c.multi(create_op(b"/m", flags=r.CREATE_CONTAINER))
    assert made.opcode == r.OP_CREATE2
    assert made.stat == c.stat(b"/m")


# --- containers, TTL -------------------------------------------------------------------------------------------------


def test_container_is_reaped_after_its_last_child_only(c: Client, store: Store) -> None:
    c.create(b"/c", flags=r.CREATE_CONTAINER, opcode=r.OP_CREATE_CONTAINER)
    body = r.encode_path(b"/c")
    assert store.machine.reap_candidates(store.now_ms) == []
    assert store.internal(r.OP_DELETE_CONTAINER, body).err == e.BAD_VERSION
    c.create(b"/c/x")
    assert store.internal(r.OP_DELETE_CONTAINER, body).err == e.NOT_EMPTY
    c.delete(b"/c/x")
    assert store.machine.reap_candidates(store.now_ms) == [b"/c"]
    assert store.internal(r.OP_DELETE_CONTAINER, body).err == 0
    assert store.machine.reap_candidates(store.now_ms) == []
    assert store.internal(r.OP_DELETE_CONTAINER, body).err == e.NO_NODE


def test_create_with_the_container_flag_makes_a_container(c: Client, store: Store) -> None:
    """ZooKeeper drops the flag and makes a persistent znode."""
    c.create(b"/c", flags=r.CREATE_CONTAINER)
    c.create(b"/c/x")
    c.delete(b"/c/x")
    assert store.machine.reap_candidates(0) == [b"/c"]


def test_ttl_runs_from_the_last_write_and_is_judged_by_the_logs_time(c: Client, store: Store) -> None:
    c.create(b"/t", flags=r.CREATE_TTL, opcode=r.OP_CREATE_TTL, ttl_ms=1000)
    store.now_ms += 800
    c.set(b"/t", b"again")
    store.now_ms += 1000
    assert store.machine.reap_candidates(store.now_ms) == []
    assert store.internal(r.OP_DELETE_CONTAINER, r.encode_path(b"/t")).err == e.BAD_VERSION
    store.now_ms += 1
    assert store.machine.reap_candidates(store.now_ms) == [b"/t"]
    assert store.internal(r.OP_DELETE_CONTAINER, r.encode_path(b"/t")).err == 0


def test_delete_container_by_a_client_spares_ordinary_znodes_and_asks_for_permission(c: Client) -> None:
    """ZooKeeper deletes any empty znode for anybody."""
    c.create(b"/a")
    assert c.write(r.OP_DELETE_CONTAINER, r.encode_path(b"/a")).err == e.BAD_VERSION
    assert c.write(r.OP_DELETE_CONTAINER, r.encode_path(b"/zookeeper")).err == e.BAD_ARGUMENTS
    c.create(b"/a/c", flags=4)
    c.create(b"/a/c/x")
    c.delete(b"/a/c/x")
    c.set_acl(b"/a", ANYONE_READS)
    assert c.write(r.OP_DELETE_CONTAINER, r.encode_path(b"/a/c")).err == e.NO_AUTH


def test_session_zero_may_do_nothing_else(store: Store) -> None:
    assert store.internal(r.OP_DELETE, r.encode_path_version(b"/a", -1)).err == e.SESSION_EXPIRED
    assert store.apply(Command(0, 5, 0, r.OP_DELETE_CONTAINER, r.encode_path(b"/a"))).err == e.SESSION_EXPIRED


# --- zxids and refusals ----------------------------------------------------------------------------------------------


def test_every_command_takes_the_next_zxid_refused_or_not(c: Client, store: Store) -> None:
    first = c.created.zxid
    outcomes = [c.create(b"/a"), c.create(b"/a"), c.write(999, b""), c.write(r.OP_CREATE, b""), c.set(b"/a", b"")]
    assert [x.zxid for x in outcomes] == list(range(first + 1, first + 6))
    assert [x.err for x in outcomes] == [0, e.NODE_EXISTS, e.UNIMPLEMENTED, e.MARSHALLING_ERROR, 0]
    assert store.machine.last_zxid == first + 5


@pytest.mark.parametrize(
    ("opcode", "err"), [(13, e.UNIMPLEMENTED), (0, e.UNIMPLEMENTED), (-1, e.UNIMPLEMENTED), (16, e.RECONFIG_DISABLED)]
)
def test_operations_that_are_no_commands_are_refused(c: Client, opcode: int, err: int) -> None:
    assert c.write(opcode, r.encode_path_version(b"/", -1)).err == err


def test_time_never_goes_back(c: Client, store: Store) -> None:
    store.now_ms -= 1000
    c.create(b"/a")
    assert c.stat(b"/a").ctime == START_MS


# --- events ----------------------------------------------------------------------------------------------------------


def test_outcomes_have_no_events_while_the_watches_are_known_and_none(c: Client, store: Store) -> None:
    store.machine.serve_clients(None, store.watches)
    assert c.create(b"/a").events == []
    assert c.get(b"/a", watch=True) == (0, b"")
    c.multi(set_op(b"/a", b"x"))
    assert store.events() == [(1, r.EVENT_DATA_CHANGED, b"/a")]
    assert c.write(r.OP_MULTI, r.encode_multi([set_op(b"/a", b"y")])).events == []
    c.children(b"/", watch=True)
    c.delete(b"/a")
    assert store.events() == [(1, r.EVENT_CHILDREN_CHANGED, b"/")]
    assert store.machine.apply_membership(b"").events == []
    assert c.close().events == []


def test_events_of_the_writes_come_in_zookeepers_order(c: Client) -> None:
    def events(outcome: object) -> list[tuple[int, bytes]]:
        return [(kind, path) for kind, path, _ in outcome.events]  # type: ignore[attr-defined]

    assert events(c.create(b"/a")) == [(r.EVENT_CREATED, b"/a"), (r.EVENT_CHILDREN_CHANGED, b"/")]
    assert events(c.set(b"/a", b"")) == [(r.EVENT_DATA_CHANGED, b"/a")]
    c.create(b"/a/e", flags=1)
    c.create(b"/a/d", flags=1)
    assert events(c.close()) == [
        (r.EVENT_DELETED, b"/a/d"),
        (r.EVENT_CHILDREN_CHANGED, b"/a"),
        (r.EVENT_DELETED, b"/a/e"),
        (r.EVENT_CHILDREN_CHANGED, b"/a"),
    ]
