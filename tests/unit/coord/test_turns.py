"""The watch over turns of the main loop: counts, culprits, and a bounded log."""

from __future__ import annotations

import sys

import pytest
from twisted.logger import globalLogPublisher

from coord.metrics import turns as module
from coord.metrics.definitions import of_turns
from coord.metrics.turns import CULPRITS_MAX, LIMIT_S, LOG_EVERY_S, OTHER, SAMPLE_S, UNKNOWN, TurnTimes, calls_of
from coord.peers.reactor import TurnReactor


class Loop:
    """A loop whose clock stands still until a turn takes some time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.worked = 5.0
        self.turns = TurnTimes(lambda: self.now, lambda: self.worked)

    def begin(self) -> None:
        self.turns.busy_since = self.now

    def busy(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds

    def end(self) -> None:
        self.turns.add(self.now - self.turns.busy_since)
        self.turns.busy_since = 0.0

    def turn(self, seconds: float, *, sampled: bool = True) -> None:
        self.begin()
        self.busy(seconds)
        if sampled:
            self.turns.sampled(0, sys._getframe())
        self.end()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def lines() -> list[str]:
    """Return the list that gets the texts of the log from now on."""
    return []


@pytest.fixture(autouse=True)
def logged(lines: list[str]) -> object:
    def observe(event: dict[str, object]) -> None:
        if event.get("log_namespace") == module.__name__:
            lines.append(str(event["log_format"]).format(**event))

    globalLogPublisher.addObserver(observe)
    yield
    globalLogPublisher.removeObserver(observe)


# Fails without the comparison in `add`.
def test_a_turn_over_the_limit_is_counted_by_its_culprit_and_logged(loop: Loop, lines: list[str]) -> None:
    loop.turn(LIMIT_S + 0.015)
    [culprit] = loop.turns.culprits
    assert culprit == f"{__name__}.Loop.turn"
    assert len(lines) == 1
    assert "for 35 ms (35 ms on the processor)" in lines[0]
    assert culprit in lines[0]


# Fails if `_worked_s` returns the duration, or counts from the sample inside of the turn.
def test_a_turn_that_waits_differs_from_one_that_works(loop: Loop, lines: list[str]) -> None:
    loop.turn(SAMPLE_S)
    loop.begin()
    loop.busy(3 * SAMPLE_S)
    loop.turns.sampled(0, sys._getframe())
    loop.now += 100 * LIMIT_S
    loop.end()
    assert "for 2030 ms (30 ms on the processor)" in lines[0]
    assert (loop.turns.longest_s, loop.turns.longest_work_s) == (pytest.approx(2.03), pytest.approx(0.03))
    loop.turn(2 * LIMIT_S, sampled=False)
    assert loop.turns.longest_work_s == pytest.approx(0.03), "without a sample it used less than SAMPLE_S"


def test_a_short_turn_is_only_counted(loop: Loop, lines: list[str]) -> None:
    loop.turn(LIMIT_S / 2)
    assert (sum(loop.turns.spans.counts), loop.turns.culprits, lines) == (1, {}, [])


# Fails if `sampled` does not remember the turn of the sample.
def test_a_sample_of_an_earlier_turn_names_no_culprit(loop: Loop) -> None:
    loop.turn(SAMPLE_S * 1.5)
    loop.turn(2 * LIMIT_S, sampled=False)
    assert loop.turns.culprits == {UNKNOWN: 1}


def test_a_sample_between_turns_is_ignored(loop: Loop) -> None:
    loop.turns.sampled(0, sys._getframe())
    loop.turn(2 * LIMIT_S, sampled=False)
    assert loop.turns.culprits == {UNKNOWN: 1}


# Fails without `_next_s`.
def test_the_log_has_one_line_in_a_while_and_counts_the_others(loop: Loop, lines: list[str]) -> None:
    for _ in range(10):
        loop.turn(0.05)
    assert len(lines) == 1
    loop.busy(LOG_EVERY_S)
    loop.turn(0.03)
    assert len(lines) == 2
    assert "9 more such turns since the last line, the longest for 50 ms (50 ms on the processor) in " in lines[1]


def test_a_long_collection_of_garbage_is_the_culprit(loop: Loop) -> None:
    loop.begin()
    loop.turns.collected("start", {"generation": 2})
    loop.busy(3 * LIMIT_S)
    loop.turns.collected("stop", {"generation": 2})
    loop.end()
    assert loop.turns.culprits == {"garbage collection": 1}


# Fails without CULPRITS_MAX.
def test_the_number_of_names_is_bounded(loop: Loop) -> None:
    loop.turns.culprits |= {f"a{number}": 1 for number in range(CULPRITS_MAX)}
    loop.turn(2 * LIMIT_S)
    assert len(loop.turns.culprits) == CULPRITS_MAX + 1
    assert loop.turns.culprits[OTHER] == 1


def test_calls_are_those_of_modules_that_are_no_part_of_python() -> None:
    def called() -> list[str]:
        return list(calls_of(sys._getframe()))

    found = called()
    assert found[-1].endswith("called")
    assert not any(one.startswith("runpy") for one in found)


def test_the_metrics_have_the_culprits(loop: Loop) -> None:
    loop.turn(2 * LIMIT_S)
    samples = {one.name: one for family in of_turns(loop.turns) for one in family.samples}
    assert samples["regionkeeper_reactor_long_turns_total"].labels == {"culprit": f"{__name__}.Loop.turn"}
    assert samples["regionkeeper_reactor_longest_turn_seconds"].value == pytest.approx(2 * LIMIT_S)


# Fails if the reactor does not set `busy_since` after a poll, or does not clear it before the next.
def test_the_reactor_measures_what_a_timer_did() -> None:
    reactor = TurnReactor()
    began: list[float] = []

    def work() -> None:
        began.append(reactor.turns.busy_since)
        reactor.callLater(0, reactor.stop)

    reactor.callLater(0.001, work)
    reactor.run(installSignalHandlers=False)
    assert began[0] > 0
    assert sum(reactor.turns.spans.counts) > 0
