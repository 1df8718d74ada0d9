"""The log of one former replica in a separate file, in the quarantine. Pure apart from reading.

The file is one segment of a store's log (`coord.storage.records`): a header with the end of the log, the base (the
durable position of the rows), term and vote, the entries, and the seal. Only operators and tools read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from coord.env import Disk
from coord.storage.reading import Recovered, SegmentReader
from coord.storage.records import WriteBatch, encode_header, encode_record, encode_seal
from coord.storage.shared.items import EntryView, HardStateView, Position

#: After this many bytes of entries the next record begins.
RECORD_BYTES: Final = 1 << 20


def encode_log(
    hard_state: HardStateView, floor: Position, last: Position, entries: Iterable[EntryView]
) -> Iterator[bytes]:
    """Return the bytes of the file, in pieces."""
    sequence = 1
    record = encode_record(sequence, [encode_header(1, hard_state.term, hard_state.vote, last.index, last.term)])
    size = len(record)
    yield record
    batch = WriteBatch()
    batch.set_base(floor.index, floor.term)
    batch.set_hard_state(hard_state.term, hard_state.vote)
    waiting = 0
    for entry in entries:
        batch.add_entry(entry.term, entry.index, entry.kind, entry.data)
        waiting += len(entry.data)
        if waiting >= RECORD_BYTES:
            sequence += 1
            record = encode_record(sequence, batch.parts)
            size += len(record)
            yield record
            batch, waiting = WriteBatch(), 0
    if batch.parts:
        sequence += 1
        record = encode_record(sequence, batch.parts)
        size += len(record)
        yield record
    yield encode_seal(sequence, size)


def read_log(disk: Disk, path: str) -> Recovered:
    """Return the contents of an exported log. Raise CorruptRecord, StorageError or OSError."""
    reader = SegmentReader(disk, path)
    found = Recovered()
    for record in reader.records(0, is_first=True, is_last=True):
        for item in record.items:
            found.take(item)
    found.validate()
    return found
