"""The engines by name, and their common steps: from placements to leftovers, repair and the numbered plan.

    greedy    one pass by benefit over the whole problem; for small and incremental work, and the fallback for all
    flow      the best possible choice of good places, by an exact flow; needs OR-tools
    sharded   an exact flow per shard and round; the Spark job computes the same plan, bit for bit

All end in `finish`: place leftovers by classes, resolve conflicts by chains of moves, number replicas, compute the
digest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from regions.plan.artifact.digest import plan_digest
from regions.plan.engines.flow import flow_value, solve_exact
from regions.plan.engines.greedy import take_best
from regions.plan.engines.leftover import LeftoverClass, spread
from regions.plan.engines.repair import Repair
from regions.plan.engines.shards import ROUNDS, Held, Shards, shard_count
from regions.plan.problem.model import BadInput, Bools, Deadline, Ints, Params, Plan, PlanRows, Snapshot, Stats, Texts
from regions.plan.problem.numbered import NumberedProblem, encode, is_degraded
from regions.plan.problem.room import Room

#: `greedy.take_best` or `flow.solve_exact`: which candidates become replicas.
Choose = Callable[..., Bools]


def plan(
    snapshot: Snapshot,
    params: Params | None = None,
    deadline: Deadline | None = None,
    *,
    engine: str = "greedy",
    shards: int | None = None,
) -> Plan:
    """Return a place for every replica. The same input in any row order gives the same plan.

    `deadline` returns the seconds left. When they run out the plan is still complete, but may break rules that a
    chain of moves would have kept (`verify` lists them). `shards` overrides how many shards the `sharded` engine makes.

    Raise NoServers, ConflictingRegion, BadInput.
    """
    return plan_encoded(snapshot, params, deadline, engine=engine, shards=shards)[0]


def plan_encoded(
    snapshot: Snapshot,
    params: Params | None = None,
    deadline: Deadline | None = None,
    *,
    engine: str = "greedy",
    shards: int | None = None,
) -> tuple[Plan, NumberedProblem]:
    """Return `plan`'s result and the numbered problem, so that a verifier need not number a million regions again."""
    ignored: dict[str, int] = {}
    problem = encode(snapshot, params or Params(), ignored)
    stats = first_stats(problem, ignored, blocks=len(snapshot.blocks))
    if engine == "greedy":
        taken = solve_whole(problem, take_best)
    elif engine == "flow":
        taken = solve_whole(problem, solve_exact)
        stats.value_max = flow_value(problem, taken)
    elif engine == "sharded":
        stats.shards = shards or shard_count(int(problem.want.sum()), len(problem.fleet))
        taken = solve_shards(problem, stats.shards)
    else:
        raise BadInput(f"no engine {engine!r}: greedy, flow and sharded plan in this process")
    stats.engine = engine
    return finish(problem, taken, deadline, stats), problem


def first_stats(problem: NumberedProblem, ignored: dict[str, int], *, blocks: int) -> Stats:
    """Return the figures that follow from the input alone."""
    return Stats(
        regions=len(problem),
        replicas=int(problem.want.sum()),
        servers=problem.fleet.live,
        eligible_servers=len(problem.fleet),
        groups=len(problem.fleet.groups),
        tables=len({table for _, table in problem.tables.pairs}),
        ignored=dict(sorted(ignored.items())),
        unassignable=problem.unassignable,
        under_replicated=problem.under_replicated,
        degraded=is_degraded(blocks, ignored),
        quota_adjusted=problem.quotas.adjusted,
        tables_raised=len(problem.quotas.raised),
    )


