"""Steady points: states of a tablet's file that survive a power cut.

The file is committed without sync, because the log is durable. After a power cut any subset of the pages written since
the last sync may be missing, so the file alone could be damaged. A steady point is a state that is durable and whose
pages are not written again:

    1. With no commit under way: begin a read transaction (the *pin*), and copy the file's two meta pages.
    2. Sync the file. All pages of the pinned state are durable now.
    3. Replace `<tablet>.<generation>.mdb.steady` with the meta pages and the applied index, atomically and durably.
    4. End the read transaction of the former point. Until now its pages were kept as well.

LMDB reuses a page only after a commit has freed the page and no read transaction can see an older state. So the pages
of a pinned state stay as they were synced. After a reboot, the two meta pages are written back, and the file is in the
state of the steady point again. The log has the entries after it.

The death of the process loses no written data, but ends its pins. So the rows make a new point before their first
commit after such a death.

The idea is that of "steady" meta pages in libmdbx; the formats and steps here are our own.

    <tablet>.<generation>.mdb.steady := MAGIC msgpack(SteadyPoint) crc32c:u32 (little-endian, over all before)
"""

from __future__ import annotations

from typing import Final

import msgspec
from crc32c import crc32c

from regionserver.kv.pages import Damaged, parse_meta
from regionserver.tablets.rows.errors import RowsFailed, RowsTooNew

MAGIC: Final = b"RKSTEADY"
FORMAT: Final = 1
#: A point is due after this many bytes written since the last point: about a second of a slow disk's time.
STEADY_BYTES: Final = 64 * 1024 * 1024
#: Age of the oldest write without a point at which a point is due. It limits the part of the log that is applied again
#: after a power cut.
STEADY_AFTER_S: Final = 30.0
#: Limit of a point's size: two pages of 4 to 64 KiB and a few names.
POINT_BYTES_MAX: Final = 256 * 1024
META_PAGES: Final = 2
PAGE_BYTES_MIN: Final = 512
_PAGE_HEADER: Final = 16
_CRC_BYTES: Final = 4


class SteadyPoint(msgspec.Struct, frozen=True, array_like=True):
    """One durable state of a tablet's file. `boot` is the boot of the machine in which the file's pages are valid."""

    format: int
    tablet: str
    generation: int
    boot: str
    applied_index: int
    applied_term: int
    transaction: int
    page_bytes: int
    metas: bytes

    @property
    def applied(self) -> tuple[int, int]:
        """Index and term of the last entry that the point covers."""
        return self.applied_index, self.applied_term


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SteadyPoint)


def encode(point: SteadyPoint) -> bytes:
    """Return the bytes of `<tablet>.<generation>.mdb.steady`."""
    data = MAGIC + _ENCODER.encode(point)
    return data + crc32c(data).to_bytes(_CRC_BYTES, "little")


def decode(data: bytes, path: str) -> SteadyPoint:
    """Return the steady point in `data`, the content of `path`.

    Raises:
        RowsFailed: the file is damaged or not a steady point.
        RowsTooNew: a later build wrote the file.
    """
    body, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if not data.startswith(MAGIC) or len(data) > POINT_BYTES_MAX:
        raise RowsFailed(f"{path} is no steady point of a tablet's rows")
    if crc32c(body).to_bytes(_CRC_BYTES, "little") != crc:
        raise RowsFailed(f"{path} is damaged: its checksum is wrong")
    try:
        found = msgspec.msgpack.decode(body[len(MAGIC) :])
        if isinstance(found, list) and found and isinstance(found[0], int) and found[0] > FORMAT:
            raise RowsTooNew(f"{path} has format {found[0]}, this build reads format {FORMAT}; start a later build")
        point = _DECODER.decode(body[len(MAGIC) :])
        if point.transaction != latest_transaction(point.metas, point.page_bytes, path):
            raise RowsFailed(f"{path} is damaged: its meta pages are not those of commit {point.transaction}")
    except (msgspec.MsgspecError, Damaged) as error:
        raise RowsFailed(f"{path} is damaged: {error}") from error
    return point


def latest_transaction(metas: bytes, page_bytes: int, path: str) -> int:
    """Return the number of the latest commit according to two meta pages. Raise Damaged."""
    if page_bytes < PAGE_BYTES_MIN or len(metas) != META_PAGES * page_bytes:
        raise Damaged(f"{path} has {len(metas)} bytes of meta pages, not {META_PAGES * page_bytes}")
    found = [parse_meta(metas[at + _PAGE_HEADER : at + page_bytes], path) for at in (0, page_bytes)]
    if any(one.page_bytes != page_bytes for one in found):
        raise Damaged(f"{path} has meta pages of another page size")
    return max(one.transaction for one in found)


class Unsteady:
    """The bytes written since the last steady point. Decides when the next point is due; the caller passes the time."""

    def __init__(self) -> None:
        self.written = 0
        self._since_s: float | None = None

    def note(self, size: int) -> None:
        """Add `size` bytes written by a commit."""
        self.written += size

    def is_due(self, now_s: float) -> bool:
        """Return True if a point is due. The age of a write counts from the first call that finds it."""
        if self.written == 0:
            return False
        if self._since_s is None:
            self._since_s = now_s
        return self.written >= STEADY_BYTES or now_s - self._since_s >= STEADY_AFTER_S

    def covered(self, size: int) -> None:
        """Remove the first `size` bytes: a point covers them."""
        self.written -= size
        self._since_s = None
