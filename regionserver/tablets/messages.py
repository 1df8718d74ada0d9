"""Requests of clients to a tablet, their replies, and their limits.

A client sends a request to the server that, as far as the client knows, leads the tablet. The leader carries the
request out. Every other server replies LeaderElsewhere with the leader that it knows. The envelope of a request names
the cluster (`coord.rpc.wire.Request`), and a server rejects requests for another cluster with WRONG_CLUSTER.

Keys are placed keys (`regions.records.partitioning`), as in the requests for shared regions.

A client repeats a write that got no reply, perhaps to another server, as the same TabletWrite. The tablet carries out
one copy (`regionserver.tablets.writers`). `time_ms` of each reply is the server's present time, and at least the
tablet's clock. A writer uses it as `began_ms` of its next write.

Rejections are RpcErrors:

    busy              nothing was done: too many requests wait, or leadership is being handed over; retry after a pause
    outcome_unknown   leadership ended before the write was applied: repeat the same write
    no_replica        nothing was done: the server has no replica of the tablet; try another member
    replica_failed    the replica does not run. A write that waited there may have been applied: try another member
    too_stale         the replica lacks the entry that the read names: ask the leader
    wrong_region      nothing was done, and no copy of the write was: a key is outside the tablet's range, or the tablet
                      was split
    schema_changed    nothing was done: the rows were encoded under an earlier schema than the server knows
    bad_request       nothing was done: the request is invalid
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from coord.rpc.wire import Code, RpcError
from regions.messages.codes import TOO_STALE
from regions.records.partitioning import is_placed
from regionserver.kv.messages import (
    KEYS_MAX,
    NO_SCHEMA,
    PAGE_ROWS_MAX,
    WRONG_REGION,
    KvRow,
    RowsPoint,
    SnapshotPage,
    check_key,
)
from regionserver.tablets.commands import KEY_BYTES_MAX, CommandError, KvCommand, Operation, WriteOutcome, check

#: Limit of tablets in one WhoLeads: a client with a table of 10,000 tablets on three servers needs a few requests.
WHO_LEADS_MAX: Final = 1000
#: Longest id of a tablet; ids assigned by the master have 20 to 40 characters.
TABLET_BYTES_MAX: Final = 128

#: Longest bound of a stale read: a year.
STALE_MS_MAX: Final = 366 * 86_400_000

#: Leadership ended before the entry was applied. The write may be applied, now or later: repeat the same write.
OUTCOME_UNKNOWN: Final = "outcome_unknown"
#: The server has no replica of the tablet; nothing was done.
NO_REPLICA: Final = "no_replica"
#: The replica does not run. A write that waited there may have been applied.
REPLICA_FAILED: Final = "replica_failed"


class TabletRead(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Read the values of some keys in one snapshot. Reply: TabletValues or LeaderElsewhere.

    Without `at_least` and `max_stale_ms` the leader answers from the latest rows. With `at_least`, any member whose
    rows include the entry with this index answers. With `max_stale_ms`, any member answers that can prove that its rows
    have every write acknowledged at least that long before the arrival of the request; other members reply
    LeaderElsewhere. An older server ignores the bound and answers as a leader does.
    """

    tablet: str
    keys: list[str]
    at_least: int = 0
    max_stale_ms: int = 0


