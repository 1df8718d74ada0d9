"""How many events a turn serves: many connections with work must not make it long."""

from __future__ import annotations

import time

import pytest

from coord.metrics.turns import TurnTimes
from coord.peers.turn_loop import EVENTS_MAX, EVENTS_MIN, LONGER_BELOW_S, SHORTER_FROM_S, Events, TurnLoop


class Ready:
    """Descriptors that are always ready. `took` is how long the turns seem to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.count = count
        self.asked: list[int] = []
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.loop = TurnLoop(self.poll, lambda _: None, TurnTimes(lambda: self.now))
        self.loop.turn(0)

    def poll(self, _timeout: float, most: int) -> Events:
        self.asked.append(most)
        self.now += 1.0
        return [(fd, 1) for fd in range(min(self.count, most))]

    def turns(self, number: int, took_s: float) -> int:
        """Let the present turn and the next ones take some time. Return how many events the last poll asked for."""
        for _ in range(number):
            self.now += took_s
            self.loop.turn(0)
        return self.asked[-1]


# Fails without `_adapt`.
def test_a_long_turn_is_followed_by_one_with_half_as_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Ready(monkeypatch, 100)
    assert ready.turns(1, 2 * SHORTER_FROM_S) == 50
    assert ready.turns(20, 2 * SHORTER_FROM_S) == EVENTS_MIN


# Fails if only long turns are looked at.
def test_short_turns_serve_more_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Ready(monkeypatch, 100)
    fewest = ready.turns(20, 2 * SHORTER_FROM_S)
    assert ready.turns(1, (SHORTER_FROM_S + LONGER_BELOW_S) / 2) == fewest
    assert ready.turns(1, LONGER_BELOW_S / 2) > fewest
    assert ready.turns(20, LONGER_BELOW_S / 2) == EVENTS_MAX


def test_a_long_turn_with_one_event_says_nothing_of_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Ready(monkeypatch, 1).turns(3, 2 * SHORTER_FROM_S) == EVENTS_MAX
