"""The operators' view of tablets: every health in its state, since when, and its reason."""

from __future__ import annotations

import msgspec
import pytest

from regions.diagnose import tablets as diagnosis
from regions.diagnose.tablets import HealthSince, by_health, describe, diagnose, fits, problem_lines, ways_out
from regions.messages import MemberHealth, TabletHealth, TabletRole, TabletStatus
from regions.messages.heartbeat import ReplicaState
from regions.records.members import MemberRole
from regions.records.model import TableIntent, TabletState
from regions.replication.effects import marked_replaced
from regions.replication.guards import ReplicaOnDisk
from tests.sim.keeper.faults import remove_voter
from tests.unit.regions.diagnose.tablet_cluster import TabletCluster

T = TabletHealth


@pytest.fixture
def cluster() -> TabletCluster:
    """Return three servers and two tablets, all HEALTHY."""
    made = TabletCluster()
    assert made.health("t.0") is made.health("t.1") is T.HEALTHY
    return made


def status(cluster: TabletCluster, region_id: str = "t.0") -> TabletStatus:
    keeper = cluster.watch.keeper
    return describe(keeper.tablets[region_id], keeper, cluster.watch.standing(region_id), cluster.world.now)


def test_a_healthy_tablet_is_described_with_its_members(cluster: TabletCluster) -> None:
    """Leader, term, config id; role, state, applied entry and lag of each member; and the record's content."""
    found = status(cluster)
    group = cluster.world.groups["t.0"]
    assert (found.table, found.health, found.reason, found.wanted) == ("orders", T.HEALTHY, "", 3)
    assert (found.leader, found.term, found.config_id) == (group.leader, group.term, group.config_id)
    assert (found.record_leader, found.record_term, found.state) == (group.leader, group.term, TabletState.RUNNING)
    assert [(one.number, one.role, one.state, one.is_registered) for one in found.members] == [
        (number, MemberRole.VOTER, ReplicaState.RUNNING, True) for number in (1, 2, 3)
    ]
    assert [one.number for one in found.members if one.raft_role is TabletRole.LEADER] == [group.leader]
    assert all((one.health, one.applied_index) == (MemberHealth.HEALTHY, group.index) for one in found.members)
    assert ways_out(found) == []


def test_one_of_three_servers_dies(cluster: TabletCluster) -> None:
    """UNDER_REPLICATED from then on, with the member and its server; its figures are unknown, not 0."""
    leader = cluster.leader("t.0")
    follower = next(uuid for uuid in cluster.world.machines if uuid != leader)
    cluster.world.stop(cluster.machine(follower))
    killed_ms = cluster.world.now
    cluster.pass_time(5_000)
    found = status(cluster)
    assert found.health is T.UNDER_REPLICATED
    number = next(one.number for one in found.members if one.server == follower)
    assert found.reason == (
        f"2 of 3 voters are healthy; {number} on {follower} is UNKNOWN (its server is not registered)"
    )
    assert 4_000 <= found.for_ms <= cluster.world.now - killed_ms
    assert not found.at_least
    dead = next(one for one in found.members if one.server == follower)
    unreported = (dead.state, dead.raft_role, dead.term, dead.config_id, dead.applied_index, dead.size_bytes)
    assert (dead.is_registered, dead.health, unreported) == (False, MemberHealth.UNKNOWN, (None,) * 6)
    [way] = ways_out(found)
    assert way == f"start server {follower} again, with its own data directory: it holds member {number}"
    assert by_health(cluster.watch.counts) == {"UNDER_REPLICATED": 2}
    cluster.world.start(cluster.machine(follower))
    cluster.pass_time(5_000)
    assert cluster.health() is T.HEALTHY


def test_a_registration_that_ends_is_told_also_of_a_server_that_never_reported(cluster: TabletCluster) -> None:
    """Edit that makes this fail: `Keeper._server_changed` leaves `revision` as it is."""
    keeper = cluster.watch.keeper
    follower = next(uuid for uuid in cluster.world.machines if uuid != cluster.leader("t.0"))
    keeper.tablets["t.0"].view.gone(follower)
    cluster.machine(follower).lives = False
    cluster.pass_time(5_000)
    assert "is UNKNOWN" in cluster.reason()
    assert "its server is not registered" not in cluster.reason()
    keeper.server_down(follower)
    cluster.watch.look(cluster.world.now)
    assert "is UNKNOWN (its server is not registered)" in cluster.reason()


