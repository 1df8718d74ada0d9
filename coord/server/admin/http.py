"""Pages of a store node's admin port: metrics, health, readiness, status."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from coord.compiled import form
from coord.errors import ConfigError
from coord.http import AdminHttp
from coord.metrics.spans import Spans
from coord.metrics.turns import TurnTimes
from coord.security import process
from coord.server.admin.backup import PATH as BACKUP_PATH
from coord.server.admin.backup import Backups
from coord.server.admin.commands import command_pages
from coord.server.admin.four_letter import VERSION, FourLetterWords
from coord.server.admin.metrics import StoreMetrics
from coord.server.admin.readiness import Readiness
from coord.server.config.settings import StoreSettings
from coord.server.node import Node
from coord.server.peers.link import PeerLinks
from coord.tls.context import TlsFiles
from coord.tls.reloading import TlsContexts


class WatchedFiles:
    """Expiry times of one port's certificates. The files are read again only when they change."""

    def __init__(self, port: str, files: TlsFiles) -> None:
        self._port = port
        self._files = TlsContexts(files)
        self._seen: tuple[object, ...] = ()
        self._ends: list[tuple[str, datetime.datetime]] = []

    def ends(self) -> list[tuple[str, datetime.datetime]]:
        """Return name and end of each certificate. Unusable files have none."""
        version = self._files.version()
        if version != self._seen:
            self._seen, self._ends = version, []
            with contextlib.suppress(ConfigError):
                self._ends = self._read()
        return self._ends

    def _read(self) -> list[tuple[str, datetime.datetime]]:
        from coord.security.certificate_facts import facts_of  # loads a library that plain ports do not need

        names = {"own": "certificate"}
        return [
            (f"the {names.get(what, what)} at the port for {self._port}", facts_of(pem)[0].expires)
            for what, pem in self._files.certificates().items()
        ]


def watched_files(settings: StoreSettings) -> list[WatchedFiles]:
    """Return the TLS files of the clients' and the peers' port, without those of --certs-dir, which `AdminHttp`
    watches. Raise ConfigError."""
    named = {"clients": settings.tls, "peers": settings.peer_tls}
    own = process.tls_files()
    return [WatchedFiles(port, files) for port, files in named.items() if files is not None and files != own]


def expiring_files(watched: Sequence[WatchedFiles], now: datetime.datetime) -> list[str]:
    """Return a sentence for each certificate that soon expires."""
    if not watched:
        return []
    from coord.security.certificate_facts import expiring

    return expiring([end for one in watched for end in one.ends()], now)


def _names_of(settings: StoreSettings) -> set[str]:
    """Return the host names that the admin port accepts: those of this node's addresses, and `names`."""
    own = [settings.admin_address, settings.client_address, settings.secure_client_address, settings.peer_address]
    own.append(settings.peers.get(settings.node_id))
    return {address[0] for address in own if address is not None} | set(settings.admin_names)


def admin_site(
    settings: StoreSettings,
    node: Node,
    links: PeerLinks,
    words: FourLetterWords,
    backups: Backups,
    readiness: Readiness,
    log_syncs: Spans,
    turns: TurnTimes,
) -> AdminHttp:
    """Return the admin pages of one node. `log_syncs` and `turns` are counted by the log's writer and the reactor."""
    registry = CollectorRegistry()
    StoreMetrics(node, words, log_syncs, turns, registry)
    watched = watched_files(settings)

    def health() -> tuple[bool, Mapping[str, object]]:
        why = str(node.failure) if node.failure is not None else node.trouble()
        return node.failure is None, {
            "problem": why,
            "degraded": expiring_files(watched, datetime.datetime.now(datetime.UTC)),
        }

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
        names=_names_of(settings),
    )
