"""The disks that the simulation may lose: one at a time. A node that waits to be added counts as one."""

from __future__ import annotations

import pytest

from simulation.engine.timeline import SECOND
from tests.sim.store import amnesia
from tests.sim.store.world import Process, World
from tests.support.interpreted import is_interpreted

pytestmark = pytest.mark.skipif(
    not is_interpreted(), reason="sockets are put in by a patch, which compiled code ignores; RK_PURE=1 runs it"
)

STEP_US = 2000


def _peaceful(seed: int) -> World:
    """Return a store of three machines without faults; the third one is not installed yet."""
    world = World(seed, 3)
    world.members_move = world.faulty = False
    world.crash_in_step = 0
    world.hosts[3].is_installed = False
    assert world.play_until(20 * SECOND, lambda: bool(world.check.configs) and world.hosts[1].has_held())
    return world


def _started(world: World, number: int) -> Process:
    """Start a machine for the first time, and return its process."""
    host = world.hosts[number]
    host.is_installed = True
    world.at(world.now, host.start)
    world.play_until(world.now + STEP_US)
    assert host.process is not None
    return host.process


@pytest.mark.parametrize("seed", range(1, 5))
def test_no_disk_is_lost_beside_a_late_starter_that_waits(seed: int) -> None:
    """Its log fills before it counts; with a second disk lost, only one of three voters would be left."""
    world = _peaceful(seed)
    late = _started(world, 3)
    core = late.node.core
    waited = 0
    while not amnesia.may_lose(world, [], world.hosts[1]):
        assert world.now < 60 * SECOND, "the late starter is never let in"
        world.play_until(world.now + STEP_US)
        waited += late.host.has_held() and not world.check.config().counts(3, core.memory)
    assert waited
    assert world.check.config().counts(3, core.memory)


def test_no_disk_is_lost_beside_an_emptied_one() -> None:
    """The operator has emptied a directory: its node has no data until it is started, and counts only later."""
    world = _peaceful(1)
    _started(world, 3)
    assert world.play_until(60 * SECOND, lambda: amnesia.may_lose(world, [], world.hosts[1]))
    emptied = world.hosts[2]
    assert emptied.process is not None
    emptied.process.kill()
    emptied.emptied()
    assert not amnesia.may_lose(world, [], world.hosts[1])
    assert world.play_until(120 * SECOND, lambda: amnesia.may_lose(world, [], world.hosts[1]))
    assert emptied.process is not None
    assert world.check.config().counts(2, emptied.process.node.core.memory)
