"""Damage to the shared log names exactly the slots that have lost records; all others are unchanged."""

from __future__ import annotations

from random import Random

import pytest

from coord.errors import CorruptRecord, StorageError
from coord.storage.extent import NAME as EXTENT
from coord.storage.records import SEAL
from coord.storage.shared.codec import (
    HAS_ROW,
    HEADER,
    BlockHead,
    SlotRow,
    decode_header,
    decode_row,
    encode_block,
    encode_row,
)
from coord.storage.shared.items import BEGINNING, Change, Drop, Floor, OpenSlot
from coord.storage.shared.log import SharedLog, open_shared_log
from coord.storage.shared.recovery import FOLDER, SharedReader, recover, segment_names
from tests.support.disks import MemoryDisk
from tests.unit.coord.storage.shared.model import Model, apply, damaged, found, items, shapes, some_changes

SEGMENT_BYTES = 2500
WINDOW_BYTES = 1200


class History:
    """A log, and the contents of each of its records."""

    def __init__(self, seed: int, turns: int, *, prune: bool = True) -> None:
        random = Random(seed)
        self.disk = MemoryDisk()
        self.model: Model = {}
        self.log, _ = open_shared_log(self.disk, segment_bytes=SEGMENT_BYTES, window_bytes=WINDOW_BYTES)
        #: The changes in each record, by its sequence number, without headers.
        self.turns: dict[int, list[Change]] = {}
        for turn in range(turns):
            changes = some_changes(random, self.model, self.log.next_slot())
            self.log.write([self.log.batch(changes)])
            self.turns[self.log._sequence] = changes
            if prune and random.random() < 0.04:
                self.log.prune(turn)

    def places(self) -> list[tuple[str, int, int, int]]:
        """Return file, offset, size and sequence number of each remaining record."""
        places = []
        sequence = 0
        names = segment_names(self.disk, FOLDER)
        for name in names:
            reader = SharedReader(self.disk, f"{FOLDER}/{name}")
            for record in reader.records(sequence, is_first=not sequence, is_last=name == names[-1]):
                places.append((f"{FOLDER}/{name}", record.offset, record.size, record.sequence))
            sequence = reader.sequence
        return places

    def rows(self, path: str) -> dict[int, int]:
        """Return the last index of each slot in the header of a segment."""
        reader = SharedReader(self.disk, path)
        data = reader.record_bytes(next(iter(reader.records(0, is_first=True, is_last=False))))
        rows, offset = {}, HEADER.size
        for _ in range(decode_header(path, data, 0).rows):
            row, offset = decode_row(data, offset)
            rows[row.slot] = row.last.index
        return rows

    def losers(self, lost: set[int]) -> set[int]:
        """Return the slots that lack data without the records of these sequence numbers.

        A slot lacks data from a lost record on until a header states the slot again, and then as long as its floor is
        below the last entry of that time.
        """
        start: dict[int, int] = {}
        floor: dict[int, int] = {}
        last: dict[int, int] = {}
        lacking: set[int] = set()
        is_first = True
        for path, offset, _, sequence in self.places():
            if offset == 0:
                rows = self.rows(path)
                for slot in lacking & set(rows):
                    start[slot] = last[slot] = rows[slot]
                for slot in set(last) - set(rows):
                    del start[slot], floor[slot], last[slot]
                for slot in set(rows) - set(last):
                    start[slot] = last[slot] = rows[slot]
                    floor[slot] = 0
                lacking = set()
                if is_first:
                    floor = self._floors_before(sequence)
                is_first = False
            for change in self.turns.get(sequence, []):
                slot = change.slot
                if sequence in lost:
                    lacking.add(slot)
                elif isinstance(change, OpenSlot):
                    start[slot] = last[slot] = floor[slot] = change.floor.index
                elif isinstance(change, Drop):
                    lacking.discard(slot)
                    last.pop(slot, None)
                elif isinstance(change, Floor):
                    floor[slot] = max(floor.get(slot, 0), change.index)
                    last[slot] = max(last.get(slot, 0), change.index)
                elif change.entries:
                    first = change.entries[0].index
                    start[slot] = min(start.get(slot, 0), first - 1)
                    last[slot] = change.entries[-1].index
        # The true model has at least the floor that a header states.
        healed = {slot for slot in last if slot in self.model and self.model[slot].floor.index >= start[slot]}
        return lacking | {slot for slot in last if slot not in healed and slot in self.model and start[slot] > 0}

    def _floors_before(self, sequence: int) -> dict[int, int]:
        floors: dict[int, int] = {}
        for turn, changes in self.turns.items():
            for change in changes:
                if turn < sequence and isinstance(change, Floor):
                    floors[change.slot] = max(floors.get(change.slot, 0), change.index)
                elif turn < sequence and isinstance(change, OpenSlot):
                    floors[change.slot] = change.floor.index
        return floors


