"""Checks the files of a stopped node, and compares them with those of another node.

A directory is *sound* if every snapshot and every log record is valid, the log continues a snapshot, and replaying the
log over the older snapshot yields the digest of the newer one. Two directories *agree* if equal entries yield equal
digests at every index that both can reach.

A log does not record which entries are committed. The last entries may therefore be missing on one node or have other
terms there. The report notes this; it is not damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coord.errors import CorruptRecord, RemoteProtocolError, StorageError
from coord.offline.describe import command_fields, command_line, text
from coord.offline.directory import Progress, StoppedDirectory, no_progress
from coord.raft.membership import decode_configuration
from coord.raft.messages import CONFIG, LEVEL, NORMAL
from coord.server.config.addresses import config_text
from coord.server.recovery.repair import covered_alone
from coord.server.recovery.startup import WAL_FOLDER, TermExhausted, check_term
from coord.storage.extent import check_end, check_files, number_of, read_extent
from coord.storage.reading import Recovered
from coord.storage.records import LogItem, LogRecord
from coord.tree.command import Command, decode_batch, encode_command
from coord.tree.machine import StateMachine
from coord.tree.node import Znode

#: Entries between two progress reports.
_PROGRESS_ENTRIES: Final = 10_000


class SnapshotFact:
    """One valid snapshot."""

    def __init__(self, name: str, index: int, term: int, zxid: int, digest: int, znodes: int, sessions: int) -> None:
        self.name = name
        self.index = index
        self.term = term
        self.zxid = zxid
        self.digest = digest
        self.znodes = znodes
        self.sessions = sessions


class DirectoryReport:
    """Findings about one directory. An empty `damage` means sound."""

    def __init__(self, directory: StoppedDirectory) -> None:
        self.directory = directory
        self.node_id = 0
        self.cluster = ""
        self.snapshots: list[SnapshotFact] = []
        self.segments = 0
        self.log_bytes = 0
        self.log = Recovered()
        #: First and last index of the replay; zxid and digest at the last index.
        self.start_index = 0
        self.index = 0
        self.zxid = 0
        self.digest = 0
        self.znodes = 0
        self.sessions = 0
        #: One line per finding, with file and offset.
        self.damage: list[str] = []
        self.notes: list[str] = []

    def is_sound(self) -> bool:
        """Return True if a node could start on the directory."""
        return not self.damage


def check(directory: StoppedDirectory, progress: Progress = no_progress) -> DirectoryReport:
    """Read and replay all files. Damage goes into the report; no exception is raised for it."""
    report = DirectoryReport(directory)
    _check_meta(report)
    _check_snapshots(report, progress)
    is_whole = _check_log(report, progress)
    if is_whole:
        _check_replay(report, progress)
    return report


def _check_meta(report: DirectoryReport) -> None:
    try:
        meta = report.directory.meta()
        report.node_id = int(meta.get("node_id", 0))
        report.cluster = str(meta.get("cluster", ""))
    except (StorageError, TypeError, ValueError) as error:
        report.damage.append(str(error))
    else:
        if not meta:
            report.notes.append("no meta.json: node and cluster of this directory are unknown")


def _check_snapshots(report: DirectoryReport, progress: Progress) -> None:
    names = report.directory.snapshots()
    for position, name in enumerate(names):
        progress(name, position, len(names))
        try:
            machine, fact = _load(report.directory, name)
        except (StorageError, OSError) as error:
            report.damage.append(str(error))
            continue
        if (machine.last_zxid, machine.digest()) != (fact.zxid, fact.digest) and fact.digest:
            report.damage.append(
                f"{name}: written as zxid {fact.zxid} digest {fact.digest:016x},"
                f" holds zxid {machine.last_zxid} digest {machine.digest():016x}"
            )
            continue
        fact.zxid, fact.digest = machine.last_zxid, machine.digest()
        report.snapshots.append(fact)


def _load(directory: StoppedDirectory, name: str) -> tuple[StateMachine, SnapshotFact]:
    """Return the state in a snapshot, and its header. Raise CorruptRecord, StorageError, UnsupportedLevel, OSError."""
    reader = directory.open_snapshot(name)
    try:
        machine = StateMachine.restore(reader.chunks())
    except CorruptRecord as error:
        if error.path == "snapshot":  # StateMachine.restore does not know the name of the file
            raise CorruptRecord(
                str(directory.path / "snap" / name), error.offset, error.expected, error.actual
            ) from error
        raise
    finally:
        reader.close()
    meta = reader.meta
    counts = len(machine.tree.nodes), len(machine.sessions)
    return machine, SnapshotFact(name, meta.index, meta.term, meta.zxid, meta.digest, *counts)


def _check_log(report: DirectoryReport, progress: Progress) -> bool:
    """Read the log to its end. Return False if it is damaged."""
    files = report.directory.log()
    report.segments = len(files.names)
    is_whole = False
    try:
        disk = report.directory.disk
        extent = read_extent(disk)
        check_files(disk, WAL_FOLDER, files.names, extent)
        if extent is None and report.snapshots and report.snapshots[-1].index and not files.names:
            raise CorruptRecord(disk.where(WAL_FOLDER), 0, "the log after a snapshot", "no segments")
        ends: dict[str, int] = {}
        for where, record in files.records(progress):
            _take(report.log, where, record)
            ends[where] = record.offset + record.size
        for name in files.names:
            where = disk.where(f"{WAL_FOLDER}/{name}")
            check_end(where, number_of(name), ends.get(where, 0), extent)
        is_whole = True
    except CorruptRecord as error:
        is_whole = _skip_covered(report)
        if is_whole:
            files.bytes = sum(files.size_of(name) for name in files.names)
        else:
            report.damage.append(str(error))
    except (StorageError, OSError) as error:
        report.damage.append(str(error))
    try:
        check_term(str(report.directory.path), max(report.log.term, report.log.last_term()))
    except TermExhausted as error:
        report.damage.append(str(error))
    report.log_bytes = files.bytes
    if files.cut:
        report.notes.append(files.cut)
    return is_whole


def _skip_covered(report: DirectoryReport) -> bool:
    """Read the log past damage that does not prevent a start. Return False for any other damage."""
    if not report.snapshots:
        return False
    try:
        reader = report.directory.open_snapshot(report.snapshots[-1].name)
        reader.close()
        covered = covered_alone(report.directory.disk, report.node_id, reader.meta)
    except (StorageError, OSError):
        return False
    report.log = covered.log
    for damage in covered.damage:
        report.notes.append(
            f"{damage}: the snapshot at {reader.meta.index} covers these records, no data is missing; the node moves"
            " them aside at the start. Check the disk"
        )
    if covered.cut:
        report.notes.append(covered.cut)
    return True


def _take(log: Recovered, where: str, record: LogRecord) -> None:
    for item in record.items:
        try:
            log.take(item)
        except ValueError as error:
            raise CorruptRecord(where, record.offset, error, item) from error


def _check_replay(report: DirectoryReport, progress: Progress) -> None:
    """Replay the log from the oldest start to its end, and compare with every newer snapshot on the way."""
    starts = possible_starts(report)
    if not starts:
        report.damage.append(
            f"{report.directory.path}: the log begins after {report.log.base_index}, and no valid snapshot reaches it"
        )
        return
    replay = Replay(report, starts[0])
    report.start_index = replay.index
    known = {fact.index: fact for fact in report.snapshots}
    last = replay.last_index()
    for _ in replay.steps():
        if replay.index % _PROGRESS_ENTRIES == 0:
            progress("replay", replay.index - report.start_index, last - report.start_index)
        if replay.fault:
            report.damage.append(replay.fault)
            break
        fact = known.get(replay.index)
        state = (replay.machine.last_zxid, replay.machine.digest())
        if fact is not None and (fact.zxid, fact.digest) != state:
            report.damage.append(
                f"{fact.name}: holds zxid {fact.zxid} digest {fact.digest:016x}, the log leads to"
                f" zxid {state[0]} digest {state[1]:016x}"
            )
    report.notes += replay.notes
    machine = replay.machine
    report.index, report.zxid, report.digest = replay.index, machine.last_zxid, machine.digest()
    report.znodes, report.sessions = len(machine.tree.nodes), len(machine.sessions)


def possible_starts(report: DirectoryReport) -> list[SnapshotFact | None]:
    """Return the states from which a node can reach the end of the log, oldest first. None is the empty state.

    These are the valid snapshots that the log continues. If the log does not continue the newest one, return only that.
    """
    log = report.log
    if report.snapshots and not _continues(log, report.snapshots[-1]):
        return [report.snapshots[-1]]
    known: list[SnapshotFact | None] = [fact for fact in report.snapshots if _continues(log, fact)]
    return [None, *known] if log.base_index == 0 else known


def _continues(log: Recovered, fact: SnapshotFact) -> bool:
    """Return True if the log contains the entries after the snapshot, by the rule of
    `coord.server.recovery.startup`."""
    place = fact.index - log.base_index - 1
    if place >= 0:
        return place < len(log.entries) and log.entries[place].term == fact.term
    return place == -1 and log.base_term in (0, fact.term)


class Replay:
    """The state of one directory while its log is replayed."""

    def __init__(self, report: DirectoryReport, start: SnapshotFact | None) -> None:
        """Begin at a snapshot, or at the empty state. Raise StorageError, OSError."""
        self.machine = StateMachine() if start is None else _load(report.directory, start.name)[0]
        self.index = 0 if start is None else start.index
        self.term = 0 if start is None else start.term
        #: The entry applied at `index`; None at the start.
        self.entry: LogItem | None = None
        self.fault = ""
        self.notes: list[str] = []
        log = report.log
        if start is None:
            self._entries = log.entries
        elif _continues(log, start):
            self._entries = log.entries[start.index - log.base_index :]
        else:
            self._entries = []
            self.notes.append(
                f"the log has no record of the snapshot at {start.index}; a node adds the record when it starts"
            )

    def last_index(self) -> int:
        """Return the last index that the replay can reach."""
        return self._entries[-1].index if self._entries else self.index

    def steps(self) -> Iterator[LogItem]:
        """Apply entry after entry, and yield each after it is applied."""
        for entry in self._entries:
            if entry.index != self.index + 1 or entry.term < self.term:
                self.fault = f"entry {entry.term}/{entry.index} follows {self.term}/{self.index}"
            if entry.kind == NORMAL:
                self.machine.apply_batch(entry.data)
            else:
                self.apply_other(entry)
            self.index, self.term, self.entry = entry.index, entry.term, entry
            yield entry

    def apply_other(self, entry: LogItem) -> None:
        """Apply an entry that holds no commands of clients."""
        if entry.kind == CONFIG:
            self._apply_members(entry)
        elif entry.kind == LEVEL:
            self._raise_level(entry)

    def _raise_level(self, entry: LogItem) -> None:
        try:
            self.machine.raise_level(entry.data)
        except ValueError as error:
            self.fault = f"entry {entry.term}/{entry.index}: {error}"

    def _apply_members(self, entry: LogItem) -> None:
        try:
            self.machine.apply_membership(config_text(decode_configuration(entry.data)))
        except ValueError as error:
            self.fault = f"entry {entry.term}/{entry.index}: {error}"


# --- two directories -------------------------------------------------------------------------------------------------


class Comparison:
    """Result of comparing two directories."""

    def __init__(self) -> None:
        #: Every index from `first_index` to `last_index` was compared and is equal.
        self.first_index = 0
        self.last_index = 0
        self.zxid = 0
        self.digest = 0
        #: The first difference in one line; empty if there is none.
        self.difference = ""
        self.notes: list[str] = []


def compare(first: DirectoryReport, second: DirectoryReport, progress: Progress = no_progress) -> Comparison:
    """Replay both to every common index and compare. Both reports are sound. Raise StorageError, OSError."""
    found = Comparison()
    if first.cluster != second.cluster:
        found.notes.append(f"they belong to different clusters: {first.cluster} and {second.cluster}")
    starts = _common_start(first, second)
    if starts is None:
        found.difference = "the directories have no common index"
        return found
    a, b = starts
    a_steps, b_steps = a.steps(), b.steps()
    while a.index != b.index:
        if next(a_steps if a.index < b.index else b_steps, None) is None:
            found.difference = f"the logs do not meet: {a.index} and {b.index}"
            return found
    found.first_index = found.last_index = a.index
    last = min(a.last_index(), b.last_index())
    found.difference = _difference(a, b)
    while not found.difference:
        found.last_index, found.zxid, found.digest = a.index, a.machine.last_zxid, a.machine.digest()
        if a.index % _PROGRESS_ENTRIES == 0:
            progress("compare", a.index - found.first_index, last - found.first_index)
        left, right = next(a_steps, None), next(b_steps, None)
        if left is None or right is None:
            break
        if left.term != right.term:
            _note_term_mismatch(found, first, second, left, right)
            break
        found.difference = _difference(a, b)
    ends = (a.last_index(), b.last_index())
    if ends[0] != ends[1]:
        found.notes.append(f"one log ends at {ends[0]}, the other at {ends[1]}")
    return found


def _common_start(first: DirectoryReport, second: DirectoryReport) -> tuple[Replay, Replay] | None:
    """Return the pair of oldest states that can be replayed to one common index, or None."""
    pairs = [
        (max(_index(x), _index(y)), _index(x) + _index(y), x, y)
        for x in possible_starts(first)
        for y in possible_starts(second)
    ]
    for _, _, x, y in sorted(pairs, key=lambda pair: pair[:2]):
        a, b = Replay(first, x), Replay(second, y)
        if max(a.index, b.index) <= min(a.last_index(), b.last_index()):
            return a, b
    return None


def _index(start: SnapshotFact | None) -> int:
    return start.index if start is not None else 0


def _note_term_mismatch(
    found: Comparison, first: DirectoryReport, second: DirectoryReport, left: LogItem, right: LogItem
) -> None:
    """Record different terms at one index. Only one of the entries can be committed, so only one can be applied."""
    kept = [max((fact.index for fact in report.snapshots), default=0) for report in (first, second)]
    line = f"at index {left.index} one log has an entry of term {left.term}, the other of term {right.term}"
    if min(kept) >= left.index:
        found.difference = f"{line}, and both nodes have applied their entry"
    else:
        found.notes.append(f"{line}: at least one of the entries is not committed")


def _difference(a: Replay, b: Replay) -> str:
    """Return the difference at the common index, or "" if there is none."""
    left, right = a.entry, b.entry
    where = f"index {a.index}"
    if left is not None and right is not None and (left.kind, left.data) != (right.kind, right.data):
        return f"{where}: entry {left.term}/{left.index} has different contents: {_first_command(left, right)}"
    x, y = a.machine, b.machine
    if x.last_zxid != y.last_zxid:
        return f"{where}: zxid {x.last_zxid} and {y.last_zxid}"
    if x.digest() != y.digest():
        return f"{where}, zxid {x.last_zxid}: digest {x.digest():016x} and {y.digest():016x}: {first_change(x, y)}"
    return ""


def _first_command(left: LogItem, right: LogItem) -> str:
    """Return the first command in which two entries differ."""
    try:
        (_, ours), (_, theirs) = decode_batch(left.data), decode_batch(right.data)
    except RemoteProtocolError:
        return f"{len(left.data)} B and {len(right.data)} B"
    for x, y in zip(ours, theirs, strict=False):
        if _encoded(x) != _encoded(y):
            return f"{command_line(command_fields(x))} and {command_line(command_fields(y))}"
    return f"{len(ours)} and {len(theirs)} commands"


def _encoded(command: Command) -> bytes:
    return encode_command(command.session_id, command.owner, command.cxid, command.opcode, command.body)


def first_change(x: StateMachine, y: StateMachine) -> str:
    """Return the first znode, or else session, in which two states differ."""
    for path in sorted(x.tree.nodes.keys() | y.tree.nodes.keys()):
        left, right = x.tree.nodes.get(path), y.tree.nodes.get(path)
        if left is None or right is None:
            return f"znode {text(path)} is only on the {'second' if left is None else 'first'}"
        if _content(left) != _content(right):
            names = [
                name
                for name, ours, theirs in zip(_PARTS, _content(left), _content(right), strict=True)
                if ours != theirs
            ]
            return f"znode {text(path)} differs in {', '.join(names)}"
    for session_id in sorted(x.sessions.sessions.keys() | y.sessions.sessions.keys()):
        ours, theirs = x.sessions.find(session_id), y.sessions.find(session_id)
        if ours is None or theirs is None or ours.digest_part != theirs.digest_part:
            return f"session {session_id:#x}"
    return "no znode and no session"


_PARTS: Final = ("Stat", "data", "access list", "kind", "ttl", "sequence counter")


def _content(node: Znode) -> tuple[object, ...]:
    return node.stat(), node.data, node.acl.encoded, node.kind, node.ttl_ms, node.creates
