"""Masters and region servers as real processes on any store, for the end-to-end tests of masters."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest import mock

import msgspec
from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat

from cli.common.options import variable_of
from coord.rpc.blocking import call_blocking
from coord.rpc.server import Code, RpcError
from regions import messages as ms
from regions.cluster.history import unpack
from regions.records.model import RegionRecord, TransitionRecord
from regions.records.znodes import Layout, decode_region, decode_transition
from regions.transitions.entries import HistoryEntry
from tests.support import helpers
from tests.support.helpers import PATIENCE_S, daemon, eventually, free_ports, rk
from tests.support.zookeeper import zookeeper

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

#: Time limit for the answer of a busy process; the time that a request itself waits is added.
ANSWER_S: Final = 30.0
#: Silence after which a server or a frozen master is dead. (A killed master is replaced at once.) The time is longer
#: than the pauses of a busy machine, because an unplanned death spoils a test.
SESSION_MS: Final = 6_000
#: Temporary rejections: ask again.
_PASSING: Final = (ms.NOT_LEADER, ms.BUSY, Code.UNREACHABLE, Code.CONNECTION_LOST)
#: kazoo's retries: limited only by time, also after an expired session.
_AGAIN: Final[dict[str, Any]] = {"max_tries": -1, "max_delay": 0.5, "ignore_expire": True}


class UpToDate(KazooClient):  # type: ignore[misc]
    """A client whose reads see every write that was acknowledged before, even if its node is behind the others. Reads
    are repeated after a lost connection, because the node may be killed too."""

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
        #: Variables for its environment, besides those of the test.
        self.environ: dict[str, str] = {}
        self._running = contextlib.ExitStack()
        self.popen: helpers.Process | None = None

    def start(self) -> None:
        # Without a name a daemon would take a local cluster in ./rk-data for its own if the addresses are the same.
        named = {variable_of("data-dir"): str(self.log.parent)}
        with mock.patch.dict(os.environ, named | self.environ):
            self.popen = self._running.enter_context(daemon(rk(*self.arguments), log=self.log))

    def kill(self) -> None:
        """Send SIGKILL to the whole group."""
        self._running.close()

    def signal(self, number: int) -> None:
        assert self.popen is not None
        os.killpg(self.popen.pid, number)

    def terminate(self) -> int:
        """Send SIGTERM and return the exit status."""
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
        server_options: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.hosts = hosts
        self.layout = Layout()
        #: The servers share a directory; otherwise they take tablets alone.
        self.has_shared = has_shared
        self.server_options = server_options
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
            [*arguments, "--session-timeout-ms", str(SESSION_MS), *self.server_options],
            ("127.0.0.1", port),
            self.folder / f"{name}.log",
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
        """Kill a server that is started again later, and wait until no process knows it any more."""
        server.kill()
        others = len(self.servers) - 1

        def gone() -> bool:
            known = {one.server.port for one in self.ask_active(ms.ListServers(), ms.Servers).servers}
            return len(known) == others and server.address[1] not in known

        eventually(gone, 2 * PATIENCE_S, f"{others} servers")

    def ask(self, process: Process, message: msgspec.Struct, expect: type[T], timeout_s: float = ANSWER_S) -> T:
        """Return the answer of this process. The time that the message itself waits is added to the limit."""
        return call_blocking(process.address, message, timeout_s + getattr(message, "wait_ms", 0) / 1000, expect=expect)

    def active(self) -> Process | None:
        """Return the master that reports to be active."""
        for master in self.masters:
            with contextlib.suppress(RpcError, OSError):
                if self.ask(master, ms.GetMasterStatus(), ms.MasterStatus, 3.0).role == "active":
                    return master
        return None

    def wait_active(self) -> Process:
        return eventually(self.active, 2 * PATIENCE_S, "an active master")  # type: ignore[return-value]

    def ask_active(self, message: msgspec.Struct, expect: type[T]) -> T:
        """Ask the active master, through changes of the active master. An operation is done only once."""
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
        """Return the active master's status. Raise AssertionError if there is none now."""
        for master in self.masters:
            with contextlib.suppress(RpcError):
                status = self.ask(master, ms.GetMasterStatus(), ms.MasterStatus, 3.0)
                if status.role == "active":
                    return status
        raise AssertionError("no master is active")

    def status(self) -> ms.MasterStatus:
        """Return the active master's status, as soon as there is one."""
        return eventually(self._status, 2 * PATIENCE_S, "an active master")

    def wait_servers(self, count: int) -> None:
        """Wait until the active master reports that many live region servers."""
        eventually(lambda: self._status().servers == count, 2 * PATIENCE_S, f"{count} servers")

    def wait_masters(self, count: int) -> None:
        """Wait until the active master reports that many live masters."""
        eventually(lambda: self._status().masters == count, 2 * PATIENCE_S, f"{count} masters")

    def wait_settled(self) -> ms.MasterStatus:
        """Wait until every replica is open, nothing is in transition, and no accepted move has yet to begin."""

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
        """Return the steps that masters have recorded."""
        folder = self.layout.history
        found = [self.zk.get(f"{folder}/{name}")[0] for name in sorted(self.zk.get_children(folder))]
        return [entry for data in found for entry in unpack(data)]

    def regions(self) -> list[RegionRecord]:
        """Return the records of all regions as of one moment.

        A split creates the daughters' records in the transaction that writes its parent's record. If the names of the
        regions change while their records are read, some records may be older than others, so they are read again.
        """
        return eventually(lambda: [self._regions_now()], what="one view of the regions")[0]

    def _regions_now(self) -> list[RegionRecord]:
        paths = self._region_paths()
        found = [decode_region(self.zk.get(path)[0]) for path in paths]
        assert paths == self._region_paths(), "regions were created or removed while their records were read"
        return found

    def _region_paths(self) -> list[str]:
        tables = self.zk.get_children(self.layout.regions)
        names = {table_id: self.zk.get_children(self.layout.table_regions(table_id)) for table_id in tables}
        return sorted(self.layout.region(table_id, name) for table_id in tables for name in names[table_id])

    def owners(self) -> dict[str, str]:
        """Return region id -> uuid of the server that has the region open, by the servers' answers. Fail if two servers
        have one."""
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
        """Check that servers and store agree on the server of every region, with none in transition. Return region id
        -> uuid.

        They may not agree at once, even when the master has seen the end of all transitions, because a server may learn
        of it later. But no region may ever be open twice. So call this for a cluster at rest, or within `eventually`.
        """
        self.owners()

        def agreed() -> dict[str, str]:
            held = self.owners()
            assert held == {region.region_id: region.location(0).uuid or "" for region in self.regions()}
            assert self.transitions() == []
            return held

        return eventually(agreed, 2 * PATIENCE_S, "servers and store agree")

    def uuid_of(self, server: Process) -> str:
        """Return the uuid of a running server."""
        return self.ask(server, ms.ListOpen(), ms.OpenList).uuid


