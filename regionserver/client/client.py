"""Calls to the server that has a key's region open, retried until they succeed or time out.

Retries depend on the error code:

    nothing was done   not_serving, wrong_server, no_lease, unreachable, busy, wrong_region: find the region's current
                       location and retry, for every call
    outcome unknown    timeout, connection_lost, fenced, superseded: retry if the request is idempotent, else raise
                       OutcomeUnknown. Reads, puts and deletes by key are (`regionserver.kv.messages` explains what
                       prevents a late first copy from undoing later writes)
    permanent          every other code (a key that is too long, a full region): raise Refused at once

Every call ends within its `timeout_s`, by default `TIMEOUT_S`. The first attempt gets `ATTEMPT_TIMEOUT_S` of it: a
frozen
server accepts connections but never replies, and its regions will soon move. Each timeout doubles the limit of the next
attempt, because the server may also be slow.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import operator
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

import msgspec
from kazoo.exceptions import KazooException

from coord.rpc.wire import Code, RpcError
from regions.messages import NO_LEASE, WRONG_SERVER
from regions.records import partitioning
from regions.records.model import RegionRecord
from regions.records.znodes import DEFAULT_ROOT, Layout
from regionserver.client.connections import Connections
from regionserver.client.locator import RegionLocator
from regionserver.client.store import StoreReader, StoreSilentError
from regionserver.kv.messages import (
    KEYS_MAX,
    PAGE_ROWS_MAX,
    SUPERSEDED,
    WRITE_BYTES_MAX,
    WRONG_REGION,
    KvChange,
    KvRead,
    KvRows,
    KvScan,
    KvValues,
    KvWrite,
    KvWritten,
)
from regionserver.request_gate import FENCED, NOT_SERVING, Place

T = TypeVar("T", bound=msgspec.Struct)
Change = KvChange

TIMEOUT_S: Final = 30.0
ATTEMPT_TIMEOUT_S: Final = 1.0
#: Pause before the store is read again for a region that is not open, doubling up to the second value.
PAUSE_FIRST_S: Final = 0.01
PAUSE_MAX_S: Final = 0.2
#: Time limit for reading a region's current location; afterwards the cached location is tried again.
REFRESH_S: Final = 3.0

_NOTHING_DONE: Final = frozenset({NOT_SERVING, WRONG_SERVER, NO_LEASE, WRONG_REGION, Code.UNREACHABLE, Code.BUSY})
#: Rejections of the request itself, before any of it is executed.
_NEVER_BEGUN: Final = frozenset({Code.BAD_REQUEST, Code.UNSUPPORTED})
_UNKNOWN: Final = frozenset({Code.TIMEOUT, Code.CONNECTION_LOST, FENCED, SUPERSEDED})


class DataError(Exception):
    """A call did not succeed; the message is one line for the user.

    `may_have_been_done` is True if the change may take effect all the same, now or until the server's lease ends.
    """

    def __init__(self, message: str, *, may_have_been_done: bool = False) -> None:
        super().__init__(message)
        self.may_have_been_done = may_have_been_done


class NoSuchTable(DataError):  # noqa: N818 - named after what it reports
    """Raised if no table has this name."""


class Unavailable(DataError):  # noqa: N818
    """Raised if no server answered for the region in time."""


class OutcomeUnknown(DataError):  # noqa: N818
    """Raised if the reply to a request that must not be repeated was lost: the server may have executed the request."""


class Refused(DataError):  # noqa: N818
    """Raised if the server rejects the request; `code` is the rejection's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, may_have_been_done=code not in (*_NOTHING_DONE, *_NEVER_BEGUN))
        self.code = code


class Attempt(NamedTuple):
    """One attempt of a call, for observers. `code` is "" after success."""

    region_id: str
    code: str


