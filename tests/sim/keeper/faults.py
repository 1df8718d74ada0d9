"""Faults of a cluster of tablets, and requests of an operator, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from regions.records.model import TableIntent

if TYPE_CHECKING:
    from tests.sim.keeper.world import World


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
        world.remove_voter(world.chance.choice(list(world.groups)))
    elif what < 0.65 and world.groups:
        world.cut_off(world.chance.choice(list(world.groups)))
    elif what < 0.72:
        world.set_intent(world.chance.choice(list(TableIntent)))
    elif what < 0.77:
        power_cut(world)
    elif what < 0.83 and not machine.lives:
        machine.disk.clear()
        world.counts["disk lost"] += 1
    world.after(world.chance.choice((50, 300, 1_000)), lambda: fault(world))


def power_cut(world: World) -> None:
    """Stop all processes and start them again: a cluster startup."""
    world.counts["power cut"] += 1
    world.stop_master()
    for machine in world.machines.values():
        if machine.lives:
            world.stop(machine)
            world.start(machine)
    world.start_master()


#: What a bulk plan of first members may be like.
PLANS: Final = ("whole", "whole", "half", "dead servers", "one server", "late", "never")


class BulkPlan(NamedTuple):
    """What a planner answers, and how late."""

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
