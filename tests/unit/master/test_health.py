"""What makes a master ill, and since when."""

from __future__ import annotations

from master.health import ACTIVATING_MS, ELECTION_MS, SESSION_AWAY_MS, MasterHealth


class Clock:
    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


def test_a_store_that_stays_away() -> None:
    """From the start on; each session that is lost counts anew."""
    clock = Clock()
    health = MasterHealth(clock, 1_000)
    clock.now += SESSION_AWAY_MS - 1
    assert health.reasons("", None, "") == []
    clock.now += 1
    assert health.reasons("refused", None, "") == ["no session with the store for 5 s: refused"]
    health.session(True)
    assert health.reasons("", None, "") == []
    health.session(False)
    clock.now += SESSION_AWAY_MS - 1
    health.session(False)
    clock.now += 1
    assert health.reasons("", None, "") == ["no session with the store for 5 s: no node answers"]


def test_an_election_that_fails_again_and_again() -> None:
    """The first failure counts for the time, the last one for the reason; standing heals."""
    clock = Clock()
    health = MasterHealth(clock, 1_000)
    health.session(True)
    health.election_failed("first")
    clock.now += ELECTION_MS
    health.election_failed("/cluster: rubbish")
    assert health.reasons("", None, "") == ["cannot enter the election for 5 s: /cluster: rubbish"]
    health.election_entered()
    assert health.reasons("", None, "") == []


def test_a_reign_that_does_not_begin() -> None:
    """Waiting for region servers is no illness."""
    clock = Clock()
    health = MasterHealth(clock, 1_000)
    health.session(True)
    began = clock.now
    clock.now += ACTIVATING_MS
    assert health.reasons("", began, "servers") == []
    assert health.reasons("", began, "load") == ["elected 120 s ago and not active yet, in phase load"]
