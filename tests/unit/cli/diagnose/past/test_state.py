"""`rk state`, `rk history --replay` and `--owner` as they are printed, within 80 columns."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cli.common.errors import UsageFaultError
from cli.common.names import Names
from cli.diagnose.history import HistoryView
from cli.diagnose.past.replay import OwnerLine, owner_lines, owners, range_of, replay
from cli.diagnose.past.state import describe, point_of, state_of
from regions.cluster.history import (
    EPOCH_BEGINS,
    SERVER_DOWN,
    SERVERS,
    complete_history,
)
from regions.cluster.past import Point, picture_at
from regions.transitions.entries import HistoryEntry

#: 2026-11-23 20:05:43.000 UTC.
NOW_MS = 1_795_464_343_000
TABLES = {"t": "orders"}


def _step(at: int, before: str, after: str, cause: str, server: str = "s1", region: str = "t.0") -> HistoryEntry:
    actor = "server" if after in ("OPENING", "OPENED", "CLOSING", "CLOSED") else "master"
    return HistoryEntry(NOW_MS + at, f"{region}-0", actor, before, after, cause, server, 3, zxid=0x100 + at)


ENTRIES = [
    HistoryEntry(NOW_MS, "", "master", "", "", EPOCH_BEGINS, "m1", 3, detail="h:1", zxid=0x100),
    HistoryEntry(NOW_MS, "", "master", "", "", SERVERS, "", 3, detail="s1=h:5 s2=h:6", zxid=0x100),
    _step(10, "", "OFFLINE", "assign"),
    _step(11, "OFFLINE", "OPENING", "open order"),
    _step(12, "OPENING", "OPENED", "open done"),
    _step(13, "OPENED", "", "done"),
    HistoryEntry(NOW_MS + 20, "", "server", "", "", SERVER_DOWN, "s1", 3, detail="h:5", zxid=0x114),
    _step(21, "", "OFFLINE", "server death", "s2"),
    _step(30, "", "CLOSING", "close order", "s2", "t.1"),
]

STATE = """\
2026-11-23 21:05:43.025+0100  (latest known zxid 0x115)
  active    h:1, epoch 3
  servers   h:6
            h:5 was gone, since 2026-11-23 21:05:43.020+0100
  regions   1 OFFLINE, 1 OPEN, 1 UNKNOWN
            h:6: 1 open
  orders t.0 OFFLINE on h:6 since 2026-11-23 21:05:43.021+0100, server death
"""
EVERY = """\
  orders t.0 OFFLINE on h:6 since 2026-11-23 21:05:43.021+0100, server death
  orders t.1 OPEN on h:6
  orders t.2 UNKNOWN
"""
OWNERS = """\
2026-11-23 21:05:43.012+0100  h:5 to 2026-11-23 21:05:43.020+0100, server death
2026-11-23 21:05:43.020+0100  nobody until now
"""


@pytest.fixture(autouse=True)
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def view() -> HistoryView:
    return HistoryView(complete_history(ENTRIES, []), Names([], None), [])


def test_the_state_at_a_point_is_one_screen() -> None:
    """N2: parts that the history does not cover are shown as unknown."""
    past = view()
    picture = picture_at(past.entries, Point(at_ms=NOW_MS + 25), {"t.2-0": ("s2", NOW_MS + 40)})
    found = state_of(picture, past, TABLES, Point(at_ms=NOW_MS + 25))
    said = [text.plain for text in describe(found)]
    assert "\n".join(said) + "\n" == STATE
    assert all(len(line) <= 80 for line in said)
    every = [text.plain for text in describe(found, every=True)]
    assert "\n".join(every[6:]) + "\n" == EVERY


def test_a_point_before_the_history_is_said_to_be_unknown() -> None:
    past = view()
    found = state_of(picture_at(past.entries, Point(at_ms=5)), past, TABLES, Point(at_ms=5))
    [text] = describe(found)
    assert text.plain == ("unknown: the history does not reach back so far; it begins at 2026-11-23 21:05:43.000+0100")


def test_who_has_held_a_region() -> None:
    past = view()
    assert "\n".join(owner_lines(owners(past.entries, "t.0", past.names))) + "\n" == OWNERS


def test_times_without_a_server_are_lines_between_the_owners() -> None:
    """A region that was closed for half an hour must not look as if one server had followed the other.

    Tried: without `_nobody` the second line is missing.
    """

    def owner(
        replica: int, server: str, from_ms: int, to_ms: int, *, is_gap: bool = False, ended: str = ""
    ) -> OwnerLine:
        return OwnerLine("t.0", replica, server, from_ms, to_ms, ended, is_gap)

    found = [
        owner(0, "server-1", NOW_MS, NOW_MS + 1_000, ended="close done"),
        owner(1, "server-9", NOW_MS, 0),
        owner(0, "server-2", NOW_MS + 3_500, NOW_MS + 4_000, ended="gap"),
        owner(0, "", NOW_MS + 4_000, NOW_MS + 4_000, is_gap=True),
        owner(0, "server-3", NOW_MS + 5_000, 0),
    ]
    words = [line.partition("+0100  ")[2] for line in owner_lines(found)]
    assert words == [
        "server-1 to 2026-11-23 21:05:44.000+0100, close done",
        "nobody to 2026-11-23 21:05:46.500+0100, for 2.50 s",
        "server-9 until now",
        "server-2 to 2026-11-23 21:05:47.000+0100, then the history has a gap",
        "gap: steps were not recorded, so another server may have held it",
        "server-3 until now",
    ]


def test_a_replay_has_the_steps_between_two_points_and_both_states() -> None:
    past = view()
    ends = (Point(zxid=0x10B), Point(at_ms=NOW_MS + 20))
    found = replay(past, TABLES, ends, lambda _: True, {})
    assert [(one.before, one.after) for one in found.steps] == [("OPENING", "OPENED"), ("OPENED", ""), ("", "")]
    [opening] = [one for one in found.before.regions if one.region == "t.0"]
    [then] = [one for one in found.after.regions if one.region == "t.0"]
    assert (opening.standing, then.standing, then.open_on) == ("OPENING", "OPEN", "h:5")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m..5m", (Point(at_ms=NOW_MS - 900_000), Point(at_ms=NOW_MS - 300_000))),
        ("0x1f3..", (Point(zxid=0x1F3), Point(at_ms=NOW_MS))),
        ("..0x2", (Point(at_ms=0), Point(zxid=2))),
    ],
)
def test_ranges(text: str, expected: tuple[Point, Point]) -> None:
    assert range_of(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["5m", "5m..15m", "a..b", "0xzz..", "1m..2m..3m"])
def test_a_range_that_is_none_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(UsageFaultError, match="--replay"):
        range_of(text, NOW_MS)


def test_points() -> None:
    assert point_of("0x1F3", NOW_MS, "--at") == Point(zxid=0x1F3)
    assert point_of("2026-11-23T21:05:43", NOW_MS, "--at") == Point(at_ms=NOW_MS)
