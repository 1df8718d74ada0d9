"""`rk balance`: switch the balancer on or off, show its plan and reasons, run one round."""

from __future__ import annotations

from typing import Final

import click

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.names import Names
from cli.common.options import Globals, global_options
from regions import messages
from regions.records.kinds import pool_words
from regions.records.model import BalanceMove, GroupBalance

#: Moves in the table for people; `--json` contains all.
_SHOWN: Final = 30


@click.group()
@global_options
def balance() -> None:
    """Even out regions, bytes and load over the servers: automatically, in single rounds, or as a dry run."""


@balance.command()
@global_options
@click.pass_obj
def status(given: Globals) -> None:
    """Show whether the balancer is on, what blocks it, and what its last round did."""
    with open_cluster(given) as cluster:
        report = _ask(cluster, messages.Balance())
    if given.json:
        output.print_json(report)
        return
    click.echo(_switch_line(report))
    _show_obstacles(report)
    if report.last is not None:
        last = report.last
        click.echo(f"last round {output.clock(last.at_ms)}: {output.count(last.moves, 'move')}{_more(last.more)}")
        _show_groups(last.before, last.after)


@balance.command()
@global_options
@click.pass_obj
def on(given: Globals) -> None:
    """Switch the balancer on; survives failovers."""
    _switch(given, wanted=True)


@balance.command()
@global_options
@click.pass_obj
def off(given: Globals) -> None:
    """Switch the balancer off; moves in progress are finished. Survives failovers."""
    _switch(given, wanted=False)


@balance.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be moved, and why.")
@global_options
@click.pass_obj
def run(given: Globals, dry_run: bool) -> None:
    """Run one round now, even if the balancer is off. Regions in transition are skipped."""
    with open_cluster(given) as cluster:
        report = _ask(cluster, messages.Balance(run=True, dry_run=dry_run))
        names = Names(cluster.servers(), cluster.local)
    if given.json:
        output.print_json(report)
        return
    _show_obstacles(report)
    if not report.moves:
        click.echo("nothing to move: no move improves the balance")
    else:
        verb = "would make" if dry_run else "ordered"
        click.echo(f"{verb} {output.count(len(report.moves), 'move')}{_more(report.more)}")
        _show_moves(report.moves, names)
    _show_groups(report.before, report.after)


def _ask(cluster: Cluster, request: messages.Balance) -> messages.BalanceReport:
    return cluster.ask_master(request, messages.BalanceReport)


def _switch(given: Globals, *, wanted: bool) -> None:
    with open_cluster(given) as cluster:
        report = _ask(cluster, messages.Balance(switch=wanted))
    if given.json:
        output.print_json(report)
    else:
        click.echo(_switch_line(report))


def _switch_line(report: messages.BalanceReport) -> str:
    if not report.enabled:
        return "the balancer is off: `rk balance on` switches it on, `rk balance run` makes one round"
    if not report.period_ms:
        return "the balancer runs on request only (--balance-period-s 0): `rk balance run`"
    return (
        f"the balancer is on: a round every {report.period_ms / 1000:g} s, "
        f"the next in {max(0, report.next_in_ms) / 1000:.0f} s"
    )


def _show_obstacles(report: messages.BalanceReport) -> None:
    if report.plan:
        click.echo(f"paused while plan {report.plan} is being applied (rk plan show {report.plan})")
    if report.blocking:
        click.echo(f"waiting for regions in transition: {', '.join(report.blocking)}")
    if report.stuck:
        servers = output.count(len(report.excluded), "server")
        click.echo(f"ignoring stuck regions: {', '.join(report.stuck)}; their {servers} take no part (rk why REGION)")


def _more(more: bool) -> str:
    return ", more in the next rounds" if more else ""


def _show_moves(moves: list[BalanceMove], names: Names) -> None:
    rows = [
        (move.key, move.table, names.of_uuid(move.source), names.of_uuid(move.destination), move.reason)
        for move in moves[:_SHOWN]
    ]
    output.console().print(output.table("", ["replica", "table", "from", "to", "because"], rows))
    if len(moves) > _SHOWN:
        click.echo(f"and {len(moves) - _SHOWN} more (--json shows all)")


def _show_groups(before: list[GroupBalance], after: list[GroupBalance]) -> None:
    """Print how even each group is, before and after the moves."""
    columns = ["group", "#servers", "#replicas", "count skew", "worst table", "fullest by bytes", "by load"]
    rows = []
    for old, new in zip(before, after, strict=True):
        rows.append(
            (
                pool_words(old.group),
                old.servers,
                old.replicas,
                _change(old.skew, new.skew),
                _change(old.table_skew, new.table_skew),
                _change(old.size_ratio, new.size_ratio, "x"),
                _change(old.load_ratio, new.load_ratio, "x"),
            )
        )
    output.console().print(output.table("", columns, rows))


def _change(old: float, new: float, unit: str = "") -> str:
    return f"{old:g}{unit}" if old == new else f"{old:g}{unit} -> {new:g}{unit}"
