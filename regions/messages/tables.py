"""Requests about tables and their regions, and the answers: lists, descriptions, moves, intents."""

from __future__ import annotations

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
    RegionRecord,
    TableRecord,
    TransitionRecord,
)

# --- anybody to master ------------------------------------------------------------------------------------------


class ListTables(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """All tables with counts."""

    bound: Bound = NO_BOUND


class DescribeTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A table's regions and where they are; `limit` 0: all, else that many from `start_key` on."""

    table: str
    start_key: str = ""
    limit: int = 0
    bound: Bound = NO_BOUND


class DescribeRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One region, its replicas and their transitions."""

    region_id: str
    bound: Bound = NO_BOUND


class MoveRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Move a replica to the server with uuid `destination`, or to any other one if that is empty."""

    region_id: str
    replica: int = 0
    destination: str = ""
    wait_ms: int = 0


class SetRegionIntent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Have a region closed and left closed (`assigned` False), or opened again; durable when the answer comes."""

    region_id: str
    assigned: bool
    wait_ms: int = 0


class RetryRegion(msgspec.Struct, frozen=True, tag=True):
    """Try a parked replica again (X11)."""

    region_id: str
    replica: int = 0


class TableSummary(msgspec.Struct, frozen=True):
    """A table and how its replicas fare."""

    table: TableRecord
    regions: int
    replicas: int
    open: int
    rit: int
    parked: int
    #: Replicas that follow the latest schema, as far as the master knows; -1: a standby, which is not told.
    altered: int = -1


class Tables(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to ListTables, by name; changes of a table (`regions/messages/ddl.py`) answer with that one."""

    tables: list[TableSummary]
    as_of: AsOf | None = None
    #: Of the answer to a change: the id under which the log and the history have what the request began.
    cause_id: str = ""


class ReplicaStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a replica is, and its transition if it is in one."""

    replica: int
    server: Incarnation | None = None
    transition: TransitionRecord | None = None


class RegionStatus(msgspec.Struct, frozen=True):
    """A region and its replicas."""

    region: RegionRecord
    replicas: list[ReplicaStatus]


class Regions(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Answer to DescribeTable and DescribeRegion, by start key."""

    table: TableRecord
    regions: list[RegionStatus]
    as_of: AsOf | None = None
