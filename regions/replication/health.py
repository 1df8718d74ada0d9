"""Health of a tablet: one word and a reason. Pure.

The words are ksck's: HEALTHY, RECOVERING, UNDER_REPLICATED, CONSENSUS_MISMATCH, UNAVAILABLE. The first row of `_ROWS`
with a reason decides. The leader judges the members, so the judgment survives a change of masters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from regions.messages.heartbeat import MemberHealth, ReplicaState
from regions.messages.tablets import TabletHealth as TabletHealth
from regions.records.members import MemberRole
from regions.replication.config import majority, voters
from regions.replication.reports import LeaderView, TabletView


class Judgment(NamedTuple):
    """A tablet's health, and why in words."""

    health: TabletHealth
    reason: str = ""


class _Facts(NamedTuple):
    view: TabletView
    wanted: int
    leader: LeaderView | None
    #: Numbers of the voters that the leader calls healthy, itself included.
    healthy: frozenset[int]


def _no_leader(facts: _Facts) -> str:
    return "" if facts.leader is not None else "no leader has reported to this master"


def _no_majority(facts: _Facts) -> str:
    leader = facts.leader
    assert leader is not None, "rows are asked in order"
    count = len(voters(leader.report.members))
    if len(facts.healthy) >= majority(count):
        return ""
    return f"the leader, {leader.number}, reaches {len(facts.healthy)} of {count} voters"


def _mismatch(facts: _Facts) -> str:
    leader, view = facts.leader, facts.view
    assert leader is not None, "rows are asked in order"
    if len(view.rivals) > 1:
        return f"{' and '.join(map(str, view.rivals))} both claim to lead in term {leader.term}"
    homes = {member.number: member.uuid for member in leader.report.members}
    for one in view.takes_part:
        report = one.report
        home = homes.get(report.number)
        if home is not None and home != one.server.uuid:
            return f"member {report.number} is on {home}, and {one.server.uuid} claims that number"
        # A replica that has applied entries beyond the leader's configuration, but knows an earlier one, contradicts
        # the leader. A replica with a later configuration has only reported earlier than its leader.
        if report.config_id < leader.config_id and report.applied_index >= leader.config_id.index:
            return f"{report.number} has configuration {report.config_id}, the leader {leader.config_id}"
    return ""


def _recovering(facts: _Facts) -> str:
    assert facts.leader is not None, "rows are asked in order"
    joining = [one.number for one in facts.leader.report.members if one.role is MemberRole.PRE_VOTER]
    if joining:
        return f"{', '.join(map(str, joining))} catches up"
    copying = [one for one in facts.view.replicas.values() if one.report.state is ReplicaState.COPYING]
    return f"{', '.join(str(one.report.number) for one in copying)} is being copied" if copying else ""


def _under_replicated(facts: _Facts) -> str:
    if len(facts.healthy) >= facts.wanted:
        return ""
    return f"{len(facts.healthy)} of {facts.wanted} voters are healthy"


_ROWS: Final[tuple[tuple[TabletHealth, Callable[[_Facts], str]], ...]] = (
    (TabletHealth.UNAVAILABLE, _no_leader),
    (TabletHealth.UNAVAILABLE, _no_majority),
    (TabletHealth.CONSENSUS_MISMATCH, _mismatch),
    (TabletHealth.RECOVERING, _recovering),
    (TabletHealth.UNDER_REPLICATED, _under_replicated),
)


def judge(view: TabletView, wanted: int) -> Judgment:
    """Return the health of a tablet that should have `wanted` voters."""
    leader = view.leader_now()
    healthy: frozenset[int] = frozenset()
    if leader is not None:
        found = {one.number for one in leader.report.health if one.health is MemberHealth.HEALTHY}
        found.add(leader.number)
        healthy = frozenset(one.number for one in voters(leader.report.members) if one.number in found)
    facts = _Facts(view, wanted, leader, healthy)
    for health, reason_of in _ROWS:
        reason = reason_of(facts)
        if reason:
            return Judgment(health, reason)
    return Judgment(TabletHealth.HEALTHY)
