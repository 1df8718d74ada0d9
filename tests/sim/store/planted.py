"""Bugs that stores like this one have had, planted on purpose: what the simulation must find to be believed.

Each is a set of patches of the real classes for the time of one run. `number` is that of the list of famous bugs that
the simulation was designed against (docs/simulation.md repeats it in words).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from coord.errors import OK, CorruptRecord
from coord.raft.messages import Entry
from coord.server import joining, node, pipeline, proposals, recovery, syncs
from coord.storage import snapshot as files
from coord.storage import wal as wal_module
from coord.storage.wal import Batch
from coord.storage.writer import InlineWriter
from coord.tree import machine as machine_module
from coord.tree import snapshot as tree_snapshot
from coord.tree.machine import StateMachine
from coord.tree.plan import PlannedMulti
from coord.tree.sessions import SessionTable
from coord.wire.records import encode_reply_frame
from tests.sim.store.disk import SimDisk
from tests.sim.store.machinery import ThreadedWriter
from tests.sim.store.world import Bug

Patch = AbstractContextManager[Any]

CRASHES = ("_power_cut", "_power_cut_leader", "_power_cut_all")
LEADERS = ("_power_cut_leader", "_isolate_leader", "_transfer", "_pause_leader")


def instead(owner: Any, name: str, function: Any) -> Patch:
    """`function` stands for `owner.name`."""
    return mock.patch.object(owner, name, function)


class TermForgotten(Bug):
    """Term and vote are not stored."""

    number = 2
    favours = ("_power_cut", "_power_cut_leader", "_one_way", "_kill")

    def patches(self) -> list[Patch]:
        def forget(batch: Batch, term: int, vote: int) -> None:
            real(batch, 0, 0)

        real = Batch.set_hard_state
        return [instead(Batch, "set_hard_state", forget)]


class AckBeforeSync(Bug):
    """The log reports as durable what it has not synced yet."""

    number = 3
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


class ResentAtOnce(Bug):
    """After a leader change commands are sent again before an entry of the new term says that they are dead."""

    number = 14
    favours = LEADERS

    def patches(self) -> list[Patch]:
        def take(queue: proposals.Proposals, term: int) -> Any:
            if queue.term != term and queue.sent and term > queue.term:
                queue.entry_applied(term)
            return real(queue, term)

        real = proposals.Proposals.take
        return [instead(proposals.Proposals, "take", take)]


class ForwardedTwice(Bug):
    """The leader takes what comes again over a new connection as new."""

    number = 14
    favours = ("_flap", "_reset")

    def patches(self) -> list[Patch]:
        def accept(*args: Any) -> Any:
            return args[-1]

        return [instead(proposals.Forwarded, "accept", accept)]


class AttachedLocally(Bug):
    """A server lets a client re-attach without asking the log."""

    number = 20
    favours = ("_lose_client", "_reset", "_isolate_leader")

    def patches(self) -> list[Patch]:
        def open_session(self: pipeline.Pipeline, connection: Any, request: Any) -> None:
            session = self.machine.sessions.find(request.session_id)
            if session is None or session.passwd != request.passwd:
                real(self, connection, request)
                return
            connection.session_id = session.session_id
            outcome = machine_module.Outcome(session.owner, session.session_id, 0, 0, pipeline.op.OP_ATTACH)
            self._session_opened(connection, outcome)
            self._serve_early()

        real = pipeline.Pipeline.open_session
        return [instead(pipeline.Pipeline, "open_session", open_session)]


class ExpiryNotRestarted(Bug):
    """A node that leads again goes on with the timers of its former reign."""

    number = 20
    favours = ("_isolate_leader", "_transfer", "_pause_leader", "_heal")

    def patches(self) -> list[Patch]:
        def apply(self: Any, entries: list[Entry]) -> None:
            before = self.expiry
            real(self, entries)
            if before is None and self.expiry is not None:
                self.expiry = self.__dict__.setdefault("first_expiry", self.expiry)
                self.expiry._table = self.machine.sessions

        real = node.Node._apply
        return [instead(node.Node, "_apply", apply)]


class EventBehindData(Bug):
    """Answers of a group leave before its events."""

    number = 24

    def patches(self) -> list[Patch]:
        def applied(self: pipeline.Pipeline, outcomes: list[Any]) -> None:
            events = [outcome.events for outcome in outcomes]
            for outcome in outcomes:
                outcome.events = []
            real(self, outcomes)
            for outcome, each in zip(outcomes, events, strict=True):
                outcome.events = each
                self._send_events(outcome)

        real = pipeline.Pipeline.applied
        return [instead(pipeline.Pipeline, "applied", applied)]


class WatchesOutliveConnection(Bug):
    """A connection's watches stay behind, and fire for the next one of the session."""

    number = 24

    def patches(self) -> list[Patch]:
        def lost(self: pipeline.Pipeline, connection: Any) -> None:
            with mock.patch.object(self.watches, "drop"):
                real(self, connection)

        real = pipeline.Pipeline.connection_lost
        return [instead(pipeline.Pipeline, "connection_lost", lost)]


