"""The simulated machines with disks and clocks, and their processes, which are whole store nodes.

A process is the real `Node`, `PeerLinks`, `ClientListener`, `Wal` and `Snapshots`; only what `coord.server.service`
takes from the machine is simulated: sockets, the reactor, the clock, entropy, the disk, the log's thread and the
snapshot's child. It runs in turns, as under the real reactor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coord.env import read_file, replace_file
from coord.errors import CoordError, CorruptRecord, StateDiverged, UnsupportedLevel
from coord.peers import dialing
from coord.raft.membership import FIRST_MEMORY, Configuration, decode_configuration
from coord.server.clients.connection import Limits
from coord.server.clients.listener import ClientLimits, ClientListener
from coord.server.config.addresses import MemberAddress
from coord.server.membership.joining import Joining, renew_memory
from coord.server.membership.removal import Removal
from coord.server.membership.steps import addresses_of
from coord.server.node import Node
from coord.server.node_settings import NodeSettings
from coord.server.peers import hello_frames
from coord.server.peers.link import PeerLinks
from coord.server.recovery.repair import IrreparableError, recover_or_repair
from coord.server.snapshots.job import InlineSnapshotJob
from coord.storage.writer import InlineWriter
from coord.wire.digests import digest_of
from simulation.engine.disk import SimDisk
from simulation.engine.history import SeededHistory, Violation
from simulation.engine.timeline import SECOND
from tests.sim.raft.plan import Plan
from tests.sim.store.builds import Builds
from tests.sim.store.machinery import (
    ForkedJob,
    HostClock,
    ListeningDoor,
    NobodyAnswersError,
    NodeTracer,
    PeerEvents,
    PowerCut,
    ProcessSockets,
    SimReactor,
    ThreadedWriter,
    member_of,
)
from tests.sim.store.net import Listening, Network
from tests.support.planted import PlantedBug

TICK_S: Final = 0.05
CLUSTER: Final = b"simulated store."
#: Name of the initial members in a machine's directory; the service has them in meta.json.
META: Final = "members"
#: The operator of the store, who may change its members.
SUPER_PASSWORD: Final = b"secret"
SUPER_DIGEST: Final = digest_of("super", SUPER_PASSWORD.decode())


class Bug(PlantedBug):
    """Bugs planted in the processes. This base class plants none."""

    sizes: tuple[int, ...] = (3,)
    #: Probability of a power cut at each step of a machine; 0: chosen by the seed.
    crash_in_step = 0.0
    #: Whether the members change; None: chosen by the seed.
    members_move: bool | None = None
    #: (older, newer) build, see `Builds`; None: chosen by the seed.
    upgrade: tuple[int, int] | None = None


#: Turns between two validations of a node's invariants, which read the whole log and tree.
VALIDATE_TURNS: Final = 100


class Process:
    """One run of a store node's process."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.world = world = host.world
        self.is_dead = False
        self._is_woken = False
        self._turns = 0
        world.current = self
        self.reactor = SimReactor(self)
        chance = world.chance
        disk = host.disk
        is_new = META not in disk.names("")
        began = host.began_with()
        self.found = found = recover_or_repair(
            disk, host.id, began, chance, segment_bytes=world.segment_bytes, supported=host.build
        )
        writer = InlineWriter(found.wal) if host.writes_inline else ThreadedWriter(self, found.wal)
        self.links = PeerLinks(
            self.reactor,  # type: ignore[arg-type]
            node_id=host.id,
            cluster=CLUSTER,
            incarnation=host.lives,
            addresses={},
            rng=chance,
        )
        job: Any = InlineSnapshotJob(found.snapshots) if host.writes_inline else ForkedJob(self, found.snapshots)
        self.node = Node(
            world.settings(host.id),
            found.core,
            found.machine,
            writer=writer,
            snapshots=found.snapshots,
            snapshot_job=job,
            peers=self.links,
            clock=host.clock,
            entropy=host,
            joining=Joining(disk, chance),
            applied=found.position,
        )
        job.written = self.node.snapshot_policy.written
        self.node.tracer = NodeTracer(self, is_new=is_new or self.node.core.memory != host.memory)
        self.node.membership.cluster = CLUSTER
        self.links.members = self.node.membership
        self.node.on_members_changed = self._follow_members
        self.node.levels.on_required = self.links.recheck
        self._follow_members()
        self.removal = Removal(self.node, self.node.membership, self.reactor.callLater, self._left, disk.name)
        self._has_left = False
        self.clients = ClientListener(
            self.reactor,  # type: ignore[arg-type]
            self.node.pipeline,
            host.clock,
            ClientLimits(
                connections_per_address_max=0,
                pause_bytes=world.pause_bytes,
                stall_ms=3000,
                # In every twelfth world a node's clients do not all receive their answers in one turn.
                sends_per_turn=1 if world.seed % 12 == 1 else 1000,
            ),
            lambda word: word,
            may_answer=self.node.liveness.may_answer,
        )
        writer.start(self.node)
        net = world.net
        for what in ("peer", "client"):
            net.listening[(host.id, what)] = self.reactor.know(Listening(net, host.id, what))
        self.links.start(PeerEvents(self), ListeningDoor(self, net.listening[(host.id, "peer")]))  # type: ignore[arg-type]
        self.clients.start({ListeningDoor(self, net.listening[(host.id, "client")]): None})  # type: ignore[arg-type]
        self.reactor.callLater(TICK_S * chance.unit(), self._tick)

    def validate(self) -> None:
        """Recompute every invariant of the node. Skipped with a planted bug, which the checks of the history must
        find."""
        if type(self.world.bug) is Bug and self.node.failure is None:
            self.node.core.validate()
            self.node.machine.validate()
            self.node.pipeline.watches.validate()

    def _follow_members(self) -> None:
        addresses = addresses_of(self.node.core.configs.current, self.world.first_members())
        addresses.pop(self.host.id, None)
        self.links.follow(addresses)

    def _left(self) -> None:
        self._has_left = True

    def _tick(self) -> None:
        self.reactor.callLater(TICK_S, self._tick)
        self.node.tick()

    def wake(self) -> None:
        """Plan a turn, because something arrived."""
        if not self._is_woken and not self.is_dead:
            self._is_woken = True
            world = self.world
            late = 20 + world.chance.below(80)
            if world.lazy and world.chance.happens(world.lazy):
                late = world.chance.below(5000)
            world.at(world.now + late, self._turn)

    def _turn(self) -> None:
        if self.is_dead:
            return
        world = self.world
        if self.host.paused_until > world.now:
            world.at(self.host.paused_until, self._turn)
            return
        self._is_woken = False
        world.current = self
        has_more = False
        node = self.node
        try:
            self.reactor.serve()
            if node.failure is None:
                has_more = node.turn_end()
            if node.membership.removed_at:
                self.removal.turn_end()
            if node.failure is None:
                has_more = self.clients.send_all() or has_more
        except PowerCut:
            world.check.after_turn(self, is_whole=False)
            self.power_cut()
            return
        except OSError as error:
            # As the service does with any error of a turn.
            node.on_failed(error)
        finally:
            world.current = None
        world.check.after_turn(self)
        self._turns += 1
        if self._turns % VALIDATE_TURNS == 0:
            self.validate()
        if world.logged:
            raise Violation(f"{self.host.id} met a fault while serving: {world.logged[0]}")
        if node.failure is not None:
            self.failed(node.failure)
        elif self._has_left:
            self.world.counts["left"] += 1
            self.world.note(f"{self.host.id} ends: it is no member")
            self._end(silent=False)
            disk = self.host.disk
            disk.killed()
        elif has_more or self.reactor.ready or self.reactor.due:
            self.wake()

    def failed(self, error: Exception) -> None:
        """Handle a node that stops itself: only a failed disk is a valid reason."""
        disk = self.host.disk
        world = self.world
        world.note(f"{self.host.id} stops: {error!r}")
        if isinstance(error, StateDiverged):
            if not self.host.is_odd:
                raise Violation(f"{self.host.id} stops although its state is right: {error}") from error
            world.counts["stopped_as_odd"] += 1
            self._end(silent=False)
            self.host.emptied()
            return
        if not disk.injected:
            raise Violation(f"{self.host.id} stops without need: {error!r}") from error
        world.counts["stopped_by_disk"] += 1
        self._end(silent=False)
        disk.killed()
        self.host.restart_later()

    def kill(self) -> None:
        """Kill the process with SIGKILL. The machine continues."""
        self._end(silent=False)
        self.host.disk.killed()

    def power_cut(self) -> None:
        """Cut the power of the machine."""
        if self.is_dead:
            return
        self.host.is_on = False
        self._end(silent=True)
        torn = self.host.disk.power_cut()
        self.world.counts["power_cut"] += 1
        self.world.counts["torn_write"] += torn
        self.world.note(f"{self.host.id} loses power{', a write is torn' if torn else ''}")
        self.host.restart_later()

    def _end(self, *, silent: bool) -> None:
        self.is_dead = True
        self.host.process = None
        self.host.config_index = self.node.core.configs.newest_index()
        self.host.memory = self.node.core.memory
        self.host.has_log = self.node.core.log.stable > 0
        self.world.net.machine_gone(self.host.id, silent=silent)


