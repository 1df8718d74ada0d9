"""Effects of the keeper of tablets: those of the assigner, and five more. The active master carries them out.

The functions below return the writes that tablets and their members need. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from regions.cluster import effects as fx
from regions.cluster.causes import ActingEvent, Causes
from regions.cluster.limits import AssignerConfig
from regions.records.members import ConfigId, Member, MemberRole
from regions.records.model import (
    Incarnation,
    Intent,
    RegionRecord,
    RegionState,
    ServerRecord,
    TabletState,
    TransitionRecord,
    WorkOrigin,
)
from regions.replication.config import first_members
from regions.replication.siting import TabletSite, choose_members, planned_members
from regions.replication.tablet import FirstPlan, MemberWork, Tablet
from regions.transitions.states import RESTS_ON_MEMBERS, Cause
from regions.transitions.table_states import successor


class BeginTablet(fx.Caused):
    """Write a tablet's record, and create the OFFLINE of each new member, in one multi.

    A new tablet becomes CREATING, with all its members. For a further member the multi raises the tablet's next number.
    The multi checks the table's record (id, version) and names the region's version. So a member of a CREATING tablet
    without a transition has been made, and no number is assigned twice. Answered by `Keeper.begun` or
    `Keeper.region_refused`.
    """

    record: RegionRecord
    version: int
    table_check: tuple[str, int]
    transitions: list[TransitionRecord]

    @property
    def key(self) -> str:
        """The region's id."""
        return self.record.region_id


class WriteRegion(fx.Caused):
    """Replace a region's record at `version`. One multi may contain many of them, for instance a hundred.

    Answered by `Keeper.region_written` or `Keeper.region_refused`.
    """

    record: RegionRecord
    version: int

    @property
    def key(self) -> str:
        """The region's id."""
        return self.record.region_id


class ChangeMembers(fx.Caused):
    """Have the server that leads a tablet add or remove a member, if `expect` is its committed configuration.

    Answered by `Keeper.change_answered` with `ask`, whatever the outcome: reports show it.
    """

    ask: int
    server: ServerRecord
    region_id: str
    expect: ConfigId
    #: True: add `member` in its role, PRE_VOTER or LEARNER. False: remove it.
    adds: bool
    member: Member
    #: Where the server of a new member listens for other members.
    host: str
    peer_port: int
    why: str


class HandOver(fx.Caused):
    """Have the server that leads a tablet hand leadership over to member `to`. Answered like `ChangeMembers`."""

    ask: int
    server: ServerRecord
    region_id: str
    to: int
    why: str


class Unseal(fx.Caused):
    """Have the server that leads a tablet end its seal. Answered like `ChangeMembers`."""

    ask: int
    server: ServerRecord
    region_id: str
    seal: str
    why: str


KeeperEffect = (
    BeginTablet
    | WriteRegion
    | fx.WriteOffline
    | fx.DeleteTransition
    | fx.ReplaceRegion
    | fx.SendOpen
    | fx.SendClose
    | fx.ReadTransition
    | fx.ReadRegion
    | fx.ReadTable
    | fx.RequestPlan
    | ChangeMembers
    | HandOver
    | Unseal
)


