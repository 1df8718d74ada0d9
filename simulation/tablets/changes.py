"""Changes of members in the simulation: an operator who adds, removes and transfers, and a small master.

The master sends CLOSE tombstone to the servers of numbers that no committed configuration has. Once the faults have
ended, it also replaces members that cannot come back: their numbers are burned, or their copy never begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from coord.raft.log import CommittedConfig
from coord.raft.membership import Configuration, objection
from coord.raft.messages import RaftEvent
from coord.raft.quorum import majority
from regions.messages.server import MemberEndpoint
from regions.messages.tablets import ChangeConfig, ConfigChange
from regions.records.members import ConfigId
from regionserver.tablets.disk.consensus_meta import ConsensusMeta, with_promise
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.host.delivery import TombstoneVote
from regionserver.tablets.host.group import ELECTION_TICKS
from regionserver.tablets.host.members import first_configuration, servers_of
from regionserver.tablets.host.output import TurnOutput
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.process.replica import TabletReplica
from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from simulation.tablets.checks import SimMember, TabletChecker
from simulation.tablets.clients import SimClient
from simulation.tablets.copies import Copies
from simulation.tablets.flaws import Flaws
from simulation.tablets.lives import ReplicaLives
from simulation.tablets.server import SimServer
from simulation.tablets.world import Crashed, World

#: Pause between two rounds of the master.
MASTER_US: Final = SECOND // 3
#: A tablet grows to at most so many members.
MEMBERS_MAX: Final = 5
#: Time after which a newcomer that is not a voter yet is removed, in peace.
ADD_TIMEOUT_US: Final = 5 * SECOND
#: Creates the clients, once there are tablets.
ClientsOf = Callable[["Changes"], type[SimClient]]


def first_of(places: dict[int, str]) -> Configuration:
    """Return the first configuration of a tablet."""
    return first_configuration(tuple(MemberEndpoint(number, name, name, 7000) for number, name in places.items()))


class Changes:
    """The changes of all tablets of one world."""

    def __init__(self, world: World, lives: ReplicaLives, copies: Copies) -> None:
        self.world = world
        self.lives = lives
        self.copies = copies
        #: (tablet, number) of a newcomer -> time at which it was added.
        self.added: dict[tuple[str, int], int] = {}
        #: Tablet -> ids of committed configurations, ascending; the newest one is that of `places`.
        self.ids: dict[str, list[ConfigId]] = {}
        self.next_number: dict[str, int] = {}
        #: Request -> tablet, and the id on which the change rests.
        self.asked: dict[int, tuple[str, ConfigId]] = {}

    def create(self, tablet: str, names: list[str]) -> None:
        """Make the first replicas of a tablet, with numbers 1 .. N on some of the servers."""
        chance = self.world.chance
        count = chance.pick([3, len(names)])
        first = chance.below(len(names))
        self.create_at(tablet, dict(enumerate([names[(first + n) % len(names)] for n in range(count)], 1)))

    def create_at(self, tablet: str, places: dict[int, str]) -> None:
        """Make the first replicas of a tablet on these servers, by number."""
        world = self.world
        world.places[tablet], world.firsts[tablet] = places, dict(places)
        world.configs[tablet] = first_of(places)
        self.ids[tablet] = [ConfigId(0, 0)]
        self.next_number[tablet] = max(places) + 1
        world.checks[tablet] = TabletChecker(
            tablet,
            {number: SimMember(tablet, number, world.servers[name]) for number, name in places.items()},
            lambda: world.now,
        )
        for number, name in places.items():
            self.lives.make_first(world.servers[name], tablet, number)

    # --- the operator -------------------------------------------------------------------------------------------------

    def operate(self) -> None:
        """Change members again and again until the faults end."""
        world, chance = self.world, self.world.chance
        if world.is_faulty:
            world.at(world.now + int(chance.between(0.1, 0.8) * SECOND), self.operate)
            if chance.happens(0.2):
                self.transfer()
            else:
                self.change_members()

    def change_members(self) -> None:
        """Send one change of some tablet to its leader, sometimes on a configuration that is out of date."""
        world, chance = self.world, self.world.chance
        tablet = chance.pick([one for one in world.places if world.places[one]])
        leaders = [server for server in world.leaders(tablet) if world.is_awake(server)]
        if not leaders:
            return
        server = chance.pick(leaders)
        group = server.turn_now().groups[tablet]
        committed = group.core.committed_config()
        expect = ConfigId(committed.term, committed.index)
        if chance.happens(0.3):
            expect = chance.pick(self.ids[tablet])
        change = self._some_change(server, tablet, committed, expect)
        if change is not None:
            self._send(server, tablet, change, expect)

    def _send(self, server: SimServer, tablet: str, change: ChangeConfig, expect: ConfigId) -> None:
        world = self.world
        if server.rows_of(tablet).now.seal.is_set:
            world.counts["change_refused_sealed"] += 1
            return
        request = world.next_request()
        self.asked[request] = (tablet, expect)
        world.note(f"{server.name} is asked to {change.change.value} {change.number} of {tablet} if {expect}")
        world.counts[f"ask_{change.change.value}"] += 1
        server.turn_now().change_config(tablet, request, change)
        world.pump(server)

    def _some_change(
        self, server: SimServer, tablet: str, committed: CommittedConfig, expect: ConfigId
    ) -> ChangeConfig | None:
        chance = self.world.chance
        spare = self._spare(tablet)
        config = committed.config
        if spare and len(config.members()) < MEMBERS_MAX and chance.happens(0.6):
            return self._add(server, tablet, expect, chance.pick(spare))
        able = [number for number in config.members() if self._may_go(tablet, config, number)]
        if not able:
            return None
        return self._remove(server, tablet, expect, chance.pick(able), config)

    def _spare(self, tablet: str) -> list[str]:
        """Return the servers without a member. Some have the tombstone of a former one."""
        return [name for name in self.world.servers if name not in self.world.places[tablet].values()]

    def _add(self, server: SimServer, tablet: str, expect: ConfigId, name: str) -> ChangeConfig:
        number, self.next_number[tablet] = self.next_number[tablet], self.next_number[tablet] + 1
        self.world.checks[tablet].members[number] = SimMember(tablet, number, self.world.servers[name])
        self.copies.given[tablet, number] = name
        self.added[tablet, number] = self.world.now
        return ChangeConfig(1, server.name, 1, tablet, expect, ConfigChange.ADD, number, name, name, 7000)

    def _remove(
        self, server: SimServer, tablet: str, expect: ConfigId, number: int, config: Configuration
    ) -> ChangeConfig:
        name = servers_of(config)[number]
        return ChangeConfig(1, server.name, 1, tablet, expect, ConfigChange.REMOVE, number, name)

    def _may_go(self, tablet: str, config: Configuration, number: int) -> bool:
        """Return True if the voters that remain have a sound majority: the policy removes no other one."""
        left = [voter for voter in config.voters if voter != number]
        sound = {server.name for server in self.world.sound_members(tablet)}
        servers = servers_of(config)
        return len(left) > 1 and sum(servers[voter] in sound for voter in left) >= majority(len(left))

    def transfer(self) -> None:
        """Hand the leadership of some tablet over."""
        world = self.world
        tablet = world.chance.pick(list(world.places))
        for server in world.leaders(tablet):
            if world.is_awake(server):
                server.turn_now().transfer(tablet, 0)
                world.pump(server)

    # --- the output of a turn -----------------------------------------------------------------------------------------

    def carry_out(self, server: SimServer, out: TurnOutput) -> None:
        """Carry out a turn's output about members."""
        world, chance = self.world, self.world.chance
        for tablet, event in out.events:
            if event.name == "promote":
                self._check_promotion(server, tablet, event)
        for tablet, found in out.configs:
            self._check_committed(server, tablet, found)
            delay = chance.pick([500, 5_000, 300_000])
            world.at(world.now + delay, self._noted, server, server.life, tablet, found)
        for wanted in out.copies:
            self.copies.ask(server, wanted)
        for vote in out.votes:
            world.counts["tombstone_vote"] += 1
            world.at(world.now + 1 + chance.below(20_000), self._voted, server, server.life, vote)

    def answered(self, answer: TabletAnswer) -> None:
        """Check that a change was made on the configuration that it names (compare and set)."""
        asked = self.asked.pop(answer.request, None)
        if asked is None:
            return
        tablet, expect = asked
        if answer.fate is Fate.REFUSED:
            self.world.counts[f"change_{answer.value.answer.value.lower()}"] += 1
        if answer.fate is not Fate.DONE:
            return
        self.world.counts["changed"] += 1
        indexes = [0, *(index for index, _ in self.world.checks[tablet].raft.configs)]
        before = indexes[indexes.index(answer.index) - 1]
        if before != expect.index:
            raise Violation(f"{tablet} was changed at {answer.index} on {before}, and the request names {expect}")

    def _check_promotion(self, server: SimServer, tablet: str, event: RaftEvent) -> None:
        """The voters that answer without the newcomer are a majority of the new ones, or they are all there are."""
        core = server.turn_now().groups[tablet].core
        lead = core.leadership
        if lead is None:
            return
        old = [voter for voter in core.configs.current.voters if voter != int(event.detail)]
        since = lead.now - ELECTION_TICKS
        heard = sum(voter == core.id or lead.by_id[voter].last_received > since for voter in old)
        self.world.counts["promoted"] += 1
        if heard < majority(len(old) + 1) and heard < len(old):
            raise Violation(f"{tablet} depends on its newcomer {event.detail}: {heard} of {old} answer")

    def _check_committed(self, server: SimServer, tablet: str, found: CommittedConfig) -> None:
        config_id = ConfigId(found.term, found.index)
        known = self.ids[tablet]
        if config_id <= known[-1]:
            if config_id not in known:
                raise Violation(f"{server.name} knows configuration {config_id} of {tablet}; committed are {known}")
            return
        known.append(config_id)
        world = self.world
        former = world.configs[tablet]
        why = objection(former, found.config)
        if why:
            raise Violation(f"configuration {config_id} of {tablet} after {former}: {why}")
        world.configs[tablet] = found.config
        world.places[tablet] = servers_of(found.config)
        world.note(f"{tablet} is committed with {found.config} at {config_id}")

    def _noted(self, server: SimServer, life: int, tablet: str, found: CommittedConfig) -> None:
        """Make a committed configuration durable in the consensus metadata."""
        replica = server.holdings.get(tablet)
        if server.life != life or server.turn is None or tablet not in server.turn.groups or replica is None:
            return
        if replica.run is not RunState.RUNNING or replica.meta is None:
            return
        if found.index > replica.meta.config_index:
            meta = replace(
                replica.meta,
                config_term=found.term,
                config_index=found.index,
                configuration=found.config.encode(),
            )
            if not self._write_meta(server, replica, meta):
                return
        server.turn.noted(tablet, found.index)

    def _write_meta(self, server: SimServer, replica: TabletReplica, meta: ConsensusMeta) -> bool:
        """Make consensus metadata durable. Return False if the process dies in the write."""
        try:
            with self.lives.crashing(server):
                server.work.write_meta(meta)
        except Crashed:
            return False
        replica.meta = meta
        return True

    # --- tombstones ---------------------------------------------------------------------------------------------------

    def master(self) -> None:
        """Remove the replicas whose numbers no committed configuration has. Runs again and again."""
        world = self.world
        world.at(world.now + MASTER_US, self.master)
        for tablet in world.places:
            if not world.is_faulty and (world.splits is None or not world.splits.is_held(tablet)):
                self._heal(tablet)
            order = self.ids[tablet][-1]
            for server in world.servers.values():
                holding = server.holdings.get(tablet)
                if holding is None or not world.is_awake(server):
                    continue
                group = server.turn_now().groups.get(tablet)
                if group is None or group.failure or holding.number in world.configs[tablet].members():
                    continue
                own = group.core.committed_config()
                if ConfigId(own.term, own.index) > order and own.config.is_member(holding.number):
                    world.counts["close_stale"] += 1
                    continue
                world.counts["removed"] += 1
                self.lives.bury(server, tablet, "no member any more")

    def _heal(self, tablet: str) -> None:
        """Replace members that cannot come back, one change at a time: the policy's part, made small."""
        world = self.world
        for server in world.leaders(tablet):
            group = server.turn_now().groups[tablet]
            committed = group.core.committed_config()
            config, expect = committed.config, ConfigId(committed.term, committed.index)
            if expect != self.ids[tablet][-1] or not group.core.leadership:
                continue
            gone = [number for number in config.members() if self._is_gone(tablet, number, config)]
            able = [number for number in gone if number not in config.voters or self._may_go(tablet, config, number)]
            spare = self._spare(tablet)
            if able:
                world.counts["healed"] += 1
                self._send(server, tablet, self._remove(server, tablet, expect, able[0], config), expect)
            elif len(config.members()) < len(world.firsts[tablet]) and spare:
                self._send(server, tablet, self._add(server, tablet, expect, world.chance.pick(spare)), expect)

    def _is_gone(self, tablet: str, number: int, config: Configuration) -> bool:
        world = self.world
        if world.checks[tablet].members[number].is_burned:
            return True
        if world.splits is not None and world.splits.is_unmade(tablet, number):
            return True
        return number not in config.voters and world.now > self.added.get((tablet, number), 0) + ADD_TIMEOUT_US

    def _voted(self, server: SimServer, life: int, vote: TombstoneVote) -> None:
        if server.life != life or server.turn is None:
            return
        replica = server.holdings[vote.tablet]
        if replica.meta is None or replica.run is not RunState.TOMBSTONE:
            return
        if vote.term < replica.meta.term:
            return  # a later promise was written first: this one must not leave
        meta = with_promise(replica.meta, vote.term, vote.vote)
        world = self.world
        world.checks[vote.tablet].cast.add((replica.number, vote.term, vote.vote))
        if world.bug.forgets_tombstones:
            replica.meta = meta
        elif not self._write_meta(server, replica, meta):
            return
        server.turn.voted(vote)
        world.pump(server)


def make_world(
    seed: int, size: int, flaws: Flaws, clients_of: ClientsOf, *, trace: bool = False
) -> tuple[World, Changes, list[SimClient]]:
    """Return the servers of one seed with their tablets and clients, and the changes of their members."""
    world = World(seed, size, flaws, trace)
    world.lives = lives = ReplicaLives(world)
    copies = Copies(world, lives)
    world.members = changes = Changes(world, lives, copies)
    chance = world.chance
    for number in range(chance.pick([2, 2, 3])):
        changes.create(f"t{number}", list(world.servers))
    client = clients_of(changes)
    clients = [
        client(world, f"{tablet}-c{number}", tablet)
        for tablet in world.places
        for number in range(1, 4 if len(world.places) < 3 else 3)
    ]
    for server in world.servers.values():
        lives.start(server)
    world.at(MASTER_US, changes.master)
    if chance.happens(0.5) or "_change_members" in flaws.favours:
        world.at(world.now + SECOND, changes.operate)
    return world, changes, clients
