"""Reports of a server about its replicas, and a leader's judgment of its members. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from coord.raft.leadership import Leadership
from coord.raft.log import ConfigLog
from coord.raft.membership import Configuration
from coord.raft.messages import FOLLOWER, LEADER, RaftEvent
from coord.raft.progress import Progress
from regions.messages.heartbeat import (
    LeaderReport,
    MemberHealth,
    MemberReport,
    ReplicaState,
    TabletReport,
    TabletRole,
)
from regions.records.members import ConfigId, Member, MemberRole
from regionserver.tablets.host.beats import TICK_MS
from regionserver.tablets.host.envelope import Refusal
from regionserver.tablets.host.group import Group
from regionserver.tablets.host.words import Word
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


def report_of(replica: TabletReplica, group: Group | None, there: frozenset[str], dead_s: float) -> TabletReport:
    """Return the report of a replica.

    Args:
        replica: The replica.
        group: Its group while it is hosted.
        there: Servers whose processes live, as far as this server knows.
        dead_s: A member that is silent for this time is FAILED.
    """
    block = replica.block
    rows = replica.rows
    applied = rows.applied[0] if rows is not None else 0
    size = rows.state.size if rows is not None else 0
    state = ReplicaState(replica.run.value)
    if group is None or group.failure:
        memory = block.memory
        term = memory.term if memory is not None else 0
        return TabletReport(
            block.tablet, block.table, block.number, state, term=group.core.term if group is not None else term,
            config_id=_noted_config(replica), applied_index=applied, size_bytes=size, reason=replica.reason,
        )  # fmt: skip
    core = group.core
    lead = core.leadership
    leader = None
    if lead is not None and lead.has_committed_in_term():
        committed = core.configs.at(core.log.commit)
        health = judge_members(group, lead, there, dead_s)
        leader = LeaderReport(members_of(committed, group), health)
    return TabletReport(
        block.tablet, block.table, block.number, state, core.term, role_of(group), config_of(replica, group),
        applied_index=applied, size_bytes=size, reason=replica.reason, leader=leader,
    )  # fmt: skip


def role_of(group: Group) -> TabletRole:
    """Return the Raft role of a replica that runs."""
    role = group.core.role
    if role == LEADER:
        return TabletRole.LEADER
    return TabletRole.FOLLOWER if role == FOLLOWER else TabletRole.CANDIDATE


def members_of(configuration: Configuration, group: Group) -> tuple[Member, ...]:
    """Return the members of a configuration with their servers."""
    roles = {
        **dict.fromkeys(configuration.voters, MemberRole.VOTER),
        **dict.fromkeys(configuration.pre_voters, MemberRole.PRE_VOTER),
        **dict.fromkeys(configuration.learners, MemberRole.LEARNER),
    }
    return tuple(Member(number, group.servers.get(number, ""), roles[number]) for number in sorted(roles))


def config_of(replica: TabletReplica, group: Group) -> ConfigId:
    """Return the id of the latest committed configuration that a replica knows."""
    core = group.core
    index = _committed_config(core.configs, core.log.commit)
    return ConfigId(core.log.term_at(index), index) if index else _noted_config(replica)


def _committed_config(configs: ConfigLog, commit: int) -> int:
    """Return the index of the latest committed CONFIG entry since the process started, 0 without one."""
    # The first item is the configuration at the start of the process; its index is that of the rows.
    return max((index for index in configs.indexes[1:] if index <= commit), default=0)


def _noted_config(replica: TabletReplica) -> ConfigId:
    meta = replica.meta
    return ConfigId(meta.config_term, meta.config_index) if meta is not None else ConfigId(0, 0)


def judge_members(group: Group, lead: Leadership, there: frozenset[str], dead_s: float) -> tuple[MemberReport, ...]:
    """Return the health of each member, as its leader judges it."""
    found = [MemberReport(group.replica.number, MemberHealth.HEALTHY)]
    for peer in lead.peers:
        is_there = group.servers.get(peer.peer, "") in there
        health, reason = _judge(peer, lead.now, group.refusals.get(peer.peer), dead_s, is_there=is_there)
        found.append(MemberReport(peer.peer, health, max(0, lead.log.last - peer.match), reason))
    return tuple(sorted(found, key=lambda one: one.number))


def _judge(
    peer: Progress, now: int, refusal: Refusal | None, dead_s: float, *, is_there: bool
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
    if silent_s >= dead_s:
        return MemberHealth.FAILED, f"silent for more than {dead_s:g} s"
    if peer.memory < 0:
        return MemberHealth.UNKNOWN, "has not answered this leader yet"
    if not peer.counts:
        return MemberHealth.FAILED, "restarted without its memory"
    if not is_there:
        return MemberHealth.UNKNOWN, "its server does not answer"
    return MemberHealth.HEALTHY, ""
