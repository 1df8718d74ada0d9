"""Members of a tablet: their servers in a configuration, and a leader's part of changing them. Pure.

Raft's core knows only numbers. The attachment of a configuration, a JSON list of MemberEndpoint, has the server of each
member and the address on which that server listens for other members.

The checks of a ChangeConfig are a table in `regions/replication/guards.py`. The core checks the conditions of Raft's
proof again, so a gap in the table may cause a wrong answer, but never breaks the safety of the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from coord.errors import ChangeRefusal, ConfigRefused, NotLeader, ProposalDropped
from coord.raft.core import RaftCore
from coord.raft.membership import Configuration
from regions.messages.server import MemberEndpoint
from regions.messages.tablets import ChangeAnswer, ChangeConfig, ConfigChanged
from regions.records.members import ConfigId, Member, MemberRole
from regions.replication.guards import ChangeFacts, check_of_change, wanted_members
from regions.replication.policy.situation import CAUGHT_UP_ENTRIES

_ENDPOINTS: Final = msgspec.json.Decoder(tuple[MemberEndpoint, ...])


def first_configuration(endpoints: tuple[MemberEndpoint, ...]) -> Configuration:
    """Return the first configuration of a tablet: all voters, with their servers as the attachment."""
    return Configuration([one.number for one in endpoints], attachment=msgspec.json.encode(endpoints))


def endpoints_of(configuration: Configuration) -> tuple[MemberEndpoint, ...]:
    """Return the servers of a configuration's members. Raise ValueError for an attachment that no build writes."""
    try:
        return _ENDPOINTS.decode(configuration.attachment)
    except msgspec.DecodeError as error:
        raise ValueError(f"the configuration {configuration} does not name the members' servers: {error}") from error


def servers_of(configuration: Configuration) -> dict[int, str]:
    """Return the server of each member number; {} without an attachment. Raise ValueError as `endpoints_of` does."""
    if not configuration.attachment:
        return {}
    return {one.number: one.uuid for one in endpoints_of(configuration)}


def roles_of(configuration: Configuration) -> dict[int, MemberRole]:
    """Return the role of each member number."""
    return {
        **dict.fromkeys(configuration.voters, MemberRole.VOTER),
        **dict.fromkeys(configuration.pre_voters, MemberRole.PRE_VOTER),
        **dict.fromkeys(configuration.learners, MemberRole.LEARNER),
    }


def members_of(configuration: Configuration) -> tuple[Member, ...]:
    """Return the members of a configuration with their servers. Raise ValueError as `endpoints_of` does."""
    roles = roles_of(configuration)
    servers = servers_of(configuration)
    return tuple(Member(number, servers.get(number, ""), roles[number]) for number in sorted(roles))


def with_members(
    configuration: Configuration, members: tuple[Member, ...], newcomer: MemberEndpoint | None = None
) -> Configuration:
    """Return the configuration with these members. `newcomer` names the server of the one that it does not have."""

    def numbers(role: MemberRole) -> list[int]:
        return [one.number for one in members if one.role is role]

    kept = {one.number for one in members}
    endpoints = [one for one in endpoints_of(configuration) if one.number in kept]
    if newcomer is not None and newcomer.number in kept - {one.number for one in endpoints}:
        endpoints.append(newcomer)
    return Configuration(
        numbers(MemberRole.VOTER),
        numbers(MemberRole.PRE_VOTER),
        numbers(MemberRole.LEARNER),
        msgspec.json.encode(sorted(endpoints, key=lambda one: one.number)),
    )


# --- changes ---------------------------------------------------------------------------------------------------------

#: Raft's reason for refusing a change -> the answer to the caller.
_REFUSALS: Final = {
    ChangeRefusal.ALREADY_SO: ChangeAnswer.DONE,
    ChangeRefusal.PENDING: ChangeAnswer.PENDING,
    ChangeRefusal.NOT_SETTLED: ChangeAnswer.NOT_SETTLED,
    ChangeRefusal.TRANSFERRING: ChangeAnswer.PENDING,
    ChangeRefusal.NOT_ONE_STEP: ChangeAnswer.ILLEGAL,
    ChangeRefusal.UNSAFE: ChangeAnswer.UNSAFE,
}


