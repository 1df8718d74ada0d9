"""`rk backup create`, `verify`, `list`, `show`, `restore`: the rows of regions and the store (docs/backup.md)."""

from __future__ import annotations

import contextlib
import errno
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.backup import restore as restoring
from cli.backup.create import Creation, check_rate, source_of, tables_to_back_up
from cli.backup.files import read_manifest
from cli.backup.format import MANIFEST, UNFINISHED, DamagedBackupError, Manifest, TableBackup
from cli.backup.verify import unexpected_files, verify
from cli.common import output
from cli.common.connect import open_cluster
from cli.common.errors import CliError, ExitStatus, UsageFaultError
from cli.common.options import Globals, NumberRange, global_options, json_option
from cli.common.views.help import CommandGroup
from cli.common.views.lists import Listing, listed
from cli.common.waiting import takes_timeout
from cli.rows.opening import open_regions
from cli.store.backup import admin_accesses
from coord.admin_token import ADMIN_FILE
from regions.records.znodes import check_table_name

THREADS_MAX: Final = 64
THREADS_DEFAULT: Final = 4
_SHOWN_REGIONS: Final = 20
#: Default of --timeout: a page of many rows may take long on a busy server.
_TIMEOUT_S: Final = 60.0
_NEW: Final = click.Path(path_type=Path)
_FOLDER: Final = click.Path(path_type=Path, exists=True, file_okay=False)
#: Hints for errors of the system.
_HINTS: Final = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT), "What was written is removed. Name a directory on a disk with more room."
    ),
    errno.EFBIG: "What was written is removed. Raise the limit of this process on the size of files (ulimit -f).",
}

_tables = click.option("--table", "names", multiple=True, metavar="T", help="Only this table; repeatable.")
_threads = click.option(
    "--threads", type=click.IntRange(1, THREADS_MAX), default=THREADS_DEFAULT, show_default=True,
    help="Regions, or writes, at once.",
)  # fmt: skip


@click.group(cls=CommandGroup)
@global_options
def backup() -> None:
    """Save the rows of all regions and the store in a directory, check it, restore tables from it.

    Each region is saved as it was at one moment, its point. Every row that was acknowledged before `create` began is in
    the backup. docs/backup.md says what else holds.
    """


@contextlib.contextmanager
def file_errors(folder: Path) -> Iterator[None]:
    """Turn errors of files into one clear line. The line names `folder` if the system names no file."""
    try:
        yield
    except DamagedBackupError as error:
        raise CliError(str(error), "`rk backup verify DIR` names all damage.") from error
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "")
        raise CliError(f"{error.filename or folder}: {error.strerror or error}", hint) from error


@contextlib.contextmanager
def progress_bar(given: Globals, words: str) -> Iterator[Callable[[int, int], object]]:
    """Yield a function of done and total that shows a bar on a terminal."""
    console = output.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=given.json or not console.is_terminal) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# --- create ----------------------------------------------------------------------------------------------------------


