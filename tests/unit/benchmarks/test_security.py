"""The tables of `make bench-security`: ratios and their goals, from medians of turns."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.security import __main__ as bench
from benchmarks.security.beside import CLIENTS, Beside
from benchmarks.security.cost import OPEN, SECURED, Measured, rows
from benchmarks.security.flood import Flooded
from benchmarks.security.report import Report, shown


def _beside(attacked_ms: float, *, failed: int = 0, lapses: int = 0) -> Beside:
    quiet = dict.fromkeys(CLIENTS, 2.0)
    return Beside(10, quiet, {**quiet, "rows": attacked_ms}, failed, lapses)


@pytest.mark.parametrize(
    ("found", "misses"),
    [
        (_beside(10.0), False),
        (_beside(10.1), True),
        (_beside(2.0, failed=1), True),
        (_beside(2.0, lapses=1), True),
    ],
)
def test_an_attack_misses_a_goal(found: Beside, misses: bool) -> None:
    assert found.misses() is misses
    assert Report("compiled", 2, [found]).misses() is misses
    assert ("✗ |" in shown(Report("compiled", 2, [found])).split("Goals:")[0]) is misses


@pytest.mark.parametrize(
    ("rows_ms", "failed", "lapses", "misses"),
    [(10.0, 0, 0, False), (10.1, 0, 0, True), (2.0, 1, 0, True), (2.0, 0, 1, True)],
)
def test_a_flood_misses_a_goal(rows_ms: float, failed: int, lapses: int, misses: bool) -> None:
    quiet = {"store": 2.0, "rows": 2.0}
    found = Flooded(quiet, {**quiet, "rows": rows_ms}, quiet, failed, lapses, 9000.0, 0.1, 0.2)
    assert found.misses() is misses
    report = Report("compiled", 2, flood=[found])
    assert report.misses() is misses
    assert ("✗ |" in shown(report).split("Goals:")[0]) is misses


def test_a_ratio_is_to_no_less_than_a_pause_of_the_scheduler() -> None:
    quick = Beside(10, dict.fromkeys(CLIENTS, 0.1), dict.fromkeys(CLIENTS, 4.0), 0, 0)
    assert quick.ratio("store") == 4.0


def test_medians_of_both_clusters_are_compared() -> None:
    turns = [Measured("get 50x64, requests/s", OPEN, value, 1.0) for value in (90.0, 100.0, 500.0)]
    turns += [Measured("get 50x64, requests/s", SECURED, value, 2.0) for value in (70.0, 80.0, 1.0)]
    turns += [Measured("assignment of 100 regions, s", OPEN, 2.0, 5.0)]
    turns += [Measured("assignment of 100 regions, s", SECURED, 4.0, 6.0)]
    get, assign = rows(turns)
    assert (get.ratio, get.loses, get.is_time) == (0.7, True, False)
    assert (assign.ratio, assign.loses, assign.is_time) == (0.5, True, True)
    table = shown(Report("compiled", 2, cost=turns))
    assert "| get 50x64, requests/s | 100 | 70 | **0.70** ✗ | 1.00 → 2.00 |" in table
    assert "| assignment of 100 regions, s | 2.0 | 4.0 | **0.50** ✗ | 5.00 → 6.00 |" in table


def test_raw_results_make_one_table(tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """The exit status is the verdict."""
    file = tmp_path / "raw"
    file.write_bytes(b"\n".join(msgspec.json.encode(Report("compiled", 2, [_beside(ms)])) for ms in (4.0, 40.0)))
    monkeypatch.setattr("sys.argv", ["bench", "--render", str(file)])
    assert bench.main() == 1
    assert capsys.readouterr().out.count("reads that count") == 2
