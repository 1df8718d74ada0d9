"""Requests for explanations of a region's or a table's state, and for the step that helps; and their replies."""

from __future__ import annotations

import enum

import msgspec

from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
from regions.messages.staleness import NO_BOUND, AsOf, Bound
from regions.records.acts.undo import Remedy
from regions.records.model import (
    Incarnation,
    TableRecord,
)


class ExplainRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Explain the state of each replica of a region, and who must act next. Reply: Explanations."""

    region_id: str
    bound: Bound = NO_BOUND


class ExplainTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Return why a table is not at rest, and what it waits for. Reply: TableExplanation."""

    table: str
    bound: Bound = NO_BOUND


class NextActor(enum.StrEnum):
    """The process that must act next on a replica."""

    NOBODY = "nobody"  #: the replica is as it should be
    MASTER = "master"
    SERVER = "server"
    OPERATOR = "operator"


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one replica and what it waits for (`regions/diagnose/explain.py`).

    Times are by the active master's clock.
    """

    region_id: str
    replica: int
    table: str
    #: OPEN, CLOSED, NOT OPEN, PARKED, or the state of the transition.
    standing: str
    #: One sentence for the operator.
    headline: str
    actor: NextActor
    #: What the actor does next, "" for NOBODY.
    step: str = ""
    #: The server that has the replica or works on it.
    server: Incarnation | None = None
    source: Incarnation | None = None
    destination: Incarnation | None = None
    #: Cause of the latest step of the transition.
    reason: str = ""
    since_ms: int = 0
    #: Time at which the master acts by itself, 0 if it does not.
    deadline_ms: int = 0
    #: What the master does at the deadline.
    at_deadline: str = ""
    #: Time since the deadline, 0 before it.
    overdue_ms: int = 0
    #: Number of failed opens, or of CLOSE orders sent.
    attempt: int = 0
    #: Number of attempts after which `at_deadline` applies.
    attempts_max: int = 0
    last_error: str = ""
    epoch: int = 0
    plan_id: str = ""
    #: Servers that are not eligible: "uuid: reason".
    ruled_out: list[str] = []
    #: What an operator can do, commands first.
    way_out: list[str] = []
    #: Kind of service that the table needs (`regions/records/kinds.py`).
    kind: str = ""


class Explanations(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ExplainRegion: one explanation per replica."""

    replicas: list[Explanation]
    as_of: AsOf | None = None


class Holdup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replicas of a table that wait for the same step: their number, the process that must act, and one of their
    regions."""

    replicas: int
    text: str
    actor: NextActor
    #: Uuid of the server that the replicas wait for, "" if there is none.
    server: str = ""
    region_id: str = ""


class TableExplanation(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ExplainTable (`regions/diagnose/explain_table.py`)."""

    table: TableRecord
    #: The table's state, or the one it is changing to: ALTERING, PREPARING, CREATING, OPENING, CLOSING, BEING
    #: DELETED, …
    standing: str
    #: One sentence for the operator.
    headline: str
    regions: int = 0
    replicas: int = 0
    open: int = 0
    #: Since when the table waits, as far as the active master has observed; 0 if it is at rest, or unknown.
    since_ms: int = 0
    #: What the table waits for, the largest number of replicas first.
    waiting: list[Holdup] = []
    #: Replicas that were counted but not examined.
    not_looked_at: int = 0
    way_out: list[str] = []
    #: Notes for the operator that do not depend on the state.
    notes: list[str] = []
    as_of: AsOf | None = None


# --- rk unstick: one legal step, or its undo, bound to the state that the operator was shown (N11) ---


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """Versions of the znodes that the operator was shown.

    They are read before the shown state, so a change between the two reads is refused as well.
    """

    #: Version of the region's record.
    region: int
    #: Version of the transition, -1 if there was none.
    transition: int = -1
    #: Start code of the server that is to be fenced.
    start_code: int = 0


class UnstickRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Take one legal step that helps a replica, if nothing has changed since it was shown. Reply: Accepted.

    After a change nothing is done: the error is `BAD_REQUEST`, and its message names the change.
    """

    region_id: str
    replica: int
    action: Remedy
    shown: Shown
    #: Uuid of the server that is to be fenced.
    server: str = ""
    by: str = ""
    why: str = ""


class UndoUnstick(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Undo an action of UnstickRegion, if nothing has changed since it was shown. Reply: Accepted.

    `version` is the version of the undo record. `region_version` is the version of the region's record (undo of an
    assignment), and `replicas` are the keys of the replicas that were shown to move back (undo of a fence).
    """

    undo_id: str
    version: int
    region_version: int = 0
    replicas: tuple[str, ...] = ()
