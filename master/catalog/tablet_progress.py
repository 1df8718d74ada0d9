"""When a request about a table of tablets has been carried out, and how far it is. Pure."""

from __future__ import annotations

from regions.messages import ddl
from regions.records.model import TableIntent, TableState
from regions.replication.tablet import TabletTable


def is_wait_over(request: ddl.DdlRequest, table: TabletTable, *, is_closed: bool) -> bool:
    """Return True if the state that the caller waits for is reached, or if a later request has changed the goal.

    A tablet is counted when its record says RUNNING and its leader reports: from then on clients use it.
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
