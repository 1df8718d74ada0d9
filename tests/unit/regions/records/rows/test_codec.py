"""Encoding of rows: under one schema, under later versions of it, of bad input, and from the text that users write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regions.records import schema as sc
from regions.records.model import TableRecord
from regions.records.rows import words
from regions.records.rows.codec import MARK, NewerRowError, RowError, TypedTable
from regions.records.rows.values import default_of
from regions.records.schema import AddColumn, ColumnSpec, ColumnType, DropColumn, RenameColumn, Schema
from tests.unit.regions.records.rows.strategies import other_column, value_of

C = ColumnType


def typed(*columns: str, version: int = 0) -> TypedTable:
    return TypedTable("sales", sc.create([sc.parse_column(one) for one in columns]), version)


def later(table: TypedTable, *steps: sc.SchemaStep) -> TypedTable:
    return TypedTable(table.name, sc.evolve(table.schema, steps), table.version + 1)


SALES = typed("region:string:key", "id:int64:key", "amount:double", "note:string:required:default=none", version=3)
ROW = {"region": "eu", "id": 42, "amount": 2.5, "note": "x"}


# --- the form ---------------------------------------------------------------------------------------------------------


def test_the_bytes_of_a_row() -> None:
    """The bytes are on disks, so they must never change."""
    assert SALES.encode(ROW) == ("eu b42", b"\xc1" + msgspec.msgpack.encode([3, 2.5, "x"]))
    assert SALES.decode(*SALES.encode(ROW)) == ROW


def test_a_column_that_is_not_named_gets_its_default_or_null() -> None:
    assert SALES.decode(*SALES.encode({"region": "", "id": -1})) == {
        "region": "", "id": -1, "amount": None, "note": "none",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": 1}, "table 'sales': key column 'region' needs a value"),
        ({**ROW, "id": None}, "table 'sales': key column 'id' needs a value"),
        ({**ROW, "id": "5"}, "table 'sales', column 'id': '5' is no int64"),
        ({**ROW, "amount": "5"}, "table 'sales', row 'eu b42', column 'amount': '5' is no double"),
        ({**ROW, "note": None}, "table 'sales', row 'eu b42', column 'note': needs a value: it is required"),
        ({**ROW, "x": 1}, "table 'sales' has no column 'x'; its columns: region, id, amount, note"),
    ],
)
def test_rows_that_do_not_fit(row: dict[str, Any], message: str) -> None:
    with pytest.raises(RowError) as caught:
        SALES.encode(row)
    assert str(caught.value) == message


def test_a_required_column_without_default_must_be_given() -> None:
    with pytest.raises(RowError, match=r"row 'a1', column 'v': needs a value: it is required"):
        typed("id:int8:key", "v:string:required").encode({"id": 1})


def test_an_empty_key_is_refused() -> None:
    """No region can hold it; with another column the text is not empty."""
    for table in (typed("id:string:key"), typed("id:binary:key")):
        with pytest.raises(RowError, match="key column 'id' must not be empty"):
            table.encode({"id": "" if table.keys[0].type is C.STRING else b""})
    assert typed("a:string:key", "b:string:key").encode({"a": "", "b": ""}).key == " "


@pytest.mark.parametrize(
    "value",
    [b"", b"hello", b'{"id":1}', MARK, MARK + b"\x90", MARK + msgspec.msgpack.encode(["1", 2]),
     MARK + msgspec.msgpack.encode([-1]), MARK + msgspec.msgpack.encode([True]), MARK + msgspec.msgpack.encode({}),
     MARK + msgspec.msgpack.encode([3, 2.5, "x"])[:-1], MARK + b"\x92\x03\xa1\xff"],
)  # fmt: skip
def test_other_bytes_are_no_row(value: bytes) -> None:
    with pytest.raises(RowError, match=rf"table 'sales', row 'eu b42': its {len(value)} bytes were not written as col"):
        SALES.decode("eu b42", value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([3, 2.5, None], "column 'note': is required, but the row has no value for it"),
        ([3, "x", "x"], "column 'amount': the row has a str where the type is double"),
        ([3, 1, "x"], "column 'amount': the row has a int where the type is double"),
        ([3, 2.5, "x", 1], "it has more columns than its table ever had"),
    ],
)
def test_damaged_rows_are_refused(values: list[Any], message: str) -> None:
    with pytest.raises(RowError) as caught:
        SALES.decode("eu b42", MARK + msgspec.msgpack.encode(values))
    assert str(caught.value).startswith("table 'sales', row 'eu b42'")
    assert message in str(caught.value)


def test_a_foreign_key_is_refused() -> None:
    with pytest.raises(RowError, match="table 'sales', row 'eu 42': not a key of region:string, id:int64"):
        SALES.decode("eu 42", SALES.encode(ROW).value)


def test_an_integer_out_of_range_is_refused() -> None:
    table = typed("id:int8:key", "v:int8")
    with pytest.raises(RowError, match="column 'v': the row has a int where the type is int8"):
        table.decode("a1", MARK + msgspec.msgpack.encode([0, 128]))


# --- evolution --------------------------------------------------------------------------------------------------------


def test_a_row_of_an_earlier_version() -> None:
    """Added columns have their defaults, dropped ones are gone, a renamed one keeps its values."""
    key, value = SALES.encode(ROW)
    now = later(
        SALES,
        DropColumn("note"),
        RenameColumn("amount", "total"),
        AddColumn(sc.parse_column("note:int32:default=7")),  # another column than before
        AddColumn(sc.parse_column("extra:bool")),
    )
    assert now.decode(key, value) == {"region": "eu", "id": 42, "total": 2.5, "note": 7, "extra": None}
    rewritten = now.encode({"region": "eu", "id": 42, "note": None})
    assert now.decode(*rewritten) == {"region": "eu", "id": 42, "total": None, "note": None, "extra": None}


def test_a_row_of_a_later_version_is_not_misread() -> None:
    now = later(SALES, DropColumn("note"))
    with pytest.raises(NewerRowError, match="written under schema version 4; known is version 3") as caught:
        SALES.decode(*now.encode({"region": "eu", "id": 42}))
    assert caught.value.version == 4


class Model:
    """A table as its users see it: each row is a dict by column id, and every alteration changes all rows."""

    def __init__(self, table: TypedTable) -> None:
        self.table = table
        self.rows: dict[str, tuple[dict[int, Any], bytes]] = {}

    def put(self, row: dict[str, Any], table: TypedTable) -> None:
        """Write under `table`, which may be an earlier version."""
        key, value = table.encode(row)
        by_id = {one.id: row.get(one.name, default_of(one)) for one in table.schema.columns}
        for column in self.table.schema.columns:
            if column.id >= table.schema.next_column_id:
                by_id[column.id] = default_of(column)
        self.rows[key] = by_id, value

    def alter(self, *steps: sc.SchemaStep) -> None:
        self.table = later(self.table, *steps)
        for by_id, _ in self.rows.values():
            for column in self.table.schema.columns:
                by_id.setdefault(column.id, default_of(column))

    def check(self) -> None:
        for key, (by_id, value) in self.rows.items():
            assert self.table.decode(key, value) == {one.name: by_id[one.id] for one in self.table.schema.columns}


@given(st.data())
def test_rows_of_all_versions_are_read_under_the_latest(data: st.DataObject) -> None:
    """Columns come, go and change names; clients with any earlier schema go on writing."""
    first = [ColumnSpec(f"k{at}", data.draw(st.sampled_from(sorted(sc.KEY_TYPES))), key=True)
             for at in range(data.draw(st.integers(1, 2)))]  # fmt: skip
    others = [data.draw(other_column(f"c{at}")) for at in range(data.draw(st.integers(0, 3)))]
    model = Model(TypedTable("t", sc.create([*first, *others]), 0))
    versions = [model.table]
    for number in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(0, 3))):
            table = data.draw(st.sampled_from(versions))
            row: dict[str, Any] = {}
            for column in table.schema.columns:
                value = data.draw(value_of(column.type) | st.none() if column.nullable else value_of(column.type))
                if column.key or data.draw(st.booleans()) or (not column.nullable and column.default is None):
                    row[column.name] = value
            if len(first) == 1 and row[table.keys[0].name] in ("", b""):
                continue  # no region can hold an empty key
            model.put(row, table)
        model.alter(data.draw(step_of(model.table.schema, number)))
        versions.append(model.table)
        model.check()


@st.composite
def step_of(draw: st.DrawFn, schema: Schema, number: int) -> sc.SchemaStep:
    """Return a legal alteration."""
    others = [one.name for one in schema.columns if not one.key]
    what = draw(st.sampled_from(["add", "rename", "drop"] if others else ["add", "rename"]))
    if what == "add":
        dropped = f"c{draw(st.integers(0, 2))}"  # the name of another column, perhaps
        return AddColumn(draw(other_column(f"a{number}" if schema.column(dropped) else dropped)))
    if what == "drop":
        return DropColumn(draw(st.sampled_from(others)))
    return RenameColumn(draw(st.sampled_from([one.name for one in schema.columns])), f"r{number}")


# --- words ------------------------------------------------------------------------------------------------------------

ONE = typed("id:string:key", "v:int8", "b:binary")


@pytest.mark.parametrize(
    ("table", "given", "row"),
    [
        (ONE, ["k", "v=-5"], {"id": "k", "v": -5}),
        (ONE, ["v=5", "id=k"], {"v": 5, "id": "k"}),
        (ONE, ["x=y"], {"id": "x=y"}),  # no column x: the key
        (ONE, ["id=v=5", "b=AP8="], {"id": "v=5", "b": b"\x00\xff"}),
        (ONE, [""], {"id": ""}),
        (SALES, ["region=e u", "id=5", "note="], {"region": "e u", "id": 5, "note": ""}),
    ],
)
def test_words(table: TypedTable, given: list[str], row: dict[str, Any]) -> None:
    assert words.parse_row(table, given) == row


@pytest.mark.parametrize(
    ("table", "given", "message"),
    [
        (ONE, ["k", "w=5"], "table 'sales' has no column 'w'; its columns: id, v, b"),
        (ONE, ["k", "five"], "'five' names no column: write the key as id=…, and columns as NAME=VALUE"),
        (ONE, ["k", "id=k"], "column 'id' is given twice"),
        (ONE, ["k", "v=300"], "column 'v': 300 is no int8: allowed are -128 to 127"),
        (SALES, ["eu", "id=5"], "'eu' names no column: write the key as region=… id=…, and columns as NAME=VALUE"),
    ],
)
def test_wrong_words(table: TypedTable, given: list[str], message: str) -> None:
    with pytest.raises(RowError) as caught:
        words.parse_row(table, given)
    assert message in str(caught.value)


def test_null_columns() -> None:
    assert words.parse_row(ONE, ["k"], ["v"]) == {"id": "k", "v": None}
    for name, message in (("id", "given twice"), ("w", "no column 'w'")):
        with pytest.raises(RowError, match=message):
            words.parse_row(ONE, ["k"], [name])


def test_keys_bounds_and_prefixes() -> None:
    assert words.parse_key(SALES, ["id=5", "region=eu"]) == {"id": 5, "region": "eu"}
    assert words.parse_bound(SALES, "region='e u'") == "e!Pu "
    assert words.parse_bound(SALES, "region=eu id=5") == "eu a5"
    assert words.parse_bound(ONE, "a b") == "a b"
    assert words.parse_bound(typed("n:int32:key"), "-5") == "Z4"
    assert words.parse_prefix(ONE, "py") == "py"
    assert words.parse_prefix(SALES, "region=eu") == "eu "
    for text, message in (
        ("id=5", "a bound needs the first key columns; key columns: region, id"),
        ("region=eu amount=2", "column 'amount' is no key column; key columns: region, id"),
        ("region='eu", "No closing quotation"),
        ("", "a bound needs the first key columns"),
    ):
        with pytest.raises(RowError, match=message):
            words.parse_bound(SALES, text)
    with pytest.raises(RowError, match="a prefix needs a key of several columns, or of a string"):
        words.parse_prefix(typed("n:int32:key"), "5")
    with pytest.raises(RowError, match="key column 'region' needs a value"):
        words.parse_key(SALES, ["id=5"])
    with pytest.raises(RowError, match="column 'amount' is no key column"):
        words.parse_key(SALES, ["region=eu", "id=5", "amount=2"])


def test_tables_of_keys_and_bytes_take_keys_as_they_are() -> None:
    assert words.placed_text(TableRecord("t", "t"), "a b") == "a b"
    assert words.placed_text(TableRecord("t", "t", typed("n:int32:key").schema), "42") == "b42"
    assert TypedTable.of(TableRecord("t", "t", "a text")) is None


def test_a_row_is_shown() -> None:
    table = typed("id:int8:key", "at:timestamp", "b:binary", "f:float", "ok:bool", "s:string")
    row = table.decode(*table.encode({"id": 1, "at": 0, "b": b"\xff", "f": 0.1, "ok": True}))
    assert words.row_texts(table, row, "-") == ["1", "1970-01-01T00:00:00Z", "/w==", "0.1", "true", "-"]
    assert words.row_json(table, row) == {
        "id": 1, "at": "1970-01-01T00:00:00Z", "b": "/w==", "f": 0.1, "ok": True, "s": None,
    }  # fmt: skip