def begin_tablet(
    tablet: Tablet,
    sites: Sequence[TabletSite],
    servers: Mapping[str, ServerRecord],
    epoch: int,
    deadline_ms: int,
    now_ms: int,
) -> BeginTablet | None:
    """Return the write that begins to make a PREPARING tablet's first members; None while too few servers are live.

    Use the servers of a bulk plan if the plan fits the present servers. Otherwise choose the members here.
    """
    record, plan = tablet.record, tablet.plan or FirstPlan()
    wanted = len(record.members) or tablet.table.record.replication
    known = {site.uuid for site in sites}
    if record.members and all(one.uuid in known for one in record.members):
        members = record.members
    else:
        count = tablet.table.record.replication
        chosen = planned_members(plan.servers, sites, count) or choose_members(sites, count)
        if len(chosen) < wanted:
            return None
        # The numbers were in no configuration yet. Higher numbers are assigned nevertheless, so that no number is
        # assigned twice.
        first = max(record.next_number, 1)
        members = tuple(Member(first + at, one.uuid) for at, one in enumerate(first_members(chosen)))
    next_number = max(record.next_number, members[-1].number + 1)
    written = msgspec.structs.replace(record, state=TabletState.CREATING, members=members, next_number=next_number)
    transitions = [
        TransitionRecord(
            record.region_id, record.table_id, member.number, RegionState.OFFLINE,
            destination=servers[member.uuid].incarnation, epoch=epoch, reason=Cause.ASSIGN.value,
            since_ms=now_ms, deadline_ms=deadline_ms, plan_id=plan.plan_id,
        )
        for member in members
    ]  # fmt: skip
    return BeginTablet(written, tablet.version, (record.table_id, tablet.table.version), transitions)


def replace_tablet(tablet: Tablet, sites: Sequence[TabletSite]) -> fx.ReplaceRegion:
    """Return the write that puts another region in the place of a tablet that could not be created (DD-03)."""
    fresh = msgspec.structs.replace(successor(tablet.record), members=(), leader=0, leader_term=0, next_number=1)
    chosen = first_members(choose_members(sites, tablet.table.record.replication))
    if len(chosen) >= len(tablet.record.members):
        fresh = msgspec.structs.replace(fresh, members=chosen, next_number=len(chosen) + 1)
    transitions = [(one.transition, one.version) for one in tablet.work.values() if one.transition is not None]
    # Without members: replicas that servers still have are members of no tablet any more.
    former = msgspec.structs.replace(tablet.record, members=())
    return fx.ReplaceRegion(former, tablet.version, tablet.table.version, transitions, fresh)


def write_offline(
    tablet: Tablet,
    work: MemberWork,
    destination: Incarnation | None,
    cause: Cause,
    epoch: int,
    config: AssignerConfig,
    now_ms: int,
    *,
    intent: Intent = Intent.OPEN,
    begun: bool = False,
    attempt: int | None = None,
    error: str | None = None,
    parked: bool = False,
) -> fx.WriteOffline:
    """Return the write that creates OFFLINE or forces a transition back to it.

    The record remembers whether a server has ever begun to make the member.
    """
    former = work.transition
    begun = begun or (former is not None and (former.begun or former.state is not RegionState.OFFLINE))
    record = TransitionRecord(
        tablet.region_id, tablet.record.table_id, work.number, RegionState.OFFLINE,
        destination=destination, intent=intent, epoch=epoch,
        attempt=attempt if attempt is not None else 0 if former is None else former.attempt,
        reason=cause.value, since_ms=now_ms, deadline_ms=now_ms + config.start_timeout_ms,
        last_error=error if error is not None else "" if former is None else former.last_error,
        parked=parked, base=0 if former is None else work.version + 1, begun=begun, joins=_still_joins(former),
    )  # fmt: skip
    check = (tablet.record.table_id, tablet.table.version) if former is None or destination is not None else None
    before = None if former is None else former.state
    effect = fx.WriteOffline(work.key, record, before, work.version, cause, check, former)
    if cause in RESTS_ON_MEMBERS:
        effect.without_member = (tablet.record, tablet.version)
    return effect


def delete_transition(tablet: Tablet, work: MemberWork, cause: Cause) -> fx.DeleteTransition:
    """Return the write that ends a member's transition."""
    transition = work.transition
    assert transition is not None, work.key
    effect = fx.DeleteTransition(
        work.key, tablet.region_id, work.number, transition.state, work.version, cause, former=transition
    )
    if cause is Cause.DO_NOT_REOPEN:
        effect.table_check = (tablet.record.table_id, tablet.table.version)
    if cause in RESTS_ON_MEMBERS:
        effect.without_member = (tablet.record, tablet.version)
    return effect


