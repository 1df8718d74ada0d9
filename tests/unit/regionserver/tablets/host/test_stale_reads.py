"""Stale reads: any replica serves them whose rows are proved to be recent enough, by its own clock alone.

Tried: an age that counts from the arrival of the leader's answer, a proof that counts before the rows hold its index,
and contexts that begin anew with a process. Each time a test below failed.
"""

from __future__ import annotations

import pytest

from coord.raft.messages import READ_INDEX, READ_INDEX_RESP
from regionserver.tablets.host import requests
from regionserver.tablets.host.envelope import Envelope
from regionserver.tablets.host.quiet import QUIET_TICKS
from regionserver.tablets.host.requests import QUESTION_TICKS, UNPROVED, Fate, Reads, StaleRead
from tests.support.tablet_hosts import Hosts, fates, kinds


def follower_of(hosts: Hosts) -> str:
    """Elect a leader; return a server that follows it."""
    leader = hosts.elect()
    return next(name for name in hosts.servers if name != leader)


def read(hosts: Hosts, name: str, request: int, bound_ms: int, now_ms: int) -> None:
    hosts.servers[name].turn.read_stale("t", request, bound_ms, now_ms)


def served(hosts: Hosts, name: str) -> dict[int, int]:
    """Return the time that each served read proves."""
    return {one.request: one.as_of_ms for one in hosts.servers[name].reads}


def questions(hosts: Hosts, name: str) -> int:
    """Return how many questions a server has asked."""
    return kinds(hosts.servers[name].sent).count(READ_INDEX)


def test_a_follower_asks_once_and_answers_until_the_bound_is_over(hosts: Hosts) -> None:
    follower = follower_of(hosts)
    read(hosts, follower, 1, 100, 5_000)
    hosts.settle()
    read(hosts, follower, 2, 100, 5_099)
    hosts.settle()
    assert served(hosts, follower) == {1: 5_000, 2: 5_000}
    assert questions(hosts, follower) == 1
    read(hosts, follower, 3, 100, 5_100)
    hosts.settle()
    assert served(hosts, follower)[3] == 5_100
    assert questions(hosts, follower) == 2


def test_the_age_counts_from_the_question_however_late_the_answer_comes(hosts: Hosts) -> None:
    follower = follower_of(hosts)
    hosts.mute.add(follower)
    read(hosts, follower, 1, 100, 5_000)
    hosts.turn(follower)
    group = hosts.servers[follower].turn.groups["t"]
    [(context, asked)] = group.reads.questions.items()
    assert asked[0] == 5_000
    group.reads.confirm(context, group.applied_index)
    # The answer arrives 400 ms later. It proves nothing about the time since the question.
    read(hosts, follower, 2, 100, 5_400)
    hosts.turn(follower)
    assert served(hosts, follower) == {1: 5_000}
    assert [asked_ms for asked_ms, _ in group.reads.questions.values()] == [5_400]


def test_the_leader_serves_stale_reads_without_a_round_while_it_has_a_proof(hosts: Hosts) -> None:
    leader = hosts.elect()
    read(hosts, leader, 1, 100, 5_000)
    hosts.settle()
    hosts.mute.add(leader)
    read(hosts, leader, 2, 100, 5_050)
    read(hosts, leader, 3, 100, 5_150)
    hosts.settle()
    assert served(hosts, leader) == {1: 5_000, 2: 5_000}
    hosts.ticks(QUESTION_TICKS)
    assert fates(hosts, leader) == {3: Fate.TOO_STALE}


def test_reads_of_a_turn_and_later_ones_share_a_question(hosts: Hosts) -> None:
    follower = follower_of(hosts)
    hosts.mute.add(follower)
    for request in range(10):
        read(hosts, follower, request, 100, 5_000 + request)
    hosts.turn(follower)
    read(hosts, follower, 10, 100, 5_090)
    read(hosts, follower, 11, 20, 5_090)
    hosts.turn(follower)
    assert questions(hosts, follower) == 2
    group = hosts.servers[follower].turn.groups["t"]
    assert [len(batch) for batch in group.reads.asked.values()] == [11, 1]


def test_a_proof_counts_when_the_rows_hold_its_index(hosts: Hosts) -> None:
    leader = hosts.elect()
    follower = next(name for name in hosts.servers if name != leader)
    hosts.slow_rows.add(follower)
    hosts.servers[leader].turn.propose("t", 1, b"row")
    hosts.settle()
    read(hosts, follower, 2, 100, 5_000)
    hosts.settle()
    read(hosts, follower, 3, 100, 5_010)
    hosts.settle()
    assert served(hosts, follower) == {}
    hosts.slow_rows.clear()
    hosts.settle()
    assert set(served(hosts, follower)) == {2, 3}
    assert hosts.servers[follower].rows["t"] == [b"row"]


