"""Input and output of the Raft core: settings, messages, entries, Readies. Plain classes without behavior.

Message kinds, roles and entry kinds are small ints with fixed values: they are on the wire and on disk.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from coord.raft.membership import FIRST_MEMORY, Configuration

# --- entry kinds ----------------------------------------------------------------------------------------------------

#: Bytes of the shell; the core does not read them.
NORMAL: Final = 0
#: Empty. Each leader appends one at the start of its term: a leader commits only entries of its own term by counting,
#: and all earlier entries with them (Raft §5.4.2, §8).
NOOP: Final = 1
#: A whole configuration (`membership.Configuration.encode`).
CONFIG: Final = 2
#: Of the shell, like NORMAL: raises the feature level of the state machine (`coord.tree.levels`).
LEVEL: Final = 3

# --- roles ----------------------------------------------------------------------------------------------------------

FOLLOWER: Final = 0
PRE_CANDIDATE: Final = 1
CANDIDATE: Final = 2
LEADER: Final = 3

ROLE_NAMES: Final = ["follower", "pre-candidate", "candidate", "leader"]


def validate_role(role: int, own: int, leader: int, vote: int, votes: dict[int, bool], *, is_leading: bool) -> None:
    """Raise AssertionError unless these facts about the node `own` fit its role. For tests.

    `votes` are the votes that the node counts; `is_leading` states whether it has a leader's state.
    """
    name = ROLE_NAMES[role]
    assert is_leading == (role == LEADER), f"a {name} with a leader's state: {is_leading}"
    assert (leader == own) == (role == LEADER), f"{name}, leader is {leader}"
    if role in (PRE_CANDIDATE, CANDIDATE):
        assert leader == 0, f"a {name} follows {leader}"
    else:
        assert not votes, f"a {name} counts the votes {votes}"
    assert vote == own or role in (FOLLOWER, PRE_CANDIDATE), f"the candidate voted for {vote}"


# --- message kinds ----------------------------------------------------------------------------------------------------
#
# Every message has kind, src, dst and term. The comments list the other fields that a kind uses. PRE_VOTE_RESP,
# VOTE_RESP, APPEND_RESP and HEARTBEAT_RESP also carry `memory`, see `membership`.

#: Request for a pre-vote: would the receiver vote for the sender in `term`, the sender's term + 1? Dissertation §9.6.
#: prev_index, prev_term: position of the sender's last entry.
PRE_VOTE: Final = 1
#: granted. If granted, `term` is the term of the request, otherwise the term of the replying node.
PRE_VOTE_RESP: Final = 2
#: prev_index, prev_term: position of the sender's last entry. granted: the old leader requested this election, to
#: transfer leadership. Raft §5.2.
VOTE: Final = 3
#: granted.
VOTE_RESP: Final = 4
#: prev_index, prev_term, entries, commit. Raft §5.3.
APPEND: Final = 5
#: granted: match_index is the highest index that this append verified; it is durable. Rejected: prev_index is that of
#: the append, and (match_index, prev_term) is the highest position at which the logs may match.
APPEND_RESP: Final = 6
#: commit (at most the receiver's match index) and in prev_term the term of that entry. context: the newest round of
#: read confirmation, 0 for none.
HEARTBEAT: Final = 7
#: context, as in the heartbeat. match_index: the end of the sender's log, durable or not.
HEARTBEAT_RESP: Final = 8
#: commit, and in prev_term the term of that entry. For a commit index that would otherwise wait for the next append or
#: heartbeat. There is no reply. The receiver need not have acknowledged the entry: it compares the term.
COMMIT: Final = 9
#: snapshot. The shell transfers the payload, and passes the message to the receiver's core when the payload is
#: complete.
SNAPSHOT: Final = 10
#: The receiver must start an election at once: leadership is transferred to it. Dissertation §3.10.
TIMEOUT_NOW: Final = 11
#: context: a follower requests a read index from the leader. Dissertation §6.4. granted: the read can wait for the next
#: regular heartbeats.
READ_INDEX: Final = 12
#: context, as in the request. match_index: the index to wait for.
READ_INDEX_RESP: Final = 13


@mypyc_attr(acyclic=True)
class Entry:
    """One entry of the log. Immutable: the same object is stored, sent and applied."""

    def __init__(self, term: int, index: int, kind: int, data: bytes) -> None:
        self.term: int = term
        self.index: int = index
        self.kind: int = kind
        self.data: bytes = data

    def __eq__(self, other: object) -> bool:
        """Return True if position and content are equal."""
        return (
            isinstance(other, Entry)
            and self.index == other.index
            and self.term == other.term
            and self.kind == other.kind
            and self.data == other.data
        )

    def __hash__(self) -> int:
        """Return a hash consistent with equality."""
        return hash((self.term, self.index))


class HardState:
    """The term, and the node that this node voted for in it (0: none). Must be durable before any message that depends
    on it leaves."""

    def __init__(self, term: int, vote: int) -> None:
        self.term: int = term
        self.vote: int = vote

    def __eq__(self, other: object) -> bool:
        """Return True if term and vote are equal."""
        return isinstance(other, HardState) and self.term == other.term and self.vote == other.vote

    def __hash__(self) -> int:
        """Return a hash consistent with equality."""
        return hash((self.term, self.vote))


class RaftSnapshot:
    """Position of a snapshot. The snapshot replaces the log up to `index`; the entry there had `term`, and `config` was
    in force.

    `handle` belongs to the shell (a file name, a transfer id). The core passes it from the SNAPSHOT message to the
    Ready that requests the installation.
    """

    def __init__(self, index: int, term: int, config: Configuration, handle: str = "") -> None:
        self.index: int = index
        self.term: int = term
        self.config: Configuration = config
        self.handle: str = handle


def bootstrap(voters: list[int], learners: list[int] | None = None, attachment: bytes = b"") -> RaftSnapshot:
    """Return the empty snapshot at index 0 from which every first member of a new group starts."""
    assert voters, "a group needs a voter"
    return RaftSnapshot(0, 0, Configuration(voters, [], learners, attachment))


class Message:
    """A message between nodes. The comments at the kinds list the fields that each uses; others keep their defaults."""

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
        #: In a reply: the sender's memory, 0 from a build without memories.
        self.memory: int = memory


class ReadState:
    """A read that may be served when `index` is applied. `context` is the one passed to `read_index`."""

    def __init__(self, context: int, index: int) -> None:
        self.context: int = context
        self.index: int = index


class RaftEvent:
    """A rare event worth a log line or a counter. `name` is stable, `detail` is for people.

    Names: role, leader, truncate, config, config_reverted, snapshot_install, snapshot_offer, quorum_lost, vote_ignored,
    election_lost, transfer, transfer_failed, promote, demote, forgotten, rejected, commit_ahead.
    """

    def __init__(self, name: str, term: int, detail: str) -> None:
        self.name: str = name
        self.term: int = term
        self.detail: str = detail


class Ready:
    """Work for the shell. The package docstring defines the order of the work and the guarantees.

    The shell may keep the lists.
    """

    def __init__(self, number: int, role: int, term: int, leader: int, commit: int) -> None:
        #: 1, 2, 3, ... since the start of this core. The argument of `RaftCore.persisted`.
        self.number: int = number
        #: Role, term, leader (0: unknown) and commit index when this Ready was made.
        self.role: int = role
        self.term: int = term
        self.leader: int = leader
        self.commit: int = commit
        #: Role, term or leader differ from the previous Ready. Earlier read requests get no reply; repeat them.
        self.changed: bool = False
        #: The configuration in force differs from the previous Ready. `core.configs.current` has the members to which
        #: the shell must have links.
        self.config_changed: bool = False
        #: Snapshot to be installed before everything else, or None.
        self.snapshot: RaftSnapshot | None = None
        self.hard_state: HardState | None = None
        #: True if there is something to write: snapshot, hard state or entries. The core waits for `persisted`.
        self.must_persist: bool = False
        #: Entries to be appended to the log on disk. They replace what it has from `entries[0].index` on.
        self.entries: list[Entry] = []
        self.messages: list[Message] = []
        self.messages_after_persist: list[Message] = []
        #: To be applied in this order. Over all Readies each index appears once, without gaps, whatever its kind.
        self.committed: list[Entry] = []
        self.read_states: list[ReadState] = []
        self.events: list[RaftEvent] = []


class RaftConfig:
    """Timing and limits of one core. The shell decides how long a tick is (50 ms in the store)."""

    def __init__(
        self,
        election_ticks: int = 12,
        heartbeat_ticks: int = 1,
        max_inflight: int = 64,
        max_inflight_bytes: int = 8 << 20,
        max_append_bytes: int = 1 << 20,
        max_apply_entries: int = 256,
        is_promotion_careful: bool = False,
    ) -> None:
        assert heartbeat_ticks >= 1, heartbeat_ticks
        assert election_ticks > 2 * heartbeat_ticks, "one lost heartbeat must not start an election"
        assert max_inflight >= 1, max_inflight
        assert max_inflight_bytes >= 1, max_inflight_bytes
        assert max_append_bytes >= 1, max_append_bytes
        assert max_apply_entries >= 1, max_apply_entries
        #: A follower campaigns after election_ticks .. 2*election_ticks-1 ticks without a message of the leader. A
        #: leader steps down after election_ticks without replies from a majority.
        self.election_ticks: int = election_ticks
        #: Interval between a leader's heartbeats.
        self.heartbeat_ticks: int = heartbeat_ticks
        #: Limits per peer: appends that are not acknowledged, and bytes of entries in them.
        self.max_inflight: int = max_inflight
        self.max_inflight_bytes: int = max_inflight_bytes
        #: Limit of the bytes of entries in one append. A single larger entry is sent alone.
        self.max_append_bytes: int = max_append_bytes
        #: Limit for the committed entries in one Ready, so that a turn of the shell stays short.
        self.max_apply_entries: int = max_apply_entries
        #: Promote a PRE_VOTER only if the group would not depend on it (`Leadership.is_promotion_safe`).
        self.is_promotion_careful: bool = is_promotion_careful
