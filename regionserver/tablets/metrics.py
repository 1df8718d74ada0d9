"""Metrics of the tablets of one server."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from regions.messages.heartbeat import ReplicaState
from regions.messages.server import TabletFigures
from regionserver.tablets.copying.jobs import ENDED

_PREFIX: Final = "regionkeeper_server_tablet"


class RequestMetrics:
    """Counters of the requests for tablets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(f"{_PREFIX}_requests", "Requests for tablets.", ["kind"], registry=registry)
        self.refused = Counter(f"{_PREFIX}_refused", "Requests rejected.", ["code"], registry=registry)


class TabletMetrics:
    """Gauges with the figures of the host."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"{_PREFIX}{name}", text, registry=registry)

        self._replicas = Gauge(
            f"{_PREFIX}s", "Replicas of tablets on this server by state.", ["state"], registry=registry
        )
        self._leaders = gauge("_leaders", "Tablets that this server leads.")
        self._quiet = gauge("_quiet", "Tablets without work on this server, which have no ticks and send nothing.")
        self._syncs = gauge("_log_syncs", "Syncs of the shared log since the process started.")
        self._entries = gauge("_log_entries", "Entries that these syncs made durable.")
        self._bytes = gauge("_log_bytes", "Bytes that these syncs made durable.")
        self._segments = gauge("_log_segments", "Segments of the shared log.")
        self._slow = gauge("_log_slow_writes", "Writes to the shared log that took longer than a second.")
        self._copies = Gauge(
            f"{_PREFIX}_copies", "Copies of replicas that run, by direction.", ["direction"], registry=registry
        )
        self._copies_ended = Gauge(
            f"{_PREFIX}_copies_ended", "Copies received that have ended, by result.", ["result"], registry=registry
        )
        self._copy_bytes = Gauge(
            f"{_PREFIX}_copy_bytes", "Bytes of ended copies, by direction.", ["direction"], registry=registry
        )
        self._quarantined = gauge("_quarantined", "Former replicas in the quarantine.")
        self._quarantine_bytes = gauge("_quarantine_bytes", "Bytes of the quarantine on the disk.")
        self._differ = gauge("_digests_differ", "Comparisons in which replicas of a tablet differed.")
        self._in_flight = gauge("_in_flight_bytes", "Bytes of writes that are proposed and not applied.")

    def show(self, found: TabletFigures) -> None:
        """Set the gauges."""
        for state in ReplicaState:
            self._replicas.labels(state.value).set(found.replicas.get(state.value, 0))
        self._leaders.set(found.leaders)
        self._quiet.set(found.quiet)
        self._syncs.set(found.syncs)
        self._entries.set(found.entries)
        self._bytes.set(found.log_bytes)
        self._segments.set(found.segments)
        self._slow.set(found.slow_writes)
        self._in_flight.set(found.in_flight_bytes)
        self._differ.set(found.digests_differ)
        self._quarantined.set(found.quarantined)
        self._quarantine_bytes.set(found.quarantine_bytes)
        self._copies.labels("in").set(found.copies_in)
        self._copies.labels("out").set(found.copies_out)
        for result in ENDED:
            self._copies_ended.labels(result.lower()).set(found.copies_ended.get(result.value, 0))
        self._copy_bytes.labels("in").set(found.copied_in_bytes)
        self._copy_bytes.labels("out").set(found.copied_out_bytes)
