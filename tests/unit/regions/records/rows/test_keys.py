"""Texts of key columns: back to the values, ordered as the values, bounds of the first columns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regions.records.rows import keys
from regions.records.schema import INT_BITS, KEY_TYPES, ColumnType
from tests.unit.regions.records.rows.strategies import value_of

C = ColumnType
KINDS = st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=1, max_size=4)


def rows_of(kinds: list[ColumnType]) -> st.SearchStrategy[list[Any]]:
    return st.tuples(*(value_of(kind) for kind in kinds)).map(list)


@given(st.data())
def test_a_key_is_read_back(data: st.DataObject) -> None:
    kinds = data.draw(KINDS)
    values = data.draw(rows_of(kinds))
    assert keys.decode(kinds, keys.encode(kinds, values)) == values


@given(st.data())
def test_texts_have_the_order_of_the_values(data: st.DataObject) -> None:
    """Python orders lists column by column, strings by code point and bytes by their values, as the schema does."""
    kinds = data.draw(KINDS)
    left, right = data.draw(rows_of(kinds)), data.draw(rows_of(kinds))
    if data.draw(st.booleans()):  # a difference in the last column alone
        right = [*left[:-1], right[-1]]
    one, other = keys.encode(kinds, left), keys.encode(kinds, right)
    assert (one < other, one == other) == (left < right, left == right)
    assert (one.encode() < other.encode()) == (one < other), "servers compare UTF-8"


@given(st.data())
def test_a_bound_is_before_all_keys_with_its_columns_and_after_all_lower_keys(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=2, max_size=4))
    count = data.draw(st.integers(1, len(kinds) - 1))
    first, other = data.draw(rows_of(kinds)), data.draw(rows_of(kinds))
    bound = keys.encode(kinds, first[:count])
    assert keys.encode(kinds, first).startswith(bound)
    assert (keys.encode(kinds, other) < bound) == (other[:count] < first[:count])


@pytest.mark.parametrize(
    ("kinds", "values", "text"),
    [
        ([C.INT64], [42], "b42"),
        ([C.INT64], [0], "a0"),
        ([C.INT64], [-5], "Z4"),
        ([C.INT64], [-10], "Y89"),
        ([C.INT64], [-(2**63)], "H0776627963145224191"),
        ([C.INT64], [2**63 - 1], "s9223372036854775807"),
        ([C.STRING], ["with blanks! "], "with blanks! "),
        ([C.STRING, C.INT8], ["eu", 5], "eu a5"),
        ([C.STRING, C.STRING], ["a b!", "c d!"], "a!Pb!Q c d!"),
        ([C.BINARY, C.STRING], [b"\x00\xff", ""], "00ff "),
    ],
)
def test_texts(kinds: list[ColumnType], values: list[Any], text: str) -> None:
    """The texts are on disks: they never change."""
    assert keys.encode(kinds, values) == text
    assert keys.decode(kinds, text) == values


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        ([C.INT64], "42"),
        ([C.INT64], ""),
        ([C.INT64], "b4x"),
        ([C.INT64], "c42"),  # three digits are said, two are there
        ([C.INT64], "b07"),
        ([C.INT64], "Z9"),  # -0
        ([C.INT8], "c128"),
        ([C.INT64], "s9223372036854775808"),
        ([C.INT64], "s" + "9" * 5000),
        ([C.INT8], "b٤٢"),
        ([C.STRING, C.INT8], "eu"),
        ([C.STRING, C.INT8], "e!xu a5"),
        ([C.STRING, C.INT8], "eu! a5"),
        ([C.BINARY], "FF"),
        ([C.BINARY], "f"),
    ],
)
def test_other_texts_are_no_keys(kinds: list[ColumnType], text: str) -> None:
    with pytest.raises(ValueError, match=r"key|no int"):
        keys.decode(kinds, text)


@given(st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=1, max_size=3), st.text(max_size=20))
def test_any_text_is_the_key_of_its_values_or_none(kinds: list[ColumnType], text: str) -> None:
    try:
        values = keys.decode(kinds, text)
    except ValueError:
        return
    assert keys.encode(kinds, values) == text


def test_numbers_around_each_power_of_ten_are_in_order() -> None:
    limit = 1 << (INT_BITS[C.INT64] - 1)
    near = {sign * 10**power + delta for sign in (1, -1) for power in range(19) for delta in (-1, 0, 1)}
    numbers = sorted({*near, -limit, limit - 1})
    texts = [keys.encode([C.INT64], [one]) for one in numbers]
    assert texts == sorted(texts)
