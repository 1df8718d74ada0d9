"""Copies of replicas in the simulation: StartTabletCopy with its guards, and the six steps of a copy, one event each.

The decisions are the real ones: guards (`copying/guards.py`), merge (`copying/merge.py`), steps and superblocks
(`disk/`), the source's facts (`copying/source.py`). Only the thread and the connection are missing. Between two steps
either server may die, freeze, be cut off or be deposed, and a crash can come at each operation on the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from regions.messages.heartbeat import ReplicaState, TabletReport
from regions.messages.tablets import OwnReplica
from regionserver.tablets.copying import guards, merge
from regionserver.tablets.copying.asking import needs_copy, seen_in
from regionserver.tablets.copying.guards import CopyFacts, ReplicaHere
from regionserver.tablets.copying.messages import CopyOutcome, CopySource, SeenReplica, StartTabletCopy
from regionserver.tablets.copying.source import CopyRefusal, meta_at
from regionserver.tablets.disk import steps, superblock
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.life import DataState, RunEvent, RunState
from regionserver.tablets.disk.superblock import Memory, Superblock, memory_of
from regionserver.tablets.host.group import Group
from regionserver.tablets.host.wanted_copies import CopyWanted
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.values.seals import Seal
from simulation.engine.history import Violation
from simulation.tablets.lives import ReplicaLives
from simulation.tablets.server import SimServer
from simulation.tablets.storage.rows import RowsImage, SimRows
from simulation.tablets.world import Crashed, World

#: Port that every simulated server names; connections go by the server's name.
PORT: Final = 7000
#: Limit of copies that a server receives at once: lower than the real one, so that some orders are throttled.
COPIES_MAX: Final = 2
#: Limit of orders that are kept to arrive a second time, from leaders that may be deposed by then.
_LATE_MAX: Final = 20


class CopyRun:
    """One copy that runs on its destination."""

    def __init__(self, server: SimServer, order: StartTabletCopy) -> None:
        self.server = server
        self.life = server.life
        self.order = order
        self.is_canceled = False
        self.slot: int | None = None
        self.memory: Memory | None = None
        #: Number of the source's process life in which the session began; 0: no session.
        self.source_life = 0
        self.pin = 0
        self.rows: RowsImage | None = None
        self.path = ""
        self.meta: ConsensusMeta | None = None

    @property
    def tablet(self) -> str:
        """The tablet."""
        return self.order.tablet


class Copies:
    """All copies of one world."""

    def __init__(self, world: World, lives: ReplicaLives) -> None:
        self.world = world
        self.lives = lives
        self._runs: dict[tuple[str, str], CopyRun] = {}
        #: The transitions in the store: (tablet, number) -> server that may begin it; and those that have begun.
        self.given: dict[tuple[str, int], str] = {}
        self.begun: set[tuple[str, int]] = set()
        self.sent: deque[StartTabletCopy] = deque(maxlen=_LATE_MAX)

    def runs(self) -> list[CopyRun]:
        """Return the running copies. Copies of a dead process have ended."""
        for run in list(self._runs.values()):
            if run.server.turn is None or run.server.life != run.life:
                self._end(run)
        return list(self._runs.values())

    def _run_of(self, server: SimServer, tablet: str) -> CopyRun | None:
        return next((run for run in self.runs() if run.server is server and run.tablet == tablet), None)

    # --- orders -------------------------------------------------------------------------------------------------------

    def ask(self, leader: SimServer, wanted: CopyWanted) -> None:
        """Send a leader's question, and let the leader know when there is an answer, or will be none."""
        world, chance = self.world, self.world.chance
        replica = leader.holdings[wanted.tablet]
        if wanted.word is None and not self._is_lacking(wanted, leader.name, replica.number):
            leader.turn_now().copy_answered(wanted.tablet, wanted.number)
            return
        seen = self._shown(wanted) if wanted.word is None else seen_in(wanted)
        order = StartTabletCopy(
            wanted.server, wanted.tablet, wanted.number, wanted.role, wanted.term,
            CopySource(replica.number, leader.name, leader.name, PORT), seen, "t",
        )  # fmt: skip
        self.sent.append(order)
        delay = chance.pick([500, 5_000, 50_000]) if world.is_faulty else 1000
        if not self._is_cut(leader.name, wanted.server):
            world.at(world.now + delay, self.arrive, order)
        world.at(world.now + 2 * delay, self._answered, leader, leader.life, order)

    def _is_lacking(self, wanted: CopyWanted, name: str, leader: int) -> bool:
        """Return True if a running member follows this leader and lacks the entry, according to its server."""
        server = self.world.servers[wanted.server]
        group = None if server.turn is None else server.turn.groups.get(wanted.tablet)
        if group is None or group.failure or self._is_cut(name, wanted.server):
            return False
        report = TabletReport(wanted.tablet, "t", group.replica.number, ReplicaState.RUNNING, group.core.term)
        own = OwnReplica(report, leader=group.core.leader, commit_index=group.core.log.commit)
        return needs_copy(own, wanted, leader)

    def _shown(self, wanted: CopyWanted) -> SeenReplica | None:
        """Return a running member, as its server reports it to the leader."""
        server = self.world.servers[wanted.server]
        local = None if server.turn is None else self._local(server, wanted.tablet)
        if local is None:
            return None
        return SeenReplica(local.number, local.state, local.last_term, local.last_index)

    def _answered(self, leader: SimServer, life: int, order: StartTabletCopy) -> None:
        is_accepted = self._run_of(self.world.servers[order.recipient], order.tablet) is not None
        if leader.life == life and leader.turn is not None and not is_accepted:
            leader.turn.copy_answered(order.tablet, order.number)

    def arrive(self, order: StartTabletCopy) -> None:
        """Handle an order at its server."""
        world, server = self.world, self.world.servers[order.recipient]
        if server.turn is None:
            return
        if server.paused_until > world.now:
            world.at(server.paused_until, self.arrive, order)
            return
        replica = server.holdings.get(order.tablet)
        before = None if replica is None else replica.block
        is_running = replica is not None and replica.run in (RunState.RUNNING, RunState.FAILED)
        if world.bug.deletes_before_checks and is_running and self._run_of(server, order.tablet) is None:
            self.lives.bury(server, order.tablet, "a copy", lambda: self._decide(server, order, before))
            return
        self._decide(server, order, before)

    def _decide(self, server: SimServer, order: StartTabletCopy, before: Superblock | None) -> None:
        """Check an order, and begin the copy or reject the order. A rejected one has changed nothing (X13)."""
        world = self.world
        local = self._local(server, order.tablet)
        busy = (RunState.STOPPING, RunState.RESTING)
        running = sum(run.server is server for run in self.runs())
        facts = CopyFacts(
            order, server.name, local,
            is_copied=self._run_of(server, order.tablet) is not None,
            is_busy=(local is not None and server.holdings[order.tablet].run in busy)
            or (world.splits is not None and world.splits.is_making(server, order.tablet)),
            has_room=running < COPIES_MAX,
            has_space=not (world.is_faulty and world.chance.happens(0.02)),
        )  # fmt: skip
        check = guards.check_copy(facts)
        world.counts[f"copy_check_{guards.CHECKS.index(check)}"] += 1
        world.note(f"{server.name} is to copy {order.tablet} as {order.number} from {order.source.uuid}: {check.when}")
        if check.outcome is not CopyOutcome.STARTED:
            replica = server.holdings.get(order.tablet)
            after = None if replica is None else replica.block
            if after != before:
                raise Violation(
                    f"{server.name} rejects a copy of {order.tablet} ({check.when}) and has changed its files"
                )
            return
        if not self._may_begin(server, order, local):
            world.counts["copy_not_given"] += 1
            return
        world.counts["copy_started"] += 1
        run = self._runs[server.name, order.tablet] = CopyRun(server, order)
        replica = server.holdings.get(order.tablet)
        if replica is not None and replica.block.data_state is DataState.READY:
            world.counts["copy_over_replica"] += 1
            self.lives.bury(server, order.tablet, "replaced by a copy", lambda: self._then(run, self._begin_files))
        else:
            self._then(run, self._begin_files)

    def _may_begin(self, server: SimServer, order: StartTabletCopy, local: ReplicaHere | None) -> bool:
        """Return True if the number may begin here: it was here before, or the store assigns it to this server, which
        happens once."""
        if local is not None and local.number == order.number and local.has_memory:
            return True
        key = (order.tablet, order.number)
        if self.world.bug.claims_nothing:
            return True
        was_begun_here = local is not None and local.number == order.number
        if self.given.get(key) != server.name or (key in self.begun and not was_begun_here):
            return False
        self.begun.add(key)
        return True

    def _local(self, server: SimServer, tablet: str) -> ReplicaHere | None:
        replica = server.holdings.get(tablet)
        if replica is None:
            return None
        group, block = server.turn_now().groups.get(tablet), replica.block
        standing = group.standing() if group is not None else server.turn_now().resting.get(tablet)
        ends = (0, 0, 0) if standing is None else (standing.term, standing.last_term, standing.last_index)
        has_memory = block.data_state is DataState.READY or block.memory is not None
        return ReplicaHere(block.number, block.highest_number, ReplicaState(replica.run.value), *ends, has_memory)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _then(self, run: CopyRun, step: Callable[[CopyRun], None]) -> None:
        """Carry out the next step after a while, unless the destination dies before."""
        world = self.world
        delay = world.chance.pick([200, 5_000, 100_000] if world.is_faulty else [200, 5_000])
        world.at(world.now + delay, self._take_step, run, step)

    def _take_step(self, run: CopyRun, step: Callable[[CopyRun], None]) -> None:
        world, server = self.world, run.server
        if server.life != run.life or server.turn is None:
            self._end(run)
            return
        if server.paused_until > world.now:
            world.at(server.paused_until, self._take_step, run, step)
            return
        try:
            with self.lives.crashing(server):
                if run.is_canceled:
                    raise CopyRefusal("canceled")
                step(run)
        except Crashed:
            world.counts["crash_in_copy"] += 1
            self._end(run)
        except CopyRefusal as error:
            self._give_up(run, str(error))

    def _begin_files(self, run: CopyRun) -> None:
        """Step 1: superblock COPYING."""
        server, order, world = run.server, run.order, self.world
        at_ms = world.now // 1000
        fresh = Superblock(
            server.name, order.tablet, DataState.COPYING, order.number, order.number, 1, None, order.table,
            copied_from=order.source.uuid, created_ms=at_ms, changed_ms=at_ms,
        )  # fmt: skip
        block = server.work.begin_copy(order.tablet, order.number, order.source.uuid, fresh, at_ms)
        assert isinstance(block, Superblock), block
        run.memory = memory_of(block, server.read_meta(order.tablet))
        run.slot, server.next_slot = server.next_slot, server.next_slot + 1
        replica = server.holdings.get(order.tablet)
        if replica is None:
            replica = server.holdings[order.tablet] = TabletReplica(block, None, RunState.COPYING)
            self.lives.stand(server, replica)
        else:
            world.counts["copy_over_tombstone"] += run.memory is not None
            replica.block = block
            self.lives.move(server, replica, RunEvent.COPY)
        self._then(run, self._begin_session)

    def _begin_session(self, run: CopyRun) -> None:
        """Step 2: the source's term and members, merged with the promises of this server."""
        order = run.order
        source, group = self._source(run)
        run.source_life = source.life
        run.pin = source.rows_of(run.tablet).steady.index
        self.world.pins.setdefault((source.name, run.tablet), []).append(run.pin)
        run.meta = self._merged(run, group, group.applied_index)
        run.server.work.carry_out(steps.copy_merged(self._block(run), run.meta))
        self.world.checks[run.tablet].on_promise(order.number)
        self._then(run, self._fetch_rows)

    def _fetch_rows(self, run: CopyRun) -> None:
        """Step 3: the rows as they are at one moment."""
        source, _ = self._source(run)
        run.rows = source.rows_of(run.tablet).now.copy()
        if self.world.bug.loses_results:
            run.rows.forget_results()
        if self.world.bug.copies_lose_seal:
            run.rows.seal = Seal()
        run.path = run.server.make_rows(run.tablet, self._block(run).generation, SimRows(run.rows.copy()))
        self._then(run, self._fetch_log if self.world.bug.rows_not_synced else self._sync_rows)

    def _sync_rows(self, run: CopyRun) -> None:
        run.server.sync_rows(run.path)
        self._then(run, self._fetch_log)

    def _fetch_log(self, run: CopyRun) -> None:
        """Step 4: the configuration at the rows' entry, a slot that begins there, and the log behind the rows."""
        source, group = self._source(run)
        assert run.rows is not None, "rows come first"
        assert run.slot is not None, "the files come first"
        index, term = run.rows.index, run.rows.term
        assert run.meta is not None, "a session comes first"
        written, run.meta = run.meta, self._merged(run, group, index)
        slot = source.log.slots[source.holdings[run.tablet].slot]
        before, entries = slot.entries_from(index + 1, 1 << 30)
        if slot.last().index > index and (before is None or (before.index, before.term) != (index, term)):
            self.world.counts["copy_log_gone"] += 1
            raise CopyRefusal("the source's log does not follow the rows any more")
        block = self._block(run)
        run.server.work.carry_out(steps.copy_slot(block, run.slot, run.meta, written, index, term))
        last = (entries[-1].term, entries[-1].index) if entries else (term, index)
        if entries and not self.world.bug.log_not_copied:
            self.world.counts["copy_with_log"] += 1
            run.server.work.carry_out([steps.FillSlot(run.slot, block.generation, entries)])
        why = merge.log_objection(run.memory, *last)
        if why:
            self.world.counts["copy_log_short"] += 1
            raise CopyRefusal(why)
        self._then(run, self._finish)

    def _finish(self, run: CopyRun) -> None:
        """Steps 5 and 6: superblock READY, and the replica starts."""
        server, order, world = run.server, run.order, self.world
        assert run.slot is not None, "the slot comes first"
        ready = superblock.copied(self._block(run), run.slot, world.now // 1000)
        server.work.carry_out(steps.copy_ended(ready))
        world.checks[run.tablet].on_promise(order.number)
        replica = server.holdings[run.tablet]
        replica.block, replica.meta = ready, run.meta
        self._end(run)
        world.counts["copied"] += 1
        world.note(f"{server.name} has copied {run.tablet} as {order.number}")
        self.lives.move(server, replica, RunEvent.COPIED)
        self.lives.open(server, replica)
        world.pump(server)

    def _give_up(self, run: CopyRun, why: str) -> None:
        """Go back to the tombstone, with the memory that it had."""
        server, world = run.server, self.world
        self._end(run)
        replica = server.holdings.get(run.tablet)
        if replica is None or replica.run is not RunState.COPYING:
            return
        world.note(f"{server.name} gives the copy of {run.tablet} up: {why}")
        try:
            with self.lives.crashing(server):
                after = server.work.give_up(replica.block, run.slot, why, world.now // 1000)
        except Crashed:
            world.counts["crash_in_give_up"] += 1
            return
        assert isinstance(after, Superblock), after
        world.counts["copy_given_up"] += 1
        meta = server.read_meta(run.tablet)
        replica.block = after
        replica.meta = meta if meta is not None and meta.number == after.number else None
        self.lives.move(server, replica, RunEvent.GIVE_UP)
        world.checks[run.tablet].on_promise(after.number)

    # --- the source ---------------------------------------------------------------------------------------------------

    def _source(self, run: CopyRun) -> tuple[SimServer, Group]:
        """Return the source's server and group. Raise CopyRefusal if it does not answer, or serves no copy."""
        world, order = self.world, run.order
        source = world.servers[order.source.uuid]
        if not world.is_awake(source) or self._is_cut(source.name, run.server.name):
            world.counts["copy_source_gone"] += 1
            raise CopyRefusal("the source does not answer")
        if run.source_life not in (0, source.life):
            world.counts["copy_source_restarted"] += 1
            raise CopyRefusal("the source has forgotten the session")
        group = source.turn_now().groups.get(run.tablet)
        replica = source.holdings.get(run.tablet)
        if group is None or group.failure or replica is None or replica.number != order.source.number:
            world.counts["copy_source_closed"] += 1
            raise CopyRefusal("the source has no running replica")
        if group.servers.get(order.number, run.server.name) != run.server.name:
            raise CopyRefusal("the member is on another server")
        world.counts["copy_source_deposed"] += group.core.leadership is None
        return source, group

    def _merged(self, run: CopyRun, group: Group, index: int) -> ConsensusMeta:
        meta = merge.merged(run.tablet, run.order.number, run.memory, meta_at(group, index))
        return self.world.bug.merged(meta, group.core.vote)

    def _is_cut(self, one: str, other: str) -> bool:
        cut = self.world.cut
        return (one, other) in cut or (other, one) in cut

    def _block(self, run: CopyRun) -> Superblock:
        return run.server.holdings[run.tablet].block

    def _end(self, run: CopyRun) -> None:
        if self._runs.get((run.server.name, run.tablet)) is run:
            del self._runs[run.server.name, run.tablet]
        pins = self.world.pins.get((run.order.source.uuid, run.tablet), [])
        if run.source_life and run.pin in pins:
            pins.remove(run.pin)
