"""`validate` notices each broken invariant: the test breaks one place of a sound machine, and the error names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pytest

from coord.tree.acl import AccessList
from coord.tree.node import Znode
from coord.tree.sessions import Session
from coord.wire import records as r
from coord.wire.values import Acl
from tests.unit.coord.tree.tree_store import Store

Break = Callable[[Store], object]

ACL: Final = [Acl(r.PERM_ALL, b"world", b"anyone"), Acl(r.PERM_READ, b"ip", b"10.0.0.1")]


def sound_store() -> Store:
    """Return a store with a znode of every kind, a quota, a list of its own, watches, and a listing in the cache."""
    store = Store()
    client = store.client(7)
    client.create(b"/a", b"data")
    client.create(b"/a/b", b"x", acl=ACL)
    client.create(b"/a/e", b"", flags=r.CREATE_EPHEMERAL)
    client.create(b"/c", b"", flags=r.CREATE_CONTAINER, opcode=r.OP_CREATE_CONTAINER)
    client.create(b"/t", b"", flags=r.CREATE_TTL, opcode=r.OP_CREATE_TTL, ttl_ms=1000)
    client.create(b"/zookeeper/quota/a")
    client.create(b"/zookeeper/quota/a/zookeeper_limits", b"count=9,bytes=-1")
    for i in range(20):
        client.create(b"/a/n%d" % i)
    client.children(b"/a")
    client.get(b"/a", watch=True)
    store.machine.tree.digest_sum()
    store.machine.validate()
    store.watches.validate()
    return store


def _node(store: Store, path: bytes = b"/a") -> Znode:
    return store.machine.tree.nodes[path]


def _session(store: Store) -> Session:
    return store.machine.sessions.sessions[7]


def _orphan(store: Store) -> None:
    """Put a znode without its parent first."""
    tree = store.machine.tree
    tree.nodes = {b"/gone/x": _node(store), **tree.nodes}


def _set(target: object, **values: object) -> None:
    for name, value in values.items():
        setattr(target, name, value)


#: broken place, text of the error
PLACES: Final[list[tuple[Break, str]]] = [
    (_orphan, "has no parent"),
    (lambda s: _set(_node(s, b"/"), slot=3), "the root has the slot 3"),
    (lambda s: _set(_node(s, b"/a/b"), slot=5), "is not in slot 5"),
    (
        lambda s: (_set(_node(s, b"/"), kind=1), _set(_node(s, b"/").ensure_extra(), owner_or_ttl=7)),
        "is below an ephemeral znode",
    ),
    (lambda s: _set(_node(s).ensure_extra(), num_children=2), "counts 2 of 22 children"),
    (lambda s: s.machine.tree.nodes.pop(b"/t"), "lists b'/t', which does not exist"),
    (lambda s: _node(s).ensure_extra().children.extend([None] * 60), "slots for its children"),
    (lambda s: _set(_node(s, b"/t").ensure_extra(), children=[]), "keeps an empty list"),
    (lambda s: _set(_node(s, b"/t"), mzxid=0), "before it was created"),
    (lambda s: _set(_node(s, b"/a/e").ensure_extra(), owner_or_ttl=0), "the wrong owner or kind"),
]
INDEXES: Final[list[tuple[Break, str]]] = [
    (lambda s: _set(s.machine.tree, data_bytes=1), "data_bytes is 1"),
    (lambda s: s.machine.tree.ephemerals.clear(), "ephemerals by session"),
    (lambda s: _set(s.machine.tree, ephemeral_count=5), "ephemeral_count is 5, there are 1"),
    (lambda s: s.machine.tree.containers.clear(), "the index of kind 2"),
    (lambda s: s.machine.tree.ttls.update({b"/a": None}), "the index of kind 3"),
    (lambda s: _set(s.machine.tree, _listings_bytes=1), "1 bytes of listings cached"),
    (lambda s: s.machine.tree._listings.update({b"/gone": b""}), "the listing of b'/gone'"),
    (lambda s: s.machine.tree.quotas._limited.clear(), "quotas on []"),
    (lambda s: _set(s.machine.tree.quotas, active=False), "quotas are active: False"),
    (lambda s: _set(_node(s, b"/a/b"), acl=AccessList(ACL)), "does not share its access list"),
    (lambda s: _set(_node(s, b"/a/b").acl, refs=2), "counts 2 znodes, 1 have it"),
    (lambda s: s.machine.tree.share(AccessList(ACL[1:])).__setattr__("refs", 0), "is kept without a znode"),
]
DIGESTS: Final[list[tuple[Break, str]]] = [
    (lambda s: _set(_node(s), data=b"atad"), "the digest of b'/a' is out of date"),
    (lambda s: _set(_node(s), is_digest_stale=True), "but not on the list"),
    (lambda s: _set(s.machine.tree, _digest_sum=1), "the digest is 0x1"),
]
MACHINE: Final[list[tuple[Break, str]]] = [
    (lambda s: _set(s.machine, last_zxid=20), "the last zxid is 20"),
    (lambda s: _set(s.machine, applied_time_ms=1), "later than the log"),
    (lambda s: _set(s.machine, level=99), "level 99, this build supports"),
    (lambda s: s.machine.sessions.remove(s.machine.sessions.sessions[7]), "ephemerals outlive their session 0x7"),
    (lambda s: _set(s.machine.sessions.sessions[7], session_id=8), "is in the table as 0x8"),
    (lambda s: _set(s.machine.sessions.sessions[7], passwd=b""), "the digest of session 0x7 is out of date"),
    (lambda s: (_set(s.machine.sessions.sessions[7], owner=0), s.machine.sessions.sessions[7].refresh()), "owner 0"),
    (
        lambda s: (_set(s.machine.sessions.sessions[7], timeout_ms=0), s.machine.sessions.sessions[7].refresh()),
        "of 0 ms",
    ),
    (lambda s: _set(s.machine.sessions, digest_sum=1), "the digest is 0x1, the sessions"),
    (lambda s: _set(s.machine.sessions, _last=Store().client(9).store.machine.sessions.find(9)), "has ended"),
]
WATCHES: Final[list[tuple[Break, str]]] = [
    (lambda s: s.watches._data._dict(b"/a")[b"/a"].clear(), "watched by no session"),
    (lambda s: s.watches._numbered.clear(), "has a watcher without a number"),
    (lambda s: s.watches._watchers[7].child.put(b"/a", None), "0 watches of kind 1 by path, 1 by session"),
]


def _validate(store: Store) -> None:
    store.watches.validate()
    store.machine.validate()


@pytest.mark.parametrize(("spoil", "sentence"), PLACES + INDEXES + DIGESTS + MACHINE + WATCHES)
def test_a_broken_invariant_is_named(spoil: Break, sentence: str) -> None:
    store = sound_store()
    spoil(store)
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        _validate(store)


def test_validate_changes_nothing() -> None:
    store = sound_store()
    client = store.client(8)
    client.set(b"/a", b"other")
    waiting = list(store.machine.tree._stale_paths)
    assert waiting
    store.machine.validate()
    assert store.machine.tree._stale_paths == waiting
