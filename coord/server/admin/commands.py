"""ZooKeeper's AdminServer commands: `GET /commands/NAME` returns JSON with ZooKeeper's field names.

Only the read-only commands that monitors use are supported. Every reply has `command` and `error` (null), as in
ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from coord.server.admin.four_letter import VERSION, FourLetterWords, began_ms, operation_of
from coord.server.clients.connection import Connection
from coord.server.config.addresses import MemberAddress, config_text, decode_members, role_of, shown
from coord.server.config.settings import StoreSettings
from coord.server.membership.steps import addresses_of
from coord.server.node import Node

PREFIX: Final = b"/commands/"
#: ZooKeeper's aliases, and the names of the four-letter words.
_ALSO: Final = {
    "monitor": ("mntr",),
    "configuration": ("conf", "config"),
    "connections": ("cons",),
    "server_stats": ("srvr",),
    "is_read_only": ("isro",),
    "leader": ("lead",),
    "watch_summary": ("wchs",),
    "voting_view": (),
    "ruok": (),
}

Answer = Callable[[], Mapping[str, object]]


def command_pages(settings: StoreSettings, node: Node, words: FourLetterWords) -> dict[bytes, Callable[[], object]]:
    """Return path -> function that builds the page."""

    def leader() -> Mapping[str, object]:
        known = node.core.leader
        address = addresses_of(node.core.configs.current, settings.first_members()).get(known)
        return {"is_leader": known == settings.node_id, "leader_id": known, "leader_ip": address[0] if address else ""}

    def watch_summary() -> Mapping[str, object]:
        watches = node.clients.watches
        return {
            "num_connections": watches.watcher_count(),
            "num_paths": watches.path_count(),
            "num_total_watches": watches.watch_count(),
        }

    answers: dict[str, Answer] = {
        "ruok": dict,
        "monitor": lambda: dict(words.monitor()),
        "configuration": lambda: _configuration(settings, node),
        "connections": lambda: _connections(words),
        "server_stats": lambda: _server_stats(node, words),
        "is_read_only": lambda: {"read_only": words.mode() == "read-only"},
        "leader": leader,
        "watch_summary": watch_summary,
        "voting_view": lambda: {"current_config": _voting_view(node)},
    }
    pages: dict[bytes, Callable[[], object]] = {}
    for name, answer in answers.items():
        for spelled in (name, *_ALSO[name]):
            pages[PREFIX + spelled.encode()] = _page(name, answer)
    pages[PREFIX.rstrip(b"/")] = lambda: {"commands": sorted(answers)}
    return pages


def _page(name: str, answer: Answer) -> Callable[[], object]:
    return lambda: {**answer(), "command": name, "error": None}


def _configuration(settings: StoreSettings, node: Node) -> Mapping[str, object]:
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


def _voting_view(node: Node) -> Mapping[str, object]:
    """Return the voters by id; empty for a single node without addresses."""
    config = node.core.configs.current
    members = decode_members(config.attachment)
    return {
        str(i): {
            "server_addresses": [shown(members[i].peer)],
            "election_addresses": [shown((members[i].peer[0], members[i].election_port))],
            "client_address": _client_address(members[i]),
            "learner_type": role_of(config, i),
        }
        for i in config.voters
        if i in members
    }


def _client_address(member: MemberAddress) -> str:
    return shown(member.client) if member.client is not None else ""


def _connections(words: FourLetterWords) -> Mapping[str, object]:
    found = words.connections()
    return {
        "connections": [_connection(c) for c in found if not c.is_secure],
        "secure_connections": [_connection(c) for c in found if c.is_secure],
    }


def _connection(c: Connection) -> Mapping[str, object]:
    """Return one connection's fields. As in the word `cons`, a single connection has no latencies."""
    latencies = dict.fromkeys(("last_latency", "min_latency", "avg_latency", "max_latency"), 0)
    return {
        "remote_socket_address": shown((c.address, c.port)),
        "outstanding_requests": len(c.pending),
        "packets_received": c.received,
        "packets_sent": c.sent,
        "session_id": c.session_id,
        "last_operation": operation_of(c),
        "established": began_ms(c),
        "session_timeout": c.timeout_ms,
        "last_cxid": c.last_xid,
        "last_response_time": c.heard_ms,
        **latencies,
    }


def _server_stats(node: Node, words: FourLetterWords) -> Mapping[str, object]:
    clients = node.clients
    latency = clients.latency
    return {
        "version": VERSION,
        "read_only": words.mode() == "read-only",
        "server_stats": {
            "packets_sent": clients.sent(),
            "packets_received": clients.received,
            "min_latency": latency.min_ms,
            "avg_latency": latency.mean_ms(),
            "max_latency": latency.max_ms,
            "num_alive_client_connections": len(clients.connections),
            "outstanding_requests": node.proposals.outstanding(),
            "server_state": words.mode(),
            "last_processed_zxid": node.machine.last_zxid,
            "uptime": node.uptime_ms(),
        },
        "node_count": len(node.machine.tree.nodes),
    }
