"""Orders to servers: queued per server, throttled, sent in batches, and kept until the store shows their outcome.

A replica has at most one order. From its first sending until it is dropped, an order holds one of the server's slots.
So a server works on at most `busy_max` orders at once, no matter how many regions it will get. Orders for system tables
go to the front of the queue (RT-05).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import CLOSE, OPEN, Order, Replica, Server
from regions.cluster.state import ClusterState
from regions.cluster.work import OrderState
from regions.messages import CloseOrder, OpenOrder, OrderOutcome, OrderResult
from regions.records.kinds import KV
from regions.records.model import Incarnation, Intent, RegionState

# Members of enums: a compiled module reads its own constant several times as fast.
_CLOSE: Final = Intent.CLOSE
_ORDER_OUTCOME_DONE: Final = OrderOutcome.DONE
_STARTED: Final = OrderOutcome.STARTED
_ORDER_STATE_DONE: Final = OrderState.DONE
_PAUSED: Final = OrderState.PAUSED
_QUEUED: Final = OrderState.QUEUED
_SENT: Final = OrderState.SENT
_OFFLINE: Final = RegionState.OFFLINE


class OrderBook:
    """All orders of one assigner."""

    def __init__(
        self,
        world: ClusterState,
        move_target: Callable[[Replica], Incarnation | None],
        *,
        batch_max: int,
        busy_max: int,
        closes_max: int,
        resend_ms: int,
        resend_max_ms: int,
        open_timeout_ms: int,
    ) -> None:
        """`move_target` chooses the destination of a move when its CLOSE is sent."""
        self._world = world
        self._batch_max = batch_max
        self._busy_max = busy_max
        self._closes_max = closes_max
        self._resend_ms = resend_ms
        self._resend_max_ms = resend_max_ms
        self._open_timeout_ms = open_timeout_ms
        self._batches: dict[int, list[tuple[Replica, Order]]] = {}
        self._next_batch = 1
        #: Servers with something queued, by uuid.
        self.pending: dict[str, Server] = {}
        self._move_target = move_target
        #: Replicas whose order has a time limit: the order was sent, or will be sent later, or a server works on the
        #: transition. All other orders wait for a slot; there may be a million of them.
        self._timed: dict[str, Replica] = {}
        #: Timed replicas that `timed` has not returned yet in this round.
        self._round: list[Replica] = []

    def put(self, replica: Replica, kind: int, server: Server, version: int, when_ms: int, now_ms: int) -> None:
        """Create a replica's order, to be sent at `when_ms` or as soon as a slot is free after that."""
        assert kind in (OPEN, CLOSE), f"an order of kind {kind} for {replica.key}"
        order = Order(kind, server, version, when_ms)
        self._world.set_order(replica, order)
        if when_ms <= now_ms:
            self.enqueue(replica, order)
        self.time(replica)

    def enqueue(self, replica: Replica, order: Order) -> None:
        """Queue the order to be sent, or to be sent again."""
        assert replica.order is order, f"order of {replica.key} was dropped"
        order.move_to(_QUEUED, replica.key)
        server = order.server
        queue = server.opens if order.kind == OPEN else server.closes
        if order.first_sent_ms or replica.region.table.record.system:
            # An order that holds a slot must not wait behind orders that wait for a slot.
            queue.appendleft(replica)
        else:
            queue.append(replica)
        self.pending[server.uuid] = server

    def drop(self, replica: Replica) -> None:
        """Drop the replica's order and free its slot."""
        order = replica.order
        if order is None:
            return
        self._world.set_order(replica, None)
        assert replica.order is None, f"{replica.key} has kept its order"
        if order.first_sent_ms:
            order.server.busy.pop(replica.key, None)
            assert replica.key not in order.server.busy, f"the order of {replica.key} still has a slot"
            if order.server.opens or order.server.closes:
                self.pending[order.server.uuid] = order.server

    def time(self, replica: Replica) -> None:
        """Check the times of the replica's order from now on, unless it only waits for a slot."""
        order = replica.order
        if order is not None and not _only_waits(replica, order):
            self._timed[replica.key] = replica

    @property
    def is_in_round(self) -> bool:
        """True if replicas of the present round of `timed` are left."""
        return bool(self._round)

    def timed(self, most: int) -> Iterator[Replica]:
        """Yield the next replicas, at most `most`, whose orders have a time. Each has its turn in every round."""
        if not self._round:
            self._round = list(self._timed.values())
            self._round.reverse()
        taken = 0
        while self._round and taken < most:
            replica = self._round.pop()
            if replica.order is not None:
                taken += 1
                yield replica
            elif self._timed.get(replica.key) is replica:
                del self._timed[replica.key]

    def dispatch(self, effects: list[fx.Effect], now_ms: int) -> None:
        """Append the batches that can be sent now to `effects`."""
        if not self.pending:
            return
        pending, self.pending = self.pending, {}
        for server in pending.values():
            if self._world.servers.get(server.uuid) is not server:
                continue
            if server.is_ending:  # the fate of its orders is decided soon
                self.pending[server.uuid] = server
                continue
            self._dispatch_closes(server, effects, now_ms)
            self._dispatch_opens(server, effects, now_ms)

    def answered(self, event: ev.OrdersAnswered, now_ms: int) -> Iterator[tuple[Replica, OrderResult]]:
        """Process a reply, and yield the results that belong to current orders.

        An order without a result counts as STARTED, and will be sent again.
        """
        results = {(one.region_id, one.replica): one for one in event.results}
        for replica, order in self._batches.pop(event.batch, []):
            if replica.order is not order:
                continue
            result = results.get((replica.region.record.region_id, replica.number))
            is_done = result is not None and result.outcome is _ORDER_OUTCOME_DONE
            order.move_to(_ORDER_STATE_DONE if is_done else _PAUSED, replica.key)
            order.next_ms = now_ms + min(self._resend_ms << min(order.sends - 1, 10), self._resend_max_ms)
            if result is None:
                continue
            order.is_acknowledged = order.is_acknowledged or result.outcome is _STARTED
            yield replica, result

    def lost(self, batch: int, now_ms: int) -> None:
        """Schedule the orders of a batch without a reply to be sent again, after a growing pause."""
        for replica, order in self._batches.pop(batch, []):
            if replica.order is order:
                order.move_to(_PAUSED, replica.key)
                order.next_ms = now_ms + min(200 << min(order.sends - 1, 10), self._resend_max_ms)

    def validate(self) -> None:
        """Raise AssertionError if a SENT order is in no batch, or if a QUEUED order will never be sent."""
        sent = {id(order) for batch in self._batches.values() for _, order in batch}
        for replica in self._world.active.values():
            order = replica.order
            if order is None:
                continue
            is_awaited = order.state is not _SENT or id(order) in sent
            assert is_awaited, f"order of {replica.key} is SENT, and in no batch"
            is_timed = _only_waits(replica, order) or self._timed.get(replica.key) is replica
            assert is_timed, f"nobody looks at the times of the order of {replica.key}"
            if order.state is _QUEUED:
                # Freeing a slot adds the server to the pending ones.
                will_go_on = order.server.uuid in self.pending or order.server.busy
                assert will_go_on, f"order of {replica.key} is QUEUED, and {order.server.incarnation} is not pending"
            if order.first_sent_ms:
                count = len(order.server.busy)
                assert count <= self._busy_max, f"{order.server.incarnation} works on {count} of {self._busy_max}"

    def _take(self, server: Server, kind: int, now_ms: int) -> list[tuple[Replica, Order]]:
        """Remove and return up to a batch of current orders from the queue, as far as slots allow."""
        queue = server.opens if kind == OPEN else server.closes
        taken: list[tuple[Replica, Order]] = []
        held_back: list[Replica] = []
        slots = self._busy_max - len(server.busy)
        if kind == CLOSE and queue:
            slots = min(slots, self._closes_max - sum(1 for one in server.busy.values() if one.kind == CLOSE))
        while queue and len(taken) < self._batch_max:
            replica = queue[0]
            order = replica.order
            if order is None or order.server is not server or order.kind != kind or order.state is not _QUEUED:
                queue.popleft()
                continue
            if not order.first_sent_ms and slots <= 0:
                break
            queue.popleft()
            if kind == OPEN and not self._may_open(server, replica):
                held_back.append(replica)
                continue
            order.move_to(_SENT, replica.key)
            order.sends += 1
            if not order.first_sent_ms:
                order.first_sent_ms = now_ms
                server.busy[replica.key] = order
                self._timed[replica.key] = replica
                slots -= 1
            taken.append((replica, order))
        queue.extend(held_back)
        assert len(server.busy) <= self._busy_max, f"{server.incarnation} works on {len(server.busy)} orders"
        return taken

    @staticmethod
    def _may_open(server: Server, replica: Replica) -> bool:
        """Return True if the server may get the OPEN order now.

        A server gets only one region at a time whose former server has died (`regions/transitions/hazards.py`).
        """
        if replica.transition is None or not replica.transition.deaths:
            return True
        if server.suspect != replica.key and server.suspect in server.busy:
            return False
        server.suspect = replica.key
        return True

    def _dispatch_opens(self, server: Server, effects: list[fx.Effect], now_ms: int) -> None:
        while taken := self._take(server, OPEN, now_ms):
            orders = []
            for replica, order in taken:
                transition = replica.transition
                assert transition is not None, replica.key
                region = replica.region
                schema_version = region.table.record.schema_version
                if order.schema_version < 0:
                    order.schema_version = schema_version
                orders.append(
                    OpenOrder(
                        transition,
                        replica.version,
                        region.record,
                        region.version,
                        open_timeout_ms=self._open_timeout_ms,
                        schema_version=schema_version,
                        kind=region.table.record.kind or KV,
                    )
                )
            effects.append(fx.SendOpen(self._book(taken), server.record, orders))

    def _dispatch_closes(self, server: Server, effects: list[fx.Effect], now_ms: int) -> None:
        while taken := self._take(server, CLOSE, now_ms):
            orders = [self._close_order(replica) for replica, _ in taken]
            effects.append(fx.SendClose(self._book(taken), server.record, orders))

    def _book(self, taken: list[tuple[Replica, Order]]) -> int:
        batch = self._next_batch
        self._next_batch += 1
        assert taken, f"batch {batch} has no orders, so no reply would end it"
        assert batch not in self._batches, f"batch {batch} would get the replies of another one"
        self._batches[batch] = taken
        return batch

    def _close_order(self, replica: Replica) -> CloseOrder:
        record = replica.region.record
        transition = replica.transition
        if transition is not None:  # sent again: repeat the order as recorded in the transition
            return CloseOrder(
                record.region_id,
                record.table_id,
                replica.number,
                transition.destination,
                transition.intent,
                transition.plan_id,
                transition.attempt,
                transition.reason,
                origin=transition.origin,
            )
        if not replica.wants_open:
            reason = "unassign" if replica.region.table.wants_open else "disable"
            return CloseOrder(
                record.region_id,
                record.table_id,
                replica.number,
                intent=_CLOSE,
                reason=reason,
                origin=replica.origin,
            )
        reason = replica.move_reason or "move"
        if replica.is_damaged:
            return CloseOrder(
                record.region_id, record.table_id, replica.number, reason="damaged", origin=replica.origin
            )
        if replica.move is None:
            reason = "server stops" if replica.open_on is not None and replica.open_on.record.leaving else "drain"
        return CloseOrder(
            record.region_id,
            record.table_id,
            replica.number,
            self._move_target(replica),
            plan_id=replica.move_plan,
            reason=reason,
            origin=replica.origin,
        )


def is_one_short_of_orders(world: ClusterState, uuids: Collection[str], least: int) -> bool:
    """Return True if fewer than `least` OPEN orders wait for a slot of one of these servers, or if none of them lives.

    One such server suffices, because a server that opens nothing must not keep the others from their regions.
    """
    is_any_alive = False
    for uuid in uuids:
        server = world.servers.get(uuid)
        if server is not None:
            if len(server.opens) < least:
                return True
            is_any_alive = True
    return not is_any_alive


def _only_waits(replica: Replica, order: Order) -> bool:
    """Return True if the order waits for its first sending, and no server works on the transition: no deadline runs."""
    transition = replica.transition
    is_at_work = transition is not None and transition.state is not _OFFLINE
    return order.state is _QUEUED and not order.first_sent_ms and not is_at_work


__all__ = ["CLOSE", "OPEN", "OrderBook", "is_one_short_of_orders"]
