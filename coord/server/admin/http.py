"""Pages of a store node's admin port: metrics, health, readiness, status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coord.compiled import form
from coord.http import AdminHttp
from coord.server.admin.backup import PATH as BACKUP_PATH
from coord.server.admin.backup import Backups
from coord.server.admin.commands import command_pages
from coord.server.admin.four_letter import VERSION, FourLetterWords
from coord.server.admin.readiness import Readiness
from coord.server.config.settings import StoreSettings
from coord.server.node import Node
from coord.server.peers.link import PeerLinks


def admin_site(
    settings: StoreSettings,
    node: Node,
    links: PeerLinks,
    words: FourLetterWords,
    backups: Backups,
    readiness: Readiness,
) -> AdminHttp:
    """Return the admin pages of one node."""
    registry = CollectorRegistry()
    registry.register(_Figures(node, words))

    def health() -> tuple[bool, Mapping[str, object]]:
        why = str(node.failure) if node.failure is not None else node.trouble()
        return node.failure is None, {"problem": why}

    def ready() -> tuple[bool, Mapping[str, object]]:
        why = readiness.why_not()
        return not why, {"problem": why, "role": node.role_name(), "leader": node.core.leader}

    def status() -> dict[str, object]:
        machine = node.machine
        return {
            "node_id": settings.node_id,
            "form": form(),
            "role": node.role_name(),
            "mode": words.mode(),
            "term": node.core.term,
            "leader": node.core.leader,
            "serving": node.is_serving(),
            "commit_index": node.core.log.commit,
            "applied_index": node.applied_index,
            "snapshot_index": node.snapshot_policy.index,
            "zxid": machine.last_zxid,
            "level": node.levels.in_force(),
            "supported_level": node.levels.supported,
            "peers_supported_levels": dict(sorted(node.levels.announced.items())),
            "digest": f"{machine.digest():016x}",
            "compared_index": node.divergence.agreed_index,
            "znodes": len(machine.tree.nodes),
            "sessions": len(machine.sessions),
            "connections": len(node.clients.connections),
            "watches": node.clients.watches.watch_count(),
            "outstanding": node.proposals.outstanding(),
            "resent": node.proposals.resent,
            "data_bytes": machine.tree.data_bytes,
            "log_write_p50_ms": words.log_time_ms(0.5),
            "log_write_p99_ms": words.log_time_ms(0.99),
            "version": VERSION.partition(",")[0],
            "problem": str(node.failure) if node.failure is not None else node.trouble(),
            "disk_full": node.is_full,
            "joining": node.joining.is_joining,
            "voters": node.core.configs.current.voters,
            "joining_members": node.core.configs.current.pre_voters,
            "observers": node.core.configs.current.learners,
            "peers_connected": links.connected(),
            "followers_behind": node.followers(),
            "uptime_ms": node.uptime_ms(),
        }

    return AdminHttp(
        registry=registry,
        health=health,
        ready=ready,
        status=status,
        actions={BACKUP_PATH: backups.answer},
        pages=command_pages(settings, node, words),
    )


class _Figures(Collector):
    """Collector that reads the node's counters for each scrape."""

    def __init__(self, node: Node, words: FourLetterWords) -> None:
        self._node = node
        self._words = words

    def collect(self) -> Iterator[Metric]:
        """Yield the node's figures as they are now."""
        node = self._node
        clients = node.clients
        tree = node.machine.tree
        gauges: list[tuple[str, str, float]] = [
            ("leader", "1 while this node leads", float(node.role_name() == "leader")),
            ("serving", "1 while this node has a leader", float(node.is_serving())),
            ("term", "Raft term", node.core.term),
            ("commit_index", "Raft commit index", node.core.log.commit),
            ("applied_index", "Raft applied index", node.applied_index),
            (
                "compared_index",
                "Index up to which a majority had this node's digest",
                node.divergence.agreed_index,
            ),
            ("snapshot_index", "Index of the newest snapshot", node.snapshot_policy.index),
            ("zxid", "Zxid of the last applied command", node.machine.last_zxid),
            ("level", "Feature level in force", node.levels.in_force()),
            ("supported_level", "Highest feature level that this build supports", node.levels.supported),
            ("znodes", "Znodes in the tree", len(tree.nodes)),
            ("data_bytes", "Bytes of data in znodes", tree.data_bytes),
            ("ephemerals", "Ephemeral znodes", tree.ephemeral_count),
            ("sessions", "Sessions in the cluster", len(node.machine.sessions)),
            ("connections", "Client connections of this node", len(clients.connections)),
            ("watches", "Watches on this node", clients.watches.watch_count()),
            ("outstanding_commands", "Commands of this node's clients not applied yet", node.proposals.outstanding()),
            ("disk_full", "1 while the disk rejects the log for lack of space", float(node.is_full)),
            (
                "request_latency_mean_seconds",
                "Mean time of a request through the log",
                clients.latency.mean_ms() / 1e3,
            ),
        ]
        for name, share in (("log_write_p50_seconds", 0.5), ("log_write_p99_seconds", 0.99)):
            took_ms = self._words.log_time_ms(share)
            if took_ms is not None:
                gauges.append(
                    (name, f"Time of a write of the log with its sync: {share:.0%} of the last ones", took_ms / 1e3)
                )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"rk_coord_{name}", text, value=value)
        counters: list[tuple[str, str, float]] = [
            ("requests", "Requests received from clients", clients.received),
            ("events", "Watch events sent", clients.events_sent),
            ("batches", "Log entries with commands applied", node.batches),
            ("commands", "Commands applied", node.commands),
            ("elections_won", "Times this node became leader", node.elections_won),
            ("commands_resent", "Commands resent after a leader change", node.proposals.resent),
        ]
        for name, text, value in counters:
            yield CounterMetricFamily(f"rk_coord_{name}", text, value=value)
