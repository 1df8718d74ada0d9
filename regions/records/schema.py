"""Columns of a table, legal changes of columns, and versions of a schema (DD-07). Pure.

A column keeps its id for life. Renaming does not change the id, and dropping retires it: a column added later under a
former name is a different column. `next_column_id` only grows.

    table without columns: `Schema` absent; `schema` is a text of the table's owner, or ""
    table with columns:    key columns first, at least one; never null; added and dropped only with the table

`evolve` applies all steps of one alteration, or none.
"""

from __future__ import annotations

import base64
import binascii
import enum
import math
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

COLUMNS_MAX: Final = 300
COLUMN_NAME_MAX: Final = 256
DEFAULT_MAX: Final = 4096


class ColumnType(enum.StrEnum):
    """Type of a column's values."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BINARY = "binary"  #: a default is written in base64
    TIMESTAMP = "timestamp"  #: microseconds since 1970


#: Types whose values compare by equality and have the same order on every machine.
KEY_TYPES: Final = frozenset(ColumnType) - {ColumnType.BOOL, ColumnType.FLOAT, ColumnType.DOUBLE}
#: Bits of the types whose values are integers.
INT_BITS: Final = {
    ColumnType.INT8: 8,
    ColumnType.INT16: 16,
    ColumnType.INT32: 32,
    ColumnType.INT64: 64,
    ColumnType.TIMESTAMP: 64,
}


class ColumnSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column in a request.

    `default` is the text of a value: for rows older than the column, and for writes that do not name the column.
    """

    name: str
    type: ColumnType
    key: bool = False
    nullable: bool = False
    default: str | None = None


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column of a table."""

    id: int
    name: str
    type: ColumnType
    key: bool = False
    nullable: bool = False
    default: str | None = None


class Schema(msgspec.Struct, frozen=True, omit_defaults=True):
    """Columns of a table, key columns first. Ids are never reused: all ids below `next_column_id` are assigned."""

    columns: tuple[Column, ...]
    next_column_id: int

    def column(self, name: str) -> Column | None:
        """Return the column of that name."""
        return next((one for one in self.columns if one.name == name), None)


class AddColumn(msgspec.Struct, frozen=True, tag=True):
    """Add a column after all others."""

    column: ColumnSpec


class DropColumn(msgspec.Struct, frozen=True, tag=True):
    """Drop a column that is not part of the key."""

    name: str


class RenameColumn(msgspec.Struct, frozen=True, tag=True):
    """Rename a column, key or not. Its id does not change."""

    name: str
    new_name: str


SchemaStep = AddColumn | DropColumn | RenameColumn


def create(specs: Sequence[ColumnSpec]) -> Schema:
    """Return the first schema of a table. Raise ValueError with the column and its error."""
    if not any(one.key for one in specs):
        raise ValueError("a table with columns needs at least one key column: NAME:TYPE:key")
    seen_other = ""
    for spec in specs:
        if not spec.key:
            seen_other = spec.name
        elif seen_other:
            raise ValueError(f"key column {spec.name!r} comes after {seen_other!r}: key columns come first")
    schema = Schema((), 0)
    for spec in specs:
        schema = _add(schema, spec)
    return schema


def evolve(schema: Schema, steps: Sequence[SchemaStep]) -> Schema:
    """Return `schema` after `steps`, in order. Raise ValueError for the first step that is not possible."""
    for step in steps:
        if isinstance(step, AddColumn):
            if step.column.key:
                raise ValueError(f"column {step.column.name!r}: key columns are fixed when a table is created")
            if not step.column.nullable and step.column.default is None:
                raise ValueError(
                    f"column {step.column.name!r} is required and has no default: rows that exist would have no value"
                )
            schema = _add(schema, step.column)
        elif isinstance(step, DropColumn):
            column = _find(schema, step.name)
            if column.key:
                raise ValueError(f"column {step.name!r} is part of the key: it cannot be dropped")
            schema = Schema(tuple(one for one in schema.columns if one is not column), schema.next_column_id)
        else:
            schema = _rename(schema, step)
    return schema


def check_restored(schema: Schema) -> None:
    """Check a schema that comes from a backup. Raise ValueError with the column and its error."""
    rebuilt = Schema((), 0)
    for column in schema.columns:
        rebuilt = _add(rebuilt, ColumnSpec(column.name, column.type, column.key, column.nullable, column.default))
    ids = [one.id for one in schema.columns]
    if len(set(ids)) < len(ids) or any(not 0 <= one < schema.next_column_id for one in ids):
        raise ValueError(f"the ids of the columns are not different ones below {schema.next_column_id}")
    keys = [one.key for one in schema.columns]
    if not any(keys) or keys != sorted(keys, reverse=True):
        raise ValueError("a schema begins with its key columns, at least one")


def _find(schema: Schema, name: str) -> Column:
    found = schema.column(name)
    if found is None:
        raise ValueError(f"there is no column {name!r}; there are {', '.join(one.name for one in schema.columns)}")
    return found


def _add(schema: Schema, spec: ColumnSpec) -> Schema:
    _check_name(schema, spec.name)
    if len(schema.columns) >= COLUMNS_MAX:
        raise ValueError(f"column {spec.name!r} is one too many: a table has at most {COLUMNS_MAX}")
    if spec.key and spec.nullable:
        raise ValueError(f"key column {spec.name!r} cannot be null")
    if spec.key and spec.type not in KEY_TYPES:
        kinds = ", ".join(sorted(KEY_TYPES))
        raise ValueError(f"key column {spec.name!r} cannot be of type {spec.type}; possible are {kinds}")
    if spec.default is not None:
        _check_default(spec)
    number = schema.next_column_id
    column = Column(number, spec.name, spec.type, spec.key, spec.nullable, spec.default)
    return Schema((*schema.columns, column), number + 1)


def _rename(schema: Schema, step: RenameColumn) -> Schema:
    column = _find(schema, step.name)
    if step.new_name == step.name:
        raise ValueError(f"column {step.name!r} has that name already")
    _check_name(schema, step.new_name)
    renamed = msgspec.structs.replace(column, name=step.new_name)
    return Schema(tuple(renamed if one is column else one for one in schema.columns), schema.next_column_id)


def _check_name(schema: Schema, name: str) -> None:
    if not 1 <= len(name) <= COLUMN_NAME_MAX:
        raise ValueError(f"a column name has 1 to {COLUMN_NAME_MAX} characters, this one {len(name)}")
    if not name.isprintable() or ":" in name or name != name.strip():
        raise ValueError(f"column name {name!r} has a colon, a blank at an end, or a character that cannot be shown")
    if schema.column(name) is not None:
        raise ValueError(f"there is a column {name!r} already")


def _check_default(spec: ColumnSpec) -> None:
    text = spec.default or ""
    if len(text) > DEFAULT_MAX:
        raise ValueError(f"column {spec.name!r}: a default has at most {DEFAULT_MAX} characters")
    try:
        fits = _is_value(spec.type, text)
    except (ValueError, binascii.Error, OverflowError):
        fits = False
    if not fits:
        raise ValueError(f"column {spec.name!r}: {text!r} is no value of type {spec.type}")


def _is_value(kind: ColumnType, text: str) -> bool:
    """Return True if `text` is a value of that type. Some other texts raise ValueError instead."""
    bits = INT_BITS.get(kind)
    if bits is not None:
        return -(1 << (bits - 1)) <= int(text) < 1 << (bits - 1)
    if kind is ColumnType.BOOL:
        return text in ("true", "false")
    if kind in (ColumnType.FLOAT, ColumnType.DOUBLE):
        if kind is ColumnType.FLOAT:
            struct.pack("<f", float(text))  # raises OverflowError for a number beyond 32 bits
        return math.isfinite(float(text))
    if kind is ColumnType.BINARY:
        base64.b64decode(text, validate=True)
    return True


def parse_column(text: str) -> ColumnSpec:
    """Parse a column as users write it: `NAME:TYPE[:key][:nullable|:required][:default=VALUE]`.

    A column that is not part of the key is nullable unless it is `required`. Raise ValueError for anything else.
    """
    head, mark, default = text.partition(":default=")
    name, _, rest = head.partition(":")
    kind, *words = rest.split(":")
    try:
        column_type = ColumnType(kind.lower())
    except ValueError:
        kinds = ", ".join(ColumnType)
        raise ValueError(f"column {text!r}: {kind!r} is no type; write NAME:TYPE with one of {kinds}") from None
    unknown = [word for word in words if word not in ("key", "nullable", "required")]
    if unknown:
        raise ValueError(f"column {text!r}: {unknown[0]!r} is none of key, nullable, required, default=VALUE")
    if "nullable" in words and "required" in words:
        raise ValueError(f"column {text!r} is both nullable and required")
    is_key = "key" in words
    nullable = "nullable" in words or not (is_key or "required" in words)
    return ColumnSpec(name, column_type, is_key, nullable, default if mark else None)


def describe_column(column: Column) -> str:
    """Return the full text of a column, as `parse_column` reads it."""
    kind = "key" if column.key else "nullable" if column.nullable else "required"
    default = "" if column.default is None else f":default={column.default}"
    return f"{column.name}:{column.type}:{kind}{default}"


__all__ = [
    "COLUMNS_MAX",
    "INT_BITS",
    "AddColumn",
    "Column",
    "ColumnSpec",
    "ColumnType",
    "DropColumn",
    "RenameColumn",
    "Schema",
    "SchemaStep",
    "check_restored",
    "create",
    "describe_column",
    "evolve",
    "parse_column",
]
