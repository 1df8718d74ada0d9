"""The clients' operations of a DDL stress run: random operations on tables, based on the results of each client.

Every client has names of its own; a few names are shared by all clients. Tables of either kind are created, altered,
renamed from one kind of name to the other, and deleted; names are reused.

Each operation has its own request id and is retried under this id until there is a definite result.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from coord.rpc.wire import Code
from regions import messages as ms
from regions.messages.ddl import AlterTable, CreateTable, DeleteTable
from regions.records.model import TableRecord
from regions.records.schema import AddColumn, ColumnSpec, ColumnType, DropColumn, Schema

T = TypeVar("T")

#: Names of each client, tables that it keeps at once, and names that all clients share.
OWN_NAMES: Final = 6
OWN_TABLES_MAX: Final = 4
SHARED_NAMES: Final = 3
KEY_COLUMN: Final = "id"


#: Codes after which the request is retried under the same id. Any other rejection is a result and must be right.
RETRIED_CODES: Final = frozenset(
    (ms.NOT_LEADER, ms.BUSY, ms.TIMED_OUT, Code.UNREACHABLE, Code.CONNECTION_LOST, Code.TIMEOUT)
)


class RandomSource(Protocol):
    """The random numbers that `OperationGenerator` needs."""

    def below(self, bound: int) -> int:
        """Return a number from 0 to `bound` - 1."""
        ...


class OperationKind(enum.StrEnum):
    """Kind of an operation."""

    CREATE = "create"
    ADD_COLUMN = "add column"
    DROP_COLUMN = "drop column"
    SET_TEXT = "replace schema"
    RENAME = "rename"
    DELETE = "delete"


class Operation(msgspec.Struct, frozen=True):
    """One operation of one client. `number` counts over all clients and is part of the request id."""

    number: int
    client: int
    kind: OperationKind
    request: CreateTable | AlterTable | DeleteTable


class OperationOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of an operation: the table after it, or a rejection. Neither: no result within the deadline."""

    table: TableRecord | None = None
    #: A code of `regions.messages`, and the message of the reply.
    code: str = ""
    error: str = ""

    @property
    def label(self) -> str:
        """Return "ok", the rejection's code, or "no result"; for counters."""
        return "ok" if self.table is not None else self.code or "no result"


def columns_of(record: TableRecord) -> tuple[str, ...] | None:
    """Return the names of the table's columns without the key, or None for a table without columns."""
    schema: Schema | str = record.schema
    if not isinstance(schema, Schema):
        return None
    return tuple(one.name for one in schema.columns if not one.key)


