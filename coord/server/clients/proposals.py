"""The commands of this node's own clients on their way into the log, over any number of leader changes.

A command is *waiting* until it is handed to a leader, then *sent* in that leader's term until it is seen applied.
Every command is applied exactly once, in order, without the client noticing a change of leader, because:

1. A leader of term T takes only commands stamped T, so a command sent in T can only become part of an entry of term T.
2. Terms never fall along the log. Once this node has applied an entry of a term T' > T, every entry of term T that will
   ever be applied has been applied before it. What was sent in T and was not seen by then is dead for ever.
3. Only then is it sent again, stamped T', and always before anything newer: the order of each session is kept.
4. Within one term the connection to the leader may break. Commands sent in a term are numbered 1, 2, 3, …; after a
   reconnect everything not yet applied is sent once more, and the leader skips the numbers it has (`Forwarded`). It
   knows them as long as the term lasts, because a leader that restarts leads, if ever, in a later term.

The one case where this node cannot see what became of a command is a state taken over from a snapshot. Then `forget`
drops everything, and the connections waiting are closed: ConnectionLoss is the honest answer. Of the numbers forgotten
the leader may have seen some and not others, so it is told from which one to go on (a forward without commands), as it
is on every new connection.
"""

from __future__ import annotations

from collections import deque

from mypy_extensions import mypyc_attr

from coord.server.clients.connection import Connection, Pending


@mypyc_attr(acyclic=True)
class Sent:
    """One command of a client of this node, and who waits for it."""

    __slots__ = ("command", "connection", "cxid", "owner", "pending", "session_id", "since_ms")

    def __init__(
        self,
        session_id: int,
        owner: int,
        cxid: int,
        command: bytes,
        connection: Connection,
        pending: Pending,
        since_ms: int = 0,
    ) -> None:
        self.session_id = session_id
        self.owner = owner
        self.cxid = cxid
        self.command = command
        self.connection = connection
        self.pending = pending
        self.since_ms = since_ms


class Proposals:
    """The queue of this node's own commands. Invariant: everything sent was sent in `term` and precedes what waits."""

    def __init__(self) -> None:
        self.waiting: deque[Sent] = deque()
        self.sent: deque[Sent] = deque()
        #: The term in which `sent` was sent.
        self.term = 0
        #: Number, within `term`, of the oldest of `sent` (of the next to be sent when there is none).
        self.first_number = 1
        #: How many commands were sent again after a leader change, for the metrics.
        self.resent = 0

    def outstanding(self) -> int:
        """Commands not seen applied."""
        return len(self.waiting) + len(self.sent)

    def take(self, term: int) -> tuple[int, list[Sent]]:
        """Mark everything that waits as sent in `term`; returns the number of the first and the commands.

        Nothing is taken while commands of an earlier term may still be alive: rule 3.
        """
        if self.term != term:
            if self.sent or term < self.term:
                return 0, []
            self.term = term
            self.first_number = 1
        taken = list(self.waiting)
        first = self.first_number + len(self.sent)
        self.sent.extend(taken)
        self.waiting.clear()
        return first, taken

    def unapplied(self, term: int) -> tuple[int, list[Sent]]:
        """What was sent in `term` and not seen applied: to be sent again over a new connection. Rule 4."""
        if self.term != term:
            return 0, []
        return self.first_number, list(self.sent)

    def entry_applied(self, term: int) -> None:
        """An entry of `term` is being applied: commands sent in earlier terms are dead and wait again. Rule 2."""
        if term > self.term and self.sent:
            self.resent += len(self.sent)
            self.waiting.extendleft(reversed(self.sent))
            self.sent.clear()
            self.first_number = 1
            self.term = term

    def match(self, session_id: int, owner: int, cxid: int) -> Sent | None:
        """The command an outcome belongs to, if it is one of this node's; it leaves the queue."""
        sent = self.sent
        if not sent:
            return None
        head = sent[0]
        if head.session_id != session_id or head.owner != owner or head.cxid != cxid:
            return None
        sent.popleft()
        self.first_number += 1
        return head

    def forget(self) -> None:
        """A snapshot replaced the state: nobody can say what became of the commands.

        Their numbers stay taken in this term: the leader may have seen them, and would skip others of these numbers.
        """
        self.waiting.clear()
        self.first_number += len(self.sent)
        self.sent.clear()


class Forwarded:
    """The leader's side: which commands of each follower it has taken in the current term. Rules 1 and 4."""

    def __init__(self) -> None:
        self._term = 0
        self._next: dict[tuple[int, int], int] = {}

    def accept(self, term: int, peer: int, incarnation: int, first: int, commands: list[bytes]) -> list[bytes]:
        """Those of `commands` (numbers from `first`) that have not been taken yet; `term` is this leader's own.

        Raises ValueError when numbers are missing, which a connection that keeps the order cannot produce.
        """
        if term != self._term:
            self._term = term
            self._next.clear()
        key = (peer, incarnation)
        expected = self._next.get(key, 1)
        if not commands:
            self._next[key] = max(expected, first)
            return []
        if first > expected:
            raise ValueError(f"peer {peer} sent command {first} of term {term}, expected {expected}")
        fresh = commands[expected - first :]
        self._next[key] = max(expected, first + len(commands))
        return fresh
