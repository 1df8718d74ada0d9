"""Planted bugs of the recorded history. The comparison with the store's log must find each of them."""

from __future__ import annotations

from typing import Any
from unittest import mock

from master import active
from master.assignment import history_writer as module
from master.assignment.history_writer import HistoryPage, HistoryWriter
from regions.cluster import history
from regions.cluster.history import Segment, unpack
from regions.transitions import trail
from regions.transitions.entries import HistoryEntry
from regions.transitions.states import Actor
from regionserver.replica.machine import Replicas
from simulation.cluster.cluster import SimulatedCluster
from simulation.drills import come_up, operate
from simulation.engine.timeline import SECOND
from tests.sim.cluster.planted import Bug, trouble
from tests.support.planted import Patch, instead


def quick_merges() -> list[Patch]:
    """Merge segments as soon as there are two, so that a short run has many merges."""
    return [mock.patch.object(history, "MERGE_AT", 2), mock.patch.object(module, "COMPACT_MS", 0)]


def lost_answers(cluster: SimulatedCluster) -> None:
    """Break the active master's connection to the store again and again while its multis are in flight."""
    come_up(cluster)
    cluster.setting.work.until = cluster.timeline.now + 12 * SECOND
    operate(cluster, 0.3)
    network, chance = cluster.network, cluster.timeline.chance
    nodes = {node.host for node in cluster.store.nodes}
    while cluster.timeline.now < cluster.setting.work.until:
        active = cluster.faults.active()
        for end in [one for one in network.ends if one.peer.host in nodes and not one.is_closed]:
            if active is not None and end.host == active.host and chance.happens(0.3):
                network.break_connection(end)
        if chance.happens(0.1):
            cluster.operator.create(8)
        cluster.run_for(chance.between(0.005, 0.15))


class FoundStatesTold(Bug):
    """A new master records the states that it finds as if they were steps."""

    def patches(self) -> list[Patch]:
        async def begin(self: HistoryWriter, uuid: str, address: str) -> None:
            await was(self, uuid, address)
            writers.append(self)

        def take_over(assigner: Any, loaded: Any, transitions: Any, *rest: Any) -> Any:
            for record, _ in transitions:
                state = record.state.value
                writers[-1].note(
                    HistoryEntry(0, record.key, Actor.MASTER.value, state, state, "found", "", record.epoch)
                )
            return real(assigner, loaded, transitions, *rest)

        #: Writers of history that have begun; the last one is that of the present active master.
        writers: list[HistoryWriter] = []
        was, real = HistoryWriter.begin, active.take_over
        return [instead(HistoryWriter, "begin", begin), instead(active, "take_over", take_over)]

    def script(self, cluster: SimulatedCluster) -> None:
        def slow(cluster: SimulatedCluster) -> None:
            cluster.setting.work.slow_open = 0.5

        trouble(cluster, ["kill-active"], 0.5, slow)


class LostAnswerToldTwice(Bug):
    """A page is written again after its answer was lost, although its multi may have been performed."""

    def patches(self) -> list[Patch]:
        def lost(self: HistoryPage) -> None:
            self._history_writer.finish_page(self, is_there=False)
            self._history_writer.log.put_back(unpack(self.op.data))  # type: ignore[union-attr]

        return [instead(HistoryPage, "lost", lost)]

    def script(self, cluster: SimulatedCluster) -> None:
        lost_answers(cluster)


class MergedOutOfOrder(Bug):
    """Segments before and after a page with an unknown outcome are merged, which changes the order of the steps."""

    seeds = 30

    def patches(self) -> list[Patch]:
        def in_order(self: HistoryWriter) -> list[Segment]:
            return sorted(self._segments)

        return [*quick_merges(), instead(HistoryWriter, "_in_order", in_order)]

    def script(self, cluster: SimulatedCluster) -> None:
        lost_answers(cluster)


class StepsOfServersForgotten(Bug):
    """A server announces a region as open without the preceding steps."""

    def patches(self) -> list[Patch]:
        def announce(self: Replicas, replica: Any, now_ms: int) -> None:
            with mock.patch.object(trail, "add", lambda _took, at_ms: (at_ms,)):
                real(self, replica, now_ms)

        real = Replicas._announce
        return [instead(Replicas, "_announce", announce)]


class Sound(Bug):
    """No bug: with the scripts above, and as many merges, the history equals the log."""

    def patches(self) -> list[Patch]:
        return quick_merges()

    def script(self, cluster: SimulatedCluster) -> None:
        if cluster.options.seed % 2:
            cluster.network.heavy = 0.3
        lost_answers(cluster)


HISTORY_BUGS: list[type[Bug]] = [
    FoundStatesTold,
    LostAnswerToldTwice,
    MergedOutOfOrder,
    StepsOfServersForgotten,
]
