"""`rk plan`: create bulk plans, show, compare and apply them.

A plan is a directory: Parquet parts, a manifest with their checksums, and a copy of the plan's input. Creating and
reading a plan needs no cluster if the input is given as files; `cli/plan/apply.py` has the commands that need one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import numpy as np

from cli.common import output
from cli.common.errors import CliError, ExitStatus, NotFoundError, UsageFaultError
from cli.common.options import Globals, NumberRange, global_options, html_option, spark_options
from cli.common.views.help import CommandGroup
from cli.html.pages import write
from cli.plan.apply import Now, abort, apply, census_now, list_command, list_plans, resume, show_plan
from cli.plan.files import DEFAULT_DIR, Artefact, open_plan, plan_errors
from cli.plan.make import PlanRequest, display_on_stderr, located, make
from cli.plan.page import page, shortcomings
from cli.plan.revert import revert
from cli.plan.targets import of_targets, target_option, targeted
from cli.shell import complete
from master.settings import ENGINES
from regions.plan import Params, Snapshot
from regions.plan.artifact.binding import WORDS, Occupancy, PlanRule, RegionReason, explain_region
from regions.plan.artifact.compare import Difference, Shift, compare, former_places, places_of
from regions.plan.artifact.figures import Figures, figures
from regions.plan.artifact.files import MANIFEST, Origin, read_params, read_snapshot
from regions.plan.spark.locate import read_paths
from regions.records.kinds import pool_words

#: Rows in tables for people; `--json` contains all.
_SHOWN: Final = 30
#: Alternatives of a replica in tables for people.
_ALTERNATIVES: Final = 8
_NOW: Final = "now"
_INPUT: Final = "input"
#: Origin of a plan that was made from the running cluster.
_CLUSTER: Final = "cluster"

_directory = click.Path(path_type=Path, file_okay=False)


@click.group(cls=CommandGroup)
@global_options
def plan() -> None:
    """Bulk plans: create one, show it, compare it, apply it.

    \b
    Examples:
      rk plan create                     from the running cluster into ./rk-plan
      rk plan show --html plan.html
      rk plan explain orders:k17         why the plan chose this server for a region
      rk plan diff                       the plan compared with the present cluster
      rk plan apply
    """


@plan.command()
@click.option("--engine", type=click.Choice(ENGINES), default="auto", show_default=True, help="The planner.")
@spark_options("for the engine spark")
@click.option("--input", "source", type=_directory, help="Plan these files.  [default: the running cluster]")
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="TABLE=URI",
    help="Location of a table's data, region R in URI/R: Hadoop's file system provides the hosts.",
)
@click.option("--output", "directory", type=_directory, default=DEFAULT_DIR, show_default=True, help="The new plan.")
@click.option(
    "--deadline",
    "deadline_s",
    type=NumberRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds for the engine; then another one takes over.",
)
@global_options
@click.pass_obj
def create(
    given: Globals,
    engine: str,
    spark_master: str,
    spark_conf: tuple[str, ...],
    source: Path | None,
    paths: tuple[str, ...],
    directory: Path,
    deadline_s: float,
) -> None:
    """Create a plan for all regions, from files or from the running cluster (draining servers are emptied).

    The voters of tablets are planned as well. Tables of tablets are left out where servers with and without a shared
    directory are mixed.
    """
    if (directory / MANIFEST).exists():
        raise CliError(f"{directory} already contains a plan", "Give another --output, or remove that directory.")
    display = display_on_stderr()
    left_out = ""
    try:
        with plan_errors(source):
            if source is None:
                display.begin("census", "counting regions")
                now = census_now(given)
                _check_any(now)
                snapshot, params = now.snapshot, Params(snapshot_id=now.cluster_id, master_epoch=now.epoch)
                origin, left_out = Origin(origin=_CLUSTER, names=now.names), now.note
            else:
                display.begin("read", "reading input")
                snapshot, params, origin = read_snapshot(source), read_params(source), Origin(origin="files")
            display.end()
            request = PlanRequest(engine, spark_master, spark_conf, deadline_s)
            where = _paths(paths, snapshot, origin.names) + (read_paths(source) if source else [])
            if where:
                snapshot = located(snapshot, where, directory, request, display)
            manifest, verdict = make(snapshot, params, directory, request, display, origin)
            made = open_plan(directory)
            shown = figures(made.snapshot, made.problem, made.plan.rows)
    finally:
        display.close()
    if given.json:
        report = {"directory": str(directory), "manifest": manifest, "verdict": verdict, "figures": shown}
        output.print_json(report | ({"left_out": left_out} if left_out else {}))
        return
    _show_summary(made, shown)
    if left_out:
        click.echo(left_out)
    click.echo(f"in {output.shown(directory)}: `rk plan show`, `explain REGION`, `diff`; `rk plan apply` applies it")


def _check_any(now: Now) -> None:
    """Raise CliError if a plan of the cluster would have no region because every table is left out."""
    if now.left_out and not len(now.snapshot.regions):
        raise CliError(
            f"there is no region to plan; {now.note}", "`rk server list` shows the servers with their kinds."
        )


def _paths(given: tuple[str, ...], snapshot: Snapshot, names: dict[str, str]) -> list[tuple[str, str]]:
    """Return table ids and locations of their data. Raise CliError."""
    known = set(snapshot.regions.table_id.tolist())
    ids = {name: table for table, name in names.items() if table in known}
    found = []
    for one in given:
        table, _, path = one.partition("=")
        if not table or not path:
            raise UsageFaultError(
                f"--path {one!r} is not TABLE=URI", "Example: --path orders=hdfs://namenode/data/orders."
            )
        if table not in ids and table not in known:
            raise NotFoundError(
                f"--path {one!r}: table {table!r} does not exist",
                "Give its name or id, as in `rk table list` or the input.",
            )
        found.append((ids.get(table, table), path))
    return found


@plan.command()
@click.argument("which", metavar="[PLAN]", shell_complete=complete.plans, required=False)
@html_option
@click.option("--cluster", "of_cluster", is_flag=True, help="Show the cluster's plans with their progress.")
@global_options
@click.pass_obj
def show(given: Globals, which: str | None, html: Path | None, of_cluster: bool) -> None:
    """Show the figures of a plan directory, or the progress of a plan of the cluster by its id.

    Without PLAN: the plan in ./rk-plan if there is one, else all plans of the cluster.
    """
    if of_cluster or (which is None and html is None and not (DEFAULT_DIR / MANIFEST).exists()):
        list_plans(given)
        return
    if which is not None and html is None and "/" not in which and not Path(which).exists():
        show_plan(given, which)
        return
    directory = DEFAULT_DIR if which is None else Path(which)
    with plan_errors():
        found = open_plan(directory)
        shown = figures(found.snapshot, found.problem, found.plan.rows)
    if html is not None:
        write(html, page(found.manifest, found.verdict, shown, found.name))
    if given.json:
        report = {"directory": str(directory), "manifest": found.manifest, "verdict": found.verdict, "figures": shown}
        output.print_json(report)
        return
    _show_summary(found, shown)
    if html is not None:
        click.echo(f"written to {output.shown(html)}")


def _show_summary(found: Artefact, shown: Figures) -> None:
    manifest, stats = found.manifest, found.manifest.stats
    click.echo(
        f"plan {manifest.plan_id} by {manifest.engine}: {output.count(shown.regions, 'region')} on "
        f"{output.count(stats.eligible_servers, 'server')}"
    )
    if manifest.note:
        click.echo(f"note: {manifest.note}")
    first = f", {shown.first} are placed for the first time" if shown.first else ""
    click.echo(f"replicas: {shown.stay} stay, {shown.move} move ({output.size(shown.moved_bytes)}){first}")
    if shown.knows_blocks and shown.bytes_after:
        before = shown.local_before / max(shown.bytes_before, 1)
        click.echo(f"read locally: {before:.1%} before, {shown.local_after / shown.bytes_after:.1%} after")
    if shown.bound:
        bound = ", ".join(f"{number} by {rule!r}" for rule, number in shown.bound.items())
        click.echo(f"kept from a better place: {bound}")
    for sentence in shortcomings(stats, found.verdict):
        click.echo(sentence)
    rows = [
        (
            found.name(one.server_id),
            one.rack,
            one.before,
            one.after,
            f"{one.floor}..{one.ceil}" if one.takes_regions else "takes none",
            output.size(one.bytes_after),
        )
        for one in shown.servers[:_SHOWN]
    ]
    output.console().print(output.table("", ["server", "rack", "#before", "#after", "#quota", "#bytes"], rows))
    if len(shown.servers) > _SHOWN:
        click.echo(f"and {len(shown.servers) - _SHOWN} more servers (--json shows all)")


@plan.command()
@click.argument("first", metavar="[A]", default=str(DEFAULT_DIR))
@click.argument("second", metavar="[B]", default="")
@target_option
@click.option("--detailed-exitcode", "is_detailed", is_flag=True, help="Exit status 6 if there are differences.")
@global_options
@click.pass_obj
def diff(given: Globals, first: str, second: str, targets: tuple[str, ...], is_detailed: bool) -> int:
    """Show the differences between two plans, or between plan A and the present cluster.

    B is the directory of a plan, `now` (the cluster), or `input`: where the replicas were when plan A was made. Without
    B it is `now` for a plan of a cluster and `input` for a plan of files, which needs no cluster. Each row shows where
    a replica is (in A; now; in the input) and where it should be (in B; by the plan).
    """
    with plan_errors():
        one = open_plan(Path(first))
        second = second or (_NOW if one.manifest.origin == _CLUSTER else _INPUT)
        if second == _INPUT:
            difference = compare(former_places(one.snapshot), places_of(one.plan.rows), _racks(one.snapshot))
            names, what = one.manifest.names, f"from its input to {one.manifest.plan_id}"
        elif second == _NOW:
            now = census_now(given)
            difference = compare(former_places(now.snapshot), places_of(one.plan.rows), _racks(now.snapshot))
            names, what = {**one.manifest.names, **now.names}, f"from now to {one.manifest.plan_id}"
        else:
            two = open_plan(Path(second))
            racks = {**_racks(one.snapshot), **_racks(two.snapshot)}
            difference = compare(places_of(one.plan.rows), places_of(two.plan.rows), racks)
            names = {**one.manifest.names, **two.manifest.names}
            what = f"from {one.manifest.plan_id} to {two.manifest.plan_id}"
        difference = targeted(one, difference, targets, names)
    if given.json:
        output.print_json(difference)
    else:
        _show_difference(f"{what}{of_targets(targets)}", difference, _named(names))
    is_different = difference.moves or difference.added or difference.removed
    return ExitStatus.DIFFERENT if is_detailed and is_different else ExitStatus.OK


def _named(names: dict[str, str]) -> Callable[[str], str]:
    return lambda uuid: names.get(uuid, uuid)


def _racks(snapshot: Snapshot) -> dict[str, str]:
    servers = snapshot.servers
    return dict(zip(servers.server_id.tolist(), servers.rack.tolist(), strict=True))


def _show_difference(what: str, difference: Difference, name: Callable[[str], str]) -> None:
    click.echo(
        f"{what}: {output.count(difference.same, 'replica')} at the same place, {len(difference.moves)} elsewhere, "
        f"{len(difference.added)} new, {len(difference.removed)} gone"
    )
    shown: list[Shift] = [*difference.moves, *difference.added, *difference.removed]
    if not shown:
        return
    rows = [
        (one.region_id, one.replica, name(one.source) or "(nowhere)", name(one.destination) or "(nowhere)")
        for one in shown[:_SHOWN]
    ]
    output.console().print(output.table("", ["region", "#replica", "from", "to"], rows))
    if len(shown) > _SHOWN:
        click.echo(f"and {len(shown) - _SHOWN} more (--json shows all)")


@plan.command()
@click.argument("region_name", metavar="REGION", shell_complete=complete.regions)
@click.option("--plan", "directory", type=_directory, default=DEFAULT_DIR, show_default=True, help="The plan.")
@global_options
@click.pass_obj
def explain(given: Globals, region_name: str, directory: Path) -> None:
    """Show why the plan chose the servers of REGION (an id, a prefix of one, or TABLE:KEY).

    Shows the bytes read locally, the benefit of the other servers, and the rule that excluded each of them.
    """
    with plan_errors():
        found = open_plan(directory)
        region_id = _find_region(found, region_name)
        reason = explain_region(Occupancy(found.problem, found.plan.rows), region_id)
    if given.json:
        output.print_json({"plan_id": found.manifest.plan_id, "former": _former(found, region_id), "reason": reason})
        return
    _show_reason(found, reason)


def _find_region(found: Artefact, text: str) -> str:
    """Return the region of the plan's input that `text` names. Raise NotFoundError, or CliError if several match."""
    regions = found.snapshot.regions
    table, colon, key = text.partition(":")
    if colon:
        tables = {table, *(uuid for uuid, name in found.manifest.names.items() if name == table)}
        rows = np.flatnonzero(np.isin(regions.table_id.astype(str), sorted(tables)))
        below = [at for at in rows.tolist() if regions.start_key[at] <= key]
        if not len(rows):
            raise NotFoundError(f"the plan has no table {table!r}")
        if below:
            return str(regions.region_id[max(below, key=lambda at: str(regions.start_key[at]))])
        raise NotFoundError(f"no region of {table} begins at or before {key!r}")
    ids = [one for one in regions.region_id.tolist() if one.startswith(text)]
    if text in ids or len(set(ids)) == 1:
        return text if text in ids else str(ids[0])
    if not ids:
        raise NotFoundError(f"the plan has no region {text!r}", "Give an id, a prefix of one, or TABLE:KEY.")
    raise CliError(f"{text!r} matches {len(ids)} regions of the plan", "Give more of the id, or TABLE:KEY.")


