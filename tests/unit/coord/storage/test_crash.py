"""The log after a crash at every written byte, with any part of the unsynced writes.

A run of the log (segments, overwritten entries, pruning, a base) is recorded call by call. Then the disk is rebuilt as
after a crash before each byte, in three ways: with all writes up to there; with synced writes only; with the writes
since the last sync torn into pages, of which every other one is lost. Each time a node must open the log, find all
acknowledged entries and none that were never written, and be able to continue.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coord.storage.reading import Recovered
from coord.storage.records import WriteBatch
from coord.storage.wal import open_wal
from tests.support.disks import MemoryDisk, MemoryFile

FOLDER = "wal"
SEGMENT_BYTES = 700
#: Unit in which a torn write keeps or loses data. Real pages are larger; smaller ones tear records in more places.
PAGE_BYTES = 16

Entries = list[tuple[int, int, bytes]]


class RecordingDisk(MemoryDisk):
    """Records every call that changes the disk: (name, path, other path or offset, data)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str, object, bytes]] = []

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        file = super().open(path, create=create)
        if create:
            self.calls.append(("create", path, 0, b""))
        return RecordingFile(self, path, file)

    def remove(self, path: str) -> None:
        super().remove(path)
        self.calls.append(("remove", path, 0, b""))

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.calls.append(("rename", old, new, b""))

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.calls.append(("sync_folder", path, 0, b""))


class RecordingFile(MemoryFile):
    """One open file of a RecordingDisk."""

    def __init__(self, disk: RecordingDisk, path: str, file: MemoryFile) -> None:
        super().__init__(disk, file.content)
        self._recording = disk
        self._path = path
        self._file = file

    def write_at(self, offset: int, data: bytes) -> None:
        self._file.write_at(offset, data)
        self._recording.calls.append(("write", self._path, offset, data))

    def sync(self) -> None:
        self._file.sync()
        self._recording.calls.append(("sync", self._path, 0, b""))

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        self._recording.calls.append(("truncate", self._path, size, b""))


def recorded() -> tuple[RecordingDisk, list[tuple[int, Entries, tuple[int, int]]]]:
    """Return a run of the log, and which entries and hard state were acknowledged after which call."""
    disk = RecordingDisk()
    wal, _ = open_wal(disk, FOLDER, segment_bytes=SEGMENT_BYTES)
    held: Entries = []
    hard_state = (0, 0)
    acknowledged: list[tuple[int, Entries, tuple[int, int]]] = [(len(disk.calls), [], hard_state)]

    def write(*entries: tuple[int, int, bytes], state: tuple[int, int] | None = None) -> None:
        nonlocal held, hard_state
        batch = WriteBatch()
        if state is not None:
            batch.set_hard_state(*state)
            hard_state = state
        for term, index, data in entries:
            batch.add_entry(term, index, 0, data)
            held = [entry for entry in held if entry[1] < index] + [(term, index, data)]
        wal.write([batch])
        acknowledged.append((len(disk.calls), list(held), hard_state))

    write(state=(1, 2))
    for index in range(1, 13):
        write((1, index, b"entry %d " % index * (index % 4)))
    write((2, 11, b"overwritten"), (2, 12, b""), state=(2, 0))
    write((2, 13, b"x" * 300), (2, 14, bytes(40)))
    wal.prune(4)
    acknowledged.append((len(disk.calls), list(held), hard_state))
    for index in range(15, 20):
        write((2, index, b"RKW1 as data, %d" % index), state=(2, index % 3))
    wal.close()
    return disk, acknowledged


RUN, ACKNOWLEDGED = recorded()


def everything(disk: MemoryDisk, calls: list[tuple[str, str, object, bytes]]) -> None:
    """Apply all writes: the process dies and the system lives."""
    for call in calls:
        perform(disk, call)


def only_synced(disk: MemoryDisk, calls: list[tuple[str, str, object, bytes]]) -> None:
    """Apply synced writes only: the power fails."""
    everything(disk, calls)
    after = disk.power_cut()
    disk.files = after.files
    disk.durable = after.durable


