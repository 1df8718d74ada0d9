"""The owners that the active master reports to its auditor (N5)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from twisted.internet.testing import MemoryReactorClock

from master.service import MasterService
from master.settings import MasterSettings
from regions.messages.heartbeat import CLOSING, OPEN, ReplicaReport, Report
from regions.records.model import Incarnation
from tests.unit.master.active_fixture import Bench

S1 = Incarnation("s1", 7)


def master_of(bench: Bench, folder: Path) -> MasterService:
    identity: Any = SimpleNamespace(uuid="m1", start_code=1, release=lambda: None)
    settings = MasterSettings(store="x:1", data_dir=folder, host="h", port=1, plan_engine="greedy")
    found = MasterService(MemoryReactorClock(), settings, identity)
    found.active_master = bench.active_master
    return found


def test_a_region_that_its_server_opens_or_closes_is_not_looked_at(tmp_path: Path) -> None:
    """The server reports CLOSING before the store has the transition, and serves the region until then."""
    bench = Bench(tmp_path)
    master = master_of(bench, tmp_path)
    assert bench.active_master is not None
    for state, home in ((OPEN, S1), (CLOSING, None), (OPEN, S1), (CLOSING, None)):
        bench.active_master.reports.take(S1, Report([ReplicaReport("t.0", "t", 0, state)], begins=True, ends=True), 0)
        assert master._home_of("t.0-0") == home
        assert master._at_rest(S1) == (set() if home is None else {"t.0-0"})
    bench.active_master.reports.take(S1, Report([ReplicaReport("t.0", "t", 0, "OPENING")]), 0)
    assert master._home_of("t.0-0") is None, "the store has OPENED, and the server waits for the reply"
    assert master._at_rest(S1) == {"t.0-0"}, "if this lasts, the comparison of all owners finds it"
    bench.active_master.reports.take(S1, Report([], ["t.0-0"]), 0)
    assert master._home_of("t.0-0") == S1, "the server has given it up, and the store still names the server"
