"""`rk health`: one verdict about the whole cluster, for people and for scripts.

The command asks every process directly and in parallel: store nodes by `srvr`, masters and region servers by RPC. So it
works with any process down, and opens no session: a monitor that runs it in a loop writes nothing into the store. Only
if no master's address is known, it reads the addresses from the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

import click
import msgspec
from rich.console import Console
from rich.text import Text

from cli.common import output
from cli.common.access import NodeAnswer, addresses_of_store, ask_node, expiring_of, silence_of, store_access
from cli.common.asking.store import open_named_store, root_of, store_hosts
from cli.common.connect import Cluster
from cli.common.errors import UnreachableError
from cli.common.local import Daemon, LocalCluster, knows_masters_alone, read_cluster
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.common.waiting import soon_after_timeout, takes_timeout, waiting
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import Code, RpcError
from coord.security.principal import OPEN_DOOR, OpenDoor
from master.client import split_address
from regions import messages
from regions.diagnose.health import (
    EXIT_STATUS,
    Findings,
    Health,
    HealthVerdict,
    MasterFinding,
    ServerFinding,
    StoreFinding,
    judge,
)
from regions.messages.staleness import Bound

Answer = TypeVar("Answer", bound=msgspec.Struct)

#: Default of --timeout: everything is asked at once, twice at most.
TIMEOUT_S: Final = 2.0
_THREADS: Final = 64
#: A standby's list of servers may be this old.
_FOR_NAMES: Final = Bound(max_ms=60_000)
_SILENT: Final = "accepts connections and does not answer"
DOWN: Final = "refuses connections"
#: Styles of the verdicts on a terminal.
STYLES: Final = {HealthVerdict.HEALTHY: "green", HealthVerdict.DEGRADED: "yellow", HealthVerdict.UNAVAILABLE: "red"}


class HealthReport(msgspec.Struct):
    """Content of `rk health`: the verdict, its reasons, and the answer of each process."""

    verdict: HealthVerdict
    reasons: list[str]
    store: list[StoreFinding] | None
    masters: list[MasterFinding]
    servers: list[ServerFinding]
    #: The active master's figures, None if no active master answered.
    figures: messages.MasterStatus | None
    took_ms: int


@click.command()
@takes_timeout(TIMEOUT_S)
@global_options
@click.pass_obj
def health(given: Globals, timeout_s: float) -> int:
    """Report whether the cluster is healthy, degraded or unavailable, and why.

    Exit status 0: healthy. 1: degraded, clients are served but something is missing. 2: unavailable, some clients are
    refused. The command asks every process directly, and ends within about --timeout even if processes are down.
    """
    began_s = time.monotonic()
    with waiting("store nodes, masters and region servers, all at once", soon_after_timeout()):
        found, names = find(given, timeout_s)[:2]
    verdict = judge(found)
    took_ms = int((time.monotonic() - began_s) * 1000)
    if given.json:
        reasons = [names.in_sentence(one.text) for one in verdict.reasons]
        report = HealthReport(
            verdict.verdict, reasons, found.store, found.masters, found.servers, found.figures, took_ms
        )
        output.print_json(report)
    else:
        show(verdict, found, names, output.console())
        if not any(one.answers for one in found.masters) and not any(one.answers for one in found.servers):
            click.echo(_start_hint(given))
    return EXIT_STATUS[verdict.verdict]


def show_verdict(verdict: Health, names: Names, console: Console) -> None:
    """Print the verdict, and one line for each reason."""
    console.print(Text(verdict.verdict.upper(), style=f"bold {STYLES[verdict.verdict]}"))
    for one in verdict.reasons:
        console.print(Text(f"  {names.in_sentence(one.text)}", style=STYLES[one.verdict]), soft_wrap=True)


def show(verdict: Health, found: Findings, names: Names, console: Console) -> None:
    """Print the verdict with its reasons, and who answered."""
    show_verdict(verdict, names, console)
    parts = []
    if found.store is not None:
        parts.append(answering(found.store, "store node"))
    parts += [answering(found.masters, "master"), answering(found.servers, "region server")]
    console.print(f"answered: {', '.join(parts)}", soft_wrap=True)
    figures = found.figures
    if figures is not None:
        tablets = sum((figures.tablets or {}).values())
        of_tablets = f", {output.count(tablets, 'tablet')}" if tablets else ""
        console.print(f"{output.count(figures.tables, 'table')}, {output.count(figures.regions, 'region')}{of_tablets}")


def answering(found: Sequence[StoreFinding | MasterFinding | ServerFinding], what: str) -> str:
    """Return how many of these processes answer, such as `2 of 3 store nodes`."""
    return f"{sum(one.answers for one in found)} of {output.count(len(found), what)}"


class Gathered(NamedTuple):
    """Answers of the processes of a cluster. `statuses` and `loads` are by address."""

    findings: Findings
    names: Names
    statuses: dict[str, messages.MasterStatus]
    #: The active master's answer about each server; without an active master, a standby's list without figures.
    loads: dict[str, messages.ServerLoad]


class Registered(NamedTuple):
    """Addresses of the masters and region servers that the store has."""

    masters: list[str]
    servers: list[str]


def find(given: Globals, timeout_s: float, registered: Registered | None = None) -> Gathered:
    """Ask every process of the cluster. Raise CliError for wrong options.

    `registered`: registrations that the caller has read from the store, so that no second session is needed for the
    addresses.
    """
    local = read_cluster(given.data_path)
    if knows_masters_alone(given):
        local, hosts = None, ""
    else:
        hosts = store_hosts(given)
        local = local if local is not None and local.store == hosts else None
    return _Rounds(given, hosts, local, timeout_s, registered).run()


class _Rounds:
    """Two rounds of questions, each to all processes at once: first the processes whose addresses are known, then the
    rest."""

    def __init__(
        self,
        given: Globals,
        hosts: str,
        local: LocalCluster | None,
        timeout_s: float,
        known: Registered | None = None,
    ) -> None:
        self._given = given
        self._known = known
        self._hosts = hosts
        self._local = local
        self._names = {one.address: one.name for one in local.daemons()} if local is not None else {}
        self._each_s = timeout_s / 2
        self._access = store_access(given)

    def run(self) -> Gathered:
        local = self._local
        masters = self._given.master_addresses() or [one.address for one in _masters_of(local)]
        with ThreadPoolExecutor(_THREADS) as pool:
            nodes = [pool.submit(self._node, one) for one in addresses_of_store(self._hosts)]
            registered = None if masters else pool.submit(self._registered)
            asked = {one: pool.submit(self._master, one) for one in masters}
            servers = {one.address: pool.submit(self._server, one.address) for one in _servers_of(local)}
            if registered is not None:
                masters, found_servers = registered.result()
                asked = {one: pool.submit(self._master, one) for one in masters}
                servers = {one: pool.submit(self._server, one) for one in found_servers}
            statuses = {address: future.result() for address, future in asked.items()}
            loads = self._loads(pool, statuses)
            for address in loads:
                if address not in servers:
                    servers[address] = pool.submit(self._server, address)
            found = Findings(
                store=[one.result() for one in nodes] if self._hosts else None,
                masters=[self._of_master(address, one) for address, one in statuses.items()],
                servers=_with_loads(self._results(servers), loads),
                figures=_active(statuses.values()),
            )
        answering = {address: one for address, one in statuses.items() if isinstance(one, messages.MasterStatus)}
        return Gathered(found, Names([load.server for load in loads.values()], local), answering, loads)

    def _results(self, servers: dict[str, Future[messages.ServerStatus | str]]) -> list[ServerFinding]:
        return [self._of_server(address, future.result()) for address, future in servers.items()]

    def _of_server(self, address: str, answer: messages.ServerStatus | str) -> ServerFinding:
        name = self._names.get(address, address)
        if isinstance(answer, str):
            return ServerFinding(name, address, False, answer)
        return ServerFinding(
            name,
            address,
            True,
            expiring=answer.expiring,
            open_door=answer.open_door,
            shares_credential=answer.shares_credential,
        )

    def _node(self, address: str) -> StoreFinding:
        name = self._names.get(address, address)
        answer = ask_node(address, "srvr", self._each_s, self._access)
        if mode := answer.fields.get("Mode", ""):
            expiring = expiring_of(answer.certificate, name)
            return StoreFinding(name, address, True, mode, expiring=expiring, open_door=_door_of(answer))
        if answer.text:
            return StoreFinding(name, address, True, trouble="answers that it does not serve")
        return StoreFinding(name, address, False, trouble=silence_of(address, self._each_s))

    def _master(self, address: str) -> messages.MasterStatus | str:
        return _ask(address, messages.GetMasterStatus(), messages.MasterStatus, self._each_s)

    def _of_master(self, address: str, answer: messages.MasterStatus | str) -> MasterFinding:
        name = self._names.get(address, address)
        if isinstance(answer, str):
            return MasterFinding(name, address, False, trouble=answer)
        return MasterFinding(name, address, True, answer.role, expiring=answer.expiring, open_door=answer.open_door)

    def _server(self, address: str) -> messages.ServerStatus | str:
        """Return the server's answer, or why there is none."""
        return _ask(address, messages.GetServerStatus(), messages.ServerStatus, self._each_s)

    def _loads(
        self, pool: ThreadPoolExecutor, statuses: dict[str, messages.MasterStatus | str]
    ) -> dict[str, messages.ServerLoad]:
        """Return the active master's answer about the servers, else a standby's list without figures."""
        answering = {address: one for address, one in statuses.items() if isinstance(one, messages.MasterStatus)}
        active = [address for address, one in answering.items() if one.role == "active"]
        request = messages.ListServers() if active else messages.ListServers(_FOR_NAMES)

        def ask(address: str) -> messages.Servers | str:
            return _ask(address, request, messages.Servers, self._each_s)

        for answer in pool.map(ask, active or answering):
            if isinstance(answer, messages.Servers):
                return {f"{one.server.host}:{one.server.port}": one for one in answer.servers}
        return {}

    def _registered(self) -> Registered:
        """Return the addresses of masters and servers in the store; none if the store does not answer in time.

        Raise CliError if the store denies access.
        """
        if self._known is not None:
            return self._known
        try:
            with open_named_store(self._given, self._access, self._each_s) as client:
                cluster = Cluster(client, self._hosts, root_of(self._given), None, self._access)
                return Registered(
                    [f"{one.host}:{one.port}" for one in cluster.masters()],
                    [f"{one.host}:{one.port}" for one in cluster.servers()],
                )
        except UnreachableError:
            return Registered([], [])


