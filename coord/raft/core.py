"""The consensus core: one member of one Raft group, without I/O, clock or chance of its own.

What a node does in each role is in this file; what only a leader knows is in `leadership`. The role changes only in the
four `_become_*` methods, the term only in `_become_follower` and `_campaign`::

    follower -> pre-candidate      silence, and this node is a voter                      Dissertation §9.6
    pre-candidate -> candidate     a majority would vote for it                           term + 1, vote for itself
    follower -> candidate          the leader hands over (TIMEOUT_NOW)                    term + 1, vote for itself
    candidate -> leader            a majority has voted for it, durably its own vote too
    any -> follower                a higher term, a leader of this term, a lost election
    leader -> follower             silence from the majority; removed from the group
"""

from __future__ import annotations

from typing import Final

from coord.env import Rng
from coord.errors import NotLeader, ProposalDropped
from coord.raft.bounds import TERM_MAX, check_claims, check_message
from coord.raft.follower import Follower
from coord.raft.leadership import Leadership
from coord.raft.log import RaftLog
from coord.raft.membership import FIRST_MEMORY, ConfigLog, Configuration, decode_configuration, objection
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
)
from coord.raft.persistence import Durable, Said
from coord.raft.quorum import LOST, WON, vote_result

__all__ = ["RaftConfig", "RaftCore"]

#: Where there is no leader to wait for, a follower waits 1 .. this many ticks before it stands for election.
PEER_DOWN_TICKS: Final = 4