@contextlib.contextmanager
def own_store(folder: Path, nodes: int, *options: str) -> Iterator[str]:
    """Yield the client addresses of our own store with this number of nodes. `options`: for `rk coord run`."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(2 * nodes)
    clients = [f"127.0.0.1:{port}" for port in ports[:nodes]]
    peers = [f"127.0.0.1:{port}" for port in ports[nodes:]]
    everybody = ",".join(f"{number}={peer}" for number, peer in enumerate(peers, 1))
    with contextlib.ExitStack() as running:
        for number in range(1, nodes + 1):
            arguments = ["coord", "run", "--id", str(number), "--data-dir", str(folder / f"store{number}")]
            arguments += ["--client-address", clients[number - 1], "--peer-address", peers[number - 1]]
            command = rk(*arguments, "--peers", everybody, *options)
            running.enter_context(daemon(command, log=folder / f"store{number}.log"))
        try:
            yield ",".join(clients)
        except BaseException:
            _show(sorted(folder.glob("store*.log")))
            raise


def _show(logs: list[Path]) -> None:
    """Print the ends of logs, for a failing test."""
    for log in logs:
        if log.exists():
            print(f"--- {log.name}\n{log.read_text()[-4000:]}")  # noqa: T201


@contextlib.contextmanager
def any_store(kind: str, folder: Path) -> Iterator[str]:
    """Yield the client addresses of a store: `zookeeper` is Apache's with one server, `one` and `three` are ours."""
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
    server_options: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
) -> Iterator[Cluster]:
    """Yield a running cluster. Print its daemons' logs when the test fails. `environ`: variables for its daemons."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(
        folder, hosts, masters=masters, servers=servers, options=options, has_shared=has_shared,
        server_options=server_options,
    )  # fmt: skip
    for process in [*cluster.masters, *cluster.servers]:
        process.environ = environ or {}
    with cluster:
        try:
            yield cluster
        except BaseException:
            _show([process.log for process in [*cluster.masters, *cluster.servers]])
            raise
