"""Reading a backup file, and making the data directories of a new ensemble from it.

A restored ensemble has every persistent znode, with data, access list, versions and times. It does not have the
sessions of the old ensemble and their ephemerals: they end as if they had expired, so a client that reconnects with
such a session gets SESSION_EXPIRED and opens a new one. All nodes have the same state, because all are made from one
file.

The zxids of the new ensemble begin far above those of the backup (`ZXID_STEP`), because a client that has seen a higher
zxid on the old ensemble would reject every new server as stale. The new ensemble has another cluster id, so no node of
the old ensemble can connect to it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from crc32c import crc32c

from coord.durable import sync_folder
from coord.env import DiskFile, replace_file
from coord.env_os import OsDisk
from coord.errors import ConfigError, CorruptRecord
from coord.offline.directory import Progress, ReadOnlyDisk, no_progress
from coord.raft.bounds import TERM_LEAP_MAX, TERM_MAX
from coord.raft.membership import Configuration
from coord.server.recovery.meta import META, encode_meta
from coord.server.recovery.startup import SNAPSHOT_FOLDER, WAL_FOLDER
from coord.storage.backup import CRC, HEAD, MAGIC, PIECE_BYTES, decode_head, decode_manifest
from coord.storage.records import WriteBatch
from coord.storage.snapshot import SnapshotMeta, SnapshotReader, Snapshots
from coord.storage.wal import open_wal
from coord.tree.command import Command
from coord.tree.machine import StateMachine
from coord.wire.opcodes import OP_EXPIRE

#: The zxids of a restored ensemble begin at the next multiple: room for commands applied after the backup.
ZXID_STEP: Final = 1 << 44


def is_backup(path: Path) -> bool:
    """Return True if the file begins like a backup."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class BackupReader:
    """A backup file, open for reading."""

    def __init__(self, path: Path) -> None:
        """Read the manifest. Raise CorruptRecord, StorageError, OSError."""
        self._where = str(path)
        self._file = ReadOnlyDisk(path.parent).open(path.name)
        try:
            length = decode_head(self._where, self._file.read_at(0, HEAD.size))
            self._start = HEAD.size + length
            self.manifest = decode_manifest(self._where, self._file.read_at(HEAD.size, length))
            size = self._file.size()
            expected = self._start + self.manifest.snapshot_bytes + CRC.size
            if size != expected:
                raise CorruptRecord(self._where, min(size, expected), f"{expected} bytes", f"{size} bytes")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> BackupReader:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    def snapshot(self) -> SnapshotReader:
        """Return a reader of the snapshot inside. Raise as SnapshotReader, with offsets inside the snapshot."""
        return SnapshotReader(_Inside(self._where, self._file, self._start, self.manifest.snapshot_bytes), "")

    def load(self, progress: Progress = no_progress) -> StateMachine:
        """Check the file against checksum and manifest, then return its state. Raise CorruptRecord."""
        self._check_crc(progress)
        reader = self.snapshot()
        machine = StateMachine.restore(reader.chunks())
        manifest = self.manifest
        written = (manifest.index, manifest.term, manifest.zxid, manifest.digest)
        found = (reader.meta.index, reader.meta.term, machine.last_zxid, machine.digest())
        if written != found:
            raise CorruptRecord(self._where, HEAD.size, f"index, term, zxid, digest {written}", found)
        return machine

    def _check_crc(self, progress: Progress) -> None:
        end = self._start + self.manifest.snapshot_bytes
        crc = 0
        for offset in range(0, end, PIECE_BYTES):
            crc = crc32c(self._file.read_at(offset, min(PIECE_BYTES, end - offset)), crc)
            progress("checksum", offset, end)
        written = CRC.unpack(self._file.read_at(end, CRC.size))[0]
        if crc != written:
            raise CorruptRecord(self._where, end, f"crc {written:08x}", f"{crc:08x}")


class _Inside(ReadOnlyDisk):
    """Presents a part of an open file as a file."""

    def __init__(self, where: str, file: DiskFile, start: int, size: int) -> None:
        self._where = where
        self._file = file
        self._start = start
        self._size = size

    def where(self, path: str) -> str:  # noqa: ARG002
        """See `Disk.where`."""
        return f"{self._where} (snapshot, from byte {self._start})"

    def open(self, path: str, *, create: bool = False) -> DiskFile:  # noqa: ARG002
        """See `Disk.open`."""
        return _Part(self._file, self._start, self._size)


