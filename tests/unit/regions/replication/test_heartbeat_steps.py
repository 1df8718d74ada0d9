"""HB-15 for tablets: each row of the table, and the order of the rows."""

from __future__ import annotations

import msgspec
import pytest

from regions.messages.heartbeat import LeaderReport, ReplicaState, TabletReport, TabletRole
from regions.messages.server import ClosePurpose
from regions.records.members import ConfigId, Member
from regions.records.model import RegionRecord, TableIntent, TableRecord, TableState, TabletState
from regions.replication.config import first_members
from regions.replication.heartbeat_steps import STEPS, Facts, ReportAction, closing, steps_for, updated

MEMBERS = first_members(["a", "b", "c"])
TABLE = TableRecord("t", "orders", schema_version=4, replication=3)
REGION = RegionRecord("t", "r", members=MEMBERS, next_number=4, config_term=1, config_index=3, leader=1, leader_term=2)
CREATING = msgspec.structs.replace(REGION, state=TabletState.CREATING, leader=0, leader_term=0)
FOLLOWER = TabletReport("r", "t", 2, ReplicaState.RUNNING, 2, TabletRole.FOLLOWER, ConfigId(1, 3), 4)
LEADER = TabletReport(
    "r", "t", 1, ReplicaState.RUNNING, 2, TabletRole.LEADER, ConfigId(1, 3), 4, leader=LeaderReport(MEMBERS)
)
#: The record gave number 4 out, and does not have the configuration in which 4 leads.
REGION_OF_FOUR = msgspec.structs.replace(REGION, next_number=5)
NEWCOMER = TabletReport(
    "r", "t", 4, ReplicaState.RUNNING, 3, TabletRole.LEADER, ConfigId(2, 9), 4,
    leader=LeaderReport((*MEMBERS[:2], Member(4, "d"))),
)  # fmt: skip
REMOVED = msgspec.structs.replace(TABLE, state=TableState.REMOVED)
A, R = ReportAction, ReplicaState


def with_(report: TabletReport, **fields: object) -> TabletReport:
    """Return the report with other values."""
    return msgspec.structs.replace(report, **fields)


def table_with(**fields: object) -> TableRecord:
    """Return the table with other values."""
    return msgspec.structs.replace(TABLE, **fields)


def actions(
    report: TabletReport,
    region: RegionRecord | None = REGION,
    table: TableRecord | None = TABLE,
    *,
    uuid: str = "",
    in_transition: bool = False,
) -> list[ReportAction]:
    """Return the actions after a report, from the number's own server unless `uuid` says otherwise."""
    home = uuid or {1: "a", 2: "b", 3: "c"}.get(report.number, "d")
    return [step.action for step in steps_for(Facts(home, report, region, table, in_transition))]


