"""A node's disk. A write is durable only after the next sync; a crash keeps a prefix of the unsynced writes."""

from __future__ import annotations

from coord.raft.messages import CONFIG, Entry, HardState, Message, RaftSnapshot
from simulation.engine.chance import SeededRandom


class Record:
    """The writes of one Ready, and the messages that wait for them."""

    def __init__(
        self, number: int, snapshot: RaftSnapshot | None, hard_state: HardState | None, entries: list[Entry]
    ) -> None:
        self.number = number
        self.snapshot = snapshot
        self.hard_state = hard_state
        self.entries = entries
        self.after: list[Message] = []


class SimDisk:
    """Durable state, and the ordered queue of writes that are not durable yet."""

    def __init__(self, snapshot: RaftSnapshot) -> None:
        self.hard_state = HardState(0, 0)
        self.snapshot = snapshot
        self.log: list[Entry] = []
        self.queue: list[Record] = []

    def write(self, record: Record) -> None:
        """Pass a record to the operating system; it is not durable yet."""
        self.queue.append(record)

    def sync(self, count: int) -> list[Record]:
        """Make the first `count` records of the queue durable and return them."""
        done = self.queue[:count]
        del self.queue[:count]
        for record in done:
            self._perform(record, len(record.entries))
        return done

    def save_snapshot(self, meta: RaftSnapshot, keep: int) -> None:
        """Save the node's own snapshot in a separate file. The log up to index `keep` may be dropped."""
        if meta.index <= self.snapshot.index:
            return
        self.snapshot = meta
        self.log = [entry for entry in self.log if entry.index > keep]

    def newest_config(self) -> int:
        """Return the index of the newest configuration in this log, committed or not; 0 without one."""
        return max((entry.index for entry in self.log if entry.kind == CONFIG), default=0)

    def crash(self, chance: SeededRandom) -> bool:
        """Cut the power: a prefix of the queue survives, perhaps with a part of its last record. Return True if a
        record was torn."""
        queue, self.queue = self.queue, []
        survivors = chance.below(len(queue) + 1)
        for record in queue[:survivors]:
            self._perform(record, len(record.entries))
        if survivors == len(queue) or chance.happens(0.5):
            return False
        torn = queue[survivors]
        self._perform(torn, chance.below(len(torn.entries) + 1))
        return True

    def holds(self, index: int, term: int) -> bool:
        """Return True if the entry (index, term) is durable here, in the log or in the snapshot."""
        log = self.log
        if log and log[0].index <= index <= log[-1].index:
            return log[index - log[0].index].term == term
        return index <= self.snapshot.index

    def _perform(self, record: Record, entries: int) -> None:
        if record.snapshot is not None and record.snapshot.index > self.snapshot.index:
            self.snapshot = record.snapshot
            self.log = []
        if record.hard_state is not None:
            self.hard_state = record.hard_state
        if entries:
            new = record.entries[:entries]
            log = self.log
            first = new[0].index
            if not log or first > log[-1].index + 1 or first < log[0].index:
                # A gap only follows the node's own snapshot, if it overtook the log.
                assert not log or first <= self.snapshot.index + 1, f"gap on disk before {first}"
                self.log = new
            else:
                del log[first - log[0].index :]
                log.extend(new)
