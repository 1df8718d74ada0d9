"""`rk why`: one region on one screen: its state, the process that must act next, its deadline, and what would help; or
one table (`table.py`), one process (`process.py`), or one tablet (`cli/tablets/why.py`).

With an active master the answer is the master's; without one it is computed from the store, and marked so.
"""

from __future__ import annotations

import time
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from cli.common import output
from cli.common.asking.servers import is_alive
from cli.common.connect import Cluster, ask_active, open_cluster
from cli.common.errors import CliError, UnreachableError
from cli.common.lookup import FoundRegion, region_in_store
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.diagnose.audit import read_alarms
from cli.diagnose.history import HistoryLine, lines, read_past
from cli.diagnose.why.process import is_process, process_answer, show_process
from cli.diagnose.why.table import show_table, table_answer
from cli.shell import complete
from cli.tablets.why import show_answer, tablet_answer
from regions import messages
from regions.assign.assigner import Assigner
from regions.diagnose.explain import explain
from regions.diagnose.remedy.unstick import unstick
from regions.messages import Explanation, NextActor
from regions.records.acts.undo import Remedy
from regions.records.replica_key import is_key_of, replica_key
from regions.records.znodes import CorruptZnode, decode_region, decode_table, decode_transition

#: Steps of the history in the output.
_STEPS: Final = 6


class Answer(msgspec.Struct):
    """Content of `rk why` for one replica."""

    explanation: Explanation
    start_key: str
    end_key: str
    #: False: no master is active, and the answer is computed from the store.
    from_master: bool
    note: str = ""
    #: True if the concerned server answers; None if no server is concerned.
    server_answers: bool | None = None
    #: Name of the server concerned.
    server_name: str = ""
    steps: list[HistoryLine] = []
    alarms: list[str] = []


@click.command()
@click.argument("region_name", metavar="REGION|TABLET|TABLE|PROCESS", shell_complete=complete.anything)
@click.option("--replica", type=click.IntRange(0), help="Only this replica of a region.")
@global_options
@click.pass_obj
def why(given: Globals, region_name: str, replica: int | None) -> None:
    """Show why REGION is where it is: state, who must act next, since when, until when, last error, and remedies.

    REGION is an id, a prefix of one, or TABLE:KEY. For a TABLE: why it is ALTERING or not completely open, and what
    blocks it. For a TABLET: its health and since when, its members, and what each replica reports. Works without
    an active master.

    A PROCESS is a store node, master or region server: its name in a local cluster, or HOST:PORT. The command asks the
    processes themselves and needs no store.
    """
    if replica is None and is_process(given, region_name):
        process = process_answer(given, region_name)
        if given.json:
            output.print_json(process)
        else:
            show_process(process, output.console())
        return
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        table = table_answer(cluster, region_name) if replica is None and ":" not in region_name else None
        found = None if table is not None else region_in_store(cluster, region_name)
        if found is not None and found.region.is_tablet:
            _why_tablet(given, cluster, found, names)
            return
        answers = [] if found is None else answers_of(cluster, names, found, replica)
    if table is not None:
        if given.json:
            output.print_json(table)
        else:
            show_table(table, names, output.console())
        return
    if given.json:
        output.print_json(answers)
        return
    console = output.console()
    for one in answers:
        _show(one, names, console)


# --- collecting -------------------------------------------------------------------------------------------------------


def _why_tablet(given: Globals, cluster: Cluster, found: FoundRegion, names: Names) -> None:
    answer = tablet_answer(cluster, found)
    region_id = found.region.region_id
    past = read_past(cluster, names)
    tables = {one.table_id: one.name for one in cluster.tables()}
    steps = [past.step(one, tables) for one in past.entries if is_key_of(region_id, one.key)][-_STEPS:]
    alarms = [one for one in read_alarms(cluster) if is_key_of(region_id, one.key)]
    raised = [f"{one.alarm_id} {one.rule}: {one.text}" for one in alarms]
    if given.json:
        output.print_json({**output.whole(answer), "steps": steps, "alarms": raised})
        return
    console = output.console()
    show_answer(answer, names, console)
    _show_past(steps, raised, console)


