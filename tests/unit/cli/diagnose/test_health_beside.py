"""Faults of `rk health` that the drills' tests report: green while a client is refused, red while all are served."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.beside import GREEN, RED, REFUSED_S, Request, Round, greens_while_refused, reds_while_served


def served(at_s: float) -> Request:
    return Request("t:a", at_s, at_s + 0.1, True)


def refused(at_s: float) -> Request:
    return Request("t:a", at_s, at_s + REFUSED_S, False)


def rounds(verdict: str, *at_s: float) -> list[Round]:
    return [Round(one, one + 0.1, verdict, ("why",)) for one in at_s]


#: Refused from 1 to 4 s.
SENT = [served(0), refused(1), refused(2), refused(3), *(served(number) for number in range(4, 20))]


def test_green_between_two_refusals_is_wrong() -> None:
    """Outside of them the region may have answered."""
    assert greens_while_refused(SENT, rounds(GREEN, 0.5, 1.5, 3.5, 4.5)) == []
    assert greens_while_refused(SENT, rounds("degraded", 2.5)) == []
    assert greens_while_refused(SENT, rounds(GREEN, 2.5)) == [
        "green from 2.50 to 2.60 s: t:a refused from 2.00 to 3.00 s"
    ]
    other = [one._replace(what="t:b", is_served=True) for one in SENT]
    assert len(greens_while_refused([*SENT, *other], rounds(GREEN, 2.5))) == 1


def test_red_that_lasts_while_all_are_served_is_wrong() -> None:
    """A moment of it may be an outage between two requests."""
    assert reds_while_served(SENT, rounds(RED, 0.5, 2, 4, 5, 6)) == []
    assert reds_while_served(SENT, rounds(RED, 10)) == []
    [wrong] = reds_while_served(SENT, rounds(RED, 4, 6, 8, 10, 12))
    assert wrong == "red from 8.00 to 12.10 s while all were served: why"
    assert reds_while_served(SENT, [*rounds(RED, 8), *rounds(GREEN, 9), *rounds(RED, 10)]) == []


#: Refused from 5 to 17 s, with an answer each 0.2 s before and after.
OUTAGE = [*(served(number / 5) for number in range(25)), *(refused(number) for number in range(5, 17))]
OUTAGE += [served(17 + number / 5) for number in range(60)]


def health(verdict_at: Callable[[float], str]) -> list[Round]:
    """Return a round each 0.4 s, with the verdict that `verdict_at` has for its begin."""
    return [Round(one * 0.4, one * 0.4 + 0.1, verdict_at(one * 0.4), ("why",)) for one in range(72)]


def truth(at_s: float) -> str:
    return RED if 5 <= at_s <= 17 else GREEN


@pytest.mark.parametrize(
    ("verdict_at", "greens", "reds"),
    [
        (truth, False, False),
        (lambda _: GREEN, True, False),
        (lambda _: RED, False, True),
        (lambda at_s: truth(at_s - 5), True, True),
    ],
    ids=["true", "always green", "always red", "late by 5 s"],
)
def test_each_wrong_health_is_found(verdict_at: Callable[[float], str], greens: bool, reds: bool) -> None:
    """N16: an outage of 12 s, and a health that does not see it, sees nothing else, or sees it 5 s late."""
    rounds = health(verdict_at)
    assert bool(greens_while_refused(OUTAGE, rounds)) == greens
    assert bool(reds_while_served(OUTAGE, rounds)) == reds
