"""A load on all regions of a table, which reports lost writes and unavailability.

    with connect(store) as client:
        load = Load(client, "packages", rate_per_s=400)
        load.start()
        ... kill something, move something ...
        report = load.stop()          # stops new requests, waits for those in flight, reads everything once more
    assert report.is_sound, report.violations

**Operations.** All regions together get `rate_per_s` operations, alternately writes and reads. Each region has at most
one operation in flight, so a region that does not answer delays no other. Each region has `KEYS` keys of the load's
own, derived from its start key. Each key is written with increasing sequence numbers, one write at a time.

**Checks.** Every read, including the final one, must return a sequence number that is not below the latest
*acknowledged*
one; otherwise an acknowledged write was lost, or an old write was executed again after it. The number must also not be
above the latest *attempted* one. An operation without a reply (`unknown`) may have been executed.

**Measurements.** Each operation's outcome, start and end. An operation is *disturbed* if an attempt failed, if it
failed finally, or if it took longer than `SLOW_S`. A region was unavailable from the start of its first disturbed
operation to the end of its last one before a normal reply. A region gets a request every `regions / rate_per_s`
seconds, so the start is known with this precision (`resolution_s`).

The keys are deleted at the end unless `keep`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from regions.records.model import RegionRecord
from regions.records.partitioning import place, unplace
from regionserver.client import Attempt, Change, DataError, NoSuchTable, RegionClient
from regionserver.kv.messages import KEY_BYTES_MAX

KEYS: Final = 4
SLOW_S: Final = 0.5
THREADS_MAX: Final = 256
#: Number of keys that are written in parallel before the load begins. More of them would only wait for each other: a
#: client without a reply asks other members after a while, and hundreds of such questions at once overload a small
#: machine.
PREPARED_AT_ONCE: Final = 16
#: Operations that are kept; at 400 per second this is 40 minutes. The oldest are dropped, the counts are complete.
OPERATIONS_MAX: Final = 1_000_000
VIOLATIONS_MAX: Final = 100
_MARKS: Final = ("!rk-load-", "\x01rk-load-")
#: Suffixes tried per bucket for a key of a given bucket: one suffix in `buckets` matches.
_SALTS_PER_BUCKET: Final = 40


class LoadOperation(msgspec.Struct, frozen=True, array_like=True):
    """One operation, in seconds since the load began. `outcome`: ok, unknown (no reply) or failed (not executed)."""

    region_id: str
    kind: str
    began_s: float
    ended_s: float
    outcome: str
    attempts: int
    error: str = ""
    #: Error codes of failed attempts: values of `coord.rpc.wire.Code` and others.
    codes: tuple[str, ...] = ()

    @property
    def is_disturbed(self) -> bool:
        """Return True if the region counts as unavailable during the operation."""
        return self.outcome != "ok" or self.attempts > 1 or self.ended_s - self.began_s > SLOW_S


class Outage(msgspec.Struct, frozen=True):
    """A time in which a region did not answer normally (seconds since the load began)."""

    region_id: str
    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        """Return the duration in seconds."""
        return self.ended_s - self.began_s


class LoadReport(msgspec.Struct, frozen=True):
    """Result of a load."""

    seconds: float
    regions: int
    #: Operations by kind and outcome, such as "write ok".
    counts: dict[str, int]
    acknowledged_writes: int
    #: Writes with an unknown outcome.
    unknown_writes: int
    keys_checked: int
    #: Acknowledged writes that are missing or undone; must be empty.
    violations: list[str]
    #: Number of regions that were unavailable at some time; median, 99th percentile and maximum of their longest
    #: outages.
    regions_disturbed: int
    outage_p50_s: float
    outage_p99_s: float
    outage_longest_s: float
    longest_region: str
    resolution_s: float
    latency_p50_s: float
    latency_p99_s: float
    outages: list[Outage]

    @property
    def is_sound(self) -> bool:
        """Return True if no acknowledged write was lost or undone, and everything could be checked."""
        return not self.violations


class _Attempts(threading.local):
    """Attempts of this thread's operation."""

    count = 0
    codes: tuple[str, ...] = ()


class _Value(msgspec.Struct):
    """Expected state of one key of the load."""

    seq: int


