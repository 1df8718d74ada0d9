"""Replicas that differ are found, quarantined and copied anew: real files, sockets and threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from twisted.internet.defer import Deferred, fail, maybeDeferred

from coord.env_os import os_system
from coord.peers.reactor import TurnReactor
from coord.raft.messages import Entry
from coord.rpc.wire import RpcError
from regionserver.tablets.copying.asking import seen_in
from regionserver.tablets.copying.messages import CopySource, StartTabletCopy
from regionserver.tablets.digests.messages import AskedDigest, QuarantineReplica, ReplicaDigest, ShowDigests
from regionserver.tablets.digests.work import DigestWork
from regionserver.tablets.host.wanted_copies import CopyWanted
from regionserver.tablets.rows import marks
from tests.support.reactors import in_reactor, until
from tests.unit.regionserver.tablets.copying.copying_hosts import TABLET, CopyingCluster, CopyingMachine

#: Entries between two digests in these tests.
EVERY: Final = 20


class ComparingMachine(CopyingMachine):
    """A server that compares its replicas, and asks for copies as a leader does."""

    digests: DigestWork

    def started(self) -> None:
        super().started()
        host = self.running()
        self.digests = DigestWork(
            self.wires.reactor, os_system().clock, self.uuid, host, host.life.parts().replicas, self.ask
        )
        self.digests.start()
        host.members.ask_for_copy = self.ask_for_copy

    def peer(self, uuid: str) -> ComparingMachine | None:
        found = next((one for one in self.wires.machines.values() if one.uuid == uuid), None)
        return found if isinstance(found, ComparingMachine) and found.host is not None else None

    def ask(self, server: str, message: Any, _expect: type) -> Deferred[Any]:
        peer = self.peer(server)
        if peer is None:
            return fail(RpcError("UNREACHABLE", "nobody is there"))
        return maybeDeferred(peer.digests.answer, message)

    def ask_for_copy(self, wanted: CopyWanted) -> Deferred[Any]:
        peer = self.peer(wanted.server)
        assert peer is not None
        source = CopySource(self.number(), self.uuid, "127.0.0.1", self.port)
        order = StartTabletCopy(
            wanted.server, wanted.tablet, wanted.number, wanted.role, wanted.term, source, seen_in(wanted), "table"
        )  # fmt: skip
        return maybeDeferred(peer.copies.answer, order)

    async def stop(self) -> None:
        self.digests.stop()
        await super().stop()

    def changes_rows(self, good: bytes, bad: bytes) -> None:
        """Store another value than the log has, as a broken machine might."""
        rows = self.running().rows_of(TABLET)
        assert rows is not None
        real = rows.apply

        def apply(entries: list[Entry]) -> Any:
            return real([Entry(one.term, one.index, one.kind, one.data.replace(good, bad)) for one in entries])

        rows.apply = apply  # type: ignore[method-assign,assignment]

    async def shown(self, index: int = 0) -> ReplicaDigest:
        answer = await self.digests.answer(ShowDigests(self.uuid, [AskedDigest(TABLET, index)]))
        [found] = answer.digests
        assert isinstance(found, ReplicaDigest)
        return found


class ComparingCluster(CopyingCluster):
    machine_class = ComparingMachine

    def all(self) -> list[ComparingMachine]:
        found = [self.at(name) for name in self.wires.machines]
        return [one for one in found if isinstance(one, ComparingMachine)]

    async def write(self, count: int) -> None:
        for number in range(count):
            await self.put(TABLET, f"key-{number}", b"value")

    def alarms(self) -> list[str]:
        return [text for one in self.all() for text in one.digests.alarms()]


def run(folder: Path, test: Callable[[ComparingCluster], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "DIGEST_EVERY", EVERY)

    async def main(reactor: Any) -> None:
        cluster = ComparingCluster(reactor, folder)
        cluster.start()
        await cluster.make([TABLET])
        await cluster.write(3)
        await test(cluster)
        await cluster.stop()

    in_reactor(main, make=TurnReactor)


def test_equal_replicas_are_compared_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: ComparingCluster) -> None:
        await cluster.write(2 * EVERY)
        leading = await cluster.leading()
        assert isinstance(leading, ComparingMachine)
        await until(cluster.reactor, lambda: leading.running().rows_of(TABLET).marks.compared > 0, "a comparison")
        await leading.digests.compare()
        assert cluster.alarms() == []
        assert [one.state() for one in cluster.all()] == ["RUNNING"] * 3
        await cluster.same_rows()

    run(tmp_path, test, monkeypatch)


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_replica_that_differs_is_quarantined_and_copied_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    async def test(cluster: ComparingCluster) -> None:
        victim = await (cluster.leading() if leads else cluster.follower())
        assert isinstance(victim, ComparingMachine)
        victim.changes_rows(b"good", b"evil")
        await cluster.put(TABLET, "row", b"good")
        await cluster.write(EVERY)
        await until(cluster.reactor, cluster.alarms, "an alarm")
        [alarm] = cluster.alarms()
        assert f"tablet {TABLET}: the rows of member {victim.number()} differed after entry {EVERY}" in alarm
        await until(cluster.reactor, lambda: victim.state() == "RUNNING" and victim.jobs(), "the copy")
        assert (victim.directory / "quarantine" / f"{TABLET}.1" / "rows.mdb").exists()
        await cluster.put(TABLET, "after", b"1")
        await cluster.same_rows()
        assert await cluster.get(TABLET, "row") == b"good"
        assert [one.jobs() for one in cluster.all() if one is not victim] == [[], []]

    run(tmp_path, test, monkeypatch)


def test_without_a_majority_nothing_is_quarantined_and_the_operator_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(cluster: ComparingCluster) -> None:
        leading = await cluster.leading()
        others = [one for one in cluster.all() if one is not leading]
        await others[0].stop()
        others[1].changes_rows(b"good", b"evil")
        await cluster.put(TABLET, "row", b"good")
        await cluster.write(EVERY)
        await until(cluster.reactor, cluster.alarms, "an alarm")
        assert f"replicas of tablet {TABLET} differ" in cluster.alarms()[0]
        assert "rk tablet verify" in cluster.alarms()[0]
        assert [leading.state(), others[1].state()] == ["RUNNING", "RUNNING"]
        assert others[1].jobs() == []
        # With the third member there is a majority.
        others[0].start()
        await until(cluster.reactor, lambda: others[0].state() == "RUNNING", "the third member")
        await cluster.write(EVERY)
        await until(cluster.reactor, others[1].jobs, "a copy")
        await until(cluster.reactor, lambda: others[1].state() == "RUNNING", "the copy takes part")
        await cluster.same_rows()

    run(tmp_path, test, monkeypatch)


def test_a_leader_of_the_past_quarantines_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: ComparingCluster) -> None:
        await cluster.write(EVERY)
        victim = await cluster.follower()
        assert isinstance(victim, ComparingMachine)
        rows = victim.running().rows_of(TABLET)
        assert rows is not None
        await until(cluster.reactor, lambda: rows.marks.at(EVERY), "a digest")
        term = victim.running().leader_of(TABLET)[0]
        good = rows.marks.at(EVERY)
        assert good is not None
        order = QuarantineReplica(victim.uuid, TABLET, victim.number(), term - 1, EVERY, b"x" * 16, [1, 2])
        for wrong in (
            order,
            _with(order, term=term, digest=good),
            _with(order, term=term, index=EVERY + 1),
            _with(order, term=term, number=9),
            _with(order, term=term, recipient="another"),
        ):
            answer = await victim.digests.answer(wrong)
            assert answer.why, wrong
            assert victim.state() == "RUNNING"
        assert not (victim.directory / "quarantine" / f"{TABLET}.1").exists()

    run(tmp_path, test, monkeypatch)


def _with(order: QuarantineReplica, **changes: Any) -> QuarantineReplica:
    fields = {name: getattr(order, name) for name in order.__struct_fields__}
    return QuarantineReplica(**{**fields, **changes})


def test_members_show_their_digests_at_an_entry_that_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(cluster: ComparingCluster) -> None:
        leading = await cluster.leading()
        assert isinstance(leading, ComparingMachine)
        last = (await leading.shown()).last
        waiting = [maybeDeferred(one.digests.answer, ShowDigests(one.uuid, [AskedDigest(TABLET, last + 2)]))
                   for one in cluster.all()]  # fmt: skip
        await cluster.write(5)
        answers = [await one for one in waiting]
        found = {dict(one.digests[0].digests)[last + 2] for one in answers}
        assert len(found) == 1
        assert {one.digests[0].number for one in answers} == {1, 2, 3}
        with pytest.raises(RpcError, match="this server is"):
            await leading.digests.answer(ShowDigests("another", [AskedDigest(TABLET)]))
        assert (await leading.digests.answer(ShowDigests(leading.uuid, [AskedDigest("none", 9)]))).digests == []

    run(tmp_path, test, monkeypatch)
