"""A small master that splits tablets, one step after the other, as `regions/assign/resharding` does.

Steps are written to the store, which loses nothing. The master's other memory is dropped from time to time, as at a
failover. Orders are late, repeated and lost. Some splits are canceled before the seal has come, or just when it comes.
The parents' replicas are deleted when all members of the daughters are made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from regions.assign.resharding.daughters import covers, split_at
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
    """All splits of one world."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self.world = world = changes.world
        #: A random source of its own, so that the other faults of a seed do not depend on it.
        self.chance = SeededRandom(f"{world.seed}-{world.size} splits")
        self.regions = SimRegions()
        for tablet in world.places:
            self.regions.records[tablet] = RegionRecord(tablet, tablet)
        self.works: dict[str, SimSplit] = {}
        #: Daughter -> the split that it comes from.
        self.origins: dict[str, SimSplit] = {}
        self.cleaned: list[str] = []
        #: The members of daughters that cannot be made on their servers.
        self._unmade: set[tuple[str, int]] = set()
        self.servers = SplitServers(world, changes.lives, self._claim)
        self._names = 0
        world.at(world.now + SECOND // 2, self._round)

    # --- the store ----------------------------------------------------------------------------------------------------

    def _claim(self, daughter: str, number: int, server: str) -> bool:
        """Let a member begin on a server while its transition is in the store. A server that died before the replica
        was made begins again. A server that has lost its disk has no replica of the parent."""
        copies, key = self.changes.copies, (daughter, number)
        if copies.given.get(key) != server:
            return False
        copies.begun.add(key)
        return True

    def _replace(self, split: SimSplit, sealed: Sealed) -> None:
        """Replace the parent by its daughters: the one write in which the keys change hands."""
        if self.works.get(split.tablet) is not split or split.state is not _S.CLOSING:
            return
        world = self.world
        if world.is_faulty and self.chance.happens(_CANCELED):
            world.counts["split_canceled_sealed"] += 1
            del self.works[split.tablet]
            return
        if not covers((split.parent,), tuple(split.daughters)):
            raise Violation(f"{split.daughters} do not cover {split.parent}")
        split.state, split.since, split.index = _S.CLEANING, world.now, sealed.at
        split.patience_us = int(self.chance.between(0, 1) * SECOND)
        split.members = first_members(one.uuid for one in sorted(sealed.members, key=lambda one: one.number))
        self.regions.replace(split.tablet, split.daughters)
        world.counts["split"] += 1
        world.note(f"{split.tablet} is replaced by {[one.region_id for one in split.daughters]} behind {sealed.at}")
        for daughter in split.daughters:
            self._create(split, daughter)

    def _create(self, split: SimSplit, daughter: RegionRecord) -> None:
        world, changes, tablet = self.world, self.changes, daughter.region_id
        places = {one.number: one.uuid for one in split.members}
        world.places[tablet], world.firsts[tablet] = places, dict(places)
        world.configs[tablet] = first_of(places)
        changes.ids[tablet] = [ConfigId(0, 0)]
        changes.next_number[tablet] = max(places) + 1
        members = {number: SimMember(tablet, number, world.servers[name]) for number, name in places.items()}
        check = world.checks[tablet] = TabletChecker(tablet, members, lambda: world.now)
        check.begin_after(
            world.checks[split.tablet], split.index, daughter.start_key.encode(), daughter.end_key.encode()
        )
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
        tablet = region.region_id
        origin = self.origins.get(tablet)
        if tablet in self.works or (origin is not None and origin.tablet in self.works):
            return
        keys = [key for key in KEYS if region.contains(key) and key != region.start_key and key > KEYS[0]]
        if not self.world.leaders(tablet) or self.world.configs[tablet].pre_voters or not keys:
            return
        self._names += 1
        daughters = split_at(region, self.chance.pick(keys))
        split = SimSplit(seal_of(1, self._names), region, daughters, self.world.now)
        split.patience_us = self.chance.pick([0, 300_000, SECOND, 2 * SECOND])
        self.works[tablet] = split
        self.world.counts["split_begun"] += 1
        self.world.note(f"{tablet} is to be split at {daughters[1].start_key}, {split.name}")

    def _prepare(self, split: SimSplit) -> None:
        places = self.world.places[split.tablet]
        if set(places.values()) <= split.prepared or self.world.now - split.since >= split.patience_us:
            split.state, split.since = _S.CLOSING, self.world.now
            split.patience_us = self.chance.pick([100_000, SECOND, 3 * SECOND])
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
        for server in world.leaders(split.tablet):
            self.servers.arrive(server.name, self.servers.seal, split, self._replace)

    def _unseal(self) -> None:
        """Have tablets unsealed whose leaders report the seal of a split that is not under way."""
        world = self.world
        for tablet, record in self.regions.records.items():
            split = self.works.get(tablet)
            for server in world.leaders(tablet):
                seal = server.rows_of(tablet).now.seal
                if world.is_awake(server) and seal.is_set and (split is None or split.name != seal.resharding):
                    world.counts["unsealing"] += 1
                    late = SimSplit(seal.resharding, record, (), world.now)
                    self.servers.arrive(server.name, _unsealing(self.servers), late)
                    if world.is_faulty:  # and once more, when the tablet may be sealed for another split
                        delay = self.chance.below(2 * SECOND)
                        world.at(world.now + delay, self.servers.arrive, server.name, _unsealing(self.servers), late)

    def _clean(self, split: SimSplit) -> None:
        """Have the daughters' members made. Let the parent go when all of them are."""
        if self._are_made(split):
            if self.world.now - split.since >= split.patience_us:
                del self.works[split.tablet]
                self._let_go(split.tablet)
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
        self.world.counts["split_ended"] += 1
        self.world.note(f"the replicas of {tablet} are not needed any more")
        self.world.places[tablet] = {}
        self.cleaned.append(tablet)

    def _remove(self, tablet: str) -> None:
        """Delete the replicas of a replaced tablet."""
        for server in self.world.servers.values():
            found = server.holdings.get(tablet)
            if found is not None and self.world.is_awake(server) and found.run in (RunState.RUNNING, RunState.FAILED):
                self.changes.lives.bury(server, tablet, "it was split")

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
        split = self.works.get(tablet)
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
        split = self.works.get(tablet)
        if split is None or split.state is not _S.CLEANING:
            return []
        return [one.region_id for one in split.daughters if self.parent_of(server, one.region_id)]

    def parent_of(self, server: SimServer, tablet: str) -> str:
        """See `SimSplits`."""
        split = self.origins.get(tablet)
        if split is None or tablet in server.holdings or server.name not in self.world.firsts[tablet].values():
            return ""
        number = next(number for number, name in self.world.firsts[tablet].items() if name == server.name)
        is_open = self.world.places[tablet].get(number) == server.name and (tablet, number) not in self._unmade
        return split.tablet if is_open and split.tablet in server.holdings else ""

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
        servers.seal(server, split, lambda *_: None, wanted=False)

    return unseal
