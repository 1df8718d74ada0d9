"""The steps that a server has taken since the last step of a master, as the transition's own znode keeps them. Pure.

A master writes its steps into the history in the multi that takes them. A server's step is known to nobody but the
server and the store, and a master that reads the znode later sees only the last of several. So the znode carries the
steps itself: each step of a server adds its time to `took`, and `base` is the znode's version after the last step of a
master. The master's next step names the version that it read, so that the multi which takes this step writes exactly
the server's steps before it into the history: each once, in order, whoever was active when they were taken.

Times are enough, because between two steps of masters only one server writes, and only in one order:

    base version: OFFLINE, by a master        OPENING, OPENING (progress) ..., OPENED
    no znode                                  CLOSING, CLOSED
"""

from __future__ import annotations

from typing import Final, NamedTuple

from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.transitions.states import STEPS, Actor, Cause

#: Times that a znode carries. An open may report its progress for hours; the znode must not grow with that.
TOOK_MAX: Final = 16

_CLOSE: Final = (RegionState.CLOSING, RegionState.CLOSED)
_CAUSES: Final[dict[tuple[RegionState | None, RegionState | None], Cause]] = {
    (step.before, step.after): step.cause for step in STEPS if step.actor is Actor.SERVER
}
#: For steps that are not all known (see `Taken.missed`): the cause that the last of them has.
_LAST: Final = {RegionState.OPENED: Cause.OPEN_DONE, RegionState.CLOSED: Cause.CLOSE_DONE}


class Taken(NamedTuple):
    """A step of a server. `missed`: so many steps between `before` and this one, of which no time is known."""

    before: RegionState | None
    after: RegionState
    cause: Cause
    at_ms: int
    missed: int = 0


def add(took: tuple[int, ...], at_ms: int) -> tuple[int, ...]:
    """Return `took` with one more step. Beyond `TOOK_MAX` the time of the oldest progress is left out."""
    if len(took) < TOOK_MAX:
        return (*took, at_ms)
    return (took[0], *took[2:], at_ms)


def server_of(record: TransitionRecord) -> Incarnation | None:
    """Return the server that takes, or has taken, the steps of this state."""
    return record.source if record.state in _CLOSE else record.destination


def untold(record: TransitionRecord, version: int) -> list[Taken]:
    """Return the server's steps since the last step of a master, oldest first, of a znode at `version`.

    The version counts every write, so steps whose times were left out are counted as missed. A record without any
    times was written by a server of an older build: its last step is returned, with the others as missed.
    """
    if record.state is RegionState.OFFLINE:
        return []
    closing = record.state in _CLOSE
    count = version + 1 if closing else version - record.base
    took = record.took or (record.since_ms,)
    left_out = max(0, count - len(took))
    gap_at = 1 if len(took) == TOOK_MAX else 0
    first = RegionState.CLOSING if closing else RegionState.OPENING
    before = None if closing else RegionState.OFFLINE
    found: list[Taken] = []
    for number, at_ms in enumerate(took):
        after = record.state if number == len(took) - 1 else first
        missed = left_out if number == gap_at else 0
        cause = _CAUSES.get((before, after)) or _LAST.get(after, Cause.PROGRESS)
        found.append(Taken(before, after, cause, at_ms, missed))
        before = after
    return found
