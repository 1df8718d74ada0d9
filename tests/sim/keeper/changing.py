"""The cluster of tablets with changes of members: the keeper's policy, leaders that carry changes out, and copies.

On top of `World`: a leader adds and removes members by compare-and-set, has newcomers copied through their transitions,
and promotes those that have caught up. Operators change the number of replicas and empty servers.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from regions.messages.heartbeat import LeaderReport, MemberHealth, MemberReport, ReplicaState, TabletReport
from regions.records.members import ConfigId, Member, MemberRole
from regions.records.model import RegionState
from regions.replication.config import majority, voters
from regions.replication.effects import BeginTablet, ChangeMembers, HandOver
from regions.replication.guards import ReplicaOnDisk
from regions.replication.keeper import Keeper
from regions.transitions.states import Cause
from tests.sim.keeper.model import CONFIG, Group, Machine
from tests.sim.keeper.world import ELECTION_MS, World

CHANGES = msgspec.structs.replace(CONFIG, changes_members=True, add_timeout_ms=15_000)
#: Silence after which a leader calls a member FAILED.
DEAD_MS = 3_000
#: Number of replicas at the end, and the server that is to be empty then.
REPLICAS_AT_REST = 3
EMPTY_AT_REST = "s0"


class ChangingWorld(World):
    """See the module docstring."""

    def __init__(self, seed: int, *, machines: int = 6, regions: int = 4, replicas: int = 3) -> None:
        super().__init__(seed, machines=machines, regions=regions, replicas=replicas)
        self.draining: frozenset[str] = frozenset()
        #: When a member was heard last, which copies are under way, and how often each number was given.
        self.heard_ms: dict[tuple[str, int], int] = {}
        self.copying: set[tuple[str, int]] = set()
        #: Numbers whose copies have begun, by region and server: the superblock has the number from then on.
        self.claimed: dict[tuple[str, str], int] = {}
        self.given: Counter[str] = Counter()
        self.newcomers: set[tuple[str, int]] = set()
        self.keeper_type = self._make_keeper  # type: ignore[assignment, method-assign]

    def _make_keeper(self, epoch: int, _: object) -> Keeper:
        keeper = Keeper(epoch, CHANGES)
        keeper.servers_closed(self.draining, self.draining)
        return keeper

    # --- requests of operators ---

    def set_replicas(self, replicas: int) -> None:
        record, version = self.table
        self.table = (msgspec.structs.replace(record, replication=replicas), version + 1)
        self.counts["another number"] += 1
        if self.master is not None:
            self.master.table_seen(*self.table)

    def drain(self, *uuids: str) -> None:
        self.draining = frozenset(uuids)
        self.counts["drained"] += 1
        if self.master is not None:
            self.master.servers_closed(self.draining, self.draining)

    def operator(self) -> None:
        if self.calm:
            return
        if self.chance.random() < 0.5:
            self.set_replicas(self.chance.choice((1, 3, 5)))
        else:
            self.drain(*self.chance.sample(sorted(self.machines), self.chance.choice((0, 1, 1, 2))))
        self.after(self.chance.choice((1_000, 5_000)), self.operator)

    # --- the store ---

    def _begin(self, effect: BeginTablet) -> bool:
        groups = dict(self.groups)
        if not super()._begin(effect):
            return False
        for record in effect.transitions:
            self.given[record.key] += 1
            self.require(self.given[record.key] == 1, f"number {record.key} is given twice")
            if record.joins is not None:
                self.newcomers.add((record.region_id, record.replica))
                self.groups[record.region_id] = groups[record.region_id]
                self.counts[f"number for a {record.joins.value}"] += 1
        return True

    # --- changes ---

    def _effect(self, effect: object, epoch: int, tenure: int) -> None:
        if not isinstance(effect, ChangeMembers | HandOver):
            super()._effect(effect, epoch, tenure)
            return

        def arrive() -> None:
            if epoch == self.epoch and machine.lives and machine.incarnation == effect.server.incarnation:
                self._change(effect, machine)
            self.after(self.chance.randint(1, 30), answer)

        def answer() -> None:
            if self.master is not None and self.tenure == tenure:
                self.master.change_answered(effect.ask)
                self.carry_out()

        machine = self.machines[effect.server.uuid]
        delay = self.chance.choice((1, 10, 400 if not self.calm else 10))
        if not self.calm and self.chance.random() < 0.1:
            self.after(2_000, answer)  # lost on the way
            return
        self.after(delay, arrive)
        if not self.calm and self.chance.random() < 0.1:
            self.after(delay + 2_500, arrive)

    def _change(self, effect: ChangeMembers | HandOver, machine: Machine) -> None:
        group = self.groups[effect.region_id]
        away = 0 if group.cut_off is None else group.cut_off[0]
        leader = next((one for one in group.members if one.number == group.leader), None)
        if leader is None or leader.uuid != machine.uuid or leader.number == away:
            self.counts["not the leader"] += 1
        elif isinstance(effect, HandOver):
            heir = next((one for one in voters(group.members) if one.number == effect.to), None)
            if heir is not None and self.runs(effect.region_id, heir):
                group.term, group.index, group.leader = group.term + 1, group.index + 1, heir.number
                self.counts["handed over"] += 1
        elif effect.expect != group.config_id:
            self.counts["stale config"] += 1
        elif effect.adds:
            self.commit(effect.region_id, (*group.members, effect.member), "added")
        elif effect.member.number != group.leader:
            left = tuple(one for one in group.members if one.number != effect.member.number)
            running = [one for one in voters(left) if self.runs(effect.region_id, one)]
            if len(running) >= majority(len(voters(left))):
                self.commit(effect.region_id, left, "removed")
            else:
                self.counts["unsafe"] += 1

    def commit(self, region_id: str, members: tuple[Member, ...], what: str) -> None:
        group = self.groups[region_id]
        self.counts[what] += 1
        joining = [one for one in members if one.role is MemberRole.PRE_VOTER]
        self.require(len(joining) <= 1, f"two newcomers of {region_id}: {members}")
        servers = {one.uuid for one in members}
        self.require(len(servers) == len(members), f"two members of {region_id} on one server: {members}")
        group.index += 1
        group.config_id = ConfigId(group.term, group.index)
        group.configs[group.config_id] = tuple(sorted(members, key=lambda one: one.number))

    # --- groups ---

    def _elect(self, region_id: str, group: Group) -> None:
        if self.calm:
            group.cut_off = None
        away = 0 if group.cut_off is None else group.cut_off[0]
        electorate = voters(group.members)
        running = [one for one in electorate if one.number != away and self.runs(region_id, one)]
        has_majority = len(running) >= majority(len(electorate))
        for one in group.members:
            if self.runs(region_id, one):
                self.heard_ms[region_id, one.number] = self.now
        if has_majority and any(one.number == group.leader for one in running):
            self._copy(region_id, group)
            self._promote(region_id, group, running)
            return
        if group.leader:
            group.leader, group.quiet_until = 0, self.now + ELECTION_MS
        if has_majority and self.now >= group.quiet_until:
            group.term += 1
            group.index += 1
            group.leader = self.chance.choice(running).number
            self.led.add(region_id)
            for one in group.members:
                self.heard_ms[region_id, one.number] = self.now

    def _copy(self, region_id: str, group: Group) -> None:
        """The leader has newcomers copied: their servers take the transitions."""
        for one in group.members:
            key = (region_id, one.number)
            machine = self.machines[one.uuid]
            local = machine.disk.get(region_id)
            is_there = local is not None and local.number >= one.number
            if one.role is MemberRole.VOTER or is_there or not machine.lives or key in self.copying:
                continue
            record, version = self.transitions.get(f"{region_id}-{one.number}", (None, -1))
            if record is None or record.state is not RegionState.OFFLINE or record.destination != machine.incarnation:
                continue
            opening = msgspec.structs.replace(record, state=RegionState.OPENING, took=(self.now,))
            if self._server_step(opening, RegionState.OFFLINE, version, Cause.OPEN_ORDER):
                self.begun.add(key)
                self.copying.add(key)
                self.claimed[region_id, one.uuid] = one.number
                self._copied_later(machine, region_id, one.number)

    def _copied_later(self, machine: Machine, region_id: str, number: int) -> None:
        start = machine.start_code

        def copied() -> None:
            self.copying.discard((region_id, number))
            if machine.lives and machine.start_code == start:
                machine.disk[region_id] = ReplicaOnDisk(number, ReplicaState.RUNNING)
                self.counts["copied"] += 1

        self.after(self.chance.choice((10, 500, 6_000 if not self.calm else 500)), copied)

    def _promote(self, region_id: str, group: Group, running: list[Member]) -> None:
        electorate = voters(group.members)
        for one in group.members:
            may = len(running) == len(electorate) or len(running) >= majority(len(electorate) + 1)
            if one.role is MemberRole.PRE_VOTER and self.runs(region_id, one) and may:
                others = [other for other in group.members if other != one]
                self.commit(region_id, (*others, Member(one.number, one.uuid)), "promoted")
                return

    def report_of(self, machine: Machine, region_id: str) -> TabletReport:
        report = super().report_of(machine, region_id)
        group = self.groups[region_id]
        claimed = self.claimed.get((region_id, machine.uuid), 0)
        if claimed > report.number and any(one.number == claimed for one in group.members):
            is_copied = (region_id, claimed) in self.copying
            return TabletReport(
                region_id, report.table_id, claimed, ReplicaState.COPYING if is_copied else ReplicaState.TOMBSTONE
            )
        if report.leader is None or (group.cut_off is not None and group.cut_off[0] == report.number):
            return report
        judged = tuple(self._judge(region_id, one) for one in group.members)
        return msgspec.structs.replace(report, leader=LeaderReport(group.members, judged))

    def _judge(self, region_id: str, one: Member) -> MemberReport:
        if self.runs(region_id, one):
            return MemberReport(one.number, MemberHealth.HEALTHY)
        if one.role is not MemberRole.VOTER and self.machines[one.uuid].lives:
            return MemberReport(one.number, MemberHealth.UNKNOWN, 5_000, "its copy begins")
        silent_ms = self.now - self.heard_ms.setdefault((region_id, one.number), self.now)
        copies = (region_id, one.number) in self.copying
        is_dead = silent_ms >= DEAD_MS and not copies
        return MemberReport(one.number, MemberHealth.FAILED if is_dead else MemberHealth.UNKNOWN, 5_000, "silent")

    # --- at rest ---

    def run(self, faults_ms: int = 20_000, rest_ms: int = 120_000) -> ChangingWorld:
        self.after(300, self.operator)
        self.after(faults_ms, self.settle)
        super().run(faults_ms, rest_ms)
        self.require(not self.newcomers & self.made.keys(), f"made from nothing: {self.newcomers & self.made.keys()}")
        for region_id, group in self.groups.items():
            if group.leader and self.regions[region_id][0].member(group.leader) is not None:
                self.check_members(region_id, group)
        return self

    def settle(self) -> None:
        self.calm = True
        self.set_replicas(REPLICAS_AT_REST)
        self.after(50_000, lambda: self.drain(EMPTY_AT_REST))

    def check_members(self, region_id: str, group: Group) -> None:
        keeper: Keeper | None = self.master
        why = None if keeper is None else keeper.policy.decisions.get(region_id)
        live = [one for one in voters(group.members) if self.runs(region_id, one)]
        as_wanted = len(live) == len(group.members) == REPLICAS_AT_REST
        self.require(as_wanted, f"{REPLICAS_AT_REST} voters are wanted, {group.members}: {why}")
        self.require(all(one.uuid != EMPTY_AT_REST for one in group.members), f"{group.members}: {why}")
        self.require(why is None, f"at rest, and {why}")
