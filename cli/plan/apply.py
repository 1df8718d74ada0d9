"""`rk plan` and the running cluster: the snapshot that a plan is made from; apply, abort and resume.

The command checks a plan against the present cluster, and submits it to the active master in parts. The masters then
carry it out across failovers; this command only watches the plan's record.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, ExitStatus, NotFoundError
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.common.views.display import Display
from cli.common.views.lists import EVERYTHING, Key, Listing, listed
from cli.common.waiting import limit_each_wait
from cli.plan.files import DEFAULT_DIR, Artefact, open_plan, plan_errors
from cli.plan.make import display_on_stderr
from cli.plan.targets import of_targets, target_option, targeted
from cli.shell import complete
from cli.tables import every_region
from coord.rpc.wire import RpcError
from regions import messages
from regions.balance.cluster_snapshot import census, pool_of
from regions.plan import PlanRows, Snapshot, verify
from regions.plan.artifact.compare import Difference, changes, compare, former_places, places_of
from regions.plan.artifact.digest import fingerprint
from regions.plan.rebase import rebased
from regions.records.model import PlanRecord, PlanState
from regions.records.znodes import decode_cluster, decode_plan

#: Moves in one request to the master, which are one batch in the store.
PART_MOVES: Final = 2_000
#: Moves above which a person is asked first.
ASKED_ABOVE: Final = 1_000
#: Time limit for retrying a part with unknown outcome: a failover takes seconds.
HANDOVER_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.2
_SHOWN: Final = 30

_directory = click.Path(path_type=Path, file_okay=False)


class Now(NamedTuple):
    """The present cluster."""

    snapshot: Snapshot
    cluster_id: str
    epoch: int
    #: Names of servers and tables by id.
    names: dict[str, str]
    #: Tables of tablets that are in no plan, because not all servers of their group take both sorts of regions.
    left_out: list[str]

    @property
    def note(self) -> str:
        """A sentence about the tables that the snapshot leaves out, "" if there are none."""
        if not self.left_out:
            return ""
        tables = f"{'table' if len(self.left_out) == 1 else 'tables'} {', '.join(sorted(self.left_out))}"
        return f"left out, because the servers of its tablets are not all of one kind: {tables}"


def census_of(cluster: Cluster) -> Now:
    """Return the regions and the servers that the active master knows. Raise CliError."""
    status = cluster.ask_master(messages.GetMasterStatus(), messages.MasterStatus)
    servers = cluster.ask_master(messages.ListServers(), messages.Servers).servers
    tables = every_region(cluster)
    names = Names([one.server for one in servers], cluster.local)
    called = {one.server.uuid: names.of_uuid(one.server.uuid) for one in servers}
    called |= {one.table.table_id: one.table.name for one in tables}
    path = cluster.layout.cluster
    cluster_id = decode_cluster(cluster.get(path) or b"", path).cluster_id
    left_out = [one.table.name for one in tables if pool_of(one.table, servers) is None]
    return Now(census(servers, tables), cluster_id, status.epoch, called, left_out)


def census_now(given: Globals) -> Now:
    """Return `census_of` for the cluster that the options name. Raise CliError."""
    with open_cluster(given) as cluster:
        return census_of(cluster)


class PlanOrder(NamedTuple):
    """The moves that are submitted to the master, with a note for the user."""

    difference: Difference
    now: Now
    note: str


@click.command()
@click.argument("directory", metavar="[DIR]", type=_directory, default=DEFAULT_DIR)
@click.option("--rebase", is_flag=True, help="Keep what still fits the changed cluster; greedy plans the rest.")
@target_option
@click.option("--dry-run", is_flag=True, help="Only check the plan and show the moves.")
@click.option("--yes", is_flag=True, help=f"Do not ask in a terminal before more than {ASKED_ABOVE} moves.")
@click.option("--wait/--no-wait", "wait", default=True, show_default=True, help="Wait until all is moved.")
@global_options
@click.pass_obj
def apply(
    given: Globals, directory: Path, rebase: bool, targets: tuple[str, ...], dry_run: bool, yes: bool, wait: bool
) -> int:
    """Apply the plan in DIR: move each region that is not on its planned server.

    Rejected if a file differs from the manifest, if the plan breaks a rule, or if the cluster has changed since the
    plan was made. Ctrl-C ends the waiting but not the plan: `rk plan abort` does that. With --target the other moves
    are left; `rk plan resume` makes them later.
    """
    how = _How(rebase=rebase, dry_run=dry_run, wait=wait, again=False, targets=targets, is_confirmed=yes)
    return _carry_out(given, directory, how)


@click.command()
@click.argument("directory", metavar="[DIR]", type=_directory, default=DEFAULT_DIR)
@click.option("--rebase", is_flag=True, help="Keep what still fits the changed cluster; greedy plans the rest.")
@click.option("--wait/--no-wait", "wait", default=True, show_default=True, help="Wait until all is moved.")
@global_options
@click.pass_obj
def resume(given: Globals, directory: Path, rebase: bool, wait: bool) -> int:
    """Submit the missing moves of the plan in DIR, after it was aborted or submitted in part."""
    return _carry_out(given, directory, _How(rebase=rebase, dry_run=False, wait=wait, again=True))


@click.command()
@click.argument("plan_id", metavar="[PLAN]", shell_complete=complete.plans, default="")
@global_options
@click.pass_obj
def abort(given: Globals, plan_id: str) -> None:
    """Stop the plan that is being applied: moves in progress are finished, the others are withdrawn."""
    with open_cluster(given) as cluster:
        report = cluster.ask_master(messages.AbortPlan(plan_id), messages.PlanReport)
    if given.json:
        output.print_json(report)
        return
    record = report.record
    click.echo(
        f"plan {record.plan_id} is aborted: {record.assigned} of {record.regions} moves are done, {report.moving} are "
        f"being finished, {report.waiting} were withdrawn; `rk plan resume DIR` submits the rest"
    )


class _How(NamedTuple):
    """Way to carry a plan out. `again`: by `resume`; `is_confirmed`: the operator is not asked."""

    rebase: bool
    dry_run: bool
    wait: bool
    again: bool
    targets: tuple[str, ...] = ()
    is_confirmed: bool = True


def _confirm(given: Globals, found: Artefact, order: PlanOrder) -> None:
    """Ask in a terminal before very many moves. Raise CliError for no; a script goes on as before."""
    moves = len(order.difference.moves)
    if moves > ASKED_ABOVE and sys.stdin.isatty() and not given.json:
        what = f"plan {found.manifest.plan_id} moves {output.count(moves, 'replica')}, each away for a moment: go on?"
        output.confirm(what, "nothing was moved", as_json=False)


def _carry_out(given: Globals, directory: Path, how: _How) -> int:
    display = display_on_stderr()
    try:
        with plan_errors(), open_cluster(given) as cluster:
            display.begin("check", "checking the plan")
            found = open_plan(directory)
            order = _checked(cluster, found, rebase=how.rebase, again=how.again)
            names = {**found.manifest.names, **order.now.names}
            order = order._replace(difference=targeted(found, order.difference, how.targets, names))
            difference = order.difference
            display.end(f"{output.count(len(difference.moves), 'move')}{of_targets(how.targets)}")
            if how.dry_run:
                _report_dry_run(given, found, order)
                return ExitStatus.OK
            if not how.is_confirmed:
                _confirm(given, found, order)
            record = hand_over(cluster, found, order, display)
            if how.wait and record.state is PlanState.APPLYING:
                record = follow(cluster, record, display)
            elsewhere = _elsewhere(cluster, difference) if record.state is PlanState.DONE else 0
    finally:
        display.close()
    if given.json:
        output.print_json({"record": record, "elsewhere": elsewhere, "not_open": len(difference.added)})
    else:
        _print_end(record, difference, elsewhere)
    return ExitStatus.REFUSED if record.state is PlanState.ABORTED or elsewhere else ExitStatus.OK


def _checked(cluster: Cluster, found: Artefact, *, rebase: bool, again: bool) -> PlanOrder:
    """Check the plan against the present cluster. Raise CliError with the reason for a rejection."""
    plan_id, now = found.manifest.plan_id, census_of(cluster)
    record = record_of(cluster, plan_id)
    if again and record is None:
        raise NotFoundError(f"plan {plan_id} was never applied here", "`rk plan apply` does that.")
    if not again and record is not None and record.state is PlanState.APPLYING:
        raise CliError(f"plan {plan_id} is being applied already", f"Watch it: rk plan show {plan_id}.")
    rows, note, allowed = found.plan.rows, "", found.verdict.violations
    if rebase:
        made, kept = rebased(now.snapshot, found.params, rows)
        note = f"rebased: {kept} of {len(made.rows)} places are the plan's, greedy chose the others"
        rows, allowed = made.rows, len(made.rows)
    elif not again and fingerprint(now.snapshot) != found.manifest.fingerprint:
        what = "; ".join(changes(found.snapshot, now.snapshot)) or "its input is from another cluster"
        raise CliError(
            f"plan {plan_id} is outdated: since it was made, {what}", "Make a new one, or keep what fits: --rebase."
        )
    _verify(now.snapshot, found, rows, allowed)
    servers = now.snapshot.servers
    racks = dict(zip(servers.server_id.tolist(), servers.rack.tolist(), strict=True))
    return PlanOrder(compare(former_places(now.snapshot), places_of(rows), racks), now, note)


def _verify(snapshot: Snapshot, found: Artefact, rows: PlanRows, allowed: int) -> None:
    """Check every hard rule with the live servers; `allowed`: bounds of balance that the plan could not keep."""
    verdict = verify(snapshot, found.params, rows)
    broken = verdict.missing + verdict.surplus + verdict.same_server + verdict.wrong_server + verdict.same_rack
    if broken or verdict.violations > allowed:
        what = (
            "; ".join(verdict.notes[:3])
            or f"{verdict.missing} replicas have no place, {verdict.same_rack} share a rack"
        )
        raise CliError(
            f"plan {found.manifest.plan_id} breaks {verdict.violations} rules now: {what}",
            "Make a new one, or keep what fits: --rebase.",
        )


def _report_dry_run(given: Globals, found: Artefact, order: PlanOrder) -> None:
    if given.json:
        output.print_json({"plan_id": found.manifest.plan_id, "note": order.note, "difference": order.difference})
        return
    moves = order.difference.moves
    click.echo(f"would make {output.count(len(moves), 'move')}{f' ({order.note})' if order.note else ''}")
    names = order.now.names
    rows = [
        (one.region_id, one.replica, names.get(one.source, one.source), names.get(one.destination, one.destination))
        for one in moves[:_SHOWN]
    ]
    if rows:
        output.console().print(output.table("", ["region", "#replica", "from", "to"], rows))
    if len(moves) > _SHOWN:
        click.echo(f"and {len(moves) - _SHOWN} more (--json shows all)")


# --- submitting and following -------------------------------------------------------------------------------------


def hand_over(cluster: Cluster, found: Artefact, order: PlanOrder, display: Display, plan_id: str = "") -> PlanRecord:
    """Submit the moves to the active master, part by part, across failovers.

    `plan_id`: the id under which they are carried out, "" for the plan's own.
    """
    moves = [
        messages.PlannedMove(one.region_id, one.replica, one.source, one.destination) for one in order.difference.moves
    ]
    parts = [moves[at : at + PART_MOVES] for at in range(0, len(moves), PART_MOVES)]
    manifest = found.manifest
    plan_id = plan_id or manifest.plan_id
    begin = messages.BeginPlan(
        plan_id,
        order.now.epoch,
        len(parts),
        len(moves),
        manifest.engine,
        manifest.fingerprint,
        manifest.digest,
        order.note,
    )
    display.begin("hand over", "submitting moves", len(moves))
    record = cluster.ask_master(begin, messages.PlanReport).record
    for part, some in enumerate(parts):
        record = _submit(cluster, messages.AddPlanMoves(plan_id, part, some)).record
        display.update(min((part + 1) * PART_MOVES, len(moves)), len(moves))
    display.end()
    return record


def _submit(cluster: Cluster, part: messages.AddPlanMoves) -> messages.PlanReport:
    """Submit a part, and retry while the outcome is unknown; the master accepts each part once."""
    deadline = time.monotonic() + HANDOVER_TIMEOUT_S
    while True:
        try:
            return cluster.ask_master(part, messages.PlanReport)
        except CliError as error:
            cause = error.__cause__
            unknown = isinstance(cause, RpcError) and cause.is_outcome_unknown
            if not unknown or time.monotonic() > deadline:
                raise


def record_of(cluster: Cluster, plan_id: str) -> PlanRecord | None:
    """Return the cluster's record of a plan, None if there is none."""
    path = cluster.layout.plan(plan_id)
    data = cluster.get(path)
    return None if data is None else decode_plan(data, path)


