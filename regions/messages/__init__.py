"""RPC messages between masters, region servers and the command line (sent by `coord.rpc.client`).

Each message is a tagged struct. `ServerRequest`, `MasterRequest` and their replies are the unions for decoding.

**Master to server.** Every order carries the sender's fencing `epoch`, the recipient's `uuid` and `start_code`, and the
`cluster` id. A server keeps the highest epoch that it has received. It rejects an order with a lower epoch, and an
order for another server, another start of itself or another cluster (FN-01, FN-04, FN-08, FW-11): `RpcError` with
`STALE_EPOCH`, `WRONG_SERVER` or `WRONG_CLUSTER`.

OPEN and CLOSE are idempotent: a master sends an order again to learn its outcome. The server replies to a batch when
every order in it has an outcome, or after `answer_within_ms` with STARTED for the orders that still run. The server
keeps an outcome until the transition has left the server's hands, so a lost reply loses nothing. A repeated OPEN
carries the latest record that the master knows, so its transition may be OPENING.

**To the master.** Reads and changes go to the active master. A standby rejects them with `RpcError(NOT_LEADER)`, whose
hint is the address of the active master ("host:port", or "" if unknown). A standby may answer a read with a `Bound` if
it can prove that its mirror is within the bound (`regions/messages/staleness.py`). Otherwise it rejects the read with
`TOO_STALE` and the same hint. `master/api/roles.py` has the table of roles and requests.
"""

from __future__ import annotations

