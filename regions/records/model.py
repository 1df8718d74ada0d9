"""The records of the region layer: servers, tables, regions and transitions, as kept in the store.

Every struct here is the value of a znode (`regions/records/znodes.py` lists them) or a part of one. The structs are
frozen. To change a record, make a new one with `msgspec.structs.replace` and write it by compare-and-set; use the new
record only after the write has succeeded.

Keys are text and ranges are half-open: `[start_key, end_key)`; the empty string means "no bound" on either side.
Times are milliseconds of the writer's wall clock, for operators; no decision compares times of different machines.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from regions.records.members import ConfigId, Member, MemberRole, Storage, check_members
from regions.records.replica_key import replica_key
from regions.records.resharding.parents import Parent
from regions.records.schema import Schema


class RegionState(enum.StrEnum):
    """State of a transition znode; `regions/transitions/states.py` has the legal steps (S4 rules)."""

    OFFLINE = "OFFLINE"
    OPENING = "OPENING"
    OPENED = "OPENED"
    CLOSING = "CLOSING"
    CLOSED = "CLOSED"


class Intent(enum.StrEnum):
    """Next step of a region whose transition has reached CLOSED (S4 §3, FW-03)."""

    OPEN = "open"  #: open it again: on the destination if one is named and alive, else on any server
    CLOSE = "close"  #: do not reopen: its table is being disabled or deleted


class TableState(enum.StrEnum):
    """State of a table (S0 Appendix B, names as decided in X12)."""

    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    ALTERING = "ALTERING"
    REMOVED = "REMOVED"

    @classmethod
    def _missing_(cls, value: object) -> TableState | None:
        """Accept the names of table and tablet states for each other: the source document mixes them up (X12)."""
        return cls.REMOVED if value == "DELETED" else None


class TableIntent(enum.StrEnum):
    """Operator's decision about a table's regions; persisted, so it survives failover (X6, FW-04)."""

    ENABLED = "enabled"
    DISABLED = "disabled"


class TabletState(enum.StrEnum):
    """State of a region's catalog record (S0 Appendix B, X12)."""

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


class ServerName(msgspec.Struct, frozen=True, order=True, gc=False):
    """Address of a server process and its start code: a restarted server is a different server."""

    host: str
    port: int
    start_code: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port},{self.start_code}"


class Incarnation(msgspec.Struct, frozen=True, order=True, gc=False):
    """One start of one server: its persistent uuid and the start code of the process."""

    uuid: str
    start_code: int

    def __str__(self) -> str:
        return f"{self.uuid}@{self.start_code}"


