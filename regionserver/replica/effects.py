"""Effects of the replicas' life cycle (`regionserver.replica.machine`). `regionserver.replica.host` carries them out.

Every effect with a result carries a number, and the result carries the same number. A result whose number is no longer
expected is dropped. So a late result of a former session is harmless.
"""

from __future__ import annotations

import msgspec

from regions.messages import OrderResult
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord
from regions.transitions.states import Cause

#: Region id and replica number.
Key = tuple[str, int]


class WriteStep(msgspec.Struct, gc=False):
    """Write one step of a transition by compare-and-set.

    `before` None: create the znode; otherwise set it at `version`. The versions of a deleted and created znode start
    again, so a version alone does not distinguish two transitions of a region. Therefore every step involves the
    region's record: if `region` is given, it is written at `region_version` in the same multi, otherwise its version is
    checked (-1: no check). If `epoch` is given, the fencing epoch is checked. Result: `step_done` or `step_failed`.
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
    """Read the transition and the region's record again, after a step was rejected or its reply was lost.

    Result: `read_back`.
    """

    key: Key
    number: int
    table_id: str


class ReadOwner(msgspec.Struct):
    """Read the transition and the region's record, because a master doubts the ownership. Result: `reviewed`."""

    key: Key
    number: int
    table_id: str


class OpenRegion(msgspec.Struct, gc=False):
    """Call the opener to open the replica. `evict`: a former owner, certainly dead, whose lock may be broken.

    `token`: zxid of the step that made this server the owner; later openings of the replica have higher tokens.
    Result: `opened`, `open_failed` or `owner_held`.
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
    """Pass a later schema version of an open replica's table to the opener. No result."""

    key: Key
    region: RegionRecord
    schema_version: int


class CloseRegion(msgspec.Struct, gc=False):
    """Call the opener to close the replica. Result: `closed` or `close_failed`."""

    key: Key
    number: int
    region: RegionRecord
    #: Cause id of the order, for the log.
    cause_id: str = ""


class ReadHolder(msgspec.Struct):
    """Read whether the incarnation that holds the replica is registered. Result: `holder_seen`."""

    key: Key
    number: int
    holder: Incarnation


class OrderFinished(msgspec.Struct, gc=False):
    """Report the result of the order with this ticket."""

    ticket: int
    result: OrderResult


class Stop(msgspec.Struct):
    """Stop this process, because only its end releases resources that the opener does not close."""

    reason: str


Effect = WriteStep | ReadBack | ReadOwner | OpenRegion | SchemaChanged | CloseRegion | ReadHolder | OrderFinished | Stop
