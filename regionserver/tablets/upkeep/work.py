"""Upkeep while the server runs: checks the room on the disk, and removes former replicas from the quarantine.

once a second  ->  free bytes, on a thread  ->  below the reserve: no writes are led here, leaderships are handed over
once a minute, and while there is no room  ->  folders of the quarantine that are due are removed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, Protocol

import msgspec
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.env import Clock
from coord.rpc.wire import Code, RpcError
from regions.messages.server import TabletFigures
from regionserver.tablets.upkeep import quarantine
from regionserver.tablets.upkeep.folders import QuarantineFolders
from regionserver.tablets.upkeep.messages import (
    PurgeQuarantine,
    QuarantinedReplica,
    QuarantineList,
)
from regionserver.tablets.upkeep.quarantine import FolderRemoval, QuarantineFolder
from regionserver.tablets.upkeep.space import DiskSpace, FreeSpace
from regionserver.workers import WorkerPool

log = Logger()

#: Interval at which the free bytes of the disk are read.
LOOK_S: Final = 1.0
#: Intervals between two looks at the quarantine: usually, and while the disk has no room.
PURGE_MS: Final = 60_000
PURGE_SHORT_MS: Final = 5_000


class HostDisk(Protocol):
    """The host of tablets, for its upkeep."""

    def disk_is_short(self, *, is_short: bool) -> None:
        """Note whether the disk has less free space than its reserve."""
        ...


class Upkeep:
    """See the module docstring. Every method is called on the reactor's thread."""

    def __init__(
        self,
        reactor: Any,
        clock: Clock,
        server: str,
        host: HostDisk,
        space: DiskSpace,
        keep_ms: int,
        files_pool: WorkerPool,
        slow_pool: WorkerPool,
    ) -> None:
        """`keep_ms`: time for which the quarantine keeps a former replica."""
        self._reactor = reactor
        self._clock = clock
        self._server = server
        self._host = host
        self._space = space
        self._keep_ms = keep_ms
        self._files_pool = files_pool
        self._slow_pool = slow_pool
        self._folders = QuarantineFolders(space.directory)
        #: Monotonic time of the last look at the quarantine; None before the first.
        self._purged_ms: int | None = None
        self._is_short = False
        self._is_purging = False
        self._is_stopping = False
        #: Folders and bytes in the quarantine at the last look.
        self._count = 0
        self._bytes = 0
        #: Bytes that replicas may take, as of the last look; 0 before the first.
        self._free = 0

    def start(self) -> None:
        """Begin to look at the disk."""
        self._look()

    def stop(self) -> None:
        """End: the server stops."""
        self._is_stopping = True

    def figures(self, found: TabletFigures) -> TabletFigures:
        """Return the figures of the host, including its quarantine, and an alarm while the disk has no room."""
        alarms = [*found.alarms, *([self._short_text()] if self._is_short else [])]
        return msgspec.structs.replace(
            found, quarantined=self._count, quarantine_bytes=self._bytes, alarms=alarms, disk_free=self._free
        )

    def _short_text(self) -> str:
        reserve = self._space.reserve_bytes >> 20
        return f"less than {reserve} MB are free in {self._space.directory}: writes of tablets led here are rejected"

    # --- the disk -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self._is_stopping:
            self._slow_pool.submit(self._space.look, self._looked)

    def _looked(self, found: FreeSpace | Exception) -> None:
        if self._is_stopping:
            return
        self._reactor.callLater(LOOK_S, self._look)
        if isinstance(found, Exception):
            log.warn("free space of {path} cannot be read: {why}", path=str(self._space.directory), why=str(found))
            return
        missing, self._free = found
        now_ms = self._clock.monotonic_ms()
        self._host.disk_is_short(is_short=missing > 0)
        self._is_short = missing > 0
        pause_ms = PURGE_SHORT_MS if missing else PURGE_MS
        if not self._is_purging and (self._purged_ms is None or now_ms - self._purged_ms >= pause_ms):
            self._purged_ms = now_ms
            self._purge_due(missing).addErrback(_failed)

    # --- the quarantine -----------------------------------------------------------------------------------------------

    @inlineCallbacks
    def _purge_due(self, missing: int) -> Any:
        self._is_purging = True
        try:
            folders = yield self._list()
            yield self._remove(quarantine.due(folders, self._clock.wall_ms(), self._keep_ms, missing))
        finally:
            self._is_purging = False

    def answer(self, request: PurgeQuarantine) -> Deferred[QuarantineList]:
        """Answer a request of an operator. Raise RpcError."""
        if request.recipient not in ("", self._server):
            raise RpcError(Code.BAD_REQUEST, f"this server is {self._server}")
        answer: Deferred[QuarantineList] = self._purge(request)
        return answer.addErrback(_refused)

    @inlineCallbacks
    def _purge(self, request: PurgeQuarantine) -> Any:
        folders = yield self._list()
        now_ms = self._clock.wall_ms()
        goes, stays = quarantine.ordered(
            folders, now_ms, self._keep_ms,
            tablet=request.tablet, older_than_ms=request.older_than_ms, is_forced=request.force,
        )  # fmt: skip
        if not request.dry_run:
            yield self._remove(goes)
        going = [one.folder for one in goes]
        shown = [_shown(one, now_ms, goes=one in going) for one in quarantine.oldest_first([*going, *stays])]
        return QuarantineList(self._server, self._keep_ms, shown)

    @inlineCallbacks
    def _list(self) -> Any:
        folders: list[QuarantineFolder] = yield self._on(self._slow_pool, self._folders.find)
        self._count, self._bytes = len(folders), sum(one.size_bytes for one in folders)
        return folders

    @inlineCallbacks
    def _remove(self, purged: Sequence[FolderRemoval]) -> Any:
        names = [one.folder.name for one in purged]
        if names:
            yield self._on(self._files_pool, lambda: self._folders.take(names))
        # Do this without any name, too: an earlier process may have left folders.
        yield self._on(self._slow_pool, self._folders.remove_taken)
        for folder, why in purged:
            self._count -= 1
            self._bytes -= folder.size_bytes
            log.info(
                "removed {name} from the quarantine: {why} ({bytes} bytes)",
                name=folder.name, why=why.value, bytes=folder.size_bytes,
            )  # fmt: skip

    def _on(self, pool: WorkerPool, work: Callable[[], Any]) -> Deferred[Any]:
        """Run `work` on a thread of `pool`. Fires with its result, or fails with its exception."""
        done: Deferred[Any] = Deferred()

        def ended(result: Any) -> None:
            if isinstance(result, Exception):
                done.errback(result)
            else:
                done.callback(result)

        pool.submit(work, ended)
        return done


def _shown(folder: QuarantineFolder, now_ms: int, *, goes: bool) -> QuarantinedReplica:
    age_ms = max(0, now_ms - folder.since_ms)
    return QuarantinedReplica(folder.name, folder.tablet, folder.generation, folder.size_bytes, age_ms, goes)


def _failed(failure: Failure) -> None:
    failure.trap(OSError)  # type: ignore[no-untyped-call]
    log.warn("the quarantine cannot be cleaned: {why}", why=str(failure.value))


def _refused(failure: Failure) -> NoReturn:
    failure.trap(OSError)  # type: ignore[no-untyped-call]
    raise RpcError(Code.BAD_REQUEST, f"the quarantine cannot be cleaned: {failure.value}")
