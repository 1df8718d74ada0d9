"""Tablets whose leader reports a seal that the store does not have: unsealed after a cancel, and left sealed if the
store may be older than the split."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from regions.cluster.limits import AssignerConfig
from regions.diagnose.member_intents import stuck_lines
from regions.diagnose.tablets import diagnose
from regions.messages.heartbeat import LeaderReport, MemberHealth, MemberReport, ReplicaState, TabletReport, TabletRole
from regions.messages.tablets import TabletHealth
from regions.records.members import NO_CONFIG, Storage
from regions.records.model import Incarnation, RegionRecord, ServerRecord, TableRecord, TabletState
from regions.replication.config import first_members
from regions.replication.effects import Unseal, marked_replaced
from regions.replication.keeper import Keeper
from regions.replication.policy.next_change import words_of

NOW = 5_000
EPOCH = 4
MEMBERS = first_members("abc")
HEALTH = tuple(MemberReport(number, MemberHealth.HEALTHY) for number in (1, 2, 3))
LEADER = TabletReport(
    "t.1", "t", 1, ReplicaState.RUNNING, 1, TabletRole.LEADER, NO_CONFIG, leader=LeaderReport(MEMBERS, HEALTH)
)


class Bench:
    """Three servers and a tablet whose leader is on the first."""

    def __init__(self) -> None:
        self.has_all = True
        keeper = self.keeper = Keeper(EPOCH, AssignerConfig())
        keeper.policy.has_reported = lambda _: True
        keeper.policy.have_all_reported = lambda: self.has_all
        keeper.table_seen(TableRecord("t", "orders", replication=3, storage=Storage.TABLET), 7)
        region = RegionRecord(
            "t", "t.1", state=TabletState.RUNNING, members=MEMBERS, next_number=4, leader=1, leader_term=1
        )
        keeper.region_seen(region, 1)
        for uuid in "abc":
            keeper.server_up(ServerRecord(uuid, uuid, 1, 1, kind="kv/1", tablets=True, peer_port=2))
        for number, uuid in enumerate("abc", 1):
            self.report(uuid, TabletReport("t.1", "t", number, ReplicaState.RUNNING, 1, TabletRole.FOLLOWER))
        keeper.begin(NOW)

    def report(self, uuid: str, report: TabletReport) -> None:
        """Let a server report a replica."""
        self.keeper.reported(Incarnation(uuid, 1), [report], [])

    def sealed(self, seal: str) -> None:
        """Let the leader report a seal."""
        self.report("a", replace(LEADER, sealed=seal))

    def unsealed(self, now_ms: int = NOW) -> list[str]:
        """Return the seals that the master takes away."""
        self.keeper.tick(now_ms)
        return [one.seal for one in self.keeper.take(now_ms) if isinstance(one, Unseal)]

    def health(self) -> TabletHealth:
        """Return the tablet's health."""
        return diagnose(self.keeper.tablets["t.1"], self.keeper, lambda _: True).health


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_seal_of_a_canceled_split_is_taken_away(bench: Bench) -> None:
    bench.sealed(f"{EPOCH}.2")
    assert bench.unsealed() == [f"{EPOCH}.2"]
    assert bench.health() is TabletHealth.HEALTHY


@pytest.mark.parametrize("daughter", ["t.1A", "t.1B"])
def test_a_tablet_with_daughters_that_the_store_does_not_know_stays_sealed(bench: Bench, daughter: str) -> None:
    """The store was restored from before the split. The daughters may have rows that the parent lacks."""
    bench.report("b", TabletReport(daughter, "t", 2, ReplicaState.RUNNING, 1, TabletRole.FOLLOWER))
    bench.sealed(f"{EPOCH}.2")
    assert bench.unsealed() == []
    keeper, decision = bench.keeper, bench.keeper.policy.decisions["t.1"]
    assert f"server b has replica {daughter}-2 of a daughter that the store does not know" in words_of(decision)
    assert bench.health() is TabletHealth.UNAVAILABLE
    (line,) = stuck_lines(keeper, 10)
    assert line.startswith("tablet t.1: it is sealed")
    assert not keeper.policy.is_at_rest(keeper.tablets["t.1"]), "it must not be split again: the seal has that name"
    # The operator decides for the parent's rows, and removes the daughters.
    keeper.reported(Incarnation("b", 1), [], [f"{daughter}-2"])
    assert bench.unsealed(NOW + 60_000) == [f"{EPOCH}.2"]
    assert bench.health() is TabletHealth.HEALTHY
    assert stuck_lines(keeper, 10) == []


