"""The master's picture of the cluster: tables, regions, replicas, servers, and how they hang together.

The picture is a cache of the store and never ahead of it: entries change after a write has committed or a znode has
been read (OC-05, MF-12). What is not in the store is the master's own: open orders, servers that failed a replica,
times since the last sign of life. All of that may be lost at any moment and costs only time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from regions.cluster.work import OrderState, Standing, Work, next_order, next_work
from regions.records.model import (
    BarRecord,
    Incarnation,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TabletState,
    TransitionRecord,
)
from regions.transitions.next_action import Party
from regions.transitions.states import Cause

OPEN: Final = 1
CLOSE: Final = 2


class Order:
    """An OPEN or CLOSE of one replica, sent to its server again and again until the store shows the outcome."""

    __slots__ = (
        "asks",
        "first_sent_ms",
        "is_acknowledged",
        "kind",
        "next_ms",
        "schema_version",
        "server",
        "state",
        "version",
    )

    def __init__(self, kind: int, server: Server, version: int, next_ms: int) -> None:
        self.kind = kind
        self.server = server
        #: Version of the transition that the order refers to, -1 for a close.
        self.version = version
        #: How far the order is on its way. Changed by `move_to` alone.
        self.state = OrderState.PAUSED
        #: When to send (again), or in state DONE: when to read the transition (again).
        self.next_ms = next_ms
        #: How often the order was sent, and when first; 0: never. From then on the order holds a slot of its server.
        self.asks = 0
        self.first_sent_ms = 0
        #: The server has answered at least once that it has begun.
        self.is_acknowledged = False
        #: The schema version in the order as first sent; -1: never sent.
        self.schema_version = -1

    def move_to(self, state: OrderState, key: str) -> None:
        """Take one step of `ORDER_NEXT`; `key` names the order's replica."""
        self.state = next_order(key, self.state, state)


class Write:
    """The one write of a replica's transition that is on its way, or held back."""

    __slots__ = ("cause", "record", "region")

    def __init__(self, cause: Cause, record: TransitionRecord | None, region: RegionRecord | None) -> None:
        self.cause = cause
        #: The transition as written; None: deleted.
        self.record = record
        #: The region's record that is written together with the delete; None: unchanged.
        self.region = region


class Table:
    """A table, its version, and counts of its replicas."""

    __slots__ = (
        "altering_since_ms",
        "behind",
        "counts",
        "is_finishing",
        "record",
        "regions",
        "version",
    )

    def __init__(self, record: TableRecord, version: int) -> None:
        self.record = record
        self.version = version
        self.regions: dict[str, Region] = {}
        #: How many replicas stand where. Changed by `count` alone.
        self.counts = dict.fromkeys(Standing, 0)
        #: While ALTERING: replicas that are not known to follow its latest schema, by key
        #: (`regions/assign/schema_rollout.py`).
        self.behind: dict[str, Replica] = {}
        #: Since when it has been ALTERING, as far as this master saw; 0: it is not.
        self.altering_since_ms = 0
        #: It is removed, and that all of it is closed is being written.
        self.is_finishing = False

    def count(self, former: Standing | None, present: Standing | None) -> None:
        """Count a replica as `present` instead of `former`; None: the replica is new, or is dropped."""
        if former is not None:
            self.counts[former] -= 1
            assert self.counts[former] >= 0, f"{self.record.name} has less than no replicas {former.value}"
        if present is not None:
            self.counts[present] += 1

    @property
    def replicas(self) -> int:
        """Replicas in all."""
        return sum(self.counts.values())

    @property
    def open_replicas(self) -> int:
        """Replicas at rest on a live server."""
        return self.counts[Standing.OPEN]

    @property
    def parked(self) -> int:
        """Replicas in transition that wait for an operator."""
        return self.counts[Standing.PARKED]

    @property
    def rit(self) -> int:
        """Replicas in transition, parked ones included."""
        return self.counts[Standing.MOVING] + self.counts[Standing.PARKED]

    @property
    def altered(self) -> int:
        """Replicas that follow its latest schema, as far as is known, or will when they are opened."""
        return self.replicas - len(self.behind)

    @property
    def wants_open(self) -> bool:
        """Whether the regions are to be open: the persisted intent, and a table that exists."""
        record = self.record
        return record.intent == TableIntent.ENABLED and record.state in (TableState.RUNNING, TableState.ALTERING)


