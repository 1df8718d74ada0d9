"""`rk grant`, `rk revoke`, `rk acl list`, `rk whoami`: the roles of users."""

from __future__ import annotations

from typing import Final

import click

from cli.common import output
from cli.common.connect import open_cluster
from cli.common.options import Globals, global_options
from cli.common.views.help import CommandGroup
from cli.shell import complete
from regions import messages
from regions.records.acts.grants import UserRole

_ROLES: Final = click.Choice([one.value for one in UserRole])
_table = click.option(
    "--table",
    default="",
    metavar="NAME",
    help="The role is for this table.  [default: all tables, and the cluster]",
    shell_complete=complete.tables,
)
_dry_run = click.option("--dry-run", is_flag=True, help="Say what would be changed; change nothing.")


@click.command()
@click.argument("user")
@click.argument("role", type=_ROLES)
@_table
@_dry_run
@global_options
@click.pass_obj
def grant(given: Globals, user: str, role: str, table: str, dry_run: bool) -> None:
    """Give USER a ROLE: read, write or admin; each includes the ones before it.

    read shows rows and tables, write changes rows, admin changes tables, servers and grants. With --table the role
    is for one table: its admin may alter and delete the table, move its regions, and grant roles on it.
    """
    _change(given, messages.ChangeGrant(user, UserRole(role), table, dry_run=dry_run))


@click.command()
@click.argument("user")
@click.argument("role", type=_ROLES)
@_table
@click.option("--force", is_flag=True, help="Revoke the role of the cluster's last admin, too.")
@_dry_run
@global_options
@click.pass_obj
def revoke(given: Globals, user: str, role: str, table: str, force: bool, dry_run: bool) -> None:
    """Take one ROLE from USER. Other grants of the user stay.

    The master that answers applies the change at once. Other masters and servers follow within moments, and after 10 s
    none of them uses the revoked role any more.
    """
    _change(given, messages.ChangeGrant(user, UserRole(role), table, granted=False, force=force, dry_run=dry_run))


@click.group(cls=CommandGroup)
@global_options
def acl() -> None:
    """The roles of users."""


@acl.command("list")
@click.option("--table", default="", metavar="NAME", help="Grants on this table.", shell_complete=complete.tables)
@click.option("--user", default="", metavar="NAME", help="Grants of this user.")
@global_options
@click.pass_obj
def list_(given: Globals, table: str, user: str) -> None:
    """List the grants, by user."""
    with open_cluster(given) as cluster:
        found = cluster.ask_master(messages.ListGrants(table, user), messages.GrantList)
    if given.json:
        output.print_json(found)
        return
    rows = [(one.user, one.role.value, one.table or "(all)", one.by or "-") for one in found.grants]
    nothing = "no grants"
    output.console().print(output.table("", ["user", "role", "table", "granted by"], rows) if rows else nothing)
    if not found.checked:
        click.echo("This cluster is open: it checks no grants.", err=True)


@click.command()
@global_options
@click.pass_obj
def whoami(given: Globals) -> None:
    """Show the identity that the cluster knows this command by, and its grants."""
    with open_cluster(given) as cluster:
        found = cluster.ask_master(messages.WhoAmI(), messages.CallerIdentity)
    if given.json:
        output.print_json(found)
        return
    if not found.checked:
        click.echo("nobody: this cluster is open, and everybody may do everything")
        return
    click.echo(found.identity)
    for one in found.grants:
        click.echo(f"  {one.role.value} {f'on table {one.table}' if one.table else 'of the cluster'}")
    if not found.grants:
        name = found.identity.partition(":")[2]
        click.echo(f"  no grants: ask an admin for `rk grant {name} read --table NAME`")


def _change(given: Globals, request: messages.ChangeGrant) -> None:
    with open_cluster(given) as cluster:
        done = cluster.ask_master(request, messages.Accepted)
    output.report(done, done.detail, as_json=given.json)
