"""`rk tablet`: list the tablets, show one with its members, move members (`moving`), change one tablet (`members`), and
copy replicas (`copies`).

A tablet is a region of a table with several replicas: a Raft group whose members keep copies on their own disks. The
active master answers from the reports of the servers; `show` asks the members' servers as well. An unknown value is
shown as `?`.
"""

from __future__ import annotations

from typing import Final

import click

from cli.common import output
from cli.common.connect import open_cluster
from cli.common.errors import NotFoundError
from cli.common.lookup import region_in_store
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.common.views.help import CommandGroup
from cli.common.views.lists import Key, Listing, listed
from cli.shell import complete
from cli.tablets.copies import cancel, copy, jobs
from cli.tablets.display import leaders_line, orphan_lines, show_tablet, tablets_table
from cli.tablets.former import name_former
from cli.tablets.members import change_config, leader_step_down
from cli.tablets.moving import intents, move
from cli.tablets.reading import all_tablets, read_replicas, servers_of, uuid_of, with_present_figures
from cli.tablets.upkeep.quarantine import purge
from cli.tablets.upkeep.rescue import unsafe_change_config
from cli.tablets.upkeep.verify import verify
from regions import messages
from regions.messages import TabletHealth, TabletList, TabletStatus


@click.group(cls=CommandGroup)
@global_options
def tablet() -> None:
    """List tablets, show, move or change one, copy replicas. Tablets are the regions of tables with several replicas
    (rk table create --replicas).

    Health, the worst first: UNAVAILABLE (no leader, or it reaches no majority: no reads, no writes), CONSENSUS_MISMATCH
    (replicas contradict each other), UNDER_REPLICATED (works with fewer copies than wanted), RECOVERING, HEALTHY. And:
    UNKNOWN (servers have not reported to a new master yet), CREATING, CLOSED.
    """


for _command in (
    move,
    intents,
    leader_step_down,
    change_config,
    copy,
    jobs,
    cancel,
    purge,
    verify,
    unsafe_change_config,
):
    tablet.add_command(_command)


#: Sort keys of tablets, by their names in --sort.
_SORTS: Final[dict[str, Key[TabletStatus]]] = {
    "keys": lambda one: (one.table, one.start_key),
    "tablet": lambda one: one.region_id,
    "health": lambda one: one.health.value,
    "for": lambda one: one.for_ms,
}


@tablet.command("list")
@click.option(
    "--table",
    "table_name",
    shell_complete=complete.tables,
    default="",
    metavar="TABLE",
    help="Only tablets of this table.",
)
@click.option(
    "--server",
    "server_name",
    shell_complete=complete.servers,
    default="",
    metavar="SERVER",
    help="Only tablets with a replica there.",
)
@click.option(
    "--health",
    "--state",
    multiple=True,
    type=click.Choice([one.value for one in TabletHealth], case_sensitive=False),
    help="Only tablets of this health; repeatable.",
)
@listed(("keys", "tablet", "health", "for"), "tablet")
@global_options
@click.pass_obj
def list_(given: Globals, table_name: str, server_name: str, health: tuple[str, ...], listing: Listing) -> None:
    """List tablets with their health, leader and members, and the problem of each tablet that is not HEALTHY."""
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        server = uuid_of(cluster, server_name, names) if server_name else ""
        wanted = [TabletHealth(one.upper()) for one in health]
        # A sort order needs every tablet. Without one, the master is asked only for the tablets that are shown.
        most = None if listing.sort else listing.limit or None
        found = all_tablets(cluster, messages.ListTablets(table_name, server, wanted), most)
        picked = listing.pick(found.tablets, _SORTS)
        left_out = picked.left_out or bool(found.next)
        found = TabletList(picked.rows, found.next, found.counts, found.orphans)
        if not given.json:
            name_former(cluster, names, servers_of(found))
    if given.json:
        output.print_json(found)
        return
    console = output.console()
    if found.tablets:
        console.print(tablets_table(found.tablets, names))
    elif any(found.counts.values()):
        console.print("no tablet fits")
    else:
        console.print("no tablets: rk table create NAME --replicas 3 makes a table of tablets")
    if found.tablets and not left_out:
        console.print(leaders_line(found.tablets, names), soft_wrap=True, markup=False)
    if left_out:
        console.print(f"only the first {len(found.tablets)} are shown: --limit 0 shows all", style="yellow")
    for line in orphan_lines(found.orphans, names):
        console.print(line, style="red", soft_wrap=True)


@tablet.command()
@click.argument("name", metavar="TABLET", shell_complete=complete.regions)
@global_options
@click.pass_obj
def show(given: Globals, name: str) -> None:
    """Show one tablet: its health and since when, and each member with role, term, config id, applied entry and lag.

    The active master judges; the members' servers are asked for their figures.

    TABLET is an id, a prefix of one, or TABLE:KEY for the tablet that holds a key. `*` marks the leader.
    """
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        region_id = region_in_store(cluster, name).region.region_id if ":" in name else name
        try:
            answer = cluster.ask_master(messages.ShowTablet(region_id), messages.TabletList)
        except NotFoundError as error:
            if any(one.name == name for one in cluster.tables()):
                error.hint = (
                    f"It is a table: name one of `rk tablet list --table {name}`, or the tablet of a key, {name}:KEY."
                )
            raise
        found = with_present_figures(answer.tablets[0], read_replicas(cluster.servers(), [answer.tablets[0].region_id]))
        if not given.json:
            name_former(cluster, names, servers_of(answer))
    if given.json:
        output.print_json(found)
        return
    show_tablet(found, names, output.console())
