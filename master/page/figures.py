"""The message that the page's listeners get each second: the verdict, counts, servers, masters, store nodes.

The verdict is that of `rk health`: the same function (`regions.diagnose.health.judge`), with the facts that this master
knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from master.api.pacing import Paced
from master.client import admin_address
from master.heartbeats import HeartbeatReceiver
from master.process import MasterProcess
from regions.assign.placement import bar_end_text
from regions.cluster.entities import Server
from regions.cluster.state import ClusterState
from regions.diagnose.health import Findings, MasterFinding, ServerFinding, StoreFinding, judge, unserved
from regions.diagnose.live.work_in_progress import look
from regions.liveness.roster import SILENT_MS, RosterEntry
from regions.messages import MasterStatus, Unserved
from regions.messages.cluster import drained
from regions.messages.plans import PlanProgress
from regions.messages.staleness import AsOf
from regions.page.curves import SERIES, Curves
from regions.records.kinds import KV

#: Of the master's time, the page takes at most a two-hundredth for each walk over all regions in transition.
REPEATED_FOR: Final = 199
#: Servers and tables that are listed.
LISTED_MAX: Final = 1_000


class StatusApi(Protocol):
    """The API object that returns a master's status."""

    def status(self, repeated_for: int = ...) -> MasterStatus: ...


class FiguresSource(MasterProcess, Protocol):
    """The source of the figures."""

    heartbeats: HeartbeatReceiver

    @property
    def api(self) -> StatusApi: ...

    @property
    def active_since_ms(self) -> int:
        """Time at which this master won its latest election."""


class ServerFigure(msgspec.Struct, omit_defaults=True):
    """A region server: live, or dead and not forgotten yet."""

    uuid: str
    address: str
    #: up, draining, drained, drained of shared regions, fenced, leaving, shunned, silent or gone.
    state: str
    why: str = ""
    rack: str = ""
    kind: str = ""
    group: str = ""
    open: int = 0
    coming: int = 0
    going: int = 0
    tablets: int | None = None
    leaders: int | None = None
    load: float = 0.0
    disk_free: int = 0
    #: Milliseconds since the last heartbeat to this master, -1 for none.
    heard_ms: int = -1
    alarms: list[str] = []
    #: Milliseconds since the last heartbeat to each other master, by address, according to that master.
    elsewhere: dict[str, int] = {}


class MasterFigure(msgspec.Struct, omit_defaults=True):
    """A live master. `page` is the address of its page, "" if it has none."""

    uuid: str
    address: str
    role: str
    page: str = ""


class TableFigure(msgspec.Struct, omit_defaults=True):
    """A table with its counts."""

    table_id: str
    name: str
    state: str
    regions: int
    replicas: int
    open: int
    rit: int
    parked: int
    replication: int
    is_tablet: bool = False


class PageFigures(msgspec.Struct, omit_defaults=True):
    """The state of the whole at `now_ms`."""

    now_ms: int
    cluster: str
    uuid: str
    address: str
    role: str
    epoch: int
    #: When the active master won its election; 0 on a standby.
    active_since_ms: int
    verdict: str
    reasons: list[str]
    #: Of a standby: how old its copy is at most, -1 without a proof.
    stale_ms: int
    counts: dict[str, int]
    servers: list[ServerFigure]
    masters: list[MasterFigure]
    tables: list[TableFigure]
    #: Numbers of entries that are not listed.
    not_listed: dict[str, int]
    store: list[StoreNodeFigure]
    second: int
    curves: list[float | None]
    problems: list[str] = []
    plan: PlanProgress | None = None


class StoreNodeFigure(msgspec.Struct, omit_defaults=True):
    """A store node, as it answered to `mntr` (`master/page/store_nodes.py`)."""

    address: str
    #: leader, follower, standalone, observer; "" if the node does not answer or does not serve.
    role: str
    trouble: str = ""
    #: Age of the answer.
    age_ms: int = 0
    values: dict[str, str] = {}


