"""Invalid inputs: each case is counted and reported, and the rest of the plan is correct."""

from __future__ import annotations

import pytest

from regions.plan import (
    BadInput,
    BlockRow,
    ConflictingRegion,
    LastRow,
    NoServers,
    Params,
    RegionRow,
    ServerRow,
    Snapshot,
    plan,
    verify,
)

TWO = [ServerRow("s1", "h1"), ServerRow("s2", "h2")]


def test_group_without_servers_is_left_out_and_named() -> None:
    """Other groups are planned; no other server takes the regions."""
    made = plan(Snapshot.of([RegionRow("a", "t"), RegionRow("b", "t", grp="x"), RegionRow("c", "t", grp="x")], TWO))
    assert [row[0] for row in made.rows] == ["a"]
    assert made.stats.unassignable == {"x": 2}


@pytest.mark.parametrize("servers", [[], [ServerRow("s", "h", draining=True)], [ServerRow("s", "h", weight=-1.0)]])
def test_no_server_at_all_is_refused(servers: list[ServerRow]) -> None:
    """NoServers instead of an empty plan."""
    with pytest.raises(NoServers):
        plan(Snapshot.of([RegionRow("a", "t")], servers))


def test_fewer_servers_than_replicas_is_under_replicated() -> None:
    """One replica per server, numbered from 0; the others are counted."""
    made = plan(Snapshot.of([RegionRow("a", "t", replicas=5)], TWO))
    assert sorted((n, s) for _, n, s in made.rows) in ([(0, "s1"), (1, "s2")], [(0, "s2"), (1, "s1")])
    assert made.stats.under_replicated == 3


def test_fewer_racks_than_replicas_spread_evenly() -> None:
    """Four replicas on two racks: two each, although one rack has most of the weight; shared racks are counted."""
    servers = [ServerRow(f"s{i}", f"h{i}", rack="a" if i < 2 else "b", weight=1.0 if i < 2 else 5.0) for i in range(6)]
    snapshot = Snapshot.of([RegionRow(f"r{i}", "t", replicas=4) for i in range(9)], servers)
    made = plan(snapshot)
    racks = {s.server_id: s.rack for s in servers}
    for places in made.by_region().values():
        assert sorted(racks[s] for s in places) == ["a", "a", "b", "b"]
    verdict = verify(snapshot, Params(), made.rows)
    assert verdict.ok, verdict
    assert verdict.racks_shared == 18
    assert made.stats.quota_adjusted


def test_a_rack_heavier_than_its_use_gives_its_share_away() -> None:
    """A rack with four fifths of the weight can hold only one of two replicas; the quotas follow."""
    servers = [ServerRow(f"s{i}", f"h{i}", rack="a" if i < 8 else "b") for i in range(10)]
    snapshot = Snapshot.of([RegionRow(f"r{i:02d}", "t", replicas=2) for i in range(20)], servers)
    made = plan(snapshot)
    verdict = verify(snapshot, Params(), made.rows)
    assert verdict.ok, verdict
    assert verdict.racks_shared == 0


def test_unusable_block_rows_are_counted_and_degrade_the_plan() -> None:
    """Unknown host, unknown region, no bytes, null: ignored; more than 5 % of them are reported."""
    blocks = [
        BlockRow("a", "h2", 10),
        BlockRow("a", "elsewhere", 10),
        BlockRow("nothing", "h1", 10),
        BlockRow("a", "h1", 0),
        BlockRow("a", "h1", None),
    ]
    made = plan(Snapshot.of([RegionRow("a", "t", 100)], TWO, blocks))
    assert list(made.rows) == [("a", 0, "s2")]
    assert made.stats.ignored == {"block_bytes": 2, "block_host": 1, "block_region": 1}
    assert made.stats.degraded
    assert not plan(Snapshot.of([RegionRow("a", "t", 100)], TWO, blocks[:1] * 20 + blocks[1:2])).stats.degraded


def test_block_rows_add_up_and_are_capped_at_the_size() -> None:
    """Three rows of a host are added; bytes beyond the region's size are ignored."""
    made = plan(Snapshot.of([RegionRow("a", "t", 100)], TWO, [BlockRow("a", "h1", 60)] * 3 + [BlockRow("a", "h2", 90)]))
    assert list(made.rows) == [("a", 0, "s1")]
    assert made.stats.local_bytes == 100


