"""`rk tablet move` and `rk tablet intents`: operators' intents about the members of tablets.

The active master checks a request and keeps it in the store; the policy of members carries it out, also under the next
masters. So an interrupted command loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.table import Table

from cli.common import output
from cli.common.asking.servers import ask_server
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, UsageFaultError
from cli.common.lookup import region_in_store
from cli.common.names import Names
from cli.common.options import Globals, global_options, wait_option
from cli.shell import complete
from cli.tablets.reading import SERVER_TIMEOUT_S, uuid_of
from cli.tablets.waiting import Look, follow, not_over
from coord.rpc.wire import RpcError
from regions import messages
from regions.messages import MemberIntent, TabletMember, TabletStatus
from regions.records.intents import TabletMove
from regions.records.members import MemberRole
from regionserver.tablets.copying.messages import CopyJob, CopyJobList, ListCopyJobs


@contextmanager
def named(names: Names) -> Iterator[None]:
    """Replace the uuids in an error by the servers' names."""
    try:
        yield
    except CliError as error:
        error.message, error.hint = names.in_sentence(error.message), names.in_sentence(error.hint)
        error.args = (error.message,)
        raise


@click.command()
@click.argument("name", metavar="TABLET", shell_complete=complete.regions)
@click.option(
    "--to",
    "to_name",
    shell_complete=complete.servers,
    default="",
    metavar="SERVER",
    help="Server that gets a member.  [default: the master chooses]",
)
@click.option(
    "--from",
    "from_name",
    shell_complete=complete.servers,
    default="",
    metavar="SERVER",
    help="Server that loses its member.  [default: the master chooses]",
)
@click.option("--cancel", is_flag=True, help="Withdraw the moves of TABLET, or only that away from --from.")
@wait_option(60.0)
@click.option("--no-wait", is_flag=True, help="Return once the master has recorded the request: --wait 0.")
@click.option("--dry-run", is_flag=True, help="Only check the request and show what would be moved.")
@global_options
@click.pass_obj
def move(
    given: Globals,
    name: str,
    to_name: str,
    from_name: str,
    cancel: bool,
    wait_s: float,
    no_wait: bool,
    dry_run: bool,
) -> None:
    """Move a member of TABLET to another server, and show each step.

    The new member copies the rows and votes. Only then the old one hands over its leadership and is removed. Reads and
    writes continue. The masters carry the move out even if this command is interrupted or the active master dies;
    --cancel withdraws the move.

    TABLET is an id, a prefix of one, or TABLE:KEY for the tablet that holds a key.
    """
    if cancel and to_name:
        raise UsageFaultError("--to and --cancel exclude each other")
    if not (cancel or to_name or from_name):
        raise UsageFaultError("give --to SERVER, --from SERVER or both; or --cancel")
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        region_id = tablet_id(cluster, name)
        source = uuid_of(cluster, from_name, names) if from_name else ""
        if cancel:
            with named(names):
                found = cluster.ask_master(messages.CancelTabletMove(region_id, source, dry_run), MemberIntent)
            _report(given, names, found, dry_run, "")
            return
        target = names.find(to_name).uuid if to_name else ""
        if target and target == source:
            raise UsageFaultError("--from and --to name the same server")
        request = messages.MoveTablet(region_id, target, source, dry_run)
        move_member(given, cluster, names, request, 0.0 if no_wait else wait_s)


def move_member(given: Globals, cluster: Cluster, names: Names, request: messages.MoveTablet, wait_s: float) -> None:
    """Have a member moved, wait for the end, and print the result. Raise CliError."""
    with named(names):
        found = cluster.ask_master(request, MemberIntent)
        asked = (request.source, request.target)
        wanted = [
            one
            for one in found.moves
            if all(part in ("", own) for part, own in zip(asked, (one.source, one.target), strict=True))
        ]
        text = ""
        if wanted and wait_s and not request.dry_run:
            _wait(cluster, names, found, wanted[-1], wait_s, given)
            text = f"{found.region_id}: {names.of_uuid(wanted[-1].source)} -> {names.of_uuid(wanted[-1].target)}"
    _report(given, names, found, request.dry_run, text)


def _report(given: Globals, names: Names, found: MemberIntent, dry_run: bool, text: str) -> None:
    text = text or names.in_sentence(found.detail)
    text += f" (cause {found.cause_id})" if found.cause_id and not dry_run else ""
    output.report({"answer": found, "dry_run": dry_run}, text, as_json=given.json)


def want_learner(
    given: Globals, cluster: Cluster, names: Names, region_id: str, uuid: str, *, wanted: bool = True, dry_run: bool
) -> None:
    """Request a learner on a server, or withdraw the request, and print the result. Raise CliError."""
    with named(names):
        found = cluster.ask_master(messages.WantLearner(region_id, uuid, wanted, dry_run), MemberIntent)
    _report(given, names, found, dry_run, "")


def is_wanted_learner(cluster: Cluster, names: Names, name: str, server_name: str) -> bool:
    """Return True if a master is active and keeps a learner of the tablet on the server."""
    try:
        status = cluster.ask_master(messages.ShowTablet(tablet_id(cluster, name)), messages.TabletList).tablets[0]
        return bool(status.learners) and uuid_of(cluster, server_name, names) in status.learners
    except CliError:
        return False


