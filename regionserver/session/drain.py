"""A graceful stop: regions are moved to other servers one by one while the others are still served.

The server marks itself as leaving in its registration. The active master then drains it: the server gets no new
regions, and each of its regions is closed here and opened elsewhere at once. So a rolling restart interrupts each
region only for its own move. The server waits until no replica is left. It stops waiting after STALL_S without
progress, or if no other server can take the regions.
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

#: Time without a moved region after which the server closes the rest itself.
STALL_S: Final = 5.0
POLL_S: Final = 0.05


async def drain(
    reactor: Any,
    client: ZkClient,
    paths: Layout,
    record: ServerRecord,
    announce: Callable[[ServerRecord], Awaitable[None]],
    left: Callable[[], int],
    limit_s: float,
) -> None:
    """Return when `left()` is zero, or when waiting is useless. Never raises.

    `announce` writes a changed registration of this server; `record` is the present one.
    """
    if not left() or limit_s <= 0:
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
    await _until_empty(reactor, client, left, limit_s)


async def _obstacle(client: ZkClient, paths: Layout, record: ServerRecord) -> str:
    """Return why no server could take the regions, or ""."""
    if client.state is not SessionState.CONNECTED:
        return "no connection with the store"
    try:
        cluster, _ = await client.get(paths.cluster)
    except NoNode:
        return "there has never been a master"
    if decode_cluster(cluster, paths.cluster).clean_shutdown:
        return "the whole cluster is being shut down"
    if await client.exists(paths.active) is None:
        return "there is no active master"
    if set(await client.children(paths.servers)) <= {record.uuid}:
        return "there is no other server"
    return ""


async def _until_empty(reactor: Any, client: ZkClient, left: Callable[[], int], limit_s: float) -> None:
    count = left()
    waited_s = stalled_s = 0.0
    while count and waited_s < limit_s and stalled_s < STALL_S and client.state is SessionState.CONNECTED:
        await deferLater(reactor, POLL_S)
        waited_s += POLL_S
        now = left()
        stalled_s = 0.0 if now < count else stalled_s + POLL_S
        count = now
    if count:
        log.warn(
            "{count} regions were not moved away within {waited:.1f} s, closing them", count=count, waited=waited_s
        )
