"""Follows an order to its outcome: the server's reply, a refusal, a failure, or a deadline. Pure.

The store decides, not the reply. So most replies lead to a read of the transition, and the read to the next decision.
This master measures deadlines from the last change that it has observed. It never compares the clocks of two machines.
"""

from __future__ import annotations

from typing import Final

from regions.assign.decisions import Decisions
from regions.assign.moves import MoveBook
from regions.assign.orders import OrderBook
from regions.assign.outbox import Outbox
from regions.assign.servers import ServerTracker
from regions.cluster.deadlines import close_overdue, open_overdue
from regions.cluster.entities import CLOSE, OPEN, Order, Replica
from regions.cluster.limits import AssignerConfig
from regions.cluster.work import OrderState, WriteState
from regions.messages import OrderOutcome, OrderResult
from regions.records.model import RegionState
from regions.transitions.states import Cause

# Members of enums: a compiled module reads its own constant several times as fast.
_DEADLINE: Final = Cause.DEADLINE
_OPEN_FAILED: Final = Cause.OPEN_FAILED
_FAILED: Final = OrderOutcome.FAILED
_REFUSED: Final = OrderOutcome.REFUSED
_DONE: Final = OrderState.DONE
_QUEUED: Final = OrderState.QUEUED
_SENT: Final = OrderState.SENT
_OFFLINE: Final = RegionState.OFFLINE
_OPENING: Final = RegionState.OPENING
_IDLE: Final = WriteState.IDLE


class OrderFollowUp:
    """Follows sent orders until the store shows their outcome."""

    def __init__(
        self,
        config: AssignerConfig,
        outbox: Outbox,
        orders: OrderBook,
        moves: MoveBook,
        decisions: Decisions,
        servers: ServerTracker,
    ) -> None:
        self._config = config
        self._outbox = outbox
        self._orders = orders
        self._moves = moves
        self._decisions = decisions
        self._servers = servers

    def answered(self, replica: Replica, result: OrderResult, now_ms: int) -> None:
        """Process a server's reply to a current order."""
        order = replica.order
        assert order is not None, replica.key
        if replica.write_state is not _IDLE:
            return  # the transition in memory is out of date; `decide` follows when it has been read
        if result.outcome is _FAILED:
            if order.kind == CLOSE:
                replica.last_error = result.error
                self._outbox.note(f"server {order.server.uuid} failed to close it: {result.error}", replica.key)
                return
            replica.failure = (result.version, result.error)
            if result.version > replica.version and replica.transition is not None:
                # The server wrote OPENING before it failed, and the watch event has not arrived yet.
                self._outbox.read_transition(replica)
                return
            replica.failure = None
            self._decisions.attempt_failed(replica, _OPEN_FAILED, result.error, now_ms)
        elif result.outcome is _REFUSED:
            replica.refusal = (replica.version, result.error)
            self._outbox.read_transition(replica)
            if order.kind == CLOSE:
                self._outbox.read_region(replica)

    def read_unchanged(self, replica: Replica, now_ms: int) -> None:
        """Process a read that found no change. If the server had refused the order, count the refusal as a failure."""
        refusal, replica.refusal = replica.refusal, None
        if refusal is None or refusal[0] != replica.version:
            self._decisions.decide(replica, now_ms)
            return
        transition = replica.transition
        if transition is None:
            server = replica.open_on
            must_close = (
                replica.is_damaged
                or not replica.wants_open
                or (server is not None and server.draining and self._decisions.may_leave(replica))
            )
            what = "repeating the order" if must_close else "the move is canceled"
            self._outbox.note(f"the server refused to close it, {what}: {refusal[1]}", replica.key)
            replica.last_error = refusal[1]
            self._moves.drop(replica)
            self._orders.drop(replica)
            if must_close and server is not None:
                self._orders.put(replica, CLOSE, server, -1, now_ms + self._config.resend_ms, now_ms)
        elif transition.state in (_OFFLINE, _OPENING):
            self._decisions.attempt_failed(replica, _OPEN_FAILED, refusal[1], now_ms)

    def failed_earlier(self, replica: Replica, now_ms: int) -> bool:
        """Retry a failed open if the transition is unchanged since the failure. Return True if it is unchanged.

        The transition must have been read at that version, because the next write adds its steps to the history.
        """
        failure, transition = replica.failure, replica.transition
        if failure is None or failure[0] != replica.version or transition is None:
            return False
        replica.failure = None
        if transition.state not in (_OFFLINE, _OPENING):
            return False
        self._decisions.attempt_failed(replica, _OPEN_FAILED, failure[1], now_ms)
        return True

    def check_deadlines(self, replica: Replica, order: Order, now_ms: int) -> bool:
        """End an overdue open, fence the server of an overdue close, or send the order again if that is due.

        Return True if one of these was done.
        """
        assert replica.order is order, f"order of {replica.key} was dropped"
        if order.server.is_ending:
            return False
        if order.kind == OPEN:
            late = open_overdue(replica, order, self._config, now_ms)
            if late:
                self._decisions.attempt_failed(replica, _DEADLINE, late, now_ms)
        else:
            late = close_overdue(replica, order, self._config, now_ms)
            if late:
                self._servers.fence(order.server, late)
        if late or order.state in (_QUEUED, _SENT) or order.next_ms > now_ms:
            return bool(late)
        if order.state is _DONE:
            order.next_ms = now_ms + self._config.resend_ms
            self._outbox.read_transition(replica)
        elif replica.transition is None and replica.move is not None and order.sends >= self._config.move_sends_max:
            self._give_up_move(replica)
            self._decisions.decide(replica, now_ms)
        else:
            self._orders.enqueue(replica, order)
        return True

    def _give_up_move(self, replica: Replica) -> None:
        self._outbox.note("the move is canceled, the server does not answer", replica.key)
        self._moves.drop(replica)
        self._orders.drop(replica)
        assert replica.move is None, f"the move of {replica.key} was given up, and is wanted"