def answers_of(cluster: Cluster, names: Names, found: FoundRegion, replica: int | None) -> list[Answer]:
    """Return an answer for each replica of a region, or for one. Raise CliError if there is none."""
    region = found.region
    try:
        asked = messages.ExplainRegion(region.region_id)
        explanations, note = ask_active(cluster, asked, messages.Explanations).replicas, ""
    except UnreachableError as error:
        explanations, note = _from_store(cluster, found), error.message
    if replica is not None:
        explanations = [one for one in explanations if one.replica == replica]
    if not explanations:
        what = f"no replica {replica}" if replica is not None else "no replica: its table was deleted"
        raise CliError(f"region {region.region_id} has {what}", "`rk fsck` shows more.")
    past = read_past(cluster, names)
    tables = {one.table_id: one.name for one in cluster.tables()}
    alarms = read_alarms(cluster)
    servers = {one.uuid: one for one in cluster.servers()}
    answers = []
    for reply in explanations:
        key = replica_key(region.region_id, reply.replica)
        steps = [past.step(one, tables) for one in past.entries if one.key == key][-_STEPS:]
        raised = [f"{one.alarm_id} {one.rule}: {one.text}" for one in alarms if one.key == key]
        answer = Answer(reply, region.start_key, region.end_key, not note, note, steps=steps, alarms=raised)
        if reply.server is not None:
            answer.server_name = names.of(reply.server)
            record = servers.get(reply.server.uuid)
            answer.server_answers = record is not None and is_alive(record)
        answers.append(answer)
    return answers


def _from_store(cluster: Cluster, found: FoundRegion) -> list[Explanation]:
    """Return the explanation computed from the store; deadlines are the recorded ones."""
    layout, region = cluster.layout, found.region
    now_ms = int(time.time() * 1000)
    assigner = Assigner(0)
    path = layout.table(region.table_id)
    table = cluster.get(path)
    if table is None:
        return []
    record = decode_table(table, path)
    transitions = []
    for number in range(record.replication):
        path = layout.transition(region.region_id, number)
        data = cluster.get(path)
        if data is not None:
            try:
                transitions.append((decode_transition(data, path), 0))
            except CorruptZnode as error:
                raise CliError(
                    f"the region's transition cannot be decoded: {error}", "`rk fsck` shows more."
                ) from error
    path = layout.region(region.table_id, region.region_id)
    data = cluster.get(path)
    latest = region if data is None else decode_region(data, path)
    draining = cluster.children(layout.draining)
    assigner.load([(record, 0)], [(latest, 0)], cluster.servers(), transitions, draining, now_ms, bars=cluster.bars())
    written = {one.key: one for one, _ in transitions}
    explanations = []
    for replica in assigner.world.regions[region.region_id].replicas:
        one = explain(replica, assigner.world, assigner.config, now_ms)
        transition = written.get(replica.key)
        if transition is not None:
            late_ms = max(0, now_ms - transition.deadline_ms) if transition.deadline_ms else 0
            one = msgspec.structs.replace(one, deadline_ms=transition.deadline_ms, overdue_ms=late_ms)
        explanations.append(one)
    return explanations


# --- output -----------------------------------------------------------------------------------------------------------


def with_names(text: str, reply: Explanation, names: Names) -> str:
    """Replace uuids by server names."""
    for one in (reply.server, reply.source, reply.destination):
        if one is not None:
            text = text.replace(str(one), names.of(one)).replace(one.uuid, names.of(one))
    return names.in_text(text)


def _ago(ms: int, now_ms: int) -> str:
    return f"{output.clock(ms)}, {_duration(now_ms - ms)} ago"


