"""What the assigner wants done, and what it wants to be told (see `regions/assigner.py`).

Effects are carried out by a shell: the master's, or a simulation's. A write names the znode version it replaces and
goes out with a check of the fencing epoch; its outcome comes back as `WriteDone` or `WriteFailed`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from regions.heartbeat import ReplicaReport
from regions.messages import AlterOrder, AlterResult, CloseOrder, OpenOrder, OrderResult
from regions.model import (
    BarRecord,
    FenceRecord,
    Incarnation,
    MoveBatch,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)
from regions.states import Cause

#: `bar_ms` of a bar that only an operator ends.
BAR_FOR_EVER: Final = -1


class WriteOffline(msgspec.Struct):
    """Create (`before` None) or set the transition to `record`, which is OFFLINE.

    `table_check` (table id, version) goes into the same multi: a region of a table that was removed or disabled
    meanwhile gets no destination.
    `former` is the transition as it was read at `version`; its steps go into the history with this one.
    """

    key: str
    record: TransitionRecord
    before: RegionState | None
    version: int
    cause: Cause
    table_check: tuple[str, int] | None = None
    former: TransitionRecord | None = None


class DeleteTransition(msgspec.Struct):
    """Delete the transition at `version`.

    `table_check` (table id, version) goes into the same multi when the legality hangs on the table's intent (X3);
    `region` and `region_version`, when set, is the catalogue record to be written in the same multi. `former` as in
    `WriteOffline`.
    """

    key: str
    region_id: str
    replica: int
    before: RegionState
    version: int
    cause: Cause
    table_check: tuple[str, int] | None = None
    region: RegionRecord | None = None
    region_version: int = -1
    former: TransitionRecord | None = None


class SendOpen(msgspec.Struct):
    """Send OPEN orders to a server; answer with `OrdersAnswered` or `OrdersLost` under the same batch id."""

    batch: int
    server: ServerRecord
    orders: list[OpenOrder]


class SendClose(msgspec.Struct):
    """Send CLOSE orders to a server; answered as SendOpen."""

    batch: int
    server: ServerRecord
    orders: list[CloseOrder]


class ReadTransition(msgspec.Struct):
    """Read the transition's znode again: what is known of it turned out wrong."""

    region_id: str
    replica: int


class ReadRegion(msgspec.Struct):
    """Read the region's record again."""

    table_id: str
    region_id: str


class ReadTable(msgspec.Struct):
    """Read the table's record again: the store refused a write that named an older one."""

    table_id: str


class RequestPlan(msgspec.Struct):
    """Have a bulk plan made for these replicas (keys); answer with `PlanReady`."""

    keys: list[str]
    reason: str


class Note(msgspec.Struct):
    """Something an operator should know: goes to the log."""

    text: str
    region_id: str = ""


class FenceServer(msgspec.Struct):
    """Delete the server's registration and leave a mark (X10); answer with `ServerFenced` or `FenceFailed`.

    `bar_ms`: for how long the server gets no regions when it joins again; 0: it gets some at once, BAR_FOR_EVER: until
    an operator ends the bar. The bar is written in the same multi.
    """

    server: ServerRecord
    reason: str
    lease_ms: int
    bar_ms: int = 0


class ForgetFence(msgspec.Struct):
    """Delete the mark of a fenced server: its former start is known to be dead."""

    uuid: str


class ForgetBar(msgspec.Struct):
    """Delete the bar of a server: its time is over."""

    bar: BarRecord


class FinishMoves(msgspec.Struct):
    """Delete a batch of moves: all have begun or are over."""

    move_id: str


class FinishTable(msgspec.Struct):
    """The last region of a removed table has been closed: write that down, and DELETED into its regions (DD-06).

    Answered by `FinishAnswered`.
    """

    record: TableRecord
    version: int
    regions: list[tuple[RegionRecord, int]] = []


class SendAlter(msgspec.Struct):
    """Tell a server of schema versions; answer with `AltersAnswered` or `AltersLost` under the same batch id."""

    batch: int
    server: ServerRecord
    orders: list[AlterOrder]


class FinishAltering(msgspec.Struct):
    """Every region of the table follows this version of its schema: ALTERING to RUNNING (DD-07)."""

    table_id: str
    schema_version: int


class ReplaceRegion(msgspec.Struct):
    """Put another region in the place of one that could not be created (DD-03).

    `transitions` are those of its replicas, OFFLINE, at their versions; `table_version` is that of its table's record.
    Answer with `RegionReplaced` or `ReplaceFailed`.
    """

    record: RegionRecord
    version: int
    table_version: int
    transitions: list[tuple[TransitionRecord, int]]
    fresh: RegionRecord


Effect = (
    WriteOffline
    | DeleteTransition
    | SendOpen
    | SendClose
    | ReadTransition
    | ReadRegion
    | ReadTable
    | RequestPlan
    | Note
    | FenceServer
    | ForgetFence
    | ForgetBar
    | FinishMoves
    | FinishTable
    | SendAlter
    | FinishAltering
    | ReplaceRegion
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


class TransitionSeen(msgspec.Struct):
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
    | TransitionSeen
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
