"""Columns and their changes (DD-07), as tables of cases."""

from __future__ import annotations

import pytest

from regions.records import schema as sc
from regions.records.schema import AddColumn, ColumnSpec, ColumnType, DropColumn, RenameColumn, Schema, SchemaStep


def columns(*texts: str) -> list[ColumnSpec]:
    return [sc.parse_column(text) for text in texts]


def shown(schema: Schema) -> str:
    """Return `id=NAME:TYPE:...` of every column, and the next id."""
    found = [f"{one.id}={sc.describe_column(one)}" for one in schema.columns]
    return " ".join([*found, f"next={schema.next_column_id}"])


BASE = sc.create(columns("id:int64:key", "v:string"))


def test_a_table_gets_its_columns_with_ids_in_order() -> None:
    """Ids begin at 0; a column outside of the key may be null by default."""
    assert shown(BASE) == "0=id:int64:key 1=v:string:nullable next=2"


@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        ([AddColumn(*columns("w:int32"))], "0=id:int64:key 1=v:string:nullable 2=w:int32:nullable next=3"),
        ([DropColumn("v")], "0=id:int64:key next=2"),
        ([RenameColumn("v", "value")], "0=id:int64:key 1=value:string:nullable next=2"),
        ([RenameColumn("id", "key")], "0=key:int64:key 1=v:string:nullable next=2"),
        # A dropped id is never used again, and a name that is added again is a new column.
        ([DropColumn("v"), AddColumn(*columns("v:string"))], "0=id:int64:key 2=v:string:nullable next=3"),
        ([AddColumn(*columns("w:int8")), RenameColumn("w", "x"), DropColumn("x")],
         "0=id:int64:key 1=v:string:nullable next=3"),
        ([RenameColumn("v", "w"), AddColumn(*columns("v:bool:required:default=false"))],
         "0=id:int64:key 1=w:string:nullable 2=v:bool:required:default=false next=3"),
    ],
)  # fmt: skip
def test_evolution(steps: list[SchemaStep], outcome: str) -> None:
    """DD-07: ids stay, the next one only grows."""
    assert shown(sc.evolve(BASE, steps)) == outcome


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([AddColumn(*columns("v:int32"))], "there is a column 'v' already"),
        ([AddColumn(*columns("w:int32:required"))], "required and has no default"),
        ([AddColumn(*columns("w:int32:key"))], "key columns are fixed"),
        ([DropColumn("id")], "part of the key"),
        ([DropColumn("nix")], "no column 'nix'; there are id, v"),
        ([RenameColumn("nix", "x")], "no column 'nix'"),
        ([RenameColumn("v", "id")], "there is a column 'id' already"),
        ([RenameColumn("v", "v")], "has that name already"),
        ([RenameColumn("v", "")], "1 to 256 characters"),
        ([RenameColumn("v", "a:b")], "has a colon"),
        ([AddColumn(*columns("w:int32")), DropColumn("nix")], "no column 'nix'; there are id, v, w"),
        ([AddColumn(ColumnSpec("w", ColumnType.INT8, default="128", nullable=True))], "'128' is no value of type int8"),
    ],
)
def test_what_cannot_be_done(steps: list[SchemaStep], why: str) -> None:
    """The message names the column."""
    with pytest.raises(ValueError, match=why):
        sc.evolve(BASE, steps)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["v:string"], "at least one key column"),
        (["v:string", "id:int64:key"], "key columns come first"),
        (["id:double:key"], "cannot be of type double"),
        (["id:int64:key:nullable"], "cannot be null"),
        (["id:int64:key", "id:int64"], "already"),
        (["id"], "'' is no type"),
        (["id:long:key"], "'long' is no type; write NAME:TYPE"),
        (["id:int64:primary"], "'primary' is none of key"),
        (["id:int64:key", "v:int8:nullable:required"], "both nullable and required"),
        (["id:int64:key", *(f"c{number}:int8" for number in range(300))], "at most 300"),
    ],
)
def test_what_cannot_be_created(texts: list[str], why: str) -> None:
    """Common errors in columns on a command line."""
    with pytest.raises(ValueError, match=why):
        sc.create(columns(*texts))


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (ColumnType.INT64, "-9223372036854775808", "9223372036854775808"),
        (ColumnType.INT16, "32767", "x"),
        (ColumnType.BOOL, "true", "yes"),
        (ColumnType.DOUBLE, "1.5e3", "nan"),
        (ColumnType.BINARY, "AAE=", "A"),
        (ColumnType.TIMESTAMP, "0", "yesterday"),
        (ColumnType.STRING, "", None),
    ],
)
def test_defaults_are_values_of_their_type(kind: ColumnType, good: str, bad: str | None) -> None:
    """A default that no reader could parse is rejected at once."""
    sc.evolve(BASE, [AddColumn(ColumnSpec("w", kind, default=good))])
    if bad is not None:
        with pytest.raises(ValueError, match="is no value of type"):
            sc.evolve(BASE, [AddColumn(ColumnSpec("w", kind, default=bad))])


@pytest.mark.parametrize(
    "text", ["id:int64:key", "v:string:nullable", "w:int8:required:default=-1", "x:binary:required"]
)
def test_columns_are_written_as_they_are_read(text: str) -> None:
    """The output of `rk table show` is valid input of `rk table create`."""
    spec = sc.parse_column(text)
    assert sc.describe_column(sc.Column(0, spec.name, spec.type, spec.key, spec.nullable, spec.default)) == text
