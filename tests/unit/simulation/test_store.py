"""The simulated store's turns."""

from __future__ import annotations

from coord.server.clients.pipeline import RESTORED_PER_TURN
from simulation.cluster.store import SimulatedStore
from simulation.engine.chance import SeededRandom
from simulation.engine.network import Network
from simulation.engine.timeline import SECOND, Timeline


def test_each_turn_may_restore_watches_anew() -> None:
    """Else clients that reconnect often enough would wait for ever.

    Edit that makes this fail: `SimulatedNode._turn` does not call `turn_end` of the pipeline.
    """
    timeline = Timeline(SeededRandom("watches"))
    (node,) = SimulatedStore(timeline, Network(timeline), 1, lambda *_: None).nodes
    node.pipeline._restorable = 0
    node.turn_ends()
    timeline.run_until(SECOND)
    assert node.pipeline._restorable == RESTORED_PER_TURN