class Host:
    """A machine: disk, clocks, and the process on it if it runs. Also the process's `Entropy`."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.id = node_id
        self.clock = HostClock(world)
        self.process: Process | None = None
        self.is_on = True
        self.paused_until = 0
        #: Number of starts of the process; also its incarnation.
        self.lives = 0
        #: The highest feature level that the present build supports (-1 before the first), and the highest of all
        #: builds so far.
        self.build = self.best_build = -1
        #: The operator has noticed that the older build cannot be used here.
        self.must_be_newer = False
        self.is_flipped = False
        #: The memory that it lost (`tests.sim.store.amnesia`), 0 if it is whole; and whether all of the disk was lost.
        self.lost_memory = 0
        self.must_forget = False
        #: The memory in which a bit flipped (`tests.sim.store.faults`), 0: none.
        self.damaged_memory = 0
        #: Of its last process: the index of the newest configuration in its log.
        self.config_index = 0
        self.has_log = False
        self.memory = FIRST_MEMORY
        #: True if its process has a state that does not follow from the log.
        self.is_odd = False
        #: True if the process is to run.
        self.is_installed = node_id <= world.size
        #: True if it looks for a running store when its directory is new.
        self.joins = not self.is_installed
        chance = world.chance
        self.sync_us = chance.pick([150.0, 1500.0, 1500.0, 12_000.0])
        self.writes_inline = chance.happens(0.15)
        self._restart_planned = False
        self.new_disk()

    def new_disk(self) -> None:
        """Replace the disk by an empty one."""
        self.disk = SimDisk(f"disk{self.id}", self.world.chance, lambda: self.world.now)
        self.disk.step = lambda: self.world.step_of(self.id)
        self.is_flipped = self.is_odd = self.has_log = False
        self.damaged_memory = 0
        self.memory = FIRST_MEMORY

    def has_held(self) -> bool:
        """Return True if this machine's log has anything durable."""
        return self.process.node.core.log.stable > 0 if self.process is not None else self.has_log

    def is_whole(self) -> bool:
        """Return True unless the store can do without this machine's disk at the moment.

        The store does without a disk that lost something (`tests.sim.store.amnesia`), and without the disk of every
        voter that does not count: a wiped one, a repaired one, or a late starter of a new store.
        """
        config = self.world.check.config()
        process = self.process
        memory = self.present_memory()
        if config.is_voter(self.id) and not config.counts(self.id, memory):
            return False
        if self.lost_memory == 0:
            return True
        if process is None or process.node.joining.is_joining or process.node.core.abstains():
            return False
        if self.must_forget and memory == self.lost_memory:
            return False
        self.lost_memory = 0
        return True

    def present_memory(self) -> int:
        """Return the identity of the memory that this machine's disk holds (`coord.server.membership.joining`)."""
        return self.memory if self.process is None else self.process.node.core.memory

    def has_hidden_damage(self) -> bool:
        """Return True if a bit of the disk has flipped and the node has not set the damaged log aside yet."""
        return self.damaged_memory == self.present_memory()

    def token(self, size: int) -> bytes:
        """See `Entropy.token`."""
        return bytes(self.world.chance.below(256) for _ in range(size))

    def began_with(self) -> Configuration:
        """Return the initial members of this directory; for a new one, those of a new store or of the store that it
        joins.

        Raise CoordError when no member of the store answers, OSError, PowerCut.
        """
        disk = self.disk
        if META not in disk.names(""):
            config = Configuration(list(range(1, self.world.size + 1)))
            if self.joins:
                config = self.world.found_by(self.id)
                renew_memory(disk, self.world.chance)
            replace_file(disk, "", META, config.encode())
        return decode_configuration(read_file(disk, META))

    def install(self) -> None:
        """Let the operator add this machine to the store: on a new disk if it was never used or is to be emptied."""
        self.is_installed = self.joins = True
        if self.process is None:
            self.restart_later()

    def wipe(self) -> None:
        """Empty the directory. The process is not running."""
        self.new_disk()
        self.joins = True
        self.world.check.on_wiped(self.id)

    def sync_span(self) -> int:
        """Return the duration of the next sync."""
        world = self.world
        span = self.sync_us * (0.5 + world.chance.unit())
        if world.faulty and world.chance.happens(0.004):
            world.counts["slow_sync"] += 1
            span = 400_000 * (0.3 + world.chance.unit())
        return int(span)

    def restart_later(self) -> None:
        """Plan the next start of the process."""
        if not self._restart_planned and self.is_installed:
            self._restart_planned = True
            chance = self.world.chance
            pause = chance.pick([1000, 100_000, SECOND, 3 * SECOND]) if self.world.faulty else 50_000
            self.world.at(self.world.now + pause, self._restart)

    def _restart(self) -> None:
        self._restart_planned = False
        if self.process is None and self.is_installed:
            self.start()

    def start(self) -> None:
        """Start the process from its disk."""
        world = self.world
        self.is_on = True
        self.paused_until = 0
        self.lives += 1
        self.build = world.builds.next_for(self)
        self.disk.injected = 0
        try:
            self.process = Process(self)
        except PowerCut:
            self._stillborn()
            self.is_on = False
            world.net.machine_gone(self.id, silent=True)
            self.disk.power_cut()
            self.restart_later()
            return
        except NobodyAnswersError:
            world.counts["found_nobody"] += 1
            self.restart_later()
            return
        except (CoordError, OSError) as error:
            self._stillborn()
            world.net.machine_gone(self.id, silent=False)
            self._refused(error)
            return
        finally:
            world.current = None
        world.check.on_start(self.process)
        self.process.wake()

    def _stillborn(self) -> None:
        """Handle a process that ended during its start."""
        if self.world.current is not None:
            self.world.current.is_dead = True

    def _refused(self, error: Exception) -> None:
        world = self.world
        world.note(f"{self.id} does not start: {error}")
        if isinstance(error, UnsupportedLevel):
            self.disk.killed()
            world.builds.refused(self)
            return
        if self.disk.injected:
            world.counts["start_failed"] += 1
            self.disk.killed()
            self.restart_later()
            return
        if not self.is_flipped:
            raise Violation(f"{self.id} does not start on a sound disk: {error!r}") from error
        if isinstance(error, IrreparableError):
            error = error.error
        if isinstance(error, CorruptRecord) and not (error.path.startswith(self.disk.name) and error.offset >= 0):
            raise Violation(f"{self.id} does not say where the damage is: {error}") from error
        world.counts["refused_corrupt"] += 1
        self.emptied()

    def emptied(self) -> None:
        """Empty the directory: the node takes the state from the others."""
        world = self.world
        had_joined = self.joins
        self.wipe()
        self.joins = had_joined or world.check.has_moved() or world.chance.happens(0.5)
        self.restart_later()


