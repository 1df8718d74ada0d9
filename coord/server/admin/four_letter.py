"""Four-letter words: commands of operators and monitors on the client port, answered in ZooKeeper's formats.

All are read-only except `crst` and `srst`, which reset counters. Only whitelisted words are answered; by default srvr,
ruok, mntr and isro. Listings are truncated at `LINES_MAX` lines, so that no word blocks the node for long.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from coord.security.principal import OPEN_DOOR
from coord.server.clients.connection import Connection
from coord.server.config.addresses import config_text
from coord.server.config.exposure import open_door
from coord.server.config.settings import StoreSettings
from coord.server.node import Node
from coord.wire import opcodes as op

#: The version string that clients and monitors parse: the protocol is that of ZooKeeper 3.9.
VERSION: Final = "3.9.5-regionkeeper-0.1.0, built on 2026-01-01 00:00 UTC"
LINES_MAX: Final = 10_000
_NOT_SERVING: Final = "This ZooKeeper instance is not currently serving requests\n"
#: Opcode -> name of the last operation in `cons`.
_SHORT: Final = {
    **dict.fromkeys((op.OP_CREATE, op.OP_CREATE2, op.OP_CREATE_CONTAINER, op.OP_CREATE_TTL), "CREA"),
    **dict.fromkeys((op.OP_GET_CHILDREN, op.OP_GET_CHILDREN2), "GETC"),
    **dict.fromkeys((op.OP_DELETE, op.OP_DELETE_CONTAINER), "DELE"),
    op.OP_EXISTS: "EXIS",
    op.OP_GET_DATA: "GETD",
    op.OP_SET_DATA: "SETD",
    op.OP_GET_ACL: "GETA",
    op.OP_SET_ACL: "SETA",
    op.OP_SYNC: "SYNC",
    op.OP_PING: "PING",
    op.OP_MULTI: "MULT",
    op.OP_MULTI_READ: "MLTR",
    op.OP_RECONFIG: "RECO",
    op.OP_REMOVE_WATCHES: "REMW",
    op.OP_CHECK_WATCHES: "CHKW",
    op.OP_ADD_WATCH: "ADDW",
    op.OP_SET_WATCHES: "SETW",
    op.OP_SET_WATCHES2: "STW2",
    op.OP_GET_EPHEMERALS: "GETE",
    op.OP_GET_ALL_CHILDREN_NUMBER: "GETACN",
    op.OP_WHO_AM_I: "WHOA",
    op.OP_AUTH: "AUTH",
    op.OP_SASL: "SASL",
    op.OP_CLOSE_SESSION: "CLOS",
}
#: FourLetterWords that are answered even without a leader.
_ALWAYS: Final = frozenset({"ruok", "conf", "envi", "isro", "crst", "srst"})


class FourLetterWords:
    """The four-letter words of one node."""

    def __init__(self, settings: StoreSettings, node: Node, log_times_s: Sequence[float] = ()) -> None:
        """`log_times_s` has the seconds that the last writes of the log took."""
        self._settings = settings
        self._log_times_s = log_times_s
        self._node = node
        #: Returns the number of connections that were rejected at one of the limits.
        self.rejected: Callable[[], int] = lambda: 0
        self._answers: dict[str, Callable[[], str]] = {
            "ruok": lambda: "imok",
            "isro": lambda: "rw" if node.is_serving() else "ro",
            "srvr": self._srvr,
            "stat": self._stat,
            "mntr": self._mntr,
            "conf": self._conf,
            "envi": self._envi,
            "cons": lambda: _lines(_describe(c) for c in self.connections()) + "\n",
            "dump": self._dump,
            "wchs": self._wchs,
            "wchc": self._wchc,
            "wchp": self._wchp,
            "dirs": self._dirs,
            "crst": self._crst,
            "srst": self._srst,
        }

    def answer(self, word: bytes) -> bytes:
        """Return the answer to a word. Return b"" for an unknown word, which ZooKeeper does not answer either."""
        name = word.decode()
        build = self._answers.get(name)
        if build is None:
            return b""
        if name not in self._settings.words:
            return f"{name} is not executed because it is not in the whitelist.\n".encode()
        is_of_use = self._node.is_serving() or self._node.pipeline.handshake.read_only.is_on
        if not is_of_use and name not in _ALWAYS:
            return _NOT_SERVING.encode()
        return build().encode()

    def mode(self) -> str:
        """Return leader, follower, observer, standalone or read-only."""
        if self._node.pipeline.handshake.read_only.is_on:
            return "read-only"
        config = self._node.core.configs.current
        if len(config.members()) == 1:
            return "standalone"
        if self._node.role_name() == "leader":
            return "leader"
        return "follower" if config.is_voter(self._settings.node_id) else "observer"

    def peer_state(self) -> str:
        """Return state and phase of a member of an ensemble, in ZooKeeper's words."""
        node = self._node
        if not node.is_serving():
            return "leading - discovery" if node.role_name() == "leader" else "looking - election"
        state = {"leader": "leading", "observer": "observing"}.get(self.mode(), "following")
        return f"{state} - broadcast"

    def connections(self) -> list[Connection]:
        """Return the clients' connections, at most LINES_MAX."""
        return list(islice(self._node.clients.connections.values(), LINES_MAX))

    def log_time_ms(self, share: float) -> float | None:
        """Return the time in which this share of the last writes of the log became durable; None before the first
        write."""
        times = sorted(self._log_times_s)
        return round(1000 * times[int(share * (len(times) - 1))], 3) if times else None

    def _srvr(self) -> str:
        door = open_door(self._settings)
        return self._version() + self._figures() + (f"{OPEN_DOOR}: {door}\n" if door else "")

    def _stat(self) -> str:
        clients = "".join(f"{_head(c)})\n" for c in self.connections())
        return f"{self._version()}Clients:\n{clients}\n" + self._figures()

    def _version(self) -> str:
        is_read_only = self.mode() == "read-only"
        return f"Zookeeper version: {VERSION}\n" + ("READ-ONLY mode; serving only read-only clients\n" * is_read_only)

    def _figures(self) -> str:
        node = self._node
        clients = node.clients
        latency = clients.latency
        return (
            f"Latency min/avg/max: {latency.min_ms}/{latency.mean_ms()}/{latency.max_ms}\n"
            f"Received: {clients.received}\n"
            f"Sent: {clients.sent()}\n"
            f"Connections: {len(clients.connections)}\n"
            f"Outstanding: {node.proposals.outstanding()}\n"
            f"Zxid: {node.machine.last_zxid:#x}\n"
            f"Mode: {self.mode()}\n"
            f"Node count: {len(node.machine.tree.nodes)}\n"
        )

    def monitor(self) -> list[tuple[str, object]]:
        """Return names and values of mntr, the names without the prefix zk_."""
        node = self._node
        clients = node.clients
        tree = node.machine.tree
        figures: list[tuple[str, object]] = [
            ("version", VERSION),
            ("server_state", self.mode()),
            ("avg_latency", clients.latency.mean_ms()),
            ("max_latency", clients.latency.max_ms),
            ("min_latency", clients.latency.min_ms),
            ("packets_received", clients.received),
            ("packets_sent", clients.sent()),
            ("num_alive_connections", len(clients.connections)),
            ("outstanding_requests", node.proposals.outstanding()),
            ("znode_count", len(tree.nodes)),
            ("watch_count", clients.watches.watch_count()),
            ("ephemerals_count", tree.ephemeral_count),
            ("approximate_data_size", tree.data_bytes),
            ("last_client_response_size", clients.last_response_bytes),
            ("connection_rejected", self.rejected()),
            ("global_sessions", len(node.machine.sessions)),
            ("local_sessions", 0),
            ("open_file_descriptor_count", len(os.listdir("/proc/self/fd"))),
            ("max_file_descriptor_count", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            ("uptime", node.uptime_ms()),
            ("disk_full", int(node.is_full)),
            ("snapshot_failed", int(node.snapshot_policy.error != "")),
            ("raft_term", node.core.term),
            ("raft_commit_index", node.core.log.commit),
            ("raft_applied_index", node.applied_index),
        ]
        if (slow_ms := self.log_time_ms(0.99)) is not None:
            times_s = self._log_times_s
            mean_ms, least_ms, most_ms = (
                round(1000 * value, 3) for value in (sum(times_s) / len(times_s), min(times_s), max(times_s))
            )
            figures += [("avg_fsynctime", mean_ms), ("min_fsynctime", least_ms), ("max_fsynctime", most_ms)]
            figures.append(("p99_fsynctime", slow_ms))
        config = node.core.configs.current
        if len(config.members()) > 1:
            figures += [("quorum_size", len(config.voters)), ("peer_state", self.peer_state())]
        if self.mode() == "leader":
            followers = node.followers()
            synced = [i for i, behind in followers.items() if behind == 0]
            figures += [
                ("learners", len(followers)),
                ("synced_followers", sum(1 for i in synced if i in config.voters)),
                ("synced_non_voting_followers", sum(1 for i in synced if i in config.pre_voters)),
                ("synced_observers", sum(1 for i in synced if i in config.learners)),
                ("pending_syncs", sum(connection.syncs for connection in clients.connections.values())),
                ("leader_uptime", node.leading_ms()),
            ]
        return figures

    def _mntr(self) -> str:
        return "".join(f"zk_{name}\t{value}\n" for name, value in self.monitor())

    def _conf(self) -> str:
        settings = self._settings
        lines = [
            f"clientPort={settings.client_address[1]}",
            f"secureClientPort={settings.secure_client_address[1] if settings.secure_client_address else -1}",
            f"dataDir={settings.data_dir / 'snap'}",
            f"dataDirSize={_folder_bytes(settings.data_dir / 'snap')}",
            f"dataLogDir={settings.data_dir / 'wal'}",
            f"dataLogSize={_folder_bytes(settings.data_dir / 'wal')}",
            f"tickTime={settings.tick_ms}",
            f"maxClientCnxns={settings.connections_per_address_max}",
            f"minSessionTimeout={settings.timeout_min_ms()}",
            f"maxSessionTimeout={settings.timeout_max_ms()}",
            f"serverId={settings.node_id}",
        ]
        text = config_text(self._node.core.configs.current).decode()
        if text:
            lines += ["membership: ", *text.splitlines()]
        return "\n".join(lines) + "\n"

    def _envi(self) -> str:
        return (
            "Environment:\n"
            f"zookeeper.version={VERSION}\n"
            f"host.name={platform.node()}\n"
            f"python.version={platform.python_version()}\n"
            f"python.implementation={platform.python_implementation()}\n"
            f"python.executable={sys.executable}\n"
            f"os.name={platform.system()}\n"
            f"os.arch={platform.machine()}\n"
            f"os.version={platform.release()}\n"
        )

    def _dump(self) -> str:
        node = self._node
        sessions = sorted(node.machine.sessions.sessions.items())
        parts = ["SessionTracker dump:", f"Global Sessions({len(sessions)}):"]
        parts += [f"{session_id:#x}\t{session.timeout_ms}ms" for session_id, session in sessions[:LINES_MAX]]
        owners = sorted(node.machine.tree.ephemerals)
        parts += ["ephemeral nodes dump:", f"Sessions with Ephemerals ({len(owners)}):"]
        for owner in owners:
            if len(parts) > 2 * LINES_MAX:
                break
            parts.append(f"{owner:#x}:")
            parts += [f"\t{path.decode(errors='replace')}" for path in node.machine.tree.ephemerals_of(owner)]
        parts += ["Connections dump:", f"Connections Sets (1)/({len(node.clients.connections)}):"]
        return "\n".join(parts) + "\n"

    def _wchs(self) -> str:
        watches = self._node.clients.watches
        return (
            f"{watches.watcher_count()} connections watching {watches.path_count()} paths\n"
            f"Total watches:{watches.watch_count()}\n"
        )

    def _wchc(self) -> str:
        lines: list[str] = []
        for session_id, paths in self._node.clients.watches.by_watcher().items():
            if len(lines) > LINES_MAX:
                break
            lines.append(f"{session_id:#x}")
            lines += [f"\t{path.decode(errors='replace')}" for path in paths]
        return _lines(lines) + "\n"

    def _wchp(self) -> str:
        lines: list[str] = []
        for path, session_ids in self._node.clients.watches.by_path().items():
            if len(lines) > LINES_MAX:
                break
            lines.append(path.decode(errors="replace"))
            lines += [f"\t{session_id:#x}" for session_id in session_ids]
        return _lines(lines) + "\n"

    def _dirs(self) -> str:
        data_dir = self._settings.data_dir
        return f"datadir_size: {_folder_bytes(data_dir / 'snap')}\nlogdir_size: {_folder_bytes(data_dir / 'wal')}\n"

    def _crst(self) -> str:
        for connection in self._node.clients.connections.values():
            connection.received = connection.sent = 0
        return "Connection stats reset.\n"

    def _srst(self) -> str:
        self._node.clients.reset_figures()
        return "Server stats reset.\n"


def _head(c: Connection) -> str:
    """Return the part of a line about a connection that `stat` and `cons` share."""
    return f" /{c.address}:{c.port}[{1 if c.session else 0}](queued={len(c.pending)},recved={c.received},sent={c.sent}"


def operation_of(c: Connection) -> str:
    """Return ZooKeeper's abbreviation of a connection's last operation."""
    return _SHORT.get(c.last_opcode, "NA")


def began_ms(c: Connection) -> int:
    """Return when a connection began in ms of the wall clock. (ZooKeeper prints `lresp` by the monotonic clock.)"""
    return c.established_ms + int((time.time() - time.monotonic()) * 1000)


def _describe(c: Connection) -> str:
    """Return one line of `cons`; a connection without a session has counters alone."""
    head = _head(c)
    if c.session is None:
        return head + ")"
    return head + (
        f",sid={c.session_id:#x},lop={operation_of(c)},est={began_ms(c)}"
        f",to={c.timeout_ms},lcxid={c.last_xid & 0xFFFFFFFF:#x},lzxid=0xffffffffffffffff,lresp={c.heard_ms}"
        ",llat=0,minlat=0,avglat=0,maxlat=0)"
    )


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _folder_bytes(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder)) if folder.is_dir() else 0