class RaftCore:
    """One member of one Raft group. See the package docstring for how to drive it.

    Invariant: `leadership` is there iff role is LEADER. Invariant: term never falls; vote changes only from 0 within a
    term.
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
    ) -> None:
        """Start from what the disk holds, which remembers as `memory` (`membership`).

        `snapshot`: the newest durable one, or `bootstrap(voters, learners)` for a new node; the state machine is at
        `snapshot.index`. `entries`: the durable log, contiguous; it may begin before `snapshot.index` (kept for slow
        peers) and is dropped where the snapshot contradicts it. The first committed entry handed out is
        `snapshot.index + 1`.
        """
        assert node_id > 0, node_id
        self.id: int = node_id
        #: Set by the shell when it finds that this disk is not the one that gave the promises of this id.
        self.memory: int = memory
        self.settings: RaftConfig = config
        self.log: RaftLog = RaftLog(snapshot, entries or [])
        self.configs: ConfigLog = ConfigLog(snapshot.index, snapshot.config)
        for entry in self.log.entries:
            if entry.kind == CONFIG and entry.index > snapshot.index:
                self.configs.append(entry.index, decode_configuration(entry.data))
        saved = hard_state if hard_state is not None else HardState(0, 0)
        self.term: int = saved.term
        self.vote: int = saved.vote
        if snapshot.term > self.term:
            # Applied, and saved in a snapshot, before the disk came to the write that adopted the term. A vote in that
            # term would have waited for the disk, so none was given.
            self.term = snapshot.term
            self.vote = 0
        assert self.term >= self.log.last_term, f"term {self.term} on disk, log ends in term {self.log.last_term}"
        self.role: int = FOLLOWER
        #: The leader of `term`, 0 while unknown.
        self.leader: int = 0
        self.leadership: Leadership | None = None
        #: Ticks since the leader was heard, a vote was granted or an election began.
        self.elapsed: int = 0
        #: At how many of them this node stands for election.
        self.timeout: int = 0

        self._rng: Rng = rng
        self._votes: dict[int, bool] = {}
        self._outbox: list[Message] = []
        self._after_persist: list[Message] = []
        self._read_states: list[ReadState] = []
        self._events: list[RaftEvent] = []
        self._said: Said = Said(saved.term, saved.vote, self.configs.current)
        self._durable: Durable = Durable(saved.term, saved.vote)
        self._follower: Follower = self._new_follower()
        self._restart_timer()

    # --- input --------------------------------------------------------------------------------------------------------

    def abstains(self) -> bool:
        """Return True if the configuration in force has this node as a voter with another memory.

        This node counts for nothing then, and takes no part in elections.
        """
        config = self.configs.current
        return config.is_voter(self.id) and config.memory_of(self.id) != self.memory

    def step(self, m: Message) -> None:
        """Take a message from a peer (src is authenticated by the shell). Stale and repeated ones are harmless.

        Raises InvalidMessage for a claim that cannot be true; then nothing has changed, and the shell breaks the link.
        """
        self.check(m)
        if m.kind in (PRE_VOTE, VOTE) and self.abstains():
            return
        if m.term != self.term and not self._settle_term(m):
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
            self._read_states.append(ReadState(m.context, m.match_index))
        elif kind == TIMEOUT_NOW and self.role != LEADER and self._promotable():
            self._campaign(True)

    def tick(self) -> None:
        """One tick has passed."""
        lead = self.leadership
        if lead is None:
            self.elapsed += 1
            if self.elapsed >= self.timeout and self._promotable():
                self._pre_campaign()
            return
        lead.tick()
        if self._change_refused() == "":
            # Before the quorum is looked at: of two voters the one that leads may take the other one out alone.
            peer = lead.to_demote()
            if peer:
                self._events.append(RaftEvent("demote", self.term, str(peer)))
                self.propose_config(self.configs.current.with_pre_voter(peer))
        if not lead.has_quorum():
            # Others may have elected a leader that this one cannot hear of: Dissertation §6.2.
            self._events.append(RaftEvent("quorum_lost", self.term, "no majority heard within an election timeout"))
            self._become_follower(self.term, 0)
            return
        if self._change_refused() == "":
            peer = lead.to_promote()
            if peer:
                self._events.append(RaftEvent("promote", self.term, str(peer)))
                self.propose_config(self.configs.current.with_voter(peer, lead.by_id[peer].memory))

    def propose(self, data: bytes, kind: int = NORMAL) -> int:
        """Append `data` and return its index; it commits if this term's leadership lasts.

        Raises: NotLeader(hint); ProposalDropped while leadership is being handed over. Nothing was appended then.
        """
        lead = self.leadership
        if lead is None:
            raise NotLeader(self.leader)
        if lead.transferee:
            raise ProposalDropped(f"leadership is being handed to {lead.transferee}")
        lead.pending = True
        return self.log.append(self.term, kind, data)

    def propose_config(self, config: Configuration) -> int:
        """Append a new configuration, in force at once, and return its index. Dissertation §4.1.

        Raises: NotLeader; ProposalDropped when `config` is no single step, another change is not committed yet, or no
        entry of this term is.
        """
        lead = self.leadership
        if lead is None:
            raise NotLeader(self.leader)
        why = self._change_refused() or objection(self.configs.current, config)
        if why:
            raise ProposalDropped(why)
        index = self.log.append(self.term, CONFIG, config.encode())
        self._use_config(index, config)
        return index

    def transfer_leadership(self, to: int) -> None:
        """Bring `to` up to date and let it stand for election at once; given up after an election timeout.
        Dissertation §3.10.

        Proposals are refused meanwhile. Raises: NotLeader; ProposalDropped when `to` is no other voter.
        """
        lead = self.leadership
        if lead is None:
            raise NotLeader(self.leader)
        if to == self.id or not self.configs.current.is_voter(to):
            raise ProposalDropped(f"{to} is no other voter")
        if not lead.by_id[to].counts:
            raise ProposalDropped(f"{to} came back without its memory")
        lead.begin_transfer(to)

    def read_index(self, context: int, is_patient: bool = False) -> None:
        """Ask for the index a linearizable read must wait for; comes back as `ReadState(context, index)`.
        Dissertation §6.4.

        On a follower the leader is asked; that message may be lost, so ask again after a while and whenever
        `Ready.changed`. `context` must not be reused over restarts of the node. Raises: NotLeader(0) when no leader is
        known. `is_patient`: the next regular heartbeats are soon enough; of several such reads the newest is answered.
        """
        lead = self.leadership
        if lead is not None:
            lead.read(self.id, context, is_patient)
        elif self.leader:
            self._outbox.append(
                Message(READ_INDEX, self.id, self.leader, self.term, context=context, granted=is_patient)
            )
        else:
            raise NotLeader(0)

    def peer_down(self, peer: int) -> None:
        """The shell saw the connection to `peer` break.

        If it is the leader, this node stands for election within 1..4 ticks (pre-vote protects a leader that lives). If
        this node leads, whatever was on its way to `peer` counts as lost.
        """
        if self.leadership is not None:
            self.leadership.peer_down(peer)
        elif peer == self.leader:
            self._set_leader(0)
            self.hasten()

    def hasten(self, ticks: int = 0) -> None:
        """There is no leader to wait for: if none is heard of, stand for election within `ticks`, by default 1..4."""
        if self.leader == 0 and self.leadership is None:
            self.timeout = min(self.timeout, self.elapsed + (ticks or 1 + self._rng.below(PEER_DOWN_TICKS)))

    # --- disk ---------------------------------------------------------------------------------------------------------

    def persisted(self, number: int) -> None:
        """Everything of Ready `number` and of all before it is durable."""
        assert number <= self._said.number, f"Ready {number} of {self._said.number}"
        durable = self._durable
        stable = durable.confirmed(number)
        if stable > self.log.stable:
            self.log.stable = stable
            if self.leadership is not None:
                self._advance_commit(self.leadership)
        if self.role == CANDIDATE and durable.term == self.term and durable.vote == self.id:
            # A vote counts only once it cannot be forgotten, one's own as any other.
            self._vote_for_itself()
            self._count_votes()

    def snapshot_meta(self, index: int) -> RaftSnapshot:
        """Term and configuration at `index` (applied, not compacted): what a snapshot taken there must carry."""
        assert index <= self.log.handed, f"snapshot at {index}, handed out for applying up to {self.log.handed}"
        term = self.log.term_at(index)
        assert term >= 0, f"snapshot at {index}, compacted up to {self.log.offset}"
        return RaftSnapshot(index, term, self.configs.at(index))

    def snapshot_saved(self, meta: RaftSnapshot) -> None:
        """A snapshot is durable and may be offered to peers that are behind the log."""
        if meta.index > self.log.snapshot.index:
            self.log.snapshot = meta
            self.configs.forget_before(meta.index)

    def compacted(self, index: int) -> None:
        """Forget entries up to `index`, at or below the newest saved snapshot; keep some behind it for slow peers.

        A member without peers may forget all that is applied (`is_alone`).
        """
        if index > self.log.offset:
            saved = self.log.snapshot.index
            assert index <= saved or self.is_alone(), f"compaction at {index}, snapshot at {saved}"
            self.log.compact(index)

    def is_alone(self) -> bool:
        """Whether nobody else is in the group, and nobody has been since an entry that is not committed yet."""
        configs = self.configs
        return configs.current.members() == [self.id] and configs.newest_index() <= self.log.commit

    def snapshot_status(self, peer: int, ok: bool) -> None:
        """How the transfer to `peer` that a SNAPSHOT message began has ended. Must be called for each one."""
        if self.leadership is not None:
            self.leadership.snapshot_status(peer, ok)

    # --- output -------------------------------------------------------------------------------------------------------

    def has_ready(self) -> bool:
        """Whether `ready` would hand out anything."""
        lead = self.leadership
        log = self.log
        return (
            (lead is not None and lead.pending)
            or log.saved < log.last
            or log.handed < log.commit
            or len(self._outbox) > 0
            or len(self._after_persist) > 0
            or len(self._read_states) > 0
            or self._follower.snapshot is not None
            or self._said.differs(self.term, self.vote, self.role, self.leader)
            or len(self._events) > 0
        )

    def ready(self) -> Ready:
        """Hand out everything there is to do; each thing once."""
        lead = self.leadership
        if lead is not None and lead.pending:
            lead.replicate()
        log = self.log
        r = self._said.next(self.term, self.vote, self.role, self.leader, log.commit, self.configs.current)
        r.snapshot = self._follower.snapshot
        self._follower.snapshot = None
        if log.saved < log.last:
            r.entries = log.between(log.saved + 1, log.last)
            log.saved = log.last
        if log.handed < log.commit:
            last = min(log.commit, log.handed + self.settings.max_apply_entries)
            r.committed = log.between(log.handed + 1, last)
            log.handed = last
        self._hand_lists(r)
        if r.must_persist():
            self._durable.asked(r.number, log.saved, self.term, self.vote)
        return r

    def _hand_lists(self, r: Ready) -> None:
        # The leadership holds on to the lists themselves, so they are emptied and not replaced.
        if self._outbox:
            r.messages = self._outbox.copy()
            self._outbox.clear()
        if self._after_persist:
            r.messages_after_persist = self._after_persist
            self._after_persist = []
        if self._read_states:
            r.read_states = self._read_states.copy()
            self._read_states.clear()
        if self._events:
            r.events = self._events.copy()
            self._events.clear()

    # --- what peers claim ---------------------------------------------------------------------------------------------

    def check(self, m: Message) -> None:
        """Raise InvalidMessage for a message that `step` would not take: it breaks a bound, contradicts itself, or
        contradicts what this node knows for certain. Changes nothing."""
        check_message(m)
        if m.term >= self.term:
            lead = self.leadership
            check_claims(m, self.term, self.log, lead.reads.newest if lead is not None else -1)

    def _answer(
        self, kind: int, to: int, term: int, match_index: int = 0, granted: bool = False, context: int = 0
    ) -> Message:
        """An answer to a peer, which says from which memory it is given."""
        answer = Message(kind, self.id, to, term, match_index=match_index, granted=granted, context=context)
        answer.memory = self.memory
        return answer

    # --- terms --------------------------------------------------------------------------------------------------------

    def _settle_term(self, m: Message) -> bool:
        """Deal with a message of another term; True if it is to be looked at further."""
        kind = m.kind
        if m.term > self.term:
            if kind in (PRE_VOTE, VOTE) and not m.granted and self._hears_leader():
                # Whoever hears a leader helps nobody to replace it: a removed or cut off node cannot disturb
                # (Dissertation §4.2.3). `granted` marks an election that the leader itself asked for.
                self._events.append(RaftEvent("vote_ignored", self.term, f"of {m.src} for term {m.term}"))
                return False
            if kind == PRE_VOTE or (kind == PRE_VOTE_RESP and m.granted):
                return True  # speaks of a term that nobody has begun
            from_leader = kind in (APPEND, HEARTBEAT, COMMIT, SNAPSHOT)
            self._become_follower(m.term, m.src if from_leader else 0)
            return True
        if kind in (APPEND, HEARTBEAT, SNAPSHOT):
            # A leader that missed an election must learn of it, else two sides ignore each other for ever: this node
            # its appends, and it this node's pre-votes.
            self._outbox.append(self._answer(HEARTBEAT_RESP, m.src, self.term))
        elif kind in (PRE_VOTE, VOTE):
            resp = PRE_VOTE_RESP if kind == PRE_VOTE else VOTE_RESP
            self._outbox.append(self._answer(resp, m.src, self.term))
        return False

    def _hears_leader(self) -> bool:
        """Whether a leader was heard within the shortest election timeout; a leader hears itself."""
        return self.leader != 0 and (self.role == LEADER or self.elapsed < self.settings.election_ticks)

    def _promotable(self) -> bool:
        """Whether this node may stand for election.

        A voter may. So may one that its newest, uncommitted configuration removes: it may be the only one that holds
        that entry and everything before it. Its own vote does not count then. Dissertation §4.2.2.
        """
        if self.term >= TERM_MAX - 1:  # nobody would accept the next term
            return False
        configs = self.configs
        if configs.current.is_voter(self.id):
            return not self.abstains()
        newest = configs.newest_index()
        return newest > self.log.commit and configs.at(newest - 1).counts(self.id, self.memory)

    def _restart_timer(self) -> None:
        self.elapsed = 0
        self.timeout = self.settings.election_ticks + self._rng.below(self.settings.election_ticks)

    def _set_leader(self, leader: int) -> None:
        if leader != self.leader:
            self.leader = leader
            self._events.append(RaftEvent("leader", self.term, str(leader)))

    # --- roles --------------------------------------------------------------------------------------------------------

    def _set_role(self, role: int) -> None:
        if role != self.role:
            self._events.append(RaftEvent("role", self.term, f"{ROLE_NAMES[self.role]} -> {ROLE_NAMES[role]}"))
            self.role = role

    def _become_follower(self, term: int, leader: int) -> None:
        # A candidate that only raised the term must not keep a better one from standing: the timer of a follower runs
        # on unless there is a leader (a granted vote restarts it elsewhere).
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
        """Ask whether an election could be won before disturbing anybody with a new term: Dissertation §9.6."""
        self._set_role(PRE_CANDIDATE)
        self._set_leader(0)
        self._restart_timer()
        self._votes = {}
        self._vote_for_itself()
        for voter in self.configs.current.voters:
            if voter != self.id:
                self._outbox.append(Message(PRE_VOTE, self.id, voter, self.term + 1, self.log.last, self.log.last_term))
        self._count_votes()

    def _campaign(self, handed_over: bool) -> None:
        """Begin a term and ask for votes; the requests wait until term and own vote are durable: Raft §5.2."""
        self.term += 1
        self.vote = self.id
        self._set_role(CANDIDATE)
        self._set_leader(0)
        self._restart_timer()
        self._votes = {}
        for voter in self.configs.current.voters:
            if voter != self.id:
                self._after_persist.append(
                    Message(VOTE, self.id, voter, self.term, self.log.last, self.log.last_term, granted=handed_over)
                )

    def _become_leader(self) -> None:
        self._set_role(LEADER)
        self._set_leader(self.id)
        self._votes = {}
        self.leadership = self._new_leadership()
        self.log.append(self.term, NOOP, b"")

    def _new_leadership(self) -> Leadership:
        return Leadership(
            self.id,
            self.memory,
            self.term,
            self.settings,
            self.log,
            self.configs.current,
            self._outbox,
            self._read_states,
            self._events,
        )

    def _new_follower(self) -> Follower:
        return Follower(self.id, self.log, self.configs, self._durable, self._events)

    # --- elections ----------------------------------------------------------------------------------------------------

    def _on_vote_request(self, m: Message) -> None:
        asked = m.kind == PRE_VOTE
        may = self.vote == m.src or (self.vote == 0 and self.leader == 0) or (asked and m.term > self.term)
        granted = may and self.log.is_up_to_date(m.prev_index, m.prev_term)
        if asked:
            term = m.term if granted else self.term
            self._outbox.append(self._answer(PRE_VOTE_RESP, m.src, term, granted=granted))
            return
        if granted:
            self.vote = m.src
            self.elapsed = 0
        self._after_persist.append(self._answer(VOTE_RESP, m.src, self.term, granted=granted))

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
        result = vote_result(self._votes, self.configs.current.voters)
        if result == WON:
            if self.role == PRE_CANDIDATE:
                self._campaign(False)
            else:
                self._become_leader()
        elif result == LOST:
            self._events.append(RaftEvent("election_lost", self.term, f"as {ROLE_NAMES[self.role]}"))
            self._become_follower(self.term, 0)

    # --- leading ------------------------------------------------------------------------------------------------------

    def _step_leader(self, m: Message) -> None:
        lead = self.leadership
        if lead is None:
            return
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
        if not self.configs.current.is_voter(self.id) and self.configs.newest_index() <= self.log.commit:
            # Its own removal is committed: a leader that is no member any more ends here (Raft §6), and names an heir.
            heir = lead.best_successor()
            if heir:
                lead.replicate()
                self._outbox.append(Message(TIMEOUT_NOW, self.id, heir, self.term))
            self._become_follower(self.term, 0)

    def _change_refused(self) -> str:
        """Why the configuration may not be changed now; "" when it may."""
        lead = self.leadership
        if lead is None:
            return "not the leader"
        if self.configs.newest_index() > self.log.commit:
            return f"the change at {self.configs.newest_index()} is not committed"
        if not lead.settled():
            return "no entry of this term is committed"
        return f"leadership is being handed to {lead.transferee}" if lead.transferee else ""

    def _use_config(self, index: int, config: Configuration) -> None:
        self.configs.append(index, config)
        self._events.append(RaftEvent("config", self.term, f"at {index}: {config}"))
        if self.leadership is not None:
            self.leadership.set_config(config)

    # --- following ----------------------------------------------------------------------------------------------------

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
                self._outbox.append(
                    self._answer(HEARTBEAT_RESP, m.src, self.term, match_index=self.log.last, context=m.context)
                )
            return
        answer.memory = self.memory
        self._after_persist.append(answer)
