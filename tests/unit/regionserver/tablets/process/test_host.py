"""Tablet hosts of three servers in one process, on real disks and threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regionserver.tablets.commands import CONDITION_FAILED, DONE, CompareAndSet
from regionserver.tablets.host.requests import Fate, TabletAnswer
from tests.support.hosts_in_process import Cluster, Machine
from tests.support.reactors import in_reactor, until


def test_writes_reads_and_conditions(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        answer = await cluster.put("t", "a", b"1")
        assert answer.value.code == DONE
        assert await cluster.get("t", "a") == b"1"
        leader = await cluster.leader("t")
        wrong = await cluster.send(leader, "t", cluster.command(CompareAndSet("a", b"2", b"0")))
        assert wrong.value.code == CONDITION_FAILED
        right = await cluster.send(leader, "t", cluster.command(CompareAndSet("a", b"2", b"1")))
        assert right.value.code == DONE
        for machine in cluster.machines:
            # Any replica answers a read that names an index.
            found = await machine.running().read("t", lambda rows: rows.values([b"a"])[0], at_least=right.index)
            assert (found.fate, found.value) == (Fate.DONE, b"2")
            assert found.index >= right.index
        await cluster.stop()

    in_reactor(main)


def test_any_replica_answers_a_stale_read(tmp_path: Path) -> None:
    """Each replica proves the age of its rows; with the others gone it answers as long as the proof is young enough."""

    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")

        async def read(machine: Machine, max_stale_ms: int) -> TabletAnswer:
            answer: TabletAnswer = await machine.running().read(
                "t", lambda rows: rows.values([b"a"])[0], max_stale_ms=max_stale_ms
            )
            return answer

        for machine in cluster.machines:
            found = await read(machine, 60_000)
            assert (found.fate, found.value) == (Fate.DONE, b"1")
            assert 0 < machine.running().age_ms(found) < 60_000
        last = cluster.machines[-1]
        for machine in cluster.machines[:-1]:
            await machine.stop()
        assert (await read(last, 60_000)).value == b"1"
        assert (await read(last, 1)).fate in (Fate.TOO_STALE, Fate.NOT_LEADER)
        await cluster.stop()

    in_reactor(main)


def test_a_write_that_is_sent_again_is_done_once(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        leader = await cluster.leader("t")
        command = cluster.command(CompareAndSet("a", b"1", None))
        first = await cluster.send(leader, "t", command)
        again = await cluster.send(leader, "t", command)
        assert first.value.code == again.value.code == DONE
        assert (again.value.term, again.value.index) == (first.term, first.index)
        await cluster.stop()

    in_reactor(main)


def test_all_servers_restart(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t", "u"])
        for number in range(20):
            await cluster.put("t", f"k{number}", b"%d" % number)
        await cluster.put("u", "other", b"x")
        for machine in cluster.machines:
            await machine.stop()
        cluster.start()
        for number in range(20):
            assert await cluster.get("t", f"k{number}") == b"%d" % number
        assert await cluster.get("u", "other") == b"x"
        await cluster.stop()

    in_reactor(main)


def test_the_others_go_on_when_a_leader_is_gone(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        former = await cluster.leader("t")
        await former.stop()
        assert await cluster.get("t", "a") == b"1"
        answer = await cluster.put("t", "a", b"2")
        former.start()
        found = await former.running().read("t", lambda rows: rows.values([b"a"])[0], at_least=answer.index)
        while found.fate is not Fate.DONE:  # its rows are being opened, or it has not caught up
            found = await former.running().read("t", lambda rows: rows.values([b"a"])[0], at_least=answer.index)
        assert found.value == b"2"
        await cluster.stop()

    in_reactor(main)


def test_many_tablets_are_made_together_and_have_leaders(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        names = [f"t{number}" for number in range(30)]
        await cluster.make(names)
        for name in names:
            await cluster.put(name, "a", name.encode())
        for name in names:
            assert await cluster.get(name, "a") == name.encode()
        status = [machine.running().status() for machine in cluster.machines]
        assert sum(one.leaders for one in status) == len(names)
        assert all(one.replicas == {"RUNNING": len(names)} for one in status)
        # One sync covers the writes of all tablets in a turn.
        assert all(
            one.keys() == [(name, 1 + at) for name in names]
            for at, one in enumerate(machine.running() for machine in cluster.machines)
        )
        assert all(one.entries > 0 and one.log_bytes > 100 * one.syncs for one in status)
        leader = await cluster.leader("t0")
        assert all(machine.running().leader_of("t0")[2] == leader.uuid for machine in cluster.machines)
        await cluster.stop()

    in_reactor(main)


def test_reports_follow_role_and_health(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        leader = await cluster.leader("t")
        await until(reactor, lambda: "t" in leader.changes, "the report of the leader")

        def health() -> list[str]:
            report = leader.running().report("t")
            assert report is not None
            assert report.leader is not None
            assert [member.uuid for member in report.leader.members] == [one.uuid for one in cluster.machines]
            return [one.health.value for one in report.leader.health]

        await until(reactor, lambda: health() == ["HEALTHY"] * 3, "three healthy members")
        gone = next(machine for machine in cluster.machines if machine is not leader)
        leader.changes.clear()
        await gone.stop()
        await until(reactor, lambda: sorted(health()) == ["HEALTHY", "HEALTHY", "UNKNOWN"], "a member that is gone")
        await until(reactor, lambda: "t" in leader.changes, "a report of the changed health")
        await cluster.stop()

    in_reactor(main)
