"""The entities of the cluster state: tables, regions, replicas, servers, and the order and the write of a replica.

They hold data and answer questions about themselves. Whatever indexes and counts depend on is changed by
`regions/cluster/state.py` alone.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from regions.cluster.work import OrderState, Standing, WriteState, next_order_state
from regions.records.model import (
    BarRecord,
    Incarnation,
    RegionRecord,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.replica_key import replica_key
from regions.transitions.states import Cause

OPEN: Final = 1
CLOSE: Final = 2


class Order:
    """An OPEN or CLOSE of one replica, sent to its server again and again until the store shows the outcome."""

    __slots__ = (
        "first_sent_ms",
        "is_acknowledged",
        "kind",
        "next_ms",
        "schema_version",
        "sends",
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
        self.sends = 0
        self.first_sent_ms = 0
        #: The server has answered at least once that it has begun.
        self.is_acknowledged = False
        #: The schema version in the order as first sent; -1: never sent.
        self.schema_version = -1

    def move_to(self, state: OrderState, key: str) -> None:
        """Take one step of `ORDER_NEXT`; `key` names the order's replica."""
        self.state = next_order_state(key, self.state, state)


class PendingWrite:
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
        "origin",
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
        #: (`regions/assign/catalog/schema_rollout.py`).
        self.behind: dict[str, Replica] = {}
        #: Since when it has been ALTERING, as far as this master saw; 0: it is not.
        self.altering_since_ms = 0
        #: It is removed, and that all of it is closed is being written.
        self.is_finishing = False
        #: What began the latest change of its intent or schema, as far as this master knows.
        self.origin: WorkOrigin | None = None

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

    `home`, `transition`, `version`, `order`, `write_state` and `write` are changed by `ClusterState` alone, which keeps
    the indexes and counts that are derived from them: `open_on`, `coming_to`, `standing`, `Server.open`,
    `Server.incoming`, `Table.counts` and `ClusterState.active`.
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
        "origin",
        "plan_id",
        "refusal",
        "region",
        "schema_version",
        "seen_ms",
        "standing",
        "transition",
        "version",
        "write",
        "write_state",
    )

    def __init__(self, region: Region, number: int) -> None:
        location = region.record.location(number)
        self.region = region
        self.number = number
        self.key = replica_key(region.record.region_id, number)
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
        self.write_state = WriteState.IDLE
        self.write: PendingWrite | None = None
        self.order: Order | None = None
        #: Destination uuid of a wanted move, "" for any; None: no move wanted.
        self.move: str | None = None
        self.move_plan = ""
        self.move_reason = ""
        self.plan_id = ""
        #: Why it waits for a destination.
        self.cause: Cause = Cause.ASSIGN
        #: What began the work that is being done on it; None: nothing is being done.
        self.origin: WorkOrigin | None = None
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
        "origin",
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
        #: What made it lose its regions: a drain, a bar, a fence, or its own announcement.
        self.origin: WorkOrigin | None = None
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
