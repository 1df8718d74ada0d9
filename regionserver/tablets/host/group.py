"""One tablet on one server: a Raft core, and the requests that wait for it. Pure: the turn drives it.

The path of a write: `propose` appends an entry -> `collect` hands out the log items and the appends -> `persisted` and
the members' acknowledgments commit it -> `collect` hands out a round of entries for the rows -> `applied` answers.

This module adds two rules to Raft.

- Rows never run ahead of this server's log. Raft would allow a replica to apply an entry that a majority has stored
  before its own write is durable. After kill -9 the rows, which survive in the page cache, would then contain entries
  that the log lacks, and the next entry of the log would leave a gap. So a committed entry waits until it is durable
  here.
- The apply threads have at most one round of a tablet at a time. Everything that is committed meanwhile forms the next
  round.

And two rules make a write cheap for the members that do not lead. No client waits for the rows of these members, and a
round of one entry takes nearly as long as a round of ten.

- At every APPLY_TICKS-th tick a follower applies the entries committed since the previous one. It does not wait for the
  tick if a read waits, or if the entries would make a large round.
- A commit index that no append carries is sent with the next BEAT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from coord.errors import NotLeader, ProposalDropped
from coord.raft.core import RaftCore
from coord.raft.log import CommittedConfig
from coord.raft.messages import (
    APPEND,
    COMMIT,
    HEARTBEAT,
    HEARTBEAT_RESP,
    LEADER,
    SNAPSHOT,
    VOTE_RESP,
    Entry,
    HardState,
    Message,
    RaftConfig,
    RaftEvent,
    Ready,
)
from coord.storage.shared.items import Floor, Position, SlotItems
from regions.messages.tablets import ChangeConfig, ConfigChanged
from regionserver.tablets.host.delivery import ReplicaStanding, State, has_lost_memory
from regionserver.tablets.host.envelope import PAYLOAD_BYTES_MAX, Refusal, Word
from regionserver.tablets.host.log_memory import LogMemory
from regionserver.tablets.host.members import begin_change, begin_transfer, best_successor, servers_of
from regionserver.tablets.host.requests import (
    TABLET_BYTES_MAX,
    TABLET_READS_MAX,
    Fate,
    InFlight,
    ProposedEntry,
    Reads,
    ReadyRead,
    StaleRead,
    TabletAnswer,
)

#: Entries and bytes of one round for the rows. A round is one transaction, and readers and other tablets wait for the
#: apply thread meanwhile.
ROUND_ENTRIES_MAX: Final = 1000
ROUND_BYTES_MAX: Final = 4 << 20
#: Ticks between two rounds of a follower: 100 ms, the interval of BEATs. A tablet's slot decides in which tick its
#: rounds fall, so that the rounds of all tablets are spread over the ticks.
APPLY_TICKS: Final = 2
#: Payload of committed entries that a follower applies without waiting for its tick. The round is still a small one
#: (`regionserver/tablets/process/in_place.py`), and a follower that begins to lead has few entries to apply.
FOLLOWER_BYTES: Final = 3 << 10
#: Ticks between the members that stand for election after their leader's server is gone, in the order of their numbers.
#: All of them notice at once. A distance of one tick could vanish, because the ticks of two servers are not in phase.
#: Two ticks keep at least 50 ms between the members, enough for a pre-vote, a vote and its sync.
RANK_TICKS: Final = 2
#: Entries, and bytes of entries, kept in memory below the floor for members that lag slightly.
KEEP_ENTRIES: Final = 1000
KEEP_BYTES: Final = 1 << 20


#: Ticks without a message of the leader before an election: 10 to 19, 0.5 to 1 s. Missing BEATs show a lost server
#: earlier, so this timeout only covers a silent leader on a live server.
ELECTION_TICKS: Final = 10
#: Ticks between a leader's heartbeats, 200 ms: two in an election timeout. They are the cost of idle awake tablets. An
#: entry, a needed commit index and a round of reads cause additional messages.
HEARTBEAT_TICKS: Final = 4


def raft_settings() -> RaftConfig:
    """Return the timing of a tablet's group."""
    return RaftConfig(election_ticks=ELECTION_TICKS, heartbeat_ticks=HEARTBEAT_TICKS, is_promotion_careful=True)


