"""How far the log's floor of a replica may move, and when rows are made durable. Pure.

The floor never passes the rows' steady point: behind that point the log is all there is. No replica can be copied yet,
so the floor does not pass what every member is known to have either. A member that is away for long would keep the log
for ever; from FORCED_SEGMENTS on the floor moves without that member, which needs a copy then.

A steady point syncs files of its own, and the log waits for the same disk. Tablets that were first written at the same
time would all be due in the same second. So each second begins a few of the points that are due, in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from coord.storage.shared.log import SEGMENTS_CHECKPOINT, SEGMENTS_MAX
from regionserver.tablets.rows.steady import STEADY_AFTER_S

#: From so many segments on, floors move although a member lacks entries: the log must not exceed SEGMENTS_MAX, and a
#: steady point takes a while, during which two more segments may be written.
FORCED_SEGMENTS: Final = SEGMENTS_MAX - 2


def target(point: int, everywhere: int, segments: int) -> int:
    """Return the index to which the floor of a replica that pins the oldest segment may move.

    `point` is the index of the rows' steady point, `everywhere` the index that every member is known to have.
    """
    return point if segments >= FORCED_SEGMENTS else min(point, everywhere)


class PointCandidate(NamedTuple):
    """A replica whose rows could be made durable now.

    `point` is the index of its steady point, `applied` that of its rows. `is_pinning`: its floor keeps the log's oldest
    segment. `is_due`: its rows have waited long enough, or have changed enough.
    """

    point: int
    applied: int
    is_pinning: bool
    is_due: bool


def points_wanted(candidates: Sequence[PointCandidate], segments: int) -> list[bool]:
    """Return for each replica whether a steady point begins in this second.

    Points that shorten a long log begin at once. The others that are due share the seconds of STEADY_AFTER_S.
    """
    left = 1 + int(len(candidates) // STEADY_AFTER_S)
    wanted = []
    for one in candidates:
        is_urgent = one.is_pinning and segments >= SEGMENTS_CHECKPOINT and one.point < one.applied
        has_turn = one.is_due and left > 0 and not is_urgent
        left -= has_turn
        wanted.append(is_urgent or has_turn)
    return wanted
