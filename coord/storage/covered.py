"""Reading a log past damage that a snapshot covers, and replacing what is damaged.

A flipped bit in an old record is harmless when a whole snapshot holds every entry that the record can have held.
Without this module, a store of one node would have to be restored from a backup. `read_covered` reads the log past
every damaged range. It raises NotCovered unless all of these conditions hold after the last range:

- A whole record states the position of the log: the index of its first entry is at most one above the snapshot's, or
  the last index in a segment's header is at most the snapshot's. The log has no gaps, and an entry replaces every entry
  from its index on. So the snapshot holds every lost entry, or a later entry replaced it.
- All records to the end of the log are whole and in sequence, and reach as far as `log.extent` demands.
- The log continues the snapshot.

Damage at the end of the log never qualifies: no record after it states which entries were lost.

The damaged bytes may have held a hard state. The resulting term is the highest one in all readable hard states, entries
and the snapshot. A leader appends entries of its own term, so the entries after a lost hard state show its term. A lost
vote counts as a vote for `vote`: the node does not vote a second time in that term.

`replace_damaged` moves the segments before the last damage to another folder. The segment with the last damage is
copied there, and replaced in one rename: the new file has a header with the position of the log, followed by the whole
records, unchanged. After every step the log is readable, or the same damage is found in it again.
"""

from __future__ import annotations

from coord.env import Disk, read_file, replace_file
from coord.errors import CorruptRecord, StorageError
from coord.storage.extent import ExtentFile, check_end, check_files, number_of, read_extent
from coord.storage.reading import Gap, Recovered, SegmentReader
from coord.storage.records import (
    HardStateItem,
    Item,
    LogItem,
    LogRecord,
    SegmentItem,
    encode_header,
    encode_record,
    encode_seal,
)


class NotCovered(StorageError):  # noqa: N818 - a condition
    """The snapshot may not hold every entry that the damage destroyed."""


class Damage(Gap):
    """Bytes `offset` to `end` of a segment hold no whole record.

    `first` and `last`: the widest range of entries that the bytes can have held; 0 for an unknown bound.
    """

    def __init__(self, path: str, offset: int, end: int) -> None:
        super().__init__(path, offset, end)
        self.first = 0
        self.last = 0

    def __str__(self) -> str:
        where = f"{self.path}: bytes {self.offset} to {self.end - 1} are damaged"
        if not self.last:
            return where
        if self.first > self.last:
            return f"{where} (they held no entry)"
        since = f"{self.first} " if self.first else ""
        return f"{where} (they held entries {since}to {self.last} at most)"


class Covered:
    """A log whose damage a snapshot covers. `log` is what a start on the replaced log finds."""

    def __init__(self, damage: list[Damage], log: Recovered, run: _Run, cut: str) -> None:
        self.damage = damage
        self.log = log
        self.run = run
        #: A line for the operator if a torn record ends the log, else "".
        self.cut = cut


class _Run:
    """A sequence of whole records, from the start of the log or from the end of damage on."""

    def __init__(self, number: int, record: LogRecord, term: int) -> None:
        #: Where the run begins.
        self.number = number
        self.offset = record.offset
        self.sequence = record.sequence
        #: Highest term that is known before the first hard state of the run.
        self.term = term
        self.hard_state: tuple[int, int] | None = None
        #: Contents of the run; None until an item states the position of the log, which was `start_index`.
        self.log: Recovered | None = None
        self.start_index = 0

    def take(self, item: Item) -> None:
        """Replay one item. Raise ValueError if an entry would leave a gap."""
        if isinstance(item, LogItem | SegmentItem) and self.log is None:
            self.start_index = item.index - 1 if isinstance(item, LogItem) else item.last_index
            self.log = Recovered()
            if isinstance(item, LogItem):
                self.log.base_index = self.start_index
        if isinstance(item, HardStateItem | SegmentItem):
            self.hard_state = (item.term, item.vote)
        elif isinstance(item, LogItem) and self.hard_state is None:
            self.term = max(self.term, item.term)
        if self.log is not None:
            self.log.take(item)

    def highest_term(self) -> int:
        """Return the highest term at the end of the run."""
        last = self.log.last_term() if self.log is not None else 0
        return max(self.term, last, self.hard_state[0] if self.hard_state is not None else 0)


class _Log:
    """The log as far as it was read: the damage so far, and the run after the last damage."""

    def __init__(self) -> None:
        self.damage: list[Damage] = []
        self.run: _Run | None = None
        self.term = 0
        self.vote = 0
        self._sequence = 0
        self._last_index = 0
        self._open: list[Damage] = []

    def skip(self, damage: Damage) -> None:
        """End the run: the next record follows damage."""
        if self.run is not None and self.run.log is not None:
            self._last_index = self.run.log.last_index()
        damage.first = self._last_index + 1 if self._last_index else 0
        self._end_run()
        self.damage.append(damage)
        self._open.append(damage)

    def take(self, reader: SegmentReader, number: int, record: LogRecord) -> None:
        """Replay one whole record. Raise CorruptRecord if it does not continue the run."""
        if record.offset == 0 and reader.number != number:
            raise CorruptRecord(reader.path, 0, f"segment {number}", f"segment {reader.number}")
        if record.sequence <= self._sequence:
            raise CorruptRecord(
                reader.path, record.offset, f"a record after {self._sequence}", f"record {record.sequence}"
            )
        self._sequence = record.sequence
        if self.run is None:
            self.run = _Run(number, record, self.term)
        for item in record.items:
            try:
                self.run.take(item)
            except ValueError as error:
                raise CorruptRecord(reader.path, record.offset, error, item) from error
        if self._open and self.run.log is not None:
            for damage in self._open:
                damage.last = self.run.start_index
            self._open = []

    def _end_run(self) -> None:
        run = self.run
        if run is None:
            return
        highest = run.highest_term()
        if run.hard_state is not None and run.hard_state[0] == highest:
            self.vote = run.hard_state[1]
        elif highest > self.term:
            self.vote = 0
        self.term = highest
        self.run = None


