"""Faults of a cluster of tablets, and requests of an operator, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from regions.records.members import ConfigId
from regions.records.model import TableIntent, TabletState

if TYPE_CHECKING:
    from tests.sim.keeper.world import World

#: From a leader's cut to the change of the configuration by the next one, which is elected before that.
CHANGED_MS: Final = 1_000


def fault(world: World) -> None:
    """Inject one fault, or send one request of an operator."""
    if world.calm:
        return
    machine = world.chance.choice(list(world.machines.values()))
    what = world.chance.random()
    if what < 0.35:
        if machine.lives:
            world.stop(machine)
        else:
            world.start(machine)
    elif what < 0.5:
        if world.master is None:
            world.start_master()
        else:
            world.stop_master()
    elif what < 0.6 and world.groups:
        remove_voter(world, world.chance.choice(list(world.groups)))
    elif what < 0.65 and world.groups:
        cut_off(world, world.chance.choice(list(world.groups)))
    elif what < 0.72:
        world.set_intent(world.chance.choice(list(TableIntent)))
    elif what < 0.77:
        power_cut(world)
    elif what < 0.83 and not machine.lives and world.loses_disks:
        machine.disk.clear()
        world.counts["disk lost"] += 1
    world.after(world.pause * world.chance.choice((50, 300, 1_000)), lambda: fault(world))


def remove_voter(world: World, region_id: str) -> None:
    """Let a leader commit a configuration without one of the other voters."""
    group = world.groups[region_id]
    others = [one for one in group.members if one.number != group.leader]
    is_running = world.regions[region_id][0].state is TabletState.RUNNING
    if not is_running or world.is_sealed(region_id) or not group.leader or len(others) < 2:
        return
    gone = world.chance.choice(others)
    left = tuple(one for one in group.members if one != gone)
    group.index += 1
    group.config_id = ConfigId(group.term, group.index)
    group.configs[group.config_id] = left
    world.counts["voter removed"] += 1


def cut_off(world: World, region_id: str) -> None:
    """Cut a leader off from all other members but not from the master. It does not know that another member leads
    by now, and that the others have changed the configuration."""
    group = world.groups[region_id]
    if group.leader and group.cut_off is None:
        group.cut_off = (group.leader, group.term, group.config_id)
        world.counts["leader cut off"] += 1
        world.after(CHANGED_MS, lambda: remove_voter(world, region_id))


def power_cut(world: World) -> None:
    """Stop all processes and start them again: a cluster startup."""
    world.counts["power cut"] += 1
    world.stop_master()
    for machine in world.machines.values():
        if machine.lives:
            world.stop(machine)
            world.start(machine)
    world.start_master()


#: Kinds of bulk plans of first members.
PLANS: Final = ("whole", "whole", "half", "dead servers", "one server", "late", "never")


class BulkPlan(NamedTuple):
    """The answer of a planner, and its delay."""

    plan_id: str
    servers: dict[str, str]
    delay_ms: int


def bulk_plan(world: World, keys: list[str]) -> BulkPlan | None:
    """Return a plan for the servers of the time of the request: a whole one, or with what can go wrong."""
    kind = world.chance.choice(PLANS) if not world.calm else "whole"
    alive = [one.uuid for one in world.machines.values() if one.lives or kind == "dead servers"]
    world.counts[f"plan: {kind}"] += 1
    if kind == "never" or not alive:
        return None
    first, step = world.chance.randrange(len(alive)), 0 if kind == "one server" else 1
    servers = {key: alive[(first + step * at) % len(alive)] for at, key in enumerate(keys)}
    if kind == "half":
        servers = {key: servers[key] for key in keys[: len(keys) // 2]}
    return BulkPlan(f"plan-{kind}", servers, 6_000 if kind == "late" else world.chance.randint(1, 1_000))
