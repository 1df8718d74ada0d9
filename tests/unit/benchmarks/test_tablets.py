"""The report of `make bench-tablets`: medians and ratios of both storages, goals, gaps of outages, CPU by layer."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.tablets import __main__ as bench
from benchmarks.tablets.clients import Writers, keys_of, quantile
from benchmarks.tablets.cluster import SHARED, TABLET, Use, region_prefix
from benchmarks.tablets.idle import Idle
from benchmarks.tablets.layers import Layers
from benchmarks.tablets.report import Report, Row, costs_table, goals_table
from benchmarks.tablets.scenes import Made, Outage, Restarted, Speed
from benchmarks.tablets.splitting import Split


def _speed(storage: str, per_s: float, p50_ms: float) -> Speed:
    return Speed(storage, per_s, p50_ms, 2 * p50_ms, 100.0, 200.0, 3.0, 0.5, 4.0, 1_234.0)


def _line(report: Report, begin: str) -> str:
    [line] = [line for line in goals_table(report) if line.startswith(f"| {begin}")]
    return line


def test_rates_and_times_are_compared_with_shared_regions() -> None:
    report = Report("compiled", 2)
    report.load = [_speed(SHARED, 100_000, 8), _speed(TABLET, 60_000, 9), _speed(TABLET, 40_000, 9)]
    report.get = [_speed(SHARED, 4_000, 0.2), _speed(TABLET, 2_000, 0.5)]
    assert _line(report, "bulk load").endswith(
        "| 100,000 rows/s | 50,000 rows/s | 0.50 | ≥ 50,000 rows/s, ratio ≥ 0.3 |"
    )
    # 2.5 times the shared table's time is more than the goal.
    assert _line(report, "get, linearizable, one client, p50").endswith("| 0.20 ms | 0.50 ms ✗ | 2.50 | ratio ≤ 2 |")


@pytest.mark.parametrize(
    ("row", "misses"),
    [
        (Row("", "s", 0.4, most=0.4), False),
        (Row("", "s", 0.41, most=0.4), True),
        (Row("", "rows/s", 50_000.0, least=50_000), False),
        (Row("", "rows/s", 49_999.0, least=50_000), True),
        (Row("", "ms", 3.0, 2.0, ratio_most=1.5), False),
        (Row("", "ms", 3.1, 2.0, ratio_most=1.5), True),
        (Row("", "rows/s", 29.0, 100.0, ratio_least=0.3), True),
        (Row("", "ms", 3.1, ratio_most=1.5), False),
        (Row("", "ms", 3.1, 2.0), False),
    ],
)
def test_a_goal_is_missed_beyond_its_bound(row: Row, misses: bool) -> None:
    assert row.misses() is misses


def test_goals_of_size_hold_for_a_thousand_regions_only() -> None:
    report = Report("compiled", 2)
    report.create = [Made(TABLET, 100, 60.0), Made(TABLET, 1_000, 6.5), Made(SHARED, 1_000, 0.5)]
    report.restart = [Restarted(1_000, 1.0, 2.0)]
    assert "✗" not in _line(report, "create 100 x 3")
    assert _line(report, "create 1,000 x 3").endswith("| 0.50 s | 6.50 s ✗ | 13.00 | ≤ 6.00 s |")
    assert _line(report, "restart with 1,000 tablets: all caught up").endswith("|  | 2.00 s |  | ≤ 3.00 s |")


def test_quiet_tablets_have_a_goal_for_the_cpu() -> None:
    report = Report("compiled", 2)
    report.idle = [Idle(1_000, 0.02, 30.0), Idle(1_000, 0.008, 31.0), Idle(1_000, 0.009, 29.0)]
    assert _line(report, "server with 1,000 quiet tablets: CPU").endswith(
        "|  | 0.90 % of a core |  | ≤ 1.00 % of a core |"
    )
    assert "30.0 KB" in _line(report, "server with 1,000 quiet tablets: memory of each")


def test_a_split_has_goals_for_the_longest_put_and_the_longest_gap() -> None:
    report = Report("compiled", 2)
    report.split = [
        Split(300_000_000, 9.0, 5.0, 20.0, 30.0, 6.0, 90.0, longest, 40.0, 99.0) for longest in (80, 101, 140)
    ]
    assert _line(report, "tablet of 300 MB split, 16 clients: longest put |").endswith("| 101 ms ✗ |  | ≤ 100 ms |")
    assert "✗" not in _line(report, "tablet of 300 MB split, 16 clients: longest time without")


def test_outages_have_a_line_for_each_quantile_and_a_goal_for_the_longest_gap() -> None:
    report = Report("compiled", 2)
    report.outages = [
        Outage(SHARED, "killed", 200, 66, 0.1, 3.0, 3.2),
        Outage(TABLET, "killed", 200, 70, 0.1, 0.3, 0.5),
        Outage(TABLET, "frozen", 200, 70, 0.1, 1.0, 1.2),
    ]
    assert _line(report, "server killed, 200 regions, 8 writers: longest gap, max").endswith(
        "| 3.20 s | 0.50 s ✗ | 0.16 | ≤ 0.40 s |"
    )
    assert _line(report, "server frozen, 200 regions, 8 writers: longest gap, max").endswith(
        "|  | 1.20 s |  | ≤ 1.50 s |"
    )


def test_costs_have_a_line_for_each_storage() -> None:
    report = Report("compiled", 2, put=[_speed(TABLET, 1_000, 2)], get=[_speed(SHARED, 1_000, 2)])
    assert costs_table(report)[2:] == [
        "| put, tablet | 100 | 200 | 3.00 | 0.50 | 4.00 | 1,234 |",
        "| get, shared | 100 | 200 | 3.00 | 0.50 | 4.00 | 1,234 |",
    ]


def test_nothing_measured_is_an_empty_table_and_results_pass_through_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw"
    one = Report("compiled", 2, put=[_speed(SHARED, 1_000, 2), _speed(TABLET, 500, 3)])
    raw.write_bytes(msgspec.json.encode(one) + b"\n" + msgspec.json.encode(one) + b"\n")
    monkeypatch.setattr("sys.argv", ["bench-tablets", "--render", str(raw)])
    assert bench.main() == 0
    shown = capsys.readouterr().out
    assert "| put, 16 clients, p50 | 2.00 ms | 3.00 ms | 1.50 | ratio ≤ 1.5 |" in shown
    assert costs_table(Report("compiled", 2)) == []
    assert len(goals_table(Report("compiled", 2))) == 2


@pytest.mark.parametrize("arguments", [["--only", "everything"], ["--only", ","], ["--rounds", "0"]])
def test_wrong_options_are_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench-tablets", *arguments])
    with pytest.raises(SystemExit) as ended:
        bench.arguments()
    assert ended.value.code == 2


class _Client:
    """Accepts puts; those of keys of region 1 wait for `may_go_on`."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.fails = False

    def put(self, table: str, key: str, value: bytes) -> None:
        if self.fails:
            raise ValueError(f"{table} is gone, {key} with {len(value)} bytes")
        self.keys.append(key)
        if key.startswith(region_prefix(1)):
            self.has_begun.set()
            assert self.may_go_on.wait(30), "the test has not gone on"


