"""The state of the cluster in a master's memory: tables, regions, replicas and servers, with indexes and counts.

The state is a cache of the store and never ahead of it: entries change after a write has committed or a znode has been
read (OC-05, MF-12). Orders, failed servers and times are not in the store. Losing them costs only time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import force_setattr

from regions.cluster.entities import Order, PendingWrite, Region, Replica, Server, Table, next_write_state
from regions.cluster.indexes.keyed import Keyed
from regions.cluster.work import Standing, WriteState
from regions.records.members import Storage
from regions.records.model import (
    BarRecord,
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableRecord,
    TableState,
    TabletState,
    TransitionRecord,
)
from regions.transitions.next_action import Party
from regions.transitions.states import Cause

# Members of enums: a compiled module reads its own constant several times as fast.
_ALIVE: Final = Party.ALIVE
_DEAD: Final = Party.DEAD
_NONE: Final = Party.NONE
_REGION_STATE_CLOSED: Final = RegionState.CLOSED
_CLOSING: Final = RegionState.CLOSING
_OFFLINE: Final = RegionState.OFFLINE
_OPENED: Final = RegionState.OPENED
_STANDING_CLOSED: Final = Standing.CLOSED
_MOVING: Final = Standing.MOVING
_OPEN: Final = Standing.OPEN
_PARKED: Final = Standing.PARKED
_REMOVED: Final = TableState.REMOVED
_DELETED: Final = TabletState.DELETED
_REPLACED: Final = TabletState.REPLACED
_HELD: Final = WriteState.HELD
_IDLE: Final = WriteState.IDLE
_UNREAD: Final = WriteState.UNREAD
_WRITING: Final = WriteState.WRITING
_TABLET: Final = Storage.TABLET

#: Returns the number itself; compiled code would make another one of the same value.
_start_code: Final[Callable[[Incarnation], Any]] = attrgetter("start_code")


class ClusterState:
    """All tables, regions, replicas and servers, with indexes."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.names: dict[str, Table] = {}
        self.regions: Keyed[Region] = Keyed()
        self.replicas: Keyed[Replica] = Keyed()
        #: Live servers by uuid, in order of registration.
        self.servers: dict[str, Server] = {}
        #: Uuids of flapping servers, and the time until which they get no regions.
        self.flapping: dict[str, int] = {}
        #: The latest servers that have stopped orderly or were fenced. Their end is no sign of a harmful region.
        self.departed: dict[Incarnation | None, None] = {}
        #: Bars by uuid, of live and dead servers.
        self.bars: dict[str, BarRecord] = {}
        #: Replicas with a transition or an order.
        self.active: dict[str, Replica] = {}
        #: Replicas that have changed or were removed, for the only reader, which empties the set. None without a
        #: reader.
        self.changed: set[Replica] | None = None
        #: Uuids of the servers whose load has fallen, for the only reader, which empties the set. None without a
        #: reader.
        self.unloaded: set[str] | None = None

    def put_table(self, record: TableRecord, version: int, regions: Iterable[tuple[RegionRecord, int]] = ()) -> Table:
        """Add a table with its regions, or apply its new record. The name is added last, because readers find the table
        by its name (OC-07)."""
        table = self.tables.get(record.table_id)
        if table is None:
            table = self.tables[record.table_id] = Table(record, version)
        elif table.record.name != record.name and self.names.get(table.record.name) is table:
            del self.names[table.record.name]
        for region, region_version in regions:
            self.put_region(region, region_version)
        table.record = record
        table.version = version
        if record.state is _REMOVED:
            if self.names.get(record.name) is table:
                del self.names[record.name]
        else:
            self.names[record.name] = table
        return table

    def is_finished(self, table: Table) -> bool:
        """Return True for a removed table whose replicas are all closed and not in transition."""
        if table.record.state is not _REMOVED or table.open_replicas or table.rit:
            return False
        replicas = (replica for region in table.regions.values() for replica in region.replicas)
        return self.tables.get(table.record.table_id) is table and not any(one.is_writing for one in replicas)

    def forget_table(self, table: Table) -> None:
        """Drop a removed table whose regions are all closed, with its regions."""
        for region in table.regions.values():
            del self.regions[region.record.region_id]
            for replica in region.replicas:
                self._unlink(replica)
        del self.tables[table.record.table_id]

    def drop_table(self, table: Table) -> None:
        """Drop a table whose record was deleted. Its regions must have been dropped before."""
        assert not table.regions, f"{table.record.name} still has regions"
        del self.tables[table.record.table_id]
        if self.names.get(table.record.name) is table:
            del self.names[table.record.name]

    def drop_region(self, region: Region) -> None:
        """Drop a region whose record was deleted or replaced, with its replicas."""
        for replica in region.replicas:
            self._unlink(replica)
        del region.table.regions[region.record.region_id]
        del self.regions[region.record.region_id]

    def set_servers(self, records: Mapping[str, ServerRecord], draining: Collection[str]) -> None:
        """Set the live servers, and update the links of the affected replicas."""
        former = [one for one in self.servers.values() if _is_gone(one, records)]
        for server in former:
            del self.servers[server.uuid]
        fresh: set[Incarnation] = set()
        for uuid, record in records.items():
            known = self.servers.get(uuid)
            if known is None:
                self.servers[uuid] = Server(record, uuid in draining)
                fresh.add(record.incarnation)
            else:
                known.record = record
                known.weight = record.weight
                known.marked = uuid in draining
        for server in former:
            for replica in [*server.open.values(), *server.incoming.values()]:
                self._relink(replica)
        if fresh:
            for replica in self.in_order():
                if _names(replica, fresh):
                    self._relink(replica)
        self.set_bars(self.bars.values())

    def drop_server(self, server: Server) -> list[Replica]:
        """Drop a server that is dead. Return the replicas that were on it or on their way to it."""
        assert self.servers.get(server.uuid) is server, f"{server.incarnation} is not known"
        del self.servers[server.uuid]
        affected = [*server.open.values(), *server.incoming.values()]
        for replica in affected:
            self._relink(replica)
        return affected

    def set_bars(self, bars: Iterable[BarRecord]) -> list[Server]:
        """Set the bars. Return the live servers whose bar has changed."""
        self.bars = {bar.uuid: bar for bar in bars}
        changed: list[Server] = []
        for server in self.servers.values():
            bar = self.bars.get(server.uuid)
            if server.bar != bar:
                changed.append(server)
                server.bar = bar
        return changed

    def put_region(self, record: RegionRecord, version: int) -> Region | None:
        """Add a region or apply its new record. Return None if its table is unknown or the region has ended."""
        region = self.regions.get(record.region_id)
        if region is not None:
            _share_texts(record, region.record)
            self._share_locations(record)
        if region is not None and record.state is _REPLACED:
            self.drop_region(region)
            return None
        if region is not None:
            region.record = record
            region.version = version
            return region
        table = self.tables.get(record.table_id)
        if table is None or record.state in (_DELETED, _REPLACED):
            return None
        region_id = record.region_id
        force_setattr(record, "table_id", table.record.table_id)
        self._share_key(table, record)
        self._share_locations(record)
        region = Region(table, record, version)
        self.regions[region_id] = table.regions[region_id] = table.latest = region
        # Members of tablets belong to their servers for good and are never assigned: `regions/replication/keeper.py`.
        if table.record.storage is not _TABLET:
            for number in range(table.record.replication):
                self._add_replica(region, number)
        return region

    def _add_replica(self, region: Region, number: int) -> None:
        """Add a replica of a new region. This must be fast: a cold takeover adds all replicas."""
        home: Incarnation | None = None
        on: Server | None = None
        location = location_in(region.record, number)
        uuid = None if location is None else location.uuid
        if location is not None and uuid is not None:
            on = self.servers.get(uuid)
            if on is not None and on.incarnation.start_code == location.start_code:
                home = on.incarnation
            else:
                on = None
                home = None if location.start_code is None else Incarnation(uuid, location.start_code)
        replica = Replica(region, number, home, uuid)
        region.replicas += (replica,)
        self.replicas[replica.key] = replica
        if on is not None:
            on.open[replica.key] = replica
            replica.open_on = on
        self._set_standing(replica, _STANDING_CLOSED if on is None else _OPEN)
        if self.changed is not None:
            self.changed.add(replica)

    def _share_locations(self, record: RegionRecord) -> None:
        """Let the record share texts, numbers and whole locations with other records. Decoding gives each record its
        own. Servers open many regions at once, so the locations of a server are often equal."""
        locations = record.replicas
        count = len(locations)  # a condition with `len` would make compiled code take the tuple apart
        for one in locations:
            if one.uuid is None:
                continue
            server = self.servers.get(one.uuid)
            if server is None:
                force_setattr(one, "uuid", sys.intern(one.uuid))
            elif count == 1 and locations == server.latest:
                if locations is not server.latest:
                    force_setattr(record, "replicas", server.latest)
            else:
                force_setattr(one, "uuid", server.uuid)
                if one.start_code == server.incarnation.start_code:
                    force_setattr(one, "start_code", _start_code(server.incarnation))
                server.latest = locations

    @staticmethod
    def _share_key(table: Table, record: RegionRecord) -> None:
        """Let the record share its start key with the end key of the region added before, if they are equal. Regions
        are mostly added in the order of their keys."""
        latest = table.latest
        if latest is not None and latest.record.end_key == record.start_key:
            force_setattr(record, "start_key", latest.record.end_key)

    def in_order(self) -> Iterable[Replica]:
        """Return all replicas in the order in which they were added; if there are many, table by table.

        A look at a million replicas in any other order takes eight times as long, because the processor's caches miss.
        """
        if not self.replicas.is_split:
            return self.replicas.values()
        return self._by_table()

    def _by_table(self) -> Iterator[Replica]:
        for table in self.tables.values():
            for region in table.regions.values():
                yield from region.replicas

    def adopt(self, other: ClusterState) -> None:
        """Take over the content of another cluster state, which must not be used afterwards."""
        assert not self.tables, "a cluster state that has tables cannot adopt another"
        self.tables, self.names, self.regions = other.tables, other.names, other.regions
        self.replicas, self.servers = other.replicas, other.servers
        self.flapping, self.active, self.bars = other.flapping, other.active, other.bars

    def find(self, key: str) -> Replica | None:
        """Return the replica with this key, or None.

        Look among the replicas with work first. They are few, so the processor's caches have them, while a look into
        the table of all replicas waits for the memory.
        """
        found = self.active.get(key)
        return self.replicas.get(key) if found is None else found

    def alive(self, incarnation: Incarnation | None) -> Server | None:
        """Return the live server with exactly this start code, or None."""
        if incarnation is None:
            return None
        server = self.servers.get(incarnation.uuid)
        if server is None or server.incarnation.start_code != incarnation.start_code:
            return None
        return server

    def party(self, incarnation: Incarnation | None) -> Party:
        """Return whether the server that a transition names is alive, dead, or none."""
        if incarnation is None:
            return _NONE
        return _DEAD if self.alive(incarnation) is None else _ALIVE

    # --- setters of the fields that indexes and counts are derived from -----------------------------------------------

    def set_transition(self, replica: Replica, record: TransitionRecord | None, version: int, seen_ms: int) -> None:
        """Set a replica's transition at its znode's version, or None and -1 without a znode."""
        assert (record is None) == (version < 0), f"{replica.key}: version {version} of {record}"
        replica.transition = record
        replica.version = version
        replica.seen_ms = seen_ms
        self.set_home(replica, replica.home)

    def set_home(self, replica: Replica, home: Incarnation | None) -> None:
        """Set the server on which a replica is open by its region's record, corrected by its transition."""
        transition = replica.transition
        if transition is not None:
            if transition.state is _OPENED and transition.destination is not None:
                home = transition.destination
                replica.last_uuid = home.uuid
            elif transition.state is _REGION_STATE_CLOSED:
                home = None
                if transition.source is not None:
                    replica.last_uuid = transition.source.uuid
            elif transition.state is _OFFLINE:
                home = None
        if home is not None:
            home = self.shared(home)
            if replica.last_uuid == home.uuid:
                replica.last_uuid = home.uuid
        replica.home = home
        self._relink(replica)

    def shared(self, home: Incarnation) -> Incarnation:
        """Return the live server's own object that equals `home`, else `home`: all regions of a server share one."""
        server = self.servers.get(home.uuid)
        return server.incarnation if server is not None and server.incarnation == home else home

    def set_order(self, replica: Replica, order: Order | None) -> None:
        """Set or clear (None) a replica's order. A replica with an order cannot get another one."""
        assert order is None or replica.order is None, f"{replica.key} has an order already"
        replica.order = order
        self._note_work(replica)

    def begin_write(
        self, replica: Replica, cause: Cause, record: TransitionRecord | None, region: RegionRecord | None = None
    ) -> None:
        """Record a write of the transition. From now on the replica counts as load of its destination."""
        assert replica.write is None, f"{replica.key} has a write on its way already"
        replica.write_state = next_write_state(replica.key, replica.write_state, _WRITING)
        replica.write = PendingWrite(cause, record, region)
        self._relink(replica)

    def hold_write(self, replica: Replica) -> None:
        """Hold a write that was refused because the table's record had changed, until the record has been read."""
        replica.write_state = next_write_state(replica.key, replica.write_state, _HELD)

    def repeat_write(self, replica: Replica) -> None:
        """Record that the write is sent again, with the newer version of the table's record."""
        assert replica.write is not None, f"{replica.key} has no write to repeat"
        replica.write_state = next_write_state(replica.key, replica.write_state, _WRITING)

    def commit_write(self, replica: Replica, version: int, now_ms: int) -> PendingWrite:
        """Apply a committed write: set the transition as written, at `version`. Return the write."""
        assert replica.write_state is _WRITING, (
            f"{replica.key} has no write on its way, but is {replica.write_state.name}"
        )
        write = self._take_write(replica, _IDLE)
        self.set_transition(replica, write.record, -1 if write.record is None else version, now_ms)
        return write

    def abandon_write(self, replica: Replica, after: WriteState) -> PendingWrite:
        """Drop a write that was canceled (`after` is IDLE) or refused (`after` is UNREAD). Return the write."""
        write = self._take_write(replica, after)
        self._relink(replica)
        return write

    def _take_write(self, replica: Replica, after: WriteState) -> PendingWrite:
        write = replica.write
        assert write is not None, f"{replica.key} has no write on its way"
        replica.write_state = next_write_state(replica.key, replica.write_state, after)
        replica.write = None
        return write

    def must_read(self, replica: Replica) -> None:
        """Record that the transition is being read: no decision is taken before the reply."""
        if replica.write_state is _IDLE:
            replica.write_state = next_write_state(replica.key, replica.write_state, _UNREAD)

    def has_read(self, replica: Replica) -> None:
        """Record that the transition has been read: decisions may be taken again."""
        if replica.write_state is _UNREAD:
            replica.write_state = next_write_state(replica.key, replica.write_state, _IDLE)

    def _relink(self, replica: Replica) -> None:
        """Update the servers' sets, the table's counts and `active` from the replica's primary fields."""
        transition = replica.transition
        on: Server | None = None
        coming: Server | None = None
        if transition is None:
            on = self.alive(replica.home)
        else:
            if transition.state is _CLOSING:
                on = self.alive(transition.source)
            coming = self.alive(transition.destination)
        if replica.write is not None and replica.write.record is not None:
            coming = self.alive(replica.write.record.destination)
        self._set_links(replica, on, coming)
        if transition is None:
            standing = _STANDING_CLOSED if on is None else _OPEN
        else:
            standing = _PARKED if transition.parked else _MOVING
        self._set_standing(replica, standing)
        self._note_work(replica)

    def _note_work(self, replica: Replica) -> None:
        """Update `active`, and note the change for the reader of `changed`."""
        is_active = replica.transition is not None or replica.order is not None
        if is_active != replica.is_active:
            replica.is_active = is_active
            if is_active:
                self.active[replica.key] = replica
            else:
                del self.active[replica.key]
        if self.changed is not None:
            self.changed.add(replica)

    def _unlink(self, replica: Replica) -> None:
        """Drop a replica of a dropped region from all sets and counts."""
        replica.transition = replica.write = replica.order = replica.home = None
        replica.write_state = _IDLE
        self._set_links(replica, None, None)
        self._set_standing(replica, None)
        if replica.is_active:
            replica.is_active = False
            del self.active[replica.key]
        replica.region.table.behind.pop(replica.key, None)
        del self.replicas[replica.key]
        if self.changed is not None:
            self.changed.add(replica)

    def _set_links(self, replica: Replica, on: Server | None, coming: Server | None) -> None:
        if replica.open_on is not on:
            if replica.open_on is not None:
                replica.open_on.open.pop(replica.key)
                if self.unloaded is not None:
                    self.unloaded.add(replica.open_on.uuid)
            if on is not None:
                on.open[replica.key] = replica
            replica.open_on = on
        if replica.coming_to is not coming:
            if replica.coming_to is not None:
                replica.coming_to.incoming.pop(replica.key, None)
                if self.unloaded is not None:
                    self.unloaded.add(replica.coming_to.uuid)
            if coming is not None:
                coming.incoming[replica.key] = replica
            replica.coming_to = coming

    @staticmethod
    def _set_standing(replica: Replica, standing: Standing | None) -> None:
        if standing is not replica.standing:
            replica.region.table.count(replica.standing, standing)
            replica.standing = standing

    def peers(self, replica: Replica) -> tuple[list[str], list[str]]:
        """Return uuids and racks of the servers that have, or are getting, the region's other replicas."""
        uuids: list[str] = []
        racks: list[str] = []
        for other in replica.region.replicas:
            if other is replica:
                continue
            for server in (other.open_on, other.coming_to):
                if server is not None:
                    uuids.append(server.uuid)
                    racks.append(server.rack)
        return uuids, racks

    def rit(self) -> Iterable[Replica]:
        """Return the replicas with a transition."""
        return [one for one in self.active.values() if one.transition is not None]


def location_in(record: RegionRecord, number: int) -> ReplicaLocation | None:
    """Return what `RegionRecord.location` returns, or None without a location: a call in compiled code."""
    for one in record.replicas:
        if one.replica == number:
            return one
    return None


def _is_gone(server: Server, records: Mapping[str, ServerRecord]) -> bool:
    record = records.get(server.uuid)
    return record is None or record.incarnation != server.incarnation


def _names(replica: Replica, servers: Collection[Incarnation]) -> bool:
    """Return True if the replica's location or transition names one of `servers`."""
    transition = replica.transition
    if replica.home in servers:
        return True
    return transition is not None and (transition.source in servers or transition.destination in servers)


def _share_texts(record: RegionRecord, former: RegionRecord) -> None:
    """Let the record share its ids and keys with its `former` version. Decoding gives each record texts of its own."""
    force_setattr(record, "table_id", former.table_id)
    if record is not former:
        force_setattr(record, "region_id", former.region_id)
        if record.start_key == former.start_key:
            force_setattr(record, "start_key", former.start_key)
        if record.end_key == former.end_key:
            force_setattr(record, "end_key", former.end_key)
