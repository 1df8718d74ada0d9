"""Snapshot and log after a crash between their writes."""

from __future__ import annotations

import pytest

from coord.errors import StorageError
from coord.raft.membership import Configuration
from coord.server.recovery.startup import Recovery, recover
from coord.storage.records import WriteBatch
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.storage.wal import open_wal
from coord.tree.machine import StateMachine
from tests.support.disks import MemoryDisk
from tests.support.store_nodes import SeededRng

CONFIG = Configuration([1, 2, 3]).encode()


def disk_with(entries: list[tuple[int, int]], *snapshots: tuple[int, int], term: int = 3) -> MemoryDisk:
    """Make a disk with a log of (term, index) entries and snapshots at (term, index)."""
    disk = MemoryDisk()
    wal, _ = open_wal(disk, "wal")
    batch = WriteBatch()
    batch.set_hard_state(term, 2)
    for entry_term, index in entries:
        batch.add_entry(entry_term, index, 1, b"")
    wal.write([batch])
    folder = Snapshots(disk, "snap")
    for snapshot_term, index in snapshots:
        folder.write(SnapshotMeta(index, snapshot_term, CONFIG), StateMachine().snapshot_chunks())
    return disk


def opened(disk: MemoryDisk) -> Recovery:
    """Recover node 1."""
    return recover(disk, 1, [1, 2, 3], SeededRng(1))


def log_of(found: Recovery) -> list[int]:
    """Return the indexes of the core's log after the snapshot."""
    return [e.index for e in found.core.log.entries if e.index > found.position.index]


def test_new_directory_is_the_empty_state() -> None:
    """Index 0, and the given voters."""
    found = opened(MemoryDisk())
    assert (found.position.index, found.core.log.last, found.core.configs.current.voters) == (0, 0, [1, 2, 3])


def test_log_behind_a_snapshot_is_kept() -> None:
    """The usual case."""
    found = opened(disk_with([(1, 1), (1, 2), (3, 3), (3, 4)], (1, 2)))
    assert (found.position.index, log_of(found), found.core.term, found.core.vote) == (2, [3, 4], 3, 2)


@pytest.mark.parametrize("entries", [[(1, 1), (1, 2)], [(1, i) for i in range(1, 15)]])
def test_log_that_does_not_know_the_snapshot_is_dropped_on_disk_too(entries: list[tuple[int, int]]) -> None:
    """A crash after the snapshot arrived, before the log recorded it: later entries must stay readable."""
    disk = disk_with(entries, (5, 10))
    found = opened(disk)
    assert (log_of(found), found.core.term, found.core.vote, found.core.log.last) == ([], 5, 0, 10)
    batch = WriteBatch()
    batch.add_entry(5, 11, 1, b"")
    found.wal.write([batch])
    again = opened(disk.power_cut())
    assert (log_of(again), again.core.term) == ([11], 5)


def test_older_snapshot_is_used_when_the_newest_is_damaged() -> None:
    """The log is kept from the oldest snapshot on for this case."""
    disk = disk_with([(1, i) for i in range(1, 9)], (1, 3), (1, 6))
    newest = disk.files[f"snap/{Snapshots(disk, 'snap').names()[0]}"]
    newest.content[-20] ^= 1
    found = opened(disk)
    assert (found.position.index, log_of(found)) == (3, [4, 5, 6, 7, 8])


def test_gap_between_snapshot_and_log_is_refused() -> None:
    """Missing entries are never invented."""
    disk = disk_with([])
    wal, _ = open_wal(disk, "wal")
    batch = WriteBatch()
    batch.set_base(50, 2)
    batch.add_entry(2, 51, 1, b"")
    wal.write([batch])
    with pytest.raises(StorageError, match="begins after entry 50"):
        opened(disk)
