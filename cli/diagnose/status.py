"""`rk status`: the cluster on one screen."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.common import output
from cli.common.access import PROBE_S, addresses_of_store, admin_url, ask_node, is_answering, store_access
from cli.common.asking.store import store_hosts
from cli.common.connect import Cluster, MastersAlone, open_cluster
from cli.common.errors import CliError, ExitStatus, UnreachableError
from cli.common.local import LocalCluster, knows_masters_alone, read_cluster
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.common.staleness import print_age, stale_options
from cli.common.waiting import limit_s, waiting
from cli.diagnose import reach
from cli.diagnose.access_lists import names_no_servers
from cli.diagnose.audit import read_alarms
from cli.diagnose.health import DOWN, TIMEOUT_S, Gathered, Registered, find, show_verdict
from cli.diagnose.reach import Reach
from cli.tables import summary
from cli.tablets.display import UNKNOWN, health_word
from cli.tablets.former import name_former
from coord.client.access import StoreAccess
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from coord.server.config.addresses import ANYWHERE, parse_config_text, shown
from master.client import admin_address, split_address
from regions import messages
from regions.diagnose.health import EXIT_STATUS, SHARED_CREDENTIAL, Health, judge
from regions.messages import TabletHealth
from regions.messages.staleness import AsOf, Bound
from regions.records.kinds import KV
from regions.records.model import ActiveRecord, MasterRecord
from regions.records.replica_key import replica_key
from regions.records.znodes import decode_cluster

#: Default of --timeout. Half of it is for a session with the store, half for asking masters and servers without one.
_TIMEOUT_S = 6.0
#: Time limit for the active master. Without one, `rk status` reports this instead of waiting for a failover.
_MASTER_TIMEOUT_S = 2.0
_RIT_SHOWN = 20
#: The znode with the members of the store.
_MEMBERS = "/zookeeper/config"
_MUTE = "does not answer"


class StoreNodeStatus(msgspec.Struct):
    """A store node as `srvr` describes it; `role`: "down" without an answer, "up" if the answer has no details."""

    name: str
    address: str
    role: str
    zxid: str = ""
    connections: str = ""
    znodes: str = ""
    version: str = ""


class MasterLine(msgspec.Struct):
    """A master: active, standby or down."""

    name: str
    address: str
    role: str
    epoch: int = 0
    uuid: str = ""
    #: State of a standby's mirror; for any master, that it does not answer.
    mirror: str = ""
    #: Address of its live page, "" if it has none.
    page: str = ""


class ServerLine(msgspec.Struct):
    """A region server: up, draining, drained, fenced or down; counts are None if no active master has answered."""

    name: str
    address: str
    state: str
    rack: str = ""
    #: Open replicas, those of tablets included.
    open: int | None = None
    bytes: int | None = None
    incoming: int | None = None
    outgoing: int | None = None
    uuid: str = ""
    #: Kind of its opener.
    kind: str = ""
    #: Number of tablets with a member on the server, and number that it leads; None: unknown.
    tablets: int | None = None
    leaders: int | None = None
    #: Open replicas of tablets, which `open` includes; None if unknown: then `open` is without them.
    tablets_open: int | None = None
    #: Number of rows in `bytes`. Until the server has reported its replicas' sizes (`measured`), this is None and
    #: `bytes` is an estimate.
    rows: int | None = None
    measured: bool = False


class Status(msgspec.Struct):
    """Content of `rk status`. `note` names the parts that could not be read, and why."""

    store: list[StoreNodeStatus]
    masters: list[MasterLine] = []
    servers: list[ServerLine] = []
    tables: list[messages.TableSummary] = []
    in_transition: list[messages.TransitionStep] = []
    rit: int = 0
    problems: list[str] = []
    #: Number of tablets by health; None without an active master's answer.
    tablets: dict[str, int] | None = None
    #: Reachability of each master from each server.
    heartbeats: list[Reach] = []
    note: str = ""
    #: Verdict of `rk health`, with --check.
    health: Health | None = None
    #: Maximum age of the masters' answers, if a staleness was allowed.
    as_of: AsOf | None = None


@click.command()
@click.option("--check", is_flag=True, help="Add the verdict of `rk health`, and end with its exit status: 0, 1 or 2.")
@stale_options
@global_options
@click.pass_obj
def status(given: Globals, bound: Bound, check: bool) -> int:
    """Show store nodes, masters, servers, tables and regions in transition. Exit status 3: the store does not
    answer."""
    local = read_cluster(given.data_path)
    is_alone = knows_masters_alone(given)
    hosts = "" if is_alone else store_hosts(given)
    if is_alone or (local is not None and local.store != hosts):
        local = None
    found = Status([])
    unreachable: CliError | None = None
    gathered: Gathered | None = None
    session_s = limit_s(_TIMEOUT_S) / 2
    probe_s = max(min(PROBE_S, session_s), session_s / 3)
    with ThreadPoolExecutor(1) as pool:
        nodes = pool.submit(store_nodes, hosts, local, store_access(given), probe_s)
        try:
            with open_cluster(given, bound=bound, timeout_s=session_s) as cluster:
                found.store = nodes.result()
                if not is_alone:
                    more = unnamed_nodes(cluster.get(_MEMBERS) or b"", [one.address for one in found.store])
                    found.store += store_nodes(",".join(more), local, cluster.access, probe_s)
                names = _fill(found, cluster, probe_s)
                found.as_of = None if bound.is_none else cluster.as_of
        except UnreachableError as error:
            unreachable, found.store = error, nodes.result()
            with waiting("masters and region servers, all at once"):
                gathered = find(given, limit_s(TIMEOUT_S))
            names = _fill_directly(found, gathered)
    if check:
        registered = Registered([one.address for one in found.masters], [one.address for one in found.servers])
        found.health = judge((gathered or find(given, TIMEOUT_S, registered)).findings)
    if given.json:
        output.print_json(found)
    else:
        show(found, names, output.console())
        print_age(found.as_of, bound)
        if found.health is not None:
            show_verdict(found.health, names, output.console())
    if found.health is not None:
        return EXIT_STATUS[found.health.verdict]
    if unreachable is not None:
        raise unreachable
    return ExitStatus.OK


def _fill_directly(found: Status, gathered: Gathered) -> Names:
    """Fill in the answers of masters and servers, because the store does not answer. Return the names."""
    for master in gathered.findings.masters:
        role = master.role if master.answers else _role_of(master.trouble)
        found.masters.append(MasterLine(master.name, master.address, role))
    for server in gathered.findings.servers:
        state = (server.state or "up") if server.answers else _role_of(server.trouble)
        load = gathered.loads.get(server.address)
        line = ServerLine(server.name, server.address, state) if load is None else _server_line(load, gathered.names)
        line.state = state
        found.servers.append(line)
    found.note = "the store does not answer: tables and counts are unknown"
    return gathered.names


def _role_of(trouble: str) -> str:
    return "down" if trouble == DOWN else "silent"


def store_nodes(hosts: str, local: LocalCluster | None, access: StoreAccess, timeout_s: float) -> list[StoreNodeStatus]:
    """Return the state of each node of the store. All are asked at once, each question takes `timeout_s` at most."""
    known = {node.address: node.name for node in local.coord} if local is not None else {}
    addresses = addresses_of_store(hosts)

    def ask(address: str) -> StoreNodeStatus:
        return _store_node(known.get(address, address), address, access, timeout_s)

    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        return list(pool.map(ask, addresses))


def unnamed_nodes(configuration: bytes, named: Sequence[str]) -> list[str]:
    """Return the client addresses of the store's members that were not named. Pure except for the resolver.

    `configuration` is the content of /zookeeper/config, which lacks the address of a node that has not announced it.
    """
    try:
        members = parse_config_text(configuration)[0]
    except ValueError:
        return []
    known = {_resolved(one) for one in named}
    clients = [member.client for member, _ in members.values() if member.client is not None]
    return [text for one in clients if one[0] != ANYWHERE and _resolved(text := shown(one)) not in known]


def _resolved(address: str) -> str:
    """Return the address with the first IPv4 address of its host: `localhost` and `127.0.0.1` are the same."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, UnicodeError):
        return f"{socket.gethostbyname(host)}:{port}"
    return address


