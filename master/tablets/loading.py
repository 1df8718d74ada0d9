"""Loads the tablets of a new active master into its keeper, a part in each turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from regions.assign.catalog.takeover import in_steps
from regions.cluster.entities import Region
from regions.cluster.state import ClusterState
from regions.records.model import TransitionRecord
from regions.replication.keeper import Keeper


def load_tablets(
    keeper: Keeper, world: ClusterState, transitions: Iterable[tuple[TransitionRecord, int]], now_ms: int
) -> Iterator[None]:
    """Load tables and regions from the cluster state, which has just been loaded or adopted, then the transitions.

    Nothing may change the cluster state before the last step.
    """

    def tablets() -> Iterator[Region]:
        """Load the tables, and yield the tablets of all: there may be many small tables."""
        for table in world.tables.values():
            keeper.table_seen(table.record, table.version)
            if table.record.is_tablet:
                yield from table.regions.values()

    def read(transition: tuple[TransitionRecord, int]) -> None:
        record, version = transition
        keeper.transition_seen(record.region_id, record.replica, record, version, now_ms)

    yield from in_steps(tablets(), lambda region: keeper.region_seen(region.record, region.version))
    yield from in_steps(transitions, read)
