"""Results of finished orders, kept for masters that repeat an order.

A master repeats an order if the reply was lost, or after it has become active. A failed open is also shown to the
operator for a while.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from regions.messages import HostedReplica, OrderResult
from regionserver.replica.effects import Key
from regionserver.replica.local_replica import OrderId

#: Results that are kept, the latest ones; some 10 MB.
FINISHED_MAX: Final = 20_000


class FinishedOrder(NamedTuple):
    """The result of an order whose replica is no longer on this server."""

    #: None for a CLOSE order.
    order_id: OrderId | None
    result: OrderResult
    #: The failed open, as `rk` shows it; None for a CLOSE order.
    hosted: HostedReplica | None


class FinishedOrders:
    """The latest result of an order for each replica that is not on this server."""

    def __init__(self) -> None:
        #: Results by replica, oldest first.
        self.kept: dict[Key, FinishedOrder] = {}

    def opens(self, key: Key, order_id: OrderId | None = None) -> OrderResult | None:
        """Return the result of the last OPEN order, or None. With `order_id`: of this order only."""
        past = self.kept.get(key)
        if past is None or past.order_id is None or order_id not in (None, past.order_id):
            return None
        return past.result

    def closes(self, key: Key) -> OrderResult | None:
        """Return the result of the last CLOSE order, or None."""
        past = self.kept.get(key)
        return None if past is None or past.order_id is not None else past.result

    def keep(self, key: Key, past: FinishedOrder) -> None:
        """Keep a result; drop the oldest one beyond FINISHED_MAX."""
        assert (past.result.region_id, past.result.replica) == key, f"{past.result} does not belong to {key}"
        self.kept.pop(key, None)
        self.kept[key] = past
        if len(self.kept) > FINISHED_MAX:
            del self.kept[next(iter(self.kept))]
        assert len(self.kept) <= FINISHED_MAX, f"{len(self.kept)} results are kept"

    def forget(self, key: Key) -> None:
        """Drop the result of one replica: a new order has begun."""
        self.kept.pop(key, None)

    def clear(self) -> None:
        """Drop all results."""
        self.kept.clear()

    def failures(self) -> list[HostedReplica]:
        """Return the failed opens, oldest first."""
        return [past.hosted for past in self.kept.values() if past.hosted is not None]

    def forget_failures(self, before_ms: int) -> None:
        """Drop failed opens older than `before_ms`."""
        old = [key for key, past in self.kept.items() if past.hosted is not None and past.hosted.since_ms < before_ms]
        for key in old:
            del self.kept[key]
