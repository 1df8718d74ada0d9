"""The store from its clients' view: nodes that serve the real client protocol from the real state machine.

Instead of Raft there is one list of committed batches. A node forwards its clients' commands to the leader. It applies
a batch when the batch reaches it. Each step has a delay of its own, so nodes lag behind each other as real nodes do.

Faults: the leader pauses or changes (commands on their way are sent again, and sessions get their whole timeout again),
a node is cut off from the leader or restarts, a session expires. `tests/sim/store` checks with real Raft what clients
may observe of all this. Here the store is only the environment of masters and region servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from coord.server.clients.connection import Connection, Limits, Pending
from coord.server.clients.pipeline import Pipeline
from coord.server.clients.proposals import Proposals
from coord.tree.command import decode_batch, encode_batch, encode_command
from coord.tree.machine import CommandOutcome, StateMachine
from coord.tree.sessions import ExpiryQueue
from coord.wire.client_conn import PHASE_CLOSED, PHASE_START, ClientConnection
from coord.wire.opcodes import OP_EXPIRE
from simulation.engine.chance import SeededRandom
from simulation.engine.network import End, Network
from simulation.engine.process import EPOCH_MS, TURN_US
from simulation.engine.timeline import Timeline

PORT: Final = 2181
#: Interval at which the leader looks for silent sessions and collects the sessions that the nodes' clients have used.
TICK_US: Final = 100_000
#: A node without a leader closes its clients' connections after this time.
NO_LEADER_US: Final = 1_500_000

#: Called once for every committed command, with the state after it.
Witness = Callable[[StateMachine, CommandOutcome], None]


class Client:
    """A client's connection to a node (a pipeline's `Transport`)."""

    def __init__(self, node: SimulatedNode, end: End) -> None:
        self._node = node
        self.end = end
        self._wire = ClientConnection()
        self._has_begun = False
        self.is_dirty = False
        self._ends_when_sent = False
        self.connection: Connection = node.pipeline.clients.connect(self, end.peer.host, 0, node.store.now_ms())
        end.receive = self._received
        end.lost = self._lost

    def _received(self, data: bytes) -> None:
        pipeline = self._node.pipeline
        frames = self._wire.receive_data(data)
        if not self._has_begun and self._wire.phase != PHASE_START:
            self._has_begun = True
            request = self._wire.take_connect()
            if request is not None:
                pipeline.handshake.open_session(self.connection, request)
        if frames:
            pipeline.receive(self.connection, self._wire.take_block(), frames)
        if self._wire.phase == PHASE_CLOSED:
            pipeline.clients.close(self.connection, flush=True)
        self._node.turn_ends()

    def _lost(self, _reason: str) -> None:
        self._node.pipeline.clients.connection_lost(self.connection)

    def wake(self) -> None:
        """Schedule the client's output."""
        if not self.is_dirty:
            self.is_dirty = True
            self._node.dirty.append(self)

    def set_reading(self, is_reading: bool) -> None:
        """Do nothing, because clients of a simulated cluster never exceed the limit of waiting requests."""

    def resume_later(self) -> None:
        """Do nothing, because simulated time does not pass within a turn, so no request is postponed."""

    def close(self, *, flush: bool) -> None:
        """Close the connection; send the output first if `flush`."""
        if flush:
            self._ends_when_sent = True
            self.wake()
        else:
            self.end.close()

    def send(self) -> None:
        """Send the collected output."""
        self.is_dirty = False
        output = self.connection.output
        if output:
            self.end.send(b"".join(output))
            output.clear()
        if self._ends_when_sent:
            self.end.close()