def _former(found: Artefact, region_id: str) -> dict[int, str]:
    last = found.snapshot.last
    rows = np.flatnonzero(last.region_id == region_id).tolist()
    return {int(last.replica[at]): str(last.server_id[at]) for at in rows}


def _show_reason(found: Artefact, reason: RegionReason) -> None:
    table = found.manifest.names.get(reason.table_id, reason.table_id)
    click.echo(f"region {reason.region_id} of table {table}, {output.size(reason.size_bytes)}")
    former = _former(found, reason.region_id)
    fleet = found.problem.fleet.number
    for number, server in sorted(former.items()):
        gone = "" if server in fleet else ", which now takes no regions"
        click.echo(f"replica {number} was on {found.name(server)}{gone}")
    if reason.table_raised:
        click.echo("the table may exceed its share of a server: the other racks have too few servers for its replicas")
    if not reason.replicas:
        click.echo(
            f"the plan has no place for the region: no server of group {pool_words(reason.group)!r} may take regions"
        )
    for one in reason.replicas:
        local = f"{output.size(one.local_bytes)} read locally" if len(found.snapshot.blocks) else "blocks unknown"
        stay = "stays" if one.held else "moves here" if former else "first placement"
        click.echo(f"replica {one.replica} on {found.name(one.server_id)}: {stay}, {local}")
        equal = one.bound is PlanRule.HERE and any(other.rule is PlanRule.EQUAL for other in one.alternatives)
        words = WORDS[PlanRule.EQUAL] if equal else WORDS[one.bound]
        click.echo(f"  bound by {one.bound.value!r}: {words}" if one.bound is not PlanRule.HERE else f"  {words}")
        rows = [
            (
                found.name(other.server_id),
                other.rule.value,
                output.size(other.local_bytes),
                "yes" if other.held else "",
                output.size(round(other.benefit)),
                f"{other.replicas} of {other.floor}..{other.ceil}",
                f"{other.of_table} of {other.table_limit}",
            )
            for other in one.alternatives[:_ALTERNATIVES]
        ]
        columns = ["instead", "against it", "#local", "held it", "#worth", "#replicas", "#of the table"]
        if rows:
            output.console().print(output.table("", columns, rows))
        if len(one.alternatives) > _ALTERNATIVES:
            click.echo(f"  and {len(one.alternatives) - _ALTERNATIVES} more servers (--json shows all)")


for _command in (list_command, apply, abort, resume, revert):
    plan.add_command(_command)
