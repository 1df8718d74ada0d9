"""Invariants of one tablet over all servers, checked after each event that concerns them.

Elections, log matching, commits and the history of applied entries are those of bare Raft groups
(`simulation.checks.raft_group`). In addition: rows and results are equal at equal indexes; a write happens once;
acknowledged writes exist; promises are durable when they are sent, and are never withdrawn; a counted vote was really
cast; a number that lost its memory serves no request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from coord.raft.core import RaftCore
from coord.raft.membership import decode_configuration
from coord.raft.messages import APPEND_RESP, NORMAL, PRE_VOTE_RESP, VOTE, VOTE_RESP, Entry, HardState, Message, Ready
from regionserver.tablets.commands import CONDITION_FAILED, DONE, KvCommand, SealCommand, WriteOutcome, decode
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.host.group import Group
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.values.seals import Seal, seal_after
from simulation.checks.linearizable import KeyOperation, objection
from simulation.checks.raft_group import Checker
from simulation.engine.history import Violation
from simulation.tablets.server import SimServer
from simulation.tablets.storage.rows import Fingerprint, RowsImage


class SimMember:
    """One replica, in the form that the checks of Raft groups need."""

    def __init__(self, tablet: str, number: int, server: SimServer) -> None:
        self.id = number
        self.tablet = tablet
        self.server = server
        self.commit = 0
        self.applied = 0
        self.state = 0
        #: True if this number has lost its memory: it must not promise or serve anything any more.
        self.is_burned = False

    def core_now(self) -> RaftCore:
        """Return the core of a replica that runs."""
        assert self.server.turn is not None, f"{self.server.name} is down"
        return self.server.turn.groups[self.tablet].core

    def holds(self, index: int, term: int, memory: int) -> bool:
        """Return True if the entry is durable here, or was until it was lost."""
        del memory
        slot = self.server.slot_of(self.tablet, self.id)
        return slot is not None and slot.holds(index, term)


class TabletChecker:
    """The observed history of one tablet. Also the tracer of its groups."""

    def __init__(self, tablet: str, members: dict[int, SimMember], now: Callable[[], int]) -> None:
        self.tablet = tablet
        self.now = now
        self.members = members
        self.raft = Checker()
        #: Index -> digests of the rows after it.
        self.fingerprints: dict[int, Fingerprint] = {}
        #: (writer, number) -> index of the entry that was carried out.
        self.executed: dict[tuple[str, int], int] = {}
        #: (writer, number) -> time at which a replica first carried the entry out, and the code.
        self.fates: dict[tuple[str, int], tuple[int, int]] = {}
        #: Acknowledged writes: (writer, number, index).
        self.acknowledged: list[tuple[str, int, int]] = []
        #: Key -> (number of the write or 0, the operation from its client's view).
        self.history: dict[str, list[tuple[int, KeyOperation]]] = {}
        self.reads = 0
        #: Times at which the highest index that is committed anywhere rose, and these indexes.
        self._commit_times: list[int] = []
        self._commits: list[int] = []
        #: Number -> term and vote as they were last seen on the disk.
        self.promised: dict[int, HardState] = {}
        #: Every vote that was cast: (number, term, vote).
        self.cast: set[tuple[int, int, int]] = set()
        #: The seal after the last entry that a replica has applied; the sealed rows, and their clock.
        self.seal = Seal()
        self.sealed_rows: dict[bytes, bytes] = {}
        self.sealed_ms = 0
        #: The rows with which the replicas of a daughter begin, and the index of their last entry.
        self.inherited: dict[bytes, bytes] | None = None
        self.first_index = 0

    def begin_after(self, parents: Sequence[tuple[TabletChecker, int]], start: bytes, end: bytes) -> None:
        """Let the history of a daughter begin behind the seals of its parents, each with its index. Raise Violation."""
        self.inherited = {}
        for parent, index in parents:
            if (parent.seal.is_set, parent.seal.index) != (True, index):
                raise Violation(
                    f"{self.tablet} begins behind {index}, and the seal of {parent.tablet} is {parent.seal}"
                )
            rows = parent.sealed_rows.items()
            self.inherited |= {key: value for key, value in rows if start <= key and (not end or key < end)}
        raft, index, term = self.raft, max(at for _, at in parents), max(one.seal.term for one, _ in parents)
        parent = next(one for one, at in parents if at == index)
        raft.states = [parent.raft.states[index]] * (index + 1)
        raft.commit, raft.commit_term, raft.committed[index] = index, term, term
        self.first_index = index
        # A write happens once, in the parent or in a daughter; clients have one history of a key.
        self.executed, self.fates = parent.executed, parent.fates

    # --- what replicas do

    def ready(self, group: Group, ready: Ready) -> None:
        """See `GroupTracer`."""
        number = group.replica.number
        if ready.hard_state is not None and ready.hard_state.vote:
            self.cast.add((number, ready.hard_state.term, ready.hard_state.vote))
        self.raft.on_ready(self.members[number], ready, self.members)
        if self.raft.commit > self.committed_at(self.now()):
            self._commit_times.append(self.now())
            self._commits.append(self.raft.commit)

    def committed_at(self, time: int) -> int:
        """Return the highest index that was committed anywhere at a time, 0 before the first one."""
        place = bisect_right(self._commit_times, time)
        return self._commits[place - 1] if place else 0

    def on_found(self, server: str, replica: TabletReplica) -> None:
        """Handle the findings of a start about a tablet on a server."""
        number = replica.number
        if replica.run is RunState.LOST and number in self.members and not self.members[number].is_burned:
            raise Violation(f"{number} of {self.tablet} on {server} has lost its memory by itself: {replica.reason}")
        self.on_promise(number)

    def on_promise(self, number: int) -> None:
        """Check the durable term and vote of a member: they never go back, and the vote was cast."""
        member = self.members.get(number)
        if member is None or member.is_burned:
            return
        old, new = self.promised.get(number, HardState(0, 0)), member.server.promises_of(self.tablet, number)
        if new.term < old.term or (new.term == old.term and old.vote not in (0, new.vote)):
            raise Violation(
                f"{number} of {self.tablet} goes from term {old.term}, vote {old.vote} to term {new.term}, vote"
                f" {new.vote}"
            )
        if new.vote and (number, new.term, new.vote) not in self.cast:
            raise Violation(f"{number} of {self.tablet} has a vote that it never cast: {new.vote} in term {new.term}")
        self.promised[number] = HardState(new.term, new.vote)

    def on_start(self, number: int, rows: RowsImage) -> None:
        """Handle the start of a replica with these rows."""
        index = rows.index
        member = self.members[number]
        self._must_count(member, "starts")
        if self.inherited is not None and index == self.first_index and rows.rows != self.inherited:
            raise Violation(f"{number} of {self.tablet} begins with {rows.rows}; sealed were {self.inherited}")
        fingerprint = rows.fingerprint()
        if self.fingerprints.setdefault(index, fingerprint) != fingerprint:
            raise Violation(f"{number} of {self.tablet} starts with rows that differ from another replica's at {index}")
        if index >= len(self.raft.states):
            raise Violation(f"{number} of {self.tablet} starts at {index}, which nobody has applied")
        member.commit = member.applied = index
        member.state = self.raft.states[index]

    def on_round(
        self, number: int, entries: Sequence[Entry], outcomes: Sequence[WriteOutcome], rows: RowsImage
    ) -> None:
        """Handle a round of entries that a replica has applied to its rows."""
        member = self.members[number]
        self._must_count(member, "applies entries")
        for entry, outcome in zip(entries, outcomes, strict=True):
            is_first = entry.index == len(self.raft.states)
            self.raft.on_apply(member, entry)
            if is_first and entry.kind == NORMAL and outcome.index == entry.index:
                self._executed(entry, outcome)
            if is_first and entry.kind == NORMAL:
                self._see_seal(entry, rows)
        fingerprint = rows.fingerprint()
        if self.fingerprints.setdefault(rows.index, fingerprint) != fingerprint:
            raise Violation(f"rows of {number} of {self.tablet} differ from another replica's at {rows.index}")

    def _see_seal(self, entry: Entry, rows: RowsImage) -> None:
        command = decode(entry.data)
        if not isinstance(command, SealCommand):
            return
        was_sealed = self.seal.is_set
        self.seal, _ = seal_after(self.seal, command, entry.term, entry.index)
        if self.seal.is_set and not was_sealed:
            self.sealed_rows = dict(rows.rows)
            self.sealed_ms = rows.totals.clock_ms

    def _executed(self, entry: Entry, outcome: WriteOutcome) -> None:
        if outcome.code not in (DONE, CONDITION_FAILED):
            return
        command = decode(entry.data)
        if not isinstance(command, KvCommand):
            return
        if self.seal.is_set:
            raise Violation(f"{self.tablet} carries the write at {entry.index} out behind its seal {self.seal}")
        name = (command.writer, command.number)
        before = self.executed.setdefault(name, entry.index)
        self.fates.setdefault(name, (self.now(), outcome.code))
        if before != entry.index:
            raise Violation(f"write {name} of {self.tablet} happened at {before} and again at {entry.index}")

    def on_sent(self, m: Message) -> None:
        """Handle a message of a replica that leaves its server."""
        member = self.members[m.src]
        if m.kind in (VOTE, VOTE_RESP, PRE_VOTE_RESP, APPEND_RESP) and (m.granted or m.kind == VOTE):
            self._must_count(member, f"sends a message of kind {m.kind}")
        if m.kind == PRE_VOTE_RESP or not (m.granted or m.kind == VOTE):
            return
        slot = member.server.slot_of(self.tablet, m.src)
        assert slot is not None, f"{m.src} of {self.tablet} promises something and has no slot"
        durable = member.server.promises_of(self.tablet, m.src)
        if m.kind == APPEND_RESP:
            if slot.last().index < m.match_index and durable.term <= m.term:
                raise Violation(
                    f"{m.src} of {self.tablet} acknowledges {m.match_index}, its disk holds {slot.last().index}"
                )
            return
        voted = m.dst if m.kind == VOTE_RESP else m.src
        if durable.term < m.term or (durable.term == m.term and durable.vote != voted):
            raise Violation(
                f"{m.src} of {self.tablet} votes for {voted} in term {m.term}; durable is term {durable.term},"
                f" vote {durable.vote}"
            )
        self.on_promise(m.src)
        if m.kind == VOTE_RESP:
            self.raft.on_vote(m)

    def _must_count(self, member: SimMember, what: str) -> None:
        if member.is_burned:
            raise Violation(f"{member.id} of {self.tablet} {what} although it has lost its memory")

    # --- what clients receive

    def on_write_done(self, number: int, writer: str, write: int, index: int, answered_at: int) -> None:
        """Handle the answer of a server that a write was done at `index`; a repetition has the entry `answered_at`."""
        self._must_count(self.members[number], "answers a write")
        config = next((data for at, data in reversed(self.raft.configs) if at <= answered_at), b"")
        if config and number not in decode_configuration(config).voters:
            raise Violation(f"{number} of {self.tablet} answers the write at {answered_at} and is no voter there")
        if self.seal.is_set and index > self.seal.index:
            raise Violation(f"{number} of {self.tablet} acknowledges the write at {index} behind {self.seal}")
        self.acknowledged.append((writer, write, index))

    def on_read_served(self, number: int, applied: int, floor: int) -> None:
        """Handle a server's answer from rows at `applied`; `floor` is the lowest index that the read may see."""
        self._must_count(self.members[number], "answers a read")
        self.reads += 1
        if applied < floor:
            raise Violation(f"{number} of {self.tablet} answers a read at {applied} that must see {floor}")

    def on_operation(self, key: str, number: int, operation: KeyOperation) -> None:
        """Handle the end of a client's operation, or its abandonment."""
        self.history.setdefault(key, []).append((number, operation))

    def _operations(self, key: str) -> list[KeyOperation]:
        """Return the operations on a key. The outcome of writes whose clients gave up comes from the log.

        A write is visible from the moment at which some replica applied its entry. A write without an entry never
        happened: a read that sees its value is a violation.
        """
        operations = []
        for number, each in self.history[key]:
            fate = self.fates.get((each.client, number))
            if each.answered is not None:
                operations.append(each)
            elif fate is not None:
                operations.append(replace(each, answered=max(fate[0], each.invoked), succeeded=fate[1] == DONE))
        return operations

    def at_the_end(self) -> None:
        """Check the invariants of the whole history."""
        self.raft.at_the_end()
        for writer, number, index in self.acknowledged:
            if self.executed.get((writer, number)) != index:
                raise Violation(f"acknowledged write {number} of {writer} at {index} of {self.tablet} is missing")
        for key in self.history:
            why = objection(self._operations(key))
            if why:
                raise Violation(f"key {key} of {self.tablet}: {why}")