from regions.messages.cluster import Accepted as Accepted
from regions.messages.cluster import CallerIdentity as CallerIdentity
from regions.messages.cluster import ChangeGrant as ChangeGrant
from regions.messages.cluster import Contact as Contact
from regions.messages.cluster import Contacts as Contacts
from regions.messages.cluster import DrainServer as DrainServer
from regions.messages.cluster import FenceServer as FenceServer
from regions.messages.cluster import GetMasterStatus as GetMasterStatus
from regions.messages.cluster import GrantList as GrantList
from regions.messages.cluster import ListContacts as ListContacts
from regions.messages.cluster import ListGrants as ListGrants
from regions.messages.cluster import ListMasters as ListMasters
from regions.messages.cluster import ListRit as ListRit
from regions.messages.cluster import ListServers as ListServers
from regions.messages.cluster import Masters as Masters
from regions.messages.cluster import MasterStatus as MasterStatus
from regions.messages.cluster import MirrorStatus as MirrorStatus
from regions.messages.cluster import Ping as Ping
from regions.messages.cluster import RecentTransitions as RecentTransitions
from regions.messages.cluster import ServerLoad as ServerLoad
from regions.messages.cluster import Servers as Servers
from regions.messages.cluster import ShownGrant as ShownGrant
from regions.messages.cluster import ShutdownCluster as ShutdownCluster
from regions.messages.cluster import StartupPhase as StartupPhase
from regions.messages.cluster import Transitions as Transitions
from regions.messages.cluster import TransitionStep as TransitionStep
from regions.messages.cluster import UnfenceServer as UnfenceServer
from regions.messages.cluster import Unserved as Unserved
from regions.messages.cluster import WhoAmI as WhoAmI
from regions.messages.codes import ALREADY_EXISTS as ALREADY_EXISTS
from regions.messages.codes import BAD_REQUEST as BAD_REQUEST
from regions.messages.codes import BUSY as BUSY
from regions.messages.codes import FORBIDDEN as FORBIDDEN
from regions.messages.codes import NO_LEASE as NO_LEASE
from regions.messages.codes import NOT_FOUND as NOT_FOUND
from regions.messages.codes import NOT_LEADER as NOT_LEADER
from regions.messages.codes import STALE_EPOCH as STALE_EPOCH
from regions.messages.codes import TIMED_OUT as TIMED_OUT
from regions.messages.codes import TOO_STALE as TOO_STALE
from regions.messages.codes import UNKNOWN_EPOCH as UNKNOWN_EPOCH
from regions.messages.codes import WRONG_CLUSTER as WRONG_CLUSTER
from regions.messages.codes import WRONG_MASTER as WRONG_MASTER
from regions.messages.codes import WRONG_SERVER as WRONG_SERVER
from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
from regions.messages.explain import ExplainRegion as ExplainRegion
from regions.messages.explain import ExplainTable as ExplainTable
from regions.messages.explain import Explanation as Explanation
from regions.messages.explain import Explanations as Explanations
from regions.messages.explain import Holdup as Holdup
from regions.messages.explain import NextActor as NextActor
from regions.messages.explain import Shown as Shown
from regions.messages.explain import TableExplanation as TableExplanation
from regions.messages.explain import UndoUnstick as UndoUnstick
from regions.messages.explain import UnstickRegion as UnstickRegion
from regions.messages.heartbeat import Heartbeat as Heartbeat
from regions.messages.heartbeat import HeartbeatReply as HeartbeatReply
from regions.messages.heartbeat import LeaderReport as LeaderReport
from regions.messages.heartbeat import MemberHealth as MemberHealth
from regions.messages.heartbeat import MemberReport as MemberReport
from regions.messages.heartbeat import ReplicaState as ReplicaState
from regions.messages.heartbeat import TabletReport as TabletReport
from regions.messages.heartbeat import TabletRole as TabletRole
from regions.messages.master import MasterReply as MasterReply
from regions.messages.master import MasterRequest as MasterRequest
from regions.messages.plans import AbortPlan as AbortPlan
from regions.messages.plans import AddPlanMoves as AddPlanMoves
from regions.messages.plans import Balance as Balance
from regions.messages.plans import BalanceMove as BalanceMove
from regions.messages.plans import BalanceReport as BalanceReport
from regions.messages.plans import BalanceRound as BalanceRound
from regions.messages.plans import BeginPlan as BeginPlan
from regions.messages.plans import GroupBalance as GroupBalance
from regions.messages.plans import LeaderHandover as LeaderHandover
from regions.messages.plans import PlannedMove as PlannedMove
from regions.messages.plans import PlanProgress as PlanProgress
from regions.messages.plans import PlanReport as PlanReport
from regions.messages.server import AlterOrder as AlterOrder
from regions.messages.server import AlterRegions as AlterRegions
from regions.messages.server import AlterResult as AlterResult
from regions.messages.server import AlterResults as AlterResults
from regions.messages.server import CloseOrder as CloseOrder
from regions.messages.server import ClosePurpose as ClosePurpose
from regions.messages.server import CloseRegions as CloseRegions
from regions.messages.server import Directories as Directories
from regions.messages.server import FindSplitKey as FindSplitKey
from regions.messages.server import GetServerStatus as GetServerStatus
from regions.messages.server import HostedReplica as HostedReplica
from regions.messages.server import ListDirectories as ListDirectories
from regions.messages.server import ListOpen as ListOpen
from regions.messages.server import MasterReach as MasterReach
from regions.messages.server import MemberEndpoint as MemberEndpoint
from regions.messages.server import OpenList as OpenList
from regions.messages.server import OpenOrder as OpenOrder
from regions.messages.server import OpenRegions as OpenRegions
from regions.messages.server import OrderOutcome as OrderOutcome
from regions.messages.server import OrderResult as OrderResult
from regions.messages.server import OrderResults as OrderResults
from regions.messages.server import PrepareRows as PrepareRows
from regions.messages.server import Purged as Purged
from regions.messages.server import PurgeTable as PurgeTable
from regions.messages.server import RemoveRegions as RemoveRegions
from regions.messages.server import ReshardingOrder as ReshardingOrder
from regions.messages.server import ReviewReplicas as ReviewReplicas
from regions.messages.server import RowsPrepared as RowsPrepared
from regions.messages.server import ServerReply as ServerReply
from regions.messages.server import ServerRequest as ServerRequest
from regions.messages.server import ServerStatus as ServerStatus
from regions.messages.server import SplitKey as SplitKey
from regions.messages.server import TabletClosing as TabletClosing
from regions.messages.server import TabletOpening as TabletOpening
from regions.messages.staleness import NO_BOUND as NO_BOUND
from regions.messages.tables import CloseHole as CloseHole
from regions.messages.tables import DescribeRegion as DescribeRegion
from regions.messages.tables import DescribeTable as DescribeTable
from regions.messages.tables import ListTables as ListTables
from regions.messages.tables import MergeRegions as MergeRegions
from regions.messages.tables import MoveRegion as MoveRegion
from regions.messages.tables import Regions as Regions
from regions.messages.tables import RegionStatus as RegionStatus
from regions.messages.tables import ReplicaStatus as ReplicaStatus
from regions.messages.tables import Resharded as Resharded
from regions.messages.tables import RetryRegion as RetryRegion
from regions.messages.tables import SetRegionIntent as SetRegionIntent
from regions.messages.tables import SplitRegion as SplitRegion
from regions.messages.tables import Tables as Tables
from regions.messages.tables import TableSummary as TableSummary
from regions.messages.tablets import REPLICAS_PAGE_MAX as REPLICAS_PAGE_MAX
from regions.messages.tablets import TABLETS_PAGE_MAX as TABLETS_PAGE_MAX
from regions.messages.tablets import CancelTabletMove as CancelTabletMove
from regions.messages.tablets import ChangeAnswer as ChangeAnswer
from regions.messages.tablets import ChangeConfig as ChangeConfig
from regions.messages.tablets import ConfigChange as ConfigChange
from regions.messages.tablets import ConfigChanged as ConfigChanged
from regions.messages.tablets import IntentList as IntentList
from regions.messages.tablets import KeptIntent as KeptIntent
from regions.messages.tablets import ListIntents as ListIntents
from regions.messages.tablets import ListTablets as ListTablets
from regions.messages.tablets import MemberIntent as MemberIntent
from regions.messages.tablets import MoveTablet as MoveTablet
from regions.messages.tablets import NoteForcedConfig as NoteForcedConfig
from regions.messages.tablets import OrphanReplica as OrphanReplica
from regions.messages.tablets import OwnReplica as OwnReplica
from regions.messages.tablets import ReplicaList as ReplicaList
from regions.messages.tablets import Retirement as Retirement
from regions.messages.tablets import RetireServer as RetireServer
from regions.messages.tablets import SealAnswer as SealAnswer
from regions.messages.tablets import SealTablet as SealTablet
from regions.messages.tablets import ShowReplicas as ShowReplicas
from regions.messages.tablets import ShowRetirement as ShowRetirement
from regions.messages.tablets import ShowTablet as ShowTablet
from regions.messages.tablets import TabletHealth as TabletHealth
from regions.messages.tablets import TabletLeft as TabletLeft
from regions.messages.tablets import TabletList as TabletList
from regions.messages.tablets import TabletMember as TabletMember
from regions.messages.tablets import TabletSealed as TabletSealed
from regions.messages.tablets import TabletStatus as TabletStatus
from regions.messages.tablets import TransferLeadership as TransferLeadership
from regions.messages.tablets import WantLearner as WantLearner
