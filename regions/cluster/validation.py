"""Recomputes every invariant of the cluster state from its records.

`validate` derives links, counts and indexes independently of the setters of `ClusterState`, and compares the results.
It raises AssertionError with the object and the broken invariant. The cost is proportional to the whole state, so tests
and simulations call `validate` after events, and the active master does not.
"""

from __future__ import annotations

from collections import Counter

from regions.cluster.entities import CLOSE, OPEN, Region, Replica, Server, Table
from regions.cluster.state import ClusterState
from regions.cluster.work import OrderState, Standing, WriteState
from regions.records.model import Incarnation, RegionState, TableState

#: States of a transition in which a server may work on an order of that kind.
_ORDER_FITS = {
    OPEN: (RegionState.OFFLINE, RegionState.OPENING),
    CLOSE: (None, RegionState.CLOSING),
}


def validate(world: ClusterState) -> None:
    """Raise AssertionError for the first invariant that does not hold."""
    for name, named in world.names.items():
        assert named.record.name == name, f"name {name!r} leads to table {named.record.name!r}"
        assert world.tables.get(named.record.table_id) is named, f"name {name!r} leads to a table that was dropped"
        assert named.record.state is not TableState.REMOVED, f"name {name!r} leads to a removed table"
    for table_id, table in world.tables.items():
        assert table.record.table_id == table_id, f"table {table.record.table_id} is filed as {table_id}"
        _check_table(world, table)
    regions = sum(len(table.regions) for table in world.tables.values())
    assert regions == len(world.regions), f"tables have {regions} regions, the index {len(world.regions)}"
    replicas = sum(len(region.replicas) for region in world.regions.values())
    assert replicas == len(world.replicas), f"regions have {replicas} replicas, the index {len(world.replicas)}"
    for uuid, server in world.servers.items():
        assert server.uuid == uuid, f"server {server.uuid} is filed as {uuid}"
        _check_server(world, server)
    for key in world.active:
        assert key in world.replicas, f"{key} was dropped, and is still active"


def _check_table(world: ClusterState, table: Table) -> None:
    counts: Counter[Standing] = Counter()
    for region_id, region in table.regions.items():
        assert region.record.region_id == region_id, f"region {region.record.region_id} is filed as {region_id}"
        assert region.table is table, f"region {region_id} belongs to another table than {table.record.name}"
        _check_region(world, region)
        counts.update(_standing(world, replica) for replica in region.replicas)
    for standing in Standing:
        counted = table.counts[standing]
        found = f"{counts[standing]} replicas are {standing.value}"
        assert counted == counts[standing], f"table {table.record.name} counts {counted}, but {found}"
    for key, replica in table.behind.items():
        is_ours = world.replicas.get(key) is replica and replica.region.table is table
        assert is_ours, f"{key} is behind in {table.record.name}, and is no replica of the table"


def _check_region(world: ClusterState, region: Region) -> None:
    region_id = region.record.region_id
    assert world.regions.get(region_id) is region, f"region {region_id} is not in the index"
    assert region.is_given_up or not region.is_replacing, f"region {region_id} is replaced without being given up"
    for number, replica in enumerate(region.replicas):
        assert (replica.region, replica.number) == (region, number), f"{replica.key} is replica {number} of {region_id}"
        assert world.replicas.get(replica.key) is replica, f"{replica.key} is not in the index"
        _check_records(replica)
        _check_links(world, replica)
        _check_order(world, replica)


def _check_records(replica: Replica) -> None:
    """Check the transition, the location derived from it, and the pending write."""
    key, transition, write = replica.key, replica.transition, replica.write
    has_write = replica.write_state in (WriteState.WRITING, WriteState.HELD)
    assert (write is not None) == has_write, f"{key} is {replica.write_state.name}, with the write {write}"
    if transition is None:
        assert replica.version == -1, f"{key} has no transition, at version {replica.version}"
        return
    state = transition.state
    assert replica.version >= 0, f"{key} has a transition without a version"
    assert transition.key == key, f"{key} has the transition of {transition.key}"
    assert state is RegionState.OFFLINE or not transition.parked, f"{key} is parked in {state.value}"
    if state in (RegionState.OFFLINE, RegionState.CLOSED):
        assert replica.home is None, f"{key} is {state.value}, and counts as open on {replica.home}"
    if state is RegionState.OPENED and transition.destination is not None:
        is_there = replica.home == transition.destination
        assert is_there, f"{key} was opened on {transition.destination}, and counts as open on {replica.home}"


