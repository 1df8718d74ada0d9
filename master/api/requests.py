"""Dispatch of the requests in `regions.messages.MasterRequest`.

`master/api/roles.py` defines which requests a standby answers. A standby rejects the other requests with the active
master's address. Replies come from the cluster state in memory, which is never ahead of the store (MF-12). A change is
durable in the store before it is acknowledged (OC-08).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from twisted.internet.task import deferLater

from coord.errors import CoordError, MultiFailed, RetryableError
from coord.rpc.server import RpcError
from coord.security import process
from coord.security.principal import NOBODY, Principal
from master.access import granting
from master.active import ActiveMaster
from master.api import balancing, members, unsticking
from master.api.pacing import REPEATED_FOR, Paced
from master.api.prepared import Pause, Prepared
from master.api.reads import NO_REPLICAS, READS, count_replicas
from master.api.recording import recorded
from master.api.resharding import requests as resharding
from master.api.resharding.holes import close_hole
from master.api.staleness import age_of, by_active_master, by_mirror, stamped
from master.assignment import fencing
from master.catalog import store
from master.catalog.locks import Lock, Rank
from master.catalog.lookup import find_region, find_replica, is_tablet
from master.causes import acting, acting_for, log_begun, text_of
from master.leadership.fence import Deposed
from master.process import MasterProcess
from regions import messages as ms
from regions.assign.placement import objection_to
from regions.cluster import events as ev
from regions.cluster.entities import Replica, Table
from regions.diagnose.health import unserved
from regions.diagnose.live.work_in_progress import look
from regions.diagnose.tablets import by_health
from regions.records.model import Move, RegionRecord, TableState
from regions.records.replica_key import replica_key
from regions.records.znodes import CorruptZnode

_FSCK: Final = "`rk fsck` lists all damaged znodes."
#: Longest `wait_ms` of a request.
WAIT_MS_MAX: Final = 3_600_000
PROBLEMS_MAX: Final = 20
#: Limit of the accepted moves that have not begun.
MOVES_PENDING_MAX: Final = 20_000


class Walked(NamedTuple):
    """Result of a walk over all regions in transition: their number, problems, replicas that are not served."""

    rit: int = 0
    problems: tuple[str, ...] = ()
    unserved: ms.Unserved | None = None

    def at_most(self, working: int, tablets: int) -> Walked:
        """Return this earlier answer with its counts lowered: `working` shared replicas and `tablets` members have work
        left, not more."""
        unserved = self.unserved
        if unserved is not None and unserved.count > working:
            unserved = msgspec.structs.replace(unserved, count=working)
        return Walked(min(self.rit, working + tablets), self.problems, unserved)


class MasterApi:
    """Dispatches requests for one master."""

    def __init__(self, master: MasterProcess, reactor: Any) -> None:
        self._master = master
        #: Waits for the next turn.
        self._pause: Pause = lambda: deferLater(reactor, 0)
        self._walks: Paced[Walked] = Paced(master.now_ms)
        self.prepared = Prepared(master.now_ms)

    async def dispatch(self, request: ms.MasterRequest) -> msgspec.Struct:
        """Perform a request and return the reply. Raise RpcError."""
        caller, who = self._master.caller(), self._master.caller_principal()
        match request:
            case ms.WhoAmI():
                return self._identity_of(who, caller)
            case ms.GetMasterStatus():
                return self.status()
            case ms.Ping():
                return ms.Accepted(self._master.role)
            case ms.ListMasters():
                return ms.Masters(self._master.registered, self.active_address())
        if isinstance(request, READS) and self._master.active_master is None:
            found = await by_mirror(self._master, request, self.active_address(), self.prepared, self._pause)
            if found is not None:
                return found
        active_master = self._active_master(request)
        try:
            if isinstance(request, READS):
                return await by_active_master(active_master, self._master, request, self.prepared, self._pause)
            if isinstance(request, ms.ListGrants):
                return await granting.listed(active_master, request, checked=self._master.checks is not None)
            caller = caller if who is NOBODY else f"{who} at {caller}"
            origin = active_master.assigner.causes.begin(text_of(request, caller))
            log_begun(active_master.assigner.causes)
            with acting_for(origin), recorded(active_master.history_writer, request, origin):
                changed = await self._answer(active_master, request, who)
            if "cause_id" in changed.__struct_fields__:
                changed = msgspec.structs.replace(changed, cause_id=origin.cause_id)
            return stamped(changed, age_of(active_master, self._master, self._master.now_ms()))
        except Deposed as error:
            active_master.end("another master is active")
            raise self._not_leader() from error
        except MultiFailed as error:
            raise RpcError(ms.BUSY, f"the record was changed at the same time, try again: {error.error}") from error
        except CorruptZnode as error:
            raise RpcError(ms.BAD_REQUEST, f"a znode is damaged: {error}", _FSCK) from error
        except CoordError as error:
            if isinstance(error, RpcError):
                raise
            raise RpcError(ms.BUSY, f"the store did not answer, the outcome is unknown: {error}") from error

    async def _answer(self, active_master: ActiveMaster, request: ms.MasterRequest, who: Principal) -> msgspec.Struct:
        match request:
            case ms.DeleteTable():
                return await self._delete(active_master, request)
            case ms.CreateTable() | ms.AlterTable() | ms.UndeleteTable() | ms.SetTableIntent():
                return await active_master.operations.perform(request)
            case ms.ChangeGrant():
                return await self._change_grant(active_master, request, who)
            case ms.MoveRegion():
                return await self._move(active_master, request)
            case ms.CloseHole():
                return await close_hole(active_master, request)
            case ms.SplitRegion():
                return await resharding.split(active_master, request, self._master.now_ms())
            case ms.MergeRegions():
                return await resharding.merge(active_master, request, self._master.now_ms())
            case ms.RetryRegion():
                return self._retry(active_master, request)
            case ms.Balance():
                return await balancing.balance(active_master, request)
            case ms.BeginPlan():
                return await active_master.applying.begin(request)
            case ms.AddPlanMoves():
                return await active_master.applying.add(request)
            case ms.AbortPlan():
                return await active_master.applying.abort(request.plan_id)
            case ms.SetRegionIntent():
                return await self._set_region_intent(active_master, request)
            case ms.MoveTablet():
                return await members.move(active_master, request, self._master.now_ms())
            case ms.CancelTabletMove():
                return await members.cancel(active_master, request)
            case ms.WantLearner():
                return await members.learner(active_master, request)
            case ms.NoteForcedConfig():
                return members.note_forced(active_master, request, self._master.now_ms())
            case ms.RetireServer():
                return await members.retire(active_master, request)
            case ms.DrainServer():
                return await self._drain(active_master, request)
            case ms.FenceServer():
                return await fencing.fence(active_master, request)
            case ms.UnfenceServer():
                return await fencing.unfence(active_master, request)
            case ms.UnstickRegion():
                return await unsticking.unstick(active_master, request, self._master.now_ms())
            case ms.UndoUnstick():
                return await unsticking.undo(active_master, request, self._master.now_ms())
            case ms.ShutdownCluster():
                return await self._shutdown(active_master)
            case _:
                raise RpcError(ms.BAD_REQUEST, f"masters do not serve {type(request).__name__}")

    # --- roles --------------------------------------------------------------------------------------------------------

    def _active_master(self, request: ms.MasterRequest) -> ActiveMaster:
        active_master = self._master.active_master
        if active_master is None:
            raise self._not_leader()
        if not active_master.is_open:
            raise RpcError(ms.BUSY, f"this master is becoming active: {active_master.phases.current or 'starting'}")
        if active_master.store_session.may_be_over or active_master.fence.client.left_s <= 0:
            raise RpcError(ms.BUSY, "this master has lost the store, and its session may have expired")
        if active_master.store_session.is_paused and not isinstance(request, READS):
            raise RpcError(ms.BUSY, "this master is not connected to the store at the moment")
        return active_master

    def _not_leader(self) -> RpcError:
        return RpcError(ms.NOT_LEADER, "this master is not the active one", self.active_address())

    def active_address(self) -> str:
        """Return the address of the active master, or "" if this master does not know it."""
        election = self._master.election
        if election is None or election.active is None:
            return ""
        return f"{election.active.host}:{election.active.port}"

    def _identity_of(self, who: Principal, address: str) -> ms.CallerIdentity:
        """Return who the caller is. An open cluster does not know."""
        checks = self._master.checks
        found = ms.CallerIdentity(str(who), checked=False) if checks is None else checks.identity(who)
        return msgspec.structs.replace(found, address=address)

    def status(self, repeated_for: int = REPEATED_FOR) -> ms.MasterStatus:
        """Return the master's status, in every role. `repeated_for` is that of `Paced.get`."""
        master = self._master
        active_master = master.active_master
        is_open = active_master is not None and active_master.is_open
        walked = Walked() if active_master is None else self._walked(active_master, repeated_for)
        tables = list(active_master.assigner.world.names.values()) if active_master is not None and is_open else []
        counts = NO_REPLICAS if active_master is None else count_replicas(tables, active_master.keeper)
        return ms.MasterStatus(
            cluster=master.cluster_id,
            uuid=master.uuid,
            role=master.role,
            epoch=0 if active_master is None else active_master.fence.epoch,
            active=self.active_address(),
            path="" if active_master is None else active_master.path,
            servers=0 if active_master is None else len(active_master.registry.servers),
            masters=master.masters,
            tables=len(tables),
            regions=sum(len(table.regions) for table in tables),
            replicas=counts.replicas,
            open=counts.open,
            rit=walked.rit,
            parked=counts.parked,
            phases=master.phases.report(),
            plan=active_master.bulk_plans.latest.report()
            if active_master is not None and active_master.bulk_plans.latest is not None
            else None,
            problems=list(walked.problems),
            uptime_ms=master.uptime_ms(),
            mirror=None if master.watcher is None else master.watcher.status(),
            warm=active_master is not None and active_master.is_warm,
            tablets=by_health(active_master.keeper.watch.counts) if active_master is not None and is_open else None,
            unusable=counts.unusable,
            resting=counts.resting,
            unserved=walked.unserved if is_open else None,
            expiring=process.expiring(),
            open_door=process.open_door(master.address.rpartition(":")[0]),
        )

    def _walked(self, active_master: ActiveMaster, repeated_for: int) -> Walked:
        """Return the result of a walk over all regions in transition."""
        world = active_master.assigner.world

        def walk() -> Walked:
            rit = sum(table.rit for table in world.tables.values())
            work = look(world.active.values(), active_master.assigner.unplaceable())
            return Walked(
                rit + len(active_master.keeper.in_transition()),
                tuple(active_master.problems(PROBLEMS_MAX, work)),
                unserved(work, self._master.now_ms()) if active_master.is_open else None,
            )

        # The first region with work, and the end of the last one, are seen at once.
        found = self._walks.get((active_master, active_master.is_open, not world.active), walk, repeated_for)
        return found.at_most(len(world.active), len(active_master.keeper.in_transition()))

    # --- changes ------------------------------------------------------------------------------------------------------

    async def _delete(self, active_master: ActiveMaster, request: ms.DeleteTable) -> msgspec.Struct:
        """Delete a table, and the grants on it."""
        world = active_master.assigner.world
        table = world.names.get(request.table) or world.tables.get(request.table)
        try:
            answer = await active_master.operations.perform(request)
        except Exception:  # the time to wait may be over, and the table deleted all the same
            await self._forget_grants(active_master, table)
            raise
        await self._forget_grants(active_master, table)
        return answer

    async def _forget_grants(self, active_master: ActiveMaster, table: Table | None) -> None:
        """Remove the grants on a table if it is deleted."""
        if table is not None and table.record.state is TableState.REMOVED:
            await granting.forget_table(active_master, table.record.table_id)
            self._grants_changed()

    async def _change_grant(self, active_master: ActiveMaster, request: ms.ChangeGrant, who: Principal) -> ms.Accepted:
        accepted = await granting.perform(active_master, request, who, self._master.now_ms())
        self._grants_changed()
        return accepted

    def _grants_changed(self) -> None:
        if self._master.checks is not None:
            self._master.checks.refresh()

    async def _move(self, active_master: ActiveMaster, request: ms.MoveRegion) -> ms.Accepted:
        if is_tablet(active_master.assigner.world, request.region_id):
            return await members.move_region(active_master, request, self._master.now_ms())
        replica = find_replica(active_master.assigner.world, request.region_id, request.replica)
        source = replica.open_on
        if not replica.wants_open:
            how = "unassigned" if replica.region.record.unassigned else "of a disabled table"
            raise RpcError(ms.BAD_REQUEST, f"{replica.key} is {how}: a closed region cannot be moved")
        if replica.transition is not None and replica.transition.parked:
            raise RpcError(ms.BAD_REQUEST, f"{replica.key} is parked: retry it instead (`rk region retry`)")
        if source is None or replica.transition is not None or replica.order is not None:
            raise RpcError(ms.BUSY, f"{replica.key} is in transition or not open")
        if active_master.assigner.moves_pending >= MOVES_PENDING_MAX:
            raise RpcError(ms.BUSY, f"too many moves are pending ({MOVES_PENDING_MAX}): try again later")
        destination = request.destination
        if destination:
            server = active_master.assigner.world.servers.get(destination)
            if server is None:
                raise RpcError(ms.NOT_FOUND, f"there is no live server {destination!r}")
            if server.draining:
                raise RpcError(ms.BAD_REQUEST, f"server {destination} is being drained")
            peers, _ = active_master.assigner.world.peers(replica)
            against = objection_to(server, replica, peers)
            if against:
                raise RpcError(ms.BAD_REQUEST, f"server {destination} cannot take {replica.key}: {against}")
            if server is source:
                return ms.Accepted(f"{replica.key} is already on {destination}")
        elif active_master.assigner.move_target(replica) is None:
            raise RpcError(ms.BUSY, f"no other server can take {replica.key}")
        assert replica.home is not None, f"{replica.key} is open on {source.uuid} and has no home"
        await active_master.accept_moves([Move(replica.key, replica.home, destination)], "move")

        world = active_master.assigner.world

        def is_at_rest() -> bool:
            if world.regions.get(request.region_id) is not replica.region or not replica.wants_open:
                return True
            # A region whose server has died counts as at rest, too, until the master assigns it again.
            is_quiet = replica.transition is None and replica.order is None and replica.move is None
            return is_quiet and replica.open_on is not None

        await active_master.wait(is_at_rest, request.wait_ms, lambda: f"{replica.key} is still moving")
        if request.wait_ms and replica.open_on is None:
            raise RpcError(ms.BAD_REQUEST, f"{replica.key} was closed, split or merged before it was open again")
        where = "nowhere" if replica.open_on is None else replica.open_on.uuid
        if request.wait_ms and replica.open_on is source:
            raise RpcError(ms.BUSY, f"the move was canceled, {replica.key} is still on {where}")
        return ms.Accepted(f"{replica.key} is open on {where}" if request.wait_ms else f"{replica.key} is moving")

    async def _set_region_intent(self, active_master: ActiveMaster, request: ms.SetRegionIntent) -> ms.Accepted:
        """Persist the intent in the region's record, so that it survives a failover (FW-04)."""
        region = find_region(active_master.assigner.world, request.region_id)
        table_id = region.record.table_id

        def change(record: RegionRecord) -> RegionRecord:
            return msgspec.structs.replace(record, unassigned=not request.assigned)

        locks = (Lock(Rank.TABLE, table_id, writes=False), Lock(Rank.REGION, request.region_id))
        async with active_master.operations.locks.hold(*locks):
            try:
                record, version = await store.change_region(active_master.fence, table_id, request.region_id, change)
            except RetryableError:
                active_master.persist(
                    lambda: active_master.read_region(table_id, request.region_id)
                )  # it may have been done
                raise
            active_master.observe(ev.RegionSeen(record, version))
        wanted = region.wants_open

        def is_done() -> bool:
            if record.is_tablet:
                return active_master.keeper.is_settled(request.region_id)
            return all(
                (one.transition is None and (one.open_on is not None) == wanted)
                or (one.transition is not None and one.transition.parked and wanted)
                for one in region.replicas
            )

        wanted_state = "open" if wanted else "closed"
        await active_master.wait(is_done, request.wait_ms, lambda: f"{request.region_id} is not {wanted_state} yet")
        if record.is_tablet:
            serving = active_master.keeper.serving(request.region_id)
            where = f"{wanted_state}: {serving} of {len(record.members)} replicas take part"
        else:
            where = ", ".join(_place(one) for one in region.replicas)
        if request.assigned and not wanted:
            return ms.Accepted(f"{request.region_id} will open when table {region.table.record.name} is enabled")
        return ms.Accepted(f"{request.region_id} is {where}" if request.wait_ms else "accepted")

    async def _drain(self, active_master: ActiveMaster, request: ms.DrainServer) -> ms.Accepted:
        path = active_master.fence.layout.draining_mark(request.uuid)
        server = active_master.assigner.world.servers.get(request.uuid)
        if server is None and request.uuid not in active_master.registry.draining:
            raise RpcError(ms.NOT_FOUND, f"there is no live server {request.uuid!r}")
        active_master.server_events.drain_origins[request.uuid] = acting()
        if request.drain and request.uuid not in active_master.registry.draining:
            await store.create_if_missing(active_master.fence, path)
        elif not request.drain:
            await store.delete_if_there(active_master.fence, path)
        if not request.drain:
            return ms.Accepted(f"server {request.uuid} may get regions again")

        return ms.Accepted(await members.emptied(active_master, request, self._master.now_ms))

    def _retry(self, active_master: ActiveMaster, request: ms.RetryRegion) -> ms.Accepted:
        if is_tablet(active_master.assigner.world, request.region_id):
            return self._retry_member(active_master, request)
        replica = find_replica(active_master.assigner.world, request.region_id, request.replica)
        if replica.transition is None or not replica.transition.parked:
            raise RpcError(ms.BAD_REQUEST, f"{replica.key} is not parked: there is nothing to retry")
        active_master.observe(ev.RetryRequested(replica.key))
        return ms.Accepted(f"retrying {replica.key}")

    @staticmethod
    def _retry_member(active_master: ActiveMaster, request: ms.RetryRegion) -> ms.Accepted:
        """Send the orders of parked members again. `request.replica` is the number of a member; 0 means all members."""
        record = active_master.assigner.world.regions[request.region_id].record
        numbers = [one.number for one in record.members if request.replica in (0, one.number)]
        if request.replica and not numbers:
            raise RpcError(ms.NOT_FOUND, f"tablet {request.region_id} has no member with number {request.replica}")
        retried = [number for number in numbers if active_master.keeper.retry(replica_key(request.region_id, number))]
        if not retried:
            whom = f"member {request.replica}" if request.replica else "no member"
            state = "is not parked" if request.replica else "is parked"
            raise RpcError(
                ms.BAD_REQUEST,
                f"{whom} of tablet {request.region_id} {state}, or its server is away: there is nothing to retry",
            )
        return ms.Accepted(f"retrying member {', '.join(map(str, retried))} of tablet {request.region_id}")

    async def _shutdown(self, active_master: ActiveMaster) -> ms.Accepted:
        """Set the clean-shutdown flag (X7): from now on the regions of dead servers are not assigned elsewhere."""
        active_master.assigner.suspend()
        await store.write_clean_shutdown(active_master.fence, clean=True, now_ms=self._master.now_ms())
        return ms.Accepted("the clean-shutdown flag is set")


def _place(replica: Replica) -> str:
    """Return where a replica is open, for people."""
    return "closed" if replica.open_on is None else f"open on {replica.open_on.uuid}"
