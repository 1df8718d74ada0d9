"""The replicated log in memory: the position of a snapshot, the entries after it, and their configurations.

    offset           applying    commit    persisting       last
      |  ..........  |  .......  |  .......  |  ..........  |
                               stable: anywhere up to `persisting`

Entries stay until the shell compacts them. A group of one keeps no applied entry, because no peer needs it. When
another member is added, the shell takes a new snapshot first.
"""

from __future__ import annotations

from coord.raft.membership import Configuration
from coord.raft.messages import CONFIG, Entry, RaftSnapshot


class RaftLog:
    """Entries offset+1 .. last, contiguous.

    Invariant: offset, snapshot.index <= applying <= commit <= last; stable <= persisting <= last; terms never decrease.
    With peers, offset <= snapshot.index (`reaches_snapshot`).
    """

    def __init__(self, snapshot: RaftSnapshot, durable: list[Entry]) -> None:
        #: The newest snapshot that can be offered to peers. Moves forward when the shell has saved one, or when the
        #: leader's snapshot replaces the log.
        self.snapshot: RaftSnapshot = snapshot
        #: Index and term of the last compacted entry: entries[0] is at offset + 1. Moves forward by `compact` and
        #: `restart`.
        self.offset: int = snapshot.index
        self.offset_term: int = snapshot.term
        self.entries: list[Entry] = _usable(snapshot, durable)
        if self.entries and self.entries[0].index <= snapshot.index:
            # Kept from before the snapshot, for slow peers. The first entry serves only as the position before the
            # second, unless the log is complete.
            if self.entries[0].index == 1:
                self.offset = 0
                self.offset_term = 0
            else:
                first = self.entries.pop(0)
                self.offset = first.index
                self.offset_term = first.term
        #: Index and term of the last entry. Decreases only by `truncate`, on a follower.
        self.last: int = self.entries[-1].index if self.entries else self.offset
        self.last_term: int = self.entries[-1].term if self.entries else self.offset_term
        #: Highest index known to be committed. Never decreases. Not durable: a restarted node learns it again.
        self.commit: int = snapshot.index
        #: Highest index passed to the shell to be applied. Moves with each Ready that has committed entries. Never
        #: decreases and never exceeds `commit`.
        self.applying: int = snapshot.index
        #: Highest index passed to the shell to be written. Moves with each Ready that has entries. Decreases when the
        #: log is truncated below it.
        self.persisting: int = self.last
        #: Highest index that is durable here. Moves when the shell confirms a Ready. Decreases when the log is
        #: truncated below it. Only entries up to here may be acknowledged, or counted for this node.
        self.stable: int = self.last
        assert self.offset <= snapshot.index, f"log begins after {self.offset}, the snapshot is at {snapshot.index}"
        assert snapshot.index <= self.last, f"log ends at {self.last}, before the snapshot at {snapshot.index}"

    # --- reading

    def term_at(self, index: int) -> int:
        """Return the term of the entry at `index`, or -1 if it is compacted or beyond the end."""
        if index == self.last:
            return self.last_term
        position = index - self.offset - 1
        if position < 0:
            return self.offset_term if position == -1 else -1
        return self.entries[position].term if index < self.last else -1

    def is_up_to_date(self, index: int, term: int) -> bool:
        """Return True if a log that ends at (index, term) is at least as up to date as this one: Raft §5.4.1."""
        return term > self.last_term or (term == self.last_term and index >= self.last)

    def reaches_snapshot(self) -> bool:
        """Return True if the log has all entries after the snapshot, so that a peer can continue from it."""
        return self.offset <= self.snapshot.index

    def between(self, first: int, last: int) -> list[Entry]:
        """Return a new list of the entries first .. last, both included."""
        assert first > self.offset, f"{first} is compacted, the log begins after {self.offset}"
        assert last <= self.last, f"{last} is beyond the end of the log at {self.last}"
        return self.entries[first - self.offset - 1 : last - self.offset]

    def entries_from(self, first: int, max_bytes: int) -> list[Entry]:
        """Return entries from `first` on, as many as fit into `max_bytes`, but at least one if there is one."""
        start = first - self.offset - 1
        assert start >= 0, f"{first} is compacted, the log begins after {self.offset}"
        entries = self.entries
        end = start
        room = max_bytes
        while end < len(entries):
            room -= len(entries[end].data)
            if room < 0 and end > start:
                break
            end += 1
        return entries[start:end]

    def find_conflict_by_term(self, index: int, term: int) -> tuple[int, int]:
        """Return the highest position (index, term) of this log at or below `index` whose term is at most `term`.

        Every entry between that position and `index` has a later term, so it cannot match a log that has `term` at
        `index`. Leader and follower both search there, so one round trip skips a whole term (Raft §5.3, end). The
        search ends at the commit index at the latest, because committed entries match.
        """
        index = min(index, self.last)
        while index >= self.offset:
            own = self.term_at(index)
            if own <= term:
                return index, own
            index -= 1
        return index, 0

    # --- changing

    def append(self, term: int, kind: int, data: bytes) -> int:
        """Append one entry of this node, which leads `term`, and return its index."""
        assert term >= self.last_term, f"an entry of term {term} after one of term {self.last_term}"
        index = self.last + 1
        self.entries.append(Entry(term, index, kind, data))
        self.last = index
        self.last_term = term
        return index

    def first_difference(self, entries: list[Entry]) -> int:
        """Return the position in `entries` of the first one that the log lacks, len(entries) if it has all.

        The entry before entries[0] must match. Only a real conflict may truncate the log: after a late, shorter append
        the log keeps the entries acknowledged since (Raft §5.3: "if an existing entry conflicts").
        """
        assert entries, "an append without entries conflicts with nothing"
        first = entries[0].index
        if first > self.last:
            return 0
        own = self.entries
        position = first - self.offset - 1
        for i, entry in enumerate(entries):
            if position + i >= len(own) or own[position + i].term != entry.term:
                return i
        return len(entries)

    def extend(self, entries: list[Entry]) -> None:
        """Append entries that the leader sent; entries[0] follows `last`."""
        assert entries[0].index == self.last + 1, f"gap: {entries[0].index} after {self.last}"
        assert entries[0].term >= self.last_term, f"term {entries[0].term} after term {self.last_term}"
        self.entries.extend(entries)
        self.last = entries[-1].index
        self.last_term = entries[-1].term

    def truncate(self, index: int) -> None:
        """Remove the entries from `index` on. A committed entry is never removed: Raft §5.4."""
        assert index > self.commit, f"truncation at {index} of a log committed up to {self.commit}"
        assert index <= self.last, f"truncation at {index} of a log that ends at {self.last}"
        del self.entries[index - self.offset - 1 :]
        self.last = index - 1
        self.last_term = self.entries[-1].term if self.entries else self.offset_term
        self.persisting = min(self.persisting, self.last)
        self.stable = min(self.stable, self.last)

    def commit_to(self, index: int) -> bool:
        """Advance the commit index to `index`. Return False if it is there already. It never decreases."""
        if index <= self.commit:
            return False
        assert index <= self.last, f"commit {index} beyond the end of the log {self.last}"
        self.commit = index
        return True

    def floor(self, index: int, entries_max: int, bytes_max: int) -> int:
        """Return the index up to which to compact so that at most this much remains at and before `index`.

        The rest is kept for peers that are slightly behind. The two limits bound its cost.
        """
        assert index <= self.last, f"floor at {index} of a log that ends at {self.last}"
        position = index - self.offset
        lowest = max(0, position - entries_max)
        room = bytes_max
        while position > lowest:
            room -= len(self.entries[position - 1].data)
            if room < 0:
                break
            position -= 1
        return self.offset + max(0, position)

    def compact(self, index: int) -> None:
        """Drop the entries up to `index`, which have been passed to the shell to be applied."""
        if index <= self.offset:
            return
        assert index <= self.applying, f"compaction at {index}, handed out for applying up to {self.applying}"
        term = self.term_at(index)
        assert term >= self.offset_term, f"entry {index} of term {term} after term {self.offset_term}"
        del self.entries[: index - self.offset]
        self.offset = index
        self.offset_term = term

    def restart(self, snapshot: RaftSnapshot) -> None:
        """Replace the whole log by the leader's snapshot: Raft §7."""
        assert snapshot.index > self.commit, f"snapshot at {snapshot.index} not beyond commit {self.commit}"
        # Durable and committed entries stay durable; the snapshot itself is not durable yet.
        self.stable = min(self.stable, self.commit)
        self.snapshot = snapshot
        self.entries = []
        self.offset = self.last = self.commit = self.applying = self.persisting = snapshot.index
        self.offset_term = self.last_term = snapshot.term

    def validate(self) -> None:
        """Raise AssertionError if an invariant of the class does not hold. For tests: reads every entry."""
        index = self.offset
        term = self.offset_term
        for entry in self.entries:
            index += 1
            assert entry.index == index, f"entry {entry.index} is at position {index}"
            assert entry.term >= term, f"entry {index} of term {entry.term} follows one of term {term}"
            term = entry.term
        assert self.last == index, f"last is {self.last}, the entries end at {index}"
        assert self.last_term == term, f"last_term is {self.last_term}, the last entry has {term}"
        assert self.offset <= self.applying, f"compacted up to {self.offset}, applying only {self.applying}"
        assert self.snapshot.index <= self.applying, f"snapshot at {self.snapshot.index}, applying {self.applying}"
        assert self.applying <= self.commit, f"applying {self.applying}, committed only {self.commit}"
        assert self.commit <= self.last, f"committed {self.commit}, the log ends at {self.last}"
        assert self.stable <= self.persisting, f"durable up to {self.stable}, written only up to {self.persisting}"
        assert self.persisting <= self.last, f"written up to {self.persisting}, the log ends at {self.last}"


