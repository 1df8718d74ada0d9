"""How long the assigner waits, how often it tries, how much it asks of one server; how much the balancer moves."""

from __future__ import annotations

import msgspec


class AssignerConfig(msgspec.Struct, frozen=True):
    """Bounds of the assigner; times in milliseconds."""

    #: An ordered open must begin, an opening region must show progress, within these (RT-11).
    start_timeout_ms: int = 30_000
    open_timeout_ms: int = 60_000
    #: A close is asked about again, never forced (X1, X10); this long is called a problem.
    close_timeout_ms: int = 60_000
    #: This long after it was ordered, a close makes the server be fenced, so that its regions can go elsewhere once
    #: its lease must have run out (X10); 0: never, an operator decides.
    fence_after_ms: int = 300_000
    #: Lease of a server that does not say how long its session lasts.
    lease_unknown_ms: int = 30_000
    #: How soon a server is asked what became of an order, doubling up to the second figure.
    resend_ms: int = 3_000
    resend_max_ms: int = 30_000
    #: Pause before attempt n: base * 2^(n-1), at most the second figure.
    retry_base_ms: int = 500
    retry_max_ms: int = 30_000
    #: After so many failed opens a replica is parked (X11).
    attempts_max: int = 8
    #: A region that no server has opened so long after the first was asked is replaced by another one, with an id of
    #: its own, when the next attempt fails, or when its attempts are used up (DD-03); and that so often.
    create_timeout_ms: int = 60_000
    replacements_max: int = 3
    #: A table that is ALTERING, or has not been open as a whole, for so long is called a problem.
    table_late_ms: int = 10_000
    #: Replicas that one order tells of a schema version.
    alters_max: int = 2_000
    #: A server that registers so often within that time gets no regions until it has stayed for the third.
    flaps_max: int = 5
    flap_window_ms: int = 60_000
    flap_rest_ms: int = 30_000
    #: Asks for a close that the server never began, before a move is given up.
    move_sends_max: int = 5
    #: Orders in one RPC, and orders a server may be working on at once.
    batch_max: int = 200
    busy_max: int = 800
    #: Of those, replicas a server may be closing at once: what is moved or drained is not served meanwhile.
    closes_max: int = 200
    #: So many replicas without a former place make a bulk plan; fewer are placed one by one.
    bulk_min: int = 8
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
    """Bounds of one round of the balancer, and from when on a deviation matters."""

    #: Moves in one round, in all and per server (given or taken).
    moves_max: int = 200
    per_server_max: int = 20
    #: Part of its share by which a server may have more or fewer bytes, or more or less load.
    size_tolerance: float = 0.1
    load_tolerance: float = 0.2
    #: Least part of a share by which a swap must help.
    gain_min: float = 0.02
    #: A transition older than this does not hold up the balancing of others (X9).
    stuck_ms: int = 60_000

    def __post_init__(self) -> None:
        assert self.moves_max > 0, self.moves_max
        assert self.per_server_max > 0, self.per_server_max
        assert self.gain_min > 0, self.gain_min
