"""Three servers in one process that can copy replicas to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coord.env_os import os_system
from regions.records.members import MemberRole
from regionserver.tablets.copying.joined import copies_of
from regionserver.tablets.copying.messages import (
    CopyJob,
    CopySource,
    CopyState,
    ListCopyJobs,
    SeenReplica,
    StartTabletCopy,
    TabletCopyAnswer,
)
from regionserver.tablets.copying.work import CopyWork
from regionserver.tablets.process.interfaces import HostSettings
from regionserver.tablets.upkeep.space import DiskSpace
from tests.support.hosts_in_process import Cluster
from tests.support.linked_hosts import LinkedMachine, SharedReactor
from tests.support.reactors import until

TABLET = "t"


class CopyingMachine(LinkedMachine):
    """A server with copies."""

    copies: CopyWork
    #: Bytes per second that this server sends; 0: no limit.
    rate = 0
    #: Bytes that stay free on the disk.
    reserve = 0

    @property
    def space(self) -> DiskSpace:
        return DiskSpace(self.directory, self.reserve)

    def started(self) -> None:
        self.copies = copies_of(
            self.wires.reactor, os_system().clock, self.uuid, self.space, self.running(), self.links, self.rate
        )
        super().started()

    @property
    def port(self) -> int:
        return int(self.listening.getsockname()[1])

    async def stop(self) -> None:
        self.copies.stop()
        await super().stop()

    def number(self) -> int:
        return list(self.wires.machines).index(self.name) + 1

    def state(self) -> str:
        report = self.running().report(TABLET)
        return report.state.value if report is not None else ""

    def seen(self) -> SeenReplica | None:
        """Return the replica on this server as a leader sees it."""
        found = self.copies.local(TABLET)
        return found and SeenReplica(found.number, found.state, found.last_term, found.last_index)

    def jobs(self) -> list[CopyJob]:
        return list(self.copies.answer(ListCopyJobs()).jobs)

    def flip_rows(self) -> None:
        """Flip bits of a page in the rows, while the server is stopped."""
        (path,) = [one for one in (self.directory / "data").iterdir() if one.suffix == ".mdb"]
        size = path.stat().st_size
        with path.open("r+b") as file:
            for at in range(3 * 4096 + 512, size, 4096):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 0xFF]))
        Path(f"{path}.used").write_bytes(b"damaged")


class CopyingCluster(Cluster):
    """Servers s1 .. s3 with one tablet."""

    machine_class: type[CopyingMachine] = CopyingMachine

    def __init__(self, reactor: Any, folder: Path, rate: int = 0, settings: HostSettings | None = None) -> None:
        super().__init__(SharedReactor(reactor), folder, settings=settings, machine=self.machine_class)
        for name in self.wires.machines:
            self.at(name).rate = rate

    def at(self, name: str) -> CopyingMachine:
        machine = self.wires.machines[name]
        assert isinstance(machine, CopyingMachine)
        return machine

    async def leading(self) -> CopyingMachine:
        machine = await self.leader(TABLET)
        assert isinstance(machine, CopyingMachine)
        return machine

    async def follower(self) -> CopyingMachine:
        leading = await self.leading()
        return next(one for name in self.wires.machines if (one := self.at(name)) is not leading)

    async def order(self, to: CopyingMachine, **changes: Any) -> StartTabletCopy:
        """Return the leader's order to copy its replica to a server."""
        leading = await self.leading()
        fields: dict[str, Any] = {
            "recipient": to.uuid,
            "tablet": TABLET,
            "number": to.number(),
            "role": MemberRole.VOTER,
            "term": leading.running().leader_of(TABLET)[0],
            "source": CopySource(leading.number(), leading.uuid, "127.0.0.1", leading.port),
            "seen": to.seen(),
            "table": "table",
        }
        return StartTabletCopy(**{**fields, **changes})

    async def copy(self, to: CopyingMachine, **changes: Any) -> TabletCopyAnswer:
        """Send the order."""
        answer: TabletCopyAnswer = await to.copies.answer(await self.order(to, **changes))
        return answer

    async def ended(self, machine: CopyingMachine, number: int = 0) -> CopyJob:
        """Wait for the end of the latest job, or of a given one."""

        def found() -> CopyJob | None:
            jobs = [one for one in machine.jobs() if number in (0, one.job)]
            return jobs[0] if jobs and jobs[0].ended_ms else None

        job: CopyJob = await until(self.reactor, found, "the end of a copy")
        return job

    async def receiving(self, machine: CopyingMachine) -> CopyJob:
        """Wait until a copy has received some rows."""

        def found() -> CopyJob | None:
            jobs = machine.jobs()
            return jobs[0] if jobs and jobs[0].received > 0 else None

        job: CopyJob = await until(self.reactor, found, "rows of a copy")
        assert job.state is CopyState.ROWS, job
        return job

    async def fill(self, rows: int = 40) -> None:
        """Write rows of 50,000 bytes."""
        for number in range(rows):
            await self.put(TABLET, f"key-{number}", bytes([number % 256]) * 50_000)

    async def fails(self, machine: CopyingMachine) -> None:
        """Stop a server, damage its rows, and start it again."""
        await machine.stop()
        machine.flip_rows()
        machine.start()
        await until(self.reactor, lambda: machine.state() == "FAILED", "FAILED rows")

    async def same_rows(self) -> None:
        """Wait until all replicas hold the same rows at the same entry."""

        def equal() -> bool:
            found = [self.at(name).running().rows_of(TABLET) for name in self.wires.machines]
            return len({(rows.applied, rows.state.digest) for rows in found if rows is not None}) == 1 and all(found)

        await until(self.reactor, equal, "equal rows on all servers")


def files_of(machine: CopyingMachine, folder: str = "") -> list[str]:
    """Return the paths of a server's files in a folder."""
    root = machine.directory
    return sorted(str(path.relative_to(root)) for path in (root / folder).rglob("*") if path.is_file())
