"""Recovery at the start: the newest valid snapshot, the log after it, and a core made of both.

Snapshot and log are separate files, so a crash can fall between them. A snapshot from the leader is durable before the
log refers to it. After a crash at that point the log ends before the snapshot or contradicts it, and the term on disk
may be older than the snapshot's. `recover` first writes the missing base into the log: otherwise the next entries would
leave a gap, and the log after the gap could not be read.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from coord.env import Disk, Rng
from coord.errors import CorruptRecord, StorageError, UnsupportedLevel
from coord.raft.bounds import TERM_MAX
from coord.raft.core import RaftConfig, RaftCore
from coord.raft.membership import Configuration, decode_configuration
from coord.raft.messages import LEVEL, Entry, HardState, bootstrap
from coord.raft.messages import RaftSnapshot as RaftSnapshot
from coord.storage.reading import Recovered
from coord.storage.records import WriteBatch
from coord.storage.segments import SEGMENT_BYTES
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.storage.wal import Wal, open_wal
from coord.tree.levels import SUPPORTED, decode_level
from coord.tree.machine import StateMachine

log = Logger()

WAL_FOLDER: Final = "wal"
SNAPSHOT_FOLDER: Final = "snap"
#: Limit of entries before the snapshot that are read into memory.
KEEP_ENTRIES: Final = 10_000


class GapInLogError(StorageError):
    """Raised if entries between the newest valid snapshot and the log are missing."""


class TermExhausted(StorageError):  # noqa: N818 - a state of affairs
    """Raised for a node in the last term, after which no election is possible."""


class Recovery:
    """The parts of a node that are read from its disk; machine and core are at `position`."""

    def __init__(
        self, wal: Wal, snapshots: Snapshots, machine: StateMachine, position: SnapshotMeta, core: RaftCore
    ) -> None:
        self.wal = wal
        self.snapshots = snapshots
        self.machine = machine
        self.position = position
        self.core = core


def recover(
    disk: Disk,
    node_id: int,
    began: list[int] | Configuration,
    rng: Rng,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    keep_entries: int = KEEP_ENTRIES,
    supported: int = SUPPORTED,
) -> Recovery:
    """Read the data directory. In a new directory return the empty state of a store that `began` with these members.

    Up to `keep_entries` entries that the snapshot covers are kept in memory, for peers that are a little behind.

    Raise CorruptRecord, StorageError, OSError: the node must not start on these files. Raise UnsupportedLevel if the
    state or an entry of the log, committed or not, has a feature level above `supported`.
    """
    snapshots = Snapshots(disk, SNAPSHOT_FOLDER)
    machine, position = newest_state(snapshots, supported)
    floor = max(0, position.index - keep_entries) if _has_peers(node_id, position, began) else position.index
    is_expected = position.index > 0
    wal, recovered = open_wal(disk, WAL_FOLDER, segment_bytes=segment_bytes, floor=floor, is_expected=is_expected)
    if recovered.cut:
        log.warn("{what}", what=recovered.cut)
    check_term(disk.where(WAL_FOLDER), max(recovered.term, recovered.last_term(), position.term))
    if position.index < recovered.base_index:
        raise GapInLogError(
            f"{disk.where(WAL_FOLDER)}: the log begins after entry {recovered.base_index}, but the newest valid"
            f" snapshot in {disk.where(SNAPSHOT_FOLDER)} is at {position.index}"
        )
    if position.index:
        _align(wal, recovered, position)
        config = decode_configuration(position.config)
        start = RaftSnapshot(position.index, position.term, config, position.name())
    else:
        start = RaftSnapshot(0, 0, began) if isinstance(began, Configuration) else bootstrap(began)
    entries = [Entry(item.term, item.index, item.kind, item.data) for item in recovered.entries]
    _check_levels(disk, entries, supported)
    core = RaftCore(node_id, RaftConfig(), rng, start, HardState(recovered.term, recovered.vote), entries)
    log.info(
        "recovered: snapshot at {snapshot}, log to {last}, term {term}, {segments} segments",
        snapshot=position.index,
        last=recovered.last_index(),
        term=recovered.term,
        segments=wal.segment_count(),
    )
    return Recovery(wal, snapshots, machine, position, core)


def check_term(where: str, term: int) -> None:
    """Raise TermExhausted for a term after which no election is possible: other nodes would reject every message."""
    if term >= TERM_MAX:
        raise TermExhausted(
            f"{where}: this node is in term {term}, and terms end at {TERM_MAX}: a forged message caused this."
            " The data is intact. Close the peer port to other programs, write the state to a file (rk coord backup DIR"
            " FILE) and make a new store from it (rk coord restore)"
        )


def _has_peers(node_id: int, position: SnapshotMeta, began: list[int] | Configuration) -> bool:
    """Return True if the snapshot's configuration has another member."""
    if position.index:
        return decode_configuration(position.config).members() != [node_id]
    return (began.members() if isinstance(began, Configuration) else began) != [node_id]


def _align(wal: Wal, recovered: Recovered, position: SnapshotMeta) -> None:
    """Make the log continue the snapshot, in memory and on disk."""
    batch = WriteBatch()
    place = position.index - recovered.base_index - 1
    if place >= 0:
        is_known = place < len(recovered.entries) and recovered.entries[place].term == position.term
    else:
        is_known = recovered.base_term in (0, position.term)
    if not is_known:
        recovered.rebase(position.index, position.term)
        batch.set_base(position.index, position.term)
    if recovered.term < position.term:
        # This node has not voted in that term: a vote is durable before it is sent.
        recovered.term, recovered.vote = position.term, 0
        batch.set_hard_state(position.term, 0)
    if batch.parts:
        log.warn("added the missing record of the snapshot at index {index} to the log", index=position.index)
        wal.write([batch])


def _check_levels(disk: Disk, entries: list[Entry], supported: int) -> None:
    """Raise UnsupportedLevel if the log exceeds the level `supported`, StorageError for an unknown kind of entry."""
    where = disk.where(WAL_FOLDER)
    for entry in entries:
        if entry.kind > LEVEL:
            raise StorageError(f"{where}: entry {entry.index} is of kind {entry.kind}: start a newer build")
        if entry.kind == LEVEL:
            try:
                level = decode_level(entry.data)
            except ValueError as error:
                raise StorageError(f"{where}: entry {entry.index}: {error}: start a newer build") from error
            if level > supported:
                raise UnsupportedLevel(f"{where}: the log has", level, supported)


def newest_state(snapshots: Snapshots, supported: int) -> tuple[StateMachine, SnapshotMeta]:
    """Return the state of the newest valid snapshot and its position; the empty state if there is none."""
    for name in snapshots.names():
        try:
            reader = snapshots.open_named(name)
            try:
                return StateMachine.restore(reader.chunks(), supported), reader.meta
            finally:
                reader.close()
        except StorageError as error:
            log.error("{error}; trying an older snapshot", error=str(error))
            if isinstance(error, CorruptRecord):
                # Retention must not count a damaged snapshot as one that is kept.
                snapshots.set_aside(name)
    return StateMachine(supported=supported), SnapshotMeta(0, 0, b"")
