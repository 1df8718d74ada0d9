"""What goes in and out of the Raft core: plain classes, no behaviour.

Kinds, roles and entry kinds are small ints with stable values: they are on the wire and on disk.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from coord.raft.membership import FIRST_MEMORY, Configuration

# --- entry kinds ----------------------------------------------------------------------------------------------------

#: The shell's opaque bytes.
NORMAL: Final = 0
#: Empty; each leader appends one at the start of its term, since only entries of the own term commit by count (Raft
#: §5.4.2, §8).
NOOP: Final = 1
#: A whole configuration (`membership.Configuration.encode`).
CONFIG: Final = 2
#: The shell's: raises the feature level of the state machine (`coord.tree.levels`).
LEVEL: Final = 3

# --- roles ----------------------------------------------------------------------------------------------------------

FOLLOWER: Final = 0
PRE_CANDIDATE: Final = 1
CANDIDATE: Final = 2
LEADER: Final = 3

ROLE_NAMES: Final = ["follower", "pre-candidate", "candidate", "leader"]

# --- message kinds; the fields that mean something, beside kind, src, dst and term -----------------------------------
#
# PRE_VOTE_RESP, VOTE_RESP, APPEND_RESP and HEARTBEAT_RESP also carry `memory`, see `membership`.

#: Would you vote for me in `term` (mine + 1)? prev_index, prev_term: position of my last entry. Dissertation §9.6.
PRE_VOTE: Final = 1
#: granted. When granted, `term` is the one asked about; otherwise the term of the answering node.
PRE_VOTE_RESP: Final = 2
#: prev_index, prev_term: position of my last entry; granted: the old leader asked for this election (transfer). Raft
#: §5.2.
VOTE: Final = 3
#: granted.
VOTE_RESP: Final = 4
#: prev_index, prev_term, entries, commit. Raft §5.3.
APPEND: Final = 5
#: granted: match_index is the highest index that this append verified, durable. Refused: prev_index is the one
#: refused, and (match_index, prev_term) the sender's best guess where the logs may agree.
APPEND_RESP: Final = 6
#: commit (never beyond what the follower is known to hold) and in prev_term the term of that entry; context: the newest
#: round of read confirmation, 0 for none.
HEARTBEAT: Final = 7
#: context, echoed; match_index is where the sender's log ends, durable or not.
HEARTBEAT_RESP: Final = 8
#: commit, and in prev_term the term of that entry. Never answered: a commit that would otherwise wait for the next
#: append or heartbeat. The receiver need not have acknowledged the entry: it commits what it holds of that term there.
COMMIT: Final = 9
#: snapshot. The shell transfers the payload and gives the message to the receiver's core only when the payload is
#: complete.
SNAPSHOT: Final = 10
#: Start an election at once: leadership is yours. Dissertation §3.10.
TIMEOUT_NOW: Final = 11
#: context: a follower's read asks the leader for an index. Dissertation §6.4. granted: it can wait for the next regular
#: heartbeats.
READ_INDEX: Final = 12
#: context; match_index is the index to wait for.
READ_INDEX_RESP: Final = 13


@mypyc_attr(acyclic=True)
class Entry:
    """One place of the log. Immutable by agreement: the same object is kept, sent and applied."""

    def __init__(self, term: int, index: int, kind: int, data: bytes) -> None:
        self.term: int = term
        self.index: int = index
        self.kind: int = kind
        self.data: bytes = data

    def __eq__(self, other: object) -> bool:
        """Same place, same content."""
        return (
            isinstance(other, Entry)
            and self.index == other.index
            and self.term == other.term
            and self.kind == other.kind
            and self.data == other.data
        )

    def __hash__(self) -> int:
        """Consistent with equality."""
        return hash((self.term, self.index))


class HardState:
    """What must be durable before anybody hears of it: the term, and whom this node voted for in it (0: nobody)."""

    def __init__(self, term: int, vote: int) -> None:
        self.term: int = term
        self.vote: int = vote

    def __eq__(self, other: object) -> bool:
        """Same term and vote."""
        return isinstance(other, HardState) and self.term == other.term and self.vote == other.vote

    def __hash__(self) -> int:
        """Consistent with equality."""
        return hash((self.term, self.vote))


class RaftSnapshot:
    """Which log prefix a snapshot replaces: everything up to `index`, whose entry had `term`; `config` was in force
    there.

    `handle` belongs to the shell (a file name, a transfer id); the core passes it through from the SNAPSHOT message
    to the Ready that asks for the installation.
    """

    def __init__(self, index: int, term: int, config: Configuration, handle: str = "") -> None:
        self.index: int = index
        self.term: int = term
        self.config: Configuration = config
        self.handle: str = handle


def bootstrap(voters: list[int], learners: list[int] | None = None, attachment: bytes = b"") -> RaftSnapshot:
    """The empty snapshot at index 0 that a new group starts from, alike on all its first members."""
    return RaftSnapshot(0, 0, Configuration(voters, [], learners, attachment))


class Message:
    """Node to node. The comments at the message kinds say which fields a kind uses; the others keep their defaults."""

    def __init__(
        self,
        kind: int,
        src: int,
        dst: int,
        term: int,
        prev_index: int = 0,
        prev_term: int = 0,
        commit: int = 0,
        match_index: int = 0,
        granted: bool = False,
        context: int = 0,
        entries: list[Entry] | None = None,
        snapshot: RaftSnapshot | None = None,
        memory: int = FIRST_MEMORY,
    ) -> None:
        self.kind: int = kind
        self.src: int = src
        self.dst: int = dst
        self.term: int = term
        self.prev_index: int = prev_index
        self.prev_term: int = prev_term
        self.commit: int = commit
        self.match_index: int = match_index
        self.granted: bool = granted
        self.context: int = context
        #: Contiguous, ascending from prev_index + 1; None means none. Receivers keep the Entry objects, not the list.
        self.entries: list[Entry] | None = entries
        self.snapshot: RaftSnapshot | None = snapshot
        #: Of an answer: the memory that it is given from; 0 from a build that knows of no memories.
        self.memory: int = memory


class ReadState:
    """A read may be answered once `index` is applied. `context` is what the shell gave to `read_index`."""

    def __init__(self, context: int, index: int) -> None:
        self.context: int = context
        self.index: int = index


class RaftEvent:
    """Something rare and worth a line in a log or a count: `name` is stable (`role`, `truncate`, `config`, ...),
    `detail` is for people.

    Names: role, leader, truncate, config, config_reverted, snapshot_install, snapshot_offer, quorum_lost, vote_ignored,
    election_lost, transfer, transfer_failed, promote, demote, forgotten,
    rejected, commit_ahead.
    """

    def __init__(self, name: str, term: int, detail: str) -> None:
        self.name: str = name
        self.term: int = term
        self.detail: str = detail


class Ready:
    """One portion of work for the shell; the package docstring says in which order and under which promises.

    The lists are the shell's to keep.
    """

    def __init__(self, number: int, role: int, term: int, leader: int, commit: int) -> None:
        #: 1, 2, 3, ... since the start of this core; what `persisted` wants.
        self.number: int = number
        #: Role, term, leader (0: unknown) and commit index when this Ready was made.
        self.role: int = role
        self.term: int = term
        self.leader: int = leader
        self.commit: int = commit
        #: Role, term or leader differ from the Ready before: reads asked for earlier are void, ask again.
        self.changed: bool = False
        #: The membership in force differs from the Ready before: look at `core.configs.current` (links to open or
        #: close).
        self.config_changed: bool = False
        #: Install this before everything else.
        self.snapshot: RaftSnapshot | None = None
        self.hard_state: HardState | None = None
        #: Append, replacing what the log holds from entries[0].index on.
        self.entries: list[Entry] = []
        self.messages: list[Message] = []
        self.messages_after_persist: list[Message] = []
        #: Apply in this order; over all Readies each index appears exactly once, without gaps. All kinds of entries.
        self.committed: list[Entry] = []
        self.read_states: list[ReadState] = []
        self.events: list[RaftEvent] = []

    def must_persist(self) -> bool:
        """Whether there is something to write, so that `persisted` is expected."""
        return self.snapshot is not None or self.hard_state is not None or len(self.entries) > 0


class RaftConfig:
    """Bounds and timing of one core. Ticks are the shell's (50 ms in the store)."""

    def __init__(
        self,
        election_ticks: int = 12,
        heartbeat_ticks: int = 1,
        max_inflight: int = 64,
        max_inflight_bytes: int = 8 << 20,
        max_append_bytes: int = 1 << 20,
        max_apply_entries: int = 256,
    ) -> None:
        assert heartbeat_ticks >= 1, heartbeat_ticks
        assert election_ticks > 2 * heartbeat_ticks, "one lost heartbeat must not start an election"
        assert max_inflight >= 1, max_inflight
        assert max_inflight_bytes >= 1, max_inflight_bytes
        assert max_append_bytes >= 1, max_append_bytes
        assert max_apply_entries >= 1, max_apply_entries
        #: A follower stands for election after election_ticks .. 2*election_ticks-1 ticks of silence; a leader that has
        #: not heard from a majority for election_ticks steps down.
        self.election_ticks: int = election_ticks
        self.heartbeat_ticks: int = heartbeat_ticks
        #: Appends, and bytes in them, on their way to one peer without an answer.
        self.max_inflight: int = max_inflight
        self.max_inflight_bytes: int = max_inflight_bytes
        #: Bytes of entries in one append; a single larger entry travels alone.
        self.max_append_bytes: int = max_append_bytes
        #: Committed entries in one Ready.
        self.max_apply_entries: int = max_apply_entries