def follow(cluster: Cluster, record: PlanRecord, display: Display) -> PlanRecord:
    """Watch the plan's record until the plan has ended, across failovers."""
    limit_each_wait()
    display.begin("move", "moving regions", record.handed)
    with contextlib.suppress(KeyboardInterrupt):
        while record.state is PlanState.APPLYING:
            display.update(record.assigned, record.handed)
            time.sleep(_POLL_S)  # the active master writes the record every two seconds
            record = record_of(cluster, record.plan_id) or record
    display.end(f"{record.assigned} of {record.handed}")
    return record


def _elsewhere(cluster: Cluster, difference: Difference) -> int:
    """Return the number of replicas that are not on the plan's server, because an open failed there or the server
    died."""
    now = former_places(census_of(cluster).snapshot)
    return sum(1 for one in difference.moves if one.destination not in now.get(one.region_id, {}).values())


def print_end(record: PlanRecord, done: str) -> None:
    """Print the end of a plan, or its progress; `done` describes the result of a plan that is DONE."""
    if record.state is PlanState.DONE:
        click.echo(f"plan {done}: {record.handed} of {record.regions} moves were made")
    elif record.state is PlanState.ABORTED:
        click.echo(f"plan {record.plan_id} ended early: {record.note}")
    else:
        click.echo(
            f"plan {record.plan_id} continues: {record.assigned} of {record.handed} moves are done "
            f"(rk plan show {record.plan_id}; rk plan abort)"
        )
    for reason, number in record.skipped.items():
        click.echo(f"{output.count(number, 'move')} not accepted: {reason}")


