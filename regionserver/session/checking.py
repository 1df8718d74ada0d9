"""The check of every request to a region server, before it is dispatched.

Tablets serve their clients without store and masters, also on a server that was restarted meanwhile. So a server uses
the grants that it has read for AGE_MAX_S, and keeps them in its data directory. On a server that reaches the store, a
revoked role has no effect any more. Without the store, a server accepts the role for at most AGE_MAX_S after it has
lost the store, or after its start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from twisted.logger import Logger

from coord.client.following.kept import KeptValue
from coord.client.following.revocations import FollowedRevocations
from coord.client.following.znode import FollowedZnode
from coord.client.session import ZkClient
from coord.rpc.server import RpcError
from coord.security.principal import Principal
from regions.access.guard import Guard
from regions.access.needs import Scope
from regions.access.permissions import REFRESH_S, Subject
from regions.records.model import RegionRecord, ReplicaLocation
from regions.records.znodes import CorruptZnode, Layout, decode_grants
from regionserver.request_gate import NOT_SERVING

log = Logger()

#: As `regionserver.tablets.messages.NO_REPLICA`: the client asks another member.
NO_REPLICA: Final = "no_replica"

#: Time for which a server without the store uses the grants that it has read.
AGE_MAX_S: Final = 3600.0
#: File of the data directory with the grants as last read.
FILE: Final = "grants.json"

#: Returns the record of a replica of a shared region that this server serves.
Served = Callable[[tuple[str, int]], "tuple[RegionRecord, ReplicaLocation] | None"]


class TablesOfTablets(Protocol):
    """The tablets of this server."""

    def table_of(self, tablet: str) -> str:
        """Return the id of a tablet's table, "" if this server has no replica of the tablet."""


class ServerChecks:
    """Checks requests by the grants, follows the grants in the store, and logs refused requests."""

    def __init__(
        self,
        reactor: Any,
        paths: Layout,
        directory: Path,
        now_s: Callable[[], float],
        served: Served,
        tablets: TablesOfTablets | None,
    ) -> None:
        """`paths` are those of the store, `directory` the server's data directory."""
        #: On an open cluster nothing is checked, because callers have no identity.
        self.is_open = True
        self._served = served
        self._tablets = tablets
        self._kept = KeptValue(directory / FILE, "the grants")
        self._guard = Guard(now_s, reactor.callLater, self._refused, self._damaged, AGE_MAX_S)
        self._followed = FollowedZnode(reactor, paths.grants, self._seen, now_s, REFRESH_S)
        self._revocations = FollowedRevocations(reactor, directory, now_s, REFRESH_S)
        self._restore(now_s())

    def follow(self, client: ZkClient) -> None:
        """Follow the grants by this session, from now on."""
        if not self.is_open:
            self._followed.follow(client)
            self._revocations.follow(client)

    def stop(self) -> None:
        """Follow no more, and write the last summary."""
        self._guard.stop()
        self._followed.stop()
        self._revocations.stop()

    def check(self, who: Principal, request: Any) -> None:
        """Raise RpcError if `who` may not send this request: the one place for all requests to a server."""
        if not self.is_open:
            self._guard.check(who, request, self._find_table)

    def problem(self) -> str:
        """Return the fault of the grants in the store, or ""."""
        return "" if self.is_open else self._guard.problem()

    def _restore(self, now_s: float) -> None:
        """Use the grants of the data directory, until the store has been read."""
        try:
            kept = self._kept.read()
            decode_grants(kept, str(self._kept.file))
        except FileNotFoundError:
            return
        except (OSError, CorruptZnode) as error:
            log.warn("cannot use the kept grants, requests of users wait for the store: {error}", error=error)
            return
        self._guard.seen(kept, -1, now_s)

    def _seen(self, data: bytes, version: int, began_s: float) -> None:
        # A damaged value is not kept: the last good grants outlive the damage, and a restart of this server.
        if self._guard.seen(data, version, began_s):
            self._kept.keep(data)

    def _find_table(self, scope: Scope, request: Any) -> Subject | None:
        if scope is Scope.PLACE:
            region_id, place = request.place.region_id, request.place
            found = self._served((region_id, place.replica))
            table_id = "" if found is None else found[0].table_id
        else:
            region_id = request.tablet if scope is Scope.TABLET else request.region_id
            table_id = "" if self._tablets is None else self._tablets.table_of(region_id)
        if not table_id:
            # As after every reply with this code, the client looks for the region on another server.
            code = NOT_SERVING if scope is Scope.PLACE else NO_REPLICA
            raise RpcError(code, f"region {region_id} is not open here")
        return Subject(table_id, table_id)

    @staticmethod
    def _refused(lines: list[str]) -> None:
        for line in lines:
            log.warn("refused request: {line}", line=line)

    @staticmethod
    def _damaged(problem: str) -> None:
        log.error("{problem}; `rk fsck` names them", problem=problem)
