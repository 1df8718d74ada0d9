"""Orders about splits and merges on simulated servers: to prepare, to seal, to make a daughter's replica.

Stands for `regionserver/tablets/splits/preparing.py` and `work.py`, whose decisions and files it uses. Between two
steps the server may die, freeze, or lose its leadership; a crash can come at each operation on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from coord.errors import CoordError
from regions.messages import ChangeAnswer
from regions.messages.heartbeat import ReplicaState
from regions.messages.server import MemberEndpoint
from regions.records.members import Member
from regionserver.tablets.commands import DONE, SealCommand, encode_seal
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.disk.steps import Beginning
from regionserver.tablets.host.members import answer_of
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.process.interfaces import ReplicaOpening
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.process.reports import ServersSeen, report_of
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.splits import work
from regionserver.tablets.splits.heirs import Daughter, position_of
from regionserver.tablets.splits.prepared import LEFT_MAX
from regionserver.tablets.values.seals import Seal
from simulation.engine.timeline import SECOND
from simulation.tablets.lives import ReplicaLives
from simulation.tablets.server import SimServer
from simulation.tablets.splits.prepared import PREFIX, SimHeirs, made_of
from simulation.tablets.splits.records import SimSplit
from simulation.tablets.storage.rows import SimRows
from simulation.tablets.world import Crashed, World

#: Pause between two looks at a parent.
LOOK_US: Final = 50_000
#: Prepared files are given up after so long without a seal.
KEPT_US: Final = 3 * SECOND
#: Leaders hear nothing of other servers' deaths for so long.
_DEAD_S: Final = 300.0


class Sealed(NamedTuple):
    """A leader's answer that a tablet is sealed."""

    at: int
    members: tuple[Member, ...]


class _SimPreparation:
    """The daughters that one process prepares."""

    def __init__(self, server: SimServer, rows: list[SimRows], split: SimSplit, now: int) -> None:
        """`rows` are those of the parents, in their order."""
        self.life = server.life
        self.rows = rows
        self.split = split
        self.heirs = SimHeirs(server, rows, split.daughters)
        self.batches: Iterator[None] = self.heirs.batches()
        self.is_copied = False
        self.until = now + KEPT_US
        #: Finished files that no replica has taken, once they are finished.
        self.made: dict[str, Daughter] | None = None


class _SealRequest:
    """A request to seal a tablet, or to remove its seal, that waits for its entry."""

    key = ""
    floor = 0

    def __init__(self, tablet: str, done: Callable[[SimServer, TabletAnswer], None]) -> None:
        self.tablet = tablet
        self._done = done

    def answered(self, server: SimServer, answer: TabletAnswer) -> None:
        """See `SimWaiting`."""
        self._done(server, answer)

    def read(self, value: bytes | None) -> None:
        """See `SimWaiting`."""

    def sealed(self) -> None:
        """See `SimWaiting`."""

    def reset(self) -> None:
        """See `SimWaiting`."""


