"""The rows of all regions in compact arrays, and the deltas between what was sent and what is.

A row has a number, which is its index in the arrays. Numbers are given once and never reused within a generation. So a
part or a delta can be applied in any order and twice: each sets rows by number to values that are at least as new.

    put, drop   a row has changed, or is gone
    size        the size of a row was measured
    part        rows from a number on, for a new listener
    take        the changes since the last call: each row at most once, with its latest values

A row that has changed and changed back before `take` is not sent. A delta has at most DELTA_ROWS_MAX rows; the others
follow with the next one, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from regions.page.rows import PageRow, RowState

#: Rows in one delta. At 10 deltas a second, 20,000 rows a second.
DELTA_ROWS_MAX: Final = 2_000
#: Rows in one part for a new listener: about 150 kB.
PART_ROWS_MAX: Final = 2_000


class PagePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Complete rows. All lists have the same length; `table` and `server` are indices, -1 for no server."""

    n: list[int]
    key: list[str]
    table: list[int]
    start: list[str]
    state: list[int]
    server: list[int]
    since: list[int]
    size: list[int]


class PageDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Changes. `new` has rows that were not in an earlier delta; the other lists are those of rows that were."""

    n: list[int] = []
    state: list[int] = []
    server: list[int] = []
    since: list[int] = []
    new: PagePart | None = None
    #: Numbers and sizes of rows whose size has changed.
    sized: list[tuple[int, int]] = []
    #: Tables and servers that were not named before, with their indices.
    tables: list[tuple[int, str]] = []
    servers: list[tuple[int, str]] = []


class PageModel:
    """See the module docstring."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._keys: list[str] = []
        self._table: list[int] = []
        self._start: list[str] = []
        self._rows: list[PageRow] = []
        self._sizes: list[int] = []
        self.tables = _Names()
        self.servers = _Names()
        #: Number -> the row as it was sent. Rows from `_sent` on were never sent.
        self._changed: dict[int, PageRow] = {}
        self._resized: dict[int, None] = {}
        self._sent = 0
        self._tables_sent = 0
        self._servers_sent = 0
        #: Keys of tablets' rows.
        self._tablets: set[str] = set()
        #: Number of rows by state.
        self.counts = dict.fromkeys(RowState, 0)

    def __len__(self) -> int:
        """Return the number of rows, those that are gone included."""
        return len(self._rows)

    @property
    def live(self) -> int:
        """Number of rows that are not gone."""
        return len(self._numbers)

    @property
    def is_wasteful(self) -> bool:
        """True if most rows are gone: a new generation would be smaller."""
        return len(self._rows) > PART_ROWS_MAX and len(self._numbers) * 2 < len(self._rows)

    def keys(self) -> Iterator[str]:
        """Return the keys of the live rows."""
        return iter(self._numbers)

    def number_of(self, key: str) -> int | None:
        """Return the number of a live row."""
        return self._numbers.get(key)

    def put(self, key: str, table_id: str, start: str, row: PageRow) -> None:
        """Add a row, or set its latest values."""
        number = self._numbers.get(key)
        if row.server:
            self.servers.index(row.server)
        if number is None:
            self._numbers[key] = len(self._rows)
            self._keys.append(key)
            self._table.append(self.tables.index(table_id))
            self._start.append(start)
            self._sizes.append(-1)
            self._rows.append(row)
            self.counts[row.state] += 1
        elif row != self._rows[number]:
            self._set(number, row)

    def drop(self, key: str) -> None:
        """Remove a row. Unknown keys are ignored."""
        number = self._numbers.pop(key, None)
        if number is not None:
            self._set(number, PageRow(RowState.GONE, "", 0))

    def keep_tablets(self, listed: set[str]) -> None:
        """Drop the rows of tablets that are not listed any more. A tablet's key is its region id."""
        self._tablets.difference_update(gone := self._tablets - listed)
        self._tablets |= listed & self._numbers.keys()
        for key in gone:
            self.drop(key)

    def _set(self, number: int, row: PageRow) -> None:
        former = self._rows[number]
        self.counts[former.state] -= 1
        self.counts[row.state] += 1
        self._rows[number] = row
        if number < self._sent:
            self._changed.setdefault(number, former)

    def size(self, key: str, size_bytes: int) -> None:
        """Set the size of a row, in bytes rounded to three figures."""
        number = self._numbers.get(key)
        rounded = _three_figures(size_bytes)
        if number is not None and self._sizes[number] != rounded:
            self._sizes[number] = rounded
            if number < self._sent:
                self._resized[number] = None

    # --- for listeners ------------------------------------------------------------------------------------------------

    def part(self, at: int, most: int = PART_ROWS_MAX) -> PagePart:
        """Return up to `most` complete rows from number `at` on."""
        return self._part(range(at, min(at + most, len(self._rows))))

    def _part(self, numbers: range) -> PagePart:
        rows = [self._rows[one] for one in numbers]
        cut = slice(numbers.start, numbers.stop)
        return PagePart(
            list(numbers),
            self._keys[cut],
            self._table[cut],
            self._start[cut],
            [one.state.value for one in rows],
            [self._server(one) for one in rows],
            [one.since_ms for one in rows],
            self._sizes[cut],
        )

    def _server(self, row: PageRow) -> int:
        return self.servers.index(row.server) if row.server else -1

    def mark_sent(self) -> None:
        """Record that nothing was sent before: parts will carry all present rows."""
        self._changed.clear()
        self._resized.clear()
        self._sent = len(self._rows)
        self._tables_sent, self._servers_sent = len(self.tables), len(self.servers)

    def take(self, most: int = DELTA_ROWS_MAX) -> PageDelta | None:
        """Return the changes since the last call, at most `most` rows; None if there are none."""
        numbers: list[int] = []
        seen = 0
        for number, before in self._changed.items():
            if len(numbers) >= most:
                break
            seen += 1
            if self._rows[number] != before:
                numbers.append(number)
        for number in [one for one, _ in zip(self._changed, range(seen), strict=False)]:
            del self._changed[number]
        fresh = range(self._sent, min(len(self._rows), self._sent + most - len(numbers)))
        sized = [one for one, _ in zip(self._resized, range(most), strict=False)]
        for number in sized:
            del self._resized[number]
        tables, servers = self.tables.since(self._tables_sent), self.servers.since(self._servers_sent)
        if not (numbers or fresh or sized or tables or servers):
            return None
        self._sent = fresh.stop if fresh else self._sent
        self._tables_sent, self._servers_sent = len(self.tables), len(self.servers)
        rows = [self._rows[one] for one in numbers]
        return PageDelta(
            numbers,
            [one.state.value for one in rows],
            [self._server(one) for one in rows],
            [one.since_ms for one in rows],
            self._part(fresh) if fresh else None,
            [(one, self._sizes[one]) for one in sized],
            tables,
            servers,
        )


class _Names:
    """Names in the order in which they were first used."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._index: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.names)

    def since(self, at: int) -> list[tuple[int, str]]:
        """Return the names from index `at` on, with their indices."""
        return list(enumerate(self.names[at:], at))

    def index(self, name: str) -> int:
        """Return the index of a name; a new one for a new name."""
        found = self._index.get(name)
        if found is None:
            found = self._index[name] = len(self.names)
            self.names.append(name)
        return found


def _three_figures(number: int) -> int:
    """Return `number` rounded to three figures, so that a growing region is not sent at each row."""
    unit: int = 10 ** max(0, len(str(number)) - 3)
    return number // unit * unit
