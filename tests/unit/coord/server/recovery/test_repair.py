"""Damage to durable data: the node recovers it from the other nodes where that is safe, otherwise it does not start."""

from __future__ import annotations

import errno

import pytest

from coord.errors import OK, CorruptRecord, StorageError
from coord.raft.membership import Configuration
from coord.server.membership.joining import JOINING_FILE
from coord.server.recovery.repair import ASIDE, IrreparableError, recover_or_repair
from coord.storage.records import MAGIC, WriteBatch
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.storage.wal import open_wal
from coord.tree.machine import StateMachine
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.disks import MemoryDisk
from tests.support.store_nodes import Client, SeededRng, StoreNodes

SEGMENT_BYTES = 400


class PowerCut(BaseException):
    """Raised when the machine loses power."""


def log_of(entries: int, *snapshots: int, voters: tuple[int, ...] = (1, 2, 3)) -> MemoryDisk:
    """Make a directory with a log of several segments and whole snapshots at these indexes."""
    disk = MemoryDisk()
    wal, _ = open_wal(disk, "wal", segment_bytes=SEGMENT_BYTES)
    for index in range(1, entries + 1):
        batch = WriteBatch()
        batch.set_hard_state(3, 2)
        batch.add_entry(3, index, 1, b"entry %d" % index)
        wal.write([batch])
    folder = Snapshots(disk, "snap")
    for index in snapshots:
        meta = SnapshotMeta(index, 3, Configuration(list(voters)).encode())
        folder.write(meta, StateMachine().snapshot_chunks())
    return disk


def flip(disk: MemoryDisk, path: str, offset: int) -> None:
    """Flip one bit of the medium."""
    file = disk.files[path]
    file.content[offset] ^= 4
    file.synced = bytes(file.content)


def middle(disk: MemoryDisk) -> tuple[str, int]:
    """Return the first segment, and an offset within its second record."""
    path = sorted(name for name in disk.files if name.startswith("wal/"))[0]
    return path, bytes(disk.files[path].content).find(b"RKW1", 4) + 30


def test_log_damaged_in_the_middle_is_set_aside_and_the_node_joins() -> None:
    """The node is marked as joining, no file is removed, and the snapshot stays."""
    disk = log_of(20, 5)
    path, offset = middle(disk)
    flip(disk, path, offset)
    before = {name: bytes(file.content) for name, file in disk.files.items()}
    found = recover_or_repair(disk, 1, [1, 2, 3], SeededRng(1))
    assert (found.position.index, found.core.log.last) == (5, 5)
    assert JOINING_FILE in disk.names("")
    moved = {f"wal/{name}": bytes(disk.files[f"{ASIDE}/{name}"].content) for name in disk.names(ASIDE)}
    assert moved == {name: content for name, content in before.items() if name.startswith("wal/")}


@pytest.mark.parametrize("voters", [(1,), (1, 2)])
def test_too_few_voters_to_repair_from(voters: tuple[int, ...]) -> None:
    """The error names file, byte, reason and remedy; no file is changed."""
    disk = log_of(20)
    path, offset = middle(disk)
    flip(disk, path, offset)
    names = sorted(disk.files)
    with pytest.raises(IrreparableError) as raised:
        recover_or_repair(disk, 1, list(voters), SeededRng(1))
    assert isinstance(raised.value.error, CorruptRecord)
    assert f"mem:{path}: record at byte " in str(raised.value)
    assert "backup" in str(raised.value)
    assert sorted(disk.files) == names


def test_members_are_those_of_the_newest_snapshot() -> None:
    """The initial members do not count: of the present three, two others can send the state."""
    disk = log_of(20, 5, voters=(1, 2, 3))
    flip(disk, *middle(disk))
    assert recover_or_repair(disk, 1, [1], SeededRng(1)).position.index == 5


def test_second_damage_is_refused_until_somebody_has_looked() -> None:
    """A second repair would overwrite the first one's files, and the disk cannot be trusted."""
    disk = log_of(20)
    flip(disk, *middle(disk))
    found = recover_or_repair(disk, 1, [1, 2, 3], SeededRng(1), segment_bytes=SEGMENT_BYTES)
    for index in range(1, 10):
        batch = WriteBatch()
        batch.add_entry(4, index, 1, b"new %d" % index)
        found.wal.write([batch])
    disk.remove(JOINING_FILE)  # the node had caught up
    flip(disk, *middle(disk))
    with pytest.raises(IrreparableError, match="repaired before"):
        recover_or_repair(disk, 1, [1, 2, 3], SeededRng(1))
    for name in disk.names(ASIDE):
        disk.remove(f"{ASIDE}/{name}")
    assert recover_or_repair(disk, 1, [1, 2, 3], SeededRng(1)).core.log.last == 0


def test_power_cut_at_every_call_of_a_repair() -> None:
    """Either the damage is found again, or the node is marked as one without its memory: it never just continues."""
    for cut in range(200):
        disk = log_of(20, 5)
        flip(disk, *middle(disk))
        calls = 0

        def count(name: str, cut: int = cut) -> None:
            nonlocal calls
            calls += 1
            if calls > cut:
                raise PowerCut(name)

        disk.on_call = count
        try:
            recover_or_repair(disk, 1, [1, 2, 3], SeededRng(1))
        except PowerCut:
            pass
        else:
            break
        for after in (disk.power_cut(), disk.copy()):
            found = recover_or_repair(after, 1, [1, 2, 3], SeededRng(1))
            assert found.core.log.last == 5
            assert JOINING_FILE in after.names("")
    assert 5 < cut < 199


