"""Splits of tablets (X11, docs/splits.md). Pure.

Each server with a member of the parent has a member of each daughter, and makes it from its own replica of the parent.
First they all copy the rows, while the tablet is served. Then the leader seals the tablet: from that entry of its log
on nothing changes the rows. Then one write replaces the region by its daughters. Their members need only the rows that
were written meanwhile, or all rows where a server has not copied them. So the parent's replicas stay until all members
are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from regions.assign.resharding import objections
from regions.assign.resharding.parents import Handover, Resharding
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Region, Table
from regions.records.members import MemberRole
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ServerRecord,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.resharding.parents import Parent
from regions.replication.config import first_members
from regions.replication.effects import marked_replaced
from regions.replication.keeper import Keeper
from regions.replication.policy.next_change import words_of
from regions.replication.siting import objection_to_space
from regions.replication.tablet import Tablet
from regions.transitions.states import Cause

#: The parent's replicas stay for this long, as a client waits by default: it may repeat a write whose answer was lost.
KEPT_MS: Final = 30_000
#: A tablet whose members have not all prepared the daughters by then is sealed all the same: short of the time after
#: which the split would be canceled.
PREPARE_WITHIN_MS: Final = 480_000


class TabletParents:
    """The answers for tablets: `Parents` in `regions/assign/resharding/parents.py`. `keeper` decides about tablets."""

    def __init__(self, keeper: Keeper, emit: Callable[[fx.Effect], None], epoch: int, start_timeout_ms: int) -> None:
        self._keeper = keeper
        self._emit = emit
        self._epoch = epoch
        self._start_timeout_ms = start_timeout_ms

    def objection_now(self, region: Region) -> str:
        """See `Parents`."""
        region_id, parent = region.record.region_id, region.resharding
        if parent and parent != region_id:
            return (
                f"tablet {region_id} comes from the split of {parent}, whose replicas stay until all members of the"
                f" daughters are made, for {KEPT_MS // 1000} s at least: try again later (`rk why {region_id}`)"
            )
        if parent:
            return objections.objection_now(region)
        tablet = self._keeper.tablets.get(region_id)
        leader = None if tablet is None else tablet.view.leader_now()
        if tablet is None or leader is None:
            return f"no leader of tablet {region_id} has reported: try again later (`rk why {region_id}`)"
        if any(one.role is not MemberRole.VOTER for one in leader.report.members):
            return f"a member of tablet {region_id} is no voter: remove it, or wait until it is one (`rk tablet show`)"
        if not self._keeper.policy.is_at_rest(tablet):
            decision = self._keeper.policy.decisions.get(region_id)
            why = "" if decision is None else f" ({words_of(decision)})"
            return f"the members of tablet {region_id} change{why}: try again later (`rk why {region_id}`)"
        return self._keeper.policy.objection_to_daughters(region_id) or self._objection_to_space(tablet)

    def _objection_to_space(self, tablet: Tablet) -> str:
        """Return which server has no room for the daughters' rows, "" if all have. The parent's rows stay meanwhile."""
        found = (objection_to_space(one, tablet.size_bytes) for one in self._servers(tablet))
        return next(filter(None, found), "")

    def home(self, region: Region) -> ServerRecord | None:
        """See `Parents`: the server of the leader."""
        tablet = self._keeper.tablets.get(region.record.region_id)
        leader = None if tablet is None else tablet.view.leader_now()
        server = None if leader is None else self._keeper.servers.get(leader.server.uuid)
        return server if server is not None and leader is not None and server.incarnation == leader.server else None

    def prepared(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> bool:
        """Have the server of each member copy the rows for the daughters while the tablet is served.

        A member that is not prepared in time is made after the seal, so the keys are away for longer.
        """
        (parent,) = parents
        tablet = self._keeper.tablets.get(parent.record.region_id)
        if tablet is None or not tablet.is_led or not self._keeper.policy.is_at_rest(tablet):
            return False
        if now_ms - work.began_ms >= PREPARE_WITHIN_MS:
            return True
        servers = self._servers(tablet)
        for server in servers if now_ms >= work.next_ms else ():
            if server.incarnation not in work.preparing:
                work.preparing[server.incarnation] = False
                self._emit(fx.PrepareDaughters(work.record, server, origin=work.record.origin))
        return all(work.preparing.get(one.incarnation) for one in servers)

    def _servers(self, tablet: Tablet) -> list[ServerRecord]:
        """Return the servers of the members that are registered."""
        found = (self._keeper.servers.get(one.uuid) for one in tablet.record.members)
        return [one for one in found if one is not None]

    def canceled(self, work: Resharding) -> None:
        """See `Parents`. Have what was prepared removed."""
        tablet = self._keeper.tablets.get(work.record.region_id)
        for server in () if tablet is None else self._servers(tablet):
            self._emit(fx.GiveUpDaughters(work.record, server, origin=work.record.origin))

    def handover(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> Handover | None:
        """Have the parent sealed."""
        (parent,) = parents
        if work.sealed is not None:
            return self._daughters(work, parent.record, work.sealed, now_ms)
        leader = self.home(parent)
        if leader is None:
            work.asked = None
        elif work.asked != leader.incarnation and now_ms >= work.next_ms:
            work.asked = leader.incarnation
            self._emit(fx.SealParent(work.record, leader, origin=work.record.origin))
        return None

    def _daughters(self, work: Resharding, parent: RegionRecord, sealed: ev.ParentSealed, now_ms: int) -> Handover:
        """Return the daughters with their members, and the transitions of these."""
        former = sorted(sealed.members, key=lambda one: one.number)
        members = first_members(one.uuid for one in former)
        leader = next((new.number for old, new in zip(former, members, strict=True) if old.number == sealed.leader), 0)
        inherits = (Parent(parent.region_id, sealed.index),)
        daughters = tuple(
            msgspec.structs.replace(one, parents=inherits, members=members, leader=leader, next_number=len(members) + 1)
            for one in work.record.daughters
        )
        origin = work.record.origin
        begun = [
            TransitionRecord(
                one.region_id, one.table_id, member.number, RegionState.OFFLINE,
                destination=self._start_of(member.uuid), epoch=self._epoch, reason=Cause.ASSIGN.value,
                since_ms=now_ms, deadline_ms=now_ms + self._start_timeout_ms,
                origin=None if origin is None else WorkOrigin(origin.cause_id),
            )
            for one in daughters
            for member in members
        ]  # fmt: skip
        return Handover(daughters, [], begun)

    def _start_of(self, uuid: str) -> Incarnation | None:
        """Return the present start of a server, None for one that is away: its member is made when it is back."""
        server = self._keeper.servers.get(uuid)
        return None if server is None else server.incarnation

    def is_open(self, daughter: Region) -> bool:
        """See `Parents`: a leader has reported."""
        tablet = self._keeper.tablets.get(daughter.record.region_id)
        return tablet is not None and tablet.is_led

    def cleaned(self, work: Resharding, table: Table, daughters: Sequence[Region], now_ms: int) -> bool:
        """See `Parents`: the keeper has the parent's replicas deleted when the work has ended."""
        del table
        tablets = [self._keeper.tablets.get(one.record.region_id) for one in daughters]
        return now_ms - work.began_ms >= KEPT_MS and all(one is not None and _is_made(one) for one in tablets)

    def replaced(self, event: ev.ParentsReplaced, parents: Sequence[Region], now_ms: int) -> None:
        """Pass on to the keeper what the write contained."""
        keeper, origin = self._keeper, event.record.origin
        for parent in parents:
            keeper.region_seen(marked_replaced(parent.record), parent.version + 1, origin)
        for daughter in event.record.daughters:
            keeper.region_seen(daughter, 0, origin)
        for transition in event.begun:
            keeper.transition_seen(transition.region_id, transition.replica, transition, 0, now_ms)

    def mark(self, region_id: str, *, is_leaving: bool) -> None:
        """Keep the members of a parent as they are, and its replicas when it is replaced; or let the keeper decide."""
        held, tablet = self._keeper.policy.held, self._keeper.tablets.get(region_id)
        if is_leaving:
            held.add(region_id)
        elif region_id in held:
            held.discard(region_id)
            if tablet is not None:
                self._keeper.region_seen(tablet.record, tablet.version)


def _is_made(tablet: Tablet) -> bool:
    """Return True if all members have replicas of their own: none is being made, or waits for its server."""
    return tablet.is_led and not tablet.work and not tablet.is_writing