class SplitServers:
    """The orders of all servers of one world."""

    def __init__(self, world: World, lives: ReplicaLives, may_begin: Callable[[str, int, str], bool]) -> None:
        """`may_begin` returns whether the store gives a member of a daughter to a server."""
        self.world = world
        self.lives = lives
        self._may_begin = may_begin
        self._works: dict[tuple[str, str], _SimPreparation] = {}
        #: The daughters that a process is making: (server, daughter) -> its life.
        self._making: dict[tuple[str, str], int] = {}

    def arrive(self, name: str, what: Callable[..., None], *arguments: object) -> None:
        """Send an order to a server: it may be late, come twice, or be lost."""
        world, chance = self.world, self.world.chance
        delay = chance.pick([500, 5_000, 50_000])
        if not (world.is_faulty and chance.happens(0.05)):
            world.at(world.now + delay, self._receive, name, what, arguments)
        if world.is_faulty and chance.happens(0.1):
            world.counts["split_order_repeated"] += 1
            world.at(world.now + chance.below(2 * SECOND), self._receive, name, what, arguments)

    def _receive(self, name: str, what: Callable[..., None], arguments: tuple[object, ...]) -> None:
        world, server = self.world, self.world.servers[name]
        if server.turn is None:
            return
        if server.paused_until > world.now:
            world.at(server.paused_until, self._receive, name, what, arguments)
            return
        what(server, *arguments)

    def started(self, server: SimServer) -> None:
        """Remove the prepared files of an earlier process."""
        for name in server.disk.names("data"):
            if f"data/{name}".startswith(PREFIX):
                self.world.counts["split_prepared_left"] += 1
                server.disk.remove(f"data/{name}")

    # --- prepare ------------------------------------------------------------------------------------------------------

    def prepare(self, server: SimServer, split: SimSplit, done: Callable[[str], None]) -> None:
        """Copy the rows of tablets for their daughters."""
        world, key = self.world, (server.name, split.tablet)
        found = self._work(server, split.tablet)
        if found is not None and found.split is split:
            found.until = world.now + KEPT_US
            return
        if any(one.region_id in server.holdings for one in split.daughters):
            world.counts["split_prepare_refused"] += 1
            return
        for tablet in self._works_with(server, split.tablets):
            self._give_up(server, tablet)
        rows = [one for one in (self._rows(server, tablet) for tablet in split.tablets) if one is not None]
        if len(rows) < len(split.tablets) or any(one.now.seal.is_set for one in rows):
            return
        world.counts["split_prepare"] += 1
        world.counts["merge_prepare"] += split.is_merge
        preparation = self._works[key] = _SimPreparation(server, rows, split, world.now)
        self._batch(server, preparation, done)
        world.at(world.now + LOOK_US, self._look, server, preparation)

    def _work(self, server: SimServer, tablet: str) -> _SimPreparation | None:
        found = self._works.get((server.name, tablet))
        return found if found is not None and found.life == server.life else None

    def _works_with(self, server: SimServer, tablets: list[str]) -> list[str]:
        """Return the first parents of the works of this process that use the rows of one of these tablets."""
        return [
            first
            for (name, first), one in self._works.items()
            if name == server.name and one.life == server.life and not set(one.split.tablets).isdisjoint(tablets)
        ]

    def _lives_on(self, server: SimServer, preparation: _SimPreparation) -> bool:
        return server.turn is not None and self._work(server, preparation.split.tablet) is preparation

    def _batch(self, server: SimServer, preparation: _SimPreparation, done: Callable[[str], None]) -> None:
        """Copy the next batch."""
        world = self.world
        if not self._lives_on(server, preparation):
            return
        if server.paused_until > world.now:
            world.at(server.paused_until, self._batch, server, preparation, done)
            return
        try:
            with self.lives.crashing(server):
                next(preparation.batches)
        except StopIteration:
            preparation.is_copied = True
            world.counts["split_prepared"] += 1
            world.at(world.now + world.chance.pick([500, 50_000]), done, server.name)
            return
        except Crashed:
            world.counts["crash_in_prepare"] += 1
            return
        except (CoordError, OSError):
            self._give_up(server, preparation.split.tablet)
            return
        world.at(world.now + world.chance.pick([500, 20_000, 100_000]), self._batch, server, preparation, done)

    def _look(self, server: SimServer, preparation: _SimPreparation) -> None:
        """See to prepared files: current, finished or given up."""
        world = self.world
        if not self._lives_on(server, preparation):
            return
        world.at(max(world.now + LOOK_US, server.paused_until), self._look, server, preparation)
        if server.paused_until <= world.now:
            self._see_to(server, preparation)

    def _see_to(self, server: SimServer, preparation: _SimPreparation) -> None:
        tablet, name = preparation.split.tablet, preparation.split.name
        rows = [self._rows(server, one) for one in preparation.split.tablets]
        seals = [one.now.seal for one in preparation.rows]
        is_there = all(one is own for one, own in zip(rows, preparation.rows, strict=True))
        is_other = any(one.canceled == name or (one.is_set and one.resharding != name) for one in seals)
        if not is_there or is_other:
            self._give_up(server, tablet)
        elif preparation.made is not None:
            if not preparation.made:
                del self._works[server.name, tablet]
        elif preparation.is_copied and all(one.is_set for one in seals):
            if any(one.region_id in server.holdings for one in preparation.split.daughters):
                self._give_up(server, tablet)
            else:
                self._finish(server, preparation, seals)
        elif preparation.is_copied and self.world.now > preparation.until:
            self._give_up(server, tablet)
        elif preparation.is_copied and preparation.heirs.behind() > min(2, LEFT_MAX):
            self._attempt(server, preparation, preparation.heirs.catch_up)

    def _rows(self, server: SimServer, tablet: str) -> SimRows | None:
        group = server.turn_now().groups.get(tablet)
        return None if group is None or group.failure else server.rows_of(tablet)

    def _finish(self, server: SimServer, preparation: _SimPreparation, seals: list[Seal]) -> None:
        names = [
            (one, Identity(one.region_id, server.work.next_generation(one.region_id)))
            for one in preparation.split.daughters
        ]
        daughters = [Daughter("", name, one.start_key, one.end_key) for one, name in names]
        if self._attempt(server, preparation, lambda: preparation.heirs.finish(seals, daughters, "")):
            self.world.counts["split_finished"] += 1
            preparation.made = {one.identity.tablet: one for one in daughters}

    def _attempt(self, server: SimServer, preparation: _SimPreparation, act: Callable[[], object]) -> bool:
        try:
            with self.lives.crashing(server):
                act()
        except Crashed:
            self.world.counts["crash_at_heirs"] += 1
            return False
        except (CoordError, OSError):
            self.world.counts["split_prepared_useless"] += 1
            self._give_up(server, preparation.split.tablet)
            return False
        return True

    def _give_up(self, server: SimServer, tablet: str) -> None:
        preparation = self._works.pop((server.name, tablet))
        self.world.counts["split_given_up"] += 1
        preparation.heirs.discard()
        for daughter in (preparation.made or {}).values():
            server.remove_rows(daughter.identity.tablet, daughter.identity.generation)

    # --- seal ---------------------------------------------------------------------------------------------------------

    def seal(
        self,
        server: SimServer,
        split: SimSplit,
        tablet: str,
        done: Callable[[SimSplit, str, Sealed], None],
        *,
        wanted: bool = True,
    ) -> None:
        """Seal a parent, or take the seal of a split or merge away."""
        world = self.world
        group, rows = server.turn_now().groups.get(tablet), self._rows(server, tablet)
        if group is None or rows is None:
            return
        if wanted and not rows.now.seal.is_set and self._objection(server, tablet):
            world.counts["seal_not_ready"] += 1
            return
        number = world.next_request()

        def answered(server: SimServer, answer: TabletAnswer) -> None:
            if answer.fate is not Fate.DONE or answer.value.code != DONE or not wanted:
                return
            group = server.turn_now().groups[tablet]
            known = answer_of(group.core, group.servers, ChangeAnswer.DONE)
            world.counts["sealed"] += 1
            if not (world.is_faulty and world.chance.happens(0.1)):
                delay = world.chance.pick([500, 20_000, 500_000] if world.is_faulty else [500])
                world.at(world.now + delay, done, split, tablet, Sealed(answer.value.index, known.members))

        server.requests[number] = _SealRequest(tablet, answered)
        command = SealCommand(split.name, 1, 1 + world.now // 1000, wanted)
        split.asked_ms = split.asked_ms or command.time_ms
        world.counts["seal_asked" if wanted else "unseal_asked"] += 1
        server.turn_now().propose(tablet, number, encode_seal(command))
        world.soon(server)

    def _objection(self, server: SimServer, tablet: str) -> str:
        world = self.world
        group = server.turn_now().groups[tablet]
        there = frozenset(name for name, one in world.servers.items() if one.turn is not None)
        report = report_of(server.holdings[tablet], group, ServersSeen(there, frozenset()), _DEAD_S)
        return work.objection_to_seal(group.core, report)

    # --- daughters ----------------------------------------------------------------------------------------------------

    def inherit(
        self, server: SimServer, split: SimSplit, daughter: str, number: int, refused: Callable[[str, int], None]
    ) -> None:
        """Make a daughter's replica as soon as the replicas of all parents here hold the seals."""
        key = (server.name, daughter)
        if self._making.get(key) == server.life or daughter in server.holdings:
            return
        self._making[key] = server.life
        self._inherit(server, server.life, split, daughter, number, refused)

    def _inherit(
        self, server: SimServer, life: int, split: SimSplit, daughter: str, number: int, refused: Callable[..., None]
    ) -> None:
        world = self.world
        if server.life != life or server.turn is None:
            return
        again = (self._inherit, server, life, split, daughter, number, refused)
        if server.paused_until > world.now:
            world.at(server.paused_until, *again)
            return
        sealed: list[SimRows] = []
        for parent in split.tablets:
            rows, index = self._rows(server, parent), split.indexes[parent]
            if rows is not None and work.may_inherit(rows.now.seal, index):
                sealed.append(rows)
                continue
            applied = 0 if rows is None else rows.now.index
            replica = server.holdings.get(parent)
            state = None if replica is None else ReplicaState(replica.run.value)
            if work.objection_to_inherit(parent, daughter, state, applied, index):
                world.counts["heir_refused"] += 1
                del self._making[server.name, daughter]
                refused(daughter, number)
                return
        if len(sealed) == len(split.tablets):
            if server.work.had_replica(daughter):
                world.counts["heir_was_here"] += 1
                del self._making[server.name, daughter]
                refused(daughter, number)
                return
            self._make_rows(server, split, daughter, number, sealed)
            return
        world.counts["heir_waits"] += 1
        world.at(world.now + LOOK_US, *again)

    def _make_rows(self, server: SimServer, split: SimSplit, daughter: str, number: int, rows: list[SimRows]) -> None:
        """Take the prepared file, or make one of the sealed rows; then make the replica."""
        world, parent = self.world, split.tablet
        preparation = self._work(server, parent)
        if preparation is not None and preparation.split is split:
            if preparation.made is None and preparation.is_copied:
                self._see_to(server, preparation)
            elif preparation.made is None:
                self._give_up(server, parent)
            if server.turn is None:
                return
        made = None if preparation is None or preparation.made is None else preparation.made.pop(daughter, None)
        seals = [
            Seal(split.name, 1, one.now.seal.term, split.indexes[tablet])
            for one, tablet in zip(rows, split.tablets, strict=True)
        ]
        begins = Beginning(*position_of(seals))
        record = next(one for one in split.daughters if one.region_id == daughter)
        try:
            if made is None:
                world.counts["heir_of_sealed_rows"] += 1
                generation = server.work.next_generation(daughter)
                with self.lives.crashing(server):
                    server.sync_rows(server.make_rows(daughter, generation, made_of(rows, seals, record)))
            else:
                world.counts["heir_prepared"] += 1
                generation = made.identity.generation
        except Crashed:
            world.counts["crash_at_heirs"] += 1
            return
        delay = world.chance.pick([200, 5_000, 100_000])
        world.at(world.now + delay, self._make, server, server.life, split, daughter, number, generation, begins)

    def _make(
        self,
        server: SimServer,
        life: int,
        split: SimSplit,
        daughter: str,
        number: int,
        generation: int,
        begins: Beginning,
    ) -> None:
        """Make the replica of a daughter whose rows exist."""
        world = self.world
        if server.life != life or server.turn is None:
            return
        if server.paused_until > world.now:
            world.at(server.paused_until, self._make, server, life, split, daughter, number, generation, begins)
            return
        del self._making[server.name, daughter]
        if daughter in server.holdings or not self._may_begin(daughter, number, server.name):
            world.counts["heir_too_late"] += 1
            server.remove_rows(daughter, generation)
            return
        initial = tuple(MemberEndpoint(one, name, name, 7000) for one, name in world.firsts[daughter].items())
        opening = ReplicaOpening(daughter, "t", number, initial, generation=generation, beginning=begins)
        try:
            with self.lives.crashing(server):
                slot, server.next_slot = server.next_slot, server.next_slot + 1
                (made,) = server.work.make([(opening, slot)], world.now // 1000)
        except Crashed:
            world.counts["crash_at_heirs"] += 1
            return
        assert made.block is not None, made.reason
        replica = server.holdings[daughter] = TabletReplica(made.block, made.meta, RunState.ASLEEP)
        world.counts["heir_made"] += 1
        world.note(f"{server.name} makes {number} of {daughter} behind {begins}")
        self.lives.open(server, replica)
        world.pump(server)

    def is_making(self, server: SimServer, tablet: str) -> bool:
        """Return True while a process makes a daughter's replica."""
        return self._making.get((server.name, tablet)) == server.life