def test_a_leader_dies_and_another_one_leads(cluster: TabletCluster) -> None:
    """UNAVAILABLE only until the next leader reports."""
    leader = cluster.leader("t.0")
    words = []
    cluster.world.stop(cluster.machine(leader))
    for _ in range(25):
        cluster.pass_time(200)
        words.append(cluster.health())
    assert words[-1] is T.UNDER_REPLICATED
    assert T.UNAVAILABLE in words
    assert status(cluster).leader != leader


def test_a_majority_dies(cluster: TabletCluster) -> None:
    """UNAVAILABLE, with the servers; the leader, its term and the members' health are unknown, the other fields are
    not."""
    first, second, third = (cluster.home("t.0", number) for number in (1, 2, 3))
    cluster.world.stop(cluster.machine(first))
    cluster.world.stop(cluster.machine(third))
    cluster.pass_time(5_000)
    found = status(cluster)
    assert found.health is T.UNAVAILABLE
    assert found.reason == (
        f"no leader: 2 of 3 voters are on servers that are not registered, servers {first} and {third}"
    )
    assert (found.leader, found.term) == (None, None)
    assert [one.health for one in found.members] == [None] * 3
    assert [one.state for one in found.members] == [None, ReplicaState.RUNNING, None]
    assert found.members[1].server == second
    lines = problem_lines(cluster.watch, cluster.world.now)
    assert len(lines) == 1
    assert lines[0].startswith("2 tablets are UNAVAILABLE: t.0, t.1; t.0 for ")


def test_a_new_master_waits_for_reports_before_it_says_unavailable(cluster: TabletCluster) -> None:
    """UNKNOWN names the servers; the later HEALTHY holds at least since the takeover."""
    cluster.new_master()
    began_ms = cluster.world.now
    assert cluster.health() is T.UNKNOWN
    assert cluster.reason() == "no leader is known, and servers s0 and s1 and s2 have not reported to this master yet"
    found = status(cluster)
    assert (found.leader, found.config_id, found.members[0].state) == (None, None, None)
    assert cluster.watch.leaders_on(cluster.machine("s0").incarnation) is None
    cluster.pass_time(3_000)
    found = status(cluster)
    assert (found.health, found.at_least) == (T.HEALTHY, True)
    assert found.for_ms == cluster.world.now - began_ms
    assert sum(cluster.watch.leaders_on(one.incarnation) or 0 for one in cluster.world.machines.values()) == 2


def test_what_nobody_wants_open_is_closed(cluster: TabletCluster) -> None:
    """It is not a problem, however many servers are gone."""
    cluster.world.set_intent(TableIntent.DISABLED)
    cluster.pass_time(3_000)
    assert (cluster.health(), cluster.reason()) == (T.CLOSED, "table orders is disabled")
    assert problem_lines(cluster.watch, cluster.world.now) == []
    assert ways_out(status(cluster)) == ["rk table enable orders: if it is to be open again"]


def test_a_tablet_that_waits_for_servers_is_creating() -> None:
    """Not UNAVAILABLE, because no client uses it yet. The reason has the number of missing servers."""
    cluster = TabletCluster(machines=2)
    assert cluster.health() is T.CREATING
    assert cluster.reason() == "its first members are not made yet: 3 servers that take tablets are needed"
    assert status(cluster).members == []


def test_replicas_that_do_not_run_are_named() -> None:
    """For a tablet without a leader, each replica that does not run, and why."""
    cluster = TabletCluster()
    for number, state in ((1, ReplicaState.LOST), (2, ReplicaState.FAILED)):
        home = cluster.machine(cluster.home("t.0", number))
        home.disk["t.0"] = ReplicaOnDisk(number, state)
    cluster.pass_time(2_000)
    assert cluster.health() is T.UNAVAILABLE
    homes = [cluster.home("t.0", number) for number in (1, 2)]
    assert cluster.reason() == f"no replica reports that it leads: 1 on {homes[0]} is LOST; 2 on {homes[1]} is FAILED"
    assert [way.startswith("the log of server") for way in ways_out(status(cluster))] == [True, True]


