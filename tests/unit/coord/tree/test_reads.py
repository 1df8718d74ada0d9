"""Reads, beyond the access checks of test_tree_acl."""

from __future__ import annotations

import pytest

from coord import errors as e
from coord.wire import records as r
from coord.wire.values import MultiOp
from tests.unit.coord.tree.tree_store import Client, Store


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def c(store: Store) -> Client:
    client = store.client(1)
    for path in (b"/a", b"/a/b", b"/a/c", b"/a/b/d"):
        client.create(path, path)
    return client


def test_children_are_named_without_their_path(c: Client) -> None:
    assert c.children(b"/a") == [b"b", b"c"]
    assert c.children(b"/") == [b"zookeeper", b"a"]
    assert c.children(b"/a/c") == []


def test_children2_has_the_stat(c: Client) -> None:
    err, body = c.read(r.OP_GET_CHILDREN2, r.encode_path_watch(b"/a", False))
    assert err == 0
    assert r.decode_children2_reply(body, 0, len(body)) == ([b"b", b"c"], c.stat(b"/a"))


def test_large_listing_is_encoded_once_until_the_children_change(c: Client, store: Store) -> None:
    for i in range(20):
        c.create(b"/a/c/%d" % i)
    first = c.children(b"/a/c")
    assert c.children(b"/a/c") == first
    c.delete(b"/a/c/7")
    assert c.children(b"/a/c") == [name for name in first if name != b"7"]
    c.create(b"/a/c/7")
    assert c.children(b"/a/c") == [name for name in first if name != b"7"] + [b"7"]


@pytest.mark.parametrize("opcode", [r.OP_GET_DATA, r.OP_EXISTS, r.OP_GET_CHILDREN, r.OP_GET_CHILDREN2])
@pytest.mark.parametrize(
    ("path", "err"), [(b"foo", e.NO_NODE), (b"/a/", e.NO_NODE), (b"/nope", e.NO_NODE), (b"", 0), (b"/", 0)]
)
def test_path_that_names_nothing(c: Client, opcode: int, path: bytes, err: int) -> None:
    """The empty path reads as the root, as in ZooKeeper."""
    assert c.read(opcode, r.encode_path_watch(path, False))[0] == err


def test_exists_refuses_a_nul(c: Client) -> None:
    assert c.exists(b"/a\0") == e.BAD_ARGUMENTS


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff\xff\0", b"\0\0\0\x02/a", b"\x7f\xff\xff\xff/a\0", b"\0\0\0"])
@pytest.mark.parametrize("opcode", [3, 4, 8, 12, 6, 104, 106, 17, 18])
def test_unreadable_read_is_a_marshalling_error(c: Client, opcode: int, body: bytes) -> None:
    if opcode in (6, 104) and body == b"\0\0\0\x02/a":
        return  # these have nothing after the path
    assert c.read(opcode, body) == (e.MARSHALLING_ERROR, b"")


@pytest.mark.parametrize("opcode", [0, -1, 1, 13, 999])
def test_what_is_no_read_is_unimplemented(c: Client, opcode: int) -> None:
    assert c.read(opcode, b"") == (e.UNIMPLEMENTED, b"")


def test_ephemerals_of_the_session_sorted_by_prefix(c: Client, store: Store) -> None:
    for path in (b"/a/f", b"/a/e", b"/x"):
        c.create(path, flags=1)
    store.client(2).create(b"/a/z", flags=1)

    def ephemerals(body: bytes) -> list[bytes]:
        err, reply = c.read(r.OP_GET_EPHEMERALS, body)
        assert err == 0
        return r.decode_strings_reply(reply, 0, len(reply))

    assert ephemerals(r.encode_path(b"/")) == ephemerals(r.encode_path(b"")) == [b"/a/e", b"/a/f", b"/x"]
    assert ephemerals(b"\xff\xff\xff\xff") == [b"/a/e", b"/a/f", b"/x"]
    assert ephemerals(r.encode_path(b"/a")) == [b"/a/e", b"/a/f"]


def test_all_children_are_counted_to_the_bottom(c: Client) -> None:
    def count(path: bytes) -> tuple[int, int]:
        err, reply = c.read(r.OP_GET_ALL_CHILDREN_NUMBER, r.encode_path(path))
        return err, (r.decode_number_reply(reply, 0, 4) if reply else -1)

    assert count(b"/a") == (0, 3)
    assert count(b"/") == (0, 7)
    assert count(b"/a/b/d") == (0, 0)
    assert count(b"/nope") == (e.NO_NODE, -1)


def test_multi_read_has_its_errors_in_line(c: Client) -> None:
    ops = [
        MultiOp(r.OP_GET_DATA, b"/a"),
        MultiOp(r.OP_GET_CHILDREN, b"/a"),
        MultiOp(r.OP_GET_DATA, b"/nope"),
        MultiOp(r.OP_GET_DATA, b"/a/c"),
    ]
    err, body = c.read(r.OP_MULTI_READ, r.encode_multi(ops))
    results = r.decode_multi_reply(body, 0, len(body))
    assert err == 0
    assert [x.opcode for x in results] == [r.OP_GET_DATA, r.OP_GET_CHILDREN, r.OP_ERROR, r.OP_GET_DATA]
    assert (results[0].data, results[0].stat) == (b"/a", c.stat(b"/a"))
    assert results[1].children == [b"b", b"c"]
    assert results[2].err == e.NO_NODE
    assert results[3].data == b"/a/c"


def test_multi_read_with_a_write_in_it_is_unreadable(c: Client) -> None:
    body = r.encode_multi([MultiOp(r.OP_DELETE, b"/a", None, -1)])
    assert c.read(r.OP_MULTI_READ, body) == (e.MARSHALLING_ERROR, b"")


def test_read_in_the_middle_of_a_larger_block(c: Client, store: Store) -> None:
    record = r.encode_path_watch(b"/a", False)
    session = store.machine.sessions.find(1)
    assert session is not None
    block = b"before" + record + b"behind"
    err, body = store.machine.read(r.OP_GET_DATA, block, session, store.watches, 6, 6 + len(record))
    assert err == 0
    assert r.decode_data_reply(body, 0, len(body))[0] == b"/a"
