"""Loads the tablets of a new active master into its keeper, a part in each turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from regions.cluster.state import ClusterState
from regions.records.model import TransitionRecord
from regions.replication.keeper import Keeper

#: Tablets or transitions that are loaded in one step.
LOADED_AT_ONCE: Final = 500


def load_tablets(
    keeper: Keeper, world: ClusterState, transitions: Iterable[tuple[TransitionRecord, int]], now_ms: int
) -> Iterator[None]:
    """Load tables and regions from the cluster state, which has just been loaded or adopted, then the transitions.

    Nothing may change the cluster state before the last step.
    """
    count = 0  # of all tables: there may be many small ones
    for table in world.tables.values():
        keeper.table_seen(table.record, table.version)
        for region in table.regions.values() if table.record.is_tablet else ():
            keeper.region_seen(region.record, region.version)
            count += 1
            if not count % LOADED_AT_ONCE:
                yield
    for count, (record, version) in enumerate(transitions, start=1):
        keeper.transition_seen(record.region_id, record.replica, record, version, now_ms)
        if not count % LOADED_AT_ONCE:
            yield
