"""A real Apache ZooKeeper 3.9 on a free port, for comparison with our clients and store.

The server comes from pyspark's jars and needs `java`; without either, a test is skipped, and the reason names the
missing one.

    with zookeeper(tmp_path) as server:
        client = KazooClient(server.hosts)
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.helpers import daemon, eventually, free_ports

_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"

#: Jars that a stand-alone server loads; pyspark brings them and some hundred others.
_JARS = (
    "zookeeper-3",
    "zookeeper-jute-3",
    "slf4j-api",
    "log4j-api-2",
    "log4j-core-2",
    "log4j-slf4j2-impl",
    "netty-",
    "metrics-core",
    "snappy-java",
    "audience-annotations",
    "commons-io",
    "commons-cli",
)


def missing() -> str:
    """Return why a ZooKeeper cannot be started here; empty if it can."""
    if shutil.which("java") is None:
        return "java is not installed"
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return "pyspark, whose jars hold ZooKeeper, is not installed"
    if not _class_path():
        return "pyspark has no zookeeper jar"
    return ""


def _class_path() -> str:
    """Return the class path of a server; empty if pyspark's jars have no ZooKeeper."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or []) if spec else []
    jars = [jar for place in places for jar in sorted(Path(place, "jars").glob("*.jar")) if jar.name.startswith(_JARS)]
    return ":".join(map(str, jars)) if any(jar.name.startswith("zookeeper-3") for jar in jars) else ""


class ZooKeeper:
    """One stand-alone server that can be stopped and started again on its port and data."""

    def __init__(self, folder: Path, *, tick_ms: int, options: dict[str, str], max_heap: str) -> None:
        self.folder = folder / "zookeeper"
        self.port = free_ports(1)[0]
        self._options = {
            "tickTime": str(tick_ms),
            "dataDir": str(self.folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            "4lw.commands.whitelist": "*",
            "admin.enableServer": "false",
            **options,
        }
        self._max_heap = max_heap
        self._running = contextlib.ExitStack()

    @property
    def hosts(self) -> str:
        """Return the addresses for a client's constructor."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until the server answers."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        config = self.folder / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._options.items()))
        java = ["java", f"-Xmx{self._max_heap}", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false"]
        properties = ["-Dzookeeper.extendedTypesEnabled=true", "-Dzookeeper.emulate353TTLNodes=false"]
        command = [*java, *properties, "-cp", _class_path(), _MAIN, str(config)]
        self._running.enter_context(daemon(command, log=self.folder / "log"))
        eventually(lambda: b"Mode:" in self.word(b"srvr"), 60, "ZooKeeper up")

    def stop(self) -> None:
        """Kill the server. The data stays."""
        self._running.close()

    def word(self, word: bytes) -> bytes:
        """Return its answer to a four-letter word."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as sock:
            sock.sendall(word)
            answer = b""
            while chunk := sock.recv(65536):
                answer += chunk
            return answer


@contextlib.contextmanager
def zookeeper(
    folder: Path, *, tick_ms: int = 500, options: dict[str, str] | None = None, max_heap: str = "256m"
) -> Iterator[ZooKeeper]:
    """Yield a running server with its data in `folder`; `options` are further lines of zoo.cfg. Skip the test without
    java or jar."""
    reason = missing()
    if reason:
        pytest.skip(f"no ZooKeeper to compare with: {reason}")
    server = ZooKeeper(folder, tick_ms=tick_ms, options=options or {}, max_heap=max_heap)
    try:
        server.start()
        yield server
    finally:
        server.stop()
