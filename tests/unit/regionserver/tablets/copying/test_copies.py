"""A replica is copied from another server: real sockets, real disks, real threads."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from coord.peers.reactor import TurnReactor
from coord.rpc.wire import RpcError
from regions.messages.heartbeat import ReplicaState
from regions.records.members import MemberRole
from regionserver.tablets.copying import source, work
from regionserver.tablets.copying.jobs import IN_MAX
from regionserver.tablets.copying.messages import CancelCopy, CopyOutcome, CopySource, CopyState, SeenReplica
from regionserver.tablets.hosting import HostedTablets
from regionserver.tablets.members.claiming import NewMember
from regionserver.tablets.order_plans import Stage
from regionserver.tablets.rows.received import ReceivedRows
from regionserver.tablets.rows.tablet_rows import TabletRows
from regionserver.tablets.upkeep import rests
from regionserver.tablets.upkeep.space import DiskSpace
from tests.support.reactors import in_reactor, until
from tests.unit.regionserver.tablets.copying.copying_hosts import TABLET, CopyingCluster, CopyingMachine, files_of

#: So slow that a copy of `fill` lasts as long as a test wants it to.
SLOW = 200_000


class ScriptedClaims:
    """Gives each number, or rejects it for the reason `why`."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.asked: list[NewMember] = []
        self.progress: list[NewMember] = []
        self.complete: list[tuple[str, int]] = []

    def claim(self, member: NewMember) -> Deferred[str]:
        self.asked.append(member)
        return succeed(self.why)

    def progressed(self, member: NewMember) -> Deferred[None]:
        self.progress.append(member)
        return succeed(None)

    def made(self, tablet: str, number: int) -> None:
        self.complete.append((tablet, number))


def run(
    folder: Path,
    test: Callable[[CopyingCluster], Awaitable[None]],
    rate: int = 0,
    *,
    rows_are_same: bool = True,
) -> None:
    """Run a test with three servers and a tablet that has rows."""

    async def main(reactor: Any) -> None:
        cluster = CopyingCluster(reactor, folder, rate)
        cluster.start()
        await cluster.make([TABLET])
        await cluster.fill()
        await test(cluster)
        if rows_are_same:
            await cluster.same_rows()
        await cluster.stop()

    in_reactor(main, make=TurnReactor)


async def is_copied(cluster: CopyingCluster, machine: CopyingMachine) -> None:
    """Copy a replica, and wait until it takes part."""
    answer = await cluster.copy(machine)
    assert answer.outcome is CopyOutcome.STARTED, answer
    job = await cluster.ended(machine, answer.job)
    assert job.state is CopyState.DONE, job
    await until(cluster.reactor, lambda: machine.state() == "RUNNING", "the copy takes part")


