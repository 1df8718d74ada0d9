"""Effects of the assigner, which the active master or a simulation carries out (see `regions/assign/assigner.py`).

A write names the znode version that it replaces and goes out with a check of the fencing epoch. Its outcome returns to
the assigner as the event `WriteDone` or `WriteFailed`. The writes and these events are in
`regions/transitions/writes.py`, which is compiled.
"""

from __future__ import annotations

from typing import Final

import msgspec

from regions.messages import AlterOrder, CloseOrder, OpenOrder
from regions.records.acts.resharding import ReshardingRecord
from regions.records.intents import TabletMove
from regions.records.model import (
    BarRecord,
    RegionRecord,
    ServerRecord,
    TableRecord,
    TransitionRecord,
    WorkOrigin,
)
from regions.transitions.writes import DeleteTransition as DeleteTransition
from regions.transitions.writes import WriteOffline as WriteOffline

#: `bar_ms` of a bar without an end: an operator removes it.
BAR_FOR_EVER: Final = -1


class Caused(msgspec.Struct, kw_only=True):
    """An effect with the origin of the work that it belongs to.

    The assigner sets the origin of every effect. The orders of SendOpen, SendClose and SendAlter may have different
    origins, so each order has its own (`cause_ids`).
    """

    origin: WorkOrigin | None = None

    @property
    def cause_id(self) -> str:
        """The id of the work's cause, "" without an origin."""
        return "" if self.origin is None else self.origin.cause_id


class SendOpen(Caused):
    """Send OPEN orders to a server. `OrdersAnswered` or `OrdersLost` with the same batch id follows."""

    batch: int
    server: ServerRecord
    orders: list[OpenOrder]


class SendClose(Caused):
    """Send CLOSE orders to a server. `OrdersAnswered` or `OrdersLost` with the same batch id follows."""

    batch: int
    server: ServerRecord
    orders: list[CloseOrder]


class ReadTransition(Caused, gc=False):
    """Read the transition's znode again: the transition in memory is out of date."""

    region_id: str
    replica: int


class ReadRegion(Caused, gc=False):
    """Read the region's record again."""

    table_id: str
    region_id: str


class ReadTable(Caused):
    """Read the table's record again: the store refused a write that checked an older version."""

    table_id: str


class RequestPlan(Caused):
    """Compute a bulk plan for these replicas (keys). `PlanReady` follows."""

    keys: list[str]
    reason: str


class Note(Caused):
    """Write a line for the operator to the log."""

    text: str
    region_id: str = ""


class WriteFence(Caused):
    """Delete the server's registration and create its fence record (X10). `ServerFenced` or `FenceFailed` follows.

    `bar_ms` is the time for which the server gets no regions after it has registered again. 0 means no bar,
    BAR_FOR_EVER a bar until an operator removes it. The bar is written in the same multi.
    """

    server: ServerRecord
    reason: str
    lease_ms: int
    bar_ms: int = 0


class ForgetFence(Caused):
    """Delete the record of a fenced server: its former start is dead."""

    uuid: str


class ForgetBar(Caused):
    """Delete an expired bar of a server."""

    bar: BarRecord


class FinishMoves(Caused):
    """Delete a batch of moves that have all begun or are void."""

    move_id: str


class FinishTable(Caused):
    """Write the end of a removed table whose regions are all closed, and DELETED into its regions (DD-06).

    `FinishAnswered` follows.
    """

    record: TableRecord
    version: int
    regions: list[tuple[RegionRecord, int]] = []


class SendAlter(Caused):
    """Send schema versions to a server. `AltersAnswered` or `AltersLost` with the same batch id follows."""

    batch: int
    server: ServerRecord
    orders: list[AlterOrder]


class FinishAltering(Caused):
    """Set the table from ALTERING to RUNNING: every region has this version of its schema (DD-07)."""

    table_id: str
    schema_version: int


class ReplaceRegion(Caused):
    """Replace a region that could not be created by another one (DD-03).

    `transitions` are the OFFLINE transitions of its replicas with their versions. `table_version` is the version of the
    table's record. `RegionReplaced` or `ReplaceFailed` follows.
    """

    record: RegionRecord
    version: int
    table_version: int
    transitions: list[tuple[TransitionRecord, int]]
    fresh: RegionRecord


class PrepareDaughters(Caused):
    """Order the server of the parents to copy their rows into files of the daughters. `DaughtersPrepared` follows."""

    record: ReshardingRecord
    server: ServerRecord


class GiveUpDaughters(Caused):
    """Order a server to remove the files that it has prepared for a canceled split. No event follows. Without the order
    the server removes the files after a time."""

    record: ReshardingRecord
    server: ServerRecord


class SealParent(Caused):
    """Order the leader of a tablet to seal it. `ParentSealed` follows."""

    record: ReshardingRecord
    #: Id of the tablet, one of the work's parents.
    parent: str
    server: ServerRecord


class AlignParents(Caused):
    """Move a member of a tablet that is to be merged. No event follows except the change of the members."""

    record: ReshardingRecord
    #: Id of the tablet, one of the work's parents.
    parent: str
    move: TabletMove


class WriteResharding(Caused):
    """Write the next state of a split or merge. `ReshardingSeen` follows.

    If the store rejects this write, or the write of EndResharding or ReplaceParents, the work is read again. Then
    `ReshardingSeen` follows with the stored work, or `ReshardingEnded`.
    """

    record: ReshardingRecord
    version: int


class EndResharding(Caused):
    """Delete the znode of a split or merge that is done or canceled. `ReshardingEnded` follows.

    `outcome` is for the history: the result, or why the work was canceled.
    """

    record: ReshardingRecord
    version: int
    outcome: str


class ReplaceParents(Caused):
    """Replace the parents by the daughters in one write: set the parents to REPLACED, delete their transitions, create
    the daughters, and correct the table's number of regions. `ParentsReplaced` follows.

    `record` is the next state of the work, `version` that of the present one. `begun` are the transitions that the
    write creates, for the members of daughters that are tablets.
    """

    record: ReshardingRecord
    version: int
    table: TableRecord
    table_version: int
    parents: list[tuple[RegionRecord, int]]
    transitions: list[tuple[TransitionRecord, int]]
    begun: list[TransitionRecord] = []


class RemoveParents(Caused):
    """Order a server to remove the files of replaced parents. `ParentsRemoved` follows."""

    record: ReshardingRecord
    server: ServerRecord


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
    | WriteFence
    | ForgetFence
    | ForgetBar
    | FinishMoves
    | FinishTable
    | SendAlter
    | FinishAltering
    | ReplaceRegion
    | PrepareDaughters
    | GiveUpDaughters
    | SealParent
    | AlignParents
    | WriteResharding
    | EndResharding
    | ReplaceParents
    | RemoveParents
)


def cause_ids(effect: Effect) -> list[str]:
    """Return the cause ids of an effect, each once, in the order of its orders."""
    match effect:
        case SendOpen():
            found = [one.transition.origin for one in effect.orders]
        case SendClose():
            found = [one.origin for one in effect.orders]
        case SendAlter():
            return list(dict.fromkeys(one.cause_id for one in effect.orders))
        case _:
            found = [effect.origin]
    return list(dict.fromkeys("" if one is None else one.cause_id for one in found))
