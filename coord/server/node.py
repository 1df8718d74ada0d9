"""The driver of one store node: the order of persisting, sending, applying and replying.

No work is left half done between two turns. During a turn inputs arrive (`tick`, `peer_frame`, `Pipeline.receive`,
`on_persisted`), and `turn_end` then does all work that follows from them:

    commands of this turn -> one batch -> one entry (or one FORWARD to the leader)
    for each Ready of the core:
        queue its messages for the peers            these messages do not depend on this disk
        queue its entries and hard state for the log, one record and one sync for all queued writes
        apply the committed entries: events first, then replies, into the connections' outputs
    one send per peer, one wake of the log's writer, one send per client

The path of a write: `turn_end` -> `Submission.submit` -> `_perform` (log, peers) -> `on_persisted` (acknowledgments)
-> `_perform` -> `_apply` (tree, reply).

Messages that promise something durable (votes, acknowledgments) wait in `_held` until the log's writer has reported
every write up to theirs.

The node uses no clock, socket or disk of its own. It takes them as arguments (`coord.env`, `PeerTransport`,
`LogWriter`, `SnapshotJob`), so a simulation runs whole nodes through the same methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from coord.env import Clock, Entropy
from coord.errors import (
    RemoteProtocolError,
    StateDiverged,
    UnsupportedLevel,
)
from coord.peers import framing
from coord.raft.core import RaftCore
from coord.raft.membership import decode_configuration
from coord.raft.messages import (
    CONFIG,
    FOLLOWER,
    LEADER,
    LEVEL,
    NORMAL,
    ROLE_NAMES,
    SNAPSHOT,
    Entry,
    Message,
    RaftSnapshot,
    Ready,
)
from coord.server.clients.pipeline import Pipeline
from coord.server.clients.proposals import Proposals
from coord.server.clients.syncs import Syncs
from coord.server.config.addresses import config_text
from coord.server.interfaces import PeerTransport, SnapshotJob, Tracer
from coord.server.membership.joining import Joining
from coord.server.membership.levels import Levels
from coord.server.membership.reconfig import Reconfiguration
from coord.server.node_settings import NodeSettings
from coord.server.peers import codec, raft_frames
from coord.server.recovery.divergence import DivergenceCheck
from coord.server.sessions.liveness import Liveness
from coord.server.snapshots.policy import SnapshotPolicy
from coord.server.snapshots.transfers import SnapshotTransfers
from coord.server.submission import Submission
from coord.storage import snapshot as files
from coord.storage.records import WriteBatch
from coord.storage.writer import LogWriter
from coord.tree.command import decode_batch
from coord.tree.machine import StateMachine

log = Logger(__name__)

#: A turn that exceeds this time ends after the current Ready; the next turn continues.
TURN_MS_MAX: Final = 50
#: Events of the core that are not logged: the line about a changed role contains them.
_LOGGED_WITH_ROLE: Final = ("role", "leader")


class Node:
    """One node of the store. All calls come from one thread; `turn_end` follows each group of other calls."""

    def __init__(
        self,
        settings: NodeSettings,
        core: RaftCore,
        machine: StateMachine,
        *,
        writer: LogWriter[WriteBatch],
        snapshots: files.Snapshots,
        snapshot_job: SnapshotJob,
        peers: PeerTransport,
        clock: Clock,
        entropy: Entropy,
        joining: Joining,
        applied: files.SnapshotMeta,
    ) -> None:
        """`machine` and `core` both start at the position `applied`."""
        self.settings = settings
        self.core = core
        self.machine = machine
        self.proposals = Proposals()
        first_context = int.from_bytes(entropy.token(6), "big") << 8
        self.syncs = Syncs(first_context)
        self.pipeline = Pipeline(
            settings.node_id, machine, self.proposals, settings.limits, entropy.token, self.syncs.add
        )
        self.clients = self.pipeline.clients
        self.liveness = Liveness(self, peers, clock, first_context)
        self.pipeline.on_session_opened = self.liveness.opened
        self.pipeline.handshake.authenticator = settings.authenticator(entropy.token, clock.monotonic_ms)
        self.pipeline.monotonic_ms = clock.monotonic_ms
        self.pipeline.is_linearizable = settings.linearizable_reads
        self.applied_index = applied.index
        self.levels = Levels(self, machine.supported)
        self.membership = Reconfiguration(self, peers, self.levels)
        self.pipeline.on_membership_request = self.membership.asked
        #: Receives this node's Raft events, if there is a trace.
        self.tracer: Tracer | None = None
        #: Called after a change of the configuration, and again when it is committed, to open and close links.
        self.on_members_changed: Callable[[], None] = lambda: None
        self.submission = Submission(settings, core, peers, clock, self.proposals)
        self.divergence = DivergenceCheck(
            settings.node_id, peers.send, lambda: (self.machine.last_zxid, self.machine.digest())
        )
        self.divergence.applied(applied.index, machine.last_zxid, machine.digest())
        self.joining = joining
        core.memory = joining.memory
        self.snapshot_policy = SnapshotPolicy(settings, core, snapshots, snapshot_job, writer, clock, applied.index)
        self._writer = writer
        self._peers = peers
        self._clock = clock
        self._transfers = SnapshotTransfers(core, peers, snapshots, machine.supported)
        #: Raft role as of the last Ready.
        self._role = 0
        #: (number of the write, number of the Ready or 0, messages that wait for the write), oldest first.
        self._held: deque[tuple[int, int, list[Message]]] = deque()
        #: Number of the last write passed to the log's writer.
        self._submitted = 0
        self._leaderless_since_ms = clock.monotonic_ms()
        self._started_ms = self._leading_since_ms = self._reaped_ms = self._ticked_ms = clock.monotonic_ms()
        #: True while the disk rejects writes for lack of space.
        self.is_full = False
        #: Why the node cannot go on. The service stops the process.
        self.failure: Exception | None = None
        # Counters for the metrics, since the start: applied entries with commands, applied commands, elections.
        self.batches = 0
        self.commands = 0
        self.elections_won = 0

    # --- what arrives -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do the periodic work; called every `raft_tick_ms`."""
        now_ms = self._clock.monotonic_ms()
        if self.liveness.expiry is not None and now_ms - self._ticked_ms > self.settings.tick_ms:
            # The process was suspended. Requests of that time are still unread, so every session gets its full timeout.
            self.liveness.lead()
        self._ticked_ms = now_ms
        if not self._awaits_voters():
            self.core.tick()
        self.syncs.tick()
        self.membership.tick()
        self.levels.tick()
        self.pipeline.handshake.authenticator.audit.tick()
        self._compare(now_ms)
        self.liveness.tick(now_ms)
        if self.liveness.expiry is not None and now_ms - self._reaped_ms >= self.settings.reap_interval_ms:
            self._reaped_ms = now_ms
            self.submission.reap(self.machine)
        has_doubt = self._transfers.tick()
        self.snapshot_policy.forget_applied(self.applied_index)
        self._check_leader(now_ms)
        self.snapshot_policy.note_doubt(has_doubt)
        if not self.is_full:
            self.snapshot_policy.maybe_take(self.machine, self.applied_index)

    def _check_leader(self, now_ms: int) -> None:
        """Without a leader for `leader_absence_ms`, serve reads alone or close the client connections."""
        absent_ms = now_ms - self._leaderless_since_ms
        if self.core.leader != 0 and self.liveness.contact.holds(now_ms):
            self._leaderless_since_ms = now_ms
            self.pipeline.handshake.read_only.end()
        elif absent_ms <= self.settings.leader_absence_ms:
            pass
        elif self.settings.read_only_mode:
            self.pipeline.handshake.read_only.begin()
        elif self.clients.connections:
            count = len(self.clients.connections)
            log.warn("no leader for {ms} ms, closing {count} client connections", ms=absent_ms, count=count)
            self.clients.close_all()

    def _compare(self, now_ms: int) -> None:
        """Compare digests with the other replicas from time to time."""
        if self.joining.is_joining:
            return
        config = self.core.configs.current
        leads = self.core.leadership is not None
        try:
            self.divergence.tick(now_ms, leads=leads, voters=config.voters, members=config.members())
        except StateDiverged as error:
            self.on_failed(error)

    def _awaits_voters(self) -> bool:
        """Return True while the first election of a new store waits for voters that have not started."""
        core = self.core
        return core.log.last == core.term == core.leader == 0 and self.joining.awaits(
            self.settings.node_id, core.configs.current, self.uptime_ms()
        )

    def has_log(self) -> bool:
        """Return True if this node's log has entries, as announced in the hello to peers (`Joining`)."""
        return self.core.log.last > 0

    def peer_introduced(self, peer: int, has_log: bool) -> None:
        """Handle the hello of `peer`, over the link to it or from it."""
        self.divergence.peer_arrived()
        self._transfers.peer_introduced(peer)
        try:
            # A node that knows a term has its votes on its disk. Without this test, a first leader whose voters have
            # received no entry yet would make all of them joining nodes, and no node could be elected any more.
            others = [voter for voter in self.core.configs.current.voters if voter != self.settings.node_id]
            knows = self.has_log() or self.core.term > 0
            self.joining.peer_introduced(peer, others, peer_has_log=has_log, has_log=knows)
            self.core.memory = self.joining.memory
        except OSError as error:
            self.on_failed(error)

    def peer_connected(self, peer: int) -> None:
        """Handle a new link to `peer`. Frames of the previous link no longer arrive."""
        self.submission.link_is_new(peer)

    def peer_lost(self, peer: int) -> None:
        """Handle the end of the link to or from `peer`."""
        self.core.peer_down(peer)
        self._transfers.peer_lost(peer)
        self.membership.peer_lost(peer)
        self.levels.peer_lost(peer)

    def peer_frame(self, peer: int, incarnation: int, kind: int, block: bytes, at: int, end: int) -> None:
        """Handle a frame from `peer`, whose identity the link has checked.

        Raise RemoteProtocolError for a frame that violates the protocol, before any change: the caller closes the link.
        """
        if kind == codec.RAFT:
            self._peer_message(peer, framing.readable(raft_frames.decode_raft, block, at, end))
        elif kind == codec.FORWARD:
            term, first, commands = framing.readable(raft_frames.decode_forward, block, at, end)
            self.submission.take_forward(peer, incarnation, term, first, commands)
        elif kind == codec.TOUCH:
            self.liveness.take_report(peer, framing.readable(codec.decode_touch, block, at, end))
        elif kind == codec.DUE:
            self.liveness.answer_due(peer, *framing.readable(codec.decode_silent, block, at, end))
        elif kind == codec.AGREED:
            self.liveness.agreed(peer, *framing.readable(codec.decode_silent, block, at, end))
        elif kind == codec.CHUNK:
            chunk = framing.readable(codec.decode_chunk, block, at, end)
            self._transfers.take_chunk(peer, chunk, self._clock.monotonic_ms())
        elif kind == codec.RECEIVED:
            self._transfers.ended(peer, *framing.readable(codec.decode_received, block, at, end))
        elif kind == codec.DIGEST:
            digest = framing.readable(codec.decode_digest, block, at, end)
            if self.joining.is_joining:
                return  # a joining node has its state from the leader, so its digest proves nothing
            try:
                self.divergence.take_digest(peer, *digest, self._clock.monotonic_ms())
            except StateDiverged as error:
                self.on_failed(error)
        elif kind == codec.ASK:
            self.membership.ask(peer, *framing.readable(codec.decode_numbered, block, at, end))
        elif kind == codec.ANSWER:
            self.membership.answered(peer, *framing.readable(codec.decode_numbered, block, at, end))
        else:
            raise RemoteProtocolError(f"peer {peer} sent a frame of unknown kind {kind}")

    def _peer_message(self, peer: int, message: Message) -> None:
        if message.src != peer or message.dst != self.settings.node_id:
            raise RemoteProtocolError(f"peer {peer} sent a message from {message.src} to {message.dst}")
        if message.kind == SNAPSHOT:
            self._transfers.take_message(peer, message)
            return
        if self.core.term == 0 and message.prev_index and not self.has_log():
            # The peer has received a log since its hello.
            self.peer_introduced(peer, has_log=True)
        self.core.step(message)

    def _maybe_joined(self) -> None:
        """End joining if the applied configuration lets this node count again."""
        configs = self.core.configs
        if configs.newest_index() <= self.applied_index:
            try:
                self.joining.applied(self.settings.node_id, configs.current)
            except OSError as error:
                self.on_failed(error)

    # --- the log's writer (WriterEvents) ------------------------------------------------------------------------------

    def on_persisted(self, number: int) -> None:
        """See `WriterEvents.on_persisted`. Send the messages that waited for the writes up to `number`."""
        held = self._held
        ready_number = 0
        while held and held[0][0] <= number:
            _, persisted, messages = held.popleft()
            ready_number = max(ready_number, persisted)
            if messages:
                self._send(messages)
        if ready_number:
            self.core.persisted(ready_number)

    def on_full(self, is_full: bool) -> None:
        """See `WriterEvents.on_full`. A leader transfers leadership; without another voter, writes are rejected."""
        self.is_full = is_full
        if is_full:
            log.error("node {id}: disk full; rejecting writes until there is space", id=self.settings.node_id)
            self.membership.hand_over()
        else:
            log.info("node {id}: the disk has space again; accepting writes", id=self.settings.node_id)

    def on_failed(self, error: Exception) -> None:
        """See `WriterEvents.on_failed`: the node must stop."""
        self.failure = self.failure or error

    # --- the turn -----------------------------------------------------------------------------------------------------

    def peers_served(self) -> None:
        """As a follower, apply the entries that this turn's frames have committed, before clients' reads are served.

        The leader does not need this step: it applies a write before it acknowledges it. The leader's messages wait for
        the end of the turn, so that new entries and the commit index travel together.
        """
        core = self.core
        if core.role != FOLLOWER or core.log.applying == core.log.commit or self.failure is not None:
            return
        began_ms = self.clients.now_ms = self._clock.monotonic_ms()
        while core.has_ready() and self._clock.monotonic_ms() - began_ms <= TURN_MS_MAX:
            self._perform(core.ready())

    def turn_end(self) -> bool:
        """Do the work that follows from the inputs of this turn. Cheap without inputs.

        Return True if work is left after TURN_MS_MAX, for example a long log to apply. The next call continues after
        heartbeats and clients have been served.
        """
        if self.failure is not None:
            return False
        core = self.core
        now_ms = self.clients.now_ms = self._clock.monotonic_ms()
        has_more = self.pipeline.turn_end()
        transfers = self._transfers
        if transfers.is_busy:
            try:
                has_more = transfers.step(now_ms) or has_more
            except UnsupportedLevel as error:
                self.on_failed(error)
                return False
        rounds = 0
        while True:
            # Only parts with work are called. An attribute of each part says whether it has any.
            if self.proposals.waiting or self.submission.is_due:
                self.submission.submit(self.machine)
            if self.syncs.new:
                self.syncs.ask(core)
            if self.membership.is_busy:
                self.membership.turn()
            if not core.has_ready():
                if transfers.is_busy:
                    transfers.drop_unwanted()
                break
            if rounds and self._clock.monotonic_ms() - now_ms > TURN_MS_MAX:
                has_more = True
                break
            rounds += 1
            self._perform(core.ready())
        if self._peers.has_queued:
            self._peers.flush()
        return has_more

    def _perform(self, ready: Ready) -> None:
        """Carry out one Ready: send, persist, apply."""
        if self.tracer is not None:
            self.tracer.ready(self.core, ready)
        if ready.changed:
            self._follow_change(ready)
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        if ready.messages:
            self._send(ready.messages)
        if ready.must_persist:
            batch = WriteBatch()
            if ready.snapshot is not None:
                batch.set_base(ready.snapshot.index, ready.snapshot.term)
            if ready.hard_state is not None:
                batch.set_hard_state(ready.hard_state.term, ready.hard_state.vote)
            has_level = False
            for entry in ready.entries:
                batch.add_entry(entry.term, entry.index, entry.kind, entry.data)
                has_level = has_level or entry.kind == LEVEL
            if ready.entries and (has_level or self.levels.in_log):
                self.levels.appended(ready.entries)
            self._submitted = self._writer.submit(batch)
            self._held.append((self._submitted, ready.number, ready.messages_after_persist))
        elif ready.messages_after_persist:
            if self._held:
                self._held.append((self._submitted, 0, ready.messages_after_persist))
            else:
                self._send(ready.messages_after_persist)
        # Peers and disk work while this node applies.
        if self._peers.has_queued:
            self._peers.flush()
        self._writer.flush()
        if ready.committed:
            self._apply(ready.committed)
        for state in ready.read_states:
            if not self.liveness.contact.confirmed(state.context):
                self.syncs.confirm(state)
        if self.syncs.confirmed:
            self.syncs.release(self.applied_index, self.pipeline)
        if ready.config_changed:
            self.on_members_changed()
        for event in ready.events:
            if event.name not in _LOGGED_WITH_ROLE:
                log.info("raft {name} term={term} {detail}", name=event.name, term=event.term, detail=event.detail)

    def _follow_change(self, ready: Ready) -> None:
        """Follow a change of role, term or leader."""
        if ready.role != LEADER:
            self.liveness.stop_leading()
            self.membership.leadership_ended()
        if ready.role == LEADER and self._role != LEADER:
            self.elections_won += 1
            self._leading_since_ms = self._clock.monotonic_ms()
        self._role = ready.role
        self.submission.is_due = True
        self.syncs.ask_again()
        self.liveness.report(is_patient=False)
        log.info(
            "node {id} is {role} term={term} leader={leader}",
            id=self.settings.node_id,
            role=ROLE_NAMES[ready.role],
            term=ready.term,
            leader=ready.leader or "none",
        )

    def _send(self, messages: list[Message]) -> None:
        if self.tracer is not None:
            self.tracer.sent(messages)
        for message in messages:
            if message.kind == SNAPSHOT:
                self._transfers.send(message)
            else:
                self._peers.send(message.dst, raft_frames.encode_raft(message))

    def _apply(self, entries: list[Entry]) -> None:
        machine = self.machine
        pipeline = self.pipeline
        clients = self.clients
        has_config = False
        for entry in entries:
            if entry.term > self.proposals.term:
                self.proposals.entry_applied(entry.term)
            if entry.kind == NORMAL:
                self.batches += 1
                if clients.waiting_reads:
                    self._apply_one_by_one(entry)
                else:
                    outcomes = machine.apply_batch(entry.data)
                    self.commands += len(outcomes)
                    pipeline.applied(outcomes)
            elif entry.kind == LEVEL:
                if not self._raise_level(entry):
                    return
            elif entry.kind == CONFIG:
                pipeline.applied([machine.apply_membership(config_text(decode_configuration(entry.data)))])
                has_config = True
            self.snapshot_policy.bytes_since += len(entry.data)
            if entry.index % self.settings.compare_every:
                self.divergence.passed(entry.index)
            else:
                self.divergence.applied(entry.index, machine.last_zxid, machine.digest())
        self.applied_index = entries[-1].index
        if machine.tree.quotas.notes:
            for note in machine.tree.quotas.notes:
                log.warn("{note}", note=note)
            machine.tree.quotas.notes.clear()
        if has_config:
            self.on_members_changed()
        if self.joining.is_joining:
            self._maybe_joined()
        if self._role == LEADER and self.liveness.expiry is None and entries[-1].term == self.core.term:
            # All entries of earlier terms are applied: the session table is complete, and expiry may begin.
            self.liveness.lead()
            self.membership.leadership_established()

    def _raise_level(self, entry: Entry) -> bool:
        """Apply a LEVEL entry; return False if this build does not support the level: the node stops before it."""
        try:
            self.pipeline.applied([self.machine.raise_level(entry.data)])
        except UnsupportedLevel as error:
            self.applied_index = entry.index - 1
            self.on_failed(error)
            return False
        log.info("feature level {to} is in force from {index} on", to=self.machine.level, index=entry.index)
        self.levels.applied(entry.index)
        return True

    def _apply_one_by_one(self, entry: Entry) -> None:
        """Apply a batch command by command, with the reply after each, because reads of the session wait in between."""
        try:
            time_ms, commands = decode_batch(entry.data)
        except RemoteProtocolError:
            self.pipeline.applied(self.machine.apply_batch(entry.data))
            return
        self.machine.begin_batch(entry.data)
        for command in commands:
            self.commands += 1
            self.pipeline.applied([self.machine.apply(command, time_ms)])

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def _install(self, meta: RaftSnapshot) -> None:
        """Replace the state by the snapshot that the leader sent.

        Close all client connections: it is unknown whether the snapshot contains their requests in flight.
        """
        machine = self._transfers.take_installed(meta)
        required = self.levels.required()
        self.clients.close_all()
        self._transfers.free(self.machine)
        self.proposals.forget()
        # The leader must not wait for the numbers of forwards that this node will not resend.
        self.submission.link_is_new(self.core.leader)
        self.syncs.forget()
        self.machine = machine
        self.pipeline.serve(machine)
        self.applied_index = meta.index
        self.levels.installed(meta.index, required)
        self.snapshot_policy.installed(meta.index)
        self.divergence.applied(meta.index, machine.last_zxid, machine.digest())
        log.info("installed the snapshot at index {index} from the leader", index=meta.index)

    def take_snapshot(self) -> None:
        """Begin a snapshot of the state at the applied index."""
        self.snapshot_policy.take(self.machine, self.applied_index)

    # --- leadership ---------------------------------------------------------------------------------------------------

    def propose(self, commands: list[bytes]) -> None:
        """See `NodeContext.propose`."""
        self.submission.propose(commands)

    # --- views --------------------------------------------------------------------------------------------------------

    def is_serving(self) -> bool:
        """Return True if there is a leader that requests of this node's clients reach."""
        return self.core.leader != 0 and self.failure is None

    def is_ready_to_lead(self) -> bool:
        """See `NodeContext.is_ready_to_lead`. The expiry queue exists once all entries of earlier terms are applied."""
        return self.core.leadership is not None and self.liveness.expiry is not None

    def trouble(self) -> str:
        """Return the problem despite which the node continues, or "" without one."""
        if self.is_full:
            return "disk full: rejecting writes until there is space"
        waits = self.joining.advice(self.settings.node_id, self.core.configs.current, self.core.leader)
        error = self.snapshot_policy.error
        return waits or self.levels.trouble() or (f"the last snapshot failed: {error}" if error else "")

    def role_name(self) -> str:
        """Return follower, pre-candidate, candidate or leader."""
        return ROLE_NAMES[self.core.role]

    def followers(self) -> dict[int, int]:
        """As the leader, return connected peer -> number of entries by which the peer is behind. Otherwise return
        {}."""
        lead = self.core.leadership
        if lead is None:
            return {}
        last = self.core.log.last
        return {p.peer: max(0, last - p.match) for p in lead.peers if self._peers.is_connected(p.peer)}

    def uptime_ms(self) -> int:
        """Return the time since this process started."""
        return self._clock.monotonic_ms() - self._started_ms

    def leading_ms(self) -> int:
        """Return the time since this node was elected, 0 unless it leads."""
        return self._clock.monotonic_ms() - self._leading_since_ms if self.core.leadership is not None else 0
