"""The state recovered from a stopped node's directory with a damaged log."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord.env_os import OsDisk
from coord.errors import StorageError
from coord.offline.backup import BackupReader, NewNode, make_directories
from coord.offline.directory import StoppedDirectory
from coord.offline.salvage import Salvaged, salvage, write_backup
from coord.offline.verify import check
from coord.raft.bounds import TERM_MAX
from coord.raft.membership import Configuration
from coord.server.recovery.meta import encode_meta
from coord.server.recovery.startup import TermExhausted, recover
from coord.storage.records import WriteBatch
from coord.storage.wal import open_wal
from tests.support.store_nodes import SeededRng
from tests.unit.coord.offline.test_offline import CLUSTER, history, make


def salvaged(path: Path, *, committed_only: bool = False) -> Salvaged:
    """Return the state that `salvage` recovers."""
    with StoppedDirectory(path) as directory:
        return salvage(directory, committed_only=committed_only)


def segments(path: Path) -> list[Path]:
    """Return the files of the log."""
    return sorted((path / "wal").iterdir())


def ruin(path: Path, term: int) -> None:
    """Make the damage of a forged message: the node stored the term, and an entry of it."""
    wal, found = open_wal(OsDisk(path), "wal", segment_bytes=2000)
    batch = WriteBatch()
    batch.set_hard_state(term, 0)
    batch.add_entry(term, found.last_index() + 1, 1, b"")
    wal.write([batch])
    wal.close()


def test_everything_is_taken_and_what_is_known_is_said(tmp_path: Path) -> None:
    """Snapshot and log are read; a member's log does not show which entries after the snapshot are committed."""
    path = make(tmp_path / "n1", history(30), (10, 20))
    found = salvaged(path)
    assert (found.index, found.snapshot_index, found.committed_index, found.missing) == (30, 20, 20, [])
    assert not found.is_committed()
    assert b"/n30" in found.machine.tree.nodes
    found = salvaged(path, committed_only=True)
    assert (found.index, found.committed_index) == (20, 20)
    assert found.is_committed()
    assert b"/n21" not in found.machine.tree.nodes


def test_what_a_lone_voter_has_is_committed(tmp_path: Path) -> None:
    """The only voter is a majority, so every entry on its disk is committed."""
    path = make(tmp_path / "n1", history(8))
    (path / "meta.json").write_bytes(encode_meta(1, CLUSTER, [1]))
    for committed_only in (False, True):
        found = salvaged(path, committed_only=committed_only)
        assert (found.index, found.committed_index, found.is_committed()) == (8, 8, True)


def test_the_log_is_taken_up_to_its_damage(tmp_path: Path) -> None:
    """The report names the damage."""
    path = make(tmp_path / "n1", history(30), (10,))
    last = segments(path)[-1]
    data = bytearray(last.read_bytes())
    data[200] ^= 1
    last.write_bytes(data)
    found = salvaged(path)
    assert 10 < found.index < 30
    [line] = found.missing
    assert last.name in line
    assert f"entries after {found.index}" in line


def test_damage_that_a_snapshot_covers_costs_nothing(tmp_path: Path) -> None:
    """The log after the snapshot is still read."""
    path = make(tmp_path / "n1", history(30), (25,))
    assert len(segments(path)) > 2
    first = segments(path)[0]
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    found = salvaged(path)
    assert found.index == 30
    assert b"/n30" in found.machine.tree.nodes


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path) -> None:
    """The older snapshot and the log lead to the same entry."""
    path = make(tmp_path / "n1", history(30), (10, 20))
    newest = sorted((path / "snap").iterdir())[-1]
    data = bytearray(newest.read_bytes())
    data[-20] ^= 1
    newest.write_bytes(data)
    found = salvaged(path)
    assert (found.index, found.snapshot_index) == (30, 10)
    assert newest.name in found.missing[0]


def test_without_its_log_a_directory_has_its_snapshot(tmp_path: Path) -> None:
    """Without log and snapshot there is no state, and the report states this."""
    path = make(tmp_path / "n1", history(30), (20,))
    for file in segments(path):
        file.unlink()
    assert salvaged(path).index == 20
    for file in (path / "snap").iterdir():
        file.unlink()
    with pytest.raises(StorageError, match="holds no state"):
        salvaged(path)


@pytest.mark.parametrize("term", [TERM_MAX, (1 << 63) - 2, (1 << 63) - 1, (1 << 64) - 1])
def test_a_store_in_an_impossible_term_comes_back(tmp_path: Path, term: int) -> None:
    """It could not be started, `verify` called it sound, and no tool recovered the state."""
    path = make(tmp_path / "n1", history(12), (5,))
    ruin(path, term)
    with pytest.raises(TermExhausted, match="rk coord backup DIR FILE"):
        recover(OsDisk(path), 1, [1, 2, 3], SeededRng(1), segment_bytes=2000)
    with StoppedDirectory(path) as directory:
        assert "terms end at" in check(directory).damage[0]
    found = salvaged(path)
    assert found.index == 13
    file = tmp_path / "backup"
    write_backup(found, file, 5)
    with BackupReader(file) as whole:
        assert whole.manifest.index == 13
        nodes = [NewNode(tmp_path / "r1", 1)]
        make_directories(whole, nodes, [1], bytes(16))
    again = recover(OsDisk(tmp_path / "r1"), 1, Configuration([1]), SeededRng(1))
    assert again.core.term == 1
    assert b"/n12" in again.machine.tree.nodes


def test_a_term_below_the_bound_is_none_of_this(tmp_path: Path) -> None:
    """The last term in which a node may be."""
    path = make(tmp_path / "n1", history(12), (5,))
    ruin(path, TERM_MAX - 1)
    assert recover(OsDisk(path), 1, [1, 2, 3], SeededRng(1), segment_bytes=2000).core.term == TERM_MAX - 1
