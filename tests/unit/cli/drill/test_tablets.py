"""Tablets in drills: leaders, gaps and whole tablets, from records and from the servers' own answers."""

from __future__ import annotations

import msgspec

from cli.drill.load import LoadOperation
from cli.drill.tablets import (
    LeadingServer,
    changed_members,
    check_gaps,
    check_tablets,
    leaders_of,
    longest_gaps,
    members_on,
)
from regions.messages import OwnReplica
from regions.messages.heartbeat import ReplicaState, TabletReport, TabletRole
from regions.records.members import Member
from regions.records.model import RegionRecord

RECORD = RegionRecord("t", "t.0", members=tuple(Member(number, f"s{number}") for number in (1, 2, 3)), next_number=4)
RECORDS = {"t.0": RECORD}


def replica(
    number: int,
    role: TabletRole = TabletRole.FOLLOWER,
    *,
    term: int = 2,
    applied: int = 7,
    state: ReplicaState = ReplicaState.RUNNING,
) -> OwnReplica:
    return OwnReplica(TabletReport("t.0", "t", number, state, term=term, role=role, applied_index=applied))


def views(*replicas: OwnReplica) -> dict[str, list[OwnReplica] | None]:
    return {f"s{one.report.number}": [one] for one in replicas}


WHOLE = views(replica(1), replica(2, TabletRole.LEADER), replica(3))


def test_the_highest_term_leads_and_a_silent_server_leads_nothing() -> None:
    seen = views(replica(1, TabletRole.LEADER, term=2), replica(2, TabletRole.LEADER, term=3))
    assert leaders_of({**seen, "s3": None}) == {"t.0": LeadingServer("s2", 3)}
    assert leaders_of({"s1": None}) == {}


def test_a_tablet_is_whole() -> None:
    assert check_tablets(RECORDS, WHOLE) == []


def test_what_a_tablet_lacks_is_named() -> None:
    missing = {**WHOLE, "s3": []}
    assert check_tablets(RECORDS, missing) == ["t.0: the replica of member 3 is missing"]
    failed = {**WHOLE, **views(replica(3, state=ReplicaState.FAILED))}
    assert check_tablets(RECORDS, failed) == ["t.0: the replica of member 3 is FAILED"]
    silent = {**WHOLE, "s2": None}
    assert check_tablets(RECORDS, silent)[0] == "t.0 has 0 leaders in term 2"
    late = {**WHOLE, **views(replica(1, applied=6))}
    assert check_tablets(RECORDS, late) == ["t.0: the replicas have applied different entries: [6, 7]"]


def test_a_leader_of_an_old_term_is_no_second_leader() -> None:
    assert check_tablets(RECORDS, {**WHOLE, **views(replica(1, TabletRole.LEADER, term=1))}) == []
    assert check_tablets(RECORDS, {**WHOLE, **views(replica(1, TabletRole.LEADER))}) == ["t.0 has 2 leaders in term 2"]


def operation(began_s: float, ended_s: float, outcome: str = "ok", tablet: str = "t.0") -> LoadOperation:
    return LoadOperation(tablet, "read", began_s, ended_s, outcome, 1)


def test_a_gap_is_the_longest_wait_without_an_answer_to_anybody() -> None:
    waits = [operation(1.0, 1.1), operation(2.0, 2.5), operation(2.4, 2.6), operation(1.0, 9.0, tablet="shared")]
    gaps = longest_gaps(waits, ["t.0", "t.1"], 0.0)
    assert gaps == {"t.0": 0.5, "t.1": 0.0}
    assert check_gaps(gaps, 0.5).held
    broken = check_gaps(gaps, 0.4)
    assert not broken.held
    assert broken.examples == ["t.0 was silent for 0.500 s"]


def test_slow_answers_one_after_the_other_are_no_long_gap() -> None:
    answers = [operation(0.0, 0.75), operation(0.5, 1.5), operation(0.5, 2.25)]
    assert longest_gaps(answers, ["t.0"], 0.0) == {"t.0": 0.75}


def test_a_gap_begins_with_a_failed_operation_and_ends_after_the_fault() -> None:
    failed = [operation(1.0, 2.0, "unknown"), operation(3.0, 3.5)]
    assert longest_gaps(failed, ["t.0"], 3.0) == {"t.0": 2.5}
    assert longest_gaps(failed, ["t.0"], 4.0) == {"t.0": 0.0}


def test_a_changed_member_is_named() -> None:
    other = msgspec.structs.replace(RECORD, members=(*RECORD.members[:2], Member(4, "s4")), next_number=5)
    assert changed_members(RECORDS, RECORDS) == []
    assert changed_members(RECORDS, {"t.0": other, "t.9": other}) == [
        "t.0: the members were 1 on s1, 2 on s2, 3 on s3 and are 1 on s1, 2 on s2, 4 on s4"
    ]
    assert members_on(RECORDS, "s3") == 1
    assert members_on(RECORDS, "s4") == 0
