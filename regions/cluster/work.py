"""States of the assigner's work: of a write, of an order, and how a replica is counted. Pure data.

Each state machine is one enum and one table of legal successors. Only `ClusterState` and `OrderBook` change a state,
through `next_write_state` and `next_order_state` in `entities.py`, which assert that the table has the step.

    replica   IDLE -> WRITING -> IDLE                          the write has committed
                      WRITING -> HELD -> WRITING               the table's record must be read first
                      WRITING -> UNREAD -> IDLE                the transition has changed and must be read first

    order     PAUSED -> QUEUED -> SENT -> PAUSED               the server is at work, or the reply was lost
                                  SENT -> DONE                 the server is done; the store must be read
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class WriteState(enum.StrEnum):
    """State of the assigner's work on a replica's znode. Decisions are taken only in IDLE."""

    IDLE = "idle"  #: the znode is known, as far as events have arrived
    WRITING = "writing"  #: one write is in flight
    HELD = "held"  #: the write was refused because the table's record had changed; the record is being read
    UNREAD = "unread"  #: the write was refused because the transition had changed; the transition is being read


class OrderState(enum.StrEnum):
    """State of an order. For a dropped order the replica's `order` is None."""

    PAUSED = "paused"  #: will be sent (again) at `next_ms`
    QUEUED = "queued"  #: waits for a free slot of its server
    SENT = "sent"  #: in exactly one batch without a reply
    DONE = "done"  #: The server has carried out the order. The transition is read until it shows the outcome.


class Standing(enum.StrEnum):
    """Class in which a table counts a replica."""

    CLOSED = "closed"  #: Without a transition, and not on a live server.
    OPEN = "open"  #: without a transition, on a live server
    MOVING = "moving"  #: with a transition that is not parked
    PARKED = "parked"  #: with a transition that waits for an operator


WRITE_NEXT: Final[Mapping[WriteState, tuple[WriteState, ...]]] = {
    # IDLE to UNREAD: the store has refused the replacement of the region.
    WriteState.IDLE: (WriteState.WRITING, WriteState.UNREAD),
    # WRITING to WRITING: refused for an outdated version of the table's record, and sent again with the newer one.
    WriteState.WRITING: (WriteState.IDLE, WriteState.WRITING, WriteState.HELD, WriteState.UNREAD),
    # HELD to IDLE: by the table's new record the region must stay closed, so the write is dropped.
    WriteState.HELD: (WriteState.WRITING, WriteState.IDLE),
    WriteState.UNREAD: (WriteState.IDLE,),
}

ORDER_NEXT: Final[Mapping[OrderState, tuple[OrderState, ...]]] = {
    OrderState.PAUSED: (OrderState.QUEUED,),
    OrderState.QUEUED: (OrderState.SENT,),
    OrderState.SENT: (OrderState.PAUSED, OrderState.DONE),
    OrderState.DONE: (),
}
