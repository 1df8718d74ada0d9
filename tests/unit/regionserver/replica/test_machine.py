"""The states of a replica on a server: each order, each row of the table, outdated orders."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from regions.messages import AlterOrder, AlterResult, OpenOrder, OrderOutcome, OrderResult
from regions.records.model import Incarnation, RegionRecord, RegionState, ReplicaLocation
from regions.transitions.states import Cause
from regionserver.replica import machine as replicas_module
from regionserver.replica.effects import (
    CloseRegion,
    OpenRegion,
    ReadHolder,
    SchemaChanged,
    WriteStep,
)
from regionserver.replica.states import Phase
from tests.unit.regionserver.replica.support import CLOSE, KEY, ME, OTHER, Run, offline, open_order


class TestSchemaVersion:
    """DD-07: a replica knows and reports the latest schema version that it has received."""

    def version(self, run: Run) -> int:
        [shown] = run.replicas.hosted()
        return shown.schema_version

    def test_it_travels_in_the_order_to_open(self) -> None:
        """A replica opened under a version need not be altered to it."""
        run = Run()
        run.opening(replace(open_order(), schema_version=3))
        assert self.version(run) == 3

    def test_an_open_that_is_asked_for_again_brings_the_later_version(self) -> None:
        """The table was altered during the open: the same order comes again, with the later version."""
        run = Run()
        run.opening(replace(open_order(), schema_version=3))
        run.step()
        run.opening(replace(open_order(), schema_version=4))
        asked = OpenOrder(replace(offline(), state=RegionState.OPENING), 3, RegionRecord("t", "r1"), 5)
        run.opening(replace(asked, schema_version=5))
        assert self.version(run) == 5

    @pytest.mark.parametrize(("told", "known"), [(2, 2), (7, 7), (1, 1)])
    def test_an_open_replica_is_told(self, told: int, known: int) -> None:
        """The answer has the replica's present version."""
        run = Run().until_open()
        assert run.replicas.alter(AlterOrder("r1", 0, told)) == AlterResult("r1", 0, known)
        assert self.version(run) == known

    def test_the_handler_hears_of_what_comes_after_its_opening(self) -> None:
        """The opener gets no call for the version in the order to open. It gets one for a version that arrived during
        the open, after the open; and only one call per version."""
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
        """Like KUDU-1374: a delayed order arrives after a later one."""
        run = Run().until_open()
        run.replicas.alter(AlterOrder("r1", 0, 4))
        assert run.replicas.alter(AlterOrder("r1", 0, 3)) == AlterResult("r1", 0, 4)

    def test_one_that_is_not_here_or_leaves_is_told_nothing(self) -> None:
        """Such a replica gets the version with the next order to open it."""
        run = Run().until_open().master_deletes()
        assert run.replicas.alter(AlterOrder("r2", 0, 4)).schema_version == -1
        run.close()
        run.step()
        assert run.replicas.alter(AlterOrder("r1", 0, 4)).schema_version == -1


class TestOpen:
    """RT-18, RT-28, RT-29."""

    def test_offline_opening_opened_and_the_location_in_one_multi(self) -> None:
        """The steps come in their order, each with the version that was read."""
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
        """`rk history`: a lagging node answered that the progress was not written, but it was."""
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
        """The opener is not called before the claim has succeeded."""
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
        """FN-08 for transitions: only the named destination opens."""
        run = Run()
        assert run.opening(order).outcome is OrderOutcome.REFUSED
        assert run.idle()

    def test_a_close_of_a_new_master_follows_that_of_the_former_one(self) -> None:
        """FW-11: the store rejects the former master's step; the new one's order must not fail with it."""
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

    def test_refusals_of_a_former_masters_close_do_not_count_for_the_next(self) -> None:
        """The region's record has changed meanwhile: one more refusal shows its version, and the close is written."""
        run = Run().until_open().master_deletes()
        run.close()
        for _ in range(replicas_module.REFUSALS_MAX):
            refused = run.next(WriteStep)
            run.replicas.step_failed(refused.key, refused.number, "bad version of /epoch", True)
            run.read()
            run.pull()
        run.store.region_version += 1
        run.replicas.order_close(CLOSE, 6, run.now)
        refused = run.next(WriteStep)
        run.replicas.step_failed(refused.key, refused.number, "bad version of /regions/t/r1", True)
        run.read()
        assert run.next(WriteStep).region_version == run.store.region_version

    def test_a_long_open_that_is_asked_about_is_not_a_failed_one(self) -> None:
        """MF-07, RT-11: a master that reads OPENING asks with that record, and gets the result of the open."""
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
        """X11: the answer to the order may have been lost, with its master."""
        run = Run()
        run.opening()
        run.step()
        job = run.next(OpenRegion)
        run.replicas.open_failed(job.key, job.number, "no disk", run.now)
        asked = OpenOrder(replace(offline(), state=RegionState.OPENING), 3, RegionRecord("t", "r1"), 5)
        assert run.opening(asked).outcome is OrderOutcome.FAILED
        assert run.opening(asked).error == "no disk"

    def test_the_same_order_again_shares_the_ticket_and_later_the_result(self) -> None:
        """A master repeats an order to learn its result."""
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
        """X11: the error is kept for a master's question, and for the status."""
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
        """A failed open is removed from the status after a while."""
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
        """OPENING -> OPENING, at most four times within the allowed time."""
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
        """One step at a time; otherwise the versions would not match."""
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
        """The master forced OFFLINE after the deadline: no further step may be written."""
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
        """Another process's change of the record survives; the location is added to it."""
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
        """For example without permission: the znode looks right, but the step is rejected."""
        run = Run()
        run.opening()
        for _ in range(replicas_module.REFUSALS_MAX):
            step = run.next(WriteStep)
            run.replicas.step_failed(step.key, step.number, "no auth", True)
            run.read()
        assert run.idle()
        assert "no auth" in run.decided[0].error

    def test_an_order_for_an_open_region_takes_the_steps_without_the_handler(self) -> None:
        """The master does not know that it is open; the steps bring both to the same state."""
        run = Run().until_open()
        run.store.record, run.store.version = offline(attempt=9), 0
        run.opening(open_order(0, attempt=9))
        run.step()
        assert run.step().cause is Cause.OPEN_DONE
        run.read()  # the order named an old version of the region's record
        run.step()
        assert run.phase() is Phase.OPEN

    def test_the_location_names_the_token_of_the_files(self) -> None:
        """An order for an open region takes new steps, but opens no files: their generation stays."""
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
        """The claim is rejected, the region stays open; the same outdated order is rejected again."""
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

    def held(self) -> tuple[Run, ReadHolder]:
        run = Run()
        run.opening()
        run.step()
        job = run.next(OpenRegion)
        run.replicas.owner_held(job.key, job.number, OTHER, run.now)
        return run, run.next(ReadHolder)

    def test_a_dead_holder_is_evicted(self) -> None:
        """A frozen process keeps its lock but has lost its session: the store decides, not the lock."""
        run, ask = self.held()
        run.replicas.holder_seen(ask.key, ask.number, ask.holder, False, run.now)
        assert run.opened().evict == OTHER

    def test_a_living_holder_is_not(self) -> None:
        """At most one owner: the open fails and names the holder."""
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
        """A znode never changes to CLOSING, it is only created as CLOSING."""
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
        """The master may see OPENED before this server has the reply to its write."""
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
        """A move that returns to this server at once."""
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
        """X10: the order may be repeated."""
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
