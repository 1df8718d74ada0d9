"""`rk audit`: violations that the masters' auditors found, with the steps that led to them, until acknowledged."""

from __future__ import annotations

import contextlib
from datetime import datetime

import click
from kazoo.exceptions import NoNodeError
from rich.console import Console
from rich.text import Text

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import ExitStatus, NotFoundError
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.diagnose.follow import describe
from regions.records.alarms import Alarm
from regions.records.znodes import CorruptZnode, decode_alarm

ALL = "all"


@click.command(epilog="Exit status: 0 no alarm, 1 unacknowledged alarms.")
@click.option("--ack", "acknowledged", metavar="ID|all", help="Acknowledge and remove an alarm.")
@global_options
@click.pass_obj
def audit(given: Globals, acknowledged: str | None) -> int:
    """Show alarms of the auditors that run beside the masters: the broken rule, and the steps that broke it.

    Nothing is repaired automatically: `rk fsck` shows the present errors, and their remedies.
    """
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        for master in cluster.masters():
            names.remember(master.uuid, f"{master.host}:{master.port}")
        alarms = read_alarms(cluster)
        if acknowledged is not None:
            return _acknowledge(given, cluster, alarms, acknowledged)
        auditors = len(cluster.masters())
    if given.json:
        output.print_json({"alarms": alarms, "auditors": auditors})
    else:
        _show(alarms, names, auditors, output.console())
    return ExitStatus.REFUSED if alarms else ExitStatus.OK


def read_alarms(cluster: Cluster) -> list[Alarm]:
    """Return the unacknowledged alarms, oldest first. An alarm that cannot be decoded is included."""
    found = []
    for alarm_id, data in cluster.get_all(cluster.layout.alarms).items():
        try:
            found.append(decode_alarm(data, alarm_id))
        except CorruptZnode as error:
            found.append(Alarm(alarm_id, 0, "unreadable", "", str(error)))
    return sorted(found, key=lambda one: one.at_ms)


def _acknowledge(given: Globals, cluster: Cluster, alarms: list[Alarm], wanted: str) -> int:
    chosen = [one for one in alarms if wanted == ALL or (wanted and one.alarm_id.startswith(wanted))]
    if not chosen and wanted != ALL:
        raise NotFoundError(f"no alarm {wanted!r}", "`rk audit` lists the alarms.")
    for one in chosen:
        with contextlib.suppress(NoNodeError):
            cluster.client.delete(cluster.layout.alarm(one.alarm_id))
    if given.json:
        output.print_json({"acknowledged": [one.alarm_id for one in chosen]})
    else:
        click.echo(f"{output.count(len(chosen), 'alarm')} acknowledged")
    return ExitStatus.OK


def _show(alarms: list[Alarm], names: Names, auditors: int, console: Console) -> None:
    for one in alarms:
        when = f"{datetime.fromtimestamp(one.at_ms / 1000):%Y-%m-%d} {output.clock(one.at_ms)}" if one.at_ms else ""
        by = f"  (raised by {names.of_uuid(one.raised_by)})" if one.raised_by else ""
        console.print(Text(f"{one.alarm_id}  {when}  {one.rule}", style="bold red").append(by, style="dim"))
        console.print(Text(f"  {names.in_text(one.text)}"), soft_wrap=True)
        for step in one.steps:
            unseen = f" ({step.missed} between unseen)" if step.missed else ""
            server = names.of_uuid(step.server.partition("@")[0]) if step.server else ""
            words = [server, step.reason, f"epoch {step.epoch}" if step.epoch else "", names.in_sentence(step.error)]
            tail = "  ".join(word for word in words if word)
            line = f"    {output.clock(step.at_ms)}  {describe(step.before, step.after)}{unseen}  {tail}"
            console.print(Text(line, style="dim"), soft_wrap=True)
    watching = output.count(auditors, "auditor") + (" is" if auditors == 1 else " are") + " watching"
    if alarms:
        console.print(
            f"{output.count(len(alarms), 'alarm')}; {watching}. Present errors: rk fsck. "
            "Acknowledge: rk audit --ack ID|all",
            soft_wrap=True,
        )
    elif auditors:
        console.print(f"[green]no alarms[/green]; {watching}")
    else:
        console.print("no alarms, but no master runs, so no auditor is watching", style="yellow")
