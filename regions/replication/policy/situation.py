"""Facts for the policy's decisions, and conclusions from them: the members that are lost, must leave, or count. Pure.

Members are judged by their leader: HEALTHY, UNKNOWN (the leader is young, or the silence short) or FAILED. The leader
itself is always healthy: it reports (KUDU-2230: Kudu's leader did not count itself, and replaced nothing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from regions.messages.heartbeat import MemberHealth, MemberReport
from regions.records.intents import TabletIntents, TabletMove
from regions.records.kinds import kind_in_tablets, may_host
from regions.records.members import Member, MemberRole
from regions.records.model import RegionRecord, ServerRecord, TableRecord
from regions.replication.config import majority
from regions.replication.reports import LeaderView

#: A newcomer that lacks at most this many entries has caught up for the policy: about as many are in flight to a
#: follower under heavy load. The leader decides about its promotion more strictly.
CAUGHT_UP_ENTRIES: Final = 1_000
#: Limit of newcomers that a server gets at the same time. A small newcomer mostly waits for the next report. With a low
#: limit a server that must make 1,000 tablets of a dead server would need minutes.
INCOMING_MAX: Final = 64
#: Limit of newcomers among them with many bytes to copy: twice the number of copies that a server receives at a time,
#: so that the server never idles.
LARGE_INCOMING_MAX: Final = 8
#: Rows of more bytes are much to copy: half a second.
LARGE_BYTES: Final = 64 << 20
#: Time after which a leader's report shows its earlier actions: some heartbeats.
REPORT_LATE_MS: Final = 5_000


class Newcomer(NamedTuple):
    """A number that was given out for a new member: its transition has not ended."""

    number: int
    uuid: str
    role: MemberRole
    #: Time at which this master saw the last change of its transition. The progress of a copy changes the transition.
    since_ms: int
    #: No server has begun to make the replica. A number that was removed from a configuration is never added again.
    is_fresh: bool = True


class TabletFacts(NamedTuple):
    """Facts about one tablet, from the store and from its leader."""

    region: RegionRecord
    table: TableRecord
    #: Whether its replicas must take part, so that clients can use the tablet.
    is_running: bool
    #: The leader's latest report to this master, None before the first; `size_bytes` is the size of its rows.
    leader: LeaderView | None
    size_bytes: int = 0
    newcomers: tuple[Newcomer, ...] = ()
    #: Voters whose first replica is being made by a live server.
    being_made: frozenset[int] = frozenset()
    #: Numbers of voters whose live servers report that they have no such replica any more.
    lost: frozenset[int] = frozenset()
    #: Those members whose attempts to make or open the replica are used up. Such a replica does not open by itself.
    unmade: frozenset[int] = frozenset()
    #: A change was sent, and its outcome is not known.
    is_asking: bool = False
    intents: TabletIntents | None = None
    #: Numbers of replicas that their live servers do not report, or report as LOST: Such replicas cannot continue.
    absent: frozenset[int] = frozenset()
    #: The seal of a canceled split or merge that its leader still reports; "" without one.
    canceled_seal: str = ""
    #: Why that seal must not be taken away, "" if it may be.
    seal_stays: str = ""

    @property
    def is_large(self) -> bool:
        """Return True if a copy of its rows takes long."""
        return self.size_bytes > LARGE_BYTES


class ClusterFacts(NamedTuple):
    """The servers, for all tablets that are decided at one time."""

    #: Registered servers by uuid.
    servers: Mapping[str, ServerRecord]
    #: Servers that must be emptied, and servers that get no new members (the former, and barred servers).
    retiring: frozenset[str]
    closed: frozenset[str]
    #: Members by server, newcomers under way by server, and those among them with much to copy.
    loads: Mapping[str, int]
    incoming: Mapping[str, int]
    large_incoming: Mapping[str, int]
    #: Why members on dead servers are not replaced now, "" if they are.
    outage: str
    #: Time without progress after which a newcomer is given up.
    add_timeout_ms: int


def outage_of(loads: Mapping[str, int], registered: Collection[str], retiring: Collection[str]) -> str:
    """Return why members on dead servers are not replaced now: more than a third of all servers is dead. Return ""
    otherwise.

    The cause is probably a cut network or a power failure, and copies would fill the remaining disks and links. A
    server that an operator has retired does not count.
    """
    gone = sorted(uuid for uuid, count in loads.items() if count and uuid not in registered and uuid not in retiring)
    known = len(gone) + len(registered)
    if len(gone) * 3 <= known:
        return ""
    named = ", ".join(gone[:3]) + (", ..." if len(gone) > 3 else "")
    return (
        f"{len(gone)} of {known} servers are gone ({named}), more than a third: nothing is replaced until they are"
        " back. `rk server retire` names those that are gone for good"
    )


class Situation:
    """The facts, and conclusions from them for each member of the leader's configuration."""

    def __init__(self, tablet: TabletFacts, cluster: ClusterFacts, now_ms: int) -> None:
        """`tablet` must have a leader."""
        assert tablet.leader is not None, "rows are asked in order"
        self.tablet = tablet
        self.cluster = cluster
        self.now_ms = now_ms
        self.leader: LeaderView = tablet.leader
        self.wanted: int = tablet.table.replication
        members = self.leader.report.members
        self.members: tuple[Member, ...] = members
        self.voters = [one for one in members if one.role is MemberRole.VOTER]
        self.joining = [one for one in members if one.role is MemberRole.PRE_VOTER]
        self.learners = [one for one in members if one.role is MemberRole.LEARNER]
        self._judged: dict[int, MemberReport] = {one.number: one for one in self.leader.report.health}
        #: Voters that their leader judges FAILED, and voters that were never made and never will be. A first replica
        #: that a live server is still making is not among them.
        self.failed = [
            one
            for one in self.voters
            if (self.is_failed(one) or one.number in tablet.unmade) and one.number not in tablet.being_made
        ]
        #: Moves that have not ended, by their source.
        moves = () if tablet.intents is None else tablet.intents.moves
        self.moves: dict[str, TabletMove] = {one.source: one for one in moves}
        #: Why a voter should not be where it is, by number.
        self.leaving: dict[int, str] = {}
        for one in self.voters:
            why = self._why_leaving(one)
            if why:
                self.leaving[one.number] = why
        #: Voters that count: neither FAILED nor leaving.
        self.staying = [one for one in self.voters if one not in self.failed and one.number not in self.leaving]

    # --- health -----------------------------------------------------------------------------------------------------

    def health(self, member: Member) -> MemberHealth:
        """Return how a member fares, by its leader's judgment; UNKNOWN if the leader has none yet."""
        if member.number == self.leader.number:
            return MemberHealth.HEALTHY
        found = self._judged.get(member.number)
        return MemberHealth.UNKNOWN if found is None else found.health

    def is_healthy(self, member: Member) -> bool:
        """Return True for a member that its leader calls healthy, and for the leader."""
        return self.health(member) is MemberHealth.HEALTHY

    def is_failed(self, member: Member) -> bool:
        """Return True for a member that its leader calls FAILED."""
        return self.health(member) is MemberHealth.FAILED

    def reason(self, member: Member) -> str:
        """Return the leader's reason for its judgment."""
        found = self._judged.get(member.number)
        return "" if found is None else found.reason

    def behind(self, member: Member) -> int:
        """Return how many entries of the leader's log the member is not known to have."""
        found = self._judged.get(member.number)
        return 0 if found is None else found.behind

    def is_ready(self, member: Member) -> bool:
        """Return True for a newcomer that has caught up."""
        return self.is_healthy(member) and self.behind(member) <= CAUGHT_UP_ENTRIES

    def healthy_without(self, gone: Member) -> int:
        """Return how many voters would be healthy without that one."""
        return sum(1 for one in self.voters if one != gone and self.is_healthy(one))

    def unsafe(self, gone: Member) -> str:
        """Return why a voter must not be removed now, "" if it may be (KUDU-2048).

        The healthy voters, the leader among them, must be a majority of the voters that remain.
        """
        left, healthy = len(self.voters) - 1, self.healthy_without(gone)
        if left and healthy >= majority(left):
            return ""
        return f"of the {left} voters without {self.name(gone)} only {healthy} would be healthy"

    # --- places -----------------------------------------------------------------------------------------------------

    def server(self, member: Member) -> ServerRecord | None:
        """Return the member's server if it is registered."""
        return self.cluster.servers.get(member.uuid)

    def racks(self, members: Collection[Member]) -> Counter[str]:
        """Return how many of the members lie in each rack. The racks of servers that are away are unknown."""
        found = (self.server(one) for one in members)
        return Counter(one.rack for one in found if one is not None)

    def misfit(self, uuid: str) -> str:
        """Return why a registered server may not have members of this tablet, "" if it may or is not registered."""
        server, table = self.cluster.servers.get(uuid), self.tablet.table
        if uuid in self.cluster.retiring:
            return f"{uuid} is being emptied"
        if server is None:
            return ""
        if not server.tablets:
            return f"{uuid} takes no tablets any more"
        kind = kind_in_tablets(server.kind)
        if not may_host(server.weight, server.group, kind, group=table.group, kind=table.kind):
            return f"{uuid} is not a server of the table's group and kind"
        return ""

    def _why_leaving(self, voter: Member) -> str:
        misfit = self.misfit(voter.uuid)
        if misfit:
            return misfit
        move = self.moves.get(voter.uuid)
        # Without a target that may take the member, the source keeps it.
        if move is not None and not self.misfit(move.target):
            return f"it moves from {move.source} to {move.target}"
        return ""

    # --- words ------------------------------------------------------------------------------------------------------

    def name(self, member: Member) -> str:
        """Return a member for messages."""
        return f"{member.number} on {member.uuid}"

    def newcomer(self, number: int) -> Newcomer | None:
        """Return the transition of a new member, None if it has ended or was never there."""
        return next((one for one in self.tablet.newcomers if one.number == number), None)
