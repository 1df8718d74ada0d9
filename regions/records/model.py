"""The nouns of the region layer: servers, tables, regions and transitions, as the store keeps them.

Every struct here is the value of a znode (`regions/records/znodes.py` says of which) or a part of one. They are frozen:
a change is a new record made with `msgspec.structs.replace`, written by compare-and-set, and only then believed.

Keys are text and ranges are half-open: `[start_key, end_key)`; the empty string means "no bound" on either side.
Times are milliseconds of the writer's wall clock, for people; no decision compares them across machines.
"""

from __future__ import annotations

import enum

import msgspec

from regions.records.members import ConfigId, Member, Storage, check_members
from regions.records.replica_key import replica_key
from regions.records.schema import Schema


class RegionState(enum.StrEnum):
    """State of a transition znode; `regions/transitions/states.py` has the legal steps (S4 rules)."""

    OFFLINE = "OFFLINE"
    OPENING = "OPENING"
    OPENED = "OPENED"
    CLOSING = "CLOSING"
    CLOSED = "CLOSED"


class Intent(enum.StrEnum):
    """What is to become of a region once its transition reaches CLOSED (S4 §3, FW-03)."""

    OPEN = "open"  #: open it again: at the destination if one is named and alive, else anywhere
    CLOSE = "close"  #: do not reopen: its table is being disabled or deleted


class TableState(enum.StrEnum):
    """Life of a table (S0 Appendix B, names as settled in X12)."""

    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    ALTERING = "ALTERING"
    REMOVED = "REMOVED"

    @classmethod
    def _missing_(cls, value: object) -> TableState | None:
        """X12: the document has the words for tables and tablets both ways round; both are understood."""
        return cls.REMOVED if value == "DELETED" else None


class TableIntent(enum.StrEnum):
    """What the operator wants of a table's regions; persisted, so it rides over failover (X6, FW-04)."""

    ENABLED = "enabled"
    DISABLED = "disabled"


class TabletState(enum.StrEnum):
    """Life of a region's catalogue record (S0 Appendix B, X12)."""

    UNKNOWN = "UNKNOWN"
    PREPARING = "PREPARING"
    CREATING = "CREATING"
    RUNNING = "RUNNING"
    REPLACED = "REPLACED"
    DELETED = "DELETED"

    @classmethod
    def _missing_(cls, value: object) -> TabletState | None:
        """X12, as for tables."""
        return cls.DELETED if value == "REMOVED" else None


class ServerName(msgspec.Struct, frozen=True, order=True):
    """Where a server process answers, and which start of it: a restarted server is a different server."""

    host: str
    port: int
    start_code: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port},{self.start_code}"


class Incarnation(msgspec.Struct, frozen=True, order=True):
    """One start of one server: its persistent uuid and the start code of the process."""

    uuid: str
    start_code: int

    def __str__(self) -> str:
        return f"{self.uuid}@{self.start_code}"


