"""The report of a million regions: turns of a phase out of counts since the start, tables, curves."""

from __future__ import annotations

from benchmarks.assign.million.measures import Turns, Usage, parse_turns
from benchmarks.assign.million.phases import Memory, Million, Phase
from benchmarks.assign.million.report import culprits, drawings, phases_table, sizes_table
from benchmarks.assign.scenes import Failover

_METRICS = """
# TYPE regionkeeper_reactor_turn_seconds histogram
regionkeeper_reactor_turn_seconds_bucket{le="0.01"} 90
regionkeeper_reactor_turn_seconds_bucket{le="0.025"} 97
regionkeeper_reactor_turn_seconds_bucket{le="+Inf"} 98
regionkeeper_reactor_turn_seconds_count 98
regionkeeper_reactor_turn_seconds_sum 1.5
# TYPE regionkeeper_reactor_long_turns counter
regionkeeper_reactor_long_turns_total{culprit="a.walk"} 2
# TYPE regionkeeper_reactor_longest_turn_seconds gauge
regionkeeper_reactor_longest_turn_seconds 0.3
# TYPE regionkeeper_reactor_longest_turn_processor_seconds gauge
regionkeeper_reactor_longest_turn_processor_seconds 0.2
"""


def test_turns_are_read_from_the_metrics() -> None:
    turns = parse_turns(_METRICS)
    assert turns == Turns(300.0, 2, {"a.walk": 2}, {0.01: 90, 0.025: 7, float("inf"): 1}, 200.0)


def test_the_longest_turn_of_a_phase_is_not_that_of_an_earlier_phase() -> None:
    before = parse_turns(_METRICS)
    after = Turns(300.0, 5, {"a.walk": 2, "b.list": 3}, {0.01: 100, 0.025: 9, float("inf"): 1}, 200.0)
    assert after.since(before) == Turns(25.0, 3, {"b.list": 3})
    longer = Turns(400.0, 3, {"a.walk": 3}, {0.01: 90, 0.025: 7, float("inf"): 2}, 250.0)
    assert longer.since(before) == Turns(400.0, 1, {"a.walk": 1}, work_ms=250.0)


def test_a_group_has_the_turns_of_all_its_processes() -> None:
    assert Turns(30.0, 1, {"a": 1}).joined(Turns(50.0, 3, {"a": 1, "b": 2})) == Turns(50.0, 4, {"a": 2, "b": 2})


def _million(regions: int) -> Million:
    used = {"active": Usage(2.0, Turns(40.0, 2, {"master.walk": 2})), "store": Usage(1.0, Turns(5.0))}
    failover = Failover(regions, regions // 100, 0.1, 0.4, 2.0, 0.2, 0.3, 800.0)
    phases = [Phase("assign", 10.0, regions, used), Phase("rest", 20.0, regions, used)]
    memory = Memory(600.0, 900.0, 850.0, 2_000.0)
    return Million(regions, 1_000, phases, memory, failover, failover, 4.0, 6.0, "flow", 1_000, 50)


def test_each_size_has_its_lines_and_phases_in_order() -> None:
    rounds = [_million(100_000), _million(10_000)]
    lines = phases_table(rounds)
    assert [line.split(" | ")[:5] for line in lines[2:]] == [
        ["| 10,000", "assign", "10.00", "200", "0"],
        ["| 10,000", "rest", "20.00", "10.0% of a core", "0.0% of a core"],
        ["| 100,000", "assign", "10.00", "20", "0"],
        ["| 100,000", "rest", "20.00", "10.0% of a core", "0.0% of a core"],
    ]
    found = sizes_table(rounds)
    assert len({line.count("|") for line in found}) == 1
    assert [line.split(" | ")[0] for line in found[2:]] == ["| 10,000", "| 100,000"]


def test_long_turns_are_named() -> None:
    assert culprits([_million(10_000)])[0] == (
        "- 10,000 regions, assign, active: 2 turns over 20 ms in `master.walk` 2"
    )


def test_one_size_has_no_curves() -> None:
    assert drawings([_million(10_000)]) == []
    assert len(drawings([_million(10_000), _million(100_000)])) == 5


def test_nothing_measured_is_no_table() -> None:
    assert phases_table([]) == sizes_table([]) == culprits([]) == []
