"""Consensus metadata of a copied replica: whose term, whose vote, whose members (TC-14)."""

from __future__ import annotations

import pytest

from regionserver.tablets.copying.merge import SourceMeta, log_objection, merged
from regionserver.tablets.disk.superblock import Memory
from tests.unit.regionserver.tablets.disk.examples import MEMBERS, TABLET

OWN = Memory(term=5, vote=2, last_term=4, last_index=117)


def source(term: int) -> SourceMeta:
    return SourceMeta(term, 3, 40, MEMBERS.encode())


@pytest.mark.parametrize(
    ("own", "term", "expected"),
    [
        (OWN, 6, (6, 0)),  # a later term: no vote was given in it here, and the source's vote is another member's
        (OWN, 5, (5, 2)),  # the same term: this member has voted in it
        (OWN, 4, (5, 2)),  # an earlier one: the own term and vote stand
        (Memory(5, 0, 4, 117), 5, (5, 0)),
        (None, 6, (6, 0)),  # a number that was never here
    ],
)
def test_the_highest_term_wins_and_a_vote_is_never_taken_over(
    own: Memory | None, term: int, expected: tuple[int, int]
) -> None:
    found = merged(TABLET, 2, own, source(term))
    assert (found.term, found.vote) == expected
    assert (found.tablet, found.number) == (TABLET, 2)
    assert (found.config_term, found.config_index, found.members()) == (3, 40, MEMBERS)


@pytest.mark.parametrize(
    ("last", "is_enough"),
    [
        ((4, 117), True),
        ((4, 118), True),
        ((5, 10), True),  # of a later term: its leader had every committed entry
        ((4, 116), False),
        ((3, 900), False),
    ],
)
def test_a_copied_log_reaches_what_this_member_has_acknowledged(last: tuple[int, int], is_enough: bool) -> None:
    why = log_objection(OWN, *last)
    assert (why == "") is is_enough
    assert is_enough or f"entry {last[1]} of term {last[0]}" in why
    assert log_objection(None, 0, 0) == ""
