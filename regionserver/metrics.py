"""Metrics of a region server for Prometheus: `regionkeeper_server_…`. `coord.metrics` has those of every daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.registry import Collector

from coord.metrics.definitions import RPC_REQUESTS, Definition, MetricKind, add_process, of_turns
from coord.metrics.spans import Spans, SpansByName
from coord.peers.reactor import TurnReactor

_PREFIX: Final = "regionkeeper_server_"
_OPEN_BOUNDS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120)
_OPENS: Final = Definition("server_open_seconds", MetricKind.HISTOGRAM, "Time in the region opener.")
_CLOSES: Final = Definition("server_close_seconds", MetricKind.HISTOGRAM, "Time in the region closer.")
OPENER_TIMES: Final = (_OPENS, _CLOSES)


class _Refresh(Collector):
    """Updates the gauges. It is registered first, so that it is collected first. It has no metrics of its own."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Update the gauges."""
        self._metrics.refresh()
        return ()


class _OpenerTimes(Collector):
    """Durations of the opener's calls."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Yield the histograms."""
        yield _OPENS.histogram({(): self._metrics.open_s})
        yield _CLOSES.histogram({(): self._metrics.close_s})


class _Times(Collector):
    """Durations that RPC and the reactor have counted."""

    def __init__(self, rpc: SpansByName, reactor: object) -> None:
        self._rpc = rpc
        self._reactor = reactor

    def describe(self) -> Iterable[Metric]:
        """Return nothing."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the histograms."""
        yield RPC_REQUESTS.histogram_by_name(self._rpc.by_name)
        if isinstance(self._reactor, TurnReactor):
            yield from of_turns(self._reactor.turns)


class Metrics:
    """The metrics of a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        #: Updates the gauges; called at the beginning of every scrape.
        self.refresh: Callable[[], object] = lambda: None
        self.registry.register(_Refresh(self))
        add_process(self.registry, "server")
        self.replicas = Gauge(
            f"{_PREFIX}replicas", "Replicas on this server by phase.", ["phase"], registry=self.registry
        )
        self.failed = Gauge(f"{_PREFIX}failed_opens", "Failed opens that are remembered.", registry=self.registry)
        self.lease_left_s = Gauge(
            f"{_PREFIX}lease_left_seconds", "Time until the lease ends unless renewed.", registry=self.registry
        )
        self.serving = Gauge(f"{_PREFIX}serving", "1 while regions may be served.", registry=self.registry)
        self.grants_damaged = Gauge(
            f"{_PREFIX}grants_damaged", "1 while the grants in the store cannot be read.", registry=self.registry
        )
        self.epoch = Gauge(f"{_PREFIX}epoch", "Highest fencing epoch seen.", registry=self.registry)
        self.sessions = Counter(f"{_PREFIX}sessions", "Sessions begun with the store.", registry=self.registry)
        self.heartbeats = Counter(
            f"{_PREFIX}heartbeats", "Heartbeats sent to masters, by how they ended.", ["result"], registry=self.registry
        )
        self.lease_lapses = Counter(
            f"{_PREFIX}lease_lapses", "Times that serving stopped because the lease ended.", registry=self.registry
        )
        self.orders = Counter(f"{_PREFIX}orders", "Orders taken.", ["kind"], registry=self.registry)
        self.outcomes = Counter(f"{_PREFIX}outcomes", "Ends of orders.", ["outcome"], registry=self.registry)
        self.refused_commands = Counter(
            f"{_PREFIX}refused_commands", "Commands refused whole.", ["code"], registry=self.registry
        )
        self.steps = Counter(f"{_PREFIX}steps", "Steps of transitions.", ["result"], registry=self.registry)
        self.evictions = Counter(
            f"{_PREFIX}evictions", "Holds of dead servers that were broken.", registry=self.registry
        )
        self.open_s = Spans(_OPEN_BOUNDS_S)
        self.close_s = Spans(_OPEN_BOUNDS_S)
        self.registry.register(_OpenerTimes(self))

    def read(self, refresh: Callable[[], object], rpc: SpansByName, reactor: object) -> None:
        """Read the figures of a running server at every scrape: call `refresh`, take the times of RPC and reactor."""
        self.refresh = refresh
        self.registry.register(_Times(rpc, reactor))
