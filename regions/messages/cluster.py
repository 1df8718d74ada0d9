"""Requests about masters, servers and users, and their replies: status, drains, fences, recent transitions, grants."""

from __future__ import annotations

import msgspec

from coord.security.principal import OpenDoor
from regions.messages.heartbeat import ServerFigures
from regions.messages.plans import PlanProgress
from regions.messages.staleness import NO_BOUND, AsOf, Bound
from regions.records.acts.grants import UserRole
from regions.records.model import (
    BarRecord,
    Incarnation,
    MasterRecord,
    ServerRecord,
)


class DrainServer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Drain a server, or allow regions on it again (TC-21). The drain survives restarts of the server. Reply: Accepted.

    With `wait_ms` the master replies when the server is empty.
    """

    uuid: str
    drain: bool = True
    wait_ms: int = 0


class FenceServer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Fence a live server: delete its registration, and open its regions on other servers after its lease (X10).

    The server gets no regions for `bar_ms` after it has registered again; -1: until UnfenceServer, 0: no bar. With
    `wait_ms` the master replies when the server's replicas are open on other servers. Reply: Accepted.
    """

    uuid: str
    reason: str = "asked for by an operator"
    #: Start code that the caller has seen. A server that has restarted since is not fenced. 0: any start.
    start_code: int = 0
    bar_ms: int = 0
    wait_ms: int = 0


class UnfenceServer(msgspec.Struct, frozen=True, tag=True):
    """Allow regions on a fenced server again. Reply: Accepted."""

    uuid: str


class GetMasterStatus(msgspec.Struct, frozen=True, tag=True):
    """Return a master's status. Every master answers. Reply: MasterStatus."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Check that a master answers (HB-14). Every master answers. Reply: Accepted, with the role."""


class ListMasters(msgspec.Struct, frozen=True, tag=True):
    """List all live masters and the active one, as far as the receiver knows (HB-14). Every master answers."""


class ListContacts(msgspec.Struct, frozen=True, tag=True):
    """List the servers whose heartbeats reach the receiver. Every master answers. Reply: Contacts."""


