"""The consensus core: one member of one Raft group, without I/O, clock or randomness of its own.

This module has what a node does in every role: terms, votes, roles, and the Ready for the shell. `follower` has the
receiving side of replication, `leadership` the state that only a leader has.

Role changes, each in one method, and nowhere else::

    -> follower        _become_follower    a higher term, a leader of this term, a lost election; a leader also if no
                                           majority replies, or after it has committed its own removal
    -> pre-candidate   _pre_campaign       an election timeout, if this node may become a candidate  Dissertation §9.6
    -> candidate       _campaign           a majority would vote for it, or a leader transfers leadership (TIMEOUT_NOW)
    -> leader          _become_leader      a majority has voted for it; its own vote is durable before it counts

The term rises only in `_become_follower` and `_campaign`. The vote changes only there and in `_on_vote_request`.
"""

from __future__ import annotations

from typing import Final

from coord.env import Rng
from coord.errors import NotLeader, ProposalDropped
from coord.raft.bounds import TERM_MAX, check_claims, check_message
from coord.raft.follower import FollowerRole
from coord.raft.leadership import Leadership
from coord.raft.log import CommittedConfig, ConfigLog, RaftLog
from coord.raft.membership import FIRST_MEMORY, Configuration, decode_configuration
from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    CANDIDATE,
    COMMIT,
    CONFIG,
    FOLLOWER,
    HEARTBEAT,
    HEARTBEAT_RESP,
    LEADER,
    NOOP,
    NORMAL,
    PRE_CANDIDATE,
    PRE_VOTE,
    PRE_VOTE_RESP,
    READ_INDEX,
    READ_INDEX_RESP,
    ROLE_NAMES,
    SNAPSHOT,
    TIMEOUT_NOW,
    VOTE,
    VOTE_RESP,
    Entry,
    HardState,
    Message,
    RaftConfig,
    RaftEvent,
    RaftSnapshot,
    ReadState,
    Ready,
    validate_role,
)
from coord.raft.output import LastReady, Output, PersistQueue
from coord.raft.quorum import LOST, WON, vote_result

__all__ = ["RaftConfig", "RaftCore"]

#: A follower without a leader waits 1 .. this many ticks before it becomes a candidate. Several followers notice the
#: leader's broken connection at once; random waits keep them from splitting the vote.
PEER_DOWN_TICKS: Final = 4


