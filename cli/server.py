"""`rk server`: run a region server; list, drain, undrain, retire and fence the servers of a cluster.

A server is named as elsewhere: `server-2` in a local cluster, host:port, or a prefix of its uuid.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from cli.common import output
from cli.common.connect import of_cluster, open_cluster
from cli.common.errors import CliError, NotFoundError
from cli.common.names import Names
from cli.common.options import SECONDS, Globals, daemon_options, global_options, wait_option
from cli.common.peers import peer_options, peer_secret, peer_tls
from cli.common.staleness import duration_ms
from cli.common.views.help import CommandGroup
from cli.common.views.lists import Key, Listing, listed
from cli.diagnose import reach
from cli.identity import new_identity
from cli.shell import complete
from cli.tablets.display import UNKNOWN
from cli.tablets.former import name_former
from cli.tablets.moving import named, retirement_line
from cli.tablets.reading import uuid_of
from cli.tablets.waiting import Look, follow, not_over
from regions import messages
from regions.cluster.effects import BAR_FOR_EVER
from regions.messages import Retirement
from regions.records.kinds import KV
from regions.records.model import BarRecord

#: Added to the time that a request may wait in the master, for the network.
_GRACE_S: Final = 5.0


@click.group(cls=CommandGroup)
@global_options
def server() -> None:
    """Run, list, drain, retire and fence region servers."""


server.add_command(new_identity)


#: Sort keys of servers besides their names, by their names in --sort.
_SORTS: Final[dict[str, Key[messages.ServerLoad]]] = {
    "address": lambda one: (one.server.host, one.server.port),
    "rack": lambda one: one.server.rack,
    "open": lambda one: one.open,
    "size": lambda one: one.bytes,
    "leads": lambda one: one.leaders,
}


@server.command("list")
@listed(("server", "state", *_SORTS), "server", states="up, draining, drained, fenced, flapping, stopping")
@global_options
@click.pass_obj
def list_(given: Globals, listing: Listing) -> None:
    """Show live region servers with their load, and dead servers that are still draining or fenced."""
    with open_cluster(given) as cluster:
        answer = cluster.ask_master(messages.ListServers(), messages.Servers)
        found = answer.servers
        servers = cluster.servers()
        names = Names(servers, cluster.local)
        heard = reach.reaches(cluster.masters(), servers, names)
    found = sorted(found, key=lambda one: names.of_uuid(one.server.uuid))
    by_name: Key[messages.ServerLoad] = lambda one: names.of_uuid(one.server.uuid)  # noqa: E731 (one of the keys)
    picked = listing.pick(
        found,
        {"server": by_name, "state": _standing, **_SORTS},
        lambda one: [_standing(one), _standing(one).split()[0]],
    )
    found = picked.rows
    if given.json:
        output.print_json(found)
        return
    rows = [
        (
            names.of_uuid(one.server.uuid),
            f"{one.server.host}:{one.server.port}",
            _standing(one),
            one.server.kind or KV,
            one.server.group or "-",
            one.server.rack,
            open_words(one),
            one.incoming,
            one.outgoing,
            output.estimated(one.bytes, is_measured=one.measured),
            UNKNOWN if one.tablets is None else one.tablets,
            UNKNOWN if one.leaders is None else one.leaders,
            reach.summary(heard, names.of_uuid(one.server.uuid)),
            one.server.uuid,
        )
        for one in found
    ]
    columns = [
        "server",
        "address",
        "state",
        "kind",
        "group",
        "rack",
        "#open",
        "#incoming",
        "#closing",
        "#size",
        "#tablets",
        "#leads",
        "heartbeats to",
        "uuid",
    ]
    console = output.console()
    console.print(output.table("", columns, rows) if rows else "no region server is registered: rk server run --help")
    picked.print_rest(console)
    for bar in answer.barred:
        console.print(f"not running, but fenced {until(bar)}: {bar.uuid}", soft_wrap=True)


def until(bar: BarRecord) -> str:
    """Return until when a fenced server gets no regions."""
    return f"until {output.clock(bar.until_ms)}" if bar.until_ms else "until it is unfenced"


def open_words(load: messages.ServerLoad) -> str:
    """Return the number of open replicas; `3 + ?` if the server's tablets have not been reported."""
    is_unknown = load.server.tablets and load.tablets_open is None
    return f"{load.open} + {UNKNOWN}" if is_unknown else str(load.open)


