"""How far the log's floor of a replica may move."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coord.storage.shared.log import SEGMENTS_CHECKPOINT, SEGMENTS_MAX
from regionserver.tablets.host.quiet import QUIET_LOOKS
from regionserver.tablets.process.floors import FORCED_SEGMENTS, PointCandidate, points_wanted, target
from regionserver.tablets.process.rows_work import RowsWork
from regionserver.tablets.rows.steady import STEADY_AFTER_S


@pytest.mark.parametrize(
    ("point", "everywhere", "segments", "expected"),
    [
        (10, 20, 1, 10),
        (20, 10, 1, 10),
        (20, 10, FORCED_SEGMENTS - 1, 10),
        (20, 10, FORCED_SEGMENTS, 20),
        (0, 10, FORCED_SEGMENTS, 0),
    ],
)
def test_the_floor_follows_the_steady_point_and_all_members(
    point: int, everywhere: int, segments: int, expected: int
) -> None:
    assert target(point, everywhere, segments) == expected


def test_the_log_is_shortened_before_it_is_too_long() -> None:
    assert SEGMENTS_CHECKPOINT < FORCED_SEGMENTS < SEGMENTS_MAX


@pytest.mark.parametrize(
    ("candidate", "segments", "expected"),
    [
        (PointCandidate(5, 5, is_pinning=False, is_due=True), 1, True),
        (PointCandidate(5, 9, is_pinning=False, is_due=False), SEGMENTS_CHECKPOINT, False),
        (PointCandidate(5, 9, is_pinning=True, is_due=False), SEGMENTS_CHECKPOINT - 1, False),
        (PointCandidate(5, 9, is_pinning=True, is_due=False), SEGMENTS_CHECKPOINT, True),
        (PointCandidate(9, 9, is_pinning=True, is_due=False), SEGMENTS_CHECKPOINT, False),
    ],
)
def test_a_point_is_made_when_it_is_due_or_keeps_the_log_long(
    candidate: PointCandidate, segments: int, expected: bool
) -> None:
    assert points_wanted([candidate], segments) == [expected]


def test_points_that_are_due_together_are_spread_over_the_seconds_of_their_age() -> None:
    """Otherwise the syncs of hundreds of tablets would keep the log from the disk for seconds."""
    due = [PointCandidate(0, 9, is_pinning=False, is_due=True)] * 600
    wanted = points_wanted(due, 1)
    assert sum(wanted) == 1 + 600 / STEADY_AFTER_S
    assert wanted == sorted(wanted, reverse=True), "the first in turn come first"


def test_points_that_shorten_a_long_log_wait_for_no_turn() -> None:
    due = PointCandidate(0, 9, is_pinning=False, is_due=True)
    pinning = PointCandidate(0, 9, is_pinning=True, is_due=True)
    assert points_wanted([due, due, pinning, pinning], SEGMENTS_CHECKPOINT) == [True, False, True, True]


def test_a_copy_holds_the_floor_only_while_the_log_is_short() -> None:
    assert target(100, 90, 1, 80) == 80
    assert target(100, 70, 1, 80) == 70
    assert target(100, 90, FORCED_SEGMENTS - 1, 80) == 80
    assert target(100, 90, FORCED_SEGMENTS, 80) == 100


def replica(name: str, slot: int, is_due: Callable[[float], bool]) -> Any:
    rows = SimpleNamespace(damage="", point=(5, 1), applied=(9, 1), is_due=is_due)
    return SimpleNamespace(rows=rows, is_steadying=False, is_serving=lambda: True, slot=slot, tablet=name)


@pytest.mark.parametrize(
    ("pinning", "looked_at"), [([], ["awake", "due"]), ([7], ["awake", "due", "quiet"])], ids=["short log", "long log"]
)
def test_a_quiet_tablet_is_looked_at_when_its_point_is_due_or_the_log_is_long(
    pinning: list[int], looked_at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if one of the three conditions in `sweep` is left out."""
    seen: list[str] = []
    replicas = {
        name: replica(name, slot, lambda _, is_due=name == "due": is_due)
        for slot, name in enumerate(("awake", "due", "quiet"))
    }
    turn: Any = SimpleNamespace(quiet=SimpleNamespace(awake={"awake": None}))
    log: Any = SimpleNamespace(segment_count=lambda: SEGMENTS_CHECKPOINT, pinning=lambda: pinning)
    none: Any = None
    work = RowsWork(turn, replicas, {}, none, none, none, none)
    for name in ("_make_point", "move_floor"):
        monkeypatch.setattr(work, name, lambda replica, *_: seen.append(replica.tablet))
    work.sweep(0.0, log)
    assert seen == looked_at


def test_a_quiet_tablet_is_looked_at_once_in_ten_sweeps_and_then_until_its_point_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tried: with all replicas in each sweep the first assertion fails; without `_due` the second one does."""
    asked: list[str] = []
    due: set[str] = set()

    def asks(name: str) -> Callable[[float], bool]:
        return lambda _: asked.append(name) or name in due  # type: ignore[func-returns-value]

    names = [f"t{slot}" for slot in range(2 * QUIET_LOOKS)]
    replicas = {name: replica(name, slot, asks(name)) for slot, name in enumerate(names)}
    turn: Any = SimpleNamespace(quiet=SimpleNamespace(awake={}))
    log: Any = SimpleNamespace(segment_count=lambda: 1, pinning=list)
    none: Any = None
    work = RowsWork(turn, replicas, {}, none, none, none, none)
    for name in ("_make_point", "move_floor"):
        monkeypatch.setattr(work, name, lambda *_: None)
    for _ in range(QUIET_LOOKS):
        work.sweep(0.0, log)
    assert sorted(asked) == sorted(names)
    due.add("t3")
    for _ in range(QUIET_LOOKS):
        work.sweep(0.0, log)
    asked.clear()
    work.sweep(0.0, log)
    assert asked.count("t3") == 1
    assert len(asked) == 3
