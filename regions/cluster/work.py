"""The states of the assigner's own work: on a replica, on an order, and where a replica is counted. Pure data.

Each machine is one enum and one table of legal successors. Only `ClusterState` and `OrderBook` move a machine, through
`next_write_state` and `next_order_state`; both assert that the table has the step.

    replica   IDLE -> WRITING -> IDLE                          the write has committed
                      WRITING -> HELD -> WRITING               the table's record must be read first
                      WRITING -> UNREAD -> IDLE                the transition has changed and must be read first

    order     PAUSED -> QUEUED -> SENT -> PAUSED               the server is at work, or the answer was lost
                                  SENT -> DONE                 the server is done; the store must be read
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class WriteState(enum.Enum):
    """What the assigner is doing about a replica's znode. Decisions are taken in IDLE only."""

    IDLE = "idle"  #: the state of the znode is known, as far as anybody has told this master
    WRITING = "writing"  #: one write is on its way to the store
    HELD = "held"  #: the write was refused because the table's record had changed; the record is being read
    UNREAD = "unread"  #: the write was refused because the transition had changed; the transition is being read


class OrderState(enum.Enum):
    """How far an order is on its way to its server. A dropped order has no state: the replica's `order` is None."""

    PAUSED = "paused"  #: to be sent (again) at `next_ms`
    QUEUED = "queued"  #: waits for a free slot of its server
    SENT = "sent"  #: in exactly one batch that has not been answered
    DONE = "done"  #: the server has done it; the transition is read until it shows the outcome


class Standing(enum.Enum):
    """Where a table counts a replica: in exactly one of the four."""

    CLOSED = "closed"  #: no transition, and not on a live server
    OPEN = "open"  #: no transition, on a live server
    MOVING = "moving"  #: a transition that goes on by itself
    PARKED = "parked"  #: a transition that waits for an operator


WRITE_NEXT: Final[Mapping[WriteState, tuple[WriteState, ...]]] = {
    # IDLE to UNREAD: the write that was to replace the region was refused.
    WriteState.IDLE: (WriteState.WRITING, WriteState.UNREAD),
    # WRITING to WRITING: refused for an outdated version of the table's record, and sent again with the newer one.
    WriteState.WRITING: (WriteState.IDLE, WriteState.WRITING, WriteState.HELD, WriteState.UNREAD),
    # HELD to IDLE: the record says that the region is to stay closed, so the write is given up.
    WriteState.HELD: (WriteState.WRITING, WriteState.IDLE),
    WriteState.UNREAD: (WriteState.IDLE,),
}

ORDER_NEXT: Final[Mapping[OrderState, tuple[OrderState, ...]]] = {
    OrderState.PAUSED: (OrderState.QUEUED,),
    OrderState.QUEUED: (OrderState.SENT,),
    OrderState.SENT: (OrderState.PAUSED, OrderState.DONE),
    OrderState.DONE: (),
}


def next_write_state(key: str, before: WriteState, after: WriteState) -> WriteState:
    """Return `after`. Raise AssertionError if the table does not have the step; `key` names the replica."""
    assert after in WRITE_NEXT[before], f"{key} cannot go from {before.name} to {after.name}"
    return after


def next_order_state(key: str, before: OrderState, after: OrderState) -> OrderState:
    """Return `after`. Raise AssertionError if the table does not have the step; `key` names the order's replica."""
    assert after in ORDER_NEXT[before], f"order of {key} cannot go from {before.name} to {after.name}"
    return after