class TabletScan(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Read one page of `[start, end)` in the order of the keys; "" means no bound.

    `at_least`, `max_stale_ms`: as in TabletRead. Reply: TabletPage or LeaderElsewhere.
    """

    tablet: str
    start: str = ""
    end: str = ""
    rows_max: int = PAGE_ROWS_MAX
    at_least: int = 0
    max_stale_ms: int = 0


class TabletSnapshot(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Begin a snapshot of the tablet's rows, or read on in the snapshot `held`, or end it; as KvSnapshot.

    The leader begins the snapshot, which has all rows that were acknowledged before. Later pages come from the same
    server, even if another one leads by then. Reply: SnapshotPage, or LeaderElsewhere.
    """

    tablet: str
    held: str = ""
    start: bytes = b""
    known: RowsPoint | None = None
    ends: bool = False


class TabletWrite(msgspec.Struct, frozen=True, tag=True):
    """Carry out the operations atomically, and exactly once even if the write arrives several times.

    Reply: TabletWritten or LeaderElsewhere. Fields and limits are those of `regionserver.tablets.commands.KvCommand`.
    `schema_version`: as in `regionserver.kv.messages.KvWrite`; it is not part of the log's entry.
    """

    tablet: str
    writer: str
    number: int
    done_below: int
    began_ms: int
    operations: list[Operation]
    schema_version: int = NO_SCHEMA

    def command(self, time_ms: int) -> KvCommand:
        """Return the command that the leader proposes at `time_ms`."""
        return KvCommand(self.writer, self.number, self.done_below, self.began_ms, time_ms, self.operations)


class WhoLeads(msgspec.Struct, frozen=True, tag=True):
    """Ask for the leaders of some tablets, as far as this server knows them. Reply: Leaders, without a delay."""

    tablets: list[str]


class TabletLeader(msgspec.Struct, frozen=True, array_like=True):
    """The member that leads a tablet: its number and server, and the address for requests (port 0: unknown)."""

    number: int
    server: str
    host: str = ""
    port: int = 0


class KnownLeader(msgspec.Struct, frozen=True, array_like=True):
    """One server's knowledge of a tablet: the term (0: the server has no running replica) and the leader in that
    term."""

    tablet: str
    term: int = 0
    leader: TabletLeader | None = None


class LeaderElsewhere(msgspec.Struct, frozen=True, tag=True):
    """Nothing was done: this server does not lead the tablet, and cannot prove the age that a stale read demands."""

    view: KnownLeader
    time_ms: int


class Leaders(msgspec.Struct, frozen=True, tag=True):
    """The views of this server, in the order of the tablets of the request."""

    views: list[KnownLeader]
    time_ms: int


class TabletValues(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Values in the order of the keys, None for missing keys; fewer values than keys if they exceed a page.

    The rows include every entry up to `index`. `age_ms`: the reply to a stale read has every write acknowledged at
    least that long before the reply was sent. None in replies to other reads.
    """

    values: list[bytes | None]
    index: int
    time_ms: int
    age_ms: int | None = None


class TabletPage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One page of a scan. The next page begins at `next_key`; "" after the last page of the tablet or range.

    `age_ms`: as in TabletValues.
    """

    rows: list[KvRow]
    next_key: str
    index: int
    time_ms: int
    age_ms: int | None = None


class TabletWritten(msgspec.Struct, frozen=True, tag=True):
    """Outcome of a write (`regionserver.tablets.commands.WriteOutcome`); durable and applied."""

    outcome: WriteOutcome
    time_ms: int


TabletRequest = TabletRead | TabletScan | TabletSnapshot | TabletWrite | WhoLeads
TabletReply = TabletValues | TabletPage | SnapshotPage | TabletWritten | LeaderElsewhere | Leaders


class KeyRange(Protocol):
    """Range and hash buckets of a tablet, from a superblock or the region's record."""

    @property
    def start_key(self) -> str: ...
    @property
    def end_key(self) -> str: ...
    @property
    def hash_buckets(self) -> int: ...


def check_tablets(tablets: list[str]) -> None:
    """Check the tablets that a request names. Raise RpcError(BAD_REQUEST)."""
    if not 1 <= len(tablets) <= WHO_LEADS_MAX:
        raise RpcError(Code.BAD_REQUEST, f"a request names 1 to {WHO_LEADS_MAX} tablets, not {len(tablets)}")
    for tablet in tablets:
        if not 1 <= len(tablet) <= TABLET_BYTES_MAX:
            raise RpcError(Code.BAD_REQUEST, f"{tablet[:40]!r} cannot be the id of a tablet")


def check_request(request: TabletRead | TabletScan | TabletWrite, tablet: KeyRange) -> None:
    """Check `request` against the limits and the tablet's range. Raise RpcError: nothing was done.

    A write's `began_ms` is compared with the leader's time when the write is encoded (`commands.encode`).
    """
    if isinstance(request, TabletScan):
        _check_scan(request)
    elif isinstance(request, TabletRead):
        if not 1 <= len(request.keys) <= KEYS_MAX:
            raise RpcError(Code.BAD_REQUEST, f"a read names 1 to {KEYS_MAX} keys, not {len(request.keys)}")
        _check_bounds(request)
        _check_keys(request.tablet, request.keys, tablet)
    else:
        try:
            check(request.command(request.began_ms))
        except CommandError as error:
            raise RpcError(Code.BAD_REQUEST, str(error)) from error
        _check_keys(request.tablet, (one.key for one in request.operations), tablet)


def _check_scan(request: TabletScan) -> None:
    if not 1 <= request.rows_max <= PAGE_ROWS_MAX:
        raise RpcError(Code.BAD_REQUEST, f"a page has 1 to {PAGE_ROWS_MAX} rows, not {request.rows_max}")
    for bound in filter(None, (request.start, request.end)):
        check_key(bound)
    _check_bounds(request)


def _check_bounds(request: TabletRead | TabletScan) -> None:
    at_least, max_stale_ms = request.at_least, request.max_stale_ms
    if at_least < 0:
        raise RpcError(Code.BAD_REQUEST, f"at_least is the index of an entry, not {at_least}")
    if not 0 <= max_stale_ms <= STALE_MS_MAX:
        raise RpcError(Code.BAD_REQUEST, f"max_stale_ms is at most {STALE_MS_MAX}, not {max_stale_ms}")
    if at_least and max_stale_ms:
        raise RpcError(Code.BAD_REQUEST, "a read names at_least or max_stale_ms, not both")


def _check_keys(name: str, keys: Iterable[str], tablet: KeyRange) -> None:
    """Raise RpcError for a key outside the tablet's range or bucket."""
    start, end, buckets = tablet.start_key, tablet.end_key, tablet.hash_buckets
    for key in keys:
        if not (key.isascii() and 1 <= len(key) <= KEY_BYTES_MAX):
            check_key(key)
        if key < start or (end and key >= end):
            raise RpcError(WRONG_REGION, f"key {key[:40]!r} is not in tablet {name}")
        if buckets and not is_placed(key, buckets):
            raise RpcError(
                Code.BAD_REQUEST,
                f"key {key[:40]!r} does not begin with its bucket: its table has {buckets} hash buckets",
            )


__all__ = [
    "NO_REPLICA",
    "OUTCOME_UNKNOWN",
    "REPLICA_FAILED",
    "TABLET_BYTES_MAX",
    "TOO_STALE",
    "WHO_LEADS_MAX",
    "WRONG_REGION",
    "KeyRange",
    "KnownLeader",
    "LeaderElsewhere",
    "Leaders",
    "TabletLeader",
    "TabletPage",
    "TabletRead",
    "TabletReply",
    "TabletRequest",
    "TabletScan",
    "TabletSnapshot",
    "TabletValues",
    "TabletWrite",
    "TabletWritten",
    "WhoLeads",
    "check_request",
    "check_tablets",
]
