"""Orders and reports of tablets on the wire, beside builds without tablets."""

from __future__ import annotations

import msgspec

from regions.messages import (
    CloseOrder,
    ClosePurpose,
    Heartbeat,
    LeaderReport,
    MemberEndpoint,
    MemberHealth,
    MemberReport,
    OpenOrder,
    OwnReplica,
    ReplicaList,
    ReplicaState,
    ServerReply,
    ServerRequest,
    ShowReplicas,
    TabletClosing,
    TabletOpening,
    TabletReport,
    TabletRole,
)
from regions.messages.heartbeat import Report
from regions.records.members import ConfigId, Member, MemberRole
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord

MEMBERS = (Member(1, "a"), Member(2, "b", MemberRole.PRE_VOTER))
LEADER = TabletReport(
    "t.0001", "t", 1, ReplicaState.RUNNING, 7, TabletRole.LEADER, ConfigId(6, 40), 2, 99, 4096, 1.5,
    leader=LeaderReport(MEMBERS, (MemberReport(2, MemberHealth.UNKNOWN, 12, "silent for 400 ms"),)),
)  # fmt: skip
FOLLOWER = TabletReport("t.0001", "t", 2, ReplicaState.FAILED, 6, reason="row of page 3 is damaged")


def test_a_report_comes_back_as_it_was() -> None:
    """A leader's report with its configuration, a follower's without."""
    beat = Heartbeat("c", Incarnation("a", 3), 1, report=Report(tablets=[LEADER, FOLLOWER], gone=["t.0002-1"]))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(beat), type=Heartbeat)
    assert again == beat
    assert again.report is not None
    assert [(one.key, one.leads) for one in again.report.tablets] == [("t.0001-1", True), ("t.0001-2", False)]


def test_a_thousand_followers_fit_into_little() -> None:
    """A full report of a server with a thousand tablets is small: less than a hundred bytes each."""
    reports = [msgspec.structs.replace(FOLLOWER, region_id=f"3f2a11c0.{one:04x}", reason="") for one in range(1000)]
    assert len(msgspec.msgpack.encode(Report(tablets=reports))) < 100_000


def test_orders_come_back_as_they_were() -> None:
    """OPEN with the first configuration, CLOSE with its purpose."""
    region = RegionRecord("t", "t.0001", members=MEMBERS, next_number=3)
    addresses = (MemberEndpoint(1, "a", "10.0.0.1", 7001), MemberEndpoint(2, "b", "10.0.0.2", 7001))
    transition = TransitionRecord("t.0001", "t", 1, RegionState.OFFLINE)
    opening = OpenOrder(transition, 0, region, 4, tablet=TabletOpening(addresses, must_exist=True))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(opening), type=OpenOrder) == opening
    closing = CloseOrder("t.0001", "t", 1, tablet=TabletClosing(ClosePurpose.TOMBSTONE, ConfigId(6, 40)))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(closing), type=CloseOrder) == closing


def test_what_shared_regions_send_is_as_it_was() -> None:
    """Older builds receive no unknown field."""
    region = RegionRecord("t", "r")
    order = OpenOrder(TransitionRecord("r", "t", 0, RegionState.OFFLINE), 0, region, 4)
    assert "tablet" not in msgspec.to_builtins(order)
    assert "tablet" not in msgspec.to_builtins(CloseOrder("r", "t", 0))
    assert "tablets" not in msgspec.to_builtins(Report(gone=["r-0"]))
    assert set(msgspec.to_builtins(region)) == {"table_id", "region_id"}


def test_a_replicas_own_view_comes_back_as_it_was() -> None:
    """With its configuration, and whether it knows that the configuration is committed."""
    leading = OwnReplica(LEADER, MEMBERS, ConfigId(6, 40), 1, 99, 98)
    pending = OwnReplica(msgspec.structs.replace(LEADER, config_id=ConfigId(6, 12)), MEMBERS, ConfigId(6, 40))
    closed = OwnReplica(FOLLOWER)
    reply = ReplicaList("a", 3, [leading, pending, closed], next="t.0001")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=ServerReply) == reply
    assert [one.is_committed for one in reply.replicas] == [True, False, True]
    assert closed.members is None
    asked = ShowReplicas("a", ["t.0001"], "t.0000", 10)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=ServerRequest) == asked