def per_rack(problem: NumberedProblem) -> Ints:
    """Return how many replicas of each region may share a rack before any rack must take more: 1 if racks suffice."""
    racks = np.append(problem.fleet.group_racks, 1)[problem.tables.group][problem.table]
    allowance: Ints = np.maximum(problem.want // np.maximum(racks, 1), 1)
    return allowance


def solve_whole(problem: NumberedProblem, choose: Choose) -> Ints:
    """Return the candidates (numbers, ascending) that `choose` takes over the whole problem."""
    room = Room.whole(problem.quotas, problem.tables.group, problem.fleet.group)
    taken = choose(
        problem.table,
        problem.want,
        problem.cand_region,
        problem.cand_server,
        problem.cand_benefit,
        problem.fleet.rack,
        problem.fleet.group,
        room,
        per_rack=per_rack(problem),
    )
    return np.flatnonzero(taken)


def solve_shards(problem: NumberedProblem, shards: int, rounds: int = ROUNDS) -> Ints:
    """Return the candidates (numbers, ascending) of exact flows over shards, recut and solved again `rounds` times."""
    taken = np.zeros(len(problem.cand_region), dtype=np.bool_)
    for nth_round in range(rounds + 1 if shards > 1 else 1):
        cut = Shards(problem.fleet, problem.tables, problem.quotas, shards, nth_round)
        shard_of = cut.of_regions(lambda rows: problem.region_ids[rows].tolist(), problem.table)
        held = _held_by_shard(problem, taken, shard_of)
        for shard in range(shards):
            rows = np.flatnonzero(shard_of[problem.cand_region] == shard)
            taken[rows] = _solve_shard(problem, cut, shard, shard_of, rows, held)
    return np.flatnonzero(taken)


def _held_by_shard(problem: NumberedProblem, taken: Bools, shard_of: Ints) -> Held:
    """Return the replicas taken so far, by the current shard of their regions."""
    servers, cells = len(problem.fleet), len(problem.tables) * len(problem.fleet)
    region = problem.cand_region[taken]
    keys = shard_of[region] * cells + problem.table[region] * servers + problem.cand_server[taken]
    return Held(servers, cells, keys, np.ones(len(keys), dtype=np.int64))


def _solve_shard(problem: NumberedProblem, cut: Shards, shard: int, shard_of: Ints, rows: Ints, held: Held) -> Bools:
    """Return which of `rows`, the candidates of one shard, the shard takes."""
    regions = np.flatnonzero(shard_of == shard)
    number = np.full(len(problem), -1)
    number[regions] = np.arange(len(regions))
    return solve_exact(
        np.searchsorted(cut.tables_of(shard), problem.table[regions]),
        problem.want[regions],
        number[problem.cand_region[rows]],
        problem.cand_server[rows],
        problem.cand_benefit[rows],
        problem.fleet.rack,
        problem.fleet.group,
        cut.room(shard, held),
        per_rack=per_rack(problem)[regions],
    )


def finish(problem: NumberedProblem, taken: Ints, deadline: Deadline | None, stats: Stats) -> Plan:
    """Return the plan for the candidates taken so far: leftovers, repair, replica numbers, digest, value."""
    region, server = problem.cand_region[taken], problem.cand_server[taken]
    stats.placed_by_benefit = len(taken)
    room = Room.after(problem.quotas, problem.tables.group, problem.fleet.group, problem.table[region], server)
    need = problem.want - np.bincount(region, minlength=len(problem))
    more_region, more_server, hard = _spread(problem, region, server, need, room)
    stats.placed_by_class = len(more_region)
    region, server = np.concatenate((region, more_region)), np.concatenate((server, more_server))
    if hard or (room.below > 0).any():
        repair = Repair(problem, region, server, room, deadline)
        repair.place_all(hard)
        repair.raise_floors()
        repair.lower_tables()
        region, server = repair.pairs()
        stats.placed_by_chain, stats.chain_moves = repair.placed, repair.moves
    rows = numbered(problem, region, server, stats)
    return Plan(rows, plan_digest(rows), stats)


def _spread(
    problem: NumberedProblem, region: Ints, server: Ints, need: Ints, room: Room
) -> tuple[Ints, Ints, list[int]]:
    """Place leftovers by classes. Return (region, server) pairs, and the region of each replica that needs repair."""
    racks = np.append(problem.fleet.group_racks, 0)[problem.tables.group][problem.table]
    waiting = np.flatnonzero((need > 0) & (racks >= problem.want))
    hard = [r for r in np.flatnonzero((need > 0) & (racks < problem.want)).tolist() for _ in range(int(need[r]))]
    members: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    used = _used_racks(problem, region, server, need)
    for r, t, n in zip(waiting.tolist(), problem.table[waiting].tolist(), need[waiting].tolist(), strict=True):
        members.setdefault((t, n, used.get(r, ())), []).append(r)
    classes = [LeftoverClass(t, n, racks_used, len(members[t, n, racks_used])) for t, n, racks_used in sorted(members)]
    if not classes:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), hard
    dealt = spread(classes, problem.fleet, problem.quotas, problem.tables.group, room)
    regions = []
    for group, units in zip(classes, dealt, strict=True):
        names = np.array(members[group.key], dtype=np.int64)
        regions.append(names[np.arange(len(units)) % len(names)])
        missing = np.full(len(names), group.need) - np.bincount(
            np.arange(len(units)) % len(names), minlength=len(names)
        )
        hard += np.repeat(names, missing).tolist()
    return np.concatenate(regions), np.concatenate(dealt), sorted(hard)


