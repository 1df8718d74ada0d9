"""The effects of an entry about a tablet's seal."""

from __future__ import annotations

import pytest

from regionserver.tablets.commands import (
    DONE,
    SEAL_FORMAT,
    SEALED,
    SUPERSEDED,
    CommandError,
    SealCommand,
    decode,
    encode_seal,
)
from regionserver.tablets.values.seals import RESHARDING_BYTES_MAX, Seal, seal_after

NONE = Seal()
SET = Seal("one", 5, 2, 10)


@pytest.mark.parametrize(
    ("before", "command", "after", "code"),
    [
        (NONE, SealCommand("one", 5, 0), Seal("one", 5, 3, 20), DONE),
        (NONE, SealCommand("one", 5, 0, False), Seal(canceled="one"), DONE),
        (SET, SealCommand("one", 5, 0), SET, DONE),
        (SET, SealCommand("one", 6, 0), SET, DONE),
        (SET, SealCommand("two", 6, 0), SET, SEALED),
        (SET, SealCommand("two", 6, 0, False), SET, SEALED),
        (SET, SealCommand("one", 5, 0, False), Seal(canceled="one"), DONE),
        (SET, SealCommand("one", 6, 0, False), Seal(canceled="one"), DONE),
        # A master that was replaced before the split began knows nothing of it.
        (SET, SealCommand("one", 4, 0, False), SET, SEALED),
        (Seal(canceled="one"), SealCommand("one", 6, 0), Seal(canceled="one"), SUPERSEDED),
        (Seal(canceled="one"), SealCommand("two", 6, 0), Seal("two", 6, 3, 20), DONE),
        (Seal(canceled="one"), SealCommand("one", 6, 0, False), Seal(canceled="one"), DONE),
    ],
)
def test_the_seal_after_an_entry(before: Seal, command: SealCommand, after: Seal, code: int) -> None:
    assert seal_after(before, command, 3, 20) == (after, code)


def test_a_payload_about_the_seal() -> None:
    command = SealCommand("one", 5, 1000, False)
    assert decode(encode_seal(command)) == command


@pytest.mark.parametrize("name", ["", "x" * (RESHARDING_BYTES_MAX + 1)])
def test_a_name_of_a_wrong_length_is_rejected(name: str) -> None:
    with pytest.raises(CommandError, match="the name of a split has 1 to 64 bytes"):
        encode_seal(SealCommand(name, 1, 1))


def test_a_damaged_payload_is_rejected() -> None:
    with pytest.raises(CommandError, match="no command about a seal"):
        decode(bytes((SEAL_FORMAT, 0xC1)))
