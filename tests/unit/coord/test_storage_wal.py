"""The log: what was written comes back, what was torn is cut, what was damaged is refused."""

from __future__ import annotations

import errno

import pytest

from coord.errors import CorruptRecord, StorageError
from coord.storage.wal import Batch, Recovered, SyncFailed, Wal, open_wal
from tests.disks import MemoryDisk

FOLDER = "wal"


def batch(*entries: tuple[int, int, bytes], hard_state: tuple[int, int] | None = None) -> Batch:
    """A batch of (term, index, data) entries."""
    made = Batch()
    if hard_state is not None:
        made.set_hard_state(*hard_state)
    for term, index, data in entries:
        made.add_entry(term, index, 0, data)
    return made


def shape(recovered: Recovered) -> list[tuple[int, int, bytes]]:
    """The recovered entries as tuples."""
    return [(e.term, e.index, e.data) for e in recovered.entries]


def reopen(disk: MemoryDisk, **options: int) -> tuple[Wal, Recovered]:
    """Open the log again."""
    return open_wal(disk, FOLDER, **options)


def filled(disk: MemoryDisk, count: int, **options: int) -> Wal:
    """A log with a hard state and `count` entries, one record each."""
    wal, _ = reopen(disk, **options)
    wal.write([batch(hard_state=(1, 2))])
    for index in range(1, count + 1):
        wal.write([batch((1, index, b"data-%d" % index))])
    return wal


def only_segment(disk: MemoryDisk) -> bytearray:
    """The bytes of the only segment."""
    [name] = disk.names(FOLDER)
    return disk.files[f"{FOLDER}/{name}"].content


def record_end(content: bytearray) -> int:
    """Offset behind the last byte that is not reserved zeros."""
    return len(bytes(content).rstrip(b"\0"))


def test_new_log_is_empty_and_small() -> None:
    """A fresh node starts quickly: no large file is written first."""
    disk = MemoryDisk()
    wal, recovered = reopen(disk)
    assert (recovered.term, recovered.vote, shape(recovered)) == (0, 0, [])
    assert wal.segment_count() == 1


def test_written_batches_come_back_after_a_power_cut() -> None:
    """write() returns only when hard state and entries survive."""
    disk = MemoryDisk()
    wal, _ = reopen(disk)
    wal.write([batch((1, 1, b"a"), (1, 2, b""), hard_state=(1, 3)), batch((1, 3, b"c" * 5000))])
    wal.write([batch((2, 4, b"d"), hard_state=(2, 0))])
    _, recovered = reopen(disk.power_cut())
    assert (recovered.term, recovered.vote) == (2, 0)
    assert shape(recovered) == [(1, 1, b"a"), (1, 2, b""), (1, 3, b"c" * 5000), (2, 4, b"d")]


def test_one_write_is_one_sync() -> None:
    """All that waits shares one sync."""
    disk = MemoryDisk()
    wal, _ = reopen(disk)
    before = disk.syncs
    wal.write([batch((1, i, b"x")) for i in range(1, 50)])
    assert disk.syncs == before + 1


def test_conflicting_suffix_is_replaced() -> None:
    """An entry replaces everything from its index on. Raft §5.3."""
    disk = MemoryDisk()
    wal = filled(disk, 5)
    wal.write([batch((2, 3, b"new"))])
    _, recovered = reopen(disk)
    assert shape(recovered) == [(1, 1, b"data-1"), (1, 2, b"data-2"), (2, 3, b"new")]


def test_appending_goes_on_after_reopening() -> None:
    """The sequence of records has no break over a restart."""
    disk = MemoryDisk()
    filled(disk, 3)
    for round_ in range(3):
        wal, _ = reopen(disk)
        wal.write([batch((1, 4 + round_, b"again"))])
    assert [e.index for e in reopen(disk)[1].entries] == [1, 2, 3, 4, 5, 6]


