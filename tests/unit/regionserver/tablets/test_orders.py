"""Orders for tablets' replicas, with the store and the files answering when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from coord.env_os import OsClock
from regions.messages import CloseOrder, OpenOrder, OrderOutcome, OrderResults
from regions.messages.heartbeat import ReplicaState
from regions.messages.server import ClosePurpose, MemberEndpoint, TabletClosing, TabletOpening
from regions.records import znodes
from regions.records.members import Member
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord
from regions.replication.guards import ReplicaOnDisk
from regionserver.metrics import Metrics
from regionserver.order_routes import split_orders
from regionserver.tablets.order_plans import Stage
from regionserver.tablets.orders import CLOSE_AGAIN_S, TabletOrders
from tests.unit.regionserver.replica.memory_store import PATHS, FakeReactor, MemoryStore

ME = Incarnation("me", 7)
LATER = Incarnation("me", 8)
MEMBERS = tuple(MemberEndpoint(number, uuid, "h", 1) for number, uuid in ((1, "me"), (2, "you"), (3, "her")))


class Files:
    """A host of tablets whose work waits for the test."""

    def __init__(self) -> None:
        self.there: dict[str, ReplicaOnDisk] = {}
        self.done: list[tuple[str, str]] = []
        self.batches: list[int] = []
        self.wrong: dict[str, str] = {}
        self.held: list[Deferred[list[str]]] = []
        self.is_slow = False

    def local(self, tablet: str) -> ReplicaOnDisk | None:
        return self.there.get(tablet)

    def make(self, orders: Sequence[OpenOrder]) -> Deferred[list[str]]:
        self.batches.append(len(orders))
        answer: list[str] = []
        for order in orders:
            tablet = order.region.region_id
            why = self.wrong.get(tablet, "")
            if not why:
                self.done.append((tablet, "make"))
                self.there[tablet] = ReplicaOnDisk(order.transition.replica, ReplicaState.ASLEEP)
            answer.append(why)
        if self.is_slow:
            held: Deferred[list[str]] = Deferred()
            held.addCallback(lambda _: answer)
            self.held.append(held)
            return held
        return succeed(answer)

    def begin(self, tablet: str) -> Deferred[str]:
        self.done.append((tablet, "begin"))
        self.there[tablet] = self.there[tablet]._replace(state=ReplicaState.RUNNING)
        return succeed("")

    def close(self, tablet: str, stage: Stage) -> Deferred[str]:
        why = self.wrong.get(tablet, "")
        if not why:
            self.done.append((tablet, stage.name))
            if stage is Stage.DELETE:
                del self.there[tablet]
            else:
                state = ReplicaState.RESTING if stage is Stage.REST else ReplicaState.TOMBSTONE
                self.there[tablet] = self.there[tablet]._replace(state=state)
        return succeed(why)


class TabletOrdersTest(SynchronousTestCase):
    """One server, `me`, with its store."""

    def setUp(self) -> None:
        self.reactor = FakeReactor()
        self.store = MemoryStore()
        self.files = Files()
        self.faults: list[Any] = []
        self.host: Files | None = self.files
        self.orders = TabletOrders(self.reactor, OsClock(), lambda: self.host, PATHS, Metrics(), self.faults.append)
        self.orders.begin(ME, self.store)

    def tearDown(self) -> None:
        assert not self.faults, self.faults

    def put_offline(self, region_id: str = "r1", to: Incarnation = ME, *, begun: bool = False) -> OpenOrder:
        """Write region and OFFLINE as a master does; return the order."""
        members = tuple(Member(one.number, one.uuid) for one in MEMBERS)
        region = RegionRecord("t", region_id, members=members, next_number=4)
        record = TransitionRecord(region_id, "t", 1, RegionState.OFFLINE, destination=to, epoch=4, begun=begun)
        record = replace(record, attempt=int(begun))
        self.store.znodes[PATHS.region("t", region_id)] = (znodes.encode(region), 5)
        self.store.znodes[PATHS.transition(region_id, 1)] = (znodes.encode(record), 0)
        return OpenOrder(record, 0, region, 5, tablet=TabletOpening(MEMBERS, must_exist=begun))

    def open(self, *orders: OpenOrder, within_ms: int = 5_000) -> Deferred[OrderResults]:
        return self.orders.open_regions(list(orders), 4, within_ms)

    def close(self, purpose: ClosePurpose, region_id: str = "r1", number: int = 1) -> Deferred[OrderResults]:
        return self.orders.close_regions([CloseOrder(region_id, "t", number, tablet=TabletClosing(purpose))], 4, 5_000)

    def run_store(self, times: int = 6, **how: bool) -> None:
        """Let everything happen that needs no time to pass."""
        for _ in range(times):
            self.reactor.advance(0)
            self.store.let_through(**how)
            self.reactor.advance(0)

    def state(self, region_id: str = "r1") -> RegionState | None:
        found = self.store.znodes.get(PATHS.transition(region_id, 1))
        return None if found is None else znodes.decode_transition(found[0], "").state

    def result(self, answer: Deferred[OrderResults]) -> tuple[OrderOutcome, str]:
        (one,) = self.successResultOf(answer).results
        return one.outcome, one.error

    def test_a_first_replica_is_claimed_made_and_announced(self) -> None:
        """OPENING is in the store before any file is made; OPENED once the replica takes part."""
        answer = self.open(self.put_offline())
        self.reactor.advance(0)
        assert self.files.done == []
        self.store.let_through()
        assert self.state() is RegionState.OPENING
        self.run_store()
        assert self.state() is RegionState.OPENED
        assert self.files.done == [("r1", "make"), ("r1", "begin")]
        assert self.result(answer) == (OrderOutcome.DONE, "")
        found = znodes.decode_transition(self.store.znodes[PATHS.transition("r1", 1)][0], "")
        assert (found.destination, len(found.took), found.deadline_ms) == (ME, 2, 0)

    def test_many_are_made_together(self) -> None:
        """A hundred orders: one multi of OPENING, one batch of files, one multi of OPENED."""
        answer = self.open(*(self.put_offline(f"r{at}") for at in range(100)))
        self.run_store()
        assert {one.outcome for one in self.successResultOf(answer).results} == {OrderOutcome.DONE}
        assert self.files.batches == [100]
        assert len(self.store.sizes) == 2

    def test_a_lost_claim_makes_nothing(self) -> None:
        """The region was replaced while the order was in flight: a file now would be an unknown voter."""
        order = self.put_offline()
        del self.store.znodes[PATHS.transition("r1", 1)]
        answer = self.open(order)
        self.run_store()
        assert self.result(answer)[0] is OrderOutcome.REFUSED
        assert self.files.done == []

    def test_a_changed_region_is_no_reason_to_refuse(self) -> None:
        """The leader of two members was written into the record while the third member's order was in flight."""
        order = self.put_offline()
        self.store.znodes[PATHS.region("t", "r1")] = (znodes.encode(order.region), 6)
        answer = self.open(order)
        self.run_store()
        assert self.result(answer) == (OrderOutcome.DONE, "")

    def test_a_number_that_left_the_region_is_refused(self) -> None:
        order = self.put_offline()
        fewer = RegionRecord("t", "r1", members=(Member(2, "you"),), next_number=4)
        self.store.znodes[PATHS.region("t", "r1")] = (znodes.encode(fewer), 6)
        answer = self.open(order)
        self.run_store()
        assert self.result(answer)[0] is OrderOutcome.REFUSED
        assert self.files.done == []

    def test_another_transition_at_the_same_version_is_refused(self) -> None:
        """After a deletion and a new creation versions begin anew, so the record itself is compared."""
        order = self.put_offline()
        self.store.znodes[PATHS.region("t", "r1")] = (znodes.encode(order.region), 6)
        record = TransitionRecord("r1", "t", 1, RegionState.OFFLINE, destination=ME, epoch=4, since_ms=9)
        self.store.znodes[PATHS.transition("r1", 1)] = (znodes.encode(record), 0)
        answer = self.open(order)
        self.run_store()
        assert self.result(answer)[0] is OrderOutcome.REFUSED
        assert self.files.done == []

    def test_steps_whose_replies_were_lost_are_read_back(self) -> None:
        """Each step is in the store although its answer was lost: it is read back, and no step is taken twice."""
        answer = self.open(self.put_offline())
        self.run_store(lose_answers=True)
        assert self.result(answer) == (OrderOutcome.DONE, "")
        assert self.files.done == [("r1", "make"), ("r1", "begin")]

    def test_a_replaced_master_is_fenced(self) -> None:
        order = self.put_offline()
        self.store.znodes[PATHS.epoch] = (b"", 5)
        answer = self.open(order)
        self.run_store(12)
        assert self.result(answer)[0] is OrderOutcome.REFUSED
        assert self.files.done == []

    def test_a_repeated_order_joins(self) -> None:
        order = self.put_offline()
        self.files.is_slow = True
        first, second = self.open(order, within_ms=0), self.open(order)
        self.run_store()
        assert self.result(first)[0] is OrderOutcome.STARTED
        self.assertNoResult(second)
        self.files.held.pop().callback([])
        self.run_store()
        assert self.result(second) == (OrderOutcome.DONE, "")
        assert self.result(self.open(order)) == (OrderOutcome.DONE, "")
        assert self.files.batches == [1]

    def test_a_replica_that_could_not_be_made_has_failed(self) -> None:
        """Also for a master that reads OPENING and repeats the order. A later order is rejected: the number cannot be
        used again."""
        order = self.put_offline()
        self.files.wrong["r1"] = "no space left on device"
        answer = self.open(order)
        self.run_store()
        assert self.result(answer) == (OrderOutcome.FAILED, "no space left on device")
        data, version = self.store.znodes[PATHS.transition("r1", 1)]
        opening = OpenOrder(znodes.decode_transition(data, ""), version, order.region, 5, tablet=order.tablet)
        assert self.result(self.open(opening)) == (OrderOutcome.FAILED, "no space left on device")
        assert [one.region_id for one in self.orders.failures()] == ["r1"]
        assert self.result(self.open(self.put_offline(begun=True)))[0] is OrderOutcome.REFUSED

    def test_an_order_with_must_exist_makes_no_replica(self) -> None:
        answer = self.open(self.put_offline(begun=True))
        outcome, why = self.result(answer)
        assert outcome is OrderOutcome.REFUSED
        assert "no memory of a number" in why
        assert (self.files.done, self.state()) == ([], RegionState.OFFLINE)

    def test_the_session_ends_between_opening_and_opened(self) -> None:
        """The files are finished and kept; the next start's order finds them and only announces them."""
        self.files.is_slow = True
        lost = self.open(self.put_offline())
        self.run_store()
        self.orders.end()
        self.orders.begin(LATER, self.store)
        again = self.put_offline(to=LATER, begun=True)
        early = self.open(again)
        assert self.result(early)[0] is OrderOutcome.STARTED, "the files are still being made"
        self.files.held.pop().callback([])
        self.run_store()
        answer = self.open(again)
        self.run_store()
        assert self.result(answer) == (OrderOutcome.DONE, "")
        assert self.state() is RegionState.OPENED
        self.assertNoResult(lost)
        assert self.files.done == [("r1", "make"), ("r1", "begin"), ("r1", "begin")], "made once"
        self.reactor.advance(10)
        assert self.result(lost)[0] is OrderOutcome.STARTED

    def test_the_end_of_a_session_touches_no_replica(self) -> None:
        self.open(self.put_offline())
        self.run_store()
        done = list(self.files.done)
        self.orders.end()
        self.run_store()
        assert self.files.done == done
        assert self.result(self.open(self.put_offline()))[0] is OrderOutcome.STARTED

    def test_orders_before_the_start_of_the_host_are_sent_again(self) -> None:
        """The master sends the order again; nothing was decided."""
        self.host = None
        assert self.result(self.open(self.put_offline()))[0] is OrderOutcome.STARTED
        assert self.result(self.close(ClosePurpose.REST))[0] is OrderOutcome.STARTED

    def test_a_close_writes_closing_closes_the_files_and_writes_closed(self) -> None:
        """CLOSING, then the files, then CLOSED; each purpose has its own work."""
        for purpose, stage in (
            (ClosePurpose.REST, "REST"),
            (ClosePurpose.TOMBSTONE, "REMOVE"),
            (ClosePurpose.DELETE, "DELETE"),
        ):
            self.files.there["r1"] = ReplicaOnDisk(1, ReplicaState.RUNNING)
            answer = self.close(purpose)
            self.run_store()
            assert self.result(answer) == (OrderOutcome.DONE, "")
            assert self.files.done.pop() == ("r1", stage)
            assert self.state() is RegionState.CLOSED
            del self.store.znodes[PATHS.transition("r1", 1)]
        assert self.result(self.close(ClosePurpose.DELETE)) == (OrderOutcome.DONE, "done already")

    def test_a_replica_that_does_not_close_is_closed_later(self) -> None:
        """CLOSING is in the store, and no master repeats the order."""
        self.files.there["r1"] = ReplicaOnDisk(1, ReplicaState.RUNNING)
        self.files.wrong["r1"] = "a read hangs"
        answer = self.close(ClosePurpose.REST)
        self.run_store()
        assert self.state() is RegionState.CLOSING
        del self.files.wrong["r1"]
        self.reactor.advance(CLOSE_AGAIN_S)
        self.run_store()
        assert self.files.done == [("r1", "REST")]
        assert self.state() is RegionState.CLOSED
        assert self.result(answer) == (OrderOutcome.DONE, "")

    def test_orders_are_split_by_kind_of_region(self) -> None:
        tablet = self.put_offline()
        shared = OpenOrder(tablet.transition, 0, tablet.region, 5)
        assert split_orders([tablet, shared, tablet]) == ([1], [0, 2])
