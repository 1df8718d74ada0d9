"""Reads a consistent snapshot of one region from the server that has the region.

If the server dies, loses the region or the tablet's leadership, or no longer keeps the snapshot, the region is read
again from its beginning, from its new server. The snapshot that ends with the last page is complete and of one moment.

    nothing was read   every other code: look the region up and begin again
    fatal              codes in FATAL: another attempt would have the same result
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from kazoo.exceptions import KazooException

from coord.rpc.wire import Code, RpcError
from regions.records.model import RegionRecord, ServerRecord
from regions.records.znodes import CorruptZnode
from regionserver.client.connections import Connections
from regionserver.client.locator import RegionLocator
from regionserver.client.store import StoreSilentError
from regionserver.kv.messages import DAMAGED, KvSnapshot, RowsPoint, SnapshotPage
from regionserver.kv.packing import checksum
from regionserver.request_gate import NOT_SERVING, Place
from regionserver.tablets.copying.sessions import Pace
from regionserver.tablets.messages import LeaderElsewhere, TabletSnapshot

#: Time limit of one page.
PAGE_TIMEOUT_S: Final = 10.0
#: A region that cannot be read for this long fails the backup.
PATIENCE_S: Final = 60.0
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
#: Codes without another attempt: damage, and servers of builds without backups.
FATAL: Final = (DAMAGED, Code.BAD_REQUEST, Code.UNSUPPORTED)


class RegionFailedError(Exception):
    """Raised if a region's rows cannot be read. The message says why."""


class RegionReplacedError(RegionFailedError):
    """Raised if a region was split or merged before its rows were read: other regions have its keys."""


class StoppedError(Exception):
    """Raised in the threads of a backup that ends for another reason."""


class RowsSink(Protocol):
    """Receives the rows of a region."""

    def begin(self) -> None:
        """Begin, or begin anew."""
        ...

    def add(self, packed: bytes) -> None:
        """Receive packed rows."""
        ...


class RegionRead(NamedTuple):
    """The result of a read: the point, the server, and the beginning of the snapshot by this machine's clock.
    `is_same`: no rows were read, because they are the rows of the point that the caller has."""

    point: RowsPoint
    server: str
    at_ms: int
    is_same: bool


class _Server(NamedTuple):
    uuid: str
    address: tuple[str, int]


