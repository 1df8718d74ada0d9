"""How far the log's floor of a replica may move. Pure.

The floor never passes the rows' steady point: behind that point the log is all there is. No replica can be copied yet,
so the floor does not pass what every member is known to have either. A member that is away for long would keep the log
for ever; from FORCED_SEGMENTS on the floor moves without that member, which needs a copy then.
"""

from __future__ import annotations

from typing import Final

from coord.storage.shared.log import SEGMENTS_CHECKPOINT, SEGMENTS_MAX

#: From so many segments on, floors move although a member lacks entries: the log must not exceed SEGMENTS_MAX, and a
#: steady point takes a while, during which two more segments may be written.
FORCED_SEGMENTS: Final = SEGMENTS_MAX - 2


def target(point: int, everywhere: int, segments: int) -> int:
    """Return the index to which the floor of a replica that pins the oldest segment may move.

    `point` is the index of the rows' steady point, `everywhere` the index that every member is known to have.
    """
    return point if segments >= FORCED_SEGMENTS else min(point, everywhere)


def wants_point(point: int, applied: int, segments: int, *, is_pinning: bool, is_due: bool) -> bool:
    """Return True if the rows should be made durable now: they are due, or they keep the log from becoming shorter."""
    return is_due or (is_pinning and segments >= SEGMENTS_CHECKPOINT and point < applied)
