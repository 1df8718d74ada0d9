"""The entities of the cluster state: tables, regions, replicas, servers, and the order and write of a replica.

Only `regions/cluster/state.py` changes the fields that indexes and counts are derived from.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import mypyc_attr

from regions.cluster.indexes.keyed import Keyed
from regions.cluster.work import ORDER_NEXT, WRITE_NEXT, OrderState, Standing, WriteState
from regions.records.model import (
    BarRecord,
    Incarnation,
    RegionRecord,
    ReplicaLocation,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.replica_key import replica_key
from regions.transitions.states import Cause

# Members of enums: a compiled module reads its own constant several times as fast.
_ASSIGN: Final = Cause.ASSIGN
_PAUSED: Final = OrderState.PAUSED
_MOVING: Final = Standing.MOVING
_OPEN: Final = Standing.OPEN
_PARKED: Final = Standing.PARKED
_ENABLED: Final = TableIntent.ENABLED
_ALTERING: Final = TableState.ALTERING
_RUNNING: Final = TableState.RUNNING
_IDLE: Final = WriteState.IDLE

OPEN: Final = 1
CLOSE: Final = 2


class Order:
    """An OPEN or CLOSE order for one replica, sent repeatedly until the store shows its outcome."""

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
        #: Only `move_to` changes the state.
        self.state = _PAUSED
        #: Time of the next sending. In state DONE: time of the next read of the transition.
        self.next_ms = next_ms
        #: Number of sendings.
        self.sends = 0
        #: Time of the first sending, 0 before it. From then on the order holds a slot of its server.
        self.first_sent_ms = 0
        #: True once the server has replied that it has begun.
        self.is_acknowledged = False
        #: Schema version in the order when it was first sent, -1 before.
        self.schema_version = -1

    def move_to(self, state: OrderState, key: str) -> None:
        """Change the state by a step of `ORDER_NEXT`. `key` is the order's replica."""
        self.state = next_order_state(key, self.state, state)


@mypyc_attr(acyclic=True)
class PendingWrite:
    """The write of a replica's transition that is in flight or held."""

    __slots__ = ("cause", "record", "region")

    def __init__(self, cause: Cause, record: TransitionRecord | None, region: RegionRecord | None) -> None:
        self.cause = cause
        #: The transition to be written, None for a delete.
        self.record = record
        #: The region's record that is written together with the delete, None if it does not change.
        self.region = region


class Table:
    """A table record at its znode's version, with counts of its replicas."""

    __slots__ = (
        "altering_since_ms",
        "behind",
        "counts",
        "is_finishing",
        "latest",
        "origin",
        "record",
        "regions",
        "version",
    )

    def __init__(self, record: TableRecord, version: int) -> None:
        self.record = record
        self.version = version
        self.regions: dict[str, Region] = {}
        #: The region that was added last; it may have been dropped since.
        self.latest: Region | None = None
        #: Number of replicas per standing. Only `count` changes it.
        self.counts = dict.fromkeys(Standing, 0)
        #: Replicas that are not known to have the latest schema, by key (`regions/assign/catalog/schema_rollout.py`).
        self.behind: dict[str, Replica] = {}
        #: Time at which this master has first observed ALTERING, 0 in other states.
        self.altering_since_ms = 0
        #: True while the end of the removed table is being written.
        self.is_finishing = False
        #: Origin of the latest change of the table's intent or schema, as far as this master knows.
        self.origin: WorkOrigin | None = None

    def count(self, former: Standing | None, present: Standing | None) -> None:
        """Count a replica as `present` instead of `former`; `former` is None for a new replica, `present` for a dropped
        one."""
        if former is not None:
            self.counts[former] -= 1
            assert self.counts[former] >= 0, f"{self.record.name}: the count of {former.value} replicas is negative"
        if present is not None:
            self.counts[present] += 1

    @property
    def replicas(self) -> int:
        """Number of all replicas."""
        return sum(self.counts.values())

    @property
    def open_replicas(self) -> int:
        """Number of replicas at rest on a live server."""
        return self.counts[_OPEN]

    @property
    def parked(self) -> int:
        """Number of parked replicas."""
        return self.counts[_PARKED]

    @property
    def rit(self) -> int:
        """Number of replicas in transition, including parked ones."""
        return self.counts[_MOVING] + self.counts[_PARKED]

    @property
    def altered(self) -> int:
        """Number of replicas that have the latest schema as far as this master knows, or will have it when they are
        opened."""
        return self.replicas - len(self.behind)

    @property
    def wants_open(self) -> bool:
        """True if the table's regions should be open: the table exists, and its intent is ENABLED."""
        record = self.record
        return record.intent is _ENABLED and (record.state is _RUNNING or record.state is _ALTERING)


