"""A tablet's rows as a dictionary, and random log entries for them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from coord.raft.messages import CONFIG, NOOP, NORMAL, Entry
from regionserver.tablets.commands import (
    CompareAndSet,
    DeleteRow,
    KvCommand,
    Operation,
    PutRow,
    encode,
)

#: Lengths of values: in a page, near half a page, in overflow pages.
LENGTHS: Final = (0, 1, 20, 200, 1900, 2100, 5000, 20_000)


def carried_out(rows: dict[str, bytes], operations: list[Operation]) -> dict[str, bytes] | None:
    """Return the rows after the operations; None if a condition does not hold."""
    if any(isinstance(one, CompareAndSet) and rows.get(one.key) != one.expected for one in operations):
        return None
    after = dict(rows)
    for one in operations:
        value = None if isinstance(one, DeleteRow) else one.value
        if value is None:
            after.pop(one.key, None)
        else:
            after[one.key] = value
    return after


def random_operations(rng: random.Random, rows: dict[str, bytes], keys: int = 60) -> list[Operation]:
    """Return one to eight operations; compare-and-set mostly holds."""
    operations: list[Operation] = []
    for _ in range(rng.choice((1, 1, 2, 8))):
        key = f"key {rng.randrange(keys):04}"
        value = rng.randbytes(rng.choice(LENGTHS))
        kind = rng.randrange(6)
        if kind == 0:
            operations.append(DeleteRow(key))
        elif kind == 1:
            expected = rows.get(key) if rng.random() < 0.8 else b"another"
            operations.append(CompareAndSet(key, rng.choice((value, None)), expected))
        else:
            operations.append(PutRow(key, value))
    return operations


@dataclass
class Log:
    """A log of random entries, and the rows after each of them."""

    rng: random.Random
    entries: list[Entry] = field(default_factory=list)
    #: Rows after the entry of each index; 0: before the first entry.
    models: list[dict[str, bytes]] = field(default_factory=lambda: [{}])
    keys: int = 60

    def extend(self, count: int) -> None:
        """Append random entries, each a separate write, and some without a command."""
        for _ in range(count):
            index, before = len(self.models), self.models[-1]
            term = 1 + index // 50
            if self.rng.random() < 0.1:
                self.entries.append(Entry(term, index, self.rng.choice((NOOP, CONFIG)), b""))
                self.models.append(before)
                continue
            operations = random_operations(self.rng, before, self.keys)
            time_ms = 1000 + index
            command = KvCommand(f"writer {self.rng.randrange(5)}", index, index, time_ms, time_ms, operations)
            self.entries.append(Entry(term, index, NORMAL, encode(command)))
            after = carried_out(before, operations)
            self.models.append(before if after is None else after)

    def behind(self, index: int) -> list[Entry]:
        """Return the entries after `index`."""
        return self.entries[index:]
