"""Fencing at an operator's wish (X10): a server is taken out, its regions go elsewhere, and it stays out.

The multi that deletes the server's registration leaves a bar below `/barred`: the server closes everything and joins
again under a new start code within a second, and gets no regions until an operator ends the bar or its time is over.
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

#: The store's answer to the write that fences a server comes in this time, or the server is fenced later.
FENCE_WAIT_MS = 10_000


async def fence(active_master: ActiveContext, request: ms.FenceServer) -> ms.Accepted:
    """Have a server fenced; with `wait_ms`, answer when its replicas are open elsewhere. Raise RpcError."""
    uuid = request.uuid
    if request.bar_ms < fx.BAR_FOR_EVER:
        raise RpcError(ms.BAD_REQUEST, f"{request.bar_ms} ms is no time for which a server can be fenced")
    server = active_master.world.servers.get(uuid)
    if server is None:
        raise RpcError(ms.NOT_FOUND, f"there is no live server {uuid!r}")
    now = server.incarnation.start_code
    if request.start_code not in (0, now):
        raise RpcError(
            ms.BAD_REQUEST,
            f"server {uuid} was started again since: start {request.start_code} was to be fenced, start {now} lives"
            " now; nothing was done, look again",
        )
    replicas = [*server.open.values(), *server.incoming.values()]
    is_fenced_already = bool(server.fencing)
    active_master.observe(ev.FenceRequested(uuid, request.reason, request.bar_ms))
    await active_master.wait(
        lambda: not server.fencing or server.fenced_until_ms is not None,
        FENCE_WAIT_MS,
        lambda: f"the store has not confirmed yet that {uuid} is fenced",
    )
    if not server.fencing:
        raise RpcError(ms.BUSY, f"server {uuid} has gone or changed meanwhile")
    if is_fenced_already and request.bar_ms:
        # By the master itself, or by a request that named another time: only the bar is new.
        await store.bar_server(active_master.fence, active_master.bar_of(server.record, request.reason, request.bar_ms))
    waiting = f"{uuid} is fenced{bar_duration_text(request.bar_ms)}"
    await active_master.wait(
        lambda: not _left(replicas, server),
        request.wait_ms,
        lambda: f"{waiting}; {_left(replicas, server)} of its {len(replicas)} replicas are not open elsewhere yet",
    )
    places = _places(replicas, server)
    return ms.Accepted(f"{waiting}; {_words(len(replicas), places)}", places)


async def unfence(active_master: ActiveContext, request: ms.UnfenceServer) -> ms.Accepted:
    """End a server's bar. Raise RpcError if there is none."""
    if request.uuid not in active_master.world.bars:
        path = active_master.fence.layout.bar(request.uuid)
        if await active_master.fence.client.exists(path) is None:
            raise RpcError(ms.NOT_FOUND, f"server {request.uuid!r} is not fenced")
    await store.delete_if_there(active_master.fence, active_master.fence.layout.bar(request.uuid))
    return ms.Accepted(f"{request.uuid} gets regions again")


def bar_duration_text(bar_ms: int) -> str:
    """Return how long the server gets no regions after it was fenced."""
    if not bar_ms:
        return ""
    return " until `rk server unfence`" if bar_ms == fx.BAR_FOR_EVER else f" for {bar_ms / 1000:g} s"


def _left(replicas: Iterable[Replica], former: Server) -> int:
    """Return how many replicas are to be open and are not, or are still on the fenced start."""
    return sum(
        1
        for one in replicas
        if one.wants_open
        and (one.open_on is None or one.open_on is former or one.transition is not None)
        and not (one.transition is not None and one.transition.parked)
    )


def _places(replicas: Iterable[Replica], former: Server) -> dict[str, int]:
    """Return how many replicas are open on which server by now."""
    found = Counter(one.open_on.uuid for one in replicas if one.open_on is not None and one.open_on is not former)
    return dict(sorted(found.items()))


def _words(count: int, places: dict[str, int]) -> str:
    if not count:
        return "it had no replicas"
    where = ", ".join(f"{number} on {uuid}" for uuid, number in places.items())
    rest = count - sum(places.values())
    if not where:
        return f"its {count} replicas go to other servers when its lease is over"
    return f"of its {count} replicas there are {where}{f', and {rest} are closed' if rest else ''}"