class _Part:
    """A read-only range of another file."""

    def __init__(self, file: DiskFile, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self._size = size

    def read_at(self, offset: int, size: int) -> bytes:
        """See `DiskFile.read_at`."""
        return self._file.read_at(self._start + offset, max(0, min(size, self._size - offset)))

    def size(self) -> int:
        """See `DiskFile.size`."""
        return self._size

    def close(self) -> None:
        """Keep the containing file open."""

    def write_at(self, offset: int, data: bytes) -> None:  # noqa: ARG002
        """See `DiskFile.write_at`."""
        raise AssertionError("open for reading")

    def truncate(self, size: int) -> None:  # noqa: ARG002
        """See `DiskFile.truncate`."""
        raise AssertionError("open for reading")

    def sync(self) -> None:
        """See `DiskFile.sync`."""
        raise AssertionError("open for reading")


# --- restoring -------------------------------------------------------------------------------------------------------


def renewed(machine: StateMachine) -> StateMachine:
    """Return the initial state of a new ensemble: no sessions, no ephemerals, zxids at the next ZXID_STEP.

    /zookeeper/config is empty until the first leader writes the members.
    """
    for session_id in sorted(machine.sessions.sessions):
        session = machine.sessions.sessions[session_id]
        outcome = machine.apply(Command(session_id, session.owner, 0, OP_EXPIRE, b""), machine.applied_time_ms)
        assert not outcome.err, f"session {session_id:#x} does not end: {outcome.err}"
    machine.apply_membership(b"")
    machine.last_zxid = (machine.last_zxid // ZXID_STEP + 1) * ZXID_STEP
    return machine


class NewNode:
    """A data directory to create."""

    def __init__(self, path: Path, node_id: int) -> None:
        self.path = path
        self.node_id = node_id

    def check(self) -> None:
        """Raise ConfigError unless the path is absent or an empty directory."""
        if self.path.is_symlink() or (self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))):
            raise ConfigError(f"{self.path} is not an empty directory: existing files are never overwritten")


def make_directories(
    backup: BackupReader, nodes: list[NewNode], voters: list[int], cluster: bytes, progress: Progress = no_progress
) -> StateMachine:
    """Create the data directories and return the state in them. Each directory appears whole or not at all.

    `voters` are all members of the new ensemble. Raise ConfigError, CorruptRecord, OSError.
    """
    if cluster.hex() == backup.manifest.cluster:
        raise ConfigError("the new ensemble has the cluster name of the backed-up ensemble; choose another name")
    for node in nodes:
        node.check()
    machine = renewed(backup.load(progress))
    manifest = backup.manifest
    config = Configuration(voters).encode()
    # The new ensemble has no other term. If forged messages raised the term close to the maximum, begin at 1.
    term = manifest.term if manifest.term < TERM_MAX - TERM_LEAP_MAX else 1
    meta = SnapshotMeta(manifest.index, term, config, machine.last_zxid, machine.digest())
    for position, node in enumerate(nodes):
        progress(str(node.path), position, len(nodes))
        _make(node, meta, machine, voters, cluster)
    return machine


def _make(node: NewNode, meta: SnapshotMeta, machine: StateMachine, voters: list[int], cluster: bytes) -> None:
    """Create the directory under a temporary name, so that no node starts on half of it."""
    draft = node.path.with_name(node.path.name + ".restoring")
    if draft.is_dir() and not draft.is_symlink():
        shutil.rmtree(draft)
    draft.mkdir(mode=0o700, parents=True)
    disk = OsDisk(draft)
    Snapshots(disk, SNAPSHOT_FOLDER).write(meta, machine.snapshot_chunks())
    # A snapshot without a log would look like a directory that has lost its log.
    batch = WriteBatch()
    batch.set_base(meta.index, meta.term)
    batch.set_hard_state(meta.term, 0)
    wal, _ = open_wal(disk, WAL_FOLDER, is_expected=False)
    wal.write([batch])
    wal.close()
    replace_file(disk, "", META, encode_meta(node.node_id, cluster, voters, level=machine.level))
    os.rename(draft, node.path)
    sync_folder(node.path.parent)
