"""Changes of members on three to five hosts: from the request to the committed configuration."""

from __future__ import annotations

import pytest

from coord.raft.messages import CONFIG, PRE_VOTE, PRE_VOTE_RESP, Message
from regions.messages.heartbeat import MemberHealth
from regions.messages.tablets import ChangeAnswer, ChangeConfig, ConfigChange, ConfigChanged
from regions.records.members import ConfigId, Member, MemberRole
from regionserver.tablets.host.beats import BEAT_TICKS
from regionserver.tablets.host.delivery import ReplicaStanding, State
from regionserver.tablets.host.envelope import Envelope, Header, Refusal, TurnFrame, Word
from regionserver.tablets.host.group import APPLY_TICKS, ELECTION_TICKS
from regionserver.tablets.host.members import endpoints_of, members_of
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.process.reports import ServersSeen, judge_members
from tests.support.tablet_hosts import CLUSTER, Hosts, endpoint


@pytest.fixture
def hosts() -> Hosts:
    """Five servers; the tablet's first members are on three of them."""
    return Hosts(5, first=3)


def committed(hosts: Hosts, name: str) -> ConfigId:
    found = hosts.core(name).committed_config()
    return ConfigId(found.term, found.index)


def members(hosts: Hosts, name: str) -> tuple[Member, ...]:
    return members_of(hosts.core(name).committed_config().config)


def ask(hosts: Hosts, name: str, kind: ConfigChange, number: int, expect: ConfigId | None = None) -> TabletAnswer:
    """Send a change to a server; return its answer."""
    server = hosts.servers[name]
    expect = committed(hosts, name) if expect is None else expect
    place = f"s{number}"
    request = 1000 + len(server.answers)
    change = ChangeConfig(1, name, 1, "t", expect, kind, number, place, place, 7000)
    server.turn.change_config("t", request, change)
    hosts.settle()
    return next(answer for answer in server.answers if answer.request == request)


def refused(hosts: Hosts, name: str, kind: ConfigChange, number: int, expect: ConfigId | None = None) -> ConfigChanged:
    answer = ask(hosts, name, kind, number, expect)
    assert answer.fate is Fate.REFUSED
    assert isinstance(answer.value, ConfigChanged)
    return answer.value


def test_a_member_joins_becomes_a_voter_and_leaves(hosts: Hosts) -> None:
    """Each step is one configuration, whose id rises; every member knows the servers of all others."""
    leader = hosts.elect()
    before = committed(hosts, leader)
    answer = ask(hosts, leader, ConfigChange.ADD, 4)
    assert answer.fate is Fate.DONE
    added = committed(hosts, leader)
    assert added == ConfigId(answer.term, answer.index) > before
    assert Member(4, "s4", MemberRole.PRE_VOTER) in members(hosts, leader)
    hosts.add("t", 4)
    hosts.ticks(20)
    assert committed(hosts, leader) > added
    assert Member(4, "s4") in members(hosts, leader)
    assert all(members(hosts, name) == members(hosts, leader) for name in ("s1", "s2", "s3", "s4"))
    assert endpoints_of(hosts.core("s4").configs.current)[-1] == endpoint(4, "s4")
    hosts.servers[leader].turn.propose("t", 1, b"row")
    hosts.settle()
    hosts.ticks(BEAT_TICKS + APPLY_TICKS)
    assert hosts.servers["s4"].rows["t"] == [b"row"]

    gone = next(number for number, name in hosts.places.items() if name != leader and number < 4)
    assert ask(hosts, leader, ConfigChange.REMOVE, gone).fate is Fate.DONE
    assert [one.number for one in members(hosts, leader)] == [one for one in (1, 2, 3, 4) if one != gone]
    assert gone not in [one.number for one in endpoints_of(hosts.core(leader).configs.current)]


