"""Reports of a server about its replicas, and a leader's judgment of its members. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from coord.raft.leadership import Leadership
from coord.raft.messages import FOLLOWER, LEADER, RaftEvent
from coord.raft.progress import Progress
from regions.messages.heartbeat import (
    LeaderReport,
    Measure,
    MemberHealth,
    MemberReport,
    ReplicaState,
    TabletReport,
    TabletRole,
)
from regions.messages.server import TabletFigures
from regions.records.members import ConfigId
from regions.replication.policy.situation import CAUGHT_UP_ENTRIES
from regionserver.request_gate import SIZES_EVERY_S, differs
from regionserver.tablets.host.beats import TICK_MS
from regionserver.tablets.host.envelope import Refusal, Word
from regionserver.tablets.host.group import Group
from regionserver.tablets.host.members import members_of
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.process.log_thread import LogThread
from regionserver.tablets.process.replica import TabletReplica

#: Rejections after which a member needs an operator or a new number, with their reasons.
_FAILING: Final = {
    Word.INVALID_NAME: "its server says that this number is not its own",
    Word.DELETED: "its server has removed it, or has lost its memory",
    Word.FAILED: "its rows or its code are damaged",
}
#: Rejections of a member that is expected to take part later.
_WAITING: Final = {
    Word.OLD_NUMBER: "its server has a later number",
    Word.OLDER: "its server has an earlier number",
    Word.INVALID_TERM: "its server is in a later term",
    Word.COPYING: "it is being copied",
    Word.RESTING: "it rests",
}

#: Rejections of a newcomer whose leader has it copied again. The master gives it up if that takes too long.
_COPIED_AGAIN: Final = frozenset((Word.DELETED, Word.FAILED))

#: The size of a new replica, which needs no report of its own.
_NOTHING: Final = Measure(0, 0)

#: Events of Raft after which a replica's report differs. A configuration is reported when it is committed.
_REPORTED_EVENTS: Final = frozenset(("role", "leader"))
#: Changes of role that the log of the server lists one by one per turn. A table of 1,000 tablets has several thousand.
ROLES_NAMED_MAX: Final = 5


def role_lines(events: Sequence[tuple[str, RaftEvent]]) -> list[str]:
    """Return the lines of the server's log about the changes of role of one turn."""
    roles = [(tablet, event) for tablet, event in events if event.name == "role"]
    if len(roles) <= ROLES_NAMED_MAX:
        return [f"tablet {tablet} term {event.term}: {event.detail}" for tablet, event in roles]
    kinds = Counter(event.detail for _, event in roles)
    counts = ", ".join(f"{count} {detail}" for detail, count in kinds.most_common())
    return [f"{len({tablet for tablet, _ in roles})} tablets, {roles[0][0]} the first: {counts}"]


class ServersSeen(NamedTuple):
    """The servers as this server knows them."""

    #: Servers with a live process.
    there: frozenset[str]
    #: Servers whose disks have no room for writes, possibly including this one.
    full: frozenset[str]
    #: Servers that have been dead for so long that their members are FAILED.
    dead: frozenset[str] = frozenset()


