"""The balancer's moves of tablets' members: the rounds of `balancer.py`, on a model of the tablets. Pure.

In the model each member of a tablet is a replica of a region on the member's server. A moving member counts at its
target, and members of tablets with unfinished changes do not move. So rounds may follow each other while moves are
under way: each round decides on the state after these moves. Members of tablets that are split or merged stay, too:
their servers copy rows for the daughters, and a merge brings members to the same servers.

Bytes count in steps of GRAIN_BYTES, because the copy of a small tablet costs more than the better balance is worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from regions.balance.balancer import Proposal, proposing
from regions.balance.sizes import CountedStep, RegionSizes
from regions.balance.steps import result_of
from regions.cluster.entities import Region, Replica, Server
from regions.cluster.limits import BalancerConfig
from regions.cluster.state import ClusterState
from regions.messages import BalanceMove
from regions.messages.heartbeat import Measure
from regions.records.intents import TabletIntents, TabletMove
from regions.records.kinds import kind_in_tablets
from regions.records.model import RegionRecord, TabletState
from regions.records.replica_key import parse_replica_key
from regions.replication.keeper import Keeper
from regions.replication.policy.requests import objection_to_tablet_move
from regions.replication.siting import objection_to_space
from regions.replication.tablet import Tablet

#: The reason of the balancer's moves in the intents of a tablet.
REASON: Final = "balance"
#: Sizes of tablets are compared in steps of this size.
GRAIN_BYTES: Final = 16 << 20
#: Tablets that are copied in one step of a round, each some 10 us of processor.
ADDED_AT_ONCE: Final = 500


class TabletRound(NamedTuple):
    """A round about tablets: the reason why no round may begin ("" if it may), and the moves by tablet."""

    blocking: str
    proposal: Proposal
    moves: list[tuple[str, TabletMove]]


NO_MOVES: Final = Proposal([], [], [])


def objection_to_round(keeper: Keeper) -> str:
    """Return why the balancer must not move members now, "" if it may.

    While a server is away, its members may have to be copied elsewhere, and the counts do not include the copies.
    """
    policy = keeper.policy
    if not policy.is_on:
        return "this master changes no members of tablets"
    if policy.outage:
        return policy.outage
    away = sorted(uuid for uuid, count in keeper.loads.items() if count > 0 and uuid not in keeper.servers)
    away = [uuid for uuid in away if uuid not in policy.retiring]
    if away:
        named = ", ".join(away[:3]) + (", ..." if len(away) > 3 else "")
        return f"{len(away)} {'servers' if len(away) > 1 else 'server'} with members of tablets are away: {named}"
    return ""


def under_way(keeper: Keeper) -> Counter[str]:
    """Return the number of the balancer's moves that have not ended, by server: each counts for source and target."""
    found: Counter[str] = Counter()
    for kept in keeper.policy.intents.values():
        for move in kept.moves:
            if move.reason == REASON:
                found.update((move.source, move.target))
    return found


def moves_under_way(keeper: Keeper) -> int:
    """Return the number of the balancer's moves of members that have not ended."""
    return under_way(keeper).total() // 2


def hopeless(keeper: Keeper) -> list[tuple[str, TabletMove]]:
    """Return the balancer's moves whose target cannot take the member any more: they are withdrawn."""
    policy = keeper.policy

    def is_lost(uuid: str) -> bool:
        server = keeper.servers.get(uuid)
        return server is None or uuid in policy.closed or server.leaving or not server.tablets

    return [
        (region_id, move)
        for region_id, kept in policy.intents.items()
        for move in kept.moves
        if move.reason == REASON and is_lost(move.target)
    ]


def tablet_round(
    keeper: Keeper, config: BalancerConfig, now_ms: int, is_resharded: Callable[[str], bool] = lambda _: False
) -> TabletRound:
    """Return the moves of members that a round would begin now. `is_resharded` is as for `deciding_round`."""
    return result_of(deciding_round(keeper, config, now_ms, is_resharded))


def deciding_round(
    keeper: Keeper, config: BalancerConfig, now_ms: int, is_resharded: Callable[[str], bool]
) -> Generator[None, None, TabletRound]:
    """Decide a round in steps, and return the moves of members that it begins.

    `is_resharded` returns True for a tablet that is split or merged.

    The round decides on a copy of the tablets, which are copied at most ADDED_AT_ONCE in a step. Tablets may change
    between two steps. So a member moves only if its tablet is still at rest at the end, with the members that were
    copied. A change of the servers changes the shares of all, so the round begins again.
    """
    while True:
        began_with = _facts(keeper)
        why = objection_to_round(keeper)
        moving = under_way(keeper)
        room = config.tablet_moves_max - moves_under_way(keeper)
        if why or room <= 0:
            return TabletRound(why, msgspec.structs.replace(NO_MOVES, more=room <= 0), [])
        world, sizes = ClusterState(), RegionSizes({}, partial(_in_grains, keeper))
        yield from _copying(world, keeper, is_resharded)
        limits = msgspec.structs.replace(config, moves_max=room, per_server_max=config.tablets_per_server_max)
        found = yield from proposing(world, limits, used=moving, fits=partial(_fits, sizes), sizes=sizes)
        if _facts(keeper) != began_with:
            continue
        return _still_possible(keeper, found, world, now_ms, is_resharded)