def test_a_new_leader_promotes_nobody_before_the_voters_have_answered_it(hosts: Hosts) -> None:
    """A voter that died before this leadership has not been heard, however young the leadership is.

    Edit that makes this fail: `Leadership.is_promotion_safe` counts voters whose `memory` is -1.
    """
    former = hosts.elect()
    assert ask(hosts, former, ConfigChange.ADD, 4).fate is Fate.DONE
    dead, heir = (name for name in ("s1", "s2", "s3") if name != former)
    # The newcomer catches up under the next leader.
    hosts.mute = {dead, "s4"}
    hosts.add("t", 4)
    hosts.ticks(2 * ELECTION_TICKS)
    heir_number = next(number for number, name in hosts.places.items() if name == heir)
    hosts.servers[former].turn.transfer("t", heir_number)
    hosts.mute = {dead}
    hosts.ticks(3 * ELECTION_TICKS)
    assert hosts.leader() == heir
    assert Member(4, "s4", MemberRole.PRE_VOTER) in members(hosts, heir)


def test_a_voter_without_its_memory_goes_before_its_successor_is_promoted() -> None:
    """Otherwise the other four voters would promote the newcomer, which makes six voters. Six survive the loss of two,
    and the voter without its memory counts as the first of them.

    Edit that makes this fail: `Group.refused` notes no lost members.
    """
    hosts = Hosts(6, first=5)
    leader = hosts.elect()
    lost = next(number for number, name in hosts.places.items() if name != leader)
    hosts.servers[hosts.places[lost]].turn.remove("t", ReplicaStanding(State.DELETED, lost))
    assert ask(hosts, leader, ConfigChange.ADD, 6).fate is Fate.DONE
    hosts.add("t", 6)
    hosts.ticks(3 * ELECTION_TICKS)
    assert Member(6, "s6", MemberRole.PRE_VOTER) in members(hosts, leader)
    assert ask(hosts, leader, ConfigChange.REMOVE, lost).fate is Fate.DONE
    hosts.ticks(ELECTION_TICKS)
    assert Member(6, "s6") in members(hosts, leader)


def test_a_repeated_change_is_done_and_a_late_one_is_stale(hosts: Hosts) -> None:
    """Compare and set on the committed configuration (TC-16, TC-17)."""
    leader = hosts.elect()
    first = committed(hosts, leader)
    assert ask(hosts, leader, ConfigChange.ADD, 4, first).fate is Fate.DONE
    assert refused(hosts, leader, ConfigChange.ADD, 4, first).answer is ChangeAnswer.DONE
    stale = refused(hosts, leader, ConfigChange.ADD, 5, first)
    assert stale.answer is ChangeAnswer.STALE_CONFIG
    assert stale.config_id == committed(hosts, leader)
    assert [one.number for one in stale.members] == [1, 2, 3, 4]


def test_a_follower_names_the_leader(hosts: Hosts) -> None:
    leader = hosts.elect()
    other = next(name for name in ("s1", "s2", "s3") if name != leader)
    answer = refused(hosts, other, ConfigChange.ADD, 4)
    assert (answer.answer, answer.leader_server) == (ChangeAnswer.NOT_LEADER, leader)


