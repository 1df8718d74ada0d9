"""Tables of RegionKeeper in Spark 4: a data source, a sink, and views for notebooks (docs/spark.md).

Spark finds data sources in packages whose name begins with `pyspark_`, so no call registers this one:

    spark.read.format("regionkeeper").option("table", "sales").load()
    pyspark_regionkeeper.save(frame, table="sales")
    spark.read.format("regionkeeper").option("view", "history").load()

    options.py    options of a source or sink, checked; the connection that tasks open from them
    errors.py     the one error, in the words of `rk`
    columns.py    the table's columns as Spark's types and as batches of Arrow (pure)
    ranges.py     conditions on key columns become a range of keys; a range becomes parts, one for each region (pure)
    encoding.py   batches of Arrow become keys and bytes, sorted by region (pure)
    reading.py    one region, read at one point
    writing.py    encoded rows, written region by region
    views.py      history, runs and alarms as rows
    source.py     the classes that Spark calls; imports pyspark
    saving.py     a frame, checked, partitioned and sorted by region, then written; imports pyspark
    load_job.py   the job of `rk load --spark`: python -m pyspark_regionkeeper.load_job

pyspark is imported when the data source is first used, never with this package alone.
"""

from __future__ import annotations

from typing import Any

_LAZY = {
    "DefaultSource": "pyspark_regionkeeper.source",
    "save": "pyspark_regionkeeper.saving",
    "Saved": "pyspark_regionkeeper.saving",
}


def __getattr__(name: str) -> Any:
    """Import what needs pyspark when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


__all__ = ["DefaultSource", "Saved", "save"]