class Region:
    """A region's record at its znode's version."""

    __slots__ = (
        "creating_since_ms",
        "is_given_up",
        "is_leaving",
        "is_replacing",
        "record",
        "replicas",
        "resharding",
        "table",
        "version",
    )

    def __init__(self, table: Table, record: RegionRecord, version: int) -> None:
        self.table = table
        self.record = record
        self.version = version
        self.replicas: tuple[Replica, ...] = ()
        #: Time at which this master observed that the region became CREATING; 0 in other states (DD-03).
        self.creating_since_ms = 0
        #: True if the region could not be created and will be replaced.
        self.is_given_up = False
        #: True while the replacement is being written.
        self.is_replacing = False
        #: First parent of the split or merge in which the region is a parent or a daughter; "" without one. Only
        #: `regions/assign/resharding/book.py` changes both fields.
        self.resharding = ""
        #: True for a parent that is to be closed and replaced.
        self.is_leaving = False

    @property
    def wants_open(self) -> bool:
        """True if the region's replicas should be open, by the intents of its table and of the region."""
        return self.table.wants_open and not self.record.unassigned and not self.is_leaving


class ReplicaWork:
    """Fields of a replica that are set only while it moves or fails. One of a million replicas at rest has none."""

    __slots__ = (
        "damage",
        "failed",
        "failure",
        "last_error",
        "move",
        "move_plan",
        "move_reason",
        "not_before_ms",
        "plan_id",
        "refusal",
    )

    def __init__(self) -> None:
        self.damage: tuple[Incarnation, str] | None = None
        self.failed: set[str] | None = None
        self.failure: tuple[int, str] | None = None
        self.last_error: str = ""
        self.move: str | None = None
        self.move_plan: str = ""
        self.move_reason: str = ""
        self.not_before_ms: int = 0
        self.plan_id: str = ""
        self.refusal: tuple[int, str] | None = None


