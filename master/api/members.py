"""Requests that change members of tablets: moves, learners, and servers that are emptied.

A change is checked against the keeper's present state, persisted as an intent, and answered. The policy
(`regions/replication/policy`) carries it out, even under the next active master. `retirement.py` has the progress of
intents.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from coord.rpc.server import RpcError
from master.active import ActiveMaster
from master.api.retirement import retirement
from master.api.tablets import find_tablet
from master.catalog import store
from master.catalog.tablet_progress import Throttled
from master.causes import acting
from master.tablets.intents import INTENTS_MAX
from regions import messages as ms
from regions.diagnose.tablets import diagnose, is_listed
from regions.messages import TabletHealth
from regions.records.intents import TabletIntents, TabletMove
from regions.replication.config import voters
from regions.replication.policy.intents import (
    IntentProgress,
    standing_of,
    with_learner,
    with_move,
    without_moves,
)
from regions.replication.policy.requests import (
    complete,
    objection_to_learner,
    objection_to_tablet_move,
)
from regions.replication.tablet import Tablet
from regions.transitions.entries import FORCED

#: Time for the active master to read a mark back that it has written.
_READ_BACK_MS: Final = 5_000


# --- one tablet -------------------------------------------------------------------------------------------------------


async def move(active_master: ActiveMaster, request: ms.MoveTablet, now_ms: int) -> ms.MemberIntent:
    """Accept a move of a member (TC-19). Raise RpcError with the reason if the policy could not keep it."""
    tablet = _find(active_master, request.region_id)
    keeper, book = active_master.keeper.keeper, active_master.keeper.intents
    region_id, table_id = tablet.region_id, tablet.record.table_id
    kept = book.of(table_id, region_id)
    known = next((one for one in kept.moves if _is_same(one, request)), None)
    if known is not None:
        standing = standing_of(known, tablet.record.members).why
        return _answer(kept, f"the member on {known.source} is moving to {known.target} already: {standing}")
    _check_leader(active_master, tablet)
    wanted = TabletMove(request.source, request.target, now_ms, origin=acting())
    wanted = complete(tablet, keeper.policy.places, wanted)
    if request.source and standing_of(wanted, tablet.record.members).progress is IntentProgress.DONE:
        return _answer(kept, f"{request.target} has a voter, and {request.source} has none: there is nothing to do")
    _refuse(tablet, objection_to_tablet_move(tablet, keeper.policy.places, kept, wanted))
    detail = f"the member of {region_id} on {wanted.source} moves to {wanted.target}"
    if request.dry_run:
        return _answer(with_move(kept, wanted), f"{detail}: nothing was changed (dry run)")
    check_room(active_master, 1)
    await book.change({region_id: partial(with_move, move=wanted)}, {region_id: table_id})
    return _answer(book.of(table_id, region_id), detail)


async def cancel(active_master: ActiveMaster, request: ms.CancelTabletMove) -> ms.MemberIntent:
    """Withdraw moves of a tablet's members."""
    tablet = _find(active_master, request.region_id)
    book = active_master.keeper.intents
    region_id, table_id = tablet.region_id, tablet.record.table_id
    kept = book.of(table_id, region_id)
    ended = [one for one in kept.moves if request.source in ("", one.source)]
    if not ended:
        whose = f"the member on {request.source}" if request.source else "no member"
        raise RpcError(
            ms.NOT_FOUND, f"{whose} of {region_id} is {'not ' if request.source else ''}moving: nothing to cancel"
        )
    left = {one.uuid for one in tablet.record.members}
    there = [one for one in ended if any(one.target == member.uuid for member in voters(tablet.record.members))]
    detail = f"canceled: {', '.join(f'{one.source} -> {one.target}' for one in ended)}"
    if there:
        detail += f"; {there[0].target} has a voter already, so the worst placed voter goes"
    elif any(one.target in left for one in ended):
        detail += "; the newcomer is removed"
    if request.dry_run:
        return _answer(without_moves(kept, request.source), f"{detail}: nothing was changed (dry run)")
    await book.change({region_id: partial(without_moves, source=request.source)}, {region_id: table_id})
    return _answer(book.of(table_id, region_id), detail)


