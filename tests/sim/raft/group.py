"""A group of Raft cores, with drifting clocks, a faulty network, and the shells that drive the cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from coord.errors import NotLeader, ProposalDropped
from coord.raft.core import RaftConfig, RaftCore
from coord.raft.membership import FIRST_MEMORY
from coord.raft.messages import (
    APPEND_RESP,
    LEADER,
    NORMAL,
    SNAPSHOT,
    VOTE,
    VOTE_RESP,
    HardState,
    Message,
    RaftSnapshot,
    Ready,
    bootstrap,
)
from simulation.checks.raft_group import Checker, OpenRead
from simulation.engine.history import SeededHistory
from simulation.engine.timeline import SECOND
from tests.sim.raft.disk import Record, SimDisk
from tests.support import raft_describe as describe
from tests.support.planted import PlantedBug

TICK_US: Final = 50_000


class Crashed(Exception):  # noqa: N818 - it is not an error
    """Unwinds the shell of a node that has just lost power."""


class Bug(PlantedBug):
    """Bugs planted in the shell. This base class plants none."""

    core_class: type[RaftCore] = RaftCore
    #: True: messages that must wait for the disk do not wait.
    ack_before_sync = False
    #: True: the vote is never written.
    forgets_vote = False
    #: Numbers of first members to try.
    sizes: tuple[int, ...] = (3, 5)


class SimNode:
    """One process and its disk. `core` is None while the process is down."""

    def __init__(self, node_id: int, first: RaftSnapshot) -> None:
        self.id = node_id
        self.first = first
        self.disk = SimDisk(first)
        #: The memory of this disk, and lost disks by memory.
        self.memory = FIRST_MEMORY
        self.lost: dict[int, SimDisk] = {}
        self.core: RaftCore | None = None
        #: Number of starts: timers and disk answers of an earlier start are void.
        self.life = 0
        self.tick_us = TICK_US
        self.sync_us = 2000.0
        self.paused_until = 0
        self.pump_planned = False
        self.syncing = False
        # The state machine, in memory only.
        self.applied = 0
        self.state = 0
        self.commit = 0
        self.snapshotting = False
        #: Data of proposals since the start -> index.
        self.proposed: dict[bytes, int] = {}

    def holds(self, index: int, term: int, memory: int) -> bool:
        """Return True if the entry (index, term) is durable on the disk with that memory, or was until the disk was
        lost."""
        disk = self.disk if memory == self.memory else self.lost.get(memory)
        return disk is not None and disk.holds(index, term)

    def core_now(self) -> RaftCore:
        """Return the core of a node that is up."""
        assert self.core is not None, f"{self.id} is down"
        return self.core


class Simulation(SeededHistory):
    """One group of nodes 1 .. n (and spare nodes after them), one seed."""

    POLL_US = SECOND // 2

    def __init__(self, seed: int, size: int, bug: type[Bug] = Bug, trace: bool = False) -> None:
        super().__init__(seed, size, trace=trace)
        self.bug = bug
        self.check = Checker()
        self._contexts = 0
        self._writes = 0
        self.on_new_leader: Callable[[Any, Any], None] | None = None

        chance = self.chance
        appends, append_bytes = chance.pick([(1, 1 << 20), (2, 60), (4, 1), (64, 30), (64, 1 << 20)])
        self.settings = RaftConfig(
            election_ticks=chance.pick([8, 10, 12]),
            heartbeat_ticks=chance.pick([1, 2, 3, 3]),
            max_inflight=appends,
            max_inflight_bytes=chance.pick([60, 1 << 20]),
            max_append_bytes=append_bytes,
            max_apply_entries=chance.pick([1, 3, 256]),
        )
        # The network: the possible faults of each message.
        self.loss = chance.pick([0.0, 0.0, 0.01, 0.05])
        self.repeat = chance.pick([0.0, 0.0, 0.02])
        self.heavy = chance.pick([0.0, 0.01, 0.05])
        self.fifo = chance.happens(0.5)
        self.lazy = chance.pick([0.0, 0.3])
        self.crash_in_step = chance.pick([0.0, 0.0005, 0.002])
        self.snapshot_every = chance.pick([10, 25, 80])
        self.faulty = True
        #: True: a new leader is asked at once to change the membership, before it may.
        self.eager_changes = False
        #: Recent messages on the wire, for connections that deliver old data again.
        self.wire: deque[Message] = deque(maxlen=400)
        #: Acknowledgments of entries, which outlive the terms of their leaders.
        self.acknowledgements: deque[Message] = deque(maxlen=400)
        #: One-way cuts.
        self.cut: set[tuple[int, int]] = set()
        self._link_free: dict[tuple[int, int], int] = {}

        first = bootstrap(list(range(1, size + 1)))
        self.nodes = {node_id: SimNode(node_id, first) for node_id in range(1, size + 3)}
        for node in self.nodes.values():
            node.tick_us = int(TICK_US * chance.between(0.75, 1.3))
            node.sync_us = chance.pick([200.0, 2000.0, 2000.0, 20000.0])
            self.start(node)

    def replay(self) -> str:
        """See SeededHistory."""
        return f"python -m tests.sim.raft --seed {self.seed} --nodes {self.size} --trace"

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, node: SimNode) -> None:
        """Start the process from its disk."""
        disk = node.disk
        node.life += 1
        node.core = self.bug.core_class(
            node.id, self.settings, self.chance, disk.snapshot, disk.hard_state, list(disk.log), node.memory
        )
        node.applied = disk.snapshot.index
        node.state = int(disk.snapshot.handle or "0")
        node.commit = node.applied
        node.pump_planned = node.syncing = node.snapshotting = False
        node.paused_until = 0
        node.proposed = {}
        self.note(f"{node.id} starts: {describe.core(node.core)}")
        self.at(self.now + 1 + self.chance.below(node.tick_us), self._tick, node, node.life)

    def crash(self, node: SimNode) -> None:
        """Cut the power. Unsynced writes are lost except a prefix; peers may see the connection break."""
        if node.core is None:
            return
        torn = node.disk.crash(self.chance)
        self.counts["crash"] += 1
        self.counts["torn_write"] += torn
        node.core = None
        self.note(f"{node.id} crashes, disk holds {len(node.disk.log)} entries{' (torn)' if torn else ''}")
        for peer in self.nodes.values():
            if peer is not node and self.chance.happens(0.7):
                self.at(self.now + 500 + self.chance.below(5000), self._link_broke, peer, node.id)

    def lose_disk(self, node: SimNode) -> None:
        """Replace the disk of a node that is down by an empty one."""
        node.lost[node.memory] = node.disk
        node.disk = SimDisk(node.first)
        node.memory = 2 + self.chance.below(1 << 40)
        self.counts["disk_lost"] += 1
        self.note(f"{node.id} has lost its disk, memory {node.memory:x}")

    def _link_broke(self, node: SimNode, peer: int) -> None:
        if node.core is not None and node.paused_until <= self.now:
            node.core.peer_down(peer)
            self.pump(node)

    def _tick(self, node: SimNode, life: int) -> None:
        if node.life != life or node.core is None:
            return
        if node.paused_until > self.now:
            # Not only when the pause was to end: the end of the faults may shorten it.
            self.at(min(node.paused_until, self.now + node.tick_us), self._tick, node, life)
            return
        self.at(self.now + node.tick_us, self._tick, node, life)
        node.core.tick()
        self.pump(node)

    # --- the shell of one node ----------------------------------------------------------------------------------------

    def pump(self, node: SimNode) -> None:
        """Carry out the effects of the core."""
        core = node.core
        if core is None:
            return
        self._validate(core)
        try:
            while core.has_ready():
                r = core.ready()
                self._validate(core)
                self._carry_out(node, r)
        except Crashed:
            return
        if node.applied >= node.disk.snapshot.index + self.snapshot_every and not node.snapshotting:
            self._take_snapshot(node)

    def _validate(self, core: RaftCore) -> None:
        """Recompute every invariant of a core. Skipped with a planted bug, which the checks of the history must
        find."""
        if self.bug is Bug:
            core.validate()

    def _step(self, node: SimNode) -> None:
        """Perhaps cut the power between two effects of a node."""
        if self.faulty and self.crash_in_step and self.chance.happens(self.crash_in_step):
            self.counts["crash_in_step"] += 1
            self.crash(node)
            self.at(self.now + self.chance.below(2 * SECOND), self._restart, node)
            raise Crashed

    def _restart(self, node: SimNode) -> None:
        if node.core is None:
            self.start(node)

    def _carry_out(self, node: SimNode, r: Ready) -> None:
        if self.lines is not None:
            for line in describe.ready(r):
                self.note(f"{node.id} {line}")
        for event in r.events:
            self.counts[event.name] += 1
        self.check.on_ready(node, r, self.nodes)
        self._step(node)
        for m in r.messages:
            self.send(m)
        self._step(node)
        if self.bug.forgets_vote and r.hard_state is not None:
            r.hard_state = HardState(r.hard_state.term, 0)
        disk = node.disk
        if r.must_persist:
            disk.write(Record(r.number, r.snapshot, r.hard_state, r.entries))
            if not node.syncing:
                self._begin_sync(node)
        if r.snapshot is not None:
            self.check.on_install(node, r.snapshot.index, int(r.snapshot.handle))
        if self.bug.ack_before_sync or not disk.queue:
            for m in r.messages_after_persist:
                self.send(m)
        else:
            disk.queue[-1].after.extend(r.messages_after_persist)
        if r.changed and r.role == LEADER and self.eager_changes and self.on_new_leader is not None:
            self.at(self.now, self.on_new_leader, node, node.life)
        self._step(node)
        for entry in r.committed:
            self.check.on_apply(node, entry)
            if entry.kind == NORMAL and node.proposed.get(entry.data) == entry.index:
                self.check.on_acked(entry.index, node.state)

    def _begin_sync(self, node: SimNode) -> None:
        node.syncing = True
        chance = self.chance
        span = node.sync_us * (0.5 + chance.unit())
        if self.faulty and chance.happens(0.01):
            span *= 100
            self.counts["slow_sync"] += 1
        self.at(self.now + 1 + int(span), self._synced, node, (node.life, len(node.disk.queue)))

    def _synced(self, node: SimNode, what: tuple[int, int]) -> None:
        life, count = what
        if node.life != life or node.core is None:
            return
        if node.paused_until > self.now:
            self.at(node.paused_until, self._synced, node, what)
            return
        node.syncing = False
        done = node.disk.sync(count)
        try:
            self._step(node)
            node.core.persisted(done[-1].number)
            for record in done:
                for m in record.after:
                    self.send(m)
                self._step(node)
        except Crashed:
            return
        if node.disk.queue:
            self._begin_sync(node)
        self.pump(node)

    def _take_snapshot(self, node: SimNode) -> None:
        meta = node.core_now().snapshot_meta(node.applied)
        meta.handle = str(node.state)
        node.snapshotting = True
        self.at(self.now + self.chance.below(200_000), self._snapshot_done, node, (node.life, meta))

    def _snapshot_done(self, node: SimNode, what: tuple[int, RaftSnapshot]) -> None:
        life, meta = what
        if node.life != life or node.core is None:
            return
        node.snapshotting = False
        if meta.index <= node.disk.snapshot.index:
            return
        keep = max(meta.index - self.chance.pick([0, 3, 20]), node.core.log.offset)
        node.disk.save_snapshot(meta, keep)
        node.core.snapshot_saved(meta)
        node.core.compacted(keep)
        self.counts["compaction"] += 1

    # --- network ------------------------------------------------------------------------------------------------------

    def send(self, m: Message) -> None:
        """Send a message over the network."""
        if m.kind == SNAPSHOT:
            self._transfer(m)
            return
        if m.kind == VOTE:
            self.counts["vote_request"] += 1
        elif m.kind == VOTE_RESP and m.granted:
            self.check.on_vote(m)
        self._transmit(m)

    def _transmit(self, m: Message) -> bool:
        link = (m.src, m.dst)
        chance = self.chance
        self.wire.append(m)
        if m.kind == APPEND_RESP and m.granted:
            self.acknowledgements.append(m)
        if self.cut and link in self.cut:
            return False
        unit = chance.unit
        delay = 200 + int(2000 * unit())
        if self.faulty:
            if self.loss and unit() < self.loss:
                self.counts["lost"] += 1
                return False
            if self.heavy and unit() < self.heavy:
                delay = int(delay * 20 / (0.03 + unit()))
            if self.repeat and unit() < self.repeat:
                self.counts["repeated"] += 1
                self.at(self.now + delay + int(unit() * 500_000), self._deliver, m)
        arrival = self.now + delay
        if self.fifo:
            arrival = max(arrival, self._link_free.get(link, 0))
            self._link_free[link] = arrival
        self.at(arrival, self._deliver, m)
        return True

    def _deliver(self, m: Message) -> None:
        node = self.nodes[m.dst]
        core = node.core
        if core is None:
            return
        if node.paused_until > self.now:
            self.at(node.paused_until, self._deliver, m)
            return
        if self.lines is not None:
            self.note(f"{m.dst} gets {describe.message(m)}")
        if m.term < core.term:
            self.counts["old_messages"] += 1
        core.step(m)
        if node.pump_planned:
            return
        if self.lazy and self.chance.unit() < self.lazy:
            # Several messages in one turn of the shell.
            node.pump_planned = True
            self.at(self.now + 500, self._planned_pump, node, node.life)
        else:
            self.pump(node)

    def _planned_pump(self, node: SimNode, life: int) -> None:
        if node.life == life:
            node.pump_planned = False
            self.pump(node)

    def _transfer(self, m: Message) -> None:
        """Transfer a snapshot, which takes time and may fail. The sender's core learns the result."""
        life = self.nodes[m.src].life
        begins = self.now + self.chance.below(300_000)
        self.at(begins, self._transfer_ends, m, life)

    def _transfer_ends(self, m: Message, life: int) -> None:
        arrived = self.nodes[m.dst].core is not None and self._transmit(m)
        if not arrived:
            self.counts["transfer_lost"] += 1
        self.at(self.now + self.chance.below(20_000), self._report_transfer, m, (life, arrived))

    def _report_transfer(self, m: Message, what: tuple[int, bool]) -> None:
        life, arrived = what
        node = self.nodes[m.src]
        if node.core is not None and node.life == life:
            node.core.snapshot_status(m.dst, arrived)
            self.pump(node)

    # --- clients ------------------------------------------------------------------------------------------------------

    def leaders(self) -> list[SimNode]:
        """Return the nodes that consider themselves the leader."""
        return [node for node in self.nodes.values() if node.core is not None and node.core.role == LEADER]

    def awake(self) -> list[SimNode]:
        """Return the nodes that are up and not paused."""
        return [node for node in self.nodes.values() if node.core is not None and node.paused_until <= self.now]

    def propose(self, node: SimNode, count: int) -> None:
        """Write `count` times as a client of `node`, in one turn."""
        core = node.core_now()
        for _ in range(count):
            self._writes += 1
            data = b"write %d" % self._writes
            try:
                node.proposed[data] = core.propose(data)
            except (NotLeader, ProposalDropped) as error:
                self.counts[type(error).__name__] += 1
                return
        self.pump(node)

    def read(self, node: SimNode) -> None:
        """Read as a client of `node`."""
        self._contexts += 1
        try:
            node.core_now().read_index(self._contexts)
        except NotLeader:
            self.counts["read_refused"] += 1
            return
        self.check.reads[self._contexts] = OpenRead(node.id, self.check.commit)
        self.pump(node)
