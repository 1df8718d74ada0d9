"""Faults of a store and its clients, and the final check that everything recovers."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, Final

from twisted.logger import LogEvent, globalLogPublisher

from coord.raft.log import ConfigLog
from coord.raft.membership import Configuration
from coord.storage.records import MAGIC, SEAL_MAGIC
from simulation.engine.chance import SeededRandom
from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from tests.sim.raft.plan import Failure, Plan
from tests.sim.store import amnesia
from tests.sim.store.clients import Client
from tests.sim.store.forgeries import Forger
from tests.sim.store.operators import Operator
from tests.sim.store.world import Bug, Host, Process, World

#: Time within which the store must recover once all nodes are reachable: a leader, every client served, equal replicas,
#: dead sessions gone. Links are dialed again after at most 1 s, two elections of at most 24 ticks of 65 ms, a session
#: timeout of 2 s on a slow clock, once more if the leader changed; in practice below 9 s.
RECOVERY_S: Final = 20

#: Beginning of a log line of a node -> the situation that it shows.
LOGGED: Final = {
    "installed the snapshot": "state_taken_over",
    "node {id} counts again": "joined",
    "no leader for": "clients_sent_away",
    "disk full": "disk_found_full",
    "node {id} is not a member of this store": "removal_noticed",
    "node {id} is a member again": "member_again",
    "changing the members": "change_begun",
    "rejected membership change": "change_given_up",
    "moved the damaged log": "repaired",
}


class Story:
    """One simulated history: a time of faults, then a time without."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.trouble_us = int(plan.length_s() * SECOND)
        #: (number, kind) of the faults that happened.
        self.happened: list[tuple[int, str]] = []
        self._number = 0
        # Separate random sources, also for each fault, so that omitting a fault changes the rest as little as possible.
        self._schedule = chance = self.chance = SeededRandom(world.seed * 1_000_003)
        self.fault_gap_us = chance.pick([150_000, 400_000, 1_000_000])
        kinds: list[Callable[[], None]] = [
            self._power_cut,
            self._power_cut_leader,
            self._power_cut_all,
            self._kill,
            self._kill_twice,
            self._isolate_leader,
            self._isolate_at_change,
            self._partition,
            self._one_way,
            self._bridge,
            self._part_from_leader,
            self._reset,
            self._flap,
            self._pause,
            self._pause_leader,
            self._jump_clock,
            self._drift,
            self._disk_error,
            self._failed_sync,
            self._disk_full,
            self._flip,
            self._lose_memory,
            self._lose_memory,
            self._lose_client,
            self._cut_client,
            self._transfer,
        ]
        # Each seed uses a subset of the faults: some situations only arise without others ("swarm testing").
        chosen = chance.some(kinds) or kinds
        if world.bug.favours:
            chosen = [kind for kind in [*kinds, self._isolate_at_removal] if kind.__name__ in world.bug.favours]
            self.fault_gap_us = 150_000
        self.faults: list[Callable[[], None]] = [*chosen, self._heal, self._heal]
        self.clients = [Client(world, number) for number in range(1, 4 + chance.below(4))]
        if world.members_move:
            self.clients += [Operator(world, 20 + number) for number in range(1, 2 + chance.below(2))]
        self.clients = [client for client in self.clients if client.number not in plan.absent]
        for client in self.clients:
            client.begin()
        self._has_flipped = False
        self._peace_ms = 0

    def run(self) -> None:
        """Run the faults, the recovery, and the checks at the end. Raise Violation."""
        world = self.world
        globalLogPublisher.addObserver(self._on_log)
        try:
            world.at(SECOND, self._next_fault)
            Forger(world).begin()
            world.play_until(self.trouble_us)
            self._make_peace()
            began = {client: (client.answered, client.synced) for client in self.clients}
            if not world.play_until(world.now + RECOVERY_S * SECOND, lambda: self._recovered(began)):
                raise world.failure(Violation(f"no recovery within {RECOVERY_S} s:{self._state()}"))
            try:
                world.check.at_the_end()
            except Violation as violation:
                raise world.failure(violation) from violation
        finally:
            globalLogPublisher.removeObserver(self._on_log)

    def _on_log(self, event: LogEvent) -> None:
        form = event.get("log_format") or ""
        for text, name in LOGGED.items():
            if form.startswith(text):
                self.world.counts[name] += 1
                process = self.world.current
                if name == "repaired" and process is not None and not process.host.is_flipped:
                    # A repair must not hide the reason for it.
                    self.world.logged.append(f"the log of a sound disk is set aside: {event.get('error')}")
        failure = event.get("log_failure")
        if form.startswith("raft "):
            self.world.counts[str(event.get("name"))] += 1
        if form == "{what}":
            what = str(event.get("what"))
            self.world.counts["torn_tail" if "torn record" in what else "unfinished_segment"] += 1
        if failure is not None and not isinstance(failure.value, OSError):
            self.world.logged.append(failure.getTraceback())
        if self.world.lines is not None:
            text = (event.get("log_format") or "").format_map(_Fields(event))
            self.world.note(f"{'?' if self.world.current is None else self.world.current.host.id} log: {text}")

    # --- faults -------------------------------------------------------------------------------------------------------

    def _next_fault(self) -> None:
        world = self.world
        if world.faulty:
            schedule = self._schedule
            world.at(world.now + 1 + schedule.below(2 * self.fault_gap_us), self._next_fault)
            self._number += 1
            fault = schedule.pick(self.faults)
            if fault.__name__ in self.plan.without or self._number in self.plan.skip:
                return
            self.chance = SeededRandom((world.seed * 1_000_003 + self._number) * 7919)
            self.happened.append((self._number, fault.__name__))
            world.note(f"fault {self._number} {fault.__name__}")
            fault()

    def _up(self) -> list[Host]:
        return [host for host in self.world.hosts.values() if host.process is not None]

    def _pick(self) -> Host | None:
        up = self._up()
        return self.chance.pick(up) if up else None

    def _count(self, name: str) -> None:
        self.world.counts[name] += 1

    def _power_cut(self) -> None:
        host = self._pick()
        if host is not None and host.process is not None:
            host.process.power_cut()

    def _power_cut_leader(self) -> None:
        leaders = self.world.leaders()
        if leaders:
            self.chance.pick(leaders).power_cut()
            self._count("leader_lost")

    def _power_cut_all(self) -> None:
        for process in self.world.running():
            process.power_cut()
        self._count("power_cut_all")

    def _kill(self) -> None:
        host = self._pick()
        if host is not None and host.process is not None:
            host.process.kill()
            host.restart_later()
            self._count("kill")

    def _kill_twice(self) -> None:
        """Kill the process, restart it on its page cache, and then cut the power."""
        host = self._pick()
        if host is not None and host.process is not None:
            host.process.kill()
            host.start()
            if host.process is not None:
                self.world.at(self.world.now + self.chance.below(300_000), self._cut_power_of, host)
            self._count("kill")

    def _cut_power_of(self, host: Host) -> None:
        if host.process is not None and self.world.faulty:
            host.process.power_cut()

    def _cut(self, sources: list[int], targets: list[int]) -> None:
        for source in sources:
            for target in targets:
                if source != target:
                    self.world.net.cut.add((source, target))

    def _isolate_leader(self) -> None:
        """Cut off every node that considers itself the leader, in one direction or both. Its clients do not notice."""
        leaders = self.world.leaders()
        if leaders:
            leader = [self.chance.pick(leaders).host.id]
            everybody = list(self.world.hosts)
            direction = self.chance.below(4)
            if direction != 1:
                self._cut(leader, everybody)
            if direction != 2:
                self._cut(everybody, leader)
            self._count("isolation")

    def _isolate_at_change(self) -> None:
        """Cut off the leader that begins the next change of members, so that the change reaches no other node."""
        for process in self.world.leaders():
            self._isolate_when(process, lambda _: True)

    def _isolate_at_removal(self) -> None:
        """Cut off the leader that begins to remove another voter, which the remaining nodes may elect.

        Nothing is healed or changed before peace: an election takes longer than the usual time until a link is healed,
        and a member of a later configuration is accepted by every node.
        """
        for process in self.world.leaders():
            configs, own_id = process.node.core.configs, process.host.id

            def removes(config: Configuration, configs: ConfigLog = configs, own_id: int = own_id) -> bool:
                others = [voter for voter in configs.current.voters if voter != own_id]
                if all(config.is_member(voter) for voter in others):
                    return False
                self.faults = [self._isolate_at_removal]
                for client in self.clients:
                    if isinstance(client, Operator):
                        client.calm()
                return True

            self._isolate_when(process, removes)

    def _isolate_when(self, process: Process, is_meant: Callable[[Configuration], bool]) -> None:
        """Cut the leader off when it proposes the next configuration that is meant."""
        core, leader = process.node.core, process.host.id

        def change(config: Configuration) -> int:
            if is_meant(config):
                del core.propose_config
                if self.world.faulty:
                    everybody = list(self.world.hosts)
                    self._cut([leader], everybody)
                    self._cut(everybody, [leader])
                    self._count("isolation_at_change")
            return int(type(core).propose_config(core, config))

        core.propose_config = change

    def _partition(self) -> None:
        everybody = list(self.world.hosts)
        one = self.chance.some(everybody)
        other = [node for node in everybody if node not in one]
        self._cut(one, other)
        self._cut(other, one)
        self._count("partition")

    def _one_way(self) -> None:
        everybody = list(self.world.hosts)
        self._cut([self.chance.pick(everybody)], [self.chance.pick(everybody)])
        self._count("one_way_cut")

    def _bridge(self) -> None:
        """Separate two sides that cannot communicate, except through one node that reaches both."""
        chance = self.chance
        everybody = list(self.world.hosts)
        bridge = chance.pick(everybody)
        one = [node for node in chance.some(everybody) if node != bridge]
        other = [node for node in everybody if node not in one and node != bridge]
        self._cut(one, other)
        self._cut(other, one)
        self._count("bridge")

    def _part_from_leader(self) -> None:
        """Cut the link between the leader and another node for a while. The other links work, so no election takes
        place."""
        leaders = self.world.leaders()
        others = [host.id for host in self._up() if host.process not in leaders]
        if leaders and others:
            leader, other = self.chance.pick(leaders).host.id, self.chance.pick(others)
            until = self.world.now + int(self.chance.between(1.0, 4.0) * SECOND)
            for pair in ((leader, other), (other, leader)):
                self.world.net.cut.add(pair)
                self.world.net.lasting[pair] = until
            self._count("parted_from_leader")

    def _heal(self) -> None:
        self.world.net.heal()

    def _reset(self) -> None:
        """Break a connection. Its ends learn of it at different times."""
        net = self.world.net
        ends = [net.ends[fd] for fd in sorted(net.ends) if net.ends[fd].peer is not None]
        if ends:
            net.break_connection(self.chance.pick(ends))

    def _flap(self) -> None:
        """Break all links between two nodes again and again."""
        hosts = list(self.world.hosts)
        one, other = self.chance.pick(hosts), self.chance.pick(hosts)
        for again in range(3):
            self.world.at(self.world.now + again * 120_000, self._break_links, one, other)
        self._count("flap")

    def _break_links(self, one: int, other: int) -> None:
        net = self.world.net
        for fd in sorted(net.ends):
            sock = net.ends.get(fd)
            if sock is not None and sock.machine == one and sock.peer is not None and sock.peer.machine == other:
                net.break_connection(sock)

    def _pause(self) -> None:
        host = self._pick()
        if host is not None:
            self._pause_host(host)

    def _pause_leader(self) -> None:
        leaders = self.world.leaders()
        if leaders:
            self._pause_host(self.chance.pick(leaders).host)

    def _pause_host(self, host: Host) -> None:
        if host.paused_until <= self.world.now:
            host.paused_until = self.world.now + int(self.chance.between(0.05, 2.5) * SECOND)
            self._count("pause")

    def _jump_clock(self) -> None:
        host = self.chance.pick(list(self.world.hosts.values()))
        host.clock.wall_offset_ms += self.chance.pick([-3_600_000, -5000, 5000, 3_600_000])
        self._count("clock_jump")

    def _drift(self) -> None:
        host = self.chance.pick(list(self.world.hosts.values()))
        host.clock.run_at(self.chance.between(0.7, 1.3))
        self._count("clock_drift")

    # --- disks

    def _disk_error(self) -> None:
        host = self._pick()
        if host is not None:
            what = self.chance.pick(["write", "create", "rename", "remove", "sync_folder", "any", "read"])
            host.disk.failures[what] = (errno.EIO, 1)
            self._count("disk_error")

    def _failed_sync(self) -> None:
        """Let one sync fail with its pages counted as clean. Soon after, cut the power, too."""
        host = self._pick()
        if host is not None:
            host.disk.failures["sync"] = (errno.EIO, 1)
            if self.chance.happens(0.5):
                self.world.at(self.world.now + self.chance.below(2 * SECOND), self._cut_power_of, host)
            self._count("failed_sync")

    def _disk_full(self) -> None:
        host = self.chance.pick(list(self.world.hosts.values()))
        host.disk.is_full = True
        self.world.at(self.world.now + self.chance.below(3 * SECOND), self._room, host.disk)
        self._count("disk_full")

    def _room(self, disk: Any) -> None:
        disk.is_full = False

    def _flip(self) -> None:
        """Flip a bit of durable data, on one node in the whole history.

        At the end of a log only if the system has written everything back, also the seal. Then the process is killed,
        too: a torn write over the seal would be a second fault, after which damage could not be recognized.
        """
        host = self._pick()
        running = self.world.running()
        config = self.world.check.config()
        members = config.members()
        if host is None or self._has_flipped or host.id not in members or config.pre_voters:
            return
        hosts = [self.world.hosts[member] for member in members]
        if len(config.voters) < 3 or any(each.process is None for each in hosts):
            return
        if amnesia.is_change_under_way(self.world, self.clients):
            return
        if not all(each.is_whole() and each.has_held() for each in hosts):
            return  # A node without data and one that loses all its data are not a minority.
        if any(process.node.core.configs.current != config for process in running if process.host.id in members):
            return
        if any(
            process.node.joining.is_joining or process.node.applied_index < 5
            for process in running
            if process.host.id in members
        ):
            return
        disk = host.disk
        disk.settle()
        paths = [path for path in sorted(disk.durable) if path in disk.files and path.endswith((".log", ".snap"))]
        if not paths:
            return
        path = self.chance.pick(paths)
        file = disk.durable[path]
        file.settle(self.world.now)
        begin, end = 0, len(file.durable)
        if path.endswith(".log"):
            is_at_rest = self.chance.happens(0.5)
            if is_at_rest:
                file.written_back(self.world.now)
            last, seal = file.durable.rfind(MAGIC), file.durable.rfind(SEAL_MAGIC)
            begin, end = (last, seal) if is_at_rest and last < seal else (0, last)
            if begin and host.process is not None:
                host.process.kill()
                host.restart_later()
                self._count("flip_at_the_end")
        if end > 0:
            disk.flip(path, begin + self.chance.below(end - begin), self.chance.below(8))
            self._has_flipped = host.is_flipped = True
            host.damaged_memory = host.present_memory()
            self._count("bit_flip")

    def _lose_memory(self) -> None:
        """Lose a disk or a part of it, in any state of the other nodes."""
        host = self.chance.pick(list(self.world.hosts.values()))
        if amnesia.may_lose(self.world, self.clients, host):
            amnesia.lose(self.world, host, self.chance)

    # --- clients and leadership

    def _lose_client(self) -> None:
        alive = [client for client in self.clients if not client.is_gone and not isinstance(client, Operator)]
        if len(alive) > 2:
            self.chance.pick(alive).vanish()

    def _cut_client(self) -> None:
        """Cut the link between a client and a node."""
        client = self.chance.pick(self.clients)
        node = self.chance.pick(list(self.world.hosts))
        if self.chance.happens(0.7):
            self._cut([-client.number], [node])
        if self.chance.happens(0.7):
            self._cut([node], [-client.number])
        self._count("client_cut")

    def _transfer(self) -> None:
        for process in self.world.leaders():
            if process.host.paused_until <= self.world.now and process.node.membership.hand_over():
                process.wake()
                self._count("hand_over")

    # --- peace --------------------------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        world = self.world
        world.faulty = False
        self._peace_ms = world.check.model.time_ms
        world.net.heal(for_good=True)
        world.note("peace")
        for client in self.clients:
            client.calm()
        for host in world.hosts.values():
            host.paused_until = min(host.paused_until, world.now)
            host.disk.failures.clear()
            host.disk.is_full = False
            if host.process is None:
                host.restart_later()
        world.builds.make_peace()

    def _recovered(self, began: dict[Client, tuple[int, int]]) -> bool:
        """Return True if all nodes know one leader, every client is served, replicas are equal, and dead sessions are
        gone."""
        world = self.world
        leaders = world.leaders()
        if len(leaders) != 1:
            return False
        config = leaders[0].node.core.configs.current
        for member in config.members():
            world.hosts[member].install()
        if leaders[0].node.levels.in_force() != world.builds.newer:
            return False
        if config.pre_voters or not world.check.at_rest() or config != world.check.config():
            return False
        if any(process.node.core.leader != leaders[0].host.id for process in world.members()):
            return False
        if world.check.overdue(self._peace_ms):
            return False
        for client, (answered, synced) in began.items():
            if not client.is_gone and (client.answered < answered + 5 or client.synced == synced):
                return False
        alive = {client.session_id for client in self.clients if not client.is_gone}
        alive |= {link.session_id for client in self.clients if not client.is_gone for link in client.left}
        return all(session_id in alive for session_id in world.check.model.sessions)

    def _state(self) -> str:
        lines = []
        for host in self.world.hosts.values():
            if host.process is None:
                lines.append(f"\n  {host.id} is down")
                continue
            node = host.process.node
            core = node.core
            notes = f"{' joining' if node.joining.is_joining else ''}{' full' if node.is_full else ''}"
            lines.append(
                f"\n  {host.id} build {host.build} level {node.levels.in_force()} {core.configs.current}"
                f" {node.role_name()} term {core.term} leader {core.leader} applied"
                f" {node.applied_index} of {len(self.world.check.entries)}{notes}"
            )
        for client in self.clients:
            pending = len(client.link.pending) if client.link is not None else None
            lines.append(
                f"\n  client {client.number}{' gone' if client.is_gone else ''} session {client.session_id:#x}"
                f" answered {client.answered} synced {client.synced} pending {pending}"
            )
        lines.append(f"\n  sessions {[hex(each) for each in self.world.check.model.sessions]}")
        return "".join(lines)