def _check_links(world: ClusterState, replica: Replica) -> None:
    key = replica.key
    on, coming = _links(world, replica)
    assert replica.open_on is on, f"{key} is linked to {_name(replica.open_on)}, its records say {_name(on)}"
    linked = replica.coming_to
    assert linked is coming, f"{key} is on its way to {_name(linked)}, its records say {_name(coming)}"
    assert on is None or on.open.get(key) is replica, f"{key} is missing among the replicas of {_name(on)}"
    is_known = coming is None or coming.incoming.get(key) is replica
    assert is_known, f"{key} is missing among those on their way to {_name(coming)}"
    standing = _standing(world, replica)
    assert replica.standing is standing, f"{key} is counted as {replica.standing}, and is {standing}"
    is_active = replica.transition is not None or replica.order is not None
    is_listed = world.active.get(key) is replica
    assert is_listed == replica.is_active == is_active, f"{key}: active should be {is_active}"


def _check_order(world: ClusterState, replica: Replica) -> None:
    key, order = replica.key, replica.order
    if order is None:
        return
    server = order.server
    assert world.servers.get(server.uuid) is server, f"{key} has an order for {server.incarnation}, which is gone"
    state = None if replica.transition is None else replica.transition.state
    assert state in _ORDER_FITS[order.kind], f"{key} has an order of kind {order.kind} in {state}"
    was_sent = order.first_sent_ms > 0
    assert was_sent == (order.sends > 0), f"order of {key}: sent {order.sends} times, first at {order.first_sent_ms}"
    has_slot = server.busy.get(key) is order
    assert has_slot == was_sent, f"order of {key}: sent is {was_sent}, holds a slot is {has_slot}"
    assert was_sent or order.state in (OrderState.PAUSED, OrderState.QUEUED), f"order of {key} is {order.state}, unsent"
    if order.state is OrderState.QUEUED:
        queue = server.opens if order.kind == OPEN else server.closes
        assert any(one is replica for one in queue), f"order of {key} is QUEUED, and in no queue"


def _check_server(world: ClusterState, server: Server) -> None:
    name = server.incarnation
    for key, replica in server.open.items():
        assert replica.open_on is server, f"{name} has {key}, which is linked to {_name(replica.open_on)}"
        assert world.replicas.get(key) is replica, f"{name} has {key}, which was dropped"
    for key, replica in server.incoming.items():
        assert replica.coming_to is server, f"{name} gets {key}, which goes to {_name(replica.coming_to)}"
        assert world.replicas.get(key) is replica, f"{name} gets {key}, which was dropped"
    for key, order in server.busy.items():
        holder = world.replicas.get(key)
        is_held = holder is not None and holder.order is order
        assert is_held, f"{name} has a slot taken by an order of {key} that was dropped"
    assert server.fencing or server.fenced_until_ms is None, f"{name} was fenced for no reason"
    assert server.bar == world.bars.get(server.uuid), f"{name} is barred by {server.bar}, not as the store says"


def _links(world: ClusterState, replica: Replica) -> tuple[Server | None, Server | None]:
    """Return the server that has the replica and the server that will get it, by the records."""
    transition, write = replica.transition, replica.write
    holder = replica.home if transition is None else None
    target = None if transition is None else transition.destination
    if transition is not None and transition.state is RegionState.CLOSING:
        holder = transition.source
    if write is not None and write.record is not None:
        target = write.record.destination
    return _live(world, holder), _live(world, target)


def _standing(world: ClusterState, replica: Replica) -> Standing:
    if replica.transition is not None:
        return Standing.PARKED if replica.transition.parked else Standing.MOVING
    return Standing.CLOSED if _live(world, replica.home) is None else Standing.OPEN


def _live(world: ClusterState, incarnation: Incarnation | None) -> Server | None:
    server = None if incarnation is None else world.servers.get(incarnation.uuid)
    return server if server is not None and server.incarnation == incarnation else None


def _name(server: Server | None) -> str:
    return "no server" if server is None else str(server.incarnation)
