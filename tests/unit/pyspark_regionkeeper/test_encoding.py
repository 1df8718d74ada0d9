"""Rows of frames become keys and bytes, and come back as batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cli.common.errors import UsageFaultError
from pyspark_regionkeeper.columns import PAIRS, arrow_schema, batches, ddl
from pyspark_regionkeeper.encoding import (
    Columns,
    Known,
    Objects,
    Pairs,
    RegionLayout,
    Texts,
    check_sorted,
    encode_batches,
    encoded,
)
from pyspark_regionkeeper.errors import SourceError
from pyspark_regionkeeper.writing import check_different, chunks
from regions.records import schema as sc
from regions.records.rows.codec import EncodedRow, TypedTable
from regionserver.client import Change

COLUMNS = ("id:int64:key", "at:timestamp", "price:float", "ok:bool", "raw:binary", "a`b:string", "small:int8:required")
TABLE = TypedTable("t", sc.create([sc.parse_column(one) for one in COLUMNS]), 3)
ROW: dict[str, Any] = {
    "id": 5,
    "at": 1_767_225_600_000_001,
    "price": 0.5,
    "ok": True,
    "raw": b"\0",
    "a`b": "x",
    "small": 7,
}


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Return rows as a batch with the table's types."""
    schema = arrow_schema(TABLE)
    return pa.RecordBatch.from_arrays(
        [pa.array([row[field.name] for row in rows], field.type) for field in schema], schema=schema
    )


def rows_only(found: Any) -> list[EncodedRow]:
    """Return the encoded rows; fail for a problem."""
    listed = list(found)
    assert all(isinstance(one, EncodedRow) for one in listed), listed
    return listed


def test_rows_come_back_with_every_type_to_the_microsecond() -> None:
    """Fails when times are cut to milliseconds."""
    rows = [ROW, dict.fromkeys(ROW) | {"id": -1, "small": -128}]
    stored = rows_only(encoded([batch_of(*rows)], Columns(TABLE)))
    (back,) = batches(TABLE, stored)
    assert back.equals(batch_of(*rows))


def test_the_schema_is_that_of_the_table() -> None:
    """Names are quoted, and columns that may be null are."""
    assert ddl(TABLE).startswith("`id` BIGINT NOT NULL, `at` TIMESTAMP, `price` FLOAT, `ok` BOOLEAN, `raw` BINARY")
    assert ddl(TABLE).endswith("`a``b` STRING, `small` TINYINT NOT NULL")
    assert ddl(None) == PAIRS


def test_batches_have_a_bounded_number_of_rows() -> None:
    """Five rows in batches of two."""
    found = list(batches(None, [(f"k{number}", b"v") for number in range(5)], size=2))
    assert [one.num_rows for one in found] == [2, 2, 1]


def test_a_row_that_does_not_fit_is_named() -> None:
    """With table, column, value and the row."""
    frame = pa.RecordBatch.from_pylist([{"id": 5, "small": 300}])
    (problem,) = encoded([frame], Columns(TABLE))
    assert isinstance(problem, str)
    assert "column 'small': 300 is no int8" in problem
    assert problem.endswith("the row is id=5, small=300")


def test_columns_of_a_frame_are_checked_before_any_row() -> None:
    """Unknown ones, and required ones that are missing."""
    with pytest.raises(SourceError, match=r"the frame: table 't' has no column 'x'.*Leave them out"):
        Columns(TABLE).check(["id", "small", "x"])
    with pytest.raises(SourceError, match="the frame has no column 'small', which is required"):
        Columns(TABLE).check(["id"])
    with pytest.raises(SourceError, match="takes key STRING and value BINARY, and the frame has key, v"):
        Pairs().check(["key", "v"])


