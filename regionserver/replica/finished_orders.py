"""The ends of orders, kept for masters that send an order again.

A master asks again when the answer to its order was lost, or when it has just become active. A failed open is also
shown to the operator for a while.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from regions.messages import HostedReplica, OrderResult
from regionserver.replica.effects import Key
from regionserver.replica.local_replica import OrderId

#: Ends of orders that are kept; the oldest go first. Some 10 MB.
FINISHED_MAX: Final = 20_000


class FinishedOrder(NamedTuple):
    """The end of an order whose replica is not on this server any more."""

    #: None for a CLOSE order.
    order_id: OrderId | None
    result: OrderResult
    #: The failed open as `rk` shows it; None for a CLOSE order.
    hosted: HostedReplica | None


class FinishedOrders:
    """The latest end of an order for each replica that is not on this server."""

    def __init__(self) -> None:
        #: By replica, oldest first.
        self.kept: dict[Key, FinishedOrder] = {}

    def opens(self, key: Key, order_id: OrderId | None = None) -> OrderResult | None:
        """Return how an OPEN order ended; None if that is not known. `order_id`: this order only, not any."""
        past = self.kept.get(key)
        if past is None or past.order_id is None or order_id not in (None, past.order_id):
            return None
        return past.result

    def closes(self, key: Key) -> OrderResult | None:
        """Return how the last CLOSE order ended; None if that is not known."""
        past = self.kept.get(key)
        return None if past is None or past.order_id is not None else past.result

    def keep(self, key: Key, past: FinishedOrder) -> None:
        """Remember the end of an order; forget the oldest one beyond FINISHED_MAX."""
        assert (past.result.region_id, past.result.replica) == key, f"{past.result} is not about {key}"
        self.kept.pop(key, None)
        self.kept[key] = past
        if len(self.kept) > FINISHED_MAX:
            del self.kept[next(iter(self.kept))]
        assert len(self.kept) <= FINISHED_MAX, f"{len(self.kept)} ended orders are kept"

    def forget(self, key: Key) -> None:
        """Forget about one replica: a new order has begun."""
        self.kept.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self.kept.clear()

    def failures(self) -> list[HostedReplica]:
        """Return the failed opens, oldest first."""
        return [past.hosted for past in self.kept.values() if past.hosted is not None]

    def forget_failures(self, before_ms: int) -> None:
        """Forget failed opens from before `before_ms`."""
        old = [key for key, past in self.kept.items() if past.hosted is not None and past.hosted.since_ms < before_ms]
        for key in old:
            del self.kept[key]
