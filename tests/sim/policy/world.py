"""One tablet whose servers die, return, lose disks and are emptied, and the real policy of members.

A simple model of the Raft group: a leader while a majority of the voters is alive, newcomers that catch up with time,
one change at a time by compare-and-set, and the leader's judgment of silence. One turn is one second. Reports are late
or lost, orders late, answers lost, masters replaced. The policy keeps nothing, so a master's death costs it nothing.

Each order carries the report on which it rests. When it is carried out the invariants are checked against that report:
what a server does meanwhile is not the policy's doing.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final, NamedTuple

from regions.messages.heartbeat import LeaderReport, MemberHealth, MemberReport
from regions.records.intents import TabletIntents, TabletMove
from regions.records.members import ConfigId, Member, MemberRole, Storage
from regions.records.model import Incarnation, RegionRecord, ServerRecord, TableRecord, TabletState
from regions.replication.config import first_members, majority, objection_to_change
from regions.replication.policy import next_change as policy
from regions.replication.policy.intents import objection_to_move, remaining, with_move
from regions.replication.policy.next_change import Decision, Do, MemberChange
from regions.replication.policy.situation import ClusterFacts, Newcomer, TabletFacts, outage_of
from regions.replication.reports import LeaderView

#: Turns of silence until a member is UNKNOWN, until it is FAILED, and until a leader without a majority steps down.
UNKNOWN_AFTER: Final = 2
FAILED_AFTER: Final = 20
QUORUM_AFTER: Final = 6
#: Turns until an order without an answer is sent again.
ASK_TURNS: Final = 5
ADD_TIMEOUT_MS: Final = 60_000


class BrokenPolicyError(AssertionError):
    """Raised when an invariant does not hold."""


class Order(NamedTuple):
    """A change on its way to the leader."""

    due: int
    do: Do
    report: LeaderView
    wanted: int


class World:
    """See the module docstring. `run` plays one seed."""

    def __init__(self, seed: int, *, servers: int = 7, has_cas: bool = True, promotes_at_once: bool = False) -> None:
        """`has_cas` and `promotes_at_once`: planted bugs of the leader."""
        self.chance = random.Random(seed)
        self.seed = seed
        self.has_cas = has_cas
        self.promotes_at_once = promotes_at_once
        self.now = 0
        self.counts: Counter[str] = Counter()
        self.names = [f"s{number}" for number in range(servers)]
        self.alive = set(self.names)
        self.draining: set[str] = set()
        # the store
        self.wanted = self.chance.choice((1, 3, 5))
        self.next_number = self.wanted + 1
        self.newcomers: dict[int, Newcomer] = {}
        self.intents = TabletIntents("t", "r")
        # the group
        self.members: tuple[Member, ...] = first_members(self.names[: self.wanted])
        self.config = ConfigId(1, 0)
        self.term, self.leader = 1, 1
        self.lonely = 0
        self.silent: Counter[int] = Counter()
        self.burned: set[int] = set()
        self.removed: set[int] = set()
        self.to_go: Counter[int] = Counter()
        # the master
        self.report: LeaderView | None = None
        self.arriving: list[tuple[int, LeaderView]] = []
        self.orders: list[Order] = []
        self.asked_until = 0
        self.changed = 0

    # --- the group --------------------------------------------------------------------------------------------------

    def voters(self, members: tuple[Member, ...] | None = None) -> list[Member]:
        found = self.members if members is None else members
        return [one for one in found if one.role is MemberRole.VOTER]

    def is_live(self, member: Member) -> bool:
        return member.uuid in self.alive and member.number not in self.burned

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenPolicyError(f"seed {self.seed} at {self.now}: {what}; {list(map(str, self.members))}")

    def commit(self, members: tuple[Member, ...]) -> None:
        wrong = objection_to_change(self.members, members)
        self.require(not wrong, f"the change to {list(map(str, members))}: {wrong}")
        self.require(sum(one.role is MemberRole.PRE_VOTER for one in members) <= 1, "two newcomers at a time")
        gone = {one.number for one in self.members} - {one.number for one in members}
        came = {one.number for one in members} - {one.number for one in self.members}
        self.require(not came & self.removed, f"{came} came back")
        self.removed |= gone
        self.members = members
        self.config = ConfigId(self.term, self.config.index + 1)
        self.changed = self.now

    def elect(self) -> None:
        live = [one for one in self.voters() if self.is_live(one)]
        has_majority = len(live) >= majority(len(self.voters()))
        leads = any(one.number == self.leader for one in live)
        self.lonely = 0 if has_majority else self.lonely + 1
        if self.leader and (not leads or self.lonely >= QUORUM_AFTER):
            self.leader = 0
        elif not self.leader and has_majority:
            self.term += 1
            self.leader = self.chance.choice(live).number
            self.begin_to_lead()

    def begin_to_lead(self) -> None:
        """A new leader has heard nobody yet."""
        self.silent = Counter({one.number: UNKNOWN_AFTER for one in self.members})

    def replicate(self) -> None:
        for one in self.members:
            self.silent[one.number] = 0 if self.is_live(one) else self.silent[one.number] + 1
            if one.role is not MemberRole.VOTER and self.is_live(one) and one.number in self.newcomers:
                self.to_go[one.number] = max(0, self.to_go[one.number] - 1)
                # Progress of the copy is written into the transition.
                self.newcomers[one.number] = self.newcomers[one.number]._replace(since_ms=self.now * 1000)
                if one.role is MemberRole.LEARNER and not self.to_go[one.number]:
                    del self.newcomers[one.number]
        ready = [one for one in self.members if one.role is MemberRole.PRE_VOTER and not self.to_go[one.number]]
        for one in ready:
            heard = [voter for voter in self.voters() if self.silent[voter.number] < UNKNOWN_AFTER]
            may = len(heard) == len(self.voters()) or len(heard) >= majority(len(self.voters()) + 1)
            if self.silent[one.number] < UNKNOWN_AFTER and (may or self.promotes_at_once):
                self.require(may, f"{one} is promoted, and a majority needs it")
                promoted = Member(one.number, one.uuid)
                self.newcomers.pop(one.number, None)
                self.commit(tuple(promoted if other == one else other for other in self.members))
                self.counts["promoted"] += 1

    def judge(self, one: Member) -> MemberReport:
        behind = 5_000 if self.to_go[one.number] else 0
        silent = self.silent[one.number]
        if one.number in self.burned or silent >= FAILED_AFTER:
            return MemberReport(one.number, MemberHealth.FAILED, behind, "silent or lost")
        is_heard = silent < UNKNOWN_AFTER and (one.role is MemberRole.VOTER or not behind)
        return MemberReport(one.number, MemberHealth.HEALTHY if is_heard else MemberHealth.UNKNOWN, behind)

    def carry_out(self, order: Order) -> None:
        do, member = order.do, order.do.member
        fits = do.expect == self.config or not self.has_cas
        # The order names the member that leads by the report; another one refuses it.
        if self.leader != order.report.number or not fits:
            self.counts["refused"] += 1
            return
        self.counts[do.change.value] += 1
        if do.change is MemberChange.TRANSFER:
            if any(one.number == member.number and self.is_live(one) for one in self.voters()):
                self.term += 1
                self.leader = member.number
                self.begin_to_lead()
        elif do.change is MemberChange.ADD:
            self.to_go[member.number] = self.chance.choice((2, 10, 30))
            if all(one.number != member.number for one in self.members):
                self.commit((*self.members, member))
        elif any(one.number == member.number for one in self.members):
            self.require(member.number != self.leader, "a leader is removed")
            self.remove(order)

    def remove(self, order: Order) -> None:
        """Check a REMOVE against the report on which it rests, and carry it out."""
        member, report = order.do.member, order.report
        left = tuple(one for one in self.members if one.number != member.number)
        if any(one.number == member.number for one in self.voters()):
            judged = {one.number: one.health for one in report.report.health}
            judged[report.number] = MemberHealth.HEALTHY
            healthy = [one for one in self.voters(left) if judged.get(one.number) is MemberHealth.HEALTHY]
            enough = len(healthy) >= majority(len(self.voters(left)))
            self.require(enough, f"{member} goes, and the healthy ones are no majority of the rest")
            if judged.get(member.number) is MemberHealth.HEALTHY:
                self.require(len(healthy) >= order.wanted, f"{member} goes, and lives: {order.do.why}")
        live = [one for one in self.voters(left) if self.is_live(one)]
        if len(live) < majority(len(self.voters(left))):
            self.counts["unsafe"] += 1  # servers have died since the report, and the leader knows better
            return
        self.newcomers.pop(member.number, None)
        self.commit(left)

    # --- the master -------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """The leader's report goes to the master."""
        home = next((one.uuid for one in self.members if one.number == self.leader), None)
        if home is None or (not self.calm and self.chance.random() < 0.2):
            return
        judged = tuple(self.judge(one) for one in self.members if one.number != self.leader)
        found = LeaderView(
            Incarnation(home, 1), self.leader, self.config, self.term, LeaderReport(self.members, judged)
        )
        self.arriving.append((self.now + (0 if self.calm else self.chance.choice((0, 0, 1, 3))), found))

    def record(self) -> RegionRecord:
        report = self.report
        return RegionRecord(
            "t", "r", state=TabletState.RUNNING, members=report.report.members if report else (),
            config_term=report.config_id.term if report else 0,
            config_index=report.config_id.index if report else 0, next_number=self.next_number,
        )  # fmt: skip

    def table(self) -> TableRecord:
        return TableRecord("t", "orders", replication=self.wanted, storage=Storage.TABLET)

    def servers(self) -> dict[str, ServerRecord]:
        return {
            uuid: ServerRecord(uuid, uuid, 1, 1, f"r{int(uuid[1:]) % 3}", kind="kv/1", tablets=True)
            for uuid in sorted(self.alive)
        }

    def decide(self) -> Decision:
        region, table, servers = self.record(), self.table(), self.servers()
        loads = Counter(dict.fromkeys(self.names, 1))
        retiring = frozenset(self.draining)
        lost = frozenset(one.number for one in self.members if one.number in self.burned and one.uuid in self.alive)
        tablet = TabletFacts(
            region, table, True, self.report, 0, tuple(self.newcomers.values()), frozenset(), lost,
            is_asking=self.now < self.asked_until, intents=self.intents,
        )  # fmt: skip
        outage = outage_of(loads, servers, retiring)
        cluster = ClusterFacts(servers, retiring, retiring, loads, {}, {}, outage, ADD_TIMEOUT_MS)
        return policy.next_change(tablet, cluster, self.now * 1000)

    def master(self) -> None:
        for item in [item for item in self.arriving if item[0] <= self.now]:
            self.arriving.remove(item)
            if self.report is None or item[1].order >= self.report.order:
                self.report = item[1]
        if self.report is not None:
            self.intents = remaining(self.intents, self.report.report.members)
        found = self.decide()
        # A number that is assigned, in no configuration, and not the one that the policy adds: its transition ends.
        known = {one.number for one in self.report.report.members} if self.report is not None else set()
        kept = found.member.number if isinstance(found, Do) and found.change is MemberChange.ADD else 0
        if self.report is not None and self.now >= self.asked_until:
            for number in [number for number in self.newcomers if number not in known and number != kept]:
                del self.newcomers[number]
        if not isinstance(found, Do) or self.report is None:
            return
        if found.change is MemberChange.NUMBER:
            self.require(found.member.number == self.next_number, f"number {found.member} is not the next")
            self.next_number += 1
            one = found.member
            self.newcomers[one.number] = Newcomer(one.number, one.uuid, one.role, self.now * 1000)
            return
        if self.calm or self.chance.random() < 0.9:
            delay = 1 if self.calm else self.chance.choice((1, 1, 2, 4))
            self.orders.append(Order(self.now + delay, found, self.report, self.wanted))
            if not self.calm and self.chance.random() < 0.1:
                self.orders.append(Order(self.now + 30, found, self.report, self.wanted))
        # An answer that is lost is awaited in vain; another one comes with the order.
        self.asked_until = self.now + (2 if self.chance.random() < 0.8 else ASK_TURNS)

    # --- faults -----------------------------------------------------------------------------------------------------

    def fault(self) -> None:
        uuid, what = self.chance.choice(self.names), self.chance.random()
        if what < 0.4:
            self.toggle(uuid)
        elif what < 0.5 and self.may_lose(uuid):
            self.burned |= {one.number for one in self.members if one.uuid == uuid}
            self.counts["disk lost"] += 1
        elif what < 0.6:
            self.draining ^= {uuid}
        elif what < 0.75:
            self.wanted = self.chance.choice((1, 3, 5))
        elif what < 0.9:
            move = TabletMove(self.chance.choice(self.members).uuid, uuid)
            if not objection_to_move(self.record(), self.table(), self.servers(), self.draining, self.intents, move):
                self.intents = with_move(self.intents, move)
                self.counts["move"] += 1
        else:
            self.report, self.asked_until, self.arriving = None, 0, []
            self.counts["master died"] += 1

    def toggle(self, uuid: str) -> None:
        if uuid not in self.alive:
            self.alive.add(uuid)
        elif len(self.alive) > 3:
            self.alive.discard(uuid)
            self.counts["server died"] += 1

    def may_lose(self, uuid: str) -> bool:
        """Return True if a majority keeps its memory when that server loses its disk."""
        kept = [one for one in self.voters() if one.number not in self.burned and one.uuid != uuid]
        return len(kept) >= majority(len(self.voters()))

    def run(self, turns: int = 400, rest: int = 500) -> World:
        """Play the seed: faults, then calm until the tablet is as wanted and stays so."""
        self.calm = False
        for _ in range(turns):
            if self.chance.random() < 0.08:
                self.fault()
            self.turn()
        self.calm = True
        self.alive = set(self.names)
        self.draining = set(self.names[:1])
        for _ in range(rest):
            self.turn()
        self.check_at_rest()
        return self

    def turn(self) -> None:
        self.now += 1
        self.elect()
        if self.leader:
            self.replicate()
            self.tell()
        for order in [one for one in self.orders if one.due <= self.now]:
            self.orders.remove(order)
            self.carry_out(order)
        self.master()

    def check_at_rest(self) -> None:
        live = [one for one in self.voters() if self.is_live(one)]
        answer = self.decide()
        self.require(len(live) == self.wanted == len(self.members), f"{self.wanted} voters are wanted: {answer}")
        self.require(not any(one.uuid in self.draining for one in self.members), "one is on a server to be emptied")
        # A move to a server that is to be emptied waits until the operator withdraws one of the two intents.
        left = [one for one in self.intents.moves if one.target not in self.draining]
        self.require(not left, f"moves are left: {left}")
        self.require(not self.newcomers, f"numbers are left: {self.newcomers}")
        self.require(self.now - self.changed > 100, f"it changes for ever: {answer}")
