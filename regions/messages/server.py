"""Requests to a region server, and its answers: orders to open and close, schema changes, status."""

from __future__ import annotations

import enum

import msgspec

from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
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
    """Where a member's server listens for other members."""

    number: int
    uuid: str
    host: str
    peer_port: int


class TabletOpening(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an OPEN of a tablet's replica needs beside the region's record.

    `initial` is the first configuration, all voters, the same in every repetition of the order. `must_exist`: a server
    has begun to make the replica, or had made it, so whoever has no superblock of it has lost a disk and must refuse. A
    voter is never made twice: it could have voted.
    """

    initial: tuple[MemberEndpoint, ...]
    must_exist: bool = False


class ClosePurpose(enum.StrEnum):
    """What is to become of a replica's files."""

    REST = "rest"  #: they stay: the table is disabled
    TOMBSTONE = "tombstone"  #: to quarantine: the configuration does not have the number any more
    DELETE = "delete"  #: to quarantine, and the tombstone goes too: the tablet is deleted or was replaced


class TabletClosing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a tablet's replica is closed. A server that knows a later configuration which has the number refuses."""

    purpose: ClosePurpose
    config_id: ConfigId = NO_CONFIG


class OpenOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Open one replica.

    `transition` is the OFFLINE record at `version` of its znode, `region` the region's record at `region_version`:
    the server needs to read neither before its first compare-and-set.
    """

    transition: TransitionRecord
    version: int
    region: RegionRecord
    region_version: int
    open_timeout_ms: int = 60_000
    #: Version of the table's schema: what is opened under it need not be altered to it (DD-07).
    schema_version: int = 0
    #: Kind of service that the table needs (`regions/records/kinds.py`); "": a master of an earlier build did not say.
    kind: str = ""
    #: Of a tablet's replica: what its server needs beside the region's record.
    tablet: TabletOpening | None = None


class CloseOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Close one replica: the server creates its transition as CLOSING with these fields, then goes to CLOSED."""

    region_id: str
    table_id: str
    replica: int
    destination: Incarnation | None = None
    intent: Intent = Intent.OPEN
    plan_id: str = ""
    attempt: int = 0
    reason: str = ""
    close_timeout_ms: int = 60_000
    #: What began the work; goes into the transition, and from there into the history.
    origin: WorkOrigin | None = None
    #: Of a tablet's replica: what is to become of its files.
    tablet: TabletClosing | None = None


class OrderOutcome(enum.StrEnum):
    """What became of an order."""

    DONE = "done"  #: OPENED or CLOSED is in the store, at `version`
    STARTED = "started"  #: taken and still running: ask again later
    FAILED = "failed"  #: could not; `error` says why, nothing of the region is left open here
    REFUSED = "refused"  #: the store or the server's own state says otherwise; the master should read the znode


class OrderResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Outcome of one order; `version` is the transition's latest version that the server wrote, -1 if none."""

    region_id: str
    replica: int
    outcome: OrderOutcome
    version: int = -1
    error: str = ""
    #: Cause id of the order.
    cause_id: str = ""


class OpenRegions(msgspec.Struct, frozen=True, tag=True):
    """Open a batch of replicas. Answer: OrderResults, in the orders' order."""

    epoch: int
    recipient: str
    start_code: int
    orders: list[OpenOrder]
    answer_within_ms: int = 5_000
    cluster: str = ""  #: cluster id of the sender


class CloseRegions(msgspec.Struct, frozen=True, tag=True):
    """Close a batch of replicas. Answer: OrderResults, in the orders' order."""

    epoch: int
    recipient: str
    start_code: int
    orders: list[CloseOrder]
    answer_within_ms: int = 5_000
    cluster: str = ""  #: cluster id of the sender


class ReviewReplicas(msgspec.Struct, frozen=True, tag=True):
    """The server reported replicas as open that the catalogue does not put there: have it ask the store whose they are.

    It drops those that the store gives to somebody else or to nobody, and keeps the others, whatever we think: the
    store's word is the compare-and-set of this order (FN-02, FN-03). `replicas`: (region id, replica). Answer:
    OrderResults, DONE for those that are not there (any more), STARTED for the others; the server's reports say what
    becomes of them.
    """

    epoch: int
    recipient: str
    start_code: int
    replicas: list[tuple[str, int]]
    cluster: str = ""
    cause_id: str = ""


class AlterOrder(msgspec.Struct, frozen=True, array_like=True):
    """One replica is to know that its table's schema has `schema_version` now, or a later one (DD-07)."""

    region_id: str
    replica: int
    schema_version: int
    cause_id: str = ""


class AlterRegions(msgspec.Struct, frozen=True, tag=True):
    """Tell replicas that are open of a new schema version. Answer: AlterResults, in the orders' order. Idempotent."""

    epoch: int
    recipient: str
    start_code: int
    orders: list[AlterOrder]
    cluster: str = ""  #: cluster id of the sender


class PurgeTable(msgspec.Struct, frozen=True, tag=True):
    """Remove the rows of a deleted table whose purge has begun. The server reads the table's record itself.

    Answer: Purged. Idempotent: what is gone is gone.
    """

    epoch: int
    recipient: str
    start_code: int
    table_id: str
    cluster: str = ""
    cause_id: str = ""


class Purged(msgspec.Struct, frozen=True, tag=True):
    """The rows are gone; `regions`: directories that this order removed."""

    regions: int = 0


class ListDirectories(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Which tables have files in the shared directory. Answer: Directories."""

    recipient: str = ""


class Directories(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Ids of tables that have files, and of those whose files are about to be removed."""

    tables: list[str] = []
    removing: list[str] = []


class AlterResult(msgspec.Struct, frozen=True, array_like=True):
    """The version that a replica has now; -1: it is not on this server, and must be opened to get one."""

    region_id: str
    replica: int
    schema_version: int


class AlterResults(msgspec.Struct, frozen=True, tag=True):
    """Answer to AlterRegions."""

    results: list[AlterResult]


class ListOpen(msgspec.Struct, frozen=True, tag=True):
    """Ask what the server has open. Anybody may ask; `recipient` "" means "whoever answers"."""

    recipient: str = ""
    limit: int = 0  #: 0: all


class GetServerStatus(msgspec.Struct, frozen=True, tag=True):
    """Ask for a server's own figures."""

    recipient: str = ""


class OrderResults(msgspec.Struct, frozen=True, tag=True):
    """Answer to OpenRegions and CloseRegions."""

    results: list[OrderResult]


class HostedReplica(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replica on a server: `state` is OPENING, OPEN, CLOSING or FAILED, the server's own view."""

    region_id: str
    table_id: str
    replica: int
    state: str
    since_ms: int = 0
    error: str = ""
    #: Requests per second of late, as far as the region's handler lets them be counted.
    load: float = 0.0
    #: The latest version of its table's schema that it was told of; -1 for a failed open.
    schema_version: int = 0
    #: Token of this open, as the location in the store has it.
    token: int = 0


class OpenList(msgspec.Struct, frozen=True, tag=True):
    """Answer to ListOpen; ordered by region id and replica."""

    uuid: str
    start_code: int
    replicas: list[HostedReplica]
    #: Id of the server's shared directory; "" if it uses none, or is of an earlier build.
    directory: str = ""


class MasterReach(msgspec.Struct, frozen=True, omit_defaults=True):
    """A master as a server's heartbeats find it; `heard_ms` ago it last answered, -1: never in this start (HB-12)."""

    address: str
    uuid: str = ""
    role: str = ""  #: unknown, standby or leader
    heard_ms: int = -1
    trouble: str = ""


class ServerStatus(msgspec.Struct, frozen=True, tag=True):
    """Answer to GetServerStatus."""

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


ServerRequest = (
    OpenRegions
    | CloseRegions
    | AlterRegions
    | ReviewReplicas
    | PurgeTable
    | ListOpen
    | ListDirectories
    | GetServerStatus
)


ServerReply = OrderResults | AlterResults | OpenList | Purged | Directories | ServerStatus
