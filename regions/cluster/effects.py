"""Effects of the assigner: what the active master, or a simulation, must carry out (see `regions/assign/assigner.py`).

A write names the znode version that it replaces and goes out with a check of the fencing epoch. Its outcome returns to
the assigner as the event `WriteDone` or `WriteFailed` (`regions/cluster/events.py`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from regions.messages import AlterOrder, CloseOrder, OpenOrder
from regions.records.model import (
    BarRecord,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableRecord,
    TransitionRecord,
    WorkOrigin,
)
from regions.transitions.states import Cause

#: `bar_ms` of a bar that only an operator ends.
BAR_FOR_EVER: Final = -1


class Caused(msgspec.Struct, kw_only=True):
    """An effect and the origin of the work that it is part of.

    The assigner sets the origin of every effect. The orders of SendOpen, SendClose and SendAlter may have several
    origins, so there the orders name them (`cause_ids`).
    """

    origin: WorkOrigin | None = None


class WriteOffline(Caused):
    """Create (`before` None) or set the transition to `record`, which is OFFLINE.

    `table_check` (table id, version) goes into the same multi: a region of a table that was removed or disabled
    meanwhile gets no destination.
    `former` is the transition as it was read at `version`; its steps go into the history with this one.
    `without_member` is the region's record, with its version, for a step that is legal only because the record does not
    have the member (`regions.transitions.states.RESTS_ON_MEMBERS`); the multi checks the version.
    """

    key: str
    record: TransitionRecord
    before: RegionState | None
    version: int
    cause: Cause
    table_check: tuple[str, int] | None = None
    former: TransitionRecord | None = None
    without_member: tuple[RegionRecord, int] | None = None


class DeleteTransition(Caused):
    """Delete the transition at `version`.

    `table_check` (table id, version) goes into the same multi when the legality hangs on the table's intent (X3);
    `region` and `region_version`, when set, is the catalogue record to be written in the same multi. `former` and
    `without_member` as in `WriteOffline`.
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
    without_member: tuple[RegionRecord, int] | None = None


class SendOpen(Caused):
    """Send OPEN orders to a server; answer with `OrdersAnswered` or `OrdersLost` under the same batch id."""

    batch: int
    server: ServerRecord
    orders: list[OpenOrder]


class SendClose(Caused):
    """Send CLOSE orders to a server; answered as SendOpen."""

    batch: int
    server: ServerRecord
    orders: list[CloseOrder]


class ReadTransition(Caused):
    """Read the transition's znode again: what is known of it turned out wrong."""

    region_id: str
    replica: int


class ReadRegion(Caused):
    """Read the region's record again."""

    table_id: str
    region_id: str


class ReadTable(Caused):
    """Read the table's record again: the store refused a write that named an older one."""

    table_id: str


class RequestPlan(Caused):
    """Have a bulk plan made for these replicas (keys); answer with `PlanReady`."""

    keys: list[str]
    reason: str


class Note(Caused):
    """Something an operator should know: goes to the log."""

    text: str
    region_id: str = ""


class WriteFence(Caused):
    """Delete the server's registration and leave a mark (X10); answer with `ServerFenced` or `FenceFailed`.

    `bar_ms`: for how long the server gets no regions when it joins again; 0: it gets some at once, BAR_FOR_EVER: until
    an operator ends the bar. The bar is written in the same multi.
    """

    server: ServerRecord
    reason: str
    lease_ms: int
    bar_ms: int = 0


class ForgetFence(Caused):
    """Delete the mark of a fenced server: its former start is known to be dead."""

    uuid: str


class ForgetBar(Caused):
    """Delete the bar of a server: its time is over."""

    bar: BarRecord


class FinishMoves(Caused):
    """Delete a batch of moves: all have begun or are over."""

    move_id: str


class FinishTable(Caused):
    """The last region of a removed table has been closed: write that down, and DELETED into its regions (DD-06).

    Answered by `FinishAnswered`.
    """

    record: TableRecord
    version: int
    regions: list[tuple[RegionRecord, int]] = []


class SendAlter(Caused):
    """Tell a server of schema versions; answer with `AltersAnswered` or `AltersLost` under the same batch id."""

    batch: int
    server: ServerRecord
    orders: list[AlterOrder]


class FinishAltering(Caused):
    """Every region of the table follows this version of its schema: ALTERING to RUNNING (DD-07)."""

    table_id: str
    schema_version: int


class ReplaceRegion(Caused):
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
    | WriteFence
    | ForgetFence
    | ForgetBar
    | FinishMoves
    | FinishTable
    | SendAlter
    | FinishAltering
    | ReplaceRegion
)


def cause_ids(effect: Effect) -> list[str]:
    """Return the cause ids of an effect, each once, in the order of its orders if it has several."""
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