class WatchBeforeRead(Bug):
    """A watch is left when the request arrives, not when the read is answered."""

    number = 24

    def patches(self) -> list[Patch]:
        def wait(self: pipeline.Pipeline, connection: Any, waiting: Any) -> None:
            if waiting.is_read and waiting.opcode == pipeline.op.OP_GET_DATA:
                self.machine.read(waiting.opcode, waiting.body, connection.session, self.watches)
            real(self, connection, waiting)

        real = pipeline.Pipeline._wait
        return [instead(pipeline.Pipeline, "_wait", wait)]


class ReadDoesNotWait(Bug):
    """A read overtakes the writes of its own session."""

    number = 24

    def patches(self) -> list[Patch]:
        def wait(self: pipeline.Pipeline, connection: Any, waiting: Any) -> None:
            if waiting.is_read and waiting.opcode not in (pipeline.op.OP_SET_WATCHES, pipeline.op.OP_SET_WATCHES2):
                err, body = self.machine.read(waiting.opcode, waiting.body, connection.session, self.watches)
                zxid = self.machine.last_zxid
                waiting.is_read = False
                waiting.reply = encode_reply_frame(waiting.xid, zxid, err, body)
            real(self, connection, waiting)

        real = pipeline.Pipeline._wait
        return [instead(pipeline.Pipeline, "_wait", wait)]


class EphemeralsLeft(Bug):
    """A session ends and its ephemerals stay."""

    number = 19

    def patches(self) -> list[Patch]:
        def end(self: StateMachine, outcome: Any, session: Any) -> None:
            self.sessions.remove(session)

        return [instead(StateMachine, "_end_session", end)]


class SessionlessSnapshot(Bug):
    """Snapshots leave the session table out."""

    number = 13

    def patches(self) -> list[Patch]:
        def chunks(self: StateMachine) -> Iterator[bytes]:
            bare = StateMachine(self.tree, SessionTable())
            return tree_snapshot.write_snapshot(
                self.tree, bare.sessions, self.last_zxid, self.applied_time_ms, bare.digest()
            )

        return [instead(StateMachine, "snapshot_chunks", chunks)]


class CounterlessSnapshot(Bug):
    """Snapshots leave the sequence counters out."""

    number = 13

    def patches(self) -> list[Patch]:
        def chunks(self: StateMachine) -> Iterator[bytes]:
            copy = StateMachine.restore(list(real(self)))
            for each in copy.tree.nodes.values():
                each.creates = each.num_children
                copy.tree.digest_sum += each.refresh()
            return real(copy)

        real = StateMachine.snapshot_chunks
        return [instead(StateMachine, "snapshot_chunks", chunks)]


