"""The shared log: writes come back, one sync per turn, a bad change costs only its turn, old segments are removed."""

from __future__ import annotations

import errno
import select
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coord.errors import CorruptRecord, StorageError
from coord.storage.records import HardStateItem, LogItem
from coord.storage.segments import SyncFailed
from coord.storage.shared import log as log_module
from coord.storage.shared.batch import SlotTable
from coord.storage.shared.codec import FORMAT, TABLET_BYTES_MAX, encode_header
from coord.storage.shared.items import (
    SLOT_MAX,
    Change,
    Drop,
    Floor,
    OpenSlot,
    Position,
    RecoveredLog,
    SlotError,
    SlotItems,
)
from coord.storage.shared.log import SharedLog, open_shared_log
from coord.storage.shared.recovery import FOLDER, recover
from coord.storage.wal import open_wal
from coord.storage.writer import InlineWriter, ThreadWriter
from tests.support.disks import MemoryDisk, WriterReports
from tests.support.helpers import eventually
from tests.support.interpreted import needs_interpreted
from tests.unit.coord.storage.shared.model import Model, apply, found, items, shapes, some_changes


def write(log: SharedLog, *changes: Change) -> None:
    """Write one turn."""
    log.write([log.batch(list(changes))])


def opened(disk: MemoryDisk, count: int, **options: int) -> SharedLog:
    """Return a log with slots 0 to count - 1: members 1 to count of the tablets t0, t1, ..."""
    log, _ = open_shared_log(disk, **options)
    write(log, *[OpenSlot(slot, 1, f"t{slot}", slot + 1) for slot in range(count)])
    return log


def fill(log: SharedLog, slots: list[int], first: int, last: int, data: bytes = b"data") -> None:
    """Write one entry for each of these slots in each turn."""
    for index in range(first, last + 1):
        write(log, *[items(slot, (1, index, data)) for slot in slots])


def indexes(log: RecoveredLog, slot: int) -> list[int]:
    return [entry.index for entry in log.slots[slot].entries]


def test_a_new_log_is_empty_and_small() -> None:
    disk = MemoryDisk()
    log, recovered = open_shared_log(disk)
    assert (recovered.slots, recovered.next_slot, recovered.damage, recovered.cut) == ({}, 0, [], "")
    assert log.segment_count() == 1
    assert log.pinning() == []


def test_written_turns_come_back_after_a_power_cut() -> None:
    disk = MemoryDisk()
    log = opened(disk, 2)
    write(log, items(0, (1, 1, b"a"), (1, 2, b""), state=(1, 3)), items(1, (4, 1, b"b" * 5000), state=(4, 0)))
    write(log, items(0, (2, 2, b"instead")), Floor(1, 1, 1, 4))
    _, recovered = open_shared_log(disk.power_cut())
    assert found(recovered) == {
        0: ("t0", 1, 1, (1, 3), Position(0, 0), Position(2, 2), [(1, 1, 0, b"a"), (2, 2, 0, b"instead")]),
        1: ("t1", 2, 1, (4, 0), Position(1, 4), Position(1, 4), []),
    }
    assert recovered.next_slot == 2


def test_a_turn_is_one_sync_for_all_groups() -> None:
    """All waiting turns share one record."""
    disk = MemoryDisk()
    log = opened(disk, 100)
    before = disk.syncs
    write(log, *[items(slot, (1, 1, b"x"), state=(1, 1)) for slot in range(100)])
    log.write([log.batch([items(0, (1, 2, b"y"))]), log.batch([items(0, (1, 3, b"z")), items(1, (1, 2, b""))])])
    assert disk.syncs == before + 2
    recovered = recover(disk.power_cut())
    assert (indexes(recovered, 0), indexes(recovered, 1)) == ([1, 2, 3], [1, 2])


