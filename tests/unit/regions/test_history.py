"""The history of steps: its form in the store, its bounds, and what is told of steps that nobody saw."""

from __future__ import annotations

import random
import zlib

import msgspec
import pytest

from regions import history as module
from regions.history import (
    ENTRIES_MAX,
    EPOCH_BEGINS,
    FOUND,
    MERGE_AT,
    MERGED_MAX,
    SEGMENT_BYTES_MAX,
    SMALL,
    CorruptSegment,
    Entry,
    SeenStep,
    Segment,
    StepLog,
    cause_of,
    concerns,
    entry_found,
    entry_of,
    filled,
    mergeable,
    pack,
    parse_segment,
    surplus,
    unpack,
)
from regions.model import Incarnation, RegionState, TransitionRecord
from regions.states import Actor, Cause

KEY = "t1.0001-0"


def step(after: str, before: str = "", *, cause: str = "", key: str = KEY, actor: str = "master") -> Entry:
    return Entry(1, key, actor, before, after, cause, "s1", 3)


def told(entries: list[Entry]) -> list[str]:
    return [f"{one.before or '-'}>{one.after or '-'}{'*' if one.inferred else ''}" for one in filled(entries)]


def test_a_segment_survives_its_znode() -> None:
    """`rk history`: what is packed is what is unpacked."""
    entries = [step("OFFLINE", cause="assign"), Entry(2, "", "master", "", "", EPOCH_BEGINS, "m", 4, detail="h:1")]
    assert unpack(pack(entries)) == entries


#: A whole segment with an entry whose key is no text.
NO_TEXT = b"RKH1" + zlib.compress(msgspec.msgpack.encode([[1, "x", "m", "", "", ""]]).replace(b"x", b"\xff"))


@pytest.mark.parametrize("data", [b"", b"{}", b"RKH1", b"RKH1nonsense", b"RKH1" + bytes(10), NO_TEXT])
def test_what_is_no_segment_is_said_to_be_none(data: bytes) -> None:
    """Somebody may write anything into a znode."""
    with pytest.raises(CorruptSegment):
        unpack(data)


