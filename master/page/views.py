"""Data that the page reads when one of its views is opened: regions, tables, tablets, plans, runs, drills, alarms.

A view comes from the master's memory if the data is there, else from the store. Answers of the store are kept for
KEPT_S, so that many browsers cost no more than one. All answers are bounded, and have the number of omitted entries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.task import deferLater

from coord.client.session import ZkClient
from coord.errors import CoordError, NoNode
from master.api.prepared import Prepared
from master.api.reads import ReadView, read, table_summary
from master.catalog import store
from master.page.feed import Feed, PageSource
from master.page.hiding import KeyHider
from master.page.transitions import TransitionList
from regions import messages as ms
from regions.balance.sizes import NOT_MEASURED
from regions.cluster.entities import Region, Table
from regions.cluster.history import StepLog, parse_segment, unpack
from regions.diagnose.explain import explain
from regions.diagnose.live.check_log import CheckLog
from regions.page.curves import SERIES
from regions.records.znodes import Layout, decode_alarm, decode_drill, decode_fsck, decode_plan, decode_run
from regions.transitions.entries import HistoryEntry

#: Time for which an answer of the store is kept.
KEPT_S: Final = 1.0
#: Records of one kind that are listed, the latest ones.
RECORDS_MAX: Final = 100
#: Regions of a table on one page.
REGIONS_PAGE: Final = 200
#: Steps of one region's life, the latest ones.
LIFE_MAX: Final = 500
#: Segments of the history that are searched for one region, the latest ones.
SEGMENTS_SEARCHED_MAX: Final = 200
#: Maximum number of searches of the history that wait for the one under way.
SEARCHES_WAITING_MAX: Final = 8
#: Pause after each segment: the reactor has other work.
SEGMENT_PAUSE_S: Final = 0.005


class NotFound(Exception):  # noqa: N818 - the name of the status
    """The view, the region or the table does not exist. The text is a sentence for people."""


class Busy(CoordError):  # noqa: N818 - a state
    """The view cannot be read now."""


class AuditSource(Protocol):
    """The auditor as the views read it."""

    @property
    def checks(self) -> CheckLog:
        """Time and result of each check."""


class ViewSource(PageSource, Protocol):
    """The parts of the master that the views read."""

    @property
    def auditor(self) -> AuditSource | None:
        """The auditor of the master's session; None before there is one."""

    @property
    def client(self) -> ZkClient:
        """The master's session with the store."""


def _found_table(view: ReadView, name: str) -> Table:
    table = view.world.names.get(name)
    if table is None:
        raise NotFound(f"There is no table {name[:80]!r}.")
    return table


