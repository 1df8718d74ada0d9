"""The page of metrics, from the definitions of the daemons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from coord.metrics.definitions import (
    ALL_TURNS,
    BUILD,
    CERTIFICATES,
    PREFIX,
    RPC_REQUESTS,
    Definition,
    MetricKind,
)
from coord.server.admin import metrics as store
from master import metrics as master
from regionserver.kv.metrics import KvMetrics
from regionserver.metrics import OPENER_TIMES, Metrics
from regionserver.tablets.metrics import RequestMetrics, TabletMetrics
from tests.support.docs.source import GENERATED, paragraph, table

_KINDS: Final[dict[type, MetricKind]] = {
    Gauge: MetricKind.GAUGE,
    Counter: MetricKind.COUNTER,
    Histogram: MetricKind.HISTOGRAM,
}


def of_server() -> list[Definition]:
    """Return the metrics of a region server with tablets and the key-value service."""
    metrics = Metrics()
    registry = CollectorRegistry()
    holders = (metrics, TabletMetrics(registry), RequestMetrics(registry), KvMetrics(registry))
    made = [one for holder in holders for one in vars(holder).values() if isinstance(one, MetricWrapperBase)]
    return [*map(_definition, made), *OPENER_TIMES, RPC_REQUESTS, *ALL_TURNS]


def _definition(one: MetricWrapperBase) -> Definition:
    return Definition(one._name.removeprefix(PREFIX), _KINDS[type(one)], one._documentation, tuple(one._labelnames))


def by_daemon() -> dict[str, list[Definition]]:
    """Return the definitions of each daemon: store, master, server."""
    return {
        "store": [*store.DEFINITIONS, BUILD, CERTIFICATES],
        "master": [*master.DEFINITIONS, BUILD, CERTIFICATES],
        "server": [*of_server(), BUILD, CERTIFICATES],
    }


_TITLES: Final = {
    "store": "Store node",
    "master": "Master",
    "server": "Region server",
}


def metrics_page() -> str:
    """Return docs/reference/metrics.md."""
    lines = [
        "# Metrics",
        "",
        GENERATED.format(
            "the definitions in `coord/metrics/definitions.py`, `coord/server/admin/metrics.py`, `master/metrics.py`,"
            " `regionserver/metrics.py`, `regionserver/tablets/metrics.py`, `regionserver/kv/metrics.py`"
        ),
        "",
        *paragraph(
            """Every daemon has `/metrics` on its admin port. Names begin with `regionkeeper_`; times are in seconds,
            sizes in bytes. Every daemon also has Prometheus' own `process_…` and `python_info`. A histogram has the
            series `…_bucket`, `…_sum` and `…_count`. The folder `monitoring/` has alert rules and a dashboard."""
        ),
        "",
        *paragraph(
            f"""A store node has its gauges and counters under the names of earlier versions, too:
            `{store.OLD_PREFIX}…`. ZooKeeper's names are in `mntr` and `/commands/monitor`."""
        ),
    ]
    for daemon, definitions in by_daemon().items():
        lines += ["", f"## {_TITLES[daemon]}", "", *table(["metric", "kind", "labels", "meaning"], _rows(definitions))]
    return "\n".join(lines) + "\n"


def _rows(definitions: Iterable[Definition]) -> list[list[str]]:
    return [
        [f"`{one.full_name}`", one.kind.value, ", ".join(f"`{label}`" for label in one.labels), one.text]
        for one in sorted(definitions)
    ]