class Region:
    """A region's record at its znode's version."""

    __slots__ = ("creating_since_ms", "is_given_up", "is_replacing", "record", "replicas", "table", "version")

    def __init__(self, table: Table, record: RegionRecord, version: int) -> None:
        self.table = table
        self.record = record
        self.version = version
        self.replicas: list[Replica] = []
        #: Since when it has been CREATING, as far as this master saw; 0: it is not (DD-03).
        self.creating_since_ms = 0
        #: It could not be created: another region is to take its place; and that is being written.
        self.is_given_up = False
        self.is_replacing = False

    @property
    def wants_open(self) -> bool:
        """Whether its replicas are to be open: the persisted intents of its table and of itself."""
        return self.table.wants_open and not self.record.unassigned


class Replica:
    """One replica: where it is, its transition, and what the master is doing about it.

    `home`, `transition`, `version`, `order`, `work` and `write` are changed by `ClusterState` alone, which keeps the
    indexes and counts that are derived from them: `open_on`, `coming_to`, `standing`, `Server.open`, `Server.incoming`,
    `Table.counts` and `ClusterState.active`.
    """

    __slots__ = (
        "cause",
        "coming_to",
        "damage",
        "failed",
        "failure",
        "home",
        "key",
        "last_error",
        "last_uuid",
        "move",
        "move_plan",
        "move_reason",
        "not_before_ms",
        "number",
        "open_on",
        "order",
        "plan_id",
        "refusal",
        "region",
        "schema_version",
        "seen_ms",
        "standing",
        "transition",
        "version",
        "work",
        "write",
    )

    def __init__(self, region: Region, number: int) -> None:
        location = region.record.location(number)
        self.region = region
        self.number = number
        self.key = f"{region.record.region_id}-{number}"
        #: Where the store says it is open; that server may be dead.
        self.home: Incarnation | None = location.incarnation
        #: Server that had it last, for retained placement.
        self.last_uuid: str | None = location.uuid
        self.transition: TransitionRecord | None = None
        self.version = -1
        #: What a server has found wrong with its rows, and which server that was.
        self.damage: tuple[Incarnation, str] | None = None
        #: When the transition last changed, as far as this master saw.
        self.seen_ms = 0
        #: What the assigner is doing about the transition's znode; `write` is set in WRITING and HELD.
        self.work = Work.IDLE
        self.write: Write | None = None
        self.order: Order | None = None
        #: Destination uuid of a wanted move, "" for any; None: no move wanted.
        self.move: str | None = None
        self.move_plan = ""
        self.move_reason = ""
        self.plan_id = ""
        #: Why it waits for a destination.
        self.cause: Cause = Cause.ASSIGN
        #: Servers that failed to open it in this transition.
        self.failed: set[str] | None = None
        #: (version, error) of a refused order whose reason must first be looked for in the store.
        self.refusal: tuple[int, str] | None = None
        #: (version, error) of a failed open: the transition is at that version, and must be read before the next step.
        self.failure: tuple[int, str] | None = None
        self.not_before_ms = 0
        #: Version of the table's schema that the server which has it open has told of; -1: none yet.
        self.schema_version = -1
        #: What a server said last about why it cannot, for people; the store has that of failed opens.
        self.last_error = ""
        self.open_on: Server | None = None
        self.coming_to: Server | None = None
        #: Where its table counts it; None: nowhere, it is not in the cluster state (any more).
        self.standing: Standing | None = None

    @property
    def wants_open(self) -> bool:
        """Whether it is to be open: what operators want of its table, and of the region itself."""
        return self.region.wants_open

    @property
    def is_damaged(self) -> bool:
        """Whether the server that has it open has read rows that are not what was written."""
        return self.damage is not None and self.damage[0] == self.home

    @property
    def is_writing(self) -> bool:
        """Whether a write of the transition is on its way, or held back until the table's record has been read."""
        return self.write is not None

    @property
    def is_at_rest(self) -> bool:
        """Nothing is to be done about it: open where it should be, on a server that keeps what it has. Of a hundred
        thousand regions all but a few are at rest when a master takes over, so this has to be quick."""
        server = self.open_on
        if server is None or self.transition is not None or self.move is not None or self.order is not None:
            return False
        return not server.draining and self.write is None and self.region.wants_open


