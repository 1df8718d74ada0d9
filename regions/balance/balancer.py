"""The balancer: chooses moves that bring servers to their shares by weight, each with its reason (RT-14, RT-15). Pure.

The result depends only on the cluster state: ties are broken by uuid and key. Servers of one pool (a group and a kind)
are balanced at a time, in this order:

*Place*. A replica on a server of another pool, or in a rack that it shares without need, moves first.

*Count*. `due` is a server's share by weight, as far as racks allow it (`plan/problem/quota.py`). `over` is the number
of replicas beyond it. Moving one replica of table t from server s to server d pays if and only if the sum of the
squares of all `over`, per table and in total, falls. So each move improves the balance of tables and servers together,
and rounds cannot undo each other, because the sum cannot fall forever. Tables have a slightly larger weight, as two
tables could otherwise keep each other uneven. A replica counts at its destination from the order to move on:
the next round may begin before the server has begun to close the replica.

*Size*, then *load*. A server further from its share than the tolerance exchanges a large replica for a small one of the
same table, which keeps all counts. A swap by load must keep sizes within their tolerance.

A swap must bring the worse of the two servers nearer to its share by at least `gain_min` of the share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Final, ParamSpec

import msgspec
import numpy as np
import numpy.typing as npt

from regions.balance.metric import Floats, Metric
from regions.balance.sizes import NOT_MEASURED, CountedStep, RegionSizes
from regions.balance.steps import result_of
from regions.cluster.entities import Replica, Server, Table
from regions.cluster.limits import BalancerConfig
from regions.cluster.state import ClusterState
from regions.messages import BalanceMove, GroupBalance
from regions.plan.problem.quota import group_shares
from regions.records.kinds import KV, can_open, pool, pool_words

_Arguments = ParamSpec("_Arguments")
#: Returns whether a replica may move to a server.
Fits = Callable[[Replica, Server], bool]

#: Differences of shares below this are rounding errors.
_NEAR: Final = 1e-6
#: Weight of a table's squares relative to the squares of the total.
_TABLE: Final = 1.01
#: A move pays if the difference of the two servers' scores is above this.
_LEAST: Final = _TABLE + 1
#: Tables balanced in one round, those with the largest gain first. Each costs a row with one number per server.
TABLES_MAX: Final = 100
#: Receivers that are tried for the server furthest above its share, before the server is skipped.
_TRIES: Final = 8
#: Replicas counted in one step of a round, each some 3 us of processor.
COUNTED_AT_ONCE: Final = 2_000


class Proposal(msgspec.Struct, frozen=True):
    """One round: the moves, and the balance before and after them."""

    moves: list[BalanceMove]
    before: list[GroupBalance]
    after: list[GroupBalance]
    #: True if a limit ended the round while further moves would have paid.
    more: bool = False


class Gate(msgspec.Struct, frozen=True):
    """Conditions of a round: `blocking` transitions must end first, `excluded` servers take no part."""

    blocking: list[str]
    excluded: frozenset[str]
    stuck: list[str]


def gate(world: ClusterState, now_ms: int, config: BalancerConfig, limit: int = 20) -> Gate:
    """Return what blocks a round (RT-14). Only young transitions block it; stuck ones exclude their servers (X9)."""
    blocking: list[str] = []
    stuck: list[str] = []
    excluded: set[str] = set()
    for replica in world.rit():
        transition = replica.transition
        if transition is None or transition.parked:
            continue
        if now_ms - replica.seen_ms < config.stuck_ms:
            if len(blocking) < limit:
                blocking.append(replica.key)
            continue
        if len(stuck) < limit:
            stuck.append(replica.key)
        excluded.update(one.uuid for one in (transition.source, transition.destination) if one is not None)
    return Gate(blocking, frozenset(excluded), stuck)


def proposing(
    world: ClusterState,
    config: BalancerConfig | None = None,
    *,
    exclude: Collection[str] = (),
    loads: Mapping[str, float] | None = None,
    used: Mapping[str, int] | None = None,
    fits: Fits | None = None,
    sizes: RegionSizes = NOT_MEASURED,
) -> Generator[None, None, Proposal]:
    """Decide the moves of one round in steps that count at most COUNTED_AT_ONCE replicas each, and return the round.

    The cluster may change between two steps: replicas that have changed do not move. If servers have changed, the
    caller must begin anew.

    Args:
        world: The cluster.
        config: Limits and tolerances.
        exclude: Servers that take no part.
        loads: The replicas' loads by key.
        used: Moves under way by server, which count for the limit per server.
        fits: Returns whether a replica may move to a server, besides the rules of the balancer.
        sizes: The regions' sizes, measured where servers have reported them.
    """
    config = config or BalancerConfig()
    budget = _Budget(config, used or {})
    moves: list[BalanceMove] = []
    before: list[GroupBalance] = []
    after: list[GroupBalance] = []
    for name in sorted({pool(server.group, server.kind) for server in world.servers.values()}):
        sheet = _Sheet(world, name, frozenset(exclude), loads or {}, budget, fits, sizes)
        if not sheet.servers:
            continue
        yield from sheet.count()
        before.append(sheet.balance())
        for move in sheet.moves():
            if move is not None:
                moves.append(move)
            if move is None or not len(moves) % sheet.moves_at_once:
                yield
        after.append(sheet.balance())
    return Proposal(moves, before, after, budget.short)


def _at_once(steps: Callable[_Arguments, Generator[None, None, Proposal]]) -> Callable[_Arguments, Proposal]:
    def run(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> Proposal:
        return result_of(steps(*arguments, **named))

    return run


#: `proposing` without a pause between the steps.
propose: Final = _at_once(proposing)


class _Budget:
    """Remaining moves of a round, in total and per server."""

    def __init__(self, config: BalancerConfig, used: Mapping[str, int]) -> None:
        self.config = config
        self.left = config.moves_max
        self.used: dict[str, int] = dict(used)
        #: True if a move that would have paid was not made because of a limit.
        self.short = False

    def room(self, uuid: str) -> int:
        """Return the remaining moves of a server."""
        return min(self.left, self.config.per_server_max - self.used.get(uuid, 0))

    def spend(self, *uuids: str) -> None:
        """Count one move between these servers."""
        assert self.left > 0, "a round has no move left"
        self.left -= 1
        for uuid in uuids:
            self.used[uuid] = self.used.get(uuid, 0) + 1


def _shares(servers: Sequence[Server], tables: Sequence[Table]) -> Floats:
    """Return each server's share of the pool: by weight, less if its rack cannot use it (one replica per rack)."""
    if not servers:
        return np.zeros(0)
    demand: dict[int, int] = {}
    for table in tables:
        want = min(table.record.replication, len(servers))
        demand[want] = demand.get(want, 0) + len(table.regions)
    total = sum(want * count for want, count in demand.items())
    weights: Floats = np.array([one.weight for one in servers])
    if not total:
        even: Floats = weights / weights.sum()
        return even
    _, racks = np.unique([one.rack for one in servers], return_inverse=True)
    shares: Floats = group_shares(weights, racks.astype(np.int64), demand) / total
    return shares