def flipped(disk: MemoryDisk, path: str, offset: int, mask: int = 0x10) -> MemoryDisk:
    """Return a copy of the disk with one flipped bit."""
    after = disk.copy()
    after.files[path].content[offset] ^= mask
    return after


def check(history: History, disk: MemoryDisk, losers: set[int], where: str) -> None:
    """Check that exactly these slots are named, at this start and at the next, and that the others are unchanged."""
    truth = {number: shape for number, shape in shapes(history.model).items() if number not in losers}
    recovered = recover(disk)
    assert damaged(recovered) == losers, where
    assert found(recovered, without=losers) == truth, where
    log, opened = open_shared_log(disk, segment_bytes=SEGMENT_BYTES, window_bytes=WINDOW_BYTES)
    assert damaged(opened) == losers, where
    again = recover(disk.power_cut())
    assert damaged(again) == losers, where
    assert found(again, without=losers) == truth, where
    go_on(log, disk, truth, losers, where)


def go_on(log: SharedLog, disk: MemoryDisk, truth: dict[int, object], losers: set[int], where: str) -> None:
    """Drop the damaged slots, and write to the others: no slot is damaged any more."""
    recovered = recover(disk)
    log.write([log.batch([Drop(slot, recovered.slots[slot].generation) for slot in sorted(losers)])])
    for slot in truth:
        term, last = recovered.slots[slot].hard_state.term, recovered.slots[slot].last.index
        log.write([log.batch([items(slot, (max(term, 1), last + 1, b"goes on"))])])
    again = recover(disk.power_cut())
    assert set(again.slots) == set(truth), where
    assert damaged(again) == set(), where
    for slot, recovered_slot in again.slots.items():
        assert recovered_slot.last.index == recovered.slots[slot].last.index + 1, where
        assert recovered_slot.entries[-1].data == b"goes on", where


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_in_every_record_names_its_slots_exactly(seed: int) -> None:
    """In its prefix, its trail and its blocks; in the middle, at the end of a segment, in the last record."""
    history = History(seed, 70)
    random = Random(seed)
    places = history.places()
    assert len({path for path, *_ in places}) > 1
    assert len(places) > 20
    for path, offset, size, sequence in places:
        losers = history.losers({sequence})
        for at in (random.randrange(20), *random.sample(range(20, size), 2), size - 1):
            disk = flipped(history.disk, path, offset + at)
            check(history, disk, losers, f"seed {seed}: byte {at} of record {sequence} at {path}:{offset}")


def test_a_flipped_bit_at_every_byte_of_a_small_log() -> None:
    """Each byte of records and seals. The note after the last record protects that record, not itself."""
    history = History(9, 6)
    [name] = segment_names(history.disk, FOLDER)
    path = f"{FOLDER}/{name}"
    places = history.places()
    end = places[-1][1] + places[-1][2]
    for at in range(end + SEAL.size + 40):
        sequence = next((sequence for _, offset, size, sequence in places if offset <= at < offset + size), 0)
        disk = flipped(history.disk, path, at, 0x80)
        assert damaged(recover(disk)) == history.losers({sequence}), f"byte {at} of record {sequence}"


def test_a_header_of_the_oldest_segment_may_be_damaged() -> None:
    """The header is written twice. Without both copies the slots that write are named, and idle slots are not in the
    log."""
    history = History(2, 60)
    headers = [place for place in history.places() if place[3] not in history.turns][:2]
    assert headers[0][0] == headers[1][0]
    both = history.disk
    for path, offset, _, _ in headers:
        both = flipped(both, path, offset + 30)
    recovered = recover(both)
    assert len(recovered.damage) == 1
    truth = shapes(history.model)
    for number, shape in found(recovered).items():
        assert recovered.slots[number].damage or truth[number] == shape


