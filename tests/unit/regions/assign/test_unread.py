"""A write was rejected, and the present state has not been read yet: no decision is based on the outdated state."""

from __future__ import annotations

from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.work import WriteState
from regions.messages import OrderOutcome, OrderResult
from regions.records.model import RegionState, TableIntent, TabletState
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition


class SlowReads(ModelCluster):
    """Reads of transitions are not answered before `answer_reads`."""

    is_slow = True

    def _carry_out(self, effect: fx.Effect) -> None:
        if not (self.is_slow and isinstance(effect, fx.ReadTransition)):
            super()._carry_out(effect)

    def answer_reads(self) -> None:
        self.is_slow = False
        self.see("r1")
        self.run()


def unread() -> SlowReads:
    """Return a cluster with r1, which is OFFLINE towards b. Server b has begun to open it. Its table is disabled, so
    the master deletes the transition, and the store rejects the delete."""
    cluster = SlowReads()
    cluster.put(region("r1"))
    cluster.put_transition(transition(RegionState.OFFLINE, None, at("b")))
    cluster.silent = {"a", "b"}
    cluster.start(server("a"), server("b"))
    record, version = cluster.unassigned["r1-0"]
    cluster.unassigned["r1-0"] = (transition(RegionState.OPENING, None, at("b"), epoch=record.epoch), version + 1)
    cluster.set_intent(TableIntent.DISABLED)
    replica = cluster.assigner.world.replicas["r1-0"]
    assert (replica.write_state, replica.order is not None) == (WriteState.UNREAD, True)
    cluster.writes.clear()
    return cluster


def test_a_deadline_waits_for_the_read() -> None:
    cluster = unread()
    cluster.pass_time(2 * cluster.config.open_timeout_ms)
    assert cluster.writes == []
    cluster.answer_reads()
    cluster.pass_time(2 * cluster.config.open_timeout_ms)
    assert cluster.unassigned == {}


def test_a_failed_open_waits_for_the_read() -> None:
    cluster = unread()
    sent = cluster.sent[-1]
    assert isinstance(sent, fx.SendOpen)
    failed = OrderResult("r1", 0, OrderOutcome.FAILED, 3, "disk")
    cluster.assigner.handle(ev.OrdersAnswered(sent.batch, [failed]), cluster.now)
    cluster.run()
    assert cluster.writes == []


def test_a_replica_of_a_dropped_region_gets_no_destination() -> None:
    """An earlier master has replaced the region while this one searched for a server."""
    cluster = ModelCluster()
    cluster.put(region("r1"))
    cluster.start()
    assert [one.key for one in cluster.assigner.unplaceable()] == ["r1-0"]
    record, version = cluster.regions["r1"]
    cluster.handle(ev.RegionSeen(type(record)("t1", "r1", state=TabletState.REPLACED), version + 1))
    assert cluster.assigner.unplaceable() == []
    cluster.join(server("a"))
    assert cluster.unassigned == {}
