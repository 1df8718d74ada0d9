"""The last rounds of the balancer in memory: when, which moves and why, or why there were none. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from regions.messages import BalanceMove

#: Number of latest rounds that are kept. Consecutive equal rounds without moves count as one.
ROUNDS_MAX: Final = 20
#: Moves of one round that are kept.
MOVES_MAX: Final = 50

#: Reasons of rounds without moves.
EVEN: Final = "no move would bring a server nearer to its share"


class LoggedRound(msgspec.Struct):
    """One round, or several in a row with the same result and no move."""

    #: Objects of the round: "regions", "members of tablets" or "leaders of tablets".
    what: str
    at_ms: int
    #: When the first of these rounds was.
    first_ms: int
    #: Number of these rounds.
    times: int = 1
    #: The number of moves, and the first MOVES_MAX of them. Source and destination are uuids.
    count: int = 0
    moves: list[BalanceMove] = []
    #: True if a limit ended the round while further moves would have paid.
    more: bool = False
    #: Why there were no moves, "" if there were some.
    why: str = ""


class RoundLog:
    """Rounds, oldest first."""

    def __init__(self) -> None:
        self.rounds: deque[LoggedRound] = deque(maxlen=ROUNDS_MAX)

    def moved(self, what: str, at_ms: int, moves: Iterable[BalanceMove], *, more: bool = False) -> None:
        """Record a round and its moves. Without moves the cluster is balanced."""
        found = list(moves)
        if not found:
            self.none(what, at_ms, EVEN)
            return
        self.rounds.append(LoggedRound(what, at_ms, at_ms, 1, len(found), found[:MOVES_MAX], more))

    def none(self, what: str, at_ms: int, why: str) -> None:
        """Note a round without moves."""
        for one in reversed(self.rounds):
            if one.what == what:
                if one.why == why:
                    one.at_ms, one.times = at_ms, one.times + 1
                    return
                break
        self.rounds.append(LoggedRound(what, at_ms, at_ms, why=why))
