"""Settings of a store node: from the command line or from a ZooKeeper configuration file, checked once at the start."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coord.errors import ConfigError
from coord.server.config.addresses import EVERY_ADDRESS, NODE_ID_MAX, Address, MemberAddress, Members
from coord.tls.context import NEED, NONE, TlsFiles
from coord.wire.client_conn import FOUR_LETTER_WORDS
from coord.wire.digests import is_digest

#: Four-letter words that are answered by default: they reveal only whether the node works.
DEFAULT_WORDS: Final = frozenset({"srvr", "ruok", "mntr", "isro"})
#: Schemes of identities that can be required of every connection.
REQUIRABLE_SCHEMES: Final = ("digest", "rk", "sasl", "x509")
#: Raft tick; heartbeats and election timeouts are counted in these ticks.
RAFT_TICK_MS: Final = 50
#: Upper limit of `frame_bytes_max`. Three other limits are higher: a follower forwards a request in one frame of the
#: peer protocol (`raft_frames.COMMAND_BYTES_MAX`), our client accepts replies of at most 64 MiB, and a length must be
#: below every four-letter word read as a number.
FRAME_BYTES_LIMIT: Final = 32 << 20
#: Upper limit of times in ms, 24 days: session timeouts have 32 bits on the wire.
MS_MAX: Final = 0x7FFFFFFF
#: Upper limit of numbers and bytes: whole numbers above it are not exact in JSON, which reports them.
NUMBER_MAX: Final = 1 << 53
#: Setting -> its lowest and its highest value.
RANGES: Final = {
    "tick_ms": (RAFT_TICK_MS, 60_000),
    **dict.fromkeys(("connect_timeout_ms", "stall_timeout_ms", "reap_interval_ms"), (1, MS_MAX)),
    **dict.fromkeys(("leader_absence_ms", "session_timeout_min_ms", "session_timeout_max_ms"), (0, MS_MAX)),
    **dict.fromkeys(("outstanding_max", "sessions_max", "output_bytes_max"), (1, NUMBER_MAX)),
    **dict.fromkeys(("snapshot_entries", "snapshot_bytes", "segment_bytes"), (1, NUMBER_MAX)),
    **dict.fromkeys(("connections_per_address_max", "connections_max", "sessions_per_address_max"), (0, NUMBER_MAX)),
    **dict.fromkeys(("znodes_max", "data_bytes_max", "watches_max", "keep_entries", "keep_bytes"), (0, NUMBER_MAX)),
    "frame_bytes_max": (1, FRAME_BYTES_LIMIT),
}


@dataclass(frozen=True)
class StoreSettings:
    """All settings of one node. Times in ms, sizes in bytes; 0 connections means no limit."""

    node_id: int
    data_dir: Path
    client_address: Address
    #: Address for clients with TLS. If it equals `client_address`, plain TCP is off.
    secure_client_address: Address | None = None
    #: This node's certificate for clients; needed with `secure_client_address`.
    tls: TlsFiles | None = None
    #: This node's certificate for its peers, and the authority of the peers' certificates; None: no TLS between peers.
    peer_tls: TlsFiles | None = None
    #: Secret that all nodes of the cluster share; b"": none.
    peer_secret: bytes = field(default=b"", repr=False)
    #: Address on which this node listens for peers; None for a single node.
    peer_address: Address | None = None
    #: Peer addresses of all first members, this node included; empty for a single node and for a node that joins.
    peers: dict[int, Address] = field(default_factory=dict)
    #: Ids in `peers` of the members that do not vote.
    observers: frozenset[int] = frozenset()
    #: All addresses of the first members, where known (zoo.cfg); otherwise `peers` is used.
    members: Members = field(default_factory=dict)
    #: Members of the running store that a new node asks to join.
    join: tuple[Address, ...] = ()
    admin_address: Address | None = None
    #: Host names under which scrapers reach the admin port, beside addresses and the hosts of this node's addresses.
    admin_names: tuple[str, ...] = ()
    #: Name that distinguishes clusters; "": the cluster id is derived from `peers`, which are equal on all nodes.
    cluster: str = ""
    tick_ms: int = 500
    session_timeout_min_ms: int = 0
    session_timeout_max_ms: int = 0
    leader_absence_ms: int = 2000
    connections_per_address_max: int = 60
    connections_max: int = 0
    frame_bytes_max: int = 0xFFFFF
    outstanding_max: int = 1000
    #: Bound of the sessions in the whole cluster, as this node counts them; at the bound this node opens no more.
    sessions_max: int = 100_000
    #: Bound of the sessions of one address in the cluster; 0: half of the sessions that other addresses do not use.
    sessions_per_address_max: int = 0
    #: Bytes of unsent replies to one client beyond which the node handles no further requests of this client.
    output_bytes_max: int = 4 << 20
    #: Time after which a connection without a connect request is closed.
    connect_timeout_ms: int = 10_000
    #: Time after which a client that does not read its replies is disconnected.
    stall_timeout_ms: int = 15_000
    words: frozenset[str] = DEFAULT_WORDS
    snapshot_entries: int = 100_000
    snapshot_bytes: int = 64 << 20
    keep_entries: int = 10_000
    keep_bytes: int = 16 << 20
    segment_bytes: int = 64 << 20
    #: Whether clients of this node with permission may change the members.
    reconfig_enabled: bool = True
    linearizable_reads: bool = False
    #: Whether clients that requested read-only mode are served reads while there is no leader.
    read_only_mode: bool = False
    #: As a leader: whether hard quota limits reject commands that would exceed them.
    enforce_quotas: bool = False
    #: As a leader: limits of znodes, and of bytes of paths and data, at which commands that add more are rejected; 0:
    #: none.
    znodes_max: int = 0
    data_bytes_max: int = 0
    #: Limit of watches per session at this node; 0: none.
    watches_max: int = 1_000_000
    #: Interval between a leader's searches for empty containers and expired TTL znodes.
    reap_interval_ms: int = 60_000
    #: "thread" or "inline": which thread syncs the log (`coord.storage.writer`).
    fsync: str = "thread"
    #: File to which this node writes its Raft events (`coord.server.admin.trace_file`); None: no trace.
    trace: Path | None = None
    #: Whether requests with the token of `admin.json` may cut this node's links (`coord.peers.partition`).
    drill_links: bool = False
    #: SASL DIGEST-MD5 users and their secrets. Without users SASL is off.
    sasl_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: `user:base64 of SHA-1` of the digest credential with all permissions; "": no superuser.
    super_digest: str = field(default="", repr=False)
    #: Schemes (REQUIRABLE_SCHEMES) of which every connection must prove an identity; empty: none.
    required_schemes: tuple[str, ...] = ()
    #: Warnings for the operator, such as ignored settings.
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ConfigError with one line that names the setting."""
        if not 1 <= self.node_id <= NODE_ID_MAX:
            raise ConfigError(f"node id {self.node_id} is not between 1 and {NODE_ID_MAX}")
        if self.peers and self.node_id not in self.peers:
            raise ConfigError(f"node {self.node_id} is not among the peers {sorted(self.peers)}")
        if len(self.peers) > 1 and self.peer_address is None:
            raise ConfigError("a node with peers needs a peer address")
        if (self.secure_client_address is None) != (self.tls is None):
            raise ConfigError("a secure client address and a certificate need each other; only one is set")
        if self.peer_tls is not None and self.peer_tls.client_auth != NEED:
            raise ConfigError("TLS between peers needs the authority of the peers' certificates")
        if self.join and self.peer_address is None:
            raise ConfigError("a node that joins needs a peer address")
        missing = sorted(self.observers - set(self.peers))
        if missing:
            raise ConfigError(f"observer {missing[0]} is not among the peers {sorted(self.peers)}")
        if self.peers and not self.voters():
            raise ConfigError("all nodes are observers; at least one must vote")
        wrong = [peer for peer in self.peers if not 1 <= peer <= NODE_ID_MAX]
        if wrong:
            raise ConfigError(f"peer id {wrong[0]} is not between 1 and {NODE_ID_MAX}")
        if len(set(self.peers.values())) != len(self.peers):
            raise ConfigError("two peers have the same address")
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) <= most:
                more = ""
                if name == "frame_bytes_max" and self.frame_bytes_max > most:
                    more = ": lower jute.maxbuffer, and keep larger values outside of the store"
                raise ConfigError(f"{name} is {getattr(self, name)}, not between {least} and {most}{more}")
        if self.timeout_min_ms() > self.timeout_max_ms():
            raise ConfigError(
                f"smallest session timeout {self.timeout_min_ms()} ms is above the largest {self.timeout_max_ms()} ms"
            )
        if self.fsync not in ("thread", "inline"):
            raise ConfigError(f"fsync must be thread or inline, not {self.fsync!r}")
        if self.super_digest and not is_digest(self.super_digest):
            raise ConfigError("the super digest is not user:base64 of a SHA-1")
        self._check_required_schemes()
        unknown = sorted(self.words - {word.decode() for word in FOUR_LETTER_WORDS})
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is not a four-letter word")

    def _check_required_schemes(self) -> None:
        """Raise ConfigError if a required scheme is unknown, or if no client could prove it."""
        for scheme in self.required_schemes:
            if scheme not in REQUIRABLE_SCHEMES:
                raise ConfigError(
                    f"{scheme!r} cannot be required of clients: use {', '.join(REQUIRABLE_SCHEMES)}"
                    + (" (every connection has an address, so ip would keep nobody out)" if scheme == "ip" else "")
                )
        if "sasl" in self.required_schemes and not self.sasl_users:
            raise ConfigError("sasl is required of clients, but there are no SASL users; name their file")
        if "x509" in self.required_schemes and (self.tls is None or self.tls.client_auth == NONE):
            raise ConfigError("x509 is required of clients, but no port asks for a certificate")

    def timeout_min_ms(self) -> int:
        """Return the shortest session timeout that is granted: 2 ticks unless set."""
        return self.session_timeout_min_ms or 2 * self.tick_ms

    def timeout_max_ms(self) -> int:
        """Return the longest session timeout that is granted: 20 ticks unless set."""
        return self.session_timeout_max_ms or 20 * self.tick_ms

    def cluster_id(self) -> bytes:
        """Return the 16 bytes that identify this cluster."""
        text = self.cluster or ",".join(f"{i}={host}:{port}" for i, (host, port) in sorted(self.peers.items()))
        return hashlib.sha256(b"regionkeeper cluster " + text.encode()).digest()[:16]

    def voters(self) -> list[int]:
        """Return the ids of a new cluster's voters."""
        return [i for i in sorted(self.peers) if i not in self.observers] if self.peers else [self.node_id]

    def learners(self) -> list[int]:
        """Return the ids of a new cluster's members that do not vote."""
        return sorted(self.observers)

    def is_alone(self) -> bool:
        """Return True if the cluster begins with only this node."""
        return len(self.peers) < 2 and not self.join

    def first_members(self) -> Members:
        """Return the known addresses of the first members, to be written into the configuration."""
        own = self.node_id
        if self.members:
            known = dict(self.members)
            if own in known and known[own].client is None:
                known[own] = MemberAddress(own, known[own].peer, known[own].election_port, self.client_address)
            return known
        peers = self.peers
        if not peers and self.peer_address is not None and self.peer_address[0] not in ("", *EVERY_ADDRESS):
            peers = {own: self.peer_address}
        client = {own: self.client_address}
        return {i: MemberAddress(i, address, client=client.get(i)) for i, address in peers.items()}


