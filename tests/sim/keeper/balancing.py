"""The cluster of tablets with a balancer: leaders are spread over the servers, and members over their disks.

On top of `MovingWorld`: servers lag or have full disks for a while, and while its switch is on the balancer of the
active master decides now and then. Each decision is checked against the reports on which it rests. At rest the spread
is even, and nothing is handed over or moved any more.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from regions.balance.leader_rounds import LeaderSpreading, leaders_of
from regions.balance.tablets import hopeless, tablet_round
from regions.cluster.limits import BalancerConfig
from regions.messages.heartbeat import MemberHealth, MemberReport
from regions.records.intents import TabletIntents
from regions.records.members import Member
from regions.replication.config import voters
from regions.replication.keeper import Keeper
from regions.replication.policy.intents import with_move, without_moves
from regions.replication.policy.leaders import LeaderTransfer
from tests.sim.keeper.changing import CHANGES, EMPTY_AT_REST
from tests.sim.keeper.model import Machine
from tests.sim.keeper.moving import MovingWorld

#: A server that has started gets no leaders for this long.
REST_MS: Final = 4_000
LIMITS: Final = msgspec.structs.replace(CHANGES, leader_rest_ms=REST_MS, leader_transfers_max=3)
BALANCER: Final = BalancerConfig(tablet_moves_max=4, tablets_per_server_max=2)
#: Time after which the servers have reported to a new master.
REPORTED_MS: Final = 1_500
#: Pause between two rounds about members.
ROUND_MS: Final = 3_000
#: Servers lag, and their disks are full, until then: also when the other faults have ended.
TROUBLE_MS: Final = 60_000
#: Entries by which a server's replicas lag.
LAG: Final = 5_000
#: In this time at the end nothing is handed over or moved.
QUIET_MS: Final = 20_000


class BalancingWorld(MovingWorld):
    """See the module docstring."""

    def __init__(self, seed: int, *, machines: int = 6, regions: int = 9, replicas: int = 3) -> None:
        super().__init__(seed, machines=machines, regions=regions, replicas=replicas)
        self.lagging: set[str] = set()
        self.full: set[str] = set()
        #: The spreading of each master, when each tablet was handed over for the spread, and when anything was decided.
        self.spreading: tuple[Keeper, LeaderSpreading] | None = None
        self.handed_ms: dict[tuple[int, str], int] = {}
        self.decided_ms = 0

    def _make_keeper(self, epoch: int, unused: object) -> Keeper:
        keeper = super()._make_keeper(epoch, unused)
        since_ms = self.now
        keeper.policy.has_reported = lambda _: self.now >= since_ms + REPORTED_MS
        return keeper

    # --- servers ---

    def start(self, machine: Machine) -> None:
        """A start code is a time, as real servers have it."""
        machine.start_code = max(machine.start_code, self.now - 1)
        super().start(machine)

    def _judge(self, region_id: str, one: Member) -> MemberReport:
        found = super()._judge(region_id, one)
        if found.health is not MemberHealth.HEALTHY:
            return found
        behind = LAG if one.uuid in self.lagging else 0
        return msgspec.structs.replace(found, behind=behind, may_lead=one.uuid not in self.full)

    def trouble(self) -> None:
        """Let servers lag, and their disks be full, for a while."""
        if self.now >= TROUBLE_MS:
            self.lagging, self.full = set(), set()
            return
        self.after(self.whim.choice((500, 2_000)), self.trouble)
        names = sorted(self.machines)
        self.lagging = set(self.whim.sample(names, self.whim.choice((0, 1, 2))))
        self.full = set(self.whim.sample(names, self.whim.choice((0, 0, 1))))

    # --- the balancer ---

    def balance(self) -> None:
        """Hand leaderships over."""
        self.after(500, self.balance)
        keeper = self.master
        if keeper is None:
            return
        if self.spreading is None or self.spreading[0] is not keeper:
            self.spreading = (keeper, LeaderSpreading(keeper, LIMITS))
        for one in self.spreading[1].tick(self.now):
            self.check_handover(keeper, one)
            self.decided_ms = self.now
            self.counts["leader spread"] += 1
        self.carry_out()

    def check_handover(self, keeper: Keeper, one: LeaderTransfer) -> None:
        """Check a handover against what the master knows."""
        tablet, server = keeper.tablets[one.region_id], keeper.servers.get(one.heir.uuid)
        leader = tablet.view.leader_now()
        what = f"{one.region_id} is handed over to {one.heir}"
        assert leader is not None, what
        found = next(each for each in leader.report.health if each.number == one.heir.number)
        self.require(found.health is MemberHealth.HEALTHY and found.behind < LAG, f"{what}, which lags: {found}")
        self.require(found.may_lead, f"{what}, whose disk is full")
        self.require(one.region_id not in self.intents, f"{what}, and moves")
        self.require(server is not None and one.heir.uuid not in self.draining, f"{what}, which is to be empty")
        assert server is not None, what
        self.require(self.now - server.start_code >= REST_MS, f"{what}, which has just started")
        all_healthy = all(each.health is MemberHealth.HEALTHY for each in leader.report.health)
        self.require(all_healthy, f"{what} during a repair")
        former = self.handed_ms.get((self.tenure, one.region_id), -1_000_000)
        self.require(self.now - former >= 30_000, f"{what} again: leadership goes back and forth")
        self.handed_ms[self.tenure, one.region_id] = self.now

    def move_members(self) -> None:
        """Move members, as intents."""
        self.after(ROUND_MS, self.move_members)
        keeper = self.master
        if keeper is None:
            return
        for region_id, move in hopeless(keeper):
            self.put(region_id, without_moves(self._kept(region_id), move.source))
            self.counts["move of the balancer withdrawn"] += 1
        found = tablet_round(keeper, BALANCER, self.now)
        if found.blocking:
            self.counts["balancing blocked"] += 1
        for region_id, move in found.moves:
            away = {uuid for uuid, count in keeper.loads.items() if count and uuid not in keeper.servers}
            self.require(not away - self.draining, f"{region_id}: {move} while {away} are away")
            members = keeper.tablets[region_id].record.members
            self.require(all(one.uuid != move.target for one in members), f"{region_id}: {move}, and it has {members}")
            self.decided_ms = self.now
            self.counts["move of the balancer"] += 1
            self.put(region_id, with_move(self._kept(region_id), move))
        self.carry_out()

    def _kept(self, region_id: str) -> TabletIntents:
        return self.intents.get(region_id) or TabletIntents("t", region_id)

    # --- at rest ---

    def run(self, faults_ms: int = 20_000, rest_ms: int = 200_000) -> BalancingWorld:
        self.after(500, self.trouble)
        self.after(1_000, self.balance)
        self.after(1_000, self.move_members)
        super().run(faults_ms, rest_ms)
        keeper = self.master
        assert keeper is not None, "a master is there at the end"
        self.require(self.now - self.decided_ms >= QUIET_MS, "leaders or members still move at rest")
        there = [uuid for uuid in self.machines if uuid != EMPTY_AT_REST]
        led = leaders_of(keeper)
        self.require(not led[EMPTY_AT_REST], f"{EMPTY_AT_REST} leads")
        # A server without a voter of any tablet that has a leader can lead nothing.
        able = {one.uuid for group in self.groups.values() if group.leader for one in voters(group.members)}
        self.require(_is_even([led[uuid] for uuid in able]), f"leaders at rest: {dict(led)}")
        if all(group.leader for group in self.groups.values()):
            held = Counter(one.uuid for group in self.groups.values() for one in voters(group.members))
            for rack in {one.rack for one in self.machines.values()}:
                # Each tablet has a member in each of the three racks, so members even out within a rack.
                counts = [held[uuid] for uuid in there if self.machines[uuid].rack == rack]
                self.require(_is_even(counts), f"members at rest: {dict(held)}")
        return self


def _is_even(counts: list[int]) -> bool:
    return max(counts, default=0) - min(counts, default=0) <= 1
