"""Schemas, values and alterations for property tests."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import strategies as st

from regions.records.rows.values import show
from regions.records.schema import INT_BITS, ColumnSpec, ColumnType

_TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.text(' !"a\x00\x1f', max_size=4)
_OTHERS = {
    ColumnType.BOOL: st.booleans(),
    ColumnType.FLOAT: st.floats(width=32, allow_nan=False, allow_infinity=False),
    ColumnType.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    ColumnType.STRING: _TEXT,
    ColumnType.BINARY: st.binary(max_size=6),
}


def value_of(kind: ColumnType) -> st.SearchStrategy[Any]:
    """Return values of a type."""
    if kind in INT_BITS:
        limit = 1 << (INT_BITS[kind] - 1)
        return st.integers(-limit, limit - 1)
    return _OTHERS[kind]


@st.composite
def other_column(draw: st.DrawFn, name: str) -> ColumnSpec:
    """Return a column outside of the key that can be added to a table with rows."""
    kind = draw(st.sampled_from(sorted(ColumnType)))
    # The default of a timestamp is an integer.
    text = str if kind in INT_BITS else partial(show, kind)
    default = draw(st.none() | value_of(kind).map(text))
    return ColumnSpec(name, kind, nullable=default is None or draw(st.booleans()), default=default)
