"""`rk balance`: switch the balancer on or off, show its plan and reasons, run one round.

A round moves shared regions and members of tablets, and hands leaderships of tablets over.
"""

from __future__ import annotations

from typing import Final

import click

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.common.views.help import CommandGroup
from regions import messages
from regions.records.kinds import pool_words

#: Moves in the table for people; `--json` contains all.
_SHOWN: Final = 30


@click.group(cls=CommandGroup)
@global_options
def balance() -> None:
    """Even out regions, bytes and load over the servers: automatically, in single rounds, or as a dry run.

    For tablets, members and bytes are evened out over the servers' disks, and leaders over the servers.
    """


@balance.command()
@global_options
@click.pass_obj
def status(given: Globals) -> None:
    """Show whether the balancer is on, what blocks it, and what its last round did."""
    with open_cluster(given) as cluster:
        report = _ask(cluster, messages.Balance())
        names = Names(cluster.servers(), cluster.local)
    if given.json:
        output.print_json(report)
        return
    click.echo(_switch_line(report))
    _show_obstacles(report)
    if report.last is not None:
        last = report.last
        click.echo(f"last round {output.clock(last.at_ms)}: {output.count(last.moves, 'move')}{_more(last.more)}")
        _show_groups(last.before, last.after)
    for line in _tablet_lines(report, names):
        click.echo(line)


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
    for line in _tablet_lines(report, names):
        click.echo(line)
    if not report.moves:
        click.echo("nothing to move: no move improves the balance")
    else:
        verb = "would make" if dry_run else "ordered"
        click.echo(f"{verb} {output.count(len(report.moves), 'move')}{_more(report.more)}")
        _show_moves(report.moves, names)
    if report.handovers:
        verb = "would hand over" if dry_run else "asked for"
        click.echo(f"{verb} {output.count(len(report.handovers), 'leadership')} of tablets")
        _show_handovers(report.handovers, names)
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


def _tablet_lines(report: messages.BalanceReport, names: Names) -> list[str]:
    """Return what delays rounds of tablets, what is under way, and how even their leaders are."""
    lines = [f"leaders of tablets: {report.spread}"] if report.spread else []
    if report.tablets_blocking:
        lines.append(f"members of tablets stay: {names.in_sentence(report.tablets_blocking)}")
    if report.tablets_moving:
        lines.append(f"{output.count(report.tablets_moving, 'member')} of tablets on the way (rk tablet intents)")
    return lines


def _show_handovers(handovers: list[messages.LeaderHandover], names: Names) -> None:
    rows = [
        (one.region_id, names.of_uuid(one.source), names.of_uuid(one.target), names.in_sentence(one.reason))
        for one in handovers[:_SHOWN]
    ]
    output.console().print(output.table("", ["tablet", "from", "to", "because"], rows))


def _more(more: bool) -> str:
    return ", more in the next rounds" if more else ""


def _show_moves(moves: list[messages.BalanceMove], names: Names) -> None:
    rows = [
        (move.key, move.table, names.of_uuid(move.source), names.of_uuid(move.destination), move.reason)
        for move in moves[:_SHOWN]
    ]
    output.console().print(output.table("", ["replica", "table", "from", "to", "because"], rows))
    if len(moves) > _SHOWN:
        click.echo(f"and {len(moves) - _SHOWN} more (--json shows all)")


def _show_groups(before: list[messages.GroupBalance], after: list[messages.GroupBalance]) -> None:
    """Print how even each group is, before and after the moves."""
    columns = ["group", "#servers", "#replicas", "count skew", "worst table", "fullest by bytes", "by load"]
    rows = []
    for old, new in zip(before, after, strict=True):
        rows.append(
            (
                f"{pool_words(old.group)}{', tablets' if old.is_tablets else ''}",
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
