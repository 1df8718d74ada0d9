"""A frame, checked as a whole, partitioned and sorted by region, then written through the sink.

The sink alone writes rows where they are: Spark's API lets no Python sink ask for another partitioning. `save` does:

    1. every row is encoded; a row that does not fit becomes a problem
    2. rows of a region come together, in the order of their keys, and are kept on the executors' disks
    3. problems and keys that occur twice are counted: with one of them, nothing is written
    4. the sink writes the rows; a task writes whole regions, in the order of their keys
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, functions

from pyspark_regionkeeper.encoding import (
    ENCODED_DDL,
    REPORT_DDL,
    Form,
    RegionLayout,
    check_sorted,
    encode_batches,
)
from pyspark_regionkeeper.errors import about
from pyspark_regionkeeper.options import ENCODED, SourceCluster, opened_regions, parse
from pyspark_regionkeeper.source import SourceTable, form_of, table_of

#: Tasks that write, for each core of the executors: the last ones end together.
TASKS_PER_CORE: Final = 2


class Saved(NamedTuple):
    """Result of a save."""

    rows: int
    regions: int
    tasks: int


def save(
    frame: DataFrame,
    table: str,
    *,
    form: Form | None = None,
    stage: Callable[[str], object] = lambda _name: None,
    **options: object,
) -> Saved:
    """Write a frame into a table; return what was written. Rows replace those of the same keys.

    `options` are those of the data source (`pyspark_regionkeeper.options`), such as `store="db1:2181"`; names may have
    "_" for "-". `form` makes keys and bytes of a row; by default the frame's columns are the table's. `stage` is called
    as a stage begins: checking, then writing. Raise SourceError; then nothing was written, except if the cluster itself
    failed meanwhile.
    """
    given = parse({**{name: str(value) for name, value in options.items()}, "table": table})
    with opened_regions(given) as client:
        found = table_of(client, table)
    chosen = form or form_of(found.columns)
    chosen.check(frame.columns)
    tasks = _tasks(frame, found)
    layout = RegionLayout([one.start_key for one in found.regions], found.buckets)
    rows = frame.mapInArrow(functools.partial(encode_batches, form=chosen, layout=layout), ENCODED_DDL)
    kept = rows.repartition(tasks, "region").sortWithinPartitions("placed").persist(StorageLevel.DISK_ONLY)
    try:
        stage("checking")
        count = _checked(kept, found, table)
        stage("writing")
        writer = kept.select("placed", "value").write.format("regionkeeper").mode("append")
        settings = _options(given.connection) | {"timeout": f"{given.timeout_s:g}", "threads": str(given.threads)}
        writer.options(table=table, **{ENCODED: str(found.version)}, **settings).save()
    finally:
        kept.unpersist()
    return Saved(count, len(found.regions), tasks)


def _tasks(frame: DataFrame, table: SourceTable) -> int:
    """Return into how many parts the rows are cut."""
    try:
        tasks = TASKS_PER_CORE * frame.sparkSession.sparkContext.defaultParallelism
    except PySparkAttributeError:  # Spark Connect shows no cores
        tasks = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or 200)
    return max(1, min(len(table.regions), tasks))


def _checked(kept: DataFrame, table: SourceTable, name: str) -> int:
    """Return the number of rows. Raise SourceError for the first problem."""
    check = functools.partial(check_sorted, buckets=table.buckets)
    report = kept.mapInArrow(check, REPORT_DDL).agg(functions.sum("counted"), functions.min("problem")).collect()[0]
    if report[1] is not None:
        raise about(name, f"{report[1]}. Nothing was written.")
    return int(report[0] or 0)


def _options(connection: SourceCluster) -> dict[str, Any]:
    """Return the options that name the same cluster."""
    found = {"store": connection.store, "root": connection.root, "data-dir": connection.data_dir}
    if connection.cluster_id:
        found["cluster-id"] = connection.cluster_id
    return found | connection.settings


__all__ = ["Saved", "save"]
