"""What exists only while a node leads: the peers' progress, reads under way, the hand-over, PRE_VOTERs catching up.

The object is made when a term is won and thrown away when leadership ends, so nothing of it can be mistaken for the
state of a later term. It shares the log and the outbox with the core that owns it.
"""

from __future__ import annotations

from coord.raft.log import RaftLog
from coord.raft.membership import FIRST_MEMORY, CatchUp, Configuration
from coord.raft.messages import (
    APPEND,
    COMMIT,
    HEARTBEAT,
    READ_INDEX_RESP,
    SNAPSHOT,
    TIMEOUT_NOW,
    Message,
    RaftConfig,
    RaftEvent,
    RaftSnapshot,
    ReadState,
)
from coord.raft.progress import PROBE, REPLICATE, Progress
from coord.raft.progress import SNAPSHOT as AWAITS_SNAPSHOT
from coord.raft.quorum import committed_index, majority
from coord.raft.reads import PendingRead, ReadRounds


class Leadership:
    """One term won by one node."""

    def __init__(
        self,
        node_id: int,
        memory: int,
        term: int,
        settings: RaftConfig,
        log: RaftLog,
        config: Configuration,
        outbox: list[Message],
        read_states: list[ReadState],
        events: list[RaftEvent],
    ) -> None:
        self.id: int = node_id
        self.memory: int = memory
        self.term: int = term
        self.settings: RaftConfig = settings
        self.log: RaftLog = log
        self.outbox: list[Message] = outbox
        self.read_states: list[ReadState] = read_states
        self.events: list[RaftEvent] = events
        #: The no-op of this term: once it is committed, the leader knows what is committed (Raft §8).
        self.first_index: int = log.last + 1
        #: Ticks since this leadership began.
        self.now: int = 0
        #: Something happened that may allow or require messages; `replicate` looks.
        self.pending: bool = True
        #: Ascending by id, without the leader itself.
        self.peers: list[Progress] = []
        self.by_id: dict[int, Progress] = {}
        self.config: Configuration = config
        self.reads: ReadRounds = ReadRounds()
        #: Whom leadership is being handed to (0: nobody), and since when.
        self.transferee: int = 0
        self.transfer_began: int = 0
        self.catching_up: dict[int, CatchUp] = {}
        self.set_config(config)

    # --- membership

    def set_config(self, config: Configuration) -> None:
        """`config` is in force: begin to feed new members, forget those who left."""
        self.config = config
        for peer in config.members():
            if peer != self.id and peer not in self.by_id:
                self.by_id[peer] = Progress(peer, self.log.last + 1, self.now)
        for peer in sorted(self.by_id):
            if not config.is_member(peer):
                del self.by_id[peer]
        self.peers = [self.by_id[peer] for peer in sorted(self.by_id)]
        for progress in self.peers:
            self._judge(progress)
        #: Whether this node itself counts.
        self.counts: bool = config.counts(self.id, self.memory)
        self.catching_up = {
            peer: self.catching_up.get(peer) or CatchUp(self.log.last, self.now) for peer in config.pre_voters
        }
        if self.transferee and not config.is_voter(self.transferee):
            self.end_transfer("no voter any more")
        self.pending = True

    def _judge(self, peer: Progress) -> None:
        """Decide whether what `peer` says counts, should it be a voter."""
        peer.counts = peer.memory in (-1, self.config.memory_of(peer.peer))

    def _identify(self, peer: Progress, memory: int) -> None:
        """An answer of `peer` came from `memory`."""
        if not peer.answers_from(memory, self.log.last):
            return
        self._judge(peer)
        self.pending = True
        if peer.peer in self.catching_up:
            self.catching_up[peer.peer] = CatchUp(self.log.last, self.now)
        if not peer.counts and self.config.is_voter(peer.peer):
            self.events.append(RaftEvent("forgotten", self.term, f"voter {peer.peer} came back without its memory"))

    def to_promote(self) -> int:
        """A PRE_VOTER that has caught up, 0 for none: Dissertation §4.2.1."""
        for peer in self.config.pre_voters:
            progress = self.by_id.get(peer)
            if (
                progress is not None
                and self.catching_up[peer].advance(
                    progress.match, self.log.last, self.now, self.settings.election_ticks
                )
                and (progress.memory == FIRST_MEMORY or not self._has_old_peer())
            ):
                return peer
        return 0

    def to_demote(self) -> int:
        """Return a voter that came back without its memory and can be taken out, 0 for none.

        Taking out is a change as every other: those that stay have to commit it, so a majority of them must be there.
        """
        for peer in self.config.voters:
            progress = self.by_id.get(peer)
            if progress is not None and not progress.counts and not self._has_old_peer():
                left = [voter for voter in self.config.voters if voter != peer]
                if left and self._heard(left) >= majority(len(left)):
                    return peer
        return 0

    def _has_old_peer(self) -> bool:
        """Whether a member could not read a configuration with memories."""
        return any(peer.is_old for peer in self.peers)

    def settled(self) -> bool:
        """Whether an entry of this term is committed, so that everything older is known to be: Raft §5.4.2, §8."""
        return self.log.commit >= self.first_index

    # --- time

    def tick(self) -> None:
        """One tick: heartbeats, and a hand-over that takes too long."""
        self.now += 1
        if self.now % self.settings.heartbeat_ticks == 0:
            if self.reads.patient and self.settled():
                self.reads.begin(self.log.commit)
            self.heartbeat()
            self.confirm_reads()
        if self.transferee and self.now - self.transfer_began >= self.settings.election_ticks:
            self.end_transfer("took too long")

    def has_quorum(self) -> bool:
        """Whether a majority, this node included if it votes, was heard lately: Dissertation §6.2."""
        return self._heard(self.config.voters) >= majority(len(self.config.voters))

    def _heard(self, voters: list[int]) -> int:
        """Return how many of `voters` count and were heard lately."""
        heard = 0
        oldest = self.now - self.settings.election_ticks
        for voter in voters:
            if voter == self.id:
                heard += self.counts
            else:
                peer = self.by_id[voter]
                heard += peer.counts and peer.last_heard > oldest
        return heard

    def heartbeat(self) -> None:
        """Tell every peer that this node leads; carries what the peer may commit and the newest read round."""
        commit = self.log.commit
        for peer in self.peers:
            known = min(commit, peer.match)
            term = self.log.term_at(known)
            if term < 0:
                # Compacted: the peer is so far behind that it needs a snapshot.
                known = term = 0
            peer.commit_sent = max(peer.commit_sent, known)
            self.outbox.append(
                Message(
                    HEARTBEAT,
                    self.id,
                    peer.peer,
                    self.term,
                    prev_term=term,
                    commit=known,
                    context=self.reads.newest,
                )
            )

    # --- replication

    def replicate(self) -> None:
        """Send everything that may be sent now. Called once per Ready, so that a turn's proposals travel in one
        append."""
        self.pending = False
        if self.reads.arrived and self.settled():
            self.reads.begin(self.log.commit)
            self.heartbeat()
            self.confirm_reads()
        for peer in self.peers:
            self._feed(peer)

    def _feed(self, peer: Progress) -> None:
        log = self.log
        if peer.state == REPLICATE:
            settings = self.settings
            if peer.nudge:
                peer.nudge = False
                if not self._send_append(peer, 0):
                    return  # it is offered a snapshot: it streams no more
            while peer.next <= log.last and peer.has_room(settings.max_inflight, settings.max_inflight_bytes):
                if not self._send_append(peer, settings.max_append_bytes):
                    break
        elif peer.state == PROBE and not peer.waiting:
            self._send_append(peer, self.settings.max_append_bytes)
        self._tell_commit(peer)

    def _tell_commit(self, peer: Progress) -> None:
        """Send the commit index if no append of this Ready carries it.

        A streaming peer gets it with what was sent and is not acknowledged yet: a read there is not behind a write that
        others have acknowledged only because this peer's disk is slower. The peer verifies the entry by its term.
        """
        log = self.log
        known = min(log.commit, peer.next - 1 if peer.state == REPLICATE else peer.match)
        if known > peer.commit_sent:
            term = log.term_at(known)
            if term >= 0:
                peer.commit_sent = known
                self.outbox.append(Message(COMMIT, self.id, peer.peer, self.term, prev_term=term, commit=known))

    def _send_append(self, peer: Progress, max_bytes: int) -> bool:
        """Send one append from peer.next on (0 bytes: an empty one). False if the log does not reach back that far."""
        log = self.log
        previous = peer.next - 1
        previous_term = log.term_at(previous)
        if previous_term < 0:
            self._offer_snapshot(peer)
            return False
        entries = log.portion(peer.next, max_bytes) if max_bytes else None
        last = entries[-1].index if entries else previous
        # The follower commits no further than this append verifies, but tells so by itself: see RaftCore._on_append.
        peer.commit_sent = max(peer.commit_sent, min(log.commit, last))
        self.outbox.append(
            Message(APPEND, self.id, peer.peer, self.term, previous, previous_term, log.commit, entries=entries)
        )
        if peer.state == PROBE:
            peer.waiting = True
        elif entries:
            size = 0
            for entry in entries:
                size += len(entry.data)
            peer.sent(last, size, self.now)
        return True

    def _offer_snapshot(self, peer: Progress) -> None:
        meta = self.log.snapshot
        if not self.log.reaches_snapshot():
            # From a time without peers. The shell is taking a newer one: ask again at the next sign of life.
            peer.become_probe(peer.next)
            peer.waiting = True
            return
        peer.become_snapshot(meta.index)
        offer = RaftSnapshot(meta.index, meta.term, meta.config, meta.handle)
        self.outbox.append(Message(SNAPSHOT, self.id, peer.peer, self.term, snapshot=offer))
        self.events.append(RaftEvent("snapshot_offer", self.term, f"to {peer.peer} at {meta.index}"))

    # --- answers

    def on_append_resp(self, m: Message) -> bool:
        """A peer took or refused an append; True if it newly holds something, so that the commit index may move."""
        peer = self.by_id.get(m.src)
        if peer is None:
            return False
        peer.last_heard = self.now
        if m.memory != peer.memory or peer.is_old:
            self._identify(peer, m.memory)
        if not m.granted:
            agreement, _ = self.log.agreement(m.match_index, m.prev_term)
            if peer.refused(m.prev_index, agreement):
                self.pending = True
                self.events.append(RaftEvent("rejected", self.term, f"by {m.src} at {m.prev_index}, next {peer.next}"))
            return False
        advanced = peer.acked(m.match_index, self.log.offset, self.now)
        self.pending = True
        if advanced and m.src == self.transferee:
            self._hand_over()
        return advanced

    def on_heartbeat_resp(self, m: Message) -> None:
        """A peer answered a heartbeat: it lives, and reads of that round are a voice nearer."""
        peer = self.by_id.get(m.src)
        if peer is None:
            return
        peer.last_heard = self.now
        if m.memory != peer.memory or peer.is_old:
            self._identify(peer, m.memory)
        if peer.heartbeat_answered(m.match_index, self.now, 2 * self.settings.heartbeat_ticks):
            self.pending = True
        if m.context > peer.read_round:
            peer.read_round = m.context
            self.confirm_reads()

    def next_commit(self) -> int:
        """The index that may be committed now, the present one if nothing may.

        Only an entry of this term commits by count, and all before it with it: Raft §5.4.2.
        """
        held = [self._held(voter) for voter in self.config.voters]
        index = committed_index(held)
        if index > self.log.commit and self.log.term_at(index) == self.term:
            return index
        return self.log.commit

    def _held(self, voter: int) -> int:
        """Return up to where `voter` has acknowledged the log from the memory with which it votes."""
        if voter == self.id:
            return self.log.stable if self.counts else 0
        peer = self.by_id[voter]
        return peer.match if peer.counts else 0

    def peer_down(self, peer_id: int) -> None:
        """The connection to that peer broke, and with it everything on its way."""
        peer = self.by_id.get(peer_id)
        if peer is not None and peer.state != PROBE:
            peer.become_probe(peer.match + 1)
            self.pending = True

    def snapshot_status(self, peer_id: int, ok: bool) -> None:
        """The transfer ended. Either way find out by an append where the peer is, after its next sign of life."""
        peer = self.by_id.get(peer_id)
        if peer is not None and peer.state == AWAITS_SNAPSHOT:
            peer.become_probe(peer.snapshot_index + 1 if ok else peer.match + 1)
            peer.waiting = True

    # --- reads

    def read(self, asker: int, context: int, is_patient: bool = False) -> None:
        """A read arrived, from this node's shell or from a follower; a patient one costs no heartbeats of its own."""
        if is_patient:
            self.reads.patient[asker] = PendingRead(asker, context)
            return
        self.reads.arrived.append(PendingRead(asker, context))
        self.pending = True

    def confirm_reads(self) -> None:
        """Answer the reads whose round a majority has answered."""
        if not self.reads.open:
            return
        confirmed = committed_index([self._round_of(voter) for voter in self.config.voters])
        for round_ in self.reads.confirmed(confirmed):
            for read in round_.reads:
                if read.asker == self.id:
                    self.read_states.append(ReadState(read.context, round_.index))
                else:
                    self.outbox.append(
                        Message(
                            READ_INDEX_RESP,
                            self.id,
                            read.asker,
                            self.term,
                            context=read.context,
                            match_index=round_.index,
                        )
                    )

    def _round_of(self, voter: int) -> int:
        """Return the newest read round that `voter` has answered, as far as it counts."""
        if voter == self.id:
            return self.reads.newest if self.counts else 0
        peer = self.by_id[voter]
        return peer.read_round if peer.counts else 0

    # --- hand-over

    def begin_transfer(self, to: int) -> None:
        """Bring `to` up to date, then tell it to stand for election."""
        if self.transferee == to:
            return
        self.transferee = to
        self.transfer_began = self.now
        self.events.append(RaftEvent("transfer", self.term, f"to {to}"))
        heir = self.by_id[to]
        # What is on its way may be lost; there is no time to wait until that shows.
        heir.nudge = heir.state == REPLICATE and heir.next > heir.match + 1
        self._hand_over()
        self.pending = True

    def _hand_over(self) -> None:
        if self.by_id[self.transferee].match == self.log.last:
            self.outbox.append(Message(TIMEOUT_NOW, self.id, self.transferee, self.term))

    def end_transfer(self, why: str) -> None:
        """Give the hand-over up and take proposals again."""
        self.events.append(RaftEvent("transfer_failed", self.term, f"to {self.transferee}: {why}"))
        self.transferee = 0

    def best_successor(self) -> int:
        """The voter that holds most of the log, 0 if there is no other."""
        best = 0
        match = -1
        for voter in self.config.voters:
            if voter != self.id and self.by_id[voter].counts and self.by_id[voter].match > match:
                best = voter
                match = self.by_id[voter].match
        return best
