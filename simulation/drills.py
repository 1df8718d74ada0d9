"""Drills: what happens to a simulated cluster, from a single named event to everything at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from simulation.cluster.world import UP_WITHIN_S, SimulatedCluster
from simulation.engine.timeline import SECOND
from simulation.storm import DdlStorm


def come_up(world: SimulatedCluster) -> None:
    """A first table is created and open."""
    world.operator.create(world.regions)
    until = world.timeline.now + UP_WITHIN_S * SECOND
    while world.timeline.now < until:
        world.run_for(0.25)
        if world.observer.shadow.tables and not world.why_unsettled():
            return
    world.observer.violated(f"liveness: the cluster did not come up in {UP_WITHIN_S} s: {world.why_unsettled()}")


def _trouble(world: SimulatedCluster) -> None:
    """The operator at work, openers that are slow, hang or fail, planners that fail or are late."""
    chance, work = world.timeline.chance, world.setting.work
    work.until = world.timeline.now + int(world.options.duration_s * SECOND)
    work.locks = chance.happens(0.6)
    for name in ("slow_open", "hanging_open", "failing_open", "slow_close", "hanging_close", "failing_close"):
        if chance.happens(0.3):
            setattr(work, name, chance.pick((0.02, 0.1, 0.3)))
    if chance.happens(0.15):
        work.poisoned = [region_id for region_id in world.observer.shadow.regions if chance.happens(0.2)]
    if chance.happens(0.3):
        world.setting.plan_fails = 0.5
    if chance.happens(0.3):
        world.setting.plan_late_s = 5.0


def operate(world: SimulatedCluster, pause_s: float) -> None:
    """One thing after the other, until the faults are over."""
    chance, operator = world.timeline.chance, world.operator
    until = world.setting.work.until
    acts: list[Callable[[], None]] = [
        operator.switch,
        operator.move,
        operator.move,
        operator.drain,
        operator.retry_parked,
        lambda: operator.create(1 + chance.below(12), chance.pick((1, 1, 2)), system=chance.happens(0.2)),
    ]
    acts = [act for act in acts if chance.happens(0.6)]
    left = [6]

    def next_act() -> None:
        if world.timeline.now >= until or not acts:
            return
        act = chance.pick(acts)
        if act is acts[-1]:
            left[0] -= 1
        if left[0] > 0 or act is not acts[-1]:
            act()
        world.timeline.later(chance.between(0, 2 * pause_s) * SECOND, next_act)

    next_act()


def random(world: SimulatedCluster) -> None:
    """A part of all faults, with the operator at work; the cluster need not have come up before."""
    chance = world.timeline.chance
    if chance.happens(0.8):
        come_up(world)
    else:
        world.operator.create(world.regions)
    _trouble(world)
    world.faults.choose()
    world.faults.pause_s = chance.pick((0.4, 1.0, 2.5))
    world.faults.start()
    operate(world, chance.pick((0.3, 1.0, 3.0)))
    world.run_for(world.options.duration_s)


def master_failover(world: SimulatedCluster) -> None:
    """The active master is killed, again and again."""
    _with(world, ["kill-active"], 3.0)


def server_crash(world: SimulatedCluster) -> None:
    """Servers are killed and start again under the same uuid."""
    _with(world, ["kill-server"], 3.0)


def server_freeze(world: SimulatedCluster) -> None:
    """Servers stand still, for longer than their lease or not, and go on with what they had in hand."""
    _with(world, ["freeze-server"], 2.0)


def _with(world: SimulatedCluster, kinds: list[str], pause_s: float) -> None:
    come_up(world)
    world.setting.work.until = world.timeline.now + int(world.options.duration_s * SECOND)
    world.faults.choose(kinds)
    world.faults.pause_s = pause_s
    world.faults.start()
    operate(world, 1.0)
    world.run_for(world.options.duration_s)


def master_during_bulk(world: SimulatedCluster) -> None:
    """The active master dies while a bulk plan is made or carried out; the next one finishes it (X8)."""
    chance = world.timeline.chance
    come_up(world)
    world.setting.work.until = world.timeline.now + int(world.options.duration_s * SECOND)
    world.setting.work.slow_open = 0.2
    world.setting.plan_late_s = 2.0
    while world.timeline.now < world.setting.work.until:
        world.operator.create(12 + chance.below(20))
        world.run_for(chance.between(0, 1.5))
        world.faults.kill(world.faults.active() or world.masters[0])
        world.run_for(chance.between(0, 4))


def master_during_apply(world: SimulatedCluster) -> None:
    """The active master dies while an operator's plans are handed over or carried out; the next one goes on (N4)."""
    chance = world.timeline.chance
    come_up(world)
    world.setting.work.until = world.timeline.now + int(world.options.duration_s * SECOND)
    world.setting.work.slow_open = 0.2
    world.operator.create(12 + chance.below(20))
    world.run_for(3)
    number = 0
    while world.timeline.now < world.setting.work.until:
        number += 1
        world.operator.apply(f"plan-{number}", 1 + chance.below(10))
        world.run_for(chance.between(0, 1.5))
        world.faults.kill(world.faults.active() or world.masters[0])
        world.run_for(chance.between(0, 4))


def rolling_restart(world: SimulatedCluster) -> None:
    """Every process in turn is stopped in order and started again."""
    come_up(world)
    world.setting.work.until = world.timeline.now
    for machine in world.machines:
        machine.stop()
        world.run_for(4)
        machine.start()
        world.run_for(4)