class RegionClient:
    """Calls to regions, for any thread. Calls raise DataError."""

    def __init__(
        self,
        locator: RegionLocator,
        *,
        timeout_s: float = TIMEOUT_S,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        on_attempt: Callable[[Attempt], object] = lambda _attempt: None,
    ) -> None:
        """Call `on_attempt` after every attempt, in the caller's thread."""
        self.locator = locator
        self._timeout_s = timeout_s
        self._attempt_timeout_s = attempt_timeout_s
        self._on_attempt = on_attempt
        self._connections = Connections()
        self._writer = uuid.uuid4().hex
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _until_s(self, timeout_s: float | None) -> float:
        """Return the deadline of a call that begins now."""
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    # --- key-value regions ---

    def get(self, table: str, key: str, *, timeout_s: float | None = None) -> bytes | None:
        """Return the value at `key`, or None."""

        def ask(place: Place, region: RegionRecord, _attempt: int) -> KvRead:
            return KvRead(place, [partitioning.place(key, region.hash_buckets)])

        return self.call(table, key, ask, KvValues, timeout_s=timeout_s).values[0]

    def put(self, table: str, key: str, value: bytes, *, timeout_s: float | None = None) -> None:
        """Put `value` at `key`; durable on return."""
        self._write(table, [KvChange(key, value)], timeout_s)

    def delete(self, table: str, key: str, *, timeout_s: float | None = None) -> None:
        """Delete `key`, which need not exist; durable on return."""
        self._write(table, [KvChange(key, None)], timeout_s)

    def write(self, table: str, changes: Iterable[KvChange], *, timeout_s: float | None = None) -> int:
        """Put and delete many keys and return their number. Each region's changes are written in few atomic batches.

        `timeout_s` limits each batch and the search for the regions. After a DataError some batches may have been
        written; all changes may be repeated.
        """
        by_region: dict[str, list[KvChange]] = {}
        count = 0
        until_s = self._until_s(timeout_s)
        for change in changes:
            with _store_errors(table, change.key):
                region = _require(table, self.locator.region_of(table, change.key, until_s=until_s))
            by_region.setdefault(region.region_id, []).append(change)
        for mine in by_region.values():
            for batch in _batches(mine):
                self._write(table, batch, timeout_s)
                count += len(batch)
        return count

    def scan(
        self, table: str, start: str = "", end: str = "", *, rows_max: int | None = None, timeout_s: float | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Yield rows of `[start, end)` by key, at most `rows_max`; "" means no bound. `timeout_s` limits each page.

        A page is a consistent snapshot, the whole scan is not. In a table with hash buckets, every bucket is scanned
        and the results are merged.
        """
        with _store_errors(table, start):
            known = self.locator.table(table, until_s=self._until_s(timeout_s))
        buckets = 0 if known is None else known.hash_buckets
        if not buckets:
            yield from self._scan(table, start, end, rows_max, timeout_s)
            return
        parts = [
            self._scan(table, *partitioning.bounds(start, end, bucket), rows_max, timeout_s)
            for bucket in range(buckets)
        ]
        keyed = [((partitioning.unplace(key, buckets), value) for key, value in part) for part in parts]
        yield from itertools.islice(heapq.merge(*keyed, key=operator.itemgetter(0)), rows_max)

    def _scan(
        self, table: str, start: str, end: str, rows_max: int | None, timeout_s: float | None
    ) -> Iterator[tuple[str, bytes]]:
        """Yield rows of a range of placed keys, with their placed keys."""
        left = rows_max
        at = start
        while left is None or left > 0:
            page = PAGE_ROWS_MAX if left is None else min(left, PAGE_ROWS_MAX)
            reply, following = self._page(table, at, end, page, timeout_s)
            for row in reply.rows:
                yield row.key, row.value
            if left is not None:
                left -= len(reply.rows)
            at = reply.next_key or following
            if not at or (end and at >= end):
                return

    def _page(self, table: str, at: str, end: str, rows_max: int, timeout_s: float | None) -> tuple[KvRows, str]:
        """Return one page of the region that holds `at`, and the start key of the next region ("" after the last)."""
        following = ""

        def ask(place: Place, region: RegionRecord, _attempt: int) -> KvScan:
            nonlocal following
            following = region.end_key
            return KvScan(place, at, end, rows_max)

        found = self._call(
            table, at, lambda until_s: self.locator.region_at(table, at, until_s=until_s), ask, KvRows, timeout_s
        )
        return found, following

    def _write(self, table: str, changes: list[KvChange], timeout_s: float | None) -> None:
        number = next(self._numbers)

        def ask(place: Place, region: RegionRecord, attempt: int) -> KvWrite:
            buckets = region.hash_buckets
            placed = [KvChange(partitioning.place(one.key, buckets), one.value) for one in changes]
            return KvWrite(place, placed if buckets else changes, self._writer, number, attempt)

        self.call(table, changes[0].key, ask, KvWritten, timeout_s=timeout_s)

    # --- any service's regions ---

    def call(
        self,
        table: str,
        key: str,
        ask: Callable[[Place, RegionRecord, int], msgspec.Struct],
        expect: type[T],
        *,
        timeout_s: float | None = None,
        is_repeatable: bool = True,
    ) -> T:
        """Send the result of `ask(place, region, attempt)` to the server that has the region of `key` open.

        `attempt` counts from 0. `is_repeatable` shows whether the server may execute the request twice. In a table with
        hash buckets the key's bucket determines the region. Services that store keys in such a table store placed keys
        (`regions.records.partitioning.place(key, region.hash_buckets)`).
        Raise NoSuchTable, Refused, Unavailable, OutcomeUnknown.
        """

        def find(until_s: float) -> RegionRecord | None:
            return self.locator.region_of(table, key, until_s=until_s)

        return self._call(table, key, find, ask, expect, timeout_s, is_repeatable=is_repeatable)

    def _call(
        self,
        table: str,
        key: str,
        find: Callable[[float], RegionRecord | None],
        ask: Callable[[Place, RegionRecord, int], msgspec.Struct],
        expect: type[T],
        timeout_s: float | None,
        *,
        is_repeatable: bool = True,
    ) -> T:
        """Send requests to the region that `find(deadline)` returns, until one succeeds; `key` is for error
        messages."""
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        deadline_s = self._until_s(timeout_s)
        pause_s = PAUSE_FIRST_S
        attempt_s = self._attempt_timeout_s
        is_outcome_unknown = False
        tried: Place | None = None
        for attempt in itertools.count():
            region: RegionRecord | None = None
            try:
                region = _require(table, find(deadline_s))
                place = Place.of(region)
                if tried is not None and place != tried:
                    pause_s = PAUSE_FIRST_S
                tried = place
                request = ask(place, region, attempt) if place else None
                return self._attempt(place, region, request, expect, attempt_s, deadline_s)
            except RpcError as error:
                problem = error
            except StoreSilentError as error:
                problem = RpcError(Code.UNREACHABLE, str(error))
            except KazooException as error:
                problem = RpcError(Code.UNREACHABLE, f"the store does not answer ({type(error).__name__})")
            if problem.code not in _NOTHING_DONE:
                if problem.code not in _UNKNOWN:
                    raise Refused(problem.code, problem.message)
                is_outcome_unknown = True
                if problem.code == Code.TIMEOUT:
                    attempt_s *= 2
                if not is_repeatable:
                    raise OutcomeUnknown(problem.message, may_have_been_done=True)
            has_moved = self._refresh(table, region, tried, problem, deadline_s)
            remaining_s = deadline_s - time.monotonic()
            if remaining_s > 0 and not has_moved:
                time.sleep(min(pause_s, remaining_s))
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            if time.monotonic() >= deadline_s:
                raise Unavailable(
                    f"{table}: {key!r}: no answer within {wait_s:g} s; last: {problem.message}",
                    may_have_been_done=is_outcome_unknown,
                )
        raise AssertionError("unreachable")

    def _attempt(
        self,
        place: Place | None,
        region: RegionRecord,
        request: msgspec.Struct | None,
        expect: type[T],
        attempt_s: float,
        deadline_s: float,
    ) -> T:
        code = NOT_SERVING
        try:
            if place is None or request is None:
                raise RpcError(NOT_SERVING, f"region {region.region_id} is not open")
            server = self.locator.server(place.server, place.start_code, until_s=deadline_s)
            if server is None:
                raise RpcError(NOT_SERVING, f"region {region.region_id} is not open: its server is not registered")
            within_s = max(0.001, min(attempt_s, deadline_s - time.monotonic()))
            reply = self._connections.call((server.host, server.port), request, expect, within_s)
            code = ""
        except RpcError as error:
            code = error.code
            raise
        finally:
            self._on_attempt(Attempt(region.region_id, code))
        return reply

    def _refresh(
        self, table: str, region: RegionRecord | None, tried: Place | None, problem: RpcError, deadline_s: float
    ) -> bool:
        """Refresh what the error makes doubtful; return True if the region has moved."""
        if region is None or problem.code == Code.BUSY:
            return False
        try:
            if problem.code == WRONG_REGION:
                self.locator.forget(table)
                return False
            # While the store does not answer, the cached location is used.
            until_s = min(deadline_s, time.monotonic() + REFRESH_S)
            if tried is not None and problem.code != NOT_SERVING:
                self.locator.refresh_server(tried.server, until_s=until_s)
            now = self.locator.refresh(table, region.region_id, until_s=until_s)
        except (KazooException, StoreSilentError):
            return False
        return now is not None and Place.of(now) not in (None, tried)


def _require(table: str, region: RegionRecord | None) -> RegionRecord:
    if region is None:
        raise NoSuchTable(f"table {table!r} does not exist")
    return region


def _batches(changes: list[KvChange]) -> Iterator[list[KvChange]]:
    """Split changes into writes within the limits of one request."""
    batch: list[KvChange] = []
    size = 0
    for change in changes:
        bytes_of_it = len(change.key.encode()) + partitioning.PREFIX_BYTES + len(change.value or b"")
        if batch and (len(batch) == KEYS_MAX or size + bytes_of_it > WRITE_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += bytes_of_it
    if batch:
        yield batch


@contextlib.contextmanager
def _store_errors(table: str, key: str) -> Iterator[None]:
    """Turn errors of the store into Unavailable."""
    try:
        yield
    except StoreSilentError as error:
        raise Unavailable(f"{table}: {key!r}: {error}") from error
    except KazooException as error:
        raise Unavailable(f"{table}: {key!r}: the store does not answer ({type(error).__name__})") from error


@contextlib.contextmanager
def connect(
    store: str, root: str = DEFAULT_ROOT, *, connect_timeout_s: float = 10.0, timeout_s: float = TIMEOUT_S
) -> Iterator[RegionClient]:
    """Yield a client with its own store session. Raise Unavailable if the store opens no session in time."""
    try:
        reader = StoreReader.open(store, connect_timeout_s)
    except StoreSilentError as error:
        raise Unavailable(str(error)) from error
    try:
        client = RegionClient(RegionLocator(reader, Layout(root)), timeout_s=timeout_s)
        try:
            yield client
        finally:
            client.close()
    finally:
        reader.close()
