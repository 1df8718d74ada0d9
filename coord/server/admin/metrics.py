"""A store node's metrics, read from the node at each scrape.

The names of earlier versions, `rk_coord_…`, stay beside the new ones, because dashboards read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from coord.metrics.definitions import ALL_TURNS, PREFIX, Definition, MetricKind, add_process, cumulated, of_turns
from coord.metrics.spans import Spans
from coord.metrics.turns import TurnTimes
from coord.server.admin.four_letter import FourLetterWords
from coord.server.clients.connection import REQUEST_BOUNDS_MS
from coord.server.node import Node
from coord.wire import opcodes as op

#: Begin of the names of earlier versions.
OLD_PREFIX: Final = "rk_coord_"
_NAMES: Final[dict[int, str]] = {
    **dict.fromkeys((op.OP_CREATE, op.OP_CREATE2, op.OP_CREATE_CONTAINER, op.OP_CREATE_TTL), "create"),
    **dict.fromkeys((op.OP_DELETE, op.OP_DELETE_CONTAINER), "delete"),
    op.OP_SET_DATA: "set_data",
    op.OP_SET_ACL: "set_acl",
    op.OP_SYNC: "sync",
    op.OP_MULTI: "multi",
    op.OP_RECONFIG: "reconfig",
}
OTHER: Final = "other"


class StoreFigure(NamedTuple):
    """A gauge or counter, and the function that reads it from the node."""

    name: str
    kind: MetricKind
    text: str
    read: Callable[[Node], float]

    @property
    def definition(self) -> Definition:
        """The metric's definition."""
        return Definition(f"store_{self.name}", self.kind, self.text)


def _gauge(name: str, text: str, read: Callable[[Node], float]) -> StoreFigure:
    return StoreFigure(name, MetricKind.GAUGE, text, read)


def _counter(name: str, text: str, read: Callable[[Node], float]) -> StoreFigure:
    return StoreFigure(name, MetricKind.COUNTER, text, read)


FIGURES: Final = (
    _gauge("leader", "1 while this node leads.", lambda node: float(node.role_name() == "leader")),
    _gauge("serving", "1 while this node has a leader.", lambda node: float(node.is_serving())),
    _gauge("term", "Raft term.", lambda node: node.core.term),
    _gauge("commit_index", "Raft commit index.", lambda node: node.core.log.commit),
    _gauge("applied_index", "Raft applied index.", lambda node: node.applied_index),
    _gauge(
        "compared_index",
        "Index up to which a majority had this node's digest.",
        lambda node: node.divergence.agreed_index,
    ),
    _gauge("snapshot_index", "Index of the newest snapshot.", lambda node: node.snapshot_policy.index),
    _gauge("zxid", "Zxid of the last applied command.", lambda node: node.machine.last_zxid),
    _gauge("level", "Feature level in force.", lambda node: node.levels.in_force()),
    _gauge(
        "supported_level", "Highest feature level that this build supports.", lambda node: node.levels.supported
    ),
    _gauge("znodes", "Znodes in the tree.", lambda node: len(node.machine.tree.nodes)),
    _gauge("data_bytes", "Bytes of data in znodes.", lambda node: node.machine.tree.data_bytes),
    _gauge("ephemerals", "Ephemeral znodes.", lambda node: node.machine.tree.ephemeral_count),
    _gauge("sessions", "Sessions in the cluster.", lambda node: len(node.machine.sessions)),
    _gauge("connections", "Client connections of this node.", lambda node: len(node.clients.connections)),
    _gauge("watches", "Watches on this node.", lambda node: node.clients.watches.watch_count()),
    _gauge(
        "outstanding_commands",
        "Commands of this node's clients that are not applied yet.",
        lambda node: node.proposals.outstanding(),
    ),
    _gauge("disk_full", "1 while the disk rejects the log for lack of space.", lambda node: float(node.is_full)),
    _counter("requests", "Requests received from clients.", lambda node: node.clients.received),
    _counter("events", "Watch events sent.", lambda node: node.clients.events_sent),
    _counter("batches", "Log entries with commands applied.", lambda node: node.batches),
    _counter("commands", "Commands applied.", lambda node: node.commands),
    _counter("elections_won", "Times this node became leader.", lambda node: node.elections_won),
    _counter("commands_resent", "Commands resent after a leader change.", lambda node: node.proposals.resent),
)  # fmt: skip
REQUESTS: Final = Definition(
    "store_request_seconds",
    MetricKind.HISTOGRAM,
    "Time of a client's request through the log, from its arrival until it is committed, applied and answered, by kind;"
    " measured in milliseconds.",
    ("kind",),
)
LOG_SYNCS: Final = Definition(
    "store_log_sync_seconds", MetricKind.HISTOGRAM, "Time of a write of the log to disk, with its sync."
)
FOLLOWERS_BEHIND: Final = Definition(
    "store_follower_behind_entries",
    MetricKind.GAUGE,
    "On the leader: log entries that each other node lacks.",
    ("node",),
)
DEFINITIONS: Final = (
    *(one.definition for one in FIGURES),
    REQUESTS,
    LOG_SYNCS,
    FOLLOWERS_BEHIND,
    *ALL_TURNS,
)


