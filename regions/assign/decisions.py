"""Decides what a replica needs now, and emits the resulting writes and orders. Pure.

After every event, `decide` is called for each affected replica. For a replica in transition the table in
`regions/transitions/next_action.py` gives the action. For a replica at rest `decide` compares its location with the
intents of its table, its server and operators.

Decisions are level-triggered: they depend on the current state, not on the last event. So the next master takes the
same decision, and repeating a decision is harmless.
"""

from __future__ import annotations

from typing import Final

from regions.assign import transition_writes
from regions.assign.moves import MoveBook
from regions.assign.orders import OrderBook
from regions.assign.outbox import Outbox
from regions.assign.replacement import Replacements
from regions.assign.resharding.book import Reshardings
from regions.assign.selection import Selection
from regions.cluster.causes import Causes, is_part_of, origin_of_close
from regions.cluster.entities import CLOSE, OPEN, Replica
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.cluster.work import WriteState
from regions.records.model import Incarnation, Intent, RegionState, TransitionRecord
from regions.transitions.hazards import deaths_after, hazard
from regions.transitions.next_action import Action, NextStep, next_action
from regions.transitions.states import Cause

# Members of enums: a compiled module reads its own constant several times as fast.
_ACKNOWLEDGE: Final = Action.ACKNOWLEDGE
_KEEP_PLAN: Final = Action.KEEP_PLAN
_ORDER_OPEN: Final = Action.ORDER_OPEN
_PUT_DOWN: Final = Action.PUT_DOWN
_REASSIGN: Final = Action.REASSIGN
_WAIT: Final = Action.WAIT
_ASSIGN: Final = Cause.ASSIGN
_DAMAGED: Final = Cause.DAMAGED
_REPLAN: Final = Cause.REPLAN
_SERVER_DEATH: Final = Cause.SERVER_DEATH
_CLOSE: Final = Intent.CLOSE
_OPEN: Final = Intent.OPEN
_CLOSED: Final = RegionState.CLOSED
_CLOSING: Final = RegionState.CLOSING
_OFFLINE: Final = RegionState.OFFLINE
_OPENING: Final = RegionState.OPENING
_IDLE: Final = WriteState.IDLE


