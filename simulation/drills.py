"""Drills: scenarios of a simulated cluster, from one named fault to a mix of all faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from simulation.cluster.cluster import UP_WITHIN_S, SimulatedCluster
from simulation.ddl_clients import SimulatedDdlClients
from simulation.engine.timeline import SECOND


def come_up(cluster: SimulatedCluster) -> None:
    """Create a first table and wait until it is open."""
    cluster.operator.create(cluster.regions)
    until = cluster.timeline.now + UP_WITHIN_S * SECOND
    while cluster.timeline.now < until:
        cluster.run_for(0.25)
        if cluster.observer.shadow.tables and not cluster.why_not_recovered():
            return
    cluster.observer.violated(
        f"liveness: the cluster did not come up in {UP_WITHIN_S} s: {cluster.why_not_recovered()}"
    )


def _draw_misbehavior(cluster: SimulatedCluster) -> None:
    """Draw how openers and planners misbehave: slow, hanging or failing."""
    chance, work = cluster.timeline.chance, cluster.setting.work
    work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    work.locks = chance.happens(0.6)
    for name in ("slow_open", "hanging_open", "failing_open", "slow_close", "hanging_close", "failing_close"):
        if chance.happens(0.3):
            setattr(work, name, chance.pick((0.02, 0.1, 0.3)))
    if chance.happens(0.15):
        work.poisoned = [region_id for region_id in cluster.observer.shadow.regions if chance.happens(0.2)]
    if chance.happens(0.3):
        cluster.setting.plan_fails = 0.5
    if chance.happens(0.3):
        cluster.setting.plan_late_s = 5.0


def operate(cluster: SimulatedCluster, pause_s: float) -> None:
    """Run random operations of the operator, one after the other, until the faults end."""
    chance, operator = cluster.timeline.chance, cluster.operator
    until = cluster.setting.work.until
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
        if cluster.timeline.now >= until or not acts:
            return
        act = chance.pick(acts)
        if act is acts[-1]:
            left[0] -= 1
        if left[0] > 0 or act is not acts[-1]:
            act()
        cluster.timeline.later(chance.between(0, 2 * pause_s) * SECOND, next_act)

    next_act()


def random(cluster: SimulatedCluster) -> None:
    """Run a part of all faults with the operator at work. The cluster need not have come up before."""
    chance = cluster.timeline.chance
    if chance.happens(0.8):
        come_up(cluster)
    else:
        cluster.operator.create(cluster.regions)
    _draw_misbehavior(cluster)
    cluster.faults.choose()
    cluster.faults.pause_s = chance.pick((0.4, 1.0, 2.5))
    cluster.faults.start()
    operate(cluster, chance.pick((0.3, 1.0, 3.0)))
    cluster.run_for(cluster.options.duration_s)


def master_failover(cluster: SimulatedCluster) -> None:
    """Kill the active master again and again."""
    _with(cluster, ["kill-active"], 3.0)


def server_crash(cluster: SimulatedCluster) -> None:
    """Kill servers, which start again under the same uuid."""
    _with(cluster, ["kill-server"], 3.0)


def server_freeze(cluster: SimulatedCluster) -> None:
    """Freeze servers for less or more than their lease; they continue with their work."""
    _with(cluster, ["freeze-server"], 2.0)


def _with(cluster: SimulatedCluster, kinds: list[str], pause_s: float) -> None:
    come_up(cluster)
    cluster.setting.work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    cluster.faults.choose(kinds)
    cluster.faults.pause_s = pause_s
    cluster.faults.start()
    operate(cluster, 1.0)
    cluster.run_for(cluster.options.duration_s)


def master_during_bulk(cluster: SimulatedCluster) -> None:
    """Kill the active master while it makes or applies a bulk plan; the next master finishes the plan (X8)."""
    chance = cluster.timeline.chance
    come_up(cluster)
    cluster.setting.work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    cluster.setting.work.slow_open = 0.2
    cluster.setting.plan_late_s = 2.0
    while cluster.timeline.now < cluster.setting.work.until:
        cluster.operator.create(12 + chance.below(20))
        cluster.run_for(chance.between(0, 1.5))
        cluster.faults.kill(cluster.faults.active() or cluster.masters[0])
        cluster.run_for(chance.between(0, 4))


def master_during_apply(cluster: SimulatedCluster) -> None:
    """Kill the active master while an operator submits or applies a plan; the next master continues (N4)."""
    chance = cluster.timeline.chance
    come_up(cluster)
    cluster.setting.work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    cluster.setting.work.slow_open = 0.2
    cluster.operator.create(12 + chance.below(20))
    cluster.run_for(3)
    number = 0
    while cluster.timeline.now < cluster.setting.work.until:
        number += 1
        cluster.operator.apply(f"plan-{number}", 1 + chance.below(10))
        cluster.run_for(chance.between(0, 1.5))
        cluster.faults.kill(cluster.faults.active() or cluster.masters[0])
        cluster.run_for(chance.between(0, 4))


def rolling_restart(cluster: SimulatedCluster) -> None:
    """Stop every process in turn with SIGTERM and start it again."""
    come_up(cluster)
    cluster.setting.work.until = cluster.timeline.now
    for machine in cluster.machines:
        machine.stop()
        cluster.run_for(4)
        machine.start()
        cluster.run_for(4)


def kill_everything(cluster: SimulatedCluster) -> None:
    """Kill all masters and servers at once, and again while they recover."""
    chance = cluster.timeline.chance
    come_up(cluster)
    cluster.setting.work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    while cluster.timeline.now < cluster.setting.work.until:
        cluster.faults.kill_everything()
        cluster.run_for(chance.between(0.2, cluster.options.duration_s / 2))


#: Faults that make masters fail over in a DDL stress run, and additional faults of the store in a part of the runs.
ELECTIONS: Final = ("kill-active", "freeze-active", "end-active-session", "vacate-active")
OUTAGES: Final = (
    "store-pause",
    "store-leader",
    "store-node-alone",
    "break-connection",
    "slow-network",
    "kill-while-sending",
)


def ddl_storm(cluster: SimulatedCluster) -> None:
    """Clients create, alter, rename and delete tables while masters are killed, frozen and deposed (TS-04)."""
    run_ddl_stress(cluster, elections=ELECTIONS, outages=OUTAGES)


def run_ddl_stress(cluster: SimulatedCluster, *, elections: Sequence[str], outages: Sequence[str]) -> None:
    """Run DDL clients with a part of these faults; the catalog must equal the model at the end."""
    chance = cluster.timeline.chance
    come_up(cluster)
    clients = SimulatedDdlClients(cluster, 2 + chance.below(3), chance.pick((0.02, 0.1, 0.4)), chance.pick((4, 4, 12)))
    cluster.setting.work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    if chance.happens(0.3):
        cluster.setting.work.slow_open = 0.2
    kinds = [kind for kind in elections if chance.happens(0.7)] or list(elections)
    kinds += [kind for kind in outages if chance.happens(0.25)]
    cluster.faults.choose(kinds)
    cluster.faults.pause_s = chance.pick((0.5, 1.0, 2.0))
    clients.start()
    cluster.faults.start()
    cluster.run_for(cluster.options.duration_s)
    clients.stop()
    cluster.at_rest.append(clients.check)


def table_creation(cluster: SimulatedCluster) -> None:
    """Create tables while opens hang and fail and masters fail over: regions that cannot be created are replaced."""
    chance, setting, operator = cluster.timeline.chance, cluster.setting, cluster.operator
    setting.limits = msgspec.structs.replace(
        setting.limits,
        start_timeout_ms=2_000,
        open_timeout_ms=3_000,
        create_timeout_ms=chance.pick((1_000, 4_000)),
        attempts_max=chance.pick((2, 8)),
    )
    come_up(cluster)
    work = setting.work
    work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    work.hanging_open, work.failing_open = chance.pick(((0.5, 0.3), (0.9, 0.0), (0.0, 0.9), (0.2, 0.2)))
    work.locks = chance.happens(0.6)
    kinds = ("kill-active", "freeze-active", "kill-server", "freeze-server", "break-connection", "store-pause")
    cluster.faults.choose([kind for kind in kinds if chance.happens(0.4)])
    cluster.faults.pause_s = chance.pick((1.0, 3.0))
    if cluster.faults.kinds:
        cluster.faults.start()
    while cluster.timeline.now < work.until:
        operator.create(1 + chance.below(8), chance.pick((1, 1, 2)))
        if chance.happens(0.3):
            operator.switch()
        cluster.run_for(chance.between(0.5, 3.0))


def fencing(cluster: SimulatedCluster) -> None:
    """Fence and unfence servers while masters and servers fail."""
    chance, work = cluster.timeline.chance, cluster.setting.work
    come_up(cluster)
    work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    cluster.faults.choose(["kill-active", "kill-server", "freeze-active", "break-connection"])
    cluster.faults.pause_s = chance.pick((1.0, 3.0))
    cluster.faults.start()
    while cluster.timeline.now < work.until:
        cluster.operator.fence()
        if chance.happens(0.3):
            cluster.operator.move()
        cluster.run_for(chance.between(0.2, 2.0))


def purging(cluster: SimulatedCluster) -> None:
    """Delete tables and restore them at about the time when their rows are removed, while masters and servers fail."""
    chance, work, operator = cluster.timeline.chance, cluster.setting.work, cluster.operator
    cluster.setting.purge_after_s = chance.pick((0.5, 1.5))
    come_up(cluster)
    work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    cluster.faults.choose(["kill-active", "kill-server", "freeze-active", "freeze-server", "break-connection"])
    cluster.faults.pause_s = chance.pick((1.0, 3.0))
    cluster.faults.start()
    while cluster.timeline.now < work.until:
        operator.create(1 + chance.below(4))
        operator.delete_and_restore(cluster.setting.purge_after_s)
        cluster.run_for(chance.between(0.2, 1.0))


def resharding(cluster: SimulatedCluster) -> None:
    """Split and merge regions, and move, disable and delete, while masters and servers fail at every step (X11)."""
    chance, setting, operator = cluster.timeline.chance, cluster.setting, cluster.operator
    setting.limits = msgspec.structs.replace(setting.limits, resharding_timeout_ms=chance.pick((3_000, 600_000)))
    come_up(cluster)
    work = setting.work
    work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    work.slow_open, work.failing_open = chance.pick(((0.0, 0.0), (0.2, 0.0), (0.1, 0.2)))
    work.locks = chance.happens(0.6)
    kinds = ("kill-active", "freeze-active", "kill-server", "freeze-server", "break-connection", "store-pause")
    cluster.faults.choose([kind for kind in (*kinds, "kill-while-sending") if chance.happens(0.5)])
    cluster.faults.pause_s = chance.pick((0.4, 1.0, 3.0))
    if cluster.faults.kinds:
        cluster.faults.start()
    others = [operator.move, operator.drain, operator.switch, operator.retry_parked]
    while cluster.timeline.now < work.until:
        chance.pick((operator.split, operator.split, operator.merge))()
        if chance.happens(0.2):
            chance.pick(others)()
        cluster.run_for(chance.between(0, 1.5))


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
    "resharding": resharding,
}
