"""The lease: until when this server may serve without a reply from the store. Pure; times are parameters.

The store expires the session of a silent server, and its regions are reassigned. A server that cannot reach the store
must stop serving earlier, by its own clock. Three rules guarantee "earlier":

- The lease counts from the moment an acknowledged request was *sent*, never from its reply: a process that was frozen
  finds old replies in its socket, which prove nothing about the present.
- Only a reply in which the store's leader took part renews the lease (`sync`): a node that is cut off from its leader
  may continue to answer reads while the session's timeout already runs at the leader.
- The lease ends a margin before the session can expire: nodes report their clients' sessions to the leader only every
  half tick to tick, and clocks run at different rates. A third of the session timeout covers both, because a session
  timeout is at least two ticks.
"""

from __future__ import annotations

from typing import Final

#: Part of the session timeout by which the lease is shorter.
MARGIN: Final = 1 / 3
#: Renewals per session timeout; several may be lost before the lease ends.
RENEWALS_PER_TIMEOUT: Final = 8


class Lease:
    """Validity of one session's lease, in seconds of any one monotonic clock.

    Invariant: `_until_s` never decreases while the session lives.
    """

    def __init__(self) -> None:
        self._length_s = 0.0
        self._until_s = float("-inf")

    def begin(self, timeout_ms: int) -> None:
        """Begin a session with its negotiated timeout. There is no lease before the first renewal."""
        assert timeout_ms > 0, f"a session's timeout is positive, not {timeout_ms}"
        self._length_s = timeout_ms / 1000 * (1 - MARGIN)
        self._until_s = float("-inf")

    def end(self) -> None:
        """End the lease with its session."""
        self._until_s = float("-inf")

    def renew(self, sent_at_s: float) -> None:
        """Extend the lease after a reply in which the leader took part; the request was sent at `sent_at_s`."""
        self._until_s = max(self._until_s, sent_at_s + self._length_s)

    def holds(self, now_s: float) -> bool:
        """Return True if regions may be served now."""
        return now_s < self._until_s

    def left_s(self, now_s: float) -> float:
        """Return the seconds until the lease ends, or 0."""
        return max(0.0, self._until_s - now_s)

    @property
    def renewal_interval_s(self) -> float:
        """Return the period of renewals in seconds."""
        return max(0.05, self._length_s / (1 - MARGIN) / RENEWALS_PER_TIMEOUT)
