"""Who answers a read, and how old the answer is: the reign's picture, or a standby's mirror within a bound (FW-01).

The active master answers from what it decides by. It says how long ago it last knew that its session lived: nobody else
can have written a table, a region or a move before that. (That a server has begun to open, it may learn up to 1.5 s
late, since it asks nothing of a master.) A caller with a tighter bound makes it ask the store first.

A standby answers what `master/api/roles.py` allows it, if it can prove the age that the caller allows; see
`master/standby/watcher.py`. Ages are counted back from the moment the question came.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from coord.errors import CoordError
from coord.rpc.server import RpcError
from master.active import ActiveMaster
from master.api.reads import Read, ReadView, read
from master.api.roles import bound_of, is_for_standby
from master.process import MasterProcess
from regions import messages as ms
from regions.cluster.history import StepLog
from regions.messages.staleness import AsOf, Bound

T = TypeVar("T", bound=msgspec.Struct)

#: For callers who only want to be told how old it is.
ANY_AGE: Final = Bound(max_ms=(1 << 53) - 1)


def stamped(reply: T, as_of: AsOf) -> T:
    """The reply with its age, if it is of a kind that has one."""
    return msgspec.structs.replace(reply, as_of=as_of) if "as_of" in reply.__struct_fields__ else reply


def age_of(active_master: ActiveMaster, master: MasterProcess, asked_ms: int) -> AsOf:
    """How old the reign's picture is at most."""
    client = active_master.fence.client
    now_ms = master.now_ms()
    heard_ms = now_ms - max(0, round(client.timeout_ms - client.left_s * 1000))
    return AsOf(max(0, asked_ms - heard_ms), client.last_zxid, "active", master.address)


async def by_active_master(active_master: ActiveMaster, master: MasterProcess, request: Read) -> msgspec.Struct:
    """The answer of the active master, who has been found to be it. Raises RpcError."""
    asked_ms, bound = master.now_ms(), bound_of(request)
    as_of = age_of(active_master, master, asked_ms)
    if not bound.is_none and not bound.allows(as_of):
        try:
            await active_master.fence.client.sync("/")
        except CoordError as error:
            raise RpcError(ms.BUSY, f"this master has no connection with the store at the moment: {error}") from error
        # The answer proves that our session lived when the question left, which was not before we were asked.
        as_of = AsOf(0, active_master.fence.client.last_zxid, "active", master.address)
        if not bound.allows(as_of):
            raise _too_stale(bound, as_of, "")
    assigner = active_master.assigner
    picture = ReadView(assigner.world, assigner.config, assigner.history, master.now_ms())
    return stamped(read(picture, request), as_of)


async def by_mirror(master: MasterProcess, request: Read, active: str) -> msgspec.Struct | None:
    """The answer of a standby; None if it is not one that standbys give. Raises RpcError: TOO_STALE, with the address
    of the active master as a hint, or what the answer itself raises."""
    if not is_for_standby(request):
        return None
    asked_ms, bound, watcher = master.now_ms(), bound_of(request), master.watcher
    wanted = ANY_AGE if bound.is_none else bound
    as_of = None if watcher is None else await watcher.prove(wanted, asked_ms)
    if watcher is None or watcher.mirror is None or as_of is None:
        if bound.is_none:
            raise RpcError(ms.BUSY, "this master has not read the cluster yet")
        raise _too_stale(bound, None if watcher is None else watcher.as_of(asked_ms), active)
    picture = ReadView(watcher.mirror.world, master.limits, StepLog(0), master.now_ms())
    return stamped(read(picture, request), msgspec.structs.replace(as_of, master=master.address))


def _too_stale(bound: Bound, as_of: AsOf | None, active: str) -> RpcError:
    found = "has not read the cluster yet"
    if as_of is not None:
        found = f"can prove {as_of.stale_ms} ms and zxid {as_of.zxid:#x}"
    return RpcError(ms.TOO_STALE, f"this master {found}; asked for is an answer that is {bound}", active)