def test_a_host_with_several_servers_is_local_to_each() -> None:
    """Bytes on a host are local to every server there."""
    servers = [ServerRow("s1", "h1"), ServerRow("s2", "h1")]
    regions = [RegionRow("a", "t", 10), RegionRow("b", "t", 10)]
    made = plan(Snapshot.of(regions, servers, [BlockRow("a", "h1", 10), BlockRow("b", "h1", 10)]))
    assert made.stats.local_bytes == 20
    assert len({s for _, _, s in made.rows}) == 2


def test_identical_region_rows_collapse_and_differing_ones_are_refused() -> None:
    """Contradicting rows give no plan, and the error names the ids."""
    same = RegionRow("a", "t", 5)
    made = plan(Snapshot.of([same, same, RegionRow("b", "t")], TWO))
    assert len(made.rows) == 2
    assert made.stats.ignored == {"region_duplicate": 1}
    with pytest.raises(ConflictingRegion) as caught:
        plan(Snapshot.of([same, RegionRow("a", "t", 6), RegionRow("b", "t")], TWO))
    assert caught.value.region_ids == ["a"]


def test_former_places_that_count_for_nothing() -> None:
    """A server that is gone or draining; of two rows for a replica the smaller server id counts; unknown regions; no
    number."""
    servers = [*TWO, ServerRow("s3", "h3", draining=True)]
    last = [
        LastRow("a", 0, "s2"),
        LastRow("b", 0, "gone"),
        LastRow("c", 0, "s3"),
        LastRow("d", 0, "s2"),
        LastRow("d", 0, "s1"),
        LastRow("x", 0, "s1"),
        LastRow("a", -1, "s1"),
    ]
    made = plan(Snapshot.of([RegionRow(r, "t", 10) for r in "abcd"], servers, (), last))
    places = made.by_region()
    assert places["a"] == ["s2"]
    assert places["d"] == ["s1"]
    assert made.stats.ignored == {
        "last_duplicate": 1,
        "last_region": 1,
        "last_replica": 1,
        "last_server": 2,
        "server_draining": 1,
    }
    assert made.stats.stay_bytes == 20


def test_sizes_and_replica_counts_out_of_range() -> None:
    """Negative or missing sizes count as nothing, replica counts below 1 as 1."""
    made = plan(Snapshot.of([RegionRow("a", "t", -1), RegionRow("b", "t", 5, replicas=0)], TWO))
    assert len(made.rows) == 2
    assert made.stats.ignored == {"region_size": 1, "region_replicas": 1}


def test_regions_without_bytes_return_home() -> None:
    """An empty region has no bytes to move, so it stays."""
    regions = [RegionRow(f"r{i}", "t") for i in range(6)]
    home = {f"r{i}": "s1" if i % 2 else "s2" for i in range(6)}
    made = plan(Snapshot.of(regions, TWO, (), [LastRow(r, 0, s) for r, s in home.items()]))
    assert {r: s for r, _, s in made.rows} == home


def test_a_replica_that_stays_keeps_its_number() -> None:
    """A new number would look like two moves."""
    last = [LastRow("a", 1, "s1"), LastRow("a", 0, "s2")]
    blocks = [BlockRow("a", "h1", 100)]
    made = plan(Snapshot.of([RegionRow("a", "t", 100, replicas=2)], TWO, blocks, last))
    assert list(made.rows) == [("a", 0, "s2"), ("a", 1, "s1")]


@pytest.mark.parametrize("params", [Params(lambda_move=-1), Params(slop=-0.1), Params(table_slack=-1)])
def test_parameters_out_of_range_are_refused(params: Params) -> None:
    """The message names the parameter."""
    with pytest.raises(BadInput):
        plan(Snapshot.of([RegionRow("a", "t")], TWO), params)


def test_unknown_engine_is_refused() -> None:
    """Spark runs in its own process and is not an engine of this one."""
    with pytest.raises(BadInput):
        plan(Snapshot.of([], TWO), engine="spark")


def test_no_regions_is_an_empty_plan() -> None:
    """An empty input is not an error."""
    made = plan(Snapshot.of([], TWO))
    assert len(made.rows) == 0