def _duration(ms: int) -> str:
    seconds = max(0, ms) // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _show(answer: Answer, names: Names, console: Console) -> None:
    reply = answer.explanation
    now_ms = int(time.time() * 1000)
    title = Text(f"{reply.table} {reply.region_id} ", style="bold")
    title.append(output.key_range(answer.start_key, answer.end_key), style="")
    if reply.replica:
        title.append(f" replica {reply.replica}")
    console.print(title, soft_wrap=True)
    if answer.note:
        console.print(Text(f"computed from the store: {answer.note}", style="yellow"), soft_wrap=True)
    style = "green" if reply.actor is NextActor.NOBODY else "red" if reply.actor is NextActor.OPERATOR else "yellow"
    headline = Text(reply.standing, style=f"bold {style}").append(
        f": {with_names(reply.headline, reply, names)}", style=""
    )
    console.print(headline, soft_wrap=True)
    for label, text in _facts(answer, names, now_ms):
        if text:
            console.print(Text(f"  {label:<14}", style="dim").append(text, style=""), soft_wrap=True)
    for one in reply.ruled_out:
        console.print(
            Text(f"  {'not possible':<14}", style="dim").append(with_names(one, reply, names)), soft_wrap=True
        )
    _show_past(answer.steps, answer.alarms, console)
    for way in _ways_out(answer):
        console.print(Text("  try  ", style="bold").append(with_names(way, reply, names), style="cyan"), soft_wrap=True)


def _show_past(steps: list[HistoryLine], alarms: list[str], console: Console) -> None:
    if steps:
        console.print(Text("  latest steps", style="dim"))
        for line in lines(steps):
            console.print(Text("    ").append_text(line), soft_wrap=True)
    for alarm in alarms:
        console.print(Text(f"  ALARM {alarm}", style="red"), soft_wrap=True)


def _facts(answer: Answer, names: Names, now_ms: int) -> list[tuple[str, str]]:
    reply = answer.explanation
    who = reply.actor.value
    if reply.actor is NextActor.SERVER:
        silent = ", which does not answer" if answer.server_answers is False else ""
        who = f"server {answer.server_name}{silent}"
    elif reply.actor is NextActor.MASTER and not answer.from_master:
        who = "a master, but none is active"
    elif reply.actor is NextActor.NOBODY and answer.server_answers is False:
        who = f"nobody; but the region's server {answer.server_name} does not answer"
    step = f": {with_names(reply.step, reply, names)}" if reply.step else ""
    deadline = ""
    if reply.deadline_ms:
        when = (
            f"{_duration(reply.overdue_ms)} ago" if reply.overdue_ms else f"in {_duration(reply.deadline_ms - now_ms)}"
        )
        deadline = f"{output.clock(reply.deadline_ms)}, {when}"
    if reply.at_deadline:
        deadline += f"{'; then ' if deadline else ''}{with_names(reply.at_deadline, reply, names)}"
    tries = f"{reply.attempt}" + (f" of {reply.attempts_max}" if reply.attempts_max else "") if reply.attempt else ""
    return [
        ("who acts next", f"{who}{step}"),
        ("since", _ago(reply.since_ms, now_ms) if reply.since_ms else ""),
        ("deadline", deadline),
        ("attempt", tries),
        ("last error", with_names(reply.last_error, reply, names)),
        ("reason", reply.reason),
        ("from, to", _way(reply, names)),
        ("plan", reply.plan_id),
        ("kind", reply.kind),
        ("epoch", str(reply.epoch) if reply.epoch else ""),
    ]


def _way(reply: Explanation, names: Names) -> str:
    if reply.destination is None:
        return ""
    return f"{names.of(reply.source) or '(none)'} -> {names.of(reply.destination)}"


def _ways_out(answer: Answer) -> list[str]:
    reply = answer.explanation
    ways = list(reply.way_out)
    if answer.from_master and unstick(reply, server_answers=answer.server_answers).action is not Remedy.NOTHING:
        ways.insert(0, f"rk unstick {reply.region_id}: take the legal step that helps, after showing it")
    if not answer.from_master and reply.actor is NextActor.MASTER:
        ways.insert(0, "rk master run …: start a master; rk status shows what runs")
    if answer.alarms:
        ways.append("rk audit: the steps that led to the alarm")
    return ways
