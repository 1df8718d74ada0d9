"""Requests about masters and servers, and the answers: status, lists, drains, fences, recent transitions."""

from __future__ import annotations

import msgspec

from regions.messages.codes import NO_BOUND
from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
from regions.messages.heartbeat import ServerFigures
from regions.messages.plans import PlanProgress
from regions.messages.staleness import AsOf, Bound
from regions.records.model import (
    BarRecord,
    Incarnation,
    MasterRecord,
    ServerRecord,
)


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


class ShutdownCluster(msgspec.Struct, frozen=True, tag=True):
    """Announce an orderly end: the clean mark is written, and dead servers are no longer replaced."""


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


class StartupPhase(msgspec.Struct, frozen=True, omit_defaults=True):
    """One phase of becoming active or of a bulk assignment; `seconds` so far if not `done`."""

    name: str
    seconds: float
    done: bool = True
    detail: str = ""


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
    phases: list[StartupPhase]
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


class TransitionStep(msgspec.Struct, frozen=True, omit_defaults=True):
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
    cause_id: str = ""


class Transitions(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to RecentTransitions and (with the current state as `after`) to ListRit."""

    transitions: list[TransitionStep]
    as_of: AsOf | None = None


class Accepted(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Done, or accepted; `detail` in words. `places`: where the replicas of a fenced server are open, by server.

    `cause_id`: the id under which the log and the history have what the request began.
    """

    detail: str = ""
    places: dict[str, int] = {}
    cause_id: str = ""
