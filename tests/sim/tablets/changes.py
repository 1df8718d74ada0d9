"""Changes of members in the simulation: an operator who adds, removes and transfers, a master who removes replicas.

A copy is one step here: the rows of the leader at its applied entry, and a slot whose floor is there. The master's part
is small: it sends CLOSE tombstone to the servers of numbers that no committed configuration has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coord.raft.log import CommittedConfig
from coord.raft.membership import Configuration, objection
from coord.raft.messages import RaftEvent
from coord.raft.quorum import majority
from coord.storage.shared.items import Position
from regions.messages.server import MemberEndpoint
from regions.messages.tablets import ChangeConfig, ConfigChange
from regions.records.members import ConfigId
from regionserver.tablets.host.delivery import ReplicaStanding, State, TombstoneVote
from regionserver.tablets.host.group import ELECTION_TICKS
from regionserver.tablets.host.members import first_configuration, servers_of
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.host.turn import TurnOutput
from regionserver.tablets.host.wanted_copies import CopyWanted
from regionserver.tablets.host.words import Word
from simulation.engine.timeline import SECOND
from tests.sim.history import Violation
from tests.sim.tablets.checks import Member
from tests.sim.tablets.rows import SimRows
from tests.sim.tablets.server import Holding, SimServer, TombstoneMemory

if TYPE_CHECKING:
    from tests.sim.tablets.world import World

#: Pause between two rounds of the master.
MASTER_US = SECOND // 3
#: A tablet grows to at most so many members.
MEMBERS_MAX = 5


def first_of(places: dict[int, str]) -> Configuration:
    """Return the first configuration of a tablet."""
    return first_configuration(tuple(MemberEndpoint(number, name, name, 7000) for number, name in places.items()))


class Changes:
    """The changes of all tablets of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        #: Tablet -> ids of committed configurations, ascending; the newest one is that of `places`.
        self.ids: dict[str, list[ConfigId]] = {}
        self.next_number: dict[str, int] = {}
        #: Request -> tablet, and the id on which the change rests.
        self.asked: dict[int, tuple[str, ConfigId]] = {}

    def created(self, tablet: str) -> None:
        """Note a new tablet."""
        self.ids[tablet] = [ConfigId(0, 0)]
        self.next_number[tablet] = max(self.world.places[tablet]) + 1

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
        tablet = chance.pick(list(world.places))
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
        if change is None:
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
        world, chance = self.world, self.world.chance
        spare = [
            name
            for name, one in world.servers.items()
            if tablet not in one.holdings and tablet not in one.lost and name not in world.places[tablet].values()
        ]
        config = committed.config
        if spare and len(config.members()) < MEMBERS_MAX and chance.happens(0.6):
            name, number = chance.pick(spare), self.next_number[tablet]
            self.next_number[tablet] += 1
            world.checks[tablet].members[number] = Member(tablet, number, world.servers[name])
            return ChangeConfig(1, server.name, 1, tablet, expect, ConfigChange.ADD, number, name, name, 7000)
        able = [number for number in config.members() if self._may_go(tablet, config, number)]
        if not able:
            return None
        number = chance.pick(able)
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
            world.at(world.now + 1 + chance.below(200_000), self._copy, server, server.life, wanted)
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
        if server.life != life or server.turn is None or server.holdings[tablet].memory is not None:
            return
        holding = server.holdings[tablet]
        if found.index > holding.config_id[1]:
            holding.config, holding.config_id = found.config, (found.term, found.index)
        server.turn.noted(tablet, found.index)

    # --- copies -------------------------------------------------------------------------------------------------------

    def _copy(self, leader: SimServer, life: int, wanted: CopyWanted) -> None:
        """Copy the leader's replica to the member's server."""
        world = self.world
        if leader.life != life or leader.turn is None:
            return
        leader.turn.copy_answered(wanted.tablet, wanted.number)
        target = world.servers[wanted.server]
        group = leader.turn.groups.get(wanted.tablet)
        is_sound = group is not None and not group.failure and not leader.holdings[wanted.tablet].trouble
        if wanted.word is not Word.DOES_NOT_EXIST or wanted.tablet in target.lost or not world.is_awake(target):
            return
        if not is_sound or wanted.tablet in target.holdings or not world.is_awake(leader):
            return
        assert group is not None
        image = leader.rows[wanted.tablet].now.copy()
        config = group.core.configs.committed(image.index)
        position = Position(image.index, image.term)
        slot = target.log.open(wanted.tablet, wanted.number, position, max(image.term, group.core.term))
        target.holdings[wanted.tablet] = Holding(slot, wanted.number, "", config.config, (config.term, config.index))
        rows = target.rows[wanted.tablet] = SimRows()
        rows.now, rows.steady = image, image.copy()
        world.counts["copied"] += 1
        world.note(f"{target.name} has copied {wanted.tablet} as {wanted.number} at {image.index}")
        world.open_replica(target, wanted.tablet)
        world.pump(target)

    # --- tombstones ---------------------------------------------------------------------------------------------------

    def master(self) -> None:
        """Remove the replicas whose numbers no committed configuration has. Runs again and again."""
        world = self.world
        world.at(world.now + MASTER_US, self.master)
        for tablet in world.places:
            order = self.ids[tablet][-1]
            for server in world.servers.values():
                holding = server.holdings.get(tablet)
                if holding is None or holding.trouble or not world.is_awake(server):
                    continue
                group = server.turn_now().groups.get(tablet)
                if group is None or group.failure or holding.number in world.configs[tablet].members():
                    continue
                own = group.core.committed_config()
                if ConfigId(own.term, own.index) > order and own.config.is_member(holding.number):
                    world.counts["close_stale"] += 1
                    continue
                world.counts["removed"] += 1
                self.bury(server, tablet)

    def bury(self, server: SimServer, tablet: str) -> None:
        """Delete a replica that runs; its tombstone stays."""
        world, holding = self.world, server.holdings[tablet]
        core = server.turn_now().groups[tablet].core
        last = core.log.commit if world.bug.remembers_committed else core.log.last
        holding.memory = TombstoneMemory(core.term, core.vote, last, max(0, core.log.term_at(last)))
        holding.buried = holding.memory
        holding.trouble = "TOMBSTONE"
        server.turn_now().remove(tablet, standing_of(holding))
        world.note(f"{server.name} removes {holding.number} of {tablet}: {holding.memory}")
        world.pump(server)

    def _voted(self, server: SimServer, life: int, vote: TombstoneVote) -> None:
        if server.life != life or server.turn is None:
            return
        holding = server.holdings[vote.tablet]
        assert holding.memory is not None
        if vote.term >= holding.memory.term:
            holding.memory = holding.memory._replace(term=vote.term, vote=vote.vote)
            server.turn.voted(vote)
            self.world.pump(server)


def standing_of(holding: Holding) -> ReplicaStanding:
    """Return what answers messages to a tombstone."""
    memory = holding.memory
    assert memory is not None
    return ReplicaStanding(
        State.DELETED, holding.number, memory.term, memory.last_index, memory.last_term, may_vote=True, vote=memory.vote
    )