def _store_node(name: str, address: str, access: StoreAccess, timeout_s: float) -> StoreNodeStatus:
    value = ask_node(address, "srvr", timeout_s, access).fields
    if not value:
        return StoreNodeStatus(name, address, "silent" if is_answering(address, timeout_s) else "down")
    return StoreNodeStatus(
        name,
        address,
        value.get("Mode", "not serving"),
        value.get("Zxid", ""),
        value.get("Connections", ""),
        value.get("Node count", ""),
        value.get("Zookeeper version", "").partition(",")[0],
    )


def _fill(found: Status, cluster: Cluster, probe_s: float) -> Names:
    """Read everything that needs the store or the active master; return the names of servers and masters.

    `probe_s`: time limit of one question to a master that may be a standby.
    """
    active = cluster.active()
    servers = cluster.servers()
    names = Names(servers, cluster.local)
    found.masters = master_lines(cluster.masters(), active, names, cluster.local)
    standbys = [line for line in found.masters if line.role == "standby"]
    with ThreadPoolExecutor(reach.MASTERS_ASKED_MAX) as pool:
        asked = standbys[: reach.MASTERS_ASKED_MAX]
        for line, mirror in zip(asked, pool.map(lambda one: _mirror_of(one.address, probe_s), asked), strict=True):
            line.mirror = mirror
    for line in standbys[reach.MASTERS_ASKED_MAX :]:
        line.mirror = "not asked"
    found.servers = [
        ServerLine(
            names.of_uuid(one.uuid), f"{one.host}:{one.port}", "up", one.rack, uuid=one.uuid, kind=one.kind or KV
        )
        for one in servers
    ]
    try:
        loads = cluster.ask_master(messages.ListServers(), messages.Servers, _MASTER_TIMEOUT_S).servers
        found.tables = cluster.ask_master(messages.ListTables(), messages.Tables).tables
        found.in_transition = cluster.ask_master(messages.ListRit(_RIT_SHOWN), messages.Transitions).transitions
        if cluster.bound.is_none:
            figures = cluster.ask_master(messages.GetMasterStatus(), messages.MasterStatus)
            found.rit, found.problems, found.tablets = figures.rit, figures.problems, figures.tablets
        else:
            found.rit = sum(one.rit for one in found.tables)
    except UnreachableError as error:
        found.note = f"{error.message}: tables and counts are unknown"
        for line in found.masters:
            if line.role == "active":
                line.mirror = _MUTE
    else:
        found.servers = [_server_line(load, names) for load in loads]
    if not isinstance(cluster, MastersAlone):
        path = cluster.layout.cluster  # a master that has not read it before cannot become active
        cluster.understood({path: cluster.get(path) or b""}, decode_cluster)
        if not found.note and names_no_servers(cluster):
            found.note = SHARED_CREDENTIAL
        found.problems += [f"ALARM {one.alarm_id}: {one.rule}: {one.text} (rk audit)" for one in read_alarms(cluster)]
    if found.problems:
        name_former(cluster, names, (uuid for one in found.problems for uuid in Names.uuids_in(one)))
    _add_dead(found, cluster.local)
    found.heartbeats = reach.reaches(cluster.masters(), servers, names, probe_s)
    found.problems += [f"{path} cannot be decoded: {why} (rk fsck)" for path, why in cluster.unreadable.items()]
    cluster.unreadable.clear()
    return names


