"""What the clients of a storm were told, and what follows from it: the model that the catalogue must equal (TS-04).

Every operation is noted with the moment it was first asked and the moment its result came. From the results alone the
life of each table can be told again: a create names the table's id, each alteration the version of the schema that it
has made, a delete ends it. So the order of what was done to one table is known exactly, whoever did it, and everything
can be checked:

- each operation has a definite result, within its deadline;
- no version is missing or there twice, and each result shows what its alteration makes of the version before;
- nothing is done to a table that is deleted; no two tables have a name at the same time;
- each refusal was right at some moment between question and answer. A refusal because of what the same request did
  itself, at an attempt whose answer was lost, is none.

Times are on one clock, in any unit.
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

#: What a table looks like from outside: its name, and its columns or its owner's text.
Form = tuple[str, tuple[str, ...] | str]


class Deed(msgspec.Struct):
    """One operation, when it was asked, and what became of it when."""

    operation: Operation
    asked: float
    ended: float = FOREVER
    outcome: OperationOutcome = OperationOutcome()

    @property
    def request(self) -> CreateTable | AlterTable | DeleteTable:
        """What was asked."""
        return self.operation.request

    @property
    def is_unanswered(self) -> bool:
        """Nobody knows what became of it."""
        return self.outcome.table is None and not self.outcome.code

    def __str__(self) -> str:
        target = self.request.name if isinstance(self.request, CreateTable) else self.request.table
        return f"{self.operation.kind.value} {target} ({self.request.request_id}: {self.outcome.word})"


class NameHolding(msgspec.Struct, frozen=True):
    """A table had a name: at the latest from `sure_from` to `sure_until`, at the most from `perhaps_from` on."""

    table_id: str
    perhaps_from: float
    sure_from: float
    sure_until: float
    perhaps_until: float


class Life(msgspec.Struct):
    """One table, as its operations tell it."""

    table_id: str
    created: Deed | None = None
    #: Alterations in the order of the versions that they made.
    altered: list[Deed] = []
    deleted: Deed | None = None

    def forms(self) -> list[Form]:
        """How it looked, from its creation on: one form more than it was altered. Empty for a table nobody created."""
        if self.created is None or not isinstance(self.created.request, CreateTable):
            return []
        request = self.created.request
        first = tuple(one.name for one in request.columns if not one.key) if request.columns else request.schema
        found: list[Form] = [(request.name, first)]
        for deed in self.altered:
            found.append(changed(found[-1], deed.request))
        return found


def changed(form: Form, request: CreateTable | AlterTable | DeleteTable) -> Form:
    """What an alteration makes of a table."""
    name, schema = form
    if not isinstance(request, AlterTable):
        return form
    if request.schema is not None:
        schema = request.schema
    for step in request.steps:
        assert not isinstance(schema, str), "steps are for tables with columns"
        if isinstance(step, AddColumn):
            schema = (*schema, step.column.name)
        elif isinstance(step, DropColumn):
            schema = tuple(one for one in schema if one != step.name)
    return request.name or name, schema


def form_of(record: TableRecord) -> Form:
    """What a record says."""
    columns = columns_of(record)
    return record.name, str(record.schema) if columns is None else columns


class Ledger:
    """All operations of a storm."""

    def __init__(self) -> None:
        self.deeds: list[Deed] = []
        self._open: dict[int, Deed] = {}

    def asked(self, operation: Operation, now: float) -> None:
        """A client is about to ask this for the first time."""
        deed = Deed(operation, now)
        self.deeds.append(deed)
        self._open[operation.number] = deed

    def ended(self, operation: Operation, outcome: OperationOutcome, now: float) -> None:
        """It has its result, or has given up."""
        deed = self._open.pop(operation.number)
        deed.outcome = outcome
        if not deed.is_unanswered:
            deed.ended = now

    # --- what was done ------------------------------------------------------------------------------------------------

    def lives(self) -> dict[str, Life]:
        """Every table that was acknowledged to anybody, by id."""
        found: dict[str, Life] = {}
        for deed in self.deeds:
            record = deed.outcome.table
            if record is None:
                continue
            life = found.setdefault(record.table_id, Life(record.table_id))
            if isinstance(deed.request, AlterTable):
                life.altered.append(deed)
            elif isinstance(deed.request, CreateTable):
                life.created = life.created or deed
            else:
                life.deleted = life.deleted or deed
        for life in found.values():
            life.altered.sort(key=_version)
        return found

    def in_doubt(self) -> set[str]:
        """Names and ids that an unanswered operation may have changed: nothing is said about them."""
        found: set[str] = set()
        for deed in self.deeds:
            if deed.is_unanswered:
                found |= _mentioned(deed.request)
        return found

    # --- what cannot be -----------------------------------------------------------------------------------------------

    def unanswered(self) -> list[str]:
        """Operations without a definite result."""
        return [str(deed) for deed in self.deeds if deed.is_unanswered]

    def contradictions(self) -> list[str]:
        """Results that cannot all be true."""
        lives = self.lives()
        doubt = self.in_doubt()
        found = list(self._created_twice())
        for life in lives.values():
            found += _breaches_of(life, bool(({life.table_id} | names_of(life)) & doubt))
        return found + list(_names_shared(lives.values()))

    def _created_twice(self) -> Iterator[str]:
        first: dict[tuple[str, type], Deed] = {}
        for deed in self.deeds:
            record = deed.outcome.table
            if record is None or isinstance(deed.request, AlterTable):
                continue
            other = first.setdefault((record.table_id, type(deed.request)), deed)
            if other is not deed:
                yield f"both {other} and {deed} were told that they did it to table {record.table_id}"

    def wrong_refusals(self) -> list[str]:
        """Refusals that were right at no moment between question and answer."""
        holds = self._holds()
        lives = self.lives()
        doubt = self.in_doubt()
        found = []
        for deed in self.deeds:
            if deed.outcome.code and not _mentioned(deed.request) & doubt:
                why = _wrong(deed, holds, lives)
                if why:
                    found.append(f"{deed}: {why}; it was told: {deed.outcome.error}")
        return found

    def _holds(self) -> dict[str, list[NameHolding]]:
        """Who had which name when."""
        found: dict[str, list[NameHolding]] = {}
        for life in self.lives().values():
            for name, hold in _holds_of(life):
                found.setdefault(name, []).append(hold)
        return found


def _version(deed: Deed) -> int:
    return deed.outcome.table.schema_version if deed.outcome.table is not None else -1


def _mentioned(request: CreateTable | AlterTable | DeleteTable) -> set[str]:
    if isinstance(request, CreateTable):
        return {request.name}
    if isinstance(request, AlterTable) and request.name:
        return {request.table, request.name}
    return {request.table}


def names_of(life: Life) -> set[str]:
    """All that it was ever called, also by operations on a table whose beginning nobody was told of."""
    deeds = [*life.altered, *([] if life.deleted is None else [life.deleted])]
    return {name for name, _ in life.forms()}.union(*(_mentioned(deed.request) for deed in deeds))


def _breaches_of(life: Life, is_in_doubt: bool) -> list[str]:
    """What is wrong with one table's life."""
    if life.created is None:
        if is_in_doubt:
            return []
        deed = next(iter(life.altered), life.deleted)
        return [f"{deed} was done to table {life.table_id}, which nobody was told that it was created"]
    found = []
    forms = life.forms()
    expected = list(range(1, len(life.altered) + 1))
    versions = [_version(deed) for deed in life.altered]
    if versions != expected and not is_in_doubt:
        made = ", ".join(str(deed) for deed in life.altered)
        found.append(f"table {life.table_id} was altered to the versions {versions}, not {expected}: {made}")
    elif not is_in_doubt:
        found += _misread(life, forms)
    for deed in life.altered:
        if life.deleted is not None and deed.asked > life.deleted.ended:
            found.append(f"{deed} was done to table {life.table_id}, which had been deleted before it was asked")
        if deed.ended < life.created.asked:
            found.append(f"{deed} was done to table {life.table_id} before that was created")
    return found


