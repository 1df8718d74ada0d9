"""The cluster of tablets whose tablets are split under clients, while servers and masters die (docs/splits.md).

On top of `ChangingWorld`: the book of splits decides beside the keeper, leaders seal their tablets, and servers make
the daughters' members from their replicas of the parent. Orders to seal arrive late and twice. Clients write with
locations that may be old. After every write of the store each key must be in one region; at rest each acknowledged row
must be in the region of its key, no tablet is sealed, and nothing is left of the parents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from master.assignment.write_queue import entries_of
from regions.assign.resharding import objections
from regions.assign.resharding.book import Reshardings
from regions.assign.resharding.daughters import split_at
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Region
from regions.cluster.state import ClusterState
from regions.messages import OrderOutcome, OrderResult
from regions.messages.heartbeat import HAS_NO_FILES, TabletReport
from regions.messages.server import ClosePurpose
from regions.records.acts.resharding import ReshardingRecord, ReshardingState, seal_of
from regions.records.members import Member, MemberRole
from regions.records.model import RegionRecord, TableRecord, TabletState, WorkOrigin
from regions.records.partitioning import RegionSpec, check_ranges
from regions.replication.effects import BeginTablet, ChangeMembers, HandOver, Unseal, WriteRegion, marked_replaced
from regions.replication.keeper import Keeper
from regions.transitions.resharding import RESHARDING_STEPS
from regions.transitions.states import Actor, Cause
from tests.sim.keeper.changing import CHANGES, DEAD_MS, ChangingWorld
from tests.sim.keeper.model import Group, Machine
from tests.sim.keeper.world import TABLE

#: Keys are numbers with leading zeros.
KEYS: Final = 1_000_000
#: Why a server cannot make a daughter's member: its disk was lost.
NO_PARENT: Final = "refused: no replica of the parent"
#: Number of regions at which no more are split.
REGIONS_MAX: Final = 12
_LEGAL: Final = {(one.before, one.after) for one in RESHARDING_STEPS}


def key_of(number: int) -> str:
    """Return a key."""
    return f"{number:07}"


class SplitKeeper(Keeper):
    """A keeper that passes records on to the state of the cluster, as the active master does."""

    catalog: ClusterState

    def table_seen(self, record: TableRecord, version: int, origin: WorkOrigin | None = None) -> None:
        super().table_seen(record, version, origin)
        self.catalog.put_table(record, version)

    def region_seen(self, record: RegionRecord, version: int, origin: WorkOrigin | None = None) -> None:
        super().region_seen(record, version, origin)
        known = self.catalog.regions.get(record.region_id)
        if known is None or version > known.version:
            self.catalog.put_region(record, version)

    def region_written(self, effect: WriteRegion) -> None:
        super().region_written(effect)
        self.catalog.put_region(effect.record, effect.version + 1)

    def begun(self, effect: BeginTablet, now_ms: int) -> None:
        super().begun(effect, now_ms)
        self.catalog.put_region(effect.record, effect.version + 1)

    def replaced(self, region_id: str, fresh: RegionRecord, version: int) -> None:
        if (former := self.catalog.regions.get(region_id)) is not None:
            self.catalog.drop_region(former)
        super().replaced(region_id, fresh, version)


class Seal:
    """The seal of a group, which is a part of its rows."""

    def __init__(self) -> None:
        self.name = ""
        self.index = 0
        self.canceled: set[str] = set()


class SplittingWorld(ChangingWorld):
    """See the module docstring."""

    book_type: type[Reshardings] = Reshardings

    def __init__(self, seed: int, *, machines: int = 5, regions: int = 3, replicas: int = 3) -> None:
        super().__init__(seed, machines=machines, regions=regions, replicas=replicas)
        self.loses_disks = bool(seed % 2)
        bounds = ["", *(key_of(KEYS * at // regions) for at in range(1, regions)), ""]
        for at, (record, version) in enumerate(list(self.regions.values())):
            ranged = msgspec.structs.replace(record, start_key=bounds[at], end_key=bounds[at + 1])
            self.regions[record.region_id] = (ranged, version)
        self.whim = random.Random(seed)
        self.works: dict[str, tuple[ReshardingRecord, int]] = {}
        self.book: Reshardings | None = None
        self.asked: list[fx.Effect] = []
        self.seals: dict[str, Seal] = {}
        #: The servers that have prepared daughters, with the seal of the split.
        self.prepared: set[tuple[str, str]] = set()
        #: Members of daughters that nobody waits for: their servers are away.
        self.given_up: set[tuple[str, int]] = set()
        #: Highest epoch that a server has heard of.
        self.heard: dict[str, int] = {}
        #: Rows by region, and the region in which a client believes each range.
        self.rows: dict[str, dict[str, int]] = {}
        self.acknowledged: dict[str, int] = {}
        self.located: list[RegionRecord] = []
        self.accepted = 0

    def _make_keeper(self, epoch: int, _: object) -> Keeper:
        catalog, self.asked = ClusterState(), []
        keeper = SplitKeeper(epoch, CHANGES)
        keeper.catalog = catalog
        keeper.servers_closed(self.draining, self.draining)
        unused: Any = None
        self.book = self.book_type(catalog, self.asked.append, unused, epoch, timeout_ms=8_000, retry_ms=500)
        self.book.serve_tablets(keeper, CHANGES.start_timeout_ms)
        for record, version in self.works.values():
            self.book.load(record, version, self.now)
            self.counts[f"takeover {record.state.value}"] += 1
        return keeper

    def tick(self) -> None:
        if self.master is not None and self.book is not None:
            self.book.tick(self.now)
        super().tick()

    # --- requests ---

    def operator(self) -> None:
        """Drain a server now and then: no tablet may be split while its members change."""
        if self.calm:
            return
        self.drain(*self.whim.sample(sorted(self.machines), self.whim.choice((0, 0, 0, 1))))
        self.after(self.whim.choice((2_000, 8_000)), self.operator)

    def splitter(self) -> None:
        """Split a region if nothing is in the way."""
        if self.calm:
            return
        self.after(self.whim.choice((300, 1_500)), self.splitter)
        keeper, book = self.master, self.book
        there = [one for one, _ in self.regions.values() if one.state is TabletState.RUNNING]
        if not isinstance(keeper, SplitKeeper) or book is None or len(there) >= REGIONS_MAX:
            return
        known = (keeper.catalog.regions.get(one.region_id) for one in there)
        able = [one for one in known if one is not None and not self._objection(book, one)]
        if able and able[0].table.version == self.table[1]:
            self._split(book, self.whim.choice(able))

    def _objection(self, book: Reshardings, region: Region) -> str:
        wanted = "" if region.table.wants_open else "closed"
        return wanted or objections.objection_to_region(region) or book.parents_of(region.table).objection_now(region)

    def _split(self, book: Reshardings, region: Region) -> None:
        first, last = int(region.record.start_key or "0"), int(region.record.end_key or str(KEYS))
        if last - first < 2:
            return
        daughters = split_at(region.record, key_of(self.whim.randrange(first + 1, last)))
        self.accepted += 1
        record = ReshardingRecord(
            TABLE, (region.record.region_id,), daughters, epoch=self.epoch, seal=seal_of(self.epoch, self.accepted),
            origin=WorkOrigin(f"{self.epoch}-s{self.accepted}", "request: SplitRegion"),
        )  # fmt: skip
        self.put_work(record.region_id, record)
        self.counts["split accepted"] += 1
        book.seen(record, 0, self.now)
        self.carry_out()

    def writer(self) -> None:
        """Write one row with the locations that were read last."""
        if self.calm:
            return
        self.after(30, self.writer)
        key = key_of(self.whim.randrange(KEYS))
        record = next((one for one in self.located if one.contains(key)), None)
        group = None if record is None else self.groups.get(record.region_id)
        if record is None or group is None or not group.leader or self.is_sealed(record.region_id):
            self.located = [one for one, _ in self.regions.values() if one.state is TabletState.RUNNING]
            return
        self.accepted += 1
        self.rows.setdefault(record.region_id, {})[key] = self.accepted
        self.acknowledged[key] = self.accepted
        self.counts["written"] += 1

    # --- the store ---

    def put_work(self, region_id: str, record: ReshardingRecord | None) -> None:
        before, version = self.works.pop(region_id, (None, -1))
        if before is not None and record is None and before.state is ReshardingState.CLEANING:
            self._cleaned(before)
        step = (None if before is None else before.state, None if record is None else record.state)
        self.require(step in _LEGAL, f"the split of {region_id} went from {step[0]} to {step[1]}")
        self.counts[f"split {step[0]} -> {step[1]}"] += 1
        if record is not None:
            self.works[region_id] = (record, version + 1)

    def _cleaned(self, work: ReshardingRecord) -> None:
        """Check that each member of the daughters is made, or was silent for so long that it is not waited for."""
        for daughter in work.daughters:
            region_id = daughter.region_id
            for one in () if self.table[0].purging_ms else self.regions[region_id][0].members:
                if one.role is MemberRole.VOTER and not self._was_made(region_id, one):
                    silent_ms = self.now - self.heard_ms.get((region_id, one.number), self.now)
                    self.require(silent_ms >= DEAD_MS, f"a parent goes before {region_id}-{one.number} is made")
                    self.given_up.add((region_id, one.number))
                    self.counts["member given up"] += 1

    def _was_made(self, region_id: str, one: Member) -> bool:
        return self.made[region_id, one.number] > 0 or region_id in self.machines[one.uuid].disk

    def put_region(self, record: RegionRecord, version: int) -> None:
        former = self.regions.get(record.region_id, (None, -1))[0]
        if record.parents:
            self.led.add(record.region_id)  # clients use it from its first write on
        if former is not None and former.state is TabletState.RUNNING and record.state is TabletState.REPLACED:
            self.regions[record.region_id] = (record, version)
            return
        super().put_region(record, version)

    def check_keys(self) -> None:
        there = [one for one, _ in self.regions.values() if one.state is not TabletState.REPLACED]
        there.sort(key=lambda one: one.start_key)
        check_ranges([RegionSpec(one.start_key, one.end_key) for one in there])
        self.require(len(there) == self.table[0].regions, f"the table counts {self.table[0].regions} of {len(there)}")

    def _replace_parents(self, effect: fx.ReplaceParents) -> bool:
        record = effect.record
        held = self.works.get(record.region_id, (None, -2))
        fits = (self.table[1], held[1]) == (effect.table_version, effect.version)
        fits = fits and all(self.regions[one.region_id][1] == version for one, version in effect.parents)
        if not fits:
            return False
        for parent, version in effect.parents:
            self.put_region(marked_replaced(parent), version + 1)
        for daughter in record.daughters:
            self.put_region(daughter, 0)
            self.groups[daughter.region_id] = Group(daughter.members)
        for one in effect.begun:
            step = fx.WriteOffline(one.key, one, None, -1, Cause.ASSIGN, origin=record.origin)
            entries = entries_of([step], self.epoch, self.now)
            self.put_transition(one.key, one, 0, Actor.MASTER, Cause.ASSIGN, entries)
        self.table = (effect.table, effect.table_version + 1)
        self.put_work(record.region_id, record)
        self.check_keys()
        return True

    # --- the master ---

    def carry_out(self) -> None:
        super().carry_out()
        asked, epoch, tenure = list(self.asked), self.epoch, self.tenure
        self.asked.clear()
        for effect in asked:
            self.after(self.whim.randint(1, 30), lambda effect=effect: self._effect_of_book(effect, epoch, tenure))

    def _effect_of_book(self, effect: fx.Effect, epoch: int, tenure: int) -> None:
        def answer(act: Callable[[Reshardings], None]) -> None:
            def arrive() -> None:
                if self.master is not None and self.book is not None and self.tenure == tenure:
                    act(self.book)
                    self.carry_out()

            self.after(self.whim.randint(1, 30), arrive)

        fenced = epoch != self.epoch
        match effect:
            case fx.PrepareDaughters():
                self._order_prepare(effect, answer)
            case fx.GiveUpDaughters():
                self.prepared.discard((effect.server.uuid, effect.record.seal))
            case fx.SealParent():
                self._order_seal(effect.server.uuid, epoch, effect.parent, effect.record.seal, answer, effect)
            case fx.WriteResharding() | fx.EndResharding() | fx.ReplaceParents():
                if fenced:
                    return
                done = self._write_work(effect)
                if not done or self.whim.random() < 0.1:  # refused, or the reply is lost
                    answer(lambda _: self._read_work(effect.record))
                elif isinstance(effect, fx.ReplaceParents):
                    event = ev.ParentsReplaced(
                        effect.record, effect.version + 1, effect.table, effect.table_version + 1, effect.begun
                    )
                    answer(lambda book: self._was_replaced(book, event))
                elif isinstance(effect, fx.EndResharding):
                    answer(lambda book: book.ended(effect.record.region_id, self.now))
                else:
                    answer(lambda book: book.seen(effect.record, effect.version + 1, self.now))

    def _write_work(self, effect: fx.WriteResharding | fx.EndResharding | fx.ReplaceParents) -> bool:
        region_id = effect.record.region_id
        if isinstance(effect, fx.ReplaceParents):
            return self._replace_parents(effect)
        if self.works.get(region_id, (None, -2))[1] != effect.version:
            return False
        self.put_work(region_id, effect.record if isinstance(effect, fx.WriteResharding) else None)
        return True

    def _was_replaced(self, book: Reshardings, event: ev.ParentsReplaced) -> None:
        keeper = self.master
        assert isinstance(keeper, SplitKeeper), "a master is active"
        book.replaced(event, self.now)
        for region_id in event.record.parents:
            if (region := keeper.catalog.regions.get(region_id)) is not None:
                keeper.catalog.drop_region(region)
        keeper.table_seen(event.table, event.table_version)
        book.seen(event.record, event.version, self.now)

    def _read_work(self, record: ReshardingRecord) -> None:
        """Hand the present records to the keeper and the book, as the master does after a refused write."""
        keeper, book = self.master, self.book
        assert keeper is not None, "a master is active"
        assert book is not None, "a master is active"
        keeper.table_seen(*self.table)
        for region_id in (*record.parents, *(one.region_id for one in record.daughters)):
            if region_id in self.regions:
                keeper.region_seen(*self.regions[region_id])
                self._read_transitions(keeper, self.regions[region_id][0].members, region_id)
        work = self.works.get(record.region_id)
        if work is None:
            book.ended(record.region_id, self.now)
        else:
            book.seen(*work, self.now)

    def _read_transitions(self, keeper: Keeper, members: Iterable[Member], region_id: str) -> None:
        for member in members:
            found, version = self.transitions.get(f"{region_id}-{member.number}", (None, -1))
            keeper.transition_seen(region_id, member.number, found, version, self.now)

    # --- prepared rows ---

    def _order_prepare(
        self, effect: fx.PrepareDaughters, answer: Callable[[Callable[[Reshardings], None]], None]
    ) -> None:
        """Have a server copy rows for the daughters, which may take long, fail, or have an answer that is lost."""
        region_id, incarnation = effect.record.region_id, effect.server.incarnation
        machine, outcome = self.machines[effect.server.uuid], self.whim.random()

        def arrive() -> None:
            event = ev.DaughtersPrepared(region_id, incarnation, "no answer", is_final=False)
            if machine.lives and machine.incarnation == incarnation and outcome > 0.06:
                event = ev.DaughtersPrepared(region_id, incarnation)
                self.prepared.add((machine.uuid, effect.record.seal))
                self.counts["prepared"] += 1
            elif outcome < 0.01:
                event = ev.DaughtersPrepared(region_id, incarnation, "the disk is full")
                self.counts["disk full"] += 1
            answer(lambda book: book.prepared(event, self.now))

        self.after(self.whim.choice((1, 10, 10, 10, 300)), arrive)

    # --- seals ---

    def is_sealed(self, region_id: str) -> bool:
        return bool(self.seals.setdefault(region_id, Seal()).name)

    def _order_seal(
        self,
        uuid: str,
        epoch: int,
        region_id: str,
        name: str,
        answer: Callable[[Callable[[Reshardings], None]], None],
        effect: fx.SealParent,
    ) -> None:
        lost = ev.ParentSealed(
            effect.record.region_id, region_id, effect.server.incarnation, error="no answer", is_final=False
        )

        def arrive() -> None:
            machine = self.machines[uuid]
            if machine.lives and machine.incarnation == effect.server.incarnation and self.hears(uuid, epoch):
                found = self._seal(machine, region_id, name)
                event = msgspec.structs.replace(found, region_id=effect.record.region_id)
            else:
                event = lost
            if self.whim.random() < 0.1:
                event = lost
            answer(lambda book: book.sealed(event, self.now))

        self.after(self.whim.choice((1, 10, 300)), arrive)
        if self.whim.random() < 0.2:  # a copy that comes late
            self.after(self.whim.choice((1_000, 8_000)), lambda: self._late(uuid, epoch, region_id, name))

    def _late(self, uuid: str, epoch: int, region_id: str, name: str) -> None:
        machine = self.machines[uuid]
        if machine.lives and self.hears(uuid, epoch):
            self._seal(machine, region_id, name)
            self.counts["late seal"] += 1

    def hears(self, uuid: str, epoch: int) -> bool:
        """Return False for an order of a master that the server knows to be deposed."""
        self.heard[uuid] = max(self.heard.get(uuid, 0), epoch)
        return self.heard[uuid] == epoch

    def _leads(self, machine: Machine, region_id: str) -> bool:
        group = self.groups[region_id]
        leader = next((one for one in group.members if one.number == group.leader), None)
        away = 0 if group.cut_off is None else group.cut_off[0]
        return leader is not None and leader.uuid == machine.uuid and leader.number != away

    def _seal(self, machine: Machine, region_id: str, name: str) -> ev.ParentSealed:
        group, seal = self.groups[region_id], self.seals.setdefault(region_id, Seal())
        event = ev.ParentSealed("", region_id, machine.incarnation, is_final=False)
        if not self._leads(machine, region_id):
            return msgspec.structs.replace(event, error="NOT_LEADER")
        if name in seal.canceled:
            return msgspec.structs.replace(event, error="CANCELED", is_final=True)
        if seal.name not in ("", name):
            return msgspec.structs.replace(event, error="OTHER")
        if not seal.name:
            if not all(one.role is MemberRole.VOTER and self.runs(region_id, one) for one in group.members):
                self.counts["not ready"] += 1
                return msgspec.structs.replace(event, error="NOT_READY")
            group.index += 1
            seal.name, seal.index = name, group.index
            self.counts["sealed"] += 1
        return msgspec.structs.replace(event, index=seal.index, members=group.members, leader=group.leader)

    def _effect(self, effect: object, epoch: int, tenure: int) -> None:
        if not isinstance(effect, Unseal):
            super()._effect(effect, epoch, tenure)
            return

        def arrive() -> None:
            machine, seal = self.machines[effect.server.uuid], self.seals[effect.region_id]
            if machine.lives and self.hears(machine.uuid, epoch) and self._leads(machine, effect.region_id):
                seal.canceled.add(effect.seal)
                if seal.name == effect.seal:
                    seal.name = ""
                    self.counts["unsealed"] += 1

        def answer() -> None:
            if self.master is not None and self.tenure == tenure:
                self.master.change_answered(effect.ask)
                self.carry_out()

        delay_ms = self.whim.choice((1, 10, 3_000 if not self.calm else 10))
        self.after(delay_ms, arrive)
        self.after(delay_ms + 10, answer)

    def _change(self, effect: ChangeMembers | HandOver, machine: Machine) -> None:
        if self.is_sealed(effect.region_id) and isinstance(effect, ChangeMembers):
            self.counts["change of a sealed tablet"] += 1
            return
        super()._change(effect, machine)

    def commit(self, region_id: str, members: tuple[Member, ...], what: str) -> None:
        self.require(not self.is_sealed(region_id), f"{region_id} is sealed, and its members change")
        super().commit(region_id, members, what)

    def report_of(self, machine: Machine, region_id: str) -> TabletReport:
        report = super().report_of(machine, region_id)
        sealed = self.seals.setdefault(region_id, Seal()).name if report.leads else ""
        return msgspec.structs.replace(report, sealed=sealed) if sealed else report

    # --- servers ---

    def _open(self, machine: Machine, order: Any) -> OrderResult:
        region = order.region
        if not region.parents or region.region_id in machine.disk:
            return super()._open(machine, order)
        parents = [machine.disk.get(one.region_id) for one in region.parents]
        if any(one is None or one.state in HAS_NO_FILES for one in parents):
            self.counts["no parent"] += 1
            return OrderResult(region.region_id, order.transition.replica, OrderOutcome.FAILED, error=NO_PARENT)
        if self.whim.random() < 0.1:
            self.counts["parent lags"] += 1
            return OrderResult(region.region_id, order.transition.replica, OrderOutcome.STARTED)
        if region.region_id not in self.rows:
            former = [item for one in region.parents for item in self.rows.get(one.region_id, {}).items()]
            self.rows[region.region_id] = {key: value for key, value in former if region.contains(key)}
        opening = msgspec.structs.replace(order.tablet, must_exist=False)
        return super()._open(machine, msgspec.structs.replace(order, tablet=opening))

    def _close(self, machine: Machine, order: Any) -> OrderResult:
        if order.tablet.purpose is ClosePurpose.DELETE:
            for record, _ in self.regions.values():
                is_heir = order.region_id in [one.region_id for one in record.parents]
                mine = [one for one in record.members if one.uuid == machine.uuid]
                if is_heir and mine and not self.is_replaced(record) and mine[0].role is MemberRole.VOTER:
                    may_go = (record.region_id, mine[0].number) in self.given_up or self.table[0].purging_ms > 0
                    may_go = may_go or self._was_made(record.region_id, mine[0])
                    self.require(may_go, f"{order.region_id} goes before {record.region_id} is made")
        return super()._close(machine, order)

    @staticmethod
    def is_replaced(record: RegionRecord) -> bool:
        return record.state is TabletState.REPLACED

    # --- at rest ---

    def run(self, faults_ms: int = 20_000, rest_ms: int = 120_000) -> SplittingWorld:
        self.after(3_000, self.splitter)
        self.after(1_000, self.writer)
        super().run(faults_ms, rest_ms)
        for record, _ in self.works.values():
            led = [self.groups[one.region_id].leader for one in record.daughters if one.region_id in self.groups]
            self.require(self.loses_disks and 0 in led, f"still under way: {record}")
        self.check_keys()
        for region_id, (record, _) in self.regions.items():
            self._check_at_rest(region_id, record)
        return self

    def _check_at_rest(self, region_id: str, record: RegionRecord) -> None:
        if self.is_replaced(record):
            left = [one.uuid for one in self.machines.values() if region_id in one.disk]
            self.require(not left or region_id in self.works, f"{region_id} was replaced, and {left} keep it")
            return
        group = self.groups.get(region_id)
        has_leader = group is not None and bool(group.leader)
        may_be_lost = self.loses_disks or not record.parents  # a first replica whose server died before it was made
        self.require(has_leader or may_be_lost, f"no disk was lost, and {region_id} has no leader")
        if not has_leader:
            return
        self.require(not self.is_sealed(region_id), f"{region_id} is sealed for ever")
        wanted = {key: value for key, value in self.acknowledged.items() if record.contains(key)}
        found = self.rows.get(region_id, {})
        self.require(found == wanted, f"{region_id} has {len(found)} of {len(wanted)} rows")
