"""The life of a replica on a server: each row of the life cycle, stale orders, lost answers, lost sessions.

`Store` is a deliberately simple store of one transition: tests say which steps it takes, refuses, or takes silently.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from coord.errors import InvalidTransition
from regions.messages import AlterOrder, AlterResult, CloseOrder, OpenOrder, OrderOutcome, OrderResult
from regions.records.model import Incarnation, Intent, RegionRecord, RegionState, ReplicaLocation, TransitionRecord
from regions.transitions.states import Actor, Cause, is_legal
from regionserver.replica import machine as replicas_module
from regionserver.replica.effects import (
    AskAlive,
    CloseRegion,
    Decided,
    Effect,
    Key,
    OpenRegion,
    ReadBack,
    SchemaChanged,
    Stop,
    WriteStep,
)
from regionserver.replica.machine import Replicas
from regionserver.replica.readback import Readback, judge
from regionserver.replica.states import LIFE, Phase

ME = Incarnation("me", 7)
OTHER = Incarnation("other", 3)
KEY: Key = ("r1", 0)


def offline(destination: Incarnation = ME, **fields: Any) -> TransitionRecord:
    return TransitionRecord("r1", "t", 0, RegionState.OFFLINE, destination=destination, epoch=4, **fields)


def open_order(version: int = 2, **fields: Any) -> OpenOrder:
    return OpenOrder(offline(**fields), version, RegionRecord("t", "r1"), 5)


CLOSE = CloseOrder("r1", "t", 0, destination=OTHER, intent=Intent.OPEN, reason="balance")


class Store:
    """One transition and one region record, with their versions."""

    def __init__(self, record: TransitionRecord | None, version: int) -> None:
        self.record = record
        self.version = version
        self.region = RegionRecord("t", "r1")
        self.region_version = 5
        #: Steps of the server since the last step of a master.
        self.steps = 0

    def take(self, step: WriteStep) -> bool:
        """Compare and set; False: refused."""
        state = None if self.record is None else self.record.state
        right_version = self.record is None if step.before is None else self.version == step.version
        right_region = step.region is None or step.region_version == self.region_version
        if state != step.before or not right_version or not right_region:
            return False
        self.record = step.record
        self.version = 0 if step.before is None else self.version + 1
        self.steps = 1 if step.before in (None, RegionState.OFFLINE) else self.steps + 1
        assert len(self.record.took) == self.steps, "the znode keeps each step that a server takes"
        if step.region is not None:
            self.region, self.region_version = step.region, self.region_version + 1
        return True


class Run:
    """A Replicas with its store and handler; effects are answered when the test says so."""

    def __init__(self, record: TransitionRecord | None = None, version: int = 2) -> None:
        self.replicas = Replicas(ME)
        self.store = Store(offline() if record is None else record, version)
        self.now = 1000
        self.effects: list[Effect] = []
        self.decided: list[OrderResult] = []
        self.zxid = 0

    def pull(self) -> None:
        for effect in self.replicas.take_effects():
            if isinstance(effect, Decided):
                self.decided.append(effect.result)
            else:
                self.effects.append(effect)

    def next(self, kind: type[Any]) -> Any:
        """Take the next effect, which must be of that kind."""
        self.pull()
        effect = self.effects.pop(0)
        assert isinstance(effect, kind), f"expected {kind.__name__}, got {effect}"
        return effect

    def step(self, *, lose_answer: bool = False) -> WriteStep:
        """Carry out the next step, which must be one."""
        step: WriteStep = self.next(WriteStep)
        taken = self.store.take(step)
        if lose_answer or not taken:
            self.replicas.step_failed(
                step.key, step.number, "connection lost" if lose_answer else "bad version", not taken
            )
        else:
            self.zxid += 1
            versions = self.store.version, self.store.region_version
            self.replicas.step_done(step.key, step.number, *versions, self.now, self.zxid)
        return step

    def read(self) -> None:
        """Answer the read-back."""
        ask = self.next(ReadBack)
        store = self.store
        version = -1 if store.record is None else store.version
        self.replicas.read_back(
            ask.key, ask.number, store.record, version, store.region, store.region_version, self.now
        )

    def opened(self) -> OpenRegion:
        job: OpenRegion = self.next(OpenRegion)
        self.replicas.opened(job.key, job.number, self.now)
        return job

    def closed(self) -> None:
        job = self.next(CloseRegion)
        self.replicas.closed(job.key, job.number, self.now)

    def opening(self, order: OpenOrder | None = None) -> Any:
        """Order an open."""
        return self.replicas.order_open(order or open_order(), 4, self.now)

    def close(self) -> Any:
        return self.replicas.order_close(CLOSE, 5, self.now)

    def until_open(self) -> Run:
        self.opening()
        self.step()
        self.opened()
        self.step()
        self.pull()
        assert self.phase() is Phase.OPEN
        self.decided.clear()
        return self

    def master_deletes(self) -> Run:
        self.store.record = None
        return self

    def phase(self) -> Phase | None:
        found = [phase for phase, count in self.replicas.phases().items() if count]
        assert len(found) <= 1
        return found[0] if found else None

    def idle(self) -> bool:
        self.pull()
        return not self.effects


class TestSchemaVersion:
    """DD-07: a replica knows the latest version that it was told of, and says so."""

    def version(self, run: Run) -> int:
        [shown] = run.replicas.hosted()
        return shown.schema_version

    def test_it_travels_in_the_order_to_open(self) -> None:
        """What was opened under a version need not be altered to it."""
        run = Run()
        run.opening(replace(open_order(), schema_version=3))
        assert self.version(run) == 3

    def test_an_open_that_is_asked_for_again_brings_the_later_version(self) -> None:
        """The table was altered while the region was being opened: the same order comes again, with more to say."""
        run = Run()
        run.opening(replace(open_order(), schema_version=3))
        run.step()
        run.opening(replace(open_order(), schema_version=4))
        asked = OpenOrder(replace(offline(), state=RegionState.OPENING), 3, RegionRecord("t", "r1"), 5)
        run.opening(replace(asked, schema_version=5))
        assert self.version(run) == 5

    @pytest.mark.parametrize(("told", "known"), [(2, 2), (7, 7), (1, 1)])
    def test_an_open_replica_is_told(self, told: int, known: int) -> None:
        """And answers with what it has now."""
        run = Run().until_open()
        assert run.replicas.alter(AlterOrder("r1", 0, told)) == AlterResult("r1", 0, known)
        assert self.version(run) == known

    def test_the_handler_hears_of_what_comes_after_its_opening(self) -> None:
        """Not of the version that it was opened under; of one that came meanwhile when it has opened; of each once."""
        run = Run()
        run.opening(replace(open_order(), schema_version=3))
        run.step()
        assert run.replicas.alter(AlterOrder("r1", 0, 4)).schema_version == 4
        assert run.opened().schema_version == 3
        assert run.next(SchemaChanged).schema_version == 4
        run.step()
        run.replicas.alter(AlterOrder("r1", 0, 4))
        assert run.idle()
        run.replicas.alter(AlterOrder("r1", 0, 6))
        assert run.next(SchemaChanged).schema_version == 6

    def test_it_never_goes_back(self) -> None:
        """KUDU-1374's cousin: an order that was held up somewhere comes after a later one."""
        run = Run().until_open()
        run.replicas.alter(AlterOrder("r1", 0, 4))
        assert run.replicas.alter(AlterOrder("r1", 0, 3)) == AlterResult("r1", 0, 4)

    def test_one_that_is_not_here_or_leaves_is_told_nothing(self) -> None:
        """It gets the version with the next order to open it."""
        run = Run().until_open().master_deletes()
        assert run.replicas.alter(AlterOrder("r2", 0, 4)).schema_version == -1
        run.close()
        run.step()
        assert run.replicas.alter(AlterOrder("r1", 0, 4)).schema_version == -1