def read_covered(disk: Disk, folder: str, index: int, term: int, vote: int) -> Covered:
    """Read the log in `folder` past damage that the whole snapshot at (term, index) covers. Change nothing.

    Raise NotCovered with the reason if the snapshot does not cover the damage, and CorruptRecord, StorageError or
    OSError for any other fault.
    """
    found, cut = _read(disk, folder)
    run = found.run
    if not found.damage:
        raise NotCovered(f"{disk.where(folder)}: nothing is damaged")
    damage = found.damage[-1]
    if run is None or run.log is None:
        raise NotCovered(f"{damage}, and no whole record after them states which entries they held")
    if run.start_index > index:
        raise NotCovered(f"{damage}: the newest whole snapshot ends at {index}")
    log = run.log
    if not _continues(log, index, term):
        raise NotCovered(f"{damage}: the log after them does not continue the snapshot at {index}")
    highest = max(found.term, run.highest_term())
    if run.hard_state is None:
        # No hard state follows the damage: only the entries after it show the term.
        run.term = max(run.term, term)
        log.term, log.vote = run.term, (found.vote if run.term == found.term else 0) or vote
    else:
        log.term, log.vote = run.hard_state
    if log.term < highest:
        raise NotCovered(f"{damage}: the log after them is in term {log.term}, older records are in {highest}")
    if log.base_index == index:
        log.base_term = term
    return Covered(found.damage, log, run, cut)


def _read(disk: Disk, folder: str) -> tuple[_Log, str]:
    """Read all segments. Return the log, and a line about a torn end or ""."""
    found = _Log()
    cut = ""
    names = [name for name in disk.names(folder) if name.endswith(".log")]
    extent = read_extent(disk)
    check_files(disk, folder, names, extent)
    sequence = previous = 0
    is_first = True
    for position, name in enumerate(names):
        number = number_of(name)
        reader = SegmentReader(disk, f"{folder}/{name}")
        if previous and number != previous + 1:
            raise CorruptRecord(reader.path, 0, f"segment {previous + 1}", f"segment {number}")
        for stretch in reader.stretches(sequence, is_first=is_first, is_last=position == len(names) - 1):
            if isinstance(stretch, Gap):
                found.skip(Damage(stretch.path, stretch.offset, stretch.end))
            else:
                found.take(reader, number, stretch)
        check_end(reader.path, number, reader.end, extent)
        sequence, previous, is_first = max(sequence, reader.sequence), number, reader.is_open_ended
        cut = reader.cut
    return found, cut


def _continues(log: Recovered, index: int, term: int) -> bool:
    """Return True if the log holds entry `index` with this term, or begins after it."""
    place = index - log.base_index - 1
    if place >= 0:
        return place < len(log.entries) and log.entries[place].term == term
    return place == -1 and log.base_term in (0, term)


def replace_damaged(disk: Disk, folder: str, aside: str, covered: Covered) -> None:
    """Reduce the log to the records after the last damage. Move older files to the folder `aside`. Raise OSError."""
    run = covered.run
    disk.make_folder(aside)
    for name in [name for name in disk.names(folder) if name.endswith(".log")]:
        # One after the other: a crash must not leave a gap.
        if number_of(name) < run.number:
            disk.rename(f"{folder}/{name}", f"{aside}/{_free_name(disk, aside, name)}")
            disk.sync_folder(aside)
            disk.sync_folder(folder)
        elif number_of(name) == run.number and run.offset > 0:
            replace_file(disk, aside, _free_name(disk, aside, name), read_file(disk, f"{folder}/{name}"))
            _replace_segment(disk, folder, name, covered)


def _replace_segment(disk: Disk, folder: str, name: str, covered: Covered) -> None:
    """Replace the segment by a header with the position of the log after the damage, and the whole records after it."""
    run, log = covered.run, covered.log
    is_last = name == max(each for each in disk.names(folder) if each.endswith(".log"))
    reader = SegmentReader(disk, f"{folder}/{name}")
    for _ in reader.records(run.sequence - 1, is_first=False, is_last=is_last, start=run.offset):
        pass
    # A hard state in the records takes precedence over the header's.
    vote = log.vote if run.hard_state is None else 0
    base_term = log.base_term if log.base_index == run.start_index else 0
    header = encode_header(run.number, run.term, vote, run.start_index, base_term)
    data = encode_record(run.sequence - 1, [header]) + reader.bytes_between(run.offset, reader.end)
    extent = read_extent(disk)
    if extent is not None and extent.segment == run.number:
        # The segment becomes shorter.
        file = ExtentFile(disk)
        try:
            file.set(run.number, len(data), len(data))
        finally:
            file.close()
    replace_file(disk, folder, name, data + encode_seal(reader.sequence, len(data)))


def _free_name(disk: Disk, folder: str, name: str) -> str:
    there = set(disk.names(folder))
    while name in there:
        name += ".again"
    return name
