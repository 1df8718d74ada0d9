"""The measurement of bulk plans, on inputs of a few hundred regions."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.plan import __main__ as program
from benchmarks.plan.dead_server import Death, loaded
from benchmarks.plan.hbase import inputs
from benchmarks.plan.judging import moves_min, worth
from benchmarks.plan.references import retain_then_deal, sort_by_value
from benchmarks.plan.report import Row, as_json, tables
from regions.plan import LastRow, Params, PlanRows, RegionRow, ServerRow, Snapshot, plan
from regions.plan.problem.numbered import encode
from regions.plan.problem.scenarios import SCENARIOS, scenario


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("method", ["sorted", "hbase"])
def test_references_place_every_replica_once(name: str, method: str) -> None:
    """A plain method may exceed bounds, but must follow the rules without which its result is not a plan."""
    snapshot = scenario(name, regions=300, servers=30, seed=8)
    problem = encode(snapshot, Params(), {})
    pairs = sort_by_value(problem) if method == "sorted" else retain_then_deal(problem, snapshot)
    nth: dict[int, int] = {}
    rows = []
    for region, server in pairs:
        nth[region] = nth.get(region, -1) + 1
        rows.append((problem.region_ids[region], nth[region], problem.fleet.ids[server]))
    found = worth(problem, PlanRows.of(rows))
    assert not {"missing", "surplus", "same_server", "wrong_server"} & set(found.broken), found


def test_least_moves_are_those_that_bounds_force() -> None:
    """With eight regions on one of two servers four have to move; regions of a dead server are not counted."""
    regions = [RegionRow(f"r{i}", "t", 1) for i in range(8)]
    servers = [ServerRow("a", "ha"), ServerRow("b", "hb")]
    last = [LastRow(f"r{i}", 0, "a") for i in range(7)] + [LastRow("r7", 0, "gone")]
    snapshot = Snapshot.of(regions, servers, (), last)
    problem = encode(snapshot, Params(table_slack=0), {})
    assert moves_min(problem) == 3
    made = worth(problem, plan(snapshot, Params(table_slack=0)).rows)
    assert (made.violations, made.moves, made.spread) == (0, 3, 0.0)


def test_hbase_questions_are_what_they_say() -> None:
    """Nothing has to move when all servers are back; when servers are empty, their shares have to move."""
    found = {}
    for name, snapshot in inputs(600, 20, 5).items():
        made = worth(encode(snapshot, Params(), {}), plan(snapshot).rows)
        assert made.violations == 0
        found[name] = (made.moves, made.spread)
    assert found == {"round robin": (0, 0.0), "retain": (0, 0.0), "balance": (150, 0.0)}


def test_a_dead_servers_regions_are_all_open_again() -> None:
    """The test drives the assigner through the whole event: answer, orders, and every step to the end."""
    death = Death(loaded(400, 20), "server-00007")
    assert len(death.placed) == len(death.victims) == 20
    assert death.closed == 0
    assert death.spread <= 2
    assert not death.assigner.world.active


def test_bench_measures_renders_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """From the command line to the table, and again from the raw file; an unknown name is reported."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("ortools")
    monkeypatch.setitem(program.SIZES, "10k", (300, 30))
    raw = tmp_path / "raw"
    arguments = ["--size", "10k", "--only", "uniform", "--engine", "flow,sorted", "--raw", str(raw)]
    assert program.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "| uniform | flow | 0 | 1.0000 | 1.0000 |" in shown
    assert program.main(["--render", str(raw)]) == 0
    assert capsys.readouterr().out == shown
    assert program.main(["--render", str(raw), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["value_ratio"] == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(SystemExit):
        program.main(["--only", "unifrom"])
    assert "unifrom is none of uniform" in capsys.readouterr().err


def test_tables_tell_failures_and_unknown_optima() -> None:
    """A failed plan has its reason in the table; without the exact flow there is no ratio."""
    failed = Row(size="1m", scenario="mixed", engine="spark", error="no Java")
    snapshot = scenario("uniform", regions=60, servers=6, seed=1)
    alone = Row(
        size="1m", scenario="mixed", engine="greedy", worth=worth(encode(snapshot, Params(), {}), plan(snapshot).rows)
    )
    text = tables([failed, alone])
    assert "| mixed | spark | no Java |" in text
    assert "| mixed | greedy | 0 | ? | ? |" in text
    assert msgspec.json.decode(as_json([failed]))[0]["value_ratio"] is None
