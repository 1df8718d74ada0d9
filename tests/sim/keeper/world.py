"""A cluster of tablets: the real `Keeper`, and models of the store, the region servers and the Raft groups.

The store is a dict of znodes with versions; each multi is all or nothing and checks the fencing epoch. Servers keep
superblocks on disks that outlive their processes, ask `regions/replication/guards.py` about orders, and take each step
of an open by itself, so a crash comes between any two. A group has a leader while a majority of its committed
configuration runs; a fault lets a leader commit a configuration without one of its voters, another one cuts a leader
off from the other members but not from the master.

Orders, answers and heartbeats are late or lost, and watch events late, until `calm`. The invariants are checked at
each write of the store, and so is the history of all steps with their causes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from master.assignment.write_queue import entries_of
from regions.cluster import effects as fx
from regions.messages import OrderOutcome, OrderResult
from regions.messages.heartbeat import (
    LeaderReport,
    MemberHealth,
    MemberReport,
    ReplicaState,
    TabletReport,
    TabletRole,
)
from regions.messages.server import ClosePurpose
from regions.records.members import NO_CONFIG, Member, Storage
from regions.records.model import (
    RegionRecord,
    RegionState,
    TableIntent,
    TableRecord,
    TabletState,
    TransitionRecord,
)
from regions.replication.config import majority, voters
from regions.replication.effects import BeginTablet, WriteRegion
from regions.replication.guards import (
    CloseFacts,
    OpenFacts,
    OrderAnswer,
    ReplicaOnDisk,
    answer_to_close,
    answer_to_open,
)
from regions.replication.keeper import Keeper
from regions.transitions import trail
from regions.transitions.entries import HistoryEntry
from regions.transitions.states import Actor, Cause, check
from regions.transitions.steps import entries_of_end
from tests.sim.keeper.faults import bulk_plan, fault
from tests.sim.keeper.history import RecordedSteps
from tests.sim.keeper.model import CONFIG, BrokenInvariantError, Group, Machine, check_at_rest

TABLE: Final = "t"
#: Time from the loss of a leader to the election of the next one.
ELECTION_MS: Final = 300


class World:
    """See the module docstring. `run` plays one seed."""

    keeper_type: type[Keeper] = Keeper
    #: Whether servers that are away lose their disks now and then.
    loses_disks = True
    #: How many times longer the pauses between faults are.
    pause = 1

    def __init__(self, seed: int, *, machines: int = 5, regions: int = 6, replicas: int = 3) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.now = 1_000
        self._order = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self.calm = False
        self.counts: Counter[str] = Counter()
        # the store
        self.epoch = 0
        self.table = (TableRecord(TABLE, "orders", replication=replicas, regions=regions, storage=Storage.TABLET), 0)
        self.regions: dict[str, tuple[RegionRecord, int]] = {}
        self.transitions: dict[str, tuple[TransitionRecord, int]] = {}
        # outside of the store
        self.machines = {f"s{number}": Machine(f"s{number}", f"r{number % 3}") for number in range(machines)}
        self.groups: dict[str, Group] = {}
        #: How often a number was made from nothing, numbers that a server has begun to make, where each number was, and
        #: regions that ever had a leader.
        self.made: Counter[tuple[str, int]] = Counter()
        self.begun: set[tuple[str, int]] = set()
        self.homes: dict[tuple[str, int], str] = {}
        self.led: set[str] = set()
        #: Compares the history that masters write with the store's log of transitions.
        self.history = RecordedSteps(lambda what: self.require(False, what))
        self.master: Keeper | None = None
        self.tenure = 0
        for number in range(regions):
            record = RegionRecord(TABLE, f"t.{number}", state=TabletState.PREPARING, next_number=1)
            self.regions[record.region_id] = (record, 0)

    # --- time -------------------------------------------------------------------------------------------------------

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_ms, next(self._order), act))

    def event(self, act: Callable[[], None]) -> None:
        """Deliver a watch event, late and now and then twice. The store loses none within a session."""
        self.after(self.chance.choice((1, 5, 20, 200, 900)) if not self.calm else self.chance.randint(1, 20), act)
        if not self.calm and self.chance.random() < 0.05:
            self.after(self.chance.randint(1, 2_000), act)

    def run_until(self, end_ms: int) -> None:
        while self._events and self._events[0][0] <= end_ms:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = end_ms

    # --- the store --------------------------------------------------------------------------------------------------

    def put_region(self, record: RegionRecord, version: int) -> None:
        former = self.regions.get(record.region_id, (None, -1))[0]
        self.regions[record.region_id] = (record, version)
        for member in record.members:
            home = self.homes.setdefault((record.region_id, member.number), member.uuid)
            self.require(home == member.uuid, f"{record.region_id}: number {member.number} was on {home}: {record}")
        if former is None:
            return
        self.require(record.next_number >= former.next_number, f"numbers fell: {record}")
        self.require(record.config_id >= former.config_id, f"configuration fell from {former.config_id}: {record}")
        if record.state is TabletState.RUNNING:
            self.require(record.region_id in self.led, f"RUNNING without a leader ever: {record}")
        group = self.groups.get(record.region_id)
        if group is not None and record.members and record.config_id != NO_CONFIG:
            self.require(group.configs[record.config_id] == record.members, f"never committed: {record}")
        if former.state is TabletState.RUNNING:
            self.require(record.state is TabletState.RUNNING, f"a region that clients use went: {record}")

    def put_transition(
        self,
        key: str,
        record: TransitionRecord | None,
        version: int,
        actor: Actor,
        cause: Cause,
        entries: list[HistoryEntry] | None = None,
    ) -> None:
        """Take a step; a master's multi has the `entries` of the history as well."""
        former = self.transitions.get(key)
        check(actor, None if former is None else former[0].state, None if record is None else record.state, cause)
        self.counts[f"{actor} {cause}"] += 1
        if record is None:
            del self.transitions[key]
        else:
            self.transitions[key] = (record, version)
            home = self.homes.get((record.region_id, record.replica))
            named = record.destination
            if named is not None and home is not None:
                self.require(named.uuid == home, f"{key} was moved from {home} to {named}")
        self.history.step(key, former and former[0], record, version, actor, self.epoch, entries or [])
        region_id, _, number = key.rpartition("-")
        self.event(lambda: self._watch(region_id, int(number)))

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenInvariantError(f"seed {self.seed} at {self.now}: {what}")

    def _watch(self, region_id: str, number: int) -> None:
        """A watch event: the active master reads the znode in its state at that time."""
        keeper = self.master
        if keeper is not None:
            record, version = self.transitions.get(f"{region_id}-{number}", (None, -1))
            keeper.transition_seen(region_id, number, record, version, self.now)
            self.carry_out()

    # --- the master -------------------------------------------------------------------------------------------------

    def start_master(self) -> None:
        """A master becomes active: everything is read, then it decides."""
        self.tenure += 1
        self.epoch += 1
        keeper = self.master = self.keeper_type(self.epoch, CONFIG)
        keeper.table_seen(*self.table)
        for record, version in self.regions.values():
            keeper.region_seen(record, version)
        for record, version in self.transitions.values():
            keeper.transition_seen(record.region_id, record.replica, record, version, self.now)
        for machine in self.machines.values():
            machine.told = {}
            if machine.lives:
                keeper.server_up(machine.record)
        keeper.begin(self.now)
        self.carry_out()

    def stop_master(self) -> None:
        self.master = None
        self.counts["master died"] += 1

    def tick(self) -> None:
        if self.master is not None:
            self.master.tick(self.now)
            self.carry_out()
        for machine in self.machines.values():
            if machine.lives:
                self._heartbeat(machine)
        for region_id, group in self.groups.items():
            self._elect(region_id, group)
        self.after(200, self.tick)

    def carry_out(self) -> None:
        keeper, epoch, tenure = self.master, self.epoch, self.tenure
        if keeper is None:
            return
        has_work = keeper.has_work(self.now)
        for effect in keeper.take(self.now):
            assert has_work, f"a master would not have asked the keeper, which wants {effect}"
            self.after(self.chance.randint(1, 30), lambda effect=effect: self._effect(effect, epoch, tenure))

    def _effect(self, effect: object, epoch: int, tenure: int) -> None:
        """Carry out one effect at the store or on the wire. Only the same tenure of the same master receives the
        answer."""

        def answer(act: Callable[[Keeper], None]) -> None:
            def arrive() -> None:
                if self.master is not None and self.tenure == tenure:
                    act(self.master)
                    self.carry_out()

            self.after(self.chance.randint(1, 30), arrive)

        fenced = epoch != self.epoch
        match effect:
            case BeginTablet():
                if fenced or not self._begin(effect):
                    answer(lambda keeper: keeper.region_refused(effect.record.region_id))
                else:
                    answer(lambda keeper: keeper.begun(effect, self.now))
            case WriteRegion():
                done = not fenced and self.regions[effect.record.region_id][1] == effect.version
                if done:
                    self.put_region(effect.record, effect.version + 1)
                    answer(lambda keeper: keeper.region_written(effect))
                else:
                    answer(lambda keeper: keeper.region_refused(effect.record.region_id))
            case fx.WriteOffline() | fx.DeleteTransition():
                version = None if fenced else self._write(effect)
                if version is None:
                    answer(lambda keeper: keeper.write_failed(effect.key, 0))
                else:
                    answer(lambda keeper: keeper.write_done(effect.key, version, self.now))
            case fx.ReplaceRegion():
                if fenced or not self._replace(effect):
                    answer(lambda keeper: keeper.region_refused(effect.record.region_id))
                else:
                    region_id = effect.record.region_id
                    answer(lambda keeper: keeper.replaced(region_id, effect.fresh, 0))
            case fx.ReadTransition():
                self._read(effect.region_id, effect.replica, answer)
            case fx.ReadRegion():
                found = self.regions[effect.region_id]
                answer(lambda keeper: keeper.region_seen(*found))
            case fx.ReadTable():
                table = self.table
                answer(lambda keeper: keeper.table_seen(*table))
            case fx.SendOpen() | fx.SendClose():
                self._send(effect, fenced, answer)
            case fx.RequestPlan():
                self._plan(effect.keys, answer)

    def _read(self, region_id: str, number: int, answer: Callable[[Callable[[Keeper], None]], None]) -> None:
        record, version = self.transitions.get(f"{region_id}-{number}", (None, -1))
        answer(lambda keeper: keeper.transition_seen(region_id, number, record, version, self.now))

    def _plan(self, keys: list[str], answer: Callable[[Callable[[Keeper], None]], None]) -> None:
        made = bulk_plan(self, keys)
        if made is not None:
            self.after(
                made.delay_ms, lambda: answer(lambda keeper: keeper.plan_ready(made.plan_id, keys, made.servers))
            )

    def _table_is(self, table_check: tuple[str, int] | None) -> bool:
        return table_check is None or table_check[1] == self.table[1]

    def _begin(self, effect: BeginTablet) -> bool:
        region_id = effect.record.region_id
        if self.regions[region_id][1] != effect.version or not self._table_is(effect.table_check):
            return False
        if any(one.key in self.transitions for one in effect.transitions):
            return False
        servers = {one.uuid for one in effect.record.members}
        self.require(len(servers) == len(effect.record.members), f"two members on one server: {effect.record}")
        for plan_id in {one.plan_id for one in effect.transitions if one.plan_id}:
            self.counts[f"begun by {plan_id}"] += 1
        self.put_region(effect.record, effect.version + 1)
        for record in effect.transitions:
            step = fx.WriteOffline(record.key, record, None, -1, Cause.ASSIGN, origin=effect.origin)
            entries = entries_of([step], self.epoch, self.now)
            self.put_transition(record.key, record, 0, Actor.MASTER, Cause.ASSIGN, entries)
        self.groups[region_id] = Group(effect.record.members)
        return True

    def _write(self, effect: fx.WriteOffline | fx.DeleteTransition) -> int | None:
        state, version = (None, -1)
        found = self.transitions.get(effect.key)
        if found is not None:
            state, version = found[0].state, found[1]
        without = effect.without_member
        if (state, version) != (effect.before, effect.version) or not self._table_is(effect.table_check):
            return None
        if without is not None and self.regions[without[0].region_id][1] != without[1]:
            return None
        record = effect.record if isinstance(effect, fx.WriteOffline) else None
        if effect.cause in (Cause.ABANDONED, Cause.NOT_A_MEMBER):
            assert without is not None, effect
        entries = entries_of([effect], self.epoch, self.now)
        self.put_transition(effect.key, record, version + 1, Actor.MASTER, effect.cause, entries)
        return version + 1

    def _replace(self, effect: fx.ReplaceRegion) -> bool:
        region_id = effect.record.region_id
        fits = self.regions[region_id][1] == effect.version and self.table[1] == effect.table_version
        held = {key: version for key, (_, version) in self.transitions.items() if key.rpartition("-")[0] == region_id}
        if not fits or held != {record.key: version for record, version in effect.transitions}:
            return False
        for record, at in effect.transitions:
            entries = entries_of_end(record, at, Cause.REPLACED, self.epoch, self.now)
            self.put_transition(record.key, None, 0, Actor.MASTER, Cause.REPLACED, entries)
        former, version = self.regions[region_id]
        gone = msgspec.structs.replace(former, members=(), state=TabletState.REPLACED)
        self.put_region(gone, version + 1)
        self.put_region(effect.fresh, 0)
        self.counts["replaced"] += 1
        return True

    # --- servers ----------------------------------------------------------------------------------------------------

    def start(self, machine: Machine) -> None:
        machine.start_code += 1
        machine.lives = True
        machine.busy, machine.told = set(), {}
        self._registered(machine)

    def stop(self, machine: Machine) -> None:
        machine.lives = False
        machine.busy = set()
        self.counts["server died"] += 1
        self._registered(machine)

    def _registered(self, machine: Machine) -> None:
        """The master reads the registrations, so it never sees an older one after a newer."""

        def seen() -> None:
            if self.master is None:
                return
            if machine.lives:
                self.master.server_up(machine.record)
            else:
                self.master.server_down(machine.uuid)
            self.carry_out()

        self.after(self.chance.randint(1, 400), seen)

    def _send(
        self, effect: fx.SendOpen | fx.SendClose, fenced: bool, answer: Callable[[Callable[[Keeper], None]], None]
    ) -> None:
        machine = self.machines[effect.server.uuid]
        batch = effect.batch

        def arrive() -> None:
            if not machine.lives or machine.incarnation != effect.server.incarnation or fenced:
                answer(lambda keeper: keeper.orders_lost(batch, self.now))
                return
            take = self._open if isinstance(effect, fx.SendOpen) else self._close
            results = [take(machine, order) for order in effect.orders]
            answer(lambda keeper: keeper.orders_answered(batch, results, self.now))

        if not self.calm and self.chance.random() < 0.05:
            answer(lambda keeper: keeper.orders_lost(batch, self.now))
            if self.chance.random() < 0.5:
                return
        self.after(self.chance.choice((1, 10, 300 if not self.calm else 10)), arrive)

    def _server_step(self, record: TransitionRecord, before: RegionState | None, version: int, cause: Cause) -> bool:
        """A compare-and-set of a server."""
        found = self.transitions.get(record.key)
        state = (None, -1) if found is None else (found[0].state, found[1])
        if state != (before, version):
            return False
        self.put_transition(record.key, record, version + 1, Actor.SERVER, cause)
        return True

    def _open(self, machine: Machine, order: object) -> OrderResult:
        transition, number = order.transition, order.transition.replica  # type: ignore[attr-defined]
        region_id = transition.region_id
        key = transition.key

        def result(outcome: OrderOutcome, error: str = "") -> OrderResult:
            return OrderResult(region_id, number, outcome, error=error)

        if key in machine.busy:
            return result(OrderOutcome.STARTED)
        found = answer_to_open(OpenFacts(number, order.tablet, machine.disk.get(region_id)))  # type: ignore[attr-defined]
        self.counts[f"open: {found.name}"] += 1
        if found not in (OrderAnswer.MAKE, OrderAnswer.WAKE):
            return result(OrderOutcome.REFUSED, found.value)
        version = order.version  # type: ignore[attr-defined]
        is_towards = transition.destination == machine.incarnation
        if is_towards and transition.state is RegionState.OPENING and found is OrderAnswer.WAKE:
            done = self._opened(transition, version)
            return result(OrderOutcome.DONE if done else OrderOutcome.REFUSED, "the transition has changed")
        if transition.state is not RegionState.OFFLINE or not is_towards:
            return result(OrderOutcome.REFUSED, "not OFFLINE towards this start")
        opening = msgspec.structs.replace(transition, state=RegionState.OPENING, took=(self.now,))
        if not self._server_step(opening, RegionState.OFFLINE, version, Cause.OPEN_ORDER):
            return result(OrderOutcome.REFUSED, "the transition has changed")
        machine.busy.add(key)
        self.begun.add((region_id, number))
        start = machine.start_code

        def files() -> None:
            if not machine.lives or machine.start_code != start:
                return
            if found is OrderAnswer.MAKE:
                self.made[region_id, number] += 1
                self.require(self.made[region_id, number] == 1, f"{key} was made from nothing twice")
            machine.disk[region_id] = ReplicaOnDisk(number, ReplicaState.RUNNING)
            self.after(self.chance.choice((1, 50, 3_000 if not self.calm else 50)), opened)

        def opened() -> None:
            if not machine.lives or machine.start_code != start:
                return
            machine.busy.discard(key)
            self._opened(opening, version + 1)

        slow = not self.calm and self.chance.random() < 0.1
        self.after(7_000 if slow else self.chance.choice((1, 100)), files)
        return result(OrderOutcome.STARTED)

    def _opened(self, opening: TransitionRecord, version: int) -> bool:
        done = msgspec.structs.replace(opening, state=RegionState.OPENED, took=trail.add(opening.took, self.now))
        return self._server_step(done, RegionState.OPENING, version, Cause.OPEN_DONE)

    def _close(self, machine: Machine, order: object) -> OrderResult:
        region_id, number = order.region_id, order.replica  # type: ignore[attr-defined]
        local = machine.disk.get(region_id)
        if local is not None:
            group = self.groups[region_id]
            knows = any(one.number == local.number for one in group.members)
            local = local._replace(config_id=group.config_id if machine.lives else NO_CONFIG, is_member=knows)
        closing = order.tablet  # type: ignore[attr-defined]
        found = answer_to_close(CloseFacts(number, closing, local))
        self.counts[f"close {closing.purpose}: {found.name}"] += 1

        def result(outcome: OrderOutcome) -> OrderResult:
            return OrderResult(region_id, number, outcome, error=found.value)

        if found is OrderAnswer.DONE:
            return result(OrderOutcome.DONE)
        key = f"{region_id}-{number}"
        if found is OrderAnswer.IN_PROGRESS or key in machine.busy:
            return result(OrderOutcome.STARTED)
        if found is not OrderAnswer.CLOSE:
            return result(OrderOutcome.REFUSED)
        record = TransitionRecord(
            region_id, TABLE, number, RegionState.CLOSING, source=machine.incarnation, intent=order.intent,  # type: ignore[attr-defined]
            epoch=self.epoch, deadline_ms=self.now + 1, took=(self.now,), origin=order.origin,  # type: ignore[attr-defined]
        )  # fmt: skip
        if not self._server_step(record, None, -1, Cause.CLOSE_ORDER):
            return result(OrderOutcome.REFUSED)
        machine.busy.add(key)
        start = machine.start_code

        def files() -> None:
            if not machine.lives or machine.start_code != start:
                return
            if closing.purpose is ClosePurpose.DELETE:
                machine.disk.pop(region_id, None)
            else:
                is_rest = closing.purpose is ClosePurpose.REST
                state = ReplicaState.RESTING if is_rest else ReplicaState.TOMBSTONE
                machine.disk[region_id] = ReplicaOnDisk(number, state)
            machine.busy.discard(key)
            took = trail.add(record.took, self.now)
            done = msgspec.structs.replace(record, state=RegionState.CLOSED, took=took)
            self._server_step(done, RegionState.CLOSING, 0, Cause.CLOSE_DONE)

        self.after(self.chance.choice((1, 100)), files)
        return result(OrderOutcome.STARTED)

    # --- groups and reports -----------------------------------------------------------------------------------------

    def is_sealed(self, _region_id: str) -> bool:
        """Return True for a tablet that is being split: its members do not change."""
        return False

    def runs(self, region_id: str, member: Member) -> bool:
        """Return True if a member takes part."""
        machine = self.machines[member.uuid]
        local = machine.disk.get(region_id)
        return (
            machine.lives
            and local is not None
            and local.number == member.number
            and local.state is ReplicaState.RUNNING
        )

    def _elect(self, region_id: str, group: Group) -> None:
        if self.calm:
            group.cut_off = None
        away = 0 if group.cut_off is None else group.cut_off[0]
        running = [one for one in group.members if one.number != away and self.runs(region_id, one)]
        if any(one.number == group.leader for one in running) and len(running) >= majority(len(group.members)):
            return
        if group.leader:
            group.leader, group.quiet_until = 0, self.now + ELECTION_MS
        if len(running) >= majority(len(voters(group.members))) and self.now >= group.quiet_until:
            group.term += 1
            group.index += 1
            group.leader = self.chance.choice(running).number
            self.led.add(region_id)

    def report_of(self, machine: Machine, region_id: str) -> TabletReport:
        local, group = machine.disk[region_id], self.groups[region_id]
        report = TabletReport(
            region_id, TABLE, local.number, local.state, group.term, config_id=group.config_id,
            applied_index=group.index,
        )  # fmt: skip
        if local.state is ReplicaState.RUNNING and group.cut_off is not None and group.cut_off[0] == local.number:
            _, term, config_id = group.cut_off
            leader = LeaderReport(group.configs[config_id])
            return msgspec.structs.replace(
                report, term=term, role=TabletRole.LEADER, config_id=config_id, applied_index=0, leader=leader
            )
        if local.state is not ReplicaState.RUNNING or group.leader != local.number:
            return report
        health = tuple(
            MemberReport(one.number, MemberHealth.HEALTHY if self.runs(region_id, one) else MemberHealth.UNKNOWN)
            for one in group.members
        )
        leader = LeaderReport(group.members, health)
        return msgspec.structs.replace(report, role=TabletRole.LEADER, leader=leader)

    def _heartbeat(self, machine: Machine) -> None:
        """Changes since the last heartbeat, as the replicas are now; the roster drops what one server sends late."""
        reports = {region_id: self.report_of(machine, region_id) for region_id in machine.disk}
        changed = [one for region_id, one in reports.items() if machine.told.get(region_id) != one]
        gone = [one.key for region_id, one in machine.told.items() if region_id not in reports]
        if not changed and not gone:
            return
        if not self.calm and self.chance.random() < 0.1:
            return  # lost; reported with the next one
        machine.told = reports
        tenure, server = self.tenure, machine.incarnation

        def arrive() -> None:
            if self.master is not None and self.tenure == tenure:
                self.master.reported(server, changed, gone)
                self.carry_out()

        self.after(self.chance.choice((1, 10, 20)), arrive)

    def set_intent(self, intent: TableIntent) -> None:
        record, version = self.table
        self.table = (msgspec.structs.replace(record, intent=intent), version + 1)
        if self.master is not None:
            self.master.table_seen(*self.table)

    def run(self, faults_ms: int = 20_000, rest_ms: int = 120_000) -> World:
        """Play the seed: faults, then calm until everything is at rest."""
        for machine in self.machines.values():
            self.start(machine)
        self.start_master()
        self.tick()
        self.after(200, lambda: fault(self))
        self.run_until(faults_ms)
        self.calm = True
        for machine in self.machines.values():
            if not machine.lives:
                self.start(machine)
        if self.master is None:
            self.start_master()
        self.set_intent(TableIntent.ENABLED)
        self.run_until(faults_ms + rest_ms)
        check_at_rest(self)
        self.history.end()
        return self


def play(world: Callable[[int], World], seeds: int) -> Counter[str]:
    """Play seeds from 0 on. Return what happened."""
    met: Counter[str] = Counter()
    for seed in range(seeds):
        met.update(world(seed).run().counts)
    return met
