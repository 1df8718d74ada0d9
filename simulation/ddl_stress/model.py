"""The results of a DDL stress run, and the expected catalog that follows from them (TS-04).

Every operation is logged with the time of its first request and the time of its result. The results alone determine the
history of each table: a create names the table's id, each alteration names its new schema version, a delete ends the
table. So the order of the operations on one table, from all clients, is known exactly, and these rules can be checked:

- each operation has a definite result within its deadline;
- no schema version is missing or occurs twice, and each result shows what its alteration makes of the version before;
- no operation succeeds on a deleted table; no two tables have the same name at the same time;
- each rejection was right at some moment between request and result. A request must not be rejected because of its own
  effect in an earlier attempt whose reply was lost.

Times are read from one clock, in any unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from regions import messages as ms
from regions.messages.ddl import AlterTable, CreateTable, DeleteTable
from regions.records.model import TableRecord, TableState
from regions.records.schema import AddColumn, DropColumn
from simulation.ddl_stress.operations import Operation, OperationOutcome, columns_of

FOREVER: Final = float("inf")

#: A table as clients see it: its name, and its columns or its owner's text.
Shape = tuple[str, tuple[str, ...] | str]


class LoggedOperation(msgspec.Struct):
    """An operation with the time of its first request, its result, and the time of the result."""

    operation: Operation
    asked: float
    ended: float = FOREVER
    outcome: OperationOutcome = OperationOutcome()

    @property
    def request(self) -> CreateTable | AlterTable | DeleteTable:
        """Return the operation's request."""
        return self.operation.request

    @property
    def is_unanswered(self) -> bool:
        """Return True if the operation's effect is unknown."""
        return self.outcome.table is None and not self.outcome.code

    def __str__(self) -> str:
        target = self.request.name if isinstance(self.request, CreateTable) else self.request.table
        return f"{self.operation.kind.value} {target} ({self.request.request_id}: {self.outcome.label})"


class NameInterval(msgspec.Struct, frozen=True):
    """The time during which a table had a name.

    The table had the name from `sure_from` to `sure_until`, and at no time before `perhaps_from` or after
    `perhaps_until`.
    """

    table_id: str
    perhaps_from: float
    sure_from: float
    sure_until: float
    perhaps_until: float


class TableHistory(msgspec.Struct):
    """One table, derived from its operations."""

    table_id: str
    created: LoggedOperation | None = None
    #: Alterations in the order of the schema versions that they made.
    altered: list[LoggedOperation] = []
    deleted: LoggedOperation | None = None

    def shapes(self) -> list[Shape]:
        """Return the table's shape after its creation and after each alteration, oldest first.

        Return an empty list if the creation is unknown.
        """
        if self.created is None or not isinstance(self.created.request, CreateTable):
            return []
        request = self.created.request
        first = tuple(one.name for one in request.columns if not one.key) if request.columns else request.schema
        found: list[Shape] = [(request.name, first)]
        for entry in self.altered:
            found.append(changed(found[-1], entry.request))
        return found


def changed(shape: Shape, request: CreateTable | AlterTable | DeleteTable) -> Shape:
    """Return the shape after a request."""
    name, schema = shape
    if not isinstance(request, AlterTable):
        return shape
    if request.schema is not None:
        schema = request.schema
    for step in request.steps:
        assert not isinstance(schema, str), "only tables with columns have schema steps"
        if isinstance(step, AddColumn):
            schema = (*schema, step.column.name)
        elif isinstance(step, DropColumn):
            schema = tuple(one for one in schema if one != step.name)
    return request.name or name, schema


def shape_of(record: TableRecord) -> Shape:
    """Return the shape that a record describes."""
    columns = columns_of(record)
    return record.name, str(record.schema) if columns is None else columns


