"""The log: written records come back, torn ones are cut off, damaged ones are rejected."""

from __future__ import annotations

import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord.errors import CorruptRecord, StorageError
from coord.storage import segments
from coord.storage.extent import NAME
from coord.storage.reading import Recovered
from coord.storage.records import SEAL_MAGIC, BaseItem, Item, LogItem, WriteBatch, encode_seal
from coord.storage.segments import SyncFailed
from coord.storage.wal import Wal, open_wal
from tests.support.disks import MemoryDisk
from tests.support.interpreted import needs_interpreted

FOLDER = "wal"


def batch(*entries: tuple[int, int, bytes], hard_state: tuple[int, int] | None = None) -> WriteBatch:
    """Return a batch of (term, index, data) entries."""
    made = WriteBatch()
    if hard_state is not None:
        made.set_hard_state(*hard_state)
    for term, index, data in entries:
        made.add_entry(term, index, 0, data)
    return made


def shape(recovered: Recovered) -> list[tuple[int, int, bytes]]:
    """Return the recovered entries as tuples."""
    return [(e.term, e.index, e.data) for e in recovered.entries]


def reopen(disk: MemoryDisk, **options: int) -> tuple[Wal, Recovered]:
    """Open the log again."""
    return open_wal(disk, FOLDER, **options)


def filled(disk: MemoryDisk, count: int, **options: int) -> Wal:
    """Return a log with a hard state and `count` entries, one record each."""
    wal, _ = reopen(disk, **options)
    wal.write([batch(hard_state=(1, 2))])
    for index in range(1, count + 1):
        wal.write([batch((1, index, b"data-%d" % index))])
    return wal


def only_segment(disk: MemoryDisk) -> bytearray:
    """Return the bytes of the only segment."""
    [name] = disk.names(FOLDER)
    return disk.files[f"{FOLDER}/{name}"].content


def record_end(content: bytearray) -> int:
    """Return the offset after the last byte that is not a reserved zero."""
    return len(bytes(content).rstrip(b"\0"))


def test_new_log_is_empty_and_small() -> None:
    """A new node starts quickly: no large file is written first."""
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
    """All waiting batches share one sync."""
    disk = MemoryDisk()
    wal, _ = reopen(disk)
    before = disk.syncs
    wal.write([batch((1, i, b"x")) for i in range(1, 50)])
    assert disk.syncs == before + 1


def test_a_record_of_nothing_is_no_damage() -> None:
    """A writer that was woken without work once wrote such records; the log has lost nothing."""
    disk = MemoryDisk()
    wal = filled(disk, 3)
    wal._write_record([])
    wal._seal()
    wal.write([batch((1, 4, b"behind"))])
    _, recovered = reopen(disk)
    assert [entry.index for entry in recovered.entries] == [1, 2, 3, 4]
    assert not recovered.cut


def test_conflicting_suffix_is_replaced() -> None:
    """An entry replaces everything from its index on. Raft §5.3."""
    disk = MemoryDisk()
    wal = filled(disk, 5)
    wal.write([batch((2, 3, b"new"))])
    _, recovered = reopen(disk)
    assert shape(recovered) == [(1, 1, b"data-1"), (1, 2, b"data-2"), (2, 3, b"new")]


def test_appending_goes_on_after_reopening() -> None:
    """The record sequence has no gap after a restart."""
    disk = MemoryDisk()
    filled(disk, 3)
    for round_ in range(3):
        wal, _ = reopen(disk)
        wal.write([batch((1, 4 + round_, b"again"))])
    assert [e.index for e in reopen(disk)[1].entries] == [1, 2, 3, 4, 5, 6]


def test_segments_rotate_and_old_ones_are_pruned() -> None:
    """Only whole segments below the snapshot are removed; hard state and the rest stay."""
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
    """A conflict may replace entries of segments that were pruned meanwhile; replay must accept that."""
    disk = MemoryDisk()
    wal = filled(disk, 10, segment_bytes=300)
    wal.write([batch((2, 6, b"conflict"))])
    wal.prune(10)
    _, recovered = reopen(disk, segment_bytes=300)
    assert recovered.last_index() == 6 or recovered.entries[-1].index == 6


