"""What happens to the nodes of one round: a list of faults in time, made from the seed and nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

#: Weight of each fault; what is not possible in a round is left out of it.
WEIGHTS: Final = {
    "kill": 6,  # kill -9, and again after `for_s`
    "kill-leader": 4,
    "stop": 6,  # SIGTERM
    "freeze": 5,  # SIGSTOP
    "freeze-leader": 2,
    "storm": 3,  # SIGTERM and SIGKILL in quick succession, always on the same data
    "kill-all": 1,
    "stop-all": 1,
    "isolate": 4,  # nothing gets from or to a node, connections stay
    "isolate-one-way": 3,
    "reset-links": 3,
    "slow-links": 2,
    "full": 4,  # no room on its disk
    "flip": 2,  # a bit of its log, while it is down
    "cut-log": 1,  # the last bytes of its log, while it is down
    "flip-snapshot": 2,
    "wipe": 1,  # its whole directory, and it joins anew
    "replace": 1,  # it is taken out, emptied, and let in again
    "transfer": 3,
    "flood": 3,  # connections that say nothing, or nonsense
}
#: These forget what was durable: no two of them before the node of the first has caught up, and no majority is ever
#: without its memory.
FORGETFUL: Final = ("flip", "cut-log", "flip-snapshot", "wipe", "replace")
#: For a node that is alone: what can happen to it and leave it all that it acknowledged.
OF_ONE: Final = ("kill", "stop", "freeze", "storm", "full", "flood")
#: These choose whom they hit when they happen, or hit all.
OF_NOBODY: Final = ("kill-leader", "freeze-leader", "kill-all", "stop-all")
#: These need links that can be cut.
OF_LINKS: Final = ("isolate", "isolate-one-way", "reset-links", "slow-links")


@dataclass(frozen=True)
class Fault:
    """`name` happens to `node` (0: whoever leads, or nobody in particular) at `at_s` and lasts `for_s`."""

    at_s: float
    name: str
    node: int
    for_s: float
    #: For what else is left to chance within it.
    seed: int

    def __str__(self) -> str:
        who = f" node {self.node}" if self.node else ""
        return f"{self.at_s:5.1f} s {self.name}{who} for {self.for_s:.2f} s"


@dataclass(frozen=True)
class Plan:
    """One round."""

    seed: int
    nodes: int
    #: The faults end after this; then all is mended.
    length_s: float
    has_proxies: bool
    #: Whether each node has a small file system of its own, in memory; else all have the machine's.
    has_disks: bool
    snapshot_entries: int
    keep_entries: int
    tick_ms: int
    #: How many files a node may open; a flood takes more than these, if they are few.
    descriptors: int
    fsync: str
    faults: list[Fault] = field(default_factory=list)

    def __str__(self) -> str:
        kind = f"{self.nodes} nodes, {'proxied, ' if self.has_proxies else ''}a snapshot every {self.snapshot_entries}"
        kind += " entries, small disks" if self.has_disks else " entries, one disk"
        return f"seed {self.seed}: {kind}, {self.fsync} syncs, {len(self.faults)} faults in {self.length_s:.0f} s"


def make_plan(seed: int, *, length_s: float, only: tuple[str, ...] = (), can_fill: bool = True) -> Plan:
    """The round of this seed. `only`: no other faults than these."""
    rng = random.Random(seed)
    nodes = rng.choice([1, 3, 3, 3, 3, 5])
    has_proxies = nodes > 1 and rng.random() < 0.5
    can_fill = rng.random() < 0.7 and can_fill
    plan = Plan(
        seed,
        nodes,
        length_s,
        has_proxies,
        can_fill,
        snapshot_entries=rng.choice([30, 100, 100, 400, 5000]),
        keep_entries=rng.choice([10, 50, 300]),
        tick_ms=rng.choice([100, 200]),
        descriptors=rng.choice([160, 4096]),
        fsync="inline" if rng.random() < 0.1 else "thread",
    )
    weights = dict(WEIGHTS)
    if not has_proxies:
        for name in OF_LINKS:
            del weights[name]
    else:
        # A new directory learns the members' addresses from others, whose ways lead past the proxies.
        del weights["wipe"], weights["replace"]
    if nodes == 1:
        weights = {name: weights[name] for name in OF_ONE}
    if not can_fill:
        del weights["full"]
    if only:
        weights = {name: weight for name, weight in weights.items() if name in only}
    # Some rounds are of a few kinds only, so that one kind gets into the way of itself.
    if not only and rng.random() < 0.3:
        chosen = rng.sample(sorted(weights), 4)
        weights = {name: weights[name] for name in chosen}
    pace_s = rng.choice([0.3, 0.8, 1.5, 2.5])
    at_s = 1.0
    while at_s < length_s and weights:
        name = rng.choices(list(weights), list(weights.values()))[0]
        node = 0 if name in OF_NOBODY else rng.randint(1, nodes)
        for_s = rng.choice([0.0, 0.1, 0.4, 1.0, 2.0, 4.0]) * rng.uniform(0.7, 1.3)
        plan.faults.append(Fault(at_s, name, node, for_s, rng.randrange(1 << 30)))
        at_s += rng.expovariate(1 / pace_s)
    return plan
