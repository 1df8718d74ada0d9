"""When a region server is unhealthy."""

from __future__ import annotations

import pytest

from regionserver.health import (
    CLOSING_S,
    PROBE_S,
    UNSERVING_S,
    HealthFacts,
    HealthWatch,
    ServerHealth,
    SharedDirectoryProbe,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_server_is_unhealthy_once_it_has_not_served_for_a_while() -> None:
    """The time counts from the start; a short time without a lease does not matter."""
    clock = Clock()
    health = ServerHealth(clock, 1000, SharedDirectoryProbe(lambda: None, clock))
    clock.now += UNSERVING_S - 0.1
    assert health.unserving("no session") == []
    clock.now += 0.1
    assert health.unserving("no session") == ["not serving for 5 s: no session"]
    health.note(True)
    assert health.unserving("") == []
    health.note(False)
    clock.now += 1
    health.note(False)
    clock.now += UNSERVING_S - 1
    assert health.unserving("the lease does not hold") == ["not serving for 5 s: the lease does not hold"]


def test_a_long_session_timeout_extends_the_limit() -> None:
    clock = Clock()
    health = ServerHealth(clock, 30_000, SharedDirectoryProbe(lambda: None, clock))
    clock.now += 59
    assert health.unserving("") == []


class Tablets:
    """The tablets of a server."""

    def __init__(self, is_serving: bool) -> None:
        self.serve = is_serving
        self.trouble = ""

    def is_serving(self) -> bool:
        return self.serve

    def problem(self) -> str:
        return self.trouble


@pytest.mark.parametrize("tablets_serve", [True, False])
def test_a_server_whose_tablets_serve_is_degraded_while_the_store_is_away(tablets_serve: bool) -> None:
    """A restart by a supervisor would end leaderships in the middle of the outage."""
    clock = Clock()
    facts = HealthFacts(False, False, "no session", None)
    watch = HealthWatch(object(), clock, 1000, lambda: None, lambda: facts, Tablets(tablets_serve))
    assert watch.report() == (True, {"reasons": [], "degraded": [], "closing_for_s": 0.0})
    clock.now += UNSERVING_S
    why = "not serving for 5 s: no session"
    expected = ([], [f"{why}; tablets serve without the store"]) if tablets_serve else ([why], [])
    is_healthy, said = watch.report()
    assert is_healthy is tablets_serve
    assert (said["reasons"], said["degraded"]) == expected


def test_tablets_excuse_nothing_else() -> None:
    clock = Clock()
    facts = HealthFacts(False, False, "no session", clock.now)
    watch = HealthWatch(object(), clock, 1000, lambda: None, lambda: facts, Tablets(True))
    clock.now += CLOSING_S
    is_healthy, said = watch.report()
    assert not is_healthy
    assert said["reasons"] == ["the regions of a lost session have been closing for 60 s"]
    assert said["degraded"]


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
    assert health.reasons(CLOSING_S) == [
        "the regions of a lost session have been closing for 60 s",
        "gone",
    ]
    problem.clear()
    shared.probe()
    assert health.reasons(0) == []


def test_a_hanging_directory_is_reported_while_it_hangs() -> None:
    """The probe has not returned yet, but the problem is reported."""
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


def test_a_full_disk_of_tablets_degrades_and_is_no_reason_for_a_restart() -> None:
    clock, tablets = Clock(), Tablets(True)
    facts = HealthFacts(True, False, "", None)
    watch = HealthWatch(object(), clock, 1000, lambda: None, lambda: facts, tablets)
    tablets.trouble = "a disk of the tablets is full"
    assert watch.report() == (
        True, {"reasons": [], "degraded": ["a disk of the tablets is full"], "closing_for_s": 0.0}
    )  # fmt: skip
    tablets.trouble = ""
    assert watch.report()[1]["degraded"] == []


def test_damaged_grants_degrade_a_server() -> None:
    clock = Clock()
    facts = HealthFacts(True, False, "", None, "the grants in the store are damaged")
    watch = HealthWatch(object(), clock, 1000, lambda: None, lambda: facts, None)
    is_healthy, said = watch.report()
    assert (is_healthy, said["degraded"]) == (True, ["the grants in the store are damaged"])
