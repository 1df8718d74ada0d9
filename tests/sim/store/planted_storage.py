"""Planted bugs in a node's files: syncs, snapshots, torn and damaged writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from coord.errors import CorruptRecord
from coord.storage import segments as segments_module
from coord.storage import snapshot as files
from coord.storage import wal as wal_module
from coord.storage.writer import InlineWriter
from coord.tree import snapshot as tree_snapshot
from coord.tree.acl import OPEN
from coord.tree.levels import SUPPORTED
from coord.tree.machine import StateMachine
from coord.tree.sessions import SessionTable
from simulation.engine.disk import SimDisk
from tests.sim.store.machinery import ThreadedWriter
from tests.sim.store.planted import CRASHES
from tests.sim.store.world import Bug
from tests.support.planted import Patch, instead


class AckBeforeSync(Bug):
    """The log reports batches as durable before the sync."""

    number = 3
    known = "etcd #14370, dragonboat #201"
    favours = CRASHES

    def patches(self) -> list[Patch]:
        def flush(writer: ThreadedWriter) -> None:
            writer._events.on_persisted(writer._submitted)
            real(writer)

        def report(writer: ThreadedWriter, count: int, error: Exception | None) -> None:
            writer._done = 0
            told(writer, count, error)

        def inline(writer: InlineWriter) -> None:
            assert writer._events is not None
            writer._events.on_persisted(writer._submitted)
            inline_real(writer)

        real, told, inline_real = ThreadedWriter.flush, ThreadedWriter._report, InlineWriter.flush
        return [
            instead(ThreadedWriter, "flush", flush),
            instead(ThreadedWriter, "_report", report),
            instead(InlineWriter, "flush", inline),
        ]


class SessionlessSnapshot(Bug):
    """Snapshots omit the session table."""

    number = 13
    known = "ZooKeeper's fuzzy snapshots"

    def patches(self) -> list[Patch]:
        def chunks(self: StateMachine) -> Iterator[bytes]:
            bare = StateMachine(self.tree, SessionTable())
            return tree_snapshot.write_snapshot(
                self.tree, bare.sessions, self.last_zxid, self.applied_time_ms, bare.digest()
            )

        return [instead(StateMachine, "snapshot_chunks", chunks)]


class CounterlessSnapshot(Bug):
    """Snapshots omit the sequence counters."""

    number = 13
    known = "counters missing from snapshots"

    def patches(self) -> list[Patch]:
        def chunks(self: StateMachine) -> Iterator[bytes]:
            copy = StateMachine.restore(list(real(self)))
            for path, each in copy.tree.nodes.items():
                each.ensure_extra().creates = each.num_children
                copy.tree._touch(path, each)
            return real(copy)

        real = StateMachine.snapshot_chunks
        return [instead(StateMachine, "snapshot_chunks", chunks)]


class PartialSnapshot(Bug):
    """Snapshots are written under their final name, and the readable part of one is used as the whole."""

    number = 13
    known = "half a snapshot taken for a whole one"
    favours = ("_drift",)
    crash_in_step = 0.001

    def patches(self) -> list[Patch]:
        def restore(cls: Any, pieces: Any, supported: int = SUPPORTED) -> StateMachine:
            reader = tree_snapshot.SnapshotDecoder(supported=supported)
            try:
                for piece in pieces:
                    reader.feed(piece)
            except CorruptRecord:
                pass
            machine = StateMachine(reader.tree, reader.sessions, reader.supported)
            machine.level = reader.level
            machine.last_zxid, machine.applied_time_ms = reader.last_zxid, reader.applied_time_ms
            return machine

        def chunks(self: Any) -> Iterator[bytes]:
            return iter(list(real(self)))

        def draft(self: Any, disk: Any, folder: str, temporary: str) -> None:
            opened(self, disk, folder, temporary.removesuffix(".tmp").removesuffix(".recv"))

        def finish(self: Any, name: str) -> None:
            self._file.sync()
            self.close()
            self._disk.sync_folder(self._folder)

        real = StateMachine.snapshot_chunks
        opened = files.SnapshotDraft.__init__
        return [
            mock.patch.object(tree_snapshot, "CHUNK_BYTES", 60),
            mock.patch.object(files, "WRITE_BYTES", 200),
            instead(StateMachine, "restore", classmethod(restore)),
            instead(StateMachine, "snapshot_chunks", chunks),
            instead(files.SnapshotDraft, "__init__", draft),
            instead(files.SnapshotDraft, "finish", finish),
        ]


class FolderNotSynced(Bug):
    """Snapshots are renamed into place and the folder is not synced."""

    number = 13
    known = "etcd #13766 and others"
    favours = CRASHES

    def patches(self) -> list[Patch]:
        def sync_folder(self: SimDisk, path: str) -> None:
            if path != "snap":
                real(self, path)

        real = SimDisk.sync_folder
        return [instead(SimDisk, "sync_folder", sync_folder)]


class NothingSynced(Bug):
    """Syncs of the log return at once and do nothing."""

    number = 3
    known = "fsync of the wrong file"
    favours = CRASHES

    def patches(self) -> list[Patch]:
        def write(self: Any, parts: list[bytes]) -> None:
            file = self._file
            with mock.patch.object(file, "sync"):
                real(self, parts)

        real = wal_module.Wal._write_record
        return [instead(wal_module.Wal, "_write_record", write)]


class CleanPagesTrusted(Bug):
    """After a failed sync and a restart, the contents of the page cache count as durable."""

    number = 17
    known = "PostgreSQL's fsync of 2018"
    favours = ("_failed_sync", "_power_cut_all")

    def patches(self) -> list[Patch]:
        def reopen(wal: Any, disk: Any, folder: str, offset: int, record: bytes) -> None:
            real(wal, disk, folder, 0, b"")

        real = wal_module.reopen_last
        return [instead(wal_module, "reopen_last", reopen)]


class TornTailKept(Bug):
    """The remains of a torn write stay after the end of the log, and no zeros overwrite them."""

    number = 13
    known = "write-ahead logs that overwrite in place"

    def patches(self) -> list[Patch]:
        def reopen(wal: Any, disk: Any, folder: str, offset: int, record: bytes) -> None:
            file = disk.open(f"{folder}/{wal._segments[-1].name}")
            with mock.patch.object(file, "truncate"):
                real(wal, disk, folder, offset, record)

        real = wal_module.reopen_last
        return [instead(wal_module, "reopen_last", reopen), mock.patch.object(segments_module, "RESERVE_BYTES", 0)]


class FailedWriteIgnored(Bug):
    """A failed write or sync counts as done, and the node continues."""

    number = 17
    known = "stores that go on with a full disk"
    favours = ("_disk_error", "_failed_sync", "_power_cut_all", "_disk_full")

    def patches(self) -> list[Patch]:
        def report(writer: ThreadedWriter, count: int, error: Exception | None) -> None:
            real(writer, count, None)

        real = ThreadedWriter._report
        return [instead(ThreadedWriter, "_report", report)]


class RightlessSnapshot(Bug):
    """Snapshots omit the access lists."""

    number = 13
    known = "ZOOKEEPER-4689 (cache of access lists)"

    def patches(self) -> list[Patch]:
        def chunks(self: StateMachine) -> Iterator[bytes]:
            copy = StateMachine.restore(list(real(self)))
            for path, each in copy.tree.nodes.items():
                each.acl = copy.tree.share(OPEN)
                copy.tree._touch(path, each)
            return real(copy)

        real = StateMachine.snapshot_chunks
        return [instead(StateMachine, "snapshot_chunks", chunks)]
