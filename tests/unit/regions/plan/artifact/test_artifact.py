"""Stored plans: fingerprints, comparisons, explanations, figures, the kept input (N4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from regions.plan import (
    BadInput,
    BadPlan,
    BlockRow,
    LastRow,
    Params,
    PlanRows,
    RegionRow,
    ServerRow,
    Snapshot,
    plan,
    verify,
)
from regions.plan.artifact.binding import Occupancy, PlanRule, explain_region
from regions.plan.artifact.compare import Shift, changes, compare, former_places, places_of
from regions.plan.artifact.digest import fingerprint
from regions.plan.artifact.figures import figures
from regions.plan.artifact.files import INPUT, Origin, keep_input, read_input, read_manifest, write_plan
from regions.plan.problem.model import ServerColumns
from regions.plan.problem.numbered import encode
from regions.plan.problem.scenarios import scenario
from regions.plan.rebase import rebased

REGIONS = [RegionRow("r1", "t", 100), RegionRow("r2", "t", 100), RegionRow("r3", "t", 100)]
SERVERS = [ServerRow("s1", "h1", "a"), ServerRow("s2", "h2", "b"), ServerRow("s3", "h3", "c")]
LAST = [LastRow("r1", 0, "s1"), LastRow("r2", 0, "s1"), LastRow("r3", 0, "s1")]
BLOCKS = [BlockRow(f"r{n}", "h1", 60 + n) for n in (1, 2, 3)]


def test_fingerprint_ignores_order_load_and_sizes_and_notices_the_rest() -> None:
    """Everything that decides a plan and can be read again changes it; the order of rows does not."""
    usual = fingerprint(Snapshot.of(REGIONS, SERVERS, BLOCKS, LAST))
    assert fingerprint(Snapshot.of(REGIONS[::-1], SERVERS[::-1], (), LAST[::-1])) == usual
    busy = [RegionRow("r1", "t", 101, load=9.0), *REGIONS[1:]]
    assert fingerprint(Snapshot.of(busy, SERVERS, (), LAST)) == usual
    for regions, servers, last in (
        (REGIONS[1:], SERVERS, LAST),
        ([RegionRow("r1", "t", 100, 2), *REGIONS[1:]], SERVERS, LAST),
        (REGIONS, SERVERS[1:], LAST),
        (REGIONS, [ServerRow("s1", "h1", "a", draining=True), *SERVERS[1:]], LAST),
        (REGIONS, [ServerRow("s1", "h1", "a", weight=None), *SERVERS[1:]], LAST),
        (REGIONS, SERVERS, [LastRow("r1", 0, "s2"), *LAST[1:]]),
    ):
        assert fingerprint(Snapshot.of(regions, servers, (), last)) != usual


def test_comparison_moves_as_little_as_possible() -> None:
    """A server in both placements keeps its replica; pairs stay on a rack if possible."""
    racks = {"s1": "a", "s2": "b", "s3": "a", "s4": "c"}
    swapped = compare({"r": {0: "s1", 1: "s2"}}, {"r": {0: "s2", 1: "s1"}}, racks)
    assert (swapped.same, swapped.moves) == (2, [])
    both = compare({"r": {0: "s2", 1: "s1"}}, {"r": {0: "s3", 1: "s4"}}, racks)
    assert sorted(both.moves, key=lambda one: one.replica) == [Shift("r", 0, "s2", "s4"), Shift("r", 1, "s1", "s3")]
    grown = compare({"r": {0: "s1"}, "gone": {0: "s2"}}, {"r": {0: "s2", 1: "s1"}, "new": {0: "s4"}}, racks)
    assert (grown.same, grown.moves) == (1, [])
    assert grown.added == [Shift("new", 0, "", "s4"), Shift("r", 1, "", "s2")]
    assert grown.removed == [Shift("gone", 0, "s2", "")]


@pytest.mark.parametrize("name", ["uniform", "mixed", "replicas"])
def test_following_the_comparison_leads_to_the_plan(name: str) -> None:
    """Each move once, one replica on a server at any time, and the final servers are those of the plan."""
    snapshot = scenario(name, regions=300, servers=12, seed=3)
    rows = plan(snapshot).rows
    before, after = former_places(snapshot), places_of(rows)
    difference = compare(before, after)
    now = {region: dict(places) for region, places in before.items()}
    for shift in difference.removed:
        del now[shift.region_id][shift.replica]
    for shift in [*difference.moves, *difference.added]:
        places = now.setdefault(shift.region_id, {})
        assert places.get(shift.replica, "") == shift.source
        assert shift.destination not in places.values()
        places[shift.replica] = shift.destination
    assert {r: set(places.values()) for r, places in now.items() if places} == {
        r: set(places.values()) for r, places in after.items()
    }


def test_changes_are_named() -> None:
    """The text that an operator reads when a plan is outdated."""
    before = Snapshot.of(REGIONS, SERVERS, BLOCKS, LAST)
    assert changes(before, Snapshot.of(REGIONS[::-1], SERVERS, (), LAST)) == []
    after = Snapshot.of(
        [*REGIONS[:2], RegionRow("r9", "t")],
        [ServerRow("s1", "h1", "a", draining=True), *SERVERS[2:]],
        (),
        [LastRow("r1", 0, "s3"), *LAST[1:]],
    )
    assert changes(before, after) == [
        "1 server gone (s2)",
        "1 server changed (s1)",
        "1 region gone (r3)",
        "1 region new (r9)",
        "1 replica elsewhere",
    ]


def test_rebase_keeps_what_fits_and_holds_every_rule() -> None:
    """A server has died and another drains: only their replicas move."""
    before = scenario("uniform", regions=300, servers=12, seed=3)
    rows = plan(before).rows
    servers = before.servers
    servers.draining[3] = True
    alive = ServerColumns(
        servers.server_id[1:],
        servers.host[1:],
        servers.rack[1:],
        servers.weight[1:],
        servers.grp[1:],
        servers.draining[1:],
    )
    now = Snapshot(before.regions, alive, before.blocks, before.last)
    made, kept = rebased(now, Params(), rows)
    assert verify(now, Params(), made.rows).ok
    lost = {str(servers.server_id[0]), str(servers.server_id[3])}
    assert kept == sum(1 for _, _, server in rows if server not in lost)
    same, all_kept = rebased(before, Params(), PlanRows.of([]))
    assert (all_kept, len(same.rows)) == (0, len(rows))


def _standing(snapshot: Snapshot, rows: PlanRows) -> Occupancy:
    return Occupancy(encode(snapshot, Params(), {}), rows)


def test_explanation_names_the_rule_that_bound() -> None:
    """All three prefer s1, but the quota allows one each; r3, with most bytes there, stays."""
    snapshot = Snapshot.of(REGIONS, SERVERS, BLOCKS, LAST)
    rows = plan(snapshot).rows
    standing = _standing(snapshot, rows)
    [stays] = explain_region(standing, "r3").replicas
    assert (stays.server_id, stays.bound, stays.held, stays.local_bytes) == ("s1", PlanRule.HERE, True, 63)
    [goes] = explain_region(standing, "r1").replicas
    assert (goes.bound, goes.held, goes.local_bytes) == (PlanRule.CEILING, False, 0)
    best = goes.alternatives[0]
    assert (best.server_id, best.rule, best.local_bytes, best.benefit) == ("s1", PlanRule.CEILING, 61, 111.0)
    assert (best.replicas, best.floor, best.ceil) == (1, 1, 1)
    with pytest.raises(BadInput, match="no region 'nothing'"):
        explain_region(standing, "nothing")


def test_explanation_of_distinct_servers_and_racks() -> None:
    """The other replica excludes its server and its rack."""
    servers = [ServerRow("s1", "h1", "a"), ServerRow("s2", "h2", "a"), ServerRow("s3", "h3", "b")]
    blocks = [BlockRow("r", "h2", 50)]
    snapshot = Snapshot.of([RegionRow("r", "t", 100, 2)], servers, blocks, [])
    rows = PlanRows.of([("r", 0, "s1"), ("r", 1, "s3")])
    second = explain_region(_standing(snapshot, rows), "r").replicas[1]
    assert {one.server_id: one.rule for one in second.alternatives} == {"s1": PlanRule.SERVER, "s2": PlanRule.RACK}
    assert second.bound is PlanRule.RACK
    first = explain_region(_standing(snapshot, rows), "r").replicas[0]
    assert first.alternatives[0].server_id == "s2"
    assert first.bound in (PlanRule.CEILING, PlanRule.TABLE, PlanRule.OTHERS, PlanRule.FLOOR)


def test_figures_add_up() -> None:
    """Counts, bytes and rack moves agree with the rows and with the engine's statistics."""
    snapshot = scenario("mixed", regions=400, servers=12, seed=5)
    made = plan(snapshot)
    problem = encode(snapshot, Params(), {})
    shown = figures(snapshot, problem, made.rows)
    assert sum(one.after for one in shown.servers) == len(made.rows) == shown.stay + shown.move + shown.first
    assert shown.local_after == made.stats.local_bytes
    assert sum(one.moves for one in shown.racks) == shown.move
    assert sum(one.bytes for one in shown.racks) == shown.moved_bytes
    assert all(one.floor <= one.after <= one.ceil for one in shown.servers)
    assert set(shown.bound) <= {rule.value for rule in PlanRule} - {PlanRule.HERE.value, PlanRule.WORSE.value}


