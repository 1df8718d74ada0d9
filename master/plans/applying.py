"""Plans of operators, carried out by moves of open regions (N4, FW-03, X8).

The client announces a plan and then sends it in parts. Each part becomes one batch of moves below `/moves`. One fenced
multi writes the batch and the plan's record, which counts the parts. So the client may send a part again after a lost
reply, to this master or the next one. Each move is checked against the cluster state: a replica that has moved since
the plan was computed, or whose new server cannot take it, is skipped and counted with the reason.

The batches are then carried out (`regions/assign/moves.py`), even after a failover. Moves of tablets' members become
intents of their tablets (`master/tablets/plan_moves.py`). The plan is done when all its parts are in the store, none of
its moves is pending, and no transition carries its id. The balancer waits until then. One plan is applied at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from coord.client.ops import Create, Delete, SetData, WriteOp
from coord.errors import MultiFailed, NodeExists, NoNode
from coord.rpc.server import RpcError
from master.catalog import store
from master.catalog.lookup import is_tablet
from master.causes import acting
from master.context import ActiveContext
from regions import messages as ms
from regions.assign.placement import objection_to
from regions.cluster import events as ev
from regions.records.intents import TabletMove
from regions.records.model import Move, MoveBatch, PlanRecord, PlanState
from regions.records.replica_key import replica_key
from regions.records.znodes import encode

log = Logger()

#: Moves that one plan may have.
MOVES_MAX: Final = 200_000
#: A plan is aborted if the client has not sent the next part for this long.
HANDOVER_MS: Final = 60_000
#: Period of writing the progress into the plan's record.
PROGRESS_MS: Final = 2_000
_PLAN_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Applying:
    """The plan that is being applied, if there is one."""

    def __init__(self, active_master: ActiveContext, now_ms: Callable[[], int]) -> None:
        self._active_master = active_master
        self._now_ms = now_ms
        self._record: PlanRecord | None = None
        self._last_part_ms = 0
        self._last_progress_ms = 0
        #: Serializes requests. `tick` does not write the record while a request holds the lock.
        self._lock = DeferredLock()

    def load(self, plans: list[PlanRecord]) -> None:
        """Take over the plan that a former master was applying."""
        running = [plan for plan in plans if plan.by_moves and plan.state is PlanState.APPLYING]
        self._record = max(running, key=lambda plan: plan.created_ms) if running else None
        self._last_part_ms = self._now_ms()

    def running(self) -> str:
        """Return the id of the plan that is being applied, "" for none."""
        return "" if self._record is None else self._record.plan_id

    # --- requests ---------------------------------------------------------------------------------------------------

    async def begin(self, request: ms.BeginPlan) -> ms.PlanReport:
        """Record a plan whose parts will follow. Raise RpcError."""
        fence = self._active_master.fence
        if not _PLAN_ID.fullmatch(request.plan_id) or request.plan_id in (".", ".."):
            raise RpcError(
                ms.BAD_REQUEST, f"{request.plan_id!r} is no valid plan name: use letters, digits, '.', '_' and '-'"
            )
        if not 0 <= request.moves <= MOVES_MAX or request.parts < 0:
            raise RpcError(ms.BAD_REQUEST, f"{request.moves} moves; a plan has at most {MOVES_MAX}")
        if request.epoch != fence.epoch:
            raise RpcError(
                ms.BAD_REQUEST,
                f"the plan was checked under epoch {request.epoch}, and another master is active now: check it again",
            )
        await self._lock.acquire()
        try:
            return await self._begin(request)
        finally:
            self._lock.release()

    async def _begin(self, request: ms.BeginPlan) -> ms.PlanReport:
        fence = self._active_master.fence
        if self.running() not in ("", request.plan_id):
            raise RpcError(ms.BAD_REQUEST, f"plan {self.running()} is being applied; abort it, or wait for its end")
        if self._record is not None:
            await self._abort(self._record, "restarted by an operator")
        path = fence.layout.plan(request.plan_id)
        record = PlanRecord(
            request.plan_id,
            fence.epoch,
            "apply",
            PlanState.APPLYING,
            request.engine,
            request.fingerprint,
            request.digest,
            request.moves,
            note=request.note,
            created_ms=self._now_ms(),
            by_moves=True,
            parts=request.parts,
        )
        exists = await fence.client.exists(path) is not None
        await fence.write([SetData(path, encode(record)) if exists else Create(path, encode(record))])
        self._record = record
        self._last_part_ms = self._last_progress_ms = self._now_ms()
        log.info("applying plan {plan} of an operator: {moves} moves", plan=record.plan_id, moves=record.regions)
        return self._report(record)

    async def add(self, request: ms.AddPlanMoves) -> ms.PlanReport:
        """Persist one part and begin its moves. Raise RpcError."""
        await self._lock.acquire()
        try:
            return await self._add(request)
        finally:
            self._lock.release()

    async def _add(self, request: ms.AddPlanMoves) -> ms.PlanReport:
        record = self._record
        if record is None or record.plan_id != request.plan_id:
            raise RpcError(ms.NOT_FOUND, f"plan {request.plan_id} is not being applied: it has ended, or was aborted")
        self._last_part_ms = self._now_ms()
        if request.part < record.parts_done:
            return self._report(record)
        if request.part != record.parts_done or request.part >= record.parts:
            raise RpcError(
                ms.BAD_REQUEST, f"expected part {record.parts_done} of {record.parts}, received part {request.part}"
            )
        if len(request.moves) > store.MOVES_PER_BATCH:
            raise RpcError(ms.BAD_REQUEST, f"{len(request.moves)} moves; a part has at most {store.MOVES_PER_BATCH}")
        skipped = dict(record.skipped)
        moves: list[Move] = []
        members: list[tuple[str, TabletMove]] = []
        for planned in request.moves:
            found = self._move(planned, record.plan_id)
            if isinstance(found, Move):
                moves.append(found)
            elif isinstance(found, str):
                skipped[found] = skipped.get(found, 0) + 1
            else:
                members.append(found)
        handed = record.handed + len(moves) + len(members)
        changed = msgspec.structs.replace(record, parts_done=record.parts_done + 1, handed=handed, skipped=skipped)
        # Write them before the part counts as received: a repeated part requests the same moves of members.
        await self._active_master.retry_write(lambda: self._active_master.keeper.plan_moves.accept(members))
        fence = self._active_master.fence
        move_id = f"{record.plan_id}.{record.created_ms}.{request.part:05d}"
        batch = MoveBatch(move_id, tuple(moves), "plan", record.plan_id, fence.epoch, self._now_ms(), acting())
        await self._active_master.retry_write(lambda: self._put(changed, batch))
        self._record = changed
        self._active_master.observe(ev.MovesAccepted(batch))
        return self._report(changed)

    async def _put(self, record: PlanRecord, batch: MoveBatch) -> None:
        """Write the record and its batch in one multi. If the batch exists (a lost reply), write only the record."""
        fence = self._active_master.fence
        ops: list[WriteOp] = [SetData(fence.layout.plan(record.plan_id), encode(record))]
        if batch.moves:
            ops.append(Create(fence.layout.move_batch(batch.move_id), encode(batch)))
        try:
            await fence.write(ops)
        except MultiFailed as error:
            if not isinstance(error.error, NodeExists):
                raise
            await fence.write(ops[:1])

    def _move(self, planned: ms.PlannedMove, plan_id: str) -> Move | tuple[str, TabletMove] | str:
        """Return the move of a replica, or of a tablet's member with the tablet's id, or the reason for skipping it."""
        world = self._active_master.assigner.world
        replica = world.replicas.get(replica_key(planned.region_id, planned.replica))
        if is_tablet(world, planned.region_id):
            return self._active_master.keeper.plan_moves.move(planned, plan_id)
        if replica is None:
            return "the region is gone"
        if not replica.wants_open:
            return "the region is to stay closed"
        if replica.transition is not None:
            return "in transition"
        if replica.home is None or replica.open_on is None or replica.home.uuid != planned.source:
            return "no longer where the plan found it"
        server = world.servers.get(planned.destination)
        if server is None:
            return "its new server is gone"
        if server.draining:
            return "its new server is being drained"
        peers, _ = world.peers(replica)
        against = objection_to(server, replica, peers)
        return against or Move(replica.key, replica.home, planned.destination)

    async def abort(self, plan_id: str = "", note: str = "aborted by an operator") -> ms.PlanReport:
        """Abort the plan: cancel its pending moves in the store in one multi, then in memory. Raise RpcError."""
        await self._lock.acquire()
        try:
            record = self._record
            if record is None or plan_id not in ("", record.plan_id):
                raise RpcError(
                    ms.NOT_FOUND, f"plan {plan_id} is not being applied" if plan_id else "no plan is applied"
                )
            return await self._abort(record, note)
        finally:
            self._lock.release()

    async def _abort(self, record: PlanRecord, note: str) -> ms.PlanReport:
        ended = self._ended(record, PlanState.ABORTED, note)
        await self._active_master.retry_write(lambda: self._withdraw(ended))
        await self._active_master.retry_write(lambda: self._active_master.keeper.plan_moves.withdraw(record.plan_id))
        self._record = None
        report = self._report(ended)
        self._active_master.observe(ev.MovesWithdrawn(record.plan_id))
        log.info("plan {plan} is aborted: {note}", plan=record.plan_id, note=note)
        return report

    async def _withdraw(self, record: PlanRecord) -> None:
        fence = self._active_master.fence
        while True:
            batches = await store.load_moves(fence.client, fence.layout)
            ops: list[WriteOp] = [SetData(fence.layout.plan(record.plan_id), encode(record))]
            ops += [Delete(fence.layout.move_batch(one.move_id)) for one in batches if one.plan_id == record.plan_id]
            try:
                await fence.write(ops)
            except MultiFailed as error:
                if isinstance(error.error, NoNode):
                    continue  # a batch was finished and deleted at the same time
                raise
            return

    # --- progress ---------------------------------------------------------------------------------------------------

    def give_up(self, note: str) -> None:
        """Record the plan as aborted. Its batches are gone, or the assigner cancels them."""
        record, self._record = self._record, None
        if record is not None:
            self._store(self._ended(record, PlanState.ABORTED, note))

    def tick(self) -> None:
        """Finish a completed plan, abort a plan whose parts have stopped coming, or record the progress."""
        record, now = self._record, self._now_ms()
        if record is None or self._lock.locked:
            return
        left = sum(self._left(record.plan_id))
        if left == 0 and record.parts_done >= record.parts:
            self._record = None
            ended = self._ended(record, PlanState.DONE, record.note)
            log.info("plan {plan} has been applied: {count} moves", plan=ended.plan_id, count=ended.handed)
            self._store(ended)
        elif left == 0 and now - self._last_part_ms > HANDOVER_MS:
            self.give_up(f"the client sent only {record.parts_done} of {record.parts} parts: rk plan resume")
        elif now - self._last_progress_ms >= PROGRESS_MS and record.assigned != record.handed - left:
            self._last_progress_ms = now
            self._record = msgspec.structs.replace(record, assigned=record.handed - left)
            self._store(self._record)

    def _ended(self, record: PlanRecord, state: PlanState, note: str) -> PlanRecord:
        left = sum(self._left(record.plan_id)) if state is PlanState.ABORTED else 0
        return msgspec.structs.replace(
            record, state=state, note=note, assigned=record.handed - left, finished_ms=self._now_ms()
        )

    def _store(self, record: PlanRecord) -> None:
        fence = self._active_master.fence
        self._active_master.persist(lambda: fence.write([SetData(fence.layout.plan(record.plan_id), encode(record))]))

    def _left(self, plan_id: str) -> tuple[int, int]:
        """Return how many moves of the plan have not begun, and how many are in progress."""
        waiting, moving = self._active_master.assigner.plan_left(plan_id)
        members = self._active_master.keeper.plan_moves.left(plan_id)
        return waiting + members[0], moving + members[1]

    def _report(self, record: PlanRecord) -> ms.PlanReport:
        return ms.PlanReport(record, *self._left(record.plan_id))
