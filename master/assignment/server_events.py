"""Events for the assigner about servers that register or expire, and the waits of a new active master.

The registry reports each change of the live servers, of drains, fences and bars. At a startup of the cluster the master
waits until enough servers have registered. A master that takes over during an announced shutdown assigns no region
until the shutdown is complete, or until it is clear that the cluster keeps running.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from master.assignment.history_writer import HistoryWriter
from regions.assign.assigner import Assigner
from regions.cluster import events as ev
from regions.cluster.history import (
    DRAIN_BEGINS,
    DRAIN_ENDS,
    SERVER_DOWN,
    SERVER_FENCED,
    SERVER_UP,
    SERVERS,
)
from regions.liveness.reports import Reports
from regions.records.model import BarRecord, FenceRecord, Incarnation, ServerRecord, WorkOrigin
from regions.transitions.entries import DETAIL_MAX

log = Logger()

#: A new active master that finds the clean-shutdown flag and live servers assigns no region for this long.
SHUTDOWN_WAIT_S: Final = 60.0
#: Servers that have ended are handled in one turn until they had this many regions.
REGIONS_AT_ONCE: Final = 1_000


class ServerEvents:
    """The servers of one tenure of the active master."""

    def __init__(
        self,
        reactor: Any,
        assigner: Assigner,
        history_writer: HistoryWriter,
        reports: Reports,
        now_ms: Callable[[], int],
        shutdown_canceled: Callable[[], None],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        """`shutdown_canceled` is called when the cluster keeps running after an announced shutdown.

        `guarded` calls a function of the timer; an exception in it ends the tenure.
        """
        self._reactor = reactor
        self._assigner = assigner
        self._history_writer = history_writer
        self._reports = reports
        self._now_ms = now_ms
        self._shutdown_canceled = shutdown_canceled
        self._guarded = guarded
        #: Times of the registrations during this tenure.
        self.arrivals_ms: dict[Incarnation, int] = {}
        #: Origins of drain requests by the server's uuid, until the registry has read the changed znode.
        self.drain_origins: dict[str, WorkOrigin | None] = {}
        #: Servers that are being emptied.
        self._draining: frozenset[str] = frozenset()
        #: Number of live servers.
        self._count = 0
        #: Fires when `_wanted` servers live; None unless a startup waits.
        self._waiter: Deferred[None] | None = None
        self._wanted = 0
        #: Servers that lived when the wait for an announced shutdown began; None if the master does not wait for one.
        self._stopping: frozenset[Incarnation] | None = None
        self._timer: IDelayedCall | None = None

    # --- startup ------------------------------------------------------------------------------------------------------

    async def wait_for(self, minimum: int, pause_s: float, count: int) -> None:
        """Wait until `minimum` servers live (RT-03, DD-10). `count` servers live now.

        With a minimum of one, also wait until no server has registered for `pause_s`.
        """
        self._count, self._wanted = count, minimum
        while self._count < minimum:
            self._waiter = Deferred()
            await self._waiter
        if minimum == 1:
            known = -1
            while known != self._count:
                known = self._count
                pause: Deferred[None] = Deferred()
                self._reactor.callLater(pause_s, pause.callback, None)
                await pause

    def counted(self, count: int) -> None:
        """Record the number of live servers, and end `wait_for` if the number is reached."""
        self._count = count
        if self._waiter is not None and count >= self._wanted:
            waiter, self._waiter = self._waiter, None
            waiter.callback(None)

    def took_over(self, servers: list[ServerRecord], draining: list[str]) -> None:
        """Record the servers that are registered as this master takes over: nobody has recorded the changes before."""
        self._draining = frozenset(draining)
        found = " ".join(f"{one.uuid}={one.host}:{one.port}" for one in servers)
        self._history_writer.event(SERVERS, found, origin=self._assigner.causes.acting.origin)

    # --- changes ------------------------------------------------------------------------------------------------------

    def changed(
        self, servers: list[ServerRecord], draining: list[str], fences: list[FenceRecord], bars: list[BarRecord]
    ) -> bool:
        """Pass the changes to the assigner. Return True if some are left for another call, in another turn.

        A hundred servers may end or start again at once, and the assigner decides about each of their regions. The
        assigner learns of all ends first, so it places no region on a server whose end is left for another turn.
        """
        now = self._now_ms()
        self._assigner.handle(ev.BarsSeen(bars), now)
        for fence in fences:
            self._note_fence(fence)
            self._assigner.handle(ev.ServerFenced(fence), now)
        self._mark_ended({one.incarnation for one in servers}, now)
        if self._gone({one.uuid for one in servers}, now) or self._came(servers, frozenset(draining), now):
            return True
        self._note_drains(frozenset(draining))
        asked = [self.drain_origins.pop(uuid) for uuid in list(self.drain_origins)]
        origin = next((one for one in asked if one is not None), None)
        self._assigner.handle(ev.DrainingSeen(draining), now, origin)
        if self._stopping is not None and any(one.incarnation not in self._stopping for one in servers):
            self._cancel_shutdown_wait()
        return False

    def _note_fence(self, fence: FenceRecord) -> None:
        known = self._assigner.world.servers.get(fence.server.uuid)
        if known is not None and known.incarnation == fence.server.incarnation and known.fenced_until_ms is None:
            where = f"{fence.server.host}:{fence.server.port}"
            text = f"{where} {fence.reason}"[:DETAIL_MAX]
            self._history_writer.event(SERVER_FENCED, text, server=fence.server.uuid, origin=fence.origin)

    def _note_drains(self, draining: frozenset[str]) -> None:
        for uuid in sorted(draining ^ self._draining):
            cause = DRAIN_BEGINS if uuid in draining else DRAIN_ENDS
            self._history_writer.event(cause, "", server=uuid, origin=self.drain_origins.get(uuid))
        self._draining = draining

    def _mark_ended(self, alive: set[Incarnation], now_ms: int) -> None:
        """Report to the assigner which starts have ended, before it decides about the regions of any of them."""
        known = self._assigner.world.servers.values()
        ended = [one.incarnation for one in known if one.incarnation not in alive and one.fenced_until_ms is None]
        if ended:
            self._assigner.handle(ev.ServersEnded(ended), now_ms)

    def _gone(self, alive: set[str], now_ms: int) -> bool:
        """End servers that are gone, with some REGIONS_AT_ONCE of their regions. Return True if more are left."""
        regions = 0
        for uuid, known in list(self._assigner.world.servers.items()):
            if uuid not in alive and known.fenced_until_ms is None:
                if regions >= REGIONS_AT_ONCE:
                    return True
                regions += max(1, known.load)
                log.warn("server {server} has stopped or its session has expired", server=known.record.name)
                self._history_writer.membership(known.record, SERVER_DOWN)
                self._reports.forget(uuid)
                self.arrivals_ms.pop(known.incarnation, None)
                self._assigner.handle(ev.ServerDown(uuid), now_ms)
        return False

    def _came(self, servers: list[ServerRecord], draining: frozenset[str], now_ms: int) -> bool:
        """Hand registered servers to the assigner, until some REGIONS_AT_ONCE regions of their former starts have been
        decided about. Return True if servers are left."""
        regions = 0
        for record in servers:
            known = self._assigner.world.servers.get(record.uuid)
            if known is not None and known.incarnation != record.incarnation:
                if regions >= REGIONS_AT_ONCE:
                    return True
                regions += max(1, known.load)
            self._up(record, record.uuid in draining, now_ms)
        return False

    def _up(self, record: ServerRecord, is_draining: bool, now_ms: int) -> None:
        known = self._assigner.world.servers.get(record.uuid)
        if known is None or known.incarnation != record.incarnation:
            log.info("server {server} has registered", server=record.name)
            self.arrivals_ms[record.incarnation] = now_ms
            self._history_writer.membership(record, SERVER_UP)
            self._assigner.handle(ev.ServerUp(record, is_draining), now_ms)
        elif known.record != record:
            self._assigner.handle(ev.ServerUp(record, is_draining), now_ms)

    # --- an announced shutdown ----------------------------------------------------------------------------------------

    def await_shutdown(self, servers: list[ServerRecord]) -> None:
        """Assign no region during an announced shutdown. The former active master has stopped before `servers`.

        The wait is canceled when a server starts, because no server starts in a shutdown, or when the cluster still
        runs after SHUTDOWN_WAIT_S.
        """
        log.info("the cluster is being shut down; assigning no regions unless it still runs in {wait} s",
                 wait=SHUTDOWN_WAIT_S)  # fmt: skip
        self._assigner.suspend()
        self._stopping = frozenset(one.incarnation for one in servers)
        self._timer = self._reactor.callLater(SHUTDOWN_WAIT_S, self._guarded, self._cancel_shutdown_wait)

    def _cancel_shutdown_wait(self) -> None:
        self.close()
        self._timer = self._stopping = None
        log.info("the cluster still runs after an announced shutdown: assigning regions again")
        self._assigner.unsuspend(self._now_ms())
        self._shutdown_canceled()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
