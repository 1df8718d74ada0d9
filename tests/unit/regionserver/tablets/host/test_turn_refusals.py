"""One host for all tablets of a server: rejected messages, and the effects of one bad tablet."""

from __future__ import annotations

import pytest

from coord.errors import RemoteProtocolError
from coord.raft.messages import (
    APPEND_RESP,
    VOTE,
    Message,
)
from regionserver.tablets.host.delivery import REFUSAL_TICKS
from regionserver.tablets.host.envelope import Envelope, Header, Refusal, TurnFrame, Word
from regionserver.tablets.host.group import ReplicaIdentity
from regionserver.tablets.host.requests import Fate
from tests.support.interpreted import needs_interpreted
from tests.support.tablet_hosts import CLUSTER, Hosts, fates, kinds

# --- what a server answers


def refusals(hosts: Hosts, name: str) -> list[tuple[Word, int]]:
    return [(item.word, item.src) for _, item in hosts.servers[name].sent if isinstance(item, Refusal)]


def deliver(hosts: Hosts, to: str, sender: str, m: Message, tablet: str = "t", cluster: str = CLUSTER) -> None:
    frame = TurnFrame(Header(cluster, sender, 1, to), [Envelope(tablet, m)])
    hosts.servers[to].turn.frame(sender, frame)
    hosts.turn(to)


def test_a_voter_is_not_made_from_nothing() -> None:
    """A server that lost its disk answers so, and its member never votes again."""
    hosts = Hosts()
    leader = hosts.elect()
    lost = next(name for name in hosts.servers if name != leader)
    hosts.servers[lost].turn.remove("t")
    hosts.servers[lost].sent.clear()
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.ticks(6)
    assert fates(hosts, leader) == {1: Fate.DONE}
    assert refusals(hosts, lost) == [(Word.DOES_NOT_EXIST, 0)]
    assert kinds(hosts.servers[lost].sent) == []
    assert "t" not in hosts.servers[lost].turn.groups
    told = hosts.servers[leader].turn.groups["t"].refusals
    assert {number: refusal.word for number, refusal in told.items()} == {int(lost[1:]): Word.DOES_NOT_EXIST}


def test_a_refusal_is_not_repeated_in_a_tight_loop(hosts: Hosts) -> None:
    vote = Message(VOTE, 2, 1, 5, 1, 1)
    for _ in range(100):
        deliver(hosts, "s1", "s2", vote, tablet="gone")
    assert refusals(hosts, "s1") == [(Word.DOES_NOT_EXIST, 0)]
    for _ in range(REFUSAL_TICKS):
        hosts.servers["s1"].turn.tick()
    deliver(hosts, "s1", "s2", vote, tablet="gone")
    assert len(refusals(hosts, "s1")) == 2


def refused(hosts: Hosts, leader: str, server: str, word: Word, number: int, term: int) -> None:
    """Have the leader receive a refusal of a member."""
    refusal = Refusal("t", word, number, int(leader[1:]), term)
    hosts.servers[leader].turn.frame(server, TurnFrame(Header(CLUSTER, server, 1, leader), [refusal]))
    hosts.turn(leader)


def test_a_leader_learns_of_a_later_term_from_a_voter_that_does_not_run() -> None:
    """A voter whose rows failed after it was a candidate accepts no copy from a leader of an earlier term. That leader
    would continue without this member for ever."""
    hosts = Hosts()
    leader = hosts.elect()
    failed = next(name for name in hosts.servers if name != leader)
    number, term = int(failed[1:]), hosts.core(leader).term
    # Any other refusal has no effect, and neither has one from a number that is not a voter.
    refused(hosts, leader, failed, Word.FAILED, number, term + 1)
    refused(hosts, leader, failed, Word.INVALID_TERM, number, term)
    refused(hosts, leader, failed, Word.INVALID_TERM, 9, term + 1)
    assert (hosts.core(leader).term, hosts.core(leader).leadership is not None) == (term, True)
    refused(hosts, leader, failed, Word.INVALID_TERM, number, term + 1)
    assert (hosts.core(leader).term, hosts.core(leader).leadership) == (term + 1, None)
    again = hosts.elect()
    assert hosts.core(again).term >= term + 1


def test_a_term_that_no_voter_can_have_is_not_believed() -> None:
    hosts = Hosts()
    leader = hosts.elect()
    other = next(name for name in hosts.servers if name != leader)
    term = hosts.core(leader).term
    refused(hosts, leader, other, Word.INVALID_TERM, int(other[1:]), 1 << 61)
    assert (hosts.core(leader).term, hosts.core(leader).leadership is not None) == (term, True)


