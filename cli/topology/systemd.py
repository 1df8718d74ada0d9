"""`rk systemd`: print or write the units of one machine of a topology."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Final

import click

from cli.common import output
from cli.common.errors import CliError, UsageFaultError
from cli.common.options import Globals, global_options
from cli.topology.load import USUAL_FILE, load
from cli.topology.model import Topology
from cli.topology.units import TARGET, units

#: User names as useradd(8) accepts them.
_USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=USUAL_FILE)
@click.option("--host", metavar="HOST", help="The machine, as the topology names it.  [default: the only one]")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write the files here.")
@click.option("--user", default="rk", show_default=True, metavar="NAME", help="User and group of the daemons.")
@click.option("--program", metavar="PATH", help="The `rk` of that machine.  [default: this one]")
@global_options
@click.pass_obj
def systemd(given: Globals, file: Path, host: str | None, out: Path | None, user: str, program: str | None) -> None:
    """Print units for the daemons that a topology FILE places on one machine: templates, drop-ins and a target.

    Copy the files to /etc/systemd/system of the machine, or write them there with --out. Then `systemctl daemon-reload`
    and `systemctl enable --now regionkeeper.target`. Another run after a change of the topology replaces them.
    """
    topology = load(file)
    if not _USER.fullmatch(user):
        raise UsageFaultError(f"--user {user!r} is not a user name", "Give a name such as rk.")
    files = units(topology, _host(topology, file, host), _program(program), user)
    if out is None:
        text = "\n".join(f"# --- {name}\n{content}" for name, content in files.items())
        output.report({"files": files}, text, as_json=given.json)
        return
    written = [_write(out / name, content) for name, content in files.items()]
    then = f"then: systemctl daemon-reload && systemctl enable --now {TARGET}"
    text = "\n".join([*(f"wrote {one}" for one in written), then])
    output.report({"written": written}, text, as_json=given.json)


def _host(topology: Topology, file: Path, host: str | None) -> str:
    hosts = topology.hosts()
    if not hosts:
        raise UsageFaultError(f"{file} names no hosts", "Give each node its host; without any, use `rk up`.")
    if host is None and len(hosts) == 1:
        return hosts[0]
    if host not in hosts:
        what = "names several hosts" if host is None else f"has no daemon on {host}"
        raise UsageFaultError(f"{file} {what}", f"Give --host with one of: {', '.join(hosts)}.")
    return host


def _program(given: str | None) -> str:
    """Return the absolute path of `rk`, which systemd demands."""
    if given is not None:
        if not given.startswith("/"):
            raise UsageFaultError(f"--program {given!r} is not an absolute path", "Begin it with a slash.")
        return given
    found = shutil.which(sys.argv[0]) or shutil.which("rk") or "/usr/local/bin/rk"
    return str(Path(found).absolute())


def _write(path: Path, content: str) -> str:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        path.chmod(0o644)
    except OSError as error:
        hint = "Give --out with a directory that you may write."
        raise CliError(f"cannot write {path}: {error.strerror}", hint) from error
    return str(path)