class Views:
    """Reads views by name; see the module docstring."""

    def __init__(
        self, reactor: Any, master: ViewSource, layout: Layout, feed: Feed, hider: KeyHider | None = None
    ) -> None:
        self._hider = hider
        self._reactor = reactor
        self._master = master
        self._layout = layout
        self._feed = feed
        self._kept: dict[str, tuple[float, object]] = {}
        self._searches = DeferredLock()
        self._moving = TransitionList(reactor, master)
        self._prepared = Prepared(master.now_ms)
        self._views: dict[str, Callable[[Mapping[str, str]], Awaitable[object]]] = {
            "curves": self._curves,
            "region": self._region,
            "life": self._life,
            "transitions": self._transitions,
            "table": self._table,
            "tablets": self._tablets,
            "plans": self._plans,
            "runs": self._runs,
            "drills": self._drills,
            "drill": self._drill,
            "alarms": self._alarms,
        }

    def _pause(self) -> Deferred[None]:
        """Wait for the next turn."""
        return deferLater(self._reactor, 0)

    async def read(self, view: str, given: Mapping[str, str]) -> object:
        """Return a view. Raise NotFound, or CoordError if the store or this master cannot answer now."""
        found = self._views.get(view)
        if found is None:
            raise NotFound(f"There is no view {view[:40]!r}.")
        answer = await found(given)
        return answer if self._hider is None else self._hider.value(answer)

    # --- from memory --------------------------------------------------------------------------------------------------

    async def _curves(self, _given: Mapping[str, str]) -> object:
        first, values = self._feed.curves.read()
        return {"first": first, "series": dict(zip(SERIES, values, strict=True))}

    def _view(self) -> ReadView:
        world, master = self._feed.world(), self._master
        if world is None:
            raise Busy("This master has no cluster state yet: it is becoming active, or still reads its mirror.")
        self._prepared.order.keep_only(world)
        active = master.active_master
        if active is None:
            return ReadView(world, master.limits, StepLog(0), master.now_ms())
        assigner = active.assigner
        return ReadView(world, assigner.config, assigner.history, master.now_ms(), active.keeper, NOT_MEASURED)

    async def _region(self, given: Mapping[str, str]) -> object:
        """Return a region: its record, what each replica waits for, and its neighbors in the table."""
        region_id = given.get("id", "")
        _, region = self._found_region(region_id)
        order = await self._prepared.put_in_order(region.table, self._pause)
        view, region = self._found_region(region_id)  # this master may have become active, or a standby, meanwhile
        before, after = order.neighbors(region)
        explained = [explain(one, view.world, view.config, view.now_ms) for one in region.replicas]
        tablet = None
        if region.record.is_tablet and self._master.active_master is not None:
            tablet = read(view, ms.ShowTablet(region_id))
        return {
            "record": region.record,
            "table": region.table.record.name,
            "replicas": explained,
            "before": "" if before is None else before.record.region_id,
            "after": "" if after is None else after.record.region_id,
            "tablet": tablet,
        }

    def _found_region(self, region_id: str) -> tuple[ReadView, Region]:
        """Return a region with the present view. Raise NotFound."""
        view = self._view()
        region = view.world.regions.get(region_id)
        if region is None:
            raise NotFound(f"There is no region {region_id[:80]!r}: it was replaced, or its table was deleted.")
        return view, region

    async def _table(self, given: Mapping[str, str]) -> object:
        """Return a table with a page of its regions from `from` on, the `next` of an earlier page."""
        view, name, start = self._view(), given.get("name", ""), given.get("from", "")
        if self._hider is not None:  # then the browser knows a region's id, not its key
            first = view.world.regions.get(start)
            start = "" if first is None else first.record.start_key
        table = _found_table(view, name)
        size = await self._prepared.of_table(table, view.sizes, self._pause)
        order = await self._prepared.put_in_order(table, self._pause)
        view = self._view()._replace(order=order)
        table = _found_table(view, name)
        regions = read(
            view,
            ms.DescribeTable(name, start_key=start, limit=REGIONS_PAGE + 1),
        )
        assert isinstance(regions, ms.Regions), "DescribeTable is answered with regions"
        more = regions.regions[REGIONS_PAGE:]
        return {
            "summary": table_summary(table, view, size),
            "explained": read(view, ms.ExplainTable(name)),
            "regions": regions.regions[:REGIONS_PAGE],
            "next": "" if not more else more[0].region.start_key if self._hider is None else more[0].region.region_id,
        }

    async def _transitions(self, given: Mapping[str, str]) -> object:
        """Return a page of the replicas in transition, from number `first` on, in the order `order`."""
        first = given.get("first", "")
        number = int(first) if first.isascii() and first.isdecimal() and len(first) < 10 else 0
        return await self._moving.page(self._view().world, given.get("order", ""), number)

    async def _tablets(self, given: Mapping[str, str]) -> object:
        if self._master.active_master is None:
            raise Busy("Only the active master knows members, roles and lag: a standby gets no reports of tablets.")
        return read(self._view(), ms.ListTablets(after=given.get("after", ""), limit=REGIONS_PAGE))

    # --- from the store -----------------------------------------------------------------------------------------------

    async def _records(self, directory: str, decode: Callable[[bytes, str], Any]) -> tuple[list[Any], int]:
        """Return the latest records of a directory by name, and the number of older ones."""
        client = self._master.client
        try:
            names = sorted(await client.children(directory))
        except NoNode:
            return [], 0
        shown = names[-RECORDS_MAX:]
        found = store.decoded(await store.read_all(client, [f"{directory}/{one}" for one in shown]), decode)
        return [record for record, _ in found], len(names) - len(shown)

    async def _once(self, name: str, make: Callable[[], Awaitable[object]]) -> object:
        """Return the result of `make` if it was called within the last KEPT_S; otherwise call it."""
        kept = self._kept.get(name)
        if kept is None or self._reactor.seconds() - kept[0] > KEPT_S:
            self._kept[name] = kept = (self._reactor.seconds(), await make())
        return kept[1]

    async def _plans(self, _given: Mapping[str, str]) -> object:
        async def make() -> object:
            plans, older = await self._records(self._layout.plans, decode_plan)
            return {"plans": sorted(plans, key=lambda one: one.created_ms), "older": older}

        active = self._master.active_master
        latest = None if active is None else active.bulk_plans.latest
        found = await self._once("plans", make)
        return {
            "kept": found,
            "latest": None if latest is None else latest.report(),
            "balancer": "" if active is None else active.balancing.state_words(),
            "rounds": [] if active is None else list(active.balancing.rounds.rounds),
        }

    async def _runs(self, _given: Mapping[str, str]) -> object:
        async def make() -> object:
            runs, older = await self._records(self._layout.runs, decode_run)
            return {"runs": sorted(runs, key=lambda one: one.at_ms), "older": older}

        return await self._once("runs", make)

    async def _drills(self, _given: Mapping[str, str]) -> object:
        async def make() -> object:
            drills, older = await self._records(self._layout.drills, decode_drill)
            brief = [msgspec.structs.replace(one, events=(), report=None) for one in drills]
            return {"drills": sorted(brief, key=lambda one: one.began_ms), "older": older}

        return await self._once("drills", make)

    async def _drill(self, given: Mapping[str, str]) -> object:
        drill_id = given.get("id", "")
        if not drill_id or "/" in drill_id or len(drill_id) > 200:
            raise NotFound("Name a drill by its id.")
        found = await self._record(self._layout.drill(drill_id), decode_drill)
        if found is None:
            raise NotFound(f"There is no drill {drill_id[:80]!r}: the latest 50 are kept.")
        return found

    async def _record(self, path: str, decode: Callable[[bytes, str], Any]) -> Any:
        """Return the record at a path, None if there is no readable one."""
        found = store.decoded(await store.read_all(self._master.client, [path]), decode)
        return found[0][0] if found else None

    async def _alarms(self, _given: Mapping[str, str]) -> object:
        async def make() -> object:
            alarms, older = await self._records(self._layout.alarms, decode_alarm)
            fsck = await self._record(self._layout.fsck, decode_fsck)
            return {"alarms": sorted(alarms, key=lambda one: one.at_ms), "older": older, "fsck": fsck}

        auditor = self._master.auditor
        return {
            "kept": await self._once("alarms", make),
            "checks": [] if auditor is None else auditor.checks.figures(),
            "role": self._master.role,
        }

    async def _life(self, given: Mapping[str, str]) -> object:
        """Return the latest steps of one region in the history, oldest first.

        One search at a time, one segment in a turn: the newest segments first, until there are enough steps.
        """
        if len(self._searches.waiting) >= SEARCHES_WAITING_MAX:
            raise Busy("Many searches of the history are under way: try again in a moment.")
        async with self._searches:
            return await self._search(given.get("id", ""))

    async def _search(self, region_id: str) -> object:
        client, directory = self._master.client, self._layout.history
        names = [one for one in sorted(await client.children(directory)) if parse_segment(one) is not None]
        found: list[HistoryEntry] = []
        searched = 0
        for name in reversed(names[-SEGMENTS_SEARCHED_MAX:]):
            for _, data, _ in await store.read_all(client, [f"{directory}/{name}"]):
                found += [one for one in reversed(unpack(data)) if one.region_id == region_id]
            searched += 1
            if len(found) >= LIFE_MAX:
                break
            await deferLater(self._reactor, SEGMENT_PAUSE_S, lambda: None)
        found = found[:LIFE_MAX]
        found.sort(key=lambda one: one.at_ms)
        steps = [
            {
                "at_ms": one.at_ms,
                "key": one.key,
                "actor": one.actor,
                "before": one.before,
                "after": one.after,
                "cause": one.cause,
                "server": one.server,
                "epoch": one.epoch,
                "attempt": one.attempt,
                "detail": one.detail,
                "origin": one.origin,
                "cause_id": one.cause_id,
            }
            for one in found
        ]
        return {"steps": steps, "is_complete": searched == len(names)}
