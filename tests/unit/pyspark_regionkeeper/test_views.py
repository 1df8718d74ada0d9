"""Runs and alarms as rows; the columns are those of the schema."""

from __future__ import annotations

from cli.common.names import Names
from cli.diagnose.history import HistoryLine
from pyspark_regionkeeper.views import VIEW_DDL, alarm_rows, history_rows, run_rows
from regions.records.alarms import Alarm
from regions.records.model import RunRecord

NAMES = Names([], None)


def names_of(view: str) -> list[str]:
    """Return the columns of a view."""
    return [one.split()[0].strip("`") for one in VIEW_DDL[view].split(", ")]


def test_a_run_has_a_row_for_each_phase() -> None:
    """And one row if it has none."""
    run = RunRecord(2, "m", "h:1", "failover", 1000, (("election", 0.5), ("load", 1)), replicas=6, found=2)
    rows = [dict(zip(names_of("runs"), row, strict=True)) for row in run_rows([run], NAMES)]
    assert [(row["phase_number"], row["phase"], row["seconds"]) for row in rows] == [
        (0, "election", 0.5),
        (1, "load", 1.0),
    ]
    assert (rows[0]["time"], rows[0]["kind"], rows[0]["replicas"], rows[0]["in_transition"]) == (1000, "failover", 6, 2)
    (bare,) = run_rows([RunRecord(2, "m", "h:1", "startup", 1000, ())], NAMES)
    assert dict(zip(names_of("runs"), bare, strict=True))["phase"] == ""


def test_alarms_and_history_have_the_columns_of_their_schema() -> None:
    """An event of a request names its table as a step does."""
    (alarm,) = alarm_rows([Alarm("a1", 5, "one opener", "t.1-0", "two servers")], NAMES)
    assert dict(zip(names_of("alarms"), alarm, strict=True))["rule"] == "one opener"
    line = HistoryLine(7, "", 0, "", "", "", "m", "REQUEST", "", 3, subject="sales", text="operator: create")
    (row,) = history_rows([line])
    found = dict(zip(names_of("history"), row, strict=True))
    assert (found["time"], found["table"], found["text"], found["zxid"]) == (7, "sales", "operator: create", 0)