class Server:
    """A live server and what it has, gets and loses. A fenced one counts as live until its lease must have run out."""

    __slots__ = (
        "bar",
        "busy",
        "closes",
        "fenced_until_ms",
        "fencing",
        "group",
        "incarnation",
        "incoming",
        "kind",
        "marked",
        "open",
        "opens",
        "rack",
        "record",
        "suspect",
        "uuid",
        "weight",
    )

    def __init__(self, record: ServerRecord, draining: bool) -> None:
        self.record = record
        self.uuid = record.uuid
        self.rack = record.rack
        self.weight = record.weight
        self.group = record.group
        self.kind = record.kind
        self.incarnation = record.incarnation
        #: An operator wants it empty.
        self.marked = draining
        #: It was fenced and gets no regions until this ends.
        self.bar: BarRecord | None = None
        #: Why it is being fenced, "" if it is not; and once it is, when its lease must have run out (X10).
        self.fencing = ""
        self.fenced_until_ms: int | None = None
        self.open: dict[str, Replica] = {}
        self.incoming: dict[str, Replica] = {}
        #: Orders that wait for a free slot, and those that hold one.
        self.opens: deque[Replica] = deque()
        self.closes: deque[Replica] = deque()
        self.busy: dict[str, Order] = {}
        #: The latest region that it got although another server died while opening it.
        self.suspect = ""

    @property
    def draining(self) -> bool:
        """Whether it gets nothing and is to lose what it has: marked, barred, leaving by itself, or fenced."""
        return self.marked or self.bar is not None or self.record.leaving or bool(self.fencing)

    @property
    def load(self) -> int:
        """Replicas here or on their way here."""
        return len(self.open) + len(self.incoming)


