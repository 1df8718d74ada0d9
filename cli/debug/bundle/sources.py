"""Questions of a bundle. Each source has the name of a file in the bundle, and the question; all are asked at once.

If no process answers with the addresses, as when every master is dead, they come from the local cluster's description.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cli.common import output
from cli.common.access import addresses_of_store, admin_url, ask_node, read_admin_page, silence_of, store_access
from cli.common.asking.store import store_hosts
from cli.common.connect import open_cluster
from cli.common.errors import CliError
from cli.common.local import CLUSTER_FILE, Daemon, LocalCluster
from cli.common.names import Names
from cli.common.options import Globals
from cli.diagnose.health import Gathered
from cli.diagnose.history import lines, read_past
from coord.compiled import form
from coord.rpc.blocking import call_blocking
from master.client import admin_address, split_address
from regions import messages
from regions.diagnose.health import judge
from regions.records.model import ServerRecord

_PAGES: Final = ("status", "health", "ready", "metrics")
#: Words that every node answers.
_WORDS: Final = ("ruok", "srvr", "mntr")
_PAGE_BYTES_MAX: Final = 16 << 20
_LOG_BYTES_MAX: Final = 1 << 20
#: Entries of the history.
_HISTORY: Final = 500
#: Lines of /proc/PID/status that say how a process is.
_OF_PROCESS: Final = ("State", "VmRSS", "VmHWM", "Threads", "FDSize")


class Source(NamedTuple):
    """One file of the bundle. `ask` takes a time limit and raises OSError, RpcError or CliError."""

    path: str
    ask: Callable[[float], str]


class KnownProcesses(NamedTuple):
    """Knowledge of the processes before a bundle asks them."""

    local: LocalCluster | None
    #: Result of `rk health`, None if it failed.
    gathered: Gathered | None
    #: Admin addresses that the local cluster's description does not have, by the name of the process.
    admins: Mapping[str, str]


def sources(given: Globals, known: KnownProcesses, log_lines: int, *, with_keys: bool) -> Iterator[Source]:
    """Yield everything that a bundle has."""
    local, gathered = known.local, known.gathered
    yield Source("versions.txt", lambda _: _versions())
    yield Source("configuration/environment.txt", lambda _: _environment())
    if gathered is not None:
        yield Source("health.json", lambda _: _json({"verdict": judge(gathered.findings), **_found(gathered)}))
    if given.configuration.path is not None:
        yield Source("configuration/config.toml", lambda _: Path(str(given.configuration.path)).read_text())
    if local is not None:
        yield Source(f"configuration/{CLUSTER_FILE}", lambda _: _json(local))
        if local.topology:
            yield Source("configuration/topology.toml", lambda _: Path(local.topology).read_text())
        for daemon in local.daemons():
            yield from _of_daemon(daemon, log_lines, with_log=with_keys)
    for name, admin in _admin_ports(known).items():
        for page in _PAGES:
            yield Source(f"processes/{name}/{page}{'.txt' if page == 'metrics' else '.json'}", _page(admin, page))
    yield from _of_store(given, local)
    yield from _of_masters(gathered)
    if with_keys:
        yield Source("history.txt", lambda timeout_s: _history(given, timeout_s))


def _json(content: object) -> str:
    return msgspec.json.format(msgspec.json.encode(output.whole(content)), indent=2).decode() + "\n"


def _found(gathered: Gathered) -> dict[str, object]:
    return {"findings": gathered.findings, "statuses": gathered.statuses, "loads": gathered.loads}


def _versions() -> str:
    lines_ = [f"store {form()}", f"Python {sys.version}", platform.platform(), f"{os.cpu_count()} CPUs"]
    return "\n".join([*lines_, f"load {os.getloadavg()}"]) + "\n"


def _environment() -> str:
    found = sorted((name, value) for name, value in os.environ.items() if name.startswith("RK_"))
    return "".join(f"{name}={value}\n" for name, value in found) or "no variable RK_…\n"


def _of_daemon(daemon: Daemon, log_lines: int, *, with_log: bool) -> Iterator[Source]:
    """Yield the sources on this machine about a local daemon, even a dead one."""
    yield Source(f"processes/{daemon.name}/process.txt", lambda _: _process(daemon))
    if with_log and log_lines:
        yield Source(f"logs/{daemon.name}.log", lambda _: _tail(Path(daemon.log), log_lines))


def _process(daemon: Daemon) -> str:
    disk = shutil.disk_usage(daemon.data_dir)
    said = [f"pid {daemon.pid or 'unknown: it has ended, or is started'}", f"disk: {output.size(disk.free)} free"]
    try:
        status = Path(f"/proc/{daemon.pid}/status").read_text() if daemon.pid else ""
        said += [line for line in status.splitlines() if line.partition(":")[0] in _OF_PROCESS]
        command = Path(f"/proc/{daemon.pid}/cmdline").read_bytes() if daemon.pid else b""
        said.append(f"command: {command.replace(bytes(1), b' ').decode(errors='replace')}")
    except OSError:
        said.append("no such process")
    return "\n".join(said) + "\n"


def _tail(path: Path, count: int) -> str:
    """Return the last lines of a log."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES_MAX))
        return "".join(file.read().decode(errors="replace").splitlines(True)[-count:])


