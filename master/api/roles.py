"""The roles that answer each request of `MasterRequest` (HB-14, as data).

HB-14 has three rows, and FW-01 adds the column for requests with a staleness bound:

| request                                       | active | standby                 | standby, with a bound |
| --------------------------------------------- | ------ | ----------------------- | --------------------- |
| Ping, heartbeats, lists of masters and servers| yes    | yes                     | within the bound      |
| reads: List and Get of tables and regions     | yes    | NOT_LEADER, with a hint | within the bound      |
| everything else: Create, Delete, Alter, ...   | yes    | NOT_LEADER, with a hint | (no such request)     |

A master whose tenure has just ended answers as a standby that does not know the active master. Such a master satisfies
no bound until it has read the cluster state again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from regions import messages as ms
from regions.messages.heartbeat import Heartbeat
from regions.messages.staleness import Bound


class Who(enum.Enum):
    """The masters that answer a request."""

    ANYBODY = "the active master and standbys"
    ACTIVE = "the active master"
    BOUNDED = "the active master, and standbys within the caller's staleness bound"


#: Every member of MasterRequest; a test fails for one that is missing.
WHO: Final[Mapping[type, Who]] = {
    ms.Ping: Who.ANYBODY,
    Heartbeat: Who.ANYBODY,
    ms.GetMasterStatus: Who.ANYBODY,
    ms.ListContacts: Who.ANYBODY,
    ms.WhoAmI: Who.ANYBODY,
    ms.ListMasters: Who.ANYBODY,
    ms.ListServers: Who.ANYBODY,
    ms.ListTables: Who.BOUNDED,
    ms.DescribeTable: Who.BOUNDED,
    ms.DescribeRegion: Who.BOUNDED,
    ms.ExplainRegion: Who.BOUNDED,
    ms.ExplainTable: Who.BOUNDED,
    ms.ListRit: Who.BOUNDED,
    # Health and replicas are known from reports, which standbys do not get.
    ms.ListTablets: Who.ACTIVE,
    ms.ShowTablet: Who.ACTIVE,
    ms.ListIntents: Who.ACTIVE,
    ms.ShowRetirement: Who.ACTIVE,
    # From the log of the active master's own steps. A standby does not have all steps.
    ms.RecentTransitions: Who.ACTIVE,
    ms.CreateTable: Who.ACTIVE,
    ms.SetTableIntent: Who.ACTIVE,
    ms.DeleteTable: Who.ACTIVE,
    ms.UndeleteTable: Who.ACTIVE,
    ms.AlterTable: Who.ACTIVE,
    ms.MoveRegion: Who.ACTIVE,
    ms.CloseHole: Who.ACTIVE,
    ms.SplitRegion: Who.ACTIVE,
    ms.MergeRegions: Who.ACTIVE,
    ms.RetryRegion: Who.ACTIVE,
    ms.MoveTablet: Who.ACTIVE,
    ms.CancelTabletMove: Who.ACTIVE,
    ms.WantLearner: Who.ACTIVE,
    ms.NoteForcedConfig: Who.ACTIVE,
    ms.RetireServer: Who.ACTIVE,
    ms.SetRegionIntent: Who.ACTIVE,
    ms.DrainServer: Who.ACTIVE,
    ms.FenceServer: Who.ACTIVE,
    ms.UnfenceServer: Who.ACTIVE,
    ms.UnstickRegion: Who.ACTIVE,
    ms.UndoUnstick: Who.ACTIVE,
    ms.Balance: Who.ACTIVE,
    ms.BeginPlan: Who.ACTIVE,
    ms.AddPlanMoves: Who.ACTIVE,
    ms.AbortPlan: Who.ACTIVE,
    ms.ShutdownCluster: Who.ACTIVE,
    ms.ChangeGrant: Who.ACTIVE,
    ms.ListGrants: Who.ACTIVE,
}


def is_for_standby(request: ms.MasterRequest) -> bool:
    """Return True if a standby answers this request, provided that its state is within the request's bound."""
    who = WHO[type(request)]
    return who is Who.ANYBODY or (who is Who.BOUNDED and not bound_of(request).is_none)


def bound_of(request: ms.MasterRequest) -> Bound:
    """Return the caller's staleness bound, NO_BOUND for a request without that field."""
    bound: Bound = getattr(request, "bound", ms.NO_BOUND)
    return bound
