"""The table of the benchmark of tables in Spark."""

from __future__ import annotations

from benchmarks.spark import Figure, started_s, table_text


def test_the_table_has_rows_per_second() -> None:
    """One line for each way."""
    text = table_text([Figure("load", 1_000_000, 20.0), Figure("  without the start", 1_000_000, 10.0)])
    assert "| load | 1,000,000 | 20.0 | 50,000 |" in text
    assert "|   without the start | 1,000,000 | 10.0 | 100,000 |" in text


def test_the_start_of_spark_is_read_from_the_progress() -> None:
    """Lines of other stages do not count."""
    assert started_s("  starting Spark: tasks\nstarting Spark: 15.4 s\nreading: 6.08 s\n") == 15.4
    assert started_s("reading: 6.08 s\n") == 0.0
