"""The life cycle of a replica on this server: one table that decides.

    (none) -> CLAIMING -> OPENING -> ANNOUNCING -> OPEN -> MARKING -> CLOSING -> RELEASING -> (none)

`LIFE` maps (phase, event, held) to the next phase and to the result of the order in progress. `held` is the only
guard: True
while the opener has the replica open, or is opening or closing it. `regionserver.replica.machine` looks up every event
here, and raises InvalidTransition for a combination without a row.

On entering a phase the machine does one thing, for any event:

    CLAIMING, MARKING        write the step of the order
    OPENING                  call the opener to open the replica
    ANNOUNCING, RELEASING    write OPENED with the location; write CLOSED
    CLOSING                  call the opener to close the replica
    DROPPING                 call the opener to close the replica, after the opener's result of the last call
    OPEN, (none)             begin the waiting order, if any
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from regions.messages import OrderOutcome
from regions.transitions.states import Cause


class Phase(enum.StrEnum):
    """Phase of a replica's life cycle on this server."""

    CLAIMING = "claiming"  #: OFFLINE -> OPENING is being written
    OPENING = "opening"  #: the opener opens the replica
    ANNOUNCING = "announcing"  #: open; OPENING -> OPENED is being written
    OPEN = "open"
    MARKING = "marking"  #: open; CLOSING is being created
    CLOSING = "closing"  #: the opener closes the replica
    STUCK = "stuck"  #: the opener failed to close the replica; the next CLOSE order retries
    RELEASING = "releasing"  #: closed; CLOSING -> CLOSED is being written
    DROPPING = "dropping"  #: the store has reassigned the replica: close it, write nothing


class Event(enum.StrEnum):
    """Event in a replica's life cycle."""

    OPEN_ORDERED = "open ordered"
    CLOSE_ORDERED = "close ordered"
    STEP_TAKEN = "step taken"  #: the step in progress is in the store
    STEP_LOST = "step lost"  #: the step in progress can no longer succeed
    OPENED = "opened"
    OPEN_FAILED = "open failed"
    CLOSED = "closed"
    CLOSE_FAILED = "close failed"
    DISOWNED = "disowned"  #: the store does not place the replica on this server
    SESSION_LOST = "session lost"


class Row(NamedTuple):
    """One move of the life cycle. `before` and `after` are None when the replica is not on this server."""

    before: Phase | None
    event: Event
    #: The guard: whether the opener holds the replica after the event; None: in both cases.
    held: bool | None
    after: Phase | None
    #: Result of the order in progress; None: the order continues, or there is none.
    outcome: OrderOutcome | None
    when: str


_DONE: Final = OrderOutcome.DONE
_REFUSED: Final = OrderOutcome.REFUSED
_FAILED: Final = OrderOutcome.FAILED