def test_a_running_log_reads_its_entries_back() -> None:
    """Of a group that was asleep: entries after the floor, without the replaced ones."""
    log = opened(MemoryDisk(), 2, segment_bytes=600)
    fill(log, [0, 1], 1, 20)
    write(log, items(0, (2, 15, b"instead")), Floor(0, 1, 9, 1))
    assert [(e.term, e.index) for e in log.entries(0)] == [*[(1, index) for index in range(10, 15)], (2, 15)]
    assert [e.index for e in log.entries(1)] == list(range(1, 21))
    with pytest.raises(KeyError):
        log.entries(2)
    held = log.contents(0)
    assert held is not None
    assert (held.tablet, held.floor, held.last) == ("t0", Position(9, 1), Position(15, 2))
    assert [e.index for e in held.entries] == list(range(10, 16))
    assert log.contents(2) is None


def test_old_segments_go_when_no_slot_needs_them() -> None:
    """One slot pins the oldest segment; its name is reported, and moving its floor releases the segment."""
    disk = MemoryDisk()
    log = opened(disk, 3, segment_bytes=700)
    fill(log, [2], 1, 1)
    fill(log, [0, 1], 1, 40)
    assert log.segment_count() > 5
    write(log, Floor(0, 1, 40, 1), Floor(1, 1, 40, 1))
    assert log.prune(1) == 0
    assert log.pinning() == [2]
    write(log, Floor(2, 1, 1, 1))
    assert log.prune(2) > 4
    assert (log.segment_count(), log.pinning()) == (1, [])
    recovered = recover(disk.power_cut())
    assert {n: (s.floor, s.last, s.entries) for n, s in recovered.slots.items()} == {
        0: (Position(40, 1), Position(40, 1), []),
        1: (Position(40, 1), Position(40, 1), []),
        2: (Position(1, 1), Position(1, 1), []),
    }


def test_a_dropped_slot_pins_nothing_and_its_number_is_never_used_again() -> None:
    disk = MemoryDisk()
    log = opened(disk, 2, segment_bytes=400)
    fill(log, [0], 1, 1)
    fill(log, [1], 1, 10)
    write(log, Floor(1, 1, 10, 1))
    assert log.pinning() == [0]
    write(log, Drop(0, 1))
    assert log.prune(1) > 0
    for again in (log, open_shared_log(disk.power_cut(), segment_bytes=400)[0]):
        assert again.next_slot() == 2
        for slot in (0, 1):
            with pytest.raises(SlotError, match="used before"):
                again.batch([OpenSlot(slot, 2, "t", 1)])
    fill(log, [1], 11, 40)
    write(log, Floor(1, 1, 40, 1), Drop(1, 1))
    log.prune(2)
    recovered = recover(disk.power_cut())
    assert (recovered.slots, recovered.next_slot, recovered.damage) == ({}, 2, [])


def test_replaced_entries_pin_nothing() -> None:
    """A conflict replaces the entries of an old segment: the segment may go, and the later entries come back."""
    disk = MemoryDisk()
    log = opened(disk, 1, segment_bytes=400)
    fill(log, [0], 1, 2)
    write(log, Floor(0, 1, 2, 1))
    fill(log, [0], 3, 10)
    write(log, items(0, (2, 3, b"instead")))
    assert log.prune(1) > 0
    fill(log, [0], 4, 5)
    recovered = recover(disk.power_cut())
    assert recovered.slots[0].damage is None
    assert [(e.term, e.index) for e in recovered.slots[0].entries] == [(2, 3), (1, 4), (1, 5)]


