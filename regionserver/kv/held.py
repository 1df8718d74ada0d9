"""Held snapshots: the rows of one region at one moment, kept by its server while a backup reads them page by page.

A held snapshot is a read transaction of LMDB. Writes go on meanwhile; the file grows, because no page of the snapshot
is used again before its end. A snapshot ends with its last page, when its reader releases it or asks for nothing for
HELD_IDLE_S, and when the region's file is closed or its map grows. Then the reader gets SNAPSHOT_GONE and begins the
region again. So a backup never delays the move of a region.

Pages are read on worker threads; `HeldSnapshots` belongs to the reactor's thread.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from coord.rpc.wire import Code, RpcError
from regionserver.kv.messages import RowsPoint, SnapshotPage
from regionserver.kv.packing import checksum, pack_row
from regionserver.kv.rows import unseal

#: The server no longer keeps the snapshot; begin the region anew.
SNAPSHOT_GONE: Final = "snapshot_gone"
#: Limit of snapshots at the same time, one limit for the shared regions and one for the tablets of a server.
HELD_MAX: Final = 32
#: Time without a request of the reader after which a snapshot ends.
HELD_IDLE_S: Final = 30.0
#: A page ends with the row that reaches this size.
SNAPSHOT_PAGE_BYTES: Final = 256 * 1024


class HeldRows:
    """One held snapshot; for any thread, one page at a time."""

    def __init__(
        self,
        transaction: Any,
        point: RowsPoint,
        *,
        is_checked: bool = True,
        ended: Callable[[HeldRows], object] = lambda _held: None,
    ) -> None:
        """`transaction` is None if the region has no rows. `is_checked`: the rows have checksums. `ended` is called
        once."""
        self.point = point
        self._transaction = transaction
        self._is_checked = is_checked
        self._ended = ended
        self._using = threading.Lock()
        self._is_ended = False

    def page(self, start: bytes, bytes_max: int) -> tuple[bytes, bytes]:
        """Return packed rows from key `start` on, and the key of the next page, b"" after the last page.

        Raises:
            RpcError: SNAPSHOT_GONE, or DAMAGED for a row whose checksum does not match.
        """
        with self._using:
            if self._is_ended:
                raise gone()
            if self._transaction is None:
                return b"", b""
            packed = bytearray()
            with self._transaction.cursor() as cursor:
                found = cursor.set_range(start) if start else cursor.first()
                while found:
                    key, value = cursor.item()
                    if len(packed) >= bytes_max:
                        return bytes(packed), key
                    packed += pack_row(key, unseal(key, value) if self._is_checked else value)
                    found = cursor.next()
            return bytes(packed), b""

    def end(self) -> None:
        """End the snapshot, after the page that is being read."""
        with self._using:
            if self._is_ended:
                return
            self._is_ended = True
            if self._transaction is not None:
                self._transaction.abort()
        self._ended(self)


class Holdable(Protocol):
    """Rows that can be held, such as `regionserver.kv.snapshot.RowSnapshot`."""

    def hold(self) -> HeldRows:
        """Return a held snapshot of these rows, or of later ones."""
        ...


class PageRead(msgspec.Struct):
    """A page that a worker has read, and the snapshot if another page follows."""

    held: Any
    page: SnapshotPage


def gone() -> RpcError:
    """Return the error for a snapshot that has ended."""
    return RpcError(SNAPSHOT_GONE, "the server no longer keeps this snapshot of the region")


def read_page(rows: Holdable, held: HeldRows | None, start: bytes, known: RowsPoint | None) -> PageRead:
    """Return one page of `held`, or the first page of a new snapshot of `rows`. On a worker thread.

    The page has no rows if the new snapshot has the same rows as the point `known`. Raise RpcError.
    """
    if held is None:
        held = rows.hold()
        if known is not None and known.has_same_rows(held.point):
            held.end()
            return PageRead(None, SnapshotPage(point=held.point, is_same=True))
    try:
        packed, next_key = held.page(start, SNAPSHOT_PAGE_BYTES)
    except BaseException:
        held.end()
        raise
    if not next_key:
        held.end()
    page = SnapshotPage(point=held.point, rows=packed, crc=checksum(packed), next_key=next_key)
    return PageRead(held if next_key else None, page)


class Timers(Protocol):
    """The part of a reactor that HeldSnapshots uses."""

    def callLater(self, delay: float, f: Callable[..., object], *args: object) -> Any: ...


class HeldSnapshots:
    """The held snapshots of one service by name, on the reactor's thread."""

    def __init__(self, timers: Timers, limit: int = HELD_MAX) -> None:
        self._timers = timers
        self._limit = limit
        self._held: dict[str, tuple[HeldRows, Any]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def find(self, name: str) -> HeldRows | None:
        """Return the snapshot with that name, None for the name "". Raise RpcError(BUSY, SNAPSHOT_GONE)."""
        if not name:
            if len(self._held) >= self._limit:
                raise RpcError(Code.BUSY, f"the server already keeps {self._limit} snapshots for backups")
            return None
        found = self._held.get(name)
        if found is None:
            raise gone()
        found[1].reset(HELD_IDLE_S)
        return found[0]

    def settle(self, name: str, read: PageRead) -> SnapshotPage:
        """Keep a snapshot that has another page, and drop one that has none. Return the page for the client."""
        if read.held is None:
            self.end(name)
            return read.page
        if not name:
            name = secrets.token_hex(8)
            self._held[name] = (read.held, self._timers.callLater(HELD_IDLE_S, self.end, name))
        return msgspec.structs.replace(read.page, held=name)

    def end(self, name: str) -> None:
        """End the snapshot with that name, if there is one."""
        found = self._held.pop(name, None)
        if found is not None:
            held, timer = found
            if timer.active():
                timer.cancel()
            held.end()

    def end_all(self) -> None:
        """End all snapshots."""
        for name in list(self._held):
            self.end(name)