def begin_change(core: RaftCore, change: ChangeConfig, servers: Mapping[int, str]) -> int | ConfigChanged:
    """Append the configuration with the change and return its index, or the answer if nothing was appended.

    `servers`: the server of each member number.
    """
    lead = core.leadership
    committed = core.committed_config()
    config_id = ConfigId(committed.term, committed.index)
    facts = ChangeFacts(change, lead is not None, core.id, config_id, members_of(committed.config))
    if lead is not None:
        newcomer = MemberEndpoint(change.number, change.uuid, change.host, change.peer_port)
        wanted = with_members(core.configs.current, wanted_members(facts), newcomer)
        facts = facts._replace(
            is_pending=core.configs.newest_index() > core.log.commit or lead.transferee != 0,
            is_settled=lead.has_committed_in_term(),
            is_safe=lead.is_majority_heard(wanted),
        )
    check = check_of_change(facts)
    if check.answer is not None:
        return answer_of(core, servers, check.answer, check.when)
    try:
        return core.propose_config(wanted, True)
    except ConfigRefused as error:
        return answer_of(core, servers, _REFUSALS[error.refusal], str(error))


def begin_transfer(core: RaftCore, to: int, servers: Mapping[int, str], is_able: Mapping[int, bool]) -> ConfigChanged:
    """Begin to hand leadership over to member `to`, 0: to the able voter with the longest log. Return the answer.

    `is_able`: whether a member's server answers, and its disk has room. Writes wait until `to` has all entries, so a
    member that lags does not get the leadership.
    """
    lead = core.leadership
    if lead is None:
        return answer_of(core, servers, ChangeAnswer.NOT_LEADER, "another member leads")
    to = to or best_successor(core, is_able)
    if not to:
        return answer_of(core, servers, ChangeAnswer.UNSAFE, "no other voter answers and has room on its disk")
    if to == core.id:
        return answer_of(core, servers, ChangeAnswer.DONE, "the member leads already")
    if lead.transferee and lead.transferee != to:
        why = f"leadership is being transferred to {lead.transferee}"
        return answer_of(core, servers, ChangeAnswer.PENDING, why)
    if core.configs.current.is_voter(to) and not is_able.get(to):
        why = f"the server of member {to} does not answer, or its disk is full"
        return answer_of(core, servers, ChangeAnswer.UNSAFE, why)
    behind = core.log.last - lead.by_id[to].match if to in lead.by_id else 0
    if behind > CAUGHT_UP_ENTRIES:
        return answer_of(core, servers, ChangeAnswer.UNSAFE, f"member {to} is {behind} entries behind")
    try:
        core.transfer_leadership(to)
    except (NotLeader, ProposalDropped) as error:
        return answer_of(core, servers, ChangeAnswer.ILLEGAL, str(error))
    return answer_of(core, servers, ChangeAnswer.STARTED, f"to member {to}")


def best_successor(core: RaftCore, is_able: Mapping[int, bool]) -> int:
    """Return the able voter with the longest log, the lowest number of several, 0 without another one."""
    lead = core.leadership
    voters = core.configs.current.voters
    peers = [] if lead is None else lead.peers
    able = [peer for peer in peers if peer.peer in voters and peer.counts and is_able.get(peer.peer)]
    return max(able, key=lambda peer: (peer.match, -peer.peer)).peer if able else 0


def answer_of(core: RaftCore, servers: Mapping[int, str], answer: ChangeAnswer, why: str = "") -> ConfigChanged:
    """Return an answer with the committed configuration and the leader, as this replica knows them."""
    found = core.committed_config()
    return ConfigChanged(
        answer,
        ConfigId(found.term, found.index),
        members_of(found.config),
        core.term,
        core.leader,
        servers.get(core.leader, ""),
        why,
    )
