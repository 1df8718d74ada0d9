"""Decisions about the floors of replicas in the log, and about the time at which rows are made durable. Pure.

The floor never passes the rows' steady point: later entries are durable only in the log. The floor does not pass the
last entry that every member has either, because a member that lacks older entries needs a copy. A member that is away
for long would keep the log forever, so from FORCED_SEGMENTS on the floor moves without regard to it.

A steady point syncs files of its own, and the log waits for the same disk. Tablets whose first writes were at the same
time would all be due in the same second. So only a few of the due points begin in each second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from coord.storage.shared.log import SEGMENTS_CHECKPOINT, SEGMENTS_MAX
from regionserver.tablets.rows.steady import STEADY_AFTER_S

#: Number of segments from which on floors move even if a member lacks entries. The log must not exceed SEGMENTS_MAX,
#: and two more segments may be written while a steady point is made.
FORCED_SEGMENTS: Final = SEGMENTS_MAX - 2


def target(point: int, everywhere: int, segments: int, pin: int | None = None) -> int:
    """Return the index to which the floor of a replica that pins the oldest segment may move.

    `point` is the index of the rows' steady point, `everywhere` the index that every member is known to have, `pin` the
    index after which a running copy still needs entries. From FORCED_SEGMENTS on neither a member nor a copy keeps the
    log; a copy whose entries were dropped begins again.
    """
    if segments >= FORCED_SEGMENTS:
        return point
    return min(point, everywhere) if pin is None else min(point, everywhere, pin)


class PointCandidate(NamedTuple):
    """A replica whose rows could be made durable now.

    `point` is the index of its steady point, `applied` the last index in its rows. `is_pinning`: its floor keeps the
    log's oldest segment. `is_due`: its rows have waited long enough, or have changed enough.
    """

    point: int
    applied: int
    is_pinning: bool
    is_due: bool


def points_wanted(candidates: Sequence[PointCandidate], segments: int) -> list[bool]:
    """Return, for each replica, whether to begin a steady point in this second. Points that shorten a long log begin at
    once. The others that are due are spread over STEADY_AFTER_S."""
    left = 1 + int(len(candidates) // STEADY_AFTER_S)
    wanted = []
    for one in candidates:
        is_urgent = one.is_pinning and segments >= SEGMENTS_CHECKPOINT and one.point < one.applied
        has_turn = one.is_due and left > 0 and not is_urgent
        left -= has_turn
        wanted.append(is_urgent or has_turn)
    return wanted
