"""Masters and region servers as real processes on any store, for the end-to-end tests of masters."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat

from coord.rpc.blocking import call_blocking
from coord.rpc.server import Code, RpcError
from regions import messages as ms
from regions.cluster.history import HistoryEntry, unpack
from regions.records.model import RegionRecord, TransitionRecord
from regions.records.znodes import Layout, decode_region, decode_transition
from tests.support import helpers
from tests.support.helpers import PATIENCE_S, daemon, eventually, free_ports, rk
from tests.support.zookeeper import zookeeper

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

#: For what a busy process takes to answer; what a request itself waits for comes on top.
ANSWER_S: Final = 30.0
#: Silence after which a server, or a frozen master, is dead. (A killed master is replaced at once.) Longer than a busy
#: machine lets a process wait, for whoever dies unasked spoils a test.
SESSION_MS: Final = 6_000
#: Refusals that pass: ask again.
_PASSING: Final = (ms.NOT_LEADER, ms.BUSY, Code.UNREACHABLE, Code.CONNECTION_LOST)
#: kazoo's retries: without end but for the time, also when a session has expired meanwhile.
_AGAIN: Final[dict[str, Any]] = {"max_tries": -1, "max_delay": 0.5, "ignore_expire": True}


class UpToDate(KazooClient):  # type: ignore[misc]
    """Its reads see what was acknowledged to anybody before: the node that it asks may be behind the others.

    They go on over a lost connection: whom they ask may be killed, too.
    """

    def __init__(self, hosts: str) -> None:
        super().__init__(hosts, timeout=10, connection_retry=_AGAIN, command_retry=_AGAIN)

    def _current(self, read: Callable[[str], R], path: str) -> R:
        def synced() -> R:
            self.sync(path)
            return read(path)

        found: R = self.retry(synced)
        return found

    def get(self, path: str) -> tuple[bytes, ZnodeStat]:
        """See KazooClient."""
        return self._current(super().get, path)

    def exists(self, path: str) -> ZnodeStat | None:
        """See KazooClient."""
        return self._current(super().exists, path)

    def get_children(self, path: str) -> list[str]:
        """See KazooClient."""
        return self._current(super().get_children, path)


class Process:
    """A daemon that can be killed and started again on its data."""

    def __init__(self, arguments: list[str], address: tuple[str, int], log: Path) -> None:
        self.arguments = arguments
        self.address = address
        self.log = log
        self._running = contextlib.ExitStack()
        self.popen: helpers.Process | None = None

    def start(self) -> None:
        self.popen = self._running.enter_context(daemon(rk(*self.arguments), log=self.log))

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        self._running.close()

    def signal(self, number: int) -> None:
        assert self.popen is not None
        os.killpg(self.popen.pid, number)

    def terminate(self) -> int:
        """SIGTERM, and its exit status."""
        assert self.popen is not None
        self.signal(signal.SIGTERM)
        status = self.popen.wait(PATIENCE_S)
        self._running.close()
        return status


class Cluster:
    """Masters and servers below one root."""

    def __init__(
        self,
        folder: Path,
        hosts: str,
        *,
        masters: int,
        servers: int,
        options: list[str] | None = None,
        has_shared: bool = True,
    ) -> None:
        self.folder = folder
        self.hosts = hosts
        self.layout = Layout()
        #: The servers share a directory; otherwise they take tablets alone.
        self.has_shared = has_shared
        ports = free_ports(masters + servers)
        self.masters = [self._master(n, port, options or []) for n, port in enumerate(ports[:masters])]
        self.servers = [self._server(n, port) for n, port in enumerate(ports[masters:])]
        self.zk = UpToDate(hosts)

    def _master(self, number: int, port: int, options: list[str]) -> Process:
        name = f"master{number}"
        arguments = ["master", "run", "--store", self.hosts, "--data-dir", str(self.folder / name)]
        arguments += [
            "--address",
            f"127.0.0.1:{port}",
            "--session-timeout-ms",
            str(SESSION_MS),
            "--balance-period-s",
            "0",
            *options,
        ]
        return Process(arguments, ("127.0.0.1", port), self.folder / f"{name}.log")

    def _server(self, number: int, port: int) -> Process:
        name = f"server{number}"
        arguments = ["server", "run", "--store", self.hosts, "--data-dir", str(self.folder / name)]
        arguments += ["--shared-dir", str(self.folder / "shared")] if self.has_shared else []
        arguments += ["--address", f"127.0.0.1:{port}"]
        return Process(
            [*arguments, "--session-timeout-ms", str(SESSION_MS)], ("127.0.0.1", port), self.folder / f"{name}.log"
        )

    def __enter__(self) -> Cluster:
        self.zk.start(timeout=2 * PATIENCE_S)
        for process in [*self.masters, *self.servers]:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.masters, *self.servers]:
            process.kill()
        self.zk.stop()
        self.zk.close()

    def withdraw(self, server: Process) -> None:
        """Kill a server that is to come later, and wait until nobody knows it any more."""
        server.kill()
        others = len(self.servers) - 1

        def gone() -> bool:
            known = {one.server.port for one in self.ask_active(ms.ListServers(), ms.Servers).servers}
            return len(known) == others and server.address[1] not in known

        eventually(gone, 2 * PATIENCE_S, f"{others} servers")

    def ask(self, process: Process, message: msgspec.Struct, expect: type[T], timeout_s: float = ANSWER_S) -> T:
        """What this process answers; for the time that the message itself waits, there is time besides."""
        return call_blocking(process.address, message, timeout_s + getattr(message, "wait_ms", 0) / 1000, expect=expect)

    def active(self) -> Process | None:
        """The master that says it is active."""
        for master in self.masters:
            with contextlib.suppress(RpcError, OSError):
                if self.ask(master, ms.GetMasterStatus(), ms.MasterStatus, 3.0).role == "active":
                    return master
        return None

    def wait_active(self) -> Process:
        return eventually(self.active, 2 * PATIENCE_S, "an active master")  # type: ignore[return-value]

    def ask_active(self, message: msgspec.Struct, expect: type[T]) -> T:
        """Ask whoever is active, through changes of who that is; what is done once is done once all the same."""
        if getattr(message, "request_id", None) == "":
            message = msgspec.structs.replace(message, request_id=uuid.uuid4().hex)

        def asked() -> T | RpcError | None:
            master = self.active()
            try:
                return None if master is None else self.ask(master, message, expect)
            except RpcError as error:
                return None if error.code in _PASSING else error

        answer = eventually(asked, what=type(message).__name__)
        if isinstance(answer, RpcError):
            raise answer
        return answer  # type: ignore[return-value]

    def _status(self) -> ms.MasterStatus:
        """The active master's status. AssertionError: there is none now."""
        for master in self.masters:
            with contextlib.suppress(RpcError):
                status = self.ask(master, ms.GetMasterStatus(), ms.MasterStatus, 3.0)
                if status.role == "active":
                    return status
        raise AssertionError("no master is active")

    def status(self) -> ms.MasterStatus:
        """The active master's status, as soon as there is an active master."""
        return eventually(self._status, 2 * PATIENCE_S, "an active master")

    def wait_servers(self, count: int) -> None:
        """Until so many region servers live, as the active master has it."""
        eventually(lambda: self._status().servers == count, 2 * PATIENCE_S, f"{count} servers")

    def wait_masters(self, count: int) -> None:
        """Until so many masters live, as the active one has it."""
        eventually(lambda: self._status().masters == count, 2 * PATIENCE_S, f"{count} masters")

    def wait_settled(self) -> ms.MasterStatus:
        """Until every replica is open, nothing is in transition, and no accepted move has yet to begin."""

        def settled() -> ms.MasterStatus:
            assert self.zk.get_children(self.layout.moves) == []
            status = self._status()
            assert status.open == status.replicas, f"{status.open} of {status.replicas}, rit {status.rit}"
            assert status.rit == 0
            return status

        return eventually(settled, 2 * PATIENCE_S, "all regions open")

    # --- the store's view -------------------------------------------------------------------------------------------

    def transitions(self) -> list[TransitionRecord]:
        found = []
        for shard in self.layout.shard_paths():
            for name in self.zk.get_children(shard):
                with contextlib.suppress(Exception):
                    found.append(decode_transition(self.zk.get(f"{shard}/{name}")[0]))
        return found

    def history(self) -> list[HistoryEntry]:
        """Return the steps that masters have written down."""
        folder = self.layout.history
        found = [self.zk.get(f"{folder}/{name}")[0] for name in sorted(self.zk.get_children(folder))]
        return [entry for data in found for entry in unpack(data)]

    def regions(self) -> list[RegionRecord]:
        found = []
        for table_id in self.zk.get_children(self.layout.regions):
            for name in self.zk.get_children(self.layout.table_regions(table_id)):
                found.append(decode_region(self.zk.get(self.layout.region(table_id, name))[0]))
        return found

    def owners(self) -> dict[str, str]:
        """Region id -> uuid of the server that has it open, asked of the servers; nobody has one twice."""
        held: dict[str, str] = {}
        for server in self.servers:
            with contextlib.suppress(RpcError, OSError):
                answer = self.ask(server, ms.ListOpen(), ms.OpenList)
                for one in answer.replicas:
                    if one.state == "OPEN":
                        assert one.region_id not in held, f"{one.region_id}: {held[one.region_id]} and {answer.uuid}"
                        held[one.region_id] = answer.uuid
        return held

    def check_owners(self) -> dict[str, str]:
        """Servers and store come to agree on where every region is, with none in transition: region id -> uuid.

        Not at once, even when the master has seen the end of everything: a server may hear of it after the master. But
        no region may be open twice for a moment, so this is for a cluster at rest; else it belongs in `eventually`.
        """
        self.owners()

        def agreed() -> dict[str, str]:
            held = self.owners()
            assert held == {region.region_id: region.location(0).uuid or "" for region in self.regions()}
            assert self.transitions() == []
            return held

        return eventually(agreed, 2 * PATIENCE_S, "servers and store agree")

    def uuid_of(self, server: Process) -> str:
        """The uuid of a running server."""
        return self.ask(server, ms.ListOpen(), ms.OpenList).uuid