class TestOpen:
    """RT-18, RT-28, RT-29."""

    def test_offline_opening_opened_and_the_location_in_one_multi(self) -> None:
        """The steps in their order, each naming the version read."""
        run = Run()
        assert isinstance(run.opening(), int)
        claim = run.step()
        claim_zxid = run.zxid
        assert (claim.cause, claim.version, claim.record.state) == (Cause.OPEN_ORDER, 2, RegionState.OPENING)
        assert claim.record.deadline_ms == run.now + 60_000
        run.opened()
        announce = run.step()
        assert (announce.cause, announce.version, announce.region_version) == (Cause.OPEN_DONE, 3, 5)
        assert announce.region is not None
        assert announce.region.location(0) == ReplicaLocation(0, "me", 7, run.now, claim_zxid)
        assert run.idle()
        assert run.decided == [OrderResult("r1", 0, OrderOutcome.DONE, 4)]
        assert run.phase() is Phase.OPEN

    def test_a_step_that_was_taken_unknown_to_the_server_is_kept_by_the_next(self) -> None:
        """`rk history`: a node that was behind has answered that the progress was not written; it was."""
        run = Run()
        run.opening()
        run.step()
        run.opened()
        assert run.store.record is not None
        took = (*run.store.record.took, 1_001)
        run.store.record, run.store.version, run.store.steps = replace(run.store.record, took=took), 4, 2
        run.now = 1_002
        run.step()
        run.read()
        run.step()
        assert run.phase() is Phase.OPEN
        assert run.store.record.state is RegionState.OPENED
        assert run.store.record.took == (1_000, 1_001, 1_000)

    def test_the_region_is_opened_only_once_opening_is_in_the_store(self) -> None:
        """No handler is asked before the claim has been won."""
        run = Run(record=replace(offline(), state=RegionState.OPENING, destination=OTHER), version=3)
        run.opening()
        run.step()
        run.read()
        assert run.idle()
        assert run.decided[0].outcome is OrderOutcome.REFUSED
        assert run.phase() is None

    @pytest.mark.parametrize(
        "order",
        [open_order(destination=OTHER), open_order(destination=Incarnation("me", 6)),
         OpenOrder(replace(offline(), state=RegionState.OPENING), 2, RegionRecord("t", "r1"), 5)],
        ids=["another server", "an earlier start", "not offline"],
    )  # fmt: skip
    def test_an_order_for_somebody_else_is_refused_at_once(self, order: OpenOrder) -> None:
        """FN-08 on the level of the transition: only the named destination opens."""
        run = Run()
        assert run.opening(order).outcome is OrderOutcome.REFUSED
        assert run.idle()

    def test_a_close_of_a_new_master_follows_that_of_the_former_one(self) -> None:
        """FW-11: the store refuses the former master's step; the new one's order must not share its fate."""
        run = Run().until_open().master_deletes()
        run.close()
        refused = run.next(WriteStep)
        ticket = run.replicas.order_close(CLOSE, 6, run.now)
        for _ in range(replicas_module.REFUSALS_MAX):
            run.replicas.step_failed(refused.key, refused.number, "bad version of /epoch", True)
            run.read()
            run.pull()
            if run.decided:
                break
            refused = run.next(WriteStep)
        assert run.decided[0].outcome is OrderOutcome.REFUSED
        step = run.next(WriteStep)
        assert (step.epoch, step.record.epoch) == (6, 6)
        assert isinstance(ticket, int)

    def test_a_long_open_that_is_asked_about_is_not_a_failed_one(self) -> None:
        """MF-07, RT-11: a master that sees OPENING asks with that record, and hears what becomes of the open."""
        run = Run()
        ticket = run.opening()
        run.step()
        asked = OpenOrder(replace(offline(), state=RegionState.OPENING), 3, RegionRecord("t", "r1"), 5)
        assert run.opening(asked) == ticket
        run.opened()
        assert run.opening(asked) == ticket
        run.step()
        assert run.opening(asked).outcome is OrderOutcome.DONE

    def test_a_failed_open_that_is_asked_about_again_says_so(self) -> None:
        """X11: the answer to the order may have been lost, with the master that had asked."""
        run = Run()
        run.opening()
        run.step()
        job = run.next(OpenRegion)
        run.replicas.open_failed(job.key, job.number, "no disk", run.now)
        asked = OpenOrder(replace(offline(), state=RegionState.OPENING), 3, RegionRecord("t", "r1"), 5)
        assert run.opening(asked).outcome is OrderOutcome.FAILED
        assert run.opening(asked).error == "no disk"

    def test_the_same_order_again_shares_the_ticket_and_later_the_result(self) -> None:
        """Asking again is how a master learns what became of an order."""
        run = Run()
        ticket = run.opening()
        assert run.opening() == ticket
        run.step()
        assert run.opening() == ticket
        run.opened()
        run.step()
        assert run.opening() == OrderResult("r1", 0, OrderOutcome.DONE, 4)
        assert run.idle()

    def test_a_failed_open_is_remembered_until_another_order_comes(self) -> None:
        """X11: the error is for the master to ask, and for the status to show."""
        run = Run()
        run.opening()
        run.step()
        job = run.next(OpenRegion)
        run.replicas.open_failed(job.key, job.number, "disk full", run.now)
        again = run.opening()
        assert (again.outcome, again.error) == (OrderOutcome.FAILED, "disk full")
        assert [one.state for one in run.replicas.hosted()] == ["FAILED"]
        run.store.record, run.store.version = offline(attempt=1), 4
        assert isinstance(run.opening(open_order(4, attempt=1)), int)
        assert [one.state for one in run.replicas.hosted()] == ["OPENING"]

    def test_old_failures_are_not_shown_for_ever(self) -> None:
        """A failed open leaves the status after a while."""
        run = Run()
        run.opening()
        run.step()
        job = run.next(OpenRegion)
        run.replicas.open_failed(job.key, job.number, "disk full", run.now)
        run.replicas.forget_failures(run.now)
        assert run.replicas.failed() == 1
        run.replicas.forget_failures(run.now + 1)
        assert run.replicas.failed() == 0

    def test_progress_extends_the_deadline_but_not_too_often(self) -> None:
        """OPENING -> OPENING, at most four times in the time allowed."""
        run = Run()
        run.opening()
        run.step()
        job = run.next(OpenRegion)
        run.now += 1000
        run.replicas.progressed(job.key, job.number, run.now)
        assert run.idle()
        run.now += 14_000
        run.replicas.progressed(job.key, job.number, run.now)
        step = run.step()
        assert (step.cause, step.record.deadline_ms) == (Cause.PROGRESS, run.now + 60_000)
        run.replicas.opened(job.key, job.number, run.now)
        run.step()
        assert run.phase() is Phase.OPEN

    def test_an_open_that_ends_during_a_progress_write_is_announced_after_it(self) -> None:
        """One step at a time, or the versions would not fit."""
        run = Run()
        run.opening()
        run.step()
        job = run.next(OpenRegion)
        run.now += 20_000
        run.replicas.progressed(job.key, job.number, run.now)
        run.replicas.opened(job.key, job.number, run.now)
        assert run.step().cause is Cause.PROGRESS
        assert run.step().cause is Cause.OPEN_DONE
        assert run.phase() is Phase.OPEN

    def test_a_region_taken_away_while_opening_is_dropped_without_a_step(self) -> None:
        """The master forced OFFLINE after the deadline: nothing more may be written."""
        run = Run()
        run.opening()
        run.step()
        run.store.record, run.store.version = offline(OTHER, attempt=1), 4
        run.opened()
        run.step()
        run.read()
        run.closed()
        assert run.idle()
        assert run.decided[0].outcome is OrderOutcome.REFUSED
        assert run.phase() is None

    def test_a_changed_region_record_is_read_and_kept(self) -> None:
        """Somebody else's change of the record survives; the location is added to it."""
        run = Run()
        run.opening()
        run.step()
        run.store.region, run.store.region_version = RegionRecord("t", "r1", size_bytes=99), 6
        run.opened()
        run.step()
        run.read()
        run.step()
        assert run.phase() is Phase.OPEN
        assert (run.store.region.size_bytes, run.store.region.location(0).uuid) == (99, "me")

    def test_a_store_that_refuses_for_ever_ends_the_order(self) -> None:
        """No access, say: the znode looks right and the step is refused all the same."""
        run = Run()
        run.opening()
        for _ in range(replicas_module.REFUSALS_MAX):
            step = run.next(WriteStep)
            run.replicas.step_failed(step.key, step.number, "no auth", True)
            run.read()
        assert run.idle()
        assert "no auth" in run.decided[0].error

    def test_an_order_for_an_open_region_takes_the_steps_without_the_handler(self) -> None:
        """The master thinks it is not open; it converges instead of quarrelling."""
        run = Run().until_open()
        run.store.record, run.store.version = offline(attempt=9), 0
        run.opening(open_order(0, attempt=9))
        run.step()
        assert run.step().cause is Cause.OPEN_DONE
        run.read()  # the order's version of the region's record was an old one
        run.step()
        assert run.phase() is Phase.OPEN

    def test_the_location_names_the_token_of_the_files(self) -> None:
        """An order for an open region takes new steps, but opens no files: their generation stays what it was."""
        run = Run()
        run.opening()
        run.step()
        opened = run.opened()
        run.step()
        run.store.record, run.store.version = offline(attempt=9), 0
        run.opening(open_order(0, attempt=9))
        run.step()
        run.step()
        run.read()
        run.step()
        served = run.replicas.served(KEY)
        assert served is not None
        assert served[1].token == opened.token > 0

    def test_a_stale_order_for_an_open_region_changes_nothing_and_is_never_done(self) -> None:
        """The claim is refused, the region stays open; the same stale order again is refused again."""
        run = Run().until_open()
        for _ in range(2):
            assert isinstance(run.opening(open_order(9, attempt=9)), int)
            run.step()
            run.read()
            assert run.idle()
            assert run.decided.pop().outcome is OrderOutcome.REFUSED
            assert run.phase() is Phase.OPEN


