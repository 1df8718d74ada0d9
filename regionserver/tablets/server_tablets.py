"""The tablets of one region server process: host, links, orders, requests, reports.

    listen -> [cluster known] -> host and links start -> [ session -> orders, addresses of the store ]* -> stop

The host does not need the store. A server whose directory names its cluster opens its tablets before it contacts the
store, and a lost session or lease affects no tablet. A server that has not joined a cluster yet opens its host once the
cluster has adopted the server.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.session import ZkClient
from coord.env import Clock
from coord.http import Action
from coord.peers.partition import LosingLinks
from coord.rpc.wire import RpcError
from regions.messages import (
    REPLICAS_PAGE_MAX,
    ChangeAnswer,
    ChangeConfig,
    CloseOrder,
    ConfigChanged,
    HostedReplica,
    OpenOrder,
    OrderResults,
    OwnReplica,
    PrepareRows,
    ReplicaState,
    RowsPrepared,
    SealTablet,
    ShowReplicas,
    SplitKey,
    TabletReport,
    TabletSealed,
    TransferLeadership,
)
from regions.messages.heartbeat import TAKES_PART
from regions.messages.server import TabletFigures
from regions.records.model import Incarnation
from regions.records.znodes import Layout
from regionserver.config import ServerSettings
from regionserver.metrics import Metrics
from regionserver.replica.effects import Key
from regionserver.tablets.copying.messages import CancelCopy, ListCopyJobs, StartTabletCopy
from regionserver.tablets.digests.messages import QuarantineReplica, ShowDigests
from regionserver.tablets.host.requests import Fate
from regionserver.tablets.links.cuts import LinkCuts
from regionserver.tablets.members.claiming import Claims, StoreClaims
from regionserver.tablets.messages import NO_REPLICA
from regionserver.tablets.metrics import TabletMetrics
from regionserver.tablets.neighbors import Address, Neighbors
from regionserver.tablets.orders import ReplicaFiles, TabletOrders
from regionserver.tablets.peer_port import bind_peer_port
from regionserver.tablets.rescue.messages import ForceConfiguration
from regionserver.tablets.service import TabletGroups, TabletService, answer_within, refusal
from regionserver.tablets.upkeep.messages import PurgeQuarantine
from regionserver.tablets.upkeep.space import DiskSpace

log = Logger()

#: States of replicas that need an operator or a new number.
_FAILED: Final = (ReplicaState.FAILED, ReplicaState.LOST)


class Answers(Protocol):
    """A part of the host that answers requests: copies, comparisons, rescue, upkeep."""

    def answer(self, request: Any) -> Any:
        """Answer a request of a leader or an operator. Raise RpcError."""
        ...


class SplitOrders(Protocol):
    """The part of the host that carries out orders about splits."""

    def seal(self, request: SealTablet) -> Deferred[TabletSealed]:
        """Seal a tablet, or take its seal away. Raise RpcError."""
        ...

    async def split_key(self, tablet: str) -> str:
        """Return the key in the middle of a tablet's bytes. Raise RpcError."""
        ...

    @property
    def prepare(self) -> Callable[[PrepareRows], Awaitable[RowsPrepared]]:
        """Return the object that prepares daughters. It may raise RpcError."""
        ...


