"""The command `rk history`: lists, replays, and who has held a region."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import click
from rich.text import Text

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import NotFoundError, UsageFaultError
from cli.common.lookup import region_in_store
from cli.common.names import Names
from cli.common.options import Globals, NumberRange, global_options
from cli.common.staleness import point_ms
from cli.common.views.lists import Listing, listed
from cli.diagnose.history import HistoryView, lines, read_past
from cli.diagnose.past.replay import owners, range_of, replay, show_owners, show_replay
from cli.diagnose.past.state import present
from cli.shell import complete
from regions.cluster.history import concerns
from regions.transitions.entries import (
    FORCED,
    REFUSED,
    REQUEST,
    HistoryEntry,
)

#: The sorts of entries that `--only` selects.
_SORTS: Final[dict[str, Callable[[HistoryEntry], bool]]] = {
    "steps": lambda one: bool(one.key),
    "events": lambda one: not one.key,
    "requests": lambda one: one.cause in (REQUEST, REFUSED, FORCED),
}


@click.command()
@click.argument("target", metavar="[REGION|TABLE|SERVER]", shell_complete=complete.anything, default="")
@listed(("time",), "step", limit=50)
@click.option("--since", metavar="TIME", help="Only from then on: 90s, 15m, 2h or 3d ago; 2026-11-22T13:00; 13:00.")
@click.option("--until", metavar="TIME", help="Only up to then.")
@click.option("--cause", "cause_id", metavar="ID", default="", help="Only effects of this cause, such as e12-3f.")
@click.option("--only", type=click.Choice(list(_SORTS)), help="Only steps, only other events, or only requests.")
@click.option("--replay", "replayed", metavar="A..B", help="Entries between two times or zxids, and both states.")
@click.option("--speed", type=NumberRange(0, min_open=True), help="With --replay on a terminal: times real time.")
@click.option("--owner", is_flag=True, help="Who has held REGION when; times without steps are marked as gaps.")
@click.option("--zxid", "zxids", is_flag=True, help="Show the zxid of the write that recorded each entry.")
@global_options
@click.pass_obj
def history(
    given: Globals,
    target: str,
    listing: Listing,
    since: str | None,
    until: str | None,
    cause_id: str,
    only: str | None,
    replayed: str | None,
    speed: float | None,
    owner: bool,
    zxids: bool,
) -> None:
    """Show every step of a region, of a table's regions, or on a server, with time, actor and cause; oldest first.

    Between the steps: operators' requests, servers that came and went, fences, drains, takeovers, rounds of the
    balancer, and times without a connection to the store.

    REGION is an id, a prefix of one, or TABLE:KEY. The id in brackets at the end of a line identifies the request,
    znode event, heartbeat, timer or takeover that began the work; logs of masters and region servers contain the same
    id. docs/operating.md describes how much is kept.
    """
    now_ms = int(time.time() * 1000)
    from_ms = 0 if since is None else point_ms(since, now_ms, "--since")
    to_ms = now_ms if until is None else point_ms(until, now_ms, "--until")
    if from_ms > to_ms:
        raise UsageFaultError(f"--since {since} is later than --until {until or 'now'}")
    ends = None if replayed is None else range_of(replayed, now_ms)
    if speed is not None and ends is None:
        raise UsageFaultError("--speed without --replay")
    if owner and not target:
        raise UsageFaultError("--owner without a REGION")
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        past = read_past(cluster, names)
        tables = {one.table_id: one.name for one in cluster.tables()}
        wanted = _wanted(cluster, past, tables, target)
        region_id = _region_of(cluster, past, target) if owner else ""
        now = present(cluster) if ends is not None else {}
    if owner:
        held = owners(past.entries, region_id, names)
        output.print_json(held) if given.json else show_owners(held, region_id)
        return
    if ends is not None:
        chosen = {id(one) for one in wanted}
        is_wanted = _SORTS[only] if only is not None else lambda _: True
        played = replay(past, tables, ends, lambda one: id(one) in chosen and is_wanted(one), now)
        output.print_json(played) if given.json else show_replay(played, speed or 0, zxids=zxids)
        return
    if cause_id:
        wanted = [one for one in wanted if concerns(one, cause_id=cause_id)]
    if since is not None or until is not None:
        wanted = [one for one in wanted if from_ms <= one.at_ms <= to_ms]
    if only is not None:
        wanted = [one for one in wanted if _SORTS[only](one)]
    left_out = max(0, len(wanted) - listing.limit) if listing.limit else 0
    latest = wanted[left_out:]
    if listing.sort == "-time":
        latest.reverse()
    steps = [past.step(one, tables) for one in latest]
    if given.json:
        output.print_json({"steps": steps, "left_out": left_out, "unreadable": past.unreadable})
        return
    console = output.console()
    if left_out:
        console.print(f"… and {output.count(left_out, 'earlier step')}: --limit 0 shows all", style="dim")
    for text in lines(steps, zxids=zxids):
        console.print(text, soft_wrap=True)
    for problem in past.unreadable:
        console.print(Text(problem, style="red"))
    if not steps:
        because = f" with the cause {cause_id}" if cause_id else ""
        console.print(f"the history has no step of {target or 'anything'}{because}")


def _region_of(cluster: Cluster, past: HistoryView, target: str) -> str:
    """Return the id of the region that `target` names, which may be deleted. Raise NotFoundError."""
    if any(one.region_id == target for one in past.entries):
        return target
    return region_in_store(cluster, target).region.region_id


def _wanted(cluster: Cluster, past: HistoryView, tables: dict[str, str], target: str) -> list[HistoryEntry]:
    """Return the entries about `target`. Raise NotFoundError, or CliError if several objects match."""
    if not target:
        return past.entries
    for table_id, name in tables.items():
        if target in (name, table_id):
            return [one for one in past.entries if concerns(one, table_id=table_id, table=name)]
    uuids = past.names.uuids(target)
    if len(uuids) == 1:
        return [one for one in past.entries if concerns(one, server=uuids[0])]
    gone = [one for one in past.entries if concerns(one, region_id=target)]
    if gone:  # includes deleted regions and tables
        return gone
    try:
        region_id = region_in_store(cluster, target).region.region_id
    except NotFoundError as error:
        if ":" in target:
            raise
        raise NotFoundError(f"no region, table or server {target!r}", error.hint) from error
    return [one for one in past.entries if concerns(one, region_id=region_id)]
