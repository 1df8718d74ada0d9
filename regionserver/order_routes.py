"""Routes orders: those for tablets' replicas to the tablets, all others to the machine of shared regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from twisted.internet.defer import Deferred, gatherResults

from coord.rpc.wire import RpcError
from regions.messages import (
    ChangeConfig,
    CloseOrder,
    ConfigChanged,
    OpenOrder,
    OrderOutcome,
    OrderResult,
    OrderResults,
    TransferLeadership,
)
from regionserver.replica.host import Host
from regionserver.tablets.messages import NO_REPLICA
from regionserver.tablets.orders import key_of, split_orders
from regionserver.tablets.server_tablets import ServerTablets

_Order = TypeVar("_Order", OpenOrder, CloseOrder)
_Accept = Callable[[list[_Order], int, int], Deferred[OrderResults]]

NO_TABLETS = "this server takes no tablets: it has no peer address"


class OrderRoutes:
    """The two receivers of orders. Each method fires with a result for each order, in their order."""

    def __init__(self, host: Host, tablets: ServerTablets | None) -> None:
        self._host = host
        self._tablets = tablets

    def open_regions(self, orders: list[OpenOrder], epoch: int, answer_within_ms: int) -> Deferred[OrderResults]:
        """Accept OPEN orders."""
        of_tablets = None if self._tablets is None else self._tablets.open_regions
        return _route(orders, epoch, answer_within_ms, self._host.open_regions, of_tablets)

    def close_regions(self, orders: list[CloseOrder], epoch: int, answer_within_ms: int) -> Deferred[OrderResults]:
        """Accept CLOSE orders."""
        of_tablets = None if self._tablets is None else self._tablets.close_regions
        return _route(orders, epoch, answer_within_ms, self._host.close_regions, of_tablets)

    def change_members(self, change: ChangeConfig) -> Deferred[ConfigChanged]:
        """Change a member of a tablet. Raise RpcError, or fire with one, if no replica runs here."""
        return self._with_tablets().change_members(change)

    def transfer(self, request: TransferLeadership) -> ConfigChanged:
        """Hand the leadership of a tablet over. Raise RpcError if no replica runs here."""
        return self._with_tablets().transfer(request)

    def _with_tablets(self) -> ServerTablets:
        if self._tablets is None:
            raise RpcError(NO_REPLICA, NO_TABLETS)
        return self._tablets


def _route(
    orders: list[_Order],
    epoch: int,
    answer_within_ms: int,
    shared: _Accept[_Order],
    tablets: Callable[[Sequence[_Order], int, int], Deferred[OrderResults]] | None,
) -> Deferred[OrderResults]:
    of_shared, of_tablets = split_orders(orders)
    if not of_tablets:
        return shared(orders, epoch, answer_within_ms)
    theirs = [orders[at] for at in of_tablets]
    if tablets is None:
        failed = [OrderResult(*key_of(order), OrderOutcome.FAILED, error=NO_TABLETS) for order in theirs]
        answered: Deferred[OrderResults] = Deferred()
        answered.callback(OrderResults(failed))
    else:
        answered = tablets(theirs, epoch, answer_within_ms)
    if not of_shared:
        return answered
    both = [shared([orders[at] for at in of_shared], epoch, answer_within_ms), answered]

    def merged(parts: list[OrderResults]) -> OrderResults:
        found = {
            at: result
            for places, part in zip((of_shared, of_tablets), parts, strict=True)
            for at, result in zip(places, part.results, strict=True)
        }
        return OrderResults([found[at] for at in range(len(orders))])

    return gatherResults(both, consumeErrors=True).addCallback(merged)
