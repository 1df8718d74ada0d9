"""`rk tablet unsafe-change-config`: lets a tablet whose majority is lost for good continue with the remaining members.

The command asks the servers themselves, so it works without masters.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import click

from cli.common import output
from cli.common.asking.servers import ask_server
from cli.common.connect import open_cluster
from cli.common.errors import CliError, UsageFaultError
from cli.common.lookup import region_in_store
from cli.common.names import Names
from cli.common.options import Globals, global_options, wait_option
from cli.common.waiting import limit_each_wait
from cli.shell import complete
from cli.tablets.reading import leader_in, views_of
from coord.rpc.wire import RpcError
from regions.messages import Accepted, NoteForcedConfig, OwnReplica, ReplicaState
from regions.records.members import Member, MemberRole
from regions.records.model import ServerRecord
from regions.replication.config import majority
from regionserver.tablets.rescue.messages import ConfigurationForced, ForceConfiguration

#: Deadline of the server's answer: it closes and opens the replica.
_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 0.2
#: Deadline of the active master's answer. The master may be unreachable, and the tablet must not wait for it.
_NOTE_S: Final = 3.0


class Rescue(NamedTuple):
    """The configuration that would be forced."""

    region_id: str
    #: The survivor whose log reaches furthest, with its view, and the voters that it knows.
    server: ServerRecord
    own: OwnReplica
    voters: Sequence[Member]
    #: Voters that stay, and voters that are given up.
    keep: Sequence[Member]
    lost: Sequence[Member]
    #: Highest term of any survivor.
    term: int


@click.command("unsafe-change-config")
@click.argument("name", metavar="TABLET", shell_complete=complete.regions)
@click.option(
    "--keep",
    "kept",
    multiple=True,
    required=True,
    metavar="SERVER",
    shell_complete=complete.servers,
    help="Server of a member that stays; repeatable.",
)
@wait_option(30.0)
@click.option("--dry-run", is_flag=True, help="Only show what would be forced, and what may be lost.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@global_options
@click.pass_obj
def unsafe_change_config(
    given: Globals, name: str, kept: tuple[str, ...], wait_s: float, dry_run: bool, yes: bool
) -> None:
    """Force a configuration of the remaining members, for a TABLET whose majority is LOST FOR GOOD.

    ACKNOWLEDGED WRITES MAY BE LOST: the writes that only the lost members have. If the servers of the lost members can
    be started again, start them instead. If they return after this command, the tablet may have two leaders until the
    active master has closed their replicas: wipe their directories first (`rk server new-identity`).

    Refused while a leader is known or a majority of the voters answers. TABLET is an id, a prefix of one, or TABLE:KEY.
    """
    with open_cluster(given) as cluster:
        servers = cluster.servers()
        names = Names(servers, cluster.local)
        found = region_in_store(cluster, name).region
        if not found.is_tablet:
            raise CliError(f"{found.region_id} is no tablet: its table has one copy")
        uuids = [names.find(one).uuid for one in kept]
    views = views_of(servers, found.region_id)
    rescue = plan(found.region_id, servers, views, uuids, names)
    if not given.json:
        _warn(rescue, names)
    if not dry_run:
        if not yes:
            question = f"give up {len(rescue.lost)} of {len(rescue.voters)} members of {rescue.region_id}?"
            output.confirm(question, "nothing was changed", as_json=given.json)
        _force(rescue, names)
        _note(given, rescue)
        _wait(servers, rescue, wait_s)
    if given.json:
        output.print_json({"dry_run": dry_run, **_report(rescue)})
    elif not dry_run:
        click.echo(f"{rescue.region_id} has a leader again; `rk tablet show` shows when members are added")


def plan(
    region_id: str, servers: Sequence[ServerRecord], views: Mapping[str, OwnReplica], kept: Sequence[str], names: Names
) -> Rescue:
    """Return the configuration to force. Raise CliError if a majority is live, or if another member must stay."""
    runs = {uuid: own for uuid, own in views.items() if own.report.state is ReplicaState.RUNNING and own.members}
    leader = leader_in({uuid: own for uuid, own in runs.items() if own.report.leader is not None})
    if leader:
        raise CliError(
            f"refused: {names.of_uuid(leader)} leads {region_id}", "`rk tablet change-config` changes members safely."
        )
    for uuid in kept:
        if uuid not in runs:
            raise CliError(f"{names.of_uuid(uuid)} has no running replica of {region_id}, so it cannot be kept")
    # The configuration that was agreed on last, as far as survivors know.
    latest = max(runs.values(), key=lambda own: own.config_id)
    voters = [one for one in latest.members or () if one.role in (None, MemberRole.VOTER)]
    alive = [one for one in voters if one.uuid in runs and runs[one.uuid].report.number == one.number]
    if len(alive) >= majority(len(voters)):
        raise CliError(
            f"refused: {len(alive)} of {len(voters)} voters of {region_id} run, which is a majority",
            "They elect a leader by themselves; repeat the command in some seconds if they do not.",
        )
    keep = [one for one in alive if one.uuid in kept]
    if len(keep) < len(set(kept)):
        raise UsageFaultError(f"a server of --keep has no voter of {region_id}")
    longest = max(alive, key=lambda one: (runs[one.uuid].last_term, runs[one.uuid].last_index, one in keep))
    if longest not in keep:
        raise CliError(
            f"refused: the log on {names.of_uuid(longest.uuid)} reaches further than that of every member to keep",
            "Keep that member: the others lack entries that it has.",
        )
    return Rescue(
        region_id,
        next(one for one in servers if one.uuid == longest.uuid),
        runs[longest.uuid],
        voters,
        keep,
        [one for one in voters if one not in keep],
        max(own.report.term for own in runs.values()),
    )


def _warn(rescue: Rescue, names: Names) -> None:
    lost = ", ".join(f"{one.number} on {names.of_uuid(one.uuid)}" for one in rescue.lost)
    keep = ", ".join(f"{one.number} on {names.of_uuid(one.uuid)}" for one in rescue.keep)
    console = output.console(stderr=True)
    for line in (
        f"WARNING: this gives up members {lost} of tablet {rescue.region_id} for ever.",
        f"It goes on with {keep}, whose log ends at entry {rescue.own.last_index} of term {rescue.own.last_term}."
        " ACKNOWLEDGED WRITES AFTER THAT ENTRY ARE LOST.",
        "Never start the servers of the lost members on their directories again: two leaders could acknowledge writes.",
    ):
        console.print(line, style="bold red", soft_wrap=True)


def _force(rescue: Rescue, names: Names) -> None:
    own = rescue.own
    order = ForceConfiguration(
        rescue.server.uuid, rescue.region_id, own.report.number, own.last_term, own.last_index,
        [one.number for one in rescue.keep], rescue.term + 1,
    )  # fmt: skip
    try:
        answer = ask_server(rescue.server, order, ConfigurationForced, _TIMEOUT_S)
    except RpcError as error:
        raise CliError(f"{names.of_uuid(rescue.server.uuid)}: {error.message}") from error
    if answer.why:
        raise CliError(f"{names.of_uuid(rescue.server.uuid)} refuses: {answer.why}")


def _note(given: Globals, rescue: Rescue) -> None:
    """Ask the active master to record the change in the history. Without a master the tablet continues nevertheless."""
    own = rescue.own
    keep, lost = (tuple(one.number for one in members) for members in (rescue.keep, rescue.lost))
    note = NoteForcedConfig(rescue.region_id, rescue.server.uuid, keep, lost, own.last_term, own.last_index)
    try:
        with open_cluster(given) as cluster:
            cluster.ask_master(note, Accepted, _NOTE_S)
    except CliError as error:
        output.console(stderr=True).print(
            f"the history has no record of this: {error.message}", style="yellow", soft_wrap=True
        )


def _wait(servers: Sequence[ServerRecord], rescue: Rescue, wait_s: float) -> None:
    """Wait until a leader has committed the configuration. Raise CliError after `wait_s`."""
    limit_each_wait()
    deadline_s = time.monotonic() + wait_s
    lost = {one.number for one in rescue.lost}
    while True:
        for own in views_of(servers, rescue.region_id).values():
            leads = own.report.leader
            if leads is not None and not lost.intersection(one.number for one in leads.members):
                return
        if time.monotonic() >= deadline_s:
            raise CliError(
                f"{rescue.region_id} has the configuration in its log, and no leader has committed it in {wait_s:g} s",
                "`rk tablet show` shows the members. The kept members must reach each other.",
            )
        time.sleep(_LOOK_S)


def _report(rescue: Rescue) -> dict[str, object]:
    return {
        "region_id": rescue.region_id,
        "keep": [one.number for one in rescue.keep],
        "lost": [one.number for one in rescue.lost],
        "last_index": rescue.own.last_index,
        "last_term": rescue.own.last_term,
    }
