"""`rk tablet verify`: whether all members of a tablet have the same rows.

The command asks the servers of the members themselves: it works while all masters are away.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import click

from cli.common import output
from cli.common.asking.servers import ask_server, ask_servers
from cli.common.connect import open_cluster
from cli.common.errors import CliError
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.shell import complete
from cli.tablets.members import FoundTablet, find_leader
from coord.rpc.wire import RpcError
from regions.records.members import Member, MemberRole
from regions.records.model import ServerRecord
from regionserver.tablets.digests.judge import DigestJudgment, Verdict, judge
from regionserver.tablets.digests.messages import AskedDigest, DigestList, ReplicaDigest, ShowDigests

#: Deadline of a server's answer. The server waits for its rows for up to 2 s.
_TIMEOUT_S: Final = 10.0
#: Number of rounds of questions for digests at one entry, and the pause between them. Under writes a member may pass
#: the entry before the question arrives.
_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.3


class Compared(NamedTuple):
    """The digests of a tablet's members after one entry, by number. Members without one are missing."""

    entry: int
    found: dict[int, bytes]


@click.command()
@click.argument("name", metavar="TABLET", shell_complete=complete.regions)
@global_options
@click.pass_obj
def verify(given: Globals, name: str) -> None:
    """Compare the rows of all members of TABLET: their digests after one entry of the log.

    Exit status 1 if a member differs, or does not answer. Leaders do the same every 1,000 entries. They quarantine a
    member that differs from a majority, and copy it again; without a majority the operator must choose.

    TABLET is an id, a prefix of one, or TABLE:KEY.
    """
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        tablet = find_leader(cluster, name)
    compared = _compare(tablet)
    members = tablet.members()
    voters = [one.number for one in members if one.role in (None, MemberRole.VOTER)]
    judgment = judge(compared.found, voters)
    missing = [one for one in members if one.number not in compared.found]
    if given.json:
        output.print_json(_report(tablet.region_id, compared, judgment, missing))
    else:
        _show(tablet.region_id, compared, judgment, members, names)
    _check(tablet.region_id, compared, judgment, missing, names)


def _compare(tablet: FoundTablet) -> Compared:
    """Return the digests of as many members as possible after one entry."""
    best = Compared(0, {})
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S)
        first = _ask(tablet.leader, tablet.region_id, 0)
        if first is None:
            continue
        shown = _ask_all(tablet, first.last)
        found = _in_common(shown)
        if len(found.found) > len(best.found):
            best = found
        if len(best.found) == len(tablet.members()):
            break
        if len(found.found) == len(shown) and attempt:
            break  # the others do not answer
    return best


def _ask_all(tablet: FoundTablet, index: int) -> dict[int, ReplicaDigest]:
    """Return the answers of the members by number."""
    homes = {one.uuid: one.number for one in tablet.members()}
    asked = [one for one in tablet.servers if one.uuid in homes]
    answers = ask_servers(asked, lambda server: _ask(server, tablet.region_id, index))
    return {one.number: one for uuid, one in answers.items() if one is not None and one.number == homes[uuid]}


def _ask(server: ServerRecord, region_id: str, index: int) -> ReplicaDigest | None:
    request = ShowDigests(server.uuid, [AskedDigest(region_id, index)])
    try:
        answer = ask_server(server, request, DigestList, _TIMEOUT_S)
    except RpcError:
        return None
    return answer.digests[0] if answer.digests else None


def _in_common(shown: Mapping[int, ReplicaDigest]) -> Compared:
    """Return the digests after the entry for which most members have one, the latest of these entries."""
    known = {number: dict(one.digests) for number, one in shown.items()}
    entries = {index for digests in known.values() for index in digests}
    best = max(entries, key=lambda index: (sum(index in one for one in known.values()), index), default=0)
    return Compared(best, {number: digests[best] for number, digests in known.items() if best in digests})


def _word(number: int, compared: Compared, judgment: DigestJudgment) -> str:
    if number not in compared.found:
        return "not compared"
    if judgment.verdict is Verdict.UNDECIDED:
        return "no majority"
    return "DIFFERS" if number in judgment.differing else "equal"


def _show(
    region_id: str, compared: Compared, judgment: DigestJudgment, members: Sequence[Member], names: Names
) -> None:
    rows = []
    for one in members:
        word = _word(one.number, compared, judgment)
        digest = compared.found.get(one.number)
        rows.append((one.number, names.of_uuid(one.uuid), "?" if digest is None else digest.hex(), word))
    console = output.console()
    console.print(output.table("", ["#number", "server", "digest", ""], rows))
    if judgment.verdict is Verdict.EQUAL and len(compared.found) == len(members):
        console.print(f"all {len(members)} members of {region_id} have the same rows after entry {compared.entry}")


def _report(
    region_id: str, compared: Compared, judgment: DigestJudgment, missing: Sequence[Member]
) -> dict[str, object]:
    return {
        "region_id": region_id,
        "index": compared.entry,
        "verdict": judgment.verdict.value,
        "digests": {str(number): digest.hex() for number, digest in compared.found.items()},
        "differing": list(judgment.differing),
        "missing": [one.number for one in missing],
    }


def _check(
    region_id: str, compared: Compared, judgment: DigestJudgment, missing: Sequence[Member], names: Names
) -> None:
    """Raise CliError unless all members were compared and are equal."""
    if judgment.verdict is Verdict.UNDECIDED:
        raise CliError(
            f"members of {region_id} differ after entry {compared.entry}, and no majority agrees",
            "Decide which member is right, then copy the others anew: rk tablet copy TABLET --to SERVER --from SERVER.",
        )
    if judgment.verdict is Verdict.DIFFERS:
        named = ", ".join(str(number) for number in judgment.differing)
        raise CliError(
            f"member {named} of {region_id} differs from a majority after entry {compared.entry}",
            "The leader quarantines it at its next comparison; `rk tablet copy` copies it anew at once.",
        )
    if missing:
        named = ", ".join(f"{one.number} on {names.of_uuid(one.uuid)}" for one in missing)
        raise CliError(
            f"not all members of {region_id} could be compared: {named}", "`rk tablet show` shows why they do not run."
        )
