"""A replica is copied from another server: real sockets, real disks, real threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coord.peers.reactor import TurnReactor
from regions.messages.copies import CopyOutcome, CopyState
from tests.support.reactors import in_reactor, until
from tests.unit.regionserver.tablets.copying.copying_hosts import TABLET, CopyingCluster


def test_a_failed_replica_is_copied_under_its_number(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = CopyingCluster(reactor, tmp_path)
        cluster.start()
        await cluster.make([TABLET])
        for number in range(40):
            await cluster.put(TABLET, f"key-{number}", bytes(50_000))
        victim = await cluster.follower()
        await cluster.fails(victim)
        await cluster.put(TABLET, "meanwhile", b"1")
        answer = await cluster.copy(victim)
        assert answer.outcome is CopyOutcome.STARTED, answer
        await cluster.put(TABLET, "during", b"2")
        job = await cluster.ended(victim)
        assert job.state is CopyState.DONE, job
        assert job.received > 2_000_000
        await until(cluster.reactor, lambda: victim.state() == "RUNNING", "the copy takes part")
        await cluster.put(TABLET, "after", b"3")
        await cluster.same_rows()
        # The copy is durable: the server starts with it, and votes under its number.
        await victim.stop()
        victim.start()
        await until(cluster.reactor, lambda: victim.state() == "RUNNING", "the copy, after a restart")
        await cluster.same_rows()
        assert victim.running().turn.groups[TABLET].replica.number == victim.number()
        await cluster.stop()

    in_reactor(main, make=TurnReactor)
