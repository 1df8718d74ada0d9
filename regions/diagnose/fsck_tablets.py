"""Compares each server's replicas of tablets with those of the other servers and with the store. Pure.

`rk fsck` asks every server (ShowReplicas), so this works without masters. The replicas' own views fill a keeper that
makes no decisions, and `regions/diagnose/tablets.py` judges the tablets as on the active master. A *matrix* shows one
tablet: a row for the record in the store and one for each replica, with the configuration that each of them has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from regions.cluster.limits import AssignerConfig
from regions.diagnose.fsck import ClusterView, Finding, Problem, check, in_order, make_finding
from regions.diagnose.tablets import diagnose, is_listed, known_members
from regions.messages.heartbeat import HAS_NO_FILES, TAKES_PART, ReplicaState, TabletReport
from regions.messages.tablets import OwnReplica, TabletHealth
from regions.records.members import ConfigId, Member
from regions.records.model import TableState
from regions.records.replica_key import replica_key
from regions.replication.health import Judgment
from regions.replication.keeper import Keeper
from regions.replication.tablet import Tablet

_PROBLEMS: Final = {
    TabletHealth.UNAVAILABLE: Problem.TABLET_UNAVAILABLE,
    TabletHealth.UNKNOWN: Problem.TABLET_UNAVAILABLE,
    TabletHealth.CONSENSUS_MISMATCH: Problem.TABLET_MISMATCH,
    TabletHealth.UNDER_REPLICATED: Problem.TABLET_UNDER_REPLICATED,
    TabletHealth.RECOVERING: Problem.TABLET_UNFINISHED,
    TabletHealth.CREATING: Problem.TABLET_UNFINISHED,
}


class MatrixRow(msgspec.Struct, frozen=True):
    """One view of a tablet's configuration. None: unknown."""

    #: Uuid of the server; "": the record in the store.
    server: str
    #: Number of the server's replica; None if the server has none, or did not answer.
    number: int | None = None
    #: Run state of the replica, "no replica" or "no answer"; state of the record.
    state: str = ""
    members: tuple[Member, ...] | None = None
    #: The leader in this view; 0 if the view has none.
    leader: int = 0
    term: int | None = None
    config_id: ConfigId | None = None
    is_committed: bool | None = None
    applied_index: int | None = None
    reason: str = ""


class TabletMatrix(msgspec.Struct, frozen=True):
    """A tablet with all views of its configuration."""

    region_id: str
    table: str
    health: TabletHealth
    reason: str
    rows: list[MatrixRow]
    start_key: str = ""
    end_key: str = ""
    hash_buckets: int = 0


