"""Fencing at an operator's request (X10): a server loses its regions, and gets none while it is barred.

The multi that deletes the server's registration creates a bar below `/barred`. The server closes all its replicas and
registers again within a second, under a new start code. It gets no regions until an operator removes the bar or the bar
expires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from coord.rpc.server import RpcError
from master.catalog import store
from master.context import ActiveContext
from regions import messages as ms
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Replica, Server

#: Longest wait for the store to confirm the write that fences a server. After that the server is fenced later.
FENCE_WAIT_MS = 10_000
DAY_MS = 86_400_000
#: Longest bar with an end: ten years.
BAR_MS_MAX = 3_650 * DAY_MS


async def fence(active_master: ActiveContext, request: ms.FenceServer) -> ms.Accepted:
    """Fence a server. With `wait_ms`, reply when its replicas are open on other servers. Raise RpcError."""
    uuid, reason = request.uuid, request.reason or "no reason given"
    if not fx.BAR_FOR_EVER <= request.bar_ms <= BAR_MS_MAX:
        raise RpcError(
            ms.BAD_REQUEST,
            f"a server cannot be fenced for {request.bar_ms} ms; at most {BAR_MS_MAX // DAY_MS} days",
        )
    server = active_master.world.servers.get(uuid)
    if server is None:
        raise RpcError(ms.NOT_FOUND, f"there is no live server {uuid!r}")
    now = server.incarnation.start_code
    if request.start_code not in (0, now):
        raise RpcError(
            ms.BAD_REQUEST,
            f"server {uuid} has restarted: the request names start {request.start_code}, start {now} is running;"
            " nothing was changed, check the server again",
        )
    replicas = [*server.open.values(), *server.incoming.values()]
    is_fenced_already = bool(server.fencing)
    active_master.observe(ev.FenceRequested(uuid, reason, request.bar_ms))
    await active_master.wait(
        lambda: not server.fencing or server.fenced_until_ms is not None,
        FENCE_WAIT_MS,
        lambda: f"the store has not confirmed yet that {uuid} is fenced",
    )
    if not server.fencing:
        raise RpcError(ms.BUSY, f"server {uuid} has stopped or registered again in the meantime")
    if is_fenced_already and request.bar_ms:
        # The master itself or another request has fenced the server, so only the bar is new.
        await store.bar_server(active_master.fence, active_master.bar_of(server.record, reason, request.bar_ms))
    waiting = f"{uuid} is fenced{bar_duration_text(request.bar_ms)}"
    await active_master.wait(
        lambda: not _left(replicas, server),
        request.wait_ms,
        lambda: f"{waiting}; {_left(replicas, server)} of its {len(replicas)} replicas are not open elsewhere yet",
    )
    places = _places(replicas, server)
    return ms.Accepted(f"{waiting}; {_places_text(len(replicas), places)}", places)


async def unfence(active_master: ActiveContext, request: ms.UnfenceServer) -> ms.Accepted:
    """Remove a server's bar. Reply when this master has seen the removal: the next balance then uses the server.

    Raise RpcError if there is no bar.
    """
    if request.uuid not in active_master.world.bars:
        path = active_master.fence.layout.bar(request.uuid)
        if await active_master.fence.client.exists(path) is None:
            raise RpcError(ms.NOT_FOUND, f"server {request.uuid!r} is not fenced")
    await store.delete_if_there(active_master.fence, active_master.fence.layout.bar(request.uuid))
    await active_master.wait(
        lambda: request.uuid not in active_master.world.bars,
        FENCE_WAIT_MS,
        lambda: f"the bar of server {request.uuid} is removed, but this master has not noticed yet",
    )
    return ms.Accepted(f"server {request.uuid} may get regions again")


def bar_duration_text(bar_ms: int) -> str:
    """Return the text for how long a fenced server gets no regions."""
    if not bar_ms:
        return ""
    return " until `rk server unfence`" if bar_ms == fx.BAR_FOR_EVER else f" for {bar_ms / 1000:g} s"


def _left(replicas: Iterable[Replica], former: Server) -> int:
    """Return the number of replicas that should be open and are not open on another server yet."""
    return sum(
        1
        for one in replicas
        if one.wants_open
        and (one.open_on is None or one.open_on is former or one.transition is not None)
        and not (one.transition is not None and one.transition.parked)
    )


def _places(replicas: Iterable[Replica], former: Server) -> dict[str, int]:
    """Return server uuid -> number of `replicas` that are open there, without the server `former`."""
    found = Counter(one.open_on.uuid for one in replicas if one.open_on is not None and one.open_on is not former)
    return dict(sorted(found.items()))


def _places_text(count: int, places: dict[str, int]) -> str:
    if not count:
        return "it had no replicas"
    where = ", ".join(f"{number} on {uuid}" for uuid, number in places.items())
    rest = count - sum(places.values())
    if not where:
        return f"its {count} replicas will open on other servers after its lease has ended"
    return f"of its {count} replicas, {where}{f', {rest} not open' if rest else ''}"