@backup.command()
@click.argument("folder", metavar="DIR", type=_NEW)
@_tables
@click.option("--base", type=_FOLDER, metavar="DIR", help="An earlier backup: read only regions that have changed.")
@click.option("--rate", type=NumberRange(0), default=0.0, help="MB per second of rows, of all regions; 0: no limit.")
@click.option("--no-store", is_flag=True, help="Without the store's snapshot, for which an admin port is needed.")
@click.option("--admin", metavar="HOST:PORT", help="Admin address of a store node.  [default: from its admin.json]")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help=f"The {ADMIN_FILE} of that node's data directory, or a copy of it.",
)
@_threads
@takes_timeout(_TIMEOUT_S, of_each=True)
@global_options
@click.pass_obj
def create(
    given: Globals,
    folder: Path,
    names: tuple[str, ...],
    base: Path | None,
    rate: float,
    no_store: bool,
    admin: str | None,
    token_file: Path | None,
    threads: int,
    timeout_s: float,
) -> int:
    """Save the rows of all tables, and the store, in the new directory DIR, while clients read and write.

    DIR must not exist. An interrupted command removes its files; after a kill, repeat the same command: it begins
    again. The directory has the rows and all secrets of the store: it is readable by its owner alone.
    """
    if no_store and (admin or token_file):
        raise UsageFaultError("--no-store excludes --admin and --token-file")
    check_rate(rate, threads)
    former = None if base is None else (base, read_manifest(base))
    began = time.monotonic()
    with open_cluster(given) as cluster, file_errors(folder):
        if former is not None and former[1].cluster_id != cluster.cluster_id():
            raise UsageFaultError(f"{base} is a backup of another cluster, {former[1].cluster_id}", "Omit --base.")
        tables = tables_to_back_up(cluster, names)
        nodes = None if no_store else _nodes(given, admin, token_file)
        source = source_of(cluster, int(rate * 1e6), timeout_s)
        try:
            with progress_bar(given, "regions") as progress:
                found = Creation(cluster, folder, source, threads=threads, base=former).run(tables, nodes, progress)
        finally:
            source.close()
    for warning in found.warnings:
        click.echo(f"rk: {warning}", err=True)
    seconds = time.monotonic() - began
    payload = {**summary(folder, found.manifest), "seconds": round(seconds, 3), "warnings": found.warnings}
    output.report(payload, f"{words(folder, found.manifest)}, in {output.seconds(seconds)}", as_json=given.json)
    return ExitStatus.OK


def _nodes(given: Globals, admin: str | None, token_file: Path | None) -> list[Any]:
    """Return the store nodes to ask for a snapshot. Raise UsageFaultError with the way out."""
    try:
        return list(admin_accesses(given, admin, token_file))
    except UsageFaultError as error:
        raise UsageFaultError(error.message, f"{error.hint} --no-store saves the rows alone.") from error


