"""The reads of a new active master before it acts, and the deletions at the startup of the whole cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.logger import Logger

from master.assignment.history_writer import HistoryWriter
from master.assignment.registry import Registry
from master.assignment.transitions import wipe_ops
from master.beginning.roll_call import first_heartbeat, holders_of
from master.beginning.slices import in_slices
from master.catalog import store
from master.leadership.fence import Fence, in_batches
from master.phases import Phases
from master.standby.watcher import Warm
from regions.assign.catalog.takeover import in_steps
from regions.records.model import Incarnation, WorkOrigin
from regions.replication.recovery import NamedStarts, is_startup, to_wipe
from regions.transitions.states import Cause

log = Logger()


#: Regions that are looked at in one turn of the reactor.
LOOKED_AT_ONCE: Final = 5_000


class Content:
    """State of the cluster with which a new active master begins."""

    def __init__(self, loaded: store.Loaded, named: NamedStarts, *, is_startup: bool, warm: Warm | None) -> None:
        self.loaded = loaded
        #: The servers that regions and transitions name.
        self.named = named
        #: True if the whole cluster starts, False for a failover.
        self.is_startup = is_startup
        #: The mirror that this master kept as a standby, if the tenure begins with it.
        self.warm = warm

    def log(self, epoch: int, servers: int) -> None:
        """Log the findings."""
        loaded = self.loaded
        log.info(
            "epoch {epoch}: {path}{mark}{warm}, {tables} tables, {regions} regions, {rit} in transition,"
            " {servers} servers",
            epoch=epoch,
            path="startup" if self.is_startup else "failover",
            warm=" with a warm mirror" if self.warm is not None else "",
            mark=" after an orderly shutdown" if loaded.cluster.clean_shutdown else "",
            tables=len(loaded.tables) if loaded.world is None else len(loaded.world.tables),
            regions=len(loaded.regions) if loaded.world is None else len(loaded.world.regions),
            rit=len(loaded.transitions),
            servers=servers,
        )


async def find_content(
    reactor: Any,
    fence: Fence,
    registry: Registry,
    warm: Warm | None,
    has_heard: Callable[[Incarnation], bool],
    patience_ms: int,
) -> Content:
    """Read the store, and wait until a server that holds regions is known to live (`roll_call.py`)."""
    content = await _read_content(reactor, fence, registry, warm)
    if not content.is_startup and await first_heartbeat(
        reactor,
        holders_of(content.named, registry.servers),
        has_heard,
        lambda: [one.incarnation for one in registry.servers],
        patience_ms,
    ):
        content = await _read_content(reactor, fence, registry, None)
    if content.is_startup and content.warm is not None:  # a startup has time to load and needs no mirror
        loaded = await _load(fence, None)
        return Content(loaded, await _named(reactor, loaded), is_startup=True, warm=None)
    return content


async def _read_content(reactor: Any, fence: Fence, registry: Registry, warm: Warm | None) -> Content:
    loaded = await _load(fence, warm)
    named = await _named(reactor, loaded)
    alive = [one.incarnation for one in registry.servers]
    # A fenced server may serve until its lease ends, so the cluster is not starting up.
    alive += [one.server.incarnation for one in registry.fences]
    return Content(loaded, named, is_startup=is_startup(named, alive), warm=warm)


async def _load(fence: Fence, warm: Warm | None) -> store.Loaded:
    kept = None if warm is None else warm.world
    return await store.load(fence.client, fence.layout, kept, cluster_id=fence.cluster_id)


async def _named(reactor: Any, loaded: store.Loaded) -> NamedStarts:
    """Return the starts that regions name. Nothing may change `loaded` in the meantime."""
    named = NamedStarts(one for one, _ in loaded.transitions)
    if loaded.world is not None:
        named.add_all_of(loaded.world)
        return named
    await in_slices(reactor, in_steps((one for one, _ in loaded.regions), named.add, LOOKED_AT_ONCE))
    return named


async def wipe(
    fence: Fence, history: HistoryWriter, phases: Phases, content: Content, origin: Callable[[], WorkOrigin]
) -> None:
    """Delete every transition by version: no region is open anywhere (RT-04). May be repeated (X8)."""
    wiped = to_wipe(content.named, content.loaded.transitions)
    if not wiped:
        return
    phases.begin("wipe")
    at = 0
    for batch in in_batches(wipe_ops(fence.layout, wiped)):
        ends = wiped[at : at + len(batch)]
        at += len(batch)
        await history.write(history.page_of_ends(ends, Cause.STARTUP_WIPE, origin()), batch)
