"""The driver of one store node: the only place that knows in which order persisting, sending, applying and answering
happen.

Between two turns nothing is half done. During a turn things arrive (`tick`, `peer_frame`, `Pipeline.receive`,
`on_persisted`), and `turn_end` does what follows from all of them together:

    commands of this turn -> one group -> one entry (or one FORWARD to the leader)
    for each Ready of the core:
        queue its messages for the peers            none of them depends on this disk
        queue its entries and hard state for the log, one record and one sync for all that waits
        apply what is committed: events first, then replies, into the connections' outputs
    one send per peer, one wake of the log's writer, one send per client

Messages that promise something durable (votes, acknowledgements) are kept until the log's writer has reported all
batches up to theirs: `_held`.

The node knows no clock, socket or disk: they are handed in (`coord.env`, `PeerDoor`, `LogWriter`, `SnapshotJob`), so a
simulation drives whole nodes through exactly these methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from coord.env import Clock, Entropy
from coord.errors import (
    InvalidMessage,
    NotLeader,
    ProposalDropped,
    RemoteProtocolError,
    StateDiverged,
    UnsupportedLevel,
)
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
from coord.server.batching import GROUP_BYTES_MAX, Batching
from coord.server.clients.authentication import Authenticator
from coord.server.clients.pipeline import Pipeline
from coord.server.clients.proposals import Forwarded, Proposals, Sent
from coord.server.clients.syncs import Syncs
from coord.server.config.addresses import config_text
from coord.server.membership.joining import Joining
from coord.server.membership.levels import Levels
from coord.server.membership.reconfig import Reconfiguration
from coord.server.net.interfaces import PeerDoor, SnapshotJob, Tracer
from coord.server.node_settings import NodeSettings
from coord.server.peers import codec, raft_frames
from coord.server.peers.snapshot_transfer import Arrival, Dismantling, SnapshotInbox, SnapshotOutbox
from coord.server.recovery.divergence import DivergenceCheck
from coord.server.sessions.liveness import Liveness
from coord.server.snapshots.policy import SnapshotPolicy
from coord.storage import snapshot as files
from coord.storage.wal import Batch
from coord.storage.writer import LogWriter
from coord.tree.command import decode_group, encode_command
from coord.tree.machine import StateMachine
from coord.wire.codec import encode_path
from coord.wire.opcodes import OP_DELETE_CONTAINER

log = Logger(__name__)

#: A turn that takes longer is interrupted between two Readies.
TURN_MS_MAX: Final = 50
#: Containers and TTL znodes that the leader proposes to end at a time.
REAPED_PER_ROUND: Final = 1000
#: Events of the core that the line about a changed role already tells.
_TOLD_BY_CHANGE: Final = ("role", "leader")


class Node:
    """One node of the store. Every method is called on one thread; `turn_end` after each group of others."""

    def __init__(
        self,
        settings: NodeSettings,
        core: RaftCore,
        machine: StateMachine,
        *,
        writer: LogWriter,
        snapshots: files.Snapshots,
        snapshot_job: SnapshotJob,
        peers: PeerDoor,
        clock: Clock,
        entropy: Entropy,
        joining: Joining,
        applied: files.SnapshotMeta,
    ) -> None:
        """`machine` is at the position of `applied`, from which `core` was started, too."""
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
        self.pipeline.handshake.authenticator = Authenticator(
            entropy.token, super_digest=settings.super_digest, sasl_users=settings.sasl_users
        )
        self.pipeline.is_linearizable = settings.linearizable_reads
        self.applied_index = applied.index
        self.levels = Levels(self, machine.supported)
        self.membership = Reconfiguration(self, peers, self.levels)
        self.pipeline.on_membership_request = self.membership.asked
        #: None: nobody traces this node.
        self.tracer: Tracer | None = None
        #: Told when other members are in force than before: links are to be opened or closed.
        self.on_members_changed: Callable[[], None] = _nobody_cares
        self.forwarded = Forwarded()
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
        self._inbox = SnapshotInbox(snapshots, machine.supported)
        self._outbox = SnapshotOutbox(snapshots, peers)
        #: A state from the leader that the core has just been told of.
        self._arrived: Arrival | None = None
        self._dismantling = Dismantling()
        # As of the last Ready.
        self.role = 0
        self.term = 0
        self.leader = 0
        self.group = Batching(settings, clock)
        #: Peers to which the link is newer than what was last forwarded over it.
        self._fresh_links: set[int] = set()
        #: (batch number of the writer, Ready number or 0, messages that wait for it), oldest first.
        self._held: deque[tuple[int, int, list[Message]]] = deque()
        self._submitted = 0
        self._leaderless_since_ms = clock.monotonic_ms()
        self._ticks = 0
        self._started_ms = self._leading_since_ms = self._reaped_ms = self._ticked_ms = clock.monotonic_ms()
        #: The disk refuses writes for lack of room.
        self.is_full = False
        #: Why the node cannot go on; whoever drives it stops it.
        self.failure: Exception | None = None
        # Counters for the metrics.
        self.groups = 0
        self.commands = 0
        self.elections_won = 0

    # --- what arrives -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """`raft_tick_ms` have passed."""
        self._ticks += 1
        now_ms = self._clock.monotonic_ms()
        if self.liveness.expiry is not None and now_ms - self._ticked_ms > self.settings.tick_ms:
            # This process stood still: what clients said meanwhile is still unread, so every session begins anew.
            self.liveness.lead()
        self._ticked_ms = now_ms
        if not self._awaits_voters():
            self.core.tick()
        self.syncs.tick()
        self.membership.tick()
        self.levels.tick()
        self._compare(now_ms)
        self.liveness.tick(now_ms)
        if self.liveness.expiry is not None and now_ms - self._reaped_ms >= self.settings.reap_interval_ms:
            self._reap(now_ms)
        self._outbox.pump(self.core)
        self.snapshot_policy.forget_applied(self.applied_index)
        if self.core.leader != 0 and self.liveness.contact.holds(now_ms):
            self._leaderless_since_ms = now_ms
            self.pipeline.handshake.read_only.end()
        elif now_ms - self._leaderless_since_ms <= self.settings.leader_absence_ms:
            pass
        elif self.settings.read_only_mode:
            self.pipeline.handshake.read_only.begin()
        elif self.clients.connections:
            log.warn(
                "no leader for {ms} ms, closing {count} client connections",
                ms=now_ms - self._leaderless_since_ms,
                count=len(self.clients.connections),
            )
            self.clients.close_all()
        self.snapshot_policy.note_doubt(self._outbox.take_doubt())
        if not self.is_full:
            self.snapshot_policy.maybe_take(self.machine, self.applied_index)

    def _compare(self, now_ms: int) -> None:
        """Ask now and then whether the other replicas have the state that this one has."""
        if self.joining.is_joining:
            return
        config = self.core.configs.current
        leads = self.core.leadership is not None
        try:
            self.divergence.tick(now_ms, leads=leads, voters=config.voters, members=config.members())
        except StateDiverged as error:
            self.on_failed(error)

    def _awaits_voters(self) -> bool:
        """Whether the first election of a new store waits for voters that have not started yet."""
        core = self.core
        return core.log.last == core.term == core.leader == 0 and self.joining.awaits(
            self.settings.node_id, core.configs.current, self.uptime_ms()
        )

    def has_log(self) -> bool:
        """Whether there is anything in this node's log; peers are told (`Joining`)."""
        return self.core.log.last > 0

    def peer_introduced(self, peer: int, has_log: bool) -> None:
        """`peer` said hello, over whichever connection."""
        self.divergence.peer_arrived()
        # How a transfer to it ended may have been said over a connection that is gone: find out where it stands.
        self._outbox.peer_lost(peer, self.core)
        try:
            # Who knows a term has a disk that remembers its votes. Without this, a first leader whose voters have got
            # nothing of its log yet would make all of them joining, and nobody could ever be elected.
            self.joining.peer_introduced(peer, peer_has_log=has_log, has_log=self.has_log() or self.core.term > 0)
            self.core.memory = self.joining.memory
        except OSError as error:
            self.on_failed(error)

    def peer_connected(self, peer: int) -> None:
        """This node's link to `peer` is up; nothing sent over an earlier one will still arrive."""
        self._fresh_links.add(peer)

    def peer_lost(self, peer: int) -> None:
        """The link to or from `peer` broke."""
        self.core.peer_down(peer)
        self._outbox.peer_lost(peer, self.core)
        self._inbox.peer_lost(peer)
        self.membership.peer_lost(peer)
        self.levels.peer_lost(peer)

    def peer_frame(self, peer: int, incarnation: int, kind: int, block: bytes, at: int, end: int) -> None:
        """Take a frame from `peer`, whose identity the link has checked.

        Raises RemoteProtocolError to have the link broken; then the frame has changed nothing.
        """
        if kind == codec.RAFT:
            self._peer_message(peer, codec.readable(raft_frames.decode_raft, block, at, end))
        elif kind == codec.FORWARD:
            term, first, commands = codec.readable(raft_frames.decode_forward, block, at, end)
            self._take_forward(peer, incarnation, term, first, commands)
        elif kind == codec.TOUCH:
            self.liveness.take_report(peer, codec.readable(codec.decode_touch, block, at, end))
        elif kind == codec.DUE:
            self.liveness.answer_due(peer, *codec.readable(codec.decode_silent, block, at, end))
        elif kind == codec.AGREED:
            self.liveness.agreed(peer, *codec.readable(codec.decode_silent, block, at, end))
        elif kind == codec.CHUNK:
            chunk = codec.readable(codec.decode_chunk, block, at, end)
            if not self._inbox.take(peer, chunk, self._clock.monotonic_ms()):
                self._peers.send(peer, codec.encode_received(chunk.name, False))
        elif kind == codec.RECEIVED:
            name, ok = codec.readable(codec.decode_received, block, at, end)
            self._outbox.ended(peer, name, ok, self.core)
        elif kind == codec.DIGEST:
            said = codec.readable(codec.decode_digest, block, at, end)
            if self.joining.is_joining:
                return  # What it has is the leader's, and no second opinion.
            try:
                self.divergence.heard(peer, *said, self._clock.monotonic_ms())
            except StateDiverged as error:
                self.on_failed(error)
        elif kind == codec.ASK:
            self.membership.ask(peer, *codec.readable(codec.decode_numbered, block, at, end))
        elif kind == codec.ANSWER:
            self.membership.answered(peer, *codec.readable(codec.decode_numbered, block, at, end))
        else:
            raise RemoteProtocolError(f"peer {peer} sent a frame of unknown kind {kind}")

    def _peer_message(self, peer: int, message: Message) -> None:
        if message.src != peer or message.dst != self.settings.node_id:
            raise RemoteProtocolError(f"peer {peer} sent a message from {message.src} to {message.dst}")
        if message.kind == SNAPSHOT:
            self.core.check(message)
            refused = self._inbox.complete(peer, message)
            if refused is not None:
                self._snapshot_arrived(refused)
            return
        if self.core.term == 0 and message.prev_index and not self.has_log():
            # It has got a log since its hello.
            self.peer_introduced(peer, has_log=True)
        self.core.step(message)

    def _maybe_joined(self) -> None:
        """Look whether the configuration that is applied lets this node count again."""
        configs = self.core.configs
        if configs.newest_index() <= self.applied_index:
            try:
                self.joining.applied(self.settings.node_id, configs.current)
            except OSError as error:
                self.on_failed(error)

    def _snapshot_arrived(self, arrival: Arrival) -> None:
        """A snapshot from a peer is durable and read, or of no use: tell the peer, and the core if it is there."""
        assert arrival.message.snapshot is not None, "SNAPSHOT message without a snapshot"
        name = arrival.message.snapshot.handle
        self._peers.send(arrival.peer, codec.encode_received(name, arrival.machine is not None))
        if arrival.machine is None:
            log.error(
                "snapshot {name} from node {peer} is not usable: {error}",
                name=name,
                peer=arrival.peer,
                error=arrival.error,
            )
            return
        try:
            self.core.step(arrival.message)
        except InvalidMessage as error:
            # The claim was possible when the message came, and is no longer.
            log.error("dropped snapshot {name} from node {peer}: {error}", name=name, peer=arrival.peer, error=error)
            self._dismantling.add(arrival.machine)
            return
        self._arrived = arrival

    def _take_forward(self, peer: int, incarnation: int, term: int, first: int, commands: list[bytes]) -> None:
        core = self.core
        if core.role != LEADER or term != core.term:
            return  # The sender finds out when it applies an entry of a later term (`Proposals`, rule 2).
        try:
            fresh = self.forwarded.accept(term, peer, incarnation, first, commands)
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from error
        self.group.add(term, fresh)

    # --- what the disk tells (WriterEvents) ---------------------------------------------------------------------------

    def on_persisted(self, number: int) -> None:
        """See `WriterEvents.on_persisted`: release what was held back for it."""
        held = self._held
        ready_number = 0
        while held and held[0][0] <= number:
            _, persisted, messages = held.popleft()
            ready_number = max(ready_number, persisted)
            self._send(messages)
        if ready_number:
            self.core.persisted(ready_number)

    def on_full(self, is_full: bool) -> None:
        """See `WriterEvents.on_full`. A leader without a disk hands over; a node without peers refuses writes."""
        self.is_full = is_full
        if is_full:
            log.error("disk full: no writes until there is room")
            self.hand_over()
        else:
            log.info("the disk has room again")

    def on_failed(self, error: Exception) -> None:
        """See `WriterEvents.on_failed`: the node must stop."""
        self.failure = self.failure or error

    # --- the turn -----------------------------------------------------------------------------------------------------

    def peers_served(self) -> None:
        """Apply what peers have just told to be committed: reads of clients come next in this turn.

        A leader has no need of this: it applies before any acknowledgment of a write leaves it, and its messages wait
        for the end of the turn, so that entries of clients and the commit index travel together.
        """
        core = self.core
        if core.role != FOLLOWER or core.log.handed == core.log.commit or self.failure is not None:
            return
        began_ms = self.pipeline.now_ms = self._clock.monotonic_ms()
        while core.has_ready() and self._clock.monotonic_ms() - began_ms <= TURN_MS_MAX:
            self._perform(core.ready())

    def turn_end(self) -> bool:
        """Do everything that follows from what arrived. Cheap when nothing did.

        Returns True when time ran out with work left (a long log to apply): heartbeats and clients come first, then the
        next call goes on.
        """
        if self.failure is not None:
            return False
        core = self.core
        now_ms = self.pipeline.now_ms = self._clock.monotonic_ms()
        has_more = self._dismantling.step()
        # One state at a time: the core may still have to take up the one before.
        if self._arrived is None and self._inbox.is_restoring():
            has_more = True
            try:
                arrival = self._inbox.step(now_ms)
            except UnsupportedLevel as error:
                self.on_failed(error)
                return False
            if arrival is not None:
                self._snapshot_arrived(arrival)
        while True:
            self._submit_commands()
            if self.membership.is_busy():
                self.membership.turn()
            if not core.has_ready():
                break
            if self._clock.monotonic_ms() - now_ms > TURN_MS_MAX:
                has_more = True
                break
            self._perform(core.ready())
        if not core.has_ready() and self._arrived is not None:
            # The core has something newer.
            if self._arrived.machine is not None:
                self._dismantling.add(self._arrived.machine)
            self._arrived = None
        self._peers.flush()
        return has_more

    def _perform(self, ready: Ready) -> None:
        if self.tracer is not None:
            self.tracer.ready(self.core, ready)
        if ready.changed:
            self._follow_change(ready)
        batch = Batch()
        if ready.snapshot is not None:
            self._install(ready.snapshot)
            batch.set_base(ready.snapshot.index, ready.snapshot.term)
        self._send(ready.messages)
        if ready.must_persist():
            if ready.hard_state is not None:
                batch.set_hard_state(ready.hard_state.term, ready.hard_state.vote)
            has_level = False
            for entry in ready.entries:
                batch.add_entry(entry.term, entry.index, entry.kind, entry.data)
                has_level = has_level or entry.kind == LEVEL
            if ready.entries and (has_level or self.levels.has_pending()):
                self.levels.appended(ready.entries)
            self._submitted = self._writer.submit(batch)
            self._held.append((self._submitted, ready.number, ready.messages_after_persist))
        elif ready.messages_after_persist:
            if self._held:
                self._held.append((self._submitted, 0, ready.messages_after_persist))
            else:
                self._send(ready.messages_after_persist)
        # Disk and peers work while this node applies.
        self._peers.flush()
        self._writer.flush()
        if ready.committed:
            self._apply(ready.committed)
        for state in ready.read_states:
            if not self.liveness.contact.confirmed(state.context):
                self.syncs.confirmed(state)
        self.syncs.release(self.applied_index, self.pipeline)
        if ready.config_changed:
            self.on_members_changed()
        for event in ready.events:
            if event.name not in _TOLD_BY_CHANGE:
                log.info("raft {name} term={term} {detail}", name=event.name, term=event.term, detail=event.detail)

    def _follow_change(self, ready: Ready) -> None:
        """Role, term or leader are not what they were."""
        if ready.role != LEADER:
            self.liveness.stop_leading()
            self.membership.leadership_ended()
        if ready.role == LEADER and self.role != LEADER:
            self.elections_won += 1
            self._leading_since_ms = self._clock.monotonic_ms()
        self.role, self.term, self.leader = ready.role, ready.term, ready.leader
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
        if self.tracer is not None and messages:
            self.tracer.sent(messages)
        for message in messages:
            if message.kind == SNAPSHOT:
                self._outbox.begin(message, self.core)
            else:
                self._peers.send(message.dst, raft_frames.encode_raft(message))

    def _apply(self, entries: list[Entry]) -> None:
        machine = self.machine
        pipeline = self.pipeline
        clients = self.clients
        for entry in entries:
            self.proposals.entry_applied(entry.term)
            if entry.kind == NORMAL:
                self.groups += 1
                if clients.waiting_reads:
                    self._apply_one_by_one(entry)
                else:
                    outcomes = machine.apply_group(entry.data)
                    self.commands += len(outcomes)
                    pipeline.applied(outcomes)
            elif entry.kind == LEVEL:
                if not self._raise_level(entry):
                    return
            elif entry.kind == CONFIG:
                pipeline.applied([machine.apply_membership(config_text(decode_configuration(entry.data)))])
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
        if self.joining.is_joining:
            self._maybe_joined()
        if self.role == LEADER and self.liveness.expiry is None and entries[-1].term == self.core.term:
            # Everything of earlier terms is applied: the table is complete, and every session begins anew.
            self.liveness.lead()
            self.membership.leadership_settled()

    def _raise_level(self, entry: Entry) -> bool:
        """Apply a LEVEL entry; return False if this build does not support the level: the node stops in front of it."""
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
        """Answer each command before the next is applied: reads of its session wait between them."""
        try:
            time_ms, commands = decode_group(entry.data)
        except RemoteProtocolError:
            self.pipeline.applied(self.machine.apply_group(entry.data))
            return
        self.machine.begin_group(entry.data)
        for command in commands:
            self.commands += 1
            self.pipeline.applied([self.machine.apply(command, time_ms)])

    # --- commands -----------------------------------------------------------------------------------------------------

    def _submit_commands(self) -> None:
        """Hand this turn's commands to the leader, which may be this node."""
        core = self.core
        proposals = self.proposals
        if core.role == LEADER:
            term = core.term
            if proposals.waiting:
                self.group.add(term, [sent.command for sent in proposals.take(term)[1]])
            if self.group.commands:
                self.group.propose(core, self.machine)
        elif core.leader and (proposals.waiting or proposals.sent) and self._peers.is_connected(core.leader):
            if core.leader in self._fresh_links:
                self._fresh_links.clear()
                first, unapplied = proposals.unapplied(core.term)
                self._peers.send(core.leader, raft_frames.encode_forward(core.term, first, []))
                self._forward(core.leader, core.term, first, unapplied)
            if proposals.waiting:
                self._forward(core.leader, core.term, *proposals.take(core.term))
        if self.syncs.new:
            self.syncs.ask(core)

    def _forward(self, leader: int, term: int, first: int, taken: list[Sent]) -> None:
        """Send commands numbered from `first`. If the link breaks meanwhile, a new one brings them again."""
        part: list[bytes] = []
        size = 0
        for position, sent in enumerate(taken):
            part.append(sent.command)
            size += len(sent.command)
            if size >= GROUP_BYTES_MAX or position == len(taken) - 1:
                number = first + position + 1 - len(part)
                if not self._peers.send(leader, raft_frames.encode_forward(term, number, part)):
                    return
                part = []
                size = 0

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _reap(self, now_ms: int) -> None:
        """Propose the end of empty containers and outlived TTL znodes; apply checks again whether they may go."""
        self._reaped_ms = now_ms
        time_ms = self.group.time_ms(self.machine.applied_time_ms)
        paths = self.machine.reap_candidates(time_ms)[:REAPED_PER_ROUND]
        if paths:
            self.propose([encode_command(0, 0, 0, OP_DELETE_CONTAINER, encode_path(path)) for path in paths])

    def propose(self, commands: list[bytes]) -> None:
        """See `NodeContext.propose`."""
        self.group.add(self.core.term, commands)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def _install(self, meta: RaftSnapshot) -> None:
        """Take over the state that the leader sent. Clients go: nobody can say what became of their requests."""
        arrived, self._arrived = self._arrived, None
        assert arrived is not None, f"the core wants {meta.handle}, which nobody brought"
        machine = arrived.machine
        assert machine is not None, meta.handle
        self.clients.close_all()
        self._dismantling.add(self.machine)
        self.proposals.forget()
        # The leader must hear that some numbers will not come.
        self._fresh_links.add(self.core.leader)
        self.syncs.forget()
        self.machine = machine
        self.pipeline.serve(machine)
        self.applied_index = meta.index
        self.levels.applied(meta.index)
        self.snapshot_policy.installed(meta.index)
        self.divergence.applied(meta.index, machine.last_zxid, machine.digest())
        log.info("took over the state at {index} from the leader", index=meta.index)

    def take_snapshot(self) -> None:
        """Begin to write the state at the applied index."""
        self.snapshot_policy.take(self.machine, self.applied_index)

    # --- leadership and the end ---------------------------------------------------------------------------------------

    def hand_over(self) -> bool:
        """As the leader, ask the voter that holds most of the log to lead. False if there is none, or no need."""
        lead = self.core.leadership
        if lead is None:
            return False
        voters = self.core.configs.current.voters
        candidates = [p for p in lead.peers if p.peer in voters and p.counts and self._peers.is_connected(p.peer)]
        if not candidates:
            return False
        best = max(candidates, key=lambda p: (p.match, p.peer))
        try:
            self.core.transfer_leadership(best.peer)
        except (ProposalDropped, NotLeader):
            return False
        return True

    # --- views --------------------------------------------------------------------------------------------------------

    def is_serving(self) -> bool:
        """Whether this node has a leader, so that requests get somewhere."""
        return self.core.leader != 0 and self.failure is None

    def is_settled(self) -> bool:
        """See `NodeContext.is_settled`. The expiry queue is built when the last entry of earlier terms is applied."""
        return self.core.leadership is not None and self.liveness.expiry is not None

    def trouble(self) -> str:
        """What keeps this node from doing its work as it should although it goes on, "" for nothing."""
        if self.is_full:
            return "disk full: no writes until there is room"
        waits = self.joining.advice(self.settings.node_id, self.core.configs.current, self.core.leader)
        if waits:
            return waits
        if self.levels.trouble():
            return self.levels.trouble()
        return f"the last snapshot failed: {self.snapshot_policy.error}" if self.snapshot_policy.error else ""

    def role_name(self) -> str:
        """follower, pre-candidate, candidate or leader."""
        return ROLE_NAMES[self.core.role]

    def followers(self) -> dict[int, int]:
        """As the leader: connected peer -> entries it is behind. Else empty."""
        lead = self.core.leadership
        if lead is None:
            return {}
        last = self.core.log.last
        return {p.peer: max(0, last - p.match) for p in lead.peers if self._peers.is_connected(p.peer)}

    def uptime_ms(self) -> int:
        """Since the start of this process."""
        return self._clock.monotonic_ms() - self._started_ms

    def leading_ms(self) -> int:
        """For how long this node has led; 0 if it does not."""
        return self._clock.monotonic_ms() - self._leading_since_ms if self.core.leadership is not None else 0


def _nobody_cares() -> None:
    """The default of `Node.on_members_changed`."""
