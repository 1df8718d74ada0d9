"""Superblocks: strict decoding, and the next superblock of each move."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coord.errors import InvalidTransition
from regionserver.tablets.disk import superblock
from regionserver.tablets.disk.life import DataState
from regionserver.tablets.disk.sealed import DamagedFile, NewerFormat, seal
from regionserver.tablets.disk.superblock import (
    MAGIC,
    REASON_MAX,
    Memory,
    RunIntent,
    Superblock,
    decode_block,
    encode_block,
    memory_of,
)
from tests.unit.regionserver.tablets.disk.examples import MEMORY, TABLET, meta, ready, tombstone


def decoded(content: bytes) -> Superblock:
    return decode_block(content, TABLET, f"tablet-meta/{TABLET}")


@pytest.mark.parametrize(
    "block", [ready(), tombstone(), ready(run_intent=RunIntent.RESTING)], ids=lambda b: b.data_state
)
def test_a_superblock_comes_back_whole(block: Superblock) -> None:
    assert decoded(encode_block(block)) == block


def test_a_tombstone_is_small() -> None:
    """One stays for each removed replica, until the whole tablet is deleted."""
    assert len(encode_block(tombstone())) < 500


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tablet": "../x"}, "not the name of a tablet"),
        ({"number": 3}, "the highest ever is 2"),
        ({"number": -1}, "number -1"),
        ({"number": 0, "highest_number": 0}, "its memory is not lost"),
        ({"generation": 0}, "generation 0"),
        ({"generation": 1 << 32}, "generation 4294967296"),
        ({"slot": 1 << 32}, "slot 4294967296"),
        ({"slot": None}, "without a slot"),
        ({"memory": {"term": 1, "vote": 0, "last_term": 1, "last_index": 1}}, "READY with the memory"),
        ({"memory": {"term": 1, "vote": 0, "last_term": 2, "last_index": 1}}, "term 2, the term is 1"),
        ({"memory": {"term": -1, "vote": 0, "last_term": -1, "last_index": 1}}, "negative"),
        ({"is_lost": True}, "its memory is lost"),
        ({"data_state": "COPYING", "run_intent": "RESTING"}, "RESTING and COPYING"),
        ({"data_state": "GONE"}, "Invalid enum value"),
        ({"changed_ms": -1}, "negative"),
        ({"hash_buckets": "4"}, "Expected `int`"),
        ({"colour": "red"}, "unknown field `colour`"),
    ],
)
def test_contents_that_no_build_writes_are_damage(changes: dict[str, Any], why: str) -> None:
    """With a valid checksum: a bug, or a file that was made by hand."""
    fields = {**msgspec.to_builtins(ready()), **changes}
    if "tablet" in changes:
        fields["tablet"] = changes["tablet"]
    with pytest.raises(DamagedFile, match=why):
        decoded(seal(MAGIC, 1, msgspec.json.encode(fields)))


@pytest.mark.parametrize("name", ["server", "tablet", "data_state", "number", "highest_number", "generation"])
def test_a_missing_field_is_damage(name: str) -> None:
    fields = msgspec.to_builtins(ready())
    del fields[name]
    with pytest.raises(DamagedFile, match=f"missing required field `{name}`"):
        decoded(seal(MAGIC, 1, msgspec.json.encode(fields)))


def test_another_tablets_superblock_is_damage() -> None:
    with pytest.raises(DamagedFile, match=r"it is of tablet t1.r8"):
        decoded(encode_block(ready(tablet="t1.r8")))


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(NewerFormat, match=r"tablet-meta/t1.r7 has format 2"):
        decoded(seal(MAGIC, 2, b"\xff"))


def test_a_deletion_keeps_the_memory_and_begins_a_generation() -> None:
    block = superblock.deleted(ready(run_intent=RunIntent.RESTING), MEMORY, "removed", 2000)
    assert block == tombstone(reason="removed", changed_ms=2000)


def test_a_copy_keeps_the_memory_until_it_is_whole() -> None:
    begun = superblock.copying(tombstone(), 2, "peer", 3000)
    assert (begun.data_state, begun.memory, begun.quarantine) == (DataState.COPYING, MEMORY, "")
    back = superblock.given_up(begun, "it failed", 4000)
    assert (back.data_state, back.memory, back.generation) == (DataState.DELETED, MEMORY, begun.generation + 1)
    whole = superblock.copied(begun, 12, 4000)
    assert (whole.data_state, whole.memory, whole.generation, whole.slot) == (DataState.READY, None, 4, 12)


def test_another_number_begins_without_memory() -> None:
    begun = superblock.copying(tombstone(), 7, "peer", 3000)
    assert (begun.number, begun.highest_number, begun.memory) == (7, 7, None)


def test_a_number_never_goes_back() -> None:
    with pytest.raises(ValueError, match="number 1 is below 2"):
        superblock.copying(tombstone(), 1, "peer", 3000)


def test_a_burned_number_is_never_copied_to() -> None:
    """The copy would be a voter without the memory of its votes."""
    lost = superblock.burned(ready(), 2, 3, "the log has a hole", 2000)
    assert (lost.is_lost, lost.memory, lost.data_state, lost.generation) == (True, None, DataState.DELETED, 4)
    assert lost.quarantine == f"quarantine/{TABLET}.3"
    with pytest.raises(ValueError, match="the memory of number 2 is lost"):
        superblock.copying(lost, 2, "peer", 3000)
    assert superblock.copying(lost, 3, "peer", 3000).is_lost is False


def test_files_of_a_burned_replica_have_a_lower_generation() -> None:
    """Also files that are newer than a superblock from a backup."""
    assert superblock.burned(ready(), 2, 8, "", 2000).generation == 9
    assert superblock.burned(ready(), 5, 8, "", 2000).highest_number == 5
    assert superblock.burned_unknown("s", TABLET, 0, 0, "", 2000).generation == 2
    assert superblock.burned_unknown("s", TABLET, 4, 8, "", 2000).generation == 9


def test_only_listed_moves_are_made() -> None:
    with pytest.raises(InvalidTransition, match="no transition from READY on copy"):
        superblock.copying(ready(), 2, "peer", 3000)
    with pytest.raises(InvalidTransition, match="no transition from DELETED on delete"):
        superblock.deleted(tombstone(), MEMORY, "", 3000)


def test_a_long_reason_is_cut() -> None:
    assert len(superblock.deleted(ready(), MEMORY, "x" * (REASON_MAX + 1), 2000).reason) == REASON_MAX


@pytest.mark.parametrize(
    ("term", "vote", "expected"),
    [
        (0, 0, MEMORY),
        (4, 1, MEMORY),
        (5, 1, MEMORY),
        (6, 1, Memory(6, 1, 4, 117)),
        (6, 0, Memory(6, 0, 4, 117)),
    ],
)
def test_the_later_promise_is_the_memory(term: int, vote: int, expected: Memory) -> None:
    """The consensus metadata have a tombstone's vote. Metadata from before the removal may be older than the
    superblock."""
    assert memory_of(tombstone(), meta(term=term, vote=vote)) == expected


def test_a_first_vote_in_the_term_of_the_deletion_counts() -> None:
    without = tombstone(memory=Memory(5, 0, 4, 117))
    assert memory_of(without, meta(term=5, vote=3)) == Memory(5, 3, 4, 117)


def test_the_promise_of_another_number_is_no_memory() -> None:
    assert memory_of(tombstone(), meta(number=1, term=9, vote=1)) == MEMORY
    assert memory_of(superblock.burned(ready(), 2, 3, "", 2000), meta(term=9, vote=1)) is None
