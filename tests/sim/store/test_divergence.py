"""A replica whose state does not follow from the log stops by itself, also during faults, and no other node does."""

from __future__ import annotations

import pytest

from coord.tree.node import SetDataDelta
from simulation.engine.timeline import SECOND
from tests.sim.raft.plan import Plan
from tests.sim.store.faults import Story
from tests.sim.store.world import World
from tests.support.interpreted import is_interpreted

pytestmark = pytest.mark.skipif(
    not is_interpreted(), reason="sockets are put in by a patch, which compiled code ignores; RK_PURE=1 runs it"
)


def _change_one(world: World) -> None:
    """Change one node's tree without the log, in a znode that no client of the simulation reads."""
    # The changed node will be emptied, so no other disk may be missing.
    up = [process for process in world.running() if process.host.is_whole()]
    if len(up) < world.size:
        world.at(world.now + SECOND // 10, _change_one, world)
        return
    process = world.chance.pick(up)
    # Otherwise the replica might pass its state on, to other nodes or to its next start, before the difference is
    # found.
    process.node.snapshot_policy.maybe_take = lambda *_: None
    process.host.is_odd = True
    machine = process.node.machine
    machine.tree.apply(SetDataDelta(b"/zookeeper/quota", b"odd", 1), machine.last_zxid, 0, [])
    world.counts["made_odd"] += 1


def _odd_ones(world: World) -> list[int]:
    """Return the processes whose state still differs from the history."""
    digests = world.check.digests
    machines = [(process.host.id, process.node.machine) for process in world.running()]
    return [number for number, machine in machines if machine.digest() != digests[machine.last_zxid]]


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("size", [3, 5])
def test_odd_replica_stops_and_only_that_one(seed: int, size: int) -> None:
    """Its process ends (or loses its memory first, by a power cut); the store continues and recovers.

    `Process.failed` makes a violation of every other node that stops for this reason.
    """
    world = World(seed, size)
    # Emptying the changed node is only safe if the others are a majority, which moving members could prevent.
    world.members_move = False
    world.at(2 * SECOND, _change_one, world)
    Story(world, Plan(seed, size, 4)).run()
    # In some histories the last node counts again only at the end.
    assert world.play_until(world.now + SECOND, lambda: world.counts["made_odd"] == 1)
    assert world.play_until(world.now + 4 * SECOND, lambda: not _odd_ones(world))
