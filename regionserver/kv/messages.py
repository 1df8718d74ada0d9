"""What clients ask of a key-value region, and within which limits.

Every request names the opening that it means (`regionserver.request_gate.Place`). Keys are placed ones
(`regions.records.partitioning`): in a table with hash buckets they begin with their bucket. They are text, ordered by
code point, which is also the order of their UTF-8 bytes; values are bytes.

A write may come twice: a client that did not hear what became of it sends it again, to the same opening or to the next
one. Puts and deletes by key may be repeated; what must not happen is that the first copy, late in some socket buffer,
is carried out after the second one and after later writes. So a write says whose it is, which one, and which attempt
at it: of one write, a server carries out no attempt that comes after a later attempt, and an attempt meant for another
opening of the region is refused by its Place.
"""

from __future__ import annotations

from typing import Final

import msgspec

from coord.rpc.wire import Code, RpcError
from regions.records.model import RegionRecord
from regions.records.partitioning import is_placed
from regionserver.request_gate import Place

#: LMDB's own limit, as it is built everywhere.
KEY_BYTES_MAX: Final = 511
VALUE_BYTES_MAX: Final = 1024 * 1024
#: Keys of one read, changes of one write: what one request may cost its region's other clients.
KEYS_MAX: Final = 1000
WRITE_BYTES_MAX: Final = 4 * 1024 * 1024
#: One page of a scan, and the values of one read, end with the row that reaches this.
PAGE_ROWS_MAX: Final = 1000
PAGE_BYTES_MAX: Final = 1024 * 1024
#: Rows that one KvVerify checks at most: a few milliseconds of the region's time.
VERIFY_ROWS_MAX: Final = 5000

#: A later attempt at the same write has come; this one was not carried out.
SUPERSEDED: Final = "superseded"
#: The key does not lie in the region: the client's table of regions is out of date.
WRONG_REGION: Final = "wrong_region"
#: The region's file cannot be read or written; the message says why. A write may have been carried out.
STORAGE: Final = "storage"
#: What the region's file holds is not what was written; the message says what. The region is closed and parked.
DAMAGED: Final = "damaged"
#: The region has reached its largest size; the write was not carried out.
REGION_FULL: Final = "region_full"


class KvRead(msgspec.Struct, frozen=True, tag=True):
    """Values of some keys as of one moment. Answer: KvValues, perhaps of the first keys only."""

    place: Place
    keys: list[str]


class KvChange(msgspec.Struct, frozen=True, array_like=True):
    """Put `value` at `key`; None deletes it."""

    key: str
    value: bytes | None


class KvWrite(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Make all these changes, in this order, in one durable step. Answer: KvWritten.

    `writer`, `number`, `attempt`: see the module. A writer numbers its writes as it likes, each with its own number.
    """

    place: Place
    changes: list[KvChange]
    writer: str
    number: int
    attempt: int = 0


class KvScan(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Rows of `[start, end)` in the order of their keys, "" for no bound. Answer: KvRows, one page."""

    place: Place
    start: str = ""
    end: str = ""
    rows_max: int = PAGE_ROWS_MAX


class KvVerify(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Check stored rows from key `start` on, and report damaged ones instead of closing the region.

    Answer: KvVerified, one page. `start` is the `next_key` of the page before: bytes, because a damaged key may be any.
    """

    place: Place
    start: bytes = b""


class KvVerified(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """What one page has. `damaged` are keys for people; `trouble` says why the check cannot go on."""

    rows: int
    size: int
    #: The rows have checksums; else their keys alone were checked.
    is_checked: bool = True
    damaged: list[str] = []
    next_key: bytes = b""
    trouble: str = ""


class KvValues(msgspec.Struct, frozen=True, tag=True):
    """Values in the order of the keys, None where there is none; fewer than keys when they grow too long together."""

    values: list[bytes | None]


class KvWritten(msgspec.Struct, frozen=True, tag=True):
    """All is done and durable."""

    changes: int


class KvRow(msgspec.Struct, frozen=True, array_like=True):
    """One key and its value."""

    key: str
    value: bytes


class KvRows(msgspec.Struct, frozen=True, tag=True):
    """One page of a scan; the next one begins at `next_key`, "" after the last."""

    rows: list[KvRow]
    next_key: str = ""


KvRequest = KvRead | KvWrite | KvScan | KvVerify
KvReply = KvValues | KvWritten | KvRows | KvVerified


def check_key(key: str) -> bytes:
    """The key as it is stored. Raises RpcError(BAD_REQUEST) for one that no region can hold."""
    try:
        data = key.encode()
    except UnicodeEncodeError as error:
        raise RpcError(Code.BAD_REQUEST, f"key {key!r} is no text that UTF-8 can hold") from error
    if not 1 <= len(data) <= KEY_BYTES_MAX:
        raise RpcError(Code.BAD_REQUEST, f"a key has 1 to {KEY_BYTES_MAX} bytes, this one {len(data)}: {key[:40]!r}")
    return data


def check_value(key: str, value: bytes) -> None:
    """Raises RpcError(BAD_REQUEST) for a value that is too long."""
    if len(value) > VALUE_BYTES_MAX:
        raise RpcError(
            Code.BAD_REQUEST, f"the value of {key[:40]!r} has {len(value)} bytes, at most {VALUE_BYTES_MAX} fit"
        )


def check_request(request: KvRequest, region: RegionRecord) -> int:
    """Hold `request` against the limits and the region's range; its size in bytes. Raises RpcError."""
    if isinstance(request, KvVerify):
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
            raise RpcError(Code.BAD_REQUEST, f"a write of {size} bytes, the limit is {WRITE_BYTES_MAX}: send several")
    return size