def _is_at_rest(replica: Replica) -> bool:
    """Return True for an open replica without any work on it."""
    if replica.transition is not None or replica.is_writing or replica.move is not None:
        return False
    return replica.order is None and replica.open_on is not None


class _Sheet:
    """The replicas of the servers of one pool (a group and a kind), after the moves of the round so far.

    Servers are numbered.
    """

    def __init__(
        self,
        world: ClusterState,
        name: str,
        exclude: frozenset[str],
        loads: Mapping[str, float],
        budget: _Budget,
        fits: Fits | None,
        sizes: RegionSizes,
    ) -> None:
        self.world = world
        self.fits = fits
        self.pool = name
        self.budget = budget
        self.config = budget.config
        usable = [
            one
            for one in world.servers.values()
            if pool(one.group, one.kind) == name and one.weight > 0 and not one.draining and one.uuid not in exclude
        ]
        self.servers: list[Server] = sorted(usable, key=lambda one: one.uuid)
        self.number = {one.uuid: number for number, one in enumerate(self.servers)}
        everything = [one for one in world.tables.values() if one.wants_open]
        tables = [one for one in everything if pool(one.record.group, one.record.kind) == name]
        self.part: Floats = _shares(self.servers, tables)
        #: Servers without a remaining move.
        self.full = np.array([budget.room(one.uuid) <= 0 for one in self.servers], dtype=np.bool_)
        #: Replicas that may be moved, by table and server number, without those moved in this round.
        self.movable: dict[str, dict[int, dict[str, Replica]]] = {}
        self.counts: dict[str, Floats] = {}
        #: Shares per table. Tables with several replicas have shares of their own, because replicas share no rack.
        self.parts: dict[str, Floats] = {}
        self.total: Floats = np.zeros(len(self.servers))
        self.load_of = loads
        self._sizes = sizes
        self.size = Metric(self.part, lambda replica: float(sizes.of(replica.region).size_bytes))
        self.load = Metric(self.part, lambda replica: loads.get(replica.key, 0.0))
        #: Replicas of the pool's tables on servers of other pools.
        self.wrong_pool: list[Replica] = []
        #: Regions with a move of this round, or with an earlier move that has not begun. A region has one move at a
        #: time, so that two of its replicas do not move to one server.
        self.touched: set[str] = set()
        self._tables = tables

    def count(self) -> Iterator[None]:
        """Count all replicas. A step ends after COUNTED_AT_ONCE of them."""
        pace = CountedStep(COUNTED_AT_ONCE)
        for table in self._tables:
            yield from self._sizes.measuring(table, pace)
            yield from self._add(table, pace)

    def _add(self, table: Table, pace: CountedStep) -> Iterator[None]:
        """Add a table to the sheet."""
        name = table.record.table_id
        counts: Floats = np.zeros(len(self.servers))
        movable: dict[int, dict[str, Replica]] = {}
        for region in list(table.regions.values()):
            if pace.is_over(len(region.replicas)):
                yield
            for replica in region.replicas:
                on = replica.coming_to or replica.open_on
                if replica.move is not None:
                    on = self.world.servers.get(replica.move, on)
                    self.touched.add(region.record.region_id)
                number = None if on is None else self.number.get(on.uuid)
                at_rest = _is_at_rest(replica)
                if number is None:
                    if at_rest and on is not None and pool(on.group, on.kind) != self.pool:
                        self.wrong_pool.append(replica)
                    continue
                counts[number] += 1
                self.size.add(replica, number)
                self.load.add(replica, number)
                if at_rest:
                    movable.setdefault(number, {})[replica.key] = replica
        self.counts[name] = counts
        self.parts[name] = self.part if table.record.replication == 1 else _shares(self.servers, [table])
        self.movable[name] = movable
        self.total += counts

    # --- measures ---------------------------------------------------------------------------------------------------

    def over(self, name: str) -> Floats:
        """Return each server's number of replicas of a table beyond its share."""
        counts = self.counts[name]
        over: Floats = counts - counts.sum() * self.parts[name]
        return over

    def over_all(self) -> Floats:
        """Return each server's number of all replicas beyond its share."""
        over: Floats = self.total - self.total.sum() * self.part
        return over

    def balance(self) -> GroupBalance:
        """Return the current balance."""
        skews = [float(np.ptp(self.over(name))) for name in self.counts]
        return GroupBalance(
            self.pool,
            len(self.servers),
            int(self.total.sum()),
            round(max(skews, default=0.0), 2),
            round(float(np.ptp(self.over_all())), 2),
            self.size.ratio(),
            self.load.ratio(),
        )

    # --- moves ------------------------------------------------------------------------------------------------------

    def allows(self, replica: Replica, target: Server) -> bool:
        """Return True if the replica may move to `target`.

        The target must have no other replica of the region, and its rack must not have more replicas of the region than
        the present rack.
        """
        if replica.region.record.region_id in self.touched or not _is_at_rest(replica):
            return False
        if not can_open(target.kind, replica.region.table.record.kind):
            return False
        if self.fits is not None and not self.fits(replica, target):
            return False
        if len(replica.region.replicas) == 1:
            return True
        uuids, racks = self.world.peers(replica)
        if target.uuid in uuids:
            return False
        here = replica.open_on
        return racks.count(target.rack) <= (racks.count(here.rack) if here is not None else 0)

    def move(self, replica: Replica, target: int, reason: str) -> BalanceMove:
        """Apply a move to the sheet, and return its record."""
        source = replica.open_on
        assert source is not None, replica.key
        destination = self.servers[target]
        table = replica.region.table.record
        number = self.number.get(source.uuid)
        if number is not None:
            self.counts[table.table_id][number] -= 1
            self.total[number] -= 1
            self.size.take(replica, number)
            self.load.take(replica, number)
            self.movable[table.table_id].get(number, {}).pop(replica.key, None)
        self.counts[table.table_id][target] += 1
        self.total[target] += 1
        self.size.add(replica, target)
        self.load.add(replica, target)
        self.touched.add(replica.region.record.region_id)
        self.budget.spend(source.uuid, destination.uuid)
        self.full[target] = self.budget.room(destination.uuid) <= 0
        if number is not None:
            self.full[number] = self.budget.room(source.uuid) <= 0
        if self.budget.left <= 0:
            self.full[:] = True
        return BalanceMove(replica.key, table.name, source.uuid, destination.uuid, reason)

    @property
    def moves_at_once(self) -> int:
        """Return the number of moves in a step: each looks at the replicas of a server or two."""
        return max(1, COUNTED_AT_ONCE * len(self.servers) // max(1, int(self.total.sum())))

    def moves(self) -> Iterator[BalanceMove | None]:
        """Yield all moves of the pool, and None where a step ends without a move."""
        config = self.config
        yield from self.misplaced()
        yield from self.even_counts()
        yield from self.even_out(self.size, config.size_tolerance, "bytes")
        bounds = (self.size, config.size_tolerance)
        yield from self.even_out(self.load, config.load_tolerance, "load", keep=bounds)

    def misplaced(self) -> Iterator[BalanceMove | None]:
        """Yield moves of replicas on servers of another pool, and of replicas that share a rack without need.

        Yield None after COUNTED_AT_ONCE replicas. A replica that has changed between two steps does not move.
        """
        for replica in sorted(self.wrong_pool, key=lambda one: one.key):
            home = replica.open_on
            if home is None or pool(home.group, home.kind) == self.pool:
                continue  # The replica has closed or moved since it was counted.
            target = self._best_target(replica, racks=())
            if target is not None:
                yield self.move(replica, target, f"its table and its server differ: {self._difference(replica)}")
        if len({one.rack for one in self.servers}) < 2:
            return
        pace = CountedStep(COUNTED_AT_ONCE)
        for movable in self.movable.values():
            for held in movable.values():
                if pace.is_over(len(held)):
                    yield None
                for replica in [one for one in held.values() if len(one.region.replicas) > 1]:
                    _, racks = self.world.peers(replica)
                    here = replica.open_on
                    if here is None or here.rack not in racks:
                        continue
                    target = self._best_target(replica, racks=racks)
                    if target is not None:
                        yield self.move(replica, target, f"rack {here.rack} has another replica of its region")

    @staticmethod
    def _difference(replica: Replica) -> str:
        """Return why a replica may not stay on its server of another pool."""
        server, table = replica.open_on, replica.region.table.record
        assert server is not None, replica.key
        if server.group != table.group:
            return f"the table belongs to group {pool_words(table.group)}, the server to {pool_words(server.group)}"
        return f"the table needs kind {table.kind or KV}, the server is {server.kind or KV}"

    def _best_target(self, replica: Replica, racks: Collection[str]) -> int | None:
        """Return the server furthest below its share, outside of `racks`, that may take the replica."""
        source = replica.open_on
        for number in np.argsort(self.over_all(), kind="stable").tolist():
            server = self.servers[number]
            if server.rack in racks or server is source or not self.allows(replica, server):
                continue
            if source is None or min(self.budget.room(server.uuid), self.budget.room(source.uuid)) <= 0:
                self.budget.short = True
                continue
            return int(number)
        return None

    def even_counts(self) -> Iterator[BalanceMove]:
        """Yield moves by count, the largest gain first, until no move pays."""
        tables = self._improvable_tables()
        if not tables:
            return
        over = np.array([self.over(name) for name in tables])
        able = self._able(tables)
        while True:
            score = _TABLE * over + self.over_all()
            givers = np.where(able & ~self.full, score, -np.inf)
            takers = np.where(self.full, np.inf, score)
            gains = givers.max(axis=1) - takers.min(axis=1) - _LEAST
            row = int(gains.argmax())
            if not gains[row] > _NEAR:
                self.budget.short = self.budget.short or self._any_pays(score, tables)
                return
            source = int(givers[row].argmax())
            found = self._pair(tables[row], source, float(givers[row, source]), takers[row])
            if found is None:
                able[row, source] = False  # no replica of this table can leave this server with a gain
                continue
            replica, target = found
            yield self.move(replica, target, self._count_reason(tables[row], source, target))
            over[row, source] -= 1
            over[row, target] += 1
            able[row, source] = bool(self.movable[tables[row]][source])

    def _pair(self, name: str, source: int, score: float, takers: Floats) -> tuple[Replica, int] | None:
        """Return a replica of the table on `source` and the receiver with the largest gain; None if no move pays."""
        for target in np.argsort(takers, kind="stable").tolist():
            if not score - float(takers[target]) - _LEAST > _NEAR:
                return None
            replica = self._pick(name, source, target)
            if replica is not None:
                return replica, int(target)
        return None

    def _count_reason(self, name: str, source: int, target: int) -> str:
        counts, total = self.counts[name], self.total
        due = counts.sum() * self.parts[name]
        all_due = total.sum() * self.part
        return (
            f"of its table {counts[source]:.0f} here, {due[source]:.1f} due; "
            f"{counts[target]:.0f} there, {due[target]:.1f} due; "
            f"of all {total[source]:.0f} here, {all_due[source]:.1f} due; "
            f"{total[target]:.0f} there, {all_due[target]:.1f} due"
        )

    def _improvable_tables(self) -> list[str]:
        """Return up to TABLES_MAX tables for which a move may pay, the largest gain first."""
        total = self.over_all()
        gains: list[tuple[float, str]] = []
        for name, counts in self.counts.items():
            score = _TABLE * self.over(name) + total
            held = np.where(counts > 0, score, -np.inf)
            gain = float(held.max(initial=-np.inf) - score.min(initial=np.inf)) - _LEAST
            if gain > _NEAR:
                gains.append((-gain, name))
        return [name for _, name in sorted(gains)[:TABLES_MAX]]

    def _able(self, tables: list[str]) -> npt.NDArray[np.bool_]:
        """Return which servers have a movable replica, by table."""
        able = np.zeros((len(tables), len(self.servers)), dtype=np.bool_)
        for row, name in enumerate(tables):
            able[row, [number for number, held in self.movable[name].items() if held]] = True
        return able

    def _any_pays(self, score: Floats, tables: list[str]) -> bool:
        """Return True if only the limits prevent a move by count."""
        if not self.full.any():
            return False
        held = np.array([self.counts[name] > 0 for name in tables])
        gains = np.where(held, score, -np.inf).max(axis=1) - score.min(axis=1) - _LEAST
        return bool((gains > _NEAR).any())

    def _pick(self, name: str, source: int, target: int) -> Replica | None:
        """Return the replica to move: the one whose bytes bring both servers nearest to their shares."""
        wanted = (float(self.size.over()[source]) - float(self.size.over()[target])) / 2
        best: Replica | None = None
        rank = (0.0, "")
        for key, replica in self.movable[name].get(source, {}).items():
            if replica.open_on is not self.servers[source]:
                continue  # The entry has changed since it was counted.
            mine = (abs(self.size.of(replica) - wanted), key)
            if (best is None or mine < rank) and self.allows(replica, self.servers[target]):
                best, rank = replica, mine
        return best

    def even_out(
        self, metric: Metric, tolerance: float, unit: str, keep: tuple[Metric, float] | None = None
    ) -> Iterator[BalanceMove]:
        """Yield swaps within tables until every server is within `tolerance` of its share, or no swap helps."""
        skipped: set[int] = set()
        while (pair := metric.extremes(tolerance, skipped)) is not None:
            if self.budget.left < 2:
                self.budget.short = True
                return
            source, low = pair
            for target in low[:_TRIES]:
                swap = self._swap(metric, source, target, keep)
                if swap is None:
                    continue
                ratio = metric.held / np.maximum(metric.due(), _NEAR)
                reason = (
                    f"{100 * ratio[source]:.0f} % of its share of {unit} here, {100 * ratio[target]:.0f} % there: "
                    f"{swap[0].key} for {swap[1].key}"
                )
                yield self.move(swap[0], target, reason)
                yield self.move(swap[1], source, reason)
                break
            else:
                skipped.add(source)

    def _swap(
        self, metric: Metric, source: int, target: int, keep: tuple[Metric, float] | None
    ) -> tuple[Replica, Replica] | None:
        """Return the two replicas of one table whose exchange helps most, or None if no exchange helps enough."""
        over = metric.over()
        gap = float(over[source] - over[target])
        share = metric.due()
        least = self.config.gain_min * float(min(share[source], share[target]))
        best: tuple[float, str, Replica, Replica] | None = None
        for name in self.movable:
            gives = self.movable[name].get(source)
            takes = self.movable[name].get(target)
            if not gives or not takes:
                continue
            ordered = sorted((metric.of(one), key) for key, one in takes.items())
            for key, large in gives.items():
                # The exchange moves `difference`. Half the gap would be ideal.
                at = bisect_left(ordered, (metric.of(large) - gap / 2, ""))
                for value, other in ordered[max(0, at - 1) : at + 1]:
                    difference = metric.of(large) - value
                    gain = min(difference, gap - difference)
                    if gain < least or gain <= _NEAR or (best is not None and (-gain, key) >= (best[0], best[1])):
                        continue
                    small = takes[other]
                    if self._may_swap(large, small, source, target, keep):
                        best = (-gain, key, large, small)
        if best is None:
            return None
        if min(self.budget.room(self.servers[source].uuid), self.budget.room(self.servers[target].uuid)) < 2:
            self.budget.short = True
            return None
        return best[2], best[3]

    def _may_swap(
        self, large: Replica, small: Replica, source: int, target: int, keep: tuple[Metric, float] | None
    ) -> bool:
        if large.open_on is not self.servers[source] or small.open_on is not self.servers[target]:
            return False  # The entry has changed since it was counted.
        if not self.allows(large, self.servers[target]) or not self.allows(small, self.servers[source]):
            return False
        if keep is None:
            return True
        metric, tolerance = keep
        change = metric.of(large) - metric.of(small)
        over, due = metric.over(), metric.due()
        for number, after in ((source, over[source] - change), (target, over[target] + change)):
            if abs(after) > max(tolerance * due[number], abs(over[number])) + _NEAR:
                return False
        return True
