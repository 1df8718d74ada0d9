"""The load of drills: it finds wrong answers of the cluster, and measures unavailability."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import cli.drill.load as load_module
from cli.drill.load import KEYS, Load, LoadOperation, key_in, outages_of
from cli.drill.probes import ProbeTarget
from regions.records import partitioning
from regions.records.model import RegionRecord
from regionserver.client import DataError, NoSuchTable, RegionClient, Unavailable
from regionserver.request_gate import Place
from tests.support.helpers import eventually


def operation(
    region_id: str, began_s: float, ended_s: float, *, outcome: str = "ok", attempts: int = 1
) -> LoadOperation:
    return LoadOperation(region_id, "write", began_s, ended_s, outcome, attempts)


def test_outages_are_runs_of_disturbed_operations() -> None:
    """An outage runs from the first disturbed operation to the end of the last one before a good one."""
    found = outages_of(
        [
            operation("a", 0.0, 0.1),
            operation("a", 1.0, 3.0, attempts=4),
            operation("a", 3.1, 3.2, outcome="unknown"),
            operation("a", 4.0, 4.1),
            operation("a", 5.0, 5.9),
            operation("b", 2.0, 2.1),
            operation("b", 9.0, 9.5, outcome="failed"),
        ]
    )
    assert [(one.region_id, one.began_s, one.ended_s) for one in found] == [
        ("a", 1.0, 3.2),
        ("a", 5.0, 5.9),
        ("b", 9.0, 9.5),
    ]


class Rows:
    """A fake client: a dictionary of rows, with faults that the test switches on."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.failing: DataError | None = None

    def put(self, table: str, key: str, value: bytes) -> None:
        if self.failing is not None:
            raise self.failing
        self.rows[key] = value

    def get(self, table: str, key: str) -> bytes | None:
        if self.failing is not None:
            raise self.failing
        return self.rows.get(key)

    def write(self, table: str, changes: list[Any]) -> int:
        for change in changes:
            self.rows.pop(change.key, None)
        return len(changes)

    def close(self) -> None:
        """Do nothing."""


class Regions:
    """Stands for `Places`."""

    def regions(self, table: str) -> list[RegionRecord] | None:
        if table != "rows":
            return None
        return [RegionRecord("t", "r0", "", "a"), RegionRecord("t", "r1", "a", "a!"), RegionRecord("t", "r2", "a!", "")]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    return Rows()


def made(rows: Rows, **options: Any) -> Load:
    load = Load(RegionClient(Regions()), "rows", rate_per_s=2000, **options)  # type: ignore[arg-type]
    load._client = rows  # type: ignore[assignment]
    return load


def running(rows: Rows) -> Load:
    load = made(rows)
    load.start()
    eventually(lambda: load.counts["write ok"] > 60 and load.counts["read ok"] > 30, what="operations")
    return load


def test_a_sound_cluster_gives_a_sound_report(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts agree; keys are in their regions and are removed afterwards."""
    monkeypatch.setattr(load_module, "SLOW_S", 60.0)  # A short pause of the machine is not the subject of this test.
    load = running(rows)
    assert len(rows.rows) == 3 * KEYS
    for region in Regions().regions("rows") or []:
        assert sum(region.contains(key) for key in rows.rows) == KEYS
    report = load.stop()
    assert report.is_sound
    assert report.acknowledged_writes == report.counts["write ok"]
    assert (report.keys_checked, report.regions, rows.rows) == (3 * KEYS, 3, {})
    assert msgspec.json.decode(msgspec.json.encode(report))["regions_disturbed"] == 0


@pytest.mark.parametrize(
    "left", [None, b'{"seq":1}', b'{"seq":999999}', b"?"], ids=["lost", "old", "invented", "alien"]
)
def test_what_is_not_as_acknowledged_is_found(rows: Rows, left: bytes | None) -> None:
    """A missing row, one reverted by an old write, one that was never written, and a foreign row."""
    load = running(rows)
    load._stopped.set()
    load._driver.join()
    load._pool.shutdown(wait=True)
    key = sorted(rows.rows)[0]
    if left is None:
        del rows.rows[key]
    else:
        rows.rows[key] = left
    report = load.stop()
    assert not report.is_sound
    assert len(report.violations) == 1


def test_a_write_without_an_answer_may_be_there_or_not(rows: Rows) -> None:
    """An unknown outcome is neither lost nor done."""
    load = running(rows)
    rows.failing = Unavailable("silence", may_have_been_done=True)

    def disturbed() -> set[str]:
        return {one.region_id for one in list(load.operations) if one.outcome == "unknown"}

    eventually(lambda: len(disturbed()) == 3 and load.counts["read failed"] > 3, what="failures everywhere")
    rows.failing = None
    seen = load.counts["write ok"]
    eventually(lambda: load.counts["write ok"] > seen + 30, what="success again")
    report = load.stop()
    assert report.is_sound, report.violations
    assert report.unknown_writes >= 3
    assert report.regions_disturbed == 3
    assert report.outage_longest_s >= report.outage_p50_s > 0


def test_a_region_that_cannot_be_checked_is_a_violation(rows: Rows) -> None:
    """A region that could not be read proves nothing."""
    load = running(rows)
    load._stopped.set()
    load._driver.join()
    load._pool.shutdown(wait=True)
    rows.failing = Unavailable("silence")
    report = load.stop()
    assert len(report.violations) == 3
    assert report.keys_checked == 0


def test_an_unknown_table_is_told_before_anything_runs(rows: Rows) -> None:
    """No thread is left."""
    with pytest.raises(NoSuchTable):
        Load(RegionClient(Regions()), "nope")  # type: ignore[arg-type]


@pytest.mark.parametrize("buckets", [2, 64])
def test_keys_of_a_load_are_in_their_region_whatever_its_bucket(buckets: int) -> None:
    """Otherwise an outage would be counted for another region, and servers would reject keys of the wrong bucket."""
    specs = partitioning.ranges(["m"], buckets)
    for number, spec in enumerate(specs):
        region = RegionRecord("t", f"t.{number}", spec.start_key, spec.end_key, hash_buckets=buckets)
        keys = [key_in(region, one) for one in range(KEYS + 1)]
        assert len(set(keys)) == KEYS + 1
        assert all(region.contains(partitioning.place(key, buckets)) for key in keys)
        target = ProbeTarget("rows", region, Place(region.region_id, "s", 1, 1))
        assert (target.key, target.placed) == (keys[KEYS], partitioning.place(keys[KEYS], buckets))


def test_a_load_whose_start_was_interrupted_can_be_stopped(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the keys are written: the written ones are deleted, and no other error occurs."""
    load = made(rows)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(load._driver, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load.start()
    assert load.stop().is_sound
    assert rows.rows == {}
