"""Majority arithmetic compared with a twin that tries every subset of the voters."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from coord.raft.quorum import LOST, PENDING, WON, committed_index, majority, vote_result

INDEXES = st.lists(st.integers(0, 12), min_size=1, max_size=7)
VOTERS = st.lists(st.integers(1, 9), min_size=1, max_size=7, unique=True)
VOTES = st.dictionaries(st.integers(1, 9), st.booleans())


def naive_quorums(voters: list[int]) -> list[tuple[int, ...]]:
    """Every set of more than half of the voters."""
    return [
        some for size in range(len(voters) + 1) for some in combinations(voters, size) if 2 * len(some) > len(voters)
    ]


@given(INDEXES)
def test_committed_index_is_the_best_that_any_majority_holds(acked: list[int]) -> None:
    """The twin takes the minimum of each majority."""
    quorums = naive_quorums(list(range(len(acked))))
    assert committed_index(acked) == max(min(acked[i] for i in quorum) for quorum in quorums)


@given(INDEXES, st.data())
def test_more_acknowledgements_never_lower_the_index(acked: list[int], data: st.DataObject) -> None:
    """The commit index cannot fall because a peer caught up."""
    position = data.draw(st.integers(0, len(acked) - 1))
    better = list(acked)
    better[position] += data.draw(st.integers(0, 5))
    assert committed_index(better) >= committed_index(acked)


@given(VOTES, VOTERS)
def test_vote_result_agrees_with_every_majority(votes: dict[int, bool], voters: list[int]) -> None:
    """Won: some majority granted. Lost: every majority has a refusal. Votes of non-members do not matter."""
    quorums = naive_quorums(voters)
    won = any(all(votes.get(node) is True for node in quorum) for quorum in quorums)
    lost = all(any(votes.get(node) is False for node in quorum) for quorum in quorums)
    assert vote_result(votes, voters) == (WON if won else LOST if lost else PENDING)


@given(st.integers(1, 50))
def test_two_majorities_overlap_and_one_is_enough_for_both(voters: int) -> None:
    """All safety rests on this property."""
    assert 2 * majority(voters) > voters
    assert 2 * (majority(voters) - 1) <= voters


@given(st.integers(1, 50))
def test_majorities_overlap_over_a_change_of_one(voters: int) -> None:
    """So a membership change of one voter needs no joint configuration: Dissertation §4.1."""
    assert majority(voters) + majority(voters + 1) > voters + 1
