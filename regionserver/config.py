"""Settings of a region server, checked at construction and immutable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coord.client.access import OPEN_ACCESS, StoreAccess
from coord.errors import ConfigError
from coord.hosts import is_loopback
from coord.server.config.addresses import EVERY_ADDRESS
from coord.tls.context import TlsFiles
from regions.messages.heartbeat import HEARTBEAT_PERIOD_S
from regions.records.kinds import check_group
from regions.records.znodes import DEFAULT_ROOT

#: Listening addresses to which no other process can connect.
_NOWHERE: Final = frozenset({"", "*", *EVERY_ADDRESS})
SESSION_TIMEOUT_MS_MIN: Final = 500
HEARTBEAT_PERIOD_S_MIN: Final = 0.05
HEARTBEAT_PERIOD_S_MAX: Final = 60.0
#: Less would replace members for pauses of a busy machine; elections take up to a second.
REPLICA_DEAD_S_MIN: Final = 2.0
REPLICA_DEAD_S_MAX: Final = 86_400.0
#: Built-in openers: key-value regions; directories without data; none of both, for benchmarks.
OPENERS: Final = ("kv", "directories", "none")


def parse_address(text: str, what: str) -> tuple[str, int]:
    """Parse `host:port` (port 0: any free port). Raise ConfigError that names `what`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or not host:
        raise ConfigError(f"{what} {text!r} is not host:port")
    return host.strip("[]"), int(port)


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a region server. Raise ConfigError for invalid values."""

    #: Client addresses of the store, "host:port,host:port".
    store: str
    #: Directory of this server alone: identity and lock.
    data_dir: Path
    #: Directory with the regions, shared by all servers. None: this server takes only tablets.
    shared_dir: Path | None
    #: Address for requests; also the address in the registration.
    host: str
    port: int
    admin_host: str | None = None
    admin_port: int = 0
    #: Host names under which scrapers reach the admin port, beside addresses and `host`.
    admin_names: tuple[str, ...] = ()
    rack: str = "default"
    weight: float = 1.0
    group: str = ""
    root: str = DEFAULT_ROOT
    session_timeout_ms: int = 3000
    #: Threads that open and close regions.
    threads: int = 4
    #: Time for which a stopping server moves its regions away before it closes the rest; 0: close at once.
    handover_s: float = 30.0
    #: Kind of service: one of OPENERS.
    opener: str = "kv"
    #: Addresses of masters that get heartbeats in addition to the live masters below /masters.
    masters: tuple[tuple[str, int], ...] = ()
    heartbeat_period_s: float = HEARTBEAT_PERIOD_S
    #: Credentials and TLS settings for the store.
    access: StoreAccess = OPEN_ACCESS
    #: Directory with the credentials of this daemon (`coord.security`); None: the daemon serves everybody.
    certs_dir: Path | None = None
    #: Address on which this server listens for the other members of its tablets; None: the server takes no tablets.
    #: Port 0: any free port, the same at each start.
    peer_address: tuple[str, int] | None = None
    #: Proof that a peer belongs to the cluster: a secret, certificates, both, or none on a private network.
    peer_secret: bytes = field(default=b"", repr=False)
    peer_tls: TlsFiles | None = None
    #: Limit of bytes per second of all copies of replicas from this server together; 0: no limit.
    copy_rate_bytes: int = 256 << 20
    #: Bytes that stay free on the disk of the tablets: below them the server takes no copies and leads no writes.
    reserve_bytes: int = 1 << 30
    #: Seconds for which the quarantine keeps the files of a former replica.
    quarantine_keep_s: float = 7 * 86_400.0
    #: Silence after which tablets that this server leads call a member FAILED: the masters replace it.
    replica_dead_s: float = 300.0
    #: Whether requests with the token of `admin.json` may cut the links of this server's tablets
    #: (`coord.peers.partition`).
    drill_links: bool = False

    def __post_init__(self) -> None:
        """Check each value and their combination."""
        for part in self.store.split("/", 1)[0].split(","):
            parse_address(part.strip(), "store address")
        if self.host in _NOWHERE:
            raise ConfigError(
                f"no other process can connect to address {self.host or '(empty)'!r}: give this server's own host name"
            )
        if self.root and (not self.root.startswith("/") or self.root.endswith("/")):
            raise ConfigError(f"root {self.root!r} must begin with a slash and not end with one")
        if self.handover_s < 0:
            raise ConfigError(f"handover time {self.handover_s:g} s is negative")
        if self.reserve_bytes < 0 or self.quarantine_keep_s < 0:
            raise ConfigError("the reserve and the time of the quarantine must not be negative")
        if not HEARTBEAT_PERIOD_S_MIN <= self.heartbeat_period_s <= HEARTBEAT_PERIOD_S_MAX:
            raise ConfigError(
                f"heartbeat period {self.heartbeat_period_s:g} s is not between {HEARTBEAT_PERIOD_S_MIN:g} and"
                f" {HEARTBEAT_PERIOD_S_MAX:g}"
            )
        try:
            check_group(self.group)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if not 0 < self.weight <= 1000:
            raise ConfigError(f"weight {self.weight:g} is outside of (0, 1000]")
        if self.session_timeout_ms < SESSION_TIMEOUT_MS_MIN:
            raise ConfigError(f"session timeout {self.session_timeout_ms} ms is below {SESSION_TIMEOUT_MS_MIN} ms")
        if not REPLICA_DEAD_S_MIN <= self.replica_dead_s <= REPLICA_DEAD_S_MAX:
            raise ConfigError(
                f"--replica-dead-s {self.replica_dead_s:g} is out of range: give {REPLICA_DEAD_S_MIN:g} to"
                f" {REPLICA_DEAD_S_MAX:g}"
            )
        if not 1 <= self.threads <= 64:
            raise ConfigError(f"{self.threads} threads: give a number from 1 to 64")
        if self.opener not in OPENERS:
            raise ConfigError(f"opener {self.opener!r} is unknown: give one of {', '.join(OPENERS)}")
        if self.peer_address is not None:
            self._check_peers(self.peer_address)
        if self.shared_dir is not None and self.data_dir.absolute() == self.shared_dir.absolute():
            raise ConfigError(f"data directory and shared directory are both {self.data_dir}: give two directories")

    def _check_peers(self, address: tuple[str, int]) -> None:
        if self.opener != "kv":
            raise ConfigError(f"tablets have key-value rows, and this server's opener is {self.opener!r}")
        if address[0] != self.host:
            # Masters and members know one host of a server, that of its registration.
            raise ConfigError(
                f"peer address {address[0]}:{address[1]} has another host than --address: members connect to"
                f" {self.host}"
            )
        if address[1] and address[1] == self.port:
            raise ConfigError(f"requests and members cannot both use port {self.port}: give two ports")


def default_peer_address(host: str, opener: str) -> tuple[str, int] | None:
    """Return the peer address of a server whose configuration has none: any free port if no other machine can reach it.

    If other machines can reach the host, such a port would give every process access to the tablets. So an operator
    must configure the address.
    """
    return (host, 0) if opener == "kv" and is_loopback(host) else None
