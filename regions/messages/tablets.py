"""Requests about tablets, and their replies.

**To the active master:** ListTablets, ShowTablet, and the requests about intents. The master answers from the region
records, and from what servers have reported since it became active. Standbys get no reports, so they do not answer. A
field that is None is unknown: no server has reported it to this master.

**To a server:** ShowReplicas. The server answers from its own replicas, without store and masters. `rk fsck` compares
these answers with each other and with the store.

**To the server that leads a tablet:** ChangeConfig and TransferLeadership.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from regions.messages.heartbeat import MemberHealth, ReplicaState, TabletReport, TabletRole
from regions.messages.staleness import AsOf
from regions.records.intents import TabletMove
from regions.records.members import NO_CONFIG, ConfigId, Member, MemberRole
from regions.records.model import TabletState

#: Tablets in one reply of a master: about 1 kB each, so a reply stays far below the limit of a frame.
TABLETS_PAGE_MAX: Final = 1_000
#: Replicas in one reply of a server: about 300 B each.
REPLICAS_PAGE_MAX: Final = 5_000


class TabletHealth(enum.StrEnum):
    """Health of a tablet, the best first."""

    HEALTHY = "HEALTHY"
    RECOVERING = "RECOVERING"  #: a member is being added, or a copy is under way
    UNDER_REPLICATED = "UNDER_REPLICATED"  #: fewer healthy voters than wanted
    CONSENSUS_MISMATCH = "CONSENSUS_MISMATCH"  #: replicas contradict each other about leader or configuration
    UNAVAILABLE = "UNAVAILABLE"  #: There is no leader, or the leader does not reach a majority.
    UNKNOWN = "UNKNOWN"  #: servers of its members have not reported to this master yet
    CREATING = "CREATING"  #: The first members are being made. Clients do not use the tablet yet.
    CLOSED = "CLOSED"  #: The table is disabled or deleted, or an operator has unassigned the region.


# --- requests to a master -------------------------------------------------------------------------------------------


class ListTablets(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List tablets by id, at most `limit` of them, beginning after the id `after`. Reply: TabletList."""

    #: Only tablets of the table with this name or id; "": tablets of all tables.
    table: str = ""
    #: Only tablets that have a member or a replica on the server with this uuid; "": tablets on any server.
    server: str = ""
    #: Only tablets with one of these healths; []: with any.
    health: list[TabletHealth] = []
    after: str = ""
    #: 0: TABLETS_PAGE_MAX, which is also the greatest limit.
    limit: int = 0


class ShowTablet(msgspec.Struct, frozen=True, tag=True):
    """Describe the tablet with this id, or the only one whose id begins so. Reply: TabletList with one tablet."""

    region_id: str


class TabletMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member of a tablet, or a replica that is not a member, as the master knows it."""

    number: int
    #: Uuid of the server, and whether the server is registered in the store.
    server: str
    is_registered: bool
    #: Role in the latest configuration that the master knows; None if the configuration lacks the number.
    role: MemberRole | None = None
    #: The server's report about its replica; None if this master has received no report.
    state: ReplicaState | None = None
    raft_role: TabletRole | None = None
    term: int | None = None
    config_id: ConfigId | None = None
    applied_index: int | None = None
    size_bytes: int | None = None
    #: The leader's judgment, and the number of its log's entries that the member may lack. None without a report of a
    #: leader.
    health: MemberHealth | None = None
    behind: int | None = None
    #: Why the replica does not run, or why the leader does not judge the member healthy.
    reason: str = ""
    #: State of the member's transition, "" without one; whether its attempts are used up; the last error.
    transition: str = ""
    is_parked: bool = False
    last_error: str = ""


class TabletStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tablet: health, members, and the content of the region's record."""

    region_id: str
    table_id: str
    #: Name of its table.
    table: str
    health: TabletHealth
    #: Why the tablet is not HEALTHY, in one sentence.
    reason: str
    #: For how long this master has seen this health. `at_least`: it may have begun before the master became active.
    for_ms: int
    at_least: bool
    state: TabletState
    #: Voters that the table wants.
    wanted: int
    members: list[TabletMember]
    #: Number of the present leader, and its term; None if no leader has reported.
    leader: int | None = None
    term: int | None = None
    #: The latest committed configuration that a leader has reported; None without such a report.
    config_id: ConfigId | None = None
    #: Content of the region's record in the store: configuration, leader and its term. Leader 0: not written yet.
    record_config_id: ConfigId = NO_CONFIG
    record_leader: int = 0
    record_term: int = 0
    start_key: str = ""
    end_key: str = ""
    hash_buckets: int = 0
    #: Unfinished moves of its members, and servers that must get a learner.
    moves: tuple[TabletMove, ...] = ()
    learners: tuple[str, ...] = ()
    #: Next action of the policy of members, or the event that it waits for; "" if nothing is to do, or if it is
    #: unknown.
    policy: str = ""


