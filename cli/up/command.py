"""`rk up`: run a whole cluster on this machine, in the foreground until Ctrl-C.

`rk up` checks the shape, the data directory, every port and the table's input before it starts any daemon.
`cli/up/bringup.py` runs the phases, `cli/up/supervisor.py` the processes.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import queue
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import click
from click.core import ParameterSource

from cli.common import output
from cli.common.access import admin_url, as_variables, credentials_of, store_access
from cli.common.asking.store import store_errors
from cli.common.connect import Cluster
from cli.common.errors import CliError, UsageFaultError
from cli.common.local import (
    CONTROL_FILE,
    HOST,
    LocalCluster,
    Shape,
    command_line,
    design,
    environment_of,
    read_cluster,
    write_cluster,
)
from cli.common.options import DEFAULT_DATA_DIR, Globals, NumberRange, own_masters_options, spark_options
from cli.common.staleness import duration_ms
from cli.common.views.display import Display, choose
from cli.common.views.help import CommandGroup
from cli.common.waiting import say_nothing
from cli.security import daemons
from cli.splits import specs_of_csv, usage_faults
from cli.topology.load import load, local_data_dir
from cli.up.bringup import Assigned, BringUp, UpTable
from cli.up.cluster_file import ClusterFile
from cli.up.control import listen
from cli.up.examples import example_data, example_path
from cli.up.growing.command import add
from cli.up.growing.growth import Growth
from cli.up.growing.leaving import Leaving, configuration_of
from cli.up.growing.rights import check_root, store_rights
from cli.up.growing.securing import Securing
from cli.up.hold import hold
from cli.up.logs import LOOK_S, bound
from cli.up.ports import holder, is_free
from cli.up.replicas import check_replicas, copies
from cli.up.shape import (
    DEFAULT_BASE_PORT,
    arrange,
    base_port_of,
    certs_named,
    check_options,
    shape_of,
    shape_of_topology,
    with_dead_s,
    with_security,
)
from cli.up.supervisor import News, Supervisor
from coord.env import SECONDS_MAX
from coord.security import process
from master.settings import ENGINES
from regions.records.model import TableRecord, TableState
from regions.records.znodes import check_table_name
from regionserver.config import REPLICA_DEAD_S_MAX, REPLICA_DEAD_S_MIN

DEFAULT_TABLE: Final = "packages"
DEFAULT_REGIONS: Final = 200

#: Time for which daemons of an `rk up` that was killed with -9 may still hold their ports.
_LEFTOVER_S: Final = 5.0
_POLL_S: Final = 0.05


class StopRequested(BaseException):
    """Ctrl-C or SIGTERM. A BaseException, so that `except Exception` does not catch it."""


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--topology",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Start the cluster that this topology file describes, in its data-dir.",
)
@click.option("--store-nodes", type=int, help="Nodes of the store: 1, 3 or 5.  [default: 3]")
@click.option("--masters", type=int, help="Masters; one is active.  [default: 2]")
@click.option("--servers", type=int, help="Region servers.  [default: 4]")
@click.option("--racks", type=int, help="Racks that the servers are spread over.  [default: 1]")
@click.option("--base-port", type=int, help=f"First port; the others follow.  [default: {DEFAULT_BASE_PORT}]")
@click.option(
    "--table", "table_name", default=DEFAULT_TABLE, show_default=True, help="Table created at the first start."
)
@click.option("--regions", type=click.IntRange(1), default=DEFAULT_REGIONS, show_default=True, help="Its regions.")
@click.option(
    "--replicas",
    type=click.IntRange(1),
    help="Copies of its rows: 3, 5 or 7 make each region a tablet, 1 keeps the rows in the shared directory.  "
    "[default: 3 with three servers or more and --opener kv, else 1]",
)
@click.option("--input", "source", type=click.Path(dir_okay=False, path_type=Path), help="CSV of its keys and sizes.")
@click.option("--no-table", is_flag=True, help="Create no table.")
@click.option(
    "--plan-engine",
    type=click.Choice(ENGINES),
    help="Engine for bulk plans; auto chooses by size, deadline and installed software; greedy without Spark or Java.  "
    "[default: auto; the first start with --spark-master or --spark-conf: spark]",
)
@spark_options("for those plans", default=None)
@click.option(
    "--plan-deadline-s",
    type=NumberRange(0, SECONDS_MAX, min_open=True),
    help="Seconds for the engine; after that, greedy computes the plan.  [default: 120]",
)
@click.option(
    "--create-timeout-s",
    type=NumberRange(0, SECONDS_MAX, min_open=True),
    help="Seconds after which a new region that no server has opened is replaced.  [default: 60]",
)
@click.option(
    "--replacements-max",
    type=click.IntRange(0),
    help="Replacements of one range; the last region is parked.  [default: 3]",
)
@click.option("--purge-after", metavar="TIME", help="Keep the rows of deleted tables so long: 90s, 10m.  [default: 1h]")
@click.option(
    "--replica-dead-s",
    type=NumberRange(REPLICA_DEAD_S_MIN, REPLICA_DEAD_S_MAX),
    help="Seconds of silence after which a server's members of tablets are replaced.  [default: 300]",
)
@click.option(
    "--opener",
    type=click.Choice(["kv", "directories", "none"]),
    default="kv",
    show_default=True,
    help="Content of a region: key-value data, an empty directory, or nothing (for benchmarks).",
)
@click.option(
    "--secure/--insecure",
    default=None,
    help="Whether daemons demand a proof of identity from callers and peers, so that other users of this machine get"
    " nothing.  [default: as at the last start; --secure at the first]",
)
@click.option(
    "--tls",
    is_flag=True,
    help="Every port speaks TLS both ways, by an authority and certificates that are made in the directory of"
    " credentials, and renewed.  [default: as at the last start]",
)
@click.option(
    "--address",
    metavar="HOST",
    help="Address of this machine that all daemons listen on; others than 127.0.0.1 need --tls or --insecure."
    "  [default: as at the last start; 127.0.0.1 at the first]",
)
@click.option("--restart/--no-restart", default=True, show_default=True, help="Restart daemons that die.")
@own_masters_options
@click.pass_context
def up(
    context: click.Context,
    topology: Path | None,
    store_nodes: int | None,
    masters: int | None,
    servers: int | None,
    racks: int | None,
    base_port: int | None,
    table_name: str,
    regions: int,
    replicas: int | None,
    source: Path | None,
    no_table: bool,
    plan_engine: str | None,
    spark_master: str | None,
    spark_conf: tuple[str, ...],
    plan_deadline_s: float | None,
    create_timeout_s: float | None,
    replacements_max: int | None,
    purge_after: str | None,
    replica_dead_s: float | None,
    opener: str,
    secure: bool | None,
    tls: bool,
    address: str | None,
    restart: bool,
) -> int:
    """Start store nodes, masters and region servers on this machine, and run until Ctrl-C.

    A daemon that dies is restarted. Data and logs are below --data-dir. The next `rk up` keeps the shape of the cluster
    and opens every region on its former server. With --store zk://host:port,… the cluster uses that store, for example
    an Apache ZooKeeper, instead of its own nodes. --certs-dir names an existing directory of credentials, with an
    authority or with a directory for each daemon (store-1, master-1, server-1, …) as `rk certs issue --to` makes it.
    """
    given = context.ensure_object(Globals)
    if context.invoked_subcommand is not None:
        _check_alone(context)
        return 0
    say_nothing()
    given.uses_remote_context = False
    wanted = None
    if topology is not None:
        wanted = load(topology)
        parts: dict[str, object] = {"store_nodes": store_nodes, "masters": masters, "servers": servers, "racks": racks}
        parts |= {"base_port": base_port, "secure": secure, "tls": tls or None, "address": address}
        check_options(given, wanted, topology, parts)
        given.data_dir = given.data_dir or str(local_data_dir(wanted, topology))
    data_dir = given.data_path
    before = read_cluster(data_dir)
    spark = (spark_master, spark_conf, plan_deadline_s)
    purge_after_ms = None if purge_after is None else duration_ms(purge_after, "--purge-after")
    limits = (create_timeout_s, replacements_max, purge_after_ms)
    shape = shape_of(given, before, store_nodes, masters, servers, racks, base_port, plan_engine, opener, spark, limits)
    shape = with_dead_s(shape, before, replica_dead_s)
    if wanted is None:
        certs_dir = certs_named(given)
        shape = with_security(shape, before, secure, tls=tls, certs_dir=certs_dir, address=address, data_dir=data_dir)
    else:
        base = base_port_of(wanted, before, lambda port: is_free(wanted.address or HOST, port))
        shape = shape_of_topology(wanted, shape, before, base)
    local = design(shape, data_dir, before)
    if wanted is not None and topology is not None:
        for note in arrange(local, wanted, topology, before, data_dir):
            click.echo(f"rk: {note}", err=True)
    local.has_been_up = before is not None and before.has_been_up
    table = None if no_table else _first_table(table_name, regions, replicas, source, shape)
    if os.geteuid() == 0 and not given.json:
        click.echo("rk: running as root, which no daemon needs: better give the cluster to a user of its own", err=True)
    with hold(data_dir, is_new=before is None):
        _check_ports(local)
        return _run(given, local, shape, data_dir, table, restart=restart)


up.add_command(add)


def _check_alone(context: click.Context) -> None:
    """Raise UsageFaultError for options of a start before a subcommand such as `rk up add`."""
    for name in context.params:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise UsageFaultError(
                f"{option} is for the start of a cluster, not for `rk up {context.invoked_subcommand}`",
                f"Leave out {option}.",
            )


def _first_table(name: str, regions: int, replicas: int | None, source: Path | None, shape: Shape) -> UpTable:
    """Return the table that the first start creates. Raise UsageFaultError."""
    with usage_faults():
        check_table_name(name)
    if replicas is not None:
        check_replicas(replicas, shape)
    return UpTable(name, specs_of_csv(source or example_path(), regions), *copies(replicas, shape))


# --- before anything starts ------------------------------------------------------------------------------------


def _check_ports(local: LocalCluster) -> None:
    """Raise CliError for the first port in use: its number, purpose and holder, and a hint."""
    deadline = time.monotonic() + _LEFTOVER_S
    before = read_cluster(local.daemons()[0].home)
    known = {daemon.pid for daemon in before.daemons() if daemon.pid} if before is not None else set()
    for daemon in local.daemons():
        for port, use in daemon.ports():
            while not is_free(local.host, port):
                found = holder(port)
                if found is not None and found[0] in known and time.monotonic() < deadline:
                    time.sleep(_POLL_S)  # a daemon of a killed `rk up`, on its way out
                    continue
                who = f" by pid {found[0]} ({found[1][:60]})" if found else ""
                raise CliError(
                    f"port {port} is in use{who}; {daemon.name} needs it as its {use}",
                    f"Stop that process, or choose other ports: rk up --base-port {local.base_port + 1000}",
                )


# --- the run ---------------------------------------------------------------------------------------------------


def _run(
    given: Globals,
    local: LocalCluster,
    shape: Shape,
    data_dir: Path,
    table: UpTable | None,
    *,
    restart: bool,
) -> int:
    news: queue.Queue[News] = queue.Queue()
    if local.secured:
        daemons.make(local, data_dir, datetime.datetime.now(datetime.UTC))
    commands = {daemon.name: command_line(daemon, local, shape) for daemon in local.daemons()}
    store_access(given)  # report wrong options before any daemon starts
    try:
        (data_dir / "logs").mkdir(exist_ok=True)
        listener = listen(data_dir)
        write_cluster(local, data_dir)  # from here on, the directory is a cluster's
    except OSError as error:
        raise CliError(
            f"cannot write in {data_dir}: {error.strerror}", "Free space on that disk, or give another --data-dir."
        ) from error
    check_root(given, local)
    surroundings = {**environment_of(data_dir), **as_variables(given.settings())}
    output.keep_going("the cluster keeps running; stop it with SIGINT (Ctrl-C) or SIGTERM")
    display = choose(as_json=given.json)
    file = ClusterFile(local, data_dir, display.say)
    growth = Growth(local, shape, data_dir, file, lambda port: is_free(local.host, port))
    securing = Securing(
        local,
        shape,
        data_dir,
        file,
        lambda: store_rights(given, local, data_dir),
        lambda: process.choose_by(lambda: credentials_of(given)),
    )
    rights = store_rights(given, local, data_dir)
    supervisor = Supervisor(
        local.daemons(), commands, surroundings, listener, news.put, growth.add, securing.answer, rights
    )
    bringup = BringUp(local, supervisor, display, news)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup the cluster keeps running
        signal.signal(signal.SIGHUP, _stop)
    supervisor.open()
    try:
        try:
            local.supervisor_pid = os.getpid()
            leaving = Leaving(local, supervisor, lambda: configuration_of(local, store_access(given)), display.say)
            _bring_up(local, data_dir, bringup, display, table, given, file, leaving)
            supervisor.keep_running(restart)
            growth.is_open = securing.is_open = True
            _follow(bringup, news, file, local, leaving)
        finally:
            growth.is_open = securing.is_open = False
            display.close()
            _take_down(bringup, supervisor, display, local, data_dir, file)
    except StopRequested:
        return 0
    finally:
        supervisor.close()


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise StopRequested


def _take_down(
    bringup: BringUp, supervisor: Supervisor, display: Display, local: LocalCluster, data_dir: Path, file: ClusterFile
) -> None:
    """Stop in order; a second Ctrl-C kills at once."""
    try:
        display.say("stopping: masters, servers, then the store (Ctrl-C again kills at once)")
        bringup.stop()
    except StopRequested:
        supervisor.kill_all()
        display.say("killed; the next start recovers what was acknowledged")
    (data_dir / CONTROL_FILE).unlink(missing_ok=True)
    local.supervisor_pid = 0
    for daemon in local.daemons():
        daemon.pid = 0
    file.write()


def _bring_up(
    local: LocalCluster,
    data_dir: Path,
    bringup: BringUp,
    display: Display,
    table: UpTable | None,
    given: Globals,
    file: ClusterFile,
    leaving: Leaving,
) -> None:
    """Run all phases, then print the summary."""
    began = time.monotonic()
    who = "every user of this machine" if local.host == HOST else "everybody who reaches it"
    security = f"secured{', TLS on every port' if local.tls else ''}" if local.secured else f"open to {who}"
    what = f"RegionKeeper: {_counts(local)}, {security}; data in {output.shown(data_dir)}"
    display.say(what, data_dir=str(data_dir), secured=local.secured)
    file.write()
    bringup.start_daemons()
    file.write()
    leader = bringup.wait_store()
    with store_errors(local.store), contextlib.ExitStack() as stack:
        client = bringup.connect(stack, store_access(given))
        leaving.leave_founders()
        cluster = Cluster(client, local.store, local.root, local, store_access(given))
        again = bringup.surely(
            lambda: bringup.remember_places(cluster), "the regions' former servers could not be read"
        )
        active = bringup.wait_master(client, cluster)
        bringup.wait_servers(client, cluster)
        tables = bringup.surely(cluster.tables, "the tables could not be read")
        existing = {one.name for one in tables}
        if again and existing:
            display.say(f"cluster start: {start_words(tables)}", cluster_start=True)
        if table is not None and table.name not in existing:
            bringup.create_table(cluster, table)
            is_replicated = table.replicas > 1
        else:
            is_replicated = table is not None and any(one.name == table.name and one.is_tablet for one in tables)
        assigned = bringup.follow_assignment(cluster)
    display.close()
    local.has_been_up = True
    file.write()
    total = time.monotonic() - began
    if given.json:
        _json_summary(local, display, assigned, leader, active, total)
    else:
        name = "" if table is None else table.name
        _summary(local, data_dir, display, assigned, leader, active, total, name, is_replicated=is_replicated)


def start_words(tables: Sequence[TableRecord]) -> str:
    """Return a sentence: what a cluster start does with the regions of these tables."""
    present = [one for one in tables if one.state is not TableState.REMOVED]
    shared = sum(one.regions for one in present if not one.is_tablet)
    tablets = sum(one.regions for one in present if one.is_tablet)
    words = [f"{output.count(shared, 'region')} back to the servers that had them"] if shared or not tablets else []
    words += [f"{output.count(tablets, 'tablet')} on the servers' own disks"] if tablets else []
    return ", ".join(words)


def _follow(
    bringup: BringUp, news: queue.Queue[News], file: ClusterFile, local: LocalCluster, leaving: Leaving
) -> NoReturn:
    """While the cluster runs, show each end and restart of a daemon, keep cluster.json up to date and logs bounded."""
    while True:
        bound(Path(daemon.log) for daemon in local.daemons())
        try:
            item = news.get(timeout=min(file.wait_s() or LOOK_S, LOOK_S))
        except queue.Empty:
            if not file.trouble:
                continue
        else:
            if not leaving.handle(item):
                bringup.show(item)
        file.write()


# --- the summary ---------------------------------------------------------------------------------------


def _counts(local: LocalCluster) -> str:
    store = output.count(len(local.coord), "store node") if local.coord else f"the store at {local.store}"
    masters, servers = output.count(len(local.masters), "master"), output.count(len(local.servers), "region server")
    return f"{store}, {masters}, {servers}"


def _json_summary(
    local: LocalCluster, display: Display, assigned: Assigned, leader: str, active: str, total: float
) -> None:
    output.print_json_line(
        {
            "event": "up",
            "seconds": round(total, 3),
            "phases": display.phases,
            "master_phases": assigned.master_phases,
            "regions": assigned.regions,
            "open": assigned.open,
            "parked": assigned.parked,
            "kept": assigned.kept,
            "plan": {"engine": assigned.engine, "seconds": assigned.plan_seconds},
            "leader": leader,
            "active": active,
            "cluster": local,
        }
    )


def _summary(
    local: LocalCluster,
    data_dir: Path,
    display: Display,
    assigned: Assigned,
    leader: str,
    active: str,
    total: float,
    table: str,
    *,
    is_replicated: bool,
) -> None:
    console = output.console()
    phases = ", ".join(f"{phase.name} {phase.seconds:.2f}" for phase in display.phases)
    parked = f", {assigned.parked} parked" if assigned.parked else ""
    what = "replicas" if is_replicated else "regions"
    console.print(f"\n[bold]up in {total:.1f} s[/bold]: {assigned.open} of {assigned.regions} {what} open{parked}")
    console.print(f"seconds: {phases}")
    if assigned.master_phases:
        inside = ", ".join(f"{phase.name} {phase.seconds:.2f}" for phase in assigned.master_phases)
        console.print(f"in the active master: {inside}")
    rows = []
    for daemon in local.daemons():
        role = "leader" if daemon.name == leader else "active" if daemon.address == active else ""
        rows.append((daemon.name, role, daemon.address, daemon.admin, daemon.pid, output.shown(Path(daemon.log))))
    console.print()
    console.print(output.table("", ["what", "", "address", "admin", "#pid", "log"], rows))
    pages = [f"{admin_url(one.admin)}/" for one in sorted(local.masters, key=lambda one: one.address != active)]
    token = ", with ?token=TOKEN of `rk certs token`" if local.secured else ""
    console.print(f"\n[bold]live page:[/bold] {' or '.join(pages)}{token}", soft_wrap=True)
    console.print("\nTry, in a second terminal:")
    known = table if assigned.regions > 0 else ""
    tips = suggestions(
        data_dir,
        table=known,
        has_regions=assigned.regions > 0,
        own_store=not local.outside,
        is_replicated=is_replicated,
    )
    width = max(len(command) for command, _ in tips)
    for command, what in tips:
        console.print(f"  {command:<{width}}  [dim]{what}[/dim]", soft_wrap=True)
    console.print("\nCtrl-C stops everything; the data stays.")


def suggestions(
    data_dir: Path, *, has_regions: bool, own_store: bool, table: str = DEFAULT_TABLE, is_replicated: bool = False
) -> list[tuple[str, str]]:
    """Return commands to try. `table`: the table of this start, "" if the start created none.

    `is_replicated`: the table's regions are tablets, which cannot be moved.
    """
    rk = output.invocation()
    where = (
        # Absolute: the second terminal may be in another directory.
        "" if data_dir == Path(DEFAULT_DATA_DIR).absolute() else f" --data-dir {shlex.quote(str(data_dir))}"
    )
    found = [
        (f"{rk} status{where}", "the daemons and tables"),
        (f"{rk} watch{where}", "each transition as it happens"),
        (f"{rk} up add server{where}", "one more region server, while the cluster runs"),
    ]
    source = output.shown(example_data())
    if has_regions and table:
        name = shlex.quote(table)
        found += [
            (f"{rk} load {name} {source}{where}", "fill the table"),
            (f"{rk} scan {name} --prefix python3.11{where}", "some of its rows"),
        ]
        held = shlex.quote(f"{table}:python3")
        found += [
            (f"{rk} tablet show {held}{where}", "the replicas of a key, and which one leads")
            if is_replicated
            else (f"{rk} region move {held}{where}", "move the region that holds a key")
        ]
    if has_regions and is_replicated:
        found += [
            (f"{rk} drill tablet-leader-kill{where}", "kill a server that leads: its tablets go on at once"),
            (f"{rk} drill store-outage{where}", "kill store and masters: tablets go on"),
        ]
    elif has_regions:
        found += [
            (f"{rk} drill master-failover{where}", "kill the active master while regions move"),
            (f"{rk} drill server-crash{where}", "kill a region server"),
        ]
    else:
        found.append((f"{rk} table create demo --regions 8 --from {source}{where}", "a table of eight regions"))
    if has_regions and own_store:
        found.append((f"{rk} drill store-leader{where}", "kill the store's leader under writes"))
    return found
