"""One row of the page: a replica of a shared region, or a whole tablet, in a few words."""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

from regions.cluster.entities import Replica
from regions.messages.tablets import TabletHealth
from regions.records.model import RegionState


class RowState(enum.IntEnum):
    """State of a row. The numbers are part of the format that the browser reads (`master/page/assets/model.js`)."""

    OPEN = 0
    CLOSED = 1  #: closed as wanted: the table is disabled, or an operator has unassigned the region
    NOT_OPEN = 2  #: should be open, and no transition has begun yet
    OFFLINE = 3
    OPENING = 4
    OPENED = 5
    CLOSING = 6
    CLOSED_MOVING = 7  #: closed by its server, and to be opened elsewhere
    PARKED = 8  #: waits for an operator
    UNKNOWN = 9  #: a tablet whose servers have not reported to this master
    IMPAIRED = 10  #: a tablet that serves with fewer healthy members than wanted
    GONE = 11  #: the row is not used any more


_OPEN: Final = RowState.OPEN.value
_CLOSED: Final = RowState.CLOSED.value
_NOT_OPEN: Final = RowState.NOT_OPEN.value
_PARKED: Final = RowState.PARKED.value
_IMPAIRED: Final = RowState.IMPAIRED.value
_OFFLINE: Final = RowState.OFFLINE.value
_OPENING: Final = RowState.OPENING.value
_OPENED: Final = RowState.OPENED.value
_CLOSING: Final = RowState.CLOSING.value
_CLOSED_MOVING: Final = RowState.CLOSED_MOVING.value
# Comparing with a constant is several times faster than with a member that is looked up in its enumeration.
_STATE_OPENING: Final = RegionState.OPENING
_STATE_OPENED: Final = RegionState.OPENED
_STATE_CLOSING: Final = RegionState.CLOSING
_STATE_CLOSED: Final = RegionState.CLOSED
_OF_HEALTH: Final = {
    TabletHealth.HEALTHY: RowState.OPEN.value,
    TabletHealth.UNAVAILABLE: RowState.NOT_OPEN.value,
    TabletHealth.UNKNOWN: RowState.UNKNOWN.value,
    TabletHealth.CREATING: RowState.OPENING.value,
    TabletHealth.CLOSED: RowState.CLOSED.value,
}


#: The fields of a row that change: state, server, since when. The state is a number of RowState: with 100,000 rows,
#: a member of an enumeration is too slow to compare. The server is a uuid, "" for none; the time is 0 if unknown.
PageRow: TypeAlias = tuple[int, str, int]


def row_of(replica: Replica) -> PageRow:
    """Return the row of a replica of a shared region."""
    transition = replica.transition
    if transition is None:
        if replica.open_on is not None:
            return _OPEN, replica.open_on.uuid, 0
        return _NOT_OPEN if replica.wants_open else _CLOSED, "", 0
    state = transition.state
    at = transition.source if state is _STATE_CLOSING else transition.destination
    return _PARKED if transition.parked else _moving(state), "" if at is None else at.uuid, transition.since_ms


def _moving(state: RegionState) -> int:
    """Return the number of a transition's state."""
    if state is _STATE_OPENING:
        return _OPENING
    if state is _STATE_OPENED:
        return _OPENED
    if state is _STATE_CLOSING:
        return _CLOSING
    return _CLOSED_MOVING if state is _STATE_CLOSED else _OFFLINE


def row_of_tablet(health: TabletHealth, leader: str, since_ms: int) -> PageRow:
    """Return the row of a tablet: its leader's server stands for all members."""
    return _OF_HEALTH.get(health, _IMPAIRED), leader, since_ms
