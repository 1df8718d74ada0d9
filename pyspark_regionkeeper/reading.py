"""One part of a table, read at one point of its region.

The snapshot of a backup is used (`cli/backup/source.py`): all pages show one moment, and a region that moves, or whose
tablet gets another leader, is read again from its beginning, from its new server. So rows are given to Spark only when
the part is complete; until then they are in memory, and from SPOOL_BYTES on in a file that has no name.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from typing import IO, Final

from kazoo.exceptions import KazooException

from cli.backup.source import PATIENCE_S, RegionFailedError, RegionSource
from pyspark_regionkeeper.errors import SourceError
from pyspark_regionkeeper.ranges import RegionPart
from regions.records.partitioning import unplace
from regions.records.znodes import CorruptZnode
from regionserver.client.locator import RegionLocator
from regionserver.client.store import StoreSilentError
from regionserver.kv.packing import unpack_rows

#: Bytes of a region that are kept in memory.
SPOOL_BYTES: Final = 32 * 1024 * 1024
_LENGTH: Final = struct.Struct("<I")


class Spool:
    """Pages of a region until it has been read as a whole."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 (closed by `close`)

    def begin(self) -> None:
        """Forget what was read: the region is read anew."""
        self._file.seek(0)
        self._file.truncate()

    def add(self, packed: bytes) -> None:
        """Keep one page."""
        self._file.write(_LENGTH.pack(len(packed)))
        self._file.write(packed)

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values in order."""
        self._file.seek(0)
        while head := self._file.read(_LENGTH.size):
            yield from unpack_rows(self._file.read(_LENGTH.unpack(head)[0]))

    def close(self) -> None:
        """Free memory and file."""
        self._file.close()


def read_part(
    locator: RegionLocator, table: str, part: RegionPart, buckets: int, patience_s: float = PATIENCE_S
) -> Iterator[tuple[str, bytes]]:
    """Yield keys and bytes of a part, of one moment.

    Raise SourceError if the region cannot be read for `patience_s`, or is gone.
    """
    source, spool = RegionSource(locator, patience_s=patience_s), Spool()
    start, end = part.start.encode(), part.end.encode()
    try:
        try:
            region = locator.refresh(part.table_id, part.region_id)
            if region is None:
                raise SourceError(f"table {table!r} was deleted meanwhile, or made anew; read it again")
            source.read(region, None, spool, (start, end))
        except RegionFailedError as error:
            raise SourceError(f"table {table!r}: {error}; `rk why {part.region_id}` shows the reason") from None
        except (StoreSilentError, KazooException) as error:
            raise SourceError(f"the store does not answer ({error or type(error).__name__})") from None
        except CorruptZnode as error:
            raise SourceError(f"{error}; `rk fsck` names such records") from None
        for key, value in spool.rows():
            if key >= start and (not end or key < end):
                yield unplace(key.decode(), buckets), value
    finally:
        spool.close()
        source.close()


__all__ = ["SPOOL_BYTES", "Spool", "read_part"]
