"""Servers of tablets without Raft, on real sockets. Each tablet is in the memory of one process, and the test moves the
leadership.

Servers can be frozen (connections stay, nothing is answered), reset, killed and started again at another port. Writes
are carried out once, by the product's `WriterResults`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.threads import blockingCallFromThread

from coord.rpc.server import RpcServer
from coord.rpc.wire import RpcError
from regions.messages.codes import check_cluster
from regionserver.kv.messages import NO_SCHEMA, KvRow, check_schema
from regionserver.tablets.commands import CONDITION_FAILED, DONE, CompareAndSet, DeleteRow, WriteOutcome
from regionserver.tablets.messages import (
    KnownLeader,
    LeaderElsewhere,
    Leaders,
    TabletLeader,
    TabletPage,
    TabletRead,
    TabletRequest,
    TabletScan,
    TabletValues,
    TabletWrite,
    TabletWritten,
    WhoLeads,
    check_request,
    check_tablets,
)
from regionserver.tablets.writers import Totals, WriterResults
from tests.support.helpers import PATIENCE_S

START_MS = 1_000_000_000


class FakeTablet:
    """Rows and results of one tablet, and its leader."""

    def __init__(self, record: Any, store: Any) -> None:
        self.record = record
        self.rows: dict[str, bytes] = {}
        self.totals = Totals(START_MS)
        self.store = store
        self.term = 1
        self.leader = ""
        self.index = 0
        self.carried_out = 0

    def write(self, request: TabletWrite, time_ms: int) -> WriteOutcome:
        """Apply a write and return its result."""
        self.index += 1
        results = WriterResults(self.store, self.totals)
        command = request.command(time_ms)
        outcome = results.check(command, self.term, self.index)
        if outcome is None:
            outcome = self._execute(request)
            results.keep(command, outcome)
        results.flush()
        return outcome

    def _execute(self, request: TabletWrite) -> WriteOutcome:
        for position, one in enumerate(request.operations):
            if isinstance(one, CompareAndSet) and self.rows.get(one.key) != one.expected:
                return WriteOutcome(CONDITION_FAILED, self.term, self.index, position)
        self.carried_out += 1
        for one in request.operations:
            value = None if isinstance(one, DeleteRow) else one.value
            if value is None:
                self.rows.pop(one.key, None)
            else:
                self.rows[one.key] = value
        return WriteOutcome(DONE, self.term, self.index)


class FakeServer:
    """One server of tablets."""

    def __init__(self, cluster: FakeTablets, uuid: str) -> None:
        self.uuid = uuid
        self.port = 0
        self.is_frozen = False
        #: Replaces the answer to a request: returns a reply, raises, or returns None for the usual answer.
        self.answer: Callable[[Any], Any] = lambda _request: None
        #: Number of next requests that are carried out and answered by breaking the connection.
        self.resets = 0
        self.asked: Counter[str] = Counter()
        #: Age of the rows of this server, which it can prove for stale reads.
        self.age_ms: int | None = None
        #: Latest schema version of a write to each tablet.
        self.schemas: dict[str, int] = {}
        self._cluster = cluster
        self._listening: Any = None
        self._server: RpcServer | None = None

    def listen(self, port: int = 0) -> None:
        """Listen. Call on the reactor's thread."""
        self._server = RpcServer(
            self._dispatch,
            requests=TabletRequest,
            check=lambda request: check_cluster(request.cluster, self._cluster.cluster_id, "server"),
        )
        self._listening = self._server.listen(self._cluster.reactor, "127.0.0.1", port)
        self.port = self._listening.getHost().port

    def abort(self) -> None:
        """Break all connections, on the reactor's thread."""
        assert self._server is not None
        for connection in list(self._server.connections):
            connection.transport.abortConnection()

    def stop_listening(self) -> Any:
        """Stop listening. Call on the reactor's thread."""
        self.abort()
        return self._listening.stopListening()

    def _dispatch(self, request: Any) -> Any:
        self.asked[type(request).__name__] += 1
        if self.is_frozen:
            return Deferred()
        reply = self.answer(request)
        if reply is not None:
            return reply
        reply = self._cluster.answer(self, request)
        if self.resets and not isinstance(request, WhoLeads):
            self.resets -= 1
            self.abort()
        return reply


