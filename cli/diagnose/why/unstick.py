"""`rk unstick`: the one legal step that helps a stuck region, after showing it, and its undo (N11).

The step that was shown is the step that is taken: the request carries the versions of the znodes that were read before
the preview, and the master refuses the request if one of them has changed.
"""

from __future__ import annotations

import click
import msgspec

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, ExitStatus, NotFoundError, UnreachableError, UsageFaultError
from cli.common.lookup import FoundRegion, region_in_store
from cli.common.names import Names, who_runs
from cli.common.options import Globals, global_options
from cli.diagnose.why.region import answers_of, with_names
from cli.shell import complete
from regions import messages
from regions.diagnose.remedy.undo import RegionNow, Undo
from regions.diagnose.remedy.undo import undo as decide_undo
from regions.diagnose.remedy.unstick import Unstick, unstick
from regions.messages import Explanation, NextActor
from regions.records.acts.undo import Remedy, UndoRecord
from regions.records.replica_key import parse_replica_key
from regions.records.znodes import decode_region, decode_undo


@click.command(
    "unstick",
    epilog="Exit status: 0 done, or nothing to do; 1 no legal step helps, or rejected: nothing was done.",
)
@click.argument("region_name", metavar="REGION", shell_complete=complete.regions)
@click.option("--replica", type=click.IntRange(0), default=0, help="The replica, for replicated tables.")
@click.option("--undo", "is_undo", is_flag=True, help="Undo the latest step that this command has taken for REGION.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@global_options
@click.pass_obj
def unstick_command(given: Globals, region_name: str, replica: int, is_undo: bool, dry_run: bool, yes: bool) -> int:
    """Take the one legal step that helps REGION, after showing it: retry, assign, or fence the server.

    Only the shown step is taken: if the region, its transition or its server has changed before the confirmation,
    nothing is done, and the command prints the change. Each step leaves a record in the cluster, from which --undo
    takes the step back.
    """
    if is_undo and replica:
        raise UsageFaultError("--undo and --replica exclude each other: the record names the replica")
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        found = region_in_store(cluster, region_name)
        if found.region.is_tablet:
            raise CliError(
                f"{found.region.region_id} is a tablet, whose members agree by themselves: no step of a master helps",
                f"`rk why {found.region.region_id}` shows what would.",
            )
        if is_undo:
            return _undo(given, cluster, found, names, dry_run=dry_run, yes=yes)
        return _unstick(given, cluster, found, names, replica, dry_run=dry_run, yes=yes)


def _unstick(
    given: Globals, cluster: Cluster, found: FoundRegion, names: Names, replica: int, *, dry_run: bool, yes: bool
) -> int:
    # Read them before the explanation, so that a change in between is refused.
    shown = _versions(cluster, found, replica)
    [answer] = answers_of(cluster, names, found, replica)
    if not answer.from_master:
        raise UnreachableError(
            f"no master is active ({answer.note}), and only a master can take these steps",
            "`rk status` shows the masters; `rk why` works without one.",
        )
    reply = answer.explanation
    plan = unstick(reply, server_answers=answer.server_answers)
    preview = msgspec.structs.replace(
        plan, why=with_names(plan.why, reply, names), server=names.of_uuid(plan.server) if plan.server else ""
    )
    if not given.json:
        _show_plan(reply, preview)
    detail = ""
    if plan.action is not Remedy.NOTHING and not dry_run:
        _confirm(given, "do it?", yes=yes)
        request = messages.UnstickRegion(
            reply.region_id,
            reply.replica,
            plan.action,
            msgspec.structs.replace(shown, start_code=plan.start_code),
            plan.server,
            who_runs(),
            preview.why,
        )
        detail = names.in_text(cluster.ask_master(request, messages.Accepted).detail)
    _report(given, preview, detail)
    stuck = plan.action is Remedy.NOTHING and reply.actor is NextActor.OPERATOR
    return ExitStatus.REFUSED if stuck else ExitStatus.OK


def _undo(given: Globals, cluster: Cluster, found: FoundRegion, names: Names, *, dry_run: bool, yes: bool) -> int:
    record, version = _latest(cluster, found.region.region_id)
    servers = {one.uuid: one for one in cluster.servers()}
    decided = decide_undo(record, _regions_now(cluster, record), servers)
    preview = msgspec.structs.replace(
        decided, refusal=names.in_text(decided.refusal), steps=names.in_text(decided.steps)
    )
    if not given.json:
        _show_undo(record, preview, names)
    detail = ""
    if not decided.refusal and not dry_run:
        _confirm(given, "undo it?", yes=yes)
        request = messages.UndoUnstick(record.undo_id, version, decided.region_version, decided.replicas)
        detail = names.in_text(cluster.ask_master(request, messages.Accepted).detail)
    _report(given, preview, detail)
    return ExitStatus.REFUSED if decided.refusal else ExitStatus.OK


def _confirm(given: Globals, question: str, *, yes: bool) -> None:
    if not yes:
        output.confirm(question, "nothing was changed", as_json=given.json)


def _report(given: Globals, plan: Unstick | Undo, detail: str) -> None:
    if given.json:
        output.print_json({"plan": plan, "done": bool(detail), "detail": detail})
    elif detail:
        click.echo(f"done: {detail}")


# --- collecting -------------------------------------------------------------------------------------------------------


def _versions(cluster: Cluster, found: FoundRegion, replica: int) -> messages.Shown:
    """Return the versions of the region's record and of the replica's transition."""
    region = found.region
    path = cluster.layout.region(region.table_id, region.region_id)
    transition = cluster.layout.transition(region.region_id, replica)
    versions = {at: version for at, _, version in cluster.get_versions([path, transition])}
    return messages.Shown(versions.get(path, -1), versions.get(transition, -1))


def _latest(cluster: Cluster, region_id: str) -> tuple[UndoRecord, int]:
    """Return the latest record about the region with its version."""
    undo_dir = cluster.layout.undo
    for name in reversed(cluster.children(undo_dir)):
        for path, data, version in cluster.get_versions([f"{undo_dir}/{name}"]):
            record = decode_undo(data, path)
            if record.region_id == region_id:
                return record, version
    raise NotFoundError(
        f"rk unstick has taken no step for region {region_id}, or its record is too old",
        f"`rk history {region_id}` shows all steps.",
    )


def _regions_now(cluster: Cluster, record: UndoRecord) -> dict[str, RegionNow]:
    layout = cluster.layout
    if record.action is not Remedy.FENCE:
        keys = {record.region_id: (record.region_id, record.replica)}
    else:
        keys = {key: parse_replica_key(key) for key in record.replicas}
    tables = {one.table_id for one in cluster.tables()} if len(keys) > 1 else {record.table_id}
    homes = {name: table_id for table_id in tables for name in cluster.children(layout.table_regions(table_id))}
    paths = {key: layout.region(homes[one], one) for key, (one, _) in keys.items() if one in homes}
    under_way = cluster.get_stats({key: layout.transition(*keys[key]) for key in paths})
    return {
        key: RegionNow(decode_region(data, paths[key]), stat.version, key in under_way)
        for key, (data, stat) in cluster.get_stats(paths).items()
    }


# --- output -----------------------------------------------------------------------------------------------------------


def _show_plan(reply: Explanation, plan: Unstick) -> None:
    rows = [("region", f"{reply.region_id} replica {reply.replica}"), ("why", plan.why), ("action", plan.action.value)]
    rows += [("server", plan.server), ("steps", plan.steps), ("cost", plan.cost), ("undo", plan.undo)]
    _show_rows(rows)
    if plan.action is Remedy.NOTHING:
        click.echo(
            "no step would help now; `rk why` shows who must act"
            if reply.actor is not NextActor.NOBODY
            else "nothing to do"
        )


def _show_undo(record: UndoRecord, plan: Undo, names: Names) -> None:
    server = names.of(record.server) if record.server is not None else ""
    rows = [
        ("region", f"{record.region_id} replica {record.replica}"),
        ("did", f"{record.action.value}{f' {server}' if server else ''}, {output.clock(record.at_ms)}, by {record.by}"),
        ("why", record.why),
    ]
    _show_rows([*rows, ("steps", plan.steps), ("cost", plan.cost)])
    for key, why in plan.left.items():
        click.echo(f"{'stays':<8}{key}: {why}")
    if plan.refusal:
        click.echo(f"cannot be undone: {plan.refusal}{f'; {plan.hint}' if plan.hint else ''}")


def _show_rows(rows: list[tuple[str, str]]) -> None:
    for label, text in rows:
        if text:
            click.echo(f"{label:<8}{text}")
