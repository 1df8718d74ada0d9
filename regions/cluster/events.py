"""Events of the assigner: changes in the cluster, one at a time (see `regions/assign/assigner.py`)."""

from __future__ import annotations

import msgspec

from regions.messages import AlterResult, OrderResult
from regions.messages.heartbeat import ReplicaReport
from regions.records.acts.resharding import ReshardingRecord
from regions.records.members import Member
from regions.records.model import (
    BarRecord,
    FenceRecord,
    Incarnation,
    MoveBatch,
    RegionRecord,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)
from regions.transitions.writes import TransitionRead as TransitionRead
from regions.transitions.writes import WriteDone as WriteDone
from regions.transitions.writes import WriteFailed as WriteFailed


class TableSeen(msgspec.Struct):
    """A table's record at its znode's version. `regions` is set only for a new table."""

    record: TableRecord
    version: int
    regions: list[tuple[RegionRecord, int]] = []


class FinishAnswered(msgspec.Struct):
    """Outcome of `FinishTable`. `is_done` is False if a server has begun to close a region of the table."""

    table_id: str
    is_done: bool


class RegionSeen(msgspec.Struct, gc=False):
    """A region's record that was read."""

    record: RegionRecord
    version: int


class ServerUp(msgspec.Struct):
    """A server has registered, or its record has changed."""

    record: ServerRecord
    draining: bool = False


class ServersEnded(msgspec.Struct):
    """Starts of servers have ended. A ServerDown or ServerUp of each of them follows, some in a later turn."""

    starts: list[Incarnation]


class ServerDown(msgspec.Struct):
    """A server's registration is gone (RF-01)."""

    uuid: str


class ServerFenced(msgspec.Struct):
    """A master has deleted a server's registration and created the fence record (X10)."""

    fence: FenceRecord


class FenceFailed(msgspec.Struct):
    """The store has refused to fence the server: its registration has changed or gone."""

    uuid: str


class FenceRequested(msgspec.Struct):
    """An operator's request to fence a server and to bar it for `bar_ms` (see FenceServer)."""

    uuid: str
    reason: str
    bar_ms: int = 0


class DrainingSeen(msgspec.Struct):
    """The list of all drained servers."""

    uuids: list[str]


class BarsSeen(msgspec.Struct):
    """The list of all bars."""

    bars: list[BarRecord]


class OrdersAnswered(msgspec.Struct):
    """A server's reply to a batch of orders."""

    batch: int
    results: list[OrderResult]


class OrdersLost(msgspec.Struct):
    """A batch of orders without a reply, or rejected as a whole."""

    batch: int
    error: str


class PlanReady(msgspec.Struct):
    """A bulk plan: server uuid by replica key. Replicas without a placement are placed one by one."""

    plan_id: str
    keys: list[str]
    placements: dict[str, str]


class MoveRequested(msgspec.Struct):
    """A request to move a replica; `destination` "" means any other server. The request is not persisted (see
    MovesAccepted)."""

    key: str
    destination: str = ""
    plan_id: str = ""
    reason: str = "move"


class MovesAccepted(msgspec.Struct):
    """A batch of moves that is in the store."""

    batch: MoveBatch


class MovesWithdrawn(msgspec.Struct):
    """The batches of a plan were deleted from the store: its pending moves are canceled."""

    plan_id: str


class RetryRequested(msgspec.Struct):
    """A request to retry a parked replica."""

    key: str


class AltersAnswered(msgspec.Struct):
    """A server's reply to a batch of AlterOrders."""

    batch: int
    results: list[AlterResult]


class AltersLost(msgspec.Struct):
    """A batch of AlterOrders without a reply, or rejected as a whole."""

    batch: int
    error: str


class ReplicasReported(msgspec.Struct):
    """Replicas that a server has reported in a heartbeat, with their schema versions (HB-15)."""

    server: Incarnation
    replicas: list[ReplicaReport]


class RegionReplaced(msgspec.Struct):
    """A region that could not be created was replaced by `fresh`."""

    region_id: str
    fresh: RegionRecord
    version: int = 0


class ReplaceFailed(msgspec.Struct):
    """The store has refused the replacement of a region (DD-04)."""

    region_id: str


class ReshardingSeen(msgspec.Struct):
    """A split or merge that is in the store: accepted, changed by this master, or read again."""

    record: ReshardingRecord
    version: int


class ReshardingEnded(msgspec.Struct):
    """The znode of a split or merge is gone."""

    region_id: str


class DaughtersPrepared(msgspec.Struct):
    """A server's answer to PrepareDaughters. `error` "": the daughters' files have the rows, except for the latest.

    `is_final` False: the order was lost, and is repeated.
    """

    region_id: str
    server: Incarnation
    error: str = ""
    is_final: bool = True


class ParentSealed(msgspec.Struct):
    """A leader's answer to SealParent. If `error` is "", no entry of the tablet's log after `index` changes its rows.

    `region_id` names the work, `parent` the tablet. If `is_final` is False, the order is repeated. `members` are the
    members of the now fixed configuration, `leader` is the leader's number.
    """

    region_id: str
    parent: str
    server: Incarnation
    index: int = 0
    members: tuple[Member, ...] = ()
    leader: int = 0
    error: str = ""
    is_final: bool = True


class ParentsReplaced(msgspec.Struct):
    """The daughters of a split or merge have replaced the parents, in one write with the table's record."""

    record: ReshardingRecord
    version: int
    table: TableRecord
    table_version: int
    #: Transitions that the write has created, for the members of daughters that are tablets.
    begun: list[TransitionRecord] = []


class ParentsRemoved(msgspec.Struct):
    """A server's answer to RemoveParents; `error` "": the parents' files are removed."""

    region_id: str
    error: str = ""


Event = (
    TableSeen
    | FinishAnswered
    | RegionSeen
    | TransitionRead
    | ServerUp
    | ServersEnded
    | ServerDown
    | ServerFenced
    | FenceFailed
    | FenceRequested
    | DrainingSeen
    | BarsSeen
    | WriteDone
    | WriteFailed
    | OrdersAnswered
    | OrdersLost
    | PlanReady
    | MoveRequested
    | MovesAccepted
    | MovesWithdrawn
    | RetryRequested
    | AltersAnswered
    | AltersLost
    | ReplicasReported
    | RegionReplaced
    | ReplaceFailed
    | ReshardingSeen
    | ReshardingEnded
    | DaughtersPrepared
    | ParentSealed
    | ParentsReplaced
    | ParentsRemoved
)
