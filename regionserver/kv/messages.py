"""Requests to a key-value region, and their limits.

Every request names the opening that it addresses (`regionserver.request_gate.Place`). Keys are placed keys
(`regions.records.partitioning`): in a table with hash buckets they begin with their bucket. Keys are text, ordered by
code point, which is also the order of their UTF-8 bytes. Values are bytes.

A write may arrive twice: a client that received no reply sends it again, to the same opening or to the next one. Puts
and deletes by key are idempotent, but the first copy may be delayed in a socket buffer. It must not be executed after
the second copy and later writes. So each write carries its writer, a number, and the number of the attempt. A server
rejects an attempt after a later attempt of the same write. Its Place rejects an attempt for another opening.
"""

from __future__ import annotations

from typing import Final

import msgspec

from coord.rpc.wire import Code, RpcError
from regions.records.model import RegionRecord
from regions.records.partitioning import is_placed
from regionserver.kv.rows import DAMAGED as DAMAGED
from regionserver.request_gate import Place

#: The limit of LMDB in its standard build.
KEY_BYTES_MAX: Final = 511
VALUE_BYTES_MAX: Final = 1024 * 1024
#: Keys of one read, and changes of one write; bounds the delay of the region's other clients.
KEYS_MAX: Final = 1000
WRITE_BYTES_MAX: Final = 4 * 1024 * 1024
#: A page of a scan, and the values of one read, end with the row that reaches one of these limits.
PAGE_ROWS_MAX: Final = 1000
PAGE_BYTES_MAX: Final = 1024 * 1024
#: Rows that one KvVerify checks at most: a few milliseconds of work.
VERIFY_ROWS_MAX: Final = 5000

#: A later attempt of the same write has arrived; this attempt was not executed.
SUPERSEDED: Final = "superseded"
#: The key is outside of the region: the client's cached location is outdated.
WRONG_REGION: Final = "wrong_region"
#: The region's file cannot be read or written; the message names the reason. A write may have been executed.
STORAGE: Final = "storage"
#: The region has reached its largest size; the write was not executed.
REGION_FULL: Final = "region_full"
#: The rows were encoded under an earlier version of the table's schema than the server knows; nothing was done. The
#: client reads the table's record, encodes the rows again and retries (docs/rows.md).
SCHEMA_CHANGED: Final = "schema_changed"
#: Schema version of writes of keys and bytes.
NO_SCHEMA: Final = -1


class KvRead(msgspec.Struct, frozen=True, tag=True):
    """Read the values of some keys in one snapshot. Reply: KvValues, perhaps of the first keys only."""

    place: Place
    keys: list[str]


class KvChange(msgspec.Struct, frozen=True, array_like=True):
    """Put `value` at `key`; None deletes it."""

    key: str
    value: bytes | None


