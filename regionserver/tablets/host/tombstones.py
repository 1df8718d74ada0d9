"""Votes of tombstones (FW-06): which leaders their servers hear, and the answers to vote requests. Pure.

The table of the answers is in `delivery.py`. A leader goes on to send messages to a voter that its server has removed.
As long as they arrive, the tombstone does not help another candidate to replace the leader, as a running follower does
not (Dissertation §4.2.3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coord.raft.messages import APPEND, COMMIT, HEARTBEAT, SNAPSHOT, Message
from regionserver.tablets.host.delivery import Ballot, ReplicaStanding, ballot_of, vote_answer
from regionserver.tablets.host.group import ELECTION_TICKS

#: Messages that only a leader sends.
_OF_LEADERS: Final = frozenset((APPEND, HEARTBEAT, COMMIT, SNAPSHOT))


class TombstoneVote:
    """A vote of a removed replica. `answer` leaves when term and vote are durable in the consensus metadata."""

    def __init__(self, tablet: str, server: str, answer: Message) -> None:
        self.tablet: str = tablet
        self.server: str = server
        self.term: int = answer.term
        self.vote: int = answer.dst
        self.answer: Message = answer


class LeadersHeard:
    """The leaders of tablets whose replica here is a tombstone: server, and tick of the latest message."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str, int]] = {}

    def note(self, tablet: str, server: str, m: Message, standing: ReplicaStanding, now: int) -> None:
        """Note a message to a tombstone, if a leader has sent it in the tombstone's term or a later one."""
        if m.kind in _OF_LEADERS and m.term >= standing.term:
            self._heard[tablet] = (server, now)

    def gone(self, server: str) -> None:
        """Forget the leaders on a server that is gone."""
        self._heard = {tablet: heard for tablet, heard in self._heard.items() if heard[0] != server}

    def answer(self, tablet: str, m: Message, standing: ReplicaStanding, now: int) -> tuple[Ballot, Message | None]:
        """Return how the tombstone answers a message, and the answer to a vote request; None for other messages."""
        heard = self._heard.get(tablet)
        is_led = heard is not None and now - heard[1] < ELECTION_TICKS
        ballot = ballot_of(m, replace(standing, is_led=is_led))
        return ballot, None if ballot is Ballot.SILENT else vote_answer(m, ballot, standing)
