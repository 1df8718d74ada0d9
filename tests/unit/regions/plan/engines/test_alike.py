"""Alike regions share a node of the exact flow: the value is the same, and no chains of moves are needed."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from benchmarks.plan.hbase import inputs
from regions.plan import BlockRow, LastRow, Params, RegionRow, ServerRow, Snapshot, plan, verify
from regions.plan.artifact.compare import compare, former_places, places_of
from regions.plan.engines.alike import Alike
from regions.plan.engines.run import plan_encoded

pytest.importorskip("ortools")


def test_hbases_balance_is_exact_and_needs_no_chain() -> None:
    """If all regions have the same worth, there are no unnecessary moves, and tables find their room at once (row
    2)."""
    snapshot = inputs(9_000, 100, 10)["balance"]
    made = plan(snapshot, engine="flow")
    assert len(compare(former_places(snapshot), places_of(made.rows)).moves) == 900
    assert (made.stats.placed_by_chain, made.stats.chain_moves) == (0, 0)
    assert verify(snapshot, Params(), made.rows).ok


def test_classes_are_of_one_table_and_one_worth() -> None:
    """Same table, same servers, same benefits, one replica; regions 0, 2, 3 and 5 each differ from 1 in one respect."""
    #        region, server, benefit
    rows = np.array([(0, 1, 5), (1, 1, 5), (2, 1, 6), (3, 2, 5), (4, 1, 5), (5, 1, 5), (5, 2, 1), (6, 1, 5), (7, 1, 5)])
    table = np.array([1, 0, 0, 0, 0, 0, 0, 0])
    want = np.array([1, 1, 1, 1, 1, 1, 2, 1])
    alike = Alike(table, want, rows[:, 0], rows[:, 1], rows[:, 2])
    leaders = rows[alike.first][:, 0].tolist()
    assert leaders == [0, 1, 2, 3, 5, 5, 6]
    assert alike.members.tolist() == [1, 3, 1, 1, 1, 1, 1]
    taken = alike.deal(np.array([0, 2, 1, 0, 0, 1, 1]))
    assert [tuple(row) for row in rows[taken].tolist()] == [(1, 1, 5), (2, 1, 6), (4, 1, 5), (5, 2, 1), (6, 1, 5)]


def test_equal_hashes_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a constant hash, only alike regions share a class."""
    monkeypatch.setattr("regions.plan.engines.alike._hashes", lambda table, *_: np.zeros(len(table), dtype=np.uint64))
    rows = np.array([(0, 1, 5), (1, 1, 5), (2, 2, 5), (3, 1, 5), (3, 2, 5)])
    alike = Alike(np.zeros(4, dtype=np.int64), np.ones(4, dtype=np.int64), rows[:, 0], rows[:, 1], rows[:, 2])
    assert alike.members.tolist() == [2, 1, 1, 1]


@pytest.mark.parametrize("seed", range(12))
def test_the_value_is_the_best_of_all_choices(seed: int) -> None:
    """Compared with a twin that tries every place for every region."""
    chance = random.Random(seed)
    servers = [ServerRow(f"s{n}", f"h{n}") for n in range(3)]
    regions = [RegionRow(f"r{n}", chance.choice("tu"), chance.choice([4, 4, 7])) for n in range(7)]
    blocks = [BlockRow(one.region_id, f"h{chance.randrange(3)}", chance.choice([2, 4])) for one in regions]
    last = [LastRow(one.region_id, 0, f"s{chance.randrange(2)}") for one in regions]
    snapshot = Snapshot.of(regions, servers, blocks, last)
    made, problem = plan_encoded(snapshot, engine="flow")
    worth = np.zeros((len(regions), len(servers)), dtype=np.int64)
    worth[problem.cand_region, problem.cand_server] = problem.cand_benefit
    limit = {table: problem.quotas.cells(table, np.arange(3), level=2).tolist() for table in range(len(problem.tables))}

    def kept(places: tuple[int, ...]) -> bool:
        held = np.bincount(places, minlength=3)
        cells = Counter(zip(problem.table.tolist(), places, strict=True))
        within = (held >= problem.quotas.floor).all() and (held <= problem.quotas.ceil).all()
        return bool(within) and all(number <= limit[table][server] for (table, server), number in cells.items())

    best = max(
        int(worth[np.arange(len(regions)), list(places)].sum())
        for places in itertools.product(range(3), repeat=len(regions))
        if kept(places)
    )
    assert made.stats.value * 1000 == best
    assert verify(snapshot, Params(), made.rows).ok
