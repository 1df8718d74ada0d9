"""Majority arithmetic: pure functions. A property test compares them with a search through every subset."""

from __future__ import annotations

from typing import Final

PENDING: Final = 0
WON: Final = 1
LOST: Final = 2


def majority(voters: int) -> int:
    """Return the number of voters that form a majority of `voters`."""
    assert voters >= 0, voters
    return voters // 2 + 1


def committed_index(acked: list[int]) -> int:
    """Return the highest index that a majority has. `acked` has one index per voter, 0 if unknown, in any order.

    The caller must still check that the entry there is of the current term: Raft §5.4.2.
    """
    assert acked, "a group without voters has no quorum"
    return sorted(acked)[(len(acked) - 1) // 2]


def vote_result(votes: dict[int, bool], voters: list[int]) -> int:
    """Return WON if a majority of `voters` granted its vote, LOST if no majority is possible, else PENDING.

    `votes` maps nodes to whether they granted their vote. Nodes that are not in `voters` are ignored.
    """
    granted = 0
    open_or_granted = 0
    for node in voters:
        answer = votes.get(node)
        if answer is None:
            open_or_granted += 1
        elif answer:
            granted += 1
            open_or_granted += 1
    needed = majority(len(voters))
    if granted >= needed:
        return WON
    return PENDING if open_or_granted >= needed else LOST