@pytest.mark.parametrize(
    ("daughter", "start_key", "stays"),
    [("t.1M", "", True), ("t.0M", "m", True), ("t.0M", "x", False), ("t.0AM", "m", True), ("t.2M", "m", False)],
)
def test_a_tablet_that_was_merged_stays_sealed(bench: Bench, daughter: str, start_key: str, *, stays: bool) -> None:
    """As the left parent, or as the right one: the daughter has the name of the left one, which the store may not know.

    Tried: with the tablet's own name alone the right parent is unsealed beside the daughter.
    """
    keeper = bench.keeper
    keeper.policy.tablets = keeper.tablets
    keeper.region_seen(RegionRecord("t", "t.0", "", "m", state=TabletState.RUNNING), 1)
    keeper.region_seen(replace(keeper.tablets["t.1"].record, start_key=start_key), 2)
    bench.report("b", TabletReport(daughter, "t", 2, ReplicaState.RUNNING, 1, TabletRole.FOLLOWER))
    bench.sealed(f"{EPOCH}.2")
    assert bench.unsealed() == ([] if stays else [f"{EPOCH}.2"])


def test_a_tombstone_of_a_daughter_has_no_rows(bench: Bench) -> None:
    """It does not keep the parent sealed. But its server would make no replica of that name, so there is no split."""
    assert bench.keeper.policy.objection_to_daughters("t.1") == ""
    bench.report("b", TabletReport("t.1A", "t", 2, ReplicaState.TOMBSTONE))
    bench.sealed(f"{EPOCH}.2")
    assert bench.unsealed() == [f"{EPOCH}.2"]
    assert "server b has replica t.1A-2 (TOMBSTONE)" in bench.keeper.policy.objection_to_daughters("t.1")


def test_nothing_is_unsealed_before_all_servers_have_reported(bench: Bench) -> None:
    bench.has_all = False
    bench.sealed(f"{EPOCH}.2")
    assert bench.unsealed() == []
    assert bench.health() is TabletHealth.HEALTHY, "it takes a moment"
    bench.has_all = True
    assert bench.unsealed(NOW + 60_000) == [f"{EPOCH}.2"]


def test_the_seal_of_a_later_master_is_left_alone(bench: Bench) -> None:
    """A restored store has an earlier epoch than the split."""
    bench.sealed(f"{EPOCH + 1}.1")
    assert bench.unsealed() == []
    assert bench.health() is TabletHealth.UNAVAILABLE
    assert "later master than this one of epoch 4" in bench.keeper.policy.sealed_off["t.1"]
    bench.report("a", LEADER)
    bench.unsealed(NOW + 60_000)
    assert (bench.health(), bench.keeper.policy.sealed_off) == (TabletHealth.HEALTHY, {})


def test_a_sealed_tablet_is_not_split_again(bench: Bench) -> None:
    bench.report("a", LEADER)
    bench.unsealed()
    tablet = bench.keeper.tablets["t.1"]
    assert bench.keeper.policy.is_at_rest(tablet)
    bench.sealed(f"{EPOCH}.2")
    assert not bench.keeper.policy.is_at_rest(tablet), "also before the seal was looked at"


def test_a_replaced_parent_is_no_fault(bench: Bench) -> None:
    """A new master may hear of the daughters before it has loaded their records."""
    bench.report("b", TabletReport("t.1A", "t", 2, ReplicaState.RUNNING, 1, TabletRole.FOLLOWER))
    record = bench.keeper.tablets["t.1"].record
    bench.keeper.region_seen(marked_replaced(record), 2)
    bench.sealed(f"{EPOCH}.2")
    assert bench.unsealed() == []
    assert bench.keeper.policy.sealed_off == {}