class _Key:
    """A key of the load; one operation at a time uses it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attempted = 0
        self.acknowledged = 0


class _LoadedRegion:
    """A region and its keys; one operation at a time."""

    def __init__(self, record: RegionRecord) -> None:
        self.region_id = record.region_id
        self.keys = [_Key(key_in(record, number)) for number in range(KEYS)]
        self.turn = 0
        self.is_busy = False
        self.since_s = 0.0


class Load:
    """The load. Call `start` once and `stop` once, from any thread."""

    def __init__(
        self,
        client: RegionClient,
        table: str,
        *,
        rate_per_s: float = 400.0,
        timeout_s: float = 60.0,
        regions_max: int = 0,
        keep: bool = False,
    ) -> None:
        """`timeout_s` limits one operation. `regions_max`: use only this many regions, evenly spread; 0: all.

        Raise NoSuchTable.
        """
        records = client.locator.regions(table)
        if not records:
            raise NoSuchTable(f"table {table!r} does not exist")
        if regions_max and len(records) > regions_max:
            records = [records[number * len(records) // regions_max] for number in range(regions_max)]
        self._client = RegionClient(client.locator, timeout_s=timeout_s, on_attempt=self._attempted)
        self._attempts = _Attempts()
        self._table = table
        self._interval_s = 1.0 / rate_per_s
        self._keep = keep
        self._regions = [_LoadedRegion(record) for record in records]
        self.resolution_s = len(records) / rate_per_s
        #: The latest operations, oldest first; grows while the load runs.
        self.operations: deque[LoadOperation] = deque(maxlen=OPERATIONS_MAX)
        self.counts: Counter[str] = Counter()
        self._violations: list[str] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._is_abandoned = False
        self._pool = ThreadPoolExecutor(min(THREADS_MAX, len(records)), thread_name_prefix="load")
        self._driver = threading.Thread(target=self._drive, name="load-driver", daemon=True)
        self._began_s = 0.0

    def start(self) -> None:
        """Write every key once, then begin."""
        self._began_s = time.monotonic()
        with ThreadPoolExecutor(PREPARED_AT_ONCE, thread_name_prefix="load-prepare") as pool:
            list(pool.map(self._prepare, self._regions))
        self._driver.start()

    def now_s(self) -> float:
        """Return seconds since the load began, the clock of the operations."""
        return time.monotonic() - self._began_s

    @property
    def busy(self) -> int:
        """Return the number of regions without a reply for longer than `SLOW_S`."""
        now_s = self.now_s()
        return sum(one.is_busy and now_s - one.since_s > SLOW_S for one in self._regions)

    def stop(self) -> LoadReport:
        """Stop new requests, wait for those in flight (at most `timeout_s`), read every key once more, return the
        result."""
        self._stopped.set()
        if self._driver.ident is not None:  # else `start` was interrupted while it wrote the keys
            self._driver.join()
        self._pool.shutdown(wait=True, cancel_futures=self._is_abandoned)
        seconds = self.now_s()
        with ThreadPoolExecutor(PREPARED_AT_ONCE, thread_name_prefix="load-check") as pool:
            checked = sum(pool.map(self._check, self._regions))
        self._client.close()
        return self._report(seconds, checked)

    def abandon(self) -> None:
        """Let requests in flight end at their next attempt, and let `stop` check nothing: the cluster has gone."""
        self._is_abandoned = True
        self._stopped.set()

    # --- running ---

    def _drive(self) -> None:
        """Start operations on the regions in turn; skip a region with an operation in flight."""
        due_s = time.monotonic()
        while not self._stopped.is_set():
            for region in self._regions:
                due_s += self._interval_s
                if self._stopped.wait(max(0.0, due_s - time.monotonic())):
                    return
                if not region.is_busy:
                    region.since_s = self.now_s()
                    region.is_busy = True
                    self._pool.submit(self._operate, region)
            due_s = max(due_s, time.monotonic() - 1.0)  # a late driver must not catch up with a burst

    def _prepare(self, region: _LoadedRegion) -> None:
        for key in region.keys:
            self._write(region, key)

    def _operate(self, region: _LoadedRegion) -> None:
        """Run one operation: write a key, then read it, then use the next key."""
        try:
            region.turn += 1
            key = region.keys[region.turn // 2 % KEYS]
            if region.turn % 2:
                self._write(region, key)
            else:
                self._read(region, key)
        except Exception as error:  # a bug of this program must be reported, not end in an unread future
            self._violate(f"the load itself failed: {type(error).__name__}: {error}")
        finally:
            region.is_busy = False

    def _write(self, region: _LoadedRegion, key: _Key) -> None:
        key.attempted += 1
        value = msgspec.json.encode({"seq": key.attempted})
        if self._timed(region, "write", lambda: self._client.put(self._table, key.name, value)):
            key.acknowledged = key.attempted

    def _read(self, region: _LoadedRegion, key: _Key) -> None:
        found: list[bytes | None] = []
        if self._timed(region, "read", lambda: found.append(self._client.get(self._table, key.name))):
            self._check_value(region, key, found[0])

    def _timed(self, region: _LoadedRegion, kind: str, work: Callable[[], object]) -> bool:
        """Run `work` and record its outcome; return True if it succeeded."""
        self._attempts.count = 0
        self._attempts.codes = ()
        began_s = self.now_s()
        outcome, text = "ok", ""
        try:
            work()
        except DataError as error:
            outcome = "unknown" if error.may_have_been_done and kind == "write" else "failed"
            text = str(error)
        attempts = self._attempts.count
        codes = self._attempts.codes
        done = LoadOperation(region.region_id, kind, began_s, self.now_s(), outcome, attempts, text, codes)
        with self._lock:
            self.operations.append(done)
            self.counts[f"{kind} {outcome}"] += 1
        return outcome == "ok"

    def _attempted(self, attempt: Attempt) -> None:
        """Record one attempt; called by the client in the thread of the call. Raise DataError to end the call."""
        if self._is_abandoned:
            raise DataError("the cluster has gone", may_have_been_done=True)
        self._attempts.count += 1
        if attempt.code:
            self._attempts.codes += (attempt.code,)

    # --- checks ---

    def _check_value(self, region: _LoadedRegion, key: _Key, value: bytes | None) -> None:
        """Compare a value with the acknowledged and the attempted writes."""
        try:
            seq = 0 if value is None else msgspec.json.decode(value, type=_Value).seq
        except msgspec.DecodeError:
            self._violate(f"{region.region_id} {key.name!r}: not a value of this load: {(value or b'')[:40]!r}")
            return
        if seq < key.acknowledged:
            self._violate(
                f"{region.region_id} {key.name!r}: write {key.acknowledged} was acknowledged, "
                f"found {seq or 'nothing'}: lost, or undone by an old write"
            )
        elif seq > key.attempted:
            self._violate(f"{region.region_id} {key.name!r}: found write {seq}, but only {key.attempted} were sent")

    def _violate(self, text: str) -> None:
        with self._lock:
            if len(self._violations) < VIOLATIONS_MAX:
                self._violations.append(text)

    def _check(self, region: _LoadedRegion) -> int:
        """Read every key a last time and delete it; return how many were read."""
        if self._is_abandoned:
            return 0
        try:
            for key in region.keys:
                self._check_value(region, key, self._client.get(self._table, key.name))
            if not self._keep:
                self._client.write(self._table, [Change(key.name, None) for key in region.keys])
        except DataError as error:
            self._violate(f"{region.region_id}: could not be checked: {error}")
            return 0
        return len(region.keys)

    def _report(self, seconds: float, checked: int) -> LoadReport:
        operations = list(self.operations)
        outages = outages_of(operations)
        longest: dict[str, Outage] = {}
        for outage in outages:
            if outage.region_id not in longest or outage.seconds > longest[outage.region_id].seconds:
                longest[outage.region_id] = outage
        spans = sorted(one.seconds for one in longest.values())
        worst = max(longest.values(), key=lambda one: one.seconds, default=None)
        latencies = sorted(one.ended_s - one.began_s for one in operations if one.outcome == "ok")
        return LoadReport(
            seconds=seconds,
            regions=len(self._regions),
            counts=dict(sorted(self.counts.items())),
            acknowledged_writes=self.counts["write ok"],
            unknown_writes=self.counts["write unknown"],
            keys_checked=checked,
            violations=self._violations,
            regions_disturbed=len(longest),
            outage_p50_s=_quantile(spans, 0.5),
            outage_p99_s=_quantile(spans, 0.99),
            outage_longest_s=_quantile(spans, 1.0),
            longest_region=worst.region_id if worst is not None else "",
            resolution_s=self.resolution_s,
            latency_p50_s=_quantile(latencies, 0.5),
            latency_p99_s=_quantile(latencies, 0.99),
            outages=outages,
        )


def outages_of(operations: Iterable[LoadOperation]) -> list[Outage]:
    """Return the outages: per region, consecutive disturbed operations combined; by beginning. Pure."""
    by_region: dict[str, list[LoadOperation]] = {}
    for one in operations:
        by_region.setdefault(one.region_id, []).append(one)
    found: list[Outage] = []
    for region_id, mine in by_region.items():
        began_s: float | None = None
        ended_s = 0.0
        for one in sorted(mine, key=lambda op: op.began_s):
            if one.is_disturbed:
                if began_s is None:
                    began_s = one.began_s
                ended_s = max(ended_s, one.ended_s)
            elif began_s is not None:
                found.append(Outage(region_id, began_s, ended_s))
                began_s, ended_s = None, 0.0
        if began_s is not None:
            found.append(Outage(region_id, began_s, ended_s))
    return sorted(found, key=lambda one: (one.began_s, one.region_id))


def _quantile(ordered: list[float], part: float) -> float:
    """Return the value at this fraction of a sorted list, 0 for an empty one."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def key_in(record: RegionRecord, number: int) -> str:
    """Return a key inside of the region, directly after its start, so it is inside for any end of the region."""
    buckets = record.hash_buckets
    start = unplace(record.start_key, buckets)
    for mark in _MARKS:
        # The hash of a key determines its bucket, so suffixes are tried until the bucket matches.
        for ending in ("", *(f".{salt}" for salt in range(_SALTS_PER_BUCKET * buckets))):
            key = f"{start}{mark}{number}{ending}"
            placed = place(key, buckets)
            if record.contains(placed) and len(placed.encode()) <= KEY_BYTES_MAX:
                return key
    raise DataError(f"region {record.region_id} has no room for a key of the load")