class PartialSnapshot(Bug):
    """Snapshots are written under their final name, and what can be read of one is taken for all of it."""

    number = 13
    favours = ("_drift",)
    crash_in_step = 0.001

    def patches(self) -> list[Patch]:
        def restore(cls: Any, pieces: Any) -> StateMachine:
            reader = tree_snapshot.SnapshotReader()
            try:
                for piece in pieces:
                    reader.feed(piece)
            except CorruptRecord:
                pass
            machine = StateMachine(reader.tree, reader.sessions)
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


class AppliedTwice(Bug):
    """After a restart the first entry behind the snapshot is applied twice."""

    number = 14
    favours = (*CRASHES, "_kill")

    def patches(self) -> list[Patch]:
        def apply(self: Any, entries: list[Entry]) -> None:
            first = not self.__dict__.get("has_applied") and entries[0].index > 1
            self.__dict__["has_applied"] = True
            real(self, [entries[0], *entries] if first else entries)

        real = node.Node._apply
        return [instead(node.Node, "_apply", apply)]


class MultiNotRolledBack(Bug):
    """A multi that is refused keeps what its first parts did."""

    number = 21

    def patches(self) -> list[Patch]:
        def multi(self: StateMachine, outcome: Any, session: Any, data: bytes, at: int, end: int) -> None:
            ops = machine_module.decode_multi(data, at, end)
            for count in range(len(ops), 0, -1):
                planned: PlannedMulti = machine_module.plan_multi(self.tree, session, ops[:count])
                if planned.err == OK:
                    if count < len(ops):
                        events: list[Any] = []
                        for position, delta in enumerate(planned.deltas):
                            self._perform_part(ops[position].opcode, delta, outcome.zxid, events, [])
                    break
            real(self, outcome, session, data, at, end)

        real = StateMachine._multi
        return [instead(StateMachine, "_multi", multi)]


class SyncWithoutQuorum(Bug):
    """A server answers a sync from what it knows itself."""

    number = 12
    favours = ("_isolate_leader", "_partition", "_pause", "_one_way")

    def patches(self) -> list[Patch]:
        def add(self: syncs.Syncs, connection: Any, waiting: Any) -> None:
            self._confirmed.append((0, [(connection, waiting)]))

        return [instead(syncs.Syncs, "add", add)]


class FolderNotSynced(Bug):
    """Snapshots are renamed into place and the folder is not synced."""

    number = 13
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
    favours = CRASHES

    def patches(self) -> list[Patch]:
        def write(self: Any, parts: list[bytes]) -> None:
            file = self._file
            with mock.patch.object(file, "sync"):
                real(self, parts)

        real = wal_module.Wal._write_record
        return [instead(wal_module.Wal, "_write_record", write)]


class CleanPagesTrusted(Bug):
    """After a failed sync and a restart, what the page cache shows is taken to be on the disk."""

    number = 17
    favours = ("_failed_sync", "_power_cut_all")

    def patches(self) -> list[Patch]:
        def reopen(wal: Any, disk: Any, folder: str, offset: int, record: bytes) -> None:
            real(wal, disk, folder, 0, b"")

        real = wal_module._reopen_last
        return [instead(wal_module, "_reopen_last", reopen)]


class WipedNodeVotes(Bug):
    """A node that lost its disk votes as if it had promised nothing."""

    number = 17
    favours = ("_flip", "_kill", "_power_cut", "_isolate_leader", "_partition")

    def patches(self) -> list[Patch]:
        return [instead(joining.Joining, "peer_introduced", lambda *_, **__: None)]


class SnapshotNotInLog(Bug):
    """The log is not told of a state that came from the leader; after a crash the two contradict each other."""

    number = 13
    favours = (*CRASHES, "_isolate_leader", "_pause")

    def patches(self) -> list[Patch]:
        return [
            instead(Batch, "set_base", lambda *_: None),
            instead(recovery, "_align", lambda *_: None),
        ]
