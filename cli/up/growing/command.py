"""`rk up add server|master|store`: one daemon more in the running cluster of `rk up`."""

from __future__ import annotations

import time
from typing import Final

import click

from cli.common import output
from cli.common.asking.store import not_running
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, UnreachableError
from cli.common.local import MASTER, SERVER, STORE, Daemon, LocalCluster, require_cluster
from cli.common.options import Globals, global_options
from cli.store.members import MemberRequests, await_member, member_line
from cli.up.control import ControlRequest, ask

#: Time for a new master or server to register.
REGISTER_S: Final = 60.0
#: Interval of the looks at the registrations, and of the lines about the wait.
LOOK_S: Final = 0.2
NOTICE_S: Final = 5.0
#: Most daemons that one command adds.
COUNT_MAX: Final = 18


@click.command()
@click.argument("kind", type=click.Choice([SERVER, MASTER, STORE]))
@click.option("--count", type=click.IntRange(1, COUNT_MAX), default=1, show_default=True, help="How many, one by one.")
@click.option("--rack", default="", metavar="NAME", help="Rack of a region server.  [default: the one with the fewest]")
@global_options
@click.pass_obj
def add(given: Globals, kind: str, count: int, rack: str) -> None:
    """Add a region server, a master or a store node to the running cluster of `rk up`, and wait until it takes part.

    The daemon is added to cluster.json, and to the topology file if the cluster was started by one, so the next `rk up`
    starts it, too. A store node joins as a learner, catches up, and then votes; a repeated command continues an
    interrupted one. Regions and tablets move to a new server as the balancer decides.
    """
    for _ in range(count):
        local = require_cluster(given.data_path)
        if not local.supervisor_pid:
            raise not_running(given)
        if kind == STORE:
            _add_node(given, local)
        else:
            _add_registered(given, kind, rack)
    if kind == STORE:
        _warn_if_even(given)


def _start(given: Globals, kind: str, rack: str) -> Daemon:
    """Have `rk up` start a further daemon; return it."""
    found = ask(given.data_path, ControlRequest("add", name=kind, rack=rack))[0]
    _say(given, f"{found.name} started at {found.address}, pid {found.pid}", event="started", daemon=found.name,
         address=found.address, admin=found.admin, log=found.log)  # fmt: skip
    return require_cluster(given.data_path).daemon(found.name)


def _add_registered(given: Globals, kind: str, rack: str) -> None:
    """Add a master or a region server."""
    began = time.monotonic()
    daemon = _start(given, kind, rack)
    noticed = began
    with open_cluster(given) as cluster:
        while not _is_registered(cluster, daemon):
            now = time.monotonic()
            if now - began > REGISTER_S:
                raise UnreachableError(
                    f"{daemon.name} has not registered within {REGISTER_S:.0f} s; `rk up` keeps it running",
                    f"Its log says why: {daemon.log}",
                )
            if now - noticed > NOTICE_S:
                noticed = now
                _say(given, f"{daemon.name} has not registered for {now - began:.0f} s", event="waiting",
                     daemon=daemon.name)  # fmt: skip
            time.sleep(LOOK_S)
    _done(given, daemon, "takes part", began)


def _is_registered(cluster: Cluster, daemon: Daemon) -> bool:
    found = cluster.servers() if daemon.role == SERVER else cluster.masters()
    return any(f"{one.host}:{one.port}" == daemon.address for one in found)


def _add_node(given: Globals, local: LocalCluster) -> None:
    """Add a store node, or continue with one that is not a member yet."""
    began = time.monotonic()
    if local.outside:
        raise CliError(f"the store at {local.store} is not of this cluster", "Add the node by that store's own tools.")
    with MemberRequests(given) as store:
        members = {node["id"]: node for node in store.ask({"do": "list"})["nodes"]}
    left = (one for one in local.coord if one.joined and members.get(int(one.number), {}).get("role") != "participant")
    node = next(left, None)
    if node is None:
        node = _start(given, STORE, "")
    else:
        ask(given.data_path, ControlRequest("start", name=node.name))
        _say(given, f"{node.name} is not a voting member yet: continuing", event="continued", daemon=node.name)
    number = int(node.number)
    with MemberRequests(given) as store:
        if number not in members:
            line = member_line(node.peer, node.address, observer=False)
            store.ask({"do": "add", "id": number, "line": line})
            _say(given, f"{node.name} is a learner; it votes once it has caught up", event="learner", daemon=node.name)
        await_member(given, store, number, "participant")
    _done(given, node, "votes", began)


def _warn_if_even(given: Globals) -> None:
    count = len(require_cluster(given.data_path).coord)
    if count % 2 == 0:
        text = f"{count} store nodes tolerate no more failures than {count - 1}: add another one"
        _say(given, text, event="warning", nodes=count)


def _done(given: Globals, daemon: Daemon, what: str, began: float) -> None:
    took = time.monotonic() - began
    _say(given, f"{daemon.name} {what} ({output.seconds(took)})", event="added", daemon=daemon.name,
         address=daemon.address, seconds=round(took, 3))  # fmt: skip


def _say(given: Globals, text: str, **facts: object) -> None:
    if given.json:
        output.print_json_line({**facts, "text": text})
    else:
        output.console().print(text)
