"""Records of startups, failovers and bulk assignments: one for each event, never changed, the oldest removed."""

from __future__ import annotations

from typing import Final

import pytest
from twisted.internet.defer import ensureDeferred

from coord.errors import ConnectionLoss
from master.leadership.fence import Fence
from master.runs import RUNS_KEPT, Runs
from regions.messages import StartupPhase
from regions.records.model import RunRecord
from regions.records.znodes import Layout, decode_run
from tests.unit.master.fake_store import FakeStore

LAYOUT = Layout("/rk")
PHASES: Final = [StartupPhase("election", 0.5), StartupPhase("load", 0.25), StartupPhase("open", 9.0, done=False)]


class Bench:
    """The runs of the tenure of epoch 400, on a fake store."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.store.put(LAYOUT.runs)
        self.store.put(LAYOUT.epoch, b"", 400)
        fence = Fence(self.store, LAYOUT, 400)  # type: ignore[arg-type]
        self.runs = Runs(fence, RunRecord(400, "m1", "host:1", "", 0, ()))

    def add(self, record: RunRecord) -> None:
        saved = ensureDeferred(self.runs.add(record))
        self.store.answer()
        assert saved.called

    def names(self) -> list[str]:
        return sorted(path for path in self.store.nodes if path.startswith(f"{LAYOUT.runs}/"))


def test_each_event_has_a_record_that_later_events_leave_alone() -> None:
    """N10, B5: a bulk assignment four minutes after a failover must not change what the failover took."""
    bench = Bench()
    bench.add(bench.runs.record("failover", PHASES, path="failover", found=3))
    first = bench.store.nodes[LAYOUT.run(400, 0)]
    bench.add(bench.runs.record("assignment", PHASES[:1], planned=7, engine="greedy", tables=("orders",)))
    assert bench.store.nodes[LAYOUT.run(400, 0)] == first
    failover, bulk = (decode_run(bench.store.nodes[path][0]) for path in bench.names())
    assert (failover.kind, failover.found, failover.planned) == ("failover", 3, 0)
    assert failover.phases == (("election", 0.5), ("load", 0.25))
    assert (bulk.kind, bulk.planned, bulk.engine, bulk.tables) == ("assignment", 7, "greedy", ("orders",))
    assert bulk.phases == (("election", 0.5),)


@pytest.mark.parametrize("kept", [RUNS_KEPT - 1, RUNS_KEPT])
def test_the_oldest_records_are_deleted_beyond_the_limit(kept: int) -> None:
    """N10: RUNS_KEPT records stay, the new one included; a record of an earlier build counts."""
    bench = Bench()
    oldest = f"{LAYOUT.runs}/{100:010d}"
    for path in [oldest, *(LAYOUT.run(epoch, 0) for epoch in range(101, 100 + kept))]:
        bench.store.put(path, b"{}")
    bench.add(bench.runs.record("failover", PHASES))
    assert len(bench.names()) == RUNS_KEPT
    assert (oldest in bench.names()) == (kept < RUNS_KEPT)


def test_a_record_is_created_once_although_the_first_reply_was_lost() -> None:
    bench = Bench()
    record = bench.runs.record("failover", PHASES)
    lost = ensureDeferred(bench.runs.add(record))
    lost.addErrback(lambda failure: failure.trap(ConnectionLoss))
    while bench.store.waiting:
        deferred, act = bench.store.waiting.popleft()
        answer = act()
        if LAYOUT.run(400, 0) in bench.store.nodes:
            deferred.errback(ConnectionLoss("/"))
        else:
            deferred.callback(answer)
    assert lost.called
    bench.add(record)
    assert bench.names() == [LAYOUT.run(400, 0)]
