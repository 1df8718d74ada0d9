"""`rk secure`: close the znodes of a running cluster for everybody but its credential and its operators."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from cli.common import output
from cli.common.connect import open_cluster
from cli.common.errors import ExitStatus, UsageFaultError
from cli.common.options import Globals, global_options
from cli.diagnose.access_lists import check_daemons, close_all, wanted_of
from cli.diagnose.fsck_deep import progress
from coord.client.access_lists import describe

#: Passes over the tree: a later one closes what somebody changed during the earlier ones.
_PASSES_MAX: Final = 5


class ClosedZnodes(msgspec.Struct):
    """What `rk secure` has done."""

    masters: int
    servers: int
    znodes: int
    #: Znodes whose access list was changed, or would be with --dry-run.
    changed: int
    access: str
    is_dry_run: bool = False
    #: Znodes whose list could not be changed.
    failed: list[str] = []


@click.command(epilog="Exit status: 0 all access lists are right, 1 some could not be changed or a daemon hinders it.")
@click.option("--dry-run", is_flag=True, help="Count what would be changed; change nothing.")
@global_options
@click.pass_obj
def secure(given: Globals, dry_run: bool) -> int:
    """Close the znodes of a cluster, while it runs, for everybody but its credential.

    Needs the credential (--store-auth or --store-sasl) that all masters and servers have: restart them with it first.
    As long as one of them runs without it, nothing is changed. Then every znode below the root, parents first, gets
    an access list with all permissions for the credential and reading for --store-readers. What is right already is
    left alone, so the command can be repeated after an interruption, and afterwards at any time.

    New znodes of a daemon with a credential are closed from the beginning.
    """
    with open_cluster(given) as cluster:
        cluster.require()
        wanted = wanted_of(cluster)
        if not wanted:
            raise UsageFaultError(
                "there is no credential to which the znodes could be closed",
                "Give the one that all masters and servers have: --store-auth USER:PASSWORD or @FILE (RK_STORE_AUTH).",
            )
        masters, servers = check_daemons(cluster, wanted)
        show = progress()
        changed, znodes, failed = close_all(cluster, wanted, show, dry_run=dry_run)
        report = ClosedZnodes(masters, servers, znodes, changed, describe(wanted), dry_run, failed)
        for _ in range(0 if dry_run else _PASSES_MAX - 1):
            if not changed and not failed:
                break
            changed, _, failed = close_all(cluster, wanted, show, dry_run=False)
            report.changed += changed
            report.failed = failed
    if given.json:
        output.print_json(report)
    else:
        _print(report)
    return ExitStatus.REFUSED if report.failed else ExitStatus.OK


def _print(report: ClosedZnodes) -> None:
    daemons = f"{output.count(report.masters, 'master')} and {output.count(report.servers, 'server')}"
    click.echo(f"{daemons} run with the credential")
    verb = "would be changed" if report.is_dry_run else "changed"
    click.echo(f"{output.count(report.znodes, 'znode')}: {output.count(report.changed, 'access list')} {verb}")
    if not report.is_dry_run and not report.failed:
        click.echo(f"on all of them: {report.access}; everybody else: nothing")
    for path in report.failed[:10]:
        click.echo(f"NOT CHANGED  {path}: the credential may not change its access list (a superuser may)")