def _still_joins(former: TransitionRecord | None) -> MemberRole | None:
    """Return the role in which a newcomer is to be added, as long as its transition has not ended."""
    is_new = former is not None and former.state in (RegionState.OFFLINE, RegionState.OPENING)
    return former.joins if former is not None and is_new else None


def marked_replaced(record: RegionRecord) -> RegionRecord:
    """Return the record of a region in whose place another one has come."""
    return msgspec.structs.replace(record, members=(), state=TabletState.REPLACED)


# --- causes -----------------------------------------------------------------------------------------------------------


#: Steps that begin new work on a transition.
_BEGIN: Final = (Cause.SERVER_DEATH, Cause.REPLAN)

StepWrite = TypeVar("StepWrite", BeginTablet, fx.WriteOffline, fx.DeleteTransition)


class KeeperCauses:
    """The causes of the keeper's effects (`regions/cluster/causes.py`); `causes` are those of the active master.

    A step that continues a transition keeps the transition's cause. The cause of a new transition is the latest request
    about the tablet, or else about its table. Without such a request the event that the keeper handles is the cause: a
    registration, a report, or elapsed time. The death of a server and an operator's retry give a transition a new
    cause.
    """

    def __init__(self, causes: Causes) -> None:
        self._causes = causes

    def event(self, what: str, origin: WorkOrigin | None = None) -> None:
        """Record the event that is being handled. `origin`: the request that the event comes from."""
        self._causes.act_for(origin, what)

    @property
    def acting(self) -> ActingEvent:
        """The event that is being handled."""
        return self._causes.acting

    def resume(self, acting: ActingEvent) -> None:
        """Continue the handling of an earlier event."""
        self._causes.acting = acting

    def of_tablet(self, tablet: Tablet) -> WorkOrigin:
        """Return the cause of new work on a tablet."""
        return self._causes.with_text(tablet.origin or tablet.table.origin)

    def of_policy(self, tablet: Tablet, why: str) -> WorkOrigin:
        """Return the cause of a change of members, which the policy decides each second."""
        return self._causes.begin(f"timer: members of tablet {tablet.region_id}: {why}")

    def with_ids(self, effect: BeginTablet) -> BeginTablet:
        """Give the transitions of an effect with a cause the cause's id. Return the effect."""
        assert effect.origin is not None, effect.key
        origin = effect.origin
        effect.transitions = [_with_id(one, origin) for one in effect.transitions]
        return effect

    def attached(self, effect: StepWrite, tablet: Tablet) -> StepWrite:
        """Add the cause to a write of the tablet's transitions, and to the written records. Return the write."""
        match effect:
            case BeginTablet():
                effect.origin = self.of_tablet(tablet)
                effect.transitions = [_with_id(one, effect.origin) for one in effect.transitions]
            case fx.WriteOffline():
                effect.origin = self._of_step(tablet, effect.former, effect.cause)
                effect.record = _with_id(effect.record, effect.origin)
            case fx.DeleteTransition():
                effect.origin = self._of_step(tablet, effect.former, effect.cause)
        return effect

    def _of_step(self, tablet: Tablet, former: TransitionRecord | None, cause: Cause) -> WorkOrigin:
        """Return the cause of a master's step from `former`."""
        if former is None or (tablet.is_given_up and cause in _BEGIN):
            return self.of_tablet(tablet)
        if former.origin is None or cause in _BEGIN:
            return self._causes.current()
        return former.origin

    def given_up(self, tablet: Tablet, after_ms: int) -> None:
        """Begin the replacement of a tablet that was given up because no leader has reported (DD-03)."""
        if tablet.is_given_up:
            why = f"timer: no leader of tablet {tablet.region_id} has reported for {after_ms // 1000} s"
            tablet.origin = self._causes.begin(why)


def _with_id(record: TransitionRecord, origin: WorkOrigin) -> TransitionRecord:
    """Return the record with the id of its cause. The text is in the history, in the first step of the cause."""
    return msgspec.structs.replace(record, origin=WorkOrigin(origin.cause_id))