def test_the_largest_segment_fits_into_a_frame_beside_a_full_multi() -> None:
    """OC-02: ENTRIES_MAX entries with the longest errors, which do not compress, stay below SEGMENT_BYTES_MAX."""
    chance = random.Random(1)
    error = [chance.randbytes(module.DETAIL_MAX // 2).hex() for _ in range(ENTRIES_MAX)]
    entries = [
        Entry(
            10**12 + n, f"{n:08x}.{n:04x}-0", "server", "OPENING", "OPENED", "open done", f"{n:032x}", 7, 1, "", "x", e
        )
        for n, e in enumerate(error)
    ]
    data = pack(entries)
    assert len(data) <= SEGMENT_BYTES_MAX
    kept = unpack(data)
    assert [one.key for one in kept] == [one.key for one in entries]
    assert {one.detail for one in kept} == {""}, "errors are what is left out"
    assert unpack(pack(entries[:100])) == entries[:100]


def test_a_name_says_what_its_keeping_depends_on() -> None:
    segment = Segment(7, 42, 400, 9120)
    assert segment.name == "0000000007-00000042-400-9120"
    assert parse_segment(segment.name) == segment
    assert [parse_segment(name) for name in ("", "a-b-c-d", "1-2-3", "1-2-3-4-5")] == [None] * 4
    assert Segment(9, 5, 1, 1).name < Segment(10, 0, 1, 1).name, "their order is the order of time"


@pytest.mark.parametrize(
    ("bound", "segments"),
    [
        ("STEPS_MAX", [Segment(1, n, 10, 1) for n in range(10)]),
        ("BYTES_MAX", [Segment(1, n, 1, 10) for n in range(10)]),
    ],
)
def test_the_oldest_go_when_a_bound_is_passed_and_not_at_it(
    bound: str, segments: list[Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history is kept within a stated number of steps and bytes."""
    monkeypatch.setattr(module, bound, 100)
    assert surplus(segments) == []
    monkeypatch.setattr(module, bound, 99)
    assert surplus(segments) == segments[:1]
    monkeypatch.setattr(module, bound, 25)
    assert surplus(segments) == segments[:8]


def test_too_many_segments_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [Segment(1, n, 1, 1) for n in range(10)]
    monkeypatch.setattr(module, "SEGMENTS_MAX", 10)
    assert surplus(segments) == []
    monkeypatch.setattr(module, "SEGMENTS_MAX", 9)
    assert surplus(segments) == segments[:1]


def test_small_neighbours_are_merged_up_to_a_size() -> None:
    small = [Segment(1, n, 10, 100) for n in range(MERGE_AT)]
    assert mergeable(small) == small
    assert mergeable(small[:-1]) == []
    big = Segment(1, 7, SMALL, 100)
    assert mergeable([*small[:5], big, *small[5:]]) == []
    assert mergeable([big, *small]) == small
    many = [Segment(1, n, SMALL - 1, 100) for n in range(MERGE_AT)]
    run = mergeable(many)
    assert sum(one.entries for one in run) <= MERGED_MAX < sum(one.entries for one in run) + SMALL - 1


def test_only_steps_that_were_seen_wait_to_be_written_down() -> None:
    """A master's own steps are written by the multi that takes them."""
    log = StepLog(10)
    fields = ("s1", 3, "", 0, "")
    log.append(SeenStep(1, KEY, Actor.MASTER, None, RegionState.OFFLINE, Cause.ASSIGN, *fields))
    log.append(SeenStep(2, KEY, Actor.SERVER, RegionState.OFFLINE, RegionState.OPENED, None, *fields))
    [entry] = log.take_unsaved()
    assert (entry.after, entry.cause) == ("OPENED", Cause.OPEN_DONE.value)
    assert log.take_unsaved() == []
    log.put_back([entry])
    log.append(SeenStep(3, KEY, Actor.SERVER, None, RegionState.CLOSING, None, *fields, "move"))
    assert [one.after for one in log.take_unsaved(1)] == ["OPENED"]
    assert [(one.cause, one.reason) for one in log.take_unsaved()] == [("close order", "move")]
    assert len(log) == 3


def test_a_long_error_is_cut() -> None:
    closing = SeenStep(1, KEY, Actor.SERVER, None, RegionState.CLOSING, None, "", 1, "", 0, "e" * 999, "r" * 999)
    entry = entry_of(closing)
    assert (len(entry.detail), len(entry.reason)) == (module.DETAIL_MAX, module.DETAIL_MAX)


def test_causes_of_servers_follow_from_the_states() -> None:
    """RT-27 to RT-29: a server's step has one cause, also when the one before it was not seen."""
    assert cause_of(Actor.SERVER, "OFFLINE", "OPENING") == "open order"
    assert cause_of(Actor.SERVER, "OPENING", "OPENING") == "progress"
    assert cause_of(Actor.SERVER, "OFFLINE", "OPENED") == "open done"
    assert cause_of(Actor.SERVER, "", "CLOSED") == "close done"
    assert cause_of(Actor.MASTER, "OFFLINE", "OFFLINE") == "", "of four causes nobody can tell"


def test_steps_between_two_entries_are_told_if_there_is_one_way_only() -> None:
    """A kill -9 loses what the dead master had seen and not written: its successor's entries say what it was."""
    life = [step("OFFLINE"), step("OPENED", "OFFLINE"), step("", "OPENED")]
    assert told(life) == ["->OFFLINE", "OFFLINE>OPENING*", "OPENING>OPENED", "OPENED>-"]
    lost = ["->OFFLINE", "OFFLINE>OPENING*", "OPENING>OPENED*", "OPENED>-"]
    assert told([step("OFFLINE"), step("", "OPENED")]) == lost
    assert told([step("CLOSING"), step("OFFLINE", "CLOSED")]) == ["->CLOSING", "CLOSING>CLOSED*", "CLOSED>OFFLINE"]
    assert told([step("CLOSED", "CLOSING"), step("OPENED", "OFFLINE")])[1] == "CLOSED>OFFLINE*"
    assert told([step("CLOSED")]) == ["->CLOSING*", "CLOSING>CLOSED"]
    assert told([step("OPENED", "CLOSING")]) == ["CLOSING>OFFLINE*", "OFFLINE>OPENING*", "OPENING>OPENED"]
    inferred = [one for one in filled([step("OFFLINE"), step("", "OPENED")]) if one.inferred]
    assert [(one.actor, one.cause) for one in inferred] == [("server", "open order"), ("server", "open done")]


def test_what_a_new_master_found_fills_the_gap_and_is_told_only_if_it_says_something_new() -> None:
    """MF-02: the snapshot of a failover."""
    found = Entry(5, KEY, "master", "OPENED", "OPENED", FOUND, "s1", 4)
    assert told([step("OFFLINE"), found, step("", "OPENED")]) == [
        "->OFFLINE",
        "OFFLINE>OPENING*",
        "OPENING>OPENED*",
        "OPENED>-",
    ]
    assert told([found]) == ["OPENED>OPENED"], "the first that is known of it"
    record = TransitionRecord("t1.0001", "t1", 0, RegionState.CLOSED, source=Incarnation("a", 1))
    entry = entry_found(record, 9, 1)
    assert (entry.before, entry.after, entry.server, entry.epoch) == ("CLOSED", "CLOSED", "a", 9)
    wiped = entry_found(record, 9, 1, Cause.STARTUP_WIPE.value)
    assert (wiped.before, wiped.after) == ("CLOSED", "")


def test_replicas_do_not_mix() -> None:
    other = "t1.0001-1"
    entries = [step("OFFLINE"), step("CLOSING", key=other), step("", "OPENED"), step("OFFLINE", "CLOSED", key=other)]
    assert sum(one.inferred for one in filled(entries)) == 3


def test_whom_an_entry_concerns() -> None:
    entry = step("OFFLINE")
    assert concerns(entry)
    assert concerns(entry, region_id="t1.0001", table_id="t1", server="s1")
    assert not concerns(entry, region_id="t1.0002")
    assert not concerns(entry, table_id="t")
    assert not concerns(entry, server="s2")
