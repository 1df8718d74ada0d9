"""Bulk plans of one tenure: computation, records, and progress to the last region (RT-06 to RT-08, X8)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

import msgspec
from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from coord.client.ops import Create, Delete, SetData
from master.assignment.write_queue import Outcome, steps_of_plans
from master.catalog import store
from master.context import ActiveContext
from master.phases import BulkPlan
from master.plans.planner import Planner, snapshot_of
from master.plans.tablets import is_of_tablets, progress_of, snapshot_of_tablets
from regions.assign.orders import is_one_short_of_orders
from regions.balance.sizes import NOT_MEASURED, RegionSizes
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.state import ClusterState
from regions.plan import PlanError
from regions.records.forgotten import overdue
from regions.records.model import PlanRecord, PlanState
from regions.records.znodes import decode_plan, encode

log = Logger()

#: Plan records that stay in the store.
PLANS_KEPT: Final = 20
#: Placements that the assigner gets in one reactor turn: 100,000 of them took 3.4 s.
PLACED_AT_ONCE: Final = 400
#: Tables that the record of a bulk assignment names.
TABLES_NAMED: Final = 5


class BulkPlans:
    """The running plans, and the latest one for `rk status`."""

    def __init__(
        self, active_master: ActiveContext, planner: Planner, now_ms: Callable[[], int], token: Callable[[int], bytes]
    ) -> None:
        self._active_master = active_master
        self._planner = planner
        self._now_ms = now_ms
        self._token = token
        #: Returns the sizes of regions, measured as far as servers have reported them.
        self.sizes: Callable[[], RegionSizes] = lambda: NOT_MEASURED
        self.latest: BulkPlan | None = None
        self.running: dict[str, BulkPlan] = {}
        #: Plans of former masters that are not finished.
        self._unfinished: list[PlanRecord] = []
        #: Plans of former masters with no region left, whose records are being closed.
        self._closing: list[PlanRecord] = []
        #: One plan is computed at a time.
        self._lock = DeferredLock()

    def load(self, plans: list[PlanRecord]) -> None:
        """Take over the unfinished plans in the store."""
        self._unfinished = [plan for plan in plans if plan.state in (PlanState.PLANNING, PlanState.APPLYING)]

    async def make(self, request: fx.RequestPlan) -> None:
        """Compute a plan, store its record, and hand the placements to the assigner (RT-06 to RT-08)."""
        bulk = self._new(request)
        bulk.is_of_tablets = is_of_tablets(request.keys, self._active_master.world)
        plan_id = bulk.record.plan_id
        self.latest = self.running[plan_id] = bulk
        await self._lock.acquire()
        try:
            placements = await self._plan(bulk, request)
        finally:
            self._lock.release()
        if self._active_master.is_over:
            return
        bulk.stage = ""
        await self._active_master.retry_write(lambda: self._store(bulk))
        await self._hand_over(bulk, placements)

    async def _hand_over(self, bulk: BulkPlan, placements: dict[str, str]) -> None:
        """Give the placements to the assigner: tablets at once, shared regions part by part, as fast as store and
        servers can handle them.

        So no turn is long, and at most a few thousand regions are in transition at once, which bounds the memory of all
        processes. A plan gives neighbors to the same server, so each part is spread over all keys, and every server
        opens regions from the first part on. The assigner counts replicas as unplaced until their part has come.
        """
        bulk.is_handed_over = True
        keys, servers = bulk.keys, set(placements.values())
        parts = 1 if bulk.is_of_tablets else math.ceil(len(keys) / PLACED_AT_ONCE)
        for number in range(parts):
            if number:
                await self._active_master.room_for_placements(lambda: self._is_one_short_of_orders(servers))
            self._active_master.observe(ev.PlanReady(bulk.record.plan_id, keys[number::parts], placements))

    def _is_one_short_of_orders(self, uuids: Collection[str]) -> bool:
        assigner = self._active_master.assigner
        return is_one_short_of_orders(assigner.world, uuids, assigner.config.batch_max)

    async def _plan(self, bulk: BulkPlan, request: fx.RequestPlan) -> dict[str, str]:
        """Return the placements, or {} if no engine can compute a plan: the assigner then places regions one by one."""
        active_master = self._active_master
        active_master.phases.restart_from("plan")
        self._begin_phase(bulk, "plan")
        plan_id = bulk.record.plan_id
        world = active_master.assigner.world
        if is_of_tablets(request.keys, world):
            snapshot = snapshot_of_tablets(request.keys, world)
        else:
            wanted = [world.replicas[key] for key in request.keys if key in world.replicas]
            snapshot = snapshot_of(world, wanted, self.sizes())

        def progress(stage: str) -> None:
            bulk.stage = stage

        try:
            made = await self._planner.make(plan_id, active_master.fence.epoch, snapshot, bulk.record.engine, progress)
            placements = made.placements
            note = "; ".join(filter(None, (bulk.record.note, made.note)))
            bulk.change(
                engine=made.engine,
                digest=made.digest,
                fingerprint=made.fingerprint,
                note=note,
                state=PlanState.APPLYING,
            )
        except PlanError as error:
            log.warn("cannot compute a bulk plan, placing regions one by one: {error}", error=error)
            placements = {}
            bulk.change(engine="single", note=str(error), state=PlanState.APPLYING)
        if not active_master.is_over:
            self._begin_phase(bulk, "OFFLINE")
        return placements

    def _new(self, request: fx.RequestPlan) -> BulkPlan:
        """Return a new plan. An unfinished plan of a former master continues under its id (X8)."""
        unfinished = self._unfinished.pop() if self._unfinished else None
        engine, note = self._planner.engine_for(len(request.keys))
        epoch = self._active_master.fence.epoch
        if unfinished is not None:
            plan_id, note = unfinished.plan_id, f"begun under epoch {unfinished.epoch}"
        else:
            plan_id = f"{epoch:06d}-{self._token(3).hex()}"
        record = PlanRecord(
            plan_id,
            epoch,
            request.reason,
            engine=engine,
            regions=len(request.keys),
            note=note,
            created_ms=self._now_ms(),
        )
        return BulkPlan(record, request.keys, lambda: self._now_ms() / 1000)

    async def _store(self, bulk: BulkPlan) -> None:
        fence = self._active_master.fence
        path = fence.layout.plan(bulk.record.plan_id)
        exists = await fence.client.exists(path) is not None
        data = encode(bulk.record)
        await fence.write([SetData(path, data) if exists else Create(path, data)])

    def count(self, outcomes: list[Outcome]) -> None:
        """Count the progress of plans by writes of transitions that have committed."""
        if self.running:
            for plan_id, (begun, ended) in steps_of_plans(outcomes).items():
                bulk = self.running.get(plan_id)
                # A plan that continues under its id may still have transitions of the former master: do not count them.
                if bulk is not None and bulk.is_handed_over:
                    self._count(bulk, begun, ended)

    def _count(self, bulk: BulkPlan, begun: int, ended: int) -> None:
        total, offline, assigned = len(bulk.keys), bulk.offline, bulk.assigned
        bulk.offline += begun
        bulk.assigned += ended
        if offline < total <= bulk.offline:
            self._begin_phase(bulk, "open")
        if assigned < total <= bulk.assigned:
            self._finish(bulk)

    def finish_stuck(self) -> None:
        """Count the progress of tablets, and finish plans whose remaining regions are parked or disabled."""
        of_tablets = [one for one in self.running.values() if one.is_of_tablets]
        for bulk in of_tablets:
            self._count_tablets(bulk)
        if len(of_tablets) == len(self.running) or self._active_master.assigner.unplaced:
            return
        active = self._active_master.assigner.world.active.values()
        if all(one.transition is not None and one.transition.parked for one in active):
            for bulk in list(self.running.values()):
                if bulk.record.state is PlanState.APPLYING and bulk.is_handed_over and not bulk.is_of_tablets:
                    self._finish(bulk)

    def _count_tablets(self, bulk: BulkPlan) -> None:
        """Count the first members of tablets by the tablets' records: a plan ends when each tablet has a leader."""
        if not bulk.is_handed_over:
            return
        former = bulk.offline
        bulk.offline, bulk.assigned = progress_of(bulk.keys, self._active_master.world)
        if former < bulk.offline == len(bulk.keys):
            self._begin_phase(bulk, "open")
        if bulk.assigned == len(bulk.keys):
            self._finish(bulk)

    def _begin_phase(self, bulk: BulkPlan, name: str) -> None:
        """Begin a phase of a plan. The phases of the master are those of the latest plan."""
        bulk.phases.begin(name)
        if bulk is self.latest:
            self._active_master.phases.begin(name)

    def _finish(self, bulk: BulkPlan) -> None:
        active_master = self._active_master
        del self.running[bulk.record.plan_id]
        bulk.phases.end()
        if bulk is self.latest:
            active_master.phases.end()
        bulk.change(state=PlanState.DONE, assigned=bulk.assigned, finished_ms=self._now_ms())
        log.info(
            "plan {plan} has been carried out: {count} replicas, {phases}",
            plan=bulk.record.plan_id,
            count=bulk.assigned,
            phases=", ".join(f"{phase.name} {phase.seconds:.2f} s" for phase in bulk.phases.report()),
        )
        world = active_master.world
        run = active_master.runs.record(
            "assignment",
            bulk.phases.report(),
            at_ms=self._now_ms(),
            servers=len(world.servers),
            replicas=len(world.replicas),
            planned=bulk.record.regions,
            engine=bulk.record.engine,
            tables=_tables_of(bulk, world),
            plan_id=bulk.record.plan_id,
        )
        active_master.persist(lambda: self._store(bulk))
        active_master.persist(lambda: active_master.runs.add(run))

    async def prune(self, plans: list[PlanRecord]) -> None:
        """Close the records of former masters' plans with no region left, and delete old records. May be repeated."""
        fence = self._active_master.fence
        # Plans that are requested from now on get new ids.
        self._closing += self._unfinished
        self._unfinished.clear()
        while self._closing:
            record = msgspec.structs.replace(
                self._closing[-1],
                state=PlanState.DONE,
                note="finished by later masters",
                finished_ms=self._now_ms(),
            )
            await fence.write([SetData(fence.layout.plan(record.plan_id), encode(record))])
            self._closing.pop()
        await self._delete_old([plan for plan in plans if not plan.by_moves or plan.finished_ms])

    async def forget(self) -> None:
        """Delete old records of plans that have ended: each created table has one. May be repeated."""
        fence = self._active_master.fence
        found = await store.read_all(fence.client, await store.list_all(fence.client, [fence.layout.plans]))
        plans = [plan for plan, _ in store.decoded(found, decode_plan)]
        await self._delete_old([plan for plan in plans if plan.finished_ms and plan.plan_id not in self.running])

    async def _delete_old(self, ended: list[PlanRecord]) -> None:
        fence = self._active_master.fence
        for plan_id in overdue([(plan.created_ms, plan.plan_id) for plan in ended], None, PLANS_KEPT):
            path = fence.layout.plan(plan_id)
            if await fence.client.exists(path) is not None:
                await fence.write([Delete(path)])


def _tables_of(bulk: BulkPlan, world: ClusterState) -> tuple[str, ...]:
    """Return the names of the first tables of a plan, sorted."""
    ids = {key.rpartition(".")[0] for key in bulk.keys}
    names = [world.tables[table_id].record.name for table_id in ids if table_id in world.tables]
    return tuple(sorted(names)[:TABLES_NAMED])