class OrphanReplica(msgspec.Struct, frozen=True):
    """A replica that a server has and the store does not know (FN-04)."""

    server: str
    report: TabletReport


class TabletList(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ListTablets and ShowTablet, sorted by id."""

    tablets: list[TabletStatus]
    #: Id to continue after; "": this was the last page.
    next: str = ""
    #: Number of all tablets by health, independent of the filters; healths without tablets are omitted.
    counts: dict[str, int] = {}
    #: Orphans of the server, or of all servers. Only on the first page.
    orphans: list[OrphanReplica] = []
    as_of: AsOf | None = None


# --- intents: changes of members that survive every failover --------------------------------------------------------


# The active master checks a request, persists the intent (`/intents/<region_id>`, `/draining/<uuid>`), and replies. The
# policy of members then takes each step, under this master and its successors. A request may be repeated, because it
# names the wanted state.


class MoveTablet(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Move a voter of a tablet from server `source` to server `target` (TC-19). Reply: MemberIntent.

    The master chooses a server that is "". `dry_run`: only check the request.
    """

    region_id: str
    target: str = ""
    source: str = ""
    dry_run: bool = False


class CancelTabletMove(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Withdraw the moves of a tablet: the move away from `source`, or all moves. Reply: MemberIntent.

    A newcomer that does not vote yet is removed. A newcomer that votes already stays, and the policy removes another
    voter: the one that the tablet needs least.
    """

    region_id: str
    source: str = ""
    dry_run: bool = False


class WantLearner(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Keep a learner of a tablet on a server, or keep it no longer (TC-01). Reply: MemberIntent."""

    region_id: str
    uuid: str
    wanted: bool = True
    dry_run: bool = False


class NoteForcedConfig(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Record in the history that an operator has forced a configuration of a tablet. Reply: Accepted.

    `server` carried it out: the uuid of the member with the longest log. The record is the only purpose: the
    configuration is in the members' logs already.
    """

    region_id: str
    server: str
    #: Numbers of the voters that stay, and of those that are given up.
    keep: tuple[int, ...]
    lost: tuple[int, ...]
    #: The last entry of the longest log: acknowledged writes after it are lost.
    last_term: int
    last_index: int


class RetireServer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Empty a server for good (TC-21): its shared regions and its members of tablets go elsewhere. Reply: Retirement.

    The server may be dead already. DrainServer with `drain` False withdraws the request.
    """

    uuid: str
    dry_run: bool = False


class ShowRetirement(msgspec.Struct, frozen=True, tag=True):
    """Show how far a server is emptied. Reply: Retirement."""

    uuid: str


class ListIntents(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List the intents that have not ended: of the table with this name or id, or all. Reply: IntentList."""

    table: str = ""


class MemberIntent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to a change of a tablet's intents: the moves and learners that are wanted now."""

    region_id: str
    #: The change that was accepted, or (`dry_run`) would be, in one sentence.
    detail: str
    moves: tuple[TabletMove, ...] = ()
    learners: tuple[str, ...] = ()
    cause_id: str = ""


class TabletLeft(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tablet with a member on a server that is to be empty."""

    region_id: str
    table: str
    #: Next action of the policy, or the event that it waits for.
    policy: str = ""


class Retirement(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Progress of emptying a server."""

    uuid: str
    is_registered: bool
    #: Whether the server must be emptied.
    is_retiring: bool
    #: Numbers of tablets with a member on the server, of tablets that it leads, and of shared regions that are open
    #: there or on their way.
    tablets: int = 0
    leads: int = 0
    shared: int = 0
    #: Why the server cannot become empty as things are, "" if it can.
    obstacle: str = ""
    #: The first of the tablets that are left.
    left: list[TabletLeft] = []
    cause_id: str = ""
    as_of: AsOf | None = None

    @property
    def is_empty(self) -> bool:
        """Return True if no configuration names the server, and the server has no shared region."""
        return self.is_retiring and not self.tablets and not self.shared


class KeptIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One unfinished intent about a tablet: a move, or a learner (then `source` is "")."""

    region_id: str
    table: str
    target: str
    source: str = ""
    at_ms: int = 0
    reason: str = ""
    #: Its progress, in one sentence; and the policy's next action for the tablet, or the event that it waits for.
    progress: str = ""
    policy: str = ""


class IntentList(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ListIntents: intents by region id, and the servers that must be emptied and are not empty yet."""

    intents: list[KeptIntent]
    retiring: list[Retirement] = []
    #: Tables, by name, with the number of their tablets that have another number of voters than wanted.
    counts: dict[str, int] = {}
    as_of: AsOf | None = None


# --- requests to a server -------------------------------------------------------------------------------------------


class ShowReplicas(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List the server's replicas of tablets as the server has them, by id, beginning after `after`.

    `recipient` "" means any server. Reply: ReplicaList.
    """

    recipient: str = ""
    #: Only these tablets; []: all.
    tablets: list[str] = []
    after: str = ""
    #: 0: REPLICAS_PAGE_MAX, which is also the greatest limit.
    limit: int = 0


class OwnReplica(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replica's own view of itself and of its group.

    `report.config_id` is the latest committed configuration that the replica knows.
    """

    report: TabletReport
    #: The latest configuration in the replica's log, committed or not, and its members. None if the replica does not
    #: run and its files were not read.
    members: tuple[Member, ...] | None = None
    config_id: ConfigId = NO_CONFIG
    #: Number of the member that the replica regards as the leader of its term; 0: none.
    leader: int = 0
    #: Last index of the replica's log, and last index that it knows to be committed. For a replica that does not run,
    #: both are the last index that it acknowledged.
    last_index: int = 0
    commit_index: int = 0
    #: Term of the entry at `last_index`.
    last_term: int = 0

    @property
    def is_committed(self) -> bool:
        """Return True if the replica knows that its configuration is committed."""
        return self.config_id == self.report.config_id


class ReplicaList(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ShowReplicas, sorted by region id."""

    uuid: str
    start_code: int
    replicas: list[OwnReplica]
    #: Id to continue after; "": this was the last page.
    next: str = ""


# --- changes of members -----------------------------------------------------------------------------------------------


class ConfigChange(enum.StrEnum):
    """Change of one member by a ChangeConfig."""

    ADD = "add"  #: a new number, as PRE_VOTER or learner
    REMOVE = "remove"
    PROMOTE = "promote"  #: a learner becomes a PRE_VOTER, and a voter when it has caught up
    DEMOTE = "demote"  #: a voter or a PRE_VOTER becomes a learner


class ChangeConfig(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Change one member of a tablet, if `expect` is the committed configuration of its leader. Reply: ConfigChanged.

    Idempotent: a repetition after success gets DONE. The sender takes the number of a new member from the region's
    record, where no number is assigned twice.
    """

    epoch: int
    recipient: str
    start_code: int
    region_id: str
    #: Id of the committed configuration on which the sender's decision rests (compare and set).
    expect: ConfigId
    change: ConfigChange
    #: Number and server of the member that changes.
    number: int
    uuid: str
    #: ADD: where the member's server listens for other members.
    host: str = ""
    peer_port: int = 0
    #: ADD: LEARNER, or VOTER for a PRE_VOTER that becomes a voter when it has caught up.
    role: MemberRole = MemberRole.VOTER
    answer_within_ms: int = 5_000
    cluster: str = ""  #: cluster id of the sender
    cause_id: str = ""


class ChangeAnswer(enum.StrEnum):
    """Outcome of a ChangeConfig at a server."""

    DONE = "DONE"  #: the committed configuration is as the change wants it
    STARTED = "STARTED"  #: the change is in the leader's log and was not committed in time; send it again
    NOT_LEADER = "NOT_LEADER"  #: nothing was done; `leader` names the leader that the server knows
    STALE_CONFIG = "STALE_CONFIG"  #: nothing was done: another configuration is committed than `expect`
    PENDING = "PENDING"  #: nothing was done: another change, or a transfer of leadership, is under way
    NOT_SETTLED = "NOT_SETTLED"  #: Nothing was done: the leader is new and has not committed an entry of its term.
    ILLEGAL = "ILLEGAL"  #: Nothing was done: this configuration must not follow the present one.
    LEADS = "LEADS"  #: Nothing was done: the member leads. Transfer its leadership first.
    UNSAFE = "UNSAFE"  #: Nothing was done: the leader does not receive messages from a majority of the new voters.


class ConfigChanged(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ChangeConfig: the answer, and the configuration that the server knows to be committed."""

    answer: ChangeAnswer
    config_id: ConfigId = NO_CONFIG
    members: tuple[Member, ...] = ()
    term: int = 0
    #: Number and server of the leader of `term`; 0 and "": unknown.
    leader: int = 0
    leader_server: str = ""
    why: str = ""


# --- splits -----------------------------------------------------------------------------------------------------------


class SealTablet(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Seal a tablet that is split or merged, or remove its seal. Reply: TabletSealed. Idempotent.

    The seal is an entry of the tablet's log. After the seal the tablet answers no read and carries out no write. So its
    replicas keep the same rows, and its daughters can be made from any replica.
    """

    epoch: int
    recipient: str
    start_code: int
    region_id: str
    #: Names one attempt to split or merge the tablet, and is never used again (`ReshardingRecord`).
    resharding: str
    #: False: remove the seal of this attempt, or prevent it. Only for an attempt that can never be completed.
    wanted: bool = True
    answer_within_ms: int = 5_000
    cluster: str = ""  #: cluster id of the sender
    cause_id: str = ""


class SealAnswer(enum.StrEnum):
    """Outcome of a SealTablet at a server."""

    #: The tablet is sealed for this attempt. Or, for a removal: it is not sealed for the attempt, and never will be.
    DONE = "DONE"
    STARTED = "STARTED"  #: The entry is in the leader's log and was not applied in time. Send the request again.
    NOT_LEADER = "NOT_LEADER"  #: nothing was done; `leader` names the leader that the server knows
    #: Nothing was done: members change, are away or lag, or the server has another reason (`why`).
    NOT_READY = "NOT_READY"
    OTHER = "OTHER"  #: nothing was done: the tablet is sealed for another attempt
    CANCELED = "CANCELED"  #: nothing was done: the seal of this attempt was taken away before


class TabletSealed(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to SealTablet."""

    answer: SealAnswer
    #: Index of the seal in the tablet's log, the same in every answer.
    index: int = 0
    #: The committed configuration: the first one of the daughters.
    config_id: ConfigId = NO_CONFIG
    members: tuple[Member, ...] = ()
    #: Number and server of the leader; 0 and "": unknown.
    leader: int = 0
    leader_server: str = ""
    why: str = ""


# --- leadership -------------------------------------------------------------------------------------------------------


class TransferLeadership(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Hand the leadership of a tablet over to member `to`, 0: to the voter with the longest log. Reply: ConfigChanged.

    `recipient` "" means any server. The leader answers STARTED at once; WhoLeads shows the result. A voter that does
    not take over within an election timeout leaves the leadership where it is.
    """

    region_id: str
    recipient: str = ""
    to: int = 0
