"""The host of tablets and its links, as the region server uses them (`Hosting` in `server_tablets.py`)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger

from coord.env_os import OsEntropy, os_system
from coord.hosts import is_loopback
from coord.peers.guard import PeerGuard
from coord.security import process
from regions.messages import ChangeConfig, ConfigChanged, OpenOrder, OwnReplica, TabletReport
from regions.messages.heartbeat import ReplicaState
from regions.messages.server import ClosePurpose, TabletFigures
from regions.records.members import ConfigId
from regions.replication.guards import ReplicaOnDisk
from regionserver.config import ServerSettings
from regionserver.kv.snapshot import RowSnapshot
from regionserver.session.instance import Instance
from regionserver.tablets.commands import KvCommand
from regionserver.tablets.copying.asking import CopyQuestions
from regionserver.tablets.copying.joined import copies_of
from regionserver.tablets.copying.work import CopyWork
from regionserver.tablets.digests.work import DigestWork
from regionserver.tablets.host.members import members_of
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.links.links import TabletLinks
from regionserver.tablets.links.questions import ServerQuestions
from regionserver.tablets.members.claiming import Claims
from regionserver.tablets.messages import KeyRange
from regionserver.tablets.neighbors import Address
from regionserver.tablets.order_plans import Stage
from regionserver.tablets.process.host import TabletHost
from regionserver.tablets.process.interfaces import HostSettings, ReplicaOpening
from regionserver.tablets.rescue.work import RescueWork
from regionserver.tablets.server_tablets import MakeTablets, ServerTablets
from regionserver.tablets.splits.work import SplitWork
from regionserver.tablets.upkeep.space import DiskSpace
from regionserver.tablets.upkeep.work import Upkeep

log = Logger()

_PURPOSES: Final = {
    Stage.REST: ClosePurpose.REST,
    Stage.REMOVE: ClosePurpose.TOMBSTONE,
    Stage.DELETE: ClosePurpose.DELETE,
}
#: Time for which an order waits for a replica whose rows are still being opened at the start, and interval of the
#: checks.
OPENING_S: Final = 60.0
LOOK_S: Final = 0.05


class TabletCare(NamedTuple):
    """Work that looks after the replicas of a host."""

    upkeep: Upkeep
    digests: DigestWork
    #: Asks other servers.
    servers: ServerQuestions
    rescue: RescueWork
    splits: SplitWork


class HostedTablets:
    """See the module docstring. Every method is called on the reactor's thread."""

    def __init__(
        self,
        reactor: Any,
        host: TabletHost,
        links: TabletLinks,
        copies: CopyWork,
        care: TabletCare,
    ) -> None:
        self._reactor = reactor
        self._host = host
        self.links = links
        self.copies = copies
        self._care = care

    # --- orders (ReplicaFiles) ---

    def local(self, tablet: str) -> ReplicaOnDisk | None:
        """Return the replica on this server, None without a superblock."""
        report = self._host.report(tablet)
        if report is None:
            return None
        is_member = self._host.members.is_member(tablet)
        return ReplicaOnDisk(report.number, report.state, report.config_id, is_member)

    def make(self, orders: Sequence[OpenOrder]) -> Deferred[list[str]]:
        """Make first replicas, all together. Fires with one reason per order, "" for success."""
        return self._host.make([_opening(order) for order in orders])

    def begin(self, tablet: str) -> Deferred[str]:
        """Start the replica's participation in its group, unless it takes part already."""
        return ensureDeferred(self._begin(tablet))

    async def _begin(self, tablet: str) -> str:
        until_s = self._reactor.seconds() + OPENING_S
        while True:
            why = await self._host.begin(tablet)
            report = self._host.report(tablet)
            is_opening = report is not None and report.state is ReplicaState.ASLEEP
            if not why or not is_opening or self._reactor.seconds() >= until_s:
                return why
            await deferLater(self._reactor, LOOK_S)

    def inherit(self, order: OpenOrder) -> Deferred[str]:
        """Make a replica of a daughter from those of its parents. Fires with "" or the reason of the failure."""
        return self._care.splits.inherit(_opening(order), order.region.parents)

    def close(self, tablet: str, stage: Stage) -> Deferred[str]:
        """Carry out the stage REST, REMOVE or DELETE. A copy ends first; then the order is carried out when it is
        repeated."""
        if self.copies.cancel(tablet):
            return succeed("its copy is being canceled")
        return self._host.close(tablet, _PURPOSES[stage])

    # --- requests (TabletGroups) ---

    def key_range(self, tablet: str) -> KeyRange | None:
        """Return the range of a tablet that has a replica here."""
        return self._host.key_range(tablet)

    def propose(self, tablet: str, command: KvCommand) -> Deferred[TabletAnswer]:
        """Write. Raise CommandError if the command exceeds a limit."""
        return self._care.splits.refusals.propose(tablet, command)

    def read(
        self,
        tablet: str,
        read: Callable[[RowSnapshot], Any],
        *,
        at_least: int = 0,
        max_stale_ms: int = 0,
        keys: int = 0,
    ) -> Deferred[TabletAnswer]:
        """Read from a snapshot."""
        return self._host.read(tablet, read, at_least=at_least, max_stale_ms=max_stale_ms, keys=keys)

    def age_ms(self, answer: TabletAnswer) -> int:
        """Return how old the rows of a stale read's answer may be by now."""
        return self._host.age_ms(answer)

    def leader_of(self, tablet: str) -> tuple[int, int, str]:
        """Return the term, and the number and server of the leader in that term."""
        return self._host.leader_of(tablet)

    def until_split(self, tablet: str) -> Deferred[None]:
        """Return a Deferred that fires when a request that a sealed tablet has refused must be answered."""
        return self._care.splits.refusals.hold(tablet)

    def time_ms(self, tablet: str) -> int:
        """Return this server's time, not below the tablet's clock."""
        return self._host.time_ms(tablet)

    def change_members(self, change: ChangeConfig) -> Deferred[ConfigChanged | Fate]:
        """Change a member of a tablet."""
        why = self._care.splits.objection_to_change(change.region_id)
        return succeed(why) if why is not None else self._host.members.change(change)

    @property
    def splits(self) -> SplitWork:
        """Return the object that carries out orders about splits."""
        return self._care.splits

    def transfer(self, tablet: str, to: int) -> ConfigChanged | None:
        """Hand the leadership of a tablet over."""
        return self._host.members.transfer(tablet, to)

    @property
    def upkeep(self) -> Upkeep:
        """Return the object that answers requests about the disk."""
        return self._care.upkeep

    @property
    def rescue(self) -> RescueWork:
        """Return the object that answers orders to force a configuration."""
        return self._care.rescue

    @property
    def digests(self) -> DigestWork:
        """Return the object that answers requests about digests."""
        return self._care.digests

    # --- reports ---

    def number(self, tablet: str) -> int | None:
        """Return a replica's member number, None if this server has no replica of the tablet."""
        found = self._host.key_range(tablet)
        return None if found is None else found.number

    def report(self, tablet: str) -> TabletReport | None:
        """Return a replica's report."""
        return self._host.report(tablet)

    def reports(self) -> Sequence[TabletReport]:
        """Return the reports of all replicas."""
        return self._host.reports()

    def keys(self) -> list[tuple[str, int]]:
        """Return tablet and member number of every replica."""
        return self._host.keys()

    def own_replica(self, tablet: str) -> OwnReplica | None:
        """Return a replica's own view, with the latest configuration of its log."""
        report = self._host.report(tablet)
        group = self._host.turn.groups.get(tablet)
        if report is None:
            return None
        if group is None or group.failure:
            local = self.copies.local(tablet)
            return (
                OwnReplica(report)
                if local is None
                else OwnReplica(report, last_index=local.last_index, last_term=local.last_term)
            )
        core = group.core
        config_id = ConfigId(*core.configs.ids[-1])
        members = members_of(core.configs.current)
        return OwnReplica(report, members, config_id, core.leader, core.log.last, core.log.commit, core.log.last_term)

    def tablets(self) -> list[str]:
        """Return the tablets that have any files on this server, tombstones included."""
        return self._host.replicas()

    def figures(self) -> TabletFigures:
        """Return the host's figures."""
        return self._care.digests.figures(self._care.upkeep.figures(self.copies.figures(self._host.status())))

    # --- life ---

    def claim_by(self, claims: Claims) -> None:
        """Set the source of new numbers for copies."""
        self.copies.claims = claims

    def find_servers(self, address_of: Callable[[str], Address | None]) -> None:
        """Set the function that returns a server's address for requests, by its uuid."""
        self._care.servers.address_of = address_of

    def learn(self, server: str, address: Address) -> None:
        """Take in where another server listens for members."""
        self.links.learn(server, address)

    def listed(self, servers: Collection[str]) -> None:
        """Handle the list of registered servers. Servers of members of the tablets here are never forgotten."""
        members = {server for group in self._host.turn.groups.values() for server in group.servers.values()}
        self.links.listed(servers, members)

    async def stop(self) -> None:
        """Hand leaderships over, then close all replicas in order, and the links."""
        self.copies.stop()
        self._care.upkeep.stop()
        self._care.digests.stop()
        self._care.splits.stop()
        await self._host.stop()
        self.links.stop()


