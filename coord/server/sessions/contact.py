"""Contact with the leader: the lease during which this node may reply to its clients.

The leader expires a session that no node has reported for its timeout. A node receives requests of its clients by
itself and reports the active sessions to the leader a few times a second. A node that replied to clients while its
reports are lost would confirm sessions that the leader is about to expire. So every reply depends on a lease:

    node                                              leader
    TOUCH: REPORT_MARK, active sessions    -------->  records the time of the report and touches the sessions
    READ_INDEX, patient                    -------->  replies after the next round of heartbeats that a majority
                                           <--------  acknowledges: at that time it was the leader and had the report

The lease lasts `lease_ms` from the time at which the report was sent. Replies to clients leave only during the lease;
without it they wait in their connections. In turn the leader expires no session before its timeout has passed since the
last request to which some node may have replied (`coord.server.sessions.endings`).

A report is repeated in the next report until its receipt is confirmed, because it may have been lost with the link.
"""

from __future__ import annotations

from typing import Final

#: First item of a TOUCH from a node that uses a lease. No session has this id, so older leaders ignore it.
REPORT_MARK: Final = 0
#: Ticks between two reports: the first when clients were active, the second in any case. With ticks of 50 ms and a
#: lease of a second, several reports in a row may be lost before a reply has to wait.
REPORT_TICKS: Final = 2
IDLE_REPORT_TICKS: Final = 4
#: Limit of unconfirmed reports; confirming an older one would hardly extend the lease.
_ASKED_MAX: Final = 64


class ContactLease:
    """The lease of one node. All times are the node's monotonic milliseconds."""

    def __init__(self, first_context: int, lease_ms: int) -> None:
        """`first_context` must exceed every context that an earlier process of this node used for reads or reports."""
        self._lease_ms = lease_ms
        self._next_context = first_context
        #: Last millisecond of the lease.
        self.until_ms = -1
        #: Context -> time at which the report was sent, oldest first.
        self._asked: dict[int, int] = {}
        #: Session -> context of its newest report, which is not confirmed yet.
        self._reported: dict[int, int] = {}

    def holds(self, now_ms: int) -> bool:
        """Return True while replies to clients may leave."""
        return now_ms <= self.until_ms

    def report(self, active: list[int], now_ms: int) -> tuple[int, list[int]]:
        """Return (context, report). The report has the `active` sessions and those whose last report is unconfirmed."""
        context = self._next_context
        self._next_context += 1
        self._asked[context] = now_ms
        if len(self._asked) > _ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        for session_id in active:
            self._reported[session_id] = context
        for session_id in self._reported:
            self._reported[session_id] = context
        return context, [REPORT_MARK, *sorted(self._reported)]

    def keep(self, active: list[int]) -> None:
        """Keep sessions for the next report: there is no leader now."""
        for session_id in active:
            self._reported[session_id] = self._next_context

    def confirmed(self, context: int) -> bool:
        """Extend the lease if `context` is that of a report. Return False for a context of another read index."""
        asked_ms = self._asked.get(context)
        if asked_ms is None:
            return False
        self.until_ms = max(self.until_ms, asked_ms + self._lease_ms)
        for older in [one for one in self._asked if one <= context]:
            del self._asked[older]
        for session_id in [one for one, newest in self._reported.items() if newest <= context]:
            del self._reported[session_id]
        return True

    def is_unconfirmed(self, session_id: int) -> bool:
        """Return True if a request of the session arrived and no report of it is confirmed."""
        return session_id in self._reported
