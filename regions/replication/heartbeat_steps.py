"""The actions after one replica's report: the steps of S0's heartbeat (HB-15), as a table. Pure.

`STEPS` is in the order of the source. The rows up to number 4 end the list: if a replica should not exist, or should be
at rest, no other row applies. Of the later rows all that apply are carried out.

Differences from S0:

- A replica that is unknown to the store is not touched (FN-04).
- A removed table's rows can be brought back until their removal begins, so until then its replicas rest.
- A replica outside of the configuration becomes a tombstone, and the order names this configuration.
- A missing member is not replaced here: one policy checks the whole tablet once a second.
- The leader gets the schema and appends it to its log.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from regions.messages.heartbeat import HAS_NO_FILES, TAKES_PART, ReplicaState, TabletReport
from regions.messages.server import ClosePurpose, TabletClosing
from regions.records.members import Member
from regions.records.model import RegionRecord, TableIntent, TableRecord, TableState, TabletState
from regions.replication.config import objection_to_report


class ReportAction(enum.Enum):
    """Reaction of the master to a report."""

    ORPHAN = "name it in status and audit, leave it alone"
    READ = "read the region's record: it is older than the report"
    DELETE = "CLOSE with purpose delete"
    TOMBSTONE = "CLOSE with purpose tombstone"
    REST = "CLOSE with purpose rest"
    OPEN = "OFFLINE towards the same server, then OPEN"
    RUNNING = "the record says RUNNING"
    CONFIGURATION = "the record has the leader's configuration"
    LEADER = "the record names the leader, some time"
    NOTHING = "nothing: the policy decides"
    ALTER = "send the leader the latest schema"
    APPLIED = "count the tablet as altered"


class Facts:
    """A report, with the store's records of its tablet; None for a missing record."""

    __slots__ = ("in_transition", "member", "region", "report", "table", "uuid")

    def __init__(
        self,
        uuid: str,
        report: TabletReport,
        region: RegionRecord | None,
        table: TableRecord | None,
        in_transition: bool = False,
    ) -> None:
        """`in_transition`: the replica has a transition, which has its own table (`recovery.py`)."""
        self.uuid = uuid
        self.report = report
        self.region = region
        self.table = table
        self.in_transition = in_transition
        #: The reported member, from the record's configuration, or from a later one that the replica itself reports as
        #: the leader. A newcomer may lead before any master knows that it is a member.
        self.member: Member | None = None if region is None else region.member(report.number)
        if self.member is None and region is not None and report.leader is not None and _has_new_configuration(self):
            self.member = next((one for one in report.leader.members if one.number == report.number), None)

    @property
    def wants_open(self) -> bool:
        """True if the persisted intents of table and region want the replica to take part."""
        table, region = self.table, self.region
        assert table is not None, "rows are asked in order"
        assert region is not None, "rows are asked in order"
        exists = table.state in (TableState.RUNNING, TableState.ALTERING)
        return exists and table.intent is TableIntent.ENABLED and not region.unassigned


class HeartbeatStep(NamedTuple):
    """One row. `source`: the step of S0, "" for a row that S0 does not have. `ends`: no later row applies."""

    source: str
    when: str
    applies: Callable[[Facts], bool]
    action: ReportAction
    ends: bool


class Judged(NamedTuple):
    """The actions that follow from a report while these facts hold."""

    facts: Facts
    actions: list[ReportAction]

    def rests_on(self, report: TabletReport, region: RegionRecord, table: TableRecord, *, in_transition: bool) -> bool:
        """Return True if report, region, table and transition are those that were decided about.

        Records and reports are replaced, never modified, so identity is enough.
        """
        facts = self.facts
        return (
            facts.report is report
            and facts.region is region
            and facts.table is table
            and facts.in_transition is in_transition
        )


def _is_unknown(facts: Facts) -> bool:
    return facts.region is None


def _has_no_table(facts: Facts) -> bool:
    return facts.table is None


def _is_gone(facts: Facts) -> bool:
    assert facts.region is not None, "rows are asked in order"
    assert facts.table is not None, "rows are asked in order"
    is_purged = facts.table.state is TableState.REMOVED and facts.table.purging_ms > 0
    return is_purged or facts.region.state is TabletState.REPLACED


def _is_newer(facts: Facts) -> bool:
    """Return True if the report is newer than the store's records, which get numbers and configurations later. Such
    records are no reason to close a replica."""
    assert facts.region is not None, "rows are asked in order"
    report, region = facts.report, facts.region
    return facts.member is None and (report.number >= region.next_number or report.config_id > region.config_id)


def _is_no_member(facts: Facts) -> bool:
    return facts.member is None and facts.report.state not in HAS_NO_FILES and not facts.in_transition


def _is_stranger(facts: Facts) -> bool:
    """A number on another server than the one it was given to: a copied data directory. `fsck` names it."""
    return facts.member is None or facts.member.uuid != facts.uuid


def _must_rest(facts: Facts) -> bool:
    return not facts.wants_open and not facts.in_transition and facts.report.state in TAKES_PART


def _must_open(facts: Facts) -> bool:
    return facts.wants_open and not facts.in_transition and facts.report.state is ReplicaState.RESTING


