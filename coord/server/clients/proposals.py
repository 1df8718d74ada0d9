"""The commands of this node's own clients until they are applied, over any number of leader changes.

A command is *waiting* until this node sends it to a leader, then *sent* in that leader's term until this node applies
it. Every command is applied exactly once, in order, and clients do not notice a change of leader, because:

1. A leader of term T accepts only commands stamped T, so a command sent in T can only become part of an entry of term
   T.
2. Terms never decrease along the log. Once this node has applied an entry of a term T' > T, every entry of term T that
   will ever be applied has been applied before it. A command sent in T that has not been applied before will never be
   applied.
3. Only then this node sends the command again, stamped T', and before any newer command: the order of each session
   holds.
4. Within one term the link to the leader may break. Commands sent in a term are numbered 1, 2, 3, …. After a reconnect
   this node resends all commands not yet applied, and the leader skips the numbers that it has (`Forwarded`). The
   leader keeps the numbers for the whole term: if it leads again after a restart, it does so in a later term.

In one case this node cannot determine the outcome of a command: when a snapshot from the leader has replaced the state.
Then `forget` drops all commands, and the waiting connections are closed (ConnectionLoss). The leader may have some of
the dropped numbers and not others, so a forward without commands announces the next number, as on every new link.
"""

from __future__ import annotations

from collections import deque

from mypy_extensions import mypyc_attr

from coord.server.clients.connection import Connection, Pending


@mypyc_attr(acyclic=True)
class Sent:
    """One command of a client of this node, and the request that waits for it."""

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
    """The queue of this node's own commands. Invariant: all of `sent` was sent in `term` and precedes `waiting`."""

    def __init__(self) -> None:
        self.waiting: deque[Sent] = deque()
        self.sent: deque[Sent] = deque()
        #: The term in which the commands of `sent` were sent.
        self.term = 0
        #: Number, within `term`, of the oldest command in `sent`, or of the next command if `sent` is empty.
        self.first_number = 1
        #: Commands resent after a change of leader, since the start; for the metrics.
        self.resent = 0

    def outstanding(self) -> int:
        """Return the number of commands not applied yet."""
        return len(self.waiting) + len(self.sent)

    def take(self, term: int) -> tuple[int, list[Sent]]:
        """Move all waiting commands to `sent` in `term`; return the number of the first and the commands.

        Return no commands while commands of an earlier term may still be applied: rule 3.
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
        """Return the commands sent in `term` and not applied, for a new link to the leader: rule 4."""
        if self.term != term:
            return 0, []
        return self.first_number, list(self.sent)

    def entry_applied(self, term: int) -> None:
        """Move the commands sent before `term` back to `waiting`: an entry of `term` is being applied. Rule 2."""
        if term > self.term and self.sent:
            self.resent += len(self.sent)
            self.waiting.extendleft(reversed(self.sent))
            self.sent.clear()
            self.first_number = 1
            self.term = term

    def match(self, session_id: int, owner: int, cxid: int) -> Sent | None:
        """Remove the command of an outcome from the queue and return it; return None for another node's command."""
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
        """Drop all commands: a snapshot has replaced the state, and their outcome is unknown.

        Their numbers are not used again in this term: the leader may have them, and would skip other commands.
        """
        self.waiting.clear()
        self.first_number += len(self.sent)
        self.sent.clear()


class Forwarded:
    """At the leader: the commands accepted from each follower in the current term. Rules 1 and 4."""

    def __init__(self) -> None:
        self._term = 0
        self._next: dict[tuple[int, int], int] = {}

    def accept(self, term: int, peer: int, incarnation: int, first: int, commands: list[bytes]) -> list[bytes]:
        """Return the `commands` (numbered from `first`) that were not accepted before; `term` is this leader's.

        Raise ValueError for a gap in the numbers, which a link that keeps the order cannot cause.
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
