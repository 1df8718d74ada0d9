"""All tablets of a server in one reactor thread: the turn. Pure: events in, effects out.

    frame() / propose() / read() / tick() / persisted() / applied() / peer_gone()     any number, in any order
    out = take()                                                                      the resulting output

`take` hands out, for the shell to carry out in this order:

    frames     one list of items per peer server: send now
    beats      the BEAT for each peer server, at every other tick: send now
    log        one list of log items, at most one item per slot: write it as one record with one sync; when it and all
               earlier lists are durable, call `persisted(log_number)`
    rounds     per tablet, entries for the rows: apply them in one transaction, then call `applied`
    reads      reads that the rows can answer now
    answers    for clients

Messages that depend on a durable write (votes, acknowledgments) are in no `frames` until `persisted` has named that
write. A Ready without a write of its own waits for the earlier writes of its group, and not for those of other groups.

**One bad tablet harms no other.** An exception inside a group stops that group: the tablet becomes FAILED with the
reason, its requests are answered, and none of its unfinished output is sent. A message with an impossible claim is
dropped and reported; the link stays open, because other tablets use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from coord.errors import InvalidMessage, RemoteProtocolError
from coord.raft.messages import COMMIT, Entry, Message
from coord.storage.shared.items import Floor, Position
from regions.messages.tablets import ChangeConfig, ConfigChanged
from regionserver.tablets.host.beats import BeatOutput, Beats
from regionserver.tablets.host.delivery import (
    ABSENT,
    Ballot,
    Delivery,
    LeadersHeard,
    RefusalLimit,
    ReplicaStanding,
    TombstoneVote,
    decide,
)
from regionserver.tablets.host.envelope import (
    BeatFrame,
    Envelope,
    Header,
    Item,
    Quiet,
    Refusal,
    TurnFrame,
    Word,
)
from regionserver.tablets.host.group import ELECTION_TICKS, KEEP_ENTRIES, Group
from regionserver.tablets.host.members import roles_of
from regionserver.tablets.host.output import HeldWrite, TurnOutput
from regionserver.tablets.host.quiet import QUIET_TICKS, QuietGroups, is_news
from regionserver.tablets.host.requests import Fate, InFlight, StaleRead, TabletAnswer
from regionserver.tablets.host.wanted_copies import CopyWanted, WantedCopies

#: Limit of members that a group keeps: those of its configuration, and senders that it does not have yet.
MEMBERS_KNOWN_MAX: Final = 64


class Turn:
    """The groups of one server. All calls come from one thread."""

    def __init__(
        self,
        cluster: str,
        server: str,
        start_code: int,
        in_flight: InFlight | None = None,
        *,
        reads_quiet: Callable[[str], bool] = lambda _: True,
        quiet_ticks: int = QUIET_TICKS,
    ) -> None:
        """`reads_quiet`: whether the build of a server reads QUIET; `quiet_ticks`: when groups become quiet."""
        self.cluster = cluster
        self.server = server
        self.start_code = start_code
        self.groups: dict[str, Group] = {}
        #: Tablets of which this server holds something that does not run.
        self.resting: dict[str, ReplicaStanding] = {}
        #: Tablets whose replicas are being opened. Messages to them are lost; clients ask another member.
        self.opening: set[str] = set()
        self.beats = Beats()
        self.in_flight = in_flight or InFlight()
        #: Number of the last list of log items that was handed out, and number of the last durable one.
        self.written = 0
        self.durable = 0
        #: Last context of a stale read (`StaleRead.context`). Start codes are milliseconds, and rise.
        self._context = start_code << 20
        self._out = TurnOutput()
        #: Groups with inputs since the last `take`, in the order of the first.
        self._touched: dict[str, Group] = {}
        self._held: deque[HeldWrite] = deque()
        #: Server -> (tablet, kind) -> the message that waits for the next BEAT.
        self._waiting: dict[str, dict[tuple[str, int], tuple[Group, Message]]] = {}
        #: Peer server -> tablets shared with it.
        self._shared: dict[str, dict[str, Group]] = {}
        self._refusals = RefusalLimit()
        self._copies = WantedCopies()
        self._leaders = LeadersHeard(ELECTION_TICKS)
        #: Bytes of the entries in memory, as of the last `bound_memory`.
        self.memory_bytes = 0
        self.quiet = QuietGroups(self.beats, quiet_ticks, reads_quiet, self._send, self._run)

    # --- tablets ------------------------------------------------------------------------------------------------------

    def add(self, group: Group) -> None:
        """Host a group."""
        tablet = group.replica.tablet
        assert tablet not in self.groups, f"tablet {tablet} is hosted already"
        self.groups[tablet] = group
        self.forget(tablet)
        self.opening.discard(tablet)
        self.quiet.added(group)
        self._share(group)
        self._touch(group)

    def forget(self, tablet: str) -> None:
        """Forget a tombstone, because the tablet is hosted again or has no files here any more."""
        self.resting.pop(tablet, None)
        self._leaders.forget(tablet)

    def _share(self, group: Group) -> None:
        """Follow the servers of a group's members."""
        tablet = group.replica.tablet
        for shared in self._shared.values():
            shared.pop(tablet, None)
        for server in group.servers.values():
            if server != self.server:
                self._shared.setdefault(server, {})[tablet] = group
                self.beats.expected(server)

    def remove(self, tablet: str, standing: ReplicaStanding | None = None) -> None:
        """Stop hosting a group. Its waiting requests are answered; `standing` answers messages from now on."""
        group = self.groups[tablet]
        if not group.failure:
            self.quiet.leaves(group)
            group.fail("closed")
        del self.groups[tablet]
        self.quiet.removed(tablet)
        self._out.answers += group.collect().answers
        self._touched.pop(tablet, None)
        for shared in self._shared.values():
            shared.pop(tablet, None)
        if standing is not None:
            self.resting[tablet] = standing

    def _touch(self, group: Group) -> None:
        self._touched[group.replica.tablet] = group

    def _run(self, group: Group, what: Callable[..., object], *arguments: object) -> None:
        """Do something with a group that runs; an exception parks it."""
        if group.failure:
            return
        self._touch(group)
        try:
            what(*arguments)
        except Exception as error:
            self._park_for(group, error)

    def _park_for(self, group: Group, error: Exception) -> None:
        self.park(group.replica.tablet, f"{type(error).__name__}: {error}")

    def park(self, tablet: str, why: str) -> None:
        """Make a tablet FAILED, because its rows are damaged or its code has failed. Other tablets continue."""
        group = self.groups[tablet]
        if not group.failure:
            self.quiet.leaves(group)
            group.fail(why)
            self.quiet.removed(tablet)
            self._out.failed.append((tablet, why))
            self._touch(group)

    # --- frames -------------------------------------------------------------------------------------------------------

    def frame(self, server: str, frame: TurnFrame | BeatFrame) -> None:
        """Process a frame that came over the link to or from `server`, whose identity the link has checked. Raise
        RemoteProtocolError for a frame in another server's name; then nothing has changed."""
        header = frame.header
        if header.sender != server or server == self.server:
            raise RemoteProtocolError(f"server {server} sent a frame in the name of {header.sender}")
        if not self.introduced(server, header.start_code):
            return
        is_named_right = header.cluster == self.cluster and header.recipient == self.server
        if isinstance(frame, BeatFrame):
            if is_named_right and self.beats.beat(
                server, frame.number, disk_answers=frame.disk_answers, is_full=frame.is_full
            ):
                self._peer_is_gone(server)
            for envelope in frame.heartbeats:
                self._deliver(server, envelope, is_named_right)
            return
        for item in frame.items:
            if isinstance(item, Envelope):
                self._deliver(server, item, is_named_right)
            elif not is_named_right:
                continue
            elif isinstance(item, Quiet):
                self.quiet.received(self.groups.get(item.tablet), server, item)
            else:
                self._take_refusal(server, item)

    def introduced(self, server: str, start_code: int) -> bool:
        """Note the process on `server`, by a hello or a frame. Return False for a process that was replaced."""
        is_new = self.beats.introduced(server, start_code)
        if is_new:
            # A process that restarted quickly leads nothing, even if its former process did.
            self._peer_is_gone(server)
        return is_new is not None

    def _deliver(self, server: str, envelope: Envelope, is_named_right: bool) -> None:
        """Pass a message to its replica, or refuse the message, by the table of deliveries."""
        tablet = envelope.tablet
        m = envelope.message
        group = self.groups.get(tablet)
        if group is None:
            if tablet in self.opening:
                return
            standing = self.resting.get(tablet, ABSENT)
            if standing.may_vote and is_named_right and m.dst == standing.number and self._vote(server, tablet, m):
                return
        else:
            # A number that the configuration gives to another server is a copied directory, or a forgery.
            known = group.servers.get(m.src)
            if known is None:
                self._meet(group, server, m)
            is_named_right = is_named_right and (known is None or known == server)
            if is_named_right and m.dst == group.replica.number and not group.failure:
                # The row "ready" of the table, which nearly every message meets.
                if tablet not in self.quiet.awake and is_news(group, m):
                    self.quiet.wake(group, by=server)
                self._step(group, server, m)
                return
            standing = group.standing()
        rule = decide(Delivery(is_named_right, m.dst, m.term), standing)
        assert rule.word is not None, f"{tablet} is ready and has no group"
        if rule.is_answered:
            self._refuse(server, tablet, m, rule.word, standing)

    def _vote(self, server: str, tablet: str, m: Message) -> bool:
        """Answer a vote request for a tombstone. Return False if the message is none."""
        standing = self.resting[tablet]
        ballot, answer = self._leaders.answer(tablet, m, standing, self.beats.now)
        if answer is None:
            self._leaders.note(tablet, server, m, standing, self.beats.now)
            return False
        if ballot is Ballot.PROMISE:
            # From now on no other candidate of this term gets a vote, whatever becomes of the write.
            self.resting[tablet] = replace(standing, term=m.term, vote=m.src)
            self._out.votes.append(TombstoneVote(tablet, server, answer))
        else:
            self._send(server, Envelope(tablet, answer))
        return True

    def voted(self, vote: TombstoneVote) -> None:
        """The consensus metadata hold the vote durably: send it, if the replica is a tombstone still."""
        standing = self.resting.get(vote.tablet, ABSENT)
        if standing.may_vote and (standing.term, standing.vote) == (vote.term, vote.vote):
            self._send(vote.server, Envelope(vote.tablet, vote.answer))

    def _meet(self, group: Group, server: str, m: Message) -> None:
        """Record the server of a member that the configuration does not have (yet), because replies must reach this
        server. A new member may be a candidate, or lead, before its entry has arrived here."""
        if len(group.servers) < MEMBERS_KNOWN_MAX and m.src != group.replica.number:
            group.servers[m.src] = server
            self._shared.setdefault(server, {})[group.replica.tablet] = group

    def _step(self, group: Group, server: str, m: Message) -> None:
        """Give a message to a group, as `_run` does; without output, as most answers to heartbeats are, the group stays
        untouched."""
        try:
            group.step(m)
            if group.has_output():
                self._touch(group)
        except InvalidMessage as error:
            self._out.rejected.append((group.replica.tablet, server, str(error)))
        except Exception as error:
            self._park_for(group, error)

    def _refuse(self, server: str, tablet: str, m: Message, word: Word, standing: ReplicaStanding) -> None:
        if not self._refusals.is_due((tablet, server, word, m.dst), self.beats.now):
            return
        if word is Word.INVALID_NAME:
            # A sender that does not know our name gets no other information either.
            standing = ABSENT
        memory = (standing.term, standing.last_index, standing.last_term, standing.progress)
        self._send(server, Refusal(tablet, word, standing.number, m.src, *memory))

    def _take_refusal(self, server: str, refusal: Refusal) -> None:
        group = self.groups.get(refusal.tablet)
        if group is not None and refusal.dst == group.replica.number:
            self.quiet.wake(group, by=server)
            for number, each in group.servers.items():
                if each == server:
                    group.refused(number, refusal)
                    if (ended := group.later_term(number, refusal)) is not None:
                        self._step(group, server, ended)
                    if group.core.leadership is not None and not group.failure:
                        seen = (refusal.src, refusal.last_term, refusal.last_index)
                        self._want_copy(group, number, refusal.word, *seen)

    def _want_copy(self, group: Group, number: int, word: Word | None, *seen: int) -> None:
        """Ask for a copy to a member if it may be copied and no question is open; `seen` as in `CopyWanted`."""
        tablet, role = group.replica.tablet, roles_of(group.core.configs.current).get(number)
        if role is not None and self._copies.is_due(tablet, number, word, role, self.beats.now):
            server, term = group.servers[number], group.core.term
            self._out.copies.append(CopyWanted(tablet, number, server, role, term, word, *seen))

    def lacks_log(self, tablet: str, number: int, first: int) -> None:
        """A member needs the entry `first`, which this leader's log has dropped: ask its server for a copy."""
        group = self.groups.get(tablet)
        if group is not None and not group.failure and group.core.leadership is not None and number in group.servers:
            group.core.leadership.probe_end(number)
            self._want_copy(group, number, None, 0, 0, 0, first)

    def copy_answered(self, tablet: str, number: int) -> None:
        """A member's server has answered a question for a copy, or will not."""
        self._copies.answered(tablet, number, self.beats.now)

    # --- clients ------------------------------------------------------------------------------------------------------

    def propose(self, tablet: str, request: int, payload: bytes) -> None:
        """A client writes."""
        group = self._group_for(tablet, request)
        if group is not None:
            self._request(group, request, group.propose, request, payload)

    def change_config(self, tablet: str, request: int, change: ChangeConfig) -> None:
        """A master or an operator changes the members."""
        group = self._group_for(tablet, request)
        if group is not None:
            self._request(group, request, group.change_config, request, change)

    def transfer(self, tablet: str, to: int) -> ConfigChanged | None:
        """Hand the leadership of a tablet over. Return the answer, None if no replica runs here."""
        group = self.groups.get(tablet)
        answers: list[ConfigChanged] = []
        if group is not None:
            self.quiet.wake(group)
            self._run(group, group.transfer, to, self._able(group), answers)
        return answers[0] if answers else None

    def noted(self, tablet: str, index: int) -> None:
        """The consensus metadata of a tablet hold the committed configuration at `index`, or a later one."""
        group = self.groups.get(tablet)
        if group is not None:
            group.noted(index)

    def read(self, tablet: str, request: int) -> None:
        """Read the latest rows for a client."""
        group = self._group_for(tablet, request)
        if group is not None:
            self._request(group, request, group.read, request)

    def read_at_least(self, tablet: str, request: int, index: int) -> None:
        """A client reads a state that holds the entry at `index`."""
        group = self._group_for(tablet, request)
        if group is not None:
            self._request(group, request, group.read_at_least, request, index, self.beats.now)

    def read_stale(self, tablet: str, request: int, bound_ms: int, now_ms: int) -> None:
        """Handle a client's read of rows that may miss the writes of the last `bound_ms`. `now_ms` is by this server's
        clock, which never goes back. A quiet group that can prove the age of its rows remains quiet."""
        group = self._group_for(tablet, request)
        if group is not None:
            if not group.reads.proves(bound_ms, now_ms):
                self.quiet.wake(group)
            self._context += 1
            read = StaleRead(request, bound_ms, now_ms, self.beats.now, self._context)
            self._give(group, request, group.read_stale, read)

    def _request(self, group: Group, request: int, what: Callable[..., object], *arguments: object) -> None:
        """Wake a group that runs, and give it a request."""
        self.quiet.wake(group)
        self._give(group, request, what, *arguments)

    def _give(self, group: Group, request: int, what: Callable[..., object], *arguments: object) -> None:
        """Pass a request to a running group. A group that fails has not recorded the request, so answer it here."""
        self._run(group, what, *arguments)
        if group.failure:
            self._out.answers.append(TabletAnswer(group.replica.tablet, request, Fate.FAILED))

    def _group_for(self, tablet: str, request: int) -> Group | None:
        group = self.groups.get(tablet)
        if group is not None and not group.failure:
            return group
        if tablet in self.opening:
            fate = Fate.NOT_LEADER
        else:
            fate = Fate.DOES_NOT_EXIST if group is None and tablet not in self.resting else Fate.FAILED
        self._out.answers.append(TabletAnswer(tablet, request, fate))
        return None

    # --- time, disk, rows, peers --------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let a tick of TICK_MS pass."""
        for server in self.beats.tick():
            self._peer_is_gone(server)
        now = self.beats.now
        for server in self.beats.take_returned():
            for group in self._shared.get(server, {}).values():
                self.quiet.returned(group)
        for tablet in self.quiet.take_due():
            self.quiet.wake(self.groups[tablet])
        for group in list(self.quiet.awake.values()):
            if not group.failure:
                self._tick(group, now)

    def _tick(self, group: Group, now: int) -> None:
        try:
            if group.tick(now):
                self._touch(group)
            self.quiet.look(group)
        except Exception as error:
            self._park_for(group, error)

    def persisted(self, number: int) -> None:
        """The lists of log items up to `number` are durable."""
        assert number <= self.written, f"write {number} is durable, handed out are {self.written}"
        self.durable = max(self.durable, number)
        while self._held and self._held[0].number <= number:
            held = self._held.popleft()
            for group, ready in held.readies:
                if self._is_hosted(group):
                    self._run(group, group.persisted, ready)
            for group, promises in held.promises:
                if self._is_hosted(group):
                    self._dispatch(group, promises)

    def applied(self, tablet: str, index: int, values: Sequence[Any]) -> None:
        """The rows of a tablet hold its round, which ends at `index`; one value per entry."""
        group = self.groups.get(tablet)
        if group is not None:
            self._run(group, group.applied, index, values)

    def steady(self, tablet: str, index: int) -> Floor | None:
        """The rows of a tablet hold everything up to `index` durably. Return the floor for the log."""
        group = self.groups.get(tablet)
        floors: list[Floor] = []
        if group is not None:
            self._run(group, group.steady, index, floors)
        return floors[0] if floors else None

    def loaded(self, tablet: str, member: int, before: Position, entries: list[Entry]) -> None:
        """Handle entries that were read back for a member: those after `before`."""
        group = self.groups.get(tablet)
        if group is not None:
            self._run(group, group.loaded, member, before, entries)

    def bound_memory(self, limit: int, keep: int = KEEP_ENTRIES) -> None:
        """If all logs exceed `limit` bytes, drop applied entries from memory, all but `keep` of each, largest first."""
        self.memory_bytes = sum(group.memory.bytes for group in self.groups.values())
        if self.memory_bytes <= limit:
            return
        for group in sorted(self.groups.values(), key=lambda each: -each.memory.bytes):
            if self.memory_bytes <= limit // 2:
                return
            before = group.memory.bytes
            self._run(group, group.evict, keep)
            self.memory_bytes -= before - group.memory.bytes

    def peer_gone(self, server: str, start_code: int) -> None:
        """The connection to that process broke."""
        if self.beats.lost(server, start_code):
            self._peer_is_gone(server)

    def disk(self, *, answers: bool) -> None:
        """Note whether a write to this server's log takes longer than it may. BEATs say so, and leaderships go."""
        was_answering, self.beats.disk_answers = self.beats.disk_answers, answers
        if was_answering and not answers:
            self.hand_over()

    def full(self, *, is_full: bool) -> None:
        """Record whether the disk has room for writes. If not, BEATs report it, and leaderships are handed over."""
        self.beats.is_full = is_full
        for group in self.groups.values() if is_full else ():
            lead = group.core.leadership
            if lead is not None and not lead.transferee:
                self.quiet.wake(group)
                self._run(group, group.hand_over, self._able(group), [])

    def hand_over(self) -> list[tuple[str, int]]:
        """Transfer all leaderships to members that can lead. Return (tablet, member) for each."""
        handed: list[tuple[str, int]] = []
        for group in self.groups.values():
            if group.core.leadership is not None:
                self.quiet.wake(group)
                self._run(group, group.hand_over, self._able(group), handed)
        return handed

    def _able(self, group: Group) -> dict[int, bool]:
        return {number: self.beats.may_lead(server) for number, server in group.servers.items()}

    def _peer_is_gone(self, server: str) -> None:
        """Groups whose leader was there forget it and stand for election within 4 ticks."""
        self._leaders.gone(server)
        for tablet, group in self._shared.get(server, {}).items():
            if tablet in self.quiet.awake:
                self._run(group, group.peer_gone, server)
            elif not group.failure:
                self.quiet.lost(group, server)

    def _is_hosted(self, group: Group) -> bool:
        return self.groups.get(group.replica.tablet) is group and not group.failure

    # --- the turn -----------------------------------------------------------------------------------------------------

    def take(self) -> TurnOutput:
        """Return the output that follows from the inputs since the last call."""
        held = HeldWrite(self.written + 1)
        while self._touched:
            touched, self._touched = self._touched, {}
            for group in touched.values():
                self._collect(group, held)
        if self._out.log:
            self.written = self._out.log_number = held.number
            self._held.append(held)
        if self.beats.is_due() and self.beats.sent < self.beats.now:
            self._beat()
        out, self._out = self._out, TurnOutput()
        return out

    def _collect(self, group: Group, held: HeldWrite) -> None:
        try:
            got = group.collect()
        except Exception as error:
            self._park_for(group, error)
            got = group.collect()
            self._touched.pop(group.replica.tablet, None)
        out = self._out
        tablet = group.replica.tablet
        if got.are_members_changed:
            self._share(group)
        if got.committed is not None:
            out.configs.append((tablet, got.committed))
        if got.messages:
            self._dispatch(group, got.messages)
        for m in got.patient:
            server = group.servers.get(m.dst)
            if server is not None:
                self._waiting.setdefault(server, {})[tablet, m.kind] = (group, m)
        if got.items is not None:
            out.log.append(got.items)
            group.write_number = held.number
            held.readies.append((group, group.write_ready))
        if got.promises:
            self._hold(group, got.promises, held)
        if got.round:
            out.rounds[tablet] = got.round
        out.answers += got.answers
        out.reads += got.reads
        if got.events:
            out.events += [(tablet, event) for event in got.events]
        if got.needs_log:
            out.needs_log += [(tablet, member, index) for member, index in got.needs_log]

    def _hold(self, group: Group, promises: list[Message], held: HeldWrite) -> None:
        """Hold promises back until the last write of their group is durable."""
        number = group.write_number
        if number <= self.durable:
            self._dispatch(group, promises)
        elif number == held.number:
            held.promises.append((group, promises))
        else:
            next(each for each in self._held if each.number == number).promises.append((group, promises))

    def _dispatch(self, group: Group, messages: list[Message]) -> None:
        for m in messages:
            server = group.servers.get(m.dst)
            if server is not None:
                self._send(server, Envelope(group.replica.tablet, m))

    def _send(self, server: str, item: Item) -> None:
        self._out.frames.setdefault(server, []).append(item)

    def _beat(self) -> None:
        """Output a BEAT for each peer server, with the heartbeats that waited for it."""
        self.beats.sent = self.beats.now
        waiting, self._waiting = self._waiting, {}
        for server in self._shared:
            rows: list[Envelope] = []
            for group, m in waiting.get(server, {}).values():
                if self._is_hosted(group) and group.replica.tablet in self.quiet.awake and group.refresh(m):
                    if m.kind == COMMIT:
                        self._send(server, Envelope(group.replica.tablet, m))
                    else:
                        rows.append(Envelope(group.replica.tablet, m))
            self._out.beats[server] = BeatOutput(self.beats.now, self.beats.disk_answers, self.beats.is_full, rows)

    def header(self, recipient: str) -> Header:
        """Return the header of frames for a server."""
        return Header(self.cluster, self.server, self.start_code, recipient)