def test_a_second_change_waits_for_the_first(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.mute = {name for name in hosts.servers if name != leader}
    server = hosts.servers[leader]
    expect = committed(hosts, leader)
    server.turn.change_config("t", 1, ChangeConfig(1, leader, 1, "t", expect, ConfigChange.ADD, 4, "s4", "s4", 7000))
    hosts.settle()
    assert refused(hosts, leader, ConfigChange.ADD, 5, expect).answer is ChangeAnswer.PENDING
    hosts.mute.clear()
    hosts.ticks(20)
    assert [answer.fate for answer in server.answers if answer.request == 1] == [Fate.DONE]


def test_an_add_whose_server_never_answers_is_given_up(hosts: Hosts) -> None:
    """FW-07: the quorum has never changed, so a REMOVE takes the add back."""
    leader = hosts.elect()
    before = members(hosts, leader)
    assert ask(hosts, leader, ConfigChange.ADD, 5).fate is Fate.DONE
    hosts.ticks(50)
    assert ask(hosts, leader, ConfigChange.REMOVE, 5).fate is Fate.DONE
    assert members(hosts, leader) == before
    assert ask(hosts, leader, ConfigChange.ADD, 4).fate is Fate.DONE


def test_the_leader_is_not_removed(hosts: Hosts) -> None:
    """The leader first hands its leadership over; then the next leader removes it."""
    leader = hosts.elect()
    number = next(number for number, name in hosts.places.items() if name == leader)
    for kind in (ConfigChange.REMOVE, ConfigChange.DEMOTE):
        assert refused(hosts, leader, kind, number).answer is ChangeAnswer.LEADS
    answer = hosts.servers[leader].turn.transfer("t", 0)
    assert answer is not None
    assert answer.answer is ChangeAnswer.STARTED
    hosts.settle()
    successor = hosts.elect()
    assert successor != leader
    assert ask(hosts, successor, ConfigChange.REMOVE, number).fate is Fate.DONE
    assert leader not in {one.uuid for one in members(hosts, successor)}


def test_transfer_names_its_refusals(hosts: Hosts) -> None:
    leader = hosts.elect()
    turn = hosts.servers[leader].turn
    own = turn.groups["t"].replica.number
    other = next(name for name in ("s1", "s2", "s3") if name != leader)
    third = next(number for number in (1, 2, 3) if hosts.places[number] not in (leader, other))

    def answer(name: str, to: int) -> ChangeAnswer:
        found = hosts.servers[name].turn.transfer("t", to)
        assert found is not None
        return found.answer

    assert answer(other, 0) is ChangeAnswer.NOT_LEADER
    assert answer(leader, own) is ChangeAnswer.DONE
    assert answer(leader, 9) is ChangeAnswer.ILLEGAL
    assert hosts.servers["s5"].turn.transfer("t", 0) is None
    hosts.mute = {hosts.places[third]}
    hosts.ticks(15)
    assert answer(leader, third) is ChangeAnswer.UNSAFE
    hosts.mute = {name for name in hosts.servers if name != leader}
    assert answer(leader, 0) is ChangeAnswer.STARTED
    assert answer(leader, third) is ChangeAnswer.PENDING
    assert refused(hosts, leader, ConfigChange.ADD, 4).answer is ChangeAnswer.PENDING


def test_a_removal_that_leaves_no_live_majority_is_unsafe(hosts: Hosts) -> None:
    leader = hosts.elect()
    silent, alive = [name for name in ("s1", "s2", "s3") if name != leader]
    hosts.mute = {silent}
    hosts.ticks(20)
    assert hosts.leader() == leader
    assert refused(hosts, leader, ConfigChange.REMOVE, int(alive[1:])).answer is ChangeAnswer.UNSAFE
    assert ask(hosts, leader, ConfigChange.REMOVE, int(silent[1:])).fate is Fate.DONE


def test_the_floor_waits_for_the_consensus_metadata(hosts: Hosts) -> None:
    """The entry of a configuration leaves the log only when the configuration is recorded elsewhere."""
    leader = hosts.elect()
    server = hosts.servers[leader]
    server.notes_configs = False
    assert ask(hosts, leader, ConfigChange.ADD, 4).fate is Fate.DONE
    index = committed(hosts, leader).index
    assert server.configs == [(committed(hosts, leader).term, index)]
    server.turn.propose("t", 1, b"row")
    hosts.settle()
    last = server.turn.groups["t"].applied_index
    assert last > index
    floor = server.turn.steady("t", index - 1)
    assert floor is not None
    assert floor.index == index - 1
    assert server.turn.steady("t", index) is None
    assert server.turn.steady("t", last) is None
    server.turn.noted("t", index)
    floor = server.turn.steady("t", last)
    assert floor is not None
    assert floor.index == last
    assert committed(hosts, leader).index == index, "the id outlives the entry"


def test_a_member_that_the_configuration_does_not_have_yet_gets_an_answer(hosts: Hosts) -> None:
    """Member 4 stands for election before its entry has arrived here; without a reply it could never win."""
    hosts.elect()
    turn = hosts.servers["s1"].turn
    last = hosts.core("s1").log
    request = Message(PRE_VOTE, 4, 1, hosts.core("s1").term + 1, last.last, last.last_term, granted=True)
    turn.frame("s4", TurnFrame(Header(CLUSTER, "s4", 1, "s1"), [Envelope("t", request)]))
    (answer,) = turn.take().frames["s4"]
    assert isinstance(answer, Envelope)
    assert (answer.message.kind, answer.message.dst) == (PRE_VOTE_RESP, 4)
    forged = Message(PRE_VOTE, 2, 1, request.term, last.last, last.last_term, granted=True)
    turn.frame("s4", TurnFrame(Header(CLUSTER, "s4", 1, "s1"), [Envelope("t", forged)]))
    (refusal,) = turn.take().frames["s4"]
    assert isinstance(refusal, Refusal), "a number of the configuration belongs to its server"


def test_a_leader_asks_for_the_copy_of_a_newcomer(hosts: Hosts) -> None:
    """The server of a PRE_VOTER answers DOES_NOT_EXIST. The leader then has one request for a copy under way."""
    leader = hosts.elect()
    server = hosts.servers[leader]
    assert ask(hosts, leader, ConfigChange.ADD, 4).fate is Fate.DONE
    hosts.ticks(30)
    (wanted,) = server.copies
    assert (wanted.number, wanted.server, wanted.role) == (4, "s4", MemberRole.PRE_VOTER)
    assert wanted.term == hosts.core(leader).term
    server.turn.copy_answered("t", 4)
    hosts.ticks(30)
    assert len(server.copies) == 2
    assert sum(entry.kind == CONFIG for entry in hosts.core(leader).log.entries) == 1


def test_a_newcomer_whose_copy_was_cut_short_has_not_failed(hosts: Hosts) -> None:
    """Its server restarted during the copy and has a tombstone without memory; the leader has the rows copied again. A
    voter with the same answer has failed."""
    leader = hosts.elect()
    assert ask(hosts, leader, ConfigChange.ADD, 4).fate is Fate.DONE
    group = hosts.servers[leader].turn.groups["t"]
    voter = next(number for number, name in hosts.places.items() if name != leader and number < 4)
    lead = group.core.leadership
    assert lead is not None
    for word in (Word.DELETED, Word.FAILED):
        group.refusals = {number: Refusal("t", word, number, group.replica.number) for number in (4, voter)}
        seen = ServersSeen(frozenset(hosts.servers), frozenset())
        judged = {one.number: one.health for one in judge_members(group, lead, seen, 300.0)}
        assert (judged[4], judged[voter]) == (MemberHealth.UNKNOWN, MemberHealth.FAILED)


@pytest.mark.parametrize("word", [Word.DOES_NOT_EXIST, Word.COPYING, Word.DELETED])
def test_a_member_of_a_dead_server_has_failed_whatever_the_server_refused_before(hosts: Hosts, word: Word) -> None:
    """A server that had not made its first replica yet refused a message, and died. A dead server cannot withdraw its
    refusal.

    Formerly the tablet of a leader that was elected later kept only two members.
    """
    leader = hosts.elect()
    group, lead = hosts.servers[leader].turn.groups["t"], hosts.core(leader).leadership
    assert lead is not None
    dead = next(peer for peer in lead.peers if peer.peer in hosts.places)
    dead.match = 0
    group.refusals[dead.peer] = Refusal("t", word, 0, group.replica.number)
    there = frozenset(hosts.servers) - {hosts.places[dead.peer]}

    def health(seen: ServersSeen) -> MemberHealth:
        return {one.number: one.health for one in judge_members(group, lead, seen, 300.0)}[dead.peer]

    assert health(ServersSeen(there, frozenset(), frozenset((hosts.places[dead.peer],)))) is MemberHealth.FAILED
    alive = health(ServersSeen(frozenset(hosts.servers), frozenset()))
    assert alive is (MemberHealth.FAILED if word is Word.DELETED else MemberHealth.UNKNOWN)
