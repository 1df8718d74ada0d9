"""A member that was away for so long that the leader's log is gone behind it: real sockets, real disks, real
threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred

from coord.peers.reactor import TurnReactor
from regions.messages.heartbeat import ReplicaState
from regions.records.members import MemberRole
from regionserver.tablets.copying.messages import CopyState, SeenReplica
from regionserver.tablets.host.wanted_copies import CopyWanted
from regionserver.tablets.process.floors import FORCED_SEGMENTS
from regionserver.tablets.process.interfaces import HostSettings
from tests.support.reactors import in_reactor, until
from tests.unit.regionserver.tablets.copying.copying_hosts import TABLET, CopyingCluster

#: Rows of half a segment: the log is forced to drop what the member lacks. So is the memory.
SEGMENT_BYTES = 200_000


def test_a_member_that_lags_beyond_the_log_is_copied_under_its_number(tmp_path: Path) -> None:
    """It runs, and can never take part again by itself."""

    async def main(reactor: Any) -> None:
        settings = HostSettings(threads=2, hand_over_s=0.2, segment_bytes=SEGMENT_BYTES, memory_bytes=SEGMENT_BYTES)
        cluster = CopyingCluster(reactor, tmp_path, settings=settings)
        cluster.start()
        await cluster.make([TABLET])
        await cluster.put(TABLET, "first", b"1")
        away = await cluster.follower()
        await away.stop()
        for number in range(2 * FORCED_SEGMENTS + 8):
            await cluster.put(TABLET, f"k{number}", bytes(SEGMENT_BYTES // 2))
        leader = await cluster.leading()
        await until(
            reactor,
            lambda: leader.running()._log.shared.entries_from(_slot(leader), 3, 1)[0] is None,
            "a log without the entries that the member lacks",
        )
        asked: list[CopyWanted] = []

        def ask(wanted: CopyWanted) -> Deferred[Any]:
            asked.append(wanted)
            return Deferred.fromCoroutine(copy(wanted))

        async def copy(wanted: CopyWanted) -> None:
            local = away.copies.local(TABLET)
            assert local is not None
            seen = SeenReplica(local.number, ReplicaState.RUNNING, local.last_term, local.last_index)
            await cluster.copy(away, number=wanted.number, role=wanted.role, term=wanted.term, seen=seen)

        leader.running().members.ask_for_copy = ask
        away.start()
        job = await cluster.ended(away)
        assert job.state is CopyState.DONE, job
        await cluster.same_rows()
        (first, *_) = asked
        assert (first.number, first.role, first.word) == (away.number(), MemberRole.VOTER, None)
        assert first.lacks >= 2  # the first row, or the next one if the member had that before it stopped
        assert away.running().turn.groups[TABLET].replica.number == away.number()
        await cluster.put(TABLET, "last", b"2")
        await cluster.same_rows()
        await cluster.stop()

    in_reactor(main, make=TurnReactor)


def _slot(machine: Any) -> int:
    found: int = machine.running().turn.groups[TABLET].replica.slot
    return found
