"""Plans keep every hard rule and do not depend on the order of rows: whole scenarios, and random small clusters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regions.plan import (
    BlockRow,
    LastRow,
    NoServers,
    Params,
    PlanRows,
    RegionRow,
    ServerRow,
    Snapshot,
    plan,
    plan_digest,
    verify,
)
from regions.plan.engines import leftover
from regions.plan.problem.scenarios import SCENARIOS, scenario, shuffled

PARAMS = Params()


@pytest.mark.parametrize("engine", ["greedy", "sharded"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_breaks_no_rule_and_ignores_row_order(name: str, engine: str) -> None:
    """Every named situation, at a fifth of the benchmarked size."""
    snapshot = scenario(name, regions=2000, servers=40, seed=20260)
    made = plan(snapshot, PARAMS, engine=engine, shards=3 if engine == "sharded" else None)
    verdict = verify(snapshot, PARAMS, made.rows)
    assert verdict.ok, verdict
    again = plan(shuffled(snapshot, 5), PARAMS, engine=engine, shards=3 if engine == "sharded" else None)
    assert again.digest == made.digest
    assert plan_digest(made.rows) == made.digest


def test_one_shard_is_the_exact_plan() -> None:
    """One process computes the same bytes as the Spark job (N9)."""
    snapshot = scenario("mixed", regions=1500, servers=40, seed=3)
    assert plan(snapshot, engine="sharded", shards=1).digest == plan(snapshot, engine="flow").digest


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Return small clusters with uneven racks, groups, weights, replicas, and rows with unknown ids."""
    draw_grp = st.sampled_from(["", "g"])
    servers = [
        ServerRow(
            f"s{i}",
            f"h{draw(st.integers(0, 7))}",
            rack=draw(st.sampled_from(["a", "b", "c"])),
            weight=draw(st.sampled_from([1.0, 1.0, 2.0, 4.0, 0.0, None])),
            grp=draw(draw_grp),
            draining=draw(st.integers(0, 9)) == 0,
        )
        for i in range(draw(st.integers(1, 9)))
    ]
    regions = [
        RegionRow(
            f"r{i:02d}",
            draw(st.sampled_from(["t", "u", "v"])),
            size_bytes=draw(st.integers(0, 1000)),
            replicas=draw(st.integers(1, 4)),
            grp=draw(draw_grp),
        )
        for i in range(draw(st.integers(0, 30)))
    ]
    some_region = st.integers(0, 32).map(lambda i: f"r{i:02d}")
    blocks = draw(
        st.lists(
            st.builds(BlockRow, some_region, st.integers(0, 9).map("h{}".format), st.integers(-5, 900)), max_size=60
        )
    )
    last = draw(
        st.lists(st.builds(LastRow, some_region, st.integers(0, 3), st.integers(0, 10).map("s{}".format)), max_size=40)
    )
    return Snapshot.of(regions, servers, blocks, last)


@settings(max_examples=200, deadline=None)
@given(clusters(), st.integers(0, 1000), st.sampled_from([0.0, 0.25]))
def test_random_clusters_lose_no_replica(snapshot: Snapshot, order: int, slop: float) -> None:
    """The rules with priority over bounds always hold; the plan is the same for every order of rows."""
    params = Params(slop=slop)
    try:
        made = plan(snapshot, params)
    except NoServers:
        return
    verdict = verify(snapshot, params, made.rows)
    strong = (verdict.missing, verdict.surplus, verdict.same_server, verdict.wrong_server, verdict.same_rack)
    assert strong == (0, 0, 0, 0, 0), verdict
    assert plan(shuffled(snapshot, order), params).digest == made.digest
    sharded = plan(snapshot, params, engine="sharded", shards=2)
    verdict = verify(snapshot, params, sharded.rows)
    assert (verdict.missing, verdict.same_server, verdict.wrong_server, verdict.same_rack) == (0, 0, 0, 0)
    assert plan(shuffled(snapshot, order), params, engine="sharded", shards=2).digest == sharded.digest


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(0, 80),
    st.lists(st.tuples(st.integers(0, 79), st.integers(0, 11), st.integers(1, 99)), max_size=200),
    st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=12, max_size=12),
)
def test_random_single_replicas_break_no_rule(
    servers: int, regions: int, places: list[tuple[int, int, int]], weights: list[float]
) -> None:
    """With one replica per region all bounds can be kept together, so all of them are."""
    snapshot = Snapshot.of(
        [RegionRow(f"r{i:02d}", f"t{i % 4}", 99) for i in range(regions)],
        [ServerRow(f"s{i:02d}", f"h{i}", weight=weights[i]) for i in range(servers)],
        [BlockRow(f"r{r:02d}", f"h{s}", b) for r, s, b in places],
    )
    assert verify(snapshot, PARAMS, plan(snapshot).rows).ok


def test_deadline_in_the_past_still_gives_every_replica_a_place() -> None:
    """After the deadline there is no search for chains, but every replica has a place."""
    snapshot = scenario("replicas", regions=300, servers=6, seed=2)
    verdict = verify(snapshot, PARAMS, plan(snapshot, PARAMS, deadline=lambda: -1.0).rows)
    assert (verdict.missing, verdict.same_server, verdict.wrong_server) == (0, 0, 0)


def test_verify_finds_each_broken_rule() -> None:
    """Each changed plan is rejected, rule by rule."""
    regions = [RegionRow(f"r{i}", "t", 1, replicas=2) for i in range(4)]
    servers = [ServerRow(f"s{i}", f"h{i}", rack="ab"[i % 2]) for i in range(4)] + [ServerRow("d", "h9", draining=True)]
    snapshot = Snapshot.of(regions, servers)
    good = list(plan(snapshot).rows)

    def judged(rows: list[tuple[str, int, str]]) -> dict[str, int]:
        verdict = verify(snapshot, PARAMS, PlanRows.of(rows))
        names = ("missing", "surplus", "same_server", "wrong_server", "same_rack", "over_ceiling", "over_table")
        return {name: getattr(verdict, name) for name in names if getattr(verdict, name)}

    assert judged(good) == {}
    assert judged(good[1:]) == {"missing": 1}
    assert judged([*good, ("r9", 0, "s0")]) == {"surplus": 1}
    assert judged([*good[1:], ("r0", 0, "d")]) == {"wrong_server": 1}
    first = good[0][2]
    assert judged([good[0], ("r0", 1, first), *good[2:]])["same_server"] == 1
    twin = {"s0": "s2", "s2": "s0", "s1": "s3", "s3": "s1"}[first]
    assert judged([good[0], ("r0", 1, twin), *good[2:]])["same_rack"] == 1
    crowded = [(r, n, "s0" if n == 0 else "s1") for r, n, _ in good]
    assert judged(crowded)["over_ceiling"] == 4


@pytest.mark.parametrize("name", ["replicas", "mixed"])
@pytest.mark.parametrize("racks_first", [1, 3])
def test_leftovers_with_few_arcs_at_first_end_as_well_placed(
    name: str, racks_first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes that first get arcs to a few racks, and to others when these are full, lose no place."""
    snapshot = scenario(name, regions=900, servers=60, seed=31)
    wanted = plan(snapshot, PARAMS).stats
    monkeypatch.setattr(leftover, "ARCS_AT_ONCE", 0)
    monkeypatch.setattr(leftover, "RACKS_FIRST", racks_first)
    made = plan(snapshot, PARAMS)
    assert verify(snapshot, PARAMS, made.rows).ok
    assert (made.stats.placed_by_class, made.stats.placed_by_chain) == (wanted.placed_by_class, wanted.placed_by_chain)
    assert wanted.placed_by_class > 50
