"""Every request of masters and region servers against every sender: users by role, daemons by kind, and nobody.

The rows are written down a second time here, by the least role: a wrong row in `regions.access.needs` fails, and so
does a new request that nobody has entered.
"""

from __future__ import annotations

import itertools
import typing
from typing import Any, Final

import msgspec
import pytest

from coord.rpc.wire import RpcError
from coord.security.principal import MASTER, NOBODY, NODE, SERVER, USER, Principal
from regions import messages as ms
from regions.access.permissions import Permissions, Subject
from regions.records.acts.grants import Grant, GrantsRecord, UserRole
from regionserver.kv.service import KvRegions
from regionserver.tablets.server_tablets import ServerTablets

#: What the RPC endpoints of masters and servers decode (master/service.py, regionserver/server.py).
REQUESTS: Final[dict[str, type]] = {
    one.__name__: one
    for one in (
        *typing.get_args(ms.MasterRequest),
        *typing.get_args(ms.ServerRequest),
        *KvRegions.requests,
        *ServerTablets.requests,
    )
}
#: The least role of users, and whether a role on the request's table is enough -> requests.
ANYBODY: Final = "Ping GetMasterStatus ListMasters WhoAmI WhoLeads"
ROWS: Final[dict[tuple[UserRole | None, bool], str]] = {
    (UserRole.READ, False): "ListTables ShowRetirement ListServers ListRit ListContacts GetServerStatus ListOpen"
    " ListDirectories ShowReplicas ListCopyJobs ShowDigests",
    (UserRole.READ, True): "DescribeTable DescribeRegion ExplainRegion ExplainTable ListTablets ShowTablet ListIntents"
    " RecentTransitions KvRead KvScan KvVerify KvSnapshot TabletRead TabletScan TabletSnapshot",
    (UserRole.WRITE, True): "KvWrite TabletWrite",
    (
        UserRole.ADMIN,
        True,
    ): "ListGrants SetTableIntent DeleteTable AlterTable ChangeGrant MoveRegion CloseHole SplitRegion"
    " MergeRegions RetryRegion SetRegionIntent MoveTablet CancelTabletMove WantLearner TransferLeadership",
    (
        UserRole.ADMIN,
        False,
    ): "CreateTable UndeleteTable NoteForcedConfig RetireServer DrainServer FenceServer UnfenceServer"
    " UnstickRegion UndoUnstick Balance BeginPlan AddPlanMoves AbortPlan ShutdownCluster StartTabletCopy CancelCopy"
    " QuarantineReplica PurgeQuarantine ForceConfiguration",
    (None, False): "Heartbeat OpenRegions CloseRegions AlterRegions ReviewReplicas PurgeTable FindSplitKey PrepareRows"
    " RemoveRegions ChangeConfig SealTablet",
}
ENTRIES: Final = {
    **{name: entry for entry, names in ROWS.items() for name in names.split()},
    **dict.fromkeys(ANYBODY.split(), (UserRole.READ, False)),
}
_RANK: Final = {UserRole.READ: 1, UserRole.WRITE: 2, UserRole.ADMIN: 3}
#: The user `write_t` has the role write on table t, `write_` on the cluster.
GRANTS: Final = tuple(
    Grant(f"{role.value}_{table}", role, table) for role, table in itertools.product(UserRole, ("", "t", "u"))
)


def is_allowed(who: Principal, request: msgspec.Struct) -> bool:
    """Return whether `who` may send a request about table t."""
    permissions = Permissions(lambda: 0.0)
    permissions.learn(GrantsRecord(GRANTS), 0.0)
    try:
        permissions.check(who, request, lambda _scope, _request: Subject("t", "t"))
    except RpcError as error:
        if error.code != ms.FORBIDDEN or str(who) not in error.message:
            raise
        return False
    return True


def bare(name: str) -> Any:
    """Return a request with empty values: the table that it is about is given by the test."""
    kind: Any = REQUESTS[name]
    return kind(**dict.fromkeys(kind.__struct_fields__, ""))


def test_every_request_is_entered() -> None:
    """Tried: a further struct in `MasterRequest`."""
    assert sorted(REQUESTS) == sorted(ENTRIES)


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_users_below_the_role_are_refused(name: str) -> None:
    """A role on another table is worth nothing, and one on the table nothing for requests about the cluster.

    Tried: `FenceServer` needs WRITE; `KvRead` counts a role on any table.
    """
    role, on_table = ENTRIES[name]
    for grant in GRANTS:
        counts = grant.table_id == "" or (on_table and grant.table_id == "t")
        wanted = name in ANYBODY.split() or (role is not None and counts and _RANK[grant.role] >= _RANK[role])
        assert is_allowed(Principal(USER, grant.user), bare(name)) == wanted, grant
    assert is_allowed(Principal(USER, "stranger"), bare(name)) == (name in ANYBODY.split())


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_what_a_stolen_daemon_may_not_send(name: str) -> None:
    """No daemon sends what belongs to users: rows, tables, moves, fences, drains, a shutdown, grants. Nodes of the
    store and callers without a proof send nothing."""
    assert not is_allowed(Principal(NODE, "1"), bare(name))
    assert not is_allowed(NOBODY, bare(name))
    of_users = ENTRIES[name][0] in (UserRole.WRITE, UserRole.ADMIN) or name.startswith(("Kv", "Tablet", "Describe"))
    if of_users and name not in ("TransferLeadership", "StartTabletCopy", "QuarantineReplica"):
        assert not is_allowed(Principal(MASTER, "m"), bare(name))
        assert not is_allowed(Principal(SERVER, "s"), bare(name))
