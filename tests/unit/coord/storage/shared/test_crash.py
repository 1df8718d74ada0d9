"""The shared log after a crash at every written byte, with any part of the unsynced writes.

A history of several slots (segments, replaced entries, floors, drops, pruning, reopening) is recorded call by call.
Then the disk is rebuilt as after a crash before each byte, in three ways: with all writes up to there; with synced
writes only; with the writes since the last sync torn into pages, of which every other one is lost. Each time the log
must have every acknowledged turn, and the turn in progress whole or not at all. It must report no damage, and accept
new writes.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from coord.storage.shared.items import Drop, Floor, OpenSlot
from coord.storage.shared.log import SharedLog, open_shared_log
from coord.storage.shared.recovery import recover
from tests.support.disks import MemoryDisk, MemoryFile
from tests.unit.coord.storage.shared.model import Model, Shape, apply, found, items, shapes, some_changes
from tests.unit.coord.storage.test_crash import RecordingDisk, everything, only_synced, perform, torn

SEGMENT_BYTES = 1500
WINDOW_BYTES = 400
TURNS = 14

Calls = list[tuple[str, str, object, bytes]]


def reopen(disk: MemoryDisk) -> SharedLog:
    log, recovered = open_shared_log(disk, segment_bytes=SEGMENT_BYTES, window_bytes=WINDOW_BYTES)
    assert recovered.damage == []
    return log


def recorded() -> tuple[RecordingDisk, list[tuple[int, dict[int, Shape]]]]:
    """Return a run of the log, and which slots were acknowledged after which call."""
    random = Random(7)
    disk = RecordingDisk()
    model: Model = {}
    acknowledged: list[tuple[int, dict[int, Shape]]] = [(0, {})]
    log = reopen(disk)
    for turn in range(TURNS):
        changes = some_changes(random, model, log.next_slot(), slots=4)
        if turn == TURNS - 6:
            gone = min(model)
            changes.append(Drop(gone, 1))
            apply(model, changes[-1])
        if turn == TURNS - 4:
            floors = [Floor(slot, 1, held.last.index, held.last.term) for slot, held in model.items()]
            changes += floors
            for floor in floors:
                apply(model, floor)
        log.write([log.batch(changes)])
        acknowledged.append((len(disk.calls), shapes(model)))
        log.prune(turn)
        if turn == TURNS // 2:
            log.close()
            log = reopen(disk)
    log.close()
    return disk, acknowledged


RUN, ACKNOWLEDGED = recorded()


def crashes() -> list[tuple[int, int]]:
    """Yield (calls done, bytes done of the next one): before each call, and within each write at every byte of it."""
    places = []
    for position, (name, _, _, data) in enumerate(RUN.calls):
        # Zeros written ahead are equal at every byte: try their ends and one byte in between.
        size = len(data) if data.strip(b"\0") else min(len(data), 2)
        places += [(position, cut) for cut in range(size + 1 if name == "write" else 1)]
    return [*places, (len(RUN.calls), 0)]


class Replay:
    """The disk before each call, in the order of the calls. Each call is performed once."""

    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self._done = 0

    def crashed(self, calls_done: int, cut: int, survives: Callable[[MemoryDisk, Calls], None]) -> MemoryDisk:
        """Return a copy of the disk after a crash in this call at this byte."""
        while self._done < calls_done:
            perform(self._disk, RUN.calls[self._done])
            self._done += 1
        disk = twin(self._disk)
        part: Calls = []
        if cut:
            name, path, offset, data = RUN.calls[calls_done]
            part = [(name, path, offset, data[:cut])]
        survives(disk, part)
        return disk


def twin(disk: MemoryDisk) -> MemoryDisk:
    """Return a copy with the same content and the same durable part."""
    after = MemoryDisk()
    twins: dict[int, MemoryFile] = {}
    for names, files in ((after.files, disk.files), (after.durable, disk.durable)):
        for name, file in files.items():
            if id(file) not in twins:
                twins[id(file)] = MemoryFile(after, bytearray(file.content))
                twins[id(file)].synced = file.synced
            names[name] = twins[id(file)]
    return after


def allowed(calls_done: int) -> list[dict[int, Shape]]:
    """Return the acknowledged state at that time, and the state after the turn in progress."""
    before = [held for when, held in ACKNOWLEDGED if when <= calls_done][-1]
    after = [held for when, held in ACKNOWLEDGED if when > calls_done][:1]
    return [before, *after]


def test_the_history_has_everything_in_it() -> None:
    names = [name for name, *_ in RUN.calls]
    assert names.count("create") > 3
    assert names.count("remove") > 0
    assert len({slot for _, held in ACKNOWLEDGED for slot in held}) > 3
    assert len(ACKNOWLEDGED[-1][1]) < len({slot for _, held in ACKNOWLEDGED for slot in held})


@pytest.mark.parametrize("survives", [everything, only_synced, torn])
def test_a_crash_at_every_byte_loses_nothing_acknowledged(survives: Callable[[MemoryDisk, Calls], None]) -> None:
    """The log has the state before or after the turn in progress, and no other."""
    at_every_byte = crashes()
    assert len(at_every_byte) > 5000
    replay, last = Replay(), -1
    for calls_done, cut in at_every_byte:
        disk = replay.crashed(calls_done, cut, survives)
        where = f"crash in call {calls_done} at byte {cut}"
        recovered = recover(disk)
        assert recovered.damage == [], where
        assert found(recovered) in allowed(calls_done), where
        if calls_done == last and cut % 64:
            continue
        last = calls_done
        go_on(disk, found(recovered), where)


def go_on(disk: MemoryDisk, held: dict[int, Shape], where: str) -> None:
    """Open the log, write to every slot and to a new one, and find all writes after a power cut."""
    log = reopen(disk)
    changes = [items(slot, (9, shape[5].index + 1, b"goes on"), state=(9, 1)) for slot, shape in held.items()]
    fresh = log.next_slot()
    log.write([log.batch([*changes, OpenSlot(fresh, 1, "new", 1)])])
    again = recover(disk.power_cut())
    assert again.damage == [], where
    assert set(again.slots) == {*held, fresh}, where
    for slot, shape in held.items():
        entries = [(e.term, e.index, e.kind, e.data) for e in again.slots[slot].entries]
        assert entries == [*shape[6], (9, shape[5].index + 1, 0, b"goes on")], where


def test_the_recorded_calls_are_what_happened() -> None:
    disk = MemoryDisk()
    for call in RUN.calls:
        perform(disk, call)
    assert {name: file.content for name, file in disk.files.items()} == {
        name: file.content for name, file in RUN.files.items()
    }