def kill_everything(world: SimulatedCluster) -> None:
    """All masters and servers die at once and start again, and once more while they recover."""
    chance = world.timeline.chance
    come_up(world)
    world.setting.work.until = world.timeline.now + int(world.options.duration_s * SECOND)
    while world.timeline.now < world.setting.work.until:
        world.faults.kill_everything()
        world.run_for(chance.between(0.2, world.options.duration_s / 2))


#: What makes masters change in a storm; and what the store does besides, in a part of the runs.
ELECTIONS: Final = ("kill-active", "freeze-active", "end-active-session", "vacate-active")
OUTAGES: Final = (
    "store-pause",
    "store-leader",
    "store-node-alone",
    "break-connection",
    "slow-network",
    "kill-while-sending",
)


def ddl_storm(world: SimulatedCluster) -> None:
    """Clients create, alter, rename and delete tables while masters are killed, frozen and deposed (TS-04)."""
    storm(world, elections=ELECTIONS, outages=OUTAGES)


def storm(world: SimulatedCluster, *, elections: Sequence[str], outages: Sequence[str]) -> None:
    """A storm of operations with a part of these faults; the catalogue must equal the model when it is over."""
    chance = world.timeline.chance
    come_up(world)
    clients = DdlStorm(world, 2 + chance.below(3), chance.pick((0.02, 0.1, 0.4)), chance.pick((4, 4, 12)))
    world.setting.work.until = world.timeline.now + int(world.options.duration_s * SECOND)
    if chance.happens(0.3):
        world.setting.work.slow_open = 0.2
    kinds = [kind for kind in elections if chance.happens(0.7)] or list(elections)
    kinds += [kind for kind in outages if chance.happens(0.25)]
    world.faults.choose(kinds)
    world.faults.pause_s = chance.pick((0.5, 1.0, 2.0))
    clients.start()
    world.faults.start()
    world.run_for(world.options.duration_s)
    clients.stop()
    world.at_rest.append(clients.check)


def table_creation(world: SimulatedCluster) -> None:
    """Tables are made while opens hang and fail and masters change: regions that cannot be created are replaced."""
    chance, setting, operator = world.timeline.chance, world.setting, world.operator
    setting.limits = msgspec.structs.replace(
        setting.limits,
        start_timeout_ms=2_000,
        open_timeout_ms=3_000,
        create_timeout_ms=chance.pick((1_000, 4_000)),
        attempts_max=chance.pick((2, 8)),
    )
    come_up(world)
    work = setting.work
    work.until = world.timeline.now + int(world.options.duration_s * SECOND)
    work.hanging_open, work.failing_open = chance.pick(((0.5, 0.3), (0.9, 0.0), (0.0, 0.9), (0.2, 0.2)))
    work.locks = chance.happens(0.6)
    kinds = ("kill-active", "freeze-active", "kill-server", "freeze-server", "break-connection", "store-pause")
    world.faults.choose([kind for kind in kinds if chance.happens(0.4)])
    world.faults.pause_s = chance.pick((1.0, 3.0))
    if world.faults.kinds:
        world.faults.start()
    while world.timeline.now < work.until:
        operator.create(1 + chance.below(8), chance.pick((1, 1, 2)))
        if chance.happens(0.3):
            operator.switch()
        world.run_for(chance.between(0.5, 3.0))


def fencing(world: SimulatedCluster) -> None:
    """Servers are fenced and unfenced by the operator, while masters and servers come and go."""
    chance, work = world.timeline.chance, world.setting.work
    come_up(world)
    work.until = world.timeline.now + int(world.options.duration_s * SECOND)
    world.faults.choose(["kill-active", "kill-server", "freeze-active", "break-connection"])
    world.faults.pause_s = chance.pick((1.0, 3.0))
    world.faults.start()
    while world.timeline.now < work.until:
        world.operator.fence()
        if chance.happens(0.3):
            world.operator.move()
        world.run_for(chance.between(0.2, 2.0))


def purging(world: SimulatedCluster) -> None:
    """Tables are deleted, and brought back about when their rows are removed, while masters and servers come and go."""
    chance, work, operator = world.timeline.chance, world.setting.work, world.operator
    world.setting.purge_after_s = chance.pick((0.5, 1.5))
    come_up(world)
    work.until = world.timeline.now + int(world.options.duration_s * SECOND)
    world.faults.choose(["kill-active", "kill-server", "freeze-active", "freeze-server", "break-connection"])
    world.faults.pause_s = chance.pick((1.0, 3.0))
    world.faults.start()
    while world.timeline.now < work.until:
        operator.create(1 + chance.below(4))
        operator.remove_and_bring_back(world.setting.purge_after_s)
        world.run_for(chance.between(0.2, 1.0))


DRILLS: Final[dict[str, Callable[[SimulatedCluster], None]]] = {
    "random": random,
    "master-failover": master_failover,
    "server-crash": server_crash,
    "server-freeze": server_freeze,
    "master-during-bulk": master_during_bulk,
    "master-during-apply": master_during_apply,
    "rolling-restart": rolling_restart,
    "kill-everything": kill_everything,
    "ddl-storm": ddl_storm,
    "table-creation": table_creation,
    "fencing": fencing,
    "purging": purging,
}