def _door_of(answer: NodeAnswer) -> OpenDoor:
    """Return the open door that a store node reports; CLOSED for a door that this build does not know."""
    said = answer.fields.get(OPEN_DOOR, "")
    return OpenDoor(said) if said in tuple(OpenDoor) else OpenDoor.CLOSED


def _ask(address: str, request: msgspec.Struct, expect: type[Answer], timeout_s: float) -> Answer | str:
    """Return the answer, or why there is none."""
    try:
        return call_blocking(split_address(address), request, timeout_s, expect=expect)
    except RpcError as error:
        if error.code == Code.UNREACHABLE:
            return DOWN
        return _SILENT if error.code == Code.TIMEOUT else f"rejects the question: {error.message or error.code}"


def _active(answers: Iterable[messages.MasterStatus | str]) -> messages.MasterStatus | None:
    return next((one for one in answers if isinstance(one, messages.MasterStatus) and one.role == "active"), None)


def _with_loads(found: Iterable[ServerFinding], loads: Mapping[str, messages.ServerLoad]) -> list[ServerFinding]:
    """Return the findings with the active master's answers about each server."""
    return sorted((_with_load(one, loads.get(one.address)) for one in found), key=lambda one: one.name)


def _with_load(found: ServerFinding, load: messages.ServerLoad | None) -> ServerFinding:
    if load is None:
        return found
    state = "fenced" if load.bar is not None or load.fenced else load.drained
    return msgspec.structs.replace(found, regions=load.shared_open, tablets=load.tablets, state=state)


def _start_hint(given: Globals) -> str:
    if given.explicit_store() is not None or knows_masters_alone(given):
        return "Is the cluster up, and are these its addresses? `rk up` starts a cluster here."
    where = "" if given.data_dir is None else f" --data-dir {given.data_dir}"
    return f"Is the cluster up? Start the one in {given.data_path}: rk up{where}"


def _masters_of(local: LocalCluster | None) -> list[Daemon]:
    return [] if local is None else local.masters


def _servers_of(local: LocalCluster | None) -> list[Daemon]:
    return [] if local is None else local.servers
