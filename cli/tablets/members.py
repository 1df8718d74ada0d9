"""`rk tablet leader-step-down` and `rk tablet change-config`: a change of one tablet, sent to its leader."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click

from cli.common import output
from cli.common.asking.refusals import refusal
from cli.common.asking.servers import ask_server
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, NotFoundError
from cli.common.lookup import region_in_store
from cli.common.names import Names
from cli.common.options import Globals, global_options, wait_option
from cli.common.waiting import limit_each_wait
from cli.shell import complete
from cli.tablets.moving import is_wanted_learner, tablet_id, want_learner
from cli.tablets.reading import leader_in, uuid_of, views_of
from coord.rpc.wire import RpcError
from regions.messages import ChangeAnswer, ChangeConfig, ConfigChange, ConfigChanged, OwnReplica, TransferLeadership
from regions.records.members import ConfigId, Member
from regions.records.model import ServerRecord

#: Pause between two looks at who leads.
_LOOK_S: Final = 0.1
#: Time for the reply beyond the time that the server has.
_GRACE_S: Final = 5.0

#: What to do about an answer that is not a success.
_HINTS: Final = {
    ChangeAnswer.STALE_CONFIG: "Look at the present members (`rk tablet show`), then decide again.",
    ChangeAnswer.PENDING: "Repeat the command in a moment.",
    ChangeAnswer.NOT_SETTLED: "Repeat the command in a moment.",
    ChangeAnswer.NOT_LEADER: "The leader has just changed: repeat the command.",
    ChangeAnswer.LEADS: "`rk tablet leader-step-down` moves the leadership first.",
    ChangeAnswer.UNSAFE: "Start the servers of the other members first; `rk tablet show` shows which are missing.",
}


class FoundTablet(NamedTuple):
    """A tablet with the leader's own view."""

    region_id: str
    leader: ServerRecord
    own: OwnReplica
    servers: Sequence[ServerRecord]

    def members(self) -> tuple[Member, ...]:
        """Return the committed members."""
        found = self.own.report.leader
        return found.members if found is not None else ()

    def member_on(self, uuid: str, what: str) -> Member:
        """Return the member on a server. Raise NotFoundError."""
        for member in self.members():
            if member.uuid == uuid:
                return member
        raise NotFoundError(
            f"tablet {self.region_id} has no member on {what}", f"`rk tablet show {self.region_id}` shows its members."
        )


def find_leader(cluster: Cluster, name: str) -> FoundTablet:
    """Return the tablet with this name, from its leader. Raise CliError, for example without a leader."""
    found = region_in_store(cluster, name)
    region_id = found.region.region_id
    if not found.region.is_tablet:
        raise CliError(f"{region_id} is no tablet: its table has one copy", "`rk region list` shows where it is open.")
    servers = cluster.servers()
    views = {uuid: own for uuid, own in views_of(servers, region_id).items() if own.report.leader is not None}
    leader = leader_in(views)
    if not leader:
        raise CliError(
            f"no live server leads tablet {region_id}, so nobody can change it",
            f"`rk tablet show {region_id}` shows its members. Repeat the command after an election (1 s).",
        )
    return FoundTablet(region_id, next(one for one in servers if one.uuid == leader), views[leader], servers)


def _ask(server: ServerRecord, message: Any, timeout_s: float) -> ConfigChanged:
    try:
        return ask_server(server, message, ConfigChanged, timeout_s)
    except RpcError as error:
        raise refusal(error, message) from error


def _check(answer: ConfigChanged, region_id: str) -> None:
    """Raise CliError unless the answer is a success."""
    if answer.answer not in (ChangeAnswer.DONE, ChangeAnswer.STARTED):
        raise CliError(f"tablet {region_id} was not changed: {answer.answer.value}: {answer.why}", _hint(answer))


def _hint(answer: ConfigChanged) -> str:
    hint = _HINTS.get(answer.answer, "")
    if answer.answer is ChangeAnswer.STALE_CONFIG:
        hint = f"The committed configuration is {answer.config_id}. {hint}"
    return hint


@click.command("leader-step-down")
@click.argument(
    "name",
    metavar="TABLET",
    shell_complete=complete.regions,
)
@click.option(
    "--to",
    "to_name",
    shell_complete=complete.servers,
    default="",
    metavar="SERVER",
    help="The next leader.  [default: the longest log]",
)
@wait_option(10.0)
@click.option("--dry-run", is_flag=True, help="Only show which server leads and which would.")
@global_options
@click.pass_obj
def leader_step_down(given: Globals, name: str, to_name: str, wait_s: float, dry_run: bool) -> None:
    """Hand the leadership of TABLET over to another voter, and wait until that one leads.

    Writes wait meanwhile, for some milliseconds. If the next leader does not take over within a second, the leader
    stays.

    TABLET is an id, a prefix of one, or TABLE:KEY for the tablet that holds a key.
    """
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        found = find_leader(cluster, name)
        to = found.member_on(names.find(to_name).uuid, to_name).number if to_name else 0
        before = names.of_uuid(found.leader.uuid)
        report = {"tablet": found.region_id, "from": found.leader.uuid, "to_number": to, "dry_run": dry_run}
        goal = f"{to_name}, number {to}" if to else "the voter with the longest log"
        if dry_run:
            output.report(report, f"would hand {found.region_id} over: {before} -> {goal}", as_json=given.json)
            return
        answer = _ask(found.leader, TransferLeadership(found.region_id, found.leader.uuid, to), _GRACE_S)
        _check(answer, found.region_id)
        if answer.answer is ChangeAnswer.DONE:
            output.report(
                {**report, "after": found.leader.uuid}, f"{before} leads {found.region_id} already", as_json=given.json
            )
            return
        after = _wait_for_leader(cluster, found, wait_s)
        text = f"{found.region_id}: {before} -> {names.of_uuid(after)}"
        output.report({**report, "after": after}, text, as_json=given.json)


