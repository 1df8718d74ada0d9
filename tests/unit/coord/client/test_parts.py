"""The pure parts of the client: hosts, watch book, multi parts."""

from __future__ import annotations

from typing import Any

import pytest

from coord.client import Create, digest_acl
from coord.client.hosts import HostCycle, parse_hosts
from coord.client.ops import create_request
from coord.client.watches import (
    DIRECTORIES_MAX,
    KIND_CHILD,
    KIND_DATA,
    KIND_EXIST,
    KIND_PERSISTENT,
    KIND_RECEIVER,
    KIND_RECURSIVE,
    SET_WATCHES_BYTES_MAX,
    WatchBook,
)
from coord.errors import BadArguments, ConfigError
from coord.wire import records as r


@pytest.mark.parametrize(
    ("text", "addresses", "chroot"),
    [
        ("a:1", [("a", 1)], ""),
        ("a, b:2 ,c:3/", [("a", 2181), ("b", 2), ("c", 3)], ""),
        ("a:1/x/y/", [("a", 1)], "/x/y"),
        ("[::1]:7,[fe80::2]", [("::1", 7), ("fe80::2", 2181)], ""),
    ],
)
def test_hosts_are_read(text: str, addresses: list[tuple[str, int]], chroot: str) -> None:
    """Ports, spaces, IPv6, chroot."""
    assert parse_hosts(text) == (addresses, chroot)


@pytest.mark.parametrize("text", ["", "/x", ",", "a:0", "a:x", "a:70000", ":1", "a:1//x"])
def test_unusable_hosts_are_refused(text: str) -> None:
    """The message contains the text."""
    with pytest.raises(ConfigError):
        parse_hosts(text)


