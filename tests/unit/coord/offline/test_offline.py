"""The tools for stopped directories: sound ones, damage, differences between two nodes; backups."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from coord.env_os import OsDisk
from coord.errors import ConfigError, CorruptRecord, ForeignDirectory
from coord.offline.backup import ZXID_STEP, BackupReader, NewNode, is_backup, make_directories, renewed
from coord.offline.describe import command_line, entry_fields, entry_line
from coord.offline.directory import StoppedDirectory
from coord.offline.verify import Comparison, DirectoryReport, check, compare
from coord.raft.membership import Configuration
from coord.server.recovery.meta import encode_meta
from coord.server.recovery.startup import recover
from coord.storage.backup import BackupManifest, backup_pieces
from coord.storage.extent import NAME as EXTENT
from coord.storage.records import SEAL_MAGIC, LogItem, WriteBatch
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.storage.wal import open_wal
from coord.tree.command import encode_batch, encode_command, encode_create_session, encode_identities
from coord.tree.machine import StateMachine
from coord.wire import records as r
from tests.support.store_nodes import SeededRng

CONFIG = Configuration([1, 2, 3]).encode()
CLUSTER = bytes(range(16))
SESSION = 0x77
TIME_MS = 1_700_000_000_000


def create(path: bytes, data: bytes = b"data", flags: int = 0) -> bytes:
    """Return a create command of the session."""
    body = r.encode_create(r.CreateRequest(r.OP_CREATE, path, data, r.OPEN_ACL, flags))
    return encode_command(SESSION, 1, 5, r.OP_CREATE, body)


def history(length: int, changed: dict[int, bytes] | None = None) -> list[LogItem]:
    """Return entries 1 to `length` of term 1: a session, then a znode each; `changed` replaces some commands."""
    opening = encode_command(SESSION, 9, 0, r.OP_CREATE_SESSION, encode_create_session(4000, bytes(16), b"::1"))
    found = [LogItem(1, 1, 0, encode_batch(TIME_MS, [opening]))]
    for index in range(2, length + 1):
        command = (changed or {}).get(index) or create(b"/n%d" % index)
        found.append(LogItem(1, index, 0, encode_batch(TIME_MS + index, [command])))
    return found


def make(
    path: Path,
    entries: list[LogItem],
    snapshots_at: tuple[int, ...] = (),
    node_id: int = 1,
    voters: tuple[int, ...] = (1, 2, 3),
) -> Path:
    """Make a data directory with these entries, and snapshots of their states."""
    path.mkdir(mode=0o700)
    disk = OsDisk(path)
    (path / "meta.json").write_bytes(encode_meta(node_id, CLUSTER, list(voters)))
    wal, _ = open_wal(disk, "wal", segment_bytes=2000)
    machine = StateMachine()
    folder = Snapshots(disk, "snap")
    for entry in entries:
        batch = WriteBatch()
        batch.set_hard_state(entry.term, 2)
        batch.add_entry(entry.term, entry.index, entry.kind, entry.data)
        wal.write([batch])
        machine.apply_batch(entry.data)
        if entry.index in snapshots_at:
            config = Configuration(list(voters)).encode()
            meta = SnapshotMeta(entry.index, entry.term, config, machine.last_zxid, machine.digest())
            folder.write(meta, machine.snapshot_chunks())
    wal.close()
    return path


def report_of(path: Path) -> DirectoryReport:
    """Return the report of `check`."""
    with StoppedDirectory(path) as directory:
        return check(directory)


def compared(first: Path, second: Path) -> Comparison:
    """Return the report of `compare`."""
    with StoppedDirectory(first) as a, StoppedDirectory(second) as b:
        return compare(check(a), check(b))


# --- one directory ---------------------------------------------------------------------------------------------------


def test_sound_directory_ends_where_a_node_would(tmp_path: Path) -> None:
    """The replay from the oldest state ends in the state of a starting node; no file is changed."""
    path = make(tmp_path / "n", history(40), (10, 30))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    report = report_of(path)
    assert (report.damage, report.notes) == ([], [])
    assert (report.node_id, report.cluster, report.start_index, report.index, report.zxid) == (
        1,
        CLUSTER.hex(),
        0,
        40,
        40,
    )
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    found = recover(OsDisk(path), 1, [1, 2, 3], SeededRng(1))
    for entry in found.core.log.entries:
        if entry.index > found.position.index:
            found.machine.apply_batch(entry.data)
    assert found.machine.digest() == report.digest


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    """The damaged file is named, also for the last record of the log. A flip in the seal alone changes nothing."""
    path = make(tmp_path / "n", history(12), (6,))
    whole = report_of(path)
    files = [*path.glob("wal/*.log"), *path.glob("snap/*.snap")]
    for file in files:
        content = file.read_bytes()
        seal = content.rfind(SEAL_MAGIC) if file.suffix == ".log" else len(content)
        for offset in range(0, len(content.rstrip(b"\0")), 11):
            file.write_bytes(content[:offset] + bytes([content[offset] ^ 0x41]) + content[offset + 1 :])
            report = report_of(path)
            if report.is_sound():
                assert offset >= seal, f"{file} at {offset}"
                assert report.index == whole.index
            else:
                assert any(str(file) in line and "byte" in line for line in report.damage), report.damage
        file.write_bytes(content)
    assert report_of(path).is_sound()


def test_torn_tail_is_a_note(tmp_path: Path) -> None:
    """A record that breaks off without a seal is the result of a power cut, not damage."""
    path = make(tmp_path / "n", history(5))
    [segment] = path.glob("wal/*.log")
    content = segment.read_bytes()
    (path / EXTENT).unlink()  # The extent of a closed log would say that the record was whole.
    segment.write_bytes(content[: content.rfind(SEAL_MAGIC) - 3])
    report = report_of(path)
    assert report.is_sound()
    assert report.index == 4
    assert f"{segment}: torn record at byte" in report.notes[0]


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_shortened_or_missing_log_is_damage(tmp_path: Path, cut: int) -> None:
    """The log itself does not show its former length; the extent does."""
    path = make(tmp_path / "n", history(5))
    [segment] = path.glob("wal/*.log")
    used = segment.read_bytes().rfind(SEAL_MAGIC)
    os.truncate(segment, used - cut)
    [line] = report_of(path).damage
    assert str(segment) in line
    assert f"found {used - cut} bytes" in line
    segment.unlink()
    [line] = report_of(path).damage
    assert "no such file" in line


def test_snapshot_that_the_log_contradicts_is_damage(tmp_path: Path) -> None:
    """The files and checksums are intact, but the contents differ: only the replay finds it."""
    path = make(tmp_path / "n", history(20), (5,))
    machine = StateMachine()
    for entry in history(10, {7: create(b"/other")}):
        machine.apply_batch(entry.data)
    meta = SnapshotMeta(10, 1, CONFIG, machine.last_zxid, machine.digest())
    Snapshots(OsDisk(path), "snap").write(meta, machine.snapshot_chunks())
    [line] = report_of(path).damage
    assert line.startswith(meta.name())
    assert "the log leads to" in line


def test_log_behind_no_snapshot_is_damage(tmp_path: Path) -> None:
    """Missing entries are never invented."""
    path = make(tmp_path / "n", history(40), (30,))
    for segment in sorted(path.glob("wal/*.log"))[:2]:
        segment.unlink()
    assert report_of(path).is_sound()
    [snapshot] = path.glob("snap/*.snap")
    snapshot.unlink()
    assert "no valid snapshot reaches it" in report_of(path).damage[0]


def test_snapshot_without_a_log_is_damage(tmp_path: Path) -> None:
    """The node may have acknowledged later entries and voted; there is no proof of the contrary."""
    path = make(tmp_path / "n", history(8), (8,))
    for segment in path.glob("wal/*.log"):
        segment.unlink()
    report = report_of(path)
    assert not report.is_sound()
    assert "log" in report.damage[0]


def test_running_node_is_refused(tmp_path: Path) -> None:
    """The lock of the running process shows it; several readers may read at the same time."""
    path = make(tmp_path / "n", history(3))
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"4711\n")
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(ForeignDirectory, match="4711"):
        StoppedDirectory(path)
    os.close(fd)
    with StoppedDirectory(path), StoppedDirectory(path):
        pass
    with pytest.raises(ConfigError, match="not the data directory"):
        StoppedDirectory(tmp_path)


# --- two directories -------------------------------------------------------------------------------------------------


def test_equal_histories_agree_up_to_the_shorter(tmp_path: Path) -> None:
    """Their snapshots do not matter."""
    a = make(tmp_path / "a", history(30), (10, 20))
    b = make(tmp_path / "b", history(25), (15,), node_id=2)
    found = compared(a, b)
    assert (found.difference, found.first_index, found.last_index) == ("", 0, 25)
    assert found.notes == ["one log ends at 30, the other at 25"]


def test_first_difference_is_named(tmp_path: Path) -> None:
    """A different command has the same term and index."""
    a = make(tmp_path / "a", history(30))
    b = make(tmp_path / "b", history(30, {17: create(b"/else")}))
    found = compared(a, b)
    assert found.last_index == 16
    assert "index 17" in found.difference
    assert "/n17" in found.difference
    assert "/else" in found.difference


def test_difference_between_snapshots_names_the_znode(tmp_path: Path) -> None:
    """Without a common log the states are compared."""
    a = make(tmp_path / "a", history(10), (10,))
    b = make(tmp_path / "b", history(10, {7: create(b"/n7", b"other")}), (10,))
    for segment in [*a.glob("wal/*"), *b.glob("wal/*")]:
        segment.unlink()
    assert "znode /n7 differs in Stat, data" in compared(a, b).difference


def test_other_terms_at_the_end_are_no_difference_unless_both_were_applied(tmp_path: Path) -> None:
    """Raft replaces an uncommitted suffix."""
    left = [*history(10), LogItem(1, 11, 0, encode_batch(TIME_MS, [create(b"/x")]))]
    right = [*history(10), LogItem(2, 11, 1, b"")]
    a, b = make(tmp_path / "a", left), make(tmp_path / "b", right)
    found = compared(a, b)
    assert (found.difference, found.last_index) == ("", 10)
    assert "at least one of the entries is not committed" in found.notes[0]
    c, d = make(tmp_path / "c", left, (11,)), make(tmp_path / "d", right, (11,))
    assert "both nodes have applied their entry" in compared(c, d).difference


# --- words -----------------------------------------------------------------------------------------------------------


def test_commands_in_words_tell_no_secrets() -> None:
    """Session, cxid, operation, path, sizes; of an identity only the user."""
    auth = encode_command(SESSION, 1, -4, r.OP_AUTH, encode_identities([(b"digest", b"me:c2VjcmV0")]))
    odd = encode_command(SESSION, 1, 6, r.OP_DELETE, b"\0")
    item = LogItem(2, 17, 0, encode_batch(TIME_MS, [create(b"/a\n", b"x" * 9, 3), auth, odd]))
    fields = entry_fields(item)
    assert entry_line(fields).startswith("2/17 batch 2023-11-14T22:13:20.000Z 3 commands")
    lines = [command_line(command) for command in fields["commands"]]
    assert lines[0] == "session 0x77 cxid 5 create /a\\n ephemeral sequential 9 B"
    assert lines[1] == "session 0x77 cxid -4 auth digest:me"
    assert "unreadable: record ends early" in lines[2]
    assert "members voters=1,2,3" in entry_line(entry_fields(LogItem(1, 1, 2, CONFIG)))


# --- backup and restore ----------------------------------------------------------------------------------------------


def backed_up(tmp_path: Path, entries: list[LogItem]) -> Path:
    """Return a backup of the state after these entries."""
    path = make(tmp_path / "source", entries, (entries[-1].index,))
    snapshots = Snapshots(OsDisk(path), "snap")
    reader = snapshots.open_named(snapshots.names()[0])
    meta = reader.meta
    manifest = BackupManifest(CLUSTER.hex(), 1, meta.index, meta.term, meta.zxid, meta.digest, reader.size(), TIME_MS)
    file = tmp_path / "backup"
    file.write_bytes(b"".join(backup_pieces(manifest, reader)))
    assert file.stat().st_size == manifest.file_bytes()
    reader.close()
    return file


def test_backup_comes_back_whole_and_flips_are_found(tmp_path: Path) -> None:
    """Any change in manifest, snapshot or checksum is noticed."""
    file = backed_up(tmp_path, history(6))
    with BackupReader(file) as backup:
        assert backup.load().last_zxid == 6
    content = file.read_bytes()
    for offset in range(0, len(content), 3):
        file.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        with pytest.raises(Exception, match=r"damaged|format|not a backup") as caught, BackupReader(file) as backup:
            backup.load()
        assert type(caught.value).__name__ in ("CorruptRecord", "StorageError"), offset
    file.write_bytes(content[:-1])
    with pytest.raises(CorruptRecord):
        BackupReader(file)


def test_restored_nodes_start_alike_without_old_sessions(tmp_path: Path) -> None:
    """Znodes stay, sessions and ephemerals are gone, zxids continue above all that the old ensemble can have
    reached."""
    entries = history(9, {4: create(b"/mine", b"", 1)})
    file = backed_up(tmp_path, entries)
    assert is_backup(file)
    assert not is_backup(tmp_path / "source" / "meta.json")
    nodes = [NewNode(tmp_path / "new" / str(i), i) for i in (4, 5, 6)]
    with BackupReader(file) as backup:
        machine = make_directories(backup, nodes, [4, 5, 6], bytes(16))
    assert machine.last_zxid == ZXID_STEP
    digests = set()
    for node in nodes:
        assert node.path.stat().st_mode & 0o777 == 0o700
        assert json.loads((node.path / "meta.json").read_text())["cluster"] == bytes(16).hex()
        found = recover(OsDisk(node.path), node.node_id, [4, 5, 6], SeededRng(node.node_id))
        assert found.core.configs.current.voters == [4, 5, 6]
        assert len(found.machine.sessions) == 0
        assert b"/mine" not in found.machine.tree.nodes
        assert found.machine.tree.nodes[b"/n5"].data == b"data"
        digests.add(found.machine.digest())
    assert digests == {machine.digest()}
    assert compared(nodes[0].path, nodes[1].path).difference == ""


def test_restore_overwrites_nothing_and_keeps_clusters_apart(tmp_path: Path) -> None:
    """A directory that is not empty is rejected, and so is the old cluster's id."""
    file = backed_up(tmp_path, history(3))
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious").write_text("x")
    with BackupReader(file) as backup:
        with pytest.raises(ConfigError, match="not an empty directory"):
            make_directories(backup, [NewNode(tmp_path / "a", 1), NewNode(full, 2)], [1, 2], bytes(16))
        assert not (tmp_path / "a").exists()
        with pytest.raises(ConfigError, match="choose another name"):
            make_directories(backup, [NewNode(tmp_path / "a", 1)], [1], CLUSTER)


def test_renewed_state_steps_further_each_time() -> None:
    """A second restore of a restored ensemble's backup continues at higher zxids than the first."""
    once = renewed(StateMachine()).last_zxid
    machine = StateMachine()
    machine.last_zxid = once + 5
    assert renewed(machine).last_zxid == 2 * ZXID_STEP
