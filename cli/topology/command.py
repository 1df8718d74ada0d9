"""`rk topology check|show|run|credentials`: look at a topology file, and run a daemon of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from cli.common import output
from cli.common.errors import NotFoundError, UsageFaultError
from cli.common.local import environment
from cli.common.options import Globals, global_options
from cli.common.views.help import CommandGroup
from cli.topology.credentials import credentials
from cli.topology.load import USUAL_FILE, load, local_data_dir
from cli.topology.model import PlacedDaemon, Topology
from cli.topology.words import address, arguments, data_dir

_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=USUAL_FILE)


@click.group(cls=CommandGroup)
@global_options
def topology() -> None:
    """A topology file: the daemons of a cluster, and where each one runs.

    `rk up --topology FILE` starts one on this machine, `rk systemd FILE` writes units for machines, `rk drill` takes
    it too. FILE is cluster.toml unless another one is named. docs/deploy.md describes its keys.
    """


topology.add_command(credentials)


@topology.command("check")
@_FILE
@global_options
@click.pass_obj
def check(given: Globals, file: Path) -> None:
    """Check a topology file: keys, values, limits, ports, and the options of daemons."""
    found = load(file)
    payload = {"file": str(file), "name": found.name, "daemons": len(found.nodes()), "warnings": found.warnings}
    lines = [f"{file}: cluster {found.name}, {_counts(found)}", *(f"warning: {one}" for one in found.warnings)]
    output.report(payload, "\n".join(lines), as_json=given.json)


@topology.command("show")
@_FILE
@click.option("--commands", is_flag=True, help="Also the command line of each daemon, for machines.")
@global_options
@click.pass_obj
def show(given: Globals, file: Path, commands: bool) -> None:
    """Show every daemon of a topology file: machine, ports, directory, rack."""
    found = load(file)
    rows = [_row(one, found, file) for one in found.nodes()]
    lines = {one.name: arguments(one, found) for one in found.nodes()} if commands and not found.is_local else {}
    if given.json:
        daemons = [{**row, "command": lines.get(str(row["name"]), [])} for row in rows]
        facts = {"name": found.name, "root": found.root, "credentials": found.credentials, "outside": found.outside}
        output.print_json({**facts, "warnings": found.warnings, "daemons": daemons})
        return
    heads = ["daemon", "machine", "#port", "#peers", "#admin", "rack", "data"]
    cells = [
        [str(row[key]) for key in ("name", "host", "port", "peer_port", "admin_port", "rack", "data_dir")]
        for row in rows
    ]
    output.console().print(output.table("", heads, cells))
    for warning in found.warnings:
        output.console().print(f"warning: {warning}")
    for name, words in lines.items():
        click.echo(f"{name}: rk {' '.join(words)}")


@topology.command("run")
@_FILE
@click.option("--daemon", metavar="NAME", help="The daemon, such as server-2.")
@click.option("--host", metavar="HOST", help="Instead: the only daemon that the topology places on this machine.")
@global_options
@click.pass_obj
def run(given: Globals, file: Path, daemon: str | None, host: str | None) -> None:  # noqa: ARG001
    """Become a daemon of a topology of machines: containers need no other command line.

    In a StatefulSet the pod's host name chooses the daemon.
    """
    found = load(file)
    if found.is_local:
        raise UsageFaultError(f"{file} names no hosts", "`rk up --topology` runs all daemons of one machine.")
    words = arguments(_chosen(found, file, daemon, host), found)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "cli", *words], environment())


def _chosen(found: Topology, file: Path, daemon: str | None, host: str | None) -> PlacedDaemon:
    if (daemon is None) == (host is None):
        raise UsageFaultError("name either a daemon or a machine", "Give --daemon server-2, or --host HOST.")
    named = [one for one in found.nodes() if daemon in (None, one.name) and host in (None, one.host)]
    if not named:
        known = sorted(one.name for one in found.nodes()) if host is None else found.hosts()
        raise NotFoundError(f"{file} has no daemon {daemon or 'on ' + str(host)}", f"It has: {', '.join(known)}.")
    if len(named) > 1:
        raise UsageFaultError(
            f"{file} places {len(named)} daemons on {host}", f"Give --daemon: {', '.join(one.name for one in named)}."
        )
    return named[0]


def _counts(found: Topology) -> str:
    store = output.count(len(found.store), "store node") if found.store else f"the store at {found.outside}"
    masters, servers = output.count(len(found.masters), "master"), output.count(len(found.servers), "region server")
    place = "this machine" if found.is_local else output.count(len(found.hosts()), "machine")
    return f"{store}, {masters}, {servers} on {place}, credentials: {found.credentials}"


def _row(node: PlacedDaemon, found: Topology, file: Path) -> dict[str, object]:
    """Return the shown fields of a daemon. A port that `rk up` chooses is empty."""
    local = local_data_dir(found, file) / node.name if found.is_local else ""
    return {
        "name": node.name,
        "host": node.host or None,
        "address": address(node, node.port) if node.host else None,
        "port": node.port or None,
        "peer_port": node.peer_port or None,
        "admin_port": node.admin_port or None,
        "rack": node.rack,
        "data_dir": node.data_dir or str(local) if found.is_local else data_dir(node, found),
        "options": list(node.options),
    }
