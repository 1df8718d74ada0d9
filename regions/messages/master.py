"""The unions of all requests that a master answers and of all its replies, for decoding."""

from __future__ import annotations

from regions.messages.cluster import (
    Accepted,
    CallerIdentity,
    ChangeGrant,
    Contacts,
    DrainServer,
    FenceServer,
    GetMasterStatus,
    GrantList,
    ListContacts,
    ListGrants,
    ListMasters,
    ListRit,
    ListServers,
    Masters,
    MasterStatus,
    Ping,
    RecentTransitions,
    Servers,
    ShutdownCluster,
    Transitions,
    UnfenceServer,
    WhoAmI,
)
from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
from regions.messages.explain import (
    ExplainRegion,
    ExplainTable,
    Explanations,
    TableExplanation,
    UndoUnstick,
    UnstickRegion,
)
from regions.messages.heartbeat import Heartbeat, HeartbeatReply
from regions.messages.plans import AbortPlan, AddPlanMoves, Balance, BalanceReport, BeginPlan, PlanReport
from regions.messages.tables import (
    CloseHole,
    DescribeRegion,
    DescribeTable,
    ListTables,
    MergeRegions,
    MoveRegion,
    Regions,
    Resharded,
    RetryRegion,
    SetRegionIntent,
    SplitRegion,
    Tables,
)
from regions.messages.tablets import (
    CancelTabletMove,
    IntentList,
    ListIntents,
    ListTablets,
    MemberIntent,
    MoveTablet,
    NoteForcedConfig,
    Retirement,
    RetireServer,
    ShowRetirement,
    ShowTablet,
    TabletList,
    WantLearner,
)

MasterRequest = (
    CreateTable
    | SetTableIntent
    | DeleteTable
    | AlterTable
    | UndeleteTable
    | ListTables
    | DescribeTable
    | DescribeRegion
    | ExplainRegion
    | ExplainTable
    | ListTablets
    | ShowTablet
    | ListIntents
    | ShowRetirement
    | MoveTablet
    | CancelTabletMove
    | WantLearner
    | NoteForcedConfig
    | RetireServer
    | MoveRegion
    | CloseHole
    | SplitRegion
    | MergeRegions
    | RetryRegion
    | SetRegionIntent
    | DrainServer
    | FenceServer
    | UnfenceServer
    | UnstickRegion
    | UndoUnstick
    | GetMasterStatus
    | Ping
    | ListMasters
    | ListServers
    | ListRit
    | RecentTransitions
    | Balance
    | BeginPlan
    | AddPlanMoves
    | AbortPlan
    | ShutdownCluster
    | ListContacts
    | ChangeGrant
    | ListGrants
    | WhoAmI
    | Heartbeat
)


MasterReply = (
    BalanceReport
    | PlanReport
    | Tables
    | Regions
    | Servers
    | MasterStatus
    | Masters
    | Transitions
    | Explanations
    | TableExplanation
    | TabletList
    | IntentList
    | MemberIntent
    | Retirement
    | Resharded
    | Accepted
    | Contacts
    | GrantList
    | CallerIdentity
    | HeartbeatReply
)
