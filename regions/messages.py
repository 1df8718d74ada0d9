"""What masters, region servers and the command line say to each other (carried by `coord.rpc`).

Each message is a tagged struct; `ServerRequest`, `MasterRequest` and their replies are the unions to decode.

**Master to server.** Every command carries the envelope: the sender's fencing `epoch`, and the recipient's `uuid` and
`start_code`, and the `cluster` id. A server remembers the highest epoch it has seen and refuses a lower one, and
refuses a command meant for another server, another start of itself or another cluster (FN-01, FN-04, FN-08, FW-11):
`RpcError` with `STALE_EPOCH`, `WRONG_SERVER` or `WRONG_CLUSTER`.

OPEN and CLOSE are idempotent: asking again for the same order is how a master learns what became of it. The server
answers a batch as soon as every order of it is decided, or after `answer_within_ms` with STARTED for those that still
run. An outcome is remembered until the transition has left the server's hands, so nothing is lost with an answer.

A master asks again with the latest record that it knows, so the transition in a repeated OPEN may be OPENING.

**To the master.** Reads and changes go to the active master; a standby answers `RpcError(NOT_LEADER)`, whose hint is
the address of the active one if it is known ("host:port", else empty). A read that carries a `Bound` may be answered by
a standby that can prove that its picture is no older (`regions/staleness.py`), or refused as `TOO_STALE`, with the same
hint. `master/roles.py` has the table of who answers what.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from regions.ddl import AlterTable as AlterTable
from regions.ddl import CreateTable as CreateTable
from regions.ddl import DeleteTable as DeleteTable
from regions.ddl import SetTableIntent as SetTableIntent
from regions.ddl import UndeleteTable as UndeleteTable
from regions.heartbeat import Heartbeat, HeartbeatReply, ServerFigures
from regions.model import (
    BalanceMove,
    BarRecord,
    GroupBalance,
    Incarnation,
    Intent,
    MasterRecord,
    PlanRecord,
    RegionRecord,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)
from regions.staleness import AsOf, Bound

#: Of a caller who allows nothing: the active master answers.
NO_BOUND: Final = Bound()

# Codes of RpcError.
NOT_LEADER: Final = "not_leader"
STALE_EPOCH: Final = "stale_epoch"
UNKNOWN_EPOCH: Final = "unknown_epoch"  #: the store does not say that the sender's epoch has begun: try again
WRONG_SERVER: Final = "wrong_server"
WRONG_MASTER: Final = "wrong_master"
WRONG_CLUSTER: Final = "wrong_cluster"  #: the sender belongs to another cluster; nothing was done (FN-04)
NO_LEASE: Final = "no_lease"  #: the server has lost its session and serves nothing until it has rejoined
BAD_REQUEST: Final = "bad_request"
NOT_FOUND: Final = "not_found"
ALREADY_EXISTS: Final = "already_exists"
BUSY: Final = "busy"  #: in transition, or the master is still loading: try again
TOO_STALE: Final = "too_stale"  #: a standby that cannot prove the age that the caller allows
TIMED_OUT: Final = "timed_out"  #: accepted, but not finished within the time given; it goes on


# --- master to region server ----------------------------------------------------------------------------------


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
    #: Kind of service that the table needs (`regions/kinds.py`); "": a master of an earlier build did not say.
    kind: str = ""


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


class Outcome(enum.StrEnum):
    """What became of an order."""

    DONE = "done"  #: OPENED or CLOSED is in the store, at `version`
    STARTED = "started"  #: taken and still running: ask again later
    FAILED = "failed"  #: could not; `error` says why, nothing of the region is left open here
    REFUSED = "refused"  #: the store or the server's own state says otherwise; the master should read the znode


class OrderResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Outcome of one order; `version` is the transition's latest version that the server wrote, -1 if none."""

    region_id: str
    replica: int
    outcome: Outcome
    version: int = -1
    error: str = ""


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


class AlterOrder(msgspec.Struct, frozen=True, array_like=True):
    """One replica is to know that its table's schema has `schema_version` now, or a later one (DD-07)."""

    region_id: str
    replica: int
    schema_version: int


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


# --- anybody to master ------------------------------------------------------------------------------------------


