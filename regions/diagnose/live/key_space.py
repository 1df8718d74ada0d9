"""Checks that the key space of every table is whole, by a master's copy of the regions, a slice at a time (X11). Pure.

Regions are whole if each key but "" is the start of as many regions as it is the end of, and one region begins and one
ends without a bound. So a walk through a table's regions in any order is enough: it adds the starts and subtracts the
ends. Only a table whose sum is not 0 is examined in the order of its keys, to find the place of the fault.

A standby's copy gets the records of a split one after the other. So a fault counts only if a second walk finds the same
fault at the same version of the table's record.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from regions.assign.resharding.holes import holes_of
from regions.cluster.entities import Region, Table
from regions.cluster.state import ClusterState
from regions.records.model import TableState

#: Regions in one slice: about a millisecond of work.
SLICE: Final = 2_000
#: A fault must be found again after this time.
CONFIRM_MS: Final = 5_000


class Fault(NamedTuple):
    """A hole or an overlap of a table."""

    table_id: str
    version: int
    text: str


class KeySpaceCheck:
    """Walks through all tables of a copy again and again."""

    def __init__(self) -> None:
        #: Tables that are still to be walked through in this round.
        self._round: list[str] = []
        self._walk: _Walk | None = None
        #: Faults found once, with the time.
        self._suspects: dict[Fault, int] = {}
        #: Number of tables that were checked.
        self.checked = 0

    def step(self, world: ClusterState, now_ms: int) -> list[Fault]:
        """Go on by a slice; return the faults that were found twice."""
        left = SLICE
        lasting: list[Fault] = []
        if self._walk is None and not self._round:
            self._round = list(world.tables)
            self._suspects = {one: at for one, at in self._suspects.items() if one.table_id in world.tables}
        while left > 0:
            if self._walk is None and not self._next(world):
                break
            walk = self._walk
            assert walk is not None, "a walk has begun"
            left -= walk.advance(left)
            if walk.is_over:
                self._walk = None
                lasting += self._judge(walk, world, now_ms)
        return lasting

    def _next(self, world: ClusterState) -> bool:
        """Begin with the next table; return False at the end of a round."""
        while self._round:
            table = world.tables.get(self._round.pop())
            if table is not None and table.record.state in (TableState.RUNNING, TableState.ALTERING):
                self._walk = _Walk(table)
                return True
        return False

    def _judge(self, walk: _Walk, world: ClusterState, now_ms: int) -> list[Fault]:
        self.checked += 1
        table = walk.table
        known = {one: at for one, at in self._suspects.items() if one.table_id == table.record.table_id}
        for one in known:
            del self._suspects[one]
        if walk.is_whole or world.tables.get(table.record.table_id) is not table or table.version != walk.version:
            return []
        fault = Fault(table.record.table_id, table.version, _text(table))
        since_ms = known.get(fault, now_ms)
        if fault in known and now_ms - since_ms >= CONFIRM_MS:
            return [fault]
        self._suspects[fault] = since_ms
        return []


class _Walk:
    """A walk through the regions of one table, as they were at its beginning."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.version = table.version
        self._left: list[Region] = list(table.regions.values())
        self._sum = 0
        self._unbounded = [0, 0]

    def advance(self, count: int) -> int:
        """Look at up to `count` regions; return their number, 1 for a table without any."""
        part = self._left[-count:]
        del self._left[-count:]
        for region in part:
            start, end = region.record.start_key, region.record.end_key
            self._sum += (hash(start) if start else 0) - (hash(end) if end else 0)
            self._unbounded[0] += not start
            self._unbounded[1] += not end
        return max(1, len(part))

    @property
    def is_over(self) -> bool:
        """Return True when all regions have been looked at."""
        return not self._left

    @property
    def is_whole(self) -> bool:
        """Return True if the regions have every key once."""
        return self._sum == 0 and self._unbounded == [1, 1]


def _text(table: Table) -> str:
    """Say where the fault is."""
    records = [region.record for region in table.regions.values()]
    name = f"table {table.record.name}"
    if holes := holes_of(records):
        more = f", and {len(holes) - 1} more holes" if len(holes) > 1 else ""
        return f"{name}: no region holds the keys {holes[0].words}{more}; rk fsck --fix closes holes"
    return f"{name}: some keys are in two regions; rk fsck names them"
