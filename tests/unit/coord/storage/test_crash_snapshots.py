"""Snapshots and the log together, after a crash at every disk call: every acknowledged entry is in one of them.

A run writes entries and snapshots, removes old ones, and prunes the log up to the oldest snapshot kept. The disk is
rebuilt as after a crash at every call, and once more with the newest snapshot damaged: for this case the older snapshot
and the longer log are kept. Each time a node recovers, applies its log, and must reach the same state.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coord.raft.membership import Configuration
from coord.server.recovery.startup import recover
from coord.storage.records import WriteBatch
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.storage.wal import open_wal
from coord.tree.command import encode_batch, encode_command, encode_create_session
from coord.tree.machine import StateMachine
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.disks import MemoryDisk
from tests.support.store_nodes import SeededRng
from tests.unit.coord.storage.test_crash import RecordingDisk, everything, only_synced, perform, torn

SEGMENT_BYTES = 600
VOTERS = [1, 2, 3]
TIME_MS = 1_700_000_000_000
#: (entries so far) at which a snapshot is taken.
SNAPSHOTS_AT = (5, 9, 14, 20)
ENTRIES = 24

Survives = Callable[[MemoryDisk, list[tuple[str, str, object, bytes]]], None]


def group(index: int) -> bytes:
    """Return entry `index`: a session first, then a znode each."""
    if index == 1:
        opening = encode_create_session(4000, bytes(16), b"::1")
        return encode_batch(TIME_MS, [encode_command(1, 9, 0, op.OP_CREATE_SESSION, opening)])
    body = records.encode_create(CreateRequest(op.OP_CREATE, b"/n%d" % index, b"%d" % index * 5, OPEN_ACL, 0))
    return encode_batch(TIME_MS + index, [encode_command(1, 1, index, op.OP_CREATE, body)])


def recorded() -> tuple[RecordingDisk, list[tuple[int, int]], list[int]]:
    """Return a run, (calls done, entries acknowledged by then), and the digest after each entry."""
    disk = RecordingDisk()
    snapshots = Snapshots(disk, "snap")
    wal, _ = open_wal(disk, "wal", segment_bytes=SEGMENT_BYTES)
    machine = StateMachine()
    digests = [machine.digest()]
    acknowledged = [(len(disk.calls), 0)]
    for index in range(1, ENTRIES + 1):
        batch = WriteBatch()
        batch.set_hard_state(1, 2)
        batch.add_entry(1, index, 0, group(index))
        wal.write([batch])
        acknowledged.append((len(disk.calls), index))
        machine.apply_batch(group(index))
        digests.append(machine.digest())
        if index in SNAPSHOTS_AT:
            meta = SnapshotMeta(index, 1, Configuration(VOTERS).encode(), machine.last_zxid, machine.digest())
            snapshots.write(meta, machine.snapshot_chunks())
            snapshots.retain()
            wal.prune(snapshots.log_floor())
    wal.close()
    return disk, acknowledged, digests


RUN, ACKNOWLEDGED, DIGESTS = recorded()


def crashed(calls_done: int, cut: int, survives: Survives) -> MemoryDisk:
    """Return the disk after that many calls and that many bytes of the next one."""
    disk = MemoryDisk()
    calls = RUN.calls[:calls_done]
    if cut:
        name, path, offset, data = RUN.calls[calls_done]
        calls = [*calls, (name, path, offset, data[:cut])]
    survives(disk, calls)
    return disk


def places() -> list[tuple[int, int]]:
    """Yield a crash before each call, and in the middle of each write."""
    found = []
    for position, (name, _, _, data) in enumerate(RUN.calls):
        found.append((position, 0))
        if name == "write" and data.strip(b"\0"):
            found += [(position, len(data) // 3), (position, len(data) - 1)]
    return [*found, (len(RUN.calls), 0)]


def check_recovered(disk: MemoryDisk, calls_done: int, where: str) -> None:
    """Check that a started node has all acknowledged entries, at most the one in progress beyond them, and the matching
    state."""
    found = recover(disk, 1, VOTERS, SeededRng(1), segment_bytes=SEGMENT_BYTES)
    must = max(index for when, index in ACKNOWLEDGED if when <= calls_done)
    assert must <= found.core.log.last <= must + 1, where
    machine = found.machine
    assert machine.digest() == DIGESTS[found.position.index], where
    for entry in found.core.log.entries:
        if entry.index > found.position.index:
            machine.apply_batch(entry.data)
    assert machine.digest() == DIGESTS[found.core.log.last], where


@pytest.mark.parametrize("survives", [everything, only_synced, torn])
def test_crash_at_every_call_leaves_snapshot_and_log_that_fit(survives: Survives) -> None:
    """Also while a snapshot gets its name, old ones are removed, and the log is pruned."""
    assert {"rename", "remove"} <= {name for name, *_ in RUN.calls}
    for calls_done, cut in places():
        if calls_done >= ACKNOWLEDGED[0][0]:
            check_recovered(crashed(calls_done, cut, survives), calls_done, f"crash in call {calls_done} at byte {cut}")


@pytest.mark.parametrize("survives", [everything, only_synced])
def test_the_older_snapshot_and_the_log_behind_it_lead_to_the_same(survives: Survives) -> None:
    """If the newest snapshot turns out to be damaged after a crash at any time, nothing is lost."""
    damaged = 0
    for calls_done, _ in places():
        disk = crashed(calls_done, 0, survives)
        names = sorted(name for name in disk.files if name.endswith(".snap"))
        if len(names) < 2:
            continue
        disk.files[names[-1]].content[40] ^= 1
        damaged += 1
        check_recovered(disk, calls_done, f"crash in call {calls_done}, {names[-1]} damaged")
    assert damaged > 50


def test_recording_can_be_played_again() -> None:
    """The disk at the end equals the disk of the run."""
    disk = MemoryDisk()
    for call in RUN.calls:
        perform(disk, call)
    assert {name: bytes(file.content) for name, file in disk.files.items()} == {
        name: bytes(file.content) for name, file in RUN.files.items()
    }