def _used_racks(problem: NumberedProblem, region: Ints, server: Ints, need: Ints) -> dict[int, tuple[int, ...]]:
    """Return the racks, ascending, of regions that have some replicas and need more."""
    some = need[region] > 0
    racks: dict[int, list[int]] = {}
    for r, k in zip(region[some].tolist(), problem.fleet.rack[server[some]].tolist(), strict=True):
        racks.setdefault(r, []).append(k)
    return {r: tuple(sorted(ks)) for r, ks in racks.items()}


def numbered(problem: NumberedProblem, region: Ints, server: Ints, stats: Stats) -> PlanRows:
    """Return the rows in order, and set the plan's value in `stats`.

    A replica that stays keeps its number. The others are numbered by falling benefit.
    """
    servers = len(problem.fleet)
    order = np.lexsort((server, region))
    region, server = region[order], server[order]
    keys = problem.cand_region * servers + problem.cand_server
    at = np.searchsorted(keys, region * servers + server)
    found = at < len(keys)
    found[found] = keys[at[found]] == (region * servers + server)[found]
    benefit, held, local = (np.zeros(len(region), dtype=np.int64) for _ in range(3))
    held[:] = -1
    benefit[found] = problem.cand_benefit[at[found]]
    held[found] = problem.cand_held[at[found]]
    local[found] = problem.cand_local[at[found]]
    size = problem.size[region]
    stats.local_bytes = int(local.sum())
    stats.stay_bytes = int(size[held >= 0].sum())
    stats.value = stats.local_bytes + round(problem.params.lambda_move * 1000) * stats.stay_bytes / 1000
    once_held = problem.cand_held >= 0
    stats.moved_bytes = int(problem.size[problem.cand_region[once_held]].sum()) - stats.stay_bytes
    best = np.lexsort((server, -benefit, region))
    region, server = region[best], server[best]
    replica = _replica_numbers(region, held[best])
    order = np.lexsort((replica, region))
    ids: Texts = np.array(problem.fleet.ids, dtype=object)
    return PlanRows(problem.region_ids[region[order]], replica[order], ids[server[order]])


def _replica_numbers(region: Ints, held: Ints) -> Ints:
    """Return numbers 0..n-1 within each stretch of one region, for replicas sorted by benefit.

    `held` is the number that each replica had on its server, -1 for none; a replica keeps it if it is below n. The
    others get the free numbers in order: a stretch has as many free numbers as replicas without one.
    """
    start = np.flatnonzero(np.diff(region, prepend=-1))
    length = np.diff(np.append(start, len(region)))
    first, count = np.repeat(start, length), np.repeat(length, length)
    keeps = (held >= 0) & (held < count)
    slots = np.where(keeps, first + held, len(region))
    # Two replicas never held one number (`problem._held_pairs`). If they did, the one with the higher benefit would
    # keep it.
    _, nth = np.unique(slots, return_index=True)
    keeps &= np.isin(np.arange(len(region)), nth)
    free = np.ones(len(region), dtype=np.bool_)
    free[slots[keeps]] = False
    replica = held.copy()
    replica[~keeps] = np.flatnonzero(free) - first[~keeps]
    return replica
