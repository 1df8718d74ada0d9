"""Requests about balancing and bulk plans, and the answers."""

from __future__ import annotations

import msgspec

from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
from regions.records.model import (
    BalanceMove,
    GroupBalance,
    PlanRecord,
)


class Balance(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Ask about the balancer, switch it, or have a round made now; `dry_run` only tells what it would move."""

    switch: bool | None = None
    run: bool = False
    dry_run: bool = False


class PlannedMove(msgspec.Struct, frozen=True):
    """A replica that a plan wants on the server with uuid `destination`; it was found on `source`."""

    region_id: str
    replica: int
    source: str
    destination: str


class BeginPlan(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Announce a plan for regions that are open, to be handed over in `parts`. Answer: PlanReport.

    `epoch` is that of the master whose census the plan was checked against: under another it has to be checked anew.
    A plan of that id that is being applied begins again: what has not begun is withdrawn first.
    """

    plan_id: str
    epoch: int
    parts: int
    moves: int
    engine: str = ""
    fingerprint: str = ""
    digest: str = ""
    note: str = ""


class AddPlanMoves(msgspec.Struct, frozen=True, tag=True):
    """Hand over part number `part`, from 0. They are durable when the answer comes, a PlanReport; may be repeated."""

    plan_id: str
    part: int
    moves: list[PlannedMove]


class AbortPlan(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Withdraw what has not begun of the plan that is being applied. Answer: PlanReport."""

    plan_id: str = ""  #: "": whichever it is


class PlanProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bulk plan on its way."""

    plan_id: str
    engine: str
    state: str
    regions: int
    assigned: int
    stage: str = ""
    seconds: float = 0.0
    note: str = ""


class BalanceRound(msgspec.Struct, frozen=True):
    """What a round of the balancer ordered."""

    at_ms: int
    moves: int
    more: bool
    before: list[GroupBalance]
    after: list[GroupBalance]


class BalanceReport(msgspec.Struct, frozen=True, tag=True):
    """Answer to Balance. `next_in_ms` -1: it is off; `moves`, `before` and `after` only for a round just decided."""

    enabled: bool
    period_ms: int
    next_in_ms: int
    #: Transitions that hold a round up, those stuck, and the servers that take no part because of them (X9).
    blocking: list[str]
    stuck: list[str]
    excluded: list[str]
    last: BalanceRound | None
    dry_run: bool
    moves: list[BalanceMove]
    more: bool
    before: list[GroupBalance]
    after: list[GroupBalance]
    #: The plan of an operator that is being applied: until it is done the balancer holds still.
    plan: str = ""


class PlanReport(msgspec.Struct, frozen=True, tag=True):
    """An operator's plan: its record, and moves that wait and that are under way."""

    record: PlanRecord
    waiting: int
    moving: int