def test_a_read_ends_if_the_rows_do_not_get_the_index_of_its_proof(hosts: Hosts) -> None:
    """As at a member that was removed. The proof counts for later reads.

    Edit that makes this fail: `Reads.take_late` passes over `confirmed`.
    """
    leader = hosts.elect()
    follower = next(name for name in hosts.servers if name != leader)
    hosts.slow_rows.add(follower)
    hosts.servers[leader].turn.propose("t", 1, b"row")
    hosts.settle()
    read(hosts, follower, 2, 100, 5_000)
    hosts.settle()
    assert not hosts.servers[follower].turn.groups["t"].reads.questions
    hosts.ticks(QUESTION_TICKS)
    assert fates(hosts, follower) == {2: Fate.TOO_STALE}
    hosts.slow_rows.clear()
    hosts.settle()
    read(hosts, follower, 3, 1_000, 5_700)
    hosts.settle()
    assert served(hosts, follower) == {3: 5_000}
    assert questions(hosts, follower) == 1


def test_a_follower_that_is_cut_off_serves_what_it_can_prove_and_refuses_the_rest(hosts: Hosts) -> None:
    follower = follower_of(hosts)
    read(hosts, follower, 1, 100, 5_000)
    hosts.settle()
    hosts.mute.add(follower)
    read(hosts, follower, 2, 60_000, 35_000)
    read(hosts, follower, 3, 1_000, 35_000)
    hosts.ticks(QUESTION_TICKS)
    assert served(hosts, follower) == {1: 5_000, 2: 5_000}
    assert fates(hosts, follower) == {3: Fate.TOO_STALE}
    # Without a leader it refuses at once.
    hosts.ticks(40)
    read(hosts, follower, 4, 1_000, 40_000)
    hosts.turn(follower)
    assert fates(hosts, follower)[4] is Fate.TOO_STALE


def test_a_leader_that_is_cut_off_proves_nothing_to_its_follower() -> None:
    """The leader's word alone is not enough: another leader may have committed more."""
    hosts = Hosts(size=5)
    follower = follower_of(hosts)
    leader = hosts.leader()
    hosts.mute.update(name for name in hosts.servers if name not in (leader, follower))
    hosts.servers[leader].sent.clear()
    read(hosts, follower, 1, 100, 5_000)
    hosts.ticks(QUESTION_TICKS)
    assert served(hosts, follower) == {}
    assert READ_INDEX_RESP not in kinds(hosts.servers[leader].sent)


def test_a_quiet_tablet_wakes_for_a_question_and_not_for_what_is_proved(hosts: Hosts) -> None:
    follower = follower_of(hosts)
    read(hosts, follower, 1, 100, 5_000)
    hosts.ticks(3 * QUIET_TICKS)
    quiet = hosts.servers[follower].turn.quiet
    assert "t" not in quiet.awake
    read(hosts, follower, 2, 60_000, 9_000)
    hosts.settle()
    assert served(hosts, follower)[2] == 5_000
    assert "t" not in quiet.awake
    read(hosts, follower, 3, 1_000, 9_000)
    hosts.settle()
    assert served(hosts, follower)[3] == 9_000


def test_contexts_of_a_later_process_are_others(hosts: Hosts) -> None:
    """A late answer to a question of a former process proves nothing to the present one."""
    follower = follower_of(hosts)
    turn = hosts.servers[follower].turn
    read(hosts, follower, 1, 100, 5_000)
    hosts.settle()
    [asked] = [one.message for _, one in hosts.servers[follower].sent if isinstance(one, Envelope)
               and one.message.kind == READ_INDEX]  # fmt: skip
    assert asked.context > turn.start_code << 20
    assert asked.context < (turn.start_code + 1) << 20


@pytest.mark.parametrize("times", [(UNPROVED, 5_000), (5_000, 5_100), (5_000, 6_000)])
def test_what_proves_nothing(times: tuple[int, int]) -> None:
    """Both times are cut to whole milliseconds, so an age of 99.5 ms may look like 99 or 100."""
    reads = Reads()
    reads.as_of_ms, now_ms = times
    assert not reads.proves(100, now_ms)


def test_a_member_that_gets_no_entries_keeps_two_proofs() -> None:
    """The first one, which counts soonest, and the latest.

    Edit that makes this fail: `Reads.confirm` removes none.
    """
    reads = Reads()
    for number in range(1, 20):
        tick = number * QUESTION_TICKS
        reads.add_stale(StaleRead(number, 100, 1_000 * number, tick, number))
        reads.confirm(reads.begin_question(), 10 + number)
        assert reads.take_late(tick + QUESTION_TICKS) == [number]
    assert [(index, asked_ms) for index, _, asked_ms, _ in reads.confirmed] == [(11, 1_000), (29, 19_000)]
    assert reads.take_ready(11) == []
    assert reads.as_of_ms == 1_000
    assert reads.take_ready(29) == []
    assert (reads.as_of_ms, reads.waiting) == (19_000, 0)


def test_an_answer_to_a_question_that_was_given_up_changes_nothing() -> None:
    reads = Reads()
    reads.add_stale(StaleRead(1, 100, 5_000, 7, 40))
    assert reads.begin_question() == 40
    assert reads.take_late(7 + requests.QUESTION_TICKS - 1) == []
    assert reads.take_late(7 + requests.QUESTION_TICKS) == [1]
    reads.confirm(40, 3)
    assert reads.take_ready(3) == []
    assert (reads.as_of_ms, reads.waiting) == (UNPROVED, 0)
