"""The table of ratios: medians, which way is better, and which rows fall short."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.store.matrix import OURS, ZOOKEEPER, bound, goal
from benchmarks.store.report import Results, as_json, table


def some(tmp_path: Path) -> Results:
    """Return results as two processes with --raw leave them."""
    first, second = tmp_path / "a", tmp_path / "b"
    lines = [
        {"nodes": 3, "row": "set 10x16", "target": ZOOKEEPER, "ops_s": 100.0, "server_cpu_us_per_op": 50.0},
        {"nodes": 3, "row": "set 10x16", "target": OURS[0], "ops_s": 400.0, "server_cpu_us_per_op": 10.0},
        {"nodes": 3, "row": "set 10x16", "target": OURS[0], "fatal": "timeout"},
        {"nodes": 3, "row": "idle memory", "target": ZOOKEEPER, "value": 90.0, "unit": "MB"},
        {"nodes": 3, "row": "idle memory", "target": OURS[0], "value": 30.0, "unit": "MB"},
    ]
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    more = {"nodes": 3, "row": "set 10x16", "target": OURS[0], "ops_s": 600.0, "errors": 2}
    second.write_text(json.dumps(more) + "\n")
    results = Results()
    for path in (first, second):
        results.read(path)
    return results


def test_results_of_several_runs_make_one_table(tmp_path: Path) -> None:
    results = some(tmp_path)
    assert results.value(3, "set 10x16", OURS[0]) == 500
    assert results.ratio(3, "set 10x16", OURS[0], ZOOKEEPER) == 5
    assert results.ratio(3, "idle memory", OURS[0], ZOOKEEPER) == 3
    assert results.faults(3, "set 10x16", OURS[0]) == 3
    assert not results.falls_short(3, "set 10x16", OURS[0], ZOOKEEPER)
    shown = table(results, 3)
    assert "| set 10x16 | 100 | 50.0 | 500 | 10.0 | **5.00** |" in shown
    assert "| idle memory | 90.0 MB |" in shown
    rows = json.loads(as_json(results))
    assert [row["row"] for row in rows] == ["set 10x16", "idle memory"]
    assert rows[0][OURS[0]]["ratio"] == 5


def test_goals_are_those_of_the_size_and_a_missing_result_falls_short(tmp_path: Path) -> None:
    assert (goal(3, "set 10x16"), goal(1, "set 10x16"), goal(3, "set 1x1"), goal(1, "set 1x1")) == (5, 2, 1.2, 1)
    assert (goal(1, "get 50x1"), goal(3, "get 50x64"), goal(3, "mixed 10x16")) == (1.5, 6, 1)
    assert bound("write outage, leader killed") == 300
    assert bound("set 10x16") is None
    results = some(tmp_path)
    results.add(3, "write outage, leader killed", ZOOKEEPER, {"value": 900.0, "unit": "ms"})
    results.add(3, "write outage, leader killed", OURS[0], {"value": 301.0, "unit": "ms"})
    assert results.falls_short(3, "write outage, leader killed", OURS[0], ZOOKEEPER)
    assert results.falls_short(3, "get 10x16", OURS[0], ZOOKEEPER)
