"""Tablets without work are quiet: no ticks, no messages. Any event that matters wakes them.

Tried: each condition of `_may_be_quiet`, `_agrees`, `received`, `wake`, `lost`, `returned` and `is_news`, taken out
alone, makes a test fail. Those that follow from another one cannot: a settled group has committed its whole log, so
also an entry of the leader's term, and only a follower has another leader.
"""

from __future__ import annotations

from typing import Any

import pytest

from coord.raft.membership import Configuration
from coord.raft.messages import FOLLOWER, HEARTBEAT, HEARTBEAT_RESP, VOTE, Message
from regionserver.tablets.host.beats import BEAT_TICKS, SILENCE_TICKS
from regionserver.tablets.host.delivery import Word
from regionserver.tablets.host.envelope import BeatFrame, Header, Quiet, QuietWord, Refusal, TurnFrame
from regionserver.tablets.host.group import HEARTBEAT_TICKS, Group
from regionserver.tablets.host.quiet import QUIET_LOOKS, QUIET_TICKS, Looks, is_news
from regionserver.tablets.host.requests import Fate
from tests.support.tablet_hosts import CLUSTER, Hosts, fates

#: Ticks after which a tablet is quiet: the time without work, and two heartbeats.
REST = QUIET_TICKS + 12


def quiet_on(hosts: Hosts, tablet: str = "t") -> list[str]:
    """Return the servers on which a tablet is quiet."""
    return [name for name, server in hosts.servers.items() if tablet not in server.turn.quiet.awake]


def rest(hosts: Hosts) -> str:
    """Let the tablet become quiet; return the server that leads it."""
    leader = hosts.elect()
    hosts.ticks(REST)
    assert quiet_on(hosts) == list(hosts.servers)
    return leader


def words(hosts: Hosts, name: str, to: str = "") -> list[QuietWord]:
    """Return the messages about quiet tablets that a server has sent to the others, or to one of them."""
    return [item.word for server, item in hosts.servers[name].sent if isinstance(item, Quiet) and to in ("", server)]


def group_on(hosts: Hosts, name: str) -> Group:
    """Return the group of the tablet on a server."""
    return hosts.servers[name].turn.groups["t"]


def says(hosts: Hosts, name: str, item: Quiet, to: str) -> None:
    """Let a word arrive."""
    hosts.servers[to].turn.frame(name, TurnFrame(Header(CLUSTER, name, 1, to), [item]))


def forget_sent(hosts: Hosts) -> None:
    """Forget what was sent."""
    for server in hosts.servers.values():
        server.sent.clear()
        server.beaten.clear()


def test_a_tablet_without_work_sends_nothing(hosts: Hosts) -> None:
    leader = rest(hosts)
    forget_sent(hosts)
    term = hosts.core(leader).term
    hosts.ticks(400)
    assert all(not server.sent and not server.beaten for server in hosts.servers.values())
    assert (hosts.leader(), hosts.core(leader).term) == (leader, term)


# Fails if `wake` or `_sleeps` leaves out a set: simulation.tablets.world compares them after every frame as well.
def test_the_figures_count_quiet_tablets_and_leaders_without_looking_at_each(hosts: Hosts) -> None:
    leader = rest(hosts)
    for name, server in hosts.servers.items():
        quiet = server.turn.quiet
        assert (len(quiet.quiet), quiet.leaders(), len(quiet.led)) == (1, name == leader, name == leader)
    hosts.servers[leader].turn.propose("t", 1, b"x")
    quiet = hosts.servers[leader].turn.quiet
    assert (len(quiet.quiet), quiet.leaders(), len(quiet.led)) == (0, 1, 0)


# Fails if `next` leaves out the tablets that were awake before: what they did since the last look is not seen.
def test_a_look_visits_awake_tablets_and_each_other_one_once_in_ten() -> None:
    looks, tablets = Looks(), dict.fromkeys(f"t{number}" for number in range(3 * QUIET_LOOKS))
    assert "t5" in looks.next(tablets, ["t5", "gone"])
    visited = looks.next(tablets, [])
    assert "t5" in visited
    assert len(visited) == 4
    later = [one for _ in range(QUIET_LOOKS) for one in looks.next(tablets, [])]
    assert sorted(later) == sorted(tablets)


def test_work_wakes_all_members_and_ends(hosts: Hosts) -> None:
    leader = rest(hosts)
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.ticks(4)
    assert fates(hosts, leader) == {1: Fate.DONE}
    hosts.ticks(QUIET_TICKS - 5)
    assert quiet_on(hosts) == []
    hosts.ticks(REST)
    assert quiet_on(hosts) == list(hosts.servers)
    assert all(server.rows["t"] == [b"x"] for server in hosts.servers.values())


