"""N7: every version of a znode is reported once, or counted in a gap."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from coord.client.versions import BadToken, VersionBook, VersionEvent, VersionKind


class Znode(NamedTuple):
    """A znode's stat."""

    czxid: int
    mzxid: int
    version: int
    cversion: int = 0
    pzxid: int = 0


def words(events: list[VersionEvent]) -> list[str]:
    """Return events as text: kind, path, version, number of missed changes."""
    return [
        f"{one.kind} {one.path} missed {'?' if one.missed is None else one.missed}"
        if one.kind is VersionKind.GAP
        else f"{one.kind} {one.path}" + (f" v{one.version}" if one.version >= 0 else "")
        for one in events
    ]


OLD, GONE = Znode(1, 5, 3), None
GAP = "GAP /a missed"


@pytest.mark.parametrize(
    ("before", "blind", "first", "now", "expected"),
    [
        pytest.param(OLD, False, VersionKind.CHANGED, Znode(1, 9, 4), ["CHANGED /a v4"], id="next version"),
        pytest.param(
            OLD, False, VersionKind.CHANGED, Znode(1, 9, 7), [f"{GAP} 3", "CHANGED /a v7"], id="skipped versions"
        ),
        pytest.param(OLD, True, None, OLD, [], id="reconnect, unchanged"),
        pytest.param(OLD, True, None, Znode(1, 9, 6), [f"{GAP} 2", "CHANGED /a v6"], id="reconnect, changed"),
        pytest.param(OLD, False, VersionKind.DELETED, GONE, ["DELETED /a"], id="deleted, seen at once"),
        pytest.param(OLD, False, VersionKind.CHANGED, GONE, [f"{GAP} ?", "DELETED /a"], id="changed, then deleted"),
        pytest.param(OLD, True, VersionKind.DELETED, GONE, [f"{GAP} ?", "DELETED /a"], id="deleted while disconnected"),
        pytest.param(
            OLD, False, VersionKind.DELETED, Znode(9, 9, 0), ["DELETED /a", f"{GAP} ?", "CREATED /a v0"], id="recreated"
        ),
        pytest.param(
            OLD, True, None, Znode(9, 9, 3), ["DELETED /a", f"{GAP} ?", "CREATED /a v3"], id="recreated, same version"
        ),
        pytest.param(GONE, False, VersionKind.CREATED, Znode(9, 9, 0), ["CREATED /a v0"], id="created"),
        pytest.param(GONE, True, None, Znode(9, 11, 2), [f"{GAP} 2", "CREATED /a v2"], id="created and changed"),
        pytest.param(GONE, True, None, GONE, [], id="still not there"),
    ],
)
def test_one_znode(
    before: Znode | None, blind: bool, first: VersionKind | None, now: Znode | None, expected: list[str]
) -> None:
    book = VersionBook()
    assert words(book.read("/a", before, b"", 6)) == (["FOUND /a v3"] if before else [])
    if blind:
        book.lost_watches()
    assert words(book.read("/a", now, b"new", 12, first)) == expected
    assert words(book.read("/a", now, b"new", 12)) == [], "each version once"


def test_a_token_goes_on_where_it_was_made() -> None:
    book = VersionBook()
    book.read("/a", OLD, b"", 6)
    later = VersionBook(book.token())
    assert later.zxid == 6
    assert later.paths() == ["/a"]
    assert words(later.read("/a", Znode(1, 9, 5), b"", 9)) == [f"{GAP} 1", "CHANGED /a v5"]
    gone = VersionBook(book.token())
    assert words(gone.read("/a", None, b"", 9, VersionKind.DELETED)) == [f"{GAP} ?", "DELETED /a"]
    with pytest.raises(BadToken, match="no token of a watch"):
        VersionBook(b"{")


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Znode(2, 20, 4), []),
        (Znode(2, 21, 1), ["CHANGED /a v1"]),
        (Znode(2, 21, 2), [f"{GAP} ?", "CHANGED /a v2"]),
        (Znode(21, 21, 0), ["CREATED /a v0"]),
        (Znode(21, 25, 2), [f"{GAP} 2", "CREATED /a v2"]),
        (None, [f"{GAP} ?"]),
    ],
)
def test_a_zxid_alone_is_enough_to_find_what_changed(now: Znode | None, expected: list[str]) -> None:
    assert words(VersionBook(since=20).read("/a", now, b"", 30)) == expected


# --- children ---------------------------------------------------------------------------------------------------------