def _standing(load: messages.ServerLoad) -> str:
    if load.bar is not None:
        return f"fenced {until(load.bar)}"
    if load.fenced:
        return "fenced"
    if load.server.leaving:
        return "stopping"
    return load.drained or ("flapping" if load.shunned_until_ms else "up")


@server.command()
@click.argument(
    "name",
    metavar="SERVER",
    shell_complete=complete.servers,
)
@wait_option(60.0)
@global_options
@click.pass_obj
def drain(given: Globals, name: str, wait_s: float) -> None:
    """Move all regions away from SERVER and keep it empty, also after restarts, until it is undrained.

    Members of tablets get successors on other servers first. Members for which the other servers are too few stay; in
    that case `rk server retire` refuses.
    """
    wait_ms = int(wait_s * 1000)
    _order(given, name, lambda uuid: messages.DrainServer(uuid, wait_ms=wait_ms), must_run=True, wait_s=wait_s)


@server.command()
@click.argument(
    "name",
    metavar="SERVER",
    shell_complete=complete.servers,
)
@click.option("--cancel", is_flag=True, help="Allow regions on SERVER again: rk server undrain.")
@wait_option(600.0)
@click.option("--no-wait", is_flag=True, help="Return once the master has recorded the request: --wait 0.")
@click.option("--dry-run", is_flag=True, help="Only show what is on SERVER, and whether it can be emptied.")
@global_options
@click.pass_obj
def retire(given: Globals, name: str, cancel: bool, wait_s: float, no_wait: bool, dry_run: bool) -> None:
    """Empty SERVER for good, and wait until no tablet has a member on it and no region is open there.

    Every member gets a successor on another server before it is removed. The request is kept: the masters continue if
    this command is interrupted. Refused if the other servers are too few for a table's replicas. SERVER may be dead
    already: then its members are replaced at once. `rk server drain` does the same as far as possible.
    """
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        uuid = uuid_of(cluster, name, names)
        name_former(cluster, names, [uuid])
        with named(names):
            if cancel:
                answer = cluster.ask_master(messages.DrainServer(uuid, drain=False), messages.Accepted)
                output.report(
                    {"server": uuid, "detail": answer.detail}, names.in_text(answer.detail), as_json=given.json
                )
                return
            found = cluster.ask_master(messages.RetireServer(uuid, dry_run), Retirement)
            if not (dry_run or no_wait) and wait_s:

                def look() -> Look:
                    nonlocal found
                    found = cluster.ask_master(messages.ShowRetirement(uuid), Retirement)
                    return Look(_how_far(found, names), found.is_empty or not found.is_retiring)

                last = follow(look, wait_s, is_quiet=given.json)
                if not last.is_over:
                    hint = "`rk tablet intents` shows how far it is; `rk server retire --cancel` takes it back."
                    raise not_over(f"the retirement of {names.of_uuid(uuid)}", last, wait_s, hint)
    output.report({"retirement": found, "dry_run": dry_run}, _result(found, names, dry_run), as_json=given.json)


def _how_far(found: Retirement, names: Names) -> str:
    if found.is_empty:
        return f"{names.of_uuid(found.uuid)} is empty"
    line = retirement_line(found, names)
    one = next((one for one in found.left if one.policy), None)
    return line + (f"; {one.region_id} {names.in_sentence(one.policy)}" if one is not None else "")


def _result(found: Retirement, names: Names, dry_run: bool) -> str:
    server = names.of_uuid(found.uuid)
    if dry_run:
        return (
            f"would empty {server}: {output.count(found.tablets, 'member')} of tablets,"
            f" {output.count(found.shared, 'shared region')}"
        )
    if found.is_empty:
        return f"{server} is empty" + (", and can be stopped for good" if found.is_registered else "")
    if not found.is_retiring:
        return f"{server} may have regions again: another request has taken the retirement back"
    return retirement_line(found, names)


@server.command()
@click.argument(
    "name",
    metavar="SERVER",
    shell_complete=complete.servers,
)
@global_options
@click.pass_obj
def undrain(given: Globals, name: str) -> None:
    """Allow regions on SERVER again; give the whole uuid of a server that is not running."""
    _order(given, name, lambda uuid: messages.DrainServer(uuid, drain=False))


