"""`rk tablet copy`, `rk tablet jobs`, `rk tablet cancel`: replicas that are copied from one server to another.

A copy is a job of the server that receives it. These commands ask the servers themselves: they work while all masters
are away.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, TypeVar

import click
import msgspec
from rich.table import Table

from cli.common import output
from cli.common.asking.servers import ask_server, ask_servers
from cli.common.connect import open_cluster
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from cli.common.lookup import region_in_store
from cli.common.names import Names
from cli.common.options import Globals, global_options, wait_option
from cli.common.waiting import limit_each_wait
from cli.shell import complete
from cli.tablets.reading import SERVER_TIMEOUT_S, leader_in, views_of
from coord.rpc.wire import RpcError
from regions.messages import OwnReplica, ReplicaState
from regions.records.members import Member, MemberRole
from regions.records.model import RegionRecord, ServerRecord
from regionserver.tablets.copying.messages import (
    CancelCopy,
    CopyJob,
    CopyJobList,
    CopyOutcome,
    CopySource,
    CopyState,
    ListCopyJobs,
    SeenReplica,
    StartTabletCopy,
    TabletCopyAnswer,
)

T = TypeVar("T", bound=msgspec.Struct)

#: Pause before a job is looked at again.
_LOOK_S: Final = 0.5
_STYLES: Final = {CopyState.DONE: "green", CopyState.FAILED: "red", CopyState.CANCELED: "yellow"}


@click.command()
@click.argument("name", metavar="TABLET", shell_complete=complete.regions)
@click.option(
    "--to",
    "to_name",
    shell_complete=complete.servers,
    required=True,
    metavar="SERVER",
    help="Server of the member that is copied anew.",
)
@click.option(
    "--from",
    "from_name",
    shell_complete=complete.servers,
    default="",
    metavar="SERVER",
    help="Server to copy from.  [default: the leader]",
)
@wait_option(60.0)
@click.option("--dry-run", is_flag=True, help="Only show what would be copied.")
@global_options
@click.pass_obj
def copy(given: Globals, name: str, to_name: str, from_name: str, wait_s: float, dry_run: bool) -> None:
    """Copy a member of TABLET anew from another one: a FAILED replica, or one that its leader cannot bring up to date.

    The former files go to quarantine; term and vote of the member stay. Other members serve reads and writes meanwhile.
    TABLET is an id, a prefix of one, or TABLE:KEY.
    """
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        region = region_in_store(cluster, name).region
        target = names.find(to_name)
        order = _order(cluster.servers(), region, target, names, names.find(from_name).uuid if from_name else "")
    places = f"{names.of_uuid(order.source.uuid)} -> {names.of_uuid(target.uuid)}"
    way = f"member {order.number} of {region.region_id}: {places}"
    state = "nothing" if order.seen is None else f"a {order.seen.state} replica"
    if dry_run:
        output.report({"order": order, "dry_run": True}, f"would copy {way}, over {state}", as_json=given.json)
        return
    answer = _ask(target, order, TabletCopyAnswer, names)
    if answer.outcome is not CopyOutcome.STARTED:
        raise CliError(
            f"{names.of_uuid(target.uuid)} does not copy {region.region_id}: {answer.outcome} ({answer.reason})",
            "Nothing was changed. `rk tablet jobs` shows the copies that run.",
        )
    job = _wait(target, answer.job, wait_s, names)
    text = f"{way}: {job.state}, {output.size(job.received)} in {_time_of(job)}"
    if job.state is CopyState.FAILED:
        raise CliError(f"{text}: {names.in_sentence(job.reason)}", "Run the command again to begin anew.")
    output.report(job, text, as_json=given.json)


def _order(
    servers: Sequence[ServerRecord], region: RegionRecord, target: ServerRecord, names: Names, source: str
) -> StartTabletCopy:
    """Return the request for a copy of the tablet to `target`, as its servers show the tablet now."""
    if not region.is_tablet:
        raise CliError(f"{region.region_id} is no tablet", "Only regions of tables with several replicas have copies.")
    views = views_of(servers, region.region_id)
    leader = leader_in(views)
    if not leader:
        raise CliError(
            f"no server leads {region.region_id}", "A copy needs a leader: see `rk tablet show` for what is missing."
        )
    members = {one.uuid: one for one in views[leader].members or ()}
    member = members.get(target.uuid)
    if member is None:
        raise NotFoundError(
            f"{names.of_uuid(target.uuid)} has no member of {region.region_id}",
            f"Its members are on {', '.join(names.of_uuid(uuid) for uuid in members)}.",
        )
    chosen = source or next((uuid for uuid in (leader, *views) if uuid != target.uuid and _runs(views[uuid])), "")
    record = next((one for one in servers if one.uuid == chosen), None)
    if record is None or chosen not in members:
        raise CliError(f"no other member of {region.region_id} runs, from which it could be copied")
    if chosen == target.uuid:
        raise UsageFaultError("--from and --to name the same server")
    return StartTabletCopy(
        target.uuid,
        region.region_id,
        member.number,
        member.role or MemberRole.VOTER,
        views[leader].report.term,
        _source(members[chosen], record),
        _seen(views.get(target.uuid)),
        region.table_id,
        region.start_key,
        region.end_key,
        region.hash_buckets,
    )


def _runs(own: OwnReplica) -> bool:
    return own.report.state is ReplicaState.RUNNING


def _source(member: Member, record: ServerRecord) -> CopySource:
    return CopySource(member.number, record.uuid, record.host, record.peer_port)


def _seen(own: OwnReplica | None) -> SeenReplica | None:
    if own is None:
        return None
    return SeenReplica(own.report.number, own.report.state, own.last_term, own.last_index)


def _wait(server: ServerRecord, number: int, wait_s: float, names: Names) -> CopyJob:
    """Return the job when it has ended, or its state after `wait_s`."""
    limit_each_wait()
    deadline_s = time.monotonic() + wait_s
    while True:
        found = _ask(server, ListCopyJobs(server.uuid), CopyJobList, names)
        job = next((one for one in found.jobs if one.job == number), None)
        if job is None:
            raise CliError(
                f"{names.of_uuid(server.uuid)} was restarted during the copy", "Run the command again to begin anew."
            )
        if job.ended_ms or time.monotonic() >= deadline_s:
            return job
        time.sleep(_LOOK_S)


@click.command()
@click.option(
    "--server",
    "server_name",
    shell_complete=complete.servers,
    default="",
    metavar="SERVER",
    help="Only jobs of this server.",
)
@global_options
@click.pass_obj
def jobs(given: Globals, server_name: str) -> None:
    """Show the running copies and the last finished ones: bytes, rate, remaining time, and why a copy waits."""
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        servers = [names.find(server_name)] if server_name else [one for one in cluster.servers() if one.tablets]
    found, silent = _jobs_of(servers)
    if given.json:
        output.print_json({"servers": found, "silent": silent})
        return
    console = output.console()
    if any(one.jobs for one in found):
        console.print(_jobs_table(found, names))
    else:
        console.print("no copies run, and none have ended since the servers started")
    for uuid in silent:
        console.print(f"{names.of_uuid(uuid)} does not answer", style="yellow")


def _jobs_of(servers: Sequence[ServerRecord]) -> tuple[list[CopyJobList], list[str]]:
    """Return the jobs of each server, and the uuids of those that do not answer."""

    def ask(server: ServerRecord) -> CopyJobList:
        return ask_server(server, ListCopyJobs(server.uuid), CopyJobList, SERVER_TIMEOUT_S)

    answers = ask_servers(servers, ask)
    return [one for one in answers.values() if one is not None], [uuid for uuid, one in answers.items() if one is None]


def _jobs_table(found: Sequence[CopyJobList], names: Names) -> Table:
    rows = [
        (
            f"{names.of_uuid(one.uuid)}/{job.job}",
            job.tablet,
            job.number,
            names.of_uuid(job.source),
            f"[{_STYLES.get(job.state, 'default')}]{job.state}[/]",
            output.size(job.received),
            output.size(max(0, job.expected - job.received)) if not job.ended_ms else "-",
            f"{output.size(job.rate)}/s",
            output.clock(job.began_ms),
            _time_of(job),
            names.in_sentence(job.reason),
        )
        for one in found
        for job in one.jobs
    ]
    columns = ["job", "tablet", "number", "from", "state", "received", "left", "rate", "begun", "took", "why"]
    return output.table("", columns, rows)


def _time_of(job: CopyJob) -> str:
    return output.seconds((job.ended_ms - job.began_ms) / 1000) if job.ended_ms else "-"


@click.command()
@click.argument("name", metavar="JOB")
@global_options
@click.pass_obj
def cancel(given: Globals, name: str) -> None:
    """Cancel a copy: JOB is SERVER/NUMBER as `rk tablet jobs` shows it.

    The files of the copy are removed; the member keeps its promises. Its leader may begin the copy again.
    """
    server_name, _, number = name.rpartition("/")
    if not server_name or not number.isdigit():
        raise UsageFaultError(f"{name!r} is no job: give SERVER/NUMBER, as `rk tablet jobs` shows it")
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        server = names.find(server_name)
    found = _ask(server, CancelCopy(int(number), server.uuid), CopyJobList, names)
    output.report(found.jobs[0], f"canceled: the copy of {found.jobs[0].tablet}", as_json=given.json)


def _ask(server: ServerRecord, message: msgspec.Struct, expect: type[T], names: Names) -> T:
    try:
        return ask_server(server, message, expect, SERVER_TIMEOUT_S)
    except RpcError as error:
        raise CliError(f"{names.of_uuid(server.uuid)}: {error.message}") from error