# fmt: off
LIFE: Final[tuple[Row, ...]] = (
    Row(None,             Event.OPEN_ORDERED,  False, Phase.CLAIMING,   None,     "OFFLINE names this server"),
    Row(Phase.OPEN,       Event.OPEN_ORDERED,  True,  Phase.CLAIMING,   None,     "open already: take the steps only"),
    Row(Phase.CLAIMING,   Event.STEP_TAKEN,    False, Phase.OPENING,    None,     "OPENING names this server"),
    Row(Phase.CLAIMING,   Event.STEP_TAKEN,    True,  Phase.ANNOUNCING, None,     "it was open already"),
    Row(Phase.CLAIMING,   Event.STEP_LOST,     False, None,             _REFUSED, "the order was out of date"),
    Row(Phase.CLAIMING,   Event.STEP_LOST,     True,  Phase.OPEN,       _REFUSED, "out of date; open already"),
    Row(Phase.OPENING,    Event.OPENED,        True,  Phase.ANNOUNCING, None,     "the opener has it open"),
    Row(Phase.OPENING,    Event.OPEN_FAILED,   False, None,             _FAILED,  "kept for a master that asks"),
    Row(Phase.OPENING,    Event.STEP_LOST,     True,  Phase.DROPPING,   _REFUSED, "taken away while opening"),
    Row(Phase.ANNOUNCING, Event.STEP_TAKEN,    True,  Phase.OPEN,       _DONE,    "OPENED is in the store"),
    Row(Phase.ANNOUNCING, Event.STEP_LOST,     True,  Phase.DROPPING,   _REFUSED, "taken away while opening"),
    Row(Phase.OPEN,       Event.CLOSE_ORDERED, True,  Phase.MARKING,    None,     ""),
    Row(Phase.OPEN,       Event.DISOWNED,      True,  Phase.DROPPING,   None,     "the store has it elsewhere"),
    Row(Phase.MARKING,    Event.STEP_TAKEN,    True,  Phase.CLOSING,    None,     "CLOSING names this server"),
    Row(Phase.MARKING,    Event.STEP_LOST,     True,  Phase.OPEN,       _REFUSED, "another transition: no close"),
    Row(Phase.CLOSING,    Event.CLOSED,        False, Phase.RELEASING,  None,     ""),
    Row(Phase.CLOSING,    Event.CLOSE_FAILED,  True,  Phase.STUCK,      _FAILED,  "it stays CLOSING in the store"),
    Row(Phase.STUCK,      Event.CLOSE_ORDERED, True,  Phase.CLOSING,    None,     "ordered again"),
    Row(Phase.RELEASING,  Event.STEP_TAKEN,    False, None,             _DONE,    "CLOSED is written"),
    Row(Phase.RELEASING,  Event.STEP_LOST,     False, None,             _REFUSED, "the transition moved on"),
    Row(Phase.DROPPING,   Event.CLOSED,        False, None,             None,     ""),
    Row(Phase.DROPPING,   Event.OPEN_FAILED,   False, None,             None,     "it never opened"),
    Row(Phase.DROPPING,   Event.OPENED,        True,  Phase.DROPPING,   None,     "too late: close it"),
    Row(Phase.DROPPING,   Event.CLOSE_FAILED,  True,  Phase.DROPPING,   None,     "again; then the process ends"),
    Row(Phase.CLAIMING,   Event.SESSION_LOST,  False, None,             _FAILED,  "nothing was open"),
    Row(Phase.CLAIMING,   Event.SESSION_LOST,  True,  Phase.DROPPING,   _FAILED,  "it was open already"),
    Row(Phase.OPENING,    Event.SESSION_LOST,  False, None,             _FAILED,  "its owner is looked up"),
    Row(Phase.OPENING,    Event.SESSION_LOST,  True,  Phase.DROPPING,   _FAILED,  ""),
    Row(Phase.ANNOUNCING, Event.SESSION_LOST,  True,  Phase.DROPPING,   _FAILED,  ""),
    Row(Phase.OPEN,       Event.SESSION_LOST,  True,  Phase.DROPPING,   None,     ""),
    Row(Phase.MARKING,    Event.SESSION_LOST,  True,  Phase.DROPPING,   _FAILED,  ""),
    Row(Phase.CLOSING,    Event.SESSION_LOST,  True,  Phase.DROPPING,   _FAILED,  ""),
    Row(Phase.STUCK,      Event.SESSION_LOST,  True,  Phase.DROPPING,   None,     ""),
    Row(Phase.RELEASING,  Event.SESSION_LOST,  False, None,             _FAILED,  "closed already"),
    Row(Phase.DROPPING,   Event.SESSION_LOST,  True,  Phase.DROPPING,   None,     ""),
)
# fmt: on


def _index(rows: Iterable[Row]) -> dict[tuple[Phase | None, Event, bool], Row]:
    """Return the rows by phase, event and guard."""
    found: dict[tuple[Phase | None, Event, bool], Row] = {}
    for row in rows:
        for held in (True, False) if row.held is None else (row.held,):
            place = (row.before, row.event, held)
            assert place not in found, f"two rows of the life cycle decide {place}"
            found[place] = row
    return found


#: The row that decides an event.
MOVES: Final = _index(LIFE)

#: Whether the opener holds a replica in a phase. For a phase that is not listed both are possible.
HELD: Final = {
    Phase.ANNOUNCING: True,
    Phase.OPEN: True,
    Phase.MARKING: True,
    Phase.CLOSING: True,
    Phase.STUCK: True,
    Phase.RELEASING: False,
    Phase.DROPPING: True,
}

#: The step in progress in a phase. While OPENING, there may be no step.
STEP_OF: Final = {
    Phase.CLAIMING: Cause.OPEN_ORDER,
    Phase.OPENING: Cause.PROGRESS,
    Phase.ANNOUNCING: Cause.OPEN_DONE,
    Phase.MARKING: Cause.CLOSE_ORDER,
    Phase.RELEASING: Cause.CLOSE_DONE,
}

#: State of a replica in reports to masters and operators (HostedReplica.state).
SHOWN: Final = {
    Phase.CLAIMING: "OPENING",
    Phase.OPENING: "OPENING",
    Phase.ANNOUNCING: "OPENING",
    Phase.OPEN: "OPEN",
    Phase.MARKING: "CLOSING",
    Phase.CLOSING: "CLOSING",
    Phase.STUCK: "CLOSING",
    Phase.RELEASING: "CLOSING",
    Phase.DROPPING: "CLOSING",
}

#: Phases in which requests for the replica are answered: OPENED is in the store.
SERVED: Final = (Phase.OPEN, Phase.MARKING)
#: Phases in which a replica accepts a later schema version. A replica that is being closed does not.
ALTERED: Final = (Phase.CLAIMING, Phase.OPENING, Phase.ANNOUNCING, Phase.OPEN, Phase.MARKING)
#: Phases in which an order is in progress, with a ticket.
ORDERED: Final = (
    Phase.CLAIMING,
    Phase.OPENING,
    Phase.ANNOUNCING,
    Phase.MARKING,
    Phase.CLOSING,
    Phase.RELEASING,
)
