"""Messages that no correct peer sends: the core rejects them and changes nothing."""

from __future__ import annotations

import pytest

from coord.errors import InvalidMessage
from coord.raft.bounds import INDEX_MAX, TERM_LEAP_MAX, TERM_MAX, check_message
from coord.raft.core import RaftConfig, RaftCore
from coord.raft.membership import Configuration
from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    CANDIDATE,
    COMMIT,
    CONFIG,
    HEARTBEAT,
    HEARTBEAT_RESP,
    LEADER,
    NORMAL,
    PRE_VOTE,
    READ_INDEX_RESP,
    SNAPSHOT,
    TIMEOUT_NOW,
    VOTE,
    Entry,
    HardState,
    Message,
    RaftSnapshot,
    bootstrap,
)
from simulation.engine.chance import SeededRandom
from tests.datadriven.raft_group import RaftGroup

VOTERS = Configuration([1, 2, 3])
TERM = 5


def member(term: int = TERM, log: list[Entry] | None = None) -> RaftCore:
    """Return node 1 of three, which follows no leader."""
    return RaftCore(1, RaftConfig(), SeededRandom(1), bootstrap([1, 2, 3]), HardState(term, 0), log)


def leader() -> RaftCore:
    """Return node 1 of three, which leads term 1 with its first entry committed."""
    raft = RaftGroup()
    for command in ("group voters=1,2,3", "elect 1"):
        raft.run(command)
    core = raft.nodes[1].core
    assert core is not None
    assert core.role == LEADER
    assert core.log.commit > 0
    return core


def follower() -> RaftCore:
    """Return node 1 of three, with entries 1 to 4 of terms 1, 1, 3, 3, of which 3 are committed."""
    core = member(log=[Entry(1, 1, NORMAL, b""), Entry(1, 2, NORMAL, b""), Entry(3, 3, NORMAL, b"")])
    core.step(Message(APPEND, 2, 1, TERM, 3, 3, commit=3, entries=[Entry(3, 4, NORMAL, b"")]))
    assert (core.log.commit, core.log.last) == (3, 4)
    while core.has_ready():
        core.persisted(core.ready().number)
    return core


def state_of(core: RaftCore) -> tuple[object, ...]:
    """Return everything that a message could change."""
    progress = [(p.match, p.next, p.state, p.last_received, p.read_round) for p in core.leadership.peers] if (
        core.leadership is not None
    ) else []  # fmt: skip
    log = core.log
    return (
        core.term, core.vote, core.role, core.leader, core.elapsed, log.last, log.commit, log.stable, log.applying,
        [(e.term, e.index) for e in log.entries], core.configs.indexes[:], progress, core.has_ready(),
    )  # fmt: skip


def refuses(core: RaftCore, message: Message) -> None:
    """Check that the message is rejected and nothing has changed."""
    before = state_of(core)
    with pytest.raises(InvalidMessage):
        core.step(message)
    assert state_of(core) == before


@pytest.mark.parametrize("kind", range(PRE_VOTE, READ_INDEX_RESP + 1))
def test_a_term_that_leaps_is_refused_in_every_message(kind: int) -> None:
    """Otherwise one frame would raise the node's term to the limit, on disk and for good."""
    meta = RaftSnapshot(1, 1, VOTERS) if kind == SNAPSHOT else None
    for term in (TERM + TERM_LEAP_MAX + 1, TERM_MAX - 1, TERM_MAX, (1 << 63) - 2):
        refuses(member(), Message(kind, 2, 1, term, snapshot=meta))
        refuses(member(), Message(kind, 2, 1, term, granted=True, snapshot=meta))


def test_the_largest_leap_is_taken() -> None:
    """Up to the bound, a member that was away can catch up."""
    core = member()
    core.step(Message(HEARTBEAT, 2, 1, TERM + TERM_LEAP_MAX))
    assert core.term == TERM + TERM_LEAP_MAX


def test_a_new_member_takes_the_term_of_an_old_ensemble() -> None:
    """A node in term 0 has nothing to lose, and the ensemble's term may be high after many leaps."""
    core = member(term=0)
    core.step(Message(HEARTBEAT, 2, 1, TERM_MAX - 2))
    assert core.term == TERM_MAX - 2


def test_nobody_stands_for_election_in_a_term_that_others_refuse() -> None:
    """The last term can be reached, but not exceeded."""
    core = member(term=TERM_MAX - 2)
    core.step(Message(TIMEOUT_NOW, 2, 1, TERM_MAX - 2))
    assert (core.role, core.term) == (CANDIDATE, TERM_MAX - 1)
    check_message(Message(VOTE, 1, 2, core.term))
    core = member(term=TERM_MAX - 1)
    core.step(Message(TIMEOUT_NOW, 2, 1, TERM_MAX - 1))
    assert core.term == TERM_MAX - 1
    for _ in range(100):
        core.tick()
    assert core.term == TERM_MAX - 1