def test_a_failed_replica_is_copied_under_its_number(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        await cluster.fails(victim)
        await cluster.put(TABLET, "meanwhile", b"1")
        answer = await cluster.copy(victim)
        assert answer.outcome is CopyOutcome.STARTED, answer
        again = await cluster.copy(victim)
        assert (again.outcome, again.job) == (CopyOutcome.ALREADY_INPROGRESS, answer.job)
        await cluster.put(TABLET, "during", b"2")
        job = await cluster.ended(victim)
        assert (job.state, job.number) == (CopyState.DONE, victim.number()), job
        assert job.received > 2_000_000
        assert job.rate > 0
        await until(cluster.reactor, lambda: victim.state() == "RUNNING", "the copy takes part")
        await cluster.put(TABLET, "after", b"3")
        await cluster.same_rows()
        # The copy is durable: the server starts with it, and takes part under its number.
        await victim.stop()
        victim.start()
        await until(cluster.reactor, lambda: victim.state() == "RUNNING", "the copy, after a restart")
        assert victim.running().turn.groups[TABLET].replica.number == victim.number()
        # The copied rows have the results of earlier writes: a repeated write changes nothing.
        assert await cluster.get(TABLET, "during") == b"2"

    run(tmp_path, test)


def test_a_copy_rests_as_long_as_requests_wait_for_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edit that makes this fail: `ThreadRests.rest` does not sleep, or `CopyWork` does not adapt the rests."""
    monkeypatch.setattr(rests, "queued_s", itertools.count().__next__)
    monkeypatch.setattr(rests, "REST_LOOK_S", 0.01)
    rested: list[float] = []
    monkeypatch.setattr(rests, "time", SimpleNamespace(sleep=rested.append, thread_time=time.thread_time))

    async def test(cluster: CopyingCluster) -> None:
        await is_copied(cluster, await cluster.follower())

    run(tmp_path, test)
    assert not rested, "no request has waited"
    monkeypatch.setattr(rests, "ASKED_MIN", 0)
    run(tmp_path / "asked", test)
    assert rested


def test_results_of_writers_are_copied(tmp_path: Path) -> None:
    """A write that is repeated at a leader that was copied gets the answer to its first copy (exactly once)."""

    async def test(cluster: CopyingCluster) -> None:
        command = cluster.command_for("once", b"1")
        former = await cluster.leading()
        first = await cluster.send(former, TABLET, command)
        await cluster.put(TABLET, "once", b"2")
        for name in cluster.wires.machines:
            if cluster.at(name) is not former:
                await is_copied(cluster, cluster.at(name))
        await former.stop()
        leading = await cluster.leading()
        repeated = await cluster.send(leading, TABLET, command)
        assert (repeated.fate, repeated.value) == (first.fate, first.value)
        assert await cluster.get(TABLET, "once") == b"2"
        former.start()

    run(tmp_path, test)


def test_a_running_replica_goes_to_quarantine_first(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        await is_copied(cluster, victim)
        saved = files_of(victim, "quarantine")
        assert {path.rpartition("/")[2] for path in saved} >= {"superblock", "consensus-meta", "log", "rows.mdb"}
        assert [path for path in files_of(victim, "data") if path.endswith(".mdb")] == ["data/t.2.mdb"]

    run(tmp_path, test)


def test_a_deposed_leader_changes_nothing(tmp_path: Path) -> None:
    """The term is checked before the replica is removed (X13), and so is everything else."""

    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        order = await cluster.order(victim)
        before = files_of(victim)
        seen = order.seen
        assert seen is not None
        for changes, outcome in (
            ({"term": order.term - 1}, CopyOutcome.BAD_TERM),
            ({"recipient": "another"}, CopyOutcome.INVALID_NAME),
            ({"number": 9}, CopyOutcome.AMNESIA),
            ({"seen": None}, CopyOutcome.ILLEGAL_STATE),
            ({"seen": SeenReplica(seen.number, seen.state, seen.last_term, seen.last_index - 1)},
             CopyOutcome.ILLEGAL_STATE),
            ({"seen": SeenReplica(seen.number, ReplicaState.FAILED, seen.last_term, seen.last_index)},
             CopyOutcome.ILLEGAL_STATE),
        ):  # fmt: skip
            answer = await cluster.copy(victim, **changes)
            assert answer.outcome is outcome, answer
            assert answer.reason
            assert victim.state() == "RUNNING"
        assert victim.jobs() == []
        assert {path for path in files_of(victim) if "quarantine" in path} == set()
        assert set(files_of(victim)) == set(before)

    run(tmp_path, test)


def test_a_disk_below_its_reserve_takes_no_copies(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        room, victim.copies._space = victim.copies._space, DiskSpace(victim.directory, 1 << 60)
        answer = await cluster.copy(victim)
        assert (answer.outcome, victim.jobs()) == (CopyOutcome.NO_SPACE, []), answer
        # The rows must fit above the reserve as well: the copy fails before it receives any.
        free = room.free()
        victim.copies._space = DiskSpace(victim.directory, free - (1 << 20))
        answer = await cluster.copy(victim)
        job = await cluster.ended(victim, answer.job)
        assert (job.state, job.received) == (CopyState.FAILED, 0), job
        assert "MB stay free" in job.reason
        victim.copies._space = room
        await is_copied(cluster, victim)

    run(tmp_path, test)


@pytest.mark.parametrize("step", ["write", "sync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "failing"])
def test_a_disk_that_fails_a_copy_leaves_the_tombstone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, step: str
) -> None:
    """No file of the copy remains, and its space is free again. Fails if `FilesWork.give_up` removes no files."""

    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        await cluster.fails(victim)
        memory = victim.seen()
        real = getattr(ReceivedRows, step)

        def fails(self: ReceivedRows, *arguments: Any) -> None:
            if step == "sync" or self.size:
                raise OSError(code, os.strerror(code))
            real(self, *arguments)

        monkeypatch.setattr(ReceivedRows, step, fails)
        answer = await cluster.copy(victim)
        job = await cluster.ended(victim, answer.job)
        assert job.state is CopyState.FAILED, job
        assert os.strerror(code) in job.reason
        assert memory is not None
        assert victim.seen() == SeenReplica(memory.number, ReplicaState.TOMBSTONE, memory.last_term, memory.last_index)
        assert files_of(victim, "data") == []
        await cluster.put(TABLET, "meanwhile", b"1")
        monkeypatch.setattr(ReceivedRows, step, real)
        await is_copied(cluster, victim)

    run(tmp_path, test)


def test_a_copy_is_canceled_and_begun_again(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        await cluster.fails(victim)
        memory = victim.seen()
        await cluster.copy(victim)
        job = await cluster.receiving(victim)
        assert victim.state() == "COPYING"
        with pytest.raises(RpcError, match="no copy job 77"):
            victim.copies.answer(CancelCopy(77))
        victim.copies.answer(CancelCopy(job.job))
        ended = await cluster.ended(victim)
        assert (ended.state, ended.reason) == (CopyState.CANCELED, "the copy was canceled"), ended
        # The promises of the number are kept; its files are removed.
        assert memory is not None
        assert victim.seen() == SeenReplica(memory.number, ReplicaState.TOMBSTONE, memory.last_term, memory.last_index)
        assert files_of(victim, "data") == []
        await cluster.put(TABLET, "meanwhile", b"1")
        for name in cluster.wires.machines:
            cluster.at(name).copies.sources._pace._rate = 0
        await is_copied(cluster, victim)

    run(tmp_path, test, SLOW)


def test_a_copy_is_canceled_before_it_fetches_anything(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        answer = await cluster.copy(victim)
        victim.copies.answer(CancelCopy(answer.job))
        ended = await cluster.ended(victim)
        assert (ended.state, ended.received) == (CopyState.CANCELED, 0), ended
        assert victim.state() == "TOMBSTONE"
        await is_copied(cluster, victim)

    run(tmp_path, test)


async def queued(cluster: CopyingCluster, victim: CopyingMachine) -> tuple[int, Callable[[], None]]:
    """Order a copy while all places are taken; return its job, and a function that ends another copy."""
    copies = victim.copies
    others = [copies.jobs.add(f"other-{number}", 1, "s9", 0) for number in range(IN_MAX)]
    for other in others:
        other.enter(CopyState.WAITING, 1)
    answer = await cluster.copy(victim)
    assert answer.outcome is CopyOutcome.STARTED, answer
    assert [one.state for one in victim.jobs() if one.job == answer.job] == [CopyState.QUEUED]
    again = await cluster.copy(victim)
    assert (again.outcome, again.job) == (CopyOutcome.ALREADY_INPROGRESS, answer.job)
    return answer.job, lambda: copies._ended(others.pop(), CopyState.DONE)


def test_a_queued_copy_begins_when_another_one_ends(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        job, end_another = await queued(cluster, victim)
        end_another()
        assert (await cluster.ended(victim, job)).state is CopyState.DONE

    run(tmp_path, test)


def test_a_queued_copy_is_checked_again_before_it_begins(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        job, end_another = await queued(cluster, victim)
        before = victim.seen()
        await cluster.put(TABLET, "meanwhile", b"1")
        await until(cluster.reactor, lambda: victim.seen() != before, "the follower has the row")
        end_another()
        ended = await cluster.ended(victim, job)
        assert (ended.state, ended.reason) == (
            CopyState.FAILED,
            "number, state or last entry are not as the sender saw them",
        )
        assert victim.state() == "RUNNING"

    run(tmp_path, test)


def test_a_queued_copy_is_canceled_at_once(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        job, end_another = await queued(cluster, victim)
        victim.copies.answer(CancelCopy(job))
        assert [one.state for one in victim.jobs() if one.job == job] == [CopyState.CANCELED]
        end_another()
        assert victim.state() == "RUNNING"

    run(tmp_path, test)


def test_the_source_stops_in_the_middle(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        await cluster.fails(victim)
        former = await cluster.leading()
        await cluster.copy(victim)
        await cluster.receiving(victim)
        former.links.stop()
        await former.stop()
        ended = await cluster.ended(victim)
        assert ended.state is CopyState.FAILED, ended
        assert victim.state() == "TOMBSTONE"
        former.rate = 0
        former.start()
        for name in cluster.wires.machines:
            cluster.at(name).copies.sources._pace._rate = 0
        await cluster.put(TABLET, "meanwhile", b"1")
        await is_copied(cluster, victim)

    run(tmp_path, test, SLOW)


def test_the_destination_stops_in_the_middle(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        await cluster.fails(victim)
        memory = victim.seen()
        await cluster.copy(victim)
        await cluster.receiving(victim)
        await victim.stop()
        leading = await cluster.leading()
        await until(cluster.reactor, lambda: not leading.copies.sources.sessions.count(), "the session's end")
        for name in cluster.wires.machines:
            cluster.at(name).rate = 0
            if cluster.at(name).host is not None:
                cluster.at(name).copies.sources._pace._rate = 0
        victim.start()
        # The start gives the copy up.
        found = victim.seen()
        assert memory is not None
        assert found is not None
        assert (found.state, found.last_term, found.last_index) == (
            ReplicaState.TOMBSTONE,
            memory.last_term,
            memory.last_index,
        )
        assert files_of(victim, "data") == []
        await is_copied(cluster, victim)

    run(tmp_path, test, SLOW)


def test_a_copy_fails_if_the_log_behind_its_rows_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pin holds the floor of the source's log, and never stops the log from going."""

    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        await cluster.fails(victim)
        leading = await cluster.leading()
        host = leading.running()
        await cluster.copy(victim)
        await cluster.receiving(victim)
        assert host.life.parts().replicas[TABLET].pin is not None
        answer = await cluster.put(TABLET, "behind", b"1")
        rows = host.rows_of(TABLET)
        assert rows is not None
        await until(cluster.reactor, lambda: rows.applied[0] >= answer.index, "rows that hold the write")
        point = rows.steady()
        # The host's handling of a log that has become too long.
        floor = host.turn.steady(TABLET, point[0])
        assert floor is not None
        host._rows.floors.append(floor)
        host._soon()
        leading.copies.sources._pace._rate = 0
        ended = await cluster.ended(victim)
        assert ended.state is CopyState.FAILED, ended
        assert "log" in ended.reason
        assert victim.state() == "TOMBSTONE"
        await is_copied(cluster, victim)

    run(tmp_path, test, SLOW)


def test_rows_that_differ_from_their_source_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped byte of a value, and a lost row: the first fails its checksum, the second the digest."""
    real = source.hot_copy

    def flipped(rows: TabletRows, chunk_bytes: int) -> Iterator[memoryview]:
        for chunk in real(rows, chunk_bytes):
            changed = bytearray(chunk)
            at = changed.find(bytes([7]) * 1000)
            if at >= 0:
                changed[at + 500] ^= 1
            yield memoryview(changed)

    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        await cluster.fails(victim)
        with monkeypatch.context() as patched:
            patched.setattr(source, "hot_copy", flipped)
            await cluster.copy(victim)
            ended = await cluster.ended(victim)
        assert ended.state is CopyState.FAILED, ended
        assert "damaged" in ended.reason
        assert victim.state() == "TOMBSTONE"
        assert files_of(victim, "data") == []
        await is_copied(cluster, victim)

    run(tmp_path, test)


def test_a_busy_source_makes_the_copy_wait(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        await cluster.fails(victim)
        leading = await cluster.leading()
        sessions = leading.copies.sources.sessions
        others = [sessions.begin(f"other{number}", 1, "x", 0) for number in range(4)]
        await cluster.copy(victim)
        await until(cluster.reactor, lambda: victim.jobs()[0].state is CopyState.WAITING, "a job that waits")
        assert "as many copies as it may" in victim.jobs()[0].reason
        for other in others:
            assert other is not None
            sessions.end(other)
        job = await cluster.ended(victim)
        assert job.state is CopyState.DONE, job
        await until(cluster.reactor, lambda: victim.state() == "RUNNING", "the copy takes part")

    run(tmp_path, test)


def test_a_source_that_does_not_have_the_member_refuses(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        await cluster.fails(victim)
        leading = await cluster.leading()
        wrong = CopySource(9, leading.uuid, "127.0.0.1", leading.port)
        await cluster.copy(victim, source=wrong)
        ended = await cluster.ended(victim)
        assert (ended.state, "member 9" in ended.reason) == (CopyState.FAILED, True), ended
        nobody = CopySource(leading.number(), "f" * 32, "127.0.0.1", leading.port)
        await cluster.copy(victim, source=nobody)
        ended = await cluster.ended(victim)
        assert (ended.state, "rejected" in ended.reason) == (CopyState.FAILED, True), ended
        await is_copied(cluster, victim)

    run(tmp_path, test)


def test_a_new_number_begins_only_if_the_store_gives_it(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        changes = {"number": 9, "role": MemberRole.PRE_VOTER}
        answer = await cluster.copy(victim, **changes)
        assert answer.outcome is CopyOutcome.ILLEGAL_STATE, answer
        assert "no session with the store" in answer.reason
        claims = ScriptedClaims("another server has the transition")
        victim.copies.claims = claims
        answer = await cluster.copy(victim, **changes)
        assert (answer.outcome, answer.reason) == (CopyOutcome.ILLEGAL_STATE, "another server has the transition")
        assert claims.asked == [NewMember(TABLET, "table", 9, has_superblock=True)]
        assert victim.state() == "RUNNING"

    run(tmp_path, test)


def test_a_tablet_whose_first_replica_is_being_made_is_not_copied(tmp_path: Path) -> None:
    """Both would write the same files. Tried: without the look at `making` the store is asked for the number."""

    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        claims = victim.copies.claims = ScriptedClaims("another server has the transition")
        victim.running().life.making.add("daughter")
        order = {"tablet": "daughter", "number": 9, "role": MemberRole.PRE_VOTER, "seen": None}
        answer = await cluster.copy(victim, **order)
        assert answer.outcome is CopyOutcome.ILLEGAL_STATE, answer
        assert "is being made" in answer.reason
        victim.running().life.making.discard("daughter")
        await cluster.copy(victim, **order)
        assert len(claims.asked) == 1

    run(tmp_path, test)


def test_a_number_that_the_store_gives_begins_once(tmp_path: Path) -> None:
    """The claim ends when the copy is complete. From then on the replica's own memory allows a copy."""

    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        claims = victim.copies.claims = ScriptedClaims("")
        answer = await cluster.copy(victim, number=9, role=MemberRole.PRE_VOTER)
        assert answer.outcome is CopyOutcome.STARTED, answer
        await cluster.ended(victim, answer.job)
        await until(cluster.reactor, lambda: victim.state() == "RUNNING", "the copy runs")
        assert claims.complete == [(TABLET, 9)]
        answer = await cluster.copy(victim, number=9, role=MemberRole.PRE_VOTER)
        assert answer.outcome is CopyOutcome.STARTED, answer
        await cluster.ended(victim, answer.job)
        assert len(claims.asked) == 1

    run(tmp_path, test)


def test_the_store_sees_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer whose rows arrive slowly is not given up. Bytes that an earlier copy had received are not progress."""
    monkeypatch.setattr(work, "PROGRESS_MS", 0)
    monkeypatch.setattr(work, "SHOW_S", 0.05)

    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        claims = victim.copies.claims = ScriptedClaims("")
        await cluster.copy(victim, number=9, role=MemberRole.PRE_VOTER)
        await until(cluster.reactor, lambda: len(claims.progress) > 1, "progress in the store")
        assert victim.copies.cancel(TABLET)
        job = await cluster.ended(victim)
        assert job.state is CopyState.CANCELED
        claims.progress.clear()
        await cluster.copy(victim, number=9, role=MemberRole.PRE_VOTER)
        later = await cluster.receiving(victim)
        assert later.received < job.received
        assert claims.progress == []
        victim.copies.cancel(TABLET)
        await cluster.ended(victim, later.job)

    run(tmp_path, test, SLOW, rows_are_same=False)


def test_an_order_to_close_ends_the_copy(tmp_path: Path) -> None:
    """The newcomer was removed while it was copied. The order is repeated until the files are gone."""

    async def test(cluster: CopyingCluster) -> None:
        victim = await cluster.follower()
        victim.copies.claims = ScriptedClaims("")
        await cluster.copy(victim, number=9, role=MemberRole.PRE_VOTER)
        await cluster.receiving(victim)
        hosted = HostedTablets(cluster.reactor, victim.running(), victim.links, victim.copies, None)
        assert await hosted.close(TABLET, Stage.REMOVE) == "its copy is being canceled"
        await cluster.ended(victim)
        assert await hosted.close(TABLET, Stage.REMOVE) == ""
        assert victim.state() == "TOMBSTONE"
        assert files_of(victim, "data") == []

    run(tmp_path, test, SLOW, rows_are_same=False)
