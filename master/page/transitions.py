"""All replicas in transition, page by page, in an order that the browser names.

Only a browser that shows the transitions requests them. The order is computed in slices with pauses, and kept for a
hundred times the duration of the computation, so any number of browsers cost the master a hundredth of its time. The
state of each replica on a page is always new.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Any, Final, Protocol

import msgspec
from twisted.internet.task import deferLater

from master.assignment.transition_times import TransitionTimes
from master.process import MasterProcess
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.diagnose.explain import explain
from regions.records.model import TransitionRecord
from regions.records.replica_key import parse_replica_key

#: Transitions on one page.
PAGE: Final = 50
#: Replicas that one turn of the reactor looks at.
SLICE: Final = 2_000
PAUSE_S: Final = 0.005
#: An order is kept for this multiple of the time that its computation took, but at least KEPT_S and at most KEPT_MAX_S.
KEPT_FOR: Final = 100
KEPT_S: Final = 0.5
KEPT_MAX_S: Final = 10.0
#: Orders by the name of a column: the smallest value first, or the greatest with "-" before the name.
ORDERS: Final = ("age", "in state", "attempt", "region", "table", "state")


class TransitionSource(MasterProcess, Protocol):
    """The parts of the master that the list reads."""

    transition_times: TransitionTimes


class TransitionFigure(msgspec.Struct, omit_defaults=True):
    """A replica in transition. Times are those of this master's clock."""

    key: str
    table: str
    state: str
    #: When the transition began, or its present state if the begin is not known (`began_at_least`).
    began_ms: int
    began_at_least: bool
    since_ms: int
    deadline_ms: int = 0
    at_deadline: str = ""
    attempt: int = 0
    attempts_max: int = 0
    server: str = ""
    actor: str = ""
    step: str = ""
    headline: str = ""
    error: str = ""
    parked: bool = False


class TransitionPage(msgspec.Struct):
    """The transitions from number `first` on, of `total` in all. `age_ms`: how old the order is."""

    total: int
    first: int
    age_ms: int
    transitions: list[TransitionFigure]


class _Order(msgspec.Struct):
    """The keys of all replicas in transition in one order, and when that was."""

    keys: list[str]
    at_s: float
    until_s: float
    world: ClusterState


