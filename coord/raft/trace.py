"""Raft events as nodes report them, and a small model that checks whether the events of a group are consistent.

A traced node reports each Ready before any effect of it leaves the node, and the promises that it sends. An event is a
list whose first item is its name:

    start    node term vote snapshot_index offset offset_term runs is_new    state of the disk; runs: [term, count]…
    role     term role leader                  the node's new role (`messages.FOLLOWER` …; leader 0: unknown)
    term     term vote                         passed to the disk
    append   first previous_term [term crc]…   replaces the log from `first` on
    install  index term                        a snapshot replaces the whole log
    commit   index
    config   index text                        in force
    vote     term to                           a granted vote leaves the node; or its request for votes, `to` itself
    ack      index                             an acknowledgment leaves the node: it has everything up to here

`TraceModel` takes the events of any number of nodes. The events of one node must be in order. Those of different nodes
may be interleaved in any way, so the files of a cluster can be read one after the other. The model checks:

- one leader per term, one vote of a node per term, terms and commit indexes that never decrease (Raft §5.2);
- log matching: index and term determine content and predecessor on every node (§5.3);
- committed entries are the same on all nodes and are never replaced (§5.4.3);
- the leader of a term had, when it was elected, all entries that were committed in earlier terms (§5.4);
- a restarted node keeps its promises: its votes, and a log at least as good as the one it acknowledged.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final
from zlib import crc32

from coord.raft.core import RaftCore
from coord.raft.messages import APPEND_RESP, LEADER, VOTE, VOTE_RESP, Message, Ready

Event = list[Any]

START: Final = "start"
ROLE: Final = "role"
TERM: Final = "term"
APPEND: Final = "append"
INSTALL: Final = "install"
COMMIT: Final = "commit"
CONFIG: Final = "config"
VOTED: Final = "vote"
ACK: Final = "ack"


class TraceViolation(Exception):  # noqa: N818 - it names what was violated
    """The events cannot come from a correct Raft group."""


# --- events of a node -------------------------------------------------------------------------------------------------


def started(core: RaftCore, *, is_new: bool) -> Event:
    """Return the event of a `core` that was made from the disk. `is_new`: an earlier node with the same id made
    promises that this disk does not have."""
    log = core.log
    runs: list[list[int]] = []
    for entry in log.entries:
        if runs and runs[-1][0] == entry.term:
            runs[-1][1] += 1
        else:
            runs.append([entry.term, 1])
    return [START, core.id, core.term, core.vote, log.snapshot.index, log.offset, log.offset_term, runs, is_new]


class Recorder:
    """Turns the Readies and messages of one node into events."""

    def __init__(self) -> None:
        self._commit = -1
        self._acked = 0
        self._stood = 0

    def ready(self, core: RaftCore, ready: Ready) -> list[Event]:
        """Return the events of a Ready, before the shell processes it."""
        events: list[Event] = []
        if ready.snapshot is not None:
            events.append([INSTALL, ready.snapshot.index, ready.snapshot.term])
            self._commit = max(self._commit, ready.snapshot.index)
        if ready.hard_state is not None:
            events.append([TERM, ready.hard_state.term, ready.hard_state.vote])
        if ready.entries:
            first = ready.entries[0].index
            contents = [[entry.term, crc32(entry.data, entry.kind)] for entry in ready.entries]
            events.append([APPEND, first, core.log.term_at(first - 1), contents])
        if ready.changed:
            # After the entries: some may have come from another leader in the turn in which this node was elected.
            events.append([ROLE, ready.term, ready.role, ready.leader])
        if ready.config_changed:
            events.append([CONFIG, core.configs.newest_index(), str(core.configs.current)])
        if ready.commit > self._commit:
            self._commit = ready.commit
            events.append([COMMIT, ready.commit])
        return events

    def sent(self, messages: list[Message]) -> list[Event]:
        """Return the events of messages that leave, if they carry promises."""
        events: list[Event] = []
        for message in messages:
            if message.kind == VOTE:
                if message.term > self._stood:
                    self._stood = message.term
                    events.append([VOTED, message.term, message.src])
            elif not message.granted:
                continue
            elif message.kind == VOTE_RESP:
                events.append([VOTED, message.term, message.dst])
            elif message.kind == APPEND_RESP and message.match_index > self._acked:
                self._acked = message.match_index
                events.append([ACK, message.match_index])
        return events


# --- the model --------------------------------------------------------------------------------------------------------


class _Replica:
    """The state of one node as derived from its events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = False
        self.term = 0
        self.vote = 0
        self.role = 0
        self.offset = 0
        self.offset_term = 0
        #: Terms of the entries after `offset`.
        self.terms: list[int] = []
        self.commit = 0
        #: Term -> the node that it voted for, over all its processes.
        self.votes: dict[int, int] = {}
        #: (term, index) of the best log it has acknowledged.
        self.promised = (0, 0)

    def last(self) -> int:
        return self.offset + len(self.terms)

    def last_term(self) -> int:
        return self.terms[-1] if self.terms else self.offset_term

    def term_at(self, index: int) -> int:
        """Return the term of the entry at `index`, -1 if it is compacted or beyond the end."""
        if index == self.offset:
            return self.offset_term
        return self.terms[index - self.offset - 1] if self.offset < index <= self.last() else -1


