"""History, runs and alarms as rows with fixed columns, read-only.

history   every step and event, as `rk history --json`
runs      startups, failovers and bulk assignments, as `rk runs`; one row for each phase
alarms    broken rules that auditors found, as `rk audit`; one row for each alarm
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from cli.common.connect import Cluster
from cli.common.names import Names
from cli.diagnose.audit import read_alarms
from cli.diagnose.history import HistoryLine, read_past
from regions.records.alarms import Alarm
from regions.records.model import RunRecord
from regions.records.znodes import decode_run

#: Columns of each view, as Spark's DDL. Times are of the master that recorded the row.
VIEW_DDL: Final = {
    "history": "time TIMESTAMP, region STRING, replica INT, `table` STRING, before STRING, after STRING, actor STRING,"
    " cause STRING, server STRING, epoch BIGINT, attempt INT, plan STRING, reason STRING, error STRING, missed INT,"
    " cause_id STRING, origin STRING, text STRING, zxid BIGINT",
    "runs": "time TIMESTAMP, kind STRING, epoch BIGINT, master STRING, phase_number INT, phase STRING, seconds DOUBLE,"
    " replicas BIGINT, in_transition BIGINT, planned BIGINT, engine STRING, tables STRING",
    "alarms": "time TIMESTAMP, alarm STRING, rule STRING, `key` STRING, text STRING, steps INT, raised_by STRING",
}


def view_rows(cluster: Cluster, view: str) -> list[tuple[Any, ...]]:
    """Return the rows of a view; times are milliseconds since 1970."""
    names = Names(cluster.servers(), cluster.local)
    if view == "history":
        past = read_past(cluster, names)
        tables = {one.table_id: one.name for one in cluster.tables()}
        return list(history_rows(past.step(one, tables) for one in past.entries))
    if view == "runs":
        found = cluster.records(cluster.layout.runs, decode_run)
        return list(run_rows((run for _, run in sorted(found.items())), names))
    return list(alarm_rows(read_alarms(cluster), names))


def history_rows(lines: Iterable[HistoryLine]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the view `history`."""
    for one in lines:
        yield (
            one.time_ms,
            one.region,
            one.replica,
            one.table or one.subject,
            one.before,
            one.after,
            one.actor,
            one.cause,
            one.server,
            one.epoch,
            one.attempt,
            one.plan,
            one.reason,
            one.error,
            one.missed,
            one.cause_id,
            one.origin,
            one.text,
            one.zxid,
        )


def run_rows(runs: Iterable[RunRecord], names: Names) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the view `runs`: one for each phase, at least one for each run."""
    for run in runs:
        host, _, port = run.address.rpartition(":")
        master = names.of_address(host, int(port)) if port.isdigit() else run.address
        what = (run.at_ms, run.kind or run.path, run.epoch, master)
        work = (run.replicas, run.found, run.planned, run.engine, ", ".join(run.tables))
        for number, (phase, seconds) in enumerate(run.phases or [("", 0.0)]):
            yield (*what, number, phase, float(seconds), *work)


def alarm_rows(alarms: Iterable[Alarm], names: Names) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the view `alarms`."""
    for one in alarms:
        raised_by = names.of_uuid(one.raised_by) if one.raised_by else ""
        yield (one.at_ms, one.alarm_id, one.rule, one.key, names.in_text(one.text), len(one.steps), raised_by)


__all__ = ["VIEW_DDL", "alarm_rows", "history_rows", "run_rows", "view_rows"]
