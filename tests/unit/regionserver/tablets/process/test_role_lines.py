"""Log lines about changes of role: one for each, or a count if there are many."""

from __future__ import annotations

from coord.raft.messages import RaftEvent
from regionserver.tablets.process.reports import ROLES_NAMED_MAX, role_lines


def test_a_few_changes_are_named_one_by_one() -> None:
    change = ("t1", RaftEvent("role", 3, "candidate -> leader"))
    assert role_lines([change, ("t1", RaftEvent("leader", 3, "1"))]) == ["tablet t1 term 3: candidate -> leader"]
    assert len(role_lines([change] * ROLES_NAMED_MAX)) == ROLES_NAMED_MAX
    assert role_lines([]) == []


def test_many_changes_are_one_line() -> None:
    stand = [(f"t{at}", RaftEvent("role", 1, "follower -> pre-candidate")) for at in range(ROLES_NAMED_MAX)]
    led = ("t0", RaftEvent("role", 2, "candidate -> leader"))
    assert role_lines([*stand, led]) == [
        f"{ROLES_NAMED_MAX} tablets, t0 the first: {ROLES_NAMED_MAX} follower -> pre-candidate, 1 candidate -> leader"
    ]
