"""The payload of a tablet's log entry: valid, too large, and invalid ones."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from regionserver.kv import messages
from regionserver.tablets import commands
from regionserver.tablets.commands import (
    AHEAD_MS,
    KEY_BYTES_MAX,
    NUMBER_MAX,
    OPERATIONS_MAX,
    PAYLOAD_BYTES_MAX,
    VALUE_BYTES_MAX,
    WRITE_BYTES_MAX,
    WRITER_BYTES_MAX,
    CommandError,
    CompareAndSet,
    DeleteRow,
    KvCommand,
    Operation,
    PutRow,
    decode,
    encode,
)


def command(*operations: Operation, **fields: Any) -> KvCommand:
    values = {"writer": "w", "number": 7, "done_below": 3, "began_ms": 900, "time_ms": 1000} | fields
    return KvCommand(**values, operations=list(operations) or [PutRow("k", b"v")])


EVERY_KIND = command(
    PutRow("key", b"value"),
    DeleteRow("ключ"),
    CompareAndSet("a", b"new", b"old"),
    CompareAndSet("b", b"new", None),
    CompareAndSet("c", None, b""),
)


def test_a_command_comes_back_as_it_was() -> None:
    assert decode(encode(EVERY_KIND)) == EVERY_KIND


def test_limits_are_those_of_requests() -> None:
    ours = (commands.KEY_BYTES_MAX, commands.VALUE_BYTES_MAX, commands.OPERATIONS_MAX, commands.WRITE_BYTES_MAX)
    assert ours == (messages.KEY_BYTES_MAX, messages.VALUE_BYTES_MAX, messages.KEYS_MAX, messages.WRITE_BYTES_MAX)


AT_THE_LIMIT = {
    "writer": command(writer="é" * (WRITER_BYTES_MAX // 2)),
    "numbers": command(number=NUMBER_MAX, done_below=NUMBER_MAX, began_ms=NUMBER_MAX, time_ms=NUMBER_MAX),
    "done below itself": command(number=7, done_below=7),
    "zeros": command(number=0, done_below=0, began_ms=0, time_ms=0),
    "ahead": command(began_ms=1000 + AHEAD_MS),
    "operations": command(*[DeleteRow("k")] * OPERATIONS_MAX),
    "key": command(PutRow("é" * (KEY_BYTES_MAX // 2) + "k", b"")),
    "value": command(PutRow("k", bytes(VALUE_BYTES_MAX)), CompareAndSet("k", bytes(VALUE_BYTES_MAX), b"")),
    "expected": command(CompareAndSet("k", None, bytes(VALUE_BYTES_MAX))),
    "write": command(*[PutRow("k", bytes(WRITE_BYTES_MAX // 4 - 1))] * 4),
    "everything": command(
        *[CompareAndSet("k", bytes(1), bytes(WRITE_BYTES_MAX // OPERATIONS_MAX - 2))] * OPERATIONS_MAX,
        writer="w" * WRITER_BYTES_MAX,
        number=NUMBER_MAX,
        done_below=NUMBER_MAX,
        began_ms=NUMBER_MAX,
        time_ms=NUMBER_MAX,
    ),
}
BEYOND = {
    "no writer": (command(writer=""), "writer's name has 1 to 64 bytes, this one 0"),
    "writer": (command(writer="é" * (WRITER_BYTES_MAX // 2) + "w"), "this one 65"),
    "number": (command(number=NUMBER_MAX + 1), "number is"),
    "negative": (command(time_ms=-1), "time_ms is -1"),
    "done below": (command(number=7, done_below=8), "is marked as done already"),
    "ahead": (command(began_ms=1001 + AHEAD_MS), "after the leader's time"),
    "none": (msgspec.structs.replace(command(), operations=[]), "this one 0"),
    "operations": (command(*[DeleteRow("k")] * (OPERATIONS_MAX + 1)), "this one 1001"),
    "no key": (command(DeleteRow("")), "a key has 1 to 511 bytes, this one 0"),
    "key": (command(DeleteRow("é" * 256)), "this one 512"),
    "surrogate": (command(DeleteRow("\ud800")), "UTF-8"),
    "value": (command(PutRow("k", bytes(VALUE_BYTES_MAX + 1))), "1048577 bytes"),
    "expected": (command(CompareAndSet("k", None, bytes(VALUE_BYTES_MAX + 1))), "1048577 bytes"),
    "write": (command(*[PutRow("k", bytes(WRITE_BYTES_MAX // 4 - 1))] * 4, DeleteRow("k")), "4194305"),
}


@pytest.mark.parametrize("name", AT_THE_LIMIT)
def test_what_just_fits(name: str) -> None:
    payload = encode(AT_THE_LIMIT[name])
    assert decode(payload) == AT_THE_LIMIT[name]
    assert len(payload) <= PAYLOAD_BYTES_MAX


@pytest.mark.parametrize("name", BEYOND)
def test_what_just_does_not_fit_is_refused_on_both_sides(name: str) -> None:
    """The leader rejects such a command before it proposes; a replica rejects an entry with one."""
    bad, says = BEYOND[name]
    with pytest.raises(CommandError, match=says):
        encode(bad)
    try:
        payload = bytes((commands.FORMAT,)) + msgspec.msgpack.encode(bad)
    except UnicodeEncodeError:
        return
    with pytest.raises(CommandError):
        decode(payload)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "empty"),
        (b"\x03" + encode(EVERY_KIND)[1:], "format 3, this build reads formats 1 and 2"),
        (b"\x01", "is no command"),
        (encode(EVERY_KIND)[:-1], "is no command"),
        (encode(EVERY_KIND) + b"\0", "is no command"),
        (b"\x01" + msgspec.msgpack.encode(["w", 1, 0, 1, 1, [[1, "k", b"v", 0]]]), "is no command"),
        (b"\x01" + msgspec.msgpack.encode(["w", 1, 0, 1, 1, [[4, "k"]]]), "is no command"),
        (b"\x01" + msgspec.msgpack.encode(["w", 1, 0, 1, 1, [[2, b"k"]]]), "is no command"),
        (b"\x01" + msgspec.msgpack.encode(["w", 1, 0, 1, 1, [[2, "k"]], 0]), "is no command"),
        (b"\x01" + msgspec.msgpack.encode(["w", 1, 0, 1, [[2, "k"]]]), "is no command"),
        (b"\x01" + msgspec.msgpack.encode({"writer": "w"}), "is no command"),
        (b"\x01" + bytes(PAYLOAD_BYTES_MAX), "at most"),
        (b"\x01" + b"\x96\xa1w\x01\x00\x01\x01\x91\x92\x02\xa1\xff", "is no command"),
    ],
)
def test_a_damaged_or_foreign_payload_is_an_error_with_a_sentence(payload: bytes, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        decode(payload)


def test_random_damage_is_an_error_or_a_command_within_the_limits() -> None:
    rng = random.Random(1)
    payload = encode(EVERY_KIND)
    for _ in range(3000):
        damaged = bytearray(payload)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            found = decode(bytes(damaged))
        except CommandError:
            continue
        commands.check(found)
