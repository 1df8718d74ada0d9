"""`rk server new-identity`: a stopped server gives up its replicas and gets a new uuid at its next start."""

from __future__ import annotations

from typing import Final

import click

from cli.common import output
from cli.common.errors import UsageFaultError
from cli.common.options import Globals, global_options
from coord.errors import ConfigError, ForeignDirectory
from regionserver.tablets.offline.identity import FormerIdentity, IdentityDirectory

#: Tablets that the warning names.
_NAMED_MAX: Final = 5


@click.command("new-identity")
@click.option("--dry-run", is_flag=True, help="Only show what would be given up.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@global_options
@click.pass_obj
def new_identity(given: Globals, dry_run: bool, yes: bool) -> None:
    """Give the stopped server of --data-dir a new identity, for a directory on which it refuses to start.

    All its replicas of tablets are given up. Their files are moved to a folder `former-…` in the directory; nothing is
    removed. At its next start the server is a new one, with a new uuid, and the other members of its tablets are copied
    to it or to other servers. A tablet of which other servers have no majority is lost: restore the files instead.
    """
    path = given.data_path
    try:
        directory = IdentityDirectory(path)
    except ForeignDirectory as error:
        raise UsageFaultError(str(error), "Stop the server first.") from error
    except ConfigError as error:
        raise UsageFaultError(str(error), "Give the server's own directory as --data-dir.") from error
    with directory:
        former = directory.former()
        if not dry_run:
            if not yes:
                question = f"give up {_what(former)} in {path}?"
                output.confirm(question, "nothing was changed", as_json=given.json)
            try:
                directory.set_aside(former)
            except OSError as error:
                raise UsageFaultError(
                    f"{error.filename or path}: {error.strerror}", "Repeat the command when the disk can be written."
                ) from error
    if given.json:
        output.print_json(
            {
                "dry_run": dry_run, "uuid": former.uuid, "cluster": former.cluster, "tablets": former.tablets,
                "moved": former.parts, "folder": str(former.folder),
            }
        )  # fmt: skip
        return
    words = "would be given up: its files would move" if dry_run else "is given up: its files are"
    click.echo(f"{_what(former)} {words} {'to' if dry_run else 'in'} {former.folder}")
    if not dry_run:
        click.echo("the next start of the server makes a new identity; remove the folder when the tablets are HEALTHY")


def _what(former: FormerIdentity) -> str:
    """Return the identity and its replicas in words."""
    named = ", ".join(former.tablets[:_NAMED_MAX]) + (", …" if len(former.tablets) > _NAMED_MAX else "")
    replicas = f" with {len(former.tablets)} replicas ({named})" if former.tablets else " without replicas"
    return f"the identity {former.uuid or '(unknown)'}{replicas}"