class ReportChanges:
    """The tablets whose reports differ from the last ones."""

    def __init__(self) -> None:
        #: Leaders that have not committed an entry of their term yet. Each is reported after its first commit.
        self._young: set[str] = set()
        #: The members' health as `of_health` last saw it. Tablets that are gone may stay for a while.
        self._healths: dict[str, object] = {}
        #: The tablets that were awake at the last call of `of_health`. After that call, before they became quiet, they
        #: may have received answers of members.
        self._were_awake: dict[str, None] = {}
        #: The tablets that the next call of `of_health` looks at in any case.
        self._again: dict[str, None] = {}
        #: The servers as `of_health` last saw them.
        self._seen: ServersSeen | None = None
        #: Sizes in the last reports, and the turn of the clock at which they are compared again.
        self._sizes: dict[str, Measure] = {}
        self._sizes_due = 0
        #: Tablets that were reported with another size meanwhile. The size counts as changed even if it is the old one
        #: again.
        self._sized_otherwise: set[str] = set()

    def after_turn(self, events: Sequence[tuple[str, RaftEvent]], groups: Mapping[str, Group]) -> list[str]:
        """Return the tablets whose roles have changed in a turn, and those whose leaders have made their first commit.

        A leader's reports count only from this commit on.
        """
        changed: dict[str, None] = {}
        for tablet, event in events:
            if event.name in _REPORTED_EVENTS:
                changed[tablet] = None
                self._young.add(tablet)
        for tablet in list(self._young):
            group = groups.get(tablet)
            lead = group.core.leadership if group is not None and not group.failure else None
            if lead is None:
                self._young.discard(tablet)
            elif lead.has_committed_in_term():
                self._young.discard(tablet)
                changed[tablet] = None
        return list(changed)

    def of_health(
        self, groups: Mapping[str, Group], awake: Iterable[str], seen: ServersSeen, dead_s: float
    ) -> list[str]:
        """Return the tablets led here for which the members' health, or the members that may lead, have changed since
        the last call.

        A tablet that was quiet at the last call and still is has received no message from its members: only a change of
        the servers can change their health. Otherwise do not examine it, because a server may have thousands of quiet
        tablets.
        """
        were_awake, self._were_awake = self._were_awake, dict.fromkeys(awake)
        is_same, self._seen = seen == self._seen, seen
        looked = {**were_awake, **self._were_awake, **self._again} if is_same else groups
        self._again = {}
        changed = []
        for tablet in looked:
            group = groups.get(tablet)
            lead = group.core.leadership if group is not None else None
            if group is None or lead is None or group.failure:
                self._healths.pop(tablet, None)
                continue
            health = _compared(judge_members(group, lead, seen, dead_s))
            if health != self._healths.get(tablet):
                changed.append(tablet)
            self._healths[tablet] = health
        if len(self._healths) > len(groups):
            self._healths = {tablet: health for tablet, health in self._healths.items() if tablet in groups}
        return changed

    def reported(self, report: TabletReport) -> None:
        """Record a report that was made for any reason. If `of_health` last saw another health, its next call returns
        the tablet. Otherwise a server that returned between two calls would remain dead for the master."""
        if report.leader is not None and self._healths.get(report.region_id) != _compared(report.leader.health):
            self._healths.pop(report.region_id, None)
            self._again[report.region_id] = None
        size = report.measure
        if size is not None and differs(self._sizes.get(report.region_id, _NOTHING), size):
            self._sized_otherwise.add(report.region_id)

    def of_sizes(self, replicas: Mapping[str, TabletReplica], now: int) -> list[str]:
        """Return the tablets whose sizes have changed noticeably; nothing if they were compared a moment ago.

        `now` counts ticks. A look costs less than a microsecond for each replica.
        """
        if now < self._sizes_due:
            return []
        self._sizes_due = now + int(SIZES_EVERY_S * 1000 / TICK_MS)
        changed: dict[str, Measure] = {}
        for tablet, replica in replicas.items():
            rows = replica.rows
            if rows is not None:
                size = Measure(rows.state.rows, rows.state.size)
                former = self._sizes.get(tablet, _NOTHING)
                if tablet in self._sized_otherwise or (former != size and differs(former, size)):
                    changed[tablet] = size
        self._sized_otherwise.clear()
        self._sizes.update(changed)
        for tablet in [one for one in self._sizes if one not in replicas]:
            del self._sizes[tablet]
        return list(changed)


def _compared(members: Sequence[MemberReport]) -> object:
    """Return the value whose change counts as a change of the members' health."""
    return [(one.number, one.health, one.reason, one.may_lead, one.behind > CAUGHT_UP_ENTRIES) for one in members]


def report_of(replica: TabletReplica, group: Group | None, seen: ServersSeen, dead_s: float) -> TabletReport:
    """Return the report of a replica.

    Args:
        replica: The replica.
        group: Its group while it is hosted.
        seen: This server's knowledge of the other servers.
        dead_s: A member that is silent for this time is FAILED.
    """
    block = replica.block
    rows = replica.rows
    applied = rows.applied[0] if rows is not None else 0
    size = rows.state.size if rows is not None else 0
    count = rows.state.rows if rows is not None else -1
    state = ReplicaState(replica.run.value)
    if group is None or group.failure:
        memory = block.memory
        term = memory.term if memory is not None else 0
        return TabletReport(
            block.tablet, block.table, block.number, state, term=group.core.term if group is not None else term,
            config_id=_noted_config(replica), applied_index=applied, size_bytes=size, reason=replica.reason, rows=count,
        )  # fmt: skip
    core = group.core
    lead = core.leadership
    leader = None
    if lead is not None and lead.has_committed_in_term():
        committed = core.committed_config().config
        health = judge_members(group, lead, seen, dead_s)
        leader = LeaderReport(members_of(committed), health)
    return TabletReport(
        block.tablet, block.table, block.number, state, core.term, role_of(group), config_of(group),
        applied_index=applied, size_bytes=size, reason=replica.reason, leader=leader, rows=count,
        sealed=rows.seal.resharding if rows is not None else "",
    )  # fmt: skip


