"""When a server has had long enough for what it was ordered to do (RT-11, X10). Pure.

Times are those of the active master, counted from the last change that it saw. Its successor counts anew.
"""

from __future__ import annotations

from regions.cluster.entities import Order, Replica
from regions.cluster.limits import AssignerConfig
from regions.records.model import RegionState


def open_overdue(replica: Replica, order: Order, config: AssignerConfig, now_ms: int) -> str:
    """RT-11: why an open is to be taken from its server, which did not begin or shows no progress; "" if it is not."""
    transition = replica.transition
    if transition is None:
        return ""
    if transition.state is RegionState.OFFLINE:
        # A server that has taken the order, and waits with it, gets as long as one that opens.
        limit_ms = config.open_timeout_ms if order.is_acknowledged else config.start_timeout_ms
        late = order.first_sent_ms > 0 and now_ms - order.first_sent_ms > limit_ms
        return "the server did not begin to open in time" if late else ""
    late = now_ms - replica.seen_ms > config.open_timeout_ms
    return "the server did not finish opening in time" if late else ""


def close_overdue(replica: Replica, order: Order, config: AssignerConfig, now_ms: int) -> str:
    """X10: why the server of a close is to be fenced, for nobody else can close the region; "" if it is not."""
    begun = replica.transition is not None
    since_ms = replica.seen_ms if begun else order.first_sent_ms
    limit_ms = config.fence_after_ms
    if not limit_ms or not since_ms or now_ms - since_ms <= limit_ms:
        return ""
    if not begun and replica.move is not None:
        return ""  # a move that has not begun is given up instead
    said = f": {replica.last_error}" if replica.last_error else ""
    return f"it did not {'finish' if begun else 'begin'} to close {replica.key} within {limit_ms // 1000} s{said}"
