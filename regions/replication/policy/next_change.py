"""The next change of a tablet's configuration: the checks in order, as a table. Pure, stateless, level-triggered.

The first row of `CHECKS` with an answer decides. A change is one step: assign a number, add or remove a member, or hand
leadership over. Promotion is the leader's own step. Each tablet has at most one change under way.

    dead voter    a newcomer catches up -> REMOVE the dead voter -> the leader promotes the newcomer
    live voter    a newcomer catches up -> the leader promotes the newcomer -> leadership is handed over -> REMOVE

So an addition never changes the quorum, and a live voter is removed only when the wanted number of other voters is
healthy. The same holds for tablets of one or two voters (KUDU-2443: Kudu could not move a tablet's single replica).

Lessons from Kudu: a member whose address now belongs to another server has failed (KUDU-1613); a voter is removed only
if the healthy voters, including the leader (KUDU-2230), are a majority of the rest (KUDU-2048); a tablet gets one
newcomer at a time, because otherwise the death of a server would begin several copies of each tablet (KUDU-2020).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple

from regions.records.members import ConfigId, Member, MemberRole
from regions.replication.policy import newcomers
from regions.replication.policy.situation import REPORT_LATE_MS, ClusterFacts, Situation, TabletFacts


class MemberChange(enum.StrEnum):
    """One step of a change of members."""

    NUMBER = "give a number"  #: the record's next number, and the transition of the newcomer, in one multi
    ADD = "add"  #: ChangeConfig to the leader: the newcomer as PRE_VOTER, or as learner
    REMOVE = "remove"  #: ChangeConfig to the leader
    TRANSFER = "transfer leadership"  #: to this voter
    UNSEAL = "unseal"  #: to the leader, which is the member: the split that had the tablet sealed is canceled


class Do(NamedTuple):
    """Carry out this step."""

    change: MemberChange
    #: The member that is added, is removed, or is to lead.
    member: Member
    #: The configuration on which the decision rests: the leader refuses the step under any other one.
    expect: ConfigId
    why: str


class Wait(NamedTuple):
    """The tablet is not in its wanted state, but no step is possible now."""

    why: str
    #: Time at which the answer changes without an event; 0: never.
    until_ms: int = 0
    #: Some facts are missing. Such an answer does not end the work of an earlier decision.
    is_blind: bool = False


class Nothing(NamedTuple):
    """The tablet is as wanted."""

    why: str = ""


Decision = Do | Wait | Nothing


class PolicyCheck(NamedTuple):
    """One row. `decide` returns None if the row does not apply."""

    when: str
    answer: str
    #: Faults of other systems that this row avoids.
    lesson: str
    decide: Callable[[Situation], Decision | None]


# --- rows -------------------------------------------------------------------------------------------------------------


def _under_way(facts: Situation) -> Decision | None:
    if facts.tablet.is_asking:
        return Wait("a change of its members has been sent to the leader, or is being written", is_blind=True)
    known, reported = facts.tablet.region.config_id, facts.leader.config_id
    if known < reported:
        return Wait(f"the store is to have its configuration {reported} first", is_blind=True)
    if known > reported:
        return Wait(f"its leader reports configuration {reported}, the store has {known}", is_blind=True)
    members = {one.number for one in facts.members}
    for one in facts.tablet.newcomers:
        # A copy begins when the leader has added the number. The store shows that before the leader's next report does.
        until_ms = one.since_ms + REPORT_LATE_MS
        if one.uuid and not one.is_fresh and one.number not in members and facts.now_ms < until_ms:
            return Wait(f"number {one.number} is copied, and its leader has not reported it", until_ms, is_blind=True)
    return None


def _sealed(facts: Situation) -> Decision | None:
    leader = next((one for one in facts.members if one.number == facts.leader.number), None)
    if not facts.tablet.canceled_seal or leader is None:
        return None
    if facts.tablet.seal_stays:
        return Wait(facts.tablet.seal_stays, is_blind=True)
    why = "it is sealed for a split or merge that was canceled"
    return Do(MemberChange.UNSEAL, leader, facts.leader.config_id, why)


def _remove(facts: Situation, member: Member, why: str) -> Do:
    return Do(MemberChange.REMOVE, member, facts.leader.config_id, why)


def _unwanted_newcomer(facts: Situation) -> Decision | None:
    """Return the removal of a newcomer or a learner that has failed or is not needed, None if there is none.

    Neither was ever a voter, so no quorum changes (FW-07). A newcomer that has not failed, but is not needed, is
    removed only while all remaining voters are healthy: a voter that has just become silent may have to be replaced
    soon.
    """
    missing = facts.wanted - len(facts.staying)
    is_steady = all(facts.is_healthy(one) for one in facts.staying)
    if missing <= 0 and facts.joining and newcomers.crowded(facts) is not None:
        missing = 1
    # Keep the best: first those that have caught up, then those with the lowest numbers.
    joining = sorted(facts.joining, key=lambda one: (not facts.is_ready(one), one.number))
    for at, one in enumerate(joining):
        why = _fault_of_newcomer(facts, one)
        if not why and at >= missing and is_steady:
            why = f"{facts.name(one)} is not needed: {len(facts.staying)} of {facts.wanted} voters are there"
        if why:
            return _remove(facts, one, why)
    wanted = () if facts.tablet.intents is None else facts.tablet.intents.learners
    for one in facts.learners:
        if one.uuid not in wanted:
            return _remove(facts, one, f"learner {facts.name(one)} is not wanted any more")
        why = _fault_of_newcomer(facts, one)
        if why:
            return _remove(facts, one, why)
    return None


def _fault_of_newcomer(facts: Situation, one: Member) -> str:
    """Return why a newcomer is given up, "" if it is not."""
    name, transition = facts.name(one), facts.newcomer(one.number)
    if facts.is_failed(one):
        return f"newcomer {name} has failed: {facts.reason(one)}"
    if facts.misfit(one.uuid):
        return f"newcomer {name}: {facts.misfit(one.uuid)}"
    if facts.is_ready(one) or one.role is not MemberRole.PRE_VOTER:
        return ""
    if transition is None:
        # The transition makes the server begin the copy. Without a transition the server never will.
        return f"newcomer {name} has lost its transition"
    silent_ms = facts.now_ms - transition.since_ms
    if one.number in facts.tablet.absent and not transition.is_fresh and silent_ms >= REPORT_LATE_MS:
        # The server began the copy, and does not begin it again under a number that it has lost.
        return f"newcomer {name} is lost: its server began to copy it, and does not have it"
    if silent_ms >= facts.cluster.add_timeout_ms:
        return f"newcomer {name} has made no progress for {facts.cluster.add_timeout_ms // 1000} s"
    return ""


def _outage(facts: Situation) -> Decision | None:
    return Wait(facts.cluster.outage) if facts.cluster.outage and facts.failed else None


def _failed_voter(facts: Situation) -> Decision | None:
    """Remove the FAILED voter before the leader promotes the newcomer. With both as voters, the group might depend on
    the newcomer."""
    ready = [one for one in facts.joining if facts.is_ready(one)]
    if not ready or not facts.failed:
        return None
    dead, newcomer = facts.failed[0], facts.name(ready[0])
    unsafe = facts.unsafe(dead)
    if unsafe:
        return Wait(f"{facts.name(dead)} has failed and stays: {unsafe}")
    why = f"{facts.name(dead)} has failed ({facts.reason(dead)}), and {newcomer} has caught up in its place"
    return _remove(facts, dead, why)


def _too_many_voters(facts: Situation) -> Decision | None:
    if len(facts.voters) <= facts.wanted:
        return None
    if facts.failed:
        victim, why = facts.failed[0], "has failed"
    elif facts.leaving:
        # The leader comes last: it hands leadership over first.
        at = min(facts.leaving, key=lambda number: (number == facts.leader.number, number))
        victim, why = next(one for one in facts.voters if one.number == at), facts.leaving[at]
    else:
        away = next((one for one in facts.voters if facts.server(one) is None or not facts.is_healthy(one)), None)
        if away is not None:
            # The voter's rack is unknown while its server is away, and a wrong choice costs a copy. This change is not
            # urgent.
            return Wait(f"{len(facts.voters)} voters where {facts.wanted} are wanted; {facts.name(away)} is away")
        victim = newcomers.crowded(facts) or newcomers.worst_placed(facts)
        why = f"{facts.wanted} voters are wanted, and its place is the worst"
    if victim.number == facts.leader.number:
        return _hand_over(facts, f"{facts.name(victim)} leads and is to go: {why}")
    unsafe = facts.unsafe(victim)
    if not unsafe and victim not in facts.failed and facts.healthy_without(victim) < facts.wanted:
        unsafe = f"only {facts.healthy_without(victim)} of {facts.wanted} wanted voters would be healthy without it"
    if unsafe:
        return Wait(f"{facts.name(victim)} is to go ({why}) and stays: {unsafe}")
    return _remove(facts, victim, f"{len(facts.voters)} voters where {facts.wanted} are wanted; {victim.number}: {why}")


def _too_few_voters(facts: Situation) -> Decision | None:
    missing = facts.wanted - len(facts.staying)
    crowded = None
    if missing <= 0 and not facts.joining:
        crowded = newcomers.crowded(facts)
        missing = 0 if crowded is None else 1
    if missing <= 0 or facts.joining:
        return None
    why = _why_missing(facts) if crowded is None else f"{facts.name(crowded)}: too many voters in its rack"
    given = _given_number(facts, MemberRole.PRE_VOTER)
    if given is not None:
        return Do(MemberChange.ADD, given, facts.leader.config_id, why)
    choice = newcomers.choose(facts)
    if choice.uuid:
        member = Member(facts.tablet.region.next_number, choice.uuid, MemberRole.PRE_VOTER)
        return Do(MemberChange.NUMBER, member, facts.leader.config_id, why)
    return _free_own_place(facts) or Wait(f"{why}; {choice.why}")


def _why_missing(facts: Situation) -> str:
    if facts.failed:
        return f"{facts.name(facts.failed[0])} has failed: {facts.reason(facts.failed[0])}"
    if facts.leaving:
        number, why = min(facts.leaving.items())
        return f"{number} is to go: {why}"
    return f"{len(facts.voters)} of {facts.wanted} wanted voters"


def _given_number(facts: Situation, role: MemberRole) -> Member | None:
    """Return the newcomer that has a number but is in no configuration yet, if its server can still take the member."""
    members = {one.number for one in facts.members}
    for one in sorted(facts.tablet.newcomers):
        is_late = facts.now_ms - one.since_ms >= facts.cluster.add_timeout_ms
        if one.number in members or one.role is not role or is_late or not one.is_fresh:
            continue
        if not newcomers.objection(facts, one.uuid):
            return Member(one.number, one.uuid, role)
    return None


def _free_own_place(facts: Situation) -> Decision | None:
    """Remove a FAILED voter so that a newcomer can take its place on the same server, if there is no other server.

    This is for a lost disk: the server is live, and the number is burned. A voter that was only silent for long returns
    soon, because its server is live.
    """
    for dead in facts.failed:
        if (
            dead.number in facts.tablet.lost
            and not newcomers.objection(facts, dead.uuid, ignoring=dead.uuid)
            and not facts.unsafe(dead)
        ):
            why = f"{facts.name(dead)} is lost ({facts.reason(dead)}), and only its own server can take a newcomer"
            return _remove(facts, dead, why)
    return None


def _leads_wrongly(facts: Situation) -> Decision | None:
    misfit = facts.misfit(facts.leader.server.uuid)
    if not misfit or len(facts.voters) < 2:
        return None
    found = _hand_over(facts, f"{facts.leader.number} leads, and {misfit}")
    # Without a voter that can lead, the tablet waits for a newcomer anyway.
    return found if isinstance(found, Do) else None


def _hand_over(facts: Situation, why: str) -> Decision:
    able = [one for one in facts.staying if facts.is_healthy(one) and one.number != facts.leader.number]
    if not able:
        return Wait(f"{why}; no other voter that stays is healthy")
    heir = min(able, key=lambda one: (facts.behind(one), one.number))
    return Do(MemberChange.TRANSFER, heir, facts.leader.config_id, why)


def _learner_missing(facts: Situation) -> Decision | None:
    wanted = () if facts.tablet.intents is None else facts.tablet.intents.learners
    members = {one.uuid for one in facts.members}
    given = _given_number(facts, MemberRole.LEARNER)
    for uuid in wanted:
        if uuid in members:
            continue
        why = newcomers.objection(facts, uuid)
        if why:
            return Wait(f"a learner is wanted on {uuid}: {why}")
        if given is not None and given.uuid == uuid:
            return Do(MemberChange.ADD, given, facts.leader.config_id, f"a learner is wanted on {uuid}")
        member = Member(facts.tablet.region.next_number, uuid, MemberRole.LEARNER)
        return Do(MemberChange.NUMBER, member, facts.leader.config_id, f"a learner is wanted on {uuid}")
    return None


def _newcomer_at_work(facts: Situation) -> Decision | None:
    for one in facts.joining:
        found = facts.newcomer(one.number)
        until_ms = 0 if found is None else found.since_ms + facts.cluster.add_timeout_ms
        if facts.is_ready(one):
            return Wait(f"newcomer {facts.name(one)} has caught up, and the leader promotes it", until_ms)
        return Wait(f"newcomer {facts.name(one)} is {facts.behind(one)} entries behind", until_ms)
    return None


def _voter_unknown(facts: Situation) -> Decision | None:
    for one in facts.voters:
        if not facts.is_healthy(one):
            word = "is being made" if one.number in facts.tablet.being_made else facts.health(one).value
            reason = facts.reason(one)
            return Wait(f"{facts.name(one)} {word}" + (f": {reason}" if reason else ""))
    return None


# fmt: off
CHECKS: Final[tuple[PolicyCheck, ...]] = (
    PolicyCheck("a change was sent, or store and leader's report do not show the same", "wait", "", _under_way),
    PolicyCheck("sealed for a split or merge that the store does not have",
                "UNSEAL; wait for the operator if a server has a daughter that the store does not know", "", _sealed),
    PolicyCheck("a newcomer failed, is late or lost, or nobody wants it", "REMOVE the newcomer", "",
                _unwanted_newcomer),
    PolicyCheck("a voter FAILED, and more than a third of all servers is gone", "wait for the operator", "", _outage),
    PolicyCheck("a voter FAILED, and a newcomer has caught up",
                "REMOVE the voter, if the healthy ones are a majority of the rest", "KUDU-1613, KUDU-2048, KUDU-2230",
                _failed_voter),
    PolicyCheck("more voters than wanted",
                "REMOVE the FAILED, then those that are to go, then the worst placed; a leader hands leadership over"
                " first", "KUDU-2443", _too_many_voters),
    PolicyCheck("fewer voters that stay than wanted, and no newcomer; or too many in one rack",
                "give a number, then ADD; if only the server of a lost voter is left, REMOVE that voter",
                "KUDU-2020", _too_few_voters),
    PolicyCheck("the leader is on a server that is to be empty", "hand leadership over", "", _leads_wrongly),
    PolicyCheck("a learner is wanted", "give a number, then ADD", "", _learner_missing),
    PolicyCheck("a newcomer catches up", "wait for the leader to promote it", "", _newcomer_at_work),
    PolicyCheck("a voter is UNKNOWN", "wait", "", _voter_unknown),
)
# fmt: on


def next_change(tablet: TabletFacts, cluster: ClusterFacts, now_ms: int) -> Decision:
    """Return the next change of a tablet's members."""
    if not tablet.is_running:
        return Nothing("it is not RUNNING, or is to be closed")
    if tablet.leader is None:
        return Wait("no leader has reported to this master", is_blind=True)
    facts = Situation(tablet, cluster, now_ms)
    for check in CHECKS:
        found = check.decide(facts)
        if found is not None:
            return found
    return Nothing()


def words_of(decision: Decision) -> str:
    """Return a decision for operators, "" for a tablet that is as wanted."""
    if isinstance(decision, Do):
        return (
            f"next: {decision.change.value} {decision.member.number} on {decision.member.uuid}, because {decision.why}"
        )
    return f"waits: {decision.why}" if isinstance(decision, Wait) else ""


def as_markdown() -> str:
    """Return the table for docs/tablets.md."""
    lines = ["| When | Then | Learned from |", "| --- | --- | --- |"]
    lines += [f"| {one.when} | {one.answer} | {one.lesson or 'ours'} |" for one in CHECKS]
    return "\n".join(lines) + "\n"
