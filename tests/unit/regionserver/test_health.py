"""What makes a region server ill, and since when."""

from __future__ import annotations

from regionserver.health import CLOSING_S, LOOK_S, UNSERVING_S, ServerHealth, SharedWatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_server_is_ill_once_it_has_not_served_for_a_while() -> None:
    """From its start on; a moment without a lease is no illness, and serving again heals."""
    clock = Clock()
    health = ServerHealth(clock, 1000, SharedWatch(lambda: None, clock))
    clock.now += UNSERVING_S - 0.1
    assert health.reasons("no session", 0) == []
    clock.now += 0.1
    assert health.reasons("no session", 0) == ["not serving for 5 s: no session"]
    health.note(True)
    assert health.reasons("", 0) == []
    health.note(False)
    clock.now += 1
    health.note(False)
    clock.now += UNSERVING_S - 1
    assert health.reasons("the lease does not hold", 0) == ["not serving for 5 s: the lease does not hold"]


def test_a_long_session_makes_patience_longer() -> None:
    clock = Clock()
    health = ServerHealth(clock, 30_000, SharedWatch(lambda: None, clock))
    clock.now += 59
    assert health.reasons("", 0) == []


def test_regions_that_do_not_close_and_a_directory_that_is_gone() -> None:
    clock = Clock()
    trouble = [OSError("gone")]

    def check() -> None:
        if trouble:
            raise trouble[0]

    watch = SharedWatch(check, clock)
    health = ServerHealth(clock, 1000, watch)
    health.note(True)
    watch.look()
    assert health.reasons("", CLOSING_S) == [
        "the regions of a lost session have been closing for 60 s",
        "gone",
    ]
    trouble.clear()
    watch.look()
    assert health.reasons("", 0) == []


def test_a_directory_that_hangs_is_told_while_it_hangs() -> None:
    """The look itself never ends: who asks for the health meanwhile gets an answer."""
    clock = Clock()
    said: list[str] = []

    def hang() -> None:
        clock.now += LOOK_S - 0.1
        said.append(watch.trouble())
        clock.now += 0.1
        said.append(watch.trouble())

    watch = SharedWatch(hang, clock)
    watch.look()
    assert said == ["", "the shared directory has not answered for 10 s"]
    assert watch.trouble() == ""
