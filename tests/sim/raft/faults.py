"""Faults, changes and clients of a group, and the final check that it recovers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coord.errors import NotLeader, ProposalDropped
from coord.raft.membership import Configuration, decode_configuration
from coord.raft.messages import Message
from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from tests.sim.raft.group import Bug, SimNode, Simulation

#: Time within which the group must recover once all nodes are reachable: a leader, a new commit and equal replicas. Two
#: lost elections of at most 24 ticks of 65 ms each, and the time to catch up; in practice below 4 s.
RECOVERY_S: Final = 15
#: Longer than the longest election timeout: 24 ticks of 65 ms.
QUIET_S: Final = 2


class Story:
    """One simulated history: a time of faults, then a time without."""

    def __init__(self, simulation: Simulation, trouble_s: int) -> None:
        self.sim = simulation
        self.trouble_us = trouble_s * SECOND
        self.write_gap_us = simulation.chance.pick([30_000, 100_000, 300_000])
        self.fault_gap_us = simulation.chance.pick([150_000, 600_000, 1_500_000])
        # Each seed uses a subset of the faults: some situations only arise without others ("swarm testing").
        kinds = [
            self._crash,
            self._crash_leader,
            self._lose_disk,
            self._lose_disk,
            self._isolate_leader,
            self._deafen_leader,
            self._partition,
            self._one_way,
            self._bridge,
            self._pause,
            self._transfer,
            self._transfer_to_mute,
            self._change_members,
            self._rival_changes,
            self._flap,
            self._echo,
        ]
        chosen = simulation.chance.some(kinds) or kinds
        if simulation.bug.favours:
            chosen = [kind for kind in [*kinds, self._echo_acknowledgements] if kind.__name__ in simulation.bug.favours]
            self.fault_gap_us = 200_000
        simulation.eager_changes = self._change_members in chosen or self._rival_changes in chosen
        simulation.on_new_leader = self._eager_change
        #: A leader with an unfinished change, and the node that it adds. Its successor is to make another change.
        self.rival: tuple[int, int] | None = None
        self.faults: list[Callable[[], None]] = [*chosen, *simulation.chance.some(chosen), self._heal, self._heal]

    def run(self) -> None:
        """Run the faults, the recovery, and the checks at the end. Raise Violation."""
        sim = self.sim
        sim.at(sim.now, self._next_write)
        sim.at(sim.now, self._next_read)
        sim.at(sim.now + SECOND, self._next_fault)
        sim.play_until(sim.now + self.trouble_us)
        self._make_peace()
        before = sim.check.commit
        if not sim.play_until(sim.now + RECOVERY_S * SECOND, lambda: self._recovered(before)):
            nodes = "\n  ".join(f"{n.core_now().configs.current} {n.core_now().log.last}" for n in sim.nodes.values())
            raise sim.failure(f"no recovery within {RECOVERY_S} s:\n  {nodes}")
        # Without faults no node may depose a leader that reaches all others.
        terms = len(sim.check.leaders)
        sim.play_until(sim.now + QUIET_S * SECOND)
        if len(sim.check.leaders) != terms or not sim.leaders():
            raise sim.failure(f"a leader was unseated within {QUIET_S} s of peace: {sim.check.leaders}")
        try:
            sim.check.at_the_end()
        except Violation as violation:
            raise sim.failure(violation) from violation

    # --- clients

    def _next_write(self) -> None:
        sim = self.sim
        sim.at(sim.now + 1 + sim.chance.below(2 * self.write_gap_us), self._next_write)
        # Every node that considers itself the leader gets writes, not only the true leader.
        for node in sim.leaders():
            if node.paused_until <= sim.now:
                sim.propose(node, 1 + sim.chance.below(4))

    def _next_read(self) -> None:
        sim = self.sim
        sim.at(sim.now + 1 + sim.chance.below(2 * self.write_gap_us), self._next_read)
        awake = sim.awake()
        if awake:
            sim.read(sim.chance.pick(awake))
        for node in sim.leaders():
            if node.paused_until <= sim.now:
                sim.read(node)

    # --- faults

    def _next_fault(self) -> None:
        sim = self.sim
        if not sim.faulty:
            return
        sim.at(sim.now + 1 + sim.chance.below(2 * self.fault_gap_us), self._next_fault)
        sim.chance.pick(self.faults)()

    def _crash(self) -> None:
        self._crash_node(self.sim.chance.pick(list(self.sim.nodes.values())))

    def _lose_disk(self) -> None:
        """Lose a voter's disk. The next one is lost only after this voter has been replaced."""
        sim = self.sim
        node = sim.chance.pick(list(sim.nodes.values()))
        config = self._settled()
        if config is not None and config.is_voter(node.id) and len(config.voters) >= 3:
            sim.crash(node)
            sim.lose_disk(node)
            sim.at(sim.now + sim.chance.pick([1, 100_000, SECOND, 4 * SECOND]), sim._restart, node)

    def _settled(self) -> Configuration | None:
        """Return the committed members, if no node holds a newer change and no voter's disk is missing; else None.

        Further losses would lose no acknowledged write, but the group might never have a majority again.
        """
        sim = self.sim
        index, data = (
            sim.check.configs[-1] if sim.check.configs else (0, next(iter(sim.nodes.values())).first.config.encode())
        )
        for node in sim.nodes.values():
            core = node.core
            if node.disk.newest_config() > index or (core is not None and core.configs.newest_index() > index):
                return None
        config = decode_configuration(data)
        return config if all(config.counts(v, sim.nodes[v].memory) for v in config.voters) else None

    def _crash_leader(self) -> None:
        leaders = self.sim.leaders()
        if leaders:
            self._crash_node(self.sim.chance.pick(leaders))

    def _crash_node(self, node: SimNode) -> None:
        sim = self.sim
        sim.crash(node)
        sim.at(sim.now + sim.chance.pick([1, 100_000, SECOND, 4 * SECOND]), sim._restart, node)

    def _cut(self, sources: list[int], targets: list[int]) -> None:
        for source in sources:
            for target in targets:
                if source != target:
                    self.sim.cut.add((source, target))

    def _isolate_leader(self) -> None:
        """Cut off every node that considers itself the leader, in one direction or both. Its clients do not notice."""
        sim = self.sim
        leaders = sim.leaders()
        if not leaders:
            return
        sim.counts["isolation"] += 1
        leader = [sim.chance.pick(leaders).id]
        everybody = list(sim.nodes)
        direction = sim.chance.below(4)
        if direction != 1:
            self._cut(leader, everybody)
        if direction != 2:
            self._cut(everybody, leader)
        sim.note(f"cut off: {leader}")

    def _deafen_leader(self) -> None:
        """Pause a leader, cut it off, and let it continue without knowing how long it was paused."""
        sim = self.sim
        leaders = [node for node in sim.leaders() if node.paused_until <= sim.now]
        if leaders:
            node = sim.chance.pick(leaders)
            self._cut(list(sim.nodes), [node.id])
            node.paused_until = sim.now + int(sim.chance.between(0.5, 3) * SECOND)
            sim.counts["deafened"] += 1
            sim.note(f"{node.id} sleeps, cut off, until {node.paused_until / SECOND:.3f}")

    def _partition(self) -> None:
        sim = self.sim
        everybody = list(sim.nodes)
        one = sim.chance.some(everybody)
        other = [node for node in everybody if node not in one]
        self._cut(one, other)
        self._cut(other, one)
        sim.counts["partition"] += 1
        sim.note(f"partition: {one} {other}")

    def _one_way(self) -> None:
        sim = self.sim
        everybody = list(sim.nodes)
        source, target = sim.chance.pick(everybody), sim.chance.pick(everybody)
        self._cut([source], [target])
        sim.counts["one_way_cut"] += 1
        sim.note(f"cut: {source} -> {target}")

    def _bridge(self) -> None:
        """Separate two sides that cannot communicate, except through one node that reaches both."""
        sim = self.sim
        everybody = list(sim.nodes)
        bridge = sim.chance.pick(everybody)
        one = [node for node in sim.chance.some(everybody) if node != bridge]
        other = [node for node in everybody if node not in one and node != bridge]
        self._cut(one, other)
        self._cut(other, one)
        sim.counts["bridge"] += 1
        sim.note(f"bridge: {one} {bridge} {other}")

    def _heal(self) -> None:
        """Restore all links. Connections are new, so both ends may learn that the old ones broke."""
        sim = self.sim
        cut = sorted(sim.cut)
        sim.cut.clear()
        for source, target in cut:
            if sim.chance.happens(0.3):
                sim.at(sim.now + sim.chance.below(20_000), sim._link_broke, sim.nodes[target], source)
        sim.note("healed")

    def _flap(self) -> None:
        """Break a connection and restore it."""
        sim = self.sim
        node, peer = sim.chance.pick(list(sim.nodes.values())), sim.chance.pick(list(sim.nodes))
        if node.id != peer:
            sim._link_broke(node, peer)
            sim.counts["flap"] += 1

    def _echo(self) -> None:
        """Deliver an old connection's data again."""
        sim = self.sim
        for m in sim.chance.some(list(sim.wire)):
            sim.at(sim.now + sim.chance.below(SECOND), sim._deliver, m)
        sim.counts["echo"] += 1

    def _echo_acknowledgements(self) -> None:
        """Let a leader that has led before keep one follower, and receive acknowledgments of its earlier terms from the
        others."""
        sim = self.sim
        leaders = [(node, [m for m in sim.acknowledgements if self._is_late(node, m)]) for node in sim.leaders()]
        late = [(node, messages) for node, messages in leaders if messages]
        if not late:
            return
        leader, messages = sim.chance.pick(late)
        camp = [leader.id, sim.chance.pick([node for node in sim.nodes if node != leader.id])]
        rest = [node for node in sim.nodes if node not in camp]
        self._cut(camp, rest)
        self._cut(rest, camp)
        for m in messages:
            sim.at(sim.now + sim.chance.below(SECOND), sim._deliver, m)
        sim.counts["late_acknowledgements"] += 1

    @staticmethod
    def _is_late(leader: SimNode, m: Message) -> bool:
        return m.dst == leader.id and m.term < leader.core_now().term

    def _pause(self) -> None:
        sim = self.sim
        awake = sim.awake()
        if awake:
            node = sim.chance.pick(awake)
            node.paused_until = sim.now + int(sim.chance.between(0.05, 3) * SECOND)
            sim.counts["pause"] += 1
            sim.note(f"{node.id} pauses until {node.paused_until / SECOND:.3f}")

    # --- changes

    def _transfer(self) -> None:
        sim = self.sim
        for node in sim.leaders():
            if node.paused_until <= sim.now:
                try:
                    node.core_now().transfer_leadership(sim.chance.pick(list(sim.nodes)))
                except (NotLeader, ProposalDropped):
                    sim.counts["transfer_refused"] += 1
                sim.pump(node)

    def _transfer_to_mute(self) -> None:
        """Transfer the leadership to a node that receives and cannot send: it raises the term only for itself."""
        sim = self.sim
        for node in sim.leaders():
            to = sim.chance.pick(list(sim.nodes))
            if node.paused_until <= sim.now and to != node.id:
                self._cut([to], list(sim.nodes))
                sim.cut.discard((to, node.id))
                try:
                    node.core_now().transfer_leadership(to)
                except (NotLeader, ProposalDropped):
                    sim.counts["transfer_refused"] += 1
                sim.pump(node)
                sim.at(sim.now + 20_000, self._mute, to)
                return

    def _mute(self, node: int) -> None:
        if self.sim.faulty:
            self._cut([node], list(self.sim.nodes))

    def _change_members(self) -> None:
        sim = self.sim
        for node in sim.leaders():
            if node.paused_until <= sim.now:
                self._change_at(node, 1 + sim.chance.below(2))

    def _eager_change(self, node: SimNode, life: int) -> None:
        if node.life != life or node.core is None or not self.sim.faulty:
            return
        if self.rival is None or node.id in self.rival:
            self._change_at(node, 2)
            return
        # The successor removes its predecessor, and one node does not receive that change.
        predecessor, newcomer = self.rival
        self.rival = None
        deaf = [n for n in node.core.configs.current.voters if n not in (node.id, predecessor)]
        if deaf:
            ignorant = self.sim.chance.pick(deaf)
            self._cut([node.id], [ignorant])
            self._propose_change(node, node.core.configs.current.without(predecessor))
            self.sim.pump(node)
            self.sim.at(self.sim.now + SECOND // 2, self._rivals_meet, [predecessor, newcomer, ignorant])

    def _rivals_meet(self, camp: list[int]) -> None:
        """Bring the predecessor, its newcomer and the uninformed node together, apart from the others."""
        if self.sim.faulty:
            rest = [node for node in self.sim.nodes if node not in camp]
            self.sim.cut.clear()
            self._cut(camp, rest)
            self._cut(rest, camp)
            self.sim.counts["rivals_met"] += 1

    def _rival_changes(self) -> None:
        """Let two leaders, one after the other, change the membership: the schedules of raft-dev, July 2015."""
        sim = self.sim
        leaders = [node for node in sim.leaders() if node.paused_until <= sim.now]
        if not leaders:
            return
        leader = sim.chance.pick(leaders)
        config = leader.core_now().configs.current
        outsiders = [node for node in sim.nodes if not config.is_member(node)]
        if outsiders:
            newcomer = sim.chance.pick(outsiders)
            others = [node for node in sim.nodes if node not in (leader.id, newcomer)]
            sim.cut.clear()
            self._cut([leader.id, newcomer], others)
            self._cut(others, [leader.id, newcomer])
            self.rival = (leader.id, newcomer)
            self._propose_change(leader, config.with_voter(newcomer))
            sim.pump(leader)
            sim.note(f"rivals: {leader.id} adds {newcomer}")

    def _change_at(self, node: SimNode, times: int) -> None:
        """Request membership changes, the second one before the first can be committed."""
        for _ in range(times):
            self._propose_change(node, self._some_change(node.core_now().configs.current))
        self.sim.pump(node)

    def _propose_change(self, node: SimNode, config: Configuration) -> None:
        voters = node.core_now().configs.current.voters
        if any(not node.core_now().configs.current.counts(v, self.sim.nodes[v].memory) for v in voters):
            return  # The shell rejects a change that would leave no majority of the running nodes.
        try:
            node.core_now().propose_config(config)
            self.sim.counts["change"] += 1
        except (NotLeader, ProposalDropped):
            self.sim.counts["change_refused"] += 1

    def _some_change(self, config: Configuration) -> Configuration:
        """Return a random next configuration, which may be invalid; never without a voter."""
        chance = self.sim.chance
        node = chance.pick(list(self.sim.nodes))
        if config.is_voter(node) and len(config.voters) > 1:
            return config.without(node) if chance.happens(0.7) else config.with_learner(node)
        if config.is_voter(node):
            return config
        if chance.happens(0.1):
            return Configuration([n for n in self.sim.nodes if chance.happens(0.7)] or [node])
        return chance.pick([config.with_voter, config.with_pre_voter, config.with_pre_voter, config.with_learner])(node)

    # --- peace

    def _make_peace(self) -> None:
        sim = self.sim
        sim.faulty = False
        self.write_gap_us = 300_000
        sim.cut.clear()
        sim.note("peace")
        for node in sim.nodes.values():
            node.paused_until = min(node.paused_until, sim.now)
            if node.core is None:
                sim.start(node)

    def _recovered(self, before: int) -> bool:
        """Return True if there is one leader, a new commit since the faults ended, and all members are equal."""
        sim = self.sim
        leaders = sim.leaders()
        if len(leaders) != 1 or sim.check.commit <= before + 3 or sim.check.reads_answered == 0:
            return False
        config = leaders[0].core_now().configs.current
        if config.pre_voters or leaders[0].core_now().configs.newest_index() > sim.check.commit:
            return False
        return all(sim.nodes[member].applied > before for member in config.members())


def run_one(seed: int, size: int, trouble_s: int = 20, bug: type[Bug] = Bug, trace: bool = False) -> Simulation:
    """Simulate one seed to its end.

    Raise Violation.
    """
    simulation = Simulation(seed, size, bug, trace)
    Story(simulation, trouble_s).run()
    return simulation