def _is_created(facts: Facts) -> bool:
    assert facts.region is not None, "rows are asked in order"
    return facts.report.leads and facts.region.state in (TabletState.PREPARING, TabletState.CREATING)


def _has_new_configuration(facts: Facts) -> bool:
    report, region = facts.report, facts.region
    assert region is not None, "rows are asked in order"
    if report.leader is None or not report.leads or report.config_id <= region.config_id:
        return False
    return not objection_to_report(region, report.leader.members)


def _leads_anew(facts: Facts) -> bool:
    assert facts.region is not None, "rows are asked in order"
    return facts.report.leads and facts.report.term > facts.region.leader_term


def _is_short(facts: Facts) -> bool:
    assert facts.table is not None, "rows are asked in order"
    leader = facts.report.leader
    return leader is not None and len(leader.members) < facts.table.replication


def _has_old_schema(facts: Facts) -> bool:
    assert facts.table is not None, "rows are asked in order"
    return facts.report.leads and facts.report.schema_version < facts.table.schema_version


def _has_schema(facts: Facts) -> bool:
    assert facts.table is not None, "rows are asked in order"
    return facts.report.leads and facts.report.schema_version >= facts.table.schema_version


_A: Final = ReportAction

# fmt: off
STEPS: Final[tuple[HeartbeatStep, ...]] = (
    #             source    when                                       applies                 action            ends
    HeartbeatStep("1",      "the store does not know the tablet",      _is_unknown,            _A.ORPHAN,        True),
    HeartbeatStep("2",      "the store does not know its table",       _has_no_table,          _A.ORPHAN,        True),
    HeartbeatStep("3",      "its rows are being removed; or REPLACED", _is_gone,               _A.DELETE,        True),
    HeartbeatStep("",       "number or configuration is newer",        _is_newer,              _A.READ,          True),
    HeartbeatStep("4, 6.3", "its number is in no configuration",       _is_no_member,          _A.TOMBSTONE,     True),
    HeartbeatStep("",       "the number belongs to another server",    _is_stranger,           _A.NOTHING,       True),
    HeartbeatStep("",       "it is to stay closed and takes part",     _must_rest,             _A.REST,          True),
    HeartbeatStep("",       "it is to take part and rests",            _must_open,             _A.OPEN,          True),
    HeartbeatStep("5",      "CREATING, and a leader reports (DD-05)",  _is_created,            _A.RUNNING,       False),
    HeartbeatStep("6.1",    "a later configuration has committed",     _has_new_configuration, _A.CONFIGURATION, False),
    HeartbeatStep("6.2",    "it leads in a later term",                _leads_anew,            _A.LEADER,        False),
    HeartbeatStep("7",      "fewer members than wanted",               _is_short,              _A.NOTHING,       False),
    HeartbeatStep("10",     "its schema is not the latest",            _has_old_schema,        _A.ALTER,         False),
    HeartbeatStep("11",     "its schema is the latest",                _has_schema,            _A.APPLIED,       False),
)
# fmt: on


def steps_for(facts: Facts) -> list[HeartbeatStep]:
    """Return the rows that apply to a report, in order. S0's steps 8 and 9 (write, then show) are the caller's."""
    found: list[HeartbeatStep] = []
    for step in STEPS:
        if step.applies(facts):
            found.append(step)
            if step.ends:
                break
    return found


def judged(facts: Facts) -> Judged:
    """Return the actions that follow from a report."""
    return Judged(facts, [step.action for step in steps_for(facts)])


_PURPOSES: Final = {
    ReportAction.DELETE: ClosePurpose.DELETE,
    ReportAction.TOMBSTONE: ClosePurpose.TOMBSTONE,
    ReportAction.REST: ClosePurpose.REST,
}


def closing(action: ReportAction, region: RegionRecord) -> TabletClosing | None:
    """Return the content of a CLOSE order for that action, None for an action that closes nothing."""
    purpose = _PURPOSES.get(action)
    return None if purpose is None else TabletClosing(purpose, region.config_id)


def closing_order(actions: list[ReportAction], region: RegionRecord) -> TabletClosing | None:
    """Return the content of the CLOSE order that follows from a report, None if nothing is to be closed."""
    return next((order for action in actions if (order := closing(action, region)) is not None), None)


def updated(region: RegionRecord, facts: Facts, actions: list[ReportAction]) -> RegionRecord:
    """Return the region's record after a leader's report; this very record if nothing is to be written."""
    report = facts.report
    if ReportAction.CONFIGURATION in actions and report.leader is not None:
        region = region.with_configuration(report.config_id, report.leader.members)
    if ReportAction.RUNNING in actions or (ReportAction.LEADER in actions and region is not facts.region):
        region = msgspec.structs.replace(region, leader=report.number, leader_term=report.term)
    if ReportAction.RUNNING in actions:
        region = msgspec.structs.replace(region, state=TabletState.RUNNING)
    return region


def as_markdown() -> str:
    """Return the table for docs/tablets.md."""
    lines = ["| S0's step | a replica's report | the master | then |", "| --- | --- | --- | --- |"]
    for step in STEPS:
        then = "ends" if step.ends else "goes on"
        lines.append(f"| {step.source or '(ours)'} | {step.when} | {step.action.value} | {then} |")
    return "\n".join(lines) + "\n"