class TestHolder:
    """A region whose directory another incarnation still holds."""

    def held(self) -> tuple[Run, AskAlive]:
        run = Run()
        run.opening()
        run.step()
        job = run.next(OpenRegion)
        run.replicas.owner_held(job.key, job.number, OTHER, run.now)
        return run, run.next(AskAlive)

    def test_a_dead_holder_is_evicted(self) -> None:
        """A frozen process keeps its lock but has lost its session: the store decides, not the lock."""
        run, ask = self.held()
        run.replicas.holder_seen(ask.key, ask.number, ask.holder, False, run.now)
        assert run.opened().evict == OTHER

    def test_a_living_holder_is_not(self) -> None:
        """At most one owner: the open fails and says who has it."""
        run, ask = self.held()
        run.replicas.holder_seen(ask.key, ask.number, ask.holder, True, run.now)
        assert run.idle()
        assert run.decided[0].outcome is OrderOutcome.FAILED
        assert "other@3" in run.decided[0].error


class TestClose:
    """RT-16, RT-26, RT-27."""

    def test_closing_is_created_then_closed_written(self) -> None:
        """The region is closed between the two steps."""
        run = Run().until_open().master_deletes()
        run.close()
        mark = run.step()
        assert (mark.before, mark.record.state, mark.record.source) == (None, RegionState.CLOSING, ME)
        assert (mark.record.destination, mark.record.epoch, mark.record.reason) == (OTHER, 5, "balance")
        run.closed()
        done = run.step()
        assert (done.record.state, done.version) == (RegionState.CLOSED, 0)
        assert run.idle()
        assert run.decided == [OrderResult("r1", 0, OrderOutcome.DONE, 1)]
        assert run.phase() is None
        assert run.close() == OrderResult("r1", 0, OrderOutcome.DONE, 1)

    def test_a_region_in_transition_is_not_closed(self) -> None:
        """A node is never transitioned to CLOSING, only created so."""
        run = Run().until_open()
        run.close()
        run.step()
        run.read()
        assert run.idle()
        assert run.decided[0].outcome is OrderOutcome.REFUSED
        assert run.phase() is Phase.OPEN

    def test_what_is_not_open_is_not_closed(self) -> None:
        """No znode is touched."""
        run = Run()
        assert run.close().outcome is OrderOutcome.REFUSED
        run.opening()
        assert run.close().outcome is OrderOutcome.REFUSED

    def test_a_close_that_overtakes_the_answer_to_opened_waits(self) -> None:
        """The master may see OPENED before we hear that it is written."""
        run = Run()
        run.opening()
        run.step()
        run.opened()
        announce = run.next(WriteStep)
        assert run.store.take(announce)
        run.master_deletes()
        ticket = run.close()
        assert run.close() == ticket
        run.replicas.step_done(announce.key, announce.number, 4, 6, run.now)
        assert run.step().cause is Cause.CLOSE_ORDER
        run.closed()
        run.step()
        run.pull()
        assert [result.outcome for result in run.decided] == [OrderOutcome.DONE, OrderOutcome.DONE]

    def test_an_open_that_overtakes_the_answer_to_closed_waits(self) -> None:
        """A move that comes back to us at once."""
        run = Run().until_open().master_deletes()
        run.close()
        run.step()
        run.closed()
        release = run.next(WriteStep)
        assert run.store.take(release)
        run.store.record, run.store.version = offline(attempt=2), 2
        run.opening(open_order(2, attempt=2))
        run.replicas.step_done(release.key, release.number, 1, -1, run.now)
        run.step()
        run.opened()

    def test_a_failed_close_stays_closing_and_is_tried_when_asked_again(self) -> None:
        """X10: an idempotent re-ask."""
        run = Run().until_open().master_deletes()
        run.close()
        run.step()
        job = run.next(CloseRegion)
        run.replicas.close_failed(job.key, job.number, "flush failed", run.now)
        run.pull()
        assert (run.decided.pop().error, run.phase()) == ("flush failed", Phase.STUCK)
        run.close()
        run.closed()
        run.step()
        run.pull()
        assert run.decided[0].outcome is OrderOutcome.DONE