def test_segments_rotate_and_old_ones_are_pruned() -> None:
    """Only whole segments below the snapshot go; hard state and the rest survive it."""
    disk = MemoryDisk()
    wal = filled(disk, 40, segment_bytes=400)
    assert wal.segment_count() > 3
    assert wal.prune(20) > 0
    _, recovered = reopen(disk, segment_bytes=400)
    assert (recovered.term, recovered.vote) == (1, 2)
    assert 0 < recovered.base_index <= 20
    assert recovered.last_index() == 40
    assert recovered.entries[0].index == recovered.base_index + 1


def test_prune_never_removes_the_last_segment() -> None:
    """The current segment stays even when a snapshot covers all of it."""
    wal = filled(MemoryDisk(), 10, segment_bytes=200)
    wal.prune(1000)
    assert wal.segment_count() == 1
    wal.write([batch((1, 11, b"on"))])


def test_overwrite_below_a_pruned_segment_restarts_the_log_there() -> None:
    """A conflict may reach back into what was pruned meanwhile; replay must not refuse it."""
    disk = MemoryDisk()
    wal = filled(disk, 10, segment_bytes=300)
    wal.write([batch((2, 6, b"conflict"))])
    wal.prune(10)
    _, recovered = reopen(disk, segment_bytes=300)
    assert recovered.last_index() == 6 or recovered.entries[-1].index == 6


def test_base_drops_a_log_that_does_not_continue_the_snapshot() -> None:
    """After a snapshot from the leader the old suffix is gone unless it matches. Raft §7."""
    disk = MemoryDisk()
    wal = filled(disk, 5)
    installed = Batch()
    installed.set_base(100, 3)
    wal.write([installed])
    wal.write([batch((3, 101, b"next"))])
    _, recovered = reopen(disk)
    assert (recovered.base_index, recovered.base_term, shape(recovered)) == (100, 3, [(3, 101, b"next")])


def test_base_keeps_a_matching_suffix() -> None:
    """Entries behind a snapshot that matches the log stay."""
    recovered = Recovered()
    disk = MemoryDisk()
    filled(disk, 5)
    recovered = reopen(disk)[1]
    recovered.rebase(3, 1)
    assert [e.index for e in recovered.entries] == [4, 5]
    recovered.rebase(4, 9)
    assert recovered.entries == []


@pytest.mark.parametrize("reserved", [True, False])
def test_truncation_at_every_byte_of_the_last_record_is_repaired(reserved: bool) -> None:
    """A torn last record is cut, whatever is left of it; all earlier entries are kept, and the log works again."""
    disk = MemoryDisk()
    wal = filled(disk, 3)
    start = wal._position
    wal.write([batch((1, 4, b"the last one"), (1, 5, b"and another"))])
    end = wal._position
    for cut in range(start, end):
        torn = disk.copy()
        content = only_segment(torn)
        del content[cut:]
        if reserved:
            content.extend(bytes(5000))
        again, recovered = reopen(torn)
        assert [e.index for e in recovered.entries] == [1, 2, 3], f"cut at {cut}"
        again.write([batch((2, 4, b"after repair"))])
        assert shape(reopen(torn)[1])[-1] == (2, 4, b"after repair")


def test_flip_at_every_byte_of_the_last_record_never_yields_a_wrong_entry() -> None:
    """A damaged last record looks torn: cut. Nothing is ever read wrongly."""
    disk = MemoryDisk()
    wal = filled(disk, 3)
    start = wal._position
    wal.write([batch((1, 4, b"the last one"))])
    for offset in range(start, wal._position):
        for mask in (0x01, 0x80, 0xFF):
            flipped = disk.copy()
            only_segment(flipped)[offset] ^= mask
            recovered = reopen(flipped)[1]
            assert [e.index for e in recovered.entries] == [1, 2, 3], f"flip at {offset}"
            assert recovered.cut