class OperationLog:
    """All operations of a run."""

    def __init__(self) -> None:
        self.entries: list[LoggedOperation] = []
        self._running: dict[int, LoggedOperation] = {}

    def start(self, operation: Operation, now: float) -> None:
        """Add an operation at its first request."""
        entry = LoggedOperation(operation, now)
        self.entries.append(entry)
        self._running[operation.number] = entry

    def finish(self, operation: Operation, outcome: OperationOutcome, now: float) -> None:
        """Set the operation's result, or mark it as given up."""
        entry = self._running.pop(operation.number)
        entry.outcome = outcome
        if not entry.is_unanswered:
            entry.ended = now

    # --- what was done ------------------------------------------------------------------------------------------------

    def histories(self) -> dict[str, TableHistory]:
        """Return the history of every table that a result has named, by table id."""
        found: dict[str, TableHistory] = {}
        for entry in self.entries:
            record = entry.outcome.table
            if record is None:
                continue
            history = found.setdefault(record.table_id, TableHistory(record.table_id))
            if isinstance(entry.request, AlterTable):
                history.altered.append(entry)
            elif isinstance(entry.request, CreateTable):
                history.created = history.created or entry
            else:
                history.deleted = history.deleted or entry
        for history in found.values():
            history.altered.sort(key=_version)
        return found

    def uncertain(self) -> set[str]:
        """Return the names and ids that an unanswered operation may have changed; checks skip them."""
        found: set[str] = set()
        for entry in self.entries:
            if entry.is_unanswered:
                found |= _mentioned(entry.request)
        return found

    # --- contradictions -----------------------------------------------------------------------------------------------

    def unanswered(self) -> list[str]:
        """Return the operations without a definite result."""
        return [str(entry) for entry in self.entries if entry.is_unanswered]

    def contradictions(self) -> list[str]:
        """Describe results that cannot all be true."""
        histories = self.histories()
        uncertain = self.uncertain()
        found = list(self._created_twice())
        for history in histories.values():
            found += _problems_of(history, bool(({history.table_id} | names_of(history)) & uncertain))
        return found + list(_shared_names(histories.values()))

    def _created_twice(self) -> Iterator[str]:
        first: dict[tuple[str, type], LoggedOperation] = {}
        for entry in self.entries:
            record = entry.outcome.table
            if record is None or isinstance(entry.request, AlterTable):
                continue
            other = first.setdefault((record.table_id, type(entry.request)), entry)
            if other is not entry:
                yield f"both {other} and {entry} succeeded on table {record.table_id}"

    def wrong_rejections(self) -> list[str]:
        """Describe rejections that were right at no moment between request and result."""
        intervals = self._name_intervals()
        histories = self.histories()
        uncertain = self.uncertain()
        found = []
        for entry in self.entries:
            if entry.outcome.code and not _mentioned(entry.request) & uncertain:
                why = _why_wrong(entry, intervals, histories)
                if why:
                    found.append(f"{entry}: {why}; the reply was: {entry.outcome.error}")
        return found

    def _name_intervals(self) -> dict[str, list[NameInterval]]:
        """Return the intervals during which tables had each name."""
        found: dict[str, list[NameInterval]] = {}
        for history in self.histories().values():
            for name, interval in _intervals_of(history):
                found.setdefault(name, []).append(interval)
        return found


def _version(entry: LoggedOperation) -> int:
    return entry.outcome.table.schema_version if entry.outcome.table is not None else -1


def _mentioned(request: CreateTable | AlterTable | DeleteTable) -> set[str]:
    if isinstance(request, CreateTable):
        return {request.name}
    if isinstance(request, AlterTable) and request.name:
        return {request.table, request.name}
    return {request.table}


def names_of(history: TableHistory) -> set[str]:
    """Return every name that the table had, including names in operations on a table whose creation is unknown."""
    entries = [*history.altered, *([] if history.deleted is None else [history.deleted])]
    return {name for name, _ in history.shapes()}.union(*(_mentioned(entry.request) for entry in entries))


def _problems_of(history: TableHistory, is_uncertain: bool) -> list[str]:
    """Describe the faults of one table's history."""
    if history.created is None:
        if is_uncertain:
            return []
        entry = next(iter(history.altered), history.deleted)
        return [f"{entry} succeeded on table {history.table_id}, but no operation created the table"]
    found = []
    shapes = history.shapes()
    expected = list(range(1, len(history.altered) + 1))
    versions = [_version(entry) for entry in history.altered]
    if versions != expected and not is_uncertain:
        made = ", ".join(str(entry) for entry in history.altered)
        found.append(f"table {history.table_id} got the schema versions {versions}; expected {expected}: {made}")
    elif not is_uncertain:
        found += _wrong_results(history, shapes)
    for entry in history.altered:
        if history.deleted is not None and entry.asked > history.deleted.ended:
            found.append(f"{entry} succeeded on table {history.table_id}, which had been deleted before the request")
        if entry.ended < history.created.asked:
            found.append(f"{entry} succeeded on table {history.table_id} before the table was created")
    return found