def test_a_group_that_is_read_all_the_time_stays_awake(hosts: Hosts) -> None:
    leader = rest(hosts)
    for request in range(2 * QUIET_TICKS):
        hosts.servers[leader].turn.read("t", request)
        hosts.ticks(1)
        assert leader not in quiet_on(hosts)


def test_a_request_at_a_follower_wakes_the_leader(hosts: Hosts) -> None:
    leader = rest(hosts)
    follower = next(name for name in hosts.servers if name != leader)
    forget_sent(hosts)
    for request in (1, 2):
        hosts.servers[follower].turn.read_at_least("t", request, 99)
        hosts.settle()
    assert words(hosts, follower) == [QuietWord.WAKE], "one word, not one for each request"
    assert leader not in quiet_on(hosts)
    hosts.ticks(8)
    assert hosts.leader() == leader, "no election because of it"


@pytest.mark.parametrize(
    "doubt",
    ["rows", "transferee", "newcomer", "refusal", "disk", "full", "majority", "match", "commit", "memory", "silence"],
)
def test_a_leader_with_a_doubt_stays_awake(hosts: Hosts, doubt: str) -> None:
    """Work under way, trouble here, or a member that may lack something."""
    name = hosts.elect()
    hosts.ticks(HEARTBEAT_TICKS)
    turn, group, lead = hosts.servers[name].turn, group_on(hosts, name), hosts.core(name).leadership
    assert lead is not None
    assert turn.quiet._may_be_quiet(group)
    peer = lead.peers[0]
    match doubt:
        case "rows":
            group.applied_index -= 1
        case "transferee":
            lead.transferee = peer.peer
        case "newcomer":
            group.core.configs.current = Configuration([1, 2, 3], pre_voters=[4])
        case "refusal":
            group.refusals[peer.peer] = Refusal("t", Word.FAILED, peer.peer, lead.id)
        case "disk":
            turn.beats.disk_answers = False
        case "full":
            turn.beats.is_full = True
        case "majority":
            for other in turn.beats.peers.values():
                other.is_there = False
        case "match":
            peer.match -= 1
        case "commit":
            peer.commit_sent -= 1
        case "memory":
            peer.counts = False
        case _:
            peer.last_received -= group.core.settings.election_ticks
    assert not turn.quiet._may_be_quiet(group)


def test_a_removed_member_that_refuses_keeps_nobody_awake(hosts: Hosts) -> None:
    """A late message of a former member makes its server known again, and the server refuses the answer."""
    name = hosts.elect()
    hosts.ticks(HEARTBEAT_TICKS)
    group = group_on(hosts, name)
    group.servers[9] = "s9"
    group.refusals[9] = Refusal("t", Word.DELETED, 9, group.core.id)
    assert hosts.servers[name].turn.quiet._may_be_quiet(group)


def test_a_leader_that_wakes_takes_its_time_again_and_wakes_the_others_with_the_next_beat(hosts: Hosts) -> None:
    """A request at a leader that is awake already causes no additional heartbeat."""
    name = rest(hosts)
    forget_sent(hosts)
    turn, group = hosts.servers[name].turn, group_on(hosts, name)
    turn.quiet.wake(group)
    hosts.ticks(BEAT_TICKS)
    assert quiet_on(hosts) == []
    beaten = len(hosts.servers[name].beaten)
    turn.quiet.wake(group)
    turn.take()
    assert not group.has_output()
    hosts.ticks(QUIET_TICKS - HEARTBEAT_TICKS)
    assert quiet_on(hosts) == []
    assert beaten == 2


def test_a_leader_that_wakes_counts_no_dead_member_as_heard(hosts: Hosts) -> None:
    name = rest(hosts)
    dead = next(one for one in hosts.servers if one != name)
    hosts.mute.add(dead)
    hosts.ticks(SILENCE_TICKS)
    group, lead = group_on(hosts, name), hosts.core(name).leadership
    assert lead is not None
    hosts.servers[name].turn.quiet.wake(group)
    heard = {group.servers[peer.peer]: peer.last_received == lead.now for peer in lead.peers}
    assert heard == {one: one != dead for one in hosts.servers if one != name}


@pytest.mark.parametrize("lacks", ["entry", "commit", "term", "rows", "leader", "memory", "beats"])
def test_a_follower_that_does_not_have_everything_wakes_its_leader(hosts: Hosts, lacks: str) -> None:
    leader = rest(hosts)
    follower = next(name for name in hosts.servers if name != leader)
    core, lead = hosts.core(follower), hosts.core(leader)
    commit, term = lead.log.commit + (lacks == "entry"), lead.term - (lacks == "term")
    if lacks == "commit":
        core.log.commit -= 1
    if lacks == "rows":
        hosts.servers[follower].turn.groups["t"].applied_index -= 1
    if lacks == "leader":
        hosts.servers[follower].turn._run(group_on(hosts, follower), group_on(hosts, follower).peer_gone, leader)
        hosts.settle()
    if lacks == "memory":
        core.memory += 1
    if lacks == "beats":
        hosts.servers[follower].turn.beats.peers[leader].is_there = False
    word = Quiet("t", QuietWord.QUIET, lead.id, core.id, term, commit)
    forget_sent(hosts)
    hosts.servers[follower].turn.frame(leader, TurnFrame(Header(CLUSTER, leader, 1, follower), [word]))
    assert follower not in quiet_on(hosts)
    sent = hosts.servers[follower].turn.take().frames.get(leader, [])
    assert [item.word for item in sent if isinstance(item, Quiet)] == ([] if lacks == "beats" else [QuietWord.WAKE])


