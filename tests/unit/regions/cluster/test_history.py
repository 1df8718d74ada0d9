"""The history of steps: its form in the store, its bounds, and the output of readers."""

from __future__ import annotations

import random
import zlib

import msgspec
import pytest

from master.assignment.write_queue import entries_of
from regions.cluster import history as module
from regions.cluster.effects import DeleteTransition, WriteOffline
from regions.cluster.history import (
    ENTRIES_MAX,
    EPOCH_BEGINS,
    FOUND,
    GAP,
    MERGE_AT,
    MERGED_MAX,
    RESHARDED,
    SEGMENT_BYTES_MAX,
    SMALL,
    CorruptSegment,
    Segment,
    StepLog,
    complete_history,
    concerns,
    mergeable,
    pack,
    parse_segment,
    stamped,
    surplus,
    unpack,
)
from regions.records.model import Incarnation, RegionState, TransitionRecord, WorkOrigin
from regions.transitions.entries import DETAIL_MAX, HistoryEntry
from regions.transitions.states import Actor, Cause
from regions.transitions.steps import (
    SeenStep,
    entries_kept,
    entries_of_end,
    entry_of,
    steps_since,
)

KEY = "t1.0001-0"


def step(after: str, before: str = "", *, cause: str = "", key: str = KEY, actor: str = "master") -> HistoryEntry:
    return HistoryEntry(1, key, actor, before, after, cause, "s1", 3)


def words(entries: list[HistoryEntry], kept: list[HistoryEntry] | None = None) -> list[str]:
    return [
        f"{one.before or '-'}>{one.after or '-'}{' gap' if one.cause == GAP else ''}"
        for one in complete_history(entries, kept or [])
    ]


def test_a_segment_survives_its_znode() -> None:
    """`rk history`: a packed segment is unpacked unchanged."""
    entries = [
        step("OFFLINE", cause="assign"),
        HistoryEntry(2, "", "master", "", "", EPOCH_BEGINS, "m", 4, detail="h:1"),
    ]
    assert unpack(pack(entries)) == entries


#: A whole segment with an entry whose key is not text.
NO_TEXT = b"RKH1" + zlib.compress(msgspec.msgpack.encode([[1, "x", "m", "", "", ""]]).replace(b"x", b"\xff"))


@pytest.mark.parametrize("data", [b"", b"{}", b"RKH1", b"RKH1nonsense", b"RKH1" + bytes(10), NO_TEXT])
def test_what_is_no_segment_is_said_to_be_none(data: bytes) -> None:
    """A znode may contain anything."""
    with pytest.raises(CorruptSegment):
        unpack(data)


