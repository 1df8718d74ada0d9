"""What region servers tell every master, once a second, and what they are answered (HB-01 to HB-10).

A heartbeat names the cluster, the start of the server that sends it, and the highest fencing epoch that it knows. It
carries the server's registration when the master does not know it, and a report of replicas to the master that leads:

- a *full* report to a leader that the server sees for the first time, unasked (HB-10), or when it is asked for one;
- after that what has changed since the last heartbeat that this master has acknowledged, usually nothing (HB-03).

A report has at most `REPORT_MAX` replicas. A full one of more than that is several heartbeats, one right after the
other: the first says `begins`, the last says `ends`; whatever the master knew of the server's replicas before is void
from the first on, and it knows all of them from the last on. Each replica is described as it is when the heartbeat
leaves, so telling something twice does no harm, and nothing is lost with an answer.

Heartbeats of one start of a server are numbered: one that arrives after a later one, over a connection that was given
up, is not believed.

A replica of a tablet has a report of its own, `TabletReport`. It is a copy of what the Raft group decides; a master
takes a configuration from a leader alone.

Standby masters learn that the server lives, where it is and how busy it is; a report is for the leader (HB-08, X14).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from regions.records.members import NO_CONFIG, ConfigId, Member
from regions.records.model import Incarnation, ServerRecord
from regions.records.replica_key import replica_key

#: Replicas in one heartbeat: about 400 kB, which neither side takes long over.
REPORT_MAX: Final = 5_000
HEARTBEAT_PERIOD_S: Final = 1.0

#: State of a replica in a report that means: the server serves it. The others are OPENING and CLOSING.
OPEN: Final = "OPEN"


class ReplicaState(enum.StrEnum):
    """State of a tablet's replica in its server's process; the table is `regionserver/tablets/disk/life.py`."""

    ASLEEP = "ASLEEP"  #: its files are whole; the first message or request wakes it
    RUNNING = "RUNNING"  #: takes part in its group
    STOPPING = "STOPPING"  #: finishes what is under way before it rests or is deleted
    RESTING = "RESTING"  #: closed with its files: its table is disabled
    FAILED = "FAILED"  #: does not run, but remembers term and vote: it is copied anew under its number
    COPYING = "COPYING"  #: its files are being made from another replica's
    TOMBSTONE = "TOMBSTONE"  #: removed; remembers term and vote
    LOST = "LOST"  #: its memory is lost and its number is burned


#: States in which a replica takes part in its group, or wakes to do so.
TAKES_PART: Final = (ReplicaState.ASLEEP, ReplicaState.RUNNING)
#: States of a replica whose files are gone.
HAS_NO_FILES: Final = (ReplicaState.TOMBSTONE, ReplicaState.LOST)


class TabletRole(enum.StrEnum):
    """Raft role of a replica, as its server has it."""

    NONE = ""  #: it does not run
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"
    LEADER = "LEADER"


class MemberHealth(enum.StrEnum):
    """How a member fares, by its leader's judgment, which lasts while masters change."""

    HEALTHY = "HEALTHY"
    UNKNOWN = "UNKNOWN"  #: the leader is young, or the member has been silent for a short time
    FAILED = "FAILED"  #: silent for too long, lost, failed without cure, or another server than the configuration says


class MemberReport(msgspec.Struct, frozen=True, array_like=True):
    """One member, as its leader judges it."""

    number: int
    health: MemberHealth
    #: Entries of the leader's log that the member is not known to have.
    behind: int = 0
    reason: str = ""


class LeaderReport(msgspec.Struct, frozen=True, array_like=True):
    """What only a leader can say: the members of the committed configuration, and how each fares."""

    members: tuple[Member, ...]
    health: tuple[MemberReport, ...] = ()


class TabletReport(msgspec.Struct, frozen=True, array_like=True):
    """One replica of a tablet as its server has it. An array on the wire: there may be thousands."""

    region_id: str
    table_id: str
    number: int
    state: ReplicaState
    term: int = 0
    role: TabletRole = TabletRole.NONE
    #: The latest committed configuration that the replica knows.
    config_id: ConfigId = NO_CONFIG
    schema_version: int = 0
    applied_index: int = 0
    size_bytes: int = 0
    #: Requests per second of late.
    load: float = 0.0
    #: Why it is FAILED or LOST.
    reason: str = ""
    #: None of every replica that does not lead.
    leader: LeaderReport | None = None

    @property
    def key(self) -> str:
        """`<region_id>-<number>`."""
        return replica_key(self.region_id, self.number)

    @property
    def leads(self) -> bool:
        """Return True if this is the report of a leader."""
        return self.role is TabletRole.LEADER and self.leader is not None


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """One replica as its server has it now. An array on the wire: there may be many."""

    region_id: str
    table_id: str
    replica: int
    #: OPENING, OPEN or CLOSING, the server's own view; one that could not be opened is not there.
    state: str
    #: Version of the table's schema that the replica follows (DD-07, HB-15).
    schema_version: int = 0
    #: Requests per second of late, as far as the region's handler lets them be counted.
    load: float = 0.0
    #: What is wrong with its rows; "" while nobody has read a damaged one.
    damage: str = ""

    @property
    def key(self) -> str:
        """`<region_id>-<replica>`."""
        return replica_key(self.region_id, self.replica)


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replicas that have changed, and names of those that are no longer on the server; or a part of a full report."""

    replicas: list[ReplicaReport] = []
    gone: list[str] = []
    begins: bool = False
    ends: bool = False
    #: Replicas of tablets; they count for `REPORT_MAX` as the others do, and their keys stand in `gone` as well.
    tablets: list[TabletReport] = []


class ServerFigures(msgspec.Struct, frozen=True, array_like=True):
    """How busy a server is: replicas by what they are doing, requests per second."""

    open: int = 0
    opening: int = 0
    closing: int = 0
    load: float = 0.0


class Heartbeat(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A region server lives. Every master answers it with HeartbeatReply.

    Raises WRONG_CLUSTER for a server of another cluster, and WRONG_MASTER when `recipient`, a master's uuid, is
    neither empty nor the receiver's (FN-08).
    """

    cluster_id: str
    server: Incarnation
    #: Counts from 1 in each start of the server, separately for each master.
    sequence: int
    #: Highest fencing epoch that the server has seen, in orders or answers (FN-05); -1: none.
    epoch: int = -1
    recipient: str = ""
    figures: ServerFigures = ServerFigures()
    registration: ServerRecord | None = None
    report: Report | None = None


class HeartbeatReply(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """What a master says to it: who it is, whether it leads, and what it wants to know (HB-05, HB-09)."""

    cluster_id: str
    uuid: str
    start_code: int
    is_leader: bool = False
    #: The fencing epoch of its reign; of a standby the highest that it knows, -1: none.
    epoch: int = -1
    wants_registration: bool = False
    wants_full: bool = False
    #: "host:port" of the leader as far as a standby knows it.
    leader: str = ""
    #: Not 0: this heartbeat was not believed, for a later one had been heard, with this number: what it told is still
    #: to be told, under a higher one.
    overtaken: int = 0
