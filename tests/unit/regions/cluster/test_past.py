"""The cluster at an earlier point, and who has held a region: folds over the history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regions.cluster.history import (
    DRAIN_BEGINS,
    EPOCH_BEGINS,
    SERVER_DOWN,
    SERVER_FENCED,
    SERVER_UP,
    SERVERS,
    complete_history,
)
from regions.cluster.past import Interval, Point, owners_of, picture_at, split
from regions.transitions.entries import HistoryEntry
from regions.transitions.states import STEPS, Actor

KEY = "t.0-0"


def step(at_ms: int, before: str, after: str, cause: str, server: str = "s1", zxid: int = 0) -> HistoryEntry:
    actor = "server" if after in ("OPENING", "OPENED", "CLOSING", "CLOSED") else "master"
    return HistoryEntry(at_ms, KEY, actor, before, after, cause, server, 3, zxid=zxid)


def event(at_ms: int, cause: str, server: str = "", detail: str = "", zxid: int = 0) -> HistoryEntry:
    return HistoryEntry(at_ms, "", "master", "", "", cause, server, 3, detail=detail, zxid=zxid)


#: A region opens on s1, moves to s2, and opens on s1 again after the death of s2.
STORY = [
    event(1, EPOCH_BEGINS, "m1", zxid=10),
    event(2, SERVERS, detail="s1=h:1 s2=h:2", zxid=10),
    step(10, "", "OFFLINE", "assign", zxid=11),
    step(11, "OFFLINE", "OPENING", "open order"),
    step(12, "OPENING", "OPENED", "open done"),
    step(13, "OPENED", "", "done", zxid=14),
    step(20, "", "CLOSING", "close order"),
    step(21, "CLOSING", "CLOSED", "close done"),
    step(22, "CLOSED", "OFFLINE", "move continues", "s2", 17),
    step(23, "OFFLINE", "OPENING", "open order", "s2"),
    step(24, "OPENING", "OPENED", "open done", "s2"),
    step(25, "OPENED", "", "done", "s2", 20),
    event(30, SERVER_DOWN, "s2", "h:2", 21),
    step(31, "", "OFFLINE", "server death", zxid=22),
    step(32, "OFFLINE", "OPENING", "open order"),
    step(33, "OPENING", "OPENED", "open done"),
    step(34, "OPENED", "", "done", zxid=25),
]


@pytest.mark.parametrize(
    ("at_ms", "state", "open_on"),
    [
        (10, "OFFLINE", ""),
        (11, "OPENING", ""),
        (12, "OPENED", "s1"),
        (15, "", "s1"),
        (20, "CLOSING", "s1"),
        (21, "CLOSED", ""),
        (24, "OPENED", "s2"),
        (30, "", "s2"),
        (31, "OFFLINE", ""),
        (99, "", "s1"),
    ],
)
def test_a_region_at_each_point_of_its_life(at_ms: int, state: str, open_on: str) -> None:
    """N2: a closing region is open until it is closed; an opening one is open nowhere."""
    found = picture_at(STORY, Point(at_ms=at_ms)).replicas[KEY]
    assert (found.state, found.open_on, found.is_known) == (state, open_on, True)


def test_servers_and_the_active_master_at_a_point() -> None:
    found = picture_at(STORY, Point(at_ms=30))
    assert (found.master, found.epoch, found.servers, found.gone) == ("m1", 3, {"s1": 0}, {"s2": 30})
    back = [*STORY, event(40, SERVER_UP, "s2"), event(41, DRAIN_BEGINS, "s2"), event(42, SERVER_FENCED, "s1")]
    found = picture_at(back, Point(at_ms=50))
    assert (found.servers, found.gone, found.draining) == ({"s2": 40}, {"s1": 42}, {"s2"})
    after = picture_at([*back, event(60, SERVERS, detail="s1=h:1")], Point(at_ms=60))
    assert (set(after.servers), after.gone) == ({"s1"}, {"s2": 60}), "a takeover finds out what nobody recorded"


@pytest.mark.parametrize(
    ("zxid", "state", "open_on"), [(11, "OFFLINE", ""), (14, "", "s1"), (17, "OFFLINE", ""), (22, "OFFLINE", "")]
)
def test_a_zxid_is_a_point_too(zxid: int, state: str, open_on: str) -> None:
    """A server's step has no zxid of its own: the master's steps around it decide."""
    found = picture_at(STORY, Point(zxid=zxid)).replicas[KEY]
    assert (found.state, found.open_on) == (state, open_on)


def test_a_server_whose_clock_is_wrong_does_not_move_its_step_beyond_the_masters() -> None:
    wrong = [
        step(10, "", "OFFLINE", "assign", zxid=11),
        step(9_000, "OFFLINE", "OPENING", "open order"),
        step(9_001, "OPENING", "OPENED", "open done"),
        step(9_002, "OPENED", "", "done", zxid=14),
        event(20, EPOCH_BEGINS, "m2", zxid=15),
    ]
    assert picture_at(wrong, Point(zxid=14)).replicas[KEY].open_on == "s1"
    before, _ = split(wrong, Point(zxid=11))
    assert [one.after for one in before] == ["OFFLINE"]
    slow = [wrong[0], wrong[3], step(5, "", "CLOSING", "close order")]
    before, _ = split(slow, Point(zxid=11))
    assert [one.after for one in before] == ["OFFLINE"], "a slow clock does not move a step before the master's"


@pytest.mark.parametrize(
    ("first", "present", "expected"),
    [
        (step(50, "", "CLOSING", "close order"), {}, ("", "s1", True)),
        (step(50, "CLOSING", "CLOSED", "close done"), {}, ("CLOSING", "s1", True)),
        (step(50, "", "OFFLINE", "assign"), {}, ("", "", True)),
        (step(50, "", "OFFLINE", "server death"), {}, ("", "", False)),
        (step(50, "OPENED", "OFFLINE", "server death", "s2"), {}, ("OPENED", "", False)),
        (None, {KEY: ("s2", 5)}, ("", "s2", True)),
        (None, {KEY: ("s2", 45)}, ("", "", False)),
    ],
)
def test_a_region_without_an_earlier_step(first: HistoryEntry | None, present: dict, expected: tuple) -> None:  # type: ignore[type-arg]
    """The first later step says where the region was, or the store; otherwise the region is unknown."""
    entries = [event(1, EPOCH_BEGINS, "m1"), *([first] if first is not None else [])]
    found = picture_at(entries, Point(at_ms=40), present).replicas[KEY]
    assert (found.state, found.open_on, found.is_known) == expected


def test_a_point_before_the_history_is_unknown() -> None:
    found = picture_at(STORY, Point(at_ms=0), {KEY: ("s1", 0)})
    assert (found.is_covered, found.begins_ms, found.replicas[KEY].is_known) == (False, 1, False)
    assert not picture_at([], Point(at_ms=5)).is_covered


def test_owners_with_the_time_of_a_death_and_gaps() -> None:
    """N2: who held the region when. A dead server held it until its registration was gone."""
    assert owners_of(STORY, "t.0") == [
        Interval(KEY, "s1", 12, 21, "close done"),
        Interval(KEY, "s2", 24, 30, "server death"),
        Interval(KEY, "s1", 33),
    ]
    cut = complete_history([STORY[6], STORY[7], *STORY[13:]], [])
    assert owners_of(cut, "t.0") == [
        Interval(KEY, "s1", 0, 21, "close done"),
        Interval(KEY, "", 31, 31, "gap", is_gap=True),
        Interval(KEY, "s1", 33),
    ]
    assert owners_of(STORY, "t.1") == []


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(0, 60))
def test_the_fold_of_a_prefix_is_the_state_after_its_last_step(choices: list[int], cut: int) -> None:
    """Property: for any legal life of a replica, the picture at a point has the state after the last step up to it,
    and the picture of the whole history is the present."""
    state, held, life, places = None, "", [], [(None, "", False)]
    for at, choice in enumerate(choices, 1):
        steps = [one for one in STEPS if one.before == state]
        one = steps[choice % len(steps)]
        server = f"s{choice % 3}" if state is None else (life[-1].server if life else "s0")
        if one.actor is Actor.MASTER and one.after is not None:
            server = f"s{choice % 3}"
        if state is None and one.actor is Actor.SERVER:  # only the holder closes
            server = held or server
        life.append(
            HistoryEntry(at, KEY, one.actor.value, "" if state is None else state.value,
                         "" if one.after is None else one.after.value, one.cause.value, server, 3, zxid=at)
        )  # fmt: skip
        after = "" if one.after is None else one.after.value
        if after in ("OPENED", "CLOSING"):
            held = server
        elif after or one.cause.value != "done":
            held = ""
        is_removed = one.after is None and one.cause.value in ("not a member", "abandoned", "replaced")
        state = one.after
        places.append((state, held, is_removed))
    for point in (Point(at_ms=cut), Point(zxid=cut)):
        at = min(cut, len(life))
        found = picture_at(life, point).replicas.get(KEY)
        if at:
            expected, held_then, is_removed = places[at]
            assert (found is None) == is_removed
            if found is None:
                continue
            assert (found.state, found.open_on) == ("" if expected is None else expected.value, held_then)
