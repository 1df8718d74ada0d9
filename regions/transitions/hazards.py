"""Regions that may kill their servers, or whose rows are damaged: they are parked instead of opened on the next server.

**Deaths.** If a server dies while it opens a region, the region may be the cause. The transition counts such deaths
(`TransitionRecord.deaths`): steps from OPENING to OFFLINE because of a server's death. After DEATHS_MAX the region is
parked. After one death all regions that the server was opening are suspects. A server gets one suspect at a time
(`regions/assign/orders.py`), so that a second death points to one region. An orderly stop or a fenced server does not
count. A successful open resets the count, and so does a retry by an operator.

**Damage.** A server that reads a damaged row stops serving the region and reports the damage. The master orders the
server to close the region. CLOSED carries the reason (`TransitionRecord.damage`), so that every master parks the region
instead of opening it on another server.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.transitions.states import Cause

# Members of enums: a compiled module reads its own constant several times as fast.
_SERVER_DEATH: Final = Cause.SERVER_DEATH
_CLOSED: Final = RegionState.CLOSED
_OPENING: Final = RegionState.OPENING

#: A region is parked after this number of servers in a row have died while opening it.
DEATHS_MAX: Final = 2


def deaths_after(transition: TransitionRecord | None, cause: Cause, departed: Container[Incarnation | None]) -> int:
    """Return the number of deaths in a row that a transition has after it is set to OFFLINE because of `cause`.

    Args:
        transition: The transition before that step; None for a new one.
        cause: Why the step is taken.
        departed: Servers that have stopped orderly or were fenced.
    """
    if transition is None:
        return 0
    died = transition.state is _OPENING and cause is _SERVER_DEATH
    return transition.deaths + (died and transition.destination not in departed)


def death_reason(transition: TransitionRecord, deaths: int) -> str:
    """Return the reason for parking a region after the last allowed death of a server."""
    return f"{deaths} servers died one after the other while they opened it, the last was {transition.destination}"


def hazard(transition: TransitionRecord, cause: Cause, departed: Container[Incarnation | None]) -> str:
    """Return why the region must be parked instead of opened, or "" if it may be opened."""
    if transition.state is _CLOSED and transition.damage:
        return transition.damage
    deaths = deaths_after(transition, cause, departed)
    if deaths >= DEATHS_MAX and deaths > transition.deaths:
        return death_reason(transition, deaths)
    return ""