class KvWrite(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Make all these changes, in this order, in one durable commit. Reply: KvWritten.

    `writer`, `number`, `attempt`: see the module docstring. Each write of a writer has its own number.
    `schema_version`: the version of the table's schema under which the rows were encoded.
    """

    place: Place
    changes: list[KvChange]
    writer: str
    number: int
    attempt: int = 0
    schema_version: int = NO_SCHEMA


class KvScan(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Read rows of `[start, end)` in the order of their keys; "" means no bound. Reply: KvRows, one page."""

    place: Place
    start: str = ""
    end: str = ""
    rows_max: int = PAGE_ROWS_MAX


class KvVerify(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Check stored rows from key `start` on; report damaged rows instead of closing the region.

    Reply: KvVerified, one page. `start` is the `next_key` of the previous page, as bytes, because a damaged key may
    not be valid text.
    """

    place: Place
    start: bytes = b""


class KvVerified(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Result of one page. `damaged` are printable keys; `trouble` is the reason why the check cannot continue."""

    rows: int
    size: int
    #: The rows have checksums; otherwise only their keys were checked.
    is_checked: bool = True
    damaged: list[str] = []
    next_key: bytes = b""
    trouble: str = ""


class RowsPoint(msgspec.Struct, frozen=True, array_like=True):
    """The point of a snapshot: identifies the state of a region's rows.

    For a shared region: the name of its file ("" without a file) and the number of the latest transaction in the file.
    For a tablet: the last applied entry of the log, and the number, bytes and digest of the rows.
    """

    file: str = ""
    transaction: int = 0
    term: int = 0
    index: int = 0
    rows: int = -1
    size: int = -1
    digest: bytes = b""

    def has_same_rows(self, other: RowsPoint) -> bool:
        """Return True if the rows at both points of one region are certainly equal."""
        if self.digest:
            return (self.rows, self.size, self.digest) == (other.rows, other.size, other.digest)
        return not other.digest and (self.file, self.transaction) == (other.file, other.transaction)


class KvSnapshot(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Begin a snapshot of the region's rows, read on in the one named `held`, or end it.

    The first page has all rows that were acknowledged before this request arrived. `start` is the `next_key` of the
    previous page. With `known`, a snapshot that has the same rows is not begun. Reply: SnapshotPage.
    """

    place: Place
    held: str = ""
    start: bytes = b""
    known: RowsPoint | None = None
    ends: bool = False


class SnapshotPage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One page of a held snapshot (`regionserver/kv/held.py`); all pages of one snapshot show one moment.

    `rows` are packed (`regionserver/kv/packing.py`), `crc` is their checksum. `is_same`: the page has no rows, because
    the region still has the rows of the point that the request names.
    """

    point: RowsPoint
    held: str = ""
    rows: bytes = b""
    crc: int = 0
    next_key: bytes = b""
    is_same: bool = False


class KvValues(msgspec.Struct, frozen=True, tag=True):
    """Values in the order of the keys, None for missing keys; fewer values than keys if they exceed a page."""

    values: list[bytes | None]


class KvWritten(msgspec.Struct, frozen=True, tag=True):
    """All changes are durable."""

    changes: int


class KvRow(msgspec.Struct, frozen=True, array_like=True):
    """One key and its value."""

    key: str
    value: bytes


class KvRows(msgspec.Struct, frozen=True, tag=True):
    """One page of a scan. The next page begins at `next_key`; "" after the last page."""

    rows: list[KvRow]
    next_key: str = ""


KvRequest = KvRead | KvWrite | KvScan | KvVerify | KvSnapshot
KvReply = KvValues | KvWritten | KvRows | KvVerified | SnapshotPage


def check_schema(written: int, known: int) -> int:
    """Return the latest schema version that the server knows after a write under version `written`.

    A server learns a later version from a master or from a write, because the client of the write has read the version
    in the store. Raise RpcError(SCHEMA_CHANGED) for a write under an earlier version.
    """
    if NO_SCHEMA < written < known:
        raise RpcError(
            SCHEMA_CHANGED, f"the rows were encoded under schema version {written}, the table has version {known}"
        )
    return max(written, known)


def check_key(key: str) -> bytes:
    """Return the key as it is stored. Raise RpcError(BAD_REQUEST) for a key that no region can hold."""
    try:
        data = key.encode()
    except UnicodeEncodeError as error:
        raise RpcError(Code.BAD_REQUEST, f"key {key!r} cannot be encoded in UTF-8") from error
    if not 1 <= len(data) <= KEY_BYTES_MAX:
        raise RpcError(Code.BAD_REQUEST, f"key {key[:40]!r} has {len(data)} bytes; allowed are 1 to {KEY_BYTES_MAX}")
    return data


def check_value(key: str, value: bytes) -> None:
    """Raise RpcError(BAD_REQUEST) for a value that is too long."""
    if len(value) > VALUE_BYTES_MAX:
        raise RpcError(
            Code.BAD_REQUEST, f"the value of {key[:40]!r} has {len(value)} bytes; the limit is {VALUE_BYTES_MAX}"
        )


def check_request(request: KvRequest, region: RegionRecord) -> int:
    """Check `request` against the limits and the region's range; return its size in bytes. Raise RpcError."""
    if isinstance(request, KvVerify | KvSnapshot):
        return 0
    if isinstance(request, KvScan):
        if not 1 <= request.rows_max <= PAGE_ROWS_MAX:
            raise RpcError(Code.BAD_REQUEST, f"a page has 1 to {PAGE_ROWS_MAX} rows, not {request.rows_max}")
        for bound in filter(None, (request.start, request.end)):
            check_key(bound)
        return 0
    keys = request.keys if isinstance(request, KvRead) else [one.key for one in request.changes]
    if not 1 <= len(keys) <= KEYS_MAX:
        raise RpcError(Code.BAD_REQUEST, f"a request names 1 to {KEYS_MAX} keys, not {len(keys)}")
    size = 0
    for key in keys:
        size += len(check_key(key))
        if not region.contains(key):
            raise RpcError(WRONG_REGION, f"key {key[:40]!r} is not in region {region.region_id}")
        if not is_placed(key, region.hash_buckets):
            raise RpcError(
                Code.BAD_REQUEST,
                f"key {key[:40]!r} does not begin with its bucket: its table has {region.hash_buckets} hash buckets",
            )
    if isinstance(request, KvWrite):
        for change in request.changes:
            if change.value is not None:
                check_value(change.key, change.value)
                size += len(change.value)
        if size > WRITE_BYTES_MAX:
            raise RpcError(Code.BAD_REQUEST, f"the write has {size} bytes; the limit is {WRITE_BYTES_MAX}: split it")
    return size
