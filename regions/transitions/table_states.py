"""States of tables and of their regions in the catalog (S0 Appendix B, DD-01 to DD-07, X12), as data.

    table   (none) -> PREPARING -> RUNNING <-> ALTERING -> REMOVED
    region  (none) -> PREPARING -> CREATING -> RUNNING -> DELETED
                                       \\-> REPLACED <-/

The states of a *transition*, which opens or closes a region, are separate (`regions/transitions/states.py`).

Which record is written when:

- A table is PREPARING while its creator holds its name; nothing of the table is visible then. Its record is first
  written as RUNNING, by the write that makes the table exist.
- A region's record is written as PREPARING in the same write. It counts as CREATING once a server has been chosen. The
  choice is in the store as the region's transition, so the record is not written again.
- The server that opens the region first writes RUNNING together with the location.
- A region that replaces a split region, or two merged ones, is RUNNING from its first write on: it has rows. The former
  regions are REPLACED in the same write.
- A region is DELETED once its table is REMOVED: one write for any number of regions. The region's own record becomes
  DELETED only in the write that removes its location, or in the write that marks the table as finished.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from coord import errors
from regions.records.model import RegionRecord, TableRecord, TableState, TabletState


class TableStep(NamedTuple):
    """A legal step of a table. None means that the table does not exist."""

    rows: str
    before: TableState | None
    event: str
    after: TableState | None


class TabletStep(NamedTuple):
    """A legal step of a region's record. None means that the record does not exist."""

    rows: str
    before: TabletState | None
    event: str
    after: TabletState


_T: Final = TableState
_R: Final = TabletState

# fmt: off
TABLE_STEPS: Final[tuple[TableStep, ...]] = (
    #         rows           before        event              after
    TableStep("DD-01",       None,         "create",          _T.PREPARING),
    TableStep("DD-01 OC-05", _T.PREPARING, "not written",     None),
    TableStep("DD-01 OC-08", _T.PREPARING, "written",         _T.RUNNING),
    TableStep("DD-07",       _T.RUNNING,   "alter",           _T.ALTERING),
    TableStep("DD-07",       _T.ALTERING,  "alter",           _T.ALTERING),
    TableStep("DD-07 HB-15", _T.ALTERING,  "all regions say", _T.RUNNING),
    TableStep("ED-01 FW-04", _T.RUNNING,   "intent",          _T.RUNNING),
    TableStep("ED-01 FW-04", _T.ALTERING,  "intent",          _T.ALTERING),
    TableStep("DD-06",       _T.RUNNING,   "delete",          _T.REMOVED),
    TableStep("DD-06",       _T.ALTERING,  "delete",          _T.REMOVED),
    TableStep("DD-06 MD-06", _T.REMOVED,   "all closed",      _T.REMOVED),
    TableStep("DD-06",       _T.REMOVED,   "undelete",        _T.RUNNING),
    TableStep("DD-06",       _T.REMOVED,   "undelete altering", _T.ALTERING),
    TableStep("DD-06",       _T.REMOVED,   "rows removed",    _T.REMOVED),
)
TABLET_STEPS: Final[tuple[TabletStep, ...]] = (
    TabletStep("DD-01",       None,         "table created",    _R.PREPARING),
    TabletStep("DD-03",       None,         "takes a place",    _R.PREPARING),
    TabletStep("X11",         None,         "takes over rows",  _R.RUNNING),
    TabletStep("X11",         _R.RUNNING,   "split or merged",  _R.REPLACED),
    TabletStep("DD-03",       _R.PREPARING, "server chosen",    _R.CREATING),
    TabletStep("DD-05",       _R.PREPARING, "opened",           _R.RUNNING),
    TabletStep("DD-05",       _R.CREATING,  "opened",           _R.RUNNING),
    TabletStep("DD-03 DD-04", _R.PREPARING, "not created",      _R.REPLACED),
    TabletStep("DD-03 DD-04", _R.CREATING,  "not created",      _R.REPLACED),
    TabletStep("DD-06",       _R.PREPARING, "table removed",    _R.DELETED),
    TabletStep("DD-06",       _R.CREATING,  "table removed",    _R.DELETED),
    TabletStep("DD-06",       _R.RUNNING,   "table removed",    _R.DELETED),
    TabletStep("DD-06",       _R.DELETED,   "undelete, was opened", _R.RUNNING),
    TabletStep("DD-06",       _R.DELETED,   "undelete, never opened", _R.PREPARING),
)
# fmt: on

#: Precedes the generation in the id of a region that has replaced another one.
_MARK: Final = "r"

_TABLE: Final = {(step.before, step.event): step.after for step in TABLE_STEPS}
#: States of visible tables: they have a name, and can be read, altered and deleted.
VISIBLE: Final = (TableState.RUNNING, TableState.ALTERING)


class InvalidTableStep(errors.InvalidTransition):
    """Raised for a step that the table lacks. Nothing has been written."""


def table_after(before: TableState | None, event: str, *, subject: str) -> TableState | None:
    """Return the table's state after `event`.

    Raises:
        InvalidTableStep: the event is not legal in this state; `subject` is the table's name.
    """
    if (before, event) not in _TABLE:
        raise InvalidTableStep(f"table {subject}", "(none)" if before is None else before.value, event)
    return _TABLE[before, event]


def tablet_state(region: RegionRecord, table: TableRecord, *, in_transition: bool) -> TabletState:
    """Return a region's state as reported to clients; the module docstring says which record holds it."""
    if region.state is TabletState.REPLACED:
        return TabletState.REPLACED
    if table.state is TableState.REMOVED:
        return TabletState.DELETED
    if region.state is TabletState.PREPARING:
        if any(one.start_code is not None for one in region.replicas):
            return TabletState.RUNNING  # opened by a server of an older version
        return TabletState.CREATING if in_transition else TabletState.PREPARING
    return region.state


def successor(record: RegionRecord) -> RegionRecord:
    """Return the region that replaces one that could not be created: the next id, the same range."""
    generation = record.generation + 1
    stem = record.region_id[: -len(f"{_MARK}{record.generation}")] if record.generation else record.region_id
    return msgspec.structs.replace(
        record,
        region_id=f"{stem}{_MARK}{generation}",
        state=TabletState.PREPARING,
        replicas=(),
        replaces=record.region_id,
        generation=generation,
    )


def as_markdown() -> str:
    """Return both tables as a part of docs/transitions.md (`regions/transitions/diagrams.py`)."""
    lines = ["## Lives of tables and of their regions' records", ""]
    lines += [
        "From `regions/transitions/table_states.py`, which says what is written where.",
        "",
    ]
    for what, steps in (("table", TABLE_STEPS), ("region", TABLET_STEPS)):
        lines += [f"| rows | {what} from | event | to |", "| --- | --- | --- | --- |"]
        for step in steps:
            before = "(none)" if step.before is None else step.before.value
            after = "(none)" if step.after is None else step.after.value
            lines.append(f"| {step.rows} | {before} | {step.event} | {after} |")
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"
