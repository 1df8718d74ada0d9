"""Claims of new numbers in the store: OFFLINE -> OPENING, before a copy makes the first replica of a number.

The master creates OFFLINE when it assigns the number to a server (`regions/replication/policy`). As for first replicas
(`orders.py`), the server's compare-and-set decides whether the number may still begin here. The server writes OPENED on
the master's OPEN order, once the leader has promoted the newcomer.

**A number begins only once.** A replica that was complete may have voted. So a number is claimed a second time only if
its copy was certainly never completed: this process began it, or this server has the superblock of the unfinished copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec.structs import replace
from twisted.internet.defer import Deferred, ensureDeferred

from coord.env import Clock
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord
from regions.transitions import trail
from regions.transitions.states import Cause
from regionserver.tablets.store_steps import SessionOverError, StepLostError, StepWanted, StoreSteps


class NewMember(NamedTuple):
    """A number whose first replica must be copied to this server."""

    tablet: str
    table: str
    number: int
    #: This server has a superblock of the tablet, of an earlier number or of an unfinished copy.
    has_superblock: bool


class Claims(Protocol):
    """Gives new numbers to copies."""

    def claim(self, member: NewMember) -> Deferred[str]:
        """Claim a number. Fires with "" or with the reason why the copy must not begin."""
        ...

    def progressed(self, member: NewMember) -> Deferred[None]:
        """Record in the store that the copy makes progress, so that the master does not give the number up."""
        ...

    def made(self, tablet: str, number: int) -> None:
        """Note that the copy is complete: the number never begins again."""
        ...


def objection(found: TransitionRecord | None, me: Incarnation, *, may_begin_again: bool) -> str:
    """Return why a number must not begin here, "" if it may. `found` is its transition in the store."""
    if found is None:
        return "the store has no transition of this number: it was given up, or has begun long ago"
    if found.joins is None:
        return f"{found.key} is a first replica, which an order makes"
    if found.destination != me:
        return f"{found.key} is given to {found.destination or 'no server'}, and this is {me}"
    if found.state not in (RegionState.OFFLINE, RegionState.OPENING):
        return f"{found.key} is {found.state} already"
    was_begun = found.begun or found.state is RegionState.OPENING
    if was_begun and not may_begin_again:
        return f"{found.key} was begun before, and nothing of it is left here: it needs a new number"
    return ""


class StoreClaims:
    """See `Claims`. Every method is called on the reactor's thread."""

    def __init__(self, steps: Callable[[], StoreSteps | None], clock: Clock) -> None:
        """`steps` returns the step writer of the present store session, None without a session."""
        self._steps = steps
        self._clock = clock
        #: Numbers that this process has begun, and whose copies are not complete.
        self._begun: set[tuple[str, int]] = set()

    def claim(self, member: NewMember) -> Deferred[str]:
        """See `Claims`."""
        return ensureDeferred(self._claim(member))

    def progressed(self, member: NewMember) -> Deferred[None]:
        """See `Claims`. A step that cannot be written is left out: another one follows."""
        return ensureDeferred(self._progress(member))

    def made(self, tablet: str, number: int) -> None:
        """See `Claims`."""
        self._begun.discard((tablet, number))

    async def _claim(self, member: NewMember) -> str:
        steps = self._steps()
        if steps is None:
            return "this server has no session with the store, which gives new numbers"
        key = (member.tablet, member.number)
        may_begin_again = member.has_superblock or key in self._begun
        try:
            found, version, _, _ = await steps.read(member.table, *key)
            why = objection(found, steps.me, may_begin_again=may_begin_again)
            if why or found is None or found.state is RegionState.OPENING:
                return why
            self._begun.add(key)
            await steps.write(self._opening(found, version))
        except (SessionOverError, StepLostError) as error:
            return str(error) or "the session with the store has ended"
        return ""

    def _opening(self, found: TransitionRecord, version: int) -> StepWanted:
        now_ms = self._clock.wall_ms()
        deadline_ms = now_ms + max(0, found.deadline_ms - found.since_ms)
        opening = replace(found, state=RegionState.OPENING, since_ms=now_ms, deadline_ms=deadline_ms, took=(now_ms,))

        def may_repeat(now: TransitionRecord | None, region: RegionRecord | None) -> bool:
            return now == found and region is not None and not region.is_replaced

        return StepWanted(Cause.OPEN_ORDER, RegionState.OFFLINE, opening, version, may_repeat=may_repeat)

    async def _progress(self, member: NewMember) -> None:
        steps = self._steps()
        if steps is None:
            return
        try:
            found, version, _, _ = await steps.read(member.table, member.tablet, member.number)
            if found is None or found.state is not RegionState.OPENING or found.destination != steps.me:
                return
            took = trail.add(found.took, self._clock.wall_ms())
            await steps.write(StepWanted(Cause.PROGRESS, RegionState.OPENING, replace(found, took=took), version))
        except (SessionOverError, StepLostError):
            return
