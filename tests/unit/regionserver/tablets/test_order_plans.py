"""Plans for orders about a tablet's replica: every answer of the guards has a plan with ordered stages."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from regions.messages import CloseOrder, OpenOrder, OrderOutcome
from regions.messages.heartbeat import ReplicaState
from regions.messages.server import ClosePurpose, MemberEndpoint, TabletClosing, TabletOpening
from regions.records.members import MemberRole
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord
from regions.replication.guards import ReplicaOnDisk
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.order_plans import Stage, is_same_order, plan_close, plan_open

ME = Incarnation("me", 7)
MEMBERS = tuple(MemberEndpoint(number, uuid, "h", 1) for number, uuid in ((1, "me"), (2, "you"), (3, "her")))


def open_order(
    state: RegionState = RegionState.OFFLINE,
    *,
    number: int = 1,
    to: Incarnation | None = ME,
    must_exist: bool = False,
    kind: str = "",
) -> OpenOrder:
    record = TransitionRecord("r1", "t", number, state, destination=to, epoch=4)
    return OpenOrder(
        record, 2, RegionRecord("t", "r1"), 5, kind=kind, tablet=TabletOpening(MEMBERS, must_exist=must_exist)
    )


def test_a_first_replica_is_claimed_before_it_is_made() -> None:
    """The store's compare-and-set comes first: a late copy of an order must not make a voter a second time."""
    plan = plan_open(open_order(), ME, None)
    assert plan.stages == (Stage.CLAIM, Stage.MAKE, Stage.BEGIN, Stage.ANNOUNCE)


def test_a_replica_that_was_begun_is_never_made_again() -> None:
    """must_exist, and OPENING that names this start of the server: in both cases a disk may have been lost."""
    for order in (open_order(must_exist=True), open_order(RegionState.OPENING)):
        plan = plan_open(order, ME, None)
        assert (plan.stages, plan.outcome) == ((), OrderOutcome.REFUSED)
        assert "no memory of a number" in plan.why


def test_a_daughter_is_made_again_as_long_as_its_parent_is_here() -> None:
    """The parent's replica shows that the disk was not lost: kill -9 of all servers must not end a daughter."""
    for state in (ReplicaState.RUNNING, ReplicaState.FAILED, ReplicaState.COPYING):
        parents = [ReplicaOnDisk(1, state)]
        again = plan_open(open_order(RegionState.OPENING), ME, None, parents)
        assert again.stages == (Stage.MAKE, Stage.BEGIN, Stage.ANNOUNCE)
        late = plan_open(open_order(must_exist=True), ME, None, parents)
        assert late.stages == (Stage.CLAIM, Stage.MAKE, Stage.BEGIN, Stage.ANNOUNCE)


@pytest.mark.parametrize(
    "parent", [None, ReplicaOnDisk(1, ReplicaState.TOMBSTONE), ReplicaOnDisk(1, ReplicaState.LOST)]
)
def test_a_daughter_is_never_made_without_its_parent(parent: ReplicaOnDisk | None) -> None:
    """Such a daughter would have no rows, and would vote for other members without rows."""
    for order in (open_order(), open_order(must_exist=True), open_order(RegionState.OPENING)):
        plan = plan_open(order, ME, None, [parent])
        assert (plan.stages, plan.outcome) == ((), OrderOutcome.FAILED)
    local = ReplicaOnDisk(1, ReplicaState.RUNNING)
    assert plan_open(open_order(), ME, local, [parent]).stages == (Stage.CLAIM, Stage.BEGIN, Stage.ANNOUNCE)


def test_a_newcomer_to_a_daughter_is_not_made_from_the_parent() -> None:
    """Tried: without the look at `joins` it is made from the parent's rows, though it may have voted."""
    for state in (RegionState.OFFLINE, RegionState.OPENING):
        order = open_order(state, must_exist=True)
        joins = replace(order, transition=replace(order.transition, joins=MemberRole.VOTER))
        plan = plan_open(joins, ME, None, [ReplicaOnDisk(1, ReplicaState.RUNNING)])
        assert (plan.stages, plan.outcome) == ((), OrderOutcome.REFUSED)
        assert "no memory of a number" in plan.why


@pytest.mark.parametrize("state", [ReplicaState.ASLEEP, ReplicaState.RUNNING, ReplicaState.RESTING])
def test_a_replica_that_is_there_is_announced(state: ReplicaState) -> None:
    local = ReplicaOnDisk(1, state)
    assert plan_open(open_order(), ME, local).stages == (Stage.CLAIM, Stage.BEGIN, Stage.ANNOUNCE)
    assert plan_open(open_order(RegionState.OPENING), ME, local).stages == (Stage.BEGIN, Stage.ANNOUNCE)
    assert plan_open(open_order(must_exist=True), ME, local).stages


def test_orders_for_others_are_refused() -> None:
    for order in (
        open_order(to=Incarnation("me", 6)),
        open_order(to=None),
        open_order(RegionState.CLOSED),
        open_order(number=2),
        open_order(number=9),
    ):
        plan = plan_open(order, ME, None)
        assert (plan.stages, plan.outcome) == ((), OrderOutcome.REFUSED), order.transition
    assert plan_open(open_order(kind="counters/1"), ME, None).outcome is OrderOutcome.FAILED


def test_every_state_has_a_plan_for_every_order() -> None:
    """A plan either has stages or a reason for having none; no order ends in an internal error."""
    for state, number, mine, must_exist in itertools.product(ReplicaState, (1, 2, 3), (1, 2, 3), (False, True)):
        local = ReplicaOnDisk(mine, state)
        for before in (RegionState.OFFLINE, RegionState.OPENING):
            plan = plan_open(open_order(before, number=number, must_exist=must_exist), ME, local)
            assert bool(plan.stages) is (not plan.why)
            if plan.stages:
                assert mine == number
                assert Stage.MAKE not in plan.stages
        for purpose in ClosePurpose:
            order = CloseOrder("r1", "t", number, tablet=TabletClosing(purpose))
            plan = plan_close(order, local)
            assert bool(plan.stages) is (not plan.why)
            assert not plan.stages or mine == number
            assert plan_close(order, None).outcome is OrderOutcome.DONE


@pytest.mark.parametrize(
    ("purpose", "stage"),
    [(ClosePurpose.REST, Stage.REST), (ClosePurpose.TOMBSTONE, Stage.REMOVE), (ClosePurpose.DELETE, Stage.DELETE)],
)
def test_files_are_closed_as_the_purpose_says(purpose: ClosePurpose, stage: Stage) -> None:
    plan = plan_close(CloseOrder("r1", "t", 1, tablet=TabletClosing(purpose)), ReplicaOnDisk(1, ReplicaState.RUNNING))
    assert plan.stages == (Stage.MARK, stage, Stage.RELEASE)


def test_a_repetition_joins_the_order_under_way() -> None:
    first, again = open_order(), open_order(RegionState.OPENING, must_exist=True)
    assert is_same_order(first, again)
    assert not is_same_order(first, open_order(number=2))
    rest, delete = (
        CloseOrder("r1", "t", 1, tablet=TabletClosing(one)) for one in (ClosePurpose.REST, ClosePurpose.DELETE)
    )
    assert is_same_order(rest, rest)
    assert not is_same_order(rest, delete)
    assert not is_same_order(first, rest)


def test_reports_use_the_words_of_the_servers_own_table() -> None:
    """`regions` imports no module of a server, so the words exist twice."""
    assert {one.name: one.value for one in ReplicaState} == {one.name: one.value for one in RunState}