@pytest.mark.parametrize("lost", range(4))
def test_a_lost_answer_never_changes_the_end(lost: int) -> None:
    """Whichever step's answer is lost with the connection, the life goes on where it was."""
    run = Run()
    run.opening()
    turn = 0
    while run.phase() is not Phase.OPEN or turn == 2:
        if run.phase() is Phase.OPEN:
            run.master_deletes()
            run.close()
        step = run.step(lose_answer=turn == lost)
        if turn == lost:
            if step.cause is Cause.OPEN_DONE:
                run.master_deletes()  # the master was quicker than our next look
            run.read()
        turn += 1
        if run.phase() is Phase.OPENING:
            run.opened()
        elif run.phase() is Phase.CLOSING:
            run.closed()
        elif run.phase() is None:
            break
    run.pull()
    assert [result.outcome for result in run.decided] == [OrderOutcome.DONE] * len(run.decided)


class TestSession:
    """A lost session: close everything, write nothing."""

    def test_from_every_phase_everything_is_closed_and_nothing_written(self) -> None:
        """One replica per phase; afterwards the server is empty and may rejoin."""
        for target in Phase:
            run = _bring_to(target)
            run.effects.clear()
            run.decided.clear()
            run.replicas.session_lost(run.now)
            run.pull()
            for effect in list(run.effects):
                assert not isinstance(effect, WriteStep | ReadBack), f"{target}: wrote {effect}"
            _finish_jobs(run)
            assert len(run.replicas) == 0, target
            run.replicas.rejoined(Incarnation("me", 8))
            assert run.opening().outcome is OrderOutcome.REFUSED, "an order for the former incarnation"

    def test_answers_of_the_old_session_are_ignored(self) -> None:
        """A late answer must not move anything."""
        run = Run()
        run.opening()
        step = run.next(WriteStep)
        run.replicas.session_lost(run.now)
        run.replicas.step_done(step.key, step.number, 3, -1, run.now)
        run.pull()
        assert run.idle()

    def test_a_region_that_cannot_be_closed_ends_the_process(self) -> None:
        """It belongs to another server now; only the end of the process gives its files back."""
        run = Run().until_open()
        run.replicas.session_lost(run.now)
        for _ in range(replicas_module.DROPS_MAX):
            job = run.next(CloseRegion)
            run.replicas.close_failed(job.key, job.number, "hangs", run.now)
        assert "hangs" in run.next(Stop).reason