def parse_address(text: str, what: str) -> Address:
    """Parse `host:port` or `[v6]:port`. Raise ConfigError that names `what`."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{what} {text!r} is not host:port")
    return host, int(port)


def parse_peers(text: str) -> dict[int, Address]:
    """Parse `1=host:port,2=host:port`. Raise ConfigError."""
    peers: dict[int, Address] = {}
    for part in filter(None, text.split(",")):
        number, equals, address = part.strip().partition("=")
        if not equals or not number.isdecimal():
            raise ConfigError(f"peer {part!r} is not id=host:port")
        if int(number) in peers:
            raise ConfigError(f"peer {number} is named twice")
        peers[int(number)] = parse_address(address, f"address of peer {number}")
    return peers


def parse_join(text: str) -> tuple[Address, ...]:
    """Parse `host:port,host:port`. Raise ConfigError."""
    return tuple(parse_address(part, "--join") for part in filter(None, text.split(",")))


def parse_observers(text: str) -> frozenset[int]:
    """Parse `4,5`. Raise ConfigError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in parts if not part.isdecimal()]
    if wrong:
        raise ConfigError(f"observer {wrong[0]!r} is not a node id")
    return frozenset(map(int, parts))


def parse_schemes(text: str) -> tuple[str, ...]:
    """Parse `sasl,x509`: the schemes that may be required of clients, each once."""
    return tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))


def parse_words(text: str) -> frozenset[str]:
    """Parse a comma-separated whitelist of four-letter words; `*` stands for all of them."""
    words = {word.strip() for word in text.split(",") if word.strip()}
    if "*" in words:
        return frozenset(word.decode() for word in FOUR_LETTER_WORDS)
    return frozenset(words)
