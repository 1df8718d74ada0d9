"""Malformed inputs of `rk plan create`: each is counted and reported, from CSV and from Parquet, by both engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.common.errors import ExitStatus
from cli.main import run
from master.plans.planner import snapshot_of
from regions.cluster.entities import Server
from regions.cluster.state import ClusterState
from regions.plan import Params, plan
from regions.plan.artifact.files import MANIFEST, write_snapshot
from regions.records.model import RegionRecord, ReplicaLocation, ServerRecord, TableRecord
from tests.support.malformed import DIRTY, Dirty

pytest.importorskip("pyarrow")


@pytest.mark.parametrize("engine", ["greedy", "flow"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("case", DIRTY, ids=lambda case: str(case.name))
def test_from_files(case: Dirty, kind: str, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is a plan of the valid rows, with the others counted; or a one-line error, and nothing is written."""
    if engine == "flow":
        pytest.importorskip("ortools")
    write_snapshot(tmp_path / "in", case.snapshot, Params(), kind=kind)
    made = tmp_path / "plan"
    words = ["plan", "create", "--input", str(tmp_path / "in"), "--output", str(made), "--engine", engine]
    status = run(words)
    said = capsys.readouterr()
    if case.error:
        assert status == ExitStatus.USAGE
        assert str(tmp_path / "in") in said.err
        assert not (made / MANIFEST).exists()
        for sentence in case.says:
            assert sentence in said.err
        return
    assert status == 0, said.err
    for sentence in case.says:
        assert sentence in said.out
    found = json.loads((made / MANIFEST).read_text())
    assert found["rows"] == case.rows
    assert {name: found["stats"].get(name) for name in case.stats} == case.stats
    assert run(["plan", "show", str(made)]) == 0
    shown = capsys.readouterr().out
    for sentence in case.says:
        assert sentence in shown


def test_from_the_store() -> None:
    """Faults that a cluster's own records can have: servers that are gone, empty, without weight or of another
    group."""
    world = ClusterState()
    for number, (weight, group, draining) in enumerate([(1.0, "", False), (0.0, "", False), (1.0, "", True)], 1):
        record = ServerRecord(f"s{number}", f"h{number}", 1, 1, weight=weight, group=group)
        world.servers[record.uuid] = Server(record, draining)
    world.put_table(TableRecord("t", "orders", replication=2), 0)
    world.put_table(TableRecord("u", "other", group="x"), 0)
    places = (ReplicaLocation(0, "gone"), ReplicaLocation(1, "s3"))
    world.put_region(RegionRecord("t", "a", size_bytes=10, replicas=places), 0)
    world.put_region(RegionRecord("u", "b", size_bytes=10, replicas=()), 0)
    made = plan(snapshot_of(world, world.replicas.values()), Params())
    assert list(made.rows) == [("a", 0, "s1")]
    assert made.stats.ignored == {"last_server": 2, "server_draining": 1, "server_weight": 1}
    assert (made.stats.under_replicated, made.stats.unassignable) == (1, {"x": 1})
