"""Values of each type: what programs and users may write, and how values are shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regions.records import schema as sc
from regions.records.rows import values
from regions.records.schema import INT_BITS, ColumnType
from tests.unit.regions.records.rows.strategies import other_column, value_of

C = ColumnType


@given(st.data())
def test_a_shown_value_is_read_back(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(ColumnType)))
    value = data.draw(value_of(kind))
    assert values.check(kind, value) == value
    assert values.parse(kind, values.show(kind, value)) == value
    json.dumps(values.to_json(kind, value), allow_nan=False)


@given(other_column("v"))
def test_a_default_that_a_schema_accepts_is_a_value(column: sc.ColumnSpec) -> None:
    schema = sc.create([sc.ColumnSpec("id", C.INT64, key=True), column])
    value = values.default_of(schema.columns[1])
    assert value is None or values.check(column.type, value) == value


def test_a_default_beyond_32_bits_is_refused_when_the_column_is_made() -> None:
    """A row could not have the value."""
    with pytest.raises(ValueError, match="'1e39' is no value of type float"):
        sc.create([sc.ColumnSpec("id", C.INT64, key=True), sc.ColumnSpec("v", C.FLOAT, default="1e39")])


@pytest.mark.parametrize(("kind", "bits"), sorted(INT_BITS.items()))
def test_integers_at_the_limits(kind: ColumnType, bits: int) -> None:
    limit = 1 << (bits - 1)
    assert [values.check(kind, one) for one in (-limit, limit - 1)] == [-limit, limit - 1]
    assert values.parse(kind, str(-limit)) == -limit
    for beyond in (-limit - 1, limit):
        with pytest.raises(ValueError, match=f"is no {kind}: allowed are {-limit} to {limit - 1}"):
            values.check(kind, beyond)
        with pytest.raises(ValueError, match=f"is no {kind}"):
            values.parse(kind, str(beyond))


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (C.INT8, True, "True is no int8"),
        (C.INT8, 1.0, "1.0 is no int8"),
        (C.INT64, 10**4000, "an integer of 13288 bits is no int64"),
        (C.BOOL, 1, "1 is no bool"),
        (C.STRING, b"x", "b'x' is no string; decode the bytes first"),
        (C.STRING, "\ud800", r"'\ud800' cannot be encoded in UTF-8"),
        (C.BINARY, "x", "'x' is no binary; encode the text first"),
        (C.DOUBLE, "1", "'1' is no double"),
        (C.DOUBLE, True, "True is no double"),
        (C.DOUBLE, float("nan"), "nan is not finite"),
        (C.DOUBLE, 10**400, "an integer of 1329 bits is too large for double"),
        (C.FLOAT, 1e39, "1e+39 is too large for float"),
        (C.TIMESTAMP, datetime(2026, 1, 31), "2026-01-31T00:00:00 has no time zone; give the datetime a tzinfo"),
        (C.STRING, ["x"] * 100, "['x', 'x', 'x', 'x', 'x', 'x', 'x', 'x',… is no string"),
    ],
)
def test_values_that_a_column_cannot_have(kind: ColumnType, value: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        values.check(kind, value)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (C.INT8, "1_0", "'1_0' is no int8"),
        (C.INT8, " 1", "' 1' is no int8"),
        (C.INT64, "9" * 5000, "is no int64"),
        (C.BOOL, "True", "'True' is no bool; write true or false"),
        (C.DOUBLE, "x", "'x' is no double"),
        (C.DOUBLE, "1_0", "'1_0' is no double"),
        (C.DOUBLE, "inf", "inf is not finite"),
        (C.BINARY, "x", "'x' is not base64"),
        (C.TIMESTAMP, "soon", "2026-01-31T12:00:00Z"),
        (C.TIMESTAMP, "2026-01-31T12:00:00", "has no time zone; add Z for UTC, or an offset such as +02:00"),
    ],
)
def test_texts_that_are_no_values(kind: ColumnType, text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared
        values.parse(kind, text)
    assert message in str(caught.value)


def test_times_are_microseconds_since_1970() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))
    micros = int(at.timestamp()) * 1_000_000
    assert values.check(C.TIMESTAMP, at) == micros
    assert values.show(C.TIMESTAMP, micros + 1) == "2026-01-31T10:00:00.000001Z"
    assert values.parse(C.TIMESTAMP, "2026-01-31T10:00:00.000001Z") == micros + 1
    assert values.check(C.TIMESTAMP, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)) == -1
    assert values.show(C.TIMESTAMP, 2**63 - 1) == str(2**63 - 1), "beyond the year 9999"


def test_a_float_is_rounded_to_32_bits_and_shown_with_few_digits() -> None:
    rounded = values.check(C.FLOAT, 0.1)
    assert rounded == 0.10000000149011612
    assert (values.show(C.FLOAT, rounded), values.to_json(C.FLOAT, rounded)) == ("0.1", 0.1)
    assert values.check(C.DOUBLE, 0.1) == 0.1
    assert values.check(C.DOUBLE, 3) == 3.0
