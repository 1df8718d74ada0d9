"""Stale reads: any member that proves its age answers; the leader answers if none does.

Tried: the leader is asked without the members, and the bound is sent to nobody. Tests below failed.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from regionserver.client import Staleness, Unavailable
from regionserver.client.tablets import hints, stale
from regionserver.client.tablets.region_call import CallPurpose
from tests.unit.regionserver.client.tablets.test_calls import Bench, bench

__all__ = ["bench"]


def filled(bench: Bench) -> None:
    """Put a row through the leader, s1, and forget what was asked."""
    bench.client.put("rows", "a", b"1")
    for server in bench.servers.servers.values():
        server.asked.clear()


def test_a_member_answers_while_nobody_leads(bench: Bench) -> None:
    filled(bench)
    bench.servers.lead("")
    bench.servers.servers["s3"].age_ms = 700
    staleness = Staleness(bound_ms=1000)
    assert bench.client.get("rows", "a", staleness=staleness) == b"1"
    assert list(bench.client.scan("rows", "a", "b", staleness=staleness)) == [("a", b"1")]
    assert staleness.age_ms >= 700
    assert all(server.asked["WhoLeads"] == 0 for server in bench.servers.servers.values())


def test_the_age_of_an_answer_includes_its_way(bench: Bench) -> None:
    filled(bench)
    for server in bench.servers.servers.values():
        server.age_ms = 700
    staleness = Staleness(bound_ms=1000)
    bench.client.get("rows", "a", staleness=staleness)
    assert staleness.age_ms > 700


def test_without_a_proof_the_leader_answers(bench: Bench) -> None:
    filled(bench)
    for uuid in ("s2", "s3"):
        bench.servers.servers[uuid].age_ms = 5000
    staleness = Staleness(bound_ms=1000)
    assert bench.client.get("rows", "a", staleness=staleness) == b"1"
    assert bench.servers.servers["s1"].asked["TabletRead"] > 0


def test_silent_and_dead_members_do_not_hide_the_one_that_answers(bench: Bench) -> None:
    filled(bench)
    bench.servers.lead("")
    bench.servers.servers["s1"].is_frozen = True
    bench.servers.kill("s2")
    bench.servers.servers["s3"].age_ms = 10
    for _ in range(5):
        assert bench.client.get("rows", "a", staleness=Staleness(bound_ms=1000)) == b"1"
    bench.servers.start("s2")


def test_a_silent_member_is_asked_last_next_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its silence costs the first read the pause before the next member, and later reads nothing.

    Tried: `suspect` for servers that have not answered only if no member has; every read asks s1 first.
    """
    filled(bench)
    monkeypatch.setattr(hints, "SUSPECT_S", 1000.0)
    bench.client._tablets._context.chance = lambda: 0.0  # in the order of their names
    for uuid in ("s2", "s3"):
        bench.servers.servers[uuid].age_ms = 10
    bench.servers.servers["s1"].is_frozen = True
    for _ in range(5):
        assert bench.client.get("rows", "a", staleness=Staleness(bound_ms=1000)) == b"1"
    assert bench.servers.servers["s1"].asked["TabletRead"] == 1


def test_silent_members_leave_half_of_the_time_to_the_leader(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried: ALL_PART = 1."""
    filled(bench)
    monkeypatch.setattr(stale, "ALL_S", 1000.0)
    for server in bench.servers.servers.values():
        server.is_frozen = True
    calls, left_s = bench.client._tablets, []

    def called(purpose: CallPurpose[Any]) -> Any:
        left_s.append(purpose.deadline_s - time.monotonic())
        return real(purpose)

    real = calls._call
    monkeypatch.setattr(calls, "_call", called)
    with pytest.raises(Unavailable):
        bench.client.get("rows", "a", timeout_s=1.0, staleness=Staleness(bound_ms=1000))
    assert left_s[0] > 0


def test_nobody_can_prove_it_and_nobody_leads(bench: Bench) -> None:
    filled(bench)
    bench.servers.lead("")
    with pytest.raises(Unavailable):
        bench.client.get("rows", "a", timeout_s=0.3, staleness=Staleness(bound_ms=1000))


@pytest.mark.parametrize("bound_ms", [0, -5, 1 << 40])
def test_bounds_that_make_no_sense_are_refused(bound_ms: int) -> None:
    with pytest.raises(ValueError, match="data may be 1 to"):
        Staleness(bound_ms)
