"""Recovery of a stopped node's state from its data directory, even if no node can start on it any more.

`salvage` reads the newest valid snapshot and the log entries that continue it. It stops at a damaged record; the result
lists what was left out. The files are opened read-only.

A log does not record which entries are committed. Entries in a snapshot are committed. Later entries may or may not be,
unless the node is the only voter: an acknowledged write is in the logs of a majority, and an unacknowledged one may be
in this log, too. By default all entries are applied, as if this node won the next election; `committed_only` leaves the
uncertain ones out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from crc32c import crc32c

from coord.errors import StorageError
from coord.offline.directory import Progress, StoppedDirectory, no_progress
from coord.raft.membership import Configuration, decode_configuration
from coord.raft.messages import CONFIG, LEVEL, NORMAL
from coord.server.config.addresses import config_text
from coord.server.membership.joining import JOINING_FILE
from coord.server.recovery.startup import WAL_FOLDER
from coord.storage.backup import CRC, BackupManifest
from coord.storage.reading import Recovered, SegmentReader
from coord.storage.records import LogItem
from coord.storage.snapshot import SnapshotMeta, encode_snapshot
from coord.tree.machine import StateMachine

#: Entries between two progress reports.
_PROGRESS_ENTRIES: Final = 10_000


class Salvaged:
    """State of a directory. `machine` is at (term, index)."""

    def __init__(self, node_id: int, cluster: str, machine: StateMachine, start: SnapshotMeta) -> None:
        self.node_id = node_id
        self.cluster = cluster
        self.machine = machine
        #: Index of the snapshot at which the replay began, 0 without a snapshot.
        self.snapshot_index = start.index
        self.index = start.index
        self.term = start.term
        self.config = start.config
        #: Entries up to this index are known to be committed.
        self.committed_index = start.index
        #: One line for each part that is missing from the state, although the directory had it, or may have had it.
        self.missing: list[str] = []

    def is_committed(self) -> bool:
        """Return True if the whole state is known to be committed."""
        return self.committed_index >= self.index


def salvage(directory: StoppedDirectory, *, committed_only: bool = False, progress: Progress = no_progress) -> Salvaged:
    """Apply the log to the newest valid snapshot. Raise StorageError or OSError if nothing can be recovered."""
    missing: list[str] = []
    runs = list(_runs(directory, missing, progress))
    start, machine, run = _best(directory, runs, missing)
    node_id, cluster = _whose(directory, missing)
    found = Salvaged(node_id, cluster, machine, start)
    found.missing = missing
    entries = [] if run is None else run.entries[start.index - run.base_index :]
    is_alone = _voters(directory, start, entries) == [node_id] and node_id > 0
    if committed_only and not is_alone:
        entries = []
    for entry in entries:
        if entry.index % _PROGRESS_ENTRIES == 0:
            progress("replay", entry.index - start.index, entries[-1].index - start.index)
        try:
            _apply(found, entry)
        except ValueError as error:
            missing.append(f"entry {entry.index} and what follows: {error}")
            break
    if is_alone:
        found.committed_index = found.index
    if (directory.path / JOINING_FILE).exists():
        missing.append("entries that the node had not received: it was joining, and other nodes have more")
    return found


def _whose(directory: StoppedDirectory, missing: list[str]) -> tuple[int, str]:
    try:
        meta = directory.meta()
        return int(meta.get("node_id", 0)), str(meta.get("cluster", ""))
    except (StorageError, OSError, TypeError, ValueError) as error:
        missing.append(f"the node's id and its cluster: {error}")
        return 0, ""


def _runs(directory: StoppedDirectory, missing: list[str], progress: Progress) -> Iterator[Recovered]:
    """Yield the undamaged runs of the log, oldest first."""
    run = Recovered()
    sequence = 0
    is_first = True
    names = directory.log().names
    for position, name in enumerate(names):
        progress(name, position, len(names))
        try:
            reader = SegmentReader(directory.disk, f"{WAL_FOLDER}/{name}")
            for record in reader.records(sequence, is_first=is_first, is_last=position == len(names) - 1):
                for item in record.items:
                    run.take(item)
        except (StorageError, ValueError, OSError) as error:
            missing.append(f"entries after {run.last_index()} that no snapshot covers: {error}")
            yield run
            run, sequence, is_first = Recovered(), 0, True
            continue
        sequence, is_first = reader.sequence, False
        if reader.cut:
            missing.append(f"a torn record, never acknowledged: {reader.cut}")
    yield run


def _best(
    directory: StoppedDirectory, runs: list[Recovered], missing: list[str]
) -> tuple[SnapshotMeta, StateMachine, Recovered | None]:
    """Return the start that reaches the highest index: a snapshot or the empty state, and the run that continues it."""
    starts: list[tuple[SnapshotMeta, StateMachine]] = []
    for name in directory.snapshots():
        try:
            reader = directory.open_snapshot(name)
            try:
                starts.append((reader.meta, StateMachine.restore(reader.chunks())))
            finally:
                reader.close()
        except (StorageError, OSError) as error:
            missing.append(f"snapshot {name}: {error}")
    if any(run.base_index == 0 and run.entries for run in runs):
        starts.append((SnapshotMeta(0, 0, b""), StateMachine()))
    if not starts:
        raise StorageError(
            f"{directory.path} holds no state: no snapshot is valid, and the log does not begin at entry 1"
        )
    found: list[tuple[int, int, int]] = []
    for i, (meta, _) in enumerate(starts):
        found.append((meta.index, meta.index, i))
        found += [(run.last_index(), meta.index, i) for run in runs if _continues(run, meta)]
    end, _, chosen = max(found)
    meta, machine = starts[chosen]
    run = next((run for run in runs if end > meta.index and run.last_index() == end and _continues(run, meta)), None)
    return meta, machine, run


def _continues(run: Recovered, meta: SnapshotMeta) -> bool:
    """Return True if the run contains the entries after the snapshot."""
    place = meta.index - run.base_index - 1
    if place >= 0:
        return place < len(run.entries) and run.entries[place].term == meta.term
    return place == -1 and run.base_term in (0, meta.term)


def _voters(directory: StoppedDirectory, start: SnapshotMeta, entries: list[LogItem]) -> list[int]:
    """Return the voters if all configurations in the directory agree on them, else []."""
    configs = [entry.data for entry in entries if entry.kind == CONFIG]
    try:
        first = decode_configuration(start.config).voters if start.config else list(directory.meta().get("voters", []))
        later = [decode_configuration(data).voters for data in configs]
    except (StorageError, ValueError, TypeError):
        return []
    return first if all(voters == first for voters in later) else []


def _apply(found: Salvaged, entry: LogItem) -> None:
    """Apply one entry. Raise ValueError if the entry cannot be applied."""
    if entry.kind == NORMAL:
        found.machine.apply_batch(entry.data)
    elif entry.kind == CONFIG:
        config = decode_configuration(entry.data)
        found.machine.apply_membership(config_text(config))
        found.config = entry.data
    elif entry.kind == LEVEL:
        found.machine.raise_level(entry.data)
    found.index, found.term = entry.index, entry.term


def write_backup(found: Salvaged, file: Path, created_ms: int) -> BackupManifest:
    """Write the state as a backup file, durable on return. Raise OSError."""
    machine = found.machine
    config = found.config or Configuration([found.node_id or 1]).encode()
    meta = SnapshotMeta(found.index, found.term, config, machine.last_zxid, machine.digest())
    size = sum(len(piece) for piece in encode_snapshot(meta, machine.snapshot_chunks()))
    manifest = BackupManifest(
        found.cluster, found.node_id, meta.index, meta.term, meta.zxid, meta.digest, size, created_ms
    )
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as out:
        crc = 0
        for piece in chain([manifest.encode()], encode_snapshot(meta, machine.snapshot_chunks())):
            out.write(piece)
            crc = crc32c(piece, crc)
        out.write(CRC.pack(crc))
        out.flush()
        os.fsync(out.fileno())
    return manifest
