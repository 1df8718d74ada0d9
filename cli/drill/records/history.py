"""`rk drill list`, `rk drill show`: the drills that were run on a cluster, with their verdicts and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, ExitStatus, NotFoundError
from cli.common.options import Globals, global_options, html_option
from cli.common.views.lists import Key, Listing, listed
from cli.drill.report import DrillReport, show
from regions.records.acts.drills import DrillRecord, DrillVerdict
from regions.records.znodes import decode_drill

_STYLES = {DrillVerdict.HELD: "green", DrillVerdict.BROKEN: "bold red", DrillVerdict.FAILED: "red"}
#: Sort keys of drills, by their names in --sort.
_SORTS: Final[dict[str, Key[DrillRecord]]] = {
    "began": lambda one: one.began_ms,
    "drill": lambda one: one.drill,
    "verdict": lambda one: one.verdict.value,
    "took": lambda one: one.ended_ms - one.began_ms if one.ended_ms else None,
}


@click.command("list")
@listed(("began", "drill", "verdict", "took"), "drill", states="the verdicts")
@global_options
@click.pass_obj
def list_drills(given: Globals, listing: Listing) -> int:
    """List the latest drills on this cluster, oldest first: time, drill, user, and verdict.

    A drill without an end still runs, or its process was killed.
    """
    with open_cluster(given) as cluster:
        records = read_drills(cluster)
    picked = listing.pick(records, _SORTS, lambda one: [one.verdict.value])
    if given.json:
        output.print_json({"drills": [{**as_fields(one), "events": len(one.events)} for one in picked.rows]})
        return ExitStatus.OK
    console = output.console()
    if not records:
        console.print("no drill has run on this cluster")
        return ExitStatus.OK
    rows = [
        (one.drill_id, output.moment(one.began_ms), one.drill, one.victim, _verdict(one.verdict), _seconds(one), one.by)
        for one in picked.rows
    ]
    console.print(output.table("", ["id", "began", "drill", "process", "verdict", "#took", "by"], rows))
    picked.print_rest(console)
    return ExitStatus.OK


@click.command("show")
@click.argument("drill_id", metavar="ID")
@html_option
@global_options
@click.pass_obj
def show_drill(given: Globals, drill_id: str, html: Path | None) -> int:
    """Show one drill: its events and its report. ID is the id of `rk drill list`, or a part that only one id has."""
    with open_cluster(given) as cluster:
        found = choose(read_drills(cluster), drill_id)
    report = decode_report(found)
    if html is not None:
        _write_page(html, found, report)
    if given.json:
        output.print_json({**as_fields(found), "events": list(found.events), "report": found.report})
    else:
        _show(found, report, output.console())
        if html is not None:
            click.echo(f"written to {output.shown(html)}")
    return ExitStatus.OK


def _write_page(html: Path, found: DrillRecord, report: DrillReport | None) -> None:
    from cli.drill.records.page import DrillRun, page
    from cli.html.pages import write

    if report is None:
        raise CliError(
            f"drill {found.drill_id} has no report that a page could show", "`rk drill show` without --html works."
        )
    write(html, page([DrillRun(report, found.events)], 1))


def read_drills(cluster: Cluster) -> list[DrillRecord]:
    """Return the records, oldest first. A record that cannot be decoded is skipped; `rk fsck` reports it."""
    found = cluster.records(cluster.layout.drills, decode_drill)
    return sorted(found.values(), key=lambda one: one.began_ms)


def choose(records: list[DrillRecord], wanted: str) -> DrillRecord:
    """Return the record with this id, or the only one whose id contains `wanted`. Raise NotFoundError or CliError."""
    fits = [one for one in records if one.drill_id == wanted] or [one for one in records if wanted in one.drill_id]
    if not fits:
        raise NotFoundError(f"no drill {wanted!r}", "`rk drill list` lists the drills.")
    if len(fits) > 1:
        raise CliError(f"{wanted!r} fits {len(fits)} drills", "Give more of the id: `rk drill list` lists them.")
    return fits[0]


def decode_report(record: DrillRecord) -> DrillReport | None:
    """Return the report of a drill; None without a report, or if another build wrote a report that cannot be
    decoded."""
    if record.report is None:
        return None
    try:
        return msgspec.convert(record.report, DrillReport)
    except msgspec.MsgspecError:
        return None


def as_fields(record: DrillRecord) -> dict[str, Any]:
    """Return a record for JSON without its events and its report."""
    names = [name for name in record.__struct_fields__ if name not in ("events", "report")]
    return {name: getattr(record, name) for name in names}


def _show(record: DrillRecord, report: DrillReport | None, console: Console) -> None:
    ended = "no end was written" if not record.ended_ms else f"took {_seconds(record)}"
    console.print(Text(f"drill {record.drill_id}: {record.drill}", style="bold").append(f"  by {record.by}", "dim"))
    console.print(Text(f"began {output.moment(record.began_ms)}, {ended}: ").append(_verdict(record.verdict)))
    if record.error:
        console.print(Text(record.error, style="red"), soft_wrap=True)
    for event in record.events:
        console.print(f"{event.at_s:7.2f} s  {event.text}", markup=False, soft_wrap=True)
    if record.events_dropped:
        console.print(f"{output.count(record.events_dropped, 'event')} in the middle were not kept", style="dim")
    if report is not None:
        show(report, console)
    elif record.report is not None:
        console.print("another build wrote the report: --json shows it", style="yellow")


def _verdict(verdict: DrillVerdict) -> Text:
    return Text(verdict.value, style=_STYLES.get(verdict, "yellow"))


def _seconds(record: DrillRecord) -> str:
    return output.seconds((record.ended_ms - record.began_ms) / 1000) if record.ended_ms else ""
