"""The gate that every request for a region's data goes through, and the words for turning it back.

A client says which opening of a region it means: the location that it read in the store, as a `Place`. A server answers
only for the opening that it has now, under a lease that holds now. So a request that waited in a socket buffer while
its server was frozen, while the region moved away, or away and back, is refused, and the client learns that nothing
was done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry

from coord.rpc.wire import RpcError
from regions.messages import NO_LEASE, WRONG_SERVER
from regions.records.model import Incarnation, RegionRecord, ReplicaLocation
from regionserver.workers import Pool, Workers

#: Requests per second of a region are counted over at least so long.
RATE_SPAN_S: Final = 10.0

#: The region is not open here, or this is another opening of it; nothing was done. Read its location again.
NOT_SERVING: Final = "not_serving"
#: The server lost its lease, or the region, while the request was under way: nobody knows whether it was done.
FENCED: Final = "fenced"


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One opening of a replica, as its location in `/regions/...` has it."""

    region_id: str
    server: str
    start_code: int
    opened_ms: int
    replica: int = 0

    @classmethod
    def of(cls, region: RegionRecord, replica: int = 0) -> Place | None:
        """The place that a region's record names; None while it is open nowhere."""
        location = region.location(replica)
        if location.uuid is None or location.start_code is None:
            return None
        return cls(region.region_id, location.uuid, location.start_code, location.since_ms, replica)


class Serving:
    """What a region opener may ask of its server. `holds` on any thread, the others on the reactor's."""

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
        #: For metrics of the opener's own.
        self.registry = registry
        #: Makes pools of threads that hand their results back to the reactor.
        self.workers = workers
        #: Whether the lease holds now, by the server's own clock.
        self.holds = holds
        self._me = me
        self._served = served
        self._damaged = damaged
        self._asked: Counter[tuple[str, int]] = Counter()
        self._rates: dict[tuple[str, int], float] = {}
        self._since_s = reactor.seconds()

    def admit(self, place: Place) -> RegionRecord:
        """Let a request for that opening pass. Raises RpcError: WRONG_SERVER, NO_LEASE or NOT_SERVING.

        Ask again, by `check_lease`, before the answer leaves: answering may have taken longer than the lease.
        """
        me = self._me()
        if (place.server, place.start_code) != (me.uuid, me.start_code):
            raise RpcError(WRONG_SERVER, f"this is {me}, not {Incarnation(place.server, place.start_code)}")
        self.check_lease()
        found = self._served((place.region_id, place.replica))
        if found is None:
            raise RpcError(NOT_SERVING, f"region {place.region_id} is not open here")
        region, location = found
        if location.since_ms != place.opened_ms:
            raise RpcError(NOT_SERVING, f"region {place.region_id} was opened anew since")
        self._asked[place.region_id, place.replica] += 1
        return region

    def report_damage(self, region_id: str, replica: int, why: str) -> None:
        """Report that an open replica's data are not what was written: the masters have it closed and park it.

        On any thread. The opener answers no request for the replica any more, and `close` is called soon.
        """
        self.reactor.callFromThread(self._damaged, (region_id, replica), why)

    def rates(self) -> dict[tuple[str, int], float]:
        """Requests per second by (region id, replica), of late; regions that nobody asked anything are left out."""
        now_s = self.reactor.seconds()
        span_s = now_s - self._since_s
        if span_s >= RATE_SPAN_S:
            self._rates = {key: count / span_s for key, count in self._asked.items()}
            self._asked.clear()
            self._since_s = now_s
        return self._rates

    def check_lease(self) -> None:
        """Raises RpcError(NO_LEASE) when this server may not serve now."""
        if not self.holds():
            raise RpcError(NO_LEASE, "this server has no lease now")
