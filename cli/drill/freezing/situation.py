"""The cluster before a freeze, and the effects that are observed during it."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from cli.common.access import read_admin_page
from cli.common.asking.servers import ask_server
from cli.common.errors import CliError, NotFoundError
from cli.common.local import MASTER, SERVER, STORE, Daemon
from cli.drill.freezing.forecast import FreezeEvent, FreezeSituation, Observed
from cli.drill.run import Drill
from cli.drill.store_nodes import LEADER_ROLES, leader_but
from cli.drill.tablets import leaders
from cli.up.bringup import store_role
from coord.rpc.wire import RpcError
from regions import messages
from regions.records.model import Incarnation, ServerRecord
from regions.records.replica_key import replica_key

#: Timeout of a session whose connection no store node lists; the default of `rk master run` and `rk server run`.
SESSION_S_DEFAULT: Final = 3.0
_ADMIN_S: Final = 2.0
_ADMIN_BYTES_MAX: Final = 16 << 20


class _ConnectionFields(msgspec.Struct):
    """Fields of one connection in a node's answer."""

    session_id: int = 0
    session_timeout: int = 0


class _ConnectionList(msgspec.Struct):
    """A node's answer to the admin command `connections`."""

    connections: list[_ConnectionFields] = []
    secure_connections: list[_ConnectionFields] = []


class NodeSession(NamedTuple):
    """A session as a store node lists its connection."""

    node: str
    timeout_s: float


class Met(NamedTuple):
    """The frozen process's part in the cluster before the freeze."""

    situation: FreezeSituation
    #: Its open shared replicas, and the tablets with other members that it leads.
    regions: frozenset[str]
    led: frozenset[str]
    #: Its registration, if it is a region server.
    server: ServerRecord | None = None


def find_process(drill: Drill, wanted: str) -> Daemon:
    """Return the process with this name or address. Raise NotFoundError that lists all."""
    found = [one for one in drill.local.daemons() if wanted in (one.name, one.address)]
    if not found:
        names = ", ".join(one.name for one in drill.local.daemons())
        raise NotFoundError(f"no process {wanted!r} in this cluster", f"Processes: {names}.")
    return found[0]


def parse_connections(text: bytes) -> dict[int, float]:
    """Return session id -> timeout in seconds from a node's answer to the admin command `connections`. Pure."""
    found = msgspec.json.decode(text, type=_ConnectionList)
    every = [*found.connections, *found.secure_connections]
    return {one.session_id: one.session_timeout / 1000 for one in every if one.session_timeout > 0}


def read_sessions(drill: Drill) -> dict[int, NodeSession]:
    """Return the sessions that are connected to the store's nodes, by id. Sessions of silent nodes are missing."""
    found: dict[int, NodeSession] = {}
    for node in drill.local.coord:
        try:
            page = read_admin_page(node.admin, "/commands/connections", _ADMIN_S, _ADMIN_BYTES_MAX)
            connections = parse_connections(page)
        except (OSError, msgspec.MsgspecError):
            continue
        found |= {sid: NodeSession(node.name, timeout_s) for sid, timeout_s in connections.items()}
    return found


def read_owners(drill: Drill) -> dict[str, int]:
    """Return the session of each master and region server, by name."""
    layout = drill.cluster.layout
    paths = {drill.names.of_master(one): layout.master(one.uuid) for one in drill.cluster.masters()}
    paths |= {drill.names.of_uuid(one.uuid): layout.server(one.uuid) for one in drill.servers()}
    stats = {name: drill.cluster.client.exists(path) for name, path in paths.items()}
    return {name: stat.ephemeralOwner for name, stat in stats.items() if stat is not None}


def meet(drill: Drill, process: Daemon, freeze_s: float) -> Met:
    """Return the situation that the freeze of this process will meet. Raise CliError."""
    sessions, owners = read_sessions(drill), read_owners(drill)
    mine = sessions.get(owners.get(process.name, 0))
    session_s = SESSION_S_DEFAULT if mine is None else mine.timeout_s
    if process.role == STORE:
        connected = sorted(
            name for name, sid in owners.items() if sid in sessions and sessions[sid].node == process.name
        )
        return Met(
            FreezeSituation(
                process.name,
                process.role,
                freeze_s,
                leads_store=store_role(process.address) in LEADER_ROLES,
                store_nodes=len(drill.local.coord),
                connected=tuple(connected),
                shortest_session_s=min((one.timeout_s for one in sessions.values()), default=SESSION_S_DEFAULT),
            ),
            frozenset(),
            frozenset(),
        )
    if process.role == MASTER:
        active = drill.cluster.active()
        is_active = active is not None and f"{active.host}:{active.port}" == process.address
        others = len(drill.local.masters) - 1
        situation = FreezeSituation(
            process.name, process.role, freeze_s, session_s=session_s, is_active=is_active, other_masters=others
        )
        return Met(situation, frozenset(), frozenset())
    return _meet_server(drill, process, freeze_s, session_s)


