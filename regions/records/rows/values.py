"""Values of the column types: checks of a program's values, texts of users, and JSON. Pure.

    type                 a program's value                              a user's text
    bool                 bool                                           true, false
    int8 … int64         int                                            decimal digits, with a sign
    float, double        float or int, finite                           a finite number
    string               str that UTF-8 can encode                      the text itself
    binary               bytes, bytearray or memoryview                 base64
    timestamp            microseconds since 1970 as int, or datetime    the same integer, or ISO 8601 with a zone

A `float` is rounded to 32 bits when it is written. Functions raise ValueError; the message follows the name of a
column, as in "column 'v': 300 is no int8".
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from datetime import UTC, datetime, timedelta
from typing import Final

from regions.records.schema import INT_BITS, Column, ColumnType

Value = bool | int | float | str | bytes | None

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
#: Longest part of a value in an error.
_SHOWN_MAX: Final = 40
#: Digits after which the text of a 32-bit number names no other 32-bit number.
_FLOAT_DIGITS: Final = range(6, 10)


def check(kind: ColumnType, value: object) -> Value:
    """Return a program's value as it is stored and read. Raise ValueError for another type or a value out of range."""
    if kind in INT_BITS:
        return _checked_integer(kind, value)
    if kind is ColumnType.STRING:
        if isinstance(value, str):
            return _checked_text(value)
        hint = "; decode the bytes first" if isinstance(value, bytes | bytearray) else ""
        raise ValueError(f"{_shown(value)} is no string{hint}")
    if kind is ColumnType.BINARY:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        hint = "; encode the text first" if isinstance(value, str) else ""
        raise ValueError(f"{_shown(value)} is no binary{hint}")
    if kind is ColumnType.BOOL:
        if isinstance(value, bool):
            return value
        raise ValueError(f"{_shown(value)} is no bool")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_shown(value)} is no {kind}")
    return _checked_number(kind, value)


def _checked_integer(kind: ColumnType, value: object) -> int:
    if kind is ColumnType.TIMESTAMP and isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone; give the datetime a tzinfo")
        value = (value - _EPOCH) // _MICROSECOND
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{_shown(value)} is no {kind}")
    limit = 1 << (INT_BITS[kind] - 1)
    if not -limit <= value < limit:
        raise ValueError(f"{_shown(value)} is no {kind}: allowed are {-limit} to {limit - 1}")
    return value


def _checked_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_shown(value)} cannot be encoded in UTF-8") from None
    return value


def _checked_number(kind: ColumnType, value: float) -> float:
    try:
        number = float(value)
        if kind is ColumnType.FLOAT:
            number = _rounded(number)
    except OverflowError:
        raise ValueError(f"{_shown(value)} is too large for {kind}") from None
    if not math.isfinite(number):
        raise ValueError(f"{_shown(value)} is not finite")
    return number


def _rounded(number: float) -> float:
    """Return the nearest 32-bit number. Raise OverflowError."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def parse(kind: ColumnType, text: str) -> Value:
    """Return the value that a user's text stands for. Raise ValueError."""
    if kind is ColumnType.STRING:
        return check(kind, text)
    if kind is ColumnType.BOOL:
        if text not in ("true", "false"):
            raise ValueError(f"{_shown(text)} is no bool; write true or false")
        return text == "true"
    if kind is ColumnType.BINARY:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"{_shown(text)} is not base64") from None
    if kind is ColumnType.TIMESTAMP and not _INTEGER.fullmatch(text):
        return check(kind, _parsed_time(text))
    if kind in INT_BITS:
        # Longer texts are out of range; Python itself refuses to convert thousands of digits.
        if not _INTEGER.fullmatch(text) or len(text) > _SHOWN_MAX:
            raise ValueError(f"{_shown(text)} is no {kind}")
        return check(kind, int(text))
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{_shown(text)} is no {kind}") from None
    if "_" in text:
        raise ValueError(f"{_shown(text)} is no {kind}")
    return check(kind, number)


def _parsed_time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{_shown(text)} is no timestamp; write microseconds since 1970, or a time such as 2026-01-31T12:00:00Z"
        ) from None
    if found.tzinfo is None:
        raise ValueError(f"{_shown(text)} has no time zone; add Z for UTC, or an offset such as +02:00")
    return found


def show(kind: ColumnType, value: Value) -> str:
    """Return the text that `parse` reads as this value. The value must not be null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if kind is ColumnType.TIMESTAMP and isinstance(value, int):
        try:
            return (_EPOCH + value * _MICROSECOND).isoformat().replace("+00:00", "Z")
        except OverflowError:
            return str(value)
    if kind is ColumnType.FLOAT and isinstance(value, float):
        return repr(_short(value))
    return value if isinstance(value, str) else repr(value)


def to_json(kind: ColumnType, value: Value) -> bool | int | float | str | None:
    """Return a value for JSON: base64 for bytes, ISO 8601 for timestamps."""
    if isinstance(value, bytes) or (kind is ColumnType.TIMESTAMP and value is not None):
        return show(kind, value)
    if kind is ColumnType.FLOAT and isinstance(value, float):
        return _short(value)
    return value


def _short(value: float) -> float:
    """Return the number with the fewest digits that is this 32-bit number when it is rounded."""
    for digits in _FLOAT_DIGITS:
        found = float(f"{value:.{digits}g}")
        try:
            if _rounded(found) == value:
                return found
        except OverflowError:
            continue
    return value


def default_of(column: Column) -> Value:
    """Return the value of a row that has none for the column: its default, or null.

    The default was checked when the column was made (`regions.records.schema`), less strictly than `parse` checks.
    """
    text = column.default
    if text is None:
        return None
    if column.type in INT_BITS:
        return int(text)
    if column.type is ColumnType.DOUBLE:
        return float(text)
    if column.type is ColumnType.FLOAT:
        return _rounded(float(text))
    return parse(column.type, text)


def _shown(value: object) -> str:
    """Return a value for an error, cut if it is long."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print thousands of digits
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


__all__ = ["Value", "check", "default_of", "parse", "show", "to_json"]
