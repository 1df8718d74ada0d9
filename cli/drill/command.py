"""`rk drill`: ways to break a cluster, each under a running load of reads and writes."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cli.common import output
from cli.common.errors import ExitStatus, UsageFaultError
from cli.common.options import DEFAULT_DATA_DIR, Globals, NumberRange, apply_options, global_options, html_option
from cli.common.views.help import CommandGroup
from cli.common.waiting import say_nothing
from cli.drill.records.history import list_drills, show_drill
from cli.shell import complete

if TYPE_CHECKING:
    from cli.drill.report import DrillReport
    from cli.drill.run import Drill

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: Random seeds are small enough to be typed.
_SEEDS: Final = 1_000_000
REPEAT_MAX: Final = 1000
RATE_DEFAULT: Final = 100.0
RATE_MAX: Final = 5000.0

_EPILOG: Final = (
    "Exit status: 0 every invariant held and nothing was lost, 1 one was broken or the drill failed,"
    " 3 no local cluster, 130 Ctrl-C (everything is restored first)."
)


@click.group(cls=CommandGroup, epilog=_EPILOG)
@global_options
def drill() -> None:
    """Break a part of a running cluster under load, measure what was unavailable, check the invariants.

    Works on a cluster of `rk up`, from a second terminal. Everything that was killed, frozen or cut off is restored.
    `observe` works beside any fault injector on any cluster; with --kill-with and --start-with, so do other drills.
    """


drill.add_command(list_drills)
drill.add_command(show_drill)


def _options(function: _Command) -> _Command:
    """Add the options of every drill to a command."""
    decorators = (
        click.option("--seed", type=click.IntRange(0), help="Determines targets and times.  [default: random, shown]"),
        click.option(
            "--repeat",
            type=click.IntRange(1, REPEAT_MAX),
            default=1,
            show_default=True,
            help="Number of runs, with consecutive seeds; ends with a summary.",
        ),
        click.option(
            "--rate",
            type=NumberRange(1, RATE_MAX),
            default=RATE_DEFAULT,
            show_default=True,
            help="Reads and writes per second, over all regions.",
        ),
        html_option,
        click.option("--no-load", is_flag=True, help="No reads and writes during the drill."),
        global_options,
        click.pass_obj,
    )
    return apply_options(function, decorators)


_hooks = (
    click.option(
        "--kill-with",
        metavar="CMD",
        help="Command that kills a process, for a cluster that `rk up` does not run: 'ssh {host} kill-rk {port}'.",
    ),
    click.option("--start-with", metavar="CMD", help="Command that starts the process again, in the background."),
    click.option("--hook-shell", is_flag=True, help="Run both commands by sh -c; see RK_PROCESS_… in the environment."),
)


def _with_hooks(function: _Command) -> _Command:
    """Add the options of drills that can break a cluster of somebody else."""
    return apply_options(function, _hooks)


@drill.command("observe", epilog=_EPILOG)
@click.option("--for", "duration", metavar="T", help="How long to observe: 30s, 10m, 2h.  [default: until Ctrl-C]")
@_options
def observe(given: Globals, duration: str | None, **options: Any) -> int:
    """Read, write and check beside any fault injector, on any cluster, until Ctrl-C or for a time.

    Breaks nothing itself. --store names a cluster that `rk up` did not start. Prints ended sessions and elections while
    it runs, and at the end what was unavailable, and the verdict: no row lost, linearizable histories, each region open
    once, legal transitions, rising epochs. Repair the cluster before the end, or the verdict is BROKEN.
    """
    from cli.common.staleness import duration_ms
    from cli.drill.scenarios import observe as scenario

    for_s = None if duration is None else duration_ms(duration, "--for") / 1000
    return _conduct(given, lambda found: scenario.run(found, for_s), may_be_outside=True, **options)


@drill.command("master-failover", epilog=_EPILOG)
@click.option("--moves", type=click.IntRange(1), help="Regions to move during the failover.  [default: all]")
@_with_hooks
@_options
def master_failover(given: Globals, moves: int | None, **options: Any) -> int:
    """Kill the active master while regions are moving.

    Prints how long no master was active, how long until every region was OPENED, what clients saw, and the verdict:
    each region open on exactly one live server, no transition left, epochs strictly increasing, only legal transitions.
    """
    from cli.drill.scenarios import master_failover as scenario

    return _conduct(given, lambda found: scenario.run(found, moves), **options)


@drill.command("server-crash", epilog=_EPILOG)
@click.option(
    "--server",
    "server_name",
    shell_complete=complete.servers,
    help="Server to kill (name or host:port).  [default: random]",
)
@_with_hooks
@_options
def server_crash(given: Globals, server_name: str | None, **options: Any) -> int:
    """Kill a region server; its regions reopen elsewhere.

    Prints how long until the death was noticed and until every region was open again, for each region how long it was
    not open, and the verdict of the invariants.
    """
    from cli.drill.scenarios import server_crash as scenario

    return _conduct(given, lambda found: scenario.run(found, server_name), **options)


@drill.command("server-freeze", epilog=_EPILOG)
@click.option(
    "--server",
    "server_name",
    shell_complete=complete.servers,
    help="Server to freeze (name or host:port).  [default: random]",
)
@_options
def server_freeze(given: Globals, server_name: str | None, **options: Any) -> int:
    """Freeze a region server for longer than its lease (SIGSTOP), then continue it.

    Its regions reopen elsewhere meanwhile. Requests that name its old openings wait in its socket until it wakes up;
    the verdict shows whether it rejected all of them.
    """
    from cli.drill.scenarios import server_freeze as scenario

    return _conduct(given, lambda found: scenario.run(found, server_name), **options)


@drill.command("freeze", epilog=_EPILOG)
@click.argument("process")
@click.option(
    "--for",
    "duration",
    required=True,
    metavar="T",
    help="How long the process stays frozen: 500ms, 5s, 1m; at most 4m.",
)
@_options
def freeze(given: Globals, process: str, duration: str, **options: Any) -> int:
    """Freeze one process of any kind (SIGSTOP) for a time, then continue it (SIGCONT).

    PROCESS is a store node, a master or a region server: store-1, master-2, server-3, or host:port. The command first
    prints a forecast: the sessions and leases that end, the regions that move, the elections. Afterwards it compares
    the forecast with the facts; a difference breaks the verdict.
    """
    from cli.drill.scenarios import freeze as scenario

    freeze_s = scenario.freeze_seconds(duration)
    return _conduct(given, lambda found: scenario.run(found, process, freeze_s), **options)


@drill.command("store-leader", epilog=_EPILOG)
@_options
def store_leader(given: Globals, **options: Any) -> int:
    """Kill the leader of the store while clients write.

    Prints the longest gap between two acknowledged writes, and the verdict: every acknowledged write is on every node
    once, and the invariants of the regions hold.
    """
    from cli.drill.scenarios import store_leader as scenario

    return _conduct(given, scenario.run, **options)


_direction = click.option(
    "--direction",
    type=click.Choice(["both", "in", "out"]),
    default="both",
    show_default=True,
    help="Lost messages: all, those from its peers, or those to its peers.",
)


@drill.command("store-partition", epilog=_EPILOG)
@click.option("--node", "node_name", help="Node to cut off, such as store-1.  [default: the leader]")
@_direction
@_options
def store_partition(given: Globals, node_name: str | None, direction: str, **options: Any) -> int:
    """Cut a node of the store off from its peers, then restore the links.

    The node keeps running and its clients still reach it; messages between it and its peers are lost. The verdict: the
    isolated node acknowledged nothing, and every acknowledged write is on every node once.
    """
    from cli.drill.scenarios import store_partition as scenario

    return _conduct(given, lambda found: scenario.run(found, node_name, direction), **options)


@drill.command("rolling-restart", epilog=_EPILOG)
@_options
def rolling_restart(given: Globals, **options: Any) -> int:
    """Restart every store node, master and region server in turn, gracefully.

    Waits after each restart until the daemon is back and all regions are open. The verdict: no region rejected its
    clients except during its own move.
    """
    from cli.drill.scenarios import rolling_restart as scenario

    return _conduct(given, scenario.run, **options)


@drill.command("kill-everything", epilog=_EPILOG)
@_options
def kill_everything(given: Globals, **options: Any) -> int:
    """Kill every process, and start all of them.

    The verdict: every acknowledged write exists, in the store and in the regions, and all regions are open.
    """
    from cli.drill.scenarios import kill_everything as scenario

    return _conduct(given, scenario.run, is_startup=True, **options)


@drill.command("restore", epilog=_EPILOG)
@click.option(
    "--in",
    "folder",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Directory for the backup and the new cluster; both have all rows.  [default: the system's temporary one]",
)
@_options
def restore(given: Globals, folder: Path | None, **options: Any) -> int:
    """Back the cluster up under writes, and restore the backup into an empty cluster, as after the loss of everything.

    The running cluster loses nothing. The new one is started on other ports of this machine with new disks, a new store
    and new credentials, and is removed at the end. The verdict: the backup is whole, it has every write that was
    acknowledged before its region's point and no value that no client wrote, and every row was restored.
    """
    from cli.drill.restoring import scenario

    return _conduct(given, lambda found: scenario.run(found, folder), **options)


def _gap_max(usual: float) -> Callable[[_Command], _Command]:
    """Return the option of the longest gap of a tablet."""
    return click.option(
        "--gap-max",
        "gap_max_s",
        type=NumberRange(0, min_open=True),
        default=usual,
        show_default=True,
        help="Seconds that a tablet may leave its clients without an answer.",
    )


_leading_server = click.option(
    "--server",
    "server_name",
    shell_complete=complete.servers,
    help="Server that leads tablets (name or host:port).  [default: random]",
)


@drill.command("tablet-leader-kill", epilog=_EPILOG)
@_leading_server
@_gap_max(0.4)
@_with_hooks
@_options
def tablet_leader_kill(given: Globals, server_name: str | None, gap_max_s: float, **options: Any) -> int:
    """Kill a region server that leads tablets; other members lead them at once, and nothing moves.

    Prints how long each tablet left its clients without an answer. The verdict: no gap above --gap-max, no failed
    request, no lost row, and linearizable histories of reads, writes and compare-and-sets.
    """
    from cli.drill.scenarios.tablets import leader_kill as scenario

    return _conduct(given, lambda found: scenario.run(found, server_name, gap_max_s), **options)


@drill.command("tablet-freeze", epilog=_EPILOG)
@_leading_server
@_gap_max(1.5)
@_options
def tablet_freeze(given: Globals, server_name: str | None, gap_max_s: float, **options: Any) -> int:
    """Freeze a region server that leads tablets (SIGSTOP), then continue it.

    Its connections stay open, so the other members must notice the silence. The verdict is that of tablet-leader-kill.
    """
    from cli.drill.scenarios.tablets import freeze as scenario

    return _conduct(given, lambda found: scenario.run(found, server_name, gap_max_s), **options)


@drill.command("tablet-cut", epilog=_EPILOG)
@_leading_server
@_direction
@_gap_max(1.5)
@_options
def tablet_cut(given: Globals, server_name: str | None, direction: str, gap_max_s: float, **options: Any) -> int:
    """Cut off a region server from the other servers while it leads tablets, then restore the links.

    Clients, store and masters still reach the server. The verdict is that of tablet-leader-kill; in addition, the
    isolated server answered no read of a tablet that it led.
    """
    from cli.drill.scenarios.tablets import cut as scenario

    return _conduct(given, lambda found: scenario.run(found, server_name, direction, gap_max_s), **options)


@drill.command("store-outage", epilog=_EPILOG)
@_leading_server
@click.option(
    "--outage-s",
    type=NumberRange(1, 3600),
    default=15.0,
    show_default=True,
    help="Seconds without store and masters, at least.",
)
@_gap_max(0.4)
@_options
def store_outage(given: Globals, server_name: str | None, outage_s: float, gap_max_s: float, **options: Any) -> int:
    """Kill store and masters, then a region server that leads tablets; start all of them again.

    The server is started while store and masters are away. The verdict is that of tablet-leader-kill: clients of
    tablets notice the new leader alone.
    """
    from cli.drill.scenarios.tablets import store_outage as scenario

    return _conduct(
        given, lambda found: scenario.run(found, server_name, outage_s, gap_max_s), is_startup=True, **options
    )


@drill.command("tablet-server-crash", epilog=_EPILOG)
@_leading_server
@_gap_max(1.5)
@_options
def tablet_server_crash(given: Globals, server_name: str | None, gap_max_s: float, **options: Any) -> int:
    """Kill a region server until its members of tablets were replaced on the other servers; then start it again.

    Members are replaced after a silence of 5 minutes, or of `rk up --replica-dead-s`. Prints the time until all tablets
    were HEALTHY elsewhere, and the copied bytes. The verdict is that of tablet-leader-kill; in addition, all members
    were replaced under new numbers, and the former replicas left the disk.
    """
    from cli.drill.scenarios.tablets import server_crash as scenario

    return _conduct(given, lambda found: scenario.run(found, server_name, gap_max_s), **options)


@drill.command("tablet-rack-loss", epilog=_EPILOG)
@click.option("--rack", "rack_name", help="Rack to kill, such as rack-1.  [default: random]")
@_gap_max(1.5)
@_options
def tablet_rack_loss(given: Globals, rack_name: str | None, gap_max_s: float, **options: Any) -> int:
    """Kill all region servers of one rack at once, then start them again.

    The command first says which tablets the other racks serve, and which are without a majority. Clients' answers must
    agree with that. If all tablets are served, the verdict is that of tablet-leader-kill.
    """
    from cli.drill.scenarios.tablets import rack_loss as scenario

    return _conduct(given, lambda found: scenario.run(found, rack_name, gap_max_s), **options)


@drill.command("tablet-disk-loss", epilog=_EPILOG)
@_leading_server
@click.option("--log-only", is_flag=True, help="Only the log of its tablets is lost.")
@_gap_max(1.5)
@_options
def tablet_disk_loss(given: Globals, server_name: str | None, log_only: bool, gap_max_s: float, **options: Any) -> int:
    """Kill a region server, take its data directory away, and start it empty.

    The server gets a new identity, and the members of the former one are replaced. With --log-only it refuses to start
    and names `rk server new-identity`, which the drill runs. The verdict: no row lost, all members replaced under new
    numbers. If the verdict is good, the files that were taken away are removed at the end.
    """
    from cli.drill.scenarios.tablets import disk_loss as scenario

    return _conduct(given, lambda found: scenario.run(found, server_name, gap_max_s, log_only=log_only), **options)


@drill.command("retire-server", epilog=_EPILOG)
@_leading_server
@_gap_max(1.5)
@_options
def retire_server(given: Globals, server_name: str | None, gap_max_s: float, **options: Any) -> int:
    """Retire a region server with `rk server retire` until it has no member of a tablet; then cancel the retirement.

    The verdict is that of tablet-leader-kill, and all members have successors on other servers.
    """
    from cli.drill.scenarios.tablets import retire_server as scenario

    return _conduct(given, lambda found: scenario.run(found, server_name, gap_max_s), **options)


@drill.command("ddl-storm", epilog=_EPILOG)
@click.option(
    "--elections", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Number of forced elections."
)
@click.option(
    "--operations",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Number of operations, some at each election.",
)
@click.option("--clients", type=click.IntRange(1, 64), default=4, show_default=True, help="Concurrent clients.")
@click.option(
    "--server-crashes",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Region servers killed during the run, at most one at each election.",
)
@_options
def ddl_storm(
    given: Globals, elections: int, operations: int, clients: int, server_crashes: int, **options: Any
) -> int:
    """Create, alter, rename and delete tables while masters are killed, frozen and deposed.

    Prints operations by kind and result, elections, and the longest wait. The verdict: every operation had a definite
    result within a minute, and store, master and servers contain exactly what the acknowledged operations make.
    """
    from cli.drill.scenarios import ddl_stress as scenario

    return _conduct(given, lambda found: scenario.run(found, elections, operations, clients, server_crashes), **options)


def _conduct(
    given: Globals,
    scenario: Callable[[Drill], DrillReport],
    *,
    seed: int | None,
    repeat: int,
    rate: float,
    no_load: bool,
    html: Path | None = None,
    is_startup: bool = False,
    kill_with: str | None = None,
    start_with: str | None = None,
    hook_shell: bool = False,
    may_be_outside: bool = False,
) -> int:
    """Run the drill `repeat` times, and report."""
    from cli.drill.records.page import DrillRun, page
    from cli.drill.report import print_json, show, show_summary
    from cli.drill.run import open_drill
    from cli.drill.target.cluster import open_cluster_under_test
    from cli.drill.target.processes import Hooks
    from cli.html.pages import write

    name = click.get_current_context().command.name or ""
    hooks = Hooks(kill_with or "", start_with or "", hook_shell)
    if bool(kill_with) != bool(start_with):
        raise UsageFaultError("--kill-with and --start-with belong together", "Give both, or use a cluster of `rk up`.")
    first = secrets.randbelow(_SEEDS) if seed is None else seed
    say_nothing()  # silent processes are the purpose of a drill
    console = output.console(stderr=given.json)
    runs: list[DrillRun] = []
    reports: list[DrillReport] = []
    drill_id = trouble = ""
    try:
        with open_cluster_under_test(given, hooks, may_be_outside=may_be_outside) as target:
            for number in range(repeat):
                if repeat > 1:
                    console.print(f"run {number + 1} of {repeat}, seed {first + number}", style="bold")
                with open_drill(target, name, first + number, 0.0 if no_load else rate, is_startup=is_startup) as found:
                    reports.append(scenario(found))
                runs.append(DrillRun(reports[-1], found.journal.events))
                drill_id, trouble = found.journal.drill_id, found.journal.trouble
                if not given.json:
                    show(reports[-1], console)
    finally:
        # The summary includes the completed runs if a later run fails, or after Ctrl-C.
        if repeat > 1 and reports:
            if given.json:
                print_json(reports, repeat)
            else:
                show_summary(reports, repeat, console)
        if html is not None and runs:
            write(html, page(runs, repeat))
            console.print(f"the report as a page: {output.shown(html)}", markup=False, soft_wrap=True)
    if given.json and repeat == 1:
        print_json(reports, repeat)
    if trouble:
        console.print(f"the drill's record could not be written: {trouble}", style="yellow", markup=False)
    if not given.json:
        _show_next_steps(given, reports[-1], drill_id, console)
    return ExitStatus.OK if all(report.held for report in reports) else ExitStatus.REFUSED


def _show_next_steps(given: Globals, report: DrillReport, drill_id: str, console: Any) -> None:
    rk = output.invocation()
    where = f" --store {given.store}" if given.store else ""
    where += f" --data-dir {given.data_dir}" if given.data_dir not in (None, DEFAULT_DATA_DIR) else ""
    console.print(
        f"\nMore: {rk} drill {report.drill}{report.arguments}{where} --seed {report.seed} --json", soft_wrap=True
    )
    console.print(f"      {rk} drill show {drill_id}{where}  (this report again, from the cluster)", soft_wrap=True)
    console.print(f"      {rk} watch{where}  (in another terminal, while a drill runs)", soft_wrap=True)
    if given.explicit_store() is None:
        console.print(f"      the daemons' logs: {given.data_path}/logs", soft_wrap=True)
