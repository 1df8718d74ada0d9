"""`rk drill`: master-failover, server-crash, store-leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli import output
from cli.errors import EXIT_OK, EXIT_REFUSED
from cli.options import DEFAULT_DATA_DIR, Globals, global_options

if TYPE_CHECKING:
    from cli.drill.report import Report


@click.group(epilog="Exit status: 0 all invariants held, 1 one was broken or the drill could not be carried out.")
@global_options
def drill() -> None:
    """Kill a part of a running cluster, measure what was unavailable, check the invariants.

    Works on a cluster of `rk up`, from a second terminal; what was killed is started again.
    """


@drill.command("master-failover")
@click.option("--moves", type=click.IntRange(1), help="Regions to move meanwhile.  [default: all]")
@global_options
@click.pass_obj
def master_failover(given: Globals, moves: int | None) -> int:
    """Kill the active master while regions are moving.

    Prints how long no master was active, how long until every region was OPENED, and the verdict: each region open on
    exactly one live server, no transition left, epochs strictly increasing, only legal transitions.
    """
    from cli.drill import master_failover as scenario
    from cli.drill.run import open_drill

    with open_drill(given) as found:
        report = scenario.run(found, moves)
    return _finish(given, report)


@drill.command("server-crash")
@click.option("--server", "server_name", help="Whom to kill (name or host:port).  [default: who has most regions]")
@global_options
@click.pass_obj
def server_crash(given: Globals, server_name: str | None) -> int:
    """Kill a region server; its regions reopen elsewhere.

    Prints how long until the death was noticed and until every region was open again, for each region how long it was
    not open, and the verdict of the invariants.
    """
    from cli.drill import server_crash as scenario
    from cli.drill.run import open_drill

    with open_drill(given) as found:
        report = scenario.run(found, server_name)
    return _finish(given, report)


@drill.command("store-leader")
@global_options
@click.pass_obj
def store_leader(given: Globals) -> int:
    """Kill the leader of the store while clients write.

    Prints the longest gap between two acknowledged writes, and the verdict: every acknowledged write is on every node,
    and the invariants of the regions hold.
    """
    from cli.drill import store_leader as scenario
    from cli.drill.run import open_drill

    with open_drill(given) as found:
        report = scenario.run(found)
    return _finish(given, report)


def _finish(given: Globals, report: Report) -> int:
    from cli.drill.report import print_json, show

    if given.json:
        print_json(report)
    else:
        console = output.console()
        show(report, console)
        rk = output.invocation()
        where = f" --data-dir {given.data_dir}" if given.data_dir not in (None, DEFAULT_DATA_DIR) else ""
        console.print(f"\nMore: {rk} drill {report.drill}{where} --json", soft_wrap=True)
        console.print(f"      {rk} watch{where}  (in another terminal, while a drill runs)", soft_wrap=True)
        console.print(f"      the daemons' own words: {given.data_path}/logs", soft_wrap=True)
    return EXIT_OK if report.held else EXIT_REFUSED