class CommittedConfig:
    """A committed configuration, and the term and index of its entry: (0, 0) if it has no entry, or it is unknown."""

    def __init__(self, term: int, index: int, config: Configuration) -> None:
        self.term: int = term
        self.index: int = index
        self.config: Configuration = config


class ConfigLog:
    """The configurations in the log by index: the one in force, and older ones.

    Invariant: `indexes` ascends. After the first item there is one for each CONFIG entry of the log.
    """

    def __init__(self, index: int, config: Configuration, config_id: tuple[int, int] = (0, 0)) -> None:
        """Begin with `config`, which is in force at `index`. `config_id`: the term and index of its entry, if known."""
        self.indexes: list[int] = [index]
        self.configs: list[Configuration] = [config]
        #: Term and index of the entry of each configuration; (0, 0): of no entry, or unknown.
        self.ids: list[tuple[int, int]] = [config_id]
        #: The configuration in force, which is the newest. Moves with each CONFIG entry that is appended, truncated or
        #: replaced by a snapshot.
        self.current: Configuration = config

    def newest_index(self) -> int:
        """Return the index of the entry with the configuration in force."""
        return self.indexes[-1]

    def append(self, index: int, config: Configuration, term: int) -> None:
        """Put `config` in force: an entry of `term` with it was appended at `index`."""
        assert index > self.indexes[-1], f"configuration at {index} after one at {self.indexes[-1]}"
        self.ids.append((term, index))
        self.indexes.append(index)
        self.configs.append(config)
        self.current = config

    def truncate(self, index: int) -> bool:
        """Drop the configurations from `index` on, with their entries. Return True if the one in force changes."""
        assert index > self.indexes[0], f"truncated at {index}, the oldest configuration is at {self.indexes[0]}"
        reverted = False
        while self.indexes[-1] >= index:
            self.indexes.pop()
            self.configs.pop()
            self.ids.pop()
            reverted = True
        self.current = self.configs[-1]
        return reverted

    def at(self, index: int) -> Configuration:
        """Return the configuration that is in force when the log ends at `index`."""
        position = len(self.indexes) - 1
        while self.indexes[position] > index:
            position -= 1
            assert position >= 0, f"no configuration known at {index}; oldest at {self.indexes[0]}"
        return self.configs[position]

    def committed(self, commit: int) -> CommittedConfig:
        """Return the newest configuration whose entry is committed; the log is committed up to `commit`."""
        position = len(self.indexes) - 1
        while position and self.indexes[position] > commit:
            position -= 1
        if self.ids[0][1] > self.ids[position][1]:
            position = 0  # The shell knows a later one than the state machine, which began at an older entry.
        term, index = self.ids[position]
        return CommittedConfig(term, index, self.configs[position])

    def may_stand(self, node: int, memory: int, commit: int) -> bool:
        """Return True if `node` with its `memory` may become a candidate; the log is committed up to `commit`.

        A voter may. So may a node that the newest, uncommitted configuration removes: it may be the only one that has
        that entry and all entries before it. Its own vote does not count then. Dissertation §4.2.2.
        """
        if self.current.is_voter(node):
            return self.current.memory_of(node) == memory
        newest = self.newest_index()
        return newest > commit and self.at(newest - 1).counts(node, memory)

    def forget_before(self, index: int) -> None:
        """Drop configurations that are needed only below `index`."""
        while len(self.indexes) > 1 and self.indexes[1] <= index:
            del self.indexes[0]
            del self.configs[0]
            del self.ids[0]

    def restart(self, index: int, config: Configuration) -> None:
        """Start again with `config`, because a snapshot at `index` replaced the log."""
        assert index > self.indexes[0], f"snapshot at {index}, the oldest configuration is at {self.indexes[0]}"
        self.indexes = [index]
        self.configs = [config]
        self.ids = [(0, 0)]
        self.current = config

    def validate(self, log: RaftLog) -> None:
        """Raise AssertionError if the invariant does not hold for `log`. For tests."""
        assert len(self.indexes) == len(self.configs), f"{len(self.configs)} configurations at {self.indexes}"
        assert len(self.ids) == len(self.indexes), f"{len(self.ids)} ids of configurations at {self.indexes}"
        assert self.current is self.configs[-1], f"{self.current} is in force, the newest is {self.configs[-1]}"
        first = self.indexes[0]
        assert first <= log.snapshot.index, f"the oldest configuration is at {first}, after the snapshot"
        logged = [entry for entry in log.entries if entry.kind == CONFIG and entry.index > first]
        inside = [index for index in self.indexes[1:] if index > log.offset]
        assert [entry.index for entry in logged] == inside, f"configurations at {self.indexes}, not as in the log"
        for entry in logged:
            known = self.at(entry.index)
            known.validate()
            assert known.encode() == entry.data, f"the configuration at {entry.index} differs from its entry"


def _usable(snapshot: RaftSnapshot, durable: list[Entry]) -> list[Entry]:
    """Return a new list of the entries on disk that continue the snapshot or lead up to it.

    A crash may come after a snapshot was installed and before the old log was dropped. A log that ends before the
    snapshot, or contradicts it, is older than the snapshot and is dropped here.
    """
    if not durable:
        return []
    first = durable[0].index
    for i, entry in enumerate(durable):
        assert entry.index == first + i, f"gap in the log on disk: {entry.index} where {first + i} should be"
    if durable[-1].index < snapshot.index:
        return []
    assert first <= snapshot.index + 1, f"gap between the snapshot at {snapshot.index} and the log from {first}"
    if first <= snapshot.index and durable[snapshot.index - first].term != snapshot.term:
        return []
    return list(durable)
