"""What tools ask ZooKeeper's AdminServer for: `GET /commands/NAME`, JSON with ZooKeeper's names of fields.

Of its commands those that only read and that monitors use. Every answer has `command` and `error` (null), as there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from coord.server.changes import addresses_of
from coord.server.config import Settings
from coord.server.members import config_text
from coord.server.node import Node
from coord.server.words import VERSION, Words

PREFIX: Final = b"/commands/"
#: ZooKeeper's other names for the same, and those of the four-letter words.
_ALSO: Final = {
    "monitor": ("mntr",),
    "configuration": ("conf", "config"),
    "server_stats": ("srvr",),
    "is_read_only": ("isro",),
    "leader": ("lead",),
    "watch_summary": ("wchs",),
    "voting_view": (),
    "ruok": (),
}

Answer = Callable[[], Mapping[str, object]]


def command_pages(settings: Settings, node: Node, words: Words) -> dict[bytes, Callable[[], object]]:
    """By path: what to ask for its content."""

    def leader() -> Mapping[str, object]:
        known = node.core.leader
        address = addresses_of(node.core.configs.current, settings.first_members()).get(known)
        return {"is_leader": known == settings.node_id, "leader_id": known, "leader_ip": address[0] if address else ""}

    def watch_summary() -> Mapping[str, object]:
        watches = node.pipeline.watches
        return {
            "num_connections": watches.watcher_count(),
            "num_paths": watches.path_count(),
            "num_total_watches": watches.watch_count(),
        }

    answers: dict[str, Answer] = {
        "ruok": dict,
        "monitor": lambda: dict(words.monitor()),
        "configuration": lambda: _configuration(settings, node),
        "server_stats": lambda: _server_stats(node, words),
        "is_read_only": lambda: {"read_only": words.mode() == "read-only"},
        "leader": leader,
        "watch_summary": watch_summary,
        "voting_view": lambda: {"current_config": config_text(node.core.configs.current).decode().splitlines()},
    }
    pages: dict[bytes, Callable[[], object]] = {}
    for name, answer in answers.items():
        for spelled in (name, *_ALSO[name]):
            pages[PREFIX + spelled.encode()] = _page(name, answer)
    pages[PREFIX.rstrip(b"/")] = lambda: {"commands": sorted(answers)}
    return pages


def _page(name: str, answer: Answer) -> Callable[[], object]:
    return lambda: {**answer(), "command": name, "error": None}


def _configuration(settings: Settings, node: Node) -> Mapping[str, object]:
    secure = settings.secure_client_address
    return {
        "client_port": settings.client_address[1],
        "secure_client_port": secure[1] if secure else -1,
        "data_dir": str(settings.data_dir / "snap"),
        "data_log_dir": str(settings.data_dir / "wal"),
        "tick_time": settings.tick_ms,
        "max_client_cnxns": settings.connections_per_address_max,
        "min_session_timeout": settings.timeout_min_ms(),
        "max_session_timeout": settings.timeout_max_ms(),
        "server_id": settings.node_id,
        "peer_port": settings.peer_address[1] if settings.peer_address else -1,
        "quorum_peers": config_text(node.core.configs.current).decode().splitlines(),
    }


def _server_stats(node: Node, words: Words) -> Mapping[str, object]:
    pipeline = node.pipeline
    latency = pipeline.latency
    return {
        "version": VERSION,
        "read_only": words.mode() == "read-only",
        "server_stats": {
            "packets_sent": pipeline.sent(),
            "packets_received": pipeline.received,
            "min_latency": latency.min_ms,
            "avg_latency": latency.mean_ms(),
            "max_latency": latency.max_ms,
            "num_alive_client_connections": len(pipeline.connections),
            "outstanding_requests": node.proposals.outstanding(),
            "server_state": words.mode(),
            "last_processed_zxid": node.machine.last_zxid,
            "uptime": node.uptime_ms(),
        },
        "node_count": len(node.machine.tree.nodes),
    }