class TabletCheck:
    """The tablets of one `ClusterView`, judged."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.keeper = keeper_of(view)
        self._own = {(uuid, one.report.region_id): one for uuid, found in view.replicas.items() for one in found or ()}
        #: Listed tablets with their health, by id.
        self.judged: dict[str, Judgment] = {
            region_id: self.judge(self.keeper.tablets[region_id]) for region_id in sorted(self.keeper.tablets)
            if is_listed(self.keeper.tablets[region_id])
        }  # fmt: skip

    def judge(self, tablet: Tablet) -> Judgment:
        """Return a tablet's health, judged from the views of all servers that have answered."""
        found = diagnose(tablet, self.keeper, lambda server: self._view.replicas.get(server.uuid, []) is not None)
        contradiction = "" if found.health is TabletHealth.CLOSED else self._contradiction(tablet)
        return Judgment(TabletHealth.CONSENSUS_MISMATCH, contradiction) if contradiction else found

    def _contradiction(self, tablet: Tablet) -> str:
        """Return a fault that only the replicas' own views can show: one config id with two configurations, or a record
        that is ahead of all replicas."""
        own = {uuid: self._own[uuid, tablet.region_id] for uuid in tablet.view.replicas}
        by_id: dict[ConfigId, tuple[str, tuple[Member, ...]]] = {}
        for uuid, one in sorted(own.items()):
            if one.members is None or not one.is_committed or one.report.state not in TAKES_PART:
                continue
            first, members = by_id.setdefault(one.config_id, (uuid, one.members))
            if sorted(members, key=_number) != sorted(one.members, key=_number):
                return f"{first} and {uuid} have different members in configuration {one.config_id}"
        asked = [one.uuid for one in tablet.record.members]
        if by_id and all(uuid in own for uuid in asked) and max(by_id) < tablet.record.config_id:
            return (
                f"the store has configuration {tablet.record.config_id}, and no replica a later one than {max(by_id)}"
            )
        return ""

    def matrix(self, region_id: str) -> TabletMatrix:
        """Return all views of a tablet."""
        tablet = self.keeper.tablets[region_id]
        judgment = self.judged.get(region_id) or self.judge(tablet)
        record = tablet.record
        servers = dict.fromkeys([one.uuid for one in known_members(tablet)[0]] + [one.uuid for one in record.members])
        servers |= dict.fromkeys(sorted(tablet.view.replicas))
        store = MatrixRow(
            "", None, record.state.value, record.members, record.leader, record.leader_term or None, record.config_id
        )
        rows = [store, *(self._row(uuid, region_id) for uuid in servers)]
        table = tablet.table.record.name
        return TabletMatrix(
            region_id, table, judgment.health, judgment.reason, rows, record.start_key, record.end_key,
            record.hash_buckets,
        )  # fmt: skip

    def _row(self, uuid: str, region_id: str) -> MatrixRow:
        own = self._own.get((uuid, region_id))
        if own is None:
            answered = uuid in self.keeper.servers and self._view.replicas.get(uuid, []) is not None
            return MatrixRow(uuid, state="no replica" if answered else "no answer")
        report = own.report
        runs = report.state in TAKES_PART
        return MatrixRow(
            uuid, report.number, report.state.value, own.members, own.leader, report.term if runs else None,
            own.config_id if own.members is not None else report.config_id if runs else None,
            own.is_committed if own.members is not None else None, report.applied_index if runs else None,
            report.reason,
        )  # fmt: skip

    def unhealthy(self) -> list[str]:
        """Return the ids of the tablets that are neither HEALTHY nor CLOSED, the worst first."""
        order = {health: -at for at, health in enumerate(TabletHealth)}
        order[TabletHealth.UNKNOWN] = order[TabletHealth.UNAVAILABLE]
        order[TabletHealth.CREATING] = order[TabletHealth.RECOVERING]
        bad = [one for one, found in self.judged.items() if found.health in _PROBLEMS]
        return sorted(bad, key=lambda one: (order[self.judged[one].health], one))

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of tablets by health, by the name of their table."""
        found: dict[str, dict[str, int]] = {}
        for region_id, judgment in self.judged.items():
            of_table = found.setdefault(self.keeper.tablets[region_id].table.record.name, {})
            of_table[judgment.health.value] = of_table.get(judgment.health.value, 0) + 1
        return found

    # --- findings -----------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Return the findings about tablets and their replicas."""
        found: list[Finding] = []
        for region_id, judgment in self.judged.items():
            problem = _PROBLEMS.get(judgment.health)
            if problem is not None:
                tablet = self.keeper.tablets[region_id]
                text = f"tablet {region_id} of {tablet.table.record.name} is {judgment.health.value}: {judgment.reason}"
                found.append(make_finding(problem, region_id, text))
        corrupt = {path.rpartition("/")[2] for path, _ in self._view.unreadable}
        for (uuid, region_id), own in sorted(self._own.items()):
            known = self.keeper.tablets.get(region_id)
            if known is not None:
                found += self._of_replica(known, uuid, own.report)
            elif not {region_id, own.report.table_id} & corrupt:
                text = (
                    f"server {uuid} has replica {own.report.key} ({own.report.state.value}) of a tablet that the store"
                )
                found.append(make_finding(Problem.UNKNOWN_REGION, own.report.key, f"{text} does not know"))
        for tablet in self.keeper.tablets.values():
            if is_listed(tablet):
                found += self._missing(tablet)
        return found

    def _of_replica(self, tablet: Tablet, uuid: str, report: TabletReport) -> Iterable[Finding]:
        name = f"replica {report.key} on server {uuid}"
        in_transition = report.number in tablet.work
        table = tablet.table.record
        if not is_listed(tablet):
            is_gone = table.purged_ms or table.purging_ms or table.state is not TableState.REMOVED
            # The replicas of a split tablet stay until its daughters have theirs.
            if is_gone and not in_transition and tablet.region_id not in self._view.parents:
                text = f"{name} is {report.state.value}, and its tablet is gone; the active master has it deleted"
                yield make_finding(Problem.EXTRA_REPLICA, report.key, text)
            return
        members = known_members(tablet)[0]
        if not any(one.number == report.number and one.uuid == uuid for one in members):
            if report.state not in HAS_NO_FILES and not in_transition:
                text = f"{name} is {report.state.value}, and no configuration has it; the active master has it closed"
                yield make_finding(Problem.EXTRA_REPLICA, report.key, text)
            return
        why = f": {report.reason}" if report.reason else ""
        if report.state in HAS_NO_FILES:
            what = "its number is burned" if report.state is ReplicaState.LOST else "its files are in quarantine"
            text = f"{name} is a {report.state.value}, and the configuration has it as a member; {what}{why}"
            yield make_finding(Problem.TOMBSTONE, report.key, text)
        elif report.state is ReplicaState.FAILED:
            yield make_finding(Problem.REPLICA_FAILED, report.key, f"{name} does not run{why or ': no reason given'}")
        elif report.state in TAKES_PART and not tablet.wants_open and not in_transition:
            text = f"{name} takes part, and nothing is about to close it"
            yield make_finding(Problem.NOT_CLOSED, report.key, text)

    def _missing(self, tablet: Tablet) -> Iterable[Finding]:
        for member in known_members(tablet)[0]:
            answer = self._view.replicas.get(member.uuid)
            if answer is None or member.number in tablet.work or (member.uuid, tablet.region_id) in self._own:
                continue
            key = replica_key(tablet.region_id, member.number)
            text = f"server {member.uuid} does not have replica {key}, which is a member of the tablet"
            yield make_finding(Problem.MISSING_REPLICA, key, f"{text}: its disk was lost or replaced")


def _number(member: Member) -> int:
    return member.number


def keeper_of(view: ClusterView) -> Keeper:
    """Return a keeper with the state of the view, which makes no decisions."""
    keeper = Keeper(0, AssignerConfig())
    now = view.now_ms
    for table in view.tables:
        keeper.table_seen(table, 0)
    for regions in view.regions.values():
        for region in regions:
            keeper.region_seen(region, 0)
    for found in view.transitions:
        record = found.record
        if record is not None:
            keeper.transition_seen(record.region_id, record.replica, record, found.version, now)
    for server in view.servers:
        keeper.server_up(server)
        own: list[OwnReplica] = view.replicas.get(server.uuid) or []
        keeper.reported(server.incarnation, [one.report for one in own], [])
    return keeper


def check_all(view: ClusterView) -> tuple[list[Finding], TabletCheck]:
    """Return the findings about shared regions and tablets, in the order of `Problem`, and the judged tablets."""
    tablets = TabletCheck(view)
    return in_order([*check(view), *tablets.findings()]), tablets
