"""Conditions on key columns become one range of keys; a range becomes parts, one for each region. Pure.

A range may hold more keys than the conditions allow, never fewer: Spark checks every condition again on what it gets.
A table of keys and bytes has one key column, `key`.

    region = 'eu' AND id >= 5 AND id < 9      ["eu b5" …, "eu b9" …)     first columns equal, then bounds of the next
    key LIKE 'python3%'                       ["python3", "python4")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pyspark_regionkeeper.columns import KEY
from regions.records.model import RegionRecord
from regions.records.partitioning import bounds
from regions.records.rows.codec import RowError, TypedTable
from regions.records.schema import ColumnType

#: A key that follows another one immediately has this character more.
_LEAST: Final = "\0"
_SURROGATES: Final = range(0xD800, 0xE000)
_LAST: Final = 0x10FFFF


class Condition(NamedTuple):
    """A condition on one column: =, <, <=, >, >=, in (the value is a sequence) or prefix."""

    column: str
    sign: str
    value: object


class RegionPart(NamedTuple):
    """The part of a read that lies in one region: placed keys from `start` to before `end`; "" is no bound."""

    table_id: str
    region_id: str
    start: str
    end: str


def after_prefix(text: str) -> str:
    """Return the least text after all texts that begin with `text`; "" if there is none."""
    while text:
        following = ord(text[-1]) + 1
        if following <= _LAST:
            return text[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
        text = text[:-1]
    return ""


def key_range(table: TypedTable | None, conditions: Sequence[Condition]) -> tuple[str, str]:
    """Return a range `[start, end)` with all keys that meet the conditions. None: a table of keys and bytes."""
    if table is None:
        mine = [one for one in conditions if one.column == KEY]
        return _joined(_of_text("", one) for one in mine if _is_text(one))
    equal: dict[str, object] = {}
    for column in table.keys:
        mine = [one for one in conditions if one.column == column.name and _fits(one, column.type)]
        same = next((one for one in mine if one.sign == "="), None)
        try:
            if same is not None:
                table.bound_of({**equal, column.name: same.value})
                equal[column.name] = same.value
                continue
            return _joined([_within(table, equal), *(_of_column(table, equal, one) for one in mine)])
        except RowError:
            break  # the value is none of this column: Spark compares other types than the table stores
    return _within(table, equal)


def joined(first: tuple[str, str], second: tuple[str, str]) -> tuple[str, str]:
    """Return the keys that are in both ranges; ("", "") has all keys."""
    return _joined([first, second])


def is_empty(start: str, end: str) -> bool:
    """Return True if no key is in the range."""
    return bool(end) and start >= end


def parts(regions: Iterable[RegionRecord], buckets: int, start: str, end: str) -> list[RegionPart]:
    """Return the parts of `[start, end)`, in the order of the regions."""
    if is_empty(start, end):
        return []
    wanted = [bounds(start, end, bucket) for bucket in range(buckets)] if buckets else [(start, end)]
    found = []
    for region in regions:
        for one in wanted:
            low, high = _joined([(region.start_key, region.end_key), one])
            if not is_empty(low, high):
                found.append(RegionPart(region.table_id, region.region_id, low, high))
    return found


def _joined(ranges: Iterable[tuple[str, str]]) -> tuple[str, str]:
    start, end = "", ""
    for low, high in ranges:
        start = max(start, low)
        end = min(end, high) if end and high else end or high
    return start, end


def _within(table: TypedTable, equal: dict[str, object]) -> tuple[str, str]:
    """Return the range of the keys that begin with these columns."""
    if not equal:
        return "", ""
    text = table.bound_of(equal)
    return text, text + _LEAST if len(equal) == len(table.keys) else after_prefix(text)


def _of_column(table: TypedTable, equal: dict[str, object], one: Condition) -> tuple[str, str]:
    """Return the range of one condition on the column after the equal ones. Raise RowError."""
    is_last = len(equal) + 1 == len(table.keys)
    if one.sign == "prefix":
        return _of_text(table.bound_of(equal) if equal else "", one) if is_last else ("", "")
    values = list(one.value) if isinstance(one.value, Sequence) and one.sign == "in" else [one.value]
    spans = [_within(table, {**equal, one.column: value}) for value in values]
    if one.sign == "in":
        return min(low for low, _ in spans), max(high for _, high in spans)
    low, high = spans[0]
    return {"<": ("", low), "<=": ("", high), ">": (high, ""), ">=": (low, "")}[one.sign]


def _of_text(before: str, one: Condition) -> tuple[str, str]:
    """Return the range of a condition on a text that stands in keys as it is, after `before`."""
    if one.sign == "in":
        assert isinstance(one.value, Sequence)
        return before + min(one.value), before + max(one.value) + _LEAST
    text = before + str(one.value)
    return {
        "=": (text, text + _LEAST),
        "prefix": (text, after_prefix(text)),
        "<": ("", text),
        "<=": ("", text + _LEAST),
        ">": (text + _LEAST, ""),
        ">=": (text, ""),
    }[one.sign]


def _values(one: Condition) -> list[object]:
    return list(one.value) if one.sign == "in" and isinstance(one.value, list | tuple) else [one.value]


def _is_text(one: Condition) -> bool:
    found = _values(one)
    return bool(found) and all(isinstance(value, str) and value for value in found)


def _fits(one: Condition, kind: ColumnType) -> bool:
    """Return True if the condition's values are of the column's type beyond doubt."""
    if one.sign == "prefix" and kind is not ColumnType.STRING:
        return False
    if kind is ColumnType.STRING:
        return _is_text(one)
    found = _values(one)
    if kind is ColumnType.BINARY:
        return bool(found) and all(isinstance(value, bytes | bytearray) and value for value in found)
    if kind is ColumnType.TIMESTAMP:
        return bool(found) and all(isinstance(value, datetime) and value.tzinfo is not None for value in found)
    return bool(found) and all(isinstance(value, int) and not isinstance(value, bool) for value in found)


__all__ = ["Condition", "RegionPart", "after_prefix", "is_empty", "joined", "key_range", "parts"]