def _mirror_of(address: str, timeout_s: float) -> str:
    """Return the state of a standby's mirror (FW-01)."""
    wanted = messages.GetMasterStatus()
    try:
        status = call_blocking(split_address(address), wanted, timeout_s, expect=messages.MasterStatus)
    except RpcError:
        return _MUTE
    mirror = status.mirror
    if mirror is None:
        return ""
    if not mirror.is_warm:
        return f"reading, {mirror.behind} left"
    age = "" if mirror.stale_ms < 0 else f", {mirror.stale_ms / 1000:.1f} s old"
    return f"warm: {output.count(mirror.regions, 'region')}{age}"


def master_lines(
    live: Sequence[MasterRecord], active: ActiveRecord | None, names: Names, local: LocalCluster | None
) -> list[MasterLine]:
    """Return lines for the live masters, and for those of the local cluster that are down."""
    lines = []
    for one in live:
        is_active = active is not None and active.uuid == one.uuid
        epoch = active.epoch if is_active and active is not None else 0
        address = f"{one.host}:{one.port}"
        role, page = (
            "active" if is_active else "standby",
            f"{admin_url(admin_address(one))}/" if one.admin_port else "",
        )
        lines.append(MasterLine(names.of_master(one), address, role, epoch, one.uuid, page=page))
    seen = {line.address for line in lines}
    for daemon in local.masters if local is not None else []:
        if daemon.address not in seen:
            lines.append(MasterLine(daemon.name, daemon.address, "down"))
    return sorted(lines, key=lambda line: line.name)


def _server_line(load: messages.ServerLoad, names: Names) -> ServerLine:
    one = load.server
    state = "fenced" if load.bar is not None else load.drained or "up"
    return ServerLine(
        names.of_uuid(one.uuid),
        f"{one.host}:{one.port}",
        state,
        one.rack,
        load.open,
        load.bytes,
        load.incoming,
        load.outgoing,
        one.uuid,
        one.kind or KV,
        load.tablets,
        load.leaders,
        load.tablets_open,
        load.rows,
        load.measured,
    )