async def learner(active_master: ActiveMaster, request: ms.WantLearner) -> ms.MemberIntent:
    """Keep a learner on a server, or keep it no longer (TC-01)."""
    tablet = _find(active_master, request.region_id)
    keeper, book = active_master.keeper.keeper, active_master.keeper.intents
    region_id, table_id, uuid = tablet.region_id, tablet.record.table_id, request.uuid
    kept = book.of(table_id, region_id)
    if (uuid in kept.learners) is request.wanted:
        if request.wanted:
            return _answer(kept, f"a learner of {region_id} is wanted on {uuid} already")
        raise RpcError(ms.NOT_FOUND, f"no learner of {region_id} is wanted on {uuid}")
    if request.wanted:
        _check_leader(active_master, tablet)
        _refuse(tablet, objection_to_learner(tablet, keeper.policy.places, uuid))
    detail = f"{uuid} {'gets' if request.wanted else 'loses'} a learner of {region_id}"
    change = partial(with_learner, uuid=uuid, wanted=request.wanted)
    if request.dry_run:
        return _answer(change(kept), f"{detail}: nothing was changed (dry run)")
    check_room(active_master, 1)
    await book.change({region_id: change}, {region_id: table_id})
    return _answer(book.of(table_id, region_id), detail)


def check_room(active_master: ActiveMaster, count: int) -> None:
    """Raise RpcError if so many more tablets cannot have intents now."""
    if not active_master.keeper.intents.has_room(count):
        raise RpcError(ms.BUSY, f"members of {INTENTS_MAX} tablets are moving: try again later")


def _is_same(kept: TabletMove, request: ms.MoveTablet) -> bool:
    return request.target in ("", kept.target) and request.source in ("", kept.source)


async def move_region(active_master: ActiveMaster, request: ms.MoveRegion, now_ms: int) -> ms.Accepted:
    """Move a member for a request about regions. The request's replica is the member's number; 0 means any member."""
    tablet = _find(active_master, request.region_id)
    member = tablet.record.member(request.replica)
    if request.replica and member is None:
        raise RpcError(ms.NOT_FOUND, f"tablet {tablet.region_id} has no member with number {request.replica}")
    asked = ms.MoveTablet(tablet.region_id, request.destination, "" if member is None else member.uuid)
    found = await move(active_master, asked, now_ms)
    book, region_id, table_id = active_master.keeper.intents, tablet.region_id, tablet.record.table_id

    def is_over() -> bool:
        return not set(found.moves) & set(book.of(table_id, region_id).moves)

    await active_master.wait(is_over, request.wait_ms, lambda: f"{found.detail}: not yet")
    return ms.Accepted(found.detail)


def note_forced(active_master: ActiveMaster, request: ms.NoteForcedConfig, now_ms: int) -> ms.Accepted:
    """Record in the history that an operator has forced a configuration. Raise RpcError for an unknown tablet."""
    tablet = find_tablet(active_master.keeper.watch, active_master.assigner.world, request.region_id)
    keep, lost = (", ".join(map(str, numbers)) for numbers in (request.keep, request.lost))
    last = f"{request.last_term}.{request.last_index}"
    detail = f"members {keep} stay, {lost} are given up; writes after entry {last} are lost"
    active_master.history_writer.event(
        FORCED, detail, server=request.server, region_id=tablet.region_id, origin=acting(), at_ms=now_ms
    )
    return ms.Accepted(f"the history has the forced configuration of {tablet.region_id}")


def _answer(kept: TabletIntents, detail: str) -> ms.MemberIntent:
    return ms.MemberIntent(kept.region_id, detail, kept.moves, kept.learners)