class Decisions:
    """Decides about one replica at a time, while `is_deciding` is set."""

    def __init__(
        self,
        epoch: int,
        config: AssignerConfig,
        world: ClusterState,
        causes: Causes,
        outbox: Outbox,
        orders: OrderBook,
        selection: Selection,
        moves: MoveBook,
        replacements: Replacements,
        reshardings: Reshardings,
    ) -> None:
        self._epoch = epoch
        self._config = config
        self._world = world
        self._causes = causes
        self._outbox = outbox
        self._orders = orders
        self._selection = selection
        self._moves = moves
        self._replacements = replacements
        self._reshardings = reshardings
        #: True from the beginning of a tenure, except while the cluster is being shut down.
        self.is_deciding = False

    def decide(self, replica: Replica, now_ms: int) -> None:
        """Decide what the replica needs now.

        Do nothing while the replica has a write in flight or an unread transition, or is linked to a server that has
        ended: `ServerTracker.down` decides about all replicas of such a server soon.
        """
        if not self.is_deciding or replica.write_state is not _IDLE or replica.awaits_down:
            return
        if replica.region.is_given_up and self._decide_given_up(replica, now_ms):
            return
        if replica.region.is_leaving and self._decide_leaving(replica, now_ms):
            return
        transition = replica.transition
        if transition is None:
            self._decide_resting(replica, now_ms)
            return
        wants_open = replica.wants_open
        if transition.parked and wants_open:
            return
        world = self._world
        source, destination = world.party(transition.source), world.party(transition.destination)
        verdict = next_action(transition.state, source, destination, reopen=wants_open)
        why = hazard(transition, verdict.cause, world.departed) if wants_open else ""
        if why:
            self._park(replica, transition, verdict, why, now_ms)
            return
        action = verdict.action
        if verdict.cause is _SERVER_DEATH and is_part_of(replica.origin, transition):
            replica.origin = self._causes.current()
        if action is _ORDER_OPEN:
            self._order_open(replica, transition, now_ms)
        elif action is _WAIT:
            self._ensure_order(replica, transition, now_ms)
        elif action is _ACKNOWLEDGE:
            self._delete(replica, transition, verdict)
        elif action is _REASSIGN:
            replica.cause = verdict.cause
            self._selection.add(replica)
        elif action is _KEEP_PLAN:
            self.write_offline(replica, transition.destination, verdict.cause, now_ms)
        elif action is _PUT_DOWN:
            self.write_offline(replica, None, verdict.cause, now_ms)
        else:
            self._delete(replica, transition, verdict)

    def decide_peers(self, replica: Replica, now_ms: int) -> None:
        """Decide about the region's other replicas on draining servers, after `replica` has come to rest.

        One of them may now move to the server that `replica` has left.
        """
        for peer in replica.region.replicas:
            server = peer.open_on
            if peer is not replica and peer.transition is None and server is not None and server.draining:
                self.decide(peer, now_ms)

    def _decide_given_up(self, replica: Replica, now_ms: int) -> bool:
        """Prepare the replacement of a region that is given up (DD-03). Return False while a server works on it."""
        if not self._replacements.still_given_up(replica.region):
            return False
        transition = replica.transition
        if transition is None or replica.region.is_replacing:
            return replica.open_on is None
        is_dead = transition.state is _OPENING and self._world.alive(transition.destination) is None
        if transition.state is not _OFFLINE and not is_dead:
            return False
        if is_dead or transition.destination is not None:
            cause = _SERVER_DEATH if is_dead else _REPLAN
            self.write_offline(replica, None, cause, now_ms, intent=_CLOSE)
        return True

    def _decide_leaving(self, replica: Replica, now_ms: int) -> bool:
        """Put down a replica of a region that is split or merged. Return False while a server works on it."""
        transition = replica.transition
        if transition is None:
            if replica.open_on is not None:
                return False
            self._drop_order(replica)
            if replica.home is not None and replica.region.table.wants_open:
                # Its server has died, and may not know. From this step on it cannot begin to close the region.
                self.write_offline(replica, None, _SERVER_DEATH, now_ms, intent=_CLOSE)
                return True
        elif transition.state is _OFFLINE and transition.destination is not None:
            self.write_offline(replica, None, _REPLAN, now_ms, intent=_CLOSE)
            return True
        elif transition.state not in (_OFFLINE, _CLOSED):
            return False
        self._reshardings.parent_changed(replica.region, now_ms)
        return True

    def _decide_resting(self, replica: Replica, now_ms: int) -> None:
        """Decide about a replica without a transition: select a server, order a close, or do nothing."""
        server = replica.open_on
        if server is None:
            self._drop_order(replica)
            if replica.move is not None:
                if self._world.servers.get(replica.move) is not None:
                    replica.last_uuid = replica.move  # the server has died, so assign to the destination of the move
                self._moves.drop(replica)
            if not replica.wants_open:
                replica.origin = None
            else:
                replica.origin = self._causes.with_text(replica.origin)
                replica.cause = _ASSIGN if replica.home is None else _SERVER_DEATH
                self._selection.add(replica)
        elif server.fencing:
            self._drop_order(replica)
        elif (
            not replica.wants_open
            or replica.move is not None
            or replica.is_damaged
            or (server.draining and self.may_leave(replica))
        ):
            if replica.order is None:
                replica.origin = self._causes.with_text(origin_of_close(replica, server))
                self._orders.put(replica, CLOSE, server, -1, now_ms, now_ms)
        else:
            replica.origin = None
            self._drop_order(replica)

    def _drop_order(self, replica: Replica) -> None:
        if replica.order is not None:
            self._orders.drop(replica)

    def _order_open(self, replica: Replica, transition: TransitionRecord, now_ms: int) -> None:
        order = replica.order
        if order is not None and order.kind == OPEN and order.version == replica.version:
            return
        self._drop_order(replica)
        server = self._world.alive(transition.destination)
        assert server is not None, replica.key
        if server.fenced_until_ms is not None:
            return
        self._orders.put(replica, OPEN, server, replica.version, max(now_ms, replica.not_before_ms), now_ms)

    def _ensure_order(self, replica: Replica, transition: TransitionRecord, now_ms: int) -> None:
        """Keep an order for the server that works on the transition, in case its reply is lost (X10, MF-05, MF-07)."""
        closing = transition.state is _CLOSING
        order = replica.order
        if order is not None and order.kind == (CLOSE if closing else OPEN):
            order.version = replica.version
            self._orders.time(replica)
            return
        self._drop_order(replica)
        server = self._world.alive(transition.source if closing else transition.destination)
        assert server is not None, replica.key
        if server.fenced_until_ms is not None:
            return
        kind = CLOSE if closing else OPEN
        self._orders.put(replica, kind, server, replica.version, now_ms + self._config.resend_ms, now_ms)

    def _park(self, replica: Replica, transition: TransitionRecord, verdict: NextStep, why: str, now_ms: int) -> None:
        """Park the replica until an operator retries it (`regions/transitions/hazards.py`)."""
        self._outbox.note(f"parked: {why}", replica.key)
        cause = _DAMAGED if transition.state is _CLOSED else verdict.cause
        attempt = transition.attempt + (cause is not _DAMAGED)
        self.write_offline(replica, None, cause, now_ms, attempt=attempt, error=why, parked=True)

    def _delete(self, replica: Replica, transition: TransitionRecord, verdict: NextStep) -> None:
        effect = transition_writes.delete(
            replica, transition, verdict.cause, transition.origin or replica.origin or self._causes.current()
        )
        self._world.begin_write(replica, verdict.cause, None, effect.region)
        self._outbox.emit(effect)

    def may_leave(self, replica: Replica) -> bool:
        """Return True if another server is eligible for the replica."""
        return self._selection.choose(replica, exclude_home=True) is not None

    def place(self, replica: Replica, now_ms: int) -> None:
        """Choose a server for the replica and write OFFLINE, or add the replica to those without an eligible server."""
        assert replica.write_state is _IDLE, f"{replica.key} is {replica.write_state.name}, not IDLE"
        if replica.region.is_given_up:
            return
        destination = self._selection.choose(replica)
        if destination is None:
            self._selection.add_unplaceable(replica)
            return
        self.write_offline(replica, destination, replica.cause, now_ms)

    def write_offline(
        self,
        replica: Replica,
        destination: Incarnation | None,
        cause: Cause,
        now_ms: int,
        *,
        attempt: int | None = None,
        error: str | None = None,
        parked: bool = False,
        intent: Intent = _OPEN,
    ) -> None:
        """Create the transition in OFFLINE, or force it there. The OPEN order follows when the write has committed."""
        assert not parked or destination is None, f"{replica.key} is parked with destination {destination}"
        origin, transition = replica.origin, replica.transition
        is_named = transition is not None and transition.origin is not None
        if origin is None or (not origin.text and not is_named):
            origin = replica.origin = self._causes.current()
        effect = transition_writes.offline(
            replica,
            destination,
            cause,
            origin=origin,
            epoch=self._epoch,
            now_ms=now_ms,
            start_timeout_ms=self._config.start_timeout_ms,
            attempt=attempt,
            error=error,
            parked=parked,
            intent=intent,
            deaths=0 if transition is None else deaths_after(transition, cause, self._world.departed),
        )
        self._world.begin_write(replica, cause, effect.record)
        if replica.order is not None:
            self._orders.drop(replica)
        assert replica.write is not None, f"the write of {replica.key} is not awaited"
        self._outbox.emit(effect)

    def attempt_failed(self, replica: Replica, cause: Cause, error: str, now_ms: int) -> None:
        """Retry a failed open after a pause, or park the replica after the last attempt (RT-11, X11)."""
        transition = replica.transition
        assert transition is not None, replica.key
        attempt = transition.attempt + 1
        if transition.destination is not None:
            if replica.failed is None:
                replica.failed = set()
            replica.failed.add(transition.destination.uuid)
        used_up = attempt >= self._config.attempts_max
        # If the table was disabled or removed during the attempt, do not retry on another server.
        if not replica.wants_open or self._replacements.give_up_if_due(replica.region, now_ms, used_up=used_up):
            self.write_offline(replica, None, cause, now_ms, attempt=attempt, error=error, intent=_CLOSE)
            return
        if used_up:
            self._outbox.note(f"parked after {attempt} attempts: {error}", replica.key)
            self.write_offline(replica, None, cause, now_ms, attempt=attempt, error=error, parked=True)
            return
        pause_ms = min(self._config.retry_base_ms << (attempt - 1), self._config.retry_max_ms)
        replica.not_before_ms = now_ms + pause_ms
        destination = self._selection.choose(replica)
        self.write_offline(replica, destination, cause, now_ms, attempt=attempt, error=error)
