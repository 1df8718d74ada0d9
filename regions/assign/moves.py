"""Accepted moves that have not begun, persisted in batches so that they survive a failover (FW-03).

A batch is one znode below `/moves`, written before the moves are acknowledged. A move has *begun* when its region's
CLOSING is in the store: the transition then carries the destination. A move is *void* if its region has left the source
for another reason: another move, a failover, or a replacement. When every move of a batch has begun or is void, the
batch is deleted. So loading a batch twice, or late, is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from regions.cluster import effects as fx
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.records.model import MoveBatch, WorkOrigin


class MoveBook:
    """The unfinished batches, and the replicas whose moves are pending."""

    def __init__(self, world: ClusterState, effects: Callable[[fx.Effect], None]) -> None:
        self._world = world
        self._effects = effects
        self._batches: dict[str, set[str]] = {}
        self._batch_of: dict[str, str] = {}
        self._plan_of: dict[str, str] = {}

    @property
    def pending(self) -> int:
        """Number of moves that have not begun."""
        return len(self._batch_of)

    def accept(self, batch: MoveBatch, origin: WorkOrigin) -> list[Replica]:
        """Add a batch that is in the store, with its origin. Return the replicas to decide about."""
        if batch.move_id in self._batches:
            return []
        keys = self._batches[batch.move_id] = set()
        self._plan_of[batch.move_id] = batch.plan_id
        wanted: list[Replica] = []
        for move in batch.moves:
            replica = self._world.replicas.get(move.key)
            if replica is None or replica.transition is not None or replica.home != move.source:
                continue
            self.drop(replica)
            assert move.key not in self._batch_of, f"the former move of {move.key} is pending"
            replica.move, replica.move_plan, replica.move_reason = move.destination, batch.plan_id, batch.reason
            replica.origin = origin
            keys.add(move.key)
            self._batch_of[move.key] = batch.move_id
            wanted.append(replica)
        self._finish_if_empty(batch.move_id)
        return wanted

    def want(self, replica: Replica, destination: str, plan_id: str, reason: str, origin: WorkOrigin) -> None:
        """Request a move that is not persisted and ends with this tenure."""
        self.drop(replica)
        assert replica.key not in self._batch_of, f"the former move of {replica.key} is pending"
        replica.move, replica.move_plan, replica.move_reason = destination, plan_id, reason
        if replica.transition is None:
            replica.origin = origin

    def drop(self, replica: Replica) -> None:
        """Remove the replica's move, which has begun or is void. Delete its batch if that was the last one."""
        replica.move, replica.move_plan, replica.move_reason = None, "", ""
        move_id = self._batch_of.pop(replica.key, None)
        if move_id is not None:
            assert replica.key in self._batches[move_id], f"the move of {replica.key} is not in its batch {move_id}"
            self._batches[move_id].discard(replica.key)
            self._finish_if_empty(move_id)

    def pending_of(self, plan_id: str) -> int:
        """Return how many moves of a plan have not begun."""
        return sum(len(self._batches[move_id]) for move_id, plan in self._plan_of.items() if plan == plan_id)

    def withdraw(self, plan_id: str) -> list[Replica]:
        """Cancel the pending moves of a plan. Return the replicas to decide about."""
        batches = [move_id for move_id, plan in self._plan_of.items() if plan == plan_id]
        found = [self._world.replicas.get(key) for move_id in batches for key in sorted(self._batches[move_id])]
        withdrawn = [replica for replica in found if replica is not None]
        self.drop_all(withdrawn)
        return withdrawn

    def drop_all(self, replicas: Iterable[Replica]) -> None:
        """Cancel the moves of these replicas."""
        for replica in replicas:
            if replica.move is not None:
                self.drop(replica)

    def validate(self) -> None:
        """Raise AssertionError if the three indexes differ, or if a pending move is not requested."""
        assert self._batches.keys() == self._plan_of.keys(), "a batch of moves has no plan, or a plan no batch"
        listed = {key: move_id for move_id, keys in self._batches.items() for key in keys}
        assert listed == self._batch_of, f"moves by batch {listed}, batches by move {self._batch_of}"
        for move_id, keys in self._batches.items():
            assert keys, f"batch {move_id} has no moves left, and was not finished"
        for key in self._batch_of:
            replica = self._world.replicas.get(key)
            assert replica is None or replica.move is not None, f"the move of {key} is pending, and not requested"

    def _finish_if_empty(self, move_id: str) -> None:
        if not self._batches[move_id]:
            del self._batches[move_id], self._plan_of[move_id]
            self._effects(fx.FinishMoves(move_id))