def test_csv_fields_are_read_as_rk_load_reads_them() -> None:
    """Null is the field that stands for it, in a column that may be null; unknown columns are left out if wished."""
    form = Texts(TABLE, "f.csv", "-", skip_unknown=True)
    form.check(["id", "at", "ok", "small", "other"])
    fields = {"id": "5", "at": "2026-01-01T00:00:00Z", "ok": "-", "small": "7", "other": "y"}
    (row,) = rows_only(encoded([pa.RecordBatch.from_pylist([fields])], form))
    assert TABLE.decode(*row) | {"raw": None} == dict.fromkeys(ROW) | {"id": 5, "at": 1_767_225_600_000_000, "small": 7}
    with pytest.raises(UsageFaultError, match=r"f\.csv: table 't' has no column 'other'"):
        Texts(TABLE, "f.csv", "", skip_unknown=False).check(["id", "small", "other"])
    (problem,) = encoded([pa.RecordBatch.from_pylist([{"id": "5", "small": "many"}])], form)
    assert "'many' is no int8" in str(problem)


def test_parquet_columns_that_the_table_lacks_are_left_out_if_wished() -> None:
    """As --skip-unknown does."""
    form = Known(TABLE, "f.parquet", skip_unknown=True)
    (row,) = rows_only(encoded([pa.RecordBatch.from_pylist([{"id": 5, "small": 7, "other": 1}])], form))
    assert row.key == TABLE.key_of({"id": 5})


def test_values_of_tables_without_columns_are_rows_as_json() -> None:
    """An empty field is read as nothing by Spark, and is an empty text."""
    (row,) = rows_only(encoded([pa.RecordBatch.from_pylist([{"name": "a", "size": None}])], Objects("f.csv", "name")))
    assert row == EncodedRow("a", b'{"name":"a","size":""}')
    (problem,) = encoded([pa.RecordBatch.from_pylist([{"name": "", "size": "1"}])], Objects("f.csv", "name"))
    assert "the key must not be empty" in str(problem)


def test_rows_know_their_region_and_problems_have_none() -> None:
    """A valid row has the index of its region; a row with a problem has -1."""
    layout = RegionLayout(["", "m"], 0)
    frame = pa.RecordBatch.from_pylist(
        [{"key": "z", "value": b"1"}, {"key": "a", "value": b"2"}, {"key": "", "value": b""}]
    )
    (found,) = encode_batches([frame], Pairs(), layout)
    assert found.column("region").to_pylist() == [1, 0, -1]
    assert found.column("placed").to_pylist() == ["z", "a", None]
    assert "is not empty" in found.column("problem").to_pylist()[2]
    (hashed,) = encode_batches([frame.slice(0, 1)], Pairs(), RegionLayout([""], 4))
    assert hashed.column("placed").to_pylist()[0][4:] == ":z"


@pytest.mark.parametrize(
    ("placed", "problems", "wanted"),
    [
        (["a", "b"], [None, None], None),
        (["a", "a"], [None, None], "two rows have the same key 'a'"),
        ([None, None, "b"], ["wrong", "wrong too", None], "wrong"),
    ],
)
def test_sorted_rows_are_checked_for_problems_and_keys_that_occur_twice(
    placed: list[str | None], problems: list[str | None], wanted: str | None
) -> None:
    """Keys are compared across batches. Fails when each batch begins anew."""
    parts = [
        pa.RecordBatch.from_pydict({"placed": pa.array([key], pa.string()), "problem": pa.array([one], pa.string())})
        for key, one in zip(placed, problems, strict=True)
    ]
    (report,) = check_sorted(parts, 0)
    assert report.to_pylist() == [{"counted": len(placed), "problem": wanted}]


def test_a_task_cuts_its_rows_and_refuses_keys_that_occur_twice() -> None:
    """By number and by bytes."""
    rows = [EncodedRow(f"k{number}", b"x" * 10) for number in range(5)]
    assert [len(one) for one in chunks(rows, rows_max=2)] == [2, 2, 1]
    assert [len(one) for one in chunks(rows, bytes_max=24)] == [2, 2, 1]
    with pytest.raises(SourceError, match="two rows have the same key 'k1'"):
        check_different("t", [Change("k1", b""), Change("k2", b""), Change("k1", b"")])
