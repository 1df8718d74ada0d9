"""Deadlines of orders to servers (RT-11, X10). Pure.

The active master measures them from the last change that it has observed. After a failover they begin again.
"""

from __future__ import annotations

from regions.cluster.entities import Order, Replica
from regions.cluster.limits import AssignerConfig
from regions.records.model import RegionState


def open_overdue(replica: Replica, order: Order, config: AssignerConfig, now_ms: int) -> str:
    """Return why an open is overdue and must be given to another server (RT-11); "" if it is not overdue."""
    transition = replica.transition
    if transition is None:
        return ""
    if transition.state is RegionState.OFFLINE:
        # The server has acknowledged and queued the order. It gets as long as a server that is opening.
        limit_ms = config.open_timeout_ms if order.is_acknowledged else config.start_timeout_ms
        late = order.first_sent_ms > 0 and now_ms - order.first_sent_ms > limit_ms
        return "the server did not begin to open in time" if late else ""
    late = now_ms - replica.seen_ms > config.open_timeout_ms
    return "the server did not finish opening in time" if late else ""


def close_overdue(replica: Replica, order: Order, config: AssignerConfig, now_ms: int) -> str:
    """Return why a close is overdue and its server must be fenced (X10); "" if it is not overdue.

    Only this server can close the region.
    """
    begun = replica.transition is not None
    since_ms = replica.seen_ms if begun else order.first_sent_ms
    limit_ms = config.fence_after_ms
    if not limit_ms or not since_ms or now_ms - since_ms <= limit_ms:
        return ""
    if not begun and replica.move is not None:
        return ""  # a move that has not begun is canceled instead
    error = f": {replica.last_error}" if replica.last_error else ""
    return f"it did not {'finish closing' if begun else 'begin to close'} {replica.key} in {limit_ms // 1000} s{error}"
