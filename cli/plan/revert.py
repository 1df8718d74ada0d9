"""`rk plan revert`: moves back the replicas that a plan has moved, unless something else has moved them since.

The former placement is in the plan's directory. As with `rk plan apply`, the active master carries the moves out, under
the plan's id with `.revert`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import click

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, ExitStatus, NotFoundError
from cli.common.options import Globals, global_options
from cli.plan import apply
from cli.plan.files import DEFAULT_DIR, Artefact, open_plan, plan_errors
from cli.plan.make import display_on_stderr
from regions.plan.artifact.compare import Difference, former_places, places_of
from regions.plan.artifact.revert import Staying, WayBack, way_back
from regions.records.model import PlanRecord, PlanState

#: Rows in tables for people; `--json` contains all.
_SHOWN: Final = 30
#: Added to the plan's id. The master takes ids of up to 64 characters.
SUFFIX: Final = ".revert"
_ID_MAX: Final = 64


@click.command()
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False), default=DEFAULT_DIR)
@click.option("--dry-run", is_flag=True, help="Only show the moves, and the regions that would stay.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--wait/--no-wait", "wait", default=True, show_default=True, help="Wait until all is moved.")
@global_options
@click.pass_obj
def revert(given: Globals, directory: Path, dry_run: bool, yes: bool, wait: bool) -> int:
    """Move back each region that the plan in DIR has moved, if it is still where the plan put it.

    Regions that have moved since, and regions whose former server is gone, stay where they are; the command lists them
    with the reason. May be repeated. Afterwards the balancer continues: `rk balance off` keeps a placement that the
    balancer would change.
    """
    display = display_on_stderr()
    try:
        with plan_errors(), open_cluster(given) as cluster:
            found = open_plan(directory)
            display.begin("check", "looking for the way back")
            now, back = _way_back(cluster, found)
            display.end(output.count(len(back.moves), "move"))
            plan_id = found.manifest.plan_id
            if dry_run or not back.moves:
                _report(given, plan_id, back, now, None)
                return ExitStatus.OK
            if not yes:
                question = f"move {output.count(len(back.moves), 'replica')} back to where plan {plan_id} found them?"
                output.confirm(question, "nothing was moved", as_json=given.json)
            order = apply.PlanOrder(Difference(moves=back.moves), now, f"reverts plan {plan_id}")
            record = apply.hand_over(cluster, found, order, display, plan_id[: _ID_MAX - len(SUFFIX)] + SUFFIX)
            if wait and record.state is PlanState.APPLYING:
                record = apply.follow(cluster, record, display)
    finally:
        display.close()
    _report(given, plan_id, back, now, record)
    return ExitStatus.REFUSED if record.state is PlanState.ABORTED else ExitStatus.OK


def _way_back(cluster: Cluster, found: Artefact) -> tuple[apply.Now, WayBack]:
    """Return the present cluster and the way back. Raise CliError for a plan that was not applied, or still is."""
    plan_id = found.manifest.plan_id
    record = apply.record_of(cluster, plan_id)
    if record is None:
        raise NotFoundError(f"plan {plan_id} was never applied here", "`rk plan show --cluster` lists what was.")
    if record.state is PlanState.APPLYING:
        raise CliError(f"plan {plan_id} is being applied", "Stop it first: rk plan abort.")
    now = apply.census_of(cluster)
    servers = now.snapshot.servers
    is_draining = zip(servers.server_id.tolist(), servers.draining.tolist(), strict=True)
    before = found.snapshot.servers
    racks = dict(zip(before.server_id.tolist(), before.rack.tolist(), strict=True))
    return now, way_back(
        former_places(found.snapshot),
        places_of(found.plan.rows),
        former_places(now.snapshot),
        frozenset(now.snapshot.regions.region_id.tolist()),
        frozenset(server for server, draining in is_draining if not draining),
        racks,
    )


def _report(given: Globals, plan_id: str, back: WayBack, now: apply.Now, record: PlanRecord | None) -> None:
    """Print the result; `record` None: nothing was moved."""
    if given.json:
        output.print_json({"plan_id": plan_id, "moves": back.moves, "staying": back.staying, "record": record})
        return
    if record is None:
        text = f"would move {output.count(len(back.moves), 'replica')} back" if back.moves else "nothing to move back"
        click.echo(f"plan {plan_id}: {text}")
        names = now.names
        rows = [
            (one.region_id, one.replica, names.get(one.source, one.source), names.get(one.destination, one.destination))
            for one in back.moves[:_SHOWN]
        ]
        if rows:
            output.console().print(output.table("", ["region", "#replica", "from", "to"], rows))
    else:
        apply.print_end(record, f"{plan_id} is reverted")
    _print_staying(back.staying)


def _print_staying(staying: list[Staying]) -> None:
    for reason, number in sorted(Counter(one.reason for one in staying).items()):
        some = [one.region_id for one in staying if one.reason == reason]
        named = ", ".join(some[:3]) + (", …" if number > 3 else "")
        click.echo(f"{output.count(number, 'replica')} not moved back: {reason} ({named})")