class Hosting(ReplicaFiles, TabletGroups, Protocol):
    """The host of tablets with its links, as the server uses it."""

    def number(self, tablet: str) -> int | None:
        """Return a replica's member number, None if this server has no replica of the tablet."""
        ...

    def report(self, tablet: str) -> TabletReport | None:
        """Return a replica's report, None if this server has no replica of the tablet."""
        ...

    def reports(self) -> Sequence[TabletReport]:
        """Return the reports of all replicas."""
        ...

    def keys(self) -> Sequence[Key]:
        """Return tablet and member number of every replica."""
        ...

    def tablets(self) -> Sequence[str]:
        """Return the tablets that have any files on this server."""
        ...

    def own_replica(self, tablet: str) -> OwnReplica | None:
        """Return a replica's own view, None if this server has no files of the tablet."""
        ...

    def figures(self) -> TabletFigures:
        """Return the host's figures."""
        ...

    def learn(self, server: str, address: Address) -> None:
        """Set the address at which another server listens for members."""
        ...

    def listed(self, servers: Collection[str]) -> None:
        """Take in which servers are registered."""
        ...

    def change_members(self, change: ChangeConfig) -> Deferred[ConfigChanged | Fate]:
        """Change a member. Fires with the answer, or with the fate of a request that no replica here has answered."""
        ...

    def transfer(self, tablet: str, to: int) -> ConfigChanged | None:
        """Hand leadership over. Return the answer, None if no replica runs here."""
        ...

    @property
    def splits(self) -> SplitOrders:
        """Return the object that carries out orders about splits."""
        ...

    def claim_by(self, claims: Claims) -> None:
        """Set the source of new numbers for copies."""
        ...

    def find_servers(self, address_of: Callable[[str], Address | None]) -> None:
        """Set the function that returns a server's address for requests, by its uuid."""
        ...

    @property
    def copies(self) -> Answers:
        """Return the object that answers requests about copies."""
        ...

    @property
    def digests(self) -> Answers:
        """Return the object that answers requests about digests."""
        ...

    @property
    def rescue(self) -> Answers:
        """Return the object that answers orders to force a configuration."""
        ...

    @property
    def upkeep(self) -> Answers:
        """Return the object that answers requests about upkeep."""
        ...

    @property
    def links(self) -> LosingLinks:
        """Return the links to the other members, for drills."""
        ...

    async def stop(self) -> None:
        """Hand leaderships over, then close all replicas in order, and the links."""
        ...


#: The part of the host that answers each request. The service answers requests of clients.
_PARTS: Final[Mapping[type, Callable[[Hosting], Answers]]] = {
    StartTabletCopy: lambda host: host.copies,
    ListCopyJobs: lambda host: host.copies,
    CancelCopy: lambda host: host.copies,
    PurgeQuarantine: lambda host: host.upkeep,
    ShowDigests: lambda host: host.digests,
    QuarantineReplica: lambda host: host.digests,
    ForceConfiguration: lambda host: host.rescue,
}

#: Interval at which replicas are counted for heartbeats; many are sent while replicas are made or elect their leaders.
FIGURES_S: Final = 0.5

#: Opens the host. Arguments: the cluster's id, the socket for members, and a function for tablets with a new report.
OpenHost = Callable[[str, socket.socket, Callable[[str], None]], Hosting]