@server.command()
@click.argument(
    "name",
    metavar="SERVER",
    shell_complete=complete.servers,
)
@click.option("--reason", default="requested by an operator", show_default=True, help="Kept until the fence ends.")
@click.option(
    "--for",
    "span",
    metavar="TIME",
    help="Give the server no regions for this time after it has joined again: 90s, 10m, 2h; 0: some at once."
    "  [default: until rk server unfence]",
)
@wait_option(60.0)
@click.option("--yes", is_flag=True, help="Do not ask.")
@global_options
@click.pass_obj
def fence(given: Globals, name: str, reason: str, span: str | None, wait_s: float, yes: bool) -> None:
    """Take all regions away from a live SERVER that does not work, and keep it empty until it is unfenced.

    Its regions are not served until its lease has certainly ended, which takes some seconds. Then they are opened
    elsewhere, and the command waits for this. The server joins again by itself and gets no regions, even after restarts
    of the server and of masters. As long as the server still closes its regions, `rk server drain` costs less.
    """
    bar_ms = BAR_FOR_EVER if span is None else duration_ms(span, "--for")
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        found = names.find(name)
        uuid = found.uuid
        if not yes:
            question = f"fence {names.of_uuid(uuid)}{of_cluster(given)}, which drops all its regions at once?"
            output.confirm(question, "nothing was fenced", as_json=given.json)
        request = messages.FenceServer(uuid, reason, found.start_code, bar_ms, int(wait_s * 1000))
        answer = cluster.ask_master(request, messages.Accepted, timeout_s=wait_s + 15.0)
    report: dict[str, object] = {"server": uuid, "detail": answer.detail, "places": answer.places}
    output.report(report, names.in_text(answer.detail), as_json=given.json)


@server.command()
@click.argument(
    "name",
    metavar="SERVER",
    shell_complete=complete.servers,
)
@global_options
@click.pass_obj
def unfence(given: Globals, name: str) -> None:
    """Allow regions on a fenced SERVER again; give the whole uuid of a server that is not running."""
    _order(given, name, messages.UnfenceServer)


def _order(
    given: Globals,
    name: str,
    request_of: Callable[[str], messages.MasterRequest],
    *,
    must_run: bool = False,
    wait_s: float = 0.0,
) -> None:
    """Send a request about one server, and print the answer with the server's name in place of its uuid.

    A server that is not running must be named by its whole uuid. `must_run`: raise NotFoundError for such a server.
    `wait_s`: time that the master may wait before it answers.
    """
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        try:
            uuid = names.find(name).uuid
        except NotFoundError:
            if must_run:
                raise
            uuid = name
        answer = cluster.ask_master(request_of(uuid), messages.Accepted, timeout_s=wait_s + _GRACE_S)
    output.report({"server": uuid, "detail": answer.detail}, names.in_text(answer.detail), as_json=given.json)


