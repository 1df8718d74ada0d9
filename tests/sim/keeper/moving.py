"""The cluster of tablets whose operators move members: intents in the store, under masters that come and go.

On top of `ChangingWorld`: operators ask the active master for moves, which it checks, and withdraw some. What is wanted
lies in the store; a new master reads it. A look at the records ends the moves that have come true.
"""

from __future__ import annotations

import random

from regions.records.intents import TabletIntents, TabletMove
from regions.replication.keeper import Keeper
from regions.replication.policy.intents import remaining, with_move, without_moves
from regions.replication.policy.requests import Places, complete, objection_to_tablet_move
from tests.sim.keeper.changing import EMPTY_AT_REST, ChangingWorld

#: Pause between two looks at moves that may have ended.
LOOK_MS = 700


class MovingWorld(ChangingWorld):
    """See the module docstring."""

    def __init__(self, seed: int, *, machines: int = 6, regions: int = 4, replicas: int = 3) -> None:
        super().__init__(seed, machines=machines, regions=regions, replicas=replicas)
        #: Chance of its own, so that the histories of `ChangingWorld` stay as they are.
        self.whim = random.Random(seed)
        #: Contents of /intents in the store.
        self.intents: dict[str, TabletIntents] = {}

    def _make_keeper(self, epoch: int, unused: object) -> Keeper:
        keeper = super()._make_keeper(epoch, unused)
        for region_id, one in self.intents.items():
            keeper.intents_seen(region_id, one)
        self.counts["takeover with a move"] += bool(self.intents)
        return keeper

    def put(self, region_id: str, after: TabletIntents) -> None:
        """Write the intents of a tablet, and let the active master know: it alone writes them."""
        if after.is_empty:
            self.intents.pop(region_id, None)
        else:
            self.intents[region_id] = after
        if self.master is not None:
            self.master.intents_seen(region_id, after)

    # --- operators ---

    def mover(self) -> None:
        """Ask for a move, or withdraw one."""
        if self.calm:
            return
        self.after(self.whim.choice((500, 2_000)), self.mover)
        region_id = self.whim.choice(sorted(self.regions))
        tablet = None if self.master is None else self.master.tablets.get(region_id)
        if self.master is None or tablet is None or tablet.view.leader_now() is None:
            return
        known = self.intents.get(region_id) or TabletIntents(tablet.record.table_id, region_id)
        if known.moves and self.whim.random() < 0.2:
            self.counts["move withdrawn"] += 1
            self.put(region_id, without_moves(known, known.moves[0].source))
            return
        policy = self.master.policy
        places = Places(self.master.servers, policy.closed, self.master.loads)
        target = self.whim.choice(["", *sorted(self.machines)])
        move = complete(tablet, places, TabletMove("", target))
        if objection_to_tablet_move(tablet, places, known, move):
            self.counts["move refused"] += 1
            return
        self.counts["move accepted"] += 1
        self.put(region_id, with_move(known, move))

    def look(self) -> None:
        """End the moves that have come true, or cannot any more."""
        self.after(LOOK_MS, self.look)
        if self.master is None:
            return
        for region_id, known in list(self.intents.items()):
            left = remaining(known, self.regions[region_id][0].members)
            if left is not known:
                self.counts["move ended"] += 1
                self.put(region_id, left)

    # --- at rest ---

    def run(self, faults_ms: int = 20_000, rest_ms: int = 120_000) -> MovingWorld:
        self.after(1_000, self.mover)
        self.after(LOOK_MS, self.look)
        super().run(faults_ms, rest_ms)
        for region_id, known in self.intents.items():
            # A move to the server that is being emptied waits, and a tablet without a leader does.
            waits = all(one.target == EMPTY_AT_REST for one in known.moves) or not self.groups[region_id].leader
            self.require(waits, f"at rest, {known} has not come true: {self.groups[region_id].members}")
        return self
