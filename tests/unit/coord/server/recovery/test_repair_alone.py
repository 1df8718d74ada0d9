"""Damage to the log of a store of one node: the node starts only if its snapshot covers the damage."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from twisted.logger import LogEvent, formatEvent, globalLogPublisher

from coord.env_os import OsDisk
from coord.offline.directory import StoppedDirectory
from coord.offline.verify import check
from coord.raft.membership import Configuration
from coord.raft.messages import CONFIG
from coord.server.membership.joining import JOINING_FILE
from coord.server.recovery.repair import ASIDE, IrreparableError, recover_or_repair
from coord.server.recovery.startup import Recovery, recover
from coord.storage.reading import SegmentReader
from coord.storage.records import LogItem, WriteBatch, encode_header, encode_record
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.storage.wal import open_wal
from coord.tree.machine import StateMachine
from tests.support.disks import MemoryDisk
from tests.support.store_nodes import SeededRng
from tests.unit.coord.offline.test_offline import history, make

SEGMENT_BYTES = 400
ENTRIES = 20
SNAPSHOT = 14
#: Terms by the entry before which the node was elected again. The new term is in a record of its own.
ELECTIONS = {1: 3, 9: 5, 13: 6, SNAPSHOT + 1: 8}


class PowerCut(BaseException):
    """Raised when the machine loses power."""


def term_of(index: int) -> int:
    """Return the term of an entry."""
    return max(term for first, term in ELECTIONS.items() if first <= index)


def log_of_one(
    *, snapshot: int = SNAPSHOT, members: Configuration | None = None, segment_bytes: int = SEGMENT_BYTES
) -> MemoryDisk:
    """Make a directory with several segments and two snapshots of a store that consists of node 1."""
    disk = MemoryDisk()
    wal, _ = open_wal(disk, "wal", segment_bytes=segment_bytes)
    for index in range(1, ENTRIES + 1):
        if index in ELECTIONS:
            write_hard_state = WriteBatch()
            write_hard_state.set_hard_state(ELECTIONS[index], 1)
            wal.write([write_hard_state])
        batch = WriteBatch()
        batch.add_entry(term_of(index), index, 1, b"entry %d" % index)
        wal.write([batch])
    folder = Snapshots(disk, "snap")
    config = (members or Configuration([1])).encode()
    for at in (4, snapshot):
        folder.write(SnapshotMeta(at, term_of(at), config), StateMachine().snapshot_chunks())
    return disk.copy()


def records(disk: MemoryDisk) -> list[tuple[str, int, int, int]]:
    """Return path, offset and size of every record of the log, and the index of the last entry up to it."""
    found = []
    last = sequence = 0
    names = disk.names("wal")
    for name in names:
        reader = SegmentReader(disk, f"wal/{name}")
        for record in reader.records(sequence, is_first=name == names[0], is_last=name == names[-1]):
            last = max([last, *(item.index for item in record.items if isinstance(item, LogItem))])
            found.append((f"wal/{name}", record.offset, record.size, last))
        sequence = reader.sequence
    return found


def flip(disk: MemoryDisk, path: str, offset: int) -> None:
    """Change one bit of the medium."""
    file = disk.files[path]
    file.content[offset] ^= 4
    file.synced = bytes(file.content)


def started(disk: MemoryDisk) -> Recovery:
    """Start node 1 of a store whose only first member was node 1."""
    return recover_or_repair(disk, 1, [1], SeededRng(1), segment_bytes=SEGMENT_BYTES)


def state(found: Recovery) -> tuple[object, ...]:
    """Return the data that a start must not lose."""
    tail = [(e.term, e.index, e.kind, e.data) for e in found.core.log.entries if e.index > found.position.index]
    return found.position.index, found.core.term, found.core.vote, tail


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    """Return every file."""
    return {name: bytes(file.content) for name, file in disk.files.items()}


def starts_clean(disk: MemoryDisk, expected: tuple[object, ...]) -> None:
    """Check that a second start finds nothing to repair, and that the log accepts entries in between."""
    found = started(disk)
    assert state(found) == expected
    assert JOINING_FILE not in disk.names("")
    aside = disk.names(ASIDE)
    batch = WriteBatch()
    batch.add_entry(found.core.term, ENTRIES + 1, 1, b"new")
    found.wal.write([batch])
    for after in (disk.power_cut(), disk.copy()):
        again = recover(after, 1, [1], SeededRng(1), segment_bytes=SEGMENT_BYTES)
        assert again.core.log.last == ENTRIES + 1
        assert (again.core.term, again.core.vote) == (found.core.term, found.core.vote)
        assert after.names(ASIDE) == aside


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 1 << 20])
@pytest.mark.parametrize("snapshot", [SNAPSHOT, ENTRIES])
def test_a_flipped_bit_in_every_record(segment_bytes: int, snapshot: int) -> None:
    """Covered: the same term, vote and entries, and the damaged file is kept. Not covered: no start, no change."""
    clean = log_of_one(snapshot=snapshot, segment_bytes=segment_bytes)
    expected = state(started(clean.copy()))
    found = records(clean)
    assert (len({path for path, *_ in found}) > 3) == (segment_bytes == SEGMENT_BYTES)
    outcomes = set()
    for position, (path, offset, size, last) in enumerate(found):
        for at in range(offset, offset + size, 5):
            disk = clean.copy()
            flip(disk, path, at)
            before = contents(disk)
            is_covered = last <= snapshot and position < len(found) - 1
            outcomes.add(is_covered)
            if is_covered:
                starts_clean(disk, expected)
                assert bytes(disk.files[path.replace("wal", ASIDE)].content) == before[path]
            else:
                with pytest.raises(IrreparableError, match="restore a backup"):
                    started(disk)
                assert contents(disk) == before
    assert outcomes == {True, False}


def test_damage_in_several_places() -> None:
    """Only the log after the last damage counts; a single damaged range beyond the snapshot prevents the start."""
    clean = log_of_one()
    expected = state(started(clean.copy()))
    found = records(clean)
    for i, first in enumerate(found):
        for second in found[i + 1 :]:
            disk = clean.copy()
            for path, offset, size, _ in (first, second):
                flip(disk, path, offset + size // 2)
            if second[3] <= SNAPSHOT:
                starts_clean(disk, expected)
            else:
                with pytest.raises(IrreparableError):
                    started(disk)


def test_nothing_behind_the_damage_says_what_it_held() -> None:
    """A hard state says nothing about entries: the damaged record may have had one after the snapshot."""
    disk = log_of_one(snapshot=ENTRIES)
    wal, _ = open_wal(disk, "wal", segment_bytes=1 << 20)
    batch = WriteBatch()
    batch.set_hard_state(9, 1)
    wal.write([batch])
    path, offset, size, _ = records(disk)[-2]
    flip(disk, path, offset + size // 2)
    with pytest.raises(IrreparableError):
        started(disk)


@pytest.mark.parametrize("is_flipped", [False, True])
def test_missing_segment_is_no_flipped_bit(is_flipped: bool) -> None:
    """A file was removed: the node does not guess its content, not even if an earlier bit is flipped."""
    disk = log_of_one(snapshot=ENTRIES)
    removed = f"wal/{disk.names('wal')[2]}"
    found = records(disk)
    path, offset, size, _ = found[[record[0] for record in found].index(removed) - 1]
    if is_flipped:
        flip(disk, path, offset + size // 2)
    disk.remove(removed)
    with pytest.raises(IrreparableError):
        started(disk)


def test_a_log_that_contradicts_the_snapshot() -> None:
    """The log has another term at the snapshot's index, so the snapshot says nothing about this log's entries."""
    disk = log_of_one()
    meta = SnapshotMeta(SNAPSHOT, term_of(SNAPSHOT) + 1, Configuration([1]).encode())
    Snapshots(disk, "snap").write(meta, StateMachine().snapshot_chunks())
    path, offset, _, _ = records(disk)[2]
    flip(disk, path, offset + 30)
    with pytest.raises(IrreparableError):
        started(disk)


def test_what_was_skipped_is_logged() -> None:
    """File, bytes and entries."""
    lines: list[str] = []

    def keep(event: LogEvent) -> None:
        lines.append(formatEvent(event))

    disk = log_of_one()
    path, offset, size, last = next(r for r in records(disk) if r[3] == 6)
    flip(disk, path, offset + 30)
    globalLogPublisher.addObserver(keep)
    try:
        started(disk)
    finally:
        globalLogPublisher.removeObserver(keep)
    assert any(
        f"mem:{path}: bytes {offset} to {offset + size - 1} are damaged (they held entries {last} to {last} at most)"
        in line
        for line in lines
    )


@pytest.mark.parametrize("members", [Configuration([1, 2]), Configuration([1], [], [2]), Configuration([2])])
def test_a_store_of_more_members_repairs_otherwise(members: Configuration) -> None:
    """Votes and acknowledgments of a member matter to the other members."""
    disk = log_of_one(members=members)
    path, offset, _, _ = records(disk)[2]
    flip(disk, path, offset + 30)
    try:
        recover_or_repair(disk, 1, members, SeededRng(1))
    except IrreparableError:
        assert ASIDE not in disk.names("")
    else:
        assert JOINING_FILE in disk.names("")


def test_a_member_added_behind_the_snapshot() -> None:
    """The node may have sent another member acknowledgments for the damaged entries."""
    disk = log_of_one()
    wal, _ = open_wal(disk, "wal", segment_bytes=SEGMENT_BYTES)
    batch = WriteBatch()
    batch.add_entry(8, ENTRIES + 1, CONFIG, Configuration([1, 2]).encode())
    wal.write([batch])
    path, offset, _, _ = records(disk)[2]
    flip(disk, path, offset + 30)
    with pytest.raises(IrreparableError):
        started(disk)


def test_data_that_looks_like_a_record() -> None:
    """A znode may contain a piece of a log: it must not be taken for the next record."""
    disk = MemoryDisk()
    wal, _ = open_wal(disk, "wal")
    for index in range(1, 9):
        forged = WriteBatch()
        forged.set_hard_state(99, 7)
        forged.add_entry(99, 1, 1, b"forged")
        inner = b"".join(encode_record(n, forged.parts) for n in range(index, index + 4))
        batch = WriteBatch()
        batch.set_hard_state(3, 1)
        batch.add_entry(3, index, 1, inner + encode_record(9, [encode_header(1, 99, 7, 0, 0)]))
        wal.write([batch])
    Snapshots(disk, "snap").write(SnapshotMeta(6, 3, Configuration([1]).encode()), StateMachine().snapshot_chunks())
    clean = disk.copy()
    expected = state(started(clean.copy()))
    for path, offset, size, last in records(clean):
        if last <= 6:
            for at in (offset + 9, offset + 30, offset + size - 1):
                disk = clean.copy()
                flip(disk, path, at)
                assert state(started(disk)) == expected
            # The length is damaged: the data may look like records, and then the node does not start.
            disk = clean.copy()
            flip(disk, path, offset + 6)
            with contextlib.suppress(IrreparableError):
                assert state(started(disk)) == expected


def test_power_cut_at_every_call() -> None:
    """Either the damage is found again or the log is whole: nothing is lost and every start succeeds."""
    clean = log_of_one()
    expected = state(started(clean.copy()))
    for path, offset, _, _ in (records(clean)[1], records(clean)[9], records(clean)[12]):
        for cut in range(200):
            disk = clean.copy()
            flip(disk, path, offset + 30)
            calls = 0

            def count(name: str, cut: int = cut) -> None:
                nonlocal calls
                calls += 1
                if calls > cut:
                    raise PowerCut(name)

            disk.on_call = count
            try:
                started(disk)
            except PowerCut:
                for after in (disk.power_cut(), disk.copy()):
                    assert state(started(after)) == expected
            else:
                break
        assert 5 < cut < 199


def test_verify_agrees_with_the_start(tmp_path: Path) -> None:
    """`rk coord verify` calls a directory sound if the node starts on it, and both end at the same entry."""
    clean = make(tmp_path / "clean", history(14), (5, 9), voters=(1,))
    outcomes = set()
    for file in sorted(clean.glob("wal/*.log")):
        content = file.read_bytes()
        for offset in range(0, len(content.rstrip(b"\0")), 41):
            path = tmp_path / "n"
            shutil.copytree(clean, path)
            changed = content[:offset] + bytes([content[offset] ^ 0x40]) + content[offset + 1 :]
            (path / "wal" / file.name).write_bytes(changed)
            with StoppedDirectory(path) as directory:
                report = check(directory)
            try:
                found = recover_or_repair(OsDisk(path), 1, [1], SeededRng(1))
            except IrreparableError:
                assert not report.is_sound()
            else:
                assert report.is_sound(), report.damage
                assert report.index == found.core.log.last == 14
                assert (report.log.term, report.log.vote) == (found.core.term, found.core.vote)
                if ASIDE in OsDisk(path).names(""):
                    assert any("the snapshot at 9 covers these records" in note for note in report.notes)
                    with StoppedDirectory(path) as directory:
                        assert check(directory).is_sound()
                    outcomes.add("skipped")
            outcomes.add(report.is_sound())
            shutil.rmtree(path)
    assert outcomes == {True, False, "skipped"}
