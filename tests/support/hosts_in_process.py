"""Tablet hosts of several servers in one process, with real disks and threads. Links pass frames as bytes."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from coord.env import Disk, DiskFile
from coord.env_os import OsDisk, os_system
from coord.raft.messages import LEADER
from regions.messages.server import MemberEndpoint
from regionserver.session.instance import Instance
from regionserver.tablets.commands import KvCommand, Operation, PutRow
from regionserver.tablets.host.envelope import decode_frame
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.process.host import TabletHost
from regionserver.tablets.process.interfaces import HostSettings, ReplicaOpening
from tests.support.helpers import PATIENCE_S
from tests.support.reactors import until

CLUSTER = "c" * 32
START_MS = 1_000_000


class TroubledDisk(OsDisk):
    """A directory whose log can fail, be full, or block."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fails = False
        self.is_full = False
        self._may_go_on = threading.Event()
        self._may_go_on.set()

    def hold(self) -> None:
        """Let syncs of the log block."""
        self._may_go_on.clear()

    def release(self) -> None:
        """Let blocked syncs continue."""
        self._may_go_on.set()

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """See `Disk.open`."""
        file = super().open(path, create=create)
        return _TroubledFile(file, self) if path.startswith("wals/") else file

    def write(self) -> None:
        """Begin a write to the log."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")

    def sync_log(self) -> None:
        """Begin a sync of the log."""
        self._may_go_on.wait(PATIENCE_S)
        if self.fails:
            raise OSError(errno.EIO, "input/output error")


class _TroubledFile:
    def __init__(self, file: DiskFile, disk: TroubledDisk) -> None:
        self._file = file
        self._disk = disk
        self.read_at = file.read_at
        self.truncate = file.truncate
        self.size = file.size
        self.close = file.close

    def write_at(self, offset: int, data: bytes) -> None:
        self._disk.write()
        self._file.write_at(offset, data)

    def sync(self) -> None:
        self._disk.sync_log()
        self._file.sync()


class Wires:
    """All connections of a test; `cut` has pairs of servers whose frames are lost."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.machines: dict[str, Machine] = {}
        self.cut: set[frozenset[str]] = set()

    def carry(self, source: str, to: str, frame: bytes) -> None:
        """Deliver a frame in a later turn."""
        self.reactor.callLater(0, self._arrive, source, to, frame)

    def _arrive(self, source: str, to: str, frame: bytes) -> None:
        machine = next((one for one in self.machines.values() if one.uuid == to), None)
        if machine is not None and machine.host is not None and frozenset((source, to)) not in self.cut:
            machine.host.peer_frame(source, decode_frame(frame))


class WireLinks:
    """The links of one server (`HostLinks`)."""

    def __init__(self, wires: Wires, server: str) -> None:
        self._wires = wires
        self._server = server
        self.learned: dict[str, tuple[str, int]] = {}

    def learn(self, server: str, address: tuple[str, int]) -> None:
        """See `HostLinks.learn`."""
        self.learned[server] = address

    def send(self, server: str, frame: bytes) -> bool:
        """See `HostLinks.send`."""
        self._wires.carry(self._server, server, frame)
        return True

    def knows_full(self, server: str) -> bool:
        """See `HostLinks.knows_full`."""
        return True

    def knows_quiet(self, server: str) -> bool:
        """See `HostLinks.knows_quiet`."""
        return True

    def flush(self) -> None:
        """See `HostLinks.flush`."""


class Machine:
    """A server's directory, and its host while it runs."""

    def __init__(self, wires: Wires, directory: Path, name: str, settings: HostSettings, disk: Disk | None) -> None:
        self.wires = wires
        self.directory = directory
        self.name = name
        self.settings = settings
        self.disk = disk
        self.host: TabletHost | None = None
        self.starts = 0
        self.deaths: list[str] = []
        self.changes: list[str] = []
        self.instance = self._open()
        self.uuid = self.instance.uuid
        wires.machines[name] = self

    def _open(self) -> Instance:
        instance = Instance.open(self.directory)
        instance.adopt(CLUSTER, "the store")
        return instance

    def start(self) -> TabletHost:
        """Start a process on the directory. Raise ConfigError."""
        self.starts += 1
        host = TabletHost(
            self.wires.reactor,
            os_system(),
            self.instance,
            self.make_links(),
            start_code=START_MS + self.starts,
            died=self.deaths.append,
            changed=self.changes.append,
            settings=self.settings,
            disk=self.disk,
        )
        host.start()
        self.host = host
        self.started()
        return host

    def make_links(self) -> Any:
        """Return the links of the next process."""
        return WireLinks(self.wires, self.uuid)

    def started(self) -> None:
        """Note that the host has started."""

    def running(self) -> TabletHost:
        """Return the host, which runs."""
        assert self.host is not None, f"{self.name} does not run"
        return self.host

    def lose_links(self) -> None:
        """Let the others notice that this server's connections broke."""
        for other in self.wires.machines.values():
            if other is not self and other.host is not None:
                other.host.peer_lost(self.uuid, START_MS + self.starts)

    async def stop(self) -> None:
        """Stop the process cleanly."""
        host = self.running()
        await host.stop()
        self.host = None
        self.lose_links()


