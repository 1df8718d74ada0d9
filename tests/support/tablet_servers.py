"""Scripted region servers that take tablets: they carry out a master's orders on a store in memory, and report.

A server keeps its replicas on a disk that outlives its process, checks orders by `regions/replication/guards.py`, and
takes the steps of an open one by one, so a test can stop it between any two (`stop_at`). A tablet has a leader while a
majority of its members take part. Nothing here has threads or time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from twisted.internet.defer import Deferred, fail, succeed

from coord.rpc.wire import RpcError
from regions.messages import (
    ChangeConfig,
    CloseRegions,
    OpenRegions,
    OrderOutcome,
    OrderResult,
    OrderResults,
    TransferLeadership,
)
from regions.messages.heartbeat import TAKES_PART, LeaderReport, ReplicaState, Report, TabletReport, TabletRole
from regions.messages.server import ClosePurpose
from regions.records.formats import KNOWN
from regions.records.members import NO_CONFIG, ConfigId, Member
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TransitionRecord,
)
from regions.records.znodes import Layout, decode_region, decode_transition, encode
from regions.replication.config import majority
from regions.replication.guards import (
    CloseFacts,
    OpenFacts,
    OrderAnswer,
    ReplicaOnDisk,
    answer_to_close,
    answer_to_open,
)

#: Steps at which a server can be stopped while it opens a replica.
STOPS = ("before OPENING", "after OPENING", "after the files", "after OPENED")


class ScriptedServer:
    """One server: its registration, its disk, and whether its process runs."""

    def __init__(self, uuid: str, port: int, rack: str) -> None:
        self.record = ServerRecord(
            uuid, "h", port, 7, rack, kind="kv/1", format=KNOWN, tablets=True, peer_port=port + 1_000
        )
        self.lives = True
        self.disk: dict[str, ReplicaOnDisk] = {}
        #: Reports that the active master has received; None: it gets a full report next.
        self.told: dict[str, TabletReport] | None = None
        #: Regions whose replicas can neither be opened nor closed here.
        self.broken: set[str] = set()
        #: Step at which the process dies during the next open; "" for no death.
        self.stop_at = ""

    @property
    def incarnation(self) -> Incarnation:
        return self.record.incarnation


class ScriptedServers:
    """Some servers on one store. `store` has the methods of `tests/unit/master/fake_store.py:WatchedStore`."""

    def __init__(self, store: Any, layout: Layout, count: int = 3) -> None:
        self.store = store
        self.layout = layout
        self.servers = {f"s{n}": ScriptedServer(f"s{n}", 10 * n, f"r{n % 3}") for n in range(1, count + 1)}
        #: Orders by kind and answer; and how often each number was created from nothing.
        self.counts: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        #: Regions without a replica that reports to lead.
        self.leaderless: set[str] = set()
        #: Reports of leaders by region, instead of the record's configuration in term 1: id, members, term.
        self.configs: dict[str, tuple[ConfigId, tuple[Member, ...], int]] = {}

    # --- life -------------------------------------------------------------------------------------------------------

    def register(self) -> None:
        """Put the registrations of the running servers into the store."""
        for server in self.servers.values():
            if server.lives:
                self.store.change(self.layout.server(server.record.uuid), encode(server.record))

    def stop(self, uuid: str) -> None:
        """Kill a process: its registration is removed, its disk stays."""
        self.servers[uuid].lives = False
        self.store.drop(self.layout.server(uuid))

    def start(self, uuid: str, *, empty: bool = False) -> None:
        """Start a server again, under the next start code. `empty`: its disk was lost."""
        server = self.servers[uuid]
        server.record = msgspec.structs.replace(server.record, start_code=server.record.start_code + 1)
        server.lives, server.told, server.stop_at = True, None, ""
        if empty:
            server.disk.clear()
        self.store.change(self.layout.server(uuid), encode(server.record))

    def new_master(self) -> None:
        """Send full reports from now on."""
        for server in self.servers.values():
            server.told = None

    # --- orders -----------------------------------------------------------------------------------------------------

    def client(self, record: ServerRecord) -> _Client:
        """Return the connection to a server for the dispatcher."""
        return _Client(self, record)

    def answer(self, record: ServerRecord, message: Any) -> Deferred[Any]:
        server = self.servers[record.uuid]
        if not server.lives or message.start_code != server.record.start_code:
            return fail(RpcError("UNREACHABLE", "nobody is there"))
        take = self._open if isinstance(message, OpenRegions) else self._close
        results = [take(server, order, message.epoch) for order in message.orders]
        if not server.lives:
            return fail(RpcError("UNREACHABLE", "the connection was lost"))
        return succeed(OrderResults(results))

    def _open(self, server: ScriptedServer, order: Any, epoch: int) -> OrderResult:
        transition: TransitionRecord = order.transition
        region_id, number = transition.region_id, transition.replica
        if order.tablet is None:
            return self._open_shared(server, order, epoch)
        found = answer_to_open(OpenFacts(number, order.tablet, server.disk.get(region_id)))
        self.counts[f"open: {found.name}"] += 1
        if region_id in server.broken:
            return OrderResult(region_id, number, OrderOutcome.FAILED, error="the disk is read-only")
        if found not in (OrderAnswer.MAKE, OrderAnswer.WAKE):
            return OrderResult(region_id, number, OrderOutcome.REFUSED, error=found.value)
        if self._stops(server, "before OPENING"):
            return OrderResult(region_id, number, OrderOutcome.FAILED)
        opening = msgspec.structs.replace(transition, state=RegionState.OPENING, epoch=epoch, reason="", took=(1,))
        if transition.state is RegionState.OFFLINE and not self._set(opening, RegionState.OFFLINE, order.version):
            return OrderResult(region_id, number, OrderOutcome.REFUSED, error="the transition has changed")
        if self._stops(server, "after OPENING"):
            return OrderResult(region_id, number, OrderOutcome.FAILED)
        if found is OrderAnswer.MAKE:
            self.made[f"{region_id}-{number}"] += 1
        server.disk[region_id] = ReplicaOnDisk(number, ReplicaState.RUNNING)
        if self._stops(server, "after the files"):
            return OrderResult(region_id, number, OrderOutcome.FAILED)
        opened = msgspec.structs.replace(opening, state=RegionState.OPENED, took=(1, 2))
        self._set(opened, RegionState.OPENING, -1)
        self._stops(server, "after OPENED")
        return OrderResult(region_id, number, OrderOutcome.DONE)

    def _open_shared(self, server: ScriptedServer, order: Any, epoch: int) -> OrderResult:
        """Open a shared region: both steps, and the location with the second."""
        transition: TransitionRecord = order.transition
        region_id, number = transition.region_id, transition.replica
        opening = msgspec.structs.replace(transition, state=RegionState.OPENING, epoch=epoch, took=(1,))
        if not self._set(opening, RegionState.OFFLINE, order.version):
            return OrderResult(region_id, number, OrderOutcome.REFUSED, error="the transition has changed")
        location = ReplicaLocation(number, server.record.uuid, server.record.start_code, opening.since_ms)
        path = self.layout.region(transition.table_id, region_id)
        self.store.change(path, encode(decode_region(self.store.nodes[path][0]).with_location(location)))
        self._set(msgspec.structs.replace(opening, state=RegionState.OPENED, took=(1, 2)), RegionState.OPENING, -1)
        self.counts["open: shared"] += 1
        return OrderResult(region_id, number, OrderOutcome.DONE)

    def _stops(self, server: ScriptedServer, point: str) -> bool:
        if server.stop_at == point:
            server.stop_at = ""
            self.stop(server.record.uuid)
        return not server.lives

    def _close(self, server: ScriptedServer, order: Any, epoch: int) -> OrderResult:
        region_id, number = order.region_id, order.replica
        local = server.disk.get(region_id)
        if local is not None:
            local = local._replace(config_id=NO_CONFIG, is_member=False)
        if region_id in server.broken:
            return OrderResult(region_id, number, OrderOutcome.FAILED, error="the disk is read-only")
        found = answer_to_close(CloseFacts(number, order.tablet, local))
        self.counts[f"close {order.tablet.purpose}: {found.name}"] += 1
        if found is not OrderAnswer.CLOSE:
            outcome = OrderOutcome.DONE if found is OrderAnswer.DONE else OrderOutcome.REFUSED
            return OrderResult(region_id, number, outcome, error=found.value)
        path = self.layout.transition(region_id, number)
        if path in self.store.nodes:
            return OrderResult(region_id, number, OrderOutcome.REFUSED, error="in transition")
        closing = TransitionRecord(
            region_id, order.table_id, number, RegionState.CLOSING, source=server.incarnation, intent=order.intent,
            epoch=epoch, deadline_ms=1, took=(1,), origin=order.origin,
        )  # fmt: skip
        self.store.change(path, encode(closing))
        if order.tablet.purpose is ClosePurpose.DELETE:
            del server.disk[region_id]
        else:
            rests = order.tablet.purpose is ClosePurpose.REST
            state = ReplicaState.RESTING if rests else ReplicaState.TOMBSTONE
            server.disk[region_id] = ReplicaOnDisk(number, state)
        self.store.change(path, encode(msgspec.structs.replace(closing, state=RegionState.CLOSED, took=(1, 2))))
        return OrderResult(region_id, number, OrderOutcome.DONE)

    def _set(self, record: TransitionRecord, before: RegionState, version: int) -> bool:
        """Do a compare-and-set of a server."""
        path = self.layout.transition(record.region_id, record.replica)
        found = self.store.nodes.get(path)
        if found is None or decode_transition(found[0]).state is not before or version not in (-1, found[1]):
            return False
        self.store.change(path, encode(record))
        return True

    # --- reports ----------------------------------------------------------------------------------------------------

    def region(self, table_id: str, region_id: str) -> RegionRecord | None:
        """Return a region's record from the store."""
        found = self.store.nodes.get(self.layout.region(table_id, region_id))
        return None if found is None else decode_region(found[0])

    def reports_of(self, server: ScriptedServer) -> dict[str, TabletReport]:
        """Return the reports of a server: its replicas by region."""
        found: dict[str, TabletReport] = {}
        for region_id, local in server.disk.items():
            table_id = region_id.rpartition(".")[0]
            report = TabletReport(region_id, table_id, local.number, local.state, 1)
            region = self.region(table_id, region_id)
            if region is not None and self.leader_of(region) == local.number and local.state in TAKES_PART:
                config_id, members, term = self.configs.get(region_id, (NO_CONFIG, region.members, 1))
                report = msgspec.structs.replace(
                    report, role=TabletRole.LEADER, leader=LeaderReport(members), config_id=config_id, term=term
                )
            found[region_id] = report
        return found

    def leader_of(self, region: RegionRecord) -> int:
        """Return the number of the member that leads, 0 without a majority."""
        if region.region_id in self.leaderless:
            return 0
        part = [one.number for one in region.members if self._takes_part(region.region_id, one.uuid, one.number)]
        return part[0] if part and len(part) >= majority(len(region.members)) else 0

    def _takes_part(self, region_id: str, uuid: str, number: int) -> bool:
        server = self.servers[uuid]
        local = server.disk.get(region_id)
        return server.lives and local is not None and local.number == number and local.state in TAKES_PART

    def beat(self, reported: Any) -> None:
        """Let every running server report its changes to the active master: `reported(server, report)`."""
        for server in self.servers.values():
            if not server.lives:
                continue
            now = self.reports_of(server)
            if server.told is None:
                reported(server.incarnation, Report(tablets=list(now.values()), begins=True, ends=True))
            else:
                told = server.told
                changed = [one for region_id, one in now.items() if told.get(region_id) != one]
                gone = [one.key for region_id, one in told.items() if region_id not in now]
                if changed or gone:
                    reported(server.incarnation, Report(tablets=changed, gone=gone))
            server.told = now


class _Client:
    """A connection to one scripted server."""

    def __init__(self, servers: ScriptedServers, record: ServerRecord) -> None:
        self._servers = servers
        self._record = record

    def call(self, message: Any, timeout_s: float, expect: Any) -> Deferred[Any]:
        assert timeout_s > 0, "orders have a deadline"
        assert isinstance(message, OpenRegions | CloseRegions | ChangeConfig | TransferLeadership), message
        return self._servers.answer(self._record, message)

    def close(self) -> None:
        pass
