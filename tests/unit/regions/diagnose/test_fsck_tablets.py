"""fsck of tablets: each kind of damage is planted, found, and judged without a master; the matrix has every view."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from regions.diagnose.fsck import OF_TABLETS, WARNINGS, ClusterView, FoundTransition, Problem, confirmed
from regions.diagnose.fsck_tablets import TabletCheck, check_all
from regions.messages import OwnReplica, TabletHealth
from regions.messages.heartbeat import ReplicaState, TabletReport
from regions.records.members import ConfigId, Member, MemberRole
from regions.records.model import Incarnation, RegionState, TableIntent, TableState, TransitionRecord
from regions.records.znodes import Layout
from regions.replication.effects import marked_replaced
from tests.sim.keeper.faults import remove_voter
from tests.unit.regions.diagnose.tablet_cluster import TabletCluster

P = Problem


@pytest.fixture
def view() -> ClusterView:
    """Return three servers and two tablets of three replicas, all HEALTHY."""
    return TabletCluster().view()


def found(view: ClusterView) -> list[tuple[Problem, str]]:
    """Return the findings as (problem, subject)."""
    return [(Problem(one.problem), one.subject) for one in check_all(view)[0]]


def replica(view: ClusterView, number: int, region_id: str = "t.0") -> tuple[str, int]:
    """Return the place of a member's replica in the view: uuid of its server, and position in the server's list."""
    for uuid, own in view.replicas.items():
        for at, one in enumerate(own or ()):
            if (one.report.region_id, one.report.number) == (region_id, number):
                return uuid, at
    raise AssertionError(f"no replica {number} of {region_id}")


def change(view: ClusterView, number: int, **fields: object) -> OwnReplica:
    """Change a replica's own report."""
    uuid, at = replica(view, number)
    own = view.replicas[uuid]
    assert own is not None
    report = msgspec.structs.replace(own[at].report, **fields)
    own[at] = msgspec.structs.replace(own[at], report=report)
    return own[at]


def leader_of(view: ClusterView) -> int:
    return next(own.leader for replicas in view.replicas.values() for own in replicas or () if own.leader)


def test_a_healthy_cluster_has_no_findings(view: ClusterView) -> None:
    """There is no matrix either; the counts have every tablet."""
    findings, tablets = check_all(view)
    assert findings == []
    assert (tablets.unhealthy(), tablets.counts()) == ([], {"orders": {"HEALTHY": 2}})


def _lost(view: ClusterView) -> None:
    change(view, 1 if leader_of(view) != 1 else 2, state=ReplicaState.LOST, role="", leader=None)


def _failed(view: ClusterView) -> None:
    change(view, 1 if leader_of(view) != 1 else 2, state=ReplicaState.FAILED, reason="page 3 is damaged")


def _tombstone_of_nobody(view: ClusterView) -> None:
    own = view.replicas["s0"]
    assert own is not None
    report = TabletReport("t.9", "t", 1, ReplicaState.RUNNING)
    own.append(OwnReplica(report))


def _missing(view: ClusterView) -> None:
    uuid, at = replica(view, 1 if leader_of(view) != 1 else 2)
    own = view.replicas[uuid]
    assert own is not None
    del own[at]


def _closed(view: ClusterView) -> None:
    view.tables[0] = msgspec.structs.replace(view.tables[0], intent=TableIntent.DISABLED)


def _record_ahead(view: ClusterView) -> None:
    region = view.regions["t"][0]
    view.regions["t"][0] = msgspec.structs.replace(region, config_term=900, config_index=900)


def _other_members(view: ClusterView) -> None:
    number = 1 if leader_of(view) != 1 else 2
    uuid, at = replica(view, number)
    own = view.replicas[uuid]
    assert own is not None
    assert own[at].members is not None
    own[at] = msgspec.structs.replace(own[at], members=own[at].members[:2])