class RegionSource:
    """Reads regions, for any thread."""

    def __init__(self, locator: RegionLocator, rate_bytes: int = 0, patience_s: float = PATIENCE_S) -> None:
        """`rate_bytes`: limit of bytes per second over all threads; 0: none."""
        self._locator = locator
        self._connections = Connections()
        self._pace = Pace(rate_bytes)
        self._pacing = threading.Lock()
        self._patience_s = patience_s
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let every read in progress end with StoppedError."""
        self._stopped.set()

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    def read(
        self, region: RegionRecord, known: RowsPoint | None, sink: RowsSink, span: tuple[bytes, bytes] = (b"", b"")
    ) -> RegionRead:
        """Read a region's rows into `sink`, unless they are the rows of the point `known`.

        `span`: only the pages with keys from the first to before the second; b"" is no bound. The first and the last
        page may have keys outside.

        Raises:
            RegionReplacedError: other regions have the rows.
            RegionFailedError: the rows cannot be read.
            StoppedError: `stop` was called.
        """
        pause_s = PAUSE_FIRST_S
        give_up_s = time.monotonic() + self._patience_s

        def got_on() -> None:
            nonlocal give_up_s, pause_s
            give_up_s, pause_s = time.monotonic() + self._patience_s, PAUSE_FIRST_S

        while True:
            try:
                return self._read(region, known, sink, span, got_on)
            except RpcError as error:
                if error.code in FATAL:
                    raise RegionFailedError(f"region {region.region_id}: {error.message or error.code}") from error
                problem = error.message or error.code
            except (StoreSilentError, KazooException) as error:
                problem = f"the store does not answer ({error or type(error).__name__})"
            except CorruptZnode as error:
                raise RegionFailedError(str(error)) from error
            if time.monotonic() >= give_up_s:
                raise RegionFailedError(
                    f"region {region.region_id} could not be read for {self._patience_s:g} s: {problem}"
                )
            if self._stopped.wait(pause_s):
                raise StoppedError
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _read(
        self,
        region: RegionRecord,
        known: RowsPoint | None,
        sink: RowsSink,
        span: tuple[bytes, bytes],
        got_on: Callable[[], None],
    ) -> RegionRead:
        """Read a region once. Raise RpcError, or what the locator raises."""
        now = self._locator.refresh(region.table_id, region.region_id)
        if now is not None and now.is_replaced:
            raise RegionReplacedError(f"region {region.region_id} was split or merged meanwhile")
        if now is None:
            raise RegionFailedError(f"region {region.region_id} is gone: its table was deleted meanwhile")
        begin, read_on = (self._tablet if now.is_tablet else self._shared)(now, known, span[0])
        if self._stopped.is_set():
            raise StoppedError
        at_ms = int(time.time() * 1000)
        server, page = begin()
        sink.begin()
        if page.is_same:
            return RegionRead(page.point, server.uuid, at_ms, True)
        while True:
            if checksum(page.rows) != page.crc:
                raise RpcError(Code.PROTOCOL, f"rows from {server.address[0]}:{server.address[1]} arrived damaged")
            if page.rows:
                sink.add(page.rows)
            with self._pacing:
                pause_s = self._pace.pause_s(len(page.rows), time.monotonic())
            is_stopped = self._stopped.wait(pause_s)
            is_over = bool(span[1]) and page.next_key >= span[1]
            if page.next_key and (is_over or is_stopped):
                self._ask(server, read_on(page.held, b"", True), SnapshotPage)
            if is_over or not page.next_key:
                return RegionRead(page.point, server.uuid, at_ms, False)
            got_on()
            if is_stopped:
                raise StoppedError
            page = self._ask(server, read_on(page.held, page.next_key, False), SnapshotPage)

    def _ask(self, server: _Server, request: Any, expect: Any) -> Any:
        return self._connections.call(server.address, request, expect, PAGE_TIMEOUT_S)

    # --- shared regions ---

    def _shared(self, region: RegionRecord, known: RowsPoint | None, start: bytes) -> tuple[_Begin, _ReadOn]:
        place = Place.of(region)
        server = None if place is None else self._locator.server(place.server, place.start_code)
        if place is None or server is None:
            raise RpcError(NOT_SERVING, "it is not open")
        asked = _server(server)

        def begin() -> tuple[_Server, SnapshotPage]:
            try:
                return asked, self._ask(asked, KvSnapshot(place, start=start, known=known), SnapshotPage)
            except RpcError:
                self._locator.refresh_server(asked.uuid)
                raise

        return begin, lambda held, key, ends: KvSnapshot(place, held, key, ends=ends)

    # --- tablets ---

    def _tablet(self, region: RegionRecord, known: RowsPoint | None, start: bytes) -> tuple[_Begin, _ReadOn]:
        tablet = region.region_id
        leader = region.member(region.leader)
        uuids = dict.fromkeys([*([leader.uuid] if leader else []), *(one.uuid for one in region.members)])
        found = {one.uuid: _server(one) for one in self._locator.servers(uuids)}
        waiting = [found[uuid] for uuid in uuids if uuid in found]

        def begin() -> tuple[_Server, SnapshotPage]:
            problem = RpcError(NOT_SERVING, "none of its servers is registered")
            tried: set[_Server] = set()
            while waiting:
                server = waiting.pop(0)
                if server in tried:
                    continue
                tried.add(server)
                try:
                    begun = TabletSnapshot(tablet, start=start, known=known)
                    reply = self._ask(server, begun, SnapshotPage | LeaderElsewhere)
                except RpcError as error:
                    problem = error
                    continue
                if isinstance(reply, SnapshotPage):
                    return server, reply
                problem = RpcError(NOT_SERVING, "it has no leader")
                hint = reply.view.leader
                if hint is not None and hint.port:
                    waiting.insert(0, _Server(hint.server, (hint.host, hint.port)))
            raise problem

        return begin, lambda held, key, ends: TabletSnapshot(tablet, held, key, ends=ends)


_Begin = Callable[[], tuple[_Server, SnapshotPage]]
_ReadOn = Callable[[str, bytes, bool], Any]


def _server(record: ServerRecord) -> _Server:
    return _Server(record.uuid, (record.host, record.port))
