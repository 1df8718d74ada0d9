"""Splits and merges of tablets (X11, docs/splits.md). Pure.

Each server with a member of the parents has a member of each daughter, and makes it from its own replicas of the
parents. So the members of two neighbors are brought to the same servers first (`alignment.py`). Then all servers copy
the rows, while the tablets are served. Then the leader of each parent seals it: from that entry of its log on nothing
changes the rows. When all parents are sealed, one write replaces them by the daughters. Their members need only the
rows that were written meanwhile, or all rows where a server has not copied them. The parents' replicas stay until all
members are made.

If one of two parents is sealed and the other one is not, the work goes on or is canceled as a whole: a canceled work
has no record, and the leader of each tablet without a record ends its seal (`regions/replication/policy`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from regions.assign.resharding import objections
from regions.assign.resharding.alignment import next_move, servers_of
from regions.assign.resharding.parents import Handover, Resharding
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Region, Table
from regions.messages.heartbeat import MemberHealth
from regions.records.acts.resharding import ReshardingState
from regions.records.intents import TabletIntents, TabletMove
from regions.records.members import MemberRole
from regions.records.model import (
    Incarnation,
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
from regions.replication.tablet import MemberWork, Tablet
from regions.transitions.states import Cause

#: Time for which the parent's replicas stay: as long as a client waits by default. The client may repeat a write whose
#: reply was lost.
KEPT_MS: Final = 30_000
#: Time after which a tablet is sealed even if not all members have prepared the daughters. Shorter than the time after
#: which the split would be canceled.
PREPARE_WITHIN_MS: Final = 480_000
#: Time after which a merge is canceled if its parents' members are not on the same servers. Shorter than the time in
#: which it must be prepared.
ALIGN_WITHIN_MS: Final = 300_000
#: A merge is canceled if one parent is sealed and the other one is not within this time: the first one's keys wait.
SEAL_BOTH_WITHIN_MS: Final = 10_000
#: Pause before the next move of a merge, so that the last one is known to have been written.
MOVE_AGAIN_MS: Final = 1_000


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
        if any(one.region_id == parent for one in region.record.parents):
            return (
                f"tablet {region_id} takes part in the split or merge of {parent}, whose replicas stay until all"
                f" members of the daughters are made, for {KEPT_MS // 1000} s at least: try again later"
                f" (`rk why {region_id}`)"
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

    def objection_to_pair(self, left: Region, right: Region) -> str:
        """See `Parents`: why their members cannot be brought to the same servers."""
        one, other = self._tablets([left, right])
        found = None if one is None or other is None else self._next_move(one, other)
        return found if isinstance(found, str) else ""

    def _tablets(self, parents: Sequence[Region]) -> list[Tablet | None]:
        return [self._keeper.tablets.get(one.record.region_id) for one in parents]

    def _at_rest(self, parents: Sequence[Region]) -> list[Tablet]:
        """Return the tablets if all are led and at rest, else []."""
        found = [one for one in self._tablets(parents) if one is not None]
        is_ready = all(one.is_led and self._keeper.policy.is_at_rest(one) for one in found)
        return found if is_ready and len(found) == len(parents) else []

    def _next_move(
        self, left: Tablet, right: Tablet, origin: WorkOrigin | None = None
    ) -> tuple[Tablet, TabletMove] | str | None:
        """Return the next move towards members on the same servers, or why no move is possible. Return None if the two
        tablets have their members on the same servers."""
        if servers_of(left) == servers_of(right):
            return None
        policy = self._keeper.policy

        def kept(tablet: Tablet) -> TabletIntents:
            record = tablet.record
            return policy.intents.get(record.region_id) or TabletIntents(record.table_id, record.region_id)

        return next_move(left, right, policy.places, kept, origin)

    def objection_to_work(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> str:
        """See `Parents`. A merge is canceled if the members are not on the same servers and cannot be brought there,
        and if only one tablet is sealed."""
        if len(parents) == 1:
            return ""
        names = " and ".join(work.record.parents)
        if work.record.state is ReshardingState.CLOSING:
            is_half = 0 < len(work.sealed) < len(parents)
            if is_half and now_ms - work.first_sealed_ms >= SEAL_BOTH_WITHIN_MS:
                why = f" ({work.not_sealed})" if work.not_sealed else ""
                return f"only {', '.join(work.sealed)} could be sealed within {SEAL_BOTH_WITHIN_MS // 1000} s{why}"
            places = {frozenset(one.uuid for one in answer.members) for answer in work.sealed.values()}
            return f"the members of {names} were moved to different servers meanwhile" if len(places) > 1 else ""
        left, right = self._tablets(parents)
        if left is None or right is None or servers_of(left) == servers_of(right):
            return ""
        if now_ms - work.began_ms >= ALIGN_WITHIN_MS:
            return f"the members of {names} could not be brought to the same servers within {ALIGN_WITHIN_MS // 1000} s"
        found = self._next_move(left, right) if self._at_rest(parents) else None
        return found if isinstance(found, str) else ""

    def home(self, region: Region) -> ServerRecord | None:
        """See `Parents`: the server of the leader."""
        tablet = self._keeper.tablets.get(region.record.region_id)
        leader = None if tablet is None else tablet.view.leader_now()
        server = None if leader is None else self._keeper.servers.get(leader.server.uuid)
        return server if server is not None and leader is not None and server.incarnation == leader.server else None

    def prepared(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> bool:
        """Have the server of each member copy the rows for the daughters while the tablets are served.

        A member that is not prepared in time is made after the seal, so the keys are away for longer.
        """
        tablets = self._at_rest(parents)
        if not tablets or not self._aligned(work, tablets, now_ms):
            return False
        assert len(tablets) == len(parents), f"{len(tablets)} of the {len(parents)} parents would be prepared"
        if now_ms - work.began_ms >= PREPARE_WITHIN_MS:
            return True
        servers = self._servers(tablets[0])
        for server in servers if now_ms >= work.next_ms else ():
            if server.incarnation not in work.preparing:
                work.preparing[server.incarnation] = False
                self._emit(fx.PrepareDaughters(work.record, server, origin=work.record.origin))
        return all(work.preparing.get(one.incarnation) for one in servers)

    def _aligned(self, work: Resharding, tablets: list[Tablet], now_ms: int) -> bool:
        """Return True if the tablets have their members on the same servers. Otherwise request the next move of a
        member."""
        origin = work.record.origin
        found = self._next_move(tablets[0], tablets[1], origin) if len(tablets) > 1 else None
        if isinstance(found, tuple) and now_ms >= work.next_ms:
            work.next_ms = now_ms + MOVE_AGAIN_MS
            moving, move = found
            move = msgspec.structs.replace(move, at_ms=now_ms)
            self._emit(fx.AlignParents(work.record, moving.region_id, move, origin=origin))
        return found is None

    def _servers(self, tablet: Tablet) -> list[ServerRecord]:
        """Return the servers of the members that are registered."""
        found = (self._keeper.servers.get(one.uuid) for one in tablet.record.members)
        return [one for one in found if one is not None]

    def canceled(self, work: Resharding) -> None:
        """See `Parents`. Order the servers to remove prepared files."""
        servers: dict[str, ServerRecord] = {}
        for parent in work.record.parents:
            tablet = self._keeper.tablets.get(parent)
            servers |= {one.uuid: one for one in (() if tablet is None else self._servers(tablet))}
        for server in servers.values():
            self._emit(fx.GiveUpDaughters(work.record, server, origin=work.record.origin))

    def handover(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> Handover | None:
        """Have all parents sealed."""
        for parent in parents:
            region_id, leader = parent.record.region_id, self.home(parent)
            if region_id in work.sealed:
                continue
            if leader is None:
                work.sealing.pop(region_id, None)
            elif work.sealing.get(region_id) != leader.incarnation and now_ms >= work.next_ms:
                work.sealing[region_id] = leader.incarnation
                self._emit(fx.SealParent(work.record, region_id, leader, origin=work.record.origin))
        if len(work.sealed) < len(parents):
            return None
        return self._daughters(work, [work.sealed[one.record.region_id] for one in parents], now_ms)

    def _daughters(self, work: Resharding, sealed: Sequence[ev.ParentSealed], now_ms: int) -> Handover:
        """Return the daughters with their members, and the transitions of these.

        The members of all parents are on the same servers. The daughters' are numbered as the first one's are.
        """
        first = sealed[0]
        former = sorted(first.members, key=lambda one: one.number)
        members = first_members(one.uuid for one in former)
        leader = next((new.number for old, new in zip(former, members, strict=True) if old.number == first.leader), 0)
        inherits = tuple(Parent(one.parent, one.index) for one in sealed)
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
        """Return the present start of a server. Return None if the server is away: its member is made when it is
        back."""
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
        servers = self._keeper.servers
        is_made = all(one is not None and _is_made(one, servers) for one in tablets)
        return is_made and _is_kept_long_enough(work, now_ms)

    def replaced(self, event: ev.ParentsReplaced, parents: Sequence[Region], now_ms: int) -> None:
        """Report the contents of the write to the keeper."""
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


def _is_made(tablet: Tablet, servers: Mapping[str, ServerRecord]) -> bool:
    """Return True if all members have replicas of their own, except members that are given up: no replica is being
    made or waits for its server."""
    return (
        tablet.is_led
        and not tablet.is_writing
        and all(_is_given_up(tablet, work, servers) for work in tablet.work.values())
    )


def _is_given_up(tablet: Tablet, work: MemberWork, servers: Mapping[str, ServerRecord]) -> bool:
    """Return True for a member whose server is away and that its leader judges FAILED.

    The server may never return, and there may be no other one. A majority of the members is made, because the tablet
    has a leader. If the server returns, its replicas of the parents are deleted, and the leader requests a copy of the
    member.
    """
    leader, transition = tablet.view.leader_now(), work.transition
    if leader is None or transition is None or work.is_writing or tablet.home_of(work) in servers:
        return False
    is_unmade = transition.state in (RegionState.OFFLINE, RegionState.OPENING) and transition.joins is None
    health = next((one.health for one in leader.report.health if one.number == work.number), None)
    return is_unmade and health is MemberHealth.FAILED


def _is_kept_long_enough(work: Resharding, now_ms: int) -> bool:
    """Return True if the parents' replicas have stayed for KEPT_MS.

    The time is in the record, so it does not begin again with each master. A master whose clock is behind the clock of
    an earlier one waits for at most KEPT_MS by its own clock.
    """
    since_ms = min(work.record.replaced_ms or work.began_ms, work.began_ms)
    return now_ms - since_ms >= KEPT_MS
