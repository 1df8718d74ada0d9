"""The parts of a machine that a process uses: clocks, a reactor, a thread for the log, a child for snapshots, sockets.

Each part works in simulated time like its counterpart in `coord.server` or `coord.storage`.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from coord.errors import CoordError, RemoteProtocolError
from coord.raft.core import RaftCore
from coord.raft.messages import CANDIDATE, Message, Ready
from coord.raft.trace import Recorder, started
from coord.server.config.addresses import MemberAddress
from coord.storage.records import WriteBatch
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.storage.wal import Wal
from coord.storage.writer import FULL_RETRY_S, WriterEvents
from coord.tree.machine import StateMachine
from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from tests.sim.store.net import Listening, SimSocket

if TYPE_CHECKING:
    from tests.sim.store.world import Process, World

READABLE: Final = 0x19
WRITABLE: Final = 0x4


class PowerCut(BaseException):
    """Unwinds a process whose machine has just lost power."""


class SimReactor:
    """The reactor of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.functions: dict[int, Callable[[int], None]] = {}
        self._interest: dict[int, tuple[bool, bool]] = {}
        self._sockets: dict[int, Any] = {}
        self.ready: dict[int, None] = {}
        self.due: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._preferred: set[int] = set()

    def prefer(self, fd: int) -> None:
        self._preferred.add(fd)

    def know(self, sock: Any) -> Any:
        """Add a socket that this process has received from its system."""
        self._sockets[sock.fileno()] = sock
        sock.on_ready = self.poke
        return sock

    def watch(self, fd: int, function: Callable[[int], None], *, writable: bool = False) -> None:
        self.functions[fd] = function
        self.rewatch(fd, readable=True, writable=writable)

    def rewatch(self, fd: int, *, readable: bool, writable: bool) -> None:
        self._interest[fd] = (readable, writable)
        self.poke(self._sockets[fd])

    def unwatch(self, fd: int) -> None:
        self.functions.pop(fd, None)
        self._preferred.discard(fd)

    def poke(self, sock: Any) -> None:
        self.ready[sock.fileno()] = None
        self._process.wake()

    def callLater(self, delay_s: float, function: Callable[..., None], *args: Any) -> None:
        world = self._process.world
        real_us = int(delay_s * 1e6 / self._process.host.clock.rate)
        world.at(world.now + real_us, self._timer, function, args)

    def seconds(self) -> float:
        return self._process.host.clock.exact_ms() / 1000

    def _timer(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self._process.is_dead:
            self.due.append((function, args))
            self._process.wake()

    def serve(self) -> None:
        """Run all due timers and ready sockets, peers before clients."""
        due, self.due = self.due, []
        for function, args in due:
            function(*args)
        ready, self.ready = self.ready, {}
        preferred = [fd for fd in ready if fd in self._preferred]
        if preferred and len(preferred) < len(ready):
            self._serve(preferred)
            self._process.node.peers_served()
        self._serve([fd for fd in ready if fd not in preferred or len(preferred) == len(ready)])

    def _serve(self, ready: list[int]) -> None:
        for fd in ready:
            function = self.functions.get(fd)
            if function is None:
                continue
            sock = self._sockets[fd]
            readable, writable = self._interest[fd]
            events = (READABLE if sock.is_readable() and (readable or getattr(sock, "error", 0)) else 0) | (
                WRITABLE if writable and sock.is_writable() else 0
            )
            if events:
                function(events)
                if fd in self.functions and sock.is_readable() and self._interest[fd][0]:
                    self.ready[fd] = None


class ThreadedWriter:
    """`ThreadWriter` in simulated time: all waiting batches become one write and one sync."""

    def __init__(self, process: Process, wal: Wal) -> None:
        self._process = process
        self._wal = wal
        self._queue: deque[WriteBatch] = deque()
        self._submitted = 0
        self._done = 0
        self._is_busy = False
        self._is_full = False
        self._prune_to = 0
        self._events: WriterEvents

    def start(self, events: WriterEvents) -> None:
        self._events = events

    def submit(self, batch: WriteBatch) -> int:
        self._queue.append(batch)
        self._submitted += 1
        return self._submitted

    def flush(self) -> None:
        self._begin_soon()

    def prune(self, index: int) -> None:
        self._prune_to = index
        self._begin_soon()

    def close(self) -> None:
        pass

    def _begin_soon(self) -> None:
        if not self._is_busy and (self._queue or self._prune_to):
            self._is_busy = True
            world = self._process.world
            world.at(world.now + 10 + world.chance.below(60), self._begin)

    def _begin(self) -> None:
        process = self._process
        if process.is_dead:
            return
        if process.host.paused_until > process.world.now:
            process.world.at(process.host.paused_until, self._begin)
            return
        disk = process.host.disk
        batches = list(self._queue)
        disk.begin_work(process.host.sync_span)
        error: Exception | None = None
        try:
            if batches:
                self._wal.write(batches)
            if self._prune_to:
                prune_to, self._prune_to = self._prune_to, 0
                self._wal.prune(prune_to)
        except PowerCut:
            disk.end_work()
            process.power_cut()
            return
        except Exception as raised:
            error = raised
        process.world.at(disk.end_work(), self._ended, len(batches), error)

    def _ended(self, count: int, error: Exception | None) -> None:
        process = self._process
        if process.is_dead:
            return
        if process.host.paused_until > process.world.now:
            process.world.at(process.host.paused_until, self._ended, count, error)
            return
        process.reactor.due.append((self._report, (count, error)))
        process.wake()

    def _report(self, count: int, error: Exception | None) -> None:
        events = self._events
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            if not self._is_full:
                self._is_full = True
                events.on_full(True)
            world = self._process.world
            world.at(world.now + int(FULL_RETRY_S * SECOND), self._begin)
            return
        if error is not None:
            events.on_failed(error)
            return
        for _ in range(count):
            self._queue.popleft()
        self._is_busy = False
        if self._is_full:
            self._is_full = False
            events.on_full(False)
        self._done += count
        if count:
            events.on_persisted(self._done)
        self._begin_soon()


class ForkedJob:
    """`ForkSnapshotJob` in simulated time: the state at the fork is written some time later."""

    def __init__(self, process: Process, snapshots: Snapshots) -> None:
        self._process = process
        self._snapshots = snapshots
        self.written: Callable[[SnapshotMeta, str], None]

    def begin(self, meta: SnapshotMeta, machine: StateMachine) -> None:
        world = self._process.world
        chunks = list(machine.snapshot_chunks())
        world.counts["snapshot"] += 1
        world.at(world.now + 500 + world.chance.below(200_000), self._write, meta, chunks)

    def _write(self, meta: SnapshotMeta, chunks: list[bytes]) -> None:
        process = self._process
        if process.is_dead:
            return
        error = ""
        try:
            self._snapshots.write(meta, chunks)
        except PowerCut:
            process.power_cut()
            return
        except OSError as failure:
            error = failure.strerror or str(failure)
        process.reactor.due.append((self.written, (meta, error)))
        process.wake()


class NodeTracer:
    """Passes a node's Raft events to the checks (a `coord.server.interfaces.Tracer`)."""

    def __init__(self, process: Process, *, is_new: bool) -> None:
        self._id = process.host.id
        self._check = process.world.check
        self._recorder = Recorder()
        self._check.traced(self._id, [started(process.node.core, is_new=is_new)])

    def ready(self, core: RaftCore, ready: Ready) -> None:
        if ready.changed and ready.role == CANDIDATE:
            self._check.stands(self._id, ready.term)
        self._check.traced(self._id, self._recorder.ready(core, ready))

    def sent(self, messages: list[Message]) -> None:
        self._check.traced(self._id, self._recorder.sent(messages))


class PeerEvents:
    """A layer between a node and its links, which shows the frames to the checks."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._node = process.node
        self.has_log = self._node.has_log
        self.peer_introduced = self._node.peer_introduced
        self.peer_connected = self._node.peer_connected
        self.peer_lost = self._node.peer_lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def peer_frame(self, peer: int, incarnation: int, kind: int, block: bytes, at: int, end: int) -> None:
        process = self._process
        process.world.check.on_peer_frame(process, kind, block, at, end)
        try:
            self._node.peer_frame(peer, incarnation, kind, block, at, end)
        except RemoteProtocolError as error:
            raise Violation(f"{process.host.id} cannot use what {peer} sent: {error}") from error


class HostClock:
    """A machine's clocks: the monotonic one runs at its own rate, the wall clock also jumps."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rate = 1.0
        self._since_us = 0
        self._since_ms = float(world.chance.below(10_000_000))
        self.wall_offset_ms = 0

    def exact_ms(self) -> float:
        return self._since_ms + (self._world.now - self._since_us) * self.rate / 1000

    def run_at(self, rate: float) -> None:
        self._since_ms, self._since_us = self.exact_ms(), self._world.now
        self.rate = rate

    def monotonic_ms(self) -> int:
        return int(self.exact_ms())

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.wall_offset_ms + int(self.exact_ms())


class ListeningDoor:
    """A listening socket whose accepted sockets are added to the process's reactor."""

    def __init__(self, process: Process, listening: Listening) -> None:
        self._process = process
        self._listening = listening

    def fileno(self) -> int:
        return self._listening.fileno()

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        sock, address = self._listening.accept()
        return self._process.reactor.know(sock), address

    def close(self) -> None:
        self._listening.close()


class ProcessSockets:
    """Replaces the module `socket` in `coord.peers.dialing`: makes sockets of the process whose turn it is."""

    def __init__(self, world: World, real: Any) -> None:
        self._world = world
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def socket(self, family: int, kind: int) -> SimSocket:
        process = self._world.current
        assert process is not None, "a socket outside of any turn"
        sock: SimSocket = process.reactor.know(SimSocket(self._world.net, process.host.id))
        return sock


class NobodyAnswersError(CoordError):
    """Raised when a new node finds no store to join."""


def member_of(node_id: int) -> MemberAddress:
    """Return the addresses of a machine."""
    return MemberAddress(node_id, (f"10.0.0.{node_id}", 1), client=(f"10.0.0.{node_id}", 2))
