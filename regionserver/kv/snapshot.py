"""A snapshot of a region's rows: single keys, pages of a scan, and the check of all rows.

A row whose checksum does not match, a key that is not text, and a page that LMDB cannot follow are DAMAGED. A request
ends with this error, never with a wrong value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import lmdb

from coord.rpc.wire import Code, RpcError
from regionserver.kv.held import HeldRows
from regionserver.kv.messages import DAMAGED, PAGE_BYTES_MAX, KvRow
from regionserver.kv.rows import is_whole, shown, unseal

#: Exceptions of LMDB for a file with inconsistent pages.
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
    """A region's rows at one moment."""

    def __init__(
        self, transaction: Any, *, is_checked: bool = True, hold: Callable[[], HeldRows] | None = None
    ) -> None:
        """`transaction` is None if the region has no file and no rows. `is_checked`: its rows have checksums. `hold`
        makes a held snapshot of the same file."""
        self._transaction = transaction
        self._hold = hold
        self._is_checked = is_checked

    def hold(self) -> HeldRows:
        """Return a held snapshot with these rows or later ones. Raise RpcError if the rows cannot be held."""
        if self._hold is None:
            raise RpcError(Code.UNSUPPORTED, "the rows of this region cannot be held for a backup")
        return self._hold()

    def values(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, or as many of the first ones as fill a page. Raise RpcError(DAMAGED)."""
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
        """Return one page of `[start, end)` and the key at which the next page begins, "" after the last page.

        Raises:
            RpcError: DAMAGED for a row whose checksum does not match, or whose key is not text.
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
        """Check the rows from `start` on, at most one page; continue after a damaged row.

        A damaged tree ends the check, because the rest of the rows cannot be reached.
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
    #: Printable keys of damaged rows.
    damaged: list[str] = field(default_factory=list)
    #: Key at which the next page begins; empty after the last page.
    next_key: bytes = b""
    #: Reason why the check ended before the last row.
    trouble: str = ""


def _text(key: bytes) -> str:
    """Return the key as text. Raise RpcError(DAMAGED): every key was text when it was written."""
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise RpcError(DAMAGED, f"row {shown(key)} is damaged: its key is not text") from error


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
