"""`rk table`: create, list, describe, enable, disable, alter, rename, delete."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click
from rich.console import Group

from cli.common import output
from cli.common.connect import Cluster, new_request_id, of_cluster, open_cluster
from cli.common.errors import UsageFaultError
from cli.common.local import knows_masters_alone
from cli.common.lookup import table_of
from cli.common.names import Names
from cli.common.options import Globals, global_options, wait_option
from cli.common.staleness import print_age, print_json, stale_options
from cli.common.views.help import CommandGroup
from cli.common.views.lists import Key, Listing, listed
from cli.replicas import alter_replicas, check_alone
from cli.shell import complete
from cli.splits import size_limits, usage_faults, where_to_cut
from cli.tablets.display import UNKNOWN, tablets_table
from cli.tablets.reading import tablets_of
from regions import messages
from regions.assign.resharding.automatic import limits_words
from regions.messages.staleness import Bound
from regions.records.kinds import KV, check_kind, one_copy
from regions.records.members import Storage
from regions.records.model import RegionRecord, TableIntent, TableRecord, TableState, TabletState
from regions.records.partitioning import describe_range
from regions.records.rows.codec import TypedTable
from regions.records.schema import (
    AddColumn,
    DropColumn,
    RenameColumn,
    Schema,
    SchemaStep,
    describe_column,
    parse_column,
)
from regions.records.schema import create as new_schema
from regions.records.znodes import check_table_name

#: Added to the time that a request may wait in the master: for the network, and for a change of masters.
ASK_S: Final = 15.0
#: Number of regions per request.
_PAGE: Final = 10_000


@click.group(cls=CommandGroup)
@global_options
def table() -> None:
    """Create, list, describe, enable, disable, alter and delete tables."""


_wait = wait_option(60.0)
_no_wait = click.option("--no-wait", is_flag=True, help="Return once the master has recorded the request: --wait 0.")
_request_id = click.option(
    "--request-id", help="ID of this request. The master carries out a repeated ID only once.  [default: a new one]"
)


_STORAGE_HELP: Final = "Where the rows lie.  [default: tablet for several replicas of kind kv, else shared]"
_KIND_HELP: Final = "Kind of service that opens its regions, such as kv/1.  [default: the only kind that servers offer]"


@table.command()
@click.argument("name")
@click.option("--column", "columns", multiple=True, metavar="SPEC", help="NAME:TYPE[:key][:required][:default=VALUE].")
@click.option("--hash-buckets", type=click.IntRange(0), default=0, help="Spread keys by hash over this many buckets.")
@click.option("--split", "split", multiple=True, metavar="KEY", help="Cut at this key, in every bucket; repeatable.")
@click.option("--splits", type=click.Path(dir_okay=False, path_type=Path), help="File with one split key per line.")
@click.option("--regions", type=click.IntRange(1), help="Cut the keys of --from into this many regions.")
@click.option("--from", "source", type=click.Path(dir_okay=False, path_type=Path), help="CSV (.gz) of keys and sizes.")
@click.option("--key-column", help="Column of the keys.  [default: the first]")
@click.option("--size-column", help="Column of the sizes.  [default: size_bytes, else every key counts 1]")
@click.option("--schema", default="", help="A schema of your own, as text, instead of columns.")
@click.option(
    "--replicas", "--replication", type=click.IntRange(1), default=1, help="Copies of each row: 1, 3, 5 or 7."
)
@click.option("--storage", type=click.Choice([one.value for one in Storage]), help=_STORAGE_HELP)
@click.option("--racks-min", type=click.IntRange(0), default=0, help="Racks in which a tablet's replicas must lie.")
@click.option("--allow-under-replicated", is_flag=True, help="Begin with a majority of the replicas.")
@click.option("--group", default="", help="Servers of this group only.")
@click.option("--kind", default="", metavar="NAME/VERSION", help=_KIND_HELP)
@size_limits
@click.option("--system", is_flag=True, help="Its regions are assigned before those of other tables.")
@_wait
@_no_wait
@_request_id
@global_options
@click.pass_obj
def create(
    given: Globals,
    name: str,
    columns: tuple[str, ...],
    hash_buckets: int,
    split: tuple[str, ...],
    splits: Path | None,
    regions: int | None,
    source: Path | None,
    key_column: str | None,
    size_column: str | None,
    schema: str,
    replicas: int,
    storage: str | None,
    racks_min: int,
    allow_under_replicated: bool,
    group: str,
    kind: str,
    split_above: int | None,
    merge_below: int | None,
    system: bool,
    wait_s: float,
    no_wait: bool,
    request_id: str | None,
) -> None:
    """Create the table NAME and wait until its regions are open.

    The table has one region, unless it is split at the keys of --split or --splits, or into --regions of nearly equal
    size at keys of --from. --hash-buckets assigns every key to a bucket by its hash and splits each bucket.

    With --replicas 3 each region is a tablet: three servers keep a copy on their own disks, and a dead server loses
    nothing. A single replica is in the directory that all servers share.

    A table with columns has rows of typed columns. A split is then a value of the key column, or COLUMN=VALUE of the
    first key columns, such as --split "region=eu".

    \b
    Types: bool int8 int16 int32 int64 float double string binary timestamp
    rk table create sales --column id:int64:key --column v:string --hash-buckets 4
    """
    with usage_faults():
        check_table_name(name)
        specs = [parse_column(text) for text in columns]
        typed = TypedTable(name, new_schema(specs), 0) if specs else None
    cuts, cut = where_to_cut(list(split), splits, regions, source, key_column, size_column, typed)
    if cut and hash_buckets:
        raise UsageFaultError("--hash-buckets and --from exclude each other", "Cut the buckets by --split.")
    message = messages.CreateTable(
        name=name,
        splits=cuts,
        regions=cut,
        replication=replicas,
        storage=storage or "",
        racks_min=racks_min,
        allow_under_replicated=allow_under_replicated,
        schema=schema,
        group=group,
        kind=kind,
        system=system,
        wait_ms=0 if no_wait else int(wait_s * 1000),
        columns=specs,
        hash_buckets=hash_buckets,
        split_above=split_above or 0,
        merge_below=merge_below or 0,
        request_id=request_id or new_request_id(),
    )
    made = ask(given, message, message.wait_ms)
    if given.json:
        output.print_json(made)
        return
    click.echo(
        f"table {made.table.name} ({made.table.table_id}): {output.count(made.regions, 'region')},"
        f" {made.open} of {made.replicas} open; {storage_words(made.table)}"
    )


@table.command()
@click.argument("name", shell_complete=complete.tables)
@_wait
@_no_wait
@_request_id
@global_options
@click.pass_obj
def enable(given: Globals, name: str, wait_s: float, no_wait: bool, request_id: str | None) -> None:
    """Open the regions of the table NAME again, and wait until they are open."""
    wait_ms = 0 if no_wait else int(wait_s * 1000)
    request = messages.SetTableIntent(name, TableIntent.ENABLED, wait_ms, request_id or new_request_id())
    _change(given, request, wait_ms, "table {0.table.name} is enabled: {0.open} of {0.replicas} open")


@table.command()
@click.argument("name", shell_complete=complete.tables)
@_wait
@_no_wait
@_request_id
@global_options
@click.pass_obj
def disable(given: Globals, name: str, wait_s: float, no_wait: bool, request_id: str | None) -> None:
    """Close all regions of the table NAME and keep them closed until `rk table enable`, even over restarts."""
    wait_ms = 0 if no_wait else int(wait_s * 1000)
    request = messages.SetTableIntent(name, TableIntent.DISABLED, wait_ms, request_id or new_request_id())
    _change(given, request, wait_ms, "table {0.table.name} is disabled: {0.open} of {0.replicas} still open")


@table.command()
@click.argument("name", shell_complete=complete.tables)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_wait
@_no_wait
@_request_id
@global_options
@click.pass_obj
def delete(given: Globals, name: str, yes: bool, wait_s: float, no_wait: bool, request_id: str | None) -> None:
    """Delete the table NAME: its name is free at once, its regions are closed, its rows are kept for a while.

    Until the rows are removed (an hour later, unless the masters' --purge-after says otherwise), `rk table undelete`
    brings the table back. `rk table list --deleted` shows how much time is left.
    """
    where = of_cluster(given)
    if not yes:
        # A repeated request gets the answer of the first one, although the table does not exist any more. Without a
        # store the answer is not known.
        if not request_id and not knows_masters_alone(given):
            with open_cluster(given) as cluster:
                table_of({one.table_id: one for one in cluster.tables()}, name)
        output.confirm(f"delete table {name}{where}?", "nothing was deleted", as_json=given.json)
    wait_ms = 0 if no_wait else int(wait_s * 1000)
    request = messages.DeleteTable(name, wait_ms, request_id or new_request_id())
    words = "table {0.table.name} ({0.table.table_id})" + where + " is deleted, regions still open: {0.open}"
    _change(given, request, wait_ms, words)


@table.command()
@click.argument("name", metavar="NAME|ID")
@click.option("--as", "new_name", default="", metavar="NEWNAME", help="Its new name, if another table has its old one.")
@_wait
@_no_wait
@_request_id
@global_options
@click.pass_obj
def undelete(given: Globals, name: str, new_name: str, wait_s: float, no_wait: bool, request_id: str | None) -> None:
    """Restore a deleted table with its rows, as long as the rows have not been removed.

    If several deleted tables have this name, the last deleted one is restored; name another one by its id.
    """
    wait_ms = 0 if no_wait else int(wait_s * 1000)
    request = messages.UndeleteTable(name, new_name, wait_ms, request_id or new_request_id())
    _change(
        given, request, wait_ms, "table {0.table.name} ({0.table.table_id}) is restored: {0.open} of {0.replicas} open"
    )


@table.command()
@click.argument("name", shell_complete=complete.tables)
@click.option("--add-column", "added", multiple=True, metavar="SPEC", help="NAME:TYPE[:required][:default=VALUE].")
@click.option("--drop-column", "dropped", multiple=True, metavar="COLUMN", help="Drop a column that is no key.")
@click.option("--rename-column", "renamed", multiple=True, metavar="OLD:NEW", help="Give a column another name.")
@click.option("--schema", help="The new text of a table that was created without columns.")
@click.option("--kind", default="", metavar="NAME/VERSION", help="The kind of a table that an earlier version made.")
@click.option("--replicas", type=click.IntRange(1), help="Copies that each tablet is to have: 1, 3, 5 or 7.")
@size_limits
@click.option("--dry-run", is_flag=True, help="With --replicas: only show what would be changed.")
@_wait
@_no_wait
@_request_id
@global_options
@click.pass_obj
def alter(
    given: Globals,
    name: str,
    added: tuple[str, ...],
    dropped: tuple[str, ...],
    renamed: tuple[str, ...],
    schema: str | None,
    kind: str,
    replicas: int | None,
    split_above: int | None,
    merge_below: int | None,
    dry_run: bool,
    wait_s: float,
    no_wait: bool,
    request_id: str | None,
) -> None:
    """Change the columns of the table NAME, or its number of replicas, and wait until all regions follow.

    Columns are dropped first, then renamed, then added. The schema's version goes up by one; until every open
    region has that version, the table is ALTERING. An ALTERING table can be used and altered.

    With another number of replicas the masters add members to each tablet of the table, or remove some, one at a time;
    the table is served meanwhile. The command may be interrupted: the number is kept, and the masters continue.
    """
    if replicas is not None:
        check_alone(added, dropped, renamed, schema, kind)
        alter_replicas(given, name, replicas, wait_s=0 if no_wait else wait_s, dry_run=dry_run, request_id=request_id)
        return
    if dry_run:
        raise UsageFaultError("--dry-run needs --replicas")
    with usage_faults():
        steps: list[SchemaStep] = [DropColumn(one) for one in dropped]
        steps += [_renaming(text) for text in renamed]
        steps += [AddColumn(parse_column(text)) for text in added]
        if kind:
            check_kind(kind)
    if not steps and schema is None and not kind and split_above is None and merge_below is None:
        raise UsageFaultError(
            "nothing to alter",
            "Give --add-column, --drop-column, --rename-column, --schema, --kind, --replicas, --split-above or"
            " --merge-below; `rk table rename` renames.",
        )
    wait_ms = 0 if no_wait else int(wait_s * 1000)
    request = messages.AlterTable(
        name, schema=schema, steps=steps, wait_ms=wait_ms, request_id=request_id or new_request_id(), kind=kind,
        split_above=split_above, merge_below=merge_below,
    )  # fmt: skip
    _change(
        given, request, wait_ms, "table {0.table.name} has schema version {0.table.schema_version}, {0.table.state}"
    )


def _renaming(text: str) -> RenameColumn:
    old, colon, new = text.partition(":")
    if not (colon and old and new):
        raise ValueError(f"--rename-column {text!r} is not OLD:NEW")
    return RenameColumn(old, new)


@table.command()
@click.argument("name", shell_complete=complete.tables)
@click.argument("new_name")
@_request_id
@global_options
@click.pass_obj
def rename(given: Globals, name: str, new_name: str, request_id: str | None) -> None:
    """Rename the table NAME to NEW_NAME; no region moves or closes."""
    with usage_faults():
        check_table_name(new_name)
    request = messages.AlterTable(name, name=new_name, request_id=request_id or new_request_id())
    _change(given, request, 0, "table {0.table.table_id} is {0.table.name} now")


def ask(given: Globals, request: messages.MasterRequest, wait_ms: int) -> messages.TableSummary:
    """Send a request that changes one table; return the resulting table."""
    with open_cluster(given) as cluster:
        answer = cluster.ask_master(request, messages.Tables, timeout_s=wait_ms / 1000 + ASK_S)
    return answer.tables[0]


def _change(given: Globals, request: messages.MasterRequest, wait_ms: int, words: str) -> None:
    made = ask(given, request, wait_ms)
    if given.json:
        output.print_json(made)
    else:
        click.echo(words.format(made))


#: Sort keys of tables, by their names in --sort.
_SORTS: Final[dict[str, Key[messages.TableSummary]]] = {
    "table": lambda one: one.table.name,
    "state": lambda one: one.table.state,
    "regions": lambda one: one.regions,
    "rows": lambda one: one.rows,
    "size": lambda one: one.size_bytes,
}


@table.command("list")
@click.option("--deleted", is_flag=True, help="Deleted tables whose rows are still there, and for how long.")
@listed(list(_SORTS), "table", states="running, altering, enabled, disabled")
@stale_options
@global_options
@click.pass_obj
def list_(given: Globals, deleted: bool, listing: Listing, bound: Bound) -> None:
    """List all tables with the number of their regions, and how many are open, in transition, and parked."""
    if deleted:
        list_deleted(given)
        return
    with open_cluster(given, bound=bound) as cluster:
        found = cluster.ask_master(messages.ListTables(), messages.Tables)
    picked = listing.pick(found.tables, _SORTS, lambda one: [one.table.state, one.table.intent])
    if given.json:
        print_json(picked.rows, cluster.as_of, bound, "tables")
        return
    console = output.console()
    console.print(summary(picked.rows) if found.tables else "no tables yet: rk table create NAME")
    picked.print_rest(console)
    print_age(cluster.as_of, bound)


def summary(found: Iterable[messages.TableSummary]) -> Group:
    """Return the printed list of tables."""
    rows = [
        (
            one.table.name,
            one.table.state,
            one.table.intent,
            one.regions,
            one.running if one.running >= 0 else "",
            UNKNOWN if one.open is None else one.open,
            one.rit,
            one.parked,
            UNKNOWN if one.rows is None else one.rows,
            output.estimated(one.size_bytes, is_measured=one.measured),
            one.table.kind or KV,
            one.table.storage.value,
            one.table.replication,
            one.table.table_id,
        )
        for one in found
    ]
    counts = ["#regions", "#running", "#open", "#in transition", "#parked", "#rows", "#size"]
    columns = ["table", "state", "intent", *counts, "kind", "storage", "#replicas", "id"]
    return Group(output.table("", columns, rows))


@table.command()
@click.argument("name", shell_complete=complete.tables)
@click.option("--limit", type=click.IntRange(0), default=0, help="Show only that many regions.")
@click.option("--start", "start_key", default="", help="Begin with the region that holds this key, placed as shown.")
@stale_options
@global_options
@click.pass_obj
def show(given: Globals, name: str, limit: int, start_key: str, bound: Bound) -> None:
    """Show the table NAME (or its id): its schema, how its keys are spread, and each region with its server.

    For an ALTERING table, also show how many replicas have the latest schema.
    """
    with open_cluster(given, bound=bound) as cluster:
        found = describe_table(cluster, name, start_key, limit)
        everywhere = cluster.ask_master(messages.ListTables(), messages.Tables).tables
        counts = [one for one in everywhere if one.table.table_id == found.table.table_id]
        names = Names(cluster.servers(), cluster.local)
        has_tablets = found.table.is_tablet and bound.is_none
        tablets = tablets_of(cluster, names, found.table.table_id) if has_tablets else []
    if given.json:
        report: dict[str, object] = {
            "table": found.table,
            "summary": counts[0] if counts else None,
            "regions": found.regions,
        }
        report |= {"tablets": tablets} if has_tablets else {}
        output.print_json(report if bound.is_none else {"as_of": cluster.as_of, **report})
        return
    for line in table_lines(found.table, counts[0] if counts else None):
        output.console().print(line, markup=False)
    output.console().print(tablets_table(tablets, names) if has_tablets else regions_table(found, names))
    print_age(cluster.as_of, bound)


#: The former name of `show`.
_describe = copy.copy(show)
_describe.hidden = True
table.add_command(_describe, "describe")


def storage_words(record: TableRecord) -> str:
    """Return where a table's rows lie, for people."""
    if record.is_tablet:
        return f"tablets, {output.count(record.replication, 'replica')} each"
    return "rows in the shared directory"


def table_lines(record: TableRecord, counts: messages.TableSummary | None) -> list[str]:
    """Return the lines that describe a table's record."""
    copies = storage_words(record) if record.is_tablet else f"replication {record.replication}"
    lines = [
        f"{record.name}  id {record.table_id}, {record.state}, {record.intent}, "
        f"{'system table, ' if record.system else ''}"
        f"{output.count(record.regions, 'region')}, {copies}, kind {record.kind or KV}, "
        f"schema version {record.schema_version}"
    ]
    if counts is not None and counts.running >= 0:
        part = UNKNOWN if counts.open is None else counts.open
        lines.append(
            f"tablets: {counts.running} of {counts.regions} are running, {part} of {counts.replicas} replicas take part"
        )
    if counts is not None and (counts.measured or counts.size_bytes):
        rows = "unknown" if counts.rows is None else counts.rows
        size = output.estimated(counts.size_bytes, is_measured=counts.measured)
        lines.append(f"rows: {rows}, {size}{'' if counts.measured else ', estimated until servers have reported'}")
    note = one_copy(record.kind, record.replication, record.storage)
    lines += [f"copies: {note}"] if note else []
    limits = limits_words(record)
    lines += [f"sizes: {limits}"] if limits else []
    if record.state is TableState.ALTERING:
        before = f"version {record.fully_applied_version}" if record.fully_applied_schema is not None else "none"
        follow = ""
        if counts is not None and counts.altered >= 0:
            follow = f"{counts.altered} of {counts.replicas} replicas follow version {record.schema_version}; "
        lines.append(f"altering: {follow}all follow {before}")
    if record.hash_buckets:
        lines.append(
            f"keys: {record.hash_buckets} hash buckets, {record.regions // record.hash_buckets} ranges in each"
        )
    if isinstance(record.schema, Schema):
        lines += [f"column {one.id}: {describe_column(one)}" for one in record.schema.columns]
    elif record.schema:
        lines.append(f"schema: {record.schema}")
    return lines


def regions_table(found: messages.Regions, names: Names) -> Group:
    """Return the printed list of regions: one line per replica."""
    rows = []
    for status in found.regions:
        for replica in status.replicas:
            region = status.region
            keys = output.key_range(region.start_key, region.end_key)
            rows.append(
                (
                    region.region_id,
                    describe_range(region.start_key, region.end_key, region.hash_buckets) or keys,
                    UNKNOWN if status.rows is None else status.rows,
                    output.estimated(status.best_size, is_measured=status.measured),
                    replica.replica,
                    replica_state(replica, region, found.table),
                    names.of(replica.server),
                    _transition(replica, names),
                )
            )
    return Group(
        output.table("", ["region", "keys", "#rows", "#size", "#replica", "state", "server", "transition"], rows)
    )


def replica_state(
    replica: messages.ReplicaStatus, region: RegionRecord | None = None, table: TableRecord | None = None
) -> str:
    """Return one word for the state of a replica; `region` and `table` show whether it is closed on purpose.

    A tablet's members keep their servers while they are closed.
    """
    if replica.transition is not None:
        return "PARKED" if replica.transition.parked else replica.transition.state.value
    if table is not None and table.is_tablet and table.intent is TableIntent.DISABLED:
        return "closed"
    if region is not None and region.is_tablet and region.unassigned:
        return "unassigned"
    if replica.server is not None and replica.takes_part is not False:
        return UNKNOWN if region is not None and region.is_tablet and replica.takes_part is None else "open"
    if region is not None and region.state is TabletState.PREPARING:
        return "PREPARING"
    return "unassigned" if region is not None and region.unassigned else "not open"


def _transition(replica: messages.ReplicaStatus, names: Names) -> str:
    found = replica.transition
    if found is None:
        return ""
    way = f"{names.of(found.source) or '(none)'} to {names.of(found.destination) or '(not chosen)'}"
    error = f"; last error: {names.in_sentence(found.last_error)}" if found.last_error else ""
    return f"{way}, {found.reason}, attempt {found.attempt}{error}"


def every_region(cluster: Cluster, table_name: str | None = None) -> list[messages.Regions]:
    """Return all regions of one table, or of all tables. Raise NotFoundError for an unknown table."""
    if table_name is not None:
        wanted = [table_name]
    else:
        wanted = [one.table.name for one in cluster.ask_master(messages.ListTables(), messages.Tables).tables]
    return [describe_table(cluster, name) for name in wanted]


def describe_table(cluster: Cluster, name: str, start_key: str = "", limit: int = 0) -> messages.Regions:
    """Return a table's regions from `start_key` on. Request them in pages, since one answer must fit one frame."""
    found: list[messages.RegionStatus] = []
    while True:
        wanted = min(_PAGE, limit - len(found)) if limit else _PAGE
        page = cluster.ask_master(messages.DescribeTable(name, start_key, wanted), messages.Regions)
        found += page.regions
        if len(page.regions) < wanted or len(found) == limit or page.regions[-1].region.end_key == "":
            return messages.Regions(page.table, found)
        start_key = page.regions[-1].region.end_key


def list_deleted(given: Globals) -> None:
    """List the deleted tables that have rows on disk."""
    with open_cluster(given) as cluster:
        found = [one for one in cluster.tables() if one.state is TableState.REMOVED and not one.purged_ms]
    if given.json:
        output.print_json(found)
        return
    now_ms = int(time.time() * 1000)
    rows = [(one.name, one.table_id, one.regions, fate(one, now_ms)) for one in found]
    columns = ["table", "id", "#regions", "rows"]
    output.console().print(output.table("", columns, rows) if rows else "no deleted table has rows")


def fate(table: TableRecord, now_ms: int) -> str:
    """Return when the rows of a deleted table are removed."""
    if table.purging_ms:
        return "are being removed"
    if not table.finished_ms:
        return "kept; regions are being closed"
    if not table.purge_at_ms:
        return "kept until a master has set the time of removal"
    left_s = (table.purge_at_ms - now_ms) // 1000
    return f"kept for {output.rough(left_s)} more" if left_s > 0 else "are about to be removed"
