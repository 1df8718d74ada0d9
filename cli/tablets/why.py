"""`rk why TABLET`: the problem of a tablet, the report of each replica, and the remedies.

With an active master the judgment is the master's. Without one, `rk` asks the servers itself and judges by the same
rules; the screen marks this.
"""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.text import Text

from cli.common.connect import Cluster, ask_active
from cli.common.errors import UnreachableError
from cli.common.lookup import FoundRegion
from cli.common.names import Names
from cli.tablets.display import show_tablet
from cli.tablets.matrix import matrix_table
from cli.tablets.reading import view_of_tablet, with_present_figures
from regions.diagnose.explain_tablets import explain_split
from regions.diagnose.fsck_tablets import MatrixRow, TabletCheck
from regions.diagnose.tablets import HealthSince, describe, ways_out
from regions.messages import ShowTablet, TabletList, TabletStatus
from regions.records.model import RegionRecord
from regions.records.znodes import decode_resharding


class TabletWhy(msgspec.Struct):
    """Content of `rk why` for a tablet."""

    tablet: TabletStatus
    #: False: no master is active, or the tablet was split; `rk` has judged from the store and the servers' own answers.
    from_master: bool
    note: str
    #: The store's view and each replica's own.
    views: list[MatrixRow]
    way_out: list[str]
    #: The split under way in which the tablet takes part.
    split: str = ""


def tablet_answer(cluster: Cluster, found: FoundRegion) -> TabletWhy:
    """Return the answer for a tablet. Raise CliError."""
    region_id = found.region.region_id
    view = view_of_tablet(cluster, found)
    check = TabletCheck(view)
    status, note = None, ""
    try:
        if not found.region.is_replaced:  # masters forget a tablet that was split
            status = ask_active(cluster, ShowTablet(region_id), TabletList).tablets[0]
    except UnreachableError as error:
        note = error.message
    from_master = status is not None
    if status is None:
        tablet = check.keeper.tablets[region_id]
        judgment = check.judged.get(region_id) or check.judge(tablet)
        status = describe(tablet, check.keeper, HealthSince(judgment, view.now_ms, True), view.now_ms)
    status = with_present_figures(status, view.replicas)
    rows, split = check.matrix(region_id).rows, _split_of(cluster, found.region)
    return TabletWhy(status, from_master, note, rows, ways_out(status), split)


def _split_of(cluster: Cluster, region: RegionRecord) -> str:
    """Return a text about the split or merge in progress of the tablet, or the one that has made it; "" without one.

    The znode of a merge has only the name of the first parent.
    """
    layout = cluster.layout
    values = cluster.get_many({path: path for path in map(layout.resharding, cluster.children(layout.reshardings))})
    works = cluster.understood(values, decode_resharding)
    parents = {region.region_id, *(one.region_id for one in region.parents)}
    return "; ".join(explain_split(one) for one in works.values() if not parents.isdisjoint(one.parents))


def show_answer(answer: TabletWhy, names: Names, console: Console) -> None:
    """Print the screen."""
    if answer.note:
        text = f"judged from the store and the servers' own answers: {answer.note}"
        console.print(Text(text, style="yellow"), soft_wrap=True)
    show_tablet(answer.tablet, names, console)
    if answer.split:
        console.print(Text(f"  {answer.split}", style="yellow"), soft_wrap=True)
    console.print(Text("each replica's own view of the configuration", style="dim"))
    console.print(matrix_table(answer.views, names))
    for way in answer.way_out:
        console.print(Text("  try  ", style="bold").append(names.in_sentence(way), style="cyan"), soft_wrap=True)
