"""A region's rows as of one moment: keys, pages of a scan, and the check of all of them.

A row whose checksum does not fit, a key that is no text and a page that LMDB cannot follow are DAMAGED: a request ends
with that error, never with a wrong value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import lmdb

from coord.rpc.wire import RpcError
from regionserver.kv.messages import DAMAGED, PAGE_BYTES_MAX, KvRow
from regionserver.kv.rows import is_whole, shown, unseal

#: What LMDB raises about a file whose pages make no sense.
DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
    lmdb.IncompatibleError,
)


class RowSnapshot:
    """A region's rows as of one moment."""

    def __init__(self, transaction: Any, *, is_checked: bool = True) -> None:
        """None: the region has no file yet, and no rows. `is_checked`: its rows have checksums."""
        self._transaction = transaction
        self._is_checked = is_checked

    def values(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Values of `keys`; of the first of them only, once the values fill a page. Raises RpcError(DAMAGED)."""
        found: list[bytes | None] = []
        size = 0
        for key in keys:
            if size >= PAGE_BYTES_MAX:
                break
            value = None if self._transaction is None else self._transaction.get(key)
            if value is not None and self._is_checked:
                value = unseal(key, value)
            found.append(value)
            size += len(value or b"")
        return found

    def page(self, start: bytes, end: bytes, rows_max: int) -> tuple[list[KvRow], str]:
        """One page of `[start, end)`, and the key at which the next begins, "" after the last.

        Raises:
            RpcError: DAMAGED, for a row whose checksum does not fit or whose key is no text.
        """
        rows: list[KvRow] = []
        if self._transaction is None:
            return rows, ""
        size = 0
        is_checked = self._is_checked
        with self._transaction.cursor() as cursor:
            found = cursor.set_range(start) if start else cursor.first()
            while found:
                key, value = cursor.item()
                if end and key >= end:
                    break
                if len(rows) == rows_max or size >= PAGE_BYTES_MAX:
                    return rows, _text(key)
                if is_checked:
                    value = unseal(key, value)
                rows.append(KvRow(_text(key), value))
                size += len(key) + len(value)
                found = cursor.next()
        return rows, ""

    def verify(self, start: bytes, rows_max: int) -> Verified:
        """Check the rows from `start` on, at most a page of them, and go on after a damaged one.

        Damage of the tree itself ends the check: what is behind it cannot be reached.
        """
        result = Verified(is_checked=self._is_checked)
        if self._transaction is None:
            return result
        try:
            with self._transaction.cursor() as cursor:
                found = cursor.set_range(start) if start else cursor.first()
                while found:
                    key, stored = cursor.item()
                    if result.rows == rows_max or result.size >= PAGE_BYTES_MAX:
                        result.next_key = key
                        break
                    result.rows += 1
                    result.size += len(key) + len(stored)
                    if (self._is_checked and not is_whole(key, stored)) or not _is_text(key):
                        result.damaged.append(shown(key))
                    found = cursor.next()
        except DAMAGE as error:
            result.trouble = str(error)
        return result


@dataclass
class Verified:
    """Result of `RowSnapshot.verify` for one page."""

    is_checked: bool = True
    rows: int = 0
    size: int = 0
    #: Keys of damaged rows, for people.
    damaged: list[str] = field(default_factory=list)
    #: Where the next page begins; empty after the last.
    next_key: bytes = b""
    #: Why the check ended before the last row.
    trouble: str = ""


def _text(key: bytes) -> str:
    """The key as text. Raises RpcError(DAMAGED): no key that is no text was ever written."""
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise RpcError(DAMAGED, f"row {shown(key)} is damaged: its key is no text") from error


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