class RaftCore:
    """One member of one Raft group. See the package docstring for how to drive it.

    Invariant: `leadership` is set if and only if the role is LEADER. The term never decreases. Within a term the vote
    changes only from 0.
    """

    def __init__(
        self,
        node_id: int,
        config: RaftConfig,
        rng: Rng,
        snapshot: RaftSnapshot,
        hard_state: HardState | None = None,
        entries: list[Entry] | None = None,
        memory: int = FIRST_MEMORY,
        config_id: tuple[int, int] = (0, 0),
    ) -> None:
        """Start from what the disk holds. `memory` is the number of that disk (`membership`).

        `snapshot` is the newest durable one, or `bootstrap(voters, learners)` for a new node. The state machine is at
        `snapshot.index`, so the first committed entry handed out is the next one. `entries` is the durable log,
        contiguous. It may begin before `snapshot.index` (kept for slow peers). Entries that contradict the snapshot are
        dropped. `config_id`: term and index of the entry with `snapshot.config`, if the shell knows them.
        """
        assert node_id > 0, node_id
        self.id: int = node_id
        #: The shell sets another memory if it finds that this disk does not hold the promises made under this id.
        self.memory: int = memory
        self.settings: RaftConfig = config
        self.log: RaftLog = RaftLog(snapshot, entries or [])
        self.configs: ConfigLog = ConfigLog(snapshot.index, snapshot.config, config_id)
        for entry in self.log.entries:
            if entry.kind == CONFIG and entry.index > snapshot.index:
                self.configs.append(entry.index, decode_configuration(entry.data), entry.term)
        saved = hard_state if hard_state is not None else HardState(0, 0)
        #: The present term. Rises with an election of this node or a message of a higher term; never decreases.
        self.term: int = saved.term
        #: The node that this one has voted for in `term`, 0 for none.
        self.vote: int = saved.vote
        if snapshot.term > self.term:
            # The state up to here was applied and saved before the disk completed the write of that term. A vote in the
            # term would have waited for that write, so this node has not voted.
            self.term = snapshot.term
            self.vote = 0
        assert self.term >= self.log.last_term, f"term {self.term} on disk, log ends in term {self.log.last_term}"
        self.role: int = FOLLOWER
        #: The leader of `term`, 0 while unknown.
        self.leader: int = 0
        self.leadership: Leadership | None = None
        #: Ticks since the last message of the leader, the last granted vote, or the beginning of an election.
        self.elapsed: int = 0
        #: The value of `elapsed` at which this node becomes a candidate. Drawn anew when the timer restarts.
        self.timeout: int = 0

        self._rng: Rng = rng
        #: Voter -> whether it grants its (pre-)vote. Only voters that have replied; empty without an election.
        self._votes: dict[int, bool] = {}
        self._output: Output = Output()
        self._last_ready: LastReady = LastReady(saved.term, saved.vote, self.configs.current)
        self._writes: PersistQueue = PersistQueue(saved.term, saved.vote)
        self._follower: FollowerRole = self._new_follower()
        self._restart_timer()

    # --- input --------------------------------------------------------------------------------------------------------

    def abstains(self) -> bool:
        """Return True if the configuration in force names this node as a voter with another memory.

        Such a node does not count and takes no part in elections.
        """
        config = self.configs.current
        return config.is_voter(self.id) and config.memory_of(self.id) != self.memory

    def step(self, m: Message) -> None:
        """Process a message from a peer. The shell has authenticated `m.src`. Stale and repeated messages are harmless.

        Raise InvalidMessage for an impossible claim, before any change; the shell closes the link.
        """
        self.check(m)
        if m.kind in (PRE_VOTE, VOTE) and self.abstains():
            return
        if m.term != self.term and not self._step_other_term(m):
            return
        kind = m.kind
        if kind in (APPEND_RESP, HEARTBEAT_RESP, READ_INDEX):
            self._step_leader(m)
        elif kind in (APPEND, HEARTBEAT, COMMIT, SNAPSHOT):
            self._step_from_leader(m)
        elif kind in (PRE_VOTE, VOTE):
            self._on_vote_request(m)
        elif kind in (PRE_VOTE_RESP, VOTE_RESP):
            self._on_vote_resp(m)
        elif kind == READ_INDEX_RESP:
            self._output.read_states.append(ReadState(m.context, m.match_index))
        elif kind == TIMEOUT_NOW and self.role != LEADER and self._promotable():
            self._campaign(True)

    def tick(self) -> None:
        """Advance time by one tick: campaign after an election timeout, or do the leader's periodic work."""
        if (lead := self.leadership) is None:
            self.elapsed += 1
            if self.elapsed >= self.timeout and self._promotable():
                self._pre_campaign()
            return
        lead.tick()
        if not lead.has_quorum():
            # The majority may have elected a leader whose messages do not arrive here: Dissertation §6.2.
            self._report("quorum_lost", "no reply from a majority within an election timeout")
            self._become_follower(self.term, 0)
            return
        lead.promote()

    def propose(self, data: bytes, kind: int = NORMAL) -> int:
        """Append `data` and return its index. The entry commits unless this node loses leadership first.

        Raise NotLeader(leader), or ProposalDropped during a leadership transfer. Then nothing was appended.
        """
        if (lead := self.leadership) is None:
            raise NotLeader(self.leader)
        if lead.transferee:
            raise ProposalDropped(f"leadership is being transferred to {lead.transferee}")
        lead.pending = True
        return self.log.append(self.term, kind, data)

    def propose_config(self, config: Configuration, is_careful: bool = False) -> int:
        """Append a new configuration, which is in force at once, and return its index. Dissertation §4.1.

        `is_careful`: also refuse the configuration in force, and one without a majority of voters that answer. Raise
        NotLeader, or ConfigRefused with the reason.
        """
        if self.leadership is None:
            raise NotLeader(self.leader)
        return self.leadership.propose_config(config, is_careful)

    def committed_config(self) -> CommittedConfig:
        """Return the newest configuration that is committed as far as this node knows, with its id."""
        return self.configs.committed(self.log.commit)

    def transfer_leadership(self, to: int) -> None:
        """Bring `to` up to date and make it start an election at once. Dissertation §3.10.

        Proposals are rejected meanwhile. The transfer is aborted after an election timeout. Raise NotLeader;
        ProposalDropped if `to` is not another voter whose replies count.
        """
        if (lead := self.leadership) is None:
            raise NotLeader(self.leader)
        if to == self.id or not self.configs.current.is_voter(to):
            raise ProposalDropped(f"node {to} is not another voter")
        if not lead.by_id[to].counts:
            raise ProposalDropped(f"node {to} restarted without its memory")
        lead.begin_transfer(to)

    def read_index(self, context: int, is_patient: bool = False) -> None:
        """Request the index that a linearizable read must wait for. The reply is `ReadState(context, index)`.
        Dissertation §6.4.

        A follower forwards the request to its leader. The message may be lost, so the shell repeats the request after a
        while and whenever `Ready.changed`. `context` must not be reused over restarts of the node. `is_patient`: the
        next regular heartbeats are soon enough; of several such reads only the newest gets a reply. Raise NotLeader(0)
        without a known leader.
        """
        if (lead := self.leadership) is not None:
            lead.read(self.id, context, is_patient)
        elif self.leader:
            self._output.messages.append(
                Message(READ_INDEX, self.id, self.leader, self.term, context=context, granted=is_patient)
            )
        else:
            raise NotLeader(0)

    def peer_down(self, peer: int, ticks: int = 0) -> None:
        """Handle a broken connection to `peer`.

        If `peer` is the leader, this node becomes a candidate after `ticks` ticks, by default 1 .. PEER_DOWN_TICKS at
        random; pre-vote protects a leader that is alive. A pre-candidate asks again: voters that followed `peer` have
        ignored it. If this node leads, everything in flight to `peer` counts as lost.
        """
        if self.leadership is not None:
            self.leadership.peer_down(peer)
        elif peer == self.leader or self.role == PRE_CANDIDATE:
            self._set_leader(0)
            self.hasten(ticks)

    def hasten(self, ticks: int = 0) -> None:
        """Campaign within `ticks` ticks, by default 1 .. PEER_DOWN_TICKS, unless a leader is known before."""
        if self.leader == 0 and self.leadership is None:
            self.timeout = min(self.timeout, self.elapsed + (ticks or 1 + self._rng.below(PEER_DOWN_TICKS)))

    # --- disk ---------------------------------------------------------------------------------------------------------

    def persisted(self, number: int) -> None:
        """Record that all writes up to and including Ready `number` are durable."""
        assert number <= self._last_ready.number, f"Ready {number} of {self._last_ready.number}"
        writes = self._writes
        stable = writes.confirm(number)
        if stable > self.log.stable:
            assert stable <= self.log.persisting, f"durable up to {stable}, written up to {self.log.persisting}"
            self.log.stable = stable
            if self.leadership is not None:
                self._advance_commit(self.leadership)
        if self.role == CANDIDATE and writes.term == self.term and writes.vote == self.id:
            # A vote counts only when it is durable; so does the node's own.
            self._vote_for_itself()
            self._count_votes()

    def snapshot_meta(self, index: int) -> RaftSnapshot:
        """Return term and configuration at `index`, for a snapshot of the applied state there. Not below the log."""
        assert index <= self.log.applying, f"snapshot at {index}, handed out for applying up to {self.log.applying}"
        term = self.log.term_at(index)
        assert term >= 0, f"snapshot at {index}, compacted up to {self.log.offset}"
        return RaftSnapshot(index, term, self.configs.at(index))

    def snapshot_saved(self, meta: RaftSnapshot) -> None:
        """Record that a snapshot is durable, so that it may be offered to peers that need compacted entries."""
        assert meta.index <= self.log.applying, f"snapshot at {meta.index}, applying {self.log.applying}"
        if meta.index > self.log.snapshot.index:
            self.log.snapshot = meta
            self.configs.forget_before(meta.index)

    def compacted(self, index: int) -> None:
        """Drop entries up to `index`, at or below the newest saved snapshot. The shell keeps some for slow peers.

        A node without peers may drop all applied entries (`is_alone`).
        """
        if index > self.log.offset:
            saved = self.log.snapshot.index
            assert index <= saved or self.is_alone(), f"compaction at {index}, snapshot at {saved}"
            self.log.compact(index)

    def is_alone(self) -> bool:
        """Return True if this node is the only member, also of every uncommitted configuration."""
        configs = self.configs
        return configs.current.members() == [self.id] and configs.newest_index() <= self.log.commit

    def snapshot_status(self, peer: int, ok: bool) -> None:
        """Record the end of the snapshot transfer to `peer`. The shell must call this once per SNAPSHOT message."""
        if self.leadership is not None:
            self.leadership.snapshot_status(peer, ok)

    def probe_from(self, peer: int) -> int:
        """Return the first index that `peer`, which was offered a snapshot, needs; 0 if it was offered none.

        For a shell that still has the compacted entries on its disk, and sends them itself in place of the snapshot.
        The core probes the peer at that index again after the peer's next reply.
        """
        return self.leadership.probe_from(peer) if self.leadership is not None else 0

    # --- output -------------------------------------------------------------------------------------------------------

    def has_ready(self) -> bool:
        """Return True if `ready` would return any work."""
        lead = self.leadership
        log = self.log
        return (
            (lead is not None and lead.pending)
            or log.persisting < log.last
            or log.applying < log.commit
            or not self._output.is_empty()
            or self._follower.snapshot is not None
            or self._last_ready.differs(self.term, self.vote, self.role, self.leader)
        )

    def ready(self) -> Ready:
        """Return the pending work for the shell, and clear it."""
        if (lead := self.leadership) is not None and lead.pending:
            lead.replicate()
        log = self.log
        r = self._last_ready.next(self.term, self.vote, self.role, self.leader, log.commit, self.configs.current)
        r.snapshot, self._follower.snapshot = self._follower.snapshot, None
        if log.persisting < log.last:
            r.entries = log.between(log.persisting + 1, log.last)
            log.persisting = log.last
        if log.applying < log.commit:
            last = min(log.commit, log.applying + self.settings.max_apply_entries)
            r.committed = log.between(log.applying + 1, last)
            log.applying = last
        self._output.move_to(r)
        r.must_persist = r.snapshot is not None or r.hard_state is not None or len(r.entries) > 0
        if r.must_persist:
            self._writes.add(r.number, log.persisting, self.term, self.vote)
        return r

    def check(self, m: Message) -> None:
        """Raise InvalidMessage for a message that `step` would reject: it exceeds a limit, contradicts itself, or
        contradicts facts that this node knows. Changes nothing."""
        check_message(m)
        if m.term >= self.term:
            lead = self.leadership
            check_claims(m, self.term, self.log, lead.reads.newest if lead is not None else -1)

    def _answer(
        self, kind: int, to: int, term: int, match_index: int = 0, granted: bool = False, context: int = 0
    ) -> Message:
        """Return a reply to a peer, with this node's memory."""
        answer = Message(kind, self.id, to, term, match_index=match_index, granted=granted, context=context)
        answer.memory = self.memory
        return answer

    # --- terms --------------------------------------------------------------------------------------------------------

    def _step_other_term(self, m: Message) -> bool:
        """Handle a message of another term. Return True if the rest of the message is to be processed."""
        kind = m.kind
        if m.term > self.term:
            if kind in (PRE_VOTE, VOTE) and not m.granted and self._has_active_leader():
                # A follower of a live leader does not help to replace it, so a removed or partitioned node cannot
                # disturb the group (Dissertation §4.2.3). `granted` marks an election that the leader requested.
                self._report("vote_ignored", f"of {m.src} for term {m.term}")
                return False
            if kind == PRE_VOTE or (kind == PRE_VOTE_RESP and m.granted):
                return True  # the term of the message may begin, but has not begun
            from_leader = kind in (APPEND, HEARTBEAT, COMMIT, SNAPSHOT)
            self._become_follower(m.term, m.src if from_leader else 0)
            return True
        if kind in (APPEND, HEARTBEAT, SNAPSHOT):
            # A leader that missed an election must learn the new term. Otherwise this node would ignore the leader's
            # appends, and the leader would ignore this node's pre-votes, forever.
            self._output.messages.append(self._answer(HEARTBEAT_RESP, m.src, self.term))
        elif kind in (PRE_VOTE, VOTE):
            # A rejection promises nothing, so it does not wait for the disk.
            resp = PRE_VOTE_RESP if kind == PRE_VOTE else VOTE_RESP
            self._output.messages.append(self._answer(resp, m.src, self.term))
        return False

    def _has_active_leader(self) -> bool:
        """Return True if this node leads, or its leader sent a message within the shortest election timeout."""
        return self.leader != 0 and (self.role == LEADER or self.elapsed < self.settings.election_ticks)

    def _promotable(self) -> bool:
        """Return True if this node may become a candidate. In the last possible term it may not: every node would
        reject the next term."""
        return self.term < TERM_MAX - 1 and self.configs.may_stand(self.id, self.memory, self.log.commit)

    def _restart_timer(self) -> None:
        self.elapsed = 0
        self.timeout = self.settings.election_ticks + self._rng.below(self.settings.election_ticks)

    def _set_leader(self, leader: int) -> None:
        if leader != self.leader:
            self.leader = leader
            self._report("leader", str(leader))

    def _report(self, name: str, detail: str) -> None:
        self._output.events.append(RaftEvent(name, self.term, detail))

    # --- roles --------------------------------------------------------------------------------------------------------

    def _set_role(self, role: int) -> None:
        if role != self.role:
            self._report("role", f"{ROLE_NAMES[self.role]} -> {ROLE_NAMES[role]}")
            self.role = role

    def _become_follower(self, term: int, leader: int) -> None:
        assert term >= self.term, f"the term decreases from {self.term} to {term}"
        assert leader != self.id, f"node {leader} follows itself"
        # A candidate that only raised the term must not keep a better one from campaigning. So a follower's timer
        # continues unless there is a leader; a granted vote restarts it elsewhere.
        restart = leader != 0 or self.role != FOLLOWER
        if term > self.term:
            self.term = term
            self.vote = 0
        self._set_role(FOLLOWER)
        self._set_leader(leader)
        self.leadership = None
        self._votes = {}
        if restart:
            self._restart_timer()

    def _pre_campaign(self) -> None:
        """Ask whether an election could be won, before a new term disturbs the group: Dissertation §9.6."""
        assert self.role != LEADER, f"the leader of term {self.term} asks for pre-votes"
        self._set_role(PRE_CANDIDATE)
        self._set_leader(0)
        self._restart_timer()
        self._votes = {}
        self._vote_for_itself()
        for voter in self.configs.current.voters:
            if voter != self.id:
                self._output.messages.append(
                    Message(PRE_VOTE, self.id, voter, self.term + 1, self.log.last, self.log.last_term)
                )
        self._count_votes()

    def _campaign(self, is_transfer: bool) -> None:
        """Begin a term and request votes. The requests leave when term and own vote are durable: Raft §5.2."""
        assert self.role != LEADER, f"the leader of term {self.term} campaigns"
        self.term += 1
        self.vote = self.id
        self._set_role(CANDIDATE)
        self._set_leader(0)
        self._restart_timer()
        self._votes = {}
        for voter in self.configs.current.voters:
            if voter != self.id:
                self._output.after_persist.append(
                    Message(VOTE, self.id, voter, self.term, self.log.last, self.log.last_term, granted=is_transfer)
                )

    def _become_leader(self) -> None:
        assert self.role == CANDIDATE, f"a {ROLE_NAMES[self.role]} becomes leader"
        assert self.vote == self.id, f"the leader of term {self.term} voted for {self.vote}"
        self._set_role(LEADER)
        self._set_leader(self.id)
        self._votes = {}
        self.leadership = self._new_leadership()
        self.log.append(self.term, NOOP, b"")

    def _new_leadership(self) -> Leadership:
        return Leadership(self.id, self.memory, self.term, self.settings, self.log, self.configs, self._output)

    def _new_follower(self) -> FollowerRole:
        return FollowerRole(self.id, self.log, self.configs, self._writes, self._output)

    # --- elections ----------------------------------------------------------------------------------------------------

    def _on_vote_request(self, m: Message) -> None:
        is_pre_vote = m.kind == PRE_VOTE
        may = self.vote == m.src or (self.vote == 0 and self.leader == 0) or (is_pre_vote and m.term > self.term)
        granted = may and self.log.is_up_to_date(m.prev_index, m.prev_term)
        if is_pre_vote:
            granted = granted and not self._comes_before(m)  # or two pre-candidates would split the vote
            # A pre-vote promises nothing, so the reply does not wait for the disk.
            term = m.term if granted else self.term
            self._output.messages.append(self._answer(PRE_VOTE_RESP, m.src, term, granted=granted))
            return
        assert m.term == self.term, f"a vote in term {m.term}, the term is {self.term}"
        if granted:
            self.vote = m.src
            self.elapsed = 0
        self._output.after_persist.append(self._answer(VOTE_RESP, m.src, self.term, granted=granted))

    def _comes_before(self, m: Message) -> bool:
        """Return True if this node has just asked for the same term, with an equal log and a lower number."""
        is_fresh = self.role == PRE_CANDIDATE and 2 * self.elapsed < self.settings.election_ticks
        is_same = (m.term, m.prev_index, m.prev_term) == (self.term + 1, self.log.last, self.log.last_term)
        return is_fresh and is_same and self.id < m.src

    def _on_vote_resp(self, m: Message) -> None:
        if m.kind == PRE_VOTE_RESP:
            if self.role != PRE_CANDIDATE or (m.granted and m.term != self.term + 1):
                return
        elif self.role != CANDIDATE:
            return
        if m.src not in self._votes and self.configs.current.counts(m.src, m.memory or FIRST_MEMORY):
            self._votes[m.src] = m.granted
            self._count_votes()

    def _vote_for_itself(self) -> None:
        if self.configs.current.counts(self.id, self.memory):
            self._votes[self.id] = True

    def _count_votes(self) -> None:
        assert self.role in (PRE_CANDIDATE, CANDIDATE), f"a {ROLE_NAMES[self.role]} counts votes"
        result = vote_result(self._votes, self.configs.current.voters)
        if result == WON:
            if self.role == PRE_CANDIDATE:
                self._campaign(False)
            else:
                self._become_leader()
        elif result == LOST:
            self._report("election_lost", f"as {ROLE_NAMES[self.role]}")
            self._become_follower(self.term, 0)

    # --- replication --------------------------------------------------------------------------------------------------

    def _step_leader(self, m: Message) -> None:
        lead = self.leadership
        if lead is None:
            return
        assert lead.term == self.term, f"leads term {lead.term}, the term is {self.term}"
        if m.kind == APPEND_RESP:
            if lead.on_append_resp(m):
                self._advance_commit(lead)
        elif m.kind == HEARTBEAT_RESP:
            lead.on_heartbeat_resp(m)
        else:
            lead.read(m.src, m.context, m.granted)

    def _advance_commit(self, lead: Leadership) -> None:
        if not self.log.commit_to(lead.next_commit()):
            return
        lead.pending = True
        is_voter = lead.counts or self.configs.current.is_voter(self.id)
        if not is_voter and self.configs.newest_index() <= self.log.commit:
            # This leader's own removal is committed, so its leadership ends here (Raft §6). It makes the best voter
            # campaign at once, so that the group does not wait for an election timeout.
            successor = lead.best_successor()
            if successor:
                lead.replicate()
                self._output.messages.append(Message(TIMEOUT_NOW, self.id, successor, self.term))
            self._become_follower(self.term, 0)

    def _step_from_leader(self, m: Message) -> None:
        if self.role != FOLLOWER or self.leader != m.src:
            self._become_follower(self.term, m.src)
        self.elapsed = 0
        follower = self._follower
        kind = m.kind
        if kind == APPEND:
            answer = follower.on_append(m)
        elif kind == SNAPSHOT:
            answer = follower.on_snapshot(m)
        else:
            follower.on_commit(m.commit, m.prev_term, m.term)
            if kind == HEARTBEAT:
                self._output.messages.append(
                    self._answer(HEARTBEAT_RESP, m.src, self.term, match_index=self.log.last, context=m.context)
                )
            return
        answer.memory = self.memory
        self._output.after_persist.append(answer)

    # --- invariants ---------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise AssertionError if an invariant of this core or of a part does not hold. Changes nothing. For tests."""
        self.log.validate()
        self.configs.validate(self.log)
        self._output.validate()
        self._writes.validate(self._last_ready)
        self._last_ready.validate(self.term, self.vote)
        lead = self.leadership
        assert self.term >= self.log.last_term, f"in term {self.term}, the log ends in term {self.log.last_term}"
        validate_role(self.role, self.id, self.leader, self.vote, self._votes, is_leading=lead is not None)
        if not self._writes.writes and self._follower.snapshot is None:
            assert self.log.stable == self.log.persisting, (
                f"nothing is being written, durable up to {self.log.stable} of {self.log.persisting}"
            )
        if lead is not None:
            lead.validate(self.term)
