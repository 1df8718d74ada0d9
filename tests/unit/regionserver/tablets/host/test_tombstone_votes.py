"""Votes of removed replicas (FW-06): every cell of the table, and a group that needs such a vote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coord.raft.messages import APPEND, HEARTBEAT, PRE_VOTE, PRE_VOTE_RESP, VOTE, VOTE_RESP, Message
from regionserver.tablets.host.delivery import (
    VOTE_RULES,
    Ballot,
    ReplicaStanding,
    State,
    TombstoneVote,
    ballot_of,
    vote_answer,
)
from regionserver.tablets.host.envelope import Envelope, Header, Refusal, TurnFrame, Word
from regionserver.tablets.host.group import ELECTION_TICKS
from regionserver.tablets.host.turn import Turn
from tests.support.tablet_hosts import CLUSTER, Hosts

#: A tombstone of number 3 that has voted for 1 in term 7; its log ended at entry 20 of term 6.
TOMBSTONE = ReplicaStanding(State.DELETED, 3, 7, 20, 6, may_vote=True, vote=1)


def request(term: int = 8, index: int = 20, last_term: int = 6, src: int = 2, kind: int = VOTE) -> Message:
    return Message(kind, src, 3, term, index, last_term)


@pytest.mark.parametrize("kind", [PRE_VOTE, VOTE])
@pytest.mark.parametrize(
    ("asked", "ballot"),
    [
        ({"term": 6}, Ballot.REJECT),
        ({"term": 7}, Ballot.REJECT),
        ({"term": 7, "src": 1}, Ballot.PROMISE),
        ({}, Ballot.PROMISE),
        ({"index": 19}, Ballot.REJECT),
        ({"index": 99, "last_term": 5}, Ballot.REJECT),
        ({"index": 1, "last_term": 7}, Ballot.PROMISE),
    ],
)
def test_when_a_tombstone_votes(kind: int, asked: dict[str, int], ballot: Ballot) -> None:
    """A tombstone votes not below its term, once in a term, and never for a log that is shorter than its former log."""
    if kind == PRE_VOTE and ballot is Ballot.PROMISE:
        ballot = Ballot.GRANT
    assert ballot_of(request(kind=kind, **asked), TOMBSTONE) is ballot


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("may_vote", [False, True])
def test_only_a_tombstone_with_memory_votes(state: State, may_vote: bool) -> None:
    """DOES_NOT_EXIST, LOST and a first copy never vote, nor does a replica that rests, fails or is being copied."""
    standing = ReplicaStanding(state, 3, 7, 20, 6, may_vote=may_vote)
    expected = Ballot.PROMISE if state is State.DELETED and may_vote else Ballot.SILENT
    assert ballot_of(request(), standing) is expected


def test_each_row_is_used() -> None:
    used = [
        (request(kind=APPEND), TOMBSTONE),
        (request(), ReplicaStanding(State.DELETED, 3)),
        (request(term=6), TOMBSTONE),
        (request(term=7), TOMBSTONE),
        (request(), replace(TOMBSTONE, is_led=True)),
        (request(index=3), TOMBSTONE),
        (request(kind=PRE_VOTE), TOMBSTONE),
        (request(), TOMBSTONE),
    ]
    first = [next(rule for rule in VOTE_RULES if rule.holds(*each)) for each in used]
    assert first == list(VOTE_RULES)


def test_the_answers_are_rafts() -> None:
    granted = vote_answer(request(), Ballot.PROMISE, TOMBSTONE)
    assert (granted.kind, granted.src, granted.dst, granted.term, granted.granted) == (VOTE_RESP, 3, 2, 8, True)
    rejected = vote_answer(request(term=6), Ballot.REJECT, TOMBSTONE)
    assert (rejected.term, rejected.granted) == (7, False)
    pre_vote = vote_answer(request(kind=PRE_VOTE), Ballot.GRANT, TOMBSTONE)
    assert (pre_vote.kind, pre_vote.term, pre_vote.granted) == (PRE_VOTE_RESP, 8, True)
    refused = vote_answer(request(kind=PRE_VOTE, index=1), Ballot.REJECT, TOMBSTONE)
    assert (refused.term, refused.granted) == (7, False)


class _Tombstone:
    """A server whose only replica is the tombstone."""

    def __init__(self) -> None:
        self.turn = Turn(CLUSTER, "s3", 1)
        self.turn.resting["t"] = TOMBSTONE
        self.votes: list[TombstoneVote] = []

    def asks(self, m: Message) -> list[Message | Word]:
        """Deliver a message of s2; return what leaves at once."""
        self.turn.frame("s2", TurnFrame(Header(CLUSTER, "s2", 5, "s3"), [Envelope("t", m)]))
        return self.takes()

    def takes(self) -> list[Message | Word]:
        out = self.turn.take()
        self.votes += out.votes
        return [item.word if isinstance(item, Refusal) else item.message for item in out.frames.get("s2", [])]


def test_a_vote_leaves_when_it_is_durable() -> None:
    server = _Tombstone()
    assert server.asks(request()) == []
    (vote,) = server.votes
    assert (vote.tablet, vote.server, vote.term, vote.vote) == ("t", "s2", 8, 2)
    server.turn.voted(vote)
    (answer,) = server.takes()
    assert isinstance(answer, Message)
    assert answer.granted


def test_a_tombstone_votes_once_in_a_term() -> None:
    """Also while its first vote is being written, and if that write is never confirmed."""
    server = _Tombstone()
    server.asks(request())
    (answer,) = server.asks(request(src=4))
    assert isinstance(answer, Message)
    assert not answer.granted
    assert server.asks(request()) == [], "the same candidate is answered when the write is durable"
    assert [vote.vote for vote in server.votes] == [2, 2]


def test_a_vote_of_a_term_that_is_over_is_not_sent() -> None:
    server = _Tombstone()
    server.asks(request())
    server.asks(request(term=9, src=4))
    server.turn.voted(server.votes[0])
    assert server.takes() == []


def test_other_messages_are_refused_as_before() -> None:
    server = _Tombstone()
    assert server.asks(request(kind=HEARTBEAT)) == [Word.DELETED]
    assert server.asks(Message(VOTE, 2, 2, 8, 20, 6)) == [], "a request for a former number is dropped"
    assert server.asks(Message(VOTE, 2, 4, 8, 20, 6)) == [Word.OLDER]


def heartbeat(term: int = 7) -> Message:
    return Message(HEARTBEAT, 2, 3, term)


def granted(server: _Tombstone, m: Message) -> bool:
    """Return the answer to a pre-vote."""
    (answer,) = server.asks(m)
    assert isinstance(answer, Message)
    assert answer.kind == PRE_VOTE_RESP
    return answer.granted


def test_a_tombstone_does_not_help_to_replace_a_leader_that_lives() -> None:
    """As a running follower: for an election timeout after each message of the leader, unless the leader asks."""
    server = _Tombstone()
    pre_vote = request(kind=PRE_VOTE, src=4)
    assert server.asks(heartbeat()) == [Word.DELETED]
    assert not granted(server, pre_vote)
    (rejected,) = server.asks(request(src=4))
    assert isinstance(rejected, Message)
    assert (rejected.granted, server.votes) == (False, [])
    for _ in range(ELECTION_TICKS):
        server.turn.tick()
    server.turn.take()
    assert granted(server, pre_vote)
    server.asks(heartbeat(term=9))
    wanted_by_the_leader = request(term=10, src=4)
    wanted_by_the_leader.granted = True
    server.asks(wanted_by_the_leader)
    assert [vote.vote for vote in server.votes] == [4]


def test_a_leader_that_is_gone_or_of_an_earlier_term_is_not_followed() -> None:
    server = _Tombstone()
    server.asks(heartbeat(term=6))
    assert granted(server, request(kind=PRE_VOTE, src=4))
    server.asks(heartbeat())
    server.turn.peer_gone("s2", 5)
    assert granted(server, request(kind=PRE_VOTE, src=4))


def test_a_group_finds_a_leader_by_the_vote_of_a_tombstone() -> None:
    """Of three voters one is gone and one is a tombstone: without its vote there would be no majority."""
    hosts = Hosts()
    leader = hosts.elect()
    removed, alive = [name for name in hosts.servers if name != leader]
    server = hosts.servers[removed]
    core = hosts.core(removed)
    last = core.log
    standing = ReplicaStanding(
        State.DELETED, int(removed[1:]), core.term, last.last, last.last_term, may_vote=True, vote=core.vote
    )
    server.turn.remove("t", standing)
    hosts.mute = {leader}
    hosts.servers[alive].turn.peer_gone(leader, 1)
    for _ in range(100):
        hosts.ticks(1)
        if hosts.core(alive).leadership is not None:
            return
    raise AssertionError("no leader")


def test_the_leader_of_a_tablet_that_is_gone_is_forgotten() -> None:
    """Otherwise a server would keep a leader for each tablet that it ever had."""
    server = _Tombstone()
    server.asks(heartbeat())
    assert set(server.turn._leaders._heard) == {"t"}
    server.turn.forget("t")
    assert server.turn._leaders._heard == {}
    assert server.asks(heartbeat()) == [Word.DOES_NOT_EXIST]
    assert server.turn._leaders._heard == {}
