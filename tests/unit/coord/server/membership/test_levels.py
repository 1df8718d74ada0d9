"""Feature levels between nodes: when the level rises, which nodes are rejected, what a node does that is too old."""

from __future__ import annotations

import pytest

from coord.errors import UnsupportedLevel
from coord.raft.messages import LEVEL
from coord.server.node import Node
from coord.server.recovery.startup import recover
from coord.tree.levels import LEVELS, SUPPORTED, encode_level
from tests.support.store_nodes import SeededRng, StoreNodes

NEXT = SUPPORTED + 1


class Mixed(StoreNodes):
    """Nodes that announce their levels; `builds` has the level that each supports."""

    announces = True

    def __init__(self, builds: dict[int, int]) -> None:
        self._first = builds
        super().__init__(len(builds))

    def start(self, i: int) -> Node:
        self.builds.setdefault(i, self._first[i])
        return super().start(i)

    def replace(self, i: int, build: int) -> None:
        """Stop node `i` and start it on its disk with another build."""
        self.builds[i] = build
        self.crash(i)
        self.start(i)

    def levels(self) -> list[int]:
        """Return the level in force at each running node."""
        return [self.nodes[i].levels.in_force() for i in sorted(self.nodes)]


def raised_in_log(node: Node) -> list[int]:
    """Return the indexes of the LEVEL entries in a node's log."""
    return [entry.index for entry in node.core.log.entries if entry.kind == LEVEL]


def test_the_level_rises_once_the_last_member_supports_it() -> None:
    """Neither a majority nor a new leader is enough; the level is raised once."""
    nodes = Mixed({1: SUPPORTED, 2: 0, 3: 0})
    nodes.leader()
    nodes.run(20)
    assert nodes.levels() == [0, 0, 0]
    nodes.replace(2, SUPPORTED)
    nodes.leader()
    nodes.run(20)
    assert nodes.levels() == [0, 0, 0]
    nodes.replace(3, SUPPORTED)
    leader = nodes.leader()
    nodes.run(20)
    assert nodes.levels() == [SUPPORTED] * 3
    assert len(raised_in_log(leader)) == 1
    assert len({node.machine.digest() for node in nodes.nodes.values()}) == 1


def test_a_build_goes_back_before_the_raise() -> None:
    """The log has nothing of the newer build by then."""
    nodes = Mixed({1: SUPPORTED, 2: SUPPORTED, 3: 0})
    nodes.leader()
    nodes.run(20)
    nodes.replace(1, 0)
    nodes.replace(2, 0)
    nodes.leader()
    nodes.run(20)
    assert nodes.levels() == [0, 0, 0]


def test_the_level_waits_for_a_member_that_is_away() -> None:
    """The member announced the newer level before, but may return with any build."""
    nodes = Mixed({1: NEXT, 2: NEXT, 3: SUPPORTED})
    nodes.leader()
    nodes.run(20)
    assert nodes.levels() == [SUPPORTED] * 3
    nodes.crash(3)
    nodes.leader()
    nodes.run(20)
    assert nodes.levels() == [SUPPORTED] * 2
    nodes.builds[3] = NEXT
    nodes.start(3)
    nodes.leader()
    nodes.run(20)
    assert nodes.levels() == [NEXT] * 3


def test_a_node_above_its_build_does_not_start() -> None:
    """The level may be in its snapshot or only in its log."""
    nodes = Mixed({1: SUPPORTED, 2: SUPPORTED, 3: SUPPORTED})
    nodes.leader()
    nodes.run(20)
    with pytest.raises(UnsupportedLevel, match=f"the log has feature level {SUPPORTED}, this build"):
        recover(nodes.disks[1].power_cut(), 1, [1, 2, 3], SeededRng(1), supported=SUPPORTED - 1)
    nodes.nodes[2].take_snapshot()
    nodes.run(5)
    with pytest.raises(UnsupportedLevel, match=f"feature level {SUPPORTED}, this build"):
        recover(nodes.disks[2].power_cut(), 2, [1, 2, 3], SeededRng(1), supported=SUPPORTED - 1)


