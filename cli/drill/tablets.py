"""Tablets in drills: their leaders by the servers' own answers, their longest silence, and whether they are whole.

Servers answer without store and masters, so leaders are found while both are away. `longest_gaps`, `check_gaps` and
`check_tablets` are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from cli.common.connect import Cluster
from cli.common.errors import CliError
from cli.drill.load import LoadOperation
from cli.drill.report import InvariantCheck, check
from cli.tablets.reading import read_replicas
from regions.messages import OwnReplica
from regions.messages.heartbeat import TAKES_PART, TabletRole
from regions.records.model import RegionRecord, ServerRecord, TableIntent, TabletState
from regions.records.znodes import decode_region
from regions.transitions.table_states import VISIBLE

#: Time limit of one server's answer: a frozen server must not stop the search for leaders.
_ASK_TIMEOUT_S: Final = 0.5

#: The servers' own views of their replicas, by uuid; None without an answer.
Views = Mapping[str, Sequence[OwnReplica] | None]


class LeadingServer(NamedTuple):
    """Uuid of the server that leads a tablet, and the term."""

    server: str
    term: int


def running_tablets(cluster: Cluster) -> dict[str, RegionRecord]:
    """Return the records of the tablets that clients use, by id."""
    found: dict[str, RegionRecord] = {}
    for table in cluster.tables():
        if table.is_tablet and table.intent is TableIntent.ENABLED and table.state in VISIBLE:
            regions = cluster.records(cluster.layout.table_regions(table.table_id), decode_region)
            found |= {one.region_id: one for one in regions.values() if one.state is TabletState.RUNNING}
    return found


def require_tablets(cluster: Cluster) -> dict[str, RegionRecord]:
    """Return the tablets. Raise CliError if there are none with several members."""
    found = {name: one for name, one in running_tablets(cluster).items() if len(one.members) > 1}
    if not found:
        raise CliError(
            "the cluster has no tablets with several replicas",
            "Create a table: rk table create NAME --replicas 3 --regions 40 --from FILE.csv",
        )
    return found


def members_on(tablets: Mapping[str, RegionRecord], uuid: str) -> int:
    """Return the number of replicas of tablets that a server has."""
    return sum(member.uuid == uuid for record in tablets.values() for member in record.members)


def leaders(servers: Sequence[ServerRecord]) -> dict[str, LeadingServer]:
    """Return the leader of each tablet by the answers of `servers`; a server without an answer leads nothing."""
    return leaders_of(read_replicas(servers, timeout_s=_ASK_TIMEOUT_S))


def leaders_of(views: Views) -> dict[str, LeadingServer]:
    """Return for each tablet the leader in the highest term. Pure."""
    found: dict[str, LeadingServer] = {}
    for server, replicas in views.items():
        for one in replicas or ():
            report = one.report
            if (
                report.role is TabletRole.LEADER
                and report.term > found.get(report.region_id, LeadingServer("", -1)).term
            ):
                found[report.region_id] = LeadingServer(server, report.term)
    return found


def longest_gaps(operations: Iterable[LoadOperation], tablets: Iterable[str], since_s: float) -> dict[str, float]:
    """Return for each tablet the longest time, in seconds, in which a client waited and no client got an answer. Pure.

    Gaps that ended before `since_s` do not count. Failed operations are not answers.
    """
    found = dict.fromkeys(tablets, 0.0)
    answered_s: dict[str, float] = {}
    waiting_s: dict[str, float] = {}
    for one in sorted(operations, key=lambda operation: operation.ended_s):
        tablet = one.region_id
        if tablet not in found:
            continue
        waiting_s[tablet] = min(waiting_s.get(tablet, one.began_s), one.began_s)
        if one.outcome == "ok":
            began_s = max(waiting_s.pop(tablet), answered_s.get(tablet, 0.0))
            answered_s[tablet] = one.ended_s
            if one.ended_s >= since_s:
                found[tablet] = max(found[tablet], one.ended_s - began_s)
    return found


def check_gaps(gaps: Mapping[str, float], most_s: float) -> InvariantCheck:
    """Check that no tablet left its clients without an answer for longer than `most_s`. Pure."""
    late = sorted(((seconds, tablet) for tablet, seconds in gaps.items() if seconds > most_s), reverse=True)
    longest_s = max(gaps.values(), default=0.0)
    return check(
        f"no tablet silent for longer than {most_s:g} s",
        [f"{tablet} was silent for {seconds:.3f} s" for seconds, tablet in late],
        f"longest {longest_s:.3f} s of {len(gaps)} tablets",
    )


def check_tablets(records: Mapping[str, RegionRecord], views: Views) -> list[str]:
    """Return why tablets are not whole. A whole tablet has one leader, and every member runs and has applied the same
    entries. Pure."""
    by_tablet: dict[str, dict[tuple[str, int], OwnReplica]] = {name: {} for name in records}
    for server, replicas in views.items():
        for one in replicas or ():
            if one.report.region_id in by_tablet:
                by_tablet[one.report.region_id][server, one.report.number] = one
    found: list[str] = []
    for name, record in records.items():
        mine = by_tablet[name]
        running = [one for one in mine.values() if one.report.state in TAKES_PART]
        term = max((one.report.term for one in running), default=0)
        leading = sum(one.report.role is TabletRole.LEADER and one.report.term == term for one in running)
        if leading != 1:
            found.append(f"{name} has {leading} leaders in term {term}")
        for member in record.members:
            replica = mine.get((member.uuid, member.number))
            if replica is None or replica.report.state not in TAKES_PART:
                state = "missing" if replica is None else replica.report.state.value
                found.append(f"{name}: the replica of member {member.number} is {state}")
        applied = {one.report.applied_index for one in running}
        if len(applied) > 1:
            found.append(f"{name}: the replicas have applied different entries: {sorted(applied)}")
    return found


def changed_members(before: Mapping[str, RegionRecord], after: Mapping[str, RegionRecord]) -> list[str]:
    """Return the tablets whose members are others than before. Pure."""
    return [
        f"{name}: the members were {_numbers(before[name])} and are {_numbers(record)}"
        for name, record in after.items()
        if name in before and before[name].members != record.members
    ]


def check_unmoved(before: Mapping[str, RegionRecord], after: Mapping[str, RegionRecord]) -> InvariantCheck:
    """Check that the members of all tablets are the same as before. Pure."""
    return check("no tablet has moved", changed_members(before, after), f"members of {len(before)} tablets")


def _numbers(record: RegionRecord) -> str:
    return ", ".join(f"{one.number} on {one.uuid[:8]}" for one in record.members)
