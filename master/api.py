"""What a master answers: the requests of `regions.messages.MasterRequest`.

Everything but the status is for the active master alone; a standby says who that is. Answers are taken from the
picture in memory, which is never ahead of the store (MF-12); changes are durable in the store before they are
answered (OC-08).
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec
from twisted.internet.defer import Deferred

from coord.errors import CoordError, MultiFailed, RetryableError
from coord.rpc import RpcError
from master import catalog
from master.election import Election
from master.fence import Deposed
from master.phases import Phases
from master.reign import Reign
from regions import effects as fx
from regions import messages as ms
from regions.explain import explain
from regions.layout import check_table_name
from regions.model import Move, RegionRecord, RegionSpec, TableIntent, TableState, check_ranges, split_ranges
from regions.placement import objection
from regions.world import Region, Replica, Server, Table

#: Nobody waits longer for a table or a move in one request.
WAIT_MS_MAX: Final = 3_600_000
REPLICATION_MAX: Final = 7
RECENT_MAX: Final = 10_000
PROBLEMS_MAX: Final = 20
#: Answered from memory, for as long as nobody else can be active.
READS: Final = (
    ms.ListTables,
    ms.DescribeTable,
    ms.DescribeRegion,
    ms.ExplainRegion,
    ms.ListServers,
    ms.ListRit,
    ms.RecentTransitions,
)
#: Accepted moves that have not begun, all together.
MOVES_PENDING_MAX: Final = 20_000


class Master(Protocol):
    """What the API looks at in the service."""

    reign: Reign | None
    election: Election | None
    phases: Phases
    masters: int

    @property
    def role(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    def now_ms(self) -> int: ...

    def uptime_ms(self) -> int: ...

    def token(self, size: int) -> bytes: ...

    def call_later(self, seconds: float, action: Any) -> Any: ...


class MasterApi:
    """Dispatches requests for one master."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._creating: set[str] = set()

    async def dispatch(self, request: ms.MasterRequest) -> msgspec.Struct:
        """The answer; raises RpcError."""
        if isinstance(request, ms.GetMasterStatus):
            return self.status()
        reign = self._reign(request)
        try:
            return await self._answer(reign, request)
        except Deposed as error:
            reign.end("another master is active")
            raise self._not_leader() from error
        except MultiFailed as error:
            raise RpcError(ms.BUSY, f"it has changed meanwhile: {error.error}") from error
        except CoordError as error:
            if isinstance(error, RpcError):
                raise
            raise RpcError(ms.BUSY, f"the store did not answer, the outcome is not known: {error}") from error

    async def _answer(self, reign: Reign, request: ms.MasterRequest) -> msgspec.Struct:
        match request:
            case ms.CreateTable():
                return await self._create_table(reign, request)
            case ms.SetTableIntent():
                return await self._set_intent(reign, request)
            case ms.MoveRegion():
                return await self._move(reign, request)
            case ms.RetryRegion():
                return self._retry(reign, request)
            case ms.Balance():
                return await self._balance(reign, request)
            case ms.BeginPlan():
                return await reign.applying.begin(request)
            case ms.AddPlanMoves():
                return await reign.applying.add(request)
            case ms.AbortPlan():
                return await reign.applying.abort(request.plan_id)
            case ms.DeleteTable():
                return await self._delete_table(reign, request)
            case ms.AlterTable():
                return await self._alter_table(reign, request)
            case ms.SetRegionIntent():
                return await self._set_region_intent(reign, request)
            case ms.DrainServer():
                return await self._drain(reign, request)
            case ms.FenceServer():
                return await self._fence(reign, request)
            case ms.ShutdownCluster():
                return await self._shutdown(reign)
            case ms.ListTables():
                names = sorted(reign.assigner.world.names)
                return ms.Tables([summary(reign.assigner.world.names[name]) for name in names])
            case ms.DescribeTable():
                return describe_table(self._table(reign, request.table), request)
            case ms.DescribeRegion():
                region = self._region(reign, request.region_id)
                return ms.Regions(region.table.record, [region_status(region)])
            case ms.ExplainRegion():
                region = self._region(reign, request.region_id)
                assigner, now = reign.assigner, self._master.now_ms()
                found = [explain(one, assigner.world, assigner.config, now) for one in region.replicas]
                return ms.Explanations(found)
            case ms.ListServers():
                servers = reign.assigner.world.servers
                shunned = reign.assigner.world.shunned
                return ms.Servers([server_load(servers[uuid], shunned.get(uuid, 0)) for uuid in sorted(servers)])
            case ms.ListRit():
                return self._rit(reign, request.limit)
            case ms.RecentTransitions():
                return self._recent(reign, request)
            case _:
                raise RpcError(ms.BAD_REQUEST, f"{type(request).__name__} is not for masters")

    # --- who answers --------------------------------------------------------------------------------------------------

    def _reign(self, request: ms.MasterRequest) -> Reign:
        reign = self._master.reign
        if reign is None:
            raise self._not_leader()
        if not reign.is_open:
            raise RpcError(ms.BUSY, f"this master is becoming active: {reign.phases.current or 'starting'}")
        if reign.is_dark:
            raise RpcError(ms.BUSY, "this master has lost the store for longer than its session lasts")
        if reign.is_paused and not isinstance(request, READS):
            raise RpcError(ms.BUSY, "this master has no connection with the store at the moment")
        return reign

    def _not_leader(self) -> RpcError:
        return RpcError(ms.NOT_LEADER, "this master is not the active one", self.active_address())

    def active_address(self) -> str:
        """Address of the active master as this one knows it; empty if it does not."""
        election = self._master.election
        if election is None or election.active is None:
            return ""
        return f"{election.active.host}:{election.active.port}"

    def status(self) -> ms.MasterStatus:
        """The master's own figures, whatever its role."""
        master = self._master
        reign = master.reign
        is_open = reign is not None and reign.is_open
        tables = list(reign.assigner.world.names.values()) if reign is not None and is_open else []
        return ms.MasterStatus(
            uuid=master.uuid,
            role=master.role,
            epoch=0 if reign is None else reign.fence.epoch,
            active=self.active_address(),
            path="" if reign is None else reign.path,
            servers=0 if reign is None else len(reign.registry.servers),
            masters=master.masters,
            tables=len(tables),
            regions=sum(len(table.regions) for table in tables),
            replicas=sum(table.replicas for table in tables),
            open=sum(table.open_replicas for table in tables),
            rit=0 if reign is None else len(list(reign.assigner.world.rit())),
            parked=sum(table.parked for table in tables),
            phases=master.phases.report(),
            plan=reign.bulks.latest.report() if reign is not None and reign.bulks.latest is not None else None,
            problems=[] if reign is None else self._problems(reign),
            uptime_ms=master.uptime_ms(),
        )

    def _problems(self, reign: Reign) -> list[str]:
        found = reign.assigner.problems(self._master.now_ms(), PROBLEMS_MAX)
        return [*found, *reign.balancing.problems()][:PROBLEMS_MAX]

    # --- changes ------------------------------------------------------------------------------------------------------

    async def _create_table(self, reign: Reign, request: ms.CreateTable) -> ms.Tables:
        specs = self._specs(request)
        world = reign.assigner.world
        if request.name in world.names or request.name in self._creating:
            raise RpcError(ms.ALREADY_EXISTS, f"there is a table {request.name!r}")
        self._creating.add(request.name)
        try:
            record, regions = await catalog.create_table(
                reign.fence, request, specs, catalog.new_table_id(self._master.token), self._master.now_ms()
            )
        except catalog.AlreadyExists as error:
            raise RpcError(ms.ALREADY_EXISTS, f"there is a table {request.name!r}") from error
        finally:
            self._creating.discard(request.name)
        if reign.is_over:
            # Another master opens the regions; the table is there whoever that is (OC-06).
            if request.wait_ms > 0:
                raise RpcError(ms.TIMED_OUT, f"table {request.name} exists; another master is about to open it")
            return ms.Tables([ms.TableSummary(record, len(regions), len(regions) * record.replication, 0, 0, 0)])
        reign.observe(fx.TableSeen(record, 0, [(region, 0) for region in regions]))
        table = reign.assigner.world.tables[record.table_id]
        await self._wait(
            reign,
            lambda: table.open_replicas + table.parked >= table.replicas,
            request.wait_ms,
            lambda: f"{table.open_replicas} of {table.replicas} replicas of {request.name} are open",
        )
        return ms.Tables([summary(table)])

    @staticmethod
    def _specs(request: ms.CreateTable) -> list[RegionSpec]:
        try:
            check_table_name(request.name)
            if request.regions and request.splits:
                raise ValueError("give splits or regions, not both")
            specs = list(request.regions) or split_ranges(request.splits)
            check_ranges(specs)
            if len(specs) > catalog.REGIONS_PER_TABLE_MAX:
                raise ValueError(f"{len(specs)} regions; a table has at most {catalog.REGIONS_PER_TABLE_MAX}")
            if not 1 <= request.replication <= REPLICATION_MAX:
                raise ValueError(f"replication is between 1 and {REPLICATION_MAX}, not {request.replication}")
        except ValueError as error:
            raise RpcError(ms.BAD_REQUEST, str(error)) from error
        return specs

    async def _set_intent(self, reign: Reign, request: ms.SetTableIntent) -> ms.Tables:
        table = self._table(reign, request.table)
        if table.record.intent != request.intent:
            changed = msgspec.structs.replace(table.record, intent=request.intent)
            version = await catalog.change_table(reign.fence, changed, table.version)
            reign.observe(fx.TableSeen(changed, version))
        open_wanted = request.intent == TableIntent.ENABLED

        def settled() -> bool:
            if open_wanted:
                return table.open_replicas + table.parked >= table.replicas
            return table.open_replicas == 0 and table.rit == 0

        await self._wait(reign, settled, request.wait_ms, lambda: f"{table.open_replicas} replicas are open")
        return ms.Tables([summary(table)])

    async def _move(self, reign: Reign, request: ms.MoveRegion) -> ms.Accepted:
        replica = self._replica(reign, request.region_id, request.replica)
        source = replica.open_on
        if not replica.wants_open:
            how = "unassigned" if replica.region.record.unassigned else "of a disabled table"
            raise RpcError(ms.BAD_REQUEST, f"{replica.key} is {how}: it is closed and stays so")
        if replica.transition is not None and replica.transition.parked:
            raise RpcError(ms.BAD_REQUEST, f"{replica.key} is parked: have it tried again instead")
        if source is None or replica.transition is not None or replica.order is not None:
            raise RpcError(ms.BUSY, f"{replica.key} is in transition or not open")
        if reign.assigner.moves_pending >= MOVES_PENDING_MAX:
            raise RpcError(ms.BUSY, f"{MOVES_PENDING_MAX} moves wait for their turn")
        destination = request.destination
        if destination:
            server = reign.assigner.world.servers.get(destination)
            if server is None:
                raise RpcError(ms.NOT_FOUND, f"there is no live server {destination!r}")
            if server.draining:
                raise RpcError(ms.BAD_REQUEST, f"server {destination} is being emptied")
            peers, _ = reign.assigner.world.peers(replica)
            against = objection(server, group=replica.region.table.record.group, peers=peers)
            if against:
                raise RpcError(ms.BAD_REQUEST, f"server {destination} cannot have {replica.key}: {against}")
            if server is source:
                return ms.Accepted(f"{replica.key} is on {destination} already")
        elif reign.assigner.move_target(replica) is None:
            raise RpcError(ms.BUSY, f"there is no other server for {replica.key}")
        assert replica.home is not None, f"{replica.key} is open on {source.uuid} and has no home"
        await reign.accept_moves([Move(replica.key, replica.home, destination)], "move")

        def settled() -> bool:
            return replica.transition is None and replica.order is None and replica.move is None

        await self._wait(reign, settled, request.wait_ms, lambda: f"{replica.key} is still moving")
        where = "nowhere" if replica.open_on is None else replica.open_on.uuid
        if request.wait_ms and replica.open_on is source:
            raise RpcError(ms.BUSY, f"the move was given up, {replica.key} is still on {where}")
        return ms.Accepted(f"{replica.key} is open on {where}" if request.wait_ms else f"{replica.key} moves")

    async def _delete_table(self, reign: Reign, request: ms.DeleteTable) -> ms.Tables:
        """RUNNING or ALTERING to REMOVED, and the name given free, in one write; then the regions are closed."""
        table = self._table(reign, request.table)
        removed = msgspec.structs.replace(table.record, state=TableState.REMOVED)
        version = await catalog.remove_table(reign.fence, removed, table.version)
        reign.observe(fx.TableSeen(removed, version))
        await self._wait(
            reign,
            lambda: table.open_replicas == 0 and table.rit == 0,
            request.wait_ms,
            lambda: f"{removed.name} is deleted; {table.open_replicas} replicas are still open",
        )
        return ms.Tables([summary(table)])

    async def _alter_table(self, reign: Reign, request: ms.AlterTable) -> ms.Tables:
        table = self._table(reign, request.table)
        former = table.record
        changed = former
        if request.schema is not None and request.schema != former.schema:
            changed = msgspec.structs.replace(changed, schema=request.schema, schema_version=former.schema_version + 1)
        if request.name and request.name != former.name:
            try:
                check_table_name(request.name)
            except ValueError as error:
                raise RpcError(ms.BAD_REQUEST, str(error)) from error
            changed = msgspec.structs.replace(changed, name=request.name)
            try:
                version = await catalog.rename_table(reign.fence, changed, table.version, former.name)
            except catalog.AlreadyExists as error:
                raise RpcError(ms.ALREADY_EXISTS, f"there is a table {request.name!r}") from error
        elif changed != former:
            version = await catalog.change_table(reign.fence, changed, table.version)
        else:
            return ms.Tables([summary(table)])
        reign.observe(fx.TableSeen(changed, version))
        return ms.Tables([summary(table)])

    async def _set_region_intent(self, reign: Reign, request: ms.SetRegionIntent) -> ms.Accepted:
        """Persisted in the region's record, so that it rides over failover as a table's does (FW-04)."""
        region = self._region(reign, request.region_id)
        table_id = region.record.table_id

        def change(record: RegionRecord) -> RegionRecord:
            return msgspec.structs.replace(record, unassigned=not request.assigned)

        try:
            record, version = await catalog.change_region(reign.fence, table_id, request.region_id, change)
        except RetryableError:
            reign.persist(lambda: reign.read_region(table_id, request.region_id))  # it may have been done
            raise
        reign.observe(fx.RegionSeen(record, version))
        wanted = region.wants_open

        def settled() -> bool:
            return all(
                (one.transition is None and (one.open_on is not None) == wanted)
                or (one.transition is not None and one.transition.parked and wanted)
                for one in region.replicas
            )

        await self._wait(reign, settled, request.wait_ms, lambda: f"{request.region_id} is not there yet")
        where = ", ".join("closed" if one.open_on is None else f"open on {one.open_on.uuid}" for one in region.replicas)
        if request.assigned and not wanted:
            return ms.Accepted(f"{request.region_id} opens when table {region.table.record.name} is enabled")
        return ms.Accepted(f"{request.region_id} is {where}" if request.wait_ms else "accepted")

    async def _drain(self, reign: Reign, request: ms.DrainServer) -> ms.Accepted:
        path = reign.fence.layout.draining_mark(request.uuid)
        server = reign.assigner.world.servers.get(request.uuid)
        if server is None and request.uuid not in reign.registry.draining:
            raise RpcError(ms.NOT_FOUND, f"there is no live server {request.uuid!r}")
        if request.drain and request.uuid not in reign.registry.draining:
            await catalog.create_if_missing(reign.fence, path)
        elif not request.drain:
            await catalog.delete_if_there(reign.fence, path)
        if not request.drain:
            return ms.Accepted(f"{request.uuid} gets regions again")

        def empty() -> bool:
            now = reign.assigner.world.servers.get(request.uuid)
            return now is None or (now.marked and not now.open and not now.incoming)

        def so_far() -> str:
            now = reign.assigner.world.servers.get(request.uuid)
            return f"{0 if now is None else now.load} replicas are still on {request.uuid}"

        await self._wait(reign, empty, request.wait_ms, so_far)
        return ms.Accepted(f"{request.uuid} is empty" if request.wait_ms else so_far())

    async def _fence(self, reign: Reign, request: ms.FenceServer) -> ms.Accepted:
        server = reign.assigner.world.servers.get(request.uuid)
        if server is None:
            raise RpcError(ms.NOT_FOUND, f"there is no live server {request.uuid!r}")
        reign.observe(fx.FenceRequested(request.uuid, request.reason))
        count = len(server.open)
        await self._wait(reign, lambda: not server.fencing or server.fenced_until_ms is not None, 10_000, lambda: "")
        if not server.fencing:
            raise RpcError(ms.BUSY, f"server {request.uuid} has gone or changed meanwhile")
        return ms.Accepted(f"{request.uuid} is fenced; its {count} replicas go to other servers when its lease is over")

    def _retry(self, reign: Reign, request: ms.RetryRegion) -> ms.Accepted:
        replica = self._replica(reign, request.region_id, request.replica)
        if replica.transition is None or not replica.transition.parked:
            raise RpcError(ms.BAD_REQUEST, f"{replica.key} is not parked")
        reign.observe(fx.RetryRequested(replica.key))
        return ms.Accepted(f"{replica.key} is tried again")

    @staticmethod
    async def _balance(reign: Reign, request: ms.Balance) -> ms.BalanceReport:
        """The switch, a round made now, or only what it would be."""
        balancing = reign.balancing
        if request.switch is not None and request.switch != balancing.record.enabled:
            await balancing.switch(enabled=request.switch)
        if not request.run:
            return balancing.report()
        if balancing.hold() and not request.dry_run:
            raise RpcError(ms.BAD_REQUEST, f"plan {balancing.hold()} is being applied: the balancer holds still")
        proposal, moves = balancing.round(dry_run=request.dry_run)
        for move in moves:
            reign.observe(move)
        return balancing.report(proposal, dry_run=request.dry_run)

    async def _shutdown(self, reign: Reign) -> ms.Accepted:
        """X7's mark: from now on dead servers are not replaced, and the next start knows that it was in order."""
        reign.assigner.suspend()
        await catalog.mark_run(reign.fence, clean=True, now_ms=self._master.now_ms())
        return ms.Accepted("the clean mark is written")

    async def _wait(self, reign: Reign, holds: Any, wait_ms: int, so_far: Any) -> None:
        if wait_ms <= 0:
            return
        waiter: Deferred[None] = reign.when(holds)

        def too_late() -> None:
            if not waiter.called:
                waiter.errback(RpcError(ms.TIMED_OUT, f"{so_far()}; it goes on"))

        timer = self._master.call_later(min(wait_ms, WAIT_MS_MAX) / 1000, too_late)
        try:
            await waiter
        finally:
            if timer.active():
                timer.cancel()

    # --- looking things up --------------------------------------------------------------------------------------------

    @staticmethod
    def _table(reign: Reign, name: str) -> Table:
        world = reign.assigner.world
        table = world.names.get(name) or world.tables.get(name)
        if table is None:
            raise RpcError(ms.NOT_FOUND, f"there is no table {name!r}")
        return table

    @staticmethod
    def _region(reign: Reign, region_id: str) -> Region:
        region = reign.assigner.world.regions.get(region_id)
        if region is None:
            raise RpcError(ms.NOT_FOUND, f"there is no region {region_id!r}")
        return region

    def _replica(self, reign: Reign, region_id: str, number: int) -> Replica:
        region = self._region(reign, region_id)
        if not 0 <= number < len(region.replicas):
            raise RpcError(ms.NOT_FOUND, f"region {region_id} has no replica {number}")
        return region.replicas[number]

    @staticmethod
    def _rit(reign: Reign, limit: int) -> ms.Transitions:
        found = sorted(reign.assigner.world.rit(), key=lambda one: one.seen_ms)[: max(0, limit)]
        return ms.Transitions([_in_transition(replica) for replica in found])

    @staticmethod
    def _recent(reign: Reign, request: ms.RecentTransitions) -> ms.Transitions:
        limit = min(max(0, request.limit), RECENT_MAX)
        found: list[ms.TransitionSeen] = []
        for step in reversed(reign.assigner.history):
            if len(found) >= limit:
                break
            region_id, _, number = step.key.rpartition("-")
            if request.region_id in ("", region_id):
                found.append(
                    ms.TransitionSeen(
                        step.at_ms,
                        region_id,
                        int(number),
                        step.actor.value,
                        "" if step.before is None else step.before.value,
                        "" if step.after is None else step.after.value,
                        "" if step.cause is None else step.cause.value,
                        step.server,
                        step.epoch,
                        step.plan_id,
                        step.attempt,
                        step.error,
                    )
                )
        return ms.Transitions(found[::-1])