class Replica:
    """One replica: its location, its transition, and the master's work on it.

    `home`, `transition`, `version`, `order`, `write_state` and `write` are changed by `ClusterState` alone, which keeps
    the indexes and counts that are derived from them: `open_on`, `coming_to`, `standing`, `is_active`, `Server.open`,
    `Server.incoming`, `Table.counts` and `ClusterState.active`.
    """

    __slots__ = (
        "_work",
        "cause",
        "coming_to",
        "home",
        "is_active",
        "key",
        "last_uuid",
        "number",
        "open_on",
        "order",
        "origin",
        "page_row",
        "region",
        "schema_version",
        "seen_ms",
        "standing",
        "transition",
        "version",
        "write",
        "write_state",
    )

    def __init__(
        self, region: Region, number: int, home: Incarnation | None = None, last_uuid: str | None = None
    ) -> None:
        self.region = region
        self.number = number
        self.key = replica_key(region.record.region_id, number)
        #: Server on which the replica is open according to the store. The server may be dead.
        self.home: Incarnation | None = home
        #: Server that had the replica last, for retained placement.
        self.last_uuid: str | None = last_uuid
        self.transition: TransitionRecord | None = None
        self.version = -1
        #: Time of the last change of the transition, as far as this master has observed.
        self.seen_ms = 0
        #: State of the assigner's work on the transition's znode. `write` is set in WRITING and HELD.
        self.write_state = _IDLE
        self.write: PendingWrite | None = None
        self.order: Order | None = None
        #: Fields that few replicas need; None while all of them have their default values.
        self._work: ReplicaWork | None = None
        #: Why the replica waits for a destination.
        self.cause: Cause = _ASSIGN
        #: Origin of the current work on the replica, None without work.
        self.origin: WorkOrigin | None = None
        #: Schema version last reported by the server that hosts the replica, -1 before the first report.
        self.schema_version = -1
        #: Number of the replica's row on the live page, which alone sets it; -1 for none.
        self.page_row = -1
        #: Live server that has the replica, and live server to which the replica is on its way.
        self.open_on: Server | None = None
        self.coming_to: Server | None = None
        #: How the table counts the replica, None if it is not in the cluster state.
        self.standing: Standing | None = None
        #: True while the replica is in `ClusterState.active`.
        self.is_active = False

    def forget_work(self, now_ms: int) -> None:
        """Release the rare fields after the end of a transition, unless one of them still matters."""
        work = self._work
        if work is None or work.move is not None or work.damage is not None or work.not_before_ms > now_ms:
            return
        if not (work.failed or work.failure or work.refusal or work.last_error or work.plan_id):
            self._work = None

    def _begun_work(self) -> ReplicaWork:
        """Return the object with the rare fields, which is made when the first of them is set."""
        if self._work is None:
            self._work = ReplicaWork()
        return self._work

    @property
    def damage(self) -> tuple[Incarnation, str] | None:
        """The server that has found damaged rows, and its description of the damage."""
        return None if self._work is None else self._work.damage

    @damage.setter
    def damage(self, value: tuple[Incarnation, str] | None) -> None:
        if self._work is not None or value is not None:
            self._begun_work().damage = value

    @property
    def failed(self) -> set[str] | None:
        """Servers that have failed to open the replica in this transition."""
        return None if self._work is None else self._work.failed

    @failed.setter
    def failed(self, value: set[str] | None) -> None:
        if self._work is not None or value is not None:
            self._begun_work().failed = value

    @property
    def failure(self) -> tuple[int, str] | None:
        """(version, error) of a failed open. The transition must be read at that version before the next step."""
        return None if self._work is None else self._work.failure

    @failure.setter
    def failure(self, value: tuple[int, str] | None) -> None:
        if self._work is not None or value is not None:
            self._begun_work().failure = value

    @property
    def last_error(self) -> str:
        """Last error that a server has reported, for operators. The transition has the errors of failed opens."""
        return "" if self._work is None else self._work.last_error

    @last_error.setter
    def last_error(self, value: str) -> None:
        if self._work is not None or value:
            self._begun_work().last_error = value

    @property
    def move(self) -> str | None:
        """Destination uuid of a requested move, "" for any server, None without a move."""
        return None if self._work is None else self._work.move

    @move.setter
    def move(self, value: str | None) -> None:
        if self._work is not None or value is not None:
            self._begun_work().move = value

    @property
    def move_plan(self) -> str:
        """Plan that requested the move."""
        return "" if self._work is None else self._work.move_plan

    @move_plan.setter
    def move_plan(self, value: str) -> None:
        if self._work is not None or value:
            self._begun_work().move_plan = value

    @property
    def move_reason(self) -> str:
        """Why the move was requested."""
        return "" if self._work is None else self._work.move_reason

    @move_reason.setter
    def move_reason(self, value: str) -> None:
        if self._work is not None or value:
            self._begun_work().move_reason = value

    @property
    def not_before_ms(self) -> int:
        """Time before which no order is sent."""
        return 0 if self._work is None else self._work.not_before_ms

    @not_before_ms.setter
    def not_before_ms(self, value: int) -> None:
        if self._work is not None or value:
            self._begun_work().not_before_ms = value

    @property
    def plan_id(self) -> str:
        """Bulk plan that placed the replica in this transition."""
        return "" if self._work is None else self._work.plan_id

    @plan_id.setter
    def plan_id(self, value: str) -> None:
        if self._work is not None or value:
            self._begun_work().plan_id = value

    @property
    def refusal(self) -> tuple[int, str] | None:
        """(version, error) of a refused order, until the transition has been read."""
        return None if self._work is None else self._work.refusal

    @refusal.setter
    def refusal(self, value: tuple[int, str] | None) -> None:
        if self._work is not None or value is not None:
            self._begun_work().refusal = value

    @property
    def wants_open(self) -> bool:
        """True if the replica should be open, by the intents of its table and region."""
        return self.region.wants_open

    @property
    def is_damaged(self) -> bool:
        """True if the server that has the replica open has reported damaged rows."""
        damage = self.damage
        return damage is not None and damage[0] == self.home

    @property
    def is_writing(self) -> bool:
        """True while a write of the transition is in flight, or held until the table's record has been read."""
        return self.write is not None

    @property
    def awaits_down(self) -> bool:
        """True if the replica is on a server that has ended, or on its way there. `ServerTracker.down` decides about
        all such replicas together."""
        on, coming = self.open_on, self.coming_to
        return (on is not None and on.has_ended) or (coming is not None and coming.has_ended)

    @property
    def is_at_rest(self) -> bool:
        """True if the replica is open as wanted, on a server that is not draining, without work in progress.

        This must be fast: at a takeover most of 100,000 regions are at rest.
        """
        server = self.open_on
        if server is None or self.transition is not None or self.order is not None:
            return False
        if self._work is not None and self._work.move is not None:
            return False
        return not server.draining and self.write is None and self.region.wants_open


