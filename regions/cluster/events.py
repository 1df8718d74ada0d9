"""Events of the assigner: what happened in the cluster, one at a time (see `regions/assign/assigner.py`)."""

from __future__ import annotations

import msgspec

from regions.messages import AlterResult, OrderResult
from regions.messages.heartbeat import ReplicaReport
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


class TableSeen(msgspec.Struct):
    """A table exists or has changed, at `version` of its znode; regions only when the table is new."""

    record: TableRecord
    version: int
    regions: list[tuple[RegionRecord, int]] = []


class FinishAnswered(msgspec.Struct):
    """What became of `FinishTable`: it is written down; or not, because a server had begun to close something."""

    table_id: str
    is_done: bool


class RegionSeen(msgspec.Struct):
    """A region's record as read."""

    record: RegionRecord
    version: int


class TransitionRead(msgspec.Struct):
    """A transition as read: None if there is none."""

    region_id: str
    replica: int
    record: TransitionRecord | None
    version: int


class ServerUp(msgspec.Struct):
    """A server has registered."""

    record: ServerRecord
    draining: bool = False


class ServerDown(msgspec.Struct):
    """A server's registration is gone (RF-01)."""

    uuid: str


class ServerFenced(msgspec.Struct):
    """A server's registration was deleted by a master, and the mark says so (X10)."""

    fence: FenceRecord


class FenceFailed(msgspec.Struct):
    """The store refused to fence the server: its registration has changed or gone meanwhile."""

    uuid: str


class FenceRequested(msgspec.Struct):
    """An operator wants a server fenced, and barred for `bar_ms` (see FenceServer)."""

    uuid: str
    reason: str
    bar_ms: int = 0


class DrainingSeen(msgspec.Struct):
    """The servers that are to be emptied, all of them."""

    uuids: list[str]


class BarsSeen(msgspec.Struct):
    """The servers that get no regions because they were fenced, all of them."""

    bars: list[BarRecord]


class WriteDone(msgspec.Struct):
    """The write for `key` has committed; `version` of the znode after it, meaningless for a delete."""

    key: str
    version: int = 0


class WriteFailed(msgspec.Struct):
    """The write for `key` was refused by the store: something else is there.

    `table_version`, when set: the version of the table's record that the write named, and that is another by now.
    """

    key: str
    table_version: int | None = None


class OrdersAnswered(msgspec.Struct):
    """A server's answer to a batch."""

    batch: int
    results: list[OrderResult]


class OrdersLost(msgspec.Struct):
    """No answer to a batch, or a refusal of the whole batch."""

    batch: int
    error: str


class PlanReady(msgspec.Struct):
    """A bulk plan: key to server uuid. Keys that the plan leaves out are placed one by one."""

    plan_id: str
    keys: list[str]
    placements: dict[str, str]


class MoveRequested(msgspec.Struct):
    """A replica is wanted elsewhere; `destination` "" means anywhere else. Not persisted: see MovesAccepted."""

    key: str
    destination: str = ""
    plan_id: str = ""
    reason: str = "move"


class MovesAccepted(msgspec.Struct):
    """A batch of moves is in the store."""

    batch: MoveBatch


class MovesWithdrawn(msgspec.Struct):
    """The batches of a plan are no longer in the store: what has not begun of it is not wanted any more."""

    plan_id: str


class RetryRequested(msgspec.Struct):
    """Try a parked replica again."""

    key: str


class AltersAnswered(msgspec.Struct):
    """A server's answer to a batch of AlterOrders."""

    batch: int
    results: list[AlterResult]


class AltersLost(msgspec.Struct):
    """No answer to such a batch, or a refusal of it."""

    batch: int
    error: str


class ReplicasReported(msgspec.Struct):
    """A server has reported replicas by itself, with the schema version that each follows (HB-15)."""

    server: Incarnation
    replicas: list[ReplicaReport]


class RegionReplaced(msgspec.Struct):
    """`fresh` has taken the place of a region that could not be created."""

    region_id: str
    fresh: RegionRecord
    version: int = 0


class ReplaceFailed(msgspec.Struct):
    """Nothing was written (DD-04): what is there has to be looked at."""

    region_id: str


Event = (
    TableSeen
    | FinishAnswered
    | RegionSeen
    | TransitionRead
    | ServerUp
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
)
