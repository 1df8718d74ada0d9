"""State that exists only while a node leads: the peers' progress, reads, a leadership transfer, PRE_VOTERs.

The core creates a Leadership when it wins an election and drops it when leadership ends, so no state of one term
survives into a later one. It shares the log and the output with the core that owns it.
"""

from __future__ import annotations

from collections.abc import Collection

from coord.errors import ChangeRefusal, ConfigRefused
from coord.raft.log import ConfigLog, RaftLog
from coord.raft.membership import FIRST_MEMORY, CatchUp, Configuration, objection
from coord.raft.messages import (
    APPEND,
    COMMIT,
    CONFIG,
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
from coord.raft.output import Output
from coord.raft.progress import PROBE, REPLICATE, Progress
from coord.raft.progress import SNAPSHOT as AWAITS_SNAPSHOT
from coord.raft.quorum import committed_index, majority
from coord.raft.reads import PendingRead, ReadRounds


class Leadership:
    """One term won by one node.

    Invariant: `config` is the configuration in force; `peers` and `by_id` have one Progress for each other member.
    """

    def __init__(
        self,
        node_id: int,
        memory: int,
        term: int,
        settings: RaftConfig,
        log: RaftLog,
        configs: ConfigLog,
        output: Output,
    ) -> None:
        assert term > log.last_term, f"leads term {term}, the log has an entry of term {log.last_term}"
        self.id: int = node_id
        self.memory: int = memory
        self.term: int = term
        self.settings: RaftConfig = settings
        self.log: RaftLog = log
        self.output: Output = output
        #: Index of the no-op of this term. Until it is committed, the leader does not know the commit index: Raft §8.
        self.first_index: int = log.last + 1
        #: Ticks since this leadership began: the clock of Progress and CatchUp.
        self.now: int = 0
        #: True if something happened since the last `replicate` that may allow or require messages.
        self.pending: bool = True
        #: Ascending by id, without the leader itself.
        self.peers: list[Progress] = []
        self.by_id: dict[int, Progress] = {}
        self.configs: ConfigLog = configs
        self.config: Configuration = configs.current
        #: True if this node itself counts in the quorum. Follows `config`.
        self.counts: bool = False
        self.reads: ReadRounds = ReadRounds()
        #: The voter to which leadership is being transferred, 0 for none, and the tick at which the transfer began.
        self.transferee: int = 0
        self.transfer_began: int = 0
        #: Members that have lost entries which they acknowledged, as far as the shell knows. The shell removes a member
        #: from the set when that member sends a Raft message again.
        self.lost: set[int] = set()
        #: PRE_VOTER -> how far it has caught up. One for each PRE_VOTER of `config`.
        self.catching_up: dict[int, CatchUp] = {}
        self.set_config(configs.current)

    # --- membership

    def set_config(self, config: Configuration) -> None:
        """Put `config` in force: begin to replicate to new members, drop removed ones."""
        self.config = config
        for peer in config.members():
            if peer != self.id and peer not in self.by_id:
                self.by_id[peer] = Progress(peer, self.log.last + 1, self.now)
        for peer in sorted(self.by_id):
            if not config.is_member(peer):
                del self.by_id[peer]
        self.peers = [self.by_id[peer] for peer in sorted(self.by_id)]
        for progress in self.peers:
            self._update_counts(progress)
        self.counts = config.counts(self.id, self.memory)
        self.catching_up = {
            peer: self.catching_up.get(peer) or CatchUp(self.log.last, self.now) for peer in config.pre_voters
        }
        if self.transferee and not config.is_voter(self.transferee):
            self.end_transfer("not a voter any more")
        self.pending = True

    def _update_counts(self, peer: Progress) -> None:
        """Decide whether the replies of `peer` count. They do not count if it is a voter that has lost its memory."""
        peer.counts = peer.memory in (-1, self.config.memory_of(peer.peer))

    def _note_memory(self, peer: Progress, memory: int) -> None:
        """Record the memory in a reply of `peer`."""
        if not peer.answers_from(memory, self.log.last):
            return
        self._update_counts(peer)
        self.pending = True
        if peer.peer in self.catching_up:
            self.catching_up[peer.peer] = CatchUp(self.log.last, self.now)
        if not peer.counts and self.config.is_voter(peer.peer):
            self._report("forgotten", f"voter {peer.peer} restarted without its memory")

    def _report(self, name: str, detail: str) -> None:
        self.output.events.append(RaftEvent(name, self.term, detail))

    def propose_config(self, config: Configuration, is_careful: bool = False) -> int:
        """Append a new configuration, put it in force, and return its index. Raise ConfigRefused."""
        if is_careful and config == self.config:
            raise ConfigRefused(ChangeRefusal.ALREADY_SO, f"the configuration is {config} already")
        refused = self.change_refused()
        if refused is not None:
            raise refused
        why = objection(self.config, config)
        if why:
            raise ConfigRefused(ChangeRefusal.NOT_ONE_STEP, why)
        if is_careful and not self.is_majority_heard(config):
            raise ConfigRefused(
                ChangeRefusal.UNSAFE, f"fewer than {majority(len(config.voters))} of the voters of {config} answer"
            )
        index = self.log.append(self.term, CONFIG, config.encode())
        self.configs.append(index, config, self.term)
        self._report("config", f"at {index}: {config}")
        self.set_config(config)
        return index

    def change_refused(self) -> ConfigRefused | None:
        """Return why the configuration may not be changed now, or None if it may."""
        newest = self.configs.newest_index()
        if newest > self.log.commit:
            return ConfigRefused(ChangeRefusal.PENDING, f"the change at {newest} is not committed")
        if not self.has_committed_in_term():
            return ConfigRefused(ChangeRefusal.NOT_SETTLED, "no entry of this term is committed")
        if self.transferee:
            detail = f"leadership is being transferred to {self.transferee}"
            return ConfigRefused(ChangeRefusal.TRANSFERRING, detail)
        return None

    def is_majority_heard(self, config: Configuration) -> bool:
        """Return True if a majority of the voters of `config` sent a message within an election timeout."""
        return self._count_recent(config.voters) >= majority(len(config.voters))

    def promote(self) -> None:
        """Make a PRE_VOTER that has caught up a voter, if the configuration may be changed now."""
        if self.config.pre_voters and self.change_refused() is None:
            peer = self.to_promote()
            if peer:
                self._report("promote", str(peer))
                self.propose_config(self.config.with_voter(peer, self.by_id[peer].memory))

    def _demote(self) -> None:
        """Remove a voter that restarted without its memory, if the configuration may be changed now."""
        if self.change_refused() is None:
            peer = self.to_demote()
            if peer:
                self._report("demote", str(peer))
                self.propose_config(self.config.with_pre_voter(peer))

    def to_promote(self) -> int:
        """Return a PRE_VOTER that has caught up and can become a voter, 0 for none: Dissertation §4.2.1."""
        for peer in self.config.pre_voters:
            progress = self.by_id.get(peer)
            if (
                progress is not None
                and self.catching_up[peer].advance(
                    progress.match, self.log.last, self.now, self.settings.election_ticks
                )
                and (progress.memory == FIRST_MEMORY or not self._has_old_peer())
                and (not self.settings.is_promotion_careful or self.is_promotion_safe(peer))
            ):
                return peer
        return 0

    def is_promotion_safe(self, newcomer: int) -> bool:
        """Return True if the group does not depend on `newcomer` more than it must once that PRE_VOTER votes.

        The voters that answer, without the newcomer, must be a majority of the new voters. One or two voters cannot be
        that majority, so it is enough that all of them answer. A new leader waits for their first answers. A newcomer
        that caught up long ago must still reply: a single voter that promotes a dead node loses its majority.

        A lost voter is removed first. Of three voters beside a lost one none may fail; of three voters alone, one may.
        """
        peer = self.by_id[newcomer]
        if peer.state != REPLICATE or peer.last_received <= self.now - self.settings.election_ticks:
            return False
        voters = self.config.voters
        if not self.lost.isdisjoint(voters):
            return False
        heard = self._count_recent([one for one in voters if one == self.id or self.by_id[one].memory >= 0])
        return heard >= majority(len(voters) + 1) or heard == len(voters)

    def to_demote(self) -> int:
        """Return a voter that restarted without its memory and can be removed, 0 for none.

        A majority of the remaining voters must have replied recently, because they must commit the removal.
        """
        for peer in self.config.voters:
            progress = self.by_id.get(peer)
            if progress is not None and not progress.counts and not self._has_old_peer():
                left = [voter for voter in self.config.voters if voter != peer]
                if left and self._count_recent(left) >= majority(len(left)):
                    return peer
        return 0

    def _has_old_peer(self) -> bool:
        """Return True if a member is of a build that cannot read a configuration with memories."""
        return any(peer.is_old for peer in self.peers)

    def has_committed_in_term(self) -> bool:
        """Return True if an entry of this term, and with it all earlier ones, is committed: Raft §5.4.2, §8."""
        return self.log.commit >= self.first_index

    # --- time

    def tick(self) -> None:
        """Advance time by one tick: send due heartbeats, abort a slow transfer, remove a voter without memory."""
        self.now += 1
        if self.now % self.settings.heartbeat_ticks == 0:
            if self.reads.patient and self.has_committed_in_term():
                self.reads.begin(self.log.commit)
            self.heartbeat()
            self.confirm_reads()
        if self.transferee and self.now - self.transfer_began >= self.settings.election_ticks:
            self.end_transfer("took too long")
        # Before the core checks the quorum: of two voters, the leader may remove the other one alone.
        self._demote()

    def has_quorum(self) -> bool:
        """Return True if a majority of the voters sent a message within an election timeout: Dissertation §6.2.

        This node is included if it votes.
        """
        return self._count_recent(self.config.voters) >= majority(len(self.config.voters))

    def _count_recent(self, voters: list[int]) -> int:
        """Return how many of `voters` count and sent a message within an election timeout."""
        recent = 0
        oldest = self.now - self.settings.election_ticks
        for voter in voters:
            if voter == self.id:
                recent += self.counts
            else:
                peer = self.by_id.get(voter)
                recent += peer is not None and peer.counts and peer.last_received > oldest
        return recent

    def heartbeat(self) -> None:
        """Send every peer a heartbeat, with the newest read round and the commit index as far as the peer has the
        log."""
        commit = self.log.commit
        for peer in self.peers:
            known = min(commit, peer.match)
            term = self.log.term_at(known)
            if term < 0:
                # Compacted: the peer is so far behind that it needs a snapshot first.
                known = term = 0
            peer.commit_sent = max(peer.commit_sent, known)
            self.output.messages.append(
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

    def resumed(self, alive: Collection[int]) -> None:
        """Continue after a time without ticks and messages, during which the shell has watched the members' servers.
        Count the members in `alive` as active now, and send heartbeats."""
        for peer in self.peers:
            if peer.peer in alive:
                peer.last_received = self.now
        self.heartbeat()

    # --- replication

    def replicate(self) -> None:
        """Send every peer the messages that its state allows now.

        Called once per Ready and not once per proposal, so that the proposals of one turn share one append.
        """
        self.pending = False
        if self.reads.arrived and self.has_committed_in_term():
            self.reads.begin(self.log.commit)
            self.heartbeat()
            self.confirm_reads()
        for peer in self.peers:
            self._send_to(peer)

    def _send_to(self, peer: Progress) -> None:
        """Send `peer` the appends that its state allows, or only the commit index."""
        log = self.log
        if peer.state == REPLICATE:
            settings = self.settings
            if peer.wants_empty_append:
                peer.wants_empty_append = False
                if not self._send_append(peer, 0):
                    return  # a snapshot was offered instead, so the peer is not replicating any more
            while peer.next <= log.last and peer.has_room(settings.max_inflight, settings.max_inflight_bytes):
                if not self._send_append(peer, settings.max_append_bytes):
                    break
        elif peer.state == PROBE and not peer.waiting:
            self._send_append(peer, self.settings.max_append_bytes)
        self._send_commit(peer)

    def _send_commit(self, peer: Progress) -> None:
        """Send the commit index if no append of this Ready carries it.

        In REPLICATE the index may cover entries that the peer has not acknowledged yet. Otherwise a read at a peer
        with a slow disk would miss writes that the others have committed. The peer checks the term of the entry there.
        """
        log = self.log
        known = min(log.commit, peer.next - 1 if peer.state == REPLICATE else peer.match)
        if known > peer.commit_sent:
            term = log.term_at(known)
            if term >= 0:
                peer.commit_sent = known
                self.output.messages.append(
                    Message(COMMIT, self.id, peer.peer, self.term, prev_term=term, commit=known)
                )

    def _send_append(self, peer: Progress, max_bytes: int) -> bool:
        """Send one append from peer.next on, with about `max_bytes` of entries; 0 sends an empty append.

        Return False if the entries there are compacted; then a snapshot is offered instead.
        """
        log = self.log
        previous = peer.next - 1
        previous_term = log.term_at(previous)
        if previous_term < 0:
            self._offer_snapshot(peer)
            return False
        entries = log.entries_from(peer.next, max_bytes) if max_bytes else None
        last = entries[-1].index if entries else previous
        # The append may carry a higher commit index; the follower commits up to `last` at most: FollowerRole.on_append.
        peer.commit_sent = max(peer.commit_sent, min(log.commit, last))
        self.output.messages.append(
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
        """Offer the newest snapshot to a peer that needs entries that are compacted."""
        meta = self.log.snapshot
        if not self.log.reaches_snapshot():
            # The snapshot is from a time without peers, and entries after it are compacted. The shell is taking a newer
            # one. The peer's next reply leads here again.
            peer.become_probe(peer.next)
            peer.waiting = True
            return
        peer.become_snapshot(meta.index)
        offer = RaftSnapshot(meta.index, meta.term, meta.config, meta.handle)
        self.output.messages.append(Message(SNAPSHOT, self.id, peer.peer, self.term, snapshot=offer))
        self._report("snapshot_offer", f"to {peer.peer} at {meta.index}")

    # --- replies

    def on_append_resp(self, m: Message) -> bool:
        """Process a peer's reply to an append. Return True if its match index rose, which may move the commit index."""
        peer = self.by_id.get(m.src)
        if peer is None:
            return False
        peer.last_received = self.now
        if m.memory != peer.memory or peer.is_old:
            self._note_memory(peer, m.memory)
        if not m.granted:
            hint, _ = self.log.find_conflict_by_term(m.match_index, m.prev_term)
            if peer.rejected(m.prev_index, hint):
                self.pending = True
                self._report("rejected", f"by {m.src} at {m.prev_index}, next {peer.next}")
            return False
        advanced = peer.acknowledged(m.match_index, self.log.offset, self.now)
        self.pending = True
        if advanced and m.src == self.transferee:
            self._finish_transfer()
        return advanced

    def on_heartbeat_resp(self, m: Message) -> None:
        """Process a peer's reply to a heartbeat: the peer is alive, and it confirms the read round in the reply."""
        peer = self.by_id.get(m.src)
        if peer is None:
            return
        peer.last_received = self.now
        if m.memory != peer.memory or peer.is_old:
            self._note_memory(peer, m.memory)
        if m.context >= peer.read_round:
            peer.reported = m.match_index
        if peer.heartbeat_answered(m.match_index, self.now, 2 * self.settings.heartbeat_ticks):
            self.pending = True
        if m.context > peer.read_round:
            peer.read_round = m.context
            self.confirm_reads()

    def next_commit(self) -> int:
        """Return the index that may be committed now; the present commit index if it cannot move.

        Only an entry of this term is committed by counting, and all entries before it are committed with it (Raft
        §5.4.2). An entry of an older term may be on a majority and still be replaced (Raft figure 8).
        """
        held = [self._match_of(voter) for voter in self.config.voters]
        index = committed_index(held)
        if index > self.log.commit and self.log.term_at(index) == self.term:
            return index
        return self.log.commit

    def _match_of(self, voter: int) -> int:
        """Return the index up to which `voter` has the log durably, 0 if its replies do not count."""
        if voter == self.id:
            return self.log.stable if self.counts else 0
        peer = self.by_id[voter]
        return peer.match if peer.counts else 0

    def peer_down(self, peer_id: int) -> None:
        """Handle a broken connection to that peer: treat everything in flight as lost."""
        peer = self.by_id.get(peer_id)
        if peer is not None and peer.state != PROBE:
            peer.become_probe(peer.match + 1)
            self.pending = True

    def snapshot_status(self, peer_id: int, ok: bool) -> None:
        """Handle the end of a snapshot transfer. Probe the peer after its next reply, after a success too: its
        acknowledgment of the snapshot may have been lost."""
        peer = self.by_id.get(peer_id)
        if peer is not None and peer.state == AWAITS_SNAPSHOT:
            peer.become_probe(peer.snapshot_index + 1 if ok else peer.match + 1)
            peer.waiting = True

    def probe_from(self, peer_id: int) -> int:
        """Probe a peer in SNAPSHOT at the index that it needs, and return the index. Return 0 for a peer in another
        state."""
        peer = self.by_id.get(peer_id)
        if peer is None or peer.state != AWAITS_SNAPSHOT:
            return 0
        first = peer.next
        peer.become_probe(first)
        peer.waiting = True
        return first

    def probe_end(self, peer_id: int) -> None:
        """Probe a peer at the end of this log after its next reply. A peer that was given another log follows there."""
        peer = self.by_id.get(peer_id)
        if peer is not None and peer.state == PROBE:
            peer.become_probe(self.log.last + 1)
            peer.waiting = True

    # --- reads

    def read(self, asker: int, context: int, is_patient: bool = False) -> None:
        """Queue a read of this node's shell or of a follower. A patient read waits for the next regular heartbeats."""
        if is_patient:
            self.reads.patient[asker] = PendingRead(asker, context)
            return
        self.reads.arrived.append(PendingRead(asker, context))
        self.pending = True

    def confirm_reads(self) -> None:
        """Reply to the reads of all rounds that a majority has confirmed."""
        if not self.reads.open:
            return
        confirmed = committed_index([self._round_of(voter) for voter in self.config.voters])
        for round_ in self.reads.confirmed(confirmed):
            for read in round_.reads:
                if read.asker == self.id:
                    self.output.read_states.append(ReadState(read.context, round_.index))
                else:
                    self.output.messages.append(
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
        """Return the newest read round that `voter` has confirmed, 0 if its replies do not count."""
        if voter == self.id:
            return self.reads.newest if self.counts else 0
        peer = self.by_id[voter]
        return peer.read_round if peer.counts else 0

    # --- leadership transfer

    def begin_transfer(self, to: int) -> None:
        """Bring the voter `to` up to date, then make it start an election at once: Dissertation §3.10."""
        assert to != self.id, "a leader does not transfer leadership to itself"
        if self.transferee == to:
            return
        self.transferee = to
        self.transfer_began = self.now
        self._report("transfer", f"to {to}")
        target = self.by_id[to]
        # Appends in flight may be lost. A transfer has no time to wait for the usual detection.
        target.wants_empty_append = target.state == REPLICATE and target.next > target.match + 1
        self._finish_transfer()
        self.pending = True

    def _finish_transfer(self) -> None:
        """Make the transferee start an election if it has the whole log."""
        if self.by_id[self.transferee].match == self.log.last:
            self.output.messages.append(Message(TIMEOUT_NOW, self.id, self.transferee, self.term))

    def end_transfer(self, why: str) -> None:
        """Abort the transfer; proposals are accepted again."""
        assert self.transferee, "no transfer is under way"
        self._report("transfer_failed", f"to {self.transferee}: {why}")
        self.transferee = 0

    def best_successor(self) -> int:
        """Return the voter with the highest match index, the lowest id of several; 0 without another voter."""
        best = 0
        match = -1
        for voter in self.config.voters:
            if voter != self.id and self.by_id[voter].counts and self.by_id[voter].match > match:
                best = voter
                match = self.by_id[voter].match
        return best

    def validate(self, term: int) -> None:
        """Raise AssertionError if an invariant does not hold; the core is in `term`. For tests."""
        assert self.term == term, f"leads term {self.term}, the term is {term}"
        config = self.configs.current
        assert self.config is config, f"leads by {self.config}, in force is {config}"
        expected = [member for member in config.members() if member != self.id]
        followed = [peer.peer for peer in self.peers]
        assert followed == expected, f"replicates to {followed}, the other members are {expected}"
        assert sorted(self.by_id) == expected, f"by_id has {sorted(self.by_id)}, the other members are {expected}"
        for peer in self.peers:
            assert self.by_id[peer.peer] is peer, f"two Progress objects for {peer.peer}"
            counts = peer.memory in (-1, config.memory_of(peer.peer))
            assert peer.counts == counts, f"the replies of {peer.peer} count: {peer.counts}, by its memory: {counts}"
            assert peer.commit_sent <= self.log.commit, f"{peer.peer} was sent the commit index {peer.commit_sent}"
            assert peer.read_round <= self.reads.newest, f"{peer.peer} has confirmed read round {peer.read_round}"
            assert peer.last_received <= self.now, (
                f"{peer.peer} sent a message at tick {peer.last_received} of {self.now}"
            )
            peer.validate(self.log.last)
        counts = config.counts(self.id, self.memory)
        assert self.counts == counts, f"the leader counts: {self.counts}, by its configuration: {counts}"
        assert sorted(self.catching_up) == config.pre_voters, f"{sorted(self.catching_up)} catch up in {config}"
        assert not self.transferee or config.is_voter(self.transferee), f"transfer to {self.transferee}, not a voter"
        assert self.log.last < self.first_index or self.log.last_term == self.term, (
            f"leads term {self.term}, the last entry is of term {self.log.last_term}"
        )
        self.reads.validate(self.log.commit)
