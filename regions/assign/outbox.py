"""Effects of the assigner that have not been taken yet, in order. Pure."""

from __future__ import annotations

from regions.cluster import effects as fx
from regions.cluster.causes import Causes
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState


class Outbox:
    """A list of effects. An effect without an origin gets the assigner's current origin."""

    def __init__(self, world: ClusterState, causes: Causes) -> None:
        self._world = world
        self._causes = causes
        self.effects: list[fx.Effect] = []

    def emit(self, effect: fx.Effect) -> None:
        """Add an effect."""
        if effect.origin is None:
            effect.origin = self._causes.current()
        self.effects.append(effect)

    def note(self, text: str, subject: str) -> None:
        """Add a log line. `subject` is the key of a replica, or a region id."""
        replica = self._world.replicas.get(subject)
        self.emit(fx.Note(text, subject, origin=None if replica is None else replica.origin))

    def read_transition(self, replica: Replica) -> None:
        """Request a read of the replica's transition."""
        self.emit(fx.ReadTransition(replica.region.record.region_id, replica.number, origin=replica.origin))

    def read_region(self, replica: Replica) -> None:
        """Request a read of the region's record."""
        record = replica.region.record
        self.emit(fx.ReadRegion(record.table_id, record.region_id, origin=replica.origin))
