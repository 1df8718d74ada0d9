"""How far the log's floor of a replica may move."""

from __future__ import annotations

import pytest

from coord.storage.shared.log import SEGMENTS_CHECKPOINT, SEGMENTS_MAX
from regionserver.tablets.process.floors import FORCED_SEGMENTS, target, wants_point


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
def test_floor(point: int, everywhere: int, segments: int, expected: int) -> None:
    assert target(point, everywhere, segments) == expected


def test_the_log_is_shortened_before_it_is_too_long() -> None:
    assert SEGMENTS_CHECKPOINT < FORCED_SEGMENTS < SEGMENTS_MAX


def test_a_point_is_made_when_it_is_due_or_keeps_the_log_long() -> None:
    assert wants_point(5, 5, 1, is_pinning=False, is_due=True)
    assert not wants_point(5, 9, SEGMENTS_CHECKPOINT, is_pinning=False, is_due=False)
    assert not wants_point(5, 9, SEGMENTS_CHECKPOINT - 1, is_pinning=True, is_due=False)
    assert wants_point(5, 9, SEGMENTS_CHECKPOINT, is_pinning=True, is_due=False)
    assert not wants_point(9, 9, SEGMENTS_CHECKPOINT, is_pinning=True, is_due=False)
