"""A write of a client to a tablet, and its outcome: plain values. `regionserver.tablets.commands` has their meaning.

Keys and values have the limits of `regionserver.kv.messages`. Keys are text, ordered by their UTF-8 bytes.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from coord.errors import CoordError

#: LMDB's own limit, as it is built everywhere.
KEY_BYTES_MAX: Final = 511
VALUE_BYTES_MAX: Final = 1024 * 1024
#: Limits of one command, operations and bytes of their keys and values, so that a request cannot block other clients.
OPERATIONS_MAX: Final = 1000
WRITE_BYTES_MAX: Final = 4 * 1024 * 1024
#: Longest name of a writer: a uuid, with room for a readable name before it.
WRITER_BYTES_MAX: Final = 64
#: Numbers and times fit in 63 bits, so that no store or language has to treat them as unsigned.
NUMBER_MAX: Final = 2**63 - 1
#: Time for which the result of a write is kept, in leaders' time.
KEPT_MS: Final = 10 * 60 * 1000
#: Largest lead of a client's estimate over the leader's time. A result is kept longer by this time.
AHEAD_MS: Final = KEPT_MS
_Count = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class PutRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """Store `value` at `key`."""

    key: str
    value: bytes


class DeleteRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """Remove the row at `key`, if there is one."""

    key: str


class CompareAndSet(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Store `value` at `key` (None: remove the row) if the row's value is `expected` (None: if there is no row)."""

    key: str
    value: bytes | None
    expected: bytes | None


Operation = PutRow | DeleteRow | CompareAndSet


class KvCommand(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One client request.

    `number` rises from one write of a writer to the next. `done_below`: the writer will not repeat a write with a lower
    number. `began_ms`: the tablet's time when the write began, taken from the tablet's latest reply to the writer. All
    copies of one write have the same `done_below`, `began_ms` and operations. `time_ms`: see the module docstring.
    """

    writer: str
    number: _Count
    done_below: _Count
    began_ms: _Count
    time_ms: _Count
    operations: list[Operation]


class CommandError(CoordError):
    """The command exceeds a limit, or the payload is not a command. The message states the fault."""


# --- outcomes ---------------------------------------------------------------------------------------------------------

#: The operations were carried out.
DONE: Final = 0
#: The condition of operation `failed` did not hold; nothing was changed.
CONDITION_FAILED: Final = 1
#: The tablet has reached its largest size; nothing was changed.
TABLET_FULL: Final = 2
#: The writer had given up this number (`done_below`) before this copy was applied; this copy changed nothing.
SUPERSEDED: Final = 3
#: The write began before the time for which results are kept; this copy changed nothing.
TOO_OLD: Final = 4
#: The entry carried no command (a leader's first entry, a configuration).
NO_COMMAND: Final = 5
#: The tablet is sealed, because it is split (`regionserver.tablets.values.seals`). This copy changed nothing, and no
#: earlier copy was carried out. For an entry about the seal: the tablet is sealed for another attempt.
SEALED: Final = 6

OUTCOME_NAMES: Final = ("done", "condition failed", "tablet full", "superseded", "too old", "no command", "sealed")


class WriteOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of one entry.

    `term` and `index` are those of the entry that decided. For a repeated write they are those of its first entry.
    `failed` is the position of the first operation whose condition did not hold, else -1.
    """

    code: int
    term: int
    index: int
    failed: int = -1