def torn(disk: MemoryDisk, calls: list[tuple[str, str, object, bytes]]) -> None:
    """Apply every other page of the writes since a file's last sync: the power fails."""
    everything(disk, calls)
    for file in disk.files.values():
        content = file.content
        for at in range(0, len(content), PAGE_BYTES):
            old = file.synced[at : at + PAGE_BYTES]
            if at // PAGE_BYTES % 2 and content[at : at + PAGE_BYTES] != old:
                content[at : at + PAGE_BYTES] = old + bytes(len(content[at : at + PAGE_BYTES]) - len(old))
    only_named = {name: file for name, file in disk.files.items() if name in disk.durable}
    disk.files = only_named


def perform(disk: MemoryDisk, call: tuple[str, str, object, bytes]) -> None:
    """Repeat one recorded call."""
    name, path, number, data = call
    if name == "create":
        disk.open(path, create=True)
    elif name == "remove":
        disk.remove(path)
    elif name == "rename":
        disk.rename(path, str(number))
    elif name == "sync_folder":
        disk.sync_folder(path)
    elif name == "sync":
        disk.files[path].sync()
    else:
        assert isinstance(number, int)
        if name == "write":
            disk.files[path].write_at(number, data)
        else:
            disk.files[path].truncate(number)


def crashes() -> list[tuple[int, int]]:
    """Yield (calls done, bytes done of the next one): before each call, and within each write at every byte of it."""
    found = []
    for position, (name, _, _, data) in enumerate(RUN.calls):
        # Zeros written ahead are equal at every byte: try their ends and one byte in between.
        size = len(data) if data.strip(b"\0") else min(len(data), 2)
        found += [(position, cut) for cut in range(size + 1 if name == "write" else 1)]
    return [*found, (len(RUN.calls), 0)]


def must_hold(calls_done: int) -> tuple[Entries, tuple[int, int]]:
    """Return the acknowledged state at that time."""
    return next(
        ((entries, state) for when, entries, state in reversed(ACKNOWLEDGED) if when <= calls_done), ([], (0, 0))
    )


def may_hold(calls_done: int) -> tuple[Entries, tuple[int, int]]:
    """Return the state after the write in progress."""
    return next(((entries, state) for when, entries, state in ACKNOWLEDGED if when > calls_done), must_hold(calls_done))


def shape(recovered: Recovered) -> Entries:
    """Return the entries as tuples."""
    return [(item.term, item.index, item.data) for item in recovered.entries]


@pytest.mark.parametrize("survives", [everything, only_synced, torn])
def test_crash_at_every_byte_loses_nothing_acknowledged(
    survives: Callable[[MemoryDisk, list[tuple[str, str, object, bytes]]], None],
) -> None:
    """The log has the state before or after the write in progress, and no other; and it accepts new writes."""
    at_every_byte = crashes()
    assert len(at_every_byte) > 1500
    for calls_done, cut in at_every_byte:
        disk = MemoryDisk()
        calls = RUN.calls[:calls_done]
        if cut:
            name, path, offset, data = RUN.calls[calls_done]
            calls = [*calls, (name, path, offset, data[:cut])]
        survives(disk, calls)
        where = f"crash in call {calls_done} at byte {cut}"
        wal, recovered = open_wal(disk, FOLDER, segment_bytes=SEGMENT_BYTES)
        before, after = must_hold(calls_done), may_hold(calls_done)
        found = (shape(recovered), (recovered.term, recovered.vote))
        allowed = [behind(entries, recovered.base_index) for entries, _ in (before, after)]
        assert found[0] in allowed, where
        assert found[1] in (before[1], after[1]), where
        assert recovered.base_index <= 4, where
        last = recovered.last_index()
        more = WriteBatch()
        more.add_entry(9, last + 1, 0, b"goes on")
        wal.write([more])
        wal.close()
        again = open_wal(disk.power_cut(), FOLDER, segment_bytes=SEGMENT_BYTES)[1]
        assert shape(again) == [*found[0], (9, last + 1, b"goes on")], where


def behind(entries: Entries, base_index: int) -> Entries:
    """Return the entries after the pruned ones."""
    return [entry for entry in entries if entry[1] > base_index]
