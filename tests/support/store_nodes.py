"""Whole store nodes in memory: real driver, pipeline, core, log and tree, with a simulated disk, links and time."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

from coord.raft.membership import Configuration
from coord.server.clients.connection import Connection
from coord.server.membership.joining import Joining, renew_memory
from coord.server.node import Node
from coord.server.node_settings import NodeSettings
from coord.server.peers import codec, raft_frames
from coord.server.recovery.repair import recover_or_repair
from coord.server.snapshots.job import InlineSnapshotJob
from coord.storage.writer import InlineWriter
from coord.tree.levels import SUPPORTED
from coord.wire import records
from coord.wire.values import ConnectRequest
from tests.support.disks import MemoryDisk

TICK_MS = 50


class StepClock:
    """A clock that moves only when the test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now_ms


class SeededRng:
    """A tiny random generator: the same seed gives the same run."""

    def __init__(self, seed: int) -> None:
        self._state = seed * 2654435761 % (1 << 32) or 1

    def below(self, n: int) -> int:
        self._state = (self._state * 1664525 + 1013904223) % (1 << 32)
        return (self._state >> 8) % n

    def token(self, size: int) -> bytes:
        return bytes(self.below(256) for _ in range(size))


class Links:
    """The links of one node: frames go into the cluster's queues."""

    has_queued = False

    def __init__(self, cluster: StoreNodes, node_id: int) -> None:
        self._cluster = cluster
        self._id = node_id

    def send(self, peer: int, frame: bytes) -> bool:
        if not self.is_connected(peer):
            return False
        self._cluster.queues[(self._id, peer)].append(frame)
        return True

    def is_connected(self, peer: int) -> bool:
        return (self._id, peer) in self._cluster.queues

    def backlog(self, peer: int) -> int:
        return sum(map(len, self._cluster.queues.get((self._id, peer), ())))

    def flush(self) -> None:
        pass


class Client:
    """One client connection: requests in, frames out (a `Transport`)."""

    def __init__(self, node: Node, clock: StepClock) -> None:
        self.node = node
        self.is_open = True
        self.is_reading = True
        #: Number of times that the pipeline has postponed requests to the next turn. The test calls `Pipeline.resume`
        #: itself.
        self.resumptions = 0
        self.connection: Connection = node.clients.connect(self, "10.0.0.1", 5000, clock.now_ms)
        self.output = self.connection.output
        self.frames: list[bytes] = []
        self.connect_reply: records.ConnectResponse | None = None
        self._has_connected = False

    # Transport
    def wake(self) -> None:
        pass

    def set_reading(self, is_reading: bool) -> None:
        self.is_reading = is_reading

    def resume_later(self) -> None:
        self.resumptions += 1

    def close(self, *, flush: bool) -> None:
        if flush:
            self.drain()
        self.is_open = False

    # the client
    def connect(
        self, timeout_ms: int = 4000, session_id: int = 0, passwd: bytes = bytes(16), last_zxid: int = 0
    ) -> None:
        request = ConnectRequest(last_zxid, timeout_ms, session_id, passwd)
        self.node.pipeline.handshake.open_session(self.connection, request)

    def request(self, xid: int, opcode: int, body: bytes = b"") -> None:
        frame = struct.pack("!ii", xid, opcode) + body
        self.node.pipeline.receive(self.connection, frame, [(0, len(frame))])

    def drain(self) -> None:
        data = b"".join(self.output)
        self.output.clear()
        self.connection.output_bytes = 0
        while data:
            (length,) = struct.unpack_from("!i", data)
            frame, data = data[4 : 4 + length], data[4 + length :]
            if not self._has_connected:
                self._has_connected = True
                self.connect_reply = records.decode_connect_response(frame, 0, len(frame))
            else:
                self.frames.append(frame)

    def replies(self) -> list[tuple[int, int, int, bytes]]:
        """Return (xid, zxid, err, body) of everything received, in order; events have xid -1."""
        self.drain()
        return [(*records.decode_reply_header(f, 0, len(f)), f[16:]) for f in self.frames]

    def xids(self) -> list[int]:
        return [reply[0] for reply in self.replies()]


