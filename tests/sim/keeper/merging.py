"""The cluster of tablets whose tablets are merged as well, while operators move members (docs/splits.md).

On top of `SplittingWorld` and `MovingWorld`: neighbors are merged whose members are on different servers, so the master
moves them together first. One of the two tablets may be sealed when a process dies, or when the merge is canceled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from regions.assign.resharding.book import Reshardings
from regions.assign.resharding.daughters import merged
from regions.cluster import effects as fx
from regions.cluster.entities import Region
from regions.records.acts.resharding import ReshardingRecord, ReshardingState, seal_of
from regions.records.intents import TabletIntents
from regions.records.model import TabletState, WorkOrigin
from regions.replication.keeper import Keeper
from regions.replication.policy.intents import with_move
from tests.sim.keeper.moving import MovingWorld
from tests.sim.keeper.splitting import SplitKeeper, SplittingWorld
from tests.sim.keeper.world import TABLE


class MergingWorld(SplittingWorld, MovingWorld):
    """See the module docstring. Faults are rarer than elsewhere: a merge has more steps."""

    pause = 5

    def __init__(self, seed: int, *, machines: int = 6, regions: int = 5, replicas: int = 3) -> None:
        super().__init__(seed, machines=machines, regions=regions, replicas=replicas)

    def run(self, faults_ms: int = 80_000, rest_ms: int = 120_000) -> MergingWorld:
        super().run(faults_ms, rest_ms)
        return self

    def _make_keeper(self, epoch: int, unused: object) -> Keeper:
        keeper = super()._make_keeper(epoch, unused)
        for region_id, one in self.intents.items():
            keeper.intents_seen(region_id, one)
        self.counts["takeover of a half-sealed merge"] += any(self._is_half(one) for one, _ in self.works.values())
        return keeper

    def _is_half(self, record: ReshardingRecord) -> bool:
        is_closing = record.is_merge and record.state is ReshardingState.CLOSING
        return is_closing and sum(map(self.is_sealed, record.parents)) == 1

    def splitter(self) -> None:
        """Split a region, or merge two neighbors, if nothing is in the way."""
        if self.calm or self.whim.random() < 0.25:
            super().splitter()
            return
        self.after(self.whim.choice((300, 1_500)), self.splitter)
        keeper, book = self.master, self.book
        if not isinstance(keeper, SplitKeeper) or book is None:
            return
        there = [one for one, _ in self.regions.values() if one.state is TabletState.RUNNING]
        there.sort(key=lambda one: one.start_key)
        known = [keeper.catalog.regions.get(one.region_id) for one in there]
        able = [
            (one, other)
            for one, other in itertools.pairwise(known)
            if one is not None and other is not None and not self._objection_to_pair(book, one, other)
        ]
        if able and able[0][0].table.version == self.table[1]:
            self._merge(book, *self.whim.choice(able))

    def _objection_to_pair(self, book: Reshardings, left: Region, right: Region) -> str:
        if left.record.end_key != right.record.start_key:
            return "no neighbors"
        each = self._objection(book, left) or self._objection(book, right)
        return each or book.parents_of(left.table).objection_to_pair(left, right)

    def _merge(self, book: Reshardings, left: Region, right: Region) -> None:
        self.accepted += 1
        record = ReshardingRecord(
            TABLE, (left.record.region_id, right.record.region_id), (merged(left.record, right.record),),
            epoch=self.epoch, seal=seal_of(self.epoch, self.accepted),
            origin=WorkOrigin(f"{self.epoch}-s{self.accepted}", "request: MergeRegions"),
        )  # fmt: skip
        self.put_work(record.region_id, record)
        servers = [{one.uuid for one in region.record.members} for region in (left, right)]
        self.counts["merge accepted"] += 1
        self.counts["merge of tablets on different servers"] += servers[0] != servers[1]
        book.seen(record, 0, self.now)
        self.carry_out()

    def _effect_of_book(self, effect: fx.Effect, epoch: int, tenure: int) -> None:
        if not isinstance(effect, fx.AlignParents):
            super()._effect_of_book(effect, epoch, tenure)
        elif epoch == self.epoch and self.whim.random() > 0.1:
            self.counts["moved for a merge"] += 1
            known = self.intents.get(effect.parent) or TabletIntents(TABLE, effect.parent)
            self.put(effect.parent, with_move(known, effect.move))

    def _replace_parents(self, effect: fx.ReplaceParents) -> bool:
        """No parent may be replaced that is not sealed, and the members must be on the same servers."""
        if not super()._replace_parents(effect):
            return False
        if effect.record.is_merge:
            self.counts["merged"] += 1
            for parent in effect.record.parents:
                self.require(self.is_sealed(parent), f"{parent} is merged, and not sealed")
                servers = {one.uuid for one in self.groups[parent].members}
                homes = {one.uuid for one in effect.record.daughters[0].members}
                self.require(servers == homes, f"{parent} is on {servers}, the daughter on {homes}")
        return True

    def put_work(self, region_id: str, record: ReshardingRecord | None) -> None:
        before = self.works.get(region_id)
        if before is not None and record is None and self._is_half(before[0]):
            self.counts["canceled half-sealed"] += 1
        super().put_work(region_id, record)

    def look(self) -> None:
        """End the moves of replaced tablets, too."""
        for region_id in [one for one in self.intents if self.is_replaced(self.regions[one][0])]:
            self.put(region_id, TabletIntents(TABLE, region_id))
        super().look()

    def _order_seal(
        self, uuid: str, epoch: int, region_id: str, name: str, answer: Callable[..., None], effect: fx.SealParent
    ) -> None:
        """Some leaders get their order late, so that one tablet alone is sealed."""
        late_ms = self.whim.choice((0, 0, 0, 2_000))
        self.after(late_ms, lambda: super(MergingWorld, self)._order_seal(uuid, epoch, region_id, name, answer, effect))
