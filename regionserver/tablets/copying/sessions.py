"""The copy sessions of a source: one for each (tablet, number) that is copied from this server. Pure.

A session belongs to one connection. A second BeginCopy for the same tablet and number ends the first one, so copies of
one member cannot be mixed (KUDU-1436), and a destination that was restarted does not wait for its former session.

While a session is alive, the tablet's log keeps the entries behind the copied rows: the *pin*. The pin is bounded. The
pin holds the slot's floor back only while the log has segments to spare (`process/floors.py`). After that the entries
are dropped, and the copy fails and begins again. So a slow destination cannot make a log grow without limit.
"""

from __future__ import annotations

from typing import Final

#: Limit of copies that a server is the source of at once.
OUT_MAX: Final = 4
#: Time without a request of the destination after which a session is ended.
IDLE_S: Final = 60.0
#: Default limit of bytes per second that a server sends, of all its copies together.
RATE_BYTES: Final = 256 << 20
#: A pause that is shorter is left out: a thread cannot sleep so precisely.
_PAUSE_MIN_S: Final = 0.002


class CopySession:
    """One destination that copies a tablet from here."""

    def __init__(self, session: int, tablet: str, number: int, server: str, pin: int) -> None:
        self.session = session
        self.tablet = tablet
        self.number = number
        #: Uuid of the destination.
        self.server = server
        #: Index up to which the log may go while the session is alive.
        self.pin = pin
        #: Why the session was ended; "" while it is alive.
        self.ended = ""
        self.sent = 0


class CopySessions:
    """All sessions of a source. Its owner calls every method on one thread."""

    def __init__(self, limit: int = OUT_MAX) -> None:
        self._limit = limit
        self._last = 0
        self._sessions: dict[tuple[str, int], CopySession] = {}
        #: Bytes sent since the process started.
        self.sent = 0

    def begin(self, tablet: str, number: int, server: str, pin: int) -> CopySession | None:
        """Begin a session. Return None if as many run as may."""
        former = self._sessions.pop((tablet, number), None)
        if former is not None:
            former.ended = "the destination has begun anew"
        if len(self._sessions) >= self._limit:
            return None
        self._last += 1
        session = self._sessions[tablet, number] = CopySession(self._last, tablet, number, server, pin)
        return session

    def end(self, session: CopySession, why: str = "done") -> None:
        """End a session. A session that another one has replaced is gone already."""
        session.ended = session.ended or why
        self.sent += session.sent
        session.sent = 0
        if self._sessions.get((session.tablet, session.number)) is session:
            del self._sessions[session.tablet, session.number]

    def end_all(self, why: str) -> None:
        """End every session."""
        for session in list(self._sessions.values()):
            self.end(session, why)

    def pin_of(self, tablet: str) -> int | None:
        """Return the index that the tablet's floor must not pass, None without a session."""
        return min((one.pin for one in self._sessions.values() if one.tablet == tablet), default=None)

    def count(self) -> int:
        """Return how many sessions are alive."""
        return len(self._sessions)


class Pace:
    """Limits the bytes per second of all copies of a source. The caller passes the time."""

    def __init__(self, bytes_per_s: int = RATE_BYTES) -> None:
        """`bytes_per_s` 0: no limit."""
        self._rate = bytes_per_s
        self._free_at_s = 0.0

    def pause_s(self, size: int, now_s: float) -> float:
        """Count `size` bytes, and return how long to wait before they are sent."""
        if not self._rate:
            return 0.0
        # Budget that was not used in an idle time is not saved.
        begin_s = max(self._free_at_s, now_s)
        self._free_at_s = begin_s + size / self._rate
        pause_s = begin_s - now_s
        return pause_s if pause_s >= _PAUSE_MIN_S else 0.0