class ListTables(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """All tables with counts."""

    bound: Bound = NO_BOUND


class DescribeTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A table's regions and where they are; `limit` 0: all, else that many from `start_key` on."""

    table: str
    start_key: str = ""
    limit: int = 0
    bound: Bound = NO_BOUND


class DescribeRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One region, its replicas and their transitions."""

    region_id: str
    bound: Bound = NO_BOUND


class MoveRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Move a replica to the server with uuid `destination`, or to any other one if that is empty."""

    region_id: str
    replica: int = 0
    destination: str = ""
    wait_ms: int = 0


class SetRegionIntent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Have a region closed and left closed (`assigned` False), or opened again; durable when the answer comes."""

    region_id: str
    assigned: bool
    wait_ms: int = 0


class DrainServer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Have a server emptied and kept empty, or let it have regions again (TC-21). The mark outlives the server.

    With `wait_ms` the answer comes when nothing is left there.
    """

    uuid: str
    drain: bool = True
    wait_ms: int = 0


class FenceServer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Take a live server's regions away: its registration is deleted, and they go elsewhere after its lease (X10).

    For `bar_ms` it gets no regions when it joins again: -1 until UnfenceServer, 0 it gets some at once. With `wait_ms`
    the answer comes when its replicas are open elsewhere.
    """

    uuid: str
    reason: str = "asked for by an operator"
    #: The start that the caller has seen; a server that was started again since is not fenced. 0: whichever lives.
    start_code: int = 0
    bar_ms: int = 0
    wait_ms: int = 0


class UnfenceServer(msgspec.Struct, frozen=True, tag=True):
    """Let a server that was fenced have regions again."""

    uuid: str


class ExplainRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Why each replica of a region is where it is, and who must act next. Answer: Explanations."""

    region_id: str
    bound: Bound = NO_BOUND


class ExplainTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Why a table is not at rest, and who holds it up. Answer: TableExplanation."""

    table: str
    bound: Bound = NO_BOUND


class RetryRegion(msgspec.Struct, frozen=True, tag=True):
    """Try a parked replica again (X11)."""

    region_id: str
    replica: int = 0


class GetMasterStatus(msgspec.Struct, frozen=True, tag=True):
    """A master's own figures; standbys answer it too."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Ask whether anybody is there (HB-14). Every master answers, with Accepted and its role."""


class ListMasters(msgspec.Struct, frozen=True, tag=True):
    """All live masters, and which is active, as far as the one that is asked knows (HB-14). Every master answers."""


class ListContacts(msgspec.Struct, frozen=True, tag=True):
    """Which servers' heartbeats reach the master that is asked, active or not. Answer: Contacts."""


class ListServers(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Live servers with their load."""

    bound: Bound = NO_BOUND


class ListRit(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Replicas in transition, oldest first."""

    limit: int = 100
    bound: Bound = NO_BOUND


class RecentTransitions(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The latest transitions that this master saw (kept in memory, bounded), oldest first."""

    limit: int = 100
    region_id: str = ""


class Balance(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Ask about the balancer, switch it, or have a round made now; `dry_run` only tells what it would move."""

    switch: bool | None = None
    run: bool = False
    dry_run: bool = False


class PlannedMove(msgspec.Struct, frozen=True):
    """A replica that a plan wants on the server with uuid `destination`; it was found on `source`."""

    region_id: str
    replica: int
    source: str
    destination: str


class BeginPlan(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Announce a plan for regions that are open, to be handed over in `parts`. Answer: PlanReport.

    `epoch` is that of the master whose census the plan was checked against: under another it has to be checked anew.
    A plan of that id that is being applied begins again: what has not begun is withdrawn first.
    """

    plan_id: str
    epoch: int
    parts: int
    moves: int
    engine: str = ""
    fingerprint: str = ""
    digest: str = ""
    note: str = ""


class AddPlanMoves(msgspec.Struct, frozen=True, tag=True):
    """Hand over part number `part`, from 0. They are durable when the answer comes, a PlanReport; may be repeated."""

    plan_id: str
    part: int
    moves: list[PlannedMove]


class AbortPlan(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Withdraw what has not begun of the plan that is being applied. Answer: PlanReport."""

    plan_id: str = ""  #: "": whichever it is


class ShutdownCluster(msgspec.Struct, frozen=True, tag=True):
    """Announce an orderly end: the clean mark is written, and dead servers are no longer replaced."""


class TableSummary(msgspec.Struct, frozen=True):
    """A table and how its replicas fare."""

    table: TableRecord
    regions: int
    replicas: int
    open: int
    rit: int
    parked: int
    #: Replicas that follow the latest schema, as far as the master knows; -1: a standby, which is not told.
    altered: int = -1


class Tables(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to ListTables, by name; changes of a table (`regions/ddl.py`) answer with that one."""

    tables: list[TableSummary]
    as_of: AsOf | None = None


class ReplicaStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a replica is, and its transition if it is in one."""

    replica: int
    server: Incarnation | None = None
    transition: TransitionRecord | None = None


class RegionStatus(msgspec.Struct, frozen=True):
    """A region and its replicas."""

    region: RegionRecord
    replicas: list[ReplicaStatus]


class Regions(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to DescribeTable and DescribeRegion, by start key."""

    table: TableRecord
    regions: list[RegionStatus]
    as_of: AsOf | None = None


class ServerLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """A live server as the master sees it."""

    server: ServerRecord
    open: int
    bytes: int
    incoming: int  #: replicas in transition towards it
    outgoing: int  #: replicas that it is closing
    draining: bool = False
    #: Why it was fenced, while its lease may last; and until when a server that comes and goes gets nothing.
    fenced: str = ""
    shunned_until_ms: int = 0
    #: It was fenced, and gets nothing until this ends.
    bar: BarRecord | None = None


class Servers(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to ListServers, by uuid."""

    servers: list[ServerLoad]
    as_of: AsOf | None = None
    #: Bars of servers that are not alive.
    barred: list[BarRecord] = []


class Masters(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to ListMasters, by address; `active` is "host:port", "" if unknown."""

    masters: list[MasterRecord]
    active: str = ""


class Contact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A server as one master hears it (HB-12); `heard_ms` ago its last heartbeat came."""

    server: Incarnation
    #: None until it has sent its registration.
    record: ServerRecord | None
    heard_ms: int
    #: Heartbeats that came from this start of it.
    beats: int
    figures: ServerFigures = ServerFigures()


class Contacts(msgspec.Struct, frozen=True, tag=True):
    """Answer to ListContacts, by uuid of the servers."""

    master: str
    contacts: list[Contact]


class Phase(msgspec.Struct, frozen=True, omit_defaults=True):
    """One phase of becoming active or of a bulk assignment; `seconds` so far if not `done`."""

    name: str
    seconds: float
    done: bool = True
    detail: str = ""


class PlanProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bulk plan on its way."""

    plan_id: str
    engine: str
    state: str
    regions: int
    assigned: int
    stage: str = ""
    seconds: float = 0.0
    note: str = ""


class MirrorStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A standby's mirror of the store: whether it could take over with it, and how old it is."""

    #: It holds everything but `behind`.
    is_warm: bool
    tables: int
    regions: int
    #: Znodes that have changed and are still to be read.
    behind: int
    #: Age that was last proved, -1 if none ever was; and the zxid that it holds at least.
    stale_ms: int = -1
    zxid: int = 0


class MasterStatus(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to GetMasterStatus. `role`: standby, activating, active. Counts are zero on a standby."""

    uuid: str
    role: str
    epoch: int
    active: str  #: "host:port" of the active master, "" if unknown
    path: str  #: "startup" or "failover" once active
    servers: int
    masters: int
    tables: int
    regions: int
    replicas: int
    open: int
    rit: int
    parked: int
    phases: list[Phase]
    plan: PlanProgress | None
    #: Parked replicas and what blocks them, at most 20.
    problems: list[str]
    uptime_ms: int
    #: What a standby has ready; None on the active one.
    mirror: MirrorStatus | None = None
    #: Its reign began with what it had kept as a standby, and not by loading the store.
    warm: bool = False
    #: Id of the cluster that it belongs to, "" before its first session with the store.
    cluster: str = ""


class BalanceRound(msgspec.Struct, frozen=True):
    """What a round of the balancer ordered."""

    at_ms: int
    moves: int
    more: bool
    before: list[GroupBalance]
    after: list[GroupBalance]


class BalanceReport(msgspec.Struct, frozen=True, tag=True):
    """Answer to Balance. `next_in_ms` -1: it is off; `moves`, `before` and `after` only for a round just decided."""

    enabled: bool
    period_ms: int
    next_in_ms: int
    #: Transitions that hold a round up, those stuck, and the servers that take no part because of them (X9).
    blocking: list[str]
    stuck: list[str]
    excluded: list[str]
    last: BalanceRound | None
    dry_run: bool
    moves: list[BalanceMove]
    more: bool
    before: list[GroupBalance]
    after: list[GroupBalance]
    #: The plan of an operator that is being applied: until it is done the balancer holds still.
    plan: str = ""


class PlanReport(msgspec.Struct, frozen=True, tag=True):
    """An operator's plan: its record, and moves that wait and that are under way."""

    record: PlanRecord
    waiting: int
    moving: int


class TransitionSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step of a transition as the master saw or made it; `after` "" means deleted."""

    at_ms: int
    region_id: str
    replica: int
    actor: str
    before: str
    after: str
    cause: str
    server: str = ""
    epoch: int = 0
    plan_id: str = ""
    attempt: int = 0
    error: str = ""


class Transitions(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to RecentTransitions and (with the current state as `after`) to ListRit."""

    transitions: list[TransitionSeen]
    as_of: AsOf | None = None


class NextActor(enum.StrEnum):
    """Who must act for a replica to get where it should be."""

    NOBODY = "nobody"  #: it is where it should be
    MASTER = "master"
    SERVER = "server"
    OPERATOR = "operator"


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one replica stands and what it waits for (`regions/explain.py`). Times by the active master's clock."""

    region_id: str
    replica: int
    table: str
    #: OPEN, CLOSED, NOT OPEN, PARKED, or the state of the transition.
    standing: str
    #: One sentence for people.
    headline: str
    actor: NextActor
    #: What that one does next; "" for nobody.
    step: str = ""
    #: The server that has it, or is at work on it.
    server: Incarnation | None = None
    source: Incarnation | None = None
    destination: Incarnation | None = None
    #: Why the transition was begun, or taken to its latest step.
    reason: str = ""
    since_ms: int = 0
    #: When the master acts by itself, 0: it does not; and what it does then.
    deadline_ms: int = 0
    at_deadline: str = ""
    #: How long ago the deadline passed; 0 if it has not.
    overdue_ms: int = 0
    #: Failed opens, or asks for a close, and after how many what `at_deadline` says.
    attempt: int = 0
    attempts_max: int = 0
    last_error: str = ""
    epoch: int = 0
    plan_id: str = ""
    #: Servers that may not have it: "uuid: why".
    ruled_out: list[str] = []
    #: What an operator can do about it, commands first.
    way_out: list[str] = []
    #: Kind of service that its table needs (`regions/kinds.py`).
    kind: str = ""


class Explanations(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to ExplainRegion: one for each replica."""

    replicas: list[Explanation]
    as_of: AsOf | None = None


class Holdup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replicas of a table that wait for the same thing: how many, for what, who must act, and one of their regions."""

    replicas: int
    text: str
    actor: NextActor
    #: Uuid of the server concerned, "" if there is none.
    server: str = ""
    region_id: str = ""


class TableExplanation(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to ExplainTable (`regions/unfinished.py`)."""

    table: TableRecord
    #: Its state, or what it is becoming: ALTERING, PREPARING, CREATING, OPENING, CLOSING, BEING DELETED, ...
    standing: str
    #: One sentence for people.
    headline: str
    regions: int = 0
    replicas: int = 0
    open: int = 0
    #: Since when, as far as the active master saw; 0: it is at rest, or nobody knows.
    since_ms: int = 0
    #: Most replicas first.
    waiting: list[Holdup] = []
    #: Replicas in the way that were only counted.
    not_looked_at: int = 0
    way_out: list[str] = []
    #: What an operator should know of the table although nothing is under way.
    notes: list[str] = []
    as_of: AsOf | None = None


class Accepted(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Done, or accepted; `detail` in words. `places`: where the replicas of a fenced server are open, by server."""

    detail: str = ""
    places: dict[str, int] = {}


MasterRequest = (
    CreateTable
    | SetTableIntent
    | DeleteTable
    | AlterTable
    | UndeleteTable
    | ListTables
    | DescribeTable
    | DescribeRegion
    | ExplainRegion
    | ExplainTable
    | MoveRegion
    | RetryRegion
    | SetRegionIntent
    | DrainServer
    | FenceServer
    | UnfenceServer
    | GetMasterStatus
    | Ping
    | ListMasters
    | ListServers
    | ListRit
    | RecentTransitions
    | Balance
    | BeginPlan
    | AddPlanMoves
    | AbortPlan
    | ShutdownCluster
    | ListContacts
    | Heartbeat
)
MasterReply = (
    BalanceReport
    | PlanReport
    | Tables
    | Regions
    | Servers
    | MasterStatus
    | Masters
    | Transitions
    | Explanations
    | TableExplanation
    | Accepted
    | Contacts
    | HeartbeatReply
)
