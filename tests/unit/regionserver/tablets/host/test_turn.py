"""One host for all tablets of a server: the order of its output, and the answers to clients."""

from __future__ import annotations

import pytest

from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    HEARTBEAT,
    HEARTBEAT_RESP,
    NORMAL,
    VOTE,
    VOTE_RESP,
    Entry,
    HardState,
    Message,
)
from coord.raft.progress import REPLICATE
from coord.storage.shared.items import Floor, Position
from regions.messages.tablets import ChangeAnswer
from regionserver.tablets.host import group as group_module
from regionserver.tablets.host import members, requests
from regionserver.tablets.host.beats import BEAT_TICKS, SILENCE_TICKS
from regionserver.tablets.host.delivery import ReplicaStanding, State
from regionserver.tablets.host.envelope import PAYLOAD_BYTES_MAX, BeatFrame, Envelope, Header, Item, TurnFrame
from regionserver.tablets.host.group import (
    APPLY_TICKS,
    HEARTBEAT_TICKS,
    KEEP_ENTRIES,
    RANK_TICKS,
    ROUND_ENTRIES_MAX,
    ReplicaIdentity,
)
from regionserver.tablets.host.requests import TABLET_BYTES_MAX, TABLET_READS_MAX, Fate
from tests.support.tablet_hosts import CLUSTER, Hosts, fates, kinds

# --- writes