class OperationGenerator:
    """Draws the next operation of each client.

    `regions_max` limits the regions of a table. One request in four waits up to `wait_ms`. `kind` is the tables' kind.
    """

    def __init__(
        self, rng: RandomSource, prefix: str, *, regions_max: int = 4, wait_ms: int = 5_000, kind: str = ""
    ) -> None:
        self._rng = rng
        self._prefix = prefix
        self._regions_max = regions_max
        self._wait_ms = wait_ms
        self._kind = kind
        self._number = 0
        #: Each client's knowledge of the tables under its own names, and the common knowledge of the shared names.
        self._own: dict[int, dict[str, TableRecord]] = {}
        self._shared: dict[str, TableRecord] = {}

    def next(self, client: int) -> Operation:
        """Return the client's next operation."""
        own = self._own.setdefault(client, {})
        choices: list[tuple[int, Callable[[int], Operation | None]]] = [
            (3 if len(own) < OWN_TABLES_MAX else 0, self._create_own),
            (6 if own else 0, self._alter_own),
            (2 if own else 0, self._rename_own),
            (1 + len(own), self._delete_own),
            (2, self._create_shared),
            (3, self._alter_shared),
            (1, self._rename_shared),
            (1, self._delete_shared),
        ]
        while True:
            choice = self._pick_weighted(choices)
            found = choice(client)
            if found is not None:
                return found

    def finished(self, operation: Operation, outcome: OperationOutcome) -> None:
        """Update the tables that the client knows."""
        record = outcome.table
        if record is None:
            return
        own = self._own.setdefault(operation.client, {})
        for known in (own, self._shared):
            for name in [name for name, one in known.items() if one.table_id == record.table_id]:
                del known[name]
        if operation.kind is OperationKind.DELETE:
            return
        if self._is_shared(record.name):
            self._shared[record.name] = record
        elif record.name.startswith(f"{self._prefix}-{operation.client}-"):
            own[record.name] = record

    # --- names of one client ------------------------------------------------------------------------------------------

    def _create_own(self, client: int) -> Operation | None:
        name = self._free_name(client)
        return None if name is None else self._create(client, name, has_columns=self._rng.below(3) > 0)

    def _alter_own(self, client: int) -> Operation | None:
        table = self._pick_own(client)
        return None if table is None else self._alter(client, table, self._reference(table))

    def _rename_own(self, client: int) -> Operation | None:
        table = self._pick_own(client)
        if table is None:
            return None
        if columns_of(table) is not None and self._rng.below(4) == 0:
            name: str | None = self._shared_name()
        else:
            name = self._free_name(client)
        if name is None:
            return None
        return self._operation(client, OperationKind.RENAME, AlterTable(self._reference(table), name=name))

    def _delete_own(self, client: int) -> Operation | None:
        table = self._pick_own(client)
        return (
            None
            if table is None
            else self._operation(client, OperationKind.DELETE, DeleteTable(self._reference(table)))
        )

    def _pick_own(self, client: int) -> TableRecord | None:
        own = self._own.get(client)
        return self._pick(list(own.values())) if own else None

    def _free_name(self, client: int) -> str | None:
        taken = self._own.get(client, {})
        names = [f"{self._prefix}-{client}-{number}" for number in range(OWN_NAMES)]
        free = [name for name in names if name not in taken]
        return self._pick(free) if free else None

    # --- shared names: another client may be faster, so some operations are rejected ----------------------------------

    def _create_shared(self, client: int) -> Operation | None:
        return self._create(client, self._shared_name(), has_columns=True)

    def _alter_shared(self, client: int) -> Operation | None:
        name = self._shared_name()
        known = self._shared.get(name)
        if known is None:
            return self._add(client, name)
        return self._alter(client, known, name)

    def _rename_shared(self, client: int) -> Operation | None:
        name = self._free_name(client)
        if name is None or len(self._own.get(client, {})) >= OWN_TABLES_MAX:
            return None
        return self._operation(client, OperationKind.RENAME, AlterTable(self._shared_name(), name=name))

    def _delete_shared(self, client: int) -> Operation | None:
        return self._operation(client, OperationKind.DELETE, DeleteTable(self._shared_name()))

    def _shared_name(self) -> str:
        return f"{self._prefix}-all-{self._rng.below(SHARED_NAMES)}"

    def _is_shared(self, name: str) -> bool:
        return name.startswith(f"{self._prefix}-all-")

    # --- requests -----------------------------------------------------------------------------------------------------

    def _create(self, client: int, name: str, *, has_columns: bool) -> Operation:
        splits = [f"{number:04d}" for number in range(1, 1 + self._rng.below(self._regions_max))]
        columns = [ColumnSpec(KEY_COLUMN, ColumnType.INT64, key=True)] if has_columns else []
        return self._operation(
            client, OperationKind.CREATE, CreateTable(name, splits, columns=columns, kind=self._kind)
        )

    def _alter(self, client: int, table: TableRecord, reference: str) -> Operation:
        columns = columns_of(table)
        if columns is None:
            text = f"text {self._number}"
            return self._operation(client, OperationKind.SET_TEXT, AlterTable(reference, schema=text))
        if columns and self._rng.below(5) < 2:
            drop = DropColumn(self._pick(columns))
            return self._operation(client, OperationKind.DROP_COLUMN, AlterTable(reference, steps=[drop]))
        return self._add(client, reference)

    def _add(self, client: int, reference: str) -> Operation:
        # No other operation adds this name. A rejection because the column exists means that the add was applied twice.
        spec = ColumnSpec(f"c{self._number}", ColumnType.STRING, nullable=True)
        return self._operation(client, OperationKind.ADD_COLUMN, AlterTable(reference, steps=[AddColumn(spec)]))

    def _operation(
        self, client: int, kind: OperationKind, request: CreateTable | AlterTable | DeleteTable
    ) -> Operation:
        number = self._number
        self._number += 1
        wait_ms = self._wait_ms if self._rng.below(4) == 0 else 0
        named = msgspec.structs.replace(request, request_id=f"{self._prefix}.{number}", wait_ms=wait_ms)
        return Operation(number, client, kind, named)

    def _reference(self, table: TableRecord) -> str:
        """Return the table's name, or sometimes its id."""
        return table.table_id if self._rng.below(4) == 0 else table.name

    def _pick(self, among: Sequence[T]) -> T:
        return among[self._rng.below(len(among))]

    def _pick_weighted(self, choices: list[tuple[int, T]]) -> T:
        at = self._rng.below(sum(weight for weight, _ in choices))
        for weight, choice in choices:
            at -= weight
            if at < 0:
                return choice
        raise AssertionError("a number below the sum of the weights selects an choice")


__all__ = [
    "RETRIED_CODES",
    "Operation",
    "OperationGenerator",
    "OperationKind",
    "OperationOutcome",
    "RandomSource",
    "columns_of",
]