def _wrong_results(history: TableHistory, shapes: list[Shape]) -> Iterator[str]:
    """Describe results that do not follow from the version before, and operations that changed the wrong table."""
    steps: list[tuple[LoggedOperation, Shape, Shape]] = []
    assert history.created is not None, "only tables that were created have shapes"
    steps.append((history.created, shapes[0], shapes[0]))
    steps += [(entry, shapes[at], shapes[at + 1]) for at, entry in enumerate(history.altered)]
    if history.deleted is not None:
        steps.append((history.deleted, shapes[-1], shapes[-1]))
    for entry, before, after in steps:
        record = entry.outcome.table
        assert record is not None, f"{entry} is in a table's history"
        if shape_of(record) != after:
            yield f"{entry} shows {shape_of(record)} as version {record.schema_version} of the table; expected {after}"
        request = entry.request
        if not isinstance(request, CreateTable) and request.table not in (before[0], history.table_id):
            yield f"{entry} changed a table whose name was {before[0]}"
        is_deleted = history.deleted is not None and history.deleted.asked < entry.ended
        if isinstance(request, DeleteTable) != (record.state is TableState.REMOVED) and not is_deleted:
            yield f"{entry} shows the table as {record.state.value}"


def _intervals_of(history: TableHistory) -> Iterator[tuple[str, NameInterval]]:
    if history.created is None:
        return
    shapes = history.shapes()
    taking = history.created
    for at, entry in enumerate([*history.altered, history.deleted]):
        name = shapes[at][0]
        is_last = at == len(history.altered)
        if not is_last and shapes[at + 1][0] == name:
            continue
        until = (FOREVER, FOREVER) if entry is None else (entry.asked, entry.ended)
        yield name, NameInterval(history.table_id, taking.asked, taking.ended, *until)
        if entry is not None:
            taking = entry


def _shared_names(histories: Iterable[TableHistory]) -> Iterator[str]:
    """Describe pairs of tables that had the same name at the same time."""
    by_name: dict[str, list[NameInterval]] = {}
    for history in histories:
        for name, interval in _intervals_of(history):
            if interval.sure_from < interval.sure_until:
                by_name.setdefault(name, []).append(interval)
    for name, intervals in by_name.items():
        intervals.sort(key=lambda one: one.sure_from)
        latest = intervals[0]
        for interval in intervals[1:]:
            if interval.sure_from < latest.sure_until and interval.table_id != latest.table_id:
                yield f"the name {name} belonged to the tables {latest.table_id} and {interval.table_id} at once"
            latest = max(latest, interval, key=lambda one: one.sure_until)


def _why_wrong(
    entry: LoggedOperation, intervals: dict[str, list[NameInterval]], histories: dict[str, TableHistory]
) -> str:
    """Return why a rejection is wrong, or "" if it is right."""
    request, code = entry.request, entry.outcome.code
    if code == ms.ALREADY_EXISTS and not isinstance(request, DeleteTable):
        taken = [
            one
            for one in intervals.get(request.name, [])
            if one.perhaps_from < entry.ended and one.perhaps_until > entry.asked
        ]
        return "" if taken else "no table had this name meanwhile"
    if isinstance(request, CreateTable):
        return "there was no reason for the rejection"
    there = _certain_table(entry, request.table, intervals, histories)
    if code == ms.NOT_FOUND:
        return "" if there is None else f"table {there.table_id} existed all the time"
    if code == ms.BAD_REQUEST and isinstance(request, AlterTable):
        drops = [one.name for one in request.steps if isinstance(one, DropColumn)]
        if drops and not (there is not None and _certainly_had(there, drops[0], entry)):
            return ""
    return "there was no reason for the rejection"


def _certain_table(
    entry: LoggedOperation, reference: str, intervals: dict[str, list[NameInterval]], histories: dict[str, TableHistory]
) -> TableHistory | None:
    """Return the table that `reference` certainly named from request to result, or None."""
    history = histories.get(reference)
    if history is not None:
        exists = history.created is not None and history.created.ended <= entry.asked
        return history if exists and (history.deleted is None or history.deleted.asked >= entry.ended) else None
    for interval in intervals.get(reference, []):
        if interval.sure_from <= entry.asked and interval.sure_until >= entry.ended:
            return histories[interval.table_id]
    return None


def _certainly_had(history: TableHistory, column: str, entry: LoggedOperation) -> bool:
    """Return True if the table certainly had the column from request to result."""
    exists = False
    for other in history.altered:
        for step in other.request.steps if isinstance(other.request, AlterTable) else ():
            if isinstance(step, AddColumn) and step.column.name == column:
                exists = other.ended <= entry.asked
            elif isinstance(step, DropColumn) and step.name == column and other.asked < entry.ended:
                return False
    return exists


__all__ = ["LoggedOperation", "OperationLog", "Shape", "TableHistory", "names_of", "shape_of"]