def tablets_of(reactor: Any, settings: ServerSettings, instance: Instance, died: Callable[[str], None]) -> MakeTablets:
    """Return the factory for a server's tablets; `died` is called when the process must end."""
    system = os_system()
    assert settings.peer_address is not None, "without a peer address a server takes no tablets"
    tls = settings.peer_tls or process.tls_files()
    guard = PeerGuard(OsEntropy().token, secret=settings.peer_secret, tls=tls, is_securing=process.is_securing)
    if guard.is_open() and not is_loopback(settings.host):
        log.warn("the peer port accepts unauthenticated connections; set --peer-secret-file or peer certificates")

    def open_host(cluster: str, listening: socket.socket, changed: Callable[[str], None]) -> HostedTablets:
        start_code = instance.choose_incarnation(system.clock.wall_ms()).start_code
        links = TabletLinks(
            reactor,
            cluster=cluster,
            server=instance.uuid,
            start_code=start_code,
            address=(settings.host, int(listening.getsockname()[1])),
            rng=system.rng,
            guard=guard,
        )
        host = TabletHost(
            reactor, system, instance, links, start_code=start_code, died=died, changed=changed,
            settings=HostSettings(dead_s=settings.replica_dead_s),
        )  # fmt: skip
        host.start()
        instance.keep_incarnation()
        parts = host.life.parts()
        space = DiskSpace(instance.directory, settings.reserve_bytes)
        copies = copies_of(reactor, system.clock, instance.uuid, space, host, links, settings.copy_rate_bytes)
        servers = ServerQuestions(reactor)
        questions = CopyQuestions(servers.ask, instance.uuid, links.address, parts.replicas)
        host.members.ask_for_copy = questions.ask
        links.start(host, listening)
        keep_ms = int(settings.quarantine_keep_s * 1000)
        upkeep = Upkeep(
            reactor, system.clock, instance.uuid, host, space, keep_ms, parts.files_pool, parts.slow_pool
        )  # fmt: skip
        upkeep.start()
        digests = DigestWork(reactor, system.clock, instance.uuid, host, parts.replicas, servers.ask)
        digests.start()
        rescue = RescueWork(instance.uuid, host.turn, parts.replicas, host.life)
        care = TabletCare(upkeep, digests, servers, rescue, SplitWork(reactor, host, instance.directory, space))
        return HostedTablets(reactor, host, links, copies, care)

    return lambda metrics, fatal, soon: ServerTablets(reactor, settings, system.clock, metrics, open_host, fatal, soon)


def _opening(order: OpenOrder) -> ReplicaOpening:
    region, opening = order.region, order.tablet
    assert opening is not None, f"{region.region_id} is no tablet"
    return ReplicaOpening(
        region.region_id, region.table_id, order.transition.replica, opening.initial,
        region.start_key, region.end_key, region.hash_buckets,
    )  # fmt: skip