CASES = [
    ("a follower at rest", actions(FOLLOWER), []),
    ("a leader at rest", actions(LEADER), [A.APPLIED]),
    ("unknown tablet", actions(LEADER, None), [A.ORPHAN]),
    ("unknown table", actions(LEADER, REGION, None), [A.ORPHAN]),
    ("replaced", actions(LEADER, msgspec.structs.replace(REGION, state=TabletState.REPLACED)), [A.DELETE]),
    ("table removed, rows kept", actions(LEADER, REGION, REMOVED), [A.REST]),
    ("the same, at rest", actions(with_(LEADER, state=R.RESTING), REGION, REMOVED), [A.APPLIED]),
    ("table purged", actions(LEADER, REGION, table_with(state=TableState.REMOVED, purging_ms=5)), [A.DELETE]),
    ("number never given", actions(with_(FOLLOWER, number=4)), [A.READ]),
    ("not a member", actions(with_(FOLLOWER, number=3), REGION_OF_TWO := REGION.with_configuration(
        ConfigId(1, 8), MEMBERS[:2])), [A.TOMBSTONE]),
    ("not a member, newer", actions(with_(FOLLOWER, number=3, config_id=ConfigId(1, 9)), REGION_OF_TWO), [A.READ]),
    ("not a member, tombstone", actions(with_(FOLLOWER, number=3, state=R.TOMBSTONE), REGION_OF_TWO), [A.NOTHING]),
    ("not a member, at work", actions(with_(FOLLOWER, number=3), REGION_OF_TWO, in_transition=True), [A.NOTHING]),
    ("a number on another server", actions(LEADER, uuid="z"), [A.NOTHING]),
    ("disabled", actions(FOLLOWER, REGION, table_with(intent=TableIntent.DISABLED)), [A.REST]),
    ("unassigned", actions(FOLLOWER, msgspec.structs.replace(REGION, unassigned=True)), [A.REST]),
    ("disabled, closing already",
     actions(FOLLOWER, REGION, table_with(intent=TableIntent.DISABLED), in_transition=True), []),
    ("enabled again", actions(with_(FOLLOWER, state=R.RESTING)), [A.OPEN]),
    ("enabled again, opening already", actions(with_(FOLLOWER, state=R.RESTING), in_transition=True), []),
    ("created", actions(LEADER, CREATING), [A.RUNNING, A.LEADER, A.APPLIED]),
    ("created, a follower", actions(FOLLOWER, CREATING), []),
    ("leads anew", actions(with_(LEADER, term=3)), [A.LEADER, A.APPLIED]),
    ("led before", actions(with_(LEADER, term=1)), [A.APPLIED]),
    ("new configuration",
     actions(with_(LEADER, config_id=ConfigId(2, 9), leader=LeaderReport(MEMBERS[:2]))),
     [A.CONFIGURATION, A.NOTHING, A.APPLIED]),
    ("a newcomer leads", actions(NEWCOMER, REGION_OF_FOUR), [A.CONFIGURATION, A.LEADER, A.APPLIED]),
    ("a newcomer leads, elsewhere", actions(NEWCOMER, REGION_OF_FOUR, uuid="z"), [A.NOTHING]),
    ("a newcomer follows", actions(with_(NEWCOMER, role=TabletRole.FOLLOWER, leader=None), REGION_OF_FOUR), [A.READ]),
    ("older configuration",
     actions(with_(LEADER, config_id=ConfigId(1, 2), leader=LeaderReport(MEMBERS[:2]))), [A.NOTHING, A.APPLIED]),
    ("old schema", actions(with_(LEADER, schema_version=3)), [A.ALTER]),
    ("old schema, a follower", actions(with_(FOLLOWER, schema_version=3)), []),
]  # fmt: skip


@pytest.mark.parametrize(("found", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_follows_from_a_report(found: list[ReportAction], wanted: list[ReportAction]) -> None:
    """Each case is one state of the records and one report."""
    assert found == wanted


def test_every_row_decides_a_case() -> None:
    """No earlier row shadows a row."""
    assert {action for case in CASES for action in case[2]} == {step.action for step in STEPS}


def test_all_steps_of_the_source_are_there_in_order() -> None:
    """The caller does 8 and 9 (write, then show)."""
    sources = [part for step in STEPS if step.source for part in step.source.split(", ")]
    assert sources == ["1", "2", "3", "4", "6.3", "5", "6.1", "6.2", "7", "10", "11"]
    first = next(number for number, step in enumerate(STEPS) if not step.ends)
    assert not [step for step in STEPS[first:] if step.ends]


def test_running_only_when_a_leader_has_reported() -> None:
    """DD-05: with its configuration and its leader, in one record."""
    report = with_(LEADER, config_id=ConfigId(1, 4))
    written = updated(CREATING, Facts("a", report, CREATING, TABLE), actions(report, CREATING))
    assert written.state is TabletState.RUNNING
    assert (written.leader, written.leader_term, written.config_id) == (1, 2, ConfigId(1, 4))
    for other in (FOLLOWER, with_(LEADER, leader=None), with_(LEADER, role=TabletRole.CANDIDATE)):
        assert updated(CREATING, Facts("a", other, CREATING, TABLE), actions(other, CREATING)) is CREATING


def test_a_leader_alone_writes_nothing() -> None:
    """Its name is written late, together with another change."""
    report = with_(LEADER, term=9)
    assert updated(REGION, Facts("a", report, REGION, TABLE), actions(report)) is REGION
    later = with_(report, config_id=ConfigId(9, 9), leader=LeaderReport(MEMBERS[:2]))
    written = updated(REGION, Facts("a", later, REGION, TABLE), actions(later))
    assert (written.leader, written.leader_term, written.members) == (1, 9, MEMBERS[:2])


def test_a_close_names_its_purpose_and_configuration() -> None:
    """The server rejects the tombstone if it knows a later configuration that has the number."""
    assert closing(ReportAction.NOTHING, REGION) is None
    order = closing(ReportAction.TOMBSTONE, REGION)
    assert order is not None
    assert (order.purpose, order.config_id) == (ClosePurpose.TOMBSTONE, ConfigId(1, 3))
    assert {closing(action, REGION).purpose for action in (A.DELETE, A.REST)} == {  # type: ignore[union-attr]
        ClosePurpose.DELETE,
        ClosePurpose.REST,
    }