def test_base_drops_a_log_that_does_not_continue_the_snapshot() -> None:
    """After a snapshot from the leader the old suffix is dropped unless it matches. Raft §7."""
    disk = MemoryDisk()
    wal = filled(disk, 5)
    installed = WriteBatch()
    installed.set_base(100, 3)
    wal.write([installed])
    wal.write([batch((3, 101, b"next"))])
    _, recovered = reopen(disk)
    assert (recovered.base_index, recovered.base_term, shape(recovered)) == (100, 3, [(3, 101, b"next")])


def test_base_keeps_a_matching_suffix() -> None:
    """Entries after a snapshot that matches the log stay."""
    recovered = Recovered()
    disk = MemoryDisk()
    filled(disk, 5)
    recovered = reopen(disk)[1]
    recovered.rebase(3, 1)
    assert [e.index for e in recovered.entries] == [4, 5]
    recovered.rebase(4, 9)
    assert recovered.entries == []


def test_entries_up_to_the_floor_are_not_kept() -> None:
    """A start reads only entries that no snapshot covers; the position where the log continues is still known."""
    disk = MemoryDisk()
    filled(disk, 5)
    _, recovered = reopen(disk, floor=3)
    assert (recovered.base_index, recovered.base_term, [e.index for e in recovered.entries]) == (3, 1, [4, 5])
    _, recovered = reopen(disk, floor=9)
    assert (recovered.base_index, recovered.entries, recovered.last_index()) == (5, [], 5)


@given(st.randoms(use_true_random=False), st.integers(5, 60))
def test_what_is_behind_the_floor_does_not_depend_on_it(random: Random, length: int) -> None:
    """After any appends, replacements and installations, a floor at a committed index changes nothing after it."""
    history, committed = some_history(random, length)
    whole = Recovered()
    for item in history:
        whole.take(item)
    index, term = random.choice(committed)
    raised = Recovered(index)
    for item in history:
        raised.take(item)
    for found in (whole, raised):
        if found.last_index() >= index:
            found.rebase(index, term)
    if whole.last_index() > index:
        assert (raised.base_index, raised.base_term, shape(raised)) == (whole.base_index, whole.base_term, shape(whole))
    else:
        assert raised.entries == []


def some_history(random: Random, length: int) -> tuple[list[Item], list[tuple[int, int]]]:
    """Return random operations on a follower's log, and positions (index, term) that were committed on the way."""
    history: list[Item] = []
    terms: list[int] = []
    commit, term = 0, 1
    committed = [(0, 0)]
    for _ in range(length):
        what = random.randrange(4)
        if what == 0:
            term += 1
            del terms[random.randint(commit, len(terms)) :]
        elif what == 1 and terms:
            commit = random.randint(commit, len(terms))
            if commit:
                committed.append((commit, terms[commit - 1]))
        elif what == 2 and random.random() < 0.4:
            # A leader's snapshot: of entries that this log has, or of another history.
            installed = random.randint(commit + 1, commit + 10)
            if installed > len(terms) or random.random() < 0.5:
                term += 1
                terms = terms[:commit] + [term] * (installed - commit)
            commit = installed
            history.append(BaseItem(commit, terms[commit - 1]))
            committed.append((commit, terms[commit - 1]))
            continue
        terms.append(term)
        history.append(LogItem(term, len(terms), 1, b"%d" % len(history)))
    return history, committed


