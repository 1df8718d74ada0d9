"""A table's columns as Spark's types, and its rows as batches of Arrow. Pure.

    bool       BOOLEAN             int8 … int64   TINYINT, SMALLINT, INT, BIGINT
    string     STRING              float, double  FLOAT, DOUBLE
    binary     BINARY              timestamp      TIMESTAMP, microseconds in UTC

A table without columns has `key` STRING and `value` BINARY.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from regions.records.rows.codec import TypedTable
from regions.records.schema import ColumnType

KEY: Final = "key"
VALUE: Final = "value"
#: Schema of a table without columns.
PAIRS: Final = f"{KEY} STRING NOT NULL, {VALUE} BINARY NOT NULL"
#: Rows of one batch that Spark gets.
BATCH_ROWS: Final = 10_000

_DDL: Final = {
    ColumnType.BOOL: "BOOLEAN",
    ColumnType.INT8: "TINYINT",
    ColumnType.INT16: "SMALLINT",
    ColumnType.INT32: "INT",
    ColumnType.INT64: "BIGINT",
    ColumnType.FLOAT: "FLOAT",
    ColumnType.DOUBLE: "DOUBLE",
    ColumnType.STRING: "STRING",
    ColumnType.BINARY: "BINARY",
    ColumnType.TIMESTAMP: "TIMESTAMP",
}


def ddl(table: TypedTable | None) -> str:
    """Return the schema of a table as Spark's DDL; None: a table without columns."""
    if table is None:
        return PAIRS
    return ", ".join(
        f"{quoted(one.name)} {_DDL[one.type]}{'' if one.nullable else ' NOT NULL'}" for one in table.schema.columns
    )


def quoted(name: str) -> str:
    """Return a column's name as Spark's SQL quotes it."""
    return "`" + name.replace("`", "``") + "`"


def arrow_schema(table: TypedTable | None) -> Any:
    """Return the schema as Arrow's."""
    import pyarrow as pa

    if table is None:
        return pa.schema([pa.field(KEY, pa.string(), False), pa.field(VALUE, pa.binary(), False)])
    kinds = {
        ColumnType.BOOL: pa.bool_(),
        ColumnType.INT8: pa.int8(),
        ColumnType.INT16: pa.int16(),
        ColumnType.INT32: pa.int32(),
        ColumnType.INT64: pa.int64(),
        ColumnType.FLOAT: pa.float32(),
        ColumnType.DOUBLE: pa.float64(),
        ColumnType.STRING: pa.string(),
        ColumnType.BINARY: pa.binary(),
        ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([pa.field(one.name, kinds[one.type], one.nullable) for one in table.schema.columns])


def batches(table: TypedTable | None, rows: Iterable[tuple[str, bytes]], size: int = BATCH_ROWS) -> Iterator[Any]:
    """Yield keys and bytes as batches of decoded columns. Raise RowError."""
    import pyarrow as pa

    schema = arrow_schema(table)
    found: list[list[Any]] = [[] for _ in schema]

    def batch() -> Any:
        arrays = [pa.array(values, field.type) for values, field in zip(found, schema, strict=True)]
        for values in found:
            values.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    for key, value in rows:
        row = (key, value) if table is None else table.decode(key, value).values()
        for values, one in zip(found, row, strict=True):
            values.append(one)
        if len(found[0]) == size:
            yield batch()
    if found[0]:
        yield batch()


__all__ = ["BATCH_ROWS", "KEY", "PAIRS", "VALUE", "arrow_schema", "batches", "ddl", "quoted"]