def test_a_write_is_answered_after_it_is_applied(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.slow_rows.add(leader)
    hosts.servers[leader].turn.propose("t", 7, b"row")
    hosts.settle()
    assert fates(hosts, leader) == {}
    hosts.apply(leader, even_if_slow=True)
    hosts.settle()
    (answer,) = hosts.servers[leader].answers
    assert (answer.request, answer.fate, answer.value) == (7, Fate.DONE, b"ROW")
    assert (answer.term, answer.index) == (hosts.core(leader).term, hosts.core(leader).log.last)
    hosts.ticks(BEAT_TICKS + APPLY_TICKS)
    assert all(server.rows["t"] == [b"row"] for server in hosts.servers.values())


def test_all_writes_of_a_turn_are_one_item_and_one_append_per_member(hosts: Hosts) -> None:
    leader = hosts.elect()
    server = hosts.servers[leader]
    for request in range(50):
        server.turn.propose("t", request, b"%d" % request)
    server.sent.clear()
    out = hosts.turn(leader)
    assert [len(items.entries) for items in out.log] == [50]
    assert kinds(server.sent) == [APPEND, APPEND]
    hosts.settle()
    assert set(fates(hosts, leader).values()) == {Fate.DONE}


def test_groups_share_one_write_and_one_frame_per_peer() -> None:
    hosts = Hosts(tablets=[f"t{n}" for n in range(20)])
    name = hosts.elect("t0")
    hosts.ticks(40)
    led = [tablet for tablet in hosts.servers[name].turn.groups if hosts.leader(tablet) == name]
    for request, tablet in enumerate(led):
        hosts.servers[name].turn.propose(tablet, request, b"x")
    out = hosts.turn(name)
    assert sorted(items.slot for items in out.log) == sorted(
        hosts.servers[name].turn.groups[tablet].replica.slot for tablet in led
    )
    assert len(out.frames) == 2
    assert out.log_number == hosts.servers[name].turn.written


def test_other_members_name_the_leader(hosts: Hosts) -> None:
    leader = hosts.elect()
    other = next(name for name in hosts.servers if name != leader)
    hosts.servers[other].turn.propose("t", 1, b"x")
    hosts.servers[other].turn.read("t", 2)
    hosts.settle()
    for answer in hosts.servers[other].answers:
        assert (answer.fate, answer.leader_server) == (Fate.NOT_LEADER, leader)
        assert hosts.places[answer.leader] == leader


def test_requests_for_a_missing_tablet_are_answered(hosts: Hosts) -> None:
    turn = hosts.servers["s1"].turn
    turn.resting["closed"] = ReplicaStanding(State.RESTING, 1)
    turn.propose("nowhere", 1, b"x")
    turn.read("closed", 2)
    assert [answer.fate for answer in turn.take().answers] == [Fate.DOES_NOT_EXIST, Fate.FAILED]


def test_a_leader_that_is_deposed_does_not_know_what_became_of_a_write(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.mute.add(leader)
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.servers[leader].turn.read("t", 2)
    hosts.ticks(12)
    assert fates(hosts, leader) == {1: Fate.UNKNOWN, 2: Fate.NOT_LEADER}
    assert hosts.servers[leader].turn.in_flight.bytes == 0


# promises of durability


def promised(items: list[tuple[str, Item]]) -> list[int]:
    """Return the kinds of messages that promise something durable."""
    return [
        item.message.kind
        for _, item in items
        if isinstance(item, Envelope)
        and (item.message.kind == VOTE or (item.message.kind in (VOTE_RESP, APPEND_RESP) and item.message.granted))
    ]


def test_votes_and_acknowledgments_leave_after_their_write() -> None:
    hosts = Hosts()
    hosts.slow_disk.update(hosts.servers)
    for _ in range(30):
        hosts.ticks(1)
        assert not any(promised(server.sent) for server in hosts.servers.values())
    assert any(server.log for server in hosts.servers.values())


def test_an_acknowledgment_waits_for_its_own_write(hosts: Hosts) -> None:
    leader = hosts.elect()
    follower = next(name for name in hosts.servers if name != leader)
    hosts.slow_disk.add(follower)
    hosts.servers[follower].sent.clear()
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.settle()
    assert fates(hosts, leader) == {1: Fate.DONE}
    assert promised(hosts.servers[follower].sent) == []
    hosts.sync(follower, even_if_slow=True)
    hosts.settle()
    assert promised(hosts.servers[follower].sent) == [APPEND_RESP]


def test_a_promise_without_a_write_waits_for_earlier_writes_of_its_group(hosts: Hosts) -> None:
    """An append that arrives twice: the second answer writes nothing but still promises the first write."""
    leader = hosts.elect()
    follower = next(name for name in hosts.servers if name != leader)
    server = hosts.servers[follower]
    core = hosts.core(leader)
    hosts.slow_disk.add(follower)
    server.sent.clear()
    entry = Entry(core.term, core.log.last + 1, NORMAL, b"x")
    for _ in range(2):
        append = Message(APPEND, core.id, hosts.core(follower).id, core.term, core.log.last, core.term, entries=[entry])
        server.turn.frame(leader, TurnFrame(Header(CLUSTER, leader, 1, follower), [Envelope("t", append)]))
        hosts.turn(follower)
    assert promised(server.sent) == []
    hosts.sync(follower, even_if_slow=True)
    hosts.turn(follower)
    assert promised(server.sent) == [APPEND_RESP, APPEND_RESP]


def test_rows_do_not_run_ahead_of_the_log(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.slow_disk.add(leader)
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.settle()
    assert hosts.core(leader).log.commit == hosts.core(leader).log.last
    assert hosts.servers[leader].rows.get("t", []) == []
    hosts.sync(leader, even_if_slow=True)
    hosts.settle()
    assert hosts.servers[leader].rows["t"] == [b"x"]


def test_a_tablet_applies_one_round_at_a_time(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.slow_rows.add(leader)
    for request in range(2 * ROUND_ENTRIES_MAX + 1):
        hosts.servers[leader].turn.propose("t", request, b"x")
    rounds = []
    for _ in range(4):
        hosts.settle()
        rounds.append(len(hosts.servers[leader].rounds.get("t", [])))
        hosts.apply(leader, even_if_slow=True)
    assert rounds == [ROUND_ENTRIES_MAX, ROUND_ENTRIES_MAX, 1, 0]


# --- bounds


def test_bytes_in_flight_of_a_tablet_are_bounded(hosts: Hosts) -> None:
    leader = hosts.elect()
    turn = hosts.servers[leader].turn
    turn.propose("t", 1, bytes(PAYLOAD_BYTES_MAX))
    turn.propose("t", 2, bytes(TABLET_BYTES_MAX - PAYLOAD_BYTES_MAX))
    turn.propose("t", 3, b"x")
    turn.propose("t", 4, b"")
    hosts.settle()
    assert fates(hosts, leader) == {1: Fate.DONE, 2: Fate.DONE, 3: Fate.BUSY, 4: Fate.DONE}
    turn.propose("t", 5, bytes(PAYLOAD_BYTES_MAX))
    hosts.settle()
    assert fates(hosts, leader)[5] is Fate.DONE


def test_bytes_in_flight_of_a_server_are_bounded() -> None:
    hosts = Hosts(tablets=["t", "u"], server_bytes=100)
    leader = hosts.elect("t")
    hosts.elect("u")
    if hosts.leader("u") != leader:
        to = hosts.core(leader, "u").id
        hosts.core(hosts.leader("u"), "u").transfer_leadership(to)
        hosts.ticks(5)
        assert hosts.leader("u") == leader
    turn = hosts.servers[leader].turn
    turn.propose("t", 1, bytes(100))
    turn.propose("u", 2, b"x")
    hosts.settle()
    assert fates(hosts, leader) == {1: Fate.DONE, 2: Fate.BUSY}
    assert turn.in_flight.bytes == 0


def test_a_payload_has_a_limit(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.servers[leader].turn.propose("t", 1, bytes(PAYLOAD_BYTES_MAX))
    hosts.servers[leader].turn.propose("t", 2, bytes(PAYLOAD_BYTES_MAX + 1))
    hosts.settle()
    assert fates(hosts, leader) == {1: Fate.DONE, 2: Fate.TOO_LARGE}


def test_waiting_reads_are_bounded(hosts: Hosts) -> None:
    leader = hosts.elect()
    for request in range(TABLET_READS_MAX + 1):
        hosts.servers[leader].turn.read("t", request)
    hosts.settle()
    assert fates(hosts, leader) == {TABLET_READS_MAX: Fate.BUSY}
    assert [read.request for read in hosts.servers[leader].reads] == list(range(TABLET_READS_MAX))


# --- reads


def test_all_reads_of_a_turn_share_one_round(hosts: Hosts) -> None:
    leader = hosts.elect()
    server = hosts.servers[leader]
    for request in range(100):
        server.turn.read("t", request)
    server.sent.clear()
    hosts.turn(leader)
    assert kinds(server.sent) == [HEARTBEAT, HEARTBEAT]
    hosts.settle()
    assert [read.request for read in server.reads] == list(range(100))


def test_a_read_waits_until_the_rows_hold_what_was_committed(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.slow_rows.add(leader)
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.settle()
    hosts.servers[leader].turn.read("t", 2)
    hosts.settle()
    assert hosts.servers[leader].reads == []
    hosts.apply(leader, even_if_slow=True)
    hosts.settle()
    assert [(read.request, read.index) for read in hosts.servers[leader].reads] == [(2, hosts.core(leader).log.last)]


def test_a_new_leader_answers_reads_after_its_first_commit(hosts: Hosts) -> None:
    first = hosts.elect()
    hosts.mute.add(first)
    hosts.slow_disk.update(hosts.servers)
    second = ""
    for _ in range(80):
        # Disks sync for the election, but not for the first entry of the term.
        if not hosts.leader():
            for name in hosts.servers:
                hosts.sync(name, even_if_slow=True)
        hosts.ticks(1)
        second = hosts.leader()
        if second:
            break
    assert second
    hosts.servers[second].turn.read("t", 1)
    hosts.ticks(3)
    assert hosts.servers[second].reads == []
    hosts.slow_disk.clear()
    hosts.ticks(3)
    assert [read.request for read in hosts.servers[second].reads] == [1]


def test_a_leader_that_is_cut_off_answers_no_read(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.mute.add(leader)
    hosts.servers[leader].turn.read("t", 1)
    hosts.ticks(15)
    assert hosts.servers[leader].reads == []
    assert fates(hosts, leader) == {1: Fate.NOT_LEADER}


def test_any_replica_serves_a_read_that_names_an_index(hosts: Hosts) -> None:
    leader = hosts.elect()
    follower = next(name for name in hosts.servers if name != leader)
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.settle()
    hosts.ticks(2)
    (answer,) = hosts.servers[leader].answers
    hosts.servers[follower].turn.read_at_least("t", 2, answer.index)
    hosts.servers[follower].turn.read_at_least("t", 3, answer.index + 1)
    hosts.settle()
    assert [read.request for read in hosts.servers[follower].reads] == [2]
    hosts.ticks(requests.AT_LEAST_TICKS)
    assert fates(hosts, follower) == {3: Fate.TOO_STALE}


# --- liveness between servers


def test_heartbeats_travel_in_beats(hosts: Hosts) -> None:
    """One BEAT per pair every 100 ms, for any number of tablets; no message per group."""
    leader = hosts.elect()
    hosts.ticks(4)
    for server in hosts.servers.values():
        server.sent.clear()
        server.beaten.clear()
    hosts.ticks(16)
    assert all(server.sent == [] for server in hosts.servers.values())
    # The last ones may wait for the next BEAT.
    rounds = 16 // HEARTBEAT_TICKS
    assert kinds(hosts.servers[leader].beaten) in ([HEARTBEAT] * 2 * rounds, [HEARTBEAT] * 2 * (rounds - 1))
    others = [kinds(server.beaten) for name, server in hosts.servers.items() if name != leader]
    assert all(set(each) == {HEARTBEAT_RESP} and len(each) >= rounds - 1 for each in others)
    assert hosts.leader() == leader


def test_a_late_answer_in_a_beat_does_not_look_like_lost_entries(hosts: Hosts) -> None:
    leader = hosts.elect()
    for request in range(60):
        hosts.servers[leader].turn.propose("t", request, b"x")
        hosts.ticks(1)
        assert all(peer.state == REPLICATE for peer in hosts.core(leader).leadership.peers), "a peer is probed"
    assert set(fates(hosts, leader).values()) == {Fate.DONE}


@pytest.mark.parametrize("how", ["connection", "silence", "restart"])
def test_when_a_server_is_gone_its_tablets_have_new_leaders_soon(how: str) -> None:
    hosts = Hosts(tablets=[f"t{n}" for n in range(10)])
    name = hosts.elect("t0")
    hosts.ticks(40)
    led = [tablet for tablet in hosts.servers[name].turn.groups if hosts.leader(tablet) == name]
    hosts.mute.add(name)
    if how == "connection":
        for other in hosts.servers:
            if other != name:
                hosts.servers[other].turn.peer_gone(name, 1)
        within = 6
    elif how == "restart":
        for other in hosts.servers:
            if other != name:
                hosts.servers[other].turn.introduced(name, 2)
        within = 6
    else:
        within = SILENCE_TICKS + 8
    hosts.ticks(within)
    assert led
    assert all(hosts.leader(tablet) not in ("", name) for tablet in led), how


def test_frames_of_a_process_that_was_replaced_are_dropped(hosts: Hosts) -> None:
    hosts.elect()
    turn = hosts.servers["s1"].turn
    assert turn.introduced("s2", 5)
    before = hosts.core("s1").term
    vote = Message(VOTE, 2, 1, before + 10, 99, before + 9, granted=True)
    turn.frame("s2", TurnFrame(Header(CLUSTER, "s2", 4, "s1"), [Envelope("t", vote)]))
    assert hosts.core("s1").term == before
    turn.frame("s2", TurnFrame(Header(CLUSTER, "s2", 5, "s1"), [Envelope("t", vote)]))
    assert hosts.core("s1").term == before + 10


def test_a_server_whose_disk_does_not_answer_hands_its_leaderships_over(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.ticks(4)
    hosts.servers[leader].turn.disk(answers=False)
    hosts.ticks(4)
    assert hosts.leader() not in ("", leader)
    other = hosts.servers[hosts.leader()].turn
    assert not other.beats.is_there(leader)
    hosts.servers[leader].turn.disk(answers=True)
    hosts.ticks(2)
    assert other.beats.is_there(leader)


def test_a_server_whose_disk_is_full_hands_its_leaderships_over_and_gets_none(hosts: Hosts) -> None:
    """It follows and votes; the leadership never goes to another server without room."""
    leader = hosts.elect()
    first, second = sorted(set(hosts.servers) - {leader})
    hosts.servers[first].turn.full(is_full=True)
    hosts.ticks(4)
    hosts.servers[leader].turn.full(is_full=True)
    hosts.ticks(8)
    assert hosts.leader() == second
    assert not hosts.servers[second].turn.beats.may_lead(first)
    assert hosts.servers[second].turn.beats.is_there(first)
    hosts.servers[second].turn.full(is_full=True)
    hosts.ticks(8)
    assert hosts.leader() == second, "nobody has room"
    answer = hosts.servers[second].turn.transfer("t", 0)
    assert answer is not None
    assert answer.answer is ChangeAnswer.UNSAFE
    hosts.servers[first].turn.full(is_full=False)
    hosts.ticks(4)
    hosts.servers[second].turn.full(is_full=True)
    hosts.ticks(8)
    assert hosts.leader() == first


def test_leadership_does_not_go_to_a_member_that_lags(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes would wait until the member has all entries."""
    monkeypatch.setattr(members, "CAUGHT_UP_ENTRIES", 2)
    leader = hosts.elect()
    turn = hosts.servers[leader].turn
    hosts.ticks(4)
    slow = next(number for number, name in hosts.places.items() if name != leader)
    hosts.slow_disk = {hosts.places[slow]}
    for request in range(4):
        turn.propose("t", 100 + request, b"x")
    hosts.settle()
    answer = turn.transfer("t", slow)
    assert answer is not None
    assert (answer.answer, "4 entries behind" in answer.why) == (ChangeAnswer.UNSAFE, True)
    assert hosts.leader() == leader


# --- items and floors


def test_the_writes_of_several_readies_become_one_item() -> None:
    replica = ReplicaIdentity("t", 4, 2, 1)
    entries = [Entry(1, index, NORMAL, b"%d" % index) for index in range(3, 7)]
    merged = group_module._merge(replica, None, HardState(1, 0), entries)
    later = [Entry(2, 5, NORMAL, b"new")]
    merged = group_module._merge(replica, merged, HardState(2, 3), later)
    assert [(entry.term, entry.index) for entry in merged.entries] == [(1, 3), (1, 4), (2, 5)]
    assert merged.hard_state == HardState(2, 3)
    merged = group_module._merge(replica, merged, None, [Entry(3, 2, NORMAL, b"lower")])
    assert [(entry.term, entry.index) for entry in merged.entries] == [(3, 2)]
    assert (merged.slot, merged.generation, merged.hard_state) == (4, 2, HardState(2, 3))


def test_a_steady_point_moves_the_floor(hosts: Hosts) -> None:
    leader = hosts.elect()
    for request in range(KEEP_ENTRIES + 8):
        hosts.servers[leader].turn.propose("t", request, b"x")
    hosts.settle()
    core = hosts.core(leader)
    steady = KEEP_ENTRIES + 6
    assert hosts.servers[leader].turn.steady("t", steady) == Floor(1, 1, steady, core.term)
    assert core.log.offset == 6
    assert hosts.servers[leader].turn.steady("t", steady) is None
    core.validate()


def test_a_member_behind_the_log_needs_a_copy(hosts: Hosts) -> None:
    leader = hosts.elect()
    late = next(name for name in hosts.servers if name != leader)
    hosts.mute.add(late)
    for request in range(KEEP_ENTRIES + 10):
        hosts.servers[leader].turn.propose("t", request, b"x")
    hosts.ticks(1)
    hosts.servers[leader].turn.steady("t", KEEP_ENTRIES + 10)
    hosts.mute.clear()
    hosts.ticks(20)
    assert hosts.servers[leader].needs_log == {("t", int(late[1:]))}
    assert hosts.leader() == leader


def test_a_member_gets_from_the_disk_what_is_not_in_memory(hosts: Hosts) -> None:
    leader = hosts.elect()
    late = next(name for name in hosts.servers if name != leader)
    hosts.mute.add(late)
    for request in range(10):
        hosts.servers[leader].turn.propose("t", request, b"x%d" % request)
    hosts.ticks(1)
    group = hosts.servers[leader].turn.groups["t"]
    log = list(group.core.log.entries)
    size = group.memory.bytes
    hosts.servers[leader].turn.bound_memory(size)
    assert group.core.log.offset == 0
    hosts.servers[leader].turn.bound_memory(size - 1, 2)
    assert group.core.log.offset == 9
    assert group.memory.bytes < size / 3
    # A floor below the entries in memory still has its term.
    assert hosts.servers[leader].turn.steady("t", 1) == Floor(1, 1, 1, log[0].term)
    hosts.mute.clear()
    hosts.ticks(20)
    assert hosts.servers[leader].needs_log == {("t", int(late[1:]))}
    # Two at a time, in any order of the shell's reads; unapplied entries are never sent from the disk.
    for first in (2, 4, 6, 8, 10):
        before = Position(first - 1, log[first - 2].term)
        hosts.servers[leader].turn.loaded("t", int(late[1:]), before, log[first - 1 : first + 1])
        hosts.ticks(2)
    assert hosts.core(late).log.last == 11
    assert hosts.core(late).log.commit == 11
    hosts.core(leader).validate()


def test_a_repeated_beat_proves_nothing(hosts: Hosts) -> None:
    turn = hosts.servers["s1"].turn
    frame = BeatFrame(Header(CLUSTER, "s2", 1, "s1"), 1, True, [])
    turn.frame("s2", frame)
    for _ in range(SILENCE_TICKS):
        turn.frame("s2", frame)
        turn.tick()
    assert not turn.beats.is_there("s2")


def test_followers_that_lose_their_leader_in_one_tick_do_not_split_the_vote() -> None:
    """Both notice the broken connection at once, and their ticks come at once: each tablet needs only one term."""
    hosts = Hosts(tablets=[f"t{n}" for n in range(40)])
    hosts.elect("t0")
    hosts.ticks(60)
    for name in hosts.servers:
        led = [tablet for tablet in hosts.servers[name].turn.groups if hosts.leader(tablet) == name]
        if led:
            break
    terms = {tablet: hosts.core(name, tablet).term for tablet in led}
    assert len(led) > 5
    hosts.mute.add(name)
    others = [other for other in hosts.servers.values() if other.name != name]
    for other in others:
        other.turn.peer_gone(name, 1)
    for _ in range(2 * RANK_TICKS + 2):
        for other in others:
            other.turn.tick()
        hosts.settle()
    after = {tablet: hosts.core(hosts.leader(tablet), tablet).term for tablet in led if hosts.leader(tablet)}
    assert after == {tablet: term + 1 for tablet, term in terms.items()}


def test_every_replica_learns_what_all_members_have(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.ticks(2 * BEAT_TICKS)
    groups = {name: server.turn.groups["t"] for name, server in hosts.servers.items()}
    assert {group.everywhere() for group in groups.values()} == {2}
    # A member that receives nothing holds the floors of all back, under any leader.
    away = next(name for name in groups if name != leader)
    hosts.mute.add(away)
    hosts.servers[leader].turn.propose("t", 2, b"y")
    hosts.ticks(4 * BEAT_TICKS)
    assert fates(hosts, leader)[2] is Fate.DONE
    assert {group.everywhere() for group in groups.values()} == {2}
    hosts.mute.clear()
    hosts.ticks(10 * BEAT_TICKS)
    assert {group.everywhere() for group in groups.values()} == {3}


def test_a_tablet_that_is_being_opened_is_silent(hosts: Hosts) -> None:
    leader = hosts.elect()
    other = next(name for name in hosts.servers if name != leader)
    turn = hosts.servers[other].turn
    turn.remove("t")
    turn.opening.add("t")
    before = len(hosts.servers[other].sent)
    hosts.ticks(10)
    assert len(hosts.servers[other].sent) == before
    turn.propose("t", 5, b"x")
    turn.read("t", 6)
    hosts.settle()
    assert {fate for request, fate in fates(hosts, other).items() if request in (5, 6)} == {Fate.NOT_LEADER}
    assert not hosts.core(leader).leadership.peers[0].waiting or not hosts.servers[leader].turn.groups["t"].refusals


def test_what_the_leaders_own_disk_lacks_is_not_everywhere(hosts: Hosts) -> None:
    leader = hosts.elect()
    hosts.ticks(2 * BEAT_TICKS)
    hosts.slow_disk.add(leader)
    hosts.servers[leader].turn.propose("t", 1, b"x")
    hosts.ticks(4 * BEAT_TICKS)
    assert hosts.core(leader).log.commit == 2
    assert {server.turn.groups["t"].everywhere() for server in hosts.servers.values()} == {1}
    hosts.slow_disk.clear()
    hosts.sync(leader)
    hosts.ticks(4 * BEAT_TICKS)
    assert {server.turn.groups["t"].everywhere() for server in hosts.servers.values()} == {2}
