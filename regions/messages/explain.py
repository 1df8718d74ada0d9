"""Requests that ask why a region or a table is in its state, and the answers."""

from __future__ import annotations

import enum

import msgspec

from regions.messages.codes import NO_BOUND
from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
from regions.messages.staleness import AsOf, Bound
from regions.records.model import (
    Incarnation,
    TableRecord,
)


class ExplainRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Why each replica of a region is where it is, and who must act next. Answer: Explanations."""

    region_id: str
    bound: Bound = NO_BOUND


class ExplainTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Why a table is not at rest, and who holds it up. Answer: TableExplanation."""

    table: str
    bound: Bound = NO_BOUND


class NextActor(enum.StrEnum):
    """Who must act for a replica to get where it should be."""

    NOBODY = "nobody"  #: it is where it should be
    MASTER = "master"
    SERVER = "server"
    OPERATOR = "operator"


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one replica stands and what it waits for (`regions/diagnose/explain.py`). Times by the active master's
    clock."""

    region_id: str
    replica: int
    table: str
    #: OPEN, CLOSED, NOT OPEN, PARKED, or the state of the transition.
    standing: str
    #: One sentence for people.
    headline: str
    actor: NextActor
    #: What that one does next; "" for nobody.
    step: str = ""
    #: The server that has it, or is at work on it.
    server: Incarnation | None = None
    source: Incarnation | None = None
    destination: Incarnation | None = None
    #: Why the transition was begun, or taken to its latest step.
    reason: str = ""
    since_ms: int = 0
    #: When the master acts by itself, 0: it does not; and what it does then.
    deadline_ms: int = 0
    at_deadline: str = ""
    #: How long ago the deadline passed; 0 if it has not.
    overdue_ms: int = 0
    #: Failed opens, or asks for a close, and after how many what `at_deadline` says.
    attempt: int = 0
    attempts_max: int = 0
    last_error: str = ""
    epoch: int = 0
    plan_id: str = ""
    #: Servers that may not have it: "uuid: why".
    ruled_out: list[str] = []
    #: What an operator can do about it, commands first.
    way_out: list[str] = []
    #: Kind of service that its table needs (`regions/records/kinds.py`).
    kind: str = ""


class Explanations(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to ExplainRegion: one for each replica."""

    replicas: list[Explanation]
    as_of: AsOf | None = None


class Holdup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replicas of a table that wait for the same thing: how many, for what, who must act, and one of their regions."""

    replicas: int
    text: str
    actor: NextActor
    #: Uuid of the server concerned, "" if there is none.
    server: str = ""
    region_id: str = ""


class TableExplanation(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to ExplainTable (`regions/diagnose/explain_table.py`)."""

    table: TableRecord
    #: Its state, or what it is becoming: ALTERING, PREPARING, CREATING, OPENING, CLOSING, BEING DELETED, ...
    standing: str
    #: One sentence for people.
    headline: str
    regions: int = 0
    replicas: int = 0
    open: int = 0
    #: Since when, as far as the active master saw; 0: it is at rest, or nobody knows.
    since_ms: int = 0
    #: Most replicas first.
    waiting: list[Holdup] = []
    #: Replicas in the way that were only counted.
    not_looked_at: int = 0
    way_out: list[str] = []
    #: What an operator should know of the table although nothing is under way.
    notes: list[str] = []
    as_of: AsOf | None = None