def test_messages_for_another_number_change_nothing(hosts: Hosts) -> None:
    before = hosts.core("s1").term
    hosts.servers["s1"].turn.groups["t"].replica = ReplicaIdentity("t", 1, 1, 4)
    deliver(hosts, "s1", "s2", Message(VOTE, 2, 1, before + 9, 1, 1))
    deliver(hosts, "s1", "s2", Message(VOTE, 2, 5, before + 9, 1, 1))
    assert refusals(hosts, "s1") == [(Word.OLDER, 4)]
    assert hosts.core("s1").term == before


def test_messages_in_another_name_change_nothing(hosts: Hosts) -> None:
    before = hosts.core("s1").term
    vote = Message(VOTE, 3, 1, before + 9, 1, 1)
    deliver(hosts, "s1", "s2", vote)  # number 3 is on s3: a copied directory
    deliver(hosts, "s1", "s3", vote, cluster="another")
    with pytest.raises(RemoteProtocolError):
        hosts.servers["s1"].turn.frame("s3", TurnFrame(Header(CLUSTER, "s2", 1, "s1"), [Envelope("t", vote)]))
    assert refusals(hosts, "s1") == [(Word.INVALID_NAME, 0), (Word.INVALID_NAME, 0)]
    assert hosts.core("s1").term == before


# --- one bad tablet


@needs_interpreted
def test_a_bad_tablet_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(tablets=["bad", "good"])
    hosts.elect("bad")
    leader = hosts.elect("good")
    server = hosts.servers[leader]
    bad = server.turn.groups["bad"]

    def explode(*_: object) -> None:
        raise AssertionError("impossible")

    monkeypatch.setattr(bad, "tick", explode)
    server.turn.propose("bad", 1, b"x")
    server.turn.read("bad", 2)
    hosts.ticks(1)
    assert server.failed == [("bad", "AssertionError: impossible")]
    server.turn.propose("bad", 3, b"x")
    server.turn.propose("good", 4, b"x")
    hosts.ticks(1)
    assert fates(hosts, leader)[3] is Fate.FAILED
    assert fates(hosts, leader)[4] is Fate.DONE
    assert {1, 2} <= set(fates(hosts, leader)) | {read.request for read in server.reads}
    hosts.ticks(40)
    assert hosts.leader("bad") not in ("", leader)
    assert refusals(hosts, leader)[-1][0] in (Word.FAILED, Word.INVALID_TERM)
    assert server.turn.in_flight.bytes == 0


@needs_interpreted
@pytest.mark.parametrize("method", ["step", "_take", "propose", "persisted", "tick", "peer_gone"])
def test_an_exception_anywhere_in_a_group_parks_that_group(hosts: Hosts, method: str) -> None:
    leader = hosts.elect()
    server = hosts.servers[leader]
    server.turn.propose("t", 1, b"x")
    server.turn.read("t", 2)

    def explode(*_: object, **__: object) -> None:
        raise ValueError("impossible")

    setattr(server.turn.groups["t"], method, explode)
    server.turn.propose("t", 3, b"x")
    server.turn.peer_gone(next(name for name in hosts.servers if name != leader), 1)
    hosts.ticks(30)
    assert server.failed == [("t", "ValueError: impossible")]
    assert set(fates(hosts, leader)) | {read.request for read in server.reads} == {1, 2, 3}
    assert hosts.leader() not in ("", leader)


def test_what_cannot_be_true_is_dropped_and_named(hosts: Hosts) -> None:
    leader = hosts.elect()
    follower = next(name for name in hosts.servers if name != leader)
    core = hosts.core(leader)
    acknowledged = Message(
        APPEND_RESP, hosts.core(follower).id, core.id, core.term, match_index=core.log.last + 100, granted=True
    )
    deliver(hosts, leader, follower, acknowledged)
    ((tablet, server, why),) = hosts.servers[leader].rejected
    assert (tablet, server) == ("t", follower)
    assert "acknowledges" in why
    assert hosts.leader() == leader


def test_a_parked_tablet_keeps_its_promises_to_itself(hosts: Hosts) -> None:
    """Its writes may become durable later; nothing is sent then."""
    leader = hosts.elect()
    follower = next(name for name in hosts.servers if name != leader)
    hosts.slow_disk.add(follower)
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.settle()
    hosts.servers[follower].turn.park("t", "rows are damaged")
    hosts.servers[follower].sent.clear()
    hosts.sync(follower, even_if_slow=True)
    hosts.settle()
    assert kinds(hosts.servers[follower].sent) == []
