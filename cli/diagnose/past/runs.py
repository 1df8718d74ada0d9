"""`rk runs`: what startups, failovers and bulk assignments took, phase by phase.

The command reads the store, so it covers all masters and works without an active one.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.text import Text

from cli.common import output
from cli.common.connect import open_cluster
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.common.views.lists import Listing, listed
from regions.records.model import RunRecord
from regions.records.znodes import decode_run


@click.command()
@listed(("time", "took"), "event", states="startup, failover and the other kinds of events", limit=20, default="-time")
@global_options
@click.pass_obj
def runs(given: Globals, listing: Listing) -> None:
    """Show what each startup, failover and bulk assignment took, phase by phase; one line per event, newest first."""
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        found = [run for _, run in sorted(cluster.records(cluster.layout.runs, decode_run).items(), reverse=True)]
    picked = listing.pick(found, {"time": lambda one: one.at_ms, "took": _took_s}, lambda one: [one.kind or one.path])
    if given.json:
        output.print_json(picked.rows)
        return
    console = output.console()
    if not found:
        console.print("no event is recorded yet")
    for text in lines(picked.rows, names):
        console.print(text, soft_wrap=True)
    picked.print_rest(console)


def lines(found: Iterable[RunRecord], names: Names) -> Iterable[Text]:
    """Yield the events for people, two lines each: what and when; the phases, and how much work it was."""
    for run in found:
        host, _, port = run.address.rpartition(":")
        master = names.of_address(host, int(port)) if port.isdigit() else run.address
        text = Text(f"{output.moment(run.at_ms)}  ").append(f"{run.kind or run.path:<10}", style="bold")
        yield text.append(f"  epoch {run.epoch}  {master}")
        phases = ", ".join(f"{name} {took:.2f}" for name, took in run.phases)
        yield Text(f"    {_took_s(run):.2f} s{f': {phases}' if phases else ''}; {_work(run)}", style="dim")


def _took_s(run: RunRecord) -> float:
    return sum(took for _, took in run.phases)


def _work(run: RunRecord) -> str:
    if not run.planned:
        return f"{output.count(run.replicas, 'replica')}, {run.found} in transition"
    tables = f" of {', '.join(run.tables)}" if run.tables else ""
    with_activation = "" if run.kind else " (its build kept only the latest assignment)"
    return f"{output.count(run.planned, 'replica')} by {run.engine}{tables}{with_activation}"