class FiguresMaker:
    """Makes the figures of one master. `store` returns the answers of store nodes, `elsewhere` other masters'
    contacts."""

    def __init__(
        self,
        master: FiguresSource,
        store: Callable[[], list[StoreNodeFigure]],
        elsewhere: Callable[[], Mapping[str, Mapping[str, int]]],
    ) -> None:
        self._master = master
        self._store = store
        self._elsewhere = elsewhere
        self._going: Paced[Counter[str]] = Paced(master.now_ms)
        self._unserved: Paced[Unserved] = Paced(master.now_ms)

    def make(self, world: ClusterState | None, curves: Curves) -> PageFigures:
        """Return the figures. `world` is None while this master has no cluster state."""
        master, now_ms = self._master, self._master.now_ms()
        status = master.api.status(REPEATED_FOR)
        if status.unserved is None and world is not None:
            subject = (world, not world.active)
            found = self._unserved.get(
                subject, lambda: unserved(look(world.active.values(), ()), master.now_ms()), REPEATED_FOR
            )
            status = msgspec.structs.replace(status, unserved=found)
        store, masters = self._store(), self._masters()
        servers = self._servers(world, now_ms)
        verdict = judge(_findings(store, masters, servers, status if world is not None else None))
        tables = [] if world is None else self._tables(world)
        as_of = self._as_of(now_ms)
        return PageFigures(
            now_ms=now_ms,
            cluster=master.cluster_id,
            uuid=master.uuid,
            address=master.address,
            role=master.role,
            epoch=status.epoch,
            active_since_ms=master.active_since_ms if master.active_master is not None else 0,
            verdict=verdict.verdict.value,
            reasons=[one.text for one in verdict.reasons],
            stale_ms=0 if master.active_master is not None else -1 if as_of is None else as_of.stale_ms,
            counts=_counts(status, tables),
            servers=servers[:LISTED_MAX],
            masters=masters,
            tables=tables[:LISTED_MAX],
            not_listed={
                "servers": max(0, len(servers) - LISTED_MAX),
                "tables": max(0, len(tables) - LISTED_MAX),
            },
            store=store,
            second=curves.latest_s,
            curves=[one[0] for one in curves.read(1)[1]] if curves.latest_s else [None] * len(SERIES),
            problems=status.problems,
            plan=status.plan,
        )

    def _as_of(self, now_ms: int) -> AsOf | None:
        watcher = self._master.watcher
        return None if watcher is None else watcher.as_of(now_ms)

    def _masters(self) -> list[MasterFigure]:
        election = self._master.election
        leads = "" if election is None or election.active is None else election.active.uuid
        if self._master.active_master is not None:
            leads = self._master.uuid
        return [
            MasterFigure(
                one.uuid,
                f"{one.host}:{one.port}",
                "active" if one.uuid == leads else "standby",
                admin_address(one),
            )
            for one in self._master.registered
        ]

    # --- servers ------------------------------------------------------------------------------------------------------

    def _servers(self, world: ClusterState | None, now_ms: int) -> list[ServerFigure]:
        roster = self._master.heartbeats.roster
        elsewhere = self._elsewhere()
        live = {} if world is None else world.servers
        going = Counter[str]() if world is None else self._count_going(world)
        found = [self._server(one, roster.find(one.uuid), world, now_ms, going[one.uuid]) for one in live.values()]
        for entry in roster.members():
            if entry.incarnation.uuid not in live and entry.record is not None and world is not None:
                address = f"{entry.record.host}:{entry.record.port}"
                heard_ms = now_ms - entry.received_ms
                found.append(
                    ServerFigure(entry.incarnation.uuid, address, "gone", rack=entry.record.rack, heard_ms=heard_ms)
                )
        for one in found:
            one.elsewhere = {address: heard[one.uuid] for address, heard in elsewhere.items() if one.uuid in heard}
        return sorted(found, key=lambda one: (one.address, one.uuid))

    def _count_going(self, world: ClusterState) -> Counter[str]:
        """Return server uuid -> number of replicas that are about to leave the server. Only replicas with work are
        examined."""

        def walk() -> Counter[str]:
            moving = (one.open_on for one in world.active.values() if one.transition is not None)
            return Counter(one.uuid for one in moving if one is not None)

        return self._going.get((world, not world.active), walk, REPEATED_FOR)

    def _server(
        self, server: Server, entry: RosterEntry | None, world: ClusterState | None, now_ms: int, leaving: int
    ) -> ServerFigure:
        record = server.record
        going = min(leaving, len(server.open))
        found = ServerFigure(
            server.uuid,
            f"{record.host}:{record.port}",
            "up",
            rack=record.rack,
            kind=record.kind or KV,
            group=record.group,
            open=len(server.open) - going,
            coming=len(server.incoming),
            going=going,
        )
        if entry is not None and entry.incarnation == server.incarnation:
            found.heard_ms = now_ms - entry.received_ms
            found.load, found.alarms = entry.figures.load, entry.figures.alarms
            found.disk_free = entry.figures.disk_free
        self._add_tablets(found, server)
        found.state, found.why = _state_of(server, found.tablets, world, found.heard_ms, now_ms)
        return found

    def _add_tablets(self, found: ServerFigure, server: Server) -> None:
        active = self._master.active_master
        if active is not None and server.record.tablets:
            watch = active.keeper.watch
            found.tablets = watch.members[server.uuid]
            found.leaders = watch.leaders_on(server.incarnation)
            if found.leaders is not None:
                found.open += watch.open[server.uuid]

    # --- tables -------------------------------------------------------------------------------------------------------

    def _tables(self, world: ClusterState) -> list[TableFigure]:
        found = []
        for name in sorted(world.names):
            table = world.names[name]
            record = table.record
            one = TableFigure(
                record.table_id,
                record.name,
                record.state.value,
                len(table.regions),
                table.replicas,
                table.open_replicas,
                table.rit,
                table.parked,
                record.replication,
                record.is_tablet,
            )
            active = self._master.active_master
            counts = None if active is None or not record.is_tablet else active.keeper.counts(record.table_id)
            if counts is not None:
                one.regions, one.replicas, one.open = (
                    counts.tablets,
                    counts.tablets * record.replication,
                    counts.running,
                )
            found.append(one)
        return found


