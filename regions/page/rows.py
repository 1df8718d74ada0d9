"""One row of the page: a replica of a shared region, or a whole tablet, in a few words."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

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


_MOVING: Final = {
    RegionState.OFFLINE: RowState.OFFLINE,
    RegionState.OPENING: RowState.OPENING,
    RegionState.OPENED: RowState.OPENED,
    RegionState.CLOSING: RowState.CLOSING,
    RegionState.CLOSED: RowState.CLOSED_MOVING,
}
_OF_HEALTH: Final = {
    TabletHealth.HEALTHY: RowState.OPEN,
    TabletHealth.UNAVAILABLE: RowState.NOT_OPEN,
    TabletHealth.UNKNOWN: RowState.UNKNOWN,
    TabletHealth.CREATING: RowState.OPENING,
    TabletHealth.CLOSED: RowState.CLOSED,
}


class PageRow(NamedTuple):
    """The fields of a row that change. `server` is a uuid, "" for none; `since_ms` is 0 if unknown."""

    state: RowState
    server: str
    since_ms: int


def row_of(replica: Replica) -> PageRow:
    """Return the row of a replica of a shared region."""
    transition = replica.transition
    if transition is None:
        if replica.open_on is not None:
            return PageRow(RowState.OPEN, replica.open_on.uuid, 0)
        return PageRow(RowState.NOT_OPEN if replica.wants_open else RowState.CLOSED, "", 0)
    at = transition.source if transition.state is RegionState.CLOSING else transition.destination
    state = RowState.PARKED if transition.parked else _MOVING[transition.state]
    return PageRow(state, "" if at is None else at.uuid, transition.since_ms)


def row_of_tablet(health: TabletHealth, leader: str, since_ms: int) -> PageRow:
    """Return the row of a tablet: its leader's server stands for all members."""
    return PageRow(_OF_HEALTH.get(health, RowState.IMPAIRED), leader, since_ms)
