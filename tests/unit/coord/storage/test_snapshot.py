"""Snapshot files: whole or rejected, the newest whole one is used, a crash leaves no half of one."""

from __future__ import annotations

import errno

import pytest

from coord.errors import CorruptRecord, StorageError
from coord.storage.snapshot import SnapshotMeta, SnapshotReader, Snapshots
from tests.support.disks import MemoryDisk

CHUNKS = [b"first chunk", b"x" * 3000, b"last"]


def written(disk: MemoryDisk, *indexes: int) -> Snapshots:
    """Write snapshots at these indexes into a folder."""
    snapshots = Snapshots(disk, "snap")
    for index in indexes:
        snapshots.write(SnapshotMeta(index, 7, b"config", zxid=99, digest=5), CHUNKS)
    return snapshots


def read(snapshots: Snapshots, name: str) -> list[bytes]:
    """Return all chunks of a snapshot."""
    reader = snapshots.open_named(name)
    try:
        return list(reader.chunks())
    finally:
        reader.close()


def test_what_was_written_comes_back_after_a_power_cut() -> None:
    """write() returns when name and content are durable."""
    disk = MemoryDisk()
    written(disk, 10)
    snapshots = Snapshots(disk.power_cut(), "snap")
    [name] = snapshots.names()
    assert read(snapshots, name) == CHUNKS
    meta = snapshots.open_named(name).meta
    assert (meta.index, meta.term, meta.config, meta.zxid, meta.digest) == (10, 7, b"config", 99, 5)


def test_newest_first_and_only_the_newest_are_kept() -> None:
    """Retention never removes the last good one, and the log is kept from the oldest one on."""
    snapshots = written(MemoryDisk(), 5, 300, 20)
    assert [int(name[:16], 16) for name in snapshots.names()] == [300, 20, 5]
    snapshots.retain()
    assert [int(name[:16], 16) for name in snapshots.names()] == [300, 20]
    assert snapshots.log_floor() == 20


def test_flip_or_truncation_at_every_byte_is_noticed() -> None:
    """A damaged state is never returned as whole."""
    disk = MemoryDisk()
    snapshots = written(disk, 10)
    [name] = snapshots.names()
    content = disk.files[f"snap/{name}"].content
    for offset in range(0, len(content), 7):
        for damage in ("flip", "cut"):
            other = disk.copy()
            damaged = other.files[f"snap/{name}"].content
            if damage == "flip":
                damaged[offset] ^= 0x20
            else:
                del damaged[offset:]
            with pytest.raises(StorageError):
                read(Snapshots(other, "snap"), name)


def test_missing_and_surplus_frames_are_noticed() -> None:
    """Each checksum covers all frames before it; nothing may follow the end."""
    disk = MemoryDisk()
    snapshots = written(disk, 10)
    [name] = snapshots.names()
    content = disk.files[f"snap/{name}"].content
    start = bytes(content).index(CHUNKS[0]) - 8
    del content[start : start + 8 + len(CHUNKS[0])]
    with pytest.raises(CorruptRecord):
        read(snapshots, name)
    disk = MemoryDisk()
    snapshots = written(disk, 10)
    disk.files[f"snap/{name}"].content.extend(b"more")
    with pytest.raises(CorruptRecord):
        read(snapshots, name)


def test_power_cut_at_every_call_leaves_a_whole_snapshot_or_none() -> None:
    """The order is temporary file, sync, rename, sync of the folder."""

    class PowerCut(Exception):  # noqa: N818
        pass

    for calls in range(1, 12):
        disk = MemoryDisk()
        written(disk, 10)
        left = calls

        def count(name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut

        disk.on_call = count
        finished = False
        try:
            Snapshots(disk, "snap").write(SnapshotMeta(20, 7, b""), CHUNKS)
            finished = True
        except PowerCut:
            pass
        for after in (disk.power_cut(), disk.copy()):
            snapshots = Snapshots(after, "snap")
            assert not [n for n in after.names("snap") if n.endswith(".tmp")]
            assert all(read(snapshots, name) == CHUNKS for name in snapshots.names())
            assert not finished or len(snapshots.names()) == 2


def test_received_file_is_checked_before_it_counts() -> None:
    """A snapshot from a peer is a draft until it was read back."""
    source = written(MemoryDisk(), 10)
    [name] = source.names()
    reader = source.open_named(name)
    data = reader.read_raw(0, reader.size())
    for content, is_good in ((data, True), (data[:-1], False), (data[:50] + b"!" + data[51:], False)):
        snapshots = Snapshots(MemoryDisk(), "snap")
        draft = snapshots.receive(name, 2)
        for start in range(0, len(content), 100):
            draft.append(content[start : start + 100])
        if is_good:
            assert [*draft.reader().chunks()] == CHUNKS
            draft.finish(name)
            assert read(snapshots, name) == CHUNKS
        else:
            with pytest.raises(StorageError):
                list(draft.reader().chunks())
            draft.discard()
            assert snapshots.names() == []
            assert snapshots._disk.names("snap") == []


@pytest.mark.parametrize("name", ["../evil.snap", "x.snap", "", "0000000000000001-0000000000000001.snap/../a"])
def test_names_from_peers_are_not_paths(name: str) -> None:
    """Only names in this program's form are accepted."""
    with pytest.raises(StorageError):
        Snapshots(MemoryDisk(), "snap").receive(name, 2)


def test_full_disk_leaves_the_older_snapshot() -> None:
    """The failed draft is removed at the next start."""
    disk = MemoryDisk()
    snapshots = written(disk, 10)
    disk.failures["write"] = errno.ENOSPC
    with pytest.raises(OSError, match="injected"):
        snapshots.write(SnapshotMeta(20, 7, b""), CHUNKS)
    assert len(snapshots.names()) == 1


def test_other_files_are_refused() -> None:
    """A file that is not a snapshot, or one of a later format."""
    disk = MemoryDisk()
    Snapshots(disk, "snap")
    for content in (b"", b"PK", b"XXSN\0\1" + bytes(50), b"RKSN\0\2" + bytes(50)):
        file = disk.open(f"snap/{len(disk.files):016x}-{1:016x}.snap", create=True)
        file.write_at(0, content)
    for name in Snapshots(disk, "snap").names():
        with pytest.raises(StorageError):
            SnapshotReader(disk, f"snap/{name}")