def _bring_to(phase: Phase) -> Run:
    """A run whose one replica is in `phase`, with whatever it waits for unanswered."""
    run = Run()
    if phase in (Phase.CLAIMING, Phase.OPENING, Phase.ANNOUNCING):
        run.opening()
        if phase is not Phase.CLAIMING:
            run.step()
        if phase is Phase.ANNOUNCING:
            run.opened()
    else:
        run.until_open().master_deletes()
        if phase is not Phase.OPEN:
            run.close()
        if phase in (Phase.CLOSING, Phase.STUCK, Phase.RELEASING):
            run.step()
        if phase is Phase.STUCK:
            job = run.next(CloseRegion)
            run.replicas.close_failed(job.key, job.number, "no", run.now)
        if phase is Phase.RELEASING:
            run.closed()
        if phase is Phase.DROPPING:
            run.replicas.session_lost(run.now)
    run.pull()
    run.jobs = [effect for effect in run.effects if isinstance(effect, OpenRegion | CloseRegion)]  # type: ignore[attr-defined]
    assert run.phase() is phase
    return run


def _finish_jobs(run: Run) -> None:
    """Let the handler finish whatever it was asked, before and after the session was lost."""
    jobs = [*run.jobs, *run.effects]  # type: ignore[attr-defined]
    while jobs:
        for job in jobs:
            if isinstance(job, OpenRegion):
                run.replicas.opened(job.key, job.number, run.now)
            else:
                assert isinstance(job, CloseRegion)
                run.replicas.closed(job.key, job.number, run.now)
        run.effects.clear()
        run.pull()
        jobs = list(run.effects)