def test_the_longest_gap_of_a_region_is_that_between_two_acknowledgments() -> None:
    client: Any = _Client()
    writers = Writers(client, "t", 2, 1)
    assert client.has_begun.wait(30)
    client.may_go_on.set()
    writers.stop()
    writers.acknowledged = [[1.0, 2.0, 5.0, 5.5], [1.0, 2.0], []]
    # The gap from 2.0 to 5.0 ended after the outage began at 4.0; the others ended before, or are shorter.
    assert writers.longest_gaps(4.0) == [3.0, 0.0, 0.0]
    assert not writers.have_written_since(4.0)
    writers.acknowledged = [[5.0], [6.0]]
    assert writers.have_written_since(4.0)


def test_a_writer_that_fails_is_reported() -> None:
    client: Any = _Client()
    client.fails = True
    writers = Writers(client, "t", 1, 1)
    with pytest.raises(ValueError, match="t is gone"):
        writers.stop()


def test_keys_lie_in_their_region_and_differ() -> None:
    keys = list(itertools.islice(keys_of(7, 1), 100)) + list(itertools.islice(keys_of(7, 2), 100))
    assert len(set(keys)) == 200
    assert all(region_prefix(7) <= key < region_prefix(8) for key in keys)


def test_quantiles() -> None:
    assert quantile([], 0.5) == 0
    assert [quantile([3.0, 1.0, 2.0], part) for part in (0.0, 0.5, 0.99, 1.0)] == [1.0, 2.0, 3.0, 3.0]
    assert Use(3.0, 2.0, 1.0, 10).since(Use(1.0, 1.0, 1.0, 4)) == (2.0, 1.0, 0.0, 6, 0, 0)


def test_time_of_a_layer_is_without_the_layers_that_it_calls() -> None:
    layers = Layers()

    def busy() -> None:
        sum(range(200_000))

    inner = layers.timed("inner", busy)

    def call() -> None:
        for _ in range(20):
            inner()

    outer = layers.timed("outer", call)
    threads = [threading.Thread(target=outer) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = layers.spent()
    assert [spent[layer][1] for layer in ("inner", "outer")] == [40, 2]
    assert spent["outer"][0] < spent["inner"][0]
    layers.clear()
    assert layers.spent() == {}