class Server:
    """A live server and its replicas. A fenced server counts as live until its lease must have ended."""

    __slots__ = (
        "bar",
        "busy",
        "closes",
        "fenced_until_ms",
        "fencing",
        "group",
        "has_ended",
        "incarnation",
        "incoming",
        "kind",
        "latest",
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
        #: True if an operator drains the server.
        self.marked = draining
        #: Bar of the server: it gets no regions until the bar ends.
        self.bar: BarRecord | None = None
        #: Why the server is being fenced, "" if it is not.
        self.fencing = ""
        #: Time at which the lease of the fenced server must have ended; None until the fence is in the store (X10).
        self.fenced_until_ms: int | None = None
        #: True if this start is known to have ended, and decisions about its replicas follow in one of the next turns.
        self.has_ended = False
        #: Origin of the drain, bar, fence or stop that makes the server lose its regions.
        self.origin: WorkOrigin | None = None
        self.open: Keyed[Replica] = Keyed()
        self.incoming: dict[str, Replica] = {}
        #: Location in the record that was added last, to be shared by records that have an equal one.
        self.latest: tuple[ReplicaLocation, ...] = ()
        #: Replicas whose OPEN or CLOSE orders wait for a free slot.
        self.opens: deque[Replica] = deque()
        self.closes: deque[Replica] = deque()
        #: Orders that hold a slot, by replica key.
        self.busy: dict[str, Order] = {}
        #: Latest replica that the server got after another server had died while opening it.
        self.suspect = ""

    @property
    def is_ending(self) -> bool:
        """True if the server is being fenced or has ended: decisions about its replicas follow, so no orders do."""
        return bool(self.fencing) or self.has_ended

    @property
    def draining(self) -> bool:
        """True if the server must lose its replicas: it is drained, barred, fenced, about to stop, or has ended."""
        return self.marked or self.bar is not None or self.record.leaving or self.is_ending

    @property
    def load(self) -> int:
        """Number of replicas on the server or on their way to it."""
        return len(self.open) + len(self.incoming)


def next_write_state(key: str, before: WriteState, after: WriteState) -> WriteState:
    """Return `after`. Raise AssertionError if the table does not have the step. `key` is the replica."""
    assert after in WRITE_NEXT[before], f"{key} cannot go from {before.name} to {after.name}"
    return after


def next_order_state(key: str, before: OrderState, after: OrderState) -> OrderState:
    """Return `after`. Raise AssertionError if the table does not have the step. `key` is the order's replica."""
    assert after in ORDER_NEXT[before], f"order of {key} cannot go from {before.name} to {after.name}"
    return after