@server.command()
@daemon_options(
    data_dir="Directory of this server alone: its identity and its lock.",
    silence="the store expires the session, and this server's regions go to others",
)
@click.option(
    "--shared-dir",
    type=click.Path(path_type=Path),
    help="Directory that all region servers share: the regions.  [default: none, the server takes tablets alone]",
)
@click.option(
    "--address", required=True, metavar="HOST:PORT", help="Address for masters and clients; port 0: any free port."
)
@click.option("--admin-address", metavar="HOST:PORT", help="Serve /metrics, /health, /ready and /status here.")
@click.option(
    "--admin-name",
    "admin_names",
    multiple=True,
    metavar="HOST",
    help="A host name under which the admin port is reached, beside addresses and --address. May be repeated.",
)
@click.option(
    "--peer-address",
    metavar="HOST:PORT",
    help="Address for the other members of this server's tablets, with the host of --address. Port 0: any free port,"
    " the same at each start.  [default: port 0 if HOST is this machine alone, else no tablets]",
)
@click.option("--no-tablets", is_flag=True, help="Take no tablets, that is, no replicated regions.")
@click.option(
    "--copy-rate",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    metavar="MIB",
    help="Limit of MiB per second that this server sends to copies of its replicas, together; 0: no limit.",
)
@click.option(
    "--reserve",
    type=click.IntRange(0),
    default=1024,
    show_default=True,
    metavar="MIB",
    help="MiB that stay free on the disk of the tablets. Below them the server takes no copies and leads no writes.",
)
@click.option(
    "--quarantine-keep",
    default="7d",
    show_default=True,
    metavar="TIME",
    help="How long the files of removed and replaced replicas are kept. Without room on the disk the oldest go first.",
)
@click.option(
    "--replica-dead-s",
    type=SECONDS,
    default=300.0,
    show_default=True,
    help="Silence after which tablets that this server leads call a member FAILED, so that masters replace the member.",
)
@peer_options
@click.option("--rack", default="default", show_default=True, help="Rack, for placement.")
@click.option(
    "--weight",
    type=SECONDS,
    default=1.0,
    show_default=True,
    help="Share of the regions, relative to other servers.",
)
@click.option("--group", default="", help="Group of servers to which this server belongs.")
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Threads that open and close regions.",
)
@click.option(
    "--opener",
    type=click.Choice(["kv", "directories", "none"]),
    default="kv",
    show_default=True,
    help="What a region is: key-value data, an empty directory, or nothing (for benchmarks).",
)
@click.option(
    "--handover-s",
    type=SECONDS,
    default=30.0,
    show_default=True,
    help="When stopping, move regions to other servers for at most this long; 0: close them all at once.",
)
@click.option(
    "--masters",
    default="",
    metavar="HOST:PORT,…",
    help="Masters that get heartbeats in addition to those registered in the store.",
)
@click.option(
    "--heartbeat-period-s",
    type=SECONDS,
    default=1.0,
    show_default=True,
    help="Seconds between two heartbeats.",
)
@click.option("--drill-links", is_flag=True, hidden=True, help="Let `rk drill` cut this server off from other members.")
@click.pass_obj
def run(
    given: Globals,
    store: str,
    data_dir: Path,
    shared_dir: Path | None,
    address: str,
    admin_address: str | None,
    admin_names: tuple[str, ...],
    peer_address: str | None,
    no_tablets: bool,
    copy_rate: int,
    reserve: int,
    quarantine_keep: str,
    replica_dead_s: float,
    peer_tls_cert: Path | None,
    peer_tls_key: Path | None,
    peer_tls_ca: Path | None,
    peer_tls_host_check: bool | None,
    peer_secret_file: Path | None,
    rack: str,
    weight: float,
    group: str,
    root: str,
    session_timeout_ms: int,
    insecure: bool,
    threads: int,
    opener: str,
    handover_s: float,
    masters: str,
    heartbeat_period_s: float,
    drill_links: bool,
) -> int:
    """Open and close regions as the active master orders, until a signal arrives.

    SIGTERM moves the regions away one by one, then ends the session: a rolling restart costs each region its own move.
    """
    from cli.common.access import certs_dir_named, check_exposed, store_access
    from coord.errors import ConfigError
    from regionserver import service
    from regionserver.config import ServerSettings, default_peer_address, parse_address

    try:
        host, port = parse_address(address, "--address")
        check_exposed(host, certs_dir_named(given), insecure=insecure)
        admin = parse_address(admin_address, "--admin-address") if admin_address else (None, 0)
        if no_tablets and peer_address is not None:
            raise ConfigError("--no-tablets and --peer-address contradict each other")
        peers = parse_address(peer_address, "--peer-address") if peer_address else default_peer_address(host, opener)
        settings = ServerSettings(
            store=store.removeprefix("zk://"),
            data_dir=data_dir,
            shared_dir=shared_dir,
            host=host,
            port=port,
            admin_host=admin[0],
            admin_port=admin[1],
            admin_names=admin_names,
            rack=rack,
            weight=weight,
            group=group,
            root=root.rstrip("/"),
            session_timeout_ms=session_timeout_ms,
            threads=threads,
            opener=opener,
            handover_s=handover_s,
            masters=tuple(parse_address(one.strip(), "--masters") for one in masters.split(",") if one.strip()),
            heartbeat_period_s=heartbeat_period_s,
            access=store_access(given, is_server=True),
            certs_dir=certs_dir_named(given),
            peer_address=None if no_tablets else peers,
            peer_secret=peer_secret(peer_secret_file),
            peer_tls=peer_tls(peer_tls_cert, peer_tls_key, peer_tls_ca, verify_host=peer_tls_host_check),
            copy_rate_bytes=copy_rate << 20,
            reserve_bytes=reserve << 20,
            quarantine_keep_s=duration_ms(quarantine_keep, "--quarantine-keep") / 1000,
            replica_dead_s=replica_dead_s,
            drill_links=drill_links,
        )
        return service.run(settings)
    except ConfigError as error:
        raise CliError(str(error)) from error
