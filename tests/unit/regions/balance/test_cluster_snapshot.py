"""The running cluster as a planner's input."""

from __future__ import annotations

import pytest

from regions.balance.cluster_snapshot import census, pool_of
from regions.messages import Regions, RegionStatus, ReplicaStatus, ServerLoad
from regions.plan.artifact.digest import fingerprint
from regions.records.members import Member, MemberRole, Storage
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableIntent,
    TableRecord,
    TabletState,
    TransitionRecord,
)

HERE, THERE = Incarnation("s1", 1), Incarnation("s2", 1)
SERVERS = [ServerLoad(ServerRecord(uuid, "h", 1, 1, "rack"), 0, 0, 0, 0) for uuid in ("s2", "s1")]
TABLE = TableRecord("t", "orders", group="g", replication=2)


def _regions(*replicas: ReplicaStatus, unassigned: bool = False, table: TableRecord = TABLE) -> list[Regions]:
    region = RegionRecord("t", "t.0", "k", size_bytes=5, unassigned=unassigned)
    return [Regions(table, [RegionStatus(region, list(replicas))])]


def _moving(state: RegionState) -> TransitionRecord:
    return TransitionRecord("t.0", "t", 0, state, HERE, THERE)


def test_open_regions_count_with_their_places() -> None:
    """Size, copies and group come from the records; a copy that is not open has no place."""
    found = census(SERVERS, _regions(ReplicaStatus(0, HERE), ReplicaStatus(1)))
    assert found.regions.region_id.tolist() == ["t.0"]
    assert (found.regions.replicas.tolist(), found.regions.grp.tolist()) == ([2], ["g"])
    assert list(zip(found.last.replica.tolist(), found.last.server_id.tolist(), strict=True)) == [(0, "s1")]
    assert found.servers.server_id.tolist() == ["s1", "s2"]


def test_what_is_to_stay_closed_takes_no_part() -> None:
    """Disabled tables and unassigned regions."""
    off = TableRecord("t", "orders", intent=TableIntent.DISABLED)
    assert len(census(SERVERS, _regions(ReplicaStatus(0, HERE), unassigned=True)).regions) == 0
    assert len(census(SERVERS, _regions(ReplicaStatus(0, HERE), table=off)).regions) == 0


@pytest.mark.parametrize("state", list(RegionState))
def test_a_replica_counts_where_it_is_going(state: RegionState) -> None:
    """So the fingerprint is the same before and after its arrival."""
    arrived = census(SERVERS, _regions(ReplicaStatus(0, THERE)))
    under_way = census(SERVERS, _regions(ReplicaStatus(0, HERE, _moving(state))))
    assert fingerprint(arrived) == fingerprint(under_way)


def test_draining_servers_are_to_be_emptied() -> None:
    """The fingerprint includes the drain."""
    drained = [ServerLoad(one.server, 0, 0, 0, 0, draining=one.server.uuid == "s1") for one in SERVERS]
    found = census(drained, _regions())
    assert found.servers.draining.tolist() == [True, False]
    assert fingerprint(found) != fingerprint(census(SERVERS, _regions()))


def _tablets(*kinds: str) -> tuple[list[ServerLoad], list[Regions]]:
    """Return servers of these kinds that take tablets, and a table of one tablet on the first three."""
    loads = [
        ServerLoad(ServerRecord(f"s{number}", "h", 1, 1, "rack", kind=kind, tablets=True), 0, 0, 0, 0)
        for number, kind in enumerate(kinds, 1)
    ]
    table = TableRecord("t", "orders", replication=3, kind="kv/1", storage=Storage.TABLET)
    members = (Member(7, "s1"), Member(2, "s2"), Member(3, "s3"), Member(9, "s4", MemberRole.LEARNER))
    region = RegionRecord("t", "t.0", state=TabletState.RUNNING, members=members, next_number=10)
    return loads, [Regions(table, [RegionStatus(region, [])])]


@pytest.mark.parametrize("kind", ["kv/1", "tablets/1"])
def test_voters_of_tablets_are_replicas(kind: str) -> None:
    """In the order of their numbers; servers without a shared directory alone are a pool as well."""
    found = census(*_tablets(*[kind] * 4))
    assert list(zip(found.last.replica.tolist(), found.last.server_id.tolist(), strict=True)) == [
        (0, "s2"), (1, "s3"), (2, "s1"),
    ]  # fmt: skip
    assert found.regions.grp.tolist() == [found.servers.grp.tolist()[0]]


def test_tablets_on_servers_of_two_sorts_take_no_part() -> None:
    """A server has one pool in a plan, so the planner could not tell which of them take shared regions."""
    loads, tables = _tablets("kv/1", "kv/1", "tablets/1")
    assert pool_of(tables[0].table, loads) is None
    assert len(census(loads, tables).regions) == 0


def test_a_measured_size_counts_and_not_that_of_the_record() -> None:
    """Also 0. A reply of an earlier master has no size, and then the record's counts."""
    [found] = _regions(ReplicaStatus(0, HERE))
    [status] = found.regions
    assert census(SERVERS, [found]).regions.size_bytes.tolist() == [5]
    for size in (0, 7):
        measured = RegionStatus(status.region, status.replicas, size, 1, measured=True)
        assert census(SERVERS, [Regions(TABLE, [measured])]).regions.size_bytes.tolist() == [size]