class WorkOrigin(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What began a chain of work (`regions/cluster/causes.py`): its cause id, and in words what it was.

    Where the words stand in the history already, only the id is kept. Nothing is decided by either: a build that does
    not know the field drops it, and the history then has steps without a cause id.
    """

    cause_id: str
    text: str = ""


class ServerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of the ephemeral `/servers/<uuid>`: a live region server."""

    uuid: str
    host: str
    port: int
    start_code: int
    rack: str = "default"
    weight: float = 1.0
    group: str = ""
    admin_port: int = 0
    #: How long its session lasts without a sign of life: its lease is shorter.
    session_ms: int = 0
    #: It is about to stop and hands its regions over first.
    leaving: bool = False
    #: Kind of its opener (`regions/records/kinds.py`); "": a build that knew of none.
    kind: str = ""
    #: The highest format that its build knows (`regions/records/formats.py`); 0: a build that announced none.
    format: int = 0
    #: True if it takes replicas of tablets; the port on which it talks to other members; free bytes of its disk when
    #: it registered.
    tablets: bool = False
    peer_port: int = 0
    disk_free: int = 0

    @property
    def name(self) -> ServerName:
        """The server's address with its start code."""
        return ServerName(self.host, self.port, self.start_code)

    @property
    def incarnation(self) -> Incarnation:
        """The server's identity in transitions and locations."""
        return Incarnation(self.uuid, self.start_code)


class MasterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of the ephemeral `/masters/<uuid>`: a live master, active or standby."""

    uuid: str
    host: str
    port: int
    start_code: int
    admin_port: int = 0
    #: The highest format that its build knows (`regions/records/formats.py`); 0: a build that announced none.
    format: int = 0


class ActiveRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of the ephemeral `/active`: who is active, and under which fencing epoch (0 until it is known)."""

    uuid: str
    host: str
    port: int
    start_code: int
    epoch: int = 0
    admin_port: int = 0


class EpochRecord(msgspec.Struct, frozen=True):
    """Value of `/epoch`. The fencing epoch is the znode's *version*; this only says who wrote it last."""

    uuid: str
    start_code: int
    at_ms: int


class ClusterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/cluster`."""

    cluster_id: str
    format_version: int = 1
    #: True from an orderly shutdown until the next master takes over (X7's mark).
    clean_shutdown: bool = False
    #: Epoch of the master that wrote the mark.
    epoch: int = 0
    at_ms: int = 0
    #: See `TableRecord.newer`.
    newer: str = ""


class DirectoryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/shared/<kind>`: the shared directory of all servers of a kind
    (`regionserver/shared_directory.py`).

    `path` and `server` ("host:port") are those of the server that recorded the id, for people.
    """

    directory_id: str
    path: str = ""
    server: str = ""
    at_ms: int = 0


class TableRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/tables/<table_id>`; written last when a table is created: it makes the table exist."""

    table_id: str
    name: str
    #: The table's columns; or text that means something to its owner only.
    schema: Schema | str = ""
    schema_version: int = 0
    state: TableState = TableState.RUNNING
    intent: TableIntent = TableIntent.ENABLED
    replication: int = 1
    regions: int = 0
    group: str = ""
    #: System tables are assigned before all others and never wait behind them (RT-05).
    system: bool = False
    created_ms: int = 0
    #: When the table was removed, and from when on its rows may be; when their removal began, and when it ended. By the
    #: clocks of masters; 0: not (`regions/transitions/purging.py`).
    removed_ms: int = 0
    purge_at_ms: int = 0
    purging_ms: int = 0
    purged_ms: int = 0
    #: When the last region of a removed table was closed; its regions need not be looked at any more.
    finished_ms: int = 0
    #: While ALTERING: the latest schema that every region is known to follow, and its version (DD-07).
    fully_applied_schema: Schema | str | None = None
    fully_applied_version: int = 0
    #: Keys are spread over so many buckets (`regions/records/partitioning.py`); 0: they are not.
    hash_buckets: int = 0
    #: Kind of service that opens its regions (`regions/records/kinds.py`); "": a build that knew of none.
    kind: str = ""
    #: Where its rows lie. Records of builds that knew no tablets have no such field: their rows are shared.
    storage: Storage = Storage.SHARED
    #: Fields that a newer build has written and this one does not know, as JSON. They stay in the znode when this build
    #: rewrites the record (`regions/records/znodes.py`); no znode has a field of this name.
    newer: str = ""

    @property
    def is_tablet(self) -> bool:
        """Return True if each region of the table is a Raft group on its members' own disks."""
        return self.storage is Storage.TABLET


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/requests/<id>`: what a request about a table has led to, written together with it.

    `digest` tells a repetition from another request under the same id; `table` is the table's record as it was written.
    """

    request_id: str
    kind: str
    digest: str
    table: TableRecord
    epoch: int
    at_ms: int


class ReplicaLocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one replica of a region is open.

    `start_code` None: not open anywhere; `uuid` then still names the last server that had it, for retained
    placement. A location whose incarnation is not alive means "not open" as well.
    """

    replica: int
    uuid: str | None = None
    start_code: int | None = None
    since_ms: int = 0
    #: zxid of the OPENING of the latest open; the replica's files must not be older. 0: written by an earlier build.
    token: int = 0

    @property
    def was_opened(self) -> bool:
        """Whether the replica has ever been open, so that it has files which must not be made anew."""
        return self.uuid is not None

    @property
    def incarnation(self) -> Incarnation | None:
        """The server that has the replica open, or None."""
        if self.uuid is None or self.start_code is None:
            return None
        return Incarnation(self.uuid, self.start_code)


class RegionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/regions/<table_id>/<region_id>`: key range, and where each replica is open.

    A tablet's record names its members instead of the places where replicas are open: a restarted server is the same
    member, so nothing is written. The members are a copy of what the leader has reported, and decide nothing in the
    Raft group.
    """

    table_id: str
    region_id: str
    start_key: str = ""
    end_key: str = ""
    size_bytes: int = 0
    state: TabletState = TabletState.RUNNING
    replicas: tuple[ReplicaLocation, ...] = ()
    #: An operator wants this region closed, whatever becomes of its table; persisted, so it rides over failover.
    unassigned: bool = False
    #: Buckets of its table, for servers: they refuse keys that were put into another bucket than their own.
    hash_buckets: int = 0
    #: The region that could not be created and whose range this one has now, and how often that has happened (DD-03).
    replaces: str = ""
    generation: int = 0
    #: Of a tablet: the members of its latest committed configuration that the master knows, and the id of that
    #: configuration; before any leader has reported, the members that were chosen, and id 0.0.
    members: tuple[Member, ...] = ()
    config_term: int = 0
    config_index: int = 0
    #: Number of the member that leads, and its term. A hint that is written late; 0: not known.
    leader: int = 0
    leader_term: int = 0
    #: Number of the next member. Every write that gives a number raises it. 0: the region is no tablet.
    next_number: int = 0
    #: See `TableRecord.newer`.
    newer: str = ""

    def __post_init__(self) -> None:
        if self.members:
            check_members(self.members, self.next_number)

    @property
    def config_id(self) -> ConfigId:
        """The id of the configuration that `members` are."""
        return ConfigId(self.config_term, self.config_index)

    @property
    def is_tablet(self) -> bool:
        """Return True if the region is a Raft group on its members' own disks."""
        return self.next_number > 0

    def member(self, number: int) -> Member | None:
        """Return the member of that number, None if the configuration has none."""
        return next((one for one in self.members if one.number == number), None)

    def with_configuration(self, config_id: ConfigId, members: tuple[Member, ...]) -> RegionRecord:
        """Return this record with a committed configuration, or this very record if it knows that one or a later one.

        Raise ValueError for members that no configuration can have, or whose number was never given.
        """
        if config_id <= self.config_id:
            return self
        return msgspec.structs.replace(self, members=members, config_term=config_id.term, config_index=config_id.index)

    @property
    def is_replaced(self) -> bool:
        """Whether another region has taken its place (DD-03): it has no keys, is never open, and is only kept."""
        return self.state is TabletState.REPLACED

    def location(self, replica: int) -> ReplicaLocation:
        """Location of `replica`; an unopened one if the record knows nothing of it."""
        for found in self.replicas:
            if found.replica == replica:
                return found
        return ReplicaLocation(replica)

    def with_location(self, location: ReplicaLocation) -> RegionRecord:
        """This record with `location` in place of the same replica's former one; replicas stay in order.

        A region that is open somewhere has been created, so it is RUNNING from then on (DD-05).
        """
        others = [one for one in self.replicas if one.replica != location.replica]
        merged = tuple(sorted([*others, location], key=lambda one: one.replica))
        state = self.state
        if location.start_code is not None and state in (TabletState.PREPARING, TabletState.CREATING):
            state = TabletState.RUNNING
        return msgspec.structs.replace(self, replicas=merged, state=state)

    def contains(self, key: str) -> bool:
        """Whether `key` falls into `[start_key, end_key)`."""
        return self.start_key <= key and (self.end_key == "" or key < self.end_key)


class TransitionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/unassigned/<xx>/<region_id>-<replica>`: one replica's transition, who, why and until when.

    `source` is the server that has, or had, the replica open; `destination` the one that is to open it. In OPENING
    and OPENED the destination is the server that wrote it; in CLOSING and CLOSED the source is.
    """

    region_id: str
    table_id: str
    replica: int
    state: RegionState
    source: Incarnation | None = None
    destination: Incarnation | None = None
    intent: Intent = Intent.OPEN
    #: Fencing epoch of the master that ordered the latest step.
    epoch: int = 0
    plan_id: str = ""
    #: How often opening was tried; bounded, then the region is parked (X11).
    attempt: int = 0
    reason: str = ""
    since_ms: int = 0
    deadline_ms: int = 0
    last_error: str = ""
    #: Tried often enough: no master tries again until an operator asks (X11).
    parked: bool = False
    #: In OPENED: the token of this open, as the location in the same write has it.
    token: int = 0
    #: Version of the znode after the last step of a master, and when a server took each of its steps since then. The
    #: history is written from both (`regions/transitions/trail.py`).
    base: int = 0
    took: tuple[int, ...] = ()
    #: Servers that died one after the other while they opened it (`regions/transitions/hazards.py`).
    deaths: int = 0
    #: In CLOSED, and in OFFLINE while it is parked: what the server found wrong with its rows.
    damage: str = ""
    #: Of a tablet's member: a server has begun to make the replica, so whoever is to open it must have it.
    begun: bool = False
    #: What began the work that this transition is part of; with words only in CLOSING and CLOSED, which no master has
    #: written into the history yet.
    origin: WorkOrigin | None = None

    @property
    def key(self) -> str:
        """`<region_id>-<replica>`: the name of the transition's znode."""
        return replica_key(self.region_id, self.replica)


class FenceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/fenced/<uuid>`: a server whose registration a master has deleted, while its lease may last (X10)."""

    server: ServerRecord
    #: How long it may go on serving after its registration was deleted, at most.
    lease_ms: int
    reason: str = ""
    epoch: int = 0
    at_ms: int = 0
    origin: WorkOrigin | None = None


class BarRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/barred/<uuid>`: a server that an operator had fenced, and that gets no regions when it joins again.

    The bar follows the uuid over restarts; `start_code` is the start that was fenced.
    """

    uuid: str
    start_code: int
    reason: str = ""
    #: When the bar ends, by the clock of the master that reigns then; 0: when an operator ends it.
    until_ms: int = 0
    epoch: int = 0
    at_ms: int = 0


class Move(msgspec.Struct, frozen=True, omit_defaults=True):
    """One replica that is to leave `source`, for the server with uuid `destination`, or "" for any other one."""

    key: str
    source: Incarnation
    destination: str = ""


class MoveBatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/moves/<move_id>`: moves that were accepted together and have not all begun (FW-03)."""

    move_id: str
    moves: tuple[Move, ...]
    reason: str = "move"
    plan_id: str = ""
    epoch: int = 0
    at_ms: int = 0
    origin: WorkOrigin | None = None


class PlanState(enum.StrEnum):
    """How far a bulk plan is."""

    PLANNING = "PLANNING"
    APPLYING = "APPLYING"
    DONE = "DONE"
    ABORTED = "ABORTED"


class PlanRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/plans/<plan_id>`: a bulk plan's inputs, outcome and progress."""

    plan_id: str
    epoch: int
    reason: str = ""
    state: PlanState = PlanState.PLANNING
    engine: str = ""
    #: SHA-256 of the planner's input and of its rows.
    fingerprint: str = ""
    digest: str = ""
    regions: int = 0
    assigned: int = 0
    #: Why another engine's plan was not used, or why the plan stopped.
    note: str = ""
    created_ms: int = 0
    finished_ms: int = 0
    #: An operator's plan for regions that are open: carried out by batches of moves. `regions` is then how many moves
    #: were announced, `assigned` how many have ended.
    by_moves: bool = False
    #: Parts in which the moves are handed over, those that are in the store, and moves in them.
    parts: int = 0
    parts_done: int = 0
    handed: int = 0
    #: Moves that were not accepted, by reason: the master decides about their regions as about any other.
    skipped: dict[str, int] = {}


class BalancerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/balancer`: the operator's switch; on where the znode does not exist."""

    enabled: bool = True
    changed_ms: int = 0
    #: Epoch of the master that wrote it.
    epoch: int = 0


class BalanceMove(msgspec.Struct, frozen=True):
    """One move that the balancer proposes, with the reason in words."""

    key: str
    table: str
    source: str
    destination: str
    reason: str


class GroupBalance(msgspec.Struct, frozen=True):
    """How even a group is. Skews: replicas beyond their share, between the fullest and the emptiest server."""

    group: str
    servers: int
    replicas: int
    #: Greatest over any table, and over all tables together.
    table_skew: float
    skew: float
    #: Fullest server's bytes or load over its share; 1 is even, 0 if there are none.
    size_ratio: float
    load_ratio: float


class RunRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/runs/<epoch>`: how long a master took to become active, and a bulk assignment after it (N10)."""

    epoch: int
    master: str
    address: str
    #: startup or failover
    path: str
    at_ms: int
    #: (name, seconds) in order.
    phases: tuple[tuple[str, float], ...]
    servers: int = 0
    replicas: int = 0
    #: Replicas in transition that were found, and replicas of the bulk plan, if there was one.
    found: int = 0
    planned: int = 0
    engine: str = ""


__all__ = [
    "ActiveRecord",
    "BalanceMove",
    "BalancerRecord",
    "ClusterRecord",
    "DirectoryRecord",
    "EpochRecord",
    "FenceRecord",
    "GroupBalance",
    "Incarnation",
    "Intent",
    "MasterRecord",
    "Move",
    "MoveBatch",
    "PlanRecord",
    "PlanState",
    "RegionRecord",
    "RegionState",
    "ReplicaLocation",
    "RequestRecord",
    "RunRecord",
    "ServerName",
    "ServerRecord",
    "TableIntent",
    "TableRecord",
    "TableState",
    "TabletState",
    "TransitionRecord",
    "WorkOrigin",
]
