"""Deleted tables until their rows are removed: undelete, grace period, purge (DD-06). Pure.

A deleted table's record has the time of the deletion and the time from which its rows may be removed:

    REMOVED, closed          `undelete` restores the table; the rows are untouched
    REMOVED, purging_ms set  servers remove the rows; the table cannot be restored
    REMOVED, purged_ms set   the rows are removed
    no record                the table's id is among the forgotten ones, and is never used again

Both `purging_ms` and an undelete are written by compare-and-set, so only one of the two happens. No master ever clears
`purging_ms`: a server that has read a record with it, even an old copy, may remove the rows.
"""

from __future__ import annotations

import msgspec

from regions.records.members import ConfigId, Storage
from regions.records.model import RegionRecord, TableRecord, TableState, TabletState
from regions.transitions.table_states import table_after


def deleted(former: TableRecord, now_ms: int, grace_ms: int) -> TableRecord:
    """Return the record of a table deleted now, whose rows are kept for `grace_ms`. Raise InvalidTableStep."""
    state = table_after(former.state, "delete", subject=former.name)
    assert state is not None, "a deleted table keeps its record"
    return msgspec.structs.replace(former, state=state, removed_ms=now_ms, purge_at_ms=now_ms + grace_ms)


def undeleted(former: TableRecord, name: str) -> TableRecord:
    """Return the record of a deleted table that is restored under `name`. Raise InvalidTableStep."""
    event = "undelete" if former.fully_applied_schema is None else "undelete altering"
    state = table_after(former.state, event, subject=former.name)
    assert state is not None, "an undeleted table has a state"
    return msgspec.structs.replace(former, name=name, state=state, removed_ms=0, purge_at_ms=0, finished_ms=0)


def undeleted_region(former: RegionRecord) -> RegionRecord:
    """Return the record of a region of a restored table: RUNNING if it has ever been open, else PREPARING."""
    if former.state is not TabletState.DELETED:
        return former
    was_opened = any(one.was_opened for one in former.replicas)
    return msgspec.structs.replace(former, state=TabletState.RUNNING if was_opened else TabletState.PREPARING)


def is_awaiting_purge(table: TableRecord) -> bool:
    """Return True for a deleted table whose regions are closed and whose rows have not been removed."""
    return table.state is TableState.REMOVED and table.finished_ms > 0 and not table.purged_ms


def is_forgettable(table: TableRecord) -> bool:
    """Return True for a deleted table that nothing can restore: its rows have been removed."""
    return table.state is TableState.REMOVED and table.purged_ms > 0


def remains(table_id: str, region_id: str, purged_ms: int, config_id: ConfigId) -> tuple[TableRecord, RegionRecord]:
    """Return the remaining facts about a tablet whose table was deleted, purged and forgotten; `config_id` is the
    reported one."""
    table = TableRecord(
        table_id, table_id, state=TableState.REMOVED, finished_ms=purged_ms, purging_ms=purged_ms, purged_ms=purged_ms,
        storage=Storage.TABLET,
    )  # fmt: skip
    region = RegionRecord(
        table_id, region_id, state=TabletState.DELETED, config_term=config_id.term, config_index=config_id.index
    )
    return table, region


def objection_to_undelete(table: TableRecord) -> str:
    """Return why the table cannot be restored, "" if it can."""
    if table.state is not TableState.REMOVED:
        return f"table {table.name} ({table.table_id}) is not deleted"
    if table.purged_ms:
        return f"the rows of table {table.name} ({table.table_id}) have been removed"
    if table.purging_ms:
        return f"the rows of table {table.name} ({table.table_id}) are being removed"
    return ""


def objection_to_purge(table: TableRecord) -> str:
    """Return why the rows of the table must not be removed, "" if they may."""
    if table.state is not TableState.REMOVED:
        return f"table {table.name} ({table.table_id}) is {table.state.value}"
    if not table.finished_ms:
        return f"regions of table {table.name} ({table.table_id}) may be open"
    if not table.purging_ms:
        return f"table {table.name} ({table.table_id}) may still be restored"
    return ""


__all__ = [
    "deleted",
    "is_awaiting_purge",
    "objection_to_purge",
    "objection_to_undelete",
    "undeleted",
    "undeleted_region",
]
