"""Possible objections to a split of a tablet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from regions.assign.resharding import objections
from regions.assign.resharding.automatic import QUIET_MS, ROUND_MS, Automatic
from regions.assign.resharding.book import PREPARE_TRIES, Reshardings
from regions.assign.resharding.daughters import split_at
from regions.assign.resharding.tablets import PREPARE_WITHIN_MS, TabletParents
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Table
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.records.acts.resharding import ReshardingRecord, ReshardingState, epoch_of_seal, seal_of
from regions.records.formats import RESHARDING, TABLET_MERGES, TABLET_RESHARDING
from regions.records.members import Member, MemberRole, Storage
from regions.records.model import NO_ROOM, RegionRecord, ServerRecord, TableRecord
from regions.records.resharding.parents import Parent
from regions.replication.keeper import Keeper

TABLETS = TableRecord("t", "rows", replication=3, storage=Storage.TABLET, split_above=100, merge_below=25)
SHARED = TableRecord("s", "rows")


def test_tablets_are_split_and_merged_from_their_formats_on() -> None:
    """An older member could not apply the seal, or would make the daughter of a merge from one parent alone. Tried:
    with the format of shared splits the gate lets it be written."""
    table = Table(TABLETS, 0)
    assert "a split of a tablet needs format 6" in objections.objection_to_table(table, RESHARDING)
    assert objections.objection_to_table(table, TABLET_RESHARDING) == ""
    assert "a merge of tablets needs format 7" in objections.objection_to_merge(table, TABLET_RESHARDING)
    assert objections.objection_to_merge(table, TABLET_MERGES) == ""
    assert objections.objection_to_merge(Table(SHARED, 0), RESHARDING) == ""


def test_a_large_tablet_is_split_if_its_members_are_at_rest() -> None:
    """A region that is in the way of nothing else waits for its members. Tried: without the question it is proposed."""
    world = ClusterState()
    world.put_table(TABLETS, 0, [(RegionRecord("t", "t.0", next_number=4), 0)])

    def proposed(why_not: str) -> list[tuple[str, ...]]:
        decision, found = Automatic(0), []
        for at in (1, 2):
            found = decision.step(world, lambda _: 101, lambda _: why_not, 0, "", QUIET_MS + at * ROUND_MS)
        return [one.regions for one in found]

    assert proposed("") == [("t.0",)]
    assert proposed("the members of tablet t.0 change") == []


def test_a_seal_names_the_epoch_that_began_the_split() -> None:
    """A master ends no seal of a later one: it does not know that master's splits."""
    assert epoch_of_seal(seal_of(12, 3)) == 12
    assert seal_of(12, 3) != seal_of(1, 23)


def test_what_is_in_the_way_of_a_split_now() -> None:
    """A daughter waits for the end of the split that made it. A tablet that the keeper does not know yet has no leader:
    a table's tablets come to the keeper in parts."""
    keeper = Keeper(1, AssignerConfig())
    tablets = TabletParents(keeper, lambda _: None, 1, 1_000)
    world = ClusterState()
    world.put_table(TABLETS, 0, [(RegionRecord("t", "t.0A", next_number=4), 0)])
    region = world.regions["t.0A"]
    assert "no leader of tablet t.0A has reported" in tablets.objection_now(region)
    region.resharding = "t.0"
    # The second parent of a merge. Tried: with the name of the work alone the text is that of a daughter.
    assert "takes part in a split or merge already" in tablets.objection_now(region)
    region.record = msgspec.structs.replace(region.record, parents=(Parent("t.0", 5),))
    assert "t.0A takes part in the split or merge of t.0, whose replicas stay" in tablets.objection_now(region)
    region.resharding = "t.0A"
    assert "takes part in a split or merge already" in tablets.objection_now(region)


def test_a_tablet_is_not_split_where_a_member_has_no_room_for_its_rows_once_more() -> None:
    """The daughters' rows are written beside the parent's, when the parent serves nobody any more.

    Tried: without the look at the servers nothing is in the way; with `<=` in place of `<` the last case fails.
    """
    record = RegionRecord(
        "t", "t.0", members=tuple(Member(at, f"s{at}", MemberRole.VOTER) for at in (1, 2, 3)), next_number=4
    )
    world = ClusterState()
    world.put_table(TABLETS, 0, [(record, 0)])
    leader = SimpleNamespace(report=SimpleNamespace(members=record.members))
    tablet = SimpleNamespace(record=record, view=SimpleNamespace(leader_now=lambda: leader), size_bytes=1000)
    servers = {f"s{at}": ServerRecord(f"s{at}", "h", 1, 7, disk_free=5000) for at in (1, 2)}  # s3 is away
    keeper: Any = SimpleNamespace(
        tablets={"t.0": tablet},
        servers=servers,
        policy=SimpleNamespace(is_at_rest=lambda _: True, objection_to_daughters=lambda _: ""),
    )
    tablets = TabletParents(keeper, lambda _: None, 1, 1_000)

    def objection(free: int) -> str:
        servers["s2"] = ServerRecord("s2", "h", 1, 7, disk_free=free)
        return tablets.objection_now(world.regions["t.0"])

    assert "s2 has less free space than its reserve" in objection(NO_ROOM)
    assert "s2 has 999 bytes free above its reserve, too few" in objection(999)
    assert objection(1000) == ""