def figures_of(replicas: Mapping[str, TabletReplica], turn: Turn, log: LogThread) -> TabletFigures:
    """Return the figures of a host that its replicas, groups and log have."""
    shared = log.shared
    # Counted by C code: heartbeats ask every second, and there may be ten thousand replicas.
    states = Counter(map(attrgetter("run"), replicas.values()))
    return TabletFigures(
        replicas={state.value: count for state, count in states.items()},
        leaders=turn.quiet.leaders(),
        quiet=len(turn.quiet.quiet),
        syncs=shared.syncs,
        log_bytes=shared.written_bytes,
        segments=shared.segment_count(),
        slow_writes=log.slow_writes,
        in_flight_bytes=turn.in_flight.bytes,
        memory_bytes=turn.memory_bytes,
        disk_answers=log.answers,
    )


def role_of(group: Group) -> TabletRole:
    """Return the Raft role of a replica that runs."""
    role = group.core.role
    if role == LEADER:
        return TabletRole.LEADER
    return TabletRole.FOLLOWER if role == FOLLOWER else TabletRole.CANDIDATE


def config_of(group: Group) -> ConfigId:
    """Return the id of the latest committed configuration that a replica knows."""
    found = group.core.committed_config()
    return ConfigId(found.term, found.index)


def _noted_config(replica: TabletReplica) -> ConfigId:
    meta = replica.meta
    return ConfigId(meta.config_term, meta.config_index) if meta is not None else ConfigId(0, 0)


def judge_members(group: Group, lead: Leadership, seen: ServersSeen, dead_s: float) -> tuple[MemberReport, ...]:
    """Return the health of each member in the judgment of its leader."""
    own = group.servers.get(group.replica.number, "")
    found = [MemberReport(group.replica.number, MemberHealth.HEALTHY, may_lead=own not in seen.full)]
    for peer in lead.peers:
        server = group.servers.get(peer.peer, "")
        is_there = server in seen.there
        # Former refusals of a dead server prove nothing about its members now, and a dead server cannot withdraw a
        # refusal.
        refusal = group.refusals.get(peer.peer) if server not in seen.dead else None
        if refusal is not None and refusal.word in _COPIED_AGAIN and not group.core.configs.current.is_voter(peer.peer):
            health, reason = MemberHealth.UNKNOWN, "its copy was cut short and begins again"
        else:
            health, reason = _judge(peer, lead.now, refusal, dead_s, is_there=is_there, is_dead=server in seen.dead)
        behind = max(0, lead.log.last - peer.match)
        found.append(MemberReport(peer.peer, health, behind, reason, server not in seen.full))
    return tuple(sorted(found, key=lambda one: one.number))


def _judge(
    peer: Progress, now: int, refusal: Refusal | None, dead_s: float, *, is_there: bool, is_dead: bool
) -> tuple[MemberHealth, str]:
    if refusal is not None:
        if refusal.word is Word.DOES_NOT_EXIST:
            # A first replica may not have been made yet. A replica that has acknowledged an entry has lost its disk.
            health = MemberHealth.FAILED if peer.match else MemberHealth.UNKNOWN
            return health, "its server does not have it"
        why = _FAILING.get(refusal.word)
        if why is not None:
            return MemberHealth.FAILED, why
        return MemberHealth.UNKNOWN, _WAITING[refusal.word]
    silent_s = (now - peer.last_received) * TICK_MS / 1000
    # A quiet group counts no ticks: there, the absence of the member's server counts.
    if silent_s >= dead_s or is_dead:
        return MemberHealth.FAILED, f"silent for more than {dead_s:g} s"
    if peer.memory < 0:
        return MemberHealth.UNKNOWN, "has not answered this leader yet"
    if not peer.counts:
        return MemberHealth.FAILED, "restarted without its memory"
    if not is_there:
        return MemberHealth.UNKNOWN, "its server does not answer"
    return MemberHealth.HEALTHY, ""