class TestTables:
    """The tables themselves."""

    def test_each_phase_is_reached_and_left(self) -> None:
        """No phase is a trap, none is unreachable."""
        for phase in Phase:
            assert any(row.after is phase for row in LIFE)
            assert any(row.before is phase and row.after is not phase for row in LIFE)

    def test_a_move_outside_the_table_is_refused_with_the_story(self) -> None:
        """The broken invariant names the replica and what happened to it."""
        run = Run().until_open()
        replica = run.replicas._replicas[KEY]
        with pytest.raises(InvalidTransition, match=r"r1-0.*(?s:.*)open ordered"):
            run.replicas._move(replica, "closed", None, 1)

    @pytest.mark.parametrize(
        ("cause", "found", "verdict"),
        [
            (Cause.OPEN_ORDER, None, Readback.LOST),
            (Cause.OPEN_ORDER, offline(), Readback.AGAIN),
            (Cause.OPEN_ORDER, offline(OTHER), Readback.LOST),
            (Cause.OPEN_ORDER, replace(offline(), state=RegionState.OPENING), Readback.TAKEN),
            (Cause.OPEN_ORDER, replace(offline(OTHER), state=RegionState.OPENING), Readback.LOST),
            (Cause.PROGRESS, replace(offline(), state=RegionState.OPENING), Readback.TAKEN),
            (Cause.PROGRESS, offline(), Readback.LOST),
            (Cause.OPEN_DONE, None, Readback.LOST),
            (Cause.OPEN_DONE, offline(), Readback.LOST),
            (Cause.OPEN_DONE, replace(offline(), state=RegionState.OPENING), Readback.AGAIN),
            (Cause.OPEN_DONE, replace(offline(), state=RegionState.OPENED), Readback.TAKEN),
            (Cause.CLOSE_ORDER, None, Readback.AGAIN),
            (Cause.CLOSE_ORDER, offline(), Readback.LOST),
            (Cause.CLOSE_ORDER, TransitionRecord("r1", "t", 0, RegionState.CLOSING, ME), Readback.TAKEN),
            (Cause.CLOSE_ORDER, TransitionRecord("r1", "t", 0, RegionState.CLOSING, OTHER), Readback.LOST),
            (Cause.CLOSE_DONE, TransitionRecord("r1", "t", 0, RegionState.CLOSING, ME), Readback.AGAIN),
            (Cause.CLOSE_DONE, TransitionRecord("r1", "t", 0, RegionState.CLOSED, ME), Readback.TAKEN),
            (Cause.CLOSE_DONE, None, Readback.LOST),
        ],
    )
    def test_judge(self, cause: Cause, found: TransitionRecord | None, verdict: Readback) -> None:
        """What the znode says about a step."""
        assert judge(cause, ME, found, same_version=True) is verdict

    def test_an_offline_at_another_version_is_another_order(self) -> None:
        """A later order for us must come by itself, with its own version."""
        assert judge(Cause.OPEN_ORDER, ME, offline(), same_version=False) is Readback.LOST

    def test_a_location_of_an_earlier_open_does_not_deceive(self) -> None:
        """Only the very location that was to be written proves that OPENED was."""
        old, new = ReplicaLocation(0, "me", 7, 1), ReplicaLocation(0, "me", 7, 2)
        region = RegionRecord("t", "r1", replicas=(old,))
        for location, verdict in ((old, Readback.TAKEN), (new, Readback.LOST)):
            found = judge(Cause.OPEN_DONE, ME, None, same_version=True, region=region, location=location)
            assert found is verdict


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_orders_and_accidents_keeps_the_rules(seed: int) -> None:
    """Random orders, lost answers, refusals and lost sessions: every write is legal, and the server drains to empty."""
    rng = random.Random(seed)
    run = Run(version=0)
    for turn in range(200):
        run.pull()
        act = rng.random()
        if act < 0.1 and (run.store.record is None or rng.random() < 0.3):
            version = 0 if run.store.record is None else run.store.version + 1
            run.store.record, run.store.version = offline(attempt=turn), version
        elif act < 0.2 and run.store.record is not None and run.store.record.state is RegionState.OPENED:
            run.store.record = None
        elif act < 0.35:
            record = run.store.record
            if record is not None and record.state is RegionState.OFFLINE:
                run.replicas.order_open(OpenOrder(record, run.store.version, run.store.region, 5), 4, run.now)
        elif act < 0.45:
            run.close()
        elif act < 0.46:
            run.replicas.session_lost(run.now)
        elif run.effects:
            _answer(run, run.effects.pop(rng.randrange(len(run.effects))), rng)
        run.now += 1
    run.replicas.session_lost(run.now)
    run.pull()
    for _ in range(50):
        for effect in run.effects[:]:
            run.effects.remove(effect)
            _answer(run, effect, None)
        run.pull()
    assert len(run.replicas) == 0