def _add_dead(found: Status, local: LocalCluster | None) -> None:
    seen = {line.address for line in found.servers}
    for daemon in local.servers if local is not None else []:
        if daemon.address not in seen:
            found.servers.append(ServerLine(daemon.name, daemon.address, "down", daemon.rack, 0, 0, 0, 0))
    found.servers.sort(key=lambda line: line.name)


_STYLES = {
    "leader": "green",
    "standalone": "green",
    "active": "green",
    "down": "red",
    "draining": "yellow",
    "drained": "yellow",
    "fenced": "yellow",
}


def _word(state: str) -> Text:
    return Text(state, style=_STYLES.get(state.split()[0], "") if state else "")


def show(found: Status, names: Names, console: Console) -> None:
    """Print the screen."""
    rows = [(n.name, n.address, _word(n.role), n.zxid, n.connections, n.znodes, n.version) for n in found.store]
    if rows:
        console.print(
            output.table("", ["store", "address", "role", "zxid", "#connections", "#znodes", "version"], rows)
        )
    if found.masters:
        lines = [(m.name, m.address, _word(m.role), m.epoch or "", m.mirror) for m in found.masters]
        console.print(output.table("", ["master", "address", "role", "#epoch", "mirror"], lines))
        pages = [one.page for one in sorted(found.masters, key=lambda one: one.role != "active") if one.page]
        if pages:
            console.print(Text(f"live page: {' or '.join(pages)}"))
    if found.servers:
        console.print(_servers_table(found.servers))
    if found.tables:
        console.print(summary(found.tables))
    if found.rit:
        what = "replica" if any(one.table.is_tablet for one in found.tables) else "region"
        words = output.in_transition(found.rit, sum(one.parked for one in found.tables), what)
        console.print(f"[yellow]{words}[/yellow], oldest first:")
        console.print(
            output.table("", ["region", "state", "why", "server", "#attempt", "last error"], _rit(found, names))
        )
    elif found.tables:
        console.print("[green]no region in transition[/green]")
    if found.tablets:
        console.print(_tablets_line(found.tablets).append(_leaders(found.servers), style=""))
    reach.show(found.heartbeats, console)
    for problem in found.problems:
        console.print(f"[red]{names.in_sentence(problem)}[/red]")
    if found.note:
        console.print(found.note, style="yellow")


def _servers_table(servers: Sequence[ServerLine]) -> Table:
    """Return the printed servers; with the columns of tablets if one has tablets."""
    with_tablets = any(one.tablets for one in servers)
    rows = [
        (s.name, s.address, _word(s.state), s.kind, s.rack, _open(s), _data(s), _known(s.incoming), _known(s.outgoing))
        + ((_known(s.tablets), _known(s.leaders)) if with_tablets else ())
        for s in servers
    ]
    columns = ["server", "address", "state", "kind", "rack", "#open", "#data", "#coming", "#going"]
    return output.table("", columns + (["#tablets", "#leads"] if with_tablets else []), rows)


def _leaders(servers: Sequence[ServerLine]) -> str:
    """Return how evenly the leaders of tablets are spread, "" if nothing is known of them."""
    counts = [one.leaders for one in servers if one.leaders is not None and one.tablets]
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f"; each server leads {low}" + (f" to {high}" if high > low else "")


def _open(one: ServerLine) -> str:
    is_unknown = one.tablets and one.tablets_open is None
    return f"{one.open} + {UNKNOWN}" if is_unknown else _known(one.open)


def _data(one: ServerLine) -> str:
    """Return the bytes of the server's replicas, with `~` if they are an estimate."""
    return UNKNOWN if one.bytes is None else output.estimated(one.bytes, is_measured=one.measured)


def _known(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)


def _tablets_line(counts: dict[str, int]) -> Text:
    """Return `tablets: 190 HEALTHY, 10 UNAVAILABLE`."""
    parts = [
        Text(f"{counts[one.value]} ").append_text(health_word(one)) for one in TabletHealth if counts.get(one.value)
    ]
    return Text("tablets: ").append_text(Text(", ").join(parts))


def _rit(found: Status, names: Names) -> list[tuple[object, ...]]:
    return [
        (
            replica_key(one.region_id, one.replica),
            "PARKED" if one.parked else one.after,
            one.cause,
            names.of_uuid(one.server),
            one.attempt,
            names.in_sentence(one.error),
        )
        for one in found.in_transition
    ]