def _counts(status: MasterStatus, tables: list[TableFigure]) -> dict[str, int]:
    """Return the counts of `rk status`; a standby counts in its copy."""
    if status.role == "active":
        found = {"regions": status.regions, "replicas": status.replicas, "open": status.open}
        found |= {"rit": status.rit, "parked": status.parked, "tables": status.tables, "resting": status.resting}
    else:
        shared = [one for one in tables if not one.is_tablet]
        found = {"regions": sum(one.regions for one in tables), "tables": len(tables)}
        found |= {name: sum(getattr(one, name) for one in shared) for name in ("replicas", "open", "rit", "parked")}
    return found | {"unserved": 0 if status.unserved is None else status.unserved.count}


def _state_of(
    server: Server, tablets: int | None, world: ClusterState | None, heard_ms: int, now_ms: int
) -> tuple[str, str]:
    """Return the state of a live server, and why it is not simply up."""
    if server.fencing:
        return "fenced", f"being fenced: {server.fencing}"
    if server.bar is not None:
        return "fenced", f"{server.bar.reason}; gets no regions {bar_end_text(server.bar)}"
    if heard_ms < 0 or heard_ms > SILENT_MS:
        return "silent", "its heartbeats do not reach this master"
    if server.record.leaving:
        return "leaving", "it is about to stop and hands its regions over"
    if server.marked:
        return drained(len(server.open) + len(server.incoming), tablets), "drained by an operator"
    until_ms = 0 if world is None else world.flapping.get(server.uuid, 0)
    if until_ms > now_ms:
        return "shunned", "it has registered too often; it gets no regions for a while"
    return "up", ""


def _findings(
    store: list[StoreNodeFigure], masters: list[MasterFigure], servers: list[ServerFigure], figures: MasterStatus | None
) -> Findings:
    """Return the facts for `judge`. A server without heartbeats to this master counts as not answering."""
    return Findings(
        [
            StoreFinding(one.address, one.address, not one.trouble or bool(one.role), one.role, one.trouble)
            for one in store
        ]
        or None,
        [MasterFinding(one.address, one.address, True, one.role) for one in masters],
        [
            ServerFinding(
                one.address,
                one.address,
                one.state != "silent",
                "sends no heartbeat" if one.state == "silent" else "",
                one.open,
                one.tablets,
                one.state if one.state.startswith(("drain", "fenced")) else "",
            )
            for one in servers
            if one.state != "gone"
        ],
        figures,
    )
