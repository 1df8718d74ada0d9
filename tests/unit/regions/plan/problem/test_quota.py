"""Quotas for any weights that some placement on distinct servers and racks can fill."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from regions.plan import BadInput, LastRow, Params, RegionRow, ServerRow, Snapshot, plan, verify
from regions.plan.engines.run import plan_encoded
from regions.plan.problem.quota import group_shares
from regions.plan.problem.scenarios import scenario


@pytest.mark.parametrize("seed", range(60))
def test_no_set_of_servers_is_to_hold_more_than_it_can(seed: int) -> None:
    """Every subset of up to six servers, compared with the bound of distinct racks, and always with that of distinct
    servers."""
    chance = random.Random(seed)
    racks = [chance.randrange(chance.choice((1, 2, 3, 5))) for _ in range(chance.randint(1, 6))]
    weights = [chance.choice((1.0, 1.0, 2.0, 1e308, 1e-300, 5e-324)) for _ in racks]
    most_wanted = len(racks) if seed % 3 == 0 else len(set(racks))
    demand = {want: chance.randint(1, 40) for want in range(1, most_wanted + 1) if chance.random() < 0.6}
    shares = group_shares(np.array(weights), np.array(racks), demand)
    assert shares.sum() == pytest.approx(sum(want * count for want, count in demand.items()))
    assert (shares >= demand.get(len(racks), 0) - 1e-6).all()
    assert (shares <= sum(demand.values()) + 1e-6).all()
    if most_wanted > len(set(racks)):
        return  # Racks have to be shared: then the shares need not be feasible.
    for chosen in itertools.product((False, True), repeat=len(racks)):
        inside = len({rack for rack, mine in zip(racks, chosen, strict=True) if mine})
        most = sum(count * min(want, inside) for want, count in demand.items())
        assert shares[list(chosen)].sum() <= most + 1e-6, (weights, racks, demand, chosen)


def test_a_server_that_every_region_needs_gets_them_all() -> None:
    """Two servers and two replicas of each region: the light server's weight cannot count."""
    servers = [ServerRow("heavy", "h1", "a", weight=1e308), ServerRow("light", "h2", "b", weight=5e-324)]
    made = plan(Snapshot.of([RegionRow(f"r{n}", "t", replicas=2) for n in range(9)], servers))
    assert made.stats.quota_adjusted == 2
    assert sorted(server for _, _, server in made.rows) == ["heavy"] * 9 + ["light"] * 9


@pytest.mark.parametrize("engine", ["greedy", "flow"])
def test_a_tables_share_follows_the_racks_that_it_needs(engine: str) -> None:
    """500 regions on 18 servers: one rack of a group is a single server. More of a table's regions need that rack than
    the server's share allows. Only the bound of this table is raised, and no rule is broken."""
    if engine == "flow":
        pytest.importorskip("ortools")
    snapshot = scenario("mixed", regions=500, servers=18, seed=1)
    made, problem = plan_encoded(snapshot, engine=engine)
    assert verify(snapshot, Params(), made.rows).ok
    assert [problem.tables.pairs[table] for table in problem.quotas.raised] == [("", "table0000")]
    assert made.stats.tables_raised == 1


def test_replicas_without_end_are_cut_short() -> None:
    """A count beyond any cluster is limited and counted, and its sums stay whole numbers."""
    regions = [RegionRow(f"r{n}", "t", replicas=2**62) for n in range(3)]
    made = plan(Snapshot.of(regions, [ServerRow("s1", "h1"), ServerRow("s2", "h2")], (), [LastRow("r0", 2**62, "s2")]))
    assert made.stats.ignored == {"region_replicas": 3}
    assert made.stats.under_replicated == 3 * (2**20 - 2)
    assert len(made.rows) == 6


def test_more_tables_than_can_be_counted_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the process would run out of memory."""
    monkeypatch.setattr("regions.plan.problem.numbered.CELLS_MAX", 5)
    servers = [ServerRow("s1", "h1"), ServerRow("s2", "h2")]
    assert len(plan(Snapshot.of([RegionRow(f"r{n}", f"t{n}") for n in range(2)], servers)).rows) == 2
    with pytest.raises(BadInput, match="3 tables on 2 servers are 6 places"):
        plan(Snapshot.of([RegionRow(f"r{n}", f"t{n}") for n in range(3)], servers))


def test_only_a_table_that_lacks_racks_gets_more_than_its_share() -> None:
    """Table `a` does not, although by weight the heavy server would have more of it than the racks allow."""
    servers = [ServerRow(f"s{n}", f"h{n}", f"k{n}", weight=9.0 if n == 0 else 1.0) for n in range(3)]
    regions = [RegionRow(f"a{n:03d}", "a", replicas=2 if n < 3 else 1) for n in range(40)]
    regions += [RegionRow(f"b{n:03d}", "b", replicas=3) for n in range(200)]
    made, problem = plan_encoded(Snapshot.of(regions, servers))
    assert made.stats.quota_adjusted == 3
    assert [problem.tables.pairs[table] for table in problem.quotas.raised] == [("", "b")]
