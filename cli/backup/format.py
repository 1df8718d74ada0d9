"""The format of a backup. Pure.

    DIR/
      manifest.json           written last; a directory without it is not a backup
      UNFINISHED              only while a backup is being made
      store.backup            the whole store, as `rk coord backup` writes it
      rows/<region id>.rows   the rows of one region

    manifest.json := {"format": "regionkeeper-backup", "version": 1, "crc32c": hex, "manifest": {…}}
                     the CRC-32C covers the bytes of the inner object
    *.rows        := head chunk* end
    head          := magic "RKRW"  version:u16  0:u16
    chunk         := length:u32  crc:u32  packed rows (regionserver/kv/packing.py)      crc32c of the packed rows
    end           := 0:u32  crc:u32  rows:u64  bytes:u64  digest:16 bytes                crc32c of the last three

Numbers are little-endian. Keys increase strictly over the whole file, and are placed keys. `bytes` counts keys and
values. The digest is that of `regionserver/tablets/rows/digest.py`: it does not depend on the order of rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from crc32c import crc32c

from regions.records.model import TableRecord
from regionserver.kv.messages import KEY_BYTES_MAX, VALUE_BYTES_MAX, RowsPoint
from regionserver.kv.packing import checksum, unpack_rows
from regionserver.tablets.rows.digest import DIGEST_BYTES, add_to_digest, row_hash

MANIFEST: Final = "manifest.json"
UNFINISHED: Final = "UNFINISHED"
STORE: Final = "store.backup"
ROWS: Final = "rows"
FORMAT: Final = "regionkeeper-backup"
VERSION: Final = 1
MAGIC: Final = b"RKRW"
HEAD: Final = struct.Struct("<4sHH")
CHUNK: Final = struct.Struct("<II")
_TOTALS: Final = struct.Struct(f"<QQ{DIGEST_BYTES}s")
END_BYTES: Final = CHUNK.size + _TOTALS.size
#: A longer chunk is damage: pages end with the row that reaches their size (`regionserver/kv/held.py`).
CHUNK_BYTES_MAX: Final = 1024 * 1024 + KEY_BYTES_MAX + VALUE_BYTES_MAX
_HASHED_ROWS: Final = 4096


class DamagedBackupError(Exception):
    """Raised if a file of a backup differs from the written one. The message names the place in the file."""


class RowsTotals(msgspec.Struct, frozen=True, array_like=True):
    """Number of rows, bytes of their keys and values, and their digest."""

    rows: int = 0
    size: int = 0
    digest: bytes = bytes(DIGEST_BYTES)

    def plus(self, rows: Iterable[tuple[bytes, bytes]]) -> RowsTotals:
        """Return the totals with more rows."""
        count = size = hashes = 0
        for key, value in rows:
            count += 1
            size += len(key) + len(value)
            hashes += row_hash(key, value)
        return RowsTotals(self.rows + count, self.size + size, add_to_digest(self.digest, hashes))


class RegionBackup(msgspec.Struct, frozen=True, omit_defaults=True):
    """One region in a manifest. `digest` is in hex, `at_ms` the time of the reader's clock at which its snapshot began.

    The point of a tablet is `term` and `index` of the last applied entry; the point of a shared region is the name of
    its file on the server and the number of the last transaction in it. `is_reused`: the file is the one of the base.
    """

    region_id: str
    start_key: str
    end_key: str
    file: str
    file_bytes: int
    rows: int
    size: int
    digest: str
    at_ms: int
    server: str = ""
    term: int = 0
    index: int = 0
    source_file: str = ""
    transaction: int = 0
    is_reused: bool = False

    @property
    def totals(self) -> RowsTotals:
        """Return number, bytes and digest of the rows."""
        return RowsTotals(self.rows, self.size, bytes.fromhex(self.digest))

    def point(self, *, is_tablet: bool) -> RowsPoint:
        """Return the point as servers compare it."""
        if is_tablet:
            return RowsPoint("", 0, self.term, self.index, *msgspec.structs.astuple(self.totals))
        return RowsPoint(self.source_file, self.transaction)


class TableBackup(msgspec.Struct, frozen=True):
    """One table in a manifest, its regions by start key. A service's own table has no rows here."""

    record: TableRecord
    regions: list[RegionBackup]
    has_rows: bool = True


class StoreBackup(msgspec.Struct, frozen=True):
    """The store's snapshot in a manifest."""

    file: str
    file_bytes: int
    zxid: int
    index: int
    digest: str


class Manifest(msgspec.Struct, frozen=True):
    """The contents of a backup. Times are milliseconds of the clock of the machine that made the backup."""

    backup_id: str
    cluster_id: str
    began_ms: int
    ended_ms: int
    tables: list[TableBackup]
    store: StoreBackup | None = None
    #: Id of the backup whose files were taken over for regions that had not changed; "": every region was read.
    base: str = ""

    def regions(self) -> Iterator[tuple[TableBackup, RegionBackup]]:
        """Yield each region with its table."""
        for table in self.tables:
            for region in table.regions:
                yield table, region