class _Fields(dict[str, Any]):
    """Fields for a log line: a field without a value stays as its name in braces."""

    def __missing__(self, key: str) -> str:
        return f"{{{key}}}"


def run_plan(plan: Plan, bug: type[Bug] = Bug, trace: bool = False) -> World:
    """Simulate one history to its end.

    Raise Violation.
    """
    world = World(plan.seed, plan.nodes, bug, trace)
    run_world(world, plan)
    return world


def run_world(world: World, plan: Plan) -> None:
    """Simulate the history of `plan` in a new world to its end. After a Violation the world has the trace of it."""
    world.plan = plan
    with world.bug.planted():
        Story(world, plan).run()
        for host in world.hosts.values():
            if host.process is not None:
                host.process.validate()


def run_one(seed: int, size: int = 3, trouble_s: float = 0, bug: type[Bug] = Bug, trace: bool = False) -> World:
    """Simulate one seed to its end.

    Raise Violation.
    """
    return run_plan(Plan(seed, size, trouble_s), bug, trace)


def failure_of(plan: Plan, bug: type[Bug] = Bug) -> Failure | None:
    """Return how this history fails, None if it does not."""
    world = World(plan.seed, plan.nodes, bug)
    world.plan = plan
    with world.bug.planted():
        story = Story(world, plan)
        try:
            story.run()
        except Violation as violation:
            numbers = [client.number for client in story.clients]
            return Failure(str(violation), world.now / SECOND, story.happened, numbers)
    return None
