"""The size of one group's log in memory, and the terms of entries that are only on the disk."""

from __future__ import annotations

from coord.raft.messages import NORMAL, Entry
from regionserver.tablets.host.log_memory import ENTRY_BYTES, LogMemory


def test_bytes_are_those_of_the_entries_in_memory() -> None:
    entries = [Entry(1, index, NORMAL, bytes(index)) for index in range(1, 5)]
    memory = LogMemory(entries[:2])
    assert memory.bytes == 2 * ENTRY_BYTES + 3
    memory.added(entries[2:])
    assert memory.bytes == 4 * ENTRY_BYTES + 10
    memory.dropped(entries[:3])
    assert memory.bytes == ENTRY_BYTES + 4


def test_terms_of_entries_on_the_disk() -> None:
    memory = LogMemory()
    assert memory.term_at(1) == -1
    memory.on_disk([Entry(term, index, NORMAL, b"") for index, term in ((3, 1), (4, 1), (5, 2), (6, 4))])
    assert [memory.term_at(index) for index in (2, 3, 4, 5, 6)] == [-1, 1, 1, 2, 4]
    memory.forget_before(5)
    assert [memory.term_at(index) for index in (4, 5, 6)] == [-1, 2, 4]