class FakeTablets:
    """Three servers and some tablets. Methods are for the test's thread."""

    cluster_id = "c1"

    def __init__(self, new_store: Callable[[], Any], uuids: tuple[str, ...] = ("s1", "s2", "s3")) -> None:
        self.reactor: Any = EPollReactor()  # type: ignore[no-untyped-call]
        self.servers = {uuid: FakeServer(self, uuid) for uuid in uuids}
        self.tablets: dict[str, FakeTablet] = {}
        self.time_ms = START_MS + 1_000_000
        self._new_store = new_store
        self._thread = threading.Thread(
            target=lambda: self.reactor.run(installSignalHandlers=False), name="fake tablets", daemon=True
        )
        self._thread.start()
        for server in self.servers.values():
            self.on_reactor(server.listen)

    def on_reactor(self, what: Callable[..., Any], *arguments: Any) -> Any:
        """Call on the reactor's thread and wait for the result."""
        return blockingCallFromThread(self.reactor, what, *arguments)  # type: ignore[no-untyped-call]

    def add(self, record: Any, leader: str) -> FakeTablet:
        """Add a tablet."""
        tablet = self.tablets[record.region_id] = FakeTablet(record, self._new_store())
        tablet.leader = leader
        return tablet

    def lead(self, leader: str) -> None:
        """Move the leadership of all tablets."""
        for tablet in self.tablets.values():
            tablet.term += 1
            tablet.leader = leader

    def kill(self, uuid: str) -> None:
        """Break the server's connections and stop listening."""
        self.on_reactor(self.servers[uuid].stop_listening)

    def start(self, uuid: str) -> None:
        """Listen again, at another port."""
        self.on_reactor(self.servers[uuid].listen)

    def close(self) -> None:
        """Stop the reactor's thread."""
        for server in self.servers.values():
            self.on_reactor(server.stop_listening)
        self.reactor.callFromThread(self.reactor.stop)
        self._thread.join(PATIENCE_S)

    # --- on the reactor's thread ---

    def view(self, tablet: FakeTablet) -> KnownLeader:
        """Return the knowledge of each server."""
        if not tablet.leader:
            return KnownLeader(tablet.record.region_id, tablet.term)
        port = self.servers[tablet.leader].port
        return KnownLeader(tablet.record.region_id, tablet.term, TabletLeader(1, tablet.leader, "127.0.0.1", port))

    def answer(self, server: FakeServer, request: Any) -> Any:
        """Answer a request as a server does."""
        if isinstance(request, WhoLeads):
            check_tablets(request.tablets)
            return Leaders([self.view(self.tablets[one]) for one in request.tablets], self.time_ms)
        tablet = self.tablets.get(request.tablet)
        if tablet is None:
            raise RpcError("no_replica", f"no replica of {request.tablet}")
        check_request(request, tablet.record)
        age_ms = self._age_of(server, request)
        if tablet.leader != server.uuid and age_ms is None:
            return LeaderElsewhere(self.view(tablet), self.time_ms)
        if isinstance(request, TabletRead):
            values = [tablet.rows.get(key) for key in request.keys]
            return TabletValues(values, tablet.index, self.time_ms, age_ms)
        if isinstance(request, TabletScan):
            return msgspec.structs.replace(self._page(tablet, request), age_ms=age_ms)
        known = server.schemas.get(request.tablet, NO_SCHEMA)
        server.schemas[request.tablet] = check_schema(request.schema_version, known)
        return TabletWritten(tablet.write(request, self.time_ms), self.time_ms)

    @staticmethod
    def _age_of(server: FakeServer, request: Any) -> int | None:
        """Return the age that a server can prove to a stale read. Return None if it cannot, and for other requests."""
        bound_ms = request.max_stale_ms if isinstance(request, TabletRead | TabletScan) else 0
        return server.age_ms if server.age_ms is not None and server.age_ms <= bound_ms else None

    def _page(self, tablet: FakeTablet, request: TabletScan) -> TabletPage:
        keys = sorted(key for key in tablet.rows if key >= request.start and (not request.end or key < request.end))
        rows = [KvRow(key, tablet.rows[key]) for key in keys[: request.rows_max]]
        following = keys[request.rows_max] if len(keys) > request.rows_max else ""
        return TabletPage(rows, following, tablet.index, self.time_ms)
