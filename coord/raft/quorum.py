"""Majority arithmetic: pure functions, property-tested against a twin that tries every subset."""

from __future__ import annotations

from typing import Final

PENDING: Final = 0
WON: Final = 1
LOST: Final = 2


def majority(voters: int) -> int:
    """How many of `voters` are a majority."""
    return voters // 2 + 1


def committed_index(acked: list[int]) -> int:
    """The highest index that a majority holds; `acked` is one number per voter (0: nothing known), in any order.

    Never empty (membership refuses a group without voters). The caller must still check that the entry there is of the
    current term: Raft §5.4.2.
    """
    assert acked, "a group without voters has no quorum"
    return sorted(acked)[(len(acked) - 1) // 2]


def vote_result(votes: dict[int, bool], voters: list[int]) -> int:
    """WON once a majority of `voters` granted, LOST once a majority can no longer be had, PENDING otherwise.

    Answers of nodes that are not in `voters` count for nothing.
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