def test_input_is_kept_beside_the_plan_and_guarded(tmp_path: Path) -> None:
    """The input read back has the fingerprint of the manifest; a changed or missing file is rejected by name."""
    pytest.importorskip("pyarrow")
    snapshot = Snapshot.of(REGIONS, SERVERS, BLOCKS, LAST)
    parts = keep_input(tmp_path, snapshot, Params(slop=0.5))
    origin = Origin(fingerprint=fingerprint(snapshot), inputs=tuple(parts), origin="files", names={"s1": "one"})
    write_plan(tmp_path, plan(snapshot), plan_id="p", params=Params(), seconds={}, origin=origin)
    manifest = read_manifest(tmp_path)
    back, params = read_input(tmp_path, manifest)
    assert (fingerprint(back), params.slop, manifest.names) == (manifest.fingerprint, 0.5, {"s1": "one"})
    changed = tmp_path / INPUT / "last.parquet"
    changed.write_bytes(changed.read_bytes() + b"x")
    with pytest.raises(BadPlan, match=r"last\.parquet has changed since"):
        read_input(tmp_path, manifest)
    changed.unlink()
    with pytest.raises(BadPlan, match=r"last\.parquet"):
        read_input(tmp_path, manifest)
    manifest.inputs = []
    with pytest.raises(BadPlan, match="has no copy of its input"):
        read_input(tmp_path, manifest)
