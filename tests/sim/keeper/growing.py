"""A table whose number of replicas goes 1 -> 3 -> 1 -> 5 -> 3, over and over, while servers restart and masters die.

On top of `ChangingWorld`, with exact counts: each step takes as many additions, promotions or removals as voters are
missing or too many. A newcomer whose server restarts just then may be given up: one more addition and removal. Every
server comes back, so a voter leaves only if as many as wanted remain.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from regions.records.members import Member
from regions.records.model import TabletState
from regions.replication.config import voters
from tests.sim.keeper.changing import DEAD_MS, ChangingWorld

#: Number of replicas in each step. The table is created with the last one.
STEPS: Final = (1, 3, 1, 5, 3)
#: Time for a step: several copies, each with a restart of its server and the death of a master.
STEP_MS: Final = 60_000
#: A server that restarts is away for less than the time after which its members are FAILED.
AWAY_MS: Final = DEAD_MS // 3


class GrowingWorld(ChangingWorld):
    """See the module docstring. `run` plays one seed."""

    def __init__(self, seed: int, *, rounds: int = 2) -> None:
        super().__init__(seed, machines=6, regions=3, replicas=STEPS[-1])
        self.left = [*STEPS] * rounds
        #: Changes of each tablet in the present step.
        self.changes: dict[str, Counter[str]] = {}
        self.before: dict[str, int] = {}
        self.is_disturbed = False
        self.restarts = 0

    # --- faults ---

    def disturb(self) -> None:
        """Restart a server, or replace the active master, while members change."""
        if self.is_disturbed:
            machine = self.chance.choice(list(self.machines.values()))
            if self.chance.random() < 0.5 and machine.lives:
                self.restarts += 1
                self.stop(machine)
                self.after(AWAY_MS, lambda: self.start(machine))
            elif self.master is not None:
                self.stop_master()
                self.after(self.chance.choice((200, 3_000)), self.start_master)
        self.after(self.chance.choice((4_000, 6_000)), self.disturb)

    # --- steps ---

    def commit(self, region_id: str, members: tuple[Member, ...], what: str) -> None:
        wanted, former = self.table[0].replication, voters(self.groups[region_id].members)
        gone = [one for one in former if one not in members]
        self.require(not gone or len(voters(members)) >= wanted, f"{gone} left {region_id}, {wanted} are wanted")
        self.changes.setdefault(region_id, Counter())[what] += 1
        super().commit(region_id, members, what)

    def step(self) -> None:
        """Check the last step, and begin the next one."""
        for region_id, group in self.groups.items():
            if self.regions[region_id][0].state is TabletState.REPLACED:
                continue
            former, wanted = self.before.get(region_id, 0), self.table[0].replication
            self.require(
                len(voters(group.members)) == len(group.members) == wanted, f"{wanted} wanted: {group.members}"
            )
            if former:
                grown, shrunk = max(0, wanted - former), max(0, former - wanted)
                found = self.changes.get(region_id, Counter())
                given_up = found["added"] - grown
                fits = found["promoted"] == grown and found["removed"] == shrunk + given_up
                what = f"{region_id} from {former} to {wanted} voters: {dict(found)}, {self.restarts} restarts"
                self.require(fits and 0 <= given_up <= self.restarts, what)
            self.before[region_id] = wanted
        self.changes.clear()
        self.restarts = 0
        if not self.left:
            return
        self.set_replicas(self.left.pop(0))
        self.is_disturbed = True
        self.after(STEP_MS // 2, self.calm_down)
        self.after(STEP_MS, self.step)

    def calm_down(self) -> None:
        self.is_disturbed = False

    def run(self, faults_ms: int = 0, rest_ms: int = 0) -> GrowingWorld:
        """Play the seed."""
        for machine in self.machines.values():
            self.start(machine)
        self.start_master()
        self.tick()
        self.after(STEP_MS, self.step)
        self.disturb()
        self.run_until((len(self.left) + 2) * STEP_MS)
        self.require(not self.left and not self.transitions, f"at rest: {self.left}, {list(self.transitions)}")
        self.history.end()
        return self
