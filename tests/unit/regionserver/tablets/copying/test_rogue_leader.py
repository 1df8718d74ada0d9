"""Kudu's rogue leader: paused, deposed, and then it continues with its outdated state. Real sockets, disks and threads.

While the leader was paused, another one was elected, a replica was removed and made again under a later number. The
orders of the former leader arrive at each of these stages. They change no file: nothing is quarantined or deleted.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from regions.records.members import MemberRole
from regionserver.tablets.copying.messages import CopyOutcome, CopyState, StartTabletCopy
from regionserver.tablets.hosting import HostedTablets
from regionserver.tablets.order_plans import Stage
from tests.support.reactors import until
from tests.unit.regionserver.tablets.copying.copying_hosts import TABLET, CopyingCluster, CopyingMachine, files_of
from tests.unit.regionserver.tablets.copying.test_copies import ScriptedClaims, run


async def goes_on(order: StartTabletCopy, victim: CopyingMachine, outcome: CopyOutcome) -> None:
    """Deliver the former leader's order, based on its former or its present knowledge. The order must change
    nothing."""
    before = files_of(victim), victim.state(), victim.seen()
    jobs = len(victim.jobs())
    for seen in (order.seen, victim.seen()):
        answer = await victim.copies.answer(replace(order, seen=seen))
        assert answer.outcome is outcome, answer
    assert (files_of(victim), victim.state(), victim.seen()) == before
    assert len(victim.jobs()) == jobs


def test_a_rogue_leader_quarantines_nothing(tmp_path: Path) -> None:
    async def test(cluster: CopyingCluster) -> None:
        rogue = await cluster.leading()
        victim = await cluster.follower()
        # The outdated state of the former leader: it leads, and the victim's replica needs a copy.
        order = await cluster.order(victim)
        heir = next(one for name in cluster.wires.machines if (one := cluster.at(name)) not in (rogue, victim))
        rogue.running().members.transfer(TABLET, heir.number())
        await until(cluster.reactor, lambda: heir.running().leader_of(TABLET)[1] == heir.number(), "the heir leads")
        await cluster.put(TABLET, "later", b"1")
        await cluster.same_rows()
        await goes_on(order, victim, CopyOutcome.BAD_TERM)

        # Its replica is removed: the tombstone still knows the later term.
        hosted = HostedTablets(cluster.reactor, victim.running(), victim.links, victim.copies, None)
        assert await hosted.close(TABLET, Stage.REMOVE) == ""
        assert victim.state() == "TOMBSTONE"
        await goes_on(order, victim, CopyOutcome.BAD_TERM)

        # A new member is made on the same server, under a later number.
        victim.copies.claims = ScriptedClaims("")
        answer = await cluster.copy(victim, number=9, role=MemberRole.PRE_VOTER)
        assert answer.outcome is CopyOutcome.STARTED, answer
        meanwhile = await victim.copies.answer(order)
        assert meanwhile.outcome is CopyOutcome.ALREADY_INPROGRESS, meanwhile
        job = await cluster.ended(victim, answer.job)
        assert job.state is CopyState.DONE, job
        await until(cluster.reactor, lambda: victim.state() == "RUNNING", "the new member takes part")
        # Not even in the later term: the number is a former one.
        for term in (order.term, order.term + 100):
            await goes_on(replace(order, term=term), victim, CopyOutcome.ILLEGAL_STATE)
        assert await cluster.get(TABLET, "later") == b"1"

    run(tmp_path, test, rows_are_same=False)
