"""A server looks after the disk of its tablets: real files, real threads, a disk whose free space the test sets."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from coord.env_os import os_system
from regions.messages import ClosePurpose
from regions.records.model import NO_ROOM
from regionserver.tablets.host.requests import Fate
from regionserver.tablets.upkeep.folders import REMOVED
from regionserver.tablets.upkeep.messages import PurgeQuarantine, QuarantineList
from regionserver.tablets.upkeep.space import DiskSpace
from regionserver.tablets.upkeep.work import Upkeep
from tests.support.hosts_in_process import Cluster, Machine
from tests.support.reactors import in_reactor, until

RESERVE: Final = 1 << 30
KEEP_MS: Final = 3_600_000


class SetSpace(DiskSpace):
    """A disk with as much room as the test says."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, RESERVE)
        self.bytes = 4 * RESERVE

    def free(self) -> int:
        return self.bytes


class KeptMachine(Machine):
    """A server with upkeep."""

    upkeep: Upkeep
    keep_ms = KEEP_MS

    def started(self) -> None:
        self.space = SetSpace(self.directory)
        clock = os_system().clock
        parts = self.running().life.parts()
        self.upkeep = Upkeep(
            self.wires.reactor, clock, self.uuid, self.running(), self.space, self.keep_ms,
            parts.files_pool, parts.slow_pool,
        )  # fmt: skip
        self.upkeep.start()

    async def stop(self) -> None:
        self.upkeep.stop()
        await super().stop()

    def quarantine(self) -> list[str]:
        return sorted(os.listdir(self.directory / "quarantine"))

    def age(self, name: str, age_ms: int) -> None:
        """Make a folder of the quarantine older."""
        at_s = time.time() - age_ms / 1000
        os.utime(self.directory / "quarantine" / name, (at_s, at_s))

    async def purge(self, tablet: str = "", **more: Any) -> QuarantineList:
        answer: QuarantineList = await self.upkeep.answer(PurgeQuarantine(self.uuid, tablet, **more))
        return answer


class KeptCluster(Cluster):
    def __init__(self, reactor: Any, folder: Path) -> None:
        super().__init__(reactor, folder, machine=KeptMachine)

    def kept(self) -> list[KeptMachine]:
        return [one for one in self.machines if isinstance(one, KeptMachine)]


def run(folder: Path, test: Callable[[KeptCluster], Awaitable[None]]) -> None:
    async def main(reactor: Any) -> None:
        cluster = KeptCluster(reactor, folder)
        cluster.start()
        await cluster.make(["t"])
        written = await cluster.put("t", "a", b"1" * 50_000)
        await cluster.applied("t", written.index)
        await test(cluster)
        await cluster.stop()

    in_reactor(main)


def test_rows_of_a_removed_replica_leave_the_disk_when_their_time_is_over(tmp_path: Path) -> None:
    async def test(cluster: KeptCluster) -> None:
        victim = cluster.kept()[0]
        assert await victim.running().close("t", ClosePurpose.TOMBSTONE, "moved away") == ""
        assert victim.quarantine() == ["t.1"]
        shown = await victim.purge(dry_run=True)
        assert [(one.tablet, one.generation, one.goes) for one in shown.folders] == [("t", 1, False)]
        assert shown.folders[0].size_bytes > 50_000
        # It is not removed before its time, neither by the server itself nor by an order.
        await victim.purge("t")
        assert victim.quarantine() == ["t.1"]
        victim.age("t.1", KEEP_MS)
        await victim.stop()
        victim.start()
        await until(cluster.reactor, lambda: victim.quarantine() == [], "an empty quarantine")
        # The tombstone stays, and with it what the number has promised.
        assert (victim.directory / "tablet-meta" / "t").exists()
        assert victim.running().turn.resting["t"].may_vote
        # The store says that the tablet is gone: nothing of the tablet is left.
        assert await victim.running().close("t", ClosePurpose.DELETE, "its table is deleted") == ""
        left = [str(path) for path in victim.directory.rglob("*") if path.name.startswith("t") and path.is_file()]
        assert left == []

    run(tmp_path, test)