def _admin_ports(known: KnownProcesses) -> dict[str, str]:
    """Return the admin addresses that are known, by the name of the process."""
    if known.local is not None:
        return {one.name: one.admin for one in known.local.daemons()} | dict(known.admins)
    loads = known.gathered.loads if known.gathered is not None else {}
    return servers_admins(one.server for one in loads.values()) | dict(known.admins)


def registered_admins(given: Globals, timeout_s: float) -> dict[str, str]:
    """Return the admin addresses of masters and servers from their records in the store, or from the masters.

    Raise CliError.
    """
    with open_cluster(given, must_exist=False, timeout_s=timeout_s) as cluster:
        masters = {file_name(f"{one.host}:{one.port}"): admin_address(one) for one in cluster.masters()}
        return {name: admin for name, admin in masters.items() if admin} | servers_admins(cluster.servers())


def servers_admins(servers: Iterable[ServerRecord]) -> dict[str, str]:
    """Return the admin addresses of region servers that have one."""
    return {file_name(f"{one.host}:{one.port}"): f"{one.host}:{one.admin_port}" for one in servers if one.admin_port}


def file_name(address: str) -> str:
    """Return the name in the bundle of the process at an address."""
    return address.replace(":", "_").replace("/", "_")


def _page(admin: str, page: str) -> Callable[[float], str]:
    def ask(timeout_s: float) -> str:
        try:
            return read_admin_page(admin, f"/{page}", timeout_s, _PAGE_BYTES_MAX).decode(errors="replace")
        except OSError as error:
            body = getattr(error, "read", None)  # /health of a sick process is 503, with the reasons
            if body is None:
                raise OSError(f"{admin_url(admin)}/{page}: {getattr(error, 'reason', error)}") from error
            return str(body(_PAGE_BYTES_MAX).decode(errors="replace"))

    return ask


def _of_store(given: Globals, local: LocalCluster | None) -> Iterator[Source]:
    """Yield the four-letter words of each node of the store."""
    try:
        hosts = addresses_of_store(store_hosts(given))
    except CliError:
        return  # only masters were named
    access = store_access(given)
    names = {one.address: one.name for one in local.coord} if local is not None else {}
    for address in hosts:
        for word in _WORDS:

            def ask(timeout_s: float, address: str = address, word: str = word) -> str:
                said = ask_node(address, word, timeout_s, access).text
                if not said:
                    raise OSError(f"{address} {silence_of(address, timeout_s)}")
                return said

            yield Source(f"processes/{names.get(address, file_name(address))}/{word}.txt", ask)


def _of_masters(gathered: Gathered | None) -> Iterator[Source]:
    """Yield the masters' answers about the cluster: tables and transitions from the active one, masters from all."""
    for one in gathered.findings.masters if gathered is not None else ():
        requests: list[tuple[msgspec.Struct, type[msgspec.Struct]]] = [(messages.ListMasters(), messages.Masters)]
        if one.role == "active":
            requests += [(messages.ListTables(), messages.Tables), (messages.ListRit(1000), messages.Transitions)]
        for request, expect in requests:

            def ask(timeout_s: float, address: str = one.address, request: msgspec.Struct = request,
                    expect: type[msgspec.Struct] = expect) -> str:  # fmt: skip
                return _json(call_blocking(split_address(address), request, timeout_s, expect=expect))

            yield Source(f"processes/{file_name(one.name)}/{type(request).__name__}.json", ask)


def _history(given: Globals, timeout_s: float) -> str:
    """Return the last entries of the history, from the store."""
    with open_cluster(given, timeout_s=timeout_s) as cluster:
        past = read_past(cluster, Names(cluster.servers(), cluster.local))
        tables = {one.table_id: one.name for one in cluster.tables()}
    shown = [line.plain for line in lines((past.step(one, tables) for one in past.entries[-_HISTORY:]), zxids=True)]
    return "\n".join([*shown, *past.unreadable]) + "\n"