class StoreNodes:
    """A cluster of nodes."""

    #: True if nodes announce their feature levels to each other, as present builds do.
    announces = False

    def __init__(
        self, count: int = 3, seed: int = 1, segment_bytes: int = 100_000, away: Sequence[int] = (), **settings: Any
    ) -> None:
        """Start all nodes except those that are `away`."""
        self.segment_bytes = segment_bytes
        #: The highest feature level that the build of a node supports, if it is not the present one.
        self.builds: dict[int, int] = {}
        self.clock = StepClock()
        self.count = count
        self.options = settings
        self.seed = seed
        self.disks = {i: MemoryDisk() for i in self.ids()}
        self.queues: dict[tuple[int, int], deque[bytes]] = {}
        self.nodes: dict[int, Node] = {}
        self.incarnations = dict.fromkeys(self.ids(), 0)
        #: A failure that may stop a node, and the nodes that it has stopped.
        self.may_stop: type[Exception] | None = None
        self.stopped: dict[int, Exception] = {}
        #: The initial members in the directory of each node.
        self.began: dict[int, list[int] | Configuration] = {i: list(self.ids()) for i in self.ids()}
        for i in self.ids():
            if i not in away:
                self.start(i)

    def ids(self) -> range:
        return range(1, self.count + 1)

    def start(self, i: int) -> Node:
        """Start node `i` from its disk, as the service does."""
        disk = self.disks[i]
        self.incarnations[i] += 1
        rng = SeededRng(self.seed * 100 + i * 10 + self.incarnations[i])
        found = recover_or_repair(
            disk, i, self.began[i], rng, segment_bytes=self.segment_bytes, supported=self.builds.get(i, SUPPORTED)
        )
        writer = InlineWriter(found.wal)
        job = InlineSnapshotJob(found.snapshots)
        node = Node(
            NodeSettings(i, raft_tick_ms=TICK_MS, **self.options),
            found.core,
            found.machine,
            writer=writer,
            snapshots=found.snapshots,
            snapshot_job=job,
            peers=Links(self, i),
            clock=self.clock,
            entropy=rng,
            joining=Joining(disk, rng),
            applied=found.position,
        )
        job.written = node.snapshot_policy.written
        job.damaged = node.on_failed
        writer.start(node)
        self.nodes[i] = node
        for j in self.nodes:
            if j != i:
                self.join(i, j)
        return node

    def start_empty(self, i: int) -> Node:
        """Start a new node, which has found the store and waits to be added, or which has lost its disk."""
        self.count = max(self.count, i)
        self.disks[i] = MemoryDisk()
        self.incarnations.setdefault(i, 0)
        self.began[i] = self.leader().core.configs.current
        renew_memory(self.disks[i], SeededRng(self.seed * 1000 + i))
        return self.start(i)

    def join(self, a: int, b: int) -> None:
        """Bring up the links between two running nodes."""
        for src, dst in ((a, b), (b, a)):
            if src in self.nodes and dst in self.nodes and (src, dst) not in self.queues:
                self.queues[(src, dst)] = deque()
                if self.announces:
                    self.nodes[dst].levels.peer_announced(src, self.nodes[src].levels.supported, 0)
                self.nodes[dst].peer_introduced(src, self.nodes[src].has_log())
                self.nodes[src].peer_connected(dst)

    def cut(self, a: int, b: int) -> None:
        """Break both links. Frames in flight are lost."""
        for src, dst in ((a, b), (b, a)):
            if self.queues.pop((src, dst), None) is not None and src in self.nodes:
                self.nodes[src].peer_lost(dst)

    def crash(self, i: int) -> None:
        """Kill node `i`. Everything that was not synced is lost."""
        del self.nodes[i]
        for j in self.ids():
            if j != i:
                self.cut(j, i)
        self.disks[i] = self.disks[i].power_cut()

    def turn(self) -> bool:
        """End the turn of every node, then deliver all frames in flight. Return False if there were none."""
        for i in sorted(self.nodes):
            node = self.nodes[i]
            node.turn_end()
            if node.failure is not None:
                assert self.may_stop is not None, f"node {i}: {node.failure!r}"
                assert isinstance(node.failure, self.may_stop), f"node {i}: {node.failure!r}"
                self.stopped[i] = node.failure
                self.crash(i)
        moved = False
        for src, dst in sorted(self.queues):
            queue = self.queues.get((src, dst))
            while queue:
                moved = True
                frame = queue.popleft()
                self.nodes[dst].peer_frame(src, self.incarnations[src], frame[4], frame, 5, len(frame))
        for i in sorted(self.nodes):
            self.nodes[i].turn_end()
        return moved

    def settle(self) -> None:
        """Run turns until no node has work left."""
        for _ in range(1000):
            if not self.turn():
                return
        raise AssertionError("the cluster does not come to rest")

    def run(self, ticks: int) -> None:
        """Let time pass."""
        for _ in range(ticks):
            self.clock.now_ms += TICK_MS
            for i in sorted(self.nodes):
                self.nodes[i].tick()
            self.settle()

    def leader(self) -> Node:
        """Run until a node leads and every connected node knows the leader."""
        for _ in range(200):
            leading = [n for n in self.nodes.values() if n.core.leadership is not None]
            if leading:
                best = max(leading, key=lambda n: n.core.term)
                voters = best.core.configs.current.voters
                know = [i for i in voters if i in self.nodes and self.nodes[i].core.leader == best.settings.node_id]
                if 2 * len(know) > len(voters):
                    return best
            self.run(1)
        raise AssertionError("no leader")

    def follower(self) -> Node:
        """Return a node that follows."""
        leader = self.leader()
        return next(n for i, n in sorted(self.nodes.items()) if n is not leader)

    def client(self, node: Node, **options: Any) -> Client:
        """Return a client with a session on `node`."""
        client = Client(node, self.clock)
        client.connect(**options)
        self.settle()
        client.drain()
        assert client.connect_reply is not None
        assert client.connect_reply.session_id != 0
        return client

    def frame_kinds(self) -> list[int]:
        """Return the kinds of the frames in flight, for tests that lose some of them."""
        return [frame[4] for queue in self.queues.values() for frame in queue]


def forwards_of(queue: deque[bytes]) -> list[tuple[int, int, list[bytes]]]:
    """Return the FORWARD frames in a queue, decoded."""
    return [raft_frames.decode_forward(f, 5, len(f)) for f in queue if f[4] == codec.FORWARD]