@contextlib.contextmanager
def own_store(folder: Path, nodes: int) -> Iterator[str]:
    """Our own store with so many nodes; yields its client addresses."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(2 * nodes)
    clients = [f"127.0.0.1:{port}" for port in ports[:nodes]]
    peers = [f"127.0.0.1:{port}" for port in ports[nodes:]]
    everybody = ",".join(f"{number}={peer}" for number, peer in enumerate(peers, 1))
    with contextlib.ExitStack() as running:
        for number in range(1, nodes + 1):
            arguments = ["coord", "run", "--id", str(number), "--data-dir", str(folder / f"store{number}")]
            arguments += ["--client-address", clients[number - 1], "--peer-address", peers[number - 1]]
            command = rk(*arguments, "--peers", everybody)
            running.enter_context(daemon(command, log=folder / f"store{number}.log"))
        try:
            yield ",".join(clients)
        except BaseException:
            _show(sorted(folder.glob("store*.log")))
            raise


def _show(logs: list[Path]) -> None:
    """The ends of logs, for a failing test."""
    for log in logs:
        if log.exists():
            print(f"--- {log.name}\n{log.read_text()[-4000:]}")  # noqa: T201


@contextlib.contextmanager
def any_store(kind: str, folder: Path) -> Iterator[str]:
    """`zookeeper`: Apache's, one server; `one` and `three`: ours. Yields the client addresses."""
    if kind == "zookeeper":
        with zookeeper(folder) as server:
            yield server.hosts
    else:
        with own_store(folder, 1 if kind == "one" else 3) as hosts:
            yield hosts


@contextlib.contextmanager
def cluster_on(
    hosts: str,
    folder: Path,
    *,
    masters: int = 2,
    servers: int = 3,
    options: list[str] | None = None,
    has_shared: bool = True,
) -> Iterator[Cluster]:
    """A running cluster; its daemons' logs are printed when the test fails."""
    folder.mkdir(parents=True, exist_ok=True)
    with Cluster(folder, hosts, masters=masters, servers=servers, options=options, has_shared=has_shared) as cluster:
        try:
            yield cluster
        except BaseException:
            _show([process.log for process in [*cluster.masters, *cluster.servers]])
            raise