def test_the_largest_segment_fits_into_a_frame_beside_a_full_multi() -> None:
    """OC-02: ENTRIES_MAX entries with the longest errors, which do not compress, stay below SEGMENT_BYTES_MAX."""
    chance = random.Random(1)
    error = [chance.randbytes(DETAIL_MAX // 2).hex() for _ in range(ENTRIES_MAX)]
    entries = [
        HistoryEntry(
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


def test_what_was_not_written_is_put_back_in_its_place() -> None:
    log = StepLog(10)
    log.unsaved.extend(step(name) for name in "abc")
    taken = log.take_unsaved(2)
    assert [one.after for one in taken] == ["a", "b"]
    log.put_back(taken)
    assert [one.after for one in log.take_unsaved()] == ["a", "b", "c"]


def test_a_long_error_is_cut() -> None:
    closing = SeenStep(1, KEY, Actor.SERVER, None, RegionState.CLOSING, None, "", 1, "", 0, "e" * 999, "r" * 999)
    entry = entry_of(closing)
    assert (len(entry.detail), len(entry.reason)) == (DETAIL_MAX, DETAIL_MAX)


# --- steps of servers, kept by the znode ---

HERE = Incarnation("s1", 1)
AWAY = Incarnation("s2", 1)


def record(state: RegionState, *took: int, base: int = 0, epoch: int = 3) -> TransitionRecord:
    return TransitionRecord(
        "t1.0001", "t1", 0, state, HERE, AWAY, epoch=epoch, reason="move", since_ms=9, base=base, took=took
    )


def test_a_masters_write_tells_the_servers_steps_before_it_and_itself() -> None:
    """Each step once and in order, whichever master was active when it was taken."""
    opened = record(RegionState.OPENED, 5, 6)
    done = DeleteTransition(KEY, "t1.0001", 0, RegionState.OPENED, 2, Cause.DONE, former=opened)
    entries = entries_of([done], 4, 7)
    assert [(one.at_ms, one.actor, one.before, one.after, one.cause, one.server, one.epoch) for one in entries] == [
        (5, "server", "OFFLINE", "OPENING", "open order", "s2", 3),
        (6, "server", "OPENING", "OPENED", "open done", "s2", 3),
        (7, "master", "OPENED", "", "done", "s2", 4),
    ]
    forced = WriteOffline(KEY, record(RegionState.OFFLINE, base=2, epoch=4), RegionState.CLOSED, 1, Cause.SERVER_DEATH)
    forced.former = record(RegionState.CLOSED, 5, 6)
    entries = entries_of([forced], 4, 7)
    assert [(one.actor, one.after, one.server, one.reason) for one in entries] == [
        ("server", "CLOSING", "s1", "move"),
        ("server", "CLOSED", "s1", ""),
        ("master", "OFFLINE", "s2", ""),
    ]
    wiped = entries_of_end(record(RegionState.CLOSING, 5), 0, Cause.STARTUP_WIPE, 9, 8)
    assert [(one.after, one.cause, one.epoch) for one in wiped] == [
        ("CLOSING", "close order", 3),
        ("", "startup wipe", 9),
    ]


def test_every_entry_has_its_cause_and_the_first_of_a_cause_says_what_began() -> None:
    """A server's CLOSING brings the description along; a step under another cause has its own description."""
    asked, death = WorkOrigin("e3-5", "request: MoveRegion t1.0001"), WorkOrigin("e4-1", "znode: server s2 is gone")
    closed = msgspec.structs.replace(record(RegionState.CLOSED, 5, 6), origin=asked)
    goes_on = WriteOffline(KEY, record(RegionState.OFFLINE, base=2), RegionState.CLOSED, 1, Cause.MOVE_CONTINUES)
    goes_on.former, goes_on.origin = closed, asked
    entries = entries_of([goes_on], 3, 7)
    assert [(one.after, one.cause_id, one.origin) for one in entries] == [
        ("CLOSING", "e3-5", asked.text),
        ("CLOSED", "e3-5", ""),
        ("OFFLINE", "e3-5", ""),
    ]
    opening = msgspec.structs.replace(record(RegionState.OPENING, 8, base=2), origin=WorkOrigin("e3-5"))
    again = WriteOffline(KEY, record(RegionState.OFFLINE, base=4), RegionState.OPENING, 3, Cause.SERVER_DEATH)
    again.former, again.origin = opening, death
    entries = entries_of([again], 4, 9)
    assert [(one.after, one.cause_id, one.origin) for one in entries] == [
        ("OPENING", "e3-5", ""),
        ("OFFLINE", "e4-1", death.text),
    ]
    wiped = entries_of_end(opening, 3, Cause.STARTUP_WIPE, 9, 8, WorkOrigin("e9-1", "takeover: epoch 9 begins"))
    assert [(one.cause_id, one.origin) for one in wiped] == [("e3-5", ""), ("e9-1", "takeover: epoch 9 begins")]
    assert unpack(pack(wiped)) == wiped
    assert [one.after for one in wiped if concerns(one, cause_id="e9-1")] == [""]


def test_entries_of_earlier_builds_have_no_cause_and_builds_without_causes_read_ours() -> None:
    """docs/compatibility.md: both fields come last, so either build reads the other's segments."""

    class Former(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
        """An entry in the form of the build before cause ids."""

        at_ms: int
        key: str
        actor: str
        before: str
        after: str
        cause: str
        server: str = ""
        epoch: int = 0
        attempt: int = 0
        plan_id: str = ""
        reason: str = ""
        detail: str = ""
        inferred: bool = False
        missed: int = 0

    old = Former(1, KEY, "master", "", "OFFLINE", "assign", "s1", 3)
    data = module._MAGIC + zlib.compress(msgspec.msgpack.encode([old]))
    [read] = unpack(data)
    assert (read.key, read.after, read.cause_id, read.origin) == (KEY, "OFFLINE", "", "")
    ours = HistoryEntry(1, KEY, "master", "", "OFFLINE", "assign", "s1", 3, cause_id="e3-1", origin="timer: x")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([ours]), type=list[Former]) == [old]


def test_what_a_master_learns_of_a_znode_is_only_what_is_new_to_it() -> None:
    """The latest steps are kept in memory, also after a write whose answer was lost."""

    def learned(known: TransitionRecord | None, known_version: int, now: TransitionRecord, version: int) -> list[str]:
        found = steps_since(known, known_version, now, version, 7)
        return [f"{one.actor}>{one.after}" for one in found]

    offline, opened = record(RegionState.OFFLINE), record(RegionState.OPENED, 5, 6)
    assert learned(offline, 0, opened, 2) == ["server>OPENING", "server>OPENED"]
    assert learned(record(RegionState.OPENING, 5), 1, opened, 2) == ["server>OPENED"]
    assert learned(None, -1, record(RegionState.CLOSED, 5, 6), 1) == ["server>CLOSING", "server>CLOSED"]
    assert learned(None, -1, record(RegionState.OPENING, 5), 1) == ["master>OFFLINE", "server>OPENING"]
    again = record(RegionState.OPENING, 5, base=3)
    assert learned(opened, 2, again, 4) == ["master>OFFLINE", "server>OPENING"]


def test_nothing_is_made_up() -> None:
    """If two steps do not join, the output shows the gap."""
    life = [step("OFFLINE"), step("OPENING", "OFFLINE"), step("OPENED", "OPENING"), step("", "OPENED")]
    assert words(life) == ["->OFFLINE", "OFFLINE>OPENING", "OPENING>OPENED", "OPENED>-"]
    assert words([step("OFFLINE"), step("", "OPENED")]) == ["->OFFLINE", "OFFLINE>OPENED gap", "OPENED>-"]
    assert words([step("", "OPENED")]) == ["OPENED>-"], "the oldest entries are deleted in time"
    found = HistoryEntry(5, KEY, "master", "OPENED", "OPENED", FOUND, "s1", 4)
    assert words([step("OFFLINE"), found]) == ["->OFFLINE"], "an earlier build's: no step"


def test_steps_that_znodes_keep_are_told_once() -> None:
    """A znode is read, and its master writes the next step before the segments are read."""
    kept = entries_kept(record(RegionState.OPENED, 5, 6), 2)
    assert words([step("OFFLINE")], kept) == ["->OFFLINE", "OFFLINE>OPENING", "OPENING>OPENED"]
    written = [step("OFFLINE"), *kept, step("", "OPENED")]
    assert words(written, kept) == words(written) == ["->OFFLINE", "OFFLINE>OPENING", "OPENING>OPENED", "OPENED>-"]


def test_order_is_that_of_time_and_of_each_replica() -> None:
    """Clocks of servers differ, but a replica's steps stay in their order."""
    other = "t1.0002-0"
    entries = [
        HistoryEntry(10, KEY, "master", "", "OFFLINE", "assign"),
        HistoryEntry(2, KEY, "server", "OFFLINE", "OPENING", "open order"),
        HistoryEntry(5, other, "master", "", "OFFLINE", "assign"),
        HistoryEntry(4, "", "master", "", "", EPOCH_BEGINS, "m", 4),
    ]
    assert [(one.key, one.after) for one in complete_history(entries, [])] == [
        ("", ""),
        (other, "OFFLINE"),
        (KEY, "OFFLINE"),
        (KEY, "OPENING"),
    ]


def test_replicas_do_not_mix() -> None:
    other = "t1.0001-1"
    entries = [step("OFFLINE"), step("CLOSING", key=other), step("", "OPENED"), step("OFFLINE", "CLOSED", key=other)]
    assert [one.key for one in complete_history(entries, []) if one.cause == GAP] == [KEY, other]


def test_whom_an_entry_concerns() -> None:
    entry = step("OFFLINE")
    assert concerns(entry)
    assert concerns(entry, region_id="t1.0001", table_id="t1", server="s1")
    assert not concerns(entry, region_id="t1.0002")
    assert not concerns(entry, table_id="t")
    assert not concerns(entry, server="s2")
    split = HistoryEntry(1, "", "master", "", "", RESHARDED, reason="t1.0001", detail="split of t1.0001: canceled")
    assert concerns(split, region_id="t1.0001", table_id="t1")
    assert not concerns(split, region_id="t1.0002")
    assert not concerns(split, table_id="t2")


def test_a_segments_zxid_is_that_of_the_masters_entries_in_it() -> None:
    """The steps of servers were committed earlier. A zxid that a merge has kept stays."""
    kept = HistoryEntry(1, KEY, "master", "", "OFFLINE", "assign", zxid=5)
    server = HistoryEntry(2, KEY, "server", "OFFLINE", "OPENING", "open order")
    fresh = HistoryEntry(3, KEY, "master", "OPENED", "", "done")
    begin = HistoryEntry(4, "", "master", "", "", EPOCH_BEGINS, "m", 4)
    assert [one.zxid for one in stamped([kept, server, fresh, begin], 9)] == [5, 0, 9, 9]