def _misread(life: Life, forms: list[Form]) -> Iterator[str]:
    """Results that do not show what the operation makes of the version before; operations that hit the wrong table."""
    steps: list[tuple[Deed, Form, Form]] = []
    assert life.created is not None, "only tables that were created have forms"
    steps.append((life.created, forms[0], forms[0]))
    steps += [(deed, forms[at], forms[at + 1]) for at, deed in enumerate(life.altered)]
    if life.deleted is not None:
        steps.append((life.deleted, forms[-1], forms[-1]))
    for deed, before, after in steps:
        record = deed.outcome.table
        assert record is not None, f"{deed} is part of a life"
        if form_of(record) != after:
            yield f"{deed} shows {form_of(record)} as version {record.schema_version} of table, which must be {after}"
        request = deed.request
        if not isinstance(request, CreateTable) and request.table not in (before[0], life.table_id):
            yield f"{deed} was done to a table whose name was {before[0]}"
        is_deleted = life.deleted is not None and life.deleted.asked < deed.ended
        if isinstance(request, DeleteTable) != (record.state is TableState.REMOVED) and not is_deleted:
            yield f"{deed} shows the table as {record.state.value}"


def _holds_of(life: Life) -> Iterator[tuple[str, NameHolding]]:
    if life.created is None:
        return
    forms = life.forms()
    taking = life.created
    for at, deed in enumerate([*life.altered, life.deleted]):
        name = forms[at][0]
        is_last = at == len(life.altered)
        if not is_last and forms[at + 1][0] == name:
            continue
        until = (FOREVER, FOREVER) if deed is None else (deed.asked, deed.ended)
        yield name, NameHolding(life.table_id, taking.asked, taking.ended, *until)
        if deed is not None:
            taking = deed