class ReplicaIdentity:
    """Identity of a replica: `slot` in this server's log, `number` in the whole cluster."""

    def __init__(self, tablet: str, slot: int, generation: int, number: int) -> None:
        self.tablet: str = tablet
        self.slot: int = slot
        self.generation: int = generation
        self.number: int = number


class GroupOutput:
    """A group's output of one turn, not sent yet. If the group fails, all of it is dropped."""

    def __init__(self) -> None:
        #: Messages that do not depend on durable writes, and messages that depend on `items` and earlier writes.
        self.messages: list[Message] = []
        self.promises: list[Message] = []
        #: Heartbeats, replies to them, and commit indexes that can wait for the next BEAT.
        self.patient: list[Message] = []
        self.items: SlotItems | None = None
        #: Entries for the rows, in the order of the log.
        self.round: list[Entry] | None = None
        self.answers: list[TabletAnswer] = []
        self.reads: list[ReadyRead] = []
        self.events: list[RaftEvent] = []
        #: (member, index): members that need entries from this index on, which are only on the disk.
        self.needs_log: list[tuple[int, int]] = []
        #: The servers of the members have changed with the configuration in force.
        self.are_members_changed = False
        #: The newest configuration, once committed. The shell writes it to the consensus metadata, then calls `noted`.
        self.committed: CommittedConfig | None = None


class GroupTracer(Protocol):
    """Receives a group's Raft events."""

    def ready(self, group: Group, ready: Ready) -> None:
        """Handle a Ready that is about to be carried out; none of its output has been sent."""
        ...


