"""The host of tablets as the server uses it: replicas that are being opened, purposes of closing, own views."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from coord.env_os import os_system
from regions.messages import ClosePurpose, OwnReplica, ReplicaState, TabletReport
from regionserver.tablets.hosting import LOOK_S, OPENING_S, HostedTablets
from regionserver.tablets.order_plans import Stage
from regionserver.tablets.process.host import TabletHost

OPENING = TabletReport("r1", "t", 1, ReplicaState.ASLEEP)


class Host:
    """A host with one replica, whose rows are being opened."""

    time_ms = TabletHost.time_ms
    leader_of = TabletHost.leader_of

    def __init__(self) -> None:
        self._system = os_system()
        self.found: TabletReport | None = OPENING
        self.closed: list[tuple[str, ClosePurpose]] = []
        self.turn = SimpleNamespace(groups={})
        self.members = SimpleNamespace(is_member=lambda tablet: False)

    def report(self, tablet: str) -> TabletReport | None:
        return self.found if tablet == "r1" else None

    def begin(self, tablet: str) -> Deferred[str]:
        is_running = self.found is not None and self.found.state is ReplicaState.RUNNING
        return succeed("" if is_running else f"tablet {tablet} is not open")

    def close(self, tablet: str, purpose: ClosePurpose) -> Deferred[str]:
        self.closed.append((tablet, purpose))
        return succeed("")

    def rows_of(self, tablet: str) -> Any:
        return SimpleNamespace(state=SimpleNamespace(clock_ms=1 << 60)) if tablet == "r1" else None


class HostedTabletsTest(SynchronousTestCase):
    """One server's host."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.host = Host()
        self.tablets = HostedTablets(
            self.clock,
            self.host,
            None,
            SimpleNamespace(local=lambda _tablet: None, cancel=lambda _tablet: False),  # type: ignore[arg-type]
            None,
        )

    def test_a_replica_that_is_being_opened_is_waited_for(self) -> None:
        """An order right after the start of the process does not fail because rows are not open yet."""
        answer = self.tablets.begin("r1")
        self.clock.advance(LOOK_S)
        self.assertNoResult(answer)
        self.host.found = replace(OPENING, state=ReplicaState.RUNNING)
        self.clock.advance(LOOK_S)
        assert self.successResultOf(answer) == ""

    def test_a_replica_that_fails_meanwhile_is_not_waited_for(self) -> None:
        answer = self.tablets.begin("r1")
        self.host.found = replace(OPENING, state=ReplicaState.FAILED)
        self.clock.advance(LOOK_S)
        assert self.successResultOf(answer)

    def test_waiting_has_an_end(self) -> None:
        answer = self.tablets.begin("r1")
        self.clock.pump([LOOK_S] * int(OPENING_S / LOOK_S + 2))
        assert self.successResultOf(answer)

    def test_each_stage_has_its_purpose(self) -> None:
        for stage in (Stage.REST, Stage.REMOVE, Stage.DELETE):
            self.tablets.close("r1", stage)
        assert [purpose.value for _, purpose in self.host.closed] == ["rest", "tombstone", "delete"]

    def test_time_is_not_below_the_tablets_clock(self) -> None:
        """A writer uses this time as the beginning of its next write."""
        assert self.tablets.time_ms("r1") == 1 << 60
        assert 0 < self.tablets.time_ms("elsewhere") < 1 << 60

    def test_a_replica_that_does_not_run_has_no_view_of_the_group(self) -> None:
        assert self.tablets.own_replica("r1") == OwnReplica(OPENING)
        assert self.tablets.own_replica("elsewhere") is None
        local = self.tablets.local("r1")
        assert local is not None
        assert (local.number, local.state, local.is_member) == (1, ReplicaState.ASLEEP, False)
        assert self.tablets.leader_of("r1") == (0, 0, "")