class World(SeededHistory):
    """One cluster of `size` machines, one seed."""

    FAILURES = (Exception,)

    def __init__(self, seed: int, size: int, bug: type[Bug] = Bug, trace: bool = False) -> None:
        from tests.sim.store.checks import Checks

        super().__init__(seed, size, trace=trace)
        chance = self.chance
        self.plan = Plan(seed, size)
        self.bug = bug()
        #: Tracebacks that processes wrote into their logs.
        self.logged: list[str] = []
        self.faulty = True
        self.current: Process | None
        #: Machines that are not members at first.
        self.spares = 0
        self.members_move = chance.happens(0.4)
        if self.bug.members_move is not None:
            self.members_move = self.bug.members_move
        if self.members_move:
            self.spares = 2
        self.read_only_mode = chance.happens(0.3)
        self.lazy = chance.pick([0.0, 0.1, 0.4])
        self.crash_in_step = chance.pick([0.0, 0.0, 0.0003, 0.002])
        if self.bug.crash_in_step:
            self.crash_in_step = self.bug.crash_in_step
        self.segment_bytes = chance.pick([2500, 12_000, 100_000])
        self.pause_bytes = chance.pick([300, 1 << 20])
        self._snapshot_entries = chance.pick([20, 60, 300])
        self._keep_entries = chance.pick([2, 10, 100])
        self._limits = Limits(
            session_timeout_min_ms=400,
            session_timeout_max_ms=4000,
            outstanding_max=chance.pick([6, 1000]),
            output_bytes_max=chance.pick([400, 4 << 20, 4 << 20]),
        )
        self.builds = Builds(self, self.bug.upgrade)
        self.net = Network(self)
        self.check = Checks(self)
        self.hosts: dict[int, Host] = {}
        for node_id in range(1, size + self.spares + 1):
            self.hosts[node_id] = Host(self, node_id)
        for host in self.hosts.values():
            host.clock.run_at(chance.between(0.75, 1.3))
            self.at(chance.below(200_000), self._first_start, host)

    def settings(self, node_id: int) -> NodeSettings:
        """Return settings with small numbers, so that everything happens in seconds."""
        return NodeSettings(
            node_id,
            tick_ms=200,
            leader_absence_ms=1000,
            # Clocks here run at 0.7 to 1.3 of the real rate.
            contact_lease_ms=300,
            contact_grace_ms=600,
            snapshot_entries=self._snapshot_entries,
            snapshot_again_ms=2000,
            compare_every=1,
            keep_entries=self._keep_entries,
            reap_interval_ms=500,
            limits=self._limits,
            members=self.first_members(),
            client=(f"10.0.0.{node_id}", 2),
            super_digest=SUPER_DIGEST,
            read_only_mode=self.read_only_mode,
        )

    def first_members(self) -> dict[int, MemberAddress]:
        """Return the addresses of the first members."""
        return {i: member_of(i) for i in range(1, self.size + 1)}

    def found_by(self, machine: int) -> Configuration:
        """Return the answer of the store's members that `machine` reaches. Raise NobodyAnswersError."""
        found = []
        for process in self.awake():
            other = process.host.id
            if other != machine and not {(machine, other), (other, machine)} & self.net.cut:
                frame = process.node.membership.describe()
                found.append(hello_frames.decode_cluster(frame[5:]))
        if not found:
            raise NobodyAnswersError("no member of a store answers")
        return max(found, key=lambda each: each[1])[2]

    def _first_start(self, host: Host) -> None:
        if host.process is None and host.is_installed:
            host.start()

    def replay(self) -> str:
        """See SeededHistory."""
        return f"{self.plan.replay()}\n  smaller: the same with --shrink for --trace"

    def play_until(self, end: int, done: Callable[[], bool] | None = None) -> bool:
        """Let time pass; `coord.peers.dialing` uses the simulated sockets meanwhile. See SeededHistory."""
        real, dialing.socket = dialing.socket, ProcessSockets(self, dialing.socket)  # type: ignore[assignment,attr-defined]
        try:
            return super().play_until(end, done)
        finally:
            dialing.socket = real  # type: ignore[attr-defined]

    # --- machines -----------------------------------------------------------------------------------------------------

    def is_on(self, machine: int) -> bool:
        """Return True if the machine runs."""
        host = self.hosts.get(machine)
        return host is None or host.is_on

    def step_of(self, machine: int) -> None:
        """Perhaps cut the power between two operations of a machine. Raise PowerCut."""
        if self.crash_in_step and self.faulty and machine > 0 and self.chance.unit() < self.crash_in_step:
            self.counts["crash_in_step"] += 1
            raise PowerCut

    def clocks(self) -> dict[int, float]:
        """Return the monotonic milliseconds of every machine."""
        return {node_id: host.clock.exact_ms() for node_id, host in self.hosts.items()}

    def running(self) -> list[Process]:
        """Return the processes that are up."""
        return [host.process for host in self.hosts.values() if host.process is not None]

    def members(self) -> list[Process]:
        """Return the processes that are up and are members."""
        members = self.check.members()
        return [process for process in self.running() if process.host.id in members]

    def awake(self) -> list[Process]:
        """Return the processes that are up and not paused."""
        return [process for process in self.running() if process.host.paused_until <= self.now]

    def leaders(self) -> list[Process]:
        """Return the processes that consider themselves the leader."""
        return [process for process in self.running() if process.node.core.leadership is not None]