class _Election:
    """A leader and the log with which it began."""

    def __init__(self, replica: _Replica) -> None:
        self.replica = replica.name
        self.node_log = (replica.offset, replica.terms.copy())

    def term_at(self, index: int) -> int:
        """Return the term of the entry at `index`: -1 if it is compacted and so was committed, 0 beyond the end."""
        offset, terms = self.node_log
        if index <= offset:
            return -1
        return terms[index - offset - 1] if index - offset <= len(terms) else 0


class TraceModel:
    """The state of a group as derived from the events of all its nodes."""

    def __init__(self) -> None:
        #: Name of the event -> how many were taken.
        self.counts: Counter[str] = Counter()
        self._replicas: dict[int, _Replica] = {}
        self._elections: dict[int, tuple[int, _Election]] = {}
        #: (index, term) -> (checksum, term of the entry before)
        self._contents: dict[tuple[int, int], tuple[int, int]] = {}
        #: Index -> term of the entry that was committed there first, on any node.
        self._committed: dict[int, int] = {}
        #: Term -> highest index that its leader has committed.
        self._commits: dict[int, int] = {}

    def leaders(self) -> dict[int, int]:
        """Return the leader of each term that had one."""
        return {term: node for term, (node, _) in sorted(self._elections.items())}

    def committed(self) -> int:
        """Return the highest index known to be committed."""
        return max(self._committed, default=0)

    def forget(self, node: int) -> None:
        """Drop the promises of a node whose disk was removed. The entries of that disk stay known."""
        self._replicas.pop(node, None)

    def take(self, node: int, event: Event) -> None:
        """Process one event of `node`. Raise TraceViolation; ValueError for a list that is not an event."""
        replica = self._replicas.get(node)
        if replica is None:
            replica = self._replicas[node] = _Replica(f"node {node}")
        name = event[0]
        self.counts[name] += 1
        if name == START:
            self._start(replica, event)
            return
        if not replica.is_up:
            raise ValueError(f"{replica.name}: {name} before its start")
        if name == APPEND:
            self._append(replica, event[1], event[2], event[3])
        elif name == COMMIT:
            self._commit(replica, event[1])
        elif name == ROLE:
            self._role(node, replica, event[1], event[2])
        elif name == TERM:
            self._hard_state(replica, event[1], event[2])
        elif name == INSTALL:
            self._install(replica, event[1], event[2])
        elif name == VOTED:
            self._vote(replica, event[1], event[2])
        elif name == ACK:
            term = replica.term_at(event[1])
            if term >= 0:
                replica.promised = max(replica.promised, (term, event[1]))
        elif name != CONFIG:
            raise ValueError(f"{replica.name}: {name!r} is not an event")

    def finish(self) -> None:
        """Check leader completeness, which needs all events. Raise TraceViolation."""
        reached = 0
        reached_in = 0
        for term in sorted({*self._elections, *self._commits}):
            election = self._elections.get(term)
            if election is not None and reached:
                assert reached_in < term, f"committed in term {reached_in}, checked for term {term}"
                held = election[1].term_at(reached)
                if held not in (-1, self._committed[reached]):
                    raise TraceViolation(
                        f"leader completeness: {election[1].replica} leads term {term} without entry {reached} of term"
                        f" {self._committed[reached]}, which was committed in term {reached_in}"
                    )
            if self._commits.get(term, 0) > reached:
                reached, reached_in = self._commits[term], term

    # --- one kind of event each ---------------------------------------------------------------------------------------

    def _start(self, replica: _Replica, event: Event) -> None:
        _, _, term, vote, snapshot, offset, offset_term, runs, is_new = event
        replica.is_up = True
        replica.role = 0
        replica.offset, replica.offset_term = offset, offset_term
        replica.terms = [run_term for run_term, count in runs for _ in range(count)]
        replica.commit = snapshot
        if is_new:
            replica.votes, replica.promised, replica.term = {}, (0, 0), 0
        voted_in = max(replica.votes, default=0)
        if term < voted_in or (term == voted_in and voted_in and vote not in (0, replica.votes[term])):
            raise TraceViolation(f"{replica.name} voted in term {voted_in} and starts in term {term}, vote {vote}")
        if term == voted_in and voted_in and vote == 0:
            raise TraceViolation(f"{replica.name} has forgotten its vote in term {term}")
        if (replica.last_term(), replica.last()) < replica.promised:
            raise TraceViolation(
                f"{replica.name} starts with a log to {replica.last_term()}/{replica.last()}, and had acknowledged"
                f" {replica.promised[0]}/{replica.promised[1]} (term/index)"
            )
        replica.term, replica.vote = term, vote

    def _hard_state(self, replica: _Replica, term: int, vote: int) -> None:
        if term < replica.term:
            raise TraceViolation(f"{replica.name}: its term falls from {replica.term} to {term}")
        if term == replica.term and replica.vote not in (0, vote):
            raise TraceViolation(f"{replica.name}: its vote in term {term} changes from {replica.vote} to {vote}")
        replica.term, replica.vote = term, vote

    def _role(self, node: int, replica: _Replica, term: int, role: int) -> None:
        if term < replica.term:
            raise TraceViolation(f"{replica.name}: its term falls from {replica.term} to {term}")
        if term > replica.term:
            replica.term, replica.vote = term, 0
        if role == LEADER and replica.role != LEADER:
            known = self._elections.get(term)
            if known is not None:
                raise TraceViolation(f"election safety: node {known[0]} and {replica.name} lead term {term}")
            self._elections[term] = (node, _Election(replica))
        replica.role = role

    def _vote(self, replica: _Replica, term: int, to: int) -> None:
        before = replica.votes.setdefault(term, to)
        if before != to:
            raise TraceViolation(f"{replica.name} votes for {before} and for {to} in term {term}")

    def _append(self, replica: _Replica, first: int, previous: int, entries: list[list[int]]) -> None:
        if first <= replica.commit:
            raise TraceViolation(f"{replica.name} replaces entry {first}, committed up to {replica.commit}")
        if first > replica.last() + 1:
            raise TraceViolation(f"{replica.name}: entries from {first} after a log that ends at {replica.last()}")
        del replica.terms[first - replica.offset - 1 :]
        contents = self._contents
        index = first
        for term, crc in entries:
            known = contents.setdefault((index, term), (crc, previous))
            if known != (crc, previous):
                raise TraceViolation(f"log matching: {replica.name} has another {term}/{index} than another node")
            replica.terms.append(term)
            previous = term
            index += 1

    def _install(self, replica: _Replica, index: int, term: int) -> None:
        if index <= replica.commit:
            raise TraceViolation(f"{replica.name} installs a snapshot at {index}, committed up to {replica.commit}")
        if self._committed.get(index, term) != term:
            raise TraceViolation(f"{replica.name} installs a snapshot at {term}/{index}, which no node has committed")
        replica.offset, replica.offset_term = index, term
        replica.terms = []
        replica.commit = index

    def _commit(self, replica: _Replica, index: int) -> None:
        if index < replica.commit:
            raise TraceViolation(f"{replica.name}: its commit falls from {replica.commit} to {index}")
        if index > replica.last():
            raise TraceViolation(f"{replica.name} commits {index}, its log ends at {replica.last()}")
        committed = self._committed
        for position in range(max(replica.commit, replica.offset) + 1, index + 1):
            term = replica.terms[position - replica.offset - 1]
            known = committed.setdefault(position, term)
            if known != term:
                raise TraceViolation(f"{replica.name} commits {term}/{position}, others {known}/{position}")
        if replica.role == LEADER and index > replica.commit:
            self._commits[replica.term] = max(index, self._commits.get(replica.term, 0))
        replica.commit = index
