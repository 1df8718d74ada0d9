"""A cluster of processes on this machine, in one directory, for as long as a `with` block lasts.

    with SmallCluster(folder, server=my_server, servers=2) as cluster:
        cluster.create_table("hits", splits=["k"])
        with cluster.connect() as client: ...
        cluster.kill_server(0)

The block begins when a master is active and all servers are registered. At its end every process is killed, even after
an exception. The ports are free ports of the loopback device. Timeouts are short (a session of two seconds), so that a
failover takes seconds; the fsyncs of the store stay on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

from coord.errors import CoordError
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from regions import messages as ms
from regionserver.client import RegionClient, connect

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

#: Session timeout of masters and servers.
SESSION_MS: Final = 2_000
#: Limit for the whole start, and for each wait of the methods.
READY_S: Final = 60.0
#: Limit for one answer of a master or a server.
ANSWER_S: Final = 5.0
#: Pause between two checks of a condition.
POLL_S: Final = 0.05
#: Lines of a process's log in an error.
LOG_LINES: Final = 20


class ClusterFailedError(AssertionError):
    """Raised if the cluster does not start or does not reach a state in time; the message has the end of a log."""


class ServerPlace(msgspec.Struct, frozen=True):
    """Settings with which a region server is started."""

    #: host:port of the store.
    store: str
    #: The server's own directory; it stays when the server is killed and started again.
    data_dir: str
    #: The directory that all servers share.
    shared_dir: str
    #: host:port on which the server must listen.
    address: str
    session_timeout_ms: int = SESSION_MS


def rk_server(place: ServerPlace) -> list[str]:
    """Return the command of a server of key-value rows, the default of SmallCluster."""
    return [
        *_rk("server", "run", "--store", place.store, "--data-dir", place.data_dir, "--shared-dir", place.shared_dir),
        *("--address", place.address, "--session-timeout-ms", str(place.session_timeout_ms)),
    ]


class _Process:
    """A daemon in a process group of its own, with its output in a log."""

    def __init__(self, name: str, address: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.address = address
        self._command = list(command)
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._running is None:
            with self._log.open("ab") as out:
                self._running = subprocess.Popen(
                    self._command,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )

    def kill(self) -> None:
        """Send SIGKILL to the whole group, and wait for its end."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            self._running = None

    def ended(self) -> str:
        """Return why the process is not running although it should be, "" if it runs."""
        status = None if self._running is None else self._running.poll()
        if status is None:
            return ""
        return f"{self.name} has ended with status {status}\n{self.log_end()}"

    def log_end(self) -> str:
        """Return the last lines of the log."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join([f"--- {self._log}", *lines[-LOG_LINES:]])


class SmallCluster:
    """See the module docstring. Names in logs and errors: store, master-0, server-0, …"""

    def __init__(
        self,
        folder: Path,
        *,
        server: Callable[[ServerPlace], Sequence[str]] = rk_server,
        servers: int = 2,
        masters: int = 1,
        ready_s: float = READY_S,
    ) -> None:
        """`folder` must not exist or be empty. `server` returns the command of one region server."""
        if servers < 0 or masters < 1:
            raise ValueError(
                f"a cluster needs at least one master and no negative number of servers: {masters}, {servers}"
            )
        self.folder = folder
        self._ready_s = ready_s
        ports = _free_ports(2 + masters + servers)
        store, peer, *others = [f"127.0.0.1:{port}" for port in ports]
        #: host:port of the store, for `--store` and for ZooKeeper's clients.
        self.store = store
        #: host:port of each master and of each region server.
        self.masters = others[:masters]
        self.servers = others[masters:]
        self.logs = folder / "logs"
        node = _rk("coord", "run", "--id", "1", "--data-dir", str(folder / "store"), "--client-address", store)
        node += ["--peer-address", peer, "--peers", f"1={peer}"]
        self._store = self._process("store", store, node)
        self._masters = [
            self._process(f"master-{number}", address, self._master_command(number, address))
            for number, address in enumerate(self.masters)
        ]
        self._servers = [
            self._process(f"server-{number}", address, server(self._place(number, address)))
            for number, address in enumerate(self.servers)
        ]

    def __enter__(self) -> Self:
        """Start everything, and return when a master is active and all servers are registered."""
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ValueError(f"{self.folder} is not empty")
        for made in (self.logs, self.folder / "shared", self.folder / "store"):
            made.mkdir(parents=True, exist_ok=True)
        try:
            self._store.start()
            self._wait(self._store_serves, "a serving store")
            for process in [*self._masters, *self._servers]:
                process.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill every process. The directory stays."""
        for process in [*self._servers, *self._masters, self._store]:
            process.kill()

    # --- what tests do ------------------------------------------------------------------------------------------------

    def connect(self) -> contextlib.AbstractContextManager[RegionClient]:
        """Return a client for a `with` block."""
        return connect(self.store)

    def create_table(
        self, name: str, *, splits: Sequence[str] = (), kind: str = "", replicas: int = 1, wait_s: float = READY_S
    ) -> None:
        """Create a table, and return when all its regions are open. `kind` "": that of the servers. Raise RpcError."""
        request = ms.CreateTable(
            name, list(splits), kind=kind, replication=replicas, wait_ms=int(wait_s * 1000), request_id=uuid.uuid4().hex
        )
        self.ask_master(request, ms.Tables, wait_s + ANSWER_S)

    def ask_master(self, request: msgspec.Struct, expect: type[T], timeout_s: float = ANSWER_S) -> T:
        """Send a request (`regions.messages`) to the active master. Raise RpcError for its refusal."""
        address = self._wait(self._active, "an active master")
        return call_blocking(_split(address), request, timeout_s, expect=expect)

    def owners(self, table: str) -> dict[str, int | None]:
        """Return region id -> number of the server on which the region is open (None: on none), for the regions of a
        table."""
        found = self.ask_master(ms.DescribeTable(table), ms.Regions)
        live = {one.server.uuid: one.server for one in self.ask_master(ms.ListServers(), ms.Servers).servers}
        owners: dict[str, int | None] = {}
        for status in found.regions:
            [at] = [one.server for one in status.replicas][:1] or [None]
            record = None if at is None else live.get(at.uuid)
            address = "" if record is None else f"{record.host}:{record.port}"
            owners[status.region.region_id] = self.servers.index(address) if address in self.servers else None
        return owners

    def kill_server(self, number: int) -> None:
        """Send SIGKILL to a region server. Its regions open elsewhere after its session timeout."""
        self._servers[number].kill()

    def start_server(self, number: int) -> None:
        """Start a killed region server again on its data, and wait until it is registered."""
        self._servers[number].start()
        self._wait(lambda: self._is_registered(self.servers[number]), f"server-{number} registered")

    def kill_master(self, number: int) -> None:
        """Send SIGKILL to a master."""
        self._masters[number].kill()

    def start_master(self, number: int) -> None:
        """Start a killed master again."""
        self._masters[number].start()

    def wait_ready(self) -> None:
        """Wait until a master is active and all running servers are registered."""
        self._wait(self._active, "an active master")
        self._wait(lambda: all(map(self._is_registered, self.servers)), "all servers registered")

    def wait_open(self, table: str) -> None:
        """Wait until each region of a table is open on a running server."""
        self._wait(lambda: None not in self.owners(table).values(), f"all regions of {table} open")

    # --- parts --------------------------------------------------------------------------------------------------------

    def _process(self, name: str, address: str, command: Sequence[str]) -> _Process:
        return _Process(name, address, command, self.logs / f"{name}.log")

    def _place(self, number: int, address: str) -> ServerPlace:
        return ServerPlace(self.store, str(self.folder / f"server-{number}"), str(self.folder / "shared"), address)

    def _master_command(self, number: int, address: str) -> list[str]:
        words = _rk("master", "run", "--store", self.store, "--data-dir", str(self.folder / f"master-{number}"))
        return [*words, "--address", address, "--session-timeout-ms", str(SESSION_MS), "--balance-period-s", "0"]

    def _store_serves(self) -> bool:
        with socket.create_connection(_split(self.store), ANSWER_S) as sock:
            sock.sendall(b"srvr")
            sock.settimeout(ANSWER_S)
            return b"Mode: standalone" in sock.recv(4096)

    def _active(self) -> str:
        for address in self.masters:
            with contextlib.suppress(OSError, CoordError):
                status = call_blocking(_split(address), ms.GetMasterStatus(), ANSWER_S, expect=ms.MasterStatus)
                if status.role == "active":
                    return address
        return ""

    def _is_registered(self, address: str) -> bool:
        servers = self.ask_master(ms.ListServers(), ms.Servers).servers
        return address in [f"{one.server.host}:{one.server.port}" for one in servers]

    def _wait(self, check: Callable[[], R], what: str) -> R:
        """Return the first truthy answer of `check`. Raise ClusterFailedError at the deadline or if a process has
        ended."""
        until, pause = time.monotonic() + self._ready_s, threading.Event()
        error: Exception | None = None
        while time.monotonic() < until:
            for process in [self._store, *self._masters, *self._servers]:
                if ended := process.ended():
                    raise ClusterFailedError(ended)
            with contextlib.suppress(OSError):
                try:
                    if found := check():
                        return found
                except RpcError as refused:
                    error = refused
            pause.wait(POLL_S)
        last = f": {error}" if error is not None else ""
        ends = "\n".join(process.log_end() for process in [self._store, *self._masters, *self._servers])
        raise ClusterFailedError(f"{what} not within {self._ready_s:g} s{last}\n{ends}")


def _rk(*words: str) -> list[str]:
    """Return the command line of `rk` in this interpreter."""
    program = shutil.which("rk", path=str(Path(sys.executable).parent))
    return [program, *words] if program else [sys.executable, "-m", "cli", *words]


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _free_ports(count: int) -> list[int]:
    """Return different ports that are free now. All are bound at once, so the kernel gives none of them twice."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
