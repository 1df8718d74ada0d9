"""`rk region`: list, move, split, merge, assign, unassign and retry regions.

A region is named by its id, by a unique prefix of its id, or by `TABLE:KEY`: the region of the table that contains
the key.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import click

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, NotFoundError
from cli.common.lookup import key_text
from cli.common.names import Names
from cli.common.options import Globals, global_options, wait_option
from cli.common.staleness import print_age, print_json, stale_options
from cli.common.views.help import CommandGroup
from cli.common.views.lists import Key, Listing, listed
from cli.common.waiting import waiting
from cli.shell import complete
from cli.tables import every_region, regions_table, replica_state
from cli.tablets.moving import move_member
from regions import messages
from regions.messages.staleness import Bound
from regions.records.model import TableRecord
from regions.records.partitioning import place

_GRACE_S: Final = 5.0


@click.group(cls=CommandGroup)
@global_options
def region() -> None:
    """List, move, split, merge, assign, unassign and retry regions."""


@region.command("list")
@click.option("--table", "table_name", shell_complete=complete.tables, help="Only this table's regions.")
@click.option(
    "--server",
    "server_name",
    shell_complete=complete.servers,
    help="Only regions on this server (name, host:port or uuid).",
)
@listed(("region", "keys", "rows", "size", "state", "server"), "region", states="open, parked, opening", default="keys")
@stale_options
@global_options
@click.pass_obj
def list_(given: Globals, table_name: str | None, server_name: str | None, listing: Listing, bound: Bound) -> None:
    """Show regions with their key range, size, server, and transition if any."""
    with open_cluster(given, bound=bound) as cluster:
        found = every_region(cluster, table_name)
        names = Names(cluster.servers(), cluster.local)
    if server_name is not None:
        uuid = names.find(server_name).uuid
        found = [_only_on(one, uuid) for one in found]
    pairs = [_Row(one.table, status) for one in found for status in one.regions]
    picked = listing.pick(pairs, _keys(names), lambda one: one.states)
    if given.json:
        print_json([one.status for one in picked.rows], cluster.as_of, bound, "regions")
        return
    console = output.console()
    for one in found:
        shown = [row.status for row in picked.rows if row.table.table_id == one.table.table_id]
        if shown:
            console.print(f"[bold]{one.table.name}[/bold]  {output.count(len(one.regions), 'region')}")
            console.print(regions_table(messages.Regions(one.table, shown), names))
    if not picked.rows:
        console.print("no such region" if found else "no tables yet: rk table create NAME")
    picked.print_rest(console)
    print_age(cluster.as_of, bound)


class _Row(NamedTuple):
    """A region with its table."""

    table: TableRecord
    status: messages.RegionStatus

    @property
    def states(self) -> list[str]:
        """Return the states of its replicas, as the list shows them."""
        return [replica_state(one, self.status.region, self.table) for one in self.status.replicas]


def _keys(names: Names) -> dict[str, Key[_Row]]:
    """Return the sort keys of regions, by their names in --sort."""
    return {
        "region": lambda one: one.status.region.region_id,
        "keys": lambda one: (one.table.name, one.status.region.start_key),
        "rows": lambda one: one.status.rows,
        "size": lambda one: one.status.best_size,
        "state": lambda one: one.states,
        "server": lambda one: [names.of(replica.server) for replica in one.status.replicas],
    }


def _only_on(found: messages.Regions, uuid: str) -> messages.Regions:
    kept = [s for s in found.regions if any(r.server is not None and r.server.uuid == uuid for r in s.replicas)]
    return messages.Regions(found.table, kept)


@region.command()
@click.argument(
    "region_name",
    metavar="REGION",
    shell_complete=complete.regions,
)
@click.option(
    "--to",
    "destination",
    shell_complete=complete.servers,
    help="Server to move to (name, host:port or uuid).  [default: the master chooses]",
)
@click.option(
    "--replica",
    type=click.IntRange(0),
    default=0,
    help="The replica, for replicated tables; of a tablet: a member's number, 0: the master chooses.",
)
@wait_option(30.0)
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@global_options
@click.pass_obj
def move(given: Globals, region_name: str, destination: str | None, replica: int, wait_s: float, dry_run: bool) -> None:
    """Move REGION (an id, a prefix of one, or TABLE:KEY) and wait until it is open again.

    For a tablet, one member moves, as with `rk tablet move`.
    """
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        status = find_region(cluster, region_name)
        target = names.find(destination) if destination else None
        if status.region.is_tablet:
            source = _server_of_member(status, replica)
            asked = messages.MoveTablet(status.region.region_id, target.uuid if target else "", source, dry_run)
            move_member(given, cluster, names, asked, wait_s)
            return
        place = next((one for one in status.replicas if one.replica == replica), None)
        if place is None:
            raise NotFoundError(f"region {status.region.region_id} has no replica {replica}")
        goal = names.of_uuid(target.uuid) if target else "(master chooses)"
        way = f"{names.of(place.server) or '(not open)'} -> {goal}"
        what = f"{status.region.region_id} {output.key_range(status.region.start_key, status.region.end_key)}"
        if dry_run:
            plan = {"region": status.region.region_id, "way": way, "dry_run": True}
            output.report(plan, f"would move {what}: {way}", as_json=given.json)
            return
        request = messages.MoveRegion(
            status.region.region_id, replica, target.uuid if target else "", int(wait_s * 1000)
        )
        answer = cluster.ask_master(request, messages.Accepted, timeout_s=wait_s + _GRACE_S)
        after = cluster.ask_master(messages.DescribeRegion(status.region.region_id), messages.Regions).regions[0]
        now = next(one for one in after.replicas if one.replica == replica)
        before = names.of(place.server) or "(not open)"
        text = f"{what}: {before} -> {names.of(now.server)}" if now.server is not None else f"{what}: {answer.detail}"
        text += f" (cause {answer.cause_id})" if answer.cause_id else ""
        payload = {
            "region": status.region.region_id,
            "detail": answer.detail,
            "cause_id": answer.cause_id,
            "after": now,
        }
        output.report(payload, text.rstrip(), as_json=given.json)


@region.command()
@click.argument("region_name", metavar="REGION", shell_complete=complete.regions)
@click.option(
    "--at",
    "at",
    metavar="KEY",
    default="",
    help="First key of the second half, as in TABLE:KEY.  [default: the middle of the region's bytes]",
)
@wait_option(300.0)
@click.option("--dry-run", is_flag=True, help="Only show where the region would be split.")
@global_options
@click.pass_obj
def split(given: Globals, region_name: str, at: str, wait_s: float, dry_run: bool) -> None:
    """Split REGION (an id, a prefix of one, or TABLE:KEY) into two, and wait until both are open.

    The rows stay readable and writable, except for a moment at the end. No row is lost, even if processes die
    meanwhile. The halves of a tablet can be split again after 30 seconds, when all their replicas are made.
    """
    with open_cluster(given) as cluster:
        found = find_region(cluster, region_name)
        (table,) = (one.table for one in every_region(cluster, found.region.table_id))
        key = place(key_text(table, at), found.region.hash_buckets) if at else ""
        request = messages.SplitRegion(found.region.region_id, key, int(wait_s * 1000), dry_run)
        _show_resharded(given, cluster, request, wait_s)


@region.command()
@click.argument("region_name", metavar="REGION", shell_complete=complete.regions)
@click.argument("other_name", metavar="NEIGHBOR", shell_complete=complete.regions)
@wait_option(300.0)
@click.option("--dry-run", is_flag=True, help="Only show what would be merged.")
@global_options
@click.pass_obj
def merge(given: Globals, region_name: str, other_name: str, wait_s: float, dry_run: bool) -> None:
    """Merge REGION and NEIGHBOR, whose key ranges touch, into one region, and wait until it is open.

    If the regions are on two servers, one of them is moved first. Of two tablets the members of the smaller one are
    moved.
    """
    with open_cluster(given) as cluster:
        one, two = (find_region(cluster, name).region.region_id for name in (region_name, other_name))
        _show_resharded(given, cluster, messages.MergeRegions(one, two, int(wait_s * 1000), dry_run), wait_s)


def _show_resharded(
    given: Globals, cluster: Cluster, request: messages.SplitRegion | messages.MergeRegions, wait_s: float
) -> None:
    """Send a split or merge, and show the regions that replace the former ones."""
    with waiting("the regions to be copied and opened", wait_s + _GRACE_S):
        answer = cluster.ask_master(request, messages.Resharded, timeout_s=wait_s + _GRACE_S)
    names = [
        ", ".join(f"{one.region_id} {output.key_range(one.start_key, one.end_key)}" for one in regions)
        for regions in (answer.parents, answer.daughters)
    ]
    verb = "is" if len(answer.parents) == 1 else "are"
    names[0] = names[0] or "the former regions"  # they were replaced before this request, perhaps by an earlier one
    state = "would become" if request.dry_run else "became" if answer.is_done else f"{verb} to become"
    text = f"{names[0]} {state} {names[1]}" + (f" (cause {answer.cause_id})" if answer.cause_id else "")
    output.report(
        {
            "parents": answer.parents,
            "daughters": answer.daughters,
            "is_done": answer.is_done,
            "dry_run": request.dry_run,
            "cause_id": answer.cause_id,
        },
        text,
        as_json=given.json,
    )


def _server_of_member(status: messages.RegionStatus, number: int) -> str:
    """Return the server of the member with that number, "" for number 0. Raise NotFoundError."""
    member = status.region.member(number)
    if member is None and number:
        raise NotFoundError(
            f"tablet {status.region.region_id} has no member with number {number}",
            f"`rk tablet show {status.region.region_id}` shows its members.",
        )
    return "" if member is None else member.uuid


@region.command()
@click.argument(
    "region_name",
    metavar="REGION",
    shell_complete=complete.regions,
)
@wait_option(30.0)
@global_options
@click.pass_obj
def assign(given: Globals, region_name: str, wait_s: float) -> None:
    """Open REGION again after `rk region unassign`."""
    _set_intent(given, region_name, assigned=True, wait_s=wait_s)


@region.command()
@click.argument(
    "region_name",
    metavar="REGION",
    shell_complete=complete.regions,
)
@wait_option(30.0)
@global_options
@click.pass_obj
def unassign(given: Globals, region_name: str, wait_s: float) -> None:
    """Close REGION and leave it closed, over failures and restarts, until it is assigned again."""
    _set_intent(given, region_name, assigned=False, wait_s=wait_s)


def _set_intent(given: Globals, region_name: str, *, assigned: bool, wait_s: float) -> None:
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        region_id = find_region(cluster, region_name).region.region_id
        request = messages.SetRegionIntent(region_id, assigned, int(wait_s * 1000))
        answer = cluster.ask_master(request, messages.Accepted, timeout_s=wait_s + _GRACE_S)
        after = cluster.ask_master(messages.DescribeRegion(region_id), messages.Regions).regions[0]
    moves = [one.transition for one in after.replicas if one.transition is not None]
    parked = next((one for one in moves if one.parked), None)
    if assigned and wait_s and parked is not None:
        raise CliError(
            f"{region_id} cannot be opened and is parked after {output.count(parked.attempt, 'attempt')}: "
            + names.in_sentence(parked.last_error),
            f"Remove the cause, then: rk region retry {region_name}",
        )
    # A tablet's members keep their servers, whether they take part or rest.
    by_servers = wait_s and not after.region.is_tablet
    where = ", ".join(names.of(one.server) or "closed" for one in after.replicas)
    text = f"{region_id}: {where}" if by_servers else answer.detail
    output.report({"region": region_id, "assigned": assigned, "after": after.replicas}, text, as_json=given.json)


@region.command()
@click.argument(
    "region_name",
    metavar="REGION",
    shell_complete=complete.regions,
)
@click.option(
    "--replica", type=click.IntRange(0), default=0, help="The replica; of a tablet: a member's number, 0: all."
)
@global_options
@click.pass_obj
def retry(given: Globals, region_name: str, replica: int) -> None:
    """Retry a parked REGION from the beginning, after the cause of its failures was removed."""
    with open_cluster(given) as cluster:
        region_id = find_region(cluster, region_name).region.region_id
        answer = cluster.ask_master(messages.RetryRegion(region_id, replica), messages.Accepted)
    output.report({"region": region_id, "replica": replica, "detail": answer.detail}, answer.detail, as_json=given.json)


def find_region(cluster: Cluster, text: str) -> messages.RegionStatus:
    """Return the region that `text` names. Raise NotFoundError, or CliError if several match."""
    table_name, colon, key = text.partition(":")
    if colon:
        (found,) = every_region(cluster, table_name)
        text = key_text(found.table, key)
        for one in found.regions:
            if one.region.contains(place(text, one.region.hash_buckets)):
                return one
        raise NotFoundError(f"no region of {table_name} contains {key!r}: there is a hole", "`rk fsck` shows more.")
    fits = [one for found in every_region(cluster) for one in found.regions if one.region.region_id.startswith(text)]
    exact = [one for one in fits if one.region.region_id == text]
    if len(fits) == 1 or exact:
        return (exact or fits)[0]
    if not fits:
        raise NotFoundError(
            f"no region {text!r}", "`rk region list` shows their ids; TABLE:KEY names the region of a key."
        )
    raise CliError(f"{text!r} matches {len(fits)} regions", "Give more of the id, or TABLE:KEY.")
