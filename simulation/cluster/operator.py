"""The operator of a simulated cluster: sends requests during the faults and checks the answers.

The operator sends RPC requests as `rk` does, with time-outs and unknown outcomes. Each answer is compared with the
store at the moment it arrives (OC-08).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred

from coord.client.session import SessionState, ZkClient
from coord.errors import CoordError, NodeExists, NoNode
from coord.rpc.client import RpcClient
from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import PlanState, TableIntent, TableRecord, TableState, TransitionRecord
from regions.records.znodes import Layout
from simulation.checks.observer import Observer
from simulation.cluster.machines import RPC_PORT, MasterMachine, ServerMachine
from simulation.cluster.region_work import SIMULATED
from simulation.engine.process import Process

CALL_S: Final = 8.0
PAUSE_S: Final = 0.15
TABLES_MAX: Final = 4


class Operator:
    """An operator at work. `is_idle` is True while no request of it is unanswered."""

    def __init__(
        self,
        process: Process,
        layout: Layout,
        store: str,
        observer: Observer,
        masters: list[MasterMachine],
        servers: list[ServerMachine],
    ) -> None:
        self._process = process
        self._chance = process.chance
        self._layout = layout
        self._observer = observer
        self._masters = masters
        self._servers = servers
        self._clients = [RpcClient(process.reactor, one.host, RPC_PORT, replies=ms.MasterReply) for one in masters]
        self._next = 0
        self._zk = ZkClient(process.reactor, store, 10_000, name="operator", clock=process, rng=process.chance)
        self._tables = 0
        self._under_way = 0
        #: Changes of each table's intent, changes in progress, and tables that a lost request may still change.
        self._changes: dict[str, int] = {}
        self._changing: dict[str, int] = {}
        self._unsure: set[str] = set()
        self.what: dict[str, int] = {}
        #: Destination of each (region, replica) in the plans that were applied, by plan.
        self.planned: dict[str, dict[tuple[str, int], str]] = {}

    @property
    def is_idle(self) -> bool:
        """Return True if no request is unanswered."""
        return self._under_way == 0

    def start(self) -> None:
        """Connect to the store for the operations on znodes."""
        self._process.turn(self._start)

    def _start(self) -> None:
        self._zk.on_state(self._session_changed)
        self._zk.connect().addErrback(lambda _: None)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._process.reactor.callLater(0, lambda: self._zk.connect().addErrback(lambda _: None))

    # --- requests -----------------------------------------------------------------------------------------------------

    async def ask(self, message: msgspec.Struct, patience_s: float = 20.0) -> Any:
        """Return the active master's answer. Raise RpcError if it rejects the request or no master answers."""
        until = self._process.monotonic_s() + patience_s
        at = self._next
        while True:
            client = self._clients[at % len(self._clients)]
            try:
                answer = await client.call(message, CALL_S)
                self._next = at
                return answer
            except RpcError as error:
                is_lost = error.is_outcome_unknown
                if is_lost or error.code not in (ms.NOT_LEADER, ms.BUSY, "unreachable"):
                    raise
                if self._process.monotonic_s() > until:
                    raise
            at += 1
            await self.pause(PAUSE_S)

    def pause(self, seconds: float) -> Deferred[None]:
        """Return a Deferred that fires after `seconds`."""
        pause: Deferred[None] = Deferred()
        self._process.reactor.callLater(seconds, pause.callback, None)
        return pause

    def do(self, what: str, act: Callable[[], Any]) -> None:
        """Start an operation. Failures of operations are expected and only noted."""
        self._under_way += 1
        self.what[what] = self.what.get(what, 0) + 1
        self._process.timeline.note(f"operator: {what}")

        def ended(result: Any) -> None:
            self._under_way -= 1
            failure = getattr(result, "value", None)
            if isinstance(failure, CoordError):
                self._process.timeline.note(f"operator: {what}: {failure}")
            elif failure is not None:
                self._fault(result)

        def begin() -> None:
            ensureDeferred(act()).addBoth(ended)

        self._process.turn(begin)

    def _fault(self, failure: Any) -> None:
        self._observer.violations.append(f"operator: {failure.value!r}")
        self._process.timeline.note(f"operator: {failure.getTraceback()}")

    # --- operations ---------------------------------------------------------------------------------------------------

    def create(self, regions: int, replication: int = 1, *, system: bool = False) -> None:
        """Create a table."""
        self._tables += 1
        name = f"table{self._tables}"
        self.do(f"create {name} with {regions} regions", lambda: self._create(name, regions, replication, system))

    async def _create(self, name: str, regions: int, replication: int, system: bool) -> None:
        splits = [f"{number:04d}" for number in range(1, regions)]
        try:
            answer = await self.ask(
                ms.CreateTable(name, splits, replication=replication, system=system, kind=SIMULATED)
            )
        except RpcError as error:
            if error.code != ms.ALREADY_EXISTS:
                raise
            return  # an earlier attempt created the table; its reply was lost
        table_id = answer.tables[0].table.table_id
        shadow = self._observer.shadow
        if shadow.names.get(name) != table_id or table_id not in shadow.tables:
            self._observer.violated(
                f"OC-08: the creation of table {name} was acknowledged but the store has no such table"
            )

    def random_table(self) -> TableRecord | None:
        """Return a random table, or None if there is none."""
        tables = list(self._observer.shadow.tables.values())
        return self._chance.pick(tables) if tables else None

    def switch(self) -> None:
        """Enable or disable a random table."""
        table = self.random_table()
        if table is not None:
            intent = self._chance.pick((TableIntent.ENABLED, TableIntent.DISABLED))
            self.set_intent(table.name, intent)

    def set_intent(self, name: str, intent: TableIntent) -> None:
        """Set the intent of a table."""
        self.do(f"set {name} {intent.value}", lambda: self._set_intent(name, intent))

    async def _set_intent(self, name: str, intent: TableIntent) -> None:
        is_alone = not self._changing.get(name)
        mine = self._changes[name] = self._changes.get(name, 0) + 1
        self._changing[name] = self._changing.get(name, 0) + 1
        try:
            await self.ask(ms.SetTableIntent(name, intent))
        except RpcError:
            self._unsure.add(name)
            raise
        finally:
            self._changing[name] -= 1
        if name in self._unsure or not is_alone or self._changes[name] != mine:
            return
        shadow = self._observer.shadow
        found = shadow.tables.get(shadow.names.get(name, ""))
        if found is None or found.intent is not intent:
            self._observer.violated(
                f"FW-04: {intent.value} was acknowledged for table {name}; the store does not have it"
            )

    def delete_and_restore(self, pause_s: float) -> None:
        """Delete a table and restore it after about the time for which its rows are kept."""
        table = self.random_table()
        if table is not None and table.state is not TableState.REMOVED:
            self.do(f"delete {table.name} for a while", lambda: self._delete_and_restore(table, pause_s))

    async def _delete_and_restore(self, table: TableRecord, pause_s: float) -> None:
        await self.ask(ms.DeleteTable(table.table_id))
        await self.pause(self._chance.between(0, 2 * pause_s))
        await self.ask(ms.UndeleteTable(table.table_id))

    def move(self) -> None:
        """Move a random region to a random server, or let the master choose."""
        regions = list(self._observer.shadow.regions.values())
        if not regions:
            return
        region = self._chance.pick(regions)
        server = self._chance.pick([None, *self._servers])
        destination = "" if server is None else server.uuid
        replica = 0
        self.do(
            f"move {region.region_id} to {destination or 'any'}",
            lambda: self.ask(ms.MoveRegion(region.region_id, replica, destination), 3.0),
        )

    def split(self) -> None:
        """Split a random region."""
        found = [one for one in self._observer.shadow.regions.values() if not one.is_replaced]
        if found:
            region_id = self._chance.pick(found).region_id
            wait_ms = self._chance.pick((0, 5_000))
            self.do(f"split {region_id}", lambda: self.ask(ms.SplitRegion(region_id, wait_ms=wait_ms), 3.0))

    def merge(self) -> None:
        """Merge a random region with its right neighbor."""
        regions = [one for one in self._observer.shadow.regions.values() if not one.is_replaced]
        pairs = [
            (one.region_id, two.region_id)
            for one in regions
            for two in regions
            if one.table_id == two.table_id and one.end_key and one.end_key == two.start_key
        ]
        if pairs:
            pair = self._chance.pick(pairs)
            self.do(f"merge {' and '.join(pair)}", lambda: self.ask(ms.MergeRegions(*pair), 3.0))

    def apply(self, plan_id: str, parts: int = 10) -> None:
        """Apply a plan that moves every open replica to the next server."""
        moves = self._rotation()
        if moves:
            self.do(f"apply {plan_id}, {len(moves)} moves", lambda: self._apply(plan_id, moves, parts))

    def _rotation(self) -> list[ms.PlannedMove]:
        uuids = sorted(server.uuid for server in self._servers)
        moves = []
        for region_id, region in sorted(self._observer.shadow.regions.items()):
            homes = [one for one in region.replicas if one.uuid in uuids and one.start_code is not None]
            if len(homes) == 1:
                after = uuids[(uuids.index(homes[0].uuid or "") + 1) % len(uuids)]
                moves.append(ms.PlannedMove(region_id, homes[0].replica, homes[0].uuid or "", after))
        return moves

    async def _apply(self, plan_id: str, moves: list[ms.PlannedMove], parts: int) -> None:
        """Submit a plan as `rk plan apply` does: begin the plan, and send each part until it is acknowledged.

        As `rk plan resume` does, begin a plan again that has ended meanwhile.
        """
        size = -(-len(moves) // parts)
        pieces = [moves[at : at + size] for at in range(0, len(moves), size)]
        self.planned[plan_id] = {(one.region_id, one.replica): one.destination for one in moves}
        done, epoch = -1, 0
        while done < len(pieces):
            try:
                if done < 0:
                    epoch = self._observer.shadow.epoch
                    await self.ask(ms.BeginPlan(plan_id, epoch, len(pieces), len(moves), "simulated"))
                else:
                    await self.ask(ms.AddPlanMoves(plan_id, done, pieces[done]))
                done += 1
                continue
            except RpcError as error:
                is_lost = error.is_outcome_unknown or error.code in (ms.NOT_LEADER, ms.BUSY, "unreachable")
                is_outdated = done < 0 and epoch != self._observer.shadow.epoch
                if error.code == ms.NOT_FOUND:
                    if self._observer.shadow.plans[plan_id].state is PlanState.DONE:
                        return
                    done = -1
                elif not (is_lost or is_outdated):
                    raise
            await self.pause(PAUSE_S)

    def drain(self) -> None:
        """Drain a server if another one is left, or undrain it."""
        draining = self._observer.shadow.draining
        server = self._chance.pick(self._servers)
        if server.uuid in draining:
            self.undrain(server.uuid)
        elif len(draining) + 2 < len(self._servers):
            self.do(f"drain {server.uuid}", lambda: self._mark(server.uuid))

    def undrain(self, uuid: str) -> None:
        """Undrain a server."""
        self.do(f"undrain {uuid}", lambda: self._unmark(uuid))

    async def _mark(self, uuid: str) -> None:
        try:
            await self._zk.create(self._layout.draining_mark(uuid))
        except NodeExists:
            return

    async def _unmark(self, uuid: str) -> None:
        try:
            await self._zk.delete(self._layout.draining_mark(uuid))
        except NoNode:
            return

    def fence(self) -> None:
        """Fence a server for some seconds or until it is unfenced, if two others are left. Unfence a fenced server."""
        bars = self._observer.shadow.bars
        server = self._chance.pick(self._servers)
        if server.uuid in bars:
            self.unfence(server.uuid)
        elif len(bars) + 3 <= len(self._servers):
            bar_ms = self._chance.pick((-1, 3_000, 10_000))
            self.do(f"fence {server.uuid} for {bar_ms} ms", lambda: self._fence(server, bar_ms))

    async def _fence(self, server: ServerMachine, bar_ms: int) -> None:
        answer = await self.ask(ms.FenceServer(server.uuid, "simulated", bar_ms=bar_ms))
        if bar_ms < 0 and server.uuid not in self._observer.shadow.bars:
            self._observer.violated(f"X10: {answer.detail}, but the store has no bar for the server")

    def unfence(self, uuid: str) -> None:
        """Allow regions on a fenced server again."""
        self.do(f"unfence {uuid}", lambda: self.ask(ms.UnfenceServer(uuid)))

    def vacate_active(self) -> None:
        """Delete /active: another master is elected while the active master assumes that it is still active."""
        self.do("delete /active", self._vacate)

    async def _vacate(self) -> None:
        try:
            await self._zk.delete(self._layout.active)
        except NoNode:
            return

    def retry_parked(self) -> None:
        """Retry every parked region."""
        for record in list(self._observer.shadow.transitions.values()):
            if record.parked:
                self._retry(record)

    def _retry(self, record: TransitionRecord) -> None:
        request = ms.RetryRegion(record.region_id, record.replica)
        self.do(f"retry {record.key}", lambda: self.ask(request))