def _answer(run: Run, effect: Effect, rng: random.Random | None) -> None:
    """Answer one effect; with `rng` sometimes badly."""
    chance = 1.0 if rng is None else rng.random()
    if isinstance(effect, WriteStep):
        assert is_legal(Actor.SERVER, effect.before, effect.record.state, effect.cause)
        taken = chance > 0.1 and run.store.take(effect)
        if chance < 0.25 or not taken:
            run.replicas.step_failed(effect.key, effect.number, "lost", not taken)
        else:
            run.replicas.step_done(effect.key, effect.number, run.store.version, run.store.region_version, run.now)
    elif isinstance(effect, ReadBack):
        store = run.store
        version = -1 if store.record is None else store.version
        run.replicas.read_back(
            effect.key, effect.number, store.record, version, store.region, store.region_version, run.now
        )
    elif isinstance(effect, OpenRegion):
        if chance < 0.15:
            run.replicas.open_failed(effect.key, effect.number, "no", run.now)
        elif chance < 0.25:
            run.replicas.owner_held(effect.key, effect.number, OTHER, run.now)
        else:
            run.replicas.opened(effect.key, effect.number, run.now)
    elif isinstance(effect, CloseRegion):
        if chance < 0.1:
            run.replicas.close_failed(effect.key, effect.number, "no", run.now)
        else:
            run.replicas.closed(effect.key, effect.number, run.now)
    elif isinstance(effect, AskAlive):
        run.replicas.holder_seen(effect.key, effect.number, effect.holder, chance < 0.5, run.now)
    else:
        assert isinstance(effect, Stop)