def tablet_id(cluster: Cluster, name: str) -> str:
    """Return the id of the tablet that a text names. Raise CliError for a region with one shared copy."""
    found = region_in_store(cluster, name)
    if not found.region.is_tablet:
        table = "its table" if found.table is None else f"table {found.table.name}"
        raise CliError(
            f"{found.region.region_id} is no tablet: {table} has one copy in the shared directory",
            f"`rk region move {found.region.region_id}` moves it.",
        )
    return found.region.region_id


def _wait(
    cluster: Cluster, names: Names, found: MemberIntent, wanted: TabletMove, wait_s: float, given: Globals
) -> None:
    """Wait until the move has come true. Raise CliError if it ends in another way, or not in time."""

    def look() -> Look:
        status = cluster.ask_master(messages.ShowTablet(found.region_id), messages.TabletList).tablets[0]
        return _how_far(cluster, names, status, wanted)

    last = follow(look, wait_s, is_quiet=given.json)
    what = f"the move of {found.region_id} from {names.of_uuid(wanted.source)} to {names.of_uuid(wanted.target)}"
    if not last.is_over:
        hint = (
            f"`rk why {found.region_id}` says what it waits for; `rk tablet move {found.region_id} --cancel` ends it."
        )
        raise not_over(what, last, wait_s, hint)
    if last.text != _DONE:
        raise CliError(f"{what} has ended: {last.text}", f"`rk tablet show {found.region_id}` shows the members.")


_DONE: Final = "moved"


def _how_far(cluster: Cluster, names: Names, status: TabletStatus, wanted: TabletMove) -> Look:
    members = [one for one in status.members if one.role is not None]
    there = next((one for one in members if one.server == wanted.target), None)
    here = next((one for one in members if one.server == wanted.source), None)
    if not any((one.source, one.target) == (wanted.source, wanted.target) for one in status.moves):
        is_done = here is None and there is not None and there.role is MemberRole.VOTER
        return Look(_DONE if is_done else "it was canceled, or its member was replaced otherwise", True)
    policy = names.in_sentence(status.policy)
    source, target = names.of_uuid(wanted.source), names.of_uuid(wanted.target)
    if there is None:
        return Look(policy or f"{target} is to get a member", False)
    if there.role is not MemberRole.VOTER:
        return Look(f"member {there.number} on {target} {_copying(cluster, there)}", False)
    if here is not None and here.number == status.leader:
        return Look(f"member {there.number} on {target} votes; {source} hands the leadership over", False)
    if here is not None:
        return Look(f"member {there.number} on {target} votes; member {here.number} on {source} is removed", False)
    return Look(f"member {there.number} on {target} votes, {source} has none", False)


def _copying(cluster: Cluster, newcomer: TabletMember) -> str:
    """Return how far a newcomer's copy is, by its server's own job."""
    job = _job_of(cluster, newcomer)
    if job is not None and not job.ended_ms:
        whole = f" of {output.size(job.expected)}" if job.expected else ""
        return f"copies {output.size(job.received)}{whole}"
    if newcomer.behind is None:
        return "is being made"
    return f"is {newcomer.behind} entries behind" if newcomer.behind else "has caught up"


def _job_of(cluster: Cluster, newcomer: TabletMember) -> CopyJob | None:
    server = next((one for one in cluster.servers() if one.uuid == newcomer.server), None)
    if server is None:
        return None
    try:
        found = ask_server(server, ListCopyJobs(server.uuid), CopyJobList, SERVER_TIMEOUT_S)
    except RpcError:
        return None
    return next((one for one in reversed(found.jobs) if one.number == newcomer.number and not one.ended_ms), None)


@click.command()
@click.option(
    "--table",
    "table_name",
    shell_complete=complete.tables,
    default="",
    metavar="TABLE",
    help="Only intents about tablets of this table.",
)
@global_options
@click.pass_obj
def intents(given: Globals, table_name: str) -> None:
    """Show the changes of members that are wanted and not done yet.

    These are moves, learners, servers to be emptied, and tablets with too few or too many voters. Each line shows the
    masters' next step, or what they wait for.
    """
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        found = cluster.ask_master(messages.ListIntents(table_name), messages.IntentList)
    if given.json:
        output.print_json(found)
        return
    console = output.console()
    if found.intents:
        console.print(_intents_table(found, names))
    for one in found.retiring:
        console.print(retirement_line(one, names), soft_wrap=True, markup=False)
    for table, count in found.counts.items():
        text = f"table {table}: {output.count(count, 'tablet')} not with the wanted number of voters"
        console.print(text, soft_wrap=True, markup=False)
    if not (found.intents or found.retiring or found.counts):
        console.print("nothing is wanted that has not come true")


def _intents_table(found: messages.IntentList, names: Names) -> Table:
    rows = [
        (
            one.region_id,
            one.table,
            one.reason,
            names.of_uuid(one.source) if one.source else "-",
            names.of_uuid(one.target),
            output.clock(one.at_ms) if one.at_ms else "-",
            names.in_sentence(one.progress),
            names.in_sentence(one.policy),
        )
        for one in found.intents
    ]
    return output.table("", ["tablet", "table", "what", "from", "to", "since", "how far", "next"], rows)


def retirement_line(one: messages.Retirement, names: Names) -> str:
    """Return how far a server is emptied, in one line."""
    parts = [f"{output.count(one.tablets, 'member')} of tablets"]
    parts += [f"leads {one.leads}"] if one.leads else []
    parts += [output.count(one.shared, "shared region")] if one.shared else []
    line = f"{names.of_uuid(one.uuid)} is to be empty and has {', '.join(parts)}"
    return line + (f"; it cannot become empty: {names.in_sentence(one.obstacle)}" if one.obstacle else "")
