"""A merge of two tablets brings their members to the same servers, and seals both or none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from regions.assign.resharding.book import SEAL_AGAIN_MS, Reshardings
from regions.assign.resharding.daughters import merged
from regions.assign.resharding.tablets import ALIGN_WITHIN_MS, MOVE_AGAIN_MS, SEAL_BOTH_WITHIN_MS, TabletParents
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.state import ClusterState
from regions.diagnose.explain_tablets import explain_split
from regions.records.acts.resharding import ReshardingRecord, ReshardingState, seal_of
from regions.records.intents import TabletIntents
from regions.records.members import Member, MemberRole, Storage
from regions.records.model import NO_ROOM, RegionRecord, ServerRecord, TableRecord, TabletState
from regions.records.resharding.parents import Parent
from regions.replication.policy.intents import with_move
from regions.replication.policy.requests import Places

TABLE = TableRecord("t", "rows", replication=3, storage=Storage.TABLET)


def members(*servers: int) -> tuple[Member, ...]:
    return tuple(Member(at, f"s{server}", MemberRole.VOTER) for at, server in enumerate(servers, 1))


class Merging:
    """A merge of two tablets; servers 1 to 6 are in three racks."""

    def __init__(self, left: tuple[int, ...] = (1, 2, 3), right: tuple[int, ...] = (1, 2, 3)) -> None:
        self.servers = {
            f"s{at}": ServerRecord(f"s{at}", "h", at, 7, f"r{at % 3}", kind="kv/1", tablets=True, peer_port=9)
            for at in range(1, 7)
        }
        self.records = [
            RegionRecord("t", "t.0", "", "m", members=members(*left), next_number=4, state=TabletState.RUNNING),
            RegionRecord("t", "t.1", "m", "", members=members(*right), next_number=4, state=TabletState.RUNNING),
        ]
        self.world = ClusterState()
        self.world.put_table(TABLE, 0, [(one, 0) for one in self.records])
        self.intents: dict[str, TabletIntents] = {}
        self.tablets = {one.region_id: self._tablet(one) for one in self.records}
        policy = SimpleNamespace(
            is_at_rest=lambda tablet: tablet.region_id not in self.intents,
            intents=self.intents, held=set(), places=Places(self.servers, frozenset(), {}),
        )  # fmt: skip
        keeper: Any = SimpleNamespace(
            tablets=self.tablets, servers=self.servers, policy=policy, region_seen=lambda *_: None
        )
        self.effects: list[fx.Effect] = []
        unused: Any = None
        self.book = Reshardings(self.world, self.effects.append, unused, 1, timeout_ms=600_000, retry_ms=500)
        self.book.tablets = TabletParents(keeper, self.effects.append, 1, 1_000)
        record = (merged(*self.records),)
        self.work = ReshardingRecord("t", ("t.0", "t.1"), record, epoch=1, seal=seal_of(1, 1))

    def _tablet(self, record: RegionRecord) -> Any:
        server = self.servers[record.members[0].uuid].incarnation
        leader = SimpleNamespace(server=server, report=SimpleNamespace(members=record.members))
        return SimpleNamespace(
            region_id=record.region_id, record=record, is_led=True, size_bytes=10, wants_open=True,
            view=SimpleNamespace(leader_now=lambda: leader), table=SimpleNamespace(record=TABLE),
        )  # fmt: skip

    def begin(self, state: ReshardingState = ReshardingState.PREPARING) -> None:
        self.book.seen(msgspec.structs.replace(self.work, state=state), 0, 0)

    def moves(self) -> list[tuple[str, str, str]]:
        """Return the moves that were wanted since the last call."""
        found = [one for one in self.effects if isinstance(one, fx.AlignParents)]
        self.effects.clear()
        return [(one.parent, one.move.source, one.move.target) for one in found]

    def moved(self, tablet: str, *servers: int) -> None:
        """Let the members of a tablet be on other servers."""
        self.intents.clear()
        self.tablets[tablet].record = msgspec.structs.replace(self.tablets[tablet].record, members=members(*servers))

    def asked(self) -> list[str]:
        """Return the tablets that were to be sealed since the last call."""
        found = [one.parent for one in self.effects if isinstance(one, fx.SealParent)]
        self.effects.clear()
        return found

    def sealed(self, tablet: str, index: int = 0, error: str = "", now_ms: int = 0, **fields: Any) -> None:
        server = self.servers["s1"].incarnation
        answer = ev.ParentSealed("t.0", tablet, server, index, members(1, 2, 3), 2, error, is_final=False)
        self.book.sealed(msgspec.structs.replace(answer, **fields), now_ms)

    def outcome(self) -> str:
        """Return how the work ended, "" before."""
        return next((one.outcome for one in self.effects if isinstance(one, fx.EndResharding)), "")


def test_the_members_are_brought_to_the_same_servers_one_after_the_other() -> None:
    """Into the same rack where possible. The rows are copied when all are there.

    Tried: with any pair of servers the racks get too many members; without the pause a move is wanted twice.
    """
    merge = Merging(right=(4, 2, 6))
    merge.begin()
    assert merge.moves() == [("t.1", "s4", "s1")]
    merge.book.tick(MOVE_AGAIN_MS - 1)
    assert merge.moves() == []
    merge.intents["t.1"] = TabletIntents("t", "t.1")
    merge.book.tick(MOVE_AGAIN_MS)
    assert merge.moves() == []
    merge.moved("t.1", 2, 6, 1)
    merge.book.tick(2 * MOVE_AGAIN_MS)
    assert merge.moves() == [("t.1", "s6", "s3")]
    assert not any(isinstance(one, fx.PrepareDaughters) for one in merge.effects)
    merge.moved("t.1", 2, 1, 3)
    merge.book.tick(4 * MOVE_AGAIN_MS)
    found = [one.server.uuid for one in merge.effects if isinstance(one, fx.PrepareDaughters)]
    assert found == ["s1", "s2", "s3"]


def test_the_smaller_tablet_moves() -> None:
    merge = Merging(left=(1, 2, 3), right=(4, 2, 3))
    merge.tablets["t.0"].size_bytes = 9
    merge.begin()
    assert merge.moves() == [("t.0", "s1", "s4")]


def test_a_merge_is_canceled_if_no_member_can_be_moved() -> None:
    merge = Merging(right=(4, 2, 3))
    merge.servers["s1"] = msgspec.structs.replace(merge.servers["s1"], disk_free=NO_ROOM)
    left, right = (merge.world.regions[one] for one in ("t.0", "t.1"))
    assert "t.1 cannot be moved to s1: the disk of s1" in merge.book.tablets.objection_to_pair(left, right)
    merge.begin()
    assert "t.1 cannot be moved to s1: the disk of s1" in merge.outcome()


def test_a_merge_is_canceled_if_the_members_do_not_come_together() -> None:
    """Tried: without the limit the merge waits until it could not be prepared."""
    merge = Merging(right=(4, 2, 3))
    merge.begin()
    merge.intents["t.1"] = with_move(TabletIntents("t", "t.1"), merge.effects[0].move)  # type: ignore[union-attr]
    merge.book.tick(ALIGN_WITHIN_MS - 1)
    assert merge.outcome() == ""
    merge.book.tick(ALIGN_WITHIN_MS)
    assert "could not be brought to the same servers within 300 s" in merge.outcome()


def test_both_tablets_are_sealed_before_they_are_replaced() -> None:
    merge = Merging()
    merge.begin(ReshardingState.CLOSING)
    assert merge.asked() == ["t.0", "t.1"]
    merge.sealed("t.1", 8)
    merge.sealed("t.0", error="NOT_READY")
    merge.book.tick(SEAL_AGAIN_MS)
    assert merge.asked() == ["t.0"]
    merge.sealed("t.0", 5, now_ms=SEAL_AGAIN_MS)
    (found,) = [one for one in merge.effects if isinstance(one, fx.ReplaceParents)]
    (daughter,) = found.record.daughters
    assert daughter.parents == (Parent("t.0", 5), Parent("t.1", 8))
    assert [one.uuid for one in daughter.members] == ["s1", "s2", "s3"]
    assert [one.region_id for one, _ in found.parents] == ["t.0", "t.1"]
    assert (daughter.leader, daughter.next_number, found.table.regions) == (2, 4, TABLE.regions - 1)


def test_a_merge_of_which_one_tablet_is_sealed_does_not_wait_long() -> None:
    """Its keys have no region meanwhile. Tried: without the limit it waits for a minute."""
    merge = Merging()
    merge.begin(ReshardingState.CLOSING)
    merge.sealed("t.1", 8, now_ms=1)
    merge.sealed("t.0", error="NOT_READY: member 2 is FAILED", now_ms=2)
    merge.book.tick(SEAL_BOTH_WITHIN_MS)
    assert merge.outcome() == ""
    merge.book.tick(SEAL_BOTH_WITHIN_MS + 1)
    assert "only t.1 could be sealed within 10 s (tablet t.0: NOT_READY: member 2 is FAILED)" in merge.outcome()


def test_a_merge_is_canceled_if_members_have_moved_before_the_seal() -> None:
    merge = Merging()
    merge.begin(ReshardingState.CLOSING)
    merge.sealed("t.1", 8, members=members(1, 2, 4))
    merge.sealed("t.0", 5)
    assert "were moved to different servers" in merge.outcome()
    assert not any(isinstance(one, fx.ReplaceParents) for one in merge.effects)


def test_an_answer_of_a_server_that_was_not_asked_changes_nothing() -> None:
    merge = Merging()
    merge.begin(ReshardingState.CLOSING)
    merge.sealed("t.1", 8, server=merge.servers["s2"].incarnation)
    assert merge.outcome() == ""
    merge.sealed("t.0", 5)
    assert not any(isinstance(one, fx.ReplaceParents) for one in merge.effects)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ReshardingState.PREPARING, "until all members are on the same servers, healthy, and none changes"),
        (ReshardingState.CLOSING, "the leaders are asked to seal the tablets"),
        (ReshardingState.CLEANING, "the replicas of t.0 and t.1 stay until t.0M is led and all its members are made"),
    ],
)
def test_what_a_merge_waits_for(state: ReshardingState, words: str) -> None:
    assert words in explain_split(msgspec.structs.replace(Merging().work, state=state))
