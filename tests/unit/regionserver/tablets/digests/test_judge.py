"""Conclusions from the digests of a tablet's members."""

from __future__ import annotations

import pytest

from regionserver.tablets.digests.judge import ReplicaFacts, Verdict, judge, objection
from regionserver.tablets.digests.messages import QuarantineReplica

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


@pytest.mark.parametrize(
    ("found", "voters", "verdict", "differing"),
    [
        ({1: A, 2: A, 3: A}, (1, 2, 3), Verdict.EQUAL, ()),
        ({1: A}, (1, 2, 3), Verdict.EQUAL, ()),
        ({}, (1, 2, 3), Verdict.EQUAL, ()),
        ({1: A, 2: A, 3: B}, (1, 2, 3), Verdict.DIFFERS, (3,)),
        ({1: B, 2: A, 3: A}, (1, 2, 3), Verdict.DIFFERS, (1,)),
        # The third might agree with either.
        ({1: A, 2: B}, (1, 2, 3), Verdict.UNDECIDED, ()),
        ({1: A, 2: B, 3: C}, (1, 2, 3), Verdict.UNDECIDED, ()),
        ({1: A, 2: B}, (1, 2), Verdict.UNDECIDED, ()),
        # A silent member is not quarantined, and a majority of all voters decides.
        ({1: A, 2: A, 3: A, 4: B}, (1, 2, 3, 4, 5), Verdict.DIFFERS, (4,)),
        ({1: A, 2: A, 3: B, 4: B}, (1, 2, 3, 4, 5), Verdict.UNDECIDED, ()),
        ({1: A, 2: A, 4: B}, (1, 2, 3, 4, 5), Verdict.UNDECIDED, ()),
        ({1: A, 2: A, 3: A, 4: B, 5: C}, (1, 2, 3, 4, 5), Verdict.DIFFERS, (4, 5)),
        # Learners are compared, and do not vote about it.
        ({1: A, 2: A, 3: A, 4: B}, (1, 2, 3), Verdict.DIFFERS, (4,)),
        ({1: A, 2: B, 4: B, 5: B}, (1, 2, 3), Verdict.UNDECIDED, ()),
    ],
)
def test_a_majority_of_the_voters_decides(
    found: dict[int, bytes], voters: tuple[int, ...], verdict: Verdict, differing: tuple[int, ...]
) -> None:
    judgment = judge(found, voters)
    assert (judgment.verdict, judgment.differing) == (verdict, differing)
    if verdict is Verdict.DIFFERS:
        assert judgment.digest == A


ORDER = QuarantineReplica("s", "t", 3, 7, 1000, A, [1, 2])


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (ReplicaFacts("s", 3, 7, B), ""),
        (ReplicaFacts("s", 3, 6, B), ""),
        (ReplicaFacts("another", 3, 7, B), "this server is another"),
        (ReplicaFacts("s", 4, 7, B), "member 3 does not run here"),
        (ReplicaFacts("s", 0, 0, None), "member 3 does not run here"),
        (ReplicaFacts("s", 3, 8, B), "term 7 has ended"),
        (ReplicaFacts("s", 3, 7, None), "not known any more"),
        (ReplicaFacts("s", 3, 7, A), "are those of the majority"),
    ],
)
def test_a_replica_that_does_not_differ_stays_in_service(facts: ReplicaFacts, why: str) -> None:
    found = objection(ORDER, facts)
    assert why in found
    assert bool(found) is bool(why)
