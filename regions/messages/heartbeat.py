"""Heartbeats that region servers send to every master once a second, and the replies (HB-01 to HB-10).

A heartbeat has the cluster id, the server's uuid and start code, and the highest fencing epoch that the server knows.
It carries the server's registration if the master does not have it. To the active master it carries a report of
replicas:

- a *full* report to an active master that is new to the server (HB-10), or on the master's request;
- otherwise the changes since the last heartbeat that this master has acknowledged, usually none (HB-03).

A report has at most `REPORT_MAX` replicas. A larger full report takes several heartbeats without a pause: the first has
`begins`, the last `ends`. From the first on the master drops its former list of the server's replicas. With the last
its list is complete. A report has the current state of each replica, so sending it again is harmless, and a lost reply
loses nothing.

Heartbeats of one start of a server are numbered. A master ignores a heartbeat that arrives after a later one.

A replica of a tablet has a report of its own, `TabletReport`. It is a copy of what the Raft group decides; a master
takes a configuration from a leader alone.

Standby masters get the server's address and load, but no reports (HB-08, X14).
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import msgspec

from regions.records.members import NO_CONFIG, ConfigId, Member
from regions.records.model import Incarnation, ServerRecord
from regions.records.replica_key import replica_key

#: Replicas in one heartbeat: about 80 kB, some milliseconds of work for the master.
REPORT_MAX: Final = 1_000
HEARTBEAT_PERIOD_S: Final = 1.0

#: State of a replica in a report that means: the server serves it. The others are OPENING and CLOSING.
OPEN: Final = "OPEN"
#: A server that is asked to close a replica still serves it until the store has the transition CLOSING.
CLOSING: Final = "CLOSING"


class ReplicaState(enum.StrEnum):
    """State of a tablet's replica in its server's process; the table is `regionserver/tablets/disk/life.py`."""

    ASLEEP = "ASLEEP"  #: Its files are complete. The first message or request wakes it.
    RUNNING = "RUNNING"  #: takes part in its group
    STOPPING = "STOPPING"  #: It finishes its work before it rests or is deleted.
    RESTING = "RESTING"  #: Closed, with its files, because the table is disabled.
    FAILED = "FAILED"  #: It does not run, but term and vote are intact. It is copied again under its number.
    COPYING = "COPYING"  #: its files are being made from another replica's
    TOMBSTONE = "TOMBSTONE"  #: removed; remembers term and vote
    LOST = "LOST"  #: Its memory is lost and its number is burned.


#: States in which a replica takes part in its group, or wakes up for a message.
TAKES_PART: Final = (ReplicaState.ASLEEP, ReplicaState.RUNNING)
#: States of a replica whose files are gone.
HAS_NO_FILES: Final = (ReplicaState.TOMBSTONE, ReplicaState.LOST)


class TabletRole(enum.StrEnum):
    """Raft role of a replica, as its server reports it."""

    NONE = ""  #: it does not run
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"
    LEADER = "LEADER"


class MemberHealth(enum.StrEnum):
    """Health of a member in the judgment of its leader. It survives a change of the active master."""

    HEALTHY = "HEALTHY"
    UNKNOWN = "UNKNOWN"  #: the leader is young, or the member has been silent for a short time
    FAILED = "FAILED"  #: silent for too long, lost, failed without cure, or another server than the configuration says


class MemberReport(msgspec.Struct, frozen=True, array_like=True):
    """One member, in the judgment of its leader."""

    number: int
    health: MemberHealth
    #: Entries of the leader's log that the member is not known to have.
    behind: int = 0
    reason: str = ""
    #: False while the disk of its server is full. Then another member must lead.
    may_lead: bool = True


class LeaderReport(msgspec.Struct, frozen=True, array_like=True):
    """Data that only a leader has: the members of the committed configuration, and the state of each."""

    members: tuple[Member, ...]
    health: tuple[MemberReport, ...] = ()


class Measure(NamedTuple):
    """The measured size of a region: its rows, and the bytes that they take.

    For a shared region the bytes are the pages of its file that contain rows. For a tablet they are the keys and
    values, which are equal in all members.
    """

    rows: int
    size_bytes: int


class TabletReport(msgspec.Struct, frozen=True, array_like=True):
    """One replica of a tablet as its server has it. Encoded as an array, because there may be thousands."""

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
    #: None for a replica that does not lead.
    leader: LeaderReport | None = None
    #: Rows in `size_bytes`; -1: unknown, because the replica does not run.
    rows: int = -1
    #: Name of the attempt to split or merge the tablet for which the rows are sealed (`SealTablet.resharding`).
    sealed: str = ""

    @property
    def key(self) -> str:
        """`<region_id>-<number>`."""
        return replica_key(self.region_id, self.number)

    @property
    def leads(self) -> bool:
        """Return True if this is the report of a leader."""
        return self.role is TabletRole.LEADER and self.leader is not None

    @property
    def measure(self) -> Measure | None:
        """The measured size of the replica, None if its server does not know the size."""
        return None if self.rows < 0 else Measure(self.rows, self.size_bytes)


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The current state of one replica on its server. Encoded as an array, because there may be many."""

    region_id: str
    table_id: str
    replica: int
    #: OPENING, OPEN or CLOSING. A replica whose open has failed is not reported.
    state: str
    #: Version of the table's schema that the replica has (DD-07, HB-15).
    schema_version: int = 0
    #: Recent requests per second, if the region's handler counts them.
    load: float = 0.0
    #: Description of damaged rows, "" if none have been read.
    damage: str = ""
    #: Measured rows and bytes; -1: the service has not measured the region.
    rows: int = -1
    size_bytes: int = -1

    @property
    def key(self) -> str:
        """`<region_id>-<replica>`."""
        return replica_key(self.region_id, self.replica)

    @property
    def measure(self) -> Measure | None:
        """The measured size, None if the service has not measured the region."""
        return None if min(self.rows, self.size_bytes) < 0 else Measure(self.rows, self.size_bytes)


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Changed replicas and the keys of replicas that have left the server, or a part of a full report."""

    replicas: list[ReplicaReport] = []
    gone: list[str] = []
    begins: bool = False
    ends: bool = False
    #: Reports of replicas of tablets. They count towards `REPORT_MAX`, and `gone` has their keys, too.
    tablets: list[TabletReport] = []


class ServerFigures(msgspec.Struct, frozen=True, array_like=True):
    """Load of a server: numbers of replicas by state, and requests per second."""

    open: int = 0
    opening: int = 0
    closing: int = 0
    load: float = 0.0
    #: Urgent notes for the operator, in sentences.
    alarms: list[str] = []
    #: Free bytes of its disk above its reserve, as in its registration; 0: unknown.
    disk_free: int = 0
    #: Number of open replicas of shared regions, without tablets; -1: unknown.
    shared: int = -1


class Heartbeat(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A region server's heartbeat. Every master replies with HeartbeatReply.

    A master rejects a heartbeat of another cluster with WRONG_CLUSTER, and one whose `recipient` (a master's uuid, or
    "") is another master with WRONG_MASTER (FN-08).
    """

    cluster_id: str
    server: Incarnation
    #: Counts from 1 in each start of the server, separately for each master.
    sequence: int
    #: Highest fencing epoch that the server has received, in orders or replies (FN-05); -1: none.
    epoch: int = -1
    recipient: str = ""
    figures: ServerFigures = ServerFigures()
    registration: ServerRecord | None = None
    report: Report | None = None


class HeartbeatReply(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A master's reply to a heartbeat: its identity and role, and what the server must send next (HB-05, HB-09)."""

    cluster_id: str
    uuid: str
    start_code: int
    is_leader: bool = False
    #: The active master's fencing epoch; on a standby the highest that it knows, -1: none.
    epoch: int = -1
    wants_registration: bool = False
    wants_full: bool = False
    #: "host:port" of the active master, as far as a standby knows it.
    leader: str = ""
    #: If not 0, the master has ignored the heartbeat, because it had accepted a later one with this sequence number.
    #: The server must send its changes again under a higher number.
    overtaken: int = 0