def test_flip_at_every_byte_before_the_last_record_is_refused() -> None:
    """A damaged record in the middle was durable once: the error names file and offset."""
    disk = MemoryDisk()
    wal = filled(disk, 3)
    last = wal._position
    wal.write([batch((1, 4, b"the last one"))])
    for offset in range(last):
        flipped = disk.copy()
        only_segment(flipped)[offset] ^= 0x10
        with pytest.raises(CorruptRecord) as caught:
            reopen(flipped)
        assert caught.value.offset <= offset
        assert caught.value.path.endswith(".log")


def test_lost_record_between_segments_is_refused() -> None:
    """A segment that lost its end, or a missing segment, shows as a gap in the sequence."""
    disk = MemoryDisk()
    filled(disk, 20, segment_bytes=300)
    names = disk.names(FOLDER)
    gap = disk.copy()
    del gap.files[f"{FOLDER}/{names[1]}"]
    with pytest.raises(CorruptRecord):
        reopen(gap, segment_bytes=300)
    shortened = disk.copy()
    content = shortened.files[f"{FOLDER}/{names[0]}"].content
    del content[record_end(content) - 40 :]
    with pytest.raises(CorruptRecord):
        reopen(shortened, segment_bytes=300)


def test_power_cut_at_every_disk_call_keeps_what_was_acknowledged() -> None:
    """Whatever call the power fails in, every write that returned is there afterwards."""

    class PowerCut(Exception):  # noqa: N818
        pass

    for calls in range(1, 120):
        disk = MemoryDisk()
        left = calls

        def count(name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut

        disk.on_call = count
        acknowledged = 0
        try:
            wal, _ = reopen(disk, segment_bytes=150)
            for index in range(1, 12):
                wal.write([batch((1, index, b"x%d" % index))])
                acknowledged = index
        except PowerCut:
            pass
        recovered = reopen(disk.power_cut(), segment_bytes=150)[1]
        assert recovered.last_index() >= acknowledged
        recovered = reopen(disk.copy(), segment_bytes=150)[1]
        assert recovered.last_index() >= acknowledged


def test_full_disk_leaves_the_log_usable() -> None:
    """A write refused for lack of room may be tried again."""
    disk = MemoryDisk()
    wal = filled(disk, 2)
    disk.failures["write"] = errno.ENOSPC
    with pytest.raises(OSError, match="injected"):
        wal.write([batch((1, 3, b"x"))])
    disk.failures.clear()
    wal.write([batch((1, 3, b"x"))])
    assert reopen(disk.power_cut())[1].last_index() == 3


def test_full_disk_during_rotation_leaves_the_log_usable() -> None:
    """The next segment is begun again once there is room."""
    disk = MemoryDisk()
    wal = filled(disk, 30, segment_bytes=10_000)
    wal._segment_bytes = 1
    disk.failures["write"] = errno.ENOSPC
    with pytest.raises(OSError, match="injected"):
        wal.write([batch((1, 31, b"x"))])
    disk.failures.clear()
    wal.write([batch((1, 31, b"x"))])
    assert reopen(disk.power_cut())[1].last_index() == 31


def test_failed_sync_is_final() -> None:
    """After a failed sync nobody knows what is on the disk: its own error, so that the node stops."""
    disk = MemoryDisk()
    wal = filled(disk, 2)
    disk.failures["sync"] = errno.EIO
    with pytest.raises(SyncFailed):
        wal.write([batch((1, 3, b"x"))])


def test_newer_format_is_refused() -> None:
    """A log of a later version is not guessed at."""
    disk = MemoryDisk()
    wal, _ = reopen(disk)
    import coord.storage.wal as module

    original = module.VERSION
    try:
        module.VERSION = 2  # type: ignore[misc]
        wal._segment_bytes = 1
        wal.write([batch((1, 1, b"x"))])
    finally:
        module.VERSION = original  # type: ignore[misc]
    with pytest.raises(StorageError, match="format 2"):
        reopen(disk)
