"""How long the replicas of tablets that were split or merged stay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from regions.assign.resharding.book import Reshardings
from regions.assign.resharding.daughters import split_at
from regions.assign.resharding.tablets import KEPT_MS, TabletParents
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.state import ClusterState
from regions.messages.heartbeat import MemberHealth, MemberReport
from regions.records.acts.resharding import ReshardingRecord, ReshardingState, seal_of
from regions.records.members import Member, MemberRole, Storage
from regions.records.model import RegionRecord, RegionState, ServerRecord, TableRecord, TransitionRecord

TABLE = TableRecord("t", "rows", replication=3, storage=Storage.TABLET)
MEMBERS = tuple(Member(at, f"s{at}", MemberRole.VOTER) for at in (1, 2, 3))
PARENT = RegionRecord("t", "t.0", members=MEMBERS, next_number=4)
#: The time at which the daughters replaced the parent.
BEGAN_MS = 1_000_000


class Cleaning:
    """A master's part in a split whose daughters have replaced the parent, and are made."""

    def __init__(self) -> None:
        self.record = ReshardingRecord("t", ("t.0",), split_at(PARENT, "m"), epoch=1, seal=seal_of(1, 1))
        self.world = ClusterState()
        self.servers = {f"s{at}": ServerRecord(f"s{at}", "h", at, 7) for at in (1, 2, 3)}
        self.tablets: dict[str, Any] = {}
        policy = SimpleNamespace(is_at_rest=lambda _: True, held=set())
        keeper: Any = SimpleNamespace(
            tablets=self.tablets, servers=self.servers, policy=policy, region_seen=lambda *_: None
        )
        self.effects: list[fx.Effect] = []
        unused: Any = None
        self.book = Reshardings(self.world, self.effects.append, unused, 1, timeout_ms=600_000, retry_ms=500)
        self.book.tablets = TabletParents(keeper, self.effects.append, 1, 1_000)

    def take_over(self, replaced_ms: int, now_ms: int) -> None:
        """Load the records as a master that becomes active."""
        self.world.put_table(TABLE, 0, [(one, 0) for one in self.record.daughters])
        for one in self.record.daughters:
            self.tablets[one.region_id] = SimpleNamespace(record=one, is_led=True, work={}, is_writing=False)
        record = msgspec.structs.replace(self.record, state=ReshardingState.CLEANING, replaced_ms=replaced_ms)
        self.book.load(record, 1, now_ms)

    def has_ended(self, now_ms: int) -> bool:
        """Return True if the work has ended by that time."""
        self.book.tick(now_ms)
        return any(isinstance(one, fx.EndResharding) for one in self.effects)


def test_the_time_of_the_replicas_does_not_begin_anew_with_each_master() -> None:
    """Masters that died again and again kept the daughters from being merged. Tried: with the time at which the master
    took over, the work does not end."""
    cleaning = Cleaning()
    cleaning.take_over(BEGAN_MS, BEGAN_MS + KEPT_MS - 10)
    assert not cleaning.has_ended(BEGAN_MS + KEPT_MS - 1)
    assert cleaning.has_ended(BEGAN_MS + KEPT_MS)


def test_a_master_whose_clock_is_behind_waits_no_longer_than_a_new_one() -> None:
    """Also one that reads a record of an earlier build, which has no time. Tried: without the minimum the first case
    waits for the difference of the clocks besides."""
    for replaced_ms in (BEGAN_MS + 10 * KEPT_MS, 0):
        cleaning = Cleaning()
        cleaning.take_over(replaced_ms, BEGAN_MS)
        assert not cleaning.has_ended(BEGAN_MS + KEPT_MS - 1)
        assert cleaning.has_ended(BEGAN_MS + KEPT_MS)


class AwayMember(Cleaning):
    """The daughters' third member waits for its server, which is not registered."""

    def __init__(self, health: MemberHealth) -> None:
        super().__init__()
        self.take_over(BEGAN_MS, BEGAN_MS)
        del self.servers["s3"]
        for tablet in self.tablets.values():
            waiting = TransitionRecord(tablet.record.region_id, "t", 3, RegionState.OFFLINE)
            tablet.work[3] = SimpleNamespace(number=3, transition=waiting, is_writing=False)
            tablet.home_of = lambda work: f"s{work.number}"
            report = SimpleNamespace(health=(MemberReport(3, health),))
            tablet.view = SimpleNamespace(leader_now=lambda: SimpleNamespace(report=report))  # noqa: B023

    def change(self, **fields: Any) -> None:
        """Change the transitions of the third members."""
        for tablet in self.tablets.values():
            tablet.work[3].transition = msgspec.structs.replace(tablet.work[3].transition, **fields)


def test_a_member_whose_server_is_gone_is_not_waited_for() -> None:
    """When the leader calls it FAILED. Tried: without the exception the work never ends; with it for every server that
    is away the first case ends."""
    late_ms = BEGAN_MS + KEPT_MS
    assert not AwayMember(MemberHealth.UNKNOWN).has_ended(late_ms)
    assert AwayMember(MemberHealth.FAILED).has_ended(late_ms)
    assert not AwayMember(MemberHealth.FAILED).has_ended(late_ms - 1)
    there, copied, leaderless = (AwayMember(MemberHealth.FAILED) for _ in range(3))
    there.servers["s3"] = ServerRecord("s3", "h", 3, 8)
    copied.change(joins=MemberRole.VOTER)
    leaderless.tablets["t.0A"].is_led = False
    assert not any(one.has_ended(late_ms) for one in (there, copied, leaderless))


def test_the_write_that_replaces_the_parent_says_when() -> None:
    cleaning = Cleaning()
    cleaning.world.put_table(TABLE, 0, [(PARENT, 0)])
    leader = SimpleNamespace(server=cleaning.servers["s1"].incarnation, report=SimpleNamespace(members=MEMBERS))
    cleaning.tablets["t.0"] = SimpleNamespace(record=PARENT, view=SimpleNamespace(leader_now=lambda: leader))
    cleaning.book.seen(msgspec.structs.replace(cleaning.record, state=ReshardingState.CLOSING), 1, BEGAN_MS - 9)
    cleaning.book.sealed(ev.ParentSealed("t.0", "t.0", leader.server, 5, MEMBERS, 1), BEGAN_MS)
    (found,) = [one for one in cleaning.effects if isinstance(one, fx.ReplaceParents)]
    assert (found.record.state, found.record.replaced_ms) == (ReshardingState.CLEANING, BEGAN_MS)