def _meet_server(drill: Drill, process: Daemon, freeze_s: float, session_s: float) -> Met:
    assert process.role == SERVER, f"{process.name} has the unknown role {process.role}"
    server = drill.names.find(process.name)
    try:
        held = ask_server(server, messages.ListOpen(server.uuid), messages.OpenList)
    except RpcError as error:
        raise CliError(f"server {process.name} does not answer: {error.message}") from error
    regions = frozenset(replica_key(one.region_id, one.replica) for one in held.replicas)
    led = [
        name for name, one in leaders(drill.servers()).items() if one.server == server.uuid and name in drill.tablets
    ]
    shared = frozenset(name for name in led if len(drill.tablets[name].members) > 1)
    situation = FreezeSituation(
        process.name,
        process.role,
        freeze_s,
        session_s=session_s,
        regions=len(regions),
        tablets_led=len(shared),
        tablets_alone=len(led) - len(shared),
        other_servers=len(drill.servers()) - 1,
    )
    return Met(situation, regions, shared, server)


class Witness:
    """Observes a freeze: leaders of tablets and of the store by asking, everything else by the follower's records."""

    def __init__(self, drill: Drill, process: Daemon, met: Met) -> None:
        self._drill = drill
        self._process = process
        self._met = met
        uuid = "" if met.server is None else met.server.uuid
        self._others = [one for one in drill.servers() if one.uuid != uuid]
        #: Tablets that other servers have led, and the store's other leader: the time in ms.
        self._led_elsewhere: dict[str, int] = {}
        self._store_leader_ms: int | None = None
        #: A master's registration was seen missing at this time.
        self._unregistered_ms: int | None = None

    def look(self) -> None:
        """Ask who leads, and whether a frozen master is registered. Asks nothing of the frozen process."""
        drill, process = self._drill, self._process
        if self._met.led - self._led_elsewhere.keys():
            for tablet in leaders(self._others).keys() & self._met.led:
                self._led_elsewhere.setdefault(tablet, drill.now_ms())
        # If a follower is frozen, another node leads all the time.
        if self._met.situation.leads_store and self._store_leader_ms is None and leader_but(drill, process.name):
            self._store_leader_ms = drill.now_ms()
        if process.role == MASTER and self._unregistered_ms is None:
            present = {f"{one.host}:{one.port}" for one in drill.cluster.masters()}
            if process.address not in present:
                self._unregistered_ms = drill.now_ms()

    def facts(self, frozen_ms: int) -> dict[FreezeEvent, Observed]:
        """Return the events since the freeze, with their times in seconds from the freeze."""
        times: dict[FreezeEvent, list[int]] = {event: [] for event in FreezeEvent}
        times[FreezeEvent.TABLETS_ELECT] = list(self._led_elsewhere.values())
        if self._store_leader_ms is not None:
            times[FreezeEvent.STORE_ELECTS] = [self._store_leader_ms]
        if self._unregistered_ms is not None:
            times[FreezeEvent.SESSION_ENDS] = [self._unregistered_ms]
        for one in list(self._drill.follower.memberships):
            if one.at_ms < frozen_ms:
                continue
            if one.what == "server-down":
                mine = one.address == self._process.address
                times[FreezeEvent.SESSION_ENDS if mine else FreezeEvent.OTHER_SESSION_ENDS].append(one.at_ms)
            elif one.what == "active" and one.address != self._process.address:
                times[FreezeEvent.FAILOVER].append(one.at_ms)
        times[FreezeEvent.REGIONS_MOVE] = self._moved(frozen_ms)
        return {
            event: Observed(len(found), (min(found) - frozen_ms) / 1000, (max(found) - frozen_ms) / 1000)
            for event, found in times.items()
            if found
        }

    def _moved(self, frozen_ms: int) -> list[int]:
        """Return when each shared replica of the frozen server was first open on another server."""
        if self._met.server is None:
            return []
        found: dict[str, int] = {}
        own: Incarnation = self._met.server.incarnation
        for change in self._drill.changes_since(frozen_ms):
            destination = change.record.destination
            is_elsewhere = destination is not None and destination.uuid != own.uuid
            if change.key in self._met.regions and change.after == "OPENED" and is_elsewhere:
                found.setdefault(change.key, change.at_ms)
        return list(found.values())
