"""Progress and end of requests about tables of tablets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from regions.messages import ddl
from regions.records.model import TableIntent, TableRecord, TableState
from regions.replication.config import voters
from regions.replication.tablet import Tablet, TabletTable

T = TypeVar("T")

#: Pause between two looks.
PAUSE_MS: Final = 500


class Throttled(Generic[T]):
    """A value that takes a look at many tablets: computed anew twice a second at most."""

    def __init__(self, look: Callable[[], T], now_ms: Callable[[], int]) -> None:
        self._look = look
        self._now_ms = now_ms
        self._next_ms = 0
        self._found: list[T] = []

    def value(self) -> T:
        """Return the value as of the last look, which is at most PAUSE_MS ago."""
        now_ms = self._now_ms()
        if not self._found or now_ms >= self._next_ms:
            self._next_ms = now_ms + PAUSE_MS
            self._found = [self._look()]
        return self._found[0]


def is_wait_over(request: ddl.DdlRequest, table: TabletTable, *, is_closed: bool) -> bool:
    """Return True if the wanted state is reached, or if a later request has changed the goal.

    A tablet counts when its record is RUNNING and its leader reports, because from then on clients use it.
    """
    record = table.record
    if record.state is TableState.REMOVED:
        return is_closed
    match request:
        case ddl.AlterTable():
            return record.state is TableState.RUNNING
        case ddl.SetTableIntent(intent=TableIntent.DISABLED):
            return is_closed or record.intent is TableIntent.ENABLED
        case _:
            return not table.wants_open or table.led >= _wanted(table)


def progress_text(request: ddl.DdlRequest, table: TabletTable) -> str:
    """Return how far the table is from that state."""
    is_closing = isinstance(request, ddl.DeleteTable) or not table.wants_open
    if is_closing:
        return f"{table.serving} replicas of its tablets still take part"
    return f"{table.led} of {_wanted(table)} tablets are running"


def _wanted(table: TabletTable) -> int:
    """Return the number of tablets, also before the keeper knows all regions of a new table."""
    return max(table.tablets, table.record.regions)


class VoterCount(NamedTuple):
    """Number of a table's tablets, number of those with the wanted voters, and whether another number of voters is
    wanted."""

    total: int
    done: int
    is_outdated: bool


class CountProgress:
    """Number of a table's tablets that have exactly the number of voters in its record, and no other members."""

    def __init__(self, table: TableRecord, tablets: Callable[[], Iterable[Tablet]], now_ms: Callable[[], int]) -> None:
        """`tablets` returns the tablets of the table; `table` is the record with the wanted number."""
        self._table = table
        self._tablets = tablets
        self._known = Throttled(self._count, now_ms)

    def _count(self) -> VoterCount:
        total = done = 0
        is_outdated = False
        for tablet in self._tablets():
            members, record = tablet.record.members, tablet.table.record
            is_outdated = record.replication != self._table.replication
            total += 1
            done += len(members) == len(voters(members)) == self._table.replication
        return VoterCount(total, done, is_outdated)

    def is_reached(self) -> bool:
        """Return True if all tablets have this number of voters, or the table wants another number by now."""
        found = self._known.value()
        return found.is_outdated or found.done == found.total

    def words(self) -> str:
        """Return how far it is."""
        found = self._count()
        return f"{found.done} of {found.total} tablets have {self._table.replication} replicas"
