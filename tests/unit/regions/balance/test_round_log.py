"""The log of the balancer's rounds."""

from __future__ import annotations

from regions.balance.round_log import EVEN, MOVES_MAX, ROUNDS_MAX, RoundLog
from regions.messages import BalanceMove

MOVE = BalanceMove("r1", "t", "s1", "s2", "count: 5 of 4")


def test_a_round_keeps_its_moves_and_their_reasons() -> None:
    """The number is that of all moves. Fails if `moved` keeps them all."""
    log = RoundLog()
    log.moved("regions", 5, [MOVE] * (MOVES_MAX + 1), more=True)
    (found,) = log.rounds
    assert (found.count, found.moves, found.more, found.why) == (MOVES_MAX + 1, [MOVE] * MOVES_MAX, True, "")


def test_equal_rounds_without_moves_are_one() -> None:
    """Per kind, until a round moves something or has another reason. Fails if `none` looks at the last round alone."""
    log = RoundLog()
    log.moved("regions", 1, [])
    log.none("members of tablets", 2, "a server is away")
    log.moved("regions", 3, [])
    log.none("regions", 4, "r7 is in transition")
    log.moved("regions", 5, [MOVE])
    log.moved("regions", 6, [])
    assert [(one.what, one.first_ms, one.at_ms, one.times, one.why) for one in log.rounds] == [
        ("regions", 1, 3, 2, EVEN),
        ("members of tablets", 2, 2, 1, "a server is away"),
        ("regions", 4, 4, 1, "r7 is in transition"),
        ("regions", 5, 5, 1, ""),
        ("regions", 6, 6, 1, EVEN),
    ]


def test_the_oldest_rounds_are_dropped() -> None:
    """At most ROUNDS_MAX are kept."""
    log = RoundLog()
    for at_ms in range(ROUNDS_MAX + 3):
        log.moved("regions", at_ms, [MOVE])
    assert [one.at_ms for one in log.rounds] == list(range(3, ROUNDS_MAX + 3))