class _Envelope(msgspec.Struct):
    format: str
    version: int
    crc32c: str = ""
    manifest: msgspec.Raw = msgspec.Raw(b"null")


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of manifest.json."""
    inner = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(FORMAT, VERSION, f"{crc32c(inner):08x}", msgspec.Raw(inner))) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Return a manifest. Raise DamagedBackupError."""
    try:
        found = msgspec.json.decode(data, type=_Envelope)
        if found.format != FORMAT:
            raise DamagedBackupError(f"is not the manifest of a backup: its format is {found.format[:40]!r}")
        if found.version > VERSION:
            raise DamagedBackupError(f"has version {found.version}; this build reads up to version {VERSION}")
        if found.version < 1:
            raise DamagedBackupError("is damaged: it has no version")
        inner = bytes(found.manifest)
        if f"{crc32c(inner):08x}" != found.crc32c:
            raise DamagedBackupError("is damaged: its checksum does not match")
        return msgspec.json.decode(inner, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise DamagedBackupError(f"is damaged: {error}") from error


def encode_head() -> bytes:
    """Return the beginning of a file of rows."""
    return HEAD.pack(MAGIC, VERSION, 0)


def encode_chunk(packed: bytes) -> bytes:
    """Return a chunk of packed rows, of which there is at least one."""
    return CHUNK.pack(len(packed), checksum(packed)) + packed


def encode_end(totals: RowsTotals) -> bytes:
    """Return the end of a file of rows."""
    packed = _TOTALS.pack(totals.rows, totals.size, totals.digest)
    return CHUNK.pack(0, checksum(packed)) + packed


def check_head(data: bytes) -> None:
    """Check the first HEAD.size bytes of a file of rows. Raise DamagedBackupError."""
    if len(data) < HEAD.size:
        raise DamagedBackupError("is truncated: it has no complete head")
    magic, version, reserved = HEAD.unpack(data)
    if magic != MAGIC:
        raise DamagedBackupError("is damaged: it does not begin as a file of rows")
    if version > VERSION:
        raise DamagedBackupError(f"has version {version}; this build reads up to version {VERSION}")
    if version != VERSION or reserved:
        raise DamagedBackupError("is damaged: its head is none that a backup writes")


class RowsChecker:
    """Checks a file of rows, chunk by chunk: checksums, order and range of keys, totals."""

    def __init__(self, start_key: str = "", end_key: str = "") -> None:
        """Keys are to be in `[start_key, end_key)`; "" means no bound."""
        self._start = start_key.encode()
        self._end = end_key.encode()
        self._last: bytes | None = None
        self.totals = RowsTotals()

    def chunk(self, at: int, crc: int, packed: bytes) -> list[tuple[bytes, bytes]]:
        """Return the rows of the chunk at byte `at`. Raise DamagedBackupError."""
        if checksum(packed) != crc:
            raise DamagedBackupError(f"is damaged: the chunk at byte {at} does not match its checksum")
        try:
            rows = list(unpack_rows(packed))
        except ValueError as error:
            raise DamagedBackupError(f"is damaged: the chunk at byte {at}: {error}") from error
        last = self._last
        for key, _ in rows:
            if (last is not None and key <= last) or key < self._start or (self._end and key >= self._end):
                raise DamagedBackupError(
                    f"is damaged: the chunk at byte {at} has key {key[:40]!r} out of order or range"
                )
            last = key
        self._last = last
        self.totals = self.totals.plus(rows)
        return rows

    def end(self, at: int, crc: int, packed: bytes) -> None:
        """Check the end of the file, at byte `at`. Raise DamagedBackupError."""
        if checksum(packed) != crc:
            raise DamagedBackupError(f"is damaged: the end at byte {at} does not match its checksum")
        if packed != _TOTALS.pack(self.totals.rows, self.totals.size, self.totals.digest):
            raise DamagedBackupError(f"is damaged: its {self.totals.rows} rows are not those that it was written with")


__all__ = [
    "CHUNK",
    "CHUNK_BYTES_MAX",
    "END_BYTES",
    "FORMAT",
    "HEAD",
    "MANIFEST",
    "ROWS",
    "STORE",
    "UNFINISHED",
    "VERSION",
    "DamagedBackupError",
    "Manifest",
    "RegionBackup",
    "RowsChecker",
    "RowsTotals",
    "StoreBackup",
    "TableBackup",
    "check_head",
    "decode_manifest",
    "encode_chunk",
    "encode_end",
    "encode_head",
    "encode_manifest",
]