def _find(active_master: ActiveMaster, text: str) -> Tablet:
    """Return the tablet that the id or prefix names. Raise RpcError, also for a region with shared storage."""
    if not active_master.keeper.keeper.policy.is_on:
        raise RpcError(ms.BAD_REQUEST, "this master changes no members of tablets")
    return find_tablet(active_master.keeper.watch, active_master.assigner.world, text)


def _check_leader(active_master: ActiveMaster, tablet: Tablet) -> None:
    """Raise RpcError if no leader can change the members: there is no majority, or no report to this master yet."""
    if not is_listed(tablet) or tablet.view.leader_now() is not None or not tablet.wants_open:
        return
    watch = active_master.keeper.watch
    judgment = diagnose(tablet, watch.keeper, watch.has_reported)
    if judgment.health is TabletHealth.UNAVAILABLE:
        raise RpcError(ms.BAD_REQUEST, f"members of {tablet.region_id} cannot change now: {judgment.reason}")
    raise RpcError(ms.BUSY, f"the leader of {tablet.region_id} has not reported to this master yet")


def _refuse(tablet: Tablet, why: str) -> None:
    if why:
        raise RpcError(ms.BAD_REQUEST, f"{tablet.region_id} stays as it is: {why}")


# --- servers ----------------------------------------------------------------------------------------------------------


async def retire(active_master: ActiveMaster, request: ms.RetireServer) -> ms.Retirement:
    """Empty a server for good (TC-21). Raise RpcError for an unknown server, and if it could never become empty."""
    uuid, world = request.uuid, active_master.assigner.world
    keeper, registry = active_master.keeper.keeper, active_master.registry
    is_known = uuid in world.servers or uuid in registry.draining or keeper.loads[uuid] > 0
    if not is_known:
        raise RpcError(ms.NOT_FOUND, f"there is no server {uuid!r}, and no tablet has a member on it")
    found = retirement(active_master.keeper.watch, world, uuid)
    if found.obstacle:
        raise RpcError(ms.BAD_REQUEST, f"{uuid} cannot be emptied: {found.obstacle}")
    if request.dry_run or found.is_retiring:
        return found
    active_master.server_events.drain_origins[uuid] = acting()
    await store.create_if_missing(active_master.fence, active_master.fence.layout.draining_mark(uuid))
    await active_master.wait(lambda: uuid in registry.draining, _READ_BACK_MS, lambda: "the mark has not been read yet")
    return retirement(active_master.keeper.watch, world, uuid)


async def emptied(active_master: ActiveMaster, request: ms.DrainServer, now_ms: Callable[[], int]) -> str:
    """Wait until a draining server has no shared region, and no member of a tablet that can leave it.

    Return its progress.
    """
    uuid, world, keeper = request.uuid, active_master.assigner.world, active_master.keeper
    stays = keeper.obstacle_to_empty(uuid)
    known = Throttled(lambda: keeper.members_on(uuid), now_ms)

    def empty() -> bool:
        now = world.servers.get(uuid)
        has_shared = now is not None and not (now.marked and not now.open and not now.incoming)
        return not has_shared and (bool(stays) or not known.value())

    def so_far() -> str:
        now, left = world.servers.get(uuid), keeper.members_on(uuid)
        members = f" and {_members_words(left)}" if left else ""
        why = f"; they stay: {stays}" if stays and left else ""
        return f"server {uuid} still has {0 if now is None else now.load} shared regions{members}{why}"

    await active_master.wait(empty, request.wait_ms, so_far)
    left = keeper.members_on(uuid)
    if not request.wait_ms:
        return so_far()
    if left:
        return f"server {uuid} has no shared regions any more; {left} tablets keep a member there: {stays}"
    return f"server {uuid} is empty"


def _members_words(members: int) -> str:
    return f"{members} {'member' if members == 1 else 'members'} of tablets"
