"""The decision when a snapshot is due, and the removal of the covered log and of older snapshots once it is durable."""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from coord.env import Clock
from coord.raft.core import RaftCore
from coord.raft.membership import decode_configuration
from coord.raft.messages import RaftSnapshot as RaftSnapshot
from coord.server.interfaces import SnapshotJob
from coord.server.node_settings import NodeSettings
from coord.storage.records import WriteBatch
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.storage.writer import LogWriter
from coord.tree.machine import StateMachine

log = Logger(__name__)

#: Nodes begin to count toward a snapshot at this number of different values, by id.
APART: Final = 4
#: After a failure the next attempt waits no longer than this if a peer needs a snapshot. A reconfig that waits for
#: that peer gives up after 10 s (`membership.leading.STALL_TICKS_MAX`).
NEEDED_AGAIN_MS: Final = 3000


class SnapshotPolicy:
    """Takes snapshots and truncates the log. `index` is that of the newest snapshot."""

    def __init__(
        self,
        settings: NodeSettings,
        core: RaftCore,
        snapshots: Snapshots,
        job: SnapshotJob,
        writer: LogWriter[WriteBatch],
        clock: Clock,
        index: int,
    ) -> None:
        self.snapshots = snapshots
        self.index = index
        self.is_snapshotting = False
        #: Why the last snapshot could not be written, "" if it was.
        self.error = ""
        #: Bytes of entries applied since the last attempt. Nodes begin with different values, so that they do not all
        #: write a snapshot at the same time and a majority has its disks for the log.
        self.bytes_since = settings.snapshot_bytes * (settings.node_id % APART) // APART
        self._settings = settings
        self._core = core
        self._job = job
        self._writer = writer
        self._clock = clock
        self._began_ms = 0
        #: Index of the last attempt; a failed attempt is not repeated at once.
        self._tried = index
        #: True if a peer rejected the newest snapshot.
        self._is_doubtful = False
        # The log on disk reaches further back than the log in memory needs to.
        self._forget_entries()

    def maybe_take(self, machine: StateMachine, applied: int) -> None:
        """Begin a snapshot of the state at `applied` if one is due: the log has grown enough, or a peer needs one."""
        settings = self._settings
        core = self._core
        grown = applied - self._tried
        due = grown >= settings.snapshot_entries or self.bytes_since >= settings.snapshot_bytes
        if not core.log.reaches_snapshot() and not core.is_alone():
            due = True
        if self.error or self._is_doubtful:
            again_ms = settings.snapshot_again_ms
            if not core.log.reaches_snapshot() and not core.is_alone():
                again_ms = min(again_ms, NEEDED_AGAIN_MS)
            due = self._clock.monotonic_ms() - self._began_ms >= again_ms
            grown = applied
        if due and grown > 0 and not self.is_snapshotting:
            self.take(machine, applied)

    def take(self, machine: StateMachine, applied: int) -> None:
        """Begin to write the state, which is at index `applied`."""
        meta = self._core.snapshot_meta(applied)
        self.is_snapshotting = True
        self._is_doubtful = False
        self._began_ms = self._clock.monotonic_ms()
        self._tried = applied
        self.bytes_since = 0
        self._job.begin(
            SnapshotMeta(meta.index, meta.term, meta.config.encode(), machine.last_zxid, machine.digest()), machine
        )

    def note_doubt(self, is_doubtful: bool) -> None:
        """Record whether a peer rejected a snapshot: the file may be damaged, so another one should be written."""
        self._is_doubtful = self._is_doubtful or is_doubtful

    def written(self, meta: SnapshotMeta, error: str) -> None:
        """Handle the end of the job; `error` is "" if the snapshot is durable. Then remove the log that it covers."""
        self.is_snapshotting = False
        self.error = error
        if error:
            log.error("cannot write the snapshot at index {index}: {error}", index=meta.index, error=error)
            return
        if meta.index <= self.index:
            return  # A newer snapshot was installed meanwhile.
        self.index = meta.index
        # The log may have been compacted beyond that index meanwhile.
        self._core.snapshot_saved(RaftSnapshot(meta.index, meta.term, decode_configuration(meta.config), meta.name()))
        self._forget_entries()
        self._drop_old_files()
        log.info("wrote the snapshot at index {index}", index=meta.index)

    def installed(self, index: int) -> None:
        """Record that a durable snapshot from the leader has become the state."""
        self.index = self._tried = index
        self.bytes_since = 0
        self._drop_old_files()

    def forget_applied(self, applied: int) -> None:
        """In a store of one node, drop applied entries from memory: no peer needs them."""
        if self._core.is_alone():
            self._core.compacted(applied)

    def _forget_entries(self) -> None:
        """Drop the entries that the newest snapshot covers from memory, except the last for slow peers."""
        settings = self._settings
        known = self._core.log
        self._core.compacted(known.floor(known.snapshot.index, settings.keep_entries, settings.keep_bytes))

    def _drop_old_files(self) -> None:
        """Remove superfluous snapshots and log segments. Files that cannot be removed are tried again next time."""
        try:
            self.snapshots.retain()
            floor = self.snapshots.log_floor()
        except OSError as error:
            log.warn("cannot remove old snapshots: {error}", error=error.strerror or str(error))
            return
        self._writer.prune(floor)
