"""What the replicas' life cycle (`regionserver.replica.machine`) wants done. A shell (`regionserver.replica.host`)
carries it out.

Every effect that will be answered carries a number; the answer names it again, and an answer whose number is no longer
awaited is dropped. So a late answer of a former session can do no harm.
"""

from __future__ import annotations

import msgspec

from regions.messages import OrderResult
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord
from regions.transitions.states import Cause

#: Region id and replica number.
Key = tuple[str, int]


class WriteStep(msgspec.Struct):
    """Take one step of a transition by compare-and-set.

    `before` None: create the znode; else set it at `version`. The versions of a znode that is deleted and created anew
    begin again, so that alone does not tell one transition of a region from the next. Therefore the region's record is
    part of every step: `region`, when there, is written at `region_version` in the same multi, else it must still have
    that version (-1: any). With `epoch`, the fencing epoch must be that. Answered by `step_done` or `step_failed`.
    """

    key: Key
    number: int
    cause: Cause
    before: RegionState | None
    record: TransitionRecord
    version: int
    region: RegionRecord | None = None
    region_version: int = -1
    epoch: int = -1


class ReadBack(msgspec.Struct):
    """Read the transition and the region's record again, after a step that was refused or whose answer was lost.

    Answered by `read_back`.
    """

    key: Key
    number: int
    table_id: str


class ReadOwner(msgspec.Struct):
    """Read the transition and the region's record: a master doubts that the replica is ours. Answered by `reviewed`."""

    key: Key
    number: int
    table_id: str


class OpenRegion(msgspec.Struct):
    """Have the region handler open the replica. `evict`: a former owner, certainly dead, whose hold may be broken.

    `token`: the zxid of the step that made this server the opener; later openings of the replica have higher ones.
    Answered by `opened`, `open_failed` or `owner_held`.
    """

    key: Key
    number: int
    region: RegionRecord
    epoch: int
    evict: Incarnation | None = None
    token: int = 0
    schema_version: int = 0
    #: Cause id of the order, for the log.
    cause_id: str = ""


class SchemaChanged(msgspec.Struct):
    """Tell the region handler that an open replica's table has a later schema version. Not answered."""

    key: Key
    region: RegionRecord
    schema_version: int


class CloseRegion(msgspec.Struct):
    """Have the region handler close the replica. Answered by `closed` or `close_failed`."""

    key: Key
    number: int
    region: RegionRecord
    #: Cause id of the order, for the log.
    cause_id: str = ""


class AskAlive(msgspec.Struct):
    """Find out from the store whether that incarnation is registered. Answered by `holder_seen`."""

    key: Key
    number: int
    holder: Incarnation


class Decided(msgspec.Struct):
    """The order with this ticket has come to its end."""

    ticket: int
    result: OrderResult


class Stop(msgspec.Struct):
    """This process must end: only that gives back what a handler does not let go of."""

    reason: str


Effect = WriteStep | ReadBack | ReadOwner | OpenRegion | SchemaChanged | CloseRegion | AskAlive | Decided | Stop
