"""The health of a tablet: every value, and their precedence."""

from __future__ import annotations

import msgspec

from regions.messages.heartbeat import LeaderReport, MemberHealth, MemberReport, ReplicaState, TabletReport, TabletRole
from regions.records.members import ConfigId, Member, MemberRole
from regions.records.model import Incarnation
from regions.replication.config import first_members
from regions.replication.health import TabletHealth, judge
from regions.replication.reports import TabletView

MEMBERS = first_members(["a", "b", "c"])
CONFIG = ConfigId(2, 7)
UUIDS = "abc"


def leader(
    healthy: tuple[int, ...] = (2, 3), members: tuple[Member, ...] = MEMBERS, config: ConfigId = CONFIG
) -> TabletReport:
    """Return the report of number 1 as leader."""
    states = [
        MemberReport(one.number, MemberHealth.HEALTHY if one.number in healthy else MemberHealth.UNKNOWN)
        for one in members
        if one.number != 1
    ]
    return TabletReport(
        "r", "t", 1, ReplicaState.RUNNING, 2, TabletRole.LEADER, config, applied_index=20,
        leader=LeaderReport(members, tuple(states)),
    )  # fmt: skip


def follower(number: int, config: ConfigId = CONFIG, applied: int = 20) -> TabletReport:
    """Return the report of a replica that follows."""
    return TabletReport("r", "t", number, ReplicaState.RUNNING, 2, TabletRole.FOLLOWER, config, applied_index=applied)


def view_of(*reports: TabletReport) -> TabletView:
    """Return all reports, each from the server of its number."""
    view = TabletView()
    for one in reports:
        view.fold(Incarnation(UUIDS[one.number - 1] if one.number < 4 else "d", 1), one)
    return view


def health(view: TabletView, wanted: int = 3) -> TabletHealth:
    """Return the health without the reason."""
    return judge(view, wanted).health


def test_a_tablet_at_rest_is_healthy() -> None:
    """Also while a follower does not know the latest configuration, or knows it before its leader reports."""
    assert judge(view_of(leader(), follower(2), follower(3)), 3) == (TabletHealth.HEALTHY, "")
    assert health(view_of(leader(), follower(2, ConfigId(1, 1), applied=5))) is TabletHealth.HEALTHY
    assert health(view_of(leader(), follower(2, ConfigId(2, 30), applied=30))) is TabletHealth.HEALTHY


def test_without_a_leader_or_a_majority_it_is_unavailable() -> None:
    """The leader counts itself; it does not count members from which it has received nothing."""
    assert judge(view_of(), 3).reason == "no leader has reported to this master"
    assert health(view_of(follower(2), follower(3))) is TabletHealth.UNAVAILABLE
    assert judge(view_of(leader(healthy=())), 3) == (TabletHealth.UNAVAILABLE, "the leader, 1, reaches 1 of 3 voters")
    assert health(view_of(leader(healthy=(2,)))) is TabletHealth.UNDER_REPLICATED


def test_fewer_voters_than_wanted() -> None:
    """A dead voter, or a configuration that was begun with two."""
    assert judge(view_of(leader(healthy=(3,))), 3) == (TabletHealth.UNDER_REPLICATED, "2 of 3 voters are healthy")
    assert health(view_of(leader(members=MEMBERS[:2])), wanted=3) is TabletHealth.UNDER_REPLICATED
    assert health(view_of(leader(members=MEMBERS[:2])), wanted=1) is TabletHealth.HEALTHY


def test_a_member_that_catches_up() -> None:
    """A PRE_VOTER, or a copy that its server reports."""
    joining = (*MEMBERS, Member(4, "d", MemberRole.PRE_VOTER))
    assert judge(view_of(leader(members=joining)), 3) == (TabletHealth.RECOVERING, "4 catches up")
    copying = msgspec.structs.replace(follower(3), state=ReplicaState.COPYING)
    assert judge(view_of(leader(healthy=(2,)), copying), 3) == (TabletHealth.RECOVERING, "3 is being copied")


def test_replicas_that_contradict_each_other() -> None:
    """CONSENSUS_MISMATCH has precedence over RECOVERING and UNDER_REPLICATED: it shows a bug or a copied directory."""
    past = follower(2, ConfigId(1, 1), applied=7)
    found = judge(view_of(leader(healthy=(3,)), past), 3)
    assert found == (TabletHealth.CONSENSUS_MISMATCH, "2 has configuration 1.1, the leader 2.7")
    copied = view_of(leader())
    copied.fold(Incarnation("z", 1), follower(2))
    assert judge(copied, 3).reason == "member 2 is on b, and z claims that number"
    rivals = view_of(leader())
    second = msgspec.structs.replace(leader(), number=2)
    rivals.fold(Incarnation("b", 1), second)
    assert judge(rivals, 3).reason == "1 and 2 both claim to lead in term 2"