class ClusterState:
    """Everything the assigner knows, indexed."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.names: dict[str, Table] = {}
        self.regions: dict[str, Region] = {}
        self.replicas: dict[str, Replica] = {}
        #: By uuid, in order of arrival.
        self.servers: dict[str, Server] = {}
        #: Servers that come and go too often, and until when they get nothing.
        self.shunned: dict[str, int] = {}
        #: Servers that ended in order or were fenced, the latest of them: they died of no region.
        self.departed: dict[Incarnation | None, None] = {}
        #: Servers that were fenced and get nothing, alive or not, by uuid.
        self.bars: dict[str, BarRecord] = {}
        #: Replicas with a transition or an order.
        self.active: dict[str, Replica] = {}

    def put_table(self, record: TableRecord, version: int, regions: Iterable[tuple[RegionRecord, int]] = ()) -> Table:
        """Add a table with its regions, or take over its new record. The name, which shows it, comes last (OC-07)."""
        table = self.tables.get(record.table_id)
        if table is None:
            table = self.tables[record.table_id] = Table(record, version)
        elif table.record.name != record.name and self.names.get(table.record.name) is table:
            del self.names[table.record.name]
        for region, region_version in regions:
            self.put_region(region, region_version)
        table.record = record
        table.version = version
        if record.state is TableState.REMOVED:
            if self.names.get(record.name) is table:
                del self.names[record.name]
        else:
            self.names[record.name] = table
        return table

    def is_finished(self, table: Table) -> bool:
        """Whether it is a removed table of which nothing is open or in transition any more."""
        if table.record.state is not TableState.REMOVED or table.open_replicas or table.rit:
            return False
        replicas = (replica for region in table.regions.values() for replica in region.replicas)
        return self.tables.get(table.record.table_id) is table and not any(one.is_writing for one in replicas)

    def forget_table(self, table: Table) -> None:
        """A removed table is closed everywhere: nothing of it is looked at any more."""
        for region in table.regions.values():
            del self.regions[region.record.region_id]
            for replica in region.replicas:
                self._unlink(replica)
        del self.tables[table.record.table_id]

    def drop_table(self, table: Table) -> None:
        """The table's record is no more; its regions have been dropped before."""
        assert not table.regions, f"{table.record.name} still has regions"
        del self.tables[table.record.table_id]
        if self.names.get(table.record.name) is table:
            del self.names[table.record.name]

    def drop_region(self, region: Region) -> None:
        """The region's record is no more: nothing is open, coming or counted of it."""
        for replica in region.replicas:
            self._unlink(replica)
        del region.table.regions[region.record.region_id]
        del self.regions[region.record.region_id]

    def set_servers(self, records: Mapping[str, ServerRecord], draining: Collection[str]) -> None:
        """Exactly these live now; replicas are linked anew where that changes anything."""
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
            for replica in self.replicas.values():
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
        """Exactly these servers are barred now; return the live servers of which that changes anything."""
        self.bars = {bar.uuid: bar for bar in bars}
        changed: list[Server] = []
        for server in self.servers.values():
            bar = self.bars.get(server.uuid)
            if server.bar != bar:
                changed.append(server)
                server.bar = bar
        return changed

    def put_region(self, record: RegionRecord, version: int) -> Region | None:
        """Add a region or take over its new record; None if its table is unknown or the region is no more."""
        region = self.regions.get(record.region_id)
        if region is not None and record.state is TabletState.REPLACED:
            self.drop_region(region)
            return None
        if region is not None:
            region.record = record
            region.version = version
            return region
        table = self.tables.get(record.table_id)
        if table is None or record.state in (TabletState.DELETED, TabletState.REPLACED):
            return None
        region = Region(table, record, version)
        self.regions[record.region_id] = region
        table.regions[record.region_id] = region
        for number in range(table.record.replication):
            replica = Replica(region, number)
            region.replicas.append(replica)
            self.replicas[replica.key] = replica
            self._relink(replica)
        return region

    def adopt(self, other: ClusterState) -> None:
        """Be the picture that another has kept, which is of no more use to it."""
        self.tables, self.names, self.regions = other.tables, other.names, other.regions
        self.replicas, self.servers = other.replicas, other.servers
        self.shunned, self.active, self.bars = other.shunned, other.active, other.bars

    def alive(self, incarnation: Incarnation | None) -> Server | None:
        """The live server that is exactly this start, or None."""
        if incarnation is None:
            return None
        server = self.servers.get(incarnation.uuid)
        if server is None or server.incarnation.start_code != incarnation.start_code:
            return None
        return server

    def party(self, incarnation: Incarnation | None) -> Party:
        """How the server that a transition names fares."""
        if incarnation is None:
            return Party.NONE
        return Party.DEAD if self.alive(incarnation) is None else Party.ALIVE

    # --- the setters: everything that indexes and counts are derived from is changed here -----------------------------

    def set_transition(self, replica: Replica, record: TransitionRecord | None, version: int, seen_ms: int) -> None:
        """Take over a replica's transition as of `version` of its znode; None and -1: there is no znode."""
        assert (record is None) == (version < 0), f"{replica.key}: version {version} of {record}"
        replica.transition = record
        replica.version = version
        replica.seen_ms = seen_ms
        self.set_home(replica, replica.home)

    def set_home(self, replica: Replica, home: Incarnation | None) -> None:
        """Take over where the store says that a replica is open, which its transition may know better."""
        transition = replica.transition
        if transition is not None:
            if transition.state is RegionState.OPENED and transition.destination is not None:
                home = transition.destination
                replica.last_uuid = home.uuid
            elif transition.state is RegionState.CLOSED:
                home = None
                if transition.source is not None:
                    replica.last_uuid = transition.source.uuid
            elif transition.state is RegionState.OFFLINE:
                home = None
        replica.home = home
        self._relink(replica)

    def set_order(self, replica: Replica, order: Order | None) -> None:
        """Give a replica its order, or take its order away. One order must be taken away before another is given."""
        assert order is None or replica.order is None, f"{replica.key} has an order already"
        replica.order = order
        self._relink(replica)

    def begin_write(
        self, replica: Replica, cause: Cause, record: TransitionRecord | None, region: RegionRecord | None = None
    ) -> None:
        """A write of the transition goes out. The replica counts as the destination's load from now on."""
        replica.work = next_work(replica.key, replica.work, Work.WRITING)
        replica.write = Write(cause, record, region)
        self._relink(replica)

    def hold_write(self, replica: Replica) -> None:
        """The write was refused because the table's record has changed. Keep it until the record has been read."""
        replica.work = next_work(replica.key, replica.work, Work.HELD)

    def repeat_write(self, replica: Replica) -> Write:
        """The write goes out again, with the newer version of the table's record. Return the write."""
        assert replica.write is not None, f"{replica.key} has nothing to write again"
        replica.work = next_work(replica.key, replica.work, Work.WRITING)
        return replica.write

    def commit_write(self, replica: Replica, version: int, now_ms: int) -> Write:
        """The write has committed: take over the transition as written, now at `version`. Return the write."""
        assert replica.work is Work.WRITING, f"{replica.key} has no write on its way, but is {replica.work.name}"
        write = self._take_write(replica, Work.IDLE)
        self.set_transition(replica, write.record, -1 if write.record is None else version, now_ms)
        return write

    def abandon_write(self, replica: Replica, after: Work) -> Write:
        """The store has not taken the write: it is given up (`after` is IDLE) or was refused (UNREAD). Return it."""
        write = self._take_write(replica, after)
        self._relink(replica)
        return write

    def _take_write(self, replica: Replica, after: Work) -> Write:
        write = replica.write
        assert write is not None, f"{replica.key} has no write on its way"
        replica.work = next_work(replica.key, replica.work, after)
        replica.write = None
        return write

    def has_read(self, replica: Replica) -> None:
        """The transition has been read, so decisions may be taken again."""
        if replica.work is Work.UNREAD:
            replica.work = next_work(replica.key, replica.work, Work.IDLE)

    def _relink(self, replica: Replica) -> None:
        """Bring the servers' sets, the table's counts and `active` in line with the replica's primary fields."""
        transition = replica.transition
        on: Server | None = None
        coming: Server | None = None
        if transition is None:
            on = self.alive(replica.home)
        else:
            if transition.state is RegionState.CLOSING:
                on = self.alive(transition.source)
            coming = self.alive(transition.destination)
        if replica.write is not None and replica.write.record is not None:
            coming = self.alive(replica.write.record.destination)
        self._set_links(replica, on, coming)
        if transition is None:
            standing = Standing.CLOSED if on is None else Standing.OPEN
        else:
            standing = Standing.PARKED if transition.parked else Standing.MOVING
        self._set_standing(replica, standing)
        if transition is not None or replica.order is not None:
            self.active[replica.key] = replica
        else:
            self.active.pop(replica.key, None)

    def _unlink(self, replica: Replica) -> None:
        """Drop a replica whose region is no more: nothing is open, coming or counted of it."""
        replica.transition = replica.write = replica.order = replica.home = None
        replica.work = Work.IDLE
        self._set_links(replica, None, None)
        self._set_standing(replica, None)
        self.active.pop(replica.key, None)
        replica.region.table.behind.pop(replica.key, None)
        del self.replicas[replica.key]

    @staticmethod
    def _set_links(replica: Replica, on: Server | None, coming: Server | None) -> None:
        if replica.open_on is not on:
            if replica.open_on is not None:
                replica.open_on.open.pop(replica.key, None)
            if on is not None:
                on.open[replica.key] = replica
            replica.open_on = on
        if replica.coming_to is not coming:
            if replica.coming_to is not None:
                replica.coming_to.incoming.pop(replica.key, None)
            if coming is not None:
                coming.incoming[replica.key] = replica
            replica.coming_to = coming

    @staticmethod
    def _set_standing(replica: Replica, standing: Standing | None) -> None:
        if standing is not replica.standing:
            replica.region.table.count(replica.standing, standing)
            replica.standing = standing

    def peers(self, replica: Replica) -> tuple[list[str], list[str]]:
        """Uuids and racks of the servers that have, or are getting, the region's other replicas."""
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
        """Replicas with a transition."""
        return [one for one in self.active.values() if one.transition is not None]


def _is_gone(server: Server, records: Mapping[str, ServerRecord]) -> bool:
    record = records.get(server.uuid)
    return record is None or record.incarnation != server.incarnation


def _names(replica: Replica, servers: Collection[Incarnation]) -> bool:
    """Whether the replica's place or its transition names one of `servers`."""
    transition = replica.transition
    if replica.home in servers:
        return True
    return transition is not None and (transition.source in servers or transition.destination in servers)
