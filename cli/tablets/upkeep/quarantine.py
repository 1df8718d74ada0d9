"""`rk tablet purge`: former replicas that leave the quarantine of their servers.

The command asks the servers themselves: it works while all masters are away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
from rich.table import Table

from cli.common import output
from cli.common.asking.servers import ask_server, ask_servers
from cli.common.connect import open_cluster
from cli.common.errors import CliError
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.common.staleness import duration_ms
from cli.shell import complete
from regions.records.model import ServerRecord
from regionserver.tablets.upkeep.messages import PurgeQuarantine, QuarantinedReplica, QuarantineList

#: Deadline of a server's answer: it removes the files first.
_TIMEOUT_S: Final = 60.0


@click.command()
@click.argument(
    "tablet",
    metavar="[TABLET]",
    shell_complete=complete.regions,
    required=False,
    default="",
)
@click.option(
    "--server",
    "server_name",
    shell_complete=complete.servers,
    default="",
    metavar="SERVER",
    help="Only the quarantine of this server.",
)
@click.option("--older-than", metavar="TIME", help="Only former replicas of at least this age: 12h, 7d.")
@click.option("--force", is_flag=True, help="Remove former replicas whose time is not over as well.")
@click.option("--dry-run", is_flag=True, help="Only show sizes and ages, and what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask before --force.")
@global_options
@click.pass_obj
def purge(
    given: Globals, tablet: str, server_name: str, older_than: str | None, force: bool, dry_run: bool, yes: bool
) -> None:
    """Remove former replicas from the quarantine: of TABLET (its whole id), or of all tablets.

    A server keeps the files of a removed or replaced replica for the time of `rk server run --quarantine-keep`, and
    removes them then by itself. This command removes those whose time is over at once. Replicas of a named tablet whose
    time is not over need --force: after a mistake they may be the last copy of some rows.
    """
    age_ms = -1 if older_than is None else duration_ms(older_than, "--older-than")
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        servers = [names.find(server_name)] if server_name else [one for one in cluster.servers() if one.tablets]
    if force and not dry_run and not yes:
        what = f"of tablet {tablet}" if tablet else "of ALL tablets"
        output.confirm(
            f"remove the former replicas {what} on {len(servers)} servers, whatever their age?",
            "nothing was removed",
            as_json=given.json,
        )
    found, silent = _ask(servers, tablet, age_ms, force=force, dry_run=dry_run)
    if given.json:
        output.print_json({"dry_run": dry_run, "servers": found, "silent": silent})
    else:
        _show(found, names, dry_run=dry_run)
    _check(found, [names.of_uuid(uuid) for uuid in silent], is_named=bool(tablet or older_than))


def _ask(
    servers: Sequence[ServerRecord], tablet: str, age_ms: int, *, force: bool, dry_run: bool
) -> tuple[list[QuarantineList], list[str]]:
    """Return the answers of the servers, and the uuids of those that do not answer."""

    def ask(server: ServerRecord) -> QuarantineList:
        request = PurgeQuarantine(server.uuid, tablet, age_ms, force, dry_run)
        return ask_server(server, request, QuarantineList, _TIMEOUT_S)

    answers = ask_servers(servers, ask)
    return [one for one in answers.values() if one is not None], [uuid for uuid, one in answers.items() if one is None]


def _show(found: Sequence[QuarantineList], names: Names, *, dry_run: bool) -> None:
    console = output.console()
    if not any(one.folders for one in found):
        console.print("no former replica fits")
        return
    console.print(_table(found, names, dry_run=dry_run))
    goes = [folder for one in found for folder in one.folders if folder.goes]
    words = "would be removed" if dry_run else "removed"
    console.print(f"{len(goes)} {words}, {output.size(sum(one.size_bytes for one in goes))}")


def _table(found: Sequence[QuarantineList], names: Names, *, dry_run: bool) -> Table:
    rows = [
        (
            names.of_uuid(one.uuid),
            folder.tablet or folder.name,
            folder.generation or "-",
            output.size(folder.size_bytes),
            _age(folder.age_ms),
            _fate(folder, one.keep_ms, dry_run=dry_run),
        )
        for one in found
        for folder in one.folders
    ]
    return output.table("", ["server", "tablet", "#generation", "#size", "#age", ""], rows)


def _fate(folder: QuarantinedReplica, keep_ms: int, *, dry_run: bool) -> str:
    if folder.goes:
        return "would be removed" if dry_run else "removed"
    return f"kept, for {_age(max(0, keep_ms - folder.age_ms))} more"


def _age(age_ms: int) -> str:
    """Return a time in the unit that fits."""
    hours = age_ms / 3_600_000
    if hours < 1:
        return output.seconds(age_ms / 1000)
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def _check(found: Sequence[QuarantineList], silent: Sequence[str], *, is_named: bool) -> None:
    """Raise CliError if something that the operator has named was not removed, or a server has not answered."""
    if silent:
        raise CliError(f"{', '.join(silent)} did not answer", "Repeat the command when the server runs.")
    kept = [folder for one in found for folder in one.folders if not folder.goes]
    if kept and is_named:
        raise CliError(
            f"refused: the time of {len(kept)} former replicas is not over",
            "--force removes them as well. `rk server run --quarantine-keep` sets the time.",
        )
