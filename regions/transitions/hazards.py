"""Regions that harm their servers, or whose rows are damaged: they are parked, and never handed from one to the next.

**Deaths.** A server that dies while it opens a region may have died of it. The transition counts such deaths
(`TransitionRecord.deaths`): from OPENING to OFFLINE because of a server's death. After DEATHS_MAX the region is parked.
One death makes all regions that the server was opening suspects. A server gets one suspect at a time
(`regions/assign/orders.py`), so that a second death accuses one region, and not its neighbors. An end in order, and a
fenced server, accuse nobody. A successful open ends the count, and so does a retry by an operator.

**Damage.** A server that reads a row that is not what was written serves nothing of the region any more and reports
the damage. The master has the region closed. CLOSED carries the reason (`TransitionRecord.damage`), so that whichever
master sees it parks the region instead of opening it elsewhere.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.transitions.states import Cause

#: Servers that may die while they open a region, one after the other.
DEATHS_MAX: Final = 2


def deaths_after(transition: TransitionRecord | None, cause: Cause, departed: Container[Incarnation | None]) -> int:
    """Return how many deaths in a row a transition counts once it is set OFFLINE because of `cause`.

    Args:
        transition: The transition before that step; None for a new one.
        cause: Why the step is taken.
        departed: Servers that ended in order or were fenced.
    """
    if transition is None:
        return 0
    died = transition.state is RegionState.OPENING and cause is Cause.SERVER_DEATH
    return transition.deaths + (died and transition.destination not in departed)


def death_reason(transition: TransitionRecord, deaths: int) -> str:
    """Return why a region is parked whose opening ended in a server's death for the last time."""
    return f"{deaths} servers died one after the other while they opened it, the last was {transition.destination}"


def hazard(transition: TransitionRecord, cause: Cause, departed: Container[Incarnation | None]) -> str:
    """Return why the region must be parked instead of being opened again, or "" if it may be opened."""
    if transition.state is RegionState.CLOSED and transition.damage:
        return transition.damage
    deaths = deaths_after(transition, cause, departed)
    if deaths >= DEATHS_MAX and deaths > transition.deaths:
        return death_reason(transition, deaths)
    return ""
