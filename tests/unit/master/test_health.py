"""When a master is unhealthy, and since when."""

from __future__ import annotations

from master.health import ACTIVATING_MS, ELECTION_MS, SESSION_AWAY_MS, MasterHealth


class Clock:
    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


def test_a_master_without_its_store_is_unhealthy() -> None:
    """From the start on; each lost session counts anew."""
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


def test_a_master_whose_election_keeps_failing_is_unhealthy() -> None:
    """Since the first failure, with the reason of the last one; standing by ends it."""
    clock = Clock()
    health = MasterHealth(clock, 1_000)
    health.session(True)
    health.election_failed("first")
    clock.now += ELECTION_MS
    health.election_failed("/cluster: rubbish")
    assert health.reasons("", None, "") == ["cannot enter the election for 5 s: /cluster: rubbish"]
    health.election_entered()
    assert health.reasons("", None, "") == []


def test_a_takeover_that_does_not_end_is_unhealthy() -> None:
    """Waiting for region servers is not."""
    clock = Clock()
    health = MasterHealth(clock, 1_000)
    health.session(True)
    began = clock.now
    clock.now += ACTIVATING_MS
    assert health.reasons("", began, "servers") == []
    assert health.reasons("", began, "load") == ["elected 120 s ago and not active yet, in phase load"]
