"""The members whose servers a leader asks to copy the tablet's rows. Pure.

A server without a running replica refuses Raft's messages. Its member needs a copy of the rows, so the leader asks the
server to make one (StartTabletCopy). A member that was away for so long that the log has dropped the entries that it
needs is copied, too. The server checks the request itself. Rules:

- A server may make a new replica only for a PRE_VOTER or a learner. A voter that has lost its votes never starts again
  under its number: it is replaced under a new number. A FAILED voter still has its term and vote, and is copied again.
- A member that runs, and needs an entry which the leader's log has dropped, is copied again under its number.
- The leader asks for one copy per member at a time. After each answer it waits 0.25 s, then twice as long each time, at
  most 5 s. It asks again only if the server still refuses.
- A server that receives other copies queues a new one, and continues to refuse messages. So an accepted request stays
  open until the refusals change, because the copy has begun or has ended, or until ANSWER_TICKS have passed, because a
  restart loses the queue.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from regions.records.members import MemberRole
from regionserver.tablets.host.envelope import Word

#: Ticks (50 ms) between the answer to a question and the next question: the first pause, and the longest one.
PAUSE_TICKS: Final = 5
PAUSE_TICKS_MAX: Final = 100
#: Ticks after which an open question counts as answered: its server's process may be gone.
ANSWER_TICKS: Final = 200
#: Ticks without a refusal after which a member's pauses start from the shortest again.
FORGET_TICKS: Final = 600

#: Refusals that show the need for a copy, and the roles in which a member may be copied for that reason.
_NEWCOMERS: Final = frozenset((MemberRole.PRE_VOTER, MemberRole.LEARNER))
COPIED: Final = {
    Word.DOES_NOT_EXIST: _NEWCOMERS,
    Word.OLDER: _NEWCOMERS,
    # A voter whose copy was interrupted is a tombstone with its memory. Without the memory its server rejects the
    # request.
    Word.DELETED: frozenset(MemberRole),
    Word.FAILED: frozenset(MemberRole),
}


class CopyWanted(NamedTuple):
    """A question that the leader asks a member's server: copy the tablet from me, under this number."""

    tablet: str
    number: int
    server: str
    role: MemberRole
    term: int
    #: The server's refusal of a message: the word, and the number and the end of the log of its replica. None: the
    #: replica runs, and needs the entry `lacks`, which the leader's log has dropped.
    word: Word | None
    seen_number: int = 0
    seen_term: int = 0
    seen_index: int = 0
    lacks: int = 0


class _Asked:
    """The questions to one member."""

    def __init__(self) -> None:
        self.is_open = False
        self.pause = PAUSE_TICKS
        #: Refusal that led to the open question.
        self.word: Word | None = None
        #: Tick of the last request, tick of the last refusal, and first tick for the next request.
        self.asked = 0
        self.refused = 0
        self.next = 0


class WantedCopies:
    """The questions of all leaders of one server."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], _Asked] = {}

    def is_due(self, tablet: str, number: int, word: Word | None, role: MemberRole, now: int) -> bool:
        """Record a refusal, or (`word` None) a member that needs a dropped entry. Return True if the member's server is
        to be asked for a copy now."""
        key = (tablet, number)
        asked = self._asked.get(key)
        if asked is not None and word is not asked.word:
            self.answered(tablet, number, now)
        if word is not None and role not in COPIED.get(word, ()):
            return False
        if asked is None or now - asked.refused >= FORGET_TICKS:
            self._forget(now)
            asked = self._asked[key] = _Asked()
        asked.refused = now
        if asked.is_open and now - asked.asked >= ANSWER_TICKS:
            self.answered(tablet, number, now)
        if asked.is_open or now < asked.next:
            return False
        asked.is_open = True
        asked.asked = now
        asked.word = word
        return True

    def answered(self, tablet: str, number: int, now: int) -> None:
        """Close the open request: the server does not make the copy, or will not answer."""
        asked = self._asked.get((tablet, number))
        if asked is not None and asked.is_open:
            asked.is_open = False
            asked.next = now + asked.pause
            asked.pause = min(2 * asked.pause, PAUSE_TICKS_MAX)

    def _forget(self, now: int) -> None:
        """Drop members that have not refused anything for a while."""
        self._asked = {key: one for key, one in self._asked.items() if now - one.refused < FORGET_TICKS}
