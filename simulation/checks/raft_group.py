"""The invariants, checked incrementally: only the state in a node's Ready can have changed.

Log matching is checked by induction: on all nodes and at all times (index, term) identifies one content and one
predecessor. So two logs that share a position share everything before it. State-machine safety is a hash chain: the
state after index i is one number forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from zlib import crc32

from coord.raft.core import RaftCore
from coord.raft.membership import Configuration
from coord.raft.messages import CANDIDATE, CONFIG, LEADER, Entry, Message, Ready
from simulation.engine.history import Violation


class CheckedNode(Protocol):
    """A node of a group, as the checks see it."""

    id: int
    commit: int
    applied: int
    #: Digest of its state.
    state: int

    def core_now(self) -> RaftCore:
        """Return the core of a node that runs."""
        ...

    def holds(self, index: int, term: int, memory: int) -> bool:
        """Return True if the entry is durable here, or was until it was lost."""
        ...


MASK = (1 << 61) - 1


def digest(state: int, entry: Entry) -> int:
    """Return the digest of the state after `entry`, given the digest before."""
    return (state * 1000003 + crc32(entry.data) * 31 + entry.term * 7 + entry.kind + 1) & MASK


class OpenRead:
    """A read that is not answered yet."""

    def __init__(self, node: int, floor: int) -> None:
        self.node = node
        #: The highest index committed anywhere when the read arrived.
        self.floor = floor


class Checker:
    """Everything known about the history of one group."""

    def __init__(self, first_state: int = 0) -> None:
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int, int], int] = {}
        self.candidates: dict[int, list[int]] = {}
        # (index << 32 | term) -> crc32 of the data << 32 | term of the entry before
        self.contents: dict[int, int] = {}
        #: Digest of the state after index i; [0] is the initial state.
        self.states: list[int] = [first_state]
        #: Highest index committed anywhere.
        self.commit = 0
        self.commit_term = 0
        #: Index -> term of the entry that was committed there first.
        self.committed: dict[int, int] = {}
        #: Committed configurations: (index, encoded), ascending.
        self.configs: list[tuple[int, bytes]] = []
        self.acked: list[tuple[int, int]] = []
        self.reads: dict[int, OpenRead] = {}
        self.reads_answered = 0

    # --- per Ready

    def on_ready(self, node: CheckedNode, r: Ready, nodes: Mapping[int, CheckedNode]) -> None:
        """Check a node's next effects, before any of them leaves the node."""
        if r.changed:
            self._check_role(node, r)
        if r.entries:
            self._check_entries(node, r.entries)
        if r.commit != node.commit:
            self._check_commit(node, r, nodes)
        if r.events:
            self._check_config(node)
        for state in r.read_states:
            self._check_read(node, state.context, state.index)

    def _check_role(self, node: CheckedNode, r: Ready) -> None:
        if r.role == CANDIDATE:
            standing = self.candidates.setdefault(r.term, [])
            if node.id not in standing:
                standing.append(node.id)
        if r.role != LEADER:
            return
        other = self.leaders.setdefault(r.term, node.id)
        if other != node.id:
            raise Violation(f"election safety: {other} and {node.id} lead term {r.term}")
        if r.term < self.commit_term:
            return  # this leader won a late election; it need not have entries newer than its term
        log = node.core_now().log
        if log.offset <= self.commit and log.term_at(self.commit) != self.commit_term:
            held = f"{self.commit_term}/{self.commit}"
            raise Violation(f"leader completeness: {node.id} leads term {r.term} without the committed {held}")

    def _check_config(self, node: CheckedNode) -> None:
        """Check that the configuration in force is the newest in the log, or else the last committed one up to the
        snapshot."""
        core = node.core_now()
        configs, log = core.configs, core.log
        index, data = configs.newest_index(), configs.current.encode()
        if index > log.offset and index > log.snapshot.index:
            expected = log.entries[index - log.offset - 1].data
        else:
            expected = next((known for at, known in reversed(self.configs) if at <= index), b"")
        if expected and data != expected:
            raise Violation(f"{node.id} has {configs.current} in force, not what its log says at {index}")

    def on_vote(self, m: Message) -> None:
        """Check a granted vote that leaves its node."""
        before = self.votes.setdefault((m.term, m.src, m.memory), m.dst)
        if before != m.dst:
            raise Violation(f"{m.src} votes for {before} and {m.dst} in term {m.term}")

    def _check_entries(self, node: CheckedNode, entries: list[Entry]) -> None:
        previous = node.core_now().log.term_at(entries[0].index - 1)
        contents = self.contents
        for entry in entries:
            key = entry.index << 32 | entry.term
            content = crc32(entry.data) << 32 | previous
            if contents.setdefault(key, content) != content:
                raise Violation(f"log matching: {node.id} holds another {entry.term}/{entry.index} than somebody did")
            previous = entry.term

    def _check_commit(self, node: CheckedNode, r: Ready, nodes: Mapping[int, CheckedNode]) -> None:
        if r.commit < node.commit:
            raise Violation(f"commit of {node.id} falls from {node.commit} to {r.commit}")
        node.commit = r.commit
        core = node.core_now()
        if core.log.offset >= r.commit:
            return  # By a snapshot: its content is compared with the states.
        term = core.log.term_at(r.commit)
        if r.commit <= self.commit:
            known = self.committed.get(r.commit, term)
            if known != term:
                raise Violation(
                    f"{node.id} commits {term}/{r.commit}, which nothing verified: it is {known}/{r.commit}"
                )
            return
        if r.role == LEADER and term != r.term:
            raise Violation(f"{node.id} commits {term}/{r.commit} by count in term {r.term}: Raft §5.4.2")
        configs = core.configs
        config = configs.current
        if configs.newest_index() > r.commit and not self._durable_on_majority(r.commit, term, config, nodes):
            # The change may have been appended in this turn, after the commit.
            config = configs.at(configs.newest_index() - 1)
        if not self._durable_on_majority(r.commit, term, config, nodes):
            raise Violation(f"{node.id} commits {term}/{r.commit}, durable on no majority of {config}")
        self.commit = r.commit
        self.commit_term = self.committed[r.commit] = term

    def _durable_on_majority(
        self, index: int, term: int, config: Configuration, nodes: Mapping[int, CheckedNode]
    ) -> bool:
        held = [voter for voter in config.voters if nodes[voter].holds(index, term, config.memory_of(voter))]
        return len(held) * 2 > len(config.voters)

    def _check_read(self, node: CheckedNode, context: int, index: int) -> None:
        read = self.reads.pop(context, None)
        if read is None:
            return
        if index < read.floor:
            raise Violation(f"{node.id} reads at {index}, {read.floor} was committed when the read arrived")
        self.reads_answered += 1

    # --- applying

    def on_apply(self, node: CheckedNode, entry: Entry) -> None:
        """Check that `node` applies `entry` to its state."""
        index = entry.index
        if index != node.applied + 1:
            raise Violation(f"{node.id} applies {index} after {node.applied}")
        state = digest(node.state, entry)
        node.applied = index
        node.state = state
        if index == len(self.states):
            self.states.append(state)
            if entry.kind == CONFIG:
                self.configs.append((index, entry.data))
        elif state != self.states[index]:
            raise Violation(f"state machine safety: {node.id} applies another {entry.term}/{index} than somebody did")

    def on_install(self, node: CheckedNode, index: int, state: int) -> None:
        """Check that `node` installs a snapshot as its state."""
        if index >= len(self.states) or self.states[index] != state:
            raise Violation(f"{node.id} installs a snapshot at {index} that is nobody's state")
        if index <= node.applied:
            raise Violation(f"{node.id} installs a snapshot at {index}, applied {node.applied}")
        node.applied = index
        node.state = state
        node.commit = max(node.commit, index)

    # --- clients

    def on_acked(self, index: int, state: int) -> None:
        """Check an acknowledged write at `index`; `state` is its node's state at that moment."""
        self.acked.append((index, state))

    def at_the_end(self) -> None:
        """Check that every acknowledged write is part of the one history."""
        for index, state in self.acked:
            if index >= len(self.states) or self.states[index] != state:
                raise Violation(f"acknowledged write at {index} is missing")
