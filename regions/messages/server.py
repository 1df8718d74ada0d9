"""Requests to a region server, and its replies: orders to open and close, schema changes, status."""

from __future__ import annotations

import enum

import msgspec

from coord.security.principal import OpenDoor
from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
from regions.messages.tablets import (
    ChangeConfig,
    ConfigChanged,
    ReplicaList,
    SealTablet,
    ShowReplicas,
    TabletSealed,
    TransferLeadership,
)
from regions.records.members import NO_CONFIG, ConfigId
from regions.records.model import (
    Incarnation,
    Intent,
    RegionRecord,
    ServerRecord,
    TransitionRecord,
    WorkOrigin,
)

# --- master to region server ----------------------------------------------------------------------------------


class MemberEndpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Address at which a member's server listens for other members."""

    number: int
    uuid: str
    host: str
    peer_port: int


class TabletOpening(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of an OPEN for a tablet's replica that the region's record does not have.

    `initial` is the first configuration, all voters, the same in every repetition of the order. `must_exist`: a server
    has begun to make the replica. A server without its superblock has then lost a disk, and must reject the order. A
    voter is never made twice, because it may have voted.
    """

    initial: tuple[MemberEndpoint, ...]
    must_exist: bool = False


class ClosePurpose(enum.StrEnum):
    """Treatment of a replica's files by a CLOSE."""

    REST = "rest"  #: they stay: the table is disabled
    TOMBSTONE = "tombstone"  #: to quarantine: the configuration does not have the number any more
    DELETE = "delete"  #: to quarantine, and the tombstone goes too: the tablet is deleted or was replaced


class TabletClosing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a tablet's replica is closed. A server that knows a later configuration which has the number refuses."""

    purpose: ClosePurpose
    config_id: ConfigId = NO_CONFIG


class OpenOrder(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Open one replica.

    `transition` is the OFFLINE record at `version` of its znode, `region` the region's record at `region_version`. With
    them the server needs no read before its first compare-and-set.
    """

    transition: TransitionRecord
    version: int
    region: RegionRecord
    region_version: int
    open_timeout_ms: int = 60_000
    #: Version of the table's schema. A replica opened with this version needs no AlterOrder (DD-07).
    schema_version: int = 0
    #: Kind of service that the table needs (`regions/records/kinds.py`); "" from masters of earlier builds.
    kind: str = ""
    #: For a tablet's replica: the data that the region's record does not have.
    tablet: TabletOpening | None = None


class CloseOrder(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Close one replica. The server creates the transition in CLOSING with these fields, then sets it to CLOSED."""

    region_id: str
    table_id: str
    replica: int
    destination: Incarnation | None = None
    intent: Intent = Intent.OPEN
    plan_id: str = ""
    attempt: int = 0
    reason: str = ""
    close_timeout_ms: int = 60_000
    #: Origin of the work. The server writes it into the transition, from where it reaches the history.
    origin: WorkOrigin | None = None
    #: For a tablet's replica: what the server does with its files.
    tablet: TabletClosing | None = None


class OrderOutcome(enum.StrEnum):
    """Outcome of an order."""

    DONE = "done"  #: OPENED or CLOSED is in the store, at `version`
    STARTED = "started"  #: accepted and still running: send the order again later
    FAILED = "failed"  #: failed with `error`; the server has closed the replica
    REFUSED = "refused"  #: the order contradicts the store or the server's state; the master should read the znode


class OrderResult(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Outcome of one order. `version` is the latest version of the transition that the server has written, or -1."""

    region_id: str
    replica: int
    outcome: OrderOutcome
    version: int = -1
    error: str = ""
    #: Cause id of the order.
    cause_id: str = ""


class OpenRegions(msgspec.Struct, frozen=True, tag=True):
    """Open a batch of replicas. Reply: OrderResults, in the order of `orders`."""

    epoch: int
    recipient: str
    start_code: int
    orders: list[OpenOrder]
    answer_within_ms: int = 5_000
    cluster: str = ""  #: cluster id of the sender


class CloseRegions(msgspec.Struct, frozen=True, tag=True):
    """Close a batch of replicas. Reply: OrderResults, in the order of `orders`."""

    epoch: int
    recipient: str
    start_code: int
    orders: list[CloseOrder]
    answer_within_ms: int = 5_000
    cluster: str = ""  #: cluster id of the sender


class ReviewReplicas(msgspec.Struct, frozen=True, tag=True):
    """Check in the store the owners of replicas that the server has reported and the catalog does not place there.

    The server closes the replicas that belong to another server or to none by the store, and keeps the others. The
    server trusts only the store, not this order (FN-02, FN-03). `replicas` are (region id, replica). Reply:
    OrderResults, DONE for replicas that the server does not have, STARTED for the others. Later reports of the server
    show the result.
    """

    epoch: int
    recipient: str
    start_code: int
    replicas: list[tuple[str, int]]
    cluster: str = ""
    cause_id: str = ""


class AlterOrder(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bring one replica to `schema_version` of its table's schema, or a later one (DD-07)."""

    region_id: str
    replica: int
    schema_version: int
    cause_id: str = ""


class AlterRegions(msgspec.Struct, frozen=True, tag=True):
    """Bring open replicas to a new schema version. Reply: AlterResults, in the order of `orders`. Idempotent."""

    epoch: int
    recipient: str
    start_code: int
    orders: list[AlterOrder]
    cluster: str = ""  #: cluster id of the sender


class PurgeTable(msgspec.Struct, frozen=True, tag=True):
    """Remove the rows of a deleted table whose purge has begun. The server reads the table's record itself.

    Reply: Purged. Idempotent.
    """

    epoch: int
    recipient: str
    start_code: int
    table_id: str
    cluster: str = ""
    cause_id: str = ""


class Purged(msgspec.Struct, frozen=True, tag=True):
    """Reply to PurgeTable: the rows are removed. `regions` is the number of directories that this order removed."""

    regions: int = 0


class ListDirectories(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List the tables that have files in the shared directory. Reply: Directories."""

    recipient: str = ""


class Directories(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ListDirectories: ids of tables that have files, and of tables whose files are being removed."""

    tables: list[str] = []
    removing: list[str] = []


class AlterResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The schema version of a replica, or -1 if the replica is not on this server."""

    region_id: str
    replica: int
    schema_version: int


class AlterResults(msgspec.Struct, frozen=True, tag=True):
    """Reply to AlterRegions."""

    results: list[AlterResult]


class ListOpen(msgspec.Struct, frozen=True, tag=True):
    """List the server's replicas. `recipient` "" means any server. Reply: OpenList."""

    recipient: str = ""
    limit: int = 0  #: 0: all


class GetServerStatus(msgspec.Struct, frozen=True, tag=True):
    """Return a server's status. Reply: ServerStatus."""

    recipient: str = ""


class OrderResults(msgspec.Struct, frozen=True, tag=True):
    """Reply to OpenRegions, CloseRegions and ReviewReplicas."""

    results: list[OrderResult]


class HostedReplica(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A replica on a server. `state` is the server's own: OPENING, OPEN, CLOSING or FAILED."""

    region_id: str
    table_id: str
    replica: int
    state: str
    since_ms: int = 0
    error: str = ""
    #: Recent requests per second, if the region's handler counts them.
    load: float = 0.0
    #: Latest version of the table's schema that the replica has received; -1 for a failed open.
    schema_version: int = 0
    #: Token of this open, as the location in the store has it.
    token: int = 0
    #: Raft role of a tablet's replica; "" of one that does not run, and of a shared region's.
    role: str = ""


class OpenList(msgspec.Struct, frozen=True, tag=True):
    """Reply to ListOpen, sorted by region id and replica."""

    uuid: str
    start_code: int
    #: Replicas of shared regions.
    replicas: list[HostedReplica]
    #: Id of the server's shared directory; "" if it uses none, or from an earlier build.
    directory: str = ""
    #: Replicas of tablets, each in a `ReplicaState`; its number is that of the member.
    tablets: list[HostedReplica] = []


class MasterReach(msgspec.Struct, frozen=True, omit_defaults=True):
    """A master to which a server sends heartbeats (HB-12).

    `heard_ms` is the time since the master's last reply, -1 if it has not replied in this start of the server.
    """

    address: str
    uuid: str = ""
    role: str = ""  #: unknown, standby or leader
    heard_ms: int = -1
    trouble: str = ""


class TabletFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures of a server's tablets. Counts are since the start of its process."""

    #: Number of replicas by `ReplicaState`.
    replicas: dict[str, int] = {}
    #: Tablets that the server leads.
    leaders: int = 0
    #: Number of tablets without work. They have no ticks and send nothing.
    quiet: int = 0
    #: Syncs of the shared log, and the entries and bytes that they made durable.
    syncs: int = 0
    entries: int = 0
    log_bytes: int = 0
    segments: int = 0
    slow_writes: int = 0
    #: Bytes of payloads that are proposed and not applied.
    in_flight_bytes: int = 0
    #: False while a write of the log takes too long: the server leads nothing.
    disk_answers: bool = True
    #: Bytes of log entries in memory, of all groups.
    memory_bytes: int = 0
    #: Requests that wait for their answers.
    waiting: int = 0
    #: True while the log's disk has no room. Then the server leads no tablet.
    is_full: bool = False
    #: Copies of replicas that this server receives and sends now; ended ones by `CopyState`, and their bytes.
    copies_in: int = 0
    copies_out: int = 0
    copies_ended: dict[str, int] = {}
    copied_in_bytes: int = 0
    copied_out_bytes: int = 0
    #: Former replicas in the quarantine, and their bytes on the disk.
    quarantined: int = 0
    quarantine_bytes: int = 0
    #: Number of comparisons in which replicas differed; notes for the operator.
    digests_differ: int = 0
    alarms: list[str] = []
    #: Free bytes of the disk above its reserve, as in the server's registration.
    disk_free: int = 0


class ServerStatus(msgspec.Struct, frozen=True, tag=True):
    """Reply to GetServerStatus. `open`, `opening`, `closing` and `failed` count the replicas of tablets as well."""

    server: ServerRecord
    epoch: int  #: highest seen
    open: int
    opening: int
    closing: int
    failed: int
    lease_ms_left: int
    uptime_ms: int
    cluster_id: str = ""
    masters: list[MasterReach] = []
    #: None if the server takes no tablets, has not opened them yet, or has an earlier build.
    tablets: TabletFigures | None = None
    #: Sentences about certificates of this server that soon expire.
    expiring: list[str] = []
    #: Whether the server serves callers without a proof.
    open_door: OpenDoor = OpenDoor.CLOSED
    #: Whether the server has the masters' credential for the store, and could have an identity of its own.
    shares_credential: bool = False


# --- splits and merges ------------------------------------------------------------------------------------------------


class FindSplitKey(msgspec.Struct, frozen=True, tag=True):
    """Find the row in the middle of an open region's bytes. Reply: SplitKey."""

    epoch: int
    recipient: str
    start_code: int
    region_id: str
    cluster: str = ""
    cause_id: str = ""


class SplitKey(msgspec.Struct, frozen=True, tag=True):
    """Reply to FindSplitKey: the first key of the second half."""

    key: str


class PrepareRows(msgspec.Struct, frozen=True, tag=True):
    """Copy the rows of open regions into files of their daughters, while the regions are served. Reply: RowsPrepared.

    From then on the server notes every write of the regions, and repeats these writes in the daughters' files when the
    regions are closed. Idempotent. If a region is closed and opened again, the files are useless, and the daughters
    copy the rows when they are opened.

    Each server with a member of a tablet gets the order; the noted writes are repeated when its replica has the seal.
    An order without daughters removes the files prepared for the attempt.
    """

    epoch: int
    recipient: str
    start_code: int
    parents: list[str]
    daughters: list[RegionRecord]
    cluster: str = ""
    cause_id: str = ""
    #: Name of the attempt to split or merge tablets, as in `SealTablet.resharding`; "" for shared regions.
    seal: str = ""


class RowsPrepared(msgspec.Struct, frozen=True, tag=True):
    """Reply to PrepareRows."""


class RemoveRegions(msgspec.Struct, frozen=True, tag=True):
    """Remove the files of regions that were split or merged. Reply: Purged. Idempotent.

    The server reads the records of the regions and of their daughters first: all regions must be REPLACED, and all
    daughters must have been open.
    """

    epoch: int
    recipient: str
    start_code: int
    table_id: str
    region_ids: list[str]
    daughters: list[str]
    cluster: str = ""
    cause_id: str = ""


#: Orders about splits and merges.
ReshardingOrder = FindSplitKey | PrepareRows | RemoveRegions
ServerRequest = (
    OpenRegions
    | CloseRegions
    | AlterRegions
    | ReviewReplicas
    | PurgeTable
    | FindSplitKey
    | PrepareRows
    | RemoveRegions
    | ListOpen
    | ListDirectories
    | GetServerStatus
    | ShowReplicas
    | ChangeConfig
    | SealTablet
    | TransferLeadership
)


ServerReply = (
    OrderResults
    | AlterResults
    | OpenList
    | Purged
    | SplitKey
    | RowsPrepared
    | Directories
    | ServerStatus
    | ReplicaList
    | ConfigChanged
    | TabletSealed
)