def _wait_for_leader(cluster: Cluster, found: FoundTablet, wait_s: float) -> str:
    """Return the server that leads in a later term. Raise CliError if the former leader leads on."""
    limit_each_wait()
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            now = find_leader(cluster, found.region_id)
        except NotFoundError:
            raise
        except CliError:
            now = None
        if now is not None and now.own.report.term > found.own.report.term:
            return now.leader.uuid
        if time.monotonic() >= deadline_s:
            raise CliError(
                f"the leadership of tablet {found.region_id} has not moved within {wait_s:g} s",
                f"`rk tablet show {found.region_id}` shows whether the other members keep up.",
            )
        time.sleep(_LOOK_S)


@click.command("change-config")
@click.argument("change", type=click.Choice(["add", "remove", "promote", "demote"]))
@click.argument(
    "name",
    metavar="TABLET",
    shell_complete=complete.regions,
)
@click.argument("server_name", metavar="SERVER", shell_complete=complete.servers)
@click.option("--role", type=click.Choice(["voter", "learner"]), default="learner", help="With add: a learner is kept.")
@click.option("--expect", default="", metavar="TERM.INDEX", help="Only if this is the committed configuration.")
@wait_option(10.0)
@click.option("--dry-run", is_flag=True, help="Only show what would be changed.")
@global_options
@click.pass_obj
def change_config(
    given: Globals, change: str, name: str, server_name: str, role: str, expect: str, wait_s: float, dry_run: bool
) -> None:
    """Change the member of TABLET on SERVER, and wait until a majority has the new configuration.

    add: the masters keep a learner there, a copy that does not vote, until it is removed. remove: the server is not a
    member any more. promote: a learner becomes a voter when it has caught up. demote: a voter becomes a learner. One
    member changes at a time; the leader refuses what would leave no live majority. The masters restore the number of
    voters that the table wants.

    TABLET is an id, a prefix of one, or TABLE:KEY. SERVER may be the uuid of a server that is gone.
    """
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        if change == "add":
            if role == "voter":
                raise CliError(
                    "a voter more would be removed at once",
                    "`rk table alter TABLE --replicas N` changes their number; `rk tablet move` moves one.",
                )
            want_learner(given, cluster, names, tablet_id(cluster, name), names.find(server_name).uuid, dry_run=dry_run)
            return
        if change == "remove" and is_wanted_learner(cluster, names, name, server_name):
            uuid = uuid_of(cluster, server_name, names)
            want_learner(given, cluster, names, tablet_id(cluster, name), uuid, wanted=False, dry_run=dry_run)
            return
        found = find_leader(cluster, name)
        is_uuid = server_name in {one.uuid for one in found.members()}
        uuid = server_name if is_uuid else names.find(server_name).uuid
        member = found.member_on(uuid, server_name)
        config_id = _config_id(expect) if expect else found.own.report.config_id
        request = ChangeConfig(
            _epoch(cluster),
            found.leader.uuid,
            found.leader.start_code,
            found.region_id,
            config_id,
            ConfigChange(change),
            member.number,
            uuid,
            answer_within_ms=int(wait_s * 1000),
            cluster=cluster.cluster_id(),
        )
        what = f"{change} number {member.number} ({member.role.value}) on {names.of_uuid(uuid)}"
        report: dict[str, Any] = {
            "tablet": found.region_id, "change": change, "number": member.number, "server": uuid,
            "expect": str(config_id), "dry_run": dry_run,
        }  # fmt: skip
        if dry_run:
            output.report(
                report, f"would change {found.region_id}, configuration {config_id}: {what}", as_json=given.json
            )
            return
        answer = _ask(found.leader, request, wait_s + _GRACE_S)
        _check(answer, found.region_id)
    report |= {"answer": answer.answer.value, "config_id": str(answer.config_id), "members": list(answer.members)}
    if answer.answer is ChangeAnswer.STARTED:
        output.report(
            report,
            f"{found.region_id}: {what} is not committed yet; `rk tablet show {found.region_id}`",
            as_json=given.json,
        )
    else:
        output.report(report, f"{found.region_id}: {what}; the configuration is {answer.config_id}", as_json=given.json)


def _config_id(text: str) -> ConfigId:
    found = re.fullmatch(r"(\d{1,18})\.(\d{1,18})", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no TERM.INDEX, for example 4.1310", param_hint="--expect")
    return ConfigId(int(found[1]), int(found[2]))


def _epoch(cluster: Cluster) -> int:
    """Return the epoch of the active master, which servers demand of every order: the version of its znode."""
    found = cluster.get_versions([cluster.layout.epoch])
    if not found:
        raise CliError("no master has ever been active in this cluster", "`rk status` shows the masters.")
    return found[0][2]