def _names_shared(lives: Iterable[Life]) -> Iterator[str]:
    """Two tables that had one name at the same time."""
    by_name: dict[str, list[NameHolding]] = {}
    for life in lives:
        for name, hold in _holds_of(life):
            if hold.sure_from < hold.sure_until:
                by_name.setdefault(name, []).append(hold)
    for name, holds in by_name.items():
        holds.sort(key=lambda one: one.sure_from)
        latest = holds[0]
        for hold in holds[1:]:
            if hold.sure_from < latest.sure_until and hold.table_id != latest.table_id:
                yield f"the name {name} was that of table {latest.table_id} and of table {hold.table_id} at once"
            latest = max(latest, hold, key=lambda one: one.sure_until)


def _wrong(deed: Deed, holds: dict[str, list[NameHolding]], lives: dict[str, Life]) -> str:
    """Why a refusal is not right; empty if it is."""
    request, code = deed.request, deed.outcome.code
    if code == ms.ALREADY_EXISTS and not isinstance(request, DeleteTable):
        taken = [
            one
            for one in holds.get(request.name, [])
            if one.perhaps_from < deed.ended and one.perhaps_until > deed.asked
        ]
        return "" if taken else "nobody had that name meanwhile"
    if isinstance(request, CreateTable):
        return "nothing stood against it"
    there = _sure(deed, request.table, holds, lives)
    if code == ms.NOT_FOUND:
        return "" if there is None else f"table {there.table_id} was there all the time"
    if code == ms.BAD_REQUEST and isinstance(request, AlterTable):
        drops = [one.name for one in request.steps if isinstance(one, DropColumn)]
        if drops and not (there is not None and _column_sure(there, drops[0], deed)):
            return ""
    return "nothing stood against it"


def _sure(deed: Deed, reference: str, holds: dict[str, list[NameHolding]], lives: dict[str, Life]) -> Life | None:
    """The table that `reference` meant from question to answer without a doubt."""
    life = lives.get(reference)
    if life is not None:
        is_there = life.created is not None and life.created.ended <= deed.asked
        return life if is_there and (life.deleted is None or life.deleted.asked >= deed.ended) else None
    for hold in holds.get(reference, []):
        if hold.sure_from <= deed.asked and hold.sure_until >= deed.ended:
            return lives[hold.table_id]
    return None


def _column_sure(life: Life, column: str, deed: Deed) -> bool:
    """Whether the table had that column from question to answer without a doubt."""
    is_there = False
    for other in life.altered:
        for step in other.request.steps if isinstance(other.request, AlterTable) else ():
            if isinstance(step, AddColumn) and step.column.name == column:
                is_there = other.ended <= deed.asked
            elif isinstance(step, DropColumn) and step.name == column and other.asked < deed.ended:
                return False
    return is_there


__all__ = ["Deed", "Form", "Ledger", "Life", "form_of", "names_of"]
