"""A small master that splits and merges tablets, one step after the other, as `regions/assign/resharding` does.

Steps are written to the store, which loses nothing. The master's other memory is dropped from time to time, as at a
failover. Orders are late, repeated and lost. Some splits are canceled before the seal has come, or just when it comes.
In histories with merges, two neighbors are merged if their members are on the same servers. The parents' replicas are
deleted when all members of the daughters are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from regions.assign.resharding.daughters import covers, merged, split_at
from regions.records.acts.resharding import ReshardingState, seal_of
from regions.records.members import ConfigId
from regions.records.model import RegionRecord
from regions.replication.config import first_members
from regionserver.tablets.disk.life import RunState
from simulation.engine.chance import SeededRandom
from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from simulation.tablets.changes import Changes, first_of
from simulation.tablets.checks import SimMember, TabletChecker
from simulation.tablets.server import SimServer
from simulation.tablets.splits.records import SimRegions, SimSplit
from simulation.tablets.splits.servers import Sealed, SplitServers
from simulation.tablets.storage.rows import SimRows

#: Keys of a table, and those at which its tablets are split.
KEYS: Final = ("a", "b", "c", "d")
#: Key at which a table begins to be split, in histories with merges.
MIDDLE: Final = "c"
#: Pause between two rounds.
ROUND_US: Final = SECOND // 5
#: Number of tablets at which no more are split.
TABLETS_MAX: Final = 7
#: Probability of a failed commit, which loses the notes of written keys.
_FAILED_COMMIT: Final = 0.02
#: Probability that a split is canceled just when the tablet is sealed.
_CANCELED: Final = 0.15
_S = ReshardingState


class SimulatedSplits:
    """All splits and merges of one world."""

    def __init__(self, changes: Changes, *, merges: bool = False) -> None:
        """`merges`: tablets are merged, too."""
        self.has_merges = merges
        self.option = "--merges" if merges else "--splits"
        self.changes = changes
        self.world = world = changes.world
        #: A random source of its own, so that the other faults of a seed do not depend on it.
        self.chance = SeededRandom(f"{world.seed}-{world.size} splits")
        self.regions = SimRegions()
        for tablet in list(world.places):
            self.regions.records[tablet] = RegionRecord(tablet, tablet)
            if merges:
                self._add_neighbor(tablet)
        self.works: dict[str, SimSplit] = {}
        #: Daughter -> the split that it comes from.
        self.origins: dict[str, SimSplit] = {}
        self.cleaned: list[str] = []
        #: The members of daughters that cannot be made on their servers.
        self._unmade: set[tuple[str, int]] = set()
        self.servers = SplitServers(world, changes.lives, self._claim)
        self._names = 0
        world.at(world.now + SECOND // 2, self._round)

    def _add_neighbor(self, tablet: str) -> None:
        """Let a table begin with two tablets, on the same servers, so that there is something to merge at once."""
        world, neighbor = self.world, f"{tablet}x"
        self.changes.create_at(neighbor, dict(world.places[tablet]))
        # A table has one history of its clients' writes.
        first, second = world.checks[tablet], world.checks[neighbor]
        second.executed, second.fates = first.executed, first.fates
        self.regions.records[tablet] = RegionRecord(tablet, tablet, "", MIDDLE)
        self.regions.records[neighbor] = RegionRecord(tablet, neighbor, MIDDLE, "")

    # --- the store ----------------------------------------------------------------------------------------------------

    def _claim(self, daughter: str, number: int, server: str) -> bool:
        """Let a member begin on a server while its transition is in the store. A server that died before the replica
        was made begins again. A server that has lost its disk has no replica of the parent."""
        copies, key = self.changes.copies, (daughter, number)
        if copies.given.get(key) != server:
            return False
        copies.begun.add(key)
        return True

    def _sealed(self, split: SimSplit, tablet: str, sealed: Sealed) -> None:
        """Note that a parent is sealed. Replace the parents when all of them are."""
        if self.works.get(split.tablet) is not split or split.state is not _S.CLOSING:
            return
        split.sealed[tablet] = sealed
        if len(split.sealed) == (1 if self.world.bug.merges_half_sealed else len(split.parents)):
            self._replace(split)

    def _replace(self, split: SimSplit) -> None:
        """Replace the parents by their daughters: the one write in which the keys change hands."""
        world = self.world
        places = {frozenset(one.uuid for one in members) for _, members in split.sealed.values()}
        if len(places) > 1:
            world.counts["merge_canceled_moved"] += 1
            del self.works[split.tablet]
            return
        if world.is_faulty and self.chance.happens(_CANCELED):
            world.counts["split_canceled_sealed"] += 1
            del self.works[split.tablet]
            return
        if not covers(tuple(split.parents), tuple(split.daughters)):
            raise Violation(f"{split.daughters} do not cover {split.parents}")
        split.state, split.since = _S.CLEANING, world.now
        split.indexes = {tablet: split.sealed[tablet][0] if tablet in split.sealed else 0 for tablet in split.tablets}
        split.patience_us = int(self.chance.between(0, 1) * SECOND)
        _, members = next(iter(split.sealed.values()))
        split.members = first_members(one.uuid for one in sorted(members, key=lambda one: one.number))
        self.regions.replace(split.tablets, split.daughters)
        world.counts["merged" if split.is_merge else "split"] += 1
        world.note(f"{[one.region_id for one in split.daughters]} replace parents with seals {split.indexes}")
        for daughter in split.daughters:
            self._create(split, daughter)
        if split.is_merge and world.bug.lets_second_parent_go:
            self._let_go(split.tablets[1])

    def _create(self, split: SimSplit, daughter: RegionRecord) -> None:
        world, changes, tablet = self.world, self.changes, daughter.region_id
        places = {one.number: one.uuid for one in split.members}
        world.places[tablet], world.firsts[tablet] = places, dict(places)
        world.configs[tablet] = first_of(places)
        changes.ids[tablet] = [ConfigId(0, 0)]
        changes.next_number[tablet] = max(places) + 1
        members = {number: SimMember(tablet, number, world.servers[name]) for number, name in places.items()}
        check = world.checks[tablet] = TabletChecker(tablet, members, lambda: world.now)
        parents = [(world.checks[one], split.indexes[one]) for one in split.tablets]
        check.begin_after(parents, daughter.start_key.encode(), daughter.end_key.encode())
        self.origins[tablet] = split
        for number, name in places.items():
            changes.copies.given[tablet, number] = name

    # --- the master ---------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        world, chance = self.world, self.chance
        pause = ROUND_US if not (world.is_faulty and chance.happens(0.05)) else 2 * SECOND
        world.at(world.now + pause, self._round)
        if world.is_faulty and chance.happens(0.05):
            for split in self.works.values():
                split.prepared.clear()
                split.sealed.clear()
        if world.is_faulty and self.has_merges and chance.happens(0.5):
            self._begin_merge()
        if world.is_faulty and len(self.regions.records) < TABLETS_MAX and chance.happens(0.4):
            self._begin(chance.pick(list(self.regions.records.values())))
        for split in list(self.works.values()):
            if split.state is _S.PREPARING:
                self._prepare(split)
            elif split.state is _S.CLOSING:
                self._seal(split)
            else:
                self._clean(split)
        self._unseal()
        for tablet in self.cleaned:
            self._remove(tablet)

    def _begin(self, region: RegionRecord) -> None:
        """Begin to split a tablet whose members are voters and do not change."""
        keys = [key for key in KEYS if region.contains(key) and key != region.start_key and key > KEYS[0]]
        if self._is_able(region) and keys:
            self._accept([region], split_at(region, self.chance.pick(keys)))
            self.world.counts["split_begun"] += 1

    def _is_able(self, region: RegionRecord) -> bool:
        """Return True if a tablet takes part in no work, and its members are voters."""
        tablet, origin = region.region_id, self.origins.get(region.region_id)
        if self._work_of(tablet) is not None or (origin is not None and self.works.get(origin.tablet) is origin):
            return False
        return bool(self.world.leaders(tablet)) and not self.world.configs[tablet].pre_voters

    def _begin_merge(self) -> None:
        """Begin to merge two neighbors whose members are on the same servers, if there are such."""
        able = [one for one in self.regions.records.values() if self._is_able(one)]
        pairs = [
            [left, right]
            for left in able
            for right in able
            if left.table_id == right.table_id and left.end_key == right.start_key != ""
        ]
        pairs = [one for one in pairs if len({frozenset(self._servers_of(each)) for each in one}) == 1]
        if pairs:
            left, right = self.chance.pick(pairs)
            self._accept([left, right], (merged(left, right),))
            self.world.counts["merge_begun"] += 1

    def _servers_of(self, region: RegionRecord) -> Iterable[str]:
        return self.world.places[region.region_id].values()

    def _accept(self, parents: Sequence[RegionRecord], daughters: Sequence[RegionRecord]) -> None:
        self._names += 1
        split = SimSplit(seal_of(1, self._names), parents, daughters, self.world.now)
        split.patience_us = self.chance.pick([0, 300_000, SECOND, 2 * SECOND])
        if split.is_merge:
            split.last, split.last_us = self.chance.pick(split.tablets), self.chance.pick([0, SECOND // 2, SECOND])
        self.works[split.tablet] = split
        self.world.note(f"{split.tablets} are to become {[one.region_id for one in daughters]}, {split.name}")

    def _work_of(self, tablet: str) -> SimSplit | None:
        """Return the work in which the tablet is a parent."""
        return next((one for one in self.works.values() if tablet in one.tablets), None)

    def _prepare(self, split: SimSplit) -> None:
        places = self.world.places[split.tablet]
        if set(places.values()) <= split.prepared or self.world.now - split.since >= split.patience_us:
            split.state, split.since = _S.CLOSING, self.world.now
            split.patience_us = self.chance.pick(
                [SECOND, 3 * SECOND] if self.has_merges else [100_000, SECOND, 3 * SECOND]
            )
            return
        for name in places.values():
            if name not in split.prepared:
                self.servers.arrive(name, self.servers.prepare, split, split.prepared.add)

    def _seal(self, split: SimSplit) -> None:
        world = self.world
        if world.now - split.since >= split.patience_us:
            world.counts["split_canceled"] += 1
            del self.works[split.tablet]
            return
        for tablet in split.tablets:
            if tablet in split.sealed or (tablet == split.last and world.now - split.since < split.last_us):
                continue
            for server in world.leaders(tablet):
                self.servers.arrive(server.name, self.servers.seal, split, tablet, self._sealed)

    def _unseal(self) -> None:
        """Have tablets unsealed whose leaders report the seal of a split that is not under way."""
        world = self.world
        for tablet, record in self.regions.records.items():
            split = self._work_of(tablet)
            for server in world.leaders(tablet):
                seal = server.rows_of(tablet).now.seal
                if world.is_awake(server) and seal.is_set and (split is None or split.name != seal.resharding):
                    world.counts["unsealing"] += 1
                    late = SimSplit(seal.resharding, [record], (), world.now)
                    self.servers.arrive(server.name, _unsealing(self.servers), late)
                    if world.is_faulty:  # and once more, when the tablet may be sealed for another split
                        delay = self.chance.below(2 * SECOND)
                        world.at(world.now + delay, self.servers.arrive, server.name, _unsealing(self.servers), late)

    def _clean(self, split: SimSplit) -> None:
        """Have the daughters' members made. Let the parents go when all of them are."""
        if self._are_made(split):
            if self.world.now - split.since >= split.patience_us:
                del self.works[split.tablet]
                for tablet in split.tablets:
                    self._let_go(tablet)
                self.world.counts["merge_ended" if split.is_merge else "split_ended"] += 1
            return
        for daughter in split.daughters:
            tablet = daughter.region_id
            for number, name in self.world.firsts[tablet].items():
                is_member = self.world.places[tablet].get(number) == name
                if (tablet, number) in self.changes.copies.given and is_member:
                    self._see_member(split, tablet, number, name)

    def _see_member(self, split: SimSplit, tablet: str, number: int, name: str) -> None:
        world = self.world
        found = world.servers[name].holdings.get(tablet)
        if found is not None and found.number == number and found.run is RunState.RUNNING:
            if world.is_awake(world.servers[name]):
                del self.changes.copies.given[tablet, number]
        elif found is None:
            self.servers.arrive(name, self.servers.inherit, split, tablet, number, self._refused)

    def _refused(self, tablet: str, number: int) -> None:
        self._unmade.add((tablet, number))

    def _are_made(self, split: SimSplit) -> bool:
        """Return True if every member of the daughters has a replica of its own, and each daughter is led."""
        world = self.world
        for daughter in split.daughters:
            tablet = daughter.region_id
            running = [self._runs(tablet, number, name) for number, name in world.places[tablet].items()]
            if world.bug.cleans_at_once and any(running):
                continue
            if not all(running) or not world.leaders(tablet) or world.configs[tablet].pre_voters:
                return False
        return True

    def _runs(self, tablet: str, number: int, name: str) -> bool:
        found = self.world.servers[name].holdings.get(tablet)
        return found is not None and found.number == number and found.run is RunState.RUNNING

    def _let_go(self, tablet: str) -> None:
        self.world.note(f"the replicas of {tablet} are not needed any more")
        self.world.places[tablet] = {}
        self.cleaned.append(tablet)

    def _remove(self, tablet: str) -> None:
        """Delete the replicas of a replaced tablet."""
        for server in self.world.servers.values():
            found = server.holdings.get(tablet)
            if found is not None and self.world.is_awake(server) and found.run in (RunState.RUNNING, RunState.FAILED):
                self.changes.lives.bury(server, tablet, "it was split or merged")

    # --- what others ask ----------------------------------------------------------------------------------------------

    def applied(self, rows: SimRows) -> None:
        """See `SimSplits`: a commit may fail, which loses the notes."""
        if self.world.is_faulty and self.chance.happens(_FAILED_COMMIT):
            self.world.counts["commit_failed"] += 1
            if not self.world.bug.notes_kept_at_failure:
                rows.notes.lose()
            else:
                rows.notes.take()

    def started(self, server: SimServer) -> None:
        """See `SimSplits`."""
        self.servers.started(server)

    def is_held(self, tablet: str) -> bool:
        """See `SimSplits`."""
        split = self._work_of(tablet)
        return tablet in self.cleaned or (split is not None and split.state is not _S.PREPARING)

    def is_unmade(self, tablet: str, number: int) -> bool:
        """See `SimSplits`. A repeated order can make a member after a refusal, from a new copy of the parent."""
        name = self.world.firsts[tablet].get(number)
        found = None if name is None else self.world.servers[name].holdings.get(tablet)
        return (tablet, number) in self._unmade and (found is None or found.number != number)

    def is_making(self, server: SimServer, tablet: str) -> bool:
        """See `SimSplits`."""
        return self.servers.is_making(server, tablet)

    def heirs_at(self, server: SimServer, tablet: str) -> list[str]:
        """See `SimSplits`."""
        split = self._work_of(tablet)
        if split is None or split.state is not _S.CLEANING:
            return []
        return [one.region_id for one in split.daughters if self.parents_of(server, one.region_id)]

    def parents_of(self, server: SimServer, tablet: str) -> Sequence[str]:
        """See `SimSplits`."""
        split = self.origins.get(tablet)
        if split is None or tablet in server.holdings or server.name not in self.world.firsts[tablet].values():
            return ()
        number = next(number for number, name in self.world.firsts[tablet].items() if name == server.name)
        is_open = self.world.places[tablet].get(number) == server.name and (tablet, number) not in self._unmade
        is_open = is_open and not self.world.checks[tablet].members[number].is_burned
        return split.tablets if is_open and all(one in server.holdings for one in split.tablets) else ()

    def is_over(self) -> bool:
        """Return True if no split is under way, no tablet is sealed, and no parent is left."""
        world = self.world
        if self.works or any(self._holds(tablet) for tablet in self.cleaned):
            return False
        leaders = [(one, tablet) for tablet in self.regions.records for one in world.leaders(tablet)]
        return not any(server.rows_of(tablet).now.seal.is_set for server, tablet in leaders)

    def _holds(self, tablet: str) -> bool:
        return any(
            (found := server.holdings.get(tablet)) is not None and found.run in (RunState.RUNNING, RunState.FAILED)
            for server in self.world.servers.values()
        )


def _unsealing(servers: SplitServers) -> Callable[[SimServer, SimSplit], None]:
    def unseal(server: SimServer, split: SimSplit) -> None:
        servers.seal(server, split, split.tablet, lambda *_: None, wanted=False)

    return unseal
