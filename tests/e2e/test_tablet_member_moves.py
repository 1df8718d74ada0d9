"""A member is added, copied, promoted, and another one removed, on real servers with the test as their master."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from regions.messages import (
    ChangeAnswer,
    ChangeConfig,
    CloseOrder,
    ClosePurpose,
    CloseRegions,
    ConfigChange,
    ConfigChanged,
    OpenOrder,
    OpenRegions,
    OrderOutcome,
    ShowReplicas,
    TabletClosing,
    TabletOpening,
)
from regions.messages.heartbeat import ReplicaState
from regions.records import znodes
from regions.records.members import ConfigId, Member, MemberRole
from regions.records.model import RegionState, TransitionRecord
from regionserver.tablets.messages import TabletRead
from tests.e2e.test_region_server_tablets import CLUSTER, EPOCH, PATHS, Cluster, Machine
from tests.e2e.test_region_server_tablets import cluster as cluster
from tests.e2e.test_region_server_tablets import master as master
from tests.e2e.test_region_server_tablets import store as store
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e


def members(cluster: Cluster) -> tuple[ConfigId, tuple[Member, ...]]:
    """Return the committed configuration, as the leader reports it."""
    shown = cluster.leader("r1").ask(ShowReplicas(tablets=["r1"])).replicas
    report = shown[0].report
    assert report.leader is not None
    return report.config_id, report.leader.members


def change(cluster: Cluster, kind: ConfigChange, number: int, machine: Machine) -> ConfigChanged:
    """Change a member until the leader has done so."""
    record = machine.registered()

    def done() -> ConfigChanged:
        leader = cluster.leader("r1")
        own = leader.registered()
        config_id, _ = members(cluster)
        answer = leader.ask(
            ChangeConfig(
                EPOCH, own.uuid, own.start_code, "r1", config_id, kind, number, record.uuid, record.host,
                record.peer_port, cluster=CLUSTER,
            )
        )  # fmt: skip
        assert isinstance(answer, ConfigChanged)
        assert answer.answer is ChangeAnswer.DONE, answer
        return answer

    return eventually(done, what=f"{kind} of number {number}")


@pytest.fixture
def fourth(cluster: Cluster) -> Iterator[Machine]:
    """Return a server without a replica."""
    machine = Machine(cluster, "s4")
    machine.start()
    machine.registered()
    yield machine
    machine.close()


def give_number(cluster: Cluster, machine: Machine) -> None:
    """Give number 4 to a server, as a master does before it adds the member."""
    offline = TransitionRecord(
        "r1", "t", 4, RegionState.OFFLINE, destination=machine.registered().incarnation, joins=MemberRole.PRE_VOTER
    )
    cluster.master.create(PATHS.transition("r1", 4), znodes.encode(offline))


def test_a_member_moves_to_another_server(cluster: Cluster, fourth: Machine) -> None:
    """Add, copy, promote, remove, close: rows are there all the time, and at the end on the new member."""
    cluster.create()
    cluster.put("r1", a="1", b="2")
    give_number(cluster, fourth)
    added = change(cluster, ConfigChange.ADD, 4, fourth)
    assert 4 in {one.number for one in added.members}
    uuid = fourth.registered().uuid

    def is_voter() -> bool:
        assert Member(4, uuid) in members(cluster)[1]
        return True

    eventually(is_voter, 60, "the new member votes")
    claimed = cluster.transition("r1", 4)
    assert claimed.state is RegionState.OPENING
    version = cluster.master.get(PATHS.transition("r1", 4))[1].version
    region = znodes.decode_region(cluster.master.get(PATHS.region("t", "r1"))[0])
    order = OpenOrder(claimed, version, region, 0, tablet=TabletOpening((), must_exist=True))
    assert cluster.order(fourth, OpenRegions, order).outcome is OrderOutcome.DONE
    assert cluster.transition("r1", 4).state is RegionState.OPENED
    cluster.put("r1", c="3")
    leader = cluster.leader("r1")
    gone = next(one for one in cluster.machines if one is not leader)
    number = cluster.machines.index(gone) + 1
    removed = change(cluster, ConfigChange.REMOVE, number, gone)
    assert [one.number for one in removed.members] == [one for one in (1, 2, 3, 4) if one != number]
    closing = CloseOrder("r1", "t", number, tablet=TabletClosing(ClosePurpose.TOMBSTONE, removed.config_id))
    assert cluster.order(gone, CloseRegions, closing).outcome is OrderOutcome.DONE
    (own,) = gone.ask(ShowReplicas(tablets=["r1"])).replicas
    assert own.report.state is ReplicaState.TOMBSTONE
    written = cluster.put("r1", d="4")
    late = TabletRead("r1", ["a", "b", "c", "d"], written.outcome.index)
    assert cluster.eventually_answered(late, [fourth]).values == [b"1", b"2", b"3", b"4"]