def test_words_of_another_server_than_the_members_own_are_ignored(hosts: Hosts) -> None:
    leader = rest(hosts)
    one, other = (name for name in hosts.servers if name != leader)
    lead, core = hosts.core(leader), hosts.core(one)
    for word in (QuietWord.WAKE, QuietWord.LEFT):
        item = Quiet("t", word, lead.id, core.id, lead.term, lead.log.commit)
        hosts.servers[one].turn.frame(other, TurnFrame(Header(CLUSTER, other, 1, one), [item]))
    assert one in quiet_on(hosts)
    assert core.leader == lead.id


def test_words_to_a_former_replica_and_of_a_former_leader_are_ignored(hosts: Hosts) -> None:
    leader = rest(hosts)
    one = next(name for name in hosts.servers if name != leader)
    lead, core = hosts.core(leader), hosts.core(one)
    says(hosts, leader, Quiet("t", QuietWord.WAKE, lead.id, core.id + 9, lead.term, lead.log.commit), one)
    assert one in quiet_on(hosts)
    says(hosts, leader, Quiet("t", QuietWord.LEFT, lead.id, core.id, lead.term - 1, lead.log.commit), one)
    assert one in quiet_on(hosts)
    assert core.leader == lead.id


def test_a_parked_replica_says_nothing_and_does_not_wake(hosts: Hosts) -> None:
    leader = rest(hosts)
    one = next(name for name in hosts.servers if name != leader)
    turn, lead = hosts.servers[one].turn, hosts.core(leader)
    turn.park("t", "its rows are damaged")
    turn.take()
    for word in (QuietWord.QUIET, QuietWord.WAKE):
        says(hosts, leader, Quiet("t", word, lead.id, hosts.core(one).id, lead.term, lead.log.commit + 1), one)
    turn.quiet.wake(group_on(hosts, one))
    assert one in quiet_on(hosts)
    assert not turn.take().frames


def test_a_late_reply_to_a_heartbeat_is_no_news(hosts: Hosts) -> None:
    """A reply with new information counts as news, and so does every message to a follower."""
    leader = rest(hosts)
    other = next(name for name in hosts.servers if name != leader)
    group, core = group_on(hosts, leader), hosts.core(leader)

    def news(kind: int = HEARTBEAT_RESP, term: int = core.term, match_index: int = core.log.last) -> bool:
        return is_news(group, Message(kind, hosts.core(other).id, core.id, term, match_index=match_index))

    assert not news()
    assert news(match_index=core.log.last - 1)
    assert news(term=core.term + 1)
    assert news(kind=VOTE)
    assert is_news(group_on(hosts, other), Message(HEARTBEAT_RESP, core.id, 1, core.term, match_index=core.log.last))


@pytest.mark.parametrize("how", ["connection", "silence", "restart", "disk"])
def test_the_loss_of_the_leaders_server_wakes_the_others(how: str) -> None:
    hosts = Hosts()
    leader = rest(hosts)
    others = [name for name in hosts.servers if name != leader]
    if how == "disk":
        hosts.servers[leader].turn.disk(answers=False)
    else:
        hosts.mute.add(leader)
    for name in others:
        if how == "connection":
            hosts.servers[name].turn.peer_gone(leader, 1)
        elif how == "restart":
            hosts.servers[name].turn.introduced(leader, 2)
    hosts.ticks(SILENCE_TICKS + 9 if how == "silence" else 8)
    assert hosts.leader() in others


def test_a_leader_that_stops_says_so(hosts: Hosts) -> None:
    """Its server lives, so nothing else would tell the followers."""
    leader = rest(hosts)
    hosts.servers[leader].turn.remove("t")
    hosts.ticks(8)
    assert words(hosts, leader)[-1] is QuietWord.LEFT
    leads = [name for name in hosts.servers if name != leader and hosts.core(name).leadership is not None]
    assert len(leads) == 1


def test_a_follower_that_stops_says_nothing(hosts: Hosts) -> None:
    leader = rest(hosts)
    one = next(name for name in hosts.servers if name != leader)
    forget_sent(hosts)
    hosts.servers[one].turn.remove("t")
    hosts.settle()
    assert words(hosts, one) == []