@pytest.mark.parametrize("reserved", [True, pytest.param(False, marks=needs_interpreted)])
def test_truncation_at_every_byte_of_the_last_record_is_repaired(
    reserved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torn last record is cut off at any length; all earlier entries are kept, and the log works again."""
    if not reserved:
        # As on a full disk: the file has the length of its records, and the extent expects no more.
        monkeypatch.setattr(segments, "RESERVE_BYTES", 0)
    disk = MemoryDisk()
    wal = filled(disk, 3)
    start = wal._position
    extent = disk.files[NAME].content[:]
    wal.write([batch((1, 4, b"the last one"), (1, 5, b"and another"))])
    end = wal._position
    for cut in range(start, end):
        torn = disk.copy()
        content = only_segment(torn)
        size = len(content) if reserved else cut
        del content[cut:]
        content.extend(bytes(size - cut))
        torn.files[NAME].content[:] = extent
        again, recovered = reopen(torn)
        assert [e.index for e in recovered.entries] == [1, 2, 3], f"cut at {cut}"
        again.write([batch((2, 4, b"after repair"))])
        assert shape(reopen(torn)[1])[-1] == (2, 4, b"after repair")


def test_flip_at_every_byte_of_the_last_record_is_refused() -> None:
    """The seal after the record proves that it was durable, both after a crash and after a close."""
    disk = MemoryDisk()
    wal = filled(disk, 3)
    start = wal._position
    wal.write([batch((1, 4, b"the last one"))])
    killed = disk.copy()
    wal.close()
    for sealed in (killed, disk.power_cut()):
        assert reopen(sealed.copy())[1].last_index() == 4
        for offset in range(start, wal._position):
            for mask in (0x01, 0x80, 0xFF):
                flipped = sealed.copy()
                only_segment(flipped)[offset] ^= mask
                with pytest.raises(CorruptRecord, match="record 6 was durable") as refused:
                    reopen(flipped)
                assert refused.value.offset == start


def test_flip_of_a_record_whose_seal_was_lost_never_yields_a_wrong_entry() -> None:
    """The power failed before the seal was on the disk: a damaged last record looks torn and is cut off."""
    disk = MemoryDisk()
    wal = filled(disk, 3)
    start = wal._position
    wal.write([batch((1, 4, b"the last one"))])
    for offset in range(start, wal._position):
        flipped = disk.power_cut()
        only_segment(flipped)[offset] ^= 0x80
        recovered = reopen(flipped)[1]
        assert [e.index for e in recovered.entries] == [1, 2, 3], f"flip at {offset}"
        assert recovered.cut


def test_flip_at_every_byte_of_the_seal_is_harmless() -> None:
    """The seal adds nothing while the record before it is whole."""
    disk = MemoryDisk()
    wal = filled(disk, 3)
    for offset in range(wal._position, wal._position + 16):
        flipped = disk.copy()
        only_segment(flipped)[offset] ^= 0x80
        again, recovered = reopen(flipped)
        assert recovered.last_index() == 3
        again.write([batch((1, 4, b"goes on"))])
        assert reopen(flipped)[1].last_index() == 4


def test_a_seal_in_somebodys_data_seals_nothing() -> None:
    """A seal counts only at its own position: a torn record with the bytes of another seal in it is cut off."""
    disk = MemoryDisk()
    wal = filled(disk, 3)
    start = wal._position
    wal.write([batch((1, 4, encode_seal(9, 100) * 5 + b"the end"))])
    only_segment(disk)[wal._position - 4 : wal._position + 20] = bytes(24)
    recovered = reopen(disk)[1]
    assert recovered.last_index() == 3
    assert f"offset {start}" in recovered.cut


def test_a_segment_that_begins_like_a_seal_is_damaged() -> None:
    """Bytes of another sector took the place of the header. Nothing precedes offset 0, so no seal is there."""
    disk = MemoryDisk()
    filled(disk, 3)
    only_segment(disk)[: len(SEAL_MAGIC)] = SEAL_MAGIC
    with pytest.raises(CorruptRecord):
        reopen(disk)


def test_a_seal_at_the_end_of_a_full_segment_may_be_torn() -> None:
    """The next segment begins without another sync; whatever a crash leaves of the seal is not damage."""
    disk = MemoryDisk()
    wal = filled(disk, 3, segment_bytes=300)
    while wal.segment_count() == 1:
        end = wal._position
        wal.write([batch((1, wal._last[0] + 1, b"until it is full"))])
    first = disk.files[f"{FOLDER}/{disk.names(FOLDER)[0]}"].content
    assert bytes(first[end : end + 4]) == SEAL_MAGIC
    for kept in range(17):
        torn = disk.copy()
        content = torn.files[f"{FOLDER}/{disk.names(FOLDER)[0]}"].content
        content[end + kept : end + 16] = bytes(16 - kept)
        assert reopen(torn, segment_bytes=300)[1].last_index() == wal._last[0]
        content[end : end + 16 - kept] = bytes(16 - kept)
        assert reopen(torn, segment_bytes=300)[1].last_index() == wal._last[0]


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
    """Whichever call the power fails in, every write that returned is in the log afterwards."""

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
    """A write that failed for lack of room may be tried again."""
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


def test_rotation_whose_name_is_not_durable_is_final() -> None:
    """Even for lack of room: the header has taken its number, and a second one would look like a missing record."""
    disk = MemoryDisk()
    wal = filled(disk, 30, segment_bytes=10_000)
    wal._segment_bytes = 1
    disk.failures["sync_folder"] = errno.ENOSPC
    with pytest.raises(SyncFailed):
        wal.write([batch((1, 31, b"x"))])
    disk.failures.clear()
    assert reopen(disk.copy())[1].last_index() == 30
    assert reopen(disk.power_cut())[1].last_index() == 30


def test_failed_sync_is_final() -> None:
    """After a failed sync the disk's content is unknown: it is a separate error, so that the node stops."""
    disk = MemoryDisk()
    wal = filled(disk, 2)
    disk.failures["sync"] = errno.EIO
    with pytest.raises(SyncFailed):
        wal.write([batch((1, 3, b"x"))])


def test_a_power_cut_while_a_log_is_opened_loses_no_more_than_was_not_durable() -> None:
    """The record whose sync failed is read, for the system has its pages, and is not on the disk.

    The extent demanded the record before it was written once more: a power cut in between made a sound disk a damaged
    one (simulation, seed 6000052).
    """
    for last_call in range(1, 30):
        disk = MemoryDisk()
        wal = filled(disk, 2)
        disk.failures["sync"] = errno.EIO
        with pytest.raises(SyncFailed):
            wal.write([batch((1, 3, b"x"))])
        disk.failures.clear()
        calls = 0

        def cut(_name: str, last_call: int = last_call) -> None:
            nonlocal calls
            calls += 1
            if calls == last_call:
                raise OSError(errno.EIO, "the power is cut")

        disk.on_call = cut
        try:
            reopen(disk)
        except OSError:
            after = disk.power_cut()
            assert reopen(after)[1].last_index() in (2, 3)
        else:
            assert reopen(disk.power_cut())[1].last_index() == 3
            assert last_call > 4
            return
    raise AssertionError("the log was never opened")


def test_a_truncated_log_is_detected_wherever_its_opening_was_interrupted() -> None:
    """The extent covered an acknowledged record by the zeros written ahead, and demanded less while the log was opened.

    A log that was truncated within the record then looked like a torn write (simulation, seed 9000273).
    """
    for last_call in range(1, 30):
        disk = MemoryDisk()
        filled(disk, 2)
        calls = 0

        def cut(_name: str, last_call: int = last_call) -> None:
            nonlocal calls
            calls += 1
            if calls == last_call:
                raise OSError(errno.EIO, "the power is cut")

        disk.on_call = cut
        try:
            reopen(disk)
        except OSError:
            after = disk.power_cut()
            assert reopen(after.copy())[1].last_index() == 2
            records = only_segment(after).rstrip(b"\0")
            seal = len(encode_seal(1, 1))
            for missing in (1, seal + 1, seal + 20):
                truncated = after.copy()
                del only_segment(truncated)[len(records) - missing :]
                with pytest.raises(CorruptRecord):
                    reopen(truncated)
        else:
            assert last_call > 4
            return
    raise AssertionError("the log was never opened")


@needs_interpreted
def test_newer_format_is_refused() -> None:
    """A log of a later version is rejected."""
    disk = MemoryDisk()
    wal, _ = reopen(disk)
    import coord.storage.records as module

    original = module.VERSION
    try:
        module.VERSION = 2  # type: ignore[misc]
        wal._segment_bytes = 1
        wal.write([batch((1, 1, b"x"))])
    finally:
        module.VERSION = original  # type: ignore[misc]
    with pytest.raises(StorageError, match="format 2"):
        reopen(disk)
