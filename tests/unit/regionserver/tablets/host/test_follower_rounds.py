"""Members that do not lead apply their entries together, and get the commit index with the next append or BEAT."""

from __future__ import annotations

import pytest

from coord.raft.messages import APPEND, COMMIT
from regionserver.tablets.host.beats import BEAT_TICKS
from regionserver.tablets.host.group import APPLY_TICKS, FOLLOWER_BYTES
from regionserver.tablets.host.requests import Fate
from tests.support.tablet_hosts import Hosts, fates, kinds

#: Ticks after which every member has applied the entries committed before.
ENOUGH_TICKS = BEAT_TICKS + APPLY_TICKS


@pytest.fixture
def leader(hosts: Hosts) -> str:
    """The leader of a group whose members have applied everything."""
    name = hosts.elect()
    hosts.ticks(ENOUGH_TICKS)
    for server in hosts.servers.values():
        server.sent.clear()
        server.rows.clear()
    return name


def followers(hosts: Hosts, leader: str) -> list[str]:
    return [name for name in hosts.servers if name != leader]


def write(hosts: Hosts, leader: str, request: int, payload: bytes) -> None:
    """Write, and wait for the answer, without any time passing."""
    hosts.servers[leader].turn.propose("t", request, payload)
    hosts.settle()
    assert fates(hosts, leader)[request] is Fate.DONE


def test_followers_apply_at_a_tick_what_was_committed_before(hosts: Hosts, leader: str) -> None:
    for request in range(5):
        write(hosts, leader, request, b"%d" % request)
    assert hosts.servers[leader].rows["t"] == [b"0", b"1", b"2", b"3", b"4"]
    assert not any(hosts.servers[name].rows for name in followers(hosts, leader))
    rounds: dict[str, list[int]] = {name: [] for name in followers(hosts, leader)}
    hosts.slow_rows.update(rounds)
    for _ in range(ENOUGH_TICKS):
        hosts.ticks(1)
        for name, sizes in rounds.items():
            sizes += [len(entries) for entries in hosts.servers[name].rounds.values()]
            hosts.apply(name, even_if_slow=True)
    for name, sizes in rounds.items():
        assert hosts.servers[name].rows["t"] == hosts.servers[leader].rows["t"]
        # The appends carry the commit index of all entries but the last one, a BEAT that of the last one.
        assert sum(sizes) == 5
        assert len(sizes) <= 2


def test_the_commit_index_waits_for_an_append_or_a_beat(hosts: Hosts, leader: str) -> None:
    sent = hosts.servers[leader].sent
    for request in range(5):
        write(hosts, leader, request, b"x")
    assert set(kinds(sent)) == {APPEND}
    assert hosts.core(followers(hosts, leader)[0]).log.commit == hosts.core(leader).log.commit - 1
    sent.clear()
    hosts.ticks(BEAT_TICKS)
    assert kinds(sent) == [COMMIT, COMMIT]
    assert {hosts.core(name).log.commit for name in hosts.servers} == {hosts.core(leader).log.commit}
    sent.clear()
    hosts.ticks(BEAT_TICKS)
    assert kinds(sent) == []


def test_a_commit_index_is_not_sent_after_a_later_one(hosts: Hosts, leader: str) -> None:
    server = hosts.servers[leader]
    write(hosts, leader, 1, b"x")  # its commit index waits for the BEAT
    others = followers(hosts, leader)
    hosts.slow_disk.update(others)
    server.turn.propose("t", 2, b"y")
    hosts.settle()
    for name in others:
        hosts.sync(name, even_if_slow=True)
        hosts.turn(name)
    # The commit of entry 2 and the proposal of entry 3 fall into one turn: the append carries the commit index.
    server.turn.propose("t", 3, b"z")
    server.sent.clear()
    hosts.settle()
    assert kinds(server.sent) == [APPEND, APPEND]
    server.sent.clear()
    hosts.ticks(BEAT_TICKS)
    assert COMMIT not in kinds(server.sent)
    assert {hosts.core(name).log.commit for name in hosts.servers} == {hosts.core(leader).log.last - 1}


def test_a_large_round_waits_for_no_tick(hosts: Hosts, leader: str) -> None:
    half = bytes(FOLLOWER_BYTES // 2)
    write(hosts, leader, 1, half)
    write(hosts, leader, 2, half)
    assert not any(hosts.servers[name].rows for name in followers(hosts, leader))
    # The append of this entry carries the commit index of the one before.
    write(hosts, leader, 3, b"x")
    for name in followers(hosts, leader):
        assert hosts.servers[name].rows["t"] == [half, half]


def test_a_read_that_names_an_index_waits_for_no_tick(hosts: Hosts, leader: str) -> None:
    write(hosts, leader, 1, b"x")
    write(hosts, leader, 2, b"y")
    name = followers(hosts, leader)[0]
    server = hosts.servers[name]
    server.turn.read_at_least("t", 7, hosts.core(name).log.commit)
    hosts.settle()
    assert [read.request for read in server.reads] == [7]
    assert server.rows["t"] == [b"x"]


def test_a_new_leader_applies_at_once_what_it_has_as_a_follower(hosts: Hosts, leader: str) -> None:
    for request in range(3):
        write(hosts, leader, request, b"%d" % request)
    hosts.mute.add(leader)
    for name in followers(hosts, leader):
        hosts.servers[name].turn.peer_gone(leader, 1)
    later = hosts.elect()
    assert later != leader
    assert hosts.servers[later].rows["t"] == [b"0", b"1", b"2"]
