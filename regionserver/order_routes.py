"""Routes orders: those for tablets' replicas to the tablets, all others to the machine of shared regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults

from coord.rpc.wire import RpcError
from regions.messages import (
    STALE_EPOCH,
    WRONG_CLUSTER,
    WRONG_SERVER,
    AlterRegions,
    ChangeConfig,
    CloseOrder,
    CloseRegions,
    ConfigChanged,
    FindSplitKey,
    OpenOrder,
    OpenRegions,
    OrderOutcome,
    OrderResult,
    OrderResults,
    PrepareRows,
    PurgeTable,
    ReshardingOrder,
    ReviewReplicas,
    SealTablet,
    TabletSealed,
    TransferLeadership,
)
from regions.records.model import Incarnation
from regionserver.replica.host import Host
from regionserver.storage.resharding import ReshardingService
from regionserver.tablets.messages import NO_REPLICA
from regionserver.tablets.orders import key_of
from regionserver.tablets.server_tablets import ServerTablets

_Order = TypeVar("_Order", OpenOrder, CloseOrder)
_Accept = Callable[[list[_Order], int, int], Deferred[OrderResults]]

NO_TABLETS = "this server takes no tablets: it has no peer address"


#: Requests that only the latest master may send, and only to this incarnation.
Command = (
    OpenRegions
    | CloseRegions
    | AlterRegions
    | ReviewReplicas
    | PurgeTable
    | ChangeConfig
    | SealTablet
    | ReshardingOrder
)


def objection(command: Command, me: Incarnation, cluster_id: str, epoch: int) -> tuple[str, str]:
    """Return code and reason why a command is not for this incarnation of this server, two empty texts if it is.

    `cluster_id` and `epoch` are those that the server knows.
    """
    if (command.recipient, command.start_code) != (me.uuid, me.start_code):
        return WRONG_SERVER, f"this server is {me}, not {Incarnation(command.recipient, command.start_code)}"
    # A server without a cluster id has just registered here, so no master of another cluster knows its start code.
    if cluster_id and command.cluster != cluster_id:
        return (
            WRONG_CLUSTER,
            f"this server belongs to cluster {cluster_id}, but the order comes from {command.cluster!r}",
        )
    if command.epoch < epoch:
        return STALE_EPOCH, f"epoch {command.epoch} has ended, epoch {epoch} is current"
    return "", ""


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

    def change_tablet(self, request: ChangeConfig | SealTablet) -> Deferred[ConfigChanged] | Deferred[TabletSealed]:
        """Change a member of a tablet, or its seal. Raise RpcError, or fire with one, if no replica runs here."""
        tablets = self._with_tablets()
        return tablets.seal(request) if isinstance(request, SealTablet) else tablets.change_members(request)

    def reshard(self, request: ReshardingOrder, shared: ReshardingService) -> Deferred[msgspec.Struct]:
        """Carry out an order about a split or merge. `shared` carries out an order about shared regions. Both may fail
        with RpcError."""
        if isinstance(request, FindSplitKey) and self._tablets is not None and self._tablets.has(request.region_id):
            return ensureDeferred(self._tablets.split_key(request.region_id))
        if isinstance(request, PrepareRows) and self._tablets is not None and self._tablets.has(request.parents[0]):
            return ensureDeferred(self._tablets.prepare(request))
        return ensureDeferred(shared.answer(request))

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


def split_orders(orders: Sequence[OpenOrder | CloseOrder]) -> tuple[list[int], list[int]]:
    """Return the places of the orders for shared regions, and of those for tablets."""
    shared: list[int] = []
    tablets: list[int] = []
    for at, order in enumerate(orders):
        (shared if order.tablet is None else tablets).append(at)
    return shared, tablets
