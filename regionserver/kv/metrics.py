"""Metrics of the key-value service of a region server."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

_PREFIX: Final = "regionkeeper_kv_"


class KvMetrics:
    """Counters of requests and the times of commits."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(f"{_PREFIX}requests", "Requests for regions.", ["kind"], registry=registry)
        self.refused = Counter(f"{_PREFIX}refused", "Requests rejected.", ["code"], registry=registry)
        self.commits = Histogram(f"{_PREFIX}commit_seconds", "Time of a durable commit.", registry=registry)
        self.changes = Counter(f"{_PREFIX}changes", "Keys put or deleted.", registry=registry)
