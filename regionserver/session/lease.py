"""The lease: until when this server may serve without having heard from the store. Pure; time is handed in.

The store gives the regions of a silent server away once its session has expired. A server that cannot reach the store
must therefore stop by itself, earlier, by its own clock. Three rules make "earlier" true:

- The lease counts from the moment a request was *sent* that was answered later, never from the answer: a process that
  was frozen finds old answers in its socket, and they prove nothing about now.
- Only an answer that the store's leader took part in renews (`sync`): a node cut off from its leader may go on
  answering reads while the leader already counts our session down.
- It ends a margin before the session could: nodes tell the leader about the sessions they heard from only every so
  often (half a tick to a tick), and clocks do not run at one rate. A third of the session's timeout covers both, as a
  session is never shorter than two ticks.
"""

from __future__ import annotations

from typing import Final

#: Part of the session's timeout by which the lease is shorter.
MARGIN: Final = 1 / 3
#: Renewals per session timeout; several may be lost before the lease is.
RENEWALS_PER_TIMEOUT: Final = 8


class Lease:
    """Validity of one session's lease. Seconds of any one monotonic clock.

    Invariant: `until_s` never goes back while the session lives.
    """

    def __init__(self) -> None:
        self._length_s = 0.0
        self._until_s = float("-inf")

    def begin(self, timeout_ms: int) -> None:
        """A session begins, with the timeout that was negotiated. It has no lease before its first renewal."""
        assert timeout_ms > 0, f"a session's timeout is positive, not {timeout_ms}"
        self._length_s = timeout_ms / 1000 * (1 - MARGIN)
        self._until_s = float("-inf")

    def end(self) -> None:
        """The session is over, and the lease with it."""
        self._until_s = float("-inf")

    def renew(self, sent_at_s: float) -> None:
        """A request sent at `sent_at_s` has been answered with the leader's part in it."""
        self._until_s = max(self._until_s, sent_at_s + self._length_s)

    def holds(self, now_s: float) -> bool:
        """Return whether regions may be served now."""
        return now_s < self._until_s

    def left_s(self, now_s: float) -> float:
        """Seconds until it ends, 0 if it has."""
        return max(0.0, self._until_s - now_s)

    @property
    def renewal_interval_s(self) -> float:
        """Return the period of renewals in seconds."""
        return max(0.05, self._length_s / (1 - MARGIN) / RENEWALS_PER_TIMEOUT)
