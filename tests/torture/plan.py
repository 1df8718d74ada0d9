"""The faults of one round, with their times. The seed alone determines the plan."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

#: Weight of each fault. Faults that are impossible in a round are left out.
WEIGHTS: Final = {
    "kill": 6,  # kill -9, and a start after `for_s`
    "kill-leader": 4,
    "stop": 6,  # SIGTERM
    "freeze": 5,  # SIGSTOP
    "freeze-leader": 2,
    "storm": 3,  # SIGTERM and SIGKILL in quick succession, always on the same data
    "kill-all": 1,
    "stop-all": 1,
    "isolate": 4,  # nothing passes from or to a node, connections stay
    "isolate-one-way": 3,
    "reset-links": 3,
    "slow-links": 2,
    "full": 4,  # no room on the node's disk
    "flip": 2,  # a flipped bit of the log, while the node is down
    "cut-log": 1,  # the last bytes of the log removed, while the node is down
    "flip-snapshot": 2,
    "wipe": 1,  # the whole directory removed; the node joins again
    "replace": 1,  # the node is removed, emptied, and added again
    "transfer": 3,
    "flood": 3,  # connections that send nothing, or invalid bytes
}
#: Faults that lose durable data. The next one comes only after the node of the former one has caught up, and never for
#: a majority.
FORGETFUL: Final = ("flip", "cut-log", "flip-snapshot", "wipe", "replace")
#: Faults for a store of one node: only those after which all acknowledged writes must exist.
OF_ONE: Final = ("kill", "stop", "freeze", "storm", "full", "flood")
#: Faults that choose their node when they happen, or hit all nodes.
OF_NOBODY: Final = ("kill-leader", "freeze-leader", "kill-all", "stop-all")
#: Faults that need links that can be cut.
OF_LINKS: Final = ("isolate", "isolate-one-way", "reset-links", "slow-links")


@dataclass(frozen=True)
class Fault:
    """Fault `name` hits `node` (0: the leader, or no particular node) at `at_s` and lasts `for_s`."""

    at_s: float
    name: str
    node: int
    for_s: float
    #: For the random choices within the fault.
    seed: int

    def __str__(self) -> str:
        who = f" node {self.node}" if self.node else ""
        return f"{self.at_s:5.1f} s {self.name}{who} for {self.for_s:.2f} s"


@dataclass(frozen=True)
class Plan:
    """The plan of one round."""

    seed: int
    nodes: int
    #: The faults end after this time, and are undone.
    length_s: float
    has_proxies: bool
    #: True if each node has a small file system in memory; otherwise all use the machine's.
    has_disks: bool
    snapshot_entries: int
    keep_entries: int
    tick_ms: int
    #: Limit of files that a node may open. If it is low, a flood exceeds it.
    descriptors: int
    fsync: str
    faults: list[Fault] = field(default_factory=list)

    def __str__(self) -> str:
        kind = f"{self.nodes} nodes, {'proxied, ' if self.has_proxies else ''}a snapshot every {self.snapshot_entries}"
        kind += " entries, small disks" if self.has_disks else " entries, one disk"
        return f"seed {self.seed}: {kind}, {self.fsync} syncs, {len(self.faults)} faults in {self.length_s:.0f} s"


def make_plan(seed: int, *, length_s: float, only: tuple[str, ...] = (), can_fill: bool = True) -> Plan:
    """Return the plan of this seed. `only`: no faults other than these."""
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
        # A new directory learns the members' addresses from other nodes; these addresses bypass the proxies.
        del weights["wipe"], weights["replace"]
    if nodes == 1:
        weights = {name: weights[name] for name in OF_ONE}
    if not can_fill:
        del weights["full"]
    if only:
        weights = {name: weight for name, weight in weights.items() if name in only}
    # Some rounds have only a few kinds of faults, so that faults of one kind interfere with each other.
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
