"""Small rounds and reads are done on the reactor's thread, the others by the pool."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from coord.raft.messages import NORMAL, Entry
from regionserver.tablets.host.requests import Fate
from regionserver.tablets.process.in_place import (
    FAST_S,
    READ_KEYS_MAX,
    READS_MAX,
    ROUND_BYTES_MAX,
    ROUNDS_AFTER_SLOW,
    ROUNDS_ELSEWHERE_MAX,
    ROUNDS_PER_TURN,
    InPlace,
)
from regionserver.tablets.rows.errors import RowsFailed
from tests.support.hosts_in_process import Cluster
from tests.support.reactors import in_reactor

SMALL = [Entry(1, 1, NORMAL, bytes(100))]


def test_a_round_is_small_up_to_its_bound() -> None:
    half = Entry(1, 1, NORMAL, bytes(ROUND_BYTES_MAX // 2))
    assert InPlace().takes([half, half])
    assert not InPlace().takes([half, half, *SMALL])


def test_reads_are_small_up_to_their_bounds() -> None:
    for keys, is_small in (
        ([READ_KEYS_MAX] * READS_MAX, True),
        ([1] * (READS_MAX + 1), False),
        ([READ_KEYS_MAX + 1], False),
        ([1, 0], False),
    ):
        assert InPlace().takes_reads(keys) is is_small, keys


def test_a_slow_read_sends_rounds_away_too() -> None:
    choice = InPlace()
    assert choice.takes_reads([1])
    choice.waited(2 * FAST_S)
    assert not choice.takes(SMALL)
    assert not choice.takes_reads([1])


def test_a_turn_has_so_many_rounds() -> None:
    choice = InPlace()
    for _ in range(2):
        choice.begin_turn()
        assert [choice.takes(SMALL) for _ in range(ROUNDS_PER_TURN + 2)] == [True] * ROUNDS_PER_TURN + [False] * 2


def test_a_slow_round_sends_the_next_ones_away_the_more_the_longer_it_waited() -> None:
    for seconds, away in ((FAST_S, 0), (2 * FAST_S, 2 * ROUNDS_AFTER_SLOW), (60.0, ROUNDS_ELSEWHERE_MAX)):
        choice = InPlace()
        assert choice.takes(SMALL)
        choice.waited(seconds)
        assert [choice.takes(SMALL) for _ in range(away)] == [False] * away
        choice.begin_turn()
        assert choice.takes(SMALL)


def test_what_a_round_has_waited_is_counted_from_the_end_of_the_one_before() -> None:
    clock = [5.0]
    choice = InPlace(lambda: clock[0])
    choice.begin_turn()
    assert choice.takes(SMALL)
    clock[0] += FAST_S / 2
    choice.done()
    assert choice.takes(SMALL)
    clock[0] += FAST_S / 2
    choice.done()
    # The thread's work between its turns does not count as a wait of a round.
    clock[0] += 60.0
    choice.begin_turn()
    assert choice.takes(SMALL)
    choice.done()
    assert choice.takes(SMALL)
    clock[0] += 2 * FAST_S
    choice.done()
    assert not choice.takes(SMALL)


class _TimedChoice(InPlace):
    """Uses the waiting time of a round that the test sets, because a real disk may stall at any time."""

    seconds = 0.0

    def waited(self, seconds: float) -> None:
        super().waited(self.seconds)


def test_where_a_host_applies_its_rounds(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        leader = await cluster.leader("t")
        rows = leader.running().rows_of("t")
        assert rows is not None
        choice = _TimedChoice()
        leader.running()._rows._in_place = choice
        own = threading.get_ident()
        seen: list[bool] = []
        apply = rows.apply

        def watched(entries: Any) -> Any:
            seen.append(threading.get_ident() == own)
            return apply(entries)

        rows.apply = watched  # type: ignore[method-assign]
        await cluster.put("t", "a", b"2")
        await cluster.put("t", "a", bytes(ROUND_BYTES_MAX))
        choice.seconds = 3 * FAST_S
        await cluster.put("t", "a", b"3")
        choice.seconds = 0.0
        await cluster.put("t", "a", b"4")
        assert seen == [True, False, True, False]
        assert await cluster.get("t", "a") == b"4"
        await cluster.stop()

    in_reactor(main)


def test_where_a_host_reads(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        host = (await cluster.leader("t")).running()
        host._rows._in_place = _TimedChoice()
        own = threading.get_ident()

        def read(rows: Any) -> Any:
            return threading.get_ident() == own, rows.values([b"a"])

        assert (await host.read("t", read, keys=1)).value == (True, [b"1"])
        assert (await host.read("t", read, keys=READ_KEYS_MAX + 1)).value == (False, [b"1"])
        assert (await host.read("t", read)).value == (False, [b"1"]), "a page of a scan may be long"
        await cluster.stop()

    in_reactor(main)


def test_a_read_that_fails_on_the_reactors_thread_costs_itself_or_its_tablet(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t", "u"])
        await cluster.put("t", "a", b"1")
        leader = await cluster.leader("t")
        host = leader.running()
        host._rows._in_place = _TimedChoice()

        def bad(_: Any) -> Any:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await host.read("t", bad, keys=1)
        rows = host.rows_of("t")
        assert rows is not None

        def damaged() -> Any:
            raise RowsFailed("a page is damaged")

        rows.reading = damaged  # type: ignore[method-assign]
        answer = await host.read("t", lambda found: found.values([b"a"]), keys=1)
        assert answer.fate is Fate.FAILED
        assert host.turn.groups["t"].failure
        assert not leader.deaths
        await cluster.put("u", "a", b"3")
        await cluster.stop()

    in_reactor(main)


def test_a_round_that_fails_on_the_reactors_thread_costs_its_tablet_alone(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t", "u"])
        await cluster.put("t", "a", b"1")
        leader = await cluster.leader("t")
        rows = leader.running().rows_of("t")
        assert rows is not None
        leader.running()._rows._in_place = _TimedChoice()
        threads: list[int] = []

        def fail(entries: Any) -> Any:
            threads.append(threading.get_ident())
            raise RowsFailed("a page is damaged")

        rows.apply = fail  # type: ignore[method-assign]
        answer = await cluster.send(leader, "t", cluster.command_for("a", b"2"))
        assert answer.fate is Fate.FAILED
        assert threads == [threading.get_ident()]
        assert not leader.deaths
        await cluster.put("u", "a", b"3")
        await cluster.stop()

    in_reactor(main)