@pytest.mark.parametrize("seed", range(6))
def test_several_lost_records_within_a_window_are_named_exactly(seed: int) -> None:
    """A bad sector destroys some small records. They are followed by a long trail, or by the next segment's header."""
    history = History(100 + seed, 120, prune=False)
    places = history.places()
    random = Random(seed)
    tried = 0
    for first in random.sample(range(2, len(places) - 20), 40):
        lost = [place for place in places[first : first + random.randint(2, 6)] if place[0] == places[first][0]]
        size = lost[-1][1] + lost[-1][2] - lost[0][1]
        if lost[0][1] == 0 or size > WINDOW_BYTES:
            continue
        disk = history.disk.copy()
        content = disk.files[lost[0][0]].content
        content[lost[0][1] : lost[0][1] + size] = bytes(size) if tried % 2 else random.randbytes(size)
        sequences = {place[3] for place in lost}
        check(history, disk, history.losers(sequences), f"seed {seed}: records {sorted(sequences)}")
        tried += 1
    assert tried > 5


@pytest.mark.parametrize("seed", range(3))
def test_a_missing_segment_beside_others_is_damage(seed: int) -> None:
    """The next header states the slots, so the damaged ones are known."""
    history = History(200 + seed, 120, prune=False)
    names = segment_names(history.disk, FOLDER)
    assert len(names) > 3
    for name in names[:-1]:
        disk = history.disk.copy()
        path = f"{FOLDER}/{name}"
        del disk.files[path]
        disk.durable.pop(path)
        lost = {sequence for place, _, _, sequence in history.places() if place == path}
        recovered = recover(disk)
        if name != names[0]:
            check(history, disk, history.losers(lost), f"seed {seed}: {name} is missing")
            assert "are missing" in recovered.damage[0]
        truth = shapes(history.model)
        for number, shape in found(recovered).items():
            assert recovered.slots[number].damage or truth[number] == shape


def test_a_missing_or_shortened_end_concerns_every_slot() -> None:
    """Nothing states the contents of the newest segment. The extent shows that there was more."""
    history = History(5, 60)
    names = segment_names(history.disk, FOLDER)
    newest = f"{FOLDER}/{names[-1]}"
    missing = history.disk.copy()
    del missing.files[newest]
    shorter = history.disk.copy()
    del shorter.files[newest].content[history.places()[-1][1] :]
    for disk, text in [(missing, "is missing"), (shorter, "bytes instead of")]:
        recovered = recover(disk)
        assert recovered.slots
        assert damaged(recovered) == set(recovered.slots)
        assert text in recovered.damage[-1]
        check_all_lost(disk, set(recovered.slots))


def check_all_lost(disk: MemoryDisk, slots: set[int]) -> None:
    """Check that the log continues under a new number, with the same verdict at each start until the slots are
    dropped."""
    numbers = [int(name[:16], 16) for name in segment_names(disk, FOLDER)]
    log, _ = open_shared_log(disk, segment_bytes=SEGMENT_BYTES, window_bytes=WINDOW_BYTES)
    assert log._segments[-1].number > max(numbers)
    log.close()
    log, recovered = open_shared_log(disk.power_cut(), segment_bytes=SEGMENT_BYTES, window_bytes=WINDOW_BYTES)
    assert damaged(recovered) == slots
    fresh = log.next_slot()
    log.write([log.batch([*[Drop(slot, 1) for slot in slots], OpenSlot(fresh, 1, "new", 1)])])
    log.prune(1)
    assert {slot: log.entries(slot) for slot in (fresh,)} == {fresh: []}


@pytest.mark.parametrize(("slot", "written"), [(0, 1), (1, 2)])
def test_a_block_that_opens_another_slot_is_refused(slot: int, written: int) -> None:
    """No server writes such a block: the log is named, and is not read on."""
    disk = MemoryDisk()
    log, _ = open_shared_log(disk)
    log.write([log.batch([OpenSlot(0, 1, "t0", 1)])])
    row = encode_row(SlotRow(slot, 1, 1, written, (0, 0), BEGINNING, BEGINNING, "t1"))
    log._write_record([log._trails.encode(), encode_block(BlockHead(HAS_ROW, 1, 1, 1, len(row)), row)])
    with pytest.raises(CorruptRecord, match=f"block 1 of slot 1 opens slot {slot} at {written}"):
        recover(disk.power_cut())


def test_a_log_that_is_gone_as_a_whole_is_refused() -> None:
    """Every slot is lost, which concerns the whole server."""
    history = History(6, 10)
    for path in [path for path in history.disk.files if path != EXTENT]:
        del history.disk.files[path]
    with pytest.raises(CorruptRecord, match=r"expected segment [0-9]+ of at least \d+ bytes, found no such file"):
        open_shared_log(history.disk)


