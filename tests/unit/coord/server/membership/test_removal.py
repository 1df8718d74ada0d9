"""A removed node waits before its process ends: it may be added again."""

from __future__ import annotations

from collections.abc import Callable

from coord.server.membership.removal import LEAVE_S, Removal
from tests.support.members import answer, done, line, reconfig, store, super_client
from tests.support.store_nodes import StoreNodes


class Waiting:
    """A node of `nodes` that was removed and waits for its end."""

    def __init__(self, nodes: StoreNodes) -> None:
        self.boss = super_client(nodes, nodes.leader())
        self.id = nodes.follower().settings.node_id
        self.node = nodes.nodes[self.id]
        done(nodes, self.boss, do="remove", id=self.id)
        index = nodes.leader().membership.removed_since(self.id)
        for i in nodes.ids():
            nodes.cut(self.id, i)
        nodes.run(60)
        self.left = 0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.removal = Removal(
            self.node, self.node.membership, lambda after, do: self.timers.append((after, do)), self._leave, "data"
        )
        self.node.membership.removed(nodes.leader().settings.node_id, index)
        self.removal.turn_end()
        assert [after for after, _ in self.timers] == [LEAVE_S]
        for i in nodes.ids():
            if i != self.id:
                nodes.join(self.id, i)

    def _leave(self) -> None:
        self.left += 1

    def decide(self) -> None:
        """Let LEAVE_S pass."""
        self.timers[-1][1]()


def test_a_removed_node_leaves() -> None:
    """The node was not added again."""
    waiting = Waiting(store(3))
    waiting.decide()
    assert waiting.left == 1


def test_a_node_that_was_added_again_stays_though_no_leader_is_known() -> None:
    """Its members were electing a leader when the time was over; the process ended, and a store of two stood still."""
    nodes = store(3)
    waiting = Waiting(nodes)
    reconfig(waiting.boss, joining=line(waiting.id))
    assert answer(nodes, waiting.boss)[0] == 0
    for i in nodes.ids():
        if i != waiting.id:
            nodes.crash(i)
    nodes.run(60)
    assert not waiting.node.core.leader
    waiting.decide()
    assert waiting.left == 0
    assert waiting.node.membership.removed_at == 0
