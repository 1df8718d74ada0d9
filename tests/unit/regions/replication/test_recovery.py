"""Recovery of tablets: the death of a server moves nothing."""

from __future__ import annotations

import itertools

import pytest

from regions.records.members import Member
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    TableIntent,
    TableRecord,
    TableState,
    TransitionRecord,
)
from regions.replication.recovery import (
    TABLES,
    Goal,
    NamedStarts,
    ServerFate,
    fate_of,
    goal_of,
    is_startup,
    next_step,
    to_wipe,
)
from regions.transitions.next_action import Action
from regions.transitions.states import Actor, is_legal

ALL = list(itertools.product(Goal, RegionState, ServerFate, (False, True)))
#: The state that an action writes; other actions write nothing.
AFTER = {
    Action.KEEP_PLAN: RegionState.OFFLINE,
    Action.PUT_DOWN: RegionState.OFFLINE,
    Action.ACKNOWLEDGE: None,
    Action.DELETE: None,
}


def test_every_state_and_fate_is_decided_once() -> None:
    """Five goals, five states, three fates."""
    for goal, rows in TABLES.items():
        covered = [(row.state, fate) for row in rows for fate in row.fates]
        assert sorted(covered) == sorted(itertools.product(RegionState, ServerFate)), goal


@pytest.mark.parametrize(("goal", "state", "fate", "has_begun"), ALL)
def test_no_row_moves_a_member(goal: Goal, state: RegionState, fate: ServerFate, has_begun: bool) -> None:
    """A member belongs to its server; and every write of a row is a row of the table of legal steps."""
    step = next_step(state, fate, goal, has_begun=has_begun)
    assert step.action is not Action.REASSIGN
    if step.action in AFTER:
        assert is_legal(Actor.MASTER, state, AFTER[step.action], step.cause)


@pytest.mark.parametrize("state", list(RegionState))
def test_a_dead_server_is_waited_for(state: RegionState) -> None:
    """A death causes no write except the end of completed work."""
    action = next_step(state, ServerFate.AWAY, Goal.OPEN, has_begun=True).action
    assert action is (Action.ACKNOWLEDGE if state is RegionState.OPENED else Action.WAIT)


@pytest.mark.parametrize("state", [RegionState.OFFLINE, RegionState.OPENING, RegionState.CLOSING, RegionState.CLOSED])
def test_a_server_that_has_restarted_opens_it_again(state: RegionState) -> None:
    """OFFLINE towards the new start of the same server."""
    assert next_step(state, ServerFate.RESTARTED, Goal.OPEN, has_begun=True).action is Action.KEEP_PLAN


def test_a_first_replica_is_not_forgotten_while_its_table_is_disabled() -> None:
    """CREATING without a transition would mean that it has been made."""
    for fate in ServerFate:
        assert next_step(RegionState.OFFLINE, fate, Goal.REST, has_begun=False).action is Action.WAIT
        assert next_step(RegionState.OFFLINE, fate, Goal.REST, has_begun=True).action is Action.DELETE
        assert next_step(RegionState.OFFLINE, fate, Goal.GONE, has_begun=False).action is Action.DELETE


def test_the_goal_follows_from_the_records() -> None:
    """From the intents of the table and of the region; a number outside of the configuration has left."""
    table = TableRecord("t", "n")
    region = RegionRecord("t", "r", members=(Member(1, "a"),), next_number=3)
    disabled = TableRecord("t", "n", intent=TableIntent.DISABLED)
    removed = TableRecord("t", "n", state=TableState.REMOVED)
    assert goal_of(region, table, 1) is Goal.OPEN
    assert goal_of(region, disabled, 1) is Goal.REST
    assert (
        goal_of(RegionRecord("t", "r", unassigned=True, members=region.members, next_number=3), table, 1) is Goal.REST
    )
    assert goal_of(region, removed, 1) is Goal.GONE
    assert goal_of(region, removed, 2) is Goal.GONE
    assert goal_of(region, table, 2) is Goal.LEFT
    assert goal_of(region, table, 2, is_joining=True) is Goal.OPEN
    assert goal_of(region, table, 2, is_joining=True, is_new=True) is Goal.JOIN
    assert goal_of(region, disabled, 2, is_joining=True, is_new=True) is Goal.REST


def test_a_newcomer_is_never_ordered_to_open() -> None:
    """Its leader has it copied: a server that made it from nothing would have a member without a memory."""
    for state, fate in itertools.product(RegionState, ServerFate):
        assert next_step(state, fate, Goal.JOIN, has_begun=False).action is not Action.ORDER_OPEN


@pytest.mark.parametrize("state", list(RegionState))
def test_fates(state: RegionState) -> None:
    """The start that a transition names is the destination's during an open, the source's during a close."""
    one, two = Incarnation("a", 1), Incarnation("a", 2)
    closes = state in (RegionState.CLOSING, RegionState.CLOSED)
    record = TransitionRecord("r", "t", 1, state, one if closes else None, None if closes else one)
    assert fate_of(record, "a", [one, Incarnation("b", 9)]) is ServerFate.ALIVE
    assert fate_of(record, "a", [two]) is ServerFate.RESTARTED
    assert fate_of(record, "a", [Incarnation("b", 1)]) is ServerFate.AWAY


def named(regions: list[RegionRecord], transitions: list[TransitionRecord]) -> NamedStarts:
    found = NamedStarts(transitions)
    for one in regions:
        found.add(one)
    return found


def test_a_startup_is_recognized_by_shared_regions_alone() -> None:
    """Tablets' records name no start of a server, so a failover would look like a startup."""
    tablet = RegionRecord("t", "r", members=(Member(1, "a"),), next_number=2)
    shared = RegionRecord("u", "q", replicas=(ReplicaLocation(0, "a", 1),))
    alive = [Incarnation("a", 1)]
    moving = TransitionRecord("r", "t", 1, RegionState.OFFLINE, destination=Incarnation("b", 1))
    assert not is_startup(named([tablet], []), alive)
    assert not is_startup(named([tablet], [moving]), [])
    assert not is_startup(named([tablet, shared], []), alive)
    assert is_startup(named([tablet, shared], []), [Incarnation("a", 2)])
    assert is_startup(named([shared, tablet], [moving]), [Incarnation("b", 1)])
    assert is_startup(named([], []), alive)


def test_a_startup_deletes_no_transition_of_a_tablet() -> None:
    """CREATING without a transition would mean that the member has been made."""
    tablet = RegionRecord("t", "r", members=(Member(1, "a"),), next_number=2)
    first = (TransitionRecord("r", "t", 1, RegionState.OFFLINE), 3)
    other = (TransitionRecord("q", "u", 0, RegionState.OFFLINE), 4)
    found = named([tablet, RegionRecord("u", "q")], [first[0], other[0]])
    assert to_wipe(found, [first, other]) == [other]
