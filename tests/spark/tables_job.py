"""One Spark job over a table: `python -m tests.spark.tables_job --master URL --data-dir DIR --rows N`, or with
`--store ADDRESSES --certs-dir DIR` in place of `--data-dir DIR`.

It writes a frame of N rows, and reads the table back. Standard output has one JSON object a line, as
`tests.spark.jobs` reads them: stages as they begin, `read-task` when the first region has been read, and `finished`
with counts and digests. With `--hold FILE` the tasks that have begun to read wait until the file exists, and the stage
`holding` says that one does.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import pyspark_regionkeeper

#: Options of the data source that name the cluster and the user's credentials.
_CLUSTER = ("data-dir", "store", "certs-dir")
#: Tasks that are held go on after this time.
HOLD_S = 300.0


def frame_of(spark: SparkSession, rows: int) -> DataFrame:
    """Return rows of all regions of the table; each row can be computed from its number."""
    area = sql.concat(sql.lit("area"), (sql.col("id") % 12).cast("string"))
    note = sql.when(sql.col("id") % 5 > 0, sql.concat(sql.lit("note "), "id"))
    return spark.range(rows).select(area.alias("area"), "id", (sql.col("id") / 8).alias("amount"), note.alias("note"))


def held(frame: DataFrame, hold: str) -> DataFrame:
    """Return the frame, whose tasks wait after their first rows until the file `hold` exists."""

    def wait(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            Path(f"{hold}.begun").touch()
            until = time.monotonic() + HOLD_S
            while not Path(hold).exists() and time.monotonic() < until:
                time.sleep(0.02)
            yield batch

    return frame.mapInArrow(wait, frame.schema)


def digest(frame: DataFrame) -> tuple[int, int]:
    """Return the number of rows, and a digest that does not depend on their order."""
    text = sql.concat_ws("|", "area", "id", "amount", sql.coalesce("note", sql.lit("null")))
    count, total = frame.agg(sql.count("*"), sql.sum(sql.crc32(text))).collect()[0]
    return int(count), int(total)


def main() -> None:
    """Write, read, and say so."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    for name in _CLUSTER:
        parser.add_argument(f"--{name}")
    parser.add_argument("--rows", required=True, type=int)
    parser.add_argument("--table", default="sales")
    parser.add_argument("--hold", default="")
    parser.add_argument("--conf", action="append", default=[])
    options = parser.parse_args()
    builder = SparkSession.builder.master(options.master).config("spark.ui.enabled", "false")
    for setting in options.conf:
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    found = {name: getattr(options, name.replace("-", "_")) for name in _CLUSTER}
    place = {name.replace("-", "_"): value for name, value in found.items() if value}
    frame = frame_of(spark, options.rows)
    saved = pyspark_regionkeeper.save(frame, options.table, stage=_say, threads=1, **place)
    _say("written")
    over = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    watching = threading.Thread(target=_watch, args=(tracker, options.hold, over), daemon=True)
    watching.start()
    back = spark.read.format("regionkeeper").options(table=options.table, **place).load()
    read = digest(held(back, options.hold) if options.hold else back)
    over.set()
    watching.join()
    ranged = back.sparkSession.read.format("regionkeeper").options(table=options.table, start="area=area3", **place)
    part = ranged.option("stop", "area=area5").load()
    _say("finished", saved=saved.rows, wanted=digest(frame), read=read, part=part.select("area").distinct().count())
    spark.stop()


def _watch(tracker: Any, hold: str, over: threading.Event) -> None:
    """Say once that a task waits, or that a task of the first stage of several tasks has ended, and others have not."""
    while not over.wait(0.02):
        if hold and Path(f"{hold}.begun").exists():
            _say("holding")
            return
        found = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        if any(one is not None and 0 < one.numCompletedTasks < one.numTasks for one in found):
            _say("read-task")
            return


def _say(stage: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"stage": stage, **fields}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
