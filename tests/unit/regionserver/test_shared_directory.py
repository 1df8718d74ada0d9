"""The identity of shared directories: who assigns it, which servers are rejected, and the state after a crash in
between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed

from coord.errors import ConfigError, NodeExists, NoNode, RetryableError
from coord.wire.records import Stat
from regions.records import znodes
from regionserver.shared_directory import FILE, Admission, SharedDirectory

PATHS = znodes.Layout("/rk")
RECORD = PATHS.shared_directory("kv")


class Tree:
    """A store with create, get and sync, answered at once."""

    def __init__(self) -> None:
        self.znodes: dict[str, bytes] = {"/rk": b""}
        self.before_create: Callable[[], None] = lambda: None

    def sync(self, path: str) -> Deferred[None]:
        return succeed(None)

    def get(self, path: str) -> Deferred[Any]:
        return succeed((self.znodes[path], Stat())) if path in self.znodes else fail(NoNode(path))

    def create(self, path: str, data: bytes = b"") -> Deferred[Any]:
        self.before_create()
        if path in self.znodes:
            return fail(NodeExists(path))
        if path.rpartition("/")[0] not in self.znodes:
            return fail(NoNode(path))
        self.znodes[path] = data
        return succeed(path)


def admit(tree: Any, folder: Path, cluster_id: str = "c1", server: str = "a:1") -> str:
    """Return the directory id with which a server is admitted. Retry as the membership does."""
    shared = SharedDirectory(folder, "kv/1")
    admission = Admission(shared, PATHS, server, lambda: 1)
    for _ in range(5):
        outcome: list[Any] = []
        ensureDeferred(admission.check(tree, cluster_id)).addBoth(outcome.append)
        if outcome == [None]:
            assert shared.directory_id
            return shared.directory_id
        if not isinstance(outcome[0].value, RetryableError):
            raise outcome[0].value
    raise AssertionError("not admitted after five rounds")


@pytest.fixture
def tree() -> Tree:
    return Tree()


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir(exist_ok=True)
    return made


def test_the_first_server_gives_the_directory_its_identity(tree: Tree, tmp_path: Path) -> None:
    """It is written to the directory and to the store; the next server with the same directory is admitted."""
    here = folder(tmp_path, "shared")
    first = admit(tree, here)
    assert znodes.decode_directory(tree.znodes[RECORD]).path == str(here)
    assert admit(tree, here, server="b:2") == first
    assert [one.name for one in here.iterdir()] == [FILE], "no temporary file is left"


def test_another_directory_is_refused(tree: Tree, tmp_path: Path) -> None:
    """With its own identity, or without one: a wrong option, or a volume that is not mounted."""
    admit(tree, folder(tmp_path, "shared"))
    with pytest.raises(ConfigError, match=r"has no directory.json, .*recorded by a:1 as .*nothing was registered"):
        admit(tree, folder(tmp_path, "other"))
    assert not (tmp_path / "other" / FILE).exists()
    admit(Tree(), folder(tmp_path, "other"))
    with pytest.raises(ConfigError, match="start this server with the --shared-dir of the others"):
        admit(tree, folder(tmp_path, "other"))


def test_a_server_that_died_before_it_recorded_the_identity(tree: Tree, tmp_path: Path) -> None:
    """The file is durable first; the next server records its content."""
    here = folder(tmp_path, "shared")
    left = SharedDirectory(here, "kv/1").create("c1").directory_id
    assert admit(tree, here) == left


def test_a_directory_of_another_cluster_is_refused(tree: Tree, tmp_path: Path) -> None:
    """Also before this cluster has recorded any directory."""
    here = folder(tmp_path, "shared")
    SharedDirectory(here, "kv/1").create("c2")
    with pytest.raises(ConfigError, match="belongs to cluster c2, but this store holds cluster c1"):
        admit(tree, here)
    assert RECORD not in tree.znodes


def test_of_two_first_servers_with_two_directories_one_wins(tree: Tree, tmp_path: Path) -> None:
    """The znode decides, and the error names the winner."""
    mine, theirs = folder(tmp_path, "mine"), folder(tmp_path, "theirs")

    def overtaken() -> None:
        tree.before_create = lambda: None
        admit(tree, theirs, server="b:2")

    tree.before_create = overtaken
    with pytest.raises(ConfigError, match="recorded by b:2 as"):
        admit(tree, mine)


def test_of_two_first_servers_in_one_directory_both_are_admitted(tree: Tree, tmp_path: Path) -> None:
    """One of the servers writes the file, the other reads it."""
    here = folder(tmp_path, "shared")

    def overtaken() -> None:
        tree.before_create = lambda: None
        admit(tree, here, server="b:2")

    tree.before_create = overtaken
    first = admit(tree, here)
    assert first == admit(tree, here, server="c:3")
    one, other = SharedDirectory(here).create("c1"), SharedDirectory(here).create("c1")
    assert one.directory_id == other.directory_id == first


def test_a_server_before_the_first_master_completes_the_identity_later(tree: Tree, tmp_path: Path) -> None:
    """The cluster has no id yet; the file gets it at the next registration."""
    here = folder(tmp_path, "shared")
    first = admit(tree, here, cluster_id="")
    assert admit(tree, here, cluster_id="c1") == first
    found = SharedDirectory(here).read()
    assert found is not None
    assert (found.directory_id, found.cluster_id) == (first, "c1")


def test_an_identity_that_makes_no_sense_is_not_written_over(tree: Tree, tmp_path: Path) -> None:
    """It may be the only trace of the directory's owner."""
    here = folder(tmp_path, "shared")
    for content in (b"", b"{", b'{"format": 2, "directory_id": "x"}'):
        (here / FILE).write_bytes(content)
        with pytest.raises(ConfigError, match=FILE):
            admit(tree, here)
        assert (here / FILE).read_bytes() == content


def test_kinds_have_directories_of_their_own(tree: Tree, tmp_path: Path) -> None:
    """Another service of the same cluster may keep its regions elsewhere; another version of one service may not."""
    assert SharedDirectory(tmp_path, "kv/1").name == SharedDirectory(tmp_path, "kv/2").name == "kv"
    assert SharedDirectory(tmp_path, "counters/1").name == "counters"
    assert SharedDirectory(tmp_path).name == "regions"