class SimulatedNode:
    """A store node. Its tree contains the first `applied` batches of the store's list."""

    def __init__(self, store: SimulatedStore, number: int) -> None:
        self.store = store
        self.host = f"n{number}"
        self.number = number
        self.machine = StateMachine()
        self.applied = 0
        self.is_up = True
        #: Time since when the node is cut off from the leader, or -1.
        self.cut_off_since = -1
        self.dirty: list[Client] = []
        self.incarnation = 0
        self._known_committed = 0
        self._syncs: list[tuple[int, Connection, Pending]] = []
        self._is_turn_due = False
        self._start()

    def _start(self) -> None:
        self.proposals = Proposals()
        self.pipeline = Pipeline(
            self.number, self.machine, self.proposals, Limits(), self.store.chance.token, self._ask_read_index
        )
        self.pipeline.on_session_opened = self.store.session_opened
        self.store.network.listen(self.host, PORT, None, self._accept)

    def _accept(self, end: End) -> None:
        Client(self, end)

    def restart(self, down_us: int) -> None:
        """Stop the process. Its tree survives on disk; commands that it has not sent are lost."""
        self.is_up = False
        self.incarnation += 1
        self.store.network.unlisten(self.host, PORT)
        self._syncs.clear()
        for connection in list(self.pipeline.clients.connections.values()):
            self.pipeline.clients.close(connection)
        self.store.timeline.later(down_us, self._start_again)

    def _start_again(self) -> None:
        self.is_up = True
        self.dirty.clear()
        self._start()
        self.learn_committed(len(self.store.log))

    # --- turns --------------------------------------------------------------------------------------------------------

    def turn_ends(self) -> None:
        """Schedule the end of the turn, which sends replies and forwards commands."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self.store.timeline.later(TURN_US, self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        if not self.is_up:
            return
        if self.proposals.waiting and self.cut_off_since < 0:
            _, taken = self.proposals.take(1)
            if taken:
                self.store.forward(self, [one.command for one in taken])
        if self.pipeline.turn_end():
            self.turn_ends()
        dirty, self.dirty = self.dirty, []
        for client in dirty:
            client.send()

    # --- the log ------------------------------------------------------------------------------------------------------

    def learn_committed(self, length: int) -> None:
        """Apply the committed batches up to `length`, unless the node is down or cut off."""
        self._known_committed = max(self._known_committed, length)
        if not self.is_up or self.cut_off_since >= 0:
            return
        pipeline = self.pipeline
        while self.applied < self._known_committed:
            batch = self.store.log[self.applied]
            self.applied += 1
            if pipeline.clients.waiting_reads:
                time_ms, commands = decode_batch(batch)
                for command in commands:
                    pipeline.applied([self.machine.apply(command, time_ms)])
            else:
                pipeline.applied(self.machine.apply_batch(batch))
        self._release_syncs()
        self.turn_ends()

    def _ask_read_index(self, connection: Connection, waiting: Pending) -> None:
        self.store.read_index(self, connection, waiting)

    def read_index_known(self, index: int, connection: Connection, waiting: Pending) -> None:
        """Answer a sync once the first `index` batches are applied."""
        self._syncs.append((index, connection, waiting))
        self._release_syncs()
        self.turn_ends()

    def _release_syncs(self) -> None:
        while self._syncs and self._syncs[0][0] <= self.applied:
            _, connection, waiting = self._syncs.pop(0)
            self.pipeline.release_sync(connection, waiting)

    # --- the leader ---------------------------------------------------------------------------------------------------

    def cut_off(self) -> None:
        """Cut the node off from the leader."""
        if self.cut_off_since < 0:
            self.cut_off_since = self.store.timeline.now
            self.store.timeline.later(NO_LEADER_US, self._close_clients, self.cut_off_since)

    def rejoin(self) -> None:
        """Connect the node with the leader again."""
        if self.cut_off_since >= 0:
            self.cut_off_since = -1
            self.learn_committed(len(self.store.log))

    def _close_clients(self, since: int) -> None:
        if self.cut_off_since == since and self.is_up:
            for connection in list(self.pipeline.clients.connections.values()):
                self.pipeline.clients.close(connection)


class SimulatedStore:
    """All nodes, and the list of committed batches."""

    def __init__(self, timeline: Timeline, network: Network, nodes: int, witness: Witness) -> None:
        self.timeline = timeline
        self.network = network
        self.chance = SeededRandom(f"regionkeeper store {timeline.chance.below(1 << 62)}")
        #: The committed state, applied at the moment of the commit; for the observer.
        self.truth = StateMachine()
        self.log: list[bytes] = []
        self._witness = witness
        self._paused_until = 0
        self._era = 0
        self._waiting: list[bytes] = []
        self._is_commit_due = False
        self._last_time_ms = 0
        self.nodes = [SimulatedNode(self, number) for number in range(nodes)]
        #: Earliest arrival of a message that is sent now, to the leader and from the leader, per node.
        self._to_leader = [0] * nodes
        #: Commands on their way to the leader, in order, per node.
        self._on_their_way: list[deque[list[bytes]]] = [deque() for _ in range(nodes)]
        self._to_node = [0] * nodes
        self._expiry = ExpiryQueue(self.truth.sessions, TICK_US // 1000, self.now_ms())
        timeline.later(TICK_US, self._tick)

    @property
    def address(self) -> str:
        """Return the connection string for clients."""
        return ",".join(f"{node.host}:{PORT}" for node in self.nodes)

    def now_ms(self) -> int:
        """Return the store's own time, to which the rates of the processes' clocks refer."""
        return self.timeline.now // 1000

    # --- commands -----------------------------------------------------------------------------------------------------

    def _lag(self) -> int:
        lag = 300 + self.chance.below(1_500)
        if self.network.heavy and self.chance.happens(self.network.heavy):
            lag += self.chance.below(400_000)
        return lag

    def forward(self, node: SimulatedNode, commands: list[bytes]) -> None:
        """Send a node's commands to the leader."""
        arrival = max(self.timeline.now + self._lag(), self._to_leader[node.number])
        self._to_leader[node.number] = arrival
        self._on_their_way[node.number].append(commands)
        self.timeline.at(arrival, self._arrive, node, self._era)

    def _arrive(self, node: SimulatedNode, era: int) -> None:
        if era == self._era:
            self._waiting.extend(self._on_their_way[node.number].popleft())
            self._commit_soon()

    def _commit_soon(self) -> None:
        if not self._is_commit_due and self._waiting:
            self._is_commit_due = True
            due = max(self.timeline.now + 200 + self.chance.below(600), self._paused_until)
            self.timeline.at(due, self._commit)

    def _commit(self) -> None:
        if self.timeline.now < self._paused_until:
            self.timeline.at(self._paused_until, self._commit)
            return
        self._is_commit_due = False
        commands, self._waiting = self._waiting, []
        self._last_time_ms = max(self._last_time_ms, EPOCH_MS + self.now_ms())
        batch = encode_batch(self._last_time_ms, commands)
        self.log.append(batch)
        time_ms, decoded = decode_batch(batch)
        for command in decoded:
            self._witness(self.truth, self.truth.apply(command, time_ms))
        for node in self.nodes:
            arrival = max(self.timeline.now + self._lag(), self._to_node[node.number])
            self._to_node[node.number] = arrival
            self.timeline.at(arrival, node.learn_committed, len(self.log))
        self._commit_soon()

    def read_index(self, node: SimulatedNode, connection: Connection, waiting: Pending) -> None:
        """Ask the leader for the commit index that a sync must wait for."""
        self.timeline.later(self._lag(), self._read_index_at_leader, node, node.incarnation, connection, waiting)

    def _read_index_at_leader(
        self, node: SimulatedNode, incarnation: int, connection: Connection, waiting: Pending
    ) -> None:
        if self.timeline.now < self._paused_until or node.cut_off_since >= 0:
            again = max(self._paused_until, self.timeline.now + TICK_US)
            self.timeline.at(again, self._read_index_at_leader, node, incarnation, connection, waiting)
            return
        # Syncs of one node are answered in the order of their round trips, because the link keeps its order.
        arrival = max(self.timeline.now + self._lag(), self._to_node[node.number])
        self._to_node[node.number] = arrival
        self.timeline.at(arrival, self._read_index_known, node, incarnation, len(self.log), connection, waiting)

    @staticmethod
    def _read_index_known(
        node: SimulatedNode, incarnation: int, index: int, connection: Connection, waiting: Pending
    ) -> None:
        if node.is_up and node.incarnation == incarnation:
            node.read_index_known(index, connection, waiting)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def session_opened(self, session_id: int, node: int) -> None:  # noqa: ARG002
        """Restart the timeout of a session that was created or moved."""
        self._expiry.touch(session_id, self.now_ms())

    def _tick(self) -> None:
        self.timeline.later(TICK_US, self._tick)
        now_ms = self.now_ms()
        for node in self.nodes:
            if node.is_up and node.cut_off_since < 0:
                for session_id in node.pipeline.clients.take_active():
                    self._expiry.touch(session_id, now_ms)
        if self.timeline.now < self._paused_until:
            return
        for session_id, owner in self._expiry.expired(now_ms):
            self.timeline.note(f"store: session {session_id:x} is silent")
            self._waiting.append(encode_command(session_id, owner, 0, OP_EXPIRE, b""))
        self._commit_soon()

    # --- faults -------------------------------------------------------------------------------------------------------

    def pause(self, span_us: int) -> None:
        """Pause the leader. Sessions get their whole timeout again afterwards."""
        self.timeline.note(f"store: leader pauses for {span_us} us")
        self._paused_until = max(self._paused_until, self.timeline.now + span_us)
        self.timeline.at(self._paused_until, self._restart_expiry)

    def change_leader(self, span_us: int) -> None:
        """Elect another node after a pause. Commands on their way to the old leader are sent again."""
        self._era += 1
        for node in self.nodes:
            # The node knows that these commands were not committed, and sends them before any newer command.
            lost = [command for commands in self._on_their_way[node.number] for command in commands]
            self._on_their_way[node.number].clear()
            if lost:
                self.forward(node, lost)
        self.pause(span_us)

    def _restart_expiry(self) -> None:
        self._expiry = ExpiryQueue(self.truth.sessions, TICK_US // 1000, self.now_ms())

    def end_session(self, session_id: int) -> None:
        """Expire a session whose client is alive; the client's process may not notice for a while."""
        session = self.truth.sessions.find(session_id)
        if session is not None:
            self._waiting.append(encode_command(session_id, session.owner, 0, OP_EXPIRE, b""))
            self._commit_soon()
