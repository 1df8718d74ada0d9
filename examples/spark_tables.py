"""A table in Spark: a frame is written, read back by a range of keys, and the steps of its regions are counted.

    rk table create sales --replicas 3 --column region:string:key --column id:int64:key --column amount:double \\
        --split "region=eu id=5000" --split region=us
    PYSPARK_PYTHON=.venv/bin/python .venv/bin/python examples/spark_tables.py

The cluster is that of RK_STORE, of the context in use, or of ./rk-data. docs/spark.md explains all options.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import pyspark_regionkeeper


def main() -> None:
    """Write, read, and look at the history."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    frame = spark.range(20_000).select(
        sql.when(sql.col("id") % 2 == 0, "eu").otherwise("us").alias("region"),
        "id",
        (sql.col("id") / 7).alias("amount"),
    )
    print(pyspark_regionkeeper.save(frame, table="sales"))

    sales = spark.read.format("regionkeeper").options(table="sales", push_filters="true").load()
    print(sales.where("region = 'eu' AND id < 100").count(), "rows of a range")
    sales.groupBy("region").agg(sql.count("*"), sql.sum("amount")).show()

    steps = spark.read.format("regionkeeper").option("view", "history").load()
    steps.where("`table` = 'sales'").groupBy("after").count().show()
    spark.stop()


if __name__ == "__main__":
    main()
