"""The rules of the paper, one test each; sections are those of the extended version.

The nodes are driven by the commands of `tests.datadriven.raft_group`.
"""

from __future__ import annotations

import pytest

from coord.errors import InvalidMessage
from coord.raft.core import RaftConfig, RaftCore
from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    CANDIDATE,
    COMMIT,
    FOLLOWER,
    HEARTBEAT,
    HEARTBEAT_RESP,
    LEADER,
    NORMAL,
    PRE_CANDIDATE,
    VOTE,
    VOTE_RESP,
    Entry,
    HardState,
    Message,
    Ready,
    bootstrap,
)
from simulation.engine.chance import SeededRandom
from tests.datadriven.raft_group import RaftGroup


def group(*commands: str, nodes: str = "1,2,3") -> RaftGroup:
    """Return three nodes (or `nodes`), after these commands."""
    raft = RaftGroup()
    for command in (f"group voters={nodes}", *commands):
        raft.run(command)
    return raft


def core_of(raft: RaftGroup, node: int) -> RaftCore:
    """Return the core of a node that is up."""
    core = raft.nodes[node].core
    assert core is not None
    return core


def lone_core(term: int = 1, vote: int = 0, log: list[Entry] | None = None, seed: int = 1) -> RaftCore:
    """Return node 1 of three, driven by hand."""
    return RaftCore(1, RaftConfig(), SeededRandom(seed), bootstrap([1, 2, 3]), HardState(term, vote), log)


def drain(core: RaftCore) -> list[Ready]:
    """Carry out all effects of the core with a fast disk."""
    out = []
    while core.has_ready():
        out.append(core.ready())
        core.persisted(out[-1].number)
    return out


def answers(core: RaftCore, m: Message) -> list[Message]:
    """Return the messages that the core sends, sooner or later, because of one message."""
    core.step(m)
    return [a for r in drain(core) for a in [*r.messages, *r.messages_after_persist]]


@pytest.mark.parametrize("role", [FOLLOWER, PRE_CANDIDATE, CANDIDATE, LEADER])
def test_a_higher_term_makes_anybody_a_follower(role: int) -> None:
    """§5.1: if one server's term is smaller, it updates; a candidate or leader reverts to follower."""
    raft = group("campaign 1")
    core = core_of(raft, 1)
    if role == FOLLOWER:
        raft = group()
        core = core_of(raft, 1)
    while core.role != role:
        raft.run("deliver")
    core.step(Message(APPEND, 2, 1, core.term + 1))
    assert core.role == FOLLOWER
    assert core.leader == 2


def test_a_message_of_an_older_term_changes_nothing() -> None:
    """§5.1: a request with a stale term is rejected; the answer tells the sender the newer term."""
    core = lone_core(term=5)
    sent = answers(core, Message(APPEND, 2, 1, 4, entries=[Entry(4, 1, NORMAL, b"x")]))
    assert core.log.last == 0
    assert [(m.kind, m.term) for m in sent] == [(HEARTBEAT_RESP, 5)]


def test_election_timeouts_are_spread() -> None:
    """§5.2, §9.3: randomised timeouts make split votes rare and cover the whole interval [T, 2T)."""
    timeouts = [lone_core(seed=seed).timeout for seed in range(2000)]
    assert set(timeouts) == set(range(12, 24))


def test_a_follower_that_hears_its_leader_never_stands() -> None:
    """§5.2: a server stays follower as long as it receives valid RPCs from a leader."""
    core = lone_core()
    for _ in range(100):
        for _ in range(11):
            core.tick()
        core.step(Message(HEARTBEAT, 2, 1, 1))
    assert core.role == FOLLOWER


@pytest.mark.parametrize(("vote", "granted"), [(0, True), (2, True), (3, False)])
def test_one_vote_per_term_first_come(vote: int, granted: bool) -> None:
    """§5.2: at most one candidate per term, and the same one again if it asks again."""
    core = lone_core(term=3, vote=vote)
    sent = answers(core, Message(VOTE, 2, 1, 3))
    assert [(m.kind, m.granted) for m in sent] == [(VOTE_RESP, granted)]


