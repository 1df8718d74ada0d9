"""The steps that a server has taken since the last step of a master, as kept in the transition's znode. Pure.

A master's step and its entry in the history are one multi. A server's steps are only in the transition's znode, and a
master that reads the znode later sees only the last one. So the znode records the steps: each step of a server adds its
time to `took`, and `base` is the znode's version after the last step of a master. The master's next step checks the
version that the master has read, so its multi writes exactly the server's earlier steps into the history: each once, in
order, no matter which master was active.

Times are sufficient, because between two steps of masters only one server writes, and in a fixed order:

    base version: OFFLINE, by a master        OPENING, OPENING (progress) ..., OPENED
    no znode                                  CLOSING, CLOSED
"""

from __future__ import annotations

from typing import Final

from regions.records.model import RegionState, TransitionRecord
from regions.transitions.states import STEPS, Actor, Cause

# Members of enums: a compiled module reads its own constant several times as fast.
_PROGRESS: Final = Cause.PROGRESS
_CLOSING: Final = RegionState.CLOSING
_OFFLINE: Final = RegionState.OFFLINE
_OPENING: Final = RegionState.OPENING

#: Maximum number of times in one znode. An open may report progress for hours, and the znode must not grow with it.
TOOK_MAX: Final = 16

_CLOSE: Final = (RegionState.CLOSING, RegionState.CLOSED)
_CAUSES: Final[dict[tuple[RegionState | None, RegionState | None], Cause]] = {
    (step.before, step.after): step.cause for step in STEPS if step.actor is Actor.SERVER
}
#: Cause of the last step when some steps before it are unknown (see `Taken`).
_LAST: Final = {RegionState.OPENED: Cause.OPEN_DONE, RegionState.CLOSED: Cause.CLOSE_DONE}


#: A step of a server: the states before and after it, its cause, its time, and the number of preceding steps whose
#: times are unknown. A plain tuple, because each opening makes several.
Taken = tuple[RegionState | None, RegionState, Cause, int, int]


def add(took: tuple[int, ...], at_ms: int) -> tuple[int, ...]:
    """Return `took` with one more step. Beyond `TOOK_MAX` drop the time of the oldest progress."""
    if len(took) < TOOK_MAX:
        return (*took, at_ms)
    return (took[0], *took[2:], at_ms)


def unrecorded_steps(record: TransitionRecord, version: int) -> list[Taken]:
    """Return the server's steps since the last step of a master, oldest first, of a znode at `version`.

    The version counts every write, so steps whose times were dropped count as missed. A record without times comes from
    a server of an older build. In this case return its last step, and count the others as missed.
    """
    if record.state is _OFFLINE:
        return []
    closing = record.state in _CLOSE
    count = version + 1 if closing else version - record.base
    took = record.took or (record.since_ms,)
    left_out = max(0, count - len(took))
    gap_at = 1 if len(took) == TOOK_MAX else 0
    first = _CLOSING if closing else _OPENING
    before = None if closing else _OFFLINE
    found: list[Taken] = []
    for number, at_ms in enumerate(took):
        after = record.state if number == len(took) - 1 else first
        missed = left_out if number == gap_at else 0
        cause = _CAUSES.get((before, after)) or _LAST.get(after, _PROGRESS)
        found.append((before, after, cause, at_ms, missed))
        before = after
    return found