def _facts(keeper: Keeper) -> tuple[str, Sequence[tuple[object, ...]]]:
    """Return the facts about all servers that a round depends on, and why none may begin."""
    closed = keeper.policy.closed
    servers = [
        (one.incarnation, one.weight, one.tablets, one.leaving, one.uuid in closed) for one in keeper.servers.values()
    ]
    return objection_to_round(keeper), servers


def _still_possible(
    keeper: Keeper, found: Proposal, world: ClusterState, now_ms: int, is_resharded: Callable[[str], bool]
) -> TabletRound:
    """Return the round with the moves of tablets that are as they were when they were copied to `world`."""
    policy = keeper.policy
    moves: list[tuple[str, TabletMove]] = []
    accepted: list[BalanceMove] = []
    for one in found.moves:
        region_id, _ = parse_replica_key(one.key)
        tablet = keeper.tablets.get(region_id)
        if tablet is None or tablet.record.members != world.regions[region_id].record.members:
            continue
        if not policy.is_at_rest(tablet) or is_resharded(region_id):
            continue
        kept = policy.intents.get(region_id) or TabletIntents(tablet.record.table_id, region_id)
        move = TabletMove(one.source, one.destination, now_ms, REASON)
        if not objection_to_tablet_move(tablet, policy.places, kept, move):
            moves.append((region_id, move))
            accepted.append(one)
    before, after = (
        [msgspec.structs.replace(one, is_tablets=True) for one in groups if one.replicas]
        for groups in (found.before, found.after)
    )
    return TabletRound("", Proposal(accepted, before, after, found.more), moves)


def _copying(world: ClusterState, keeper: Keeper, is_resharded: Callable[[str], bool]) -> Iterator[None]:
    """Add the tablets to `world` as regions whose replicas are open on the servers of their voters, in steps."""
    policy = keeper.policy
    servers = {
        uuid: msgspec.structs.replace(one, kind=kind_in_tablets(one.kind))
        for uuid, one in keeper.servers.items()
        if one.tablets and not one.leaving and uuid not in policy.closed
    }
    world.set_servers(servers, ())
    pace = CountedStep(ADDED_AT_ONCE)
    for region_id in list(keeper.tablets):
        if pace.is_over(1):
            yield
        tablet = keeper.tablets.get(region_id)
        if tablet is not None and tablet.record.state is TabletState.RUNNING:
            may_move = policy.is_at_rest(tablet) and not is_resharded(region_id)
            _add(world, tablet, policy.intents.get(region_id), may_move=may_move)


def _add(world: ClusterState, tablet: Tablet, kept: TabletIntents | None, *, may_move: bool) -> None:
    record = tablet.table.record
    table = world.tables.get(record.table_id) or world.put_table(record, tablet.table.version)
    region = Region(table, _without_estimate(tablet.record), tablet.version)
    table.regions[tablet.region_id] = world.regions[tablet.region_id] = region
    targets = _targets(kept)
    there = {targets.get(one.uuid, one.uuid): one.number for one in tablet.record.members}
    for uuid, number in there.items():
        replica = Replica(region, number)
        server = world.servers.get(uuid)
        if may_move:
            replica.open_on = server
        else:
            replica.coming_to = server
        region.replicas += (replica,)


def _without_estimate(record: RegionRecord) -> RegionRecord:
    """Return the record without the size from the table's creation: a guess does not justify the copy of a member."""
    return record if not record.size_bytes else msgspec.structs.replace(record, size_bytes=0)


def _in_grains(keeper: Keeper, region_id: str) -> Measure | None:
    tablet = keeper.tablets.get(region_id)  # it may have been forgotten between two steps
    found = None if tablet is None else tablet.measure
    return None if found is None else found._replace(size_bytes=found.size_bytes // GRAIN_BYTES * GRAIN_BYTES)


def _targets(kept: TabletIntents | None) -> Mapping[str, str]:
    return {} if kept is None else {one.source: one.target for one in kept.moves}


def _fits(sizes: RegionSizes, replica: Replica, server: Server) -> bool:
    """Return True if a server has room for a copy of the replica, or nobody knows how much it has."""
    return not objection_to_space(server.record, sizes.of(replica.region).size_bytes)