class WorkOrigin(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Origin of a chain of work (`regions/cluster/causes.py`): its cause id, and a description.

    If the history already has the description, only the id is kept. No decision depends on either field: a build that
    does not know the field drops it, and the history then has steps without a cause id.
    """

    cause_id: str
    text: str = ""


#: `ServerRecord.disk_free` of a server whose disk has less free space than its reserve.
NO_ROOM: Final = 1


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
    #: Session timeout of the server. Its lease is shorter.
    session_ms: int = 0
    #: True if the server is about to stop and hands its regions over first.
    leaving: bool = False
    #: Kind of its opener (`regions/records/kinds.py`); "" if written by a build without kinds.
    kind: str = ""
    #: The highest format that its build knows (`regions/records/formats.py`); 0: a build that announced none.
    format: int = 0
    #: Whether the server takes replicas of tablets; the port on which it accepts links of other members; free bytes of
    #: its disk above its reserve at the time of registration (0: unknown, NO_ROOM: none).
    tablets: bool = False
    peer_port: int = 0
    disk_free: int = 0

    @property
    def name(self) -> ServerName:
        """Return the server's address with its start code."""
        return ServerName(self.host, self.port, self.start_code)

    @property
    def incarnation(self) -> Incarnation:
        """Return the server's identity in transitions and locations."""
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
    #: Host of its admin port; "": the same as `host`.
    admin_host: str = ""


class ActiveRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of the ephemeral `/active`: the active master and its fencing epoch (0 until it is known)."""

    uuid: str
    host: str
    port: int
    start_code: int
    epoch: int = 0
    admin_port: int = 0


class EpochRecord(msgspec.Struct, frozen=True):
    """Value of `/epoch`. The fencing epoch is the znode's *version*; the value only names the last writer."""

    uuid: str
    start_code: int
    at_ms: int


class ClusterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/cluster`."""

    cluster_id: str
    format_version: int = 1
    #: True from a clean shutdown until the next master takes over (X7).
    clean_shutdown: bool = False
    #: Epoch of the master that set `clean_shutdown`.
    epoch: int = 0
    at_ms: int = 0
    #: See `TableRecord.newer`.
    newer: str = ""


class DirectoryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/shared/<kind>`: the shared directory of all servers of a kind
    (`regionserver/shared_directory.py`).

    `path` and `server` ("host:port") belong to the server that recorded the id. They are for operators.
    """

    directory_id: str
    path: str = ""
    server: str = ""
    at_ms: int = 0


class TableRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/tables/<table_id>`; written last when a table is created, and makes the table exist."""

    table_id: str
    name: str
    #: The table's columns, or text that only the table's owner interprets.
    schema: Schema | str = ""
    schema_version: int = 0
    state: TableState = TableState.RUNNING
    intent: TableIntent = TableIntent.ENABLED
    replication: int = 1
    regions: int = 0
    group: str = ""
    #: System tables are assigned before all other tables (RT-05).
    system: bool = False
    created_ms: int = 0
    #: Times by masters' clocks (`regions/transitions/purging.py`): removal of the table, earliest purge of its rows,
    #: begin and end of the purge. 0: not yet.
    removed_ms: int = 0
    purge_at_ms: int = 0
    purging_ms: int = 0
    purged_ms: int = 0
    #: When the last region of a removed table was closed; masters skip its regions from then on.
    finished_ms: int = 0
    #: While ALTERING: the latest schema that every region is known to follow, and its version (DD-07).
    fully_applied_schema: Schema | str | None = None
    fully_applied_version: int = 0
    #: Number of hash buckets of the keys (`regions/records/partitioning.py`); 0 for none.
    hash_buckets: int = 0
    #: Kind of service that opens its regions (`regions/records/kinds.py`); "" if written by a build without kinds.
    kind: str = ""
    #: Storage of its rows. Records of builds without tablets lack the field; their storage is shared.
    storage: Storage = Storage.SHARED
    #: Bytes above which a region is split, and bytes below which two neighbors are merged; 0: only on an operator's
    #: request.
    split_above: int = 0
    merge_below: int = 0
    #: Fields written by a newer build that this build does not know, as JSON. They stay in the znode when this build
    #: rewrites the record (`regions/records/znodes.py`); no znode has a field named `newer`.
    newer: str = ""

    @property
    def is_tablet(self) -> bool:
        """Return True if each region of the table is a Raft group on its members' own disks."""
        return self.storage is Storage.TABLET


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/requests/<id>`: the result of a request about a table, written together with its effects.

    `digest` distinguishes a repeated request from a different one with the same id; `table` is the table's record as
    written.
    """

    request_id: str
    kind: str
    digest: str
    table: TableRecord
    epoch: int
    at_ms: int


class ReplicaLocation(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The server that has one replica of a region open, or had it open last.

    `start_code` is None if the replica is not open; `uuid` then still names the last server that had it open, for
    retained placement. A location whose incarnation is dead also means "not open".
    """

    replica: int
    uuid: str | None = None
    start_code: int | None = None
    since_ms: int = 0
    #: zxid of the OPENING of the latest open; the replica's files must not be older. 0 if written by an older build.
    token: int = 0

    @property
    def was_opened(self) -> bool:
        """Return True if the replica has ever been open. Its files then exist and must not be created again."""
        return self.uuid is not None

    @property
    def incarnation(self) -> Incarnation | None:
        """Return the server that has the replica open, or None."""
        if self.uuid is None or self.start_code is None:
            return None
        return Incarnation(self.uuid, self.start_code)


class RegionRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Value of `/regions/<table_id>/<region_id>`: key range, and where each replica is open.

    A tablet's record names its members, not the servers where replicas are open: a restarted server is the same member,
    so a restart writes nothing. The members are a copy of the leader's report; the Raft group itself does not read
    them.
    """

    table_id: str
    region_id: str
    start_key: str = ""
    end_key: str = ""
    size_bytes: int = 0
    state: TabletState = TabletState.RUNNING
    replicas: tuple[ReplicaLocation, ...] = ()
    #: True if an operator wants this region closed, whatever its table's state; this survives a failover.
    unassigned: bool = False
    #: Number of hash buckets of its table. Servers reject keys that were placed in another bucket than their own.
    hash_buckets: int = 0
    #: The region that could not be created and whose range this region took over, and how often this has happened
    #: (DD-03).
    replaces: str = ""
    generation: int = 0
    #: For a tablet: the members of the latest committed configuration known to the master, and the id of that
    #: configuration. Before a leader has reported: the members chosen at creation, and id 0.0.
    members: tuple[Member, ...] = ()
    config_term: int = 0
    config_index: int = 0
    #: Number of the member that leads, and its term. A hint, which may be out of date; 0 if unknown.
    leader: int = 0
    leader_term: int = 0
    #: Next free member number. Every write that assigns a number raises it. 0 if the region is not a tablet.
    next_number: int = 0
    #: The regions that were split or merged into this one.
    parents: tuple[Parent, ...] = ()
    #: See `TableRecord.newer`.
    newer: str = ""

    def __post_init__(self) -> None:
        if self.members:
            check_members(self.members, self.next_number)

    @property
    def config_id(self) -> ConfigId:
        """Return the id of the configuration that `members` belong to."""
        return ConfigId(self.config_term, self.config_index)

    @property
    def is_tablet(self) -> bool:
        """Return True if the region is a Raft group on its members' own disks."""
        return self.next_number > 0

    def member(self, number: int) -> Member | None:
        """Return the member with that number, or None."""
        for one in self.members:
            if one.number == number:
                return one
        return None

    def with_configuration(self, config_id: ConfigId, members: tuple[Member, ...]) -> RegionRecord:
        """Return this record with a committed configuration, or this record itself if its configuration is not older.

        Raise ValueError for members that no configuration can have, or whose number was never assigned.
        """
        if config_id <= self.config_id:
            return self
        return msgspec.structs.replace(self, members=members, config_term=config_id.term, config_index=config_id.index)

    @property
    def is_replaced(self) -> bool:
        """Return True if another region has taken its place (DD-03). Such a region has no keys and is never opened;
        only its record is kept."""
        return self.state is TabletState.REPLACED

    def location(self, replica: int) -> ReplicaLocation:
        """Return the location of `replica`. Without one in the record return a location that is not open."""
        for found in self.replicas:
            if found.replica == replica:
                return found
        return ReplicaLocation(replica)

    def with_location(self, location: ReplicaLocation) -> RegionRecord:
        """Return this record with `location` in place of the replica's former one; replicas stay in order.

        A region that is open somewhere has been created, so it is RUNNING from then on (DD-05).
        """
        merged: tuple[ReplicaLocation, ...] = (location,)
        if self.replicas:
            others = [one for one in self.replicas if one.replica != location.replica]
            merged = tuple(sorted([*others, location], key=lambda one: one.replica))
        state = self.state
        if location.start_code is not None and state in (TabletState.PREPARING, TabletState.CREATING):
            state = TabletState.RUNNING
        return msgspec.structs.replace(self, replicas=merged, state=state)

    def contains(self, key: str) -> bool:
        """Return True if `key` is in `[start_key, end_key)`."""
        return self.start_key <= key and (self.end_key == "" or key < self.end_key)


class TransitionRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Value of `/unassigned/<xx>/<region_id>-<replica>`: the transition of one replica.

    `source` is the server that has, or had, the replica open; `destination` is the server that shall open it. In
    OPENING and OPENED the destination wrote the record; in CLOSING and CLOSED the source did.
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
    #: Number of attempts to open; at the limit the region is parked (X11).
    attempt: int = 0
    reason: str = ""
    since_ms: int = 0
    deadline_ms: int = 0
    last_error: str = ""
    #: True if the attempts are used up: no master tries again until an operator asks (X11).
    parked: bool = False
    #: In OPENED: the token of this open, as in the location of the same write.
    token: int = 0
    #: Version of the znode after the last step of a master, and the times of the server's steps since then. The history
    #: is written from both (`regions/transitions/trail.py`).
    base: int = 0
    took: tuple[int, ...] = ()
    #: Number of servers in a row that died while opening the region (`regions/transitions/hazards.py`).
    deaths: int = 0
    #: In CLOSED, and in OFFLINE while parked: the damage that the server found in the region's rows.
    damage: str = ""
    #: For a member of a tablet: True once a server has begun to create the replica; only that server may open it then.
    begun: bool = False
    #: For a new member of a tablet: the role in which its leader adds it.
    joins: MemberRole | None = None
    #: Origin of the work that this transition belongs to. The description is present only in CLOSING and CLOSED, which
    #: are not in the history yet.
    origin: WorkOrigin | None = None

    @property
    def key(self) -> str:
        """Return `<region_id>-<replica>`: the name of the transition's znode."""
        return replica_key(self.region_id, self.replica)


class FenceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/fenced/<uuid>`: a server whose registration a master has deleted while its lease may still hold
    (X10)."""

    server: ServerRecord
    #: Longest time that the server may go on serving after its registration was deleted.
    lease_ms: int
    reason: str = ""
    epoch: int = 0
    at_ms: int = 0
    origin: WorkOrigin | None = None


class BarRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/barred/<uuid>`: a server that an operator has fenced. It gets no regions when it registers again.

    The bar stays with the uuid over restarts; `start_code` is the start that was fenced.
    """

    uuid: str
    start_code: int
    reason: str = ""
    #: When the bar ends, by the clock of the active master; 0 if only an operator ends it.
    until_ms: int = 0
    epoch: int = 0
    at_ms: int = 0


class Move(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A move of one replica from `source` to the server with uuid `destination`; "" leaves the choice to the master."""

    key: str
    source: Incarnation
    destination: str = ""


class MoveBatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/moves/<move_id>`: moves that were accepted together and have not all started (FW-03)."""

    move_id: str
    moves: tuple[Move, ...]
    reason: str = "move"
    plan_id: str = ""
    epoch: int = 0
    at_ms: int = 0
    origin: WorkOrigin | None = None


class PlanState(enum.StrEnum):
    """Progress of a bulk plan."""

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
    #: True for an operator's plan for open regions, which is carried out as batches of moves. `regions` then counts the
    #: moves that were announced, and `assigned` those that have ended.
    by_moves: bool = False
    #: Number of parts in which the moves are sent, number of parts in the store, and number of moves in those parts.
    parts: int = 0
    parts_done: int = 0
    handed: int = 0
    #: Moves that were not accepted, by reason. The master places their regions like any other region.
    skipped: dict[str, int] = {}


class BalancerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/balancer`: the operator's switch; the balancer is on if the znode does not exist."""

    enabled: bool = True
    changed_ms: int = 0
    #: Epoch of the master that wrote it.
    epoch: int = 0


class RunRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/runs/<epoch>-<number>`: how long a master took to become active, or a bulk assignment took (N10).

    Earlier builds kept one record `/runs/<epoch>`, with the activation and the latest bulk assignment in it.
    """

    epoch: int
    master: str
    address: str
    #: Begin of the tenure: startup or failover.
    path: str
    #: When the event was over.
    at_ms: int
    #: (name, seconds) in order.
    phases: tuple[tuple[str, float], ...]
    servers: int = 0
    #: Replicas of all tables.
    replicas: int = 0
    #: Number of transitions found, and number of replicas in the bulk plan, if there was one.
    found: int = 0
    planned: int = 0
    engine: str = ""
    #: startup, failover or assignment; "" in a record of an earlier build.
    kind: str = ""
    #: Number of the event within its epoch.
    number: int = 0
    #: Of a bulk assignment: names of the tables, and the plan.
    tables: tuple[str, ...] = ()
    plan_id: str = ""


__all__ = [
    "ActiveRecord",
    "BalancerRecord",
    "ClusterRecord",
    "DirectoryRecord",
    "EpochRecord",
    "FenceRecord",
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