def summary(table: Table) -> ms.TableSummary:
    """A table with counts."""
    rit = sum(1 for region in table.regions.values() for one in region.replicas if one.transition is not None)
    return ms.TableSummary(table.record, len(table.regions), table.replicas, table.open_replicas, rit, table.parked)


def describe_table(table: Table, request: ms.DescribeTable) -> ms.Regions:
    """Regions in key order from the wanted key on."""
    ordered = sorted(table.regions.values(), key=lambda region: region.record.start_key)
    start = request.start_key
    wanted = [one for one in ordered if one.record.end_key == "" or one.record.end_key > start or start == ""]
    if request.limit > 0:
        wanted = wanted[: request.limit]
    return ms.Regions(table.record, [region_status(region) for region in wanted])


def region_status(region: Region) -> ms.RegionStatus:
    """A region and where its replicas are."""
    replicas = [
        ms.ReplicaStatus(one.number, None if one.open_on is None else one.open_on.incarnation, one.transition)
        for one in region.replicas
    ]
    return ms.RegionStatus(region.record, replicas)


def server_load(server: Server, shunned_until_ms: int = 0) -> ms.ServerLoad:
    """A live server and what it has."""
    outgoing = sum(1 for one in server.open.values() if one.transition is not None)
    return ms.ServerLoad(
        server.record,
        len(server.open) - outgoing,
        sum(one.region.record.size_bytes for one in server.open.values()),
        len(server.incoming),
        outgoing,
        server.draining,
        server.fencing,
        shunned_until_ms,
    )


def _in_transition(replica: Replica) -> ms.TransitionSeen:
    record = replica.transition
    assert record is not None, replica.key
    server = record.destination or record.source
    return ms.TransitionSeen(
        replica.seen_ms,
        record.region_id,
        record.replica,
        "",
        "",
        record.state.value,
        record.reason,
        "" if server is None else server.uuid,
        record.epoch,
        record.plan_id,
        record.attempt,
        record.last_error,
    )
