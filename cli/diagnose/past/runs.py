"""`rk runs`: durations of startups, failovers and bulk assignments, phase by phase.

The command reads the store, so it covers all masters and works without an active one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from rich.text import Text

from cli.common import output
from cli.common.connect import open_cluster
from cli.common.names import Names
from cli.common.options import Globals, global_options, html_option
from cli.common.views.lists import Listing, listed
from cli.html.pages import render, write
from regions.records.model import RunRecord
from regions.records.znodes import decode_run


@click.command()
@listed(("time", "took"), "event", states="startup, failover and the other kinds of events", limit=20, default="-time")
@html_option
@global_options
@click.pass_obj
def runs(given: Globals, listing: Listing, html: Path | None) -> None:
    """Show how long each startup, failover and bulk assignment took, phase by phase; one line per event, newest
    first."""
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        found = [run for _, run in sorted(cluster.records(cluster.layout.runs, decode_run).items(), reverse=True)]
    picked = listing.pick(found, {"time": lambda one: one.at_ms, "took": _took_s}, lambda one: [one.kind or one.path])
    if html is not None:
        rest = len(found) - len(picked.rows)
        write(html, render("runs.html", title="Runs", runs=[_as_row(one, names) for one in picked.rows], more=rest))
    if given.json:
        output.print_json(picked.rows)
        return
    console = output.console()
    if not found:
        console.print("no event is recorded yet")
    for text in lines(picked.rows, names):
        console.print(text, soft_wrap=True)
    picked.print_rest(console)
    if html is not None:
        console.print(f"written to {output.shown(html)}", markup=False, soft_wrap=True)


def lines(found: Iterable[RunRecord], names: Names) -> Iterable[Text]:
    """Yield the events for people, two lines each: kind and time; phases, and amount of work."""
    for run in found:
        master = names.at(run.address)
        text = Text(f"{output.moment(run.at_ms)}  ").append(f"{run.kind or run.path:<10}", style="bold")
        yield text.append(f"  epoch {run.epoch}  {master}")
        phases = ", ".join(f"{name} {took:.2f}" for name, took in run.phases)
        yield Text(f"    {_took_s(run):.2f} s{f': {phases}' if phases else ''}; {_work(run)}", style="dim")


def _as_row(run: RunRecord, names: Names) -> dict[str, object]:
    """Return an event as the page shows it."""
    return {
        "when": output.moment(run.at_ms),
        "kind": run.kind or run.path,
        "epoch": run.epoch,
        "master": names.at(run.address),
        "took_s": _took_s(run),
        "phases": run.phases,
        "work": _work(run),
    }


def _took_s(run: RunRecord) -> float:
    return sum(took for _, took in run.phases)


def _work(run: RunRecord) -> str:
    if not run.planned:
        return f"{output.count(run.replicas, 'replica')}, {run.found} in transition"
    tables = f" of {', '.join(run.tables)}" if run.tables else ""
    with_activation = "" if run.kind else " (its build kept only the latest assignment)"
    return f"{output.count(run.planned, 'replica')} by {run.engine}{tables}{with_activation}"
