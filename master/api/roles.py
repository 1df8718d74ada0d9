"""Who answers what: every call of `MasterRequest` by the role of the master that is asked (HB-14, as data).

HB-14 has three lines, and FW-01 adds the third column below:

| call                                              | active | standby                    | with a staleness bound |
| Ping, heartbeats, and who the masters and servers are | yes    | yes                        | within the bound       |
| reads: List and Get of tables and regions         | yes    | NOT_LEADER, with a hint    | within the bound       |
| everything else: Create, Delete, Alter, ...       | yes    | NOT_LEADER, with a hint    | there is no such call  |

A master whose reign is just over answers as a standby that knows of no active master, and has nothing to prove any
bound by before it has read the cluster anew.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from regions import messages as ms
from regions.messages.heartbeat import Heartbeat
from regions.messages.staleness import Bound


class Who(enum.Enum):
    """Which masters answer a call."""

    ANYBODY = "active and standbys"
    ACTIVE = "the active one"
    BOUNDED = "the active one, and standbys within the bound that the caller gives"


#: Every member of MasterRequest; a test fails for one that is missing.
WHO: Final[Mapping[type, Who]] = {
    ms.Ping: Who.ANYBODY,
    Heartbeat: Who.ANYBODY,
    ms.GetMasterStatus: Who.ANYBODY,
    ms.ListContacts: Who.ANYBODY,
    ms.ListMasters: Who.ANYBODY,
    ms.ListServers: Who.ANYBODY,
    ms.ListTables: Who.BOUNDED,
    ms.DescribeTable: Who.BOUNDED,
    ms.DescribeRegion: Who.BOUNDED,
    ms.ExplainRegion: Who.BOUNDED,
    ms.ExplainTable: Who.BOUNDED,
    ms.ListRit: Who.BOUNDED,
    # Of what this master saw itself: a standby sees too little to tell the same.
    ms.RecentTransitions: Who.ACTIVE,
    ms.CreateTable: Who.ACTIVE,
    ms.SetTableIntent: Who.ACTIVE,
    ms.DeleteTable: Who.ACTIVE,
    ms.UndeleteTable: Who.ACTIVE,
    ms.AlterTable: Who.ACTIVE,
    ms.MoveRegion: Who.ACTIVE,
    ms.RetryRegion: Who.ACTIVE,
    ms.SetRegionIntent: Who.ACTIVE,
    ms.DrainServer: Who.ACTIVE,
    ms.FenceServer: Who.ACTIVE,
    ms.UnfenceServer: Who.ACTIVE,
    ms.Balance: Who.ACTIVE,
    ms.BeginPlan: Who.ACTIVE,
    ms.AddPlanMoves: Who.ACTIVE,
    ms.AbortPlan: Who.ACTIVE,
    ms.ShutdownCluster: Who.ACTIVE,
}


def is_for_standby(request: ms.MasterRequest) -> bool:
    """Whether a standby answers this request, as far as it can prove what the request's bound asks for."""
    who = WHO[type(request)]
    return who is Who.ANYBODY or (who is Who.BOUNDED and not bound_of(request).is_none)


def bound_of(request: ms.MasterRequest) -> Bound:
    """What the caller allows; NO_BOUND in calls that have no such field."""
    bound: Bound = getattr(request, "bound", ms.NO_BOUND)
    return bound