class ListServers(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List live servers with their load. Reply: Servers."""

    bound: Bound = NO_BOUND


class ListRit(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List replicas in transition, oldest first. Reply: Transitions."""

    limit: int = 100
    bound: Bound = NO_BOUND


class RecentTransitions(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List the latest steps in the active master's memory, oldest first. Reply: Transitions."""

    limit: int = 100
    region_id: str = ""


class ShutdownCluster(msgspec.Struct, frozen=True, tag=True):
    """Announce a shutdown: set the clean-shutdown flag, and assign no regions of dead servers. Reply: Accepted."""


def drained(replicas: int, tablets: int | None) -> str:
    """Return the state of a drained server in words, the same in every report.

    `replicas`: number of shared replicas that are open there or in transition; `tablets`: number of tablets with a
    member there.
    """
    if replicas:
        return "draining"
    return "drained of shared regions" if tablets else "drained"


class ServerLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """A live server with its load."""

    server: ServerRecord
    #: Replicas that are open on the server: of shared regions, and of tablets if they take part in their group.
    open: int
    bytes: int
    incoming: int  #: replicas in transition to the server
    outgoing: int  #: replicas that the server is closing
    draining: bool = False
    #: Why the server was fenced, until its lease must have ended; "" if it was not.
    fenced: str = ""
    #: Time until which a flapping server gets no regions, 0 for others.
    shunned_until_ms: int = 0
    #: Bar of the server: it gets no regions until the bar ends.
    bar: BarRecord | None = None
    #: Number of tablets with a member on the server, and number that the server leads. None: unknown, as on a standby,
    #: or until the server has sent its full report to a new active master.
    tablets: int | None = None
    leaders: int | None = None
    #: Replicas of tablets in `open`. None if unknown; then `open` does not count them.
    tablets_open: int | None = None
    #: Number of rows in `bytes`. Until the server has reported the size of each open replica, this is None and `bytes`
    #: is an estimate.
    rows: int | None = None
    measured: bool = False

    @property
    def shared_open(self) -> int:
        """Replicas of shared regions that are open on the server."""
        return self.open - (self.tablets_open or 0)

    @property
    def drained(self) -> str:
        """Progress of an operator's drain of the server, in words; "" if the server is not drained."""
        return drained(self.shared_open + self.incoming + self.outgoing, self.tablets) if self.draining else ""


class Servers(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ListServers, sorted by uuid."""

    servers: list[ServerLoad]
    as_of: AsOf | None = None
    #: Bars of servers that are not registered.
    barred: list[BarRecord] = []


class Masters(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ListMasters, sorted by address. `active` is "host:port", or "" if unknown."""

    masters: list[MasterRecord]
    active: str = ""


class Contact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A server whose heartbeats reach one master (HB-12). `heard_ms` is the time since the last heartbeat."""

    server: Incarnation
    #: None until the server has sent its registration.
    record: ServerRecord | None
    heard_ms: int
    #: Accepted heartbeats of this start of the server.
    beats: int
    figures: ServerFigures = ServerFigures()


class Contacts(msgspec.Struct, frozen=True, tag=True):
    """Reply to ListContacts, sorted by server uuid."""

    master: str
    contacts: list[Contact]


class StartupPhase(msgspec.Struct, frozen=True, omit_defaults=True):
    """One phase of an activation or a bulk assignment. `seconds` is the time so far if not `done`."""

    name: str
    seconds: float
    done: bool = True
    detail: str = ""


class MirrorStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of a standby's mirror."""

    #: True if the mirror is complete except for `behind` znodes.
    is_warm: bool
    tables: int
    regions: int
    #: Changed znodes that have not been read yet.
    behind: int
    #: Age by the last proof, -1 without a proof.
    stale_ms: int = -1
    #: The mirror includes all changes up to this zxid.
    zxid: int = 0


class Unserved(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replicas of shared regions that should be open and are not, and the one that has waited longest.

    `key` and `state` are "" if there is none, `age_ms` is the age of that replica's transition in its present state,
    `attempts` the number of its opens that have failed.
    """

    count: int = 0
    #: Replicas that are parked: no master retries them by itself.
    parked: int = 0
    key: str = ""
    state: str = ""
    age_ms: int = 0
    error: str = ""
    attempts: int = 0


class MasterStatus(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to GetMasterStatus. `role` is standby, activating or active. Counts are zero on a standby.

    `replicas`, `open` and `parked` count the replicas of shared regions and those of tablets. A tablet's replica is
    open while it takes part in its group, as its server reports.
    """

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
    phases: list[StartupPhase]
    plan: PlanProgress | None
    #: Problems that need an operator's attention, at most 20.
    problems: list[str]
    uptime_ms: int
    #: The standby's mirror, None on the active master.
    mirror: MirrorStatus | None = None
    #: True if the active master took over with its mirror instead of loading the store.
    warm: bool = False
    #: Id of the cluster, "" before the master's first store session.
    cluster: str = ""
    #: Number of tablets by health, on the active master; None on a standby, which gets no reports.
    tablets: dict[str, int] | None = None
    #: Tablets of enabled tables that clients cannot use yet, because no leader has reported since their creation.
    unusable: int = 0
    #: Replicas in `replicas` that are closed because their table is disabled.
    resting: int = 0
    #: Regions that clients cannot use now, on the active master; None on a standby.
    unserved: Unserved | None = None
    #: Sentences about certificates of this master that soon expire.
    expiring: list[str] = []
    #: Whether the master serves callers without a proof.
    open_door: OpenDoor = OpenDoor.CLOSED


class TransitionStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step of a transition that the master has observed or taken. `after` "" means deleted."""

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
    cause_id: str = ""
    #: In a reply to ListRit: no master tries again by itself.
    parked: bool = False


class Transitions(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to RecentTransitions, and to ListRit with the current state as `after`."""

    transitions: list[TransitionStep]
    as_of: AsOf | None = None


class Accepted(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to a request that is done or accepted, with `detail` for the operator.

    `places` has the number of a fenced server's replicas that are open on each other server. `cause_id` is the
    request's cause id in the log and the history.
    """

    detail: str = ""
    places: dict[str, int] = {}
    cause_id: str = ""


# --- grants (`regions/access`)


class ChangeGrant(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Grant a role to a user, or revoke it. Reply: Accepted.

    `table` is a name or an id; "": the role is for the whole cluster. `force` revokes the last admin's role, too.
    """

    user: str
    role: UserRole
    table: str = ""
    granted: bool = True
    force: bool = False
    dry_run: bool = False


class ListGrants(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Return the grants on a table, or all; of one user, or of all. Reply: GrantList."""

    table: str = ""
    user: str = ""


class WhoAmI(msgspec.Struct, frozen=True, tag=True):
    """Return the caller's proved identity and its grants. Every master answers. Reply: Identity."""


class ShownGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """One grant. `table` is the table's name, its id if it is not known, and "" for the cluster."""

    user: str
    role: UserRole
    table: str = ""
    table_id: str = ""
    by: str = ""
    at_ms: int = 0


class GrantList(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Grants by user, then table. `checked` is False on an open cluster, where grants have no effect."""

    grants: list[ShownGrant]
    checked: bool = True


class CallerIdentity(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Identity of the caller: `identity` is "user:alice", or "nobody" on an open cluster."""

    identity: str
    grants: list[ShownGrant] = []
    checked: bool = True
    #: Address from which the caller connects.
    address: str = ""