def test_a_node_stops_at_an_entry_above_its_build() -> None:
    """The links should have kept the entry away. If it arrives anyhow, the node does not pass it."""
    nodes = Mixed({1: SUPPORTED, 2: SUPPORTED, 3: SUPPORTED})
    leader = nodes.leader()
    nodes.run(20)
    follower = nodes.follower()
    nodes.may_stop = UnsupportedLevel
    zxid, index = follower.machine.last_zxid, follower.applied_index
    leader.machine.supported = NEXT
    for node in nodes.nodes.values():
        if node is not follower:
            node.machine.supported = NEXT
    leader.core.propose(encode_level(NEXT), LEVEL)
    nodes.settle()
    assert list(nodes.stopped) == [follower.settings.node_id]
    assert (follower.machine.last_zxid, follower.applied_index) == (zxid, index)
    assert nodes.levels() == [NEXT] * 2


def test_whose_level_does_not_fit_gets_no_link() -> None:
    """Both sentences name the node, the levels and the remedy."""
    nodes = Mixed({1: SUPPORTED, 2: SUPPORTED, 3: SUPPORTED})
    nodes.leader()
    nodes.run(20)
    levels = nodes.nodes[1].levels
    assert levels.objection(2, SUPPORTED, SUPPORTED) == ""
    below = levels.objection(2, SUPPORTED - 1, 0)
    assert below.startswith(f"the build of node 2 supports feature levels up to {SUPPORTED - 1}, the store has level")
    assert levels.trouble() == ""
    above = levels.objection(2, NEXT, NEXT)
    assert above.startswith("the build of this node (1) supports feature levels up to")
    assert nodes.nodes[1].trouble() == above
    levels.peer_announced(2, NEXT, SUPPORTED)
    assert nodes.nodes[1].trouble() == ""


def test_a_raise_that_is_not_committed_counts_for_links_until_it_is_replaced() -> None:
    """The leader has it in its log and may commit it; when another leader's entries replace it, no node is rejected."""
    nodes = Mixed({1: SUPPORTED, 2: SUPPORTED, 3: SUPPORTED})
    leader = nodes.leader()
    nodes.run(20)
    own = leader.settings.node_id
    others = [i for i in nodes.ids() if i != own]
    for other in others:
        nodes.cut(own, other)
    leader.core.propose(encode_level(NEXT), LEVEL)
    leader.turn_end()
    assert leader.levels.required() == NEXT
    nodes.run(60)
    for other in others:
        nodes.join(own, other)
    nodes.leader()
    nodes.run(40)
    assert leader.levels.required() == SUPPORTED
    assert nodes.levels() == [SUPPORTED] * 3


def test_a_newcomer_below_the_level_is_not_let_in() -> None:
    """Its last hello shows its level; with a newer build it is accepted."""
    nodes = Mixed({1: SUPPORTED})
    leader = nodes.leader()
    nodes.run(20)
    assert leader.levels.newcomer(9) == ""
    leader.levels.objection(9, 0, 0)
    assert "the build of node 9 supports feature levels up to 0" in leader.levels.newcomer(9)
    leader.levels.objection(9, SUPPORTED, 0)
    assert leader.levels.newcomer(9) == ""


def test_strangers_fill_nothing() -> None:
    """Any process that reaches the peer port can claim any id."""
    nodes = Mixed({1: SUPPORTED})
    leader = nodes.leader()
    nodes.run(20)
    for stranger in range(10, 10_000):
        leader.levels.objection(stranger, 0, 0)
    assert sum(leader.levels.newcomer(i) != "" for i in range(10, 10_000)) == 64


def test_every_level_is_described() -> None:
    """The log of the leader that raises the level has the description."""
    assert len(LEVELS) - 1 == SUPPORTED


def test_a_state_of_a_higher_level_is_required_at_once() -> None:
    """The state came from the leader, not from the log: links to older builds stayed, and their nodes received
    snapshots that they could not read (simulation, seed 6000142)."""
    nodes = Mixed({1: SUPPORTED, 2: SUPPORTED, 3: SUPPORTED})
    nodes.leader()
    nodes.run(20)
    node = nodes.nodes[1]
    required: list[int] = []
    node.levels.on_required = lambda: required.append(node.levels.required())
    node.levels.installed(node.applied_index, SUPPORTED)
    assert required == []
    node.levels.installed(node.applied_index, SUPPORTED - 1)
    assert required == [SUPPORTED]
