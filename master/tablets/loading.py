"""Loads the tablets of a new active master into its keeper, a part in each turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from regions.assign.catalog.takeover import in_steps
from regions.cluster.entities import Region
from regions.cluster.state import ClusterState
from regions.records.model import RegionRecord, TransitionRecord
from regions.replication.keeper import Keeper


def load_tablets(
    keeper: Keeper,
    world: ClusterState,
    transitions: Iterable[tuple[TransitionRecord, int]],
    now_ms: int,
    unread: dict[str, str],
) -> Iterator[None]:
    """Load tables and regions from the cluster state, which has just been loaded or adopted, then the transitions.

    Nothing may change the cluster state before the last step. The cluster state lacks tablets that were split or
    merged. Those of them that have transitions are added to `unread`, with their tables: their replicas were being
    deleted.
    """

    def tablets() -> Iterator[Region]:
        """Load the tables, and yield the tablets of all: there may be many small tables."""
        for table in world.tables.values():
            keeper.table_seen(table.record, table.version)
            if table.record.is_tablet:
                yield from table.regions.values()

    def read(transition: tuple[TransitionRecord, int]) -> None:
        record, version = transition
        if record.region_id not in keeper.tablets and record.table_id in keeper.tables:
            unread[record.region_id] = record.table_id
        keeper.transition_seen(record.region_id, record.replica, record, version, now_ms)

    yield from in_steps(tablets(), lambda region: keeper.region_seen(region.record, region.version))
    yield from in_steps(transitions, read)


def unread_numbers(keeper: Keeper, region: RegionRecord) -> Iterable[int]:
    """Return the numbers of members whose transitions are to be read: those of a region that the keeper does not know.

    The record of a replaced region names no members. Any number may have a replica that is being deleted.
    """
    if region.region_id in keeper.tablets:
        return ()
    return range(1, region.next_number) if region.is_replaced else [one.number for one in region.members]
