"""Metrics for Prometheus: definitions, and the families that a scrape builds from existing figures.

Every name begins with `regionkeeper_` and ends with its unit: seconds, bytes, `_total` for counters. A definition is
data, so docs/reference/metrics.md and the dashboards are compared with the definitions.
"""

from __future__ import annotations

import datetime
import enum
import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from coord.compiled import form
from coord.metrics.spans import Spans
from coord.metrics.turns import TurnTimes
from coord.security import process

PREFIX: Final = "regionkeeper_"
_DISTRIBUTION: Final = "regionkeeper"


class MetricKind(enum.StrEnum):
    """Kind of a metric, in Prometheus' words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Definition(NamedTuple):
    """One metric; `name` without the prefix and without `_total`."""

    name: str
    kind: MetricKind
    text: str
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The name that Prometheus stores; a histogram has series with further endings."""
        return f"{PREFIX}{self.name}" + ("_total" if self.kind is MetricKind.COUNTER else "")

    def family(self, value: float) -> Metric:
        """Return the family of a gauge or counter without labels."""
        return self.labeled({(): value})

    def labeled(self, values: Mapping[tuple[str, ...], float]) -> Metric:
        """Return the family of a gauge or counter: the values by the values of the labels."""
        make = GaugeMetricFamily if self.kind is MetricKind.GAUGE else CounterMetricFamily
        family = make(f"{PREFIX}{self.name}", self.text, labels=self.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family

    def histogram(self, spans: Mapping[tuple[str, ...], Spans]) -> Metric:
        """Return the family of a histogram: counted durations by the values of the labels."""
        family = HistogramMetricFamily(f"{PREFIX}{self.name}", self.text, labels=self.labels)
        for labels, counted in spans.items():
            family.add_metric(labels, list(cumulated(counted.bounds, counted.counts)), counted.total_s)
        return family

    def histogram_by_name(self, spans: Mapping[str, Spans]) -> Metric:
        """Return the family of a histogram with one label."""
        return self.histogram({(name,): counted for name, counted in list(spans.items())})


def cumulated(bounds: Iterable[float], counts: Iterable[int]) -> Iterator[tuple[str, float]]:
    """Yield the buckets of a histogram: upper bound and the count of all durations up to this bound."""
    total = 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        total += count
        yield bound, total


BUILD: Final = Definition(
    "build_info",
    MetricKind.GAUGE,
    "Always 1; the labels are the daemon (store, master or server), its version, the form of its modules (compiled or"
    " interpreted) and the version of Python.",
    ("daemon", "version", "form", "python"),
)
#: Of a daemon that shows a certificate.
CERTIFICATES: Final = Definition(
    "certificate_expires_seconds",
    MetricKind.GAUGE,
    "Time until a certificate expires, negative afterwards: the daemon's own, or that of the newest authority.",
    ("certificate",),
)
#: Of every daemon with an RPC port.
RPC_REQUESTS: Final = Definition(
    "rpc_request_seconds", MetricKind.HISTOGRAM, "Time from a request to its reply or refusal, by kind.", ("kind",)
)
#: Of every daemon (`coord/metrics/turns.py`).
TURNS: Final = Definition(
    "reactor_turn_seconds", MetricKind.HISTOGRAM, "Time that the main loop was busy between two polls of its sockets."
)
LONG_TURNS: Final = Definition(
    "reactor_long_turns",
    MetricKind.COUNTER,
    "Turns of the main loop over 20 ms, by the function that ran.",
    ("culprit",),
)
LONGEST_TURN: Final = Definition(
    "reactor_longest_turn_seconds",
    MetricKind.GAUGE,
    "The longest turn of the main loop over 20 ms since the start of this process; 0 without one.",
)
LONGEST_WORK: Final = Definition(
    "reactor_longest_turn_processor_seconds",
    MetricKind.GAUGE,
    "The most processor time of a turn over 20 ms since the start of this process: the rest of a turn is waiting.",
)
ALL_TURNS: Final = (TURNS, LONG_TURNS, LONGEST_TURN, LONGEST_WORK)


def of_turns(turns: TurnTimes) -> Iterator[Metric]:
    """Yield the metrics of a main loop."""
    yield TURNS.histogram({(): turns.spans})
    yield LONG_TURNS.labeled({(culprit,): count for culprit, count in list(turns.culprits.items())})
    yield LONGEST_TURN.family(turns.longest_s)
    yield LONGEST_WORK.family(turns.longest_work_s)


class _Build(Collector):
    def __init__(self, daemon: str) -> None:
        self._daemon = daemon

    def describe(self) -> list[Metric]:
        """Return nothing: the version is read at the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the build."""
        # Half of a daemon's imports at start; only a scrape needs it.
        from importlib import metadata

        try:
            version = metadata.version(_DISTRIBUTION)
        except metadata.PackageNotFoundError:
            version = "source"
        labels = (self._daemon, version, form().partition(":")[0], platform.python_version())
        yield BUILD.labeled({labels: 1})


class _Certificates(Collector):
    def describe(self) -> list[Metric]:
        """Return nothing, because a daemon may have no certificate."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the times that are left."""
        credentials = process.own()
        ends = {} if credentials is None else credentials.certificate_ends()
        if ends:
            now = datetime.datetime.now(datetime.UTC)
            yield CERTIFICATES.labeled({(what,): (end - now).total_seconds() for what, end in ends.items()})


def add_process(registry: CollectorRegistry, daemon: str) -> None:
    """Add the metrics that every daemon has: its build, its certificates, and memory, processor time and files of the
    process."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a series for each counter that no query reads
    registry.register(_Build(daemon))
    registry.register(_Certificates())
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
