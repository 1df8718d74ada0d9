"""A cluster of real processes for measurements: a store of three nodes with fsync, masters, region servers.

All processes run on this machine and end with the block that started them. The figures come from outside of the
processes: the kernel's account of CPU and memory, the store's counters, the masters' status.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from coord.rpc.blocking import call_blocking
from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import ServerRecord
from regions.records.partitioning import RegionSpec
from regions.records.znodes import Layout, decode_active, decode_run, decode_server
from tests.support.helpers import daemon, eventually, free_ports, rk

STORE_NODES: Final = 3
#: Time limit of any single wait.
DEADLINE_S: Final = 600.0
#: Pause between two reads of a master's status.
LOOK_S: Final = 0.02
#: Interval of the progress lines.
SAY_S: Final = 2.0
#: The store's operations that change a znode. The others check, or keep sessions alive.
_WRITES: Final = ("create", "create2", "setData", "delete")


class Cost(NamedTuple):
    """Resources that the processes have used so far, and requests that the store has received."""

    #: CPU seconds, user and system.
    active: float
    standby: float
    servers: float
    store: float
    #: Writes that the store has ordered (a multi is one), and requests of any kind.
    writes: int
    requests: int

    def since(self, before: Cost) -> Cost:
        """Return the resources used since `before`."""
        return Cost(*(now - then for now, then in zip(self, before, strict=True)))


def say(text: str) -> None:
    """Print a line of progress on standard error."""
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()


def cpu_s(pid: int) -> float:
    """Return the user and system time of a process so far, in seconds; 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process without file mappings, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"the kernel does not tell the memory of process {pid}")


def word(address: str, name: str) -> dict[str, str]:
    """Return a store node's answer to a four-letter word, by the first word of each line."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as asked:
        asked.sendall(name.encode())
        text = b"".join(iter(lambda: asked.recv(65536), b"")).decode()
    pairs = (line.replace(":", " ").split(None, 1) for line in text.splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


class Daemon:
    """A process of the cluster that can be killed and started again."""

    def __init__(self, name: str, address: str, arguments: list[str], log: Path) -> None:
        host, _, port = address.rpartition(":")
        self.name = name
        self.address = (host, int(port))
        self.command = rk(*arguments)
        self._log = log
        self._running = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        #: Host and port of the admin pages; port 0: it has none.
        self.admin = (host, 0)

    def serve_admin(self, port: int) -> None:
        """Have the process serve its admin pages once it is started."""
        self.admin = (self.address[0], port)
        self.command += ["--admin-address", f"{self.address[0]}:{port}"]

    @property
    def pid(self) -> int:
        """Return the process id. The process must be running."""
        assert self._process is not None, self.name
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return True if the process was started and not killed."""
        return self._process is not None

    def start(self, *more: str) -> None:
        """Start the process on its existing data, with further options."""
        self.started = time.monotonic()
        self._process = self._running.enter_context(daemon([*self.command, *more], log=self._log))

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self._process = None
        self._running.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)