class Directory:
    """A znode /d with children, read as a client reads it."""

    def __init__(self) -> None:
        self.zxid = 10
        self.cversion = self.pzxid = 0
        self.children: dict[str, Znode] = {}
        self.book = VersionBook()
        self.first: dict[str, VersionKind] = {}
        #: Zxid of the creation of each child that was there at the latest reading.
        self.seen_czxid: dict[str, int] = {}

    def create(self, name: str) -> None:
        self.zxid += 1
        self.children[name] = Znode(self.zxid, self.zxid, 0)
        self._listed_another()

    def delete(self, name: str) -> None:
        self.zxid += 1
        del self.children[name]
        self.first.setdefault(name, VersionKind.DELETED)
        self._listed_another()

    def change(self, name: str) -> None:
        self.zxid += 1
        self.children[name] = self.children[name]._replace(mzxid=self.zxid, version=self.children[name].version + 1)
        self.first.setdefault(name, VersionKind.CHANGED)

    def _listed_another(self) -> None:
        self.cversion += 1
        self.pzxid = self.zxid

    def child(self, name: str) -> list[VersionEvent]:
        first = self.first.pop(name, None)
        return self.book.read(f"/d/{name}", self.children.get(name), b"", self.zxid, first)

    def list(self) -> list[VersionEvent]:
        """Read the list, and the children that are new or, after a loss of the watches, all."""
        stat = Znode(1, 1, 0, self.cversion, self.pzxid)
        events = self.book.read("/d", stat, b"", self.zxid)
        fresh = {path.rpartition("/")[2] for path in self.book.listed("/d", stat, self.children)}
        for name in sorted(fresh):
            events += self.child(name)
        return events

    def settle(self, *, everything: bool = False) -> list[str]:
        if everything:
            self.book.lost_watches()
            self.first.clear()
        events = self.list()
        left = [path.rpartition("/")[2] for path in self.book.paths() if path != "/d"] if everything else self.first
        for name in sorted(left):
            events += self.child(name)
        return words([*events, *self.book.settled("/d")])


def test_children_that_come_go_and_change() -> None:
    d = Directory()
    d.create("x")
    assert d.settle() == ["FOUND /d v0", "FOUND /d/x v0"]
    d.create("y")
    assert d.settle() == ["CREATED /d/y v0"]
    d.delete("x")
    assert d.settle() == ["DELETED /d/x"]
    d.change("y")
    assert d.settle() == ["CHANGED /d/y v1"]
    assert d.settle(everything=True) == []


def test_a_child_that_came_and_went_unseen_is_a_gap_of_its_parent() -> None:
    d = Directory()
    d.create("x")
    d.settle()
    d.create("y")
    d.delete("y")
    assert d.settle(everything=True) == ["GAP /d missed 2"]
    d.delete("x")
    d.create("x")
    d.create("z")
    d.delete("z")
    assert d.settle(everything=True) == ["DELETED /d/x", "GAP /d/x missed ?", "CREATED /d/x v0", "GAP /d missed 2"]


def test_a_deletion_that_the_list_shows_first_is_no_gap() -> None:
    """The child's own watch fires later."""
    d = Directory()
    d.create("x")
    d.settle()
    d.delete("x")
    assert words([*d.list(), *d.book.settled("/d")]) == []
    assert words(d.child("x")) == ["DELETED /d/x"]
    assert d.settle() == []


def test_a_child_that_was_read_before_the_list_is_no_gap() -> None:
    d = Directory()
    d.create("x")
    d.settle()
    d.create("y")
    assert words(d.child("y")) == ["CREATED /d/y v0"]
    d.delete("x")
    assert words(d.child("x")) == ["DELETED /d/x"]
    assert d.settle() == []


def test_a_directory_that_was_deleted_takes_its_children_along() -> None:
    d = Directory()
    d.create("x")
    d.settle()
    assert words(d.book.read("/d", None, b"", 20, VersionKind.DELETED)) == [
        "GAP /d/x missed ?",
        "DELETED /d/x",
        "DELETED /d",
    ]
    assert d.book.paths() == ["/d"]


def test_a_list_that_changed_after_a_zxid_is_an_uncounted_gap() -> None:
    d = Directory()
    d.create("x")
    d.book = VersionBook(since=d.zxid)
    assert d.settle() == []
    d.book = VersionBook(since=d.zxid)
    d.create("y")
    assert d.settle() == ["CREATED /d/y v0", "GAP /d missed ?"]
    assert d.settle() == []


@pytest.mark.parametrize("seed", range(40))
def test_every_change_is_an_event_or_counted(seed: int) -> None:
    """Random changes and reads: changes = events + counted gaps, unless a gap of unknown size says otherwise."""
    rng = random.Random(seed)
    d = Directory()
    d.settle()
    changes = seen = 0
    is_unknown = False
    for _ in range(200):
        act, name = rng.choice(["create", "delete", "change", "read", "read all"]), rng.choice("xyz")
        if (act != "create") == (name not in d.children) and not act.startswith("read"):
            continue
        if act in ("create", "delete", "change"):
            # Changes of a child that comes and goes unseen are not counted: the list counts its children alone.
            known = d.seen_czxid.get(name) == d.children[name].czxid if name in d.children else True
            is_unknown |= act == "change" and not known
            getattr(d, act)(name)
            changes += 1
            continue
        for line in d.settle(everything=act == "read all"):
            is_unknown |= line.endswith("?")
            seen += int(line.rpartition(" ")[2]) if line.startswith("GAP") and not line.endswith("?") else 0
            seen += not line.startswith("GAP")
        if not is_unknown:
            assert seen == changes
        assert seen <= changes
        assert {path for path in d.book.paths() if path != "/d"} == {f"/d/{name}" for name in d.children}
        changes = seen = 0
        is_unknown = False
        d.seen_czxid = {name: one.czxid for name, one in d.children.items()}
    d.settle()
    assert len(VersionBook(d.book.token()).paths()) == len(d.children) + 1
