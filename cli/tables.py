"""`rk table`: create, list, describe, enable, disable, alter, rename, delete."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
from rich.console import Group

from cli import output
from cli.connect import Cluster, open_cluster
from cli.errors import NotFoundError, UsageFaultError
from cli.names import Names
from cli.options import Globals, global_options
from cli.splits import read_keys, split_evenly
from regions import messages
from regions.layout import check_table_name
from regions.model import RegionRecord, RegionSpec, TableIntent, split_ranges

#: On top of the time a request may wait in the master: for its way there and back.
_GRACE_S: Final = 5.0
#: Regions asked for at a time.
_PAGE: Final = 10_000


@click.group()
@global_options
def table() -> None:
    """Create, list, describe, enable, disable, alter and delete tables."""


@table.command()
@click.argument("name")
@click.option("--splits", type=click.Path(dir_okay=False, path_type=Path), help="File with one split key per line.")
@click.option("--regions", type=click.IntRange(1), help="Cut the keys of --from into this many regions.")
@click.option("--from", "source", type=click.Path(dir_okay=False, path_type=Path), help="CSV (.gz) of keys and sizes.")
@click.option("--key-column", help="Column of the keys.  [default: the first]")
@click.option("--size-column", help="Column of the sizes.  [default: size_bytes, else every key counts 1]")
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait.")
@global_options
@click.pass_obj
def create(
    given: Globals,
    name: str,
    splits: Path | None,
    regions: int | None,
    source: Path | None,
    key_column: str | None,
    size_column: str | None,
    wait_s: float,
) -> None:
    """Create the table NAME and wait until its regions are open.

    One region, unless cut at the keys in --splits, or into --regions of nearly equal size at keys of --from.
    """
    try:
        check_table_name(name)
    except ValueError as error:
        raise UsageFaultError(str(error)) from error
    specs = region_specs(splits, regions, source, key_column, size_column)
    message = messages.CreateTable(name=name, regions=specs, wait_ms=int(wait_s * 1000))
    with open_cluster(given) as cluster:
        made = cluster.ask_master(message, messages.Tables, timeout_s=wait_s + _GRACE_S).tables[0]
    if given.json:
        output.print_json(made)
        return
    click.echo(
        f"table {made.table.name} ({made.table.table_id}): {made.regions} regions, {made.open} of {made.replicas} open"
    )


@table.command()
@click.argument("name")
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait.")
@global_options
@click.pass_obj
def enable(given: Globals, name: str, wait_s: float) -> None:
    """Open the regions of the table NAME again, and wait until they are."""
    wish = messages.SetTableIntent(name, TableIntent.ENABLED, int(wait_s * 1000))
    _change(given, wish, wait_s, "table {0.table.name} is enabled: {0.open} of {0.replicas} open")


@table.command()
@click.argument("name")
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait.")
@global_options
@click.pass_obj
def disable(given: Globals, name: str, wait_s: float) -> None:
    """Close all regions of the table NAME and keep them closed, over failures and restarts, until it is enabled."""
    wish = messages.SetTableIntent(name, TableIntent.DISABLED, int(wait_s * 1000))
    _change(given, wish, wait_s, "table {0.table.name} is disabled: {0.open} of {0.replicas} still open")


@table.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait.")
@global_options
@click.pass_obj
def delete(given: Globals, name: str, yes: bool, wait_s: float) -> None:
    """Delete the table NAME: its name is free at once, its regions are closed. There is no way back."""
    if not yes and not given.json:
        click.confirm(f"delete table {name}?", abort=True)
    wish = messages.DeleteTable(name, int(wait_s * 1000))
    _change(given, wish, wait_s, "table {0.table.name} ({0.table.table_id}) is deleted, {0.open} regions still open")


@table.command()
@click.argument("name")
@click.option("--schema", required=True, help="The new schema, as text; its version is counted up.")
@global_options
@click.pass_obj
def alter(given: Globals, name: str, schema: str) -> None:
    """Give the table NAME a new schema."""
    wish = messages.AlterTable(name, schema=schema)
    _change(given, wish, 0.0, "table {0.table.name} has schema version {0.table.schema_version}")


@table.command()
@click.argument("name")
@click.argument("new_name")
@global_options
@click.pass_obj
def rename(given: Globals, name: str, new_name: str) -> None:
    """Call the table NAME NEW_NAME from now on; nothing is moved or closed."""
    try:
        check_table_name(new_name)
    except ValueError as error:
        raise UsageFaultError(str(error)) from error
    _change(given, messages.AlterTable(name, name=new_name), 0.0, "table {0.table.table_id} is {0.table.name} now")


def _change(given: Globals, wish: messages.MasterRequest, wait_s: float, words: str) -> None:
    """Ask for a change of one table and say what is there then."""
    with open_cluster(given) as cluster:
        made = cluster.ask_master(wish, messages.Tables, timeout_s=wait_s + _GRACE_S).tables[0]
    if given.json:
        output.print_json(made)
    else:
        click.echo(words.format(made))


def region_specs(
    splits: Path | None, regions: int | None, source: Path | None, key_column: str | None, size_column: str | None
) -> list[RegionSpec]:
    """The regions that the options of `rk table create` ask for. Raises UsageFaultError, NotFoundError."""
    if splits is not None:
        if regions is not None or source is not None:
            raise UsageFaultError("--splits and --regions/--from exclude each other")
        return _specs_of_file(splits)
    if source is None:
        if regions is not None and regions > 1:
            raise UsageFaultError("--regions needs --from: a CSV file whose keys say where to cut")
        return [RegionSpec()]
    return specs_of_csv(source, regions or 1, key_column, size_column)


def specs_of_csv(
    source: Path, regions: int, key_column: str | None = None, size_column: str | None = None
) -> list[RegionSpec]:
    """`regions` regions of nearly equal size, cut at keys that occur in `source`. Raises as `region_specs`."""
    try:
        cut = split_evenly(read_keys(source, key_column=key_column, size_column=size_column), regions)
    except ValueError as error:
        raise UsageFaultError(f"{source}: {error}") from error
    ranges = split_ranges(cut.keys)
    return [RegionSpec(one.start_key, one.end_key, size) for one, size in zip(ranges, cut.sizes_bytes, strict=True)]


def _specs_of_file(path: Path) -> list[RegionSpec]:
    try:
        keys = [line for line in path.read_text(encoding="utf-8").splitlines() if line]
        return split_ranges(keys)
    except OSError as error:
        raise NotFoundError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageFaultError(f"{path}: {error}", "One key per line, in increasing order.") from error


@table.command("list")
@global_options
@click.pass_obj
def list_(given: Globals) -> None:
    """All tables: regions, how many are open, in transition, parked."""
    with open_cluster(given) as cluster:
        found = cluster.ask_master(messages.ListTables(), messages.Tables)
    if given.json:
        output.print_json(found.tables)
        return
    output.console().print(summary(found) if found.tables else "no tables yet: rk table create NAME")


def summary(found: messages.Tables) -> Group:
    """Tables as people read them."""
    rows = [
        (
            one.table.name,
            one.table.state,
            one.table.intent,
            one.regions,
            one.open,
            one.rit,
            one.parked,
            one.table.table_id,
        )
        for one in found.tables
    ]
    columns = ["table", "state", "intent", "#regions", "#open", "#in transition", "#parked", "id"]
    return Group(output.table("", columns, rows))


@table.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(0), default=0, help="Show only that many regions.")
@click.option("--start", "start_key", default="", help="Begin with the region that holds this key.")
@global_options
@click.pass_obj
def describe(given: Globals, name: str, limit: int, start_key: str) -> None:
    """The table NAME (or its id): its record, and each region with its range, size and server."""
    with open_cluster(given) as cluster:
        found = describe_table(cluster, name, start_key, limit)
        names = Names(cluster.servers(), cluster.local)
    if given.json:
        output.print_json(found)
        return
    record = found.table
    head = (
        f"{record.name}  id {record.table_id}, {record.state}, {record.intent}, "
        f"{record.regions} regions, replication {record.replication}, schema version {record.schema_version}"
    )
    output.console().print(head)
    output.console().print(regions_table(found, names))


def regions_table(found: messages.Regions, names: Names) -> Group:
    """Regions as people read them: one line per replica."""
    rows = []
    for status in found.regions:
        for replica in status.replicas:
            region = status.region
            rows.append(
                (
                    region.region_id,
                    output.key_range(region.start_key, region.end_key),
                    output.size(region.size_bytes),
                    replica.replica,
                    replica_state(replica, region),
                    names.of(replica.server),
                    _transition(replica, names),
                )
            )
    return Group(output.table("", ["region", "keys", "#size", "#replica", "state", "server", "transition"], rows))


def replica_state(replica: messages.ReplicaStatus, region: RegionRecord | None = None) -> str:
    """One word for where a replica stands; `region` tells whether it is closed on purpose."""
    if replica.transition is not None:
        return "PARKED" if replica.transition.parked else replica.transition.state.value
    if replica.server is not None:
        return "open"
    return "unassigned" if region is not None and region.unassigned else "not open"


def _transition(replica: messages.ReplicaStatus, names: Names) -> str:
    found = replica.transition
    if found is None:
        return ""
    way = f"{names.of(found.source) or '(none)'} to {names.of(found.destination) or '(not chosen)'}"
    error = f"; last error: {found.last_error}" if found.last_error else ""
    return f"{way}, {found.reason}, attempt {found.attempt}{error}"


def every_region(cluster: Cluster, table_name: str | None = None) -> list[messages.Regions]:
    """All regions of one table, or of all tables. Raises NotFoundError for an unknown table."""
    if table_name is not None:
        wanted = [table_name]
    else:
        wanted = [one.table.name for one in cluster.ask_master(messages.ListTables(), messages.Tables).tables]
    return [describe_table(cluster, name) for name in wanted]


def describe_table(cluster: Cluster, name: str, start_key: str = "", limit: int = 0) -> messages.Regions:
    """A table's regions from `start_key` on, asked for in pages: one answer has to fit into one frame."""
    found: list[messages.RegionStatus] = []
    while True:
        wanted = min(_PAGE, limit - len(found)) if limit else _PAGE
        page = cluster.ask_master(messages.DescribeTable(name, start_key, wanted), messages.Regions)
        found += page.regions
        if len(page.regions) < wanted or len(found) == limit or page.regions[-1].region.end_key == "":
            return messages.Regions(page.table, found)
        start_key = page.regions[-1].region.end_key
