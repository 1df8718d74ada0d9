"""The end of a history: without work all tablets become quiet, and a lost leader is replaced nevertheless."""

from __future__ import annotations

from coord.raft.quorum import majority
from regionserver.tablets.host.group import Group
from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from simulation.tablets.server import SimServer
from simulation.tablets.world import World

#: Every tablet whose members all run is quiet within this many seconds after the last request.
QUIET_S = 10
#: A leader that is lost while its tablet is quiet has a successor within this many seconds: silence, and two elections.
LOST_S = 4
#: Time for which quiet tablets are watched, and number of looks. Late requests of clients may still arrive and wake
#: some.
WATCH_S = 2
LATE_REQUESTS = 4


def check_rest(world: World) -> None:
    """Let tablets become quiet, watch them, and take a leader away. Raise Violation."""
    if not world.play_until(world.now + QUIET_S * SECOND, lambda: not _awake(world)):
        raise world.failure(Violation(f"awake after {QUIET_S} s without work: {_awake(world)}"))
    for _ in range(LATE_REQUESTS):
        before = _sent(world)
        world.play_until(world.now + WATCH_S * SECOND)
        if _sent(world) == before:
            break
    else:
        raise world.failure(Violation(f"tablets without work send messages, awake {_awake(world)}"))
    led = {tablet: world.leaders(tablet) for tablet in world.places}
    victims = [server for tablet, leaders in led.items() for server in leaders if _is_quiet(server, tablet)]
    if victims:
        _lose(world, world.chance.pick(victims))


def _lose(world: World, victim: SimServer) -> None:
    """Kill a server, or replace its process unnoticed. Its tablets must get other leaders without help."""
    tablets = [tablet for tablet in world.places if victim in world.leaders(tablet) and _has_majority(world, tablet)]
    world.counts["quiet_leader_lost"] += 1
    is_replaced = world.chance.happens(0.5)
    world.kill(victim, power=False)
    if is_replaced:
        world.at(world.now + 1, world.restart, victim)

    def waiting() -> list[str]:
        return [tablet for tablet in tablets if not world.leaders(tablet)]

    if not world.play_until(world.now + LOST_S * SECOND, lambda: not waiting()):
        raise world.failure(Violation(f"{victim.name} was lost {LOST_S} s ago, and nobody leads {waiting()}"))


def _has_majority(world: World, tablet: str) -> bool:
    """Return True if the other members can elect a leader."""
    voters = world.configs[tablet].voters
    running = [number for number in voters if world.servers[world.places[tablet][number]].running(tablet) is not None]
    return len(running) > majority(len(voters))


def _awake(world: World) -> list[tuple[str, str]]:
    return [
        (server.name, tablet)
        for server in world.servers.values()
        for tablet, group in _groups(server)
        if not _is_quiet(server, tablet) and _is_whole(world, tablet, group)
    ]


def _groups(server: SimServer) -> list[tuple[str, Group]]:
    groups = {} if server.turn is None else server.turn.groups
    return [(tablet, group) for tablet, group in groups.items() if _runs(server, tablet)]


def _runs(server: SimServer, tablet: str) -> bool:
    group = None if server.turn is None else server.turn.groups.get(tablet)
    return group is not None and not group.failure


def _is_whole(world: World, tablet: str, group: Group) -> bool:
    """Return True if every member of a tablet runs. A member without a running replica keeps its group awake."""
    if group.core.id not in world.places[tablet]:
        return False  # removed, and not deleted yet
    return all(_runs(world.servers[name], tablet) for name in world.places[tablet].values())


def _is_quiet(server: SimServer, tablet: str) -> bool:
    return server.turn is not None and tablet in server.turn.groups and tablet not in server.turn.quiet.awake


def _sent(world: World) -> int:
    return world.counts["messages"] + world.counts["heartbeats_in_beats"]
