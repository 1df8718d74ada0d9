"""The check of every request to a master, in every role, before it is dispatched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from twisted.logger import Logger

from coord.client.following.revocations import FollowedRevocations
from coord.client.following.znode import FollowedZnode
from coord.client.session import ZkClient
from coord.rpc.server import RpcError
from coord.security.principal import Principal
from master.access.granting import shown
from master.process import MasterProcess
from regions import messages as ms
from regions.access.guard import Guard
from regions.access.needs import Scope
from regions.access.permissions import REFRESH_S, Subject
from regions.cluster.entities import Table
from regions.cluster.state import ClusterState
from regions.records.acts.grants import Grant
from regions.transitions.entries import DETAIL_MAX, REFUSED

log = Logger()

#: Requests with an id that are remembered as permitted.
PERMITTED_MAX: Final = 1_000


class _Permitted(NamedTuple):
    """A permitted request, without the time that it may wait."""

    who: Principal
    request: msgspec.Struct


def _without_wait(request: msgspec.Struct) -> msgspec.Struct:
    return msgspec.structs.replace(request, wait_ms=0)


class MasterChecks:
    """Checks requests by the grants, follows the grants in the store, and records refused requests."""

    def __init__(
        self,
        reactor: Any,
        path: str,
        master: MasterProcess,
        now_s: Callable[[], float],
        is_for_standby: Callable[[ms.MasterRequest], bool],
    ) -> None:
        """`path` is that of the grants. `is_for_standby` returns True for a request that a standby answers."""
        self._master = master
        self._is_for_standby = is_for_standby
        #: Latest requests with an id. A waiting client repeats its request, perhaps under a table's former name, or
        #: after the deletion that removed the client's grant.
        self._permitted: dict[str, _Permitted] = {}
        self._guard = Guard(now_s, reactor.callLater, self._refused, self._damaged)
        self._followed = FollowedZnode(reactor, path, self._guard.seen, now_s, REFRESH_S)
        self._revocations: FollowedRevocations | None = None
        self._reactor, self._now_s = reactor, now_s

    def keep_revocations(self, directory: Path) -> None:
        """Follow the list of revoked credentials, too, and keep it in the data directory."""
        self._revocations = FollowedRevocations(self._reactor, directory, self._now_s, REFRESH_S)

    def follow(self, client: ZkClient) -> None:
        """Follow the grants by this session, from now on."""
        self._followed.follow(client)
        if self._revocations is not None:
            self._revocations.follow(client)

    def refresh(self) -> None:
        """Read the grants now: this master has changed them."""
        self._followed.read()

    def stop(self) -> None:
        """Follow no more, and write the last summary."""
        self._guard.stop()
        self._followed.stop()
        if self._revocations is not None:
            self._revocations.stop()

    def check(self, who: Principal, request: ms.MasterRequest) -> None:
        """Raise RpcError if `who` may not send this request.

        A master that is not active (yet) may not know the table. So do not check requests that this master would reject
        anyway, with the active master's address.
        """
        if not self._is_active() and not self._is_for_standby(request):
            return
        request_id = getattr(request, "request_id", "")
        if request_id and self._permitted.get(request_id) == _Permitted(who, _without_wait(request)):
            return
        self._guard.check(who, request, self._find_table)
        if request_id:
            while len(self._permitted) >= PERMITTED_MAX:
                del self._permitted[next(iter(self._permitted))]
            self._permitted[request_id] = _Permitted(who, _without_wait(request))

    def problem(self) -> str:
        """Return the fault of the grants in the store, "" without a fault."""
        return self._guard.problem()

    def identity(self, who: Principal) -> ms.CallerIdentity:
        """Return the grants of a caller with this identity."""
        world = self._world()
        found = [Grant(who.name, role, table_id) for role, table_id in self._guard.permissions.roles_of(who)]
        return ms.CallerIdentity(str(who), [shown(one, world) for one in found])

    def _is_active(self) -> bool:
        active_master = self._master.active_master
        return active_master is not None and active_master.is_open

    def _world(self) -> ClusterState | None:
        """Return the tables and regions that this master knows, None for a standby without a mirror."""
        active_master, watcher = self._master.active_master, self._master.watcher
        if active_master is not None:
            return active_master.assigner.world
        mirror = None if watcher is None else watcher.mirror
        return None if mirror is None else mirror.world

    def _find_table(self, scope: Scope, request: ms.MasterRequest) -> Subject | None:
        world = self._world()
        subject = str(getattr(request, "table" if scope is Scope.TABLE else "region_id"))
        if not subject:
            return None
        table: Table | None = None
        if world is not None and scope is Scope.TABLE:
            table = world.names.get(subject) or world.tables.get(subject)
        elif world is not None:
            region = world.regions.get(subject)
            table = None if region is None else region.table
        if table is not None:
            return Subject(table.record.table_id, table.record.name)
        if not self._is_active():
            raise RpcError(
                ms.TOO_STALE, f"this standby does not know {subject!r} yet", _address_of_active(self._master)
            )
        return None

    def _refused(self, lines: list[str]) -> None:
        """Write a summary of refused requests, into the log and, on the active master, into the history."""
        active_master = self._master.active_master
        for line in lines:
            log.warn("refused request: {line}", line=line)
            if active_master is not None and active_master.is_open:
                active_master.history_writer.event(REFUSED, line[:DETAIL_MAX])

    @staticmethod
    def _damaged(problem: str) -> None:
        log.error("{problem}; `rk fsck` names them", problem=problem)


def _address_of_active(master: MasterProcess) -> str:
    """Return the address of the active master, or "" if this master does not know it."""
    active = None if master.election is None else master.election.active
    return "" if active is None else f"{active.host}:{active.port}"
