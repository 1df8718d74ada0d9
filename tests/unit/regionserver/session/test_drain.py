"""A clean stop: the server hands its regions over, and waits only while that makes sense."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from coord.client.session import SessionState
from regions.records import znodes
from regions.records.model import ClusterRecord, ServerRecord
from regions.records.znodes import Layout
from regionserver.session import drain
from tests.unit.master.fake_store import FakeStore

PATHS = Layout("/rk")
RECORD = ServerRecord("me", "host", 1, 50)


class AnsweringStore(FakeStore):
    """Answers at once."""

    timeout_ms = 3_000

    def _later(self, act: Any) -> Deferred[Any]:
        deferred = super()._later(act)
        self.answer()
        return deferred


class HandoverTests(SynchronousTestCase):
    """One server with a few regions."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.store = AnsweringStore()
        self.left = 3
        for path in ("/rk", *PATHS.parents()):
            self.store.put(path)
        self.store.put(PATHS.cluster, znodes.encode(ClusterRecord("c")))
        self.store.put(PATHS.active)
        self.store.put(PATHS.server("me"), znodes.encode(RECORD))
        self.store.put(PATHS.server("other"), b"{}")

    def begin(self, patience_s: float = 30.0) -> Deferred[None]:
        store: Any = self.store

        async def announce(record: ServerRecord) -> None:
            await store.set(PATHS.server(record.uuid), znodes.encode(record))

        work = drain.drain(self.clock, store, PATHS, RECORD, announce, lambda: self.left, patience_s)
        return ensureDeferred(work)

    def said(self) -> ServerRecord:
        return znodes.decode_server(self.store.nodes[PATHS.server("me")][0])

    def pass_time(self, seconds: float) -> None:
        self.clock.pump([drain.POLL_S] * (int(seconds / drain.POLL_S) + 2))

    def test_a_stopping_server_announces_it_and_waits_until_it_is_empty(self) -> None:
        """Every region that leaves extends the wait for the others."""
        waiting = self.begin()
        assert self.said().leaving
        assert self.said().session_ms == 3_000
        for _ in range(3):
            self.pass_time(drain.STALL_S - 1)
            self.assertNoResult(waiting)
            self.left -= 1
        self.pass_time(0.1)
        self.successResultOf(waiting)

    def test_a_drain_ends_when_no_region_leaves(self) -> None:
        waiting = self.begin()
        self.pass_time(drain.STALL_S)
        self.successResultOf(waiting)

    def test_a_drain_ends_at_its_time_limit(self) -> None:
        waiting = self.begin(1.0)
        self.pass_time(1.0)
        self.successResultOf(waiting)

    def test_a_lost_connection_ends_a_drain(self) -> None:
        waiting = self.begin()
        self.store.state = SessionState.SUSPENDED
        self.pass_time(0.1)
        self.successResultOf(waiting)

    def test_a_drain_requires_a_master_and_another_server(self) -> None:
        """No other server, no active master, a cluster that is shut down as a whole, nothing to hand over."""
        for spoil in (
            lambda: self.store.nodes.pop(PATHS.server("other")),
            lambda: self.store.nodes.pop(PATHS.active),
            lambda: self.store.nodes.pop(PATHS.cluster),
            lambda: self.store.put(PATHS.cluster, znodes.encode(ClusterRecord("c", clean_shutdown=True))),
            lambda: setattr(self, "left", 0),
            lambda: setattr(self.store, "state", SessionState.SUSPENDED),
            lambda: self.store.nodes.pop(PATHS.server("me")),
        ):
            self.setUp()
            spoil()
            self.successResultOf(self.begin())
            if PATHS.server("me") in self.store.nodes:
                assert not self.said().leaving
