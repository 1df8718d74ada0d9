"""One active master on a store whose connection the test cuts; the test also controls time and the store's replies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from coord.client.session import EVENT_GAP, SessionState
from coord.errors import ConnectionLoss, OperationError
from coord.rpc.server import RpcError
from coord.security.principal import NOBODY, Principal
from master.active import ActiveMaster
from master.api.requests import MasterApi
from master.leadership.fence import Fence
from master.phases import Phases
from master.plans.planner import Planner
from master.settings import MasterSettings
from regions import messages as ms
from regions.cluster.limits import AssignerConfig
from regions.records.model import ClusterRecord, Incarnation, RegionRecord, ReplicaLocation, ServerRecord, TableRecord
from regions.records.znodes import Layout, encode
from tests.unit.master.fake_store import WatchedStore

LAYOUT = Layout("/rk")


class LossyStore(WatchedStore):
    """A store whose connection the test cuts; the session lasts as long as the test decides."""

    def cut(self, *, done: bool = False) -> None:
        """Break the connection; requests in flight have, or have not, been carried out."""
        waiting = list(self.waiting)
        self.waiting.clear()
        self.become(SessionState.SUSPENDED)
        for deferred, act in waiting:
            if done:
                with contextlib.suppress(OperationError):
                    act()
            deferred.errback(ConnectionLoss(""))

    def mend(self) -> None:
        """Reconnect the session and restore its watches."""
        self.become(SessionState.CONNECTED)
        for path, callback in list(self.persistent):
            callback(EVENT_GAP, path, 0)


def lay_ground(store: LossyStore, *, clean: bool = False, servers: int = 1) -> None:
    """Put a cluster into the store: servers s1 and so on, and one table with one region, open on s1."""
    for path in ("/rk", *LAYOUT.parents()):
        store.put(path)
    store.put(LAYOUT.epoch, b"", 4)
    store.put(LAYOUT.cluster, encode(ClusterRecord("c", clean_shutdown=clean)))
    for number in range(1, servers + 1):
        server = ServerRecord(f"s{number}", "h", number + 1, 7)
        store.put(LAYOUT.server(server.uuid), encode(server))
    store.put(LAYOUT.table("t"), encode(TableRecord("t", "orders")))
    store.put(LAYOUT.name("orders"), b"t")
    store.put(LAYOUT.table_regions("t"))
    region = RegionRecord("t", "t.0", replicas=(ReplicaLocation(0, "s1", 7),))
    store.put(LAYOUT.region("t", "t.0"), encode(region))


class Bench:
    """One active master with one table. The API serves from it."""

    uuid, role, masters, election = "m", "active", 1, None
    registered: tuple[()] = ()
    watcher, address, limits = None, "h:1", AssignerConfig()
    checks = None
    #: Identity of the caller.
    who = NOBODY

    def __init__(
        self,
        folder: Path,
        *,
        clean: bool = False,
        servers: int = 1,
        store: LossyStore | None = None,
        epoch: int = 4,
        min_servers: int = 1,
        answers: int = -1,
        has_heard: Callable[[Incarnation], bool] | None = None,
    ) -> None:
        """Start the master on a new store with one table, or under a later epoch on the store of a former master.

        The master is open on return, except in three cases: it waits for `min_servers`, `answers` limits the requests
        that the store answers, or `has_heard` says which servers have sent heartbeats.
        """
        if store is None:
            self.store = LossyStore()
            lay_ground(self.store, clean=clean, servers=servers)
        else:
            self.store = store
        self.clock = MemoryReactorClock()
        self.ended: list[str] = []
        settings = MasterSettings(
            store="x:1", data_dir=folder, host="h", port=1, plan_engine="greedy", min_servers=min_servers,
            limits=self.limits,
        )  # fmt: skip
        planner = Planner(self.clock, folder, engine="greedy", deadline_s=1, spark_master="", spark_min=1)
        self.phases = Phases(self.clock.seconds)
        fence = Fence(self.store, LAYOUT, epoch)  # type: ignore[arg-type]
        self.tokens = 0
        self.active_master: ActiveMaster | None = ActiveMaster(
            self.clock, fence, settings, planner, self.phases, self.now_ms, self.ended.append, self.token
        )
        self.api = MasterApi(self, self.clock)  # type: ignore[arg-type]
        if has_heard is not None:
            self.active_master.has_heard = has_heard
        self.active_master.start()
        if answers >= 0:
            self.store.answer(answers)
            return
        if has_heard is not None:
            return
        for _ in range(4):
            self.go_on(1.0)
        assert self.active_master.is_open or servers < min_servers

    def succeeded_by(self, folder: Path) -> Bench:
        """Return the next master, after this one's session has ended: another session, and the next epoch."""
        store = LossyStore()
        store.nodes = self.store.nodes
        data, version, owner = store.nodes[LAYOUT.epoch]
        store.put(LAYOUT.epoch, data, version + 1, owner)
        return Bench(folder, store=store, epoch=version + 1)

    def token(self, size: int) -> bytes:
        """Return a new name at each call."""
        self.tokens += 1
        return self.tokens.to_bytes(size, "big")

    def hold_servers(self) -> None:
        """Deliver no orders to servers from now on."""
        self.clock.connectTCP = lambda *_args, **_kwargs: None  # type: ignore[method-assign, assignment]

    def caller(self) -> str:
        return "127.0.0.1:4711"

    def caller_principal(self) -> Principal:
        return self.who

    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000) + 1_000

    def uptime_ms(self) -> int:
        return 0

    def go_on(self, seconds: float = 0.0) -> None:
        """Let time pass; the store answers every request while the connection stands."""
        self.clock.advance(seconds)
        for _ in range(3):
            if self.store.state is SessionState.CONNECTED:
                self.store.answer()
            self.clock.advance(0)

    def one_turn(self, answers: int = -1) -> None:
        """Let one turn of the reactor pass, in which the store answers that many requests, -1: all.

        Calls that are scheduled in this turn belong to the next one.
        """
        due = [one for one in self.clock.calls if one.getTime() <= self.clock.seconds()]
        self.store.answer(answers)
        for call in due:
            if call.active():
                self.clock.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)

    def ask(self, request: ms.MasterRequest, *, answered: bool = True) -> Any:
        """Return the API's reply, or the code of its RpcError; None if there is no reply yet."""
        results: list[Any] = []
        self.ask_into(request, results)
        if answered:
            self.go_on()
        return results[0] if results else None

    def ask_into(self, request: ms.MasterRequest, results: list[Any]) -> None:
        """Ask; the answer, or the RpcError's code, is appended to `results` when it comes."""

        def came(found: Any) -> None:
            if isinstance(found, Failure):
                assert isinstance(found.value, RpcError), found.getTraceback()
                found = found.value.code
            results.append(found)

        ensureDeferred(self.api.dispatch(request)).addBoth(came)
