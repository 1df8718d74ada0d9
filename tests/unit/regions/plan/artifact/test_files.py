"""Snapshots and plans on disk: read back as written, and rejected if changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from regions.plan import (
    BadInput,
    BadPlan,
    BlockRow,
    LastRow,
    Params,
    RegionRow,
    ServerRow,
    Snapshot,
    UnusableOutput,
    plan,
)
from regions.plan.artifact.files import read_params, read_plan, read_snapshot, write_plan, write_snapshot

SNAPSHOT = Snapshot.of(
    [RegionRow('r,"1"', "t", 10, 2, "g", "käse"), RegionRow("r2", "t")],
    [
        ServerRow("s1", "h", weight=None, grp="g"),
        ServerRow("s2", "h", "rack", 2.5, "g", draining=True),
        ServerRow("s3", "i"),
    ],
    [BlockRow("r2", "h", None), BlockRow("r2", "i", 5)],
    [LastRow("r2", 0, "s1")],
)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_snapshot_reads_back_as_written(tmp_path: Path, kind: str) -> None:
    """Missing numbers stay missing, quotes and non-ASCII letters survive."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    write_snapshot(tmp_path, SNAPSHOT, Params(slop=0.1), kind=kind)
    back = read_snapshot(tmp_path)
    for name in ("regions", "servers", "blocks", "last"):
        for column, values in vars(getattr(SNAPSHOT, name)).items():
            got = getattr(getattr(back, name), column)
            assert got.dtype == values.dtype, (name, column)
            np.testing.assert_array_equal(got, values)
    assert read_params(tmp_path) == Params(slop=0.1)


def test_absent_optional_tables_and_columns_have_defaults(tmp_path: Path) -> None:
    """Ids alone suffice for a plan."""
    (tmp_path / "regions.csv").write_text("table_id,region_id,size_bytes,owner\nt,r1,5,me\n")
    (tmp_path / "servers.csv").write_text("server_id,host\ns1,h1\n")
    made = plan(read_snapshot(tmp_path), read_params(tmp_path))
    assert list(made.rows) == [("r1", 0, "s1")]


@pytest.mark.parametrize(
    ("regions", "words"),
    [
        (None, "no regions"),
        ("region_id,size_bytes\nr,1\n", "no column table_id"),
        ("region_id,table_id,size_bytes\nr,t,many\n", "near line 2"),
        ("region_id,table_id,size_bytes\nr\n", "near line 2"),
        ("region_id,table_id,size_bytes\nr,t,1_000\n", "near line 2: size_bytes: '1_000' is no number"),
        ("region_id,table_id,size_bytes\nr,t, 12 \n", "near line 2: size_bytes: ' 12 ' is no number"),
        ("region_id,table_id,size_bytes,load\nr,t,1,1_0.5\n", "near line 2: load: '1_0.5' is no number"),
    ],
)
def test_bad_input_names_file_and_place(tmp_path: Path, regions: str | None, words: str) -> None:
    """The message has the file and the fault."""
    if regions is not None:
        (tmp_path / "regions.csv").write_text(regions)
    with pytest.raises(BadInput, match=words):
        read_snapshot(tmp_path)


@pytest.mark.parametrize("other", ["regions.parquet", "regions/part-0.csv", "regions/part-0.parquet"])
def test_a_table_that_is_there_twice_is_refused(tmp_path: Path, other: str) -> None:
    """Otherwise one of the two files would be ignored silently."""
    write_snapshot(tmp_path, SNAPSHOT)
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).write_bytes((tmp_path / "regions.csv").read_bytes())
    with pytest.raises(BadInput, match=rf"has the table regions twice, as .*{other}"):
        read_snapshot(tmp_path)


def test_a_column_without_a_text_or_number_per_row_is_refused(tmp_path: Path) -> None:
    """Lists, records and times are not ids or sizes, even if a library could convert them."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    good = {"region_id": pa.array(["r"]), "table_id": pa.array(["t"]), "size_bytes": pa.array([1])}
    write_snapshot(tmp_path, SNAPSHOT, kind="parquet")
    for name, column in (
        ("size_bytes", pa.array([1], pa.timestamp("s"))),
        ("size_bytes", pa.array([[1]])),
        ("region_id", pa.array([{"a": 1}])),
    ):
        pq.write_table(pa.table({**good, name: column}), tmp_path / "regions.parquet")
        with pytest.raises(BadInput, match=rf"regions.parquet: column {name} is of type "):
            read_snapshot(tmp_path)


def test_bad_parameters_are_bad_input(tmp_path: Path) -> None:
    """Wrong types and broken JSON."""
    for text in ('{"slop": "wide"}', "{", '{"lambda_move": -3}'):
        (tmp_path / "params.json").write_text(text)
        with pytest.raises(BadInput):
            read_params(tmp_path)


def test_a_plan_is_complete_and_unchanged_or_refused(tmp_path: Path) -> None:
    """Without a manifest, with a flipped byte or with another digest the plan is rejected."""
    pytest.importorskip("pyarrow")
    made = plan(Snapshot.of([RegionRow(f"r{i}", "t") for i in range(5)], [ServerRow("s", "h"), ServerRow("u", "i")]))
    with pytest.raises(BadPlan, match="holds no plan"):
        read_plan(tmp_path)
    write_plan(tmp_path / "p", made, plan_id="p", params=Params(), seconds={}, rows_per_part=2)
    back, manifest = read_plan(tmp_path / "p")
    assert list(back.rows) == list(made.rows)
    assert [part.rows for part in manifest.parts] == [2, 2, 1]
    with pytest.raises(UnusableOutput, match="holds a plan already"):
        write_plan(tmp_path / "p", made, plan_id="p", params=Params(), seconds={})
    text = (tmp_path / "p" / "manifest.json").read_text()
    (tmp_path / "p" / "manifest.json").write_text(text.replace(made.digest, "0" * 64))
    with pytest.raises(BadPlan, match="digest"):
        read_plan(tmp_path / "p")
    (tmp_path / "p" / "manifest.json").write_text(text)
    part = tmp_path / "p" / "part-00001.parquet"
    data = bytearray(part.read_bytes())
    data[10] ^= 1
    part.write_bytes(bytes(data))
    with pytest.raises(BadPlan, match="part-00001"):
        read_plan(tmp_path / "p")