def test_a_vote_is_on_disk_before_it_is_given() -> None:
    """§5.1: currentTerm and votedFor are updated on stable storage before responding."""
    core = lone_core(term=3)
    core.step(Message(VOTE, 2, 1, 4))
    r = core.ready()
    assert r.hard_state == HardState(4, 2)
    assert [m.kind for m in r.messages_after_persist] == [VOTE_RESP]
    assert not r.messages


@pytest.mark.parametrize(
    ("mine", "index", "term", "granted"),
    [
        ([1, 2], 1, 3, True),  # later term, shorter log
        ([1, 2], 2, 2, True),  # equal
        ([1, 2], 3, 2, True),  # same term, longer log
        ([1, 2], 1, 2, False),  # same term, shorter log
        ([1, 2], 9, 1, False),  # older term, longer log
    ],
)
def test_votes_go_to_logs_that_are_up_to_date(mine: list[int], index: int, term: int, granted: bool) -> None:
    """§5.4.1: the voter denies its vote if its own log is more up-to-date."""
    log = [Entry(t, i + 1, NORMAL, b"") for i, t in enumerate(mine)]
    sent = answers(lone_core(term=5, log=log), Message(VOTE, 2, 1, 6, index, term))
    assert [m.granted for m in sent] == [granted]


def test_a_candidate_that_sees_the_leader_of_its_term_follows() -> None:
    """§5.2: a valid leader of the candidate's term is recognised."""
    raft = group("campaign 1", "deliver", "deliver 1")
    core = core_of(raft, 1)
    assert core.role == CANDIDATE
    core.step(Message(HEARTBEAT, 3, 1, core.term))
    assert (core.role, core.leader) == (FOLLOWER, 3)


def test_a_second_leader_of_a_term_is_not_believed() -> None:
    """§5.2, election safety: it cannot happen. The link of a node that claims to lead this node's own term is
    broken."""
    core = core_of(group("elect 1"), 1)
    with pytest.raises(InvalidMessage, match="which this node leads"):
        core.step(Message(HEARTBEAT, 2, 1, core.term))
    assert core.role == LEADER


@pytest.mark.parametrize(
    "theirs",
    [
        [1, 1, 1, 3],  # only the new leader's first entry is missing
        [1],  # far behind
        [1, 1, 1, 3, 3, 3],  # a longer, uncommitted end
        [1, 1, 2, 2, 2],  # a different history from index 3 on
        [],
    ],
)
def test_a_leader_brings_followers_into_line(theirs: list[int]) -> None:
    """§5.3, figure 7: conflicting entries are overwritten, missing ones sent."""
    raft = group()
    for node, terms in ((1, [1, 1, 1, 3]), (2, [1, 1, 1, 3]), (3, theirs)):
        raft.nodes[node].log = [Entry(term, i + 1, NORMAL, b"") for i, term in enumerate(terms)]
        raft.nodes[node].hard_state = HardState(3, 0)
        raft.run(f"start {node}")
    for command in ("cut 1 3", "elect 1", "heal", "tick 1", "run", "tick 1", "run"):
        raft.run(command)
    assert [entry.term for entry in core_of(raft, 3).log.entries] == [1, 1, 1, 3, 4]
    assert core_of(raft, 3).log.commit == 5


def test_an_old_entry_is_not_committed_by_count() -> None:
    """§5.4.2, figure 8: only entries of the leader's current term are committed by counting replicas."""
    log = [Entry(1, 1, NORMAL, b"old")]
    raft = group()
    for node in (1, 2):
        raft.nodes[node].log = list(log)
        raft.nodes[node].hard_state = HardState(1, 0)
        raft.run(f"start {node}")
    raft.run("quiet")
    for command in ("campaign 1", "deliver", "deliver", "deliver", "deliver"):
        raft.run(command)
    leader = core_of(raft, 1)
    assert leader.role == LEADER
    leader.step(Message(APPEND_RESP, 2, 1, leader.term, match_index=1, granted=True))
    assert leader.log.commit == 0
    leader.step(Message(APPEND_RESP, 2, 1, leader.term, match_index=2, granted=True))
    assert leader.log.commit == 2


