"""Contact with the leader: for how long this node may answer its clients.

The leader ends a session that it has not heard of for its timeout. A node hears of its clients by itself and reports
the sessions to the leader a few times a second. A node that answered clients while its reports are lost would confirm
sessions that the leader is about to end. So every answer rests on a lease:

    node                                              leader
    TOUCH: REPORT_MARK, sessions heard of  -------->  notes when the node reported, and touches the sessions
    READ_INDEX, patient                    -------->  answered behind the next round of heartbeats that a majority
                                           <--------  confirms: at that moment this leader led and had the report

The lease runs for `lease_ms` from the moment at which the report was sent. Answers to clients leave only during the
lease; without it they wait in their connections. The leader in turn ends no session before its timeout has passed since
the last request that some node may have answered (`coord.server.sessions.endings`).

A report is repeated with the next one until its receipt is confirmed: the link may have broken with it.
"""

from __future__ import annotations

from typing import Final

#: Stands first in a TOUCH of a node that answers under a lease. No session has this id, so older leaders ignore it.
REPORT_MARK: Final = 0
#: A node reports every so many ticks: the first when it has heard of clients, the second in any case. With ticks of
#: 50 ms and a lease of a second, several reports in a row may be lost before an answer has to wait.
REPORT_TICKS: Final = 2
IDLE_REPORT_TICKS: Final = 4
#: Reports that wait for their confirmation; older ones would hardly extend the lease.
_ASKED_MAX: Final = 64


class ContactLease:
    """One node's lease. All times are the node's monotonic milliseconds."""

    def __init__(self, first_context: int, lease_ms: int) -> None:
        """`first_context` is above every context that an earlier process of this node used for reads or reports."""
        self._lease_ms = lease_ms
        self._next_context = first_context
        #: Last millisecond of the lease.
        self.until_ms = -1
        #: Context -> when the report was sent, oldest first.
        self._asked: dict[int, int] = {}
        #: Session -> context of the newest report of it, which is not confirmed.
        self._reported: dict[int, int] = {}

    def holds(self, now_ms: int) -> bool:
        """Return True while answers to clients may leave."""
        return now_ms <= self.until_ms

    def report(self, heard: list[int], now_ms: int) -> tuple[int, list[int]]:
        """Return (context of the report, the report): sessions heard of, or whose last report may be lost."""
        context = self._next_context
        self._next_context += 1
        self._asked[context] = now_ms
        if len(self._asked) > _ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        for session_id in heard:
            self._reported[session_id] = context
        for session_id in self._reported:
            self._reported[session_id] = context
        return context, [REPORT_MARK, *sorted(self._reported)]

    def keep(self, heard: list[int]) -> None:
        """Remember sessions that cannot be reported now: there is no leader."""
        for session_id in heard:
            self._reported[session_id] = self._next_context

    def confirmed(self, context: int) -> bool:
        """Extend the lease if `context` is that of a report; return False if the context belongs to something else."""
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
        """Return True if this node has heard of the session and does not know that the leader knows."""
        return session_id in self._reported