@pytest.mark.parametrize("kind", [APPEND, HEARTBEAT, COMMIT, SNAPSHOT])
def test_nobody_else_leads_the_leaders_own_term(kind: int) -> None:
    """One such frame could once stop the leader."""
    core = leader()
    meta = RaftSnapshot(9, core.term, VOTERS) if kind == SNAPSHOT else None
    refuses(core, Message(kind, 2, 1, core.term, snapshot=meta))


def test_the_leader_takes_no_acknowledgement_beyond_its_log() -> None:
    """An acknowledgment of the log's end is accepted."""
    core = leader()
    refuses(core, Message(APPEND_RESP, 2, 1, core.term, match_index=core.log.last + 1, granted=True))
    core.step(Message(APPEND_RESP, 2, 1, core.term, match_index=core.log.last, granted=True))


def test_the_leader_takes_no_answer_to_a_round_that_it_did_not_begin() -> None:
    """Such answers of a majority would confirm reads that no node was asked about."""
    core = leader()
    lead = core.leadership
    assert lead is not None
    refuses(core, Message(HEARTBEAT_RESP, 2, 1, core.term, context=lead.reads.newest + 1))
    core.step(Message(HEARTBEAT_RESP, 2, 1, core.term, context=lead.reads.newest))


@pytest.mark.parametrize(
    ("previous", "previous_term", "terms"),
    [
        (3, 1, []),  # the last committed entry has term 3
        (2, 1, [4]),  # would replace it
        (0, 0, [1, 1, 1, 5]),
        (1, 1, [1, 4]),
    ],
)
def test_what_is_committed_is_not_contradicted(previous: int, previous_term: int, terms: list[int]) -> None:
    """A leader without a committed entry has lost a disk, or sends false data: neither is a reason for this node to
    stop."""
    entries = [Entry(term, previous + 1 + i, NORMAL, b"") for i, term in enumerate(terms)]
    refuses(follower(), Message(APPEND, 2, 1, TERM, previous, previous_term, entries=entries or None))
    refuses(follower(), Message(APPEND, 2, 1, TERM + 1, previous, previous_term, entries=entries or None))


@pytest.mark.parametrize(
    "entries",
    [
        [Entry(3, 6, NORMAL, b"")],  # not behind entry 4
        [Entry(3, 5, NORMAL, b""), Entry(3, 7, NORMAL, b"")],
        [Entry(2, 5, NORMAL, b"")],  # terms never fall along a log
        [Entry(5, 5, NORMAL, b""), Entry(4, 6, NORMAL, b"")],
        [Entry(TERM + 1, 5, NORMAL, b"")],  # later than the leader's term
        [Entry(3, 5, 4, b"")],
        [Entry(3, 5, CONFIG, b"no configuration")],
        [Entry(3, 5, CONFIG, Configuration([], [1]).encode())],
    ],
)
def test_entries_that_are_no_log_are_refused(entries: list[Entry]) -> None:
    """Otherwise they would be stored, and an assertion would fail at the next start."""
    refuses(follower(), Message(APPEND, 2, 1, TERM, 4, 3, entries=entries))


def test_messages_that_contradict_themselves_are_refused() -> None:
    """The receiver's state does not matter."""
    some = [Entry(1, 1, NORMAL, b"")]
    meta = RaftSnapshot(1, 1, VOTERS)
    for message in (
        Message(0, 2, 1, TERM),
        Message(READ_INDEX_RESP + 1, 2, 1, TERM),
        Message(VOTE, 2, 1, TERM, prev_term=TERM + 1),
        Message(HEARTBEAT, 2, 1, TERM, entries=some),
        Message(HEARTBEAT, 2, 1, TERM, snapshot=meta),
        Message(SNAPSHOT, 2, 1, TERM),
        Message(SNAPSHOT, 2, 1, TERM, snapshot=RaftSnapshot(1, TERM + 1, VOTERS)),
        Message(SNAPSHOT, 2, 1, TERM, snapshot=RaftSnapshot(INDEX_MAX, 1, VOTERS)),
        Message(SNAPSHOT, 2, 1, TERM, snapshot=RaftSnapshot(1, 1, Configuration([], [2]))),
        Message(APPEND, 2, 1, TERM, INDEX_MAX - 1, 1, entries=[Entry(1, INDEX_MAX, NORMAL, b"")]),
    ):
        refuses(member(), message)
