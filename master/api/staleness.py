"""Reads with their age: from the active master's state, or from a standby's mirror within a bound (FW-01).

The active master answers from the state that it bases its decisions on. The age in the reply is the time since the
master last knew that its session lived. Before that moment no other master can have written a table, a region or a
move. The state may lag by 1.5 s more for OPENING transitions, which the active master reads late. If the age exceeds
the caller's bound, the active master first synchronizes with the store.

A standby answers the requests that `master/api/roles.py` allows, if it can prove that its mirror is within the bound;
see `master/standby/watcher.py`. Ages are relative to the arrival of the request.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from coord.errors import CoordError
from coord.rpc.server import RpcError
from master.active import ActiveMaster
from master.api.prepared import Pause, Prepared
from master.api.reads import Read, ReadView, read
from master.api.roles import bound_of, is_for_standby
from master.leadership.fence import Deposed
from master.process import MasterProcess
from regions import messages as ms
from regions.balance.sizes import NOT_MEASURED
from regions.cluster.history import StepLog
from regions.messages.staleness import AsOf, Bound

T = TypeVar("T", bound=msgspec.Struct)

#: A bound that every age satisfies.
ANY_AGE: Final = Bound(max_ms=(1 << 53) - 1)


def stamped(reply: T, as_of: AsOf) -> T:
    """Return the reply. Set its age if its type has the field."""
    return msgspec.structs.replace(reply, as_of=as_of) if "as_of" in reply.__struct_fields__ else reply


def age_of(active_master: ActiveMaster, master: MasterProcess, asked_ms: int) -> AsOf:
    """Return the greatest possible age of the active master's state."""
    client = active_master.fence.client
    now_ms = master.now_ms()
    confirmed_ms = now_ms - max(0, round(client.timeout_ms - client.left_s * 1000))
    return AsOf(max(0, asked_ms - confirmed_ms), client.last_zxid, "active", master.address)


async def by_active_master(
    active_master: ActiveMaster, master: MasterProcess, request: Read, prepared: Prepared, pause: Pause
) -> msgspec.Struct:
    """Return the active master's reply. Raise RpcError, or Deposed if the tenure ends before the reply.

    The caller has checked that this master is active.
    """
    asked_ms, bound = master.now_ms(), bound_of(request)
    as_of = age_of(active_master, master, asked_ms)
    if not bound.is_none and not bound.allows(as_of):
        try:
            await active_master.fence.client.sync("/")
        except CoordError as error:
            raise RpcError(ms.BUSY, f"this master is not connected to the store at the moment: {error}") from error
        # The reply proves that the session lived when the sync was sent, after the arrival of the request.
        as_of = AsOf(0, active_master.fence.client.last_zxid, "active", master.address)
        if not bound.allows(as_of):
            raise _too_stale(bound, as_of, "")
    assigner = active_master.assigner
    keeper, sizes = active_master.keeper, active_master.balancing.sizes()
    totals = await prepared.prepare(request, assigner.world, sizes, pause)
    if active_master.is_over:
        raise Deposed("this master is not active any more")
    now_ms, order = master.now_ms(), prepared.order
    view = ReadView(assigner.world, assigner.config, assigner.history, now_ms, keeper, sizes, totals, order)
    return stamped(read(view, request), as_of)


async def by_mirror(
    master: MasterProcess, request: Read, active: str, prepared: Prepared, pause: Pause
) -> msgspec.Struct | None:
    """Return a standby's reply, or None if standbys do not answer this request.

    Raise RpcError: TOO_STALE with the address of the active master, or the error of the read itself.
    """
    if not is_for_standby(request):
        return None
    asked_ms, bound, watcher = master.now_ms(), bound_of(request), master.watcher
    wanted = ANY_AGE if bound.is_none else bound
    as_of = None if watcher is None else await watcher.prove(wanted, asked_ms)
    if watcher is None or watcher.mirror is None or as_of is None:
        if bound.is_none:
            raise RpcError(ms.BUSY, "this master has not read the cluster state yet")
        raise _too_stale(bound, None if watcher is None else watcher.as_of(asked_ms), active)
    world = watcher.mirror.world
    totals = await prepared.prepare(request, world, NOT_MEASURED, pause)
    view = ReadView(world, master.limits, StepLog(0), master.now_ms(), totals=totals, order=prepared.order)
    return stamped(read(view, request), msgspec.structs.replace(as_of, master=master.address))


def _too_stale(bound: Bound, as_of: AsOf | None, active: str) -> RpcError:
    found = "has not read the cluster state yet"
    if as_of is not None:
        found = f"has a state up to {as_of.stale_ms} ms old, with zxid {as_of.zxid:#x}"
    return RpcError(ms.TOO_STALE, f"this master {found}; the request wants one that is {bound}", active)
