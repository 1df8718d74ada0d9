"""The replicated log as the core sees it: a snapshot's position, and all entries behind it, in memory.

    offset            handed    commit     saved          last
      |  applied ....  |  .......  |  .......  |  ........  |
                                 stable: somewhere up to `saved`

Entries are kept until the shell compacts them; what is durable trails what was handed out for writing. A group of one
keeps none that is applied: nobody else wants it. When another member comes, a new snapshot has to be taken first.
"""

from __future__ import annotations

from coord.raft.messages import Entry, RaftSnapshot


class RaftLog:
    """Entries offset+1 .. last, contiguous.

    Invariant: offset, snapshot.index <= handed <= commit <= last, stable <= saved <= last. With peers to feed,
    offset <= snapshot.index; `reaches_snapshot` tells.
    """

    def __init__(self, snapshot: RaftSnapshot, durable: list[Entry]) -> None:
        #: The newest snapshot that can be offered to peers.
        self.snapshot: RaftSnapshot = snapshot
        #: Position of the last entry that is no longer here; entries[0] is at offset + 1.
        self.offset: int = snapshot.index
        self.offset_term: int = snapshot.term
        self.entries: list[Entry] = _usable(snapshot, durable)
        if self.entries and self.entries[0].index <= snapshot.index:
            # Kept from before the snapshot. The first one serves only as the position before the second, unless the
            # log is complete.
            if self.entries[0].index == 1:
                self.offset = 0
                self.offset_term = 0
            else:
                first = self.entries.pop(0)
                self.offset = first.index
                self.offset_term = first.term
        #: Position of the last entry.
        self.last: int = self.entries[-1].index if self.entries else self.offset
        self.last_term: int = self.entries[-1].term if self.entries else self.offset_term
        #: Highest index known to be on a majority. Not durable: a restarted node learns it again.
        self.commit: int = snapshot.index
        #: Highest index handed out for applying.
        self.handed: int = snapshot.index
        #: Highest index handed out for writing (or written before the start).
        self.saved: int = self.last
        #: Highest index known to be durable here.
        self.stable: int = self.last

    # --- looking

    def term_at(self, index: int) -> int:
        """Term of the entry at `index`; -1 if it is not known here (compacted, or beyond the end)."""
        if index == self.last:
            return self.last_term
        position = index - self.offset - 1
        if position < 0:
            return self.offset_term if position == -1 else -1
        return self.entries[position].term if index < self.last else -1

    def is_up_to_date(self, index: int, term: int) -> bool:
        """Whether a log ending at (index, term) is at least as up to date as this one: Raft §5.4.1."""
        return term > self.last_term or (term == self.last_term and index >= self.last)

    def reaches_snapshot(self) -> bool:
        """Whether a peer that gets the snapshot can be given what follows it."""
        return self.offset <= self.snapshot.index

    def between(self, first: int, last: int) -> list[Entry]:
        """A new list of the entries first .. last, both included."""
        assert first > self.offset, f"{first} is compacted, the log begins behind {self.offset}"
        return self.entries[first - self.offset - 1 : last - self.offset]

    def portion(self, first: int, max_bytes: int) -> list[Entry]:
        """Entries from `first` to the end, as many as fit into `max_bytes`, but at least one if there is one."""
        start = first - self.offset - 1
        assert start >= 0, f"{first} is compacted, the log begins behind {self.offset}"
        entries = self.entries
        end = start
        room = max_bytes
        while end < len(entries):
            room -= len(entries[end].data)
            if room < 0 and end > start:
                break
            end += 1
        return entries[start:end]

    def agreement(self, index: int, term: int) -> tuple[int, int]:
        """The highest own position (index, term) at or below `index` whose term is at most `term`.

        Everything between it and `index` has a later term, so it cannot match a log that has `term` at `index`: a whole
        term is skipped per round trip (Raft §5.3, end). Commit bounds it from below: what is committed agrees.
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
        """Add one entry of the leader's at the end; returns its index."""
        index = self.last + 1
        self.entries.append(Entry(term, index, kind, data))
        self.last = index
        self.last_term = term
        return index

    def first_difference(self, entries: list[Entry]) -> int:
        """Position in `entries` of the first one that the log does not hold; len(entries) if it holds all.

        The entry before entries[0] must match. Only a real difference may cut the log: a late, shorter append is no
        reason to forget entries that have been acknowledged since (Raft §5.3: "if an existing entry conflicts").
        """
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
        """Add what a leader sent; entries[0] follows `last`."""
        assert entries[0].index == self.last + 1, f"gap: {entries[0].index} after {self.last}"
        self.entries.extend(entries)
        self.last = entries[-1].index
        self.last_term = entries[-1].term

    def truncate(self, index: int) -> None:
        """Remove the entries from `index` on. A committed one is never removed: Raft §5.4."""
        assert index > self.commit, f"truncation at {index} of a log committed up to {self.commit}"
        del self.entries[index - self.offset - 1 :]
        self.last = index - 1
        self.last_term = self.entries[-1].term if self.entries else self.offset_term
        self.saved = min(self.saved, self.last)
        self.stable = min(self.stable, self.last)

    def commit_to(self, index: int) -> bool:
        """Advance the commit index; it never falls. True if it moved."""
        if index <= self.commit:
            return False
        assert index <= self.last, f"commit {index} beyond the end of the log {self.last}"
        self.commit = index
        return True

    def floor(self, index: int, entries_max: int, bytes_max: int) -> int:
        """Up to where to compact so that of what lies at and before `index` no more than this many remain.

        They are for peers that are a little behind: both bounds are what a node will spend on them.
        """
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
        """Forget the entries up to `index`, which are applied."""
        if index <= self.offset:
            return
        assert index <= self.handed, f"compaction at {index}, handed out for applying up to {self.handed}"
        term = self.term_at(index)
        del self.entries[: index - self.offset]
        self.offset = index
        self.offset_term = term

    def restart(self, snapshot: RaftSnapshot) -> None:
        """A leader's snapshot replaces the whole log: Raft §7."""
        assert snapshot.index > self.commit, f"snapshot at {snapshot.index} behind commit {self.commit}"
        # What was durable and committed still is; the snapshot itself is not durable yet.
        self.stable = min(self.stable, self.commit)
        self.snapshot = snapshot
        self.entries = []
        self.offset = self.last = self.commit = self.handed = self.saved = snapshot.index
        self.offset_term = self.last_term = snapshot.term


def _usable(snapshot: RaftSnapshot, durable: list[Entry]) -> list[Entry]:
    """Those of the entries on disk that continue the snapshot or lead up to it, as a list of our own.

    A crash may come after a snapshot was installed and before the old log was dropped: a log that ends before the
    snapshot, or disagrees with it, is history that the snapshot has overtaken.
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
