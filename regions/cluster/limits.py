"""Limits of the assigner (timeouts, attempts, orders per server) and of the balancer."""

from __future__ import annotations

import msgspec


class AssignerConfig(msgspec.Struct, frozen=True):
    """Limits of the assigner. Times are in milliseconds."""

    #: A server must begin an ordered open within this time (RT-11).
    start_timeout_ms: int = 30_000
    #: A server must finish an open within this time after OPENING (RT-11).
    open_timeout_ms: int = 60_000
    #: A close that takes this long is shown as a problem. A close is never forced (X1, X10).
    close_timeout_ms: int = 60_000
    #: A server that has not closed a region this long after the order is fenced, so that its regions can open elsewhere
    #: after its lease has ended (X10). 0: never, an operator decides.
    fence_after_ms: int = 300_000
    #: Lease of a server whose registration does not give its session timeout.
    lease_unknown_ms: int = 30_000
    #: Pause before an order is sent again. It doubles up to `resend_max_ms`.
    resend_ms: int = 3_000
    resend_max_ms: int = 30_000
    #: Pause before attempt n of an open: retry_base_ms * 2^(n-1), at most `retry_max_ms`.
    retry_base_ms: int = 500
    retry_max_ms: int = 30_000
    #: A replica is parked after this number of failed opens (X11).
    attempts_max: int = 8
    #: A new region that no server has opened this long after the choice of its first server is replaced by another
    #: region when the next attempt fails (DD-03). It is also replaced when its attempts are used up.
    create_timeout_ms: int = 60_000
    #: Number of replacements for one key range.
    replacements_max: int = 3
    #: A split or merge whose parents cannot be prepared or brought together within this time is canceled.
    resharding_timeout_ms: int = 600_000
    #: A table that is ALTERING, or not completely open, for this long is shown as a problem.
    table_late_ms: int = 10_000
    #: Replicas in one batch of AlterOrders.
    alters_max: int = 2_000
    #: A server that registers more than `flaps_max` times within `flap_window_ms` gets no regions until it has stayed
    #: for `flap_rest_ms`.
    flaps_max: int = 5
    flap_window_ms: int = 60_000
    flap_rest_ms: int = 30_000
    #: A move is canceled after this number of CLOSE orders that the server has not begun.
    move_sends_max: int = 5
    #: Orders in one RPC.
    batch_max: int = 200
    #: Orders that a server works on at once.
    busy_max: int = 800
    #: CLOSE orders among them. A region that is being moved or drained is not served.
    closes_max: int = 200
    #: This number of replicas without a former server make a bulk plan. Fewer replicas are placed one by one.
    bulk_min: int = 8
    #: Number of first replicas of tablets from which on a bulk plan places them. The master itself places fewer, in
    #: some milliseconds.
    tablets_bulk_min: int = 300
    #: Time after which the master places first replicas itself if there is no plan. Longer than a plan may take.
    plan_wait_ms: int = 180_000
    #: Whether the keeper changes the members of tablets (`regions/replication/policy`). A simulation without changes of
    #: members switches it off.
    changes_members: bool = True
    #: A new member of a tablet that makes no progress for this long is given up.
    add_timeout_ms: int = 600_000
    #: Number of leaderships that are handed over at the same time to spread leaders evenly.
    leader_transfers_max: int = 20
    #: Time for which a started server gets no leaders, so that it has caught up and is likely to stay.
    leader_rest_ms: int = 30_000
    #: Latest steps that the active master keeps in memory.
    history_max: int = 50_000

    def __post_init__(self) -> None:
        assert 0 < self.batch_max <= self.busy_max, (self.batch_max, self.busy_max)
        assert 0 < self.resend_ms <= self.resend_max_ms, (self.resend_ms, self.resend_max_ms)
        assert 0 < self.retry_base_ms <= self.retry_max_ms, (self.retry_base_ms, self.retry_max_ms)
        assert self.attempts_max > 0, self.attempts_max
        assert self.create_timeout_ms > 0, self.create_timeout_ms
        assert self.replacements_max >= 0, self.replacements_max
        assert self.fence_after_ms == 0 or self.fence_after_ms >= self.resend_ms, self.fence_after_ms


class BalancerConfig(msgspec.Struct, frozen=True):
    """Limits of one round of the balancer, and its tolerances."""

    #: Moves in one round.
    moves_max: int = 200
    #: Moves from or to one server in one round.
    per_server_max: int = 20
    #: Tolerated deviation of a server's bytes from its share, as a fraction of the share.
    size_tolerance: float = 0.1
    #: Tolerated deviation of a server's load from its share, as a fraction of the share.
    load_tolerance: float = 0.2
    #: Smallest improvement by a swap, as a fraction of a share.
    gain_min: float = 0.02
    #: Members of tablets that move at the same time for the balance, in total and from or to one server.
    tablet_moves_max: int = 40
    tablets_per_server_max: int = 5
    #: A transition older than this does not block the balancer (X9).
    stuck_ms: int = 60_000

    def __post_init__(self) -> None:
        assert self.moves_max > 0, self.moves_max
        assert self.per_server_max > 0, self.per_server_max
        assert self.tablet_moves_max > 0, self.tablet_moves_max
        assert self.tablets_per_server_max > 0, self.tablets_per_server_max
        assert self.gain_min > 0, self.gain_min
