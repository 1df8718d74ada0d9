"""Handles replicas that servers report and the catalog contradicts (`regions/liveness/reports.py` defines suspects).

For each suspect the store is read again, and decides. If the replica belongs to another server, the master orders the
reporting server to check the replica and to drop it (`ReviewReplicas`, under the master's epoch). The order is repeated
every few seconds, by this master or the next one, until the server reports that the replica is gone. So no single
message has to arrive (KUDU-1374). Orphans are reported to the operator and not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import GetData, ReadResult
from coord.errors import NoNode, OperationError
from master.assignment.dispatch import Dispatcher
from master.leadership.fence import Fence
from regions.cluster.causes import Causes
from regions.cluster.state import ClusterState
from regions.liveness.reports import Reports, Ruling, Suspect, by_server, ruling
from regions.records.znodes import CorruptZnode, decode_region, decode_transition

log = Logger()

CHECK_EVERY_MS: Final = 1_000
#: Orphans named in the problems of `rk status`.
SHOWN_MAX: Final = 5


class MisplacedReplicas:
    """Checks of misplaced replicas during one tenure. `tick` is called twice a second."""

    def __init__(
        self,
        fence: Fence,
        world: ClusterState,
        reports: Reports,
        dispatcher: Dispatcher,
        now_ms: Callable[[], int],
        failed: Callable[[Failure], None],
        causes: Causes,
    ) -> None:
        self._causes = causes
        self._fence = fence
        self._world = world
        self._reports = reports
        self._dispatcher = dispatcher
        self._now_ms = now_ms
        self._failed = failed
        self._next_ms = 0
        self._is_reading = False
        #: Called once for each orphan.
        self.orphan_found: Callable[[Suspect], object] = lambda _suspect: None
        #: Number of replicas that servers were ordered to check.
        self.reviews = 0

    def tick(self) -> None:
        """Check the suspects that are due."""
        now_ms = self._now_ms()
        if self._is_reading or now_ms < self._next_ms:
            return
        self._next_ms = now_ms + CHECK_EVERY_MS
        suspects = self._reports.due(now_ms)
        if suspects:
            self._is_reading = True
            ensureDeferred(self._check(suspects)).addErrback(self._failed)

    def problems(self) -> list[str]:
        """Return the lines about orphans for the operator."""
        orphans = self._reports.orphans
        lines = [
            f"orphan: server {one.server} serves {one.key}, which no table in the store has; the server keeps it open"
            for one in orphans[:SHOWN_MAX]
        ]
        if len(orphans) > SHOWN_MAX:
            lines.append(f"and {len(orphans) - SHOWN_MAX} more orphans")
        return lines

    async def _check(self, suspects: Sequence[Suspect]) -> None:
        layout = self._fence.layout
        paths = [
            path
            for one in suspects
            for path in (layout.region(one.table_id, one.region_id), layout.transition(one.region_id, one.replica))
        ]
        try:
            found = await self._fence.client.multi_read([GetData(path) for path in paths])
        finally:
            self._is_reading = False
        disowned = []
        for at, one in enumerate(suspects):
            decided = _ruling(one, found[2 * at], found[2 * at + 1], paths[2 * at], paths[2 * at + 1])
            if decided is None:
                continue
            if self._reports.set_ruling(one, decided, self._now_ms()):
                log.error("orphan: server {server} serves {key}, which no table in the store has", server=one.server,
                          key=one.key)  # fmt: skip
                self.orphan_found(one)
            if decided is Ruling.DISOWNED:
                disowned.append(one)
        for incarnation, ones in by_server(disowned).items():
            server = self._world.servers.get(incarnation.uuid)
            if server is not None and server.incarnation == incarnation:
                names = ", ".join(one.key for one in ones[:SHOWN_MAX])
                origin = self._causes.begin(f"heartbeat: server {incarnation} reports regions that belong to others")
                log.warn("server {server} serves replicas that belong to other servers ({names}): ordering it to check"
                         " them (cause {cause})", server=incarnation, names=names, cause=origin.cause_id)  # fmt: skip
                self.reviews += len(ones)
                self._dispatcher.review(server.record, [(one.region_id, one.replica) for one in ones], origin.cause_id)


def _ruling(suspect: Suspect, region: ReadResult, transition: ReadResult, *paths: str) -> Ruling | None:
    """Return the ruling about a suspect from its two znodes, or None if one of them is damaged."""
    try:
        return ruling(suspect, _value(region, decode_region, paths[0]), _value(transition, decode_transition, paths[1]))
    except CorruptZnode as error:
        log.error("cannot check reported replica {key}: {error}", key=suspect.key, error=error)
        return None


def _value(result: ReadResult, decode: Callable[[bytes, str], Any], path: str) -> Any:
    if isinstance(result, NoNode):
        return None
    if isinstance(result, OperationError):
        raise result
    assert isinstance(result, tuple), f"a read is answered by a pair, not by {result!r}"
    return decode(result[0], path)