def test_a_tablet_that_is_to_wake_can_be_removed(hosts: Hosts) -> None:
    leader = rest(hosts)
    one = next(name for name in hosts.servers if name != leader)
    turn = hosts.servers[one].turn
    turn.peer_gone(leader, 1)
    assert turn.quiet.take_due() == ["t"]
    turn.remove("t")
    turn.tick()
    assert turn.quiet.take_due() == []


def test_a_leader_that_is_parked_says_so(hosts: Hosts) -> None:
    leader = rest(hosts)
    hosts.servers[leader].turn.park("t", "its rows are damaged")
    hosts.ticks(8)
    assert hosts.leader() not in ("", leader)


def test_one_dead_server_keeps_no_group_awake_and_gets_what_it_lacks_when_it_returns(hosts: Hosts) -> None:
    leader = hosts.elect()
    dead = next(name for name in hosts.servers if name != leader)
    hosts.mute.add(dead)
    hosts.ticks(SILENCE_TICKS)
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.ticks(REST)
    alive = [name for name in hosts.servers if name != dead]
    assert [name for name in quiet_on(hosts) if name != dead] == alive
    assert words(hosts, leader, dead) == []
    hosts.mute.clear()
    hosts.ticks(12)
    assert hosts.servers[dead].rows["t"] == [b"x"]
    hosts.ticks(REST)
    assert quiet_on(hosts) == list(hosts.servers)


@pytest.mark.parametrize("how", ["beat", "start"])
def test_the_return_of_a_server_wakes_the_leader_alone(hosts: Hosts, how: str) -> None:
    """And once: what is awake, or parked, is not to wake."""
    leader = rest(hosts)
    dead, other = (name for name in hosts.servers if name != leader)

    def return_to(name: str) -> Any:
        turn = hosts.servers[name].turn
        turn.peer_gone(dead, turn.beats.peers[dead].start_code)
        if how == "start":
            turn.introduced(dead, turn.beats.peers[dead].start_code + 1)
        else:
            beat = turn.beats.peers[dead].beat + 1
            header = Header(CLUSTER, dead, turn.beats.peers[dead].start_code, name)
            turn.frame(dead, BeatFrame(header, beat, True, []))
        return turn

    return_to(other).tick()
    assert other in quiet_on(hosts)
    turn = return_to(leader)
    turn.tick()
    assert leader not in quiet_on(hosts)
    return_to(leader)
    assert turn.quiet.take_due() == []
    turn.park("t", "its rows are damaged")
    return_to(leader)
    assert turn.quiet.take_due() == []


def test_a_leader_without_a_majority_of_servers_wakes_and_resigns(hosts: Hosts) -> None:
    leader = rest(hosts)
    hosts.mute.update(name for name in hosts.servers if name != leader)
    hosts.ticks(SILENCE_TICKS + 2)
    assert leader not in quiet_on(hosts)
    hosts.ticks(10)
    assert hosts.core(leader).role == FOLLOWER or hosts.core(leader).leadership is None


def test_a_member_whose_build_does_not_read_the_words_keeps_its_group_awake(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = hosts.elect()
    old = next(name for name in hosts.servers if name != leader)
    for server in hosts.servers.values():
        monkeypatch.setattr(server.turn.quiet, "_reads_quiet", lambda name: name != old)
    hosts.ticks(2 * REST)
    assert quiet_on(hosts) == []
    assert any(item.message.kind == HEARTBEAT for _, item in hosts.servers[leader].beaten)
    hosts.servers[leader].turn.remove("t")
    hosts.settle()
    assert words(hosts, leader, old) == []


def test_not_all_tablets_of_a_lost_server_wake_in_one_tick() -> None:
    """All of them have new leaders in the end; a tablet with a request does not wait for its turn."""
    names = [f"t{n}" for n in range(12)]
    hosts = Hosts(tablets=names)
    hosts.elect("t0")
    hosts.ticks(2 * REST)
    lost = hosts.leader("t0")
    led = [tablet for tablet in names if hosts.leader(tablet) == lost]
    assert len(led) > 3
    others = [name for name in hosts.servers if name != lost]
    one = others[0]
    hosts.mute.add(lost)
    for name in others:
        hosts.servers[name].turn.quiet.wakes_per_tick = 2
        hosts.servers[name].turn.peer_gone(lost, 1)
    assert all(one in quiet_on(hosts, tablet) for tablet in led)
    hosts.servers[one].turn.read(led[-1], 1)
    assert one not in quiet_on(hosts, led[-1])
    hosts.servers[one].turn.tick()
    assert sum(one not in quiet_on(hosts, tablet) for tablet in led) == 3
    hosts.ticks(len(led) + 12)
    assert all(hosts.leader(tablet) not in ("", lost) for tablet in led)
