"""Replicas from the start of a process to their removal: start, opening, making, closing.

Starts decide by the real table (`disk/startup.py`), and files change by the real steps (`process/files_work.py`). A
crash can come before and after each operation on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from coord.storage.shared.items import Position
from regions.messages.server import ClosePurpose, MemberEndpoint
from regionserver.tablets.disk import startup
from regionserver.tablets.disk.life import RunEvent, RunState, run_after
from regionserver.tablets.disk.startup import Decision
from regionserver.tablets.disk.steps import WriteBlock
from regionserver.tablets.disk.superblock import Memory, Superblock
from regionserver.tablets.host.envelope import Envelope, TurnFrame
from regionserver.tablets.host.group import ReplicaIdentity
from regionserver.tablets.host.recovery import reopen
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.process.interfaces import ReplicaOpening
from regionserver.tablets.process.replica import TabletReplica
from simulation.engine.timeline import SECOND
from simulation.tablets.server import SimServer
from simulation.tablets.storage.rows import SimRows
from simulation.tablets.world import CLUSTER, Crashed, World

#: Interval at which a closing replica looks whether its last write is durable.
_LOOK_US: Final = 500
#: Probability of a crash at one operation on the disk while a replica is closed, copied or started.
CRASH_AT_STEP: Final = 0.02


class ReplicaLives:
    """The lives of all replicas of one world."""

    def __init__(self, world: World) -> None:
        self.world = world

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, server: SimServer) -> None:
        """Start the process from the contents of its disk."""
        world = self.world
        server.life += 1
        server.is_pump_planned = server.is_syncing = False
        server.paused_until = 0
        server.requests = {}
        server.broken = set()
        world.note(f"{server.name} starts")
        slots = server.log.recovered()
        if world.bug.ignores_damage:
            for slot in slots.values():
                slot.damage = None
        server.turn = Turn(CLUSTER, server.name, server.life, quiet_ticks=world.quiet_ticks)
        try:
            with self.crashing(server):
                decisions = server.files.start(slots, server.judge, server.name, world.now // 1000)
        except Crashed:
            return
        server.next_slot = server.log.next_slot()
        if world.splits is not None:
            world.splits.started(server)
        server.holdings = {}
        for decision in decisions:
            world.counts[f"start_row_{startup.TABLE.index(decision.row)}"] += 1
            self._take_found(server, decision)
        if world.bug.reopens_lost_numbers:
            self._reopen_lost(server)
        world.at(world.now + 1 + world.chance.below(server.tick_us), world.tick, server, server.life)
        world.at(world.now + world.chance.below(SECOND), world.next_steady, server, server.life)

    def _take_found(self, server: SimServer, decision: Decision) -> None:
        if decision.run is None:
            return
        tablet = decision.tablet
        block = server.files.read_block(tablet)
        assert isinstance(block, Superblock), f"the superblock of {tablet} was sound a moment ago"
        meta = None if decision.run is RunState.LOST else server.read_meta(tablet)
        replica = server.holdings[tablet] = TabletReplica(block, meta, decision.run, decision.story)
        self.world.checks[tablet].on_found(server.name, replica)
        if replica.run is RunState.ASLEEP:
            self.open(server, replica)
        else:
            self.stand(server, replica)

    def _reopen_lost(self, server: SimServer) -> None:
        for tablet, places in self.world.places.items():
            number = next((number for number, name in places.items() if name == server.name), 0)
            if number in self.world.firsts[tablet] and tablet not in server.holdings:
                self.open(server, self.make_first(server, tablet, number))

    @contextmanager
    def crashing(self, server: SimServer) -> Iterator[None]:
        """Let the server crash at an operation on its disk. Raise Crashed then: the process is down."""
        world = self.world

        def step() -> None:
            if world.chance.happens(CRASH_AT_STEP):
                world.counts["crash_at_disk_step"] += 1
                server.disk.step = _no_step
                world.kill(server, power=world.chance.happens(0.5))
                world.at(world.now + world.chance.below(2 * SECOND), world.restart, server)
                raise Crashed

        if world.is_faulty and world.crash_in_step:
            server.disk.step = step
        try:
            yield
        finally:
            server.disk.step = _no_step

    # --- making and opening -------------------------------------------------------------------------------------------

    def make_first(self, server: SimServer, tablet: str, number: int) -> TabletReplica:
        """Carry out the order OPEN for a first replica."""
        world = self.world
        initial = tuple(MemberEndpoint(one, name, name, 7000) for one, name in world.firsts[tablet].items())
        opening = ReplicaOpening(tablet, "t", number, initial)
        (made,) = server.work.make([(opening, server.log.next_slot())], world.now // 1000)
        assert made.block is not None, made.reason
        server.next_slot = server.log.next_slot()
        server.sync_rows(server.make_rows(tablet, made.block.generation, SimRows()))
        replica = server.holdings[tablet] = TabletReplica(made.block, made.meta, RunState.ASLEEP)
        return replica

    def open(self, server: SimServer, replica: TabletReplica) -> None:
        """Host the group of a replica that is ASLEEP."""
        world, tablet, meta = self.world, replica.tablet, replica.meta
        assert meta is not None, f"{tablet} has no consensus metadata"
        slot = server.log.slots[replica.slot]
        if slot.damage and world.bug.ignores_damage:
            slot.damage = None
        server.rows_of(tablet).notes.lose()
        rows = server.rows_of(tablet).now
        group = reopen(
            ReplicaIdentity(tablet, replica.slot, replica.block.generation, replica.number),
            slot.recovered(),
            Position(rows.index, rows.term),
            meta.members(),
            {},
            world.chance,
            config_id=(meta.config_term, meta.config_index),
            settings=world.settings,
            in_flight=server.turn_now().in_flight,
            tracer=world.checks[tablet],
            core_class=world.bug.core_class,
        )
        world.checks[tablet].on_start(replica.number, rows)
        server.turn_now().resting.pop(tablet, None)
        server.broken.discard(tablet)
        replica.run = run_after(tablet, replica.run, RunEvent.WAKE) or replica.run
        server.turn_now().add(group)

    def stand(self, server: SimServer, replica: TabletReplica) -> None:
        """Update the state from which messages to a replica that does not run are answered."""
        slot = None if replica.block.slot is None else server.log.contents(replica.block.slot)
        standing = replica.standing(slot)
        if standing is not None:
            server.turn_now().resting[replica.tablet] = standing

    def move(self, server: SimServer, replica: TabletReplica, event: RunEvent) -> None:
        """Move a replica that does not run to its next state."""
        after = run_after(replica.tablet, replica.run, event)
        assert after is not None, f"{event} leaves no replica"
        replica.run = after
        self.stand(server, replica)

    def vivify(self, server: SimServer, frame: TurnFrame) -> None:
        """Make voters from nothing, where that bug is planted."""
        for item in frame.items:
            if isinstance(item, Envelope) and item.tablet not in server.holdings:
                number = item.message.dst
                if number in self.world.firsts[item.tablet]:
                    self.open(server, self.make_first(server, item.tablet, number))

    # --- closing ------------------------------------------------------------------------------------------------------

    def bury(self, server: SimServer, tablet: str, reason: str, done: Callable[[], None] | None = None) -> None:
        """Stop a replica and delete it; its tombstone stays. `done` is called afterwards, unless the process dies."""
        world, replica = self.world, server.holdings[tablet]
        group = server.turn_now().groups.get(tablet)
        commit = None
        if group is not None:
            commit = Position(group.core.log.commit, max(0, group.core.log.term_at(group.core.log.commit)))
        self.move(server, replica, RunEvent.STOP)
        if group is not None:
            server.turn_now().remove(tablet, server.turn_now().resting.get(tablet))
            world.pump(server)
        world.at(
            world.now + _LOOK_US, self._flushed, server, server.life, replica, server.log.passed, commit, reason, done
        )

    def _flushed(
        self,
        server: SimServer,
        life: int,
        replica: TabletReplica,
        mark: int,
        commit: Position | None,
        reason: str,
        done: Callable[[], None] | None,
    ) -> None:
        """Delete the files once everything that the group has written is durable."""
        world = self.world
        if server.life != life or server.turn is None:
            return
        if server.log.synced < mark or server.paused_until > world.now:
            later = max(world.now + _LOOK_US, server.paused_until)
            world.at(later, self._flushed, server, life, replica, mark, commit, reason, done)
            return
        try:
            with self.crashing(server):
                block = server.work.close(replica.block, ClosePurpose.TOMBSTONE, reason, world.now // 1000)
        except Crashed:
            world.counts["crash_in_deletion"] += 1
            return
        assert isinstance(block, Superblock), block
        if world.bug.remembers_committed and commit is not None and block.memory is not None:
            memory = block.memory
            block = replace(block, memory=Memory(memory.term, memory.vote, commit.term, commit.index))
            server.files.carry_out([WriteBlock(block)])
        replica.block = block
        world.counts["deleted"] += 1
        world.note(f"{server.name} removes {replica.number} of {replica.tablet}: {block.memory}")
        self.move(server, replica, RunEvent.DELETE)
        world.pump(server)
        if done is not None:
            done()


def _no_step() -> None:
    """Let a disk work without a crash."""