def test_a_follower_commits_only_what_the_append_verified() -> None:
    """§5.3, figure 2: commitIndex = min(leaderCommit, index of last new entry)."""
    core = lone_core(term=1, log=[Entry(1, 1, NORMAL, b"a"), Entry(1, 2, NORMAL, b"stale")])
    core.step(Message(APPEND, 2, 1, 2, prev_index=1, prev_term=1, commit=2))
    assert core.log.commit == 1


def test_commit_index_and_leader_are_volatile() -> None:
    """Figure 2: a restarted node knows neither and learns both again."""
    raft = group("elect 1", "propose 1 a", "run", "crash 2", "start 2")
    assert core_of(raft, 2).log.commit == 0
    raft.run("tick 1")
    raft.run("run")
    assert core_of(raft, 2).log.commit == 2
    assert core_of(raft, 2).leader == 1


def test_every_committed_entry_is_handed_out_once_and_in_order() -> None:
    """§5.3, state machine safety at one node, over all Readies."""
    core = lone_core()
    handed: list[int] = []
    for index in range(1, 6):
        entry = Entry(1, index, NORMAL, b"%d" % index)
        for _ in range(2):  # each append comes twice
            core.step(Message(APPEND, 2, 1, 1, index - 1, min(1, index - 1), commit=index - 1, entries=[entry]))
            handed += [e.index for r in drain(core) for e in r.committed]
    assert handed == [1, 2, 3, 4]


def test_the_own_vote_counts_only_when_it_is_durable() -> None:
    """§5.1: a candidate that forgot voting for itself could vote for another in the same term."""
    core = RaftCore(1, RaftConfig(), SeededRandom(1), bootstrap([1]))
    for _ in range(24):
        core.tick()
    assert core.role == CANDIDATE
    r = core.ready()
    assert r.hard_state == HardState(1, 1)
    core.persisted(r.number)
    assert core.role == LEADER


def test_entries_replaced_on_their_way_to_disk_do_not_count_as_durable() -> None:
    """Of several writes in progress a later one replaces entries of an earlier one: only the surviving ones count."""
    core = lone_core()
    core.step(Message(APPEND, 2, 1, 1, entries=[Entry(1, i, NORMAL, b"") for i in (1, 2, 3)]))
    first = core.ready()
    core.step(Message(APPEND, 3, 1, 2, 1, 1, entries=[Entry(2, 2, NORMAL, b"")]))
    second = core.ready()
    assert [e.index for e in second.entries] == [2]
    core.persisted(first.number)
    assert core.log.stable == 1
    core.persisted(second.number)
    assert core.log.stable == 2


def test_a_hastened_follower_stands_within_four_ticks_unless_it_has_a_leader() -> None:
    """At the start of a cluster there is no leader to wait for; a known leader is waited for as usual (§5.2)."""
    for seed in range(20):
        core = lone_core(seed=seed)
        core.hasten()
        for _ in range(4):
            core.tick()
        assert core.role == PRE_CANDIDATE
        led = lone_core(seed=seed)
        answers(led, Message(HEARTBEAT, 2, 1, 1))
        led.hasten()
        for _ in range(4):
            led.tick()
        assert led.role == FOLLOWER


@pytest.mark.parametrize("kind", [COMMIT, HEARTBEAT])
def test_a_commit_index_counts_only_for_an_entry_of_the_leaders_own(kind: int) -> None:
    """§5.3: a log with a different entry there, or none, commits nothing, and keeps its committed entries."""
    log = [Entry(1, index, NORMAL, b"x") for index in (1, 2, 3)]
    core = lone_core(term=2, log=log)
    for index, term, expected in ((3, 2, 0), (4, 2, 0), (2, 1, 2), (3, 2, 2), (1, 1, 2), (3, 1, 3)):
        core.step(Message(kind, 2, 1, 2, prev_term=term, commit=index))
        drain(core)
        assert core.log.commit == expected