class ServerTablets:
    """See the module docstring. All calls are on the reactor's thread."""

    requests = (*TabletService.requests, *_PARTS)

    def __init__(
        self,
        reactor: Any,
        settings: ServerSettings,
        clock: Clock,
        metrics: Metrics,
        open_host: OpenHost,
        fatal: Callable[[Failure], object],
        report_soon: Callable[[], None],
    ) -> None:
        """`report_soon` is called when a report should not wait for the next heartbeat.

        `open_host` raises ConfigError if the directory's tablets cannot be opened."""
        assert settings.peer_address is not None, "without a peer address a server takes no tablets"
        paths = Layout(settings.root)
        self._settings = settings
        self._reactor = reactor
        self._open_host = open_host
        #: The time at which the figures for heartbeats were counted, and the figures.
        self._counted: tuple[float, TabletFigures | None] = (0.0, None)
        self._host: Hosting | None = None
        self._socket: socket.socket | None = None
        #: Numbers by tablet, as last reported: a removed replica is reported under its key.
        self._numbers: dict[str, int] = {}
        self._changed: dict[Key, None] = {}
        #: Table of each tablet that was asked for; a tablet never changes its table.
        self._tables: dict[str, str] = {}
        self._report_soon = report_soon
        self._neighbors = Neighbors(reactor, paths, self._learned, self._listed)
        self._orders = TabletOrders(reactor, clock, lambda: self._host, paths, metrics, fatal)
        self._claims = StoreClaims(lambda: self._orders.steps, clock)
        self._service = TabletService(
            reactor.seconds, lambda: self._host, self._neighbors.address_of, self._report, metrics.registry, reactor
        )
        self._gauges = TabletMetrics(metrics.registry)
        self._cuts = LinkCuts(reactor, settings.data_dir, lambda: None if self._host is None else self._host.links)

    def table_of(self, tablet: str) -> str:
        """Return the id of a tablet's table, "" if this server has no replica of the tablet."""
        found = self._tables.get(tablet)
        if found is None:
            report = None if self._host is None else self._host.report(tablet)
            if report is None:
                return ""
            found = self._tables[tablet] = report.table_id
        return found

    def has(self, tablet: str) -> bool:
        """Return True if this server has a replica of the tablet, or had one."""
        return self._host is not None and self._host.number(tablet) is not None

    # --- life ---

    def listen(self) -> int:
        """Listen for members and return the port. Raise ConfigError if the address cannot be used."""
        assert self._settings.peer_address is not None
        self._socket = bind_peer_port(self._settings.data_dir, self._settings.peer_address)
        return int(self._socket.getsockname()[1])

    def open(self, cluster_id: str) -> None:
        """Open the tablets of this server as a member of the cluster, unless they are open already.

        Raises:
            ConfigError: the directory's tablets cannot be opened; nothing was changed.
        """
        if self._host is not None or not cluster_id or self._socket is None:
            return
        listening, self._socket = self._socket, None
        self._host = self._open_host(cluster_id, listening, self._has_changed)
        self._host.find_servers(self._neighbors.address_of)
        self._host.claim_by(self._claims)
        reports = self._host.reports()
        for report in reports:
            self._numbers[report.region_id] = report.number
        for server, address in self._neighbors.known():
            self._host.learn(server, address)
        counts = Counter(str(report.state) for report in reports)
        log.info("tablets opened: {count}", count=dict(counts) or "none")

    async def stop(self) -> None:
        """Hand leaderships over and close everything."""
        self._orders.end()
        self._neighbors.end()
        if self._socket is not None:
            self._socket.close()
        if self._host is not None:
            await self._host.stop()

    def admin_actions(self, address: tuple[str, int]) -> Mapping[bytes, Action]:
        """Return the actions of the admin port at `address`, by path. Raise ConfigError."""
        return self._cuts.actions(address) if self._settings.drill_links else {}

    # --- sessions with the store ---

    def disk_free(self) -> int:
        """Return the bytes of the disk that replicas may take: the free ones above the reserve."""
        return DiskSpace(self._settings.data_dir, self._settings.reserve_bytes).for_replicas()

    def begin(self, me: Incarnation, client: ZkClient) -> None:
        """Begin a session in which `me` is registered."""
        self._orders.begin(me, client)
        self._neighbors.begin(client)

    def end(self) -> None:
        """End the session. Tablets stay as they are."""
        self._orders.end()
        self._neighbors.end()

    # --- requests ---

    def open_regions(self, orders: Sequence[OpenOrder], epoch: int, answer_within_ms: int) -> Deferred[OrderResults]:
        """Accept OPEN orders for tablets' replicas."""
        for order in orders:
            if order.tablet is not None:
                self._neighbors.named(order.tablet.initial)
        return self._orders.open_regions(orders, epoch, answer_within_ms)

    def close_regions(self, orders: Sequence[CloseOrder], epoch: int, answer_within_ms: int) -> Deferred[OrderResults]:
        """Accept CLOSE orders for tablets' replicas."""
        return self._orders.close_regions(orders, epoch, answer_within_ms)

    def change_members(self, change: ChangeConfig) -> Deferred[ConfigChanged]:
        """Change a member of a tablet. Fires with the answer, or with RpcError if no replica runs here."""
        host = self._opened()
        within_s = max(0, change.answer_within_ms) / 1000
        started = ConfigChanged(ChangeAnswer.STARTED, why="the change is in the log and not committed yet")
        return answer_within(
            host.change_members(change), change.region_id, self._reactor, within_s, lambda: started
        )  # fmt: skip

    def seal(self, request: SealTablet) -> Deferred[TabletSealed]:
        """Seal a tablet that is split or merged, or take its seal away. Raise RpcError."""
        return self._opened().splits.seal(request)

    async def split_key(self, tablet: str) -> SplitKey:
        """Return the key in the middle of a tablet's bytes. Raise RpcError."""
        return SplitKey(await self._opened().splits.split_key(tablet))

    async def prepare(self, request: PrepareRows) -> RowsPrepared:
        """Copy the rows of a tablet for its daughters while it is served. Raise RpcError."""
        return await self._opened().splits.prepare(request)

    def transfer(self, request: TransferLeadership) -> ConfigChanged:
        """Hand the leadership of a tablet over. Raise RpcError if no replica runs here."""
        answer = self._opened().transfer(request.region_id, request.to)
        if answer is None:
            raise refusal(Fate.DOES_NOT_EXIST, request.region_id)
        return answer

    def _opened(self) -> Hosting:
        if self._host is None:
            raise RpcError(NO_REPLICA, "this server has not opened its tablets yet")
        return self._host

    def answer(self, request: Any) -> Any:
        """Answer a request of a client, or one about copies or upkeep. Raise RpcError."""
        part = _PARTS.get(type(request))
        if part is not None:
            return part(self._opened()).answer(request)
        return self._service.answer(request)

    def own_replicas(self, request: ShowReplicas) -> tuple[list[OwnReplica], str]:
        """Return one page of the replicas' own views by id, and the id to continue after."""
        host = self._host
        if host is None:
            return [], ""
        wanted = sorted(set(request.tablets).intersection(host.tablets()) if request.tablets else host.tablets())
        limit = min(request.limit or REPLICAS_PAGE_MAX, REPLICAS_PAGE_MAX)
        rest = [tablet for tablet in wanted if tablet > request.after]
        found = [own for tablet in rest[:limit] if (own := host.own_replica(tablet)) is not None]
        return found, rest[limit - 1] if len(rest) > limit else ""

    # --- reports ---

    def describe(self, key: Key) -> TabletReport | None:
        """Return a replica's report for a heartbeat, None if the server has no such replica."""
        found = self._report(key[0])
        if found is None or found.number != key[1]:
            return None
        load = self._service.rates().get(key)
        return found if load is None else replace(found, load=round(load, 2))

    def keys(self) -> list[Key]:
        """Return the keys of all replicas."""
        return [] if self._host is None else list(self._host.keys())

    def take_changed(self) -> list[Key]:
        """Return the replicas that are new, gone or changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def rates(self) -> dict[Key, float]:
        """Return recent requests per second."""
        return self._service.rates()

    def hosted(self, limit: int = 0) -> list[HostedReplica]:
        """Return the replicas by id, the first `limit` of them (0: all), each with its state and role."""
        if self._host is None:
            return []
        found = []
        for tablet, number in sorted(self._host.keys())[: limit or None]:
            report = self.describe((tablet, number))
            if report is not None:
                found.append(
                    HostedReplica(
                        tablet, report.table_id, number, report.state.value, error=report.reason, load=report.load,
                        schema_version=report.schema_version, role=report.role.value,
                    )
                )  # fmt: skip
        return found

    def failed(self) -> int:
        """Return the number of replicas that are FAILED or LOST, and of remembered failed opens."""
        states = {} if self._host is None else self._host.figures().replicas
        return len(self._orders.failures()) + sum(states.get(one.value, 0) for one in _FAILED)

    def figures(self) -> TabletFigures | None:
        """Return the figures of the host, and update the gauges; None before it has started."""
        if self._host is None:
            return None
        found = self._host.figures()
        self._gauges.show(found)
        return found

    def recent_figures(self) -> TabletFigures | None:
        """Return the figures as they were at most FIGURES_S ago: to count thousands of replicas takes milliseconds."""
        now_s = self._reactor.seconds()
        counted_s, found = self._counted
        if found is None or now_s - counted_s >= FIGURES_S:
            found = self.figures()
            self._counted = now_s, found
        return found

    def problem(self) -> str:
        """Return the obstacle to writes here that a restart would not remove, or ""."""
        if self._host is None or not self._host.figures().is_full:
            return ""
        return "a disk of the tablets is full: this server rejects their writes until there is room"

    def is_serving(self) -> bool:
        """Return True if replicas take part in their groups and the disk answers. The store may be away."""
        found = None if self._host is None else self._host.figures()
        return found is not None and found.disk_answers and any(found.replicas.get(state) for state in TAKES_PART)

    def _report(self, tablet: str) -> TabletReport | None:
        return None if self._host is None else self._host.report(tablet)

    def _has_changed(self, tablet: str) -> None:
        """Note that a replica's report differs. Note the former number, too, if the replica is gone or has another."""
        number = None if self._host is None else self._host.number(tablet)
        former = self._numbers.pop(tablet, None)
        if former is not None and number != former:
            self._changed[tablet, former] = None
        if number is not None:
            self._numbers[tablet] = number
            self._changed[tablet, number] = None
        self._report_soon()

    def _learned(self, server: str, address: Address) -> None:
        if self._host is not None:
            self._host.learn(server, address)

    def _listed(self, servers: Collection[str]) -> None:
        if self._host is not None:
            self._host.listed(servers)


#: Makes the tablets of a server: (metrics, called with internal errors, called when a report should not wait).
MakeTablets = Callable[[Metrics, Callable[[Failure], None], Callable[[], None]], ServerTablets]
