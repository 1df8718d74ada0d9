"""The three schedules that broke single-server membership changes (Ongaro, raft-dev, July 2015), step by step.

Two leaders, one after the other, change the members of a group of four; their new majorities need not overlap unless
the second one first commits an entry of its own term.
"""

from __future__ import annotations

import pytest

from coord.errors import ProposalDropped
from coord.raft.core import RaftConfig, RaftCore
from coord.raft.membership import Configuration
from coord.raft.messages import LEADER, TIMEOUT_NOW, VOTE, VOTE_RESP, Message, bootstrap
from simulation.engine.chance import SeededRandom
from tests.sim.raft.planted import EarlyConfigChange
from tests.support.interpreted import needs_interpreted

FIRST = Configuration([1, 2, 3, 4])
#: What the first leader changes, what the second changes, the peers that the first reaches in the end, and those of the
#: second.
SCHEDULES = {
    "add and remove": (FIRST.with_voter(5), FIRST.without(4), [1, 4, 5], [2, 3]),
    "add and add": (FIRST.with_voter(5), FIRST.with_voter(6), [1, 4, 5], [2, 3, 6]),
    "remove and remove": (FIRST.without(3), FIRST.without(1), [1, 4], [2, 3]),
}


class Group:
    """Cores driven by hand: messages are delivered only where a schedule allows them."""

    def __init__(self, kind: type[RaftCore]) -> None:
        start = bootstrap(FIRST.voters)
        self.cores = {i: kind(i, RaftConfig(), SeededRandom(i), start) for i in range(1, 7)}
        #: Index -> terms of the entries that some node considered committed there.
        self.committed: dict[int, set[int]] = {}

    def let(self, camp: list[int], kinds: tuple[int, ...] = ()) -> None:
        """Run everything that can happen among these nodes, with their disks; deliver only messages of these kinds, if
        any are given."""
        self._exchange(camp, kinds)
        for _ in range(0 if kinds else 5):
            for i in camp:
                if self.cores[i].role == LEADER:
                    self.cores[i].tick()  # the tick makes it notice lost messages
            self._exchange(camp, kinds)

    def _exchange(self, camp: list[int], kinds: tuple[int, ...]) -> None:
        moved = True
        while moved:
            moved = False
            for i in camp:
                core = self.cores[i]
                while core.has_ready():
                    moved = True
                    ready = core.ready()
                    if ready.must_persist:
                        core.persisted(ready.number)
                    for entry in ready.committed:
                        self.committed.setdefault(entry.index, set()).add(entry.term)
                    for message in [*ready.messages, *ready.messages_after_persist]:
                        if message.dst in camp and (not kinds or message.kind in kinds):
                            self.cores[message.dst].step(message)

    def elect(self, i: int, camp: list[int]) -> bool:
        """Let `i` stand for election among these nodes, a few times; only votes are delivered."""
        core = self.cores[i]
        while core.role == LEADER:
            core.tick()  # no node answers: it notices
        for _ in range(3):
            if core.role != LEADER:
                core.step(Message(TIMEOUT_NOW, camp[-1], i, core.term))
                self.let(camp, (VOTE, VOTE_RESP))
        return core.role == LEADER


def _begun(kind: type[RaftCore], first: Configuration, reached: list[int]) -> Group:
    """Let 1 change the members so that only an outsider receives it; then the others elect 2."""
    group = Group(kind)
    assert group.elect(1, FIRST.voters)
    group.let(FIRST.voters)
    group.cores[1].propose_config(first)
    group.let([i for i in reached if i not in (2, 3, 4)])
    assert group.elect(2, [2, 3, 4])
    return group


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_new_leader_waits_until_an_entry_of_its_term_is_committed(name: str) -> None:
    """A change is rejected before that; once it is allowed, nodes without the change cannot elect the predecessor."""
    first, second, camp_1, camp_2 = SCHEDULES[name]
    group = _begun(RaftCore, first, camp_1)
    with pytest.raises(ProposalDropped, match="no entry of this term is committed"):
        group.cores[2].propose_config(second)
    group.let([2, 3, 4])
    group.cores[2].propose_config(second)
    group.let(camp_2)
    assert group.cores[2].configs.newest_index() <= group.cores[2].log.commit
    assert not group.elect(1, camp_1)
    group.let(camp_1)
    assert all(len(terms) == 1 for terms in group.committed.values())


@needs_interpreted
@pytest.mark.parametrize("name", SCHEDULES)
def test_without_that_rule_two_histories_are_committed(name: str) -> None:
    """Without the rule the schedule ends with two entries committed at one index."""
    first, second, camp_1, camp_2 = SCHEDULES[name]
    group = _begun(EarlyConfigChange.core_class, first, camp_1)
    group.cores[2].propose_config(second)
    group.let(camp_2)
    assert group.cores[2].log.commit == group.cores[2].log.last
    assert group.elect(1, camp_1)
    group.let(camp_1)
    assert max(len(terms) for terms in group.committed.values()) == 2
