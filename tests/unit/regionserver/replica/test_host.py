"""Host, StepWriter and Workers together: batches, rejections, lost connections, failing openers, answers in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from coord.env_os import OsClock
from regions.messages import CloseOrder, OpenOrder, OrderOutcome, OrderResults
from regions.records import znodes
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TransitionRecord,
    WorkOrigin,
)
from regionserver import workers as workers_module
from regionserver.metrics import Metrics
from regionserver.opener import Opening, OwnerHeld, RegionOpener
from regionserver.replica import host as host_module
from regionserver.replica import step_writer as steps_module
from regionserver.replica.host import Host
from regionserver.replica.states import Phase
from tests.support.interpreted import is_interpreted
from tests.unit.regionserver.replica.memory_store import PATHS, FakeReactor, MemoryStore

ME = Incarnation("me", 7)


def lines_of(lines: list[str]) -> Callable[[LogEvent], None]:
    """Return an observer that keeps the formatted log lines."""
    return lambda event: lines.append(formatEvent(event))


class ScriptedOpener(RegionOpener):
    """Opens every region, except as the test says."""

    def __init__(self) -> None:
        self.prepared: list[int] = []
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.serving: list[bool] = []
        self.evicted: list[Incarnation | None] = []
        self.on_open: Callable[[Opening], None] = lambda _opening: None
        self.on_close: Callable[[str], None] = lambda _region_id: None
        self.on_prepare: Callable[[Sequence[Opening]], None] = lambda _openings: None

    def prepare(self, openings: Sequence[Opening]) -> None:
        self.prepared.append(len(openings))
        self.on_prepare(openings)

    def open(self, opening: Opening) -> None:
        self.on_open(opening)
        self.evicted.append(opening.evict)
        self.opened.append(opening.region.region_id)

    def close(self, region: RegionRecord, replica: int) -> None:
        self.on_close(region.region_id)
        self.closed.append(region.region_id)

    def serving_changed(self, is_serving: bool) -> None:
        self.serving.append(is_serving)


class HostTests(SynchronousTestCase):
    """The test controls everything but the threads."""

    def setUp(self) -> None:
        self.reactor = FakeReactor()
        self.store = MemoryStore()
        self.opener = ScriptedOpener()
        self.metrics = Metrics()
        self.stopped: list[str] = []
        self.host = Host(self.reactor, OsClock(), self.opener, PATHS, self.metrics, threads=2, stop=self.stopped.append)
        self.addCleanup(self.host.stop_workers, 5.0)
        self.host.begin(ME, self.store)

    def orders(self, count: int, first: int = 0) -> list[OpenOrder]:
        made = []
        for number in range(first, first + count):
            region = RegionRecord("t", f"r{number}")
            record = TransitionRecord(region.region_id, "t", 0, RegionState.OFFLINE, destination=ME)
            self.store.znodes[PATHS.transition(region.region_id, 0)] = (znodes.encode(record), 3)
            self.store.znodes[PATHS.region("t", region.region_id)] = (znodes.encode(region), 1)
            made.append(OpenOrder(record, 3, region, 1))
        return made

    def work(self) -> None:
        """Let the threads finish their jobs, and deliver the results."""
        while self.host._workers.pending:
            with self.reactor.arrived:
                assert self.reactor.arrived.wait_for(lambda: bool(self.reactor.from_threads), 10)
                calls, self.reactor.from_threads = self.reactor.from_threads, []
            for call in calls:
                call()

    def settle(self) -> None:
        """Run store and threads until nothing changes any more."""
        for _ in range(100):
            self.reactor.advance(0)
            if not self.store.waiting and not self.host._workers.pending:
                return
            self.store.let_through()
            self.work()
        raise AssertionError("it does not settle")

    def outcomes(self, answer: Deferred[OrderResults]) -> list[OrderOutcome]:
        return [result.outcome for result in self.successResultOf(answer).results]

    def state(self, region_id: str) -> RegionState:
        return znodes.decode_transition(self.store.znodes[PATHS.transition(region_id, 0)][0]).state

    def opened(self, count: int) -> None:
        answer = self.host.open_regions(self.orders(count), 4, 5000)
        self.settle()
        assert set(self.outcomes(answer)) == {OrderOutcome.DONE}

    def test_many_regions_travel_in_few_multis(self) -> None:
        """1,000 regions, two steps each: multis of two hundred regions instead of two thousand requests."""
        answer = self.host.open_regions(self.orders(1000), 4, 5000)
        self.settle()
        assert set(self.outcomes(answer)) == {OrderOutcome.DONE}
        assert self.store.sizes[:5] == [401] * 5
        assert len(self.store.sizes) < 20
        assert max(self.store.sizes) <= 2 * steps_module.STEPS_MAX + 1
        assert sum(self.opener.prepared) == 1000

    def test_steps_and_ends_of_orders_are_counted(self) -> None:
        """Each open has two steps and one end; they are in the metrics when the order is answered."""
        self.opened(30)
        value = self.metrics.registry.get_sample_value
        assert value("regionkeeper_server_steps_total", {"result": "taken"}) == 60
        assert value("regionkeeper_server_outcomes_total", {"outcome": OrderOutcome.DONE.value}) == 30

    def test_no_more_multis_under_way_than_the_bound(self) -> None:
        """Further steps are collected."""
        self.host.open_regions(self.orders(1000), 4, 5000)
        self.reactor.advance(0)
        assert len(self.store.waiting) == steps_module.IN_FLIGHT_MAX

    @pytest.mark.skipif(not is_interpreted(), reason="compiled code has its own copy of the constant")
    def test_large_values_make_smaller_multis(self) -> None:
        """A frame of the store is limited to 1 MB."""
        orders = self.orders(20)
        self.patch(steps_module, "BYTES_MAX", 400)
        self.host.open_regions(orders, 4, 5000)
        self.settle()
        assert max(self.store.sizes) < 10
        assert self.host.phases()[Phase.OPEN] == 20

    def test_what_a_master_doubts_is_looked_up_in_the_store(self) -> None:
        """FN-02 to FN-04: another server's replicas are dropped without a write; own replicas and orphans stay, even
        over a lost connection."""
        self.opened(3)
        for number in range(3):
            del self.store.znodes[PATHS.transition(f"r{number}", 0)]
        theirs = RegionRecord("t", "r0", replicas=(ReplicaLocation(0, "other", 3),))
        self.store.znodes[PATHS.region("t", "r0")] = (znodes.encode(theirs), 9)
        del self.store.znodes[PATHS.region("t", "r1")]
        before = dict(self.store.znodes)
        self.store.is_cut = True
        reply = self.host.review([("r0", 0), ("r1", 0), ("r2", 0), ("r9", 0)])
        assert [one.outcome for one in reply.results] == [OrderOutcome.STARTED] * 3 + [OrderOutcome.DONE]
        self.store.is_cut = False
        self.reactor.advance(host_module.READ_AGAIN_S)
        self.settle()
        assert self.opener.closed == ["r0"]
        assert self.host.phases()[Phase.OPEN] == 2
        assert self.store.znodes == before

    def test_a_bad_region_holds_nobody(self) -> None:
        """The multi is rejected; the other steps are sent one by one and succeed."""
        orders = self.orders(50)
        del self.store.znodes[PATHS.transition("r7", 0)]
        answer = self.host.open_regions(orders, 4, 5000)
        self.settle()
        outcomes = self.outcomes(answer)
        assert outcomes.pop(7) is OrderOutcome.REFUSED
        assert set(outcomes) == {OrderOutcome.DONE}
        assert "r7" not in self.opener.opened

    def test_an_order_of_an_earlier_transition_does_not_fit_the_next(self) -> None:
        """RT-28, RT-30: versions begin again when a znode is created again, but the record of the region has
        changed."""
        orders = self.orders(1)
        other = TransitionRecord("r0", "t", 0, RegionState.CLOSING, source=Incarnation("other", 1))
        self.store.znodes[PATHS.transition("r0", 0)] = (znodes.encode(other), 3)
        self.store.znodes[PATHS.region("t", "r0")] = (znodes.encode(RegionRecord("t", "r0")), 2)
        answer = self.host.open_regions(orders, 4, 5000)
        self.settle()
        assert self.outcomes(answer) == [OrderOutcome.REFUSED]
        assert self.state("r0") is RegionState.CLOSING
        assert self.opener.opened == []

    def test_an_order_of_a_replaced_master_is_refused_by_the_store(self) -> None:
        """FW-11: even a server that does not know the new master does nothing for the old one."""
        self.store.znodes[PATHS.epoch] = (b"", 5)
        answer = self.host.open_regions(self.orders(2), 4, 5000)
        self.settle()
        assert self.outcomes(answer) == [OrderOutcome.REFUSED] * 2
        assert self.state("r0") is RegionState.OFFLINE

    def test_the_cause_of_an_order_is_in_the_steps_the_answer_and_the_log(self) -> None:
        """So `rk history --cause` and this server's log show the same work."""
        lines: list[str] = []
        observer = lambda event: lines.append(formatEvent(event))  # noqa: E731 - an observer is a callable
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        move = WorkOrigin("e4-2", "request: MoveRegion r0")
        [order] = self.orders(1)
        caused = msgspec.structs.replace(order.transition, origin=WorkOrigin("e4-1"))
        self.store.znodes[PATHS.transition("r0", 0)] = (znodes.encode(caused), 3)
        answer = self.host.open_regions([msgspec.structs.replace(order, transition=caused)], 4, 5000)
        self.settle()
        assert [one.cause_id for one in self.successResultOf(answer).results] == ["e4-1"]
        opened = znodes.decode_transition(self.store.znodes[PATHS.transition("r0", 0)][0])
        assert (opened.state, opened.origin) == (RegionState.OPENED, WorkOrigin("e4-1"))
        del self.store.znodes[PATHS.transition("r0", 0)]
        answer = self.host.close_regions([CloseOrder("r0", "t", 0, origin=move)], 4, 0)
        assert [one.cause_id for one in self.successResultOf(answer).results] == ["e4-2"], "STARTED has it as well"
        self.settle()
        closed = znodes.decode_transition(self.store.znodes[PATHS.transition("r0", 0)][0])
        assert (closed.state, closed.origin) == (RegionState.CLOSED, move)
        assert lines[0] == "ordered to open 1 regions, cause e4-1"
        assert lines[-1] == "ordered to close 1 regions, cause e4-2"

    def test_a_region_that_the_store_knows_elsewhere_is_not_closed_here(self) -> None:
        """RT-26: only the server that has the region open creates CLOSING."""
        self.host.open_regions(self.orders(1), 4, 5000)
        self.settle()
        del self.store.znodes[PATHS.transition("r0", 0)]
        moved = RegionRecord("t", "r0", replicas=(ReplicaLocation(0, "other", 1),))
        self.store.znodes[PATHS.region("t", "r0")] = (znodes.encode(moved), 7)
        answer = self.host.close_regions([CloseOrder("r0", "t", 0)], 4, 5000)
        self.settle()
        assert self.outcomes(answer) == [OrderOutcome.REFUSED]
        assert PATHS.transition("r0", 0) not in self.store.znodes

    def test_lost_answers_are_settled_by_reading(self) -> None:
        """The claims were made, the answers lost, and the first reads found no connection either."""
        answer = self.host.open_regions(self.orders(3), 4, 5000)
        self.reactor.advance(0)
        self.store.is_cut = True
        self.store.let_through(lose_answers=True)
        assert self.opener.opened == []
        self.store.is_cut = False
        self.reactor.advance(host_module.READ_AGAIN_S)
        self.settle()
        assert set(self.outcomes(answer)) == {OrderOutcome.DONE}

    def test_an_answer_in_time_says_started(self) -> None:
        """The master asks again for the rest, and gets the result."""
        orders = self.orders(2)
        answer = self.host.open_regions(orders, 4, 1000)
        self.assertNoResult(answer)
        self.reactor.advance(1.0)
        assert self.outcomes(answer) == [OrderOutcome.STARTED] * 2
        again = self.host.open_regions(orders, 4, 1000)
        self.settle()
        assert self.outcomes(again) == [OrderOutcome.DONE] * 2
        assert self.opener.opened.count("r0") == 1

    def test_an_opener_that_fails_fails_its_region_alone(self) -> None:
        """Any exception becomes one line for the master; the store has OPENING, and the other regions open."""

        def on_open(opening: Opening) -> None:
            if opening.region.region_id == "r1":
                raise ValueError("bad superblock\nwith details")

        self.opener.on_open = on_open
        lines: list[str] = []
        listen = lines_of(lines)
        globalLogPublisher.addObserver(listen)
        self.addCleanup(globalLogPublisher.removeObserver, listen)
        answer = self.host.open_regions(self.orders(3), 4, 5000)
        self.settle()
        assert any("Traceback" in line and "in on_open" in line and "with details" in line for line in lines)
        results = self.successResultOf(answer).results
        assert [result.outcome for result in results] == [OrderOutcome.DONE, OrderOutcome.FAILED, OrderOutcome.DONE]
        assert results[1].error == "bad superblock"
        assert self.state("r1") is RegionState.OPENING
        assert [one.state for one in self.host.hosted()] == ["OPEN", "FAILED", "OPEN"]

    def test_regions_that_cannot_be_prepared_together_are_prepared_alone(self) -> None:
        """One bad region must not fail the others of its batch."""

        def on_prepare(openings: Sequence[Opening]) -> None:
            if any(opening.region.region_id == "r1" for opening in openings):
                raise OSError("no space")

        self.opener.on_prepare = on_prepare
        answer = self.host.open_regions(self.orders(3), 4, 5000)
        self.settle()
        assert self.outcomes(answer) == [OrderOutcome.DONE, OrderOutcome.FAILED, OrderOutcome.DONE]

    def test_progress_from_a_worker_thread_extends_the_deadline(self) -> None:
        """The callback may be called on the opener's thread."""
        orders = self.orders(1)
        quick = OpenOrder(orders[0].transition, 3, orders[0].region, 1, open_timeout_ms=0)
        self.opener.on_open = lambda opening: opening.progress()
        self.host.open_regions([quick], 4, 5000)
        self.settle()
        assert self.store.znodes[PATHS.transition("r0", 0)][1] == 6
        assert self.state("r0") is RegionState.OPENED

    def test_close_goes_through_closing_to_closed(self) -> None:
        """RT-16."""
        self.opened(2)
        for number in range(2):
            del self.store.znodes[PATHS.transition(f"r{number}", 0)]
        self.store.znodes[PATHS.epoch] = (b"", 5)
        answer = self.host.close_regions([CloseOrder(f"r{number}", "t", 0) for number in range(2)], 5, 5000)
        self.settle()
        assert self.outcomes(answer) == [OrderOutcome.DONE] * 2
        assert self.state("r0") is RegionState.CLOSED
        assert sorted(self.opener.closed) == ["r0", "r1"]

    def test_a_dead_holder_is_evicted_a_living_one_is_not(self) -> None:
        """The store shows whether the holder is registered."""
        alive, dead = Incarnation("alive", 1), Incarnation("dead", 1)
        record = ServerRecord("alive", "h", 1, 1)
        self.store.znodes[PATHS.server("alive")] = (znodes.encode(record), 0)

        def on_open(opening: Opening) -> None:
            holder = alive if opening.region.region_id == "r0" else dead
            if opening.evict != holder:
                raise OwnerHeld(holder)

        self.opener.on_open = on_open
        answer = self.host.open_regions(self.orders(2), 4, 5000)
        self.settle()
        assert self.outcomes(answer) == [OrderOutcome.FAILED, OrderOutcome.DONE]
        assert self.opener.evicted == [dead]

    def test_the_end_of_a_session_closes_everything_and_writes_nothing(self) -> None:
        """Also pending steps; then a new incarnation can begin."""
        self.opened(3)
        on_their_way = self.host.open_regions(self.orders(3, first=10), 4, 5000)
        self.reactor.advance(0)
        before = dict(self.store.znodes)
        emptied = self.host.end()
        self.work()
        self.successResultOf(emptied)
        assert sorted(self.opener.closed) == ["r0", "r1", "r2"]
        assert self.outcomes(on_their_way) == [OrderOutcome.FAILED] * 3
        self.store.let_through()
        self.store.znodes = before
        self.host.begin(Incarnation("me", 8), self.store)
        assert self.host.phases()[Phase.OPEN] == 0

    def test_a_region_that_does_not_close_after_the_session_ends_the_process(self) -> None:
        """Its files belong to another server by now."""
        self.opened(1)

        def on_close(region_id: str) -> None:
            raise OSError("busy")

        self.opener.on_close = on_close
        emptied = self.host.end()
        self.work()
        self.assertNoResult(emptied)
        assert len(self.stopped) == 1
        assert "busy" in self.stopped[0]

    def test_serving_is_told_once_per_change(self) -> None:
        """The opener is notified of the lease."""
        for is_serving in (True, True, False, True):
            self.host.set_serving(is_serving)
        assert self.opener.serving == [True, False, True]

    def test_a_corrupt_znode_holds_its_own_region_only(self) -> None:
        """The region of the corrupt znode is not opened and waits for an operator. The other regions continue."""
        orders = self.orders(2)
        self.store.znodes[PATHS.transition("r0", 0)] = (b"{", 9)
        self.host.open_regions(orders, 4, 5000)
        self.settle()
        assert self.opener.opened == ["r1"]
        assert self.host.phases()[Phase.CLAIMING] == 1
        assert self.stopped == []

    def test_a_broken_rule_of_our_own_ends_the_process(self) -> None:
        """Such a fault is never just logged."""

        def broken(*_arguments: object) -> None:
            raise AssertionError("impossible")

        self.host.open_regions(self.orders(1), 4, 5000)
        self.reactor.advance(0)
        self.patch(self.host._clock, "wall_ms", broken)
        self.store.let_through()
        assert len(self.stopped) == 1
        assert len(self.flushLoggedErrors(AssertionError)) == 1


class WorkersTests(SynchronousTestCase):
    """The pool alone."""

    def test_results_of_many_jobs_come_in_few_deliveries(self) -> None:
        """While a delivery is due, results are collected."""
        reactor = FakeReactor()
        delivered: list[int] = []
        results: list[Any] = []
        pool = workers_module.Workers(reactor, 1, lambda: delivered.append(len(results)), self.fail)
        for number in range(100):
            pool.submit(lambda number=number: number, results.append)
        assert pool.stop(5.0)
        for call in reactor.from_threads:
            call()
        assert results == list(range(100))
        assert len(delivered) == 1

    def test_an_exception_is_a_result(self) -> None:
        """The owner of the job gets it; the thread continues."""
        reactor = FakeReactor()
        results: list[Any] = []
        pool = workers_module.Workers(reactor, 1, lambda: None, self.fail)

        def fails() -> None:
            raise KeyError("x")

        pool.submit(fails, results.append)
        pool.submit(lambda: 1, results.append)
        assert pool.stop(5.0)
        for call in reactor.from_threads:
            call()
        assert isinstance(results[0], KeyError)
        assert results[1] == 1
        assert pool.pending == 0
