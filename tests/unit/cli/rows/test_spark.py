"""`rk load --spark`: the job's command line, its progress and its errors, without Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from cli.common.errors import CliError, NotFoundError, UsageFaultError
from cli.common.options import Globals
from cli.common.views.display import PlainDisplay
from cli.rows.load import load
from cli.rows.spark import SparkLoad, command_of, error_of, follow, load_by_spark
from pyspark_regionkeeper.load_job import parse_arguments

ASKED = SparkLoad("--t", "-f.csv", "", "-", True, 8, None, "local[1]", ("spark.a=b",))


def test_the_job_understands_its_command_line() -> None:
    """Also tables and files whose names begin with a dash, and no credential stands on it."""
    words = command_of(ASKED)
    found = parse_arguments(words[words.index("-m") + 2 :])
    assert (found.table, found.source, found.null, found.key, found.conf) == ("--t", "-f.csv", "-", "", ["spark.a=b"])
    assert (found.skip_unknown, found.threads, found.timeout, found.master) == (True, "8", "", "local[1]")


def job(text: str, status: int = 0) -> list[str]:
    """Return a command that prints a job's lines."""
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({status})"]


def test_progress_is_shown_and_the_last_line_is_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines that are not the job's own are left out."""
    lines = '{"stage":"checking","done":1,"total":4}\nWARN something\n{"stage":"finished","rows":7,"tasks":2}'
    display = PlainDisplay(Console(file=sys.stderr))
    assert follow(job(lines), {}, display)["rows"] == 7
    said = capsys.readouterr().err
    assert "checking: 1 of 4" in said
    assert "WARN" not in said


def test_errors_of_the_job_are_errors_of_rk() -> None:
    """With message, hint and exit status; a job that dies says with which status."""
    error = error_of({"stage": "failed", "message": "no table", "hint": "Look.", "status": 4}, 1, "")
    assert isinstance(error, NotFoundError)
    assert (error.message, error.hint) == ("no table", "Look.")
    with pytest.raises(CliError, match="the Spark job ended with status 3"):
        follow(job('{"stage":"checking"}', 3), {}, PlainDisplay(Console(file=sys.stderr)))


def test_settings_of_spark_without_spark_are_a_mistake(tmp_path: Path) -> None:
    """They would have no effect."""
    source = tmp_path / "rows.csv"
    source.write_text("id\n1\n", encoding="ascii")
    done = CliRunner().invoke(load, ["t", str(source), "--spark-conf", "spark.a=b"])
    assert isinstance(done.exception, UsageFaultError)
    assert "are for --spark" in str(done.exception)


def test_what_cannot_work_is_said_before_spark_starts(tmp_path: Path) -> None:
    """A file that does not exist, and Spark Connect."""
    missing = ASKED._replace(source=str(tmp_path / "none.csv"))
    with pytest.raises(UsageFaultError, match=r"cannot read .*none\.csv: No such file"):
        load_by_spark(Globals(), missing)
    with pytest.raises(UsageFaultError, match="sc://"):
        load_by_spark(Globals(), ASKED._replace(master="sc://host"))
