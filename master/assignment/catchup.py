"""What a master may have missed while it was out of sight of the store, as events for its assigner."""

from __future__ import annotations

from coord.client.session import ZkClient
from master.catalog import store
from regions.cluster import events as ev
from regions.cluster.state import ClusterState
from regions.records.znodes import Layout


async def missed(client: ZkClient, layout: Layout, world: ClusterState) -> list[ev.Event]:
    """Read what others write, and what the outcome of our own writes may be: transitions, tables, moves.

    Servers and marks have watches of their own that look again by themselves. Regions' records need no look: servers
    write them together with OPENED, and whoever lost an answer of ours reads the record again.
    """
    transitions = await store.load_transitions(client, layout)
    tables = await store.load_tables(client, layout)
    fresh = [one for one, _ in tables if one.table_id not in world.tables and not one.finished_ms]
    regions = {one.table_id: await store.load_regions(client, layout, one.table_id) for one in fresh}
    moves = await store.load_moves(client, layout)
    events: list[ev.Event] = []
    for table, version in tables:
        known = world.tables.get(table.table_id)
        if known is None and table.table_id in regions:
            events.append(ev.TableSeen(table, version, regions[table.table_id]))
        elif known is not None and known.version != version:
            events.append(ev.TableSeen(table, version))
    for record, version in transitions:
        events.append(ev.TransitionRead(record.region_id, record.replica, record, version))
    present = {record.key for record, _ in transitions}
    for replica in world.rit():
        if replica.key not in present:
            events.append(ev.TransitionRead(replica.region.record.region_id, replica.number, None, -1))
    events.extend(ev.MovesAccepted(batch) for batch in moves)
    return events