@needs_interpreted
def test_segments_stay_within_their_most_if_floors_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner raises the floors that pin the oldest segment; at the limit there is no warning, above it there is."""
    monkeypatch.setattr(log_module, "SEGMENTS_MAX", 4)
    warnings: list[str] = []
    monkeypatch.setattr(log_module.log, "warn", lambda text, **facts: warnings.append(text.format(**facts)))
    log = opened(MemoryDisk(), 5, segment_bytes=3000)
    random = Random(1)
    for turn in range(1, 400):
        last = {slot: log._index.slots[slot].last_index for slot in range(5)}
        write(log, *[items(slot, (1, last[slot] + 1, b"data")) for slot in random.sample(range(5), 3)])
        if log.segment_count() == 3:
            slots = log.pinning()
            write(log, *[Floor(slot, 1, log._index.slots[slot].last_index, 1) for slot in slots])
            log.prune(turn)
        assert log.segment_count() <= 4
    assert warnings == []
    assert log._segments[-1].number > 10
    while log.segment_count() <= 4:
        fill(log, [0], log._index.slots[0].last_index + 1, log._index.slots[0].last_index + 1)
    assert "has 5 segments, the limit is 4: t" in warnings[0]


@pytest.mark.parametrize(
    "change",
    [
        items(7, (1, 1, b"")),
        SlotItems(0, 2, None, [LogItem(1, 1, 0, b"")]),
        Drop(0, 2),
        Floor(0, 2, 1, 1),
        items(0, (1, 5, b"")),
        items(0, (1, 2, b"")),
        items(0, (1, 4, b""), (1, 6, b"")),
        items(0, state=(1, 0)),
        items(0, state=(2, 2)),
        OpenSlot(0, 1, "again", 1),
        OpenSlot(SLOT_MAX + 1, 1, "beyond", 1),
        OpenSlot(5, 1, "n" * (TABLET_BYTES_MAX + 1), 1),
    ],
)
def test_a_bad_change_is_rejected_with_its_turn_and_the_log_goes_on(change: Change) -> None:
    """Not open, another generation, a gap, below the floor, not contiguous, an older term, another vote, used."""
    disk = MemoryDisk()
    log = opened(disk, 2)
    write(log, items(0, (1, 1, b"a"), (1, 2, b"b"), (1, 3, b"c"), state=(2, 1)), Floor(0, 1, 2, 1))
    before = found(recover(disk))
    good: list[Change] = [
        items(1, (1, 1, b"good")),
        OpenSlot(4, 1, "new", 1),
        items(0, (2, 4, b"fits"), state=(3, 2)),
        Drop(1, 1),
    ]
    with pytest.raises(SlotError) as rejected:
        log.batch([good[0], good[1], change] if change.slot != 0 else [*good[:2], good[3], change])
    assert rejected.value.slot == change.slot
    assert found(recover(disk)) == before
    write(log, *good)
    assert [entry.data for entry in recover(disk).slots[0].entries] == [b"c", b"fits"]


def test_limits_at_the_limit() -> None:
    """The highest slot, the longest name, the longest batch; one more is rejected."""
    disk = MemoryDisk()
    log, _ = open_shared_log(disk)
    write(log, OpenSlot(SLOT_MAX, 1, "n" * TABLET_BYTES_MAX, 1))
    assert recover(disk).slots[SLOT_MAX].tablet == "n" * TABLET_BYTES_MAX
    assert recover(disk).next_slot == SLOT_MAX + 1
    size = log.batch([items(SLOT_MAX, (1, 1, b"x" * 100))]).bytes
    log, _ = open_shared_log(disk)
    log._table = SlotTable(log._index, bytes_max=size)
    with pytest.raises(SlotError, match="a batch of more than"):
        log.batch([items(SLOT_MAX, (1, 1, b"x" * 101))])
    with pytest.raises(SlotError, match="a batch of more than"):
        log.batch([items(SLOT_MAX, (1, 1, b"x" * 100)), Floor(SLOT_MAX, 1, 1, 1)])
    write(log, items(SLOT_MAX, (1, 1, b"x" * 100)))
    assert indexes(recover(disk), SLOT_MAX) == [1]


def test_nothing_to_write_takes_nothing() -> None:
    """The turn of a group without a new term or entries."""
    disk = MemoryDisk()
    log = opened(disk, 1)
    write(log, items(0))
    write(log)
    write(log, items(0, (1, 1, b"")))
    recovered = open_shared_log(disk.power_cut())[1]
    assert (indexes(recovered, 0), recovered.damage) == ([1], [])


@pytest.mark.parametrize("call", ["write", "create"])
def test_a_full_disk_is_got_over(call: str) -> None:
    """While a record is written and while a segment is begun; nothing is lost, doubled, or reported as damage."""
    disk = MemoryDisk()
    log = opened(disk, 2, segment_bytes=500)
    writer, told = InlineWriter(log), WriterReports()
    writer.start(told)
    done = 0
    for index in range(1, 30):
        if index % 5 == 0:
            disk.failures[call] = errno.ENOSPC
        number = writer.submit(log.batch([items(0, (1, index, b"data"))]))
        writer.flush()
        writer.submit(log.batch([items(1, (1, index, b"data"))]))
        disk.failures.clear()
        writer.flush()
        done = number + 1
        assert told.persisted == done
    assert (True in told.full) is (call == "write" or log.segment_count() > 1)
    recovered = open_shared_log(disk.power_cut(), segment_bytes=500)[1]
    assert indexes(recovered, 0) == indexes(recovered, 1) == list(range(1, 30))
    assert (recovered.damage, recovered.cut, told.failed) == ([], "", [])


@pytest.mark.parametrize("call", ["sync", "sync_folder"])
def test_a_failed_sync_is_final(call: str) -> None:
    """There is no second sync, and no later write is reported durable."""
    disk = MemoryDisk()
    log = opened(disk, 1, segment_bytes=500)
    writer, told = InlineWriter(log), WriterReports()
    writer.start(told)
    disk.failures[call] = errno.EIO
    for index in range(1, 30):
        writer.submit(log.batch([items(0, (1, index, b"data"))]))
        writer.flush()
        if told.failed:
            break
    [error] = told.failed
    assert isinstance(error, SyncFailed)
    persisted, syncs = told.persisted, disk.syncs
    disk.failures.clear()
    writer.submit(log.batch([]))
    writer.flush()
    assert (told.persisted, disk.syncs) == (persisted, syncs)


def later_header(segment: int, copy: int, next_slot: int, rows: int) -> bytes:
    """Return a header as a later build writes it."""
    data = bytearray(encode_header(segment, copy, next_slot, rows))
    data[1:3] = (FORMAT + 1).to_bytes(2, "big")
    return bytes(data)


def test_the_log_of_a_store_node_is_refused_and_left_alone() -> None:
    disk = MemoryDisk()
    open_wal(disk, FOLDER)[0].close()
    before = {name: bytes(file.content) for name, file in disk.files.items()}
    with pytest.raises(CorruptRecord, match="it is the log of a store node"):
        open_shared_log(disk)
    assert {name: bytes(file.content) for name, file in disk.files.items()} == before


@needs_interpreted
def test_a_later_format_is_refused() -> None:
    later = MemoryDisk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "encode_header", later_header)
        open_shared_log(later)[0].close()
    with pytest.raises(StorageError, match="written in format 2, this program reads 1"):
        open_shared_log(later)


def test_recover_changes_nothing() -> None:
    disk = MemoryDisk()
    log = opened(disk, 2)
    fill(log, [0, 1], 1, 5)
    disk.on_call = lambda name: pytest.fail(f"{name} called")
    assert indexes(recover(disk), 1) == [1, 2, 3, 4, 5]


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60), st.integers(200, 3000), st.integers(50, 2000))
def test_any_history_is_that_of_a_dictionary(random: Random, turns: int, segment: int, window: int) -> None:
    """Open, append, replace a suffix, floor, drop; sometimes prune, and reopen after a close or a power cut."""
    disk = MemoryDisk()
    model: Model = {}
    log, _ = open_shared_log(disk, segment_bytes=segment, window_bytes=window)
    for turn in range(turns):
        log.write([log.batch(some_changes(random, model, log.next_slot())) for _ in range(random.randint(1, 3))])
        if random.random() < 0.3:
            log.prune(turn)
        if random.random() < 0.1:
            if random.random() < 0.5:
                log.close()
            next_slot = log.next_slot()
            disk = disk.power_cut()
            log, recovered = open_shared_log(disk, segment_bytes=segment, window_bytes=window)
            assert (found(recovered), recovered.damage, recovered.cut) == (shapes(model), [], "")
            assert recovered.next_slot == next_slot
    assert found(recover(disk.power_cut())) == shapes(model)
    for number, slot in model.items():
        assert [(e.term, e.index, e.kind, e.data) for e in log.entries(number)] == slot.entries


def test_the_model_itself() -> None:
    model: Model = {}
    for change in (OpenSlot(0, 1, "t", 1), items(0, (1, 1, b"a"), (1, 2, b"b")), Floor(0, 1, 1, 1)):
        apply(model, change)
    assert model[0].shape() == ("t", 1, 1, (0, 0), Position(1, 1), Position(2, 1), [(1, 2, 0, b"b")])
    apply(model, SlotItems(0, 1, HardStateItem(2, 1), []))
    apply(model, Floor(0, 1, 5, 2))
    assert model[0].shape() == ("t", 1, 1, (2, 1), Position(5, 2), Position(5, 2), [])


def test_the_number_of_a_dropped_slot_is_remembered_without_a_trace_of_it() -> None:
    """The highest slot was dropped, and the segments with its records are gone."""
    disk = MemoryDisk()
    log = opened(disk, 2, segment_bytes=500)
    write(log, Drop(1, 1))
    first = 1
    while log._segments[0].number < 4:
        fill(log, [0], first, first + 5)
        write(log, Floor(0, 1, first + 5, 1))
        log.prune(first)
        first += 6
    log.close()
    log, recovered = open_shared_log(disk.power_cut(), segment_bytes=500)
    assert (log.next_slot(), recovered.next_slot, list(recovered.slots)) == (2, 2, [0])


@pytest.mark.parametrize("content", [b"", b"RKW1 and half a header", bytes(100)])
def test_a_segment_without_a_header_is_removed(content: bytes) -> None:
    """A rotation was interrupted: the new segment had no acknowledged records."""
    disk = MemoryDisk()
    log = opened(disk, 1)
    fill(log, [0], 1, 3)
    torn = f"{FOLDER}/{2:016x}.log"
    disk.open(torn, create=True).write_at(0, content)
    log, recovered = open_shared_log(disk)
    assert torn not in disk.files
    assert "removed a segment without a header" in recovered.cut
    assert (indexes(recovered, 0), recovered.damage) == ([1, 2, 3], [])
    fill(log, [0], 4, 4)
    assert indexes(recover(disk.power_cut()), 0) == [1, 2, 3, 4]


def test_the_writers_thread_writes_and_prunes() -> None:
    """The store's writer works with this log: waiting turns share a record, pruning follows the floors."""
    disk = MemoryDisk()
    log = opened(disk, 2, segment_bytes=600)
    writer, told = ThreadWriter(log), WriterReports()
    writer.start(told)
    number = 0
    for index in range(1, 31):
        number = writer.submit(log.batch([items(slot, (1, index, b"data")) for slot in (0, 1)]))
        writer.flush()

    def is_told(wanted: int) -> bool:
        if select.select([writer.done_fd], [], [], 0.01)[0]:
            writer.collect()
        return told.persisted == wanted

    eventually(lambda: is_told(number))
    number = writer.submit(log.batch([Floor(slot, 1, 30, 1) for slot in (0, 1)]))
    writer.flush()
    eventually(lambda: is_told(number))
    writer.prune(number)
    eventually(lambda: log.segment_count() == 1, what="pruning")
    writer.close()
    recovered = recover(disk.power_cut())
    assert {slot.last for slot in recovered.slots.values()} == {Position(30, 1)}


def test_a_range_of_entries_is_read_back_with_the_position_before_it() -> None:
    log = opened(MemoryDisk(), 2, segment_bytes=600)
    fill(log, [0, 1], 1, 20, b"0123456789")
    assert log.segment_count() > 2
    before, found_entries = log.entries_from(0, 7, 35)
    assert before == Position(6, 1)
    assert [entry.index for entry in found_entries] == [7, 8, 9, 10]
    before, found_entries = log.entries_from(0, 19, 1 << 20)
    assert (before, [entry.index for entry in found_entries]) == (Position(18, 1), [19, 20])
    # Replaced entries do not belong to the slot any more.
    write(log, items(0, (2, 19, b"new")))
    before, found_entries = log.entries_from(0, 18, 1 << 20)
    assert (before, [(entry.term, entry.index) for entry in found_entries]) == (Position(17, 1), [(1, 18), (2, 19)])
    assert log.entries_from(0, 20, 1 << 20) == (None, [])
    write(log, Floor(0, 1, 10, 1))
    assert log.entries_from(0, 10, 1 << 20) == (None, [])
    before, found_entries = log.entries_from(0, 11, 1)
    assert (before, [entry.index for entry in found_entries]) == (Position(10, 1), [11])
