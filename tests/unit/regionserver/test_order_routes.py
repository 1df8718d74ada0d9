"""Orders for tablets and for shared regions in one request: each goes to its receiver, with results in the orders'
order."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from regions.messages import (
    CloseOrder,
    ClosePurpose,
    OpenOrder,
    OrderOutcome,
    OrderResult,
    OrderResults,
    TabletClosing,
    TabletOpening,
)
from regions.records.model import RegionRecord, RegionState, TransitionRecord
from regionserver.order_routes import NO_TABLETS, OrderRoutes


def open_order(region_id: str, *, is_tablet: bool) -> OpenOrder:
    record = TransitionRecord(region_id, "t", 1, RegionState.OFFLINE)
    return OpenOrder(record, 0, RegionRecord("t", region_id), 0, tablet=TabletOpening(()) if is_tablet else None)


class Receiver:
    """Answers at once, or when the test says so."""

    def __init__(self, error: str) -> None:
        self.error = error
        self.held: Deferred[None] | None = None

    def open_regions(self, orders: Any, epoch: int, within_ms: int) -> Deferred[OrderResults]:
        assert (epoch, within_ms) == (4, 5_000)
        keys = [(order.transition.region_id, order.transition.replica) for order in orders]
        return self._answer(keys)

    def close_regions(self, orders: Any, epoch: int, within_ms: int) -> Deferred[OrderResults]:
        assert (epoch, within_ms) == (4, 5_000)
        return self._answer([(order.region_id, order.replica) for order in orders])

    def _answer(self, keys: list[tuple[str, int]]) -> Deferred[OrderResults]:
        results = OrderResults([OrderResult(*key, OrderOutcome.DONE, error=self.error) for key in keys])
        if self.held is None:
            return succeed(results)
        answer: Deferred[OrderResults] = Deferred()
        self.held.addCallback(lambda _: answer.callback(results))
        return answer


class OrderRoutesTest(SynchronousTestCase):
    """A server with both receivers, and one without tablets."""

    def setUp(self) -> None:
        self.shared, self.tablets = Receiver("shared"), Receiver("tablet")
        self.routes = OrderRoutes(self.shared, self.tablets)  # type: ignore[arg-type]

    def test_mixed_orders_reach_their_receivers_and_keep_their_order(self) -> None:
        kinds = [True, False, True, False]
        self.tablets.held = Deferred()
        orders = [open_order(f"r{at}", is_tablet=kind) for at, kind in enumerate(kinds)]
        answer = self.routes.open_regions(orders, 4, 5_000)
        self.assertNoResult(answer)
        self.tablets.held.callback(None)
        results = self.successResultOf(answer).results
        assert [one.region_id for one in results] == ["r0", "r1", "r2", "r3"]
        assert [one.error for one in results] == ["tablet", "shared", "tablet", "shared"]

    def test_orders_of_one_kind_reach_only_its_receiver(self) -> None:
        for kind, word in ((True, "tablet"), (False, "shared")):
            answer = self.routes.open_regions([open_order("r", is_tablet=kind)], 4, 5_000)
            assert [one.error for one in self.successResultOf(answer).results] == [word]
        answer = self.routes.close_regions(
            [CloseOrder("a", "t", 0), CloseOrder("b", "t", 2, tablet=TabletClosing(ClosePurpose.REST))], 4, 5_000
        )
        assert [one.error for one in self.successResultOf(answer).results] == ["shared", "tablet"]
        assert self.successResultOf(self.routes.open_regions([], 4, 5_000)).results == []

    def test_a_server_without_tablets_rejects_orders_for_tablets(self) -> None:
        routes = OrderRoutes(self.shared, None)  # type: ignore[arg-type]
        answer = routes.open_regions([open_order("r", is_tablet=True), open_order("s", is_tablet=False)], 4, 5_000)
        tablet, shared = self.successResultOf(answer).results
        assert (tablet.outcome, tablet.error) == (OrderOutcome.FAILED, NO_TABLETS)
        assert shared.outcome is OrderOutcome.DONE
