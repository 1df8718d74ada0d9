"""Requests about balancing and plans, and their replies."""

from __future__ import annotations

import msgspec

from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
from regions.records.model import PlanRecord


class Balance(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Report the balancer's state, switch it, or run a round now. `dry_run` only reports the moves. Reply:
    BalanceReport."""

    switch: bool | None = None
    run: bool = False
    dry_run: bool = False


class PlannedMove(msgspec.Struct, frozen=True):
    """A replica that a plan moves from the server with uuid `source` to `destination`."""

    region_id: str
    replica: int
    source: str
    destination: str


class BeginPlan(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Announce a plan that moves open regions, sent in `parts`. Reply: PlanReport.

    `epoch` is the epoch of the master whose state the plan was checked against. Under another epoch the plan must be
    checked again. If a plan with this id is being applied, its pending moves are canceled and it begins again.
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
    """Send part number `part`, counted from 0. Reply: PlanReport, when the moves are durable. May be repeated."""

    plan_id: str
    part: int
    moves: list[PlannedMove]


class AbortPlan(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Cancel the pending moves of the plan that is being applied. Reply: PlanReport."""

    plan_id: str = ""  #: "": any plan


class PlanProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress of a bulk plan."""

    plan_id: str
    engine: str
    state: str
    regions: int
    assigned: int
    stage: str = ""
    seconds: float = 0.0
    note: str = ""


class BalanceMove(msgspec.Struct, frozen=True):
    """A move that the balancer proposes, with its reason."""

    key: str
    table: str
    source: str
    destination: str
    reason: str


class GroupBalance(msgspec.Struct, frozen=True):
    """Evenness of a group. A skew is the difference in excess replicas between the fullest and the emptiest server."""

    group: str
    servers: int
    replicas: int
    #: Maximum over all tables, and over the sum of all tables.
    table_skew: float
    skew: float
    #: Bytes or load of the fullest server, divided by its share; 1 is even, 0 if there are no bytes or no load.
    size_ratio: float
    load_ratio: float
    #: True for the members of tablets, which are balanced separately.
    is_tablets: bool = False


class BalanceRound(msgspec.Struct, frozen=True):
    """One round of the balancer."""

    at_ms: int
    moves: int
    more: bool
    before: list[GroupBalance]
    after: list[GroupBalance]


class LeaderHandover(msgspec.Struct, frozen=True):
    """The handover of a tablet's leadership to another server, to spread leaders evenly. Both servers are uuids."""

    region_id: str
    table_id: str
    source: str
    target: str
    reason: str


class BalanceReport(msgspec.Struct, frozen=True, tag=True):
    """Reply to Balance. `next_in_ms` is -1 if the balancer is off.

    `moves`, `before` and `after` are set after a round or a dry run.
    """

    enabled: bool
    period_ms: int
    next_in_ms: int
    #: Transitions that block a round.
    blocking: list[str]
    #: Stuck transitions, which do not block a round (X9).
    stuck: list[str]
    #: Servers that take no part because of stuck transitions.
    excluded: list[str]
    last: BalanceRound | None
    dry_run: bool
    moves: list[BalanceMove]
    more: bool
    before: list[GroupBalance]
    after: list[GroupBalance]
    #: Plan of an operator that is being applied. The balancer waits until it is done.
    plan: str = ""
    #: Leaders of tablets that are handed over, and how many tablets each server leads before.
    handovers: list[LeaderHandover] = []
    spread: str = ""
    #: Why no members of tablets are moved, "" if they may be; and the moves under way for the balance.
    tablets_blocking: str = ""
    tablets_moving: int = 0


class PlanReport(msgspec.Struct, frozen=True, tag=True):
    """An operator's plan: its record, and the numbers of pending moves and of moves in progress."""

    record: PlanRecord
    waiting: int
    moving: int
