"""Merging of reports: in any order of arrival, the latest leader's report counts."""

from __future__ import annotations

import itertools

import pytest

from regions.messages.heartbeat import LeaderReport, ReplicaState, TabletReport, TabletRole
from regions.records.members import NO_CONFIG, ConfigId, Member
from regions.records.model import Incarnation
from regions.replication.config import first_members
from regions.replication.reports import TabletView

MEMBERS = first_members(["a", "b", "c"])


def report(
    number: int, term: int = 1, config: ConfigId = NO_CONFIG, members: tuple[Member, ...] | None = None
) -> TabletReport:
    """Return a replica's report; with `members` a leader's."""
    role = TabletRole.FOLLOWER if members is None else TabletRole.LEADER
    leader = None if members is None else LeaderReport(members)
    return TabletReport("r", "t", number, ReplicaState.RUNNING, term, role, config, leader=leader)


REPORTS = [
    (Incarnation("a", 1), report(1, 1, ConfigId(1, 1), MEMBERS)),
    (Incarnation("b", 1), report(2, 2, ConfigId(1, 1), MEMBERS)),
    (Incarnation("c", 1), report(3, 3, ConfigId(3, 9), MEMBERS[1:])),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_arrival_does_not_matter(order: tuple[int, ...]) -> None:
    """Three leaders, one after the other; the last one has removed the first from the configuration."""
    view = TabletView()
    for number in order:
        view.fold(*REPORTS[number])
    assert view.leader is not None
    assert (view.leader.number, view.leader.term, view.leader.config_id) == (3, 3, ConfigId(3, 9))
    assert view.leader_now() == view.leader


def test_an_older_report_says_nothing_new() -> None:
    """A deposed leader continues to report its term."""
    view = TabletView()
    assert view.fold(*REPORTS[1])
    assert not view.fold(*REPORTS[0])
    assert not view.fold(*REPORTS[1])
    assert view.fold(*REPORTS[2])


def test_a_new_leader_without_a_commit_waits() -> None:
    """It may not know yet that its predecessor's configuration has committed."""
    view = TabletView()
    view.fold(*REPORTS[2])
    young = report(2, 4, ConfigId(1, 1), MEMBERS)
    assert not view.fold(Incarnation("b", 1), young)
    assert view.leader is not None
    assert view.leader.number == 3
    assert view.fold(Incarnation("b", 1), report(2, 4, ConfigId(3, 9), MEMBERS[1:]))
    assert view.leader.number == 2


def test_a_leader_that_follows_now_is_no_leader() -> None:
    """Nor does one whose server has restarted, or is gone."""
    view = TabletView()
    view.fold(*REPORTS[0])
    view.fold(Incarnation("a", 1), report(1, 2))
    assert view.leader_now() is None
    view.fold(*REPORTS[1])
    assert view.leader_now() is not None
    view.fold(Incarnation("b", 2), report(2, 2))
    assert view.leader_now() is None
    view.fold(Incarnation("b", 2), report(2, 5, ConfigId(1, 1), MEMBERS))
    assert view.leader_now() is not None
    view.gone("b")
    assert view.leader_now() is None


def test_an_earlier_start_of_a_server_is_not_believed() -> None:
    """Its heartbeat was in flight while the server restarted."""
    view = TabletView()
    view.fold(Incarnation("a", 2), report(1, 3))
    assert not view.fold(*REPORTS[0])
    assert view.replicas["a"].server.start_code == 2
    assert view.leader is None


def test_two_leaders_of_one_term_are_remembered() -> None:
    """A bug, or a copied data directory; the second one changes nothing."""
    view = TabletView()
    view.fold(*REPORTS[0])
    assert not view.fold(Incarnation("b", 1), report(2, 1, ConfigId(1, 1), MEMBERS))
    assert view.rivals == (1, 2)
    assert view.leader is not None
    assert view.leader.number == 1
    view.fold(*REPORTS[1])
    assert view.rivals == (2,)
