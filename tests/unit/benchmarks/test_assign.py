"""The report of `make bench`: medians over rounds, goals and published figures beside them, sizes in order."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest

from benchmarks.arguments import made_folder
from benchmarks.assign import __main__ as bench
from benchmarks.assign import beating, ddl, takeover
from benchmarks.assign.ddl import Ddl, Rate
from benchmarks.assign.million.measures import Turns
from benchmarks.assign.scenes import Death, Failover, Growth


def _failover(regions: int, serving_s: float) -> Failover:
    return Failover(regions, 1_000, 0.1, serving_s, 2.0, 0.2, 0.3, 800.0)


def _growth(regions: int, assign_s: float) -> Growth:
    return Growth(regions, assign_s, 200.0, 50.0, 80.0, 120.0, 0.03, 0.05, 5.1, _failover(regions, 0.5))


def test_goals_stand_beside_medians_and_what_is_published() -> None:
    report = bench.Report("compiled", 2, start=[6.0, 5.0, 9.0], death=[Death(1_000, 3.0, 0.5)])
    report.failover.append(_failover(10_000, 0.8))
    lines = bench.goals_table(report)
    assert "| cluster start, 10,339 regions on 4 servers | 6.00 | 5.00 | 9.00 | 10 | 250 |" in lines
    assert "| server killed: its 1,000 regions open elsewhere | 0.50 | 0.50 | 0.50 | 1 | 85 |" in lines
    assert any(line.startswith("| master killed, 10,000 regions, 1,000 in transition") for line in lines)


def test_growth_has_a_line_for_each_size() -> None:
    lines = bench.growth_table([_growth(10_000, 8.0), _growth(1_000, 0.5), _growth(1_000, 0.7)])
    assert [line.split(" | ")[:3] for line in lines[2:]] == [
        ["| 1,000", "0.60", "1,714"],
        ["| 10,000", "8.00", "1,250"],
    ]


def test_operations_on_tables_have_a_line_for_each_number_of_clients() -> None:
    rounds = [
        Ddl(clients, waits, 10, [Rate(kind, 1000.0 * clients + at, 1.5, 2.5) for at, kind in enumerate(ddl.KINDS)])
        for waits in (True, False)
        for clients in (8, 1)
    ]
    lines = ddl.table(rounds)
    assert lines[2] == "| 1 | when it is durable | 1,000 | 1.5 | 2.5 | 1,001 | 1.5 | 2.5 | 1,002 | 1.5 | 2.5 |"
    assert [line.split(" | ")[:2] for line in lines[3:]] == [
        ["| 8", "when it is durable"],
        ["| 1", "when it is carried out"],
        ["| 8", "when it is carried out"],
    ]
    assert len({line.count("|") for line in lines}) == 1


def test_nothing_measured_is_no_table() -> None:
    empty = bench.Report("compiled", 2)
    assert bench.goals_table(empty) == bench.growth_table(empty.growth) == []
    assert msgspec.json.decode(msgspec.json.encode(empty), type=bench.Report) == empty


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "dead"], "start, death, failover, growth, takeover, ddl, heartbeats"),
        (["--rounds", "0"], "0 is not"),
        (["--sizes", "1,x"], "x is"),
    ],
)
def test_wrong_options_are_told_before_anything_starts(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *words])
    with pytest.raises(SystemExit):
        bench.main()
    assert told in capsys.readouterr().err


def test_takeovers_stand_side_by_side() -> None:
    slow = Turns(31.4, 2, {"load": 2}, work_ms=21.0)
    one = takeover.Takeover(1_000, _failover(1_000, 0.1), _failover(1_000, 0.4), 900.0, 1.0, cold_turns=slow)
    other = takeover.Takeover(1_000, _failover(1_000, 0.3), _failover(1_000, 0.6), 1_100.0, 2.0, Turns(4.0))
    lines = takeover.table([one, other])
    assert lines[2:] == [
        "| 1,000 | 0.200 | 0.100 | 0.200 | 0.300 | 4 | 0.500 | 0.100 | 0.200 | 0.300 | 31 (21) | 1,000 | 1.5 |"
    ]
    assert len({line.count("|") for line in lines}) == 1
    assert takeover.culprits([one, other]) == ["- 1,000 regions, cold: 2 turns over 20 ms in `load` 2"]


def test_filled_regions_lie_in_tables_of_bounded_size() -> None:
    size = beating.TABLE_REGIONS
    tables = beating.tables_of(2 * size + 5)
    assert [len(numbers) for _, numbers in tables] == [size, size, 5]
    assert all(name == beating.table_of(one) for name, numbers in tables for one in (numbers[0], numbers[-1]))
    assert beating.region_of(size).startswith(tables[1][0])


def test_the_work_folder_is_made(tmp_path: Path) -> None:
    assert made_folder(str(tmp_path / "one" / "two")).is_dir()
    assert made_folder(str(tmp_path)) == tmp_path
    (tmp_path / "file").touch()
    with pytest.raises(argparse.ArgumentTypeError, match="cannot make the folder"):
        made_folder(str(tmp_path / "file" / "below"))


def test_every_benchmark_makes_its_work_folder() -> None:
    """A benchmark whose option --work has another type ends with a traceback if the folder is missing."""
    sources = [path for path in Path(bench.__file__).parent.parent.rglob("*.py") if "--work" in path.read_text()]
    options = [line for path in sources for line in path.read_text().splitlines() if '("--work"' in line]
    assert len(options) > 5
    assert [line for line in options if "type=made_folder" not in line] == []
