"""Requests about tables and their regions, and their replies: lists, descriptions, moves, intents."""

from __future__ import annotations

import msgspec

from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
from regions.messages.staleness import NO_BOUND, AsOf, Bound
from regions.records.model import (
    Incarnation,
    RegionRecord,
    TableRecord,
    TransitionRecord,
)

# --- requests to a master ---------------------------------------------------------------------------------------


class ListTables(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List all tables with counts. Reply: Tables."""

    bound: Bound = NO_BOUND


class DescribeTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List a table's regions with their servers: all (`limit` 0), or `limit` from `start_key` on. Reply: Regions."""

    table: str
    start_key: str = ""
    limit: int = 0
    bound: Bound = NO_BOUND


class DescribeRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Describe one region, its replicas and their transitions. Reply: Regions."""

    region_id: str
    bound: Bound = NO_BOUND


class MoveRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Move a replica to the server with uuid `destination`, or to any other server if that is "". Reply: Accepted."""

    region_id: str
    replica: int = 0
    destination: str = ""
    wait_ms: int = 0


class SetRegionIntent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Close a region and keep it closed (`assigned` False), or open it again. Reply: Accepted, once the intent is
    durable."""

    region_id: str
    assigned: bool
    wait_ms: int = 0


class RetryRegion(msgspec.Struct, frozen=True, tag=True):
    """Retry a parked replica (X11). Reply: Accepted."""

    region_id: str
    replica: int = 0


class TableSummary(msgspec.Struct, frozen=True):
    """A table with counts of its replicas by state."""

    table: TableRecord
    regions: int
    replicas: int
    #: Number of open replicas. None for a table of tablets on a standby, which gets no reports.
    open: int | None
    rit: int
    parked: int
    #: Replicas that have the latest schema, as far as the master knows; -1 on a standby, which gets no reports.
    altered: int = -1
    #: For a table of tablets: number of usable tablets, while the other counts are of members. -1 for shared regions.
    running: int = -1
    #: Bytes and rows of one copy of all regions. `rows` None and `measured` False: `size_bytes` has estimates.
    size_bytes: int = 0
    rows: int | None = None
    measured: bool = False


class Tables(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ListTables, sorted by name. Also the reply to a change (`regions/messages/ddl.py`), with that table."""

    tables: list[TableSummary]
    as_of: AsOf | None = None
    #: In the reply to a change: the request's cause id in the log and the history.
    cause_id: str = ""


class ReplicaStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replica's server, and its transition if it has one."""

    replica: int
    #: Server on which the replica is open. For a tablet's member: its server, if registered.
    server: Incarnation | None = None
    transition: TransitionRecord | None = None
    #: For a tablet's member: whether its replica takes part, according to its server. None: unknown, as on a standby.
    takes_part: bool | None = None


class RegionStatus(msgspec.Struct, frozen=True):
    """A region and its replicas.

    Until a server has reported the region's size, `rows` is None, `measured` is False, and `size_bytes` is an estimate:
    the mean of the table's measured regions, or else the size in the region's record. -1 in the reply of a master of an
    earlier build.
    """

    region: RegionRecord
    replicas: list[ReplicaStatus]
    size_bytes: int = -1
    rows: int | None = None
    measured: bool = False

    @property
    def best_size(self) -> int:
        """Bytes of the region, as well as the master knows them."""
        return self.region.size_bytes if self.size_bytes < 0 else self.size_bytes


class Regions(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to DescribeTable and DescribeRegion, sorted by start key."""

    table: TableRecord
    regions: list[RegionStatus]
    as_of: AsOf | None = None


# --- splits and merges ------------------------------------------------------------------------------------------------


class SplitRegion(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Split a region at the placed key `at`; "" means the middle of its bytes. Reply: Resharded.

    The reply means that the split is durable; with `wait_ms`, also that the daughters are open. `dry_run`: only check.
    """

    region_id: str
    at: str = ""
    wait_ms: int = 0
    dry_run: bool = False


class MergeRegions(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Merge a region with one of its two neighbors. Reply: Resharded, as to SplitRegion."""

    region_id: str
    other: str
    wait_ms: int = 0
    dry_run: bool = False


class CloseHole(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Close a hole in the key space of a table with shared storage. Reply: Accepted.

    The bounds are placed keys; "" is no bound. `dry_run`: only return the record that would be written.
    """

    table: str
    start_key: str = ""
    end_key: str = ""
    dry_run: bool = False


class Resharded(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to SplitRegion and MergeRegions: the former regions, and those that replace them, by key."""

    table: TableRecord
    parents: list[RegionRecord]
    daughters: list[RegionRecord]
    #: True if the daughters are open.
    is_done: bool = False
    cause_id: str = ""
