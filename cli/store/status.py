"""`rk coord status`: each store node's answer about itself.

Each node is asked directly, so the command works without a leader and without a majority. The admin port has all
figures, even while the node does not serve. It is used where its address is known: for a cluster of `rk up`, or from
--admin. Otherwise the four-letter words `srvr` and `mntr` have most of the figures, unless `mntr` is not allowed or the
node does not serve. An unknown figure is shown as "?", never as 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import click
import msgspec
from rich.text import Text

from cli.common import output
from cli.common.access import addresses_of_store, ask_node, read_admin_page, silence_of, store_access
from cli.common.asking.store import store_hosts
from cli.common.errors import ExitStatus, UsageFaultError
from cli.common.local import read_cluster
from cli.common.options import Globals, global_options
from cli.common.waiting import soon_after_timeout, takes_timeout, waiting
from coord.client.access import StoreAccess

TIMEOUT_S: Final = 2.0
_UNKNOWN: Final = "?"
_ADMIN_BYTES_MAX: Final = 1 << 20


class NodeStatus(msgspec.Struct):
    """Answer of one node. None: unknown."""

    name: str
    address: str
    role: str = _UNKNOWN
    term: int | None = None
    commit: int | None = None
    applied: int | None = None
    #: Entries that the node has not applied, by the highest commit index of all nodes.
    behind: int | None = None
    data_bytes: int | None = None
    znodes: int | None = None
    connections: int | None = None
    log_write_p99_ms: float | None = None
    version: str = ""
    error: str = ""


admin_option = click.option(
    "--admin", metavar="HOST:PORT,…", help="Admin addresses of the store's nodes, in the order of --store."
)


@click.command()
@admin_option
@takes_timeout(TIMEOUT_S)
@global_options
@click.pass_obj
def status(given: Globals, admin: str | None, timeout_s: float) -> int:
    """Ask each node of the store for its role, term, progress, size, disk and errors.

    Exit status 1 if a node has an error or does not answer. Works without a leader. `log write p99`: the time within
    which 99 of 100 of its last writes to the log were durable.
    """
    hosts = addresses_of_store(store_hosts(given))
    local = read_cluster(given.data_path)
    daemons = {one.address: one for one in local.coord} if local is not None else {}
    admins = {address: daemons[address].admin for address in hosts if address in daemons}
    if admin:
        admins = named_admins(admin, hosts)
    with waiting(f"the nodes at {', '.join(hosts)}", soon_after_timeout()):
        nodes = ask_nodes(given, hosts, admins, timeout_s)
    if given.json:
        output.print_json({"nodes": nodes})
    else:
        _show(nodes)
    return ExitStatus.REFUSED if any(one.error for one in nodes) else ExitStatus.OK


def named_admins(admin: str, hosts: Sequence[str]) -> dict[str, str]:
    """Return the admin address of each node by its address for clients. Raise UsageFaultError."""
    named = admin.split(",")
    if len(named) != len(hosts):
        raise UsageFaultError(f"--admin names {len(named)} addresses, the store has {len(hosts)}: {','.join(hosts)}")
    return dict(zip(hosts, named, strict=True))


def ask_nodes(given: Globals, hosts: Sequence[str], admins: Mapping[str, str], timeout_s: float) -> list[NodeStatus]:
    """Ask the nodes at these client addresses, all at once. `admins` has the admin addresses that are known."""
    local = read_cluster(given.data_path)
    names = {one.address: one.name for one in local.coord} if local is not None else {}
    access = store_access(given)

    def ask(address: str) -> NodeStatus:
        found = NodeStatus(names.get(address, address), address)
        if address in admins and _by_admin(found, admins[address], timeout_s / 2):
            return found
        _by_words(found, access, timeout_s / 4)
        return found

    with ThreadPoolExecutor(len(hosts)) as pool:
        nodes = list(pool.map(ask, hosts))
    newest = max((one.commit for one in nodes if one.commit is not None), default=None)
    for one in nodes:
        if newest is not None and one.applied is not None:
            one.behind = max(0, newest - one.applied)
    return nodes


def _by_admin(found: NodeStatus, address: str, timeout_s: float) -> bool:
    """Fill in the figures of the admin port; return False if it does not answer."""
    try:
        said: dict[str, Any] = json.loads(read_admin_page(address, "/status", timeout_s, _ADMIN_BYTES_MAX))
    except (OSError, ValueError):
        return False
    found.role = said["mode"] if said.get("serving") else str(said.get("role", _UNKNOWN))
    found.term, found.commit, found.applied = said.get("term"), said.get("commit_index"), said.get("applied_index")
    found.data_bytes, found.znodes = said.get("data_bytes"), said.get("znodes")
    found.connections = said.get("connections")
    found.log_write_p99_ms = said.get("log_write_p99_ms")
    found.version = said.get("version", "")
    found.error = said.get("problem") or ("" if said.get("serving") else "does not serve: it knows no leader")
    return True


def _by_words(found: NodeStatus, access: StoreAccess, timeout_s: float) -> None:
    """Fill in the figures of `srvr` and `mntr`."""
    said = ask_node(found.address, "srvr", timeout_s, access).fields
    if not said:
        found.error = silence_of(found.address, timeout_s)
        return
    if "Mode" not in said:
        found.error = "does not serve: it knows no leader"
        return
    found.role, found.version = said["Mode"], said.get("Zookeeper version", "").partition(",")[0]
    found.znodes, found.connections = int(said["Node count"]), int(said["Connections"])
    more = dict(
        line.partition("\t")[::2] for line in ask_node(found.address, "mntr", timeout_s, access).text.splitlines()
    )
    found.term = _number(more, "zk_raft_term")
    found.commit, found.applied = _number(more, "zk_raft_commit_index"), _number(more, "zk_raft_applied_index")
    found.data_bytes = _number(more, "zk_approximate_data_size")
    found.log_write_p99_ms = float(more["zk_p99_fsynctime"]) if "zk_p99_fsynctime" in more else None
    if more.get("zk_disk_full") == "1":
        found.error = "its disk is full"
    elif more.get("zk_snapshot_failed") == "1":
        found.error = "its last snapshot failed"


def _number(said: dict[str, str], key: str) -> int | None:
    return int(said[key]) if key in said else None


def _show(nodes: Sequence[NodeStatus]) -> None:
    rows = [
        (
            one.name,
            one.address,
            Text(one.role, style="green" if one.role in ("leader", "standalone") else ""),
            *(_shown(value) for value in (one.term, one.commit, one.applied, one.behind)),
            _UNKNOWN if one.data_bytes is None else output.size(one.data_bytes),
            _shown(one.znodes),
            _shown(one.connections),
            _UNKNOWN if one.log_write_p99_ms is None else f"{one.log_write_p99_ms:.1f} ms",
            one.version,
            Text(one.error, style="red"),
        )
        for one in nodes
    ]
    columns = ["node", "address", "role", "#term", "#commit", "#applied", "#behind", "#data", "#znodes", "#connections"]
    output.console().print(output.table("", [*columns, "#log write p99", "version", "error"], rows))


def _shown(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)
