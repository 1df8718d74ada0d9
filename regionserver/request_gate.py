"""The gate that every request for a region's data passes, and the codes of its rejections.

A client names the opening that it addresses: the location that it read from the store, as a `Place`. A server answers
only for its present opening of the region, while its lease holds. A request may wait in a socket buffer while its
server is frozen, or while the region moves away, or moves away and back. Such a request is rejected, and the client
knows that nothing was done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry

from coord.rpc.wire import RpcError
from regions.messages import NO_LEASE, WRONG_SERVER
from regions.messages.heartbeat import Measure
from regions.records.model import Incarnation, RegionRecord, ReplicaLocation
from regionserver.workers import Pool, Workers

#: Minimum time over which a region's requests per second are counted.
RATE_SPAN_S: Final = 10.0

#: Region id and number of a replica.
Key = tuple[str, int]

#: Interval between two comparisons of sizes with the reported ones. Masters use sizes to balance and to plan, not to
#: account, so a size is reported again only when it differs noticeably. A server at rest compares nothing.
SIZES_EVERY_S: Final = 5.0
#: A size is reported again if its bytes or rows have changed by this part, or its bytes by this number.
SIZE_CHANGE_PART: Final = 0.05
SIZE_CHANGE_BYTES: Final = 1_000_000

#: The region is not open on the server, or open in another opening. Nothing was done. Read its location again.
NOT_SERVING: Final = "not_serving"
#: The server lost its lease, or the region, during the request: the outcome is unknown.
FENCED: Final = "fenced"


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One opening of a replica, as its location in `/regions/...` describes it."""

    region_id: str
    server: str
    start_code: int
    opened_ms: int
    replica: int = 0

    @classmethod
    def of(cls, region: RegionRecord, replica: int = 0) -> Place | None:
        """Return the place in a region's record, or None while the region is not open."""
        location = region.location(replica)
        if location.uuid is None or location.start_code is None:
            return None
        return cls(region.region_id, location.uuid, location.start_code, location.since_ms, replica)


def differs(reported: Measure | None, now: Measure) -> bool:
    """Return True if a size must be reported again."""
    if reported is None:
        return True
    change = abs(now.size_bytes - reported.size_bytes)
    if change >= SIZE_CHANGE_BYTES:
        return True
    return _is_large(change, reported.size_bytes) or _is_large(abs(now.rows - reported.rows), reported.rows)


def _is_large(change: int, before: int) -> bool:
    return change > 0 and change >= SIZE_CHANGE_PART * before


class Sizes:
    """The sizes of one server's replicas. `measured` and `forget` are thread-safe, the others run on the reactor."""

    def __init__(self) -> None:
        self._latest: dict[Key, Measure] = {}
        self._reported: dict[Key, Measure] = {}
        #: Replicas that were measured since the last comparison.
        self.noted: set[Key] = set()
        self._next_s = 0.0

    def measured(self, key: Key, size: Measure) -> None:
        """Take in the present size of a replica."""
        if self._latest.get(key) != size:
            self._latest[key] = size
            self.noted.add(key)  # after the size: the comparison takes the key first

    def forget(self, key: Key) -> None:
        """Forget a replica that is closed."""
        self._latest.pop(key, None)
        self.noted.discard(key)

    def of(self, key: Key) -> Measure | None:
        """Return the size of a replica, None if it was never measured."""
        return self._latest.get(key)

    def take_changed(self, now_s: float) -> list[Key]:
        """Return the replicas whose sizes must be reported; nothing if the last comparison was a moment ago."""
        if not self.noted or now_s < self._next_s:
            return []
        self._next_s = now_s + SIZES_EVERY_S
        changed: list[Key] = []
        for key in [key for key in self._reported if key not in self._latest]:
            del self._reported[key]
        while self.noted:
            key = self.noted.pop()
            size = self._latest.get(key)
            if size is not None and differs(self._reported.get(key), size):
                self._reported[key] = size
                changed.append(key)
        return changed


class Serving:
    """The server's interface for its region opener.

    `holds`, `report_damage` and `report_size` are thread-safe; call the others on the reactor's thread.
    """

    def __init__(
        self,
        reactor: Any,
        registry: CollectorRegistry,
        me: Callable[[], Incarnation],
        holds: Callable[[], bool],
        served: Callable[[tuple[str, int]], tuple[RegionRecord, ReplicaLocation] | None],
        workers: Pool = Workers,
        damaged: Callable[[tuple[str, int], str], None] = lambda _key, _why: None,
    ) -> None:
        self.reactor = reactor
        #: For the opener's own metrics.
        self.registry = registry
        #: Makes pools of threads whose results are delivered on the reactor's thread.
        self.workers = workers
        #: Returns True if the lease holds now, by the server's own clock.
        self.holds = holds
        self._me = me
        self._served = served
        self._damaged = damaged
        #: Sizes that the opener has measured.
        self.sizes = Sizes()
        self._asked: Counter[tuple[str, int]] = Counter()
        self._rates: dict[tuple[str, int], float] = {}
        self._since_s = reactor.seconds()

    def admit(self, place: Place) -> RegionRecord:
        """Check that a request for this opening may be answered, and return the region.

        Raise RpcError: WRONG_SERVER, NO_LEASE or NOT_SERVING. Call `check_lease` before the reply is sent: answering
        may have taken longer than the lease.
        """
        me = self._me()
        if (place.server, place.start_code) != (me.uuid, me.start_code):
            raise RpcError(WRONG_SERVER, f"this server is {me}, not {Incarnation(place.server, place.start_code)}")
        self.check_lease()
        found = self._served((place.region_id, place.replica))
        if found is None:
            raise RpcError(NOT_SERVING, f"region {place.region_id} is not open here")
        region, location = found
        if location.since_ms != place.opened_ms:
            raise RpcError(NOT_SERVING, f"region {place.region_id} was opened again since")
        self._asked[place.region_id, place.replica] += 1
        return region

    def report_damage(self, region_id: str, replica: int, why: str) -> None:
        """Report that an open replica's data are damaged: the masters close and park the replica.

        Thread-safe. The opener must answer no further request for the replica; `close` is called soon.
        """
        self.reactor.callFromThread(self._damaged, (region_id, replica), why)

    def report_size(self, region_id: str, replica: int, rows: int, size_bytes: int) -> None:
        """Report the present size of a replica that is being opened, or is open. Optional.

        Call this as often as the size changes: masters are sent noticeable changes only. For a region without a
        reported size masters use the size that its table was created with.
        """
        self.sizes.measured((region_id, replica), Measure(rows, size_bytes))

    def rates(self) -> dict[tuple[str, int], float]:
        """Return recent requests per second by (region id, replica); regions without requests are left out."""
        now_s = self.reactor.seconds()
        span_s = now_s - self._since_s
        if span_s >= RATE_SPAN_S:
            self._rates = {key: count / span_s for key, count in self._asked.items()}
            self._asked.clear()
            self._since_s = now_s
        return self._rates

    def check_lease(self) -> None:
        """Raise RpcError(NO_LEASE) if this server may not serve now."""
        if not self.holds():
            raise RpcError(NO_LEASE, "this server holds no lease")
