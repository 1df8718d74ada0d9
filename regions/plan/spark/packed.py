"""Packs rows for Spark: one Spark row holds thousands of our rows, as the bytes of an Arrow stream.

Spark converts each of its rows between Arrow and its own format at every Python function and every shuffle. For
millions of rows that costs more than solving. So a Python worker returns one row per destination, with an Arrow table
inside, and Java does not touch our rows again after they were read.

`deal` sorts a table by destination and packs each part. `unpack` joins the parts that have arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from regions.plan.problem.model import Ints


def pack(table: Any) -> bytes:
    """Return the table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack(blobs: Iterable[Any], schema: Any) -> Any:
    """Return one table of all parts, with one chunk per column; without parts an empty table of `schema`."""
    parts = [pa.ipc.open_stream(blob).read_all() for blob in blobs]
    return (pa.concat_tables(parts) if parts else schema.empty_table()).combine_chunks()


def blobs_of(column: Any) -> Iterator[Any]:
    """Return the values of a binary column without nulls, not copied."""
    return (value.as_buffer() for value in column if value.is_valid)


def deal(table: Any, destination: Ints) -> list[tuple[int, bytes]]:
    """Return (destination, packed rows) for each destination, ascending. Rows keep their order."""
    order = np.argsort(destination, kind="stable")
    sorted_table = table.take(pa.array(order)).combine_chunks()
    names, starts = np.unique(destination[order], return_index=True)
    ends = np.append(starts, len(order))[1:]
    return [
        (int(name), pack(sorted_table.slice(int(start), int(end - start))))
        for name, start, end in zip(names, starts, ends, strict=True)
    ]


# --- columns --------------------------------------------------------------------------------------------------------


def numbers(rows: Any, name: str, null: int = 0) -> Ints:
    """Return a column of integers."""
    values: Ints = pc.fill_null(rows.column(name), null).to_numpy().astype(np.int64)
    return values


def flat(column: Any) -> Ints:
    """Return all list elements of a column, concatenated."""
    values: Ints = pc.list_flatten(column).to_numpy().astype(np.int64)
    return values


def index(column: Any, names: Any) -> Ints:
    """Return the position of each text in `names`, -1 if absent."""
    found = pc.index_in(column, value_set=pa.array(names, pa.string()))
    places: Ints = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return places


def lists(starts: Ints, values: Any, kind: Any) -> Any:
    """Return a column of lists: list i is `values[starts[i] : starts[i + 1]]`."""
    return pa.ListArray.from_arrays(pa.array(starts, type=pa.int32()), pa.array(values, type=kind))
