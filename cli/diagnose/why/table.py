"""`rk why TABLE`: why a table is not at rest, what blocks it, and what would help.

With an active master the answer is the master's; without one it is computed from the store, and marked so.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from cli.common import output
from cli.common.asking.servers import is_alive
from cli.common.connect import Cluster, ask_active
from cli.common.errors import UnreachableError
from cli.common.lookup import table_named
from cli.common.names import Names
from cli.tablets.reading import view_of_table
from regions.assign.assigner import Assigner
from regions.diagnose.explain_table import explain_table
from regions.diagnose.explain_tablets import explain_tablets
from regions.diagnose.fsck_tablets import TabletCheck
from regions.diagnose.tablets import HealthSince
from regions.messages import ExplainTable, NextActor, TableExplanation
from regions.records.model import TableRecord
from regions.records.znodes import decode_region, decode_transition

#: Number of servers that are probed.
_PROBED_MAX: Final = 5


class TableAnswer(msgspec.Struct):
    """Content of `rk why` for a table."""

    explanation: TableExplanation
    #: False: no master is active, and the answer is computed from the store.
    from_master: bool
    note: str = ""
    #: Uuids of servers that block the table and do not answer.
    silent: list[str] = []


def table_answer(cluster: Cluster, text: str) -> TableAnswer | None:
    """Return the answer for the table with this name or id, or None. Raise CliError."""
    record = table_named({one.table_id: one for one in cluster.tables()}, text)
    if record is None:
        return None
    try:
        reply, note = ask_active(cluster, ExplainTable(record.table_id), TableExplanation), ""
    except UnreachableError as error:
        reply, note = _from_store(cluster, record), error.message
    if record.finished_ms:
        note = ""  # only the store has it
    live = {one.uuid: one for one in cluster.servers()}
    concerned = dict.fromkeys(one.server for one in reply.waiting if one.server)
    silent = [uuid for uuid in list(concerned)[:_PROBED_MAX] if uuid not in live or not is_alive(live[uuid])]
    return TableAnswer(reply, not note, note, silent)


def _from_store(cluster: Cluster, record: TableRecord) -> TableExplanation:
    """Return the explanation computed from the store."""
    if record.is_tablet:
        return _tablets_from_store(cluster, record)
    layout = cluster.layout
    found = cluster.records(layout.table_regions(record.table_id), decode_region)
    regions = [(region, 0) for region in found.values()]
    mine = {one.region_id for one, _ in regions}
    paths = [path for path in cluster.transitions_left() if (layout.parse_transition(path) or ("", 0))[0] in mine]
    read = cluster.understood(cluster.get_many({path: path for path in paths}), decode_transition)
    transitions = [(transition, 0) for transition in read.values()]
    assigner = Assigner(0)
    now_ms = int(time.time() * 1000)
    draining = cluster.children(layout.draining)
    assigner.load([(record, 0)], regions, cluster.servers(), transitions, draining, now_ms, bars=cluster.bars())
    return explain_table(assigner.world.tables[record.table_id], assigner.world, assigner.config, now_ms)


def _tablets_from_store(cluster: Cluster, record: TableRecord) -> TableExplanation:
    """Return the explanation of a table of tablets, from the store and the servers' own answers."""
    view = view_of_table(cluster, record)
    check = TabletCheck(view)
    standings = {region_id: HealthSince(judgment, view.now_ms, True) for region_id, judgment in check.judged.items()}
    return explain_tablets(record, standings, check.keeper)


def show_table(answer: TableAnswer, names: Names, console: Console) -> None:
    """Print the screen."""
    reply = answer.explanation
    record = reply.table
    title = Text(f"table {record.name} ", style="bold").append(
        f"{record.table_id}  {output.count(reply.regions, 'region')}, {reply.open} of {reply.replicas} replicas open,"
        f" schema version {record.schema_version}",
        style="",
    )
    console.print(title, soft_wrap=True)
    if answer.note:
        console.print(Text(f"computed from the store: {answer.note}", style="yellow"), soft_wrap=True)
    actors = {one.actor for one in reply.waiting}
    style = "green" if not reply.waiting else "red" if NextActor.OPERATOR in actors else "yellow"
    since = ""
    if reply.since_ms and reply.waiting:
        since = f", for {max(0, int(time.time() * 1000) - reply.since_ms) / 1000:.0f} s"
    headline = Text(f"{reply.standing}{since}", style=f"bold {style}").append(f": {reply.headline}", style="")
    console.print(headline, soft_wrap=True)
    for note in reply.notes:
        console.print(Text(f"  {note}", style="yellow"), soft_wrap=True)
    for one in reply.waiting:
        who = one.actor.value if one.actor is not NextActor.SERVER else f"server {names.of_uuid(one.server)}"
        if one.server in answer.silent:
            who += ", which does not answer"
        if one.actor is NextActor.MASTER and not answer.from_master:
            who = "a master, but none is active"
        noun = "tablet" if record.is_tablet else "replica"
        line = Text(f"  {output.count(one.replicas, noun)}: ", style="bold")
        console.print(line.append(names.in_sentence(one.text), style="").append(f"; next: {who}"), soft_wrap=True)
    if reply.not_looked_at:
        console.print(f"  and {reply.not_looked_at} more that were not checked", soft_wrap=True)
    for way in reply.way_out:
        console.print(Text("  try  ", style="bold").append(names.in_text(way), style="cyan"), soft_wrap=True)