def test_damage_is_remembered_when_its_segment_is_gone() -> None:
    """The header of the next segment states the damage, so the damaged segment may be pruned."""
    disk = MemoryDisk()
    log, _ = open_shared_log(disk)
    log.write([log.batch([OpenSlot(0, 1, "t0", 1), OpenSlot(1, 1, "t1", 1)])])
    log.write([log.batch([items(0, (1, 1, b"lost"))])])
    at = log._position - 3
    log.write([log.batch([items(1, (1, 1, b"kept"), state=(1, 1))])])
    [name] = segment_names(disk, FOLDER)
    disk = flipped(disk, f"{FOLDER}/{name}", at)
    log, recovered = open_shared_log(disk)
    assert damaged(recovered) == {0}
    log.write([log.batch([Floor(1, 1, 1, 1)])])
    assert log.prune(1) == 1
    log.close()
    again = recover(disk.power_cut())
    assert again.damage == []
    assert "lost blocks 2 to 2 of the slot" in str(again.slots[0].damage)
    assert again.slots[1].damage is None


def test_a_damaged_slot_accepts_a_drop_only() -> None:
    history = History(7, 30)
    path, offset, size, sequence = history.places()[-1]
    disk = flipped(history.disk, path, offset + size - 1)
    log, recovered = open_shared_log(disk)
    for slot in damaged(recovered):
        with pytest.raises(StorageError, match="has lost records on the disk: only a drop is accepted"):
            log.batch([items(slot, (9, recovered.slots[slot].last.index + 1, b""))])
    assert damaged(recovered) == history.losers({sequence})


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_never_yields_a_wrong_slot(seed: int) -> None:
    """Random bytes before the last seal, many times: a slot that counts as whole is whole."""
    history = History(300 + seed, 50)
    random = Random(seed)
    truth = shapes(history.model)
    ends = {path: offset + size for path, offset, size, _ in history.places()}
    for _ in range(15):
        disk = history.disk.copy()
        for _ in range(random.randint(1, 3)):
            path = random.choice(sorted(ends))
            content = disk.files[path].content
            at = random.randrange(ends[path])
            size = min(random.choice([1, 1, 16, 300, 2000]), ends[path] - at)
            content[at : at + size] = random.choice([bytes, random.randbytes])(len(content[at : at + size]))
        recovered = recover(disk)
        for number, shape in found(recovered).items():
            assert recovered.slots[number].damage or truth.get(number) == shape, f"seed {seed}: slot {number}"


def test_the_model_of_losers() -> None:
    """The history without damage: no slot has lost anything."""
    history = History(1, 40)
    assert history.losers(set()) == set()
    model: Model = {}
    for changes in history.turns.values():
        for change in changes:
            apply(model, change)
    assert shapes(model) == shapes(history.model)


def test_a_flip_in_a_header_that_states_slots_costs_nobody_anything() -> None:
    """Older segments are gone, so only the header states the slots. It is written twice."""
    disk = MemoryDisk()
    log, _ = open_shared_log(disk, segment_bytes=600)
    log.write([log.batch([OpenSlot(slot, 1, f"t{slot}", slot + 1) for slot in range(3)])])
    log.write([log.batch([items(slot, (2, 1, b"data"), state=(2, 1)) for slot in range(3)])])
    log.write([log.batch([Floor(slot, 1, 1, 2) for slot in range(3)])])
    while log.prune(0) == 0:
        log.write([log.batch([items(0, (2, log._index.slots[0].last_index + 1, b"x" * 50))])])
        log.write([log.batch([Floor(0, 1, log._index.slots[0].last_index, 2)])])
    truth = found(recover(disk))
    [name] = segment_names(disk, FOLDER)
    headers = list(SharedReader(disk, f"{FOLDER}/{name}").records(0, is_first=True, is_last=True))[:2]
    for record in headers:
        for at in range(record.offset, record.offset + record.size):
            recovered = recover(flipped(disk, f"{FOLDER}/{name}", at))
            assert damaged(recovered) == set(), f"byte {at}"
            assert found(recovered) == truth, f"byte {at}"


