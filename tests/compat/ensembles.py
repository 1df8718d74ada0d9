"""Three servers, or one, behind one interface: ours, or Apache ZooKeeper's, each started from its own zoo.cfg.

    with ensemble("regionkeeper", folder) as servers:
        servers.stop(0); servers.start(0); servers.wait_ready()

Both kinds get the same file and the same settings: extended znode kinds and reconfiguration on, a superuser
`super:secret`, a SASL user `jaas`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tests.compat import jvm
from tests.support.helpers import daemon, eventually, free_ports, rk

OURS = "regionkeeper"
ZOOKEEPER = "zookeeper"
KINDS = (OURS, ZOOKEEPER)

#: Sessions of 6 s need a tick no longer than this.
TICK_MS = 500
SUPER = "super:secret"

_JAAS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_jaas="right";
};
Good {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    username="jaas" password="right";
};
Wrong {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    username="jaas" password="wrong";
};
"""


class Servers(Protocol):
    """The interface of servers on which the Java program runs."""

    addresses: list[str]
    jaas: Path

    @property
    def hosts(self) -> str:
        """Return all addresses in the form that clients accept."""
        ...

    def start(self, number: int) -> None:
        """Start a server. Do not wait."""

    def stop(self, number: int) -> None:
        """Kill a server."""

    def wait_ready(self, *numbers: int) -> None:
        """Wait until these servers serve clients."""


class Ensemble:
    """Servers as processes; `addresses` are their client addresses."""

    def __init__(self, kind: str, folder: Path, *, servers: int = 3, reap_interval_ms: int = 1000) -> None:
        self.kind = kind
        self.folder = folder
        self._reap_interval_ms = reap_interval_ms
        self._clients, self._peers, self._elections = (free_ports(servers) for _ in range(3))
        self.addresses = [f"127.0.0.1:{port}" for port in self._clients]
        self._running = [contextlib.ExitStack() for _ in self.addresses]
        folder.mkdir(parents=True, exist_ok=True)
        self.jaas = folder / "jaas.conf"
        self.jaas.write_text(_JAAS)

    @property
    def hosts(self) -> str:
        """Return all addresses in the form that clients accept."""
        return ",".join(self.addresses)

    def start(self, number: int) -> None:
        """Start a server (0 is the first), on its data if it ran before. Do not wait."""
        home = self.folder / f"server{number + 1}"
        (home / "data").mkdir(parents=True, exist_ok=True)
        config = home / "zoo.cfg"
        if not config.exists():
            (home / "data" / "myid").write_text(f"{number + 1}\n")
            config.write_text(self._config(home))
        command = self._our_command(config) if self.kind == OURS else self._java_command(config)
        self._running[number].enter_context(daemon(command, log=home / "log"))

    def stop(self, number: int) -> None:
        """Kill a server. Its data stays."""
        self._running[number].close()

    def word(self, number: int, word: bytes) -> bytes:
        """Return a server's answer to a four-letter word."""
        with socket.create_connection(("127.0.0.1", self._clients[number]), 5) as sock:
            sock.settimeout(5)
            sock.sendall(word)
            return b"".join(iter(lambda: sock.recv(65536), b""))

    def wait_ready(self, *numbers: int) -> None:
        """Wait until these servers (all by default) serve clients."""

        def serve() -> bool:
            return all(b"Mode:" in self.word(number, b"srvr") for number in numbers or range(len(self.addresses)))

        try:
            eventually(serve, 60, f"{self.kind} serves")
        except AssertionError as error:
            logs = "".join(f"\n== {log}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("server*/log")))
            raise AssertionError(f"{error}{logs}") from error

    def leader(self) -> int:
        """Return the leading server."""

        def found() -> int:
            modes = (b"Mode: leader", b"Mode: standalone")
            leaders = [i for i in range(len(self.addresses)) if any(mode in self.word(i, b"srvr") for mode in modes)]
            return leaders[0] + 1 if leaders else 0

        return eventually(found, 30, "a leader") - 1

    def close(self) -> None:
        """Kill all servers."""
        for running in self._running:
            running.close()

    def _config(self, home: Path) -> str:
        lines = {
            "tickTime": TICK_MS,
            "initLimit": 20,
            "syncLimit": 10,
            "dataDir": home / "data",
            "maxClientCnxns": 0,
            "4lw.commands.whitelist": "*",
            "admin.enableServer": "false",
            "standaloneEnabled": "false",
            "reconfigEnabled": "true",
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        }
        if self.kind == OURS:
            # ZooKeeper reads these from the properties of its virtual machine.
            lines |= {f"DigestAuthenticationProvider.{key}": value for key, value in _super_digest().items()}
            lines |= {"jaasConfig": self.jaas, "znode.container.checkIntervalMs": self._reap_interval_ms}
        for i, (client, peer, election) in enumerate(zip(self._clients, self._peers, self._elections, strict=True)):
            lines[f"server.{i + 1}"] = f"127.0.0.1:{peer}:{election}:participant;127.0.0.1:{client}"
        return "".join(f"{key}={value}\n" for key, value in lines.items())

    def _our_command(self, config: Path) -> list[str]:
        return rk("coord", "run", "--insecure", "--config", str(config))

    def _java_command(self, config: Path) -> list[str]:
        properties = {
            "zookeeper.extendedTypesEnabled": "true",
            "zookeeper.emulate353TTLNodes": "false",
            "znode.container.checkIntervalMs": str(self._reap_interval_ms),
            "java.security.auth.login.config": str(self.jaas),
            "zookeeper.admin.enableServer": "false",
            "zookeeper.fips-mode": "false",
            **{f"zookeeper.DigestAuthenticationProvider.{key}": value for key, value in _super_digest().items()},
        }
        options = [f"-D{key}={value}" for key, value in properties.items()]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return jvm.java(*options, "-cp", jvm.class_path(), main, str(config), heap_mb=192)


def _super_digest() -> dict[str, str]:
    digest = hashlib.sha1(SUPER.encode(), usedforsecurity=False).digest()
    return {"superDigest": f"super:{base64.b64encode(digest).decode()}"}


@contextlib.contextmanager
def ensemble(kind: str, folder: Path, *, servers: int = 3, reap_interval_ms: int = 1000) -> Iterator[Ensemble]:
    """Yield a running ensemble of that kind with its data in `folder`."""
    made = Ensemble(kind, folder, servers=servers, reap_interval_ms=reap_interval_ms)
    try:
        for number in range(servers):
            made.start(number)
        made.wait_ready()
        made.leader()
        yield made
    finally:
        made.close()
