"""The payload of a tablet's log entry: one client request is one entry.

    payload := FORMAT:u8 msgpack(KvCommand)
             | SEAL_FORMAT:u8 msgpack(SealCommand)

A command puts, deletes, or compares and sets several rows. All its conditions are compared with the rows before the
command. If a condition does not hold, nothing changes. Otherwise the operations are carried out in order, atomically.

`writer`, `number`, `done_below` and `began_ms` make a write happen once (`regionserver.tablets.writers`). `time_ms` is
the leader's time when it proposed the entry: the replicas have no other clock when they apply an entry.

The leader checks a command before it proposes the command. So a committed payload that does not decode is damaged or
was written by a later build. A replica must not skip such an entry: other replicas may have applied it.

The values themselves are in `regionserver.tablets.values.operations`; this module has the codec and checks the limits.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from regionserver.tablets.values.operations import (
    AHEAD_MS,
    CONDITION_FAILED,
    DONE,
    KEPT_MS,
    KEY_BYTES_MAX,
    NO_COMMAND,
    NUMBER_MAX,
    OPERATIONS_MAX,
    OUTCOME_NAMES,
    SEALED,
    SUPERSEDED,
    TABLET_FULL,
    TOO_OLD,
    VALUE_BYTES_MAX,
    WRITE_BYTES_MAX,
    WRITER_BYTES_MAX,
    CommandError,
    CompareAndSet,
    DeleteRow,
    KvCommand,
    Operation,
    PutRow,
    WriteOutcome,
)
from regionserver.tablets.values.seals import RESHARDING_BYTES_MAX, SealCommand

__all__ = [
    "AHEAD_MS",
    "CONDITION_FAILED",
    "DONE",
    "FORMAT",
    "KEPT_MS",
    "KEY_BYTES_MAX",
    "NO_COMMAND",
    "NUMBER_MAX",
    "OPERATIONS_MAX",
    "OUTCOME_NAMES",
    "PAYLOAD_BYTES_MAX",
    "SEALED",
    "SUPERSEDED",
    "TABLET_FULL",
    "TOO_OLD",
    "VALUE_BYTES_MAX",
    "WRITER_BYTES_MAX",
    "WRITE_BYTES_MAX",
    "CommandError",
    "CompareAndSet",
    "DeleteRow",
    "KvCommand",
    "Operation",
    "PutRow",
    "SealCommand",
    "WriteOutcome",
    "check",
    "decode",
    "encode",
    "encode_seal",
]

T = TypeVar("T", KvCommand, SealCommand)

#: First byte of a payload. A build that changes the meaning of a command must raise it.
FORMAT: Final = 1
#: First byte of a payload about the tablet's seal.
SEAL_FORMAT: Final = 2
#: Upper bound for the header and numbers of an operation: tag, lengths.
_OPERATION_OVERHEAD: Final = 24
_COMMAND_OVERHEAD: Final = 256
#: Longest payload of a command.
PAYLOAD_BYTES_MAX: Final = WRITE_BYTES_MAX + OPERATIONS_MAX * _OPERATION_OVERHEAD + _COMMAND_OVERHEAD

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(KvCommand)
_SEALS: Final = msgspec.msgpack.Decoder(SealCommand)


def encode(command: KvCommand) -> bytes:
    """Return the payload of `command`. Raise CommandError if the command exceeds a limit."""
    check(command)
    return bytes((FORMAT,)) + _ENCODER.encode(command)


def encode_seal(command: SealCommand) -> bytes:
    """Return the payload of a command about the seal. Raise CommandError if the command exceeds a limit."""
    _check_seal(command)
    return bytes((SEAL_FORMAT,)) + _ENCODER.encode(command)


def decode(payload: bytes) -> KvCommand | SealCommand:
    """Return the command in a payload.

    Raises:
        CommandError: the payload is damaged, not a command, of a later build, or exceeds a limit.
    """
    if not payload:
        raise CommandError("a command has at least one byte, this payload is empty")
    if payload[0] != FORMAT:
        if payload[0] == SEAL_FORMAT:
            return _decoded_seal(payload)
        raise CommandError(f"the payload has format {payload[0]}, this build reads formats {FORMAT} and {SEAL_FORMAT}")
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise CommandError(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes, this one {len(payload)}")
    command = _unpacked(_DECODER, payload, "no command")
    _check_limits(command)
    return command


def _decoded_seal(payload: bytes) -> SealCommand:
    command = _unpacked(_SEALS, payload, "no command about a seal")
    _check_seal(command)
    return command


def _unpacked(decoder: msgspec.msgpack.Decoder[T], payload: bytes, otherwise: str) -> T:
    """Return the content of a payload after its first byte. Raise CommandError, whose message calls the payload
    `otherwise`."""
    try:
        return decoder.decode(memoryview(payload)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CommandError(f"the payload is {otherwise}: {error}") from error


def _check_seal(command: SealCommand) -> None:
    _check_number("epoch", command.epoch)
    _check_number("time_ms", command.time_ms)
    name_bytes = len(_utf8(command.resharding, "the name of a split"))
    if not 1 <= name_bytes <= RESHARDING_BYTES_MAX:
        raise CommandError(f"the name of a split has 1 to {RESHARDING_BYTES_MAX} bytes, this one {name_bytes}")


def check(command: KvCommand) -> None:
    """Raise CommandError if the command exceeds a limit."""
    _check_number("number", command.number)
    _check_number("done_below", command.done_below)
    _check_number("began_ms", command.began_ms)
    _check_number("time_ms", command.time_ms)
    _check_limits(command)


def _check_number(name: str, value: int) -> None:
    if not 0 <= value <= NUMBER_MAX:
        raise CommandError(f"{name} is {value}, it must be 0 to {NUMBER_MAX}")


def _check_limits(command: KvCommand) -> None:
    """Raise CommandError for a broken limit that the decoder does not check."""
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
