"""Plans for orders about a tablet's replica: the stages of the work, or the outcome. Pure.

`regions/replication/guards.py` compares the order with the replica on this server. This module maps the guards' answer
to stages, which `orders.py` carries out one after the other.

**OPENING is written before the files.** A voter is made only once. If the files were made first, a late copy of an
order could make them again after the loss of the disk. The store would reject the step, but a replica without its
former votes would remain, and start with the next process. The price: a server that crashes between OPENING and the
superblock cannot know whether it has lost a disk. The next order has `must_exist`, and this server rejects it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from regions.messages import CloseOrder, OpenOrder, OrderOutcome
from regions.messages.heartbeat import HAS_NO_FILES
from regions.messages.server import ClosePurpose, MemberEndpoint
from regions.records.kinds import KV, can_open
from regions.records.model import Incarnation, RegionState
from regions.records.replica_key import replica_key
from regions.replication.guards import (
    CloseFacts,
    OpenFacts,
    OrderAnswer,
    ReplicaOnDisk,
    answer_to_close,
    answer_to_open,
)


class Stage(enum.Enum):
    """One stage of the work."""

    CLAIM = "write OPENING, in place of the OFFLINE that the order names"
    MAKE = "make consensus metadata, slot and superblock"
    BEGIN = "start the replica's participation in its group"
    ANNOUNCE = "write OPENED"
    MARK = "create CLOSING"
    REST = "stop the replica; its superblock says RESTING"
    REMOVE = "stop the replica; its files go to quarantine and a tombstone stays"
    DELETE = "as REMOVE, and the tombstone is removed as well"
    RELEASE = "write CLOSED"


class OrderPlan(NamedTuple):
    """The stages of an order; or no stages, and its outcome with the reason."""

    stages: tuple[Stage, ...] = ()
    outcome: OrderOutcome = OrderOutcome.REFUSED
    why: str = ""


def _ends(outcome: OrderOutcome, answer: OrderAnswer) -> OrderPlan:
    return OrderPlan((), outcome, answer.value)


_A: Final = OrderAnswer
_OFFLINE: Final = RegionState.OFFLINE
_OPENING: Final = RegionState.OPENING

#: By the transition's state and the guards' answer. A state without a row of its own uses the rows for None.
OPEN_PLANS: Final[dict[tuple[RegionState | None, OrderAnswer], OrderPlan]] = {
    (_OFFLINE, _A.MAKE): OrderPlan((Stage.CLAIM, Stage.MAKE, Stage.BEGIN, Stage.ANNOUNCE)),
    (_OFFLINE, _A.WAKE): OrderPlan((Stage.CLAIM, Stage.BEGIN, Stage.ANNOUNCE)),
    # OPENING names this start of this server, but there is no superblock. The files were lost, or never made; in both
    # cases the votes of the replica are unknown.
    (_OPENING, _A.MAKE): _ends(OrderOutcome.REFUSED, _A.AMNESIA),
    (_OPENING, _A.WAKE): OrderPlan((Stage.BEGIN, Stage.ANNOUNCE)),
    (None, _A.FAILED): _ends(OrderOutcome.FAILED, _A.FAILED),
    (None, _A.AMNESIA): _ends(OrderOutcome.REFUSED, _A.AMNESIA),
    (None, _A.OLD_NUMBER): _ends(OrderOutcome.REFUSED, _A.OLD_NUMBER),
    (None, _A.ILLEGAL_STATE): _ends(OrderOutcome.REFUSED, _A.ILLEGAL_STATE),
}

NO_PARENT: Final = "this server has no replica of the tablet whose rows it takes over"
#: A daughter's replica that was begun and has no superblock. The parent's replica on the same disk proves that the disk
#: was not lost. A lost superblock would have left a slot in the log; that of a tombstone, files in the quarantine, for
#: which MAKE looks (`splits/work.py`). So the replica was never made.
INHERIT_AGAIN: Final = OrderPlan((Stage.MAKE, Stage.BEGIN, Stage.ANNOUNCE))

_WORK: Final = {
    ClosePurpose.REST: Stage.REST,
    ClosePurpose.TOMBSTONE: Stage.REMOVE,
    ClosePurpose.DELETE: Stage.DELETE,
}
#: By the guards' answer, unless it is CLOSE.
CLOSE_ENDS: Final[dict[OrderAnswer, OrderPlan]] = {
    _A.DONE: _ends(OrderOutcome.DONE, _A.DONE),
    _A.IN_PROGRESS: _ends(OrderOutcome.STARTED, _A.IN_PROGRESS),
    _A.OLD_NUMBER: _ends(OrderOutcome.REFUSED, _A.OLD_NUMBER),
    _A.ILLEGAL_STATE: _ends(OrderOutcome.REFUSED, _A.ILLEGAL_STATE),
    _A.STALE_CONFIG: _ends(OrderOutcome.REFUSED, _A.STALE_CONFIG),
}


def plan_open(
    order: OpenOrder, me: Incarnation, local: ReplicaOnDisk | None, parents: Sequence[ReplicaOnDisk | None] = ()
) -> OrderPlan:
    """Return the plan for an OPEN. `local`: the replica on this server, None without a superblock. `parents`: the
    replicas of the tablets that were split or merged into this one."""
    record, opening = order.transition, order.tablet
    assert opening is not None, f"{record.key} is no tablet's"
    if record.state not in (_OFFLINE, _OPENING) or record.destination != me:
        why = f"the order's transition is {record.state} with destination {record.destination}"
        return OrderPlan((), OrderOutcome.REFUSED, why)
    if order.kind and not can_open(KV, order.kind):
        return OrderPlan((), OrderOutcome.FAILED, f"tablets have kind {KV}, the table has kind {order.kind}")
    named = endpoint_of(opening.initial, record.replica)
    if local is None and named is not None and named.uuid != me.uuid:
        return OrderPlan((), OrderOutcome.REFUSED, f"number {record.replica} belongs to server {named.uuid}")
    # A newcomer to a daughter is copied from its members, as one to any tablet.
    if parents and local is None and record.joins is None:
        if not all(one is not None and one.state not in HAS_NO_FILES for one in parents):
            return OrderPlan((), OrderOutcome.FAILED, NO_PARENT)
        if record.state is _OPENING:
            return INHERIT_AGAIN
        opening = replace(opening, must_exist=False)
    answer = answer_to_open(OpenFacts(record.replica, opening, local))
    found = OPEN_PLANS.get((record.state, answer)) or OPEN_PLANS.get((None, answer))
    assert found is not None, f"no plan for {answer} of {record.key}"
    return found


def plan_close(order: CloseOrder, local: ReplicaOnDisk | None) -> OrderPlan:
    """Return the plan for a CLOSE. `local`: the replica on this server, None without a superblock."""
    closing = order.tablet
    assert closing is not None, f"{replica_key(order.region_id, order.replica)} is no tablet's"
    answer = answer_to_close(CloseFacts(order.replica, closing, local))
    if answer is OrderAnswer.CLOSE:
        return OrderPlan((Stage.MARK, _WORK[closing.purpose], Stage.RELEASE))
    return CLOSE_ENDS[answer]


def endpoint_of(members: tuple[MemberEndpoint, ...], number: int) -> MemberEndpoint | None:
    """Return the member with that number, or None."""
    return next((one for one in members if one.number == number), None)


def is_same_order(one: OpenOrder | CloseOrder, other: OpenOrder | CloseOrder) -> bool:
    """Return True if the second order is a repetition of the first.

    A repeated OPEN may name the OPENING that the first one wrote.
    """
    if isinstance(one, OpenOrder) and isinstance(other, OpenOrder):
        return one.transition.replica == other.transition.replica
    if isinstance(one, CloseOrder) and isinstance(other, CloseOrder):
        return one.replica == other.replica and one.tablet == other.tablet
    return False
