"""The check of every request to one process, against grants that are recent enough. Pure.

The process reads the grants whenever they change, and at least every REFRESH_S. If it could not read them for a certain
time, it rejects requests of users, because a grant may have been revoked meanwhile. So a revoked role is accepted for
that time at most. The time is AGE_MAX_S in a master, which cannot work without the store anyway. Requests of daemons do
not depend on grants: masters, servers and their regions continue to work.

A check costs two or three lookups in dictionaries and one reading of the clock, and makes no object. The result of a
lookup is kept until the grants change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from coord.rpc.wire import RpcError
from coord.security.principal import USER, Principal
from regions.access.needs import Need, Scope, need_of
from regions.messages.codes import BUSY, FORBIDDEN
from regions.records.acts.grants import FIRST, GrantsRecord, UserRole

#: Time for which a master uses the grants that it has read. After this time a revoked role has no effect any more.
AGE_MAX_S: Final = 10.0
#: Interval at which a process reads the grants even without an event.
REFRESH_S: Final = 2.0
#: Number of identities whose rights are kept. Above this number all of them are dropped and computed again.
RIGHTS_MAX: Final = 10_000

#: Rank of each role; a role includes the lower ones.
RANKS: Final = {role: rank for rank, role in enumerate(UserRole, 1)}


class Subject(NamedTuple):
    """The table that a request is about."""

    table_id: str
    #: For people; the id where the name is not known.
    name: str


#: Finds the table that a request is about, by the field that the scope names. None: the request is about no table, and
#: only a role on the cluster counts. May raise RpcError for a region that the process does not serve.
FindTable = Callable[[Scope, Any], "Subject | None"]


class _Rights:
    """Permissions of one identity."""

    __slots__ = ("allowed", "everywhere", "free", "tables")

    def __init__(self, everywhere: int, tables: dict[str, int]) -> None:
        #: Types of requests that need no grant.
        self.free: set[type] = set()
        #: Types of requests that the role on the cluster allows.
        self.allowed: set[type] = set()
        #: Rank of the role on the cluster, 0 for none.
        self.everywhere = everywhere
        #: Rank of the role on each table.
        self.tables = tables


class Permissions:
    """See the module docstring. `now_s` is a clock that runs on while the process sleeps."""

    def __init__(self, now_s: Callable[[], float], age_max_s: float = AGE_MAX_S) -> None:
        """`age_max_s`: how long grants are used that could not be read again."""
        self._now_s = now_s
        #: Time for which grants are used although they could not be read again.
        self.age_max_s: Final = age_max_s
        self._record = FIRST
        self._read_s: float | None = None
        self._rights: dict[Principal, _Rights] = {}
        self._needs: dict[type, Need] = {}

    @property
    def record(self) -> GrantsRecord:
        """The grants as last read."""
        return self._record

    def learn(self, record: GrantsRecord, began_s: float) -> None:
        """Take in grants from a read of the store that began at `began_s`."""
        if self._read_s is None or began_s >= self._read_s:
            self._read_s = began_s
            if record != self._record:
                self._record = record
                self._rights.clear()

    def age_s(self) -> float | None:
        """Return the age of the grants, None before they have been read."""
        return None if self._read_s is None else self._now_s() - self._read_s

    def check(self, who: Principal, request: Any, find_table: FindTable) -> None:
        """Raise RpcError: FORBIDDEN if `who` may not send this request, BUSY if the grants are too old to decide."""
        kind = type(request)
        rights = self._rights.get(who)
        if rights is None:
            rights = self._rights[who] = self._compute(who)
        if kind in rights.free:
            return
        if kind in rights.allowed:
            self._check_age()
            return
        need = self._needs.get(kind)
        if need is None:
            need = self._needs[kind] = need_of(kind)
        if who.kind in need.daemons or (who.kind == USER and need.scope is Scope.ANYBODY):
            rights.free.add(kind)
            return
        if who.kind != USER or need.role is None:
            raise RpcError(FORBIDDEN, f"{who} may not send {kind.__name__}: {_who_may(need)}")
        self._check_age()
        rank = RANKS[need.role]
        if rights.everywhere >= rank:
            rights.allowed.add(kind)
            return
        self._check_table(who, rights, request, need, find_table)

    def roles_of(self, who: Principal) -> list[tuple[UserRole, str]]:
        """Return the roles of an identity, each with its table id, "" for the cluster."""
        if who.kind != USER:
            return []
        return [(one.role, one.table_id) for one in self._record.grants if one.user == who.name]

    def _check_table(self, who: Principal, rights: _Rights, request: Any, need: Need, find_table: FindTable) -> None:
        assert need.role is not None
        table = None if need.scope in (Scope.CLUSTER, Scope.ANYBODY) else find_table(need.scope, request)
        if table is not None and rights.tables.get(table.table_id, 0) >= RANKS[need.role]:
            return
        raise RpcError(FORBIDDEN, forbidden(who, need, table, getattr(request, "table", "")), _id(table))

    def _compute(self, who: Principal) -> _Rights:
        if len(self._rights) >= RIGHTS_MAX:
            self._rights.clear()
        everywhere, tables = 0, dict[str, int]()
        for role, table_id in self.roles_of(who):
            if table_id:
                tables[table_id] = max(tables.get(table_id, 0), RANKS[role])
            else:
                everywhere = max(everywhere, RANKS[role])
        return _Rights(everywhere, tables)

    def _check_age(self) -> None:
        """Raise RpcError(BUSY) if a role may have been revoked since the grants were read."""
        read_s = self._read_s
        if read_s is None or self._now_s() - read_s > self.age_max_s:
            since = "yet" if read_s is None else f"for more than {self.age_max_s:.0f} s"
            raise RpcError(BUSY, f"nothing was done: the grants could not be read from the store {since}")


def forbidden(who: Principal, need: Need, table: Subject | None, named: str = "") -> str:
    """Return the sentence for a user without the role: the missing role, and the grant to request from an admin.

    `named` is the table that the request names, if there is no such table.
    """
    assert need.role is not None
    role = need.role.value
    name = table.name if table is not None else named
    if need.scope in (Scope.CLUSTER, Scope.ANYBODY) or not name:
        return f"{who} may not {role.upper()} the cluster: ask an admin for `rk grant {who.name} {role}`"
    return f"{who} may not {role.upper()} table {name}: ask an admin for `rk grant {who.name} {role} --table {name}`"


def _id(table: Subject | None) -> str:
    """Return the hint of a rejection: the table's id, by which a client finds the name that its user knows."""
    return "" if table is None else table.table_id


def _who_may(need: Need) -> str:
    senders = [f"{kind}s" for kind in sorted(need.daemons)] + ([] if need.role is None else ["users"])
    return f"only {' and '.join(senders)} send it"
