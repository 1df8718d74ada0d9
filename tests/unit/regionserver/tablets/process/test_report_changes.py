"""When a tablet is reported again because the health of its members, or its size, has changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from regions.messages.heartbeat import LeaderReport, MemberHealth, MemberReport, ReplicaState, TabletReport
from regions.records.members import Member
from regionserver.tablets.process import reports
from regionserver.tablets.process.reports import ReportChanges, ServersSeen

SEEN = ServersSeen(frozenset(), frozenset())
GROUPS: Any = {"t": SimpleNamespace(core=SimpleNamespace(leadership=object()), failure="")}
HEALTHY = (MemberReport(1, MemberHealth.HEALTHY), MemberReport(2, MemberHealth.HEALTHY))
SILENT = (HEALTHY[0], MemberReport(2, MemberHealth.UNKNOWN, reason="its server does not answer"))


class Sweeps:
    """The looks at the members' health, once a second, and the reports between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes = ReportChanges()
        self.health = HEALTHY
        monkeypatch.setattr(reports, "judge_members", lambda *_: self.health)

    def sweep(self, *, is_awake: bool = True) -> list[str]:
        found = self.changes.of_health(GROUPS, GROUPS if is_awake else {}, SEEN, 300.0)
        for _ in found:
            self.report()
        return found

    def report(self) -> None:
        leader = LeaderReport((Member(1, "a"), Member(2, "b")), self.health)
        self.changes.reported(TabletReport("t", "table", 1, ReplicaState.RUNNING, leader=leader))


def test_a_change_of_health_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = Sweeps(monkeypatch)
    assert sweeps.sweep() == ["t"]
    assert sweeps.sweep() == []
    sweeps.report()
    assert sweeps.sweep() == []
    sweeps.health = SILENT
    assert sweeps.sweep() == ["t"]
    assert sweeps.sweep() == []


def test_a_server_that_comes_back_between_two_looks_is_reported_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report for another reason showed the server as dead. The next look found the same health as the last look, so
    the tablet remained UNDER_REPLICATED for the master (kill points of a creation, twice in two rounds).

    Tried: without the call of `reported` the last look returns nothing.
    """
    sweeps = Sweeps(monkeypatch)
    assert sweeps.sweep() == ["t"]
    sweeps.health = SILENT
    sweeps.report()
    sweeps.health = HEALTHY
    assert sweeps.sweep() == ["t"]
    assert sweeps.sweep() == []


def test_a_member_that_answers_just_before_its_tablet_becomes_quiet_is_reported_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look came between the return of a server and the first answer of its member. Then the tablet became quiet, and
    no look judged it again: it stayed UNDER_REPLICATED for the master (test_dead_servers_are_told_truly, once).

    Tried: without `_were_awake` the second look returns nothing.
    """
    sweeps = Sweeps(monkeypatch)
    sweeps.health = SILENT
    assert sweeps.sweep() == ["t"]
    sweeps.health = HEALTHY
    assert sweeps.sweep(is_awake=False) == ["t"]
    assert sweeps.sweep(is_awake=False) == []
    monkeypatch.setattr(reports, "judge_members", lambda *_: pytest.fail("a quiet tablet was judged"))
    assert sweeps.sweep(is_awake=False) == []


def test_a_size_that_was_another_one_in_a_report_between_two_looks_is_reported() -> None:
    """A daughter's leader was reported with its rows. They were deleted before the first look at sizes, which found an
    empty tablet as expected: for the master it stayed large, and was never merged (test_splits_by_settings, twice).

    Tried: without the sizes of other reports the first look returns nothing.
    """
    changes = ReportChanges()
    rows = SimpleNamespace(state=SimpleNamespace(rows=0, size=0))
    replicas: Any = {"t": SimpleNamespace(rows=rows)}
    changes.reported(TabletReport("t", "table", 1, ReplicaState.RUNNING, size_bytes=1_005_000, rows=1_005))
    looks = [changes.of_sizes(replicas, now) for now in (1_000, 2_000)]
    assert looks == [["t"], []]