class Lab:
    """The cluster. Use `lab(...)`."""

    def __init__(
        self,
        folder: Path,
        *,
        masters: int,
        servers: int,
        opener: str,
        session_ms: int,
        server_options: Sequence[str] = (),
        admin: bool = False,
    ) -> None:
        """`admin`: the masters serve their admin pages."""
        self.folder = folder
        self.layout = Layout()
        free = [f"127.0.0.1:{port}" for port in free_ports(2 * STORE_NODES + masters + servers)]
        self._clients, self._peers, rest = free[:STORE_NODES], free[STORE_NODES : 2 * STORE_NODES], free[6:]
        self.hosts = ",".join(self._clients)
        self.store = [self._node(number) for number in range(STORE_NODES)]
        common = ["--store", self.hosts, "--session-timeout-ms", str(session_ms)]
        self.masters = [
            self._daemon(f"master{number}", address, ["master", "run", *common, *_master_options(servers)])
            for number, address in enumerate(rest[:masters])
        ]
        for one, port in zip(self.masters if admin else [], free_ports(masters) if admin else [], strict=True):
            one.serve_admin(port)
        own = ["--shared-dir", str(folder / "shared"), "--opener", opener, *server_options]
        self.servers = [
            self._daemon(f"server{number}", address, ["server", "run", *common, *own])
            for number, address in enumerate(rest[masters:])
        ]
        self.zk = KazooClient(self.hosts, timeout=30)

    def _daemon(self, name: str, address: str, arguments: list[str]) -> Daemon:
        arguments = [*arguments, "--data-dir", str(self.folder / name), "--address", address]
        return Daemon(name, address, arguments, self.folder / f"{name}.log")

    def _node(self, number: int) -> Daemon:
        name = f"store{number + 1}"
        peers = ",".join(f"{at}={peer}" for at, peer in enumerate(self._peers, 1))
        arguments = ["coord", "run", "--id", str(number + 1), "--data-dir", str(self.folder / name), "--peers", peers]
        arguments += ["--client-address", self._clients[number], "--peer-address", self._peers[number], "--words", "*"]
        return Daemon(name, self._clients[number], arguments, self.folder / f"{name}.log")

    @property
    def daemons(self) -> list[Daemon]:
        """Return all processes, the store first."""
        return [*self.store, *self.masters, *self.servers]

    def start(self) -> None:
        """Start all processes and wait until a master is active and all servers are registered."""
        for one in self.daemons:
            one.start()
        self._connect()
        eventually(lambda: self.active_status() is not None, 60, "an active master")
        self.follow("servers register", lambda status: status.servers == len(self.servers))

    def start_store(self) -> None:
        """Start the store only. The caller starts the other processes later."""
        for node in self.store:
            node.start()
        self._connect()

    def _connect(self) -> None:
        eventually(lambda: word(self._clients[0], "srvr"), 60, "a node of the store")
        self.zk.start(timeout=60)

    def stop(self) -> None:
        """Kill all running processes."""
        for one in reversed(self.daemons):
            one.kill()
        self.zk.stop()
        self.zk.close()

    # --- asking -----------------------------------------------------------------------------------------------------

    def status_of(self, master: Daemon) -> ms.MasterStatus | None:
        """Return a master's status; None if the master does not answer."""
        try:
            return call_blocking(master.address, ms.GetMasterStatus(), 60.0, expect=ms.MasterStatus)
        except (RpcError, OSError):
            return None

    def active_status(self) -> tuple[Daemon, ms.MasterStatus] | None:
        """Return the active master and its status; None without one."""
        for master in self.masters:
            status = self.status_of(master) if master.is_running else None
            if status is not None and status.role == "active":
                return master, status
        return None

    def active(self) -> Daemon:
        """Return the active master. Raise if there is none."""
        found = self.active_status()
        assert found is not None, "no master is active"
        return found[0]

    def follow(
        self, what: str, done: Callable[[ms.MasterStatus], bool], look_s: float = LOOK_S
    ) -> tuple[float, ms.MasterStatus]:
        """Read the active master's status until `done` accepts it. Return the time (monotonic seconds) and that
        status."""
        pause = threading.Event()
        began = said = time.monotonic()
        while time.monotonic() - began < DEADLINE_S:
            found = self.active_status()
            now = time.monotonic()
            if found is not None and done(found[1]):
                return now, found[1]
            if now - said >= SAY_S:
                said = now
                told = "no active master"
                if found is not None:
                    told = f"{found[1].open} of {found[1].replicas} open, {found[1].rit} in transition"
                say(f"{what}: {now - began:.0f} s, {told}")
            pause.wait(look_s)
        raise SystemExit(f"{what}: given up after {DEADLINE_S:.0f} s; logs in {self.folder}")

    def wait_warm(self, within_s: float = 120.0) -> None:
        """Wait until every standby has read all changes that were announced to it."""

        def is_warm(master: Daemon) -> bool:
            status = self.status_of(master)
            mirror = None if status is None else status.mirror
            return mirror is not None and mirror.is_warm and mirror.behind == 0 and mirror.stale_ms >= 0

        active = self.active()
        for master in self.masters:
            if master.is_running and master is not active:
                eventually(lambda master=master: is_warm(master), within_s, f"{master.name} is warm")

    def create_table(self, name: str, regions: int) -> None:
        """Create a table of that many regions. Return when the table exists; its regions may not be open yet."""
        ranges = ["", *(f"{number:08}" for number in range(1, regions)), ""]
        specs = [RegionSpec(start, end) for start, end in itertools.pairwise(ranges)]
        call_blocking(self.active().address, ms.CreateTable(name, regions=specs), DEADLINE_S, expect=ms.Tables)

    def records(self) -> dict[str, ServerRecord]:
        """Return the registered servers by uuid."""
        uuids = self.zk.get_children(self.layout.servers)
        return {uuid: decode_server(self.zk.get(self.layout.server(uuid))[0], uuid) for uuid in uuids}

    def in_transition(self) -> int:
        """Return the number of transitions in the store."""
        waiting = [self.zk.exists_async(shard) for shard in self.layout.shard_paths()]
        return sum(one.get().numChildren for one in waiting)

    def active_uuid(self) -> str:
        """Return the uuid of the master whose znode is `/active`, "" without one."""
        try:
            return decode_active(self.zk.get(self.layout.active)[0], self.layout.active).uuid
        except NoNodeError:
            return ""

    def found_by(self, epoch: int) -> int:
        """Return how many replicas in transition the master of that epoch found when it became active; the master
        records the number."""
        path = self.layout.run(epoch, 0)
        eventually(lambda: self.zk.exists(path), 10, f"the record of epoch {epoch}")
        return decode_run(self.zk.get(path)[0], path).found

    def writes_of_transitions(self) -> int:
        """Return how many creates, sets and deletes transitions have caused so far: for their znodes, for the locations
        written with OPENED, and for the history. The store is killed, because the operations are counted in the log of
        its first node. Return 0 if that log does not reach back to its beginning any more."""
        for node in self.store:
            node.kill()
        layout = self.layout
        locations, history = f"{layout.regions}/", f"{layout.history}/"
        written = first = 0
        with subprocess.Popen(
            rk("coord", "dump-log", str(self.folder / self.store[0].name), "--json"), stdout=subprocess.PIPE
        ) as dump:
            assert dump.stdout is not None
            for line in dump.stdout:
                fields = json.loads(line)
                first = first or fields.get("index", 0)
                for command in fields.get("commands", ()):
                    for part in command.get("parts", (command,)):
                        path, kind = part.get("path", ""), part["opcode"]
                        if layout.parse_transition(path) is not None or path.startswith(history):
                            written += kind in _WRITES
                        elif path.startswith(locations):
                            written += kind == "setData"
        assert dump.returncode == 0, "the log of the store cannot be read"
        return written if first == 1 else 0

    def cost(self) -> Cost:
        """Return the resources that the running processes have used so far."""
        active = self.active()
        standby = [one for one in self.masters if one is not active]
        kinds = ([active], standby, self.servers, self.store)
        parts = [sum(cpu_s(one.pid) for one in kind if one.is_running) for kind in kinds]
        zxids = [int(word(address, "srvr")["Zxid"], 16) for address in self._clients]
        requests = sum(int(word(address, "mntr")["zk_packets_received"]) for address in self._clients)
        return Cost(*parts, max(zxids), requests)


def _master_options(servers: int) -> list[str]:
    return ["--min-servers", str(max(1, servers)), "--plan-engine", "greedy", "--balance-period-s", "0"]


def all_open(regions: int) -> Callable[[ms.MasterStatus], bool]:
    """Return a condition: that many regions are open and none is in transition."""
    return lambda status: status.open == status.replicas == regions and status.rit == 0


@contextlib.contextmanager
def lab(
    folder: Path,
    *,
    masters: int = 2,
    servers: int = 4,
    opener: str = "none",
    session_ms: int = 3000,
    admin: bool = False,
) -> Iterator[Lab]:
    """Yield a running cluster on an empty folder. All its processes end with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # kazoo logs every failed attempt to reach the store
    cluster = Lab(folder, masters=masters, servers=servers, opener=opener, session_ms=session_ms, admin=admin)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
