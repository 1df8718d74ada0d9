"""A graceful stop: the regions are handed over one by one while the others are still served.

The server says in its registration that it is leaving. The active master then treats it as a server to be emptied: it
gets nothing more, and each of its regions is closed here and opened elsewhere at once. So a rolling restart costs each
region its own move and nothing else. The server waits until it has nothing left, but not for ever: it stops all at once
when nothing has left it for a while, or when there is nobody to hand over to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from twisted.internet.task import deferLater
from twisted.logger import Logger

from coord.client.session import SessionState, ZkClient
from coord.errors import NoNode, OperationError
from regions.records.model import ServerRecord
from regions.records.znodes import CorruptZnode, Layout, decode_cluster

log = Logger()

#: No region left this server for so long: whoever should take them does not.
STALL_S: Final = 5.0
LOOK_S: Final = 0.05


async def hand_over(
    reactor: Any,
    client: ZkClient,
    paths: Layout,
    record: ServerRecord,
    announce: Callable[[ServerRecord], Awaitable[None]],
    left: Callable[[], int],
    patience_s: float,
) -> None:
    """Come back when `left()` is zero, or as soon as waiting any longer makes no sense; never fails.

    `announce` writes the registration of this server, which is `record`, anew.
    """
    if not left() or patience_s <= 0:
        return
    try:
        reason = await _obstacle(client, paths, record)
        if reason:
            log.info("not moving regions away before the stop: {reason}", reason=reason)
            return
        await announce(msgspec.structs.replace(record, leaving=True, session_ms=client.timeout_ms))
    except (OperationError, CorruptZnode) as error:
        log.info("not moving regions away before the stop: {error}", error=error)
        return
    log.info("waiting for the active master to move {count} regions away", count=left())
    await _until_empty(reactor, client, left, patience_s)


async def _obstacle(client: ZkClient, paths: Layout, record: ServerRecord) -> str:
    """Return why no server would take the regions; "" if one should."""
    if client.state is not SessionState.CONNECTED:
        return "no connection with the store"
    try:
        cluster, _ = await client.get(paths.cluster)
    except NoNode:
        return "there never was a master"
    if decode_cluster(cluster, paths.cluster).clean_shutdown:
        return "the whole cluster is being shut down"
    if await client.exists(paths.active) is None:
        return "there is no active master"
    if set(await client.children(paths.servers)) <= {record.uuid}:
        return "there is no other server"
    return ""


async def _until_empty(reactor: Any, client: ZkClient, left: Callable[[], int], patience_s: float) -> None:
    count = left()
    waited_s = stalled_s = 0.0
    while count and waited_s < patience_s and stalled_s < STALL_S and client.state is SessionState.CONNECTED:
        await deferLater(reactor, LOOK_S)
        waited_s += LOOK_S
        now = left()
        stalled_s = 0.0 if now < count else stalled_s + LOOK_S
        count = now
    if count:
        log.warn(
            "{count} regions were not moved away within {waited:.1f} s, closing them", count=count, waited=waited_s
        )
