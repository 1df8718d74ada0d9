"""Key columns as one text whose order is the order of the columns' values. Pure.

Ranges, splits and hash buckets work on the text, as in a table without columns. The text is printable where the values
are, because operators meet keys in ranges, logs and commands:

    string, as the last column   the string itself
    string, before others        the string; each character up to "!" becomes "!" and the character 48 places later
    int8 … int64, timestamp      a letter for sign and number of digits, then the digits: 42 is "b42"
                                 negative numbers have the nines' complement of their digits: -5 is "Z4"
    binary                       hexadecimal digits

Columns are joined by a blank, which is lower than every character of a column before it. So ("eu", 42) is "eu b42", and
all keys of "eu" begin with "eu ". A text of the first columns alone ends with a blank, and is the bound before all keys
that begin with these values.

Source of the idea: Kudu's encoded keys (key_encoder.h), with text in place of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from regions.records.rows.values import Value, check
from regions.records.schema import INT_BITS, ColumnType

_SEPARATOR: Final = " "
_ESCAPE: Final = "!"
_SHIFT: Final = 48
_ESCAPES: Final = {code: _ESCAPE + chr(code + _SHIFT) for code in range(ord(_ESCAPE) + 1)}
_ESCAPED: Final = {text[1]: chr(code) for code, text in _ESCAPES.items()}
#: First characters of numbers with 1, 2, … digits; every negative one is below every other one.
_POSITIVE: Final = "abcdefghijklmnopqrs"
_NEGATIVE: Final = "ZYXWVUTSRQPONMLKJIH"
_NINES: Final = str.maketrans("0123456789", "9876543210")


def encode(kinds: Sequence[ColumnType], values: Sequence[Value]) -> str:
    """Return the text of checked values: a key, or a bound if there are fewer values than columns."""
    assert 0 < len(values) <= len(kinds), f"{len(values)} values for {len(kinds)} key columns"
    last = len(kinds) - 1
    parts = [_part(kinds[at], value, is_last=at == last) for at, value in enumerate(values)]
    return _SEPARATOR.join(parts) + ("" if len(values) == len(kinds) else _SEPARATOR)


def _part(kind: ColumnType, value: Value, *, is_last: bool) -> str:
    if kind in INT_BITS:
        assert isinstance(value, int), f"{value!r} is no {kind}"
        digits = str(abs(value))
        if value >= 0:
            return _POSITIVE[len(digits) - 1] + digits
        return _NEGATIVE[len(digits) - 1] + digits.translate(_NINES)
    if kind is ColumnType.BINARY:
        assert isinstance(value, bytes), f"{value!r} is no binary"
        return value.hex()
    assert isinstance(value, str), f"{value!r} is no string"
    return value if is_last else value.translate(_ESCAPES)


def decode(kinds: Sequence[ColumnType], key: str) -> list[Value]:
    """Return the values of a key. Raise ValueError for a text that `encode` never returns."""
    parts = key.split(_SEPARATOR, len(kinds) - 1)
    if len(parts) != len(kinds):
        raise ValueError(f"the key has {len(parts)} of {len(kinds)} columns")
    last = len(kinds) - 1
    values = [_value(kind, part, is_last=at == last) for at, (kind, part) in enumerate(zip(kinds, parts, strict=True))]
    if encode(kinds, values) != key:
        raise ValueError("the key is not in the form of its values")
    return values


def _value(kind: ColumnType, part: str, *, is_last: bool) -> Value:
    if kind in INT_BITS:
        digits = part[1:]
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"{part[:40]!r} is no {kind} of a key")
        is_negative = part[0] in _NEGATIVE
        return check(kind, -int(digits.translate(_NINES)[:20]) if is_negative else int(digits[:20]))
    if kind is ColumnType.BINARY:
        try:
            return bytes.fromhex(part)
        except ValueError:
            raise ValueError(f"{part[:40]!r} is no binary of a key") from None
    if is_last or _ESCAPE not in part:
        return part
    return _unescaped(part)


def _unescaped(part: str) -> str:
    first, *rest = part.split(_ESCAPE)
    try:
        return first + "".join(_ESCAPED[one[:1]] + one[1:] for one in rest)
    except KeyError:
        raise ValueError(f"{part[:40]!r} has an escape that no key has") from None


__all__ = ["decode", "encode"]
