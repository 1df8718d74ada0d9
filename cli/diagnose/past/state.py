"""`rk state --at`: the whole cluster as it was at a time or zxid, folded from the history (`regions/cluster/past.py`).

The command reads the store, so it covers all masters and works without an active one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, NotFoundError
from cli.common.lookup import regions_of
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.common.staleness import point_ms, zxid_of
from cli.diagnose.history import HistoryView, read_past
from cli.shell import complete
from regions.cluster.past import Picture, Point, ReplicaThen, picture_at
from regions.records.model import TableState
from regions.records.replica_key import parse_replica_key, replica_key

#: Lines about regions, unless a table or server is named.
_LINES: Final = 20


class RegionThen(msgspec.Struct):
    """One replica at a point, with names for people."""

    region: str
    replica: int
    table: str
    #: OPEN, CLOSED, UNKNOWN, or the state of the transition.
    standing: str
    #: Server on which the replica was open, "" for none.
    open_on: str
    #: Server that the transition named.
    server: str
    since_ms: int
    cause: str
    cause_id: str


class ClusterThen(msgspec.Struct):
    """Content of `rk state`. Times are in milliseconds since 1970; 0: unknown, or before the history begins."""

    #: The requested time, -1 if a zxid was requested.
    #: `latest_ms`, `latest_zxid`: the latest entry of the history up to the requested time or zxid.
    at_ms: int
    latest_ms: int
    latest_zxid: int
    #: False: the history does not reach back so far.
    is_covered: bool
    begins_ms: int
    epoch: int
    master: str
    servers: dict[str, int]
    gone: dict[str, int]
    draining: list[str]
    regions: list[RegionThen]
    unreadable: list[str]


def point_of(text: str, now_ms: int, option: str) -> Point:
    """Return the point that `text` names: a zxid that begins with 0x, or a time. Raise UsageFaultError."""
    if text.strip().lower().startswith("0x"):
        return Point(zxid=zxid_of(text.strip(), option))
    return Point(at_ms=point_ms(text, now_ms, option))


@click.command()
@click.option("--at", "at", metavar="TIME|ZXID", help="15m ago; 2026-11-22T13:00; 13:00; 0x1f3. Default: now.")
@click.option(
    "--table",
    "table_name",
    metavar="TABLE",
    shell_complete=complete.tables,
    default="",
    help="Only this table, every region.",
)
@click.option(
    "--server",
    "server_name",
    metavar="SERVER",
    shell_complete=complete.servers,
    default="",
    help="Only what was open or in transition there.",
)
@global_options
@click.pass_obj
def state(given: Globals, at: str | None, table_name: str, server_name: str) -> None:
    """Show the whole cluster as it was at a time or zxid: where each region was open, what was in transition, which
    servers were registered, and which master was active.

    The state is computed from the history alone. Parts that the history does not cover any more are shown as unknown. A
    region without a step since then was on the server that the store names now.
    """
    now_ms = int(time.time() * 1000)
    point = Point(at_ms=now_ms) if at is None else point_of(at, now_ms, "--at")
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        now = present(cluster)
        past = read_past(cluster, names)
        tables = {one.table_id: one.name for one in cluster.tables()}
    picture = picture_at(past.entries, point, now)
    found = state_of(picture, past, tables, point)
    is_filtered = bool(table_name or server_name)
    if table_name:
        if table_name not in tables.values():
            raise NotFoundError(f"no table {table_name!r}", f"Tables: {', '.join(sorted(tables.values())) or 'none'}.")
        found.regions = [one for one in found.regions if one.table == table_name]
    if server_name:
        wanted = _server(names, server_name)
        found.regions = [one for one in found.regions if wanted in (one.open_on, one.server)]
    if given.json:
        output.print_json(found)
        return
    show(found, output.console(), every=is_filtered)


def _server(names: Names, text: str) -> str:
    uuids = names.uuids(text)
    if not uuids:
        raise NotFoundError(f"no server {text!r}, alive or in the history", "`rk history --only events` has servers.")
    if len(uuids) > 1:
        raise CliError(f"{text!r} matches {len(uuids)} servers", "Give more of the uuid, or host:port.")
    return names.of_uuid(uuids[0])


def present(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """Return where each replica of the store is open now, "" for nowhere, and since when."""
    found: dict[str, tuple[str, int]] = {}
    for table in cluster.tables():
        if table.state is TableState.REMOVED:
            continue
        for region in regions_of(cluster, table.table_id):
            if region.is_tablet:
                found.update({replica_key(region.region_id, one.number): (one.uuid, 0) for one in region.members})
                continue
            for number in range(table.replication):
                place = region.location(number)
                uuid = place.uuid if place.uuid is not None and place.start_code is not None else ""
                found[replica_key(region.region_id, number)] = uuid, place.since_ms
    return found


def state_of(picture: Picture, past: HistoryView, tables: Mapping[str, str], point: Point) -> ClusterThen:
    """Return a picture with names for people."""
    name = past.names.of_uuid
    return ClusterThen(
        point.at_ms,
        picture.at_ms,
        picture.zxid,
        picture.is_covered,
        picture.begins_ms,
        picture.epoch,
        name(picture.master) if picture.master else "",
        dict(sorted((name(uuid), since) for uuid, since in picture.servers.items())),
        dict(sorted((name(uuid), since) for uuid, since in picture.gone.items())),
        sorted(name(uuid) for uuid in picture.draining),
        [_region(picture.replicas[key], past.names, tables) for key in sorted(picture.replicas)],
        past.unreadable,
    )


def _region(one: ReplicaThen, names: Names, tables: Mapping[str, str]) -> RegionThen:
    region_id, number = parse_replica_key(one.key)
    table_id = region_id.rpartition(".")[0]
    standing = one.state or ("OPEN" if one.open_on else "CLOSED")
    return RegionThen(
        region_id,
        number,
        tables.get(table_id, table_id),
        standing if one.is_known else "UNKNOWN",
        names.of_uuid(one.open_on) if one.open_on else "",
        names.of_uuid(one.server) if one.server else "",
        one.since_ms,
        one.cause,
        one.cause_id,
    )


# --- output -----------------------------------------------------------------------------------------------------------


def show(found: ClusterThen, console: Console, *, every: bool = False) -> None:
    """Print a state for people. `every`: all regions, not only those in transition."""
    for text in describe(found, every=every):
        console.print(text, soft_wrap=True)


def describe(found: ClusterThen, *, every: bool = False) -> list[Text]:
    """Return the lines of a state."""
    if not found.is_covered:
        begins = f"it begins at {output.moment(found.begins_ms)}" if found.begins_ms else "it is empty"
        return [Text(f"unknown: the history does not reach back so far; {begins}", style="yellow")]
    asked = found.at_ms if found.at_ms >= 0 else found.latest_ms
    zxid = f"  (latest known zxid {found.latest_zxid:#x})" if found.latest_zxid else ""
    lines = [Text(f"{output.moment(asked)}{zxid}", style="bold")]
    master = f"{found.master}, epoch {found.epoch}" if found.master else "unknown: the history begins later"
    lines.append(_row("active", master))
    lines.append(_row("servers", ", ".join(found.servers) or "none is known"))
    for name, since_ms in found.gone.items():
        lines.append(_row("", f"{name} was gone, since {output.moment(since_ms)}", "red"))
    if found.draining:
        lines.append(_row("draining", ", ".join(found.draining)))
    standings = Counter(one.standing for one in found.regions)
    counts = ", ".join(f"{number} {word}" for word, number in sorted(standings.items()))
    lines.append(_row("regions", counts or "none is known"))
    on = Counter(one.open_on for one in found.regions if one.open_on)
    lines += [_row("", f"{name}: {number} open") for name, number in sorted(on.items())]
    listed = [one for one in found.regions if every or one.standing not in ("OPEN", "CLOSED", "UNKNOWN")]
    shown = listed if every else listed[:_LINES]
    lines += [Text(f"  {_words(one)}") for one in shown]
    if len(shown) < len(listed):
        lines.append(Text(f"  {len(listed) - len(shown)} more in transition: --json, or --table", style="dim"))
    lines += [Text(problem, style="red") for problem in found.unreadable]
    return lines


def _row(label: str, text: str, style: str = "") -> Text:
    return Text(f"  {label:<10}", style="dim").append(text, style=style)


def _words(one: RegionThen) -> str:
    number = f" #{one.replica}" if one.replica else ""
    server = one.open_on or (one.server if one.standing not in ("CLOSED", "UNKNOWN") else "")
    where = f" on {server}" if server else ""
    cause = f", {one.cause}" if one.cause and one.standing not in ("OPEN", "CLOSED") else ""
    since = f" since {output.moment(one.since_ms)}" if one.since_ms else ""
    return f"{one.table} {one.region}{number} {one.standing}{where}{since}{cause}"
