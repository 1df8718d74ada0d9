"""The life cycle of a replica on this server, as data.

    (none) -> CLAIMING -> OPENING -> ANNOUNCING -> OPEN -> MARKING -> CLOSING -> RELEASING -> (none)

`regionserver.replica.machine` makes the moves; one that is not a row of `LIFE` raises InvalidTransition.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from regions.messages import CloseOrder, OpenOrder
from regions.records.model import RegionRecord, ReplicaLocation, TransitionRecord
from regionserver.replica.effects import Key, WriteStep


class Phase(enum.StrEnum):
    """Where a replica is in its life here."""

    CLAIMING = "claiming"  #: OFFLINE -> OPENING is being written
    OPENING = "opening"  #: the handler opens it
    ANNOUNCING = "announcing"  #: open; OPENING -> OPENED is being written
    OPEN = "open"
    MARKING = "marking"  #: open; CLOSING is being created
    CLOSING = "closing"  #: the handler closes it
    STUCK = "stuck"  #: the handler could not close it; the next CLOSE tries again
    RELEASING = "releasing"  #: closed; CLOSING -> CLOSED is being written
    DROPPING = "dropping"  #: it belongs to somebody else now: to be closed, nothing is written


class Row(NamedTuple):
    """One move of the life cycle; None: not on this server."""

    before: Phase | None
    event: str
    after: Phase | None
    when: str


# fmt: off
LIFE: Final[tuple[Row, ...]] = (
    Row(None,             "open ordered",  Phase.CLAIMING,   "OFFLINE names this incarnation"),
    Row(Phase.OPEN,       "open ordered",  Phase.CLAIMING,   "the master thinks it is not open: the steps, no handler"),
    Row(Phase.CLAIMING,   "step taken",    Phase.OPENING,    "OPENING is ours"),
    Row(Phase.CLAIMING,   "step taken",    Phase.ANNOUNCING, "it was open already"),
    Row(Phase.CLAIMING,   "step lost",     None,             "the order was out of date"),
    Row(Phase.CLAIMING,   "step lost",     Phase.OPEN,       "the order was out of date; it was open already"),
    Row(Phase.OPENING,    "opened",        Phase.ANNOUNCING, "the handler has it open"),
    Row(Phase.OPENING,    "open failed",   None,             "remembered, for the master to ask"),
    Row(Phase.OPENING,    "step lost",     Phase.DROPPING,   "taken away while it was being opened"),
    Row(Phase.ANNOUNCING, "step taken",    Phase.OPEN,       "OPENED and the location are written"),
    Row(Phase.ANNOUNCING, "step lost",     Phase.DROPPING,   "taken away before it was announced"),
    Row(Phase.OPEN,       "close ordered", Phase.MARKING,    ""),
    Row(Phase.OPEN,       "disowned",      Phase.DROPPING,   "the store says that it is not ours"),
    Row(Phase.MARKING,    "step taken",    Phase.CLOSING,    "CLOSING is ours"),
    Row(Phase.MARKING,    "step lost",     Phase.OPEN,       "it is in another transition: nothing is closed"),
    Row(Phase.CLOSING,    "closed",        Phase.RELEASING,  ""),
    Row(Phase.CLOSING,    "close failed",  Phase.STUCK,      "it stays CLOSING in the store"),
    Row(Phase.STUCK,      "close ordered", Phase.CLOSING,    "asked again"),
    Row(Phase.RELEASING,  "step taken",    None,             "CLOSED is written"),
    Row(Phase.RELEASING,  "step lost",     None,             "closed here; the store has moved on"),
    Row(Phase.DROPPING,   "closed",        None,             ""),
    Row(Phase.DROPPING,   "open failed",   None,             "it never opened"),
    Row(Phase.DROPPING,   "opened",        Phase.DROPPING,   "too late: to be closed"),
    Row(Phase.DROPPING,   "close failed",  Phase.DROPPING,   "tried again; then the process ends"),
    Row(Phase.CLAIMING,   "session lost",  None,             "nothing was open"),
    Row(Phase.CLAIMING,   "session lost",  Phase.DROPPING,   "it was open already"),
    Row(Phase.OPENING,    "session lost",  None,             "the handler had not been asked yet"),
    Row(Phase.OPENING,    "session lost",  Phase.DROPPING,   ""),
    Row(Phase.ANNOUNCING, "session lost",  Phase.DROPPING,   ""),
    Row(Phase.OPEN,       "session lost",  Phase.DROPPING,   ""),
    Row(Phase.MARKING,    "session lost",  Phase.DROPPING,   ""),
    Row(Phase.CLOSING,    "session lost",  Phase.DROPPING,   ""),
    Row(Phase.STUCK,      "session lost",  Phase.DROPPING,   ""),
    Row(Phase.RELEASING,  "session lost",  None,             "closed already"),
    Row(Phase.DROPPING,   "session lost",  Phase.DROPPING,   ""),
)
# fmt: on

LEGAL: Final = frozenset((row.before, row.event, row.after) for row in LIFE)

#: What a master is told a replica is doing (HostedReplica.state).
SHOWN: Final = {
    Phase.CLAIMING: "OPENING",
    Phase.OPENING: "OPENING",
    Phase.ANNOUNCING: "OPENING",
    Phase.OPEN: "OPEN",
    Phase.MARKING: "CLOSING",
    Phase.CLOSING: "CLOSING",
    Phase.STUCK: "CLOSING",
    Phase.RELEASING: "CLOSING",
    Phase.DROPPING: "CLOSING",
}

#: Identity of the OFFLINE record that an OPEN order carries out: (version, epoch, attempt, since_ms).
Mark = tuple[int, int, int, int]


def mark_of(order: OpenOrder) -> Mark:
    record = order.transition
    return order.version, record.epoch, record.attempt, record.since_ms


class Waiting:
    """An order that must wait for the end of another one."""

    def __init__(self, order: OpenOrder | CloseOrder, epoch: int, ticket: int) -> None:
        self.order = order
        self.epoch = epoch
        self.ticket = ticket


class LocalReplica:
    """One replica on this server. Changed by `Replicas` alone."""

    def __init__(self, key: Key, region: RegionRecord, now_ms: int) -> None:
        self.key = key
        self.region = region
        self.region_version = -1
        self.phase: Phase | None = None
        self.since_ms = now_ms
        #: Our transition as last written or attempted, and the znode's version as last known; -1: none.
        self.record: TransitionRecord | None = None
        self.version = -1
        self.epoch = 0
        #: zxid of our OPENING: orders this opening before and after all others of the replica, whoever's they are.
        self.token = 0
        #: The token with which the handler opened it. An order for a replica that is open takes the steps alone, and
        #: the files keep the token of the open before.
        self.opened_token = 0
        self.ticket = 0
        self.mark: Mark | None = None
        self.open_timeout_ms = 0
        #: The latest version of its table's schema that it was told of (DD-07).
        self.schema_version = 0
        #: And that the handler was told of.
        self.schema_told = 0
        #: The store's and the handler's answer that is awaited; 0: none.
        self.step: WriteStep | None = None
        self.step_number = 0
        self.job_number = 0
        self.refusals = 0
        self.drops = 0
        #: The handler has it open (or may have, after a failed close).
        self.is_open = False
        self.location: ReplicaLocation | None = None
        self.progress_ms = 0
        self.error = ""
        #: What its opener found wrong with its rows; "" while they are whole as far as anybody has read.
        self.damage = ""
        self.waiting: Waiting | None = None
        #: The answer about whose it is that is awaited; 0: none.
        self.review_number = 0