def test_a_replica_that_is_no_member_is_shown_last(cluster: TabletCluster) -> None:
    """After a change of members, as long as its server reports it."""
    remove_voter(cluster.world, "t.0")
    keeper = cluster.watch.keeper
    keeper.tablets["t.0"].view.fold(
        cluster.machine(cluster.leader("t.0")).incarnation,
        cluster.world.report_of(cluster.machine(cluster.leader("t.0")), "t.0"),
    )
    found = status(cluster)
    assert [one.role for one in found.members] == [MemberRole.VOTER, MemberRole.VOTER, None]
    assert found.members[-1].state is ReplicaState.RUNNING
    cluster.watch.look(cluster.world.now)
    assert "its configuration has 2 voters, 3 are wanted" in cluster.reason()


def test_filters(cluster: TabletCluster) -> None:
    """By table, server and health; without filters every tablet passes."""
    tablet = cluster.watch.keeper.tablets["t.0"]
    assert fits(tablet, T.HEALTHY, table_id="", server="", wanted=[])
    assert fits(tablet, T.HEALTHY, table_id="t", server="s1", wanted=[T.HEALTHY, T.UNKNOWN])
    assert not fits(tablet, T.HEALTHY, table_id="u", server="", wanted=[])
    assert not fits(tablet, T.HEALTHY, table_id="", server="s9", wanted=[])
    assert not fits(tablet, T.HEALTHY, table_id="", server="", wanted=[T.UNAVAILABLE])


def test_tablets_without_news_are_not_judged_again(cluster: TabletCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of ten thousand tablets costs next to nothing without changes."""
    judged: list[str] = []
    real = diagnosis.diagnose
    monkeypatch.setattr(
        diagnosis, "diagnose", lambda tablet, *more: (judged.append(tablet.region_id), real(tablet, *more))[1]
    )
    cluster.watch.look(cluster.world.now)
    assert judged == []
    keeper = cluster.watch.keeper
    record, version = cluster.world.table
    keeper.table_seen(msgspec.structs.replace(record, replication=5), version + 1)
    cluster.watch.look(cluster.world.now)
    assert sorted(judged) == ["t.0", "t.1"]
    assert cluster.reason().startswith("3 of 5 voters are healthy; its configuration has 3 voters")


def test_ticks_look_at_a_part_of_the_tablets_each(cluster: TabletCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tablets take turns, so that ten thousand cause no long pause."""
    monkeypatch.setattr(diagnosis, "LOOKS_MAX", 1)
    watch = diagnosis.TabletWatch(cluster.watch.keeper, lambda _: True, cluster.world.now)
    found = []
    for _ in range(3):
        watch.look_on(cluster.world.now)
        found.append(watch.counts[T.HEALTHY])
    assert found == [1, 2, 2]
    cluster.watch.keeper.tablets.clear()
    watch.look_on(cluster.world.now)
    watch.look_on(cluster.world.now)
    assert (by_health(watch.counts), watch.listed) == ({}, set())


def test_counts_follow_every_change(cluster: TabletCluster) -> None:
    """By health, by table, and by server; removed tablets are not counted any more."""
    watch, keeper = cluster.watch, cluster.watch.keeper
    assert (by_health(watch.counts), watch.by_table["t"][T.HEALTHY]) == ({"HEALTHY": 2}, 2)
    assert dict(watch.members) == {"s0": 2, "s1": 2, "s2": 2}
    del keeper.tablets["t.1"]
    watch.look(cluster.world.now)
    assert (by_health(watch.counts), watch.members["s0"], watch.leaders.total()) == ({"HEALTHY": 1}, 1, 1)
    del keeper.tablets["t.0"]
    watch.look(cluster.world.now)
    assert (by_health(watch.counts), watch.by_table) == ({}, {})


def test_a_tablet_that_was_split_has_no_members_and_needs_nothing(cluster: TabletCluster) -> None:
    """Its replicas stay until its daughters have theirs. To enable the table would open none of them again."""
    keeper = cluster.watch.keeper
    tablet = keeper.tablets["t.0"]
    keeper.region_seen(marked_replaced(tablet.record), tablet.version + 1)
    judgment = diagnose(tablet, keeper, cluster.watch.has_reported)
    found = describe(tablet, keeper, HealthSince(judgment, 0, False), cluster.world.now)
    assert (found.health, found.reason, ways_out(found)) == (T.CLOSED, "it was split or merged", [])
    assert [one.role for one in found.members] == [None] * 3
