"""When a region server is unhealthy."""

from __future__ import annotations

from regionserver.health import CLOSING_S, PROBE_S, UNSERVING_S, ServerHealth, SharedDirectoryProbe


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_server_is_unhealthy_once_it_has_not_served_for_a_while() -> None:
    """The time counts from the start; a moment without a lease does not matter."""
    clock = Clock()
    health = ServerHealth(clock, 1000, SharedDirectoryProbe(lambda: None, clock))
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


def test_a_long_session_timeout_extends_the_limit() -> None:
    clock = Clock()
    health = ServerHealth(clock, 30_000, SharedDirectoryProbe(lambda: None, clock))
    clock.now += 59
    assert health.reasons("", 0) == []


def test_regions_that_do_not_close_and_a_directory_that_is_gone() -> None:
    clock = Clock()
    problem = [OSError("gone")]

    def check() -> None:
        if problem:
            raise problem[0]

    shared = SharedDirectoryProbe(check, clock)
    health = ServerHealth(clock, 1000, shared)
    health.note(True)
    shared.probe()
    assert health.reasons("", CLOSING_S) == [
        "the regions of a lost session have been closing for 60 s",
        "gone",
    ]
    problem.clear()
    shared.probe()
    assert health.reasons("", 0) == []


def test_a_hanging_directory_is_reported_while_it_hangs() -> None:
    """The probe has not returned yet; the problem is reported all the same."""
    clock = Clock()
    said: list[str] = []

    def hang() -> None:
        clock.now += PROBE_S - 0.1
        said.append(shared.problem())
        clock.now += 0.1
        said.append(shared.problem())

    shared = SharedDirectoryProbe(hang, clock)
    shared.probe()
    assert said == ["", "the shared directory has not answered for 10 s"]
    assert shared.problem() == ""
