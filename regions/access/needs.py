"""The permission that each request needs: the one table of masters' and region servers' requests.

Rows contain the name of the request's type, because some types belong to layers above this one. A test fails if a
request has no row. A request of a service of one's own (`regionserver.opener`) that has no row needs the role ADMIN of
the cluster (`UNKNOWN`).

A *kind* of daemon in a row may send the request under any grants. A daemon may send only requests that name its kind.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from coord.security.principal import MASTER, SERVER
from regions.records.acts.grants import UserRole


class Scope(enum.Enum):
    """The object on which the caller needs the role, and the field of the request that names it."""

    ANYBODY = "nothing: a proved identity is enough"
    CLUSTER = "the cluster"
    TABLE = "the table in the field `table`; without a table, the cluster"
    REGION = "the table of the region in the field `region_id`; without a region, the cluster"
    PLACE = "the table of the region in the field `place`"
    TABLET = "the table of the tablet in the field `tablet`"


class Need(NamedTuple):
    """One row."""

    #: None: no user may send the request.
    role: UserRole | None
    scope: Scope
    #: Kinds of daemons that may send the request.
    daemons: frozenset[str] = frozenset()


_MASTER: Final = frozenset({MASTER})
_SERVER: Final = frozenset({SERVER})
_BOTH: Final = _MASTER | _SERVER

_KNOWN: Final = Need(UserRole.READ, Scope.ANYBODY, _BOTH)
_LOOK: Final = Need(UserRole.READ, Scope.CLUSTER)
_RUN: Final = Need(UserRole.ADMIN, Scope.CLUSTER)
_LOOK_AT_TABLE: Final = Need(UserRole.READ, Scope.TABLE)
_RUN_TABLE: Final = Need(UserRole.ADMIN, Scope.TABLE)
_LOOK_AT_REGION: Final = Need(UserRole.READ, Scope.REGION)
_RUN_REGION: Final = Need(UserRole.ADMIN, Scope.REGION)
_ORDER: Final = Need(None, Scope.CLUSTER, _MASTER)

#: The need of a request without a row.
UNKNOWN: Final = _RUN

#: Type of request -> need.
NEEDS: Final[Mapping[str, Need]] = {
    # --- masters: any identity
    "Ping": _KNOWN,
    "GetMasterStatus": _KNOWN,
    "ListMasters": _KNOWN,
    "WhoAmI": _KNOWN,
    # --- masters: reads
    "ListTables": _LOOK,
    "DescribeTable": _LOOK_AT_TABLE,
    "DescribeRegion": _LOOK_AT_REGION,
    "ExplainRegion": _LOOK_AT_REGION,
    "ExplainTable": _LOOK_AT_TABLE,
    "ListTablets": _LOOK_AT_TABLE,
    "ShowTablet": _LOOK_AT_REGION,
    "ListIntents": _LOOK_AT_TABLE,
    "ShowRetirement": _LOOK,
    "ListServers": _LOOK,
    "ListRit": _LOOK,
    "RecentTransitions": _LOOK_AT_REGION,
    #: Masters ask each other, for the live page.
    "ListContacts": Need(UserRole.READ, Scope.CLUSTER, _MASTER),
    "ListGrants": _RUN_TABLE,
    # --- masters: tables and their regions
    "CreateTable": _RUN,
    "UndeleteTable": _RUN,
    "SetTableIntent": _RUN_TABLE,
    "DeleteTable": _RUN_TABLE,
    "AlterTable": _RUN_TABLE,
    "ChangeGrant": _RUN_TABLE,
    "MoveRegion": _RUN_REGION,
    "CloseHole": _RUN_TABLE,
    "SplitRegion": _RUN_REGION,
    "MergeRegions": _RUN_REGION,
    "RetryRegion": _RUN_REGION,
    "SetRegionIntent": _RUN_REGION,
    "MoveTablet": _RUN_REGION,
    "CancelTabletMove": _RUN_REGION,
    "WantLearner": _RUN_REGION,
    # --- masters: the cluster
    "NoteForcedConfig": _RUN,
    "RetireServer": _RUN,
    "DrainServer": _RUN,
    "FenceServer": _RUN,
    "UnfenceServer": _RUN,
    "UnstickRegion": _RUN,
    "UndoUnstick": _RUN,
    "Balance": _RUN,
    "BeginPlan": _RUN,
    "AddPlanMoves": _RUN,
    "AbortPlan": _RUN,
    "ShutdownCluster": _RUN,
    "Heartbeat": Need(None, Scope.CLUSTER, _SERVER),
    # --- region servers: orders of masters
    "OpenRegions": _ORDER,
    "CloseRegions": _ORDER,
    "AlterRegions": _ORDER,
    "ReviewReplicas": _ORDER,
    "PurgeTable": _ORDER,
    "FindSplitKey": _ORDER,
    "PrepareRows": _ORDER,
    "RemoveRegions": _ORDER,
    "ChangeConfig": _ORDER,
    "SealTablet": _ORDER,
    "TransferLeadership": Need(UserRole.ADMIN, Scope.REGION, _MASTER),
    # --- region servers: what they have
    "GetServerStatus": Need(UserRole.READ, Scope.CLUSTER, _BOTH),
    "ListOpen": Need(UserRole.READ, Scope.CLUSTER, _BOTH),
    "ListDirectories": Need(UserRole.READ, Scope.CLUSTER, _BOTH),
    "ShowReplicas": Need(UserRole.READ, Scope.CLUSTER, _BOTH),
    # --- region servers: rows of shared regions
    "KvRead": Need(UserRole.READ, Scope.PLACE),
    "KvWrite": Need(UserRole.WRITE, Scope.PLACE),
    "KvScan": Need(UserRole.READ, Scope.PLACE),
    "KvVerify": Need(UserRole.READ, Scope.PLACE),
    "KvSnapshot": Need(UserRole.READ, Scope.PLACE),
    # --- region servers: rows of tablets
    "TabletRead": Need(UserRole.READ, Scope.TABLET),
    "TabletWrite": Need(UserRole.WRITE, Scope.TABLET),
    "TabletScan": Need(UserRole.READ, Scope.TABLET),
    "TabletSnapshot": Need(UserRole.READ, Scope.TABLET),
    #: The reply names servers, and no row. A client asks for the tablets of several tables at once.
    "WhoLeads": _KNOWN,
    # --- region servers: replicas of tablets, among each other and for operators
    "StartTabletCopy": Need(UserRole.ADMIN, Scope.CLUSTER, _SERVER),
    "ListCopyJobs": Need(UserRole.READ, Scope.CLUSTER, _BOTH),
    "CancelCopy": _RUN,
    "ShowDigests": Need(UserRole.READ, Scope.CLUSTER, _SERVER),
    "QuarantineReplica": Need(UserRole.ADMIN, Scope.CLUSTER, _SERVER),
    "PurgeQuarantine": _RUN,
    "ForceConfiguration": _RUN,
}


def need_of(request: type) -> Need:
    """Return the need of a type of request."""
    return NEEDS.get(request.__name__, UNKNOWN)