def _two_leaders(view: ClusterView) -> None:
    first = leader_of(view)
    uuid, at = replica(view, first)
    own = view.replicas[uuid]
    assert own is not None
    leading = own[at].report
    change(view, 1 if first != 1 else 2, role=leading.role, leader=leading.leader, term=leading.term)


FOLLOWER = "t.0-2"


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_lost, [(P.TOMBSTONE, FOLLOWER)]),
        (_failed, [(P.REPLICA_FAILED, FOLLOWER)]),
        (_tombstone_of_nobody, [(P.UNKNOWN_REGION, "t.9-1")]),
        (_missing, [(P.MISSING_REPLICA, FOLLOWER)]),
        (_record_ahead, [(P.TABLET_MISMATCH, "t.0")]),
        (_other_members, [(P.TABLET_MISMATCH, "t.0")]),
        (_two_leaders, [(P.TABLET_MISMATCH, "t.0")]),
    ],
)
def test_each_damage_is_found(
    view: ClusterView, damage: Callable[[ClusterView], None], expected: list[tuple[Problem, str]]
) -> None:
    """Each is an error; the number of the follower depends on the leader."""
    number = 1 if leader_of(view) != 1 else 2
    damage(view)
    wanted = [(problem, f"t.0-{number}" if subject == FOLLOWER else subject) for problem, subject in expected]
    assert found(view) == wanted
    assert not any(one.is_warning for one in check_all(view)[0])


def test_a_table_that_is_disabled_has_no_replica_that_takes_part(view: ClusterView) -> None:
    """Six replicas take part, and no master is about to close them."""
    _closed(view)
    assert [problem for problem, _ in found(view)] == [P.NOT_CLOSED] * 6
    assert check_all(view)[1].counts() == {"orders": {"CLOSED": 2}}


def test_dead_servers_give_the_right_health() -> None:
    """UNDER_REPLICATED without one of three servers, UNAVAILABLE without two; with and without a master."""
    cluster = TabletCluster()
    leader = cluster.leader("t.0")
    dead = [uuid for uuid in cluster.world.machines if uuid != leader]
    cluster.world.stop(cluster.machine(dead[0]))
    cluster.pass_time(5_000)
    cluster.world.stop_master()
    first, second = cluster.view(), cluster.view()
    findings = confirmed(check_all(first)[0], check_all(second)[0])
    assert [one.problem for one in findings] == [P.TABLET_UNDER_REPLICATED] * 2
    assert f"on {dead[0]} is UNKNOWN (its server is not registered)" in findings[0].text
    cluster.world.stop(cluster.machine(dead[1]))
    cluster.world.run_until(cluster.world.now + 5_000)
    findings, tablets = check_all(cluster.view())
    assert [one.problem for one in findings] == [P.TABLET_UNAVAILABLE] * 2
    assert tablets.unhealthy() == ["t.0", "t.1"]
    rows = tablets.matrix("t.0").rows
    assert (rows[0].server, rows[0].state) == ("", "RUNNING")
    assert sorted(row.state for row in rows[1:]) == ["RUNNING", "no answer", "no answer"]
    silent = next(row for row in rows if row.state == "no answer")
    assert (silent.members, silent.term, silent.config_id, silent.is_committed) == (None,) * 4


def test_a_server_that_does_not_answer_is_unknown_and_not_missing() -> None:
    """Its replicas are not findings themselves: the leader judges its members."""
    cluster = TabletCluster()
    view = cluster.view()
    follower = next(uuid for uuid in cluster.world.machines if uuid != cluster.leader("t.0"))
    view.replicas[follower] = None
    assert check_all(view)[1].judged["t.0"].health is TabletHealth.HEALTHY
    view.replicas[cluster.leader("t.0")] = None
    judged = check_all(view)[1].judged["t.0"]
    assert judged.health is TabletHealth.UNKNOWN
    assert (P.TABLET_UNAVAILABLE, "t.0") in found(view)


