"""The data source `regionkeeper`, as Spark 4 calls it.

The driver asks for the schema, hands over filters, and gets one partition for each region with its range of keys. Each
task opens a session of its own, reads one region at one point, and closes it. Spark pickles these objects: they hold
plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import datasource as api
from pyspark.sql.types import StructType

from pyspark_regionkeeper import ranges
from pyspark_regionkeeper.columns import batches, ddl
from pyspark_regionkeeper.encoding import Columns, Form, Pairs, encoded
from pyspark_regionkeeper.errors import SourceError, about, spoken
from pyspark_regionkeeper.options import SourceOptions, opened_cluster, opened_regions, parse
from pyspark_regionkeeper.ranges import Condition, RegionPart
from pyspark_regionkeeper.reading import read_part
from pyspark_regionkeeper.views import VIEW_DDL, view_rows
from pyspark_regionkeeper.writing import TableTarget
from regions.records.model import RegionRecord
from regions.records.partitioning import unplace
from regions.records.rows.codec import EncodedRow, TypedTable
from regions.records.rows.words import parse_bound
from regionserver.client import NoSuchTable, RegionClient
from regionserver.kv.messages import NO_SCHEMA

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DefaultSource(api.DataSource):
    """`spark.read.format("regionkeeper")` and `frame.write.format("regionkeeper")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = parse(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "regionkeeper"

    def schema(self) -> str:
        """Return the columns of the table or view."""
        if self._given.view:
            return VIEW_DDL[self._given.view]
        with opened_regions(self._given) as client:
            return ddl(client.columns(self._given.table))

    def reader(self, schema: StructType) -> api.DataSourceReader:  # noqa: ARG002 (one schema is possible)
        """Return what reads the table or view."""
        if self._given.view:
            return ViewReader(self._given)
        with opened_regions(self._given) as client:
            chosen = FilteringReader if self._given.push_filters else TableReader
            return chosen(self._given, table_of(client, self._given.table))

    def writer(self, schema: StructType, overwrite: bool) -> api.DataSourceWriter:
        """Return what writes into the table."""
        if self._given.view:
            raise SourceError(f"view {self._given.view} is read-only")
        if overwrite:
            raise SourceError(
                "mode overwrite is not possible, because the table may serve others meanwhile; use mode append, which"
                " replaces rows of the same keys"
            )
        with opened_regions(self._given) as client:
            table = table_of(client, self._given.table)
        if self._given.encoded is None:
            form_of(table.columns).check(schema.names)
        return TableWriter(self._given, table)


@dataclass(frozen=True)
class SourceTable:
    """A table as the driver has found it."""

    table_id: str
    columns: TypedTable | None
    version: int
    buckets: int
    regions: list[RegionRecord]


def table_of(client: RegionClient, name: str) -> SourceTable:
    """Return a table with its regions. Raise DataError."""
    columns = client.columns(name)
    record, regions = client.locator.table(name), client.locator.regions(name)
    if record is None or regions is None:
        raise NoSuchTable(f"table {name!r} does not exist")
    version = NO_SCHEMA if columns is None else columns.version
    return SourceTable(record.table_id, columns, version, record.hash_buckets, regions)


def form_of(columns: TypedTable | None) -> Form:
    """Return how rows of a frame become keys and bytes."""
    return Pairs() if columns is None else Columns(columns)


# --- reading ----------------------------------------------------------------------------------------------------------


class RegionPartition(api.InputPartition):
    """One region, or the part of it that is wanted."""

    def __init__(self, part: RegionPart) -> None:
        super().__init__(tuple(part))


class TableReader(api.DataSourceReader):
    """Reads a table: one partition for each region."""

    def __init__(self, options: SourceOptions, table: SourceTable) -> None:
        self._options = options
        self._name = options.table
        self._columns = table.columns
        self._buckets = table.buckets
        self._range = (_bound(table.columns, options.start), _bound(table.columns, options.stop))
        self._regions = table.regions

    def partitions(self) -> Sequence[api.InputPartition]:
        """Return one partition for each region that has wanted keys."""
        return [RegionPartition(one) for one in ranges.parts(self._regions, self._buckets, *self._range)]

    def read(self, partition: api.InputPartition) -> Iterator[Any]:
        """Yield the rows of one partition as batches."""
        part = RegionPart(*partition.value)
        with opened_regions(self._options) as client:
            rows = read_part(client.locator, self._name, part, self._buckets, self._options.timeout_s)
            yield from batches(self._columns, rows)


class FilteringReader(TableReader):
    """A reader to which Spark hands filters. Spark refuses one while its pushdown is disabled."""

    def pushFilters(self, filters: list[api.Filter]) -> Iterable[api.Filter]:
        """Narrow the range of keys. Return all filters: Spark checks the rows of the range again."""
        found = [one for one in map(condition_of, filters) if one is not None]
        self._range = ranges.joined(self._range, ranges.key_range(self._columns, found))
        return filters


def _bound(columns: TypedTable | None, text: str) -> str:
    """Return the text of a bound as `rk scan --from` reads it."""
    if columns is None or not text:
        return text
    with spoken():
        return parse_bound(columns, text)


_SIGNS = {
    api.EqualTo: "=",
    api.EqualNullSafe: "=",
    api.LessThan: "<",
    api.LessThanOrEqual: "<=",
    api.GreaterThan: ">",
    api.GreaterThanOrEqual: ">=",
    api.In: "in",
    api.StringStartsWith: "prefix",
}


def condition_of(one: api.Filter) -> Condition | None:
    """Return Spark's filter as a condition, None for one that no range expresses."""
    sign = _SIGNS.get(type(one))
    if sign is None:
        return None
    attribute: tuple[str, ...] = one.attribute  # type: ignore[attr-defined]
    value = one.value  # type: ignore[attr-defined]
    return Condition(attribute[0], sign, list(value) if sign == "in" else value) if len(attribute) == 1 else None


class ViewReader(api.DataSourceReader):
    """Reads a view in one task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: api.InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002 (there is one)
        """Yield the rows."""
        with opened_cluster(self._options.connection) as cluster:
            for at_ms, *rest in view_rows(cluster, self._options.view):
                yield _EPOCH + timedelta(milliseconds=at_ms), *rest


# --- writing ----------------------------------------------------------------------------------------------------------


@dataclass
class Written(api.WriterCommitMessage):
    """Result of one writing task."""

    rows: int


class TableWriter(api.DataSourceArrowWriter):
    """Writes a frame: each task its own rows."""

    def __init__(self, options: SourceOptions, table: SourceTable) -> None:
        self._options = options
        self._columns = table.columns
        self._version = table.version if options.encoded is None else options.encoded
        self._buckets = table.buckets

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one task. All are durable on return."""
        options = self._options
        with opened_regions(options) as client:
            table = table_of(client, options.table)
            target = TableTarget(client, options.table, table.regions, table.buckets, self._version, options.threads)
            return Written(target.write(self._rows(iterator)))

    def _rows(self, iterator: Iterator[Any]) -> Iterator[EncodedRow]:
        if self._options.encoded is not None:
            for batch in iterator:
                placed, values = batch.column("placed").to_pylist(), batch.column("value").to_pylist()
                for key, value in zip(placed, values, strict=True):
                    yield EncodedRow(unplace(key, self._buckets), value)
            return
        for one in encoded(iterator, form_of(self._columns)):
            if isinstance(one, str):
                raise about(self._options.table, one)
            yield one

    def commit(self, messages: list[api.WriterCommitMessage | None]) -> None:
        """Do nothing: rows are durable when their task ends."""

    def abort(self, messages: list[api.WriterCommitMessage | None]) -> None:
        """Do nothing: rows that were written stay, and writing the frame again replaces them."""


__all__ = ["DefaultSource", "FilteringReader", "TableReader", "TableWriter", "ViewReader", "form_of", "table_of"]