class TransitionList:
    """See the module docstring."""

    def __init__(self, reactor: Any, master: TransitionSource) -> None:
        self._reactor = reactor
        self._master = master
        self._orders: dict[str, _Order] = {}
        #: Orders that are being computed, shared by all browsers that request them.
        self._making: set[str] = set()
        self._pages: dict[tuple[str, int], tuple[float, TransitionPage]] = {}

    async def page(self, world: ClusterState, order: str, first: int) -> TransitionPage:
        """Return PAGE transitions from number `first` on. An unknown order is that by age, the oldest first."""
        order = order if order.removeprefix("-") in ORDERS else "-age"
        now_s = self._reactor.seconds()
        kept = self._pages.get((order, first))
        if kept is not None and now_s - kept[0] < KEPT_S:
            return kept[1]
        while order in self._making:
            await deferLater(self._reactor, PAUSE_S, lambda: None)
        now_s = self._reactor.seconds()
        ordered = self._orders.get(order)
        if ordered is None or ordered.world is not world or now_s >= ordered.until_s:
            self._making.add(order)
            try:
                ordered = await self._make_order(world, order)
            finally:
                self._making.discard(order)
        found = self._page(world, ordered, first)
        self._pages = {name: one for name, one in self._pages.items() if now_s - one[0] < KEPT_S}
        self._pages[order, first] = now_s, found
        return found

    async def _make_order(self, world: ClusterState, order: str) -> _Order:
        keys: list[str] = []
        spent_s = 0.0
        work = self._ordered(world, order)
        while True:
            began_s = self._reactor.seconds()
            some = next(work, None)
            spent_s += self._reactor.seconds() - began_s
            if some is None:
                break
            keys += some
            await deferLater(self._reactor, PAUSE_S, lambda: None)
        now_s = self._reactor.seconds()
        kept_s = min(KEPT_MAX_S, max(KEPT_S, KEPT_FOR * spent_s))
        self._orders = {name: one for name, one in self._orders.items() if one.world is world and now_s < one.until_s}
        found = self._orders[order] = _Order(keys, now_s, now_s + kept_s, world)
        return found

    def _ordered(self, world: ClusterState, order: str) -> Iterator[list[str]]:
        """Yield nothing for each slice that was looked at, then the keys in order, in slices."""
        name, is_reversed = order.removeprefix("-"), order.startswith("-")
        replicas = list(world.active.values())
        slices: list[list[tuple[Any, str]]] = []
        for at in range(0, len(replicas), SLICE):
            moving = [(one.seen_ms, one.transition) for one in replicas[at : at + SLICE] if one.transition is not None]
            slices.append(self._sorted(world, moving, name, is_reversed=is_reversed))
            yield []
        for members in self._of_tablets():
            slices.append(self._sorted(world, members, name, is_reversed=is_reversed))
            yield []
        merged = merge(*slices, reverse=is_reversed)
        while some := [key for _, key in islice(merged, SLICE)]:
            yield some

    def _sorted(
        self, world: ClusterState, moving: list[tuple[int, TransitionRecord]], name: str, *, is_reversed: bool
    ) -> list[tuple[Any, str]]:
        return sorted(((self._value(world, one, name), one[1].key) for one in moving), reverse=is_reversed)

    def _value(self, world: ClusterState, moving: tuple[int, TransitionRecord], name: str) -> int | str:
        """Return the value of a transition in the column `name`. Ages are negative times: an older one is greater."""
        seen_ms, record = moving
        match name:
            case "region":
                return record.key
            case "table":
                return _table_name(world, record.table_id)
            case "state":
                return _state(record)
            case "attempt":
                return record.attempt
            case "in state":
                return -(record.since_ms or seen_ms)
            case _:
                return -self._began(seen_ms, record)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _page(self, world: ClusterState, ordered: _Order, first: int) -> TransitionPage:
        first = max(0, min(first, len(ordered.keys) - 1) // PAGE * PAGE)
        active = self._master.active_master
        now_ms = self._master.now_ms()
        found = []
        for key in ordered.keys[first : first + PAGE]:
            replica = world.replicas.get(key)
            if replica is not None and replica.transition is not None:
                found.append(self._of_replica(replica, replica.transition, world, now_ms))
            elif active is not None and (member := active.keeper.transition_of(*parse_replica_key(key))) is not None:
                found.append(self._of_member(world, *member))
        age_ms = round(1000 * (self._reactor.seconds() - ordered.at_s))
        return TransitionPage(len(ordered.keys), first, age_ms, found)

    def _of_tablets(self) -> Iterator[list[tuple[int, TransitionRecord]]]:
        """Yield the transitions of tablets' members in slices, each with the time at which it was read."""
        active = self._master.active_master
        tablets = [] if active is None else list(active.keeper.keeper.tablets.values())
        for at in range(0, len(tablets), SLICE):
            work = (one for tablet in tablets[at : at + SLICE] for one in tablet.work.values())
            yield [(one.seen_ms, one.transition) for one in work if one.transition is not None]

    def _began(self, seen_ms: int, record: TransitionRecord) -> int:
        return self._master.transition_times.began_ms(record.key) or record.since_ms or seen_ms

    def _of_replica(
        self, replica: Replica, transition: TransitionRecord, world: ClusterState, now_ms: int
    ) -> TransitionFigure:
        explained = explain(replica, world, self._master.limits, now_ms)
        server = explained.server or explained.destination or explained.source
        return TransitionFigure(
            replica.key,
            explained.table,
            explained.standing,
            self._began(replica.seen_ms, transition),
            not self._master.transition_times.began_ms(replica.key),
            explained.since_ms,
            explained.deadline_ms,
            explained.at_deadline,
            explained.attempt,
            explained.attempts_max,
            "" if server is None else server.uuid,
            explained.actor.value,
            explained.step,
            explained.headline,
            explained.last_error,
            transition.parked,
        )

    def _of_member(self, world: ClusterState, seen_ms: int, record: TransitionRecord) -> TransitionFigure:
        server = record.destination or record.source
        return TransitionFigure(
            record.key,
            _table_name(world, record.table_id),
            _state(record),
            self._began(seen_ms, record),
            not self._master.transition_times.began_ms(record.key),
            record.since_ms or seen_ms,
            record.deadline_ms,
            attempt=record.attempt,
            attempts_max=self._master.limits.attempts_max,
            server="" if server is None else server.uuid,
            headline="a member of a tablet",
            error=record.last_error,
            parked=record.parked,
        )


def _table_name(world: ClusterState, table_id: str) -> str:
    table = world.tables.get(table_id)
    return "" if table is None else table.record.name


def _state(record: TransitionRecord) -> str:
    return "PARKED" if record.parked else record.state.value