def test_a_tombstone_of_a_former_member_is_as_it_should_be() -> None:
    """While the former member still runs, it is an extra replica: a warning, because the master closes it."""
    cluster = TabletCluster()
    remove_voter(cluster.world, "t.0")
    extra = next(one for one in (1, 2, 3) if one not in {m.number for m in cluster.world.groups["t.0"].members})
    cluster.alter_record("t.0")
    view = cluster.view()
    assert (P.EXTRA_REPLICA, f"t.0-{extra}") in found(view)
    assert P.EXTRA_REPLICA in WARNINGS
    cluster.pass_time(5_000)
    cluster.world.stop_master()
    assert found(cluster.view()) == [(P.TABLET_UNDER_REPLICATED, "t.0")]


def test_replicas_of_a_purged_table_are_extra(view: ClusterView) -> None:
    """They are about to be deleted. While the rows can still be restored they rest."""
    removed = msgspec.structs.replace(view.tables[0], state=TableState.REMOVED)
    view.tables[0] = removed
    assert found(view) == []
    view.tables[0] = msgspec.structs.replace(removed, purging_ms=5)
    assert [problem for problem, _ in found(view)] == [P.EXTRA_REPLICA] * 6


def test_a_pre_voter_makes_the_tablet_recovering(view: ClusterView) -> None:
    """A warning: it recovers by itself."""
    number = leader_of(view)
    uuid, at = replica(view, number)
    own = view.replicas[uuid]
    assert own is not None
    report = own[at].report
    assert report.leader is not None
    joining = (*report.leader.members, Member(4, "s0", MemberRole.PRE_VOTER))
    change(view, number, leader=msgspec.structs.replace(report.leader, members=joining))
    findings = check_all(view)[0]
    assert [(one.problem, one.is_warning) for one in findings if one.subject == "t.0"] == [(P.TABLET_UNFINISHED, True)]


def test_a_member_with_a_high_number_may_be_in_transition(view: ClusterView) -> None:
    """Numbers of tablets rise above the table's replication; a number that was never given belongs to an orphan."""
    layout = Layout("/rk")
    region = view.regions["t"][0]
    view.regions["t"][0] = msgspec.structs.replace(region, next_number=9)
    for number, expected in ((8, []), (9, [P.ORPHAN_TRANSITION])):
        record = TransitionRecord("t.0", "t", number, RegionState.OFFLINE, destination=Incarnation("s0", 1))
        view.transitions.append(FoundTransition(layout.transition("t.0", number), record, 1))
        assert [problem for problem, _ in found(view)] == expected
        view.transitions.clear()


def test_the_matrix_shows_what_is_not_committed(view: ClusterView) -> None:
    """A configuration that a replica has appended but does not know as committed."""
    number = 1 if leader_of(view) != 1 else 2
    uuid, at = replica(view, number)
    own = view.replicas[uuid]
    assert own is not None
    own[at] = msgspec.structs.replace(own[at], config_id=ConfigId(9, 99), members=(Member(1, "s0"),))
    rows = TabletCheck(view).matrix("t.0").rows
    assert {row.number: (row.is_committed, row.config_id) for row in rows}[number] == (False, ConfigId(9, 99))
    assert all(row.is_committed for row in rows if row.server and row.number != number)


def test_every_problem_of_tablets_is_planted() -> None:
    """This file names each of them."""
    with open(__file__, encoding="utf-8") as source:
        text = source.read()
    assert [one.name for one in OF_TABLETS if f"P.{one.name}" not in text] == []


def test_replicas_of_a_split_tablet_are_extra_when_the_split_has_ended(view: ClusterView) -> None:
    """Until then the daughters' members are made from them. Without the look at the splits under way they are extra."""
    view.regions["t"] = [marked_replaced(one) if one.region_id == "t.0" else one for one in view.regions["t"]]
    hole = (P.HOLE, "orders:")  # there are no daughters
    assert found(view) == [hole, *((P.EXTRA_REPLICA, f"t.0-{number}") for number in (1, 2, 3))]
    view.parents = {"t.0"}
    assert found(view) == [hole]