def test_an_order_removes_at_once_what_is_past_its_time_and_the_rest_by_force(tmp_path: Path) -> None:
    async def test(cluster: KeptCluster) -> None:
        victim = cluster.kept()[0]
        assert await victim.running().close("t", ClosePurpose.DELETE) == ""
        names = [one.name for one in (await victim.purge(force=True, dry_run=True)).folders if one.goes]
        assert names == victim.quarantine() == ["t.1"]
        assert (await victim.purge("u", force=True)).folders == []
        assert (await victim.purge(older_than_ms=KEEP_MS, force=True)).folders == []
        assert victim.quarantine() == ["t.1"]
        found = await victim.purge("t", force=True)
        assert [one.goes for one in found.folders] == [True]
        assert victim.quarantine() == []
        figures = victim.upkeep.figures(victim.running().status())
        assert (figures.quarantined, figures.quarantine_bytes) == (0, 0)

    run(tmp_path, test)


def test_a_removal_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    async def test(cluster: KeptCluster) -> None:
        victim = cluster.kept()[0]
        assert await victim.running().close("t", ClosePurpose.DELETE) == ""
        await victim.stop()
        quarantine = victim.directory / "quarantine"
        (quarantine / "t.1").rename(quarantine / f"{REMOVED}t.1")
        victim.start()
        await until(cluster.reactor, lambda: victim.quarantine() == [], "the rest of a removal")

    run(tmp_path, test)


def test_a_disk_below_its_reserve_leads_no_writes_and_frees_its_quarantine(tmp_path: Path) -> None:
    async def test(cluster: KeptCluster) -> None:
        former = await cluster.leader("t")
        assert isinstance(former, KeptMachine)
        await cluster.make(["u"])
        assert await former.running().close("u", ClosePurpose.DELETE) == ""
        assert former.quarantine() == ["u.1"]
        former.space.bytes = RESERVE - 1
        await until(cluster.reactor, lambda: former.running().is_full(), "a disk below its reserve")
        refused = await former.running().propose("t", cluster.command_for("b", b"2"))
        assert refused.fate in (Fate.DISK_FULL, Fate.NOT_LEADER, Fate.BUSY)
        await until(cluster.reactor, lambda: former.running().leader_of("t")[2] != former.uuid, "another leader")
        assert await cluster.leader("t") is not former
        await cluster.put("t", "b", b"3")
        await until(cluster.reactor, lambda: former.quarantine() == [], "the quarantine of a disk without room")
        # The server continues as a follower: it acknowledges the entries that it has written.
        rows = former.running().rows_of("t")
        written = await cluster.put("t", "c", b"4")
        await until(cluster.reactor, lambda: rows is not None and rows.applied[0] >= written.index, "its rows")
        former.space.bytes = 2 * RESERVE
        await until(cluster.reactor, lambda: not former.running().is_full(), "room")

    run(tmp_path, test)


def test_with_two_full_disks_the_third_server_leads(tmp_path: Path) -> None:
    """BEATs say which disks are full, so the leadership goes where it can stay."""

    async def test(cluster: KeptCluster) -> None:
        former = await cluster.leader("t")
        assert isinstance(former, KeptMachine)
        other, last = [one for one in cluster.kept() if one is not former]
        other.space.bytes = 0
        await until(
            cluster.reactor, lambda: not former.running().turn.beats.may_lead(other.uuid), "a BEAT of a full disk"
        )
        former.space.bytes = 0
        await until(cluster.reactor, lambda: last.running().leader_of("t")[2] == last.uuid, "the third server leads")
        assert await cluster.put("t", "b", b"2")

        def able() -> int:
            judged = last.running().report("t")
            assert judged is not None
            return 0 if judged.leader is None else sum(one.may_lead for one in judged.leader.health)

        await until(cluster.reactor, lambda: able() == 1, "only the leader has room")
        assert last.running().leader_of("t")[2] == last.uuid

    run(tmp_path, test)


def test_a_single_replica_below_its_reserve_answers_disk_full_and_reads(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path, size=1, machine=KeptMachine)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        [only] = cluster.machines
        assert isinstance(only, KeptMachine)
        only.space.bytes = 0
        await until(reactor, only.running().is_full, "a disk below its reserve")
        [alarm] = only.upkeep.figures(only.running().status()).alarms
        assert "less than 1024 MB are free" in alarm
        assert only.upkeep.figures(only.running().status()).disk_free == NO_ROOM
        refused = await only.running().propose("t", cluster.command_for("b", b"2"))
        assert refused.fate is Fate.DISK_FULL
        assert await cluster.get("t", "a") == b"1"
        only.space.bytes = RESERVE
        await until(reactor, lambda: not only.running().is_full(), "room")
        assert only.upkeep.figures(only.running().status()).alarms == []
        await cluster.put("t", "b", b"2")
        await cluster.stop()

    in_reactor(main)