class Group:
    """One tablet on one server. After each group of other calls the turn calls `collect`."""

    def __init__(
        self,
        replica: ReplicaIdentity,
        core: RaftCore,
        servers: Mapping[int, str],
        *,
        in_flight: InFlight | None = None,
        tracer: GroupTracer | None = None,
        noted_config: int | None = None,
    ) -> None:
        """`servers`: the server of each member number. `core` starts at the applied position of the rows.

        `noted_config`: index of the configuration in the consensus metadata. A later configuration that `core` has
        found in the log must still be written there. None: the metadata have the latest one.
        """
        assert core.id == replica.number, f"core {core.id} for member {replica.number} of {replica.tablet}"
        self.replica: ReplicaIdentity = replica
        self.core: RaftCore = core
        self.servers: dict[int, str] = dict(servers)
        #: Highest index in the rows.
        self.applied_index = core.log.applying
        #: Why this replica does not run, "" if it runs.
        self.failure = ""
        #: Last refusal of each member's server since the member last took part, for the leader's report.
        self.refusals: dict[int, Refusal] = {}
        #: Number of the last write of this group, and of its Ready, as counted by the turn.
        self.write_number = 0
        self.write_ready = 0
        self.reads = Reads()
        self.tracer = tracer
        #: Index up to which every member is known to have all entries durably. Never decreases.
        self._everywhere = 0
        #: Index of the log's floor, if it has risen since the process started.
        self._floor = 0
        self.memory = LogMemory(core.log.entries)
        #: Index of the newest committed configuration that was handed out, and of the one in the consensus metadata.
        known = core.committed_config().index if noted_config is None else noted_config
        self._config_index = self._noted_index = known
        self._in_flight = in_flight or InFlight()
        self._bytes = 0
        self._proposals: deque[ProposedEntry] = deque()
        #: Committed entries that are in no round yet, and the round that is being applied.
        self._committed: deque[Entry] = deque()
        self._round: list[Entry] = []
        #: Payload of `_committed`, and whether a follower's tick has come since these entries were committed.
        self._committed_bytes = 0
        self._is_tick_over = False
        #: Member -> (term, context) of the last heartbeat, or reply to one, sent to the member.
        self._beaten: dict[tuple[int, int], tuple[int, int]] = {}
        self._out = GroupOutput()

    # --- what arrives -------------------------------------------------------------------------------------------------

    def standing(self) -> ReplicaStanding:
        """Return the state that decides whether a message may reach this replica."""
        core = self.core
        state = State.FAILED if self.failure else State.READY
        return ReplicaStanding(state, self.replica.number, core.term, core.log.last, core.log.last_term)

    def step(self, m: Message) -> None:
        """Process a message that the table of deliveries accepts. Raise InvalidMessage; then nothing has changed."""
        self.core.step(m)
        if m.kind == HEARTBEAT and m.term == self.core.term and m.src == self.core.leader:
            # Committed entries are the same everywhere, and stay.
            self._everywhere = max(self._everywhere, min(m.match_index, self.core.log.commit))
        if self.refusals:
            self.refusals.pop(m.src, None)
            lead = self.core.leadership
            if lead is not None:
                lead.lost.discard(m.src)

    def refused(self, number: int, refusal: Refusal) -> None:
        """Note that the server of a member has refused a message, for the leader's report."""
        self.refusals[number] = refusal
        lead = self.core.leadership
        peer = lead.by_id.get(number) if lead is not None else None
        if lead is not None and peer is not None and has_lost_memory(refusal, peer.match):
            lead.lost.add(number)

    def later_term(self, number: int, refusal: Refusal) -> Message | None:
        """Return the message by which Raft learns that a voter without a running replica is in a later term, or None.

        Such a voter was a candidate, or voted, before its rows failed. It accepts no copy from a leader of an earlier
        term, and only its refusals inform this leader of the later term.
        """
        is_voter = refusal.src == number and number in self.core.configs.current.voters
        if refusal.word is not Word.INVALID_TERM or not is_voter or self.core.leadership is None:
            return None
        return Message(VOTE_RESP, number, refusal.dst, refusal.term) if refusal.term > self.core.term else None

    def propose(self, request: int, payload: bytes) -> None:
        """Append a client's payload to the log, or answer why that is impossible."""
        size = len(payload)
        if self.core.leadership is None:
            self._answer(request, Fate.NOT_LEADER)
        elif size > PAYLOAD_BYTES_MAX:
            self._answer(request, Fate.TOO_LARGE)
        elif self._bytes + size > TABLET_BYTES_MAX or self._in_flight.bytes + size > self._in_flight.limit:
            self._answer(request, Fate.BUSY)
        else:
            try:
                index = self.core.propose(payload)
            except ProposalDropped:
                # Leadership is being handed over: the next leader will be known in a moment.
                self._answer(request, Fate.BUSY)
                return
            self._proposals.append(ProposedEntry(index, request, size))
            self._bytes += size
            self._in_flight.bytes += size

    def change_config(self, request: int, change: ChangeConfig) -> None:
        """Append a configuration with the change; or answer why not, at once."""
        begun = begin_change(self.core, change, self.servers)
        if isinstance(begun, int):
            self._proposals.append(ProposedEntry(begun, request, 0))
        else:
            self._answer(request, Fate.REFUSED, begun)

    def transfer(self, to: int, is_able: Mapping[int, bool], answers: list[ConfigChanged]) -> None:
        """Hand leadership over to member `to`, 0: to the best one; add the answer to `answers`."""
        answers.append(begin_transfer(self.core, to, self.servers, is_able))

    def noted(self, index: int) -> None:
        """The consensus metadata hold the committed configuration at `index`, or a later one, durably."""
        self._noted_index = max(self._noted_index, index)

    def read(self, request: int) -> None:
        """Begin a linearizable read. All reads of a turn share one round of confirmation."""
        if self.core.leadership is None:
            self._answer(request, Fate.NOT_LEADER)
        elif self.reads.waiting >= TABLET_READS_MAX:
            self._answer(request, Fate.BUSY)
        else:
            self.reads.add(request)

    def read_at_least(self, request: int, index: int, now: int) -> None:
        """Begin a read that must see the entry at `index` and may miss later writes. Any replica serves it."""
        if self.reads.waiting >= TABLET_READS_MAX:
            self._answer(request, Fate.BUSY)
        else:
            self.reads.wait_for(request, index, now)

    def read_stale(self, read: StaleRead) -> None:
        """Begin a read that may miss the last writes. Any replica that can prove the age of its rows serves it."""
        if self.reads.waiting >= TABLET_READS_MAX:
            self._answer(read.request, Fate.BUSY)
        elif self.core.leader or self.reads.proves(read.bound_ms, read.now_ms):
            self.reads.add_stale(read)
        else:
            self._answer(read.request, Fate.TOO_STALE)

    def tick(self, now: int) -> bool:
        """Let a tick pass. Return True if `collect` has to hand out something. Runs for each tablet at each tick."""
        core = self.core
        core.tick()
        if self.reads.waiting:
            for request in self.reads.take_late(now):
                self._answer(request, Fate.TOO_STALE)
        if self._committed and (now + self.replica.slot) % APPLY_TICKS == 0:
            self._is_tick_over = True
            if self._can_begin_round():
                return True
        return core.has_ready() or bool(self._out.answers)

    def is_settled(self) -> bool:
        """Return True if the group has no work: every entry is durable and applied, and no request waits."""
        log = self.core.log
        has_work = self._round or self._committed or self._proposals or self.reads.waiting
        is_applied = log.last == log.stable == log.commit == self.applied_index
        return is_applied and not has_work and not self.has_output()

    def peer_gone(self, server: str) -> None:
        """The process on `server` is gone: stop following it as the leader; treat messages in flight to it as lost."""
        for number, each in self.servers.items():
            if each == server and number != self.replica.number:
                self.core.peer_down(number, 1 + RANK_TICKS * self._rank(number))

    def _rank(self, gone: int) -> int:
        """Return how many voters stand for election before this one after the leader `gone` has died."""
        own = self.replica.number
        return sum(voter < own and voter != gone for voter in self.core.configs.current.voters)

    def persisted(self, ready_number: int) -> None:
        """Everything of that Ready and of earlier ones is durable."""
        self.core.persisted(ready_number)

    def applied(self, index: int, values: Sequence[Any]) -> None:
        """The rows hold the round that ends at `index`. `values` has one value for each entry of the round."""
        done, self._round = self._round, []
        assert done, f"nothing of {self.replica.tablet} is being applied, the rows are at {index}"
        assert done[-1].index == index, f"the rows are at {index}, not at {done[-1].index}, the end of the round"
        assert len(values) == len(done), f"{len(values)} results for {len(done)} entries"
        self.applied_index = index
        for entry, value in zip(done, values, strict=True):
            if self._proposals and self._proposals[0].index == entry.index:
                proposal = self._proposals.popleft()
                self._release(proposal.size)
                self._answer(proposal.request, Fate.DONE, value, entry.term, entry.index)

    def steady(self, index: int, floors: list[Floor]) -> None:
        """The rows hold every entry up to `index` durably: raise the slot's floor, so that the log may drop them."""
        log = self.core.log
        term = log.term_at(index)
        if term < 0:
            term = self.memory.term_at(index)
        if index > self._floor and term > 0 and not self._is_config_only_in_log(index):
            self._floor = index
            if index > log.offset:
                self._compact(index, log.floor(index, KEEP_ENTRIES, KEEP_BYTES))
            self.memory.forget_before(index)
            floors.append(Floor(self.replica.slot, self.replica.generation, index, term))

    def _is_config_only_in_log(self, index: int) -> bool:
        """Return True if a floor at `index` would drop the entry of a configuration that is recorded nowhere else."""
        return any(self._noted_index < each <= index for _, each in self.core.configs.ids)

    def evict(self, keep: int) -> None:
        """Remove applied entries except the last `keep` from memory; members that lag get them from the disk."""
        self._compact(self.applied_index, self.core.log.floor(self.applied_index, keep, KEEP_BYTES))

    def _compact(self, index: int, last: int) -> None:
        """Remove the entries up to `last` from memory; `index`, at or after `last`, is applied."""
        core = self.core
        if last > core.log.offset:
            if index > core.log.snapshot.index:
                core.snapshot_saved(core.snapshot_meta(index))
            self.memory.dropped(core.log.between(core.log.offset + 1, last))
            core.compacted(last)

    def loaded(self, member: int, before: Position, entries: list[Entry]) -> None:
        """Send entries after `before`, read back from the disk. Only applied entries are certain not to have
        changed."""
        core = self.core
        lead = core.leadership
        entries = [entry for entry in entries if entry.index <= core.log.offset]
        if lead is not None and member in lead.by_id and entries:
            self._out.messages.append(
                Message(APPEND, core.id, member, core.term, before.index, before.term, core.log.commit, entries=entries)
            )

    def everywhere(self) -> int:
        """Return the index up to which every member is known to have all entries durably.

        The leader learns the index from acknowledgments, the other members from its heartbeats. A log that keeps the
        entries after this index can serve every member, whichever member leads next.
        """
        lead = self.core.leadership
        if lead is not None:
            log = self.core.log
            # This member counts, too: a majority of the others may have committed entries that are not durable here
            # yet.
            held = min(log.stable, log.commit)
            if held > self._everywhere:
                for peer in lead.peers:
                    held = min(held, peer.match)
                self._everywhere = max(self._everywhere, held)
        return self._everywhere

    def hand_over(self, is_able: Mapping[int, bool], handed: list[tuple[str, int]]) -> None:
        """As the leader, transfer leadership to the able member with the longest log, and add it to `handed`."""
        lead = self.core.leadership
        if lead is None:
            return
        best = best_successor(self.core, is_able)
        if best:
            try:
                self.core.transfer_leadership(best)
            except (NotLeader, ProposalDropped):
                return
            handed.append((self.replica.tablet, best))

    def fail(self, why: str) -> None:
        """Stop this replica: it takes part in nothing any more, and all waiting requests are answered."""
        self.failure = self.failure or why
        former, self._out = self._out, GroupOutput()
        self._out.answers = former.answers
        for read in former.reads:
            self._answer(read.request, Fate.FAILED)
        self._give_up(Fate.FAILED)
        for request in self.reads.take_all():
            self._answer(request, Fate.FAILED)
        self._committed.clear()
        self._committed_bytes = 0
        self._round = []

    # --- what leaves --------------------------------------------------------------------------------------------------

    def has_output(self) -> bool:
        """Return True if `collect` would return anything."""
        return (
            bool(self.reads.fresh or self.reads.unproved)
            or self.core.has_ready()
            or self._can_begin_round()
            or bool(self._out.answers)
            or self._config_to_note() is not None
        )

    def collect(self) -> GroupOutput:
        """Return the output that follows from this turn's inputs, each item once."""
        if not self.failure:
            core = self.core
            if self.reads.fresh and core.leadership is not None:
                core.read_index(self.reads.begin_round())
            if self.reads.unproved and core.leader:
                core.read_index(self.reads.begin_question())
            while core.has_ready():
                self._take(core.ready())
            if (config := self._config_to_note()) is not None:
                self._config_index = config.index
                self._out.committed = config
            if self._can_begin_round():
                self._begin_round()
            reads, index = self.reads, self.applied_index
            for request in reads.take_ready(index) if reads.waiting or reads.confirmed else ():
                self._out.reads.append(ReadyRead(self.replica.tablet, request, index, reads.as_of_ms))
        out, self._out = self._out, GroupOutput()
        return out

    def _take(self, r: Ready) -> None:
        if self.tracer is not None:
            self.tracer.ready(self, r)
        out = self._out
        if r.changed and r.role != LEADER:
            # A node that leads again has been a candidate in an earlier Ready.
            self._leadership_ended()
        for m in r.messages:
            if m.kind == SNAPSHOT:
                # The log on the disk may have entries that the memory lacks. The core keeps probing the member
                # meanwhile.
                out.needs_log.append((m.dst, self.core.probe_from(m.dst)))
            elif self._can_wait(m):
                out.patient.append(m)
            else:
                if m.kind == HEARTBEAT:
                    m.match_index = self.everywhere()
                out.messages.append(m)
        out.promises += r.messages_after_persist
        if r.must_persist:
            assert r.snapshot is None, f"a snapshot at {r.snapshot and r.snapshot.index} in a Ready of a tablet"
            self.write_ready = r.number
            self.memory.added(r.entries)
            out.items = _merge(self.replica, out.items, r.hard_state, r.entries)
        for entry in r.committed:
            self._committed.append(entry)
            self._committed_bytes += len(entry.data)
        if r.config_changed:
            self._adopt_servers()
        for state in r.read_states:
            self.reads.confirm(state.context, state.index)
        out.events += r.events

    def _config_to_note(self) -> CommittedConfig | None:
        """Return the newest committed configuration if it was not returned before and its entry is durable here.

        Before that a power cut here may lose an entry that the others have committed, but not the metadata.
        """
        if self.failure or self.core.configs.ids[-1][1] <= self._config_index:
            return None
        found = self.core.committed_config()
        return found if self._config_index < found.index <= self.core.log.stable else None

    def _adopt_servers(self) -> None:
        """Take the servers of the members from the configuration in force."""
        servers = servers_of(self.core.configs.current)
        if servers:
            self.servers = servers
            self.refusals = {number: refusal for number, refusal in self.refusals.items() if number in servers}
            self._out.are_members_changed = True

    def _can_wait(self, m: Message) -> bool:
        """Return True for a commit index, and for a heartbeat, or a reply to one, without new information.

        The first heartbeat of a term and the first one of a read round are sent at once; the others wait for the next
        BEAT. A follower needs the commit index only for its rows, and most appends carry it earlier.
        """
        if m.kind == COMMIT:
            return True
        if m.kind not in (HEARTBEAT, HEARTBEAT_RESP):
            return False
        news = (m.term, m.context)
        key = (m.kind, m.dst)
        if self._beaten.get(key) == news:
            return True
        self._beaten[key] = news
        return False

    def refresh(self, m: Message) -> bool:
        """Update a message that waited for the BEAT. Return False if it is out of date."""
        core = self.core
        if m.term != core.term or self.failure or (m.kind != HEARTBEAT_RESP) != (core.role == LEADER):
            return False
        if m.kind == COMMIT:
            lead = core.leadership
            # A later append may have carried a later index.
            return lead is not None and m.dst in lead.by_id and lead.by_id[m.dst].commit_sent <= m.commit
        if m.kind == HEARTBEAT_RESP:
            # An end of the log older than later acknowledgments would look like a log that has lost entries.
            m.match_index = core.log.last
        else:
            m.match_index = self.everywhere()
        return True

    def _can_begin_round(self) -> bool:
        if self._round or not self._committed or self._committed[0].index > self.core.log.stable:
            return False
        is_awaited = self.core.leadership is not None or self.reads.waiting > 0
        return is_awaited or self._is_tick_over or self._committed_bytes >= FOLLOWER_BYTES

    def _begin_round(self) -> None:
        stable = self.core.log.stable
        size = 0
        committed = self._committed
        while committed and committed[0].index <= stable and len(self._round) < ROUND_ENTRIES_MAX:
            size += len(committed[0].data)
            if size > ROUND_BYTES_MAX and self._round:
                size -= len(committed[0].data)
                break
            self._round.append(committed.popleft())
        self._committed_bytes -= size
        self._is_tick_over = bool(committed)
        self._out.round = self._round

    # --- requests -----------------------------------------------------------------------------------------------------

    def _leadership_ended(self) -> None:
        """Answer the requests that only a leader can finish. The next leader decides whether a proposed entry
        survives."""
        self._give_up(Fate.UNKNOWN)
        for request in self.reads.take_unconfirmed():
            self._answer(request, Fate.NOT_LEADER)

    def _give_up(self, fate: Fate) -> None:
        while self._proposals:
            proposal = self._proposals.popleft()
            self._release(proposal.size)
            self._answer(proposal.request, fate)

    def _release(self, size: int) -> None:
        self._bytes -= size
        self._in_flight.bytes -= size

    def _answer(self, request: int, fate: Fate, value: Any = None, term: int = 0, index: int = 0) -> None:
        leader = 0 if self.failure else self.core.leader
        self._out.answers.append(
            TabletAnswer(self.replica.tablet, request, fate, value, term, index, leader, self.servers.get(leader, ""))
        )


def _merge(
    replica: ReplicaIdentity, before: SlotItems | None, hard_state: HardState | None, entries: list[Entry]
) -> SlotItems:
    """Merge the writes of a Ready with those of earlier Readies of the same turn: one item per slot."""
    if before is None:
        return SlotItems(replica.slot, replica.generation, hard_state, entries)
    merged = list(before.entries)
    if entries and merged:
        # Later entries replace earlier ones from their first index on.
        keep = entries[0].index - merged[0].index
        merged = merged[:keep] if keep > 0 else []
    return SlotItems(replica.slot, replica.generation, hard_state or before.hard_state, [*merged, *entries])