class StoreMetrics(Collector):
    """Collector that reads the node's figures for each scrape. It registers itself and the metrics of the process."""

    def __init__(
        self, node: Node, words: FourLetterWords, log_syncs: Spans, turns: TurnTimes, registry: CollectorRegistry
    ) -> None:
        self._node = node
        self._words = words
        self._log_syncs = log_syncs
        self._turns = turns
        registry.register(self)
        add_process(registry, "store")

    def describe(self) -> list[Metric]:
        """Return nothing, because the node must not be read before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the node's figures as they are now."""
        node = self._node
        for figure in FIGURES:
            value = figure.read(node)
            yield figure.definition.family(value)
            make = GaugeMetricFamily if figure.kind is MetricKind.GAUGE else CounterMetricFamily
            yield make(f"{OLD_PREFIX}{figure.name}", f"Former name of {figure.definition.full_name}.", value=value)
        yield self._requests()
        yield LOG_SYNCS.histogram({(): self._log_syncs})
        yield from of_turns(self._turns)
        if node.role_name() == "leader":
            behind: dict[tuple[str, ...], float] = {
                (str(one),): float(entries) for one, entries in node.followers().items()
            }
            yield FOLLOWERS_BEHIND.labeled(behind)
        yield from self._old()

    def _requests(self) -> Metric:
        by_name: dict[str, list[int]] = {}
        for opcode, counts in node_counts(self._node):
            name = _NAMES.get(opcode, OTHER)
            known = by_name.setdefault(name, [0] * len(counts))
            by_name[name] = [a + b for a, b in zip(known, counts, strict=True)]
        family = HistogramMetricFamily(f"{PREFIX}{REQUESTS.name}", REQUESTS.text, labels=REQUESTS.labels)
        bounds = [bound / 1000 for bound in REQUEST_BOUNDS_MS]
        for name, counts in sorted(by_name.items()):
            family.add_metric([name], list(cumulated(bounds, counts[:-1])), counts[-1] / 1000)
        return family

    def _old(self) -> Iterator[Metric]:
        """Yield metrics of earlier versions that histograms have replaced."""
        gauges = [("request_latency_mean_seconds", self._node.clients.latency.mean_ms())]
        for name, share in (("log_write_p50_seconds", 0.5), ("log_write_p99_seconds", 0.99)):
            took_ms = self._words.log_time_ms(share)
            if took_ms is not None:
                gauges.append((name, took_ms))
        for name, value_ms in gauges:
            text = f"Of earlier versions; {PREFIX}{REQUESTS.name} and {PREFIX}{LOG_SYNCS.name} have it in full."
            yield GaugeMetricFamily(f"{OLD_PREFIX}{name}", text, value=value_ms / 1e3)


def node_counts(node: Node) -> list[tuple[int, list[int]]]:
    """Return the counted requests of a node by opcode."""
    return list(node.clients.times.counts.items())