def test_consecutive_records_in_the_newest_segment_are_named_by_a_long_trail() -> None:
    """No header follows them. In any window, one long trail reaches back far enough."""
    disk = MemoryDisk()
    log, _ = open_shared_log(disk, window_bytes=500)
    log.write([log.batch([OpenSlot(slot, 1, f"t{slot}", 1) for slot in range(40)])])
    writers: dict[int, int] = {}
    for turn in range(60):
        log.write([log.batch([items(turn % 40, (1, 1 + turn // 40, b"data"))])])
        writers[log._sequence] = turn % 40
    [name] = segment_names(disk, FOLDER)
    path = f"{FOLDER}/{name}"
    records = list(SharedReader(disk, path).records(0, is_first=True, is_last=True))
    # The slots 20 to 39 write once, in the first 43 records. Three windows follow.
    for first in range(25, 37):
        lost = records[first : first + 3]
        after = disk.copy()
        size = lost[-1].offset + lost[-1].size - lost[0].offset
        assert size < 500
        after.files[path].content[lost[0].offset : lost[0].offset + size] = bytes(size)
        recovered = recover(after)
        assert damaged(recovered) == {writers[record.sequence] for record in lost}
        assert len(recovered.damage) == 1


def test_a_lost_drop_is_named_after_a_restart_as_well() -> None:
    """The first trail of a process states all slots, also those that have ended."""
    disk = MemoryDisk()
    log, _ = open_shared_log(disk)
    log.write([log.batch([OpenSlot(0, 1, "t0", 1), OpenSlot(1, 1, "t1", 1)])])
    start = log._position
    log.write([log.batch([Drop(0, 1)])])
    log.write([log.batch([items(1, (1, 1, b"data"))])])
    end = log._position
    log.close()
    log, _ = open_shared_log(disk)
    log.write([log.batch([items(1, (1, 2, b"data"))])])
    [name] = segment_names(disk, FOLDER)
    disk.files[f"{FOLDER}/{name}"].content[start:end] = bytes(end - start)
    assert damaged(recover(disk)) == {0, 1}


def test_a_segment_that_comes_back_changes_nothing() -> None:
    """The newest segment was moved away, and is put back after the log has continued without it."""
    history = History(5, 60)
    names = segment_names(history.disk, FOLDER)
    newest = f"{FOLDER}/{names[-1]}"
    disk = history.disk.copy()
    away = disk.files.pop(newest)
    log, recovered = open_shared_log(disk, segment_bytes=SEGMENT_BYTES, window_bytes=WINDOW_BYTES)
    lost = damaged(recovered)
    fresh = log.next_slot() + 100
    log.write([log.batch([OpenSlot(fresh, 1, "new", 1)])])
    log.close()
    assert newest not in disk.files
    disk.files[newest] = away
    again = recover(disk)
    assert damaged(again) == lost
    assert set(again.slots) == {*lost, fresh}


def test_the_last_record_is_durable_before_the_log_goes_on_elsewhere() -> None:
    """Its slot relies on the record, because it was read; but the sync of an earlier process may have failed."""
    disk = MemoryDisk()
    log, _ = open_shared_log(disk)
    log.write([log.batch([OpenSlot(0, 1, "t0", 1), OpenSlot(1, 1, "t1", 1)])])
    log.write([log.batch([items(0, (1, 1, b"damaged"))])])
    start = log._position
    log.write([log.batch([items(1, (1, 1, b"never synced"))])])
    end = log._position
    [name] = segment_names(disk, FOLDER)
    disk = flipped(disk, f"{FOLDER}/{name}", start - 1)
    file = disk.files[f"{FOLDER}/{name}"]
    file.synced = bytes(file.content[:start]) + bytes(end - start) + bytes(file.content[end:])
    _, recovered = open_shared_log(disk)
    assert damaged(recovered) == {0}
    assert [entry.data for entry in recovered.slots[1].entries] == [b"never synced"]
    assert [entry.data for entry in recover(disk.power_cut()).slots[1].entries] == [b"never synced"]
    assert damaged(recover(disk.power_cut())) == {0}


def test_damage_under_a_running_log_is_found_when_entries_are_read() -> None:
    disk = MemoryDisk()
    log, _ = open_shared_log(disk)
    log.write([log.batch([OpenSlot(0, 1, "t0", 1), items(0, (1, 1, b"whole"), (1, 2, b"spoiled"))])])
    [name] = segment_names(disk, FOLDER)
    disk.files[f"{FOLDER}/{name}"].content[log._position - 2] ^= 1
    with pytest.raises(CorruptRecord, match="a block with a matching checksum"):
        log.entries(0)