def _print_end(record: PlanRecord, difference: Difference, elsewhere: int) -> None:
    print_end(record, f"{record.plan_id} is applied")
    if difference.added:
        click.echo(f"{output.count(len(difference.added), 'replica')} not open now: the master places them")
    if elsewhere:
        click.echo(f"{output.count(elsewhere, 'replica')} not where the plan wants them: `rk plan resume` retries")


# --- the cluster's records ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _records(given: Globals) -> Iterator[list[PlanRecord]]:
    with open_cluster(given) as cluster:
        found = cluster.records(cluster.layout.plans, decode_plan)
        yield sorted(found.values(), key=lambda one: -one.created_ms)


@click.command("list")
@listed(("created", "plan", "state"), "plan", states="applying, done, aborted", default="-created")
@global_options
@click.pass_obj
def list_command(given: Globals, listing: Listing) -> None:
    """List the plans that the cluster remembers, with their progress."""
    list_plans(given, listing)


#: Sort keys of plans, by their names in --sort.
_SORTS: Final[dict[str, Key[PlanRecord]]] = {
    "created": lambda one: one.created_ms,
    "plan": lambda one: one.plan_id,
    "state": lambda one: one.state.value,
}


def list_plans(given: Globals, listing: Listing = EVERYTHING) -> None:
    """Print the plans that the cluster remembers, by default the latest first."""
    with _records(given) as found:
        picked = listing.pick(found, _SORTS, lambda one: [one.state.value])
        if given.json:
            output.print_json(picked.rows)
        elif not found:
            click.echo("the cluster has applied no plan yet: rk plan create")
        else:
            output.console().print(_table(picked.rows))
            picked.print_rest(output.console())


def show_plan(given: Globals, plan_id: str) -> None:
    """Print one plan of the cluster. Raise NotFoundError."""
    with _records(given) as records:
        found = [one for one in records if one.plan_id == plan_id]
    if not found:
        raise NotFoundError(
            f"there is neither a directory {plan_id} nor a plan with this id in the cluster",
            "`rk plan show --cluster` lists the cluster's plans; `rk plan create` makes one.",
        )
    if given.json:
        output.print_json(found[0])
        return
    output.console().print(_table(found))
    for reason, number in found[0].skipped.items():
        click.echo(f"{output.count(number, 'move')} not accepted: {reason}")


def _table(records: list[PlanRecord]) -> object:
    rows = [
        (
            one.plan_id,
            output.clock(one.created_ms),
            "moves" if one.by_moves else "assignment",
            one.engine,
            one.state.value,
            f"{one.assigned} of {one.handed if one.by_moves else one.regions}",
            one.note,
        )
        for one in records
    ]
    return output.table("", ["plan", "at", "kind", "engine", "state", "#done", "note"], rows)
