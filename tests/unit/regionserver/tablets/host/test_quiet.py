"""Tablets without work are quiet: no ticks, no messages; and whatever matters wakes them."""

from __future__ import annotations

import pytest

from coord.raft.messages import FOLLOWER, HEARTBEAT
from regionserver.tablets.host.beats import SILENCE_TICKS
from regionserver.tablets.host.envelope import Header, Quiet, QuietWord, TurnFrame
from regionserver.tablets.host.quiet import QUIET_TICKS
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


def words(hosts: Hosts, name: str) -> list[QuietWord]:
    """Return what a server has told the others about rest."""
    return [item.word for _, item in hosts.servers[name].sent if isinstance(item, Quiet)]


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


def test_work_wakes_all_members_and_ends(hosts: Hosts) -> None:
    leader = rest(hosts)
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.ticks(4)
    assert fates(hosts, leader) == {1: Fate.DONE}
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
    hosts.servers[follower].turn.read_at_least("t", 1, 99)
    hosts.settle()
    assert words(hosts, follower) == [QuietWord.WAKE]
    assert leader not in quiet_on(hosts)
    hosts.ticks(8)
    assert hosts.leader() == leader, "no election because of it"


@pytest.mark.parametrize("lacks", ["entry", "commit", "term", "rows"])
def test_a_follower_that_does_not_have_everything_wakes_its_leader(hosts: Hosts, lacks: str) -> None:
    leader = rest(hosts)
    follower = next(name for name in hosts.servers if name != leader)
    core, lead = hosts.core(follower), hosts.core(leader)
    commit, term = lead.log.commit + (lacks == "entry"), lead.term - (lacks == "term")
    if lacks == "commit":
        core.log.commit -= 1
    if lacks == "rows":
        hosts.servers[follower].turn.groups["t"].applied_index -= 1
    word = Quiet("t", QuietWord.QUIET, lead.id, core.id, term, commit)
    forget_sent(hosts)
    hosts.servers[follower].turn.frame(leader, TurnFrame(Header(CLUSTER, leader, 1, follower), [word]))
    assert follower not in quiet_on(hosts)
    sent = hosts.servers[follower].turn.take().frames[leader]
    assert [item.word for item in sent if isinstance(item, Quiet)] == [QuietWord.WAKE]


def test_words_of_another_server_than_the_members_own_are_ignored(hosts: Hosts) -> None:
    leader = rest(hosts)
    one, other = (name for name in hosts.servers if name != leader)
    lead, core = hosts.core(leader), hosts.core(one)
    for word in (QuietWord.WAKE, QuietWord.LEFT):
        item = Quiet("t", word, lead.id, core.id, lead.term, lead.log.commit)
        hosts.servers[one].turn.frame(other, TurnFrame(Header(CLUSTER, other, 1, one), [item]))
    assert one in quiet_on(hosts)
    assert core.leader == lead.id


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
    hosts.mute.clear()
    hosts.ticks(12)
    assert hosts.servers[dead].rows["t"] == [b"x"]
    hosts.ticks(REST)
    assert quiet_on(hosts) == list(hosts.servers)


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
