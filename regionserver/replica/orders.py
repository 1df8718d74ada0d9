"""The effect of an order on a replica that is on this server: one table.

Orders are idempotent. A repetition gets the ticket of the order in progress, and later its result. An order that
contradicts the order in progress waits. When it begins, the store's compare-and-set decides whether it is still valid.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from regionserver.replica.states import Phase


class Treatment(enum.Enum):
    """Treatment of an order."""

    BEGIN = "begin"
    JOIN = "join"  #: the same order is in progress: return its ticket
    DONE = "done"  #: the requested state is reached already
    WAIT = "wait"  #: begin the order when the order in progress is finished
    REFUSE = "refuse"


class Treatments(NamedTuple):
    """One row: the treatments of each kind of order in a phase."""

    #: A repeated OPEN order, or an order for a transition that is OPENING already.
    same_open: Treatment
    other_open: Treatment
    close: Treatment


_BEGIN: Final = Treatment.BEGIN
_JOIN: Final = Treatment.JOIN
_DONE: Final = Treatment.DONE
_WAIT: Final = Treatment.WAIT
_REFUSE: Final = Treatment.REFUSE

# fmt: off
ORDERS: Final = {
    #                            the same OPEN  another OPEN  CLOSE
    Phase.CLAIMING:   Treatments(_JOIN,         _WAIT,        _REFUSE),
    Phase.OPENING:    Treatments(_JOIN,         _WAIT,        _REFUSE),
    Phase.ANNOUNCING: Treatments(_JOIN,         _WAIT,        _WAIT),
    Phase.OPEN:       Treatments(_DONE,         _BEGIN,       _BEGIN),
    Phase.MARKING:    Treatments(_REFUSE,       _WAIT,        _JOIN),
    Phase.CLOSING:    Treatments(_REFUSE,       _WAIT,        _JOIN),
    Phase.STUCK:      Treatments(_REFUSE,       _WAIT,        _BEGIN),
    Phase.RELEASING:  Treatments(_REFUSE,       _WAIT,        _JOIN),
    Phase.DROPPING:   Treatments(_REFUSE,       _WAIT,        _REFUSE),
}
# fmt: on


def of_open(phase: Phase | None, *, is_same: bool) -> Treatment:
    """Return what to do with an OPEN order. `is_same`: the same order has led to `phase`."""
    assert phase is not None, "a replica on this server has a phase"
    return ORDERS[phase].same_open if is_same else ORDERS[phase].other_open


def of_close(phase: Phase | None, *, is_newer_master: bool) -> Treatment:
    """Return what to do with a CLOSE order. `is_newer_master`: the order's epoch is above the epoch of the order under
    way."""
    assert phase is not None, "a replica on this server has a phase"
    if phase is Phase.MARKING and is_newer_master:
        # The store rejects the step of a replaced master, so the newer master's order must not share its result.
        return Treatment.WAIT
    return ORDERS[phase].close