class Preparing:
    """A split of a tablet with three members whose servers are asked to prepare the daughters."""

    def __init__(self) -> None:
        self.record = RegionRecord(
            "t", "t.0", members=tuple(Member(at, f"s{at}", MemberRole.VOTER) for at in (1, 2, 3)), next_number=4
        )
        self.world = ClusterState()
        self.world.put_table(TABLETS, 0, [(self.record, 0)])
        tablet = SimpleNamespace(record=self.record, is_led=True, view=SimpleNamespace(leader_now=lambda: None))
        self.servers = {f"s{at}": ServerRecord(f"s{at}", "h", at, 7) for at in (1, 2, 3)}
        policy = SimpleNamespace(is_at_rest=lambda _: True, held=set(), objection_to_daughters=lambda _: "")
        keeper: Any = SimpleNamespace(
            tablets={"t.0": tablet}, servers=self.servers, policy=policy, region_seen=lambda *_: None
        )
        self.effects: list[fx.Effect] = []
        unused: Any = None
        self.book = Reshardings(self.world, self.effects.append, unused, 1, timeout_ms=600_000, retry_ms=500)
        self.book.tablets = TabletParents(keeper, self.effects.append, 1, 1_000)
        self.work = ReshardingRecord("t", ("t.0",), split_at(self.record, "m"), epoch=1, seal=seal_of(1, 1))
        self.book.seen(self.work, 0, 0)

    def asked(self) -> list[str]:
        """Return the servers that were asked since the last call."""
        found = [one.server.uuid for one in self.effects if isinstance(one, fx.PrepareDaughters)]
        self.effects.clear()
        return found

    def is_ready(self) -> bool:
        """Return True if the next state was written since the last call."""
        return any(isinstance(one, fx.WriteResharding) for one in self.effects)

    def answer(self, server: str, error: str = "", *, is_final: bool = False, now_ms: int = 0) -> None:
        incarnation = self.servers[server].incarnation
        self.book.prepared(ev.DaughtersPrepared("t.0", incarnation, error, is_final=is_final), now_ms)


def test_each_server_prepares_the_daughters_before_the_seal() -> None:
    """One that restarts meanwhile is asked again; one that is gone is not waited for."""
    split = Preparing()
    assert split.asked() == ["s1", "s2", "s3"]
    split.answer("s1")
    split.answer("s2")
    split.servers["s2"] = ServerRecord("s2", "h", 2, 8)
    split.book.tick(1)
    assert (split.asked(), split.is_ready()) == (["s2"], False)
    split.answer("s2")
    del split.servers["s3"]
    split.book.tick(2)
    assert split.is_ready()


def test_a_server_that_refuses_to_prepare_does_not_hold_the_split_up() -> None:
    """One of an earlier build always does. Tried: without the count the split waits until it is canceled."""
    split = Preparing()
    split.answer("s1")
    split.answer("s2")
    for attempt in range(PREPARE_TRIES):
        assert not split.is_ready()
        split.asked()
        split.answer("s3", "not open", now_ms=500 * attempt)
        split.book.tick(500 * attempt + 499)
        assert split.asked() == [] or attempt == PREPARE_TRIES - 1
        split.book.tick(500 * (attempt + 1))
    assert split.book.find("t.0") is not None
    split = Preparing()
    split.book.tick(PREPARE_WITHIN_MS)
    assert split.is_ready()


def test_a_full_disk_cancels_the_split_and_what_was_prepared_is_removed() -> None:
    split = Preparing()
    split.answer("s1")
    split.answer("s2", "the disk is full", is_final=True)
    (ended,) = [one for one in split.effects if isinstance(one, fx.EndResharding)]
    assert "the disk is full" in ended.outcome
    split.book.ended("t.0", 1)
    assert [one.server.uuid for one in split.effects if isinstance(one, fx.GiveUpDaughters)] == ["s1", "s2", "s3"]


def test_a_late_final_refusal_does_not_cancel_twice() -> None:
    """The second end of the work had a version that the store no longer had. Tried: without the check there are two."""
    split = Preparing()
    at = split.servers["s1"].incarnation
    split.book.seen(msgspec.structs.replace(split.work, state=ReshardingState.CLOSING), 1, 0)
    work = split.book._works["t.0"]
    work.sealing["t.0"] = at
    split.book._cancel(work, "the table is disabled")
    split.book.sealed(ev.ParentSealed("t.0", "t.0", at, error="the disk is full", is_final=True), 1)
    (ended,) = [one for one in split.effects if isinstance(one, fx.EndResharding)]
    assert ended.outcome == "canceled: the table is disabled"