class Cluster:
    """Servers s1 .. sN, and tablets with a member on each."""

    def __init__(
        self,
        reactor: Any,
        folder: Path,
        size: int = 3,
        settings: HostSettings | None = None,
        disk: Callable[[Path], Disk] | None = None,
        machine: type[Machine] = Machine,
    ) -> None:
        self.reactor = reactor
        self.wires = Wires(reactor)
        self.settings = settings or HostSettings(threads=2, hand_over_s=1.0)
        for number in range(1, size + 1):
            directory = folder / f"s{number}"
            directory.mkdir(parents=True, exist_ok=True)
            machine(self.wires, directory, f"s{number}", self.settings, disk(directory) if disk else None)
        self._writes = 0

    @property
    def machines(self) -> list[Machine]:
        """Return all servers."""
        return list(self.wires.machines.values())

    def start(self) -> None:
        """Start all servers that do not run."""
        for machine in self.machines:
            if machine.host is None:
                machine.start()

    async def stop(self) -> None:
        """Stop all servers that run."""
        for machine in self.machines:
            if machine.host is not None:
                await machine.stop()
            machine.instance.close()

    def opening(self, tablet: str, number: int) -> ReplicaOpening:
        """Return the order to open member `number` on the server at that position."""
        endpoints = tuple(
            MemberEndpoint(place, machine.uuid, "127.0.0.1", 7000 + place)
            for place, machine in enumerate(self.machines, 1)
        )
        return ReplicaOpening(tablet, "table", number, endpoints)

    async def make(self, tablets: Iterable[str]) -> None:
        """Make and host the tablets on all servers."""
        names = list(tablets)
        for number, machine in enumerate(self.machines, 1):
            host = machine.running()
            reasons = await host.make([self.opening(tablet, number) for tablet in names])
            assert reasons == [""] * len(names), reasons
            for tablet in names:
                assert await host.begin(tablet) == ""

    async def leader(self, tablet: str) -> Machine:
        """Wait until a leader has committed its first entry. Return its server."""

        def found() -> Machine | None:
            for machine in self.machines:
                group = machine.host.turn.groups.get(tablet) if machine.host is not None else None
                if group is not None and not group.failure and group.core.role == LEADER:
                    lead = group.core.leadership
                    if lead is not None and lead.has_committed_in_term():
                        return machine
            return None

        machine: Machine = await until(self.reactor, found, f"a leader of {tablet}")
        return machine

    def command(self, *operations: Operation, writer: str = "w") -> KvCommand:
        """Return a write that no other test sends."""
        self._writes += 1
        return KvCommand(writer, self._writes, 0, int(time.time() * 1000), 0, list(operations))

    def command_for(self, key: str, value: bytes) -> KvCommand:
        """Return a write of one row."""
        return self.command(PutRow(key, value))

    async def put(self, tablet: str, key: str, value: bytes) -> TabletAnswer:
        """Write a row at the present leader."""
        command = self.command(PutRow(key, value))
        for _ in range(200):
            machine = await self.leader(tablet)
            answer = await self.send(machine, tablet, command)
            if answer.fate is Fate.DONE:
                return answer
        raise AssertionError(f"{tablet} does not take {key}: {answer.fate}")

    async def applied(self, tablet: str, index: int) -> None:
        """Wait until all members have applied the entry at `index`."""

        def all_have() -> bool:
            reports = [machine.running().report(tablet) for machine in self.machines]
            return all(report is not None and report.applied_index >= index for report in reports)

        await until(self.reactor, all_have, f"entry {index} of {tablet} in all rows")

    async def send(self, machine: Machine, tablet: str, command: KvCommand) -> TabletAnswer:
        """Send a write to one server and wait for its answer."""
        answer: TabletAnswer = await machine.running().propose(tablet, command)
        return answer

    async def get(self, tablet: str, key: str) -> bytes | None:
        """Read a row from the leader."""
        for _ in range(200):
            machine = await self.leader(tablet)
            answer = await machine.running().read(tablet, lambda rows: rows.values([key.encode()])[0])
            if answer.fate is Fate.DONE:
                value: bytes | None = answer.value
                return value
        raise AssertionError(f"{tablet} does not answer: {answer.fate}")
