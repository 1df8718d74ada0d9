"""The payload of a tablet's log entry: one client request is one entry.

    payload := FORMAT:u8 msgpack(KvCommand)

A command puts, deletes, or compares and sets several rows. All its conditions are compared with the rows before the
command. If a condition does not hold, nothing changes. Otherwise the operations are carried out in order, atomically.

`writer`, `number`, `done_below` and `began_ms` make a write happen once (`regionserver.tablets.writers`). `time_ms` is
the leader's time when it proposed the entry: the replicas have no other clock when they apply an entry.

The leader checks a command before it proposes the command. So a committed payload that does not decode is damaged or
was written by a later build. A replica must not skip such an entry: other replicas may have applied it.

Keys and values have the limits of `regionserver.kv.messages`. Keys are text, ordered by their UTF-8 bytes.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from coord.errors import CoordError

#: First byte of a payload. A build that changes what a command means must raise it.
FORMAT: Final = 1
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
#: How long the result of a write is kept, in leaders' time.
KEPT_MS: Final = 10 * 60 * 1000
#: How far a client's estimate of the leader's time may be ahead. A result is kept longer by as much.
AHEAD_MS: Final = KEPT_MS
#: Upper bound for the header and numbers of an operation: tag, lengths.
_OPERATION_OVERHEAD: Final = 24
_COMMAND_OVERHEAD: Final = 256
#: Longest payload of a command.
PAYLOAD_BYTES_MAX: Final = WRITE_BYTES_MAX + OPERATIONS_MAX * _OPERATION_OVERHEAD + _COMMAND_OVERHEAD

_Count = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class PutRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """Store `value` at `key`."""

    key: str
    value: bytes


class DeleteRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """Remove the row at `key`, if there is one."""

    key: str


class CompareAndSet(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Store `value` at `key` (None: remove the row) if its value was `expected` (None: if there was no row)."""

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

OUTCOME_NAMES: Final = ("done", "condition failed", "tablet full", "superseded", "too old", "no command")


class WriteOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of one entry.

    `term` and `index` are those of the entry that decided. For a repeated write they are those of its first entry.
    `failed` is the position of the first operation whose condition did not hold, else -1.
    """

    code: int
    term: int
    index: int
    failed: int = -1


# --- codec ------------------------------------------------------------------------------------------------------------

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(KvCommand)


def encode(command: KvCommand) -> bytes:
    """Return the payload of `command`. Raise CommandError if the command exceeds a limit."""
    check(command)
    return bytes((FORMAT,)) + _ENCODER.encode(command)


def decode(payload: bytes) -> KvCommand:
    """Return the command in a payload.

    Raises:
        CommandError: the payload is damaged, not a command, of a later build, or exceeds a limit.
    """
    if not payload:
        raise CommandError("a command has at least one byte, this payload is empty")
    if payload[0] != FORMAT:
        raise CommandError(f"the payload has format {payload[0]}, this build reads format {FORMAT}")
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise CommandError(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes, this one {len(payload)}")
    try:
        command = _DECODER.decode(memoryview(payload)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CommandError(f"the payload is no command: {error}") from error
    _check_limits(command)
    return command


def check(command: KvCommand) -> None:
    """Raise CommandError if the command exceeds a limit."""
    for name in ("number", "done_below", "began_ms", "time_ms"):
        value = getattr(command, name)
        if not 0 <= value <= NUMBER_MAX:
            raise CommandError(f"{name} is {value}, it must be 0 to {NUMBER_MAX}")
    _check_limits(command)


def _check_limits(command: KvCommand) -> None:
    """Raise CommandError for what the decoder does not check."""
    writer_bytes = len(_utf8(command.writer, "the writer's name"))
    if not 1 <= writer_bytes <= WRITER_BYTES_MAX:
        raise CommandError(f"a writer's name has 1 to {WRITER_BYTES_MAX} bytes, this one {writer_bytes}")
    if command.done_below > command.number:
        raise CommandError(f"write {command.number} is marked as done already: done_below is {command.done_below}")
    if command.began_ms > command.time_ms + AHEAD_MS:
        ahead_ms = command.began_ms - command.time_ms
        raise CommandError(f"the write began {ahead_ms} ms after the leader's time, at most {AHEAD_MS} ms are allowed")
    if not 1 <= len(command.operations) <= OPERATIONS_MAX:
        raise CommandError(f"a command has 1 to {OPERATIONS_MAX} operations, this one {len(command.operations)}")
    size = 0
    for operation in command.operations:
        if isinstance(operation, PutRow) and operation.key.isascii():
            # Nearly every operation: a command runs through here per row, on the leader and on every replica.
            key_bytes, value_bytes = len(operation.key), len(operation.value)
            if 1 <= key_bytes <= KEY_BYTES_MAX and value_bytes <= VALUE_BYTES_MAX:
                size += key_bytes + value_bytes
                continue
        size += _checked_bytes(operation)
    if size > WRITE_BYTES_MAX:
        raise CommandError(f"a command has at most {WRITE_BYTES_MAX} bytes of keys and values, this one {size}")


def _checked_bytes(operation: Operation) -> int:
    """Return the bytes of the operation's key and values. Raise CommandError if they exceed a limit."""
    key_bytes = len(_utf8(operation.key, "a key"))
    if not 1 <= key_bytes <= KEY_BYTES_MAX:
        raise CommandError(f"a key has 1 to {KEY_BYTES_MAX} bytes, this one {key_bytes}: {operation.key[:40]!r}")
    values: tuple[bytes | None, ...] = ()
    if isinstance(operation, PutRow):
        values = (operation.value,)
    elif isinstance(operation, CompareAndSet):
        values = (operation.value, operation.expected)
    for value in values:
        if value is not None:
            if len(value) > VALUE_BYTES_MAX:
                raise CommandError(
                    f"a value of key {operation.key[:40]!r} has {len(value)} bytes, at most {VALUE_BYTES_MAX} fit"
                )
            key_bytes += len(value)
    return key_bytes


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CommandError(f"{what} cannot be encoded as UTF-8: {text[:40]!r}") from error