def test_damaged_snapshot_counts_no_more_and_the_log_stands_in() -> None:
    """The older snapshot and the log after it are used; retention does not count the damaged one as one of the two."""
    disk = log_of(20, 5, 10)
    newest = Snapshots(disk, "snap").names()[0]
    flip(disk, f"snap/{newest}", 40)
    found = recover_or_repair(disk, 1, [1, 2, 3], SeededRng(1))
    assert found.position.index == 5
    assert found.core.log.last == 20
    assert JOINING_FILE not in disk.names("")
    assert found.snapshots.log_floor() == 5
    assert len(found.snapshots.names()) == 1
    assert f"{newest}.damaged" in disk.names("snap")


def test_damaged_snapshot_without_the_log_behind_it_is_brought_by_the_others() -> None:
    """All snapshots are lost, and the log begins later: the node alone cannot close this gap."""
    disk = log_of(20, 10)
    wal, _ = open_wal(disk, "wal", segment_bytes=SEGMENT_BYTES)
    assert wal.prune(10) > 0
    flip(disk, f"snap/{Snapshots(disk, 'snap').names()[0]}", 40)
    alone = disk.copy()
    found = recover_or_repair(disk, 1, [1, 2, 3], SeededRng(1))
    assert (found.position.index, found.core.log.last) == (0, 0)
    assert JOINING_FILE in disk.names("")
    with pytest.raises(IrreparableError, match="the log begins after entry"):
        recover_or_repair(alone, 1, [1], SeededRng(1))


def test_file_that_cannot_be_read_is_named_and_nothing_is_moved() -> None:
    """EIO may be temporary, so the log is not given up."""
    disk = log_of(5)
    real = disk.open

    def broken(path: str, *, create: bool = False) -> object:
        file = real(path, create=create)
        if path.startswith("wal/"):
            file.read_at = lambda offset, size: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error"))
        return file

    disk.open = broken
    with pytest.raises(StorageError, match=r"mem:wal/0000000000000001\.log: cannot be read: Input/output error"):
        recover_or_repair(disk, 1, [1, 2, 3], SeededRng(1))
    assert JOINING_FILE not in disk.names("")


# --- whole nodes ------------------------------------------------------------------------------------------------------


def create(client: Client, xid: int, path: bytes) -> None:
    """Send a create request."""
    client.request(xid, op.OP_CREATE, records.encode_create(CreateRequest(op.OP_CREATE, path, b"v", OPEN_ACL, 0)))


def test_node_with_a_damaged_log_comes_back_with_everything() -> None:
    """Crash, flip, start: it joins, catches up, votes, and all replicas are equal."""
    nodes = StoreNodes(3)
    client = nodes.client(nodes.leader(), timeout_ms=10_000)
    for xid in range(1, 30):
        create(client, xid, b"/n%d" % xid)
        nodes.run(1)
    victim = nodes.follower().settings.node_id
    nodes.crash(victim)
    flip(nodes.disks[victim], *middle(nodes.disks[victim]))
    nodes.start(victim)
    assert nodes.nodes[victim].joining.is_joining
    assert nodes.nodes[victim].core.abstains()
    nodes.run(40)
    assert not nodes.nodes[victim].joining.is_joining
    assert not nodes.nodes[victim].core.abstains()
    assert len({node.machine.digest() for node in nodes.nodes.values()}) == 1
    assert all(reply[2] == OK for reply in client.replies())


@pytest.mark.parametrize("loss", ["flip", "flip at the end", "wipe"])
@pytest.mark.parametrize("seed", range(6))
def test_what_only_the_damaged_node_and_the_leader_held_survives(loss: str, seed: int) -> None:
    """The damaged node has the same entries as the third one, and stands for election itself: it must not win.

    After the flip it keeps a snapshot at the end of the third one's log: only its own abstention keeps it from leading.
    A flip in the last record would look like a write that was never acknowledged, without the seal.
    """
    nodes = StoreNodes(3, seed=seed)
    leader = nodes.leader()
    first = leader.settings.node_id
    lagging, victim = (i for i in nodes.ids() if i != first)
    client = nodes.client(leader, timeout_ms=10_000)
    create(client, 1, b"/common")
    nodes.run(2)
    nodes.nodes[victim].take_snapshot()
    nodes.cut(first, lagging)
    nodes.cut(victim, lagging)
    create(client, 2, b"/precious")
    nodes.run(2)
    assert client.xids() == [1, 2]
    killed = nodes.disks[victim].copy()
    nodes.crash(victim)
    if loss == "flip":
        flip(nodes.disks[victim], *middle(nodes.disks[victim]))
    elif loss == "flip at the end":
        nodes.disks[victim] = killed
        path = f"wal/{killed.names('wal')[-1]}"
        flip(killed, path, killed.files[path].content.rfind(MAGIC) + 30)
    else:
        nodes.disks[victim] = MemoryDisk()
    nodes.crash(first)
    nodes.start(victim)
    nodes.run(300)
    assert all(node.core.leadership is None for node in nodes.nodes.values())
    nodes.start(first)
    nodes.run(100)
    assert all(b"/precious" in node.machine.tree.nodes for node in nodes.nodes.values())


@pytest.mark.parametrize("seed", range(4))
def test_idle_store_lets_a_repaired_node_vote_again(seed: int) -> None:
    """It has caught up when it has all entries that the leader has committed, even without further writes."""
    nodes = StoreNodes(3, seed=seed, snapshot_entries=10, keep_entries=2)
    client = nodes.client(nodes.leader(), timeout_ms=1000)
    for xid in range(1, 40):
        create(client, xid, b"/n%d" % xid)
        nodes.run(1)
    nodes.run(60)  # The session has expired: no further writes follow.
    victim = nodes.follower().settings.node_id
    nodes.crash(victim)
    nodes.disks[victim] = MemoryDisk()
    nodes.start(victim)
    nodes.run(60)
    assert not nodes.nodes[victim].joining.is_joining