def test_clients_with_other_chances_begin_with_other_servers() -> None:
    """Each client shuffles the list, so the clients do not all begin with the first server."""

    class Fixed:
        def __init__(self, answers: list[int]) -> None:
            self.answers = answers

        def below(self, n: int) -> int:
            return self.answers.pop(0) % n

    addresses = [("a", 1), ("b", 2), ("c", 3)]
    orders = set()
    for chance in range(6):
        cycle = HostCycle(addresses, Fixed([chance, chance // 3]), timeout_ms=3000)
        orders.add(tuple(cycle.next_address()[0] for _ in range(3)))
    assert len(orders) == 6
    assert addresses[0] == ("a", 1), "the caller's list is not changed"


def note(*event: Any) -> None:
    """A callback."""


def other(*event: Any) -> None:
    """Another callback."""


@pytest.mark.parametrize(
    ("event_type", "fired"),
    [
        (r.EVENT_CREATED, {KIND_DATA, KIND_EXIST, KIND_PERSISTENT, KIND_RECURSIVE}),
        (r.EVENT_DATA_CHANGED, {KIND_DATA, KIND_EXIST, KIND_PERSISTENT, KIND_RECURSIVE}),
        (r.EVENT_CHILDREN_CHANGED, {KIND_CHILD, KIND_PERSISTENT}),
        (r.EVENT_DELETED, {KIND_DATA, KIND_EXIST, KIND_CHILD, KIND_PERSISTENT, KIND_RECURSIVE}),
        (r.EVENT_NONE, {KIND_PERSISTENT, KIND_RECURSIVE}),
    ],
)
def test_which_kind_hears_which_event(event_type: int, fired: set[int]) -> None:
    """ZooKeeper's rules for each kind; one-shot watches are gone after the event."""
    for kind in range(5):
        book = WatchBook()
        book.add(kind, b"/a", note)
        assert book.fire(event_type, b"/a") == ([note] if kind in fired else []), kind
        still = book.fire(r.EVENT_DELETED, b"/a")
        assert still == ([] if kind in fired and kind < KIND_PERSISTENT else [note])


def test_callback_registered_several_ways_hears_an_event_once() -> None:
    """Like the Java client's set of watchers."""
    book = WatchBook()
    for kind in range(5):
        book.add(kind, b"/a", note)
        book.add(kind, b"/a", note)
    book.add(KIND_DATA, b"/a", other)
    assert book.fire(r.EVENT_DELETED, b"/a") == [note, other]


def test_recursive_watch_hears_its_subtree_and_nothing_beside() -> None:
    """From the root and from the path itself, but not from a path with the same prefix."""
    book = WatchBook()
    book.add(KIND_RECURSIVE, b"/a", note)
    book.add(KIND_RECURSIVE, b"/", other)
    assert book.fire(r.EVENT_CREATED, b"/a/b/c") == [note, other]
    assert book.fire(r.EVENT_CREATED, b"/a") == [note, other]
    assert book.fire(r.EVENT_CREATED, b"/ab") == [other]


def test_who_watches_is_asked_again_when_watches_come_and_go() -> None:
    """The cache of matching directories is dropped when watches change, and is bounded."""
    book = WatchBook()
    book.add(KIND_RECURSIVE, b"/a", one := _callback())
    assert book.fire(r.EVENT_CREATED, b"/a/b/c") == [one]
    book.add(KIND_RECURSIVE, b"/a/b", two := _callback())
    assert book.fire(r.EVENT_CREATED, b"/a/b/c") == [two, one]
    book.add(KIND_RECURSIVE, b"/", three := _callback())
    assert book.fire(r.EVENT_CREATED, b"/a/b/d") == [two, one, three]
    assert book.fire(r.EVENT_CREATED, b"/z") == [three]
    book.discard(KIND_RECURSIVE, b"/a", one)
    assert book.fire(r.EVENT_CREATED, b"/a/b/c") == [two, three]
    for number in range(2 * DIRECTORIES_MAX):
        book.fire(r.EVENT_CREATED, b"/a/%d/x" % number)
    assert len(book._above) <= DIRECTORIES_MAX
    book.clear()
    assert book.fire(r.EVENT_CREATED, b"/a/b/c") == []


def _callback() -> Any:
    return lambda *_: None


class NeverWalked(dict[Any, Any]):
    """A dictionary that is too large to be walked in a turn of the reactor."""

    def __iter__(self) -> Any:
        raise AssertionError("all watches were walked")

    keys = values = items = __iter__


def taken(book: WatchBook, event_type: int, path: bytes) -> list[Any]:
    """Return the callbacks of an event that has arrived."""
    frame = r.encode_event_frame(event_type, r.STATE_CONNECTED, path, 7)
    return book.take(frame, [(4, len(frame))], 0, 0).callbacks


def test_an_event_for_a_receiver_walks_no_other_watches() -> None:
    """In whatever directory it is. A session may have a million watches.

    Edit that makes this fail: `_only_receivers` looks for the directory among the paths of all kinds.
    """
    book = WatchBook()
    for kind in (KIND_DATA, KIND_EXIST, KIND_CHILD, KIND_PERSISTENT):
        book._kinds[kind] = NeverWalked()
    book.add(KIND_RECEIVER, b"/a", receiver := _callback())
    for number in range(3):
        book.add(KIND_DATA, b"/a/%d/x" % number, note)
        assert taken(book, r.EVENT_CREATED, b"/a/%d/y" % number) == [receiver]


def test_a_receiver_shares_an_event_with_watches_on_the_znode() -> None:
    """Once these watches have fired, were removed, or have ended with the session, the receiver gets the event alone.

    Edit that makes this fail: `fire` or `discard` pops a path without `_remove`.
    """
    book = WatchBook()
    book.add(KIND_RECEIVER, b"/", receiver := _callback())
    for path in (b"/x", b"/a/x"):
        for _ in range(2):
            book.add(KIND_DATA, path, note)
            book.add(KIND_EXIST, path, note)
            assert set(taken(book, r.EVENT_DATA_CHANGED, path)) == {receiver, note}
            assert taken(book, r.EVENT_DATA_CHANGED, path) == [receiver]
        book.add(KIND_PERSISTENT, path, note)
        book.add(KIND_PERSISTENT, path, other)
        book.discard(KIND_PERSISTENT, path, other)
        assert set(taken(book, r.EVENT_DATA_CHANGED, path)) == {receiver, note}
        book.discard(KIND_PERSISTENT, path, None)
        book.discard(KIND_PERSISTENT, path, None)
        assert taken(book, r.EVENT_DATA_CHANGED, path) == [receiver]
    assert list(book._in_directory) == [b""], "the receiver's own path"
    book.clear()
    assert not book._in_directory


def test_restoring_is_cut_into_bounded_records() -> None:
    """All watches of all kinds are in some record, none twice, and no record exceeds its bound."""
    book = WatchBook()
    paths = [b"/%05d/" % i + b"x" * 300 for i in range(1500)]
    for i, path in enumerate(paths):
        book.add(i % 5, path, note)
    batches = book.batches(7)
    assert len(batches) > 2
    everything = []
    for sets in batches:
        lists = [sets.data, sets.exist, sets.child, sets.persistent, sets.recursive]
        everything += [path for names in lists for path in names]
        assert len(r.encode_set_watches(sets, second=True)) <= SET_WATCHES_BYTES_MAX + 28
        assert sets.relative_zxid == 7
    assert sorted(everything) == sorted(paths)
    assert WatchBook().batches(7) == []


def test_shared_watch_is_kept_for_the_others() -> None:
    """Removing one of two callbacks leaves the server's watch in force."""
    book = WatchBook()
    book.add(KIND_PERSISTENT, b"/a", note)
    book.add(KIND_PERSISTENT, b"/a", other)
    assert book.others(KIND_PERSISTENT, b"/a", note)
    book.discard(KIND_PERSISTENT, b"/a", note)
    assert not book.others(KIND_PERSISTENT, b"/a", other)
    assert book.persistent() == [(b"/a", other)]
    book.discard(KIND_PERSISTENT, b"/a", None)
    assert book.persistent() == []


def test_kinds_that_exclude_each_other_are_refused() -> None:
    """Before anything is sent."""
    for wrong in (
        Create("/a", container=True, sequence=True),
        Create("/a", container=True, ttl_ms=5),
        Create("/a", ephemeral=True, ttl_ms=5),
        Create("/a", ttl_ms=0),
        Create("/a", ttl_ms=-1),
    ):
        with pytest.raises(BadArguments):
            create_request(wrong, b"/a")


def test_digest_line_is_the_form_every_zookeeper_client_writes() -> None:
    """The published example of `super:test`."""
    assert digest_acl("super", "test").id == b"super:D/InIHSb7yEEbrWz8b9l71RjZJU="
