"""Moves of tablets' members that plans and the balancer want: intents like an operator's, with the plan's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from master.causes import acting
from master.tablets.intents import Change, IntentBook
from regions import messages as ms
from regions.records.intents import TabletIntents, TabletMove
from regions.replication.keeper import Keeper
from regions.replication.policy.intents import with_move, without_moves
from regions.replication.policy.requests import objection_to_tablet_move

#: A move, with the id of its tablet.
MemberMove = tuple[str, TabletMove]


class PlanMoves:
    """See the module docstring."""

    def __init__(self, keeper: Keeper, book: IntentBook, now_ms: Callable[[], int]) -> None:
        self._keeper = keeper
        self._book = book
        self._now_ms = now_ms

    def move(self, planned: ms.PlannedMove, plan_id: str) -> MemberMove | str:
        """Return a planned move of a member, or the reason for skipping it."""
        tablet = self._keeper.tablets.get(planned.region_id)
        if tablet is None:
            return "the region is gone"
        if not self._keeper.policy.is_on:
            return "this master changes no members of tablets"
        if tablet.view.leader_now() is None:
            return "no leader of the tablet has reported"
        if not self._book.has_room(1):
            return "too many members are moving"
        wanted = TabletMove(planned.source, planned.destination, self._now_ms(), "plan", acting(), plan_id)
        kept = self._book.of(tablet.record.table_id, tablet.region_id)
        return objection_to_tablet_move(tablet, self._keeper.policy.places, kept, wanted) or (tablet.region_id, wanted)

    async def accept(self, moves: Iterable[MemberMove]) -> None:
        """Persist moves. Raise as a fenced write."""
        changes: dict[str, Change] = {}
        for region_id, wanted in moves:
            changes[region_id] = partial(_with_another, move=wanted, former=changes.get(region_id))
        if changes:
            await self._book.change(changes, self._tables(changes))

    def left(self, plan_id: str) -> tuple[int, int]:
        """Return how many moves of a plan have not begun, and how many are in progress."""
        moving = waiting = 0
        for region_id, kept in self._book.kept.items():
            for move in kept.moves:
                if move.plan_id == plan_id:
                    has_begun = self._has_begun(region_id, move)
                    moving, waiting = moving + has_begun, waiting + (not has_begun)
        return waiting, moving

    async def withdraw(self, plan_id: str) -> None:
        """Cancel the moves of a plan that have not begun. May be repeated."""
        concerned = [
            region_id
            for region_id, kept in self._book.kept.items()
            if any(one.plan_id == plan_id and not self._has_begun(region_id, one) for one in kept.moves)
        ]
        changes = dict.fromkeys(concerned, partial(self._without, plan_id))
        if changes:
            await self._book.change(changes, self._tables(changes))

    async def withdraw_moves(self, moves: Iterable[MemberMove]) -> None:
        """Withdraw moves. May be repeated."""
        changes: dict[str, Change] = {
            region_id: partial(without_moves, source=move.source) for region_id, move in moves
        }
        if changes:
            await self._book.change(changes, self._tables(changes))

    def _without(self, plan_id: str, kept: TabletIntents) -> TabletIntents:
        left = [one for one in kept.moves if one.plan_id != plan_id or self._has_begun(kept.region_id, one)]
        return msgspec.structs.replace(kept, moves=tuple(left))

    def _has_begun(self, region_id: str, move: TabletMove) -> bool:
        """Return True if a move's target has a member, or a number was given out for it."""
        tablet = self._keeper.tablets.get(region_id)
        if tablet is None:
            return False
        joining = (tablet.home_of(work) for work in tablet.work.values() if work.transition is not None)
        return any(one.uuid == move.target for one in tablet.record.members) or move.target in joining

    def _tables(self, changes: Iterable[str]) -> dict[str, str]:
        return {one: self._keeper.tablets[one].record.table_id for one in changes if one in self._keeper.tablets}


def _with_another(kept: TabletIntents, move: TabletMove, former: Change | None) -> TabletIntents:
    """Return the intents with another move, after a `former` change of the same tablet."""
    return with_move(kept if former is None else former(kept), move)