def summary(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the figures of a backup."""
    regions = [one for _, one in manifest.regions()]
    return {
        "directory": str(folder),
        "backup_id": manifest.backup_id,
        "cluster_id": manifest.cluster_id,
        "base": manifest.base,
        "began_ms": manifest.began_ms,
        "ended_ms": manifest.ended_ms,
        "tables": len(manifest.tables),
        "regions": len(regions),
        "reused": sum(one.is_reused for one in regions),
        "rows": sum(one.rows for one in regions),
        "bytes": sum(one.file_bytes for one in regions) + (manifest.store.file_bytes if manifest.store else 0),
        "store_zxid": manifest.store.zxid if manifest.store else None,
    }


def words(folder: Path, manifest: Manifest) -> str:
    """Return the figures of a backup in one line."""
    found = summary(folder, manifest)
    reused = f" ({found['reused']} unchanged since {manifest.base[:8]})" if manifest.base else ""
    store = f"store at zxid {found['store_zxid']:#x}" if manifest.store else "without the store"
    return (
        f"{folder}: {output.count(found['rows'], 'row')} of {output.count(found['regions'], 'region')}{reused} in"
        f" {output.count(found['tables'], 'table')}, {store}, {output.size(found['bytes'])}"
    )


# --- verify, list, show ----------------------------------------------------------------------------------------------


@backup.command("verify")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@json_option
@click.pass_obj
def verify_command(given: Globals, folder: Path) -> int:
    """Read every byte of the backup in DIR and name each damaged file; needs no cluster.

    Exit status: 0 whole, 1 damaged or unfinished, 4 DIR has no backup.
    """
    manifest = read_manifest(folder)
    with progress_bar(given, "files") as progress:
        damage = verify(folder, manifest, progress)
    strange = unexpected_files(folder, manifest)
    if given.json:
        report = {"whole": not damage, "damage": [one._asdict() for one in damage], "not_in_manifest": strange}
        output.print_json({**summary(folder, manifest), **report})
    else:
        for one in damage:
            click.echo(f"damaged: {one.belongs_to}: {one.what}")
        for name in strange:
            click.echo(f"rk: {folder / name} is no part of the backup", err=True)
        verdict = "whole" if not damage else f"damaged: {output.count(len(damage), 'file')}"
        click.echo(f"{words(folder, manifest)}: {verdict}")
    return ExitStatus.REFUSED if damage else ExitStatus.OK


@backup.command("list")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@listed(("began", "backup"), "backup", states="whole, unfinished")
@json_option
@click.pass_obj
def list_(given: Globals, folder: Path, listing: Listing) -> None:
    """List the backups whose directories lie in DIR, the oldest first; unfinished and damaged ones as well."""
    found: list[tuple[int, str, Manifest | None, str]] = []
    with file_errors(folder):
        for path in sorted(one for one in folder.iterdir() if one.is_dir()):
            if not (path / MANIFEST).exists() and not (path / UNFINISHED).exists():
                continue
            try:
                manifest = read_manifest(path)
                found.append((manifest.began_ms, path.name, manifest, ""))
            except CliError as error:
                found.append((0, path.name, None, error.message))
    found.sort(key=lambda one: one[:2])
    keys = {"began": lambda one: one[0], "backup": lambda one: one[1]}
    picked = listing.pick(found, keys, lambda one: ["unfinished" if one[2] is None else "whole"])
    found = picked.rows
    if given.json:
        output.print_json(
            [
                {"directory": str(folder / name), "problem": why} if one is None else summary(folder / name, one)
                for _, name, one, why in found
            ]
        )
        return
    if not found:
        click.echo(f"no backups in {folder}")
        return
    rows = [
        (name, "", "", "", "", "", why)
        if one is None
        else (name, _time(one.began_ms), *(summary(folder, one)[part] for part in ("tables", "regions", "rows")),
              output.size(summary(folder, one)["bytes"]), _base_words(one))
        for _, name, one, why in found
    ]  # fmt: skip
    columns = ["backup", "began", "#tables", "#regions", "#rows", "#size", "note"]
    output.console().print(output.table("", columns, rows))
    picked.print_rest(output.console())


def _base_words(manifest: Manifest) -> str:
    reused = sum(one.is_reused for _, one in manifest.regions())
    return f"{reused} regions as in {manifest.base[:8]}" if manifest.base else ""


def _time(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(ms / 1000))


@backup.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option(
    "--limit", type=click.IntRange(0), default=_SHOWN_REGIONS, show_default=True, help="Regions per table; 0: all."
)
@json_option
@click.pass_obj
def show(given: Globals, folder: Path, limit: int) -> None:
    """Show the tables and regions of the backup in DIR, each region with its point. Reads the manifest alone."""
    manifest = read_manifest(folder)
    if given.json:
        output.print_json({**summary(folder, manifest), "manifest": manifest})
        return
    click.echo(words(folder, manifest))
    click.echo(
        f"backup {manifest.backup_id} of cluster {manifest.cluster_id}, from {_time(manifest.began_ms)}"
        f" to {_time(manifest.ended_ms)}"
    )
    for table in manifest.tables:
        _show_table(table, limit)


def _show_table(table: TableBackup, limit: int) -> None:
    record = table.record
    if not table.has_rows:
        click.echo(f"\ntable {record.name}, kind {record.kind}: its service keeps the rows")
        return
    click.echo(f"\ntable {record.name}, {record.storage.value}, replicas {record.replication}")
    shown = table.regions[:limit] if limit else table.regions
    rows = [
        (
            one.region_id,
            one.start_key,
            one.rows,
            output.size(one.size),
            f"entry {one.term}.{one.index}" if record.is_tablet else f"transaction {one.transaction}",
            _time(one.at_ms),
            "base" if one.is_reused else "",
        )
        for one in shown
    ]
    columns = ["region", "start key", "#rows", "#size", "point", "time", ""]
    output.console().print(output.table("", columns, rows))
    if len(shown) < len(table.regions):
        click.echo(f"… {len(table.regions) - len(shown)} more: --limit 0 shows all")


# --- restore ---------------------------------------------------------------------------------------------------------


def _there(names: Sequence[str]) -> str:
    """Return "table a exists" or "tables a, b exist"."""
    return f"table {names[0]} exists" if len(names) == 1 else f"tables {', '.join(names)} exist"


@backup.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@_tables
@click.option("--as", "new_name", default="", metavar="NAME", help="Another name, with one --table.")
@click.option(
    "--continue", "continues", is_flag=True, help="Put the rows into tables that exist with the same regions."
)
@_threads
@takes_timeout(_TIMEOUT_S, of_each=True)
@global_options
@click.pass_obj
def restore(
    given: Globals,
    folder: Path,
    names: tuple[str, ...],
    new_name: str,
    continues: bool,
    threads: int,
    timeout_s: float,
) -> int:
    """Make the tables of the backup in DIR again, with their splits and schema, and put their rows.

    The cluster may be new, or the one that the backup is from. The files are checked first. A table that exists is left
    alone: --as restores beside it. --continue repeats an interrupted restore: it puts every row of the backup again,
    over later changes, and removes none.

    Afterwards number and digest of each region's rows are compared with the backup. Exit status: 0 equal, 1 not.
    """
    manifest = read_manifest(folder)
    tables = restoring.chosen_tables(manifest.tables, names)
    if new_name:
        if len(tables) != 1:
            raise UsageFaultError("--as needs exactly one table", "Name it by --table.")
        try:
            check_table_name(new_name)
        except ValueError as error:
            raise UsageFaultError(str(error)) from error
    results = []
    with file_errors(folder):
        _check_files(given, folder, manifest, tables)
        with open_cluster(given) as cluster:
            named = [new_name or one.record.name for one in tables]
            there = [name for name in named if restoring.existing(cluster, name) is not None]
            if there and not continues:
                raise CliError(
                    f"{_there(there)} already; nothing was restored",
                    "Restore beside it (--table T --as NAME) or delete it. --continue repeats an interrupted restore.",
                )
            for table, name in zip(tables, named, strict=True):
                results.append(_restore_table(given, folder, table, name, continues, threads, timeout_s))
    differ = any(one["differences"] for one in results)
    if given.json:
        output.print_json({"directory": str(folder), "equal": not differ, "tables": results})
    elif not results:
        click.echo(f"{folder} has no table with rows")
    return ExitStatus.REFUSED if differ else ExitStatus.OK


def _check_files(given: Globals, folder: Path, manifest: Manifest, tables: list[TableBackup]) -> None:
    """Check the files of the tables before anything is made. Raise CliError that names the damage."""
    part = Manifest(manifest.backup_id, manifest.cluster_id, manifest.began_ms, manifest.ended_ms, tables)
    with progress_bar(given, "check of files") as progress:
        damage = verify(folder, part, progress)
    if damage:
        raise CliError(
            f"nothing was restored: {damage[0].belongs_to}: {damage[0].what}",
            "--table restores other tables; `rk backup verify` names all damage.",
        )


def _restore_table(
    given: Globals, folder: Path, table: TableBackup, name: str, continues: bool, threads: int, timeout_s: float
) -> dict[str, Any]:
    """Restore one table; print and return the result."""
    began = time.monotonic()
    total = sum(one.rows for one in table.regions)
    with open_cluster(given) as cluster:
        made = restoring.make_table(cluster, table, name, continues=continues)
        with open_regions(given, timeout_s) as client, progress_bar(given, f"rows into {name}") as progress:
            rows = restoring.load_rows(client, folder, table, name, threads, lambda done: progress(done, total))
        source = source_of(cluster, 0, timeout_s)
        try:
            differences = restoring.compare(cluster, source, table, made, threads)
        finally:
            source.close()
    seconds = time.monotonic() - began
    if not given.json:
        for one in differences:
            click.echo(
                f"{name}: region {one.region_id} has {one.found.rows} rows, the backup has {one.expected.rows}, or"
                " other values"
            )
        verdict = "equal to the backup" if not differences else "NOT equal to the backup"
        regions = output.count(len(table.regions), "region")
        click.echo(f"{name}: {output.count(rows, 'row')} in {regions}, {verdict}, in {output.seconds(seconds)}")
        sys.stdout.flush()
    return {
        "table": name,
        "table_id": made.table_id,
        "rows": rows,
        "regions": len(table.regions),
        "seconds": round(seconds, 3),
        "differences": [
            {
                "region": one.region_id,
                "expected_rows": one.expected.rows,
                "expected_digest": one.expected.digest.hex(),
                "rows": one.found.rows,
                "digest": one.found.digest.hex(),
            }
            for one in differences
        ],
    }
