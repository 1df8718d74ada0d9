"""Tablet hosts with faulty disks, files or tablets: what ends, and what continues."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from coord.env import DiskFile
from coord.errors import ConfigError
from regions.messages import ClosePurpose
from regionserver.tablets.host.requests import Fate
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.process.interfaces import HostSettings
from regionserver.tablets.rows.errors import RowsFailed, RowsFull
from tests.support.hosts_in_process import Cluster, Machine, TroubledDisk
from tests.support.reactors import in_reactor, until


def state_of(machine: Machine, tablet: str) -> str:
    """Return the run state in a server's report."""
    report = machine.running().report(tablet)
    return report.state.value if report is not None else ""


def reason_of(machine: Machine, tablet: str) -> str:
    """Return the reason in a server's report."""
    report = machine.running().report(tablet)
    return report.reason if report is not None else ""


def disk_of(machine: Machine) -> TroubledDisk:
    """Return a server's disk, which can have faults."""
    assert isinstance(machine.disk, TroubledDisk)
    return machine.disk


def test_a_tablet_whose_rows_fail_is_parked_and_harms_no_other(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t", "u"])
        await cluster.put("t", "a", b"1")
        victim = await cluster.leader("t")
        rows = victim.running().rows_of("t")
        assert rows is not None

        def fail(entries: Any) -> Any:
            raise RowsFailed("a page is damaged")

        rows.apply = fail  # type: ignore[method-assign]
        await cluster.put("t", "a", b"2")
        assert (state_of(victim, "t"), reason_of(victim, "t")) == ("FAILED", "a page is damaged")
        assert await cluster.leader("t") is not victim
        assert await cluster.get("t", "a") == b"2"
        await cluster.put("u", "a", b"3")
        assert state_of(victim, "u") == "RUNNING"
        refused = await victim.running().read("t", lambda found: found)
        assert refused.fate is Fate.FAILED
        assert not victim.deaths
        # A restart opens it again: its file is intact.
        await victim.stop()
        victim.start()
        await until(reactor, lambda: state_of(victim, "t") == "RUNNING", "the parked tablet, after a restart")
        await cluster.stop()

    in_reactor(main)


class BrokenTurn:
    """A turn of which one method fails."""

    def __init__(self, turn: Turn, method: str) -> None:
        self._turn = turn
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._method else getattr(self._turn, name)

    def _fail(self, *_: Any) -> Any:
        raise AssertionError("an invariant is broken")


def test_a_bug_of_the_host_ends_the_process_with_one_sentence(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        for method in ("take", "tick", "persisted"):
            cluster = Cluster(reactor, tmp_path / method)
            cluster.start()
            await cluster.make(["t"])
            await cluster.put("t", "a", b"1")
            victim = await cluster.leader("t")

            victim.running().turn = BrokenTurn(victim.running().turn, method)  # type: ignore[assignment]
            victim.running().propose("t", cluster.command_for("b", b"2"))
            await until(reactor, lambda deaths=victim.deaths: deaths, "the end of the process")
            assert victim.deaths == ["the tablet host has failed: an invariant is broken"]
            victim.host = None
            victim.lose_links()
            assert await cluster.get("t", "a") == b"1"
            await cluster.stop()

    in_reactor(main)


def test_a_reader_that_fails_costs_its_own_read(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        leader = await cluster.leader("t")

        def bad(rows: Any) -> Any:
            raise ValueError("a bad request")

        first = leader.running().read("t", bad)
        second = leader.running().read("t", lambda rows: 7)
        with pytest.raises(ValueError, match="a bad request"):
            await first
        assert (await second).value == 7
        assert state_of(leader, "t") == "RUNNING"
        await cluster.stop()

    in_reactor(main)


def test_a_log_that_cannot_be_synced_ends_the_process_with_one_sentence(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path, disk=TroubledDisk)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        victim = await cluster.leader("t")
        disk_of(victim).fails = True
        # The others acknowledge entries that the leader cannot store, or elect another leader.
        victim.running().propose("t", cluster.command_for("b", b"2"))
        await until(reactor, lambda: victim.deaths, "the end of the process")
        assert len(victim.deaths) == 1
        assert "shared log" in victim.deaths[0]
        assert "\n" not in victim.deaths[0]
        victim.host = None
        victim.lose_links()
        assert await cluster.get("t", "a") == b"1"
        await cluster.stop()

    in_reactor(main)


def test_leaderships_leave_a_slow_disk(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        settings = HostSettings(threads=2, slow_write_ms=200, hand_over_s=0.2)
        cluster = Cluster(reactor, tmp_path, settings=settings, disk=TroubledDisk)
        cluster.start()
        await cluster.make(["t", "u"])
        await cluster.put("t", "a", b"1")
        victim = await cluster.leader("t")
        disk = disk_of(victim)
        disk.hold()
        victim.running().propose("t", cluster.command_for("b", b"2"))
        await until(reactor, lambda: not victim.running().status().disk_answers, "a disk that does not answer")
        others = [machine for machine in cluster.machines if machine is not victim]
        for machine in others:
            seen = machine.running().turn.beats.peers[victim.uuid]
            await until(reactor, lambda seen=seen: not seen.disk_answers, "a BEAT that says so")
        await until(
            reactor,
            lambda: any(machine.running().turn.groups["t"].core.leadership is not None for machine in others),
            "another leader",
        )
        disk.release()
        await until(reactor, lambda: victim.running().status().disk_answers, "the disk to answer again")
        assert victim.running().status().slow_writes >= 1
        assert not victim.deaths
        assert await cluster.get("t", "a") == b"1"
        await cluster.stop()

    in_reactor(main)


def test_a_full_disk_rejects_writes_and_loses_nothing(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path, size=1, disk=TroubledDisk)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        [only] = cluster.machines
        disk_of(only).is_full = True
        waits = only.running().propose("t", cluster.command_for("b", b"2"))
        await until(reactor, lambda: only.running().status().is_full, "a full disk")
        refused = await only.running().propose("t", cluster.command_for("c", b"3"))
        assert refused.fate is Fate.DISK_FULL
        assert not waits.called
        disk_of(only).is_full = False
        assert (await waits).fate is Fate.DONE
        assert [await cluster.get("t", key) for key in "abc"] == [b"1", b"2", None]
        await cluster.put("t", "c", b"3")
        await cluster.stop()

    in_reactor(main)


def test_rows_without_room_wait_and_go_on(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path, size=1)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        [only] = cluster.machines
        rows = only.running().rows_of("t")
        assert rows is not None
        real = rows.apply
        is_full = True

        def apply(entries: Any) -> Any:
            if is_full:
                raise RowsFull("no room")
            return real(entries)

        rows.apply = apply  # type: ignore[method-assign]
        waits = only.running().propose("t", cluster.command_for("b", b"2"))
        await until(reactor, lambda: only.running().status().is_full, "rows without room")
        refused = await only.running().propose("t", cluster.command_for("c", b"3"))
        assert refused.fate is Fate.DISK_FULL
        is_full = False
        assert (await waits).fate is Fate.DONE
        assert [await cluster.get("t", key) for key in "abc"] == [b"1", b"2", None]
        assert not only.running().status().is_full
        await cluster.stop()

    in_reactor(main)


def test_damage_in_the_log_costs_its_tablet_alone(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t", "u"])
        victim = cluster.machines[0]
        await cluster.put("t", "a", b"1")
        await cluster.put("u", "a", b"1")
        # The damaged record must contain nothing of the other tablet.
        durable = victim.running().turn.groups["u"].core.log
        await until(reactor, lambda: durable.stable >= 2 and durable.commit >= 2, "the other tablet at rest")
        await cluster.put("t", "a", b"needle in the log")
        await until(reactor, lambda: victim.running().turn.groups["t"].core.log.commit >= 3, "the entry everywhere")
        await cluster.put("u", "b", b"2")
        await victim.stop()
        [segment] = (victim.directory / "wals").glob("*.log")
        content = segment.read_bytes()
        assert content.count(b"needle in the log") == 1
        segment.write_bytes(content.replace(b"needle in the log", b"NEEDLE in the log"))
        victim.start()
        assert state_of(victim, "t") == "LOST"
        assert reason_of(victim, "t")
        await until(reactor, lambda: state_of(victim, "u") == "RUNNING", "the other tablet")
        assert await cluster.get("t", "a") == b"needle in the log"
        await cluster.put("t", "a", b"2")
        await cluster.put("u", "c", b"3")
        leader = await cluster.leader("t")

        def judged() -> str:
            report = leader.running().report("t")
            assert report is not None
            return "" if report.leader is None else next(x for x in report.leader.health if x.number == 1).health.value

        await until(reactor, lambda: judged() == "FAILED", "a leader that knows of the lost replica")
        await cluster.stop()

    in_reactor(main)


class BrokenDisk(TroubledDisk):
    """A directory of which one operation fails below one path."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.broken = ("", "")

    def _maybe(self, operation: str, path: str) -> None:
        if self.broken[0] == operation and path.startswith(self.broken[1]):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        self._maybe("create" if create else "open", path)
        return super().open(path, create=create)

    def make_folder(self, path: str) -> None:
        self._maybe("make_folder", path)
        super().make_folder(path)

    def rename(self, old: str, new: str) -> None:
        self._maybe("rename", old)
        super().rename(old, new)


@pytest.mark.parametrize(
    "broken",
    [
        ("make_folder", "quarantine"),
        ("create", "tablet-meta"),
        ("create", "quarantine/t.1/.tmp-consensus-meta"),
        ("create", "quarantine/t.1/.tmp-log"),
        ("rename", "data"),
    ],
    ids=" ".join,
)
def test_a_deletion_that_the_disk_cuts_short_costs_its_tablet_and_is_finished_when_ordered_again(
    tmp_path: Path, broken: tuple[str, str]
) -> None:
    """Wherever it fails. Fails if `FilesWork.close` takes the superblock as it was when the tablet was opened."""

    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path, disk=BrokenDisk)
        cluster.start()
        await cluster.make(["t", "u"])
        written = await cluster.put("t", "a", b"1")
        await cluster.applied("t", written.index)
        victim = cluster.machines[0]
        disk = victim.disk
        assert isinstance(disk, BrokenDisk)
        disk.broken = broken
        why = await victim.running().close("t", ClosePurpose.TOMBSTONE, "moved away")
        assert "Input/output error" in why
        assert state_of(victim, "t") == "FAILED"
        assert "could not be closed" in reason_of(victim, "t")
        assert not victim.deaths
        await cluster.put("t", "a", b"2")
        await cluster.put("u", "a", b"2")
        disk.broken = ("", "")
        assert await victim.running().close("t", ClosePurpose.TOMBSTONE, "moved away") == ""
        assert state_of(victim, "t") == "TOMBSTONE"
        assert victim.running().turn.resting["t"].may_vote
        saved = {path.name for path in (victim.directory / "quarantine" / "t.1").iterdir()}
        assert saved >= {"superblock", "consensus-meta", "log", "rows.mdb"}
        await victim.stop()
        victim.start()
        assert state_of(victim, "t") == "TOMBSTONE"
        await cluster.stop()

    in_reactor(main)


def test_a_log_that_cannot_be_read_stops_the_start_and_changes_nothing(tmp_path: Path) -> None:
    """The error may go away, and the log has the promises of all tablets."""

    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path, disk=BrokenDisk)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        victim = cluster.machines[0]
        await victim.stop()
        before = {path: path.read_bytes() for path in victim.directory.rglob("*") if path.is_file()}
        disk = victim.disk
        assert isinstance(disk, BrokenDisk)
        disk.broken = ("open", "wals/")
        with pytest.raises(ConfigError, match=r"cannot be opened: .*Input/output error"):
            victim.start()
        after = {path: path.read_bytes() for path in victim.directory.rglob("*") if path.is_file()}
        assert after == before
        disk.broken = ("", "")
        victim.start()
        await until(reactor, lambda: state_of(victim, "t") == "RUNNING", "the tablet when the log can be read again")
        await cluster.stop()

    in_reactor(main)


def test_a_copied_directory_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path / "real")
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        await cluster.stop()
        shutil.copytree(tmp_path / "real", tmp_path / "copy")
        before = {path: path.read_bytes() for path in sorted((tmp_path / "copy").rglob("*")) if path.is_file()}
        copied = Cluster(reactor, tmp_path / "copy")
        with pytest.raises(ConfigError, match="is a copy"):
            copied.machines[0].start()
        after = {path: path.read_bytes() for path in sorted((tmp_path / "copy").rglob("*")) if path.is_file()}
        assert {path for path in before if path.name != "lock" and before[path] != after.get(path)} == set()
        assert before.keys() == after.keys()

    in_reactor(main)


def test_another_servers_superblocks_are_refused(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        first, second, _ = cluster.machines
        await first.stop()
        shutil.copy(second.directory / "tablet-meta" / "t", first.directory / "tablet-meta" / "t")
        with pytest.raises(ConfigError, match="superblocks of server"):
            first.start()
        await cluster.stop()

    in_reactor(main)


def test_rest_begin_and_delete(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t", "u"])
        written = await cluster.put("t", "a", b"1")
        await cluster.applied("t", written.index)
        for machine in cluster.machines:
            assert await machine.running().close("t", ClosePurpose.REST) == ""
            assert state_of(machine, "t") == "RESTING"
            assert (await machine.running().read("t", lambda rows: rows)).fate is Fate.FAILED
        # The replica still rests after a restart.
        await cluster.machines[0].stop()
        cluster.machines[0].start()
        assert state_of(cluster.machines[0], "t") == "RESTING"
        for machine in cluster.machines:
            assert await machine.running().begin("t") == ""
        assert await cluster.get("t", "a") == b"1"
        for machine in cluster.machines:
            assert await machine.running().close("t", ClosePurpose.DELETE, "its table is deleted") == ""
            assert machine.running().report("t") is None
            assert (await machine.running().read("t", lambda rows: rows)).fate is Fate.DOES_NOT_EXIST
            assert not (machine.directory / "tablet-meta" / "t").exists()
            assert (machine.directory / "quarantine" / "t.1" / "rows.mdb").exists()
        await cluster.put("u", "a", b"2")
        # A tablet of that name can be made again; its files have another generation.
        await cluster.make(["t"])
        assert await cluster.get("t", "a") is None
        await cluster.put("t", "a", b"3")
        made = cluster.machines[0].directory / "data" / "t.2.mdb"
        await until(reactor, made.exists, "the first row's file on a server that may follow")
        await cluster.stop()

    in_reactor(main)


def test_orders_that_cannot_be_carried_out_say_why(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        host = cluster.machines[0].running()
        again, wrong, bad = await host.make(
            [cluster.opening("t", 1), cluster.opening("u", 2), cluster.opening("../u", 1)]
        )
        assert "on this server already" in again
        assert "is not on this server" in wrong
        assert "is not the name of a tablet" in bad
        assert "is not on this server" in await host.begin("u")
        assert await host.close("u", ClosePurpose.DELETE) == ""
        assert (await host.propose("u", cluster.command_for("a", b"1"))).fate is Fate.DOES_NOT_EXIST
        await cluster.stop()

    in_reactor(main)


def test_a_member_that_was_away_gets_entries_that_left_the_memory(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        settings = HostSettings(threads=2, hand_over_s=0.2, memory_bytes=20_000)
        cluster = Cluster(reactor, tmp_path, settings=settings)
        cluster.start()
        await cluster.make(["t"])
        leader = await cluster.leader("t")
        away = next(one for one in cluster.machines if one is not leader)
        await away.stop()
        # More than one append carries, and more than a log keeps in memory.
        for number in range(30):
            await cluster.put("t", f"k{number}", bytes(100_000))
        leader = await cluster.leader("t")
        await until(reactor, lambda: leader.running().turn.groups["t"].core.log.offset > 10, "entries on disk alone")
        assert leader.running().status().memory_bytes < 2_000_000
        away.start()

        def has_all() -> bool:
            report = away.running().report("t")
            return report is not None and report.applied_index >= 31

        await until(reactor, has_all, "the member that was away")
        await cluster.stop()

    in_reactor(main)


def test_floors_follow_what_every_member_has(tmp_path: Path) -> None:
    """While a member is away, its entries stay in the log; when it is back, the log becomes shorter."""

    async def main(reactor: Any) -> None:
        settings = HostSettings(threads=2, hand_over_s=0.2, segment_bytes=20_000)
        cluster = Cluster(reactor, tmp_path, settings=settings)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        leader = await cluster.leader("t")
        away = next(one for one in cluster.machines if one is not leader)
        await away.stop()
        for number in range(12):
            await cluster.put("t", f"k{number}", bytes(10_000))
        segments = [one.running().status().segments for one in cluster.machines if one.host is not None]
        assert min(segments) > 3
        away.start()

        def has_all() -> bool:
            report = away.running().report("t")
            return report is not None and report.applied_index >= 14

        await until(reactor, has_all, "the member that was away")
        for number in range(24):
            await cluster.put("t", f"l{number}", bytes(10_000))
        await until(
            reactor,
            lambda: all(one.running().status().segments < 12 for one in cluster.machines),
            "shorter logs",
        )
        await cluster.stop()

    in_reactor(main)
