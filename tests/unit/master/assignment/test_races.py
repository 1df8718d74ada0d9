"""RT-30, TS-06: several writers take a step from the same state of a transition, and exactly one succeeds."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from twisted.internet.testing import MemoryReactorClock

from master.assignment.transitions import TransitionWriter
from master.assignment.write_queue import Outcome
from master.leadership.fence import Fence
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.records.members import Member
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord
from regions.records.znodes import Layout, decode_transition, encode
from regions.transitions.states import RESTS_ON_MEMBERS, STEPS, Actor, Cause, IllegalStep, Step
from regionserver.replica.effects import WriteStep
from regionserver.replica.step_writer import StepWriter
from tests.unit.master.fake_store import FakeStore

LAYOUT = Layout("/rk")
VERSION = 3
PATH = LAYOUT.transition("r1", 0)
#: A tablet whose configuration does not have the replica that is in transition.
REGION = RegionRecord("t", "r1", members=(Member(2, "b"), Member(3, "c")), next_number=4)
REGION_VERSION = 7


class Race:
    """Contenders that have all read the same state, each with a writer of its own."""

    def __init__(self, before: RegionState | None) -> None:
        self.store = FakeStore()
        for path in LAYOUT.parents():
            self.store.put(path)
        self.store.put(LAYOUT.epoch, b"", 4)
        self.store.put(LAYOUT.region("t", "r1"), encode(REGION), REGION_VERSION)
        self.clock = MemoryReactorClock()
        if before is not None:
            self.store.put(PATH, encode(TransitionRecord("r1", "t", 0, before)), VERSION)
        self.won: list[str] = []
        self.lost: list[str] = []

    def enter(self, name: str, step: Step) -> None:
        """Queue the step of one contender; nothing reaches the store yet."""
        server = Incarnation(name, 1)
        state = step.after or step.before
        assert state is not None
        record = TransitionRecord("r1", "t", 0, state, server, server, epoch=4)
        if step.actor is Actor.SERVER:
            self._enter_server(name, step, record)
        else:
            self._enter_master(name, step, record)

    def _enter_server(self, name: str, step: Step, record: TransitionRecord) -> None:
        race = self

        class Outcomes:
            def step_done(self, *_: Any) -> None:
                race.won.append(name)

            def step_failed(self, _step: WriteStep, _error: str, is_refused: bool) -> None:
                assert is_refused
                race.lost.append(name)

            def steps_answered(self) -> None:
                pass

        store: Any = self.store
        writer = StepWriter(self.clock, store, LAYOUT, Outcomes(), lambda failure: failure.raiseException())
        version = -1 if step.before is None else VERSION
        writer.write(WriteStep(("r1", 0), 1, step.cause, step.before, record, version, epoch=4))
        self.clock.advance(0)

    def _enter_master(self, name: str, step: Step, record: TransitionRecord) -> None:
        def done(outcomes: list[Outcome]) -> None:
            for _, event in outcomes:
                (self.won if isinstance(event, ev.WriteDone) else self.lost).append(name)

        store: Any = self.store
        writer = TransitionWriter(Fence(store, LAYOUT, 4), done, lambda: None, lambda failure: failure.raiseException())
        version = -1 if step.before is None else VERSION
        without = (REGION, REGION_VERSION) if step.cause in RESTS_ON_MEMBERS else None
        if step.after is None:
            assert step.before is not None
            delete = fx.DeleteTransition("r1-0", "r1", 0, step.before, version, step.cause, without_member=without)
            writer.put(delete)
        else:
            writer.put(fx.WriteOffline("r1-0", record, step.before, version, step.cause, without_member=without))
        writer.flush()

    def found(self) -> str:
        """Return the name in the record that the store holds at the end, "" if the znode is gone."""
        kept = self.store.nodes.get(PATH)
        if kept is None:
            return ""
        record = decode_transition(kept[0], PATH)
        return "" if record.destination is None else record.destination.uuid


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.actor.value} {step.before} {step.after} {step.cause}")
def test_exactly_one_of_many_identical_steps_succeeds(step: Step) -> None:
    """Three servers, or three masters with the same epoch: the store confirms the step to one of them."""
    race = Race(step.before)
    for name in "abc":
        race.enter(name, step)
    race.store.answer()
    assert (race.won, sorted(race.lost)) == (["a"], ["b", "c"])
    assert race.found() == ("" if step.after is None else "a")


@pytest.mark.parametrize("before", [None, *RegionState])
def test_exactly_one_of_all_legal_next_steps_succeeds(before: RegionState | None) -> None:
    """Every other legal step from the same state is rejected, of servers and masters."""
    steps = [step for step in STEPS if step.before is before]
    for first, second in itertools.permutations(steps, 2):
        race = Race(before)
        race.enter("a", first)
        race.enter("b", second)
        race.store.answer()
        assert (race.won, race.lost) == (["a"], ["b"]), (first, second)


@pytest.mark.parametrize("step", [one for one in STEPS if one.cause in RESTS_ON_MEMBERS], ids=lambda one: one.cause)
@pytest.mark.parametrize("is_stale", [False, True])
def test_a_step_that_depends_on_the_members_checks_the_regions_record(step: Step, is_stale: bool) -> None:
    """A configuration written meanwhile may have the member: then the whole step is rejected."""
    race = Race(step.before)
    race.enter("a", step)
    if is_stale:
        race.store.put(LAYOUT.region("t", "r1"), encode(REGION), REGION_VERSION + 1)
    race.store.answer()
    assert (race.won, race.lost) == (([], ["a"]) if is_stale else (["a"], []))


@pytest.mark.parametrize("without", [None, (msgspec.structs.replace(REGION, members=(Member(1, "a"),)), 7)])
def test_a_step_for_a_removed_member_requires_a_record_without_it(without: tuple[RegionRecord, int] | None) -> None:
    """Nothing is written for a step without a record, or with a record that has the member."""
    race = Race(RegionState.CLOSED)
    store: Any = race.store
    writer = TransitionWriter(Fence(store, LAYOUT, 4), lambda *_: None, lambda: None, lambda _: None)
    cause = Cause.NOT_A_MEMBER
    effect = fx.DeleteTransition("r1-1", "r1", 1, RegionState.CLOSED, 3, cause, without_member=without)
    with pytest.raises(IllegalStep, match="r1-1"):
        writer.put(effect)
    assert writer.is_idle
